/* test_semantics_part.c: tables that are a part of a larger one, and problems that are one of a batch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "support/small_table.h"

/* ---- A part of a larger table ------------------------------------------------------------------------------------ */

static small_call part_of_twenty(sheaf_embedding_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype, int64_t count,
                                 const int64_t *indices)
{
  small_call c = small_bags(kind, dtype, index_dtype, count, indices, 1, INTEGERS(0));
  c.desc.row_begin = 10;
  c.desc.total_rows = 20;
  return c;
}

static void test_rows_held_elsewhere_are_skipped_and_not_reported(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = small_begin(SHEAF_LOOKUP, T, I);
    c.desc.row_begin = 10;
    c.desc.total_rows = 20;
    give_indices(&c, 6, INTEGERS(10, 3, 13, 14, 20, 19));
    expect_ok(small_run(&c));
    expect_numbers(c.out, 1, 2, 0, 0, -7, 8, 0, 0, 0, 0, 0, 0);
    expect_report(&c.report, 1, 4, 20);
  }
}

static void test_rows_held_elsewhere_are_counted_by_mean(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = part_of_twenty(SHEAF_BAG_MEAN, T, I, 4, INTEGERS(12, 3, 25, 15));
    c.desc.has_padding = 1;
    c.desc.padding_idx = 15; /* padding is checked on the global index */
    small_call weighted = c;
    expect_ok(small_run(&c));
    expect_numbers(c.out, 2.5, 3);
    give_weights(&weighted, NUMBERS(2, 6, NAN, NAN));
    expect_ok(small_run(&weighted));
    expect_numbers(weighted.out, 1.25, 1.5);
  }
}

static void test_max_over_a_part_gives_global_rows(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = part_of_twenty(SHEAF_BAG_MAX, T, I, 4, INTEGERS(3, 13, 10, 12));
    expect_ok(small_run(&c));
    expect_numbers(c.out, 5, 8);
    expect_integers(c.arg, 12, 13);
    small_call none = part_of_twenty(SHEAF_BAG_MAX, T, I, 2, INTEGERS(3, 19));
    expect_ok(small_run(&none));
    expect_numbers(none.out, 0, 0);
    expect_integers(none.arg, -1, -1);
  }
}

static void test_gradients_of_a_part_go_to_its_own_rows(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = part_of_twenty(SHEAF_BAG_MEAN_BACKWARD, T, I, 4, INTEGERS(13, 3, 13, 10));
    give_grad_out(&c, 1, NUMBERS(4, 8));
    expect_ok(small_run(&c));
    expect_numbers(c.table_grad, 8, 9, 7, 7, 7, 7, 9, 11);
  }
}

/* ---- Batches ----------------------------------------------------------------------------------------------------- */

/* Two problems on one table (a stride of 0), each with its own indices; positions count over both. */
static void test_batch_runs_independent_problems(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = small_begin(SHEAF_LOOKUP, T, I);
    c.desc.batch = 2;
    c.desc.indices = 3;
    c.desc.has_padding = 1;
    c.desc.padding_idx = 2;
    tiny_reshape(c.table, 3, INTEGERS(2, 4, 2));
    c.table->tensor.strides = c.table->strides;
    c.table->strides[0] = 0;
    c.table->strides[1] = 2;
    c.table->strides[2] = 1;
    c.args.indices = tiny_operand(tiny_int_matrix(I, 2, 3, INTEGERS(0, 2, 1, 3, 4, 2)));
    c.out = tiny_reshape(tiny_matrix(T, 6, 2, NULL), 3, INTEGERS(2, 3, 2));
    c.args.out = tiny_operand(c.out);
    c.args.report = &c.report;
    expect_ok(tiny_run_embedding(&c.desc, &c.args));
    expect_numbers(c.out, 1, 2, 0, 0, 3, 4, -7, 8, 0, 0, 0, 0);
    expect_report(&c.report, 1, 4, 4);
  }
}

static void test_batch_of_gradients_keeps_problems_apart(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    small_call c = small_begin(SHEAF_LOOKUP_BACKWARD, T, I);
    c.args.table.tensor = NULL;
    c.desc.batch = 2;
    c.desc.rows = 2;
    c.desc.indices = 2;
    c.desc.scale_grad_by_freq = 1;
    c.args.indices = tiny_operand(tiny_int_matrix(I, 2, 2, INTEGERS(0, 1, 0, 0)));
    c.args.grad_out =
        tiny_operand(tiny_reshape(tiny_matrix(T, 4, 2, NUMBERS(1, 2, 3, 4, 5, 6, 7, 8)), 3, INTEGERS(2, 2, 2)));
    c.table_grad = tiny_reshape(tiny_matrix(T, 4, 2, NULL), 3, INTEGERS(2, 2, 2));
    c.args.table_grad = tiny_operand(c.table_grad);
    expect_ok(tiny_run_embedding(&c.desc, &c.args));
    expect_numbers(c.table_grad, 8, 9, 10, 11, 13, 14, 7, 7);
  }
}

#define UNIT(name) cmocka_unit_test_teardown(name, tiny_teardown)

int main(void)
{
  const struct CMUnitTest tests[] = {
      UNIT(test_rows_held_elsewhere_are_skipped_and_not_reported),
      UNIT(test_rows_held_elsewhere_are_counted_by_mean),
      UNIT(test_max_over_a_part_gives_global_rows),
      UNIT(test_gradients_of_a_part_go_to_its_own_rows),
      UNIT(test_batch_runs_independent_problems),
      UNIT(test_batch_of_gradients_keeps_problems_apart),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
