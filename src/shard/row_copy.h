/* shard/row_copy.h: rows copied and added one by one, past the cache where that is better, and asked for before they
 * are needed. */
#ifndef SHF_SHARD_ROW_COPY_H
#define SHF_SHARD_ROW_COPY_H

#include <sheaf/base.h>

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

/* Does items 0 .. count - 1, which move so many bytes, on at most so many threads when that is worth waking them. */
typedef void shf_share_fn(const void *context, int thread, int64_t first, int64_t last);
void shf_share(shf_share_fn *work, const void *context, int64_t count, int64_t bytes, int threads);

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* What is done to rows of so many bytes: a copy, zeros, a sum of elements (F32 or F64), and copies of rows from
 * anywhere, or zeros where there is none, to places that follow each other. Where rows are stored past the cache, `end`
 * follows the last one. */
typedef struct shf_row_ops {
  void (*copy)(char *to, const char *from, int64_t bytes);
  void (*zero)(char *to, int64_t bytes);
  void (*add)(char *to, const char *a, const char *b, int64_t bytes);
  void (*collect)(char *to, const char *const *from, int64_t count, int64_t bytes);
  void (*end)(void);
} shf_row_ops;

/* For `count` rows that are written from `to` on: past the cache when they are too many for it and whole lines. `acc`:
 * of sums. */
const shf_row_ops *shf_row_ops_for(const void *to, int64_t count, int64_t row_bytes, sheaf_dtype acc);

/* The same for rows that stay in the cache. */
const shf_row_ops *shf_row_ops_near(sheaf_dtype acc);

/* ---- Asking for rows --------------------------------------------------------------------------------------------- */

enum { SHF_LINE = 64 };

static inline void shf_ask_for(const char *row, int64_t bytes)
{
  for (int64_t at = 0; at < bytes; at += SHF_LINE) __builtin_prefetch(row + at, 0, 2);
}

/* How many rows are asked for at a time, before those that were asked for last are used. */
enum { SHF_BURST = 128 };
static inline int64_t shf_burst_of(int64_t row_bytes)
{
  enum { AHEAD_BYTES = 8 << 10, AHEAD_LEAST = 4 };
  int64_t burst = AHEAD_BYTES / row_bytes;
  return burst < AHEAD_LEAST ? AHEAD_LEAST : burst > SHF_BURST ? SHF_BURST : burst;
}

#endif
