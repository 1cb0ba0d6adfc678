/* cli/bench_stream.c: memory read, copied, filled, gathered and updated as fast as the machine can, in several ways. */
#include "bench_stream.h"

#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define FORCED static inline __attribute__((always_inline))

enum { LINE = 64 };

/* One cache line, some parts of one; of any type and at any address. */
typedef uint64_t line_words __attribute__((vector_size(64), may_alias, aligned(1)));
typedef uint64_t half_words __attribute__((vector_size(32), may_alias, aligned(1)));
typedef uint64_t pair_words __attribute__((vector_size(16), may_alias, aligned(1)));
typedef uint64_t one_word __attribute__((may_alias, aligned(1)));
typedef uint32_t half_word __attribute__((may_alias, aligned(1)));

/* ---- The ways ------------------------------------------------------------------------------------------------ */

typedef enum fetch { FETCH_NONE, FETCH_L1, FETCH_L2, FETCH_ONCE, FETCH_WRITE } fetch;

typedef struct way {
  const char *name;
  fetch hint;
  int ahead; /* rows (gather, update) or lines (read, copy) between prefetch and use */
  int group; /* rows whose prefetches are issued together; streams of a read; 1: stores past the caches */
} way;

enum { CACHED = 0, PAST_CACHES = 1, LIBRARY = 2 }; /* a copy's or fill's `group` */

static const way read_ways[] = {
  {"no prefetch", FETCH_NONE, 0, 1},    {"L1, 8 lines", FETCH_L1, 8, 1},      {"L1, 32 lines", FETCH_L1, 32, 1},
  {"L2, 32 lines", FETCH_L2, 32, 1},    {"L2, 64 lines", FETCH_L2, 64, 1},    {"once, 32 lines", FETCH_ONCE, 32, 1},
};

static const way copy_ways[] = {
  {"stores past the caches", FETCH_NONE, 0, PAST_CACHES},
  {"stores past the caches, L1, 32 lines", FETCH_L1, 32, PAST_CACHES},
  {"stores past the caches, L2, 64 lines", FETCH_L2, 64, PAST_CACHES},
  {"stores past the caches, once, 32 lines", FETCH_ONCE, 32, PAST_CACHES},
  {"plain stores", FETCH_NONE, 0, CACHED},
  {"memcpy", FETCH_NONE, 0, LIBRARY},
};

static const way fill_ways[] = {
  {"stores past the caches", FETCH_NONE, 0, PAST_CACHES},
  {"plain stores", FETCH_NONE, 0, CACHED},
  {"memset", FETCH_NONE, 0, LIBRARY},
};

static const way gather_ways[] = {
  {"no prefetch", FETCH_NONE, 0, 1},
  {"L1, 8 ahead", FETCH_L1, 8, 1},
  {"L1, 16 ahead", FETCH_L1, 16, 1},
  {"L1, groups of 16", FETCH_L1, 16, 16},
  {"L2, 4 ahead", FETCH_L2, 4, 1},
  {"L2, 8 ahead", FETCH_L2, 8, 1},
  {"L2, 16 ahead", FETCH_L2, 16, 1},
  {"L2, 32 ahead", FETCH_L2, 32, 1},
  {"L2, 64 ahead", FETCH_L2, 64, 1},
  {"L2, 128 ahead", FETCH_L2, 128, 1},
  {"L2, 256 ahead", FETCH_L2, 256, 1},
  {"L2, groups of 8", FETCH_L2, 8, 8},
  {"L2, groups of 16", FETCH_L2, 16, 16},
  {"L2, groups of 32", FETCH_L2, 32, 32},
  {"L2, groups of 64", FETCH_L2, 64, 64},
  {"L2, groups of 128", FETCH_L2, 128, 128},
  {"L2, groups of 256", FETCH_L2, 256, 256},
  {"L2, groups of 16, 32 ahead", FETCH_L2, 32, 16},
  {"L2, groups of 16, 64 ahead", FETCH_L2, 64, 16},
  {"once, 16 ahead", FETCH_ONCE, 16, 1},
};

static const way update_ways[] = {
  {"no prefetch", FETCH_NONE, 0, 1},
  {"L1, 8 ahead", FETCH_L1, 8, 1},
  {"L1, 16 ahead", FETCH_L1, 16, 1},
  {"L2, 8 ahead", FETCH_L2, 8, 1},
  {"L2, 16 ahead", FETCH_L2, 16, 1},
  {"L2, 32 ahead", FETCH_L2, 32, 1},
  {"L2, groups of 16", FETCH_L2, 16, 16},
  {"L2, groups of 32", FETCH_L2, 32, 32},
  {"L2, groups of 64", FETCH_L2, 64, 64},
  {"to write, 8 ahead", FETCH_WRITE, 8, 1},
  {"to write, 16 ahead", FETCH_WRITE, 16, 1},
  {"to write, groups of 16", FETCH_WRITE, 16, 16},
};

#define WAYS(list) {list, (int)(sizeof list / sizeof *list)}
static const struct {
  const way *ways;
  int count;
} ways_of[STREAM_KINDS] = {[STREAM_READ] = WAYS(read_ways),
                           [STREAM_COPY] = WAYS(copy_ways),
                           [STREAM_FILL] = WAYS(fill_ways),
                           [STREAM_GATHER] = WAYS(gather_ways),
                           [STREAM_UPDATE] = WAYS(update_ways)};

const char *stream_kind_name(stream_kind kind)
{
  static const char *const names[STREAM_KINDS] = {"read", "copy", "fill", "gather", "update"};
  return names[kind];
}

int stream_variants(stream_kind kind) { return ways_of[kind].count; }

const char *stream_variant_name(stream_kind kind, int variant) { return ways_of[kind].ways[variant].name; }

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
  if (hint == FETCH_L2) __builtin_prefetch(place, 0, 2);
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

FORCED void fold_row(folded *sum, const char *row, int64_t bytes)
{
  int64_t at = 0;
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
      else fold_row(sum, row, row_bytes);
    }
  }
}

/* The row sizes of the cases as constants too, which brings up to half as much again for rows of a line or two. */
#define USUAL_ROW_BYTES(X) \
  X(4) X(12) X(20) X(32) X(64) X(68) X(128) X(136) X(200) X(256) X(400) X(512) X(1024)

FORCED void visit_rows_by_size(const piece *p, folded *sum, uint64_t nothing, int updates, fetch hint)
{
  switch (p->job->row_bytes) {
#define X(bytes)                                          \
  case bytes:                                             \
    visit_rows(p, sum, nothing, updates, hint, bytes);    \
    break;
    USUAL_ROW_BYTES(X)
#undef X
  default:
    visit_rows(p, sum, nothing, updates, hint, p->job->row_bytes);
  }
}

FORCED void read_lines(const piece *p, folded *sum, fetch hint)
{
  const char *memory = p->job->memory;
  int64_t ahead = p->way->ahead * LINE;
  for (int64_t at = p->from; at < p->to; at += 4 * LINE) {
    for (int64_t line = 0; line < 4 * LINE; line += LINE) fetch_line(memory + at + ahead + line, hint);
    fold_row(sum, memory + at, p->to - at < 4 * LINE ? p->to - at : 4 * LINE);
  }
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

FORCED void do_rows(const piece *p, folded *sum, uint64_t nothing, int updates)
{
  switch (p->way->hint) {
  case FETCH_NONE:
    visit_rows_by_size(p, sum, nothing, updates, FETCH_NONE);
    break;
  case FETCH_L1:
    visit_rows(p, sum, nothing, updates, FETCH_L1, p->job->row_bytes);
    break;
  case FETCH_L2:
    visit_rows_by_size(p, sum, nothing, updates, FETCH_L2);
    break;
  case FETCH_ONCE:
    visit_rows(p, sum, nothing, updates, FETCH_ONCE, p->job->row_bytes);
    break;
  case FETCH_WRITE:
    visit_rows(p, sum, nothing, updates, FETCH_WRITE, p->job->row_bytes);
    break;
  }
}

FORCED void do_read(const piece *p, folded *sum)
{
  switch (p->way->hint) {
  case FETCH_L1:
    read_lines(p, sum, FETCH_L1);
    break;
  case FETCH_L2:
    read_lines(p, sum, FETCH_L2);
    break;
  case FETCH_ONCE:
    read_lines(p, sum, FETCH_ONCE);
    break;
  default:
    read_lines(p, sum, FETCH_NONE);
  }
}

FORCED void do_copy(const piece *p)
{
  if (p->way->group == LIBRARY) memcpy(p->job->target + p->from, p->job->memory + p->from, (size_t)(p->to - p->from));
  else if (p->way->group == CACHED) copy_lines(p, FETCH_NONE, 0);
  else if (p->way->hint == FETCH_L1) copy_lines(p, FETCH_L1, 1);
  else if (p->way->hint == FETCH_L2) copy_lines(p, FETCH_L2, 1);
  else if (p->way->hint == FETCH_ONCE) copy_lines(p, FETCH_ONCE, 1);
  else copy_lines(p, FETCH_NONE, 1);
}

FORCED void do_fill(const piece *p, uint64_t nothing)
{
  if (p->way->group == LIBRARY) memset(p->job->memory + p->from, FILLING, (size_t)(p->to - p->from));
  else if (p->way->group == CACHED) fill_lines(p, nothing, 0);
  else fill_lines(p, nothing, 1);
}

static const volatile uint64_t zero = 0;

FORCED uint64_t do_piece(const piece *p)
{
  folded sum = {0};
  uint64_t nothing = zero;
  switch (p->job->kind) {
  case STREAM_READ:
    do_read(p, &sum);
    break;
  case STREAM_COPY:
    do_copy(p);
    break;
  case STREAM_FILL:
    do_fill(p, nothing);
    break;
  case STREAM_GATHER:
    do_rows(p, &sum, 0, 0);
    break;
  default:
    do_rows(p, &sum, nothing, 1);
  }
#if defined(__x86_64__)
  if (p->way->group == PAST_CACHES) _mm_sfence();
#endif
  sum.a ^= sum.b ^ sum.c ^ sum.d;
  uint64_t all = sum.word ^ sum.pair[0] ^ sum.pair[1];
  for (int i = 0; i < 8; i++) all ^= sum.a[i] ^ sum.half[i % 4];
  return all;
}

/* ---- Instruction sets and threads ---------------------------------------------------------------------------- */

static uint64_t do_piece_plain(const piece *p) { return do_piece(p); }

#if defined(__x86_64__)
__attribute__((target("avx2,prfchw"))) static uint64_t do_piece_avx2(const piece *p) { return do_piece(p); }

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prfchw"))) static uint64_t do_piece_avx512(const piece *p)
{
  return do_piece(p);
}
#endif

static uint64_t (*best_function(void))(const piece *)
{
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return do_piece_avx512;
  if (__builtin_cpu_supports("avx2")) return do_piece_avx2;
#endif
  return do_piece_plain;
}

/* What was read ends here, so that no compiler leaves the reading out. */
static volatile uint64_t sink;

int64_t stream_run(const stream_job *job, int variant)
{
  uint64_t (*function)(const piece *) = best_function(), all = 0;
  int is_rows = job->kind == STREAM_GATHER || job->kind == STREAM_UPDATE;
  int64_t total = is_rows ? job->count : job->bytes / LINE;
  const way *way = &ways_of[job->kind].ways[variant];
#ifdef _OPENMP
#pragma omp parallel for num_threads(job->threads) schedule(static, 1) reduction(^ : all) if (job->threads > 1)
#endif
  for (int i = 0; i < job->threads; i++) {
    int64_t unit = is_rows ? 1 : LINE;
    piece p = {job, way, total * i / job->threads * unit, total * (i + 1) / job->threads * unit};
    all ^= function(&p);
  }
  sink = all;
  if (job->kind == STREAM_GATHER) return job->count * (job->row_bytes + (int64_t)sizeof *job->indices);
  if (job->kind == STREAM_UPDATE) return job->count * (2 * job->row_bytes + (int64_t)sizeof *job->indices);
  return total * LINE * (job->kind == STREAM_COPY ? 2 : 1);
}
