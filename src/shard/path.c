/* shard/path.c: how a tensor gets from some placements to others, and what ranks receive on the way.
 *
 * Whatever is cut or replicated changes in one exchange, in which a rank receives just what it lacks. Partial
 * dimensions that become cut are added in the same exchange (a reduce-scatter). Those that become whole are reduced on
 * their own, by slices (an all-reduce), before or after the exchange: wherever a rank then has less. */
#include <string.h>

#include "shard/shard_impl.h"

double shf_shard_largest(const sheaf_mesh *mesh, int tensor_rank, const int64_t *shape,
                         const sheaf_placement *placements)
{
  double count = 1;
  for (int d = 0; d < tensor_rank; d++) {
    int64_t lo = 0, hi = shape[d]; /* the first chunk of a chunk is the largest */
    for (int m = 0; m < mesh->dims; m++)
      if (shf_is_shard(&placements[m]) && shf_shard_dim(&placements[m]) == d)
        shf_shard_chunk(0, mesh->size[m], &lo, &hi);
    count *= (double)(hi - lo);
  }
  return count;
}

/* Terms that a rank adds in an exchange: the product of the sizes of dimensions that stop being partial. */
static int64_t terms(const sheaf_mesh *mesh, const shf_stage *stage)
{
  int64_t count = 1;
  for (int m = 0; m < mesh->dims; m++)
    if (shf_is_partial(&stage->from[m]) && !shf_is_partial(&stage->to[m])) count *= mesh->size[m];
  return count;
}

/* Ranks that are looked at one by one when counting; of larger meshes, as many spread evenly. */
enum { MOST_COUNTED = 1024 };

static int64_t counted_rank(const sheaf_mesh *mesh, int64_t i)
{
  return mesh->ranks <= MOST_COUNTED ? i : i * (mesh->ranks - 1) / (MOST_COUNTED - 1);
}

/* Most cells that a rank receives in an exchange. */
static double lacking(const sheaf_mesh *mesh, int tensor_rank, const int64_t *shape, const shf_stage *stage)
{
  double most = 0, times = (double)terms(mesh, stage);
  int64_t count = mesh->ranks < MOST_COUNTED ? mesh->ranks : MOST_COUNTED;
  for (int64_t i = 0; i < count; i++) {
    int64_t rank = counted_rank(mesh, i);
    shf_box had = shf_shard_box(mesh, stage->from, tensor_rank, shape, rank);
    shf_box gets = shf_shard_box(mesh, stage->to, tensor_rank, shape, rank);
    shf_box own = shf_box_meet(&had, &gets);
    double cells = times * (double)shf_box_count(&gets) - (double)shf_box_count(&own);
    if (cells > most) most = cells;
  }
  return most;
}

/* Whether any rank lacks anything: asked of all ranks, since all must agree on whether there is an exchange. */
static int needs_exchange(const sheaf_mesh *mesh, int tensor_rank, const int64_t *shape, const shf_stage *stage)
{
  if (terms(mesh, stage) > 1) return 1;
  for (int64_t rank = 0; rank < mesh->ranks; rank++) {
    shf_box had = shf_shard_box(mesh, stage->from, tensor_rank, shape, rank);
    shf_box gets = shf_shard_box(mesh, stage->to, tensor_rank, shape, rank);
    shf_box own = shf_box_meet(&had, &gets);
    if (shf_box_count(&gets) != shf_box_count(&own)) return 1;
  }
  return 0;
}

static void add_stage(const sheaf_mesh *mesh, shf_path *path, shf_stage_kind kind, sheaf_placement *now,
                      const sheaf_placement *to)
{
  size_t bytes = (size_t)mesh->dims * sizeof *now;
  shf_stage *stage = &path->stage[path->stages];
  memset(stage, 0, sizeof *stage);
  stage->kind = kind;
  stage->moves = 1;
  memcpy(stage->from, now, bytes);
  memcpy(stage->to, to, bytes);
  if (shf_placements_equal(mesh, now, to)) return;
  memcpy(now, to, bytes);
  path->stages++;
}

shf_path shf_shard_path(const sheaf_mesh *mesh, int tensor_rank, const int64_t *shape, const sheaf_placement *from,
                        const sheaf_placement *to)
{
  shf_path path = {0};
  sheaf_placement now[MAX_DIMS] = {{0}}, reduced[MAX_DIMS] = {{0}}, cut[MAX_DIMS] = {{0}}, both[MAX_DIMS] = {{0}};
  for (int m = 0; m < mesh->dims; m++) {
    int stays = sheaf_placement_equal(&from[m], &to[m]), partial = shf_is_partial(&from[m]);
    int to_partial = shf_is_partial(&to[m]) && !stays;
    now[m] = from[m];
    reduced[m] = cut[m] = from[m];
    if (!stays && partial && !shf_is_shard(&to[m]))
      reduced[m] = sheaf_replicate(); /* all-reduced, now or later */
    else if (!stays)
      cut[m] = to_partial ? sheaf_replicate() : to[m];
    both[m] = stays ? from[m] : to_partial ? sheaf_replicate() : to[m];
  }
  int reduce_first =
      shf_shard_largest(mesh, tensor_rank, shape, from) <= shf_shard_largest(mesh, tensor_rank, shape, cut);
  if (reduce_first) add_stage(mesh, &path, SHF_STAGE_REDUCE, now, reduced);
  add_stage(mesh, &path, SHF_STAGE_EXCHANGE, now, reduce_first ? both : cut);
  if (!reduce_first) add_stage(mesh, &path, SHF_STAGE_REDUCE, now, both);
  add_stage(mesh, &path, SHF_STAGE_FILL, now, to);
  for (int i = 0; i < path.stages; i++) {
    shf_stage *stage = &path.stage[i];
    if (stage->kind == SHF_STAGE_EXCHANGE) stage->moves = needs_exchange(mesh, tensor_rank, shape, stage);
    if (stage->kind == SHF_STAGE_FILL) stage->moves = 0;
    if (stage->kind == SHF_STAGE_REDUCE) stage->moves = terms(mesh, stage) > 1;
  }
  return path;
}

shf_path_cost shf_shard_path_cost(const sheaf_mesh *mesh, int tensor_rank, const int64_t *shape, const shf_path *path)
{
  shf_path_cost cost = {0};
  for (int i = 0; i < path->stages; i++) {
    const shf_stage *stage = &path->stage[i];
    if (!stage->moves) continue;
    int64_t peers = 1;
    for (int m = 0; m < mesh->dims; m++)
      if (stage->from[m].kind != SHEAF_PLACE_REPLICATE && !sheaf_placement_equal(&stage->from[m], &stage->to[m]))
        peers *= mesh->size[m];
    if (peers < 2) peers = 2; /* a nested cut that moved */
    if (stage->kind == SHF_STAGE_REDUCE) {
      double slice = shf_shard_largest(mesh, tensor_rank, shape, stage->from) / (double)peers;
      cost.cells += 2 * (double)(peers - 1) * slice;
      cost.exchanges += 2;
      cost.messages += 2 * (peers - 1);
    } else {
      cost.cells += lacking(mesh, tensor_rank, shape, stage);
      cost.exchanges++;
      cost.messages += peers - 1;
    }
  }
  return cost;
}

sheaf_mesh_profile shf_shard_profile(const sheaf_mesh_profile *profile)
{
  sheaf_mesh_profile full = profile ? *profile : (sheaf_mesh_profile)SHEAF_MESH_PROFILE_INIT;
  if (!(full.latency_us > 0)) full.latency_us = 2.7;
  if (!(full.bandwidth_gbs > 0)) full.bandwidth_gbs = 20.7;
  if (!(full.memory_gbs > 0)) full.memory_gbs = 20;
  return full;
}

sheaf_status sheaf_redistribute_cost(const sheaf_mesh *mesh, int rank_of_tensor, const int64_t *shape,
                                     int64_t element_bytes, const sheaf_placement *from, const sheaf_placement *to,
                                     const sheaf_mesh_profile *profile, sheaf_move_cost *cost)
{
  SHF_REQUIRE(mesh && shape && from && to && cost, INVALID_PROBLEM, "mesh, shape, placements or cost is NULL");
  SHF_REQUIRE(rank_of_tensor >= 0 && rank_of_tensor <= MAX_RANK, INVALID_PROBLEM,
              "a tensor has 0 to %d dimensions, not %d", MAX_RANK, rank_of_tensor);
  SHF_TRY(shf_placements_check(mesh, from, rank_of_tensor, "from"));
  SHF_TRY(shf_placements_check(mesh, to, rank_of_tensor, "to"));
  sheaf_mesh_profile p = shf_shard_profile(profile);
  shf_path path = shf_shard_path(mesh, rank_of_tensor, shape, from, to);
  shf_path_cost counted = shf_shard_path_cost(mesh, rank_of_tensor, shape, &path);
  cost->bytes = counted.cells * (double)element_bytes;
  cost->steps = counted.exchanges;
  cost->microseconds = (double)counted.messages * p.latency_us + cost->bytes / (p.bandwidth_gbs * 1e3);
  return SHEAF_OK;
}
