/* test_guarantees.c: what kernels say of themselves, against what runs show; and the caller's floating-point mode.
 *
 * With SHEAF_TEST_DIGEST=1 the program only prints a digest of each kernel's outputs: the test starts itself so, to see
 * whether another process gets the same bits.
 */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "oracle/bit_number.h"
#include "support/environment.h"
#include "support/kernel_groups.h"
#include "support/problem_run.h"
#include "support/tiny.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* How often a kernel is run to see whether it repeats itself, with 1 to 16 threads. */
static int runs_of_each(void) { return is_switched_on("SHEAF_TEST_QUICK") ? 6 : 20; }

static kernel_group groups[MOST_GROUPS];
static int64_t group_count;

/* A problem of moderate size for a group, `tiny_values` or not. */
static problem *make_problem(const kernel_group *group, bool tiny_values)
{
  problem_spec spec = {.count = 700, .dim = 19, .rows = tiny_values ? 230 : 23, .bags = 60};
  choose_options(group, &spec, 500);
  spec.bad_share = 0.05;
  spec.error_policy = false;
  spec.special_share = 0.0;
  spec.zero_share = 0.0;
  if (tiny_values) {
    const bool product = spec.values == VALUES_NEAR_ONE;
    spec.values = product ? VALUES_TINY_FACTORS : VALUES_TINY;
    spec.spread = SPREAD_UNIFORM;
  }
  return problem_make(&spec);
}

/* ---- Flags ------------------------------------------------------------------------------------------------------- */

static sheaf_dtype accumulator_of(sheaf_dtype element) { return element == SHEAF_F64 ? SHEAF_F64 : SHEAF_F32; }

/* Kinds whose outputs are copies of input elements. */
static bool only_copies(const kernel_group *group)
{
  if (group->category == SHEAF_CATEGORY_EMBEDDING) {
    const bool quantised = group->element == SHEAF_INT8 || group->element == SHEAF_INT4;
    return !quantised && (group->kind == SHEAF_LOOKUP || group->kind == SHEAF_BAG_MAX);
  }
  switch (group->kind) {
  case SHEAF_SEGMENT_MAX:
  case SHEAF_SEGMENT_MIN:
  case SHEAF_UNSORTED_SEGMENT_MAX:
  case SHEAF_UNSORTED_SEGMENT_MIN:
  case SHEAF_SEGMENT_SUM_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_SUM_BACKWARD:
    return true;
  default:
    return false;
  }
}

static bool adds_terms(const kernel_group *group)
{
  if (group->category == SHEAF_CATEGORY_EMBEDDING) {
    return group->kind != SHEAF_LOOKUP && group->kind != SHEAF_BAG_MAX;
  }
  return group->kind == SHEAF_SEGMENT_SUM || group->kind == SHEAF_SEGMENT_MEAN ||
         group->kind == SHEAF_UNSORTED_SEGMENT_SUM || group->kind == SHEAF_UNSORTED_SEGMENT_MEAN;
}

static bool divides(const kernel_group *group)
{
  if (group->category == SHEAF_CATEGORY_EMBEDDING) {
    return group->kind == SHEAF_BAG_MEAN || group->kind == SHEAF_BAG_MEAN_BACKWARD;
  }
  return group->kind == SHEAF_SEGMENT_MEAN || group->kind == SHEAF_UNSORTED_SEGMENT_MEAN ||
         group->kind == SHEAF_SEGMENT_MEAN_BACKWARD || group->kind == SHEAF_UNSORTED_SEGMENT_MEAN_BACKWARD;
}

static void test_precision_flags_say_what_the_definition_does(void **state)
{
  (void)state;
  for (int64_t g = 0; g < group_count; g++) {
    const sheaf_dtype acc = accumulator_of(groups[g].element);
    for (int k = 0; k < groups[g].kernels; k++) {
      const sheaf_guarantee *guarantee = &groups[g].sku[k].guarantee;
      const bool math_fits = only_copies(&groups[g]) ? guarantee->math == SHEAF_DTYPE_NONE
                             : divides(&groups[g])   ? guarantee->math == acc
                                                     : guarantee->math == acc || guarantee->math == SHEAF_DTYPE_NONE;
      const bool sum_fits = only_copies(&groups[g]) ? guarantee->accumulator == SHEAF_DTYPE_NONE
                            : adds_terms(&groups[g])
                                ? guarantee->accumulator == acc
                                : guarantee->accumulator == acc || guarantee->accumulator == SHEAF_DTYPE_NONE;
      if (!math_fits || !sum_fits) {
        fail_msg("%s: math %s, accumulator %s", groups[g].kernel[k], sheaf_dtype_name(guarantee->math),
                 sheaf_dtype_name(guarantee->accumulator));
      }
    }
  }
}

static void test_plan_repeats_the_kernels_identity(void **state)
{
  (void)state;
  for (int64_t g = 0; g < group_count; g++) {
    problem *p = make_problem(&groups[g], false);
    for (int k = 0; k < groups[g].kernels; k++) {
      sheaf_preference preference = SHEAF_PREFERENCE_INIT;
      preference.kernel = groups[g].kernel[k];
      preference.deterministic = 1;
      sheaf_plan *plan;
      const sheaf_status status = p->spec.category == SHEAF_CATEGORY_EMBEDDING
                                      ? sheaf_embedding_select(&p->embedding, &preference, &plan)
                                      : sheaf_segment_select(&p->segment, &preference, &plan);
      assert_int_equal(status, SHEAF_OK);
      const sheaf_sku sku = sheaf_plan_sku(plan);
      const sheaf_guarantee guarantee = sheaf_plan_precision_guarantee(plan);
      const sheaf_guarantee *listed = &groups[g].sku[k].guarantee;
      assert_string_equal(sku.name, groups[g].kernel[k]);
      assert_int_equal(sku.category, groups[g].category);
      assert_int_equal(sku.kind, groups[g].kind);
      assert_int_equal(sku.arch, groups[g].sku[k].arch);
      assert_int_equal(guarantee.math, listed->math);
      assert_int_equal(guarantee.accumulator, listed->accumulator);
      assert_int_equal(guarantee.deterministic, listed->deterministic);
      assert_int_equal(guarantee.bit_stable_on_same_hardware, listed->bit_stable_on_same_hardware);
      assert_int_equal(guarantee.bit_stable_across_hardware, listed->bit_stable_across_hardware);
      sheaf_plan_free(plan);
    }
    problem_free(p);
  }
}

/* Many runs of every kernel; the first kernel's first run is what those that promise stability across instruction
 * sets must repeat. */
static void test_stability_flags_hold_in_many_runs(void **state)
{
  (void)state;
  const int runs = runs_of_each();
  for (int64_t g = 0; g < group_count; g++) {
    problem *p = make_problem(&groups[g], false);
    problem_outputs *first = problem_outputs_make(p);
    problem_outputs *own = problem_outputs_make(p);
    problem_outputs *got = problem_outputs_make(p);
    for (int k = 0; k < groups[g].kernels; k++) {
      const sheaf_guarantee *guarantee = &groups[g].sku[k].guarantee;
      for (int run = 0; run < runs; run++) {
        const problem_way way = {groups[g].kernel[k], 1 + run * 15 / (runs - 1), run % 3 == 2};
        problem_outputs *outputs = run > 0 ? got : own;
        problem_outputs_reset(p, outputs);
        assert_int_equal(problem_run(p, outputs, &way, NULL), SHEAF_OK);
        if (run > 0 && guarantee->deterministic) {
          assert_true(problem_outputs_equal(p, own, got, "a later run"));
        }
      }
      if (k == 0) {
        problem_outputs_reset(p, first);
        const problem_way way = {groups[g].kernel[0], 1, false};
        assert_int_equal(problem_run(p, first, &way, NULL), SHEAF_OK);
      } else if (guarantee->bit_stable_across_hardware && groups[g].sku[0].guarantee.bit_stable_across_hardware) {
        assert_true(problem_outputs_equal(p, first, own, groups[g].kernel[k]));
      }
    }
    problem_outputs_free(first);
    problem_outputs_free(own);
    problem_outputs_free(got);
    problem_free(p);
  }
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

/* One thread's part: runs of a plan that others run at the same time. */
typedef struct runner {
  problem *p;
  const sheaf_plan *plan;
  problem_outputs *outputs;
  sheaf_status status;
} runner;

static void *run_many_times(void *argument)
{
  runner *r = argument;
  for (int i = 0; i < 8 && r->status == SHEAF_OK; i++) {
    problem_outputs_reset(r->p, r->outputs);
    r->status = problem_run_plan(r->p, r->outputs, r->plan, NULL, 0);
  }
  return NULL;
}

static void test_one_plan_may_be_run_by_many_threads_at_once(void **state)
{
  (void)state;
  enum { RUNNERS = 4 };
  for (int64_t g = 0; g < group_count; g++) {
    problem *p = make_problem(&groups[g], false);
    problem_outputs *expected = problem_outputs_make(p);
    problem_expect(p, expected);
    const problem_way way = {groups[g].kernel[0], 1 + (int)(g % 2), false};
    sheaf_plan *plan;
    assert_int_equal(problem_select(p, &way, false, &plan), SHEAF_OK);
    runner runners[RUNNERS];
    pthread_t threads[RUNNERS];
    for (int i = 0; i < RUNNERS; i++) {
      runners[i] = (runner){p, plan, problem_outputs_make(p), SHEAF_OK};
      assert_int_equal(pthread_create(&threads[i], NULL, run_many_times, &runners[i]), 0);
    }
    for (int i = 0; i < RUNNERS; i++) {
      pthread_join(threads[i], NULL);
      assert_int_equal(runners[i].status, SHEAF_OK);
      assert_true(problem_outputs_equal(p, expected, runners[i].outputs, groups[g].kernel[0]));
      problem_outputs_free(runners[i].outputs);
    }
    sheaf_plan_free(plan);
    problem_outputs_free(expected);
    problem_free(p);
  }
}

/* Under BAD_INDEX_ERROR: the index that is named does not depend on threads, and no byte of an output changes. */
static void test_failing_run_names_the_same_index_and_leaves_outputs(void **state)
{
  (void)state;
  static const int thread_counts[] = {1, 2, 7, 16};
  for (int64_t g = 0; g < group_count; g++) {
    problem *p = make_problem(&groups[g], false);
    problem_outputs *before = problem_outputs_make(p);
    problem_outputs *got = problem_outputs_make(p);
    problem_expect(p, got);
    const sheaf_index_report bad = got->report;
    p->embedding.bad_index = SHEAF_BAD_INDEX_ERROR;
    p->segment.bad_index = SHEAF_BAD_INDEX_ERROR;
    for (size_t t = 0; t < sizeof thread_counts / sizeof *thread_counts && p->spec.want_report && bad.count > 0; t++) {
      const problem_way way = {groups[g].kernel[t % (size_t)groups[g].kernels], thread_counts[t], false};
      sheaf_plan *plan;
      assert_int_equal(problem_select(p, &way, false, &plan), SHEAF_OK);
      problem_outputs_reset(p, got);
      assert_int_equal(problem_run_plan(p, got, plan, NULL, 0), SHEAF_INDEX_OUT_OF_RANGE);
      const sheaf_error_info info = sheaf_last_error_info();
      assert_int_equal(info.count, bad.count);
      assert_int_equal(info.position, bad.first_position);
      assert_int_equal(info.value, bad.first_value);
      got->report = before->report; /* whether a failing run sets it is not said */
      assert_true(problem_outputs_equal(p, before, got, way.kernel));
      sheaf_plan_free(plan);
    }
    problem_outputs_free(before);
    problem_outputs_free(got);
    problem_free(p);
  }
}

static int64_t allocations;

static void *counting_allocate(void *context, size_t bytes, size_t alignment)
{
  (void)context;
  allocations++;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void counting_release(void *context, void *memory, size_t bytes)
{
  (void)context;
  (void)bytes;
  free(memory);
}

/* With an allocator that counts: select may ask it, run may not. */
static void test_run_allocates_nothing(void **state)
{
  (void)state;
  const sheaf_allocator counting = {counting_allocate, counting_release, NULL};
  assert_int_equal(sheaf_set_allocator(&counting), SHEAF_OK);
  for (int64_t g = 0; g < group_count; g++) {
    problem *p = make_problem(&groups[g], false);
    problem_outputs *outputs = problem_outputs_make(p);
    const problem_way way = {groups[g].kernel[0], 3, false};
    sheaf_plan *plan;
    assert_int_equal(problem_select(p, &way, false, &plan), SHEAF_OK);
    const int64_t before = allocations;
    assert_int_equal(problem_run_plan(p, outputs, plan, NULL, 0), SHEAF_OK);
    assert_int_equal(allocations, before);
    sheaf_plan_free(plan);
    problem_outputs_free(outputs);
    problem_free(p);
  }
  assert_true(allocations > 0);
  assert_int_equal(sheaf_set_allocator(NULL), SHEAF_OK);
}

/* ---- Another process --------------------------------------------------------------------------------------------- */

/* FNV-1a over the elements of all outputs; NaNs count as one. */
static uint64_t digest(const problem_outputs *outputs)
{
  uint64_t hash = 0xCBF29CE484222325u;
  for (int at = 0; at < PROBLEM_OPERANDS; at++) {
    const problem_operand *operand = &outputs->operand[at];
    const bool number = operand->dtype != SHEAF_I32 && operand->dtype != SHEAF_I64;
    for (int64_t i = 0; operand->given && i < operand->problems * operand->rows; i++) {
      for (int64_t d = 0; d < operand->columns; d++) {
        const unsigned char *element = operand_at(operand, i / operand->rows, i % operand->rows, d);
        for (size_t byte = 0; byte < bit_element_bytes(operand->dtype); byte++) {
          const unsigned value = number && isnan(bit_load(operand->dtype, element, 0)) ? 1 : element[byte];
          hash = (hash ^ value) * 0x100000001B3u;
        }
      }
    }
  }
  return hash;
}

static uint64_t digest_of_run(const kernel_group *group, int kernel, int threads)
{
  problem *p = make_problem(group, false);
  problem_outputs *outputs = problem_outputs_make(p);
  const problem_way way = {group->kernel[kernel], threads, false};
  const uint64_t hash = problem_run(p, outputs, &way, NULL) == SHEAF_OK ? digest(outputs) : 0;
  problem_outputs_free(outputs);
  problem_free(p);
  return hash;
}

static void test_another_process_gets_the_same_bits(void **state)
{
  (void)state;
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  assert_true(length > 0);
  path[length] = '\0';
  char command[5000];
  snprintf(command, sizeof command, "SHEAF_TEST_DIGEST=1 '%s'", path);
  FILE *other = popen(command, "r");
  assert_non_null(other);
  int64_t compared = 0;
  for (int64_t g = 0; g < group_count; g++) {
    for (int k = 0; k < groups[g].kernels; k++) {
      char name[64];
      uint64_t hash;
      assert_int_equal(fscanf(other, "%63s %" SCNu64, name, &hash), 2);
      assert_string_equal(name, groups[g].kernel[k]);
      if (groups[g].sku[k].guarantee.bit_stable_on_same_hardware) {
        assert_int_equal(hash, digest_of_run(&groups[g], k, 2));
        compared++;
      }
    }
  }
  pclose(other);
  assert_true(compared > 0);
}

static int print_digests(void)
{
  for (int64_t g = 0; g < group_count; g++) {
    for (int k = 0; k < groups[g].kernels; k++) {
      printf("%s %" PRIu64 "\n", groups[g].kernel[k], digest_of_run(&groups[g], k, 1));
    }
  }
  return 0;
}

/* ---- The caller's floating-point mode ---------------------------------------------------------------------------- */

#if defined(__x86_64__)

enum { CONTROL_BITS = 0xFFC0, STATUS_BITS = 0x003F, DENORMALS_ARE_ZERO = 0x0040, FLUSH_TO_ZERO = 0x8000 };
enum { ROUND_DOWN = 0x2000, ROUND_UP = 0x4000, ROUND_TO_ZERO = 0x6000 };

static const unsigned wrong_modes[] = {ROUND_UP, FLUSH_TO_ZERO, DENORMALS_ARE_ZERO,
                                       ROUND_DOWN | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO};
enum { WRONG_MODES = 4 };

/* One run with the control register set wrong; it must be so again afterwards. */
static void run_in_mode(problem *p, problem_outputs *got, const problem_way *way, unsigned mode)
{
  const unsigned usual = _mm_getcsr();
  const unsigned wrong = (usual & ~(unsigned)(ROUND_TO_ZERO | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO)) | mode;
  _mm_setcsr(wrong);
  const sheaf_status status = problem_run(p, got, way, NULL);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(usual);
  assert_int_equal(status, SHEAF_OK);
  assert_int_equal(after & CONTROL_BITS, wrong & CONTROL_BITS);
}

/* Whether the oracle, run in that mode itself, would go wrong: otherwise the problem shows nothing. */
static bool is_sensitive(problem *p, const problem_outputs *expected, problem_outputs *scratch, unsigned mode)
{
  const unsigned usual = _mm_getcsr();
  problem_outputs_reset(p, scratch);
  _mm_setcsr((usual & ~(unsigned)ROUND_TO_ZERO) | mode);
  problem_expect(p, scratch);
  _mm_setcsr(usual);
  return digest(expected) != digest(scratch);
}

static void test_callers_rounding_and_denormal_modes_change_nothing(void **state)
{
  (void)state;
  int64_t sensitive[WRONG_MODES] = {0};
  for (int64_t g = 0; g < group_count; g++) {
    for (int tiny_values = 0; tiny_values <= 1; tiny_values++) {
      problem *p = make_problem(&groups[g], tiny_values);
      problem_outputs *expected = problem_outputs_make(p);
      problem_outputs *got = problem_outputs_make(p);
      problem_expect(p, expected);
      for (int m = 0; m < WRONG_MODES; m++) {
        sensitive[m] += is_sensitive(p, expected, got, wrong_modes[m]);
        for (int k = 0; k < groups[g].kernels; k++) {
          const problem_way way = {groups[g].kernel[k], 1 + (k + m + tiny_values) % 3, m % 2 == 1};
          problem_outputs_reset(p, got);
          run_in_mode(p, got, &way, wrong_modes[m]);
          assert_true(problem_outputs_equal(p, expected, got, groups[g].kernel[k]));
        }
      }
      problem_outputs_free(expected);
      problem_outputs_free(got);
      problem_free(p);
    }
  }
  for (int m = 0; m < WRONG_MODES; m++) {
    assert_true(sensitive[m] > 30);
  }
}

static void test_failing_run_restores_the_control_register(void **state)
{
  (void)state;
  sheaf_embedding_desc desc = tiny_embedding(SHEAF_LOOKUP, SHEAF_F32, SHEAF_I64);
  desc.rows = desc.indices = desc.dim = 1;
  desc.bad_index = SHEAF_BAD_INDEX_ERROR;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.table = tiny_operand(tiny_matrix(SHEAF_F32, 1, 1, NULL));
  args.indices = tiny_operand(tiny_ints(SHEAF_I64, 1, INTEGERS(5)));
  args.out = tiny_operand(tiny_matrix(SHEAF_F32, 1, 1, NULL));
  const unsigned usual = _mm_getcsr();
  const unsigned wrong = (usual & ~(unsigned)STATUS_BITS) | ROUND_UP | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO;
  _mm_setcsr(wrong);
  const sheaf_status status = tiny_run_embedding(&desc, &args);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(usual);
  assert_int_equal(status, SHEAF_INDEX_OUT_OF_RANGE);
  assert_int_equal(after & CONTROL_BITS, wrong & CONTROL_BITS);
  tiny_free_all();
}

/* Packing rows and converting halves are defined to the bit as well. */
static void test_packing_and_conversions_do_not_depend_on_the_mode(void **state)
{
  (void)state;
  test_random random = {77};
  double values[64];
  for (int i = 0; i < 64; i++) {
    values[i] = random_unit(&random) * 3.0 - 1.0;
  }
  for (int m = 0; m < WRONG_MODES; m++) {
    for (int four = 0; four <= 1; four++) {
      const sheaf_dtype dtype = four ? SHEAF_INT4 : SHEAF_INT8;
      const int64_t bytes = sheaf_dtype_row_bytes(dtype, 16);
      const sheaf_operand rows = tiny_operand(tiny_matrix(SHEAF_F32, 4, 16, values));
      tiny *usual_bytes = tiny_int_matrix(SHEAF_U8, 4, bytes, NULL);
      tiny *wrong_bytes = tiny_int_matrix(SHEAF_U8, 4, bytes, NULL);
      const sheaf_operand into_usual = tiny_operand(usual_bytes);
      const sheaf_operand into_wrong = tiny_operand(wrong_bytes);
      expect_ok(sheaf_quantize_rows(dtype, &rows, &into_usual));
      const unsigned usual = _mm_getcsr();
      _mm_setcsr(usual | wrong_modes[m]);
      const sheaf_status status = sheaf_quantize_rows(dtype, &rows, &into_wrong);
      _mm_setcsr(usual);
      expect_ok(status);
      assert_memory_equal(usual_bytes->data, wrong_bytes->data, (size_t)(4 * bytes));
    }
    for (int i = 0; i < 4096; i++) {
      const uint32_t bits = (uint32_t)random_bits(&random);
      float value;
      memcpy(&value, &bits, sizeof value);
      value = i % 2 == 0 ? value : 0x1p-14f * (float)random_unit(&random);
      const uint16_t f16 = bit_to_f16(value);
      const uint16_t bf16 = bit_to_bf16(value);
      const unsigned usual = _mm_getcsr();
      _mm_setcsr(usual | wrong_modes[m]);
      const uint16_t got_f16 = sheaf_f32_to_f16(value);
      const uint16_t got_bf16 = sheaf_f32_to_bf16(value);
      _mm_setcsr(usual);
      assert_true(got_f16 == f16 || (isnan(value) && isnan(bit_from_f16(got_f16))));
      assert_true(got_bf16 == bf16 || (isnan(value) && isnan(bit_from_bf16(got_bf16))));
    }
  }
  tiny_free_all();
}

#endif

int main(int argc, char **argv)
{
  (void)argc;
  environment_prepare(argv);
  group_count = kernel_groups_read(groups, getenv("SHEAF_TEST_ONLY"));
  if (group_count == 0 || is_switched_on("SHEAF_TEST_DIGEST")) {
    return group_count == 0 ? 1 : print_digests();
  }
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_precision_flags_say_what_the_definition_does),
    cmocka_unit_test(test_plan_repeats_the_kernels_identity),
    cmocka_unit_test(test_stability_flags_hold_in_many_runs),
    cmocka_unit_test(test_one_plan_may_be_run_by_many_threads_at_once),
    cmocka_unit_test(test_failing_run_names_the_same_index_and_leaves_outputs),
    cmocka_unit_test(test_run_allocates_nothing),
    cmocka_unit_test(test_another_process_gets_the_same_bits),
#if defined(__x86_64__)
    cmocka_unit_test(test_callers_rounding_and_denormal_modes_change_nothing),
    cmocka_unit_test(test_failing_run_restores_the_control_register),
    cmocka_unit_test(test_packing_and_conversions_do_not_depend_on_the_mode),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
