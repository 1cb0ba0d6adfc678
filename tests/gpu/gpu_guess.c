/* gpu_guess.c: sums and means of bags that the device guesses to be of one length: the CPU's bits where they are, where
 * they are not, and where a graph is launched again after offsets that were out of order. SHEAF_TEST_QUICK=1 runs few
 * problems (for compute-sanitizer). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu_support.h"
#include "oracle/bit_number.h"
#include "support/environment.h"
#include "support/problem_run.h"

typedef enum offsets_are { AS_MADE, EQUAL, MOVED, SPOILT } offsets_are;

/* Offsets of bags of one length; the same but for every 32nd, moved by one: where one warp's bags end and the next one's begin;
 * or such that are out of order: bags of nearly all entries, one over the other. */
static void change_offsets(problem *p, offsets_are how)
{
  problem_operand *offsets = &p->operand[AT_OFFSETS];
  const int64_t bags = p->spec.bags, count = p->spec.count;
  for (int64_t b = 0; how != AS_MADE && b < bags; b++) {
    const int64_t wild = b % 2 ? count - b % 1000 : b % 3000;
    const int64_t moved = how == MOVED && b > 0 && b % 32 == 0 ? (b % 64 ? 1 : -1) : 0;
    const int64_t equal = b * (count / bags) + moved;
    bit_store_index(offsets->dtype, operand_at(offsets, 0, 0, b), 0, how == SPOILT ? wild : equal);
  }
}

/* There are as many entries as bags of one length would have: some are, others are not, and a graph that is launched with one
 * kind, or with offsets out of order, is launched again with another. */
static void check_guesses(problem_spec spec, size_t from)
{
  static const offsets_are kinds[][2] = {{EQUAL, AS_MADE}, {AS_MADE, EQUAL}, {AS_MADE, AS_MADE},
                                          {SPOILT, AS_MADE}, {EQUAL, MOVED},   {MOVED, MOVED}};
  for (size_t i = from; i < sizeof kinds / sizeof kinds[0]; i += 2) {
    problem *first = problem_make(&spec);
    if (!spec.has_padding) spec.seed += 1000; /* a graph has one padding index */
    problem *second = problem_make(&spec);
    change_offsets(first, kinds[i][0]);
    change_offsets(second, kinds[i][1]);
    problem_outputs *expected = problem_outputs_make(second), *got = problem_outputs_make(second);
    const problem_way way = {NULL, 0, false};
    assert_int_equal(problem_run(second, expected, &way, NULL), SHEAF_OK);
    assert_int_equal(gpu_replay(first, second, got), SHEAF_OK);
    assert_true(problem_outputs_equal(second, expected, got, "bags of a guessed length, replayed"));
    problem_outputs_reset(second, got);
    assert_int_equal(gpu_run(second, got, GPU_PLAIN, NULL), SHEAF_OK);
    assert_true(problem_outputs_equal(second, expected, got, "bags of a guessed length"));
    problem_outputs_free(expected);
    problem_outputs_free(got);
    problem_free(first);
    problem_free(second);
  }
}

static int is_quick;

typedef struct shape {
  int64_t count, bags, longest;
} shape;

/* A problem of one shape and type; what else can be asked for comes in turn, by the number `i`. */
static problem_spec spec_of(int i, int type, sheaf_embedding_kind kind, shape of, int64_t dim)
{
  static const sheaf_dtype types[] = {SHEAF_F32, SHEAF_F64, SHEAF_F16, SHEAF_BF16, SHEAF_INT8, SHEAF_INT4};
  const sheaf_dtype dtype = types[type];
  const sheaf_dtype out = i % 3 ? SHEAF_F32 : SHEAF_F16;
  return (problem_spec){.category = SHEAF_CATEGORY_EMBEDDING,
                        .kind = kind,
                        .dtype = dtype,
                        .index_dtype = i % 2 ? SHEAF_I32 : SHEAF_I64,
                        .count = of.count,
                        .dim = dim,
                        .rows = 5000,
                        .bags = of.bags,
                        .bag_form = i % 4 < 2 ? SHEAF_BAGS_OFFSETS : SHEAF_BAGS_OFFSETS_END,
                        .longest_bag = of.longest,
                        .spread = SPREAD_ZIPF,
                        .out_dtype = dtype < SHEAF_INT8 ? 0 : out,
                        .bad_share = i % 3 == 1 ? 0.03 : 0,
                        .has_padding = i % 3 == 2,
                        .padding_share = 0.03,
                        .zero_share = 0.1,
                        .special_share = i % 5 == 4 ? 0.001 : 0,
                        .sharded = i % 7 == 6,
                        .shift = i % 11 == 10,
                        .seed = 900 + (uint64_t)i};
}

static void test_guessed_lengths_are_checked(void **state)
{
  (void)state;
  static const shape shapes[] = {{65536, 1024, 0},   {65536, 1024, 40000},  {6400, 100, 700},
                                 {40000, 160, 9000}, {60000, 60000, 30000}, {4099, 4099, 0}};
  static const int64_t widths[] = {32, 64, 128, 200};
  for (int i = 0; i < 6 * 6 * 4; i += is_quick ? 11 : 1)
    check_guesses(spec_of(i, i / 6 % 6, SHEAF_BAG_SUM, shapes[i % 6], widths[i / 36]), (size_t)(i / 2 % 2));
}

/* So many bags that each has a rower of its own. */
static void test_guessed_lengths_of_many_bags_are_checked(void **state)
{
  (void)state;
  static const shape shapes[] = {{300000, 75000, 0},  {300000, 75000, 20000}, {512000, 8000, 0},
                                 {512000, 8000, 900}, {800000, 5000, 0},      {270000, 5400, 40000}};
  static const int64_t widths[] = {8, 16, 32, 100, 128, 256};
  for (int i = 0; i < 6 * 6; i += is_quick ? 7 : 1) {
    const int at = i % 6, type = i / 6;
    const sheaf_embedding_kind kind = (at + type / 2) % 2 ? SHEAF_BAG_MEAN : SHEAF_BAG_SUM;
    const int options = 36 + at + 5 * type; /* so that each shape and each kind meets with each of them */
    check_guesses(spec_of(options, type, kind, shapes[at], widths[(at + type) % 6]), (size_t)((at + type) % 2));
  }
}

int main(int argc, char **argv)
{
  (void)argc;
  environment_prepare(argv);
  gpu_require();
  is_quick = is_switched_on("SHEAF_TEST_QUICK");
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_guessed_lengths_are_checked),
                                     cmocka_unit_test(test_guessed_lengths_of_many_bags_are_checked)};
  return cmocka_run_group_tests_name("gpu_guess", tests, NULL, NULL);
}
