/* test_vmap_gradients.c: gradients within vmap, and their gradients: against slopes, and against the slices one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "support/tensors.h"
#include "support/watch.h"

/* <unbatched result, g> for a mixture of batched operands, as the sum over slices of plain calls. */
typedef struct mixture {
  sheaf_tensor *table, *indices, *offsets, *weights, *g;
  int mix, mode;
} mixture;

static sheaf_tensor *slice(sheaf_tensor *t, int64_t i, int take)
{
  int64_t shape[8], count = 1;
  if (!take) return t;
  for (int d = 1; d < sheaf_tensor_rank(t); d++) count *= shape[d - 1] = sheaf_tensor_extent(t, d);
  sheaf_tensor *out = tensor_of(sheaf_tensor_dtype(t), sheaf_tensor_rank(t) - 1, shape, NULL);
  for (int64_t k = 0; k < count; k++) tensor_set(out, k, tensor_number(t, i * count + k));
  return out;
}

static double objective(const mixture *m)
{
  double sum = 0;
  sheaf_guard guard;
  expect_ok(sheaf_no_grad_begin(&guard));
  for (int64_t p = 0; p < 2; p++) {
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    sheaf_tensor *out = NULL;
    options.mode = (sheaf_bag_mode)m->mode;
    options.per_sample_weights = m->weights ? slice(m->weights, p, m->mix & 8) : NULL;
    expect_ok(sheaf_embedding_bag(slice(m->indices, p, m->mix & 2), slice(m->table, p, m->mix & 1),
                                  slice(m->offsets, p, m->mix & 4), &options, &out));
    for (int64_t i = 0; i < tensor_count(out); i++)
      sum += tensor_number(out, i) * tensor_number(m->g, p * tensor_count(out) + i);
    sheaf_tensor_release(out);
  }
  expect_ok(sheaf_no_grad_end(&guard));
  return sum;
}

static void check_slopes(const mixture *m, sheaf_tensor *leaf)
{
  sheaf_tensor *grad = NULL;
  tensor_result(sheaf_to_dense(sheaf_tensor_grad(leaf), &grad), &grad);
  assert_int_equal(sheaf_tensor_rank(grad), sheaf_tensor_rank(leaf));
  for (int64_t i = 0; i < tensor_count(leaf); i++) {
    double x = tensor_number(leaf, i), step = 1e-6;
    tensor_set(leaf, i, x + step);
    double up = objective(m);
    tensor_set(leaf, i, x - step);
    double slope = (up - objective(m)) / (2 * step);
    tensor_set(leaf, i, x);
    if (!(fabs(slope - tensor_number(grad, i)) <= 1e-7 * (1 + fabs(slope))))
      fail_msg("mix %d mode %d: gradient %d is %g, the slope %g", m->mix, m->mode, (int)i, tensor_number(grad, i),
               slope);
  }
}

static void test_vmap_gradients_have_the_slopes(void **state)
{
  (void)state;
  for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_MAX; mode++)
    for (int mix = 1; mix < 16; mix++)
      for (int sparse = 0; sparse < 2; sparse++) {
        int weighted = mode != SHEAF_MODE_MAX;
        if (!weighted && (mix & 8)) continue;
        mixture m = {.mix = mix, .mode = mode};
        m.table = mix & 1 ? tensor_random(SHEAF_F64, SHAPE(2, 4, 2), 1) : tensor_random(SHEAF_F64, SHAPE(4, 2), 1);
        m.indices =
            mix & 2 ? tensor_random_ints(SHEAF_I64, 4, SHAPE(2, 5), 2) : tensor_random_ints(SHEAF_I64, 4, SHAPE(5), 2);
        m.offsets = mix & 4 ? tensor_of(SHEAF_I64, SHAPE(2, 2), NUMBERS(0, 2, 0, 4))
                            : tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 3));
        if (weighted) {
          m.weights = mix & 8 ? tensor_random(SHEAF_F64, SHAPE(2, 5), 3) : tensor_random(SHEAF_F64, SHAPE(5), 3);
          for (int64_t i = 0; i < tensor_count(m.weights); i++)
            tensor_set(m.weights, i, 2 + tensor_number(m.weights, i));
          expect_ok(sheaf_tensor_require_grad(m.weights, SHEAF_GRAD_DENSE));
        }
        m.g = tensor_random(SHEAF_F64, SHAPE(2, 2, 2), 4);
        expect_ok(sheaf_tensor_require_grad(m.table, sparse ? SHEAF_GRAD_SPARSE : SHEAF_GRAD_DENSE));
        sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
        sheaf_tensor *out = NULL, *shown = NULL;
        options.mode = (sheaf_bag_mode)mode;
        if (weighted) options.per_sample_weights = mix & 8 ? tensor_batched(m.weights, 0, 1) : m.weights;
        tensor_result(WATCH(sheaf_embedding_bag(mix & 2 ? tensor_batched(m.indices, 0, 1) : m.indices,
                                                mix & 1 ? tensor_batched(m.table, 0, 1) : m.table,
                                                mix & 4 ? tensor_batched(m.offsets, 0, 1) : m.offsets, &options, &out)),
                      &out);
        assert_string_equal(visits, "Vmap Autograd Cpu ");
        tensor_result(sheaf_unbatch(out, 0, 1, &shown), &shown);
        expect_ok(sheaf_backward(shown, m.g, NULL));
        check_slopes(&m, m.table);
        if (weighted) check_slopes(&m, m.weights);
      }
}

static void test_vmap_gradients_through_moved_dimensions(void **state)
{
  (void)state;
  /* tables [V, batch, D]: the hidden dimension is in the middle, and the gradient comes back there */
  sheaf_tensor *tables = tensor_random(SHEAF_F64, SHAPE(3, 2, 2), 1),
               *indices = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(2, 0));
  sheaf_tensor *out = NULL, *shown = NULL, *g = tensor_of(SHEAF_F64, SHAPE(2, 2, 2), NUMBERS(1, 2, 3, 4, 5, 6, 7, 8));
  expect_ok(sheaf_tensor_require_grad(tables, SHEAF_GRAD_DENSE));
  tensor_result(sheaf_embedding(indices, tensor_batched(tables, 1, 1), NULL, &out), &out);
  tensor_result(sheaf_unbatch(out, 0, 1, &shown), &shown);
  expect_ok(sheaf_backward(shown, g, NULL));
  expect_tensor(sheaf_tensor_grad(tables), 3, 4, 7, 8, 0, 0, 0, 0, 1, 2, 5, 6);
  /* two levels: gradients of a table that only the outer one varies */
  sheaf_tensor *outer = tensor_random(SHEAF_F64, SHAPE(2, 3, 1), 2),
               *inner = tensor_of(SHEAF_I64, SHAPE(2, 2), NUMBERS(0, 1, 1, 1));
  expect_ok(sheaf_tensor_require_grad(outer, SHEAF_GRAD_DENSE));
  sheaf_tensor *both = NULL, *once = NULL, *twice = NULL;
  tensor_result(sheaf_embedding(tensor_batched(inner, 0, 2), tensor_batched(outer, 0, 1), NULL, &both), &both);
  tensor_result(sheaf_unbatch(both, 0, 2, &once), &once);
  tensor_result(sheaf_unbatch(once, 0, 1, &twice), &twice);
  expect_ok(sheaf_backward(twice, NULL, NULL));
  expect_tensor(sheaf_tensor_grad(outer), 1, 3, 0, 1, 3, 0);
  out = NULL;
  tensor_result(sheaf_embedding(indices, tensor_batched(tables, 1, 1), NULL, &out), &out);
  expect_status(sheaf_backward(out, NULL, NULL), SHEAF_INVALID_PROBLEM);
  expect_words("unbatch");
}

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

/* ---- Gradients of gradients ---- */

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

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_vmap_gradients_have_the_slopes),
      TEST(test_vmap_gradients_through_moved_dimensions),
      TEST(test_frequency_scaling_of_a_shared_table),
      TEST(test_lookups_twice_within_vmap),
      TEST(test_bags_twice_within_vmap),
      TEST(test_means_twice_within_vmap),
      TEST(test_segments_twice_within_vmap),
  };
  return cmocka_run_group_tests_name("gradients within vmap", tests, watch_layers, NULL);
}
