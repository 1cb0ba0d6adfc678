/* test_layers_memory.c: every allocation of whole computations fails in turn: a status, nothing lost, no tensor
 * changed; a call into given memory allocates nothing, through however many layers; what is kept for later is bounded.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>

#include "support/faults.h"
#include "support/heap.h"

/* Fails allocation 0, 1, 2 ... until the computation needs no more. */
static void fail_in_turn(const fault_case *c)
{
  fault_world w = make_fault_world((DLDevice){kDLCPU, 0});
  sheaf_tensor *all[] = {w.table, w.tables, w.weights}, *before[3];
  for (int i = 0; i < 3; i++) RESULT(before[i], sheaf_movedim(all[i], 0, 0, &before[i]));
  for (int64_t failing = 0;; failing++) {
    sheaf_clear_caches();
    int64_t blocks = heap.blocks;
    heap.calls = 0;
    heap.failing = failing;
    sheaf_status status = c->compute(&w);
    heap.failing = -1;
    sheaf_clear_caches();
    if (heap.blocks != blocks)
      fail_msg("%s: allocation %d: %d blocks lost", c->name, (int)failing, (int)(heap.blocks - blocks));
    for (int i = 0; i < 3; i++) expect_same_tensor(all[i], before[i]);
    for (int i = 0; i < 3; i++) assert_false(sheaf_tensor_requires_grad(all[i]));
    assert_int_equal(sheaf_excluded_keys().bits, 0);
    assert_int_equal(sheaf_included_keys().bits, 0);
    if (heap.calls <= failing) {
      if (status != SHEAF_OK) fail_msg("%s: nothing failed, but: %s", c->name, sheaf_last_error());
      assert_true(failing > 3);
      return;
    }
    if (status != SHEAF_OUT_OF_MEMORY && status != SHEAF_OK) /* a lost record of a profile is no failure */
      fail_msg("%s: allocation %d failed: %s: %s", c->name, (int)failing, sheaf_status_name(status),
               sheaf_last_error());
  }
}

static void test_failing_allocations(void **state)
{
  (void)state;
  for (int i = 0; i < fault_case_count; i++) fail_in_turn(&fault_cases[i]);
}

/* Layers that let a call through, all at once, and those that have a part in it. */
static void test_layers_allocate_nothing(void **state)
{
  (void)state;
  fault_world w = make_fault_world((DLDevice){kDLCPU, 0});
  sheaf_tensor *out = tensor_of(SHEAF_F32, SHAPE(5, 3), NULL), *bags = tensor_of(SHEAF_F32, SHAPE(3, 3), NULL);
  sheaf_tensor *sums = tensor_of(SHEAF_F32, SHAPE(3, 3), NULL), *half = tensor_of(SHEAF_F16, SHAPE(5, 3), NULL);
  unsigned passing = sheaf_keyset_all().bits & ~sheaf_keyset_below(SHEAF_KEY_SPARSE).bits &
                     ~(1u << SHEAF_KEY_PROFILER | 1u << SHEAF_KEY_TRACER);
  sheaf_guard guard;
  expect_ok(sheaf_autocast_begin(SHEAF_F16));
  expect_ok(sheaf_embedding(w.indices, w.table, NULL, &half)); /* casts the table */
  expect_ok(sheaf_guard_begin(sheaf_keyset_from(passing), sheaf_keyset_empty(), &guard));
  for (int round = 0; round < 2; round++) { /* the first one fills the caches */
    heap.calls = 0;
    expect_ok(sheaf_embedding(w.indices, w.table, NULL, &half));
    expect_ok(sheaf_autocast_begin(SHEAF_DTYPE_NONE));
    expect_ok(sheaf_embedding(w.indices, w.packed, NULL, &out));
    expect_ok(sheaf_embedding_bag(w.indices, w.packed, w.offsets, NULL, &bags));
    expect_ok(sheaf_unsorted_segment_reduce(w.table, SHEAF_REDUCE_SUM, w.ids, 3, NULL, &sums)); /* needs workspace */
    expect_ok(sheaf_autocast_end());
  }
  assert_int_equal(heap.calls, 0);
  expect_ok(sheaf_guard_end(&guard));
  expect_ok(sheaf_autocast_end());
}

/* A record that memory was short for is counted, and those behind it are whole. */
static void test_lost_records_leave_no_gap(void **state)
{
  (void)state;
  fault_world w = make_fault_world((DLDevice){kDLCPU, 0});
  sheaf_tensor *out = tensor_of(SHEAF_F32, SHAPE(5, 3), NULL);
  sheaf_profile *profile;
  expect_ok(sheaf_embedding(w.indices, w.table, NULL, &out)); /* its plan is kept */
  expect_ok(sheaf_profiler_begin());
  heap.calls = heap.failing = 0;
  expect_ok(sheaf_embedding(w.indices, w.table, NULL, &out));
  assert_int_equal(heap.calls, 1);
  heap.failing = -1;
  expect_ok(sheaf_embedding(w.indices, w.table, NULL, &out));
  expect_ok(sheaf_profiler_end(&profile));
  assert_int_equal(sheaf_profile_lost(profile), 1);
  assert_int_equal(sheaf_profile_count(profile), 1);
  assert_string_equal(sheaf_profile_at(profile, 0)->op, "embedding");
  assert_true(sheaf_profile_chrome(profile, NULL, 0) > 0);
  sheaf_profile_free(profile);
}

/* A call that memory was short for is no part of the trace, which goes on. */
static void test_traces_go_on_after_a_failure(void **state)
{
  (void)state;
  fault_world w = make_fault_world((DLDevice){kDLCPU, 0});
  sheaf_tensor *first = tensor_of(SHEAF_F32, SHAPE(5, 3), NULL), *second = tensor_of(SHEAF_F32, SHAPE(5, 3), NULL);
  expect_ok(sheaf_embedding(w.indices, w.table, NULL, &first));
  for (int64_t failing = 0, calls = 1; calls < 2; failing++) {
    sheaf_trace *graph;
    sheaf_tensor *inputs[] = {w.table, w.indices}, *outputs[2] = {NULL, NULL};
    expect_ok(sheaf_tracer_begin());
    heap.calls = 0;
    heap.failing = failing;
    sheaf_status status = sheaf_embedding(w.indices, w.table, NULL, &first);
    heap.failing = -1;
    calls = status == SHEAF_OK ? 2 : 1;
    expect_status(status, calls == 2 ? SHEAF_OK : SHEAF_OUT_OF_MEMORY);
    expect_ok(sheaf_embedding(w.indices, w.table, NULL, &second));
    expect_ok(sheaf_tracer_end(&graph));
    assert_int_equal(sheaf_trace_calls(graph), calls);
    assert_int_equal(sheaf_trace_inputs(graph), 2);
    assert_int_equal(sheaf_trace_outputs(graph), calls);
    expect_ok(sheaf_trace_replay(graph, inputs, 2, outputs, (int)calls));
    expect_same_tensor(tensor_keep(outputs[0]), second);
    if (calls == 2) tensor_keep(outputs[1]);
    sheaf_trace_free(graph);
  }
}

/* Two outputs that a graph in JSON gives one name. */
static void test_values_named_twice_are_not_lost(void **state)
{
  (void)state;
  sheaf_trace *graph;
  sheaf_tensor *inputs[] = {tensor_of(SHEAF_F32, SHAPE(2, 1), NUMBERS(1, 2)), tensor_of(SHEAF_I64, SHAPE(1, 2), NULL)};
  sheaf_tensor *out = NULL;
  char json[512];
  snprintf(json, sizeof json,
           "{\"sheaf_trace\": 1, \"inputs\": [0, 1], \"values\": [{\"form\": 0}, {\"form\": 0}, {\"form\": 0}], "
           "\"calls\": [{\"op\": \"embedding_bag\", \"inputs\": [0, 1, -1, -1], \"outputs\": [2, 2], \"wanted\": 3, "
           "\"include\": 0, \"batch\": 0, \"batched\": 0, \"attrs\": {\"mode\": %d, \"bag_form\": %d}}]}",
           SHEAF_MODE_MAX, SHEAF_BAGS_MATRIX);
  expect_ok(sheaf_trace_from_json(json, &graph));
  expect_ok(sheaf_trace_replay(graph, inputs, 2, &out, 1));
  expect_tensor(tensor_keep(out), 1);
  sheaf_trace_free(graph);
}

static pthread_key_t last_words;

static void release_last(void *tensor) { sheaf_tensor_release(tensor); }

static void *end_with_a_tensor(void *unused)
{
  sheaf_tensor *first, *last;
  expect_ok(sheaf_tensor_new(SHEAF_F32, SHAPE(2), &first));
  expect_ok(sheaf_tensor_new(SHEAF_F32, SHAPE(2), &last));
  sheaf_tensor_release(first);
  assert_int_equal(pthread_setspecific(last_words, last), 0);
  return unused;
}

/* Tensors that others release when a thread ends, after the library has cleaned up there. */
static void test_threads_leave_nothing_behind(void **state)
{
  (void)state;
  pthread_t thread;
  assert_int_equal(pthread_key_create(&last_words, release_last), 0);
  int64_t blocks = heap.blocks;
  assert_int_equal(pthread_create(&thread, NULL, end_with_a_tensor, NULL), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(heap.blocks, blocks);
  assert_int_equal(pthread_key_delete(last_words), 0);
}

/* Thousands of problems leave no more behind than a few hundred do. */
static void test_kept_plans_are_bounded(void **state)
{
  (void)state;
  sheaf_tensor *indices = tensor_of(SHEAF_I64, SHAPE(1), NULL), *table, *out;
  int64_t blocks[4];
  for (int round = 0; round < 4; round++) {
    for (int64_t rows = 1; rows <= 1000; rows++) {
      out = NULL;
      expect_ok(sheaf_tensor_new(SHEAF_F32, 2, (int64_t[]){rows + 1000 * round, 2}, &table));
      expect_ok(sheaf_embedding(indices, table, NULL, &out));
      sheaf_tensor_release(table);
      sheaf_tensor_release(out);
    }
    blocks[round] = heap.blocks;
  }
  assert_true(blocks[0] < 2 * (256 + 16) + 32); /* a plan and its entry each; small blocks of the thread */
  for (int round = 1; round < 4; round++) assert_int_equal(blocks[round], blocks[0]);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, use_counted_heap, use_own_heap)
  const struct CMUnitTest tests[] = {
      TEST(test_failing_allocations),
      TEST(test_layers_allocate_nothing),
      TEST(test_lost_records_leave_no_gap),
      TEST(test_traces_go_on_after_a_failure),
      TEST(test_values_named_twice_are_not_lost),
      TEST(test_threads_leave_nothing_behind),
      TEST(test_kept_plans_are_bounded),
  };
  return cmocka_run_group_tests_name("memory of layers", tests, NULL, NULL);
}
