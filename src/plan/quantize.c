/* quantize.c: rows of f32 to and from the int8 and int4 layouts, byte for byte as PyTorch packs them. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "plan/plan_impl.h"

typedef struct row_pair {
  shf_matrix rows, packed;
  int64_t count, dim;
} row_pair;

static sheaf_status bind_pair(sheaf_dtype dtype, const sheaf_operand *rows, const sheaf_operand *packed, int pack,
                              row_pair *pair)
{
  SHF_REQUIRE(dtype == SHEAF_INT8 || dtype == SHEAF_INT4, UNSUPPORTED,
              "rows are packed as int8 or int4, not as %s (%d)", sheaf_dtype_name(dtype), (int)dtype);
  SHF_REQUIRE(rows && rows->tensor && rows->tensor->ndim == 2 && rows->tensor->shape, INVALID_PROBLEM,
              "rows must be a matrix [V, D]");
  pair->count = rows->tensor->shape[0];
  pair->dim = rows->tensor->shape[1];
  int64_t width = sheaf_dtype_row_bytes(dtype, pair->dim);
  SHF_REQUIRE(pair->count >= 0 && width >= 0, INVALID_PROBLEM, "rows has shape [%" PRId64 ", %" PRId64 "]", pair->count,
              pair->dim);
  shf_operand_spec plain = {
      .name = "rows", .output = !pack, .dtype = SHEAF_F32, .rows = pair->count, .columns = pair->dim};
  shf_operand_spec bytes = {.name = "packed", .output = pack, .dtype = SHEAF_U8, .rows = pair->count, .columns = width};
  shf_plan_finish_spec(&plain);
  shf_plan_finish_spec(&bytes);
  SHF_TRY(shf_plan_bind_one(&plain, rows, &pair->rows));
  SHF_TRY(shf_plan_bind_one(&bytes, packed, &pair->packed));
  SHF_REQUIRE(!shf_plan_specs_meet(&plain, &pair->rows, &bytes, &pair->packed), INVALID_PROBLEM,
              "rows and packed share memory");
  return SHEAF_OK;
}

static const float *plain_row(const row_pair *pair, int64_t i)
{
  return (const float *)(const void *)(pair->rows.data + i * pair->rows.row_stride);
}

static sheaf_status check_finite(const row_pair *pair)
{
  for (int64_t i = 0; i < pair->count; i++)
    for (int64_t d = 0; d < pair->dim; d++)
      if (!isfinite(plain_row(pair, i)[d])) {
        sheaf_error_info info = {.status = SHEAF_INVALID_PROBLEM, .operand = "rows", .position = i, .count = 1};
        return shf_core_fail_info(&info,
                                  "row %" PRId64 " holds %g in column %" PRId64 "; only finite rows can be quantised",
                                  i, (double)plain_row(pair, i)[d], d);
      }
  return SHEAF_OK;
}

static void row_range(const float *row, int64_t dim, float *least, float *most)
{
  *least = *most = dim ? row[0] : 0;
  for (int64_t d = 1; d < dim; d++) {
    if (row[d] < *least) *least = row[d];
    if (row[d] > *most) *most = row[d];
  }
}

static void pack_int8(const float *row, int64_t dim, uint8_t *to)
{
  float least, most;
  row_range(row, dim, &least, &most);
  float range = most - least, tail[2] = {range / 255.0f, least};
  float inverse = 255.0f / (range + 1e-8f);
  for (int64_t d = 0; d < dim; d++) to[d] = (uint8_t)lrintf((row[d] - least) * inverse);
  memcpy(to + dim, tail, sizeof tail);
}

static void pack_int4(const float *row, int64_t dim, uint8_t *to)
{
  float least, most;
  row_range(row, dim, &least, &most);
  uint16_t tail[2];
  tail[1] = shf_f32_to_f16(least);
  float bias = shf_f16_to_f32(tail[1]);
  tail[0] = shf_f32_to_f16((most - bias) / 15.0f);
  float scale = shf_f16_to_f32(tail[0]);
  if (scale == 0 || isinf(1.0f / scale)) {
    scale = 1;
    tail[0] = shf_f32_to_f16(scale);
  }
  float inverse = 1.0f / scale;
  memset(to, 0, (size_t)((dim + 1) / 2));
  for (int64_t d = 0; d < dim; d++) {
    long q = lrintf((row[d] - bias) * inverse);
    q = q < 0 ? 0 : q > 15 ? 15 : q;
    to[d / 2] = (uint8_t)(to[d / 2] | q << (d % 2 ? 4 : 0));
  }
  memcpy(to + (dim + 1) / 2, tail, sizeof tail);
}

sheaf_status sheaf_quantize_rows(sheaf_dtype dtype, const sheaf_operand *rows, const sheaf_operand *packed)
{
  row_pair pair;
  SHF_TRY(bind_pair(dtype, rows, packed, 1, &pair));
  unsigned mode = shf_core_fp_enter();
  sheaf_status status = check_finite(&pair);
  for (int64_t i = 0; status == SHEAF_OK && i < pair.count; i++) {
    uint8_t *to = (uint8_t *)pair.packed.data + i * pair.packed.row_stride;
    if (dtype == SHEAF_INT8)
      pack_int8(plain_row(&pair, i), pair.dim, to);
    else
      pack_int4(plain_row(&pair, i), pair.dim, to);
  }
  shf_core_fp_leave(mode);
  return status;
}

static void unpack_row(sheaf_dtype dtype, const uint8_t *from, int64_t dim, float *row)
{
  float scale, bias;
  if (dtype == SHEAF_INT8) {
    memcpy(&scale, from + dim, 4);
    memcpy(&bias, from + dim + 4, 4);
    for (int64_t d = 0; d < dim; d++) row[d] = fmaf(from[d], scale, bias);
    return;
  }
  uint16_t tail[2];
  memcpy(tail, from + (dim + 1) / 2, 4);
  scale = shf_f16_to_f32(tail[0]);
  bias = shf_f16_to_f32(tail[1]);
  for (int64_t d = 0; d < dim; d++) row[d] = fmaf((float)(d % 2 ? from[d / 2] >> 4 : from[d / 2] & 15), scale, bias);
}

sheaf_status sheaf_dequantize_rows(sheaf_dtype dtype, const sheaf_operand *packed, const sheaf_operand *rows)
{
  row_pair pair;
  SHF_TRY(bind_pair(dtype, rows, packed, 0, &pair));
  unsigned mode = shf_core_fp_enter();
  for (int64_t i = 0; i < pair.count; i++)
    unpack_row(dtype, (const uint8_t *)pair.packed.data + i * pair.packed.row_stride, pair.dim,
               (float *)(void *)(pair.rows.data + i * pair.rows.row_stride));
  shf_core_fp_leave(mode);
  return SHEAF_OK;
}
