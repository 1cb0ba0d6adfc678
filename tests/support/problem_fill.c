/* problem_fill.c: generated problems: the contents of their operands. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/bit_number.h"
#include "problem.h"

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* The smallest normal number of a dtype, for denormals below it. */
static double smallest_normal(sheaf_dtype dtype)
{
  return dtype == SHEAF_F64 ? 0x1p-1022 : dtype == SHEAF_F16 ? 0x1p-14 : 0x1p-126;
}

static double special_value(test_random *random)
{
  switch (random_below(random, 3)) {
  case 0:
    return (double)INFINITY;
  case 1:
    return (double)-INFINITY;
  default:
    return (double)NAN;
  }
}

/* A NaN of any sign and payload, quiet or signalling. */
static void store_any_nan(test_random *random, sheaf_dtype dtype, void *base, int64_t element)
{
  const uint64_t exponent = dtype == SHEAF_F64   ? UINT64_C(0x7FF0000000000000)
                            : dtype == SHEAF_F32 ? 0x7F800000
                            : dtype == SHEAF_F16 ? 0x7C00
                                                 : 0x7F80;
  const size_t bytes = bit_element_bytes(dtype);
  const uint64_t bits = random_bits(random) | exponent | 1;
  memcpy((char *)base + (size_t)element * bytes, &bits, bytes); /* little-endian, as every machine Sheaf runs on */
}

static double normal_value(test_random *random, sheaf_dtype dtype)
{
  const double sign = random_bits(random) & 1 ? -1.0 : 1.0;
  switch (random_below(random, 64)) {
  case 0:
    return sign * 0.0;
  case 1:
    return sign * smallest_normal(dtype) * random_unit(random);
  case 2:
    return sign;
  default:
    return sign * ldexp(1.0 + random_unit(random), (int)random_below(random, 9) - 5);
  }
}

static double plain_value(test_random *random, problem_values values, sheaf_dtype dtype)
{
  const double sign = random_bits(random) & 1 ? -1.0 : 1.0;
  switch (values) {
  case VALUES_TIES:
    return sign * (double)random_below(random, 3);
  case VALUES_NEAR_ONE:
    return sign * exp2((random_unit(random) - 0.5) * 0.1);
  case VALUES_POSITIVE:
    return 0.5 + random_unit(random);
  case VALUES_TINY:
    return sign * smallest_normal(dtype) * (random_unit(random) * 2.0);
  case VALUES_TINY_FACTORS:
    return random_below(random, 6) == 0 ? sign * smallest_normal(dtype) * (1.0 + random_unit(random))
                                        : sign * (0.5 + random_unit(random));
  case VALUES_NORMAL:
    break;
  }
  return normal_value(random, dtype);
}

/* (float)value can double-round into f16, which does not matter here: any representable value will do. */
static void store_next(problem *p, sheaf_dtype dtype, void *base, int64_t element)
{
  const problem_spec *spec = &p->spec;
  if (spec->special_share > 0.0 && random_chance(&p->random, spec->special_share)) {
    const double value = special_value(&p->random);
    if (isnan(value)) {
      store_any_nan(&p->random, dtype, base, element);
    } else {
      bit_store(dtype, base, element, value);
    }
  } else if (spec->zero_share > 0.0 && random_chance(&p->random, spec->zero_share)) {
    bit_store(dtype, base, element, random_bits(&p->random) & 1 ? -0.0 : 0.0);
  } else {
    bit_store(dtype, base, element, plain_value(&p->random, spec->values, dtype));
  }
}

static void fill_row(problem *p, problem_operand *operand, int64_t problem_at, int64_t row)
{
  void *base = operand_at(operand, problem_at, row, 0);
  for (int64_t d = 0; d < operand->columns; d++) {
    store_next(p, operand->dtype, base, d);
  }
}

/* Fills every element; a stride of 0 is filled once per problem, which does no harm. */
static void fill_values(problem *p, int at)
{
  problem_operand *operand = &p->operand[at];
  for (int64_t i = 0; operand->given && i < operand->problems; i++) {
    for (int64_t row = 0; row < operand->rows; row++) {
      fill_row(p, operand, i, row);
    }
  }
}

static void fill_nan(problem_operand *operand, int64_t problem_at, int64_t row, int64_t column, int64_t columns)
{
  for (int64_t d = column; d < column + columns; d++) {
    bit_store(operand->dtype, operand_at(operand, problem_at, row, d), 0, (double)NAN);
  }
}

/* Random bytes and moderate scales; int4 rows of an odd width keep a random high nibble, which must not matter. */
static void fill_quantised(problem *p)
{
  problem_operand *table = &p->operand[AT_TABLE];
  const bool wide = p->spec.dtype == SHEAF_INT8;
  const sheaf_dtype tail = wide ? SHEAF_F32 : SHEAF_F16;
  const int64_t tail_at = wide ? p->spec.dim : (p->spec.dim + 1) / 2;
  for (int64_t i = 0; i < table->problems; i++) {
    for (int64_t row = 0; row < table->rows; row++) {
      unsigned char *packed = operand_at(table, i, row, 0);
      for (int64_t byte = 0; byte < tail_at; byte++) {
        packed[byte] = (unsigned char)random_bits(&p->random);
      }
      const bool special = p->spec.special_share > 0.0 && random_chance(&p->random, 0.05);
      bit_store(tail, packed + tail_at, 0, (0.01 + random_unit(&p->random)) * (wide ? 0.02 : 0.3));
      bit_store(tail, packed + tail_at, 1, special ? special_value(&p->random) : random_unit(&p->random) * 4.0 - 3.0);
    }
  }
}

/* ---- Indices ----------------------------------------------------------------------------------------------------- */

/* How a list of indices (ids, args) is to be drawn. */
typedef struct index_rule {
  int64_t first, total; /* good ones are in first .. total - 1 */
  int64_t hot;          /* the row that hot_count and the hot spreads mean; -1 when total is 0 */
  int64_t padding;      /* -1: none */
} index_rule;

static int64_t bad_value(problem *p, int64_t total)
{
  const bool wide = p->spec.index_dtype == SHEAF_I64;
  switch (random_below(&p->random, 5)) {
  case 0:
    return -1;
  case 1:
    return total;
  case 2:
    return wide ? INT64_MIN : INT32_MIN;
  case 3:
    return wide ? INT64_MAX : INT32_MAX;
  default:
    /* On i64 a value whose low 32 bits look good. */
    return wide ? (INT64_C(5) << 32) + random_below(&p->random, total) : -2 - random_below(&p->random, 9);
  }
}

static int64_t any_value(problem *p, const index_rule *rule)
{
  return rule->first + random_below(&p->random, rule->total - rule->first);
}

static int64_t good_value(problem *p, const index_rule *rule)
{
  switch (p->spec.spread) {
  case SPREAD_HOT:
    return random_bits(&p->random) & 1 ? rule->hot : any_value(p, rule);
  case SPREAD_ONE_ROW:
    return rule->hot;
  case SPREAD_ZIPF:
    return rule->first + (int64_t)((double)(rule->total - rule->first) * pow(random_unit(&p->random), 4.0));
  case SPREAD_UNIFORM:
    break;
  }
  return any_value(p, rule);
}

static int64_t draw_index(problem *p, const index_rule *rule)
{
  if (rule->total == 0 || random_chance(&p->random, p->spec.bad_share)) {
    return bad_value(p, rule->total);
  }
  if (rule->padding >= 0 && random_chance(&p->random, p->spec.padding_share)) {
    return rule->padding;
  }
  int64_t value = good_value(p, rule);
  while (p->spec.hot_count > 0 && value == rule->hot && rule->total - rule->first > 1) {
    value = any_value(p, rule);
  }
  return value;
}

static void draw_indices(problem *p, const index_rule *rule, int64_t *indices, int64_t count)
{
  const int64_t hot = p->spec.hot_count < count ? p->spec.hot_count : count;
  for (int64_t n = 0; n < count; n++) {
    indices[n] = n < hot ? rule->hot : draw_index(p, rule);
  }
  for (int64_t n = count - 1; n > 0; n--) { /* Fisher and Yates */
    const int64_t other = random_below(&p->random, n + 1);
    const int64_t held = indices[n];
    indices[n] = indices[other];
    indices[other] = held;
  }
}

static index_rule embedding_rule(problem *p)
{
  const sheaf_embedding_desc *desc = &p->embedding;
  index_rule rule = {problem_first_index(&p->spec), desc->total_rows != 0 ? desc->total_rows : desc->rows, -1, -1};
  rule.padding = desc->has_padding ? desc->padding_idx : -1;
  if (desc->rows > 0) {
    do {
      rule.hot = desc->row_begin + random_below(&p->random, desc->rows);
    } while (rule.hot == rule.padding && desc->rows > 1);
  }
  return rule;
}

static bool is_skipped(const sheaf_embedding_desc *desc, int64_t index)
{
  const int64_t total = desc->total_rows != 0 ? desc->total_rows : desc->rows;
  return index < 0 || index >= total || (desc->has_padding && index == desc->padding_idx);
}

/* Makes row `row` of one problem unreadable (columns of it, for a vector), unless problems share it but not the
 * indices: then another problem may read it. */
static void forbid(problem_operand *operand, const problem_operand *by, int64_t problem_at, int64_t row, int64_t column,
                   int64_t columns)
{
  if (operand->given && (operand->problem_stride != 0 || by->problem_stride == 0)) {
    fill_nan(operand, problem_at, row, column, columns);
  }
}

/* Draws the indices of a batch and makes what belongs to skipped entries unreadable. */
static void fill_indices(problem *p, const index_rule *rule)
{
  problem_operand *indices = &p->operand[AT_INDICES];
  const int64_t count = indices->columns;
  int64_t *drawn = bit_alloc(count, sizeof *drawn);
  for (int64_t i = 0; i < indices->problems; i++) {
    if (i == 0 || indices->problem_stride != 0) {
      draw_indices(p, rule, drawn, count);
    }
    for (int64_t n = 0; n < count; n++) {
      bit_store_index(indices->dtype, operand_at(indices, i, 0, n), 0, drawn[n]);
      if (is_skipped(&p->embedding, drawn[n])) {
        forbid(&p->operand[AT_WEIGHTS], indices, i, 0, n, 1);
        if (p->spec.kind == SHEAF_LOOKUP_BACKWARD) {
          forbid(&p->operand[AT_GRAD_OUT], indices, i, n, 0, p->spec.dim);
        }
      }
    }
  }
  free(drawn);
}

static int compare_int64(const void *a, const void *b)
{
  const int64_t x = *(const int64_t *)a;
  const int64_t y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Random lengths, empty bags among them; with longest_bag one bag has exactly that length. */
static void fill_offsets(problem *p, int64_t problem_at)
{
  problem_operand *offsets = &p->operand[AT_OFFSETS];
  const int64_t bags = p->spec.bags;
  const int64_t longest = p->spec.longest_bag < p->spec.count ? p->spec.longest_bag : p->spec.count;
  const int64_t long_one = longest > 0 ? random_below(&p->random, bags) : -1;
  const int64_t others = p->spec.count - longest;
  const int64_t parts = bags - (longest > 0);
  int64_t *cuts = bit_alloc(parts + 2, sizeof *cuts);
  for (int64_t i = 0; i < parts; i++) {
    cuts[i] = i == 0 ? 0 : random_below(&p->random, others + 1);
  }
  qsort(cuts, (size_t)parts, sizeof *cuts, compare_int64);
  cuts[parts] = others;
  int64_t start = 0;
  for (int64_t b = 0, part = 0; b < bags; b++) {
    bit_store_index(offsets->dtype, operand_at(offsets, problem_at, 0, b), 0, start);
    if (b == long_one) {
      start += longest;
    } else {
      start += cuts[part + 1] - cuts[part];
      part++;
    }
  }
  if (offsets->columns > bags) {
    bit_store_index(offsets->dtype, operand_at(offsets, problem_at, 0, bags), 0, p->spec.count);
  }
  free(cuts);
}

static void fill_weights(problem *p)
{
  problem_operand *weights = &p->operand[AT_WEIGHTS];
  const problem_values values = p->spec.positive_weights ? VALUES_POSITIVE : VALUES_NORMAL;
  for (int64_t i = 0; weights->given && i < weights->problems; i++) {
    for (int64_t n = 0; n < weights->columns; n++) {
      bit_store(weights->dtype, operand_at(weights, i, 0, n), 0, plain_value(&p->random, values, weights->dtype));
    }
  }
}

/* Kind 7: every column its own draw, some of them -1. */
static void fill_bag_args(problem *p, const index_rule *rule)
{
  problem_operand *arg = &p->operand[AT_ARG];
  int64_t *drawn = bit_alloc(arg->rows, sizeof *drawn);
  for (int64_t i = 0; i < arg->problems; i++) {
    for (int64_t d = 0; d < arg->columns; d++) {
      draw_indices(p, rule, drawn, arg->rows);
      for (int64_t b = 0; b < arg->rows; b++) {
        const bool none = p->spec.bad_share > 0.0 && drawn[b] != rule->hot && random_chance(&p->random, 0.05);
        bit_store_index(arg->dtype, operand_at(arg, i, b, d), 0, none ? -1 : drawn[b]);
      }
    }
  }
  free(drawn);
}

static void fill_embedding(problem *p)
{
  const sheaf_embedding_desc *desc = &p->embedding;
  problem_operand *table = &p->operand[AT_TABLE];
  if (p->spec.dtype == SHEAF_INT8 || p->spec.dtype == SHEAF_INT4) {
    fill_quantised(p);
  } else {
    fill_values(p, AT_TABLE);
  }
  fill_weights(p);
  fill_values(p, AT_GRAD_OUT);
  if (!p->operand[AT_OUT].output) {
    fill_values(p, AT_OUT);
  }
  const int64_t padding_row = desc->padding_idx - desc->row_begin;
  if (table->given && table->dtype != SHEAF_U8 && desc->has_padding && padding_row >= 0 && padding_row < desc->rows &&
      !p->spec.padding_row) {
    for (int64_t i = 0; i < table->problems; i++) {
      fill_nan(table, i, padding_row, 0, table->columns);
    }
  }
  const index_rule rule = embedding_rule(p);
  if (p->spec.kind == SHEAF_BAG_MAX_BACKWARD) {
    fill_bag_args(p, &rule);
  }
  if (p->operand[AT_INDICES].given) {
    fill_indices(p, &rule);
  }
  problem_operand *offsets = &p->operand[AT_OFFSETS];
  for (int64_t i = 0; offsets->given && i < offsets->problems; i++) {
    if (p->spec.bags > 0) {
      fill_offsets(p, i);
    } else if (offsets->columns == 1) {
      bit_store_index(offsets->dtype, operand_at(offsets, i, 0, 0), 0, 0);
    }
  }
}

/* ---- Segments ---------------------------------------------------------------------------------------------------- */

/* Any row of a segment may be the one that arg names. */
static void fill_segment_args(problem *p, int64_t problem_at, const int64_t *ids)
{
  problem_operand *arg = &p->operand[AT_SEGMENT_ARG];
  int64_t *seen = bit_alloc(p->spec.rows, sizeof *seen);
  for (int64_t d = 0; d < arg->columns; d++) {
    memset(seen, 0, (size_t)p->spec.rows * sizeof *seen);
    for (int64_t s = 0; s < arg->rows; s++) {
      bit_store_index(arg->dtype, operand_at(arg, problem_at, s, d), 0, -1);
    }
    for (int64_t n = 0; n < p->spec.count; n++) {
      const int64_t s = ids[n];
      if (s >= 0 && s < p->spec.rows && random_below(&p->random, ++seen[s]) == 0) {
        bit_store_index(arg->dtype, operand_at(arg, problem_at, s, d), 0, n);
      }
    }
  }
  free(seen);
}

static void fill_segment(problem *p)
{
  problem_operand *ids = &p->operand[AT_IDS];
  problem_operand *data = &p->operand[AT_DATA];
  const int64_t count = p->spec.count;
  fill_values(p, AT_DATA);
  fill_values(p, AT_SEGMENT_GRAD_OUT);
  int64_t *drawn = bit_alloc(count, sizeof *drawn);
  const index_rule rule = {0, p->spec.rows, p->spec.rows > 0 ? random_below(&p->random, p->spec.rows) : -1, -1};
  for (int64_t i = 0; i < ids->problems; i++) {
    if (i == 0 || ids->problem_stride != 0) {
      draw_indices(p, &rule, drawn, count);
    }
    if (problem_is_sorted(&p->spec)) {
      qsort(drawn, (size_t)count, sizeof *drawn, compare_int64);
    }
    for (int64_t n = 0; n < count; n++) {
      bit_store_index(ids->dtype, operand_at(ids, i, 0, n), 0, drawn[n]);
      if (drawn[n] < 0 || drawn[n] >= p->spec.rows) {
        forbid(data, ids, i, n, 0, p->spec.dim);
      }
    }
    if (p->spec.arg_given) {
      fill_segment_args(p, i, drawn);
    }
  }
  free(drawn);
}

/* Outputs start as noise, table_grad as values to add to. */
static void fill_outputs(problem *p)
{
  for (int at = 0; at < PROBLEM_OPERANDS; at++) {
    problem_operand *operand = &p->operand[at];
    for (size_t i = 0; operand->given && operand->output && i < operand->memory_bytes; i++) {
      operand->memory[i] = (unsigned char)random_bits(&p->random);
    }
  }
  if (p->spec.category == SHEAF_CATEGORY_EMBEDDING && p->spec.grad_write != SHEAF_GRAD_OVERWRITE) {
    fill_values(p, AT_TABLE_GRAD);
  }
}

void problem_fill(problem *p)
{
  if (p->spec.category == SHEAF_CATEGORY_EMBEDDING) {
    fill_embedding(p);
  } else {
    fill_segment(p);
  }
  fill_outputs(p);
}
