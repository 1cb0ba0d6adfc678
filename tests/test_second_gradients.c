/* test_second_gradients.c: gradients of gradients: of linear ops by what they must be, of others against finite differences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/slopes.h"

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

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_gradients_of_gradients),
      TEST(test_padding_in_gradients_of_gradients),
      TEST(test_gradients_of_weighted_gradients),
      TEST(test_gradients_of_both_gradients),
      TEST(test_gradients_of_gradients_by_frequency),
      TEST(test_what_has_no_second_gradient_says_so),
  };
  return cmocka_run_group_tests_name("gradients of gradients", tests, NULL, NULL);
}
