/* conversions.c: ops on plain and packed tensors that change the form: quantize, dequantize, to_dense, batch. */
#include <inttypes.h>

#include "layers/layers_impl.h"

/* A tensor's rows as one matrix [rows, columns] of its memory. */
typedef struct flat_rows {
  DLTensor dl;
  int64_t shape[2], strides[2];
} flat_rows;

static sheaf_operand flatten(const sheaf_tensor *t, flat_rows *flat)
{
  int last = t->dl.ndim - 1;
  flat->dl = t->dl;
  flat->shape[0] = 1;
  for (int i = 0; i < last; i++) flat->shape[0] *= t->dl.shape[i];
  flat->shape[1] = t->dl.shape[last];
  flat->strides[0] = t->strides[last - 1];
  flat->strides[1] = t->strides[last];
  flat->dl.ndim = 2;
  flat->dl.shape = flat->shape;
  flat->dl.strides = flat->strides;
  return (sheaf_operand){&flat->dl, t->bytes};
}

/* A cast by the kernel of the same key. */
static sheaf_status cast_here(sheaf_tensor *t, sheaf_dtype dtype, const sheaf_frame *frame, sheaf_tensor **out)
{
  sheaf_attr attr = {.i = dtype};
  sheaf_call call = SHEAF_CALL_INIT;
  *out = NULL;
  call.op = SHEAF_OP_CAST;
  call.inputs = &t;
  call.outputs = out;
  call.attrs = &attr;
  call.input_count = call.output_count = call.attr_count = 1;
  return sheaf_dispatch_to(&call, frame->key);
}

/* Makes packed rows for a tensor and fills them. */
static sheaf_status pack(const sheaf_tensor *rows, sheaf_dtype dtype, int meta, sheaf_tensor **out)
{
  int64_t shape[SHEAF_TENSOR_MAX_RANK], dim = rows->extent[rows->rank - 1];
  flat_rows plain, bytes;
  memcpy(shape, rows->extent, sizeof shape);
  shape[rows->rank - 1] = sheaf_dtype_row_bytes(dtype, dim);
  sheaf_tensor *packed;
  SHF_TRY(shf_tensor_make(SHEAF_U8, rows->rank, shape, rows, &packed));
  sheaf_operand from = flatten(rows, &plain), to = flatten(packed, &bytes);
  sheaf_status status = meta ? SHEAF_OK : sheaf_quantize_rows(dtype, &from, &to);
  if (status == SHEAF_OK) status = sheaf_tensor_quantized(packed, dtype, dim, out);
  sheaf_tensor_release(packed);
  return status;
}

sheaf_status shf_plain_quantize(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *given = shf_input(call, 0), *rows, *out;
  sheaf_dtype dtype = (sheaf_dtype)call->attrs[0].i;
  SHF_REQUIRE(given && given->form <= SHEAF_FORM_META && given->rank >= 2, INVALID_PROBLEM,
              "quantize: rows [..., V, D] are needed, this tensor is of form %d and rank %d",
              (int)sheaf_tensor_form(given), sheaf_tensor_rank(given));
  SHF_REQUIRE(shf_is_quantised(dtype), UNSUPPORTED, "rows are packed as int8 or int4, not as %s (%d)",
              sheaf_dtype_name(dtype), (int)dtype);
  SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "quantize makes its result; it cannot be written into a given tensor");
  if (frame->key == SHEAF_KEY_CUDA) return shf_through_host(call, frame, shf_plain_quantize);
  SHF_TRY(cast_here(given, SHEAF_F32, frame, &rows));
  sheaf_status status = SHEAF_OK;
  if (given->rank > 2 && !shf_tensor_is_contiguous(rows))
    status = shf_core_fail(SHEAF_UNSUPPORTED, "quantize: rows of rank %d must be contiguous", given->rank);
  if (status == SHEAF_OK) status = pack(rows, dtype, shf_is_meta(frame), &out);
  sheaf_tensor_release(rows);
  if (status != SHEAF_OK) return status;
  if (shf_is_meta(frame)) shf_meta_nothing();
  call->outputs[0] = out;
  return SHEAF_OK;
}

/* On a device rows are dequantised by looking up each of them. */
static sheaf_status look_up_all(sheaf_tensor *packed, const sheaf_frame *frame, sheaf_tensor **rows)
{
  int64_t count = 1, dim = packed->extent[packed->rank - 1];
  for (int i = 0; i + 1 < packed->rank; i++) count *= packed->extent[i];
  sheaf_tensor *host, *inputs[2] = {NULL, NULL}, *flat = NULL, *found = NULL;
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS] = {
      [SHEAF_EMBEDDING_PADDING_IDX].i = -1, [SHEAF_EMBEDDING_BAD_INDEX].i = SHEAF_BAD_INDEX_SKIP};
  int64_t shape[] = {count, packed->dl.shape[packed->rank - 1]};
  SHF_TRY(shf_tensor_make(SHEAF_I64, 1, &count, NULL, &host));
  for (int64_t i = 0; i < count; i++) ((int64_t *)host->dl.data)[i] = i;
  sheaf_status status = sheaf_tensor_to(host, shf_device_of(packed), &inputs[1]);
  sheaf_tensor_release(host);
  if (status == SHEAF_OK && packed->rank > 2) { /* one table of all rows */
    status = shf_tensor_reshape(packed, 2, shape, &flat);
    if (status == SHEAF_OK) {
      flat->form = SHEAF_FORM_DENSE;
      flat->dtype = SHEAF_U8;
      status = sheaf_tensor_quantized(flat, packed->dtype, dim, &inputs[0]);
    }
  } else {
    inputs[0] = sheaf_tensor_retain(packed);
  }
  if (status == SHEAF_OK) {
    sheaf_call call = SHEAF_CALL_INIT;
    call.op = SHEAF_OP_EMBEDDING;
    call.inputs = inputs;
    call.outputs = &found;
    call.attrs = attrs;
    call.input_count = 2;
    call.output_count = 1;
    call.attr_count = SHEAF_EMBEDDING_ATTRS;
    status = sheaf_dispatch_to(&call, frame->key);
  }
  if (status == SHEAF_OK) status = shf_tensor_reshape(found, packed->rank, packed->extent, rows);
  sheaf_tensor_release(found);
  sheaf_tensor_release(flat);
  sheaf_tensor_release(inputs[0]);
  sheaf_tensor_release(inputs[1]);
  return status;
}

static sheaf_status unpack(sheaf_tensor *packed, const sheaf_frame *frame, sheaf_tensor **rows)
{
  *rows = NULL;
  if (frame->key == SHEAF_KEY_CUDA) return look_up_all(packed, frame, rows);
  SHF_TRY(shf_tensor_make(SHEAF_F32, packed->rank, packed->extent, packed, rows));
  flat_rows bytes, plain;
  sheaf_operand from = flatten(packed, &bytes), to = flatten(*rows, &plain);
  return shf_is_meta(frame) ? SHEAF_OK : sheaf_dequantize_rows(packed->dtype, &from, &to);
}

sheaf_status shf_plain_dequantize(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *packed = shf_input(call, 0), *rows, *cast;
  sheaf_dtype dtype = call->attrs[0].i ? (sheaf_dtype)call->attrs[0].i : SHEAF_F32;
  SHF_REQUIRE(packed && packed->form == SHEAF_FORM_QUANTIZED, INVALID_PROBLEM,
              "dequantize: a quantised tensor is needed, this one is of form %d", (int)sheaf_tensor_form(packed));
  SHF_REQUIRE(packed->rank == 2 || shf_tensor_is_contiguous(packed), UNSUPPORTED,
              "dequantize: packed rows of rank %d must be contiguous", packed->rank);
  sheaf_status status = unpack(packed, frame, &rows);
  if (status == SHEAF_OK) status = cast_here(rows, dtype, frame, &cast);
  sheaf_tensor_release(rows);
  return status == SHEAF_OK ? shf_deliver(call, 0, cast) : status;
}

sheaf_status shf_plain_to_dense(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *t = shf_input(call, 0);
  (void)frame;
  SHF_REQUIRE(t && t->form <= SHEAF_FORM_META, UNSUPPORTED, "to_dense: a tensor of form %d, whose layer is left out",
              (int)sheaf_tensor_form(t));
  return shf_deliver_same(call, t);
}

/* Hides the dimension behind those that are hidden already; at every key, since nothing is computed. */
sheaf_status shf_plain_batch(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *t = call->inputs[0];
  (void)frame;
  int64_t level = call->attrs[0].i;
  int levels = t->form == SHEAF_FORM_BATCHED ? t->levels : 0, all[SHF_MAX_LEVELS];
  SHF_REQUIRE(level >= 1 && level <= SHF_MAX_LEVELS, INVALID_PROBLEM, "vmap level %" PRId64 ": there are 1 to %d",
              level, SHF_MAX_LEVELS);
  SHF_REQUIRE(levels == 0 || t->level[levels - 1] < level, INVALID_PROBLEM,
              "vmap level %" PRId64 " within level %d: the inner one must be higher", level,
              t->level[levels ? levels - 1 : 0]);
  SHF_REQUIRE(t->rank >= 1, INVALID_PROBLEM, "a tensor without dimensions has none to batch");
  SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "batch shares memory; it cannot be written into a given tensor");
  const sheaf_tensor *whole = levels ? t->part[0] : t;
  int rows = whole->form == SHEAF_FORM_SPARSE || whole->form == SHEAF_FORM_QUANTIZED; /* whose last two stay together */
  SHF_REQUIRE(whole->form != SHEAF_FORM_NESTED || whole->lead > levels, UNSUPPORTED,
              "the components of a nested tensor are not alike: vmap has no slices of them");
  SHF_REQUIRE(!rows || t->rank >= 3, UNSUPPORTED, "a tensor of form %d and rank %d cannot be batched", (int)whole->form,
              t->rank);
  for (int i = 0; i < levels; i++) all[i] = t->level[i];
  all[levels] = (int)level;
  return shf_tensor_batched(sheaf_tensor_retain(levels ? t->part[0] : t), levels + 1, all, &call->outputs[0]);
}
