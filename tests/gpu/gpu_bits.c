/* gpu_bits.c: every kernel of the CUDA plug-in against the bit oracle, bit for bit: run plainly, with a grouping given,
 * and captured in a graph.
 *
 * The problems are those of test_bits.c, and a few larger ones. Environment: SHEAF_TEST_ONLY=text keeps to ops whose
 * name ("bag_sum.f16.i64") holds the text; SHEAF_TEST_QUICK=1 runs few problems (for compute-sanitizer);
 * SHEAF_TEST_SKIP_LENGTHS=1 leaves out the long groups.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu_support.h"
#include "support/environment.h"
#include "support/kernel_groups.h"

static const int64_t lengths[] = {1, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097, 65537};
static const int64_t widths[] = {0,  1,  2,  3,  4,  7,  8,   9,   12,  15,  16,  17,  24,  31,   32,
                                 33, 40, 63, 64, 65, 96, 100, 127, 128, 129, 256, 257, 512, 1024, 1031};
enum { LENGTHS = 11, WIDTHS = 30 };

static bool is_quick;

static void run_one_way(problem *p, const problem_outputs *expected, problem_outputs *got, gpu_way way, bool *groups)
{
  static const char *const ways[] = {"plain", "grouping given", "graph"};
  problem_outputs_reset(p, got);
  assert_int_equal(gpu_run(p, got, way, groups), SHEAF_OK);
  if (!p->spec.want_report) {
    got->report = expected->report;
  }
  assert_true(problem_outputs_equal(p, expected, got, ways[way]));
}

static void check_problem(const problem_spec *spec)
{
  problem *p = problem_make(spec);
  problem_outputs *expected = problem_outputs_make(p);
  problem_outputs *got = problem_outputs_make(p);
  problem_expect(p, expected);
  bool groups = false;
  run_one_way(p, expected, got, GPU_PLAIN, &groups);
  if (spec->seed % 3 == 0) {
    run_one_way(p, expected, got, GPU_GRAPH, NULL);
  }
  if (groups && spec->seed % 2 == 0) {
    run_one_way(p, expected, got, GPU_GROUPED, NULL);
  }
  problem_outputs_free(expected);
  problem_outputs_free(got);
  problem_free(p);
}

static void check_lengths(const kernel_group *group)
{
  for (int64_t i = 0; i < LENGTHS; i++) {
    const int64_t n = lengths[i];
    const problem_spec spec = length_problem(group, i, n, n > 10000 ? 4 : 3 + i % 6);
    check_problem(&spec);
  }
}

static void check_widths(const kernel_group *group)
{
  for (int64_t i = 0; i < WIDTHS; i++) {
    if (is_quick && i % 6 != 2) {
      continue;
    }
    problem_spec spec = {.count = 50 + 7 * (i % 5), .dim = widths[i], .rows = 17, .bags = 9};
    choose_options(group, &spec, 100 + i);
    if (i % 2 == 0) { /* aligned, so that whole words are read */
      spec.row_gap = 0;
      spec.shift = 0;
    }
    check_problem(&spec);
  }
}

static void check_shapes(const kernel_group *group)
{
  static const struct {
    int64_t count, dim, rows, bags;
  } shapes[] = {{0, 5, 7, 3},         {0, 0, 0, 0},         {5, 4, 0, 2},
                {0, 3, 4, 0},         {1, 1, 1, 1},         {1, 8, 300, 40},
                {300, 6, 1, 1},       {64, 16, 5, 8},       {1000, 20, 3, 50},
                {900, 33, 700, 100},  {2500, 4, 3000, 6},   {3000, 1, 70000, 200},
                {45, 1031, 6, 5},     {4000, 2, 30, 20000}, {100000, 1, 9000, 3000},
                {30000, 16, 500, 20}, {20000, 64, 9, 3},    {40000, 8, 20000, 2000},
                {131072, 1, 5, 700},  {131073, 2, 300, 90}, {140000, 1, 200000, 9000}}; /* few entries, and many */
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    if (is_quick && shapes[i].count * shapes[i].dim > 4000) {
      continue;
    }
    problem_spec spec = {
        .count = shapes[i].count, .dim = shapes[i].dim, .rows = shapes[i].rows, .bags = shapes[i].bags};
    choose_options(group, &spec, 200 + (int64_t)i);
    if (spec.rows == 0) {
      spec.error_policy = false; /* every index is bad */
      spec.has_padding = spec.padding_row = spec.sharded = false;
    }
    check_problem(&spec);
  }
}

/* Options drawn at random, in small problems; every other one aligned. */
static void check_mixtures(const kernel_group *group, int64_t mixtures)
{
  for (int64_t i = 0; i < mixtures; i++) {
    test_random random = {(uint64_t)(group->number * 100000 + i)};
    problem_spec spec = {.count = 1 + random_below(&random, 1200), .dim = random_below(&random, 40)};
    spec.rows = 1 + random_below(&random, 60);
    spec.bags = 1 + random_below(&random, 30);
    if (i % 2 == 0) {
      spec.dim = spec.dim / 8 * 8 + 8;
    }
    choose_options(group, &spec, 300 + i);
    if (i % 2 == 0) {
      spec.row_gap = spec.row_gap / 8 * 8;
      spec.shift = 0;
    }
    check_problem(&spec);
  }
}

static void test_group_matches_the_bit_oracle(void **state)
{
  const kernel_group *group = *state;
  check_widths(group);
  check_shapes(group);
  check_mixtures(group, is_quick ? 3 : 20);
  if (!is_quick && !is_switched_on("SHEAF_TEST_SKIP_LENGTHS")) {
    check_lengths(group);
  }
}

int main(int argc, char **argv)
{
  (void)argc;
  environment_prepare(argv);
  gpu_require();
  is_quick = is_switched_on("SHEAF_TEST_QUICK");
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
  return _cmocka_run_group_tests("gpu_bits", tests, (size_t)count, NULL, NULL);
}
