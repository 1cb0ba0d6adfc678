/* autograd_formulas.c: the gradients of the built-in ops, in terms of ops. Calls go through the dispatcher from the
 * top, so that gradients are profiled, traced and, when a graph of the backward is wanted, differentiated. */
#include <inttypes.h>

#include "layers/autograd_impl.h"

enum { TABLE = 0, INDICES = 1, WEIGHTS = 3 };

/* ---- Small helpers ---- */

/* A call of op with these lists, from the top. */
sheaf_status shf_grad_call(sheaf_op op, sheaf_tensor *const *inputs, int input_count, const sheaf_attr *attrs,
                           int attr_count, const sheaf_call *like, sheaf_tensor **outputs, int output_count)
{
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = op;
  call.inputs = inputs;
  call.input_count = input_count;
  call.attrs = attrs;
  call.attr_count = attr_count;
  call.outputs = outputs;
  call.output_count = output_count;
  if (like) {
    call.batch = like->batch;
    call.batched = like->batched;
    call.wanted = like->wanted;
    call.include = like->include;
  }
  return sheaf_dispatch(&call);
}

/* The sum over the leading dimension of a nested tensor. */
static sheaf_status sum_nested(const sheaf_tensor *each, sheaf_tensor **sum)
{
  sheaf_tensor *values;
  SHF_REQUIRE(!each->history && !shf_thread.trace, UNSUPPORTED,
              "a nested gradient of what %" PRId64 " slices share is neither differentiated again nor traced",
              each->extent[0]);
  SHF_TRY(shf_grad_sum_problems(sheaf_tensor_retain(each->part[0]), &values));
  sheaf_status status = shf_tensor_nested(values, each->part[1], each->lead - 1, sum);
  sheaf_tensor_release(values);
  return status;
}

/* The gradient of an input that all problems of a batch share: the sum over the leading dimension. Takes `each`. */
sheaf_status shf_grad_sum_problems(sheaf_tensor *each, sheaf_tensor **sum)
{
  int listed = each->form == SHEAF_FORM_SPARSE && each->rank > 2 && !each->history && !shf_thread.trace; /* or dense */
  if (listed || each->form == SHEAF_FORM_NESTED) {
    sheaf_status summed = listed ? shf_sparse_sum_problems(each, sum) : sum_nested(each, sum);
    sheaf_tensor_release(each);
    return summed;
  }
  int64_t flat[] = {each->extent[0], 1};
  for (int i = 1; i < each->rank; i++) flat[1] *= each->extent[i]; /* also of no problems, whose sum is zero */
  sheaf_tensor *rows = NULL, *ids = NULL, *outputs[2] = {NULL, NULL};
  sheaf_status status = shf_send_reshape(each, 2, flat, NULL, &rows);
  if (status == SHEAF_OK) status = shf_tensor_make(SHEAF_I64, 1, flat, each, &ids);
  if (status == SHEAF_OK) status = shf_tensor_clear(ids);
  if (status == SHEAF_OK) {
    sheaf_tensor *inputs[] = {rows, ids};
    sheaf_attr attrs[SHEAF_SEGMENT_ATTRS] = {
        [SHEAF_SEGMENT_REDUCE].i = SHEAF_REDUCE_SUM, [SHEAF_SEGMENT_SORTED].i = 1, [SHEAF_SEGMENT_SEGMENTS].i = 1};
    status = shf_grad_call(SHEAF_OP_SEGMENT_REDUCE, inputs, 2, attrs, SHEAF_SEGMENT_ATTRS, NULL, outputs, 2);
  }
  if (status == SHEAF_OK) status = shf_send_reshape(outputs[0], each->rank - 1, each->extent + 1, NULL, sum);
  sheaf_tensor_release(outputs[0]);
  sheaf_tensor_release(rows);
  sheaf_tensor_release(ids);
  sheaf_tensor_release(each);
  return status;
}

/* [batch, n, ...] as [batch * n, ...]. */
sheaf_status shf_grad_merge_leading(sheaf_tensor *t, sheaf_tensor **out)
{
  int64_t shape[SHEAF_TENSOR_MAX_RANK];
  shape[0] = t->extent[0] * t->extent[1];
  for (int i = 2; i < t->rank; i++) shape[i - 1] = t->extent[i];
  return shf_send_reshape(t, t->rank - 1, shape, NULL, out);
}

/* Input `input` of a batched call as one problem of all: [batch * n, ...]. */
sheaf_status shf_grad_merged_input(const sheaf_call *call, int input, sheaf_tensor **out)
{
  sheaf_tensor *each = NULL;
  *out = NULL;
  if (!shf_input(call, input)) return SHEAF_OK;
  if (shf_grad_is_batched(call, input))
    each = sheaf_tensor_retain(call->inputs[input]);
  else
    SHF_TRY(shf_send_expand(call->inputs[input], call->batch, NULL, &each));
  sheaf_status status = shf_grad_merge_leading(each, out);
  sheaf_tensor_release(each);
  return status;
}

/* How the table's gradient is wanted: by the op's option, or by the leaf. */
int shf_grad_sparse_kind(const sheaf_call *forward, const sheaf_tensor *like)
{
  int64_t asked = forward->attrs[SHEAF_EMBEDDING_SPARSE].i;
  if (asked) return (int)asked;
  return like->grad_kind == SHEAF_GRAD_SPARSE ? 1 : like->grad_kind == SHEAF_GRAD_SPARSE_RAW ? 2 : 0;
}

void shf_grad_attrs(const sheaf_call *forward, const sheaf_tensor *table, sheaf_attr *attrs)
{
  memcpy(attrs, forward->attrs, sizeof *attrs * SHEAF_EMBEDDING_ATTRS);
  attrs[SHEAF_EMBEDDING_OUT_DTYPE].i = 0;
  attrs[SHEAF_EMBEDDING_ROWS].i = table->extent[shf_grad_is_batched(forward, TABLE)];
  attrs[SHEAF_EMBEDDING_SPARSE].i = 0;
}

/* ---- Lookup ---- */

shf_sharing shf_grad_sharing(const sheaf_call *forward)
{
  if (!forward->batch || shf_grad_is_batched(forward, TABLE)) return SHF_SHARES_NOTHING;
  return forward->attrs[SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ].i ? SHF_SHARES_SUMS : SHF_SHARES_ENTRIES;
}

sheaf_status shf_grad_sum_shared(shf_sharing sharing, sheaf_tensor **grad)
{
  sheaf_tensor *each = *grad;
  if (sharing != SHF_SHARES_SUMS || !each) return SHEAF_OK;
  *grad = NULL;
  return shf_grad_sum_problems(each, grad);
}

static sheaf_status embedding_backward(SHF_GRADIENT_ARGUMENTS)
{
  (void)context;
  (void)wanted;
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  sheaf_tensor *grad;
  sheaf_call how = SHEAF_CALL_INIT;
  shf_sharing sharing = shf_grad_sharing(forward);
  shf_grad_attrs(forward, likes[TABLE], attrs);
  attrs[SHEAF_EMBEDDING_SPARSE].i = shf_grad_sparse_kind(forward, likes[TABLE]);
  if (attrs[SHEAF_EMBEDDING_SPARSE].i) how.include = sheaf_keyset_of(SHEAF_KEY_SPARSE);
  SHF_TRY(shf_send_dtype(SHEAF_OP_CAST, output_grads[0], likes[TABLE]->dtype, NULL, &grad));
  if (sharing != SHF_SHARES_ENTRIES) { /* else the indices of all problems, whatever their shape, are one problem's */
    how.batch = forward->batch;
    how.batched = 1u | (shf_grad_is_batched(forward, INDICES) ? 2u : 0);
  }
  sheaf_tensor *inputs[] = {grad, forward->inputs[INDICES]};
  sheaf_status status =
      shf_grad_call(SHEAF_OP_EMBEDDING_BACKWARD, inputs, 2, attrs, SHEAF_EMBEDDING_ATTRS, &how, &input_grads[TABLE], 1);
  if (status == SHEAF_OK) status = shf_grad_sum_shared(sharing, &input_grads[TABLE]);
  sheaf_tensor_release(grad);
  return status;
}

/* The gradient of embedding_backward: looking up in what comes in, which every problem has its own of. */
static sheaf_status embedding_double_backward(SHF_GRADIENT_ARGUMENTS)
{
  (void)context;
  (void)likes;
  (void)wanted;
  sheaf_tensor *table;
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  memcpy(attrs, forward->attrs, sizeof attrs);
  attrs[SHEAF_EMBEDDING_PADDING].i = SHEAF_PADDING_ZERO;
  attrs[SHEAF_EMBEDDING_SPARSE].i = 0;
  attrs[SHEAF_EMBEDDING_ROWS].i = 0;
  SHF_TRY(shf_grad_by_frequency(forward, output_grads[0], &table));
  sheaf_tensor *inputs[] = {table, forward->inputs[INDICES]};
  sheaf_call how = SHEAF_CALL_INIT;
  how.batch = forward->batch;
  how.batched = SHF_BIT(0) | (forward->batched & SHF_BIT(INDICES));
  sheaf_status status =
      shf_grad_call(SHEAF_OP_EMBEDDING, inputs, 2, attrs, SHEAF_EMBEDDING_ATTRS, &how, &input_grads[0], 1);
  sheaf_tensor_release(table);
  return status;
}

/* ---- Segments ---- */

static sheaf_status segment_backward(SHF_GRADIENT_ARGUMENTS)
{
  (void)context;
  (void)wanted;
  sheaf_tensor *grad, *each = NULL;
  SHF_TRY(shf_send_dtype(SHEAF_OP_CAST, output_grads[0], likes[0]->dtype, NULL, &grad));
  sheaf_attr attrs[SHEAF_SEGMENT_ATTRS];
  memcpy(attrs, forward->attrs, sizeof attrs);
  attrs[SHEAF_SEGMENT_OUT_DTYPE].i = 0;
  sheaf_tensor *inputs[] = {grad, forward->inputs[1], forward->inputs[0],
                            forward->output_count > 1 ? forward->outputs[1] : NULL};
  sheaf_call how = SHEAF_CALL_INIT;
  how.batch = forward->batch;
  how.batched = SHF_BIT(0) | SHF_BIT(3);
  if (shf_grad_is_batched(forward, 1)) how.batched |= SHF_BIT(1);
  if (shf_grad_is_batched(forward, 0)) how.batched |= SHF_BIT(2);
  sheaf_status status =
      shf_grad_call(SHEAF_OP_SEGMENT_REDUCE_BACKWARD, inputs, 4, attrs, SHEAF_SEGMENT_ATTRS, &how, &each, 1);
  sheaf_tensor_release(grad);
  if (status != SHEAF_OK) return status;
  if (forward->batch && !shf_grad_is_batched(forward, 0)) return shf_grad_sum_problems(each, &input_grads[0]);
  input_grads[0] = each;
  return SHEAF_OK;
}

static sheaf_status segment_double_backward(SHF_GRADIENT_ARGUMENTS)
{
  (void)context;
  (void)wanted;
  int64_t reduce = forward->attrs[SHEAF_SEGMENT_REDUCE].i;
  SHF_REQUIRE(reduce == SHEAF_REDUCE_SUM || reduce == SHEAF_REDUCE_MEAN, UNSUPPORTED,
              "segment_reduce %" PRId64 " has no gradient of its gradient; sum (0) and mean (1) have", reduce);
  sheaf_attr attrs[SHEAF_SEGMENT_ATTRS];
  memcpy(attrs, forward->attrs, sizeof attrs);
  attrs[SHEAF_SEGMENT_SEGMENTS].i = likes[0]->extent[forward->batch > 0]; /* every problem has a grad_out of its own */
  sheaf_tensor *inputs[] = {output_grads[0], forward->inputs[1]}, *outputs[2] = {NULL, NULL};
  sheaf_call how = SHEAF_CALL_INIT;
  how.batch = forward->batch;
  how.batched = SHF_BIT(0) | (forward->batched & SHF_BIT(1));
  SHF_TRY(shf_grad_call(SHEAF_OP_SEGMENT_REDUCE, inputs, 2, attrs, SHEAF_SEGMENT_ATTRS, &how, outputs, 2));
  input_grads[0] = outputs[0];
  return SHEAF_OK;
}

/* ---- Conversions ---- */

static sheaf_status cast_backward(SHF_GRADIENT_ARGUMENTS)
{
  (void)context;
  (void)forward;
  (void)wanted;
  return shf_send_dtype(SHEAF_OP_CAST, output_grads[0], likes[0]->dtype, NULL, &input_grads[0]);
}

/* Where each value of a nested tensor went when it was padded, as nested indices; made on the host. */
static sheaf_status places_of(const sheaf_tensor *nested, int64_t longest, sheaf_tensor **out)
{
  const int lead = nested->lead;
  int64_t lists = 1, components = nested->extent[lead], *place;
  sheaf_tensor *offsets = NULL, *host = NULL, *places = NULL;
  for (int i = 0; i < lead; i++) lists *= nested->extent[i];
  sheaf_status status = shf_tensor_on_host(nested->part[1], &offsets);
  if (status == SHEAF_OK) status = shf_tensor_make(SHEAF_I64, lead + 1, nested->part[0]->extent, offsets, &host);
  if (status == SHEAF_OK) {
    place = host->dl.data;
    for (int64_t c = 0; c < lists * components; c++) {
      int64_t length = shf_index_at(offsets, c % components + 1) - shf_index_at(offsets, c % components);
      for (int64_t i = 0; i < length; i++) *place++ = c * longest + i;
    }
    status = sheaf_tensor_to(host, shf_device_of(nested), &places);
  }
  if (status == SHEAF_OK) status = shf_tensor_nested(places, nested->part[1], lead, out);
  sheaf_tensor_release(places);
  sheaf_tensor_release(host);
  sheaf_tensor_release(offsets);
  return status;
}

/* The gradient of a nested tensor that was padded: its values are looked up where they went. */
static sheaf_status unpad(sheaf_tensor *nested, sheaf_tensor *grad, sheaf_tensor **out)
{
  int64_t matrix[] = {1, 1};
  sheaf_tensor *inputs[2] = {NULL, NULL}, *found = NULL;
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS] = {[SHEAF_EMBEDDING_PADDING_IDX].i = -1};
  for (int i = 0; i < grad->rank; i++) matrix[i > nested->lead + 1] *= grad->extent[i];
  SHF_TRY(shf_send_reshape(grad, 2, matrix, NULL, &inputs[0]));
  sheaf_status status = places_of(nested, grad->extent[nested->lead + 1], &inputs[1]);
  if (status == SHEAF_OK)
    status = shf_grad_call(SHEAF_OP_EMBEDDING, inputs, 2, attrs, SHEAF_EMBEDDING_ATTRS, NULL, &found, 1);
  if (status == SHEAF_OK) status = shf_send_reshape(found, nested->rank, nested->extent, NULL, out);
  sheaf_tensor_release(found);
  sheaf_tensor_release(inputs[1]);
  sheaf_tensor_release(inputs[0]);
  return status;
}

static sheaf_status to_dense_backward(SHF_GRADIENT_ARGUMENTS)
{
  (void)context;
  (void)wanted;
  (void)likes;
  if (forward->inputs[0]) return unpad(forward->inputs[0], output_grads[0], &input_grads[0]);
  input_grads[0] = sheaf_tensor_retain(output_grads[0]);
  return SHEAF_OK;
}

static sheaf_status movedim_backward(SHF_GRADIENT_ARGUMENTS)
{
  (void)context;
  (void)wanted;
  (void)likes;
  return sheaf_movedim(output_grads[0], (int)forward->attrs[1].i, (int)forward->attrs[0].i, &input_grads[0]);
}

static sheaf_status reshape_backward(SHF_GRADIENT_ARGUMENTS)
{
  (void)context;
  (void)wanted;
  (void)forward;
  return shf_send_reshape(output_grads[0], likes[0]->rank, likes[0]->extent, NULL, &input_grads[0]);
}

static sheaf_status expand_backward(SHF_GRADIENT_ARGUMENTS)
{
  (void)context;
  (void)wanted;
  (void)likes;
  (void)forward;
  return shf_grad_sum_problems(sheaf_tensor_retain(output_grads[0]), &input_grads[0]);
}

/* Zeros that a gradient can be added to: nested as it is, or dense. */
static sheaf_status zeros_like(const sheaf_tensor *grad, sheaf_tensor **zeros)
{
  const sheaf_tensor *like = grad->form == SHEAF_FORM_NESTED ? grad->part[0] : grad;
  sheaf_tensor *made;
  *zeros = NULL;
  SHF_TRY(shf_tensor_make(like->dtype, like->rank, like->extent, like, &made));
  sheaf_status status = shf_tensor_clear(made);
  if (status == SHEAF_OK && like == grad)
    *zeros = sheaf_tensor_retain(made);
  else if (status == SHEAF_OK)
    status = shf_tensor_nested(made, grad->part[1], grad->lead, zeros);
  sheaf_tensor_release(made);
  return status;
}

static sheaf_status add_backward(SHF_GRADIENT_ARGUMENTS)
{
  (void)context;
  sheaf_tensor *grad = output_grads[0];
  for (int i = 0; i < 2; i++) {
    if (!(wanted >> i & 1)) continue;
    if (i == 0 || forward->attrs[0].f == 1) {
      SHF_TRY(shf_send_dtype(SHEAF_OP_CAST, grad, likes[i]->dtype, NULL, &input_grads[i]));
      continue;
    }
    sheaf_tensor *zeros, *scaled = NULL;
    SHF_TRY(zeros_like(grad, &zeros));
    sheaf_status status = shf_send_add(zeros, grad, forward->attrs[0].f, NULL, &scaled);
    sheaf_tensor_release(zeros);
    if (status == SHEAF_OK) status = shf_send_dtype(SHEAF_OP_CAST, scaled, likes[i]->dtype, NULL, &input_grads[i]);
    sheaf_tensor_release(scaled);
    SHF_TRY(status);
  }
  return SHEAF_OK;
}

/* ---- What is saved ---- */

shf_needs shf_gradient_needs(const sheaf_call *call, const sheaf_gradient *gradient, uint32_t wanted)
{
  shf_needs needs = {gradient->save_inputs, gradient->save_outputs, 0};
  if (call->op == SHEAF_OP_EMBEDDING_BAG) {
    int64_t mode = call->attrs[SHEAF_EMBEDDING_MODE].i;
    if (mode == SHEAF_MODE_MAX) {
      needs = (shf_needs){0, SHF_BIT(1), SHF_BIT(1)};
    } else if (wanted >> WEIGHTS & 1) {
      needs.inputs |= SHF_BIT(TABLE);
      if (mode == SHEAF_MODE_MEAN) needs.outputs |= SHF_BIT(0);
    }
  } else if (call->op == SHEAF_OP_TO_DENSE) {
    if (call->inputs[0]->form == SHEAF_FORM_NESTED) needs.inputs |= SHF_BIT(0); /* its offsets */
  } else if (call->op == SHEAF_OP_SEGMENT_REDUCE) {
    if (call->inputs[0]->form == SHEAF_FORM_NESTED) needs.inputs |= SHF_BIT(0); /* its offsets are the segments */
    int64_t reduce = call->attrs[SHEAF_SEGMENT_REDUCE].i;
    int extreme = reduce == SHEAF_REDUCE_MAX || reduce == SHEAF_REDUCE_MIN;
    if (extreme && call->attrs[SHEAF_SEGMENT_TIES].i == SHEAF_TIES_FIRST) {
      needs.outputs |= SHF_BIT(1);
      needs.extra |= SHF_BIT(1);
    } else if (extreme || reduce == SHEAF_REDUCE_PROD) {
      needs.inputs |= SHF_BIT(0);
    }
  }
  return needs;
}

#define GRADIENT(bits, saved, function)                                                                       \
  {                                                                                                           \
    .struct_size = sizeof(sheaf_gradient), .differentiable = bits, .save_inputs = saved, .backward = function \
  }

const sheaf_gradient shf_built_in_gradients[SHEAF_OP_BUILT_IN] = {
    [SHEAF_OP_EMBEDDING] = GRADIENT(1, 2, embedding_backward),
    [SHEAF_OP_EMBEDDING_BACKWARD] = GRADIENT(1, 2, embedding_double_backward),
    [SHEAF_OP_EMBEDDING_BAG] = GRADIENT(1 | 8, 2 | 4 | 8, shf_grad_bag),
    [SHEAF_OP_EMBEDDING_BAG_BACKWARD] = GRADIENT(1 | 8 | 16, 1 | 2 | 4 | 8 | 16, shf_grad_bag_twice),
    [SHEAF_OP_SEGMENT_REDUCE] = GRADIENT(1, 2, segment_backward),
    [SHEAF_OP_SEGMENT_REDUCE_BACKWARD] = GRADIENT(1, 2, segment_double_backward),
    [SHEAF_OP_TO_DENSE] = GRADIENT(1, 0, to_dense_backward),
    [SHEAF_OP_CAST] = GRADIENT(1, 0, cast_backward),
    [SHEAF_OP_ADD] = GRADIENT(3, 0, add_backward),
    [SHEAF_OP_MOVEDIM] = GRADIENT(1, 0, movedim_backward),
    [SHEAF_OP_RESHAPE] = GRADIENT(1, 0, reshape_backward),
    [SHEAF_OP_EXPAND] = GRADIENT(1, 0, expand_backward),
};
