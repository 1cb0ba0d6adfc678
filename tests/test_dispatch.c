/* test_dispatch.c: keys and sets; which kernel a call reaches; guards; registration; errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "support/tensors.h"

/* ---- Keys and sets ---- */

static void test_keys_have_pinned_values(void **state)
{
  (void)state;
  static const char *const names[] = {"Cpu",      "Cuda",     "Meta", "Sparse",   "Quantized", "Nested",
                                      "Autocast", "Autograd", "Vmap", "Profiler", "Tracer"};
  assert_int_equal(SHEAF_KEY_COUNT, 11);
  for (int i = 0; i < 11; i++) assert_string_equal(sheaf_dispatch_key_name(i), names[i]);
  assert_string_equal(sheaf_dispatch_key_name(11), "none");
  assert_string_equal(sheaf_dispatch_key_name(-1), "none");
  assert_int_equal(SHEAF_KEY_CPU, 0);
  assert_int_equal(SHEAF_KEY_TRACER, 10);
  assert_int_equal(sizeof(sheaf_keyset), 2);
}

/* All pairs of sets against plain bit arithmetic. */
static void test_set_algebra_is_that_of_bits(void **state)
{
  (void)state;
  for (unsigned a = 0; a < 2048; a += 7)
    for (unsigned b = 0; b < 2048; b += 13) {
      sheaf_keyset x = sheaf_keyset_from(a), y = sheaf_keyset_from(b);
      assert_int_equal(sheaf_keyset_union(x, y).bits, a | b);
      assert_int_equal(sheaf_keyset_intersect(x, y).bits, a & b);
      assert_int_equal(sheaf_keyset_difference(x, y).bits, a & ~b);
      assert_int_equal(sheaf_keyset_equal(x, y), a == b);
    }
  for (unsigned a = 0; a < 2048; a++) {
    sheaf_keyset set = sheaf_keyset_from(a);
    int count = 0, last = 11;
    assert_int_equal(sheaf_keyset_highest(set), a ? 31 - __builtin_clz(a) : -1);
    for (int key = 0; key < 11; key++) {
      assert_int_equal(sheaf_keyset_contains(set, key), a >> key & 1);
      assert_int_equal(sheaf_keyset_insert(set, key).bits, a | 1u << key);
      assert_int_equal(sheaf_keyset_remove(set, key).bits, a & ~(1u << key));
    }
    assert_int_equal(sheaf_keyset_count(set), __builtin_popcount(a));
    for (int key; (key = sheaf_keyset_next(&set)) >= 0; count++) {
      assert_true(key < last && (a >> key & 1));
      last = key;
    }
    assert_int_equal(count, __builtin_popcount(a));
  }
}

static void test_sets_hold_no_other_keys(void **state)
{
  (void)state;
  assert_int_equal(sheaf_keyset_all().bits, 0x7ff);
  assert_int_equal(sheaf_keyset_empty().bits, 0);
  assert_int_equal(sheaf_keyset_of(11).bits, 0);
  assert_int_equal(sheaf_keyset_of(-1).bits, 0);
  assert_int_equal(sheaf_keyset_from(0xffff).bits, 0x7ff);
  assert_int_equal(sheaf_keyset_contains(sheaf_keyset_all(), 11), 0);
  assert_int_equal(sheaf_keyset_below(SHEAF_KEY_SPARSE).bits, 7);
  assert_int_equal(sheaf_keyset_below(0).bits, 0);
  assert_int_equal(sheaf_keyset_below(40).bits, 0x7ff);
  char text[64], small[8];
  assert_string_equal(sheaf_keyset_text(sheaf_keyset_from(0x81), text, sizeof text), "{Autograd, Cpu}");
  assert_string_equal(sheaf_keyset_text(sheaf_keyset_empty(), text, sizeof text), "{}");
  sheaf_keyset_text(sheaf_keyset_all(), small, sizeof small);
  assert_int_equal(strlen(small), 7);
}

/* ---- A user's op, whose kernels write down that they were reached ---- */

static char visited[256];
static int fail_at_key = -1;

static void visit(const sheaf_frame *frame)
{
  size_t used = strlen(visited);
  snprintf(visited + used, sizeof visited - used, "%s ", sheaf_dispatch_key_name((int)frame->key));
}

static sheaf_status note(const sheaf_call *call, const sheaf_frame *frame)
{
  visit(frame);
  assert_int_equal(frame->below.bits, sheaf_keyset_below((int)frame->key).bits);
  if ((int)frame->key == fail_at_key) return SHEAF_INTERNAL;
  if (frame->key <= SHEAF_KEY_META) return SHEAF_OK;
  return sheaf_redispatch(call, frame);
}

static sheaf_op new_op(const char *name)
{
  sheaf_op_spec spec = SHEAF_OP_SPEC_INIT;
  sheaf_op op = -7;
  spec.name = name;
  spec.inputs = -1;
  spec.outputs = -1;
  expect_ok(sheaf_op_register(&spec, &op));
  assert_int_equal(sheaf_op_find(name), op);
  return op;
}

static sheaf_status call_with(sheaf_op op, sheaf_tensor *const *inputs, int count)
{
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = op;
  call.inputs = inputs;
  call.input_count = count;
  visited[0] = '\0';
  return sheaf_dispatch(&call);
}

static void test_calls_walk_from_the_highest_key(void **state)
{
  (void)state;
  sheaf_op op = new_op("walk");
  expect_ok(sheaf_layer_register(op, SHEAF_KEY_CPU, note, NULL));
  expect_ok(sheaf_layer_register(op, SHEAF_KEY_SPARSE, note, NULL));
  expect_ok(sheaf_layer_register(op, SHEAF_KEY_QUANTIZED, note, NULL));
  sheaf_tensor *dense = tensor_of(SHEAF_F32, SHAPE(2, 3), NULL), *ids = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 1));
  sheaf_tensor *sparse;
  expect_ok(sheaf_tensor_sparse(ids, dense, 5, 1, &sparse));
  tensor_keep(sparse);
  expect_ok(call_with(op, &dense, 1));
  assert_string_equal(visited, "Cpu ");
  sheaf_tensor *both[] = {dense, sparse};
  expect_ok(call_with(op, both, 2));
  assert_string_equal(visited, "Sparse Cpu ");
  sheaf_guard guard;
  expect_ok(sheaf_guard_begin(sheaf_keyset_of(SHEAF_KEY_QUANTIZED), sheaf_keyset_empty(), &guard));
  expect_ok(call_with(op, both, 2));
  assert_string_equal(visited, "Quantized Sparse Cpu ");
  expect_ok(sheaf_guard_end(&guard));
  expect_ok(sheaf_guard_begin(sheaf_keyset_empty(), sheaf_keyset_of(SHEAF_KEY_SPARSE), &guard));
  expect_ok(call_with(op, both, 2));
  assert_string_equal(visited, "Cpu ");
  expect_ok(sheaf_guard_end(&guard));
  /* Nested has no kernel for this op: skipped. */
  expect_ok(sheaf_guard_begin(sheaf_keyset_of(SHEAF_KEY_NESTED), sheaf_keyset_empty(), &guard));
  expect_ok(call_with(op, both, 2));
  assert_string_equal(visited, "Sparse Cpu ");
  expect_ok(sheaf_guard_end(&guard));
}

static void test_an_explicit_key_is_called_alone(void **state)
{
  (void)state;
  sheaf_op op = new_op("explicit");
  expect_ok(sheaf_layer_register(op, SHEAF_KEY_CPU, note, NULL));
  expect_ok(sheaf_layer_register(op, SHEAF_KEY_NESTED, note, NULL));
  sheaf_tensor *dense = tensor_of(SHEAF_F32, SHAPE(1), NULL);
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = op;
  call.inputs = &dense;
  call.input_count = 1;
  visited[0] = '\0';
  expect_ok(sheaf_dispatch_to(&call, SHEAF_KEY_NESTED));
  assert_string_equal(visited, "Nested Cpu ");
  expect_status(sheaf_dispatch_to(&call, SHEAF_KEY_SPARSE), SHEAF_UNSUPPORTED);
  expect_words("explicit", "Sparse");
}

static sheaf_status count_and_pass(const sheaf_call *call, const sheaf_frame *frame)
{
  ++*(int *)frame->context;
  return sheaf_call_replaced(call, frame);
}

static void test_a_layer_in_front_calls_the_one_behind(void **state)
{
  (void)state;
  static int outer, inner;
  sheaf_op op = new_op("replaced");
  expect_ok(sheaf_layer_register(op, SHEAF_KEY_CPU, note, NULL));
  expect_ok(sheaf_layer_register(op, SHEAF_KEY_CPU, count_and_pass, &inner));
  expect_ok(sheaf_layer_register(op, SHEAF_KEY_CPU, count_and_pass, &outer));
  sheaf_tensor *dense = tensor_of(SHEAF_F32, SHAPE(1), NULL);
  expect_ok(call_with(op, &dense, 1));
  assert_string_equal(visited, "Cpu ");
  assert_int_equal(inner, 1);
  assert_int_equal(outer, 1);
  /* In front of nothing, it goes on to the keys below. */
  static int alone;
  expect_ok(sheaf_layer_register(op, SHEAF_KEY_NESTED, count_and_pass, &alone));
  sheaf_guard guard;
  expect_ok(sheaf_guard_begin(sheaf_keyset_of(SHEAF_KEY_NESTED), sheaf_keyset_empty(), &guard));
  expect_ok(call_with(op, &dense, 1));
  expect_ok(sheaf_guard_end(&guard));
  assert_int_equal(alone, 1);
  assert_int_equal(inner, 2);
}

static void test_each_failure_is_its_own(void **state)
{
  (void)state;
  sheaf_tensor *dense = tensor_of(SHEAF_F32, SHAPE(1), NULL);
  sheaf_op op = new_op("failures");
  expect_status(call_with(op, NULL, 0), SHEAF_INVALID_PROBLEM);
  expect_words("failures", "no tensor");
  expect_status(call_with(op, &dense, 1), SHEAF_UNSUPPORTED);
  expect_words("failures", "{Cpu}");
  expect_status(call_with(9999, &dense, 1), SHEAF_INVALID_PROBLEM);
  expect_words("9999", "not known");
  expect_status(call_with(-1, &dense, 1), SHEAF_INVALID_PROBLEM);
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = SHEAF_OP_EMBEDDING;
  call.inputs = &dense;
  call.input_count = 1;
  expect_status(sheaf_dispatch(&call), SHEAF_INVALID_PROBLEM);
  expect_words("embedding", "attributes");
  expect_status(sheaf_dispatch(NULL), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_layer_register(op, (sheaf_dispatch_key)11, note, NULL), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_layer_register(op, SHEAF_KEY_CPU, NULL, NULL), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_layer_register(100000, SHEAF_KEY_CPU, note, NULL), SHEAF_INVALID_PROBLEM);
  sheaf_op_spec spec = SHEAF_OP_SPEC_INIT;
  sheaf_op taken;
  spec.name = "embedding_bag";
  expect_status(sheaf_op_register(&spec, &taken), SHEAF_INVALID_PROBLEM);
  expect_words("embedding_bag");
  assert_int_equal(sheaf_op_find("no such op"), -1);
  assert_null(sheaf_op_describe(-1));
}

/* Outputs that count what came in: tensors, and attributes of every type. */
static sheaf_status count_all(const sheaf_call *call, const sheaf_frame *frame)
{
  double sum = 0;
  (void)frame;
  for (int i = 0; i < call->input_count; i++)
    sum += call->inputs[i] ? tensor_number(call->inputs[i], 0) : 0; /* integers among them */
  const double given[] = {sum, (double)call->attrs[0].i + call->attrs[1].f, (double)call->attrs[2].i};
  for (int i = 0; i < call->output_count; i++) {
    int64_t one[] = {1};
    sheaf_status status = sheaf_tensor_new(SHEAF_F64, 1, one, &call->outputs[i]);
    if (status != SHEAF_OK) return status;
    tensor_set(call->outputs[i], 0, given[i]);
  }
  return SHEAF_OK;
}

static void test_any_number_of_tensors_and_attributes(void **state)
{
  (void)state;
  static const sheaf_attr_spec attr_specs[] = {
      {"whole", SHEAF_ATTR_INT, {0}}, {"part", SHEAF_ATTR_FLOAT, {0}}, {"type", SHEAF_ATTR_DTYPE, {0}}};
  sheaf_op_spec spec = SHEAF_OP_SPEC_INIT;
  sheaf_call call = SHEAF_CALL_INIT;
  spec.name = "count all";
  spec.inputs = spec.outputs = -1;
  spec.attrs = 3;
  spec.attr_specs = attr_specs;
  expect_ok(sheaf_op_register(&spec, &call.op));
  expect_ok(sheaf_layer_register(call.op, SHEAF_KEY_CPU, count_all, NULL));
  sheaf_tensor *inputs[33], *outputs[3] = {NULL};
  for (int i = 0; i < 33; i++) inputs[i] = tensor_of(i % 2 ? SHEAF_I32 : SHEAF_F16, SHAPE(1), NUMBERS(i));
  inputs[5] = NULL;
  const sheaf_attr attrs[] = {{.i = -7}, {.f = 0.25}, {.i = SHEAF_BF16}};
  call.inputs = inputs;
  call.input_count = 32;
  call.outputs = outputs;
  call.output_count = 3;
  call.attrs = attrs;
  call.attr_count = 3;
  expect_ok(sheaf_dispatch(&call));
  for (int i = 0; i < 3; i++) tensor_keep(outputs[i]);
  expect_tensor(outputs[0], 31 * 32 / 2 - 5);
  expect_tensor(outputs[1], -6.75);
  expect_tensor(outputs[2], SHEAF_BF16);
  call.input_count = 33;
  expect_status(sheaf_dispatch(&call), SHEAF_INVALID_PROBLEM);
  expect_words("count all", "33 inputs");
  call.input_count = 1;
  call.attr_count = 2;
  expect_status(sheaf_dispatch(&call), SHEAF_INVALID_PROBLEM);
  expect_words("2 attributes");
}

static sheaf_status call_self(const sheaf_call *call, const sheaf_frame *frame)
{
  (void)frame;
  return sheaf_dispatch(call);
}

static void test_recursion_is_an_error(void **state)
{
  (void)state;
  sheaf_op op = new_op("endless");
  sheaf_tensor *dense = tensor_of(SHEAF_F32, SHAPE(1), NULL);
  expect_ok(sheaf_layer_register(op, SHEAF_KEY_CPU, call_self, NULL));
  for (int i = 0; i < 3; i++) { /* and leaves nothing behind */
    expect_status(call_with(op, &dense, 1), SHEAF_INVALID_PROBLEM);
    expect_words("endless", "calls itself");
  }
}

/* ---- Guards ---- */

static sheaf_status forget_guards(const sheaf_call *call, const sheaf_frame *frame)
{
  (void)frame;
  sheaf_guard a, b;
  expect_ok(sheaf_guard_begin(sheaf_keyset_of(SHEAF_KEY_TRACER), sheaf_keyset_empty(), &a));
  expect_ok(sheaf_no_grad_begin(&b));
  return call->input_count > 1 ? SHEAF_INTERNAL : SHEAF_OK;
}

static void test_guards_that_a_kernel_forgets_are_ended(void **state)
{
  (void)state;
  sheaf_op op = new_op("forgetful");
  expect_ok(sheaf_layer_register(op, SHEAF_KEY_CPU, forget_guards, NULL));
  sheaf_tensor *dense = tensor_of(SHEAF_F32, SHAPE(1), NULL), *two[] = {dense, dense};
  sheaf_guard guard;
  expect_ok(call_with(op, &dense, 1));
  expect_status(call_with(op, two, 2), SHEAF_INTERNAL);
  assert_int_equal(sheaf_included_keys().bits, 0);
  assert_int_equal(sheaf_excluded_keys().bits, 0);
  expect_ok(sheaf_no_grad_begin(&guard));
  expect_ok(call_with(op, &dense, 1));
  expect_status(call_with(op, two, 2), SHEAF_INTERNAL);
  assert_int_equal(sheaf_included_keys().bits, 0);
  assert_int_equal(sheaf_excluded_keys().bits, 1 << SHEAF_KEY_AUTOGRAD);
  expect_ok(sheaf_no_grad_end(&guard));
  assert_int_equal(sheaf_excluded_keys().bits, 0);
}

/* What a kernel does about autocast and traces, by the number in its context. */
enum { BEGIN_ALL, END_AUTOCAST, END_TRACE };

static sheaf_status meddle(const sheaf_call *call, const sheaf_frame *frame)
{
  (void)call;
  int what = *(const int *)frame->context;
  sheaf_trace *graph;
  if (what == END_AUTOCAST) return sheaf_autocast_end();
  if (what == END_TRACE) return sheaf_tracer_end(&graph);
  expect_ok(sheaf_autocast_begin(SHEAF_BF16));
  expect_ok(sheaf_tracer_begin());
  return SHEAF_OK;
}

static void test_regions_that_a_kernel_forgets_are_ended(void **state)
{
  (void)state;
  static int what = BEGIN_ALL;
  sheaf_op op = new_op("meddlesome");
  expect_ok(sheaf_layer_register(op, SHEAF_KEY_CPU, meddle, &what));
  sheaf_tensor *dense = tensor_of(SHEAF_F32, SHAPE(2, 2), NULL), *index = tensor_of(SHEAF_I64, SHAPE(1), NULL);
  sheaf_tensor *out = NULL;
  sheaf_trace *graph;
  expect_ok(sheaf_autocast_begin(SHEAF_F16));
  expect_ok(call_with(op, &dense, 1));
  expect_status(sheaf_tracer_end(&graph), SHEAF_INVALID_PROBLEM);
  tensor_result(sheaf_embedding(index, dense, NULL, &out), &out);
  assert_int_equal(sheaf_tensor_dtype(out), SHEAF_F16);
  what = END_AUTOCAST; /* which is not the kernel's to end */
  expect_status(call_with(op, &dense, 1), SHEAF_INVALID_PROBLEM);
  expect_words("guard 1", "outside");
  expect_ok(sheaf_autocast_end());
  what = END_TRACE;
  expect_ok(sheaf_tracer_begin());
  expect_status(call_with(op, &dense, 1), SHEAF_INVALID_PROBLEM);
  expect_ok(sheaf_tracer_end(&graph));
  sheaf_trace_free(graph);
  assert_int_equal(sheaf_included_keys().bits, 0);
}

static sheaf_status same_memory(const sheaf_call *call, const sheaf_frame *frame)
{
  (void)frame;
  return sheaf_tensor_detach(call->inputs[0], &call->outputs[0]);
}

static sheaf_status forgetful_gradient(const sheaf_call *forward, sheaf_tensor *const *inputs_like,
                                       sheaf_tensor *const *output_grads, uint32_t wanted, sheaf_tensor **input_grads,
                                       void *context)
{
  (void)forward, (void)inputs_like, (void)wanted, (void)context;
  sheaf_guard guard;
  expect_ok(sheaf_no_grad_begin(&guard));
  expect_ok(sheaf_autocast_begin(SHEAF_F16));
  input_grads[0] = sheaf_tensor_retain(output_grads[0]);
  return SHEAF_OK;
}

static void test_guards_that_a_gradient_forgets_are_ended(void **state)
{
  (void)state;
  sheaf_op op = new_op("forgetful backward");
  sheaf_gradient gradient = SHEAF_GRADIENT_INIT;
  gradient.differentiable = 1;
  gradient.backward = forgetful_gradient;
  expect_ok(sheaf_layer_register(op, SHEAF_KEY_CPU, same_memory, NULL));
  expect_ok(sheaf_gradient_register(op, &gradient));
  sheaf_tensor *leaf = tensor_leaf(tensor_of(SHEAF_F32, SHAPE(2), NULL), SHEAF_GRAD_DENSE), *out = NULL;
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = op;
  call.inputs = &leaf;
  call.outputs = &out;
  call.input_count = call.output_count = 1;
  tensor_result(sheaf_dispatch(&call), &out);
  expect_ok(sheaf_backward(out, NULL, NULL));
  expect_tensor(sheaf_tensor_grad(leaf), 1, 1);
  assert_int_equal(sheaf_included_keys().bits, 0);
  assert_int_equal(sheaf_excluded_keys().bits, 0);
  expect_status(sheaf_autocast_end(), SHEAF_INVALID_PROBLEM);
}

static void test_guards_end_in_order(void **state)
{
  (void)state;
  sheaf_guard a, b;
  sheaf_keyset none = sheaf_keyset_empty();
  expect_ok(sheaf_guard_begin(sheaf_keyset_of(3), none, &a));
  expect_ok(sheaf_guard_begin(none, sheaf_keyset_of(3), &b));
  assert_int_equal(sheaf_included_keys().bits, 0);
  assert_int_equal(sheaf_excluded_keys().bits, 8);
  expect_status(sheaf_guard_end(&a), SHEAF_INVALID_PROBLEM);
  expect_words("guard 1", "guard 2");
  assert_int_equal(sheaf_excluded_keys().bits, 8);
  expect_ok(sheaf_guard_end(&b));
  assert_int_equal(sheaf_included_keys().bits, 8);
  expect_ok(sheaf_guard_end(&a));
  expect_status(sheaf_guard_end(&a), SHEAF_INVALID_PROBLEM);
  assert_int_equal(sheaf_included_keys().bits, 0);
  expect_status(sheaf_autocast_end(), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_guard_begin(none, none, NULL), SHEAF_INVALID_PROBLEM);
}

/* ---- Threads ---- */

static atomic_int stop_calling;
static sheaf_op busy_op;

static sheaf_status answer(const sheaf_call *call, const sheaf_frame *frame)
{
  (void)call;
  (void)frame;
  return SHEAF_OK;
}

static void *keep_calling(void *tensor)
{
  sheaf_tensor *t = tensor;
  sheaf_call call = SHEAF_CALL_INIT;
  int64_t failures = 0;
  call.op = busy_op;
  call.inputs = &t;
  call.input_count = 1;
  while (!atomic_load(&stop_calling)) failures += sheaf_dispatch(&call) != SHEAF_OK;
  return (void *)(uintptr_t)failures;
}

static void test_registration_beside_calls(void **state)
{
  (void)state;
  pthread_t callers[2];
  sheaf_tensor *dense = tensor_of(SHEAF_F32, SHAPE(1), NULL);
  busy_op = new_op("busy");
  expect_ok(sheaf_layer_register(busy_op, SHEAF_KEY_CPU, answer, NULL));
  atomic_store(&stop_calling, 0);
  for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&callers[i], NULL, keep_calling, dense), 0);
  for (int i = 0; i < 30; i++) {
    static char names[30][16]; /* kept by the registry */
    sheaf_op_spec spec = SHEAF_OP_SPEC_INIT;
    sheaf_op op;
    snprintf(names[i], sizeof names[i], "busy %d", i);
    spec.name = names[i];
    expect_ok(sheaf_op_register(&spec, &op));
    expect_ok(sheaf_layer_register(op, SHEAF_KEY_CPU, answer, NULL));
    expect_ok(sheaf_layer_register(busy_op, SHEAF_KEY_CPU, answer, NULL));
  }
  atomic_store(&stop_calling, 1);
  for (int i = 0; i < 2; i++) {
    void *failures;
    assert_int_equal(pthread_join(callers[i], &failures), 0);
    assert_null(failures);
  }
}

static void test_every_op_also_those_to_come(void **state)
{
  (void)state;
  static int calls;
  sheaf_op before = new_op("before every");
  expect_ok(sheaf_layer_register(before, SHEAF_KEY_CPU, note, NULL));
  expect_ok(sheaf_layer_register(SHEAF_OP_EVERY, SHEAF_KEY_NESTED, count_and_pass, &calls));
  sheaf_op after = new_op("after every");
  expect_ok(sheaf_layer_register(after, SHEAF_KEY_CPU, note, NULL));
  sheaf_tensor *dense = tensor_of(SHEAF_F32, SHAPE(1), NULL);
  sheaf_guard guard;
  expect_ok(sheaf_guard_begin(sheaf_keyset_of(SHEAF_KEY_NESTED), sheaf_keyset_empty(), &guard));
  expect_ok(call_with(before, &dense, 1));
  expect_ok(call_with(after, &dense, 1));
  expect_ok(sheaf_guard_end(&guard));
  assert_int_equal(calls, 2);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_keys_have_pinned_values),
      cmocka_unit_test(test_set_algebra_is_that_of_bits),
      cmocka_unit_test(test_sets_hold_no_other_keys),
      cmocka_unit_test_teardown(test_calls_walk_from_the_highest_key, tensors_teardown),
      cmocka_unit_test_teardown(test_an_explicit_key_is_called_alone, tensors_teardown),
      cmocka_unit_test_teardown(test_a_layer_in_front_calls_the_one_behind, tensors_teardown),
      cmocka_unit_test_teardown(test_each_failure_is_its_own, tensors_teardown),
      cmocka_unit_test_teardown(test_any_number_of_tensors_and_attributes, tensors_teardown),
      cmocka_unit_test_teardown(test_recursion_is_an_error, tensors_teardown),
      cmocka_unit_test_teardown(test_guards_that_a_kernel_forgets_are_ended, tensors_teardown),
      cmocka_unit_test_teardown(test_regions_that_a_kernel_forgets_are_ended, tensors_teardown),
      cmocka_unit_test_teardown(test_guards_that_a_gradient_forgets_are_ended, tensors_teardown),
      cmocka_unit_test(test_guards_end_in_order),
      cmocka_unit_test_teardown(test_registration_beside_calls, tensors_teardown),
      cmocka_unit_test_teardown(test_every_op_also_those_to_come, tensors_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
