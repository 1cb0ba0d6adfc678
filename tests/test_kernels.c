/* test_kernels.c: the list of kernels: complete, without doubles, and every row of it selected by name and run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cpu.h"
#include "plan/plan_impl.h"
#include "support/call.h"
#include "support/problem_run.h"

enum { SETS = 1 + SHF_HAVE_AVX2 + SHF_HAVE_AVX512 }; /* scalar and those */

enum { KINDS = 8 + 20, ELEMENTS = 4, INDICES = 2, QUANTISED_KINDS = 4, QUANTISED_ELEMENTS = 2 };
enum { ROWS = (KINDS * ELEMENTS + QUANTISED_KINDS * QUANTISED_ELEMENTS) * INDICES * SETS };

static sheaf_sku kernel_at(int64_t position, int *available)
{
  sheaf_sku sku;
  memset(&sku, 0x55, sizeof sku);
  if (sheaf_kernel_at(position, &sku, available) != SHEAF_OK) fail_msg("%s", sheaf_last_error());
  return sku;
}

static bool is_quantised(sheaf_dtype dtype) { return dtype == SHEAF_INT8 || dtype == SHEAF_INT4; }

static void test_as_many_kernels_as_the_lists_imply(void **state)
{
  (void)state;
#define SHEAF_X(name, kind, text) +1
  assert_int_equal(0 SHEAF_EMBEDDING_KIND_LIST(SHEAF_X) SHEAF_SEGMENT_KIND_LIST(SHEAF_X), KINDS);
#undef SHEAF_X
  if (SETS == 3) assert_int_equal(ROWS, 720);
  assert_int_equal(sheaf_kernel_count(), ROWS);
}

/* Whether the build should have a kernel for this. */
static bool is_expected(sheaf_category category, int kind, sheaf_dtype element, sheaf_dtype index, int arch)
{
  const int has[] = {1, SHF_HAVE_AVX2, SHF_HAVE_AVX512};
  if (arch >= 3 || !has[arch] || (index != SHEAF_I32 && index != SHEAF_I64)) return false;
  if (!sheaf_kind_name(category, (uint16_t)kind)) return false;
  if (is_quantised(element)) return category == SHEAF_CATEGORY_EMBEDDING && !problem_is_backward(category, kind);
  return element >= SHEAF_F32 && element <= SHEAF_BF16;
}

static void test_every_combination_is_listed_exactly_once(void **state)
{
  (void)state;
  static int seen[2][32][10][10][5];
  memset(seen, 0, sizeof seen);
  for (int64_t i = 0; i < sheaf_kernel_count(); i++) {
    sheaf_sku sku = kernel_at(i, NULL);
    assert_true(sku.category <= 1 && sku.kind < 32 && sku.element < 10 && sku.index_element < 10 && sku.arch < 5);
    seen[sku.category][sku.kind][sku.element][sku.index_element][sku.arch]++;
  }
  for (int category = 0; category < 2; category++)
    for (int kind = 0; kind < 32; kind++)
      for (int element = 0; element < 10; element++)
        for (int index = 0; index < 10; index++)
          for (int arch = 0; arch < 5; arch++) {
            int expected = is_expected((sheaf_category)category, kind, (sheaf_dtype)element, (sheaf_dtype)index, arch);
            int found = seen[category][kind][element][index][arch];
            if (found != expected)
              fail_msg("category %d, kind %d, %s, %s, arch %d: %d kernels instead of %d", category, kind,
                       sheaf_dtype_name((sheaf_dtype)element), sheaf_dtype_name((sheaf_dtype)index), arch, found,
                       expected);
          }
}

static int compare_names(const void *a, const void *b) { return strcmp(a, b); }

static void test_names_say_what_a_kernel_is_and_are_unique(void **state)
{
  (void)state;
  static char names[ROWS][64];
  for (int64_t i = 0; i < ROWS; i++) {
    sheaf_sku sku = kernel_at(i, NULL);
    char expected[64];
    snprintf(expected, sizeof expected, "%s.%s.%s/cpu.%s", sheaf_kind_name(sku.category, sku.kind),
             sheaf_dtype_name(sku.element), sheaf_dtype_name(sku.index_element), sheaf_isa_name((sheaf_isa)sku.arch));
    assert_string_equal(sku.name, expected);
    memcpy(names[i], sku.name, sizeof sku.name);
  }
  qsort(names, ROWS, sizeof names[0], compare_names);
  for (int i = 1; i < ROWS; i++) assert_string_not_equal(names[i - 1], names[i]);
}

static void test_available_is_what_the_cpu_can_run(void **state)
{
  (void)state;
  for (int64_t i = 0; i < ROWS; i++) {
    int available = -1;
    sheaf_sku sku = kernel_at(i, &available);
    assert_int_equal(available, (int)sku.arch <= (int)sheaf_isa_best());
    assert_int_equal(sku.backend, SHEAF_BACKEND_BESPOKE);
    assert_int_equal(sku.guarantee.deterministic, 1);
    sheaf_dtype acc = sku.element == SHEAF_F64 ? SHEAF_F64 : SHEAF_F32;
    assert_true(sku.guarantee.math == acc || sku.guarantee.math == SHEAF_DTYPE_NONE);
    assert_true(sku.guarantee.accumulator == acc || sku.guarantee.accumulator == SHEAF_DTYPE_NONE);
  }
}

static void test_positions_outside_of_the_list_are_refused(void **state)
{
  (void)state;
  const int64_t outside[] = {-1, ROWS, ROWS + 1, INT64_MAX, INT64_MIN};
  sheaf_sku sku, before;
  memset(&sku, 0x55, sizeof sku);
  before = sku;
  for (int i = 0; i < LENGTH(outside); i++) {
    int available = 7;
    check_refusal(sheaf_kernel_at(outside[i], &sku, &available), NULL, SHEAF_INVALID_PROBLEM,
                  WORDS(number(outside[i]), number(ROWS)), __LINE__);
    assert_int_equal(available, 7);
    assert_memory_equal(&sku, &before, sizeof sku);
  }
  check_refusal(sheaf_kernel_at(0, NULL, NULL), NULL, SHEAF_INVALID_PROBLEM, WORDS("sku", "NULL"), __LINE__);
}

static void expect_same_sku(const sheaf_sku *a, const sheaf_sku *b)
{
  assert_string_equal(a->name, b->name);
  assert_int_equal(a->category, b->category);
  assert_int_equal(a->kind, b->kind);
  assert_int_equal(a->element, b->element);
  assert_int_equal(a->index_element, b->index_element);
  assert_int_equal(a->arch, b->arch);
  assert_int_equal(a->backend, b->backend);
  assert_int_equal(a->guarantee.math, b->guarantee.math);
  assert_int_equal(a->guarantee.accumulator, b->guarantee.accumulator);
  assert_int_equal(a->guarantee.deterministic, b->guarantee.deterministic);
  assert_int_equal(a->guarantee.bit_stable_on_same_hardware, b->guarantee.bit_stable_on_same_hardware);
  assert_int_equal(a->guarantee.bit_stable_across_hardware, b->guarantee.bit_stable_across_hardware);
}

/* A small problem through one kernel, whose plan says that it was this one. */
static void run_row(const sheaf_sku *sku)
{
  problem_spec spec = call_spec(sku->category == SHEAF_CATEGORY_EMBEDDING ? sku->kind : 8 + sku->kind);
  spec.dtype = sku->element;
  spec.index_dtype = sku->index_element;
  spec.count = 40;
  spec.dim = 37;
  problem *p = problem_make(&spec);
  problem_outputs *expected = problem_outputs_make(p), *got = problem_outputs_make(p);
  problem_expect(p, expected);
  sheaf_preference wish = SHEAF_PREFERENCE_INIT;
  wish.kernel = sku->name;
  wish.threads = 1;
  bool embedding = sku->category == SHEAF_CATEGORY_EMBEDDING;
  sheaf_plan *plan = embedding ? embedding_plan(&p->embedding, &wish) : segment_plan(&p->segment, &wish);
  sheaf_sku chosen = sheaf_plan_sku(plan);
  expect_same_sku(&chosen, sku);
  sheaf_guarantee guarantee = sheaf_plan_precision_guarantee(plan);
  assert_int_equal(guarantee.math, sku->guarantee.math);
  assert_int_equal(guarantee.accumulator, sku->guarantee.accumulator);
  assert_int_equal(guarantee.bit_stable_across_hardware, sku->guarantee.bit_stable_across_hardware);
  sheaf_plan_free(plan);
  problem_way way = {.kernel = sku->name, .threads = 1};
  assert_int_equal(problem_run(p, got, &way, NULL), SHEAF_OK);
  if (!problem_outputs_equal(p, expected, got, sku->name)) fail_msg("%s: not the bits of the oracle", sku->name);
  problem_outputs_free(expected);
  problem_outputs_free(got);
  problem_free(p);
}

static void test_every_available_row_runs_under_its_name(void **state)
{
  (void)state;
  int ran = 0;
  for (int64_t i = 0; i < ROWS; i++) {
    int available;
    sheaf_sku sku = kernel_at(i, &available);
    if (!available) continue;
    run_row(&sku);
    ran++;
  }
  print_message("%d of %d kernels ran\n", ran, ROWS);
  const int best = (int)sheaf_isa_best(); /* a build for one machine has no AVX2 beside AVX-512 */
  const int sets = 1 + (SHF_HAVE_AVX2 && best >= SHEAF_ISA_AVX2) + (SHF_HAVE_AVX512 && best >= SHEAF_ISA_AVX512);
  assert_int_equal(ran, ROWS / SETS * sets);
}

/* Without a wish the best set of the machine is taken, whatever the op. */
static void test_the_best_kernel_is_chosen_for_every_op(void **state)
{
  (void)state;
  sheaf_isa before = sheaf_isa_current();
  assert_int_equal(sheaf_set_isa(sheaf_isa_best()), SHEAF_OK);
  for (int kind = 0; kind < KINDS; kind++) {
    sheaf_embedding_desc embedding = embedding_of((sheaf_embedding_kind)kind);
    sheaf_segment_desc segment = segments_of((sheaf_segment_kind)(kind - 8));
    sheaf_plan *plan = kind < 8 ? embedding_plan(&embedding, NULL) : segment_plan(&segment, NULL);
    sheaf_sku sku = sheaf_plan_sku(plan);
    assert_int_equal(sku.arch, sheaf_isa_best());
    assert_int_equal(sku.kind, kind < 8 ? kind : kind - 8);
    sheaf_plan_free(plan);
  }
  assert_int_equal(sheaf_set_isa(before), SHEAF_OK);
}

/* In a build for one machine, too, whose CPU may have sets that the build has not. */
static void test_a_set_without_kernels_is_refused(void **state)
{
  (void)state;
  const sheaf_isa before = sheaf_isa_current();
  for (int isa = SHEAF_ISA_SCALAR; isa <= SHEAF_ISA_AVX512; isa++) {
    int available = 0;
    for (int64_t i = 0; i < sheaf_kernel_count() && !available; i++)
      if ((int)kernel_at(i, &available).arch != isa) available = 0;
    assert_int_equal(sheaf_set_isa((sheaf_isa)isa), (available ? SHEAF_OK : SHEAF_UNAVAILABLE));
    assert_true(!available || isa <= (int)sheaf_isa_best());
  }
  assert_int_equal(sheaf_set_isa(before), SHEAF_OK);
}

/* How the plan of a bag or lookup asks for rows from memory on CPUs that are neither Zen 4 nor Zen 5; AVX-512 only. */
static void check_as_on_other_cpus(const sheaf_plan *plan)
{
  const sheaf_embedding_desc *d = &plan->embedding;
  const bool floats = d->dtype == SHEAF_F32 || d->dtype == SHEAF_F64;
  const bool sums = d->kind == SHEAF_BAG_SUM || d->kind == SHEAF_BAG_MEAN;
  int beside = 4096, often = 4096;
  if (sums && floats && plan->threads >= 5 && plan->row_bytes >= 320 && plan->row_bytes <= 640) beside = 0;
  if (sums && plan->threads == 1) often = 8192;
  if (d->kind == SHEAF_LOOKUP || (sums && d->bags == d->indices)) beside = often = 0;
  assert_int_equal(plan->asking.beside, beside);
  assert_int_equal(plan->asking_often.beside, often);
}

/* The same on Zen 5. */
static void check_as_on_zen5(const sheaf_plan *plan)
{
  const sheaf_embedding_desc *d = &plan->embedding;
  const bool sums = d->kind == SHEAF_BAG_SUM || d->kind == SHEAF_BAG_MEAN, max = d->kind == SHEAF_BAG_MAX;
  const bool halves = d->dtype == SHEAF_F16 || d->dtype == SHEAF_BF16, packed = d->dtype == SHEAF_INT8 || d->dtype == SHEAF_INT4;
  const int64_t bytes = plan->row_bytes;
  assert_true(plan->asking.beside == 12288 && plan->asking_often.beside == (bytes > 1024 ? 16384 : 24576));
  assert_int_equal(plan->asking.again,
                   max || d->kind == SHEAF_LOOKUP || (sums && bytes >= 192 && halves) || (sums && bytes >= 96 && packed));
  assert_int_equal(plan->asking_often.again,
                   max || (sums && bytes >= 512 && halves) || (sums && bytes >= 384 && bytes <= 1024 && !halves && !packed));
}

/* How a plan over so many rows, of any width there is, asks for them; the row that the plan has taken says which. */
static void check_asking(const sheaf_sku *sku, int64_t rows, int wish_bytes, const char *cpu)
{
  static const int threads[] = {5, 4, 1};
  const bool backward = sku->kind == SHEAF_BAG_SUM_BACKWARD || sku->kind == SHEAF_LOOKUP_BACKWARD;
  sheaf_embedding_desc desc = embedding_of((sheaf_embedding_kind)sku->kind);
  sheaf_preference wish = SHEAF_PREFERENCE_INIT;
  wish.kernel = sku->name;
  desc.dtype = sku->element;
  desc.index_dtype = sku->index_element;
  desc.rows = rows;
  for (desc.dim = 1; desc.dim < 1100; desc.dim++) {
    wish.threads = threads[desc.dim % 3];
    if (sku->kind != SHEAF_LOOKUP && sku->kind != SHEAF_LOOKUP_BACKWARD) desc.bags = desc.dim % 4 ? 1 : desc.indices;
    desc.scale_grad_by_freq = backward && desc.dim % 5 == 0;
    sheaf_plan *plan = embedding_plan(&desc, &wish);
    const bool asks = sku->arch == SHEAF_ARCH_AVX512 && plan->ahead && !(backward && (desc.dim == 1 || desc.dim % 5 == 0));
    assert_true(plan->ahead > 0 || rows < 1000);
    if (sku->arch == SHEAF_ARCH_AVX2) /* there are no bursts, */
      assert_true(backward ? plan->asking.beside == 0
                           : plan->asking.beside > 0 && plan->asking_often.beside >= plan->asking.beside);
    else if (!asks) /* nothing else, */
      assert_true(plan->asking.beside == 0 && plan->asking_often.beside == 0);
    else if (wish_bytes >= 0) /* or both */
      assert_true(plan->asking.beside == wish_bytes && plan->asking_often.beside == wish_bytes &&
                  plan->asking.again == (wish_bytes >= 8192) && plan->asking_often.again == plan->asking.again);
    else if (cpu && strcmp(cpu, "zen4") == 0)
      assert_int_equal(plan->asking_often.beside, 0);
    else if (cpu && strcmp(cpu, "zen5") == 0)
      check_as_on_zen5(plan);
    else if (cpu)
      check_as_on_other_cpus(plan);
    if (plan->asking.beside != plan->asking_often.beside && (sku->kind == SHEAF_BAG_SUM || sku->kind == SHEAF_BAG_MEAN))
      assert_int_equal(plan->looks_for_repeats, plan->ahead > 0);
    sheaf_plan_free(plan);
  }
}

/* SHEAF_TEST_BESIDE and SHEAF_TEST_CPU say what CPUs differ in. */
static void test_rows_from_memory_are_asked_for_as_the_cpu_likes_it(void **state)
{
  (void)state;
  const char *wish = getenv("SHEAF_TEST_BESIDE"), *cpu = getenv("SHEAF_TEST_CPU");
  const int bytes = wish && *wish ? atoi(wish) : -1;
  for (int64_t i = 0; i < ROWS; i++) {
    int available;
    sheaf_sku sku = kernel_at(i, &available);
    if (!available || sku.category != SHEAF_CATEGORY_EMBEDDING) continue;
    if (sku.kind == SHEAF_BAG_MEAN_BACKWARD || sku.kind == SHEAF_BAG_MAX_BACKWARD) continue;
    check_asking(&sku, 1 << 22, bytes, cpu);
    check_asking(&sku, 10, bytes, cpu);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_as_many_kernels_as_the_lists_imply),
      cmocka_unit_test(test_every_combination_is_listed_exactly_once),
      cmocka_unit_test(test_names_say_what_a_kernel_is_and_are_unique),
      cmocka_unit_test(test_available_is_what_the_cpu_can_run),
      cmocka_unit_test(test_a_set_without_kernels_is_refused),
      cmocka_unit_test(test_positions_outside_of_the_list_are_refused),
      cmocka_unit_test(test_every_available_row_runs_under_its_name),
      cmocka_unit_test(test_the_best_kernel_is_chosen_for_every_op),
      cmocka_unit_test(test_rows_from_memory_are_asked_for_as_the_cpu_likes_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
