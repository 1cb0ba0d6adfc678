/* test_semantics_lookup.c: the rules of lookups, one by one, on problems small enough to work out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "support/small_table.h"

static void test_lookup_copies_rows(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = small_begin(SHEAF_LOOKUP, T, I);
    give_indices(&c, 3, INTEGERS(2, 0, 2));
    expect_ok(small_run(&c));
    expect_numbers(c.out, 5, 6, 1, 2, 5, 6);
    expect_report(&c.report, 0, -1, 0);
  }
}

/* A NaN keeps its sign and payload, a signalling one stays so, and -0 keeps its sign. */
static void test_lookup_and_max_copy_bits(void **state)
{
  (void)state;
  static const uint64_t patterns[4][3] = {{0x7F800001, 0xFFC12345, 0x80000000},
                                          {0x7FF0000000000001, 0xFFF8123456789ABC, 0x8000000000000000},
                                          {0x7C01, 0xFE45, 0x8000},
                                          {0x7F81, 0xFFC3, 0x8000}};
  static const sheaf_embedding_kind kinds[] = {SHEAF_LOOKUP, SHEAF_BAG_MAX};
  for (int t = 0; t < 4; t++) {
    for (int k = 0; k < 2; k++) {
      small_call c = small_begin(kinds[k], tiny_elements[t], SHEAF_I64);
      give_table(&c, 1, 3, NUMBERS(0, 0, 0));
      const size_t bytes = (size_t)sheaf_dtype_row_bytes(tiny_elements[t], 1);
      for (size_t d = 0; d < 3; d++) {
        memcpy(c.table->data + d * bytes, &patterns[t][d], bytes);
      }
      give_indices(&c, 1, INTEGERS(0));
      if (kinds[k] == SHEAF_BAG_MAX) {
        give_offsets(&c, 1, INTEGERS(0));
      }
      expect_ok(small_run(&c));
      assert_memory_equal(c.out->data, c.table->data, 3 * bytes);
    }
  }
}

static void test_lookup_padding_is_zero_by_default(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = small_begin(SHEAF_LOOKUP, T, I);
    c.desc.has_padding = 1;
    c.desc.padding_idx = 3;
    give_indices(&c, 2, INTEGERS(3, 1));
    expect_ok(small_run(&c));
    expect_numbers(c.out, 0, 0, 3, 4);
    expect_report(&c.report, 0, -1, 0);
  }
}

static void test_lookup_padding_row_gives_the_stored_row(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = small_begin(SHEAF_LOOKUP, T, I);
    c.desc.has_padding = 1;
    c.desc.padding_idx = 3;
    c.desc.padding = SHEAF_PADDING_ROW;
    give_indices(&c, 2, INTEGERS(3, 1));
    expect_ok(small_run(&c));
    expect_numbers(c.out, -7, 8, 3, 4);
  }
}

static void test_lookup_bad_index_is_a_zero_row_and_reported(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = small_begin(SHEAF_LOOKUP, T, I);
    give_indices(&c, 5, INTEGERS(1, 4, -1, 0, INT32_MIN));
    expect_ok(small_run(&c));
    expect_numbers(c.out, 3, 4, 0, 0, 0, 0, 1, 2, 0, 0);
    expect_report(&c.report, 3, 1, 4);
  }
}

/* An i64 index whose low half looks good is bad all the same. */
static void test_wide_bad_index_is_not_truncated(void **state)
{
  (void)state;
  for (int t = 0; t < 4; t++) {
    small_call c = small_begin(SHEAF_LOOKUP, tiny_elements[t], SHEAF_I64);
    give_indices(&c, 3, INTEGERS((INT64_C(1) << 32) + 1, INT64_MIN + 1, INT64_MAX));
    expect_ok(small_run(&c));
    expect_numbers(c.out, 0, 0, 0, 0, 0, 0);
    expect_report(&c.report, 3, 0, (INT64_C(1) << 32) + 1);
  }
}

static void test_lookup_takes_indices_of_any_rank(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    for (int rank = 0; rank <= 2; rank++) {
      const int64_t count = rank == 0 ? 1 : 4;
      const int64_t shape[3] = {rank == 1 ? 4 : 2, 2, 2};
      small_call c = small_begin(SHEAF_LOOKUP, T, I);
      c.desc.indices = count;
      tiny *indices = tiny_reshape(tiny_ints(I, count, INTEGERS(2, 0, 1, 2)), rank, shape);
      const int64_t out_shape[3] = {rank == 0 ? 2 : shape[0], 2, 2};
      c.out = tiny_reshape(tiny_matrix(T, count, 2, NULL), rank + 1, out_shape);
      c.args.indices = tiny_operand(indices);
      c.args.out = tiny_operand(c.out);
      expect_ok(tiny_run_embedding(&c.desc, &c.args));
      if (rank == 0) {
        expect_numbers(c.out, 5, 6);
      } else {
        expect_numbers(c.out, 5, 6, 1, 2, 3, 4, 5, 6);
      }
    }
  }
}

#define UNIT(name) cmocka_unit_test_teardown(name, tiny_teardown)

int main(void)
{
  const struct CMUnitTest tests[] = {
      UNIT(test_lookup_copies_rows),
      UNIT(test_lookup_and_max_copy_bits),
      UNIT(test_lookup_padding_is_zero_by_default),
      UNIT(test_lookup_padding_row_gives_the_stored_row),
      UNIT(test_lookup_bad_index_is_a_zero_row_and_reported),
      UNIT(test_wide_bad_index_is_not_truncated),
      UNIT(test_lookup_takes_indices_of_any_rank),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
