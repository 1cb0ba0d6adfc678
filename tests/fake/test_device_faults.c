/* test_device_faults.c: ops on a device of paper (fake_cuda.c) whose steps fail one after the other, and the host's
 * allocations with them: a status each time, no memory lost on either side, no tensor changed. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sheaf/device.h>

#include "support/tensors.h"

static const DLDevice cpu = {kDLCPU, 0}, paper = {kDLCUDA, 0};

/* ---- Host memory that is counted, and fails ---- */

static struct {
  int64_t calls, failing;
  int64_t blocks;
} heap = {.failing = -1};

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
  return sheaf_set_allocator(&counted) == SHEAF_OK ? 0 : -1;
}

static int use_own_heap(void **state)
{
  tensors_teardown(state);
  sheaf_clear_caches();
  return sheaf_set_allocator(NULL) == SHEAF_OK && heap.blocks == 0 ? 0 : -1;
}

static int64_t device_bytes(void)
{
  sheaf_device_info info;
  expect_ok(sheaf_device_describe(paper, &info));
  return info.memory_bytes;
}

/* ---- What is computed ---- */

typedef struct world {
  sheaf_tensor *table, *weights, *indices, *offsets, *ids, *counts, *sparse, *packed, *nested, *hidden;
} world;

static sheaf_tensor *there(sheaf_tensor *t)
{
  sheaf_tensor *copy;
  expect_ok(sheaf_tensor_to(t, paper, &copy));
  return tensor_keep(copy);
}

static world make_world(void)
{
  world w;
  w.table = there(tensor_random(SHEAF_F32, SHAPE(6, 3), 1));
  w.weights = there(tensor_random(SHEAF_F32, SHAPE(5), 2));
  w.indices = there(tensor_of(SHEAF_I64, SHAPE(5), NUMBERS(0, 5, 2, 2, 1)));
  w.offsets = there(tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 2, 5)));
  w.counts = there(tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(2, 3)));
  w.ids = there(tensor_of(SHEAF_I64, SHAPE(6), NUMBERS(0, 0, 1, 1, 1, 2)));
  expect_ok(sheaf_tensor_sparse(there(tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(5, 5))),
                                there(tensor_random(SHEAF_F32, SHAPE(2, 3), 3)), 6, 0, &w.sparse));
  tensor_keep(w.sparse);
  w.packed = w.hidden = NULL;
  expect_ok(sheaf_quantize(w.table, SHEAF_INT8, &w.packed));
  tensor_keep(w.packed);
  expect_ok(sheaf_tensor_nested(w.indices, w.offsets, &w.nested));
  tensor_keep(w.nested);
  expect_ok(
      sheaf_batch(there(tensor_of(SHEAF_I64, SHAPE(2, 5), NUMBERS(0, 5, 2, 2, 1, 1, 1, 1, 3, 4))), 0, 1, &w.hidden));
  tensor_keep(w.hidden);
  return w;
}

#define STEP(call)                           \
  do {                                       \
    if (status == SHEAF_OK) status = (call); \
  } while (0)

static sheaf_status train(const world *w)
{
  sheaf_tensor *out = NULL, *half = NULL;
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
  sheaf_tensor *sum = NULL;
  STEP(sheaf_add(w->table, sheaf_tensor_grad(w->table), -0.5, &sum));
  STEP(sheaf_cast(sum, SHEAF_F16, &half));
  sheaf_no_grad_end(&guard);
  sheaf_tensor_release(sum);
  sheaf_tensor_release(half);
  sheaf_tensor_release(out);
  sheaf_tensor_require_grad(w->table, SHEAF_GRAD_NONE);
  sheaf_tensor_require_grad(w->weights, SHEAF_GRAD_NONE);
  return status;
}

static sheaf_status forms(const world *w)
{
  sheaf_tensor *t[14] = {NULL};
  sheaf_segment_options pack = SHEAF_SEGMENT_OPTIONS_INIT;
  pack.out_dtype = SHEAF_INT4;
  sheaf_embedding_bag_options lengths = SHEAF_EMBEDDING_BAG_OPTIONS_INIT, max = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  lengths.lengths = 1;
  max.mode = SHEAF_MODE_MAX;
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
  STEP(sheaf_embedding_bag(w->hidden, w->table, w->offsets, &max, &t[10]));
  STEP(sheaf_tensor_to(w->sparse, cpu, &t[11]));
  STEP(sheaf_tensor_new_on(paper, SHEAF_F64, SHAPE(3, 2), &t[12]));
  STEP(sheaf_expand(t[12], 2, &t[13]));
  for (int i = 0; i < 14; i++) sheaf_tensor_release(t[i]);
  return status;
}

static sheaf_status recorded(const world *w)
{
  sheaf_tensor *out = NULL;
  sheaf_profile *profile = NULL;
  sheaf_status status = sheaf_profiler_begin();
  if (status != SHEAF_OK) return status;
  STEP(sheaf_autocast_begin(SHEAF_F16));
  STEP(sheaf_embedding(w->indices, w->table, NULL, &out));
  sheaf_tensor_release(out);
  sheaf_autocast_end();
  sheaf_status stopped = sheaf_profiler_end(&profile);
  if (stopped == SHEAF_OUT_OF_MEMORY) { /* the profile goes on; end it when there is memory */
    heap.failing = -1;
    expect_ok(sheaf_profiler_end(&profile));
  }
  STEP(stopped);
  sheaf_profile_free(profile);
  return status;
}

/* ---- One failure after the other ---- */

static void tear_at(int64_t step)
{
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)step);
  if (step >= 0)
    setenv("SHEAF_PAPER_TEARS", text, 1);
  else
    unsetenv("SHEAF_PAPER_TEARS");
  heap.calls = 0;
}

/* `on_host`: the host's allocations fail in turn, else the device's steps. */
static void fail_in_turn(sheaf_status (*compute)(const world *), int on_host)
{
  world w = make_world();
  sheaf_tensor *before, *after;
  expect_ok(sheaf_tensor_to(w.table, cpu, &before));
  tensor_keep(before);
  int64_t failures = 0;
  for (int64_t failing = 0;; failing++) {
    sheaf_clear_caches();
    int64_t blocks = heap.blocks, bytes = device_bytes();
    tear_at(on_host ? -1 : failing);
    heap.failing = on_host ? failing : -1;
    sheaf_status status = compute(&w);
    int done = on_host && heap.calls <= failing;
    heap.failing = -1;
    tear_at(-1);
    sheaf_clear_caches();
    assert_int_equal(device_bytes(), bytes);
    assert_int_equal(heap.blocks, blocks);
    assert_int_equal(sheaf_excluded_keys().bits, 0);
    assert_int_equal(sheaf_included_keys().bits, 0);
    expect_ok(sheaf_tensor_to(w.table, cpu, &after));
    expect_same_tensor(tensor_keep(after), before);
    failures += status != SHEAF_OK;
    if (status != SHEAF_OK && status != (on_host ? SHEAF_OUT_OF_MEMORY : SHEAF_DEVICE))
      fail_msg("failure %d: %s: %s", (int)failing, sheaf_status_name(status), sheaf_last_error());
    if (status == SHEAF_OK && (on_host ? done : 1)) break;
    assert_true(failing < 10000);
  }
  assert_true(failures > (on_host ? 4 : 16));
}

static void test_steps_of_the_device_fail(void **state)
{
  (void)state;
  fail_in_turn(train, 0);
  fail_in_turn(forms, 0);
  fail_in_turn(recorded, 0);
}

static void test_allocations_of_the_host_fail(void **state)
{
  (void)state;
  fail_in_turn(train, 1);
  fail_in_turn(forms, 1);
  fail_in_turn(recorded, 1);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_steps_of_the_device_fail, use_counted_heap, use_own_heap),
      cmocka_unit_test_setup_teardown(test_allocations_of_the_host_fail, use_counted_heap, use_own_heap),
  };
  return cmocka_run_group_tests_name("faults of a device", tests, NULL, NULL);
}
