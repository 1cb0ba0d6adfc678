/* shard/row_copy.c: see row_copy.h. */
#include "shard/row_copy.h"

#include <omp.h>
#include <string.h>

#include "core/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define WITH_AVX512 __attribute__((target("avx512f")))
#endif

void shf_share(shf_share_fn *work, const void *context, int64_t count, int64_t bytes, int threads)
{
  enum { WORTH = 1 << 20 };
  if (threads <= 1 || bytes < WORTH || shf_core_alone()) {
    work(context, 0, 0, count);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    int64_t parts = omp_get_num_threads(), part = omp_get_thread_num();
    work(context, (int)part, count / parts * part + (count % parts) * part / parts,
         count / parts * (part + 1) + (count % parts) * (part + 1) / parts);
  }
}

/* ---- Into the cache ---------------------------------------------------------------------------------------------- */

static void copy_near(char *to, const char *from, int64_t bytes) { memcpy(to, from, (size_t)bytes); }
static void zero_near(char *to, int64_t bytes) { memset(to, 0, (size_t)bytes); }
static void end_near(void) {}

static void collect_near(char *to, const char *const *from, int64_t count, int64_t bytes)
{
  for (int64_t i = 0; i < count; i++, to += bytes)
    if (from[i])
      copy_near(to, from[i], bytes);
    else
      zero_near(to, bytes);
}

static void add_f32(char *to, const char *a, const char *b, int64_t bytes)
{
  float *sum = (float *)(void *)to;
  const float *x = (const float *)(const void *)a, *y = (const float *)(const void *)b;
  for (int64_t i = 0; i < bytes / 4; i++) sum[i] = x[i] + y[i];
}

static void add_f64(char *to, const char *a, const char *b, int64_t bytes)
{
  double *sum = (double *)(void *)to;
  const double *x = (const double *)(const void *)a, *y = (const double *)(const void *)b;
  for (int64_t i = 0; i < bytes / 8; i++) sum[i] = x[i] + y[i];
}

static const shf_row_ops near_f32 = {copy_near, zero_near, add_f32, collect_near, end_near};
static const shf_row_ops near_f64 = {copy_near, zero_near, add_f64, collect_near, end_near};

const shf_row_ops *shf_row_ops_near(sheaf_dtype acc) { return acc == SHEAF_F64 ? &near_f64 : &near_f32; }

/* ---- Past it: whole lines ---------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
static void end_stream(void) { _mm_sfence(); }

static void copy_sse2(char *to, const char *from, int64_t bytes)
{
  for (int64_t at = 0; at < bytes; at += 16)
    _mm_stream_si128((__m128i *)(void *)(to + at), _mm_loadu_si128((const __m128i *)(const void *)(from + at)));
}

static void zero_sse2(char *to, int64_t bytes)
{
  for (int64_t at = 0; at < bytes; at += 16) _mm_stream_si128((__m128i *)(void *)(to + at), _mm_setzero_si128());
}

static void collect_sse2(char *to, const char *const *from, int64_t count, int64_t bytes)
{
  for (int64_t i = 0; i < count; i++, to += bytes)
    if (from[i])
      copy_sse2(to, from[i], bytes);
    else
      zero_sse2(to, bytes);
}

static void add_f32_sse2(char *to, const char *a, const char *b, int64_t bytes)
{
  for (int64_t at = 0; at < bytes; at += 16)
    _mm_stream_ps((float *)(void *)(to + at), _mm_add_ps(_mm_loadu_ps((const float *)(const void *)(a + at)),
                                                         _mm_loadu_ps((const float *)(const void *)(b + at))));
}

static void add_f64_sse2(char *to, const char *a, const char *b, int64_t bytes)
{
  for (int64_t at = 0; at < bytes; at += 16)
    _mm_stream_pd((double *)(void *)(to + at), _mm_add_pd(_mm_loadu_pd((const double *)(const void *)(a + at)),
                                                          _mm_loadu_pd((const double *)(const void *)(b + at))));
}

/* A line at a time: one that is stored in pieces may go to memory in pieces. */
WITH_AVX512 static void copy_avx512(char *to, const char *from, int64_t bytes)
{
  for (int64_t at = 0; at < bytes; at += 64)
    _mm512_stream_si512((__m512i *)(void *)(to + at), _mm512_loadu_si512(from + at));
}

WITH_AVX512 static void zero_avx512(char *to, int64_t bytes)
{
  for (int64_t at = 0; at < bytes; at += 64) _mm512_stream_si512((__m512i *)(void *)(to + at), _mm512_setzero_si512());
}

WITH_AVX512 static void collect_avx512(char *to, const char *const *from, int64_t count, int64_t bytes)
{
  for (int64_t i = 0; i < count; i++, to += bytes)
    if (from[i])
      copy_avx512(to, from[i], bytes);
    else
      zero_avx512(to, bytes);
}

WITH_AVX512 static void add_f32_avx512(char *to, const char *a, const char *b, int64_t bytes)
{
  for (int64_t at = 0; at < bytes; at += 64)
    _mm512_stream_ps((float *)(void *)(to + at), _mm512_add_ps(_mm512_loadu_ps(a + at), _mm512_loadu_ps(b + at)));
}

WITH_AVX512 static void add_f64_avx512(char *to, const char *a, const char *b, int64_t bytes)
{
  for (int64_t at = 0; at < bytes; at += 64)
    _mm512_stream_pd((double *)(void *)(to + at), _mm512_add_pd(_mm512_loadu_pd(a + at), _mm512_loadu_pd(b + at)));
}

static const shf_row_ops stream_f32[2] = {{copy_sse2, zero_sse2, add_f32_sse2, collect_sse2, end_stream},
                                          {copy_avx512, zero_avx512, add_f32_avx512, collect_avx512, end_stream}};
static const shf_row_ops stream_f64[2] = {{copy_sse2, zero_sse2, add_f64_sse2, collect_sse2, end_stream},
                                          {copy_avx512, zero_avx512, add_f64_avx512, collect_avx512, end_stream}};

const shf_row_ops *shf_row_ops_for(const void *to, int64_t count, int64_t row_bytes, sheaf_dtype acc)
{
  enum { STREAM_BYTES = 8 << 20 };
  int wide = sheaf_isa_current() >= SHEAF_ISA_AVX512;
  if (count * row_bytes < STREAM_BYTES || (uintptr_t)to % SHF_LINE != 0 || row_bytes % SHF_LINE != 0)
    return shf_row_ops_near(acc);
  return acc == SHEAF_F64 ? &stream_f64[wide] : &stream_f32[wide];
}
#else
const shf_row_ops *shf_row_ops_for(const void *to, int64_t count, int64_t row_bytes, sheaf_dtype acc)
{
  (void)to, (void)count, (void)row_bytes;
  return shf_row_ops_near(acc);
}
#endif
