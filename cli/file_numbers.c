/* cli/file_numbers.c: numbers of one type as another. */
#include <math.h>
#include <string.h>

#include "files.h"

bool is_float_dtype(sheaf_dtype dtype)
{
  return dtype == SHEAF_F32 || dtype == SHEAF_F64 || dtype == SHEAF_F16 || dtype == SHEAF_BF16;
}

double number_at(sheaf_dtype dtype, const void *data, int64_t position)
{
  switch (dtype) {
  case SHEAF_F32:
    return (double)((const float *)data)[position];
  case SHEAF_F64:
    return ((const double *)data)[position];
  case SHEAF_F16:
    return (double)sheaf_f16_to_f32(((const uint16_t *)data)[position]);
  case SHEAF_BF16:
    return (double)sheaf_bf16_to_f32(((const uint16_t *)data)[position]);
  case SHEAF_I32:
    return (double)((const int32_t *)data)[position];
  case SHEAF_I64:
    return (double)((const int64_t *)data)[position];
  case SHEAF_U8:
    return (double)((const uint8_t *)data)[position];
  default:
    return NAN;
  }
}

/* To f32 with the last bit set where digits were lost ("round to odd"): rounding that again to 16 bits gives what
 * rounding once would. */
static float toward_odd(double value)
{
  float near = (float)value;
  if (isnan(value) || (double)near == value) return near;
  uint32_t bits;
  memcpy(&bits, &near, sizeof bits);
  if (fabs((double)near) > fabs(value)) bits--; /* toward zero; an infinity becomes the largest number */
  bits |= 1;
  memcpy(&near, &bits, sizeof bits);
  return near;
}

static bool store_integer(sheaf_dtype to, void *out, int64_t position, double value)
{
  double limit = to == SHEAF_I32 ? 0x1p31 : 0x1p63;
  if (!(value >= -limit && value < limit) || value != floor(value)) return false;
  if (to == SHEAF_I32)
    ((int32_t *)out)[position] = (int32_t)value;
  else
    ((int64_t *)out)[position] = (int64_t)value;
  return true;
}

static bool store_number(sheaf_dtype to, void *out, int64_t position, double value)
{
  switch (to) {
  case SHEAF_F32:
    ((float *)out)[position] = (float)value;
    return true;
  case SHEAF_F64:
    ((double *)out)[position] = value;
    return true;
  case SHEAF_F16:
    ((uint16_t *)out)[position] = sheaf_f32_to_f16(toward_odd(value));
    return true;
  case SHEAF_BF16:
    ((uint16_t *)out)[position] = sheaf_f32_to_bf16(toward_odd(value));
    return true;
  case SHEAF_I32:
  case SHEAF_I64:
    return store_integer(to, out, position, value);
  default:
    return false;
  }
}

/* An i64 as f64 with the last bit set where digits were lost: rounding that again, to 24 bits or fewer, gives what
 * rounding once would. */
static double i64_toward_odd(int64_t value)
{
  uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
  int lost = size >> 53 ? 11 - __builtin_clzll(size) : 0; /* bits beyond the 53 of an f64 */
  uint64_t kept = size >> lost;
  if (kept << lost != size) kept |= 1;
  double result = ldexp((double)kept, lost);
  return value < 0 ? -result : result;
}

static double number_to_round(sheaf_dtype from, const void *data, sheaf_dtype to, int64_t position)
{
  if (from == SHEAF_I64 && to != SHEAF_F64) return i64_toward_odd(((const int64_t *)data)[position]);
  return number_at(from, data, position);
}

bool numbers_differ(sheaf_dtype from, const void *data, sheaf_dtype to, const void *out, int64_t position)
{
  double before = number_at(from, data, position), after = number_at(to, out, position);
  if (from != SHEAF_I64 || !is_float_dtype(to)) return before != after && !(isnan(before) && isnan(after));
  const double past = 0x1p63; /* the first that is too large for an i64 */
  return !(after >= -past && after < past) || (int64_t)after != ((const int64_t *)data)[position];
}

bool numbers_convert(sheaf_dtype from, const void *data, sheaf_dtype to, void *out, int64_t count)
{
  if (from == to) {
    memcpy(out, data, (size_t)(count * sheaf_dtype_row_bytes(from, 1)));
    return true;
  }
  for (int64_t i = 0; i < count; i++) {
    if (from == SHEAF_I64 && to == SHEAF_I32) { /* a double would round what does not fit */
      int64_t value = ((const int64_t *)data)[i];
      if (value != (int32_t)value) return false;
      ((int32_t *)out)[i] = (int32_t)value;
    } else if (!store_number(to, out, i, number_to_round(from, data, to, i))) {
      return false;
    }
  }
  return true;
}

bool rows_to_f32(const table_file *table, const char *rows, int64_t count, float *out)
{
  if (table->dtype != SHEAF_INT8 && table->dtype != SHEAF_INT4)
    return numbers_convert(table->dtype, rows, SHEAF_F32, out, count * table->dim);
  int64_t packed_shape[2] = {count, table->row_bytes}, shape[2] = {count, table->dim};
  DLTensor packed = {.data = (void *)rows, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLUInt, 8, 1}};
  DLTensor plain = {.data = out, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}};
  packed.shape = packed_shape;
  plain.shape = shape;
  sheaf_operand from = {&packed, 0}, to = {&plain, 0};
  return sheaf_dequantize_rows(table->dtype, &from, &to) == SHEAF_OK;
}
