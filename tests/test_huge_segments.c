/* test_huge_segments.c: segments of more than 2^31 rows, and outputs past 2^31 elements. Only with SHEAF_TEST_HUGE=1.
 *
 * As in test_huge.c, inputs of such length are mapped rather than stored. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "support/large.h"
#include "support/refusals.h"

static void run_segment(const sheaf_segment_desc *desc, const sheaf_segment_args *args)
{
  sheaf_plan *plan = segment_plan(desc, NULL);
  size_t bytes = sheaf_plan_workspace_size(plan);
  void *workspace = large_table(bytes);
  if (sheaf_segment_run(plan, workspace, bytes, NULL, args) != SHEAF_OK) fail_msg("%s", sheaf_last_error());
  sheaf_table_free(workspace, bytes);
  sheaf_plan_free(plan);
}

enum { RUN = 1 << 19, RUNS = 4099, SEGMENTS = 64 };
static const int64_t segment_rows = (int64_t)RUNS * RUN; /* past 2^31 */

/* Sorted ids: runs of 2^19 of one id each, 64 or so to a segment, with segments 5 and 40 left empty. */
static int32_t run_id(int64_t run)
{
  int32_t id = (int32_t)(run * SEGMENTS / RUNS);
  return id == 5 ? 6 : id == 40 ? 41 : id;
}

/* Ids of `size` bytes each. */
static void *map_sorted_ids(int size)
{
  size_t run_bytes = (size_t)RUN * (size_t)size;
  char *content = malloc(run_bytes), *memory = large_reserve(RUNS * run_bytes);
  assert_non_null(content);
  for (int64_t run = 0, next; run < RUNS; run = next) {
    for (next = run + 1; next < RUNS && run_id(next) == run_id(run);) next++;
    for (int i = 0; i < RUN; i++) {
      if (size == 8)
        ((int64_t *)(void *)content)[i] = run_id(run);
      else
        ((int32_t *)(void *)content)[i] = run_id(run);
    }
    large_map_repeatedly(memory + (size_t)run * run_bytes, (size_t)(next - run) * run_bytes, content, run_bytes);
  }
  free(content);
  return memory;
}

static void unmap_ids(void *ids, int size) { munmap(ids, (size_t)segment_rows * (size_t)size); }

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
  char *data = large_reserve(bytes);
  large_map_repeatedly(data, bytes, content, WIDE_PERIOD * sizeof *content);
  free(content);
  const uint16_t *values = (const uint16_t *)(const void *)data;
  int32_t *ids = map_sorted_ids(4);
  float expected[SEGMENTS] = {0};
  for (int64_t n = 0; n < segment_rows; n++)
    if (values[n]) expected[ids[n]] += values[n] == 0x3c00 ? 1.0f : -1.0f;
  large_tensor d, i, o;
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  args.data = large_operand(&d, SHEAF_F16, data, segment_rows, 1);
  args.ids = large_operand(&i, SHEAF_I32, ids, segment_rows, -1);
  args.out = large_operand(&o, SHEAF_F16, out, SEGMENTS, 1);
  sheaf_segment_desc desc = describe_segments(SHEAF_SEGMENT_SUM);
  run_segment(&desc, &args);
  int nonzero = 0;
  for (int s = 0; s < SEGMENTS; s++) {
    nonzero += expected[s] != 0;
    if (out[s] != sheaf_f32_to_f16(expected[s]))
      fail_msg("segment %d: %04x instead of %g", s, out[s], (double)expected[s]);
  }
  assert_true(nonzero > SEGMENTS / 2);
  munmap(data, bytes);
  unmap_ids(ids, 4);
}

static void test_segment_backward_to_more_than_2_31_rows(void **state)
{
  (void)state;
  NEED_MIB(4096 + 512);
  uint16_t grad_out[SEGMENTS];
  for (int s = 0; s < SEGMENTS; s++) grad_out[s] = (uint16_t)(0x3c00 + s);
  int32_t *ids = map_sorted_ids(4);
  size_t bytes = (size_t)segment_rows * 2;
  uint16_t *grad = large_table(bytes);
  large_tensor g, i, o;
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  args.ids = large_operand(&i, SHEAF_I32, ids, segment_rows, -1);
  args.grad_out = large_operand(&o, SHEAF_F16, grad_out, SEGMENTS, 1);
  args.data_grad = large_operand(&g, SHEAF_F16, grad, segment_rows, 1);
  sheaf_segment_desc desc = describe_segments(SHEAF_SEGMENT_SUM_BACKWARD);
  run_segment(&desc, &args);
  for (int64_t n = 0; n < segment_rows; n++)
    if (grad[n] != grad_out[ids[n]]) fail_msg("row %lld: %04x", (long long)n, grad[n]);
  sheaf_table_free(grad, bytes);
  unmap_ids(ids, 4);
}

/* Zeros, which take no memory until they are written, with one larger value in the last row of every segment that has
 * rows; *last is where. */
static uint16_t *make_maxima(int64_t last[SEGMENTS])
{
  uint16_t *data = large_table((size_t)segment_rows * 2);
  for (int s = 0; s < SEGMENTS; s++) last[s] = -1;
  for (int64_t run = 0; run < RUNS; run++) last[run_id(run)] = (run + 1) * RUN - 1;
  for (int s = 0; s < SEGMENTS; s++)
    if (last[s] >= 0) data[last[s]] = 0x4000;
  return data;
}

static void test_positions_of_segment_maxima_past_2_31(void **state)
{
  (void)state;
  NEED_MIB(1024);
  int64_t last[SEGMENTS], arg[SEGMENTS];
  uint16_t out[SEGMENTS];
  uint16_t *data = make_maxima(last);
  void *ids = map_sorted_ids(8);
  large_tensor d, i, o, a;
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  args.data = large_operand(&d, SHEAF_F16, data, segment_rows, 1);
  args.ids = large_operand(&i, SHEAF_I64, ids, segment_rows, -1);
  args.out = large_operand(&o, SHEAF_F16, out, SEGMENTS, 1);
  args.arg = large_operand(&a, SHEAF_I64, arg, SEGMENTS, 1);
  sheaf_segment_desc desc = describe_segments(SHEAF_SEGMENT_MAX);
  desc.index_dtype = SHEAF_I64;
  run_segment(&desc, &args);
  assert_true(last[SEGMENTS - 1] > TWO_31);
  for (int s = 0; s < SEGMENTS; s++) {
    assert_int_equal(arg[s], last[s]);
    assert_int_equal(out[s], last[s] < 0 ? 0 : 0x4000);
  }
  unmap_ids(ids, 8);
  sheaf_table_free(data, (size_t)segment_rows * 2);
}

/* Ids of i32, whose positions need more. */
static void test_gradients_of_segment_maxima_past_2_31(void **state)
{
  (void)state;
  NEED_MIB(4096 + 1024);
  int64_t last[SEGMENTS];
  uint16_t grad_out[SEGMENTS];
  uint16_t *data = make_maxima(last);
  int32_t *ids = map_sorted_ids(4);
  size_t bytes = (size_t)segment_rows * 2;
  uint16_t *grad = large_table(bytes);
  for (int s = 0; s < SEGMENTS; s++) grad_out[s] = (uint16_t)(0x3c00 + s);
  large_tensor d, i, o, g;
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  args.data = large_operand(&d, SHEAF_F16, data, segment_rows, 1);
  args.ids = large_operand(&i, SHEAF_I32, ids, segment_rows, -1);
  args.grad_out = large_operand(&o, SHEAF_F16, grad_out, SEGMENTS, 1);
  args.data_grad = large_operand(&g, SHEAF_F16, grad, segment_rows, 1);
  sheaf_segment_desc desc = describe_segments(SHEAF_SEGMENT_MAX_BACKWARD);
  run_segment(&desc, &args);
  int64_t given = 0;
  for (int64_t n = 0; n < segment_rows; n++) given += grad[n] != 0;
  for (int s = 0; s < SEGMENTS; s++)
    if (last[s] >= 0) {
      assert_int_equal(grad[last[s]], grad_out[s]);
      given--;
    }
  assert_int_equal(given, 0);
  sheaf_table_free(grad, bytes);
  unmap_ids(ids, 4);
  sheaf_table_free(data, bytes);
}

/* Few rows, but so many segments that the output is past 2^31 elements; all of it is written. */
static void test_segments_past_2_31_elements_of_output(void **state)
{
  (void)state;
  NEED_MIB(4096 + 512);
  size_t bytes = (size_t)LARGE_ROWS * LARGE_DIM * 2;
  int32_t ids[LARGE_SAMPLES];
  uint16_t *data = malloc(LARGE_SAMPLES * LARGE_DIM * sizeof *data), *out = large_table(bytes);
  assert_non_null(data);
  large_choose_rows(ids, LARGE_DIM * 2);
  for (int n = 0; n < LARGE_SAMPLES; n++)
    for (int d = 0; d < LARGE_DIM; d++) data[n * LARGE_DIM + d] = 0x3c00;
  large_tensor x, i, o;
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  args.data = large_operand(&x, SHEAF_F16, data, LARGE_SAMPLES, LARGE_DIM);
  args.ids = large_operand(&i, SHEAF_I32, ids, LARGE_SAMPLES, -1);
  args.out = large_operand(&o, SHEAF_F16, out, LARGE_ROWS, LARGE_DIM);
  sheaf_segment_desc desc = describe_segments(SHEAF_UNSORTED_SEGMENT_SUM);
  desc.rows = LARGE_SAMPLES;
  desc.dim = LARGE_DIM;
  desc.segments = LARGE_ROWS;
  memset(out, 0xFF, bytes);
  run_segment(&desc, &args);
  int64_t total = 0;
  for (int64_t cell = 0; cell < LARGE_ROWS * LARGE_DIM; cell++)
    if (out[cell]) total += (int64_t)sheaf_f16_to_f32(out[cell]);
  assert_int_equal(total, LARGE_SAMPLES * LARGE_DIM);
  for (int n = 0; n < LARGE_SAMPLES; n++) {
    int times = 0;
    for (int m = 0; m < LARGE_SAMPLES; m++) times += ids[m] == ids[n];
    for (int64_t d = 0; d < LARGE_DIM; d++)
      assert_int_equal(out[ids[n] * (int64_t)LARGE_DIM + d], sheaf_f32_to_f16((float)times));
  }
  sheaf_table_free(out, bytes);
  free(data);
}

/* An argument is a pattern of tests to run, such as '*maxima*'. */
int main(int argc, char **argv)
{
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_segment_sums_of_more_than_2_31_rows),
      cmocka_unit_test(test_segment_backward_to_more_than_2_31_rows),
      cmocka_unit_test(test_positions_of_segment_maxima_past_2_31),
      cmocka_unit_test(test_gradients_of_segment_maxima_past_2_31),
      cmocka_unit_test(test_segments_past_2_31_elements_of_output),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
