/* test_composition.c: layers that meet: all of them in one call, every set of them that can; each layer seen once, in order
 * of priority. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "support/tensors.h"
#include "support/watch.h"

static void test_nested_gradients(void **state)
{
  (void)state;
  sheaf_tensor *values = tensor_of(SHEAF_I64, SHAPE(4), NUMBERS(1, 0, 1, 2)),
               *offsets = tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 3, 4));
  sheaf_tensor *nested, *plain[2], *jagged[2], *weights[2];
  expect_ok(sheaf_tensor_nested(values, offsets, &nested));
  tensor_keep(nested);
  for (int form = 0; form < 2; form++) {
    sheaf_tensor *table = tensor_random(SHEAF_F64, SHAPE(3, 2), 1), *rows = NULL, *sums = NULL;
    sheaf_tensor *g = tensor_of(SHEAF_F64, SHAPE(2, 2), NUMBERS(1, 2, 3, 4));
    expect_ok(sheaf_tensor_require_grad(table, SHEAF_GRAD_DENSE));
    tensor_result(WATCH(sheaf_embedding(form ? nested : values, table, NULL, &rows)), &rows);
    assert_string_equal(visits, form ? "Autograd Nested Cpu " : "Autograd Cpu ");
    tensor_result(form ? sheaf_segment_reduce(rows, SHEAF_REDUCE_PROD, NULL, 0, NULL, &sums)
                       : sheaf_segment_reduce(rows, SHEAF_REDUCE_PROD,
                                              tensor_of(SHEAF_I64, SHAPE(4), NUMBERS(0, 0, 0, 1)), 2, NULL, &sums),
                  &sums);
    expect_ok(sheaf_backward(sums, g, NULL));
    plain[form] = sheaf_tensor_grad(table);
    sheaf_tensor *other = tensor_random(SHEAF_F64, SHAPE(3, 2), 1), *bags = NULL;
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    options.include_last_offset = !form;
    options.per_sample_weights = weights[form] = tensor_of(SHEAF_F64, SHAPE(4), NUMBERS(1, 2, 3, 4));
    expect_ok(sheaf_tensor_require_grad(weights[form], SHEAF_GRAD_DENSE));
    expect_ok(sheaf_tensor_require_grad(other, SHEAF_GRAD_SPARSE));
    tensor_result(sheaf_embedding_bag(form ? nested : values, other, form ? NULL : offsets, &options, &bags), &bags);
    expect_ok(sheaf_backward(bags, g, NULL));
    jagged[form] = NULL;
    tensor_result(sheaf_to_dense(sheaf_tensor_grad(other), &jagged[form]), &jagged[form]);
  }
  expect_same_tensor(plain[0], plain[1]);
  expect_same_tensor(jagged[0], jagged[1]);
  expect_same_tensor(sheaf_tensor_grad(weights[0]), sheaf_tensor_grad(weights[1]));
}

static void test_all_layers_in_one_call(void **state)
{
  (void)state;
  /* a quantised table, batched indices, weights that require a gradient, autocast, a profile and a trace */
  sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(9, 4), 1), *packed = NULL, *plain = NULL;
  sheaf_tensor *indices = tensor_random_ints(SHEAF_I64, 9, SHAPE(2, 6), 2),
               *weights = tensor_random(SHEAF_F32, SHAPE(2, 6), 3);
  sheaf_tensor *offsets = tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 1, 4)), *out = NULL, *shown = NULL;
  tensor_result(sheaf_quantize(table, SHEAF_INT8, &packed), &packed);
  tensor_result(sheaf_dequantize(packed, SHEAF_F32, &plain), &plain);
  expect_ok(sheaf_tensor_require_grad(weights, SHEAF_GRAD_DENSE));
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  options.mode = SHEAF_MODE_SUM;
  options.per_sample_weights = tensor_batched(weights, 0, 1);
  sheaf_tensor *batched_indices = tensor_batched(indices, 0, 1);
  sheaf_profile *profile;
  sheaf_trace *graph;
  expect_ok(sheaf_profiler_begin());
  expect_ok(sheaf_tracer_begin());
  expect_ok(sheaf_autocast_begin(SHEAF_F16));
  tensor_result(WATCH(sheaf_embedding_bag(batched_indices, packed, offsets, &options, &out)), &out);
  expect_ok(sheaf_autocast_end());
  expect_ok(sheaf_tracer_end(&graph));
  expect_ok(sheaf_profiler_end(&profile));
  assert_string_equal(visits, "Tracer Profiler Vmap Autograd Autocast Quantized Cpu ");
  assert_int_equal(sheaf_profile_count(profile), 1);
  assert_int_equal(sheaf_profile_at(profile, 0)->plan_runs, 1);
  assert_memory_equal(sheaf_profile_at(profile, 0)->sku, "bag_sum.int8.i64/cpu", 20);
  assert_int_equal(sheaf_trace_calls(graph), 1);
  tensor_result(sheaf_unbatch(out, 0, 1, &shown), &shown);
  assert_int_equal(sheaf_tensor_dtype(shown), SHEAF_F16);
  expect_ok(sheaf_backward(shown, NULL, NULL));
  for (int p = 0; p < 2; p++)
    for (int k = 0; k < 6; k++) { /* ones go in: each weight's slope is the sum of its row */
      double sum = 0;
      for (int d = 0; d < 4; d++) sum += tensor_number(plain, (int64_t)tensor_number(indices, p * 6 + k) * 4 + d);
      assert_true(fabs(tensor_number(sheaf_tensor_grad(weights), p * 6 + k) - sum) < 1e-5);
    }
  for (int p = 0; p < 2; p++)
    for (int b = 0; b < 3; b++)
      for (int d = 0; d < 4; d++) {
        double sum = 0;
        for (int k = b == 0 ? 0 : b == 1 ? 1 : 4; k < (b == 0 ? 1 : b == 1 ? 4 : 6); k++)
          sum += tensor_number(weights, p * 6 + k) *
                 tensor_number(plain, (int64_t)tensor_number(indices, p * 6 + k) * 4 + d);
        assert_true(fabs(tensor_number(shown, (p * 3 + b) * 4 + d) - sum) < 5e-3);
      }
  sheaf_tensor *replayed[1], *inputs[] = {packed, batched_indices, offsets, options.per_sample_weights}, *again = NULL;
  expect_ok(sheaf_autocast_begin(SHEAF_F16));
  expect_ok(sheaf_trace_replay(graph, inputs, 4, replayed, 1));
  expect_ok(sheaf_autocast_end());
  tensor_keep(replayed[0]);
  tensor_result(sheaf_unbatch(replayed[0], 0, 1, &again), &again);
  expect_same_tensor(again, shown);
  sheaf_trace_free(graph);
  sheaf_profile_free(profile);
}

/* Keys that no tensor brings: every layer lets the call through, or (Autocast without a type) does nothing. */
static void test_layers_without_their_tensors(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(6, 2), 1),
               *indices = tensor_random_ints(SHEAF_I64, 6, SHAPE(2, 3), 2);
  sheaf_tensor *ids = tensor_of(SHEAF_I64, SHAPE(6), NULL), *plain[5] = {NULL}, *through[5] = {NULL};
  for (int round = 0; round < 2; round++) {
    sheaf_tensor **out = round ? through : plain;
    sheaf_guard guard;
    unsigned keys = round ? 0x7ffu & ~7u & ~(1u << SHEAF_KEY_TRACER) & ~(1u << SHEAF_KEY_PROFILER) : 0;
    expect_ok(sheaf_guard_begin(sheaf_keyset_from(keys), sheaf_keyset_empty(), &guard));
    tensor_result(sheaf_embedding(indices, table, NULL, &out[0]), &out[0]);
    tensor_result(WATCH(sheaf_embedding_bag(indices, table, NULL, NULL, &out[1])), &out[1]);
    if (round) assert_string_equal(visits, "Vmap Autograd Autocast Nested Quantized Sparse Cpu ");
    tensor_result(sheaf_segment_reduce(table, SHEAF_REDUCE_SUM, ids, 1, NULL, &out[2]), &out[2]);
    tensor_result(sheaf_add(table, table, 2, &out[3]), &out[3]);
    tensor_result(sheaf_movedim(table, 0, 1, &out[4]), &out[4]);
    expect_ok(sheaf_guard_end(&guard));
  }
  for (int i = 0; i < 5; i++) expect_same_tensor(plain[i], through[i]);
}

static void test_quantised_results_have_no_gradient(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(6, 2), 1), *indices = tensor_of(SHEAF_I64, SHAPE(2), NULL),
               *out = NULL;
  sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
  options.out_dtype = SHEAF_INT8;
  expect_ok(sheaf_tensor_require_grad(table, SHEAF_GRAD_DENSE));
  expect_status(sheaf_embedding(indices, table, &options, &out), SHEAF_UNSUPPORTED);
  expect_words("int8", "table");
  assert_null(out);
}

/* ---- Every set of layers that can meet ---- */

enum { SPARSE, QUANTIZED, NESTED, AUTOCAST, AUTOGRAD, VMAP, PROFILER, TRACER, CHOICES };
static const int choice_key[CHOICES] = {SHEAF_KEY_SPARSE,   SHEAF_KEY_QUANTIZED, SHEAF_KEY_NESTED,   SHEAF_KEY_AUTOCAST,
                                        SHEAF_KEY_AUTOGRAD, SHEAF_KEY_VMAP,      SHEAF_KEY_PROFILER, SHEAF_KEY_TRACER};
#define HAS(choice) (set >> (choice)&1)

/* What a set of layers works on: with data, or (meta) without. */
typedef struct actors {
  int meta;
  sheaf_tensor *dense, *sparse, *quantised, *indices, *offsets, *weights;
} actors;

static sheaf_tensor *without_data(int meta, sheaf_tensor *t)
{
  int64_t shape[SHEAF_TENSOR_MAX_RANK];
  for (int i = 0; i < sheaf_tensor_rank(t); i++) shape[i] = sheaf_tensor_extent(t, i);
  return meta ? tensor_untouchable(sheaf_tensor_dtype(t), sheaf_tensor_rank(t), shape) : t;
}

static actors make_actors(int meta)
{
  actors a = {.meta = meta};
  a.dense = without_data(meta, tensor_random(SHEAF_F32, SHAPE(4, 3), 1));
  a.indices = without_data(meta, tensor_of(SHEAF_I64, SHAPE(2, 4), NUMBERS(3, 1, 0, 3, 0, 2, 2, 1)));
  a.offsets = without_data(meta, tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 1, 4)));
  a.weights = without_data(meta, tensor_of(SHEAF_F32, SHAPE(4), NUMBERS(1, 1, 1, 1)));
  RESULT(a.quantised, sheaf_quantize(a.dense, SHEAF_INT8, &a.quantised));
  sheaf_tensor *ids = without_data(meta, tensor_of(SHEAF_I64, SHAPE(4), NUMBERS(0, 1, 2, 3)));
  RESULT(a.sparse, sheaf_tensor_sparse(ids, a.dense, 4, 1, &a.sparse));
  return a;
}

/* A call with the layers of a set; what was visited is compared with what should have been. */
static sheaf_tensor *call_through(const actors *a, unsigned set, int bags)
{
  sheaf_tensor *table = HAS(SPARSE) ? a->sparse : HAS(QUANTIZED) ? a->quantised : a->dense, *weights = a->weights;
  sheaf_tensor *index, *offsets = a->offsets, *out = NULL;
  sheaf_profile *profile = NULL;
  sheaf_trace *graph = NULL;
  if (HAS(AUTOGRAD)) { /* of the table, or of a bag's weights, over a table of any kind */
    sheaf_tensor **leaf = bags ? &weights : &table;
    expect_ok(sheaf_tensor_detach(*leaf, leaf));
    tensor_leaf(tensor_keep(*leaf), SHEAF_GRAD_DENSE);
  }
  if (HAS(VMAP)) { /* eight entries in two slices, */
    index = tensor_batched(a->indices, 0, 1);
  } else if (bags) { /* or those of the first, as there are weights for them, */
    index = without_data(a->meta, tensor_of(SHEAF_I64, SHAPE(4), NUMBERS(3, 1, 0, 3)));
  } else { /* or in one list */
    RESULT(index, sheaf_reshape(a->indices, SHAPE(8), &index));
    offsets = without_data(a->meta, tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 1, 8)));
  }
  sheaf_tensor *jagged;
  if (HAS(NESTED)) index = RESULT(jagged, sheaf_tensor_nested(index, offsets, &jagged));
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  options.mode = SHEAF_MODE_SUM;
  options.per_sample_weights = weights;
  options.include_last_offset = !HAS(NESTED);
  if (HAS(PROFILER)) expect_ok(sheaf_profiler_begin());
  if (HAS(TRACER)) expect_ok(sheaf_tracer_begin());
  if (HAS(AUTOCAST)) expect_ok(sheaf_autocast_begin(SHEAF_F16));
  sheaf_status status = WATCH(bags ? sheaf_embedding_bag(index, table, HAS(NESTED) ? NULL : offsets, &options, &out)
                                   : sheaf_embedding(index, table, NULL, &out));
  if (HAS(AUTOCAST)) expect_ok(sheaf_autocast_end());
  if (HAS(TRACER)) expect_ok(sheaf_tracer_end(&graph));
  if (HAS(PROFILER)) expect_ok(sheaf_profiler_end(&profile));
  tensor_result(status, &out);
  char expected[256] = "";
  for (int k = SHEAF_KEY_COUNT - 1; k >= 0; k--)
    for (int c = 0; c < CHOICES; c++)
      if (choice_key[c] == k && HAS(c)) {
        strcat(expected, sheaf_dispatch_key_name(k));
        strcat(expected, " ");
      }
  strcat(expected, a->meta ? "Meta " : "Cpu ");
  assert_string_equal(visits, expected);
  if (HAS(PROFILER)) assert_int_equal(sheaf_profile_count(profile), 1);
  if (HAS(PROFILER)) assert_int_equal(sheaf_profile_at(profile, 0)->plan_runs, 1);
  if (HAS(TRACER)) assert_int_equal(sheaf_trace_calls(graph), 1);
  assert_int_equal(sheaf_tensor_requires_grad(HAS(VMAP) ? sheaf_tensor_part(out, 0) : out), HAS(AUTOGRAD));
  sheaf_trace_free(graph);
  sheaf_profile_free(profile);
  return out;
}

/* The numbers of a result, whatever it is wrapped in. */
static const sheaf_tensor *numbers_of(const sheaf_tensor *t)
{
  while (sheaf_tensor_part(t, 0)) t = sheaf_tensor_part(t, 0);
  return t;
}

/* Over lookups and over bags, with data and without: each layer is visited once, in order, and the result is that of the
 * dense table. */
static void test_every_set_of_layers(void **state)
{
  (void)state;
  int tried = 0;
  for (int meta = 0; meta < 2; meta++)
    for (int bags = 0; bags < 2; bags++)
      for (unsigned set = 0; set < 1u << CHOICES; set++) {
        int kinds =
            (int)HAS(SPARSE) + (int)HAS(QUANTIZED) + (bags ? 0 : (int)HAS(AUTOGRAD)); /* one table is one of them */
        if (kinds > 1) continue;
        actors a = make_actors(meta);
        const sheaf_tensor *out = numbers_of(call_through(&a, set, bags));
        assert_int_equal(sheaf_tensor_dtype(out), HAS(AUTOCAST) ? SHEAF_F16 : SHEAF_F32);
        assert_int_equal(sheaf_tensor_form(out), meta ? SHEAF_FORM_META : SHEAF_FORM_DENSE);
        assert_int_equal(tensor_count(out), bags ? (HAS(VMAP) ? 12 : 6) : 24);
        for (int64_t i = 0; !meta && i < tensor_count(out); i++) {
          double should = 0;
          int64_t bag = i / 3, first = bags ? bag / 2 * 4 + (bag % 2 ? 1 : 0) : bag,
                  last = bags ? bag / 2 * 4 + (bag % 2 ? 4 : 1) : bag + 1;
          for (int64_t k = first; k < last; k++)
            should += tensor_number(a.dense, (int64_t)tensor_number(a.indices, k) * 3 + i % 3);
          if (!(fabs(tensor_number(out, i) - should) < 0.02))
            fail_msg("bags %d, set %x: number %d is %g, not %g", bags, set, (int)i, tensor_number(out, i), should);
        }
        tried++;
        tensors_teardown(state);
      }
  assert_int_equal(tried, 2 * (128 + 192));
}

/* Two kinds of a table meet where a result is asked for in another kind: rows of a list, packed. */
static void test_sparse_tables_give_packed_rows(void **state)
{
  (void)state;
  actors a = make_actors(0);
  sheaf_embedding_options pack = SHEAF_EMBEDDING_OPTIONS_INIT;
  sheaf_tensor *out, *plain, *left, *right;
  pack.out_dtype = SHEAF_INT8;
  RESULT(out, WATCH(sheaf_embedding(a.indices, a.sparse, &pack, &out)));
  assert_string_equal(visits, "Quantized Sparse Cpu ");
  RESULT(plain, sheaf_embedding(a.indices, a.dense, &pack, &plain));
  RESULT(left, sheaf_dequantize(out, SHEAF_F32, &left));
  RESULT(right, sheaf_dequantize(plain, SHEAF_F32, &right));
  expect_same_tensor(left, right);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_nested_gradients),
      TEST(test_all_layers_in_one_call),
      TEST(test_layers_without_their_tensors),
      TEST(test_quantised_results_have_no_gradient),
      TEST(test_every_set_of_layers),
      TEST(test_sparse_tables_give_packed_rows),
  };
  return cmocka_run_group_tests_name("composition", tests, watch_layers, NULL);
}
