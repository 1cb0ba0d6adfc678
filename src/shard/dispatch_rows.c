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

/* What is known of an index that was seen: its owner, and its number among the owner's, in one word. */
typedef int64_t mark;
enum { NUMBER_BITS = 38 }; /* a mesh has at most 2^24 ranks */
static const mark nobodys = (mark)1 << 62;

/* A table of slots: each index has one of its own, or where there are too many rows the first free one from where it is
 * scattered to. A slot holds the mark of its index and 1; with that the index itself, where it could be another's. */
typedef struct slots {
  mark *marks;
  int64_t *indices; /* NULL: each has its own */
  int bits;
} slots;

static inline uint64_t slot_of(const slots *s, int64_t index)
{
  return !s->indices ? (uint64_t)index : (uint64_t)index * 0x9e3779b97f4a7c15u >> (64 - s->bits);
}

/* Where the mark of an index is, or is to be. */
static inline mark *mark_of(const slots *s, int64_t index)
{
  uint64_t slot = slot_of(s, index), mask = ((uint64_t)1 << s->bits) - 1;
  while (s->indices && s->marks[slot] && s->indices[slot] != index) slot = (slot + 1) & mask;
  if (s->indices) s->indices[slot] = index;
  return &s->marks[slot];
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
    if (block[i] >= 0 && block[i] < t->rows) __builtin_prefetch(&s->marks[slot_of(s, block[i])], 1);
}

/* Numbers distinct indices as they come, owner by owner; entries get the marks. `seen` and `marks` are of all distinct
 * ones, of which there are as many as is returned. */
static int64_t mark_entries(const shf_dispatch_task *t, shf_dispatch *d, const holders *h, const slots *s,
                            int64_t *seen, mark *marks)
{
  int64_t count = 0, block[BLOCK], *number = d->ask_at + 1; /* the next of each owner */
  memset(d->ask_at, 0, (size_t)(d->members + 1) * sizeof *d->ask_at);
  for (int64_t first = 0; first < t->entries; first += BLOCK) {
    int64_t length = t->entries - first < BLOCK ? t->entries - first : BLOCK;
    open_block(t, s, first, length, block);
    for (int64_t i = 0; i < length; i++) {
      int64_t index = block[i];
      d->place[first + i] = -1;
      if (index < 0 || index >= t->rows || index == t->skipped) continue;
      mark *known = mark_of(s, index);
      if (*known == 0) {
        int64_t owner = owner_of(h, index);
        seen[count] = index;
        marks[count] = owner < 0 ? nobodys : (owner << NUMBER_BITS) + number[owner]++;
        *known = marks[count++] + 1;
      }
      d->place[first + i] = *known - 1;
    }
  }
  return count;
}

static void find_distinct(const shf_dispatch_task *t, shf_dispatch *d, const holders *h, const slots *s, int64_t *seen,
                          mark *marks)
{
  int64_t count = mark_entries(t, d, h, s, seen, marks), *at = d->ask_at;
  for (int64_t g = 0; g < d->members; g++) at[g + 1] += at[g];
  d->distinct = at[d->members];
  d->away = at[d->members - 1];
  for (int64_t k = 0; k < count; k++) {
    if (marks[k] == nobodys) continue;
    int64_t owner = marks[k] >> NUMBER_BITS, place = at[owner] + (marks[k] & (((mark)1 << NUMBER_BITS) - 1));
    d->ids[place] = seen[k];
    d->owner[place] = owner;
  }
  for (int64_t i = 0; i < t->entries; i++) {
    mark m = d->place[i];
    if (m >= 0) d->place[i] = m == nobodys ? d->distinct : at[m >> NUMBER_BITS] + (m & (((mark)1 << NUMBER_BITS) - 1));
  }
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
static void size_slots(const shf_dispatch_task *t, slots *s, int *direct)
{
  s->bits = 4;
  while (s->bits < 62 && (int64_t)1 << s->bits < 2 * t->entries && (int64_t)1 << s->bits < t->rows) s->bits++;
  *direct = (int64_t)1 << s->bits >= t->rows;
}

sheaf_status shf_dispatch_group(shf_pool *pool, const sheaf_mesh *mesh, const shf_dispatch_task *t, shf_dispatch *d)
{
  holders h;
  slots s = {0};
  int direct;
  int64_t *seen, *marks, *at;
  *d = (shf_dispatch){.mesh = mesh, .members = 1, .id_bytes = t->rows <= INT32_MAX ? 4 : 8};
  for (int m = 0; m < mesh->dims; m++)
    if (t->dims >> m & 1) d->members *= mesh->size[m];
  size_slots(t, &s, &direct);
  int64_t room = (int64_t)1 << s.bits, short_lists = 6, long_lists = t->links ? 7 : 5;
  /* One block for all, so that it can be large enough for huge pages. */
  SHF_TRY(get_numbers(pool, short_lists * (d->members + 1) + long_lists * t->entries + (direct ? 1 : 2) * room, &at));
  int64_t **lists[] = {&d->member, &d->ask_at, &d->asked_at, &h.lo, &h.hi, &h.member};
  for (int64_t i = 0; i < short_lists; i++, at += d->members + 1) *lists[i] = at;
  int64_t **longer[] = {&d->ids, &d->owner, &d->place, &seen, &marks, &d->head, &d->next};
  for (int64_t i = 0; i < long_lists; i++, at += t->entries) *longer[i] = at;
  s.marks = at;
  s.indices = direct ? NULL : at + room;
  memset(s.marks, 0, sizeof *s.marks << s.bits);
  find_members(t, d, &h);
  find_distinct(t, d, &h, &s, seen, marks);
  if (t->links) link_entries(t, d);
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
