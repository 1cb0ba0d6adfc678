/* test_oracles.c: the oracles themselves: their numbers by hand, and the bit oracle against the plain one. */
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
#include "oracle/plain_oracle.h"
#include "support/kernel_groups.h"
#include "support/problem_close.h"

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

static void test_every_half_widens_alike_in_both_oracles_and_comes_back(void **state)
{
  (void)state;
  for (unsigned bits = 0; bits <= 0xFFFF; bits++) {
    const float f16 = bit_from_f16((uint16_t)bits);
    const float bf16 = bit_from_bf16((uint16_t)bits);
    assert_true((double)f16 == plain_half(0, bits) || (isnan(f16) && isnan(plain_half(0, bits))));
    assert_true((double)bf16 == plain_half(1, bits) || (isnan(bf16) && isnan(plain_half(1, bits))));
    assert_true(isnan(f16) ? isnan(bit_from_f16(bit_to_f16(f16))) : bit_to_f16(f16) == bits);
    assert_true(isnan(bf16) ? isnan(bit_from_bf16(bit_to_bf16(bf16))) : bit_to_bf16(bf16) == bits);
  }
}

/* Between two neighbours a value goes to the nearer, half-way to the even one. */
static void test_narrowing_rounds_to_nearest_even(void **state)
{
  (void)state;
  for (int is_bf16 = 0; is_bf16 <= 1; is_bf16++) {
    const unsigned infinite = is_bf16 ? 0x7F80 : 0x7C00;
    for (unsigned bits = 0; bits + 1 < infinite; bits++) {
      const double low = plain_half(is_bf16, bits);
      const double high = plain_half(is_bf16, bits + 1);
      const float middle = (float)((low + high) / 2);
      const unsigned even = bits % 2 == 0 ? bits : bits + 1;
      const float below = nextafterf(middle, 0.0f);
      const float above = nextafterf(middle, INFINITY);
      assert_int_equal(is_bf16 ? bit_to_bf16(middle) : bit_to_f16(middle), even);
      assert_int_equal(is_bf16 ? bit_to_bf16(below) : bit_to_f16(below), bits);
      assert_int_equal(is_bf16 ? bit_to_bf16(above) : bit_to_f16(above), bits + 1);
      assert_int_equal(is_bf16 ? bit_to_bf16(-middle) : bit_to_f16(-middle), even | 0x8000);
    }
  }
  assert_int_equal(bit_to_f16(65519.0f), 0x7BFF);
  assert_int_equal(bit_to_f16(65520.0f), 0x7C00);
  assert_int_equal(bit_to_f16(0x1p-25f), 0);
  assert_int_equal(bit_to_f16(nextafterf(0x1p-25f, 1.0f)), 1);
}

/* ---- The canonical order ----------------------------------------------------------------------------------------- */

static void test_seventeen_terms_are_a_sum_of_sixteen_and_one(void **state)
{
  (void)state;
  double terms[17];
  for (int k = 0; k < 17; k++) {
    terms[k] = k == 0 ? 0x1p24 : 1.0;
  }
  /* Left to right in f32 every 1 would be lost, and so it is within the first sixteen. */
  assert_true(bit_sum(false, terms, NULL, NULL, 16) == 0x1p24);
  assert_true(bit_sum(false, terms, NULL, NULL, 17) == 0x1p24);
  terms[0] = 1.0;
  terms[16] = 0x1p24;
  assert_true(bit_sum(false, terms, NULL, NULL, 17) == 0x1p24 + 16.0);
  double many[32];
  for (int k = 0; k < 32; k++) {
    many[k] = k == 0 ? 0x1p24 : 1.0;
  }
  /* The second sixteen are 16 before they meet the large one. */
  assert_true(bit_sum(false, many, NULL, NULL, 32) == 0x1p24 + 16.0);
}

static void test_skipped_terms_keep_their_place(void **state)
{
  (void)state;
  /* Closed up, each of the ones would be lost in the large one; at places 16 and 17 they are 2 before they meet it. */
  double apart[18] = {0x1p24};
  bool there[18] = {true};
  apart[16] = apart[17] = 1.0;
  there[16] = there[17] = true;
  assert_true(bit_sum(false, apart, NULL, there, 18) == 0x1p24 + 2.0);
}

static void test_zero_sums_and_dots_are_positive(void **state)
{
  (void)state;
  const double tiny = 0x1p-100;
  const double negative = -0x1p-100;
  const double zero = -0.0;
  assert_false(signbit(bit_sum(false, &zero, NULL, NULL, 1)));
  assert_false(signbit(bit_sum(false, &tiny, &negative, NULL, 1)));
  assert_false(signbit(bit_dot(false, &tiny, &negative, 1)));
  assert_false(signbit(bit_sum(false, NULL, NULL, NULL, 0)));
}

static void test_dot_adds_sixteen_lanes_by_halves(void **state)
{
  (void)state;
  double a[24];
  double ones[24];
  for (int d = 0; d < 24; d++) {
    a[d] = d == 0 ? 0x1p24 : 1.0;
    ones[d] = 1.0;
  }
  /* Lanes: 0 holds 2^24 + 1 = 2^24, 1 .. 7 hold 2, 8 .. 15 hold 1. By halves: 2^24 + 1 = 2^24, seven of 3; then
   * 2^24 + 3 = 2^24 + 4 (even), three of 6; then 2^24 + 10, one of 12; then 2^24 + 22. */
  assert_true(bit_dot(false, a, ones, 24) == 0x1p24 + 22.0);
}

/* ---- One oracle against the other -------------------------------------------------------------------------------- */

/* Every op there is, without asking the library. */
static int64_t all_groups(kernel_group *groups)
{
  static const sheaf_dtype elements[] = {SHEAF_F32, SHEAF_F64, SHEAF_F16, SHEAF_BF16, SHEAF_INT8, SHEAF_INT4};
  int64_t count = 0;
  for (int category = 0; category <= 1; category++) {
    for (int kind = 0; kind < (category == SHEAF_CATEGORY_EMBEDDING ? 8 : 20); kind++) {
      for (int i = 0; i < 12; i++) {
        const bool quantised = i >= 8;
        if (quantised &&
            (category != SHEAF_CATEGORY_EMBEDDING || problem_is_backward(SHEAF_CATEGORY_EMBEDDING, kind))) {
          continue;
        }
        groups[count] = (kernel_group){.category = (sheaf_category)category, .kind = kind, .number = count};
        groups[count].element = elements[i / 2];
        groups[count].index_element = i % 2 == 0 ? SHEAF_I32 : SHEAF_I64;
        snprintf(groups[count].name, sizeof groups[count].name, "category %d kind %d dtype %d index %d", category, kind,
                 (int)groups[count].element, (int)groups[count].index_element);
        count++;
      }
    }
  }
  return count;
}

static void test_both_oracles_agree_on_every_op(void **state)
{
  (void)state;
  static kernel_group groups[MOST_GROUPS];
  const int64_t count = all_groups(groups);
  assert_int_equal(count, 240);
  for (int64_t g = 0; g < count; g++) {
    for (int64_t i = 0; i < 12; i++) {
      problem_spec spec = {.count = 1 + 31 * i, .dim = 1 + 3 * i % 19, .rows = 1 + 4 * i, .bags = 1 + 2 * i};
      choose_options(&groups[g], &spec, i);
      choose_tame(&spec);
      problem *p = problem_make(&spec);
      problem_outputs *outputs = problem_outputs_make(p);
      problem_expect(p, outputs);
      assert_true(problem_outputs_close(p, outputs, groups[g].name));
      problem_outputs_free(outputs);
      problem_free(p);
    }
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_half_widens_alike_in_both_oracles_and_comes_back),
      cmocka_unit_test(test_narrowing_rounds_to_nearest_even),
      cmocka_unit_test(test_seventeen_terms_are_a_sum_of_sixteen_and_one),
      cmocka_unit_test(test_skipped_terms_keep_their_place),
      cmocka_unit_test(test_zero_sums_and_dots_are_positive),
      cmocka_unit_test(test_dot_adds_sixteen_lanes_by_halves),
      cmocka_unit_test(test_both_oracles_agree_on_every_op),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
