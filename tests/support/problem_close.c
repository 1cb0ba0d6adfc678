/* problem_close.c: generated problems compared with the plain oracle, within the documented tolerances. */
#include "problem_close.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "oracle/bit_number.h"
#include "oracle/plain_oracle.h"

/* The distance between neighbours of a 16-bit type around |value|. */
static double unit_in_last_place(sheaf_dtype dtype, double value)
{
  const int fraction_bits = dtype == SHEAF_F16 ? 10 : 7;
  const int least = dtype == SHEAF_F16 ? -14 : -126;
  int exponent = least;
  if (fabs(value) >= ldexp(1.0, least)) {
    frexp(value, &exponent);
    exponent--;
  }
  return ldexp(1.0, exponent - fraction_bits);
}

double tolerance_of(sheaf_dtype dtype, double value, double scale)
{
  switch (dtype) {
  case SHEAF_F64:
    return 1e-12 * scale + 0x1p-1074;
  case SHEAF_F32:
    return 1e-5 * scale + 0x1p-149;
  default:
    return unit_in_last_place(dtype, value) + 1e-6 * scale;
  }
}

static double largest(sheaf_dtype dtype)
{
  return dtype == SHEAF_F16 ? 65504.0 : dtype == SHEAF_F64 ? 0x1.fffffffffffffp1023 : 0x1.fep127;
}

static bool number_close(sheaf_dtype dtype, double expected, double scale, double got)
{
  if (isnan(expected) || isnan(got)) {
    return isnan(expected) && isnan(got);
  }
  if (fabs(expected) >= largest(dtype)) { /* it may be rounded to infinity */
    return signbit(expected) == signbit(got) && fabs(got) >= 0.99 * largest(dtype);
  }
  return fabs(got - expected) <= tolerance_of(dtype, expected, scale);
}

static bool output_close(const plain_output *expected, const problem_operand *got, bool exact, const char *label)
{
  for (int64_t i = 0; i < got->problems; i++) {
    for (int64_t row = 0; row < got->rows; row++) {
      for (int64_t d = 0; d < got->columns; d++) {
        const int64_t at = (i * expected->rows + row) * expected->columns + d;
        const double value = expected->value[at];
        const bool index = got->dtype == SHEAF_I32 || got->dtype == SHEAF_I64;
        const void *element = operand_at(got, i, row, d);
        const double held = index ? (double)bit_load_index(got->dtype, element, 0) : bit_load(got->dtype, element, 0);
        const bool close = exact || index ? held == value : number_close(got->dtype, value, expected->scale[at], held);
        if (!close) {
          fprintf(stderr,
                  "%s: problem %" PRId64 ", row %" PRId64 ", column %" PRId64
                  ": the plain oracle says %.17g (sum of absolute terms %.3g), got %.17g\n",
                  label, i, row, d, value, expected->scale[at], held);
          return false;
        }
      }
    }
  }
  return true;
}

static plain_result *plain_answer(problem *p, problem_outputs *before)
{
  if (p->spec.category == SHEAF_CATEGORY_EMBEDDING) {
    const sheaf_embedding_args args = problem_embedding_args(p, before);
    return plain_oracle_embedding(&p->embedding, &args);
  }
  const sheaf_segment_args args = problem_segment_args(p, before);
  return plain_oracle_segment(&p->segment, &args);
}

bool problem_outputs_close(problem *p, const problem_outputs *got, const char *label)
{
  const bool embedding = p->spec.category == SHEAF_CATEGORY_EMBEDDING;
  problem_outputs *before = problem_outputs_make(p);
  plain_result *plain = plain_answer(p, before);
  const plain_output *const outputs[PROBLEM_OPERANDS] = {
      [AT_OUT] = embedding ? &plain->out : &plain->grad, /* the same position as AT_DATA_GRAD */
      [AT_SEGMENT_OUT] = &plain->out,
      [AT_SEGMENT_ARG] = &plain->arg,
      [AT_ARG] = &plain->arg,
      [AT_TABLE_GRAD] = &plain->grad,
      [AT_WEIGHTS_GRAD] = &plain->weights_grad,
  };
  bool close = true;
  for (int at = 0; at < PROBLEM_OPERANDS && close; at++) {
    if (got->operand[at].given) {
      close = output_close(outputs[at], &got->operand[at], problem_copies_bits(&p->spec), label);
    }
  }
  if (p->spec.want_report &&
      (plain->report.count != got->report.count || plain->report.first_position != got->report.first_position ||
       plain->report.first_value != got->report.first_value)) {
    fprintf(stderr, "%s: the plain oracle reports %" PRId64 " bad indices, got %" PRId64 "\n", label,
            plain->report.count, got->report.count);
    close = false;
  }
  if (!close) {
    char text[512];
    fprintf(stderr, "  problem %s\n", problem_text(p, text, sizeof text));
  }
  plain_result_free(plain);
  problem_outputs_free(before);
  return close;
}
