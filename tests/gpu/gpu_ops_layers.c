/* gpu_ops_layers.c: forms of tensors, and layers, on a CUDA device: scenes (scene.h), whose results have the bits of
 * the CPU's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpu_support.h"
#include "scene.h"

/* ---- Forms ---- */

static void sparse_tensors(void)
{
  sheaf_tensor *values = FLOATS(SHEAF_F32, 29, 4, 5), *ids = LIST(SHEAF_I32, 4, 7, 1, 7, 3), *sparse, *merged, *out;
  sheaf_tensor *dense = FLOATS(SHEAF_F32, 30, 9, 5), *other, *indices = LIST(SHEAF_I64, 6, 0, 7, 3, 1, 7, 8);
  expect_ok(sheaf_tensor_sparse(ids, values, 9, 0, &sparse));
  scene_show(tensor_keep(sparse));
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
  scene_show(dense);
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
    sheaf_tensor *zeros = scene_tensor(tensor_of(SHEAF_I64, SHAPE(15), NULL));
    SHOWN(out, sheaf_segment_reduce(packed, SHEAF_REDUCE_SUM, zeros, 1, NULL, &out));
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
  scene_show(sheaf_tensor_grad(table));
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
    scene_show(sheaf_tensor_grad(table));
  }
}

static sheaf_tensor *unbatched(sheaf_tensor *t, int level)
{
  sheaf_tensor *plain = NULL;
  expect_ok(sheaf_unbatch(t, 0, level, &plain));
  scene_show(tensor_keep(plain));
  return plain;
}

static void vmap(void)
{
  for (int which = 1; which < 4; which++) { /* indices, table or both batched; offsets shared or not */
    sheaf_tensor *table = which & 2 ? FLOATS(SHEAF_F32, 40, 3, 8, 5) : FLOATS(SHEAF_F32, 40, 8, 5), *out = NULL;
    sheaf_tensor *indices = which & 1 ? INTS(SHEAF_I64, 8, 41, 6, 3) : INTS(SHEAF_I64, 8, 41, 6);
    sheaf_tensor *offsets =
        which == 1 ? scene_tensor(tensor_of(SHEAF_I64, SHAPE(3, 2), NUMBERS(0, 1, 0, 4, 0, 6)))
                   : LIST(SHEAF_I64, 2, 0, 2);
    tensor_leaf(table, SHEAF_GRAD_DENSE);
    expect_ok(sheaf_embedding_bag(which & 1 ? tensor_batched(indices, 1, 1) : indices,
                                  which & 2 ? tensor_batched(table, 0, 1) : table,
                                  which == 1 ? tensor_batched(offsets, 0, 1) : offsets, NULL, &out));
    tensor_keep(out);
    expect_ok(sheaf_backward(unbatched(out, 1), NULL, NULL));
    scene_show(sheaf_tensor_grad(table));
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
    scene_show(sheaf_tensor_grad(table));
    SHOWN(out, sheaf_to_dense(sheaf_tensor_grad(table), &out));
    unbatched(rows, 1);
    sheaf_embedding_bag_options bags = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    bags.scale_grad_by_freq = options.scale_grad_by_freq;
    sheaf_tensor_clear_grad(table);
    RESULT(out, sheaf_embedding_bag(jagged, which & 1 ? tensor_batched(table, 0, 1) : table, NULL, &bags, &out));
    expect_ok(sheaf_backward(unbatched(out, 1), NULL, NULL));
    scene_show(sheaf_tensor_grad(table));
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
  scene_show(sheaf_tensor_grad(weights));
  assert_int_equal(sheaf_profile_count(profile), 1);
  const sheaf_profile_record *record = sheaf_profile_at(profile, 0);
  assert_int_equal(record->plan_runs, 1);
  assert_memory_equal(record->sku, scene_on_gpu() ? "bag_sum.int8.i64/cuda" : "bag_sum.int8.i64/cpu.", 20);
  assert_true(scene_on_gpu() ? record->device_ns > 0 && record->device_ns < 1000000000 : record->device_ns == 0);
  sheaf_trace_free(graph);
  sheaf_profile_free(profile);
}

SCENE(sparse_tensors)
SCENE(quantised_tables)
SCENE(nested_tensors)
SCENE(autocast)
SCENE(vmap)
SCENE(forms_within_vmap)
SCENE(everything)

int main(void)
{
  gpu_require();
  const struct CMUnitTest tests[] = {
      SCENE_TEST(test_sparse_tensors),
      SCENE_TEST(test_quantised_tables),
      SCENE_TEST(test_nested_tensors),
      SCENE_TEST(test_autocast),
      SCENE_TEST(test_vmap),
      SCENE_TEST(test_forms_within_vmap),
      SCENE_TEST(test_everything),
  };
  return cmocka_run_group_tests_name("forms and layers on a device", tests, NULL, NULL);
}
