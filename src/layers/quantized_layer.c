/* quantized_layer.c: the Quantized key. Lookups and bags read packed rows in their kernels, so they pass; other ops get
 * their tensors dequantised. A quantised result, where asked for, is packed here. */
#include "layers/layers_impl.h"

enum { MOST_INPUTS = 8 };

/* The place of the attribute by which an op is asked for a type, -1 when it has none. */
static int out_dtype_attr(sheaf_op op)
{
  if (op == SHEAF_OP_EMBEDDING || op == SHEAF_OP_EMBEDDING_BAG) return SHEAF_EMBEDDING_OUT_DTYPE;
  return op == SHEAF_OP_SEGMENT_REDUCE ? SHEAF_SEGMENT_OUT_DTYPE : -1;
}

/* Runs the call below; packs its first output when that was asked for. */
static sheaf_status send_and_pack(const sheaf_call *call, const sheaf_frame *frame)
{
  int at = out_dtype_attr(call->op);
  sheaf_dtype wish = at < 0 ? SHEAF_DTYPE_NONE : (sheaf_dtype)call->attrs[at].i;
  if (!shf_is_quantised(wish)) return shf_redispatch(call, frame);
  SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "%s: a quantised result cannot be written into a given tensor",
              shf_op_name(call));
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS]; /* the longer of the two lists */
  sheaf_tensor *outputs[2] = {NULL, NULL};
  memcpy(attrs, call->attrs, sizeof *attrs * (size_t)call->attr_count);
  attrs[at].i = SHEAF_DTYPE_NONE;
  sheaf_call plain = *call;
  plain.attrs = attrs;
  plain.outputs = outputs;
  SHF_TRY(shf_redispatch(&plain, frame));
  sheaf_tensor *packed;
  sheaf_status status = shf_send_dtype(SHEAF_OP_QUANTIZE, outputs[0], wish, frame, &packed);
  sheaf_tensor_release(outputs[0]);
  if (status == SHEAF_OK) {
    call->outputs[0] = packed;
    if (call->output_count > 1 && shf_wants(call, 1)) call->outputs[1] = outputs[1];
  } else {
    sheaf_tensor_release(outputs[1]);
  }
  return status;
}

/* The call with plain inputs. */
static sheaf_status dequantise(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *inputs[MOST_INPUTS] = {NULL};
  sheaf_status status = SHEAF_OK;
  for (int i = 0; i < call->input_count && status == SHEAF_OK; i++) {
    sheaf_tensor *t = call->inputs[i];
    if (t && t->form == SHEAF_FORM_QUANTIZED)
      status = shf_send_dtype(SHEAF_OP_DEQUANTIZE, t, SHEAF_F32, frame, &inputs[i]);
    else
      inputs[i] = sheaf_tensor_retain(t);
  }
  sheaf_call plain = *call;
  plain.inputs = inputs;
  if (status == SHEAF_OK) status = send_and_pack(&plain, frame);
  for (int i = 0; i < call->input_count; i++) sheaf_tensor_release(inputs[i]);
  return status;
}

static sheaf_status bag_backward(const sheaf_call *call, const sheaf_frame *frame)
{
  const sheaf_tensor *table = shf_input(call, 4);
  SHF_REQUIRE(!table || table->form != SHEAF_FORM_QUANTIZED || !shf_wants(call, 0), UNSUPPORTED,
              "embedding_bag_backward: a table of %s has no gradient", sheaf_dtype_name(table->dtype));
  return dequantise(call, frame);
}

static sheaf_status cast(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *t = call->inputs[0], *result;
  sheaf_dtype dtype = (sheaf_dtype)call->attrs[0].i;
  if (t->form != SHEAF_FORM_QUANTIZED) return shf_redispatch(call, frame);
  if (dtype == t->dtype) return shf_deliver_same(call, t);
  if (shf_is_quantised(dtype)) {
    sheaf_tensor *rows;
    SHF_TRY(shf_send_dtype(SHEAF_OP_DEQUANTIZE, t, SHEAF_F32, frame, &rows));
    sheaf_status status = shf_send_dtype(SHEAF_OP_QUANTIZE, rows, dtype, frame, &result);
    sheaf_tensor_release(rows);
    SHF_TRY(status);
  } else {
    SHF_TRY(shf_send_dtype(SHEAF_OP_DEQUANTIZE, t, dtype, frame, &result));
  }
  return shf_deliver(call, 0, result);
}

static sheaf_status to_dense(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *rows;
  if (call->inputs[0]->form != SHEAF_FORM_QUANTIZED) return shf_redispatch(call, frame);
  SHF_TRY(shf_send_dtype(SHEAF_OP_DEQUANTIZE, call->inputs[0], SHEAF_F32, frame, &rows));
  return shf_deliver(call, 0, rows);
}

static sheaf_status pass(const sheaf_call *call, const sheaf_frame *frame) { return shf_redispatch(call, frame); }

const shf_layer shf_layer_quantized = {.kernel = {[SHEAF_OP_EMBEDDING] = send_and_pack,
                                                  [SHEAF_OP_EMBEDDING_BACKWARD] = dequantise,
                                                  [SHEAF_OP_EMBEDDING_BAG] = send_and_pack,
                                                  [SHEAF_OP_EMBEDDING_BAG_BACKWARD] = bag_backward,
                                                  [SHEAF_OP_SEGMENT_REDUCE] = dequantise,
                                                  [SHEAF_OP_SEGMENT_REDUCE_BACKWARD] = dequantise,
                                                  [SHEAF_OP_QUANTIZE] = dequantise,
                                                  [SHEAF_OP_DEQUANTIZE] = pass,
                                                  [SHEAF_OP_COALESCE] = pass,
                                                  [SHEAF_OP_TO_DENSE] = to_dense,
                                                  [SHEAF_OP_CAST] = cast,
                                                  [SHEAF_OP_ADD] = dequantise,
                                                  [SHEAF_OP_MOVEDIM] = dequantise,
                                                  [SHEAF_OP_RESHAPE] = dequantise,
                                                  [SHEAF_OP_EXPAND] = dequantise}};
