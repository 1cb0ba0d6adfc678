/* segment_select.c: segment reductions, forward and backward: from a description to a plan. */
#include <inttypes.h>
#include <string.h>

#include "plan/segment_impl.h"

const shf_segment_traits *shf_plan_segment_traits(sheaf_segment_kind kind)
{
  static const shf_segment_traits traits[] = {
      [SHEAF_SEGMENT_SUM] = {SHF_REDUCE_SUM, 0, 0},
      [SHEAF_SEGMENT_SUM_BACKWARD] = {SHF_REDUCE_SUM, 1, 0},
      [SHEAF_SEGMENT_MEAN] = {SHF_REDUCE_MEAN, 0, 0},
      [SHEAF_SEGMENT_MEAN_BACKWARD] = {SHF_REDUCE_MEAN, 1, 0},
      [SHEAF_SEGMENT_MAX] = {SHF_REDUCE_MAX, 0, 0},
      [SHEAF_SEGMENT_MIN] = {SHF_REDUCE_MIN, 0, 0},
      [SHEAF_SEGMENT_PROD] = {SHF_REDUCE_PROD, 0, 0},
      [SHEAF_UNSORTED_SEGMENT_SUM] = {SHF_REDUCE_SUM, 0, 1},
      [SHEAF_UNSORTED_SEGMENT_SUM_BACKWARD] = {SHF_REDUCE_SUM, 1, 1},
      [SHEAF_UNSORTED_SEGMENT_MEAN] = {SHF_REDUCE_MEAN, 0, 1},
      [SHEAF_UNSORTED_SEGMENT_MEAN_BACKWARD] = {SHF_REDUCE_MEAN, 1, 1},
      [SHEAF_UNSORTED_SEGMENT_MAX] = {SHF_REDUCE_MAX, 0, 1},
      [SHEAF_UNSORTED_SEGMENT_MIN] = {SHF_REDUCE_MIN, 0, 1},
      [SHEAF_SEGMENT_MAX_BACKWARD] = {SHF_REDUCE_MAX, 1, 0},
      [SHEAF_SEGMENT_MIN_BACKWARD] = {SHF_REDUCE_MIN, 1, 0},
      [SHEAF_SEGMENT_PROD_BACKWARD] = {SHF_REDUCE_PROD, 1, 0},
      [SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD] = {SHF_REDUCE_MAX, 1, 1},
      [SHEAF_UNSORTED_SEGMENT_MIN_BACKWARD] = {SHF_REDUCE_MIN, 1, 1},
      [SHEAF_UNSORTED_SEGMENT_PROD] = {SHF_REDUCE_PROD, 0, 1},
      [SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD] = {SHF_REDUCE_PROD, 1, 1},
  };
  return &traits[kind];
}

/* Whether backward reduces again before it can give anything to a row. */
int shf_plan_segment_prepares(const sheaf_segment_desc *d)
{
  const shf_segment_traits *t = shf_plan_segment_traits(d->kind);
  if (!t->backward) return 0;
  return t->reduce == SHF_REDUCE_PROD || (shf_plan_is_extreme(t) && !d->arg_given);
}

static sheaf_status check_desc(sheaf_segment_desc *d, const shf_device_api **api)
{
  const char *op = sheaf_kind_name(SHEAF_CATEGORY_SEGMENT, (uint16_t)d->kind);
  SHF_REQUIRE(op && (unsigned)d->kind <= UINT16_MAX, INVALID_PROBLEM, "kind %d: the segment family has 0 to 19",
              (int)d->kind);
  SHF_REQUIRE(d->dtype != SHEAF_DTYPE_NONE, INVALID_PROBLEM, "%s: dtype is not set", op);
  SHF_REQUIRE(d->index_dtype != SHEAF_DTYPE_NONE, INVALID_PROBLEM, "%s: index_dtype is not set", op);
  SHF_REQUIRE(d->dtype == SHEAF_F32 || d->dtype == SHEAF_F64 || d->dtype == SHEAF_F16 || d->dtype == SHEAF_BF16,
              UNSUPPORTED, "%s of %s (%d): f32, f64, f16 and bf16 are supported", op, sheaf_dtype_name(d->dtype),
              (int)d->dtype);
  SHF_REQUIRE(d->index_dtype == SHEAF_I32 || d->index_dtype == SHEAF_I64, UNSUPPORTED,
              "%s with ids of %s (%d): i32 and i64 are supported", op, sheaf_dtype_name(d->index_dtype),
              (int)d->index_dtype);
  return shf_plan_check_device(d->device, api);
}

static sheaf_status check_flags(const sheaf_segment_desc *d)
{
  SHF_REQUIRE(d->arg_given <= 1 && d->grouping_given <= 1, INVALID_PROBLEM,
              "arg_given %d, grouping_given %d: flags are 0 or 1", d->arg_given, d->grouping_given);
  SHF_REQUIRE((unsigned)d->empty <= SHEAF_EMPTY_IDENTITY, INVALID_PROBLEM, "empty is %d", (int)d->empty);
  SHF_REQUIRE((unsigned)d->ties <= SHEAF_TIES_SPLIT, INVALID_PROBLEM, "ties is %d", (int)d->ties);
  SHF_REQUIRE((unsigned)d->bad_index <= SHEAF_BAD_INDEX_ERROR, INVALID_PROBLEM, "bad_index is %d", (int)d->bad_index);
  const shf_segment_traits *t = shf_plan_segment_traits(d->kind);
  if (!t->backward || !shf_plan_is_extreme(t) || !d->arg_given) return SHEAF_OK;
  SHF_REQUIRE(d->ties == SHEAF_TIES_FIRST, INVALID_PROBLEM,
              "arg names one row per cell, so ties cannot be split by it: give data instead");
  SHF_REQUIRE(d->index_dtype == SHEAF_I64 || d->rows <= INT32_MAX, INVALID_PROBLEM,
              "positions in %" PRId64 " rows do not fit an arg of i32: give i64 ids and arg, or data instead of arg",
              d->rows);
  return SHEAF_OK;
}

static sheaf_status check_extents(const sheaf_segment_desc *d, int64_t batch)
{
  SHF_REQUIRE(d->rows >= 0 && d->dim >= 0 && d->segments >= 0 && d->batch >= 0, INVALID_PROBLEM,
              "rows %" PRId64 ", dim %" PRId64 ", segments %" PRId64 ", batch %" PRId64 ": none may be negative",
              d->rows, d->dim, d->segments, d->batch);
  SHF_REQUIRE(d->rows <= SHF_MAX_EXTENT && d->dim <= SHF_MAX_EXTENT && d->segments <= SHF_MAX_EXTENT &&
                  d->batch <= SHF_MAX_EXTENT,
              INVALID_PROBLEM,
              "rows %" PRId64 ", dim %" PRId64 ", segments %" PRId64 ", batch %" PRId64 ": none may exceed 2^46",
              d->rows, d->dim, d->segments, d->batch);
  int64_t data = 64, out = 64; /* see SHF_MAX_EXTENT */
  SHF_REQUIRE(shf_plan_multiply(&data, d->rows + 1) && shf_plan_multiply(&data, d->dim + 1) &&
                  shf_plan_multiply(&data, batch) && shf_plan_multiply(&out, d->segments + 1) &&
                  shf_plan_multiply(&out, d->dim + 1) && shf_plan_multiply(&out, batch),
              INVALID_PROBLEM,
              "%" PRId64 " rows or %" PRId64 " segments of %" PRId64 " in %" PRId64
              " problems are more than Sheaf can count (2^57)",
              d->rows, d->segments, d->dim, batch);
  return SHEAF_OK;
}

static void describe_operands(sheaf_plan *plan)
{
  const sheaf_segment_desc *d = &plan->segment;
  const shf_segment_traits *t = shf_plan_segment_traits(d->kind);
  int extreme = shf_plan_is_extreme(t), reads_data = !t->backward || t->reduce == SHF_REDUCE_PROD || extreme;
  shf_operand_spec *spec = plan->spec;
  plan->operands = SHF_SEGMENT_OPERANDS;
#define SHEAF_X(operand) spec[SHF_SEGMENT_##operand].name = #operand;
  SHEAF_SEGMENT_OPERAND_LIST(SHEAF_X)
#undef SHEAF_X
#define SET(operand, ...)                                          \
  do {                                                             \
    const char *name = spec[SHF_SEGMENT_##operand].name;           \
    spec[SHF_SEGMENT_##operand] = (shf_operand_spec){__VA_ARGS__}; \
    spec[SHF_SEGMENT_##operand].name = name;                       \
  } while (0)
  if (reads_data)
    SET(data, .need = t->backward && extreme && d->arg_given ? SHF_OPTIONAL : SHF_REQUIRED, .dtype = d->dtype,
        .rows = d->rows, .columns = d->dim);
  SET(ids, .need = SHF_REQUIRED, .dtype = d->index_dtype, .rows = d->rows, .columns = -1);
  if (t->backward) {
    SET(grad_out, .need = SHF_REQUIRED, .dtype = d->dtype, .rows = d->segments, .columns = d->dim);
    SET(data_grad, .need = SHF_REQUIRED, .output = 1, .dtype = d->dtype, .rows = d->rows, .columns = d->dim);
    if (extreme && d->arg_given)
      SET(arg, .need = SHF_REQUIRED, .dtype = d->index_dtype, .rows = d->segments, .columns = d->dim);
  } else {
    SET(out, .need = SHF_REQUIRED, .output = 1, .dtype = d->dtype, .rows = d->segments, .columns = d->dim);
    if (extreme && d->index_dtype == SHEAF_I32 && d->rows > INT32_MAX)
      SET(arg, .need = SHF_REFUSED, .why = "positions of so many rows do not fit i32: use i64 ids");
    else if (extreme)
      SET(arg, .need = SHF_OPTIONAL, .output = 1, .dtype = d->index_dtype, .rows = d->segments, .columns = d->dim);
  }
#undef SET
}

int shf_plan_segment_grouping(const sheaf_plan *plan, shf_grouping_spec *spec)
{
  const sheaf_segment_desc *d = &plan->segment;
  const shf_segment_traits *t = shf_plan_segment_traits(d->kind);
  if (!t->unsorted || (t->backward && !shf_plan_segment_prepares(d))) return 0;
  *spec = (shf_grouping_spec){.batch = plan->batch,
                              .entries = d->rows,
                              .groups = d->segments,
                              .rows = d->segments,
                              .padding = -1,
                              .bag_length = -1,
                              .wide = d->index_dtype == SHEAF_I64,
                              .threads = plan->threads};
  return 1;
}

int shf_plan_counting_threads(const sheaf_plan *plan)
{
  int64_t share = plan->segment.rows / (plan->segment.segments ? plan->segment.segments : 1);
  return share < 1 ? 1 : share < plan->threads ? (int)share : plan->threads;
}

static sheaf_status lay_out(sheaf_plan *plan)
{
  const sheaf_segment_desc *d = &plan->segment;
  const shf_segment_traits *t = shf_plan_segment_traits(d->kind);
  shf_layout *at = &plan->layout;
  shf_grouping_spec grouping;
  int64_t cells = plan->batch * d->segments * d->dim, bytes = 0;
  if (shf_plan_segment_grouping(plan, &grouping)) {
    SHF_TRY(shf_plan_check_grouping(&grouping));
    if (!d->grouping_given) bytes += shf_plan_grouping_bytes(&grouping);
  }
  int prepares = shf_plan_segment_prepares(d), by_first = shf_plan_is_extreme(t) && d->ties == SHEAF_TIES_FIRST;
  at->forward = bytes;
  if (prepares && !by_first) bytes += shf_align64(cells * plan->acc_bytes);
  at->counts = bytes;
  if (prepares && !by_first) bytes += shf_align64(cells * plan->acc_bytes);
  if (t->backward && t->reduce == SHF_REDUCE_MEAN)
    bytes += shf_align64(plan->batch * d->segments * 8 * shf_plan_counting_threads(plan));
  at->arg = bytes;
  if (prepares && by_first) bytes += shf_align64(cells * 8); /* positions, which may not fit i32 */
  if (prepares || !t->backward) {
    at->slot_bytes = shf_slot_bytes(d->dim, plan->acc_bytes, shf_plan_is_extreme(t));
    at->partials = bytes;
    bytes += shf_align64(shf_plan_slots(plan->batch * d->rows, d->rows, plan->threads) * at->slot_bytes);
    at->scratch = bytes;
    if (d->rows > SHF_CHUNK || shf_plan_is_extreme(t))
      at->scratch_bytes = shf_scratch_bytes(d->dim, plan->acc_bytes, shf_plan_is_extreme(t), d->rows);
    bytes += at->scratch_bytes * plan->threads;
  }
  at->total = bytes;
  return SHEAF_OK;
}

sheaf_status sheaf_segment_select(const sheaf_segment_desc *desc, const sheaf_preference *preference, sheaf_plan **plan)
{
  SHF_REQUIRE(plan, INVALID_PROBLEM, "sheaf_segment_select: plan is NULL");
  *plan = NULL;
  sheaf_plan made;
  memset(&made, 0, sizeof made);
  sheaf_preference wishes;
  sheaf_segment_desc *d = &made.segment;
  made.category = SHEAF_CATEGORY_SEGMENT;
  SHF_TRY(shf_plan_copy_struct(d, sizeof *d, desc, "desc"));
  SHF_TRY(check_desc(d, &made.api));
  made.device = d->device;
  SHF_TRY(shf_plan_preference(preference, &wishes, &made.threads));
  SHF_TRY(check_flags(d));
  made.has_batch = d->batch > 0;
  made.batch = made.has_batch ? d->batch : 1;
  SHF_TRY(check_extents(d, made.batch));
  made.acc_bytes = shf_core_dtype_size(shf_core_dtype_acc(d->dtype));
  made.row_bytes = sheaf_dtype_row_bytes(d->dtype, d->dim);
  made.ahead = shf_plan_ahead(d->rows, made.row_bytes, SHF_READ_AHEAD, SHF_MOST_AHEAD);
  if (made.api) {
    SHF_TRY(shf_plan_device_select(&made, (uint16_t)d->kind, d->dtype, d->index_dtype, &wishes));
  } else {
    SHF_TRY(lay_out(&made));
    SHF_TRY(shf_plan_choose(&made, (uint16_t)d->kind, d->dtype, d->index_dtype, &wishes));
    shf_plan_choose_asking(&made);
  }
  describe_operands(&made);
  shf_plan_finish_specs(&made);
  shf_plan_segment_job(&made);
  return shf_plan_publish(&made, plan);
}
