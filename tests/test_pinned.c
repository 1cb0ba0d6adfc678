/* test_pinned.c: numbers and names that are part of the ABI, written out again: no edit of a list may move them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sheaf/sheaf.h>
#include <stdio.h>
#include <string.h>

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

typedef struct pinned {
  int number, constant;
  const char *name;
} pinned;

/* Each number once, in order from `first`, and equal to its constant. */
static void check_numbers(const pinned *list, int length, int first)
{
  for (int i = 0; i < length; i++) {
    if (list[i].number != first + i || list[i].constant != list[i].number)
      fail_msg("%s is %d; it is pinned to %d", list[i].name, list[i].constant, list[i].number);
  }
}

static void test_statuses_have_their_numbers_and_names(void **state)
{
  (void)state;
  static const pinned statuses[] = {{0, SHEAF_OK, "OK"},
                                    {1, SHEAF_MISALIGNED, "MISALIGNED"},
                                    {2, SHEAF_INVALID_PROBLEM, "INVALID_PROBLEM"},
                                    {3, SHEAF_UNSUPPORTED, "UNSUPPORTED"},
                                    {4, SHEAF_WORKSPACE_TOO_SMALL, "WORKSPACE_TOO_SMALL"},
                                    {5, SHEAF_DEVICE, "DEVICE"},
                                    {6, SHEAF_BUFFER_TOO_SMALL, "BUFFER_TOO_SMALL"},
                                    {7, SHEAF_INDEX_OUT_OF_RANGE, "INDEX_OUT_OF_RANGE"},
                                    {8, SHEAF_UNAVAILABLE, "UNAVAILABLE"},
                                    {9, SHEAF_OUT_OF_MEMORY, "OUT_OF_MEMORY"},
                                    {10, SHEAF_IO, "IO"},
                                    {11, SHEAF_COMM, "COMM"},
                                    {12, SHEAF_INTERNAL, "INTERNAL"}};
  check_numbers(statuses, LENGTH(statuses), 0);
  for (int i = 0; i < LENGTH(statuses); i++) {
    assert_string_equal(sheaf_status_name((sheaf_status)i), statuses[i].name);
    assert_true(strlen(sheaf_status_text((sheaf_status)i)) > 0);
    for (int j = 0; j < i; j++)
      assert_string_not_equal(sheaf_status_text((sheaf_status)i), sheaf_status_text((sheaf_status)j));
  }
#define SHEAF_X(name, value, text) +1
  assert_int_equal(0 SHEAF_STATUS_LIST(SHEAF_X), LENGTH(statuses));
#undef SHEAF_X
}

static void test_other_numbers_are_no_status(void **state)
{
  (void)state;
  static const int others[] = {-1, 13, 65536, INT32_MAX, INT32_MIN};
  for (int i = 0; i < LENGTH(others); i++) {
    assert_string_equal(sheaf_status_name((sheaf_status)others[i]), "UNKNOWN");
    assert_non_null(strstr(sheaf_status_text((sheaf_status)others[i]), "not a status"));
  }
}

static void test_dtypes_have_their_numbers_and_names(void **state)
{
  (void)state;
  static const pinned dtypes[] = {{0, SHEAF_DTYPE_NONE, "none"}, {1, SHEAF_F32, "f32"},   {2, SHEAF_F64, "f64"},
                                  {3, SHEAF_F16, "f16"},         {4, SHEAF_BF16, "bf16"}, {5, SHEAF_I32, "i32"},
                                  {6, SHEAF_I64, "i64"},         {7, SHEAF_U8, "u8"},     {8, SHEAF_INT8, "int8"},
                                  {9, SHEAF_INT4, "int4"}};
  check_numbers(dtypes, LENGTH(dtypes), 0);
  for (int i = 0; i < LENGTH(dtypes); i++) assert_string_equal(sheaf_dtype_name((sheaf_dtype)i), dtypes[i].name);
  assert_string_equal(sheaf_dtype_name((sheaf_dtype)10), "none");
  assert_string_equal(sheaf_dtype_name((sheaf_dtype)-1), "none");
#define SHEAF_X(name, value, text, bytes) +1
  assert_int_equal(1 SHEAF_DTYPE_LIST(SHEAF_X), LENGTH(dtypes));
#undef SHEAF_X
}

static void check_kind_names(sheaf_category category, const pinned *kinds, int length)
{
  check_numbers(kinds, length, 0);
  for (int i = 0; i < length; i++) assert_string_equal(sheaf_kind_name(category, (uint16_t)i), kinds[i].name);
  assert_null(sheaf_kind_name(category, (uint16_t)length));
  assert_null(sheaf_kind_name(category, UINT16_MAX));
}

static void test_embedding_kinds_have_their_numbers_and_names(void **state)
{
  (void)state;
  static const pinned kinds[] = {{0, SHEAF_LOOKUP, "lookup"},
                                 {1, SHEAF_LOOKUP_BACKWARD, "lookup_backward"},
                                 {2, SHEAF_BAG_SUM, "bag_sum"},
                                 {3, SHEAF_BAG_MEAN, "bag_mean"},
                                 {4, SHEAF_BAG_SUM_BACKWARD, "bag_sum_backward"},
                                 {5, SHEAF_BAG_MEAN_BACKWARD, "bag_mean_backward"},
                                 {6, SHEAF_BAG_MAX, "bag_max"},
                                 {7, SHEAF_BAG_MAX_BACKWARD, "bag_max_backward"}};
  check_kind_names(SHEAF_CATEGORY_EMBEDDING, kinds, LENGTH(kinds));
}

static void test_segment_kinds_have_their_numbers_and_names(void **state)
{
  (void)state;
  static const pinned kinds[] = {{0, SHEAF_SEGMENT_SUM, "segment_sum"},
                                 {1, SHEAF_SEGMENT_SUM_BACKWARD, "segment_sum_backward"},
                                 {2, SHEAF_SEGMENT_MEAN, "segment_mean"},
                                 {3, SHEAF_SEGMENT_MEAN_BACKWARD, "segment_mean_backward"},
                                 {4, SHEAF_SEGMENT_MAX, "segment_max"},
                                 {5, SHEAF_SEGMENT_MIN, "segment_min"},
                                 {6, SHEAF_SEGMENT_PROD, "segment_prod"},
                                 {7, SHEAF_UNSORTED_SEGMENT_SUM, "unsorted_segment_sum"},
                                 {8, SHEAF_UNSORTED_SEGMENT_SUM_BACKWARD, "unsorted_segment_sum_backward"},
                                 {9, SHEAF_UNSORTED_SEGMENT_MEAN, "unsorted_segment_mean"},
                                 {10, SHEAF_UNSORTED_SEGMENT_MEAN_BACKWARD, "unsorted_segment_mean_backward"},
                                 {11, SHEAF_UNSORTED_SEGMENT_MAX, "unsorted_segment_max"},
                                 {12, SHEAF_UNSORTED_SEGMENT_MIN, "unsorted_segment_min"},
                                 {13, SHEAF_SEGMENT_MAX_BACKWARD, "segment_max_backward"},
                                 {14, SHEAF_SEGMENT_MIN_BACKWARD, "segment_min_backward"},
                                 {15, SHEAF_SEGMENT_PROD_BACKWARD, "segment_prod_backward"},
                                 {16, SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD, "unsorted_segment_max_backward"},
                                 {17, SHEAF_UNSORTED_SEGMENT_MIN_BACKWARD, "unsorted_segment_min_backward"},
                                 {18, SHEAF_UNSORTED_SEGMENT_PROD, "unsorted_segment_prod"},
                                 {19, SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD, "unsorted_segment_prod_backward"}};
  check_kind_names(SHEAF_CATEGORY_SEGMENT, kinds, LENGTH(kinds));
}

static void test_categories_and_options_have_their_numbers(void **state)
{
  (void)state;
  assert_int_equal(SHEAF_CATEGORY_EMBEDDING, 0);
  assert_int_equal(SHEAF_CATEGORY_SEGMENT, 1);
  assert_null(sheaf_kind_name((sheaf_category)2, 0));
  assert_null(sheaf_kind_name((sheaf_category)-1, 0));
  assert_int_equal(SHEAF_BAD_INDEX_SKIP, 0);
  assert_int_equal(SHEAF_BAD_INDEX_ERROR, 1);
  assert_int_equal(SHEAF_BAGS_OFFSETS, 0);
  assert_int_equal(SHEAF_BAGS_OFFSETS_END, 1);
  assert_int_equal(SHEAF_BAGS_MATRIX, 2);
  assert_int_equal(SHEAF_PADDING_ZERO, 0);
  assert_int_equal(SHEAF_PADDING_ROW, 1);
  assert_int_equal(SHEAF_GRAD_ACCUMULATE, 0);
  assert_int_equal(SHEAF_GRAD_OVERWRITE, 1);
  assert_int_equal(SHEAF_GRAD_TOUCHED, 2);
  assert_int_equal(SHEAF_EMPTY_NEUTRAL, 0);
  assert_int_equal(SHEAF_EMPTY_IDENTITY, 1);
  assert_int_equal(SHEAF_TIES_FIRST, 0);
  assert_int_equal(SHEAF_TIES_SPLIT, 1);
  assert_int_equal(SHEAF_BACKEND_ANY, 0);
  assert_int_equal(SHEAF_BACKEND_BESPOKE, 1);
  assert_int_equal(SHEAF_BACKEND_CUB, 2);
}

static void test_instruction_sets_have_their_numbers_and_names(void **state)
{
  (void)state;
  static const pinned sets[] = {
      {0, SHEAF_ISA_SCALAR, "scalar"}, {1, SHEAF_ISA_AVX2, "avx2"}, {2, SHEAF_ISA_AVX512, "avx512"}};
  static const pinned archs[] = {{0, SHEAF_ARCH_SCALAR, "scalar"},
                                 {1, SHEAF_ARCH_AVX2, "avx2"},
                                 {2, SHEAF_ARCH_AVX512, "avx512"},
                                 {3, SHEAF_ARCH_SM80, "sm80"},
                                 {4, SHEAF_ARCH_SM90, "sm90"}};
  check_numbers(sets, LENGTH(sets), 0);
  check_numbers(archs, LENGTH(archs), 0);
  for (int i = 0; i < LENGTH(sets); i++) assert_string_equal(sheaf_isa_name((sheaf_isa)i), sets[i].name);
  assert_non_null(sheaf_isa_name((sheaf_isa)-1));
  assert_non_null(sheaf_isa_name((sheaf_isa)3));
  assert_non_null(sheaf_cpu_name());
}

static void test_library_and_header_have_one_version(void **state)
{
  (void)state;
  char text[32];
  snprintf(text, sizeof text, "%d.%d.%d", SHEAF_VERSION_MAJOR, SHEAF_VERSION_MINOR, SHEAF_VERSION_PATCH);
  assert_string_equal(text, SHEAF_VERSION_STRING);
  assert_string_equal(sheaf_version(), SHEAF_VERSION_STRING);
}

static void test_init_macros_leave_zero_but_for_the_size(void **state)
{
  (void)state;
  union {
    size_t size;
    sheaf_embedding_desc embedding;
    sheaf_embedding_args embedding_args;
    sheaf_segment_desc segment;
    sheaf_segment_args segment_args;
    sheaf_preference preference;
  } made;
#define CHECK_INIT(type, init)                        \
  do {                                                \
    const type fresh = init;                          \
    memcpy(&made, &fresh, sizeof fresh);              \
    assert_int_equal(made.size, sizeof fresh);        \
    assert_int_equal(offsetof(type, struct_size), 0); \
  } while (0)
  CHECK_INIT(sheaf_embedding_desc, SHEAF_EMBEDDING_DESC_INIT);
  CHECK_INIT(sheaf_embedding_args, SHEAF_EMBEDDING_ARGS_INIT);
  CHECK_INIT(sheaf_segment_desc, SHEAF_SEGMENT_DESC_INIT);
  CHECK_INIT(sheaf_segment_args, SHEAF_SEGMENT_ARGS_INIT);
  CHECK_INIT(sheaf_preference, SHEAF_PREFERENCE_INIT);
#undef CHECK_INIT
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_statuses_have_their_numbers_and_names),
      cmocka_unit_test(test_other_numbers_are_no_status),
      cmocka_unit_test(test_dtypes_have_their_numbers_and_names),
      cmocka_unit_test(test_embedding_kinds_have_their_numbers_and_names),
      cmocka_unit_test(test_segment_kinds_have_their_numbers_and_names),
      cmocka_unit_test(test_categories_and_options_have_their_numbers),
      cmocka_unit_test(test_instruction_sets_have_their_numbers_and_names),
      cmocka_unit_test(test_library_and_header_have_one_version),
      cmocka_unit_test(test_init_macros_leave_zero_but_for_the_size),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
