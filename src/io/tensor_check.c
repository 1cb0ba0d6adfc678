/* io/tensor_check.c: bytes of a shape, and whether a tensor can be written. */
#include <string.h>

#include "io/io_impl.h"

bool shf_io_shape_bits(int rank, const int64_t *shape, int64_t element_bits, int64_t *bits)
{
  int64_t product = element_bits;
  bool empty = false;
  for (int i = 0; i < rank; i++) {
    if (shape[i] == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, shape[i], &product)) {
      return false;
    }
  }
  *bits = empty ? 0 : product;
  return true;
}

sheaf_status shf_io_check_writable(const char *who, const sheaf_io_tensor *tensor, int64_t position)
{
  long long at = (long long)position;
  int64_t size = shf_core_dtype_size(tensor->dtype), bits;
  SHF_REQUIRE(size > 0, INVALID_PROBLEM, "%s: tensor %lld has dtype %s (%d), which files do not hold%s", who, at,
              sheaf_dtype_name(tensor->dtype), (int)tensor->dtype,
              tensor->dtype == SHEAF_INT8 || tensor->dtype == SHEAF_INT4 ? "; write packed rows as u8" : "");
  SHF_REQUIRE(tensor->rank >= 0 && tensor->rank <= SHEAF_IO_MAX_RANK, INVALID_PROBLEM,
              "%s: tensor %lld has rank %d, which is outside 0..%d", who, at, tensor->rank, SHEAF_IO_MAX_RANK);
  for (int i = 0; i < tensor->rank; i++) {
    SHF_REQUIRE(tensor->shape[i] >= 0, INVALID_PROBLEM, "%s: tensor %lld has the negative extent %lld in dimension %d",
                who, at, (long long)tensor->shape[i], i);
  }
  SHF_REQUIRE(shf_io_shape_bits(tensor->rank, tensor->shape, 8 * size, &bits), INVALID_PROBLEM,
              "%s: tensor %lld has a shape whose size overflows", who, at);
  SHF_REQUIRE(tensor->bytes == (uint64_t)bits / 8, INVALID_PROBLEM,
              "%s: tensor %lld has %zu bytes, but its shape and dtype make %lld", who, at, tensor->bytes,
              (long long)(bits / 8));
  SHF_REQUIRE(tensor->data || tensor->bytes == 0, INVALID_PROBLEM, "%s: tensor %lld has %zu bytes, but data is NULL",
              who, at, tensor->bytes);
  return SHEAF_OK;
}
