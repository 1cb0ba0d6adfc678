/* plain_oracle_segment.c: what every segment op means, by naive formulae in double. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plain_oracle.h"

typedef struct segment {
  const sheaf_segment_desc *desc;
  const sheaf_segment_args *args;
  int64_t problem;
} segment;

/* sum, mean, max, min or prod: the word in the kind's name that says what is reduced. */
static char letter_of(sheaf_segment_kind kind)
{
#define SHEAF_X(name, number, text) {text, number},
  static const struct {
    const char *text;
    int number;
  } kinds[] = {SHEAF_SEGMENT_KIND_LIST(SHEAF_X)};
#undef SHEAF_X
  static const struct {
    const char *word;
    char letter;
  } words[] = {{"_sum", '+'}, {"_mean", '/'}, {"_max", '>'}, {"_min", '<'}, {"_prod", '*'}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    for (size_t w = 0; w < sizeof words / sizeof *words && kinds[i].number == (int)kind; w++) {
      if (strstr(kinds[i].text, words[w].word) != NULL) {
        return words[w].letter;
      }
    }
  }
  abort();
}

static const void *locate(const segment *s, const sheaf_operand *operand, int64_t row, int64_t column)
{
  const DLTensor *t = operand->tensor;
  const int batched = s->desc->batch > 0;
  int64_t stride[3] = {0};
  int64_t contiguous = 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    stride[i] = t->strides != NULL ? t->strides[i] : contiguous;
    contiguous *= t->shape[i];
  }
  int64_t at = batched ? s->problem * stride[0] : 0;
  at += t->ndim - batched == 1 ? row * stride[batched] : row * stride[batched] + column * stride[batched + 1];
  return (const char *)t->data + t->byte_offset + at * (t->dtype.bits / 8);
}

static double value_at(const segment *s, const sheaf_operand *operand, int64_t row, int64_t column)
{
  const void *at = locate(s, operand, row, column);
  switch (s->desc->dtype) {
  case SHEAF_F64:
    return *(const double *)at;
  case SHEAF_F32:
    return (double)*(const float *)at;
  default:
    return plain_half(s->desc->dtype == SHEAF_BF16, *(const uint16_t *)at);
  }
}

static int64_t integer_at(const segment *s, const sheaf_operand *operand, int64_t row, int64_t column)
{
  const void *at = locate(s, operand, row, column);
  return s->desc->index_dtype == SHEAF_I32 ? *(const int32_t *)at : *(const int64_t *)at;
}

/* The rows of segment `id`, in order. */
static int64_t list_rows(const segment *s, int64_t id, int64_t *rows)
{
  int64_t count = 0;
  for (int64_t n = 0; n < s->desc->rows; n++) {
    if (integer_at(s, &s->args->ids, n, 0) == id) {
      rows[count++] = n;
    }
  }
  return count;
}

/* Which of the rows holds the extreme value of a column: a NaN before any number. */
static int64_t find_extreme(const segment *s, char letter, const int64_t *rows, int64_t count, int64_t d)
{
  int64_t best = rows[0];
  for (int64_t j = 1; j < count; j++) {
    const double x = value_at(s, &s->args->data, rows[j], d);
    const double held = value_at(s, &s->args->data, best, d);
    if (!isnan(held) && (isnan(x) || (letter == '>' ? x > held : x < held))) {
      best = rows[j];
    }
  }
  return best;
}

static void reduce_column(const segment *s, char letter, const int64_t *rows, int64_t count, int64_t d, double *value,
                          double *scale, double *arg)
{
  const int identity = s->desc->empty == SHEAF_EMPTY_IDENTITY;
  *arg = -1.0;
  *value = letter == '*' ? 1.0 : 0.0;
  *scale = 0.0;
  if (count == 0) {
    const double infinite = (double)INFINITY;
    *value = letter == '*'                ? 1.0
             : !identity || letter == '+' ? 0.0
             : letter == '/'              ? (double)NAN
             : letter == '>'              ? -infinite
                                          : infinite;
    return;
  }
  if (letter == '>' || letter == '<') {
    const int64_t n = find_extreme(s, letter, rows, count, d);
    *value = value_at(s, &s->args->data, n, d);
    *scale = fabs(*value);
    *arg = (double)n;
    return;
  }
  for (int64_t j = 0; j < count; j++) {
    const double x = value_at(s, &s->args->data, rows[j], d);
    *value = letter == '*' ? *value * x : *value + x;
    *scale += fabs(x);
  }
  if (letter == '*') {
    *scale = fabs(*value);
  } else if (letter == '/') {
    *value /= (double)count;
    *scale /= (double)count;
  }
}

/* The gradients of the rows of one segment in one column, into gradient[j]; the upstream gradient is g. */
static void column_gradient(const segment *s, char letter, int64_t id, const int64_t *rows, int64_t count, int64_t d,
                            double *gradient)
{
  const double g = value_at(s, &s->args->grad_out, id, d);
  if (letter == '>' || letter == '<') {
    const int64_t best =
        s->desc->arg_given ? integer_at(s, &s->args->arg, id, d) : find_extreme(s, letter, rows, count, d);
    const double extreme = s->desc->arg_given ? 0.0 : value_at(s, &s->args->data, best, d);
    double sharers = 0.0;
    for (int64_t j = 0; j < count; j++) {
      gradient[j] = rows[j] == best ? 1.0 : 0.0;
      if (s->desc->ties == SHEAF_TIES_SPLIT) {
        const double x = value_at(s, &s->args->data, rows[j], d);
        gradient[j] = x == extreme || (isnan(x) && isnan(extreme)) ? 1.0 : 0.0;
      }
      sharers += gradient[j];
    }
    for (int64_t j = 0; j < count; j++) {
      gradient[j] = gradient[j] != 0.0 ? g / sharers : 0.0;
    }
    return;
  }
  double before = g;
  for (int64_t j = 0; j < count; j++) {
    gradient[j] = letter == '+' ? g : letter == '/' ? g / (double)count : before;
    before *= letter == '*' ? value_at(s, &s->args->data, rows[j], d) : 1.0;
  }
  double after = 1.0;
  for (int64_t j = count - 1; j >= 0 && letter == '*'; j--) { /* g times all the others */
    gradient[j] *= after;
    after *= value_at(s, &s->args->data, rows[j], d);
  }
}

static void solve_segment(const segment *s, plain_result *result, char letter, int64_t id, int64_t *rows,
                          double *gradient)
{
  const int64_t count = list_rows(s, id, rows);
  for (int64_t d = 0; d < s->desc->dim; d++) {
    if (result->out.value != NULL) {
      const int64_t at = (s->problem * s->desc->segments + id) * s->desc->dim + d;
      reduce_column(s, letter, rows, count, d, &result->out.value[at], &result->out.scale[at], &result->arg.value[at]);
    } else if (count > 0) {
      column_gradient(s, letter, id, rows, count, d, gradient);
      for (int64_t j = 0; j < count; j++) {
        const int64_t at = (s->problem * s->desc->rows + rows[j]) * s->desc->dim + d;
        result->grad.value[at] = gradient[j];
        result->grad.scale[at] = fabs(gradient[j]);
      }
    }
  }
}

static double *zeros(int64_t count)
{
  double *memory = calloc((size_t)(count > 0 ? count : 1), sizeof *memory);
  if (memory == NULL) {
    abort();
  }
  return memory;
}

static plain_output make_output(int64_t problems, int64_t rows, int64_t columns)
{
  const int64_t count = problems * rows * columns;
  return (plain_output){problems, rows, columns, zeros(count), zeros(count)};
}

plain_result *plain_oracle_segment(const sheaf_segment_desc *desc, const sheaf_segment_args *args)
{
  const int64_t problems = desc->batch > 0 ? desc->batch : 1;
  const char letter = letter_of(desc->kind);
  plain_result *result = (plain_result *)(void *)zeros((int64_t)(sizeof *result / sizeof(double) + 1));
  int64_t *rows = (int64_t *)(void *)zeros(desc->rows);
  double *gradient = zeros(desc->rows);
  result->report.first_position = -1;
  if (args->data_grad.tensor != NULL) {
    result->grad = make_output(problems, desc->rows, desc->dim);
  } else {
    result->out = make_output(problems, desc->segments, desc->dim);
    result->arg = make_output(problems, desc->segments, desc->dim);
  }
  for (int64_t problem = 0; problem < problems; problem++) {
    const segment s = {desc, args, problem};
    for (int64_t n = 0; n < desc->rows; n++) {
      const int64_t id = integer_at(&s, &args->ids, n, 0);
      if ((id < 0 || id >= desc->segments) && result->report.count++ == 0) {
        result->report.first_position = problem * desc->rows + n;
        result->report.first_value = id;
      }
    }
    for (int64_t id = 0; id < desc->segments; id++) {
      solve_segment(&s, result, letter, id, rows, gradient);
    }
  }
  free(rows);
  free(gradient);
  return result;
}
