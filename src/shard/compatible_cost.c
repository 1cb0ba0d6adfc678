/* shard/compatible_cost.c: what PyTorch's DTensor reckons a change of placements to cost.
 *
 * A walk over mesh dimensions, each step costed as a ring collective over the bytes that are local at that time. The
 * constants and the order of the walk are theirs; the figures are only good for comparing with their decisions. */
#include <math.h>

#include "shard/shard_impl.h"

static const double base_us = 6.6, latency_us = 2.7, bandwidth = 87.7 * 0.22; /* 2^30 bytes a second */

typedef struct walk {
  double local; /* units of 2^30 bytes */
  double cost;  /* microseconds */
} walk;

static double ring(const walk *w, double hops, double n)
{
  return base_us + hops * latency_us + 1e6 * w->local * hops / (n * bandwidth);
}

static void step(walk *w, double n, const sheaf_placement *from, const sheaf_placement *to)
{
  if (sheaf_placement_equal(from, to)) return;
  int to_shard = shf_is_shard(to), to_replicate = to->kind == SHEAF_PLACE_REPLICATE;
  if (shf_is_shard(from) && to_replicate) {
    w->local *= n;
    w->cost += ring(w, n - 1, n);
  } else if (shf_is_shard(from) && to_shard) {
    w->cost += ring(w, n - 1, n) + 1;
  } else if (shf_is_partial(from) && to_replicate) {
    w->cost += ring(w, 2 * (n - 1), n);
  } else if (shf_is_partial(from) && to_shard) {
    w->cost += ring(w, n - 1, n);
    w->local /= n;
  } else if (from->kind == SHEAF_PLACE_REPLICATE) {
    if (to_shard) w->local /= n;
  } else {
    w->cost = INFINITY; /* Shard to Partial, Partial to another Partial */
  }
}

/* Whether the dimensions before m that are now cut as `target` are those that shall be. */
static int outer_cuts_agree(int m, const sheaf_placement *now, const sheaf_placement *to, const sheaf_placement *target)
{
  for (int i = 0; i < m; i++)
    if (sheaf_placement_equal(&now[i], target) != sheaf_placement_equal(&to[i], target)) return 0;
  return 1;
}

double sheaf_compatible_cost(const sheaf_mesh *mesh, int rank_of_tensor, const int64_t *shape, int64_t element_bytes,
                             const sheaf_placement *from, const sheaf_placement *to)
{
  walk w = {.local = (double)element_bytes / (1 << 30)};
  int replicated = 1, sharded = 0;
  sheaf_placement now[MAX_DIMS];
  for (int d = 0; d < rank_of_tensor; d++) w.local *= (double)shape[d];
  for (int m = 0; m < mesh->dims; m++) {
    now[m] = from[m];
    replicated &= from[m].kind == SHEAF_PLACE_REPLICATE;
    sharded |= shf_is_shard(&from[m]);
    if (shf_is_shard(&from[m])) w.local /= (double)mesh->size[m];
  }
  if (replicated) return 0;
  for (int m = mesh->dims - 1; mesh->dims > 1 && sharded && m >= 0; m--) {
    sheaf_placement target = to[m];
    if (shf_is_shard(&target) && !outer_cuts_agree(m, now, to, &target)) target = sheaf_replicate();
    step(&w, (double)mesh->size[m], &now[m], &target);
    now[m] = target;
  }
  for (int m = 0; m < mesh->dims; m++) step(&w, (double)mesh->size[m], &now[m], &to[m]);
  return w.cost;
}
