/* core/dtype.c: names, sizes and DLPack types of elements; 16-bit conversions. */
#include "core/dtype.h"

const char *sheaf_dtype_name(sheaf_dtype dtype)
{
  switch (dtype) {
#define SHEAF_X(name, value, text, bytes) \
  case SHEAF_##name:                      \
    return text;
    SHEAF_DTYPE_LIST(SHEAF_X)
#undef SHEAF_X
  case SHEAF_DTYPE_NONE:
    break;
  }
  return "none";
}

int64_t shf_core_dtype_size(sheaf_dtype dtype)
{
  switch (dtype) {
#define SHEAF_X(name, value, text, bytes) \
  case SHEAF_##name:                      \
    return bytes;
    SHEAF_DTYPE_LIST(SHEAF_X)
#undef SHEAF_X
  case SHEAF_DTYPE_NONE:
    break;
  }
  return 0;
}

sheaf_dtype shf_core_dtype_acc(sheaf_dtype dtype) { return dtype == SHEAF_F64 ? SHEAF_F64 : SHEAF_F32; }

int64_t sheaf_dtype_row_bytes(sheaf_dtype dtype, int64_t dim)
{
  if (dim < 0 || dim > INT64_MAX - 16) return -1;
  if (dtype == SHEAF_INT8) return dim + 8;
  if (dtype == SHEAF_INT4) return dim / 2 + dim % 2 + 4;
  int64_t size = shf_core_dtype_size(dtype), bytes;
  if (size == 0 || __builtin_mul_overflow(size, dim, &bytes)) return -1;
  return bytes;
}

DLDataType sheaf_dtype_to_dl(sheaf_dtype dtype)
{
  uint8_t bits = (uint8_t)(8 * shf_core_dtype_size(dtype));
  switch (dtype) {
  case SHEAF_F32:
  case SHEAF_F64:
  case SHEAF_F16:
    return (DLDataType){kDLFloat, bits, 1};
  case SHEAF_BF16:
    return (DLDataType){kDLBfloat, bits, 1};
  case SHEAF_I32:
  case SHEAF_I64:
    return (DLDataType){kDLInt, bits, 1};
  case SHEAF_U8:
  case SHEAF_INT8:
  case SHEAF_INT4:
    return (DLDataType){kDLUInt, 8, 1};
  case SHEAF_DTYPE_NONE:
    break;
  }
  return (DLDataType){0, 0, 0};
}

sheaf_dtype sheaf_dtype_from_dl(DLDataType type)
{
  static const sheaf_dtype unpacked[] = {SHEAF_F32, SHEAF_F64, SHEAF_F16, SHEAF_BF16, SHEAF_I32, SHEAF_I64, SHEAF_U8};
  for (size_t i = 0; i < sizeof unpacked / sizeof *unpacked; i++) {
    DLDataType known = sheaf_dtype_to_dl(unpacked[i]);
    if (type.code == known.code && type.bits == known.bits && type.lanes == 1) return unpacked[i];
  }
  return SHEAF_DTYPE_NONE;
}

float sheaf_f16_to_f32(uint16_t bits) { return shf_f16_to_f32(bits); }
uint16_t sheaf_f32_to_f16(float value) { return shf_f32_to_f16(value); }
float sheaf_bf16_to_f32(uint16_t bits) { return shf_bf16_to_f32(bits); }
uint16_t sheaf_f32_to_bf16(float value) { return shf_f32_to_bf16(value); }
