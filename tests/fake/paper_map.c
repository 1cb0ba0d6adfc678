/* paper_map.c: what the device of paper does element by element. */
#include <stdint.h>
#include <string.h>

#include "paper.h"

static double load(const void *data, sheaf_dtype dtype, int64_t i)
{
  switch (dtype) {
  case SHEAF_F64:
    return ((const double *)data)[i];
  case SHEAF_F16:
    return (double)sheaf_f16_to_f32(((const uint16_t *)data)[i]);
  case SHEAF_BF16:
    return (double)sheaf_bf16_to_f32(((const uint16_t *)data)[i]);
  case SHEAF_I32:
    return (double)((const int32_t *)data)[i];
  default:
    return (double)((const float *)data)[i];
  }
}

static void store(void *data, sheaf_dtype dtype, int64_t i, double x)
{
  if (dtype == SHEAF_F64) ((double *)data)[i] = x;
  if (dtype == SHEAF_F32) ((float *)data)[i] = (float)x;
  if (dtype == SHEAF_F16) ((uint16_t *)data)[i] = sheaf_f32_to_f16((float)x);
  if (dtype == SHEAF_BF16) ((uint16_t *)data)[i] = sheaf_f32_to_bf16((float)x);
  if (dtype == SHEAF_I64) ((int64_t *)data)[i] = (int64_t)x;
}

static void map_one(const shf_device_map *m, int64_t a, int64_t b, int64_t out)
{
  size_t bytes = (size_t)(m->to == SHEAF_U8 ? 1 : sheaf_dtype_row_bytes(m->to, 1));
  switch (m->kind) {
  case SHF_MAP_COPY:
    memcpy((char *)m->out + out * (int64_t)bytes, (const char *)m->a + a * (int64_t)bytes, bytes);
    break;
  case SHF_MAP_CAST:
    store(m->out, m->to, out, load(m->a, m->from, a));
    break;
  case SHF_MAP_ADD:
    if (m->to == SHEAF_F64)
      store(m->out, m->to, out, __builtin_fma(m->alpha, load(m->b, m->to, b), load(m->a, m->to, a)));
    else
      store(m->out, m->to, out,
            (double)__builtin_fmaf((float)m->alpha, (float)load(m->b, m->to, b), (float)load(m->a, m->to, a)));
    break;
  case SHF_MAP_FILL:
    store(m->out, m->to, out, m->alpha);
  }
}

void paper_map(const shf_device_map *m)
{
  int64_t at[SHF_MAP_RANK] = {0}, count = 1;
  for (int d = 0; d < m->rank; d++) count *= m->extent[d];
  for (int64_t i = 0; i < count; i++) {
    int64_t a = 0, b = 0, out = 0, rest = i;
    for (int d = m->rank - 1; d >= 0; d--) {
      at[d] = rest % m->extent[d];
      rest /= m->extent[d];
      int64_t place = at[d];
      b += place * m->b_step[d];
      if (d == 0 && m->index)
        place = m->index_wide ? ((const int64_t *)m->index)[place] : ((const int32_t *)m->index)[place];
      a += place * m->a_step[d];
      out += place * m->out_step[d];
    }
    map_one(m, a, b, out);
  }
}
