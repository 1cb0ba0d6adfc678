/* test_semantics_memory.c: where operands lie: shared memory, strides, bytes, alignment, workspaces and groupings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/full_call.h"

/* Rows of 2 within a buffer of rows of `stride`, from column `column` on. */
static sheaf_operand slice(DLTensor *tensor, int64_t *shape_and_strides, tiny *buffer, int64_t count, int64_t stride,
                           int64_t column)
{
  *tensor = buffer->tensor;
  tensor->ndim = 2;
  tensor->shape = shape_and_strides;
  tensor->strides = shape_and_strides + 2;
  shape_and_strides[0] = count;
  shape_and_strides[1] = 2;
  shape_and_strides[2] = stride;
  shape_and_strides[3] = 1;
  tensor->byte_offset = (uint64_t)column * (uint64_t)sheaf_dtype_row_bytes(buffer->dtype, 1);
  return (sheaf_operand){tensor, 0};
}

static void test_disjoint_columns_of_one_buffer_are_fine_and_shared_elements_are_not(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    for (int64_t column = 0; column <= 2; column++) {
      tiny *buffer = tiny_matrix(T, 4, 4, NUMBERS(1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 0, 0, 7, 8, 0, 0));
      DLTensor table;
      DLTensor out;
      int64_t table_numbers[4];
      int64_t out_numbers[4];
      sheaf_embedding_desc desc = tiny_embedding(SHEAF_LOOKUP, T, I);
      desc.rows = desc.indices = 4;
      desc.dim = 2;
      sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
      args.table = slice(&table, table_numbers, buffer, 4, 4, 0);
      args.out = slice(&out, out_numbers, buffer, 4, 4, column);
      args.indices = tiny_operand(tiny_ints(I, 4, INTEGERS(3, 2, 1, 0)));
      if (column < 2) {
        expect_status(tiny_run_embedding(&desc, &args), SHEAF_INVALID_PROBLEM);
        expect_numbers(buffer, 1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 0, 0, 7, 8, 0, 0);
      } else {
        expect_ok(tiny_run_embedding(&desc, &args));
        expect_numbers(buffer, 1, 2, 7, 8, 3, 4, 5, 6, 5, 6, 3, 4, 7, 8, 1, 2);
      }
    }
  }
}

static void test_negative_strides_are_invalid(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    embedding_call c = call_embedding(describe_embedding(SHEAF_LOOKUP, T, I, 2, 0), INTEGERS(0, 1), 0, NULL);
    tiny *table = tiny_matrix(T, 4, 2, NULL);
    table->tensor.strides = table->strides;
    table->strides[0] = -2;
    table->strides[1] = 1;
    table->tensor.byte_offset = (uint64_t)sheaf_dtype_row_bytes(T, 6);
    c.args.table = (sheaf_operand){&table->tensor, 0};
    expect_status(run_embedding(&c), SHEAF_INVALID_PROBLEM);
    expect_outputs_untouched(c);
  }
}

static void test_short_memory_is_named_with_its_bytes(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    embedding_call c = call_embedding(describe_embedding(SHEAF_LOOKUP, T, I, 2, 0), INTEGERS(0, 1), 0, NULL);
    c.args.table.bytes -= 1;
    expect_status(run_embedding(&c), SHEAF_BUFFER_TOO_SMALL);
    const sheaf_error_info info = sheaf_last_error_info();
    assert_string_equal(info.operand, "table");
    assert_int_equal(info.needed, sheaf_dtype_row_bytes(T, 8));
    assert_int_equal(info.got, sheaf_dtype_row_bytes(T, 8) - 1);
    expect_outputs_untouched(c);
  }
}

static void test_data_between_elements_is_misaligned(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    embedding_call c = call_embedding(describe_embedding(SHEAF_LOOKUP, T, I, 2, 0), INTEGERS(0, 1), 0, NULL);
    tiny *table = tiny_matrix(T, 5, 2, NULL);
    table->shape[0] = 4;
    table->tensor.byte_offset = 1;
    c.args.table = (sheaf_operand){&table->tensor, 0};
    expect_status(run_embedding(&c), SHEAF_MISALIGNED);
    expect_outputs_untouched(c);
  }
}

static void test_small_workspace_is_refused(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    embedding_call c =
        call_embedding(describe_embedding(SHEAF_LOOKUP_BACKWARD, T, I, 4, 0), INTEGERS(0, 1, 0, 2), 0, NULL);
    sheaf_plan *plan;
    expect_ok(sheaf_embedding_select(&c.desc, NULL, &plan));
    const size_t bytes = sheaf_plan_workspace_size(plan);
    if (bytes > 0) {
      expect_status(sheaf_embedding_run(plan, NULL, 0, NULL, &c.args), SHEAF_WORKSPACE_TOO_SMALL);
      assert_int_equal(sheaf_last_error_info().needed, bytes);
      expect_outputs_untouched(c);
    }
    sheaf_plan_free(plan);
  }
}

static void test_grouping_of_another_description_is_refused(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    embedding_call c =
        call_embedding(describe_embedding(SHEAF_LOOKUP_BACKWARD, T, I, 4, 0), INTEGERS(0, 1, 0, 2), 0, NULL);
    sheaf_plan *plan;
    expect_ok(sheaf_embedding_select(&c.desc, NULL, &plan));
    const size_t bytes = sheaf_grouping_size(plan);
    assert_true(bytes > 0);
    void *grouping = aligned_alloc(64, (bytes + 63) / 64 * 64 + 4096);
    expect_ok(sheaf_embedding_grouping_build(plan, grouping, bytes, NULL, &c.args));
    sheaf_plan_free(plan);
    c.args.grouping = grouping;
    c.args.grouping_bytes = bytes + 4096;
    embedding_call same = c;
    same.desc.grouping_given = 1;
    expect_ok(run_embedding(&same));
    expect_numbers(c.outputs[0], 21, 21, 14, 14, 14, 14, 7, 7);
    embedding_call other =
        call_embedding(describe_embedding(SHEAF_LOOKUP_BACKWARD, T, I, 4, 0), INTEGERS(0, 1, 0, 2), 0, NULL);
    other.desc.has_padding = 1;
    other.desc.padding_idx = 1;
    other.args.grouping = grouping;
    other.args.grouping_bytes = bytes + 4096;
    expect_status(run_embedding(&other), SHEAF_INVALID_PROBLEM);
    expect_outputs_untouched(other);
    free(grouping);
  }
}

#define UNIT(name) cmocka_unit_test_teardown(name, tiny_teardown)

int main(void)
{
  const struct CMUnitTest tests[] = {
      UNIT(test_disjoint_columns_of_one_buffer_are_fine_and_shared_elements_are_not),
      UNIT(test_negative_strides_are_invalid),
      UNIT(test_short_memory_is_named_with_its_bytes),
      UNIT(test_data_between_elements_is_misaligned),
      UNIT(test_small_workspace_is_refused),
      UNIT(test_grouping_of_another_description_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
