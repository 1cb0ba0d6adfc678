/* sparse_compact.c: numbers the rows that a list of indices touches: a stable sort by row, then two walks. */
#include <inttypes.h>

#include "layers/sparse_impl.h"

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

typedef struct entry {
  int64_t row, position;
} entry;

/* Stable, by row; the result is in the array that is returned. */
static entry *sort_entries(entry *from, entry *to, int64_t count, int64_t rows)
{
  for (int shift = 0; shift < 63 && (rows - 1) >> shift > 0; shift += DIGIT_BITS) {
    int64_t start[DIGITS + 1] = {0};
    for (int64_t i = 0; i < count; i++) start[(from[i].row >> shift & (DIGITS - 1)) + 1]++;
    for (int d = 0; d < DIGITS; d++) start[d + 1] += start[d];
    for (int64_t i = 0; i < count; i++) to[start[from[i].row >> shift & (DIGITS - 1)]++] = from[i];
    entry *swap = from;
    from = to;
    to = swap;
  }
  return from;
}

static sheaf_status bad_entry(const shf_compact_rule *rule, int64_t position, int64_t value, int64_t count)
{
  sheaf_error_info info = {.status = SHEAF_INDEX_OUT_OF_RANGE,
                           .operand = rule->operand,
                           .position = position,
                           .value = value,
                           .count = count};
  return shf_core_fail_info(&info,
                            "%s: %" PRId64 " at position %" PRId64 " is outside 0..%" PRId64 "; %" PRId64 " such %s",
                            rule->operand, value, position, rule->rows - 1, count, count == 1 ? "entry" : "entries");
}

/* Lists the entries that count; others get -1 at once. */
static sheaf_status list_entries(const sheaf_tensor *indices, const shf_compact_rule *rule, entry *list,
                                 int64_t *places, int64_t *listed)
{
  int64_t count = shf_tensor_elements(indices), bad = 0, first = -1;
  int64_t each = rule->problems ? count / rule->problems : count;
  for (int64_t i = 0; i < count; i++) {
    int64_t row = shf_index_at(indices, i);
    places[i] = -1;
    if (row < 0 || row >= rule->rows) {
      if (rule->absent && row == -1) continue;
      if (bad++ == 0) first = i;
      continue;
    }
    if (row != rule->padding) list[(*listed)++] = (entry){i / each * rule->rows + row, i};
  }
  if (bad && rule->bad_index == SHEAF_BAD_INDEX_ERROR) return bad_entry(rule, first, shf_index_at(indices, first), bad);
  return SHEAF_OK;
}

static void set_id(sheaf_tensor *ids, int64_t at, int64_t id)
{
  if (ids->dtype == SHEAF_I64)
    ((int64_t *)ids->dl.data)[at] = id;
  else
    ((int32_t *)ids->dl.data)[at] = (int32_t)id;
}

static int is_new(const entry *list, int64_t i, int each) { return i == 0 || each || list[i].row != list[i - 1].row; }

/* Counts the rows of sorted (or, with `each`, listed) entries: all of them, and where those of each problem begin. */
static void count_rows(const entry *list, int64_t listed, const shf_compact_rule *rule, shf_compact *compact)
{
  int64_t *start = compact->starts->dl.data, problems = compact->starts->extent[0] - 1, problem = 0;
  for (int64_t i = 0; i < listed; i++) {
    if (!is_new(list, i, rule->each)) continue;
    while (problem <= list[i].row / rule->rows) start[problem++] = compact->count;
    compact->count++;
  }
  while (problem <= problems) start[problem++] = compact->count;
  for (int64_t p = 0; p < problems; p++)
    if (start[p + 1] - start[p] > compact->most) compact->most = start[p + 1] - start[p];
}

static void number_rows(const entry *list, int64_t listed, const shf_compact_rule *rule, int64_t *places,
                        shf_compact *compact)
{
  const int64_t *start = compact->starts->dl.data;
  for (int64_t i = 0, next = 0; i < listed; i++) {
    if (is_new(list, i, rule->each)) set_id(compact->ids, next++, list[i].row);
    places[list[i].position] = next - 1 - start[list[i].row / rule->rows];
  }
}

static sheaf_status compact_on_host(const sheaf_tensor *indices, const shf_compact_rule *rule, shf_compact *compact)
{
  int64_t tables = rule->problems ? rule->problems : 1, starts = tables + 1, listed = 0;
  SHF_TRY(shf_tensor_make(SHEAF_I64, indices->rank, indices->extent, indices, &compact->indices));
  SHF_TRY(shf_tensor_make(SHEAF_I64, 1, &starts, indices, &compact->starts));
  int64_t *places = compact->indices->dl.data;
  size_t bytes = 2 * sizeof(entry) * (size_t)(shf_tensor_elements(indices) + 1);
  entry *list = shf_core_alloc(bytes), *sorted = list;
  if (!list) return shf_core_no_memory("a list of entries", bytes);
  sheaf_status status = list_entries(indices, rule, list, places, &listed);
  if (status == SHEAF_OK) {
    if (!rule->each) sorted = sort_entries(list, list + listed, listed, rule->rows * tables);
    count_rows(sorted, listed, rule, compact);
    status = shf_tensor_make(rule->problems ? SHEAF_I64 : indices->dtype, 1, &compact->count, indices, &compact->ids);
  }
  if (status == SHEAF_OK) number_rows(sorted, listed, rule, places, compact);
  shf_core_free(list, bytes);
  return status;
}

/* Moves a tensor to a device, in its place. */
static sheaf_status move_to(sheaf_tensor **slot, DLDevice device)
{
  sheaf_tensor *there;
  SHF_TRY(sheaf_tensor_to(*slot, device, &there));
  sheaf_tensor_release(*slot);
  *slot = there;
  return SHEAF_OK;
}

sheaf_status shf_compact_rows(sheaf_tensor *indices, const shf_compact_rule *rule, shf_compact *compact)
{
  *compact = (shf_compact){.count = 0};
  SHF_REQUIRE(indices->form == SHEAF_FORM_DENSE && (indices->dtype == SHEAF_I32 || indices->dtype == SHEAF_I64) &&
                  shf_tensor_is_contiguous(indices),
              INVALID_PROBLEM, "%s must be a contiguous tensor of i32 or i64, it is %s of form %d", rule->operand,
              sheaf_dtype_name(indices->dtype), (int)indices->form);
  sheaf_tensor *host;
  SHF_TRY(shf_tensor_on_host(indices, &host));
  sheaf_status status = compact_on_host(host, rule, compact);
  if (status == SHEAF_OK) {
    compact->host_ids = sheaf_tensor_retain(compact->ids);
    status = move_to(&compact->ids, shf_device_of(indices));
    if (status == SHEAF_OK) status = move_to(&compact->indices, shf_device_of(indices));
  }
  sheaf_tensor_release(host);
  return status;
}

void shf_compact_free(shf_compact *compact)
{
  shf_drop(&compact->ids);
  shf_drop(&compact->indices);
  shf_drop(&compact->host_ids);
  shf_drop(&compact->starts);
}

int64_t shf_find_id(const sheaf_tensor *ids, int64_t id)
{
  int64_t low = 0, high = ids->extent[0];
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (shf_index_at(ids, middle) < id)
      low = middle + 1;
    else
      high = middle;
  }
  return low < ids->extent[0] && shf_index_at(ids, low) == id ? low : -1;
}
