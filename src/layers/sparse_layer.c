/* sparse_layer.c: the Sparse key: row-sparse tables and data as inputs, row-sparse gradients, sums of sparse and dense.
 *
 * A call over a row-sparse table touches few rows: they are numbered from 0, gathered (a missing row is zero), and the
 * call goes on with a small table. A sparse gradient is the same the other way: the dense op on the touched rows only.
 * That is why a coalesced gradient has the bits of the dense one, and why nothing of the table's size is made. Where
 * every problem of a batch has a table, each gets a small one of its own, of as many rows as the largest needs. */
#include <inttypes.h>

#include "layers/sparse_impl.h"

/* ---- Rows taken from a list ---- */

/* On a device: a lookup in which the missing rows are bad indices. */
static sheaf_status look_up_rows(sheaf_tensor *values, sheaf_tensor *places, const sheaf_frame *frame,
                                 sheaf_tensor **rows)
{
  sheaf_tensor *inputs[2] = {values, NULL};
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS] = {
      [SHEAF_EMBEDDING_PADDING_IDX].i = -1, [SHEAF_EMBEDDING_BAD_INDEX].i = SHEAF_BAD_INDEX_SKIP};
  SHF_TRY(sheaf_tensor_to(places, shf_device_of(values), &inputs[1]));
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = SHEAF_OP_EMBEDDING;
  call.inputs = inputs;
  call.outputs = rows;
  call.attrs = attrs;
  call.input_count = 2;
  call.output_count = 1;
  call.attr_count = SHEAF_EMBEDDING_ATTRS;
  sheaf_status status = shf_redispatch(&call, frame);
  sheaf_tensor_release(inputs[1]);
  return status;
}

/* The rows of a matrix at these places (i64, on the host), zeros where the place is -1: [places, D]. */
static sheaf_status take_rows(sheaf_tensor *values, sheaf_tensor *places, const sheaf_frame *frame, sheaf_tensor **rows)
{
  int64_t shape[SHEAF_TENSOR_MAX_RANK], dim = values->extent[1], size = shf_core_dtype_size(values->dtype);
  int64_t count = shf_tensor_elements(places);
  *rows = NULL;
  SHF_REQUIRE(values->strides[1] == 1, UNSUPPORTED, "rows of a row-sparse tensor must be contiguous");
  if (shf_is_on(values, SHEAF_KEY_CUDA)) return look_up_rows(values, places, frame, rows);
  memcpy(shape, places->extent, sizeof shape);
  shape[places->rank] = dim;
  SHF_TRY(shf_tensor_make(values->dtype, places->rank + 1, shape, values, rows));
  for (int64_t i = 0; dim && i < count; i++) {
    int64_t at = shf_index_at(places, i);
    char *to = (char *)(*rows)->dl.data + i * dim * size;
    if (at < 0)
      memset(to, 0, (size_t)(dim * size));
    else
      memcpy(to, (const char *)shf_data(values) + at * values->strides[0] * size, (size_t)(dim * size));
  }
  return SHEAF_OK;
}

/* A list on the host of `count` places, or [problems, count], all of them -1. */
static sheaf_status make_places(int64_t problems, int64_t count, sheaf_tensor **places)
{
  int64_t shape[] = {problems, count};
  SHF_TRY(problems ? shf_tensor_make(SHEAF_I64, 2, shape, NULL, places)
                   : shf_tensor_make(SHEAF_I64, 1, &count, NULL, places));
  memset((*places)->dl.data, 0xff, (*places)->bytes);
  return SHEAF_OK;
}

/* ---- Sparse tables ---- */

/* The rows that were numbered, missing ones as zero: [count, D], or [problems, most, D] with zeros behind. */
static sheaf_status gather_rows(const sheaf_tensor *sparse, const shf_compact *compact, int64_t problems,
                                const sheaf_frame *frame, sheaf_tensor **rows)
{
  sheaf_tensor *places, *list = NULL;
  const int64_t *start = compact->starts->dl.data;
  SHF_TRY(make_places(problems, compact->most, &places));
  sheaf_status status = shf_tensor_on_host(sparse->part[0], &list);
  for (int64_t p = 0; status == SHEAF_OK && p + 1 < compact->starts->extent[0]; p++)
    for (int64_t i = start[p]; i < start[p + 1]; i++)
      ((int64_t *)places->dl.data)[p * compact->most + i - start[p]] =
          shf_find_id(list, shf_index_at(compact->host_ids, i));
  if (status == SHEAF_OK) status = take_rows(sparse->part[1], places, frame, rows);
  sheaf_tensor_release(list);
  sheaf_tensor_release(places);
  return status;
}

/* Places that a maximum names, as rows of its table again. */
static sheaf_status restore_arg(sheaf_tensor *arg, const shf_compact *compact, const shf_compact_rule *rule)
{
  sheaf_tensor *host;
  SHF_TRY(shf_tensor_on_host(arg, &host));                           /* the tensor itself on the CPU */
  int64_t count = shf_tensor_elements(host), *place = host->dl.data; /* i64, as the compact indices are */
  int64_t each = rule->problems ? count / rule->problems : count;
  const int64_t *start = compact->starts->dl.data;
  for (int64_t i = 0; i < count; i++) {
    int64_t problem = i / each;
    if (place[i] >= 0) place[i] = shf_index_at(compact->host_ids, start[problem] + place[i]) - problem * rule->rows;
  }
  sheaf_status status = host == arg ? SHEAF_OK : shf_tensor_copy_bytes(host, arg);
  sheaf_tensor_release(host);
  return status;
}

static sheaf_status send_compact(const sheaf_call *call, const sheaf_frame *frame, const shf_compact *compact,
                                 const shf_compact_rule *rule, sheaf_tensor *rows)
{
  sheaf_tensor *inputs[4] = {rows, compact->indices, shf_input(call, 2), shf_input(call, 3)};
  const int given[2] = {call->outputs[0] != NULL, call->output_count > 1 && call->outputs[1] != NULL};
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  memcpy(attrs, call->attrs, sizeof attrs);
  attrs[SHEAF_EMBEDDING_PADDING_IDX].i = -1; /* skipped already, as bad entries are */
  attrs[SHEAF_EMBEDDING_BAD_INDEX].i = SHEAF_BAD_INDEX_SKIP;
  sheaf_call small = *call;
  small.inputs = inputs;
  small.attrs = attrs;
  if (rule->problems) small.batched |= SHF_BIT(1);
  SHF_TRY(shf_redispatch(&small, frame));
  if (call->op != SHEAF_OP_EMBEDDING_BAG || !shf_wants(call, 1)) return SHEAF_OK;
  sheaf_status status = restore_arg(call->outputs[1], compact, rule);
  for (int i = 0; status != SHEAF_OK && i < 2; i++)
    if (!given[i]) shf_drop(&call->outputs[i]);
  return status;
}

/* Shapes and checks of a table without data: those of a dense one. */
static sheaf_status send_like_dense(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *table = call->inputs[0];
  sheaf_tensor *inputs[4] = {NULL, shf_input(call, 1), shf_input(call, 2), shf_input(call, 3)};
  SHF_TRY(shf_tensor_make(table->dtype, table->rank, table->extent, table, &inputs[0]));
  sheaf_call dense = *call;
  dense.inputs = inputs;
  sheaf_status status = shf_redispatch(&dense, frame);
  sheaf_tensor_release(inputs[0]);
  return status;
}

/* The indices of every problem: as they are, or the shared ones repeated. */
static sheaf_status own_indices(const sheaf_call *call, int input, const shf_compact_rule *rule,
                                const sheaf_frame *frame, sheaf_tensor **indices)
{
  if (rule->problems && !(call->batched >> input & 1))
    return shf_send_expand(call->inputs[input], rule->problems, frame, indices);
  *indices = sheaf_tensor_retain(call->inputs[input]);
  return SHEAF_OK;
}

static sheaf_status lookup(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *table = call->inputs[0], *merged = NULL, *indices, *rows = NULL;
  char shape[120];
  if (!shf_is_sparse(table)) return shf_redispatch(call, frame);
  int own = call->batch > 0 && (call->batched & 1); /* a table for each problem */
  SHF_REQUIRE(table->rank == 2 + own, INVALID_PROBLEM, "%s: table has shape %s; 2 dimensions are needed%s",
              shf_op_name(call), shf_shape_text(table, shape, sizeof shape), own ? " beside the batch" : "");
  if (shf_sparse_is_on(call, SHEAF_KEY_META)) return send_like_dense(call, frame);
  SHF_REQUIRE(!call->outputs[0] || call->op == SHEAF_OP_EMBEDDING || !shf_wants(call, 1) || !call->outputs[1],
              UNSUPPORTED, "arg of bags over a row-sparse table cannot be written into a given tensor");
  int64_t padding = call->attrs[SHEAF_EMBEDDING_PADDING_IDX].i;
  int stored = call->op == SHEAF_OP_EMBEDDING && call->attrs[SHEAF_EMBEDDING_PADDING].i == SHEAF_PADDING_ROW;
  shf_compact compact = {.count = 0};
  shf_compact_rule rule = {.operand = "indices",
                           .rows = table->extent[own],
                           .problems = own ? call->batch : 0,
                           .padding = stored ? -1 : padding, /* then it is a row like others */
                           .bad_index = (sheaf_bad_index)call->attrs[SHEAF_EMBEDDING_BAD_INDEX].i};
  SHF_REQUIRE(padding < rule.rows, INVALID_PROBLEM, "padding_idx %" PRId64 " is outside 0..%" PRId64, padding,
              rule.rows - 1);
  SHF_TRY(own_indices(call, 1, &rule, frame, &indices));
  sheaf_status status = shf_sparse_coalesced(table, frame, &merged);
  if (status == SHEAF_OK) status = shf_compact_rows(indices, &rule, &compact);
  if (status == SHEAF_OK) status = gather_rows(merged, &compact, rule.problems, frame, &rows);
  if (status == SHEAF_OK) status = send_compact(call, frame, &compact, &rule, rows);
  sheaf_tensor_release(rows);
  sheaf_tensor_release(merged);
  sheaf_tensor_release(indices);
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
static sheaf_status meta_gradient(const sheaf_call *call, const sheaf_tensor *index, const shf_compact_rule *rule,
                                  int rank, const int64_t *shape, sheaf_tensor **out)
{
  int64_t tables = rule->problems ? rule->problems : 1, count = shf_tensor_elements(index), dim = shape[rank - 1];
  int64_t list[] = {count < rule->rows * tables ? count : rule->rows * tables, dim};
  sheaf_tensor *ids, *values = NULL;
  SHF_TRY(shf_tensor_make(rule->problems ? SHEAF_I64 : index->dtype, 1, list, index, &ids));
  sheaf_status status = shf_tensor_make(call->inputs[0]->dtype, 2, list, index, &values);
  if (status == SHEAF_OK) status = shf_tensor_sparse(ids, values, rank, shape, 0, out);
  sheaf_tensor_release(values);
  sheaf_tensor_release(ids);
  return status;
}

/* The dense op over the touched rows, whose numbers are `compact`: of a batch, as many for each problem as that one has
 * that touches the most. */
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
  attrs[SHEAF_EMBEDDING_ROWS].i = compact->most;
  sheaf_call small = *call;
  small.inputs = inputs;
  small.outputs = outputs;
  small.attrs = attrs;
  small.wanted = 1;
  if (call->batch) small.batched |= SHF_BIT(index);
  SHF_TRY(shf_redispatch(&small, frame));
  *rows = outputs[0];
  return SHEAF_OK;
}

/* [problems, most, D] as the list of all rows that there are: [count, D]. */
static sheaf_status pack_rows(sheaf_tensor *padded, const shf_compact *compact, const sheaf_frame *frame,
                              sheaf_tensor **rows)
{
  int64_t problems = padded->extent[0], dim = padded->extent[2], next = 0;
  const int64_t *start = compact->starts->dl.data;
  sheaf_tensor *flat, *places = NULL;
  SHF_TRY(shf_tensor_reshape(padded, 2, (int64_t[]){problems * compact->most, dim}, &flat));
  if (compact->count == problems * compact->most) {
    *rows = flat;
    return SHEAF_OK;
  }
  sheaf_status status = make_places(0, compact->count, &places);
  for (int64_t p = 0; status == SHEAF_OK && p < problems; p++)
    for (int64_t i = start[p]; i < start[p + 1]; i++)
      ((int64_t *)places->dl.data)[next++] = p * compact->most + i - start[p];
  if (status == SHEAF_OK) status = take_rows(flat, places, frame, rows);
  sheaf_tensor_release(places);
  sheaf_tensor_release(flat);
  return status;
}

/* ids and rows of the gradient. */
static sheaf_status make_gradient(const sheaf_call *call, const sheaf_frame *frame, const shf_compact_rule *rule,
                                  int index, sheaf_tensor *indices, sheaf_tensor **sparse)
{
  const sheaf_tensor *grad_out = call->inputs[0];
  int64_t shape[] = {rule->problems, rule->rows, grad_out->extent[grad_out->rank - 1]};
  int first = rule->problems == 0, rank = 3 - first;
  if (shf_sparse_is_on(call, SHEAF_KEY_META)) return meta_gradient(call, indices, rule, rank, shape + first, sparse);
  shf_compact compact;
  sheaf_tensor *made = NULL, *rows = NULL;
  sheaf_status status = shf_compact_rows(indices, rule, &compact);
  if (status == SHEAF_OK) status = gradient_rows(call, frame, &compact, index, &made);
  if (status == SHEAF_OK && rule->problems)
    status = pack_rows(made, &compact, frame, &rows);
  else
    rows = sheaf_tensor_retain(made);
  if (status == SHEAF_OK) status = shf_tensor_sparse(compact.ids, rows, rank, shape + first, !rule->each, sparse);
  sheaf_tensor_release(rows);
  sheaf_tensor_release(made);
  shf_compact_free(&compact);
  return status;
}

/* The same made by the device itself, which numbers the rows as well (problem_rows.c). Nothing comes where a layer of
 * somebody else's has answered for the device, which knows of no such gradient. */
static sheaf_status send_to_device(const sheaf_call *call, const sheaf_frame *frame, sheaf_tensor **sparse)
{
  sheaf_tensor *outputs[2] = {NULL, NULL};
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  memcpy(attrs, call->attrs, sizeof attrs);
  attrs[SHEAF_EMBEDDING_SPARSE].i = SHF_SPARSE_ON_DEVICE;
  sheaf_call there = *call;
  there.outputs = outputs;
  there.attrs = attrs;
  there.wanted = 1;
  SHF_TRY(shf_redispatch(&there, frame));
  if (outputs[0] && sheaf_tensor_form(outputs[0]) == SHEAF_FORM_SPARSE)
    *sparse = outputs[0];
  else
    sheaf_tensor_release(outputs[0]);
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
  int64_t kind = call->attrs[SHEAF_EMBEDDING_SPARSE].i;
  int bag = call->op == SHEAF_OP_EMBEDDING_BAG_BACKWARD;
  int max = bag && call->attrs[SHEAF_EMBEDDING_MODE].i == SHEAF_MODE_MAX, index = max ? 6 : 1;
  if (!kind || !shf_wants(call, 0)) return densify(call, frame);
  SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "a row-sparse gradient cannot be written into a given tensor");
  SHF_REQUIRE(shf_input(call, index), INVALID_PROBLEM, "%s: %s is not given", shf_op_name(call),
              max ? "arg" : "indices");
  shf_compact_rule rule = {.operand = max ? "arg" : "indices",
                           .rows = call->attrs[SHEAF_EMBEDDING_ROWS].i,
                           .problems = call->batch, /* each has a gradient of its own */
                           .padding = max ? -1 : call->attrs[SHEAF_EMBEDDING_PADDING_IDX].i,
                           .each = kind == 2 && !max && !call->attrs[SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ].i,
                           .absent = max,
                           .bad_index = (sheaf_bad_index)call->attrs[SHEAF_EMBEDDING_BAD_INDEX].i};
  int64_t all;
  SHF_REQUIRE(rule.rows >= 0 && !__builtin_mul_overflow(rule.rows, rule.problems, &all), INVALID_PROBLEM,
              "%s: gradients of %" PRId64 " tables of %" PRId64 " rows", shf_op_name(call), rule.problems, rule.rows);
  sheaf_tensor *indices, *sparse = NULL;
  SHF_TRY(own_indices(call, index, &rule, frame, &indices));
  int there = shf_is_on(indices, SHEAF_KEY_CUDA) && !rule.each && !rule.problems;
  there = there && !shf_sparse_is_on(call, SHEAF_KEY_META);
  sheaf_status status = there ? send_to_device(call, frame, &sparse) : SHEAF_OK;
  if (status == SHEAF_OK && !sparse) status = make_gradient(call, frame, &rule, index, indices, &sparse);
  if (status == SHEAF_OK && shf_wants(call, 1)) status = weights_gradient(call, frame);
  if (status == SHEAF_OK)
    call->outputs[0] = sparse;
  else
    sheaf_tensor_release(sparse);
  sheaf_tensor_release(indices);
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
                                               [SHEAF_OP_RESHAPE] = shf_sparse_reshape,
                                               [SHEAF_OP_EXPAND] = densify}};
