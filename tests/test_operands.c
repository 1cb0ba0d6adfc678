/* test_operands.c: every operand of every kind, spoilt in every way: what can_implement and run say, and in order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "support/call.h"

static int64_t element_bytes(const call *c, int at) { return c->tensor[at].dtype.bits / 8; }
static bool is_output(const call *c, int at) { return c->p->operand[at].output; }

/* ---- Presence ---------------------------------------------------------------------------------------------------- */

static bool is_optional(const call *c, int at)
{
  if (!call_is_embedding(c)) return at == AT_SEGMENT_ARG && is_output(c, at);
  if (at == AT_ARG) return is_output(c, at);
  return c->p->spec.weighted && (at == AT_TABLE_GRAD || at == AT_WEIGHTS_GRAD);
}

static void leave_out(call *c, int at)
{
  c->operand[at].tensor = NULL;
  if (is_optional(c, at))
    call_accepted(c);
  else
    call_refused(c, at, INVALID_PROBLEM, call_operand_name(c, at), "not given",
                 sheaf_kind_name(c->p->spec.category, (uint16_t)c->p->spec.kind));
}

static void test_operands_that_a_kind_needs_must_be_given(void **state)
{
  (void)state;
  call_walk(leave_out);
}

static void test_a_backward_call_must_ask_for_something(void **state)
{
  (void)state;
  for (int kind = SHEAF_BAG_SUM_BACKWARD; kind <= SHEAF_BAG_MEAN_BACKWARD; kind++) {
    problem_spec spec = call_spec(kind);
    call *c = call_make(&spec);
    c->operand[AT_TABLE_GRAD].tensor = c->operand[AT_WEIGHTS_GRAD].tensor = NULL;
    call_refused(c, -1, INVALID_PROBLEM, "table_grad", "weights_grad");
    call_free(c);
  }
}

static void test_operands_against_the_description_are_refused(void **state)
{
  (void)state;
  for (int kind = 0; kind < 7; kind++) {
    problem_spec spec = call_spec(kind);
    spec.weighted = false;
    call *c = call_make(&spec);
    const int weights[] = {AT_WEIGHTS, AT_WEIGHTS_GRAD};
    for (int i = 0; i < 2; i++) {
      c->tensor[weights[i]] = c->tensor[AT_INDICES];
      c->operand[weights[i]].tensor = &c->tensor[weights[i]];
      call_refused(c, weights[i], INVALID_PROBLEM, call_operand_name(c, weights[i]), "weighted");
      call_restore(c);
    }
    call_free(c);
    if (kind <= SHEAF_LOOKUP_BACKWARD) continue;
    spec.bag_form = SHEAF_BAGS_MATRIX;
    c = call_make(&spec);
    c->tensor[AT_OFFSETS] = c->tensor[AT_INDICES];
    c->operand[AT_OFFSETS].tensor = &c->tensor[AT_OFFSETS];
    call_refused(c, AT_OFFSETS, INVALID_PROBLEM, "offsets", "bag_form");
    call_free(c);
  }
}

/* One args struct can serve forward and backward: what a kind has no use for is not looked at. */
static void test_operands_of_other_kinds_are_ignored(void **state)
{
  (void)state;
  for (int kind = 0; kind < CALL_KINDS; kind++) {
    problem_spec spec = call_spec(kind);
    spec.weighted = false;
    call *c = call_make(&spec);
    DLTensor nonsense = {.ndim = -5};
    for (int at = 0; at < c->operands; at++) {
      bool weights =
          call_is_embedding(c) && kind != SHEAF_BAG_MAX_BACKWARD && (at == AT_WEIGHTS || at == AT_WEIGHTS_GRAD);
      if (!c->operand[at].tensor && !weights) c->operand[at] = (sheaf_operand){&nonsense, 1};
    }
    call_accepted(c);
    call_free(c);
  }
}

/* ---- Device and type --------------------------------------------------------------------------------------------- */

static void spoil_device(call *c, int at)
{
  for (int type = -1; type < 18; type++) {
    c->tensor[at].device.device_type = (DLDeviceType)type;
    if (type == kDLCPU || type == kDLCUDAHost)
      call_accepted(c);
    else
      call_refused(c, at, INVALID_PROBLEM, call_operand_name(c, at), "device type", number(type));
    call_restore(c);
  }
}

static void test_operands_on_other_devices_are_refused(void **state)
{
  (void)state;
  call_walk(spoil_device);
}

static void spoil_type(call *c, int at)
{
  const DLDataType right = c->tensor[at].dtype;
  const uint8_t bits[] = {0, 1, 8, 16, 32, 64, 128};
  for (int code = 0; code < 8; code++)
    for (int b = 0; b < LENGTH(bits); b++)
      for (uint16_t lanes = 0; lanes < 3; lanes++) {
        char text[64];
        c->tensor[at].dtype = (DLDataType){(uint8_t)code, bits[b], lanes};
        if (code == right.code && bits[b] == right.bits && lanes == 1) continue;
        snprintf(text, sizeof text, "(code %d, %d bits, %d lanes)", code, bits[b], lanes);
        call_refused(c, at, INVALID_PROBLEM, call_operand_name(c, at), text);
      }
}

static void test_operands_of_other_types_are_refused(void **state)
{
  (void)state;
  call_walk(spoil_type);
}

/* ---- Shape ------------------------------------------------------------------------------------------------------- */

static void spoil_rank(call *c, int at)
{
  const char *name = call_operand_name(c, at);
  const int ranks[] = {-1, INT32_MIN, 33, 1000, INT32_MAX};
  for (int i = 0; i < LENGTH(ranks); i++) {
    c->tensor[at].ndim = ranks[i];
    call_refused(c, at, INVALID_PROBLEM, name, number(ranks[i]), "dimensions");
  }
  call_restore(c);
  c->tensor[at].shape = NULL;
  call_refused(c, at, INVALID_PROBLEM, name, "no shape");
  call_restore(c);
  c->tensor[at].ndim = 0;
  call_refused(c, at, INVALID_PROBLEM, name, "[]");
  c->tensor[at].shape = c->tensor[at].strides = NULL;
  call_refused(c, at, INVALID_PROBLEM, name, "[]");
  call_restore(c);
  c->tensor[at].ndim = 32; /* as many dimensions as there may be, none of which fits */
  for (int i = 0; i < 32; i++) c->shape[at][i] = 2;
  call_refused(c, at, INVALID_PROBLEM, name, "[2, 2, 2");
}

static void test_operands_of_other_ranks_are_refused(void **state)
{
  (void)state;
  call_walk(spoil_rank);
}

/* The shape as a refusal prints it. */
static const char *shape_text(const call *c, int at)
{
  static char text[256];
  size_t used = 0;
  for (int i = 0; i < c->tensor[at].ndim; i++)
    used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld", i ? ", " : "[", (long long)c->shape[at][i]);
  snprintf(text + used, sizeof text - used, "]");
  return text;
}

static void spoil_extents(call *c, int at)
{
  const char *name = call_operand_name(c, at);
  int rank = c->tensor[at].ndim;
  for (int d = 0; d < rank; d++) {
    const int64_t right = c->shape[at][d], wrong[] = {right + 1, right - 1, 0, (int64_t)1 << 33};
    for (int i = 0; i < LENGTH(wrong); i++) {
      c->shape[at][d] = wrong[i];
      call_refused(c, at, INVALID_PROBLEM, name, shape_text(c, at), "is needed");
    }
    const int64_t negative[] = {-1, -3, INT64_MIN};
    for (int i = 0; i < LENGTH(negative); i++) {
      char text[40];
      c->shape[at][d] = negative[i];
      snprintf(text, sizeof text, "in dimension %d", d);
      call_refused(c, at, INVALID_PROBLEM, name, number(negative[i]), text);
    }
    c->shape[at][d] = right;
    if (rank < 2) continue;
    c->shape[at][d] = INT64_MAX;
    call_refused(c, at, INVALID_PROBLEM, name, "2^63");
    c->shape[at][d] = right;
  }
}

static void test_operands_of_other_extents_are_refused(void **state)
{
  (void)state;
  call_walk(spoil_extents);
}

static void test_shapes_of_no_elements_must_fit_as_well(void **state)
{
  (void)state;
  problem_spec spec = call_spec(SHEAF_LOOKUP);
  spec.count = 0;
  call *c = call_make(&spec);
  c->shape[AT_INDICES][0] = 0;
  c->shape[AT_INDICES][1] = c->shape[AT_INDICES][2] = (int64_t)1 << 40;
  c->tensor[AT_INDICES].ndim = 3;
  c->tensor[AT_INDICES].strides = NULL;
  call_accepted(c); /* N is 0 whatever the rest */
  c->shape[AT_INDICES][0] = (int64_t)1 << 40;
  c->shape[AT_INDICES][2] = 0;
  call_refused(c, AT_INDICES, INVALID_PROBLEM, "indices", "2^63");
  call_restore(c);
  c->shape[AT_OUT][1] = 4;
  call_refused(c, AT_OUT, INVALID_PROBLEM, "out", "[0, 4]", "3");
  call_free(c);
}

/* ---- Lengths, data, alignment ------------------------------------------------------------------------------------ */

static void spoil_length(call *c, int at)
{
  const char *name = call_operand_name(c, at);
  size_t needed = c->operand[at].bytes, wrong[] = {needed - 1, 1, needed / 2};
  for (int i = 0; i < LENGTH(wrong); i++) {
    c->operand[at].bytes = wrong[i];
    call_refused(c, at, BUFFER_TOO_SMALL, name, number((int64_t)needed), number((int64_t)wrong[i]));
    sheaf_error_info info = sheaf_last_error_info();
    assert_int_equal(info.needed, needed);
    assert_int_equal(info.got, wrong[i]);
    assert_int_equal(info.position, -1);
  }
  const size_t enough[] = {0, needed, needed + 1, SIZE_MAX};
  for (int i = 0; i < LENGTH(enough); i++) {
    call_restore(c);
    c->operand[at].bytes = enough[i];
    call_accepted(c);
  }
}

static void test_short_operands_are_refused_with_the_bytes_they_need(void **state)
{
  (void)state;
  call_walk(spoil_length);
}

static void spoil_data(call *c, int at)
{
  const char *name = call_operand_name(c, at);
  c->tensor[at].data = NULL;
  call_refused(c, at, INVALID_PROBLEM, name, "no data", number((int64_t)c->operand[at].bytes));
  call_restore(c);
  for (int64_t off = 1; off < element_bytes(c, at); off++) {
    c->tensor[at].byte_offset += (uint64_t)off;
    c->operand[at].bytes = 0;
    call_refused(c, at, MISALIGNED, name, number(element_bytes(c, at)));
    call_restore(c);
    c->tensor[at].data = (char *)c->tensor[at].data + off;
    call_refused(c, at, MISALIGNED, name, number(element_bytes(c, at)));
    call_restore(c);
  }
}

static void test_missing_and_misaligned_data_is_refused(void **state)
{
  (void)state;
  call_walk(spoil_data);
}

/* ---- Order ------------------------------------------------------------------------------------------------------- */

/* Of two operands that are wrong in the same way the first is named; a shape comes before any length, a length
 * before any alignment. */
static void test_operands_are_checked_in_order(void **state)
{
  (void)state;
  for (int kind = 0; kind < CALL_KINDS; kind++) {
    problem_spec spec = call_spec(kind);
    call *c = call_make(&spec);
    for (int first = 0; first < c->operands; first++)
      for (int second = first + 1; second < c->operands; second++) {
        if (!c->operand[first].tensor || !c->operand[second].tensor) continue;
        c->tensor[first].device.device_type = c->tensor[second].device.device_type = kDLCUDA;
        call_refused(c, first, INVALID_PROBLEM, "device type 2");
        call_restore(c);
        c->shape[first][0]++;
        c->tensor[second].dtype.bits = 3;
        call_refused(c, first, INVALID_PROBLEM, "is needed");
        call_restore(c);
        c->operand[first].bytes = c->operand[second].bytes = 1;
        call_refused(c, first, BUFFER_TOO_SMALL, call_operand_name(c, first));
        c->shape[second][0]++;
        call_refused(c, second, INVALID_PROBLEM, "is needed");
        call_restore(c);
        c->tensor[first].data = (char *)c->tensor[first].data + 1;
        c->tensor[second].data = (char *)c->tensor[second].data + 1;
        call_refused(c, first, MISALIGNED, call_operand_name(c, first));
        c->operand[second].bytes = 1;
        call_refused(c, second, BUFFER_TOO_SMALL, call_operand_name(c, second));
        call_restore(c);
      }
    call_free(c);
  }
}

/* ---- Plan, args and workspace ------------------------------------------------------------------------------------ */

static void test_plans_and_args_of_the_other_family_are_refused(void **state)
{
  (void)state;
  sheaf_embedding_args embedding = SHEAF_EMBEDDING_ARGS_INIT;
  sheaf_segment_args segment = SHEAF_SEGMENT_ARGS_INIT;
  sheaf_embedding_desc bags = embedding_of(SHEAF_BAG_SUM_BACKWARD);
  sheaf_segment_desc segments = segments_of(SHEAF_UNSORTED_SEGMENT_SUM);
  sheaf_plan *bag_plan = embedding_plan(&bags, NULL), *sum_plan = segment_plan(&segments, NULL);
#define REFUSED(call, ...) check_refusal(call, NULL, SHEAF_INVALID_PROBLEM, WORDS(__VA_ARGS__), __LINE__)
  REFUSED(sheaf_embedding_can_implement(sum_plan, &embedding), "segment family");
  REFUSED(sheaf_embedding_run(sum_plan, NULL, 0, NULL, &embedding), "segment family");
  REFUSED(sheaf_embedding_grouping_build(sum_plan, NULL, 0, NULL, &embedding), "segment family");
  REFUSED(sheaf_segment_can_implement(bag_plan, &segment), "embedding family");
  REFUSED(sheaf_segment_run(bag_plan, NULL, 0, NULL, &segment), "embedding family");
  REFUSED(sheaf_segment_grouping_build(bag_plan, NULL, 0, NULL, &segment), "embedding family");
  REFUSED(sheaf_embedding_can_implement(NULL, &embedding), "plan is NULL");
  REFUSED(sheaf_embedding_run(NULL, NULL, 0, NULL, &embedding), "plan is NULL");
  REFUSED(sheaf_embedding_grouping_build(NULL, NULL, 0, NULL, &embedding), "plan is NULL");
  REFUSED(sheaf_segment_can_implement(NULL, &segment), "plan is NULL");
  REFUSED(sheaf_segment_run(NULL, NULL, 0, NULL, &segment), "plan is NULL");
  REFUSED(sheaf_segment_grouping_build(NULL, NULL, 0, NULL, &segment), "plan is NULL");
  REFUSED(sheaf_embedding_can_implement(bag_plan, NULL), "args is NULL");
  REFUSED(sheaf_embedding_run(bag_plan, NULL, 0, NULL, NULL), "args is NULL");
  REFUSED(sheaf_embedding_grouping_build(bag_plan, NULL, 0, NULL, NULL), "args is NULL");
  REFUSED(sheaf_segment_can_implement(sum_plan, NULL), "args is NULL");
  REFUSED(sheaf_segment_run(sum_plan, NULL, 0, NULL, NULL), "args is NULL");
  REFUSED(sheaf_segment_grouping_build(sum_plan, NULL, 0, NULL, NULL), "args is NULL");
#undef REFUSED
  sheaf_plan_free(bag_plan);
  sheaf_plan_free(sum_plan);
}

static void test_args_of_other_sizes_are_refused(void **state)
{
  (void)state;
  for (int kind = 0; kind < CALL_KINDS; kind++) {
    problem_spec spec = call_spec(kind);
    call *c = call_make(&spec);
    const size_t right = c->struct_size, wrong[] = {0, right - 1, 8, SIZE_MAX};
    for (int i = 0; i < LENGTH(wrong); i++) {
      char text[40];
      c->struct_size = wrong[i];
      snprintf(text, sizeof text, "args.struct_size is %zu", wrong[i]);
      call_refused(c, -1, INVALID_PROBLEM, text, number((int64_t)right));
    }
    call_free(c);
  }
}

static void test_workspaces_are_there_long_enough_and_aligned(void **state)
{
  (void)state;
  int with_workspace = 0;
  for (int kind = 0; kind < CALL_KINDS; kind++) {
    problem_spec spec = call_spec(kind);
    call *c = call_make(&spec);
    size_t needed = c->workspace_bytes;
    unsigned char *workspace = c->workspace;
    for (int i = 0; i < 4; i++) {
      if (needed == 0) { /* then none is looked at */
        c->workspace = i % 2 ? workspace + 1 : NULL;
        call_accepted(c);
        call_restore(c);
        continue;
      }
      with_workspace++;
      c->workspace = i ? workspace : NULL;
      c->workspace_bytes = i == 0 ? needed : i == 1 ? needed - 1 : i == 2 ? 0 : needed + 1;
      if (i == 3) c->workspace = workspace + 1 + kind % 63;
      assert_int_equal(call_can_implement(c), SHEAF_OK);
      sheaf_status status = call_run(c);
      sheaf_error_info info = sheaf_last_error_info();
      call_expect_untouched(c, __LINE__);
      assert_int_equal(status, i == 3 ? SHEAF_MISALIGNED : SHEAF_WORKSPACE_TOO_SMALL);
      assert_non_null(strstr(sheaf_last_error(), "workspace"));
      if (i < 3) assert_int_equal(info.needed, needed);
      if (i < 3) assert_int_equal(info.got, i == 0 ? 0 : c->workspace_bytes);
      c->workspace = workspace;
      call_restore(c);
    }
    c->workspace = workspace;
    call_free(c);
  }
  assert_true(with_workspace > 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_operands_that_a_kind_needs_must_be_given),
      cmocka_unit_test(test_a_backward_call_must_ask_for_something),
      cmocka_unit_test(test_operands_against_the_description_are_refused),
      cmocka_unit_test(test_operands_of_other_kinds_are_ignored),
      cmocka_unit_test(test_operands_on_other_devices_are_refused),
      cmocka_unit_test(test_operands_of_other_types_are_refused),
      cmocka_unit_test(test_operands_of_other_ranks_are_refused),
      cmocka_unit_test(test_operands_of_other_extents_are_refused),
      cmocka_unit_test(test_shapes_of_no_elements_must_fit_as_well),
      cmocka_unit_test(test_short_operands_are_refused_with_the_bytes_they_need),
      cmocka_unit_test(test_missing_and_misaligned_data_is_refused),
      cmocka_unit_test(test_operands_are_checked_in_order),
      cmocka_unit_test(test_plans_and_args_of_the_other_family_are_refused),
      cmocka_unit_test(test_args_of_other_sizes_are_refused),
      cmocka_unit_test(test_workspaces_are_there_long_enough_and_aligned),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
