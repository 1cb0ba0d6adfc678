/* nested_layer.c: the Nested key. A nested tensor is its values and where components begin, so ops work on the values
 * of all components at once: bags with offsets, lookups whose result has the same offsets, segments by component.
 *
 * Dimensions may stand before that of the components (`lead`), the values have them too: a batch, as results within
 * vmap have it, is one of these. Below Vmap an input's lead counts the batch where the input has its own. */
#include <inttypes.h>

#include "layers/layers_impl.h"

static int is_nested(const sheaf_tensor *t) { return t && t->form == SHEAF_FORM_NESTED; }

/* A nested tensor's values; any other tensor as it is. Borrowed. */
static sheaf_tensor *values_of(sheaf_tensor *t) { return is_nested(t) ? t->part[0] : t; }

/* The key may be there without such a tensor: then the call goes on as it is. */
static int has_nested(const sheaf_call *call)
{
  for (int i = 0; i < call->input_count; i++)
    if (is_nested(call->inputs[i])) return 1;
  return 0;
}

static sheaf_tensor *offsets_of(sheaf_tensor *t) { return is_nested(t) ? t->part[1] : NULL; }
static int64_t components(const sheaf_tensor *t) { return t->extent[t->lead]; }
static int64_t entries(const sheaf_tensor *t) { return t->part[0]->extent[t->lead]; } /* of all components */

/* Dimensions of input `input` before its components, without the batch. */
static int own_lead(const sheaf_call *call, int input)
{
  return call->inputs[input]->lead - (call->batch > 0 && (call->batched >> input & 1));
}

static sheaf_status check_call(const sheaf_call *call)
{
  for (int i = 0; i < call->output_count; i++)
    SHF_REQUIRE(!call->outputs[i] || !is_nested(call->outputs[i]), UNSUPPORTED,
                "%s: a nested result is made; it cannot be written into a given tensor", shf_op_name(call));
  return SHEAF_OK;
}

/* Whether two lists, wherever they lie, hold the same numbers. */
static sheaf_status compare_lists(sheaf_tensor *a, sheaf_tensor *b, int *same)
{
  sheaf_tensor *left = NULL, *right = NULL;
  sheaf_status status = shf_tensor_on_host(a, &left);
  if (status == SHEAF_OK) status = shf_tensor_on_host(b, &right);
  for (int64_t i = 0; status == SHEAF_OK && *same && i < left->extent[0]; i++)
    *same = shf_index_at(left, i) == shf_index_at(right, i);
  sheaf_tensor_release(left);
  sheaf_tensor_release(right);
  return status;
}

/* That two nested tensors have the same components. */
static sheaf_status check_alike(const sheaf_call *call, const sheaf_tensor *a, const sheaf_tensor *b)
{
  if (!is_nested(a) || !is_nested(b) || a->part[1] == b->part[1]) return SHEAF_OK;
  int same = components(a) == components(b) && entries(a) == entries(b);
  if (same && !shf_is_on(a, SHEAF_KEY_META)) SHF_TRY(compare_lists(a->part[1], b->part[1], &same));
  SHF_REQUIRE(same, INVALID_PROBLEM, "%s: nested tensors of %" PRId64 " and %" PRId64 " components differ in lengths",
              shf_op_name(call), components(a), components(b));
  return SHEAF_OK;
}

/* Bags and segments are of one list of components, or, below Vmap, of one for each slice. */
static sheaf_status check_no_lead(const sheaf_call *call, int input)
{
  char shape[120];
  SHF_REQUIRE(own_lead(call, input) == 0, UNSUPPORTED,
              "%s: %s has shape %s; hide what stands before its components with sheaf_batch", shf_op_name(call),
              shf_dispatch_input_name(call->op, input), shf_shape_text(call->inputs[input], shape, sizeof shape));
  return SHEAF_OK;
}

/* Sends a call one of whose outputs becomes nested with these offsets (NULL: stays plain), behind `lead` dimensions. */
static sheaf_status send_and_wrap(const sheaf_call *call, const sheaf_frame *frame, int output, sheaf_tensor *offsets,
                                  int lead)
{
  if (!offsets) return shf_redispatch(call, frame);
  sheaf_tensor *values[2] = {NULL, NULL};
  SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "%s: a nested result cannot be written into a given tensor",
              shf_op_name(call));
  sheaf_call flat = *call;
  flat.outputs = values;
  SHF_TRY(shf_redispatch(&flat, frame));
  sheaf_tensor *wrapped = NULL;
  sheaf_status status = values[output] ? shf_tensor_nested(values[output], offsets, lead, &wrapped) : SHEAF_OK;
  sheaf_tensor_release(values[output]);
  values[output] = wrapped;
  for (int i = 0; i < call->output_count && i < 2; i++) {
    if (status == SHEAF_OK && values[i])
      call->outputs[i] = values[i];
    else
      sheaf_tensor_release(values[i]);
  }
  return status;
}

/* ---- Lookups and bags ---- */

static sheaf_status embedding(const sheaf_call *call, const sheaf_frame *frame)
{
  if (!has_nested(call)) return shf_redispatch(call, frame);
  SHF_TRY(check_call(call));
  SHF_REQUIRE(!is_nested(call->inputs[0]), UNSUPPORTED, "embedding: a nested table");
  sheaf_tensor *inputs[] = {call->inputs[0], values_of(call->inputs[1])};
  sheaf_call flat = *call;
  flat.inputs = inputs;
  return send_and_wrap(&flat, frame, 0, offsets_of(call->inputs[1]), own_lead(call, 1) + (call->batch > 0));
}

static sheaf_status embedding_backward(const sheaf_call *call, const sheaf_frame *frame)
{
  if (!has_nested(call)) return shf_redispatch(call, frame);
  SHF_TRY(check_call(call));
  SHF_TRY(check_alike(call, call->inputs[0], call->inputs[1]));
  sheaf_tensor *inputs[] = {values_of(call->inputs[0]), values_of(call->inputs[1])};
  sheaf_call flat = *call;
  flat.inputs = inputs;
  return shf_redispatch(&flat, frame);
}

/* Forward and backward have indices, offsets and weights at the same places. */
static sheaf_status bags(const sheaf_call *call, const sheaf_frame *frame)
{
  enum { INDICES = 1, OFFSETS = 2, WEIGHTS = 3, MOST = 7 };
  sheaf_tensor *inputs[MOST] = {NULL}, *indices = shf_input(call, INDICES), *weights = shf_input(call, WEIGHTS);
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  if (!has_nested(call)) return shf_redispatch(call, frame);
  SHF_TRY(check_call(call));
  for (int i = 0; i < call->input_count; i++)
    SHF_REQUIRE(!is_nested(call->inputs[i]) || i == INDICES || i == WEIGHTS, UNSUPPORTED, "%s: %s is nested",
                shf_op_name(call), shf_dispatch_input_name(call->op, i));
  SHF_REQUIRE(is_nested(indices), INVALID_PROBLEM, "%s: weights are nested, but indices are not", shf_op_name(call));
  SHF_REQUIRE(!shf_input(call, OFFSETS), INVALID_PROBLEM, "%s: nested indices have their own offsets; others are given",
              shf_op_name(call));
  SHF_TRY(check_no_lead(call, INDICES));
  SHF_TRY(check_alike(call, indices, weights));
  for (int i = 0; i < call->input_count; i++) inputs[i] = values_of(call->inputs[i]);
  inputs[OFFSETS] = indices->part[1];
  memcpy(attrs, call->attrs, sizeof attrs);
  attrs[SHEAF_EMBEDDING_BAG_FORM].i = SHEAF_BAGS_OFFSETS_END;
  sheaf_call flat = *call;
  flat.inputs = inputs;
  flat.attrs = attrs;
  int weights_grad = call->op == SHEAF_OP_EMBEDDING_BAG_BACKWARD && is_nested(weights) && shf_wants(call, 1);
  return send_and_wrap(&flat, frame, 1, weights_grad ? indices->part[1] : NULL, call->batch > 0);
}

/* ---- Segments ---- */

/* The number of its component for every value; made on the host, wherever the data lie. */
static sheaf_status ids_of(const sheaf_tensor *nested, sheaf_tensor **ids)
{
  sheaf_tensor *offsets = nested->part[1], *host, *made = NULL;
  const int64_t count = entries(nested);
  *ids = NULL;
  if (shf_is_on(offsets, SHEAF_KEY_META)) return shf_tensor_make(SHEAF_I64, 1, &count, offsets, ids);
  SHF_TRY(shf_tensor_on_host(offsets, &host));
  sheaf_status status = shf_tensor_make(SHEAF_I64, 1, &count, host, &made);
  if (status == SHEAF_OK) {
    int64_t *id = made->dl.data;
    for (int64_t c = 0; c < components(nested); c++)
      for (int64_t i = shf_index_at(host, c); i < shf_index_at(host, c + 1); i++) id[i] = c;
    status = sheaf_tensor_to(made, shf_device_of(offsets), ids);
  }
  sheaf_tensor_release(made);
  sheaf_tensor_release(host);
  return status;
}

/* segment_reduce has its data first, its backward third; ids are second in both. */
static sheaf_status segments(const sheaf_call *call, const sheaf_frame *frame)
{
  int backward = call->op == SHEAF_OP_SEGMENT_REDUCE_BACKWARD, at = backward ? 2 : 0;
  sheaf_tensor *data = shf_input(call, at), *ids = shf_input(call, 1), *made = NULL, *inputs[4] = {NULL};
  sheaf_attr attrs[SHEAF_SEGMENT_ATTRS];
  if (!has_nested(call)) return shf_redispatch(call, frame);
  SHF_TRY(check_call(call));
  SHF_TRY(check_alike(call, data, ids));
  memcpy(attrs, call->attrs, sizeof attrs);
  for (int i = 0; i < call->input_count; i++) inputs[i] = values_of(call->inputs[i]);
  if (!ids) {
    SHF_REQUIRE(is_nested(data), INVALID_PROBLEM, "%s: ids are not given", shf_op_name(call));
    int64_t given = attrs[SHEAF_SEGMENT_SEGMENTS].i;
    SHF_TRY(check_no_lead(call, at));
    SHF_REQUIRE(given == 0 || given == components(data), INVALID_PROBLEM,
                "segment_reduce: %" PRId64 " segments, but the data have %" PRId64 " components", given,
                components(data));
    SHF_TRY(ids_of(data, &made));
    inputs[1] = made;
    attrs[SHEAF_SEGMENT_SEGMENTS].i = components(data);
    attrs[SHEAF_SEGMENT_SORTED].i = 1;
  }
  sheaf_call flat = *call;
  flat.inputs = inputs;
  flat.attrs = attrs;
  sheaf_status status =
      send_and_wrap(&flat, frame, 0, backward && is_nested(data) ? data->part[1] : NULL, call->batch > 0);
  sheaf_tensor_release(made);
  return status;
}

/* ---- Value by value ---- */

static sheaf_status elementwise(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *inputs[2] = {values_of(shf_input(call, 0)), values_of(shf_input(call, 1))};
  if (!has_nested(call)) return shf_redispatch(call, frame);
  SHF_TRY(check_call(call));
  if (call->input_count == 2) {
    SHF_REQUIRE(is_nested(call->inputs[0]) && is_nested(call->inputs[1]), INVALID_PROBLEM,
                "%s of a nested tensor and one that is not", shf_op_name(call));
    SHF_TRY(check_alike(call, call->inputs[0], call->inputs[1]));
  }
  sheaf_call flat = *call;
  flat.inputs = inputs;
  return send_and_wrap(&flat, frame, 0, offsets_of(call->inputs[0]), call->inputs[0]->lead);
}

/* ---- Shapes: of what stands before the components and behind the jagged dimension ---- */

/* Sends the call with the values in place of the tensor, and other attributes. */
static sheaf_status reshaped(const sheaf_call *call, const sheaf_frame *frame, const sheaf_attr *attrs, int lead)
{
  sheaf_tensor *values = values_of(call->inputs[0]);
  sheaf_call flat = *call;
  flat.inputs = &values;
  flat.attrs = attrs;
  return send_and_wrap(&flat, frame, 0, offsets_of(call->inputs[0]), lead);
}

static sheaf_status expand(const sheaf_call *call, const sheaf_frame *frame)
{
  if (!has_nested(call)) return shf_redispatch(call, frame);
  return reshaped(call, frame, call->attrs, call->inputs[0]->lead + 1);
}

static sheaf_status movedim(const sheaf_call *call, const sheaf_frame *frame)
{
  const sheaf_tensor *t = call->inputs[0];
  int64_t from = call->attrs[0].i, to = call->attrs[1].i;
  if (!has_nested(call)) return shf_redispatch(call, frame);
  SHF_REQUIRE(from >= 0 && to >= 0 && from < t->lead && to < t->lead, UNSUPPORTED,
              "movedim from %" PRId64 " to %" PRId64
              " of a nested tensor: only the %d before that of its components can be moved",
              from, to, t->lead);
  return reshaped(call, frame, call->attrs, t->lead);
}

/* The shape has -1 where components vary, and before it their number, as the tensor's own. */
static sheaf_status reshape(const sheaf_call *call, const sheaf_frame *frame)
{
  const sheaf_tensor *t = call->inputs[0];
  sheaf_attr attrs[1 + SHEAF_TENSOR_MAX_RANK] = {{.i = 0}};
  int64_t rank = call->attrs[0].i;
  char shape[120];
  int at = 0;
  if (!has_nested(call)) return shf_redispatch(call, frame);
  SHF_REQUIRE(rank >= 0 && rank <= SHEAF_TENSOR_MAX_RANK, INVALID_PROBLEM, "reshape to %" PRId64 " dimensions", rank);
  while (at < rank && call->attrs[1 + at].i != -1) at++;
  SHF_REQUIRE(at >= 1 && at < rank && call->attrs[at].i == components(t), INVALID_PROBLEM,
              "reshape of a nested tensor %s: its %" PRId64 " components and then -1 must be part of the new shape",
              shf_shape_text(t, shape, sizeof shape), components(t));
  attrs[0].i = rank - 1;
  for (int i = 0; i < at - 1; i++) attrs[1 + i] = call->attrs[1 + i];
  attrs[at].i = entries(t);
  for (int i = at + 1; i < rank; i++) attrs[i] = call->attrs[1 + i];
  return reshaped(call, frame, attrs, at - 1);
}

static sheaf_status to_dense(const sheaf_call *call, const sheaf_frame *frame)
{
  const sheaf_tensor *t = call->inputs[0], *values = t->part[0], *offsets = t->part[1];
  if (!has_nested(call)) return shf_redispatch(call, frame);
  SHF_REQUIRE(!shf_is_on(values, SHEAF_KEY_META), UNSUPPORTED,
              "to_dense of a nested tensor: its longest component is not known without data");
  if (shf_is_on(values, SHEAF_KEY_CUDA)) return shf_through_host(call, frame, to_dense);
  SHF_REQUIRE(shf_tensor_is_contiguous(values), UNSUPPORTED,
              "to_dense: the values of a nested tensor must be contiguous");
  int64_t longest = 0, lists = 1, shape[SHEAF_TENSOR_MAX_RANK], bytes = shf_core_dtype_size(values->dtype);
  for (int64_t c = 0; c < components(t); c++) {
    int64_t length = shf_index_at(offsets, c + 1) - shf_index_at(offsets, c);
    if (length > longest) longest = length;
  }
  memcpy(shape, t->extent, sizeof shape);
  shape[t->lead + 1] = longest;
  for (int i = 0; i < t->lead; i++) lists *= t->extent[i];
  for (int i = t->lead + 1; i < values->rank; i++) bytes *= values->extent[i];
  sheaf_tensor *out;
  SHF_TRY(shf_tensor_make(t->dtype, t->rank, shape, values, &out));
  memset(out->dl.data, 0, out->bytes);
  char *to = out->dl.data;
  for (int64_t l = 0; l < lists; l++)
    for (int64_t c = 0; c < components(t); c++, to += longest * bytes) {
      int64_t first = shf_index_at(offsets, c), length = shf_index_at(offsets, c + 1) - first;
      if (length > 0 && bytes > 0)
        memcpy(to, (const char *)shf_data(values) + (l * entries(t) + first) * bytes, (size_t)(length * bytes));
    }
  return shf_deliver(call, 0, out);
}

static sheaf_status refuse(const sheaf_call *call, const sheaf_frame *frame)
{
  if (!has_nested(call)) return shf_redispatch(call, frame);
  return shf_core_fail(SHEAF_UNSUPPORTED, "%s of a nested tensor", shf_op_name(call));
}

const shf_layer shf_layer_nested = {.kernel = {[SHEAF_OP_EMBEDDING] = embedding,
                                               [SHEAF_OP_EMBEDDING_BACKWARD] = embedding_backward,
                                               [SHEAF_OP_EMBEDDING_BAG] = bags,
                                               [SHEAF_OP_EMBEDDING_BAG_BACKWARD] = bags,
                                               [SHEAF_OP_SEGMENT_REDUCE] = segments,
                                               [SHEAF_OP_SEGMENT_REDUCE_BACKWARD] = segments,
                                               [SHEAF_OP_QUANTIZE] = elementwise,
                                               [SHEAF_OP_DEQUANTIZE] = elementwise,
                                               [SHEAF_OP_COALESCE] = refuse,
                                               [SHEAF_OP_TO_DENSE] = to_dense,
                                               [SHEAF_OP_CAST] = elementwise,
                                               [SHEAF_OP_ADD] = elementwise,
                                               [SHEAF_OP_MOVEDIM] = movedim,
                                               [SHEAF_OP_RESHAPE] = reshape,
                                               [SHEAF_OP_EXPAND] = expand}};
