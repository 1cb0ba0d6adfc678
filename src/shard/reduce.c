/* shard/reduce.c: terms of different ranks become one value: sums, products, extremes, bits. */
#include <math.h>
#include <string.h>

#include "shard/local.h"

/* One loop per type and op; cells of received data may lie at any byte, so they are loaded and stored by memcpy. */
#define FOLD(name, type, expression)                             \
  static void name(char *total, const char *term, int64_t cells) \
  {                                                              \
    for (int64_t i = 0; i < cells; i++) {                        \
      type a, b;                                                 \
      memcpy(&a, total + i * (int64_t)sizeof a, sizeof a);       \
      memcpy(&b, term + i * (int64_t)sizeof b, sizeof b);        \
      a = (type)(expression);                                    \
      memcpy(total + i * (int64_t)sizeof a, &a, sizeof a);       \
    }                                                            \
  }

FOLD(add_f32, float, a + b)
FOLD(add_f64, double, a + b)
FOLD(start_f32, float, 0.0f + b)
FOLD(start_f64, double, 0.0 + b)
FOLD(add_u8, uint8_t, a + b)
FOLD(add_u16, uint16_t, a + b)
FOLD(add_u32, uint32_t, a + b)
FOLD(add_u64, uint64_t, a + b)
FOLD(multiply_f32, float, a *b)
FOLD(multiply_f64, double, a *b)
/* A NaN that is there stays; otherwise a larger (smaller) value or a NaN takes its place. */
FOLD(max_f32, float, isnan(a) || !(b > a || isnan(b)) ? a : b)
FOLD(max_f64, double, isnan(a) || !(b > a || isnan(b)) ? a : b)
FOLD(min_f32, float, isnan(a) || !(b < a || isnan(b)) ? a : b)
FOLD(min_f64, double, isnan(a) || !(b < a || isnan(b)) ? a : b)

typedef void fold_loop(char *total, const char *term, int64_t cells);

static fold_loop *find_loop(const shf_part_fold *f)
{
  int wide = f->dtype == SHEAF_F64;
  switch (f->kind) {
  case SHF_FOLD_BITS:
    return f->cell == 1 ? add_u8 : f->cell == 2 ? add_u16 : f->cell == 4 ? add_u32 : add_u64;
  case SHF_FOLD_SUM:
    return f->dtype == SHEAF_I64 ? add_u64 : wide ? add_f64 : add_f32;
  case SHF_FOLD_PROD:
    return wide ? multiply_f64 : multiply_f32;
  case SHF_FOLD_MAX:
    return wide ? max_f64 : max_f32;
  default:
    return wide ? min_f64 : min_f32;
  }
}

void shf_fold_cells(const shf_part_fold *fold, char *total, const char *term, int64_t cells)
{
  if (fold->kind == SHF_FOLD_STORE)
    memcpy(total, term, (size_t)(cells * fold->cell));
  else if (fold->from_zero) /* a sum starts at +0, so that one of zeros is +0 */
    (fold->dtype == SHEAF_F64 ? start_f64 : start_f32)(total, term, cells);
  else
    find_loop(fold)(total, term, cells);
}

sheaf_status shf_reduce_fill(const shf_array *array)
{
  const shf_reducer *reducer = &array->reducer;
  int64_t cells = shf_array_cells(array), bytes = cells * array->cell;
  int neutral = reducer->kind == SHF_FOLD_PROD || reducer->kind == SHF_FOLD_MAX || reducer->kind == SHF_FOLD_MIN;
  if (!neutral) return shf_space_zero(array->device, array->data, bytes);
  double value = reducer->kind == SHF_FOLD_PROD ? 1 : reducer->kind == SHF_FOLD_MAX ? -INFINITY : INFINITY;
  shf_pool pool = {.mesh = array->mesh};
  void *host = array->data;
  if (!shf_is_host(array->device)) SHF_TRY(shf_pool_get(&pool, bytes, &host));
  for (int64_t i = 0; i < cells; i++) shf_store(array->cell == 8 ? SHEAF_F64 : SHEAF_F32, host, i, value);
  sheaf_status status = shf_space_write(array->device, array->data, host, bytes);
  shf_pool_free(&pool);
  return status;
}
