/* cli/bench_stream.c: memory read, copied, filled, gathered and updated as fast as the machine can, in several ways. */
#include "bench_stream.h"

#include <string.h>

#include "bench_stream_loops.h"

/* ---- The ways ------------------------------------------------------------------------------------------------ */

static const way read_ways[] = {
  {"no prefetch", FETCH_NONE, 0, 1},    {"L1, 8 lines", FETCH_L1, 8, 1},      {"L1, 32 lines", FETCH_L1, 32, 1},
  {"L2, 32 lines", FETCH_L2, 32, 1},    {"L2, 64 lines", FETCH_L2, 64, 1},    {"once, 32 lines", FETCH_ONCE, 32, 1},
  {"2 streams", FETCH_NONE, 0, 2},      {"2 streams, L1, 32 lines", FETCH_L1, 32, 2},
  {"4 streams", FETCH_NONE, 0, 4},      {"4 streams, L1, 8 lines", FETCH_L1, 8, 4},
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
  {"L2, 1 ahead", FETCH_L2, 1, 1},
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
  {"L2, 64 ahead, lines mixed", FETCH_MIXED, 64, 1},
  {"L2, groups of 4, 64 ahead, lines mixed", FETCH_MIXED, 64, 4},
  {"L2, groups of 8, 32 ahead, lines mixed", FETCH_MIXED, 32, 8},
  {"L2, groups of 32, 64 ahead, lines mixed", FETCH_MIXED, 64, 32},
  {"L2, groups of 128, lines mixed", FETCH_MIXED, 128, 128},
  {"once, 16 ahead", FETCH_ONCE, 16, 1},
  {"L2, 1 ahead, line by line", FETCH_L2, 1, -1},
  {"L2, 4 ahead, line by line", FETCH_L2, 4, -1},
  {"L2, 8 rows abreast, next 8", FETCH_L2, 8, -8},
  {"L2, 8 rows abreast, 16 ahead", FETCH_L2, 16, -8},
  {"L2, 8 rows abreast, 32 ahead", FETCH_L2, 32, -8},
  {"L2, 4 rows abreast, 8 ahead", FETCH_L2, 8, -4},
  {"L1, 8 ahead, beside", FETCH_L1, 8, BESIDE},
  {"L1, 16 ahead, beside", FETCH_L1, 16, BESIDE},
  {"L1, 64 ahead, beside", FETCH_L1, 64, BESIDE},
  {"L1, 8 and 4 ahead, beside", FETCH_L1, 8, BESIDE | AGAIN},
  {"L1, 16 and 8 ahead, beside", FETCH_L1, 16, BESIDE | AGAIN},
  {"L1, 32 and 16 ahead, beside", FETCH_L1, 32, BESIDE | AGAIN},
  {"L1, 64 and 32 ahead, beside", FETCH_L1, 64, BESIDE | AGAIN},
  {"L1, 12 ahead, beside, lines mixed", FETCH_L1, 12, BESIDE | MIXED},
  {"L1, 24 ahead, beside, lines mixed", FETCH_L1, 24, BESIDE | MIXED},
  {"L1, 48 ahead, beside, lines mixed", FETCH_L1, 48, BESIDE | MIXED},
  {"L1, 96 ahead, beside, lines mixed", FETCH_L1, 96, BESIDE | MIXED},
  {"L1, 24 and 12 ahead, beside, lines mixed", FETCH_L1, 24, BESIDE | AGAIN | MIXED},
  {"L1, 48 and 24 ahead, beside, lines mixed", FETCH_L1, 48, BESIDE | AGAIN | MIXED},
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
  {"L2, 4 ahead, line by line", FETCH_L2, 4, -1},
  {"L2, 8 rows abreast, 16 ahead", FETCH_L2, 16, -8},
  {"L1, 16 ahead, beside", FETCH_L1, 16, BESIDE},
};

_Static_assert(sizeof gather_ways / sizeof *gather_ways <= STREAM_MOST_VARIANTS, "all ways are tried"); /* the longest list */

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

/* ---- Constants for the loops ------------------------------------------------------------------------------------ */

FORCED void do_rows(const piece *p, folded *sum, uint64_t nothing, int updates)
{
  if (p->way->group < 0) {
    visit_rows_abreast(p, sum, nothing, updates, FETCH_L2);
    return;
  }
  switch (p->way->group) { /* of updates there is only the first */
  case BESIDE:
    visit_rows_by_size(p, sum, nothing, updates, FETCH_L1, BESIDE);
    return;
  case BESIDE | AGAIN:
    if (!updates) visit_rows_by_size(p, sum, nothing, 0, FETCH_L1, BESIDE | AGAIN);
    return;
  case BESIDE | MIXED:
    if (!updates) visit_rows_by_size(p, sum, nothing, 0, FETCH_L1, BESIDE | MIXED);
    return;
  case BESIDE | AGAIN | MIXED:
    if (!updates) visit_rows_by_size(p, sum, nothing, 0, FETCH_L1, BESIDE | AGAIN | MIXED);
    return;
  default:;
  }
  switch (p->way->hint) {
  case FETCH_NONE:
    visit_rows_by_size(p, sum, nothing, updates, FETCH_NONE, ALONE);
    break;
  case FETCH_L1:
    visit_rows(p, sum, nothing, updates, FETCH_L1, p->job->row_bytes);
    break;
  case FETCH_L2:
    visit_rows_by_size(p, sum, nothing, updates, FETCH_L2, ALONE);
    break;
  case FETCH_MIXED:
    visit_rows_by_size(p, sum, nothing, updates, FETCH_MIXED, ALONE);
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
  if (p->job->kind == STREAM_COPY || p->job->kind == STREAM_FILL) _mm_sfence();
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
