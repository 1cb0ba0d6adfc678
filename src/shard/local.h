/* shard/local.h: distributed tensors inside, conversions, and a rank's own work. */
#ifndef SHF_SHARD_LOCAL_H
#define SHF_SHARD_LOCAL_H

#include "core/dtype.h"
#include "shard/move.h"

/* ---- Distributed tensors: dtensor.c ----------------------------------------------------------------------------- */

struct sheaf_dtensor {
  sheaf_dtensor_desc desc;
  DLTensor local;
  int64_t local_shape[MAX_RANK];
  int64_t local_strides[MAX_RANK];
  void *owned; /* NULL: borrowed. Else one of the mesh's buffers */
  size_t owned_bytes;
};

/* What a part is made of: f32 for Partial tensors of 16-bit types, else the tensor's own type. */
sheaf_dtype shf_local_dtype(const sheaf_mesh *mesh, sheaf_dtype dtype, const sheaf_placement *placements);

/* The tensor as an array. */
shf_array shf_dtensor_array(const sheaf_dtensor *tensor);

/* A tensor whose elements are not set; of one placed by Bags, `entries` are here. */
sheaf_status shf_dtensor_make(const sheaf_dtensor_desc *desc, int64_t entries, sheaf_dtensor **tensor);

/* Replaces a tensor by one that lies as `to` says. When anything has to be sent, ranks agree first; when not, it does
 * not communicate. A rank that failed before has no tensor, but takes part with its description. */
void shf_relocate(shf_flow *flow, const sheaf_dtensor_desc *desc, sheaf_dtensor **tensor, const sheaf_placement *to);

/* The same for an input, which is left alone: `*moved` is NULL when it already lies so. */
void shf_relocate_input(shf_flow *flow, const sheaf_dtensor *input, const sheaf_placement *to, sheaf_dtensor **moved);

/* Its part's first byte; NULL for an empty part, and for no tensor. */
static inline char *shf_dtensor_data(const sheaf_dtensor *tensor)
{
  return tensor && tensor->local.data ? (char *)tensor->local.data + tensor->local.byte_offset : NULL;
}

/* How terms of this type are reduced under a placement. */
shf_reducer shf_reducer_of(const sheaf_placement *placement, sheaf_dtype local_dtype);

/* Elements from one of F32 F64 F16 BF16 to another, rounded to nearest. The same type copies bits. */
void shf_convert(sheaf_dtype from, const void *source, sheaf_dtype to, void *target, int64_t count);

/* One element as a double (exact), and a double that is already rounded to acc stored (rounded once more). */
double shf_load(sheaf_dtype dtype, const void *data, int64_t at);
void shf_store(sheaf_dtype dtype, void *data, int64_t at, double value);

/* One index (I32 or I64). */
int64_t shf_load_index(sheaf_dtype dtype, const void *data, int64_t at);
void shf_store_index(sheaf_dtype dtype, void *data, int64_t at, int64_t value);

/* ---- Memory of one call: pool.c --------------------------------------------------------------------------------- */

/* Everything an op allocates, plans too, freed together. */
enum { MAX_POOL = 64, MAX_PLANS = 4 };
typedef struct shf_pool {
  const sheaf_mesh *mesh;
  int count, plans;
  struct {
    void *memory;
    int64_t bytes;
    DLDevice device;
  } at[MAX_POOL];
  sheaf_plan *plan[MAX_PLANS];
} shf_pool;

/* Memory until shf_pool_free, of the CPU or of a device; `*memory` is NULL for 0 bytes. */
sheaf_status shf_pool_get(shf_pool *pool, int64_t bytes, void **memory);
sheaf_status shf_pool_get_on(shf_pool *pool, DLDevice device, int64_t bytes, void **memory);
void shf_pool_free(shf_pool *pool);

/* ---- A rank's own work: local.c --------------------------------------------------------------------------------- */

/* A contiguous tensor, with its shape beside it. */
typedef struct shf_local {
  DLTensor tensor;
  int64_t shape[MAX_RANK];
} shf_local;

/* Where a rank's own work is done, and whose buffers it uses. */
typedef struct shf_site {
  const sheaf_mesh *mesh;
  DLDevice device;
} shf_site;

/* Fills in `*local` (which must not move afterwards) and gives the operand for it. */
sheaf_operand shf_local_operand(shf_local *local, shf_site site, sheaf_dtype dtype, const void *data, int rank,
                                const int64_t *shape);
sheaf_operand shf_local_matrix(shf_local *local, shf_site site, sheaf_dtype dtype, const void *data, int64_t rows,
                               int64_t columns);
sheaf_operand shf_local_vector(shf_local *local, shf_site site, sheaf_dtype dtype, const void *data, int64_t count);

/* A plan and its workspace, which belong to the pool: run later, when nothing may fail. */
typedef struct shf_ready {
  sheaf_plan *plan;
  void *workspace;
  size_t bytes;
} shf_ready;
sheaf_status shf_local_ready(shf_site site, shf_pool *pool, sheaf_embedding_desc *desc, shf_ready *ready);
sheaf_status shf_local_run(const shf_ready *ready, const sheaf_embedding_args *args);

/* Selects a plan, runs it once, and frees it. These are where this folder computes with plans. */
sheaf_status shf_local_embedding(shf_site site, sheaf_embedding_desc *desc, const sheaf_embedding_args *args);
sheaf_status shf_local_segment(shf_site site, sheaf_segment_desc *desc, const sheaf_segment_args *args);

#endif
