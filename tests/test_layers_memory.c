/* test_layers_memory.c: every allocation of whole computations fails in turn: a status, nothing lost, no tensor
 * changed; and a call into given memory allocates nothing, through however many layers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "support/tensors.h"

static struct {
  int64_t calls, failing;
  int64_t blocks;
} heap;

static void *counted_allocate(void *context, size_t bytes, size_t alignment)
{
  (void)context;
  if (heap.calls++ == heap.failing) return NULL;
  heap.blocks++;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void counted_release(void *context, void *memory, size_t bytes)
{
  (void)context;
  (void)bytes;
  heap.blocks--;
  free(memory);
}

static int use_counted_heap(void **state)
{
  (void)state;
  static const sheaf_allocator counted = {counted_allocate, counted_release, NULL};
  sheaf_clear_caches();
  memset(&heap, 0, sizeof heap);
  heap.failing = -1;
  return sheaf_set_allocator(&counted) == SHEAF_OK ? 0 : -1;
}

static int use_own_heap(void **state)
{
  tensors_teardown(state);
  sheaf_clear_caches();
  int lost = heap.blocks != 0;
  if (lost) print_message("%lld blocks were lost\n", (long long)heap.blocks);
  return sheaf_set_allocator(NULL) == SHEAF_OK && !lost ? 0 : -1;
}

/* What the computations work on; made once, before anything fails. */
typedef struct world {
  sheaf_tensor *table, *weights, *indices, *offsets, *ids, *counts, *sparse, *packed, *nested, *hidden;
} world;

static world make_world(void)
{
  world w;
  w.table = tensor_random(SHEAF_F32, SHAPE(6, 3), 1);
  w.weights = tensor_random(SHEAF_F32, SHAPE(5), 2);
  w.indices = tensor_of(SHEAF_I64, SHAPE(5), NUMBERS(0, 5, 2, 2, 1));
  w.offsets = tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 2, 5));
  w.counts = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(2, 3));
  w.ids = tensor_of(SHEAF_I64, SHAPE(6), NUMBERS(0, 0, 1, 1, 1, 2));
  expect_ok(sheaf_tensor_sparse(tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(5, 5)), tensor_random(SHEAF_F32, SHAPE(2, 3), 3),
                                6, 0, &w.sparse));
  w.packed = NULL;
  expect_ok(sheaf_quantize(w.table, SHEAF_INT8, &w.packed));
  expect_ok(sheaf_tensor_nested(w.indices, w.offsets, &w.nested));
  w.hidden = NULL;
  expect_ok(sheaf_batch(tensor_of(SHEAF_I64, SHAPE(2, 5), NUMBERS(0, 5, 2, 2, 1, 1, 1, 1, 3, 4)), 0, 1, &w.hidden));
  tensor_keep(w.sparse);
  tensor_keep(w.packed);
  tensor_keep(w.nested);
  tensor_keep(w.hidden);
  return w;
}

#define STEP(call)                           \
  do {                                       \
    if (status == SHEAF_OK) status = (call); \
  } while (0)

static sheaf_status train(const world *w)
{
  sheaf_tensor *out = NULL, *same = w->table;
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  sheaf_status status = sheaf_tensor_require_grad(w->table, SHEAF_GRAD_SPARSE);
  STEP(sheaf_tensor_require_grad(w->weights, SHEAF_GRAD_DENSE));
  options.per_sample_weights = w->weights;
  options.include_last_offset = 1;
  STEP(sheaf_embedding_bag(w->indices, w->table, w->offsets, &options, &out));
  sheaf_backward_options retain = SHEAF_BACKWARD_OPTIONS_INIT;
  retain.retain_graph = 1;
  STEP(sheaf_backward(out, NULL, &retain));
  STEP(sheaf_backward(out, NULL, NULL));
  sheaf_guard guard;
  sheaf_no_grad_begin(&guard);
  STEP(sheaf_add(w->table, sheaf_tensor_grad(w->table), 0, &same));
  sheaf_no_grad_end(&guard);
  sheaf_tensor_release(out);
  sheaf_tensor_require_grad(w->table, SHEAF_GRAD_NONE);
  sheaf_tensor_require_grad(w->weights, SHEAF_GRAD_NONE);
  return status;
}

static sheaf_status twice(const world *w)
{
  sheaf_tensor *out = NULL, *g = NULL;
  int64_t shape[] = {5, 3};
  sheaf_status status = sheaf_tensor_require_grad(w->table, SHEAF_GRAD_DENSE);
  STEP(sheaf_tensor_new(SHEAF_F32, 2, shape, &g));
  STEP(sheaf_tensor_require_grad(g, SHEAF_GRAD_DENSE));
  STEP(sheaf_embedding(w->indices, w->table, NULL, &out));
  sheaf_backward_options create = SHEAF_BACKWARD_OPTIONS_INIT;
  create.create_graph = 1;
  STEP(sheaf_backward(out, g, &create));
  STEP(sheaf_backward(sheaf_tensor_grad(w->table), NULL, NULL));
  sheaf_tensor_require_grad(w->table, SHEAF_GRAD_NONE);
  sheaf_tensor_release(g);
  sheaf_tensor_release(out);
  return status;
}

/* Of a weighted mean, whose second gradients are made of many pieces; and over no slices. */
static sheaf_status means_twice(const world *w)
{
  sheaf_tensor *out = NULL, *g = NULL, *none = NULL, *hidden = NULL, *empty = NULL, *shown = NULL;
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  options.per_sample_weights = w->weights;
  options.include_last_offset = options.scale_grad_by_freq = 1;
  sheaf_status status = sheaf_tensor_require_grad(w->table, SHEAF_GRAD_DENSE);
  STEP(sheaf_tensor_require_grad(w->weights, SHEAF_GRAD_DENSE));
  STEP(sheaf_tensor_new(SHEAF_F32, 2, (int64_t[]){2, 3}, &g));
  STEP(sheaf_tensor_require_grad(g, SHEAF_GRAD_DENSE));
  STEP(sheaf_embedding_bag(w->indices, w->table, w->offsets, &options, &out));
  sheaf_backward_options create = SHEAF_BACKWARD_OPTIONS_INIT;
  create.create_graph = 1;
  STEP(sheaf_backward(out, g, &create));
  sheaf_tensor *first[] = {sheaf_tensor_retain(sheaf_tensor_grad(w->table)),
                           sheaf_tensor_retain(sheaf_tensor_grad(w->weights))};
  sheaf_backward_options again = SHEAF_BACKWARD_OPTIONS_INIT;
  again.retain_graph = 1;
  for (int i = 0; i < 2; i++) STEP(sheaf_backward(first[i], NULL, &again));
  STEP(sheaf_tensor_new(SHEAF_I64, 2, (int64_t[]){0, 5}, &none));
  STEP(sheaf_batch(none, 0, 1, &hidden));
  STEP(sheaf_embedding(hidden, w->table, NULL, &empty));
  STEP(sheaf_unbatch(empty, 0, 1, &shown));
  STEP(sheaf_backward(shown, NULL, NULL));
  sheaf_tensor *all[] = {out, none, hidden, empty, shown, first[0], first[1]};
  for (int i = 0; i < 7; i++) sheaf_tensor_release(all[i]);
  sheaf_tensor_require_grad(w->table, SHEAF_GRAD_NONE);
  sheaf_tensor_require_grad(w->weights, SHEAF_GRAD_NONE);
  if (g) sheaf_tensor_clear_grad(g);
  sheaf_tensor_release(g);
  return status;
}

static sheaf_status forms(const world *w)
{
  sheaf_tensor *t[10] = {NULL};
  sheaf_segment_options pack = SHEAF_SEGMENT_OPTIONS_INIT;
  pack.out_dtype = SHEAF_INT4;
  sheaf_embedding_bag_options lengths = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  lengths.lengths = 1;
  sheaf_status status = sheaf_embedding(w->indices, w->sparse, NULL, &t[0]);
  STEP(sheaf_add(w->sparse, w->sparse, 2, &t[1]));
  STEP(sheaf_coalesce(t[1], &t[2]));
  STEP(sheaf_segment_reduce(w->packed, SHEAF_REDUCE_SUM, w->ids, 3, &pack, &t[3]));
  STEP(sheaf_embedding(w->nested, w->table, NULL, &t[4]));
  STEP(sheaf_segment_reduce(t[4], SHEAF_REDUCE_MAX, NULL, 0, NULL, &t[5]));
  STEP(sheaf_to_dense(t[4], &t[6]));
  STEP(sheaf_embedding(w->hidden, w->table, NULL, &t[7]));
  STEP(sheaf_unbatch(t[7], 1, 1, &t[8]));
  STEP(sheaf_embedding_bag(w->indices, w->table, w->counts, &lengths, &t[9]));
  for (int i = 0; i < 10; i++) sheaf_tensor_release(t[i]);
  return status;
}

static sheaf_status recorded(const world *w)
{
  sheaf_tensor *out = NULL, *replayed = NULL, *inputs[] = {w->table, w->indices};
  sheaf_trace *graph = NULL, *read = NULL;
  sheaf_profile *profile = NULL;
  char json[4096];
  sheaf_status status = sheaf_profiler_begin();
  sheaf_status tracing = status == SHEAF_OK ? sheaf_tracer_begin() : status;
  sheaf_status casting = tracing == SHEAF_OK ? sheaf_autocast_begin(SHEAF_F16) : tracing;
  status = casting;
  STEP(sheaf_embedding(w->indices, w->table, NULL, &out));
  sheaf_tensor_release(out);
  if (casting == SHEAF_OK) expect_ok(sheaf_autocast_end());
  sheaf_status ended = tracing == SHEAF_OK ? sheaf_tracer_end(&graph) : SHEAF_OK;
  STEP(ended);
  sheaf_status stopped = sheaf_profiler_end(&profile);
  if (stopped == SHEAF_OUT_OF_MEMORY) { /* the profile goes on; end it when there is memory */
    heap.failing = -1;
    expect_ok(sheaf_profiler_end(&profile));
  }
  STEP(stopped);
  if (status == SHEAF_OK) sheaf_trace_json(graph, json, sizeof json);
  STEP(sheaf_trace_from_json(json, &read));
  STEP(sheaf_trace_replay(read, inputs, 2, &replayed, 1));
  sheaf_tensor_release(replayed);
  sheaf_trace_free(read);
  sheaf_trace_free(graph);
  sheaf_profile_free(profile);
  return status;
}

/* Fails allocation 0, 1, 2 ... until the computation needs no more. */
static void fail_in_turn(sheaf_status (*compute)(const world *), const char *what)
{
  world w = make_world();
  double before[18];
  for (int i = 0; i < 18; i++) before[i] = tensor_number(w.table, i);
  for (int64_t failing = 0;; failing++) {
    sheaf_clear_caches();
    int64_t blocks = heap.blocks;
    heap.calls = 0;
    heap.failing = failing;
    sheaf_status status = compute(&w);
    heap.failing = -1;
    sheaf_clear_caches();
    if (heap.blocks != blocks)
      fail_msg("%s: allocation %d: %d blocks lost", what, (int)failing, (int)(heap.blocks - blocks));
    for (int i = 0; i < 18; i++) assert_true(tensor_number(w.table, i) == before[i]);
    assert_int_equal(sheaf_excluded_keys().bits, 0);
    assert_int_equal(sheaf_included_keys().bits, 0);
    if (heap.calls <= failing) {
      if (status != SHEAF_OK) fail_msg("%s: nothing failed, but: %s", what, sheaf_last_error());
      assert_true(failing > 3);
      return;
    }
    if (status != SHEAF_OUT_OF_MEMORY && status != SHEAF_OK) /* a lost record of a profile is no failure */
      fail_msg("%s: allocation %d failed: %s: %s", what, (int)failing, sheaf_status_name(status), sheaf_last_error());
  }
}

static void test_failing_allocations(void **state)
{
  (void)state;
  fail_in_turn(train, "train");
  fail_in_turn(twice, "twice");
  fail_in_turn(means_twice, "means twice");
  fail_in_turn(forms, "forms");
  fail_in_turn(recorded, "recorded");
}

static void test_layers_allocate_nothing(void **state)
{
  (void)state;
  world w = make_world();
  sheaf_tensor *out = tensor_of(SHEAF_F32, SHAPE(5, 3), NULL), *bags = tensor_of(SHEAF_F32, SHAPE(3, 3), NULL);
  sheaf_embedding_options read = SHEAF_EMBEDDING_OPTIONS_INIT;
  sheaf_guard guard;
  expect_ok(sheaf_guard_begin(
      sheaf_keyset_from(1u << SHEAF_KEY_SPARSE | 1u << SHEAF_KEY_QUANTIZED | 1u << SHEAF_KEY_AUTOGRAD),
      sheaf_keyset_empty(), &guard));
  for (int round = 0; round < 2; round++) { /* the first one fills the caches */
    heap.calls = 0;
    expect_ok(sheaf_embedding(w.indices, w.packed, &read, &out));
    expect_ok(sheaf_embedding_bag(w.indices, w.packed, w.offsets, NULL, &bags));
  }
  assert_int_equal(heap.calls, 0);
  expect_ok(sheaf_guard_end(&guard));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_failing_allocations, use_counted_heap, use_own_heap),
      cmocka_unit_test_setup_teardown(test_layers_allocate_nothing, use_counted_heap, use_own_heap),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
