/* test_select_preferences.c: preferences that select follows: workspace, backend, kernels by name, instruction sets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "support/refusals.h"

static void test_preferences_that_make_no_sense_are_refused(void **state)
{
  (void)state;
  sheaf_embedding_desc lookup = embedding_of(SHEAF_LOOKUP);
  sheaf_segment_desc segments = segments_of(SHEAF_SEGMENT_SUM);
  const int values[] = {-1, 3, INT32_MIN, INT32_MAX};
  for (int i = 0; i < LENGTH(values); i++) {
    const char *value = number(values[i]);
    sheaf_preference wish = SHEAF_PREFERENCE_INIT;
    wish.backend = (sheaf_backend)values[i];
    refuses_embedding(&lookup, &wish, INVALID_PROBLEM, "preference.backend", value);
    refuses_segment(&segments, &wish, INVALID_PROBLEM, "preference.backend", value);
    wish.backend = SHEAF_BACKEND_ANY;
    wish.deterministic = values[i];
    refuses_embedding(&lookup, &wish, INVALID_PROBLEM, "preference.deterministic", value);
    refuses_segment(&segments, &wish, INVALID_PROBLEM, "preference.deterministic", value);
    wish.deterministic = 0;
    wish.threads = values[i];
    if (values[i] < 0)
      refuses_embedding(&lookup, &wish, INVALID_PROBLEM, "preference.threads", value);
    else
      sheaf_plan_free(embedding_plan(&lookup, &wish));
  }
}

static void test_workspace_limit_is_kept_and_the_bytes_are_named(void **state)
{
  (void)state;
  for (int family = 0; family < 2; family++) {
    sheaf_embedding_desc bags = embedding_of(SHEAF_BAG_MEAN_BACKWARD);
    sheaf_segment_desc segments = segments_of(SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD);
    sheaf_preference wish = SHEAF_PREFERENCE_INIT;
    wish.threads = 1;
    sheaf_plan *plan = family ? segment_plan(&segments, &wish) : embedding_plan(&bags, &wish);
    size_t bytes = sheaf_plan_workspace_size(plan);
    sheaf_plan_free(plan);
    assert_true(bytes > 1);
    wish.max_workspace = bytes;
    sheaf_plan_free(family ? segment_plan(&segments, &wish) : embedding_plan(&bags, &wish));
    const size_t limits[] = {bytes - 1, 1};
    for (int i = 0; i < LENGTH(limits); i++) {
      wish.max_workspace = limits[i];
      const char *needed = number((int64_t)bytes), *allowed = number((int64_t)limits[i]);
      if (family)
        refuses_segment(&segments, &wish, UNSUPPORTED, "unsorted_segment_prod_backward.f32.i32/cpu.scalar", needed,
                        allowed);
      else
        refuses_embedding(&bags, &wish, UNSUPPORTED, "bag_mean_backward.f32.i64/cpu.scalar", needed, allowed);
    }
  }
  sheaf_embedding_desc lookup = embedding_of(SHEAF_LOOKUP);
  sheaf_preference wish = SHEAF_PREFERENCE_INIT;
  wish.max_workspace = 1;
  sheaf_plan *plan = embedding_plan(&lookup, &wish);
  assert_int_equal(sheaf_plan_workspace_size(plan), 0);
  sheaf_plan_free(plan);
}

static void test_a_grouping_that_is_given_makes_the_workspace_smaller(void **state)
{
  (void)state;
  sheaf_preference wish = SHEAF_PREFERENCE_INIT;
  wish.threads = 1;
  sheaf_embedding_desc lookup = embedding_of(SHEAF_LOOKUP_BACKWARD);
  sheaf_plan *whole = embedding_plan(&lookup, &wish);
  lookup.grouping_given = 1;
  sheaf_plan *rest = embedding_plan(&lookup, &wish);
  assert_int_equal(sheaf_plan_workspace_size(whole) - sheaf_plan_workspace_size(rest), sheaf_grouping_size(whole));
  assert_int_equal(sheaf_grouping_size(whole), sheaf_grouping_size(rest));
  sheaf_plan_free(whole);
  sheaf_plan_free(rest);
}

static void test_required_backend(void **state)
{
  (void)state;
  sheaf_embedding_desc lookup = embedding_of(SHEAF_LOOKUP);
  sheaf_segment_desc segments = segments_of(SHEAF_SEGMENT_SUM);
  sheaf_preference wish = SHEAF_PREFERENCE_INIT;
  wish.backend = SHEAF_BACKEND_BESPOKE;
  wish.deterministic = 1;
  sheaf_plan *plan = embedding_plan(&lookup, &wish);
  assert_int_equal(sheaf_plan_sku(plan).backend, SHEAF_BACKEND_BESPOKE);
  assert_int_equal(sheaf_plan_precision_guarantee(plan).deterministic, 1);
  sheaf_plan_free(plan);
  wish.backend = SHEAF_BACKEND_CUB;
  refuses_embedding(&lookup, &wish, UNSUPPORTED, "lookup.f32.i64/cpu.scalar", "Cub");
  refuses_segment(&segments, &wish, UNSUPPORTED, "segment_sum.f32.i32/cpu.scalar", "Cub");
}

static void test_a_kernel_can_be_asked_for_by_name(void **state)
{
  (void)state;
  sheaf_embedding_desc mean = embedding_of(SHEAF_BAG_MEAN);
  sheaf_preference wish = SHEAF_PREFERENCE_INIT;
  char name[64];
  for (int isa = 0; isa <= (int)sheaf_isa_best(); isa++) {
    snprintf(name, sizeof name, "bag_mean.f32.i64/cpu.%s", sheaf_isa_name((sheaf_isa)isa));
    wish.kernel = name;
    sheaf_plan *plan = embedding_plan(&mean, &wish);
    assert_string_equal(sheaf_plan_sku(plan).name, name);
    sheaf_plan_free(plan);
  }
  const char *others[] = {"",
                          "bag_mean",
                          "bag_mean.f32.i64/cpu.sse9",
                          "bag_sum.f32.i64/cpu.scalar",
                          "bag_mean.f64.i64/cpu.scalar",
                          "bag_mean.f32.i32/cpu.scalar",
                          "segment_sum.f32.i64/cpu.scalar"};
  for (int i = 0; i < LENGTH(others); i++) {
    wish.kernel = others[i];
    refuses_embedding(&mean, &wish, UNSUPPORTED, others[i], "bag_mean.f32.i64/cpu.scalar", "another one was asked for");
  }
  char longest[5000];
  memset(longest, 'x', sizeof longest - 1);
  longest[sizeof longest - 1] = 0;
  wish.kernel = longest;
  refuses_embedding(&mean, &wish, UNSUPPORTED, "xxxx");
}

static void test_kernels_that_this_cpu_lacks_are_refused(void **state)
{
  (void)state;
  int lacking = 0;
  for (int64_t i = 0; i < sheaf_kernel_count(); i++) {
    sheaf_sku sku;
    int available = 0;
    assert_int_equal(sheaf_kernel_at(i, &sku, &available), SHEAF_OK);
    if (available || sku.category != SHEAF_CATEGORY_EMBEDDING) continue;
    sheaf_embedding_desc desc = embedding_of((sheaf_embedding_kind)sku.kind);
    sheaf_preference wish = SHEAF_PREFERENCE_INIT;
    desc.dtype = sku.element;
    desc.index_dtype = sku.index_element;
    wish.kernel = sku.name;
    refuses_embedding(&desc, &wish, UNSUPPORTED, sku.name, "this CPU lacks");
    lacking++;
  }
  if (!lacking) {
    print_message("this CPU lacks no kernel of the build\n");
    skip();
  }
}

static int is_built(int isa)
{
  sheaf_sku sku;
  int available;
  for (int64_t i = 0; i < sheaf_kernel_count(); i++)
    if (sheaf_kernel_at(i, &sku, &available) == SHEAF_OK && (int)sku.arch == isa) return 1;
  return 0;
}

static void test_set_isa_decides_what_select_takes(void **state)
{
  (void)state;
  sheaf_embedding_desc lookup = embedding_of(SHEAF_LOOKUP);
  sheaf_segment_desc segments = segments_of(SHEAF_SEGMENT_SUM);
  sheaf_isa before = sheaf_isa_current(), best = sheaf_isa_best();
  sheaf_plan *kept = embedding_plan(&lookup, NULL);
  sheaf_sku kept_sku = sheaf_plan_sku(kept);
  for (int isa = 0; isa <= (int)best; isa++) {
    assert_int_equal(sheaf_set_isa((sheaf_isa)isa), SHEAF_OK);
    assert_int_equal(sheaf_isa_current(), isa);
    sheaf_plan *plan = embedding_plan(&lookup, NULL);
    assert_int_equal(sheaf_plan_sku(plan).arch, isa);
    sheaf_plan_free(plan);
    plan = segment_plan(&segments, NULL);
    assert_int_equal(sheaf_plan_sku(plan).arch, isa);
    sheaf_plan_free(plan);
  }
  assert_string_equal(sheaf_plan_sku(kept).name, kept_sku.name);
  sheaf_plan_free(kept);
  const int wrong[] = {-1, 3, INT32_MAX};
  for (int i = 0; i < LENGTH(wrong); i++)
    check_refusal(sheaf_set_isa((sheaf_isa)wrong[i]), NULL, SHEAF_INVALID_PROBLEM, WORDS(number(wrong[i])), __LINE__);
  for (int isa = (int)best + 1; isa <= SHEAF_ISA_AVX512; isa++) {
    const char *why = is_built(isa) ? sheaf_isa_name(best) : "built without kernels";
    check_refusal(sheaf_set_isa((sheaf_isa)isa), NULL, SHEAF_UNAVAILABLE, WORDS(sheaf_isa_name((sheaf_isa)isa), why),
                  __LINE__);
  }
  assert_int_equal(sheaf_isa_current(), best);
  assert_int_equal(sheaf_set_isa(before), SHEAF_OK);
}

static void test_success_leaves_the_last_error_as_it_was(void **state)
{
  (void)state;
  sheaf_embedding_desc lookup = embedding_of(SHEAF_LOOKUP);
  lookup.rows = -41;
  refuses_embedding(&lookup, NULL, INVALID_PROBLEM, "-41");
  lookup.rows = 41;
  accepts_embedding(&lookup);
  assert_non_null(strstr(sheaf_last_error(), "-41"));
  assert_int_equal(sheaf_last_error_info().status, SHEAF_INVALID_PROBLEM);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_preferences_that_make_no_sense_are_refused),
      cmocka_unit_test(test_workspace_limit_is_kept_and_the_bytes_are_named),
      cmocka_unit_test(test_a_grouping_that_is_given_makes_the_workspace_smaller),
      cmocka_unit_test(test_required_backend),
      cmocka_unit_test(test_a_kernel_can_be_asked_for_by_name),
      cmocka_unit_test(test_kernels_that_this_cpu_lacks_are_refused),
      cmocka_unit_test(test_set_isa_decides_what_select_takes),
      cmocka_unit_test(test_success_leaves_the_last_error_as_it_was),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
