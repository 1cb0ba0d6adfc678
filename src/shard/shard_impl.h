/* shard/shard_impl.h: what the files of shard/ share: meshes, boxes, paths between placements, exchanges.
 *
 * Everything rests on one fact: under any placements a rank's part of a tensor is a *box*, a range in each dimension.
 * Moving data is intersecting boxes (box.c, exchange.c); planning a move is counting what the intersections hold
 * (path.c). No function here knows about particular pairs of placements. */
#ifndef SHF_SHARD_IMPL_H
#define SHF_SHARD_IMPL_H

#include <sheaf/shard.h>

#include "comm/comm.h"
#include "core/memory.h"

enum { MAX_DIMS = SHEAF_MESH_MAX_DIMS, MAX_RANK = SHEAF_SHARD_MAX_RANK, MAX_INPUTS = SHEAF_SHARD_MAX_INPUTS };

struct sheaf_mesh {
  int dims;
  int64_t size[MAX_DIMS];
  int64_t ranks;
  int64_t rank; /* -1: abstract */
  sheaf_comm *comm;
  char *scratch; /* over a communicator: SHF_SCRATCH bytes for each rank (agree.c) */
  size_t scratch_bytes;
  struct shf_buffers *buffers; /* over a communicator */
};

/* ---- Boxes: mesh.c, box.c --------------------------------------------------------------------------------------- */

/* Coordinates of a rank in the mesh. */
void shf_mesh_coords(const sheaf_mesh *mesh, int64_t rank, int64_t *coords);

/* A range in each dimension. */
typedef struct shf_box {
  int rank;
  int64_t lo[MAX_RANK], hi[MAX_RANK];
} shf_box;

/* The chunk rule: what part `part` of `parts` has of [*lo, *hi). */
void shf_shard_chunk(int64_t part, int64_t parts, int64_t *lo, int64_t *hi);

/* The box of a rank. Shards must name dimensions that exist; Bags counts as S(0). */
shf_box shf_shard_box(const sheaf_mesh *mesh, const sheaf_placement *placements, int tensor_rank, const int64_t *shape,
                      int64_t rank);
int64_t shf_box_count(const shf_box *box);
shf_box shf_box_meet(const shf_box *a, const shf_box *b);

/* Calls `visit` for every run of cells of `part` that lies in one piece both in a buffer that holds `from` and in one
 * that holds `to`: where the run begins in either, in cells. */
typedef void shf_box_visit(void *context, int64_t from_cell, int64_t to_cell, int64_t cells);
void shf_box_walk(const shf_box *part, const shf_box *from, const shf_box *to, shf_box_visit *visit, void *context);

/* Where `part` begins in a buffer that holds `box`, and the distance of its neighbours in each dimension, in cells. */
int64_t shf_box_place(const shf_box *part, const shf_box *box, int64_t strides[MAX_RANK]);

/* Where `part` begins in a buffer that holds `box`, in cells, when it lies there in one piece; else -1. */
int64_t shf_box_piece(const shf_box *part, const shf_box *box);

/* ---- Buffers: buffers.c ----------------------------------------------------------------------------------------- */

sheaf_status shf_buffers_create(struct shf_buffers **buffers);
void shf_buffers_free(struct shf_buffers *buffers);

/* Memory on a device or the CPU, from what the mesh keeps if it can be; NULL when there is none, or for 0 bytes. Given
 * back with the number of bytes that was asked for. */
void *shf_buffer_get(const sheaf_mesh *mesh, DLDevice device, int64_t bytes);
void shf_buffer_put(const sheaf_mesh *mesh, DLDevice device, void *memory, int64_t bytes);

/* ---- Placements: placement.c ------------------------------------------------------------------------------------ */

static inline int shf_is_partial(const sheaf_placement *p)
{
  return p->kind == SHEAF_PLACE_PARTIAL || p->kind == SHEAF_PLACE_MASK_PARTIAL;
}

static inline int shf_is_shard(const sheaf_placement *p)
{
  return p->kind == SHEAF_PLACE_SHARD || p->kind == SHEAF_PLACE_BAGS;
}

static inline int shf_shard_dim(const sheaf_placement *p) { return p->kind == SHEAF_PLACE_BAGS ? 0 : p->dim; }

/* Dimensions exist, kinds and ops are known, kinds of Partial do not mix: else INVALID_PROBLEM naming `what`. */
sheaf_status shf_placements_check(const sheaf_mesh *mesh, const sheaf_placement *placements, int tensor_rank,
                                  const char *what);
int shf_placements_equal(const sheaf_mesh *mesh, const sheaf_placement *a, const sheaf_placement *b);

/* "S(0), R" into text; returns it. */
enum { PLACEMENTS_TEXT = 64 };
char *shf_placements_text(const sheaf_mesh *mesh, const sheaf_placement *placements, char text[PLACEMENTS_TEXT]);

/* A struct that starts with struct_size: at least `known` bytes, and zero after those. */
sheaf_status shf_shard_check_struct(const void *given, size_t known, const char *what);

/* ---- Paths: path.c ---------------------------------------------------------------------------------------------- */

typedef enum shf_stage_kind {
  SHF_STAGE_EXCHANGE, /* boxes meet: every rank gets what it lacks of its new box, adding terms of partial dimensions */
  SHF_STAGE_REDUCE,   /* partial dimensions `over` become Replicate, everything else stays: slices, then all of them */
  SHF_STAGE_FILL /* Replicate becomes a Partial: the first rank keeps the value, others take what changes nothing */
} shf_stage_kind;

typedef struct shf_stage {
  shf_stage_kind kind;
  sheaf_placement from[MAX_DIMS], to[MAX_DIMS];
  int moves; /* whether ranks need anything of each other */
} shf_stage;

enum { MAX_STAGES = 4 };

typedef struct shf_path {
  int stages;
  shf_stage stage[MAX_STAGES];
} shf_path;

/* The cheapest way between two placements; the same on every rank. */
shf_path shf_shard_path(const sheaf_mesh *mesh, int tensor_rank, const int64_t *shape, const sheaf_placement *from,
                        const sheaf_placement *to);

/* Most cells any rank receives on the way, and exchanges. */
typedef struct shf_path_cost {
  double cells;
  int64_t exchanges, messages;
} shf_path_cost;
shf_path_cost shf_shard_path_cost(const sheaf_mesh *mesh, int tensor_rank, const int64_t *shape, const shf_path *path);

/* Most cells any rank has. */
double shf_shard_largest(const sheaf_mesh *mesh, int tensor_rank, const int64_t *shape,
                         const sheaf_placement *placements);

/* ---- Strategies: strategy.c, estimate.c ------------------------------------------------------------------------- */

/* Shapes of inputs and output of a problem, in the order of sheaf_strategy. */
typedef struct shf_operand_shape {
  int rank;
  int64_t shape[MAX_RANK];
  int64_t cell; /* bytes of an element */
} shf_operand_shape;

typedef struct shf_shard_shapes {
  int inputs;
  shf_operand_shape in[MAX_INPUTS], out;
} shf_shard_shapes;

int shf_segment_is_backward(uint16_t kind);

sheaf_status shf_shard_shapes_of(const sheaf_shard_problem *problem, shf_shard_shapes *shapes);

/* Fills in microseconds, bytes_moved and bytes_memory. */
void shf_shard_estimate(const sheaf_shard_problem *problem, const shf_shard_shapes *shapes,
                        const sheaf_mesh_profile *profile, sheaf_strategy *strategy);

/* The profile with defaults for what is zero. */
sheaf_mesh_profile shf_shard_profile(const sheaf_mesh_profile *profile);

#endif
