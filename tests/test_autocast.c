/* test_autocast.c: tables in 16 bits: the policy of each op, the cache of cast tables, gradients in the type of their leaf. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "support/tensors.h"
#include "support/watch.h"

static void test_autocast_lowers_tables(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(20, 7), 1),
               *indices = tensor_random_ints(SHEAF_I64, 20, SHAPE(9), 2);
  sheaf_tensor *weights = tensor_random(SHEAF_F32, SHAPE(9), 3),
               *offsets = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 4));
  for (int dtype = SHEAF_F16; dtype <= SHEAF_BF16; dtype++) {
    sheaf_tensor *low = NULL, *low_weights = NULL, *a = NULL, *b = NULL;
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    tensor_result(sheaf_cast(table, (sheaf_dtype)dtype, &low), &low);
    tensor_result(sheaf_cast(weights, (sheaf_dtype)dtype, &low_weights), &low_weights);
    expect_ok(sheaf_autocast_begin((sheaf_dtype)dtype));
    tensor_result(WATCH(sheaf_embedding(indices, table, NULL, &a)), &a);
    assert_string_equal(visits, "Autocast Cpu ");
    expect_ok(sheaf_autocast_end());
    tensor_result(sheaf_embedding(indices, low, NULL, &b), &b);
    expect_same_tensor(a, b);
    a = b = NULL;
    options.per_sample_weights = weights;
    expect_ok(sheaf_autocast_begin((sheaf_dtype)dtype));
    tensor_result(sheaf_embedding_bag(indices, table, offsets, &options, &a), &a);
    expect_ok(sheaf_autocast_end());
    options.per_sample_weights = low_weights;
    tensor_result(sheaf_embedding_bag(indices, low, offsets, &options, &b),
                  &b); /* f32 sums inside, as without autocast */
    expect_same_tensor(a, b);
  }
}

static void test_autocast_policy_of_other_ops(void **state)
{
  (void)state;
  sheaf_tensor *data = tensor_random(SHEAF_F32, SHAPE(4, 2), 1), *ids = tensor_of(SHEAF_I64, SHAPE(4), NULL);
  sheaf_tensor *wide = tensor_random(SHEAF_F64, SHAPE(4, 2), 2), *half = NULL, *out = NULL;
  tensor_result(sheaf_cast(data, SHEAF_F16, &half), &half);
  expect_ok(sheaf_autocast_begin(SHEAF_F16));
  tensor_result(sheaf_segment_reduce(data, SHEAF_REDUCE_SUM, ids, 1, NULL, &out), &out);
  assert_int_equal(sheaf_tensor_dtype(out), SHEAF_F32);
  out = NULL;
  tensor_result(sheaf_embedding(ids, wide, NULL, &out), &out);
  assert_int_equal(sheaf_tensor_dtype(out), SHEAF_F64);
  out = NULL;
  tensor_result(sheaf_add(half, data, 1, &out), &out);
  assert_int_equal(sheaf_tensor_dtype(out), SHEAF_F32);
  out = NULL;
  tensor_result(sheaf_add(data, wide, 1, &out), &out);
  assert_int_equal(sheaf_tensor_dtype(out), SHEAF_F64);
  expect_ok(sheaf_autocast_begin(SHEAF_DTYPE_NONE)); /* off within */
  out = NULL;
  tensor_result(sheaf_embedding(ids, data, NULL, &out), &out);
  assert_int_equal(sheaf_tensor_dtype(out), SHEAF_F32);
  expect_ok(sheaf_autocast_end());
  out = NULL;
  tensor_result(sheaf_embedding(ids, data, NULL, &out), &out);
  assert_int_equal(sheaf_tensor_dtype(out), SHEAF_F16);
  expect_ok(sheaf_autocast_end());
  expect_status(sheaf_autocast_begin(SHEAF_F64), SHEAF_UNSUPPORTED);
  assert_int_equal(sheaf_included_keys().bits, 0);
}

static void test_autocast_notices_writes(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_of(SHEAF_F32, SHAPE(2, 1), NUMBERS(1, 2)),
               *indices = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 1));
  sheaf_tensor *out = NULL, *same = table;
  expect_ok(sheaf_autocast_begin(SHEAF_BF16));
  tensor_result(sheaf_embedding(indices, table, NULL, &out), &out);
  expect_tensor(out, 1, 2);
  tensor_set(table, 0, 5); /* not announced: the cast table is still used */
  out = NULL;
  tensor_result(sheaf_embedding(indices, table, NULL, &out), &out);
  expect_tensor(out, 1, 2);
  sheaf_tensor_written(table);
  out = NULL;
  tensor_result(sheaf_embedding(indices, table, NULL, &out), &out);
  expect_tensor(out, 5, 2);
  expect_ok(sheaf_add(table, tensor_of(SHEAF_F32, SHAPE(2, 1), NUMBERS(1, 1)), 1, &same)); /* through Sheaf */
  out = NULL;
  tensor_result(sheaf_embedding(indices, table, NULL, &out), &out);
  expect_tensor(out, 6, 3);
  expect_ok(sheaf_autocast_end());
}

static void test_autocast_gradients_have_the_leafs_type(void **state)
{
  (void)state;
  for (int sparse = 0; sparse < 2; sparse++) {
    sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(5, 3), 1), *weights = tensor_random(SHEAF_F32, SHAPE(6), 2);
    sheaf_tensor *indices = tensor_random_ints(SHEAF_I64, 5, SHAPE(6), 3),
                 *offsets = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 3));
    sheaf_tensor *out = NULL, *dense = NULL;
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    options.per_sample_weights = weights;
    options.mode = SHEAF_MODE_SUM;
    expect_ok(sheaf_tensor_require_grad(table, sparse ? SHEAF_GRAD_SPARSE : SHEAF_GRAD_DENSE));
    expect_ok(sheaf_tensor_require_grad(weights, SHEAF_GRAD_DENSE));
    expect_ok(sheaf_autocast_begin(SHEAF_F16));
    tensor_result(WATCH(sheaf_embedding_bag(indices, table, offsets, &options, &out)), &out);
    assert_string_equal(visits, "Autograd Autocast Cpu ");
    expect_ok(sheaf_autocast_end());
    assert_int_equal(sheaf_tensor_dtype(out), SHEAF_F16);
    expect_ok(sheaf_backward(out, NULL, NULL));
    assert_int_equal(sheaf_tensor_dtype(sheaf_tensor_grad(table)), SHEAF_F32);
    assert_int_equal(sheaf_tensor_dtype(sheaf_tensor_grad(weights)), SHEAF_F32);
    tensor_result(sheaf_to_dense(sheaf_tensor_grad(table), &dense), &dense);
    for (int r = 0; r < 5; r++) {
      float sum = 0;
      for (int k = 0; k < 6; k++)
        if (tensor_number(indices, k) == r) sum += (float)tensor_number(weights, k);
      for (int d = 0; d < 3; d++) assert_true(fabs(tensor_number(dense, r * 3 + d) - (double)sum) < 1e-6);
    }
  }
}

/* The gradients of <toward, gradient of the input> by what that depends on. */
static void differentiate_twice(sheaf_tensor *out, sheaf_tensor *grad, sheaf_tensor *input, sheaf_tensor *toward)
{
  sheaf_backward_options twice = SHEAF_BACKWARD_OPTIONS_INIT;
  twice.create_graph = 1;
  expect_ok(sheaf_backward(out, grad, &twice));
  sheaf_tensor *first = tensor_keep(sheaf_tensor_retain(sheaf_tensor_grad(input)));
  sheaf_tensor_clear_grad(input);
  sheaf_tensor_clear_grad(grad);
  expect_ok(sheaf_backward(first, toward, NULL));
}

/* The forward decides the types: where backward runs makes no difference. */
static void test_second_gradients_within_autocast(void **state)
{
  (void)state;
  for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_SUM; mode++) {
    sheaf_tensor *table[2], *weights[2], *indices = tensor_random_ints(SHEAF_I64, 5, SHAPE(2, 3), 2), *out;
    for (int within = 0; within < 2; within++) {
      table[within] = tensor_leaf(tensor_random(SHEAF_F32, SHAPE(5, 3), 1), SHEAF_GRAD_DENSE);
      weights[within] = tensor_random(SHEAF_F32, SHAPE(2, 3), 3);
      for (int i = 0; i < 6; i++) tensor_set(weights[within], i, 2 + tensor_number(weights[within], i));
      tensor_leaf(weights[within], SHEAF_GRAD_DENSE);
      sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
      options.mode = (sheaf_bag_mode)mode;
      options.per_sample_weights = weights[within];
      expect_ok(sheaf_autocast_begin(SHEAF_F16));
      RESULT(out, sheaf_embedding_bag(indices, table[within], NULL, &options, &out));
      if (!within) expect_ok(sheaf_autocast_end());
      sheaf_tensor *grad = tensor_random(SHEAF_F16, SHAPE(2, 3), 4);
      differentiate_twice(out, grad, weights[within], tensor_random(SHEAF_F32, SHAPE(2, 3), 5));
      if (within) expect_ok(sheaf_autocast_end());
    }
    assert_true(sheaf_tensor_grad(table[0]) != NULL);
    expect_same_tensor(sheaf_tensor_grad(table[0]), sheaf_tensor_grad(table[1]));
    if (mode == SHEAF_MODE_MEAN) expect_same_tensor(sheaf_tensor_grad(weights[0]), sheaf_tensor_grad(weights[1]));
    for (int i = 0; i < 2; i++) sheaf_tensor_clear_grad(table[i]); /* which hold graphs, too */
  }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_autocast_lowers_tables),           TEST(test_autocast_policy_of_other_ops),
      TEST(test_autocast_notices_writes),          TEST(test_autocast_gradients_have_the_leafs_type),
      TEST(test_second_gradients_within_autocast),
  };
  return cmocka_run_group_tests_name("autocast", tests, watch_layers, NULL);
}
