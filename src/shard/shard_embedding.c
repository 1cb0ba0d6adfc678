/* shard/shard_embedding.c: lookups and bags on distributed tensors: arguments, strategy, and the way to forward and
 * backward. */
#include <stdio.h>
#include <string.h>

#include "shard/embedding_call.h"

static int is_backward(sheaf_embedding_kind kind)
{
  return kind == SHEAF_LOOKUP_BACKWARD || kind == SHEAF_BAG_SUM_BACKWARD || kind == SHEAF_BAG_MEAN_BACKWARD ||
         kind == SHEAF_BAG_MAX_BACKWARD;
}

static int has_bags(sheaf_embedding_kind kind) { return kind >= SHEAF_BAG_SUM && kind <= SHEAF_BAG_MAX; }

static int is_index(sheaf_dtype dtype) { return dtype == SHEAF_I32 || dtype == SHEAF_I64; }

static int is_value(sheaf_dtype dtype)
{
  return dtype == SHEAF_F32 || dtype == SHEAF_F64 || dtype == SHEAF_F16 || dtype == SHEAF_BF16;
}

/* Whether a cut of the offsets gives each rank the bags that Bags gives it of the indices. */
static int offsets_fit(const sheaf_mesh *mesh, const sheaf_placement *indices, const sheaf_placement *offsets)
{
  for (int m = 0; m < mesh->dims; m++) {
    int cut = offsets[m].kind == SHEAF_PLACE_SHARD;
    if ((indices[m].kind == SHEAF_PLACE_BAGS) != cut || (!cut && offsets[m].kind != SHEAF_PLACE_REPLICATE) ||
        (!cut && indices[m].kind != SHEAF_PLACE_REPLICATE))
      return 0;
  }
  return 1;
}

/* ---- Arguments to a problem ------------------------------------------------------------------------------------- */

static void set_placements(sheaf_shard_problem *p, int input, const sheaf_dtensor *tensor)
{
  memcpy(p->in[input], tensor->desc.placements, sizeof p->in[input]);
}

static sheaf_status read_bags(const sheaf_embedding_desc *desc, const sheaf_shard_embedding_args *a,
                              sheaf_shard_problem *p)
{
  const sheaf_mesh *mesh = p->mesh;
  if (!has_bags(desc->kind)) return SHEAF_OK;
  p->bag_form = desc->bag_form;
  if (desc->bag_form == SHEAF_BAGS_MATRIX) {
    SHF_REQUIRE(a->indices->desc.rank == 2, INVALID_PROBLEM, "indices have %d dimensions, not 2",
                a->indices->desc.rank);
    SHF_REQUIRE(!a->offsets, INVALID_PROBLEM, "offsets are given in matrix form");
    p->bags = a->indices->desc.shape[0];
  } else {
    SHF_REQUIRE(desc->bag_form == SHEAF_BAGS_OFFSETS, UNSUPPORTED,
                "distributed bags are given by their starts, without the end");
    SHF_REQUIRE(a->offsets, INVALID_PROBLEM, "offsets is NULL");
    SHF_REQUIRE(a->offsets->desc.rank == 1 && a->indices->desc.rank == 1 && is_index(a->offsets->desc.dtype),
                INVALID_PROBLEM, "indices and offsets of bags have 1 dimension, and offsets are i32 or i64");
    p->bags = a->offsets->desc.shape[0];
    SHF_REQUIRE(offsets_fit(mesh, a->indices->desc.placements, a->offsets->desc.placements), INVALID_PROBLEM,
                "indices must be placed by Bags where offsets are cut, and replicated elsewhere");
    set_placements(p, 2, a->offsets);
  }
  if (!desc->weighted) return SHEAF_OK;
  SHF_REQUIRE(a->weights, INVALID_PROBLEM, "weights is NULL");
  SHF_REQUIRE(a->weights->desc.rank == a->indices->desc.rank &&
                  memcmp(a->weights->desc.shape, a->indices->desc.shape, (size_t)a->indices->desc.rank * 8) == 0 &&
                  shf_placements_equal(mesh, a->weights->desc.placements, a->indices->desc.placements) &&
                  (desc->bag_form == SHEAF_BAGS_MATRIX || a->weights->local_shape[0] == a->indices->local_shape[0]),
              INVALID_PROBLEM, "weights do not have the shape and placements of indices");
  SHF_REQUIRE(a->weights->desc.dtype == p->dtype, INVALID_PROBLEM, "weights are of type %s, not %s",
              sheaf_dtype_name(a->weights->desc.dtype), sheaf_dtype_name(p->dtype));
  return SHEAF_OK;
}

static sheaf_status read_problem(const sheaf_embedding_desc *desc, const sheaf_shard_embedding_args *a,
                                 sheaf_shard_problem *p)
{
  int backward = is_backward(desc->kind);
  const sheaf_dtensor *values = backward ? a->grad_out : a->table;
  const sheaf_dtensor *index = desc->kind == SHEAF_BAG_MAX_BACKWARD ? a->arg : a->indices;
  *p = (sheaf_shard_problem)SHEAF_SHARD_PROBLEM_INIT;
  p->mesh = values->desc.mesh;
  p->kind = (uint16_t)desc->kind;
  p->dtype = values->desc.dtype;
  p->index_dtype = index->desc.dtype;
  SHF_REQUIRE(is_value(p->dtype) && is_index(p->index_dtype), UNSUPPORTED, "values of type %s with indices of type %s",
              sheaf_dtype_name(p->dtype), sheaf_dtype_name(p->index_dtype));
  SHF_REQUIRE(desc->batch == 0 && desc->total_rows == 0 && desc->row_begin == 0, UNSUPPORTED,
              "a distributed op has no batch, and takes whole tables");
  SHF_REQUIRE(values->desc.rank >= 1, INVALID_PROBLEM, "%s has no dimensions", backward ? "grad_out" : "table");
  p->rows = backward ? desc->rows : a->table->desc.shape[0];
  p->dim = values->desc.shape[values->desc.rank - 1];
  p->index_rank = index->desc.rank;
  memcpy(p->index_shape, index->desc.shape, sizeof p->index_shape);
  SHF_REQUIRE(!desc->has_padding || (desc->padding_idx >= 0 && desc->padding_idx < p->rows), INVALID_PROBLEM,
              "padding_idx %lld is outside 0..%lld", (long long)desc->padding_idx, (long long)p->rows - 1);
  SHF_TRY(read_bags(desc, a, p));
  if (desc->kind == SHEAF_BAG_MAX_BACKWARD) p->bags = values->desc.shape[0];
  set_placements(p, 0, values);
  set_placements(p, 1, index);
  shf_shard_shapes shapes;
  SHF_TRY(shf_shard_shapes_of(p, &shapes));
  SHF_REQUIRE(values->desc.rank == shapes.in[0].rank &&
                  memcmp(values->desc.shape, shapes.in[0].shape, (size_t)values->desc.rank * 8) == 0,
              INVALID_PROBLEM, "%s does not have the shape that indices and bags ask for",
              backward ? "grad_out" : "table");
  return SHEAF_OK;
}

/* What the gradient of weights needs besides. */
static sheaf_status check_weights_grad(const sheaf_embedding_desc *desc, const sheaf_shard_embedding_args *a,
                                       const sheaf_shard_problem *p)
{
  if (!a->weights_grad || !desc->weighted || !is_backward(desc->kind) || !has_bags(desc->kind)) return SHEAF_OK;
  const sheaf_dtensor *table = a->table, *forward = a->forward;
  SHF_REQUIRE(table && table->desc.rank == 2 && table->desc.shape[0] == p->rows && table->desc.shape[1] == p->dim &&
                  table->desc.dtype == p->dtype,
              INVALID_PROBLEM, "the gradient of weights needs the table, %lld x %lld of type %s", (long long)p->rows,
              (long long)p->dim, sheaf_dtype_name(p->dtype));
  if (desc->kind == SHEAF_BAG_SUM_BACKWARD) return SHEAF_OK;
  SHF_REQUIRE(forward && forward->desc.rank == 2 && forward->desc.shape[0] == p->bags &&
                  forward->desc.shape[1] == p->dim && forward->desc.dtype == p->dtype,
              INVALID_PROBLEM, "the gradient of a mean's weights needs the forward output, %lld x %lld of type %s",
              (long long)p->bags, (long long)p->dim, sheaf_dtype_name(p->dtype));
  return SHEAF_OK;
}

static sheaf_status check_args(const sheaf_embedding_desc *desc, const sheaf_shard_embedding_args *args)
{
  SHF_TRY(shf_shard_check_struct(desc, sizeof *desc, "desc"));
  SHF_TRY(shf_shard_check_struct(args, sizeof *args, "args"));
  SHF_REQUIRE(sheaf_kind_name(SHEAF_CATEGORY_EMBEDDING, (uint16_t)desc->kind), INVALID_PROBLEM,
              "the embedding family has no kind %d", (int)desc->kind);
  return SHEAF_OK;
}

/* A sentence that is equal on ranks that do the same. */
static void describe(const sheaf_embedding_desc *desc, const sheaf_shard_call *how, const sheaf_shard_embedding_args *a,
                     const sheaf_mesh *mesh, char *text, size_t room)
{
  char out[PLACEMENTS_TEXT] = "any";
  if (how && how->out) shf_placements_text(mesh, how->out, out);
  snprintf(text, room, "%s of %lld rows to [%s], options %d %lld %d %d %d %d %d %d",
           sheaf_kind_name(SHEAF_CATEGORY_EMBEDDING, (uint16_t)desc->kind), (long long)desc->rows, out,
           desc->has_padding, (long long)desc->padding_idx, desc->weighted, desc->scale_grad_by_freq,
           (int)desc->bag_form, (int)desc->padding, (int)desc->bad_index, how && how->strategy);
  shf_call_describe(text, room, "table", a->table);
  shf_call_describe(text, room, "indices", a->indices);
  shf_call_describe(text, room, "offsets", a->offsets);
  shf_call_describe(text, room, "weights", a->weights);
  shf_call_describe(text, room, "grad_out", a->grad_out);
  shf_call_describe(text, room, "arg", a->arg);
  if (a->weights_grad) shf_call_describe(text, room, "weights_grad, forward", a->forward);
  size_t at = strlen(text);
  for (int j = 0; how && how->strategy && j < how->strategy->inputs && at < room; j++, at = strlen(text)) {
    shf_placements_text(mesh, how->strategy->in[j], out);
    snprintf(text + at, room - at, ", by [%s]", out);
  }
}

sheaf_status sheaf_shard_embedding_run(const sheaf_embedding_desc *desc, const sheaf_shard_call *call,
                                       const sheaf_shard_embedding_args *args)
{
  SHF_TRY(check_args(desc, args));
  int backward = is_backward(desc->kind), max_backward = desc->kind == SHEAF_BAG_MAX_BACKWARD;
  const shf_call_operand operands[] = {
      {"table", args->table, !backward}, {"indices", args->indices, !max_backward}, {"offsets", args->offsets, 0},
      {"weights", args->weights, 0},     {"grad_out", args->grad_out, backward},    {"arg", args->arg, max_backward},
      {"forward", args->forward, 0}};
  shf_embedding_call e = {.desc = desc, .args = args};
  sheaf_status checked = shf_call_check(operands, sizeof operands / sizeof *operands, &e.c.flow.mesh);
  SHF_REQUIRE(e.c.flow.mesh, INVALID_PROBLEM, "no operand is given");
  e.c.flow.status = checked;
  if (checked == SHEAF_OK && !(backward ? args->table_grad : args->out))
    e.c.flow.status = shf_core_fail(SHEAF_INVALID_PROBLEM, "%s is NULL", backward ? "table_grad" : "out");
  FLOW(&e.c.flow, read_problem(desc, args, &e.c.problem));
  FLOW(&e.c.flow, check_weights_grad(desc, args, &e.c.problem));
  FLOW(&e.c.flow, shf_call_choose(&e.c, call));
  char doing[1200];
  describe(desc, call, args, e.c.flow.mesh, doing, sizeof doing);
  int64_t facts[2] = {args->indices && args->indices->desc.rank ? args->indices->local_shape[0] : 0, 0};
  if (shf_flow_agree_on(&e.c.flow, doing, facts)) {
    e.acc = shf_core_dtype_acc(e.c.problem.dtype);
    const int64_t shape[2] = {e.c.problem.rows, e.c.problem.dim};
    shf_box box =
        shf_shard_box(e.c.flow.mesh, backward ? e.c.strategy.out : e.c.strategy.in[0], 2, shape, e.c.flow.mesh->rank);
    e.row_lo = box.lo[0];
    e.row_hi = box.hi[0];
    e.columns = box.hi[1] - box.lo[1];
    if (!max_backward)
      shf_bags_bring(&e.c,
                     &(shf_bag_operands){args->indices, has_bags(desc->kind) ? args->offsets : NULL,
                                         has_bags(desc->kind) && desc->weighted ? args->weights : NULL},
                     &e.bags);
    if (backward)
      shf_embedding_backward(&e);
    else
      shf_embedding_forward(&e);
  }
  shf_call_free(&e.c);
  return e.c.flow.status;
}

/* ---- Local ops -------------------------------------------------------------------------------------------------- */

void shf_embedding_local_op(const shf_embedding_call *e, sheaf_embedding_kind kind, const shf_local_rows *rows,
                            sheaf_embedding_desc *desc, sheaf_embedding_args *args, shf_local_embedding_parts *parts)
{
  const shf_bags *bags = &e->bags;
  *desc = (sheaf_embedding_desc)SHEAF_EMBEDDING_DESC_INIT;
  desc->kind = kind;
  desc->dtype = rows->dtype;
  desc->index_dtype = rows->index_dtype;
  desc->offset_dtype = SHEAF_I64;
  desc->rows = rows->rows;
  desc->row_begin = rows->row_begin;
  desc->total_rows = rows->total;
  desc->dim = e->columns;
  desc->indices = bags->entries;
  desc->bags = bags->bags;
  desc->grad_write = SHEAF_GRAD_OVERWRITE;
  desc->padding = e->desc->padding;
  if (!rows->renumbered) {
    desc->has_padding = e->desc->has_padding;
    desc->padding_idx = e->desc->padding_idx;
    desc->bad_index = e->desc->bad_index;
  }
  *args = (sheaf_embedding_args)SHEAF_EMBEDDING_ARGS_INIT;
  int matrix = bags->bags > 0 && !bags->offsets;
  const int64_t shape[2] = {bags->bags, bags->length};
  if (bags->offsets || matrix || kind >= SHEAF_BAG_SUM) {
    desc->bag_form = bags->offsets ? SHEAF_BAGS_OFFSETS_END : SHEAF_BAGS_MATRIX;
    if (bags->offsets) args->offsets = shf_local_vector(&parts->offsets, SHEAF_I64, bags->offsets, bags->bags + 1);
  }
  args->indices = bags->offsets || kind < SHEAF_BAG_SUM
                      ? shf_local_vector(&parts->indices, rows->index_dtype, rows->indices, bags->entries)
                      : shf_local_operand(&parts->indices, rows->index_dtype, rows->indices, 2, shape);
}

void shf_embedding_dispatch(shf_embedding_call *e, const sheaf_placement *table, const void *indices, int64_t entries,
                            shf_dispatch *d)
{
  const sheaf_embedding_desc *desc = e->desc;
  int skips = desc->has_padding && !(desc->kind == SHEAF_LOOKUP && desc->padding == SHEAF_PADDING_ROW);
  shf_dispatch_task task = {.dims = e->c.strategy.dispatch,
                            .table = table,
                            .rows = e->c.problem.rows,
                            .columns = e->columns,
                            .indices = indices,
                            .entries = entries,
                            .index_dtype = e->c.problem.index_dtype,
                            .skipped = skips ? desc->padding_idx : -1};
  const char *operand = desc->kind == SHEAF_BAG_MAX_BACKWARD ? "arg" : "indices";
  FLOW(&e->c.flow, shf_check_indices(desc, operand, task.index_dtype, indices, entries, task.rows));
  shf_dispatch_plan(&e->c.flow, &e->c.pool, &task, d);
}
