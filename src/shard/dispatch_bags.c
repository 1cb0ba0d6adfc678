/* shard/dispatch_bags.c: parts of bags travel to where rows are, and their sums back. */
#include "shard/dispatch_bags.h"

#include <string.h>

#include "core/cpu.h"

/* NOLINTBEGIN(clang-analyzer-core.*): the analyzer does not see that a flow which failed stays failed. */

static sheaf_status get_numbers(shf_call *c, int64_t count, int64_t **numbers)
{
  void *memory;
  SHF_TRY(shf_pool_get(&c->pool, (count + 1) * (int64_t)sizeof **numbers, &memory));
  memset(memory, 0, (size_t)(count + 1) * sizeof **numbers);
  *numbers = memory;
  return SHEAF_OK;
}

/* ---- The choice ------------------------------------------------------------------------------------------------- */

static sheaf_status find_owners(shf_embedding_call *e, const shf_dispatch *d, shf_pieces *p)
{
  int64_t rows[SHF_ENTRIES];
  void *memory;
  SHF_TRY(shf_pool_get(&e->c.pool, d->entries * (int64_t)sizeof *p->owner, &memory));
  p->owner = memory;
  for (int64_t first = 0; first < d->entries; first += SHF_ENTRIES) {
    int64_t count = d->entries - first < SHF_ENTRIES ? d->entries - first : SHF_ENTRIES;
    shf_dispatch_rows(d, first, count, rows);
    for (int64_t i = 0; i < count; i++)
      p->owner[first + i] = rows[i] < 0 ? -1 : (int32_t)shf_dispatch_owner(d, rows[i]);
  }
  return SHEAF_OK;
}

/* Pieces and entries for each member, counted at g + 1 and then added up to places. Entries without an owner are
 * counted at 0, so that there is no branch for them, and forgotten. */
static sheaf_status count_pieces(shf_embedding_call *e, const shf_dispatch *d, shf_pieces *p)
{
  int64_t *last; /* the last bag that had an entry at a member, counted from 1 */
  SHF_TRY(find_owners(e, d, p));
  SHF_TRY(get_numbers(&e->c, d->members, &p->piece_at));
  SHF_TRY(get_numbers(&e->c, d->members, &p->entry_at));
  SHF_TRY(get_numbers(&e->c, d->members, &last));
  for (int64_t b = 0; b < e->bags.bags; b++) {
    int64_t end = shf_bag_begin(&e->bags, b + 1);
    for (int64_t i = shf_bag_begin(&e->bags, b); i < end; i++) {
      int64_t g = p->owner[i] + 1;
      p->entry_at[g]++;
      p->piece_at[g] += last[g] != b + 1;
      last[g] = b + 1;
    }
  }
  p->entry_at[0] = p->piece_at[0] = 0;
  for (int64_t g = 0; g < d->members; g++) {
    p->entry_at[g + 1] += p->entry_at[g];
    p->piece_at[g + 1] += p->piece_at[g];
  }
  return SHEAF_OK;
}

int shf_pieces_are_less(shf_embedding_call *e, const shf_dispatch *d, int64_t back, int64_t row, int64_t weights,
                        shf_pieces *p)
{
  shf_call *c = &e->c;
  const sheaf_mesh *mesh = c->flow.mesh;
  int64_t bytes[2] = {0, 0}; /* to and from other ranks, by rows and by pieces */
  double by_rows = 0, by_pieces = 0;
  *p = (shf_pieces){.piece_at = NULL};
  FLOW(&c->flow, count_pieces(e, d, p));
  if (c->flow.status == SHEAF_OK) {
    bytes[0] = d->away * (shf_number_bytes(d) + row);
    bytes[1] = p->entry_at[d->members - 1] * (shf_number_bytes(d) + weights) +
               p->piece_at[d->members - 1] * ((int64_t)sizeof(int64_t) + back);
  }
  if (!shf_flow_agree_on(&c->flow, "dispatch", bytes)) return 0;
  for (int64_t rank = 0; rank < mesh->ranks; rank++) { /* the same numbers on every rank */
    by_rows += (double)shf_agree_facts(mesh, rank)[0];
    by_pieces += (double)shf_agree_facts(mesh, rank)[1];
  }
  return by_pieces < by_rows;
}

/* ---- Pieces ------------------------------------------------------------------------------------------------------ */

/* Where the next piece and entry of a member go, and the last bag that it had a piece of, counted from 1. */
typedef struct cursor {
  int64_t piece, entry, bag;
} cursor;

/* Cuts the bags; `length` gets where each piece begins, at first. Rows come from the entries themselves, by blocks. */
static void cut_bags(const shf_embedding_call *e, const shf_dispatch *d, const char *weights, cursor *at, shf_pieces *p)
{
  int narrow = d->number == SHEAF_I32;
  int64_t size = weights ? shf_core_dtype_size(p->weight_type) : 0, rows[SHF_ENTRIES], from = 0, to = 0;
  for (int64_t g = 0; g < d->members; g++) at[g] = (cursor){p->piece_at[g], p->entry_at[g], 0};
  for (int64_t b = 0; b < e->bags.bags; b++) {
    int64_t end = shf_bag_begin(&e->bags, b + 1);
    for (int64_t i = shf_bag_begin(&e->bags, b); i < end; i++) {
      if (i == to) {
        from = i;
        to = d->entries - i < SHF_ENTRIES ? d->entries : i + SHF_ENTRIES;
        shf_dispatch_rows(d, from, to - from, rows);
      }
      if (p->owner[i] < 0) continue;
      cursor *c = &at[p->owner[i]];
      int64_t entry = c->entry++;
      if (c->bag != b + 1) {
        c->bag = b + 1;
        p->bag[c->piece] = b;
        p->length[c->piece++] = entry;
      }
      if (narrow)
        ((int32_t *)p->ids)[entry] = (int32_t)rows[i - from];
      else
        ((int64_t *)p->ids)[entry] = rows[i - from];
      if (size) memcpy((char *)p->weights + entry * size, weights + i * size, (size_t)size);
    }
  }
  /* All pieces lie one behind the other, and so do their entries. */
  int64_t pieces = p->piece_at[d->members], entries = p->entry_at[d->members];
  for (int64_t k = 0; k < pieces; k++) p->length[k] = (k + 1 < pieces ? p->length[k + 1] : entries) - p->length[k];
}

static sheaf_status make_pieces(shf_embedding_call *e, const shf_dispatch *d, const void *weights, shf_pieces *p)
{
  shf_call *c = &e->c;
  void *cursors;
  SHF_TRY(get_numbers(c, d->members, &p->got.piece_at));
  SHF_TRY(get_numbers(c, d->members, &p->got.entry_at));
  SHF_TRY(shf_pool_get(&c->pool, d->members * (int64_t)sizeof(cursor), &cursors));
  int64_t pieces = p->piece_at[d->members], entries = p->entry_at[d->members];
  SHF_TRY(get_numbers(c, pieces, &p->bag));
  SHF_TRY(get_numbers(c, pieces, &p->length));
  SHF_TRY(shf_pool_get(&c->pool, entries * shf_number_bytes(d), &p->ids));
  if (weights) SHF_TRY(shf_pool_get(&c->pool, entries * shf_core_dtype_size(p->weight_type), &p->weights));
  cut_bags(e, d, weights, cursors, p);
  return SHEAF_OK;
}

/* Everybody learns how many pieces and entries it will get. What is this rank's own comes last. Done by ranks that
 * failed as well: they send none. */
static void swap_counts(shf_flow *flow, int dims, const shf_dispatch *d, shf_pieces *p)
{
  const sheaf_mesh *mesh = flow->mesh;
  int64_t *mine = shf_mesh_numbers(mesh, 0), *theirs = shf_mesh_numbers(mesh, 1), own = d->members - 1;
  memset(mine, 0, 2 * (size_t)mesh->ranks * sizeof *mine);
  if (flow->status == SHEAF_OK)
    for (int64_t g = 0; g < own; g++) {
      mine[2 * d->member[g]] = p->piece_at[g + 1] - p->piece_at[g];
      mine[2 * d->member[g] + 1] = p->entry_at[g + 1] - p->entry_at[g];
    }
  sheaf_status status = shf_dispatch_tell(mesh, dims, 2, mine, theirs);
  SURELY(flow, status);
  if (flow->status != SHEAF_OK) return;
  for (int64_t g = 0; g < own; g++) {
    p->got.piece_at[g + 1] = p->got.piece_at[g] + theirs[2 * d->member[g]];
    p->got.entry_at[g + 1] = p->got.entry_at[g] + theirs[2 * d->member[g] + 1];
  }
  p->got.piece_at[own + 1] = p->got.piece_at[own] + p->piece_at[own + 1] - p->piece_at[own];
  p->got.entry_at[own + 1] = p->got.entry_at[own] + p->entry_at[own + 1] - p->entry_at[own];
}

static sheaf_status make_room(shf_call *c, const shf_dispatch *d, int has_weights, shf_pieces *p)
{
  int64_t entries = p->got.entry_at[d->members];
  SHF_TRY(get_numbers(c, p->got.piece_at[d->members], &p->got.offsets));
  SHF_TRY(shf_pool_get(&c->pool, entries * shf_number_bytes(d), &p->got.ids));
  return has_weights ? shf_pool_get(&c->pool, entries * shf_core_dtype_size(p->weight_type), &p->got.weights)
                     : SHEAF_OK;
}

/* One list of all pieces: to and from the others, and this rank's own. */
static sheaf_status swap_list(const shf_dispatch *d, const void *send, const int64_t *send_at, void *receive,
                              const int64_t *receive_at, int64_t cell)
{
  int64_t own = d->members - 1, bytes = (send_at[own + 1] - send_at[own]) * cell;
  SHF_TRY(shf_dispatch_start(d, shf_host(), send, send_at, receive, receive_at, cell));
  if (bytes) memcpy((char *)receive + receive_at[own] * cell, (const char *)send + send_at[own] * cell, (size_t)bytes);
  return shf_dispatch_finish(d);
}

static sheaf_status swap_pieces(const shf_dispatch *d, int has_weights, shf_pieces *p)
{
  int64_t *offsets = p->got.offsets, size = has_weights ? shf_core_dtype_size(p->weight_type) : 0;
  SHF_TRY(swap_list(d, p->length, p->piece_at, offsets + 1, p->got.piece_at, sizeof *offsets));
  SHF_TRY(swap_list(d, p->ids, p->entry_at, p->got.ids, p->got.entry_at, shf_number_bytes(d)));
  if (has_weights) SHF_TRY(swap_list(d, p->weights, p->entry_at, p->got.weights, p->got.entry_at, size));
  for (int64_t k = 0; k < p->got.piece_at[d->members]; k++) offsets[k + 1] += offsets[k];
  return SHEAF_OK;
}

void shf_pieces_send(shf_embedding_call *e, const shf_dispatch *d, const void *weights, sheaf_dtype weight_type,
                     shf_pieces *p)
{
  shf_call *c = &e->c;
  int has_weights = weight_type != SHEAF_DTYPE_NONE; /* the same on every rank, whether it has entries or not */
  p->weight_type = weight_type;
  FLOW(&c->flow, make_pieces(e, d, weights, p));
  if (c->flow.settled) return;
  swap_counts(&c->flow, c->strategy.dispatch, d, p);
  FLOW(&c->flow, make_room(c, d, has_weights, p));
  if (!shf_flow_agree(&c->flow)) return;
  SURELY(&c->flow, swap_pieces(d, has_weights, p));
}

sheaf_status shf_pieces_bags(shf_embedding_call *e, const shf_dispatch *d, const shf_pieces *p, shf_bags *bags)
{
  shf_call *c = &e->c;
  const void *offsets;
  *bags = (shf_bags){.entries = p->got.entry_at[d->members], .bags = p->got.piece_at[d->members], .length = -1};
  bags->host.indices = p->got.ids;
  bags->host.weights = p->got.weights;
  bags->host.offsets = p->got.offsets;
  int64_t weight_bytes = p->got.weights ? bags->entries * shf_core_dtype_size(p->weight_type) : 0;
  SHF_TRY(shf_call_write(c, p->got.ids, bags->entries * shf_number_bytes(d), &bags->indices));
  SHF_TRY(shf_call_write(c, p->got.weights, weight_bytes, &bags->weights));
  SHF_TRY(shf_call_write(c, p->got.offsets, (bags->bags + 1) * (int64_t)sizeof *p->got.offsets, &offsets));
  bags->offsets = offsets;
  return SHEAF_OK;
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

void shf_pieces_sum(shf_embedding_call *e, const shf_dispatch *d, shf_pieces *p, const sheaf_dtensor *table,
                    void *total)
{
  shf_call *c = &e->c;
  int64_t cell = e->columns * shf_core_dtype_size(e->acc);
  void *sums = NULL, *answers = NULL;
  shf_row_merge merge = {.acc = e->acc, .number = SHEAF_I64, .columns = e->columns, .rows = e->bags.bags};
  shf_pieces_send(e, d, e->bags.host.weights, e->desc->weighted ? c->weights : SHEAF_DTYPE_NONE, p);
  if (c->flow.status != SHEAF_OK) return;
  /* For the owner's own work this is a table cut by rows and bags of its own. */
  shf_bags bags = e->bags;
  sheaf_dtype index = c->problem.index_dtype;
  FLOW(&c->flow, shf_pieces_bags(e, d, p, &e->bags));
  c->problem.index_dtype = d->number;
  FLOW(&c->flow, shf_call_get(c, p->got.piece_at[d->members] * cell, &sums));
  FLOW(&c->flow, shf_call_get(c, p->piece_at[d->members - 1] * cell, &answers));
  FLOW(&c->flow, shf_embedding_sum(e, table, sums));
  e->bags = bags;
  c->problem.index_dtype = index;
  merge.parts = d->members;
  FLOW(&c->flow, shf_merge_ready(c, &merge));
  if (!shf_flow_agree(&c->flow)) return;
  DLDevice device = c->site.device;
  SURELY(&c->flow, shf_dispatch_swap(d, device, sums, p->got.piece_at, answers, p->piece_at, cell));
  if (c->flow.status != SHEAF_OK) return;
  for (int64_t turn = 0; turn < d->members; turn++) { /* in the order of ranks */
    int64_t g = shf_dispatch_at_turn(d, turn), first = p->piece_at[g], count = p->piece_at[g + 1] - first;
    const char *terms = g < d->members - 1 ? answers : sums; /* of none there need be no memory */
    int64_t at = g < d->members - 1 ? first : p->got.piece_at[g];
    merge.part[turn] = (shf_row_part){p->bag + first, count, count && cell ? terms + at * cell : NULL};
  }
  FLOW_ON(&c->flow, device, shf_merge_run(c, &merge, total));
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

void shf_pieces_bring(shf_embedding_call *e, const shf_dispatch *d, const shf_pieces *p, const void *rows,
                      int64_t row_bytes, void **got)
{
  shf_call *c = &e->c;
  void *mine = NULL;
  int well = c->flow.status == SHEAF_OK;
  int64_t own = d->members - 1, pieces = well ? p->piece_at[own] : 0, owned = well ? p->piece_at[own + 1] - pieces : 0,
          receives = well ? p->got.piece_at[own] : 0;
  const shf_row_source source = {rows, e->bags.bags, 0, row_bytes};
  FLOW(&c->flow, shf_call_get(c, pieces * row_bytes, &mine));
  FLOW(&c->flow, shf_call_get(c, (receives + owned) * row_bytes, got));
  FLOW(&c->flow, shf_call_fetch(c, &source, SHEAF_I64, p->bag, pieces, mine));
  if (!shf_flow_agree(&c->flow)) return;
  SURELY(&c->flow, shf_dispatch_start(d, c->site.device, mine, p->piece_at, *got, p->got.piece_at, row_bytes));
  if (owned > 0 && row_bytes > 0) /* while they travel */
    FLOW_ON(&c->flow, c->site.device,
            shf_call_fetch(c, &source, SHEAF_I64, p->bag + pieces, owned, (char *)*got + receives * row_bytes));
  sheaf_status finished = shf_dispatch_finish(d);
  SURELY(&c->flow, finished);
}
/* NOLINTEND(clang-analyzer-core.*) */
