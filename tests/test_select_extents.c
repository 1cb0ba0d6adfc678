/* test_select_extents.c: how select refuses extents, ranges, padding and bags that contradict each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "support/refusals.h"

/* The largest extent that plan.h promises. */
#define LARGEST ((int64_t)1 << 46)

/* ---- Extents ----------------------------------------------------------------------------------------------------- */

static void test_negative_extents_are_refused(void **state)
{
  (void)state;
  const int64_t values[] = {-1, -77, INT64_MIN};
  for (int i = 0; i < LENGTH(values); i++) {
    for (int kind = 0; kind < 8; kind++) {
      sheaf_embedding_desc desc = embedding_of((sheaf_embedding_kind)kind);
      int64_t *extents[] = {&desc.rows,  &desc.dim,       &desc.indices,   &desc.bags,
                            &desc.batch, &desc.row_begin, &desc.total_rows};
      const char *names[] = {"rows ", "dim ", "indices ", "bags ", "batch ", "row_begin ", "total_rows "};
      for (int e = 0; e < LENGTH(extents); e++) {
        char text[48];
        int64_t before = *extents[e];
        *extents[e] = values[i];
        snprintf(text, sizeof text, "%s%s", names[e], number(values[i]));
        refuses_embedding(&desc, NULL, INVALID_PROBLEM, text, "negative");
        *extents[e] = before;
      }
    }
    for (int kind = 0; kind < 20; kind++) {
      sheaf_segment_desc desc = segments_of((sheaf_segment_kind)kind);
      int64_t *extents[] = {&desc.rows, &desc.dim, &desc.segments, &desc.batch};
      const char *names[] = {"rows ", "dim ", "segments ", "batch "};
      for (int e = 0; e < LENGTH(extents); e++) {
        char text[48];
        int64_t before = *extents[e];
        *extents[e] = values[i];
        snprintf(text, sizeof text, "%s%s", names[e], number(values[i]));
        refuses_segment(&desc, NULL, INVALID_PROBLEM, text, "negative");
        *extents[e] = before;
      }
    }
  }
}

/* Absurd pairs and triples: every product that a run would form has to fit 63 bits, workspace included. */
static void test_overflowing_embedding_products_are_refused(void **state)
{
  (void)state;
  const int64_t big[] = {INT64_MAX, INT64_MAX / 8, (int64_t)1 << 60, LARGEST + 1};
  for (int kind = 0; kind < 8; kind++)
    for (int i = 0; i < LENGTH(big); i++) {
      sheaf_embedding_desc desc = embedding_of((sheaf_embedding_kind)kind);
      desc.rows = big[i];
      refuses_embedding(&desc, NULL, INVALID_PROBLEM, number(big[i]), "4");
      desc = embedding_of((sheaf_embedding_kind)kind);
      desc.dim = big[i];
      refuses_embedding(&desc, NULL, INVALID_PROBLEM, number(big[i]));
      desc = embedding_of((sheaf_embedding_kind)kind);
      desc.indices = big[i];
      refuses_embedding(&desc, NULL, INVALID_PROBLEM, number(big[i]));
      desc = embedding_of((sheaf_embedding_kind)kind);
      desc.batch = big[i];
      refuses_embedding(&desc, NULL, INVALID_PROBLEM, number(big[i]));
      if (kind <= SHEAF_LOOKUP_BACKWARD) continue;
      desc = embedding_of((sheaf_embedding_kind)kind);
      desc.bags = big[i];
      refuses_embedding(&desc, NULL, INVALID_PROBLEM, number(big[i]));
    }
  sheaf_embedding_desc desc = embedding_of(SHEAF_LOOKUP);
  desc.rows = (int64_t)1 << 32;
  desc.dim = (int64_t)1 << 31;
  refuses_embedding(&desc, NULL, INVALID_PROBLEM, "table", "4294967296 x 2147483648");
  desc.dim = 1 << 20;
  desc.batch = 1 << 20;
  refuses_embedding(&desc, NULL, INVALID_PROBLEM, "4294967296 x 1048576 in 1048576 problems");
}

static void test_overflowing_segment_products_are_refused(void **state)
{
  (void)state;
  const int64_t big[] = {INT64_MAX, INT64_MAX / 8, (int64_t)1 << 60, LARGEST + 1};
  for (int kind = 0; kind < 20; kind++)
    for (int i = 0; i < LENGTH(big); i++)
      for (int e = 0; e < 4; e++) {
        sheaf_segment_desc desc = segments_of((sheaf_segment_kind)kind);
        int64_t *extents[] = {&desc.rows, &desc.dim, &desc.segments, &desc.batch};
        *extents[e] = big[i];
        refuses_segment(&desc, NULL, INVALID_PROBLEM, number(big[i]));
      }
  sheaf_segment_desc desc = segments_of(SHEAF_SEGMENT_SUM);
  desc.rows = (int64_t)1 << 32;
  desc.dim = (int64_t)1 << 31;
  refuses_segment(&desc, NULL, INVALID_PROBLEM, "4294967296 rows", "2147483648");
}

/* The plan of kind 0 to 27 (8 of embeddings, 20 of segments) over 2^entries entries of 2^columns - 1 columns,
 * 2^batch times. */
static sheaf_status select_near_a_limit(int kind, int entries, int columns, int batch, int threads, sheaf_plan **plan)
{
  sheaf_preference wish = SHEAF_PREFERENCE_INIT;
  wish.threads = threads;
  if (kind >= 8) {
    sheaf_segment_desc desc = segments_of((sheaf_segment_kind)(kind - 8));
    desc.segments = 1 + entries % 2;
    desc.rows = (int64_t)1 << entries;
    desc.dim = ((int64_t)1 << columns) - 1;
    desc.batch = (int64_t)1 << batch;
    desc.ties = SHEAF_TIES_SPLIT;
    return sheaf_segment_select(&desc, &wish, plan);
  }
  sheaf_embedding_desc desc = embedding_of((sheaf_embedding_kind)kind);
  desc.rows = 1 + entries % 2;
  desc.indices = (int64_t)1 << entries;
  if (desc.bags) desc.bags = desc.indices;
  desc.weighted = kind >= SHEAF_BAG_SUM && kind <= SHEAF_BAG_MEAN_BACKWARD;
  desc.dim = ((int64_t)1 << columns) - 1;
  desc.batch = (int64_t)1 << batch;
  return sheaf_embedding_select(&desc, &wish, plan);
}

/* Whatever is accepted has a workspace and a grouping of a size that makes sense, with many threads too. */
static void test_accepted_extents_have_workspaces_that_fit_63_bits(void **state)
{
  (void)state;
  int accepted = 0, refused = 0;
  for (int kind = 0; kind < 28; kind++)
    for (int entries = 0; entries <= 46; entries++)
      for (int columns = 0; columns <= 46; columns += 1 + columns / 8)
        for (int batch = 0; batch <= 46; batch += 1 + batch / 8) {
          sheaf_plan *plan = NULL;
          sheaf_status status = select_near_a_limit(kind, entries, columns, batch, batch % 2 ? 256 : 1, &plan);
          size_t workspace = sheaf_plan_workspace_size(plan), grouping = sheaf_grouping_size(plan);
          if (workspace > INT64_MAX || grouping > INT64_MAX)
            fail_msg("kind %d, 2^%d entries of 2^%d columns, 2^%d times: a workspace of %zu bytes, a grouping of %zu",
                     kind, entries, columns, batch, workspace, grouping);
          if (status == SHEAF_OK)
            accepted++;
          else
            refused++;
          if (status != SHEAF_OK) assert_true(status == SHEAF_INVALID_PROBLEM || status == SHEAF_UNSUPPORTED);
          sheaf_plan_free(plan);
        }
  assert_true(accepted > 1000 && refused > 1000);
}

static void test_large_but_possible_extents_are_accepted(void **state)
{
  (void)state;
  sheaf_embedding_desc lookup = embedding_of(SHEAF_LOOKUP);
  lookup.rows = (int64_t)1 << 40;
  lookup.dim = 128;
  lookup.indices = (int64_t)1 << 33;
  accepts_embedding(&lookup);
  lookup.kind = SHEAF_LOOKUP_BACKWARD;
  lookup.rows = (int64_t)1 << 28;
  accepts_embedding(&lookup);
  sheaf_embedding_desc bags = embedding_of(SHEAF_BAG_MEAN);
  bags.rows = bags.indices = (int64_t)1 << 36;
  bags.bags = (int64_t)1 << 32;
  bags.dim = 256;
  accepts_embedding(&bags);
  sheaf_segment_desc segments = segments_of(SHEAF_UNSORTED_SEGMENT_MAX);
  segments.rows = (int64_t)1 << 33;
  segments.segments = (int64_t)1 << 24;
  segments.dim = 64;
  segments.batch = 16;
  accepts_segment(&segments);
}

static void test_zero_extents_are_accepted(void **state)
{
  (void)state;
  for (int kind = 0; kind < 8; kind++)
    for (int e = 0; e < 5; e++) {
      sheaf_embedding_desc desc = embedding_of((sheaf_embedding_kind)kind);
      int64_t *extents[] = {&desc.rows, &desc.dim, &desc.indices, &desc.bags, &desc.batch};
      *extents[e] = 0;
      if (desc.bags == 0 && kind != SHEAF_BAG_MAX_BACKWARD && kind > SHEAF_LOOKUP_BACKWARD) desc.indices = 0;
      accepts_embedding(&desc);
    }
  for (int kind = 0; kind < 20; kind++)
    for (int e = 0; e < 4; e++) {
      sheaf_segment_desc desc = segments_of((sheaf_segment_kind)kind);
      int64_t *extents[] = {&desc.rows, &desc.dim, &desc.segments, &desc.batch};
      *extents[e] = 0;
      accepts_segment(&desc);
    }
}

/* ---- Ranges, padding, bags --------------------------------------------------------------------------------------- */

static void test_part_of_a_table_lies_within_it(void **state)
{
  (void)state;
  sheaf_embedding_desc desc = embedding_of(SHEAF_BAG_SUM);
  desc.row_begin = 3;
  refuses_embedding(&desc, NULL, INVALID_PROBLEM, "row_begin is 3", "total_rows");
  desc.total_rows = 13;
  accepts_embedding(&desc);
  desc.total_rows = 12;
  refuses_embedding(&desc, NULL, INVALID_PROBLEM, "rows 3..12", "a table of 12");
  desc.row_begin = 0;
  desc.total_rows = 9;
  refuses_embedding(&desc, NULL, INVALID_PROBLEM, "rows 0..9", "a table of 9");
  desc.row_begin = INT64_MAX;
  desc.total_rows = 100;
  refuses_embedding(&desc, NULL, INVALID_PROBLEM, number(INT64_MAX), "100");
  desc.total_rows = INT64_MAX;
  refuses_embedding(&desc, NULL, INVALID_PROBLEM, number(INT64_MAX));
  desc.total_rows = LARGEST;
  desc.row_begin = LARGEST - 9;
  refuses_embedding(&desc, NULL, INVALID_PROBLEM, number(LARGEST - 9), number(LARGEST));
  desc.row_begin = LARGEST - 10;
  accepts_embedding(&desc);
}

static void test_padding_lies_within_the_whole_table(void **state)
{
  (void)state;
  for (int kind = 0; kind < 8; kind++) {
    sheaf_embedding_desc desc = embedding_of((sheaf_embedding_kind)kind);
    const int64_t outside[] = {-1, 10, INT64_MIN, INT64_MAX};
    for (int i = 0; i < LENGTH(outside); i++) {
      desc.padding_idx = outside[i];
      desc.has_padding = 0;
      accepts_embedding(&desc);
      desc.has_padding = 1;
      refuses_embedding(&desc, NULL, INVALID_PROBLEM, "padding_idx", number(outside[i]), "0..9");
    }
    desc.padding_idx = 9;
    accepts_embedding(&desc);
    desc.padding_idx = 19;
    desc.row_begin = 2;
    desc.total_rows = 20;
    accepts_embedding(&desc);
    desc.padding_idx = 20;
    refuses_embedding(&desc, NULL, INVALID_PROBLEM, "padding_idx 20", "0..19");
  }
}

static void test_bags_hold_the_indices(void **state)
{
  (void)state;
  for (int kind = 0; kind < 8; kind++) {
    sheaf_embedding_desc desc = embedding_of((sheaf_embedding_kind)kind);
    if (kind <= SHEAF_LOOKUP_BACKWARD) {
      desc.bags = 3;
      refuses_embedding(&desc, NULL, INVALID_PROBLEM, "lookup", "bags is 3");
      continue;
    }
    if (kind == SHEAF_BAG_MAX_BACKWARD) continue;
    desc.bags = 0;
    refuses_embedding(&desc, NULL, INVALID_PROBLEM, "6 indices", "no bag");
    desc.bags = 4;
    accepts_embedding(&desc);
    desc.bag_form = SHEAF_BAGS_MATRIX;
    refuses_embedding(&desc, NULL, INVALID_PROBLEM, "6 indices", "4 bags");
    desc.bags = 3;
    accepts_embedding(&desc);
  }
}

static void test_groupings_beyond_63_bits_are_refused(void **state)
{
  (void)state;
  sheaf_embedding_desc desc = embedding_of(SHEAF_LOOKUP_BACKWARD);
  desc.rows = (int64_t)1 << 40;
  desc.indices = (int64_t)1 << 23;
  accepts_embedding(&desc);
  desc.indices++;
  refuses_embedding(&desc, NULL, UNSUPPORTED, "8388609 entries", "1099511627776 rows", "64 bits", "63");
  desc.kind = SHEAF_LOOKUP;
  accepts_embedding(&desc);
  sheaf_segment_desc segments = segments_of(SHEAF_UNSORTED_SEGMENT_PROD);
  segments.rows = (int64_t)1 << 33;
  segments.segments = (int64_t)1 << 28;
  segments.dim = 1;
  segments.batch = 4;
  accepts_segment(&segments);
  segments.batch = 5;
  refuses_segment(&segments, NULL, UNSUPPORTED, "8589934592 entries", "268435456 rows", "5 problems");
  segments.kind = SHEAF_SEGMENT_PROD;
  accepts_segment(&segments);
}

/* Positions past 2^31 - 1 do not fit an arg of i32: it can be neither read nor written then. */
static void test_positions_must_fit_arg(void **state)
{
  (void)state;
  const sheaf_segment_kind backward[] = {SHEAF_SEGMENT_MAX_BACKWARD, SHEAF_SEGMENT_MIN_BACKWARD,
                                         SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD, SHEAF_UNSORTED_SEGMENT_MIN_BACKWARD};
  for (int i = 0; i < LENGTH(backward); i++) {
    sheaf_segment_desc desc = segments_of(backward[i]);
    desc.arg_given = 1;
    desc.rows = INT32_MAX;
    accepts_segment(&desc);
    desc.rows = (int64_t)INT32_MAX + 2;
    refuses_segment(&desc, NULL, INVALID_PROBLEM, "2147483649 rows", "i32", "i64");
    desc.index_dtype = SHEAF_I64;
    accepts_segment(&desc);
    desc.index_dtype = SHEAF_I32;
    desc.arg_given = 0;
    accepts_segment(&desc);
  }
  const sheaf_segment_kind forward[] = {SHEAF_SEGMENT_MAX, SHEAF_UNSORTED_SEGMENT_MIN};
  for (int i = 0; i < LENGTH(forward); i++) {
    sheaf_segment_desc desc = segments_of(forward[i]);
    desc.rows = (int64_t)INT32_MAX + 2;
    sheaf_plan *plan = segment_plan(&desc, NULL);
    sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
    DLTensor any = {.ndim = 0};
    args.data.tensor = args.ids.tensor = args.out.tensor = args.arg.tensor = &any;
    assert_int_equal(sheaf_segment_can_implement(plan, &args), SHEAF_INVALID_PROBLEM);
    assert_string_equal(sheaf_last_error_info().operand, "arg");
    assert_non_null(strstr(sheaf_last_error(), "i64"));
    sheaf_plan_free(plan);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_negative_extents_are_refused),
      cmocka_unit_test(test_overflowing_embedding_products_are_refused),
      cmocka_unit_test(test_overflowing_segment_products_are_refused),
      cmocka_unit_test(test_accepted_extents_have_workspaces_that_fit_63_bits),
      cmocka_unit_test(test_large_but_possible_extents_are_accepted),
      cmocka_unit_test(test_zero_extents_are_accepted),
      cmocka_unit_test(test_part_of_a_table_lies_within_it),
      cmocka_unit_test(test_padding_lies_within_the_whole_table),
      cmocka_unit_test(test_bags_hold_the_indices),
      cmocka_unit_test(test_groupings_beyond_63_bits_are_refused),
      cmocka_unit_test(test_positions_must_fit_arg),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
