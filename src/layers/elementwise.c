/* elementwise.c: ops that are no plans, on plain tensors: cast, add, movedim, reshape, expand. On the CPU these are
 * loops here; on a device the plug-in does it (device_map.c); with Meta only the shapes are made. */
#include <inttypes.h>
#include <math.h>

#include "core/cpu.h"
#include "layers/layers_impl.h"

/* ---- Rows of any layout ---- */

/* Where row `row` (all dimensions but the last) begins, in elements. */
static int64_t row_start(const sheaf_tensor *t, int64_t row)
{
  int64_t at = 0;
  for (int i = t->dl.ndim - 2; i >= 0; i--) {
    at += row % t->dl.shape[i] * t->strides[i];
    row /= t->dl.shape[i];
  }
  return at;
}

static int64_t last_extent(const sheaf_tensor *t) { return t->rank ? t->extent[t->rank - 1] : 1; }
static int64_t last_stride(const sheaf_tensor *t) { return t->rank ? t->strides[t->rank - 1] : 1; }

static int64_t row_count(const sheaf_tensor *t)
{
  int64_t rows = 1;
  for (int i = 0; i + 1 < t->rank; i++) rows *= t->extent[i];
  return last_extent(t) ? rows : 0;
}

/* ---- One element ---- */

/* Narrowing a double to 16 bits in one rounding: through a float that is rounded to odd, which keeps that something
 * was cut off. */
static float to_odd_float(double x)
{
  float f = (float)x;
  if ((double)f == x || x != x || isinf(f)) return f;
  uint32_t bits = shf_bits_of_f32(f);
  if (fabs((double)f) > fabs(x)) bits--; /* towards zero: the magnitude below, whatever the sign */
  return shf_f32_of_bits(bits | 1);
}

static double load(const void *data, sheaf_dtype dtype, int64_t i)
{
  switch (dtype) {
  case SHEAF_F64:
    return ((const double *)data)[i];
  case SHEAF_F16:
    return (double)shf_f16_to_f32(((const uint16_t *)data)[i]);
  case SHEAF_BF16:
    return (double)shf_bf16_to_f32(((const uint16_t *)data)[i]);
  default:
    return (double)((const float *)data)[i];
  }
}

static void store(void *data, sheaf_dtype dtype, int64_t i, double x)
{
  switch (dtype) {
  case SHEAF_F64:
    ((double *)data)[i] = x;
    break;
  case SHEAF_F16:
    ((uint16_t *)data)[i] = shf_f32_to_f16(to_odd_float(x));
    break;
  case SHEAF_BF16:
    ((uint16_t *)data)[i] = shf_f32_to_bf16(to_odd_float(x));
    break;
  default:
    ((float *)data)[i] = (float)x;
  }
}

static void cast_row(const void *from, sheaf_dtype from_dtype, int64_t step, void *to, sheaf_dtype to_dtype,
                     int64_t count)
{
  if (from_dtype == SHEAF_F32 && to_dtype == SHEAF_F16) {
    for (int64_t i = 0; i < count; i++) ((uint16_t *)to)[i] = shf_f32_to_f16(((const float *)from)[i * step]);
  } else if (from_dtype == SHEAF_F32 && to_dtype == SHEAF_BF16) {
    for (int64_t i = 0; i < count; i++) ((uint16_t *)to)[i] = shf_f32_to_bf16(((const float *)from)[i * step]);
  } else if (from_dtype == to_dtype && step == 1) {
    memcpy(to, from, (size_t)(count * shf_core_dtype_size(to_dtype)));
  } else {
    for (int64_t i = 0; i < count; i++) store(to, to_dtype, i, load(from, from_dtype, i * step));
  }
}

/* fma(alpha, b, a) in the type's accumulator, rounded once more to the type. */
static void add_row(const void *a, const void *b, double alpha, void *out, sheaf_dtype dtype, int64_t count)
{
  float narrow = (float)alpha;
  if (dtype == SHEAF_F32) {
    const float *x = a, *y = b;
    float *to = out;
    if (alpha == 1)
      for (int64_t i = 0; i < count; i++) to[i] = x[i] + y[i];
    else
      for (int64_t i = 0; i < count; i++) to[i] = fmaf(narrow, y[i], x[i]);
  } else if (dtype == SHEAF_F64) {
    for (int64_t i = 0; i < count; i++) ((double *)out)[i] = fma(alpha, ((const double *)b)[i], ((const double *)a)[i]);
  } else {
    for (int64_t i = 0; i < count; i++)
      store(out, dtype, i, (double)fmaf(narrow, (float)load(b, dtype, i), (float)load(a, dtype, i)));
  }
}

/* ---- Outputs ---- */

/* The caller's output, checked, or a new one. */
static sheaf_status output_for(const sheaf_call *call, sheaf_dtype dtype, int rank, const int64_t *shape,
                               sheaf_tensor **out)
{
  sheaf_tensor *given = call->outputs[0];
  if (!given) return shf_tensor_make(dtype, rank, shape, call->inputs[0], out);
  char text[120];
  SHF_REQUIRE(given->form <= SHEAF_FORM_META && given->dtype == dtype && given->rank == rank &&
                  memcmp(given->extent, shape, sizeof *shape * (size_t)rank) == 0 && last_stride(given) == 1,
              INVALID_PROBLEM, "%s: its output is given as %s %s of form %d, which does not fit a result of %s",
              shf_op_name(call), sheaf_dtype_name(given->dtype), shf_shape_text(given, text, sizeof text),
              (int)given->form, sheaf_dtype_name(dtype));
  SHF_TRY(shf_check_output_place(call, given));
  *out = given;
  return SHEAF_OK;
}

/* Ends a call: an output that was made goes to the caller, or away when it could not be filled. */
static sheaf_status hand_out(const sheaf_call *call, sheaf_tensor *out, sheaf_status status)
{
  if (call->outputs[0])
    sheaf_tensor_written(out);
  else if (status == SHEAF_OK)
    call->outputs[0] = out;
  else
    sheaf_tensor_release(out);
  return status;
}

/* What is computed, or with Meta is not. */
static int is_without_data(const sheaf_frame *frame)
{
  if (shf_is_meta(frame)) shf_meta_nothing();
  return shf_is_meta(frame);
}

static sheaf_status check_plain(const sheaf_call *call, int input)
{
  const sheaf_tensor *t = shf_input(call, input);
  SHF_REQUIRE(t, INVALID_PROBLEM, "%s: %s is not given", shf_op_name(call), shf_dispatch_input_name(call->op, input));
  SHF_REQUIRE(t->form == SHEAF_FORM_DENSE || t->form == SHEAF_FORM_META, UNSUPPORTED,
              "%s: %s is a tensor of form %d, whose layer is left out or has no part in this op", shf_op_name(call),
              shf_dispatch_input_name(call->op, input), (int)t->form);
  return SHEAF_OK;
}

/* ---- The ops ---- */

static sheaf_status cast_all(const sheaf_tensor *from, sheaf_tensor *to)
{
  if (shf_is_on(to, SHEAF_KEY_CUDA)) return shf_map_cast(from, to);
  int64_t from_size = shf_core_dtype_size(from->dtype), to_size = shf_core_dtype_size(to->dtype);
  int64_t width = last_extent(to), rows = row_count(to);
  unsigned mode = shf_core_fp_enter();
  for (int64_t r = 0; r < rows; r++)
    cast_row((const char *)shf_data(from) + row_start(from, r) * from_size, from->dtype, last_stride(from),
             (char *)shf_data(to) + row_start(to, r) * to_size, to->dtype, width);
  shf_core_fp_leave(mode);
  return SHEAF_OK;
}

sheaf_status shf_plain_cast(const sheaf_call *call, const sheaf_frame *frame)
{
  SHF_TRY(check_plain(call, 0));
  sheaf_tensor *from = call->inputs[0], *to;
  sheaf_dtype dtype = (sheaf_dtype)call->attrs[0].i;
  SHF_REQUIRE(shf_dtype_is_float(dtype) && shf_dtype_is_float(from->dtype), UNSUPPORTED,
              "cast of %s to %s: f32, f64, f16 and bf16 are cast to each other", sheaf_dtype_name(from->dtype),
              sheaf_dtype_name(dtype));
  if (dtype == from->dtype && !call->outputs[0]) return shf_deliver_same(call, from);
  SHF_TRY(output_for(call, dtype, from->rank, from->extent, &to));
  return hand_out(call, to, is_without_data(frame) ? SHEAF_OK : cast_all(from, to));
}

sheaf_status shf_add_scaled(const sheaf_tensor *a, const sheaf_tensor *b, double alpha, sheaf_tensor *out)
{
  if (shf_is_on(out, SHEAF_KEY_CUDA)) return shf_map_add(a, b, alpha, out);
  int64_t size = shf_core_dtype_size(a->dtype), width = last_extent(a), rows = row_count(a);
  unsigned mode = shf_core_fp_enter();
  for (int64_t r = 0; r < rows; r++)
    add_row((const char *)shf_data(a) + row_start(a, r) * size, (const char *)shf_data(b) + row_start(b, r) * size,
            alpha, (char *)shf_data(out) + row_start(out, r) * size, a->dtype, width);
  shf_core_fp_leave(mode);
  return SHEAF_OK;
}

sheaf_status shf_plain_add(const sheaf_call *call, const sheaf_frame *frame)
{
  SHF_TRY(check_plain(call, 0));
  SHF_TRY(check_plain(call, 1));
  sheaf_tensor *a = call->inputs[0], *b = call->inputs[1], *out;
  char left[120], right[120];
  SHF_REQUIRE(a->dtype == b->dtype && a->rank == b->rank &&
                  memcmp(a->extent, b->extent, sizeof *a->extent * (size_t)a->rank) == 0,
              INVALID_PROBLEM, "add: %s %s and %s %s are not of one type and shape", sheaf_dtype_name(a->dtype),
              shf_shape_text(a, left, sizeof left), sheaf_dtype_name(b->dtype), shf_shape_text(b, right, sizeof right));
  SHF_REQUIRE(shf_dtype_is_float(a->dtype), UNSUPPORTED, "add of %s: f32, f64, f16 and bf16 are added",
              sheaf_dtype_name(a->dtype));
  SHF_REQUIRE(last_stride(a) == 1 && last_stride(b) == 1, UNSUPPORTED, "add: the last dimension must be contiguous");
  SHF_TRY(output_for(call, a->dtype, a->rank, a->extent, &out));
  return hand_out(call, out, is_without_data(frame) ? SHEAF_OK : shf_add_scaled(a, b, call->attrs[0].f, out));
}

/* Copies element by element in the order of `to`; steps are those of `from`, dimension by dimension of `to`. */
static sheaf_status copy_strided(const sheaf_tensor *from, const int64_t *steps, sheaf_tensor *to)
{
  if (shf_is_on(to, SHEAF_KEY_CUDA)) return shf_map_copy(from, steps, to);
  size_t size = (size_t)shf_core_dtype_size(to->dtype);
  int64_t index[SHEAF_TENSOR_MAX_RANK] = {0}, at = 0, count = shf_tensor_elements(to);
  const char *source = shf_data(from);
  char *target = shf_data(to);
  for (int64_t i = 0; i < count; i++) {
    memcpy(target + (size_t)i * size, source + at * (int64_t)size, size);
    for (int d = to->rank - 1; d >= 0; d--) {
      at += steps[d];
      if (++index[d] < to->extent[d]) break;
      at -= steps[d] * to->extent[d];
      index[d] = 0;
    }
  }
  return SHEAF_OK;
}

sheaf_status shf_plain_movedim(const sheaf_call *call, const sheaf_frame *frame)
{
  SHF_TRY(check_plain(call, 0));
  sheaf_tensor *t = call->inputs[0], *out;
  int64_t from = call->attrs[0].i, to = call->attrs[1].i;
  SHF_REQUIRE(from >= 0 && from < t->rank && to >= 0 && to < t->rank, INVALID_PROBLEM,
              "movedim from %" PRId64 " to %" PRId64 ": the tensor has dimensions 0..%d", from, to, t->rank - 1);
  int64_t shape[SHEAF_TENSOR_MAX_RANK] = {0}, steps[SHEAF_TENSOR_MAX_RANK] = {0};
  for (int i = 0, source = 0; i < t->rank; i++) {
    int d = i == to ? (int)from : (source == from ? ++source : source);
    if (i != to) source++;
    shape[i] = t->extent[d];
    steps[i] = t->strides[d];
  }
  SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "movedim makes its result; it cannot be written into a given tensor");
  SHF_TRY(shf_tensor_make(t->dtype, t->rank, shape, t, &out));
  return hand_out(call, out, is_without_data(frame) ? SHEAF_OK : copy_strided(t, steps, out));
}

sheaf_status shf_plain_reshape(const sheaf_call *call, const sheaf_frame *frame)
{
  SHF_TRY(check_plain(call, 0));
  sheaf_tensor *t = call->inputs[0];
  int64_t rank = call->attrs[0].i, shape[SHEAF_TENSOR_MAX_RANK], elements = 1;
  char text[120];
  SHF_REQUIRE(rank >= 0 && rank <= SHEAF_TENSOR_MAX_RANK, INVALID_PROBLEM, "reshape to %" PRId64 " dimensions", rank);
  for (int i = 0; i < rank; i++) {
    shape[i] = call->attrs[i + 1].i;
    SHF_REQUIRE(shape[i] >= 0 && !__builtin_mul_overflow(elements, shape[i], &elements), INVALID_PROBLEM,
                "reshape: extent %" PRId64 " in dimension %d", shape[i], i);
  }
  SHF_REQUIRE(elements == shf_tensor_elements(t), INVALID_PROBLEM, "reshape of %s to %" PRId64 " elements",
              shf_shape_text(t, text, sizeof text), elements);
  SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "reshape shares memory; it cannot be written into a given tensor");
  if (is_without_data(frame) || shf_tensor_is_contiguous(t))
    return shf_tensor_reshape(t, (int)rank, shape, &call->outputs[0]);
  sheaf_tensor *whole; /* gaps cannot be seen through: a copy */
  SHF_TRY(shf_tensor_make(t->dtype, t->rank, t->extent, t, &whole));
  sheaf_status status = copy_strided(t, t->strides, whole);
  if (status == SHEAF_OK) status = shf_tensor_reshape(whole, (int)rank, shape, &call->outputs[0]);
  sheaf_tensor_release(whole);
  return status;
}

sheaf_status shf_plain_expand(const sheaf_call *call, const sheaf_frame *frame)
{
  SHF_TRY(check_plain(call, 0));
  sheaf_tensor *t = call->inputs[0], *out;
  int64_t shape[SHEAF_TENSOR_MAX_RANK] = {0}, steps[SHEAF_TENSOR_MAX_RANK] = {0};
  SHF_REQUIRE(t->rank < SHEAF_TENSOR_MAX_RANK && call->attrs[0].i >= 0, INVALID_PROBLEM,
              "expand of a tensor of rank %d to %" PRId64 " copies", t->rank, call->attrs[0].i);
  SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "expand makes its result; it cannot be written into a given tensor");
  shape[0] = call->attrs[0].i;
  steps[0] = 0;
  for (int i = 0; i < t->rank; i++) {
    shape[i + 1] = t->extent[i];
    steps[i + 1] = t->strides[i];
  }
  SHF_TRY(shf_tensor_make(t->dtype, t->rank + 1, shape, t, &out));
  return hand_out(call, out, is_without_data(frame) ? SHEAF_OK : copy_strided(t, steps, out));
}
