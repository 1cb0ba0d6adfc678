/* test_huge.c: tables, indices, outputs and segments past 2^31 elements. Runs with SHEAF_TEST_HUGE=1 only.
 *
 * Every address that a result depends on lies beyond 2^31 elements of something. Memory is spared where it can be: tables
 * are touched only in the rows that are looked at, and long inputs are small files mapped again and again, whose length does
 * not divide any power of two. A test that finds too little memory says so and is skipped.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <sheaf/sheaf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/environment.h"
#include "support/refusals.h"
#include "support/test_random.h"

static const int64_t two_31 = (int64_t)1 << 31;

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static int64_t available_mib(void)
{
  long long kib = -1;
  FILE *file = fopen("/proc/meminfo", "r");
  char line[128];
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1) break;
  if (file) fclose(file);
  return kib / 1024;
}

/* Skips the test unless it is asked for and there is memory for it. */
#define NEED_MIB(mib)                                                                                                   \
  do {                                                                                                                  \
    if (!is_switched_on("SHEAF_TEST_HUGE")) {                                                                           \
      print_message("only with SHEAF_TEST_HUGE=1\n");                                                                   \
      skip();                                                                                                           \
    }                                                                                                                   \
    if (available_mib() < (mib) + 1024) {                                                                               \
      print_message("needs %d MiB of memory, %lld are available\n", (mib) + 1024, (long long)available_mib());          \
      skip();                                                                                                           \
    }                                                                                                                   \
  } while (0)

static void *table_of(size_t bytes)
{
  void *memory;
  if (sheaf_table_alloc(bytes, &memory) != SHEAF_OK) fail_msg("%s", sheaf_last_error());
  return memory;
}

/* Address space without memory behind it yet. */
static char *reserve(size_t bytes)
{
  void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  assert_ptr_not_equal(memory, MAP_FAILED);
  return memory;
}

/* Puts a copy of `bytes` bytes (whole pages) into a file and maps it over at .. at + length, again and again. Pages that are
 * written later become private. */
static void map_repeatedly(char *at, size_t length, const void *content, size_t bytes)
{
  int file = memfd_create("sheaf-test", MFD_CLOEXEC);
  assert_true(file >= 0);
  assert_int_equal(ftruncate(file, (off_t)bytes), 0);
  void *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  assert_ptr_not_equal(copy, MAP_FAILED);
  memcpy(copy, content, bytes);
  munmap(copy, bytes);
  for (size_t done = 0; done < length; done += bytes) {
    size_t part = length - done < bytes ? length - done : bytes;
    assert_ptr_not_equal(mmap(at + done, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0), MAP_FAILED);
  }
  close(file);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

typedef struct tensor {
  DLTensor dl;
  int64_t shape[2];
} tensor;

static sheaf_operand operand(tensor *t, sheaf_dtype dtype, void *data, int64_t rows, int64_t columns)
{
  t->shape[0] = rows;
  t->shape[1] = columns;
  t->dl = (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = columns < 0 ? 1 : 2, .dtype = sheaf_dtype_to_dl(dtype)};
  t->dl.shape = t->shape;
  return (sheaf_operand){&t->dl, (size_t)(sheaf_dtype_row_bytes(dtype == SHEAF_INT8 ? SHEAF_U8 : dtype, columns < 0 ? 1 : columns) * rows)};
}

static void run_embedding(const sheaf_embedding_desc *desc, const sheaf_embedding_args *args, sheaf_status expected)
{
  sheaf_plan *plan = embedding_plan(desc, NULL);
  size_t bytes = sheaf_plan_workspace_size(plan);
  void *workspace = table_of(bytes);
  sheaf_status status = sheaf_embedding_run(plan, workspace, bytes, NULL, args);
  if (status != expected) fail_msg("%s: %s", sheaf_status_name(status), sheaf_last_error());
  sheaf_table_free(workspace, bytes);
  sheaf_plan_free(plan);
}

static void run_segment(const sheaf_segment_desc *desc, const sheaf_segment_args *args)
{
  sheaf_plan *plan = segment_plan(desc, NULL);
  size_t bytes = sheaf_plan_workspace_size(plan);
  void *workspace = table_of(bytes);
  if (sheaf_segment_run(plan, workspace, bytes, NULL, args) != SHEAF_OK) fail_msg("%s", sheaf_last_error());
  sheaf_table_free(workspace, bytes);
  sheaf_plan_free(plan);
}

static sheaf_embedding_desc describe(sheaf_embedding_kind kind, sheaf_dtype dtype, int64_t rows, int64_t dim, int64_t indices,
                                     int64_t bags)
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

enum { DIM = 64, SAMPLES = 96 };
static const int64_t table_rows = ((int64_t)1 << 25) + 1000; /* times 64: past 2^31 */

/* Rows on both sides of every power of two of elements and bytes, both ends, and random ones. */
static void choose_rows(int32_t *rows, int64_t row_bytes)
{
  test_random random = {7};
  int64_t marks[] = {0, two_31 / DIM, two_31 / row_bytes, 2 * two_31 / row_bytes, table_rows - 3};
  for (int i = 0; i < SAMPLES; i++) {
    int64_t row = i < 5 * 7 ? marks[i / 7] + i % 7 - 3 : random_below(&random, table_rows);
    rows[i] = (int32_t)(row < 0 ? -row : row >= table_rows ? table_rows - 1 : row);
  }
}

static float sample_value(int64_t row, int64_t column) { return (float)((row * 7 + column * 3) % 251); }

/* Writes the sampled rows of a table of f16 or int8 (scale 1, bias 0: an element reads as its byte). */
static void write_rows(sheaf_dtype dtype, char *table, const int32_t *rows)
{
  int64_t row_bytes = sheaf_dtype_row_bytes(dtype, DIM);
  for (int i = 0; i < SAMPLES; i++)
    for (int64_t d = 0; d < DIM; d++) {
      char *row = table + rows[i] * row_bytes;
      float value = sample_value(rows[i], d), tail[2] = {1, 0};
      if (dtype == SHEAF_INT8) {
        ((uint8_t *)row)[d] = (uint8_t)value;
        memcpy(row + DIM, tail, sizeof tail);
      } else {
        ((uint16_t *)(void *)row)[d] = sheaf_f32_to_f16(value);
      }
    }
}

static void check_large_table(sheaf_dtype dtype)
{
  int64_t row_bytes = sheaf_dtype_row_bytes(dtype, DIM);
  size_t bytes = (size_t)(table_rows * row_bytes);
  int32_t rows[SAMPLES], offsets[] = {0, 1, 40};
  char *table = table_of(bytes);
  float out[SAMPLES][DIM];
  uint16_t halves[SAMPLES][DIM];
  choose_rows(rows, row_bytes);
  write_rows(dtype, table, rows);
  bool packed = dtype == SHEAF_INT8;
  tensor t, i, o, b;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.table = operand(&t, dtype, table, table_rows, packed ? row_bytes : DIM);
  args.indices = operand(&i, SHEAF_I32, rows, SAMPLES, -1);
  args.out = operand(&o, packed ? SHEAF_F32 : SHEAF_F16, packed ? (void *)out : (void *)halves, SAMPLES, DIM);
  sheaf_embedding_desc desc = describe(SHEAF_LOOKUP, dtype, table_rows, DIM, SAMPLES, 0);
  run_embedding(&desc, &args, SHEAF_OK);
  for (int n = 0; n < SAMPLES; n++)
    for (int d = 0; d < DIM; d++) {
      float got = packed ? out[n][d] : sheaf_f16_to_f32(halves[n][d]);
      if (got != sample_value(rows[n], d)) fail_msg("row %d, column %d: %g", rows[n], d, (double)got);
    }
  desc = describe(SHEAF_BAG_SUM, dtype, table_rows, DIM, SAMPLES, 3);
  args.offsets = operand(&b, SHEAF_I32, offsets, 3, -1);
  args.out = operand(&o, packed ? SHEAF_F32 : SHEAF_F16, packed ? (void *)out : (void *)halves, 3, DIM);
  run_embedding(&desc, &args, SHEAF_OK);
  for (int bag = 0; bag < 3; bag++)
    for (int d = 0; d < DIM; d++) {
      float sum = 0, got = packed ? out[bag][d] : sheaf_f16_to_f32(halves[bag][d]);
      for (int n = offsets[bag]; n < (bag < 2 ? offsets[bag + 1] : SAMPLES); n++) sum += sample_value(rows[n], d);
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
  size_t bytes = (size_t)table_rows * DIM * 2;
  uint16_t *grad = table_of(bytes), *grad_out = malloc(SAMPLES * DIM * sizeof *grad_out);
  int32_t rows[SAMPLES], arg[SAMPLES][DIM];
  assert_non_null(grad_out);
  choose_rows(rows, DIM * 2);
  for (int i = 0; i < SAMPLES * DIM; i++) grad_out[i] = 0x3c00; /* 1 */
  tensor g, i, o, a;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.indices = operand(&i, SHEAF_I32, rows, SAMPLES, -1);
  args.grad_out = operand(&o, SHEAF_F16, grad_out, SAMPLES, DIM);
  args.table_grad = operand(&g, SHEAF_F16, grad, table_rows, DIM);
  sheaf_embedding_desc desc = describe(SHEAF_LOOKUP_BACKWARD, SHEAF_F16, table_rows, DIM, SAMPLES, 0);
  run_embedding(&desc, &args, SHEAF_OK);
  for (int n = 0; n < SAMPLES; n++) {
    int times = 0;
    for (int m = 0; m < SAMPLES; m++) times += rows[m] == rows[n];
    for (int64_t d = 0; d < DIM; d++) assert_int_equal(grad[rows[n] * (int64_t)DIM + d], sheaf_f32_to_f16((float)times));
  }
  /* Bags' maxima: cells past 2^31 are numbered one by one. */
  for (int b = 0; b < SAMPLES; b++)
    for (int d = 0; d < DIM; d++) arg[b][d] = (b + d) % 3 ? rows[b] : -1;
  args.arg = operand(&a, SHEAF_I32, arg, SAMPLES, DIM);
  for (int n = 0; n < SAMPLES; n++) memset(grad + rows[n] * (int64_t)DIM, 0, DIM * 2);
  desc = describe(SHEAF_BAG_MAX_BACKWARD, SHEAF_F16, table_rows, DIM, 0, SAMPLES);
  run_embedding(&desc, &args, SHEAF_OK);
  for (int n = 0; n < SAMPLES; n++)
    for (int d = 0; d < DIM; d++) {
      int times = 0;
      for (int m = 0; m < SAMPLES; m++) times += arg[m][d] == rows[n];
      assert_int_equal(grad[rows[n] * (int64_t)DIM + d], sheaf_f32_to_f16((float)times));
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
  char *memory = reserve(*bytes);
  map_repeatedly(memory, *bytes, content, PERIOD * sizeof *content);
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
  uint16_t *out = table_of(out_bytes);
  tensor t, i, o;
  sheaf_index_report report;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.table = operand(&t, SHEAF_F16, table, KNOWN_ROWS, 1);
  args.indices = operand(&i, SHEAF_I32, indices, many, -1);
  args.out = operand(&o, SHEAF_F16, out, many, 1);
  args.report = &report;
  sheaf_embedding_desc desc = describe(SHEAF_LOOKUP, SHEAF_F16, KNOWN_ROWS, 1, many, 0);
  int64_t bad = two_31 + 77777;
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
    if (out[n] != table[indices[n]]) fail_msg("entry %lld: %04x instead of %04x", (long long)n, out[n], table[indices[n]]);
  assert_int_equal(out[bad], table[7]);
  assert_int_equal(out[many - 1], table[9]);
  sheaf_table_free(out, out_bytes);
  munmap(indices, bytes);
}

/* Bags whose borders lie around 2^31, and one bag of everything. Values are small whole numbers, so that sums are exact. */
static void test_bags_of_more_than_2_31_indices(void **state)
{
  (void)state;
  NEED_MIB(512);
  float table[KNOWN_ROWS], out[4], expected[4] = {0, 0, 0, 0};
  int32_t arg[4];
  size_t bytes;
  for (int r = 0; r < KNOWN_ROWS; r++) table[r] = (float)(r % 5 - 2) * (r ? 1.0f : 0.0f);
  int32_t *indices = map_long_indices(&bytes);
  indices[two_31 - 2] = indices[two_31 + 3] = 999;
  table[999] = 50;
  int64_t starts[4] = {0, two_31 - 2, two_31 + 3, many};
  for (int64_t n = 0, bag = 0; n < many; n++) {
    while (n >= starts[bag + 1]) bag++;
    expected[bag] += table[indices[n]];
  }
  tensor t, i, o, s, a;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.table = operand(&t, SHEAF_F32, table, KNOWN_ROWS, 1);
  args.indices = operand(&i, SHEAF_I32, indices, many, -1);
  args.offsets = operand(&s, SHEAF_I64, starts, 4, -1);
  args.out = operand(&o, SHEAF_F32, out, 4, 1);
  sheaf_embedding_desc desc = describe(SHEAF_BAG_SUM, SHEAF_F32, KNOWN_ROWS, 1, many, 4);
  desc.offset_dtype = SHEAF_I64;
  run_embedding(&desc, &args, SHEAF_OK);
  for (int b = 0; b < 4; b++)
    if (out[b] != expected[b]) fail_msg("bag %d: %g instead of %g", b, (double)out[b], (double)expected[b]);
  desc = describe(SHEAF_BAG_MEAN, SHEAF_F32, KNOWN_ROWS, 1, many, 1);
  desc.offset_dtype = SHEAF_I64;
  args.offsets = operand(&s, SHEAF_I64, starts, 1, -1);
  args.out = operand(&o, SHEAF_F32, out, 1, 1);
  run_embedding(&desc, &args, SHEAF_OK);
  float sum = expected[0] + expected[1] + expected[2], mean = sum / (float)many;
  if (out[0] != mean) fail_msg("the mean of all is %a instead of %a", (double)out[0], (double)mean);
  desc.kind = SHEAF_BAG_MAX;
  indices[two_31 - 2] = indices[two_31 + 3] = 0;
  indices[many - 2] = 999; /* the only place where the maximum can be found */
  args.arg = operand(&a, SHEAF_I32, arg, 1, 1);
  run_embedding(&desc, &args, SHEAF_OK);
  assert_true(out[0] == 50);
  assert_int_equal(arg[0], 999);
  munmap(indices, bytes);
}

/* ---- Segments ---------------------------------------------------------------------------------------------------- */

enum { RUN_BYTES = 2 << 20, RUN = RUN_BYTES / 4, RUNS = 4099, SEGMENTS = 64 };
static const int64_t segment_rows = (int64_t)RUNS * RUN; /* past 2^31 */

/* Sorted ids: runs of 2 MiB of one id each, 64 or so to a segment, with segments 5 and 40 left empty. */
static int32_t run_id(int64_t run)
{
  int32_t id = (int32_t)(run * SEGMENTS / RUNS);
  return id == 5 ? 6 : id == 40 ? 41 : id;
}

static int32_t *map_sorted_ids(void)
{
  int32_t *content = malloc(RUN_BYTES);
  assert_non_null(content);
  char *memory = reserve((size_t)RUNS * RUN_BYTES);
  for (int64_t run = 0, next; run < RUNS; run = next) {
    for (next = run + 1; next < RUNS && run_id(next) == run_id(run);) next++;
    for (int i = 0; i < RUN; i++) content[i] = run_id(run);
    map_repeatedly(memory + run * RUN_BYTES, (size_t)(next - run) * RUN_BYTES, content, RUN_BYTES);
  }
  free(content);
  return (int32_t *)(void *)memory;
}

static sheaf_segment_desc describe_segments(sheaf_segment_kind kind)
{
  sheaf_segment_desc desc = SHEAF_SEGMENT_DESC_INIT;
  desc.kind = kind;
  desc.dtype = SHEAF_F16;
  desc.index_dtype = SHEAF_I32;
  desc.rows = segment_rows;
  desc.dim = 1;
  desc.segments = SEGMENTS;
  desc.bad_index = SHEAF_BAD_INDEX_ERROR;
  return desc;
}

static void test_segment_sums_of_more_than_2_31_rows(void **state)
{
  (void)state;
  NEED_MIB(512);
  enum { WIDE_PERIOD = (64 << 20) / 2 + 13 * 2048 };
  uint16_t *content = calloc(WIDE_PERIOD, sizeof *content), out[SEGMENTS];
  assert_non_null(content);
  for (int64_t n = 0; n < WIDE_PERIOD; n++)
    if ((uint64_t)n * 0x9E3779B97F4A7C15u >> 46 == 0) content[n] = n % 3 ? 0x3c00 : 0xbc00; /* 1 or -1, one in 2^18 */
  size_t bytes = (size_t)segment_rows * 2;
  char *data = reserve(bytes);
  map_repeatedly(data, bytes, content, WIDE_PERIOD * sizeof *content);
  free(content);
  const uint16_t *values = (const uint16_t *)(const void *)data;
  int32_t *ids = map_sorted_ids();
  float expected[SEGMENTS] = {0};
  for (int64_t n = 0; n < segment_rows; n++)
    if (values[n]) expected[ids[n]] += values[n] == 0x3c00 ? 1.0f : -1.0f;
  tensor d, i, o;
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  args.data = operand(&d, SHEAF_F16, data, segment_rows, 1);
  args.ids = operand(&i, SHEAF_I32, ids, segment_rows, -1);
  args.out = operand(&o, SHEAF_F16, out, SEGMENTS, 1);
  sheaf_segment_desc desc = describe_segments(SHEAF_SEGMENT_SUM);
  run_segment(&desc, &args);
  int nonzero = 0;
  for (int s = 0; s < SEGMENTS; s++) {
    nonzero += expected[s] != 0;
    if (out[s] != sheaf_f32_to_f16(expected[s])) fail_msg("segment %d: %04x instead of %g", s, out[s], (double)expected[s]);
  }
  assert_true(nonzero > SEGMENTS / 2);
  munmap(data, bytes);
  munmap(ids, (size_t)RUNS * RUN_BYTES);
}

static void test_segment_backward_to_more_than_2_31_rows(void **state)
{
  (void)state;
  NEED_MIB(4096 + 512);
  uint16_t grad_out[SEGMENTS];
  for (int s = 0; s < SEGMENTS; s++) grad_out[s] = (uint16_t)(0x3c00 + s);
  int32_t *ids = map_sorted_ids();
  size_t bytes = (size_t)segment_rows * 2;
  uint16_t *grad = table_of(bytes);
  tensor g, i, o;
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  args.ids = operand(&i, SHEAF_I32, ids, segment_rows, -1);
  args.grad_out = operand(&o, SHEAF_F16, grad_out, SEGMENTS, 1);
  args.data_grad = operand(&g, SHEAF_F16, grad, segment_rows, 1);
  sheaf_segment_desc desc = describe_segments(SHEAF_SEGMENT_SUM_BACKWARD);
  run_segment(&desc, &args);
  for (int64_t n = 0; n < segment_rows; n++)
    if (grad[n] != grad_out[ids[n]]) fail_msg("row %lld: %04x", (long long)n, grad[n]);
  sheaf_table_free(grad, bytes);
  munmap(ids, (size_t)RUNS * RUN_BYTES);
}

/* Few rows, but so many segments that the output is past 2^31 elements; all of it is written. */
static void test_segments_past_2_31_elements_of_output(void **state)
{
  (void)state;
  NEED_MIB(4096 + 512);
  size_t bytes = (size_t)table_rows * DIM * 2;
  int32_t ids[SAMPLES];
  uint16_t *data = malloc(SAMPLES * DIM * sizeof *data), *out = table_of(bytes);
  assert_non_null(data);
  choose_rows(ids, DIM * 2);
  for (int n = 0; n < SAMPLES; n++)
    for (int d = 0; d < DIM; d++) data[n * DIM + d] = 0x3c00;
  tensor x, i, o;
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  args.data = operand(&x, SHEAF_F16, data, SAMPLES, DIM);
  args.ids = operand(&i, SHEAF_I32, ids, SAMPLES, -1);
  args.out = operand(&o, SHEAF_F16, out, table_rows, DIM);
  sheaf_segment_desc desc = describe_segments(SHEAF_UNSORTED_SEGMENT_SUM);
  desc.rows = SAMPLES;
  desc.dim = DIM;
  desc.segments = table_rows;
  memset(out, 0xFF, bytes);
  run_segment(&desc, &args);
  int64_t total = 0;
  for (int64_t cell = 0; cell < table_rows * DIM; cell++)
    if (out[cell]) total += (int64_t)sheaf_f16_to_f32(out[cell]);
  assert_int_equal(total, SAMPLES * DIM);
  for (int n = 0; n < SAMPLES; n++) {
    int times = 0;
    for (int m = 0; m < SAMPLES; m++) times += ids[m] == ids[n];
    for (int64_t d = 0; d < DIM; d++) assert_int_equal(out[ids[n] * (int64_t)DIM + d], sheaf_f32_to_f16((float)times));
  }
  sheaf_table_free(out, bytes);
  free(data);
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
      cmocka_unit_test(test_segment_sums_of_more_than_2_31_rows),
      cmocka_unit_test(test_segment_backward_to_more_than_2_31_rows),
      cmocka_unit_test(test_segments_past_2_31_elements_of_output),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
