/* shard/row_copy.h: rows copied one by one, past the cache where that is better, and asked for before they are needed. */
#ifndef SHF_SHARD_ROW_COPY_H
#define SHF_SHARD_ROW_COPY_H

#include <omp.h>
#include <string.h>

#include "core/cpu.h"
#include "shard/shard_call.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* ---- Threads ------------------------------------------------------------------------------------------------------ */

typedef void shf_share_fn(const void *context, int thread, int64_t first, int64_t last);

/* Does items 0 .. count - 1, which move so many bytes, on at most so many threads when that is worth waking them. */
static inline void shf_share(shf_share_fn *work, const void *context, int64_t count, int64_t bytes, int threads)
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

/* ---- Copying ------------------------------------------------------------------------------------------------------ */

enum { SHF_LINE = 64 };

/* Whether rows are stored past the cache: there are too many for it, and they are whole lines. */
static inline int shf_is_streamed(const void *to, int64_t count, int64_t row_bytes)
{
  enum { STREAM_BYTES = 8 << 20 };
  return count * row_bytes >= STREAM_BYTES && (uintptr_t)to % SHF_LINE == 0 && row_bytes % SHF_LINE == 0;
}

static inline void shf_copy_row(char *to, const char *from, int64_t bytes, int streamed)
{
#if defined(__SSE2__)
  if (streamed) {
    for (int64_t at = 0; at < bytes; at += SHF_LINE)
      for (int64_t word = at; word < at + SHF_LINE; word += 16)
        _mm_stream_si128((__m128i *)(void *)(to + word), _mm_loadu_si128((const __m128i *)(const void *)(from + word)));
    return;
  }
#else
  (void)streamed;
#endif
  memcpy(to, from, (size_t)bytes);
}

static inline void shf_end_stream(int streamed)
{
#if defined(__SSE2__)
  if (streamed) _mm_sfence();
#else
  (void)streamed;
#endif
}

/* ---- Asking for rows ---------------------------------------------------------------------------------------------- */

static inline void shf_ask_for(const char *row, int64_t bytes)
{
  for (int64_t at = 0; at < bytes; at += SHF_LINE) __builtin_prefetch(row + at, 0, 2);
}

/* How many rows are asked for at a time, before those that were asked for last are used. */
static inline int64_t shf_burst_of(int64_t row_bytes)
{
  enum { AHEAD_BYTES = 12 << 10, AHEAD_LEAST = 4, AHEAD_MOST = 128 };
  int64_t burst = AHEAD_BYTES / row_bytes;
  return burst < AHEAD_LEAST ? AHEAD_LEAST : burst > AHEAD_MOST ? AHEAD_MOST : burst;
}

#endif
