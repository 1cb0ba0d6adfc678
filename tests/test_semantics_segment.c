/* test_semantics_segment.c: the rules of segment reductions, one by one, on problems worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "support/tiny.h"

typedef struct call {
  sheaf_segment_desc desc;
  sheaf_segment_args args;
  tiny *data, *out, *arg, *data_grad;
  sheaf_index_report report;
} call;

/* One reduction and its four kinds. */
typedef struct reduction {
  sheaf_segment_kind sorted, sorted_backward, unsorted, unsorted_backward;
} reduction;

static const reduction sums = {SHEAF_SEGMENT_SUM, SHEAF_SEGMENT_SUM_BACKWARD, SHEAF_UNSORTED_SEGMENT_SUM,
                               SHEAF_UNSORTED_SEGMENT_SUM_BACKWARD};
static const reduction means = {SHEAF_SEGMENT_MEAN, SHEAF_SEGMENT_MEAN_BACKWARD, SHEAF_UNSORTED_SEGMENT_MEAN,
                                SHEAF_UNSORTED_SEGMENT_MEAN_BACKWARD};
static const reduction maxima = {SHEAF_SEGMENT_MAX, SHEAF_SEGMENT_MAX_BACKWARD, SHEAF_UNSORTED_SEGMENT_MAX,
                                 SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD};
static const reduction minima = {SHEAF_SEGMENT_MIN, SHEAF_SEGMENT_MIN_BACKWARD, SHEAF_UNSORTED_SEGMENT_MIN,
                                 SHEAF_UNSORTED_SEGMENT_MIN_BACKWARD};
static const reduction products = {SHEAF_SEGMENT_PROD, SHEAF_SEGMENT_PROD_BACKWARD, SHEAF_UNSORTED_SEGMENT_PROD,
                                   SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD};

static bool is_extreme(sheaf_segment_kind kind)
{
  return kind == SHEAF_SEGMENT_MAX || kind == SHEAF_SEGMENT_MIN || kind == SHEAF_UNSORTED_SEGMENT_MAX ||
         kind == SHEAF_UNSORTED_SEGMENT_MIN;
}

static call begin(sheaf_segment_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype, int64_t count,
                  const int64_t *ids, int64_t segments, int64_t dim)
{
  call c = {.desc = tiny_segment(kind, dtype, index_dtype), .args = SHEAF_SEGMENT_ARGS_INIT};
  c.desc.rows = count;
  c.desc.dim = dim;
  c.desc.segments = segments;
  c.args.ids = tiny_operand(tiny_ints(index_dtype, count, ids));
  return c;
}

static void give_data(call *c, const double *values)
{
  c->data = tiny_matrix(c->desc.dtype, c->desc.rows, c->desc.dim, values);
  c->args.data = tiny_operand(c->data);
}

static void give_grad_out(call *c, const double *values)
{
  c->args.grad_out = tiny_operand(tiny_matrix(c->desc.dtype, c->desc.segments, c->desc.dim, values));
}

static sheaf_status run(call *c)
{
  c->args.report = &c->report;
  if (c->args.grad_out.tensor != NULL) {
    c->data_grad = tiny_matrix(c->desc.dtype, c->desc.rows, c->desc.dim, NULL);
    c->args.data_grad = tiny_operand(c->data_grad);
  } else {
    c->out = tiny_matrix(c->desc.dtype, c->desc.segments, c->desc.dim, NULL);
    c->args.out = tiny_operand(c->out);
    if (is_extreme(c->desc.kind)) {
      c->arg = tiny_int_matrix(c->desc.index_dtype, c->desc.segments, c->desc.dim, NULL);
      c->args.arg = tiny_operand(c->arg);
    }
  }
  return tiny_run_segment(&c->desc, &c->args);
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

static void test_segments_reduce_their_rows(void **state)
{
  (void)state;
  static const double data[] = {1, 2, 3, -4, 5, 6, 2, 0.5, -3, 8};
  static const double shuffled[] = {5, 6, 1, 2, 2, 0.5, 3, -4, -3, 8};
  WALK_TYPES(T, I)
  {
    const reduction *const all[] = {&sums, &means, &maxima, &minima, &products};
    const double expected[5][4] = {
        {4, -2, 4, 14.5}, {2, -1, 4.0 / 3, 14.5 / 3}, {3, 2, 5, 8}, {1, -4, -3, 0.5}, {3, -8, -30, 24}};
    for (int r = 0; r < 5; r++) {
      const double *e = expected[r];
      call sorted = begin(all[r]->sorted, T, I, 5, INTEGERS(0, 0, 2, 2, 2), 3, 2);
      give_data(&sorted, data);
      expect_ok(run(&sorted));
      const double empty = all[r] == &products ? 1 : 0;
      /* Thirds: the quotient is rounded to the accumulator first, which never shows in 16 bits. */
      if (all[r] == &means && T == SHEAF_F32) {
        expect_numbers(sorted.out, 2, -1, 0, 0, (double)(4.0f / 3.0f), (double)(14.5f / 3.0f));
      } else {
        expect_numbers(sorted.out, e[0], e[1], empty, empty, e[2], e[3]);
      }
      call unsorted = begin(all[r]->unsorted, T, I, 5, INTEGERS(2, 0, 2, 0, 2), 3, 2);
      give_data(&unsorted, shuffled);
      expect_ok(run(&unsorted));
      assert_memory_equal(unsorted.out->data, sorted.out->data, (size_t)sheaf_dtype_row_bytes(T, 6));
      if (all[r] == &maxima) {
        expect_integers(sorted.arg, 1, 0, -1, -1, 2, 4);
        expect_integers(unsorted.arg, 3, 1, -1, -1, 0, 4);
      }
    }
  }
}

static void test_empty_segment_is_neutral_by_default(void **state)
{
  (void)state;
  const reduction *const all[] = {&sums, &means, &maxima, &minima, &products};
  WALK_TYPES(T, I)
  {
    for (int r = 0; r < 5; r++) {
      for (int unsorted = 0; unsorted <= 1; unsorted++) {
        call c = begin(unsorted ? all[r]->unsorted : all[r]->sorted, T, I, 1, INTEGERS(1), 3, 1);
        give_data(&c, NUMBERS(5));
        expect_ok(run(&c));
        const double empty = all[r] == &products ? 1 : 0;
        expect_numbers(c.out, empty, 5, empty);
        if (is_extreme(c.desc.kind)) {
          expect_integers(c.arg, -1, 0, -1);
        }
      }
    }
  }
}

static void test_empty_segment_can_be_the_identity(void **state)
{
  (void)state;
  const reduction *const all[] = {&sums, &means, &maxima, &minima, &products};
  const double identity[] = {0, NAN, -INFINITY, INFINITY, 1};
  WALK_TYPES(T, I)
  {
    for (int r = 0; r < 5; r++) {
      for (int unsorted = 0; unsorted <= 1; unsorted++) {
        call c = begin(unsorted ? all[r]->unsorted : all[r]->sorted, T, I, 1, INTEGERS(1), 3, 1);
        c.desc.empty = SHEAF_EMPTY_IDENTITY;
        give_data(&c, NUMBERS(5));
        expect_ok(run(&c));
        expect_numbers(c.out, identity[r], 5, identity[r]);
      }
    }
  }
}

static void test_bad_ids_are_skipped_and_reported(void **state)
{
  (void)state;
  const reduction *const all[] = {&sums, &means, &maxima, &minima, &products};
  const double expected[] = {8, 4, 6, 2, 12};
  WALK_TYPES(T, I)
  {
    for (int r = 0; r < 5; r++) {
      call sorted = begin(all[r]->sorted, T, I, 5, INTEGERS(-7, -1, 0, 0, 1), 1, 1);
      give_data(&sorted, NUMBERS(NAN, NAN, 2, 6, NAN));
      expect_ok(run(&sorted));
      expect_numbers(sorted.out, expected[r]);
      expect_report(&sorted.report, 3, 0, -7);
      call unsorted = begin(all[r]->unsorted, T, I, 5, INTEGERS(0, 1, -1, 0, INT32_MAX), 1, 1);
      give_data(&unsorted, NUMBERS(2, NAN, NAN, 6, NAN));
      expect_ok(run(&unsorted));
      expect_numbers(unsorted.out, expected[r]);
      expect_report(&unsorted.report, 3, 1, 1);
    }
  }
}

static void test_extremes_take_the_first_nan_and_the_first_of_equals(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    for (int unsorted = 0; unsorted <= 1; unsorted++) {
      call max = begin(unsorted ? SHEAF_UNSORTED_SEGMENT_MAX : SHEAF_SEGMENT_MAX, T, I, 4, INTEGERS(0, 0, 0, 0), 1, 4);
      give_data(&max, NUMBERS(1, -0.0, 0.0, 2, NAN, 0.0, -0.0, 2, INFINITY, -1, -1, 1, NAN, -1, -1, 2));
      call min = max;
      expect_ok(run(&max));
      expect_numbers(max.out, NAN, -0.0, 0.0, 2);
      expect_integers(max.arg, 1, 0, 0, 0);
      min.desc.kind = unsorted ? SHEAF_UNSORTED_SEGMENT_MIN : SHEAF_SEGMENT_MIN;
      expect_ok(run(&min));
      expect_numbers(min.out, NAN, -1, -1, 1);
      expect_integers(min.arg, 1, 2, 2, 2);
    }
  }
}

static void test_extremes_copy_bits(void **state)
{
  (void)state;
  static const uint64_t patterns[4][2] = {
      {0x7F800001, 0xFFC12345}, {0x7FF0000000000001, 0xFFF8123456789ABC}, {0x7C01, 0xFE45}, {0x7F81, 0xFFC3}};
  static const sheaf_segment_kind kinds[] = {SHEAF_SEGMENT_MAX, SHEAF_SEGMENT_MIN, SHEAF_UNSORTED_SEGMENT_MAX,
                                             SHEAF_UNSORTED_SEGMENT_MIN};
  for (int t = 0; t < 4; t++) {
    for (int k = 0; k < 4; k++) {
      call c = begin(kinds[k], tiny_elements[t], SHEAF_I64, 1, INTEGERS(0), 1, 2);
      give_data(&c, NULL);
      const size_t bytes = (size_t)sheaf_dtype_row_bytes(tiny_elements[t], 1);
      memcpy(c.data->data, &patterns[t][0], bytes);
      memcpy(c.data->data + bytes, &patterns[t][1], bytes);
      expect_ok(run(&c));
      assert_memory_equal(c.out->data, c.data->data, 2 * bytes);
    }
  }
}

static void test_product_follows_ieee(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = begin(SHEAF_SEGMENT_PROD, T, I, 2, INTEGERS(0, 0), 1, 4);
    give_data(&c, NUMBERS(-0.0, INFINITY, INFINITY, NAN, 3, 0, -2, 0));
    expect_ok(run(&c));
    expect_numbers(c.out, -0.0, NAN, -INFINITY, NAN);
  }
}

static void test_sum_that_comes_out_zero_is_positive(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    const sheaf_segment_kind kinds[] = {SHEAF_SEGMENT_SUM, SHEAF_SEGMENT_MEAN, SHEAF_UNSORTED_SEGMENT_SUM,
                                        SHEAF_UNSORTED_SEGMENT_MEAN};
    for (int k = 0; k < 4; k++) {
      call c = begin(kinds[k], T, I, 3, INTEGERS(0, 1, 1), 2, 1);
      give_data(&c, NUMBERS(-0.0, 3, -3));
      expect_ok(run(&c));
      expect_numbers(c.out, 0, 0);
    }
  }
}

/* Sums by sixteens: the second sixteen are 16 before they meet the large term. Products likewise. */
static void test_sum_and_product_are_trees_of_sixteens(void **state)
{
  (void)state;
  int64_t ids[32] = {0};
  double terms[32];
  double factors[32];
  for (int k = 0; k < 32; k++) {
    terms[k] = k == 0 ? 0x1p24 : 1.0;
    factors[k] = k == 0 ? 0x1p-149 : k == 1 ? 0.5 : k >= 16 && k < 18 ? 0x1p100 : 1.0;
  }
  for (int unsorted = 0; unsorted <= 1; unsorted++) {
    call sum = begin(unsorted ? sums.unsorted : sums.sorted, SHEAF_F32, SHEAF_I64, 32, ids, 1, 1);
    give_data(&sum, terms);
    expect_ok(run(&sum));
    expect_numbers(sum.out, 0x1p24 + 16);
    call prod = begin(unsorted ? products.unsorted : products.sorted, SHEAF_F32, SHEAF_I64, 32, ids, 1, 1);
    give_data(&prod, factors); /* 2^-150 is a tie and rounds to 0; 2^200 is infinite: 0 * infinity */
    expect_ok(run(&prod));
    expect_numbers(prod.out, NAN);
  }
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

static void test_sum_and_mean_gradients_and_zero_rows_for_bad_ids(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    const sheaf_segment_kind kinds[] = {sums.sorted_backward, means.sorted_backward, sums.unsorted_backward,
                                        means.unsorted_backward};
    for (int k = 0; k < 4; k++) {
      const int64_t sorted_ids[] = {-1, 0, 0, 2, 3};
      const int64_t shuffled_ids[] = {-1, 0, 2, 0, 3};
      call c = begin(kinds[k], T, I, 5, k < 2 ? sorted_ids : shuffled_ids, 3, 2);
      give_grad_out(&c, NUMBERS(2, 4, NAN, NAN, 6, -0.0));
      expect_ok(run(&c));
      const double half = k % 2 == 0 ? 1 : 0.5;
      if (k < 2) {
        expect_numbers(c.data_grad, 0, 0, 2 * half, 4 * half, 2 * half, 4 * half, 6, -0.0, 0, 0);
      } else {
        expect_numbers(c.data_grad, 0, 0, 2 * half, 4 * half, 6, -0.0, 2 * half, 4 * half, 0, 0);
      }
      expect_report(&c.report, 2, 0, -1);
    }
  }
}

/* The gradient of (2 5 5 1) goes to row 1 of a maximum, of either sign; -0 and +0 tie. */
static void test_ties_go_to_the_first_or_are_split(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    for (int unsorted = 0; unsorted <= 1; unsorted++) {
      call c = begin(unsorted ? maxima.unsorted_backward : maxima.sorted_backward, T, I, 4, INTEGERS(0, 0, 0, 0), 1, 3);
      give_data(&c, NUMBERS(2, 0.0, NAN, 5, -0.0, 9, 5, -1, NAN, 1, -2, 9));
      give_grad_out(&c, NUMBERS(8, -8, 6));
      call split = c;
      expect_ok(run(&c));
      expect_numbers(c.data_grad, 0, -8, 6, 8, 0, 0, 0, 0, 0, 0, 0, 0);
      split.desc.ties = SHEAF_TIES_SPLIT;
      expect_ok(run(&split));
      expect_numbers(split.data_grad, 0, -4, 3, 4, -4, 0, 4, 0, 3, 0, 0, 0);
      call min = begin(unsorted ? minima.unsorted_backward : minima.sorted_backward, T, I, 3, INTEGERS(0, 0, 0), 1, 1);
      give_data(&min, NUMBERS(2, 1, 1));
      give_grad_out(&min, NUMBERS(-6));
      min.desc.ties = SHEAF_TIES_SPLIT;
      expect_ok(run(&min));
      expect_numbers(min.data_grad, 0, -3, -3);
    }
  }
}

static void test_extreme_gradient_follows_a_given_arg(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    const sheaf_segment_kind kinds[] = {maxima.sorted_backward, minima.sorted_backward, maxima.unsorted_backward,
                                        minima.unsorted_backward};
    for (int k = 0; k < 4; k++) {
      call c = begin(kinds[k], T, I, 3, INTEGERS(0, 0, 2), 3, 2);
      c.desc.arg_given = 1;
      give_grad_out(&c, NUMBERS(3, 4, NAN, NAN, 5, 6));
      c.args.arg = tiny_operand(tiny_int_matrix(I, 3, 2, INTEGERS(1, 0, -1, -1, 2, 2)));
      expect_ok(run(&c));
      expect_numbers(c.data_grad, 0, 4, 3, 0, 5, 6);
    }
  }
}

static void test_forward_and_backward_of_extremes_agree(void **state)
{
  (void)state;
  const double data[] = {1, NAN, -0.0, 4, NAN, 0.0, 4, 2, -1, -INFINITY, 3, -1};
  WALK_TYPES(T, I)
  {
    const reduction *const both[] = {&maxima, &minima};
    for (int r = 0; r < 2; r++) {
      call forward = begin(both[r]->sorted, T, I, 4, INTEGERS(0, 0, 0, 0), 1, 3);
      give_data(&forward, data);
      expect_ok(run(&forward));
      call backward = begin(both[r]->sorted_backward, T, I, 4, INTEGERS(0, 0, 0, 0), 1, 3);
      give_data(&backward, data);
      give_grad_out(&backward, NUMBERS(1, 1, 1));
      expect_ok(run(&backward));
      for (int64_t n = 0; n < 4; n++) {
        for (int64_t d = 0; d < 3; d++) {
          const double expected = tiny_integer(forward.arg, d) == n ? 1.0 : 0.0;
          assert_true(tiny_number(backward.data_grad, 3 * n + d) == expected);
        }
      }
    }
  }
}

/* Columns: no zero, one zero, one -0, two zeros. */
static void test_product_gradient_is_safe_for_zeros(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    for (int unsorted = 0; unsorted <= 1; unsorted++) {
      call c =
          begin(unsorted ? products.unsorted_backward : products.sorted_backward, T, I, 3, INTEGERS(0, 0, 0), 1, 4);
      give_data(&c, NUMBERS(2, 0, 5, 0, 4, 3, -0.0, -0.0, -1, 4, 7, 6));
      give_grad_out(&c, NUMBERS(3, 0.5, -1, 9));
      expect_ok(run(&c));
      expect_numbers(c.data_grad, -12, 6, 0, 0, -6, 0, -35, 0, 24, 0, 0, 0);
    }
  }
}

/* Two roundings: P / x first, then times g. */
static void test_product_gradient_divides_first(void **state)
{
  (void)state;
  call c = begin(SHEAF_SEGMENT_PROD_BACKWARD, SHEAF_F32, SHEAF_I32, 2, INTEGERS(0, 0), 1, 1);
  give_data(&c, NUMBERS(3, 1.1));
  give_grad_out(&c, NUMBERS(0.7));
  expect_ok(run(&c));
  const float x = 1.1f;
  const float product = 3.0f * x;
  expect_numbers(c.data_grad, (double)(0.7f * (product / 3.0f)), (double)(0.7f * (product / x)));
}

/* ---- Batches ----------------------------------------------------------------------------------------------------- */

static void test_batch_runs_independent_problems(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    for (int unsorted = 0; unsorted <= 1; unsorted++) {
      call c = {.desc = tiny_segment(unsorted ? maxima.unsorted : maxima.sorted, T, I),
                .args = SHEAF_SEGMENT_ARGS_INIT};
      c.desc.batch = 2;
      c.desc.rows = 3;
      c.desc.dim = 1;
      c.desc.segments = 2;
      c.args.ids = tiny_operand(tiny_int_matrix(I, 2, 3, INTEGERS(0, 0, 1, 1, 1, 2)));
      c.args.data = tiny_operand(tiny_reshape(tiny_matrix(T, 6, 1, NUMBERS(1, 2, 3, 4, 5, NAN)), 3, INTEGERS(2, 3, 1)));
      c.out = tiny_reshape(tiny_matrix(T, 4, 1, NULL), 3, INTEGERS(2, 2, 1));
      c.arg = tiny_reshape(tiny_int_matrix(I, 4, 1, NULL), 3, INTEGERS(2, 2, 1));
      c.args.out = tiny_operand(c.out);
      c.args.arg = tiny_operand(c.arg);
      c.args.report = &c.report;
      expect_ok(tiny_run_segment(&c.desc, &c.args));
      expect_numbers(c.out, 2, 3, 0, 5);
      expect_integers(c.arg, 1, 2, -1, 1); /* positions within the problem */
      expect_report(&c.report, 1, 5, 2);   /* positions over all problems */
    }
  }
}

#define UNIT(name) cmocka_unit_test_teardown(name, tiny_teardown)

int main(void)
{
  const struct CMUnitTest tests[] = {
      UNIT(test_segments_reduce_their_rows),
      UNIT(test_empty_segment_is_neutral_by_default),
      UNIT(test_empty_segment_can_be_the_identity),
      UNIT(test_bad_ids_are_skipped_and_reported),
      UNIT(test_extremes_take_the_first_nan_and_the_first_of_equals),
      UNIT(test_extremes_copy_bits),
      UNIT(test_product_follows_ieee),
      UNIT(test_sum_that_comes_out_zero_is_positive),
      UNIT(test_sum_and_product_are_trees_of_sixteens),
      UNIT(test_sum_and_mean_gradients_and_zero_rows_for_bad_ids),
      UNIT(test_ties_go_to_the_first_or_are_split),
      UNIT(test_extreme_gradient_follows_a_given_arg),
      UNIT(test_forward_and_backward_of_extremes_agree),
      UNIT(test_product_gradient_is_safe_for_zeros),
      UNIT(test_product_gradient_divides_first),
      UNIT(test_batch_runs_independent_problems),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
