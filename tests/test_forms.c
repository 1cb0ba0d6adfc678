/* test_forms.c: tensors that are not dense: row-sparse, quantised, nested, batched; each against the same computation
 * on dense tensors, written out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/tensors.h"
#include "support/test_random.h"

static sheaf_tensor *keep_result(sheaf_status status, sheaf_tensor **out)
{
  expect_ok(status);
  return tensor_keep(*out);
}

/* ---- Plan runs, counted by a profile ---- */

static int64_t runs_of_profile(void)
{
  sheaf_profile *profile;
  int64_t runs = 0;
  expect_ok(sheaf_profiler_end(&profile));
  for (int64_t i = 0; i < sheaf_profile_count(profile); i++) runs += sheaf_profile_at(profile, i)->plan_runs;
  sheaf_profile_free(profile);
  return runs;
}

/* ---- Row-sparse ---- */

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

static void test_sparse_becomes_dense(void **state)
{
  (void)state;
  for (int i = 0; i < 4; i++) {
    sheaf_tensor *dense, *sparse = sparse_table(tiny_elements[i], &dense), *out = NULL, *merged = NULL, *again = NULL;
    keep_result(sheaf_to_dense(sparse, &out), &out);
    expect_same_tensor(out, dense);
    keep_result(sheaf_coalesce(sparse, &merged), &merged);
    assert_true(sheaf_tensor_is_coalesced(merged));
    expect_tensor(sheaf_tensor_part(merged, 0), 1, 5, 7);
    expect_tensor(sheaf_tensor_part(merged, 1), 3, 4, 6, -4, -7, -8);
    keep_result(sheaf_to_dense(merged, &again), &again);
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
    keep_result(sheaf_embedding(indices, dense, &options, &a), &a);
    keep_result(sheaf_embedding(indices, sparse, &options, &b), &b);
    expect_same_tensor(a, b);
    for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_MAX; mode++) {
      sheaf_embedding_bag_options bag = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
      bag.mode = (sheaf_bag_mode)mode;
      bag.has_padding = padded > 0;
      bag.padding_idx = padded == 1 ? 7 : 8;
      a = b = NULL;
      keep_result(sheaf_embedding_bag(indices, dense, offsets, &bag, &a), &a);
      keep_result(sheaf_embedding_bag(indices, sparse, offsets, &bag, &b), &b);
      expect_same_tensor(a, b);
    }
  }
  /* arg of a maximum names rows of the whole table, missing ones too */
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS] = {[SHEAF_EMBEDDING_PADDING_IDX].i = -1,
                                             [SHEAF_EMBEDDING_BAD_INDEX].i = SHEAF_BAD_INDEX_ERROR,
                                             [SHEAF_EMBEDDING_MODE].i = SHEAF_MODE_MAX};
  sheaf_tensor *inputs[] = {sparse, indices, offsets, NULL}, *outputs[2] = {NULL, NULL};
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = SHEAF_OP_EMBEDDING_BAG;
  call.inputs = inputs;
  call.input_count = 4;
  call.outputs = outputs;
  call.output_count = 2;
  call.attrs = attrs;
  call.attr_count = SHEAF_EMBEDDING_ATTRS;
  call.wanted = 3;
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
  keep_result(sheaf_embedding(tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 1, 2)), sparse, NULL, &out), &out);
  expect_tensor(out, 0, 5, 0);
}

static void test_sums_of_sparse_and_dense(void **state)
{
  (void)state;
  sheaf_tensor *dense, *sparse = sparse_table(SHEAF_F64, &dense), *plain = tensor_random(SHEAF_F64, SHAPE(9, 2), 3);
  sheaf_tensor *expected = NULL, *got = NULL, *both = NULL;
  keep_result(sheaf_add(plain, dense, 0.25, &expected), &expected);
  keep_result(sheaf_add(plain, sparse, 0.25, &got), &got);
  expect_same_tensor(got, expected);
  expected = got = NULL;
  keep_result(sheaf_add(dense, plain, 0.25, &expected), &expected);
  keep_result(sheaf_add(sparse, plain, 0.25, &got), &got);
  expect_same_tensor(got, expected);
  keep_result(sheaf_add(sparse, sparse, -3, &both), &both);
  assert_int_equal(sheaf_tensor_form(both), SHEAF_FORM_SPARSE);
  expected = got = NULL;
  keep_result(sheaf_to_dense(both, &got), &got);
  keep_result(sheaf_add(dense, dense, -3, &expected), &expected);
  expect_same_tensor(got, expected);
  /* in place: only its rows */
  expected = NULL;
  keep_result(sheaf_add(plain, dense, -1, &expected), &expected);
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
  keep_result(sheaf_unsorted_segment_reduce(sparse, SHEAF_REDUCE_MEAN, ids, 3, NULL, &a), &a);
  keep_result(sheaf_unsorted_segment_reduce(dense, SHEAF_REDUCE_MEAN, ids, 3, NULL, &b), &b);
  expect_same_tensor(a, b);
  a = b = NULL;
  keep_result(sheaf_cast(sparse, SHEAF_F16, &a), &a);
  assert_int_equal(sheaf_tensor_form(a), SHEAF_FORM_SPARSE);
  assert_int_equal(sheaf_tensor_dtype(a), SHEAF_F16);
  keep_result(sheaf_movedim(sparse, 0, 1, &b), &b);
  assert_int_equal(sheaf_tensor_extent(b, 1), 9);
  a = NULL;
  keep_result(sheaf_quantize(sparse, SHEAF_INT4, &a), &a);
  assert_int_equal(sheaf_tensor_form(a), SHEAF_FORM_QUANTIZED);
  a = NULL;
  expect_status(sheaf_coalesce(dense, &a), SHEAF_UNSUPPORTED);
}

/* Nothing of the table's size is made on the way to a sparse gradient. */
static size_t largest, live, peak;

static void *counting_allocate(void *context, size_t bytes, size_t alignment)
{
  (void)context;
  if (bytes > largest) largest = bytes;
  live += bytes;
  if (live > peak) peak = live;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void counting_release(void *context, void *memory, size_t bytes)
{
  (void)context;
  live -= bytes;
  free(memory);
}

static void test_sparse_gradients_stay_small(void **state)
{
  (void)state;
  enum { ROWS = 1 << 20, DIM = 16, ENTRIES = 200 };
  static float memory[ROWS * DIM];
  int64_t shape[] = {ROWS, DIM};
  DLTensor dl = {.data = memory, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}, .shape = shape};
  sheaf_allocator counting = {counting_allocate, counting_release, NULL};
  sheaf_clear_caches();
  expect_ok(sheaf_set_allocator(&counting));
  for (int kind = SHEAF_GRAD_SPARSE; kind <= SHEAF_GRAD_SPARSE_RAW; kind++)
    for (int bag = 0; bag < 2; bag++) {
      sheaf_tensor *table, *indices, *offsets, *out = NULL, *same;
      int64_t count[] = {ENTRIES}, bags[] = {4};
      live = peak = largest = 0;
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
      assert_int_equal(live, 0);
      if (peak >= sizeof memory / 8)
        fail_msg("peak %zu bytes, largest block %zu; the table has %zu", peak, largest, sizeof memory);
    }
  expect_ok(sheaf_set_allocator(NULL));
}

/* ---- Quantised ---- */

static void test_quantised_tables_read_as_their_values(void **state)
{
  (void)state;
  for (int bits = 0; bits < 2; bits++) {
    sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(7, 5), 3), *packed = NULL, *plain = NULL;
    sheaf_tensor *indices = tensor_random_ints(SHEAF_I64, 7, SHAPE(12), 4),
                 *offsets = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 5));
    keep_result(sheaf_quantize(table, bits ? SHEAF_INT4 : SHEAF_INT8, &packed), &packed);
    keep_result(sheaf_dequantize(packed, SHEAF_DTYPE_NONE, &plain), &plain);
    expect_near_tensor(plain, table, bits ? 0.2 : 0.01);
    for (int dtype = SHEAF_F32; dtype <= SHEAF_BF16; dtype++) {
      if (dtype == SHEAF_F64) continue;
      sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
      sheaf_embedding_bag_options bag = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
      sheaf_tensor *a = NULL, *b = NULL, *c = NULL;
      options.out_dtype = bag.out_dtype = (sheaf_dtype)dtype;
      keep_result(sheaf_embedding(indices, packed, &options, &a), &a);
      assert_int_equal(sheaf_tensor_dtype(a), dtype);
      options.out_dtype = SHEAF_DTYPE_NONE;
      keep_result(sheaf_embedding(indices, plain, &options, &b), &b);
      keep_result(sheaf_cast(b, (sheaf_dtype)dtype, &c), &c);
      expect_same_tensor(a, c);
      a = b = c = NULL;
      keep_result(sheaf_embedding_bag(indices, packed, offsets, &bag, &a), &a);
      bag.out_dtype = SHEAF_DTYPE_NONE;
      keep_result(sheaf_embedding_bag(indices, plain, offsets, &bag, &b), &b);
      keep_result(sheaf_cast(b, (sheaf_dtype)dtype, &c), &c);
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
  keep_result(sheaf_quantize(data, SHEAF_INT8, &packed), &packed);
  keep_result(sheaf_to_dense(packed, &plain), &plain);
  sheaf_segment_options options = SHEAF_SEGMENT_OPTIONS_INIT;
  keep_result(sheaf_segment_reduce(packed, SHEAF_REDUCE_SUM, ids, 3, &options, &a), &a);
  keep_result(sheaf_segment_reduce(plain, SHEAF_REDUCE_SUM, ids, 3, &options, &b), &b);
  expect_same_tensor(a, b);
  keep_result(sheaf_quantize(b, SHEAF_INT4, &again), &again);
  options.out_dtype = SHEAF_INT4;
  a = NULL;
  keep_result(sheaf_segment_reduce(packed, SHEAF_REDUCE_SUM, ids, 3, &options, &a), &a);
  expect_same_packed(a, again);
  a = b = NULL;
  keep_result(sheaf_add(packed, plain, 2, &a), &a);
  keep_result(sheaf_add(plain, plain, 2, &b), &b);
  expect_same_tensor(a, b);
  a = b = again = NULL;
  keep_result(sheaf_cast(packed, SHEAF_F64, &a), &a);
  assert_int_equal(sheaf_tensor_dtype(a), SHEAF_F64);
  expect_near_tensor(a, plain, 1e-9);
  keep_result(sheaf_cast(packed, SHEAF_INT4, &b), &b);
  keep_result(sheaf_quantize(plain, SHEAF_INT4, &again), &again);
  expect_same_packed(b, again);
  /* a dense table asked for a quantised result */
  sheaf_embedding_options pack = SHEAF_EMBEDDING_OPTIONS_INIT;
  sheaf_tensor *rows = NULL;
  pack.out_dtype = SHEAF_INT8;
  a = b = NULL;
  keep_result(sheaf_embedding(ids, data, &pack, &a), &a);
  keep_result(sheaf_embedding(ids, data, NULL, &rows), &rows);
  keep_result(sheaf_quantize(rows, SHEAF_INT8, &b), &b);
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
  keep_result(sheaf_quantize(table, SHEAF_INT8, &packed), &packed);
  keep_result(sheaf_dequantize(packed, SHEAF_F32, &plain), &plain);
  for (int i = 0; i < 2; i++) {
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    sheaf_tensor *weights = tensor_random(SHEAF_F32, SHAPE(4), 6), *out = NULL;
    options.per_sample_weights = weights;
    options.mode = SHEAF_MODE_SUM;
    expect_ok(sheaf_tensor_require_grad(weights, SHEAF_GRAD_DENSE));
    keep_result(sheaf_embedding_bag(indices, i ? plain : packed, offsets, &options, &out), &out);
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
  assert_int_equal(runs_of_profile(), 1);
  keep_result(status, &a);
  assert_int_equal(sheaf_tensor_form(a), SHEAF_FORM_NESTED);
  keep_result(sheaf_embedding(values, table, NULL, &b), &b);
  expect_same_tensor(sheaf_tensor_part(a, 0), b);
  keep_result(sheaf_to_dense(a, &dense), &dense);
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
      assert_int_equal(runs_of_profile(), 1);
      keep_result(status, &a);
      options.include_last_offset = 1;
      if (weighted) options.per_sample_weights = weights;
      keep_result(sheaf_embedding_bag(values, table, offsets, &options, &b), &b);
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
    assert_int_equal(runs_of_profile(), 1);
    keep_result(status, &a);
    keep_result(sheaf_segment_reduce(values, (sheaf_reduce)reduce, ids, 4, NULL, &b), &b);
    expect_same_tensor(a, b);
  }
  sheaf_tensor *a = NULL, *twice = NULL, *flat = NULL, *other;
  expect_status(sheaf_segment_reduce(nested, SHEAF_REDUCE_SUM, NULL, 5, NULL, &a), SHEAF_INVALID_PROBLEM);
  expect_words("5 segments", "4 components");
  keep_result(sheaf_add(nested, nested, 1, &twice), &twice);
  keep_result(sheaf_add(values, values, 1, &flat), &flat);
  expect_same_tensor(sheaf_tensor_part(twice, 0), flat);
  expect_ok(sheaf_tensor_nested(values, tensor_of(SHEAF_I32, SHAPE(5), NUMBERS(0, 3, 3, 5, 8)), &other));
  tensor_keep(other);
  a = NULL;
  expect_status(sheaf_add(nested, other, 1, &a), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_movedim(nested, 0, 1, &a), SHEAF_UNSUPPORTED);
}

/* ---- Vmap ---- */

/* Slice i of the leading dimension, as a tensor of its own. */
static sheaf_tensor *slice(const sheaf_tensor *t, int64_t i)
{
  int64_t shape[8], count = 1;
  for (int d = 1; d < sheaf_tensor_rank(t); d++) count *= shape[d - 1] = sheaf_tensor_extent(t, d);
  sheaf_tensor *out = tensor_of(sheaf_tensor_dtype(t), sheaf_tensor_rank(t) - 1, shape, NULL);
  for (int64_t k = 0; k < count; k++) tensor_set(out, k, tensor_number(t, i * count + k));
  return out;
}

static sheaf_tensor *batched(sheaf_tensor *t, int dim, int level)
{
  sheaf_tensor *out = NULL;
  return keep_result(sheaf_batch(t, dim, level, &out), &out);
}

static sheaf_tensor *unbatched(sheaf_tensor *t, int dim, int level)
{
  sheaf_tensor *out = NULL;
  return keep_result(sheaf_unbatch(t, dim, level, &out), &out);
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
      for (int i = 0; i < 4; i++) in[i] = mix >> i & 1 ? batched(all[i], 0, 1) : slice(all[i], 0);
      sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
      sheaf_tensor *out = NULL;
      options.mode = (sheaf_bag_mode)mode;
      options.per_sample_weights = weighted ? in[3] : NULL;
      options.has_padding = 1;
      options.padding_idx = 3;
      expect_ok(sheaf_profiler_begin());
      sheaf_status status = sheaf_embedding_bag(in[1], in[0], in[2], &options, &out);
      assert_int_equal(runs_of_profile(), 1);
      keep_result(status, &out);
      assert_int_equal(sheaf_tensor_form(out), SHEAF_FORM_BATCHED);
      assert_int_equal(sheaf_tensor_rank(out), 2);
      sheaf_tensor *shown = unbatched(out, 0, 1);
      for (int64_t p = 0; p < 3; p++) {
        sheaf_tensor *one = NULL, *single[4];
        for (int i = 0; i < 4; i++) single[i] = slice(all[i], mix >> i & 1 ? p : 0);
        options.per_sample_weights = weighted ? single[3] : NULL;
        keep_result(sheaf_embedding_bag(single[1], single[0], single[2], &options, &one), &one);
        expect_same_tensor(slice(shown, p), one);
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
      keep_result(sheaf_embedding_bag(batched(indices, 0, 1), table, shared ? slice(bags, 0) : batched(bags, 0, 1),
                                      &options, &out),
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
  keep_result(sheaf_movedim(indices, 1, 0, &moved), &moved); /* [3, 4] */
  keep_result(sheaf_embedding(batched(indices, 1, 1), table, NULL, &out), &out);
  keep_result(sheaf_embedding(moved, table, NULL, &plain), &plain); /* [3, 4, 2] */
  expect_same_tensor(unbatched(out, 0, 1), plain);
  keep_result(sheaf_movedim(plain, 0, 2, &expected), &expected);
  expect_same_tensor(unbatched(out, 2, 1), expected);
  sheaf_tensor *wrong = NULL;
  expect_status(sheaf_batch(table, 2, 1, &wrong), SHEAF_INVALID_PROBLEM);
  expect_words("dimension 2", "0..1");
  expect_status(sheaf_batch(table, 0, 9, &wrong), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_batch(batched(indices, 0, 2), 0, 1, &wrong), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_unbatch(out, 0, 2, &wrong), SHEAF_INVALID_PROBLEM);
  expect_words("level 2", "1");
  expect_status(
      sheaf_embedding(batched(indices, 0, 1), batched(tensor_random(SHEAF_F32, SHAPE(3, 5, 2), 1), 0, 1), NULL, &wrong),
      SHEAF_INVALID_PROBLEM);
  expect_words("level 1", "3", "4");
  sheaf_tensor *bad = tensor_of(SHEAF_I32, SHAPE(2, 2), NUMBERS(0, 1, 2, 5));
  expect_status(sheaf_embedding(batched(bad, 0, 1), table, NULL, &wrong), SHEAF_INDEX_OUT_OF_RANGE);
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
    sheaf_tensor *index = both ? batched(batched(indices, 0, 1), 0, 2) : batched(inner, 0, 2), *out = NULL;
    expect_ok(sheaf_profiler_begin());
    sheaf_status status = sheaf_embedding(index, batched(tables, 0, 1), NULL, &out);
    assert_int_equal(runs_of_profile(), 1);
    keep_result(status, &out);
    sheaf_tensor *shown = unbatched(unbatched(out, 0, 2), 0, 1); /* [2, 4, 6, 3] */
    assert_int_equal(sheaf_tensor_rank(shown), 4);
    for (int p = 0; p < 2; p++) {
      sheaf_tensor *one = NULL;
      keep_result(sheaf_embedding(both ? slice(indices, p) : inner, slice(tables, p), NULL, &one), &one);
      expect_same_tensor(slice(shown, p), one);
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
      sheaf_tensor *x = mix & 1 ? batched(data, 0, 1) : slice(data, 0),
                   *i = mix & 2 ? batched(ids, 0, 1) : slice(ids, 0);
      sheaf_tensor *out = NULL;
      keep_result(sheaf_unsorted_segment_reduce(x, (sheaf_reduce)reduce, i, 4, NULL, &out), &out);
      sheaf_tensor *shown = unbatched(out, 0, 1);
      for (int p = 0; p < 3; p++) {
        sheaf_tensor *one = NULL;
        keep_result(sheaf_unsorted_segment_reduce(slice(data, mix & 1 ? p : 0), (sheaf_reduce)reduce,
                                                  slice(ids, mix & 2 ? p : 0), 4, NULL, &one),
                    &one);
        expect_same_tensor(slice(shown, p), one);
      }
    }
  sheaf_tensor *sum = NULL, *cast = NULL, *packed = NULL, *back = NULL;
  keep_result(sheaf_add(batched(data, 0, 1), slice(data, 0), 2, &sum), &sum);
  sheaf_tensor *shown = unbatched(sum, 0, 1);
  for (int p = 0; p < 3; p++) {
    sheaf_tensor *one = NULL;
    keep_result(sheaf_add(slice(data, p), slice(data, 0), 2, &one), &one);
    expect_same_tensor(slice(shown, p), one);
  }
  keep_result(sheaf_cast(batched(data, 0, 1), SHEAF_F32, &cast), &cast);
  assert_int_equal(sheaf_tensor_form(cast), SHEAF_FORM_BATCHED);
  keep_result(sheaf_quantize(cast, SHEAF_INT8, &packed), &packed);
  keep_result(sheaf_dequantize(packed, SHEAF_F32, &back), &back);
  expect_near_tensor(unbatched(back, 0, 1), data, 0.02);
  sheaf_tensor *rows = NULL;
  keep_result(sheaf_embedding(tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(4, 1)), packed, NULL, &rows), &rows);
  sheaf_tensor *looked_up = unbatched(rows, 0, 1), *values = unbatched(back, 0, 1);
  for (int p = 0; p < 3; p++)
    for (int d = 0; d < 2; d++)
      assert_true(tensor_number(looked_up, p * 4 + d) == tensor_number(values, (p * 6 + 4) * 2 + d));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_sparse_becomes_dense),
      TEST(test_sparse_tables_read_as_dense_ones),
      TEST(test_missing_rows_are_zero),
      TEST(test_sums_of_sparse_and_dense),
      TEST(test_other_ops_take_sparse_tensors_densified),
      TEST(test_sparse_gradients_stay_small),
      TEST(test_quantised_tables_read_as_their_values),
      TEST(test_other_ops_dequantise_and_quantise_again),
      TEST(test_weights_over_quantised_tables_have_gradients),
      TEST(test_nested_indices),
      TEST(test_nested_data_are_segments),
      TEST(test_vmap_of_bags),
      TEST(test_vmap_of_lengths),
      TEST(test_vmap_dimensions),
      TEST(test_nested_vmap),
      TEST(test_vmap_of_segments_and_others),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
