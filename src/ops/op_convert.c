/* op_convert.c: ops that change type, form or place: quantize, dequantize, coalesce, to_dense, cast, movedim, batch,
 * unbatch; and add. */
#include <inttypes.h>

#include "ops/ops_impl.h"

sheaf_status sheaf_quantize(sheaf_tensor *rows, sheaf_dtype dtype, sheaf_tensor **out)
{
  return shf_ops_unary(SHEAF_OP_QUANTIZE, rows, &(sheaf_attr){.i = dtype}, 1, out);
}

sheaf_status sheaf_dequantize(sheaf_tensor *rows, sheaf_dtype dtype, sheaf_tensor **out)
{
  return shf_ops_unary(SHEAF_OP_DEQUANTIZE, rows, &(sheaf_attr){.i = dtype}, 1, out);
}

sheaf_status sheaf_coalesce(sheaf_tensor *sparse, sheaf_tensor **out)
{
  return shf_ops_unary(SHEAF_OP_COALESCE, sparse, NULL, 0, out);
}

sheaf_status sheaf_to_dense(sheaf_tensor *tensor, sheaf_tensor **out)
{
  return shf_ops_unary(SHEAF_OP_TO_DENSE, tensor, NULL, 0, out);
}

sheaf_status sheaf_cast(sheaf_tensor *tensor, sheaf_dtype dtype, sheaf_tensor **out)
{
  return shf_ops_unary(SHEAF_OP_CAST, tensor, &(sheaf_attr){.i = dtype}, 1, out);
}

sheaf_status sheaf_movedim(sheaf_tensor *tensor, int from, int to, sheaf_tensor **out)
{
  const sheaf_attr attrs[] = {{.i = from}, {.i = to}};
  return shf_ops_unary(SHEAF_OP_MOVEDIM, tensor, attrs, 2, out);
}

sheaf_status sheaf_add(sheaf_tensor *a, sheaf_tensor *b, double alpha, sheaf_tensor **out)
{
  SHF_REQUIRE(out, INVALID_PROBLEM, "add: out is NULL");
  sheaf_tensor *inputs[] = {a, b};
  const sheaf_attr attr = {.f = alpha};
  sheaf_call call = shf_ops_call(SHEAF_OP_ADD, inputs, 2, out, 1, &attr, 1);
  return shf_ops_enter(&call);
}

sheaf_status sheaf_reshape(sheaf_tensor *tensor, int rank, const int64_t *shape, sheaf_tensor **out)
{
  sheaf_attr attrs[1 + SHEAF_TENSOR_MAX_RANK] = {{.i = rank}};
  SHF_REQUIRE(rank >= 0 && rank <= SHEAF_TENSOR_MAX_RANK && (rank == 0 || shape), INVALID_PROBLEM,
              "reshape to %d dimensions; 0 to %d are taken", rank, SHEAF_TENSOR_MAX_RANK);
  for (int i = 0; i < rank; i++) attrs[i + 1].i = shape[i];
  return shf_ops_unary(SHEAF_OP_RESHAPE, tensor, attrs, 1 + SHEAF_TENSOR_MAX_RANK, out);
}

sheaf_status sheaf_expand(sheaf_tensor *tensor, int64_t count, sheaf_tensor **out)
{
  return shf_ops_unary(SHEAF_OP_EXPAND, tensor, &(sheaf_attr){.i = count}, 1, out);
}

/* ---- Vmap: the hidden dimension comes from, or goes to, any place ---- */

sheaf_status sheaf_batch(sheaf_tensor *tensor, int dim, int level, sheaf_tensor **out)
{
  SHF_REQUIRE(tensor && out && !*out, INVALID_PROBLEM, "batch: tensor or out is NULL, or *out is not");
  SHF_REQUIRE(dim >= 0 && dim < tensor->rank, INVALID_PROBLEM, "batch: dimension %d of a tensor that has 0..%d", dim,
              tensor->rank - 1);
  sheaf_tensor *moved = NULL;
  if (dim == 0)
    moved = sheaf_tensor_retain(tensor);
  else
    SHF_TRY(sheaf_movedim(tensor, dim, 0, &moved));
  sheaf_status status = shf_ops_unary(SHEAF_OP_BATCH, moved, &(sheaf_attr){.i = level}, 1, out);
  sheaf_tensor_release(moved);
  return status;
}

sheaf_status sheaf_unbatch(sheaf_tensor *tensor, int dim, int level, sheaf_tensor **out)
{
  SHF_REQUIRE(tensor && out && !*out, INVALID_PROBLEM, "unbatch: tensor or out is NULL, or *out is not");
  SHF_REQUIRE(dim >= 0 && dim <= tensor->rank, INVALID_PROBLEM,
              "unbatch: dimension %d of a result that will have 0..%d", dim, tensor->rank);
  sheaf_tensor *shown = NULL;
  SHF_TRY(shf_ops_unary(SHEAF_OP_UNBATCH, tensor, &(sheaf_attr){.i = level}, 1, &shown));
  sheaf_status status = SHEAF_OK;
  if (dim == 0)
    *out = sheaf_tensor_retain(shown);
  else
    status = sheaf_movedim(shown, 0, dim, out);
  sheaf_tensor_release(shown);
  return status;
}
