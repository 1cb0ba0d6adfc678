/* test_values.c: what run finds in offsets, ids and indices, and groupings that are not what they should be.
 *
 * Whatever is found is the first of its kind, for any number of threads, and nothing has been written by then.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/call.h"
#include "support/environment.h"

static const int thread_counts[] = {1, 2, 7, 16};

static int64_t get_integer(const call *c, int at, int64_t in_problem, int64_t i)
{
  const void *place = operand_at(&c->p->operand[at], in_problem, 0, i);
  return c->p->operand[at].dtype == SHEAF_I64 ? *(const int64_t *)place : *(const int32_t *)place;
}

static void set_integer(call *c, int at, int64_t in_problem, int64_t i, int64_t value)
{
  void *place = operand_at(&c->p->operand[at], in_problem, 0, i);
  if (c->p->operand[at].dtype == SHEAF_I64)
    *(int64_t *)place = value;
  else
    *(int32_t *)place = (int32_t)value;
}

static void check_info(int64_t position, int64_t value, int64_t count)
{
  sheaf_error_info info = sheaf_last_error_info();
  assert_int_equal(info.position, position);
  assert_int_equal(info.value, value);
  assert_int_equal(info.count, count);
}

/* ---- Offsets ----------------------------------------------------------------------------------------------------- */

/* Spoils offset i of the last problem and expects its place, its value and `other` in the text. */
static void wrong_offset(call *c, int64_t i, int64_t value, int64_t other)
{
  char of[48] = "", place[128];
  int64_t last = c->p->spec.batch ? c->p->spec.batch - 1 : 0, before = get_integer(c, AT_OFFSETS, last, i);
  if (c->p->spec.batch) snprintf(of, sizeof of, " of problem %lld", (long long)last); /* who has one is told of none */
  snprintf(place, sizeof place, "offsets[%lld]%s is %lld", (long long)i, of, (long long)value);
  set_integer(c, AT_OFFSETS, last, i, value);
  call_run_refused(c, AT_OFFSETS, INVALID_PROBLEM, place, number(other));
  check_info(i, value, 1);
  set_integer(c, AT_OFFSETS, last, i, before);
}

static void test_offsets_start_at_0_do_not_decrease_and_stay_within_the_indices(void **state)
{
  (void)state;
  for (int kind = SHEAF_BAG_SUM; kind <= SHEAF_BAG_MAX; kind++)
    for (int form = 0; form < 8; form++) {
      problem_spec spec = call_spec(kind);
      spec.bag_form = form & 1 ? SHEAF_BAGS_OFFSETS_END : SHEAF_BAGS_OFFSETS;
      spec.offset_dtype = form & 2 ? SHEAF_I64 : SHEAF_I32;
      spec.batch = form & 4 ? 3 : 0;
      call *c = call_make(&spec);
      int64_t last = spec.batch ? spec.batch - 1 : 0, entries = spec.bags + (form & 1),
              smallest = form & 2 ? INT64_MIN : INT32_MIN;
      const int64_t good[] = {0, 3, 3, 12, 12};
      for (int64_t i = 0; i < entries; i++) set_integer(c, AT_OFFSETS, last, i, good[i]);
      call_accepted(c);
      call_restore(c);
      wrong_offset(c, 0, 1, 0);
      wrong_offset(c, 0, -1, 0);
      wrong_offset(c, 1, -1, 0);
      wrong_offset(c, 1, smallest, 0);
      wrong_offset(c, 2, 2, 3);
      wrong_offset(c, 2, 13, 12);
      wrong_offset(c, 3, form & 2 ? INT64_MAX : INT32_MAX, 12);
      if (form & 1) {
        wrong_offset(c, 4, 11, 12);
        set_integer(c, AT_OFFSETS, last, 3, 5);
        wrong_offset(c, 4, 11, 12); /* not decreasing, but short of the end */
        wrong_offset(c, 4, 13, 12);
      }
      call_free(c);
    }
}

static void test_offsets_are_checked_before_indices(void **state)
{
  (void)state;
  problem_spec spec = call_spec(SHEAF_BAG_SUM);
  spec.error_policy = true;
  call *c = call_make(&spec);
  set_integer(c, AT_INDICES, 0, 0, -9);
  call_run_refused(c, AT_INDICES, INDEX_OUT_OF_RANGE, "-9");
  set_integer(c, AT_OFFSETS, 0, 3, 77);
  call_run_refused(c, AT_OFFSETS, INVALID_PROBLEM, "offsets[3]", "77");
  call_free(c);
}

/* ---- Sorted ids -------------------------------------------------------------------------------------------------- */

static void test_unsorted_ids_of_sorted_kinds_are_refused_at_the_first_drop(void **state)
{
  (void)state;
  enum { N = 40 };
  for (int kind = 8; kind < CALL_KINDS; kind++)
    for (int form = 0; form < 8; form++) {
      problem_spec spec = call_spec(kind);
      spec.count = N;
      spec.index_dtype = form & 1 ? SHEAF_I64 : SHEAF_I32;
      spec.batch = form & 2 ? 3 : 0;
      spec.error_policy = form & 4;
      call *c = call_make(&spec);
      int64_t last = spec.batch ? spec.batch - 1 : 0;
      for (int64_t p = 0; p <= last; p++)
        for (int64_t i = 0; i < N; i++) set_integer(c, AT_IDS, p, i, i < 30 ? i / 10 : 4);
      for (int t = 0; t < LENGTH(thread_counts); t++) {
        call_select(c, thread_counts[t], false);
        call_accepted(c);
        call_restore(c);
        const int64_t drops[] = {11, 39, 20, 1};
        for (int i = 0; i < LENGTH(drops); i++) {
          int64_t before = get_integer(c, AT_IDS, last, drops[i] - 1), held = get_integer(c, AT_IDS, last, drops[i]);
          char text[96];
          set_integer(c, AT_IDS, last, drops[i], before - 1);
          snprintf(text, sizeof text, "%lld at position %lld follows %lld", (long long)(before - 1),
                   (long long)(last * N + drops[i]), (long long)before);
          if (problem_is_sorted(&spec)) {
            set_integer(c, AT_IDS, last, 39, 0); /* a second drop behind it must not be the one that is named */
            if (drops[i] == 39) set_integer(c, AT_IDS, last, 39, before - 1);
            call_run_refused(c, AT_IDS, INVALID_PROBLEM, text, "must not decrease");
            check_info(last * N + drops[i], before - 1, 1);
            set_integer(c, AT_IDS, last, 39, 4);
          } else if (before > 0 || !spec.error_policy) {
            call_accepted(c);
          }
          set_integer(c, AT_IDS, last, drops[i], held);
          call_restore(c);
        }
      }
      call_free(c);
    }
}

/* ---- Bad indices ------------------------------------------------------------------------------------------------- */

/* The operand that holds row numbers or segment ids, how many it has, and what they must be below. */
typedef struct index_operand {
  int at;
  int64_t entries, limit, absent; /* absent: a value outside of the range that is no error; 0: none */
} index_operand;

static index_operand index_operand_of(const call *c)
{
  const problem_spec *spec = &c->p->spec;
  if (spec->category == SHEAF_CATEGORY_SEGMENT) return (index_operand){AT_IDS, spec->count, spec->rows, 0};
  if (spec->kind == SHEAF_BAG_MAX_BACKWARD) return (index_operand){AT_ARG, spec->bags * spec->dim, spec->rows, -1};
  return (index_operand){AT_INDICES, spec->count, spec->rows, 0};
}

static void put_index(call *c, const index_operand *index, int64_t in_problem, int64_t i, int64_t value)
{
  int64_t columns = c->p->operand[index->at].columns; /* arg has rows */
  void *place = operand_at(&c->p->operand[index->at], in_problem, i / columns, i % columns);
  if (c->p->spec.index_dtype == SHEAF_I64)
    *(int64_t *)place = value;
  else
    *(int32_t *)place = (int32_t)value;
}

/* Good indices everywhere, then three bad ones in the last problem: the first and the last entry that may be (ids
 * of sorted kinds stay sorted), and one more behind the first. */
static void put_bad_indices(call *c, const index_operand *index, int64_t low, int64_t high, int64_t *first)
{
  int64_t problems = c->p->spec.batch ? c->p->spec.batch : 1, last = problems - 1;
  for (int64_t p = 0; p < problems; p++)
    for (int64_t i = 0; i < index->entries; i++)
      put_index(c, index, p, i, i < index->entries / 2 ? 0 : index->limit - 1);
  if (index->absent) put_index(c, index, 0, 1, index->absent);
  *first = last * index->entries;
  put_index(c, index, last, 0, low);
  put_index(c, index, last, 1, problem_is_sorted(&c->p->spec) ? low : high);
  put_index(c, index, last, index->entries - 1, high);
}

static void check_report(const call *c, int64_t count, int64_t first, int64_t value)
{
  assert_int_equal(c->outputs->report.count, count);
  assert_int_equal(c->outputs->report.first_position, first);
  assert_int_equal(c->outputs->report.first_value, value);
}

static void check_bad_indices(call *c, int64_t low, int64_t high)
{
  index_operand index = index_operand_of(c);
  char text[96], range[32];
  int64_t first;
  put_bad_indices(c, &index, low, high, &first);
  snprintf(text, sizeof text, "%lld at position %lld", (long long)low, (long long)first);
  snprintf(range, sizeof range, "outside 0..%lld", (long long)index.limit - 1);
  for (int t = 0; t < LENGTH(thread_counts); t++) {
    call_select(c, thread_counts[t], false);
    if (c->p->spec.error_policy) {
      call_run_refused(c, index.at, INDEX_OUT_OF_RANGE, text, range, "3 such entries");
      check_info(first, low, 3);
    } else {
      call_accepted(c);
    }
    if (c->p->spec.want_report) check_report(c, 3, first, low);
  }
}

static void test_bad_indices_are_reported_and_errors_only_where_asked_for(void **state)
{
  (void)state;
  for (int kind = 0; kind < CALL_KINDS; kind++)
    for (int form = 0; form < 16; form++) {
      problem_spec spec = call_spec(kind);
      spec.index_dtype = form & 1 ? SHEAF_I64 : SHEAF_I32;
      spec.batch = form & 2 ? 3 : 0;
      spec.error_policy = form & 4;
      spec.want_report = form & 8;
      call *c = call_make(&spec);
      check_bad_indices(c, -2, spec.rows);
      check_bad_indices(c, form & 1 ? INT64_MIN : INT32_MIN, form & 1 ? INT64_MAX : INT32_MAX);
      call_free(c);
    }
}

static void test_one_bad_index_is_one_entry(void **state)
{
  (void)state;
  problem_spec spec = call_spec(SHEAF_LOOKUP);
  spec.error_policy = spec.want_report = true;
  call *c = call_make(&spec);
  set_integer(c, AT_INDICES, 0, 7, 5);
  call_run_refused(c, AT_INDICES, INDEX_OUT_OF_RANGE, "indices: 5 at position 7 is outside 0..4; 1 such entry");
  check_report(c, 1, 7, 5);
  set_integer(c, AT_INDICES, 0, 7, 4);
  call_accepted(c);
  check_report(c, 0, -1, 0);
  call_free(c);
}

/* ---- Groupings --------------------------------------------------------------------------------------------------- */

typedef struct grouping {
  unsigned char *memory;
  size_t bytes;
} grouping;

static sheaf_status build(call *c, const grouping *made)
{
  if (call_is_embedding(c)) {
    sheaf_embedding_args args = problem_embedding_args(c->p, c->outputs);
    return sheaf_embedding_grouping_build(c->plan, made->memory, made->bytes, NULL, &args);
  }
  sheaf_segment_args args = problem_segment_args(c->p, c->outputs);
  return sheaf_segment_grouping_build(c->plan, made->memory, made->bytes, NULL, &args);
}

static grouping grouping_of(call *c)
{
  grouping made = {NULL, sheaf_grouping_size(c->plan)};
  if (made.bytes == 0) return made;
  made.memory = aligned_alloc(64, (made.bytes + 127) / 64 * 64);
  assert_non_null(made.memory);
  if (build(c, &made) != SHEAF_OK) fail_msg("%s", sheaf_last_error());
  return made;
}

/* The grouping lies over an operand, and over the workspace. */
static void share_grouping(call *c, const grouping *made)
{
  char text[64];
  int at = index_operand_of(c).at;
  c->grouping = made->memory;
  c->grouping_bytes = made->bytes;
  snprintf(text, sizeof text, "the grouping shares memory with %s", call_operand_name(c, at));
  c->tensor[at].data = made->memory + 64;
  c->tensor[at].byte_offset = 0;
  c->operand[at].bytes = 0;
  call_refused(c, -1, INVALID_PROBLEM, text);
  call_restore(c);
  if (c->workspace_bytes == 0) return;
  unsigned char *workspace = c->workspace;
  c->grouping = c->workspace = made->memory;
  c->grouping_bytes = made->bytes;
  if (c->workspace_bytes <= made->bytes) call_run_refused(c, -1, INVALID_PROBLEM, "workspace", "grouping");
  c->workspace = workspace;
  call_restore(c);
}

static void spoil_grouping(call *c, const grouping *made)
{
  call_refused(c, -1, INVALID_PROBLEM, "grouping", "NULL");
  c->grouping = made->memory;
  c->grouping_bytes = 40;
  assert_int_equal(call_can_implement(c), SHEAF_BUFFER_TOO_SMALL);
  assert_int_equal(call_run(c), SHEAF_BUFFER_TOO_SMALL);
  assert_string_equal(sheaf_last_error_info().operand, "grouping");
  assert_int_equal(sheaf_last_error_info().got, 40);
  assert_true(sheaf_last_error_info().needed > 40 && sheaf_last_error_info().needed <= (int64_t)made->bytes);
  call_expect_untouched(c, __LINE__);
  c->grouping = made->memory + 1;
  c->grouping_bytes = made->bytes;
  call_refused(c, -1, MISALIGNED, "grouping");
  unsigned char *zeros = aligned_alloc(64, (made->bytes + 63) / 64 * 64);
  assert_non_null(zeros);
  memset(zeros, 0, made->bytes);
  c->grouping = zeros;
  call_refused(c, -1, INVALID_PROBLEM, "not made for this description");
  free(zeros);
  share_grouping(c, made);
  c->grouping = made->memory;
  c->grouping_bytes = made->bytes;
  call_accepted(c);
  call_restore(c);
}

static void test_groupings_must_be_given_whole_aligned_and_of_this_description(void **state)
{
  (void)state;
  int grouped = 0;
  for (int kind = 0; kind < CALL_KINDS; kind++) {
    problem_spec spec = call_spec(kind), other = spec;
    call *c = call_make(&spec);
    grouping own = grouping_of(c);
    if (!own.memory) {
      grouping none = {(unsigned char *)c->workspace, 64};
      assert_int_equal(build(c, &none), SHEAF_INVALID_PROBLEM);
      assert_non_null(strstr(sheaf_last_error(), "needs no grouping"));
      call_free(c);
      continue;
    }
    grouped++;
    call_select(c, 1, true);
    spoil_grouping(c, &own);
    other.rows++;
    call *wider = call_make(&other);
    grouping foreign = grouping_of(wider);
    c->grouping = foreign.memory;
    c->grouping_bytes = foreign.bytes;
    call_refused(c, -1, INVALID_PROBLEM, "not made for this description");
    free(foreign.memory);
    free(own.memory);
    call_free(wider);
    call_free(c);
  }
  assert_int_equal(grouped, 4 + 8); /* backward of embeddings; unsorted forward, and max, min and prod backward */
}

/* A grouping made with fewer threads is shorter; what lies right behind it is not part of it. */
static void test_groupings_end_where_they_were_made_to_end(void **state)
{
  (void)state;
  for (int kind = 0; kind < CALL_KINDS; kind++) {
    problem_spec spec = call_spec(kind);
    call *c = call_make(&spec);
    grouping own = grouping_of(c);
    if (own.memory) {
      int at = index_operand_of(c).at;
      size_t end = (own.bytes + 63) / 64 * 64, bytes = c->operand[at].bytes;
      unsigned char *both = aligned_alloc(64, (end + bytes + 63) / 64 * 64);
      assert_non_null(both);
      memcpy(both, own.memory, own.bytes);
      memcpy(both + end, (char *)c->tensor[at].data + c->tensor[at].byte_offset, bytes);
      call_select(c, 16, true);
      assert_true(sheaf_grouping_size(c->plan) > own.bytes);
      c->grouping = both;
      c->grouping_bytes = own.bytes;
      c->tensor[at].data = both + end;
      c->tensor[at].byte_offset = 0;
      call_accepted(c);
      free(both);
    }
    free(own.memory);
    call_free(c);
  }
}

/* The memory, operands and values of grouping_build are checked as those of run. */
static void test_grouping_build_checks_what_it_reads(void **state)
{
  (void)state;
  for (int kind = 0; kind < CALL_KINDS; kind++) {
    problem_spec spec = call_spec(kind);
    spec.error_policy = true;
    call *c = call_make(&spec);
    grouping own = grouping_of(c), wrong = own;
    if (!own.memory) {
      call_free(c);
      continue;
    }
    wrong.bytes = own.bytes - 1;
    assert_int_equal(build(c, &wrong), SHEAF_BUFFER_TOO_SMALL);
    assert_int_equal(sheaf_last_error_info().needed, own.bytes);
    assert_int_equal(sheaf_last_error_info().got, wrong.bytes);
    wrong = (grouping){NULL, own.bytes};
    assert_int_equal(build(c, &wrong), SHEAF_BUFFER_TOO_SMALL);
    assert_int_equal(sheaf_last_error_info().got, 0);
    wrong = (grouping){own.memory + 8, own.bytes};
    assert_int_equal(build(c, &wrong), SHEAF_MISALIGNED);
    index_operand index = index_operand_of(c);
    problem_operand *indices = &c->p->operand[index.at];
    DLTensor tensor = indices->tensor; /* a grouping that would be written over what it is made of */
    char text[64];
    snprintf(text, sizeof text, "the grouping shares memory with %s", call_operand_name(c, index.at));
    indices->tensor.data = own.memory + 64;
    indices->tensor.byte_offset = 0;
    assert_int_equal(build(c, &own), SHEAF_INVALID_PROBLEM);
    assert_non_null(strstr(sheaf_last_error(), text));
    indices->tensor = tensor;
    indices->given = false;
    assert_int_equal(build(c, &own), SHEAF_INVALID_PROBLEM);
    assert_string_equal(sheaf_last_error_info().operand, call_operand_name(c, index.at));
    indices->given = true;
    indices->shape[0]++;
    assert_int_equal(build(c, &own), SHEAF_INVALID_PROBLEM);
    indices->shape[0]--;
    put_index(c, &index, 0, 3, -5);
    assert_int_equal(build(c, &own), SHEAF_INDEX_OUT_OF_RANGE);
    check_info(3, -5, 1);
    free(own.memory);
    call_free(c);
  }
}

int main(int argc, char **argv)
{
  (void)argc;
  environment_prepare(argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_offsets_start_at_0_do_not_decrease_and_stay_within_the_indices),
      cmocka_unit_test(test_offsets_are_checked_before_indices),
      cmocka_unit_test(test_unsorted_ids_of_sorted_kinds_are_refused_at_the_first_drop),
      cmocka_unit_test(test_bad_indices_are_reported_and_errors_only_where_asked_for),
      cmocka_unit_test(test_one_bad_index_is_one_entry),
      cmocka_unit_test(test_groupings_must_be_given_whole_aligned_and_of_this_description),
      cmocka_unit_test(test_groupings_end_where_they_were_made_to_end),
      cmocka_unit_test(test_grouping_build_checks_what_it_reads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
