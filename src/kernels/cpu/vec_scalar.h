/* vec_scalar.h: the vector words in plain C, one lane wide. The other two headers define the same words; this one is
 * the place to read what each of them means.
 *
 *   vec, vint, vmask           VEC_LANES lanes of acc, of lane_int, of yes or no
 *   ..._part(…, lanes)         the same on the first `lanes` lanes (1 .. VEC_LANES - 1); no other memory is touched
 *   f16_load, f16_store ...    widen to acc exactly; round to nearest even, denormals kept
 *   ..._exact                  the same, and a NaN keeps its bits (the conversion instructions would make it quiet)
 *   ..._stream                 store past the caches, to an address that is a multiple of the vector
 *   bf16_..._pair              two vectors of columns at once (BF16_PAIRS), the even ones and the odd ones, which takes half
 *                              of the instructions; bf16_put_in_order makes the first and the second of them
 *   plus_zero_16               16-bit values + 0 without widening them, where there is PLUS_ZERO_STORE
 *   u8_load                    bytes as numbers
 *   u4_load                    nibbles (low one first), dequantised by the row's nibble_code
 *   LOAD_AFTER(pointer, x)     no load by this pointer comes before x is there: keeps the compiler to the order written
 *   FETCH_BEFORE(pointer, line) asks for a line before any later load by this pointer, where there is VEC_ASKS_BESIDE
 *                              (VEC_ASKS_TWICE: sums ask for it once more; VEC_ASKS_IN_BURSTS: rows may also be asked for
 *                              many at once; see asking in chunk.inc)
 *   nibble_code_load           the nibble_code at a row's end, where there is NIBBLE_CODE_LOAD; else nibble_code_of
 *   vec_fold                   all lanes, added by halves: lane j takes j + VEC_LANES / 2, and so on down to one
 *   vec_fold_four(to, p)       the same of four vectors, which takes fewer steps than one by one
 *   vmask_bits                 a bit for each lane that says yes
 *   run_of_i32, ...            how many of sixteen numbers, of which those that equal `key` come first, equal it
 */
#ifndef SHF_KERNELS_VEC_SCALAR_H
#define SHF_KERNELS_VEC_SCALAR_H

#include <math.h>
#include <string.h>

#include "element.h"

#define VEC_ISA scalar
#define VEC_ARCH SHEAF_ARCH_SCALAR
#define VEC_ASKS_IN_BURSTS 1
#if SHF_HAVE_AVX2 || SHF_HAVE_AVX512
#define VEC_IS_FALLBACK 1
#endif
enum { VEC_LANES = 1 };
typedef acc vec;
typedef lane_int vint;
typedef int vmask;

#define LOAD_AFTER(pointer, x) (void)0
#define RUN_OF(key, value)                  \
  int run = 0;                              \
  while (run < 16 && (value) == key) run++; \
  return run
FORCE_INLINE int run_of_i32(const int32_t *p, int32_t key) { RUN_OF(key, p[run]); }
FORCE_INLINE int run_of_i64(const int64_t *p, int64_t key) { RUN_OF(key, p[run]); }
FORCE_INLINE int run_of_shifted(const uint64_t *p, int shift, uint64_t key) { RUN_OF(key, p[run] >> shift); }
#undef RUN_OF
FORCE_INLINE vec vec_zero(void) { return 0; }
FORCE_INLINE vec vec_splat(acc x) { return x; }
FORCE_INLINE vec vec_load(const acc *p) { return *p; }
FORCE_INLINE vec vec_load_part(const acc *p, int lanes) { return lanes > 0 ? *p : 0; }
FORCE_INLINE void vec_store(acc *p, vec x) { *p = x; }
FORCE_INLINE void vec_store_part(acc *p, vec x, int lanes)
{
  if (lanes > 0) *p = x;
}
FORCE_INLINE void vec_stream(acc *p, vec x) { *p = x; }
FORCE_INLINE vec vec_add(vec a, vec b) { return a + b; }
FORCE_INLINE vec vec_sub(vec a, vec b) { return a - b; }
FORCE_INLINE vec vec_mul(vec a, vec b) { return a * b; }
FORCE_INLINE vec vec_div(vec a, vec b) { return a / b; }
FORCE_INLINE vec vec_fma(vec a, vec b, vec c) { return acc_fma(a, b, c); }
#if ELEMENT_WIDE
FORCE_INLINE vec vec_sqrt(vec a) { return __builtin_sqrt(a); }
#else
FORCE_INLINE vec vec_sqrt(vec a) { return __builtin_sqrtf(a); }
#endif
FORCE_INLINE acc vec_fold(vec a) { return a; }
FORCE_INLINE void vec_fold_four(acc *to, const vec *p) { memcpy(to, p, 4 * sizeof *to); }

/* Whether x takes the place of best: greater (less), or the first NaN. */
FORCE_INLINE vmask vec_above(vec x, vec best) { return !(x <= best) && best == best; }
FORCE_INLINE vmask vec_below(vec x, vec best) { return !(x >= best) && best == best; }
/* Equal, where a NaN equals a NaN and -0 equals +0. */
FORCE_INLINE vmask vec_same(vec a, vec b) { return a == b || (a != a && b != b); }
/* Among numbers: less; the other one only where it is more (less). */
FORCE_INLINE vmask vec_less(vec a, vec b) { return a < b; }
FORCE_INLINE vec vec_most(vec x, vec best) { return x > best ? x : best; }
FORCE_INLINE vec vec_least(vec x, vec best) { return x < best ? x : best; }
FORCE_INLINE int vec_any_nan(vec a) { return a != a; }
FORCE_INLINE vmask vec_equal(vec a, vec b) { return a == b; }
FORCE_INLINE unsigned vmask_bits(vmask m) { return m != 0; }
FORCE_INLINE vec vec_select(vmask m, vec yes, vec no) { return m ? yes : no; }

FORCE_INLINE vint vint_splat(lane_int x) { return x; }
FORCE_INLINE vint vint_add(vint a, vint b) { return a + b; }
FORCE_INLINE vint vint_select(vmask m, vint yes, vint no) { return m ? yes : no; }
FORCE_INLINE void vint_store(lane_int *p, vint x) { *p = x; }

#if !ELEMENT_WIDE
FORCE_INLINE vec f16_load(const uint16_t *p) { return shf_f16_to_f32(*p); }
FORCE_INLINE vec f16_load_part(const uint16_t *p, int lanes) { return lanes > 0 ? f16_load(p) : 0; }
FORCE_INLINE void f16_store(uint16_t *p, vec x) { *p = shf_f32_to_f16(x); }
FORCE_INLINE void f16_stream(uint16_t *p, vec x) { f16_store(p, x); }
FORCE_INLINE void f16_store_part(uint16_t *p, vec x, int lanes)
{
  if (lanes > 0) f16_store(p, x);
}
FORCE_INLINE vec f16_load_exact(const uint16_t *p, int lanes) { return lanes ? f16_load_part(p, lanes) : f16_load(p); }
FORCE_INLINE void f16_store_exact(uint16_t *p, vec x, int lanes)
{
  (void)lanes;
  f16_store(p, x);
}
FORCE_INLINE vec bf16_load(const uint16_t *p) { return shf_bf16_to_f32(*p); }
FORCE_INLINE vec bf16_load_part(const uint16_t *p, int lanes) { return lanes > 0 ? bf16_load(p) : 0; }
FORCE_INLINE void bf16_store(uint16_t *p, vec x) { *p = shf_f32_to_bf16(x); }
FORCE_INLINE void bf16_stream(uint16_t *p, vec x) { bf16_store(p, x); }
FORCE_INLINE void bf16_store_part(uint16_t *p, vec x, int lanes)
{
  if (lanes > 0) bf16_store(p, x);
}
FORCE_INLINE vec u8_load(const uint8_t *p) { return (acc)*p; }
FORCE_INLINE vec u8_load_part(const uint8_t *p, int lanes) { return lanes > 0 ? u8_load(p) : 0; }

typedef struct nibble_code {
  vec scale, bias;
} nibble_code;
FORCE_INLINE nibble_code nibble_code_of(acc scale, acc bias) { return (nibble_code){scale, bias}; }
/* Nibbles start at a multiple of VEC_LANES; here `column` says which half of the byte is meant. */
FORCE_INLINE vec u4_load(const uint8_t *row, int64_t column, nibble_code code)
{
  uint8_t byte = row[column / 2];
  return vec_fma((acc)(column % 2 ? byte >> 4 : byte & 15), code.scale, code.bias);
}
FORCE_INLINE vec u4_load_part(const uint8_t *row, int64_t column, int lanes, nibble_code code)
{
  return lanes > 0 ? u4_load(row, column, code) : 0;
}
#endif

/* Copies `bytes` bytes between buffers that do not overlap. */
FORCE_INLINE void bytes_copy(char *to, const char *from, int64_t bytes) { memcpy(to, from, (size_t)bytes); }

/* The same past the caches: `to` and `bytes` are multiples of 64. The writer calls stream_end when it is done. */
FORCE_INLINE void bytes_stream(char *to, const char *from, int64_t bytes) { memcpy(to, from, (size_t)bytes); }
FORCE_INLINE void stream_end(void) {}

#endif
