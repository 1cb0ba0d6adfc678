/* test_quantize.c: rows packed to int8 and int4: the bytes of known rows, and every refusal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/refusals.h"
#include "support/test_random.h"

enum { MOST_ROWS = 8, MOST_BYTES = 256 };

/* Rows of f32 and their packed bytes, each in memory of its own. */
typedef struct pair {
  float plain[MOST_BYTES];
  uint8_t bytes[MOST_BYTES];
  int64_t plain_shape[3], plain_strides[3], packed_shape[3], packed_strides[3];
  DLTensor plain_tensor, packed_tensor;
  sheaf_operand rows, packed;
} pair;

static const sheaf_dtype layouts[] = {SHEAF_INT8, SHEAF_INT4};

static void lay_out(pair *p, sheaf_dtype dtype, int64_t rows, int64_t dim)
{
  int64_t width = sheaf_dtype_row_bytes(dtype, dim);
  for (int i = 0; i < MOST_BYTES; i++) p->plain[i] = (float)(i % 7) - 2.5f;
  memset(p->bytes, 0xEE, sizeof p->bytes);
  p->plain_shape[0] = p->packed_shape[0] = rows;
  p->plain_shape[1] = p->plain_strides[0] = dim;
  p->packed_shape[1] = p->packed_strides[0] = width;
  p->plain_strides[1] = p->packed_strides[1] = 1;
  p->plain_tensor = (DLTensor){.data = p->plain, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}};
  p->plain_tensor.shape = p->plain_shape;
  p->plain_tensor.strides = p->plain_strides;
  p->packed_tensor = (DLTensor){.data = p->bytes, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLUInt, 8, 1}};
  p->packed_tensor.shape = p->packed_shape;
  p->packed_tensor.strides = p->packed_strides;
  p->rows = (sheaf_operand){&p->plain_tensor, (size_t)(rows * dim) * 4};
  p->packed = (sheaf_operand){&p->packed_tensor, (size_t)(rows * width)};
}

/* ---- Bytes of known rows ----------------------------------------------------------------------------------------- */

static void expect_bytes(sheaf_dtype dtype, const float *row, int64_t dim, const uint8_t *expected)
{
  pair p;
  int64_t width = sheaf_dtype_row_bytes(dtype, dim);
  lay_out(&p, dtype, 1, dim);
  memcpy(p.plain, row, (size_t)dim * sizeof *row);
  if (sheaf_quantize_rows(dtype, &p.rows, &p.packed) != SHEAF_OK) fail_msg("%s", sheaf_last_error());
  for (int64_t i = 0; i < width; i++)
    if (p.bytes[i] != expected[i])
      fail_msg("%s, %d columns: byte %d is %02x instead of %02x", sheaf_dtype_name(dtype), (int)dim, (int)i, p.bytes[i],
               expected[i]);
  assert_int_equal(p.bytes[width], 0xEE);
}

#define ROW(...) ((const float[]){__VA_ARGS__})
#define BYTES(...) ((const uint8_t[]){__VA_ARGS__})

static void test_bytes_of_known_int8_rows(void **state)
{
  (void)state;
  /* scale 1, bias 0 */
  expect_bytes(SHEAF_INT8, ROW(0, 255, 100), 3, BYTES(0, 255, 100, 0, 0, 0x80, 0x3f, 0, 0, 0, 0));
  /* scale 2 / 255 = 0x3c008081, bias -1; the middle lies on 127.5, which rounds to even */
  expect_bytes(SHEAF_INT8, ROW(-1, 0, 1), 3, BYTES(0, 128, 255, 0x81, 0x80, 0x00, 0x3c, 0, 0, 0x80, 0xbf));
  /* a constant row has no range */
  expect_bytes(SHEAF_INT8, ROW(3, 3), 2, BYTES(0, 0, 0, 0, 0, 0, 0, 0, 0x40, 0x40));
  expect_bytes(SHEAF_INT8, ROW(-0.5f), 1, BYTES(0, 0, 0, 0, 0, 0, 0, 0, 0xbf));
  /* no columns: only scale 0 and bias 0 */
  expect_bytes(SHEAF_INT8, ROW(9), 0, BYTES(0, 0, 0, 0, 0, 0, 0, 0));
}

static void test_bytes_of_known_int4_rows(void **state)
{
  (void)state;
  /* scale 1 (0x3c00), bias 0; low nibble first */
  expect_bytes(SHEAF_INT4, ROW(0, 15, 1, 14), 4, BYTES(0xf0, 0xe1, 0x00, 0x3c, 0, 0));
  /* scale f16(0.2) = 0x3266, bias 1 (0x3c00); odd: the last high nibble is 0 */
  expect_bytes(SHEAF_INT4, ROW(1, 2, 4), 3, BYTES(0x50, 0x0f, 0x66, 0x32, 0x00, 0x3c));
  /* a constant row: scale 1 */
  expect_bytes(SHEAF_INT4, ROW(5, 5), 2, BYTES(0x00, 0x00, 0x3c, 0x00, 0x45));
  /* halves round to even */
  expect_bytes(SHEAF_INT4, ROW(0, 15, 0.5f, 1.5f, 2.5f), 5, BYTES(0xf0, 0x20, 0x02, 0x00, 0x3c, 0, 0));
  /* the bias is rounded first: f16(-1/3) = 0xb555 lies above the minimum, so q is clamped at 0 */
  expect_bytes(SHEAF_INT4, ROW(-1.0f / 3, 14.66699f), 2, BYTES(0xf0, 0x00, 0x3c, 0x55, 0xb5));
  expect_bytes(SHEAF_INT4, ROW(9), 0, BYTES(0x00, 0x3c, 0, 0));
}

static void test_unpacked_rows_are_within_half_a_step(void **state)
{
  (void)state;
  test_random random = {5};
  for (int trial = 0; trial < 2000; trial++) {
    pair p;
    sheaf_dtype dtype = layouts[trial % 2];
    int64_t rows = 1 + random_below(&random, 4), dim = 1 + random_below(&random, 30);
    float before[MOST_BYTES];
    lay_out(&p, dtype, rows, dim);
    for (int64_t i = 0; i < rows * dim; i++) before[i] = p.plain[i] = (float)(random_unit(&random) * 20 - 10);
    assert_int_equal(sheaf_quantize_rows(dtype, &p.rows, &p.packed), SHEAF_OK);
    memset(p.plain, 0xFF, sizeof p.plain);
    assert_int_equal(sheaf_dequantize_rows(dtype, &p.packed, &p.rows), SHEAF_OK);
    for (int64_t r = 0; r < rows; r++) {
      float least = before[r * dim], most = least;
      for (int64_t d = 0; d < dim; d++) {
        least = fminf(least, before[r * dim + d]);
        most = fmaxf(most, before[r * dim + d]);
      }
      /* int4 rounds scale and bias to 11 bits as well */
      float step = (most - least) / (dtype == SHEAF_INT8 ? 255 : 15);
      float slack = step * 0.5001f + (dtype == SHEAF_INT8 ? 1e-5f : 0.02f);
      for (int64_t d = 0; d < dim; d++) assert_true(fabsf(p.plain[r * dim + d] - before[r * dim + d]) <= slack);
    }
  }
}

static void test_rows_may_be_further_apart_than_they_are_wide(void **state)
{
  (void)state;
  for (int l = 0; l < 2; l++) {
    pair close, apart;
    lay_out(&close, layouts[l], 4, 5);
    lay_out(&apart, layouts[l], 4, 5);
    int64_t width = close.packed_shape[1];
    apart.plain_strides[0] = 9;
    apart.packed_strides[0] = width + 3;
    apart.rows.bytes = apart.packed.bytes = 0;
    for (int r = 0; r < 4; r++)
      for (int d = 0; d < 5; d++) apart.plain[r * 9 + d] = close.plain[r * 5 + d];
    assert_int_equal(sheaf_quantize_rows(layouts[l], &close.rows, &close.packed), SHEAF_OK);
    assert_int_equal(sheaf_quantize_rows(layouts[l], &apart.rows, &apart.packed), SHEAF_OK);
    for (int64_t r = 0; r < 4; r++) {
      assert_memory_equal(close.bytes + r * width, apart.bytes + r * (width + 3), (size_t)width);
      for (int64_t gap = 0; gap < 3; gap++) assert_int_equal(apart.bytes[r * (width + 3) + width + gap], 0xEE);
    }
  }
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

/* Both directions refuse with this status, these words, this operand, and write nothing. */
static void expect_refusal(pair *p, sheaf_dtype dtype, sheaf_status status, const char *operand,
                           const char *const *words, int line)
{
  const pair before = *p;
  for (int direction = 0; direction < 2; direction++) {
    sheaf_status got = direction ? sheaf_dequantize_rows(dtype, &p->packed, &p->rows)
                                 : sheaf_quantize_rows(dtype, &p->rows, &p->packed);
    const char *text = sheaf_last_error();
    if (got != status) fail_msg("line %d: %s: %s", line, sheaf_status_name(got), text);
    for (int i = 0; words[i]; i++)
      if (!strstr(text, words[i])) fail_msg("line %d: \"%s\" is not in \"%s\"", line, words[i], text);
    sheaf_error_info info = sheaf_last_error_info();
    if (operand ? !info.operand || strcmp(info.operand, operand) != 0 : info.operand != NULL)
      fail_msg("line %d: the operand beside \"%s\" is %s", line, text, info.operand ? info.operand : "none");
    assert_memory_equal(p->plain, before.plain, sizeof p->plain);
    assert_memory_equal(p->bytes, before.bytes, sizeof p->bytes);
  }
}
#define refuses(p, dtype, status, operand, ...) \
  expect_refusal(p, dtype, SHEAF_##status, operand, WORDS(__VA_ARGS__), __LINE__)

static void test_other_types_cannot_be_packed(void **state)
{
  (void)state;
  for (int dtype = -1; dtype < 11; dtype++) {
    pair p;
    if (dtype == SHEAF_INT8 || dtype == SHEAF_INT4) continue;
    lay_out(&p, SHEAF_INT8, 2, 3);
    refuses(&p, (sheaf_dtype)dtype, UNSUPPORTED, NULL, "int8 or int4", sheaf_dtype_name((sheaf_dtype)dtype),
            number(dtype));
  }
}

static void test_null_operands_are_refused(void **state)
{
  (void)state;
  for (int l = 0; l < 2; l++) {
    pair p;
    lay_out(&p, layouts[l], 2, 3);
    assert_int_equal(sheaf_quantize_rows(layouts[l], NULL, &p.packed), SHEAF_INVALID_PROBLEM);
    assert_int_equal(sheaf_quantize_rows(layouts[l], &p.rows, NULL), SHEAF_INVALID_PROBLEM);
    assert_int_equal(sheaf_dequantize_rows(layouts[l], NULL, &p.rows), SHEAF_INVALID_PROBLEM);
    assert_int_equal(sheaf_dequantize_rows(layouts[l], &p.packed, NULL), SHEAF_INVALID_PROBLEM);
    p.rows.tensor = NULL;
    refuses(&p, layouts[l], INVALID_PROBLEM, NULL, "rows");
    lay_out(&p, layouts[l], 2, 3);
    p.packed.tensor = NULL;
    refuses(&p, layouts[l], INVALID_PROBLEM, "packed", "packed", "not given");
    lay_out(&p, layouts[l], 2, 3);
    p.plain_tensor.data = NULL;
    refuses(&p, layouts[l], INVALID_PROBLEM, "rows", "no data");
    lay_out(&p, layouts[l], 2, 3);
    p.packed_tensor.data = NULL;
    refuses(&p, layouts[l], INVALID_PROBLEM, "packed", "no data");
    lay_out(&p, layouts[l], 2, 3);
    p.plain_tensor.shape = NULL;
    refuses(&p, layouts[l], INVALID_PROBLEM, NULL, "rows");
    lay_out(&p, layouts[l], 2, 3);
    p.packed_tensor.shape = NULL;
    refuses(&p, layouts[l], INVALID_PROBLEM, "packed", "no shape");
  }
}

static void test_other_shapes_types_and_devices_are_refused(void **state)
{
  (void)state;
  for (int l = 0; l < 2; l++) {
    pair p;
    int64_t width = sheaf_dtype_row_bytes(layouts[l], 3);
#define FRESH lay_out(&p, layouts[l], 2, 3)
    FRESH, p.plain_tensor.ndim = 1;
    refuses(&p, layouts[l], INVALID_PROBLEM, NULL, "rows", "matrix");
    FRESH, p.plain_shape[0] = -2;
    refuses(&p, layouts[l], INVALID_PROBLEM, NULL, "[-2, 3]");
    FRESH, p.plain_shape[1] = -3;
    refuses(&p, layouts[l], INVALID_PROBLEM, NULL, "[2, -3]");
    FRESH, p.plain_shape[1] = INT64_MAX;
    refuses(&p, layouts[l], INVALID_PROBLEM, NULL, number(INT64_MAX));
    FRESH, p.plain_shape[1] = INT64_MAX / 2;
    refuses(&p, layouts[l], INVALID_PROBLEM, "rows", "rows");
    FRESH, p.plain_shape[0] = 0, p.plain_shape[1] = INT64_MAX / 2;
    refuses(&p, layouts[l], INVALID_PROBLEM, "rows", "rows");
    FRESH, p.packed_shape[0] = 3;
    refuses(&p, layouts[l], INVALID_PROBLEM, "packed", number(width));
    FRESH, p.packed_shape[1] = width - 1;
    refuses(&p, layouts[l], INVALID_PROBLEM, "packed", number(width - 1), number(width));
    FRESH, p.packed_tensor.ndim = 3;
    p.packed_shape[2] = 1;
    refuses(&p, layouts[l], INVALID_PROBLEM, "packed", "packed has shape");
    FRESH, p.plain_tensor.dtype.bits = 64;
    refuses(&p, layouts[l], INVALID_PROBLEM, "rows", "64 bits", "f32");
    FRESH, p.packed_tensor.dtype.code = kDLInt;
    refuses(&p, layouts[l], INVALID_PROBLEM, "packed", "code 0", "u8");
    FRESH, p.plain_tensor.device.device_type = kDLCUDA;
    refuses(&p, layouts[l], INVALID_PROBLEM, "rows", "device type 2");
    FRESH, p.packed_tensor.device.device_type = kDLMetal;
    refuses(&p, layouts[l], INVALID_PROBLEM, "packed", "device type 8");
    FRESH, p.plain_strides[0] = 2;
    refuses(&p, layouts[l], INVALID_PROBLEM, "rows", "row stride of 2");
    FRESH, p.packed_strides[0] = -width;
    refuses(&p, layouts[l], INVALID_PROBLEM, "packed", "negative stride");
    FRESH, p.plain_strides[1] = 2;
    refuses(&p, layouts[l], INVALID_PROBLEM, "rows", "contiguous");
    FRESH, p.rows.bytes = 23;
    refuses(&p, layouts[l], BUFFER_TOO_SMALL, "rows", "24", "23");
    assert_int_equal(sheaf_last_error_info().needed, 24);
    FRESH, p.packed.bytes = (size_t)(2 * width - 1);
    refuses(&p, layouts[l], BUFFER_TOO_SMALL, "packed", number(2 * width), number(2 * width - 1));
    FRESH, p.plain_tensor.byte_offset = 2, p.rows.bytes = 0;
    refuses(&p, layouts[l], MISALIGNED, "rows", "multiple of 4");
#undef FRESH
  }
}

static void test_rows_and_packed_must_not_share_memory(void **state)
{
  (void)state;
  for (int l = 0; l < 2; l++) {
    const int64_t places[] = {0, 23, -1};
    for (int i = 0; i < LENGTH(places); i++) {
      pair p;
      lay_out(&p, layouts[l], 2, 3);
      int64_t span = 2 * p.packed_shape[1];
      p.plain_tensor.byte_offset = 64 * sizeof(float);
      p.packed_tensor.data = (char *)(p.plain + 64) + (places[i] < 0 ? 1 - span : places[i]);
      refuses(&p, layouts[l], INVALID_PROBLEM, NULL, "share memory");
      p.packed_tensor.data = (char *)(p.plain + 64) + (places[i] < 0 ? -span : 24); /* right beside it */
      assert_int_equal(sheaf_dequantize_rows(layouts[l], &p.packed, &p.rows), SHEAF_OK);
    }
  }
}

static void test_rows_that_are_not_finite_are_named_and_nothing_is_written(void **state)
{
  (void)state;
  const float values[] = {NAN, INFINITY, -INFINITY};
  for (int l = 0; l < 2; l++)
    for (int v = 0; v < LENGTH(values); v++)
      for (int row = 0; row < 4; row++)
        for (int column = 0; column < 3; column++) {
          pair p;
          char place[32];
          lay_out(&p, layouts[l], 4, 3);
          p.plain[row * 3 + column] = p.plain[11] = values[v];
          snprintf(place, sizeof place, "row %d", row);
          assert_int_equal(sheaf_quantize_rows(layouts[l], &p.rows, &p.packed), SHEAF_INVALID_PROBLEM);
          assert_non_null(strstr(sheaf_last_error(), place));
          assert_int_equal(sheaf_last_error_info().position, row);
          assert_string_equal(sheaf_last_error_info().operand, "rows");
          for (int i = 0; i < MOST_BYTES; i++) assert_int_equal(p.bytes[i], 0xEE);
        }
}

static void test_no_rows_and_no_columns_are_legal(void **state)
{
  (void)state;
  for (int l = 0; l < 2; l++) {
    pair p;
    lay_out(&p, layouts[l], 0, 3);
    p.plain_tensor.data = p.packed_tensor.data = NULL;
    assert_int_equal(sheaf_quantize_rows(layouts[l], &p.rows, &p.packed), SHEAF_OK);
    assert_int_equal(sheaf_dequantize_rows(layouts[l], &p.packed, &p.rows), SHEAF_OK);
    lay_out(&p, layouts[l], 3, 0);
    p.plain_tensor.data = NULL;
    assert_int_equal(sheaf_quantize_rows(layouts[l], &p.rows, &p.packed), SHEAF_OK);
    assert_int_equal(p.bytes[3 * p.packed_shape[1]], 0xEE);
    assert_int_not_equal(p.bytes[3 * p.packed_shape[1] - 1], 0xEE);
    assert_int_equal(sheaf_dequantize_rows(layouts[l], &p.packed, &p.rows), SHEAF_OK);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bytes_of_known_int8_rows),
      cmocka_unit_test(test_bytes_of_known_int4_rows),
      cmocka_unit_test(test_unpacked_rows_are_within_half_a_step),
      cmocka_unit_test(test_rows_may_be_further_apart_than_they_are_wide),
      cmocka_unit_test(test_other_types_cannot_be_packed),
      cmocka_unit_test(test_null_operands_are_refused),
      cmocka_unit_test(test_other_shapes_types_and_devices_are_refused),
      cmocka_unit_test(test_rows_and_packed_must_not_share_memory),
      cmocka_unit_test(test_rows_that_are_not_finite_are_named_and_nothing_is_written),
      cmocka_unit_test(test_no_rows_and_no_columns_are_legal),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
