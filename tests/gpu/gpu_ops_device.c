/* gpu_ops_device.c: ops on tensors of a CUDA device, as far as it belongs to devices alone: bad input, copies, streams,
 * threads, graphs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>

#include "gpu_support.h"
#include "scene.h"

/* The row-sparse gradient of a lookup, by the op itself: with autograd, the forward call sees bad indices first. */
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
  scene_stage = gpu;
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
  expect_status(sheaf_quantize(scene_tensor(nan), SHEAF_INT8, &out), SHEAF_INVALID_PROBLEM);
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
  scene_stage = gpu;
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
  scene_stage = gpu;
  sheaf_tensor *there = scene_tensor(table), *list = scene_tensor(indices);
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
  scene_stage = gpu;
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
  gpu_require();
  const struct CMUnitTest tests[] = {
      SCENE_TEST(test_bad_input),
      SCENE_TEST(test_tensors_are_made_and_copied),
      SCENE_TEST(test_streams),
      SCENE_TEST(test_threads),
      SCENE_TEST(test_capture),
      SCENE_TEST(test_other_devices_do_not_mix),
  };
  return cmocka_run_group_tests_name("what belongs to devices alone", tests, NULL, NULL);
}
