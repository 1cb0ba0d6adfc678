/* bit_number.c: numbers, canonical sums and operand addresses of the bit oracle. */
#include "bit_number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FAN_IN = 16 };

/* ---- Elements ------------------------------------------------------------------------------------------------- */

static float float_of(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t bits_of(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

float bit_from_f16(uint16_t bits)
{
  const uint32_t sign = (uint32_t)(bits >> 15) << 31;
  uint32_t exponent = (bits >> 10) & 31;
  uint32_t fraction = bits & 1023;
  if (exponent == 31) {
    return float_of(sign | 0x7F800000u | fraction << 13);
  }
  if (exponent == 0) {
    if (fraction == 0) {
      return float_of(sign);
    }
    /* A denormal: shift the leading one up into the hidden place. */
    exponent = 1;
    while ((fraction & 1024) == 0) {
      fraction <<= 1;
      exponent--;
    }
    fraction &= 1023;
  }
  return float_of(sign | (exponent + 127 - 15) << 23 | fraction << 13);
}

float bit_from_bf16(uint16_t bits) { return float_of((uint32_t)bits << 16); }

/* value / 2^shift to nearest, ties to even. */
static uint32_t shift_rounded(uint32_t value, unsigned shift)
{
  const uint32_t quotient = value >> shift;
  const uint32_t rest = value & ((1u << shift) - 1);
  const uint32_t half = 1u << (shift - 1);
  return quotient + (rest > half || (rest == half && (quotient & 1)) ? 1u : 0u);
}

uint16_t bit_to_f16(float value)
{
  const uint32_t bits = bits_of(value);
  const uint32_t sign = bits >> 31 << 15;
  const uint32_t exponent = (bits >> 23) & 255;
  const uint32_t fraction = bits & 0x7FFFFF;
  if (exponent == 255) {
    return (uint16_t)(sign | 0x7C00 | (fraction != 0 ? 0x200 | fraction >> 13 : 0));
  }
  if (exponent >= 127 + 16) {
    return (uint16_t)(sign | 0x7C00);
  }
  if (exponent >= 127 - 14) { /* normal; a carry out of the fraction moves the exponent up, to infinity if need be */
    const uint32_t rebased = (exponent - (127 - 15)) << 23 | fraction;
    return (uint16_t)(sign | shift_rounded(rebased, 13));
  }
  /* In units of 2^-24: the value's 24 bits are whole numbers of 2^(exponent - 150). */
  if (exponent < 127 - 25) {
    return (uint16_t)sign;
  }
  return (uint16_t)(sign | shift_rounded(0x800000 | fraction, 150 - 24 - exponent));
}

uint16_t bit_to_bf16(float value)
{
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) {
    return (uint16_t)(bits >> 16 | 0x40);
  }
  return (uint16_t)shift_rounded(bits, 16);
}

size_t bit_element_bytes(sheaf_dtype dtype)
{
  switch (dtype) {
  case SHEAF_F64:
  case SHEAF_I64:
    return 8;
  case SHEAF_F32:
  case SHEAF_I32:
    return 4;
  case SHEAF_F16:
  case SHEAF_BF16:
    return 2;
  default:
    return 1;
  }
}

double bit_load(sheaf_dtype dtype, const void *base, int64_t element)
{
  const char *at = (const char *)base + element * (int64_t)bit_element_bytes(dtype);
  double wide;
  float narrow;
  uint16_t half;
  switch (dtype) {
  case SHEAF_F64:
    memcpy(&wide, at, sizeof wide);
    return wide;
  case SHEAF_F32:
    memcpy(&narrow, at, sizeof narrow);
    return (double)narrow;
  case SHEAF_F16:
    memcpy(&half, at, sizeof half);
    return (double)bit_from_f16(half);
  case SHEAF_BF16:
    memcpy(&half, at, sizeof half);
    return (double)bit_from_bf16(half);
  default:
    abort();
  }
}

void bit_store(sheaf_dtype dtype, void *base, int64_t element, double value)
{
  char *at = (char *)base + element * (int64_t)bit_element_bytes(dtype);
  const float narrow = (float)value;
  uint16_t half;
  switch (dtype) {
  case SHEAF_F64:
    memcpy(at, &value, sizeof value);
    return;
  case SHEAF_F32:
    memcpy(at, &narrow, sizeof narrow);
    return;
  case SHEAF_F16:
    half = bit_to_f16(narrow);
    memcpy(at, &half, sizeof half);
    return;
  case SHEAF_BF16:
    half = bit_to_bf16(narrow);
    memcpy(at, &half, sizeof half);
    return;
  default:
    abort();
  }
}

int64_t bit_load_index(sheaf_dtype dtype, const void *base, int64_t element)
{
  if (dtype == SHEAF_I32) {
    int32_t value;
    memcpy(&value, (const char *)base + 4 * element, sizeof value);
    return value;
  }
  int64_t value;
  memcpy(&value, (const char *)base + 8 * element, sizeof value);
  return value;
}

void bit_store_index(sheaf_dtype dtype, void *base, int64_t element, int64_t value)
{
  if (dtype == SHEAF_I32) {
    const int32_t narrow = (int32_t)value;
    memcpy((char *)base + 4 * element, &narrow, sizeof narrow);
    return;
  }
  memcpy((char *)base + 8 * element, &value, sizeof value);
}

/* ---- Arithmetic of the accumulator ------------------------------------------------------------------------------ */

double bit_add(bool wide, double a, double b) { return wide ? a + b : (double)((float)a + (float)b); }

double bit_subtract(bool wide, double a, double b) { return wide ? a - b : (double)((float)a - (float)b); }

double bit_multiply(bool wide, double a, double b) { return wide ? a * b : (double)((float)a * (float)b); }

double bit_divide(bool wide, double a, double b) { return wide ? a / b : (double)((float)a / (float)b); }

double bit_fma(bool wide, double a, double b, double c)
{
  return wide ? fma(a, b, c) : (double)fmaf((float)a, (float)b, (float)c);
}

double bit_count(bool wide, int64_t count) { return wide ? (double)count : (double)(float)count; }

static int64_t chunks_of(int64_t count) { return (count + FAN_IN - 1) / FAN_IN; }

/* The last position of chunk `chunk`, plus one. */
static int64_t chunk_end(int64_t chunk, int64_t count)
{
  return (chunk + 1) * FAN_IN < count ? (chunk + 1) * FAN_IN : count;
}

double bit_sum(bool wide, const double *terms, const double *weights, const bool *present, int64_t count)
{
  if (count == 0) {
    return 0.0;
  }
  int64_t level = chunks_of(count);
  double *sums = bit_alloc(level, sizeof *sums);
  for (int64_t chunk = 0; chunk < level; chunk++) {
    double acc = 0.0;
    for (int64_t k = chunk * FAN_IN; k < chunk_end(chunk, count); k++) {
      if (present == NULL || present[k]) {
        acc = weights != NULL ? bit_fma(wide, weights[k], terms[k], acc) : bit_add(wide, acc, terms[k]);
      }
    }
    sums[chunk] = acc;
  }
  while (level > 1) {
    const int64_t below = level;
    level = chunks_of(below);
    for (int64_t chunk = 0; chunk < level; chunk++) {
      double acc = 0.0;
      for (int64_t k = chunk * FAN_IN; k < chunk_end(chunk, below); k++) {
        acc = bit_add(wide, acc, sums[k]);
      }
      sums[chunk] = acc;
    }
  }
  const double total = sums[0];
  free(sums);
  return total == 0.0 ? 0.0 : total;
}

double bit_product(bool wide, const double *terms, int64_t count)
{
  if (count == 0) {
    return 1.0;
  }
  double *products = bit_alloc(count, sizeof *products);
  memcpy(products, terms, (size_t)count * sizeof *terms);
  int64_t level = count;
  do {
    const int64_t below = level;
    level = chunks_of(below);
    for (int64_t chunk = 0; chunk < level; chunk++) {
      double acc = 1.0;
      for (int64_t k = chunk * FAN_IN; k < chunk_end(chunk, below); k++) {
        acc = bit_multiply(wide, acc, products[k]);
      }
      products[chunk] = acc;
    }
  } while (level > 1);
  const double total = products[0];
  free(products);
  return total;
}

double bit_dot(bool wide, const double *a, const double *b, int64_t dim)
{
  double lanes[16] = {0.0};
  for (int64_t d = 0; d < dim; d++) {
    lanes[d % 16] = bit_fma(wide, a[d], b[d], lanes[d % 16]);
  }
  for (int half = 8; half >= 1; half /= 2) {
    for (int j = 0; j < half; j++) {
      lanes[j] = bit_add(wide, lanes[j], lanes[j + half]);
    }
  }
  return lanes[0] == 0.0 ? 0.0 : lanes[0];
}

/* ---- Operands --------------------------------------------------------------------------------------------------- */

/* The address of the position `flat` counted over dimensions first .. last - 1; dimensions from last on are at 0. */
static void *address(const sheaf_operand *operand, bool batched, int64_t problem, int64_t flat, bool rows)
{
  const DLTensor *tensor = operand->tensor;
  const int first = batched ? 1 : 0;
  const int last = tensor->ndim - (rows ? 1 : 0);
  int64_t stride = 1; /* of a contiguous tensor, when strides is NULL */
  int64_t offset = 0;
  for (int dimension = tensor->ndim - 1; dimension >= first; dimension--) {
    const int64_t extent = tensor->shape[dimension];
    if (dimension < last) {
      offset += flat % extent * (tensor->strides != NULL ? tensor->strides[dimension] : stride);
      flat /= extent;
    }
    stride *= extent;
  }
  if (batched) {
    offset += problem * (tensor->strides != NULL ? tensor->strides[0] : stride);
  }
  const int64_t bytes = tensor->dtype.bits / 8;
  return (char *)tensor->data + tensor->byte_offset + offset * bytes;
}

void *bit_row(const sheaf_operand *operand, bool batched, int64_t problem, int64_t row)
{
  return address(operand, batched, problem, row, true);
}

void *bit_entry(const sheaf_operand *operand, bool batched, int64_t problem, int64_t entry)
{
  return address(operand, batched, problem, entry, false);
}

/* ---- Lists ------------------------------------------------------------------------------------------------------ */

bit_groups bit_groups_make(const int64_t *keys, int64_t count, int64_t groups)
{
  bit_groups made = {bit_alloc(groups + 1, sizeof(int64_t)), bit_alloc(count, sizeof(int64_t))};
  int64_t *next = bit_alloc(groups + 1, sizeof *next);
  memset(next, 0, (size_t)(groups + 1) * sizeof *next);
  for (int64_t n = 0; n < count; n++) {
    if (keys[n] >= 0) {
      next[keys[n] + 1]++;
    }
  }
  for (int64_t group = 0; group < groups; group++) {
    next[group + 1] += next[group];
  }
  memcpy(made.start, next, (size_t)(groups + 1) * sizeof *next);
  for (int64_t n = 0; n < count; n++) {
    if (keys[n] >= 0) {
      made.position[next[keys[n]]++] = n;
    }
  }
  free(next);
  return made;
}

void bit_groups_free(bit_groups *groups)
{
  free(groups->start);
  free(groups->position);
}

void *bit_alloc(int64_t count, size_t bytes)
{
  void *memory = malloc((size_t)(count > 0 ? count : 1) * bytes);
  if (memory == NULL) {
    abort();
  }
  return memory;
}
