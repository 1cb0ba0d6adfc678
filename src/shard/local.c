/* shard/local.c: a rank's own work, done by plans. */
#include "shard/local.h"

#include <string.h>

sheaf_operand shf_local_operand(shf_local *local, sheaf_dtype dtype, const void *data, int rank, const int64_t *shape)
{
  memcpy(local->shape, shape, (size_t)rank * sizeof *shape);
  local->tensor = (DLTensor){.data = (void *)data,
                             .device = {kDLCPU, 0},
                             .ndim = rank,
                             .dtype = sheaf_dtype_to_dl(dtype),
                             .shape = local->shape};
  return (sheaf_operand){.tensor = &local->tensor};
}

sheaf_operand shf_local_matrix(shf_local *local, sheaf_dtype dtype, const void *data, int64_t rows, int64_t columns)
{
  return shf_local_operand(local, dtype, data, 2, (int64_t[]){rows, columns});
}

sheaf_operand shf_local_vector(shf_local *local, sheaf_dtype dtype, const void *data, int64_t count)
{
  return shf_local_operand(local, dtype, data, 1, &count);
}

static sheaf_status get_workspace(const sheaf_plan *plan, void **workspace, size_t *bytes)
{
  *bytes = sheaf_plan_workspace_size(plan);
  *workspace = shf_core_alloc(*bytes);
  return *bytes && !*workspace ? shf_core_no_memory("the workspace of a local op", *bytes) : SHEAF_OK;
}

sheaf_status shf_local_embedding(const sheaf_embedding_desc *desc, const sheaf_embedding_args *args)
{
  sheaf_plan *plan;
  void *workspace;
  size_t bytes;
  SHF_TRY(sheaf_embedding_select(desc, NULL, &plan));
  sheaf_status status = get_workspace(plan, &workspace, &bytes);
  if (status == SHEAF_OK) status = sheaf_embedding_run(plan, workspace, bytes, NULL, args);
  if (workspace) shf_core_free(workspace, bytes);
  sheaf_plan_free(plan);
  return status;
}

sheaf_status shf_local_segment(const sheaf_segment_desc *desc, const sheaf_segment_args *args)
{
  sheaf_plan *plan;
  void *workspace;
  size_t bytes;
  SHF_TRY(sheaf_segment_select(desc, NULL, &plan));
  sheaf_status status = get_workspace(plan, &workspace, &bytes);
  if (status == SHEAF_OK) status = sheaf_segment_run(plan, workspace, bytes, NULL, args);
  if (workspace) shf_core_free(workspace, bytes);
  sheaf_plan_free(plan);
  return status;
}
