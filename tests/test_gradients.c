/* test_gradients.c: backward ops against central differences of the library's own forward, and every op against the
 * plain oracle.
 *
 * The loss is sum(grad_out * forward(x)). In f64, away from ties, its central difference in one input element must be
 * what the backward op gives for that element.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "oracle/bit_number.h"
#include "support/environment.h"
#include "support/kernel_groups.h"
#include "support/problem_close.h"
#include "support/problem_run.h"
#include "support/tiny.h"

/* A power of two, so that x + STEP and x - STEP lie exactly as far apart as the quotient assumes, or nearly; small,
 * so that no maximum changes hands. */
static const double STEP = 0x1p-20;

/* A forward problem in f64, and a gradient for its output. */
typedef struct scene {
  problem *p;
  problem_outputs *outputs;
  tiny *grad_out;
} scene;

static scene scene_make(const problem_spec *spec)
{
  scene s = {problem_make(spec), NULL, NULL};
  s.outputs = problem_outputs_make(s.p);
  const int at = spec->category == SHEAF_CATEGORY_EMBEDDING ? AT_OUT : AT_SEGMENT_OUT;
  const problem_operand *out = &s.outputs->operand[at];
  s.grad_out = tiny_matrix(SHEAF_F64, out->rows, out->columns, NULL);
  test_random random = {spec->seed + 99};
  for (int64_t i = 0; i < s.grad_out->count; i++) {
    bit_store(SHEAF_F64, s.grad_out->data, i, random_unit(&random) * 2.0 - 1.0);
  }
  return s;
}

static void scene_free(scene *s)
{
  problem_outputs_free(s->outputs);
  problem_free(s->p);
  tiny_free_all();
}

static double loss(scene *s)
{
  const problem_way way = {NULL, 1, false};
  assert_int_equal(problem_run(s->p, s->outputs, &way, NULL), SHEAF_OK);
  const int at = s->p->spec.category == SHEAF_CATEGORY_EMBEDDING ? AT_OUT : AT_SEGMENT_OUT;
  const problem_operand *out = &s->outputs->operand[at];
  double sum = 0.0;
  for (int64_t i = 0; i < s->grad_out->count; i++) {
    sum += tiny_number(s->grad_out, i) * bit_load(SHEAF_F64, operand_at(out, 0, i / out->columns, i % out->columns), 0);
  }
  return sum;
}

/* The central difference of the loss in one element of an input. */
static double difference(scene *s, int at, int64_t row, int64_t column)
{
  void *element = operand_at(&s->p->operand[at], 0, row, column);
  const double held = bit_load(SHEAF_F64, element, 0);
  bit_store(SHEAF_F64, element, 0, held + STEP);
  const double above = loss(s);
  bit_store(SHEAF_F64, element, 0, held - STEP);
  const double below = loss(s);
  bit_store(SHEAF_F64, element, 0, held);
  return (above - below) / (2.0 * STEP);
}

static void expect_gradient(scene *s, int at, const tiny *gradient, const char *what)
{
  const problem_operand *operand = &s->p->operand[at];
  for (int64_t i = 0; i < gradient->count; i++) {
    const double expected = difference(s, at, i / operand->columns, i % operand->columns);
    const double got = tiny_number(gradient, i);
    if (!(fabs(got - expected) <= 2e-7 * (1.0 + fabs(expected)))) {
      char text[512];
      fail_msg("%s %lld: the difference quotient is %.12g, the gradient %.12g; %s", what, (long long)i, expected, got,
               problem_text(s->p, text, sizeof text));
    }
  }
}

/* ---- Embedding --------------------------------------------------------------------------------------------------- */

static sheaf_embedding_kind backward_of(sheaf_embedding_kind kind)
{
  switch (kind) {
  case SHEAF_LOOKUP:
    return SHEAF_LOOKUP_BACKWARD;
  case SHEAF_BAG_SUM:
    return SHEAF_BAG_SUM_BACKWARD;
  case SHEAF_BAG_MEAN:
    return SHEAF_BAG_MEAN_BACKWARD;
  default:
    return SHEAF_BAG_MAX_BACKWARD;
  }
}

static void check_embedding_gradient(const problem_spec *spec)
{
  scene s = scene_make(spec);
  loss(&s); /* the forward outputs that backward wants */
  sheaf_embedding_desc desc = s.p->embedding;
  desc.kind = backward_of(desc.kind);
  desc.grad_write = SHEAF_GRAD_OVERWRITE;
  sheaf_embedding_args args = problem_embedding_args(s.p, s.outputs);
  args.grad_out = tiny_operand(s.grad_out);
  tiny *table_grad = tiny_matrix(SHEAF_F64, desc.rows, desc.dim, NULL);
  args.table_grad = tiny_operand(table_grad);
  tiny *weights_grad = NULL;
  if (desc.weighted) {
    weights_grad = tiny_vector(SHEAF_F64, desc.indices, NULL);
    args.weights_grad = tiny_operand(weights_grad);
  } else {
    args.table.tensor = NULL;
  }
  if (!(desc.weighted && desc.kind == SHEAF_BAG_MEAN_BACKWARD)) {
    args.out.tensor = NULL;
  }
  if (desc.kind == SHEAF_BAG_MAX_BACKWARD) {
    desc.indices = 0;
    desc.bag_form = SHEAF_BAGS_OFFSETS;
    args.indices.tensor = args.offsets.tensor = NULL;
  }
  expect_ok(tiny_run_embedding(&desc, &args));
  expect_gradient(&s, AT_TABLE, table_grad, "table element");
  if (weights_grad != NULL) {
    expect_gradient(&s, AT_WEIGHTS, weights_grad, "weight");
  }
  scene_free(&s);
}

static void check_embedding_gradients(sheaf_embedding_kind kind)
{
  for (uint64_t i = 0; i < 24; i++) {
    problem_spec spec = {.category = SHEAF_CATEGORY_EMBEDDING, .kind = (int)kind, .dtype = SHEAF_F64};
    spec.index_dtype = i % 2 == 0 ? SHEAF_I32 : SHEAF_I64;
    spec.count = 21;
    spec.dim = 3;
    spec.rows = 6;
    spec.bags = 5;
    spec.bag_form = SHEAF_BAGS_OFFSETS_END;
    spec.values = VALUES_POSITIVE; /* distinct, so that no maximum is near a tie */
    spec.positive_weights = true;
    spec.weighted = kind != SHEAF_LOOKUP && kind != SHEAF_BAG_MAX && i % 3 != 0;
    spec.has_padding = i % 4 >= 2;
    spec.padding_share = 0.2;
    spec.bad_share = i % 5 == 0 ? 0.2 : 0.0;
    /* The mean of weighted rows held in several places depends on all of them: a part's gradient is not its own. */
    spec.sharded = i % 4 == 3 && !(kind == SHEAF_BAG_MEAN && spec.weighted);
    spec.want_arg = true;
    spec.seed = i;
    check_embedding_gradient(&spec);
  }
}

static void test_lookup_backward_is_the_gradient_of_lookup(void **state)
{
  (void)state;
  check_embedding_gradients(SHEAF_LOOKUP);
}

static void test_bag_sum_backward_is_the_gradient_of_bag_sum(void **state)
{
  (void)state;
  check_embedding_gradients(SHEAF_BAG_SUM);
}

static void test_bag_mean_backward_is_the_gradient_of_bag_mean(void **state)
{
  (void)state;
  check_embedding_gradients(SHEAF_BAG_MEAN);
}

static void test_bag_max_backward_is_the_gradient_of_bag_max(void **state)
{
  (void)state;
  check_embedding_gradients(SHEAF_BAG_MAX);
}

/* ---- Segments ---------------------------------------------------------------------------------------------------- */

static const struct {
  sheaf_segment_kind forward, backward;
} segment_pairs[] = {
    {SHEAF_SEGMENT_SUM, SHEAF_SEGMENT_SUM_BACKWARD},
    {SHEAF_SEGMENT_MEAN, SHEAF_SEGMENT_MEAN_BACKWARD},
    {SHEAF_SEGMENT_MAX, SHEAF_SEGMENT_MAX_BACKWARD},
    {SHEAF_SEGMENT_MIN, SHEAF_SEGMENT_MIN_BACKWARD},
    {SHEAF_SEGMENT_PROD, SHEAF_SEGMENT_PROD_BACKWARD},
    {SHEAF_UNSORTED_SEGMENT_SUM, SHEAF_UNSORTED_SEGMENT_SUM_BACKWARD},
    {SHEAF_UNSORTED_SEGMENT_MEAN, SHEAF_UNSORTED_SEGMENT_MEAN_BACKWARD},
    {SHEAF_UNSORTED_SEGMENT_MAX, SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD},
    {SHEAF_UNSORTED_SEGMENT_MIN, SHEAF_UNSORTED_SEGMENT_MIN_BACKWARD},
    {SHEAF_UNSORTED_SEGMENT_PROD, SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD},
};

static bool has_arg(sheaf_segment_kind kind)
{
  return kind == SHEAF_SEGMENT_MAX || kind == SHEAF_SEGMENT_MIN || kind == SHEAF_UNSORTED_SEGMENT_MAX ||
         kind == SHEAF_UNSORTED_SEGMENT_MIN;
}

static void check_segment_gradient(const problem_spec *spec, sheaf_segment_kind backward, bool arg_given)
{
  scene s = scene_make(spec);
  loss(&s);
  sheaf_segment_desc desc = s.p->segment;
  desc.kind = backward;
  desc.arg_given = arg_given;
  desc.empty = SHEAF_EMPTY_NEUTRAL;
  sheaf_segment_args args = problem_segment_args(s.p, s.outputs);
  const bool needs_data = has_arg((sheaf_segment_kind)spec->kind) || spec->kind == SHEAF_SEGMENT_PROD ||
                          spec->kind == SHEAF_UNSORTED_SEGMENT_PROD;
  if (arg_given || !needs_data) {
    args.data.tensor = NULL;
  }
  if (!arg_given) {
    args.arg.tensor = NULL;
  }
  args.out.tensor = NULL;
  args.grad_out = tiny_operand(s.grad_out);
  tiny *data_grad = tiny_matrix(SHEAF_F64, desc.rows, desc.dim, NULL);
  args.data_grad = tiny_operand(data_grad);
  expect_ok(tiny_run_segment(&desc, &args));
  expect_gradient(&s, AT_DATA, data_grad, "data element");
  scene_free(&s);
}

static void test_segment_backward_is_the_gradient_of_segment_forward(void **state)
{
  (void)state;
  for (size_t pair = 0; pair < sizeof segment_pairs / sizeof *segment_pairs; pair++) {
    const sheaf_segment_kind forward = segment_pairs[pair].forward;
    const bool product = forward == SHEAF_SEGMENT_PROD || forward == SHEAF_UNSORTED_SEGMENT_PROD;
    for (uint64_t i = 0; i < 16; i++) {
      problem_spec spec = {.category = SHEAF_CATEGORY_SEGMENT, .kind = (int)forward, .dtype = SHEAF_F64};
      spec.index_dtype = i % 2 == 0 ? SHEAF_I32 : SHEAF_I64;
      spec.count = 18;
      spec.dim = 3;
      spec.rows = 5;
      spec.values = VALUES_POSITIVE;
      spec.zero_share = product && i % 4 >= 2 ? 0.2 : 0.0; /* columns with no zero, one and several */
      spec.bad_share = i % 3 == 0 ? 0.2 : 0.0;
      spec.want_arg = true;
      spec.seed = i;
      check_segment_gradient(&spec, segment_pairs[pair].backward, has_arg(forward) && i % 2 == 1);
    }
  }
}

/* Ties have no derivative to compare with; the shares must add up to the gradient that is shared. */
static void test_split_ties_add_up_to_the_whole_gradient(void **state)
{
  (void)state;
  static const sheaf_segment_kind kinds[] = {SHEAF_SEGMENT_MAX_BACKWARD, SHEAF_SEGMENT_MIN_BACKWARD,
                                             SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD, SHEAF_UNSORTED_SEGMENT_MIN_BACKWARD};
  for (int k = 0; k < 4; k++) {
    problem_spec spec = {.category = SHEAF_CATEGORY_SEGMENT, .dtype = SHEAF_F64, .split_ties = true};
    spec.kind = (int)kinds[k];
    spec.index_dtype = SHEAF_I64;
    spec.count = 60;
    spec.dim = 2;
    spec.rows = 4;
    spec.values = VALUES_TIES;
    spec.seed = 5;
    problem *p = problem_make(&spec);
    problem_outputs *outputs = problem_outputs_make(p);
    const problem_way way = {NULL, 1, false};
    assert_int_equal(problem_run(p, outputs, &way, NULL), SHEAF_OK);
    double sums[4][2] = {{0.0}};
    for (int64_t n = 0; n < 60; n++) {
      const int64_t s = bit_load_index(SHEAF_I64, operand_at(&p->operand[AT_IDS], 0, 0, n), 0);
      for (int64_t d = 0; d < 2; d++) {
        sums[s][d] += bit_load(SHEAF_F64, operand_at(&outputs->operand[AT_DATA_GRAD], 0, n, d), 0);
      }
    }
    for (int64_t s = 0; s < 4; s++) {
      for (int64_t d = 0; d < 2; d++) {
        const double g = bit_load(SHEAF_F64, operand_at(&p->operand[AT_SEGMENT_GRAD_OUT], 0, s, d), 0);
        assert_true(fabs(sums[s][d] - g) <= 1e-13 * fabs(g));
      }
    }
    problem_outputs_free(outputs);
    problem_free(p);
  }
}

/* ---- The plain oracle -------------------------------------------------------------------------------------------- */

static void test_every_op_is_close_to_the_plain_oracle(void **state)
{
  (void)state;
  static kernel_group groups[MOST_GROUPS];
  const int64_t count = kernel_groups_read(groups, NULL);
  assert_true(count > 0);
  for (int64_t g = 0; g < count; g++) {
    for (int64_t i = 0; i < 10; i++) {
      problem_spec spec = {.count = 3 + 57 * i, .dim = 1 + 5 * i, .rows = 1 + 6 * i, .bags = 1 + 4 * i};
      choose_options(&groups[g], &spec, 700 + i);
      choose_tame(&spec);
      problem *p = problem_make(&spec);
      problem_outputs *outputs = problem_outputs_make(p);
      const problem_way way = {groups[g].kernel[i % groups[g].kernels], 1 + (int)(i % 3), i % 2 == 1};
      assert_int_equal(problem_run(p, outputs, &way, NULL), SHEAF_OK);
      assert_true(problem_outputs_close(p, outputs, way.kernel));
      problem_outputs_free(outputs);
      problem_free(p);
    }
  }
}

int main(int argc, char **argv)
{
  (void)argc;
  environment_prepare(argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_lookup_backward_is_the_gradient_of_lookup),
      cmocka_unit_test(test_bag_sum_backward_is_the_gradient_of_bag_sum),
      cmocka_unit_test(test_bag_mean_backward_is_the_gradient_of_bag_mean),
      cmocka_unit_test(test_bag_max_backward_is_the_gradient_of_bag_max),
      cmocka_unit_test(test_segment_backward_is_the_gradient_of_segment_forward),
      cmocka_unit_test(test_split_ties_add_up_to_the_whole_gradient),
      cmocka_unit_test(test_every_op_is_close_to_the_plain_oracle),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
