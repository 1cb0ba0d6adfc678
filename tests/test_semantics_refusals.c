/* test_semantics_refusals.c: wrong input and descriptions are named, and outputs left untouched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/full_call.h"

static void expect_error(const char *operand, int64_t position, int64_t value, int64_t count)
{
  const sheaf_error_info info = sheaf_last_error_info();
  assert_non_null(info.operand);
  assert_string_equal(info.operand, operand);
  assert_int_equal(info.position, position);
  assert_int_equal(info.value, value);
  if (count > 0) {
    assert_int_equal(info.count, count);
  }
  char number[32];
  snprintf(number, sizeof number, "%lld", (long long)value);
  assert_non_null(strstr(sheaf_last_error(), number));
  snprintf(number, sizeof number, "%lld", (long long)position);
  assert_non_null(strstr(sheaf_last_error(), number));
}

/* ---- Bad indices as errors --------------------------------------------------------------------------------------- */

static void test_bad_index_error_names_it_and_leaves_outputs(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    for (int kind = SHEAF_LOOKUP; kind <= SHEAF_BAG_MAX_BACKWARD; kind++) {
      const bool max_backward = kind == SHEAF_BAG_MAX_BACKWARD;
      sheaf_embedding_desc desc = describe_embedding((sheaf_embedding_kind)kind, T, I, 4, 2);
      desc.bad_index = SHEAF_BAD_INDEX_ERROR;
      embedding_call c =
          call_embedding(desc, max_backward ? INTEGERS(-1, 0, 19, -2) : INTEGERS(0, 3, 19, -2), 2, INTEGERS(0, 1));
      expect_status(run_embedding(&c), SHEAF_INDEX_OUT_OF_RANGE);
      expect_error(max_backward ? "arg" : "indices", 2, 19, 2);
      expect_outputs_untouched(c);
      embedding_call good = call_embedding(desc, INTEGERS(0, 3, 1, 1), 2, INTEGERS(0, 1));
      expect_ok(run_embedding(&good));
      expect_report(&good.report, 0, -1, 0);
    }
  }
}

static void test_bad_segment_id_error_names_it_and_leaves_outputs(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    for (int kind = SHEAF_SEGMENT_SUM; kind <= SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD; kind++) {
      segment_call c = call_segment((sheaf_segment_kind)kind, T, I, 4, INTEGERS(0, 1, 33, 44), 3, 2);
      c.desc.bad_index = SHEAF_BAD_INDEX_ERROR;
      expect_status(run_segment(&c), SHEAF_INDEX_OUT_OF_RANGE);
      expect_error("ids", 2, 33, 2);
      expect_outputs_untouched(c);
    }
  }
}

/* ---- Offsets and sorted ids -------------------------------------------------------------------------------------- */

static void test_wrong_offsets_name_the_entry_and_leave_outputs(void **state)
{
  (void)state;
  static const struct {
    int64_t offsets[4];
    sheaf_bag_form form;
    int64_t count, position;
  } cases[] = {
      {{1, 2, 3}, SHEAF_BAGS_OFFSETS, 3, 0},        /* does not start at 0 */
      {{-1, 0, 1}, SHEAF_BAGS_OFFSETS, 3, 0},       /* negative */
      {{0, 3, 2}, SHEAF_BAGS_OFFSETS, 3, 2},        /* decreases */
      {{0, 1, 9}, SHEAF_BAGS_OFFSETS, 3, 2},        /* beyond N */
      {{0, 1, 2, 3}, SHEAF_BAGS_OFFSETS_END, 4, 3}, /* does not end at N */
      {{0, 1, 2, 5}, SHEAF_BAGS_OFFSETS_END, 4, 3}, /* ends beyond it */
      {{0, 2, 1, 4}, SHEAF_BAGS_OFFSETS_END, 4, 2},
  };
  WALK_TYPES(T, I)
  {
    for (int kind = SHEAF_BAG_SUM; kind <= SHEAF_BAG_MAX; kind++) {
      for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sheaf_embedding_desc desc = describe_embedding((sheaf_embedding_kind)kind, T, I, 4, 3);
        desc.bag_form = cases[i].form;
        embedding_call c = call_embedding(desc, INTEGERS(0, 1, 2, 3), cases[i].count, cases[i].offsets);
        expect_status(run_embedding(&c), SHEAF_INVALID_PROBLEM);
        expect_error("offsets", cases[i].position, cases[i].offsets[cases[i].position], 0);
        expect_outputs_untouched(c);
      }
    }
  }
}

static void test_unsorted_ids_of_a_sorted_op_name_the_place(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    for (int kind = SHEAF_SEGMENT_SUM; kind <= SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD; kind++) {
      segment_call c = call_segment((sheaf_segment_kind)kind, T, I, 5, INTEGERS(0, 2, 2, 1, 0), 3, 2);
      if (is_segment_sorted((sheaf_segment_kind)kind)) {
        expect_status(run_segment(&c), SHEAF_INVALID_PROBLEM);
        expect_error("ids", 3, 1, 0);
        expect_outputs_untouched(c);
      } else {
        expect_ok(run_segment(&c));
      }
    }
  }
}

/* ---- Descriptions ------------------------------------------------------------------------------------------------ */

static void expect_refusal(const sheaf_embedding_desc *desc, sheaf_status expected)
{
  sheaf_plan *plan = (sheaf_plan *)(uintptr_t)1;
  expect_status(sheaf_embedding_select(desc, NULL, &plan), expected);
  assert_null(plan);
}

static void test_unsupported_wishes_are_refused(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    sheaf_embedding_desc desc = describe_embedding(SHEAF_BAG_MAX, T, I, 4, 2);
    desc.weighted = 1;
    expect_refusal(&desc, SHEAF_UNSUPPORTED);
    desc = describe_embedding(SHEAF_BAG_MAX_BACKWARD, T, I, 4, 2);
    desc.scale_grad_by_freq = 1;
    expect_refusal(&desc, SHEAF_UNSUPPORTED);
  }
  static const sheaf_embedding_kind backward[] = {SHEAF_LOOKUP_BACKWARD, SHEAF_BAG_SUM_BACKWARD,
                                                  SHEAF_BAG_MEAN_BACKWARD, SHEAF_BAG_MAX_BACKWARD};
  for (int k = 0; k < 4; k++) {
    sheaf_embedding_desc desc = describe_embedding(backward[k], SHEAF_INT8, SHEAF_I64, 4, 2);
    expect_refusal(&desc, SHEAF_UNSUPPORTED);
    desc.dtype = SHEAF_INT4;
    expect_refusal(&desc, SHEAF_UNSUPPORTED);
    desc.dtype = SHEAF_I32;
    expect_refusal(&desc, SHEAF_UNSUPPORTED);
  }
  sheaf_segment_desc segment = tiny_segment(SHEAF_SEGMENT_SUM, SHEAF_INT8, SHEAF_I64);
  sheaf_plan *plan;
  expect_status(sheaf_segment_select(&segment, NULL, &plan), SHEAF_UNSUPPORTED);
}

static void test_contradictions_are_invalid(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    const sheaf_embedding_desc good = describe_embedding(SHEAF_BAG_SUM, T, I, 4, 2);
    const size_t fields[] = {offsetof(sheaf_embedding_desc, rows),      offsetof(sheaf_embedding_desc, dim),
                             offsetof(sheaf_embedding_desc, indices),   offsetof(sheaf_embedding_desc, bags),
                             offsetof(sheaf_embedding_desc, batch),     offsetof(sheaf_embedding_desc, row_begin),
                             offsetof(sheaf_embedding_desc, total_rows)};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
      sheaf_embedding_desc desc = good;
      const int64_t negative = -1;
      memcpy((char *)&desc + fields[i], &negative, sizeof negative);
      expect_refusal(&desc, SHEAF_INVALID_PROBLEM);
    }
    sheaf_embedding_desc desc = good;
    desc.has_padding = 1;
    desc.padding_idx = 4;
    expect_refusal(&desc, SHEAF_INVALID_PROBLEM);
    desc.padding_idx = -1;
    expect_refusal(&desc, SHEAF_INVALID_PROBLEM);
    desc = good;
    desc.row_begin = 8;
    desc.total_rows = 11; /* rows 8 .. 11 do not fit */
    expect_refusal(&desc, SHEAF_INVALID_PROBLEM);
    desc = good;
    desc.bag_form = SHEAF_BAGS_MATRIX;
    desc.indices = 5;
    expect_refusal(&desc, SHEAF_INVALID_PROBLEM);
    desc = good;
    desc.rows = INT64_C(1) << 40;
    desc.dim = INT64_C(1) << 40;
    expect_refusal(&desc, SHEAF_INVALID_PROBLEM);
  }
}

#define UNIT(name) cmocka_unit_test_teardown(name, tiny_teardown)

int main(void)
{
  const struct CMUnitTest tests[] = {
      UNIT(test_bad_index_error_names_it_and_leaves_outputs),
      UNIT(test_bad_segment_id_error_names_it_and_leaves_outputs),
      UNIT(test_wrong_offsets_name_the_entry_and_leave_outputs),
      UNIT(test_unsorted_ids_of_a_sorted_op_name_the_place),
      UNIT(test_unsupported_wishes_are_refused),
      UNIT(test_contradictions_are_invalid),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
