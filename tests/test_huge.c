/* test_huge.c: tables, indices and outputs past 2^31 elements. Runs with SHEAF_TEST_HUGE=1 only.
 *
 * Every address that a result depends on lies beyond 2^31 elements of something. Memory is spared where it can be:
 * tables are touched only in the rows that are looked at, and long inputs are small files mapped again and again,
 * whose length does not divide any power of two. A test that finds too little memory says so and is skipped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sheaf/base.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "support/large.h"
#include "support/refusals.h"

static void run_embedding(const sheaf_embedding_desc *desc, const sheaf_embedding_args *args, sheaf_status expected)
{
  sheaf_plan *plan = embedding_plan(desc, NULL);
  size_t bytes = sheaf_plan_workspace_size(plan);
  void *workspace = large_table(bytes);
  sheaf_status status = sheaf_embedding_run(plan, workspace, bytes, NULL, args);
  if (status != expected) fail_msg("%s: %s", sheaf_status_name(status), sheaf_last_error());
  sheaf_table_free(workspace, bytes);
  sheaf_plan_free(plan);
}

static sheaf_embedding_desc describe(sheaf_embedding_kind kind, sheaf_dtype dtype, int64_t rows, int64_t dim,
                                     int64_t indices, int64_t bags)
{
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.kind = kind;
  desc.dtype = dtype;
  desc.index_dtype = SHEAF_I32;
  desc.rows = rows;
  desc.dim = dim;
  desc.indices = indices;
  desc.bags = bags;
  desc.bad_index = SHEAF_BAD_INDEX_ERROR;
  return desc;
}

/* ---- Tables past 2^31 elements ----------------------------------------------------------------------------------- */

static float sample_value(int64_t row, int64_t column) { return (float)((row * 7 + column * 3) % 251); }

/* Writes the sampled rows of a table of f16 or int8 (scale 1, bias 0: an element reads as its byte). */
static void write_rows(sheaf_dtype dtype, char *table, const int32_t *rows)
{
  int64_t row_bytes = sheaf_dtype_row_bytes(dtype, LARGE_DIM);
  for (int i = 0; i < LARGE_SAMPLES; i++)
    for (int64_t d = 0; d < LARGE_DIM; d++) {
      char *row = table + rows[i] * row_bytes;
      float value = sample_value(rows[i], d), tail[2] = {1, 0};
      if (dtype == SHEAF_INT8) {
        ((uint8_t *)row)[d] = (uint8_t)value;
        memcpy(row + LARGE_DIM, tail, sizeof tail);
      } else {
        ((uint16_t *)(void *)row)[d] = sheaf_f32_to_f16(value);
      }
    }
}

static void check_large_table(sheaf_dtype dtype)
{
  int64_t row_bytes = sheaf_dtype_row_bytes(dtype, LARGE_DIM);
  size_t bytes = (size_t)(LARGE_ROWS * row_bytes);
  int32_t rows[LARGE_SAMPLES], offsets[] = {0, 1, 40};
  char *table = large_table(bytes);
  float out[LARGE_SAMPLES][LARGE_DIM];
  uint16_t halves[LARGE_SAMPLES][LARGE_DIM];
  large_choose_rows(rows, row_bytes);
  write_rows(dtype, table, rows);
  bool packed = dtype == SHEAF_INT8;
  large_tensor t, i, o, b;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.table = large_operand(&t, dtype, table, LARGE_ROWS, packed ? row_bytes : LARGE_DIM);
  args.indices = large_operand(&i, SHEAF_I32, rows, LARGE_SAMPLES, -1);
  args.out = large_operand(&o, packed ? SHEAF_F32 : SHEAF_F16, packed ? (void *)out : (void *)halves, LARGE_SAMPLES,
                           LARGE_DIM);
  sheaf_embedding_desc desc = describe(SHEAF_LOOKUP, dtype, LARGE_ROWS, LARGE_DIM, LARGE_SAMPLES, 0);
  run_embedding(&desc, &args, SHEAF_OK);
  for (int n = 0; n < LARGE_SAMPLES; n++)
    for (int d = 0; d < LARGE_DIM; d++) {
      float got = packed ? out[n][d] : sheaf_f16_to_f32(halves[n][d]);
      if (got != sample_value(rows[n], d)) fail_msg("row %d, column %d: %g", rows[n], d, (double)got);
    }
  desc = describe(SHEAF_BAG_SUM, dtype, LARGE_ROWS, LARGE_DIM, LARGE_SAMPLES, 3);
  args.offsets = large_operand(&b, SHEAF_I32, offsets, 3, -1);
  args.out = large_operand(&o, packed ? SHEAF_F32 : SHEAF_F16, packed ? (void *)out : (void *)halves, 3, LARGE_DIM);
  run_embedding(&desc, &args, SHEAF_OK);
  for (int bag = 0; bag < 3; bag++)
    for (int d = 0; d < LARGE_DIM; d++) {
      float sum = 0, got = packed ? out[bag][d] : sheaf_f16_to_f32(halves[bag][d]);
      for (int n = offsets[bag]; n < (bag < 2 ? offsets[bag + 1] : LARGE_SAMPLES); n++) sum += sample_value(rows[n], d);
      if (!packed) sum = sheaf_f16_to_f32(sheaf_f32_to_f16(sum));
      if (got != sum) fail_msg("bag %d, column %d: %g instead of %g", bag, d, (double)got, (double)sum);
    }
  sheaf_table_free(table, bytes);
}

static void test_lookup_and_bags_over_an_f16_table_past_2_31_elements(void **state)
{
  (void)state;
  NEED_MIB(512);
  check_large_table(SHEAF_F16);
}

static void test_lookup_and_bags_over_an_int8_table_past_2_31_elements(void **state)
{
  (void)state;
  NEED_MIB(512);
  check_large_table(SHEAF_INT8);
}

/* Accumulated: only the rows that are named are touched, wherever they lie. */
static void test_gradients_of_a_table_past_2_31_elements(void **state)
{
  (void)state;
  NEED_MIB(512);
  size_t bytes = (size_t)LARGE_ROWS * LARGE_DIM * 2;
  uint16_t *grad = large_table(bytes), *grad_out = malloc(LARGE_SAMPLES * LARGE_DIM * sizeof *grad_out);
  int32_t rows[LARGE_SAMPLES], arg[LARGE_SAMPLES][LARGE_DIM];
  assert_non_null(grad_out);
  large_choose_rows(rows, LARGE_DIM * 2);
  for (int i = 0; i < LARGE_SAMPLES * LARGE_DIM; i++) grad_out[i] = 0x3c00; /* 1 */
  large_tensor g, i, o, a;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.indices = large_operand(&i, SHEAF_I32, rows, LARGE_SAMPLES, -1);
  args.grad_out = large_operand(&o, SHEAF_F16, grad_out, LARGE_SAMPLES, LARGE_DIM);
  args.table_grad = large_operand(&g, SHEAF_F16, grad, LARGE_ROWS, LARGE_DIM);
  sheaf_embedding_desc desc = describe(SHEAF_LOOKUP_BACKWARD, SHEAF_F16, LARGE_ROWS, LARGE_DIM, LARGE_SAMPLES, 0);
  run_embedding(&desc, &args, SHEAF_OK);
  for (int n = 0; n < LARGE_SAMPLES; n++) {
    int times = 0;
    for (int m = 0; m < LARGE_SAMPLES; m++) times += rows[m] == rows[n];
    for (int64_t d = 0; d < LARGE_DIM; d++)
      assert_int_equal(grad[rows[n] * (int64_t)LARGE_DIM + d], sheaf_f32_to_f16((float)times));
  }
  /* Bags' maxima: cells past 2^31 are numbered one by one. */
  for (int b = 0; b < LARGE_SAMPLES; b++)
    for (int d = 0; d < LARGE_DIM; d++) arg[b][d] = (b + d) % 3 ? rows[b] : -1;
  args.arg = large_operand(&a, SHEAF_I32, arg, LARGE_SAMPLES, LARGE_DIM);
  for (int n = 0; n < LARGE_SAMPLES; n++) memset(grad + rows[n] * (int64_t)LARGE_DIM, 0, LARGE_DIM * 2);
  desc = describe(SHEAF_BAG_MAX_BACKWARD, SHEAF_F16, LARGE_ROWS, LARGE_DIM, 0, LARGE_SAMPLES);
  run_embedding(&desc, &args, SHEAF_OK);
  for (int n = 0; n < LARGE_SAMPLES; n++)
    for (int d = 0; d < LARGE_DIM; d++) {
      int times = 0;
      for (int m = 0; m < LARGE_SAMPLES; m++) times += arg[m][d] == rows[n];
      assert_int_equal(grad[rows[n] * (int64_t)LARGE_DIM + d], sheaf_f32_to_f16((float)times));
    }
  sheaf_table_free(grad, bytes);
  free(grad_out);
}

/* ---- More than 2^31 indices -------------------------------------------------------------------------------------- */

static const int64_t many = ((int64_t)1 << 31) + 123457;
enum { PERIOD = (64 << 20) / 4 + 13 * 1024 /* entries: 64 MiB and 13 pages */, KNOWN_ROWS = 1000 };

/* What entry n of the long indices names: mostly row 0, whose value is 0 in sums; the last row never. */
static int32_t long_index(int64_t n)
{
  uint64_t hash = (uint64_t)(n % PERIOD) * 0x9E3779B97F4A7C15u;
  return hash >> 52 ? 0 : 1 + (int32_t)(hash >> 32 & 0xfffff) % (KNOWN_ROWS - 2);
}

static int32_t *map_long_indices(size_t *bytes)
{
  int32_t *content = malloc(PERIOD * sizeof *content);
  assert_non_null(content);
  for (int64_t n = 0; n < PERIOD; n++) content[n] = long_index(n);
  *bytes = ((size_t)many * 4 + 4095) / 4096 * 4096;
  char *memory = large_reserve(*bytes);
  large_map_repeatedly(memory, *bytes, content, PERIOD * sizeof *content);
  free(content);
  return (int32_t *)(void *)memory;
}

static void test_lookup_of_more_than_2_31_indices(void **state)
{
  (void)state;
  NEED_MIB(4096 + 256);
  uint16_t table[KNOWN_ROWS];
  size_t bytes, out_bytes = (size_t)many * 2;
  for (int r = 0; r < KNOWN_ROWS; r++) table[r] = (uint16_t)(0x1000 + r * 13);
  int32_t *indices = map_long_indices(&bytes);
  uint16_t *out = large_table(out_bytes);
  large_tensor t, i, o;
  sheaf_index_report report;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.table = large_operand(&t, SHEAF_F16, table, KNOWN_ROWS, 1);
  args.indices = large_operand(&i, SHEAF_I32, indices, many, -1);
  args.out = large_operand(&o, SHEAF_F16, out, many, 1);
  args.report = &report;
  sheaf_embedding_desc desc = describe(SHEAF_LOOKUP, SHEAF_F16, KNOWN_ROWS, 1, many, 0);
  int64_t bad = TWO_31 + 77777;
  indices[bad] = -5;
  indices[many - 1] = KNOWN_ROWS;
  run_embedding(&desc, &args, SHEAF_INDEX_OUT_OF_RANGE);
  assert_int_equal(sheaf_last_error_info().position, bad);
  assert_int_equal(sheaf_last_error_info().value, -5);
  assert_int_equal(report.count, 2);
  assert_int_equal(report.first_position, bad);
  assert_true(out[0] == 0 && out[bad] == 0 && out[many - 1] == 0); /* nothing was written */
  indices[bad] = 7;
  indices[many - 1] = 9;
  run_embedding(&desc, &args, SHEAF_OK);
  assert_int_equal(report.count, 0);
  for (int64_t n = 0; n < many; n++)
    if (out[n] != table[indices[n]])
      fail_msg("entry %lld: %04x instead of %04x", (long long)n, out[n], table[indices[n]]);
  assert_int_equal(out[bad], table[7]);
  assert_int_equal(out[many - 1], table[9]);
  sheaf_table_free(out, out_bytes);
  munmap(indices, bytes);
}

/* Bags whose borders lie around 2^31, and one bag of everything. Values are small whole numbers, so that sums are
 * exact. */
static void test_bags_of_more_than_2_31_indices(void **state)
{
  (void)state;
  NEED_MIB(512);
  float table[KNOWN_ROWS], out[4], expected[4] = {0, 0, 0, 0};
  int32_t arg[4];
  size_t bytes;
  for (int r = 0; r < KNOWN_ROWS; r++) table[r] = (float)(r % 5 - 2) * (r ? 1.0f : 0.0f);
  int32_t *indices = map_long_indices(&bytes);
  indices[TWO_31 - 2] = indices[TWO_31 + 3] = 999;
  table[999] = 50;
  int64_t starts[4] = {0, TWO_31 - 2, TWO_31 + 3, many};
  for (int64_t n = 0, bag = 0; n < many; n++) {
    while (n >= starts[bag + 1]) bag++;
    expected[bag] += table[indices[n]];
  }
  large_tensor t, i, o, s, a;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.table = large_operand(&t, SHEAF_F32, table, KNOWN_ROWS, 1);
  args.indices = large_operand(&i, SHEAF_I32, indices, many, -1);
  args.offsets = large_operand(&s, SHEAF_I64, starts, 4, -1);
  args.out = large_operand(&o, SHEAF_F32, out, 4, 1);
  sheaf_embedding_desc desc = describe(SHEAF_BAG_SUM, SHEAF_F32, KNOWN_ROWS, 1, many, 4);
  desc.offset_dtype = SHEAF_I64;
  run_embedding(&desc, &args, SHEAF_OK);
  for (int b = 0; b < 4; b++)
    if (out[b] != expected[b]) fail_msg("bag %d: %g instead of %g", b, (double)out[b], (double)expected[b]);
  desc = describe(SHEAF_BAG_MEAN, SHEAF_F32, KNOWN_ROWS, 1, many, 1);
  desc.offset_dtype = SHEAF_I64;
  args.offsets = large_operand(&s, SHEAF_I64, starts, 1, -1);
  args.out = large_operand(&o, SHEAF_F32, out, 1, 1);
  run_embedding(&desc, &args, SHEAF_OK);
  float sum = expected[0] + expected[1] + expected[2], mean = sum / (float)many;
  if (out[0] != mean) fail_msg("the mean of all is %a instead of %a", (double)out[0], (double)mean);
  desc.kind = SHEAF_BAG_MAX;
  indices[TWO_31 - 2] = indices[TWO_31 + 3] = 0;
  indices[many - 2] = 999; /* the only place where the maximum can be found */
  args.arg = large_operand(&a, SHEAF_I32, arg, 1, 1);
  run_embedding(&desc, &args, SHEAF_OK);
  assert_true(out[0] == 50);
  assert_int_equal(arg[0], 999);
  munmap(indices, bytes);
}

/* An argument is a pattern of tests to run, such as '*indices'. */
int main(int argc, char **argv)
{
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_lookup_and_bags_over_an_f16_table_past_2_31_elements),
      cmocka_unit_test(test_lookup_and_bags_over_an_int8_table_past_2_31_elements),
      cmocka_unit_test(test_gradients_of_a_table_past_2_31_elements),
      cmocka_unit_test(test_lookup_of_more_than_2_31_indices),
      cmocka_unit_test(test_bags_of_more_than_2_31_indices),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
