/* test_vmap.c: hidden dimensions: each mixture of operands that have one and that slices share, against a loop over slices; one plan run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/tensors.h"

static sheaf_tensor *unbatched(sheaf_tensor *t, int dim, int level)
{
  sheaf_tensor *out = NULL;
  return tensor_result(sheaf_unbatch(t, dim, level, &out), &out);
}

/* Each mixture of batched and shared operands, against a loop over slices; one plan run each. */
static void test_vmap_of_bags(void **state)
{
  (void)state;
  sheaf_tensor *tables = tensor_random(SHEAF_F64, SHAPE(3, 5, 2), 1),
               *indices = tensor_random_ints(SHEAF_I64, 5, SHAPE(3, 6), 2);
  sheaf_tensor *offsets = tensor_of(SHEAF_I64, SHAPE(3, 2), NUMBERS(0, 2, 0, 6, 0, 3)),
               *weights = tensor_random(SHEAF_F64, SHAPE(3, 6), 3);
  for (int mix = 1; mix < 16; mix++)
    for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_MAX; mode++) {
      sheaf_tensor *all[] = {tables, indices, offsets, weights}, *in[4];
      int weighted = mode != SHEAF_MODE_MAX;
      if (!weighted && mix == 8) continue;
      for (int i = 0; i < 4; i++) in[i] = mix >> i & 1 ? tensor_batched(all[i], 0, 1) : tensor_slice(all[i], 0);
      sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
      sheaf_tensor *out = NULL;
      options.mode = (sheaf_bag_mode)mode;
      options.per_sample_weights = weighted ? in[3] : NULL;
      options.has_padding = 1;
      options.padding_idx = 3;
      expect_ok(sheaf_profiler_begin());
      sheaf_status status = sheaf_embedding_bag(in[1], in[0], in[2], &options, &out);
      assert_int_equal(tensor_plan_runs(), 1);
      tensor_result(status, &out);
      assert_int_equal(sheaf_tensor_form(out), SHEAF_FORM_BATCHED);
      assert_int_equal(sheaf_tensor_rank(out), 2);
      sheaf_tensor *shown = unbatched(out, 0, 1);
      for (int64_t p = 0; p < 3; p++) {
        sheaf_tensor *one = NULL, *single[4];
        for (int i = 0; i < 4; i++) single[i] = tensor_slice(all[i], mix >> i & 1 ? p : 0);
        options.per_sample_weights = weighted ? single[3] : NULL;
        tensor_result(sheaf_embedding_bag(single[1], single[0], single[2], &options, &one), &one);
        expect_same_tensor(tensor_slice(shown, p), one);
      }
    }
}

/* Bags given by lengths, hidden or shared, forward and backward, as by offsets. */
static void test_vmap_of_lengths(void **state)
{
  (void)state;
  sheaf_tensor *indices = tensor_random_ints(SHEAF_I64, 5, SHAPE(2, 4), 2);
  sheaf_tensor *lengths = tensor_of(SHEAF_I64, SHAPE(2, 2), NUMBERS(1, 3, 4, 0)),
               *starts = tensor_of(SHEAF_I64, SHAPE(2, 2), NUMBERS(0, 1, 0, 4));
  for (int shared = 0; shared < 2; shared++) {
    sheaf_tensor *grads[2], *shown[2];
    for (int form = 0; form < 2; form++) {
      sheaf_tensor *table = tensor_random(SHEAF_F64, SHAPE(5, 2), 1), *bags = form ? lengths : starts, *out = NULL;
      sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
      options.lengths = (uint8_t)form;
      expect_ok(sheaf_tensor_require_grad(table, SHEAF_GRAD_DENSE));
      tensor_result(sheaf_embedding_bag(tensor_batched(indices, 0, 1), table,
                                        shared ? tensor_slice(bags, 0) : tensor_batched(bags, 0, 1), &options, &out),
                    &out);
      shown[form] = unbatched(out, 0, 1);
      expect_ok(
          sheaf_backward(shown[form], tensor_of(SHEAF_F64, SHAPE(2, 2, 2), NUMBERS(1, 2, 3, 4, 5, 6, 7, 8)), NULL));
      grads[form] = sheaf_tensor_grad(table);
    }
    expect_same_tensor(shown[0], shown[1]);
    expect_same_tensor(grads[0], grads[1]);
  }
}

static void test_vmap_dimensions(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(5, 2), 1),
               *indices = tensor_random_ints(SHEAF_I32, 5, SHAPE(4, 3), 2);
  sheaf_tensor *moved = NULL, *out = NULL, *plain = NULL, *expected = NULL;
  tensor_result(sheaf_movedim(indices, 1, 0, &moved), &moved); /* [3, 4] */
  tensor_result(sheaf_embedding(tensor_batched(indices, 1, 1), table, NULL, &out), &out);
  tensor_result(sheaf_embedding(moved, table, NULL, &plain), &plain); /* [3, 4, 2] */
  expect_same_tensor(unbatched(out, 0, 1), plain);
  tensor_result(sheaf_movedim(plain, 0, 2, &expected), &expected);
  expect_same_tensor(unbatched(out, 2, 1), expected);
  sheaf_tensor *wrong = NULL;
  expect_status(sheaf_batch(table, 2, 1, &wrong), SHEAF_INVALID_PROBLEM);
  expect_words("dimension 2", "0..1");
  expect_status(sheaf_batch(table, 0, 9, &wrong), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_batch(tensor_batched(indices, 0, 2), 0, 1, &wrong), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_unbatch(out, 0, 2, &wrong), SHEAF_INVALID_PROBLEM);
  expect_words("level 2", "1");
  expect_status(sheaf_embedding(tensor_batched(indices, 0, 1),
                                tensor_batched(tensor_random(SHEAF_F32, SHAPE(3, 5, 2), 1), 0, 1), NULL, &wrong),
                SHEAF_INVALID_PROBLEM);
  expect_words("level 1", "3", "4");
  sheaf_tensor *bad = tensor_of(SHEAF_I32, SHAPE(2, 2), NUMBERS(0, 1, 2, 5));
  expect_status(sheaf_embedding(tensor_batched(bad, 0, 1), table, NULL, &wrong), SHEAF_INDEX_OUT_OF_RANGE);
  expect_words("5", "position 3", "0..4");
  assert_null(wrong);
}

/* A vmap within a vmap: tables vary by the outer one, indices by both or the inner one alone. */
static void test_nested_vmap(void **state)
{
  (void)state;
  sheaf_tensor *tables = tensor_random(SHEAF_F32, SHAPE(2, 5, 3), 1),
               *indices = tensor_random_ints(SHEAF_I64, 5, SHAPE(2, 4, 6), 2);
  sheaf_tensor *inner = tensor_random_ints(SHEAF_I64, 5, SHAPE(4, 6), 3);
  for (int both = 0; both < 2; both++) {
    sheaf_tensor *index = both ? tensor_batched(tensor_batched(indices, 0, 1), 0, 2) : tensor_batched(inner, 0, 2),
                 *out = NULL;
    expect_ok(sheaf_profiler_begin());
    sheaf_status status = sheaf_embedding(index, tensor_batched(tables, 0, 1), NULL, &out);
    assert_int_equal(tensor_plan_runs(), 1);
    tensor_result(status, &out);
    sheaf_tensor *shown = unbatched(unbatched(out, 0, 2), 0, 1); /* [2, 4, 6, 3] */
    assert_int_equal(sheaf_tensor_rank(shown), 4);
    for (int p = 0; p < 2; p++) {
      sheaf_tensor *one = NULL;
      tensor_result(sheaf_embedding(both ? tensor_slice(indices, p) : inner, tensor_slice(tables, p), NULL, &one),
                    &one);
      expect_same_tensor(tensor_slice(shown, p), one);
    }
  }
}

static void test_vmap_of_segments_and_others(void **state)
{
  (void)state;
  sheaf_tensor *data = tensor_random(SHEAF_F64, SHAPE(3, 6, 2), 1),
               *ids = tensor_random_ints(SHEAF_I64, 4, SHAPE(3, 6), 2);
  for (int reduce = SHEAF_REDUCE_SUM; reduce <= SHEAF_REDUCE_PROD; reduce++)
    for (int mix = 1; mix < 4; mix++) {
      sheaf_tensor *x = mix & 1 ? tensor_batched(data, 0, 1) : tensor_slice(data, 0),
                   *i = mix & 2 ? tensor_batched(ids, 0, 1) : tensor_slice(ids, 0);
      sheaf_tensor *out = NULL;
      tensor_result(sheaf_unsorted_segment_reduce(x, (sheaf_reduce)reduce, i, 4, NULL, &out), &out);
      sheaf_tensor *shown = unbatched(out, 0, 1);
      for (int p = 0; p < 3; p++) {
        sheaf_tensor *one = NULL;
        tensor_result(sheaf_unsorted_segment_reduce(tensor_slice(data, mix & 1 ? p : 0), (sheaf_reduce)reduce,
                                                    tensor_slice(ids, mix & 2 ? p : 0), 4, NULL, &one),
                      &one);
        expect_same_tensor(tensor_slice(shown, p), one);
      }
    }
  sheaf_tensor *sum = NULL, *cast = NULL, *packed = NULL, *back = NULL;
  tensor_result(sheaf_add(tensor_batched(data, 0, 1), tensor_slice(data, 0), 2, &sum), &sum);
  sheaf_tensor *shown = unbatched(sum, 0, 1);
  for (int p = 0; p < 3; p++) {
    sheaf_tensor *one = NULL;
    tensor_result(sheaf_add(tensor_slice(data, p), tensor_slice(data, 0), 2, &one), &one);
    expect_same_tensor(tensor_slice(shown, p), one);
  }
  tensor_result(sheaf_cast(tensor_batched(data, 0, 1), SHEAF_F32, &cast), &cast);
  assert_int_equal(sheaf_tensor_form(cast), SHEAF_FORM_BATCHED);
  tensor_result(sheaf_quantize(cast, SHEAF_INT8, &packed), &packed);
  tensor_result(sheaf_dequantize(packed, SHEAF_F32, &back), &back);
  expect_near_tensor(unbatched(back, 0, 1), data, 0.02);
  sheaf_tensor *rows = NULL;
  tensor_result(sheaf_embedding(tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(4, 1)), packed, NULL, &rows), &rows);
  sheaf_tensor *looked_up = unbatched(rows, 0, 1), *values = unbatched(back, 0, 1);
  for (int p = 0; p < 3; p++)
    for (int d = 0; d < 2; d++)
      assert_true(tensor_number(looked_up, p * 4 + d) == tensor_number(values, (p * 6 + 4) * 2 + d));
}

/* ---- Shapes ---- */

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

/* ---- No slices ---- */

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

static void test_vmap_over_too_much(void **state)
{
  (void)state;
  const int64_t half = (int64_t)1 << 32; /* twice: 2^64 problems, which are not none */
  sheaf_tensor *table = tensor_batched(tensor_untouchable(SHEAF_F32, SHAPE(half, 1, 1)), 0, 1), *out = NULL;
  sheaf_tensor *indices = tensor_batched(tensor_untouchable(SHEAF_I64, SHAPE(half, 1)), 0, 2);
  expect_status(sheaf_embedding(indices, table, NULL, &out), SHEAF_INVALID_PROBLEM);
  expect_words("embedding", "4294967296 times 4294967296");
  assert_null(out);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_vmap_of_bags),
      TEST(test_vmap_of_lengths),
      TEST(test_vmap_dimensions),
      TEST(test_nested_vmap),
      TEST(test_vmap_of_segments_and_others),
      TEST(test_shapes_change_within_vmap),
      TEST(test_vmap_over_nothing),
      TEST(test_gradients_over_nothing),
      TEST(test_vmap_over_too_much),
  };
  return cmocka_run_group_tests_name("vmap", tests, NULL, NULL);
}
