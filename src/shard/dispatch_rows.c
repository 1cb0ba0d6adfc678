/* shard/dispatch_rows.c: which rows a rank needs, who has them, and sending them to and fro. */
#include "shard/dispatch_rows.h"

#include <string.h>

#include "core/cpu.h"

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

static sheaf_status get_numbers(shf_pool *pool, int64_t count, int64_t **numbers)
{
  void *memory;
  SHF_TRY(shf_pool_get(pool, (count + 1) * (int64_t)sizeof **numbers, &memory));
  *numbers = memory;
  return SHEAF_OK;
}

/* Parts into which rows are cut to find their holder: some for each. */
enum { LEAST_PARTS = 64, PARTS_A_MEMBER = 4 };
static int64_t parts_of(int64_t members)
{
  return members * PARTS_A_MEMBER < LEAST_PARTS ? LEAST_PARTS : members * PARTS_A_MEMBER;
}

static sheaf_status get_lists(shf_pool *pool, shf_dispatch *d)
{
  int64_t *at, parts = parts_of(d->members), range = sizeof(shf_row_range) / sizeof *at;
  SHF_TRY(get_numbers(pool, 4 * (d->members + 1) + parts + 1 + range * d->members, &at));
  int64_t **lists[] = {&d->member, &d->ask_at, &d->asked_at, &d->holders.member};
  for (int i = 0; i < 4; i++, at += d->members + 1) *lists[i] = at;
  d->holders.first = at;
  d->holders.range = (shf_row_range *)(void *)(at + parts + 1);
  memset(d->asked_at, 0, (size_t)d->members * sizeof *d->asked_at);
  return SHEAF_OK;
}

static void find_members(const shf_dispatch_task *t, shf_dispatch *d)
{
  shf_holders *h = &d->holders;
  const int64_t shape[2] = {t->rows, 1};
  sheaf_placement rows_only[MAX_DIMS];
  for (int m = 0; m < d->mesh->dims; m++)
    rows_only[m] = shf_is_shard(&t->table[m]) && t->table[m].dim == 0 ? t->table[m] : sheaf_replicate();
  int64_t others = 0;
  for (int64_t rank = 0; rank < d->mesh->ranks; rank++) {
    if (!in_group(d->mesh, t->dims, rank)) continue;
    shf_box box = shf_shard_box(d->mesh, rows_only, 2, shape, rank);
    int own = rank == d->mesh->rank;
    int64_t g = own ? d->members - 1 : others++;
    if (own) d->turn = others, d->row_lo = box.lo[0], d->row_hi = box.hi[0];
    d->member[g] = rank;
    if (box.lo[0] == box.hi[0]) continue;
    h->range[h->count] = (shf_row_range){box.lo[0], box.hi[0], 0};
    h->member[h->count++] = g;
  }
  int64_t parts = parts_of(d->members);
  while (t->rows >> h->shift >= parts) h->shift++;
  for (int64_t part = 0, at = 0; part <= parts; part++) {
    while (at < h->count && h->range[at].hi <= part << h->shift) at++;
    h->first[part] = at;
  }
}

/* ---- Distinct rows ---------------------------------------------------------------------------------------------- */

SHF_ALWAYS_INLINE void load_rows(const shf_dispatch *d, int64_t first, int64_t count, int64_t *rows)
{
  const int64_t limit = d->rows, skipped = d->skipped, *wide = d->indices;
  const int32_t *narrow = d->indices;
  if (d->index_dtype == SHEAF_I32)
    for (int64_t i = 0; i < count; i++) {
      int64_t row = narrow[first + i];
      rows[i] = row >= 0 && row < limit && row != skipped ? row : -1;
    }
  else
    for (int64_t i = 0; i < count; i++) {
      int64_t row = wide[first + i];
      rows[i] = row >= 0 && row < limit && row != skipped ? row : -1;
    }
}
static void load_rows_plain(const shf_dispatch *d, int64_t first, int64_t count, int64_t *rows)
{
  load_rows(d, first, count, rows);
}
SHF_WITH("avx2") static void load_rows_avx2(const shf_dispatch *d, int64_t first, int64_t count, int64_t *rows)
{
  load_rows(d, first, count, rows);
}

void shf_dispatch_rows(const shf_dispatch *d, int64_t first, int64_t count, int64_t *rows)
{
  if (sheaf_isa_current() >= SHEAF_ISA_AVX2)
    load_rows_avx2(d, first, count, rows);
  else
    load_rows_plain(d, first, count, rows);
}

/* Numbers in the order of rows become places: this rank's rows come last. */
SHF_ALWAYS_INLINE void move_own(const shf_dispatch *d, const int64_t *rows, int64_t count, int64_t *places)
{
  const int64_t lo = d->row_lo, hi = d->row_hi, distinct = d->distinct;
  const int64_t up = d->away - d->before, down = d->distinct - d->away;
  for (int64_t i = 0; i < count; i++) {
    int64_t moved = places[i] + (rows[i] >= lo ? up : 0) - (rows[i] >= hi ? up + down : 0);
    int64_t nobodys = rows[i] < 0 ? -1 : distinct;
    places[i] = places[i] < 0 ? nobodys : moved;
  }
}
static void move_own_plain(const shf_dispatch *d, const int64_t *rows, int64_t count, int64_t *places)
{
  move_own(d, rows, count, places);
}
SHF_WITH("avx2") static void move_own_avx2(const shf_dispatch *d, const int64_t *rows, int64_t count, int64_t *places)
{
  move_own(d, rows, count, places);
}

void shf_dispatch_places(const shf_dispatch *d, const int64_t *rows, int64_t count, int64_t *places)
{
  shf_row_set_find(&d->set, rows, count, places);
  if (sheaf_isa_current() >= SHEAF_ISA_AVX2)
    move_own_avx2(d, rows, count, places);
  else
    move_own_plain(d, rows, count, places);
}

/* The next entries, at most a block of them. */
static int64_t block_from(const shf_dispatch *d, int64_t first)
{
  return d->entries - first < SHF_ENTRIES ? d->entries - first : SHF_ENTRIES;
}

sheaf_status shf_dispatch_place(shf_pool *pool, shf_dispatch *d)
{
  int64_t rows[SHF_ENTRIES], places[SHF_ENTRIES];
  SHF_TRY(shf_pool_get(pool, d->entries * shf_number_bytes(d), &d->place));
  for (int64_t first = 0; first < d->entries; first += SHF_ENTRIES) {
    int64_t count = block_from(d, first);
    shf_dispatch_rows(d, first, count, rows);
    shf_dispatch_places(d, rows, count, places);
    if (d->number == SHEAF_I32)
      for (int64_t i = 0; i < count; i++) ((int32_t *)d->place)[first + i] = (int32_t)places[i];
    else
      memcpy((int64_t *)d->place + first, places, (size_t)count * sizeof *places);
  }
  return SHEAF_OK;
}

static void find_distinct(shf_dispatch *d)
{
  const shf_holders *h = &d->holders;
  int64_t rows[SHF_ENTRIES], *at = d->ask_at;
  for (int64_t first = 0; first < d->entries; first += SHF_ENTRIES) {
    int64_t count = block_from(d, first);
    shf_dispatch_rows(d, first, count, rows);
    shf_row_set_add(&d->set, rows, count);
  }
  d->distinct = shf_row_set_number(&d->set, h->range, h->count);
  memset(at, 0, (size_t)(d->members + 1) * sizeof *at);
  for (int64_t i = 0; i < h->count; i++) {
    at[h->member[i] + 1] = h->range[i].named;
    if (h->range[i].hi <= d->row_lo) d->before += h->range[i].named;
  }
  for (int64_t g = 0; g < d->members; g++) at[g + 1] += at[g];
  d->away = at[d->members - 1];
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

sheaf_status shf_dispatch_tell(const sheaf_mesh *mesh, int dims, int64_t count, const int64_t *mine, void *theirs)
{
  shf_message *out = shf_mesh_messages(mesh, 0), *in = shf_mesh_messages(mesh, 1);
  int64_t others = 0, bytes = count * (int64_t)sizeof *mine;
  for (int64_t rank = 0; rank < mesh->ranks; rank++) {
    if (rank == mesh->rank || !in_group(mesh, dims, rank)) continue;
    out[others] = (shf_message){rank, (char *)(mine + rank * count), bytes};
    in[others++] = (shf_message){rank, (char *)theirs + rank * bytes, bytes};
  }
  if (others == 0) return SHEAF_OK;
  return shf_comm_exchange(mesh->comm, out, others, in, others, shf_host());
}

/* ---- The plan --------------------------------------------------------------------------------------------------- */

sheaf_status shf_dispatch_group(shf_pool *pool, const sheaf_mesh *mesh, const shf_dispatch_task *t, shf_dispatch *d)
{
  int64_t *memory;
  *d = (shf_dispatch){.mesh = mesh,
                      .members = 1,
                      .number = t->rows <= INT32_MAX ? SHEAF_I32 : SHEAF_I64,
                      .indices = t->indices,
                      .index_dtype = t->index_dtype,
                      .entries = t->entries,
                      .rows = t->rows,
                      .skipped = t->skipped};
  for (int m = 0; m < mesh->dims; m++)
    if (t->dims >> m & 1) d->members *= mesh->size[m];
  SHF_TRY(get_lists(pool, d));
  SHF_TRY(get_numbers(pool, shf_row_set_room(t->rows, t->entries), &memory));
  shf_row_set_open(&d->set, t->rows, t->entries, memory);
  find_members(t, d);
  find_distinct(d);
  return SHEAF_OK;
}

int64_t shf_dispatch_asked(const shf_flow *flow, const shf_dispatch *d)
{
  return flow->status == SHEAF_OK ? d->asked_at[d->members - 1] : 0;
}

static sheaf_status list_rows(shf_pool *pool, shf_dispatch *d)
{
  SHF_TRY(shf_pool_get(pool, d->distinct * shf_number_bytes(d), &d->ids));
  if (d->distinct == 0) return SHEAF_OK;
  char *ids = d->ids;
  shf_row_set_list(&d->set, 0, d->row_lo, d->number, ids);
  shf_row_set_list(&d->set, d->row_hi, d->rows, d->number, ids + d->before * shf_number_bytes(d));
  shf_row_set_list(&d->set, d->row_lo, d->row_hi, d->number, ids + d->away * shf_number_bytes(d));
  return SHEAF_OK;
}

void shf_dispatch_count(shf_flow *flow, shf_pool *pool, int dims, shf_dispatch *d)
{
  const sheaf_mesh *mesh = flow->mesh;
  int64_t *mine = shf_mesh_numbers(mesh, 0), *theirs = shf_mesh_numbers(mesh, 1);
  FLOW(flow, list_rows(pool, d));
  if (flow->settled || !dims) return;
  memset(mine, 0, (size_t)mesh->ranks * sizeof *mine);
  if (flow->status == SHEAF_OK)
    for (int64_t g = 0; g < d->members - 1; g++) mine[d->member[g]] = d->ask_at[g + 1] - d->ask_at[g];
  sheaf_status status = shf_dispatch_tell(mesh, dims, 1, mine, theirs);
  SURELY(flow, status);
  if (flow->status == SHEAF_OK)
    for (int64_t g = 0; g < d->members - 1; g++) d->asked_at[g + 1] = d->asked_at[g] + theirs[d->member[g]];
  int64_t asked = shf_dispatch_asked(flow, d);
  FLOW(flow, shf_pool_get(pool, asked * shf_number_bytes(d), &d->asked));
}

sheaf_status shf_dispatch_ask(const shf_dispatch *d)
{
  return shf_dispatch_return(d, shf_host(), d->ids, d->asked, shf_number_bytes(d));
}
