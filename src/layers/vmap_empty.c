/* vmap_empty.c: vmap over no slices, which a plan cannot run. Shapes and checks are those of one slice without data;
 * what comes out is empty, and depends on its inputs all the same: their gradients are zero. */
#include "layers/vmap_impl.h"

/* What an input of one problem looks like, without data and without its first `hidden` dimensions. */
static sheaf_status shape_of(const sheaf_tensor *t, int hidden, sheaf_tensor **out)
{
  *out = NULL;
  if (shf_is_batched(t)) return shape_of(t->part[0], t->levels, out);
  int nested = t->form == SHEAF_FORM_NESTED;
  if (nested || t->form == SHEAF_FORM_SPARSE) {
    sheaf_tensor *part[2] = {NULL, NULL};
    sheaf_status status = shape_of(t->part[0], nested ? hidden : 0, &part[0]);
    if (status == SHEAF_OK) status = shape_of(t->part[1], 0, &part[1]);
    if (status == SHEAF_OK)
      status = nested ? shf_tensor_nested(part[0], part[1], t->lead - hidden, out)
                      : shf_tensor_sparse(part[0], part[1], t->rank - hidden, t->extent + hidden, t->coalesced, out);
    sheaf_tensor_release(part[0]);
    sheaf_tensor_release(part[1]);
    return status;
  }
  DLTensor dl = t->dl;
  dl.ndim -= hidden;
  dl.shape += hidden;
  dl.strides = NULL;
  if (t->form != SHEAF_FORM_QUANTIZED) return sheaf_tensor_meta(&dl, out);
  sheaf_tensor *packed;
  SHF_TRY(sheaf_tensor_meta(&dl, &packed));
  sheaf_status status = sheaf_tensor_quantized(packed, t->dtype, t->extent[t->rank - 1], out);
  sheaf_tensor_release(packed);
  return status;
}

/* ---- Results ---- */

/* Where the components of a call's nested input begin, which are those of its nested results. */
static sheaf_tensor *offsets_of(const sheaf_call *call)
{
  for (int i = 0; i < call->input_count; i++) {
    const sheaf_tensor *t = shf_is_batched(call->inputs[i]) ? call->inputs[i]->part[0] : call->inputs[i];
    if (t && t->form == SHEAF_FORM_NESTED) return t->part[1];
  }
  return NULL;
}

/* A list of no rows, as a tensor of this shape. */
static sheaf_status make_no_rows(sheaf_dtype dtype, int rank, const int64_t *shape, const sheaf_tensor *like,
                                 sheaf_tensor **out)
{
  int64_t none[] = {0, shape[rank - 1]};
  sheaf_tensor *ids, *rows = NULL;
  SHF_TRY(shf_tensor_make(SHEAF_I64, 1, none, like, &ids));
  sheaf_status status = shf_tensor_make(dtype, 2, none, like, &rows);
  if (status == SHEAF_OK) status = shf_tensor_sparse(ids, rows, rank, shape, 1, out);
  sheaf_tensor_release(rows);
  sheaf_tensor_release(ids);
  return status;
}

/* An empty result in the shape of one problem's, behind the levels. */
static sheaf_status make_empty(const sheaf_call *call, const sheaf_tensor *one, const shf_levels *all,
                               sheaf_tensor **out)
{
  int64_t extent[2 * SHEAF_TENSOR_MAX_RANK];
  int rank = all->count + one->rank;
  for (int l = 0; l < all->count; l++) extent[l] = all->extent[l];
  for (int d = 0; d < one->rank; d++) extent[all->count + d] = one->extent[d];
  SHF_REQUIRE(rank <= SHEAF_TENSOR_MAX_RANK, INVALID_PROBLEM,
              "%s within vmap: a result of %d dimensions; %d are the most", shf_op_name(call), rank,
              SHEAF_TENSOR_MAX_RANK);
  if (one->form == SHEAF_FORM_META) return shf_tensor_make(one->dtype, rank, extent, call->inputs[0], out);
  if (one->form == SHEAF_FORM_SPARSE) return make_no_rows(one->dtype, rank, extent, call->inputs[0], out);
  sheaf_tensor *offsets = offsets_of(call), *values;
  SHF_REQUIRE(one->form == SHEAF_FORM_NESTED && offsets, UNSUPPORTED, "%s: a result of form %d over no problems",
              shf_op_name(call), (int)one->form);
  SHF_TRY(make_empty(call, one->part[0], all, &values));
  sheaf_status status = shf_tensor_nested(values, offsets, all->count + one->lead, out);
  sheaf_tensor_release(values);
  return status;
}

/* ---- Gradients ---- */

/* Indices that name no rows: as many components as the result has, or none. */
static sheaf_status make_no_indices(const sheaf_tensor *result, sheaf_tensor **out)
{
  sheaf_tensor *values;
  if (result->form != SHEAF_FORM_NESTED) return shf_tensor_make(SHEAF_I64, 1, (int64_t[]){0}, result, out);
  SHF_TRY(shf_tensor_make(SHEAF_I64, result->lead + 1, result->part[0]->extent, result, &values));
  sheaf_status status = shf_tensor_nested(values, result->part[1], result->lead, out);
  sheaf_tensor_release(values);
  return status;
}

/* A lookup of none of the rows, in the shape and type of the result. */
static sheaf_status look_up_nothing(sheaf_tensor *rows, const sheaf_tensor *result, const sheaf_frame *frame,
                                    sheaf_tensor **out)
{
  sheaf_tensor *inputs[2] = {rows, NULL}, *found = NULL, *shaped = NULL;
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS] = {[SHEAF_EMBEDDING_PADDING_IDX].i = -1};
  SHF_TRY(make_no_indices(result, &inputs[1]));
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = SHEAF_OP_EMBEDDING;
  call.inputs = inputs;
  call.input_count = 2;
  call.outputs = &found;
  call.output_count = 1;
  call.attrs = attrs;
  call.attr_count = SHEAF_EMBEDDING_ATTRS;
  sheaf_status status = shf_redispatch(&call, frame);
  if (status == SHEAF_OK) status = shf_send_reshape(found, result->rank, result->extent, frame, &shaped);
  if (status == SHEAF_OK) status = shf_send_dtype(SHEAF_OP_CAST, shaped, result->dtype, frame, out);
  sheaf_tensor_release(shaped);
  sheaf_tensor_release(found);
  sheaf_tensor_release(inputs[1]);
  return status;
}

/* A dense or nested tensor as a matrix of its last dimension. */
static sheaf_status as_matrix(sheaf_tensor *t, const sheaf_frame *frame, sheaf_tensor **rows)
{
  sheaf_tensor *dense = NULL;
  *rows = NULL;
  if (t->form == SHEAF_FORM_NESTED)
    SHF_TRY(shf_send_unary(SHEAF_OP_TO_DENSE, t, frame, &dense));
  else
    dense = sheaf_tensor_retain(t);
  if (dense->rank == 2) {
    *rows = dense;
    return SHEAF_OK;
  }
  int whole = dense->rank > 1;
  int64_t matrix[] = {1, whole ? dense->extent[dense->rank - 1] : 1};
  for (int d = 0; d < dense->rank - whole; d++) matrix[0] *= dense->extent[d];
  sheaf_status status = shf_send_reshape(dense, 2, matrix, frame, rows);
  sheaf_tensor_release(dense);
  return status;
}

/* Nothing is looked up in the inputs that require a gradient, and added to the result, so that backward gives them
 * zeros of the kind that they want. */
static sheaf_status join_graphs(const sheaf_call *call, const sheaf_frame *frame, sheaf_tensor **result)
{
  for (int i = 0; i < call->input_count; i++) {
    sheaf_tensor *t = shf_is_batched(call->inputs[i]) ? call->inputs[i]->part[0] : call->inputs[i];
    sheaf_tensor *rows = NULL, *nothing = NULL, *joined = NULL;
    if (!t || !sheaf_tensor_requires_grad(t)) continue;
    sheaf_status status = as_matrix(t, frame, &rows);
    if (status == SHEAF_OK) status = look_up_nothing(rows, *result, frame, &nothing);
    if (status == SHEAF_OK) status = shf_send_add(*result, nothing, 1, frame, &joined);
    sheaf_tensor_release(nothing);
    sheaf_tensor_release(rows);
    SHF_TRY(status);
    sheaf_tensor_release(*result);
    *result = joined;
  }
  return SHEAF_OK;
}

sheaf_status shf_vmap_over_nothing(const sheaf_call *call, const sheaf_frame *frame, const shf_levels *all)
{
  sheaf_tensor *inputs[SHF_VMAP_INPUTS] = {NULL}, *results[SHF_VMAP_OUTPUTS] = {NULL, NULL};
  sheaf_status status = SHEAF_OK;
  for (int i = 0; i < call->input_count && status == SHEAF_OK; i++)
    if (call->inputs[i]) status = shape_of(call->inputs[i], 0, &inputs[i]);
  sheaf_call one = *call;
  one.inputs = inputs;
  one.outputs = results;
  if (status == SHEAF_OK) status = shf_redispatch(&one, frame);
  for (int i = 0; i < call->input_count; i++) sheaf_tensor_release(inputs[i]);
  for (int i = 0; i < call->output_count && i < SHF_VMAP_OUTPUTS; i++) {
    sheaf_tensor *shape = results[i];
    results[i] = NULL;
    if (!shape) continue;
    if (status == SHEAF_OK) status = make_empty(call, shape, all, &results[i]);
    if (status == SHEAF_OK && shf_dtype_is_float(shape->dtype) && shape->form != SHEAF_FORM_SPARSE)
      status = join_graphs(call, frame, &results[i]);
    sheaf_tensor_release(shape);
  }
  if (status == SHEAF_OK) return shf_vmap_hand_out(call, results, all, 0, frame);
  for (int i = 0; i < call->output_count && i < SHF_VMAP_OUTPUTS; i++) sheaf_tensor_release(results[i]);
  return status;
}
