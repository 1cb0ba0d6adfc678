/* gpu_ops.c: lookups, bags, segments, conversions and their gradients on tensors of a CUDA device: scenes (scene.h),
 * whose results have the bits of the CPU's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpu_support.h"
#include "scene.h"

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
      scene_show(out);
    }
  sheaf_tensor *table = FLOATS(SHEAF_F32, 1, 5, 3), *wrong = LIST(SHEAF_I64, 4, 0, 7, -2, 4), *out;
  options = (sheaf_embedding_options)SHEAF_EMBEDDING_OPTIONS_INIT;
  options.skip_bad_indices = 1;
  SHOWN(out, sheaf_embedding(wrong, table, &options, &out));
  SHOWN(out, sheaf_embedding(scene_tensor(tensor_of(SHEAF_I64, SHAPE(0), NULL)), table, NULL, &out));
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
  scene_show(sum);
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
  scene_show(slice);
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
      scene_show(sheaf_tensor_grad(table));
      for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_MAX; mode++) { /* gradients add up */
        options.mode = (sheaf_bag_mode)mode;
        options.scale_grad_by_freq = mode == SHEAF_MODE_MEAN;
        SHOWN(out, sheaf_embedding_bag(indices, table, offsets, &options, &out));
        expect_ok(sheaf_backward(out, FLOATS(elements[e], 18, 3, 10), NULL));
        scene_show(sheaf_tensor_grad(table));
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
    scene_show(sheaf_tensor_grad(table));
    scene_show(sheaf_tensor_grad(weights));
  }
}

/* Rows that a device has to find: among few entries and many, of both index types, some of them padding or bad, rows
 * that thousands name, all of one row, which is padding, and so none at all. */
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
    scene_show(sheaf_tensor_grad(table));
    sheaf_tensor_clear_grad(table);
    sheaf_embedding_options plain = SHEAF_EMBEDDING_OPTIONS_INIT;
    plain.skip_bad_indices = 1;
    SHOWN(out, sheaf_embedding(indices, table, &plain, &out));
    expect_ok(sheaf_backward(out, NULL, NULL));
    scene_show(sheaf_tensor_grad(table));
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
      scene_show(sheaf_tensor_grad(data));
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
  scene_show(first);
  SHOWN(scaled, sheaf_add(first, first, 0.5, &scaled));
  sheaf_tensor_clear_grad(table);
  expect_ok(sheaf_backward(scaled, FLOATS(SHEAF_F64, 28, 6, 3), NULL));
  scene_show(sheaf_tensor_grad(grad));
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
  for (int i = 0; i < 3; i++) scene_show(sheaf_tensor_grad(leaves[i]));
  for (int i = 0; i < 3; i++) sheaf_tensor_clear_grad(leaves[i]);
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

int main(void)
{
  gpu_require();
  const struct CMUnitTest tests[] = {
      SCENE_TEST(test_lookups),
      SCENE_TEST(test_bags),
      SCENE_TEST(test_segments),
      SCENE_TEST(test_conversions),
      SCENE_TEST(test_gaps),
      SCENE_TEST(test_gradients),
      SCENE_TEST(test_row_sparse_gradients),
      SCENE_TEST(test_segment_gradients),
      SCENE_TEST(test_gradients_of_gradients),
      SCENE_TEST(test_gradients_of_weighted_gradients),
  };
  return cmocka_run_group_tests_name("ops on a device", tests, NULL, NULL);
}
