/* test_vmap_sparse.c: row-sparse tables and gradients within vmap, shared or of each slice: the bits of dense ones, one plan
 * run, little memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "support/heap.h"
#include "support/tensors.h"

/* ---- Row-sparse gradients of tables of each slice ---- */

typedef struct grads_case {
  int mode;                             /* of bags; -1: a lookup */
  int padded, scaled, weighted, shared; /* shared: indices, else each slice has its own */
} grads_case;

static sheaf_tensor *run_case(const grads_case *c, sheaf_tensor *indices, sheaf_tensor *table, sheaf_tensor *weights)
{
  sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
  sheaf_embedding_bag_options bags = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  sheaf_tensor *out;
  options.has_padding = bags.has_padding = (uint8_t)c->padded;
  options.padding_idx = bags.padding_idx = 2;
  options.scale_grad_by_freq = bags.scale_grad_by_freq = (uint8_t)c->scaled;
  bags.mode = (sheaf_bag_mode)(c->mode < 0 ? 0 : c->mode);
  bags.per_sample_weights = weights;
  sheaf_tensor *offsets = tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 1, 1));
  return c->mode < 0 ? RESULT(out, sheaf_embedding(indices, table, &options, &out))
                     : RESULT(out, sheaf_embedding_bag(indices, table, offsets, &bags, &out));
}

static sheaf_tensor *gradient_of_case(const grads_case *c, sheaf_grad kind, sheaf_tensor *indices)
{
  sheaf_tensor *tables = tensor_leaf(tensor_random(SHEAF_F32, SHAPE(3, 9, 5), 1), kind);
  sheaf_tensor *weights = c->weighted ? tensor_leaf(tensor_random(SHEAF_F32, SHAPE(3, 6), 7), SHEAF_GRAD_DENSE) : NULL;
  sheaf_tensor *out = run_case(c, c->shared ? indices : tensor_batched(indices, 0, 1), tensor_batched(tables, 0, 1),
                               weights ? tensor_batched(weights, 0, 1) : NULL);
  sheaf_tensor *shown = tensor_shown(out, 1);
  int64_t shape[] = {3, sheaf_tensor_extent(shown, 1), 5};
  expect_ok(sheaf_backward(shown, tensor_random(SHEAF_F32, 3, shape, 4), NULL));
  return sheaf_tensor_grad(tables);
}

/* The bits of the dense gradient, in the shape of the leaf; ids count the rows of all slices, and increase. */
static void test_gradients_have_the_bits_of_dense_ones(void **state)
{
  (void)state;
  /* the slices touch different numbers of rows, one of them a single row, another twice as many */
  sheaf_tensor *own = tensor_of(SHEAF_I32, SHAPE(3, 6), NUMBERS(2, 7, 7, 0, 2, 8, 4, 4, 4, 4, 4, 4, 8, 7, 6, 5, 1, 0));
  for (int which = 0; which < 4 * 2 * 2 * 2 * 2; which++) {
    grads_case c = {.mode = which % 4 - 1, .padded = which >> 2 & 1, .scaled = which >> 3 & 1};
    c.weighted = which >> 4 & 1;
    c.shared = which >> 5;
    if (c.mode == SHEAF_MODE_MAX && (c.scaled || c.weighted)) continue;
    if (c.mode < 0 && c.weighted) continue;
    sheaf_tensor *indices = c.shared ? tensor_slice(own, 0) : own, *sparse[2], *dense[2];
    sheaf_tensor *expected = gradient_of_case(&c, SHEAF_GRAD_DENSE, indices);
    for (int raw = 0; raw < 2; raw++) {
      sparse[raw] = gradient_of_case(&c, raw ? SHEAF_GRAD_SPARSE_RAW : SHEAF_GRAD_SPARSE, indices);
      assert_int_equal(sheaf_tensor_form(sparse[raw]), SHEAF_FORM_SPARSE);
      assert_int_equal(sheaf_tensor_rank(sparse[raw]), 3);
      assert_int_equal(sheaf_tensor_extent(sparse[raw], 0), 3);
      RESULT(dense[raw], sheaf_to_dense(sparse[raw], &dense[raw]));
      if (raw) /* entries are rounded one by one */
        expect_near_tensor(dense[raw], expected, 1e-6);
      else
        expect_same_tensor(dense[raw], expected);
    }
    const sheaf_tensor *ids = sheaf_tensor_part(sparse[0], 0);
    assert_true(sheaf_tensor_is_coalesced(sparse[0]));
    for (int64_t i = 0; i < tensor_count(ids); i++) {
      if (i) assert_true(tensor_number(ids, i) > tensor_number(ids, i - 1));
      if (c.padded) assert_true((int64_t)tensor_number(ids, i) % 9 != 2);
    }
    int64_t raw_rows = tensor_count(sheaf_tensor_part(sparse[1], 0));
    if (c.mode != SHEAF_MODE_MAX && !c.scaled) assert_true(raw_rows == 18 - (c.padded ? (c.shared ? 6 : 2) : 0));
  }
}

/* A step of descent touches the rows that the gradient has, of each table. */
static void test_a_step_with_tables_of_each_slice(void **state)
{
  (void)state;
  sheaf_tensor *tables = tensor_random(SHEAF_F32, SHAPE(2, 5, 3), 1),
               *before = tensor_random(SHEAF_F32, SHAPE(2, 5, 3), 1);
  sheaf_tensor *indices = tensor_of(SHEAF_I64, SHAPE(2, 2), NUMBERS(4, 4, 0, 3)), *out, *same = tables;
  tensor_leaf(tables, SHEAF_GRAD_SPARSE);
  for (int round = 0; round < 2; round++) { /* two backwards add up */
    RESULT(out, sheaf_embedding(tensor_batched(indices, 0, 1), tensor_batched(tables, 0, 1), NULL, &out));
    expect_ok(sheaf_backward(tensor_shown(out, 1), NULL, NULL));
  }
  expect_tensor(sheaf_tensor_part(sheaf_tensor_grad(tables), 0), 4, 5, 8);
  sheaf_guard guard;
  expect_ok(sheaf_no_grad_begin(&guard));
  expect_ok(sheaf_add(tables, sheaf_tensor_grad(tables), -0.5, &same));
  expect_ok(sheaf_no_grad_end(&guard));
  for (int i = 0; i < 30; i++) {
    int row = i / 3, times = row == 4 ? 4 : row == 5 || row == 8 ? 2 : 0;
    assert_true(tensor_number(tables, i) == (double)((float)tensor_number(before, i) - 0.5F * (float)times));
  }
}

/* Two levels make one dimension of theirs; the wish of the leaf reaches through. */
static void test_sparse_gradients_of_nested_vmap(void **state)
{
  (void)state;
  sheaf_tensor *grads[2];
  for (int sparse = 0; sparse < 2; sparse++) {
    sheaf_tensor *tables = tensor_random(SHEAF_F64, SHAPE(2, 3, 5, 2), 1), *out;
    sheaf_tensor *indices = tensor_random_ints(SHEAF_I64, 5, SHAPE(3, 4), 2);
    tensor_leaf(tables, sparse ? SHEAF_GRAD_SPARSE : SHEAF_GRAD_DENSE);
    RESULT(out, sheaf_embedding(tensor_batched(indices, 0, 2), tensor_batched(tensor_batched(tables, 0, 1), 0, 2), NULL,
                                &out));
    expect_ok(
        sheaf_backward(tensor_shown(tensor_shown(out, 2), 1), tensor_random(SHEAF_F64, SHAPE(2, 3, 4, 2), 3), NULL));
    grads[sparse] = sheaf_tensor_grad(tables);
    if (!sparse) continue;
    assert_int_equal(sheaf_tensor_form(grads[1]), SHEAF_FORM_SPARSE);
    assert_int_equal(sheaf_tensor_rank(grads[1]), 4);
    RESULT(out, sheaf_to_dense(grads[1], &out));
    grads[1] = out;
  }
  expect_same_tensor(grads[1], grads[0]);
}

/* Frequencies are those of a slice, and what slices give is added up: the dense gradient's bits, for more slices than
 * are added in a row. */
static void test_scaled_sparse_gradients_of_a_shared_table(void **state)
{
  (void)state;
  enum { SLICES = 35 };
  sheaf_tensor *indices = tensor_random_ints(SHEAF_I64, 12, SHAPE(SLICES, 6), 2);
  for (int which = 0; which < 2 * 3; which++) {
    int bag = which % 2;
    sheaf_grad kind = (sheaf_grad)(SHEAF_GRAD_DENSE + which / 2);
    static sheaf_tensor *expected[2];
    sheaf_tensor *table = tensor_leaf(tensor_random(SHEAF_F32, SHAPE(40, 5), 1), kind), *dense;
    grads_case c = {.mode = bag ? SHEAF_MODE_SUM : -1, .scaled = 1, .padded = 1};
    sheaf_tensor *shown = tensor_shown(run_case(&c, tensor_batched(indices, 0, 1), table, NULL), 1);
    expect_ok(sheaf_backward(shown,
                             bag ? tensor_random(SHEAF_F32, SHAPE(SLICES, 3, 5), 4)
                                 : tensor_random(SHEAF_F32, SHAPE(SLICES, 6, 5), 4),
                             NULL));
    if (kind == SHEAF_GRAD_DENSE) {
      expected[bag] = sheaf_tensor_grad(table);
      continue;
    }
    assert_int_equal(sheaf_tensor_form(sheaf_tensor_grad(table)), SHEAF_FORM_SPARSE);
    assert_int_equal(tensor_count(sheaf_tensor_part(sheaf_tensor_grad(table), 0)), 11); /* of 12 rows one is padding */
    RESULT(dense, sheaf_to_dense(sheaf_tensor_grad(table), &dense));
    expect_same_tensor(dense, expected[bag]);
  }
}

/* When it is to be differentiated again, such a gradient is dense; one of tables of each slice stays row-sparse, and both
 * have gradients: what comes in is looked up, over the row's frequency in the slice. */
static void test_second_gradients_of_sparse_ones(void **state)
{
  (void)state;
  for (int own = 0; own < 2; own++) {
    sheaf_tensor *table = own ? tensor_random(SHEAF_F64, SHAPE(2, 4, 2), 1) : tensor_random(SHEAF_F64, SHAPE(4, 2), 1);
    sheaf_tensor *indices = tensor_of(SHEAF_I64, SHAPE(2, 3), NUMBERS(1, 3, 1, 0, 0, 0)), *out, *toward, *list;
    sheaf_tensor *grad = tensor_leaf(tensor_random(SHEAF_F64, SHAPE(2, 3, 2), 3), SHEAF_GRAD_DENSE);
    sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
    options.scale_grad_by_freq = 1;
    tensor_leaf(table, SHEAF_GRAD_SPARSE);
    RESULT(out,
           sheaf_embedding(tensor_batched(indices, 0, 1), own ? tensor_batched(table, 0, 1) : table, &options, &out));
    sheaf_backward_options create = SHEAF_BACKWARD_OPTIONS_INIT;
    create.create_graph = 1;
    expect_ok(sheaf_backward(tensor_shown(out, 1), grad, &create));
    sheaf_tensor *first = tensor_keep(sheaf_tensor_retain(sheaf_tensor_grad(table)));
    assert_int_equal(sheaf_tensor_form(first), own ? SHEAF_FORM_SPARSE : SHEAF_FORM_DENSE);
    sheaf_tensor_clear_grad(table);
    sheaf_tensor_clear_grad(grad);
    if (own) { /* every row of both tables, as a list */
      RESULT(list, sheaf_tensor_sparse(tensor_of(SHEAF_I64, SHAPE(8), NUMBERS(0, 1, 2, 3, 4, 5, 6, 7)),
                                       tensor_random(SHEAF_F64, SHAPE(8, 2), 6), 8, 1, &list));
      RESULT(toward, sheaf_reshape(list, SHAPE(2, 4, 2), &toward));
      expect_ok(sheaf_backward(first, toward, NULL));
      RESULT(toward, sheaf_to_dense(list, &toward));
    } else {
      toward = tensor_random(SHEAF_F64, SHAPE(4, 2), 6);
      expect_ok(sheaf_backward(first, toward, NULL));
    }
    static const double frequency[] = {2, 1, 2, 3, 3, 3};
    for (int k = 0; k < 12; k++) {
      int64_t row = (int64_t)tensor_number(indices, k / 2) + (own ? k / 6 * 4 : 0);
      double should = tensor_number(toward, row * 2 + k % 2) / frequency[k / 2];
      assert_true(fabs(tensor_number(sheaf_tensor_grad(grad), k) - should) < 1e-15);
    }
  }
}

/* ---- Row-sparse tables of each slice ---- */

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

static void test_sparse_tables_of_each_slice(void **state)
{
  (void)state;
  sheaf_tensor *rows = tensor_random(SHEAF_F32, SHAPE(5, 4), 1), *flat, *tables, *dense, *out, *plain;
  expect_ok(sheaf_tensor_sparse(tensor_of(SHEAF_I64, SHAPE(5), NUMBERS(13, 1, 5, 13, 7)), rows, 14, 0, &flat));
  tensor_keep(flat);
  RESULT(tables, sheaf_reshape(flat, SHAPE(2, 7, 4), &tables));
  assert_int_equal(sheaf_tensor_form(tables), SHEAF_FORM_SPARSE);
  RESULT(dense, sheaf_to_dense(tables, &dense));
  assert_int_equal(sheaf_tensor_rank(dense), 3);
  sheaf_tensor *own = tensor_of(SHEAF_I64, SHAPE(2, 5), NUMBERS(1, 5, 0, 2, 5, 6, 0, 1, 6, 6));
  for (int which = 0; which < 4 * 2 * 3; which++) {
    grads_case c = {.mode = which % 4 - 1, .shared = which / 4 % 2};
    sheaf_tensor *index = c.shared ? tensor_slice(own, 1) : tensor_batched(own, 0, 1);
    sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
    options.has_padding = 1;
    options.padding_idx = 5;
    options.padding = SHEAF_PADDING_ROW;
    c.padded = which / 8 == 1;
    if (which / 8 == 2 && c.mode < 0) { /* the stored row in place of zeros */
      RESULT(out, sheaf_embedding(index, tensor_batched(tables, 0, 1), &options, &out));
      RESULT(plain, sheaf_embedding(index, tensor_batched(dense, 0, 1), &options, &plain));
    } else {
      expect_ok(sheaf_profiler_begin());
      sheaf_tensor *merged = NULL;
      sheaf_status status = sheaf_coalesce(tables, &merged);
      tensor_plan_runs();
      expect_ok(status);
      tensor_keep(merged);
      expect_ok(sheaf_profiler_begin());
      out = run_case(&c, index, tensor_batched(merged, 0, 1), NULL);
      assert_int_equal(tensor_plan_runs(), 1);
      plain = run_case(&c, index, tensor_batched(dense, 0, 1), NULL);
    }
    expect_same_tensor(tensor_shown(out, 1), tensor_shown(plain, 1));
  }
  /* arg of a maximum names rows of its slice's table */
  sheaf_tensor *inputs[] = {tensor_batched(tables, 0, 1), tensor_batched(own, 0, 1),
                            tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 2)), NULL};
  sheaf_tensor *arg[2];
  for (int i = 0; i < 2; i++) {
    sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS] = {[SHEAF_EMBEDDING_PADDING_IDX].i = -1,
                                               [SHEAF_EMBEDDING_BAD_INDEX].i = SHEAF_BAD_INDEX_ERROR,
                                               [SHEAF_EMBEDDING_MODE].i = SHEAF_MODE_MAX};
    sheaf_tensor *outputs[2] = {NULL, NULL};
    const sheaf_call call = tensor_call(SHEAF_OP_EMBEDDING_BAG, inputs, outputs, attrs, 3);
    expect_ok(sheaf_dispatch(&call));
    tensor_keep(outputs[0]);
    tensor_keep(outputs[1]);
    arg[i] = tensor_shown(outputs[1], 1);
    inputs[0] = tensor_batched(dense, 0, 1);
  }
  expect_same_tensor(arg[0], arg[1]);
  sheaf_tensor *bad = tensor_of(SHEAF_I64, SHAPE(2, 2), NUMBERS(0, 6, 7, 0)), *wrong = NULL;
  expect_status(sheaf_embedding(tensor_batched(bad, 0, 1), tensor_batched(tables, 0, 1), NULL, &wrong),
                SHEAF_INDEX_OUT_OF_RANGE);
  expect_words("7 at position 2", "0..6");
  expect_status(sheaf_embedding(own, tables, NULL, &wrong), SHEAF_INVALID_PROBLEM);
  expect_words("[2, 7, 4]", "2 dimensions");
  expect_status(sheaf_batch(flat, 0, 1, &wrong), SHEAF_UNSUPPORTED);
  assert_null(wrong);
}

/* Sums, casts and other shapes of row-sparse tensors of more dimensions, as of dense ones. */
static void test_sparse_tensors_of_three_dimensions(void **state)
{
  (void)state;
  sheaf_tensor *rows = tensor_random(SHEAF_F64, SHAPE(3, 2), 1), *flat, *t, *dense, *a, *b, *c;
  expect_ok(sheaf_tensor_sparse(tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(5, 1, 5)), rows, 6, 0, &flat));
  tensor_keep(flat);
  RESULT(t, sheaf_reshape(flat, SHAPE(2, 3, 2), &t));
  RESULT(dense, sheaf_to_dense(t, &dense));
  sheaf_tensor *plain = tensor_random(SHEAF_F64, SHAPE(2, 3, 2), 2);
  RESULT(a, sheaf_add(plain, t, 0.25, &a));
  RESULT(b, sheaf_add(plain, dense, 0.25, &b));
  expect_same_tensor(a, b);
  RESULT(c, sheaf_add(t, t, 2, &c));
  assert_int_equal(sheaf_tensor_rank(c), 3);
  RESULT(a, sheaf_to_dense(c, &a));
  RESULT(b, sheaf_add(dense, dense, 2, &b));
  expect_near_tensor(a, b, 1e-15);
  RESULT(c, sheaf_coalesce(t, &c));
  assert_int_equal(sheaf_tensor_rank(c), 3);
  expect_tensor(sheaf_tensor_part(c, 0), 1, 5);
  RESULT(c, sheaf_cast(t, SHEAF_F32, &c));
  assert_int_equal(sheaf_tensor_extent(c, 1), 3);
  RESULT(a, sheaf_reshape(t, SHAPE(12), &a)); /* rows are cut: dense */
  RESULT(b, sheaf_reshape(dense, SHAPE(12), &b));
  expect_same_tensor(a, b);
  RESULT(a, sheaf_movedim(t, 2, 0, &a));
  RESULT(b, sheaf_movedim(dense, 2, 0, &b));
  expect_same_tensor(a, b);
  c = NULL;
  expect_status(sheaf_add(plain, flat, 1, &c), SHEAF_INVALID_PROBLEM);
  expect_words("[2, 3, 2]", "[6, 2]");
  expect_status(sheaf_reshape(t, SHAPE(2, 4, 2), &c), SHEAF_INVALID_PROBLEM);
}

/* ---- Memory ---- */

/* Nothing of the tables' size is made on the way, whether each slice has one or all share one. */
static void test_sparse_gradients_stay_small_within_vmap(void **state)
{
  (void)state;
  enum { SLICES = 2, ROWS = 1 << 19, DIM = 16, EACH = 100 };
  static float memory[SLICES * ROWS * DIM];
  int64_t shape[] = {SLICES, ROWS, DIM};
  for (int which = 0; which < 6; which++) {
    int shared = which & 1, kind = SHEAF_GRAD_SPARSE + (which >> 1) % 2, scaled = which / 2 != 1;
    DLTensor dl = {
        .data = memory, .device = {kDLCPU, 0}, .ndim = 3 - shared, .dtype = {kDLFloat, 32, 1}, .shape = shape + shared};
    sheaf_tensor *table, *hidden = NULL, *indices, *index = NULL, *out = NULL, *shown = NULL;
    int64_t count[] = {SLICES, EACH};
    sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
    options.scale_grad_by_freq = (uint8_t)scaled;
    heap.live = heap.peak = 0;
    expect_ok(sheaf_tensor_borrow(&dl, 0, &table));
    expect_ok(sheaf_tensor_require_grad(table, (sheaf_grad)kind));
    expect_ok(sheaf_tensor_new(SHEAF_I64, 2, count, &indices));
    for (int i = 0; i < SLICES * EACH; i++) tensor_set(indices, i, (double)(i * 5003 % ROWS));
    if (!shared) expect_ok(sheaf_batch(table, 0, 1, &hidden));
    expect_ok(sheaf_batch(indices, 0, 1, &index));
    expect_ok(sheaf_embedding(index, shared ? table : hidden, &options, &out));
    expect_ok(sheaf_unbatch(out, 0, 1, &shown));
    expect_ok(sheaf_backward(shown, NULL, NULL));
    assert_int_equal(sheaf_tensor_form(sheaf_tensor_grad(table)), SHEAF_FORM_SPARSE);
    sheaf_tensor *all[] = {shown, out, index, hidden, indices, table};
    for (int i = 0; i < 6; i++) sheaf_tensor_release(all[i]);
    sheaf_clear_caches();
    assert_int_equal(heap.live, 0);
    if (heap.peak >= sizeof memory / 32)
      fail_msg("case %d: peak %zu bytes; the tables have %zu", which, heap.peak, sizeof memory);
  }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_gradients_have_the_bits_of_dense_ones),
      TEST(test_a_step_with_tables_of_each_slice),
      TEST(test_sparse_gradients_of_nested_vmap),
      TEST(test_scaled_sparse_gradients_of_a_shared_table),
      TEST(test_second_gradients_of_sparse_ones),
      TEST(test_row_sparse_tables_within_vmap),
      TEST(test_sparse_tables_of_each_slice),
      TEST(test_sparse_tensors_of_three_dimensions),
      cmocka_unit_test_setup_teardown(test_sparse_gradients_stay_small_within_vmap, use_counted_heap, use_own_heap),
  };
  return cmocka_run_group_tests_name("row-sparse tensors within vmap", tests, NULL, NULL);
}
