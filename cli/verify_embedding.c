/* cli/verify_embedding.c: replays `embedding` cases: a plain lookup and its gradient. */
#include <math.h>

#include "verify.h"

typedef struct lookup {
  const verify_tensor *weight, *indices;
  int64_t rows, dim, padding;
  sheaf_embedding_desc desc;
} lookup;

static bool read_lookup(verify_case *c, lookup *l)
{
  static const char *const paddings[] = {"zero", "row", NULL};
  l->weight = verify_input(c, "weight");
  l->indices = l->weight ? verify_input(c, "indices") : NULL;
  if (!l->indices || !verify_expect_index_dtype(c, "indices", l->indices)) return false;
  if (!verify_is_float(l->weight->dtype) || l->weight->rank != 2)
    return verify_fail(c, "tensor 'weight' is not a matrix of values");
  if (l->indices->rank == SHEAF_IO_MAX_RANK) return verify_fail(c, "tensor 'indices' has too many dimensions");
  l->rows = l->weight->shape[0];
  l->dim = l->weight->shape[1];
  for (int64_t n = 0; n < l->indices->count; n++) {
    int64_t row = verify_integer(l->indices, n);
    if (row < 0 || row >= l->rows)
      return verify_fail(c, "index %lld at position %lld is no row of a table of %lld", (long long)row, (long long)n,
                         (long long)l->rows);
  }
  int scaled = verify_flag(c, "scale_grad_by_freq", 0), padding = verify_choice(c, "padding_forward", paddings, 0);
  if (scaled < 0 || padding < 0 || !verify_padding(c, l->rows, &l->padding)) return false;
  l->desc = (sheaf_embedding_desc)SHEAF_EMBEDDING_DESC_INIT;
  l->desc.dtype = l->weight->dtype;
  l->desc.index_dtype = l->indices->dtype;
  l->desc.rows = l->rows;
  l->desc.dim = l->dim;
  l->desc.indices = l->indices->count;
  l->desc.has_padding = l->padding >= 0;
  l->desc.padding_idx = l->padding >= 0 ? l->padding : 0;
  l->desc.padding = padding ? SHEAF_PADDING_ROW : SHEAF_PADDING_ZERO;
  l->desc.scale_grad_by_freq = (uint8_t)scaled;
  l->desc.bad_index = SHEAF_BAD_INDEX_ERROR;
  return verify_extent(c, "num_embeddings", l->rows);
}

/* An input shaped as the lookup's output: one row for each index, behind the shape of the indices. */
static verify_tensor *read_rows(verify_case *c, const char *name, const lookup *l)
{
  verify_tensor *t = verify_input(c, name);
  if (!t) return NULL;
  bool fits = verify_is_float(t->dtype) && t->rank == l->indices->rank + 1 && t->shape[t->rank - 1] == l->dim;
  for (int i = 0; fits && i < l->indices->rank; i++) fits = t->shape[i] == l->indices->shape[i];
  if (fits) return t;
  verify_fail(c, "tensor '%s' does not hold one row of values for each index", name);
  return NULL;
}

static bool check_forward(verify_case *c, const lookup *l)
{
  verify_tensor *expected = read_rows(c, "out", l);
  verify_tensor *out = expected ? verify_output(c, l->weight->dtype, expected->rank, expected->shape) : NULL;
  if (!out) return false;
  sheaf_embedding_desc desc = l->desc;
  desc.kind = SHEAF_LOOKUP;
  desc.scale_grad_by_freq = 0;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.table = l->weight->operand;
  args.indices = l->indices->operand;
  args.out = out->operand;
  return verify_run_embedding(c, &desc, &args) &&
         verify_compare(c, "out", expected, out, (verify_rule){.signed_zeros = true});
}

/* For each cell of the gradient the sum of absolute terms. */
static double *grad_scale(verify_case *c, const lookup *l, const verify_tensor *dout)
{
  double *scale = verify_alloc(c, l->rows * l->dim, sizeof *scale);
  int64_t *uses = verify_alloc(c, l->rows, sizeof *uses);
  if (!scale || !uses) return NULL;
  for (int64_t n = 0; n < l->indices->count; n++) uses[verify_integer(l->indices, n)] += 1;
  for (int64_t n = 0; n < l->indices->count; n++) {
    int64_t row = verify_integer(l->indices, n);
    if (row == l->padding) continue;
    double share = l->desc.scale_grad_by_freq ? 1 / (double)uses[row] : 1;
    for (int64_t d = 0; d < l->dim; d++) scale[row * l->dim + d] += fabs(share * verify_value(dout, n * l->dim + d));
  }
  return scale;
}

static bool check_backward(verify_case *c, const lookup *l)
{
  verify_tensor *expected = verify_matrix(c, "dweight", SHEAF_DTYPE_NONE, l->rows, l->dim);
  verify_tensor *dout = expected ? read_rows(c, "dout", l) : NULL;
  if (!dout) return false;
  if (dout->dtype != l->weight->dtype) return verify_fail(c, "tensor 'dout' does not have the dtype of 'weight'");
  verify_tensor *dweight = verify_output(c, l->weight->dtype, 2, l->weight->shape);
  double *scale = dweight ? grad_scale(c, l, dout) : NULL;
  if (!scale) return false;
  sheaf_embedding_desc desc = l->desc;
  desc.kind = SHEAF_LOOKUP_BACKWARD;
  desc.padding = SHEAF_PADDING_ZERO; /* says nothing about gradients */
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.indices = l->indices->operand;
  args.grad_out = dout->operand;
  return verify_run_table_grad(c, &desc, &args, dweight) &&
         verify_compare(c, "dweight", expected, dweight, (verify_rule){.scale = scale});
}

bool verify_embedding(verify_case *c)
{
  lookup l = {0};
  if (!read_lookup(c, &l) || !check_forward(c, &l)) return false;
  return !verify_has(c, "dweight") || check_backward(c, &l);
}
