/* test_sparse.c: row-sparse tensors against the same computation on dense ones; how much memory their gradients take. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/heap.h"
#include "support/tensors.h"

static sheaf_tensor *sparse_table(sheaf_dtype dtype, sheaf_tensor **dense)
{
  sheaf_tensor *ids = tensor_of(SHEAF_I64, SHAPE(4), NUMBERS(5, 1, 5, 7)), *sparse;
  sheaf_tensor *memory = tensor_of(dtype, SHAPE(6, 2), NUMBERS(99, 99, 1, 2, 3, 4, 5, -6, -7, -8, 99, 99)), *rows;
  DLTensor inner = *sheaf_tensor_dl(memory); /* between rows that must not be read */
  int64_t shape[] = {4, 2};
  inner.shape = shape;
  inner.byte_offset = 2 * (uint64_t)inner.dtype.bits / 8;
  expect_ok(sheaf_tensor_borrow(&inner, 0, &rows));
  tensor_keep(rows);
  expect_ok(sheaf_tensor_sparse(ids, rows, 9, 0, &sparse));
  *dense = tensor_of(dtype, SHAPE(9, 2), NUMBERS(0, 0, 3, 4, 0, 0, 0, 0, 0, 0, 6, -4, 0, 0, -7, -8, 0, 0));
  return tensor_keep(sparse);
}

static void test_ids_written_later_are_seen(void **state)
{
  (void)state;
  sheaf_tensor *ids = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(1, 3)), *sparse, *out = NULL;
  sheaf_tensor *rows = tensor_of(SHEAF_F32, SHAPE(2, 2), NUMBERS(1, 2, 3, 4));
  sheaf_tensor *dense = tensor_of(SHEAF_F32, SHAPE(4, 2), NUMBERS(0, 0, 0, 0, 0, 0, 0, 0));
  expect_ok(sheaf_tensor_sparse(ids, rows, 4, 1, &sparse));
  tensor_keep(sparse);
  ((int64_t *)sheaf_tensor_dl(ids)->data)[1] = 1000000;
  expect_status(sheaf_add(dense, sparse, 1, &out), SHEAF_INDEX_OUT_OF_RANGE);
  expect_words("1000000", "position 1", "0..3");
  assert_null(out);
}

static void test_sparse_becomes_dense(void **state)
{
  (void)state;
  for (int i = 0; i < 4; i++) {
    sheaf_tensor *dense, *sparse = sparse_table(tiny_elements[i], &dense), *out = NULL, *merged = NULL, *again = NULL;
    tensor_result(sheaf_to_dense(sparse, &out), &out);
    expect_same_tensor(out, dense);
    tensor_result(sheaf_coalesce(sparse, &merged), &merged);
    assert_true(sheaf_tensor_is_coalesced(merged));
    expect_tensor(sheaf_tensor_part(merged, 0), 1, 5, 7);
    expect_tensor(sheaf_tensor_part(merged, 1), 3, 4, 6, -4, -7, -8);
    tensor_result(sheaf_to_dense(merged, &again), &again);
    expect_same_tensor(again, dense);
  }
}

static void test_sparse_tables_read_as_dense_ones(void **state)
{
  (void)state;
  sheaf_tensor *dense, *sparse = sparse_table(SHEAF_F32, &dense);
  sheaf_tensor *indices = tensor_of(SHEAF_I32, SHAPE(6), NUMBERS(5, 0, 7, 7, 1, 2));
  sheaf_tensor *offsets = tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 2, 4));
  for (int padded = 0; padded < 3; padded++) {
    sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
    sheaf_tensor *a = NULL, *b = NULL;
    options.has_padding = padded > 0;
    options.padding_idx = padded == 1 ? 7 : 0;
    options.padding = padded == 1 ? SHEAF_PADDING_ROW : SHEAF_PADDING_ZERO;
    tensor_result(sheaf_embedding(indices, dense, &options, &a), &a);
    tensor_result(sheaf_embedding(indices, sparse, &options, &b), &b);
    expect_same_tensor(a, b);
    for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_MAX; mode++) {
      sheaf_embedding_bag_options bag = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
      bag.mode = (sheaf_bag_mode)mode;
      bag.has_padding = padded > 0;
      bag.padding_idx = padded == 1 ? 7 : 8;
      a = b = NULL;
      tensor_result(sheaf_embedding_bag(indices, dense, offsets, &bag, &a), &a);
      tensor_result(sheaf_embedding_bag(indices, sparse, offsets, &bag, &b), &b);
      expect_same_tensor(a, b);
    }
  }
  /* arg of a maximum names rows of the whole table, missing ones too */
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS] = {[SHEAF_EMBEDDING_PADDING_IDX].i = -1,
                                             [SHEAF_EMBEDDING_BAD_INDEX].i = SHEAF_BAD_INDEX_ERROR,
                                             [SHEAF_EMBEDDING_MODE].i = SHEAF_MODE_MAX};
  sheaf_tensor *inputs[] = {sparse, indices, offsets, NULL}, *outputs[2] = {NULL, NULL};
  const sheaf_call call = tensor_call(SHEAF_OP_EMBEDDING_BAG, inputs, outputs, attrs, 3);
  expect_ok(sheaf_dispatch(&call));
  tensor_keep(outputs[0]);
  tensor_keep(outputs[1]);
  expect_tensor(outputs[0], 6, 0, -7, -8, 3, 4);
  expect_tensor(outputs[1], 5, 0, 7, 7, 1, 1);
  sheaf_tensor *bad = tensor_of(SHEAF_I32, SHAPE(2), NUMBERS(1, 9)), *out = NULL;
  expect_status(sheaf_embedding(bad, sparse, NULL, &out), SHEAF_INDEX_OUT_OF_RANGE);
  expect_words("9", "position 1", "0..8");
}

/* Rows next to the table's in memory are not its own: a missing row before the first one is zero all the same. */
static void test_missing_rows_are_zero(void **state)
{
  (void)state;
  sheaf_tensor *memory = tensor_of(SHEAF_F32, SHAPE(3, 1), NUMBERS(99, 5, 99)), *rows, *sparse, *out = NULL;
  DLTensor inner = *sheaf_tensor_dl(memory);
  int64_t shape[] = {1, 1};
  inner.shape = shape;
  inner.byte_offset = 4;
  expect_ok(sheaf_tensor_borrow(&inner, 4, &rows));
  tensor_keep(rows);
  expect_ok(sheaf_tensor_sparse(tensor_of(SHEAF_I64, SHAPE(1), NUMBERS(1)), rows, 3, 1, &sparse));
  tensor_keep(sparse);
  tensor_result(sheaf_embedding(tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 1, 2)), sparse, NULL, &out), &out);
  expect_tensor(out, 0, 5, 0);
}

static void test_sums_of_sparse_and_dense(void **state)
{
  (void)state;
  sheaf_tensor *dense, *sparse = sparse_table(SHEAF_F64, &dense), *plain = tensor_random(SHEAF_F64, SHAPE(9, 2), 3);
  sheaf_tensor *expected = NULL, *got = NULL, *both = NULL;
  tensor_result(sheaf_add(plain, dense, 0.25, &expected), &expected);
  tensor_result(sheaf_add(plain, sparse, 0.25, &got), &got);
  expect_same_tensor(got, expected);
  expected = got = NULL;
  tensor_result(sheaf_add(dense, plain, 0.25, &expected), &expected);
  tensor_result(sheaf_add(sparse, plain, 0.25, &got), &got);
  expect_same_tensor(got, expected);
  tensor_result(sheaf_add(sparse, sparse, -3, &both), &both);
  assert_int_equal(sheaf_tensor_form(both), SHEAF_FORM_SPARSE);
  expected = got = NULL;
  tensor_result(sheaf_to_dense(both, &got), &got);
  tensor_result(sheaf_add(dense, dense, -3, &expected), &expected);
  expect_same_tensor(got, expected);
  /* in place: only its rows */
  expected = NULL;
  tensor_result(sheaf_add(plain, dense, -1, &expected), &expected);
  sheaf_tensor *same = plain;
  int64_t version = sheaf_tensor_version(plain);
  expect_ok(sheaf_add(plain, sparse, -1, &same));
  expect_same_tensor(plain, expected);
  assert_true(sheaf_tensor_version(plain) > version);
  expect_status(sheaf_add(tensor_of(SHEAF_F64, SHAPE(8, 2), NULL), sparse, 1, &got), SHEAF_INVALID_PROBLEM);
  expect_words("[8, 2]", "[9, 2]");
}

static void test_other_ops_take_sparse_tensors_densified(void **state)
{
  (void)state;
  sheaf_tensor *dense, *sparse = sparse_table(SHEAF_F32, &dense), *a = NULL, *b = NULL;
  sheaf_tensor *ids = tensor_random_ints(SHEAF_I64, 3, SHAPE(9), 1);
  tensor_result(sheaf_unsorted_segment_reduce(sparse, SHEAF_REDUCE_MEAN, ids, 3, NULL, &a), &a);
  tensor_result(sheaf_unsorted_segment_reduce(dense, SHEAF_REDUCE_MEAN, ids, 3, NULL, &b), &b);
  expect_same_tensor(a, b);
  a = b = NULL;
  tensor_result(sheaf_cast(sparse, SHEAF_F16, &a), &a);
  assert_int_equal(sheaf_tensor_form(a), SHEAF_FORM_SPARSE);
  assert_int_equal(sheaf_tensor_dtype(a), SHEAF_F16);
  tensor_result(sheaf_movedim(sparse, 0, 1, &b), &b);
  assert_int_equal(sheaf_tensor_extent(b, 1), 9);
  a = NULL;
  tensor_result(sheaf_quantize(sparse, SHEAF_INT4, &a), &a);
  assert_int_equal(sheaf_tensor_form(a), SHEAF_FORM_QUANTIZED);
  a = NULL;
  expect_status(sheaf_coalesce(dense, &a), SHEAF_UNSUPPORTED);
}

/* ---- Memory ---- */

/* Nothing of the table's size is made on the way to a sparse gradient. */
static void test_sparse_gradients_stay_small(void **state)
{
  (void)state;
  enum { ROWS = 1 << 20, DIM = 16, ENTRIES = 200 };
  static float memory[ROWS * DIM];
  int64_t shape[] = {ROWS, DIM};
  DLTensor dl = {.data = memory, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}, .shape = shape};
  for (int kind = SHEAF_GRAD_SPARSE; kind <= SHEAF_GRAD_SPARSE_RAW; kind++)
    for (int bag = 0; bag < 2; bag++) {
      sheaf_tensor *table, *indices, *offsets, *out = NULL, *same;
      int64_t count[] = {ENTRIES}, bags[] = {4};
      heap.live = heap.peak = heap.largest = 0;
      expect_ok(sheaf_tensor_borrow(&dl, 0, &table));
      expect_ok(sheaf_tensor_new(SHEAF_I64, 1, count, &indices));
      expect_ok(sheaf_tensor_new(SHEAF_I64, 1, bags, &offsets));
      for (int i = 0; i < ENTRIES; i++) tensor_set(indices, i, (double)(i * 5003 % ROWS));
      expect_ok(sheaf_tensor_require_grad(table, (sheaf_grad)kind));
      expect_ok(bag ? sheaf_embedding_bag(indices, table, offsets, NULL, &out)
                    : sheaf_embedding(indices, table, NULL, &out));
      expect_ok(sheaf_backward(out, NULL, NULL));
      assert_int_equal(sheaf_tensor_form(sheaf_tensor_grad(table)), SHEAF_FORM_SPARSE);
      same = table;
      sheaf_guard guard;
      expect_ok(sheaf_no_grad_begin(&guard));
      expect_ok(sheaf_add(table, sheaf_tensor_grad(table), -0.5, &same)); /* a step of gradient descent */
      expect_ok(sheaf_no_grad_end(&guard));
      sheaf_tensor_release(out);
      sheaf_tensor_release(table);
      sheaf_tensor_release(indices);
      sheaf_tensor_release(offsets);
      sheaf_clear_caches();
      assert_int_equal(heap.live, 0);
      if (heap.peak >= sizeof memory / 8)
        fail_msg("peak %zu bytes, largest block %zu; the table has %zu", heap.peak, heap.largest, sizeof memory);
    }
}

/* ---- Without data ---- */

static void test_sparse_sums_without_data(void **state)
{
  (void)state;
  sheaf_tensor *ids = tensor_untouchable(SHEAF_I64, SHAPE(3)), *rows = tensor_untouchable(SHEAF_F32, SHAPE(3, 4));
  sheaf_tensor *dense = tensor_untouchable(SHEAF_F32, SHAPE(9, 4)), *sparse, *out;
  expect_ok(sheaf_tensor_sparse(ids, rows, 9, 0, &sparse));
  tensor_keep(sparse);
  RESULT(out, sheaf_add(sparse, sparse, 2, &out));
  assert_int_equal(sheaf_tensor_form(out), SHEAF_FORM_SPARSE);
  assert_int_equal(sheaf_tensor_extent(sheaf_tensor_part(out, 0), 0), 6);
  RESULT(out, sheaf_add(dense, sparse, 2, &out));
  assert_int_equal(sheaf_tensor_form(out), SHEAF_FORM_META);
  assert_int_equal(sheaf_tensor_extent(out, 0), 9);
  RESULT(out, sheaf_add(sparse, dense, 2, &out));
  assert_int_equal(sheaf_tensor_form(out), SHEAF_FORM_META);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_ids_written_later_are_seen),
      TEST(test_sparse_becomes_dense),
      TEST(test_sparse_tables_read_as_dense_ones),
      TEST(test_missing_rows_are_zero),
      TEST(test_sums_of_sparse_and_dense),
      TEST(test_other_ops_take_sparse_tensors_densified),
      cmocka_unit_test_setup_teardown(test_sparse_gradients_stay_small, use_counted_heap, use_own_heap),
      TEST(test_sparse_sums_without_data),
  };
  return cmocka_run_group_tests_name("row-sparse tensors", tests, NULL, NULL);
}
