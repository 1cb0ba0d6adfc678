/* sparse_layer.c: the Sparse key: row-sparse tables and data as inputs, row-sparse gradients, sums of sparse and dense.
 *
 * A call over a row-sparse table touches few rows: they are numbered from 0, gathered (a missing row is zero), and the
 * call goes on with a small table. A sparse gradient is the same the other way: the dense op on the touched rows only.
 * That is why a coalesced gradient has the bits of the dense one, and why nothing of the table's size is made. */
#include <inttypes.h>

#include "layers/sparse_impl.h"

/* ---- Sparse tables ---- */

/* Where each of these (increasing) ids is in the list of a coalesced tensor; -1 where it is not. */
static sheaf_status find_places(sheaf_tensor *list, const sheaf_tensor *host_ids, sheaf_tensor **places)
{
  sheaf_tensor *host_list, *found = NULL;
  *places = NULL;
  SHF_TRY(shf_tensor_on_host(list, &host_list));
  sheaf_status status = shf_tensor_make(SHEAF_I64, 1, host_ids->extent, host_ids, &found);
  for (int64_t i = 0; status == SHEAF_OK && i < host_ids->extent[0]; i++)
    ((int64_t *)found->dl.data)[i] = shf_find_id(host_list, shf_index_at(host_ids, i));
  if (status == SHEAF_OK) status = sheaf_tensor_to(found, shf_device_of(list), places);
  sheaf_tensor_release(found);
  sheaf_tensor_release(host_list);
  return status;
}

/* On a device: a lookup in which the missing rows are bad indices. */
static sheaf_status look_up_rows(sheaf_tensor *values, sheaf_tensor *places, const sheaf_frame *frame,
                                 sheaf_tensor **rows)
{
  sheaf_tensor *inputs[2] = {values, places};
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS] = {
      [SHEAF_EMBEDDING_PADDING_IDX].i = -1, [SHEAF_EMBEDDING_BAD_INDEX].i = SHEAF_BAD_INDEX_SKIP};
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = SHEAF_OP_EMBEDDING;
  call.inputs = inputs;
  call.outputs = rows;
  call.attrs = attrs;
  call.input_count = 2;
  call.output_count = 1;
  call.attr_count = SHEAF_EMBEDDING_ATTRS;
  return shf_redispatch(&call, frame);
}

/* The rows with these ids, missing ones as zero: [count, D]. */
static sheaf_status gather_rows(const sheaf_tensor *sparse, const shf_compact *compact, const sheaf_frame *frame,
                                sheaf_tensor **rows)
{
  sheaf_tensor *values = sparse->part[1], *places;
  int64_t shape[] = {compact->count, sparse->extent[1]}, size = shf_core_dtype_size(sparse->dtype);
  SHF_REQUIRE(values->strides[1] == 1, UNSUPPORTED, "rows of a row-sparse tensor must be contiguous");
  SHF_TRY(find_places(sparse->part[0], compact->host_ids, &places));
  int on_device = shf_is_on(values, SHEAF_KEY_CUDA);
  sheaf_status status =
      on_device ? look_up_rows(values, places, frame, rows) : shf_tensor_make(sparse->dtype, 2, shape, values, rows);
  for (int64_t i = 0; status == SHEAF_OK && !on_device && i < shape[0]; i++) {
    int64_t at = shf_index_at(places, i);
    char *to = (char *)(*rows)->dl.data + i * shape[1] * size;
    if (at < 0)
      memset(to, 0, (size_t)(shape[1] * size));
    else
      memcpy(to, (const char *)shf_data(values) + at * values->strides[0] * size, (size_t)(shape[1] * size));
  }
  sheaf_tensor_release(places);
  return status;
}

/* Places that a maximum names, as numbers of the whole table again. */
static sheaf_status restore_arg(sheaf_tensor *arg, const sheaf_tensor *host_ids)
{
  sheaf_tensor *host;
  SHF_TRY(shf_tensor_on_host(arg, &host));                           /* the tensor itself on the CPU */
  int64_t count = shf_tensor_elements(host), *place = host->dl.data; /* i64, as the compact indices are */
  for (int64_t i = 0; i < count; i++)
    if (place[i] >= 0) place[i] = shf_index_at(host_ids, place[i]);
  sheaf_status status = host == arg ? SHEAF_OK : shf_tensor_copy_bytes(host, arg);
  sheaf_tensor_release(host);
  return status;
}

static sheaf_status send_compact(const sheaf_call *call, const sheaf_frame *frame, const shf_compact *compact,
                                 sheaf_tensor *rows)
{
  sheaf_tensor *inputs[4] = {rows, compact->indices, shf_input(call, 2), shf_input(call, 3)};
  const int given[2] = {call->outputs[0] != NULL, call->output_count > 1 && call->outputs[1] != NULL};
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  memcpy(attrs, call->attrs, sizeof attrs);
  attrs[SHEAF_EMBEDDING_PADDING_IDX].i = compact->padding;
  attrs[SHEAF_EMBEDDING_BAD_INDEX].i = SHEAF_BAD_INDEX_SKIP; /* checked with the numbers of the whole table */
  sheaf_call small = *call;
  small.inputs = inputs;
  small.attrs = attrs;
  SHF_TRY(shf_redispatch(&small, frame));
  if (call->op != SHEAF_OP_EMBEDDING_BAG || !shf_wants(call, 1)) return SHEAF_OK;
  sheaf_status status = restore_arg(call->outputs[1], compact->host_ids);
  for (int i = 0; status != SHEAF_OK && i < 2; i++)
    if (!given[i]) shf_drop(&call->outputs[i]);
  return status;
}

/* Shapes and checks of a table without data: those of a dense one. */
static sheaf_status send_like_dense(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *inputs[4] = {NULL, shf_input(call, 1), shf_input(call, 2), shf_input(call, 3)};
  SHF_TRY(shf_tensor_make(call->inputs[0]->dtype, 2, call->inputs[0]->extent, call->inputs[0], &inputs[0]));
  sheaf_call dense = *call;
  dense.inputs = inputs;
  sheaf_status status = shf_redispatch(&dense, frame);
  sheaf_tensor_release(inputs[0]);
  return status;
}

static sheaf_status lookup(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *table = call->inputs[0], *merged, *rows = NULL;
  if (!shf_is_sparse(table)) return shf_redispatch(call, frame);
  if (shf_sparse_is_on(call, SHEAF_KEY_META)) return send_like_dense(call, frame);
  SHF_REQUIRE(!call->outputs[0] || call->op == SHEAF_OP_EMBEDDING || !shf_wants(call, 1) || !call->outputs[1],
              UNSUPPORTED, "arg of bags over a row-sparse table cannot be written into a given tensor");
  shf_compact compact = {.padding = -1};
  shf_compact_rule rule = {.operand = "indices",
                           .rows = table->extent[0],
                           .padding = call->attrs[SHEAF_EMBEDDING_PADDING_IDX].i,
                           .keep_padding = 1,
                           .bad_index = (sheaf_bad_index)call->attrs[SHEAF_EMBEDDING_BAD_INDEX].i};
  SHF_REQUIRE(rule.padding < rule.rows, INVALID_PROBLEM, "padding_idx %" PRId64 " is outside 0..%" PRId64, rule.padding,
              rule.rows - 1);
  SHF_TRY(shf_sparse_coalesced(table, frame, &merged));
  sheaf_status status = shf_compact_rows(call->inputs[1], &rule, &compact);
  if (status == SHEAF_OK) status = gather_rows(merged, &compact, frame, &rows);
  if (status == SHEAF_OK) status = send_compact(call, frame, &compact, rows);
  sheaf_tensor_release(rows);
  sheaf_tensor_release(merged);
  shf_compact_free(&compact);
  return status;
}

/* ---- Ops without a part for sparse tensors ---- */

enum { MOST_INPUTS = 8 };

/* Ops without a part for sparse tensors take them densified. */
static sheaf_status densify(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *inputs[MOST_INPUTS] = {NULL};
  sheaf_status status = SHEAF_OK;
  for (int i = 0; i < call->input_count && status == SHEAF_OK; i++) {
    if (shf_is_sparse(call->inputs[i]))
      status = shf_sparse_dense(call->inputs[i], frame, &inputs[i]);
    else
      inputs[i] = sheaf_tensor_retain(call->inputs[i]);
  }
  sheaf_call dense = *call;
  dense.inputs = inputs;
  if (status == SHEAF_OK) status = shf_redispatch(&dense, frame);
  for (int i = 0; i < call->input_count; i++) sheaf_tensor_release(inputs[i]);
  return status;
}

/* ---- Sparse gradients ---- */

/* Without data, the number of touched rows is not known: at most one for every entry. */
static sheaf_status meta_gradient(const sheaf_call *call, const sheaf_tensor *index, int64_t rows, int64_t dim,
                                  sheaf_tensor **out)
{
  int64_t count = shf_tensor_elements(index), shape[] = {count < rows ? count : rows, dim};
  sheaf_tensor *ids, *values = NULL;
  SHF_TRY(shf_tensor_make(index->dtype, 1, shape, index, &ids));
  sheaf_status status = shf_tensor_make(call->inputs[0]->dtype, 2, shape, index, &values);
  if (status == SHEAF_OK) status = shf_tensor_sparse(ids, values, rows, 0, out);
  sheaf_tensor_release(values);
  sheaf_tensor_release(ids);
  return status;
}

/* The dense op over the touched rows, whose numbers are `compact`. */
static sheaf_status gradient_rows(const sheaf_call *call, const sheaf_frame *frame, const shf_compact *compact,
                                  int index, sheaf_tensor **rows)
{
  sheaf_tensor *inputs[7] = {NULL}, *outputs[2] = {NULL, NULL};
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  for (int i = 0; i < call->input_count; i++) inputs[i] = call->inputs[i];
  inputs[index] = compact->indices;
  memcpy(attrs, call->attrs, sizeof attrs);
  attrs[SHEAF_EMBEDDING_PADDING_IDX].i = -1; /* skipped already, as bad entries are */
  attrs[SHEAF_EMBEDDING_BAD_INDEX].i = SHEAF_BAD_INDEX_SKIP;
  attrs[SHEAF_EMBEDDING_SPARSE].i = 0;
  attrs[SHEAF_EMBEDDING_ROWS].i = compact->count;
  sheaf_call small = *call;
  small.inputs = inputs;
  small.outputs = outputs;
  small.attrs = attrs;
  small.wanted = 1;
  SHF_TRY(shf_redispatch(&small, frame));
  *rows = outputs[0];
  return SHEAF_OK;
}

/* The gradient of weights needs the table's own rows: a second, dense call. */
static sheaf_status weights_gradient(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  memcpy(attrs, call->attrs, sizeof attrs);
  attrs[SHEAF_EMBEDDING_SPARSE].i = 0;
  sheaf_call dense = *call;
  dense.attrs = attrs;
  dense.wanted = 2;
  return shf_redispatch(&dense, frame);
}

static sheaf_status gradient(const sheaf_call *call, const sheaf_frame *frame)
{
  int64_t kind = call->attrs[SHEAF_EMBEDDING_SPARSE].i, rows_of_table = call->attrs[SHEAF_EMBEDDING_ROWS].i;
  int bag = call->op == SHEAF_OP_EMBEDDING_BAG_BACKWARD;
  int max = bag && call->attrs[SHEAF_EMBEDDING_MODE].i == SHEAF_MODE_MAX, index = max ? 6 : 1;
  if (!kind || !shf_wants(call, 0)) return densify(call, frame);
  SHF_REQUIRE(!call->batch, UNSUPPORTED,
              "%s: a row-sparse gradient of %" PRId64 " tables within vmap; each would have rows of its own",
              shf_op_name(call), call->batch);
  SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "a row-sparse gradient cannot be written into a given tensor");
  SHF_REQUIRE(shf_input(call, index), INVALID_PROBLEM, "%s: %s is not given", shf_op_name(call),
              max ? "arg" : "indices");
  const sheaf_tensor *grad_out = call->inputs[0];
  if (shf_sparse_is_on(call, SHEAF_KEY_META))
    return meta_gradient(call, call->inputs[index], rows_of_table, grad_out->extent[grad_out->rank - 1],
                         &call->outputs[0]);
  int each = kind == 2 && !max && !call->attrs[SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ].i;
  shf_compact compact;
  shf_compact_rule rule = {.operand = max ? "arg" : "indices",
                           .rows = rows_of_table,
                           .padding = max ? -1 : call->attrs[SHEAF_EMBEDDING_PADDING_IDX].i,
                           .each = each,
                           .absent = max,
                           .bad_index = (sheaf_bad_index)call->attrs[SHEAF_EMBEDDING_BAD_INDEX].i};
  sheaf_tensor *rows = NULL, *sparse = NULL;
  sheaf_status status = shf_compact_rows(call->inputs[index], &rule, &compact);
  if (status == SHEAF_OK) status = gradient_rows(call, frame, &compact, index, &rows);
  if (status == SHEAF_OK) status = shf_tensor_sparse(compact.ids, rows, rows_of_table, !each, &sparse);
  if (status == SHEAF_OK && shf_wants(call, 1)) status = weights_gradient(call, frame);
  if (status == SHEAF_OK)
    call->outputs[0] = sparse;
  else
    sheaf_tensor_release(sparse);
  sheaf_tensor_release(rows);
  shf_compact_free(&compact);
  return status;
}

const shf_layer shf_layer_sparse = {.kernel = {[SHEAF_OP_EMBEDDING] = lookup,
                                               [SHEAF_OP_EMBEDDING_BACKWARD] = gradient,
                                               [SHEAF_OP_EMBEDDING_BAG] = lookup,
                                               [SHEAF_OP_EMBEDDING_BAG_BACKWARD] = gradient,
                                               [SHEAF_OP_SEGMENT_REDUCE] = densify,
                                               [SHEAF_OP_SEGMENT_REDUCE_BACKWARD] = densify,
                                               [SHEAF_OP_QUANTIZE] = densify,
                                               [SHEAF_OP_DEQUANTIZE] = densify,
                                               [SHEAF_OP_COALESCE] = shf_sparse_coalesce,
                                               [SHEAF_OP_TO_DENSE] = shf_sparse_to_dense,
                                               [SHEAF_OP_CAST] = shf_sparse_cast,
                                               [SHEAF_OP_ADD] = shf_sparse_add,
                                               [SHEAF_OP_MOVEDIM] = densify,
                                               [SHEAF_OP_RESHAPE] = densify,
                                               [SHEAF_OP_EXPAND] = densify}};
