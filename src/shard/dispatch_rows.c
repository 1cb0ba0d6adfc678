/* shard/dispatch_rows.c: which rows a rank needs, who has them, and sending them to and fro. */
#include "shard/dispatch_rows.h"

#include <string.h>

/* ---- Distinct indices ------------------------------------------------------------------------------------------- */

/* An entry by its index. */
typedef struct named {
  int64_t index, entry;
} named;

/* Sorts by index, all below `bound`, by digits of 11 bits, least first; entries of one index stay in order. Returns where
 * the result is. */
static named *sort_named(named *list, named *other, int64_t count, int64_t bound)
{
  enum { BITS = 11, DIGITS = 1 << BITS };
  for (int shift = 0; shift < 63 && bound >> shift; shift += BITS) {
    int64_t starts[DIGITS + 1] = {0};
    for (int64_t i = 0; i < count; i++) starts[(list[i].index >> shift & (DIGITS - 1)) + 1]++;
    for (int digit = 0; digit < DIGITS; digit++) starts[digit + 1] += starts[digit];
    for (int64_t i = 0; i < count; i++) other[starts[list[i].index >> shift & (DIGITS - 1)]++] = list[i];
    named *swap = list;
    list = other;
    other = swap;
  }
  return list;
}

/* The place of the last start that is not above `value`, among `count` increasing starts; -1: none. */
static int64_t last_not_above(const int64_t *starts, int64_t count, int64_t value)
{
  int64_t lo = 0, hi = count;
  while (lo < hi) {
    int64_t middle = lo + (hi - lo) / 2;
    if (starts[middle] <= value)
      lo = middle + 1;
    else
      hi = middle;
  }
  return lo - 1;
}

/* Which member holds a row; -1: none. Members without rows may share their start with the one that has them. */
static int64_t owner_of(const shf_dispatch *d, int64_t row)
{
  for (int64_t g = last_not_above(d->lo, d->members, row); g >= 0; g--)
    if (d->hi[g] > row)
      return g;
    else if (d->hi[g] > d->lo[g])
      return -1;
  return -1;
}

static void find_distinct(const shf_dispatch_task *t, shf_dispatch *d, named *list, named *other)
{
  int64_t count = 0;
  for (int64_t i = 0; i < t->entries; i++) {
    int64_t index = shf_load_index(t->index_dtype, t->indices, i);
    if (index >= 0 && index < t->rows && index != t->skipped)
      list[count++] = (named){index, i};
    else
      d->place[i] = -1;
  }
  list = sort_named(list, other, count, t->rows);
  d->distinct = 0;
  memset(d->ask_at, 0, (size_t)(d->members + 1) * sizeof *d->ask_at);
  for (int64_t i = 0, next; i < count; i = next) {
    int64_t g = owner_of(d, list[i].index);
    for (next = i; next < count && list[next].index == list[i].index; next++)
      d->place[list[next].entry] = g < 0 ? -2 : d->distinct;
    if (g < 0) continue;
    d->owner[d->distinct] = g;
    d->ids[d->distinct++] = list[i].index;
    d->ask_at[g + 1]++;
  }
  for (int64_t g = 0; g < d->members; g++) d->ask_at[g + 1] += d->ask_at[g];
  for (int64_t i = 0; i < t->entries; i++)
    if (d->place[i] == -2) d->place[i] = d->distinct;
}

/* ---- The group -------------------------------------------------------------------------------------------------- */

static int in_group(const sheaf_mesh *mesh, int dims, int64_t rank)
{
  int64_t mine[MAX_DIMS], theirs[MAX_DIMS];
  shf_mesh_coords(mesh, mesh->rank, mine);
  shf_mesh_coords(mesh, rank, theirs);
  for (int m = 0; m < mesh->dims; m++)
    if (!(dims >> m & 1) && mine[m] != theirs[m]) return 0;
  return 1;
}

static void find_members(const shf_dispatch_task *t, shf_dispatch *d)
{
  const int64_t shape[2] = {t->rows, 1};
  d->members = 0;
  for (int64_t rank = 0; rank < d->mesh->ranks; rank++) {
    if (!in_group(d->mesh, t->dims, rank)) continue;
    sheaf_placement rows_only[MAX_DIMS];
    for (int m = 0; m < d->mesh->dims; m++)
      rows_only[m] = shf_is_shard(&t->table[m]) && t->table[m].dim == 0 ? t->table[m] : sheaf_replicate();
    shf_box box = shf_shard_box(d->mesh, rows_only, 2, shape, rank);
    if (rank == d->mesh->rank) d->self = d->members;
    d->member[d->members] = rank;
    d->lo[d->members] = box.lo[0];
    d->hi[d->members++] = box.hi[0];
  }
}

sheaf_status shf_dispatch_swap(const shf_dispatch *d, DLDevice device, const void *send, const int64_t *send_at,
                               void *receive, const int64_t *receive_at, int64_t cell)
{
  shf_message *out = shf_mesh_messages(d->mesh, 0), *in = shf_mesh_messages(d->mesh, 1);
  int64_t sends = 0, receives = 0;
  for (int64_t g = 0; g < d->members; g++) {
    int64_t sent = (send_at[g + 1] - send_at[g]) * cell, received = (receive_at[g + 1] - receive_at[g]) * cell;
    /* Of nothing there need be no memory to count in. */
    char *from = sent ? (char *)send + send_at[g] * cell : NULL;
    char *to = received ? (char *)receive + receive_at[g] * cell : NULL;
    if (g == d->self && sent)
      SHF_TRY(shf_space_copy(device, to, from, sent));
    else if (sent)
      out[sends++] = (shf_message){d->member[g], from, sent};
    if (g != d->self && received) in[receives++] = (shf_message){d->member[g], to, received};
  }
  if (d->members == 1) return SHEAF_OK;
  return shf_comm_exchange(d->mesh->comm, out, sends, in, receives, device);
}

sheaf_status shf_dispatch_bring(const shf_dispatch *d, DLDevice device, const void *rows, void *compact, int64_t cell)
{
  return shf_dispatch_swap(d, device, rows, d->asked_at, compact, d->ask_at, cell);
}

sheaf_status shf_dispatch_return(const shf_dispatch *d, DLDevice device, const void *compact, void *rows, int64_t cell)
{
  return shf_dispatch_swap(d, device, compact, d->ask_at, rows, d->asked_at, cell);
}

/* ---- The plan --------------------------------------------------------------------------------------------------- */

static sheaf_status get_numbers(shf_pool *pool, int64_t count, int64_t **numbers)
{
  void *memory;
  SHF_TRY(shf_pool_get(pool, (count + 1) * (int64_t)sizeof **numbers, &memory));
  *numbers = memory;
  return SHEAF_OK;
}

static sheaf_status prepare(shf_pool *pool, const shf_dispatch_task *t, shf_dispatch *d)
{
  int64_t group = 1;
  void *sorted, *other;
  for (int m = 0; m < d->mesh->dims; m++)
    if (t->dims >> m & 1) group *= d->mesh->size[m];
  int64_t **lists[] = {&d->member, &d->lo, &d->hi, &d->ask_at, &d->asked_at};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) SHF_TRY(get_numbers(pool, group, lists[i]));
  SHF_TRY(get_numbers(pool, 3 * group, &d->counts));
  SHF_TRY(get_numbers(pool, t->entries, &d->ids));
  SHF_TRY(get_numbers(pool, t->entries, &d->owner));
  SHF_TRY(get_numbers(pool, t->entries, &d->place));
  SHF_TRY(shf_pool_get(pool, t->entries * (int64_t)sizeof(named), &sorted));
  SHF_TRY(shf_pool_get(pool, t->entries * (int64_t)sizeof(named), &other));
  d->id_bytes = t->rows <= INT32_MAX ? 4 : 8;
  find_members(t, d);
  find_distinct(t, d, sorted, other);
  if (!t->dims) return SHEAF_OK;
  return shf_pool_get(pool, d->distinct * d->id_bytes, &d->wire[0]);
}

/* Everybody learns how many rows it is asked for. */
static sheaf_status swap_counts(shf_dispatch *d)
{
  int64_t *asks = d->counts, *asked = d->counts + d->members, *each = asked + d->members;
  for (int64_t g = 0; g <= d->members; g++) each[g] = g;
  for (int64_t g = 0; g < d->members; g++) asks[g] = d->ask_at[g + 1] - d->ask_at[g];
  SHF_TRY(shf_dispatch_swap(d, shf_host(), asks, each, asked, each, sizeof *asks));
  d->asked_at[0] = 0;
  for (int64_t g = 0; g < d->members; g++) d->asked_at[g + 1] = d->asked_at[g] + asked[g];
  return SHEAF_OK;
}

static sheaf_status get_asked(shf_pool *pool, shf_dispatch *d)
{
  int64_t count = d->asked_at[d->members];
  SHF_TRY(shf_pool_get(pool, count * d->id_bytes, &d->wire[1]));
  return get_numbers(pool, count, &d->asked);
}

/* Indices travel in as few bytes as they need. */
static sheaf_status swap_ids(const shf_dispatch *d)
{
  sheaf_dtype dtype = d->id_bytes == 4 ? SHEAF_I32 : SHEAF_I64;
  for (int64_t i = 0; i < d->distinct; i++) shf_store_index(dtype, d->wire[0], i, d->ids[i]);
  SHF_TRY(shf_dispatch_return(d, shf_host(), d->wire[0], d->wire[1], d->id_bytes));
  for (int64_t i = 0; i < d->asked_at[d->members]; i++) d->asked[i] = shf_load_index(dtype, d->wire[1], i);
  return SHEAF_OK;
}

sheaf_status shf_dispatch_group(shf_pool *pool, const sheaf_mesh *mesh, const shf_dispatch_task *task, shf_dispatch *d)
{
  *d = (shf_dispatch){.mesh = mesh};
  SHF_TRY(prepare(pool, task, d));
  if (task->dims) return SHEAF_OK;
  d->asked = d->ids;
  memcpy(d->asked_at, d->ask_at, 2 * sizeof *d->asked_at);
  return SHEAF_OK;
}

void shf_dispatch_ask(shf_flow *flow, shf_pool *pool, shf_dispatch *d)
{
  if (flow->pending && !shf_flow_agree(flow)) return;
  SURELY(flow, swap_counts(d));
  FLOW(flow, get_asked(pool, d));
  if (!shf_flow_agree(flow)) return;
  SURELY(flow, swap_ids(d));
}
