/* plain_oracle.c: what every op means, by naive formulae in double. */
#include "plain_oracle.h"

#include <math.h>
#include <stdlib.h>

/* ---- Reading operands -------------------------------------------------------------------------------------------- */

double plain_half(int is_bf16, unsigned bits)
{
  const int fraction_bits = is_bf16 ? 7 : 10;
  const int bias = is_bf16 ? 127 : 15;
  const int exponent = (int)(bits >> fraction_bits) & (2 * bias + 1);
  const double fraction = (double)(bits & ((1u << fraction_bits) - 1));
  const double sign = bits & 0x8000u ? -1.0 : 1.0;
  if (exponent == 2 * bias + 1) {
    return fraction != 0.0 ? (double)NAN : sign * (double)INFINITY;
  }
  if (exponent == 0) {
    return sign * ldexp(fraction, 1 - bias - fraction_bits);
  }
  return sign * ldexp(fraction + ldexp(1.0, fraction_bits), exponent - bias - fraction_bits);
}

/* Element (problem, row, column). A vector is one row; leading dimensions of a matrix count as one. */
static const void *element(const sheaf_operand *operand, int batched, int vector, int64_t problem, int64_t row,
                           int64_t column)
{
  const DLTensor *t = operand->tensor;
  int64_t row_stride = 0;
  int64_t problem_stride = 0;
  if (!vector && t->ndim - batched >= 2) {
    row_stride = t->strides != NULL ? t->strides[t->ndim - 2] : t->shape[t->ndim - 1];
  }
  if (batched && t->strides != NULL) {
    problem_stride = t->strides[0];
  } else if (batched) {
    problem_stride = 1;
    for (int i = 1; i < t->ndim; i++) {
      problem_stride *= t->shape[i];
    }
  }
  const int64_t at = problem * problem_stride + row * row_stride + column;
  return (const char *)t->data + t->byte_offset + at * (t->dtype.bits / 8);
}

static double number(const DLTensor *tensor, const void *at)
{
  if (tensor->dtype.code == kDLBfloat) {
    return plain_half(1, *(const uint16_t *)at);
  }
  switch (tensor->dtype.bits) {
  case 64:
    return *(const double *)at;
  case 32:
    return (double)*(const float *)at;
  default:
    return plain_half(0, *(const uint16_t *)at);
  }
}

static int64_t integer(const DLTensor *tensor, const void *at)
{
  return tensor->dtype.bits == 32 ? *(const int32_t *)at : *(const int64_t *)at;
}

static double matrix_at(const sheaf_operand *operand, int batched, int64_t problem, int64_t row, int64_t column)
{
  return number(operand->tensor, element(operand, batched, 0, problem, row, column));
}

static double vector_at(const sheaf_operand *operand, int batched, int64_t problem, int64_t entry)
{
  return number(operand->tensor, element(operand, batched, 1, problem, 0, entry));
}

static int64_t index_at(const sheaf_operand *operand, int batched, int64_t problem, int64_t entry)
{
  return integer(operand->tensor, element(operand, batched, 1, problem, 0, entry));
}

/* ---- Results ----------------------------------------------------------------------------------------------------- */

static void *zeros(int64_t count)
{
  void *memory = calloc((size_t)(count > 0 ? count : 1), sizeof(double));
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

static int64_t place(const plain_output *output, int64_t problem, int64_t row, int64_t column)
{
  return (problem * output->rows + row) * output->columns + column;
}

static void put(plain_output *output, int64_t problem, int64_t row, int64_t column, double value, double scale)
{
  output->value[place(output, problem, row, column)] = value;
  output->scale[place(output, problem, row, column)] = scale;
}

static void add(plain_output *output, int64_t problem, int64_t row, int64_t column, double term, double scale)
{
  output->value[place(output, problem, row, column)] += term;
  output->scale[place(output, problem, row, column)] += scale;
}

static void note_bad(plain_result *result, int64_t position, int64_t value)
{
  if (result->report.count++ == 0) {
    result->report.first_position = position;
    result->report.first_value = value;
  }
}

static plain_result *make_result(void)
{
  plain_result *result = zeros((int64_t)(sizeof *result / sizeof(double) + 1));
  result->report.first_position = -1;
  return result;
}

void plain_result_free(plain_result *result)
{
  plain_output *outputs[] = {&result->out, &result->arg, &result->grad, &result->weights_grad};
  for (int i = 0; i < 4; i++) {
    free(outputs[i]->value);
    free(outputs[i]->scale);
  }
  free(result);
}

/* ---- Embedding --------------------------------------------------------------------------------------------------- */

typedef struct embedding {
  const sheaf_embedding_desc *desc;
  const sheaf_embedding_args *args;
  plain_result *result;
  int batched;
  int64_t problem;
} embedding;

/* 2: in this table; 1: in another part of it; 0: padding; -1: bad. */
static int standing(const sheaf_embedding_desc *desc, int64_t index)
{
  if (index < 0 || index >= (desc->total_rows > 0 ? desc->total_rows : desc->rows)) {
    return -1;
  }
  if (desc->has_padding && index == desc->padding_idx) {
    return 0;
  }
  const int64_t local = index - desc->row_begin;
  return local >= 0 && local < desc->rows ? 2 : 1;
}

static double table_at(const embedding *e, int64_t index, int64_t d)
{
  const int64_t row = index - e->desc->row_begin;
  if (e->desc->dtype != SHEAF_INT8 && e->desc->dtype != SHEAF_INT4) {
    return matrix_at(&e->args->table, e->batched, e->problem, row, d);
  }
  const uint8_t *packed = element(&e->args->table, e->batched, 0, e->problem, row, 0);
  if (e->desc->dtype == SHEAF_INT8) {
    float tail[2];
    for (size_t i = 0; i < sizeof tail; i++) {
      ((uint8_t *)tail)[i] = packed[(size_t)e->desc->dim + i];
    }
    return (double)packed[d] * (double)tail[0] + (double)tail[1];
  }
  const uint8_t *tail = packed + (e->desc->dim + 1) / 2;
  const double scale = plain_half(0, (unsigned)tail[0] | (unsigned)tail[1] << 8);
  const double bias = plain_half(0, (unsigned)tail[2] | (unsigned)tail[3] << 8);
  return (double)(packed[d / 2] >> (d % 2 * 4) & 15) * scale + bias;
}

static double weight_at(const embedding *e, int64_t k)
{
  return e->desc->weighted ? vector_at(&e->args->weights, e->batched, e->problem, k) : 1.0;
}

static int64_t entry_index(const embedding *e, int64_t k)
{
  return index_at(&e->args->indices, e->batched, e->problem, k);
}

static int64_t bag_begin(const embedding *e, int64_t b)
{
  if (b == e->desc->bags) {
    return e->desc->indices;
  }
  if (e->desc->bag_form == SHEAF_BAGS_MATRIX) {
    return b * (e->desc->indices / e->desc->bags);
  }
  return index_at(&e->args->offsets, e->batched, e->problem, b);
}

/* The sum of the counted weights of a bag, and of their absolute values. */
static double bag_weight(const embedding *e, int64_t b, double *absolute)
{
  double sum = 0.0;
  *absolute = 0.0;
  for (int64_t k = bag_begin(e, b); k < bag_begin(e, b + 1); k++) {
    if (standing(e->desc, entry_index(e, k)) > 0) {
      sum += weight_at(e, k);
      *absolute += fabs(weight_at(e, k));
    }
  }
  return sum;
}

static void plain_lookup(embedding *e)
{
  for (int64_t n = 0; n < e->desc->indices; n++) {
    const int64_t index = entry_index(e, n);
    const int is = standing(e->desc, index);
    const int64_t local = is >= 0 ? index - e->desc->row_begin : -1;
    const int stored = is == 0 && e->desc->padding == SHEAF_PADDING_ROW && local >= 0 && local < e->desc->rows;
    for (int64_t d = 0; d < e->desc->dim; d++) {
      const double value = is == 2 || stored ? table_at(e, index, d) : 0.0;
      put(&e->result->out, e->problem, n, d, value, fabs(value));
    }
  }
}

static void plain_bag(embedding *e, int64_t b, int64_t d)
{
  double sum = 0.0;
  double scale = 0.0;
  double best = -(double)INFINITY;
  int64_t arg = -1;
  int64_t counted = 0;
  for (int64_t k = bag_begin(e, b); k < bag_begin(e, b + 1); k++) {
    const int64_t index = entry_index(e, k);
    counted += standing(e->desc, index) > 0;
    if (standing(e->desc, index) == 2) {
      const double x = table_at(e, index, d);
      sum += weight_at(e, k) * x;
      scale += fabs(weight_at(e, k) * x);
      if (arg < 0 || x > best || (isnan(x) && !isnan(best))) {
        best = x;
        arg = index;
      }
    }
  }
  if (e->desc->kind == SHEAF_BAG_MAX) {
    put(&e->result->out, e->problem, b, d, arg < 0 ? 0.0 : best, arg < 0 ? 0.0 : fabs(best));
    put(&e->result->arg, e->problem, b, d, (double)arg, 0.0);
  } else if (e->desc->kind == SHEAF_BAG_SUM) {
    put(&e->result->out, e->problem, b, d, sum, scale);
  } else {
    double absolute;
    const double c = bag_weight(e, b, &absolute);
    const double mean = counted > 0 ? sum / c : 0.0;
    put(&e->result->out, e->problem, b, d, mean, counted > 0 ? scale / fabs(c) + fabs(mean) * absolute / fabs(c) : 0.0);
  }
}

/* Scatters what entry k of bag b gives to its row, and finds the gradient of its weight. */
static void plain_bag_backward(embedding *e, int64_t b, int64_t k, const int64_t *occurrences)
{
  const sheaf_embedding_desc *desc = e->desc;
  const int64_t index = entry_index(e, k);
  const int lookup = desc->kind == SHEAF_LOOKUP_BACKWARD;
  const int mean = desc->kind == SHEAF_BAG_MEAN_BACKWARD;
  if (standing(desc, index) != 2) {
    return;
  }
  double absolute = 1.0;
  const double c = mean ? bag_weight(e, b, &absolute) : 1.0;
  double coefficient = (lookup ? 1.0 : weight_at(e, k)) / c;
  if (desc->scale_grad_by_freq) {
    coefficient /= (double)occurrences[index - desc->row_begin];
  }
  double dot = 0.0;
  double dot_scale = 0.0;
  for (int64_t d = 0; d < desc->dim; d++) {
    const double g = matrix_at(&e->args->grad_out, e->batched, e->problem, lookup ? k : b, d);
    if (e->result->grad.value != NULL) {
      const double term = coefficient * g;
      add(&e->result->grad, e->problem, index - desc->row_begin, d, term, fabs(term) * (1.0 + absolute / fabs(c)));
    }
    if (e->result->weights_grad.value != NULL) {
      const double out = mean ? matrix_at(&e->args->out, e->batched, e->problem, b, d) : 0.0;
      dot += g * (table_at(e, index, d) - out);
      dot_scale += fabs(g) * (fabs(table_at(e, index, d)) + fabs(out));
    }
  }
  if (e->result->weights_grad.value != NULL) {
    put(&e->result->weights_grad, e->problem, 0, k, dot / c, dot_scale / fabs(c) * (1.0 + absolute / fabs(c)));
  }
}

static void plain_backward(embedding *e)
{
  const sheaf_embedding_desc *desc = e->desc;
  int64_t *occurrences = zeros(desc->rows);
  for (int64_t k = 0; k < desc->indices; k++) {
    if (standing(desc, entry_index(e, k)) == 2) {
      occurrences[entry_index(e, k) - desc->row_begin]++;
    }
  }
  if (desc->kind == SHEAF_LOOKUP_BACKWARD) {
    for (int64_t k = 0; k < desc->indices; k++) {
      plain_bag_backward(e, -1, k, occurrences);
    }
  }
  for (int64_t b = 0; b < desc->bags && desc->kind != SHEAF_LOOKUP_BACKWARD; b++) {
    for (int64_t k = bag_begin(e, b); k < bag_begin(e, b + 1); k++) {
      plain_bag_backward(e, b, k, occurrences);
    }
  }
  free(occurrences);
}

static void plain_max_backward(embedding *e)
{
  for (int64_t b = 0; b < e->desc->bags; b++) {
    for (int64_t d = 0; d < e->desc->dim; d++) {
      const int64_t index = integer(e->args->arg.tensor, element(&e->args->arg, e->batched, 0, e->problem, b, d));
      const double g = matrix_at(&e->args->grad_out, e->batched, e->problem, b, d);
      if (standing(e->desc, index) == 2) {
        add(&e->result->grad, e->problem, index - e->desc->row_begin, d, g, fabs(g));
      } else if (standing(e->desc, index) < 0 && index != -1) {
        note_bad(e->result, (e->problem * e->desc->bags + b) * e->desc->dim + d, index);
      }
    }
  }
}

/* What the gradient is added to: what it holds; with GRAD_TOUCHED, zero where anything will be added. */
static void plain_held_gradient(embedding *e)
{
  const sheaf_embedding_desc *desc = e->desc;
  const int single = desc->kind == SHEAF_BAG_MAX_BACKWARD;
  for (int64_t row = 0; row < desc->rows; row++) {
    for (int64_t d = 0; d < desc->dim; d++) {
      const double held = matrix_at(&e->args->table_grad, e->batched, e->problem, row, d);
      put(&e->result->grad, e->problem, row, d, held, fabs(held));
    }
  }
  for (int64_t n = 0; desc->grad_write == SHEAF_GRAD_TOUCHED && n < (single ? desc->bags : desc->indices); n++) {
    for (int64_t d = 0; d < desc->dim; d++) {
      const int64_t index = single
                                ? integer(e->args->arg.tensor, element(&e->args->arg, e->batched, 0, e->problem, n, d))
                                : entry_index(e, n);
      if (standing(desc, index) == 2) {
        put(&e->result->grad, e->problem, index - desc->row_begin, d, 0, 0);
      }
    }
  }
}

static void plain_embedding_problem(embedding *e)
{
  const sheaf_embedding_desc *desc = e->desc;
  if (e->result->grad.value != NULL && desc->grad_write != SHEAF_GRAD_OVERWRITE) {
    plain_held_gradient(e);
  }
  if (desc->kind == SHEAF_BAG_MAX_BACKWARD) {
    plain_max_backward(e);
    return;
  }
  for (int64_t n = 0; n < desc->indices; n++) {
    if (standing(desc, entry_index(e, n)) < 0) {
      note_bad(e->result, e->problem * desc->indices + n, entry_index(e, n));
    }
  }
  if (desc->kind == SHEAF_LOOKUP) {
    plain_lookup(e);
  } else if (desc->kind == SHEAF_BAG_SUM || desc->kind == SHEAF_BAG_MEAN || desc->kind == SHEAF_BAG_MAX) {
    for (int64_t b = 0; b < desc->bags; b++) {
      for (int64_t d = 0; d < desc->dim; d++) {
        plain_bag(e, b, d);
      }
    }
  } else {
    plain_backward(e);
  }
}

plain_result *plain_oracle_embedding(const sheaf_embedding_desc *desc, const sheaf_embedding_args *args)
{
  embedding e = {desc, args, make_result(), desc->batch > 0, 0};
  const int64_t problems = desc->batch > 0 ? desc->batch : 1;
  switch (desc->kind) {
  case SHEAF_LOOKUP:
    e.result->out = make_output(problems, desc->indices, desc->dim);
    break;
  case SHEAF_BAG_SUM:
  case SHEAF_BAG_MEAN:
  case SHEAF_BAG_MAX:
    e.result->out = make_output(problems, desc->bags, desc->dim);
    e.result->arg = make_output(problems, desc->bags, desc->dim);
    break;
  default:
    if (args->table_grad.tensor != NULL) {
      e.result->grad = make_output(problems, desc->rows, desc->dim);
    }
    if (args->weights_grad.tensor != NULL) {
      e.result->weights_grad = make_output(problems, 1, desc->indices);
    }
  }
  for (e.problem = 0; e.problem < problems; e.problem++) {
    plain_embedding_problem(&e);
  }
  return e.result;
}
