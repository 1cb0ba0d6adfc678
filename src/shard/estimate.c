/* shard/estimate.c: what a strategy costs by Sheaf's own reckoning, and the choice among them.
 *
 * Counted are: bringing the inputs there, the local work as bytes that pass through memory, what row dispatch sends,
 * and bringing the output where it is wanted. A Partial output that nobody placed is counted as made whole, since
 * somebody has to do that. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "shard/shard_impl.h"

/* Sizes of the busiest rank under a strategy. */
typedef struct load {
  double table;   /* elements of the table or its gradient (segments: data) */
  double entries; /* indices */
  double owned;   /* of those, the ones whose rows the rank has */
  double columns; /* local width of a row */
  double out, in0, cell, index_cell, out_cell;
} load;

static int is_backward(const sheaf_shard_problem *p)
{
  if (p->category == SHEAF_CATEGORY_SEGMENT) return shf_segment_is_backward(p->kind);
  return p->kind == SHEAF_LOOKUP_BACKWARD || p->kind == SHEAF_BAG_SUM_BACKWARD || p->kind == SHEAF_BAG_MEAN_BACKWARD ||
         p->kind == SHEAF_BAG_MAX_BACKWARD;
}

static double cut_by(const sheaf_mesh *mesh, const sheaf_placement *placements, int dim)
{
  double parts = 1;
  for (int m = 0; m < mesh->dims; m++)
    if (shf_is_shard(&placements[m]) && shf_shard_dim(&placements[m]) == dim) parts *= (double)mesh->size[m];
  return parts;
}

static double dispatch_ranks(const sheaf_mesh *mesh, const sheaf_strategy *s)
{
  double ranks = 1;
  for (int m = 0; m < mesh->dims; m++)
    if (s->dispatch >> m & 1) ranks *= (double)mesh->size[m];
  return ranks;
}

static load load_of(const sheaf_shard_problem *p, const shf_shard_shapes *shapes, const sheaf_strategy *s)
{
  const sheaf_mesh *mesh = p->mesh;
  int backward = is_backward(p);
  load l = {.cell = (double)shapes->in[0].cell, .index_cell = (double)shapes->in[1].cell};
  l.out_cell = (double)shapes->out.cell;
  l.in0 = shf_shard_largest(mesh, shapes->in[0].rank, shapes->in[0].shape, s->in[0]);
  l.out = shf_shard_largest(mesh, shapes->out.rank, shapes->out.shape, s->out);
  l.entries = shf_shard_largest(mesh, shapes->in[1].rank, shapes->in[1].shape, s->in[1]);
  const sheaf_placement *table = backward ? s->out : s->in[0];
  l.table = backward ? l.out : l.in0;
  l.columns = (double)p->dim / cut_by(mesh, table, 1);
  double rows_cut = p->category == SHEAF_CATEGORY_EMBEDDING ? cut_by(mesh, table, 0) : 1;
  l.owned = l.entries / rows_cut * dispatch_ranks(mesh, s);
  if (p->category == SHEAF_CATEGORY_EMBEDDING && p->kind == SHEAF_BAG_MAX_BACKWARD) l.columns = 1; /* cells, not rows */
  return l;
}

/* Bytes through memory: rows read (and the table's gradient written, all of it), indices, output. */
static double local_bytes(const load *l)
{
  return l->owned * l->columns * l->cell + l->entries * l->index_cell + l->out * l->out_cell;
}

static void add_move(const sheaf_shard_problem *p, const shf_operand_shape *shape, const sheaf_placement *from,
                     const sheaf_placement *to, const sheaf_mesh_profile *profile, sheaf_strategy *s)
{
  sheaf_placement target[MAX_DIMS];
  for (int m = 0; m < p->mesh->dims; m++) /* indices are not masked in memory: a mask is as good as Replicate */
    target[m] = to[m].kind == SHEAF_PLACE_MASK_PARTIAL ? sheaf_replicate() : to[m];
  sheaf_move_cost cost;
  if (sheaf_redistribute_cost(p->mesh, shape->rank, shape->shape, shape->cell, from, target, profile, &cost) !=
      SHEAF_OK)
    return;
  s->microseconds += cost.microseconds;
  s->bytes_moved += cost.bytes;
  if (cost.steps == 0) return;
  s->bytes_memory += shf_shard_largest(p->mesh, shape->rank, shape->shape, from) * (double)shape->cell;
}

/* What dispatch sends: rows and their indices, or pieces of bags and theirs, whatever is less (dispatch_bags.h).
 * Indices are taken to be spread evenly. */
static double dispatched_bytes(const sheaf_shard_problem *p, const sheaf_strategy *s, const load *l, double group,
                               double distinct)
{
  double away = (group - 1) / group, id = p->rows <= INT32_MAX ? 4 : 8;
  double rows = distinct * away * (id + l->columns * l->cell);
  int sums = p->category == SHEAF_CATEGORY_EMBEDDING && p->kind >= SHEAF_BAG_SUM && p->kind != SHEAF_BAG_MAX &&
             p->kind != SHEAF_BAG_MAX_BACKWARD;
  if (!sums || p->bags == 0) return rows;
  double bags = (double)p->bags / cut_by(p->mesh, s->in[1], 0), length = l->entries / bags;
  double pieces = bags * (group - 1) * (1 - pow(1 - 1 / group, length)); /* bags that have an entry at another rank */
  double parts = pieces * (8 + l->columns * (p->dtype == SHEAF_F64 ? 8 : 4)) + l->entries * away * id;
  return parts < rows ? parts : rows;
}

void shf_shard_estimate(const sheaf_shard_problem *p, const shf_shard_shapes *shapes, const sheaf_mesh_profile *profile,
                        sheaf_strategy *s)
{
  const sheaf_mesh *mesh = p->mesh;
  sheaf_mesh_profile full = shf_shard_profile(profile);
  load l = load_of(p, shapes, s);
  s->microseconds = local_bytes(&l) / (full.memory_gbs * 1e3);
  s->bytes_memory = l.in0 * l.cell + l.entries * l.index_cell + l.out * l.out_cell;
  for (int j = 0; j < s->inputs; j++) {
    double before = s->bytes_moved;
    add_move(p, &shapes->in[j], p->in[j], s->in[j], profile, s);
    if (j == 0 && p->category == SHEAF_CATEGORY_EMBEDDING && !is_backward(p)) s->bytes_table = s->bytes_moved - before;
  }
  double group = dispatch_ranks(mesh, s);
  if (group > 1) {
    double distinct = l.owned < l.entries ? l.owned : l.entries;
    if (distinct > (double)p->rows) distinct = (double)p->rows;
    double bytes = dispatched_bytes(p, s, &l, group, distinct);
    s->bytes_moved += bytes;
    s->microseconds += 3 * (group - 1) * full.latency_us + bytes / (full.bandwidth_gbs * 1e3);
    s->bytes_memory += distinct * (l.index_cell + 2 * l.columns * l.cell);
  }
  sheaf_placement wanted[MAX_DIMS];
  for (int m = 0; m < mesh->dims; m++)
    wanted[m] = p->out_wanted ? p->out[m] : shf_is_partial(&s->out[m]) ? sheaf_replicate() : s->out[m];
  add_move(p, &shapes->out, s->out, wanted, profile, s);
}

/* ---- Choice ----------------------------------------------------------------------------------------------------- */

static int better(const sheaf_strategy *a, const sheaf_strategy *b)
{
  if ((a->bytes_table > 0) != (b->bytes_table > 0)) return b->bytes_table > 0;
  if (a->microseconds != b->microseconds) return a->microseconds < b->microseconds;
  return a->bytes_memory < b->bytes_memory;
}

sheaf_status sheaf_strategy_choose(const sheaf_strategy_list *list, const sheaf_mesh_profile *profile,
                                   int64_t *position, char *reason, size_t room)
{
  SHF_REQUIRE(list && position, INVALID_PROBLEM, "%s is NULL", list ? "position" : "list");
  double limit = profile ? profile->memory_limit : 0;
  const sheaf_strategy *best = NULL, *second = NULL, *least = NULL;
  int64_t too_large = 0, count = sheaf_strategy_count(list);
  for (int64_t i = 0; i < count; i++) {
    const sheaf_strategy *s = sheaf_strategy_at(list, i);
    if (!least || s->bytes_memory < least->bytes_memory) least = s;
    if (limit > 0 && s->bytes_memory > limit) {
      too_large++;
      continue;
    }
    if (!best || better(s, best)) {
      second = best;
      best = s;
      *position = i;
    } else if (!second || better(s, second)) {
      second = s;
    }
  }
  SHF_REQUIRE(best, UNSUPPORTED, "none of %lld strategies fits %.4g bytes a rank; the least takes %.4g",
              (long long)count, limit, least ? least->bytes_memory : 0);
  if (!reason || room == 0) return SHEAF_OK;
  int64_t moving = 0;
  for (int64_t i = 0; i < count; i++) moving += sheaf_strategy_at(list, i)->bytes_table > 0;
  int at = snprintf(reason, room, "least time of %lld: %.4g us", (long long)(count - too_large), best->microseconds);
  if (moving && best->bytes_table == 0 && at > 0 && (size_t)at < room)
    at += snprintf(reason + at, room - (size_t)at, " with the table left in place (%lld would move it)",
                   (long long)moving);
  if (second && at > 0 && (size_t)at < room)
    at += snprintf(reason + at, room - (size_t)at, ", the next best takes %.4g us", second->microseconds);
  if (second && second->bytes_moved != best->bytes_moved && at > 0 && (size_t)at < room)
    at += snprintf(reason + at, room - (size_t)at, " and moves %.4g bytes instead of %.4g", second->bytes_moved,
                   best->bytes_moved);
  if (too_large && at > 0 && (size_t)at < room)
    snprintf(reason + at, room - (size_t)at, "; %lld do not fit the memory limit", (long long)too_large);
  return SHEAF_OK;
}
