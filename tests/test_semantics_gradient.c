/* test_semantics_gradient.c: the rules of gradients of lookups and bags, on problems small enough to do by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "support/small_table.h"

static small_call lookup_backward(sheaf_dtype dtype, sheaf_dtype index_dtype)
{
  small_call c = small_begin(SHEAF_LOOKUP_BACKWARD, dtype, index_dtype);
  give_indices(&c, 4, INTEGERS(1, 1, 0, 9));
  give_grad_out(&c, 4, NUMBERS(1, 2, 3, 4, 5, 6, NAN, NAN));
  return c;
}

static void test_lookup_gradient_is_added_and_leaves_other_rows(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = lookup_backward(T, I);
    expect_ok(small_run(&c));
    expect_numbers(c.table_grad, 12, 13, 11, 13, 7, 7, 7, 7);
    expect_report(&c.report, 1, 3, 9);
  }
}

static void test_overwritten_gradient_writes_untouched_rows_as_zero(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = lookup_backward(T, I);
    c.desc.grad_write = SHEAF_GRAD_OVERWRITE;
    expect_ok(small_run(&c));
    expect_numbers(c.table_grad, 5, 6, 4, 6, 0, 0, 0, 0);
  }
}

static void test_touched_gradient_leaves_other_rows_alone(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = lookup_backward(T, I);
    c.desc.grad_write = SHEAF_GRAD_TOUCHED;
    expect_ok(small_run(&c));
    expect_numbers(c.table_grad, 5, 6, 4, 6, 7, 7, 7, 7);
  }
}

static void test_padding_gets_no_gradient(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = lookup_backward(T, I);
    c.desc.has_padding = 1;
    c.desc.padding_idx = 1;
    small_call overwrite = c;
    expect_ok(small_run(&c));
    expect_numbers(c.table_grad, 12, 13, 7, 7, 7, 7, 7, 7);
    overwrite.desc.grad_write = SHEAF_GRAD_OVERWRITE;
    expect_ok(small_run(&overwrite));
    expect_numbers(overwrite.table_grad, 5, 6, 0, 0, 0, 0, 0, 0);
  }
}

/* One addition per cell: two ones are 2 before they meet what the gradient holds. */
static void test_gradient_is_added_once_per_cell(void **state)
{
  (void)state;
  for (int t = 0; t < 2; t++) {
    const double large = t == 0 ? 0x1p24 : 0x1p53;
    small_call c = small_begin(SHEAF_LOOKUP_BACKWARD, tiny_elements[t], SHEAF_I32);
    give_table(&c, 1, 1, NUMBERS(0));
    give_indices(&c, 2, INTEGERS(0, 0));
    give_grad_out(&c, 2, NUMBERS(1, 1));
    c.table_grad = tiny_matrix(tiny_elements[t], 1, 1, NUMBERS(large));
    expect_ok(small_run(&c));
    expect_numbers(c.table_grad, large + 2);
  }
}

static void test_frequency_divides_a_rows_gradient_by_its_occurrences(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = lookup_backward(T, I);
    c.desc.scale_grad_by_freq = 1;
    expect_ok(small_run(&c));
    expect_numbers(c.table_grad, 12, 13, 9, 10, 7, 7, 7, 7);
    small_call sum = small_bags(SHEAF_BAG_SUM_BACKWARD, T, I, 3, INTEGERS(1, 0, 1), 2, INTEGERS(0, 2));
    sum.desc.scale_grad_by_freq = 1;
    sum.desc.grad_write = SHEAF_GRAD_OVERWRITE;
    give_grad_out(&sum, 2, NUMBERS(1, 10, 3, 20));
    small_call weighted = sum;
    small_call mean = sum;
    expect_ok(small_run(&sum));
    expect_numbers(sum.table_grad, 1, 10, 2, 15, 0, 0, 0, 0);
    give_weights(&weighted, NUMBERS(2, 3, 4));
    expect_ok(small_run(&weighted));
    expect_numbers(weighted.table_grad, 3, 30, 7, 50, 0, 0, 0, 0);
    mean.desc.kind = SHEAF_BAG_MEAN_BACKWARD;
    expect_ok(small_run(&mean));
    expect_numbers(mean.table_grad, 0.5, 5, 1.75, 12.5, 0, 0, 0, 0);
  }
}

static void test_bag_sum_gradients_of_table_and_weights(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = small_bags(SHEAF_BAG_SUM_BACKWARD, T, I, 5, INTEGERS(1, 0, 1, -3, 2), 2, INTEGERS(0, 2));
    c.desc.grad_write = SHEAF_GRAD_OVERWRITE;
    c.desc.has_padding = 1;
    c.desc.padding_idx = 2;
    give_grad_out(&c, 2, NUMBERS(1, 10, 2, 20));
    give_weights(&c, NUMBERS(2, 3, 4, NAN, NAN));
    expect_ok(small_run(&c));
    expect_numbers(c.table_grad, 3, 30, 10, 100, 0, 0, 0, 0);
    expect_numbers(c.weights_grad, 43, 21, 86, 0, 0);
    expect_report(&c.report, 1, 3, -3);
  }
}

static void test_bag_mean_gradient_without_weights(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = small_bags(SHEAF_BAG_MEAN_BACKWARD, T, I, 4, INTEGERS(1, 44, 0, 1), 3, INTEGERS(0, 3, 3));
    give_grad_out(&c, 3, NUMBERS(2, 4, NAN, NAN, 6, 8));
    expect_ok(small_run(&c));
    expect_numbers(c.table_grad, 8, 9, 14, 17, 7, 7, 7, 7);
  }
}

/* out is (4, 5): the difference W - out is (-3, -3) and (1, 1). */
static void test_weighted_mean_gradients_of_table_and_weights(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = small_bags(SHEAF_BAG_MEAN_BACKWARD, T, I, 2, INTEGERS(0, 2), 1, INTEGERS(0));
    c.desc.grad_write = SHEAF_GRAD_OVERWRITE;
    give_grad_out(&c, 1, NUMBERS(4, 8));
    give_weights(&c, NUMBERS(1, 3));
    c.args.out = tiny_operand(tiny_matrix(T, 1, 2, NUMBERS(4, 5)));
    expect_ok(small_run(&c));
    expect_numbers(c.table_grad, 1, 2, 0, 0, 3, 6, 0, 0);
    expect_numbers(c.weights_grad, -9, 3);
  }
}

static void test_weights_gradient_alone_needs_no_table_gradient(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = small_bags(SHEAF_BAG_SUM_BACKWARD, T, I, 2, INTEGERS(0, 2), 1, INTEGERS(0));
    give_grad_out(&c, 1, NUMBERS(1, 1));
    give_weights(&c, NUMBERS(1, 3));
    c.weights_grad = tiny_vector(T, 2, NULL);
    c.args.weights_grad = tiny_operand(c.weights_grad);
    expect_ok(tiny_run_embedding(&c.desc, &c.args));
    expect_numbers(c.weights_grad, 3, 11);
  }
}

static void test_max_gradient_goes_to_arg_and_minus_one_is_silent(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = small_begin(SHEAF_BAG_MAX_BACKWARD, T, I);
    c.desc.bags = 3;
    give_grad_out(&c, 3, NUMBERS(1, 2, NAN, 4, 5, NAN));
    c.args.arg = tiny_operand(tiny_int_matrix(I, 3, 2, INTEGERS(0, 1, -1, 0, 0, 9)));
    expect_ok(small_run(&c));
    expect_numbers(c.table_grad, 13, 11, 7, 9, 7, 7, 7, 7);
    expect_report(&c.report, 1, 5, 9);
  }
}

#define UNIT(name) cmocka_unit_test_teardown(name, tiny_teardown)

int main(void)
{
  const struct CMUnitTest tests[] = {
      UNIT(test_lookup_gradient_is_added_and_leaves_other_rows),
      UNIT(test_overwritten_gradient_writes_untouched_rows_as_zero),
      UNIT(test_touched_gradient_leaves_other_rows_alone),
      UNIT(test_padding_gets_no_gradient),
      UNIT(test_gradient_is_added_once_per_cell),
      UNIT(test_frequency_divides_a_rows_gradient_by_its_occurrences),
      UNIT(test_bag_sum_gradients_of_table_and_weights),
      UNIT(test_bag_mean_gradient_without_weights),
      UNIT(test_weighted_mean_gradients_of_table_and_weights),
      UNIT(test_weights_gradient_alone_needs_no_table_gradient),
      UNIT(test_max_gradient_goes_to_arg_and_minus_one_is_silent),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
