/* test_vmap_nested.c: nested tensors within vmap: results that are nested, of tables and indices of each slice, and what
 * comes after. Compared with the slices one by one; one plan run each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/tensors.h"

/* ---- Nested ---- */

enum { COMPONENTS = 3, ENTRIES = 5 };

static sheaf_tensor *offsets_of_three(void) { return tensor_of(SHEAF_I32, SHAPE(4), NUMBERS(0, 2, 2, 5)); }

static sheaf_tensor *nested_of(sheaf_tensor *values)
{
  sheaf_tensor *nested;
  expect_ok(sheaf_tensor_nested(values, offsets_of_three(), &nested));
  return tensor_keep(nested);
}

static void expect_nested_shape(const sheaf_tensor *t, int rank, const int64_t *shape)
{
  assert_int_equal(sheaf_tensor_form(t), SHEAF_FORM_NESTED);
  assert_int_equal(sheaf_tensor_rank(t), rank);
  for (int i = 0; i < rank; i++) assert_int_equal(sheaf_tensor_extent(t, i), shape[i]);
}

/* Tables of each slice, indices of each slice, or both: a nested result, in one run. */
static void test_nested_results(void **state)
{
  (void)state;
  sheaf_tensor *tables = tensor_random(SHEAF_F32, SHAPE(2, 6, 3), 1);
  sheaf_tensor *indices = tensor_random_ints(SHEAF_I64, 6, SHAPE(2, ENTRIES), 2);
  for (int mix = 1; mix < 4; mix++) {
    sheaf_tensor *table = mix & 1 ? tensor_batched(tables, 0, 1) : tensor_slice(tables, 0), *out = NULL;
    sheaf_tensor *index = nested_of(mix & 2 ? tensor_batched(indices, 0, 1) : tensor_slice(indices, 0));
    expect_ok(sheaf_profiler_begin());
    sheaf_status status = sheaf_embedding(index, table, NULL, &out);
    assert_int_equal(tensor_plan_runs(), 1);
    expect_ok(status);
    tensor_keep(out);
    assert_int_equal(sheaf_tensor_form(out), SHEAF_FORM_BATCHED);
    assert_int_equal(sheaf_tensor_rank(out), 3);
    assert_int_equal(sheaf_tensor_extent(out, 0), COMPONENTS);
    sheaf_tensor *all = tensor_shown(out, 1), *dense, *one, *alone;
    expect_nested_shape(all, SHAPE(2, COMPONENTS, -1, 3));
    RESULT(dense, sheaf_to_dense(all, &dense));
    for (int p = 0; p < 2; p++) {
      sheaf_tensor *values = tensor_slice(indices, mix & 2 ? p : 0);
      RESULT(one, sheaf_embedding(nested_of(values), tensor_slice(tables, mix & 1 ? p : 0), NULL, &one));
      RESULT(alone, sheaf_to_dense(one, &alone));
      expect_same_tensor(tensor_slice(dense, p), alone);
    }
  }
}

/* What comes after a lookup within vmap: casts, sums, components reduced; forward and backward. */
static void test_nested_results_go_on(void **state)
{
  (void)state;
  for (int reduce = SHEAF_REDUCE_SUM; reduce <= SHEAF_REDUCE_PROD; reduce++)
    for (int mix = 1; mix < 4; mix++) {
      sheaf_tensor *tables = tensor_random(SHEAF_F64, SHAPE(2, 6, 3), 1), *again[2], *out, *twice, *sums;
      sheaf_tensor *indices = tensor_random_ints(SHEAF_I64, 6, SHAPE(2, ENTRIES), 2);
      sheaf_tensor *grad = tensor_random(SHEAF_F64, SHAPE(2, COMPONENTS, 3), 3);
      for (int p = 0; p < 2; p++) again[p] = tensor_leaf(tensor_slice(tables, p), SHEAF_GRAD_DENSE);
      sheaf_tensor *own = mix & 1 ? tables : tensor_slice(tables, 0);
      tensor_leaf(own, SHEAF_GRAD_DENSE);
      sheaf_tensor *index = nested_of(mix & 2 ? tensor_batched(indices, 0, 1) : tensor_slice(indices, 0));
      RESULT(out, sheaf_embedding(index, mix & 1 ? tensor_batched(own, 0, 1) : own, NULL, &out));
      RESULT(twice, sheaf_add(out, out, 2, &twice));
      expect_ok(sheaf_profiler_begin());
      sums = NULL;
      sheaf_status status = sheaf_segment_reduce(twice, (sheaf_reduce)reduce, NULL, 0, NULL, &sums);
      assert_int_equal(tensor_plan_runs(), 1);
      expect_ok(status);
      tensor_keep(sums);
      sheaf_tensor *shown = tensor_shown(sums, 1);
      expect_ok(sheaf_backward(shown, grad, NULL));
      for (int p = 0; p < 2; p++) { /* a shared table gets both slices' gradients */
        sheaf_tensor *values = tensor_slice(indices, mix & 2 ? p : 0), *one, *more, *alone;
        sheaf_tensor *table = again[mix & 1 ? p : 0];
        RESULT(one, sheaf_embedding(nested_of(values), table, NULL, &one));
        RESULT(more, sheaf_add(one, one, 2, &more));
        RESULT(alone, sheaf_segment_reduce(more, (sheaf_reduce)reduce, NULL, 0, NULL, &alone));
        expect_same_tensor(tensor_slice(shown, p), alone);
        expect_ok(sheaf_backward(alone, tensor_slice(grad, p), NULL));
      }
      for (int p = 0; p < (mix & 1 ? 2 : 1); p++)
        expect_near_tensor(mix & 1 ? tensor_slice(sheaf_tensor_grad(own), p) : sheaf_tensor_grad(own),
                           sheaf_tensor_grad(again[p]), 1e-13);
    }
}

/* Bags of nested indices of each slice, over one table or one of each: all modes, gradients of every kind. */
static void test_bags_of_nested_indices(void **state)
{
  (void)state;
  for (int which = 0; which < 3 * 2 * 3; which++) {
    int mode = which % 3, own = which / 3 % 2;
    sheaf_grad kind = (sheaf_grad)(SHEAF_GRAD_DENSE + which / 6);
    sheaf_tensor *tables = tensor_random(SHEAF_F64, SHAPE(2, 6, 3), 1), *out, *alone, *dense;
    sheaf_tensor *indices = tensor_random_ints(SHEAF_I64, 6, SHAPE(2, ENTRIES), 2);
    sheaf_tensor *grad = tensor_random(SHEAF_F64, SHAPE(2, COMPONENTS, 3), 3);
    sheaf_tensor *table = tensor_leaf(own ? tables : tensor_slice(tables, 0), kind), *again[2];
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    options.mode = (sheaf_bag_mode)mode;
    RESULT(out, sheaf_embedding_bag(nested_of(tensor_batched(indices, 0, 1)), own ? tensor_batched(table, 0, 1) : table,
                                    NULL, &options, &out));
    sheaf_tensor *shown = tensor_shown(out, 1);
    expect_ok(sheaf_backward(shown, grad, NULL));
    for (int p = 0; p < 2; p++) again[p] = tensor_leaf(tensor_slice(tables, p), SHEAF_GRAD_DENSE);
    for (int p = 0; p < 2; p++) {
      RESULT(alone,
             sheaf_embedding_bag(nested_of(tensor_slice(indices, p)), again[own ? p : 0], NULL, &options, &alone));
      expect_same_tensor(tensor_slice(shown, p), alone);
      expect_ok(sheaf_backward(alone, tensor_slice(grad, p), NULL));
    }
    assert_int_equal(sheaf_tensor_form(sheaf_tensor_grad(table)),
                     kind == SHEAF_GRAD_DENSE ? SHEAF_FORM_DENSE : SHEAF_FORM_SPARSE);
    RESULT(dense, sheaf_to_dense(sheaf_tensor_grad(table), &dense));
    for (int p = 0; p < 1 + own; p++)
      expect_near_tensor(own ? tensor_slice(dense, p) : dense, sheaf_tensor_grad(again[p]), 1e-13);
  }
}

/* Weights that are a lookup themselves: rows of one column, nested like the indices. */
static void test_weights_looked_up(void **state)
{
  (void)state;
  sheaf_tensor *importance[2], *grads[2], *results[2];
  for (int nested = 0; nested < 2; nested++) {
    sheaf_tensor *tables = tensor_random(SHEAF_F64, SHAPE(2, 6, 3), 1), *values, *column, *weights, *out;
    sheaf_tensor *index = tensor_random_ints(SHEAF_I64, 6, SHAPE(ENTRIES), 2);
    importance[nested] = tensor_leaf(tensor_random(SHEAF_F64, SHAPE(6, 1), 4), SHEAF_GRAD_DENSE);
    values = nested ? nested_of(index) : index;
    RESULT(column, sheaf_embedding(values, importance[nested], NULL, &column));
    RESULT(weights, nested ? sheaf_reshape(column, SHAPE(COMPONENTS, -1), &weights)
                           : sheaf_reshape(column, SHAPE(ENTRIES), &weights));
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    options.mode = SHEAF_MODE_SUM;
    options.per_sample_weights = weights;
    options.include_last_offset = !nested;
    RESULT(out, sheaf_embedding_bag(values, tensor_batched(tables, 0, 1), nested ? NULL : offsets_of_three(), &options,
                                    &out));
    results[nested] = tensor_shown(out, 1);
    expect_ok(sheaf_backward(results[nested], tensor_random(SHEAF_F64, SHAPE(2, COMPONENTS, 3), 5), NULL));
    grads[nested] = sheaf_tensor_grad(importance[nested]);
  }
  expect_same_tensor(results[0], results[1]);
  expect_near_tensor(grads[1], grads[0], 1e-14);
}

/* What the weights' graph would need is not there: the sum over slices is no op. */
static void test_shared_nested_weights_are_not_differentiated_twice(void **state)
{
  (void)state;
  sheaf_tensor *tables = tensor_random(SHEAF_F64, SHAPE(2, 6, 3), 1), *column, *weights, *out;
  sheaf_tensor *importance = tensor_leaf(tensor_random(SHEAF_F64, SHAPE(6, 1), 4), SHEAF_GRAD_DENSE);
  sheaf_tensor *index = nested_of(tensor_random_ints(SHEAF_I64, 6, SHAPE(ENTRIES), 2));
  sheaf_tensor *grad = tensor_leaf(tensor_random(SHEAF_F64, SHAPE(2, COMPONENTS, 3), 5), SHEAF_GRAD_DENSE);
  RESULT(column, sheaf_embedding(index, importance, NULL, &column));
  RESULT(weights, sheaf_reshape(column, SHAPE(COMPONENTS, -1), &weights));
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  options.mode = SHEAF_MODE_SUM;
  options.per_sample_weights = weights;
  RESULT(out, sheaf_embedding_bag(index, tensor_batched(tables, 0, 1), NULL, &options, &out));
  sheaf_backward_options create = SHEAF_BACKWARD_OPTIONS_INIT;
  create.create_graph = 1;
  expect_status(sheaf_backward(tensor_shown(out, 1), grad, &create), SHEAF_UNSUPPORTED);
  expect_words("2 slices share", "differentiated again");
  assert_null(sheaf_tensor_grad(importance));
}

/* Two levels: the tables vary by the outer one, indices by the inner one. */
static void test_nested_results_of_nested_vmap(void **state)
{
  (void)state;
  sheaf_tensor *tables = tensor_leaf(tensor_random(SHEAF_F32, SHAPE(2, 6, 3), 1), SHEAF_GRAD_DENSE), *out = NULL;
  sheaf_tensor *indices = tensor_random_ints(SHEAF_I64, 6, SHAPE(4, ENTRIES), 2), *sum, *dense, *one, *alone;
  sheaf_tensor *index = nested_of(tensor_batched(indices, 0, 2));
  expect_ok(sheaf_profiler_begin());
  sheaf_status status = sheaf_embedding(index, tensor_batched(tables, 0, 1), NULL, &out);
  assert_int_equal(tensor_plan_runs(), 1);
  expect_ok(status);
  tensor_keep(out);
  RESULT(sum, sheaf_segment_reduce(out, SHEAF_REDUCE_SUM, NULL, 0, NULL, &sum));
  sheaf_tensor *all = tensor_shown(tensor_shown(out, 2), 1), *sums = tensor_shown(tensor_shown(sum, 2), 1);
  expect_nested_shape(all, SHAPE(2, 4, COMPONENTS, -1, 3));
  RESULT(dense, sheaf_to_dense(all, &dense));
  expect_ok(sheaf_backward(sums, NULL, NULL));
  for (int p = 0; p < 2; p++)
    for (int q = 0; q < 4; q++) {
      RESULT(one, sheaf_embedding(nested_of(tensor_slice(indices, q)), tensor_slice(tables, p), NULL, &one));
      RESULT(alone, sheaf_to_dense(one, &alone));
      expect_same_tensor(tensor_slice(tensor_slice(dense, p), q), alone);
    }
  for (int64_t i = 0; i < tensor_count(tables); i++) { /* ones go in: each row gets how often it is read */
    int64_t row = i / 3 % 6, count = 0;
    for (int64_t k = 0; k < tensor_count(indices); k++) count += (int64_t)tensor_number(indices, k) == row;
    assert_true(tensor_number(sheaf_tensor_grad(tables), i) == (double)count);
  }
}

static void test_shapes_of_nested_tensors(void **state)
{
  (void)state;
  sheaf_tensor *values = tensor_random(SHEAF_F32, SHAPE(ENTRIES, 4), 1), *nested = nested_of(values), *many, *shaped;
  RESULT(many, sheaf_expand(nested, 6, &many));
  expect_nested_shape(many, SHAPE(6, COMPONENTS, -1, 4));
  RESULT(shaped, sheaf_reshape(many, SHAPE(2, 3, COMPONENTS, -1, 2, 2), &shaped));
  expect_nested_shape(shaped, SHAPE(2, 3, COMPONENTS, -1, 2, 2));
  sheaf_tensor *moved, *dense, *plain, *wrong = NULL;
  RESULT(moved, sheaf_movedim(shaped, 0, 1, &moved));
  expect_nested_shape(moved, SHAPE(3, 2, COMPONENTS, -1, 2, 2));
  RESULT(dense, sheaf_to_dense(moved, &dense));
  RESULT(plain, sheaf_to_dense(nested, &plain));
  for (int64_t i = 0; i < tensor_count(dense); i++)
    assert_true(tensor_number(dense, i) == tensor_number(plain, i % tensor_count(plain)));
  expect_status(sheaf_movedim(shaped, 1, 2, &wrong), SHEAF_UNSUPPORTED);
  expect_words("from 1 to 2", "only the 2 before");
  expect_status(sheaf_reshape(nested, SHAPE(ENTRIES, 4), &wrong), SHEAF_INVALID_PROBLEM);
  expect_words("[3, -1, 4]", "3 components");
  expect_status(sheaf_reshape(nested, SHAPE(COMPONENTS, -1, 5), &wrong), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_batch(nested, 0, 1, &wrong), SHEAF_UNSUPPORTED);
  expect_words("components");
  expect_status(sheaf_segment_reduce(many, SHEAF_REDUCE_SUM, NULL, 0, NULL, &wrong), SHEAF_UNSUPPORTED);
  expect_words("[6, 3, -1, 4]", "sheaf_batch");
  assert_null(wrong);
}

static void test_nested_results_over_nothing(void **state)
{
  (void)state;
  sheaf_tensor *tables = tensor_leaf(tensor_of(SHEAF_F32, SHAPE(0, 6, 3), NULL), SHEAF_GRAD_DENSE), *out, *dense;
  sheaf_tensor *table = tensor_leaf(tensor_random(SHEAF_F32, SHAPE(6, 3), 1), SHEAF_GRAD_SPARSE), *sums;
  sheaf_tensor *index = nested_of(tensor_of(SHEAF_I64, SHAPE(ENTRIES), NULL));
  RESULT(out, sheaf_embedding(index, tensor_batched(tables, 0, 1), NULL, &out));
  expect_nested_shape(tensor_shown(out, 1), SHAPE(0, COMPONENTS, -1, 3));
  RESULT(sums, sheaf_segment_reduce(out, SHEAF_REDUCE_MEAN, NULL, 0, NULL, &sums));
  expect_ok(sheaf_backward(tensor_shown(sums, 1), NULL, NULL));
  assert_int_equal(sheaf_tensor_extent(sheaf_tensor_grad(tables), 0), 0);
  assert_int_equal(sheaf_tensor_rank(sheaf_tensor_grad(tables)), 3);
  index = nested_of(tensor_batched(tensor_of(SHEAF_I64, SHAPE(0, ENTRIES), NULL), 0, 1));
  RESULT(out, sheaf_embedding(index, table, NULL, &out));
  RESULT(sums, sheaf_segment_reduce(out, SHEAF_REDUCE_MEAN, NULL, 0, NULL, &sums));
  expect_ok(sheaf_backward(tensor_shown(sums, 1), NULL, NULL));
  assert_int_equal(sheaf_tensor_form(sheaf_tensor_grad(table)), SHEAF_FORM_SPARSE);
  RESULT(dense, sheaf_to_dense(sheaf_tensor_grad(table), &dense));
  for (int i = 0; i < 18; i++) assert_true(tensor_number(dense, i) == 0);
}

/* Shapes and checks without data. */
static void test_nested_results_without_data(void **state)
{
  (void)state;
  sheaf_tensor *nested, *out, *sums;
  expect_ok(
      sheaf_tensor_nested(tensor_untouchable(SHEAF_I64, SHAPE(7)), tensor_untouchable(SHEAF_I64, SHAPE(4)), &nested));
  tensor_keep(nested);
  RESULT(out, sheaf_embedding(nested, tensor_batched(tensor_untouchable(SHEAF_F32, SHAPE(2, 9, 3)), 0, 1), NULL, &out));
  expect_nested_shape(tensor_shown(out, 1), SHAPE(2, COMPONENTS, -1, 3));
  RESULT(sums, sheaf_segment_reduce(out, SHEAF_REDUCE_SUM, NULL, 0, NULL, &sums));
  assert_int_equal(sheaf_tensor_extent(tensor_shown(sums, 1), 1), COMPONENTS);
}

static void test_nested_indices_within_vmap(void **state)
{
  (void)state;
  sheaf_tensor *tables = tensor_random(SHEAF_F32, SHAPE(2, 6, 3), 1), *nested, *out, *alone;
  expect_ok(sheaf_tensor_nested(tensor_random_ints(SHEAF_I64, 6, SHAPE(5), 2),
                                tensor_of(SHEAF_I64, SHAPE(4), NUMBERS(0, 2, 2, 5)), &nested));
  tensor_keep(nested);
  RESULT(out, sheaf_embedding_bag(nested, tensor_batched(tables, 0, 1), NULL, NULL, &out));
  sheaf_tensor *all = tensor_shown(out, 1);
  for (int p = 0; p < 2; p++) {
    RESULT(alone, sheaf_embedding_bag(nested, tensor_slice(tables, p), NULL, NULL, &alone));
    expect_same_tensor(tensor_slice(all, p), alone);
  }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_nested_results),
      TEST(test_nested_results_go_on),
      TEST(test_bags_of_nested_indices),
      TEST(test_weights_looked_up),
      TEST(test_shared_nested_weights_are_not_differentiated_twice),
      TEST(test_nested_results_of_nested_vmap),
      TEST(test_shapes_of_nested_tensors),
      TEST(test_nested_results_over_nothing),
      TEST(test_nested_results_without_data),
      TEST(test_nested_indices_within_vmap),
  };
  return cmocka_run_group_tests_name("nested tensors within vmap", tests, NULL, NULL);
}
