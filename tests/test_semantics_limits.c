/* test_semantics_limits.c: empty extents, wrong input (named, outputs untouched), aliasing, strides, quantised rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "support/tiny.h"

/* ---- Calls with every operand that their kind takes -------------------------------------------------------------- */

typedef struct embedding_call {
  sheaf_embedding_desc desc;
  sheaf_embedding_args args;
  tiny *outputs[2];
  sheaf_index_report report;
} embedding_call;

/* Operands of a kind: V rows of 2, N indices, bags at `offsets`, outputs full of 7. Weighted where that can be. */
static embedding_call call_embedding(sheaf_embedding_desc desc, const int64_t *indices, int64_t offset_count,
                                     const int64_t *offsets)
{
  embedding_call c = {.desc = desc, .args = SHEAF_EMBEDDING_ARGS_INIT};
  const bool lookup = desc.kind == SHEAF_LOOKUP || desc.kind == SHEAF_LOOKUP_BACKWARD;
  const bool backward = desc.kind == SHEAF_LOOKUP_BACKWARD || desc.kind == SHEAF_BAG_SUM_BACKWARD ||
                        desc.kind == SHEAF_BAG_MEAN_BACKWARD || desc.kind == SHEAF_BAG_MAX_BACKWARD;
  const int64_t results = lookup ? desc.indices : desc.bags;
  if (!backward || desc.weighted) {
    c.args.table = tiny_operand(tiny_matrix(desc.dtype, desc.rows, desc.dim, NULL));
  }
  if (desc.kind != SHEAF_BAG_MAX_BACKWARD) {
    c.args.indices = tiny_operand(tiny_ints(desc.index_dtype, desc.indices, indices));
  }
  if (!lookup && desc.kind != SHEAF_BAG_MAX_BACKWARD) {
    c.args.offsets = tiny_operand(tiny_ints(desc.index_dtype, offset_count, offsets));
  }
  if (desc.weighted) {
    c.args.weights = tiny_operand(tiny_vector(desc.dtype, desc.indices, NULL));
  }
  if (backward) {
    c.args.grad_out = tiny_operand(tiny_matrix(desc.dtype, results, desc.dim, NULL));
    c.outputs[0] = tiny_matrix(desc.dtype, desc.rows, desc.dim, NULL);
    c.args.table_grad = tiny_operand(c.outputs[0]);
    if (desc.weighted) {
      c.args.out = tiny_operand(tiny_matrix(desc.dtype, results, desc.dim, NULL));
      c.outputs[1] = tiny_vector(desc.dtype, desc.indices, NULL);
      c.args.weights_grad = tiny_operand(c.outputs[1]);
    }
  } else {
    c.outputs[0] = tiny_matrix(desc.dtype, results, desc.dim, NULL);
    c.args.out = tiny_operand(c.outputs[0]);
  }
  if (desc.kind == SHEAF_BAG_MAX) {
    c.outputs[1] = tiny_int_matrix(desc.index_dtype, results, desc.dim, NULL);
    c.args.arg = tiny_operand(c.outputs[1]);
  } else if (desc.kind == SHEAF_BAG_MAX_BACKWARD) {
    c.args.arg = tiny_operand(tiny_int_matrix(desc.index_dtype, results, desc.dim, indices));
  }
  return c;
}

static sheaf_embedding_desc describe(sheaf_embedding_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype,
                                     int64_t count, int64_t bags)
{
  sheaf_embedding_desc desc = tiny_embedding(kind, dtype, index_dtype);
  desc.rows = 4;
  desc.dim = 2;
  desc.indices = kind == SHEAF_BAG_MAX_BACKWARD ? 0 : count;
  desc.bags = kind == SHEAF_LOOKUP || kind == SHEAF_LOOKUP_BACKWARD ? 0 : bags;
  desc.weighted = kind >= SHEAF_BAG_SUM && kind <= SHEAF_BAG_MEAN_BACKWARD;
  return desc;
}

static sheaf_status run_embedding(embedding_call *c)
{
  c->args.report = &c->report;
  return tiny_run_embedding(&c->desc, &c->args);
}

#define expect_outputs_untouched(c) \
  for (int output_ = 0; output_ < 2 && (c).outputs[output_] != NULL; output_++) expect_untouched((c).outputs[output_])

typedef struct segment_call {
  sheaf_segment_desc desc;
  sheaf_segment_args args;
  tiny *outputs[2];
  sheaf_index_report report;
} segment_call;

static bool is_segment_backward(sheaf_segment_kind kind)
{
  return strstr(sheaf_kind_name(SHEAF_CATEGORY_SEGMENT, (uint16_t)kind), "backward") != NULL;
}

static bool is_segment_sorted(sheaf_segment_kind kind)
{
  return strstr(sheaf_kind_name(SHEAF_CATEGORY_SEGMENT, (uint16_t)kind), "unsorted") == NULL;
}

static segment_call call_segment(sheaf_segment_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype, int64_t count,
                                 const int64_t *ids, int64_t segments, int64_t dim)
{
  segment_call c = {.desc = tiny_segment(kind, dtype, index_dtype), .args = SHEAF_SEGMENT_ARGS_INIT};
  c.desc.rows = count;
  c.desc.dim = dim;
  c.desc.segments = segments;
  c.args.data = tiny_operand(tiny_matrix(dtype, count, dim, NULL));
  c.args.ids = tiny_operand(tiny_ints(index_dtype, count, ids));
  const bool backward = is_segment_backward(kind);
  c.outputs[0] = tiny_matrix(dtype, backward ? count : segments, dim, NULL);
  if (backward) {
    c.args.grad_out = tiny_operand(tiny_matrix(dtype, segments, dim, NULL));
    c.args.data_grad = tiny_operand(c.outputs[0]);
  } else {
    c.args.out = tiny_operand(c.outputs[0]);
  }
  return c;
}

static sheaf_status run_segment(segment_call *c)
{
  c->args.report = &c->report;
  return tiny_run_segment(&c->desc, &c->args);
}

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
      sheaf_embedding_desc desc = describe((sheaf_embedding_kind)kind, T, I, 4, 2);
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
        sheaf_embedding_desc desc = describe((sheaf_embedding_kind)kind, T, I, 4, 3);
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

/* ---- Empty extents ----------------------------------------------------------------------------------------------- */

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
      embedding_call c = call_embedding(describe((sheaf_embedding_kind)kind, T, I, 0, 2), NULL, 2, INTEGERS(0, 0));
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
      sheaf_embedding_desc desc = describe(kinds[k], T, I, 0, 0);
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
      embedding_call none = call_embedding(describe((sheaf_embedding_kind)kind, T, I, 0, 0), NULL, 0, NULL);
      null_empty_operands(&none);
      expect_ok(run_embedding(&none));
      sheaf_embedding_desc desc = describe((sheaf_embedding_kind)kind, T, I, 3, 2);
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
    sheaf_embedding_desc desc = describe(SHEAF_BAG_SUM, T, I, 0, 0);
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
      sheaf_embedding_desc desc = describe((sheaf_embedding_kind)kind, T, I, 2, 1);
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
      embedding_call c = call_embedding(describe((sheaf_embedding_kind)kind, T, I, 2, 0), INTEGERS(0, 1), 0, NULL);
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

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

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
    embedding_call c = call_embedding(describe(SHEAF_LOOKUP, T, I, 2, 0), INTEGERS(0, 1), 0, NULL);
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
    embedding_call c = call_embedding(describe(SHEAF_LOOKUP, T, I, 2, 0), INTEGERS(0, 1), 0, NULL);
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
    embedding_call c = call_embedding(describe(SHEAF_LOOKUP, T, I, 2, 0), INTEGERS(0, 1), 0, NULL);
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
    embedding_call c = call_embedding(describe(SHEAF_LOOKUP_BACKWARD, T, I, 4, 0), INTEGERS(0, 1, 0, 2), 0, NULL);
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
    embedding_call c = call_embedding(describe(SHEAF_LOOKUP_BACKWARD, T, I, 4, 0), INTEGERS(0, 1, 0, 2), 0, NULL);
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
    embedding_call other = call_embedding(describe(SHEAF_LOOKUP_BACKWARD, T, I, 4, 0), INTEGERS(0, 1, 0, 2), 0, NULL);
    other.desc.has_padding = 1;
    other.desc.padding_idx = 1;
    other.args.grouping = grouping;
    other.args.grouping_bytes = bytes + 4096;
    expect_status(run_embedding(&other), SHEAF_INVALID_PROBLEM);
    expect_outputs_untouched(other);
    free(grouping);
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
    sheaf_embedding_desc desc = describe(SHEAF_BAG_MAX, T, I, 4, 2);
    desc.weighted = 1;
    expect_refusal(&desc, SHEAF_UNSUPPORTED);
    desc = describe(SHEAF_BAG_MAX_BACKWARD, T, I, 4, 2);
    desc.scale_grad_by_freq = 1;
    expect_refusal(&desc, SHEAF_UNSUPPORTED);
  }
  static const sheaf_embedding_kind backward[] = {SHEAF_LOOKUP_BACKWARD, SHEAF_BAG_SUM_BACKWARD,
                                                  SHEAF_BAG_MEAN_BACKWARD, SHEAF_BAG_MAX_BACKWARD};
  for (int k = 0; k < 4; k++) {
    sheaf_embedding_desc desc = describe(backward[k], SHEAF_INT8, SHEAF_I64, 4, 2);
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
    const sheaf_embedding_desc good = describe(SHEAF_BAG_SUM, T, I, 4, 2);
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

/* ---- Quantised rows ---------------------------------------------------------------------------------------------- */

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
      UNIT(test_bad_index_error_names_it_and_leaves_outputs),
      UNIT(test_bad_segment_id_error_names_it_and_leaves_outputs),
      UNIT(test_wrong_offsets_name_the_entry_and_leave_outputs),
      UNIT(test_unsorted_ids_of_a_sorted_op_name_the_place),
      UNIT(test_no_indices_is_legal),
      UNIT(test_no_indices_with_overwrite_writes_zeros),
      UNIT(test_no_bags_and_no_columns_are_legal),
      UNIT(test_no_bags_with_an_end_offset_is_legal),
      UNIT(test_every_index_into_no_rows_is_bad),
      UNIT(test_no_bags_for_some_indices_is_invalid),
      UNIT(test_empty_segment_problems_are_legal),
      UNIT(test_disjoint_columns_of_one_buffer_are_fine_and_shared_elements_are_not),
      UNIT(test_negative_strides_are_invalid),
      UNIT(test_short_memory_is_named_with_its_bytes),
      UNIT(test_data_between_elements_is_misaligned),
      UNIT(test_small_workspace_is_refused),
      UNIT(test_grouping_of_another_description_is_refused),
      UNIT(test_unsupported_wishes_are_refused),
      UNIT(test_contradictions_are_invalid),
      UNIT(test_rows_are_packed_and_unpacked),
      UNIT(test_row_with_nan_or_infinity_cannot_be_quantised),
      UNIT(test_quantised_lookups_and_bags),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
