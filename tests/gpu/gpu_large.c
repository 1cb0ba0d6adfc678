/* gpu_large.c: large problems on the device: the CPU's bits for many entries, skewed and not; and tables, entries and
 * rows past 2^31. Takes 40 GB of device and 20 GB of host memory. */
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
#include "support/problem_run.h"

/* ---- The CPU's bits ---------------------------------------------------------------------------------------------- */

static void check_against_cpu(const problem_spec *spec)
{
  problem *p = problem_make(spec);
  problem_outputs *expected = problem_outputs_make(p);
  problem_outputs *got = problem_outputs_make(p);
  const problem_way way = {NULL, 0, false};
  assert_int_equal(problem_run(p, expected, &way, NULL), SHEAF_OK);
  for (int i = 0; i < 2; i++) { /* twice: the same bits in every run */
    problem_outputs_reset(p, got);
    assert_int_equal(gpu_run(p, got, GPU_PLAIN, NULL), SHEAF_OK);
    assert_true(problem_outputs_equal(p, expected, got, "device against CPU"));
  }
  problem_outputs_free(expected);
  problem_outputs_free(got);
  problem_free(p);
}

static void test_embedding_kinds_have_the_bits_of_the_cpu(void **state)
{
  (void)state;
  static const problem_spread spreads[] = {SPREAD_UNIFORM, SPREAD_ZIPF, SPREAD_HOT, SPREAD_ONE_ROW};
  for (int kind = 0; kind < 8; kind++) {
    for (int i = 0; i < 4; i++) {
      problem_spec spec = {.category = SHEAF_CATEGORY_EMBEDDING,
                           .kind = kind,
                           .dtype = i % 2 ? SHEAF_F16 : SHEAF_F32,
                           .index_dtype = SHEAF_I64,
                           .count = 700000,
                           .dim = 16,
                           .rows = 50000,
                           .bags = i % 2 ? 300 : 40000,
                           .longest_bag = i == 1 ? 300000 : 0,
                           .spread = spreads[i],
                           .weighted = kind >= SHEAF_BAG_SUM && kind <= SHEAF_BAG_MEAN_BACKWARD && i >= 2,
                           .positive_weights = true,
                           .want_arg = true,
                           .want_table_grad = true,
                           .want_weights_grad = true,
                           .want_report = true,
                           .seed = 77 + (uint64_t)i};
      check_against_cpu(&spec);
    }
  }
}

/* Rows of grad_out that come again and again and are more than the device's cache holds: columns are taken in parts. */
static void test_gradients_of_more_rows_than_the_cache_holds(void **state)
{
  (void)state;
  for (int i = 0; i < 6; i++) {
    problem_spec spec = {.category = SHEAF_CATEGORY_EMBEDDING,
                         .kind = i % 3 == 2 ? SHEAF_BAG_MEAN_BACKWARD : SHEAF_BAG_SUM_BACKWARD,
                         .dtype = i % 2 ? SHEAF_F64 : SHEAF_F32,
                         .index_dtype = SHEAF_I64,
                         .count = 600000,
                         .dim = i % 2 ? 68 : 136,
                         .rows = i < 3 ? 20000 : 400000,
                         .bags = 120000,
                         .spread = i % 3 ? SPREAD_ZIPF : SPREAD_UNIFORM,
                         .want_table_grad = true,
                         .seed = 31 + (uint64_t)i};
    check_against_cpu(&spec);
  }
}

/* So many bags, nearly all of them empty, that the sort looks for each entry's bag instead of marking where bags begin. */
static void test_gradients_of_many_empty_bags(void **state)
{
  (void)state;
  for (int i = 0; i < 2; i++) {
    problem_spec spec = {.category = SHEAF_CATEGORY_EMBEDDING,
                         .kind = SHEAF_BAG_SUM_BACKWARD,
                         .dtype = SHEAF_F32,
                         .index_dtype = i ? SHEAF_I32 : SHEAF_I64,
                         .count = 200000,
                         .dim = 4,
                         .rows = 30000,
                         .bags = 2000000,
                         .spread = i ? SPREAD_ZIPF : SPREAD_UNIFORM,
                         .want_table_grad = true,
                         .seed = 91 + (uint64_t)i};
    check_against_cpu(&spec);
  }
}

static void test_segment_kinds_have_the_bits_of_the_cpu(void **state)
{
  (void)state;
  for (int kind = 0; kind < 20; kind++) {
    for (int i = 0; i < 2; i++) {
      problem_spec spec = {.category = SHEAF_CATEGORY_SEGMENT,
                           .kind = kind,
                           .dtype = SHEAF_F32,
                           .index_dtype = i ? SHEAF_I32 : SHEAF_I64,
                           .count = 600000,
                           .dim = 16,
                           .rows = i ? 40000 : 5,
                           .spread = i ? SPREAD_ZIPF : SPREAD_UNIFORM,
                           .values = VALUES_NEAR_ONE,
                           .want_arg = true,
                           .want_report = true,
                           .split_ties = i == 1 && (kind == SHEAF_SEGMENT_MAX_BACKWARD),
                           .seed = 5 + (uint64_t)i};
      check_against_cpu(&spec);
    }
  }
}

/* ---- Graphs with other inputs ------------------------------------------------------------------------------------ */

/* What one launch leaves behind, in caches or in the workspace, must not show in the next, whose inputs are others. */
static void check_replay(problem_spec spec)
{
  problem *first = problem_make(&spec);
  spec.seed += 1000;
  problem *second = problem_make(&spec);
  problem_outputs *expected = problem_outputs_make(second), *got = problem_outputs_make(second);
  const problem_way way = {NULL, 0, false};
  assert_int_equal(problem_run(second, expected, &way, NULL), SHEAF_OK);
  assert_int_equal(gpu_replay(first, second, got), SHEAF_OK);
  assert_true(problem_outputs_equal(second, expected, got, "replayed with other inputs"));
  problem_outputs_free(expected);
  problem_outputs_free(got);
  problem_free(first);
  problem_free(second);
}

/* Gradients of more entries than one kernel sorts: one pass over the keys and four, rows touched and added, bags by offsets
 * and of one length, several tables, operands off their alignment. */
static void test_sorts_replay_with_other_inputs(void **state)
{
  (void)state;
  static const struct {
    int kind;
    int64_t rows, bags, batch, shift;
    sheaf_bag_form form;
    sheaf_grad_write write;
    problem_spread spread;
  } cases[] = {
      {SHEAF_BAG_SUM_BACKWARD, 200, 5000, 0, 0, SHEAF_BAGS_OFFSETS, SHEAF_GRAD_ACCUMULATE, SPREAD_ZIPF},
      {SHEAF_BAG_SUM_BACKWARD, 200, 5000, 0, 1, SHEAF_BAGS_OFFSETS_END, SHEAF_GRAD_TOUCHED, SPREAD_UNIFORM},
      {SHEAF_BAG_SUM_BACKWARD, 60000, 3000, 0, 1, SHEAF_BAGS_MATRIX, SHEAF_GRAD_TOUCHED, SPREAD_ZIPF},
      {SHEAF_BAG_SUM_BACKWARD, 60000, 3000, 0, 0, SHEAF_BAGS_MATRIX, SHEAF_GRAD_OVERWRITE, SPREAD_HOT},
      {SHEAF_BAG_SUM_BACKWARD, 17000000, 5000, 0, 0, SHEAF_BAGS_OFFSETS, SHEAF_GRAD_TOUCHED, SPREAD_UNIFORM},
      {SHEAF_LOOKUP_BACKWARD, 17000000, 0, 0, 1, SHEAF_BAGS_OFFSETS, SHEAF_GRAD_TOUCHED, SPREAD_ZIPF},
      {SHEAF_LOOKUP_BACKWARD, 3000, 0, 3, 0, SHEAF_BAGS_OFFSETS, SHEAF_GRAD_TOUCHED, SPREAD_ZIPF},
      {SHEAF_BAG_SUM_BACKWARD, 3000, 700, 3, 1, SHEAF_BAGS_OFFSETS, SHEAF_GRAD_ACCUMULATE, SPREAD_UNIFORM},
      {SHEAF_BAG_MEAN_BACKWARD, 3000, 700, 3, 0, SHEAF_BAGS_MATRIX, SHEAF_GRAD_TOUCHED, SPREAD_HOT},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    problem_spec spec = {.category = SHEAF_CATEGORY_EMBEDDING,
                         .kind = cases[i].kind,
                         .dtype = SHEAF_F32,
                         .index_dtype = i % 2 ? SHEAF_I32 : SHEAF_I64,
                         .count = 210000,
                         .dim = cases[i].rows > 1000000 ? 1 : 8,
                         .rows = cases[i].rows,
                         .bags = cases[i].bags,
                         .bag_form = cases[i].form,
                         .grad_write = cases[i].write,
                         .spread = cases[i].spread,
                         .weighted = cases[i].kind == SHEAF_BAG_MEAN_BACKWARD,
                         .positive_weights = true,
                         .batch = cases[i].batch,
                         .shift = cases[i].shift,
                         .want_table_grad = true,
                         .seed = 400 + i};
    check_replay(spec);
  }
}

/* Bags and segments, large and small, whose kernels begin before the one in front of them has ended. */
static void test_reductions_replay_with_other_inputs(void **state)
{
  (void)state;
  static const struct {
    sheaf_category category;
    int kind;
    int64_t count, rows, bags, longest;
    sheaf_bag_form form;
  } cases[] = {
      {SHEAF_CATEGORY_EMBEDDING, SHEAF_BAG_SUM, 150000, 50000, 150000, 0, SHEAF_BAGS_MATRIX},
      {SHEAF_CATEGORY_EMBEDDING, SHEAF_BAG_SUM, 150000, 50000, 150000, 5000, SHEAF_BAGS_OFFSETS},
      {SHEAF_CATEGORY_EMBEDDING, SHEAF_BAG_SUM, 40000, 50000, 300, 9000, SHEAF_BAGS_OFFSETS},
      {SHEAF_CATEGORY_EMBEDDING, SHEAF_BAG_SUM, 6000, 50000, 90, 0, SHEAF_BAGS_OFFSETS},
      {SHEAF_CATEGORY_EMBEDDING, SHEAF_BAG_SUM, 700000, 50000, 3000, 90000, SHEAF_BAGS_OFFSETS},
      {SHEAF_CATEGORY_EMBEDDING, SHEAF_BAG_MAX, 700000, 50000, 3000, 90000, SHEAF_BAGS_OFFSETS},
      {SHEAF_CATEGORY_SEGMENT, SHEAF_SEGMENT_SUM, 700000, 40000, 0, 0, SHEAF_BAGS_OFFSETS},
      {SHEAF_CATEGORY_SEGMENT, SHEAF_SEGMENT_MAX, 700000, 40000, 0, 0, SHEAF_BAGS_OFFSETS},
      {SHEAF_CATEGORY_SEGMENT, SHEAF_UNSORTED_SEGMENT_SUM, 700000, 40000, 0, 0, SHEAF_BAGS_OFFSETS},
      {SHEAF_CATEGORY_SEGMENT, SHEAF_UNSORTED_SEGMENT_MIN, 700000, 40000, 0, 0, SHEAF_BAGS_OFFSETS},
  };
  for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
    const size_t k = i / 2;
    problem_spec spec = {.category = cases[k].category,
                         .kind = cases[k].kind,
                         .dtype = SHEAF_F32,
                         .index_dtype = i % 2 ? SHEAF_I32 : SHEAF_I64,
                         .count = cases[k].count,
                         .dim = i % 2 ? 32 : 64,
                         .rows = cases[k].rows,
                         .bags = cases[k].bags,
                         .bag_form = cases[k].form,
                         .longest_bag = cases[k].longest,
                         .spread = SPREAD_ZIPF,
                         .want_arg = i % 2 == 0,
                         .seed = 500 + i};
    check_replay(spec);
  }
}

/* ---- Past 2^31 --------------------------------------------------------------------------------------------------- */

static DLTensor tensors[8];
static int64_t shapes[8][2];
static int tensor_count;

static sheaf_operand on_device(void *data, sheaf_dtype dtype, int64_t rows, int64_t columns)
{
  const int at = tensor_count++;
  shapes[at][0] = rows;
  shapes[at][1] = columns;
  tensors[at] = (DLTensor){.data = data,
                           .device = gpu,
                           .ndim = columns >= 0 ? 2 : 1,
                           .dtype = sheaf_dtype_to_dl(dtype),
                           .shape = shapes[at]};
  return (sheaf_operand){&tensors[at], 0};
}

/* `count` floats that are each the number of their position's block of 2^20, which f32 holds exactly. */
static float *numbered(int64_t count)
{
  enum { BLOCK = 1 << 20 };
  float *device = gpu_alloc((size_t)count * 4);
  float *host = malloc((size_t)BLOCK * 4);
  assert_non_null(host);
  for (int64_t at = 0; at < count; at += BLOCK) {
    for (int i = 0; i < BLOCK; i++) {
      host[i] = (float)(at / BLOCK);
    }
    gpu_upload(device + at, host, (size_t)(count - at < BLOCK ? count - at : BLOCK) * 4);
  }
  free(host);
  return device;
}

static void run_embedding(const sheaf_embedding_desc *desc, const sheaf_embedding_args *args)
{
  sheaf_plan *plan = NULL;
  gpu_must(sheaf_embedding_select(desc, NULL, &plan), "select");
  const size_t bytes = sheaf_plan_workspace_size(plan);
  gpu_must(sheaf_embedding_run(plan, gpu_alloc(bytes), bytes, gpu_stream(), args), "run");
  gpu_must(sheaf_stream_wait(gpu, gpu_stream()), "wait");
  sheaf_plan_free(plan);
}

static void test_tables_past_two_to_the_31_elements(void **state)
{
  (void)state;
  enum { DIM = 64, INDICES = 4096, BAGS = 64 };
  const int64_t rows = 40000000; /* 2.56e9 elements */
  static int64_t indices[INDICES];
  static float out[INDICES * DIM];
  float *table = numbered(rows * DIM);
  test_random random = {9};
  for (int i = 0; i < INDICES; i++) {
    indices[i] = rows - 1 - random_below(&random, i % 2 ? rows : 1000);
  }
  tensor_count = 0;
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.device = gpu;
  desc.kind = SHEAF_LOOKUP;
  desc.dtype = SHEAF_F32;
  desc.index_dtype = SHEAF_I64;
  desc.rows = rows;
  desc.dim = DIM;
  desc.indices = INDICES;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  void *device_indices = gpu_alloc(sizeof indices);
  void *device_out = gpu_alloc(sizeof out);
  gpu_upload(device_indices, indices, sizeof indices);
  args.table = on_device(table, SHEAF_F32, rows, DIM);
  args.indices = on_device(device_indices, SHEAF_I64, INDICES, -1);
  args.out = on_device(device_out, SHEAF_F32, INDICES, DIM);
  run_embedding(&desc, &args);
  gpu_download(out, device_out, sizeof out);
  for (int i = 0; i < INDICES; i++) {
    assert_true(out[i * DIM] == (float)(indices[i] * DIM >> 20));
  }
  /* The same rows as bags, and their gradient: each row gets 1 for every time it is named. */
  desc.kind = SHEAF_BAG_SUM;
  desc.bags = BAGS;
  desc.bag_form = SHEAF_BAGS_MATRIX;
  args.indices = on_device(device_indices, SHEAF_I64, BAGS, INDICES / BAGS);
  args.out = on_device(device_out, SHEAF_F32, BAGS, DIM);
  run_embedding(&desc, &args);
  gpu_download(out, device_out, (size_t)BAGS * DIM * 4);
  for (int b = 0; b < BAGS; b++) {
    double sum = 0;
    for (int i = 0; i < INDICES / BAGS; i++) {
      sum += (double)(indices[b * (INDICES / BAGS) + i] * DIM >> 20);
    }
    assert_true((double)out[b * DIM] == sum); /* small whole numbers: exact in any order */
  }
  desc.kind = SHEAF_LOOKUP_BACKWARD;
  desc.bags = 0;
  desc.bag_form = SHEAF_BAGS_OFFSETS;
  for (int i = 0; i < INDICES * DIM; i++) {
    out[i] = 1.0F;
  }
  gpu_upload(device_out, out, sizeof out);
  args = (sheaf_embedding_args)SHEAF_EMBEDDING_ARGS_INIT;
  args.indices = on_device(device_indices, SHEAF_I64, INDICES, -1);
  args.grad_out = on_device(device_out, SHEAF_F32, INDICES, DIM);
  args.table_grad = on_device(table, SHEAF_F32, rows, DIM);
  run_embedding(&desc, &args);
  for (int i = 0; i < INDICES; i += 97) {
    float row[DIM];
    int times = 0;
    for (int k = 0; k < INDICES; k++) {
      times += indices[k] == indices[i];
    }
    gpu_download(row, table + indices[i] * DIM, sizeof row);
    assert_true(row[0] == (float)(indices[i] * DIM >> 20) + (float)times);
    assert_true(row[DIM - 1] == row[0]);
  }
  gpu_free_all();
}

static void test_entries_past_two_to_the_31(void **state)
{
  (void)state;
  enum { SEGMENTS = 1000 };
  const int64_t each = 2200000, count = SEGMENTS * each; /* 2.2e9 */
  int32_t *ids = malloc((size_t)count * 4);
  static float out[SEGMENTS];
  assert_non_null(ids);
  for (int64_t i = 0; i < count; i++) {
    ids[i] = (int32_t)(i / each);
  }
  int32_t *device_ids = gpu_alloc((size_t)count * 4);
  float *table = gpu_alloc(SEGMENTS * 4);
  float *rows = gpu_alloc((size_t)count * 4);
  void *device_out = gpu_alloc(sizeof out);
  gpu_upload(device_ids, ids, (size_t)count * 4);
  for (int i = 0; i < SEGMENTS; i++) {
    out[i] = (float)(i % 7);
  }
  gpu_upload(table, out, sizeof out);
  /* A lookup of one column writes 2.2e9 rows ... */
  tensor_count = 0;
  sheaf_embedding_desc lookup = SHEAF_EMBEDDING_DESC_INIT;
  lookup.device = gpu;
  lookup.kind = SHEAF_LOOKUP;
  lookup.dtype = SHEAF_F32;
  lookup.index_dtype = SHEAF_I32;
  lookup.rows = SEGMENTS;
  lookup.dim = 1;
  lookup.indices = count;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.table = on_device(table, SHEAF_F32, SEGMENTS, 1);
  args.indices = on_device(device_ids, SHEAF_I32, count, -1);
  args.out = on_device(rows, SHEAF_F32, count, 1);
  run_embedding(&lookup, &args);
  /* ... and a sum over segments reads them again. */
  sheaf_segment_desc desc = SHEAF_SEGMENT_DESC_INIT;
  desc.device = gpu;
  desc.kind = SHEAF_SEGMENT_SUM;
  desc.dtype = SHEAF_F32;
  desc.index_dtype = SHEAF_I32;
  desc.rows = count;
  desc.dim = 1;
  desc.segments = SEGMENTS;
  sheaf_segment_args segment = SHEAF_SEGMENT_ARGS_INIT;
  segment.data = on_device(rows, SHEAF_F32, count, 1);
  segment.ids = on_device(device_ids, SHEAF_I32, count, -1);
  segment.out = on_device(device_out, SHEAF_F32, SEGMENTS, 1);
  sheaf_plan *plan = NULL;
  gpu_must(sheaf_segment_select(&desc, NULL, &plan), "select");
  const size_t bytes = sheaf_plan_workspace_size(plan);
  gpu_must(sheaf_segment_run(plan, gpu_alloc(bytes), bytes, gpu_stream(), &segment), "run");
  gpu_must(sheaf_stream_wait(gpu, gpu_stream()), "wait");
  sheaf_plan_free(plan);
  gpu_download(out, device_out, sizeof out);
  for (int i = 0; i < SEGMENTS; i++) {
    assert_true((double)out[i] == (double)(i % 7) * (double)each); /* below 2^24: exact in any order */
  }
  free(ids);
  gpu_free_all();
}

int main(int argc, char **argv)
{
  (void)argc;
  environment_prepare(argv);
  gpu_require();
  if (is_switched_on("SHEAF_TEST_QUICK")) {
    printf("skipped: needs 40 GB of device memory (unset SHEAF_TEST_QUICK)\n");
    return 77;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_embedding_kinds_have_the_bits_of_the_cpu),
      cmocka_unit_test(test_gradients_of_more_rows_than_the_cache_holds),
      cmocka_unit_test(test_gradients_of_many_empty_bags),
      cmocka_unit_test(test_segment_kinds_have_the_bits_of_the_cpu),
      cmocka_unit_test(test_sorts_replay_with_other_inputs),
      cmocka_unit_test(test_reductions_replay_with_other_inputs),
      cmocka_unit_test(test_tables_past_two_to_the_31_elements),
      cmocka_unit_test(test_entries_past_two_to_the_31),
  };
  return cmocka_run_group_tests_name("gpu_large", tests, NULL, NULL);
}
