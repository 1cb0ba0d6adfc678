/* vec_avx2.h: the vector words (see vec_scalar.h for their meaning) in AVX2, FMA and F16C. */
#ifndef SHF_KERNELS_VEC_AVX2_H
#define SHF_KERNELS_VEC_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "element.h"

#define VEC_ISA avx2
#define VEC_ARCH SHEAF_ARCH_AVX2
#define VEC_ASKS_BESIDE 1 /* see asking in chunk.inc */
#define VEC_ASKS_TWICE 1

/* Words that differ between float and double only in the suffix of their instruction. */
#if ELEMENT_WIDE
enum { VEC_LANES = 4 };
typedef __m256d vec;
#define FLOAT_WORD(word) _mm256_##word##_pd
#define INT_WORD(word) _mm256_##word##_epi64
#define FLOAT_OF_INT(x) _mm256_castsi256_pd(x)
#define INT_OF_FLOAT(x) _mm256_castpd_si256(x)
#define VEC_COMPARE(a, b, how) _mm256_cmp_pd(a, b, how)
FORCE_INLINE __m256i vint_splat(lane_int x) { return _mm256_set1_epi64x(x); }
FORCE_INLINE __m256i lane_numbers(void) { return _mm256_setr_epi64x(0, 1, 2, 3); }
#else
enum { VEC_LANES = 8 };
typedef __m256 vec;
#define FLOAT_WORD(word) _mm256_##word##_ps
#define INT_WORD(word) _mm256_##word##_epi32
#define FLOAT_OF_INT(x) _mm256_castsi256_ps(x)
#define INT_OF_FLOAT(x) _mm256_castps_si256(x)
#define VEC_COMPARE(a, b, how) _mm256_cmp_ps(a, b, how)
FORCE_INLINE __m256i vint_splat(lane_int x) { return _mm256_set1_epi32(x); }
FORCE_INLINE __m256i lane_numbers(void) { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
#endif
typedef __m256i vint;
typedef vec vmask;

FORCE_INLINE vint first_lanes(int lanes) { return INT_WORD(cmpgt)(vint_splat(lanes), lane_numbers()); }
#define LOAD_AFTER(pointer, x) __asm__("" : "+r"(pointer) : "x"(x))
#define FETCH_BEFORE(pointer, line) __asm__ volatile("prefetcht0 %1" : "+r"(pointer) : "m"(*(const char *)(line)))
FORCE_INLINE unsigned equal_32(const void *p, __m256i wanted)
{
  __m256i equal = _mm256_cmpeq_epi32(_mm256_loadu_si256(p), wanted);
  return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(equal));
}
FORCE_INLINE unsigned equal_64(__m256i x, __m256i wanted)
{
  return (unsigned)_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(x, wanted)));
}
FORCE_INLINE int run_of_i32(const int32_t *p, int32_t key)
{
  __m256i wanted = _mm256_set1_epi32(key);
  return __builtin_ctz(~(equal_32(p, wanted) | equal_32(p + 8, wanted) << 8));
}
FORCE_INLINE int run_of_shifted(const uint64_t *p, int shift, uint64_t key)
{
  __m256i wanted = _mm256_set1_epi64x((int64_t)key);
  unsigned equal = 0;
  for (int i = 0; i < 16; i += 4)
    equal |= equal_64(_mm256_srli_epi64(_mm256_loadu_si256((const void *)(p + i)), shift), wanted) << i;
  return __builtin_ctz(~equal);
}
FORCE_INLINE int run_of_i64(const int64_t *p, int64_t key)
{
  return run_of_shifted((const uint64_t *)p, 0, (uint64_t)key);
}
FORCE_INLINE vec vec_zero(void) { return FLOAT_WORD(setzero)(); }
FORCE_INLINE vec vec_splat(acc x) { return FLOAT_WORD(set1)(x); }
FORCE_INLINE vec vec_load(const acc *p) { return FLOAT_WORD(loadu)(p); }
FORCE_INLINE vec vec_load_part(const acc *p, int lanes) { return FLOAT_WORD(maskload)(p, first_lanes(lanes)); }
FORCE_INLINE void vec_store(acc *p, vec x) { FLOAT_WORD(storeu)(p, x); }
FORCE_INLINE void vec_stream(acc *p, vec x) { FLOAT_WORD(stream)(p, x); }
FORCE_INLINE void vec_store_part(acc *p, vec x, int lanes) { FLOAT_WORD(maskstore)(p, first_lanes(lanes), x); }
FORCE_INLINE vec vec_add(vec a, vec b) { return FLOAT_WORD(add)(a, b); }
FORCE_INLINE vec vec_sub(vec a, vec b) { return FLOAT_WORD(sub)(a, b); }
FORCE_INLINE vec vec_mul(vec a, vec b) { return FLOAT_WORD(mul)(a, b); }
FORCE_INLINE vec vec_div(vec a, vec b) { return FLOAT_WORD(div)(a, b); }
FORCE_INLINE vec vec_fma(vec a, vec b, vec c) { return FLOAT_WORD(fmadd)(a, b, c); }
#if defined(ELEMENT_F16) /* on Zen 3 sums of bf16 are slower so */
/* a + b by the units that multiply; the compiler is not to see that b is multiplied by 1. */
#define VEC_ADDS_BY_FMA
FORCE_INLINE vec vec_add_by_fma(vec a, vec b)
{
  vec one = vec_splat(1);
  __asm__("" : "+x"(one));
  return vec_fma(b, one, a);
}
#endif
FORCE_INLINE vec vec_sqrt(vec a) { return FLOAT_WORD(sqrt)(a); }
#if ELEMENT_WIDE
FORCE_INLINE acc vec_fold(vec a)
{
  __m128d b = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
  return _mm_cvtsd_f64(_mm_add_sd(b, _mm_unpackhi_pd(b, b)));
}
FORCE_INLINE void vec_fold_four(acc *to, const vec *p)
{
  for (int i = 0; i < 4; i++) to[i] = vec_fold(p[i]);
}
#else
FORCE_INLINE acc vec_fold(vec a)
{
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
FORCE_INLINE void vec_fold_four(acc *to, const vec *p)
{
  __m256 a = p[0], b = p[1], c = p[2], d = p[3];
  __m256 ac = _mm256_add_ps(_mm256_permute2f128_ps(a, c, 0x20), _mm256_permute2f128_ps(a, c, 0x31));
  __m256 bd = _mm256_add_ps(_mm256_permute2f128_ps(b, d, 0x20), _mm256_permute2f128_ps(b, d, 0x31));
  __m256 two = _mm256_add_ps(_mm256_shuffle_ps(ac, bd, 0x44), _mm256_shuffle_ps(ac, bd, 0xEE)); /* a a b b, c c d d */
  __m256 one = _mm256_add_ps(two, _mm256_movehdup_ps(two));
  __m256 even = _mm256_permutevar8x32_ps(one, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
  _mm_storeu_ps(to, _mm256_castps256_ps128(even));
}
#endif
FORCE_INLINE vec vec_select(vmask m, vec yes, vec no) { return FLOAT_WORD(blendv)(no, yes, m); }
FORCE_INLINE vint vint_add(vint a, vint b) { return INT_WORD(add)(a, b); }
FORCE_INLINE vint vint_select(vmask m, vint yes, vint no)
{
  return INT_OF_FLOAT(vec_select(m, FLOAT_OF_INT(yes), FLOAT_OF_INT(no)));
}
FORCE_INLINE void vint_store(lane_int *p, vint x) { _mm256_storeu_si256((void *)p, x); }

FORCE_INLINE vmask vec_above(vec x, vec best)
{
  return FLOAT_WORD(and)(VEC_COMPARE(x, best, _CMP_NLE_UQ), VEC_COMPARE(best, best, _CMP_ORD_Q));
}
FORCE_INLINE vmask vec_below(vec x, vec best)
{
  return FLOAT_WORD(and)(VEC_COMPARE(x, best, _CMP_NGE_UQ), VEC_COMPARE(best, best, _CMP_ORD_Q));
}
FORCE_INLINE vmask vec_same(vec a, vec b)
{
  vmask both_nan = FLOAT_WORD(and)(VEC_COMPARE(a, a, _CMP_UNORD_Q), VEC_COMPARE(b, b, _CMP_UNORD_Q));
  return FLOAT_WORD(or)(VEC_COMPARE(a, b, _CMP_EQ_OQ), both_nan);
}
FORCE_INLINE vmask vec_less(vec a, vec b) { return VEC_COMPARE(a, b, _CMP_LT_OQ); }
FORCE_INLINE vec vec_most(vec x, vec best) { return FLOAT_WORD(max)(x, best); }
FORCE_INLINE vec vec_least(vec x, vec best) { return FLOAT_WORD(min)(x, best); }
FORCE_INLINE int vec_any_nan(vec a) { return FLOAT_WORD(movemask)(VEC_COMPARE(a, a, _CMP_UNORD_Q)) != 0; }
FORCE_INLINE vmask vec_equal(vec a, vec b) { return VEC_COMPARE(a, b, _CMP_EQ_OQ); }
FORCE_INLINE unsigned vmask_bits(vmask m) { return (unsigned)FLOAT_WORD(movemask)(m); }

#if !ELEMENT_WIDE
/* AVX2 has no masks for 16-bit and 8-bit lanes: a part goes through a buffer. */
FORCE_INLINE __m128i part_load(const void *p, int bytes)
{
  char buffer[16] = {0};
  memcpy(buffer, p, (size_t)bytes);
  return _mm_loadu_si128((const void *)buffer);
}
FORCE_INLINE void part_store(void *p, __m128i x, int bytes)
{
  char buffer[16];
  _mm_storeu_si128((void *)buffer, x);
  memcpy(p, buffer, (size_t)bytes);
}

FORCE_INLINE vec f16_load(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p)); }
FORCE_INLINE vec f16_load_part(const uint16_t *p, int lanes) { return _mm256_cvtph_ps(part_load(p, 2 * lanes)); }
FORCE_INLINE __m128i f16_round(vec x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
FORCE_INLINE void f16_store(uint16_t *p, vec x) { _mm_storeu_si128((void *)p, f16_round(x)); }
FORCE_INLINE void f16_stream(uint16_t *p, vec x) { _mm_stream_si128((void *)p, f16_round(x)); }
FORCE_INLINE void f16_store_part(uint16_t *p, vec x, int lanes) { part_store(p, f16_round(x), 2 * lanes); }

FORCE_INLINE vec f16_load_exact(const uint16_t *p, int lanes)
{
  __m128i half = lanes ? part_load(p, 2 * lanes) : _mm_loadu_si128((const void *)p);
  vec x = _mm256_cvtph_ps(half), nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  if (__builtin_expect(_mm256_movemask_ps(nan) == 0, 1)) return x;
  __m256i bits = _mm256_cvtepu16_epi32(half);
  __m256i sign = _mm256_slli_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x8000)), 16);
  __m256i payload = _mm256_slli_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x3ff)), 13);
  __m256i kept = _mm256_or_si256(_mm256_or_si256(sign, payload), _mm256_set1_epi32(0x7f800000));
  return _mm256_blendv_ps(x, _mm256_castsi256_ps(kept), nan);
}
FORCE_INLINE void f16_store_exact(uint16_t *p, vec x, int lanes)
{
  __m128i half = f16_round(x);
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  if (__builtin_expect(_mm256_movemask_epi8(nan) != 0, 0)) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x8000));
    __m256i payload = _mm256_and_si256(_mm256_srli_epi32(bits, 13), _mm256_set1_epi32(0x3ff));
    __m256i kept = _mm256_or_si256(_mm256_or_si256(sign, payload), _mm256_set1_epi32(0x7c00));
    __m128i kept16 = _mm_packus_epi32(_mm256_castsi256_si128(kept), _mm256_extracti128_si256(kept, 1));
    __m128i nan16 = _mm_packs_epi32(_mm256_castsi256_si128(nan), _mm256_extracti128_si256(nan, 1));
    half = _mm_blendv_epi8(half, kept16, nan16);
  }
  part_store(p, half, lanes ? 2 * lanes : 16);
}

FORCE_INLINE vec bf16_widen(__m128i bits)
{
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
#define BF16_PAIRS 1
FORCE_INLINE __m256i halves_load(const uint16_t *p, int count)
{
  __m128i high = count > 8 ? part_load(p + 8, 2 * count - 16) : _mm_setzero_si128();
  return _mm256_set_m128i(high, part_load(p, 2 * (count < 8 ? count : 8)));
}
FORCE_INLINE void halves_store(uint16_t *p, __m256i x, int count)
{
  part_store(p, _mm256_castsi256_si128(x), 2 * (count < 8 ? count : 8));
  if (count > 8) part_store(p + 8, _mm256_extracti128_si256(x, 1), 2 * count - 16);
}
/* Even columns of two vectors' and odd ones; `count` 0 means all of them. */
FORCE_INLINE void bf16_load_pair(const uint16_t *p, vec *even, vec *odd, int count, const int once)
{
  (void)once;
  __m256i both = count ? halves_load(p, count) : _mm256_loadu_si256((const void *)p);
  *even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
  *odd = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(-65536)));
}
FORCE_INLINE void bf16_put_in_order(vec *even, vec *odd)
{
  vec low = _mm256_unpacklo_ps(*even, *odd), high = _mm256_unpackhi_ps(*even, *odd);
  *even = _mm256_permute2f128_ps(low, high, 0x20);
  *odd = _mm256_permute2f128_ps(low, high, 0x31);
}
FORCE_INLINE vec bf16_load(const uint16_t *p) { return bf16_widen(_mm_loadu_si128((const void *)p)); }
FORCE_INLINE vec bf16_load_part(const uint16_t *p, int lanes) { return bf16_widen(part_load(p, 2 * lanes)); }
/* Each in the lower half of its lane. */
FORCE_INLINE __m256i bf16_nearest(vec x)
{
  __m256i bits = _mm256_castps_si256(x);
  __m256i high = _mm256_srli_epi32(bits, 16);
  __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  __m256i near = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  __m256i payload = _mm256_and_si256(high, _mm256_set1_epi32(0x7f));
  __m256i lost = _mm256_cmpeq_epi32(payload, _mm256_setzero_si256()); /* would be cut down to an infinity */
  __m256i quiet = _mm256_or_si256(high, _mm256_and_si256(lost, _mm256_set1_epi32(0x40)));
  return _mm256_blendv_epi8(near, quiet, nan);
}
FORCE_INLINE __m128i bf16_round(vec x)
{
  __m256i near = bf16_nearest(x);
  return _mm_packus_epi32(_mm256_castsi256_si128(near), _mm256_extracti128_si256(near, 1));
}
static __attribute__((noinline, cold)) __m256i bf16_round_pair_nan(vec even, vec odd)
{
  return _mm256_or_si256(bf16_nearest(even), _mm256_slli_epi32(bf16_nearest(odd), 16));
}
/* The upper half of each lane is the nearest one. */
FORCE_INLINE __m256i bf16_nearest_above(vec x)
{
  __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}
FORCE_INLINE __m256i bf16_round_pair(vec even, vec odd)
{
  if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(even, odd, _CMP_UNORD_Q)) != 0, 0)) return bf16_round_pair_nan(even, odd);
  return _mm256_blend_epi16(_mm256_srli_epi32(bf16_nearest_above(even), 16), bf16_nearest_above(odd), 0xaa);
}
FORCE_INLINE void bf16_store_pair(uint16_t *p, vec even, vec odd, int count)
{
  if (count)
    halves_store(p, bf16_round_pair(even, odd), count);
  else
    _mm256_storeu_si256((void *)p, bf16_round_pair(even, odd));
}
FORCE_INLINE void bf16_stream_pair(uint16_t *p, vec even, vec odd)
{
  _mm256_stream_si256((void *)p, bf16_round_pair(even, odd));
}
FORCE_INLINE void bf16_store(uint16_t *p, vec x) { _mm_storeu_si128((void *)p, bf16_round(x)); }
FORCE_INLINE void bf16_stream(uint16_t *p, vec x) { _mm_stream_si128((void *)p, bf16_round(x)); }
FORCE_INLINE void bf16_store_part(uint16_t *p, vec x, int lanes) { part_store(p, bf16_round(x), 2 * lanes); }

/* 16-bit values + 0: no negative zero, no signalling NaN. */
enum { PLUS_ZERO_LANES = 16 };
FORCE_INLINE __m256i plus_zero_16(const uint16_t *p, short infinity, short quiet)
{
  __m256i x = _mm256_loadu_si256((const void *)p);
  x = _mm256_andnot_si256(_mm256_cmpeq_epi16(x, _mm256_set1_epi16(-32768)), x);
  __m256i size = _mm256_and_si256(x, _mm256_set1_epi16(0x7fff));
  __m256i nan = _mm256_cmpgt_epi16(size, _mm256_set1_epi16(infinity));
  return _mm256_or_si256(x, _mm256_and_si256(nan, _mm256_set1_epi16(quiet)));
}
#define PLUS_ZERO_STORE(to, x) _mm256_storeu_si256((void *)(to), x)
#define PLUS_ZERO_STREAM(to, x) _mm256_stream_si256((void *)(to), x)

FORCE_INLINE vec bytes_widen(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)); }
FORCE_INLINE vec u8_load(const uint8_t *p) { return bytes_widen(_mm_loadl_epi64((const void *)p)); }
FORCE_INLINE vec u8_load_part(const uint8_t *p, int lanes) { return bytes_widen(part_load(p, lanes)); }
FORCE_INLINE vec nibbles_widen(int32_t eight)
{
  const __m256i each = _mm256_srlv_epi32(_mm256_set1_epi32(eight), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
  return _mm256_cvtepi32_ps(_mm256_and_si256(each, _mm256_set1_epi32(15)));
}
typedef struct nibble_code {
  vec scale, bias;
} nibble_code;
FORCE_INLINE nibble_code nibble_code_of(acc scale, acc bias)
{
  return (nibble_code){vec_splat(scale), vec_splat(bias)};
}
/* The same of the two halves that lie at the end of a row, widened together. */
#define NIBBLE_CODE_LOAD 1
FORCE_INLINE nibble_code nibble_code_load(const char *halves)
{
  int32_t both;
  memcpy(&both, halves, 4);
  const __m128 wide = _mm_cvtph_ps(_mm_cvtsi32_si128(both));
  return (nibble_code){_mm256_broadcastss_ps(wide), _mm256_broadcastss_ps(_mm_movehdup_ps(wide))};
}
FORCE_INLINE vec u4_load(const uint8_t *row, int64_t column, nibble_code code)
{
  int32_t eight;
  memcpy(&eight, row + column / 2, 4);
  return vec_fma(nibbles_widen(eight), code.scale, code.bias);
}
FORCE_INLINE vec u4_load_part(const uint8_t *row, int64_t column, int lanes, nibble_code code)
{
  const int32_t eight = _mm_cvtsi128_si32(part_load(row + column / 2, (lanes + 1) / 2));
  return vec_fma(nibbles_widen(eight), code.scale, code.bias);
}
#endif

FORCE_INLINE void bytes_copy(char *to, const char *from, int64_t bytes)
{
  if (bytes < 32) {
    memcpy(to, from, (size_t)bytes);
    return;
  }
  int64_t at = 0;
  for (; at + 32 <= bytes; at += 32)
    _mm256_storeu_si256((void *)(to + at), _mm256_loadu_si256((const void *)(from + at)));
  if (at < bytes) /* the last piece overlaps the one before it */
    _mm256_storeu_si256((void *)(to + bytes - 32), _mm256_loadu_si256((const void *)(from + bytes - 32)));
}

FORCE_INLINE void bytes_stream(char *to, const char *from, int64_t bytes)
{
  for (int64_t at = 0; at < bytes; at += 32)
    _mm256_stream_si256((void *)(to + at), _mm256_loadu_si256((const void *)(from + at)));
}
FORCE_INLINE void stream_end(void) { _mm_sfence(); }

#endif
