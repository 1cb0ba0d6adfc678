/* sparse_sums.c: row-sparse tensors coalesced, summed over problems, made dense, cast, in other shapes, and added to
 * each other and to dense ones. */
#include <inttypes.h>

#include "layers/sparse_impl.h"

int shf_sparse_is_on(const sheaf_call *call, int key)
{
  for (int i = 0; i < call->input_count; i++)
    if (call->inputs[i] && sheaf_keyset_contains(call->inputs[i]->keys, key)) return 1;
  return 0;
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
  return shf_redispatch(&call, frame);
}

sheaf_status shf_sparse_coalesced(sheaf_tensor *sparse, const sheaf_frame *frame, sheaf_tensor **out)
{
  if (sparse->coalesced || sheaf_keyset_contains(sparse->keys, SHEAF_KEY_META)) {
    *out = sheaf_tensor_retain(sparse);
    return SHEAF_OK;
  }
  shf_compact compact;
  shf_compact_rule rule = {
      .operand = "ids", .rows = shf_rows_of(sparse), .padding = -1, .bad_index = SHEAF_BAD_INDEX_ERROR};
  sheaf_tensor *rows = NULL;
  *out = NULL;
  sheaf_status status = shf_compact_rows(sparse->part[0], &rule, &compact);
  if (status == SHEAF_OK) status = sum_rows(sparse->part[1], compact.indices, compact.count, frame, &rows);
  if (status == SHEAF_OK) status = shf_tensor_sparse(compact.ids, rows, sparse->rank, sparse->extent, 1, out);
  sheaf_tensor_release(rows);
  shf_compact_free(&compact);
  return status;
}

/* Which of the rows a problem's gradient has, if it has it: [touched rows, problems], -1 where it has not. */
static sheaf_status list_terms(const sheaf_tensor *host_ids, const sheaf_tensor *touched, int64_t count,
                               int64_t problems, int64_t rows, sheaf_tensor **terms)
{
  int64_t shape[] = {count, problems};
  SHF_TRY(shf_tensor_make(SHEAF_I64, 2, shape, NULL, terms));
  int64_t *term = (*terms)->dl.data;
  memset(term, 0xff, (*terms)->bytes);
  for (int64_t i = 0; i < host_ids->extent[0]; i++)
    term[shf_index_at(touched, i) * problems + shf_index_at(host_ids, i) / rows] = i;
  return SHEAF_OK;
}

/* Every touched row is a bag of one entry for each problem, skipped where the problem does not touch it: an empty place
 * in the sum, as the dense sum has a zero there. */
static sheaf_status sum_terms(sheaf_tensor *values, sheaf_tensor *terms, sheaf_tensor **rows)
{
  sheaf_tensor *inputs[4] = {values}, *outputs[2] = {NULL, NULL};
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS] = {[SHEAF_EMBEDDING_PADDING_IDX].i = -1,
                                             [SHEAF_EMBEDDING_BAD_INDEX].i = SHEAF_BAD_INDEX_SKIP,
                                             [SHEAF_EMBEDDING_MODE].i = SHEAF_MODE_SUM,
                                             [SHEAF_EMBEDDING_BAG_FORM].i = SHEAF_BAGS_MATRIX};
  SHF_TRY(sheaf_tensor_to(terms, shf_device_of(values), &inputs[1]));
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = SHEAF_OP_EMBEDDING_BAG;
  call.inputs = inputs;
  call.outputs = outputs;
  call.attrs = attrs;
  call.input_count = 4;
  call.output_count = 2;
  call.attr_count = SHEAF_EMBEDDING_ATTRS;
  sheaf_status status = sheaf_dispatch(&call);
  sheaf_tensor_release(inputs[1]);
  *rows = outputs[0];
  return status;
}

/* The ids as rows of one problem's table: i64, on the host. */
static sheaf_status fold_ids(const sheaf_tensor *host_ids, int64_t rows, sheaf_tensor **folded)
{
  SHF_TRY(shf_tensor_make(SHEAF_I64, 1, host_ids->extent, NULL, folded));
  for (int64_t i = 0; i < host_ids->extent[0]; i++)
    ((int64_t *)(*folded)->dl.data)[i] = shf_index_at(host_ids, i) % rows;
  return SHEAF_OK;
}

/* A row-sparse tensor of ids on the host and values wherever they lie. */
static sheaf_status from_host_ids(sheaf_tensor *host_ids, sheaf_tensor *values, const sheaf_tensor *each, int coalesced,
                                  sheaf_tensor **out)
{
  sheaf_tensor *ids;
  SHF_TRY(sheaf_tensor_to(host_ids, shf_device_of(values), &ids));
  sheaf_status status = shf_tensor_sparse(ids, values, each->rank - 1, each->extent + 1, coalesced, out);
  sheaf_tensor_release(ids);
  return status;
}

sheaf_status shf_sparse_sum_problems(sheaf_tensor *each, sheaf_tensor **sum)
{
  int64_t problems = each->extent[0], table = 1;
  sheaf_tensor *host_ids, *folded = NULL, *terms = NULL, *rows = NULL;
  *sum = NULL;
  if (shf_is_on(each, SHEAF_KEY_META))
    return shf_tensor_sparse(each->part[0], each->part[1], each->rank - 1, each->extent + 1, 0, sum);
  for (int i = 1; i < each->rank - 1; i++) table *= each->extent[i];
  shf_compact compact = {.count = 0};
  shf_compact_rule rule = {.operand = "ids", .rows = table, .padding = -1, .bad_index = SHEAF_BAD_INDEX_ERROR};
  SHF_TRY(shf_tensor_on_host(each->part[0], &host_ids));
  sheaf_status status = fold_ids(host_ids, table, &folded);
  if (status == SHEAF_OK && !each->coalesced) { /* equal ids add up as they are */
    status = from_host_ids(folded, each->part[1], each, 0, sum);
  } else {
    if (status == SHEAF_OK) status = shf_compact_rows(folded, &rule, &compact);
    if (status == SHEAF_OK) status = list_terms(host_ids, compact.indices, compact.count, problems, table, &terms);
    if (status == SHEAF_OK) status = sum_terms(each->part[1], terms, &rows);
    if (status == SHEAF_OK) status = from_host_ids(compact.ids, rows, each, 1, sum);
  }
  sheaf_tensor_release(rows);
  sheaf_tensor_release(terms);
  sheaf_tensor_release(folded);
  sheaf_tensor_release(host_ids);
  shf_compact_free(&compact);
  return status;
}

sheaf_status shf_sparse_coalesce(const sheaf_call *call, const sheaf_frame *frame)
{
  SHF_REQUIRE(shf_is_sparse(call->inputs[0]), INVALID_PROBLEM, "coalesce: a row-sparse tensor is needed");
  SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "coalesce makes its result; it cannot be written into a given tensor");
  return shf_sparse_coalesced(call->inputs[0], frame, &call->outputs[0]);
}

sheaf_status shf_sparse_dense(sheaf_tensor *sparse, const sheaf_frame *frame, sheaf_tensor **out)
{
  sheaf_tensor *rows;
  if (sparse->rank == 2) return sum_rows(sparse->part[1], sparse->part[0], sparse->extent[0], frame, out);
  SHF_TRY(sum_rows(sparse->part[1], sparse->part[0], shf_rows_of(sparse), frame, &rows));
  sheaf_status status = shf_send_reshape(rows, sparse->rank, sparse->extent, frame, out);
  sheaf_tensor_release(rows);
  return status;
}

/* The same rows in another order of dimensions before them: ids and values stay as they are. */
sheaf_status shf_sparse_reshape(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *t = call->inputs[0], *dense;
  int64_t rank = call->attrs[0].i, shape[SHEAF_TENSOR_MAX_RANK] = {0}, rows = 1;
  if (!shf_is_sparse(t)) return shf_redispatch(call, frame);
  SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "reshape shares memory; it cannot be written into a given tensor");
  int kept = rank >= 2 && rank <= SHEAF_TENSOR_MAX_RANK && call->attrs[rank].i == t->extent[t->rank - 1];
  for (int i = 0; kept && i < rank; i++) {
    shape[i] = call->attrs[1 + i].i;
    kept = shape[i] >= 0 && (i == rank - 1 || !__builtin_mul_overflow(rows, shape[i], &rows));
  }
  if (kept && rows == shf_rows_of(t))
    return shf_tensor_sparse(t->part[0], t->part[1], (int)rank, shape, t->coalesced, &call->outputs[0]);
  SHF_TRY(shf_sparse_dense(t, frame, &dense));
  sheaf_call plain = *call;
  plain.inputs = &dense;
  sheaf_status status = shf_redispatch(&plain, frame);
  sheaf_tensor_release(dense);
  return status;
}

sheaf_status shf_sparse_to_dense(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *dense;
  if (!shf_is_sparse(call->inputs[0])) return shf_redispatch(call, frame);
  SHF_TRY(shf_sparse_dense(call->inputs[0], frame, &dense));
  return shf_deliver(call, 0, dense);
}

sheaf_status shf_sparse_cast(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *t = call->inputs[0], *rows;
  if (!shf_is_sparse(t)) return shf_redispatch(call, frame);
  SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "a cast row-sparse tensor cannot be written into a given one");
  SHF_TRY(shf_send_dtype(SHEAF_OP_CAST, t->part[1], (sheaf_dtype)call->attrs[0].i, frame, &rows));
  sheaf_status status = shf_tensor_sparse(t->part[0], rows, t->rank, t->extent, t->coalesced, &call->outputs[0]);
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
  sheaf_status status = sheaf_dispatch_to(&copy, shf_data_key(t));
  if (status != SHEAF_OK) shf_drop(out);
  return status;
}

/* Adds the rows of a coalesced tensor to those of a dense matrix, row by row. */
static sheaf_status add_to_matrix(sheaf_tensor *dense, const sheaf_tensor *sparse, double alpha)
{
  const sheaf_tensor *ids = sparse->part[0], *rows = sparse->part[1];
  if (shf_is_on(dense, SHEAF_KEY_META)) return SHEAF_OK;
  if (shf_is_on(dense, SHEAF_KEY_CUDA)) return shf_map_add_rows(dense, ids, rows, alpha);
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
    SHF_TRY(shf_add_scaled(&to, &from, alpha, &to));
  }
  return SHEAF_OK;
}

/* ... of a dense tensor, whose rows are counted through. */
static sheaf_status add_rows(sheaf_tensor *dense, const sheaf_tensor *sparse, double alpha)
{
  sheaf_tensor *matrix;
  if (dense->rank == 2) return add_to_matrix(dense, sparse, alpha);
  SHF_TRY(shf_tensor_reshape(dense, 2, (int64_t[]){shf_rows_of(dense), dense->extent[dense->rank - 1]}, &matrix));
  sheaf_status status = add_to_matrix(matrix, sparse, alpha);
  sheaf_tensor_release(matrix);
  return status;
}

/* Ids were checked when the tensor was made; somebody may have written others since. */
static sheaf_status check_ids(const sheaf_tensor *sparse)
{
  const sheaf_tensor *ids = sparse->part[0];
  const int64_t rows = shf_rows_of(sparse);
  if (shf_is_on(sparse, SHEAF_KEY_META) || shf_is_on(sparse, SHEAF_KEY_CUDA)) return SHEAF_OK;
  for (int64_t i = 0; i < ids->extent[0]; i++)
    SHF_REQUIRE((uint64_t)shf_index_at(ids, i) < (uint64_t)rows, INDEX_OUT_OF_RANGE,
                "row ids: %" PRId64 " at position %" PRId64 " is outside 0..%" PRId64
                "; it was written after the tensor was made",
                shf_index_at(ids, i), i, rows - 1);
  return SHEAF_OK;
}

/* That rows can be added to those of a given tensor, before it is written. */
static sheaf_status check_rows(const sheaf_tensor *given, const sheaf_tensor *sparse)
{
  int plain = !given || given->rank < 2 || given->strides[given->rank - 1] == 1;
  SHF_REQUIRE(plain && sparse->part[1]->strides[1] == 1, UNSUPPORTED, "add: the last dimension must be contiguous");
  SHF_REQUIRE(!given || given->rank <= 2 || shf_tensor_is_contiguous(given), UNSUPPORTED,
              "add of a row-sparse tensor to one of rank %d, which must be contiguous", given->rank);
  return check_ids(sparse);
}

static sheaf_status add_to_dense(const sheaf_call *call, sheaf_tensor *dense, sheaf_tensor *sparse, double alpha,
                                 const sheaf_frame *frame)
{
  sheaf_tensor *merged, *out = NULL;
  SHF_TRY(check_rows(call->outputs[0], sparse));
  SHF_TRY(shf_sparse_coalesced(sparse, frame, &merged));
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

/* Part of a tensor's rows, as a tensor that lives no longer than it and is not released. */
static sheaf_tensor rows_of(sheaf_tensor *t, int64_t first, int64_t count)
{
  sheaf_tensor part = {.form = t->form, .dtype = t->dtype, .keys = t->keys, .rank = t->rank, .bytes = 0};
  part.dl = t->dl;
  part.dl.byte_offset += (uint64_t)(first * t->strides[0] * shf_core_dtype_size(t->dtype));
  memcpy(part.extent, t->extent, sizeof part.extent);
  memcpy(part.strides, t->strides, sizeof part.strides);
  part.extent[0] = count;
  return part;
}

/* Copies a list's ids and rows to those from place `first` on; rows times alpha. */
static sheaf_status put_list(const sheaf_tensor *list, int64_t first, double alpha, sheaf_tensor *ids,
                             sheaf_tensor *rows)
{
  int64_t count = list->part[0]->extent[0];
  if (count == 0 || shf_is_on(ids, SHEAF_KEY_META)) return SHEAF_OK;
  sheaf_tensor to_ids = rows_of(ids, first, count), to_rows = rows_of(rows, first, count);
  to_ids.dl.shape = to_ids.extent;
  to_rows.dl.shape = to_rows.extent;
  if (shf_is_on(ids, SHEAF_KEY_CUDA)) {
    SHF_TRY(shf_map_cast(list->part[0], &to_ids));
    SHF_TRY(shf_map_copy(list->part[1], list->part[1]->strides, &to_rows));
  } else {
    size_t bytes = (size_t)(rows->extent[1] * shf_core_dtype_size(rows->dtype));
    const char *from = shf_data(list->part[1]);
    for (int64_t i = 0; i < count; i++) {
      ((int64_t *)ids->dl.data)[first + i] = shf_index_at(list->part[0], i);
      memcpy((char *)shf_data(&to_rows) + (size_t)i * bytes,
             from + i * list->part[1]->strides[0] * shf_core_dtype_size(rows->dtype), bytes);
    }
  }
  if (alpha == 1) return SHEAF_OK;
  sheaf_tensor *zeros;
  SHF_TRY(shf_tensor_make(rows->dtype, 2, to_rows.extent, rows, &zeros));
  sheaf_status status = shf_tensor_clear(zeros);
  if (status == SHEAF_OK) status = shf_add_scaled(zeros, &to_rows, alpha, &to_rows);
  sheaf_tensor_release(zeros);
  return status;
}

/* Both lists, one after the other. */
static sheaf_status join(const sheaf_tensor *a, const sheaf_tensor *b, double alpha, sheaf_tensor **out)
{
  int64_t first = a->part[0]->extent[0], shape[] = {first + b->part[0]->extent[0], a->part[1]->extent[1]};
  sheaf_tensor *ids = NULL, *rows = NULL;
  SHF_REQUIRE(a->part[1]->strides[1] == 1 && b->part[1]->strides[1] == 1, UNSUPPORTED,
              "add: the last dimension must be contiguous");
  sheaf_status status = shf_tensor_make(SHEAF_I64, 1, shape, a->part[0], &ids);
  if (status == SHEAF_OK) status = shf_tensor_make(a->dtype, 2, shape, a->part[1], &rows);
  if (status == SHEAF_OK) status = put_list(a, 0, 1, ids, rows);
  if (status == SHEAF_OK) status = put_list(b, first, alpha, ids, rows);
  if (status == SHEAF_OK) status = shf_tensor_sparse(ids, rows, a->rank, a->extent, 0, out);
  sheaf_tensor_release(ids);
  sheaf_tensor_release(rows);
  return status;
}

sheaf_status shf_sparse_add(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *a = call->inputs[0], *b = call->inputs[1], *dense;
  char left[120], right[120];
  if (!shf_is_sparse(a) && !shf_is_sparse(b)) return shf_redispatch(call, frame);
  SHF_REQUIRE(a->dtype == b->dtype && a->rank == b->rank &&
                  memcmp(a->extent, b->extent, sizeof *a->extent * (size_t)a->rank) == 0,
              INVALID_PROBLEM, "add: %s %s and %s %s are not of one type and shape", sheaf_dtype_name(a->dtype),
              shf_shape_text(a, left, sizeof left), sheaf_dtype_name(b->dtype), shf_shape_text(b, right, sizeof right));
  if (shf_is_sparse(a) && shf_is_sparse(b)) {
    SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "a sum of row-sparse tensors cannot be written into a given one");
    return join(a, b, call->attrs[0].f, &call->outputs[0]);
  }
  if (shf_is_sparse(b)) return add_to_dense(call, a, b, call->attrs[0].f, frame);
  SHF_TRY(shf_sparse_dense(a, frame, &dense));
  sheaf_call changed = *call;
  sheaf_tensor *inputs[] = {dense, b};
  changed.inputs = inputs;
  sheaf_status status = shf_redispatch(&changed, frame);
  sheaf_tensor_release(dense);
  return status;
}
