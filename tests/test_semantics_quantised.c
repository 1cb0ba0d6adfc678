/* test_semantics_quantised.c: quantised rows, packed, unpacked and read, on rows small enough to work out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "support/tiny.h"

static const double int8_rows[] = {0, 255, 3, 100, 20, 20, 20, 20};
static const int64_t int8_bytes[] = {0, 255, 3, 100, 0, 0, 128, 63, 0, 0, 0,   0,   /* scale 1, bias 0 */
                                     0, 0,   0, 0,   0, 0, 0,   0,  0, 0, 160, 65}; /* scale 0, bias 20 */
static const double int4_rows[] = {0, 15, 3, 7, 9, -2, -2, -2, -2, -2};
static const int64_t int4_bytes[] = {0xF0, 0x73, 0x09, 0x00, 0x3C, 0x00, 0x00,  /* scale 1, bias 0 */
                                     0x00, 0x00, 0x00, 0x00, 0x3C, 0x00, 0xC0}; /* scale 0 is taken as 1, bias -2 */

static void test_rows_are_packed_and_unpacked(void **state)
{
  (void)state;
  const sheaf_operand eight = tiny_operand(tiny_matrix(SHEAF_F32, 2, 4, int8_rows));
  tiny *packed8 = tiny_int_matrix(SHEAF_U8, 2, 12, NULL);
  tiny *back8 = tiny_matrix(SHEAF_F32, 2, 4, NULL);
  const sheaf_operand into8 = tiny_operand(packed8);
  const sheaf_operand out8 = tiny_operand(back8);
  assert_int_equal(sheaf_dtype_row_bytes(SHEAF_INT8, 4), 12);
  expect_ok(sheaf_quantize_rows(SHEAF_INT8, &eight, &into8));
  tiny_expect_integers(packed8, int8_bytes, 24, __FILE__, __LINE__);
  expect_ok(sheaf_dequantize_rows(SHEAF_INT8, &into8, &out8));
  tiny_expect_numbers(back8, int8_rows, 8, __FILE__, __LINE__);

  const sheaf_operand four = tiny_operand(tiny_matrix(SHEAF_F32, 2, 5, int4_rows));
  tiny *packed4 = tiny_int_matrix(SHEAF_U8, 2, 7, NULL);
  tiny *back4 = tiny_matrix(SHEAF_F32, 2, 5, NULL);
  const sheaf_operand into4 = tiny_operand(packed4);
  const sheaf_operand out4 = tiny_operand(back4);
  assert_int_equal(sheaf_dtype_row_bytes(SHEAF_INT4, 5), 7);
  expect_ok(sheaf_quantize_rows(SHEAF_INT4, &four, &into4));
  tiny_expect_integers(packed4, int4_bytes, 14, __FILE__, __LINE__);
  expect_ok(sheaf_dequantize_rows(SHEAF_INT4, &into4, &out4));
  tiny_expect_numbers(back4, int4_rows, 10, __FILE__, __LINE__);
}

static void test_row_with_nan_or_infinity_cannot_be_quantised(void **state)
{
  (void)state;
  static const double values[] = {NAN, INFINITY, -INFINITY};
  for (int i = 0; i < 3; i++) {
    for (int four = 0; four <= 1; four++) {
      const sheaf_dtype dtype = four ? SHEAF_INT4 : SHEAF_INT8;
      const sheaf_operand from = tiny_operand(tiny_matrix(SHEAF_F32, 3, 2, NUMBERS(1, 2, 3, 4, 5, values[i])));
      tiny *packed = tiny_int_matrix(SHEAF_U8, 3, sheaf_dtype_row_bytes(dtype, 2), NULL);
      const sheaf_operand into = tiny_operand(packed);
      expect_status(sheaf_quantize_rows(dtype, &from, &into), SHEAF_INVALID_PROBLEM);
      assert_int_equal(sheaf_last_error_info().position, 2);
      assert_non_null(strstr(sheaf_last_error(), "2"));
      expect_untouched(packed);
    }
  }
}

static void test_quantised_lookups_and_bags(void **state)
{
  (void)state;
  static const sheaf_dtype out_types[] = {SHEAF_DTYPE_NONE, SHEAF_F32, SHEAF_F16, SHEAF_BF16};
  static const sheaf_embedding_kind kinds[] = {SHEAF_LOOKUP, SHEAF_BAG_SUM, SHEAF_BAG_MEAN, SHEAF_BAG_MAX};
  for (int o = 0; o < 4; o++) {
    for (int k = 0; k < 4; k++) {
      sheaf_embedding_desc desc = tiny_embedding(kinds[k], SHEAF_INT4, SHEAF_I32);
      desc.out_dtype = out_types[o];
      desc.rows = 2;
      desc.dim = 5;
      desc.indices = 3;
      desc.bags = kinds[k] == SHEAF_LOOKUP ? 0 : 1;
      desc.weighted = kinds[k] == SHEAF_BAG_SUM || kinds[k] == SHEAF_BAG_MEAN;
      sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
      args.table = tiny_operand(tiny_int_matrix(SHEAF_U8, 2, 7, int4_bytes));
      args.indices = tiny_operand(tiny_ints(SHEAF_I32, 3, INTEGERS(1, 0, 0)));
      if (desc.bags > 0) {
        args.offsets = tiny_operand(tiny_ints(SHEAF_I32, 1, INTEGERS(0)));
      }
      if (desc.weighted) {
        args.weights = tiny_operand(tiny_vector(SHEAF_F32, 3, NUMBERS(2, 1, 1)));
      }
      tiny *out = tiny_matrix(o == 0 ? SHEAF_F32 : out_types[o], kinds[k] == SHEAF_LOOKUP ? 3 : 1, 5, NULL);
      args.out = tiny_operand(out);
      expect_ok(tiny_run_embedding(&desc, &args));
      switch (kinds[k]) {
      case SHEAF_LOOKUP:
        expect_numbers(out, -2, -2, -2, -2, -2, 0, 15, 3, 7, 9, 0, 15, 3, 7, 9);
        break;
      case SHEAF_BAG_SUM:
        expect_numbers(out, -4, 26, 2, 10, 14);
        break;
      case SHEAF_BAG_MEAN:
        expect_numbers(out, -1, 6.5, 0.5, 2.5, 3.5);
        break;
      default:
        expect_numbers(out, 0, 15, 3, 7, 9);
      }
    }
  }
}

#define UNIT(name) cmocka_unit_test_teardown(name, tiny_teardown)

int main(void)
{
  const struct CMUnitTest tests[] = {
      UNIT(test_rows_are_packed_and_unpacked),
      UNIT(test_row_with_nan_or_infinity_cannot_be_quantised),
      UNIT(test_quantised_lookups_and_bags),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
