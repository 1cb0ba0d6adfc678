/* vec_avx512.h: the vector words (see vec_scalar.h for their meaning) in AVX-512 F, BW, DQ and VL. */
#ifndef SHF_KERNELS_VEC_AVX512_H
#define SHF_KERNELS_VEC_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "core/cpu.h"
#include "element.h"

#define VEC_ISA avx512
#define VEC_ARCH SHEAF_ARCH_AVX512
#define VEC_ASKS_BESIDE 1 /* both, and the job says which: see asking in chunk.inc */
#define VEC_ASKS_IN_BURSTS 1

/* Words that differ between float and double only in the suffix of their instruction. */
#if ELEMENT_WIDE
enum { VEC_LANES = 8 };
typedef __m512d vec;
typedef __mmask8 vmask;
#define FLOAT_WORD(word) _mm512_##word##_pd
#define INT_WORD(word) _mm512_##word##_epi64
#define VEC_COMPARE(a, b, how) _mm512_cmp_pd_mask(a, b, how)
#else
enum { VEC_LANES = 16 };
typedef __m512 vec;
typedef __mmask16 vmask;
#define FLOAT_WORD(word) _mm512_##word##_ps
#define INT_WORD(word) _mm512_##word##_epi32
#define VEC_COMPARE(a, b, how) _mm512_cmp_ps_mask(a, b, how)
#endif
typedef __m512i vint;

FORCE_INLINE vmask first_lanes(int lanes) { return (vmask)((1u << lanes) - 1); }
#define LOAD_AFTER(pointer, x) __asm__("" : "+r"(pointer) : "v"(x))
#define FETCH_BEFORE(pointer, line) __asm__ volatile("prefetcht0 %1" : "+r"(pointer) : "m"(*(const char *)(line)))
FORCE_INLINE int run_of_i32(const int32_t *p, int32_t key)
{
  return __builtin_ctz(~(unsigned)_mm512_cmpeq_epi32_mask(_mm512_loadu_si512(p), _mm512_set1_epi32(key)));
}
FORCE_INLINE int run_of_i64(const int64_t *p, int64_t key)
{
  __m512i wanted = _mm512_set1_epi64(key);
  unsigned low = _mm512_cmpeq_epi64_mask(_mm512_loadu_si512(p), wanted);
  unsigned high = _mm512_cmpeq_epi64_mask(_mm512_loadu_si512(p + 8), wanted);
  return __builtin_ctz(~(low | high << 8));
}
FORCE_INLINE int run_of_shifted(const uint64_t *p, int shift, uint64_t key)
{
  __m512i wanted = _mm512_set1_epi64((int64_t)key);
  unsigned low = _mm512_cmpeq_epi64_mask(_mm512_srli_epi64(_mm512_loadu_si512(p), (unsigned)shift), wanted);
  unsigned high = _mm512_cmpeq_epi64_mask(_mm512_srli_epi64(_mm512_loadu_si512(p + 8), (unsigned)shift), wanted);
  return __builtin_ctz(~(low | high << 8));
}
FORCE_INLINE vec vec_zero(void) { return FLOAT_WORD(setzero)(); }
FORCE_INLINE vec vec_splat(acc x) { return FLOAT_WORD(set1)(x); }
FORCE_INLINE vec vec_load(const acc *p) { return FLOAT_WORD(loadu)(p); }
/* No wider than need be, here and in stores: a load touches both of the lines it crosses, even where no lane lies in the
 * second. */
FORCE_INLINE vec vec_load_part(const acc *p, int lanes)
{
#if ELEMENT_WIDE
  if (lanes <= 2) return _mm512_zextpd128_pd512(_mm_maskz_loadu_pd(first_lanes(lanes), p));
  if (lanes <= 4) return _mm512_zextpd256_pd512(_mm256_maskz_loadu_pd(first_lanes(lanes), p));
#else
  if (lanes <= 4) return _mm512_zextps128_ps512(_mm_maskz_loadu_ps((__mmask8)first_lanes(lanes), p));
  if (lanes <= 8) return _mm512_zextps256_ps512(_mm256_maskz_loadu_ps((__mmask8)first_lanes(lanes), p));
#endif
  return FLOAT_WORD(maskz_loadu)(first_lanes(lanes), p);
}
FORCE_INLINE void vec_store(acc *p, vec x) { FLOAT_WORD(storeu)(p, x); }
FORCE_INLINE void vec_stream(acc *p, vec x) { FLOAT_WORD(stream)(p, x); }
/* Not to be made one instruction with what takes the lower half: that one touches masked lanes' memory, too, and faults. */
#define APART(x) __asm__("" : "+v"(x))
FORCE_INLINE void vec_store_part(acc *p, vec x, int lanes)
{
#if ELEMENT_WIDE
  __m128d two = _mm512_castpd512_pd128(x);
  __m256d four = _mm512_castpd512_pd256(x);
  if (lanes <= 2) {
    APART(two);
    _mm_mask_storeu_pd(p, first_lanes(lanes), two);
  } else if (lanes <= 4) {
    APART(four);
    _mm256_mask_storeu_pd(p, first_lanes(lanes), four);
  } else {
    _mm512_mask_storeu_pd(p, first_lanes(lanes), x);
  }
#else
  __m128 four = _mm512_castps512_ps128(x);
  __m256 eight = _mm512_castps512_ps256(x);
  if (lanes <= 4) {
    APART(four);
    _mm_mask_storeu_ps(p, (__mmask8)first_lanes(lanes), four);
  } else if (lanes <= 8) {
    APART(eight);
    _mm256_mask_storeu_ps(p, (__mmask8)first_lanes(lanes), eight);
  } else {
    _mm512_mask_storeu_ps(p, first_lanes(lanes), x);
  }
#endif
}
FORCE_INLINE vec vec_add(vec a, vec b) { return FLOAT_WORD(add)(a, b); }
FORCE_INLINE vec vec_sub(vec a, vec b) { return FLOAT_WORD(sub)(a, b); }
FORCE_INLINE vec vec_mul(vec a, vec b) { return FLOAT_WORD(mul)(a, b); }
FORCE_INLINE vec vec_div(vec a, vec b) { return FLOAT_WORD(div)(a, b); }
FORCE_INLINE vec vec_fma(vec a, vec b, vec c) { return FLOAT_WORD(fmadd)(a, b, c); }
FORCE_INLINE vec vec_sqrt(vec a) { return FLOAT_WORD(sqrt)(a); }
/* a + b by the units that multiply; the compiler is not to see that b is multiplied by 1. */
#define VEC_ADDS_BY_FMA
FORCE_INLINE vec vec_add_by_fma(vec a, vec b)
{
  vec one = vec_splat(1);
  __asm__("" : "+v"(one));
  return vec_fma(b, one, a);
}
#if ELEMENT_WIDE
FORCE_INLINE acc vec_fold(vec a)
{
  __m256d c = _mm256_add_pd(_mm512_castpd512_pd256(a), _mm512_extractf64x4_pd(a, 1));
  __m128d b = _mm_add_pd(_mm256_castpd256_pd128(c), _mm256_extractf128_pd(c, 1));
  return _mm_cvtsd_f64(_mm_add_sd(b, _mm_unpackhi_pd(b, b)));
}
FORCE_INLINE void vec_fold_four(acc *to, const vec *p)
{
  for (int i = 0; i < 4; i++) to[i] = vec_fold(p[i]);
}
#else
FORCE_INLINE acc vec_fold(vec a)
{
  __m256 c = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
FORCE_INLINE __m256 vec_half(vec a) { return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)); }
FORCE_INLINE void vec_fold_four(acc *to, const vec *p)
{
  __m256 a = vec_half(p[0]), b = vec_half(p[1]), c = vec_half(p[2]), d = vec_half(p[3]);
  __m256 ac = _mm256_add_ps(_mm256_permute2f128_ps(a, c, 0x20), _mm256_permute2f128_ps(a, c, 0x31));
  __m256 bd = _mm256_add_ps(_mm256_permute2f128_ps(b, d, 0x20), _mm256_permute2f128_ps(b, d, 0x31));
  __m256 two = _mm256_add_ps(_mm256_shuffle_ps(ac, bd, 0x44), _mm256_shuffle_ps(ac, bd, 0xEE)); /* a a b b, c c d d */
  __m256 one = _mm256_add_ps(two, _mm256_movehdup_ps(two));
  __m256 even = _mm256_permutevar8x32_ps(one, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
  _mm_storeu_ps(to, _mm256_castps256_ps128(even));
}
#endif
FORCE_INLINE vec vec_select(vmask m, vec yes, vec no) { return FLOAT_WORD(mask_blend)(m, no, yes); }
FORCE_INLINE vint vint_splat(lane_int x) { return INT_WORD(set1)(x); }
FORCE_INLINE vint vint_add(vint a, vint b) { return INT_WORD(add)(a, b); }
FORCE_INLINE vint vint_select(vmask m, vint yes, vint no) { return INT_WORD(mask_blend)(m, no, yes); }
FORCE_INLINE void vint_store(lane_int *p, vint x) { _mm512_storeu_si512(p, x); }

FORCE_INLINE vmask vec_above(vec x, vec best)
{
  return VEC_COMPARE(x, best, _CMP_NLE_UQ) & VEC_COMPARE(best, best, _CMP_ORD_Q);
}
FORCE_INLINE vmask vec_below(vec x, vec best)
{
  return VEC_COMPARE(x, best, _CMP_NGE_UQ) & VEC_COMPARE(best, best, _CMP_ORD_Q);
}
FORCE_INLINE vmask vec_same(vec a, vec b)
{
  return VEC_COMPARE(a, b, _CMP_EQ_OQ) | (VEC_COMPARE(a, a, _CMP_UNORD_Q) & VEC_COMPARE(b, b, _CMP_UNORD_Q));
}
FORCE_INLINE vmask vec_less(vec a, vec b) { return VEC_COMPARE(a, b, _CMP_LT_OQ); }
FORCE_INLINE vec vec_most(vec x, vec best) { return FLOAT_WORD(max)(x, best); }
FORCE_INLINE vec vec_least(vec x, vec best) { return FLOAT_WORD(min)(x, best); }
FORCE_INLINE int vec_any_nan(vec a) { return VEC_COMPARE(a, a, _CMP_UNORD_Q) != 0; }
FORCE_INLINE vmask vec_equal(vec a, vec b) { return VEC_COMPARE(a, b, _CMP_EQ_OQ); }
FORCE_INLINE unsigned vmask_bits(vmask m) { return m; }

#if !ELEMENT_WIDE
/* 16 bits each; no wider than need be (sums of rows of 100 columns of f16 from memory: 18.7 to 12.6 ns). */
FORCE_INLINE __m256i part_load(const uint16_t *p, int lanes)
{
  if (lanes <= 8) return _mm256_zextsi128_si256(_mm_maskz_loadu_epi16((__mmask8)first_lanes(lanes), p));
  return _mm256_maskz_loadu_epi16(first_lanes(lanes), p);
}
FORCE_INLINE void part_store(uint16_t *p, __m256i x, int lanes)
{
  __m128i eight = _mm256_castsi256_si128(x);
  if (lanes <= 8) {
    APART(eight);
    _mm_mask_storeu_epi16(p, (__mmask8)first_lanes(lanes), eight);
  } else {
    _mm256_mask_storeu_epi16(p, first_lanes(lanes), x);
  }
}

FORCE_INLINE vec f16_load(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }
FORCE_INLINE vec f16_load_part(const uint16_t *p, int lanes) { return _mm512_cvtph_ps(part_load(p, lanes)); }
FORCE_INLINE __m256i f16_round(vec x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
FORCE_INLINE void f16_store(uint16_t *p, vec x) { _mm256_storeu_si256((void *)p, f16_round(x)); }
FORCE_INLINE void f16_stream(uint16_t *p, vec x) { _mm256_stream_si256((void *)p, f16_round(x)); }
FORCE_INLINE void f16_store_part(uint16_t *p, vec x, int lanes) { part_store(p, f16_round(x), lanes); }

FORCE_INLINE vec f16_load_exact(const uint16_t *p, int lanes)
{
  __m256i half = lanes ? part_load(p, lanes) : _mm256_loadu_si256((const void *)p);
  vec x = _mm512_cvtph_ps(half);
  vmask nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  if (__builtin_expect(nan == 0, 1)) return x;
  __m512i bits = _mm512_cvtepu16_epi32(half);
  __m512i sign = _mm512_slli_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(0x8000)), 16);
  __m512i payload = _mm512_slli_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(0x3ff)), 13);
  __m512i kept = _mm512_or_si512(_mm512_or_si512(sign, payload), _mm512_set1_epi32(0x7f800000));
  return _mm512_mask_mov_ps(x, nan, _mm512_castsi512_ps(kept));
}
FORCE_INLINE void f16_store_exact(uint16_t *p, vec x, int lanes)
{
  __m256i half = f16_round(x);
  vmask nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  if (__builtin_expect(nan != 0, 0)) {
    __m512i bits = _mm512_castps_si512(x);
    __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x8000));
    __m512i payload = _mm512_and_si512(_mm512_srli_epi32(bits, 13), _mm512_set1_epi32(0x3ff));
    __m512i kept = _mm512_or_si512(_mm512_or_si512(sign, payload), _mm512_set1_epi32(0x7c00));
    half = _mm256_mask_mov_epi16(half, nan, _mm512_cvtepi32_epi16(kept));
  }
  if (lanes)
    part_store(p, half, lanes);
  else
    _mm256_storeu_si256((void *)p, half);
}

FORCE_INLINE vec bf16_widen(__m256i bits)
{
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
FORCE_INLINE vec bf16_load(const uint16_t *p) { return bf16_widen(_mm256_loadu_si256((const void *)p)); }
FORCE_INLINE vec bf16_load_part(const uint16_t *p, int lanes) { return bf16_widen(part_load(p, lanes)); }
#define BF16_PAIRS 1
FORCE_INLINE __mmask32 first_halves(int count) { return (__mmask32)((1ull << count) - 1); }
FORCE_INLINE __m512i halves_load(const uint16_t *p, int count)
{
  if (count <= 8) return _mm512_zextsi128_si512(_mm_maskz_loadu_epi16((__mmask8)first_halves(count), p));
  if (count <= 16) return _mm512_zextsi256_si512(_mm256_maskz_loadu_epi16((__mmask16)first_halves(count), p));
  return _mm512_maskz_loadu_epi16(first_halves(count), p);
}
/* Even columns of two vectors' and odd ones; `count` 0 means all of them. */
FORCE_INLINE void bf16_load_pair(const uint16_t *p, vec *even, vec *odd, int count, const int once)
{
  __m512i both = count ? halves_load(p, count) : _mm512_loadu_si512(p);
  if (once) APART(both); /* or the compiler would have it loaded twice */
  *even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  *odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-65536)));
}
FORCE_INLINE void bf16_put_in_order(vec *even, vec *odd)
{
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  vec low = _mm512_permutex2var_ps(*even, first, *odd);
  *odd = _mm512_permutex2var_ps(*even, second, *odd);
  *even = low;
}
/* To the nearest bf16, in the upper half of each lane; what the lower half holds then is to be thrown away. By integers, since
 * the CPU's own instruction takes denormals for zeros and NaNs for quiet ones. */
FORCE_INLINE __m512i bf16_nearest(vec x)
{
  __m512i bits = _mm512_castps_si512(x);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i near = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  if (__builtin_expect(nan != 0, 0)) {
    __mmask16 lost = _mm512_mask_testn_epi32_mask(nan, bits, _mm512_set1_epi32(0x7f0000)); /* cut down to an infinity */
    near = _mm512_mask_mov_epi32(near, nan, bits);
    near = _mm512_mask_or_epi32(near, lost, near, _mm512_set1_epi32(0x400000));
  }
  return near;
}
/* Where the CPU has that instruction, it does for all other values. */
enum { DENORMAL_OR_NAN = 0x20 | 0x80 | 0x01 };
FORCE_INLINE __m256i bf16_round(vec x)
{
  if (shf_core_rounds_bf16 && !_mm512_fpclass_ps_mask(x, DENORMAL_OR_NAN)) {
    __m256i near;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(near) : "v"(x));
    return near;
  }
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_nearest(x), 16));
}
FORCE_INLINE __m512i bf16_round_pair(vec even, vec odd)
{
  if (shf_core_rounds_bf16 &&
      !(_mm512_fpclass_ps_mask(even, DENORMAL_OR_NAN) | _mm512_fpclass_ps_mask(odd, DENORMAL_OR_NAN))) {
    __m512i near,
        order = _mm512_setr_epi32(0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007,
                                  0x180008, 0x190009, 0x1a000a, 0x1b000b, 0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f);
    __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(near) : "v"(even), "v"(odd));
    return _mm512_permutexvar_epi16(order, near);
  }
  return _mm512_mask_mov_epi16(_mm512_srli_epi32(bf16_nearest(even), 16), 0xaaaaaaaa, bf16_nearest(odd));
}
FORCE_INLINE void bf16_store_pair(uint16_t *p, vec even, vec odd, int count)
{
  if (count)
    _mm512_mask_storeu_epi16(p, first_halves(count), bf16_round_pair(even, odd));
  else
    _mm512_storeu_si512(p, bf16_round_pair(even, odd));
}
FORCE_INLINE void bf16_stream_pair(uint16_t *p, vec even, vec odd)
{
  _mm512_stream_si512((void *)p, bf16_round_pair(even, odd));
}
FORCE_INLINE void bf16_store(uint16_t *p, vec x) { _mm256_storeu_si256((void *)p, bf16_round(x)); }
FORCE_INLINE void bf16_stream(uint16_t *p, vec x) { _mm256_stream_si256((void *)p, bf16_round(x)); }
FORCE_INLINE void bf16_store_part(uint16_t *p, vec x, int lanes) { part_store(p, bf16_round(x), lanes); }

/* 16-bit values + 0: no negative zero, no signalling NaN. */
enum { PLUS_ZERO_LANES = 32 };
FORCE_INLINE __m512i plus_zero_16(const uint16_t *p, short infinity, short quiet)
{
  __m512i x = _mm512_loadu_si512(p);
  x = _mm512_maskz_mov_epi16(_mm512_cmpneq_epi16_mask(x, _mm512_set1_epi16(-32768)), x);
  __m512i size = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
  __mmask32 nan = _mm512_cmpgt_epi16_mask(size, _mm512_set1_epi16(infinity));
  return _mm512_mask_mov_epi16(x, nan, _mm512_or_si512(x, _mm512_set1_epi16(quiet)));
}
#define PLUS_ZERO_STORE(to, x) _mm512_storeu_si512(to, x)
#define PLUS_ZERO_STREAM(to, x) _mm512_stream_si512((void *)(to), x)

FORCE_INLINE vec bytes_widen(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)); }
FORCE_INLINE vec u8_load(const uint8_t *p) { return bytes_widen(_mm_loadu_si128((const void *)p)); }
FORCE_INLINE vec u8_load_part(const uint8_t *p, int lanes)
{
  return bytes_widen(_mm_maskz_loadu_epi8(first_lanes(lanes), p));
}
/* The sixteen values of a row's nibbles, computed once; a nibble then only chooses. The permutation looks at the lowest
 * four bits of a lane, so that what stands above its nibble need not be cleared. */
typedef vec nibble_code;
FORCE_INLINE nibble_code nibble_code_of(acc scale, acc bias)
{
  vec numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return vec_fma(numbers, vec_splat(scale), vec_splat(bias));
}
/* Sums may have their lanes in an order of their own, which takes one instruction less for each row and one more for the
 * sum: column j in lane 2j, column 8 + j in lane 2j + 1. (Bags of 20 rows of 128 columns from memory: 6.4 to 5.6 ns a row.) */
#define U4_MIXED
FORCE_INLINE vec nibbles_choose(__m512i bytes, nibble_code code)
{
  const __m512i shift = _mm512_setr_epi64(0, 4, 8, 12, 16, 20, 24, 28);
  return _mm512_permutexvar_ps(_mm512_srlv_epi64(bytes, shift), code);
}
FORCE_INLINE vec u4_load_mixed(const uint8_t *row, int64_t column, int lanes, nibble_code code)
{
  if (lanes)
    return nibbles_choose(_mm512_broadcastq_epi64(_mm_maskz_loadu_epi8(first_lanes((lanes + 1) / 2), row + column / 2)),
                          code);
  long long eight;
  __builtin_memcpy(&eight, row + column / 2, 8);
  return nibbles_choose(_mm512_set1_epi64(eight), code);
}
FORCE_INLINE vec u4_in_order(vec x)
{
  return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15), x);
}
FORCE_INLINE vec u4_load(const uint8_t *row, int64_t column, nibble_code code)
{
  return u4_in_order(u4_load_mixed(row, column, 0, code));
}
FORCE_INLINE vec u4_load_part(const uint8_t *row, int64_t column, int lanes, nibble_code code)
{
  return u4_in_order(u4_load_mixed(row, column, lanes, code));
}
#endif

FORCE_INLINE void bytes_copy(char *to, const char *from, int64_t bytes)
{
  for (; bytes >= 64; bytes -= 64, to += 64, from += 64) _mm512_storeu_si512(to, _mm512_loadu_si512(from));
  if (bytes > 0) {
    __mmask64 mask = ~0ull >> (64 - bytes);
    _mm512_mask_storeu_epi8(to, mask, _mm512_maskz_loadu_epi8(mask, from));
  }
}

FORCE_INLINE void bytes_stream(char *to, const char *from, int64_t bytes)
{
  for (int64_t at = 0; at < bytes; at += 64) _mm512_stream_si512((void *)(to + at), _mm512_loadu_si512(from + at));
}
FORCE_INLINE void stream_end(void) { _mm_sfence(); }

#endif
