/* gpu_faults.c: bad input on the device: nothing faults, the report says what was wrong, the device goes on working.
 * And what must be refused before anything is launched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu_support.h"
#include "support/environment.h"

enum { ROWS = 50, DIM = 8, BAGS = 40, INDICES = 900 };

/* A bag problem (or its backward) on the device, whose indices and offsets tests spoil. */
typedef struct bags {
  sheaf_embedding_desc desc;
  sheaf_embedding_args args;
  int64_t indices[INDICES], offsets[BAGS + 1];
  DLTensor tensor[6];
  int64_t shape[6][2];
  int tensors;
  float *rows; /* out, or table_grad */
  int64_t *device_indices, *device_offsets;
  sheaf_index_report *report;
} bags;

static sheaf_operand on_device(bags *b, void *data, sheaf_dtype dtype, int64_t rows, int64_t columns)
{
  const int at = b->tensors++;
  b->shape[at][0] = rows;
  b->shape[at][1] = columns;
  b->tensor[at] = (DLTensor){.data = data,
                             .device = gpu,
                             .ndim = columns >= 0 ? 2 : 1,
                             .dtype = sheaf_dtype_to_dl(dtype),
                             .shape = b->shape[at]};
  return (sheaf_operand){&b->tensor[at], 0};
}

static void make_bags(bags *b, sheaf_embedding_kind kind)
{
  static float ones[INDICES * DIM];
  memset(b, 0, sizeof *b);
  test_random random = {42};
  for (int i = 0; i < INDICES * DIM; i++) {
    ones[i] = 1.0F;
  }
  for (int i = 0; i < INDICES; i++) {
    b->indices[i] = random_below(&random, ROWS);
  }
  for (int i = 0; i <= BAGS; i++) {
    b->offsets[i] = (int64_t)i * INDICES / BAGS;
  }
  const bool backward = kind == SHEAF_BAG_SUM_BACKWARD;
  b->desc = (sheaf_embedding_desc)SHEAF_EMBEDDING_DESC_INIT;
  b->desc.device = gpu;
  b->desc.kind = kind;
  b->desc.dtype = SHEAF_F32;
  b->desc.index_dtype = SHEAF_I64;
  b->desc.bag_form = SHEAF_BAGS_OFFSETS_END;
  b->desc.rows = ROWS;
  b->desc.dim = DIM;
  b->desc.indices = INDICES;
  b->desc.bags = BAGS;
  float *table = gpu_alloc(sizeof ones);
  gpu_upload(table, ones, sizeof ones);
  b->rows = gpu_alloc(sizeof ones);
  gpu_must(sheaf_device_fill(gpu, b->rows, 0, sizeof ones, gpu_stream()), "fill");
  b->device_indices = gpu_alloc(sizeof b->indices);
  b->device_offsets = gpu_alloc(sizeof b->offsets);
  b->report = gpu_alloc(sizeof *b->report);
  b->args = (sheaf_embedding_args)SHEAF_EMBEDDING_ARGS_INIT;
  b->args.indices = on_device(b, b->device_indices, SHEAF_I64, INDICES, -1);
  b->args.offsets = on_device(b, b->device_offsets, SHEAF_I64, BAGS + 1, -1);
  if (backward) {
    b->args.grad_out = on_device(b, table, SHEAF_F32, BAGS, DIM);
    b->args.table_grad = on_device(b, b->rows, SHEAF_F32, ROWS, DIM);
  } else {
    b->args.table = on_device(b, table, SHEAF_F32, ROWS, DIM);
    b->args.out = on_device(b, b->rows, SHEAF_F32, BAGS, DIM);
  }
  b->args.report = b->report;
}

static sheaf_index_report run_bags(bags *b)
{
  sheaf_index_report report;
  sheaf_plan *plan = NULL;
  gpu_upload(b->device_indices, b->indices, sizeof b->indices);
  gpu_upload(b->device_offsets, b->offsets, sizeof b->offsets);
  gpu_must(sheaf_embedding_select(&b->desc, NULL, &plan), "select");
  const size_t bytes = sheaf_plan_workspace_size(plan);
  void *workspace = gpu_alloc(bytes);
  gpu_must(sheaf_device_fill(gpu, workspace, 0x5A, bytes, gpu_stream()), "fill");
  gpu_must(sheaf_embedding_run(plan, workspace, bytes, gpu_stream(), &b->args), "run");
  gpu_must(sheaf_stream_wait(gpu, gpu_stream()), "the device after a run");
  gpu_download(&report, b->report, sizeof report);
  sheaf_plan_free(plan);
  return report;
}

/* With rows of ones a bag's sum is its length. */
static void expect_working(void)
{
  bags b;
  float out[BAGS * DIM];
  make_bags(&b, SHEAF_BAG_SUM);
  const sheaf_index_report report = run_bags(&b);
  assert_int_equal(report.count, 0);
  assert_int_equal(report.first_position, -1);
  gpu_download(out, b.rows, sizeof out);
  for (int i = 0; i < BAGS * DIM; i++) {
    assert_true(out[i] == (float)(b.offsets[i / DIM + 1] - b.offsets[i / DIM]));
  }
  gpu_free_all();
}

static void test_bad_indices_are_reported_exactly(void **state)
{
  (void)state;
  static const int64_t bad[] = {-1, ROWS, INT64_MIN, INT64_MAX, (int64_t)1 << 32, -((int64_t)1 << 40)};
  for (int kind = 0; kind < 2; kind++) {
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
      bags b;
      make_bags(&b, kind ? SHEAF_BAG_SUM_BACKWARD : SHEAF_BAG_SUM);
      b.indices[817] = -5;
      b.indices[123] = bad[i];
      b.indices[899] = ROWS + 7;
      const sheaf_index_report report = run_bags(&b);
      assert_int_equal(report.count, 3);
      assert_int_equal(report.first_position, 123);
      assert_int_equal(report.first_value, bad[i]);
      gpu_free_all();
    }
  }
  expect_working();
}

static void test_wrong_offsets_are_clamped_and_reported(void **state)
{
  (void)state;
  static const struct {
    int at;
    int64_t value;
    int reported; /* the offset that is found to be wrong */
  } faults[] = {{0, 5, 0},
                {7, -3, 7},
                {7, 3, 7},
                {9, INDICES + 100, 9},
                {9, INT64_MAX, 9},
                {9, INT64_MIN, 9},
                {BAGS, INDICES - 1, BAGS},
                {BAGS, INDICES + 1, BAGS},
                {1, -1, 1}};
  for (int kind = 0; kind < 2; kind++) {
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
      bags b;
      make_bags(&b, kind ? SHEAF_BAG_SUM_BACKWARD : SHEAF_BAG_SUM);
      b.offsets[faults[i].at] = faults[i].value;
      const sheaf_index_report report = run_bags(&b);
      assert_int_equal(report.count, -1);
      assert_int_equal(report.first_position, faults[i].reported);
      assert_int_equal(report.first_value, faults[i].value);
      gpu_free_all();
    }
  }
  expect_working();
}

static void test_random_offsets_and_indices_never_fault(void **state)
{
  (void)state;
  test_random random = {7};
  for (int round = 0; round < 60; round++) {
    bags b;
    make_bags(&b, round % 2 ? SHEAF_BAG_SUM_BACKWARD : SHEAF_BAG_SUM);
    for (int i = 0; i <= BAGS; i++) {
      const int64_t value = random_below(&random, 2 * INDICES) - INDICES / 2;
      b.offsets[i] = random_chance(&random, 0.1) ? (int64_t)random_bits(&random) : value;
    }
    for (int i = 0; i < INDICES; i += 3) {
      b.indices[i] = (int64_t)random_bits(&random);
    }
    run_bags(&b);
    gpu_free_all();
  }
  expect_working();
}

/* The same where there is enough to do to fill the device: bags overlap, so that far more of them are long, and have more
 * chunks, than the entries could hold. */
static void run_overlapping_bags(int64_t dim, int weighted)
{
  enum { LARGE_BAGS = 20000, LARGE_INDICES = 1 << 20, LARGE_ROWS = 5000 };
  test_random random = {11};
  int64_t *offsets = malloc((LARGE_BAGS + 1) * sizeof *offsets);
  assert_non_null(offsets);
  for (int i = 0; i <= LARGE_BAGS; i++) {
    offsets[i] = i % 2 ? LARGE_INDICES - random_below(&random, 1000) : random_below(&random, 3000);
  }
  bags b;
  memset(&b, 0, sizeof b);
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.device = gpu;
  desc.kind = SHEAF_BAG_SUM;
  desc.dtype = SHEAF_F32;
  desc.index_dtype = SHEAF_I64;
  desc.rows = LARGE_ROWS;
  desc.dim = dim;
  desc.weighted = (uint8_t)weighted;
  desc.indices = LARGE_INDICES;
  desc.bags = LARGE_BAGS;
  desc.bag_form = SHEAF_BAGS_OFFSETS_END;
  void *indices = gpu_alloc((size_t)LARGE_INDICES * 8), *table = gpu_alloc((size_t)(LARGE_ROWS * dim) * 4);
  void *starts = gpu_alloc((LARGE_BAGS + 1) * 8), *out = gpu_alloc((size_t)(LARGE_BAGS * dim) * 4);
  void *weights = weighted ? gpu_alloc((size_t)LARGE_INDICES * 4) : NULL;
  gpu_must(sheaf_device_fill(gpu, indices, 0, (size_t)LARGE_INDICES * 8, gpu_stream()), "fill");
  gpu_must(sheaf_device_fill(gpu, table, 0, (size_t)(LARGE_ROWS * dim) * 4, gpu_stream()), "fill");
  if (weighted) gpu_must(sheaf_device_fill(gpu, weights, 0, (size_t)LARGE_INDICES * 4, gpu_stream()), "fill");
  gpu_upload(starts, offsets, (LARGE_BAGS + 1) * 8);
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.table = on_device(&b, table, SHEAF_F32, LARGE_ROWS, dim);
  args.indices = on_device(&b, indices, SHEAF_I64, LARGE_INDICES, -1);
  args.offsets = on_device(&b, starts, SHEAF_I64, LARGE_BAGS + 1, -1);
  args.out = on_device(&b, out, SHEAF_F32, LARGE_BAGS, dim);
  if (weighted) args.weights = on_device(&b, weights, SHEAF_F32, LARGE_INDICES, -1);
  sheaf_plan *plan = NULL;
  gpu_must(sheaf_embedding_select(&desc, NULL, &plan), "select");
  const size_t bytes = sheaf_plan_workspace_size(plan);
  void *workspace = gpu_alloc(bytes);
  gpu_must(sheaf_device_fill(gpu, workspace, 0x5A, bytes, gpu_stream()), "fill"); /* what a reader of it would follow */
  gpu_must(sheaf_embedding_run(plan, workspace, bytes, gpu_stream(), &args), "run");
  gpu_must(sheaf_stream_wait(gpu, gpu_stream()), "the device after a run");
  sheaf_plan_free(plan);
  gpu_free_all();
  free(offsets);
}

/* Usual problems, and those whose kernels are general. */
static void test_overlapping_bags_of_large_problems_never_fault(void **state)
{
  (void)state;
  run_overlapping_bags(64, 0);
  run_overlapping_bags(64, 1);
  run_overlapping_bags(3, 0);
  expect_working();
}

/* A segment problem of every kind whose ids are in no order, though sorted kinds want one. */
static void run_segments(sheaf_segment_kind kind, const int64_t *ids, int64_t count, sheaf_index_report *report)
{
  enum { SEGMENTS = 30, MOST = 4000 };
  static float values[MOST * DIM];
  bags b;
  memset(&b, 0, sizeof b);
  const bool backward = problem_is_backward(SHEAF_CATEGORY_SEGMENT, (int)kind);
  sheaf_segment_desc desc = SHEAF_SEGMENT_DESC_INIT;
  desc.device = gpu;
  desc.kind = kind;
  desc.dtype = SHEAF_F32;
  desc.index_dtype = SHEAF_I64;
  desc.rows = count;
  desc.dim = DIM;
  desc.segments = SEGMENTS;
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  int64_t *device_ids = gpu_alloc((size_t)count * 8);
  gpu_upload(device_ids, ids, (size_t)count * 8);
  void *memory[4];
  for (int i = 0; i < 4; i++) {
    memory[i] = gpu_alloc(sizeof values);
    gpu_upload(memory[i], values, sizeof values);
  }
  args.ids = on_device(&b, device_ids, SHEAF_I64, count, -1);
  args.data = on_device(&b, memory[0], SHEAF_F32, count, DIM);
  if (backward) {
    args.grad_out = on_device(&b, memory[1], SHEAF_F32, SEGMENTS, DIM);
    args.data_grad = on_device(&b, memory[2], SHEAF_F32, count, DIM);
  } else {
    args.out = on_device(&b, memory[1], SHEAF_F32, SEGMENTS, DIM);
  }
  args.report = gpu_alloc(sizeof *report);
  sheaf_plan *plan = NULL;
  gpu_must(sheaf_segment_select(&desc, NULL, &plan), "select");
  const size_t bytes = sheaf_plan_workspace_size(plan);
  void *workspace = gpu_alloc(bytes);
  gpu_must(sheaf_device_fill(gpu, workspace, 0x5A, bytes, gpu_stream()), "fill");
  gpu_must(sheaf_segment_run(plan, workspace, bytes, gpu_stream(), &args), "run");
  gpu_must(sheaf_stream_wait(gpu, gpu_stream()), "the device after a run");
  gpu_download(report, args.report, sizeof *report);
  sheaf_plan_free(plan);
  gpu_free_all();
}

static void test_ids_out_of_order_are_reported(void **state)
{
  (void)state;
  enum { COUNT = 4000 };
  static int64_t ids[COUNT];
  test_random random = {3};
  for (int kind = 0; kind < 20; kind++) {
    const problem_spec spec = {.category = SHEAF_CATEGORY_SEGMENT, .kind = kind};
    sheaf_index_report report;
    for (int i = 0; i < COUNT; i++) {
      ids[i] = i * 30 / COUNT;
    }
    ids[1234] = 2; /* those around it are 9 */
    ids[3000] = 0;
    run_segments((sheaf_segment_kind)kind, ids, COUNT, &report);
    if (problem_is_sorted(&spec)) {
      assert_int_equal(report.count, -1);
      assert_int_equal(report.first_position, 1234);
      assert_int_equal(report.first_value, 2);
    } else {
      assert_int_equal(report.count, 0);
    }
    for (int i = 0; i < COUNT; i++) {
      ids[i] = random_chance(&random, 0.1) ? (int64_t)random_bits(&random) : random_below(&random, 40) - 5;
    }
    run_segments((sheaf_segment_kind)kind, ids, COUNT, &report);
  }
  expect_working();
}

static void test_a_grouping_of_another_problem_changes_nothing(void **state)
{
  (void)state;
  bags b;
  make_bags(&b, SHEAF_BAG_SUM_BACKWARD);
  gpu_upload(b.device_indices, b.indices, sizeof b.indices);
  gpu_upload(b.device_offsets, b.offsets, sizeof b.offsets);
  sheaf_plan *other = NULL;
  sheaf_plan *plan = NULL;
  sheaf_embedding_desc desc = b.desc;
  desc.has_padding = 1;
  gpu_must(sheaf_embedding_select(&desc, NULL, &other), "select");
  const size_t grouping_bytes = sheaf_grouping_size(other);
  void *grouping = gpu_alloc(grouping_bytes);
  gpu_must(sheaf_embedding_grouping_build(other, grouping, grouping_bytes, gpu_stream(), &b.args), "grouping");
  b.desc.grouping_given = 1;
  gpu_must(sheaf_embedding_select(&b.desc, NULL, &plan), "select");
  b.args.grouping = grouping;
  b.args.grouping_bytes = grouping_bytes;
  const size_t bytes = sheaf_plan_workspace_size(plan);
  void *workspace = gpu_alloc(bytes);
  gpu_must(sheaf_embedding_run(plan, workspace, bytes, gpu_stream(), &b.args), "run");
  gpu_must(sheaf_stream_wait(gpu, gpu_stream()), "the device after a run");
  float grad[ROWS * DIM];
  gpu_download(grad, b.rows, sizeof grad);
  for (int i = 0; i < ROWS * DIM; i++) {
    assert_true(grad[i] == 0.0F);
  }
  sheaf_plan_free(other);
  sheaf_plan_free(plan);
  gpu_free_all();
  expect_working();
}

static void test_operands_elsewhere_and_absent_devices_are_refused(void **state)
{
  (void)state;
  bags b;
  sheaf_plan *plan = NULL;
  make_bags(&b, SHEAF_BAG_SUM);
  gpu_must(sheaf_embedding_select(&b.desc, NULL, &plan), "select");
  assert_int_equal(sheaf_embedding_can_implement(plan, &b.args), SHEAF_OK);
  DLTensor on_cpu = *b.args.table.tensor;
  on_cpu.device = (DLDevice){kDLCPU, 0};
  b.args.table.tensor = &on_cpu;
  assert_int_equal(sheaf_embedding_can_implement(plan, &b.args), SHEAF_INVALID_PROBLEM);
  assert_string_equal(sheaf_last_error_info().operand, "table");
  sheaf_plan_free(plan);
  b.desc.device.device_id = 4711;
  assert_int_equal(sheaf_embedding_select(&b.desc, NULL, &plan), SHEAF_UNAVAILABLE);
  assert_non_null(strstr(sheaf_last_error(), "4711"));
  gpu_free_all();
}

static void test_preferences_are_honoured(void **state)
{
  (void)state;
  bags b;
  sheaf_plan *plan = NULL;
  sheaf_preference wish = SHEAF_PREFERENCE_INIT;
  make_bags(&b, SHEAF_BAG_SUM_BACKWARD);
  wish.backend = SHEAF_BACKEND_BESPOKE;
  assert_int_equal(sheaf_embedding_select(&b.desc, &wish, &plan), SHEAF_UNSUPPORTED);
  wish.backend = SHEAF_BACKEND_CUB;
  assert_int_equal(sheaf_embedding_select(&b.desc, &wish, &plan), SHEAF_OK);
  assert_int_equal(sheaf_plan_sku(plan).backend, SHEAF_BACKEND_CUB);
  wish.kernel = sheaf_plan_sku(plan).name;
  char name[64];
  snprintf(name, sizeof name, "%s", sheaf_plan_sku(plan).name);
  wish.kernel = name;
  sheaf_plan_free(plan);
  assert_int_equal(sheaf_embedding_select(&b.desc, &wish, &plan), SHEAF_OK);
  sheaf_plan_free(plan);
  wish.kernel = "bag_sum_backward.f32.i64/cpu.scalar";
  assert_int_equal(sheaf_embedding_select(&b.desc, &wish, &plan), SHEAF_UNSUPPORTED);
  wish.kernel = NULL;
  wish.max_workspace = 64;
  assert_int_equal(sheaf_embedding_select(&b.desc, &wish, &plan), SHEAF_UNSUPPORTED);
  gpu_free_all();
}

int main(int argc, char **argv)
{
  (void)argc;
  environment_prepare(argv);
  gpu_require();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bad_indices_are_reported_exactly),
      cmocka_unit_test(test_wrong_offsets_are_clamped_and_reported),
      cmocka_unit_test(test_random_offsets_and_indices_never_fault),
      cmocka_unit_test(test_overlapping_bags_of_large_problems_never_fault),
      cmocka_unit_test(test_ids_out_of_order_are_reported),
      cmocka_unit_test(test_a_grouping_of_another_problem_changes_nothing),
      cmocka_unit_test(test_operands_elsewhere_and_absent_devices_are_refused),
      cmocka_unit_test(test_preferences_are_honoured),
  };
  return cmocka_run_group_tests_name("gpu_faults", tests, NULL, NULL);
}
