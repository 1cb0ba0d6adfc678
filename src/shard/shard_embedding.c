/* shard/shard_embedding.c: lookups and bags on distributed tensors: arguments, strategy, and the way to forward and
 * backward. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "shard/embedding_call.h"

/* As plans have it: whatever is counted or multiplied of such a table fits 63 bits. */
#define MOST_TABLE_ROWS ((int64_t)1 << 46)
#define MOST_CELLS ((int64_t)1 << 57)

static int is_backward(sheaf_embedding_kind kind)
{
  return kind == SHEAF_LOOKUP_BACKWARD || kind == SHEAF_BAG_SUM_BACKWARD || kind == SHEAF_BAG_MEAN_BACKWARD ||
         kind == SHEAF_BAG_MAX_BACKWARD;
}

static int has_bags(sheaf_embedding_kind kind) { return kind >= SHEAF_BAG_SUM && kind <= SHEAF_BAG_MAX; }

static int is_index(sheaf_dtype dtype) { return dtype == SHEAF_I32 || dtype == SHEAF_I64; }

static int is_quantised(sheaf_dtype dtype) { return dtype == SHEAF_INT8 || dtype == SHEAF_INT4; }

static int is_value(sheaf_dtype dtype)
{
  return dtype == SHEAF_F32 || dtype == SHEAF_F64 || dtype == SHEAF_F16 || dtype == SHEAF_BF16;
}

/* Whether a cut of the offsets gives each rank the bags that Bags gives it of the indices. Offsets with their end are
 * no chunk of the whole: they are placed by Bags too. */
static int offsets_fit(const sheaf_mesh *mesh, const sheaf_placement *indices, const sheaf_placement *offsets,
                       sheaf_bag_form form)
{
  sheaf_placement_kind cut = form == SHEAF_BAGS_OFFSETS_END ? SHEAF_PLACE_BAGS : SHEAF_PLACE_SHARD;
  for (int m = 0; m < mesh->dims; m++)
    if (!(indices[m].kind == SHEAF_PLACE_BAGS && offsets[m].kind == cut) &&
        !(indices[m].kind == SHEAF_PLACE_REPLICATE && offsets[m].kind == SHEAF_PLACE_REPLICATE))
      return 0;
  return 1;
}

/* ---- Arguments to a problem ------------------------------------------------------------------------------------- */

static void set_placements(sheaf_shard_problem *p, int input, const sheaf_dtensor *tensor)
{
  memcpy(p->in[input], tensor->desc.placements, sizeof p->in[input]);
}

static sheaf_status read_bags(const sheaf_embedding_desc *desc, const sheaf_shard_embedding_args *a, shf_call *c)
{
  sheaf_shard_problem *p = &c->problem;
  const sheaf_mesh *mesh = p->mesh;
  if (!has_bags(desc->kind)) return SHEAF_OK;
  p->bag_form = desc->bag_form;
  if (desc->bag_form == SHEAF_BAGS_MATRIX) {
    SHF_REQUIRE(a->indices->desc.rank == 2, INVALID_PROBLEM, "indices have %d dimensions, not 2",
                a->indices->desc.rank);
    SHF_REQUIRE(!a->offsets, INVALID_PROBLEM, "offsets are given in matrix form");
    p->bags = a->indices->desc.shape[0];
  } else {
    int with_end = desc->bag_form == SHEAF_BAGS_OFFSETS_END;
    SHF_REQUIRE(with_end || desc->bag_form == SHEAF_BAGS_OFFSETS, INVALID_PROBLEM, "there is no bag_form %d",
                (int)desc->bag_form);
    SHF_REQUIRE(a->offsets, INVALID_PROBLEM, "offsets is NULL");
    SHF_REQUIRE(a->offsets->desc.rank == 1 && a->indices->desc.rank == 1 && is_index(a->offsets->desc.dtype),
                INVALID_PROBLEM, "indices and offsets of bags have 1 dimension, and offsets are i32 or i64");
    SHF_REQUIRE(a->offsets->desc.shape[0] >= with_end, INVALID_PROBLEM, "offsets are empty, without an end");
    p->bags = a->offsets->desc.shape[0] - with_end;
    SHF_REQUIRE(offsets_fit(mesh, a->indices->desc.placements, a->offsets->desc.placements, desc->bag_form),
                INVALID_PROBLEM, "indices must be placed by Bags where offsets are cut (%s), and replicated elsewhere",
                with_end ? "with the end: by Bags" : "S(0)");
    set_placements(p, 2, a->offsets);
    for (int m = 0; m < mesh->dims; m++) /* for choosing, what counts is one number per bag */
      if (p->in[2][m].kind == SHEAF_PLACE_BAGS) p->in[2][m] = sheaf_shard(0);
  }
  if (!desc->weighted) return SHEAF_OK;
  SHF_REQUIRE(a->weights, INVALID_PROBLEM, "weights is NULL");
  SHF_REQUIRE(a->weights->desc.rank == a->indices->desc.rank &&
                  memcmp(a->weights->desc.shape, a->indices->desc.shape, (size_t)a->indices->desc.rank * 8) == 0 &&
                  shf_placements_equal(mesh, a->weights->desc.placements, a->indices->desc.placements) &&
                  (desc->bag_form == SHEAF_BAGS_MATRIX || a->weights->local_shape[0] == a->indices->local_shape[0]),
              INVALID_PROBLEM, "weights do not have the shape and placements of indices");
  SHF_REQUIRE(a->weights->desc.dtype == c->weights, INVALID_PROBLEM, "weights are of type %s, not %s",
              sheaf_dtype_name(a->weights->desc.dtype), sheaf_dtype_name(c->weights));
  return SHEAF_OK;
}

/* Types of table and values. A packed table is a tensor of bytes, of which only the description knows what it holds. */
static sheaf_status read_types(const sheaf_embedding_desc *desc, const sheaf_dtensor *values, shf_call *c)
{
  sheaf_shard_problem *p = &c->problem;
  int backward = is_backward(desc->kind);
  p->dtype = c->values = c->weights = values->desc.dtype;
  p->dim = values->desc.shape[values->desc.rank - 1];
  if (is_quantised(desc->dtype)) {
    SHF_REQUIRE(!backward, UNSUPPORTED, "tables of type %s have no gradient", sheaf_dtype_name(desc->dtype));
    SHF_REQUIRE(values->desc.dtype == SHEAF_U8, INVALID_PROBLEM, "a table of type %s is one of u8, not %s",
                sheaf_dtype_name(desc->dtype), sheaf_dtype_name(values->desc.dtype));
    p->dtype = desc->dtype;
    p->dim = desc->dim;
    c->values = desc->out_dtype ? desc->out_dtype : SHEAF_F32;
    c->weights = SHEAF_F32;
    SHF_REQUIRE(c->values == SHEAF_F32 || c->values == SHEAF_F16 || c->values == SHEAF_BF16, INVALID_PROBLEM,
                "out_dtype of a table of type %s is f32, f16 or bf16, not %s", sheaf_dtype_name(desc->dtype),
                sheaf_dtype_name(c->values));
  }
  SHF_REQUIRE((is_value(p->dtype) || is_quantised(p->dtype)) && is_index(p->index_dtype), UNSUPPORTED,
              "values of type %s with indices of type %s", sheaf_dtype_name(p->dtype),
              sheaf_dtype_name(p->index_dtype));
  return SHEAF_OK;
}

static sheaf_status read_problem(const sheaf_embedding_desc *desc, const sheaf_shard_embedding_args *a, shf_call *c)
{
  sheaf_shard_problem *p = &c->problem;
  int backward = is_backward(desc->kind);
  const sheaf_dtensor *values = backward ? a->grad_out : a->table;
  const sheaf_dtensor *index = desc->kind == SHEAF_BAG_MAX_BACKWARD ? a->arg : a->indices;
  *p = (sheaf_shard_problem)SHEAF_SHARD_PROBLEM_INIT;
  p->mesh = values->desc.mesh;
  p->kind = (uint16_t)desc->kind;
  p->index_dtype = index->desc.dtype;
  SHF_REQUIRE(desc->batch == 0 && desc->total_rows == 0 && desc->row_begin == 0, UNSUPPORTED,
              "a distributed op has no batch, and takes whole tables");
  SHF_REQUIRE(values->desc.rank >= 1, INVALID_PROBLEM, "%s has no dimensions", backward ? "grad_out" : "table");
  SHF_TRY(read_types(desc, values, c));
  p->rows = backward ? desc->rows : a->table->desc.shape[0];
  p->index_rank = index->desc.rank;
  memcpy(p->index_shape, index->desc.shape, sizeof p->index_shape);
  SHF_REQUIRE(!desc->has_padding || (desc->padding_idx >= 0 && desc->padding_idx < p->rows), INVALID_PROBLEM,
              "padding_idx %lld is outside 0..%lld", (long long)desc->padding_idx, (long long)p->rows - 1);
  SHF_TRY(read_bags(desc, a, c));
  if (desc->kind == SHEAF_BAG_MAX_BACKWARD) p->bags = values->desc.shape[0];
  set_placements(p, 0, values);
  set_placements(p, 1, index);
  shf_shard_shapes shapes;
  SHF_TRY(shf_shard_shapes_of(p, &shapes));
  SHF_REQUIRE(p->rows >= 0 && p->rows <= MOST_TABLE_ROWS && (p->dim == 0 || p->rows <= MOST_CELLS / p->dim),
              INVALID_PROBLEM, "a table of %lld rows of %lld elements is larger than any memory", (long long)p->rows,
              (long long)p->dim);
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

static sheaf_status read_arguments(shf_call *c)
{
  const shf_embedding_call *e = (const shf_embedding_call *)c;
  SHF_TRY(read_problem(e->desc, e->args, c));
  return check_weights_grad(e->desc, e->args, &c->problem);
}

static void describe(const shf_call *c, char *text, size_t room)
{
  const shf_embedding_call *e = (const shf_embedding_call *)c;
  const sheaf_embedding_desc *desc = e->desc;
  snprintf(text, room, "%s of %lld rows, options %d %lld %d %d %d %d %d %d %d %d",
           sheaf_kind_name(SHEAF_CATEGORY_EMBEDDING, (uint16_t)desc->kind), (long long)desc->rows, desc->has_padding,
           (long long)desc->padding_idx, desc->weighted, desc->scale_grad_by_freq, (int)desc->bag_form,
           (int)desc->padding, (int)desc->bad_index, (int)c->problem.dtype, (int)c->values,
           e->args->weights_grad != NULL);
}

/* ---- The call ---------------------------------------------------------------------------------------------------- */

/* On a device a plan refuses no values: they are looked at here. */
static sheaf_status check_values(shf_embedding_call *e)
{
  if (shf_is_host(e->c.site.device) || e->desc->bad_index != SHEAF_BAD_INDEX_ERROR) return SHEAF_OK;
  SHF_TRY(shf_bags_read(&e->c, &e->bags));
  return shf_check_indices(e->desc, "indices", e->c.problem.index_dtype, e->bags.host.indices, e->bags.entries,
                           e->c.problem.rows);
}

static void run(shf_call *c)
{
  shf_embedding_call *e = (shf_embedding_call *)c;
  const sheaf_shard_embedding_args *a = e->args;
  int backward = is_backward(e->desc->kind), bags = has_bags(e->desc->kind);
  e->acc = shf_core_dtype_acc(c->values);
  e->quantised = is_quantised(c->problem.dtype);
  const int64_t shape[2] = {c->problem.rows, c->problem.dim};
  const sheaf_placement *table = backward ? c->strategy.out : c->strategy.in[0];
  shf_box box = shf_shard_box(c->flow.mesh, table, 2, shape, c->flow.mesh->rank);
  e->row_lo = box.lo[0];
  e->row_hi = box.hi[0];
  e->columns = box.hi[1] - box.lo[1];
  e->row_bytes = e->quantised ? c->shapes.in[0].shape[1] : e->columns * shf_core_dtype_size(c->values);
  if (e->desc->kind != SHEAF_BAG_MAX_BACKWARD) {
    shf_bag_operands operands = {a->indices, bags ? a->offsets : NULL, bags && e->desc->weighted ? a->weights : NULL};
    shf_bags_bring(c, &operands, &e->bags);
    FLOW(&c->flow, check_values(e));
  }
  if (backward)
    shf_embedding_backward(e);
  else
    shf_embedding_forward(e);
}

sheaf_status sheaf_shard_embedding_run(const sheaf_embedding_desc *desc, const sheaf_shard_call *call,
                                       const sheaf_shard_embedding_args *args)
{
  static const sheaf_embedding_desc none = SHEAF_EMBEDDING_DESC_INIT;
  SHF_TRY(shf_shard_check_struct(args, sizeof *args, "args"));
  shf_embedding_call e = {.args = args};
  e.c.flow.status =
      shf_call_check_desc(desc, sizeof *desc, SHEAF_CATEGORY_EMBEDDING, offsetof(sheaf_embedding_desc, kind));
  e.desc = desc = e.c.flow.status == SHEAF_OK ? desc : &none;
  int backward = is_backward(desc->kind), max_backward = desc->kind == SHEAF_BAG_MAX_BACKWARD;
  const shf_call_operand operands[] = {
      {"table", args->table, !backward}, {"indices", args->indices, !max_backward}, {"offsets", args->offsets, 0},
      {"weights", args->weights, 0},     {"grad_out", args->grad_out, backward},    {"arg", args->arg, max_backward},
      {"forward", args->forward, 0}};
  const shf_call_task task = {
      .how = call,
      .operands = operands,
      .count = sizeof operands / sizeof *operands,
      .missing = backward    ? args->table_grad ? NULL : "table_grad"
                 : args->out ? NULL
                             : "out",
      .facts = {args->indices && args->indices->desc.rank ? args->indices->local_shape[0] : 0, 0},
      .read = read_arguments,
      .describe = describe,
      .run = run};
  return shf_call_run(&e.c, &task);
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
    if (bags->offsets)
      args->offsets = shf_local_vector(&parts->offsets, e->c.site, SHEAF_I64, bags->offsets, bags->bags + 1);
  }
  args->indices = bags->offsets || kind < SHEAF_BAG_SUM
                      ? shf_local_vector(&parts->indices, e->c.site, rows->index_dtype, rows->indices, bags->entries)
                      : shf_local_operand(&parts->indices, e->c.site, rows->index_dtype, rows->indices, 2, shape);
}

shf_local_rows shf_embedding_rows(const shf_embedding_call *e, const sheaf_dtensor *table)
{
  const sheaf_shard_problem *p = &e->c.problem;
  return (shf_local_rows){p->dtype, shf_dtensor_data(table), e->row_hi - e->row_lo, e->row_lo,
                          p->rows,  e->bags.indices,         p->index_dtype,        0};
}

sheaf_operand shf_embedding_table(const shf_embedding_call *e, const shf_local_rows *rows, shf_local *local)
{
  if (!e->quantised) return shf_local_matrix(local, e->c.site, rows->dtype, rows->data, rows->rows, e->columns);
  return shf_local_matrix(local, e->c.site, SHEAF_U8, rows->data, rows->rows, e->row_bytes);
}

void shf_embedding_group(shf_embedding_call *e, const sheaf_placement *table, const void *indices, int64_t entries,
                         shf_dispatch *d)
{
  const sheaf_embedding_desc *desc = e->desc;
  int skips = desc->has_padding && !(desc->kind == SHEAF_LOOKUP && desc->padding == SHEAF_PADDING_ROW);
  shf_dispatch_task task = {.dims = e->c.strategy.dispatch,
                            .table = table,
                            .rows = e->c.problem.rows,
                            .indices = indices,
                            .entries = entries,
                            .index_dtype = e->c.problem.index_dtype,
                            .skipped = skips ? desc->padding_idx : -1};
  const char *operand = desc->kind == SHEAF_BAG_MAX_BACKWARD ? "arg" : "indices";
  FLOW(&e->c.flow, shf_check_indices(desc, operand, task.index_dtype, indices, entries, task.rows));
  FLOW(&e->c.flow, shf_dispatch_group(&e->c.pool, e->c.flow.mesh, &task, d));
}
