/* cli/verify_entries.c: the entries of bags in a reference case: read, checked, and put in plain form. */
#include <math.h>

#include "verify.h"

/* Indices as a matrix make their rows the bags; otherwise offsets do, with or without the end. */
static bool read_form(verify_case *c, verify_entries *e)
{
  int with_end = verify_flag(c, "include_last_offset", 2); /* 2: not said, so the shapes decide */
  if (with_end < 0) return false;
  if (!verify_has(c, "offsets")) {
    e->form = SHEAF_BAGS_MATRIX;
    if (e->indices->rank != 2 || e->indices->shape[0] != e->bags)
      return verify_fail(c, "without offsets, indices must be a matrix with a row for each of %lld bags",
                         (long long)e->bags);
    return with_end != 1 || verify_fail(c, "include_last_offset is 1, but there are no offsets");
  }
  e->offsets = verify_input(c, "offsets");
  if (!e->offsets || !verify_expect_index_dtype(c, "offsets", e->offsets)) return false;
  if (e->indices->rank != 1) return verify_fail(c, "with offsets, indices must have one dimension");
  if (with_end == 2) with_end = e->offsets->count == e->bags + 1;
  e->form = with_end ? SHEAF_BAGS_OFFSETS_END : SHEAF_BAGS_OFFSETS;
  if (e->offsets->rank != 1 || e->offsets->count != e->bags + with_end)
    return verify_fail(c, "%lld bags need %lld offsets, there are %lld", (long long)e->bags,
                       (long long)e->bags + with_end, (long long)e->offsets->count);
  return true;
}

static bool assign_bags(verify_case *c, verify_entries *e)
{
  if (e->form == SHEAF_BAGS_MATRIX) {
    for (int64_t k = 0; k < e->count; k++) e->bag_of[k] = k / e->indices->shape[1];
    return true;
  }
  int64_t begin = 0;
  for (int64_t b = 0; b <= e->bags; b++) {
    bool given = b < e->offsets->count;
    int64_t end = given ? verify_integer(e->offsets, b) : e->count;
    bool fits = b == 0 ? end == 0 : end >= begin && end <= e->count;
    if (b == e->bags) fits = end == e->count;
    if (!fits)
      return verify_fail(c, "offset %lld at position %lld does not divide %lld indices into bags", (long long)end,
                         (long long)b, (long long)e->count);
    for (int64_t k = begin; k < end; k++) e->bag_of[k] = b - 1;
    begin = end;
  }
  return true;
}

static bool assign_rows(verify_case *c, verify_entries *e)
{
  for (int64_t k = 0; k < e->count; k++) {
    int64_t row = verify_integer(e->indices, k);
    if (row < 0 || row >= e->rows)
      return verify_fail(c, "index %lld at position %lld is no row of a table of %lld", (long long)row, (long long)k,
                         (long long)e->rows);
    e->row_of[k] = row == e->padding ? -1 : row;
    e->weight_of[k] = e->weights ? verify_value(e->weights, k) : 1;
  }
  return true;
}

/* What each bag's mean divides by. Weights of both signs can cancel there, which magnifies the rounding of their sum:
 * the condition says by how much. */
static bool find_divisors(verify_case *c, verify_entries *e)
{
  double *absolute = verify_alloc(c, e->bags, sizeof *absolute);
  if (!absolute) return false;
  for (int64_t k = 0; k < e->count; k++) {
    if (e->row_of[k] < 0) continue;
    e->divisor[e->bag_of[k]] += e->weight_of[k];
    absolute[e->bag_of[k]] += fabs(e->weight_of[k]);
  }
  for (int64_t b = 0; b < e->bags; b++) {
    e->condition[b] = e->mean && absolute[b] > 0 ? fmax(1, absolute[b] / fabs(e->divisor[b])) : 1;
    if (!e->mean) e->divisor[b] = 1;
  }
  return true;
}

bool verify_read_entries(verify_case *c, sheaf_dtype weight_dtype, verify_entries *e)
{
  e->indices = verify_input(c, "indices");
  if (!e->indices || !verify_expect_index_dtype(c, "indices", e->indices) || !read_form(c, e)) return false;
  e->count = e->indices->count;
  if (verify_has(c, "per_sample_weights")) {
    e->weights = verify_input(c, "per_sample_weights");
    if (!e->weights) return false;
    if (e->weights->dtype != weight_dtype || !verify_same_shape(e->weights, e->indices))
      return verify_fail(c, "tensor 'per_sample_weights' is not one %s for each index", sheaf_dtype_name(weight_dtype));
  }
  e->row_of = verify_alloc(c, e->count, sizeof *e->row_of);
  e->bag_of = verify_alloc(c, e->count, sizeof *e->bag_of);
  e->weight_of = verify_alloc(c, e->count, sizeof *e->weight_of);
  e->divisor = verify_alloc(c, e->bags, sizeof *e->divisor);
  e->condition = verify_alloc(c, e->bags, sizeof *e->condition);
  if (!e->row_of || !e->bag_of || !e->weight_of || !e->divisor || !e->condition) return false;
  return verify_padding(c, e->rows, &e->padding) && verify_extent(c, "num_embeddings", e->rows) &&
         verify_extent(c, "num_bags", e->bags) && assign_bags(c, e) && assign_rows(c, e) && find_divisors(c, e);
}

void verify_describe_bags(const verify_entries *e, sheaf_embedding_desc *desc, sheaf_embedding_args *args)
{
  desc->index_dtype = e->indices->dtype;
  desc->offset_dtype = e->offsets ? e->offsets->dtype : SHEAF_DTYPE_NONE;
  desc->bag_form = e->form;
  desc->rows = e->rows;
  desc->dim = e->dim;
  desc->indices = e->count;
  desc->bags = e->bags;
  desc->has_padding = e->padding >= 0;
  desc->padding_idx = e->padding >= 0 ? e->padding : 0;
  desc->weighted = e->weights != NULL;
  desc->bad_index = SHEAF_BAD_INDEX_ERROR;
  args->indices = e->indices->operand;
  if (e->offsets) args->offsets = e->offsets->operand;
  if (e->weights) args->weights = e->weights->operand;
}
