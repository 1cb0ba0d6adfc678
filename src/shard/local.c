/* shard/local.c: a rank's own work, done by plans. */
#include "shard/local.h"

#include <string.h>

sheaf_operand shf_local_operand(shf_local *local, shf_site site, sheaf_dtype dtype, const void *data, int rank,
                                const int64_t *shape)
{
  memcpy(local->shape, shape, (size_t)rank * sizeof *shape);
  local->tensor = (DLTensor){.data = (void *)data,
                             .device = site.device,
                             .ndim = rank,
                             .dtype = sheaf_dtype_to_dl(dtype),
                             .shape = local->shape};
  return (sheaf_operand){.tensor = &local->tensor};
}

sheaf_operand shf_local_matrix(shf_local *local, shf_site site, sheaf_dtype dtype, const void *data, int64_t rows,
                               int64_t columns)
{
  return shf_local_operand(local, site, dtype, data, 2, (int64_t[]){rows, columns});
}

sheaf_operand shf_local_vector(shf_local *local, shf_site site, sheaf_dtype dtype, const void *data, int64_t count)
{
  return shf_local_operand(local, site, dtype, data, 1, &count);
}

/* What runs a plan of either family. */
static sheaf_status prepare(shf_site site, shf_ready *r)
{
  r->bytes = sheaf_plan_workspace_size(r->plan);
  r->workspace = shf_buffer_get(site.mesh, site.device, (int64_t)r->bytes);
  return r->bytes && !r->workspace ? shf_core_no_memory("the workspace of a local op", r->bytes) : SHEAF_OK;
}

static void finish(shf_site site, shf_ready *r)
{
  shf_buffer_put(site.mesh, site.device, r->workspace, (int64_t)r->bytes);
  sheaf_plan_free(r->plan);
}

sheaf_status shf_local_ready(shf_site site, shf_pool *pool, sheaf_embedding_desc *desc, shf_ready *ready)
{
  desc->device = site.device;
  SHF_REQUIRE(pool->plans < MAX_PLANS, INTERNAL, "a call uses more than %d plans at a time", MAX_PLANS);
  SHF_TRY(sheaf_embedding_select(desc, NULL, &ready->plan));
  pool->plan[pool->plans++] = ready->plan;
  ready->bytes = sheaf_plan_workspace_size(ready->plan);
  return shf_pool_get_on(pool, site.device, (int64_t)ready->bytes, &ready->workspace);
}

sheaf_status shf_local_run(const shf_ready *ready, const sheaf_embedding_args *args)
{
  return sheaf_embedding_run(ready->plan, ready->workspace, ready->bytes, NULL, args);
}

sheaf_status shf_local_embedding(shf_site site, sheaf_embedding_desc *desc, const sheaf_embedding_args *args)
{
  shf_ready r = {0};
  desc->device = site.device;
  SHF_TRY(sheaf_embedding_select(desc, NULL, &r.plan));
  sheaf_status status = prepare(site, &r);
  if (status == SHEAF_OK) status = shf_local_run(&r, args);
  finish(site, &r);
  return status;
}

sheaf_status shf_local_segment(shf_site site, sheaf_segment_desc *desc, const sheaf_segment_args *args)
{
  shf_ready r = {0};
  desc->device = site.device;
  SHF_TRY(sheaf_segment_select(desc, NULL, &r.plan));
  sheaf_status status = prepare(site, &r);
  if (status == SHEAF_OK) status = sheaf_segment_run(r.plan, r.workspace, r.bytes, NULL, args);
  finish(site, &r);
  return status;
}
