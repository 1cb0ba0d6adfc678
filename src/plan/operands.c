/* operands.c: whether the operands of a run fit its plan: devices, types and shapes; lengths; alignment; shared
 * memory. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "plan/plan_impl.h"

enum { MAX_RANK = 32 };

char shf_plan_nowhere[64] __attribute__((aligned(64)));

static int64_t dimension_stride(const DLTensor *t, int i)
{
  if (t->strides) return t->strides[i];
  int64_t stride = 1;
  for (int j = i + 1; j < t->ndim; j++) stride *= t->shape[j]; /* the product of a checked shape */
  return stride;
}

void shf_plan_finish_spec(shf_operand_spec *spec)
{
  int64_t size = shf_core_dtype_size(spec->dtype);
  spec->element_bytes = size ? size : 1; /* packed rows are bytes */
  spec->type = sheaf_dtype_to_dl(spec->dtype);
  spec->compact_bytes = spec->element_bytes;
  if (!shf_plan_multiply(&spec->compact_bytes, spec->rows) ||
      !shf_plan_multiply(&spec->compact_bytes, spec->columns < 0 ? 1 : spec->columns))
    spec->compact_bytes = 0;
}

void shf_plan_finish_specs(sheaf_plan *plan)
{
  for (int i = 0; i < plan->operands; i++) {
    if (plan->api) plan->spec[i].device = plan->device;
    shf_plan_finish_spec(&plan->spec[i]);
    if (plan->spec[i].need != SHF_NOT_TAKEN) plan->taken[plan->taken_count++] = i;
  }
}

static const char *shape_text(const int64_t *shape, int rank, char *buffer, size_t size)
{
  size_t used = (size_t)snprintf(buffer, size, "[");
  for (int i = 0; i < rank && used < size; i++)
    used += (size_t)snprintf(buffer + used, size - used, i ? ", %" PRId64 : "%" PRId64, shape[i]);
  if (used < size) snprintf(buffer + used, size - used, "]");
  return buffer;
}

static sheaf_status wrong_shape(const sheaf_plan *plan, const shf_operand_spec *spec, const DLTensor *t)
{
  char got[200], rows[64];
  shape_text(t->shape, t->ndim, got, sizeof got);
  if (spec->matrix)
    snprintf(rows, sizeof rows, "%" PRId64 ", %" PRId64, spec->matrix_rows,
             spec->matrix_rows ? spec->rows / spec->matrix_rows : 0);
  else if (spec->columns < 0)
    snprintf(rows, sizeof rows, "%" PRId64 "%s", spec->rows, spec->free_shape ? " in all" : "");
  else
    snprintf(rows, sizeof rows, "%" PRId64 "%s, %" PRId64, spec->rows, spec->free_shape ? " in all" : "",
             spec->columns);
  sheaf_error_info info = {.status = SHEAF_INVALID_PROBLEM, .operand = spec->name, .position = -1};
  if (plan && plan->has_batch)
    return shf_core_fail_info(&info, "%s has shape %s; [%" PRId64 ", %s] is needed", spec->name, got, plan->batch,
                              rows);
  return shf_core_fail_info(&info, "%s has shape %s; [%s] is needed", spec->name, got, rows);
}

#define FAIL_OPERAND(...)                                                                             \
  do {                                                                                                \
    sheaf_error_info info = {.status = SHEAF_INVALID_PROBLEM, .operand = spec->name, .position = -1}; \
    return shf_core_fail_info(&info, __VA_ARGS__);                                                    \
  } while (0)

/* Pinned host memory can be reached from everywhere. */
static int lies_right(const shf_operand_spec *spec, DLDevice device)
{
  int type = (int)device.device_type, cpu = spec->device.device_type == 0;
  if (type == kDLCUDAHost) return 1;
  if (cpu) return type == kDLCPU;
  return (type == kDLCUDA || type == kDLCUDAManaged) && device.device_id == spec->device.device_id;
}

/* Device, dtype, and that the shape can be walked at all. */
static sheaf_status check_kind(const shf_operand_spec *spec, const DLTensor *t)
{
  int device = (int)t->device.device_type;
  if (!lies_right(spec, t->device) && spec->device.device_type != 0)
    FAIL_OPERAND("%s lies on device %d of type %d; this plan runs on CUDA device %d (type %d)", spec->name,
                 t->device.device_id, device, spec->device.device_id, (int)kDLCUDA);
  if (!lies_right(spec, t->device))
    FAIL_OPERAND("%s lies on device type %d; this plan runs on the CPU (%d)", spec->name, device, (int)kDLCPU);
  DLDataType want = spec->type;
  if (t->dtype.code != want.code || t->dtype.bits != want.bits || t->dtype.lanes != want.lanes)
    FAIL_OPERAND("%s has DLPack type (code %d, %d bits, %d lanes); %s (code %d, %d bits) is needed", spec->name,
                 t->dtype.code, t->dtype.bits, t->dtype.lanes, sheaf_dtype_name(spec->dtype), want.code, want.bits);
  if (t->ndim < 0 || t->ndim > MAX_RANK || (t->ndim > 0 && !t->shape))
    FAIL_OPERAND("%s has %d dimensions%s", spec->name, t->ndim, t->ndim > 0 && !t->shape ? " but no shape" : "");
  int64_t elements = 1;
  for (int i = 0; i < t->ndim; i++) {
    if (t->shape[i] < 0) FAIL_OPERAND("%s has extent %" PRId64 " in dimension %d", spec->name, t->shape[i], i);
    if (!shf_plan_multiply(&elements, t->shape[i])) FAIL_OPERAND("%s has more than 2^63 elements", spec->name);
  }
  return SHEAF_OK;
}

/* Whether dimensions first .. last - 1 form one run of `count` steps; *stride is the step (unset for fewer than 2). */
static int collapse(const DLTensor *t, int first, int last, int64_t count, int64_t *stride)
{
  int64_t product = 1, expected = 0;
  int steps = 0;
  for (int i = first; i < last; i++) product *= t->shape[i];
  if (product != count) return 0;
  if (count == 0) return 1;
  for (int i = last - 1; i >= first; i--) {
    if (t->shape[i] == 1) continue;
    int64_t step = dimension_stride(t, i);
    if (steps == 0) *stride = step;
    if (steps++ > 0 && step != expected) return -1;
    if (__builtin_mul_overflow(step, t->shape[i], &expected)) return -1;
  }
  return 1;
}

/* Strides in bytes, and that they neither run backwards nor fold rows onto each other. */
static sheaf_status set_strides(const shf_operand_spec *spec, int64_t rows, int64_t batch, int64_t row_step,
                                int64_t batch_step, shf_matrix *view)
{
  int64_t size = spec->element_bytes, width = spec->columns < 0 ? 1 : spec->columns;
  if (row_step < 0 || batch_step < 0)
    FAIL_OPERAND("%s has a negative stride (%" PRId64 ")", spec->name, row_step < 0 ? row_step : batch_step);
  if (rows > 1 && row_step < width)
    FAIL_OPERAND("%s has a row stride of %" PRId64 ", less than its %" PRId64 " columns", spec->name, row_step, width);
  if (spec->columns < 0 && rows > 1 && row_step != 1)
    FAIL_OPERAND("%s must be contiguous; its stride is %" PRId64, spec->name, row_step);
  if (spec->output && batch > 1 && rows > 0 && width > 0) {
    /* Problems lie one after another, or row by row in between each other. */
    int64_t span;
    int apart = !__builtin_mul_overflow(rows - 1, row_step, &span) && batch_step - width >= span;
    int between = !__builtin_mul_overflow(batch - 1, batch_step, &span) && batch_step >= width && rows > 1 &&
                  row_step - width >= span;
    if (!apart && !between)
      FAIL_OPERAND("%s: a batch stride of %" PRId64 " makes problems share memory", spec->name, batch_step);
  }
  if (!shf_plan_multiply(&row_step, size) || !shf_plan_multiply(&batch_step, size))
    FAIL_OPERAND("%s has strides beyond 2^63 bytes", spec->name);
  view->row_stride = row_step;
  view->batch_stride = batch_step;
  return SHEAF_OK;
}

static sheaf_status check_shape(const sheaf_plan *plan, const shf_operand_spec *spec, const DLTensor *t,
                                shf_matrix *view)
{
  int first = plan && plan->has_batch, last = t->ndim - (spec->columns >= 0);
  int64_t row_step = spec->columns < 0 ? 1 : spec->columns, batch_step = 0;
  if (first > t->ndim || last < first || (first && t->shape[0] != plan->batch)) return wrong_shape(plan, spec, t);
  if (spec->columns >= 0 && t->shape[last] != spec->columns) return wrong_shape(plan, spec, t);
  if (!spec->free_shape && last - first != 1) return wrong_shape(plan, spec, t);
  if (spec->matrix && (last - first != 2 || t->shape[first] != spec->matrix_rows)) return wrong_shape(plan, spec, t);
  int fits = collapse(t, first, last, spec->rows, &row_step);
  if (fits == 0) return wrong_shape(plan, spec, t);
  if (fits < 0) FAIL_OPERAND("%s: its leading dimensions do not lie one behind the other", spec->name);
  if (spec->columns > 1 && dimension_stride(t, last) != 1)
    FAIL_OPERAND("%s: its last dimension has stride %" PRId64 "; it must be contiguous", spec->name,
                 dimension_stride(t, last));
  if (first && plan->batch > 1) batch_step = dimension_stride(t, 0);
  return set_strides(spec, spec->rows, plan ? plan->batch : 1, row_step, batch_step, view);
}

/* Bytes from the first element to the end of the last; -1 when they do not fit. */
static int64_t extent_bytes(const sheaf_plan *plan, const shf_operand_spec *spec, const shf_matrix *view)
{
  int64_t batch = plan ? plan->batch : 1, width = spec->columns < 0 ? 1 : spec->columns;
  if (batch == 0 || spec->rows == 0 || width == 0) return 0;
  int64_t rows, problems, row = width * spec->element_bytes, bytes;
  if (__builtin_mul_overflow(spec->rows - 1, view->row_stride, &rows) ||
      __builtin_mul_overflow(batch - 1, view->batch_stride, &problems) ||
      __builtin_add_overflow(rows, problems, &bytes) || __builtin_add_overflow(bytes, row, &bytes))
    return -1;
  return bytes;
}

/* Gives the operand's bytes and, now that they are known to be there, its data. */
static sheaf_status check_length(const sheaf_plan *plan, const shf_operand_spec *spec, const sheaf_operand *operand,
                                 shf_matrix *view, int64_t *bytes)
{
  int64_t needed = extent_bytes(plan, spec, view);
  *bytes = needed;
  if (needed < 0) FAIL_OPERAND("%s spans more than 2^63 bytes", spec->name);
  if (operand->bytes && operand->bytes < (uint64_t)needed) {
    sheaf_error_info info = {.status = SHEAF_BUFFER_TOO_SMALL,
                             .operand = spec->name,
                             .needed = needed,
                             .got = (int64_t)operand->bytes,
                             .position = -1};
    return shf_core_fail_info(&info, "%s needs %" PRId64 " bytes, %zu are there", spec->name, needed, operand->bytes);
  }
  if (needed > 0 && !operand->tensor->data)
    FAIL_OPERAND("%s has no data, but %" PRId64 " bytes of shape", spec->name, needed);
  if (needed == 0) {
    *view = (shf_matrix){shf_plan_nowhere, 0, 0};
    return SHEAF_OK;
  }
  view->data = (char *)operand->tensor->data + operand->tensor->byte_offset;
  return SHEAF_OK;
}

static sheaf_status check_alignment(const shf_operand_spec *spec, const shf_matrix *view)
{
  int64_t size = spec->element_bytes; /* a power of two */
  if (((uintptr_t)view->data & (uintptr_t)(size - 1)) == 0) return SHEAF_OK;
  sheaf_error_info info = {.status = SHEAF_MISALIGNED, .operand = spec->name, .position = -1};
  return shf_core_fail_info(&info, "%s starts at %p, which is not a multiple of %" PRId64 " bytes", spec->name,
                            (void *)view->data, size);
}

/* ---- Shared memory ---- */

/* Rows of bytes: `rows` rows of `width` bytes, `stride` apart. */
typedef struct footprint {
  uintptr_t base;
  int64_t rows, width, stride;
} footprint;

static int ranges_meet(footprint a, footprint b)
{
  uintptr_t a_end = a.base + (uintptr_t)((a.rows - 1) * a.stride + a.width);
  uintptr_t b_end = b.base + (uintptr_t)((b.rows - 1) * b.stride + b.width);
  return a.base < b_end && b.base < a_end;
}

/* Whether any byte of a row at `row` (width bytes) lies in b. */
static int row_meets(uintptr_t row, int64_t width, footprint b)
{
  if (row + (uintptr_t)width <= b.base) return 0;
  int64_t offset = row > b.base ? (int64_t)(row - b.base) : 0, left = width;
  if (row < b.base) left -= (int64_t)(b.base - row);
  int64_t first = b.rows > 1 ? offset / b.stride : 0;
  if (first >= b.rows) return 0;
  if (offset - first * b.stride < b.width) return 1;
  return first + 1 < b.rows && offset + left > (first + 1) * b.stride;
}

/* Exact: rows of the shorter one are looked up in the other, unless equal strides make every row alike. */
static int footprints_meet(footprint a, footprint b)
{
  if (!ranges_meet(a, b)) return 0;
  if (a.rows > b.rows) {
    footprint swap = a;
    a = b;
    b = swap;
  }
  if (a.rows > 2 && a.stride == b.stride) {
    /* All rows of a meet b in the same columns or not at all, as long as they lie beside it: the first, one in the
     * middle of the overlap, and the last decide. */
    int64_t lead = a.base < b.base ? ((int64_t)(b.base - a.base) + a.stride - 1) / a.stride : 0;
    int64_t probes[] = {0, lead > 0 ? lead - 1 : 0, lead, lead + 1, a.rows - 2, a.rows - 1};
    for (size_t i = 0; i < sizeof probes / sizeof *probes; i++)
      if (probes[i] < a.rows && row_meets(a.base + (uintptr_t)(probes[i] * a.stride), a.width, b)) return 1;
    return 0;
  }
  for (int64_t i = 0; i < a.rows; i++)
    if (row_meets(a.base + (uintptr_t)(i * a.stride), a.width, b)) return 1;
  return 0;
}

static footprint footprint_of(const shf_operand_spec *spec, const shf_matrix *view, int64_t problem)
{
  int64_t size = spec->element_bytes;
  footprint f = {.base = (uintptr_t)(view->data + problem * view->batch_stride)};
  if (spec->columns < 0) {
    f.rows = 1;
    f.width = f.stride = spec->rows * size;
  } else if (view->row_stride == spec->columns * size) {
    f.rows = 1;
    f.width = f.stride = spec->rows * spec->columns * size;
  } else {
    f.rows = spec->rows;
    f.width = spec->columns * size;
    f.stride = view->row_stride;
  }
  return f;
}

int shf_plan_specs_meet(const shf_operand_spec *a, const shf_matrix *a_view, const shf_operand_spec *b,
                        const shf_matrix *b_view)
{
  if (extent_bytes(NULL, a, a_view) == 0 || extent_bytes(NULL, b, b_view) == 0) return 0;
  return footprints_meet(footprint_of(a, a_view, 0), footprint_of(b, b_view, 0));
}

static int ranges_overlap(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes)
{
  uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
  return a_bytes > 0 && b_bytes > 0 && x < y + (uintptr_t)b_bytes && y < x + (uintptr_t)a_bytes;
}

/* Of two operands whose ranges overlap: whether they share a byte. */
static int operands_meet(const sheaf_plan *plan, const shf_bound *bound, int a, int b)
{
  const shf_matrix *x = &bound->view[a], *y = &bound->view[b];
  const shf_operand_spec *x_spec = &plan->spec[a], *y_spec = &plan->spec[b];
  if (x->batch_stride == y->batch_stride) { /* problems p and q meet as p - q and 0 do */
    for (int64_t apart = 0; apart < (x->batch_stride ? plan->batch : 1); apart++)
      if (footprints_meet(footprint_of(x_spec, x, apart), footprint_of(y_spec, y, 0)) ||
          footprints_meet(footprint_of(x_spec, x, 0), footprint_of(y_spec, y, apart)))
        return 1;
    return 0;
  }
  for (int64_t p = 0; p < (x->batch_stride ? plan->batch : 1); p++)
    for (int64_t q = 0; q < (y->batch_stride ? plan->batch : 1); q++)
      if (footprints_meet(footprint_of(x_spec, x, p), footprint_of(y_spec, y, q))) return 1;
  return 0;
}

/* Operands that are not given have no bytes. */
static sheaf_status check_aliasing(const sheaf_plan *plan, const shf_bound *bound)
{
  for (int i = 0; i < plan->taken_count; i++) {
    int a = plan->taken[i];
    const shf_operand_spec *spec = &plan->spec[a];
    if (!spec->output || bound->bytes[a] == 0) continue;
    for (int j = 0; j < plan->taken_count; j++) {
      int b = plan->taken[j];
      if (b == a || bound->bytes[b] == 0 ||
          !ranges_overlap(bound->view[a].data, bound->bytes[a], bound->view[b].data, bound->bytes[b]))
        continue;
      const shf_operand_spec *other = &plan->spec[b];
      if ((other->output && j < i) || !operands_meet(plan, bound, a, b)) continue;
      FAIL_OPERAND("%s shares memory with %s", spec->name, other->name);
    }
  }
  return SHEAF_OK;
}

/* ---- All of it ---- */

static int wants_weights_grad(const sheaf_plan *plan, const sheaf_operand *operands)
{
  return plan->category == SHEAF_CATEGORY_EMBEDDING && operands[SHF_EMBEDDING_weights_grad].tensor;
}

static sheaf_status not_given(const sheaf_plan *plan, const shf_operand_spec *spec)
{
  FAIL_OPERAND("%s needs the operand %s, which is not given", sheaf_kind_name(plan->row->category, plan->row->kind),
               spec->name);
}

/* Which operands are given and must be; nothing else is looked at yet. */
static sheaf_status check_presence(const sheaf_plan *plan, const sheaf_operand *operands, shf_bound *bound)
{
  for (int k = 0; k < plan->taken_count; k++) {
    int i = plan->taken[k], there = operands[i].tensor != NULL;
    const shf_operand_spec *spec = &plan->spec[i];
    if (spec->need == SHF_REFUSED) {
      if (there) FAIL_OPERAND("%s is given, but %s", spec->name, spec->why);
      continue;
    }
    int ignored = spec->need == SHF_WITH_WEIGHTS_GRAD && !wants_weights_grad(plan, operands);
    if (!there && (spec->need == SHF_REQUIRED || (spec->need == SHF_WITH_WEIGHTS_GRAD && !ignored)))
      return not_given(plan, spec);
    bound->given[i] = there && !ignored;
  }
  return SHEAF_OK;
}

/* A plain contiguous vector or matrix where it must lie, long enough and aligned. */
static inline int is_usual(const shf_operand_spec *spec, const sheaf_operand *operand)
{
  const DLTensor *t = operand->tensor;
  int rank = 1 + (spec->columns >= 0);
  if (!lies_right(spec, t->device) || memcmp(&t->dtype, &spec->type, sizeof spec->type) != 0 || t->ndim != rank ||
      !t->shape || t->shape[0] != spec->rows || spec->matrix || spec->compact_bytes == 0 || !t->data ||
      (operand->bytes && operand->bytes < (uint64_t)spec->compact_bytes) ||
      (((uintptr_t)t->data + t->byte_offset) & (uintptr_t)(spec->element_bytes - 1)) != 0)
    return 0;
  if (rank == 1) return !t->strides || t->strides[0] == 1;
  return t->shape[1] == spec->columns && (!t->strides || (t->strides[1] == 1 && t->strides[0] == spec->columns));
}

/* Binds operands that are all as usual, which is what a small call has time for. Accepts nothing that the closer
 * look of shf_plan_bind would not; says nothing about why not. */
static int bind_usual(const sheaf_plan *plan, const sheaf_operand *operands, shf_bound *bound)
{
  if (plan->has_batch) return 0;
  for (int k = 0; k < plan->taken_count; k++) {
    int i = plan->taken[k];
    const shf_operand_spec *spec = &plan->spec[i];
    if (!operands[i].tensor) {
      if (spec->need == SHF_REQUIRED) return 0;
      continue;
    }
    if (spec->need == SHF_REFUSED || spec->need == SHF_WITH_WEIGHTS_GRAD || !is_usual(spec, &operands[i])) return 0;
    bound->given[i] = 1;
    bound->view[i] = (shf_matrix){(char *)operands[i].tensor->data + operands[i].tensor->byte_offset,
                                  (spec->columns < 0 ? 1 : spec->columns) * spec->element_bytes, 0};
    bound->bytes[i] = spec->compact_bytes;
  }
  return !wants_weights_grad(plan, operands);
}

static sheaf_status bind_closely(const sheaf_plan *plan, const sheaf_operand *operands, shf_bound *bound)
{
  SHF_TRY(check_presence(plan, operands, bound));
  for (int k = 0; k < plan->taken_count; k++) {
    int i = plan->taken[k];
    if (!bound->given[i]) continue;
    SHF_TRY(check_kind(&plan->spec[i], operands[i].tensor));
    bound->view[i] = (shf_matrix){NULL, 0, 0};
    SHF_TRY(check_shape(plan, &plan->spec[i], operands[i].tensor, &bound->view[i]));
  }
  for (int k = 0; k < plan->taken_count; k++) {
    int i = plan->taken[k];
    if (bound->given[i]) SHF_TRY(check_length(plan, &plan->spec[i], &operands[i], &bound->view[i], &bound->bytes[i]));
  }
  for (int k = 0; k < plan->taken_count; k++)
    if (bound->bytes[plan->taken[k]])
      SHF_TRY(check_alignment(&plan->spec[plan->taken[k]], &bound->view[plan->taken[k]]));
  return SHEAF_OK;
}

sheaf_status shf_plan_bind(const sheaf_plan *plan, const sheaf_operand *operands, shf_bound *bound)
{
  memset(bound->bytes, 0, sizeof bound->bytes);
  memset(bound->given, 0, sizeof bound->given);
  if (plan->api) memset(bound->view, 0, sizeof bound->view); /* which is handed over as a whole */
  if (!bind_usual(plan, operands, bound)) SHF_TRY(bind_closely(plan, operands, bound));
  return check_aliasing(plan, bound);
}

/* One operand by itself; plan is NULL outside of plans. */
static sheaf_status bind_alone(const sheaf_plan *plan, const shf_operand_spec *spec, const sheaf_operand *operand,
                               shf_matrix *view, int64_t *bytes)
{
  if (!operand || !operand->tensor) FAIL_OPERAND("%s is not given", spec->name);
  SHF_TRY(check_kind(spec, operand->tensor));
  SHF_TRY(check_shape(plan, spec, operand->tensor, view));
  SHF_TRY(check_length(plan, spec, operand, view, bytes));
  return check_alignment(spec, view);
}

sheaf_status shf_plan_bind_input(const sheaf_plan *plan, int which, const sheaf_operand *operand, shf_bound *bound)
{
  bound->given[which] = 1;
  return bind_alone(plan, &plan->spec[which], operand, &bound->view[which], &bound->bytes[which]);
}

sheaf_status shf_plan_bind_one(const shf_operand_spec *spec, const sheaf_operand *operand, shf_matrix *view)
{
  int64_t bytes;
  return bind_alone(NULL, spec, operand, view, &bytes);
}

sheaf_status shf_plan_check_memory(const char *what, const void *memory, size_t bytes, int64_t needed,
                                   sheaf_status status)
{
  if (needed == 0) return SHEAF_OK;
  if (!memory || bytes < (uint64_t)needed) {
    sheaf_error_info info = {
        .status = status, .operand = what, .needed = needed, .got = memory ? (int64_t)bytes : 0, .position = -1};
    return shf_core_fail_info(&info, "the %s needs %" PRId64 " bytes, %" PRId64 " are there", what, needed, info.got);
  }
  SHF_REQUIRE((uintptr_t)memory % 64 == 0, MISALIGNED, "the %s starts at %p, which is not a multiple of 64 bytes", what,
              memory);
  return SHEAF_OK;
}

sheaf_status shf_plan_check_apart(const sheaf_plan *plan, const shf_bound *bound, const char *what, const void *memory,
                                  int64_t bytes)
{
  if (bytes == 0) return SHEAF_OK;
  for (int k = 0; k < plan->taken_count; k++) {
    int i = plan->taken[k];
    SHF_REQUIRE(bound->bytes[i] == 0 || !ranges_overlap(memory, bytes, bound->view[i].data, bound->bytes[i]),
                INVALID_PROBLEM, "the %s shares memory with %s", what, plan->spec[i].name);
  }
  return SHEAF_OK;
}

sheaf_status shf_plan_check_pieces(const void *workspace, int64_t workspace_bytes, const void *grouping,
                                   int64_t grouping_bytes)
{
  SHF_REQUIRE(!ranges_overlap(workspace, workspace_bytes, grouping, grouping_bytes), INVALID_PROBLEM,
              "the workspace shares memory with the grouping");
  return SHEAF_OK;
}
