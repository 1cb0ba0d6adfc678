/* bit_oracle_segment.c: the bit oracle of segment reductions. */
#include "bit_oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bit_number.h"

typedef enum reduction { REDUCE_SUM, REDUCE_MEAN, REDUCE_MAX, REDUCE_MIN, REDUCE_PROD } reduction;

/* One problem of a batch, its rows listed by segment. */
typedef struct context {
  const sheaf_segment_desc *desc;
  const sheaf_segment_args *args;
  bool batched;
  int64_t problem;
  bool wide;
  reduction reduce;
  int64_t *segment_of; /* N; -1 for a bad id */
  bit_groups groups;
} context;

static reduction reduction_of(sheaf_segment_kind kind)
{
  switch (kind) {
  case SHEAF_SEGMENT_SUM:
  case SHEAF_SEGMENT_SUM_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_SUM:
  case SHEAF_UNSORTED_SEGMENT_SUM_BACKWARD:
    return REDUCE_SUM;
  case SHEAF_SEGMENT_MEAN:
  case SHEAF_SEGMENT_MEAN_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_MEAN:
  case SHEAF_UNSORTED_SEGMENT_MEAN_BACKWARD:
    return REDUCE_MEAN;
  case SHEAF_SEGMENT_MAX:
  case SHEAF_SEGMENT_MAX_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_MAX:
  case SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD:
    return REDUCE_MAX;
  case SHEAF_SEGMENT_MIN:
  case SHEAF_SEGMENT_MIN_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_MIN:
  case SHEAF_UNSORTED_SEGMENT_MIN_BACKWARD:
    return REDUCE_MIN;
  case SHEAF_SEGMENT_PROD:
  case SHEAF_SEGMENT_PROD_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_PROD:
  case SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD:
    return REDUCE_PROD;
  }
  abort();
}

static bool is_backward(sheaf_segment_kind kind)
{
  switch (kind) {
  case SHEAF_SEGMENT_SUM_BACKWARD:
  case SHEAF_SEGMENT_MEAN_BACKWARD:
  case SHEAF_SEGMENT_MAX_BACKWARD:
  case SHEAF_SEGMENT_MIN_BACKWARD:
  case SHEAF_SEGMENT_PROD_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_SUM_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_MEAN_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_MIN_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD:
    return true;
  default:
    return false;
  }
}

/* ---- Reading one problem ---------------------------------------------------------------------------------------- */

static context read_problem(const sheaf_segment_desc *desc, const sheaf_segment_args *args, int64_t problem)
{
  context c = {.desc = desc, .args = args, .batched = desc->batch >= 1, .problem = problem};
  c.wide = desc->dtype == SHEAF_F64;
  c.reduce = reduction_of(desc->kind);
  c.segment_of = bit_alloc(desc->rows, sizeof *c.segment_of);
  for (int64_t n = 0; n < desc->rows; n++) {
    const int64_t id = bit_load_index(desc->index_dtype, bit_entry(&args->ids, c.batched, problem, n), 0);
    const bool bad = id < 0 || id >= desc->segments;
    c.segment_of[n] = bad ? -1 : id;
    if (bad && args->report != NULL) {
      if (args->report->count == 0) {
        args->report->first_position = problem * desc->rows + n;
        args->report->first_value = id;
      }
      args->report->count++;
    }
  }
  c.groups = bit_groups_make(c.segment_of, desc->rows, desc->segments);
  return c;
}

static void free_problem(context *c)
{
  free(c->segment_of);
  bit_groups_free(&c->groups);
}

static void *row_of(const context *c, const sheaf_operand *operand, int64_t row)
{
  return bit_row(operand, c->batched, c->problem, row);
}

static int64_t length_of(const context *c, int64_t s) { return c->groups.start[s + 1] - c->groups.start[s]; }

static const int64_t *rows_of(const context *c, int64_t s) { return c->groups.position + c->groups.start[s]; }

/* Column d of the rows of segment s. */
static void gather(const context *c, int64_t s, int64_t d, double *terms)
{
  for (int64_t j = 0; j < length_of(c, s); j++) {
    terms[j] = bit_load(c->desc->dtype, row_of(c, &c->args->data, rows_of(c, s)[j]), d);
  }
}

/* Which of `count` terms is the extreme: the first NaN, else the first of the largest (smallest). */
static int64_t extreme(reduction reduce, const double *terms, int64_t count)
{
  int64_t best = 0;
  for (int64_t j = 1; j < count && !isnan(terms[best]); j++) {
    if (isnan(terms[j]) || (reduce == REDUCE_MAX ? terms[j] > terms[best] : terms[j] < terms[best])) {
      best = j;
    }
  }
  return best;
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

static double empty_value(const context *c)
{
  const bool identity = c->desc->empty == SHEAF_EMPTY_IDENTITY;
  switch (c->reduce) {
  case REDUCE_PROD:
    return 1.0;
  case REDUCE_MEAN:
    return identity ? (double)NAN : 0.0;
  case REDUCE_MAX:
    return identity ? (double)-INFINITY : 0.0;
  case REDUCE_MIN:
    return identity ? (double)INFINITY : 0.0;
  case REDUCE_SUM:
    return 0.0;
  }
  abort();
}

static void reduce_extreme(const context *c, int64_t s, int64_t d, const double *terms)
{
  const size_t bytes = bit_element_bytes(c->desc->dtype);
  const int64_t length = length_of(c, s);
  char *out = row_of(c, &c->args->out, s);
  int64_t n = -1;
  if (length == 0) {
    bit_store(c->desc->dtype, out, d, empty_value(c));
  } else {
    n = rows_of(c, s)[extreme(c->reduce, terms, length)];
    memcpy(out + (size_t)d * bytes, (char *)row_of(c, &c->args->data, n) + (size_t)d * bytes, bytes);
  }
  if (c->args->arg.tensor != NULL) {
    bit_store_index(c->desc->index_dtype, row_of(c, &c->args->arg, s), d, n);
  }
}

static void reduce_numbers(const context *c, int64_t s, int64_t d, const double *terms)
{
  const int64_t length = length_of(c, s);
  double result = empty_value(c);
  if (length > 0 && c->reduce == REDUCE_PROD) {
    result = bit_product(c->wide, terms, length);
  } else if (length > 0) {
    result = bit_sum(c->wide, terms, NULL, NULL, length);
    result = c->reduce == REDUCE_MEAN ? bit_divide(c->wide, result, bit_count(c->wide, length)) : result;
  }
  bit_store(c->desc->dtype, row_of(c, &c->args->out, s), d, result);
}

static void forward(const context *c)
{
  double *terms = bit_alloc(c->desc->rows, sizeof *terms);
  for (int64_t s = 0; s < c->desc->segments; s++) {
    for (int64_t d = 0; d < c->desc->dim; d++) {
      gather(c, s, d, terms);
      if (c->reduce == REDUCE_MAX || c->reduce == REDUCE_MIN) {
        reduce_extreme(c, s, d, terms);
      } else {
        reduce_numbers(c, s, d, terms);
      }
    }
  }
  free(terms);
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

static double upstream(const context *c, int64_t s, int64_t d)
{
  return bit_load(c->desc->dtype, row_of(c, &c->args->grad_out, s), d);
}

static void write_grad(const context *c, int64_t n, int64_t d, double value)
{
  bit_store(c->desc->dtype, row_of(c, &c->args->data_grad, n), d, value);
}

static void sum_or_mean_backward(const context *c, int64_t s, int64_t d)
{
  const int64_t length = length_of(c, s);
  double share = upstream(c, s, d);
  if (c->reduce == REDUCE_MEAN) {
    share = bit_divide(c->wide, share, bit_count(c->wide, length));
  }
  for (int64_t j = 0; j < length; j++) {
    write_grad(c, rows_of(c, s)[j], d, share);
  }
}

static void extreme_backward(const context *c, int64_t s, int64_t d, double *terms)
{
  if (c->desc->arg_given) {
    const int64_t n = bit_load_index(c->desc->index_dtype, row_of(c, &c->args->arg, s), d);
    if (n >= 0) {
      write_grad(c, n, d, upstream(c, s, d));
    }
    return;
  }
  const int64_t length = length_of(c, s);
  gather(c, s, d, terms);
  const int64_t best = extreme(c->reduce, terms, length);
  if (c->desc->ties == SHEAF_TIES_FIRST) {
    write_grad(c, rows_of(c, s)[best], d, upstream(c, s, d));
    return;
  }
  int64_t ties = 0;
  for (int64_t j = 0; j < length; j++) {
    ties += terms[j] == terms[best] || (isnan(terms[j]) && isnan(terms[best]));
  }
  const double share = bit_divide(c->wide, upstream(c, s, d), bit_count(c->wide, ties));
  for (int64_t j = 0; j < length; j++) {
    if (terms[j] == terms[best] || (isnan(terms[j]) && isnan(terms[best]))) {
      write_grad(c, rows_of(c, s)[j], d, share);
    }
  }
}

static void prod_backward(const context *c, int64_t s, int64_t d, double *terms, double *nonzero)
{
  const int64_t length = length_of(c, s);
  int64_t zeros = 0;
  gather(c, s, d, terms);
  for (int64_t j = 0; j < length; j++) {
    zeros += terms[j] == 0.0;
    nonzero[j] = terms[j] == 0.0 ? 1.0 : terms[j];
  }
  const double product = bit_product(c->wide, nonzero, length);
  const double g = upstream(c, s, d);
  for (int64_t j = 0; j < length; j++) {
    double result = 0.0;
    if (zeros == 0) {
      result = bit_multiply(c->wide, g, bit_divide(c->wide, product, terms[j]));
    } else if (zeros == 1 && terms[j] == 0.0) {
      result = bit_multiply(c->wide, g, product);
    }
    write_grad(c, rows_of(c, s)[j], d, result);
  }
}

static void backward(const context *c)
{
  double *terms = bit_alloc(c->desc->rows, sizeof *terms);
  double *nonzero = bit_alloc(c->desc->rows, sizeof *nonzero);
  for (int64_t n = 0; n < c->desc->rows; n++) {
    for (int64_t d = 0; d < c->desc->dim; d++) {
      write_grad(c, n, d, 0.0);
    }
  }
  for (int64_t s = 0; s < c->desc->segments; s++) {
    for (int64_t d = 0; d < c->desc->dim && length_of(c, s) > 0; d++) {
      if (c->reduce == REDUCE_PROD) {
        prod_backward(c, s, d, terms, nonzero);
      } else if (c->reduce == REDUCE_MAX || c->reduce == REDUCE_MIN) {
        extreme_backward(c, s, d, terms);
      } else {
        sum_or_mean_backward(c, s, d);
      }
    }
  }
  free(terms);
  free(nonzero);
}

void bit_oracle_segment(const sheaf_segment_desc *desc, const sheaf_segment_args *args)
{
  if (args->report != NULL) {
    *args->report = (sheaf_index_report){0, -1, 0};
  }
  const int64_t problems = desc->batch >= 1 ? desc->batch : 1;
  for (int64_t problem = 0; problem < problems; problem++) {
    context c = read_problem(desc, args, problem);
    if (is_backward(desc->kind)) {
      backward(&c);
    } else {
      forward(&c);
    }
    free_problem(&c);
  }
}
