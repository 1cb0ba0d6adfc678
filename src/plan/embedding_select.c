/* embedding_select.c: lookups and bags, forward and backward: from a description to a plan. */
#include <inttypes.h>
#include <string.h>

#include "plan/plan_impl.h"

static int is_backward(sheaf_embedding_kind kind)
{
  return kind == SHEAF_LOOKUP_BACKWARD || kind == SHEAF_BAG_SUM_BACKWARD || kind == SHEAF_BAG_MEAN_BACKWARD ||
         kind == SHEAF_BAG_MAX_BACKWARD;
}

static int is_lookup(sheaf_embedding_kind kind) { return kind == SHEAF_LOOKUP || kind == SHEAF_LOOKUP_BACKWARD; }

static int is_quantised(sheaf_dtype dtype) { return dtype == SHEAF_INT8 || dtype == SHEAF_INT4; }

static int is_float(sheaf_dtype dtype)
{
  return dtype == SHEAF_F32 || dtype == SHEAF_F64 || dtype == SHEAF_F16 || dtype == SHEAF_BF16;
}

static int is_index(sheaf_dtype dtype) { return dtype == SHEAF_I32 || dtype == SHEAF_I64; }

/* Which element types the op takes; fills in the defaults. */
static sheaf_status check_types(sheaf_embedding_desc *d)
{
  const char *op = sheaf_kind_name(SHEAF_CATEGORY_EMBEDDING, (uint16_t)d->kind);
  SHF_REQUIRE(op && (unsigned)d->kind <= UINT16_MAX, INVALID_PROBLEM, "kind %d: the embedding family has 0 to 7",
              (int)d->kind);
  SHF_REQUIRE(d->dtype != SHEAF_DTYPE_NONE, INVALID_PROBLEM, "%s: dtype is not set", op);
  SHF_REQUIRE(d->index_dtype != SHEAF_DTYPE_NONE, INVALID_PROBLEM, "%s: index_dtype is not set", op);
  SHF_REQUIRE(is_float(d->dtype) || is_quantised(d->dtype), UNSUPPORTED,
              "%s of %s (%d): tables are f32, f64, f16, bf16, int8 or int4", op, sheaf_dtype_name(d->dtype),
              (int)d->dtype);
  SHF_REQUIRE(is_float(d->dtype) || !is_backward(d->kind), UNSUPPORTED, "%s of %s: a quantised table has no gradient",
              op, sheaf_dtype_name(d->dtype));
  SHF_REQUIRE(is_index(d->index_dtype), UNSUPPORTED, "%s with indices of %s (%d): i32 and i64 are supported", op,
              sheaf_dtype_name(d->index_dtype), (int)d->index_dtype);
  if (d->offset_dtype == SHEAF_DTYPE_NONE) d->offset_dtype = d->index_dtype;
  SHF_REQUIRE(is_index(d->offset_dtype), UNSUPPORTED, "%s with offsets of %s (%d): i32 and i64 are supported", op,
              sheaf_dtype_name(d->offset_dtype), (int)d->offset_dtype);
  if (d->out_dtype == SHEAF_DTYPE_NONE) d->out_dtype = is_quantised(d->dtype) ? SHEAF_F32 : d->dtype;
  int out_fits = is_quantised(d->dtype)
                     ? d->out_dtype == SHEAF_F32 || d->out_dtype == SHEAF_F16 || d->out_dtype == SHEAF_BF16
                     : d->out_dtype == d->dtype;
  SHF_REQUIRE(out_fits, UNSUPPORTED, "%s of %s into %s: %s", op, sheaf_dtype_name(d->dtype),
              sheaf_dtype_name(d->out_dtype),
              is_quantised(d->dtype) ? "the output is f32, f16 or bf16" : "the output has the table's type");
  return SHEAF_OK;
}

static sheaf_status check_flags(const sheaf_embedding_desc *d)
{
  SHF_REQUIRE(d->has_padding <= 1 && d->weighted <= 1 && d->scale_grad_by_freq <= 1 && d->grouping_given <= 1,
              INVALID_PROBLEM,
              "has_padding %d, weighted %d, scale_grad_by_freq %d, grouping_given %d: flags are 0 or 1", d->has_padding,
              d->weighted, d->scale_grad_by_freq, d->grouping_given);
  SHF_REQUIRE((unsigned)d->bag_form <= SHEAF_BAGS_MATRIX, INVALID_PROBLEM, "bag_form is %d", (int)d->bag_form);
  SHF_REQUIRE((unsigned)d->padding <= SHEAF_PADDING_ROW, INVALID_PROBLEM, "padding is %d", (int)d->padding);
  SHF_REQUIRE((unsigned)d->bad_index <= SHEAF_BAD_INDEX_ERROR, INVALID_PROBLEM, "bad_index is %d", (int)d->bad_index);
  SHF_REQUIRE((unsigned)d->grad_write <= SHEAF_GRAD_TOUCHED, INVALID_PROBLEM, "grad_write is %d", (int)d->grad_write);
  return SHEAF_OK;
}

/* Keeps every later product of these within 63 bits (see SHF_MAX_EXTENT). */
static sheaf_status check_product(const char *what, int64_t a, int64_t b, int64_t batch)
{
  int64_t product = 64;
  SHF_REQUIRE(
      shf_plan_multiply(&product, a + 1) && shf_plan_multiply(&product, b + 1) && shf_plan_multiply(&product, batch),
      INVALID_PROBLEM, "%s: %" PRId64 " x %" PRId64 " in %" PRId64 " problems is more than Sheaf can count (2^57)",
      what, a, b, batch);
  return SHEAF_OK;
}

static sheaf_status check_extents(sheaf_embedding_desc *d, int64_t batch)
{
  SHF_REQUIRE(d->rows >= 0 && d->dim >= 0 && d->indices >= 0 && d->bags >= 0 && d->batch >= 0, INVALID_PROBLEM,
              "rows %" PRId64 ", dim %" PRId64 ", indices %" PRId64 ", bags %" PRId64 ", batch %" PRId64
              ": none may be negative",
              d->rows, d->dim, d->indices, d->bags, d->batch);
  SHF_REQUIRE(d->row_begin >= 0 && d->total_rows >= 0, INVALID_PROBLEM,
              "row_begin %" PRId64 ", total_rows %" PRId64 ": neither may be negative", d->row_begin, d->total_rows);
  SHF_REQUIRE(d->rows <= SHF_MAX_EXTENT && d->dim <= SHF_MAX_EXTENT && d->indices <= SHF_MAX_EXTENT &&
                  d->bags <= SHF_MAX_EXTENT && d->batch <= SHF_MAX_EXTENT && d->total_rows <= SHF_MAX_EXTENT &&
                  d->row_begin <= SHF_MAX_EXTENT,
              INVALID_PROBLEM,
              "rows %" PRId64 ", dim %" PRId64 ", indices %" PRId64 ", bags %" PRId64 ", batch %" PRId64
              ", row_begin %" PRId64 ", total_rows %" PRId64 ": none may exceed 2^46",
              d->rows, d->dim, d->indices, d->bags, d->batch, d->row_begin, d->total_rows);
  if (d->total_rows == 0) {
    SHF_REQUIRE(d->row_begin == 0, INVALID_PROBLEM, "row_begin is %" PRId64 " but total_rows is 0 (a whole table)",
                d->row_begin);
    d->total_rows = d->rows;
  }
  SHF_REQUIRE(d->row_begin <= d->total_rows - d->rows, INVALID_PROBLEM,
              "rows %" PRId64 "..%" PRId64 " do not lie within a table of %" PRId64, d->row_begin,
              d->row_begin + d->rows - 1, d->total_rows);
  SHF_REQUIRE(!d->has_padding || (d->padding_idx >= 0 && d->padding_idx < d->total_rows), INVALID_PROBLEM,
              "padding_idx %" PRId64 " is outside 0..%" PRId64, d->padding_idx, d->total_rows - 1);
  SHF_TRY(check_product("table", d->rows, d->dim, batch));
  SHF_TRY(check_product("one row per index", d->indices, d->dim, batch));
  SHF_TRY(check_product("one row per bag", d->bags, d->dim, batch));
  return SHEAF_OK;
}

static sheaf_status check_bags(sheaf_embedding_desc *d)
{
  if (is_lookup(d->kind)) {
    SHF_REQUIRE(d->bags == 0, INVALID_PROBLEM, "a lookup has no bags; bags is %" PRId64, d->bags);
    return SHEAF_OK;
  }
  if (d->kind == SHEAF_BAG_MAX_BACKWARD) {
    d->indices = 0;
    return SHEAF_OK;
  }
  SHF_REQUIRE(d->bags > 0 || d->indices == 0, INVALID_PROBLEM, "%" PRId64 " indices, but no bag to hold them",
              d->indices);
  SHF_REQUIRE(d->bag_form != SHEAF_BAGS_MATRIX || d->bags == 0 || d->indices % d->bags == 0, INVALID_PROBLEM,
              "%" PRId64 " indices do not fill a matrix of %" PRId64 " bags", d->indices, d->bags);
  return SHEAF_OK;
}

/* Options that exist but not for this op. */
static sheaf_status check_options(const sheaf_embedding_desc *d)
{
  const char *op = sheaf_kind_name(SHEAF_CATEGORY_EMBEDDING, (uint16_t)d->kind);
  int takes_weights = d->kind >= SHEAF_BAG_SUM && d->kind <= SHEAF_BAG_MEAN_BACKWARD;
  SHF_REQUIRE(!d->weighted || takes_weights, UNSUPPORTED, "%s takes no per-sample weights; sums and means do", op);
  SHF_REQUIRE(!d->scale_grad_by_freq || d->kind != SHEAF_BAG_MAX_BACKWARD, UNSUPPORTED,
              "%s has no scale_grad_by_freq; the backward of lookups, sums and means has", op);
  return SHEAF_OK;
}

/* ---- Operands ---- */

static void describe_operands(sheaf_plan *plan)
{
  const sheaf_embedding_desc *d = &plan->embedding;
  int bag = !is_lookup(d->kind), backward = is_backward(d->kind), max_backward = d->kind == SHEAF_BAG_MAX_BACKWARD;
  int weights_grad = d->weighted && backward;
  int64_t out_rows = bag ? d->bags : d->indices;
  int64_t packed = is_quantised(d->dtype) ? sheaf_dtype_row_bytes(d->dtype, d->dim) : d->dim;
  int with_end = d->bag_form == SHEAF_BAGS_OFFSETS_END;
  sheaf_dtype weight_dtype = is_quantised(d->dtype) ? SHEAF_F32 : d->dtype;
  int offsets = bag && !max_backward && d->bag_form != SHEAF_BAGS_MATRIX;
  shf_operand_spec *spec = plan->spec;
  plan->operands = SHF_EMBEDDING_OPERANDS;
#define SHEAF_X(operand) spec[SHF_EMBEDDING_##operand].name = #operand;
  SHEAF_EMBEDDING_OPERAND_LIST(SHEAF_X)
#undef SHEAF_X
#define SET(operand, ...)                                            \
  do {                                                               \
    const char *name = spec[SHF_EMBEDDING_##operand].name;           \
    spec[SHF_EMBEDDING_##operand] = (shf_operand_spec){__VA_ARGS__}; \
    spec[SHF_EMBEDDING_##operand].name = name;                       \
  } while (0)
  if (!backward || weights_grad)
    SET(table, .need = backward ? SHF_WITH_WEIGHTS_GRAD : SHF_REQUIRED, .dtype = d->dtype, .rows = d->rows,
        .columns = packed);
  if (!max_backward)
    SET(indices, .need = SHF_REQUIRED, .dtype = d->index_dtype, .rows = d->indices, .columns = -1, .free_shape = 1,
        .matrix = bag && !offsets, .matrix_rows = d->bags);
  if (bag && !max_backward && !offsets)
    SET(offsets, .need = SHF_REFUSED, .why = "bag_form says that bags are rows of a matrix");
  if (offsets) SET(offsets, .need = SHF_REQUIRED, .dtype = d->offset_dtype, .rows = d->bags + with_end, .columns = -1);
  if (!d->weighted && !max_backward) {
    SET(weights, .need = SHF_REFUSED, .why = "the description is not weighted (weighted is 0)");
    SET(weights_grad, .need = SHF_REFUSED, .why = "the description is not weighted (weighted is 0)");
  }
  if (d->weighted)
    SET(weights, .need = SHF_REQUIRED, .dtype = weight_dtype, .rows = d->indices, .columns = -1, .free_shape = 1);
  if (backward)
    SET(grad_out, .need = SHF_REQUIRED, .dtype = d->dtype, .rows = out_rows, .columns = d->dim, .free_shape = !bag);
  if (!backward)
    SET(out, .need = SHF_REQUIRED, .output = 1, .dtype = d->out_dtype, .rows = out_rows, .columns = d->dim,
        .free_shape = !bag);
  if (d->kind == SHEAF_BAG_MEAN_BACKWARD && d->weighted)
    SET(out, .need = SHF_WITH_WEIGHTS_GRAD, .dtype = d->dtype, .rows = out_rows, .columns = d->dim);
  if (d->kind == SHEAF_BAG_MAX || max_backward)
    SET(arg, .need = max_backward ? SHF_REQUIRED : SHF_OPTIONAL, .output = !max_backward, .dtype = d->index_dtype,
        .rows = d->bags, .columns = d->dim);
  if (backward)
    SET(table_grad, .need = weights_grad ? SHF_OPTIONAL : SHF_REQUIRED, .output = 1, .dtype = d->dtype, .rows = d->rows,
        .columns = d->dim);
  if (weights_grad)
    SET(weights_grad, .need = SHF_OPTIONAL, .output = 1, .dtype = weight_dtype, .rows = d->indices, .columns = -1,
        .free_shape = 1);
#undef SET
}

/* ---- Grouping and workspace ---- */

int shf_plan_embedding_grouping(const sheaf_plan *plan, shf_grouping_spec *spec)
{
  const sheaf_embedding_desc *d = &plan->embedding;
  if (!is_backward(d->kind)) return 0;
  int bag = d->kind != SHEAF_LOOKUP_BACKWARD, matrix = d->bag_form == SHEAF_BAGS_MATRIX;
  *spec = (shf_grouping_spec){.batch = plan->batch,
                              .entries = d->indices,
                              .groups = d->rows,
                              .row_begin = d->row_begin,
                              .rows = d->rows,
                              .padding = d->has_padding ? d->padding_idx : -1,
                              .bags = d->bags,
                              .bag_length = bag && matrix ? (d->bags ? d->indices / d->bags : 0) : -1,
                              .payload_is_bag = bag && !d->weighted,
                              .with_bag_of = bag && d->weighted && !matrix,
                              .wide = d->index_dtype == SHEAF_I64,
                              .offsets_wide = d->offset_dtype == SHEAF_I64,
                              .offsets_end = d->bag_form == SHEAF_BAGS_OFFSETS_END,
                              .threads = plan->threads};
  if (d->kind == SHEAF_BAG_MAX_BACKWARD) {
    spec->entries = d->bags * d->dim;
    spec->groups = d->rows * d->dim;
    spec->columns = d->dim;
    spec->payload_is_bag = 0;
    spec->bag_length = -1;
  }
  return 1;
}

static sheaf_status lay_out(sheaf_plan *plan)
{
  const sheaf_embedding_desc *d = &plan->embedding;
  shf_layout *at = &plan->layout;
  shf_grouping_spec grouping;
  int grouped = shf_plan_embedding_grouping(plan, &grouping);
  int64_t entries = grouped ? grouping.entries : d->indices, bytes = 0;
  int64_t dim = d->kind == SHEAF_BAG_MAX_BACKWARD ? 1 : d->dim;
  if (grouped) SHF_TRY(shf_plan_check_grouping(&grouping));
  if (grouped && !d->grouping_given) bytes += shf_plan_grouping_bytes(&grouping);
  at->counts = bytes;
  if (d->kind == SHEAF_BAG_MEAN_BACKWARD) bytes += shf_align64(plan->batch * d->bags * plan->acc_bytes);
  if (d->kind != SHEAF_LOOKUP) {
    at->slot_bytes = shf_slot_bytes(dim, plan->acc_bytes, d->kind == SHEAF_BAG_MAX);
    at->partials = bytes;
    bytes += shf_align64(shf_plan_slots(plan->batch * entries, entries, plan->threads) * at->slot_bytes);
    at->scratch = bytes;
    if (entries > SHF_CHUNK || d->kind == SHEAF_BAG_MAX)
      at->scratch_bytes = shf_scratch_bytes(dim, plan->acc_bytes, d->kind == SHEAF_BAG_MAX, entries);
    bytes += at->scratch_bytes * plan->threads;
  }
  at->total = bytes;
  return SHEAF_OK;
}

static int is_bag_forward(sheaf_embedding_kind kind)
{
  return kind == SHEAF_BAG_SUM || kind == SHEAF_BAG_MEAN || kind == SHEAF_BAG_MAX;
}

sheaf_status sheaf_embedding_select(const sheaf_embedding_desc *desc, const sheaf_preference *preference,
                                    sheaf_plan **plan)
{
  SHF_REQUIRE(plan, INVALID_PROBLEM, "sheaf_embedding_select: plan is NULL");
  *plan = NULL;
  sheaf_plan made;
  memset(&made, 0, sizeof made);
  sheaf_preference wishes;
  sheaf_embedding_desc *d = &made.embedding;
  made.category = SHEAF_CATEGORY_EMBEDDING;
  SHF_TRY(shf_plan_copy_struct(d, sizeof *d, desc, "desc"));
  SHF_TRY(check_types(d));
  SHF_TRY(shf_plan_check_device(d->device, &made.api));
  made.device = d->device;
  SHF_TRY(shf_plan_preference(preference, &wishes, &made.threads));
  SHF_TRY(check_flags(d));
  made.has_batch = d->batch > 0;
  made.batch = made.has_batch ? d->batch : 1;
  SHF_TRY(check_extents(d, made.batch));
  SHF_TRY(check_bags(d));
  SHF_TRY(check_options(d));
  made.acc_bytes = shf_core_dtype_size(shf_core_dtype_acc(d->dtype));
  made.row_bytes = sheaf_dtype_row_bytes(d->dtype, d->dim);
  made.out_row_bytes = sheaf_dtype_row_bytes(d->out_dtype, d->dim);
  if (is_bag_forward(d->kind))
    made.ahead = shf_plan_ahead(d->rows, made.row_bytes, SHF_READ_AHEAD, SHF_MOST_AHEAD);
  else
    made.ahead = shf_plan_ahead(d->rows, made.row_bytes, SHF_READ_AHEAD, SHF_MOST_AHEAD_COPY);
  if (made.api) {
    SHF_TRY(shf_plan_device_select(&made, (uint16_t)d->kind, d->dtype, d->index_dtype, &wishes));
  } else {
    SHF_TRY(lay_out(&made));
    SHF_TRY(shf_plan_choose(&made, (uint16_t)d->kind, d->dtype, d->index_dtype, &wishes));
    shf_plan_choose_asking(&made);
  }
  describe_operands(&made);
  shf_plan_finish_specs(&made);
  shf_plan_embedding_job(&made);
  return shf_plan_publish(&made, plan);
}
