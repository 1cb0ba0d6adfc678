/* shard/reduce.c: terms of different ranks become one value: sums, products, extremes, bits. */
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "shard/move.h"

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

typedef void fold_cells(char *total, const char *term, int64_t cells);

static fold_cells *find_fold(const shf_reducer *r, int64_t cell)
{
  int wide = r->dtype == SHEAF_F64;
  switch (r->kind) {
  case SHF_REDUCE_BITS:
    return cell == 1 ? add_u8 : cell == 2 ? add_u16 : cell == 4 ? add_u32 : add_u64;
  case SHF_REDUCE_SUM:
    return r->dtype == SHEAF_I64 ? add_u64 : wide ? add_f64 : add_f32;
  case SHF_REDUCE_PROD:
    return wide ? multiply_f64 : multiply_f32;
  case SHF_REDUCE_MAX:
    return wide ? max_f64 : max_f32;
  default:
    return wide ? min_f64 : min_f32;
  }
}

void shf_reduce_terms(const shf_reducer *reducer, int64_t cell, int is_first, char *total, const char *term,
                      int64_t first, int64_t cells)
{
  if (is_first && reducer->kind == SHF_REDUCE_SUM) { /* a sum starts at +0, so that one of zeros is +0 */
    memset(total, 0, (size_t)(cells * cell));
    find_fold(reducer, cell)(total, term, cells);
  } else if (is_first) {
    memcpy(total, term, (size_t)(cells * cell));
  } else if (reducer->kind == SHF_REDUCE_OTHER) {
    reducer->fold(reducer->context, total, term, first, cells);
  } else {
    find_fold(reducer, cell)(total, term, cells);
  }
}

void shf_reduce_fill(const shf_reducer *reducer, int64_t cell, char *data, int64_t cells)
{
  if (cells == 0) return;
  memset(data, 0, (size_t)(cells * cell));
  if (reducer->kind != SHF_REDUCE_PROD && reducer->kind != SHF_REDUCE_MAX && reducer->kind != SHF_REDUCE_MIN) return;
  double value = reducer->kind == SHF_REDUCE_PROD ? 1 : reducer->kind == SHF_REDUCE_MAX ? -INFINITY : INFINITY;
  float narrow = (float)value;
  for (int64_t i = 0; i < cells; i++)
    memcpy(data + i * cell, reducer->dtype == SHEAF_F64 ? (void *)&value : (void *)&narrow, (size_t)cell);
}
