/* test_recorders.c: profiles and traces: what is recorded, by how many threads, exported, read back and replayed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/tensors.h"
#include "support/watch.h"

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
  tensor_result(WATCH(sheaf_embedding_bag(indices, table, NULL, NULL, &out)), &out);
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
  tensor_result(sheaf_embedding(indices, table, NULL, &out), &out); /* not any more */
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
  tensor_result(WATCH(sheaf_embedding(indices, table, NULL, &rows)), &rows);
  assert_string_equal(visits, "Tracer Cpu ");
  tensor_result(sheaf_segment_reduce(rows, SHEAF_REDUCE_SUM, ids, 2, NULL, &sums), &sums);
  tensor_result(sheaf_add(sums, sums, 0.1, &twice), &twice);
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
  tensor_result(sheaf_embedding(indices, other, NULL, &a), &a);
  tensor_result(sheaf_segment_reduce(a, SHEAF_REDUCE_SUM, ids, 2, NULL, &b), &b);
  tensor_result(sheaf_add(b, b, 0.1, &expected), &expected);
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

/* Numbers of every kind, also where a comma stands in them (in a locale that has one, if there is any here). */
static void test_traces_keep_every_number(void **state)
{
  (void)state;
  static const double numbers[] = {0.1, -2.5e-300, 1e300, INFINITY, -INFINITY, NAN, 3};
  const char *commas[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "C"};
  for (size_t i = 0; i < sizeof commas / sizeof *commas && !setlocale(LC_NUMERIC, commas[i]); i++) continue;
  sheaf_tensor *a = tensor_random(SHEAF_F32, SHAPE(2), 1);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    sheaf_trace *graph = NULL, *read = NULL;
    sheaf_tensor *sum = NULL;
    expect_ok(sheaf_tracer_begin());
    tensor_result(sheaf_add(a, a, numbers[i], &sum), &sum);
    expect_ok(sheaf_tracer_end(&graph));
    char *json = TEXT_OF(sheaf_trace_json, graph);
    json_t *parsed = json_loads(json, 0, NULL); /* jansson knows of locales */
    assert_non_null(parsed);
    json_t *alpha =
        json_object_get(json_object_get(json_array_get(json_object_get(parsed, "calls"), 0), "attrs"), "alpha");
    if (isfinite(numbers[i]))
      assert_true(json_number_value(alpha) == numbers[i]);
    else
      assert_string_equal(json_string_value(alpha), isnan(numbers[i]) ? "nan" : numbers[i] > 0 ? "inf" : "-inf");
    json_decref(parsed);
    expect_ok(sheaf_trace_from_json(json, &read));
    char *again = TEXT_OF(sheaf_trace_json, read);
    assert_string_equal(again, json);
    free(again);
    free(json);
    sheaf_trace_free(read);
    sheaf_trace_free(graph);
  }
  setlocale(LC_NUMERIC, "C");
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
  tensor_result(WATCH(sheaf_embedding(indices, table, NULL, &out)), &out);
  assert_string_equal(visits, "Tracer Autograd Cpu ");
  expect_ok(sheaf_backward(out, grad, NULL));
  expect_ok(sheaf_tracer_end(&graph));
  tensor_result(sheaf_to_dense(sheaf_tensor_grad(table), &expected), &expected);
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
  tensor_result(sheaf_to_dense(outputs[1], &dense), &dense);
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
  sheaf_op op;
  sheaf_profile *profile;
  sheaf_trace *graph;
  spec.name = "first_row";
  spec.inputs = spec.outputs = 1;
  spec.input_names = in;
  spec.output_names = given;
  expect_ok(sheaf_op_register(&spec, &op));
  expect_ok(sheaf_layer_register(op, SHEAF_KEY_CPU, first_row, NULL));
  const sheaf_call call = tensor_call(op, &table, &out, NULL, 0);
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

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_profiles),
      TEST(test_traces_replay),
      TEST(test_traces_keep_every_number),
      TEST(test_traces_with_gradients),
      TEST(test_calls_within_calls_are_one),
  };
  return cmocka_run_group_tests_name("recorders", tests, watch_layers, NULL);
}
