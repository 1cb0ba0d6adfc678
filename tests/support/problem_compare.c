/* problem_compare.c: generated problems: comparing output sets bit for bit. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/bit_number.h"
#include "problem.h"

static const char *operand_name(const problem *p, int at)
{
#define SHEAF_X(name) #name,
  static const char *const embedding[] = {SHEAF_EMBEDDING_OPERAND_LIST(SHEAF_X)};
  static const char *const segment[] = {SHEAF_SEGMENT_OPERAND_LIST(SHEAF_X)};
#undef SHEAF_X
  return p->spec.category == SHEAF_CATEGORY_EMBEDDING ? embedding[at] : segment[at];
}

static bool is_index(sheaf_dtype dtype) { return dtype == SHEAF_I32 || dtype == SHEAF_I64; }

static bool both_nan(sheaf_dtype dtype, const void *a, const void *b)
{
  return !is_index(dtype) && isnan(bit_load(dtype, a, 0)) && isnan(bit_load(dtype, b, 0));
}

static void print_element(sheaf_dtype dtype, const char *who, const void *element)
{
  if (is_index(dtype)) {
    fprintf(stderr, "  %s %" PRId64 "\n", who, bit_load_index(dtype, element, 0));
    return;
  }
  const size_t bytes = bit_element_bytes(dtype);
  fprintf(stderr, "  %s %.17g (0x", who, bit_load(dtype, element, 0));
  for (size_t i = bytes; i > 0; i--) {
    fprintf(stderr, "%02x", ((const unsigned char *)element)[i - 1]);
  }
  fprintf(stderr, ")\n");
}

/* The walk behind operands_equal, once some byte differs: `scratch` is a copy of the expected memory, into which NaNs
 * that are allowed to differ are copied, so that whatever still differs in the end lies outside the elements. */
static bool elements_equal(const problem_operand *expected, const problem_operand *got, bool strict,
                           unsigned char *scratch, const char *heading)
{
  const size_t bytes = bit_element_bytes(expected->dtype);
  int64_t different = 0;
  for (int64_t i = 0; i < expected->problems; i++) {
    for (int64_t row = 0; row < expected->rows; row++) {
      for (int64_t d = 0; d < expected->columns; d++) {
        const unsigned char *a = operand_at(expected, i, row, d);
        const unsigned char *b = operand_at(got, i, row, d);
        if (memcmp(a, b, bytes) == 0) {
          continue;
        }
        if (!strict && both_nan(expected->dtype, a, b)) {
          memcpy(scratch + (a - expected->memory), b, bytes);
        } else if (different++ == 0) {
          fprintf(stderr, "%s differs at problem %" PRId64 ", row %" PRId64 ", column %" PRId64 "\n", heading, i, row,
                  d);
          print_element(expected->dtype, "expected", a);
          print_element(expected->dtype, "got     ", b);
        }
      }
    }
  }
  if (different > 0) {
    fprintf(stderr, "  %" PRId64 " elements differ\n", different);
  }
  return different == 0;
}

static bool operands_equal(const problem_operand *expected, const problem_operand *got, bool strict,
                           const char *heading)
{
  if (memcmp(expected->memory, got->memory, expected->memory_bytes) == 0) {
    return true;
  }
  unsigned char *scratch = bit_alloc((int64_t)expected->memory_bytes, 1);
  memcpy(scratch, expected->memory, expected->memory_bytes);
  bool equal = elements_equal(expected, got, strict, scratch, heading);
  for (size_t i = 0; equal && i < expected->memory_bytes; i++) {
    if (scratch[i] != got->memory[i]) {
      fprintf(stderr, "%s: a byte outside its elements was written, %lld bytes from its beginning (%zu long)\n",
              heading, (long long)i - (long long)expected->data_at, expected->data_bytes);
      equal = false;
    }
  }
  free(scratch);
  return equal;
}

const char *problem_text(const problem *p, char *text, size_t bytes)
{
  const problem_spec *s = &p->spec;
  static const char *const spreads[] = {"uniform", "hot", "one row", "zipf"};
  snprintf(text, bytes,
           "seed %" PRIu64 ": N %" PRId64 " D %" PRId64 " rows %" PRId64 " bags %" PRId64 " form %d longest %" PRId64
           " hot %" PRId64 " %s%s%s%s%s%s%s%s%s%s%s%s batch %" PRId64 "%s gap %" PRId64 " shift %" PRId64,
           s->seed, s->count, s->dim, s->rows, s->bags, (int)s->bag_form, s->longest_bag, s->hot_count,
           spreads[s->spread], s->weighted ? " weighted" : "", s->has_padding ? " padding" : "",
           s->padding_row ? " padding_row" : "", s->bad_share > 0 ? " bad" : "", s->scale_grad_by_freq ? " freq" : "",
           (const char *[]){"", " overwrite", " touched"}[s->grad_write], problem_first_index(s) > 0 ? " far" : s->sharded ? " sharded" : "", s->identity_empty ? " identity" : "",
           s->split_ties ? " split" : "", s->arg_given ? " arg_given" : "", s->special_share > 0 ? " specials" : "",
           s->batch,
           s->shared_inputs ? " shared"
           : s->shared_some ? " some shared"
                            : "",
           s->row_gap, s->shift);
  return text;
}

bool problem_outputs_equal(const problem *p, const problem_outputs *expected, const problem_outputs *got,
                           const char *label)
{
  bool equal = true;
  char text[512];
  char heading[640];
  for (int at = 0; at < PROBLEM_OPERANDS && equal; at++) {
    if (expected->operand[at].given) {
      const bool strict = problem_copies_bits(&p->spec);
      snprintf(heading, sizeof heading, "%s: %s", label, operand_name(p, at));
      equal = operands_equal(&expected->operand[at], &got->operand[at], strict, heading);
    }
  }
  const sheaf_index_report *a = &expected->report;
  const sheaf_index_report *b = &got->report;
  if (a->count != b->count || a->first_position != b->first_position || a->first_value != b->first_value) {
    fprintf(stderr,
            "%s: report differs\n  expected %" PRId64 " bad, first at %" PRId64 " holding %" PRId64
            "\n  got      %" PRId64 " bad, first at %" PRId64 " holding %" PRId64 "\n",
            label, a->count, a->first_position, a->first_value, b->count, b->first_position, b->first_value);
    equal = false;
  }
  if (!equal) {
    fprintf(stderr, "  problem %s\n", problem_text(p, text, sizeof text));
  }
  return equal;
}
