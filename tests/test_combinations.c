/* test_combinations.c: layers that meet in less usual ways: row-sparse and nested tensors within vmap, shapes changed
 * there, vmap over nothing, gradients scaled and differentiated again there, sums without data. What vmap gives is
 * compared with the slices one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "support/tensors.h"

/* ---- Forms within vmap ---- */

static void test_row_sparse_tables_within_vmap(void **state)
{
  (void)state;
  sheaf_tensor *values = tensor_random(SHEAF_F32, SHAPE(3, 4), 1), *sparse, *dense, *out, *plain;
  expect_ok(sheaf_tensor_sparse(tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(5, 1, 5)), values, 7, 0, &sparse));
  tensor_keep(sparse);
  RESULT(dense, sheaf_to_dense(sparse, &dense));
  sheaf_tensor *indices = tensor_random_ints(SHEAF_I64, 7, SHAPE(3, 5), 2);
  for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_MAX; mode++) {
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    options.mode = (sheaf_bag_mode)mode;
    sheaf_tensor *offsets = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 2));
    RESULT(out, sheaf_embedding_bag(tensor_batched(indices, 0, 1), sparse, offsets, &options, &out));
    RESULT(plain, sheaf_embedding_bag(tensor_batched(indices, 0, 1), dense, offsets, &options, &plain));
    expect_same_tensor(tensor_shown(out, 1), tensor_shown(plain, 1));
  }
  RESULT(out, sheaf_embedding(tensor_batched(indices, 0, 1), sparse, NULL, &out));
  RESULT(plain, sheaf_embedding(indices, dense, NULL, &plain));
  expect_same_tensor(tensor_shown(out, 1), plain);
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

/* ---- Shapes within vmap ---- */

static void test_shapes_change_within_vmap(void **state)
{
  (void)state;
  sheaf_tensor *t = tensor_random(SHEAF_F32, SHAPE(2, 3, 4), 1), *out, *twice;
  RESULT(out, sheaf_reshape(tensor_batched(t, 0, 1), 1, (int64_t[]){12}, &out));
  assert_int_equal(sheaf_tensor_rank(out), 1);
  sheaf_tensor *flat = tensor_shown(out, 1);
  assert_int_equal(sheaf_tensor_extent(flat, 1), 12);
  for (int i = 0; i < 24; i++) assert_true(tensor_number(flat, i) == tensor_number(t, i));
  RESULT(out, sheaf_expand(tensor_batched(t, 0, 1), 5, &out));
  sheaf_tensor *repeated = tensor_shown(out, 1);
  assert_int_equal(sheaf_tensor_extent(repeated, 0), 2);
  assert_int_equal(sheaf_tensor_extent(repeated, 1), 5);
  for (int p = 0; p < 2; p++)
    for (int k = 0; k < 5; k++)
      for (int i = 0; i < 12; i++)
        assert_true(tensor_number(repeated, (p * 5 + k) * 12 + i) == tensor_number(t, p * 12 + i));
  RESULT(out,
         sheaf_reshape(tensor_batched(tensor_batched(t, 0, 1), 0, 2), 2, (int64_t[]){2, 2}, &out)); /* two levels */
  twice = tensor_shown(tensor_shown(out, 2), 1);
  assert_int_equal(sheaf_tensor_rank(twice), 4);
  for (int i = 0; i < 24; i++) assert_true(tensor_number(twice, i) == tensor_number(t, i));
  sheaf_tensor *none = NULL;
  expect_status(sheaf_reshape(tensor_batched(t, 0, 1), 1, (int64_t[]){11}, &none), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_reshape(tensor_batched(t, 0, 1), 8, (int64_t[]){12, 1, 1, 1, 1, 1, 1, 1}, &none),
                SHEAF_INVALID_PROBLEM);
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

static void test_vmap_over_nothing(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(4, 3), 1), *out, *packed;
  sheaf_tensor *none = tensor_batched(tensor_of(SHEAF_I64, SHAPE(0, 5), NULL), 0, 1);
  RESULT(out, sheaf_embedding(none, table, NULL, &out));
  sheaf_tensor *all = tensor_shown(out, 1);
  assert_int_equal(sheaf_tensor_rank(all), 3);
  assert_int_equal(sheaf_tensor_extent(all, 0), 0);
  assert_int_equal(sheaf_tensor_extent(all, 1), 5);
  assert_int_equal(sheaf_tensor_extent(all, 2), 3);
  RESULT(packed, sheaf_quantize(table, SHEAF_INT4, &packed));
  RESULT(out, sheaf_embedding_bag(none, packed, tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 3)), NULL, &out));
  all = tensor_shown(out, 1);
  assert_int_equal(sheaf_tensor_extent(all, 1), 2);
  assert_int_equal(sheaf_tensor_dtype(all), SHEAF_F32);
  sheaf_tensor *wrong = NULL; /* every check is made all the same */
  expect_status(sheaf_embedding_bag(none, table, NULL, NULL, &wrong), SHEAF_INVALID_PROBLEM);
  expect_words("indices", "[5]", "2 dimensions");
  assert_null(wrong);
}

static void test_gradients_over_nothing(void **state)
{
  (void)state;
  for (int which = 0; which < 6; which++) { /* the table alone, or weights of each slice (of none) too */
    int both = which & 1;
    sheaf_grad kind = (sheaf_grad)(SHEAF_GRAD_DENSE + which / 2);
    sheaf_tensor *table = tensor_leaf(tensor_random(SHEAF_F32, SHAPE(4, 3), 1), kind), *out, *dense;
    sheaf_tensor *weights = tensor_leaf(tensor_of(SHEAF_F32, SHAPE(0, 2, 5), NULL), SHEAF_GRAD_DENSE);
    sheaf_tensor *none = tensor_batched(tensor_of(SHEAF_I64, SHAPE(0, 2, 5), NULL), 0, 1);
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    if (both) options.per_sample_weights = tensor_batched(weights, 0, 1);
    RESULT(out, sheaf_embedding_bag(none, table, NULL, &options, &out));
    sheaf_tensor *all = tensor_shown(out, 1);
    assert_true(sheaf_tensor_requires_grad(all));
    assert_int_equal(sheaf_tensor_rank(all), 3);
    expect_ok(sheaf_backward(all, NULL, NULL));
    assert_non_null(sheaf_tensor_grad(table));
    assert_int_equal(sheaf_tensor_form(sheaf_tensor_grad(table)),
                     kind == SHEAF_GRAD_DENSE ? SHEAF_FORM_DENSE : SHEAF_FORM_SPARSE);
    RESULT(dense, sheaf_to_dense(sheaf_tensor_grad(table), &dense));
    expect_tensor(dense, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    if (!both) continue;
    assert_non_null(sheaf_tensor_grad(weights));
    assert_int_equal(sheaf_tensor_rank(sheaf_tensor_grad(weights)), 3);
    assert_int_equal(sheaf_tensor_extent(sheaf_tensor_grad(weights), 0), 0);
  }
  sheaf_tensor *data = tensor_leaf(tensor_random(SHEAF_F64, SHAPE(3), 1), SHEAF_GRAD_DENSE), *copies;
  RESULT(copies, sheaf_expand(data, 0, &copies)); /* no copies */
  expect_ok(sheaf_backward(copies, NULL, NULL));
  expect_tensor(sheaf_tensor_grad(data), 0, 0, 0);
}

/* ---- Gradients within vmap ---- */

/* Frequencies are those of a slice: the gradient of a shared table is the sum over slices that were alone. */
static void test_frequency_scaling_of_a_shared_table(void **state)
{
  (void)state;
  sheaf_tensor *indices = tensor_of(SHEAF_I64, SHAPE(2, 4), NUMBERS(1, 1, 3, 0, 1, 2, 2, 2)), *out;
  for (int bag = 0; bag < 2; bag++) {
    sheaf_tensor *table = tensor_leaf(tensor_random(SHEAF_F64, SHAPE(4, 2), 1), SHEAF_GRAD_DENSE);
    sheaf_tensor *again = tensor_leaf(tensor_random(SHEAF_F64, SHAPE(4, 2), 1), SHEAF_GRAD_DENSE);
    sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
    sheaf_embedding_bag_options bags = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    options.scale_grad_by_freq = bags.scale_grad_by_freq = 1;
    sheaf_tensor *offsets = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 1)), *hidden = tensor_batched(indices, 0, 1);
    if (bag)
      RESULT(out, sheaf_embedding_bag(hidden, table, offsets, &bags, &out));
    else
      RESULT(out, sheaf_embedding(hidden, table, &options, &out));
    sheaf_tensor *all = tensor_shown(out, 1), *grad = tensor_random(SHEAF_F64, SHAPE(2, bag ? 2 : 4, 2), 3);
    expect_ok(sheaf_backward(all, grad, NULL));
    for (int p = 0; p < 2; p++) {
      if (bag)
        RESULT(out, sheaf_embedding_bag(tensor_slice(indices, p), again, offsets, &bags, &out));
      else
        RESULT(out, sheaf_embedding(tensor_slice(indices, p), again, &options, &out));
      expect_ok(sheaf_backward(out, tensor_slice(grad, p), NULL));
    }
    expect_near_tensor(sheaf_tensor_grad(table), sheaf_tensor_grad(again), 1e-14);
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

static void test_lookups_twice_within_vmap(void **state)
{
  (void)state;
  sheaf_tensor *tables = tensor_leaf(tensor_random(SHEAF_F64, SHAPE(2, 5, 3), 1), SHEAF_GRAD_DENSE), *out;
  sheaf_tensor *indices = tensor_random_ints(SHEAF_I64, 5, SHAPE(2, 4), 2);
  sheaf_tensor *grad = tensor_leaf(tensor_random(SHEAF_F64, SHAPE(2, 4, 3), 3), SHEAF_GRAD_DENSE);
  sheaf_tensor *toward = tensor_random(SHEAF_F64, SHAPE(2, 5, 3), 4);
  RESULT(out, sheaf_embedding(tensor_batched(indices, 0, 1), tensor_batched(tables, 0, 1), NULL, &out));
  differentiate_twice(tensor_shown(out, 1), grad, tables, toward);
  for (int p = 0; p < 2; p++)
    for (int n = 0; n < 4; n++)
      for (int d = 0; d < 3; d++) /* looked up in what comes in */
        assert_true(tensor_number(sheaf_tensor_grad(grad), (p * 4 + n) * 3 + d) ==
                    tensor_number(toward, (p * 5 + (int64_t)tensor_number(indices, p * 4 + n)) * 3 + d));
}

static void test_bags_twice_within_vmap(void **state)
{
  (void)state;
  for (int shared = 0; shared < 2; shared++) { /* weights of each slice, or one for all */
    sheaf_tensor *tables = tensor_leaf(tensor_random(SHEAF_F64, SHAPE(2, 5, 3), 1), SHEAF_GRAD_DENSE), *out;
    sheaf_tensor *indices = tensor_random_ints(SHEAF_I64, 5, SHAPE(2, 6), 2);
    sheaf_tensor *weights = shared ? tensor_random(SHEAF_F64, SHAPE(6), 5) : tensor_random(SHEAF_F64, SHAPE(2, 6), 5);
    sheaf_tensor *grad = tensor_leaf(tensor_random(SHEAF_F64, SHAPE(2, 2, 3), 3), SHEAF_GRAD_DENSE);
    sheaf_tensor *toward = tensor_random(SHEAF_F64, SHAPE(2, 5, 3), 4);
    sheaf_tensor *offsets = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 4));
    tensor_leaf(weights, SHEAF_GRAD_DENSE);
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    options.mode = SHEAF_MODE_SUM;
    options.per_sample_weights = shared ? weights : tensor_batched(weights, 0, 1);
    RESULT(out,
           sheaf_embedding_bag(tensor_batched(indices, 0, 1), tensor_batched(tables, 0, 1), offsets, &options, &out));
    sheaf_backward_options twice = SHEAF_BACKWARD_OPTIONS_INIT;
    twice.create_graph = 1;
    expect_ok(sheaf_backward(tensor_shown(out, 1), grad, &twice));
    sheaf_tensor *first = tensor_keep(sheaf_tensor_retain(sheaf_tensor_grad(tables)));
    sheaf_tensor_clear_grad(tables);
    sheaf_tensor_clear_grad(weights);
    sheaf_tensor_clear_grad(grad);
    expect_ok(sheaf_backward(first, toward, NULL));
    /* d/dgrad[p,b] = sum of w_k G[i_k];  d/dw_k = <grad[p,b_k], G[i_k]> */
    for (int p = 0; p < 2; p++)
      for (int b = 0; b < 2; b++)
        for (int d = 0; d < 3; d++) {
          double sum = 0;
          for (int k = b ? 4 : 0; k < (b ? 6 : 4); k++)
            sum += tensor_number(weights, (shared ? 0 : p * 6) + k) *
                   tensor_number(toward, (p * 5 + (int64_t)tensor_number(indices, p * 6 + k)) * 3 + d);
          assert_true(fabs(tensor_number(sheaf_tensor_grad(grad), (p * 2 + b) * 3 + d) - sum) < 1e-13);
        }
    for (int p = 0; p < (shared ? 1 : 2); p++)
      for (int k = 0; k < 6; k++) {
        double slope = 0;
        for (int q = shared ? 0 : p; q < (shared ? 2 : p + 1); q++)
          for (int d = 0; d < 3; d++)
            slope += tensor_number(grad, (q * 2 + (k >= 4)) * 3 + d) *
                     tensor_number(toward, (q * 5 + (int64_t)tensor_number(indices, q * 6 + k)) * 3 + d);
        assert_true(fabs(tensor_number(sheaf_tensor_grad(weights), p * 6 + k) - slope) < 1e-13);
      }
  }
}

/* The leaves of a weighted mean, and the gradients by them of <toward, gradient of leaf `of`>. */
enum { OF_TABLE, OF_WEIGHTS, OF_GRAD, LEAVES };

static void mean_twice(sheaf_tensor *indices, sheaf_tensor *const *leaves, uint32_t hidden, int of, int scaled,
                       sheaf_tensor *toward)
{
  sheaf_tensor *offsets = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 4)), *ops[2], *out;
  for (int i = 0; i < LEAVES; i++) tensor_leaf(leaves[i], SHEAF_GRAD_DENSE);
  for (int i = 0; i < 2; i++) ops[i] = hidden >> i & 1 ? tensor_batched(leaves[i], 0, 1) : leaves[i];
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  options.scale_grad_by_freq = scaled != 0;
  options.per_sample_weights = ops[OF_WEIGHTS];
  int all = sheaf_tensor_rank(indices) > 1;
  RESULT(out,
         sheaf_embedding_bag(all ? tensor_batched(indices, 0, 1) : indices, ops[OF_TABLE], offsets, &options, &out));
  sheaf_backward_options twice = SHEAF_BACKWARD_OPTIONS_INIT;
  twice.create_graph = 1;
  expect_ok(sheaf_backward(all ? tensor_shown(out, 1) : out, leaves[OF_GRAD], &twice));
  sheaf_tensor *first = tensor_keep(sheaf_tensor_retain(sheaf_tensor_grad(leaves[of])));
  for (int i = 0; i < LEAVES; i++) sheaf_tensor_clear_grad(leaves[i]);
  expect_ok(sheaf_backward(first, toward, NULL));
}

static double grad_number(const sheaf_tensor *of, int64_t i)
{
  const sheaf_tensor *grad = sheaf_tensor_grad(of);
  return grad ? tensor_number(grad, i) : 0;
}

/* [1, ...] of the same numbers. */
static sheaf_tensor *as_slices(const sheaf_tensor *t)
{
  int64_t shape[8] = {1};
  for (int i = 0; i < sheaf_tensor_rank(t); i++) shape[i + 1] = sheaf_tensor_extent(t, i);
  sheaf_tensor *one = tensor_of(sheaf_tensor_dtype(t), sheaf_tensor_rank(t) + 1, shape, NULL);
  for (int64_t i = 0; i < tensor_count(t); i++) tensor_set(one, i, tensor_number(t, i));
  return one;
}

/* Each slice has what it has alone, and what slices share gets their sum. */
static void test_means_twice_within_vmap(void **state)
{
  (void)state;
  for (int which = 0; which < 16; which++) {
    int of = which & 1, scaled = which >> 3;
    uint32_t hidden = (uint32_t)which >> 1 & 3; /* a table of each slice, weights of each slice */
    sheaf_tensor *indices = tensor_random_ints(SHEAF_I64, 5, SHAPE(2, 6), 2), *alone[2][LEAVES];
    sheaf_tensor *all[] = {tensor_random(SHEAF_F64, SHAPE(2, 5, 3), 1), tensor_random(SHEAF_F64, SHAPE(2, 6), 5),
                           tensor_random(SHEAF_F64, SHAPE(2, 2, 3), 3)};
    sheaf_tensor *toward =
        of == OF_TABLE ? tensor_random(SHEAF_F64, SHAPE(2, 5, 3), 4) : tensor_random(SHEAF_F64, SHAPE(2, 6), 4);
    for (int i = 0; i < 12; i++) tensor_set(all[OF_WEIGHTS], i, 2 + tensor_number(all[OF_WEIGHTS], i));
    for (int i = 0; i < 2; i++)
      if (!(hidden >> i & 1)) all[i] = tensor_slice(all[i], 0);
    if (!(hidden >> of & 1)) toward = tensor_slice(toward, 0);
    mean_twice(indices, all, hidden, of, scaled, toward);
    for (int p = 0; p < 2; p++) {
      for (int i = 0; i < LEAVES; i++) {
        int own = i == OF_GRAD || (hidden >> i & 1);
        alone[p][i] = tensor_slice(own ? all[i] : as_slices(all[i]), own ? p : 0);
      }
      mean_twice(tensor_slice(indices, p), alone[p], 0, of, scaled,
                 hidden >> of & 1 ? tensor_slice(toward, p) : toward);
    }
    for (int i = 0; i < LEAVES; i++) {
      int own = i == OF_GRAD || (hidden >> i & 1);
      int64_t each = tensor_count(alone[0][i]);
      for (int64_t k = 0; k < tensor_count(all[i]); k++) {
        double should =
            own ? grad_number(alone[k / each][i], k % each) : grad_number(alone[0][i], k) + grad_number(alone[1][i], k);
        if (!(fabs(grad_number(all[i], k) - should) <= 1e-12))
          fail_msg("case %d, leaf %d: %d is %.15g, the slices give %.15g", which, i, (int)k, grad_number(all[i], k),
                   should);
      }
    }
    for (int i = 0; i < LEAVES; i++) sheaf_tensor_clear_grad(all[i]);
  }
}

static void test_segments_twice_within_vmap(void **state)
{
  (void)state;
  sheaf_tensor *data = tensor_leaf(tensor_random(SHEAF_F64, SHAPE(2, 5, 2), 1), SHEAF_GRAD_DENSE), *out;
  sheaf_tensor *ids = tensor_of(SHEAF_I64, SHAPE(2, 5), NUMBERS(0, 0, 1, 2, 2, 0, 1, 1, 1, 2));
  sheaf_tensor *grad = tensor_leaf(tensor_random(SHEAF_F64, SHAPE(2, 3, 2), 3), SHEAF_GRAD_DENSE);
  sheaf_tensor *toward = tensor_random(SHEAF_F64, SHAPE(2, 5, 2), 4);
  RESULT(out,
         sheaf_segment_reduce(tensor_batched(data, 0, 1), SHEAF_REDUCE_MEAN, tensor_batched(ids, 0, 1), 3, NULL, &out));
  differentiate_twice(tensor_shown(out, 1), grad, data, toward);
  for (int p = 0; p < 2; p++)
    for (int s = 0; s < 3; s++)
      for (int d = 0; d < 2; d++) {
        double sum = 0, count = 0;
        for (int n = 0; n < 5; n++)
          if ((int)tensor_number(ids, p * 5 + n) == s) {
            sum += tensor_number(toward, (p * 5 + n) * 2 + d);
            count++;
          }
        assert_true(fabs(tensor_number(sheaf_tensor_grad(grad), (p * 3 + s) * 2 + d) - sum / count) < 1e-14);
      }
}

/* ---- Second gradients within autocast ---- */

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

/* ---- Sums without data ---- */

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
      TEST(test_row_sparse_tables_within_vmap),    TEST(test_nested_indices_within_vmap),
      TEST(test_nested_rows_are_quantised),        TEST(test_shapes_change_within_vmap),
      TEST(test_reshape_of_a_slice_copies),        TEST(test_vmap_over_nothing),
      TEST(test_gradients_over_nothing),           TEST(test_frequency_scaling_of_a_shared_table),
      TEST(test_lookups_twice_within_vmap),        TEST(test_bags_twice_within_vmap),
      TEST(test_means_twice_within_vmap),          TEST(test_segments_twice_within_vmap),
      TEST(test_second_gradients_within_autocast), TEST(test_sparse_sums_without_data),
  };
  return cmocka_run_group_tests_name("combinations", tests, NULL, NULL);
}
