/* test_semantics_empty.c: extents of zero. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/full_call.h"

static void null_empty_operands(embedding_call *c)
{
  const sheaf_operand *operands[] = {&c->args.table,   &c->args.indices,    &c->args.offsets,
                                     &c->args.weights, &c->args.grad_out,   &c->args.out,
                                     &c->args.arg,     &c->args.table_grad, &c->args.weights_grad};
  for (size_t i = 0; i < sizeof operands / sizeof *operands; i++) {
    if (operands[i]->tensor != NULL && operands[i]->bytes == 0) {
      ((tiny *)(void *)(uintptr_t)operands[i]->tensor)->tensor.data = NULL; /* the tensor is a tiny's first member */
    }
  }
}

static void test_no_indices_is_legal(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    for (int kind = SHEAF_LOOKUP; kind <= SHEAF_BAG_MAX; kind++) {
      embedding_call c =
          call_embedding(describe_embedding((sheaf_embedding_kind)kind, T, I, 0, 2), NULL, 2, INTEGERS(0, 0));
      null_empty_operands(&c);
      expect_ok(run_embedding(&c));
      expect_report(&c.report, 0, -1, 0);
      if (kind == SHEAF_BAG_SUM || kind == SHEAF_BAG_MEAN || kind == SHEAF_BAG_MAX) {
        expect_numbers(c.outputs[0], 0, 0, 0, 0);
      } else {
        expect_outputs_untouched(c);
      }
      if (kind == SHEAF_BAG_MAX) {
        expect_integers(c.outputs[1], -1, -1, -1, -1);
      }
    }
  }
}

static void test_no_indices_with_overwrite_writes_zeros(void **state)
{
  (void)state;
  static const sheaf_embedding_kind kinds[] = {SHEAF_LOOKUP_BACKWARD, SHEAF_BAG_SUM_BACKWARD, SHEAF_BAG_MEAN_BACKWARD,
                                               SHEAF_BAG_MAX_BACKWARD};
  WALK_TYPES(T, I)
  {
    for (int k = 0; k < 4; k++) {
      sheaf_embedding_desc desc = describe_embedding(kinds[k], T, I, 0, 0);
      desc.grad_write = SHEAF_GRAD_OVERWRITE;
      embedding_call c = call_embedding(desc, NULL, 0, NULL);
      null_empty_operands(&c);
      expect_ok(run_embedding(&c));
      expect_numbers(c.outputs[0], 0, 0, 0, 0, 0, 0, 0, 0);
    }
  }
}

static void test_no_bags_and_no_columns_are_legal(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    for (int kind = SHEAF_LOOKUP; kind <= SHEAF_BAG_MAX_BACKWARD; kind++) {
      embedding_call none = call_embedding(describe_embedding((sheaf_embedding_kind)kind, T, I, 0, 0), NULL, 0, NULL);
      null_empty_operands(&none);
      expect_ok(run_embedding(&none));
      sheaf_embedding_desc desc = describe_embedding((sheaf_embedding_kind)kind, T, I, 3, 2);
      desc.dim = 0;
      embedding_call narrow = call_embedding(desc, INTEGERS(0, -4, 1), 2, INTEGERS(0, 1));
      null_empty_operands(&narrow);
      expect_ok(run_embedding(&narrow));
      if (kind != SHEAF_BAG_MAX_BACKWARD) {
        expect_report(&narrow.report, 1, 1, -4);
      }
    }
  }
}

static void test_no_bags_with_an_end_offset_is_legal(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    sheaf_embedding_desc desc = describe_embedding(SHEAF_BAG_SUM, T, I, 0, 0);
    desc.bag_form = SHEAF_BAGS_OFFSETS_END;
    embedding_call c = call_embedding(desc, NULL, 1, INTEGERS(0));
    expect_ok(run_embedding(&c));
  }
}

static void test_every_index_into_no_rows_is_bad(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    for (int kind = SHEAF_LOOKUP; kind <= SHEAF_BAG_MAX; kind++) {
      sheaf_embedding_desc desc = describe_embedding((sheaf_embedding_kind)kind, T, I, 2, 1);
      desc.rows = 0;
      embedding_call c = call_embedding(desc, INTEGERS(0, 5), 1, INTEGERS(0));
      null_empty_operands(&c);
      expect_ok(run_embedding(&c));
      expect_report(&c.report, 2, 0, 0);
      if (kind == SHEAF_LOOKUP) {
        expect_numbers(c.outputs[0], 0, 0, 0, 0);
      } else if (kind == SHEAF_BAG_SUM || kind == SHEAF_BAG_MEAN || kind == SHEAF_BAG_MAX) {
        expect_numbers(c.outputs[0], 0, 0);
      }
      c.desc.bad_index = SHEAF_BAD_INDEX_ERROR;
      expect_status(run_embedding(&c), SHEAF_INDEX_OUT_OF_RANGE);
    }
  }
}

static void test_no_bags_for_some_indices_is_invalid(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    for (int kind = SHEAF_BAG_SUM; kind <= SHEAF_BAG_MAX; kind++) {
      embedding_call c =
          call_embedding(describe_embedding((sheaf_embedding_kind)kind, T, I, 2, 0), INTEGERS(0, 1), 0, NULL);
      expect_status(run_embedding(&c), SHEAF_INVALID_PROBLEM);
      expect_outputs_untouched(c);
    }
  }
}

static void test_empty_segment_problems_are_legal(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    for (int kind = SHEAF_SEGMENT_SUM; kind <= SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD; kind++) {
      const sheaf_segment_kind k = (sheaf_segment_kind)kind;
      segment_call no_rows = call_segment(k, T, I, 0, NULL, 2, 1);
      expect_ok(run_segment(&no_rows));
      if (k == SHEAF_SEGMENT_PROD || k == SHEAF_UNSORTED_SEGMENT_PROD) {
        expect_numbers(no_rows.outputs[0], 1, 1);
      } else if (!is_segment_backward(k)) {
        expect_numbers(no_rows.outputs[0], 0, 0);
      }
      segment_call nothing = call_segment(k, T, I, 0, NULL, 0, 0);
      expect_ok(run_segment(&nothing));
      segment_call no_columns = call_segment(k, T, I, 3, INTEGERS(0, 1, 7), 2, 0);
      expect_ok(run_segment(&no_columns));
      expect_report(&no_columns.report, 1, 2, 7);
      segment_call no_segments = call_segment(k, T, I, 2, INTEGERS(0, 0), 0, 1);
      expect_ok(run_segment(&no_segments));
      expect_report(&no_segments.report, 2, 0, 0);
      if (is_segment_backward(k)) {
        expect_numbers(no_segments.outputs[0], 0, 0);
      }
    }
  }
}

#define UNIT(name) cmocka_unit_test_teardown(name, tiny_teardown)

int main(void)
{
  const struct CMUnitTest tests[] = {
      UNIT(test_no_indices_is_legal),
      UNIT(test_no_indices_with_overwrite_writes_zeros),
      UNIT(test_no_bags_and_no_columns_are_legal),
      UNIT(test_no_bags_with_an_end_offset_is_legal),
      UNIT(test_every_index_into_no_rows_is_bad),
      UNIT(test_no_bags_for_some_indices_is_invalid),
      UNIT(test_empty_segment_problems_are_legal),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
