/* cli/demo_check.c: recomputes sampled results of `sheaf demo` in double by plain code. */
#include <math.h>
#include <stdio.h>

#include "demo.h"

enum { SAMPLES = 12 };

/* Gradients are added to what is there; the sampled rows start with this. */
static const float initial_grad = 0.5f;

/* A row that should come out, and for each of its elements the sum of absolute terms. */
typedef struct expected_row {
  double value[DEMO_DIM], scale[DEMO_DIM];
} expected_row;

static void add_term(expected_row *row, double factor, const float *values)
{
  for (int d = 0; d < DEMO_DIM; d++) {
    double term = factor * (double)values[d];
    row->value[d] += term;
    row->scale[d] += fabs(term);
  }
}

static void divide(expected_row *row, double divisor)
{
  for (int d = 0; d < DEMO_DIM; d++) {
    row->value[d] /= divisor;
    row->scale[d] /= divisor;
  }
}

/* ---- Embedding ----------------------------------------------------------------------------------------------- */

static const float *table_row(const demo_data *data, int64_t row) { return data->table + row * DEMO_DIM; }

static double coefficient(const demo_op *op, const demo_data *data, int64_t entry)
{
  if (op->mode == DEMO_MEAN) return 1 / (double)data->bag_length;
  return op->weighted ? (double)data->weights[entry] : 1;
}

/* The entry of bag b that holds the maximum of column d: the first of equals. */
static int64_t bag_winner(const demo_data *data, int64_t b, int d)
{
  const int64_t *rows = data->indices[0];
  int64_t best = b * data->bag_length;
  for (int64_t k = best + 1; k < (b + 1) * data->bag_length; k++)
    if (table_row(data, rows[k])[d] > table_row(data, rows[best])[d]) best = k;
  return best;
}

static void expect_bag(const demo_op *op, const demo_data *data, int64_t b, expected_row *row)
{
  const int64_t *rows = data->indices[0];
  for (int d = 0; op->mode == DEMO_MAX && d < DEMO_DIM; d++)
    row->value[d] = (double)table_row(data, rows[bag_winner(data, b, d)])[d];
  if (op->mode == DEMO_MAX) return;
  for (int64_t k = b * data->bag_length; k < (b + 1) * data->bag_length; k++)
    add_term(row, coefficient(op, data, k), table_row(data, rows[k]));
}

static void expect_lookup(const demo_data *data, int64_t n, expected_row *row)
{
  const float *values = table_row(data, data->indices[0][n]);
  for (int d = 0; d < DEMO_DIM; d++) row->value[d] = (double)values[d];
}

/* What entry k adds to the gradient of its row. */
static void add_entry_grad(const demo_op *op, const demo_data *data, int64_t k, expected_row *row)
{
  if (op->mode == DEMO_LOOKUP) {
    add_term(row, 1, data->dout + k * DEMO_DIM);
    return;
  }
  int64_t b = k / data->bag_length;
  if (op->mode != DEMO_MAX) {
    add_term(row, coefficient(op, data, k), data->dout + b * DEMO_DIM);
    return;
  }
  for (int d = 0; d < DEMO_DIM; d++) {
    if (bag_winner(data, b, d) != k) continue;
    row->value[d] += (double)data->dout[b * DEMO_DIM + d];
    row->scale[d] += fabs((double)data->dout[b * DEMO_DIM + d]);
  }
}

static int64_t entry_count(const demo_op *op, const demo_data *data)
{
  return op->mode == DEMO_LOOKUP ? data->lookups : data->bags * data->bag_length;
}

static void expect_table_grad(const demo_op *op, const demo_data *data, int64_t r, expected_row *row)
{
  for (int d = 0; d < DEMO_DIM; d++) row->value[d] = row->scale[d] = (double)initial_grad;
  for (int64_t k = 0; k < entry_count(op, data); k++)
    if (data->indices[0][k] == r) add_entry_grad(op, data, k, row);
}

/* ---- Segments ------------------------------------------------------------------------------------------------ */

static const int64_t *ids_of(const demo_op *op, const demo_data *data)
{
  return op->sorted ? data->sorted_ids : data->ids;
}

/* The position of the first maximum of each column in segment s, -1 without rows; and the number of rows. */
static int64_t segment_winners(const demo_op *op, const demo_data *data, int64_t s, int64_t winners[DEMO_DIM])
{
  const int64_t *ids = ids_of(op, data);
  int64_t count = 0;
  for (int d = 0; d < DEMO_DIM; d++) winners[d] = -1;
  for (int64_t n = 0; n < data->rows; n++) {
    if (ids[n] != s) continue;
    count += 1;
    for (int d = 0; d < DEMO_DIM; d++)
      if (winners[d] < 0 || table_row(data, n)[d] > table_row(data, winners[d])[d]) winners[d] = n;
  }
  return count;
}

static void expect_segment(const demo_op *op, const demo_data *data, int64_t s, expected_row *row)
{
  const int64_t *ids = ids_of(op, data);
  int64_t winners[DEMO_DIM], count = segment_winners(op, data, s, winners);
  if (op->mode == DEMO_MAX) {
    for (int d = 0; d < DEMO_DIM && count; d++) row->value[d] = (double)table_row(data, winners[d])[d];
    return;
  }
  for (int64_t n = 0; n < data->rows; n++)
    if (ids[n] == s) add_term(row, 1, table_row(data, n));
  if (op->mode == DEMO_MEAN && count) divide(row, (double)count);
}

static void expect_data_grad(const demo_op *op, const demo_data *data, int64_t n, expected_row *row)
{
  int64_t s = ids_of(op, data)[n], winners[DEMO_DIM], count = segment_winners(op, data, s, winners);
  add_term(row, 1, data->dout + s * DEMO_DIM);
  if (op->mode == DEMO_MEAN) divide(row, (double)count);
  for (int d = 0; op->mode == DEMO_MAX && d < DEMO_DIM; d++)
    if (winners[d] != n) row->value[d] = row->scale[d] = 0;
}

/* ---- The check ----------------------------------------------------------------------------------------------- */

/* Rows of the result to look at. For a table's gradient, rows that the batch touches. */
static int64_t sample_at(const demo_op *op, const demo_data *data, int i)
{
  int64_t rows = op->category == SHEAF_CATEGORY_SEGMENT ? (op->backward ? data->rows : data->segments)
                 : op->mode == DEMO_LOOKUP || op->backward ? entry_count(op, data)
                                                           : data->bags;
  int64_t place = (rows - 1) * i / (SAMPLES - 1);
  return op->category == SHEAF_CATEGORY_EMBEDDING && op->backward ? data->indices[0][place] : place;
}

static void expect_row(const demo_op *op, const demo_data *data, int64_t place, expected_row *row)
{
  *row = (expected_row){0};
  if (op->category == SHEAF_CATEGORY_SEGMENT) (op->backward ? expect_data_grad : expect_segment)(op, data, place, row);
  else if (op->backward) expect_table_grad(op, data, place, row);
  else if (op->mode == DEMO_LOOKUP) expect_lookup(data, place, row);
  else expect_bag(op, data, place, row);
}

/* The gradient of one bag's weights is a dot product with the rows they weigh. */
static bool check_weights_grad(const demo_data *data, char *fault, size_t room)
{
  int64_t entries = data->bags * data->bag_length;
  for (int i = 0; i < SAMPLES; i++) {
    int64_t k = (entries - 1) * i / (SAMPLES - 1);
    const float *values = table_row(data, data->indices[0][k]), *grad = data->dout + k / data->bag_length * DEMO_DIM;
    double dot = 0, scale = 0;
    for (int d = 0; d < DEMO_DIM; d++) {
      dot += (double)values[d] * (double)grad[d];
      scale += fabs((double)values[d] * (double)grad[d]);
    }
    if (fabs((double)data->weights_grad[k] - dot) <= 1e-5 * scale) continue;
    snprintf(fault, room, "weights_grad[%lld]: expected %.9g, got %.9g", (long long)k, dot,
             (double)data->weights_grad[k]);
    return false;
  }
  return true;
}

void demo_check_prepare(const demo_op *op, demo_data *data)
{
  if (op->category != SHEAF_CATEGORY_EMBEDDING || !op->backward) return;
  for (int i = 0; i < SAMPLES; i++)
    for (int d = 0; d < DEMO_DIM; d++) data->grad[sample_at(op, data, i) * DEMO_DIM + d] = initial_grad;
}

bool demo_check(const demo_op *op, const demo_data *data, char *fault, size_t room)
{
  for (int i = 0; i < SAMPLES; i++) {
    expected_row row;
    int64_t place = sample_at(op, data, i);
    expect_row(op, data, place, &row);
    const float *got = (op->backward ? data->grad : data->out) + place * DEMO_DIM;
    for (int d = 0; d < DEMO_DIM; d++) {
      if (fabs((double)got[d] - row.value[d]) <= 1e-5 * row.scale[d]) continue;
      snprintf(fault, room, "%s[%lld, %d]: expected %.9g, got %.9g", op->backward ? "gradient" : "out",
               (long long)place, d, row.value[d], (double)got[d]);
      return false;
    }
  }
  bool with_weights_grad = op->weighted && op->backward;
  return !with_weights_grad || check_weights_grad(data, fault, room);
}
