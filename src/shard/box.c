/* shard/box.c: the part of a tensor that a rank has is a box; boxes meet, and are walked through. */
#include "shard/shard_impl.h"

void shf_shard_chunk(int64_t part, int64_t parts, int64_t *lo, int64_t *hi)
{
  int64_t n = *hi - *lo, chunk = n / parts + (n % parts != 0);
  /* part * chunk may exceed n by far less than an overflow: chunk <= n and parts <= 2^24. */
  int64_t first = part * chunk < n ? part * chunk : n, last = first + chunk < n ? first + chunk : n;
  *hi = *lo + last;
  *lo += first;
}

shf_box shf_shard_box(const sheaf_mesh *mesh, const sheaf_placement *placements, int tensor_rank, const int64_t *shape,
                      int64_t rank)
{
  shf_box box = {.rank = tensor_rank};
  int64_t coords[MAX_DIMS];
  shf_mesh_coords(mesh, rank, coords);
  for (int d = 0; d < tensor_rank; d++) box.hi[d] = shape[d];
  for (int m = 0; m < mesh->dims; m++) {
    if (!shf_is_shard(&placements[m])) continue;
    int d = shf_shard_dim(&placements[m]);
    shf_shard_chunk(coords[m], mesh->size[m], &box.lo[d], &box.hi[d]);
  }
  return box;
}

int64_t shf_box_count(const shf_box *box)
{
  int64_t count = 1;
  for (int d = 0; d < box->rank; d++) count *= box->hi[d] > box->lo[d] ? box->hi[d] - box->lo[d] : 0;
  return count;
}

shf_box shf_box_meet(const shf_box *a, const shf_box *b)
{
  shf_box both = {.rank = a->rank};
  for (int d = 0; d < a->rank; d++) {
    both.lo[d] = a->lo[d] > b->lo[d] ? a->lo[d] : b->lo[d];
    both.hi[d] = a->hi[d] < b->hi[d] ? a->hi[d] : b->hi[d];
  }
  return both;
}

int64_t shf_box_place(const shf_box *part, const shf_box *box, int64_t strides[MAX_RANK])
{
  int64_t at = 0, stride = 1;
  for (int d = part->rank - 1; d >= 0; d--) {
    strides[d] = stride;
    at += (part->lo[d] - box->lo[d]) * stride;
    stride *= box->hi[d] - box->lo[d];
  }
  return at;
}

void shf_box_walk(const shf_box *part, const shf_box *from, const shf_box *to, shf_box_visit *visit, void *context)
{
  if (shf_box_count(part) == 0) return;
  int64_t from_stride[MAX_RANK], to_stride[MAX_RANK], at[MAX_RANK] = {0};
  int64_t source = shf_box_place(part, from, from_stride), target = shf_box_place(part, to, to_stride);
  /* The innermost dimensions that are whole on both sides are one run. */
  int outer = part->rank;
  int64_t run = 1;
  while (outer > 0 && from_stride[outer - 1] == run && to_stride[outer - 1] == run) {
    outer--;
    run *= part->hi[outer] - part->lo[outer];
  }
  for (;;) {
    visit(context, source, target, run);
    int d = outer - 1;
    for (; d >= 0; d--) {
      source += from_stride[d];
      target += to_stride[d];
      if (++at[d] < part->hi[d] - part->lo[d]) break;
      source -= at[d] * from_stride[d];
      target -= at[d] * to_stride[d];
      at[d] = 0;
    }
    if (d < 0) return;
  }
}

int64_t shf_box_piece(const shf_box *part, const shf_box *box)
{
  int64_t stride[MAX_RANK], run = 1;
  int64_t at = shf_box_place(part, box, stride);
  int d = part->rank;
  for (; d > 0 && stride[d - 1] == run; d--) run *= part->hi[d - 1] - part->lo[d - 1];
  for (; d > 0; d--)
    if (part->hi[d - 1] - part->lo[d - 1] != 1) return -1;
  return at;
}
