/* split.c: divides a stage among threads by entries, wherever groups begin and end, and joins the groups that it
 * cut. */
#define _GNU_SOURCE
#include <omp.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "plan/plan_impl.h"

/* ---- Threads ---- */

void shf_plan_parallel(int threads, shf_task *task, void *context)
{
  if (threads == 1 || shf_core_alone()) {
    unsigned mode = shf_core_fp_enter();
    for (int t = 0; t < threads; t++) task(context, t);
    shf_core_fp_leave(mode);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    unsigned mode = shf_core_fp_enter();
    for (int t = omp_get_thread_num(); t < threads; t += omp_get_num_threads()) task(context, t);
    shf_core_fp_leave(mode);
  }
}

/* SHEAF_TEST_SPLIT=1 makes every run use all the threads it may, fetch rows early and store past the cache, so that
 * small problems of tests take the ways of large ones; 2 only the first of these. Both join smaller groups together. */
enum { SPLIT_AS_LARGE = 1, SPLIT_THREADS = 2 };
static int test_split(void)
{
  static atomic_int decided = -1;
  int value = atomic_load_explicit(&decided, memory_order_relaxed);
  if (value >= 0) return value;
  const char *wish = secure_getenv("SHEAF_TEST_SPLIT");
  value = !wish ? 0 : *wish == '1' ? SPLIT_AS_LARGE : *wish == '2' ? SPLIT_THREADS : 0;
  atomic_store(&decided, value);
  return value;
}

/* One thread moves some 10 GB/s, so a share of this size lasts 10 microseconds, and waking threads for less is a
 * loss. All threads or one: OpenMP's runtime ends and makes threads when teams of different sizes follow each other,
 * which made a gradient on 16 cores, grouped by 6 threads and added up by 16, ten times as slow. */
enum { SHARE_BYTES = 100 << 10, THREADS_A_SHARE = 4 };

int shf_plan_worth(int64_t bytes, int limit)
{
  if (limit <= 1) return 1;
  if (test_split()) return limit;
  int64_t shares = bytes / SHARE_BYTES;
  return shares >= 2 && shares >= limit / THREADS_A_SHARE ? limit : 1;
}

enum { CACHED_BYTES = 1 << 20, AHEAD_LEAST = 8, STREAM_BYTES = 4 << 20 };

int64_t shf_plan_ahead(int64_t rows, int64_t row_bytes, int64_t bytes, int64_t most)
{
  if (row_bytes == 0 || (rows <= CACHED_BYTES / row_bytes && test_split() != SPLIT_AS_LARGE)) return 0;
  int64_t ahead = bytes / row_bytes;
  return ahead < AHEAD_LEAST ? AHEAD_LEAST : ahead > most ? most : ahead;
}

int shf_plan_streams(const shf_matrix *target, int64_t rows, int64_t row_bytes)
{
  uintptr_t places = (uintptr_t)target->data | (uintptr_t)target->row_stride | (uintptr_t)target->batch_stride;
  if ((places | (uintptr_t)row_bytes) % 64 != 0) return 0;
  return (double)rows * (double)row_bytes >= STREAM_BYTES || test_split() == SPLIT_AS_LARGE;
}

int64_t shf_plan_slots(int64_t entries_of_batch, int64_t entries, int threads)
{
  return threads > 1 && entries > SHF_CHUNK ? entries_of_batch / SHF_CHUNK + 1 + threads : 0;
}

/* ---- Boundaries ---- */

/* A place between two threads' shares, over all problems: before `entry`, in `group`. When cut, the group spans
 * start .. end and the entry lies inside, a multiple of SHF_CHUNK from its start. */
typedef struct boundary {
  int64_t entry, group;
  int64_t start, end;
  int64_t slot; /* cut: slot of the group's first chunk */
  int cut;
  int first;          /* cut: number of the first boundary in this group; there: */
  atomic_int awaited; /* so many shares of it are not there yet */
} boundary;

typedef struct split {
  const shf_stage *stage;
  int threads;
  int64_t entries, groups; /* over all problems */
  boundary bounds[SHF_MAX_THREADS + 1];
} split;

/* First entry of a bag, counted over all problems; bag may be one past the last. */
static int64_t bag_start(const split *s, int64_t bag)
{
  const shf_job *job = s->stage->job;
  if (bag == s->groups) return s->entries;
  int64_t problem = bag / job->groups, local = bag % job->groups;
  if (job->bag_length >= 0) return problem * job->entries + local * job->bag_length;
  return problem * job->entries +
         shf_plan_index_at(job->offsets.data + problem * job->offsets.batch_stride, local, job->offsets_wide);
}

/* The group of an entry, over all problems. Bad ids, which lie at either end of sorted ones, count as the nearest
 * place. */
static int64_t key_of(const split *s, int64_t entry)
{
  const shf_stage *stage = s->stage;
  const shf_job *job = stage->job;
  if (stage->axis == SHF_BY_GROUPED) return (int64_t)(job->grouped.entries[entry] >> job->grouped.shift);
  int64_t problem = entry / job->entries;
  int64_t id =
      shf_plan_index_at(job->index.data + problem * job->index.batch_stride, entry % job->entries, stage->wide);
  if (id < 0) id = 0;
  if (id > job->groups) id = job->groups;
  return problem * job->groups + id;
}

static int is_bad_id(const split *s, int64_t entry)
{
  const shf_stage *stage = s->stage;
  const shf_job *job = stage->job;
  if (stage->axis != SHF_BY_IDS) return 0;
  int64_t problem = entry / job->entries;
  int64_t id =
      shf_plan_index_at(job->index.data + problem * job->index.batch_stride, entry % job->entries, stage->wide);
  return id < 0 || id >= job->groups;
}

/* Moves an entry inside a group forward to the next place where it may be cut. */
static void align(boundary *b)
{
  int64_t into = b->entry - b->start;
  b->entry = b->start + (into + SHF_CHUNK - 1) / SHF_CHUNK * SHF_CHUNK;
  b->cut = b->entry > b->start && b->entry < b->end;
  if (b->cut || b->entry == b->start) return;
  b->entry = b->end;
  b->group++;
}

/* Work is entries and groups alike: the boundary at `place` has so many of both before it. */
static boundary boundary_by_offsets(const split *s, int64_t place)
{
  int64_t low = 0, high = s->groups + 1; /* bag_start(low) + low <= place; not so for high */
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (bag_start(s, middle) + middle <= place)
      low = middle;
    else
      high = middle;
  }
  if (low == s->groups) return (boundary){.entry = s->entries, .group = s->groups};
  boundary b = {.group = low, .start = bag_start(s, low), .end = bag_start(s, low + 1)};
  b.entry = place - low < b.end ? place - low : b.end;
  align(&b);
  return b;
}

/* The first entry in low .. high - 1 whose key is at least `key` (or greater). A bad id that counts as this key is a
 * negative one before the problem's first group, since the search stays within one problem. */
static int64_t search_key(const split *s, int64_t low, int64_t high, int64_t key, int greater)
{
  while (low < high) {
    int64_t middle = low + (high - low) / 2, here = key_of(s, middle);
    int before = greater ? here <= key : here < key;
    if (here == key && is_bad_id(s, middle)) before = 1;
    if (before)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static boundary boundary_by_keys(const split *s, int64_t place)
{
  const shf_job *job = s->stage->job;
  int64_t low = 0, high = s->entries; /* the first entry with entry + (fill ? key : 0) >= place */
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (middle + (job->fill ? key_of(s, middle) : 0) < place)
      low = middle + 1;
    else
      high = middle;
  }
  boundary b = {.entry = low, .group = s->groups};
  int64_t key = low < s->entries ? key_of(s, low) : s->groups;
  if (job->fill && low + key > place) { /* in a gap between groups, or right behind the last entry of one */
    b.group = place - low;
    if (low > 0 && !is_bad_id(s, low - 1) && key_of(s, low - 1) >= b.group) b.group = key_of(s, low - 1) + 1;
    return b;
  }
  if (low == s->entries) return b;
  b.group = key;
  if (is_bad_id(s, low)) return b;
  int64_t problem = s->stage->axis == SHF_BY_IDS ? low / job->entries : 0;
  int64_t first = s->stage->axis == SHF_BY_IDS ? problem * job->entries : 0;
  int64_t last = s->stage->axis == SHF_BY_IDS ? first + job->entries : s->entries;
  b.start = search_key(s, first, low, key, 0);
  b.end = search_key(s, low, last, key, 1);
  align(&b);
  return b;
}

static void find_boundaries(split *s)
{
  int grouped_by_keys = s->stage->axis != SHF_BY_OFFSETS;
  int64_t places = s->entries + (!grouped_by_keys || s->stage->job->fill ? s->groups : 0);
  s->bounds[0] = (boundary){0};
  s->bounds[s->threads] = (boundary){.entry = s->entries, .group = s->groups};
  for (int t = 1; t < s->threads; t++) {
    int64_t place = shf_plan_share(places, t, s->threads);
    boundary *b = &s->bounds[t], *before = b - 1;
    *b = grouped_by_keys ? boundary_by_keys(s, place) : boundary_by_offsets(s, place);
    if (!b->cut) continue;
    const int begins = !(before->cut && before->group == b->group);
    b->first = begins ? t : before->first;
    b->slot = begins ? b->start / SHF_CHUNK + t : before->slot;
    s->bounds[b->first].awaited += begins ? 2 : 1;
  }
}

/* ---- Shares ---- */

/* First entry of a problem, over all problems. */
static int64_t problem_start(const split *s, int64_t problem)
{
  const shf_job *job = s->stage->job;
  return s->stage->axis == SHF_BY_GROUPED ? job->grouped.problem_start[problem] : problem * job->entries;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static void run_groups(const split *s, int thread)
{
  const shf_stage *stage = s->stage;
  const boundary *from = &s->bounds[thread], *to = from + 1;
  int64_t per_problem = stage->job->groups, last_group = to->group + to->cut;
  if (from->cut && from->entry == to->entry) return; /* both ends were moved to the same cut */
  for (int64_t p = from->group / per_problem; p < stage->batch && p * per_problem < last_group; p++) {
    int64_t base = problem_start(s, p), group_base = p * per_problem;
    shf_part part = {.problem = p, .scratch = stage->scratch + thread * stage->scratch_bytes};
    part.first_entry = larger(from->entry, base) - base;
    part.last_entry = smaller(to->entry, problem_start(s, p + 1)) - base;
    part.first_group = larger(from->group - group_base, 0);
    part.last_group = smaller(last_group - group_base, per_problem);
    part.head_start = part.first_entry;
    part.tail_end = part.last_entry;
    if (from->cut && p == from->group / per_problem) {
      part.head_start = from->start - base;
      part.head_slot = from->slot;
    }
    if (to->cut && p == to->group / per_problem) {
      part.tail_end = to->end - base;
      part.tail_slot = to->slot;
    }
    if (part.first_entry < part.last_entry || part.first_group < part.last_group) stage->run(stage->job, &part);
  }
}

static void run_entries(const split *s, int thread)
{
  const shf_stage *stage = s->stage;
  int64_t per_problem = stage->job->entries;
  int64_t at = shf_plan_share(s->entries, thread, s->threads);
  int64_t last = shf_plan_share(s->entries, thread + 1, s->threads);
  while (at < last) {
    int64_t p = at / per_problem, first = at % per_problem;
    shf_part part = {.problem = p, .first_entry = first, .last_entry = smaller(per_problem, first + last - at)};
    stage->run(stage->job, &part);
    at += part.last_entry - first;
  }
}

/* ---- Joining ---- */

static int64_t chunks_of(const boundary *b) { return (b->end - b->start + SHF_CHUNK - 1) / SHF_CHUNK; }

/* A group of so many terms that all threads join it, once they are done with everything else. A smaller one is joined by the last
 * of those that have a share of it: bags of 500 rows took 55 of 230 microseconds more on 16 cores when all waited for each
 * other. */
static int joins_together(const split *s, const boundary *b)
{
  enum { TOGETHER_BYTES = 256 << 10, TOGETHER_BYTES_IN_TESTS = 4 << 10 };
  if (s->stage->job->dim == 0) return 0; /* no columns to be divided */
  return chunks_of(b) * s->stage->job->slot_bytes > (test_split() ? TOGETHER_BYTES_IN_TESTS : TOGETHER_BYTES);
}

static void join_columns(const split *s, const boundary *b, int thread, int64_t first, int64_t last)
{
  const shf_stage *stage = s->stage;
  shf_cut cut = {.problem = b->group / stage->job->groups,
                 .group = b->group % stage->job->groups,
                 .slot = b->slot,
                 .chunks = chunks_of(b),
                 .first_column = first,
                 .last_column = last,
                 .scratch = stage->scratch + thread * stage->scratch_bytes};
  stage->join(stage->job, &cut);
}

/* A thread has done its share of the group that is cut at `b`: returns the group's first boundary if it was the last one and is to
 * join it. */
static const boundary *arrive(split *s, const boundary *b)
{
  boundary *first = &s->bounds[b->first];
  if (!b->cut || joins_together(s, first)) return NULL;
  return atomic_fetch_sub_explicit(&first->awaited, 1, memory_order_acq_rel) == 1 ? first : NULL;
}

static void run_share(void *context, int thread)
{
  split *s = context;
  if (s->stage->axis == SHF_BY_ENTRIES) {
    run_entries(s, thread);
    return;
  }
  run_groups(s, thread);
  const boundary *from = &s->bounds[thread], *to = from + 1;
  const int64_t dim = s->stage->job->dim;
  const int amid_one_group = from->cut && to->cut && from->first == to->first;
  const boundary *head = arrive(s, from), *tail = amid_one_group ? NULL : arrive(s, to);
  if (head) join_columns(s, head, thread, 0, dim);
  if (tail) join_columns(s, tail, thread, 0, dim);
}

/* Each thread joins some of the columns of every group that is joined together. */
static void join_share(void *context, int thread)
{
  const split *s = context;
  enum { UNIT = 16 };
  int64_t dim = s->stage->job->dim, units = (dim + UNIT - 1) / UNIT;
  int64_t first = units * thread / s->threads * UNIT, last = smaller(units * (thread + 1) / s->threads * UNIT, dim);
  if (first >= last) return;
  for (int t = 1; t < s->threads; t++) {
    const boundary *b = &s->bounds[t];
    if (b->cut && b->first == t && joins_together(s, b)) join_columns(s, b, thread, first, last);
  }
}

/* One thread, one problem: all of it, without dividing anything, since small calls are mostly what is around them. */
static void run_alone(const shf_stage *stage, int64_t entries)
{
  shf_part all = {
      .last_entry = entries, .last_group = stage->job->groups, .tail_end = entries, .scratch = stage->scratch};
  unsigned mode = shf_core_fp_enter();
  stage->run(stage->job, &all);
  shf_core_fp_leave(mode);
}

void shf_plan_run_stage(const shf_stage *stage)
{
  const shf_job *job = stage->job;
  split s; /* its bounds are set where they are used */
  s.stage = stage;
  s.groups = stage->batch * job->groups;
  s.entries = stage->axis == SHF_BY_GROUPED ? job->grouped.problem_start[stage->batch] : stage->batch * job->entries;
  s.threads = shf_plan_worth(stage->bytes, stage->threads);
  if (stage->axis == SHF_BY_ENTRIES ? s.entries == 0 : s.groups == 0) return;
  if (s.threads == 1 && stage->batch == 1) {
    run_alone(stage, s.entries);
    return;
  }
  if (stage->axis != SHF_BY_ENTRIES) find_boundaries(&s);
  shf_plan_parallel(s.threads, run_share, &s);
  if (stage->axis == SHF_BY_ENTRIES) return;
  int together = 0;
  for (int t = 1; t < s.threads; t++) together |= s.bounds[t].cut && joins_together(&s, &s.bounds[t]);
  if (together) shf_plan_parallel(s.threads, join_share, &s);
}
