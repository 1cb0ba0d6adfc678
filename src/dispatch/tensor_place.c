/* tensor_place.c: tensors on devices: made there, cleared, copied from one place to another. */
#include <string.h>

#include "core/dtype.h"
#include "dispatch/dispatch_impl.h"

static const DLDevice cpu = {kDLCPU, 0};

sheaf_status sheaf_tensor_new_on(DLDevice device, sheaf_dtype dtype, int rank, const int64_t *shape,
                                 sheaf_tensor **tensor)
{
  SHF_REQUIRE(tensor, INVALID_PROBLEM, "sheaf_tensor_new_on: tensor is NULL");
  SHF_TRY(shf_tensor_make_on(device, dtype, rank, shape, tensor));
  sheaf_status status = shf_tensor_clear(*tensor);
  if (status != SHEAF_OK) shf_drop(tensor);
  return status;
}

sheaf_status shf_tensor_clear(sheaf_tensor *tensor)
{
  if (shf_is_on(tensor, SHEAF_KEY_CUDA)) return shf_place_fill(tensor->dl.device, shf_data(tensor), 0, tensor->bytes);
  void *data = shf_host_data(tensor);
  if (data) memset(data, 0, tensor->bytes);
  return SHEAF_OK;
}

/* ---- Copies ---- */

static size_t contiguous_bytes(const sheaf_tensor *t)
{
  int64_t bytes = shf_core_dtype_size(t->form == SHEAF_FORM_QUANTIZED ? SHEAF_U8 : t->dtype);
  for (int i = 0; i < t->dl.ndim; i++) bytes *= t->dl.shape[i];
  return (size_t)bytes;
}

sheaf_status shf_tensor_copy_bytes(const sheaf_tensor *from, sheaf_tensor *to)
{
  size_t bytes = contiguous_bytes(to);
  if (bytes == 0) return SHEAF_OK;
  const sheaf_tensor *there = shf_is_on(from, SHEAF_KEY_CUDA) ? from : to;
  if (!shf_is_on(there, SHEAF_KEY_CUDA)) {
    memcpy(shf_data(to), shf_data(from), bytes);
    return SHEAF_OK;
  }
  return shf_place_copy(there->dl.device, shf_data(to), shf_data(from), bytes);
}

/* The same elements without gaps, by the kernel for where they lie: nothing that is traced or differentiated. */
static sheaf_status without_gaps(sheaf_tensor *tensor, sheaf_tensor **out)
{
  static const sheaf_attr nowhere[2] = {{.i = 0}, {.i = 0}};
  *out = NULL;
  if (shf_tensor_is_contiguous(tensor)) {
    *out = sheaf_tensor_retain(tensor);
    return SHEAF_OK;
  }
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = SHEAF_OP_MOVEDIM;
  call.inputs = &tensor;
  call.outputs = out;
  call.attrs = nowhere;
  call.input_count = call.output_count = 1;
  call.attr_count = 2;
  return sheaf_dispatch_to(&call, shf_data_key(tensor));
}

static sheaf_status copy_dense(sheaf_tensor *tensor, DLDevice device, sheaf_tensor **out)
{
  sheaf_tensor *dense;
  SHF_TRY(without_gaps(tensor, &dense));
  sheaf_status status = shf_tensor_make_on(device, dense->dtype, dense->rank, dense->extent, out);
  if (status == SHEAF_OK) status = shf_tensor_copy_bytes(dense, *out);
  if (status != SHEAF_OK) shf_drop(out);
  sheaf_tensor_release(dense);
  return status;
}

/* Packed rows are copied as the bytes they are. */
static sheaf_status copy_quantized(sheaf_tensor *tensor, DLDevice device, sheaf_tensor **out)
{
  sheaf_tensor *bytes, *copy = NULL;
  SHF_TRY(sheaf_tensor_detach(tensor, &bytes));
  bytes->form = SHEAF_FORM_DENSE;
  bytes->dtype = SHEAF_U8;
  bytes->keys = sheaf_keyset_remove(bytes->keys, SHEAF_KEY_QUANTIZED);
  memcpy(bytes->extent, bytes->stored, sizeof bytes->extent);
  sheaf_status status = copy_dense(bytes, device, &copy);
  if (status == SHEAF_OK) status = sheaf_tensor_quantized(copy, tensor->dtype, tensor->extent[tensor->rank - 1], out);
  sheaf_tensor_release(copy);
  sheaf_tensor_release(bytes);
  return status;
}

static sheaf_status copy_parts(sheaf_tensor *tensor, DLDevice device, sheaf_tensor **out)
{
  sheaf_tensor *part[2] = {NULL, NULL};
  sheaf_status status = sheaf_tensor_to(tensor->part[0], device, &part[0]);
  if (status == SHEAF_OK) status = sheaf_tensor_to(tensor->part[1], device, &part[1]);
  if (status == SHEAF_OK)
    status = tensor->form == SHEAF_FORM_SPARSE
                 ? shf_tensor_sparse(part[0], part[1], tensor->rank, tensor->extent, tensor->coalesced, out)
                 : shf_tensor_nested(part[0], part[1], tensor->lead, out);
  sheaf_tensor_release(part[0]);
  sheaf_tensor_release(part[1]);
  return status;
}

static int lies_on(const sheaf_tensor *tensor, DLDevice device)
{
  int cuda = (int)device.device_type == kDLCUDA || (int)device.device_type == kDLCUDAManaged;
  if (cuda != shf_is_on(tensor, SHEAF_KEY_CUDA)) return 0;
  return !cuda || shf_device_of(tensor).device_id == device.device_id;
}

sheaf_status sheaf_tensor_to(sheaf_tensor *tensor, DLDevice device, sheaf_tensor **out)
{
  SHF_REQUIRE(tensor && out, INVALID_PROBLEM, "sheaf_tensor_to: tensor or out is NULL");
  *out = NULL;
  SHF_REQUIRE(!shf_is_on(tensor, SHEAF_KEY_META), INVALID_PROBLEM,
              "sheaf_tensor_to: a meta tensor has no data to be copied");
  SHF_REQUIRE(tensor->form != SHEAF_FORM_BATCHED, UNSUPPORTED,
              "sheaf_tensor_to: a batched tensor; copy it before sheaf_batch, or after sheaf_unbatch");
  if (lies_on(tensor, device)) {
    if (!sheaf_tensor_requires_grad(tensor)) {
      *out = sheaf_tensor_retain(tensor);
      return SHEAF_OK;
    }
    return sheaf_tensor_detach(tensor, out);
  }
  sheaf_status status = tensor->form == SHEAF_FORM_DENSE       ? copy_dense(tensor, device, out)
                        : tensor->form == SHEAF_FORM_QUANTIZED ? copy_quantized(tensor, device, out)
                                                               : copy_parts(tensor, device, out);
  if (status == SHEAF_OK) shf_copy_name(*out, tensor);
  return status;
}

sheaf_status shf_tensor_on_host(sheaf_tensor *tensor, sheaf_tensor **host)
{
  return sheaf_tensor_to(tensor, cpu, host);
}
