/* cli/bench_stream_loops.h: the loops of bench_stream.c, forced inline so that each instruction set gets its own, with
 * hints and row sizes as constants. */
#ifndef SHEAF_CLI_BENCH_STREAM_LOOPS_H
#define SHEAF_CLI_BENCH_STREAM_LOOPS_H

#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "bench_stream.h"

#define FORCED static inline __attribute__((always_inline))

enum { LINE = 64 };

/* One cache line, some parts of one; of any type and at any address. */
typedef uint64_t line_words __attribute__((vector_size(64), may_alias, aligned(1)));
typedef uint64_t half_words __attribute__((vector_size(32), may_alias, aligned(1)));
typedef uint64_t pair_words __attribute__((vector_size(16), may_alias, aligned(1)));
typedef uint64_t one_word __attribute__((may_alias, aligned(1)));
typedef uint32_t half_word __attribute__((may_alias, aligned(1)));

/* FETCH_MIXED: as FETCH_L2, and the lines of a row are read out of order, lest the CPU's own prefetcher take them for
 * the begin of a stream. */
typedef enum fetch { FETCH_NONE, FETCH_L1, FETCH_L2, FETCH_MIXED, FETCH_ONCE, FETCH_WRITE } fetch;

typedef struct way {
  const char *name;
  fetch hint;
  int ahead; /* rows (gather, update) or lines (read, copy) between prefetch and use */
  int group; /* rows whose prefetches are issued together; BESIDE, BESIDE_TWICE; -n: n rows are read abreast, a few lines of
              * each in turn; of copies and fills, the kind of stores; of reads, the streams */
} way;

/* Instead of a group: each line of a later row is fetched with the line of this one that lies where it does; AGAIN: of a row half as
 * far ahead, too; MIXED: out of order. */
enum { ALONE = 0, BESIDE = 1 << 20, AGAIN = 1 << 21, MIXED = 1 << 22 };

enum { CACHED = 0, PAST_CACHES = 1, LIBRARY = 2 }; /* kinds of stores */

/* ---- Lines and rows ------------------------------------------------------------------------------------------ */

/* What one thread has to do. */
typedef struct piece {
  const stream_job *job;
  const way *way;
  int64_t from, to; /* rows of the index array, or bytes */
} piece;

/* Exclusive-or of everything that was read. */
typedef struct folded {
  line_words a, b, c, d;
  half_words half;
  pair_words pair;
  uint64_t word;
} folded;

/* `hint` is a constant wherever this is inlined. */
FORCED void fetch_line(const char *place, fetch hint)
{
  if (hint == FETCH_L1) __builtin_prefetch(place, 0, 3);
  if (hint == FETCH_L2 || hint == FETCH_MIXED) __builtin_prefetch(place, 0, 2);
  if (hint == FETCH_ONCE) __builtin_prefetch(place, 0, 0);
  if (hint == FETCH_WRITE) __builtin_prefetch(place, 1, 3);
}

FORCED void fetch_row(const char *row, int64_t bytes, fetch hint)
{
  const char *end = row + bytes;
  for (const char *line = row - ((uintptr_t)row & (LINE - 1)); line < end; line += LINE) fetch_line(line, hint);
}

/* The last bytes of a row, fewer than a line, as two pieces that may overlap. */
FORCED void fold_short(folded *sum, const char *row, int64_t bytes)
{
  if (bytes >= 32) {
    sum->half ^= *(const half_words *)row;
    if (bytes > 32) sum->half ^= *(const half_words *)(row + bytes - 32);
  } else if (bytes >= 16) {
    sum->pair ^= *(const pair_words *)row;
    if (bytes > 16) sum->pair ^= *(const pair_words *)(row + bytes - 16);
  } else if (bytes >= 8) {
    sum->word ^= *(const one_word *)row ^ *(const one_word *)(row + bytes - 8);
  } else if (bytes >= 4) {
    sum->word ^= (uint64_t)*(const half_word *)row + *(const half_word *)(row + bytes - 4);
  } else {
    for (int64_t i = 0; i < bytes; i++) sum->word ^= (uint64_t)row[i];
  }
}

/* The compiler moves no load across. */
#define IN_ORDER __asm__ volatile("" ::: "memory")

FORCED void fold_row(folded *sum, const char *row, int64_t bytes, int mixed)
{
  int64_t at = 0;
  for (; mixed && at + 4 * LINE <= bytes; at += 4 * LINE) {
    sum->c ^= *(const line_words *)(row + at + 2 * LINE);
    IN_ORDER;
    sum->a ^= *(const line_words *)(row + at);
    IN_ORDER;
    sum->d ^= *(const line_words *)(row + at + 3 * LINE);
    IN_ORDER;
    sum->b ^= *(const line_words *)(row + at + LINE);
    IN_ORDER;
  }
  for (; at + 4 * LINE <= bytes; at += 4 * LINE) {
    sum->a ^= *(const line_words *)(row + at);
    sum->b ^= *(const line_words *)(row + at + LINE);
    sum->c ^= *(const line_words *)(row + at + 2 * LINE);
    sum->d ^= *(const line_words *)(row + at + 3 * LINE);
  }
  for (; at + LINE <= bytes; at += LINE) sum->a ^= *(const line_words *)(row + at);
  if (at == bytes) return;
  if (at > 0) sum->b ^= *(const line_words *)(row + bytes - LINE);
  else fold_short(sum, row, bytes);
}

/* `nothing` is zero, which the compiler does not know. */
FORCED void update_row(char *row, int64_t bytes, uint64_t nothing)
{
  int64_t at = 0;
  for (; at + LINE <= bytes; at += LINE) *(line_words *)(row + at) ^= nothing;
  if (at + 32 <= bytes) *(half_words *)(row + at) ^= nothing, at += 32;
  if (at + 16 <= bytes) *(pair_words *)(row + at) ^= nothing, at += 16;
  if (at + 8 <= bytes) *(one_word *)(row + at) ^= nothing, at += 8;
  if (at + 4 <= bytes) *(half_word *)(row + at) ^= (uint32_t)nothing, at += 4;
  for (; at < bytes; at++) row[at] = (char)(row[at] ^ (char)nothing);
}

/* ---- The loops, with the hint a constant --------------------------------------------------------------------- */

/* A few lines of each row in turn, and of each row that comes later the same lines are fetched: loads and prefetches
 * alternate, and a page-long row does not send the hardware's prefetcher past its end. Best for rows of 4 KiB and more,
 * where it brings up to 1.5 times as much. */
FORCED void visit_rows_abreast(const piece *p, folded *sum, uint64_t nothing, int updates, fetch hint)
{
  enum { PART = 4 * LINE };
  const stream_job *job = p->job;
  int64_t row_bytes = job->row_bytes, rows = -p->way->group;
  for (int64_t first = p->from; first < p->to; first += rows) {
    int64_t end = first + rows < p->to ? first + rows : p->to;
    for (int64_t at = 0; at < row_bytes; at += PART)
      for (int64_t n = first; n < end; n++) {
        int64_t part = row_bytes - at < PART ? row_bytes - at : PART;
        int64_t later = n + p->way->ahead < p->to ? n + p->way->ahead : n;
        char *place = job->memory + job->indices[n] * job->stride + at;
        fetch_row(job->memory + job->indices[later] * job->stride + at, part, hint);
        if (updates) update_row(place, part, nothing);
        else fold_row(sum, place, part, 0);
      }
  }
}

FORCED void visit_rows(const piece *p, folded *sum, uint64_t nothing, int updates, fetch hint, int64_t row_bytes)
{
  const stream_job *job = p->job;
  const int64_t *indices = job->indices;
  int64_t stride = job->stride, ahead = p->way->ahead, group = p->way->group;
  for (int64_t n = p->from; hint != FETCH_NONE && n < p->from + ahead && n < p->to; n++)
    fetch_row(job->memory + indices[n] * stride, row_bytes, hint);
  for (int64_t first = p->from; first < p->to; first += group) {
    int64_t next = first + ahead, next_end = next + group < p->to ? next + group : p->to;
    int64_t end = first + group < p->to ? first + group : p->to;
    for (int64_t n = next; hint != FETCH_NONE && n < next_end; n++)
      fetch_row(job->memory + indices[n] * stride, row_bytes, hint);
    for (int64_t n = first; n < end; n++) {
      char *row = job->memory + indices[n] * stride;
      if (updates) update_row(row, row_bytes, nothing);
      else fold_row(sum, row, row_bytes, hint == FETCH_MIXED);
    }
  }
}

/* Every line of a row has the same line of a later row fetched in front of it: best where a prefetch that finds no free
 * buffer holds up what follows (Zen 3: 1.5 times any other way). Some prefetches are dropped there; with AGAIN each line
 * is fetched once more, half as far ahead. With MIXED eight and four lines are visited out of order (Zen 5: rows of 256 bytes 2 %, of
 * 16 KiB 17 % faster than any other way). */
FORCED void visit_row_beside(const piece *p, folded *sum, line_words *a, line_words *b, int64_t n, int64_t ahead,
                             uint64_t nothing, int updates, fetch hint, int64_t from, int64_t bytes, int how)
{
  const int twice = how & AGAIN;
  const stream_job *job = p->job;
  char *row = job->memory + job->indices[n] * job->stride + from;
  const char *later = job->memory + job->indices[n + ahead] * job->stride + from;
  const char *again = twice ? job->memory + job->indices[n + ahead / 2] * job->stride + from : NULL;
  int64_t at = 0;
#define LINES_MIXED(lines, step, first)                                            \
  for (; how & MIXED && at + (lines)*LINE <= bytes; at += (lines)*LINE)            \
    for (int i = 0; i < (lines); i++) {                                            \
      const int64_t line = at + ((step)*i + (first)) % (lines) * LINE;             \
      fetch_line(later + line, hint);                                              \
      if (twice) fetch_line(again + line, hint);                                   \
      *(i % 2 ? b : a) ^= *(const line_words *)(row + line);                       \
      IN_ORDER;                                                                    \
    }
  LINES_MIXED(8, 5, 4)
  LINES_MIXED(4, 3, 0)
#undef LINES_MIXED
  for (; at + LINE <= bytes; at += LINE) {
    fetch_line(later + at, hint);
    if (twice) fetch_line(again + at, hint);
    if (updates) update_row(row + at, LINE, nothing);
    else if (at / LINE % 2) *b ^= *(const line_words *)(row + at);
    else *a ^= *(const line_words *)(row + at);
  }
  if (at == bytes) return;
  fetch_line(later + at, hint);
  fetch_line(later + bytes - 1, hint);
  if (twice) fetch_line(again + bytes - 1, hint);
  if (updates) update_row(row + at, bytes - at, nothing);
  else fold_short(sum, row + at, bytes - at);
}

FORCED void visit_rows_beside(const piece *p, folded *sum, uint64_t nothing, int updates, fetch hint, int64_t row_bytes,
                              int how)
{
  enum { PART = 4 * LINE, ROWS = 32 }; /* wide rows by parts, as they are summed: of so many rows one each */
  const int by_parts = how & AGAIN && !(how & MIXED) && row_bytes % PART == 0;
  const int64_t part = by_parts ? PART : row_bytes, rows = part < row_bytes ? ROWS : 1;
  const int64_t ahead = p->way->ahead, last = p->to - ahead - rows;
  line_words a = {0}, b = {0}; /* few instructions: what waits beyond the CPU's window asks for nothing */
  int64_t n = p->from;
  for (; n < last; n += rows)
    for (int64_t at = 0; at < row_bytes; at += part)
      for (int64_t r = n; r < n + rows; r++)
        visit_row_beside(p, sum, &a, &b, r, ahead, nothing, updates, hint, at, part, how);
  for (; n < p->to; n++) visit_row_beside(p, sum, &a, &b, n, 0, nothing, updates, hint, 0, row_bytes, BESIDE);
  sum->a ^= a;
  sum->b ^= b;
}

/* The row sizes of the cases as constants too, which brings up to half as much again for rows of a line or two. */
#define USUAL_ROW_BYTES(X) \
  X(4) X(12) X(20) X(32) X(64) X(68) X(128) X(136) X(200) X(256) X(400) X(512) X(1024)

FORCED void visit_rows_of(const piece *p, folded *sum, uint64_t nothing, int updates, fetch hint, int64_t row_bytes, int how)
{
  if (how) visit_rows_beside(p, sum, nothing, updates, hint, row_bytes, how);
  else visit_rows(p, sum, nothing, updates, hint, row_bytes);
}

FORCED void visit_rows_by_size(const piece *p, folded *sum, uint64_t nothing, int updates, fetch hint, int how)
{
  switch (p->job->row_bytes) {
#define X(bytes)                                                     \
  case bytes:                                                        \
    visit_rows_of(p, sum, nothing, updates, hint, bytes, how);       \
    break;
    USUAL_ROW_BYTES(X)
#undef X
  default:
    visit_rows_of(p, sum, nothing, updates, hint, p->job->row_bytes, how);
  }
}

/* In one stream or in several at once, each of which the CPU's own prefetcher follows. */
FORCED void read_lines(const piece *p, folded *sum, fetch hint)
{
  enum { STEP = 4 * LINE };
  const char *memory = p->job->memory;
  const int64_t ahead = p->way->ahead * LINE, streams = p->way->group;
  const int64_t each = (p->to - p->from) / streams / STEP * STEP, rest = p->from + streams * each;
  for (int64_t at = p->from; at < p->from + each; at += STEP)
    for (int64_t s = 0; s < streams; s++) {
      for (int64_t line = 0; line < STEP; line += LINE) fetch_line(memory + at + s * each + ahead + line, hint);
      fold_row(sum, memory + at + s * each, STEP, 0);
    }
  for (int64_t at = rest; at < p->to; at += STEP) fold_row(sum, memory + at, p->to - at < STEP ? p->to - at : STEP, 0);
}

FORCED void store_line(char *target, const line_words *line, int past_caches)
{
#if defined(__x86_64__)
  if (past_caches) {
    __m128i parts[4];
    memcpy(parts, line, sizeof parts);
    for (int i = 0; i < 4; i++) _mm_stream_si128((__m128i *)(void *)target + i, parts[i]);
    return;
  }
#else
  (void)past_caches;
#endif
  *(line_words *)target = *line;
}

/* Whole lines; the memory is aligned to them. */
FORCED void copy_lines(const piece *p, fetch hint, int past_caches)
{
  const char *memory = p->job->memory;
  int64_t ahead = p->way->ahead * LINE, last = p->to - (p->to - p->from) % LINE;
  for (int64_t at = p->from; at < last; at += LINE) {
    fetch_line(memory + at + ahead, hint);
    line_words line = *(const line_words *)(memory + at);
    store_line(p->job->target + at, &line, past_caches);
  }
}

/* Not zeros, which memory may hold in shorter form. */
enum { FILLING = 0x3c };

FORCED void fill_lines(const piece *p, uint64_t nothing, int past_caches)
{
  line_words line = (line_words){0} ^ (nothing + 0x0101010101010101u * FILLING);
  int64_t last = p->to - (p->to - p->from) % LINE;
  for (int64_t at = p->from; at < last; at += LINE) store_line(p->job->memory + at, &line, past_caches);
}

#endif
