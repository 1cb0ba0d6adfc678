/* test_ops.c: the ops on plain tensors: against plain loops, by hand, without data, into given memory, and refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "support/tensors.h"
#include "support/test_random.h"

/* ---- Lookup ---- */

static void test_embedding_takes_rows(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    sheaf_tensor *table = tensor_of(T, SHAPE(3, 2), NUMBERS(1, 2, 3, 4, 5, 6)), *out = NULL;
    sheaf_tensor *indices = tensor_of(I, SHAPE(2, 2), NUMBERS(2, 0, 1, 2));
    tensor_result(sheaf_embedding(indices, table, NULL, &out), &out);
    assert_int_equal(sheaf_tensor_rank(out), 3);
    assert_int_equal(sheaf_tensor_dtype(out), T);
    expect_tensor(out, 5, 6, 1, 2, 3, 4, 5, 6);
  }
}

static void test_embedding_padding(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_of(SHEAF_F32, SHAPE(3, 1), NUMBERS(1, 2, 3)), *out = NULL;
  sheaf_tensor *indices = tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 1, 2));
  sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
  options.has_padding = 1;
  options.padding_idx = 1;
  tensor_result(sheaf_embedding(indices, table, &options, &out), &out);
  expect_tensor(out, 1, 0, 3);
  out = NULL;
  options.padding = SHEAF_PADDING_ROW;
  tensor_result(sheaf_embedding(indices, table, &options, &out), &out);
  expect_tensor(out, 1, 2, 3);
  options.padding_idx = 3;
  out = NULL;
  expect_status(sheaf_embedding(indices, table, &options, &out), SHEAF_INVALID_PROBLEM);
  expect_words("3", "0..2");
  assert_null(out);
}

static void test_bad_indices_are_errors_unless_skipped(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_of(SHEAF_F64, SHAPE(3, 1), NUMBERS(1, 2, 3)), *out = NULL;
  sheaf_tensor *indices = tensor_of(SHEAF_I32, SHAPE(4), NUMBERS(0, 7, 2, -1));
  expect_status(sheaf_embedding(indices, table, NULL, &out), SHEAF_INDEX_OUT_OF_RANGE);
  expect_words("7", "position 1", "0..2", "2 such");
  assert_null(out);
  sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
  options.skip_bad_indices = 1;
  tensor_result(sheaf_embedding(indices, table, &options, &out), &out);
  expect_tensor(out, 1, 0, 3, 0);
  sheaf_embedding_bag_options bag = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  sheaf_tensor *offsets = tensor_of(SHEAF_I32, SHAPE(1), NULL), *bags = NULL;
  expect_status(sheaf_embedding_bag(indices, table, offsets, &bag, &bags), SHEAF_INDEX_OUT_OF_RANGE);
  bag.skip_bad_indices = 1;
  tensor_result(sheaf_embedding_bag(indices, table, offsets, &bag, &bags), &bags);
  expect_tensor(bags, 2);
}

static void test_given_outputs_are_written(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_of(SHEAF_F32, SHAPE(3, 2), NUMBERS(1, 2, 3, 4, 5, 6));
  sheaf_tensor *indices = tensor_of(SHEAF_I64, SHAPE(1), NUMBERS(2)), *out = tensor_of(SHEAF_F32, SHAPE(1, 2), NULL);
  sheaf_tensor *before = out, *wrong = tensor_of(SHEAF_F32, SHAPE(2, 2), NUMBERS(7, 7, 7, 7));
  int64_t version = sheaf_tensor_version(out);
  expect_ok(sheaf_embedding(indices, table, NULL, &out));
  assert_ptr_equal(out, before);
  assert_true(sheaf_tensor_version(out) > version);
  expect_tensor(out, 5, 6);
  expect_status(sheaf_embedding(indices, table, NULL, &wrong), SHEAF_INVALID_PROBLEM);
  expect_words("out", "[2, 2]");
  expect_tensor(wrong, 7, 7, 7, 7);
  expect_status(sheaf_embedding(indices, table, NULL, &table), SHEAF_INVALID_PROBLEM); /* shares memory or shape */
}

/* ---- Bags, against plain loops ---- */

typedef struct bags {
  int64_t rows, dim, entries, count, padding;
  sheaf_tensor *table, *indices, *starts, *ends, *lengths, *weights;
  int64_t start[16];
} bags;

static bags make_bags(uint64_t seed, sheaf_dtype index)
{
  test_random random = {seed};
  bags b = {.rows = 6, .dim = 3, .entries = 17, .count = 5, .padding = 2};
  double lengths[5], starts[6] = {0};
  for (int64_t i = 0, left = b.entries; i < 5; i++) {
    lengths[i] = i == 4 ? (double)left : (double)random_below(&random, i == 1 ? 1 : left / 2 + 1);
    left -= (int64_t)lengths[i];
    starts[i + 1] = starts[i] + lengths[i];
  }
  for (int i = 0; i <= 5; i++) b.start[i] = (int64_t)starts[i];
  b.table = tensor_random(SHEAF_F64, SHAPE(6, 3), seed + 1);
  b.indices = tensor_random_ints(index, 6, SHAPE(17), seed + 2);
  b.weights = tensor_random(SHEAF_F64, SHAPE(17), seed + 3);
  b.starts = tensor_of(SHEAF_I32, SHAPE(5), starts);
  b.ends = tensor_of(SHEAF_I64, SHAPE(6), starts);
  b.lengths = tensor_of(SHEAF_I64, SHAPE(5), lengths);
  return b;
}

/* What a bag is, in plain loops. */
static double plain_bag(const bags *b, int64_t bag, int64_t d, sheaf_bag_mode mode, int weighted, int padded)
{
  double sum = 0, weight = 0, best = 0;
  int64_t counted = 0;
  for (int64_t k = b->start[bag]; k < b->start[bag + 1]; k++) {
    int64_t row = (int64_t)tensor_number(b->indices, k);
    if (padded && row == b->padding) continue;
    double x = tensor_number(b->table, row * b->dim + d), w = weighted ? tensor_number(b->weights, k) : 1;
    sum += w * x;
    weight += w;
    best = counted++ == 0 || x > best ? x : best;
  }
  if (counted == 0) return 0;
  return mode == SHEAF_MODE_SUM ? sum : mode == SHEAF_MODE_MEAN ? sum / weight : best;
}

static void test_embedding_bag_against_loops(void **state)
{
  (void)state;
  for (uint64_t seed = 0; seed < 8; seed++) {
    bags b = make_bags(100 * seed, seed % 2 ? SHEAF_I32 : SHEAF_I64);
    for (int form = 0; form < 3; form++)
      for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_MAX; mode++)
        for (int flags = 0; flags < 4; flags++) {
          sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
          sheaf_tensor *out = NULL;
          options.mode = (sheaf_bag_mode)mode;
          options.include_last_offset = form == 1;
          options.lengths = form == 2;
          options.has_padding = flags & 1;
          options.padding_idx = b.padding;
          if (flags & 2) options.per_sample_weights = b.weights;
          sheaf_status status = sheaf_embedding_bag(b.indices, b.table,
                                                    form == 0   ? b.starts
                                                    : form == 1 ? b.ends
                                                                : b.lengths,
                                                    &options, &out);
          if (mode == SHEAF_MODE_MAX && (flags & 2)) {
            expect_status(status, SHEAF_UNSUPPORTED);
            continue;
          }
          tensor_result(status, &out);
          for (int64_t i = 0; i < b.count * b.dim; i++) {
            double expected = plain_bag(&b, i / b.dim, i % b.dim, options.mode, flags & 2, flags & 1);
            if (!(fabs(tensor_number(out, i) - expected) <= 1e-12 * (1 + fabs(expected))))
              fail_msg("form %d mode %d flags %d cell %d: %g, expected %g", form, mode, flags, (int)i,
                       tensor_number(out, i), expected);
          }
        }
  }
}

static void test_bags_of_a_matrix(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_of(SHEAF_F32, SHAPE(3, 1), NUMBERS(1, 2, 4)), *out = NULL;
  sheaf_tensor *indices = tensor_of(SHEAF_I64, SHAPE(2, 3), NUMBERS(0, 1, 2, 2, 2, 0));
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  options.mode = SHEAF_MODE_SUM;
  tensor_result(sheaf_embedding_bag(indices, table, NULL, &options, &out), &out);
  expect_tensor(out, 7, 9);
  out = NULL;
  tensor_result(sheaf_embedding_bag(indices, table, NULL, NULL, &out), &out); /* mean by default, as in PyTorch */
  expect_tensor(out, (double)(7.0F / 3.0F), 3);
}

static void test_lengths_are_checked(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_of(SHEAF_F32, SHAPE(3, 1), NULL), *indices = tensor_of(SHEAF_I64, SHAPE(3), NULL);
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  sheaf_tensor *out = NULL;
  options.lengths = 1;
  expect_status(sheaf_embedding_bag(indices, table, tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(1, 1)), &options, &out),
                SHEAF_INVALID_PROBLEM);
  expect_words("2", "3 indices");
  expect_status(sheaf_embedding_bag(indices, table, tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(-1, 4)), &options, &out),
                SHEAF_INVALID_PROBLEM);
  expect_words("-1", "bag 0");
  expect_status(sheaf_embedding_bag(indices, table, tensor_of(SHEAF_I64, SHAPE(1), NUMBERS(4)), &options, &out),
                SHEAF_INVALID_PROBLEM);
  options.include_last_offset = 1;
  expect_status(sheaf_embedding_bag(indices, table, tensor_of(SHEAF_I64, SHAPE(1), NUMBERS(3)), &options, &out),
                SHEAF_INVALID_PROBLEM);
  assert_null(out);
}

/* ---- Segments ---- */

static void test_segment_reduce_by_hand(void **state)
{
  (void)state;
  sheaf_tensor *data = tensor_of(SHEAF_F32, SHAPE(4, 2), NUMBERS(1, -2, 3, 4, -5, 6, 7, 8));
  sheaf_tensor *sorted = tensor_of(SHEAF_I32, SHAPE(4), NUMBERS(0, 0, 2, 2));
  sheaf_tensor *mixed = tensor_of(SHEAF_I64, SHAPE(4), NUMBERS(2, 0, 2, 0));
  static const double of_sorted[5][6] = {
      {4, 2, 0, 0, 2, 14}, {2, 1, 0, 0, 1, 7}, {3, 4, 0, 0, 7, 8}, {1, -2, 0, 0, -5, 6}, {3, -8, 1, 1, -35, 48}};
  static const double of_mixed[5][6] = {
      {10, 12, 0, 0, -4, 4}, {5, 6, 0, 0, -2, 2}, {7, 8, 0, 0, 1, 6}, {3, 4, 0, 0, -5, -2}, {21, 32, 1, 1, -5, -12}};
  for (int reduce = SHEAF_REDUCE_SUM; reduce <= SHEAF_REDUCE_PROD; reduce++) {
    sheaf_tensor *out = NULL, *any = NULL;
    tensor_result(sheaf_segment_reduce(data, (sheaf_reduce)reduce, sorted, 3, NULL, &out), &out);
    expect_tensor_numbers(out, of_sorted[reduce], 6, __FILE__, __LINE__);
    tensor_result(sheaf_unsorted_segment_reduce(data, (sheaf_reduce)reduce, mixed, 3, NULL, &any), &any);
    expect_tensor_numbers(any, of_mixed[reduce], 6, __FILE__, __LINE__);
  }
  sheaf_tensor *out = NULL;
  expect_status(sheaf_segment_reduce(data, SHEAF_REDUCE_SUM, mixed, 3, NULL, &out), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_segment_reduce(data, SHEAF_REDUCE_SUM, sorted, 2, NULL, &out), SHEAF_INDEX_OUT_OF_RANGE);
  expect_status(sheaf_segment_reduce(data, (sheaf_reduce)9, sorted, 3, NULL, &out), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_segment_reduce(data, SHEAF_REDUCE_SUM, NULL, 3, NULL, &out), SHEAF_INVALID_PROBLEM);
  assert_null(out);
  sheaf_segment_options options = SHEAF_SEGMENT_OPTIONS_INIT;
  options.empty = SHEAF_EMPTY_IDENTITY;
  options.skip_bad_ids = 1;
  tensor_result(sheaf_segment_reduce(data, SHEAF_REDUCE_MAX, sorted, 2, &options, &out), &out);
  expect_tensor(out, 3, 4, -HUGE_VAL, -HUGE_VAL);
}

/* ---- Conversions ---- */

static void test_casts_round_once(void **state)
{
  (void)state;
  /* 1 + 2^-11 + 2^-30 in f64: through f32 it would be a tie and go to even. */
  double x = 1 + 0x1p-11 + 0x1p-30, y = 1 + 0x1p-8 + 0x1p-40;
  sheaf_tensor *t = tensor_of(SHEAF_F64, SHAPE(2), (double[]){x, y}), *out = NULL;
  tensor_result(sheaf_cast(t, SHEAF_F16, &out), &out);
  expect_tensor(out, 1 + 0x1p-10, 1 + 0x1p-8);
  out = NULL;
  tensor_result(sheaf_cast(t, SHEAF_BF16, &out), &out);
  expect_tensor(out, 1, 1 + 0x1p-7);
  out = NULL;
  tensor_result(sheaf_cast(t, SHEAF_F64, &out), &out);
  assert_ptr_equal(out, t);
  out = NULL;
  expect_status(sheaf_cast(tensor_of(SHEAF_I64, SHAPE(2), NULL), SHEAF_F32, &out), SHEAF_UNSUPPORTED);
  expect_words("i64");
}

static void test_add_and_movedim(void **state)
{
  (void)state;
  sheaf_tensor *a = tensor_of(SHEAF_F32, SHAPE(2, 2), NUMBERS(1, 2, 3, 4)), *out = NULL, *moved = NULL;
  sheaf_tensor *b = tensor_of(SHEAF_F32, SHAPE(2, 2), NUMBERS(10, 20, 30, 40));
  tensor_result(sheaf_add(a, b, 0.5, &out), &out);
  expect_tensor(out, 6, 12, 18, 24);
  sheaf_tensor *in_place = a;
  expect_ok(sheaf_add(a, b, 1, &in_place));
  expect_tensor(a, 11, 22, 33, 44);
  expect_status(sheaf_add(a, tensor_of(SHEAF_F64, SHAPE(2, 2), NULL), 1, &out), SHEAF_INVALID_PROBLEM);
  expect_words("f32", "f64");
  expect_status(sheaf_add(a, NULL, 1, &out), SHEAF_INVALID_PROBLEM);
  sheaf_tensor *cube = tensor_of(SHEAF_I32, SHAPE(2, 3, 2), NUMBERS(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  tensor_result(sheaf_movedim(cube, 2, 0, &moved), &moved);
  assert_int_equal(sheaf_tensor_extent(moved, 0), 2);
  assert_int_equal(sheaf_tensor_extent(moved, 2), 3);
  expect_tensor(moved, 0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11);
  sheaf_tensor *back = NULL;
  tensor_result(sheaf_movedim(moved, 0, 2, &back), &back);
  expect_same_tensor(back, cube);
  back = NULL;
  expect_status(sheaf_movedim(cube, 3, 0, &back), SHEAF_INVALID_PROBLEM);
  tensor_result(sheaf_reshape(cube, 1, (int64_t[]){12}, &back), &back);
  assert_ptr_equal(sheaf_tensor_data(back), sheaf_tensor_data(cube));
  back = NULL;
  expect_status(sheaf_reshape(cube, 1, (int64_t[]){13}, &back), SHEAF_INVALID_PROBLEM);
  tensor_result(sheaf_expand(b, 2, &back), &back);
  expect_tensor(back, 10, 20, 30, 40, 10, 20, 30, 40);
}

static void test_reshape_of_a_slice_copies(void **state)
{
  (void)state;
  sheaf_tensor *wide = tensor_random(SHEAF_F32, SHAPE(3, 5), 1), *slice, *out;
  DLTensor dl = *sheaf_tensor_dl(wide);
  int64_t shape[] = {3, 2}, strides[] = {5, 1};
  dl.shape = shape;
  dl.strides = strides;
  expect_ok(sheaf_tensor_borrow(&dl, 0, &slice));
  tensor_keep(slice);
  RESULT(out, sheaf_reshape(slice, 1, (int64_t[]){6}, &out));
  for (int i = 0; i < 6; i++) assert_true(tensor_number(out, i) == tensor_number(wide, i / 2 * 5 + i % 2));
}

/* ---- Without data ---- */

static void test_meta_touches_no_memory(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_untouchable(SHEAF_F16, SHAPE(1000, 64)), *out = NULL;
  sheaf_tensor *indices = tensor_untouchable(SHEAF_I32, SHAPE(50)), *offsets = tensor_untouchable(SHEAF_I64, SHAPE(7));
  tensor_result(sheaf_embedding(indices, table, NULL, &out), &out);
  assert_int_equal(sheaf_tensor_form(out), SHEAF_FORM_META);
  assert_int_equal(sheaf_tensor_extent(out, 0), 50);
  assert_int_equal(sheaf_tensor_extent(out, 1), 64);
  assert_int_equal(sheaf_tensor_dtype(out), SHEAF_F16);
  assert_memory_equal(sheaf_meta_last().sku.name, "lookup.f16.i32/", 15);
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  for (int form = 0; form < 3; form++) {
    options.include_last_offset = form == 1;
    options.lengths = form == 2;
    options.mode = SHEAF_MODE_MAX;
    out = NULL;
    tensor_result(sheaf_embedding_bag(indices, table, offsets, &options, &out), &out);
    assert_int_equal(sheaf_tensor_extent(out, 0), form == 1 ? 6 : 7);
    assert_memory_equal(sheaf_meta_last().sku.name, "bag_max.f16.i32/", 16);
    assert_true(sheaf_meta_last().workspace_bytes > 0);
  }
  sheaf_tensor *data = tensor_untouchable(SHEAF_F32, SHAPE(50, 3));
  out = NULL;
  tensor_result(sheaf_unsorted_segment_reduce(data, SHEAF_REDUCE_PROD, indices, 9, NULL, &out), &out);
  assert_int_equal(sheaf_tensor_extent(out, 0), 9);
  out = NULL;
  tensor_result(sheaf_cast(data, SHEAF_BF16, &out), &out);
  assert_int_equal(sheaf_tensor_dtype(out), SHEAF_BF16);
  assert_int_equal(sheaf_meta_last().sku.name[0], 0);
  out = NULL;
  tensor_result(sheaf_quantize(data, SHEAF_INT8, &out), &out);
  assert_int_equal(sheaf_tensor_dtype(out), SHEAF_INT8);
  sheaf_tensor *plain = NULL;
  tensor_result(sheaf_dequantize(out, SHEAF_DTYPE_NONE, &plain), &plain);
  assert_int_equal(sheaf_tensor_dtype(plain), SHEAF_F32);
  plain = NULL;
  tensor_result(sheaf_embedding(indices, out, NULL, &plain), &plain); /* a quantised table without data */
  assert_int_equal(sheaf_tensor_extent(plain, 1), 3);
  plain = NULL;
  tensor_result(sheaf_add(data, data, 2, &plain), &plain);
  plain = NULL;
  tensor_result(sheaf_movedim(data, 1, 0, &plain), &plain);
}

/* What meta tensors say of kernel and workspace is what a plan for the same problem says. */
static void test_meta_tells_what_a_plan_takes(void **state)
{
  (void)state;
  sheaf_tensor *data = tensor_untouchable(SHEAF_F64, SHAPE(700, 5)), *ids = tensor_untouchable(SHEAF_I32, SHAPE(700)),
               *out;
  sheaf_segment_desc desc = SHEAF_SEGMENT_DESC_INIT;
  sheaf_plan *plan;
  desc.kind = SHEAF_UNSORTED_SEGMENT_MEAN;
  desc.dtype = SHEAF_F64;
  desc.index_dtype = SHEAF_I32;
  desc.rows = 700;
  desc.dim = 5;
  desc.segments = 30;
  desc.bad_index = SHEAF_BAD_INDEX_ERROR;
  expect_ok(sheaf_segment_select(&desc, NULL, &plan));
  RESULT(out, sheaf_unsorted_segment_reduce(data, SHEAF_REDUCE_MEAN, ids, 30, NULL, &out));
  assert_true(sheaf_plan_workspace_size(plan) > 0);
  assert_int_equal(sheaf_meta_last().workspace_bytes, sheaf_plan_workspace_size(plan));
  assert_string_equal(sheaf_meta_last().sku.name, sheaf_plan_sku(plan).name);
  sheaf_plan_free(plan);
}

/* Whatever device the tensor is like, one without data lies nowhere. */
static void test_meta_of_a_device(void **state)
{
  (void)state;
  int64_t rows[] = {9, 4}, count[] = {2};
  DLTensor dl = {.device = {kDLCUDA, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}, .shape = rows};
  sheaf_tensor *table, *indices, *out;
  RESULT(table, sheaf_tensor_meta(&dl, &table));
  dl = (DLTensor){.device = {kDLCUDA, 0}, .ndim = 1, .dtype = {kDLInt, 64, 1}, .shape = count};
  RESULT(indices, sheaf_tensor_meta(&dl, &indices));
  RESULT(out, sheaf_embedding(indices, table, NULL, &out));
  assert_int_equal(sheaf_tensor_extent(out, 1), 4);
  RESULT(out, sheaf_embedding(tensor_untouchable(SHEAF_I64, SHAPE(2)), table, NULL, &out));
}

static void test_meta_checks_as_a_run_does(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_untouchable(SHEAF_F16, SHAPE(1000, 64)), *out = NULL;
  sheaf_tensor *weights = tensor_untouchable(SHEAF_F32, SHAPE(50)), *indices = tensor_untouchable(SHEAF_I32, SHAPE(50));
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  options.per_sample_weights = weights;
  expect_status(sheaf_embedding_bag(indices, table, tensor_untouchable(SHEAF_I64, SHAPE(5)), &options, &out),
                SHEAF_INVALID_PROBLEM);
  expect_words("weights");
  expect_status(sheaf_embedding(weights, table, NULL, &out), SHEAF_UNSUPPORTED);
  expect_status(sheaf_embedding(indices, tensor_untouchable(SHEAF_F32, SHAPE(5)), NULL, &out), SHEAF_INVALID_PROBLEM);
  expect_words("table", "[5]");
}

static void test_data_must_lie_in_one_place(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_of(SHEAF_F32, SHAPE(3, 2), NULL), *out = NULL, *cuda;
  expect_status(sheaf_embedding(tensor_untouchable(SHEAF_I32, SHAPE(2)), table, NULL, &out), SHEAF_INVALID_PROBLEM);
  expect_words("Cpu", "Meta", "indices");
  sheaf_tensor *nowhere = tensor_untouchable(SHEAF_F32, SHAPE(2, 2)), *here = tensor_of(SHEAF_F32, SHAPE(2, 2), NULL);
  expect_status(sheaf_embedding(tensor_of(SHEAF_I32, SHAPE(2), NULL), table, NULL, &nowhere), SHEAF_INVALID_PROBLEM);
  expect_words("output", "Meta", "Cpu");
  expect_status(
      sheaf_embedding(tensor_untouchable(SHEAF_I32, SHAPE(2)), tensor_untouchable(SHEAF_F32, SHAPE(3, 2)), NULL, &here),
      SHEAF_INVALID_PROBLEM);
  expect_words("output", "Meta", "Cpu");
  assert_int_equal(sheaf_tensor_version(here), 0);
  int64_t shape[] = {2};
  DLTensor dl = {.data = table, .device = {kDLCUDA, 0}, .ndim = 1, .dtype = {kDLInt, 64, 1}, .shape = shape};
  expect_ok(sheaf_tensor_borrow(&dl, 0, &cuda));
  tensor_keep(cuda);
  expect_status(sheaf_embedding(cuda, table, NULL, &out), SHEAF_INVALID_PROBLEM);
  expect_words("Cuda", "Cpu");
  assert_null(out);
}

static void test_cuda_needs_its_plugin(void **state)
{
  (void)state;
  int64_t shape[] = {2, 2};
  DLTensor dl = {.data = shape, .device = {kDLCUDA, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}, .shape = shape};
  sheaf_tensor *table, *indices, *out = NULL;
  expect_ok(sheaf_tensor_borrow(&dl, 0, &table));
  dl.dtype = (DLDataType){kDLInt, 64, 1};
  dl.ndim = 1;
  expect_ok(sheaf_tensor_borrow(&dl, 0, &indices));
  tensor_keep(table);
  tensor_keep(indices);
  sheaf_status status = sheaf_embedding(indices, table, NULL, &out);
  if (status != SHEAF_OK) {
    expect_status(status, SHEAF_UNAVAILABLE);
    expect_words("libsheaf_cuda.so");
  }
}

/* ---- The cache of plans ---- */

static void *look_up_often(void *seed)
{
  test_random random = {(uint64_t)(uintptr_t)seed};
  int64_t wrong = 0;
  for (int i = 0; i < 300; i++) {
    int64_t rows = 1 + random_below(&random, 40), dim = 1 + random_below(&random, 20), shape[] = {rows, dim};
    int64_t one[] = {1 + random_below(&random, 3)};
    sheaf_tensor *table, *indices, *out = NULL;
    wrong += sheaf_tensor_new(SHEAF_F32, 2, shape, &table) != SHEAF_OK;
    wrong += sheaf_tensor_new(SHEAF_I64, 1, one, &indices) != SHEAF_OK;
    for (int64_t k = 0; k < rows * dim; k++) ((float *)sheaf_tensor_data(table))[k] = (float)k;
    for (int64_t k = 0; k < one[0]; k++) ((int64_t *)sheaf_tensor_data(indices))[k] = random_below(&random, rows);
    wrong += sheaf_embedding(indices, table, NULL, &out) != SHEAF_OK;
    for (int64_t k = 0; out && k < one[0] * dim; k++)
      wrong += ((float *)sheaf_tensor_data(out))[k] !=
               (float)(((int64_t *)sheaf_tensor_data(indices))[k / dim] * dim + k % dim);
    sheaf_tensor_release(table);
    sheaf_tensor_release(indices);
    sheaf_tensor_release(out);
    if (i == 150) sheaf_clear_caches();
  }
  return (void *)(uintptr_t)wrong;
}

/* More problems than the cache holds, from several threads, one of which clears it meanwhile. */
static void test_threads_share_plans(void **state)
{
  (void)state;
  pthread_t threads[4];
  for (int i = 0; i < 4; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, look_up_often, (void *)(uintptr_t)(i / 2 + 1)), 0);
  for (int i = 0; i < 4; i++) {
    void *wrong;
    assert_int_equal(pthread_join(threads[i], &wrong), 0);
    assert_null(wrong);
  }
}

static void test_options_are_checked(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_of(SHEAF_F32, SHAPE(3, 2), NULL), *indices = tensor_of(SHEAF_I64, SHAPE(1), NULL);
  sheaf_tensor *out = NULL;
  sheaf_embedding_options options = {0};
  expect_status(sheaf_embedding(indices, table, &options, &out), SHEAF_INVALID_PROBLEM);
  expect_words("struct_size");
  options = (sheaf_embedding_options)SHEAF_EMBEDDING_OPTIONS_INIT;
  options.sparse = 3;
  expect_status(sheaf_embedding(indices, table, &options, &out), SHEAF_INVALID_PROBLEM);
  expect_words("sparse 3");
  expect_status(sheaf_embedding(indices, table, NULL, NULL), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_embedding(NULL, table, NULL, &out), SHEAF_INVALID_PROBLEM);
  expect_words("indices", "NULL");
  expect_status(sheaf_embedding(indices, NULL, NULL, &out), SHEAF_INVALID_PROBLEM);
  sheaf_embedding_bag_options bag = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  bag.mode = (sheaf_bag_mode)5;
  expect_status(sheaf_embedding_bag(indices, table, indices, &bag, &out), SHEAF_INVALID_PROBLEM);
  assert_null(out);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_embedding_takes_rows),
      TEST(test_embedding_padding),
      TEST(test_bad_indices_are_errors_unless_skipped),
      TEST(test_given_outputs_are_written),
      TEST(test_embedding_bag_against_loops),
      TEST(test_bags_of_a_matrix),
      TEST(test_lengths_are_checked),
      TEST(test_segment_reduce_by_hand),
      TEST(test_casts_round_once),
      TEST(test_add_and_movedim),
      TEST(test_reshape_of_a_slice_copies),
      TEST(test_meta_touches_no_memory),
      TEST(test_meta_tells_what_a_plan_takes),
      TEST(test_meta_of_a_device),
      TEST(test_meta_checks_as_a_run_does),
      TEST(test_data_must_lie_in_one_place),
      TEST(test_cuda_needs_its_plugin),
      TEST(test_threads_share_plans),
      TEST(test_options_are_checked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
