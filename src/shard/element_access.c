/* shard/element_access.c: single elements and indices, and arrays from one type to another. */
#include <string.h>

#include "shard/local.h"

double shf_load(sheaf_dtype dtype, const void *data, int64_t at)
{
  switch (dtype) {
  case SHEAF_F64:
    return ((const double *)data)[at];
  case SHEAF_F16:
    return (double)shf_f16_to_f32(((const uint16_t *)data)[at]);
  case SHEAF_BF16:
    return (double)shf_bf16_to_f32(((const uint16_t *)data)[at]);
  default:
    return (double)((const float *)data)[at];
  }
}

void shf_store(sheaf_dtype dtype, void *data, int64_t at, double value)
{
  switch (dtype) {
  case SHEAF_F64:
    ((double *)data)[at] = value;
    return;
  case SHEAF_F16:
    ((uint16_t *)data)[at] = shf_f32_to_f16((float)value);
    return;
  case SHEAF_BF16:
    ((uint16_t *)data)[at] = shf_f32_to_bf16((float)value);
    return;
  default:
    ((float *)data)[at] = (float)value;
  }
}

int64_t shf_load_index(sheaf_dtype dtype, const void *data, int64_t at)
{
  return dtype == SHEAF_I32 ? ((const int32_t *)data)[at] : ((const int64_t *)data)[at];
}

void shf_store_index(sheaf_dtype dtype, void *data, int64_t at, int64_t value)
{
  if (dtype == SHEAF_I32)
    ((int32_t *)data)[at] = (int32_t)value;
  else
    ((int64_t *)data)[at] = value;
}

void shf_convert(sheaf_dtype from, const void *source, sheaf_dtype to, void *target, int64_t count)
{
  if (from == to) {
    if (count) memcpy(target, source, (size_t)(count * shf_core_dtype_size(from)));
    return;
  }
  for (int64_t i = 0; i < count; i++) shf_store(to, target, i, shf_load(from, source, i));
}
