/* test_select.c: how select refuses descriptions: pointers, sizes, kinds, types, devices, flags and options. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "support/refusals.h"

/* ---- Pointers and sizes ------------------------------------------------------------------------------------------ */

static void test_null_pointers_are_refused(void **state)
{
  (void)state;
  sheaf_embedding_desc lookup = embedding_of(SHEAF_LOOKUP);
  sheaf_segment_desc segments = segments_of(SHEAF_SEGMENT_SUM);
  refuses_embedding(NULL, NULL, INVALID_PROBLEM, "desc", "NULL");
  refuses_segment(NULL, NULL, INVALID_PROBLEM, "desc", "NULL");
  check_refusal(sheaf_embedding_select(&lookup, NULL, NULL), NULL, SHEAF_INVALID_PROBLEM,
                WORDS("sheaf_embedding_select", "plan", "NULL"), __LINE__);
  check_refusal(sheaf_segment_select(&segments, NULL, NULL), NULL, SHEAF_INVALID_PROBLEM,
                WORDS("sheaf_segment_select", "plan", "NULL"), __LINE__);
}

static void test_questions_about_no_plan_have_answers(void **state)
{
  (void)state;
  sheaf_plan_free(NULL);
  assert_int_equal(sheaf_plan_workspace_size(NULL), 0);
  assert_int_equal(sheaf_grouping_size(NULL), 0);
  sheaf_sku sku = sheaf_plan_sku(NULL), zero;
  memset(&zero, 0, sizeof zero);
  assert_int_equal(sku.name[0], 0);
  assert_int_equal(sku.element, SHEAF_DTYPE_NONE);
  assert_int_equal(sku.guarantee.deterministic, 0);
  sheaf_guarantee none = sheaf_plan_precision_guarantee(NULL);
  assert_int_equal(none.math, SHEAF_DTYPE_NONE);
  assert_int_equal(none.bit_stable_across_hardware, 0);
}

/* A struct of a later version: `tail` more bytes, of which number `set` is 1 (none for -1). */
typedef struct later {
  _Alignas(16) unsigned char bytes[70000];
} later;

static const void *later_version(const void *known, size_t known_bytes, size_t tail, long set)
{
  static later made;
  size_t size = known_bytes + tail;
  memset(&made, 0, sizeof made);
  memcpy(made.bytes, known, known_bytes);
  memcpy(made.bytes, &size, sizeof size);
  if (set >= 0) made.bytes[known_bytes + (size_t)set] = 1;
  return made.bytes;
}

static void test_struct_sizes_of_other_versions(void **state)
{
  (void)state;
  sheaf_embedding_desc lookup = embedding_of(SHEAF_LOOKUP);
  sheaf_segment_desc segments = segments_of(SHEAF_SEGMENT_SUM);
  sheaf_preference wish = SHEAF_PREFERENCE_INIT;
  const size_t known[] = {sizeof lookup, sizeof segments, sizeof wish};
  const size_t wrong[] = {0, 1, sizeof(size_t), SIZE_MAX};
  for (int s = 0; s < 3; s++) {
    const char *name = s == 2 ? "preference.struct_size" : "desc.struct_size";
    for (int i = 0; i < LENGTH(wrong) + 1; i++) {
      size_t size = i < LENGTH(wrong) ? wrong[i] : known[s] - 1;
      char text[24];
      snprintf(text, sizeof text, "%zu", size);
      lookup.struct_size = s == 0 ? size : sizeof lookup;
      segments.struct_size = s == 1 ? size : sizeof segments;
      wish.struct_size = s == 2 ? size : sizeof wish;
      if (s != 1) refuses_embedding(&lookup, &wish, INVALID_PROBLEM, name, text, number((int64_t)known[s]));
      if (s != 0) refuses_segment(&segments, &wish, INVALID_PROBLEM, name, text, number((int64_t)known[s]));
    }
    lookup.struct_size = sizeof lookup;
    segments.struct_size = sizeof segments;
    wish.struct_size = sizeof wish;
  }
}

static void test_later_structs_are_taken_when_their_tail_is_zero(void **state)
{
  (void)state;
  sheaf_embedding_desc lookup = embedding_of(SHEAF_LOOKUP);
  sheaf_segment_desc segments = segments_of(SHEAF_SEGMENT_SUM);
  sheaf_preference wish = SHEAF_PREFERENCE_INIT;
  const size_t tails[] = {1, 8, 1000, 65536};
  for (int i = 0; i < LENGTH(tails) - 1; i++) {
    sheaf_plan_free(embedding_plan(later_version(&lookup, sizeof lookup, tails[i], -1), NULL));
    sheaf_plan_free(segment_plan(later_version(&segments, sizeof segments, tails[i], -1), NULL));
    sheaf_plan_free(embedding_plan(&lookup, later_version(&wish, sizeof wish, tails[i], -1)));
    for (long set = 0; set<(long)tails[i]; set += tails[i]> 8 ? 333 : 1) {
      refuses_embedding(later_version(&lookup, sizeof lookup, tails[i], set), NULL, INVALID_PROBLEM, "desc",
                        number((int64_t)sizeof lookup + set), SHEAF_VERSION_STRING);
      refuses_segment(later_version(&segments, sizeof segments, tails[i], set), NULL, INVALID_PROBLEM, "desc",
                      number((int64_t)sizeof segments + set));
      refuses_segment(&segments, later_version(&wish, sizeof wish, tails[i], set), INVALID_PROBLEM, "preference",
                      number((int64_t)sizeof wish + set));
    }
  }
  refuses_embedding(later_version(&lookup, sizeof lookup, tails[3], -1), NULL, INVALID_PROBLEM, "struct_size");
}

/* ---- Kinds, types, devices --------------------------------------------------------------------------------------- */

static void test_kinds_that_do_not_exist_are_refused(void **state)
{
  (void)state;
  const int kinds[] = {-1, 8, 20, 255, 65535, 65536, 65538, 65536 * 3 + 7, INT32_MAX, INT32_MIN};
  for (int i = 0; i < LENGTH(kinds); i++) {
    sheaf_embedding_desc lookup = embedding_of((sheaf_embedding_kind)kinds[i]);
    refuses_embedding(&lookup, NULL, INVALID_PROBLEM, "kind", number(kinds[i]), "0 to 7");
    if (kinds[i] == 8) continue;
    sheaf_segment_desc segments = segments_of((sheaf_segment_kind)kinds[i]);
    refuses_segment(&segments, NULL, INVALID_PROBLEM, "kind", number(kinds[i]), "0 to 19");
  }
}

static void test_types_must_be_set(void **state)
{
  (void)state;
  sheaf_embedding_desc lookup = embedding_of(SHEAF_LOOKUP);
  lookup.dtype = SHEAF_DTYPE_NONE;
  refuses_embedding(&lookup, NULL, INVALID_PROBLEM, "lookup", "dtype is not set");
  lookup = embedding_of(SHEAF_LOOKUP);
  lookup.index_dtype = SHEAF_DTYPE_NONE;
  refuses_embedding(&lookup, NULL, INVALID_PROBLEM, "lookup", "index_dtype is not set");
  sheaf_segment_desc segments = segments_of(SHEAF_SEGMENT_MAX);
  segments.dtype = SHEAF_DTYPE_NONE;
  refuses_segment(&segments, NULL, INVALID_PROBLEM, "segment_max", "dtype is not set");
  segments = segments_of(SHEAF_SEGMENT_MAX);
  segments.index_dtype = SHEAF_DTYPE_NONE;
  refuses_segment(&segments, NULL, INVALID_PROBLEM, "segment_max", "index_dtype is not set");
}

/* What each kind takes as elements, indices and offsets; everything else is UNSUPPORTED by name and number. */
static void test_element_types_of_every_embedding_kind(void **state)
{
  (void)state;
  for (int kind = 0; kind < 8; kind++) {
    const char *op = sheaf_kind_name(SHEAF_CATEGORY_EMBEDDING, (uint16_t)kind);
    int backward = kind == 1 || kind == 4 || kind == 5 || kind == 7;
    for (int dtype = -1; dtype <= 10; dtype++) {
      if (dtype == SHEAF_DTYPE_NONE) continue;
      sheaf_embedding_desc desc = embedding_of((sheaf_embedding_kind)kind);
      const char *name = sheaf_dtype_name((sheaf_dtype)dtype);
      int quantised = dtype == SHEAF_INT8 || dtype == SHEAF_INT4, plain = dtype >= SHEAF_F32 && dtype <= SHEAF_BF16;
      desc.dtype = (sheaf_dtype)dtype;
      if (plain || (quantised && !backward))
        accepts_embedding(&desc);
      else if (quantised)
        refuses_embedding(&desc, NULL, UNSUPPORTED, op, name, "gradient");
      else
        refuses_embedding(&desc, NULL, UNSUPPORTED, op, name, number(dtype));
      for (int of_offsets = 0; of_offsets < 2; of_offsets++) {
        desc = embedding_of((sheaf_embedding_kind)kind);
        *(of_offsets ? &desc.offset_dtype : &desc.index_dtype) = (sheaf_dtype)dtype;
        if (dtype == SHEAF_I32 || dtype == SHEAF_I64)
          accepts_embedding(&desc);
        else
          refuses_embedding(&desc, NULL, UNSUPPORTED, op, of_offsets ? "offsets" : "indices", name, number(dtype));
      }
    }
  }
}

static void test_element_types_of_every_segment_kind(void **state)
{
  (void)state;
  for (int kind = 0; kind < 20; kind++) {
    const char *op = sheaf_kind_name(SHEAF_CATEGORY_SEGMENT, (uint16_t)kind);
    for (int dtype = -1; dtype <= 10; dtype++) {
      if (dtype == SHEAF_DTYPE_NONE) continue;
      const char *name = sheaf_dtype_name((sheaf_dtype)dtype);
      sheaf_segment_desc desc = segments_of((sheaf_segment_kind)kind);
      desc.dtype = (sheaf_dtype)dtype;
      if (dtype >= SHEAF_F32 && dtype <= SHEAF_BF16)
        accepts_segment(&desc);
      else
        refuses_segment(&desc, NULL, UNSUPPORTED, op, name, number(dtype));
      desc = segments_of((sheaf_segment_kind)kind);
      desc.index_dtype = (sheaf_dtype)dtype;
      if (dtype == SHEAF_I32 || dtype == SHEAF_I64)
        accepts_segment(&desc);
      else
        refuses_segment(&desc, NULL, UNSUPPORTED, op, "ids", name, number(dtype));
    }
  }
}

static void test_output_types(void **state)
{
  (void)state;
  for (int dtype = SHEAF_F32; dtype <= SHEAF_INT4; dtype++) {
    int quantised = dtype == SHEAF_INT8 || dtype == SHEAF_INT4;
    if (!quantised && dtype > SHEAF_BF16) continue;
    for (int out = SHEAF_F32; out <= SHEAF_INT4; out++) {
      sheaf_embedding_desc desc = embedding_of(SHEAF_BAG_MEAN);
      desc.dtype = (sheaf_dtype)dtype;
      desc.out_dtype = (sheaf_dtype)out;
      if (quantised ? out == SHEAF_F32 || out == SHEAF_F16 || out == SHEAF_BF16 : out == dtype)
        accepts_embedding(&desc);
      else
        refuses_embedding(&desc, NULL, UNSUPPORTED, "bag_mean", sheaf_dtype_name((sheaf_dtype)dtype),
                          sheaf_dtype_name((sheaf_dtype)out));
    }
  }
}

static void test_devices(void **state)
{
  (void)state;
  for (int type = -1; type <= 20; type++) {
    sheaf_embedding_desc lookup = embedding_of(SHEAF_LOOKUP);
    sheaf_segment_desc segments = segments_of(SHEAF_SEGMENT_SUM);
    lookup.device = segments.device = (DLDevice){(DLDeviceType)type, 5};
    if (type == 0 || type == kDLCPU || type == kDLCUDAHost) {
      accepts_embedding(&lookup);
      accepts_segment(&segments);
    } else if (type == kDLCUDA || type == kDLCUDAManaged) {
      refuses_embedding(&lookup, NULL, UNAVAILABLE, "CUDA device 5", "libsheaf_cuda.so");
      refuses_segment(&segments, NULL, UNAVAILABLE, "CUDA device 5", "libsheaf_cuda.so");
    } else {
      refuses_embedding(&lookup, NULL, UNSUPPORTED, "device type", number(type));
      refuses_segment(&segments, NULL, UNSUPPORTED, "device type", number(type));
    }
  }
}

static void test_elements_are_checked_before_extents_and_extents_before_kernels(void **state)
{
  (void)state;
  sheaf_preference wish = SHEAF_PREFERENCE_INIT;
  wish.kernel = "no such kernel";
  sheaf_embedding_desc lookup = embedding_of(SHEAF_LOOKUP);
  lookup.rows = -1;
  refuses_embedding(&lookup, &wish, INVALID_PROBLEM, "rows -1");
  lookup.dtype = SHEAF_I32;
  refuses_embedding(&lookup, &wish, UNSUPPORTED, "lookup of i32");
  sheaf_embedding_desc max = embedding_of(SHEAF_BAG_MAX);
  max.weighted = 1;
  max.dim = -5;
  refuses_embedding(&max, &wish, INVALID_PROBLEM, "dim -5");
  sheaf_segment_desc segments = segments_of(SHEAF_SEGMENT_SUM);
  segments.segments = -2;
  refuses_segment(&segments, &wish, INVALID_PROBLEM, "segments -2");
  segments.dtype = SHEAF_INT8;
  refuses_segment(&segments, &wish, UNSUPPORTED, "segment_sum of int8");
}

/* ---- Flags and options ------------------------------------------------------------------------------------------- */

static void test_flags_are_0_or_1(void **state)
{
  (void)state;
  sheaf_embedding_desc bags = embedding_of(SHEAF_BAG_SUM_BACKWARD);
  uint8_t *flags[] = {&bags.has_padding, &bags.weighted, &bags.scale_grad_by_freq, &bags.grouping_given};
  const char *names[] = {"has_padding", "weighted", "scale_grad_by_freq", "grouping_given"};
  for (int i = 0; i < LENGTH(flags); i++) {
    char text[40];
    *flags[i] = 1;
    accepts_embedding(&bags);
    *flags[i] = (uint8_t)(2 + 84 * i);
    snprintf(text, sizeof text, "%s %d", names[i], 2 + 84 * i);
    refuses_embedding(&bags, NULL, INVALID_PROBLEM, text);
    *flags[i] = 0;
  }
  sheaf_segment_desc segments = segments_of(SHEAF_SEGMENT_MAX_BACKWARD);
  segments.arg_given = 255;
  refuses_segment(&segments, NULL, INVALID_PROBLEM, "arg_given 255");
  segments.arg_given = 0;
  segments.grouping_given = 3;
  refuses_segment(&segments, NULL, INVALID_PROBLEM, "grouping_given 3");
}

static void test_options_that_are_no_option(void **state)
{
  (void)state;
  const int wrong[] = {-1, 3, 1 << 20};
  for (int i = 0; i < LENGTH(wrong); i++) {
    const char *value = number(wrong[i]);
    sheaf_embedding_desc bags = embedding_of(SHEAF_BAG_SUM);
    bags.bag_form = (sheaf_bag_form)wrong[i];
    refuses_embedding(&bags, NULL, INVALID_PROBLEM, "bag_form", value);
    bags = embedding_of(SHEAF_BAG_SUM);
    bags.padding = (sheaf_padding)wrong[i];
    refuses_embedding(&bags, NULL, INVALID_PROBLEM, "padding", value);
    bags = embedding_of(SHEAF_BAG_SUM);
    bags.bad_index = (sheaf_bad_index)wrong[i];
    refuses_embedding(&bags, NULL, INVALID_PROBLEM, "bad_index", value);
    bags = embedding_of(SHEAF_BAG_SUM);
    bags.grad_write = (sheaf_grad_write)wrong[i];
    refuses_embedding(&bags, NULL, INVALID_PROBLEM, "grad_write", value);
    sheaf_segment_desc segments = segments_of(SHEAF_SEGMENT_MAX);
    segments.empty = (sheaf_empty)wrong[i];
    refuses_segment(&segments, NULL, INVALID_PROBLEM, "empty", value);
    segments = segments_of(SHEAF_SEGMENT_MAX);
    segments.ties = (sheaf_ties)wrong[i];
    refuses_segment(&segments, NULL, INVALID_PROBLEM, "ties", value);
    segments = segments_of(SHEAF_SEGMENT_MAX);
    segments.bad_index = (sheaf_bad_index)wrong[i];
    refuses_segment(&segments, NULL, INVALID_PROBLEM, "bad_index", value);
  }
}

static void test_options_of_other_kinds(void **state)
{
  (void)state;
  for (int kind = 0; kind < 8; kind++) {
    const char *op = sheaf_kind_name(SHEAF_CATEGORY_EMBEDDING, (uint16_t)kind);
    sheaf_embedding_desc desc = embedding_of((sheaf_embedding_kind)kind);
    desc.weighted = 1;
    if (kind >= SHEAF_BAG_SUM && kind <= SHEAF_BAG_MEAN_BACKWARD)
      accepts_embedding(&desc);
    else
      refuses_embedding(&desc, NULL, UNSUPPORTED, op, "weights");
  }
  sheaf_embedding_desc max = embedding_of(SHEAF_BAG_MAX_BACKWARD);
  max.scale_grad_by_freq = 1;
  refuses_embedding(&max, NULL, UNSUPPORTED, "bag_max_backward", "scale_grad_by_freq");
  sheaf_segment_desc segments = segments_of(SHEAF_SEGMENT_MIN_BACKWARD);
  segments.ties = SHEAF_TIES_SPLIT;
  accepts_segment(&segments);
  segments.arg_given = 1;
  refuses_segment(&segments, NULL, INVALID_PROBLEM, "arg", "ties");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_null_pointers_are_refused),
      cmocka_unit_test(test_questions_about_no_plan_have_answers),
      cmocka_unit_test(test_struct_sizes_of_other_versions),
      cmocka_unit_test(test_later_structs_are_taken_when_their_tail_is_zero),
      cmocka_unit_test(test_kinds_that_do_not_exist_are_refused),
      cmocka_unit_test(test_types_must_be_set),
      cmocka_unit_test(test_element_types_of_every_embedding_kind),
      cmocka_unit_test(test_element_types_of_every_segment_kind),
      cmocka_unit_test(test_output_types),
      cmocka_unit_test(test_devices),
      cmocka_unit_test(test_elements_are_checked_before_extents_and_extents_before_kernels),
      cmocka_unit_test(test_flags_are_0_or_1),
      cmocka_unit_test(test_options_that_are_no_option),
      cmocka_unit_test(test_options_of_other_kinds),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
