/* shard/dispatch_rows.c: which rows a rank needs, who has them, and sending them to and fro. */
#include "shard/dispatch_rows.h"

#include <string.h>

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

/* Who holds which rows: the members that have any, in the order of their rows, which is the order of ranks. To find one,
 * the rows are cut into at most BUCKETS parts of a power of two, each of which knows the first that may hold its rows. */
enum { BUCKETS = 1024 };
typedef struct holders {
  int64_t count;
  int64_t *lo, *hi, *member;
  int64_t first[BUCKETS + 1];
  int shift;
} holders;

static void find_members(const shf_dispatch_task *t, shf_dispatch *d, holders *h)
{
  const int64_t shape[2] = {t->rows, 1};
  sheaf_placement rows_only[MAX_DIMS];
  for (int m = 0; m < d->mesh->dims; m++)
    rows_only[m] = shf_is_shard(&t->table[m]) && t->table[m].dim == 0 ? t->table[m] : sheaf_replicate();
  int64_t others = 0;
  h->count = 0;
  for (int64_t rank = 0; rank < d->mesh->ranks; rank++) {
    if (!in_group(d->mesh, t->dims, rank)) continue;
    shf_box box = shf_shard_box(d->mesh, rows_only, 2, shape, rank);
    int64_t g = rank == d->mesh->rank ? d->members - 1 : others++;
    if (rank == d->mesh->rank) d->turn = others;
    d->member[g] = rank;
    if (box.lo[0] == box.hi[0]) continue;
    h->lo[h->count] = box.lo[0];
    h->hi[h->count] = box.hi[0];
    h->member[h->count++] = g;
  }
  h->shift = 0;
  while (t->rows >> h->shift >= BUCKETS) h->shift++;
  for (int64_t bucket = 0, at = 0; bucket <= BUCKETS; bucket++) {
    while (at < h->count && h->hi[at] <= bucket << h->shift) at++;
    h->first[bucket] = at;
  }
}

/* Which member holds a row; -1: none. */
static int64_t owner_of(const holders *h, int64_t row)
{
  int64_t at = h->first[row >> h->shift];
  while (at < h->count && h->hi[at] <= row) at++;
  return at < h->count && h->lo[at] <= row ? h->member[at] : -1;
}

/* ---- Distinct indices ------------------------------------------------------------------------------------------- */

/* A table of slots, of which each index has one of its own, or where there are too many rows the first free one from
 * where it is scattered to. A slot holds the number of its index, counted from 1. */
typedef struct slots {
  int64_t *at;
  int bits;
  int direct;
} slots;

static inline uint64_t slot_of(const slots *s, int64_t index)
{
  return s->direct ? (uint64_t)index : (uint64_t)index * 0x9e3779b97f4a7c15u >> (64 - s->bits);
}

/* The number of an index among those seen so far, `count` when it is new. */
static inline int64_t number_of(const slots *s, uint64_t slot, int64_t index, const int64_t *seen, int64_t count)
{
  for (uint64_t mask = ((uint64_t)1 << s->bits) - 1;; slot = (slot + 1) & mask) {
    int64_t number = s->at[slot] - 1;
    if (number < 0) s->at[slot] = count + 1;
    if (number < 0) return count;
    if (seen[number] == index) return number;
  }
}

enum { BLOCK = 256 };

/* Indices of a block, and their slots on the way to the cache. */
static void open_block(const shf_dispatch_task *t, const slots *s, int64_t first, int64_t count, int64_t *block)
{
  if (t->index_dtype == SHEAF_I32)
    for (int64_t i = 0; i < count; i++) block[i] = ((const int32_t *)t->indices)[first + i];
  else
    memcpy(block, (const int64_t *)t->indices + first, (size_t)count * sizeof *block);
  for (int64_t i = 0; i < count; i++)
    if (block[i] >= 0 && block[i] < t->rows) __builtin_prefetch(&s->at[slot_of(s, block[i])], 1);
}

/* Numbers distinct indices as they come, then member by member. `seen` and `holder` are by the first numbers, `d->ids` and
 * `d->owner` by the second. */
static void find_distinct(const shf_dispatch_task *t, shf_dispatch *d, const holders *h, const slots *s, int64_t *seen,
                          int64_t *holder)
{
  int64_t count = 0, block[BLOCK], *next = d->ask_at + 1;
  memset(d->ask_at, 0, (size_t)(d->members + 2) * sizeof *d->ask_at);
  for (int64_t first = 0; first < t->entries; first += BLOCK) {
    int64_t length = t->entries - first < BLOCK ? t->entries - first : BLOCK;
    open_block(t, s, first, length, block);
    for (int64_t i = 0; i < length; i++) {
      int64_t index = block[i], *place = &d->place[first + i];
      *place = -1;
      if (index < 0 || index >= t->rows || index == t->skipped) continue;
      *place = number_of(s, slot_of(s, index), index, seen, count);
      if (*place < count) continue;
      seen[count] = index;
      holder[count] = owner_of(h, index);
      if (holder[count] >= 0) next[holder[count] + 1]++;
      count++;
    }
  }
  for (int64_t g = 0; g < d->members; g++) next[g + 1] += next[g]; /* where each member's begin */
  d->distinct = next[d->members];
  for (int64_t k = 0; k < count; k++) {
    int64_t number = holder[k] < 0 ? d->distinct : next[holder[k]]++;
    if (holder[k] >= 0) {
      d->ids[number] = seen[k];
      d->owner[number] = holder[k];
    }
    holder[k] = number;
  }
  d->away = d->ask_at[d->members - 1]; /* the beginnings have moved on to the ends, which are the next ones' */
  for (int64_t i = 0; i < t->entries; i++)
    if (d->place[i] >= 0) d->place[i] = holder[d->place[i]];
}

static void link_entries(const shf_dispatch_task *t, shf_dispatch *d)
{
  for (int64_t k = 0; k < d->distinct; k++) d->head[k] = -1;
  d->linked = 0;
  for (int64_t i = 0; i < t->entries; i++) {
    int64_t place = d->place[i];
    if (place < 0 || place >= d->distinct) continue;
    d->next[i] = d->head[place];
    d->head[place] = i;
    d->linked++;
  }
}

/* ---- Messages --------------------------------------------------------------------------------------------------- */

sheaf_status shf_dispatch_start(const shf_dispatch *d, DLDevice device, const void *send, const int64_t *send_at,
                                void *receive, const int64_t *receive_at, int64_t cell)
{
  shf_message *out = shf_mesh_messages(d->mesh, 0), *in = shf_mesh_messages(d->mesh, 1);
  int64_t sends = 0, receives = 0;
  if (d->members == 1) return SHEAF_OK;
  for (int64_t g = 0; g < d->members - 1; g++) {
    int64_t sent = (send_at[g + 1] - send_at[g]) * cell, received = (receive_at[g + 1] - receive_at[g]) * cell;
    /* Of nothing there need be no memory to count in. */
    if (sent) out[sends++] = (shf_message){d->member[g], (char *)send + send_at[g] * cell, sent};
    if (received) in[receives++] = (shf_message){d->member[g], (char *)receive + receive_at[g] * cell, received};
  }
  return shf_comm_start(d->mesh->comm, out, sends, in, receives, device);
}

sheaf_status shf_dispatch_finish(const shf_dispatch *d) { return shf_comm_finish(d->mesh->comm); }

sheaf_status shf_dispatch_swap(const shf_dispatch *d, DLDevice device, const void *send, const int64_t *send_at,
                               void *receive, const int64_t *receive_at, int64_t cell)
{
  SHF_TRY(shf_dispatch_start(d, device, send, send_at, receive, receive_at, cell));
  return shf_dispatch_finish(d);
}

sheaf_status shf_dispatch_bring(const shf_dispatch *d, DLDevice device, const void *rows, void *compact, int64_t cell)
{
  return shf_dispatch_swap(d, device, rows, d->asked_at, compact, d->ask_at, cell);
}

sheaf_status shf_dispatch_return(const shf_dispatch *d, DLDevice device, const void *compact, void *rows, int64_t cell)
{
  return shf_dispatch_swap(d, device, compact, d->ask_at, rows, d->asked_at, cell);
}

sheaf_status shf_dispatch_tell(const sheaf_mesh *mesh, int dims, int64_t count, const int64_t *mine, int64_t *theirs)
{
  shf_message *out = shf_mesh_messages(mesh, 0), *in = shf_mesh_messages(mesh, 1);
  int64_t others = 0, bytes = count * (int64_t)sizeof *mine;
  for (int64_t rank = 0; rank < mesh->ranks; rank++) {
    if (rank == mesh->rank || !in_group(mesh, dims, rank)) continue;
    out[others] = (shf_message){rank, (char *)(mine + rank * count), bytes};
    in[others++] = (shf_message){rank, (char *)(theirs + rank * count), bytes};
  }
  if (others == 0) return SHEAF_OK;
  return shf_comm_exchange(mesh->comm, out, others, in, others, shf_host());
}

/* ---- The plan --------------------------------------------------------------------------------------------------- */

static sheaf_status get_numbers(shf_pool *pool, int64_t count, int64_t **numbers)
{
  void *memory;
  SHF_TRY(shf_pool_get(pool, (count + 1) * (int64_t)sizeof **numbers, &memory));
  *numbers = memory;
  return SHEAF_OK;
}

/* Slots for twice as many indices as there are, or for all rows when that is not more. */
static sheaf_status get_slots(shf_pool *pool, const shf_dispatch_task *t, slots *s)
{
  s->bits = 4;
  while (s->bits < 62 && (int64_t)1 << s->bits < 2 * t->entries && (int64_t)1 << s->bits < t->rows) s->bits++;
  s->direct = (int64_t)1 << s->bits >= t->rows;
  SHF_TRY(get_numbers(pool, (int64_t)1 << s->bits, &s->at));
  memset(s->at, 0, sizeof *s->at << s->bits);
  return SHEAF_OK;
}

sheaf_status shf_dispatch_group(shf_pool *pool, const sheaf_mesh *mesh, const shf_dispatch_task *t, shf_dispatch *d)
{
  holders h;
  slots s;
  int64_t *seen, *holder;
  *d = (shf_dispatch){.mesh = mesh, .members = 1, .id_bytes = t->rows <= INT32_MAX ? 4 : 8};
  for (int m = 0; m < mesh->dims; m++)
    if (t->dims >> m & 1) d->members *= mesh->size[m];
  int64_t **lists[] = {&d->member, &d->ask_at, &d->asked_at, &h.lo, &h.hi, &h.member};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) SHF_TRY(get_numbers(pool, d->members + 1, lists[i]));
  int64_t **longer[] = {&d->ids, &d->owner, &d->place, &seen, &holder};
  for (size_t i = 0; i < sizeof longer / sizeof *longer; i++) SHF_TRY(get_numbers(pool, t->entries, longer[i]));
  SHF_TRY(get_slots(pool, t, &s));
  find_members(t, d, &h);
  find_distinct(t, d, &h, &s, seen, holder);
  if (t->links) {
    SHF_TRY(get_numbers(pool, d->distinct, &d->head));
    SHF_TRY(get_numbers(pool, t->entries, &d->next));
    link_entries(t, d);
  }
  memset(d->asked_at, 0, (size_t)d->members * sizeof *d->asked_at);
  return shf_pool_get(pool, d->away * d->id_bytes, &d->wire[0]);
}

int64_t shf_dispatch_asked(const shf_flow *flow, const shf_dispatch *d)
{
  return flow->status == SHEAF_OK ? d->asked_at[d->members - 1] : 0;
}

void shf_dispatch_count(shf_flow *flow, shf_pool *pool, int dims, shf_dispatch *d)
{
  const sheaf_mesh *mesh = flow->mesh;
  int64_t *mine = shf_mesh_numbers(mesh, 0), *theirs = shf_mesh_numbers(mesh, 1);
  if (flow->settled || !dims) return;
  memset(mine, 0, (size_t)mesh->ranks * sizeof *mine);
  if (flow->status == SHEAF_OK)
    for (int64_t g = 0; g < d->members - 1; g++) mine[d->member[g]] = d->ask_at[g + 1] - d->ask_at[g];
  sheaf_status status = shf_dispatch_tell(mesh, dims, 1, mine, theirs);
  SURELY(flow, status);
  if (flow->status == SHEAF_OK)
    for (int64_t g = 0; g < d->members - 1; g++) d->asked_at[g + 1] = d->asked_at[g] + theirs[d->member[g]];
  int64_t asked = shf_dispatch_asked(flow, d);
  FLOW(flow, shf_pool_get(pool, asked * d->id_bytes, &d->wire[1]));
  FLOW(flow, get_numbers(pool, asked, &d->asked));
}

/* Indices travel in as few bytes as they need. */
sheaf_status shf_dispatch_ask(const shf_dispatch *d)
{
  sheaf_dtype dtype = d->id_bytes == 4 ? SHEAF_I32 : SHEAF_I64;
  for (int64_t i = 0; i < d->away; i++) shf_store_index(dtype, d->wire[0], i, d->ids[i]);
  SHF_TRY(shf_dispatch_return(d, shf_host(), d->wire[0], d->wire[1], d->id_bytes));
  for (int64_t i = 0; i < d->asked_at[d->members - 1]; i++) d->asked[i] = shf_load_index(dtype, d->wire[1], i);
  return SHEAF_OK;
}
