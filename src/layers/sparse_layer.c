/* sparse_layer.c: the Sparse key: row-sparse tables and data as inputs, row-sparse gradients, sums of sparse and dense.
 *
 * A call over a row-sparse table touches few rows: they are numbered from 0, gathered (a missing row is zero), and the
 * call goes on with a small table. A sparse gradient is the same the other way: the dense op on the touched rows only.
 * That is why a coalesced gradient has the bits of the dense one, and why nothing of the table's size is made. */
#include <inttypes.h>

#include "layers/sparse_impl.h"

static int is_sparse(const sheaf_tensor *t) { return t && t->form == SHEAF_FORM_SPARSE; }

static int is_on(const sheaf_call *call, int key)
{
  for (int i = 0; i < call->input_count; i++)
    if (call->inputs[i] && sheaf_keyset_contains(call->inputs[i]->keys, key)) return 1;
  return 0;
}

/* Rows are sorted and gathered on the host. */
static sheaf_status check_host(const sheaf_call *call)
{
  SHF_REQUIRE(!is_on(call, SHEAF_KEY_CUDA), UNSUPPORTED, "%s of row-sparse tensors on a CUDA device",
              shf_op_name(call));
  SHF_REQUIRE(!call->batch, UNSUPPORTED, "%s of row-sparse tensors within vmap", shf_op_name(call));
  return SHEAF_OK;
}

/* ---- Sums ---- */

/* The sum of rows by place, [count, D]: what the backward of a lookup is. */
static sheaf_status sum_rows(sheaf_tensor *values, sheaf_tensor *places, int64_t count, const sheaf_frame *frame,
                             sheaf_tensor **out)
{
  sheaf_tensor *inputs[] = {values, places};
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS] = {[SHEAF_EMBEDDING_PADDING_IDX].i = -1,
                                             [SHEAF_EMBEDDING_BAD_INDEX].i = SHEAF_BAD_INDEX_ERROR,
                                             [SHEAF_EMBEDDING_ROWS].i = count};
  sheaf_call call = SHEAF_CALL_INIT;
  *out = NULL;
  call.op = SHEAF_OP_EMBEDDING_BACKWARD;
  call.inputs = inputs;
  call.input_count = 2;
  call.outputs = out;
  call.output_count = 1;
  call.attrs = attrs;
  call.attr_count = SHEAF_EMBEDDING_ATTRS;
  return sheaf_redispatch(&call, frame);
}

static sheaf_status coalesced(sheaf_tensor *sparse, const sheaf_frame *frame, sheaf_tensor **out)
{
  if (sparse->coalesced || sheaf_keyset_contains(sparse->keys, SHEAF_KEY_META)) {
    *out = sheaf_tensor_retain(sparse);
    return SHEAF_OK;
  }
  shf_compact compact;
  shf_compact_rule rule = {.operand = "ids", .rows = sparse->extent[0], .padding = -1};
  sheaf_tensor *rows = NULL;
  *out = NULL;
  sheaf_status status = shf_compact_rows(sparse->part[0], &rule, &compact);
  if (status == SHEAF_OK) status = sum_rows(sparse->part[1], compact.indices, compact.count, frame, &rows);
  if (status == SHEAF_OK) status = shf_tensor_sparse(compact.ids, rows, sparse->extent[0], 1, out);
  sheaf_tensor_release(rows);
  shf_compact_free(&compact);
  return status;
}

static sheaf_status coalesce(const sheaf_call *call, const sheaf_frame *frame)
{
  SHF_REQUIRE(is_sparse(call->inputs[0]), INVALID_PROBLEM, "coalesce: a row-sparse tensor is needed");
  SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "coalesce makes its result; it cannot be written into a given tensor");
  return coalesced(call->inputs[0], frame, &call->outputs[0]);
}

static sheaf_status dense_of(sheaf_tensor *sparse, const sheaf_frame *frame, sheaf_tensor **out)
{
  return sum_rows(sparse->part[1], sparse->part[0], sparse->extent[0], frame, out);
}

static sheaf_status to_dense(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *dense;
  if (!is_sparse(call->inputs[0])) return sheaf_redispatch(call, frame);
  SHF_TRY(dense_of(call->inputs[0], frame, &dense));
  return shf_deliver(call, 0, dense);
}

static sheaf_status cast(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *t = call->inputs[0], *rows;
  if (!is_sparse(t)) return sheaf_redispatch(call, frame);
  SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "a cast row-sparse tensor cannot be written into a given one");
  SHF_TRY(shf_send_dtype(SHEAF_OP_CAST, t->part[1], (sheaf_dtype)call->attrs[0].i, frame, &rows));
  sheaf_status status = shf_tensor_sparse(t->part[0], rows, t->extent[0], t->coalesced, &call->outputs[0]);
  sheaf_tensor_release(rows);
  return status;
}

/* ---- Addition ---- */

/* A dense copy, or the caller's output filled with `t`. */
static sheaf_status copy_into_output(const sheaf_call *call, sheaf_tensor *t, sheaf_tensor **out)
{
  *out = sheaf_tensor_retain(call->outputs[0]);
  if (*out == t) return SHEAF_OK;
  if (!*out) SHF_TRY(shf_tensor_make(t->dtype, t->rank, t->extent, t, out));
  sheaf_call copy = SHEAF_CALL_INIT;
  sheaf_attr dtype = {.i = t->dtype};
  copy.op = SHEAF_OP_CAST;
  copy.inputs = &t;
  copy.outputs = out;
  copy.attrs = &dtype;
  copy.input_count = copy.output_count = copy.attr_count = 1;
  sheaf_status status = sheaf_dispatch_to(&copy, SHEAF_KEY_CPU);
  if (status != SHEAF_OK) shf_drop(out);
  return status;
}

/* Adds the rows of a coalesced tensor to those of a dense one, row by row. */
static sheaf_status add_rows(sheaf_tensor *dense, const sheaf_tensor *sparse, double alpha)
{
  const sheaf_tensor *ids = sparse->part[0], *rows = sparse->part[1];
  SHF_REQUIRE(dense->strides[1] == 1 && rows->strides[1] == 1, UNSUPPORTED,
              "add: the last dimension must be contiguous");
  int64_t size = shf_core_dtype_size(dense->dtype);
  sheaf_tensor to = {.rank = 1, .dtype = dense->dtype}, from = {.rank = 1, .dtype = dense->dtype};
  to.extent[0] = from.extent[0] = dense->extent[1];
  to.strides[0] = from.strides[0] = 1;
  to.dl.ndim = from.dl.ndim = 1;
  to.dl.shape = to.extent;
  from.dl.shape = from.extent;
  for (int64_t i = 0; i < ids->extent[0]; i++) {
    to.dl.data = (char *)shf_data(dense) + shf_index_at(ids, i) * dense->strides[0] * size;
    from.dl.data = (char *)shf_data(rows) + i * rows->strides[0] * size;
    shf_add_scaled(&to, &from, alpha, &to);
  }
  return SHEAF_OK;
}

static sheaf_status add_to_dense(const sheaf_call *call, sheaf_tensor *dense, sheaf_tensor *sparse, double alpha,
                                 const sheaf_frame *frame)
{
  sheaf_tensor *merged, *out = NULL;
  SHF_TRY(coalesced(sparse, frame, &merged));
  sheaf_status status = copy_into_output(call, dense, &out);
  if (status == SHEAF_OK) status = add_rows(out, merged, alpha);
  sheaf_tensor_release(merged);
  if (status != SHEAF_OK) {
    sheaf_tensor_release(out);
    return status;
  }
  if (call->outputs[0]) {
    sheaf_tensor_written(out);
    sheaf_tensor_release(out);
  } else {
    call->outputs[0] = out;
  }
  return SHEAF_OK;
}

/* Both lists, one after the other. */
static sheaf_status join(const sheaf_tensor *a, const sheaf_tensor *b, double alpha, sheaf_tensor **out)
{
  int64_t first = a->part[0]->extent[0], count = first + b->part[0]->extent[0], dim = a->extent[1];
  int64_t shape[] = {count, dim};
  sheaf_tensor *ids = NULL, *rows = NULL, *zeros = NULL;
  const sheaf_tensor *lists[] = {a, b};
  sheaf_status status = shf_tensor_make(SHEAF_I64, 1, &count, a->part[0], &ids);
  if (status == SHEAF_OK) status = shf_tensor_make(a->dtype, 2, shape, a->part[1], &rows);
  int64_t size = shf_core_dtype_size(a->dtype), at = 0;
  for (int l = 0; status == SHEAF_OK && l < 2; l++) {
    const sheaf_tensor *from = lists[l];
    for (int64_t i = 0; i < from->part[0]->extent[0]; i++, at++) {
      ((int64_t *)ids->dl.data)[at] = shf_index_at(from->part[0], i);
      memcpy((char *)rows->dl.data + at * dim * size,
             (char *)shf_data(from->part[1]) + i * from->part[1]->strides[0] * size, (size_t)(dim * size));
    }
  }
  if (status == SHEAF_OK && alpha != 1 && count > first) { /* the second list is scaled where it lies */
    int64_t own[] = {count - first, dim};
    sheaf_tensor scaled = {.rank = 2, .dtype = a->dtype, .extent = {own[0], dim}, .strides = {dim, 1}};
    scaled.dl.ndim = 2;
    scaled.dl.shape = scaled.extent;
    scaled.dl.data = (char *)rows->dl.data + first * dim * size;
    status = shf_tensor_make(a->dtype, 2, own, rows, &zeros);
    if (status == SHEAF_OK) {
      memset(zeros->dl.data, 0, zeros->bytes);
      shf_add_scaled(zeros, &scaled, alpha, &scaled);
    }
  }
  if (status == SHEAF_OK) status = shf_tensor_sparse(ids, rows, a->extent[0], 0, out);
  sheaf_tensor_release(zeros);
  sheaf_tensor_release(ids);
  sheaf_tensor_release(rows);
  return status;
}

static sheaf_status add(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *a = call->inputs[0], *b = call->inputs[1], *dense;
  char left[120], right[120];
  if (!is_sparse(a) && !is_sparse(b)) return sheaf_redispatch(call, frame);
  SHF_TRY(check_host(call));
  SHF_REQUIRE(a->dtype == b->dtype && a->rank == b->rank && a->extent[0] == b->extent[0] &&
                  a->extent[1] == b->extent[1],
              INVALID_PROBLEM, "add: %s %s and %s %s are not of one type and shape", sheaf_dtype_name(a->dtype),
              shf_shape_text(a, left, sizeof left), sheaf_dtype_name(b->dtype), shf_shape_text(b, right, sizeof right));
  SHF_REQUIRE(!is_on(call, SHEAF_KEY_META), UNSUPPORTED, "add of row-sparse tensors without data");
  if (is_sparse(a) && is_sparse(b)) {
    SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "a sum of row-sparse tensors cannot be written into a given one");
    return join(a, b, call->attrs[0].f, &call->outputs[0]);
  }
  if (is_sparse(b)) return add_to_dense(call, a, b, call->attrs[0].f, frame);
  SHF_TRY(dense_of(a, frame, &dense));
  sheaf_call changed = *call;
  sheaf_tensor *inputs[] = {dense, b};
  changed.inputs = inputs;
  sheaf_status status = sheaf_redispatch(&changed, frame);
  sheaf_tensor_release(dense);
  return status;
}

/* ---- Sparse tables ---- */

/* The rows with these (increasing) ids, missing ones as zero: [count, D]. */
static sheaf_status gather_rows(const sheaf_tensor *sparse, const sheaf_tensor *ids, sheaf_tensor **rows)
{
  const sheaf_tensor *values = sparse->part[1];
  int64_t shape[] = {ids->extent[0], sparse->extent[1]}, size = shf_core_dtype_size(sparse->dtype);
  SHF_REQUIRE(values->strides[1] == 1, UNSUPPORTED, "rows of a row-sparse tensor must be contiguous");
  SHF_TRY(shf_tensor_make(sparse->dtype, 2, shape, values, rows));
  for (int64_t i = 0; i < shape[0]; i++) {
    int64_t at = shf_find_id(sparse->part[0], shf_index_at(ids, i));
    char *to = (char *)(*rows)->dl.data + i * shape[1] * size;
    if (at < 0)
      memset(to, 0, (size_t)(shape[1] * size));
    else
      memcpy(to, (const char *)shf_data(values) + at * values->strides[0] * size, (size_t)(shape[1] * size));
  }
  return SHEAF_OK;
}

/* Places that a maximum names, as numbers of the whole table again. */
static void restore_arg(sheaf_tensor *arg, const sheaf_tensor *ids)
{
  int64_t count = shf_tensor_elements(arg), *place = arg->dl.data; /* i64, as the compact indices are */
  for (int64_t i = 0; i < count; i++)
    if (place[i] >= 0) place[i] = shf_index_at(ids, place[i]);
}

static sheaf_status send_compact(const sheaf_call *call, const sheaf_frame *frame, const shf_compact *compact,
                                 sheaf_tensor *rows)
{
  sheaf_tensor *inputs[4] = {rows, compact->indices, shf_input(call, 2), shf_input(call, 3)};
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  memcpy(attrs, call->attrs, sizeof attrs);
  attrs[SHEAF_EMBEDDING_PADDING_IDX].i = compact->padding;
  attrs[SHEAF_EMBEDDING_BAD_INDEX].i = SHEAF_BAD_INDEX_SKIP; /* checked with the numbers of the whole table */
  sheaf_call small = *call;
  small.inputs = inputs;
  small.attrs = attrs;
  SHF_TRY(sheaf_redispatch(&small, frame));
  if (call->op == SHEAF_OP_EMBEDDING_BAG && shf_wants(call, 1)) restore_arg(call->outputs[1], compact->ids);
  return SHEAF_OK;
}

/* Shapes and checks of a table without data: those of a dense one. */
static sheaf_status send_like_dense(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *inputs[4] = {NULL, shf_input(call, 1), shf_input(call, 2), shf_input(call, 3)};
  SHF_TRY(shf_tensor_make(call->inputs[0]->dtype, 2, call->inputs[0]->extent, call->inputs[0], &inputs[0]));
  sheaf_call dense = *call;
  dense.inputs = inputs;
  sheaf_status status = sheaf_redispatch(&dense, frame);
  sheaf_tensor_release(inputs[0]);
  return status;
}

static sheaf_status lookup(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *table = call->inputs[0], *merged, *rows = NULL;
  if (!is_sparse(table)) return sheaf_redispatch(call, frame);
  if (is_on(call, SHEAF_KEY_META)) return send_like_dense(call, frame);
  SHF_TRY(check_host(call));
  SHF_REQUIRE(!call->outputs[0] || call->op == SHEAF_OP_EMBEDDING || !shf_wants(call, 1) || !call->outputs[1],
              UNSUPPORTED, "arg of bags over a row-sparse table cannot be written into a given tensor");
  shf_compact compact = {NULL, NULL, 0, -1};
  shf_compact_rule rule = {.operand = "indices",
                           .rows = table->extent[0],
                           .padding = call->attrs[SHEAF_EMBEDDING_PADDING_IDX].i,
                           .keep_padding = 1,
                           .bad_index = (sheaf_bad_index)call->attrs[SHEAF_EMBEDDING_BAD_INDEX].i};
  SHF_REQUIRE(rule.padding < rule.rows, INVALID_PROBLEM, "padding_idx %" PRId64 " is outside 0..%" PRId64, rule.padding,
              rule.rows - 1);
  SHF_TRY(coalesced(table, frame, &merged));
  sheaf_status status = shf_compact_rows(call->inputs[1], &rule, &compact);
  if (status == SHEAF_OK) status = gather_rows(merged, compact.ids, &rows);
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
    if (is_sparse(call->inputs[i]))
      status = dense_of(call->inputs[i], frame, &inputs[i]);
    else
      inputs[i] = sheaf_tensor_retain(call->inputs[i]);
  }
  sheaf_call dense = *call;
  dense.inputs = inputs;
  if (status == SHEAF_OK) status = sheaf_redispatch(&dense, frame);
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
  SHF_TRY(sheaf_redispatch(&small, frame));
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
  return sheaf_redispatch(&dense, frame);
}

static sheaf_status gradient(const sheaf_call *call, const sheaf_frame *frame)
{
  int64_t kind = call->attrs[SHEAF_EMBEDDING_SPARSE].i, rows_of_table = call->attrs[SHEAF_EMBEDDING_ROWS].i;
  int bag = call->op == SHEAF_OP_EMBEDDING_BAG_BACKWARD;
  int max = bag && call->attrs[SHEAF_EMBEDDING_MODE].i == SHEAF_MODE_MAX, index = max ? 6 : 1;
  if (!kind || !shf_wants(call, 0)) return densify(call, frame);
  SHF_TRY(check_host(call));
  SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "a row-sparse gradient cannot be written into a given tensor");
  SHF_REQUIRE(shf_input(call, index), INVALID_PROBLEM, "%s: %s is not given", shf_op_name(call),
              max ? "arg" : "indices");
  const sheaf_tensor *grad_out = call->inputs[0];
  if (is_on(call, SHEAF_KEY_META))
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
                                               [SHEAF_OP_COALESCE] = coalesce,
                                               [SHEAF_OP_TO_DENSE] = to_dense,
                                               [SHEAF_OP_CAST] = cast,
                                               [SHEAF_OP_ADD] = add,
                                               [SHEAF_OP_MOVEDIM] = densify,
                                               [SHEAF_OP_RESHAPE] = densify,
                                               [SHEAF_OP_EXPAND] = densify}};
