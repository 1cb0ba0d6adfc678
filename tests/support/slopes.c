/* slopes.c: gradients against finite differences, two of them for every number of every leaf. */
#include "slopes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "test_random.h"

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

sheaf_tensor *dense_grad(sheaf_tensor *leaf)
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

void check_gradients(computation *c)
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
