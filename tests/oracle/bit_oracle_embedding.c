/* bit_oracle_embedding.c: the bit oracle of lookups and bags. */
#include "bit_oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bit_number.h"

/* What an index is. Only a local one has its row in this table; a local and a foreign one are counted by mean. */
typedef enum entry_class { ENTRY_LOCAL, ENTRY_FOREIGN, ENTRY_PADDING, ENTRY_BAD } entry_class;

/* One problem of a batch, with its indices read. */
typedef struct context {
  const sheaf_embedding_desc *desc;
  const sheaf_embedding_args *args;
  bool batched;
  int64_t problem;
  bool wide;
  bool quantised;
  sheaf_dtype value_dtype; /* of everything but the table, when that is quantised: out, weights aside */
  sheaf_dtype weight_dtype;
  int64_t *index;     /* N, as given */
  entry_class *class; /* N */
  int64_t *bag_start; /* B + 1 */
  int64_t *bag_of;    /* N */
} context;

/* ---- Reading one problem ---------------------------------------------------------------------------------------- */

static entry_class classify(const sheaf_embedding_desc *desc, int64_t index)
{
  const int64_t total = desc->total_rows != 0 ? desc->total_rows : desc->rows;
  if (index < 0 || index >= total) {
    return ENTRY_BAD;
  }
  if (desc->has_padding && index == desc->padding_idx) {
    return ENTRY_PADDING;
  }
  return index >= desc->row_begin && index < desc->row_begin + desc->rows ? ENTRY_LOCAL : ENTRY_FOREIGN;
}

static void report_bad(const context *c, int64_t position, int64_t value)
{
  sheaf_index_report *report = c->args->report;
  if (report != NULL) {
    if (report->count == 0) {
      report->first_position = position;
      report->first_value = value;
    }
    report->count++;
  }
}

static bool is_bag_kind(const sheaf_embedding_desc *desc)
{
  return desc->kind >= SHEAF_BAG_SUM && desc->kind <= SHEAF_BAG_MAX;
}

static void read_bags(context *c)
{
  const sheaf_embedding_desc *desc = c->desc;
  const sheaf_dtype offset_dtype = desc->offset_dtype != SHEAF_DTYPE_NONE ? desc->offset_dtype : desc->index_dtype;
  c->bag_start = bit_alloc(desc->bags + 1, sizeof *c->bag_start);
  c->bag_of = bit_alloc(desc->indices, sizeof *c->bag_of);
  for (int64_t b = 0; b < desc->bags; b++) {
    c->bag_start[b] = desc->bag_form == SHEAF_BAGS_MATRIX
                          ? b * (desc->indices / desc->bags)
                          : bit_load_index(offset_dtype, bit_entry(&c->args->offsets, c->batched, c->problem, b), 0);
  }
  c->bag_start[desc->bags] = desc->indices;
  for (int64_t b = 0; b < desc->bags; b++) {
    for (int64_t k = c->bag_start[b]; k < c->bag_start[b + 1]; k++) {
      c->bag_of[k] = b;
    }
  }
}

static context read_problem(const sheaf_embedding_desc *desc, const sheaf_embedding_args *args, int64_t problem)
{
  context c = {.desc = desc, .args = args, .batched = desc->batch >= 1, .problem = problem};
  c.wide = desc->dtype == SHEAF_F64;
  c.quantised = desc->dtype == SHEAF_INT8 || desc->dtype == SHEAF_INT4;
  c.value_dtype = !c.quantised ? desc->dtype : desc->out_dtype != SHEAF_DTYPE_NONE ? desc->out_dtype : SHEAF_F32;
  c.weight_dtype = c.quantised ? SHEAF_F32 : desc->dtype;
  const int64_t count = desc->kind == SHEAF_BAG_MAX_BACKWARD ? 0 : desc->indices;
  c.index = bit_alloc(count, sizeof *c.index);
  c.class = bit_alloc(count, sizeof *c.class);
  for (int64_t n = 0; n < count; n++) {
    c.index[n] = bit_load_index(desc->index_dtype, bit_entry(&args->indices, c.batched, problem, n), 0);
    c.class[n] = classify(desc, c.index[n]);
    if (c.class[n] == ENTRY_BAD) {
      report_bad(&c, problem * count + n, c.index[n]);
    }
  }
  if (is_bag_kind(desc)) {
    read_bags(&c);
  }
  return c;
}

static void free_problem(context *c)
{
  free(c->index);
  free(c->class);
  free(c->bag_start);
  free(c->bag_of);
}

static void *row_of(const context *c, const sheaf_operand *operand, int64_t row)
{
  return bit_row(operand, c->batched, c->problem, row);
}

/* Element d of table row `row` of this table, widened; a quantised one dequantised. */
static double table_value(const context *c, int64_t row, int64_t d)
{
  const int64_t dim = c->desc->dim;
  const unsigned char *packed = row_of(c, &c->args->table, row);
  if (c->desc->dtype == SHEAF_INT8) {
    const double scale = bit_load(SHEAF_F32, packed + dim, 0);
    const double bias = bit_load(SHEAF_F32, packed + dim, 1);
    return bit_fma(false, (double)packed[d], scale, bias);
  }
  if (c->desc->dtype == SHEAF_INT4) {
    const double scale = bit_load(SHEAF_F16, packed + (dim + 1) / 2, 0);
    const double bias = bit_load(SHEAF_F16, packed + (dim + 1) / 2, 1);
    const int q = d % 2 == 0 ? packed[d / 2] & 15 : packed[d / 2] >> 4;
    return bit_fma(false, (double)q, scale, bias);
  }
  return bit_load(c->desc->dtype, packed, d);
}

static double weight_of(const context *c, int64_t k)
{
  return bit_load(c->weight_dtype, bit_entry(&c->args->weights, c->batched, c->problem, k), 0);
}

static bool is_counted(entry_class class) { return class == ENTRY_LOCAL || class == ENTRY_FOREIGN; }

/* ---- Lookup ------------------------------------------------------------------------------------------------------ */

static void lookup(const context *c)
{
  const sheaf_embedding_desc *desc = c->desc;
  for (int64_t n = 0; n < desc->indices; n++) {
    char *out = row_of(c, &c->args->out, n);
    const int64_t row = c->class[n] != ENTRY_BAD ? c->index[n] - desc->row_begin : -1;
    const bool held = row >= 0 && row < desc->rows;
    const bool copied =
        c->class[n] == ENTRY_LOCAL || (c->class[n] == ENTRY_PADDING && desc->padding == SHEAF_PADDING_ROW && held);
    const size_t bytes = bit_element_bytes(c->value_dtype);
    for (int64_t d = 0; d < desc->dim; d++) {
      if (!copied) {
        memset(out + (size_t)d * bytes, 0, bytes);
      } else if (c->quantised) {
        bit_store(c->value_dtype, out, d, table_value(c, row, d));
      } else {
        memcpy(out + (size_t)d * bytes, (char *)row_of(c, &c->args->table, row) + (size_t)d * bytes, bytes);
      }
    }
  }
}

/* ---- Bags, forward ----------------------------------------------------------------------------------------------- */

/* What the sum of bag b is divided by; 0 counted entries give 0. */
static double mean_divisor(const context *c, int64_t b, int64_t *counted)
{
  const int64_t begin = c->bag_start[b];
  const int64_t length = c->bag_start[b + 1] - begin;
  double *weights = bit_alloc(length, sizeof *weights);
  bool *present = bit_alloc(length, sizeof *present);
  *counted = 0;
  for (int64_t k = 0; k < length; k++) {
    present[k] = is_counted(c->class[begin + k]);
    *counted += present[k];
    weights[k] = present[k] && c->desc->weighted ? weight_of(c, begin + k) : 0.0;
  }
  const double divisor =
      c->desc->weighted ? bit_sum(c->wide, weights, NULL, present, length) : bit_count(c->wide, *counted);
  free(weights);
  free(present);
  return divisor;
}

static void bag_sum_or_mean(const context *c)
{
  for (int64_t b = 0; b < c->desc->bags; b++) {
    const int64_t begin = c->bag_start[b];
    const int64_t length = c->bag_start[b + 1] - begin;
    double *terms = bit_alloc(length, sizeof *terms);
    double *weights = c->desc->weighted ? bit_alloc(length, sizeof *weights) : NULL;
    bool *present = bit_alloc(length, sizeof *present);
    int64_t counted = 0;
    const double divisor = c->desc->kind == SHEAF_BAG_MEAN ? mean_divisor(c, b, &counted) : 1.0;
    for (int64_t k = 0; k < length; k++) {
      present[k] = c->class[begin + k] == ENTRY_LOCAL;
      if (present[k] && weights != NULL) {
        weights[k] = weight_of(c, begin + k);
      }
    }
    for (int64_t d = 0; d < c->desc->dim; d++) {
      for (int64_t k = 0; k < length; k++) {
        if (present[k]) {
          terms[k] = table_value(c, c->index[begin + k] - c->desc->row_begin, d);
        }
      }
      double result = bit_sum(c->wide, terms, weights, present, length);
      if (c->desc->kind == SHEAF_BAG_MEAN) {
        result = counted == 0 ? 0.0 : bit_divide(c->wide, result, divisor);
      }
      bit_store(c->value_dtype, row_of(c, &c->args->out, b), d, result);
    }
    free(terms);
    free(weights);
    free(present);
  }
}

/* The entry of bag b whose column d is the maximum: the first NaN, else the first of the largest; -1: none. */
static int64_t bag_max_entry(const context *c, int64_t b, int64_t d)
{
  int64_t best = -1;
  double best_value = 0.0;
  for (int64_t k = c->bag_start[b]; k < c->bag_start[b + 1]; k++) {
    if (c->class[k] == ENTRY_LOCAL) {
      const double value = table_value(c, c->index[k] - c->desc->row_begin, d);
      if (best < 0 || (!isnan(best_value) && (isnan(value) || value > best_value))) {
        best = k;
        best_value = value;
      }
    }
  }
  return best;
}

static void bag_max(const context *c)
{
  const size_t bytes = bit_element_bytes(c->value_dtype);
  for (int64_t b = 0; b < c->desc->bags; b++) {
    char *out = row_of(c, &c->args->out, b);
    for (int64_t d = 0; d < c->desc->dim; d++) {
      const int64_t entry = bag_max_entry(c, b, d);
      const int64_t row = entry < 0 ? -1 : c->index[entry] - c->desc->row_begin;
      if (entry < 0) {
        bit_store(c->value_dtype, out, d, 0.0);
      } else if (c->quantised) {
        bit_store(c->value_dtype, out, d, table_value(c, row, d));
      } else {
        memcpy(out + (size_t)d * bytes, (char *)row_of(c, &c->args->table, row) + (size_t)d * bytes, bytes);
      }
      if (c->args->arg.tensor != NULL) {
        bit_store_index(c->desc->index_dtype, row_of(c, &c->args->arg, b), d, entry < 0 ? -1 : c->index[entry]);
      }
    }
  }
}

/* ---- The table's gradient ---------------------------------------------------------------------------------------- */

/* Adds `total` to one cell of table_grad, or writes it. */
static void write_cell(const context *c, int64_t row, int64_t d, double total)
{
  char *cells = row_of(c, &c->args->table_grad, row);
  if (c->desc->grad_write == SHEAF_GRAD_ACCUMULATE) {
    total = bit_add(c->wide, bit_load(c->value_dtype, cells, d), total);
  }
  bit_store(c->value_dtype, cells, d, total);
}

static void zero_table_grad(const context *c)
{
  for (int64_t row = 0; row < c->desc->rows; row++) {
    memset(row_of(c, &c->args->table_grad, row), 0, (size_t)c->desc->dim * bit_element_bytes(c->value_dtype));
  }
}

/* The factors of the entries' gradient rows; NULL when all are 1 and rows are simply added. */
static double *entry_coefficients(const context *c, const int64_t *rows, const bit_groups *groups)
{
  const sheaf_embedding_desc *desc = c->desc;
  const bool mean = desc->kind == SHEAF_BAG_MEAN_BACKWARD;
  if (!desc->weighted && !mean && !desc->scale_grad_by_freq) {
    return NULL;
  }
  double *coefficients = bit_alloc(desc->indices, sizeof *coefficients);
  for (int64_t n = 0; n < desc->indices; n++) {
    coefficients[n] = desc->weighted && rows[n] >= 0 ? weight_of(c, n) : 1.0;
  }
  if (mean) {
    for (int64_t b = 0; b < desc->bags; b++) {
      int64_t counted;
      const double divisor = mean_divisor(c, b, &counted);
      for (int64_t k = c->bag_start[b]; k < c->bag_start[b + 1]; k++) {
        coefficients[k] = bit_divide(c->wide, coefficients[k], divisor);
      }
    }
  }
  for (int64_t n = 0; n < desc->indices && desc->scale_grad_by_freq; n++) {
    if (rows[n] >= 0) {
      const int64_t occurrences = groups->start[rows[n] + 1] - groups->start[rows[n]];
      const double frequency = bit_divide(c->wide, 1.0, bit_count(c->wide, occurrences));
      coefficients[n] = bit_multiply(c->wide, coefficients[n], frequency);
    }
  }
  return coefficients;
}

/* Kinds 1, 4 and 5. */
static void table_gradient(const context *c)
{
  const sheaf_embedding_desc *desc = c->desc;
  int64_t *rows = bit_alloc(desc->indices, sizeof *rows); /* -1: contributes nothing */
  for (int64_t n = 0; n < desc->indices; n++) {
    rows[n] = c->class[n] == ENTRY_LOCAL ? c->index[n] - desc->row_begin : -1;
  }
  bit_groups groups = bit_groups_make(rows, desc->indices, desc->rows);
  double *coefficients = entry_coefficients(c, rows, &groups);
  double *terms = bit_alloc(desc->indices, sizeof *terms);
  double *factors = bit_alloc(desc->indices, sizeof *factors);
  if (desc->grad_write == SHEAF_GRAD_OVERWRITE) {
    zero_table_grad(c);
  }
  for (int64_t row = 0; row < desc->rows; row++) {
    const int64_t *entries = groups.position + groups.start[row];
    const int64_t count = groups.start[row + 1] - groups.start[row];
    for (int64_t d = 0; d < desc->dim && count > 0; d++) {
      for (int64_t j = 0; j < count; j++) {
        const int64_t source = desc->kind == SHEAF_LOOKUP_BACKWARD ? entries[j] : c->bag_of[entries[j]];
        terms[j] = bit_load(c->value_dtype, row_of(c, &c->args->grad_out, source), d);
        factors[j] = coefficients != NULL ? coefficients[entries[j]] : 1.0;
      }
      write_cell(c, row, d, bit_sum(c->wide, terms, coefficients != NULL ? factors : NULL, NULL, count));
    }
  }
  free(rows);
  free(coefficients);
  free(terms);
  free(factors);
  bit_groups_free(&groups);
}

/* Kind 7: column by column, since every column of a bag may come from another row. */
static void max_gradient(const context *c)
{
  const sheaf_embedding_desc *desc = c->desc;
  int64_t *rows = bit_alloc(desc->bags, sizeof *rows);
  double *terms = bit_alloc(desc->bags, sizeof *terms);
  if (desc->grad_write == SHEAF_GRAD_OVERWRITE) {
    zero_table_grad(c);
  }
  for (int64_t d = 0; d < desc->dim; d++) {
    for (int64_t b = 0; b < desc->bags; b++) {
      const int64_t index = bit_load_index(desc->index_dtype, row_of(c, &c->args->arg, b), d);
      rows[b] = classify(desc, index) == ENTRY_LOCAL ? index - desc->row_begin : -1;
    }
    bit_groups groups = bit_groups_make(rows, desc->bags, desc->rows);
    for (int64_t row = 0; row < desc->rows; row++) {
      const int64_t count = groups.start[row + 1] - groups.start[row];
      for (int64_t j = 0; j < count; j++) {
        terms[j] = bit_load(c->value_dtype, row_of(c, &c->args->grad_out, groups.position[groups.start[row] + j]), d);
      }
      if (count > 0) {
        write_cell(c, row, d, bit_sum(c->wide, terms, NULL, NULL, count));
      }
    }
    bit_groups_free(&groups);
  }
  free(rows);
  free(terms);
}

static void report_bad_args(const context *c)
{
  const sheaf_embedding_desc *desc = c->desc;
  for (int64_t b = 0; b < desc->bags; b++) {
    for (int64_t d = 0; d < desc->dim; d++) {
      const int64_t index = bit_load_index(desc->index_dtype, row_of(c, &c->args->arg, b), d);
      if (index != -1 && classify(desc, index) == ENTRY_BAD) {
        report_bad(c, (c->problem * desc->bags + b) * desc->dim + d, index);
      }
    }
  }
}

/* ---- The weights' gradient --------------------------------------------------------------------------------------- */

static void weights_gradient(const context *c)
{
  const sheaf_embedding_desc *desc = c->desc;
  const bool mean = desc->kind == SHEAF_BAG_MEAN_BACKWARD;
  double *upstream = bit_alloc(desc->dim, sizeof *upstream);
  double *values = bit_alloc(desc->dim, sizeof *values);
  for (int64_t b = 0; b < desc->bags; b++) {
    int64_t counted = 0;
    const double divisor = mean ? mean_divisor(c, b, &counted) : 1.0;
    for (int64_t k = c->bag_start[b]; k < c->bag_start[b + 1]; k++) {
      double result = 0.0;
      if (c->class[k] == ENTRY_LOCAL) {
        for (int64_t d = 0; d < desc->dim; d++) {
          upstream[d] = bit_load(c->value_dtype, row_of(c, &c->args->grad_out, b), d);
          values[d] = table_value(c, c->index[k] - desc->row_begin, d);
          if (mean) {
            values[d] = bit_subtract(c->wide, values[d], bit_load(c->value_dtype, row_of(c, &c->args->out, b), d));
          }
        }
        result = bit_dot(c->wide, upstream, values, desc->dim);
        result = mean ? bit_divide(c->wide, result, divisor) : result;
      }
      bit_store(c->weight_dtype, bit_entry(&c->args->weights_grad, c->batched, c->problem, k), 0, result);
    }
  }
  free(upstream);
  free(values);
}

/* ---- One problem after the other --------------------------------------------------------------------------------- */

static void solve(const context *c)
{
  switch (c->desc->kind) {
  case SHEAF_LOOKUP:
    lookup(c);
    break;
  case SHEAF_BAG_SUM:
  case SHEAF_BAG_MEAN:
    bag_sum_or_mean(c);
    break;
  case SHEAF_BAG_MAX:
    bag_max(c);
    break;
  case SHEAF_BAG_MAX_BACKWARD:
    report_bad_args(c);
    max_gradient(c);
    break;
  case SHEAF_LOOKUP_BACKWARD:
  case SHEAF_BAG_SUM_BACKWARD:
  case SHEAF_BAG_MEAN_BACKWARD:
    if (c->args->table_grad.tensor != NULL) {
      table_gradient(c);
    }
    if (c->args->weights_grad.tensor != NULL) {
      weights_gradient(c);
    }
    break;
  }
}

void bit_oracle_embedding(const sheaf_embedding_desc *desc, const sheaf_embedding_args *args)
{
  if (args->report != NULL) {
    *args->report = (sheaf_index_report){0, -1, 0};
  }
  const int64_t problems = desc->batch >= 1 ? desc->batch : 1;
  for (int64_t problem = 0; problem < problems; problem++) {
    context c = read_problem(desc, args, problem);
    solve(&c);
    free_problem(&c);
  }
}
