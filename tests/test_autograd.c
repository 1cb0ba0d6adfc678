/* test_autograd.c: gradients through graphs: finite differences, accumulation, sparse gradients, saved tensors, long
 * graphs, threads, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <string.h>

#include "support/slopes.h"

/* ---- Slopes ---- */

static sheaf_status run_embedding(const computation *c, sheaf_tensor **out)
{
  sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
  options.has_padding = c->flags & 1;
  options.padding_idx = 1;
  options.sparse = (uint8_t)c->choice;
  return sheaf_embedding(c->indices, c->leaf[0], &options, out);
}

static void test_embedding_slopes(void **state)
{
  (void)state;
  for (int choice = 0; choice < 3; choice++)
    for (int flags = 0; flags < 2; flags++) {
      computation c = {"embedding", {tensor_random(SHEAF_F64, SHAPE(4, 2), 1)}, .run = run_embedding};
      c.indices = tensor_random_ints(SHEAF_I64, 4, SHAPE(3, 2), 2);
      c.choice = choice;
      c.flags = flags;
      check_gradients(&c);
      assert_int_equal(sheaf_tensor_form(sheaf_tensor_grad(c.leaf[0])), choice ? SHEAF_FORM_SPARSE : SHEAF_FORM_DENSE);
    }
}

static sheaf_status run_bag(const computation *c, sheaf_tensor **out)
{
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  options.mode = (sheaf_bag_mode)c->choice;
  options.has_padding = c->flags & 1;
  options.padding_idx = 1;
  options.per_sample_weights = c->leaf[1];
  options.include_last_offset = (c->flags >> 2 & 1) != 0;
  options.sparse = (uint8_t)(c->flags >> 3);
  return sheaf_embedding_bag(c->indices, c->leaf[0], c->offsets, &options, out);
}

static void test_bag_slopes(void **state)
{
  (void)state;
  for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_MAX; mode++)
    for (int flags = 0; flags < 24; flags++) { /* padded, weighted, end, sparse kind */
      if (mode == SHEAF_MODE_MAX && (flags & 2)) continue;
      computation c = {"embedding_bag", {tensor_random(SHEAF_F64, SHAPE(5, 3), 11)}, .run = run_bag};
      c.choice = mode;
      c.flags = flags;
      c.indices = tensor_random_ints(flags & 1 ? SHEAF_I32 : SHEAF_I64, 5, SHAPE(9), 12);
      if (flags & 2) {
        c.leaf[1] = tensor_random(SHEAF_F64, SHAPE(9), 13);
        for (int i = 0; i < 9; i++) tensor_set(c.leaf[1], i, 1.5 + tensor_number(c.leaf[1], i)); /* c far from 0 */
      }
      c.offsets = flags & 4 ? tensor_of(SHEAF_I64, SHAPE(4), NUMBERS(0, 4, 4, 9))
                            : tensor_of(SHEAF_I32, SHAPE(3), NUMBERS(0, 4, 4));
      check_gradients(&c);
      assert_int_equal(sheaf_tensor_form(sheaf_tensor_grad(c.leaf[0])),
                       flags >> 3 ? SHEAF_FORM_SPARSE : SHEAF_FORM_DENSE);
    }
}

static void test_bag_matrix_slopes(void **state)
{
  (void)state;
  for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_SUM; mode++) {
    computation c = {"matrix",
                     {tensor_random(SHEAF_F64, SHAPE(5, 2), 21), tensor_random(SHEAF_F64, SHAPE(2, 3), 22)},
                     .run = run_bag};
    for (int i = 0; i < 6; i++) tensor_set(c.leaf[1], i, 2 + tensor_number(c.leaf[1], i));
    c.choice = mode;
    c.indices = tensor_random_ints(SHEAF_I64, 5, SHAPE(2, 3), 23);
    check_gradients(&c);
    assert_int_equal(sheaf_tensor_rank(sheaf_tensor_grad(c.leaf[1])), 2);
  }
}

static sheaf_status run_segments(const computation *c, sheaf_tensor **out)
{
  sheaf_segment_options options = SHEAF_SEGMENT_OPTIONS_INIT;
  options.ties = c->flags & 2 ? SHEAF_TIES_SPLIT : SHEAF_TIES_FIRST;
  return c->flags & 1
             ? sheaf_segment_reduce(c->leaf[0], (sheaf_reduce)c->choice, c->indices, 4, &options, out)
             : sheaf_unsorted_segment_reduce(c->leaf[0], (sheaf_reduce)c->choice, c->indices, 4, &options, out);
}

static void test_segment_slopes(void **state)
{
  (void)state;
  for (int reduce = SHEAF_REDUCE_SUM; reduce <= SHEAF_REDUCE_PROD; reduce++)
    for (int flags = 0; flags < 4; flags++) {
      computation c = {"segment", {tensor_random(SHEAF_F64, SHAPE(7, 2), 31)}, .run = run_segments};
      c.choice = reduce;
      c.flags = flags;
      c.indices = flags & 1 ? tensor_of(SHEAF_I32, SHAPE(7), NUMBERS(0, 0, 1, 1, 1, 3, 3))
                            : tensor_of(SHEAF_I64, SHAPE(7), NUMBERS(3, 0, 1, 3, 1, 3, 0));
      check_gradients(&c);
    }
}

/* add, movedim, reshape, expand, to_dense and a table used twice, in one graph. */
static sheaf_status run_all(const computation *c, sheaf_tensor **out)
{
  sheaf_tensor *t[8] = {NULL};
  sheaf_status status = sheaf_embedding(c->indices, c->leaf[0], NULL, &t[0]); /* [4, 2] */
  if (!status) status = sheaf_unsorted_segment_reduce(t[0], SHEAF_REDUCE_PROD, c->indices, 4, NULL, &t[1]);
  if (!status) status = sheaf_add(t[1], c->leaf[0], -2.5, &t[2]); /* the table again */
  if (!status) status = sheaf_movedim(t[2], 1, 0, &t[3]);         /* [2, 4] */
  if (!status) status = sheaf_reshape(t[3], 1, (int64_t[]){8}, &t[4]);
  if (!status) status = sheaf_expand(t[4], 3, &t[5]); /* [3, 8] */
  if (!status) status = sheaf_add(c->leaf[1], t[5], 1, &t[6]);
  if (!status) status = sheaf_to_dense(t[6], out);
  for (int i = 0; i < 8; i++) sheaf_tensor_release(t[i]);
  return status;
}

static void test_slopes_of_a_longer_graph(void **state)
{
  (void)state;
  computation c = {
      "longer", {tensor_random(SHEAF_F64, SHAPE(4, 2), 41), tensor_random(SHEAF_F64, SHAPE(3, 8), 42)}, .run = run_all};
  c.indices = tensor_of(SHEAF_I64, SHAPE(4), NUMBERS(1, 3, 3, 0));
  check_gradients(&c);
}

/* Components of lookups: padded, reduced, in other shapes, more than one of them. */
static sheaf_status run_nested(const computation *c, sheaf_tensor **out)
{
  sheaf_tensor *t[6] = {NULL};
  sheaf_status status = sheaf_tensor_nested(c->indices, c->offsets, &t[0]);
  if (!status) status = sheaf_embedding(t[0], c->leaf[0], NULL, &t[1]); /* [3, -1, 2] */
  if (!status && c->choice) status = sheaf_expand(t[1], 2, &t[2]);
  if (!status && c->choice) status = sheaf_reshape(t[2], SHAPE(1, 2, 3, -1, 1, 2), &t[3]);
  if (!status) status = sheaf_add(c->choice ? t[3] : t[1], c->choice ? t[3] : t[1], -0.5, &t[4]);
  if (!status)
    status = c->flags ? sheaf_segment_reduce(t[1], SHEAF_REDUCE_PROD, NULL, 0, NULL, out) : sheaf_to_dense(t[4], out);
  for (int i = 0; i < 6; i++) sheaf_tensor_release(t[i]);
  return status;
}

static void test_slopes_of_components(void **state)
{
  (void)state;
  for (int which = 0; which < 3; which++) {
    computation c = {"components", {tensor_random(SHEAF_F64, SHAPE(4, 2), 43)}, .run = run_nested};
    c.indices = tensor_of(SHEAF_I64, SHAPE(5), NUMBERS(1, 3, 3, 0, 1));
    c.offsets = tensor_of(SHEAF_I64, SHAPE(4), NUMBERS(0, 3, 3, 5));
    c.choice = which == 1;
    c.flags = which == 2;
    check_gradients(&c);
  }
}

/* A cast hands the gradient on in the type that it came from. */
static void test_gradients_of_casts(void **state)
{
  (void)state;
  sheaf_tensor *x = tensor_leaf(tensor_random(SHEAF_F64, SHAPE(3), 44), SHEAF_GRAD_DENSE), *half, *out;
  RESULT(half, sheaf_cast(x, SHEAF_F16, &half));
  RESULT(out, sheaf_cast(half, SHEAF_F32, &out));
  expect_ok(sheaf_backward(out, tensor_of(SHEAF_F32, SHAPE(3), NUMBERS(1, -2.5, 0.1)), NULL));
  assert_int_equal(sheaf_tensor_dtype(sheaf_tensor_grad(x)), SHEAF_F64);
  expect_tensor(sheaf_tensor_grad(x), 1, -2.5, (double)sheaf_f16_to_f32(sheaf_f32_to_f16(0.1F)));
}

/* ---- Accumulation and kinds of gradients ---- */

static void test_gradients_accumulate(void **state)
{
  (void)state;
  for (int kind = SHEAF_GRAD_DENSE; kind <= SHEAF_GRAD_SPARSE_RAW; kind++) {
    sheaf_tensor *table = tensor_of(SHEAF_F32, SHAPE(4, 1), NULL), *out = NULL;
    sheaf_tensor *indices = tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(2, 0, 2));
    sheaf_tensor *grad = tensor_of(SHEAF_F32, SHAPE(3, 1), NUMBERS(1, 10, 100));
    expect_ok(sheaf_tensor_require_grad(table, (sheaf_grad)kind));
    expect_ok(sheaf_embedding(indices, table, NULL, &out));
    sheaf_backward_options keep = SHEAF_BACKWARD_OPTIONS_INIT;
    keep.retain_graph = 1;
    for (int times = 1; times <= 3; times++) {
      expect_ok(sheaf_backward(out, grad, &keep));
      sheaf_tensor *dense = dense_grad(table);
      expect_tensor(dense, 10 * times, 0, 101 * times, 0);
      sheaf_tensor *ids = sheaf_tensor_part(sheaf_tensor_grad(table), 0);
      if (kind == SHEAF_GRAD_SPARSE) expect_tensor(ids, 0, 2);
      if (kind == SHEAF_GRAD_SPARSE_RAW) assert_int_equal(sheaf_tensor_extent(ids, 0), 3 * times);
    }
    sheaf_tensor_clear_grad(table);
    assert_null(sheaf_tensor_grad(table));
    expect_ok(sheaf_backward(out, NULL, NULL)); /* ones; frees the graph */
    expect_tensor(dense_grad(table), 1, 0, 2, 0);
    expect_status(sheaf_backward(out, grad, NULL), SHEAF_INVALID_PROBLEM);
    expect_words("embedding", "freed");
    expect_tensor(dense_grad(table), 1, 0, 2, 0);
    sheaf_tensor_release(out);
  }
}

static void test_frequency_scaling_dense_and_sparse(void **state)
{
  (void)state;
  for (int sparse = 0; sparse < 3; sparse++) {
    sheaf_tensor *table = tensor_of(SHEAF_F64, SHAPE(3, 1), NULL), *out = NULL;
    sheaf_tensor *indices = tensor_of(SHEAF_I32, SHAPE(4), NUMBERS(1, 1, 2, 1));
    sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
    options.scale_grad_by_freq = 1;
    options.sparse = (uint8_t)sparse;
    expect_ok(sheaf_tensor_require_grad(table, SHEAF_GRAD_DENSE));
    expect_ok(sheaf_embedding(indices, table, &options, &out));
    expect_ok(sheaf_backward(out, tensor_of(SHEAF_F64, SHAPE(4, 1), NUMBERS(3, 6, 5, 9)), NULL));
    sheaf_tensor *dense = dense_grad(table);
    expect_near_tensor(dense, tensor_of(SHEAF_F64, SHAPE(3, 1), NUMBERS(0, 6, 5)), 1e-15);
    sheaf_tensor_release(out);
  }
}

/* A coalesced sparse gradient has the dense one's bits. */
static void test_coalesced_gradients_have_the_dense_bits(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    sheaf_tensor *indices = tensor_random_ints(I, 13, SHAPE(400), 51),
                 *offsets = tensor_of(I, SHAPE(3), NUMBERS(0, 90, 200));
    sheaf_tensor *grad = tensor_random(T, SHAPE(3, 5), 52), *weights = tensor_random(T, SHAPE(400), 53);
    for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_MAX; mode++) {
      sheaf_tensor *dense[2];
      for (int sparse = 0; sparse < 2; sparse++) {
        sheaf_tensor *table = tensor_random(T, SHAPE(13, 5), 54), *out = NULL;
        sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
        options.mode = (sheaf_bag_mode)mode;
        if (mode == SHEAF_MODE_SUM) options.per_sample_weights = weights;
        expect_ok(sheaf_tensor_require_grad(table, sparse ? SHEAF_GRAD_SPARSE : SHEAF_GRAD_DENSE));
        expect_ok(sheaf_embedding_bag(indices, table, offsets, &options, &out));
        expect_ok(sheaf_backward(out, grad, NULL));
        dense[sparse] = dense_grad(table);
        sheaf_tensor_release(out);
      }
      expect_same_tensor(dense[0], dense[1]);
    }
  }
}

/* ---- Saved tensors ---- */

static void test_writes_since_forward_are_errors(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_random(SHEAF_F64, SHAPE(4, 2), 91), *weights = tensor_random(SHEAF_F64, SHAPE(3), 92);
  sheaf_tensor *indices = tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 1, 2)), *out = NULL, *plain = NULL;
  sheaf_tensor *offsets = tensor_of(SHEAF_I64, SHAPE(1), NULL), *same = table;
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  options.per_sample_weights = weights;
  sheaf_tensor_set_name(table, "the table");
  expect_ok(sheaf_tensor_require_grad(table, SHEAF_GRAD_DENSE));
  expect_ok(sheaf_tensor_require_grad(weights, SHEAF_GRAD_DENSE));
  expect_ok(sheaf_embedding_bag(indices, table, offsets, &options, &out));
  expect_ok(sheaf_embedding(indices, table, NULL, &plain)); /* needs no rows for its gradient */
  sheaf_guard guard;
  expect_ok(sheaf_no_grad_begin(&guard));
  expect_ok(sheaf_add(table, tensor_random(SHEAF_F64, SHAPE(4, 2), 93), 1, &same));
  expect_ok(sheaf_no_grad_end(&guard));
  expect_status(sheaf_backward(out, NULL, NULL), SHEAF_INVALID_PROBLEM);
  expect_words("the table", "written", "embedding_bag");
  assert_null(sheaf_tensor_grad(table));
  assert_null(sheaf_tensor_grad(weights));
  expect_ok(sheaf_backward(plain, NULL, NULL));
  sheaf_tensor_release(out);
  out = NULL;
  expect_ok(sheaf_embedding_bag(indices, table, offsets, &options, &out)); /* writes before forward do not matter */
  expect_ok(sheaf_backward(out, NULL, NULL));
  sheaf_tensor_release(out);
  sheaf_tensor_release(plain);
  out = NULL;
  expect_ok(sheaf_embedding(indices, table, NULL, &out));
  sheaf_tensor_written(indices);
  expect_status(sheaf_backward(out, NULL, NULL), SHEAF_INVALID_PROBLEM);
  expect_words("indices", "written");
  sheaf_tensor_release(out);
}

static void test_graphs_are_recorded_only_when_needed(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_random(SHEAF_F32, SHAPE(4, 2), 1), *indices = tensor_of(SHEAF_I64, SHAPE(1), NULL);
  sheaf_tensor *out = NULL, *given = tensor_of(SHEAF_F32, SHAPE(1, 2), NULL);
  expect_ok(sheaf_embedding(indices, table, NULL, &out));
  assert_false(sheaf_tensor_requires_grad(out));
  expect_status(sheaf_backward(out, NULL, NULL), SHEAF_INVALID_PROBLEM);
  expect_words("no graph");
  sheaf_tensor_release(out);
  out = NULL;
  expect_ok(sheaf_tensor_require_grad(table, SHEAF_GRAD_DENSE));
  sheaf_guard guard;
  expect_ok(sheaf_no_grad_begin(&guard));
  expect_ok(sheaf_embedding(indices, table, NULL, &out));
  expect_ok(sheaf_embedding(indices, table, NULL, &given));
  expect_ok(sheaf_no_grad_end(&guard));
  assert_false(sheaf_tensor_requires_grad(out));
  sheaf_tensor_release(out);
  expect_status(sheaf_embedding(indices, table, NULL, &given), SHEAF_INVALID_PROBLEM);
  expect_words("no_grad");
  expect_status(sheaf_backward(NULL, NULL, NULL), SHEAF_INVALID_PROBLEM);
  out = NULL;
  expect_ok(sheaf_embedding(indices, table, NULL, &out));
  expect_status(sheaf_backward(out, tensor_of(SHEAF_F32, SHAPE(2, 2), NULL), NULL), SHEAF_INVALID_PROBLEM);
  expect_words("[2, 2]", "[1, 2]");
  expect_status(sheaf_tensor_require_grad(out, SHEAF_GRAD_DENSE), SHEAF_INVALID_PROBLEM);
  sheaf_tensor *quantised = NULL;
  expect_status(sheaf_quantize(out, SHEAF_INT8, &quantised), SHEAF_UNSUPPORTED);
  expect_words("quantize", "no gradient");
  sheaf_tensor_release(out);
}

/* A chain of a million results: freed, and differentiated, without recursion. */
static void test_long_graphs_do_not_recurse(void **state)
{
  (void)state;
  const int length = 1000000;
  sheaf_tensor *x = tensor_of(SHEAF_F64, SHAPE(1), NUMBERS(1)), *one = tensor_of(SHEAF_F64, SHAPE(1), NUMBERS(1));
  expect_ok(sheaf_tensor_require_grad(x, SHEAF_GRAD_DENSE));
  for (int backward = 0; backward < 2; backward++) {
    sheaf_tensor *now = sheaf_tensor_retain(x);
    for (int i = 0; i < length; i++) {
      sheaf_tensor *next = NULL;
      sheaf_status status = sheaf_add(now, one, 1, &next);
      if (status != SHEAF_OK) expect_ok(status);
      sheaf_tensor_release(now);
      now = next;
    }
    assert_true(tensor_number(now, 0) == length + 1);
    if (backward) expect_ok(sheaf_backward(now, NULL, NULL));
    sheaf_tensor_release(now);
  }
  expect_tensor(sheaf_tensor_grad(x), 1);
}

/* ---- Threads and tensors without data ---- */

enum { BACKWARDS = 200 };

static void *differentiate_often(void *shared)
{
  sheaf_tensor *table = shared, *indices;
  int64_t two[] = {2};
  sheaf_status status = sheaf_tensor_new(SHEAF_I64, 1, two, &indices);
  if (status == SHEAF_OK) ((int64_t *)sheaf_tensor_data(indices))[1] = 2;
  for (int i = 0; i < BACKWARDS && status == SHEAF_OK; i++) {
    sheaf_tensor *out = NULL;
    status = sheaf_embedding(indices, table, NULL, &out);
    if (status == SHEAF_OK) status = sheaf_backward(out, NULL, NULL);
    sheaf_tensor_release(out);
  }
  sheaf_tensor_release(indices);
  return (void *)(uintptr_t)status;
}

static void test_threads_share_a_leaf(void **state)
{
  (void)state;
  for (int kind = SHEAF_GRAD_DENSE; kind <= SHEAF_GRAD_SPARSE; kind++) {
    pthread_t threads[3];
    sheaf_tensor *table = tensor_of(SHEAF_F64, SHAPE(3, 1), NULL);
    expect_ok(sheaf_tensor_require_grad(table, (sheaf_grad)kind));
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&threads[i], NULL, differentiate_often, table), 0);
    for (int i = 0; i < 3; i++) {
      void *status;
      assert_int_equal(pthread_join(threads[i], &status), 0);
      assert_null(status);
    }
    expect_tensor(dense_grad(table), 3 * BACKWARDS, 0, 3 * BACKWARDS);
  }
}

static void test_gradients_without_data(void **state)
{
  (void)state;
  for (int kind = SHEAF_GRAD_DENSE; kind <= SHEAF_GRAD_SPARSE_RAW; kind++)
    for (int mode = SHEAF_MODE_MEAN; mode <= SHEAF_MODE_MAX; mode++) {
      sheaf_tensor *table = tensor_untouchable(SHEAF_F32, SHAPE(100, 8)),
                   *indices = tensor_untouchable(SHEAF_I64, SHAPE(3, 5));
      sheaf_tensor *out = NULL;
      sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
      options.mode = (sheaf_bag_mode)mode;
      expect_ok(sheaf_tensor_require_grad(table, (sheaf_grad)kind));
      expect_ok(sheaf_embedding_bag(indices, table, NULL, &options, &out));
      expect_ok(sheaf_backward(out, NULL, NULL));
      const sheaf_tensor *grad = sheaf_tensor_grad(table);
      assert_int_equal(sheaf_tensor_form(grad), kind == SHEAF_GRAD_DENSE ? SHEAF_FORM_META : SHEAF_FORM_SPARSE);
      assert_int_equal(sheaf_tensor_extent(grad, 0), 100);
      assert_int_equal(sheaf_tensor_extent(grad, 1), 8);
      sheaf_tensor_release(out);
    }
}

/* ---- A user's op with a gradient of its own ---- */

static sheaf_status square(const sheaf_call *call, const sheaf_frame *frame)
{
  (void)frame;
  const sheaf_tensor *x = call->inputs[0];
  expect_ok(sheaf_tensor_new(SHEAF_F64, sheaf_tensor_rank(x), sheaf_tensor_dl(x)->shape, &call->outputs[0]));
  for (int64_t i = 0; i < tensor_count(x); i++)
    tensor_set(call->outputs[0], i, tensor_number(x, i) * tensor_number(x, i));
  return SHEAF_OK;
}

static sheaf_status square_backward(const sheaf_call *forward, sheaf_tensor *const *likes,
                                    sheaf_tensor *const *output_grads, uint32_t wanted, sheaf_tensor **input_grads,
                                    void *context)
{
  const sheaf_tensor *x = forward->inputs[0];
  assert_int_equal(wanted, 1);
  assert_ptr_equal(context, (void *)likes[0] == NULL ? NULL : context);
  assert_int_equal(sheaf_tensor_form(likes[0]), SHEAF_FORM_META);
  expect_ok(sheaf_tensor_new(SHEAF_F64, sheaf_tensor_rank(x), sheaf_tensor_dl(x)->shape, &input_grads[0]));
  for (int64_t i = 0; i < tensor_count(x); i++)
    tensor_set(input_grads[0], i, 2 * tensor_number(x, i) * tensor_number(output_grads[0], i));
  return SHEAF_OK;
}

static sheaf_op square_op;

static sheaf_status run_square(const computation *c, sheaf_tensor **out)
{
  sheaf_tensor *input = c->leaf[0];
  const sheaf_call call = tensor_call(square_op, &input, out, NULL, 0);
  return sheaf_dispatch(&call);
}

static void test_users_ops_are_differentiated(void **state)
{
  (void)state;
  static const char *const in[] = {"x"}, *const given[] = {"y"};
  sheaf_op_spec spec = SHEAF_OP_SPEC_INIT;
  spec.name = "square";
  spec.inputs = spec.outputs = 1;
  spec.input_names = in;
  spec.output_names = given;
  expect_ok(sheaf_op_register(&spec, &square_op));
  expect_ok(sheaf_layer_register(square_op, SHEAF_KEY_CPU, square, NULL));
  computation c = {"square", {tensor_random(SHEAF_F64, SHAPE(3), 5)}, .run = run_square};
  sheaf_tensor *out = NULL;
  expect_ok(sheaf_tensor_require_grad(c.leaf[0], SHEAF_GRAD_DENSE));
  expect_status(run_square(&c, &out), SHEAF_UNSUPPORTED);
  expect_words("square", "no gradient");
  sheaf_gradient gradient = SHEAF_GRADIENT_INIT;
  gradient.differentiable = gradient.save_inputs = 1;
  gradient.backward = square_backward;
  expect_ok(sheaf_gradient_register(square_op, &gradient));
  expect_status(sheaf_gradient_register(square_op, &gradient), SHEAF_INVALID_PROBLEM);
  check_gradients(&c);
}

/* A gradient's memory is its leaf's alone, also where backward hands on views. */
static void test_leaves_own_their_gradients(void **state)
{
  (void)state;
  sheaf_tensor *a = tensor_leaf(tensor_of(SHEAF_F32, SHAPE(2), NULL), SHEAF_GRAD_DENSE);
  sheaf_tensor *b = tensor_leaf(tensor_of(SHEAF_F32, SHAPE(2), NULL), SHEAF_GRAD_DENSE);
  sheaf_tensor *grad = tensor_of(SHEAF_F32, SHAPE(1, 2), NUMBERS(3, 4)), *x, *y, *sum;
  const int64_t shape[] = {1, 2};
  RESULT(x, sheaf_reshape(a, 2, shape, &x));
  RESULT(y, sheaf_reshape(b, 2, shape, &y));
  RESULT(sum, sheaf_add(x, y, 1, &sum));
  expect_ok(sheaf_backward(sum, grad, NULL));
  tensor_set(grad, 0, 99);
  sheaf_tensor *of_a = sheaf_tensor_grad(a);
  expect_ok(sheaf_add(of_a, of_a, 1, &of_a));
  expect_tensor(of_a, 6, 8);
  expect_tensor(sheaf_tensor_grad(b), 3, 4);
  sheaf_tensor *number = tensor_leaf(tensor_of(SHEAF_F32, 0, NULL, NULL), SHEAF_GRAD_DENSE);
  sheaf_tensor *slope = tensor_of(SHEAF_F32, 0, NULL, NUMBERS(5));
  expect_ok(sheaf_backward(number, slope, NULL));
  tensor_set(slope, 0, 99);
  expect_tensor(sheaf_tensor_grad(number), 5);
}

static void test_gradients_lie_where_results_do(void **state)
{
  (void)state;
  sheaf_tensor *leaf = tensor_leaf(tensor_of(SHEAF_F32, SHAPE(2), NULL), SHEAF_GRAD_DENSE), *out, *elsewhere;
  const int64_t shape[] = {2, 1};
  RESULT(out, sheaf_reshape(leaf, 2, shape, &out));
  DLTensor dl = *sheaf_tensor_dl(out);
  dl.device = (DLDevice){kDLCUDA, 3};
  expect_ok(sheaf_tensor_borrow(&dl, 0, &elsewhere));
  expect_status(sheaf_backward(out, tensor_keep(elsewhere), NULL), SHEAF_INVALID_PROBLEM);
  expect_words("Cuda", "device 3", "Cpu");
  assert_null(sheaf_tensor_grad(leaf));
}

static void test_results_do_not_replace_those_of_a_graph(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_leaf(tensor_of(SHEAF_F32, SHAPE(2, 1), NUMBERS(1, 2)), SHEAF_GRAD_DENSE), *out;
  sheaf_tensor *other = tensor_of(SHEAF_F32, SHAPE(2, 1), NUMBERS(7, 8)), *slot = table;
  RESULT(out, sheaf_embedding(tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 1)), table, NULL, &out));
  sheaf_tensor_set_name(table, "words");
  expect_status(sheaf_cast(other, SHEAF_F32, &out), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_cast(other, SHEAF_F32, &slot), SHEAF_INVALID_PROBLEM);
  expect_words("cast", "words", "no_grad");
  expect_tensor(table, 1, 2);
  expect_tensor(out, 1, 2);
  sheaf_guard guard;
  expect_ok(sheaf_no_grad_begin(&guard));
  expect_ok(sheaf_cast(other, SHEAF_F32, &slot));
  expect_ok(sheaf_no_grad_end(&guard));
  expect_tensor(table, 7, 8);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_embedding_slopes),
      TEST(test_bag_slopes),
      TEST(test_bag_matrix_slopes),
      TEST(test_segment_slopes),
      TEST(test_slopes_of_a_longer_graph),
      TEST(test_slopes_of_components),
      TEST(test_gradients_of_casts),
      TEST(test_gradients_accumulate),
      TEST(test_frequency_scaling_dense_and_sparse),
      TEST(test_coalesced_gradients_have_the_dense_bits),
      TEST(test_writes_since_forward_are_errors),
      TEST(test_graphs_are_recorded_only_when_needed),
      TEST(test_long_graphs_do_not_recurse),
      TEST(test_threads_share_a_leaf),
      TEST(test_gradients_without_data),
      TEST(test_users_ops_are_differentiated),
      TEST(test_leaves_own_their_gradients),
      TEST(test_gradients_lie_where_results_do),
      TEST(test_results_do_not_replace_those_of_a_graph),
  };
  return cmocka_run_group_tests_name("gradients", tests, NULL, NULL);
}
