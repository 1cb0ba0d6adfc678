/* test_bits.c: every kernel of the build against the bit oracle, bit for bit, with every option and number of threads.
 *
 * Kernels of one op, element and index type (one per instruction set) share their problems. Environment:
 * SHEAF_TEST_LONG=1 runs many more problems; SHEAF_TEST_QUICK=1 fewer, each with one thread and one other number;
 * SHEAF_TEST_ONLY=words keeps to ops whose name ("bag_sum.f16.i64") holds one of the words, between commas.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/environment.h"
#include "support/kernel_groups.h"
#include "support/problem_run.h"

static const int thread_counts[] = {1, 2, 3, 7, 16};
static const int64_t lengths[] = {1, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097, 65537};
static const int64_t widths[] = {0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 257, 200, 384};
enum { THREAD_COUNTS = 5, LENGTHS = 11, WIDTHS = 22 };

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static void run_one_way(problem *p, const problem_outputs *expected, problem_outputs *got, const problem_way *way,
                        bool *groups)
{
  char label[128];
  snprintf(label, sizeof label, "%s, %d threads%s", way->kernel, way->threads, way->grouping ? ", grouping given" : "");
  problem_outputs_reset(p, got);
  assert_int_equal(problem_run(p, got, way, groups), SHEAF_OK);
  assert_true(problem_outputs_equal(p, expected, got, label));
}

/* Which other number of threads than one a problem is run with in any case: sixteen, which few machines of ours have the
 * cores for and most of whose time goes to waking them, one time in eight. */
static int other_threads(const problem_spec *spec)
{
  return spec->seed % 8 == 7 ? THREAD_COUNTS - 1 : 1 + (int)(spec->seed % (THREAD_COUNTS - 2));
}

/* Every kernel of the group on one problem: with all numbers of threads (but sixteen, see above), or with 1 and one other.
 * They are the outer loop, since OpenMP makes threads anew whenever their number changes. */
static void check_problem(const kernel_group *group, const problem_spec *spec, bool all_threads)
{
  problem *p = problem_make(spec);
  problem_outputs *expected = problem_outputs_make(p);
  problem_outputs *got = problem_outputs_make(p);
  problem_expect(p, expected);
  const int other = other_threads(spec), most = is_switched_on("SHEAF_TEST_LONG") ? THREAD_COUNTS : THREAD_COUNTS - 1;
  for (int t = 0; t < THREAD_COUNTS; t++) {
    if (t != 0 && t != other && (!all_threads || t >= most)) continue;
    for (int k = 0; k < group->kernels; k++) {
      problem_way way = {group->kernel[k], thread_counts[t], false};
      bool groups = false;
      run_one_way(p, expected, got, &way, &groups);
      if (groups && (t == 0 || t == other)) {
        way.grouping = true;
        run_one_way(p, expected, got, &way, NULL);
      }
    }
  }
  assert_true(problem_inputs_intact(p));
  problem_outputs_free(expected);
  problem_outputs_free(got);
  problem_free(p);
}

static void check_lengths(const kernel_group *group, bool all_threads)
{
  for (int64_t i = 0; i < LENGTHS; i++) {
    const int64_t n = lengths[i];
    const problem_spec spec = length_problem(group, i, n, n > 10000 ? 2 : 3 + i % 3);
    check_problem(group, &spec, all_threads);
  }
}

static void check_widths(const kernel_group *group, bool all_threads)
{
  for (int64_t i = 0; i < WIDTHS; i++) {
    problem_spec spec = {.count = 50 + 7 * (i % 5), .dim = widths[i], .rows = 17, .bags = 9};
    choose_options(group, &spec, 100 + i);
    check_problem(group, &spec, all_threads);
  }
}

/* Empty extents, single entries, wide rows, many rows, many bags, many entries. Of the large ones, at the end, whose
 * time goes to the oracle, a quick run gives each group one: every op gets all, but not with every type. */
static void check_shapes(const kernel_group *group, bool all_threads)
{
  enum { LARGE = 5 };
  static const struct {
    int64_t count, dim, rows, bags;
  } shapes[] = {{0, 5, 7, 3},      {0, 0, 0, 0},         {5, 4, 0, 2},           {0, 3, 4, 0},
                {1, 1, 1, 1},      {1, 8, 300, 40},      {300, 6, 1, 1},         {64, 16, 5, 8},
                {1000, 20, 3, 50}, {2500, 4, 3000, 6},   {900, 33, 700, 100},    {3000, 1, 70000, 200},
                {45, 1031, 6, 5},  {4000, 2, 30, 20000}, {100000, 1, 9000, 3000}};
  const int64_t count = sizeof shapes / sizeof *shapes, first_large = count - LARGE;
  const int64_t chosen = first_large + (2 * group->number + (group->index_element == SHEAF_I64)) % LARGE;
  for (int64_t i = 0; i < count; i++) {
    if (i >= first_large && i != chosen && is_switched_on("SHEAF_TEST_QUICK")) continue;
    problem_spec spec = {
        .count = shapes[i].count, .dim = shapes[i].dim, .rows = shapes[i].rows, .bags = shapes[i].bags};
    choose_options(group, &spec, 200 + i);
    if (spec.rows == 0) {
      spec.error_policy = false; /* every index is bad */
      spec.has_padding = spec.padding_row = spec.sharded = false;
    }
    check_problem(group, &spec, all_threads);
  }
}

/* Bags of rows of 256 bytes, so many that kernels look first whether the same rows come again and again: of few rows,
 * where they do, and of many. */
static void check_repetition(const kernel_group *group, bool all_threads)
{
  static const int64_t rows[] = {40, 3000};
  if (group->category != SHEAF_CATEGORY_EMBEDDING || (group->kind != SHEAF_BAG_SUM && group->kind != SHEAF_BAG_MEAN))
    return; /* others do not look */
  int64_t dim = 1;
  while (sheaf_dtype_row_bytes(group->element, dim + 1) <= 256) dim++;
  for (int64_t i = 0; i < 2; i++) {
    problem_spec spec = {.count = 4200, .dim = dim, .rows = rows[i], .bags = 60};
    choose_options(group, &spec, 250 + i);
    spec.spread = SPREAD_UNIFORM;
    check_problem(group, &spec, all_threads);
  }
}

/* Bags without a skipped row, of all numbers of vectors for which kernels have loops of their own, the last one full or not; one
 * of the bags is longer than a chunk. Counted in vectors of AVX2: up to 36 each, then what AVX-512 makes one wide tile of, or
 * several and all kinds of rests. */
static void check_vectors(const kernel_group *group, bool all_threads)
{
  enum { FIRST = 5, LAST = 36, EACH = LAST - FIRST + 1 };
  static const int64_t wide[] = {40, 47, 48, 49, 63, 64, 65, 79, 84, 96, 97, 112, 127, 128, 131, 147, 160, 193};
  if (group->category != SHEAF_CATEGORY_EMBEDDING || (group->kind != SHEAF_BAG_SUM && group->kind != SHEAF_BAG_MEAN)) return;
  const int64_t lanes = group->element == SHEAF_F64 ? 4 : 8, all = EACH + (int64_t)(sizeof wide / sizeof *wide);
  for (int64_t i = 0; i < all; i += is_switched_on("SHEAF_TEST_QUICK") ? 3 : 1) {
    const int64_t vectors = i < EACH ? FIRST + i : wide[i - EACH];
    for (int weighted = 0; weighted < 2; weighted++) {
      /* Both ways, each with rows that are whole vectors and rows that are not, and with whole tiles of twelve. */
      if (weighted != vectors / 2 % 2 && vectors % 12 && i < EACH) continue;
      problem_spec spec = {.count = 500, .dim = vectors * lanes - (vectors % 2 ? 3 : 0), .rows = 23, .bags = 12};
      choose_options(group, &spec, 270 + vectors);
      spec.bad_share = spec.padding_share = 0;
      spec.has_padding = spec.sharded = false;
      spec.weighted = weighted;
      if (spec.bag_form == SHEAF_BAGS_MATRIX) spec.bag_form = SHEAF_BAGS_OFFSETS;
      spec.longest_bag = 280;
      check_problem(group, &spec, all_threads);
    }
  }
}

/* Short bags, some of them empty, about as many as kernels read the ends of together; where the last one ends is told or not. */
static void check_ends(const kernel_group *group, bool all_threads)
{
  static const int64_t bags[] = {1, 63, 64, 65, 128, 129};
  if (group->category != SHEAF_CATEGORY_EMBEDDING || (group->kind != SHEAF_BAG_SUM && group->kind != SHEAF_BAG_MEAN)) return;
  for (int64_t i = 0; i < 2 * (int64_t)(sizeof bags / sizeof *bags); i++) {
    problem_spec spec = {.count = 3 * bags[i / 2], .dim = 16, .rows = 19, .bags = bags[i / 2]};
    choose_options(group, &spec, 290 + i);
    spec.bag_form = i % 2 ? SHEAF_BAGS_OFFSETS_END : SHEAF_BAGS_OFFSETS;
    spec.bad_share = spec.padding_share = 0;
    spec.has_padding = spec.sharded = false;
    check_problem(group, &spec, all_threads);
  }
}

/* Options drawn at random, in small problems. */
static void check_mixtures(const kernel_group *group, int64_t mixtures, bool all_threads)
{
  for (int64_t i = 0; i < mixtures; i++) {
    test_random random = {(uint64_t)(group->number * 100000 + i)};
    problem_spec spec = {.count = 1 + random_below(&random, 400), .dim = random_below(&random, 40)};
    spec.rows = 1 + random_below(&random, 60);
    spec.bags = 1 + random_below(&random, 30);
    choose_options(group, &spec, 300 + i);
    check_problem(group, &spec, all_threads);
  }
}

static void test_group_matches_the_bit_oracle(void **state)
{
  const kernel_group *group = *state;
  const bool all_threads = !is_switched_on("SHEAF_TEST_QUICK");
  check_widths(group, all_threads);
  check_shapes(group, all_threads);
  check_repetition(group, all_threads);
  check_vectors(group, all_threads);
  check_ends(group, all_threads);
  check_mixtures(group,
                 is_switched_on("SHEAF_TEST_LONG")    ? 300
                 : is_switched_on("SHEAF_TEST_QUICK") ? 2
                                                      : 12,
                 all_threads);
  if (!is_switched_on("SHEAF_TEST_QUICK")) {
    check_lengths(group, all_threads);
  }
}

int main(int argc, char **argv)
{
  (void)argc;
  environment_prepare(argv);
  static kernel_group groups[MOST_GROUPS];
  static struct CMUnitTest tests[MOST_GROUPS];
  const int64_t count = kernel_groups_read(groups, getenv("SHEAF_TEST_ONLY"));
  for (int64_t i = 0; i < count; i++) {
    tests[i] = (struct CMUnitTest){groups[i].name, test_group_matches_the_bit_oracle, NULL, NULL, &groups[i]};
  }
  printf("%lld groups of kernels\n", (long long)count);
  if (count == 0) {
    return 1;
  }
  return _cmocka_run_group_tests("bits", tests, (size_t)count, NULL, NULL);
}
