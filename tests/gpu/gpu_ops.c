/* gpu_ops.c: ops on tensors of a CUDA device, through all layers: each scene is played on the CPU and on the device, and
 * everything it shows must have the same bits. Runs with the CUDA plug-in (tests/gpu/run.sh), and everywhere with a
 * device of paper (tests/fake). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <sheaf/device.h>

#include "support/tensors.h"

static const DLDevice cpu = {kDLCPU, 0}, gpu = {kDLCUDA, 0};

/* ---- A scene, and what it shows ---- */

enum { MOST_SHOWN = 4096 };
static DLDevice stage;
static sheaf_tensor *shown[2][MOST_SHOWN];
static int shown_count[2];

static int is_gpu(void) { return stage.device_type == kDLCUDA; }

/* A tensor of the test's as the scene uses it: on its stage. */
static sheaf_tensor *on(sheaf_tensor *t)
{
  sheaf_tensor *there = NULL;
  expect_ok(sheaf_tensor_to(t, stage, &there));
  return tensor_keep(there);
}

static sheaf_tensor *floats_of(sheaf_dtype dtype, uint64_t seed, int rank, const int64_t *shape)
{
  return on(tensor_random(dtype, rank, shape, seed));
}
#define FLOATS(dtype, seed, ...) floats_of(dtype, seed, SHAPE(__VA_ARGS__))

static sheaf_tensor *ints_of(sheaf_dtype dtype, int64_t limit, uint64_t seed, int rank, const int64_t *shape)
{
  return on(tensor_random_ints(dtype, limit, rank, shape, seed));
}
#define INTS(dtype, limit, seed, ...) ints_of(dtype, limit, seed, SHAPE(__VA_ARGS__))
#define LIST(dtype, count, ...) on(tensor_of(dtype, SHAPE(count), NUMBERS(__VA_ARGS__)))

/* Keeps a copy on the host of a result, part by part. */
static void show(sheaf_tensor *t)
{
  sheaf_tensor *copy = NULL;
  assert_non_null(t);
  assert_int_equal(sheaf_keyset_contains(sheaf_tensor_keys(t), SHEAF_KEY_CUDA), is_gpu());
  if (sheaf_tensor_part(t, 0)) {
    show(sheaf_tensor_part(t, 0));
    if (sheaf_tensor_part(t, 1)) show(sheaf_tensor_part(t, 1));
    return;
  }
  if (!is_gpu() && sheaf_tensor_form(t) == SHEAF_FORM_DENSE) /* the tensor itself may be written into later */
    expect_ok(sheaf_movedim(t, 0, 0, &copy));
  else
    expect_ok(sheaf_tensor_to(t, cpu, &copy));
  int *count = &shown_count[is_gpu()];
  assert_true(*count < MOST_SHOWN);
  shown[is_gpu()][(*count)++] = tensor_keep(copy);
}

/* Shows the result of a call, and hands it back. */
static sheaf_tensor *result(sheaf_status status, sheaf_tensor **out)
{
  expect_ok(status);
  show(tensor_keep(*out));
  return *out;
}
#define SHOWN(out, call) ((out) = NULL, result(call, &(out)))

static size_t memory_bytes(const sheaf_tensor *t)
{
  const DLTensor *dl = sheaf_tensor_dl(t);
  size_t bytes = dl->dtype.bits / 8;
  for (int i = 0; i < dl->ndim; i++) bytes *= (size_t)dl->shape[i];
  return bytes;
}

static void compare(void)
{
  assert_int_equal(shown_count[0], shown_count[1]);
  assert_true(shown_count[0] > 0);
  for (int i = 0; i < shown_count[0]; i++) {
    const sheaf_tensor *a = shown[0][i], *b = shown[1][i];
    assert_int_equal(sheaf_tensor_dtype(a), sheaf_tensor_dtype(b));
    assert_int_equal(memory_bytes(a), memory_bytes(b));
    if (memory_bytes(a) && memcmp(sheaf_tensor_data(a), sheaf_tensor_data(b), memory_bytes(a)) != 0)
      fail_msg("result %d of %d differs from the CPU's", i, shown_count[0]);
  }
}

static void play(void (*scene)(void))
{
  shown_count[0] = shown_count[1] = 0;
  stage = cpu;
  scene();
  stage = gpu;
  scene();
  compare();
}

/* ---- Lookups, bags, segments ---- */

static const sheaf_dtype elements[] = {SHEAF_F32, SHEAF_F64, SHEAF_F16, SHEAF_BF16};
static const sheaf_dtype index_types[] = {SHEAF_I32, SHEAF_I64};

static void lookups(void)
{
  sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
  for (int e = 0; e < 4; e++)
    for (int i = 0; i < 2; i++) {
      sheaf_tensor *table = FLOATS(elements[e], 1, 37, 19), *indices = INTS(index_types[i], 37, 2, 5, 7), *out;
      SHOWN(out, sheaf_embedding(indices, table, NULL, &out));
      options.padding_idx = 3;
      options.has_padding = 1;
      options.padding = i ? SHEAF_PADDING_ROW : SHEAF_PADDING_ZERO;
      expect_ok(sheaf_embedding(indices, table, &options, &out)); /* into what is given */
      show(out);
    }
  sheaf_tensor *table = FLOATS(SHEAF_F32, 1, 5, 3), *wrong = LIST(SHEAF_I64, 4, 0, 7, -2, 4), *out;
  options = (sheaf_embedding_options)SHEAF_EMBEDDING_OPTIONS_INIT;
  options.skip_bad_indices = 1;
  SHOWN(out, sheaf_embedding(wrong, table, &options, &out));
  SHOWN(out, sheaf_embedding(on(tensor_of(SHEAF_I64, SHAPE(0), NULL)), table, NULL, &out));
}

static void bags(void)
{
  sheaf_tensor *lists[] = {LIST(SHEAF_I64, 3, 0, 2, 7), LIST(SHEAF_I32, 4, 0, 0, 5, 12), LIST(SHEAF_I64, 3, 3, 0, 9)};
  for (int e = 0; e < 4; e++)
    for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_MAX; mode++)
      for (int form = 0; form < 4; form++)
        for (int weighted = 0; weighted < (mode == SHEAF_MODE_MAX ? 1 : 2); weighted++) {
          sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
          sheaf_tensor *table = FLOATS(elements[e], 3, 20, 33), *out;
          sheaf_tensor *indices = form == 3 ? INTS(SHEAF_I64, 20, 4, 4, 3) : INTS(SHEAF_I64, 20, 4, 12);
          options.mode = (sheaf_bag_mode)mode;
          options.include_last_offset = form == 1;
          options.lengths = form == 2;
          options.has_padding = 1;
          options.padding_idx = 2;
          if (weighted)
            options.per_sample_weights = form == 3 ? FLOATS(elements[e], 5, 4, 3) : FLOATS(elements[e], 5, 12);
          SHOWN(out, sheaf_embedding_bag(indices, table, form == 3 ? NULL : lists[form], &options, &out));
        }
}

static void segments(void)
{
  for (int e = 0; e < 4; e++)
    for (int sorted = 0; sorted < 2; sorted++)
      for (int reduce = SHEAF_REDUCE_SUM; reduce <= SHEAF_REDUCE_PROD; reduce++) {
        sheaf_tensor *data = FLOATS(elements[e], 6, 9, 6), *out;
        sheaf_tensor *ids = sorted ? LIST(SHEAF_I64, 9, 0, 0, 0, 2, 2, 3, 3, 3, 3) : INTS(SHEAF_I32, 5, 7, 9);
        sheaf_segment_options options = SHEAF_SEGMENT_OPTIONS_INIT;
        options.empty = e & 1 ? SHEAF_EMPTY_IDENTITY : SHEAF_EMPTY_NEUTRAL;
        if (reduce == SHEAF_REDUCE_MEAN) options.empty = SHEAF_EMPTY_NEUTRAL; /* a NaN's bits are its own */
        SHOWN(out, (sorted ? sheaf_segment_reduce : sheaf_unsorted_segment_reduce)(data, (sheaf_reduce)reduce, ids, 5,
                                                                                   &options, &out));
      }
}

/* ---- Conversions ---- */

static void conversions(void)
{
  sheaf_tensor *out, *packed, *twice;
  for (int from = 0; from < 4; from++) {
    sheaf_tensor *t = FLOATS(elements[from], 8, 3, 4, 5), *rows = FLOATS(elements[from], 9, 7, 6);
    for (int to = 0; to < 4; to++) SHOWN(out, sheaf_cast(t, elements[to], &out));
    SHOWN(out, sheaf_movedim(t, 2, 0, &out));
    SHOWN(out, sheaf_movedim(t, 0, 1, &out));
    SHOWN(out, sheaf_expand(t, 3, &out));
    SHOWN(out, sheaf_reshape(t, 2, (int64_t[]){12, 5}, &out));
    SHOWN(out, sheaf_add(t, t, 1, &out));
    SHOWN(out, sheaf_add(t, FLOATS(elements[from], 10, 3, 4, 5), -0.3, &out));
    SHOWN(packed, sheaf_quantize(rows, SHEAF_INT8, &packed));
    SHOWN(out, sheaf_dequantize(packed, SHEAF_F16, &out));
    SHOWN(packed, sheaf_quantize(t, SHEAF_INT4, &packed)); /* three tables of four rows */
    SHOWN(out, sheaf_dequantize(packed, SHEAF_F64, &out));
    SHOWN(twice, sheaf_cast(packed, SHEAF_INT8, &twice));
    SHOWN(out, sheaf_add(packed, packed, 1, &out));
    SHOWN(out, sheaf_to_dense(twice, &out));
  }
  SHOWN(out, sheaf_movedim(INTS(SHEAF_I64, 9, 11, 4, 5), 0, 1, &out));
  sheaf_tensor *sum = FLOATS(SHEAF_F32, 12, 4, 4), *same = sum;
  expect_ok(sheaf_add(sum, FLOATS(SHEAF_F32, 13, 4, 4), 2, &same)); /* in place */
  show(sum);
}

/* A table that is a column slice of a wider one, on the device. */
static void gaps(void)
{
  sheaf_tensor *wide = FLOATS(SHEAF_F32, 14, 10, 8), *slice, *out;
  DLTensor dl = *sheaf_tensor_dl(wide);
  int64_t shape[] = {10, 3}, strides[] = {8, 1};
  dl.shape = shape;
  dl.strides = strides;
  dl.byte_offset += 8;
  expect_ok(sheaf_tensor_borrow(&dl, 0, &slice));
  tensor_keep(slice);
  SHOWN(out, sheaf_embedding(INTS(SHEAF_I64, 10, 15, 6), slice, NULL, &out));
  SHOWN(out, sheaf_cast(slice, SHEAF_F16, &out));
  SHOWN(out, sheaf_reshape(slice, 1, (int64_t[]){30}, &out));
  SHOWN(out, sheaf_add(slice, slice, 3, &out));
  show(slice);
}

/* ---- Gradients ---- */

static void gradients(void)
{
  for (int e = 0; e < 4; e++)
    for (int kind = SHEAF_GRAD_DENSE; kind <= SHEAF_GRAD_SPARSE_RAW; kind++) {
      sheaf_tensor *table = tensor_leaf(FLOATS(elements[e], 16, 12, 10), (sheaf_grad)kind), *out;
      sheaf_tensor *indices = INTS(SHEAF_I64, 12, 17, 20), *offsets = LIST(SHEAF_I64, 3, 0, 4, 15);
      sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
      SHOWN(out, sheaf_embedding(indices, table, NULL, &out));
      expect_ok(sheaf_backward(out, NULL, NULL)); /* ones */
      show(sheaf_tensor_grad(table));
      for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_MAX; mode++) { /* gradients add up */
        options.mode = (sheaf_bag_mode)mode;
        options.scale_grad_by_freq = mode == SHEAF_MODE_MEAN;
        SHOWN(out, sheaf_embedding_bag(indices, table, offsets, &options, &out));
        expect_ok(sheaf_backward(out, FLOATS(elements[e], 18, 3, 10), NULL));
        show(sheaf_tensor_grad(table));
      }
    }
  sheaf_tensor *table = tensor_leaf(FLOATS(SHEAF_F32, 19, 8, 4), SHEAF_GRAD_SPARSE),
               *indices = INTS(SHEAF_I32, 8, 20, 9), *out;
  sheaf_tensor *weights = tensor_leaf(FLOATS(SHEAF_F32, 21, 9), SHEAF_GRAD_DENSE),
               *offsets = LIST(SHEAF_I32, 3, 2, 3, 4);
  for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_SUM; mode++) {
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    options.mode = (sheaf_bag_mode)mode;
    options.lengths = 1;
    options.per_sample_weights = weights;
    SHOWN(out, sheaf_embedding_bag(indices, table, offsets, &options, &out));
    expect_ok(sheaf_backward(out, NULL, NULL));
    show(sheaf_tensor_grad(table));
    show(sheaf_tensor_grad(weights));
  }
}

/* Rows that a device has to find: among few entries and many, of both index types, some of them padding or bad, rows that
 * thousands name, all of one row, which is padding, and so none at all. */
static void row_sparse_gradients(void)
{
  static const int64_t sizes[][2] = {{3000, 700}, {150000, 40000}}; /* entries and rows */
  for (int i = 0; i < 8; i++) {
    int64_t entries = sizes[i / 4][0], rows = sizes[i / 4][1], bags = entries / 5, mode = i % 3;
    sheaf_dtype dtype = i % 2 ? SHEAF_I64 : SHEAF_I32;
    sheaf_tensor *table = tensor_leaf(FLOATS(SHEAF_F32, 24, rows, 4), SHEAF_GRAD_SPARSE), *out;
    const int64_t below = i == 3 ? 1 : i == 7 ? 40 : rows + rows / 8; /* the last eighth is bad */
    sheaf_tensor *indices = INTS(dtype, below, 25, bags, 5);
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    options.mode = (sheaf_bag_mode)mode;
    options.skip_bad_indices = 1;
    options.has_padding = i % 4 > 1;
    options.padding_idx = i == 3 ? 0 : 3;
    options.scale_grad_by_freq = mode == SHEAF_MODE_SUM;
    options.per_sample_weights = i == 4 ? FLOATS(SHEAF_F32, 26, bags, 5) : NULL;
    if (options.per_sample_weights) options.mode = SHEAF_MODE_MEAN;
    SHOWN(out, sheaf_embedding_bag(indices, table, NULL, &options, &out));
    expect_ok(sheaf_backward(out, FLOATS(SHEAF_F32, 27, bags, 4), NULL));
    show(sheaf_tensor_grad(table));
    sheaf_tensor_clear_grad(table);
    sheaf_embedding_options plain = SHEAF_EMBEDDING_OPTIONS_INIT;
    plain.skip_bad_indices = 1;
    SHOWN(out, sheaf_embedding(indices, table, &plain, &out));
    expect_ok(sheaf_backward(out, NULL, NULL));
    show(sheaf_tensor_grad(table));
  }
}

static void segment_gradients(void)
{
  for (int reduce = SHEAF_REDUCE_SUM; reduce <= SHEAF_REDUCE_PROD; reduce++)
    for (int ties = SHEAF_TIES_FIRST; ties <= SHEAF_TIES_SPLIT; ties++) {
      sheaf_tensor *data = tensor_leaf(FLOATS(SHEAF_F64, 22, 11, 3), SHEAF_GRAD_DENSE),
                   *ids = INTS(SHEAF_I64, 4, 23, 11), *out;
      sheaf_segment_options options = SHEAF_SEGMENT_OPTIONS_INIT;
      options.ties = (sheaf_ties)ties;
      SHOWN(out, sheaf_unsorted_segment_reduce(data, (sheaf_reduce)reduce, ids, 4, &options, &out));
      expect_ok(sheaf_backward(out, FLOATS(SHEAF_F64, 24, 4, 3), NULL));
      show(sheaf_tensor_grad(data));
    }
}

static void gradients_of_gradients(void)
{
  sheaf_tensor *table = tensor_leaf(FLOATS(SHEAF_F64, 25, 6, 3), SHEAF_GRAD_DENSE),
               *indices = INTS(SHEAF_I64, 6, 26, 8), *out;
  sheaf_tensor *grad = tensor_leaf(FLOATS(SHEAF_F64, 27, 8, 3), SHEAF_GRAD_DENSE);
  sheaf_backward_options twice = SHEAF_BACKWARD_OPTIONS_INIT;
  twice.create_graph = 1;
  SHOWN(out, sheaf_embedding(indices, table, NULL, &out));
  expect_ok(sheaf_backward(out, grad, &twice));
  sheaf_tensor *first = tensor_keep(sheaf_tensor_retain(sheaf_tensor_grad(table))), *scaled;
  show(first);
  SHOWN(scaled, sheaf_add(first, first, 0.5, &scaled));
  sheaf_tensor_clear_grad(table);
  expect_ok(sheaf_backward(scaled, FLOATS(SHEAF_F64, 28, 6, 3), NULL));
  show(sheaf_tensor_grad(grad));
}

/* ... of weighted means, scaled by frequency: what is divided by is made on the host. */
static void gradients_of_weighted_gradients(void)
{
  sheaf_tensor *leaves[] = {tensor_leaf(FLOATS(SHEAF_F64, 25, 6, 3), SHEAF_GRAD_DENSE),
                            tensor_leaf(FLOATS(SHEAF_F64, 26, 9), SHEAF_GRAD_DENSE),
                            tensor_leaf(FLOATS(SHEAF_F64, 27, 3, 3), SHEAF_GRAD_DENSE)};
  sheaf_tensor *indices = INTS(SHEAF_I64, 6, 28, 9), *offsets = LIST(SHEAF_I64, 3, 0, 4, 4), *first[2], *out;
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  options.per_sample_weights = leaves[1];
  options.scale_grad_by_freq = 1;
  sheaf_backward_options twice = SHEAF_BACKWARD_OPTIONS_INIT, again = SHEAF_BACKWARD_OPTIONS_INIT;
  twice.create_graph = again.retain_graph = 1;
  SHOWN(out, sheaf_embedding_bag(indices, leaves[0], offsets, &options, &out));
  expect_ok(sheaf_backward(out, leaves[2], &twice));
  for (int i = 0; i < 2; i++) {
    first[i] = tensor_keep(sheaf_tensor_retain(sheaf_tensor_grad(leaves[i])));
    sheaf_tensor_clear_grad(leaves[i]);
  }
  expect_ok(sheaf_backward(first[0], FLOATS(SHEAF_F64, 29, 6, 3), &again));
  expect_ok(sheaf_backward(first[1], FLOATS(SHEAF_F64, 30, 9), &again));
  for (int i = 0; i < 3; i++) show(sheaf_tensor_grad(leaves[i]));
  for (int i = 0; i < 3; i++) sheaf_tensor_clear_grad(leaves[i]);
}

/* ---- Forms ---- */

static void sparse_tensors(void)
{
  sheaf_tensor *values = FLOATS(SHEAF_F32, 29, 4, 5), *ids = LIST(SHEAF_I32, 4, 7, 1, 7, 3), *sparse, *merged, *out;
  sheaf_tensor *dense = FLOATS(SHEAF_F32, 30, 9, 5), *other, *indices = LIST(SHEAF_I64, 6, 0, 7, 3, 1, 7, 8);
  expect_ok(sheaf_tensor_sparse(ids, values, 9, 0, &sparse));
  show(tensor_keep(sparse));
  SHOWN(merged, sheaf_coalesce(sparse, &merged));
  SHOWN(out, sheaf_to_dense(sparse, &out));
  SHOWN(out, sheaf_embedding(indices, sparse, NULL, &out));
  for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_MAX; mode++) {
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    options.mode = (sheaf_bag_mode)mode;
    SHOWN(out, sheaf_embedding_bag(indices, merged, LIST(SHEAF_I64, 3, 0, 1, 4), &options, &out));
  }
  SHOWN(out, sheaf_cast(sparse, SHEAF_F16, &out));
  SHOWN(out, sheaf_add(dense, sparse, -2, &out));
  SHOWN(out, sheaf_add(sparse, dense, 0.5, &out));
  SHOWN(other, sheaf_add(sparse, merged, 3, &other));
  SHOWN(out, sheaf_coalesce(other, &out));
  sheaf_tensor *same = dense;
  expect_ok(sheaf_add(dense, merged, 1, &same));
  show(dense);
  sheaf_tensor *detached; /* another tensor of the same parts lies where they do */
  expect_ok(sheaf_tensor_detach(sparse, &detached));
  assert_null(sheaf_tensor_dl(tensor_keep(detached)));
  SHOWN(out, sheaf_add(detached, detached, 1, &out));
  SHOWN(out, sheaf_unsorted_segment_reduce(sparse, SHEAF_REDUCE_MAX, INTS(SHEAF_I64, 2, 31, 9), 2, NULL, &out));
}

static void quantised_tables(void)
{
  for (int dtype = SHEAF_INT8; dtype <= SHEAF_INT4; dtype++) {
    sheaf_tensor *packed, *out, *indices = INTS(SHEAF_I64, 15, 32, 3, 4);
    SHOWN(packed, sheaf_quantize(FLOATS(SHEAF_F32, 33, 15, 9), (sheaf_dtype)dtype, &packed));
    for (int to = SHEAF_F32; to <= SHEAF_INT4; to++) {
      if (to == SHEAF_F64 || (to >= SHEAF_I32 && to <= SHEAF_U8)) continue;
      sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
      sheaf_embedding_bag_options bag = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
      options.out_dtype = bag.out_dtype = (sheaf_dtype)to;
      SHOWN(out, sheaf_embedding(indices, packed, &options, &out));
      bag.mode = SHEAF_MODE_SUM;
      SHOWN(out, sheaf_embedding_bag(indices, packed, NULL, &bag, &out));
    }
    SHOWN(out,
          sheaf_segment_reduce(packed, SHEAF_REDUCE_SUM, on(tensor_of(SHEAF_I64, SHAPE(15), NULL)), 1, NULL, &out));
  }
}

static void nested_tensors(void)
{
  sheaf_tensor *offsets = LIST(SHEAF_I64, 4, 0, 3, 3, 8), *again = LIST(SHEAF_I64, 4, 0, 3, 3, 8), *jagged, *alike;
  sheaf_tensor *table = tensor_leaf(FLOATS(SHEAF_F32, 34, 6, 4), SHEAF_GRAD_SPARSE), *out, *rows, *sum;
  expect_ok(sheaf_tensor_nested(INTS(SHEAF_I64, 6, 35, 8), offsets, &jagged));
  tensor_keep(jagged);
  SHOWN(out, sheaf_embedding_bag(jagged, table, NULL, NULL, &out));
  SHOWN(rows, sheaf_embedding(jagged, table, NULL, &rows));
  SHOWN(out, sheaf_segment_reduce(rows, SHEAF_REDUCE_MEAN, NULL, 0, NULL, &out));
  expect_ok(sheaf_backward(out, NULL, NULL));
  show(sheaf_tensor_grad(table));
  SHOWN(out, sheaf_to_dense(jagged, &out));
  expect_ok(sheaf_tensor_nested(FLOATS(SHEAF_F32, 36, 8, 4), again, &alike));
  tensor_keep(alike);
  SHOWN(sum, sheaf_add(alike, alike, 2, &sum));
  SHOWN(out, sheaf_cast(sum, SHEAF_BF16, &out));
  SHOWN(out, sheaf_to_dense(alike, &out));
  SHOWN(out, sheaf_quantize(alike, SHEAF_INT8, &out));
}

/* ---- Layers ---- */

static void autocast(void)
{
  for (int dtype = SHEAF_F16; dtype <= SHEAF_BF16; dtype++) {
    sheaf_tensor *table = tensor_leaf(FLOATS(SHEAF_F32, 37, 9, 6), SHEAF_GRAD_DENSE),
                 *indices = INTS(SHEAF_I64, 9, 38, 7), *out;
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    options.mode = SHEAF_MODE_SUM;
    options.per_sample_weights = FLOATS(SHEAF_F32, 39, 7);
    expect_ok(sheaf_autocast_begin((sheaf_dtype)dtype));
    SHOWN(out, sheaf_embedding_bag(indices, table, LIST(SHEAF_I64, 2, 0, 3), &options, &out));
    expect_ok(sheaf_backward(out, NULL, NULL));
    expect_ok(sheaf_autocast_end());
    show(sheaf_tensor_grad(table));
  }
}

static sheaf_tensor *unbatched(sheaf_tensor *t, int level)
{
  sheaf_tensor *plain = NULL;
  expect_ok(sheaf_unbatch(t, 0, level, &plain));
  show(tensor_keep(plain));
  return plain;
}

static void vmap(void)
{
  for (int which = 1; which < 4; which++) { /* indices, table or both batched; offsets shared or not */
    sheaf_tensor *table = which & 2 ? FLOATS(SHEAF_F32, 40, 3, 8, 5) : FLOATS(SHEAF_F32, 40, 8, 5), *out = NULL;
    sheaf_tensor *indices = which & 1 ? INTS(SHEAF_I64, 8, 41, 6, 3) : INTS(SHEAF_I64, 8, 41, 6);
    sheaf_tensor *offsets =
        which == 1 ? on(tensor_of(SHEAF_I64, SHAPE(3, 2), NUMBERS(0, 1, 0, 4, 0, 6))) : LIST(SHEAF_I64, 2, 0, 2);
    tensor_leaf(table, SHEAF_GRAD_DENSE);
    expect_ok(sheaf_embedding_bag(which & 1 ? tensor_batched(indices, 1, 1) : indices,
                                  which & 2 ? tensor_batched(table, 0, 1) : table,
                                  which == 1 ? tensor_batched(offsets, 0, 1) : offsets, NULL, &out));
    tensor_keep(out);
    expect_ok(sheaf_backward(unbatched(out, 1), NULL, NULL));
    show(sheaf_tensor_grad(table));
  }
  sheaf_tensor *table = tensor_batched(FLOATS(SHEAF_F16, 42, 2, 7, 4), 0, 1), *out = NULL, *inner = NULL;
  sheaf_tensor *indices = tensor_batched(tensor_batched(INTS(SHEAF_I32, 7, 43, 2, 3, 5), 0, 1), 0, 2);
  expect_ok(sheaf_embedding(indices, table, NULL, &out));
  tensor_keep(out);
  expect_ok(sheaf_unbatch(out, 0, 2, &inner));
  unbatched(tensor_keep(inner), 1);
}

/* Nested results, row-sparse tables and gradients within vmap. */
static void forms_within_vmap(void)
{
  for (int which = 0; which < 12;
       which++) { /* a table of each slice or one, the kinds of its gradient, scaled or not */
    sheaf_tensor *table = which & 1 ? FLOATS(SHEAF_F32, 47, 2, 8, 3) : FLOATS(SHEAF_F32, 47, 8, 3), *jagged, *rows,
                 *out;
    sheaf_tensor *indices = tensor_batched(INTS(SHEAF_I64, 8, 48, 2, 6), 0, 1);
    tensor_leaf(table, (sheaf_grad)(SHEAF_GRAD_DENSE + which / 2 % 3));
    sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
    options.scale_grad_by_freq = which >= 6;
    expect_ok(sheaf_tensor_nested(indices, LIST(SHEAF_I64, 4, 0, 1, 1, 6), &jagged));
    RESULT(rows,
           sheaf_embedding(tensor_keep(jagged), which & 1 ? tensor_batched(table, 0, 1) : table, &options, &rows));
    RESULT(out, sheaf_segment_reduce(rows, SHEAF_REDUCE_MAX, NULL, 0, NULL, &out));
    expect_ok(sheaf_backward(unbatched(out, 1), NULL, NULL));
    show(sheaf_tensor_grad(table));
    SHOWN(out, sheaf_to_dense(sheaf_tensor_grad(table), &out));
    unbatched(rows, 1);
    sheaf_embedding_bag_options bags = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    bags.scale_grad_by_freq = options.scale_grad_by_freq;
    sheaf_tensor_clear_grad(table);
    RESULT(out, sheaf_embedding_bag(jagged, which & 1 ? tensor_batched(table, 0, 1) : table, NULL, &bags, &out));
    expect_ok(sheaf_backward(unbatched(out, 1), NULL, NULL));
    show(sheaf_tensor_grad(table));
  }
  sheaf_tensor *flat, *tables, *out;
  expect_ok(sheaf_tensor_sparse(LIST(SHEAF_I64, 4, 9, 1, 9, 4), FLOATS(SHEAF_F32, 49, 4, 3), 10, 0, &flat));
  RESULT(tables, sheaf_reshape(tensor_keep(flat), SHAPE(2, 5, 3), &tables));
  RESULT(out, sheaf_embedding(LIST(SHEAF_I64, 3, 4, 1, 2), tensor_batched(tables, 0, 1), NULL, &out));
  unbatched(out, 1);
  SHOWN(out, sheaf_add(FLOATS(SHEAF_F32, 50, 2, 5, 3), tables, 0.5, &out));
}

/* A quantised table, batched indices, weights that require a gradient, autocast, a profile and a trace. */
static void everything(void)
{
  sheaf_tensor *packed, *again[1], *out = NULL, *indices = tensor_batched(INTS(SHEAF_I64, 9, 44, 2, 6), 0, 1);
  sheaf_tensor *weights = tensor_leaf(FLOATS(SHEAF_F32, 45, 2, 6), SHEAF_GRAD_DENSE),
               *offsets = LIST(SHEAF_I64, 3, 0, 1, 4);
  SHOWN(packed, sheaf_quantize(FLOATS(SHEAF_F32, 46, 9, 4), SHEAF_INT8, &packed));
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  options.mode = SHEAF_MODE_SUM;
  options.per_sample_weights = tensor_batched(weights, 0, 1);
  sheaf_profile *profile;
  sheaf_trace *graph;
  expect_ok(sheaf_profiler_begin());
  expect_ok(sheaf_tracer_begin());
  expect_ok(sheaf_autocast_begin(SHEAF_F16));
  expect_ok(sheaf_embedding_bag(indices, packed, offsets, &options, &out));
  tensor_keep(out);
  expect_ok(sheaf_autocast_end());
  expect_ok(sheaf_tracer_end(&graph));
  expect_ok(sheaf_profiler_end(&profile));
  sheaf_tensor *inputs[] = {packed, indices, offsets, options.per_sample_weights};
  expect_ok(sheaf_autocast_begin(SHEAF_F16));
  expect_ok(sheaf_trace_replay(graph, inputs, 4, again, 1));
  expect_ok(sheaf_autocast_end());
  unbatched(tensor_keep(again[0]), 1);
  expect_ok(sheaf_backward(unbatched(out, 1), NULL, NULL));
  show(sheaf_tensor_grad(weights));
  assert_int_equal(sheaf_profile_count(profile), 1);
  const sheaf_profile_record *record = sheaf_profile_at(profile, 0);
  assert_int_equal(record->plan_runs, 1);
  assert_memory_equal(record->sku, is_gpu() ? "bag_sum.int8.i64/cuda" : "bag_sum.int8.i64/cpu.", 20);
  assert_true(is_gpu() ? record->device_ns > 0 && record->device_ns < 1000000000 : record->device_ns == 0);
  sheaf_trace_free(graph);
  sheaf_profile_free(profile);
}

#define SCENE(name)                     \
  static void test_##name(void **state) \
  {                                     \
    (void)state;                        \
    play(name);                         \
  }
SCENE(lookups)
SCENE(bags)
SCENE(segments)
SCENE(conversions)
SCENE(gaps)
SCENE(gradients)
SCENE(row_sparse_gradients)
SCENE(segment_gradients)
SCENE(gradients_of_gradients)
SCENE(gradients_of_weighted_gradients)
SCENE(sparse_tensors)
SCENE(quantised_tables)
SCENE(nested_tensors)
SCENE(autocast)
SCENE(vmap)
SCENE(forms_within_vmap)
SCENE(everything)

/* ---- What belongs to devices alone ---- */

/* The row-sparse gradient of a lookup, by the op itself: with autograd, the forward call would see bad indices first. */
static sheaf_status row_sparse_gradient(sheaf_tensor *grad, sheaf_tensor *indices, int64_t rows, sheaf_tensor **out)
{
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS] = {[SHEAF_EMBEDDING_PADDING_IDX].i = -1,
                                             [SHEAF_EMBEDDING_SPARSE].i = 1,
                                             [SHEAF_EMBEDDING_BAD_INDEX].i = SHEAF_BAD_INDEX_ERROR,
                                             [SHEAF_EMBEDDING_ROWS].i = rows};
  sheaf_tensor *inputs[] = {grad, indices};
  const sheaf_call call = tensor_call(SHEAF_OP_EMBEDDING_BACKWARD, inputs, out, attrs, 1);
  sheaf_guard guard;
  expect_ok(sheaf_guard_begin(sheaf_keyset_of(SHEAF_KEY_SPARSE), sheaf_keyset_empty(), &guard));
  sheaf_status status = sheaf_dispatch(&call);
  expect_ok(sheaf_guard_end(&guard));
  return status;
}

static void test_bad_input(void **state)
{
  (void)state;
  stage = gpu;
  sheaf_tensor *table = FLOATS(SHEAF_F32, 1, 5, 3), *out = NULL, *made = NULL;
  sheaf_tensor *wrong = LIST(SHEAF_I64, 4, 0, 7, -2, 4), *good = LIST(SHEAF_I64, 4, 0, 1, 2, 4);
  expect_status(sheaf_embedding(wrong, table, NULL, &out), SHEAF_INDEX_OUT_OF_RANGE);
  expect_words("indices", "7 at position 1", "0..4", "2 such entries");
  assert_int_equal(sheaf_last_error_info().count, 2);
  assert_null(out);
  sheaf_tensor *given = FLOATS(SHEAF_F32, 2, 4, 3);
  int64_t version = sheaf_tensor_version(given);
  out = given;
  expect_status(sheaf_embedding(wrong, table, NULL, &out), SHEAF_INDEX_OUT_OF_RANGE);
  assert_ptr_equal(out, given);
  assert_true(sheaf_tensor_version(given) > version); /* it has been written by then: as if bad ones were skipped */
  sheaf_embedding_options skip_bad = SHEAF_EMBEDDING_OPTIONS_INIT;
  sheaf_tensor *skipped, *now, *as_skipped;
  skip_bad.skip_bad_indices = 1;
  RESULT(skipped, sheaf_embedding(wrong, table, &skip_bad, &skipped));
  RESULT(now, sheaf_tensor_to(given, cpu, &now));
  RESULT(as_skipped, sheaf_tensor_to(skipped, cpu, &as_skipped));
  expect_same_tensor(now, as_skipped);
  out = NULL;
  expect_status(row_sparse_gradient(FLOATS(SHEAF_F32, 5, 4, 3), wrong, 5, &out), SHEAF_INDEX_OUT_OF_RANGE);
  expect_words("indices", "7 at position 1", "0..4", "2 such entries");
  assert_null(out);
  sheaf_tensor *none = INTS(SHEAF_I64, 5, 6, 0); /* names no row: shapes are looked at all the same */
  expect_status(row_sparse_gradient(FLOATS(SHEAF_F32, 5, 2, 3), none, 5, &out), SHEAF_INVALID_PROBLEM);
  expect_words("grad_out", "2");
  assert_null(out);
  expect_status(sheaf_embedding_bag(good, table, LIST(SHEAF_I64, 3, 0, 3, 2), NULL, &out), SHEAF_INVALID_PROBLEM);
  expect_words("offsets", "2 at position 2");
  expect_status(sheaf_segment_reduce(table, SHEAF_REDUCE_SUM, LIST(SHEAF_I64, 5, 0, 1, 0, 2, 2), 3, NULL, &out),
                SHEAF_INVALID_PROBLEM);
  expect_words("ids", "decrease", "position 2");
  expect_status(sheaf_segment_reduce(table, SHEAF_REDUCE_SUM, LIST(SHEAF_I64, 5, 0, 1, 1, 2, 3), 3, NULL, &out),
                SHEAF_INDEX_OUT_OF_RANGE);
  expect_words("ids", "3 at position 4", "0..2");
  sheaf_tensor *here = tensor_random(SHEAF_F32, SHAPE(5, 3), 3);
  expect_status(sheaf_embedding(good, here, NULL, &out), SHEAF_INVALID_PROBLEM);
  expect_words("table lies on Cpu", "indices on Cuda");
  expect_status(sheaf_add(table, here, 1, &out), SHEAF_INVALID_PROBLEM);
  sheaf_tensor *on_host = here;
  expect_status(sheaf_cast(table, SHEAF_F32, &on_host), SHEAF_INVALID_PROBLEM);
  expect_words("output", "Cpu", "Cuda (device 0)");
  expect_status(sheaf_embedding(good, table, NULL, &on_host), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_tensor_nested(good, LIST(SHEAF_I64, 3, 0, 3, 1), &made), SHEAF_INVALID_PROBLEM);
  expect_words("offset 2", "is 1", "less than 3");
  expect_status(sheaf_tensor_sparse(LIST(SHEAF_I64, 2, 0, 9), FLOATS(SHEAF_F32, 4, 2, 3), 5, 0, &made),
                SHEAF_INDEX_OUT_OF_RANGE);
  expect_status(sheaf_tensor_sparse(LIST(SHEAF_I64, 2, 0, 1), here, 5, 0, &made), SHEAF_INVALID_PROBLEM);
  sheaf_embedding_bag_options lengths = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  lengths.lengths = 1;
  expect_status(sheaf_embedding_bag(good, table, LIST(SHEAF_I64, 2, 1, 2), &lengths, &out), SHEAF_INVALID_PROBLEM);
  expect_words("add up to 3", "4 indices");
  sheaf_tensor *nan = tensor_of(SHEAF_F32, SHAPE(1, 2), NUMBERS(1, 0.0 / 0.0));
  expect_status(sheaf_quantize(on(nan), SHEAF_INT8, &out), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_tensor_new_on((DLDevice){kDLCUDA, 99}, SHEAF_F32, SHAPE(2), &made), SHEAF_UNAVAILABLE);
  expect_status(sheaf_stream_use((DLDevice){kDLCPU, 0}, NULL), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_stream_use((DLDevice){kDLCUDA, -1}, NULL), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_tensor_to(tensor_batched(table, 0, 1), cpu, &made), SHEAF_UNSUPPORTED);
  assert_null(out);
  assert_null(made);
  sheaf_tensor *fine = NULL; /* the device is none the worse for it */
  expect_ok(sheaf_embedding(good, table, NULL, &fine));
  tensor_keep(fine);
}

static void test_tensors_are_made_and_copied(void **state)
{
  (void)state;
  sheaf_tensor *zero, *host, *same, *detached;
  expect_ok(sheaf_tensor_new_on(gpu, SHEAF_F32, SHAPE(3, 2), &zero));
  tensor_keep(zero);
  assert_int_equal(sheaf_tensor_dl(zero)->device.device_type, kDLCUDA);
  expect_ok(sheaf_tensor_to(zero, cpu, &host));
  expect_tensor(tensor_keep(host), 0, 0, 0, 0, 0, 0);
  expect_ok(sheaf_tensor_to(zero, gpu, &same));
  assert_ptr_equal(tensor_keep(same), zero);
  tensor_leaf(zero, SHEAF_GRAD_DENSE);
  expect_ok(sheaf_tensor_to(zero, gpu, &detached));
  assert_false(sheaf_tensor_requires_grad(tensor_keep(detached)));
  sheaf_tensor *empty, *copy;
  expect_ok(sheaf_tensor_new_on(gpu, SHEAF_F32, SHAPE(0, 2), &empty));
  expect_ok(sheaf_tensor_to(tensor_keep(empty), cpu, &copy));
  assert_int_equal(sheaf_tensor_extent(tensor_keep(copy), 1), 2);
  DLManagedTensor *managed;
  expect_ok(sheaf_tensor_to_dlpack(detached, &managed));
  sheaf_tensor *back;
  expect_ok(sheaf_tensor_from_dlpack(managed, &back));
  assert_true(sheaf_keyset_contains(sheaf_tensor_keys(tensor_keep(back)), SHEAF_KEY_CUDA));
}

static void test_streams(void **state)
{
  (void)state;
  void *streams[6] = {NULL};
  sheaf_tensor *out[6] = {NULL}, *host;
  stage = gpu;
  sheaf_tensor *table = FLOATS(SHEAF_F32, 1, 50, 16), *indices = INTS(SHEAF_I64, 50, 2, 400);
  sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
  options.skip_bad_indices = 1; /* nothing is waited for */
  for (int i = 1; i < 6; i++) expect_ok(sheaf_stream_make(gpu, &streams[i]));
  assert_null(sheaf_stream_current(gpu));
  for (int i = 0; i < 6; i++) {
    expect_ok(sheaf_stream_use(gpu, streams[i]));
    assert_ptr_equal(sheaf_stream_current(gpu), streams[i]);
    sheaf_tensor *rows = NULL;
    expect_ok(sheaf_embedding(indices, table, &options, &rows));
    expect_ok(sheaf_unsorted_segment_reduce(rows, SHEAF_REDUCE_SUM, indices, 50, NULL, &out[i]));
    tensor_keep(out[i]);
    sheaf_tensor_release(rows); /* in the stream's order */
    expect_ok(sheaf_stream_wait(gpu, streams[i]));
  }
  expect_ok(sheaf_stream_use(gpu, NULL));
  sheaf_tensor *first = NULL;
  for (int i = 0; i < 6; i++) {
    expect_ok(sheaf_tensor_to(out[i], cpu, &host));
    if (i == 0) first = host;
    expect_same_tensor(tensor_keep(host), first);
  }
  sheaf_clear_caches();
  for (int i = 1; i < 6; i++) expect_ok(sheaf_stream_free(gpu, streams[i]));
}

/* Threads with a stream each, over one table. */
typedef struct worker {
  pthread_t thread;
  sheaf_tensor *table, *indices;
  int rounds;
  float expected; /* every cell of the sum of all rows that are looked up */
  int failed_at;  /* a line, 0: none */
} worker;

#define CHECK(condition)       \
  do {                         \
    if (!(condition)) {        \
      w->failed_at = __LINE__; \
      return NULL;             \
    }                          \
  } while (0)

static void *work(void *context)
{
  worker *w = context;
  void *stream;
  int64_t zeros_shape[] = {64};
  sheaf_tensor *zeros;
  CHECK(sheaf_stream_make(gpu, &stream) == SHEAF_OK && sheaf_stream_use(gpu, stream) == SHEAF_OK);
  CHECK(sheaf_tensor_new_on(gpu, SHEAF_I64, 1, zeros_shape, &zeros) == SHEAF_OK);
  for (int i = 0; i < w->rounds; i++) {
    sheaf_tensor *rows = NULL, *sum = NULL, *host = NULL;
    CHECK(sheaf_embedding(w->indices, w->table, NULL, &rows) == SHEAF_OK);
    CHECK(sheaf_segment_reduce(rows, SHEAF_REDUCE_SUM, zeros, 1, NULL, &sum) == SHEAF_OK);
    sheaf_tensor_release(rows);
    CHECK(sheaf_tensor_to(sum, cpu, &host) == SHEAF_OK);
    for (int d = 0; d < 8; d++) CHECK(((float *)sheaf_tensor_data(host))[d] == w->expected);
    sheaf_tensor_release(sum);
    sheaf_tensor_release(host);
  }
  sheaf_tensor_release(zeros);
  CHECK(sheaf_stream_wait(gpu, stream) == SHEAF_OK && sheaf_stream_use(gpu, NULL) == SHEAF_OK);
  CHECK(sheaf_stream_free(gpu, stream) == SHEAF_OK);
  return NULL;
}

static void test_threads(void **state)
{
  (void)state;
  enum { THREADS = 4 };
  worker workers[THREADS];
  sheaf_tensor *table = tensor_of(SHEAF_F32, SHAPE(10, 8), NULL),
               *indices = tensor_random_ints(SHEAF_I64, 10, SHAPE(64), 2);
  float expected = 0;
  for (int i = 0; i < 80; i++) tensor_set(table, i, i / 8);
  for (int i = 0; i < 64; i++) expected += (float)tensor_number(indices, i);
  stage = gpu;
  sheaf_tensor *there = on(table), *list = on(indices);
  for (int t = 0; t < THREADS; t++) {
    workers[t] = (worker){.table = there, .indices = list, .rounds = 30, .expected = expected};
    assert_int_equal(pthread_create(&workers[t].thread, NULL, work, &workers[t]), 0);
  }
  for (int t = 0; t < THREADS; t++) {
    pthread_join(workers[t].thread, NULL);
    if (workers[t].failed_at) fail_msg("thread %d failed in line %d", t, workers[t].failed_at);
  }
}

/* A call into given memory that waits for nothing is captured in a graph, and done again at each launch. */
static void test_capture(void **state)
{
  (void)state;
  void *stream, *graph = NULL;
  stage = gpu;
  expect_ok(sheaf_stream_make(gpu, &stream));
  expect_ok(sheaf_stream_use(gpu, stream));
  sheaf_tensor *table = FLOATS(SHEAF_F32, 1, 20, 5), *indices = INTS(SHEAF_I64, 20, 2, 30), *out = NULL, *host, *moved;
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  options.skip_bad_indices = 1;
  sheaf_tensor *offsets = LIST(SHEAF_I64, 3, 0, 7, 20);
  expect_ok(sheaf_embedding_bag(indices, table, offsets, &options, &out)); /* its plan and workspace are there now */
  expect_ok(sheaf_tensor_to(tensor_keep(out), cpu, &host));
  tensor_keep(host);
  sheaf_status status = sheaf_graph_begin(gpu, stream);
  if (status == SHEAF_OK) {
    expect_ok(sheaf_embedding_bag(indices, table, offsets, &options, &out));
    expect_ok(sheaf_graph_end(gpu, stream, &graph));
    expect_ok(sheaf_device_fill(gpu, sheaf_tensor_data(out), 0, 60, stream));
    expect_ok(sheaf_graph_launch(gpu, graph, stream));
    expect_ok(sheaf_tensor_to(out, cpu, &moved));
    expect_same_tensor(tensor_keep(moved), host);
    expect_ok(sheaf_graph_free(gpu, graph));
  }
  expect_ok(sheaf_stream_wait(gpu, stream));
  expect_ok(sheaf_stream_use(gpu, NULL));
  expect_ok(sheaf_stream_free(gpu, stream));
  if (status != SHEAF_OK) skip(); /* paper has no graphs */
}

static void test_other_devices_do_not_mix(void **state)
{
  (void)state;
  int devices;
  expect_ok(sheaf_device_count(kDLCUDA, &devices));
  if (devices < 2) skip();
  sheaf_tensor *a, *b, *out = NULL;
  expect_ok(sheaf_tensor_new_on(gpu, SHEAF_F32, SHAPE(2, 2), &a));
  expect_ok(sheaf_tensor_new_on((DLDevice){kDLCUDA, 1}, SHEAF_F32, SHAPE(2, 2), &b));
  expect_status(sheaf_add(tensor_keep(a), tensor_keep(b), 1, &out), SHEAF_INVALID_PROBLEM);
  expect_words("Cuda device 0", "Cuda device 1");
}

int main(void)
{
  int devices = 0;
  if (sheaf_device_count(kDLCUDA, &devices) != SHEAF_OK || devices == 0) {
    print_message("no CUDA device: %s\n", sheaf_last_error());
    return 77;
  }
#define TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_lookups),
      TEST(test_bags),
      TEST(test_segments),
      TEST(test_conversions),
      TEST(test_gaps),
      TEST(test_gradients),
      TEST(test_row_sparse_gradients),
      TEST(test_segment_gradients),
      TEST(test_gradients_of_gradients),
      TEST(test_gradients_of_weighted_gradients),
      TEST(test_sparse_tensors),
      TEST(test_quantised_tables),
      TEST(test_nested_tensors),
      TEST(test_autocast),
      TEST(test_vmap),
      TEST(test_forms_within_vmap),
      TEST(test_everything),
      TEST(test_bad_input),
      TEST(test_tensors_are_made_and_copied),
      TEST(test_streams),
      TEST(test_threads),
      TEST(test_capture),
      TEST(test_other_devices_do_not_mix),
  };
  return cmocka_run_group_tests_name("ops on a device", tests, NULL, NULL);
}
