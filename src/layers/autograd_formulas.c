/* autograd_formulas.c: the gradients of the built-in ops, in terms of ops. Calls go through the dispatcher from the
 * top, so that gradients are profiled, traced and, when a graph of the backward is wanted, differentiated. */
#include <inttypes.h>

#include "layers/autograd_impl.h"

enum { TABLE = 0, INDICES = 1, OFFSETS = 2, WEIGHTS = 3 }; /* embedding_bag */
enum { B_GRAD_OUT = 0, B_INDICES, B_OFFSETS, B_WEIGHTS, B_TABLE, B_OUT, B_ARG, BAG_BACKWARD_INPUTS };

#define BACKWARD_ARGUMENTS                                                                                   \
  const sheaf_call *forward, sheaf_tensor *const *likes, sheaf_tensor *const *output_grads, uint32_t wanted, \
      sheaf_tensor **input_grads, void *context

/* ---- Small helpers ---- */

/* A call of op with these lists, from the top. */
static sheaf_status call_op(sheaf_op op, sheaf_tensor *const *inputs, int input_count, const sheaf_attr *attrs,
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

static int is_batched(const sheaf_call *call, int input) { return call->batch > 0 && (call->batched >> input & 1); }

/* The gradient of an input that all problems of a batch share: the sum over the leading dimension. Takes `each`. */
static sheaf_status sum_problems(sheaf_tensor *each, sheaf_tensor **sum)
{
  int64_t flat[] = {each->extent[0], shf_tensor_elements(each) / (each->extent[0] ? each->extent[0] : 1)};
  sheaf_tensor *rows = NULL, *ids = NULL, *outputs[2] = {NULL, NULL};
  sheaf_status status = shf_send_reshape(each, 2, flat, NULL, &rows);
  if (status == SHEAF_OK) status = shf_tensor_make(SHEAF_I64, 1, flat, each, &ids);
  if (status == SHEAF_OK) {
    if (ids->dl.data) memset(ids->dl.data, 0, ids->bytes);
    sheaf_tensor *inputs[] = {rows, ids};
    sheaf_attr attrs[SHEAF_SEGMENT_ATTRS] = {
        [SHEAF_SEGMENT_REDUCE].i = SHEAF_REDUCE_SUM, [SHEAF_SEGMENT_SORTED].i = 1, [SHEAF_SEGMENT_SEGMENTS].i = 1};
    status = call_op(SHEAF_OP_SEGMENT_REDUCE, inputs, 2, attrs, SHEAF_SEGMENT_ATTRS, NULL, outputs, 2);
  }
  if (status == SHEAF_OK) status = shf_send_reshape(outputs[0], each->rank - 1, each->extent + 1, NULL, sum);
  sheaf_tensor_release(outputs[0]);
  sheaf_tensor_release(rows);
  sheaf_tensor_release(ids);
  sheaf_tensor_release(each);
  return status;
}

/* [batch, n, ...] as [batch * n, ...]. */
static sheaf_status merge_leading(sheaf_tensor *t, sheaf_tensor **out)
{
  int64_t shape[SHEAF_TENSOR_MAX_RANK];
  shape[0] = t->extent[0] * t->extent[1];
  for (int i = 2; i < t->rank; i++) shape[i - 1] = t->extent[i];
  return shf_send_reshape(t, t->rank - 1, shape, NULL, out);
}

/* Input `input` of a batched call as one problem of all: [batch * n, ...]. */
static sheaf_status merged_input(const sheaf_call *call, int input, sheaf_tensor **out)
{
  sheaf_tensor *each = NULL;
  *out = NULL;
  if (!shf_input(call, input)) return SHEAF_OK;
  if (is_batched(call, input))
    each = sheaf_tensor_retain(call->inputs[input]);
  else
    SHF_TRY(shf_send_expand(call->inputs[input], call->batch, NULL, &each));
  sheaf_status status = merge_leading(each, out);
  sheaf_tensor_release(each);
  return status;
}

/* How the table's gradient is wanted: by the op's option, or by the leaf. */
static int sparse_kind(const sheaf_call *forward, const sheaf_tensor *like)
{
  int64_t asked = forward->attrs[SHEAF_EMBEDDING_SPARSE].i;
  if (asked) return (int)asked;
  return like->grad_kind == SHEAF_GRAD_SPARSE ? 1 : like->grad_kind == SHEAF_GRAD_SPARSE_RAW ? 2 : 0;
}

static void backward_attrs(const sheaf_call *forward, const sheaf_tensor *table, sheaf_attr *attrs)
{
  memcpy(attrs, forward->attrs, sizeof *attrs * SHEAF_EMBEDDING_ATTRS);
  attrs[SHEAF_EMBEDDING_OUT_DTYPE].i = 0;
  attrs[SHEAF_EMBEDDING_ROWS].i = table->extent[is_batched(forward, TABLE)];
  attrs[SHEAF_EMBEDDING_SPARSE].i = 0;
}

/* ---- Lookup ---- */

static sheaf_status embedding_backward(BACKWARD_ARGUMENTS)
{
  (void)context;
  (void)wanted;
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  sheaf_tensor *grad, *inputs[2] = {NULL, NULL};
  sheaf_call how = SHEAF_CALL_INIT;
  backward_attrs(forward, likes[TABLE], attrs);
  attrs[SHEAF_EMBEDDING_SPARSE].i = sparse_kind(forward, likes[TABLE]);
  if (attrs[SHEAF_EMBEDDING_SPARSE].i) how.include = sheaf_keyset_of(SHEAF_KEY_SPARSE);
  SHF_TRY(shf_send_dtype(SHEAF_OP_CAST, output_grads[0], likes[TABLE]->dtype, NULL, &grad));
  sheaf_status status = SHEAF_OK;
  if (forward->batch && !is_batched(forward, TABLE)) { /* one table for all problems: their entries are its entries */
    if (attrs[SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ].i)
      status = shf_core_fail(SHEAF_UNSUPPORTED, "scale_grad_by_freq of a table that %" PRId64 " problems share",
                             forward->batch);
    if (status == SHEAF_OK) status = merge_leading(grad, &inputs[0]);
    if (status == SHEAF_OK) {
      int64_t all = shf_tensor_elements(forward->inputs[INDICES]);
      status = shf_send_reshape(forward->inputs[INDICES], 1, &all, NULL, &inputs[1]);
    }
  } else {
    inputs[0] = sheaf_tensor_retain(grad);
    inputs[1] = sheaf_tensor_retain(forward->inputs[INDICES]);
    how.batch = forward->batch;
    how.batched = 1u | (is_batched(forward, INDICES) ? 2u : 0);
  }
  if (status == SHEAF_OK)
    status =
        call_op(SHEAF_OP_EMBEDDING_BACKWARD, inputs, 2, attrs, SHEAF_EMBEDDING_ATTRS, &how, &input_grads[TABLE], 1);
  sheaf_tensor_release(inputs[0]);
  sheaf_tensor_release(inputs[1]);
  sheaf_tensor_release(grad);
  return status;
}

/* The gradient of embedding_backward: looking up in what comes in. */
static sheaf_status embedding_double_backward(BACKWARD_ARGUMENTS)
{
  (void)context;
  (void)likes;
  (void)wanted;
  SHF_REQUIRE(!forward->attrs[SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ].i && !forward->batch, UNSUPPORTED,
              "a lookup with scale_grad_by_freq or within vmap has no gradient of its gradient");
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  memcpy(attrs, forward->attrs, sizeof attrs);
  attrs[SHEAF_EMBEDDING_PADDING].i = SHEAF_PADDING_ZERO;
  attrs[SHEAF_EMBEDDING_SPARSE].i = 0;
  attrs[SHEAF_EMBEDDING_ROWS].i = 0;
  sheaf_tensor *inputs[] = {output_grads[0], forward->inputs[B_INDICES]};
  return call_op(SHEAF_OP_EMBEDDING, inputs, 2, attrs, SHEAF_EMBEDDING_ATTRS, NULL, &input_grads[0], 1);
}

/* ---- Bags ---- */

/* One bag per bag of every problem: offsets [batch, B] become starts with the end, counted over all entries. */
static sheaf_status merge_offsets(const sheaf_call *forward, int64_t *form, sheaf_tensor **out)
{
  const sheaf_tensor *offsets = forward->inputs[OFFSETS];
  *out = NULL;
  if (*form == SHEAF_BAGS_MATRIX) return SHEAF_OK;
  if (*form == SHEAF_BAGS_LENGTHS) return merged_input(forward, OFFSETS, out);
  int shared = !is_batched(forward, OFFSETS);
  int64_t each = offsets->extent[!shared], bags = each - (*form == SHEAF_BAGS_OFFSETS_END);
  int64_t entries = forward->inputs[INDICES]->extent[is_batched(forward, INDICES)], all = forward->batch * bags + 1;
  SHF_TRY(shf_tensor_make(SHEAF_I64, 1, &all, offsets, out));
  *form = SHEAF_BAGS_OFFSETS_END;
  int64_t *to = (*out)->dl.data;
  for (int64_t p = 0; to && p < forward->batch; p++)
    for (int64_t b = 0; b < bags; b++) *to++ = p * entries + shf_index_at(offsets, (shared ? 0 : p * each) + b);
  if (to) *to = forward->batch * entries;
  return SHEAF_OK;
}

/* The inputs of a backward in which all problems are one, for a table that they share. */
static sheaf_status merge_bags(const sheaf_call *forward, sheaf_tensor *grad, sheaf_attr *attrs, sheaf_tensor **inputs)
{
  SHF_REQUIRE(!attrs[SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ].i, UNSUPPORTED,
              "scale_grad_by_freq of a table that %" PRId64 " problems share", forward->batch);
  SHF_TRY(merge_leading(grad, &inputs[B_GRAD_OUT]));
  if (attrs[SHEAF_EMBEDDING_MODE].i == SHEAF_MODE_MAX) return merge_leading(forward->outputs[1], &inputs[B_ARG]);
  SHF_TRY(merged_input(forward, INDICES, &inputs[B_INDICES]));
  SHF_TRY(merge_offsets(forward, &attrs[SHEAF_EMBEDDING_BAG_FORM].i, &inputs[B_OFFSETS]));
  SHF_TRY(merged_input(forward, WEIGHTS, &inputs[B_WEIGHTS]));
  inputs[B_TABLE] = sheaf_tensor_retain(forward->inputs[TABLE]);
  return forward->outputs[0] ? merge_leading(forward->outputs[0], &inputs[B_OUT]) : SHEAF_OK;
}

/* ... and problem by problem. */
static void keep_bags(const sheaf_call *forward, sheaf_tensor *grad, sheaf_tensor **inputs, sheaf_call *how)
{
  inputs[B_GRAD_OUT] = sheaf_tensor_retain(grad);
  inputs[B_OUT] = sheaf_tensor_retain(forward->outputs[0]);
  inputs[B_ARG] = sheaf_tensor_retain(forward->output_count > 1 ? forward->outputs[1] : NULL);
  inputs[B_TABLE] = sheaf_tensor_retain(forward->inputs[TABLE]);
  how->batch = forward->batch;
  how->batched = SHF_BIT(B_GRAD_OUT) | SHF_BIT(B_OUT) | SHF_BIT(B_ARG);
  if (is_batched(forward, TABLE)) how->batched |= SHF_BIT(B_TABLE);
  for (int i = INDICES; i <= WEIGHTS; i++) {
    inputs[i] = sheaf_tensor_retain(shf_input(forward, i)); /* the same places in both lists */
    if (is_batched(forward, i)) how->batched |= SHF_BIT(i);
  }
}

/* Floating-point operands in the type that the gradient is computed in. */
static sheaf_status cast_operands(sheaf_tensor **inputs, sheaf_dtype dtype)
{
  static const int typed[] = {B_WEIGHTS, B_TABLE, B_OUT};
  for (size_t i = 0; i < sizeof typed / sizeof *typed; i++) {
    sheaf_tensor **slot = &inputs[typed[i]], *cast;
    if (!*slot || (*slot)->dtype == dtype || shf_is_quantised((*slot)->dtype)) continue;
    SHF_TRY(shf_send_dtype(SHEAF_OP_CAST, *slot, dtype, NULL, &cast));
    sheaf_tensor_release(*slot);
    *slot = cast;
  }
  return SHEAF_OK;
}

/* The weights' gradient as the weights are: cast, in the shape of a batch, summed where problems share them. */
static sheaf_status shape_weights_grad(const sheaf_call *forward, const sheaf_tensor *like, sheaf_tensor **grad)
{
  sheaf_tensor *shaped;
  if (forward->batch) {
    int64_t shape[SHEAF_TENSOR_MAX_RANK] = {forward->batch};
    int own = is_batched(forward, WEIGHTS), rank = like->rank - own;
    for (int i = 0; i < rank; i++) shape[i + 1] = like->extent[i + own];
    SHF_TRY(shf_send_reshape(*grad, rank + 1, shape, NULL, &shaped));
    sheaf_tensor_release(*grad);
    *grad = NULL;
    if (own)
      *grad = shaped;
    else
      SHF_TRY(sum_problems(shaped, grad));
  }
  SHF_TRY(shf_send_dtype(SHEAF_OP_CAST, *grad, like->dtype, NULL, &shaped));
  sheaf_tensor_release(*grad);
  *grad = shaped;
  return SHEAF_OK;
}

static sheaf_status bag_backward(BACKWARD_ARGUMENTS)
{
  (void)context;
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  sheaf_tensor *grad, *inputs[BAG_BACKWARD_INPUTS] = {NULL}, *outputs[2] = {NULL, NULL};
  sheaf_call how = SHEAF_CALL_INIT;
  int table = (wanted >> TABLE & 1) != 0, weights = (wanted >> WEIGHTS & 1) != 0;
  sheaf_dtype dtype = table ? likes[TABLE]->dtype : likes[WEIGHTS]->dtype;
  backward_attrs(forward, table ? likes[TABLE] : forward->inputs[TABLE], attrs);
  SHF_TRY(shf_send_dtype(SHEAF_OP_CAST, output_grads[0], dtype, NULL, &grad));
  sheaf_status status = SHEAF_OK;
  if (forward->batch && !is_batched(forward, TABLE))
    status = merge_bags(forward, grad, attrs, inputs);
  else
    keep_bags(forward, grad, inputs, &how);
  if (status == SHEAF_OK) status = cast_operands(inputs, dtype);
  if (table) attrs[SHEAF_EMBEDDING_SPARSE].i = sparse_kind(forward, likes[TABLE]);
  if (attrs[SHEAF_EMBEDDING_SPARSE].i) how.include = sheaf_keyset_of(SHEAF_KEY_SPARSE);
  how.wanted = (table ? 1u : 0) | (weights ? 2u : 0);
  if (!weights) {
    shf_drop(&inputs[B_TABLE]);
    shf_drop(&inputs[B_OUT]);
  }
  if (status == SHEAF_OK)
    status = call_op(SHEAF_OP_EMBEDDING_BAG_BACKWARD, inputs, BAG_BACKWARD_INPUTS, attrs, SHEAF_EMBEDDING_ATTRS, &how,
                     outputs, 2);
  if (status == SHEAF_OK && weights) status = shape_weights_grad(forward, likes[WEIGHTS], &outputs[1]);
  for (int i = 0; i < BAG_BACKWARD_INPUTS; i++) sheaf_tensor_release(inputs[i]);
  sheaf_tensor_release(grad);
  input_grads[TABLE] = outputs[0];
  input_grads[WEIGHTS] = outputs[1];
  return status;
}

/* Gradients of a sum's (unweighted: also a mean's) backward. With G the gradient of the table's gradient and h that of
 * the weights' gradient:
 *   of grad_out: the bags of G, plus the bags of the table weighted by h
 *   of weights:  what the weights' gradient would be with G for the table
 *   of table:    what the table's gradient would be with h for the weights */
static sheaf_status bag_of(const sheaf_call *forward, sheaf_tensor *table, sheaf_tensor *weights, sheaf_tensor **out)
{
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  memcpy(attrs, forward->attrs, sizeof attrs);
  attrs[SHEAF_EMBEDDING_ROWS].i = attrs[SHEAF_EMBEDDING_SPARSE].i = 0;
  sheaf_tensor *inputs[] = {table, forward->inputs[B_INDICES], forward->inputs[B_OFFSETS], weights};
  sheaf_tensor *outputs[2] = {NULL, NULL};
  SHF_TRY(call_op(SHEAF_OP_EMBEDDING_BAG, inputs, 4, attrs, SHEAF_EMBEDDING_ATTRS, NULL, outputs, 2));
  *out = outputs[0];
  return SHEAF_OK;
}

static sheaf_status bag_backward_of(const sheaf_call *forward, sheaf_tensor *weights, sheaf_tensor *table, int output,
                                    sheaf_tensor **out)
{
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  memcpy(attrs, forward->attrs, sizeof attrs);
  attrs[SHEAF_EMBEDDING_SPARSE].i = 0;
  sheaf_tensor *inputs[BAG_BACKWARD_INPUTS] = {forward->inputs[B_GRAD_OUT], forward->inputs[B_INDICES],
                                               forward->inputs[B_OFFSETS], weights, table};
  sheaf_tensor *outputs[2] = {NULL, NULL};
  sheaf_call how = SHEAF_CALL_INIT;
  how.wanted = SHF_BIT(output);
  SHF_TRY(call_op(SHEAF_OP_EMBEDDING_BAG_BACKWARD, inputs, BAG_BACKWARD_INPUTS, attrs, SHEAF_EMBEDDING_ATTRS, &how,
                  outputs, 2));
  *out = outputs[output];
  return SHEAF_OK;
}

static sheaf_status bag_double_backward(BACKWARD_ARGUMENTS)
{
  (void)context;
  (void)likes;
  int64_t mode = forward->attrs[SHEAF_EMBEDDING_MODE].i;
  sheaf_tensor *weights = shf_input(forward, B_WEIGHTS), *table = shf_input(forward, B_TABLE);
  sheaf_tensor *g = output_grads[0], *h = output_grads[1], *more = NULL;
  SHF_REQUIRE(mode == SHEAF_MODE_SUM || (mode == SHEAF_MODE_MEAN && !weights), UNSUPPORTED,
              "a bag of mode %" PRId64 "%s has no gradient of its gradient; sums and means without weights have", mode,
              weights ? " with weights" : "");
  SHF_REQUIRE(!forward->attrs[SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ].i && !forward->batch, UNSUPPORTED,
              "bags with scale_grad_by_freq or within vmap have no gradient of their gradient");
  if ((wanted >> B_GRAD_OUT & 1) && g) SHF_TRY(bag_of(forward, g, weights, &input_grads[B_GRAD_OUT]));
  if ((wanted >> B_GRAD_OUT & 1) && h) {
    SHF_TRY(bag_of(forward, table, h, &more));
    sheaf_tensor *sum = NULL, *first = input_grads[B_GRAD_OUT];
    sheaf_status status = first ? shf_send_add(first, more, 1, NULL, &sum) : SHEAF_OK;
    input_grads[B_GRAD_OUT] = first ? sum : more;
    if (first) {
      sheaf_tensor_release(first);
      sheaf_tensor_release(more);
    }
    SHF_TRY(status);
  }
  if ((wanted >> B_WEIGHTS & 1) && g) SHF_TRY(bag_backward_of(forward, weights, g, 1, &input_grads[B_WEIGHTS]));
  if ((wanted >> B_TABLE & 1) && h) SHF_TRY(bag_backward_of(forward, h, NULL, 0, &input_grads[B_TABLE]));
  return SHEAF_OK;
}

/* ---- Segments ---- */

static sheaf_status segment_backward(BACKWARD_ARGUMENTS)
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
  if (is_batched(forward, 1)) how.batched |= SHF_BIT(1);
  if (is_batched(forward, 0)) how.batched |= SHF_BIT(2);
  sheaf_status status =
      call_op(SHEAF_OP_SEGMENT_REDUCE_BACKWARD, inputs, 4, attrs, SHEAF_SEGMENT_ATTRS, &how, &each, 1);
  sheaf_tensor_release(grad);
  if (status != SHEAF_OK) return status;
  if (forward->batch && !is_batched(forward, 0)) return sum_problems(each, &input_grads[0]);
  input_grads[0] = each;
  return SHEAF_OK;
}

static sheaf_status segment_double_backward(BACKWARD_ARGUMENTS)
{
  (void)context;
  (void)wanted;
  int64_t reduce = forward->attrs[SHEAF_SEGMENT_REDUCE].i;
  SHF_REQUIRE((reduce == SHEAF_REDUCE_SUM || reduce == SHEAF_REDUCE_MEAN) && !forward->batch, UNSUPPORTED,
              "segment_reduce %" PRId64 " has no gradient of its gradient%s; sum (0) and mean (1) have", reduce,
              forward->batch ? " within vmap" : "");
  sheaf_attr attrs[SHEAF_SEGMENT_ATTRS];
  memcpy(attrs, forward->attrs, sizeof attrs);
  attrs[SHEAF_SEGMENT_SEGMENTS].i = likes[0]->extent[0];
  sheaf_tensor *inputs[] = {output_grads[0], forward->inputs[1]}, *outputs[2] = {NULL, NULL};
  SHF_TRY(call_op(SHEAF_OP_SEGMENT_REDUCE, inputs, 2, attrs, SHEAF_SEGMENT_ATTRS, NULL, outputs, 2));
  input_grads[0] = outputs[0];
  return SHEAF_OK;
}

/* ---- Conversions ---- */

static sheaf_status cast_backward(BACKWARD_ARGUMENTS)
{
  (void)context;
  (void)forward;
  (void)wanted;
  return shf_send_dtype(SHEAF_OP_CAST, output_grads[0], likes[0]->dtype, NULL, &input_grads[0]);
}

static sheaf_status same_backward(BACKWARD_ARGUMENTS)
{
  (void)context;
  (void)forward;
  (void)wanted;
  (void)likes;
  input_grads[0] = sheaf_tensor_retain(output_grads[0]);
  return SHEAF_OK;
}

static sheaf_status movedim_backward(BACKWARD_ARGUMENTS)
{
  (void)context;
  (void)wanted;
  (void)likes;
  return sheaf_movedim(output_grads[0], (int)forward->attrs[1].i, (int)forward->attrs[0].i, &input_grads[0]);
}

static sheaf_status reshape_backward(BACKWARD_ARGUMENTS)
{
  (void)context;
  (void)wanted;
  (void)forward;
  return shf_send_reshape(output_grads[0], likes[0]->rank, likes[0]->extent, NULL, &input_grads[0]);
}

static sheaf_status expand_backward(BACKWARD_ARGUMENTS)
{
  (void)context;
  (void)wanted;
  (void)likes;
  (void)forward;
  return sum_problems(sheaf_tensor_retain(output_grads[0]), &input_grads[0]);
}

static sheaf_status add_backward(BACKWARD_ARGUMENTS)
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
    SHF_TRY(shf_tensor_make(grad->dtype, grad->rank, grad->extent, grad, &zeros));
    if (zeros->dl.data) memset(zeros->dl.data, 0, zeros->bytes);
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
    [SHEAF_OP_EMBEDDING_BAG] = GRADIENT(1 | 8, 2 | 4 | 8, bag_backward),
    [SHEAF_OP_EMBEDDING_BAG_BACKWARD] = GRADIENT(1 | 8 | 16, 1 | 2 | 4 | 8 | 16, bag_double_backward),
    [SHEAF_OP_SEGMENT_REDUCE] = GRADIENT(1, 2, segment_backward),
    [SHEAF_OP_SEGMENT_REDUCE_BACKWARD] = GRADIENT(1, 2, segment_double_backward),
    [SHEAF_OP_TO_DENSE] = GRADIENT(1, 0, same_backward),
    [SHEAF_OP_CAST] = GRADIENT(1, 0, cast_backward),
    [SHEAF_OP_ADD] = GRADIENT(3, 0, add_backward),
    [SHEAF_OP_MOVEDIM] = GRADIENT(1, 0, movedim_backward),
    [SHEAF_OP_RESHAPE] = GRADIENT(1, 0, reshape_backward),
    [SHEAF_OP_EXPAND] = GRADIENT(1, 0, expand_backward),
};
