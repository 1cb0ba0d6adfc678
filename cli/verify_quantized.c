/* cli/verify_quantized.c: replays `quantized_bag` cases: packing rows, unpacking them, and bags over packed rows. */
#include <math.h>
#include <string.h>

#include "verify.h"

typedef struct quantized_case {
  sheaf_dtype dtype; /* INT8 or INT4 */
  const verify_tensor *weight, *packed;
  verify_entries entries;
} quantized_case;

/* ---- Plain code ---------------------------------------------------------------------------------------------- */

typedef struct row_tail {
  double scale, bias;
} row_tail;

/* The numbers behind a row's elements: f32 in int8 rows, f16 in int4 rows. */
static row_tail read_tail(const quantized_case *q, const uint8_t *row)
{
  const uint8_t *tail;
  if (q->dtype == SHEAF_INT8) {
    float numbers[2];
    tail = row + q->entries.dim;
    memcpy(numbers, tail, sizeof numbers);
    return (row_tail){(double)numbers[0], (double)numbers[1]};
  }
  uint16_t halves[2];
  tail = row + (q->entries.dim + 1) / 2;
  memcpy(halves, tail, sizeof halves);
  return (row_tail){(double)sheaf_f16_to_f32(halves[0]), (double)sheaf_f16_to_f32(halves[1])};
}

static int element_at(const quantized_case *q, const uint8_t *row, int64_t d)
{
  if (q->dtype == SHEAF_INT8) return row[d];
  return d % 2 ? row[d / 2] >> 4 : row[d / 2] & 15;
}

/* Each term counts as |w q scale| + |w bias|: the two may cancel. */
static double *forward_scale(verify_case *c, const quantized_case *q)
{
  const verify_entries *e = &q->entries;
  double *scale = verify_alloc(c, e->bags * e->dim, sizeof *scale);
  for (int64_t k = 0; scale && k < e->count; k++) {
    int64_t row = e->row_of[k], b = e->bag_of[k];
    if (row < 0) continue;
    const uint8_t *bytes = (const uint8_t *)q->packed->data + row * q->packed->shape[1];
    row_tail tail = read_tail(q, bytes);
    double factor = fabs(e->weight_of[k] / e->divisor[b] * e->condition[b]);
    for (int64_t d = 0; d < e->dim; d++)
      scale[b * e->dim + d] += factor * (fabs(element_at(q, bytes, d) * tail.scale) + fabs(tail.bias));
  }
  return scale;
}

/* ---- Checks -------------------------------------------------------------------------------------------------- */

static bool check_pack(verify_case *c, const quantized_case *q)
{
  verify_tensor *packed = verify_output(c, SHEAF_U8, 2, q->packed->shape);
  if (!packed) return false;
  sheaf_status status = sheaf_quantize_rows(q->dtype, &q->weight->operand, &packed->operand);
  if (status != SHEAF_OK)
    return verify_fail(c, "quantize_rows answers %s: %s", sheaf_status_name(status), sheaf_last_error());
  return verify_compare(c, "packed", q->packed, packed, (verify_rule){0});
}

static bool check_unpack(verify_case *c, const quantized_case *q)
{
  verify_tensor *expected = verify_matrix(c, "unpacked", SHEAF_F32, q->entries.rows, q->entries.dim);
  verify_tensor *rows = expected ? verify_output(c, SHEAF_F32, 2, expected->shape) : NULL;
  if (!rows) return false;
  sheaf_status status = sheaf_dequantize_rows(q->dtype, &q->packed->operand, &rows->operand);
  if (status != SHEAF_OK)
    return verify_fail(c, "dequantize_rows answers %s: %s", sheaf_status_name(status), sheaf_last_error());
  return verify_compare(c, "unpacked", expected, rows, (verify_rule){.signed_zeros = true});
}

static bool check_bag(verify_case *c, const quantized_case *q, sheaf_embedding_kind kind, const verify_tensor *expected)
{
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  verify_describe_bags(&q->entries, &desc, &args);
  desc.kind = kind;
  desc.dtype = q->dtype;
  desc.out_dtype = expected->dtype == SHEAF_F64 ? SHEAF_F32 : expected->dtype;
  verify_tensor *out = verify_output(c, desc.out_dtype, 2, expected->shape);
  double *scale = out ? forward_scale(c, q) : NULL;
  if (!scale) return false;
  args.table = q->packed->operand;
  args.out = out->operand;
  return verify_run_embedding(c, &desc, &args) &&
         verify_compare(c, "out", expected, out, (verify_rule){.scale = kind == SHEAF_BAG_MAX ? NULL : scale});
}

static bool read_tables(verify_case *c, quantized_case *q)
{
  q->weight = verify_input(c, "weight");
  if (!q->weight) return false;
  if (q->weight->dtype != SHEAF_F32 || q->weight->rank != 2)
    return verify_fail(c, "tensor 'weight' is not a matrix of f32");
  q->entries.rows = q->weight->shape[0];
  q->entries.dim = q->weight->shape[1];
  q->packed = verify_matrix(c, "packed", SHEAF_U8, q->entries.rows, sheaf_dtype_row_bytes(q->dtype, q->entries.dim));
  return q->packed != NULL;
}

bool verify_quantized_bag(verify_case *c)
{
  static const char *const widths[] = {"8", "4", NULL}, *const modes[] = {"sum", "mean", "max", NULL};
  static const sheaf_embedding_kind kinds[] = {SHEAF_BAG_SUM, SHEAF_BAG_MEAN, SHEAF_BAG_MAX};
  int width = verify_choice(c, "bits", widths, -1), mode = width < 0 ? -1 : verify_choice(c, "mode", modes, -1);
  if (mode < 0) return false;
  quantized_case q = {.dtype = width ? SHEAF_INT4 : SHEAF_INT8};
  verify_tensor *expected = read_tables(c, &q) ? verify_input(c, "out") : NULL;
  if (!expected) return false;
  if (!verify_is_float(expected->dtype) || expected->rank != 2 || expected->shape[1] != q.entries.dim)
    return verify_fail(c, "tensor 'out' is not a matrix of values as wide as 'weight'");
  q.entries.bags = expected->shape[0];
  q.entries.mean = kinds[mode] == SHEAF_BAG_MEAN;
  return verify_read_entries(c, SHEAF_F32, &q.entries) && check_pack(c, &q) && check_unpack(c, &q) &&
         check_bag(c, &q, kinds[mode], expected);
}
