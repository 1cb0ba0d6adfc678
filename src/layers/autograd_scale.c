/* autograd_scale.c: rows multiplied by a number each, and the numbers that gradients of gradients need for it, in terms
 * of ops. */
#include "layers/autograd_impl.h"

/* 0, 1, 2 ... as a matrix [count, 1] of bags of one entry, where `like` is. */
static sheaf_status make_places(int64_t count, const sheaf_tensor *like, sheaf_tensor **out)
{
  int64_t shape[] = {count, 1};
  sheaf_tensor *host;
  *out = NULL;
  if (shf_is_on(like, SHEAF_KEY_META)) return shf_tensor_make(SHEAF_I64, 2, shape, like, out);
  SHF_TRY(sheaf_tensor_new(SHEAF_I64, 2, shape, &host));
  int64_t *place = shf_host_data(host);
  for (int64_t i = 0; i < count; i++) place[i] = i;
  sheaf_status status = sheaf_tensor_to(host, shf_device_of(like), out);
  sheaf_tensor_release(host);
  return status;
}

/* A row times a number is the weighted sum of a bag that holds nothing else. */
sheaf_status shf_grad_scale_rows(sheaf_tensor *rows, sheaf_tensor *by, sheaf_tensor **out)
{
  int64_t count = 1, dim = rows->extent[rows->rank - 1];
  for (int i = 0; i < rows->rank - 1; i++) count *= rows->extent[i];
  sheaf_tensor *flat = NULL, *numbers = NULL, *places = NULL, *outputs[2] = {NULL, NULL};
  sheaf_status status = SHEAF_OK;
  *out = NULL;
  if (rows->rank == 2)
    flat = sheaf_tensor_retain(rows); /* which may be row-sparse, and is not reshaped then */
  else
    status = shf_send_reshape(rows, 2, (int64_t[]){count, dim}, NULL, &flat);
  if (status == SHEAF_OK) status = shf_send_reshape(by, 2, (int64_t[]){count, 1}, NULL, &numbers);
  if (status == SHEAF_OK) status = make_places(count, by, &places);
  if (status == SHEAF_OK) {
    sheaf_tensor *inputs[] = {flat, places, NULL, numbers};
    sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS] = {[SHEAF_EMBEDDING_PADDING_IDX].i = -1,
                                               [SHEAF_EMBEDDING_BAD_INDEX].i = SHEAF_BAD_INDEX_SKIP,
                                               [SHEAF_EMBEDDING_MODE].i = SHEAF_MODE_SUM,
                                               [SHEAF_EMBEDDING_BAG_FORM].i = SHEAF_BAGS_MATRIX};
    status = shf_grad_call(SHEAF_OP_EMBEDDING_BAG, inputs, 4, attrs, SHEAF_EMBEDDING_ATTRS, NULL, outputs, 2);
  }
  if (status == SHEAF_OK) status = shf_send_reshape(outputs[0], rows->rank, rows->extent, NULL, out);
  sheaf_tensor_release(outputs[0]);
  sheaf_tensor_release(places);
  sheaf_tensor_release(numbers);
  sheaf_tensor_release(flat);
  return status;
}

sheaf_status shf_grad_ones(int rank, const int64_t *shape, const sheaf_tensor *like, sheaf_tensor **out)
{
  sheaf_status status = SHEAF_OK;
  SHF_TRY(shf_tensor_make(SHEAF_F64, rank, shape, like, out));
  if (shf_is_on(*out, SHEAF_KEY_META)) return SHEAF_OK;
  if (shf_is_on(*out, SHEAF_KEY_CUDA)) {
    status = shf_map_fill(*out, 1);
  } else {
    double *value = shf_host_data(*out);
    for (int64_t i = shf_tensor_elements(*out); i-- > 0;) value[i] = 1;
  }
  if (status != SHEAF_OK) shf_drop(out);
  return status;
}

sheaf_status shf_grad_inverse(sheaf_tensor *of, sheaf_tensor *counts, sheaf_tensor **out)
{
  *out = NULL;
  if (shf_is_on(of, SHEAF_KEY_META)) return shf_tensor_make(SHEAF_F64, of->rank, of->extent, of, out);
  sheaf_tensor *from = NULL, *many = NULL, *inverse = NULL;
  sheaf_status status = shf_tensor_on_host(of, &from);
  if (status == SHEAF_OK) status = shf_tensor_on_host(counts, &many);
  if (status == SHEAF_OK) status = sheaf_tensor_new(SHEAF_F64, of->rank, of->extent, &inverse);
  if (status == SHEAF_OK) {
    const double *x = shf_host_data(from), *count = shf_host_data(many);
    double *y = shf_host_data(inverse);
    for (int64_t i = shf_tensor_elements(of); i-- > 0;) y[i] = count[i] > 0 ? 1 / x[i] : 0;
    status = sheaf_tensor_to(inverse, shf_device_of(of), out);
  }
  sheaf_tensor_release(inverse);
  sheaf_tensor_release(many);
  sheaf_tensor_release(from);
  return status;
}

/* How often each row is counted is the gradient of a lookup whose results get ones. */
static sheaf_status count_rows(const sheaf_call *forward, sheaf_tensor **counts)
{
  sheaf_tensor *indices = forward->inputs[1], *ones;
  if (indices->form == SHEAF_FORM_NESTED) indices = indices->part[0]; /* whichever component they are of */
  int own = shf_grad_is_batched(forward, 1), rank = indices->rank - own;
  int64_t shape[SHEAF_TENSOR_MAX_RANK + 1];
  for (int i = 0; i < rank; i++) shape[i] = indices->extent[i + own];
  shape[rank] = 1;
  SHF_TRY(shf_grad_ones(rank + 1, shape, indices, &ones));
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  memcpy(attrs, forward->attrs, sizeof attrs);
  attrs[SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ].i = attrs[SHEAF_EMBEDDING_SPARSE].i = 0;
  sheaf_tensor *inputs[] = {ones, indices};
  sheaf_call how = SHEAF_CALL_INIT;
  how.batch = forward->batch;
  how.batched = own ? SHF_BIT(1) : 0;
  *counts = NULL;
  sheaf_status status =
      shf_grad_call(SHEAF_OP_EMBEDDING_BACKWARD, inputs, 2, attrs, SHEAF_EMBEDDING_ATTRS, &how, counts, 1);
  sheaf_tensor_release(ones);
  return status;
}

sheaf_status shf_grad_by_frequency(const sheaf_call *forward, sheaf_tensor *rows, sheaf_tensor **out)
{
  if (!rows || !forward->attrs[SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ].i) {
    *out = sheaf_tensor_retain(rows);
    return SHEAF_OK;
  }
  sheaf_tensor *counts, *wide = NULL, *by = NULL;
  *out = NULL;
  SHF_TRY(count_rows(forward, &counts));
  sheaf_status status = shf_grad_inverse(counts, counts, &wide);
  if (status == SHEAF_OK) status = shf_send_dtype(SHEAF_OP_CAST, wide, rows->dtype, NULL, &by);
  if (status == SHEAF_OK) status = shf_grad_scale_rows(rows, by, out);
  sheaf_tensor_release(by);
  sheaf_tensor_release(wide);
  sheaf_tensor_release(counts);
  return status;
}
