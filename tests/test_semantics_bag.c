/* test_semantics_bag.c: the rules of bags, one by one, on problems small enough to work out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "support/small_table.h"

static void test_bags_reduce_their_rows_and_empty_ones_give_zero(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call sum = small_bags(SHEAF_BAG_SUM, T, I, 5, INTEGERS(0, 1, 2, 3, 3), 3, INTEGERS(0, 3, 3));
    expect_ok(small_run(&sum));
    expect_numbers(sum.out, 9, 12, 0, 0, -14, 16);
    small_call mean = small_bags(SHEAF_BAG_MEAN, T, I, 5, INTEGERS(0, 1, 2, 3, 3), 3, INTEGERS(0, 3, 3));
    expect_ok(small_run(&mean));
    expect_numbers(mean.out, 3, 4, 0, 0, -7, 8);
    small_call max = small_bags(SHEAF_BAG_MAX, T, I, 5, INTEGERS(0, 1, 2, 3, 3), 3, INTEGERS(0, 3, 3));
    expect_ok(small_run(&max));
    expect_numbers(max.out, 5, 6, 0, 0, -7, 8);
    expect_integers(max.arg, 2, 2, -1, -1, 3, 3);
  }
}

static void test_bag_max_arg_is_optional(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = small_bags(SHEAF_BAG_MAX, T, I, 2, INTEGERS(3, 0), 1, INTEGERS(0));
    c.out = tiny_matrix(T, 1, 2, NULL);
    c.args.out = tiny_operand(c.out);
    expect_ok(tiny_run_embedding(&c.desc, &c.args));
    expect_numbers(c.out, 1, 8);
  }
}

/* The padding row is NaN: it would show even when multiplied by zero. */
static void test_bag_skips_padding_and_bad_entries_and_does_not_count_them(void **state)
{
  (void)state;
  static const sheaf_embedding_kind kinds[] = {SHEAF_BAG_SUM, SHEAF_BAG_MEAN, SHEAF_BAG_MAX};
  static const double expected[3][2] = {{6, 8}, {3, 4}, {5, 6}};
  WALK_TYPES(T, I)
  {
    for (int k = 0; k < 3; k++) {
      small_call c = small_bags(kinds[k], T, I, 4, INTEGERS(3, 0, 9, 2), 1, INTEGERS(0));
      give_table(&c, 4, 2, NUMBERS(1, 2, 3, 4, 5, 6, NAN, NAN));
      c.desc.has_padding = 1;
      c.desc.padding_idx = 3;
      expect_ok(small_run(&c));
      expect_numbers(c.out, expected[k][0], expected[k][1]);
      expect_report(&c.report, 1, 2, 9);
    }
  }
}

static void test_bag_with_every_entry_skipped_is_zero(void **state)
{
  (void)state;
  static const sheaf_embedding_kind kinds[] = {SHEAF_BAG_SUM, SHEAF_BAG_MEAN, SHEAF_BAG_MAX};
  WALK_TYPES(T, I)
  {
    for (int k = 0; k < 3; k++) {
      small_call c = small_bags(kinds[k], T, I, 3, INTEGERS(0, -5, 0), 1, INTEGERS(0));
      c.desc.has_padding = 1;
      c.desc.padding_idx = 0;
      expect_ok(small_run(&c));
      expect_numbers(c.out, 0, 0);
      expect_report(&c.report, 1, 1, -5);
      if (kinds[k] == SHEAF_BAG_MAX) {
        expect_integers(c.arg, -1, -1);
      }
    }
  }
}

static void test_weighted_bags_skip_the_weights_of_skipped_entries(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call sum = small_bags(SHEAF_BAG_SUM, T, I, 4, INTEGERS(0, 3, 2, 77), 1, INTEGERS(0));
    sum.desc.has_padding = 1;
    sum.desc.padding_idx = 3;
    give_weights(&sum, NUMBERS(1, NAN, 3, INFINITY));
    small_call mean = sum;
    expect_ok(small_run(&sum));
    expect_numbers(sum.out, 16, 20);
    mean.desc.kind = SHEAF_BAG_MEAN;
    expect_ok(small_run(&mean));
    expect_numbers(mean.out, 4, 5);
  }
}

static void test_weighted_mean_of_weights_that_cancel_divides_by_zero(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = small_bags(SHEAF_BAG_MEAN, T, I, 6, INTEGERS(1, 0, 0, 0, 0, 1), 3, INTEGERS(0, 2, 4));
    give_weights(&c, NUMBERS(1, -1, 1, -1, 1, -1));
    expect_ok(small_run(&c));
    expect_numbers(c.out, INFINITY, INFINITY, NAN, NAN, -INFINITY, -INFINITY);
  }
}

static void test_bag_forms_agree(void **state)
{
  (void)state;
  static const sheaf_dtype offset_types[] = {SHEAF_DTYPE_NONE, SHEAF_I32, SHEAF_I64};
  WALK_TYPES(T, I)
  {
    for (int o = 0; o < 3; o++) {
      const sheaf_dtype offsets = o == 0 ? I : offset_types[o];
      small_call starts = small_bags(SHEAF_BAG_SUM, T, I, 4, INTEGERS(0, 1, 2, 3), 2, INTEGERS(0, 2));
      starts.desc.offset_dtype = offset_types[o];
      starts.args.offsets = tiny_operand(tiny_ints(offsets, 2, INTEGERS(0, 2)));
      expect_ok(small_run(&starts));
      expect_numbers(starts.out, 4, 6, -2, 14);
      small_call with_end = starts;
      with_end.desc.bag_form = SHEAF_BAGS_OFFSETS_END;
      with_end.args.offsets = tiny_operand(tiny_ints(offsets, 3, INTEGERS(0, 2, 4)));
      expect_ok(small_run(&with_end));
      expect_numbers(with_end.out, 4, 6, -2, 14);
    }
    small_call matrix = small_begin(SHEAF_BAG_SUM, T, I);
    matrix.desc.indices = 4;
    matrix.desc.bags = 2;
    matrix.desc.bag_form = SHEAF_BAGS_MATRIX;
    matrix.args.indices = tiny_operand(tiny_int_matrix(I, 2, 2, INTEGERS(0, 1, 2, 3)));
    expect_ok(small_run(&matrix));
    expect_numbers(matrix.out, 4, 6, -2, 14);
  }
}

static void test_bag_sum_follows_ieee_for_infinities_and_nan(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = small_bags(SHEAF_BAG_SUM, T, I, 4, INTEGERS(0, 1, 2, 3), 2, INTEGERS(0, 2));
    give_table(&c, 4, 3, NUMBERS(INFINITY, INFINITY, NAN, -INFINITY, 1, 2, INFINITY, -1, 3, 4, 0, NAN));
    small_call weighted = c;
    expect_ok(small_run(&c));
    expect_numbers(c.out, NAN, INFINITY, NAN, INFINITY, -1, NAN);
    give_weights(&weighted, NUMBERS(0, 1, 2, 1));
    expect_ok(small_run(&weighted));
    expect_numbers(weighted.out, NAN, NAN, NAN, INFINITY, -2, NAN);
  }
}

static void test_sum_that_comes_out_zero_is_positive(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = small_bags(SHEAF_BAG_SUM, T, I, 3, INTEGERS(0, 1, 2), 2, INTEGERS(0, 1));
    give_table(&c, 3, 2, NUMBERS(-0.0, -0.0, 3, -0.0, -3, -0.0));
    small_call weighted = c;
    small_call mean = c;
    expect_ok(small_run(&c));
    expect_numbers(c.out, 0, 0, 0, 0);
    give_weights(&weighted, NUMBERS(-1, 1, 1));
    expect_ok(small_run(&weighted));
    expect_numbers(weighted.out, 0, 0, 0, 0);
    mean.desc.kind = SHEAF_BAG_MEAN;
    expect_ok(small_run(&mean));
    expect_numbers(mean.out, 0, 0, 0, 0);
  }
}

/* Rows wider than a vector, in bags of more than sixteen: every block of sixteen is -0 but the first, which begins with +0. */
static void test_long_sum_of_negative_zeros_is_positive(void **state)
{
  enum { MOST_COLUMNS = 130, ENTRIES = 33 };
  static const int64_t columns[] = {40, 128, MOST_COLUMNS};
  static const int64_t indices[ENTRIES];
  double zeros[MOST_COLUMNS], expected[MOST_COLUMNS];
  (void)state;
  for (int i = 0; i < MOST_COLUMNS; i++) zeros[i] = -0.0, expected[i] = 0;
  for (int i = 0; i < 3; i++) WALK_TYPES(T, I)
    {
      small_call c = small_bags(SHEAF_BAG_SUM, T, I, ENTRIES, indices, 1, INTEGERS(0));
      give_table(&c, 1, columns[i], zeros);
      expect_ok(small_run(&c));
      tiny_expect_numbers(c.out, expected, columns[i], __FILE__, __LINE__);
    }
}

/* A product too small for the accumulator rounds to -0, and the sum is +0 all the same. */
static void test_weighted_sum_that_underflows_is_positive_zero(void **state)
{
  (void)state;
  static const sheaf_dtype types[] = {SHEAF_F32, SHEAF_F64, SHEAF_BF16};
  for (int t = 0; t < 3; t++) {
    const double tiny_value = types[t] == SHEAF_F64 ? 0x1p-600 : 0x1p-100;
    small_call c = small_bags(SHEAF_BAG_SUM, types[t], SHEAF_I32, 1, INTEGERS(0), 1, INTEGERS(0));
    give_table(&c, 1, 2, NUMBERS(tiny_value, -tiny_value));
    give_weights(&c, NUMBERS(-tiny_value));
    expect_ok(small_run(&c));
    expect_numbers(c.out, 0, 0);
  }
}

static void test_gradients_that_underflow_are_positive_zero(void **state)
{
  (void)state;
  static const sheaf_dtype types[] = {SHEAF_F32, SHEAF_F64, SHEAF_BF16};
  for (int t = 0; t < 3; t++) {
    const double tiny_value = types[t] == SHEAF_F64 ? 0x1p-600 : 0x1p-100;
    small_call c = small_bags(SHEAF_BAG_SUM_BACKWARD, types[t], SHEAF_I32, 1, INTEGERS(0), 1, INTEGERS(0));
    give_table(&c, 1, 1, NUMBERS(tiny_value));
    give_weights(&c, NUMBERS(tiny_value));
    give_grad_out(&c, 1, NUMBERS(-tiny_value));
    c.desc.grad_write = SHEAF_GRAD_OVERWRITE;
    expect_ok(small_run(&c));
    expect_numbers(c.table_grad, 0);
    expect_numbers(c.weights_grad, 0);
  }
}

static void test_denormals_are_kept(void **state)
{
  (void)state;
  static const double least[] = {0x1p-149, 0x1p-1074, 0x1p-24, 0x1p-133};
  for (int t = 0; t < 4; t++) {
    small_call c = small_bags(SHEAF_BAG_SUM, tiny_elements[t], SHEAF_I64, 3, INTEGERS(0, 0, 0), 1, INTEGERS(0));
    give_table(&c, 1, 2, NUMBERS(least[t], -least[t]));
    expect_ok(small_run(&c));
    expect_numbers(c.out, 3 * least[t], -3 * least[t]);
  }
}

/* Left to right every 1 would be lost in the large term; sixteen of them are added up first. */
static void test_sum_is_a_tree_of_sixteens(void **state)
{
  (void)state;
  for (int t = 0; t < 2; t++) {
    const double large = t == 0 ? 0x1p24 : 0x1p53;
    int64_t indices[32] = {0};
    double weights[32];
    for (int k = 0; k < 32; k++) {
      indices[k] = k == 0 ? 0 : 1;
      weights[k] = 1.0;
    }
    small_call c = small_bags(SHEAF_BAG_SUM, tiny_elements[t], SHEAF_I32, 32, indices, 1, INTEGERS(0));
    give_table(&c, 2, 1, NUMBERS(large, 1));
    small_call weighted = c;
    expect_ok(small_run(&c));
    expect_numbers(c.out, large + 16);
    give_weights(&weighted, weights);
    expect_ok(small_run(&weighted));
    expect_numbers(weighted.out, large + 16);
  }
}

static void test_skipped_entries_keep_their_place_in_the_sum(void **state)
{
  (void)state;
  for (int t = 0; t < 2; t++) {
    const double large = t == 0 ? 0x1p24 : 0x1p53;
    int64_t indices[18];
    for (int k = 0; k < 18; k++) {
      indices[k] = k == 0 ? 0 : k < 16 ? -1 : 1; /* closed up, the two ones would be lost */
    }
    small_call c = small_bags(SHEAF_BAG_SUM, tiny_elements[t], SHEAF_I32, 18, indices, 1, INTEGERS(0));
    give_table(&c, 2, 1, NUMBERS(large, 1));
    expect_ok(small_run(&c));
    expect_numbers(c.out, large + 2);
  }
}

static void test_max_takes_the_first_nan_and_the_first_of_equals(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = small_bags(SHEAF_BAG_MAX, T, I, 4, INTEGERS(0, 1, 2, 3), 1, INTEGERS(0));
    give_table(&c, 4, 4,
               NUMBERS(1, -0.0, 0.0, -INFINITY, NAN, 0.0, -0.0, -INFINITY, INFINITY, -1, -1, -INFINITY, NAN, -2, -2,
                       -INFINITY));
    expect_ok(small_run(&c));
    expect_numbers(c.out, NAN, -0.0, 0.0, -INFINITY);
    expect_integers(c.arg, 1, 0, 0, 0);
  }
}

#define UNIT(name) cmocka_unit_test_teardown(name, tiny_teardown)

int main(void)
{
  const struct CMUnitTest tests[] = {
      UNIT(test_bags_reduce_their_rows_and_empty_ones_give_zero),
      UNIT(test_bag_max_arg_is_optional),
      UNIT(test_bag_skips_padding_and_bad_entries_and_does_not_count_them),
      UNIT(test_bag_with_every_entry_skipped_is_zero),
      UNIT(test_weighted_bags_skip_the_weights_of_skipped_entries),
      UNIT(test_weighted_mean_of_weights_that_cancel_divides_by_zero),
      UNIT(test_bag_forms_agree),
      UNIT(test_bag_sum_follows_ieee_for_infinities_and_nan),
      UNIT(test_sum_that_comes_out_zero_is_positive),
      UNIT(test_long_sum_of_negative_zeros_is_positive),
      UNIT(test_weighted_sum_that_underflows_is_positive_zero),
      UNIT(test_gradients_that_underflow_are_positive_zero),
      UNIT(test_denormals_are_kept),
      UNIT(test_sum_is_a_tree_of_sixteens),
      UNIT(test_skipped_entries_keep_their_place_in_the_sum),
      UNIT(test_max_takes_the_first_nan_and_the_first_of_equals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
