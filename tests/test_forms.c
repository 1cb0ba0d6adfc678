/* test_forms.c: quantised and nested tensors, each against the same computation on dense tensors, written out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "support/tensors.h"

/* ---- Quantised ---- */

static void test_quantised_tables_read_as_their_values(void **state)
{
  (void)state;
  for (int bits = 0; bits < 2; bits++) {
    sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(7, 5), 3), *packed = NULL, *plain = NULL;
    sheaf_tensor *indices = tensor_random_ints(SHEAF_I64, 7, SHAPE(12), 4),
                 *offsets = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 5));
    tensor_result(sheaf_quantize(table, bits ? SHEAF_INT4 : SHEAF_INT8, &packed), &packed);
    tensor_result(sheaf_dequantize(packed, SHEAF_DTYPE_NONE, &plain), &plain);
    expect_near_tensor(plain, table, bits ? 0.2 : 0.01);
    for (int dtype = SHEAF_F32; dtype <= SHEAF_BF16; dtype++) {
      if (dtype == SHEAF_F64) continue;
      sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
      sheaf_embedding_bag_options bag = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
      sheaf_tensor *a = NULL, *b = NULL, *c = NULL;
      options.out_dtype = bag.out_dtype = (sheaf_dtype)dtype;
      tensor_result(sheaf_embedding(indices, packed, &options, &a), &a);
      assert_int_equal(sheaf_tensor_dtype(a), dtype);
      options.out_dtype = SHEAF_DTYPE_NONE;
      tensor_result(sheaf_embedding(indices, plain, &options, &b), &b);
      tensor_result(sheaf_cast(b, (sheaf_dtype)dtype, &c), &c);
      expect_same_tensor(a, c);
      a = b = c = NULL;
      tensor_result(sheaf_embedding_bag(indices, packed, offsets, &bag, &a), &a);
      bag.out_dtype = SHEAF_DTYPE_NONE;
      tensor_result(sheaf_embedding_bag(indices, plain, offsets, &bag, &b), &b);
      tensor_result(sheaf_cast(b, (sheaf_dtype)dtype, &c), &c);
      expect_same_tensor(a, c);
    }
  }
}

static void expect_same_packed(const sheaf_tensor *a, const sheaf_tensor *b)
{
  assert_int_equal(sheaf_tensor_form(a), SHEAF_FORM_QUANTIZED);
  assert_int_equal(sheaf_tensor_dtype(a), sheaf_tensor_dtype(b));
  const DLTensor *x = sheaf_tensor_dl(a), *y = sheaf_tensor_dl(b);
  assert_int_equal(x->shape[0], y->shape[0]);
  assert_int_equal(x->shape[1], y->shape[1]);
  assert_memory_equal(sheaf_tensor_data(a), sheaf_tensor_data(b), (size_t)(x->shape[0] * x->shape[1]));
}

static void test_other_ops_dequantise_and_quantise_again(void **state)
{
  (void)state;
  sheaf_tensor *data = tensor_random(SHEAF_F32, SHAPE(6, 3), 5), *packed = NULL, *plain = NULL, *a = NULL, *b = NULL;
  sheaf_tensor *ids = tensor_of(SHEAF_I64, SHAPE(6), NUMBERS(0, 0, 1, 1, 1, 2)), *again = NULL;
  tensor_result(sheaf_quantize(data, SHEAF_INT8, &packed), &packed);
  tensor_result(sheaf_to_dense(packed, &plain), &plain);
  sheaf_segment_options options = SHEAF_SEGMENT_OPTIONS_INIT;
  tensor_result(sheaf_segment_reduce(packed, SHEAF_REDUCE_SUM, ids, 3, &options, &a), &a);
  tensor_result(sheaf_segment_reduce(plain, SHEAF_REDUCE_SUM, ids, 3, &options, &b), &b);
  expect_same_tensor(a, b);
  tensor_result(sheaf_quantize(b, SHEAF_INT4, &again), &again);
  options.out_dtype = SHEAF_INT4;
  a = NULL;
  tensor_result(sheaf_segment_reduce(packed, SHEAF_REDUCE_SUM, ids, 3, &options, &a), &a);
  expect_same_packed(a, again);
  a = b = NULL;
  tensor_result(sheaf_add(packed, plain, 2, &a), &a);
  tensor_result(sheaf_add(plain, plain, 2, &b), &b);
  expect_same_tensor(a, b);
  a = b = again = NULL;
  tensor_result(sheaf_cast(packed, SHEAF_F64, &a), &a);
  assert_int_equal(sheaf_tensor_dtype(a), SHEAF_F64);
  expect_near_tensor(a, plain, 1e-9);
  tensor_result(sheaf_cast(packed, SHEAF_INT4, &b), &b);
  tensor_result(sheaf_quantize(plain, SHEAF_INT4, &again), &again);
  expect_same_packed(b, again);
  /* a dense table asked for a quantised result */
  sheaf_embedding_options pack = SHEAF_EMBEDDING_OPTIONS_INIT;
  sheaf_tensor *rows = NULL;
  pack.out_dtype = SHEAF_INT8;
  a = b = NULL;
  tensor_result(sheaf_embedding(ids, data, &pack, &a), &a);
  tensor_result(sheaf_embedding(ids, data, NULL, &rows), &rows);
  tensor_result(sheaf_quantize(rows, SHEAF_INT8, &b), &b);
  expect_same_packed(a, b);
  tensor_set(data, 4, NAN);
  a = NULL;
  expect_status(sheaf_quantize(data, SHEAF_INT8, &a), SHEAF_INVALID_PROBLEM);
  expect_words("row 1");
}

static void test_weights_over_quantised_tables_have_gradients(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(5, 3), 5), *packed = NULL, *plain = NULL, *grads[2];
  sheaf_tensor *indices = tensor_of(SHEAF_I64, SHAPE(4), NUMBERS(0, 4, 2, 2)),
               *offsets = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 3));
  tensor_result(sheaf_quantize(table, SHEAF_INT8, &packed), &packed);
  tensor_result(sheaf_dequantize(packed, SHEAF_F32, &plain), &plain);
  for (int i = 0; i < 2; i++) {
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    sheaf_tensor *weights = tensor_random(SHEAF_F32, SHAPE(4), 6), *out = NULL;
    options.per_sample_weights = weights;
    options.mode = SHEAF_MODE_SUM;
    expect_ok(sheaf_tensor_require_grad(weights, SHEAF_GRAD_DENSE));
    tensor_result(sheaf_embedding_bag(indices, i ? plain : packed, offsets, &options, &out), &out);
    expect_ok(sheaf_backward(out, NULL, NULL));
    grads[i] = sheaf_tensor_grad(weights);
  }
  expect_same_tensor(grads[0], grads[1]);
}

/* ---- Nested ---- */

static void test_nested_indices(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(6, 3), 7),
               *values = tensor_random_ints(SHEAF_I32, 6, SHAPE(8), 8);
  sheaf_tensor *offsets = tensor_of(SHEAF_I64, SHAPE(5), NUMBERS(0, 3, 3, 4, 8)), *nested, *a = NULL, *b = NULL,
               *dense = NULL;
  sheaf_tensor *weights = tensor_random(SHEAF_F32, SHAPE(8), 9), *nested_weights;
  expect_ok(sheaf_tensor_nested(values, offsets, &nested));
  expect_ok(sheaf_tensor_nested(weights, offsets, &nested_weights));
  tensor_keep(nested);
  tensor_keep(nested_weights);
  expect_ok(sheaf_profiler_begin());
  sheaf_status status = sheaf_embedding(nested, table, NULL, &a);
  assert_int_equal(tensor_plan_runs(), 1);
  tensor_result(status, &a);
  assert_int_equal(sheaf_tensor_form(a), SHEAF_FORM_NESTED);
  tensor_result(sheaf_embedding(values, table, NULL, &b), &b);
  expect_same_tensor(sheaf_tensor_part(a, 0), b);
  tensor_result(sheaf_to_dense(a, &dense), &dense);
  assert_int_equal(sheaf_tensor_extent(dense, 1), 4);
  for (int c = 0; c < 4; c++)
    for (int i = 0; i < 4; i++) {
      int64_t start = (int64_t)tensor_number(offsets, c), end = (int64_t)tensor_number(offsets, c + 1);
      for (int d = 0; d < 3; d++)
        assert_true(tensor_number(dense, (c * 4 + i) * 3 + d) ==
                    (start + i < end ? tensor_number(b, (start + i) * 3 + d) : 0));
    }
  for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_MAX; mode++)
    for (int weighted = 0; weighted < (mode == SHEAF_MODE_MAX ? 1 : 3); weighted++) {
      sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
      options.mode = (sheaf_bag_mode)mode;
      options.per_sample_weights = weighted == 0 ? NULL : weighted == 1 ? weights : nested_weights;
      a = b = NULL;
      expect_ok(sheaf_profiler_begin());
      status = sheaf_embedding_bag(nested, table, NULL, &options, &a);
      assert_int_equal(tensor_plan_runs(), 1);
      tensor_result(status, &a);
      options.include_last_offset = 1;
      if (weighted) options.per_sample_weights = weights;
      tensor_result(sheaf_embedding_bag(values, table, offsets, &options, &b), &b);
      expect_same_tensor(a, b);
    }
  a = NULL;
  expect_status(sheaf_embedding_bag(nested, table, offsets, NULL, &a), SHEAF_INVALID_PROBLEM);
  expect_words("nested", "offsets");
}

static void test_nested_data_are_segments(void **state)
{
  (void)state;
  sheaf_tensor *values = tensor_random(SHEAF_F64, SHAPE(8, 2), 7),
               *ids = tensor_of(SHEAF_I64, SHAPE(8), NUMBERS(0, 0, 0, 2, 3, 3, 3, 3));
  sheaf_tensor *nested;
  expect_ok(sheaf_tensor_nested(values, tensor_of(SHEAF_I32, SHAPE(5), NUMBERS(0, 3, 3, 4, 8)), &nested));
  tensor_keep(nested);
  for (int reduce = SHEAF_REDUCE_SUM; reduce <= SHEAF_REDUCE_PROD; reduce++) {
    sheaf_tensor *a = NULL, *b = NULL;
    expect_ok(sheaf_profiler_begin());
    sheaf_status status = sheaf_segment_reduce(nested, (sheaf_reduce)reduce, NULL, 0, NULL, &a);
    assert_int_equal(tensor_plan_runs(), 1);
    tensor_result(status, &a);
    tensor_result(sheaf_segment_reduce(values, (sheaf_reduce)reduce, ids, 4, NULL, &b), &b);
    expect_same_tensor(a, b);
  }
  sheaf_tensor *a = NULL, *twice = NULL, *flat = NULL, *other;
  expect_status(sheaf_segment_reduce(nested, SHEAF_REDUCE_SUM, NULL, 5, NULL, &a), SHEAF_INVALID_PROBLEM);
  expect_words("5 segments", "4 components");
  tensor_result(sheaf_add(nested, nested, 1, &twice), &twice);
  tensor_result(sheaf_add(values, values, 1, &flat), &flat);
  expect_same_tensor(sheaf_tensor_part(twice, 0), flat);
  expect_ok(sheaf_tensor_nested(values, tensor_of(SHEAF_I32, SHAPE(5), NUMBERS(0, 3, 3, 5, 8)), &other));
  tensor_keep(other);
  a = NULL;
  expect_status(sheaf_add(nested, other, 1, &a), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_movedim(nested, 0, 1, &a), SHEAF_UNSUPPORTED);
}

static void test_nested_rows_are_quantised(void **state)
{
  (void)state;
  sheaf_tensor *values = tensor_random(SHEAF_F32, SHAPE(5, 4), 1), *nested, *packed, *back, *alone, *dense;
  expect_ok(sheaf_tensor_nested(values, tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 4, 5)), &nested));
  tensor_keep(nested);
  RESULT(packed, sheaf_quantize(nested, SHEAF_INT8, &packed));
  assert_int_equal(sheaf_tensor_form(packed), SHEAF_FORM_NESTED);
  assert_int_equal(sheaf_tensor_dtype(packed), SHEAF_INT8);
  RESULT(back, sheaf_dequantize(packed, SHEAF_F32, &back));
  RESULT(alone, sheaf_quantize(values, SHEAF_INT8, &alone));
  RESULT(dense, sheaf_dequantize(alone, SHEAF_F32, &dense));
  expect_same_tensor(sheaf_tensor_part(back, 0), dense);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_quantised_tables_read_as_their_values),
      TEST(test_other_ops_dequantise_and_quantise_again),
      TEST(test_weights_over_quantised_tables_have_gradients),
      TEST(test_nested_indices),
      TEST(test_nested_data_are_segments),
      TEST(test_nested_rows_are_quantised),
  };
  return cmocka_run_group_tests_name("quantised and nested tensors", tests, NULL, NULL);
}
