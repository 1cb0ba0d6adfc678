/* scan.c: checks of values, made before anything is written: indices, offsets, sorted ids. */
#include <inttypes.h>
#include <stdio.h>

#include "plan/plan_impl.h"

/* ---- Indices ---- */

typedef struct scan_task {
  const shf_index_scan *scan;
  sheaf_index_report found[SHF_MAX_THREADS];
} scan_task;

SHF_ALWAYS_INLINE int64_t count_bad(const shf_index_scan *scan, const char *row, int64_t first, int64_t last)
{
  int64_t bad = 0;
  uint64_t limit = (uint64_t)scan->limit;
  if (scan->allow_absent)
    for (int64_t i = first; i < last; i++) {
      int64_t value = shf_plan_index_at(row, i, scan->wide);
      bad += (uint64_t)value >= limit && value != -1;
    }
  else if (scan->wide)
    for (int64_t i = first; i < last; i++) bad += (uint64_t)((const int64_t *)(const void *)row)[i] >= limit;
  else
    for (int64_t i = first; i < last; i++) bad += (uint64_t)(int64_t)((const int32_t *)(const void *)row)[i] >= limit;
  return bad;
}
static int64_t count_bad_plain(const shf_index_scan *scan, const char *row, int64_t first, int64_t last)
{
  return count_bad(scan, row, first, last);
}
SHF_WITH("avx2") static int64_t count_bad_avx2(const shf_index_scan *scan, const char *row, int64_t first, int64_t last)
{
  return count_bad(scan, row, first, last);
}

static void scan_row(const shf_index_scan *scan, const char *row, int64_t first, int64_t last, int64_t position,
                     sheaf_index_report *found)
{
  int64_t bad = sheaf_isa_current() >= SHEAF_ISA_AVX2 ? count_bad_avx2(scan, row, first, last)
                                                      : count_bad_plain(scan, row, first, last);
  if (bad && found->count == 0) {
    uint64_t limit = (uint64_t)scan->limit;
    int64_t i = first;
    while ((uint64_t)shf_plan_index_at(row, i, scan->wide) < limit ||
           (scan->allow_absent && shf_plan_index_at(row, i, scan->wide) == -1))
      i++;
    found->first_position = position + i;
    found->first_value = shf_plan_index_at(row, i, scan->wide);
  }
  found->count += bad;
}

static void scan_share(void *context, int thread)
{
  scan_task *task = context;
  const shf_index_scan *scan = task->scan;
  sheaf_index_report *found = &task->found[thread];
  *found = (sheaf_index_report){0, -1, 0};
  int64_t all = scan->batch * scan->rows * scan->columns;
  int64_t first = shf_plan_share(all, thread, scan->threads);
  int64_t last = shf_plan_share(all, thread + 1, scan->threads);
  while (first < last) {
    int64_t row = first / scan->columns, column = first % scan->columns;
    int64_t end = scan->columns - column < last - first ? scan->columns : column + last - first;
    const char *data =
        scan->index.data + row / scan->rows * scan->index.batch_stride + row % scan->rows * scan->index.row_stride;
    scan_row(scan, data, column, end, row * scan->columns, found);
    first += end - column;
  }
}

sheaf_index_report shf_plan_scan_indices(const shf_index_scan *scan)
{
  shf_index_scan used = *scan;
  scan_task task; /* what is found is set by the shares: clearing it all would take longer than a small scan */
  task.scan = &used;
  int64_t all = scan->batch * scan->rows * scan->columns;
  sheaf_index_report total = {0, -1, 0};
  if (all == 0) return total;
  used.threads = shf_plan_worth(all * (scan->wide ? 8 : 4), scan->threads);
  shf_plan_parallel(used.threads, scan_share, &task);
  for (int t = 0; t < used.threads; t++) {
    if (total.count == 0 && task.found[t].count > 0)
      total = (sheaf_index_report){0, task.found[t].first_position, task.found[t].first_value};
    total.count += task.found[t].count;
  }
  return total;
}

sheaf_status shf_plan_apply_policy(const shf_index_scan *scan, const char *operand, sheaf_bad_index policy,
                                   sheaf_index_report *report)
{
  if (policy == SHEAF_BAD_INDEX_SKIP && !report) return SHEAF_OK;
  sheaf_index_report found = shf_plan_scan_indices(scan);
  if (report) *report = found;
  if (policy == SHEAF_BAD_INDEX_SKIP || found.count == 0) return SHEAF_OK;
  sheaf_error_info info = {.status = SHEAF_INDEX_OUT_OF_RANGE,
                           .operand = operand,
                           .position = found.first_position,
                           .value = found.first_value,
                           .count = found.count};
  return shf_core_fail_info(
      &info, "%s: %" PRId64 " at position %" PRId64 " is outside 0..%" PRId64 "; %" PRId64 " such %s", operand,
      found.first_value, found.first_position, scan->limit - 1, found.count, found.count == 1 ? "entry" : "entries");
}

/* ---- Sorted ids ---- */

typedef struct sorted_task {
  shf_matrix ids;
  int wide, threads;
  int64_t batch, entries;
  int64_t first_break[SHF_MAX_THREADS]; /* position over all problems, or -1 */
} sorted_task;

/* The first i in first .. last - 1 whose value is below the one before it, or `last`: by blocks, whose drops are
 * counted over vectors, without a branch for each. */
enum { DROP_BLOCK = 256 };
#define FIRST_DROP(type)                                                               \
  do {                                                                                 \
    const type *values = (const void *)data;                                           \
    for (; i + DROP_BLOCK <= last; i += DROP_BLOCK) {                                  \
      type drops = 0;                                                                  \
      for (int j = 0; j < DROP_BLOCK; j++) drops += values[i + j] < values[i + j - 1]; \
      if (drops) break;                                                                \
    }                                                                                  \
    while (i < last && values[i - 1] <= values[i]) i++;                                \
  } while (0)
SHF_ALWAYS_INLINE int64_t first_drop(const char *data, int64_t first, int64_t last, int wide)
{
  int64_t i = first < 1 ? 1 : first;
  if (wide)
    FIRST_DROP(int64_t);
  else
    FIRST_DROP(int32_t);
  return i < last ? i : last;
}
#undef FIRST_DROP
static int64_t first_drop_plain(const char *data, int64_t first, int64_t last, int wide)
{
  return first_drop(data, first, last, wide);
}
SHF_WITH("avx2") static int64_t first_drop_avx2(const char *data, int64_t first, int64_t last, int wide)
{
  return first_drop(data, first, last, wide);
}

static void sorted_share(void *context, int thread)
{
  sorted_task *task = context;
  int64_t all = task->batch * task->entries;
  int64_t at = shf_plan_share(all, thread, task->threads);
  int64_t last = shf_plan_share(all, thread + 1, task->threads);
  task->first_break[thread] = -1;
  while (at < last) {
    int64_t problem = at / task->entries, first = at % task->entries;
    int64_t end = task->entries - first < last - at ? task->entries : first + last - at;
    const char *data = task->ids.data + problem * task->ids.batch_stride;
    int64_t drop = sheaf_isa_current() >= SHEAF_ISA_AVX2 ? first_drop_avx2(data, first, end, task->wide)
                                                         : first_drop_plain(data, first, end, task->wide);
    if (drop < end) {
      task->first_break[thread] = problem * task->entries + drop;
      return;
    }
    at += end - first;
  }
}

/* The first entry, over all problems, that is below the one before it; -1 when there is none. */
static int64_t first_decrease(shf_matrix values, int wide, int64_t batch, int64_t entries, int threads)
{
  sorted_task task; /* its answers are set by the shares */
  task.ids = values;
  task.wide = wide;
  task.batch = values.batch_stride ? batch : 1; /* shared ones are looked at once */
  task.entries = entries;
  if (task.batch * entries == 0) return -1;
  task.threads = shf_plan_worth(task.batch * entries * (wide ? 8 : 4), threads);
  shf_plan_parallel(task.threads, sorted_share, &task);
  for (int t = 0; t < task.threads; t++)
    if (task.first_break[t] >= 0) return task.first_break[t];
  return -1;
}

sheaf_status shf_plan_check_sorted(shf_matrix ids, int wide, int64_t batch, int64_t entries, int threads)
{
  int64_t at = first_decrease(ids, wide, batch, entries, threads);
  if (at < 0) return SHEAF_OK;
  const char *data = ids.data + at / entries * ids.batch_stride;
  int64_t n = at % entries, value = shf_plan_index_at(data, n, wide);
  sheaf_error_info info = {
      .status = SHEAF_INVALID_PROBLEM, .operand = "ids", .position = at, .value = value, .count = 1};
  return shf_core_fail_info(&info, "ids must not decrease: %" PRId64 " at position %" PRId64 " follows %" PRId64, value,
                            at, shf_plan_index_at(data, n - 1, wide));
}

/* ---- Offsets ---- */

/* problem -1: there is only one, which need not be named. */
static sheaf_status wrong_offset(int64_t problem, int64_t entry, int64_t value, const char *why, int64_t other)
{
  char of[48] = "";
  if (problem >= 0) snprintf(of, sizeof of, " of problem %" PRId64, problem);
  sheaf_error_info info = {
      .status = SHEAF_INVALID_PROBLEM, .operand = "offsets", .position = entry, .value = value, .count = 1};
  return shf_core_fail_info(&info, "offsets[%" PRId64 "]%s is %" PRId64 "; %s %" PRId64, entry, of, value, why, other);
}

/* The first offset of a problem that is wrong, as it reads. */
static sheaf_status check_offsets_of(const sheaf_embedding_desc *desc, const char *data, int64_t problem)
{
  int wide = desc->offset_dtype == SHEAF_I64, with_end = desc->bag_form == SHEAF_BAGS_OFFSETS_END;
  int64_t entries = desc->bags + with_end, previous = 0;
  for (int64_t i = 0; i < entries; i++) {
    int64_t value = shf_plan_index_at(data, i, wide);
    if (i == 0 && value != 0) return wrong_offset(problem, i, value, "the first one must be", 0);
    if (value < previous) return wrong_offset(problem, i, value, "the one before it is", previous);
    if (value > desc->indices) return wrong_offset(problem, i, value, "there are only so many indices:", desc->indices);
    previous = value;
  }
  if (with_end && previous != desc->indices)
    return wrong_offset(problem, entries - 1, previous, "the last one must be the number of indices,", desc->indices);
  return SHEAF_OK;
}

/* Offsets that start at 0, do not decrease and end within N are all right: sortedness is found out in parallel, and
 * only what is wrong is read again, one by one, for its name. */
sheaf_status shf_plan_check_offsets(const sheaf_embedding_desc *desc, shf_matrix offsets, int64_t batch, int threads)
{
  int wide = desc->offset_dtype == SHEAF_I64, with_end = desc->bag_form == SHEAF_BAGS_OFFSETS_END;
  int64_t entries = desc->bags + with_end, problems = offsets.batch_stride ? batch : 1;
  int sorted = first_decrease(offsets, wide, batch, entries, threads) < 0;
  for (int64_t p = 0; p < problems && entries > 0; p++) {
    const char *data = offsets.data + p * offsets.batch_stride;
    int64_t first = shf_plan_index_at(data, 0, wide), last = shf_plan_index_at(data, entries - 1, wide);
    if (!sorted || first != 0 || last > desc->indices || (with_end && last != desc->indices))
      SHF_TRY(check_offsets_of(desc, data, problems > 1 ? p : -1));
  }
  return SHEAF_OK;
}
