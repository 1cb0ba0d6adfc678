/* test_autograd.c: gradients through graphs: finite differences, accumulation, sparse gradients, gradients of
 * gradients, saved tensors, long graphs, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "support/tensors.h"
#include "support/test_random.h"

/* ---- Finite differences ---- */

enum { MOST_LEAVES = 3 };

/* A computation over leaves. */
typedef struct computation {
  const char *name;
  sheaf_tensor *leaf[MOST_LEAVES];
  sheaf_tensor *indices, *offsets;
  int choice; /* mode, reduction ... */
  int flags;
  sheaf_status (*run)(const struct computation *c, sheaf_tensor **out);
} computation;

/* <out, weights>, without a graph. */
static double weighed(const computation *c, const sheaf_tensor *weights)
{
  sheaf_tensor *out = NULL;
  sheaf_guard guard;
  double sum = 0;
  expect_ok(sheaf_no_grad_begin(&guard));
  expect_ok(c->run(c, &out));
  expect_ok(sheaf_no_grad_end(&guard));
  assert_false(sheaf_tensor_requires_grad(out));
  for (int64_t i = 0; i < tensor_count(out); i++) sum += tensor_number(out, i) * tensor_number(weights, i);
  sheaf_tensor_release(out);
  return sum;
}

static sheaf_tensor *dense_grad(sheaf_tensor *leaf)
{
  sheaf_tensor *dense = NULL;
  if (!sheaf_tensor_grad(leaf)) return NULL;
  expect_ok(sheaf_to_dense(sheaf_tensor_grad(leaf), &dense));
  return tensor_keep(dense);
}

static void check_leaf(const computation *c, sheaf_tensor *leaf, const sheaf_tensor *weights)
{
  const double step = 1e-6;
  sheaf_tensor *grad = dense_grad(leaf);
  for (int64_t i = 0; i < tensor_count(leaf); i++) {
    double x = tensor_number(leaf, i);
    tensor_set(leaf, i, x + step);
    double up = weighed(c, weights);
    tensor_set(leaf, i, x - step);
    double slope = (up - weighed(c, weights)) / (2 * step), got = grad ? tensor_number(grad, i) : 0;
    tensor_set(leaf, i, x);
    if (!(fabs(slope - got) <= 1e-7 * (1 + fabs(slope)))) /* not a number is no slope */
      fail_msg("%s, choice %d, flags %d: gradient %d is %.12g, the slope %.12g", c->name, c->choice, c->flags, (int)i,
               got, slope);
  }
}

/* Backward against slopes, for every leaf. */
static void check_gradients(computation *c)
{
  sheaf_tensor *out = NULL;
  for (int i = 0; i < MOST_LEAVES; i++)
    if (c->leaf[i] && !sheaf_tensor_requires_grad(c->leaf[i]))
      expect_ok(sheaf_tensor_require_grad(c->leaf[i], SHEAF_GRAD_DENSE));
  expect_ok(c->run(c, &out));
  assert_true(sheaf_tensor_requires_grad(out));
  sheaf_tensor *weights = tensor_of(SHEAF_F64, sheaf_tensor_rank(out), sheaf_tensor_dl(out)->shape, NULL);
  test_random random = {7};
  for (int64_t i = 0; i < tensor_count(out); i++) tensor_set(weights, i, 2 * random_unit(&random) - 1);
  expect_ok(sheaf_backward(out, weights, NULL));
  sheaf_tensor_release(out);
  for (int i = 0; i < MOST_LEAVES; i++)
    if (c->leaf[i]) check_leaf(c, c->leaf[i], weights);
}

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

/* add, movedim, reshape, expand, cast, to_dense and a table used twice, in one graph. */
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

/* ---- Gradients of gradients ---- */

/* For a linear op out = A x, the gradient g -> A' g is linear in g, so its gradient is A again: what comes back to g
 * from v is the op applied to v. */
static void test_gradients_of_gradients(void **state)
{
  (void)state;
  for (int which = 0; which < 4; which++) {
    sheaf_tensor *table = tensor_random(SHEAF_F64, SHAPE(5, 2), 61), *v = tensor_random(SHEAF_F64, SHAPE(5, 2), 62);
    sheaf_tensor *indices = tensor_of(SHEAF_I64, SHAPE(5), NUMBERS(1, 1, 2, 4, 0)), *out = NULL, *again = NULL;
    sheaf_tensor *offsets = tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 2, 2));
    expect_ok(sheaf_tensor_require_grad(table, SHEAF_GRAD_DENSE));
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    options.mode = which == 1 ? SHEAF_MODE_SUM : SHEAF_MODE_MEAN;
#define APPLY(x, y)                                                                                 \
  expect_ok(which == 0   ? sheaf_embedding(indices, x, NULL, y)                                     \
            : which == 3 ? sheaf_unsorted_segment_reduce(x, SHEAF_REDUCE_MEAN, indices, 5, NULL, y) \
                         : sheaf_embedding_bag(indices, x, offsets, &options, y))
    APPLY(table, &out);
    sheaf_tensor *g = tensor_of(SHEAF_F64, sheaf_tensor_rank(out), sheaf_tensor_dl(out)->shape, NULL);
    for (int64_t i = 0; i < tensor_count(g); i++) tensor_set(g, i, (double)i - 2.5);
    expect_ok(sheaf_tensor_require_grad(g, SHEAF_GRAD_DENSE));
    sheaf_backward_options create = SHEAF_BACKWARD_OPTIONS_INIT;
    create.create_graph = 1;
    expect_ok(sheaf_backward(out, g, &create));
    assert_true(sheaf_tensor_requires_grad(sheaf_tensor_grad(table)));
    expect_ok(sheaf_backward(sheaf_tensor_grad(table), v, NULL));
    APPLY(v, &again);
    expect_near_tensor(sheaf_tensor_grad(g), again, 1e-14);
    sheaf_tensor_release(again);
    sheaf_tensor_release(out);
    sheaf_tensor_clear_grad(table);
    sheaf_tensor_clear_grad(g);
  }
}

/* Padding: its row comes out, but no gradient went in; so none comes back through it either. */
static void test_padding_in_gradients_of_gradients(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_random(SHEAF_F64, SHAPE(3, 1), 61),
               *indices = tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(1, 0, 2));
  sheaf_tensor *g = tensor_of(SHEAF_F64, SHAPE(3, 1), NUMBERS(1, 1, 1)), *out = NULL;
  sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
  options.has_padding = 1;
  options.padding_idx = 1;
  options.padding = SHEAF_PADDING_ROW;
  expect_ok(sheaf_tensor_require_grad(table, SHEAF_GRAD_DENSE));
  expect_ok(sheaf_tensor_require_grad(g, SHEAF_GRAD_DENSE));
  expect_ok(sheaf_embedding(indices, table, &options, &out));
  sheaf_backward_options create = SHEAF_BACKWARD_OPTIONS_INIT;
  create.create_graph = 1;
  expect_ok(sheaf_backward(out, g, &create));
  expect_tensor(sheaf_tensor_grad(table), 1, 0, 1);
  expect_ok(sheaf_backward(sheaf_tensor_grad(table), tensor_of(SHEAF_F64, SHAPE(3, 1), NUMBERS(5, 6, 7)), NULL));
  expect_tensor(sheaf_tensor_grad(g), 0, 5, 7);
  sheaf_tensor_release(out);
  sheaf_tensor_clear_grad(table);
}

/* With weights: <dW(g, w), v> and <dw(g, W), u> as computations whose slopes are known. */
static sheaf_status run_double_bag(const computation *c, sheaf_tensor **out)
{
  sheaf_tensor *table = c->leaf[0], *weights = c->leaf[1], *g = c->leaf[2], *bags = NULL;
  sheaf_tensor *own[2] = {NULL, NULL};
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  sheaf_guard guard;
  int graph = !sheaf_keyset_contains(sheaf_excluded_keys(), SHEAF_KEY_AUTOGRAD);
  /* backward needs leaves of its own when the outer computation has no graph */
  expect_ok(sheaf_tensor_detach(table, &own[0]));
  expect_ok(sheaf_tensor_detach(weights, &own[1]));
  if (graph) {
    sheaf_tensor_release(own[0]);
    sheaf_tensor_release(own[1]);
    own[0] = sheaf_tensor_retain(table);
    own[1] = sheaf_tensor_retain(weights);
  }
  expect_ok(sheaf_guard_begin(sheaf_keyset_of(SHEAF_KEY_AUTOGRAD), sheaf_keyset_empty(), &guard));
  for (int i = 0; i < 2; i++) expect_ok(sheaf_tensor_require_grad(own[i], SHEAF_GRAD_DENSE));
  options.mode = c->flags & 1 ? SHEAF_MODE_MEAN : SHEAF_MODE_SUM;
  options.has_padding = (c->flags >> 1 & 1) != 0;
  options.padding_idx = 1;
  options.scale_grad_by_freq = (c->flags >> 2 & 1) != 0;
  options.per_sample_weights = own[1];
  sheaf_status status = sheaf_embedding_bag(c->indices, own[0], c->offsets, &options, &bags);
  sheaf_backward_options create = SHEAF_BACKWARD_OPTIONS_INIT;
  create.create_graph = 1;
  if (!status) status = sheaf_backward(bags, g, &create);
  expect_ok(sheaf_guard_end(&guard));
  *out = sheaf_tensor_retain(sheaf_tensor_grad(own[c->choice]));
  for (int i = 0; i < 2; i++) {
    sheaf_tensor_clear_grad(own[i]);
    sheaf_tensor_release(own[i]);
  }
  sheaf_tensor_release(bags);
  if (!graph) { /* hand out numbers only */
    sheaf_tensor *plain;
    expect_ok(sheaf_tensor_detach(*out, &plain));
    sheaf_tensor_release(*out);
    *out = plain;
  }
  return status;
}

static void test_gradients_of_weighted_gradients(void **state)
{
  (void)state;
  for (int choice = 0; choice < 2; choice++)
    for (int flags = 0; flags < 16; flags++) { /* mean, padded, scaled by frequency, a matrix */
      int matrix = flags >> 3;
      computation c = {"double",
                       {tensor_random(SHEAF_F64, SHAPE(4, 2), 71),
                        matrix ? tensor_random(SHEAF_F64, SHAPE(3, 2), 72) : tensor_random(SHEAF_F64, SHAPE(6), 72),
                        tensor_random(SHEAF_F64, SHAPE(3, 2), 73)},
                       .run = run_double_bag};
      for (int i = 0; i < 6; i++) tensor_set(c.leaf[1], i, 1.5 + tensor_number(c.leaf[1], i)); /* c far from 0 */
      c.choice = choice;
      c.flags = flags;
      c.indices = matrix ? tensor_of(SHEAF_I64, SHAPE(3, 2), NUMBERS(3, 0, 1, 1, 3, 1))
                         : tensor_of(SHEAF_I64, SHAPE(6), NUMBERS(3, 0, 3, 1, 1, 2));
      if (!matrix) c.offsets = tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 3, 3)); /* one is empty */
      check_gradients(&c);
    }
}

/* Both gradients of a weighted mean at once: the gradient of <dW, v> + <dw, u> is the sum of those of either. */
static void test_gradients_of_both_gradients(void **state)
{
  (void)state;
  sheaf_tensor *kept[2][3]; /* one by one, together: of table, weights, grad */
  for (int together = 0; together < 2; together++) {
    sheaf_tensor *leaf[] = {tensor_random(SHEAF_F64, SHAPE(4, 2), 75), tensor_random(SHEAF_F64, SHAPE(5), 76),
                            tensor_random(SHEAF_F64, SHAPE(2, 2), 77)};
    sheaf_tensor *indices = tensor_of(SHEAF_I64, SHAPE(5), NUMBERS(3, 0, 3, 1, 1)), *out = NULL, *first[2], *sum;
    sheaf_tensor *offsets = tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 3)), *flat[2] = {NULL, NULL}, *parts[2];
    sheaf_tensor *toward[] = {tensor_random(SHEAF_F64, SHAPE(4, 2), 78), tensor_random(SHEAF_F64, SHAPE(5), 79)};
    for (int i = 0; i < 5; i++) tensor_set(leaf[1], i, 1.5 + tensor_number(leaf[1], i));
    for (int i = 0; i < 3; i++) expect_ok(sheaf_tensor_require_grad(leaf[i], SHEAF_GRAD_DENSE));
    sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
    options.per_sample_weights = leaf[1];
    expect_ok(sheaf_embedding_bag(indices, leaf[0], offsets, &options, &out));
    sheaf_backward_options graph = SHEAF_BACKWARD_OPTIONS_INIT;
    graph.create_graph = 1;
    expect_ok(sheaf_backward(out, leaf[2], &graph));
    for (int i = 0; i < 2; i++) first[i] = sheaf_tensor_retain(sheaf_tensor_grad(leaf[i]));
    expect_status(sheaf_backward(first[0], toward[0], &graph), SHEAF_UNSUPPORTED);
    expect_words("mode 0", "weights", "third");
    for (int i = 0; i < 3; i++) sheaf_tensor_clear_grad(leaf[i]);
    sheaf_backward_options again = SHEAF_BACKWARD_OPTIONS_INIT;
    again.retain_graph = 1;
    if (together) { /* <dW, v> + <dw, u>, as weighted sums of one bag each */
      for (int i = 0; i < 2; i++) {
        int64_t count = tensor_count(first[i]);
        sheaf_tensor *places = tensor_of(SHEAF_I64, 2, (int64_t[]){1, count}, NULL), *by = NULL;
        for (int64_t k = 0; k < count; k++) tensor_set(places, k, (double)k);
        expect_ok(sheaf_reshape(first[i], 2, (int64_t[]){count, 1}, &flat[i]));
        expect_ok(sheaf_reshape(toward[i], 2, (int64_t[]){1, count}, &by));
        sheaf_embedding_bag_options dot = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
        dot.mode = SHEAF_MODE_SUM;
        dot.per_sample_weights = by;
        parts[i] = NULL;
        expect_ok(sheaf_embedding_bag(places, flat[i], NULL, &dot, &parts[i]));
        sheaf_tensor_release(by);
        sheaf_tensor_release(flat[i]);
      }
      sum = NULL;
      expect_ok(sheaf_add(parts[0], parts[1], 1, &sum));
      expect_ok(sheaf_backward(sum, NULL, NULL));
      sheaf_tensor_release(sum);
      for (int i = 0; i < 2; i++) sheaf_tensor_release(parts[i]);
    } else {
      for (int i = 0; i < 2; i++) expect_ok(sheaf_backward(first[i], toward[i], &again));
    }
    for (int i = 0; i < 3; i++) kept[together][i] = dense_grad(leaf[i]);
    for (int i = 0; i < 2; i++) sheaf_tensor_release(first[i]);
    for (int i = 0; i < 3; i++) sheaf_tensor_clear_grad(leaf[i]);
    sheaf_tensor_release(out);
  }
  for (int i = 0; i < 3; i++) expect_near_tensor(kept[0][i], kept[1][i], 1e-12);
}

/* A row's gradient is divided by how often it occurs; so is what comes back. */
static void test_gradients_of_gradients_by_frequency(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_random(SHEAF_F64, SHAPE(4, 1), 61), *out = NULL;
  sheaf_tensor *indices = tensor_of(SHEAF_I32, SHAPE(2, 3), NUMBERS(2, 0, 2, 3, 2, 2));
  sheaf_tensor *g = tensor_of(SHEAF_F64, SHAPE(2, 3, 1), NUMBERS(1, 2, 3, 4, 5, 6));
  sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
  options.scale_grad_by_freq = options.has_padding = 1;
  options.padding_idx = 3;
  expect_ok(sheaf_tensor_require_grad(table, SHEAF_GRAD_DENSE));
  expect_ok(sheaf_tensor_require_grad(g, SHEAF_GRAD_DENSE));
  expect_ok(sheaf_embedding(indices, table, &options, &out));
  sheaf_backward_options create = SHEAF_BACKWARD_OPTIONS_INIT;
  create.create_graph = 1;
  expect_ok(sheaf_backward(out, g, &create));
  expect_tensor(sheaf_tensor_grad(table), 2, 0, 3.75, 0);
  expect_ok(sheaf_backward(sheaf_tensor_grad(table), tensor_of(SHEAF_F64, SHAPE(4, 1), NUMBERS(5, 6, 8, 9)), NULL));
  expect_tensor(sheaf_tensor_grad(g), 2, 5, 2, 0, 2, 2);
  sheaf_tensor_release(out);
  sheaf_tensor_clear_grad(table);
}

static void test_what_has_no_second_gradient_says_so(void **state)
{
  (void)state;
  sheaf_tensor *table = tensor_random(SHEAF_F64, SHAPE(4, 2), 81), *out = NULL;
  sheaf_tensor *indices = tensor_of(SHEAF_I64, SHAPE(2, 2), NULL), *g = tensor_random(SHEAF_F64, SHAPE(2, 2), 82);
  expect_ok(sheaf_tensor_require_grad(table, SHEAF_GRAD_DENSE));
  expect_ok(sheaf_tensor_require_grad(g, SHEAF_GRAD_DENSE));
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  options.mode = SHEAF_MODE_MAX;
  expect_ok(sheaf_embedding_bag(indices, table, NULL, &options, &out));
  sheaf_backward_options create = SHEAF_BACKWARD_OPTIONS_INIT;
  create.create_graph = 1;
  expect_ok(sheaf_backward(out, g, &create));
  expect_status(sheaf_backward(sheaf_tensor_grad(table), NULL, NULL), SHEAF_UNSUPPORTED);
  expect_words("mode 2");
  sheaf_tensor_release(out);
  sheaf_tensor_clear_grad(table);
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
  sheaf_call call = SHEAF_CALL_INIT;
  sheaf_tensor *input = c->leaf[0];
  call.op = square_op;
  call.inputs = &input;
  call.outputs = out;
  call.input_count = call.output_count = 1;
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

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_embedding_slopes),
      TEST(test_bag_slopes),
      TEST(test_bag_matrix_slopes),
      TEST(test_segment_slopes),
      TEST(test_slopes_of_a_longer_graph),
      TEST(test_gradients_accumulate),
      TEST(test_frequency_scaling_dense_and_sparse),
      TEST(test_coalesced_gradients_have_the_dense_bits),
      TEST(test_gradients_of_gradients),
      TEST(test_padding_in_gradients_of_gradients),
      TEST(test_gradients_of_weighted_gradients),
      TEST(test_gradients_of_both_gradients),
      TEST(test_gradients_of_gradients_by_frequency),
      TEST(test_what_has_no_second_gradient_says_so),
      TEST(test_writes_since_forward_are_errors),
      TEST(test_graphs_are_recorded_only_when_needed),
      TEST(test_long_graphs_do_not_recurse),
      TEST(test_threads_share_a_leaf),
      TEST(test_gradients_without_data),
      TEST(test_users_ops_are_differentiated),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
