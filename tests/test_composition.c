/* test_composition.c: layers that meet: autocast, profiles, traces, and every pair of them with the forms and with
 * gradients; each layer seen once, in order of priority. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/tensors.h"
#include "support/test_random.h"

static sheaf_tensor *keep_result(sheaf_status status, sheaf_tensor **out)
{
  expect_ok(status);
  return tensor_keep(*out);
}

/* ---- Who was visited: a layer of the test's own in front of every built-in one ---- */

static char visits[512];
static int watching;

static sheaf_status watch(const sheaf_call *call, const sheaf_frame *frame)
{
  if (watching && (call->op == SHEAF_OP_EMBEDDING || call->op == SHEAF_OP_EMBEDDING_BAG)) {
    strcat(visits, sheaf_dispatch_key_name((int)frame->key));
    strcat(visits, " ");
  }
  return sheaf_call_replaced(call, frame);
}

static int watch_layers(void **state)
{
  (void)state;
  for (int key = 0; key < SHEAF_KEY_COUNT; key++) {
    if (sheaf_layer_register(SHEAF_OP_EMBEDDING, (sheaf_dispatch_key)key, watch, NULL) != SHEAF_OK) return -1;
    if (sheaf_layer_register(SHEAF_OP_EMBEDDING_BAG, (sheaf_dispatch_key)key, watch, NULL) != SHEAF_OK) return -1;
  }
  return 0;
}

#define WATCH(expression) (visits[0] = '\0', watching = 1, watch_status = (expression), watching = 0, watch_status)
static sheaf_status watch_status;

/* ---- Autocast ---- */

static void test_autocast_lowers_tables(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(20, 7), 1),
               *indices = tensor_random_ints(SHEAF_I64, 20, SHAPE(9), 2);
  sheaf_tensor *weights = tensor_random(SHEAF_F32, SHAPE(9), 3),
               *offsets = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 4));
  for (int dtype = SHEAF_F16; dtype <= SHEAF_BF16; dtype++) {
    sheaf_tensor *low = NULL, *low_weights = NULL, *a = NULL, *b = NULL;
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    keep_result(sheaf_cast(table, (sheaf_dtype)dtype, &low), &low);
    keep_result(sheaf_cast(weights, (sheaf_dtype)dtype, &low_weights), &low_weights);
    expect_ok(sheaf_autocast_begin((sheaf_dtype)dtype));
    keep_result(WATCH(sheaf_embedding(indices, table, NULL, &a)), &a);
    assert_string_equal(visits, "Autocast Cpu ");
    expect_ok(sheaf_autocast_end());
    keep_result(sheaf_embedding(indices, low, NULL, &b), &b);
    expect_same_tensor(a, b);
    a = b = NULL;
    options.per_sample_weights = weights;
    expect_ok(sheaf_autocast_begin((sheaf_dtype)dtype));
    keep_result(sheaf_embedding_bag(indices, table, offsets, &options, &a), &a);
    expect_ok(sheaf_autocast_end());
    options.per_sample_weights = low_weights;
    keep_result(sheaf_embedding_bag(indices, low, offsets, &options, &b),
                &b); /* f32 sums inside, as without autocast */
    expect_same_tensor(a, b);
  }
}

static void test_autocast_policy_of_other_ops(void **state)
{
  (void)state;
  sheaf_tensor *data = tensor_random(SHEAF_F32, SHAPE(4, 2), 1), *ids = tensor_of(SHEAF_I64, SHAPE(4), NULL);
  sheaf_tensor *wide = tensor_random(SHEAF_F64, SHAPE(4, 2), 2), *half = NULL, *out = NULL;
  keep_result(sheaf_cast(data, SHEAF_F16, &half), &half);
  expect_ok(sheaf_autocast_begin(SHEAF_F16));
  keep_result(sheaf_segment_reduce(data, SHEAF_REDUCE_SUM, ids, 1, NULL, &out), &out);
  assert_int_equal(sheaf_tensor_dtype(out), SHEAF_F32);
  out = NULL;
  keep_result(sheaf_embedding(ids, wide, NULL, &out), &out);
  assert_int_equal(sheaf_tensor_dtype(out), SHEAF_F64);
  out = NULL;
  keep_result(sheaf_add(half, data, 1, &out), &out);
  assert_int_equal(sheaf_tensor_dtype(out), SHEAF_F32);
  out = NULL;
  keep_result(sheaf_add(data, wide, 1, &out), &out);
  assert_int_equal(sheaf_tensor_dtype(out), SHEAF_F64);
  expect_ok(sheaf_autocast_begin(SHEAF_DTYPE_NONE)); /* off within */
  out = NULL;
  keep_result(sheaf_embedding(ids, data, NULL, &out), &out);
  assert_int_equal(sheaf_tensor_dtype(out), SHEAF_F32);
  expect_ok(sheaf_autocast_end());
  out = NULL;
  keep_result(sheaf_embedding(ids, data, NULL, &out), &out);
  assert_int_equal(sheaf_tensor_dtype(out), SHEAF_F16);
  expect_ok(sheaf_autocast_end());
  expect_status(sheaf_autocast_begin(SHEAF_F64), SHEAF_UNSUPPORTED);
  assert_int_equal(sheaf_included_keys().bits, 0);
}

static void test_autocast_notices_writes(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_of(SHEAF_F32, SHAPE(2, 1), NUMBERS(1, 2)),
               *indices = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 1));
  sheaf_tensor *out = NULL, *same = table;
  expect_ok(sheaf_autocast_begin(SHEAF_BF16));
  keep_result(sheaf_embedding(indices, table, NULL, &out), &out);
  expect_tensor(out, 1, 2);
  tensor_set(table, 0, 5); /* not announced: the cast table is still used */
  out = NULL;
  keep_result(sheaf_embedding(indices, table, NULL, &out), &out);
  expect_tensor(out, 1, 2);
  sheaf_tensor_written(table);
  out = NULL;
  keep_result(sheaf_embedding(indices, table, NULL, &out), &out);
  expect_tensor(out, 5, 2);
  expect_ok(sheaf_add(table, tensor_of(SHEAF_F32, SHAPE(2, 1), NUMBERS(1, 1)), 1, &same)); /* through Sheaf */
  out = NULL;
  keep_result(sheaf_embedding(indices, table, NULL, &out), &out);
  expect_tensor(out, 6, 3);
  expect_ok(sheaf_autocast_end());
}

static void test_autocast_gradients_have_the_leafs_type(void **state)
{
  (void)state;
  for (int sparse = 0; sparse < 2; sparse++) {
    sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(5, 3), 1), *weights = tensor_random(SHEAF_F32, SHAPE(6), 2);
    sheaf_tensor *indices = tensor_random_ints(SHEAF_I64, 5, SHAPE(6), 3),
                 *offsets = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 3));
    sheaf_tensor *out = NULL, *dense = NULL;
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    options.per_sample_weights = weights;
    options.mode = SHEAF_MODE_SUM;
    expect_ok(sheaf_tensor_require_grad(table, sparse ? SHEAF_GRAD_SPARSE : SHEAF_GRAD_DENSE));
    expect_ok(sheaf_tensor_require_grad(weights, SHEAF_GRAD_DENSE));
    expect_ok(sheaf_autocast_begin(SHEAF_F16));
    keep_result(WATCH(sheaf_embedding_bag(indices, table, offsets, &options, &out)), &out);
    assert_string_equal(visits, "Autograd Autocast Cpu ");
    expect_ok(sheaf_autocast_end());
    assert_int_equal(sheaf_tensor_dtype(out), SHEAF_F16);
    expect_ok(sheaf_backward(out, NULL, NULL));
    assert_int_equal(sheaf_tensor_dtype(sheaf_tensor_grad(table)), SHEAF_F32);
    assert_int_equal(sheaf_tensor_dtype(sheaf_tensor_grad(weights)), SHEAF_F32);
    keep_result(sheaf_to_dense(sheaf_tensor_grad(table), &dense), &dense);
    for (int r = 0; r < 5; r++) {
      float sum = 0;
      for (int k = 0; k < 6; k++)
        if (tensor_number(indices, k) == r) sum += (float)tensor_number(weights, k);
      for (int d = 0; d < 3; d++) assert_true(fabs(tensor_number(dense, r * 3 + d) - (double)sum) < 1e-6);
    }
  }
}

/* ---- Gradients with vmap ---- */

static sheaf_tensor *batched(sheaf_tensor *t, int dim, int level)
{
  sheaf_tensor *out = NULL;
  return keep_result(sheaf_batch(t, dim, level, &out), &out);
}

/* <unbatched result, g> for a mixture of batched operands, as the sum over slices of plain calls. */
typedef struct mixture {
  sheaf_tensor *table, *indices, *offsets, *weights, *g;
  int mix, mode;
} mixture;

static sheaf_tensor *slice(sheaf_tensor *t, int64_t i, int take)
{
  int64_t shape[8], count = 1;
  if (!take) return t;
  for (int d = 1; d < sheaf_tensor_rank(t); d++) count *= shape[d - 1] = sheaf_tensor_extent(t, d);
  sheaf_tensor *out = tensor_of(sheaf_tensor_dtype(t), sheaf_tensor_rank(t) - 1, shape, NULL);
  for (int64_t k = 0; k < count; k++) tensor_set(out, k, tensor_number(t, i * count + k));
  return out;
}

static double objective(const mixture *m)
{
  double sum = 0;
  sheaf_guard guard;
  expect_ok(sheaf_no_grad_begin(&guard));
  for (int64_t p = 0; p < 2; p++) {
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    sheaf_tensor *out = NULL;
    options.mode = (sheaf_bag_mode)m->mode;
    options.per_sample_weights = m->weights ? slice(m->weights, p, m->mix & 8) : NULL;
    expect_ok(sheaf_embedding_bag(slice(m->indices, p, m->mix & 2), slice(m->table, p, m->mix & 1),
                                  slice(m->offsets, p, m->mix & 4), &options, &out));
    for (int64_t i = 0; i < tensor_count(out); i++)
      sum += tensor_number(out, i) * tensor_number(m->g, p * tensor_count(out) + i);
    sheaf_tensor_release(out);
  }
  expect_ok(sheaf_no_grad_end(&guard));
  return sum;
}

static void check_slopes(const mixture *m, sheaf_tensor *leaf)
{
  sheaf_tensor *grad = NULL;
  keep_result(sheaf_to_dense(sheaf_tensor_grad(leaf), &grad), &grad);
  assert_int_equal(sheaf_tensor_rank(grad), sheaf_tensor_rank(leaf));
  for (int64_t i = 0; i < tensor_count(leaf); i++) {
    double x = tensor_number(leaf, i), step = 1e-6;
    tensor_set(leaf, i, x + step);
    double up = objective(m);
    tensor_set(leaf, i, x - step);
    double slope = (up - objective(m)) / (2 * step);
    tensor_set(leaf, i, x);
    if (!(fabs(slope - tensor_number(grad, i)) <= 1e-7 * (1 + fabs(slope))))
      fail_msg("mix %d mode %d: gradient %d is %g, the slope %g", m->mix, m->mode, (int)i, tensor_number(grad, i),
               slope);
  }
}

static void test_vmap_gradients_have_the_slopes(void **state)
{
  (void)state;
  for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_MAX; mode++)
    for (int mix = 1; mix < 16; mix++)
      for (int sparse = 0; sparse < 2; sparse++) {
        int weighted = mode != SHEAF_MODE_MAX;
        if (!weighted && (mix & 8)) continue;
        mixture m = {.mix = mix, .mode = mode};
        m.table = mix & 1 ? tensor_random(SHEAF_F64, SHAPE(2, 4, 2), 1) : tensor_random(SHEAF_F64, SHAPE(4, 2), 1);
        m.indices =
            mix & 2 ? tensor_random_ints(SHEAF_I64, 4, SHAPE(2, 5), 2) : tensor_random_ints(SHEAF_I64, 4, SHAPE(5), 2);
        m.offsets = mix & 4 ? tensor_of(SHEAF_I64, SHAPE(2, 2), NUMBERS(0, 2, 0, 4))
                            : tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 3));
        if (weighted) {
          m.weights = mix & 8 ? tensor_random(SHEAF_F64, SHAPE(2, 5), 3) : tensor_random(SHEAF_F64, SHAPE(5), 3);
          for (int64_t i = 0; i < tensor_count(m.weights); i++)
            tensor_set(m.weights, i, 2 + tensor_number(m.weights, i));
          expect_ok(sheaf_tensor_require_grad(m.weights, SHEAF_GRAD_DENSE));
        }
        m.g = tensor_random(SHEAF_F64, SHAPE(2, 2, 2), 4);
        expect_ok(sheaf_tensor_require_grad(m.table, sparse ? SHEAF_GRAD_SPARSE : SHEAF_GRAD_DENSE));
        sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
        sheaf_tensor *out = NULL, *shown = NULL;
        options.mode = (sheaf_bag_mode)mode;
        if (weighted) options.per_sample_weights = mix & 8 ? batched(m.weights, 0, 1) : m.weights;
        keep_result(WATCH(sheaf_embedding_bag(mix & 2 ? batched(m.indices, 0, 1) : m.indices,
                                              mix & 1 ? batched(m.table, 0, 1) : m.table,
                                              mix & 4 ? batched(m.offsets, 0, 1) : m.offsets, &options, &out)),
                    &out);
        assert_string_equal(visits, "Vmap Autograd Cpu ");
        keep_result(sheaf_unbatch(out, 0, 1, &shown), &shown);
        expect_ok(sheaf_backward(shown, m.g, NULL));
        check_slopes(&m, m.table);
        if (weighted) check_slopes(&m, m.weights);
      }
}

static void test_vmap_gradients_through_moved_dimensions(void **state)
{
  (void)state;
  /* tables [V, batch, D]: the hidden dimension is in the middle, and the gradient comes back there */
  sheaf_tensor *tables = tensor_random(SHEAF_F64, SHAPE(3, 2, 2), 1),
               *indices = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(2, 0));
  sheaf_tensor *out = NULL, *shown = NULL, *g = tensor_of(SHEAF_F64, SHAPE(2, 2, 2), NUMBERS(1, 2, 3, 4, 5, 6, 7, 8));
  expect_ok(sheaf_tensor_require_grad(tables, SHEAF_GRAD_DENSE));
  keep_result(sheaf_embedding(indices, batched(tables, 1, 1), NULL, &out), &out);
  keep_result(sheaf_unbatch(out, 0, 1, &shown), &shown);
  expect_ok(sheaf_backward(shown, g, NULL));
  expect_tensor(sheaf_tensor_grad(tables), 3, 4, 7, 8, 0, 0, 0, 0, 1, 2, 5, 6);
  /* two levels: gradients of a table that only the outer one varies */
  sheaf_tensor *outer = tensor_random(SHEAF_F64, SHAPE(2, 3, 1), 2),
               *inner = tensor_of(SHEAF_I64, SHAPE(2, 2), NUMBERS(0, 1, 1, 1));
  expect_ok(sheaf_tensor_require_grad(outer, SHEAF_GRAD_DENSE));
  sheaf_tensor *both = NULL, *once = NULL, *twice = NULL;
  keep_result(sheaf_embedding(batched(inner, 0, 2), batched(outer, 0, 1), NULL, &both), &both);
  keep_result(sheaf_unbatch(both, 0, 2, &once), &once);
  keep_result(sheaf_unbatch(once, 0, 1, &twice), &twice);
  expect_ok(sheaf_backward(twice, NULL, NULL));
  expect_tensor(sheaf_tensor_grad(outer), 1, 3, 0, 1, 3, 0);
  out = NULL;
  keep_result(sheaf_embedding(indices, batched(tables, 1, 1), NULL, &out), &out);
  expect_status(sheaf_backward(out, NULL, NULL), SHEAF_INVALID_PROBLEM);
  expect_words("unbatch");
}

/* ---- Nested with gradients ---- */

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
    keep_result(WATCH(sheaf_embedding(form ? nested : values, table, NULL, &rows)), &rows);
    assert_string_equal(visits, form ? "Autograd Nested Cpu " : "Autograd Cpu ");
    keep_result(form ? sheaf_segment_reduce(rows, SHEAF_REDUCE_PROD, NULL, 0, NULL, &sums)
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
    keep_result(sheaf_embedding_bag(form ? nested : values, other, form ? NULL : offsets, &options, &bags), &bags);
    expect_ok(sheaf_backward(bags, g, NULL));
    jagged[form] = NULL;
    keep_result(sheaf_to_dense(sheaf_tensor_grad(other), &jagged[form]), &jagged[form]);
  }
  expect_same_tensor(plain[0], plain[1]);
  expect_same_tensor(jagged[0], jagged[1]);
  expect_same_tensor(sheaf_tensor_grad(weights[0]), sheaf_tensor_grad(weights[1]));
}

/* ---- Profiles ---- */

static char *text_of(size_t (*write)(const void *, char *, size_t), const void *what)
{
  size_t length = write(what, NULL, 0);
  char *text = malloc(length + 1);
  assert_int_equal(write(what, text, length + 1), length);
  assert_int_equal(strlen(text), length);
  return text;
}
#define TEXT_OF(function, what) text_of((size_t(*)(const void *, char *, size_t))(function), what)

static void *profiled_thread(void *table)
{
  int64_t one[] = {1};
  sheaf_tensor *indices, *out = NULL;
  sheaf_status status = sheaf_tensor_new(SHEAF_I64, 1, one, &indices);
  for (int i = 0; i < 50 && status == SHEAF_OK; i++) {
    status = sheaf_embedding(indices, table, NULL, &out);
    sheaf_tensor_release(out);
    out = NULL;
  }
  sheaf_tensor_release(indices);
  return (void *)(uintptr_t)status;
}

static void test_profiles(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(10, 4), 1),
               *indices = tensor_random_ints(SHEAF_I64, 10, SHAPE(3, 2), 2);
  sheaf_tensor *out = NULL, *bad = NULL;
  sheaf_profile *profile = NULL;
  expect_status(sheaf_profiler_end(&profile), SHEAF_INVALID_PROBLEM);
  expect_ok(sheaf_profiler_begin());
  expect_status(sheaf_profiler_begin(), SHEAF_INVALID_PROBLEM);
  keep_result(WATCH(sheaf_embedding_bag(indices, table, NULL, NULL, &out)), &out);
  assert_string_equal(visits, "Profiler Cpu ");
  expect_status(sheaf_embedding(tensor_of(SHEAF_I64, SHAPE(1), NUMBERS(10)), table, NULL, &bad),
                SHEAF_INDEX_OUT_OF_RANGE);
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&threads[i], NULL, profiled_thread, table), 0);
  for (int i = 0; i < 3; i++) {
    void *status;
    assert_int_equal(pthread_join(threads[i], &status), 0);
    assert_null(status);
  }
  expect_ok(sheaf_profiler_end(&profile));
  out = NULL;
  keep_result(sheaf_embedding(indices, table, NULL, &out), &out); /* not any more */
  assert_int_equal(sheaf_profile_count(profile), 152);
  assert_int_equal(sheaf_profile_lost(profile), 0);
  const sheaf_profile_record *r = sheaf_profile_at(profile, 0);
  assert_string_equal(r->op, "embedding_bag");
  assert_memory_equal(r->sku, "bag_mean.f32.i64/cpu", 20);
  assert_int_equal(r->dtype, SHEAF_F32);
  assert_int_equal(r->shape[0].rank, 2);
  assert_int_equal(r->shape[0].extent[0], 10);
  assert_int_equal(r->shape[1].extent[1], 2);
  assert_int_equal(r->shape[2].rank, -1); /* offsets are not given */
  assert_int_equal(r->plan_runs, 1);
  assert_int_equal(r->bytes, 6 * 4 * 4 + 6 * 8 + 3 * 4 * 4); /* rows, indices, result */
  assert_true(r->host_ns > 0 && r->start_ns >= 0);
  assert_int_equal(r->device_ns, 0);
  assert_int_equal(sheaf_profile_at(profile, 1)->status, SHEAF_INDEX_OUT_OF_RANGE);
  int seen[8] = {0};
  for (int64_t i = 0; i < 152; i++) seen[sheaf_profile_at(profile, i)->thread & 7]++;
  assert_int_equal(seen[0], 2);
  for (int i = 1; i < 4; i++) assert_int_equal(seen[i], 50);
  assert_null(sheaf_profile_at(profile, 152));

  /* the trace, against the format: an object with complete events */
  char *chrome = TEXT_OF(sheaf_profile_chrome, profile), *table_text = TEXT_OF(sheaf_profile_table, profile);
  json_error_t error;
  json_t *root = json_loads(chrome, 0, &error);
  assert_non_null(root);
  json_t *events = json_object_get(root, "traceEvents"), *event;
  size_t i;
  assert_int_equal(json_array_size(events), 152);
  json_array_foreach(events, i, event)
  {
    assert_string_equal(json_string_value(json_object_get(event, "ph")), "X");
    assert_true(json_is_string(json_object_get(event, "name")) && json_is_string(json_object_get(event, "cat")));
    assert_true(json_is_number(json_object_get(event, "ts")) && json_is_number(json_object_get(event, "dur")));
    assert_true(json_is_integer(json_object_get(event, "pid")) && json_is_integer(json_object_get(event, "tid")));
    assert_true(json_is_object(json_object_get(event, "args")));
    const sheaf_profile_record *record = sheaf_profile_at(profile, (int64_t)i);
    assert_true(fabs(json_number_value(json_object_get(event, "dur")) * 1000 - (double)record->host_ns) < 0.01);
  }
  json_decref(root);
  assert_non_null(strstr(table_text, "embedding_bag"));
  assert_non_null(strstr(table_text, "150"));
  free(chrome);
  free(table_text);
  sheaf_profile_free(profile);
  sheaf_profile_free(NULL);
}

/* ---- Traces ---- */

static void test_traces_replay(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(6, 2), 1),
               *indices = tensor_random_ints(SHEAF_I64, 6, SHAPE(5), 2);
  sheaf_tensor *ids = tensor_of(SHEAF_I64, SHAPE(5), NUMBERS(0, 0, 1, 1, 1)), *rows = NULL, *sums = NULL, *twice = NULL;
  sheaf_trace *graph = NULL;
  expect_status(sheaf_tracer_end(&graph), SHEAF_INVALID_PROBLEM);
  expect_ok(sheaf_tracer_begin());
  expect_status(sheaf_tracer_begin(), SHEAF_INVALID_PROBLEM);
  keep_result(WATCH(sheaf_embedding(indices, table, NULL, &rows)), &rows);
  assert_string_equal(visits, "Tracer Cpu ");
  keep_result(sheaf_segment_reduce(rows, SHEAF_REDUCE_SUM, ids, 2, NULL, &sums), &sums);
  keep_result(sheaf_add(sums, sums, 0.1, &twice), &twice);
  expect_ok(sheaf_tracer_end(&graph));
  assert_int_equal(sheaf_trace_inputs(graph), 3);
  assert_int_equal(sheaf_trace_outputs(graph), 1);
  assert_int_equal(sheaf_trace_calls(graph), 3);
  char *text = TEXT_OF(sheaf_trace_text, graph);
  assert_string_equal(text, "%0 = input   # f32[6, 2]\n%1 = input   # i64[5]\n%3 = input   # i64[5]\n"
                            "%2 = embedding(table=%0, indices=%1)   # f32[5, 2]\n"
                            "%4 = segment_reduce(data=%2, ids=%3) sorted=1 segments=2   # f32[2, 2]\n"
                            "%5 = add(a=%4, b=%4) alpha=0.10000000000000001   # f32[2, 2]\noutput %5\n");
  free(text);
  char *dot = TEXT_OF(sheaf_trace_dot, graph);
  assert_memory_equal(dot, "digraph sheaf {", 15);
  assert_non_null(strstr(dot, "v0 -> c0"));
  free(dot);

  char *json = TEXT_OF(sheaf_trace_json, graph);
  json_t *parsed = json_loads(json, 0, NULL);
  assert_non_null(parsed);
  json_decref(parsed);
  sheaf_trace *read = NULL;
  expect_ok(sheaf_trace_from_json(json, &read));
  char *again = TEXT_OF(sheaf_trace_json, read);
  assert_string_equal(again, json);
  free(again);

  sheaf_tensor *other = tensor_random(SHEAF_F32, SHAPE(9, 2), 7), *outputs[1] = {NULL}, *expected = NULL, *a = NULL,
               *b = NULL;
  sheaf_tensor *inputs[] = {other, indices, ids};
  keep_result(sheaf_embedding(indices, other, NULL, &a), &a);
  keep_result(sheaf_segment_reduce(a, SHEAF_REDUCE_SUM, ids, 2, NULL, &b), &b);
  keep_result(sheaf_add(b, b, 0.1, &expected), &expected);
  for (int i = 0; i < 2; i++) {
    expect_ok(sheaf_trace_replay(i ? read : graph, inputs, 3, outputs, 1));
    expect_same_tensor(tensor_keep(outputs[0]), expected);
  }
  expect_status(sheaf_trace_replay(graph, inputs, 2, outputs, 1), SHEAF_INVALID_PROBLEM);
  expect_words("2 inputs", "3");
  inputs[1] = tensor_of(SHEAF_I64, SHAPE(5), NUMBERS(0, 0, 0, 0, 9));
  expect_status(sheaf_trace_replay(graph, inputs, 3, outputs, 1), SHEAF_INDEX_OUT_OF_RANGE);
  assert_null(outputs[0]);

  /* every prefix of the text is refused, and so are changed ids and names */
  for (size_t length = 0; length + 2 < strlen(json); length++) {
    char *part = malloc(length + 1);
    memcpy(part, json, length);
    part[length] = '\0';
    sheaf_trace *none;
    assert_int_not_equal(sheaf_trace_from_json(part, &none), SHEAF_OK);
    assert_null(none);
    free(part);
  }
  static const char *const wrong[] = {
      "{\"sheaf_trace\": 2, \"inputs\": [], \"values\": [], \"calls\": []}",
      "{\"sheaf_trace\": 1, \"inputs\": [3], \"values\": [], \"calls\": []}",
      "{\"sheaf_trace\": 1, \"inputs\": [], \"values\": [], \"calls\": [{\"op\": \"nothing\", \"inputs\": [], "
      "\"outputs\": [], "
      "\"wanted\": 0, \"include\": 0, \"batch\": 0, \"batched\": 0, \"attrs\": {}}]}",
      "{\"sheaf_trace\": 1, \"inputs\": [], \"values\": [{\"dtype\": \"f32\", \"form\": 0, \"shape\": []}], \"calls\": "
      "[{\"op\": \"coalesce\", \"inputs\": [0], \"outputs\": [0], \"wanted\": 0, \"include\": 0, \"batch\": 0, "
      "\"batched\": 0, \"attrs\": {}}]}"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    sheaf_trace *none;
    expect_status(sheaf_trace_from_json(wrong[i], &none), SHEAF_INVALID_PROBLEM);
    expect_words("graph");
  }
  free(json);
  sheaf_trace_free(read);
  sheaf_trace_free(graph);
}

/* A whole step of training is traced, backward included, and replayed. */
static void test_traces_with_gradients(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(6, 2), 1),
               *indices = tensor_random_ints(SHEAF_I64, 6, SHAPE(5), 2);
  sheaf_tensor *grad = tensor_random(SHEAF_F32, SHAPE(5, 2), 3), *out = NULL, *expected = NULL;
  sheaf_trace *graph;
  expect_ok(sheaf_tensor_require_grad(table, SHEAF_GRAD_SPARSE));
  expect_ok(sheaf_tracer_begin());
  keep_result(WATCH(sheaf_embedding(indices, table, NULL, &out)), &out);
  assert_string_equal(visits, "Tracer Autograd Cpu ");
  expect_ok(sheaf_backward(out, grad, NULL));
  expect_ok(sheaf_tracer_end(&graph));
  keep_result(sheaf_to_dense(sheaf_tensor_grad(table), &expected), &expected);
  assert_int_equal(sheaf_trace_inputs(graph), 3);
  assert_int_equal(sheaf_trace_outputs(graph), 2);
  sheaf_tensor *inputs[] = {table, indices, grad}, *outputs[2], *dense = NULL;
  char *text = TEXT_OF(sheaf_trace_text, graph);
  assert_non_null(strstr(text, "embedding_backward(grad_out="));
  assert_non_null(strstr(text, "sparse=1"));
  free(text);
  sheaf_guard guard;
  expect_ok(sheaf_no_grad_begin(&guard));
  expect_ok(sheaf_trace_replay(graph, inputs, 3, outputs, 2));
  expect_ok(sheaf_no_grad_end(&guard));
  tensor_keep(outputs[0]);
  tensor_keep(outputs[1]);
  assert_int_equal(sheaf_tensor_form(outputs[1]), SHEAF_FORM_SPARSE);
  keep_result(sheaf_to_dense(outputs[1], &dense), &dense);
  expect_same_tensor(dense, expected);
  sheaf_trace_free(graph);
}

/* A kernel that calls other ops: they are part of its call, for profile and trace. */
static sheaf_status first_row(const sheaf_call *call, const sheaf_frame *frame)
{
  (void)frame;
  int64_t one[] = {1};
  sheaf_tensor *zero;
  sheaf_status status = sheaf_tensor_new(SHEAF_I64, 1, one, &zero);
  if (status != SHEAF_OK) return status;
  status = sheaf_embedding(zero, call->inputs[0], NULL, &call->outputs[0]);
  sheaf_tensor_release(zero);
  return status;
}

static void test_calls_within_calls_are_one(void **state)
{
  (void)state;
  static const char *const in[] = {"table"}, *const given[] = {"row"};
  sheaf_op_spec spec = SHEAF_OP_SPEC_INIT;
  sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(3, 2), 1), *out = NULL;
  sheaf_call call = SHEAF_CALL_INIT;
  sheaf_profile *profile;
  sheaf_trace *graph;
  spec.name = "first_row";
  spec.inputs = spec.outputs = 1;
  spec.input_names = in;
  spec.output_names = given;
  expect_ok(sheaf_op_register(&spec, &call.op));
  expect_ok(sheaf_layer_register(call.op, SHEAF_KEY_CPU, first_row, NULL));
  call.inputs = &table;
  call.outputs = &out;
  call.input_count = call.output_count = 1;
  expect_ok(sheaf_profiler_begin());
  expect_ok(sheaf_tracer_begin());
  expect_ok(sheaf_dispatch(&call));
  tensor_keep(out);
  expect_ok(sheaf_tracer_end(&graph));
  expect_ok(sheaf_profiler_end(&profile));
  assert_int_equal(sheaf_profile_count(profile), 1);
  assert_string_equal(sheaf_profile_at(profile, 0)->op, "first_row");
  assert_memory_equal(sheaf_profile_at(profile, 0)->sku, "lookup.f32.i64/", 15); /* its plan is counted */
  assert_int_equal(sheaf_trace_calls(graph), 1);
  assert_int_equal(sheaf_trace_inputs(graph), 1);
  sheaf_trace_free(graph);
  sheaf_profile_free(profile);
}

/* ---- Everything at once ---- */

static void test_all_layers_in_one_call(void **state)
{
  (void)state;
  /* a quantised table, batched indices, weights that require a gradient, autocast, a profile and a trace */
  sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(9, 4), 1), *packed = NULL, *plain = NULL;
  sheaf_tensor *indices = tensor_random_ints(SHEAF_I64, 9, SHAPE(2, 6), 2),
               *weights = tensor_random(SHEAF_F32, SHAPE(2, 6), 3);
  sheaf_tensor *offsets = tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 1, 4)), *out = NULL, *shown = NULL;
  keep_result(sheaf_quantize(table, SHEAF_INT8, &packed), &packed);
  keep_result(sheaf_dequantize(packed, SHEAF_F32, &plain), &plain);
  expect_ok(sheaf_tensor_require_grad(weights, SHEAF_GRAD_DENSE));
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  options.mode = SHEAF_MODE_SUM;
  options.per_sample_weights = batched(weights, 0, 1);
  sheaf_tensor *batched_indices = batched(indices, 0, 1);
  sheaf_profile *profile;
  sheaf_trace *graph;
  expect_ok(sheaf_profiler_begin());
  expect_ok(sheaf_tracer_begin());
  expect_ok(sheaf_autocast_begin(SHEAF_F16));
  keep_result(WATCH(sheaf_embedding_bag(batched_indices, packed, offsets, &options, &out)), &out);
  expect_ok(sheaf_autocast_end());
  expect_ok(sheaf_tracer_end(&graph));
  expect_ok(sheaf_profiler_end(&profile));
  assert_string_equal(visits, "Tracer Profiler Vmap Autograd Autocast Quantized Cpu ");
  assert_int_equal(sheaf_profile_count(profile), 1);
  assert_int_equal(sheaf_profile_at(profile, 0)->plan_runs, 1);
  assert_memory_equal(sheaf_profile_at(profile, 0)->sku, "bag_sum.int8.i64/cpu", 20);
  assert_int_equal(sheaf_trace_calls(graph), 1);
  keep_result(sheaf_unbatch(out, 0, 1, &shown), &shown);
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
  keep_result(sheaf_unbatch(replayed[0], 0, 1, &again), &again);
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
    keep_result(sheaf_embedding(indices, table, NULL, &out[0]), &out[0]);
    keep_result(WATCH(sheaf_embedding_bag(indices, table, NULL, NULL, &out[1])), &out[1]);
    if (round) assert_string_equal(visits, "Vmap Autograd Autocast Nested Quantized Sparse Cpu ");
    keep_result(sheaf_segment_reduce(table, SHEAF_REDUCE_SUM, ids, 1, NULL, &out[2]), &out[2]);
    keep_result(sheaf_add(table, table, 2, &out[3]), &out[3]);
    keep_result(sheaf_movedim(table, 0, 1, &out[4]), &out[4]);
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
  keep_result(sheaf_quantize(dense, SHEAF_INT8, &quantised), &quantised);
  expect_ok(sheaf_tensor_sparse(tensor_of(SHEAF_I64, SHAPE(4), NUMBERS(0, 1, 2, 3)), dense, 4, 1, &sparse));
  expect_ok(sheaf_tensor_nested(indices, tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 1, 4)), &nested));
  tensor_keep(sparse);
  tensor_keep(nested);
  keep_result(sheaf_reshape(indices, 2, (int64_t[]){2, 2}, &matrix), &matrix);
  hidden = batched(matrix, 0, 1);
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
    keep_result(WATCH(sheaf_embedding(index, table, NULL, &out)), &out);
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
  keep_result(sheaf_expand(dense, 2, &tables), &tables);
  keep_result(WATCH(sheaf_embedding_bag(nested, batched(tables, 0, 1), NULL, NULL, &bags)), &bags);
  assert_string_equal(visits, "Vmap Nested Cpu ");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_autocast_lowers_tables),
      TEST(test_autocast_policy_of_other_ops),
      TEST(test_autocast_notices_writes),
      TEST(test_autocast_gradients_have_the_leafs_type),
      TEST(test_vmap_gradients_have_the_slopes),
      TEST(test_vmap_gradients_through_moved_dimensions),
      TEST(test_nested_gradients),
      TEST(test_profiles),
      TEST(test_traces_replay),
      TEST(test_traces_with_gradients),
      TEST(test_calls_within_calls_are_one),
      TEST(test_all_layers_in_one_call),
      TEST(test_layers_without_their_tensors),
      TEST(test_quantised_results_have_no_gradient),
      TEST(test_every_pair_of_layers),
  };
  return cmocka_run_group_tests(tests, watch_layers, NULL);
}
