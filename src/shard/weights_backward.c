/* shard/weights_backward.c: the gradient of per-sample weights: a dot product per entry, of a row and the gradient of
 * its bag. A rank has some of the rows, some of the columns, or a term of the gradient: its products are terms of a
 * sum. */
#include <string.h>

#include "shard/embedding_call.h"

/* NOLINTBEGIN(clang-analyzer-core.*): the analyzer does not see that a flow which failed stays failed. */

/* Mesh dimensions along which ranks have terms of the same entries' products. */
static int term_dims(const shf_call *c)
{
  int dims = 0;
  for (int m = 0; m < c->flow.mesh->dims; m++) {
    int cut = shf_is_shard(&c->strategy.out[m]) && !(c->strategy.dispatch >> m & 1);
    if (cut || shf_is_partial(&c->strategy.in[0][m])) dims |= 1 << m;
  }
  return dims;
}

/* Adds the terms over these dimensions, in the order of ranks. Collective. */
static void add_terms(shf_call *c, int dims, void *products, int64_t entries, sheaf_dtype dtype)
{
  shf_array array = {.mesh = c->flow.mesh, .device = c->site.device, .rank = 1, .cell = shf_core_dtype_size(dtype)};
  array.shape[0] = entries;
  array.reducer = (shf_reducer){.kind = SHF_FOLD_SUM, .dtype = dtype};
  sheaf_placement whole[MAX_DIMS] = {{0}};
  for (int m = 0; m < c->flow.mesh->dims; m++)
    if (dims >> m & 1) array.at[m] = sheaf_partial(SHEAF_PARTIAL_SUM);
  array.data = products;
  shf_move move = {0};
  FLOW(&c->flow, shf_move_prepare(&move, &array, whole));
  if (shf_flow_agree(&c->flow)) SURELY(&c->flow, shf_move_run(&move));
  if (c->flow.status == SHEAF_OK && move.result_is_own)
    SURELY(&c->flow, shf_space_copy(c->site.device, products, move.result.data, entries * array.cell));
  shf_move_free(&move);
}

/* An input in the type the products are computed in. */
static sheaf_status as_type(shf_call *c, const sheaf_dtensor *tensor, sheaf_dtype wanted, const void **data)
{
  sheaf_dtype held = sheaf_dtype_from_dl(tensor->local.dtype);
  int64_t count = tensor->local_shape[0] * tensor->local_shape[1];
  return shf_call_convert(c, held, shf_dtensor_data(tensor), wanted, count, data);
}

static sheaf_status run_local(shf_embedding_call *e, const shf_local_rows *rows, const sheaf_dtensor *grad,
                              const sheaf_dtensor *forward, void *products)
{
  sheaf_embedding_desc desc;
  sheaf_embedding_args args;
  shf_local_embedding_parts parts;
  shf_local weights_grad;
  const void *grad_out, *weights, *out = NULL;
  shf_site site = e->c.site;
  shf_embedding_local_op(e, e->desc->kind, rows, &desc, &args, &parts);
  SHF_TRY(as_type(&e->c, grad, rows->dtype, &grad_out));
  if (forward) SHF_TRY(as_type(&e->c, forward, rows->dtype, &out));
  SHF_TRY(shf_call_convert(&e->c, e->c.weights, e->bags.weights, rows->dtype, e->bags.entries, &weights));
  desc.weighted = 1;
  const int64_t *shape = parts.indices.shape;
  int rank = parts.indices.tensor.ndim;
  args.weights = shf_local_operand(&parts.weights, site, rows->dtype, weights, rank, shape);
  args.weights_grad = shf_local_operand(&weights_grad, site, rows->dtype, products, rank, shape);
  args.table = shf_local_matrix(&parts.table, site, rows->dtype, rows->data, rows->rows, e->columns);
  args.grad_out = shf_local_matrix(&parts.grad_out, site, rows->dtype, grad_out, e->bags.bags, e->columns);
  if (forward) args.out = shf_local_matrix(&parts.out, site, rows->dtype, out, e->bags.bags, e->columns);
  return shf_local_embedding(site, &desc, &args);
}

static sheaf_status make_result(shf_embedding_call *e, sheaf_dtensor **tensor)
{
  const shf_call *c = &e->c;
  sheaf_dtensor_desc desc = SHEAF_DTENSOR_DESC_INIT;
  desc.mesh = (sheaf_mesh *)c->flow.mesh;
  desc.device = c->site.device;
  desc.dtype = c->values;
  desc.rank = c->problem.index_rank;
  memcpy(desc.shape, c->problem.index_shape, sizeof desc.shape);
  memcpy(desc.placements, c->strategy.in[1], sizeof desc.placements);
  return shf_dtensor_make(&desc, e->bags.entries, tensor);
}

void shf_embedding_weights_grad(shf_embedding_call *e, sheaf_dtensor **weights_grad)
{
  shf_call *c = &e->c;
  int dims = term_dims(c), mean = e->desc->kind == SHEAF_BAG_MEAN_BACKWARD;
  sheaf_placement at[MAX_DIMS] = {{0}}, grad_at[MAX_DIMS] = {{0}};
  for (int m = 0; m < c->flow.mesh->dims; m++) {
    at[m] = shf_is_partial(&c->strategy.out[m]) ? sheaf_replicate() : c->strategy.out[m];
    grad_at[m] = shf_is_partial(&c->strategy.in[0][m]) ? sheaf_replicate() : c->strategy.in[0][m];
  }
  const sheaf_dtensor *table = shf_call_bring(c, e->args->table, at);
  const sheaf_dtensor *grad = shf_call_bring(c, e->args->grad_out, c->strategy.in[0]);
  const sheaf_dtensor *forward = mean ? shf_call_bring(c, e->args->forward, grad_at) : NULL;
  sheaf_dtype dtype = dims ? e->acc : c->values;
  shf_local_rows rows = {0};
  shf_dispatch d = {0};
  void *products = NULL;
  if (c->strategy.dispatch || dtype != c->values) {
    FLOW(&c->flow, shf_bags_read(c, &e->bags));
    shf_embedding_group(e, at, e->bags.host.indices, e->bags.entries, &d);
    shf_embedding_compact(e, table, dtype, &d, &rows);
  } else if (c->flow.status == SHEAF_OK) {
    rows = shf_embedding_rows(e, table);
  }
  FLOW(&c->flow, shf_call_get(c, e->bags.entries * shf_core_dtype_size(dtype), &products));
  FLOW(&c->flow, make_result(e, weights_grad));
  FLOW(&c->flow, run_local(e, &rows, grad, forward, products));
  if (dims) add_terms(c, dims, products, e->bags.entries, dtype);
  FLOW(&c->flow,
       shf_space_convert(c->site.device, dtype, products, c->values, shf_dtensor_data(*weights_grad), e->bags.entries));
}
/* NOLINTEND(clang-analyzer-core.*) */
