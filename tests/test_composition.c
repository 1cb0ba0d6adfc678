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

/* Every set of layers that can meet over a lookup: each is visited once, in order. */
static void test_every_pair_of_layers(void **state)
{
  (void)state;
  enum { SPARSE, QUANTIZED, NESTED, AUTOCAST, AUTOGRAD, VMAP, PROFILER, TRACER, CHOICES };
  static const int key[CHOICES] = {SHEAF_KEY_SPARSE,   SHEAF_KEY_QUANTIZED, SHEAF_KEY_NESTED,   SHEAF_KEY_AUTOCAST,
                                   SHEAF_KEY_AUTOGRAD, SHEAF_KEY_VMAP,      SHEAF_KEY_PROFILER, SHEAF_KEY_TRACER};
  sheaf_tensor *dense = tensor_random(SHEAF_F32, SHAPE(4, 3), 1), *quantised = NULL, *sparse, *nested;
  sheaf_tensor *indices = tensor_of(SHEAF_I64, SHAPE(4), NUMBERS(3, 1, 0, 3)), *matrix = NULL, *hidden;
  tensor_result(sheaf_quantize(dense, SHEAF_INT8, &quantised), &quantised);
  expect_ok(sheaf_tensor_sparse(tensor_of(SHEAF_I64, SHAPE(4), NUMBERS(0, 1, 2, 3)), dense, 4, 1, &sparse));
  expect_ok(sheaf_tensor_nested(indices, tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 1, 4)), &nested));
  tensor_keep(sparse);
  tensor_keep(nested);
  tensor_result(sheaf_reshape(indices, 2, (int64_t[]){2, 2}, &matrix), &matrix);
  hidden = tensor_batched(matrix, 0, 1);
  int tried = 0;
  for (unsigned set = 0; set < 1u << CHOICES; set++) {
#define HAS(choice) (set >> (choice)&1)
    int table_kinds = (int)HAS(SPARSE) + (int)HAS(QUANTIZED) + (int)HAS(AUTOGRAD); /* one table is one of them */
    if (table_kinds > 1 || HAS(NESTED) + HAS(VMAP) > 1) continue; /* rows of nested indices are nested */
    sheaf_tensor *leaf = NULL, *out = NULL, *values;
    if (HAS(AUTOGRAD)) {
      expect_ok(sheaf_tensor_detach(dense, &leaf));
      expect_ok(sheaf_tensor_require_grad(tensor_keep(leaf), SHEAF_GRAD_DENSE));
    }
    sheaf_tensor *table = HAS(SPARSE) ? sparse : HAS(QUANTIZED) ? quantised : HAS(AUTOGRAD) ? leaf : dense;
    sheaf_tensor *index = HAS(NESTED) ? nested : HAS(VMAP) ? hidden : indices;
    sheaf_profile *profile = NULL;
    sheaf_trace *graph = NULL;
    if (HAS(PROFILER)) expect_ok(sheaf_profiler_begin());
    if (HAS(TRACER)) expect_ok(sheaf_tracer_begin());
    if (HAS(AUTOCAST)) expect_ok(sheaf_autocast_begin(SHEAF_F16));
    tensor_result(WATCH(sheaf_embedding(index, table, NULL, &out)), &out);
    if (HAS(AUTOCAST)) expect_ok(sheaf_autocast_end());
    if (HAS(TRACER)) expect_ok(sheaf_tracer_end(&graph));
    if (HAS(PROFILER)) expect_ok(sheaf_profiler_end(&profile));
    char expected[256] = "";
    for (int k = SHEAF_KEY_COUNT - 1; k >= 0; k--)
      for (int c = 0; c < CHOICES; c++)
        if (key[c] == k && HAS(c)) {
          strcat(expected, sheaf_dispatch_key_name(k));
          strcat(expected, " ");
        }
    strcat(expected, "Cpu ");
    assert_string_equal(visits, expected);
    if (HAS(PROFILER)) assert_int_equal(sheaf_profile_count(profile), 1);
    if (HAS(PROFILER)) assert_int_equal(sheaf_profile_at(profile, 0)->plan_runs, 1);
    if (HAS(TRACER)) assert_int_equal(sheaf_trace_calls(graph), 1);
    values = HAS(NESTED) || HAS(VMAP) ? sheaf_tensor_part(out, 0) : out;
    assert_int_equal(sheaf_tensor_dtype(values), HAS(AUTOCAST) ? SHEAF_F16 : SHEAF_F32);
    for (int i = 0; i < 12; i++)
      assert_true(fabs(tensor_number(values, i) -
                       tensor_number(dense, (int64_t)tensor_number(indices, i / 3) * 3 + i % 3)) < 0.01);
    sheaf_trace_free(graph);
    sheaf_profile_free(profile);
    tried++;
  }
  assert_int_equal(tried, 96);
  sheaf_tensor *tables = NULL, *bags = NULL; /* bags of nested indices are not nested: these meet vmap */
  tensor_result(sheaf_expand(dense, 2, &tables), &tables);
  tensor_result(WATCH(sheaf_embedding_bag(nested, tensor_batched(tables, 0, 1), NULL, NULL, &bags)), &bags);
  assert_string_equal(visits, "Vmap Nested Cpu ");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_nested_gradients),
      TEST(test_all_layers_in_one_call),
      TEST(test_layers_without_their_tensors),
      TEST(test_quantised_results_have_no_gradient),
      TEST(test_every_pair_of_layers),
  };
  return cmocka_run_group_tests_name("composition", tests, watch_layers, NULL);
}
