/* cli/bench_device_sparse.c: a row-sparse gradient on a device, by the op on tensors. */
#include "bench_device_sparse.h"

static sheaf_status borrow(const DLTensor *operand, sheaf_tensor **tensor)
{
  size_t bytes = operand->dtype.bits / 8;
  for (int i = 0; i < operand->ndim; i++) bytes *= (size_t)operand->shape[i];
  return sheaf_tensor_borrow(operand, bytes, tensor);
}

static sheaf_status run_op(sheaf_tensor **inputs, int64_t rows)
{
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS] = {[SHEAF_EMBEDDING_PADDING_IDX].i = -1,
                                             [SHEAF_EMBEDDING_SPARSE].i = 1,
                                             [SHEAF_EMBEDDING_BAD_INDEX].i = SHEAF_BAD_INDEX_SKIP,
                                             [SHEAF_EMBEDDING_MODE].i = SHEAF_MODE_SUM,
                                             [SHEAF_EMBEDDING_BAG_FORM].i = SHEAF_BAGS_OFFSETS_END,
                                             [SHEAF_EMBEDDING_ROWS].i = rows};
  sheaf_tensor *outputs[2] = {NULL, NULL};
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = SHEAF_OP_EMBEDDING_BAG_BACKWARD;
  call.inputs = inputs;
  call.input_count = 7;
  call.outputs = outputs;
  call.output_count = 2;
  call.attrs = attrs;
  call.attr_count = SHEAF_EMBEDDING_ATTRS;
  call.wanted = 1;
  sheaf_guard guard; /* none of the inputs is sparse, so that the layer has to be asked for */
  sheaf_status status = sheaf_guard_begin(sheaf_keyset_of(SHEAF_KEY_SPARSE), sheaf_keyset_empty(), &guard);
  if (status != SHEAF_OK) return status;
  status = sheaf_dispatch(&call);
  sheaf_status ended = sheaf_guard_end(&guard);
  sheaf_tensor_release(outputs[0]);
  return status == SHEAF_OK ? ended : status;
}

sheaf_status bench_sparse_gradient(const sheaf_embedding_args *operands, int64_t rows)
{
  sheaf_tensor *inputs[7] = {NULL}; /* grad_out, indices, offsets; no weights, table, out and arg */
  const DLTensor *given[] = {operands->grad_out.tensor, operands->indices.tensor, operands->offsets.tensor};
  sheaf_status status = SHEAF_OK;
  for (int i = 0; i < 3 && status == SHEAF_OK; i++) status = borrow(given[i], &inputs[i]);
  if (status == SHEAF_OK) status = run_op(inputs, rows);
  for (int i = 0; i < 3; i++) sheaf_tensor_release(inputs[i]);
  return status;
}
