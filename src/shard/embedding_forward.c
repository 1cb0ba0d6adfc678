/* shard/embedding_forward.c: lookups and bags, forward: rows are brought here if need be, the local op runs, and what
 * ranks have of the result becomes one. */
#include <math.h>
#include <string.h>

#include "core/cpu.h"
#include "shard/embedding_call.h"

/* NOLINTBEGIN(clang-analyzer-core.*): the analyzer does not see that a flow which failed stays failed. */

/* Whether rows must be renumbered before the local op: they come from other ranks, or they are 16-bit rows whose sums
 * are to be f32, which the kernels give for f32 rows only. */
static int is_compact(const shf_embedding_call *e)
{
  int narrow = e->acc != e->c.problem.dtype, sums = e->desc->kind == SHEAF_BAG_SUM || e->desc->kind == SHEAF_BAG_MEAN;
  return e->c.strategy.dispatch || (narrow && sums && shf_call_is_partial(&e->c));
}

static sheaf_status look_up(const shf_embedding_call *e, const sheaf_dtensor *table, const int64_t *ids, int64_t count,
                            void *rows)
{
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.dtype = e->c.problem.dtype;
  desc.index_dtype = SHEAF_I64;
  desc.rows = e->row_hi - e->row_lo;
  desc.row_begin = e->row_lo;
  desc.total_rows = e->c.problem.rows;
  desc.dim = e->columns;
  desc.indices = count;
  shf_local local, index, out;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.table = shf_local_matrix(&local, desc.dtype, shf_dtensor_data(table), desc.rows, e->columns);
  args.indices = shf_local_vector(&index, SHEAF_I64, ids, count);
  args.out = shf_local_matrix(&out, desc.dtype, rows, count, e->columns);
  return shf_local_embedding(&desc, &args);
}

void shf_embedding_compact(shf_embedding_call *e, const sheaf_dtensor *table, const sheaf_placement *at,
                           sheaf_dtype wanted, shf_dispatch *d, shf_local_rows *rows)
{
  shf_call *c = &e->c;
  int64_t cell = e->columns * shf_core_dtype_size(c->problem.dtype);
  void *answers = NULL, *compact = NULL, *wide = NULL;
  shf_embedding_dispatch(e, at, e->bags.indices, e->bags.entries, d);
  int64_t asked = c->flow.status == SHEAF_OK ? d->asked_at[d->members] : 0;
  FLOW(&c->flow, shf_pool_get(&c->pool, asked * cell, &answers));
  FLOW(&c->flow, shf_pool_get(&c->pool, d->distinct * cell, &compact));
  FLOW(&c->flow, look_up(e, table, d->asked, asked, answers));
  if (c->strategy.dispatch) shf_flow_agree(&c->flow);
  SURELY(&c->flow, shf_dispatch_bring(d, answers, compact, cell));
  if (wanted != c->problem.dtype) {
    FLOW(&c->flow, shf_pool_get(&c->pool, d->distinct * e->columns * shf_core_dtype_size(wanted), &wide));
    if (c->flow.status == SHEAF_OK) shf_convert(c->problem.dtype, compact, wanted, wide, d->distinct * e->columns);
    compact = wide;
  }
  *rows = (shf_local_rows){wanted, compact, d->distinct, 0, d->distinct + 1, d->place, SHEAF_I64, 1};
}

/* ---- Local op ----------------------------------------------------------------------------------------------------- */

static sheaf_status run_local(shf_embedding_call *e, sheaf_embedding_kind kind, const shf_local_rows *rows, void *out,
                              void *arg)
{
  sheaf_embedding_desc desc;
  sheaf_embedding_args args;
  shf_local_embedding_parts parts;
  shf_embedding_local_op(e, kind, rows, &desc, &args, &parts);
  int64_t groups = kind == SHEAF_LOOKUP ? e->bags.entries : e->bags.bags;
  args.table = shf_local_matrix(&parts.table, rows->dtype, rows->data, rows->rows, e->columns);
  args.out = shf_local_matrix(&parts.out, rows->dtype, out, groups, e->columns);
  if (arg) args.arg = shf_local_matrix(&parts.arg, rows->index_dtype, arg, groups, e->columns);
  if (e->bags.weights) {
    desc.weighted = 1;
    const void *weights = e->bags.weights;
    if (rows->dtype != e->c.problem.dtype) {
      void *wide;
      SHF_TRY(shf_pool_get(&e->c.pool, e->bags.entries * shf_core_dtype_size(rows->dtype), &wide));
      shf_convert(e->c.problem.dtype, weights, rows->dtype, wide, e->bags.entries);
      weights = wide;
    }
    args.weights =
        shf_local_operand(&parts.weights, rows->dtype, weights, parts.indices.tensor.ndim, parts.indices.shape);
  }
  return shf_local_embedding(&desc, &args);
}

/* ---- Means: sums divided when they are complete ------------------------------------------------------------------ */

static void divide(sheaf_dtype acc, const char *sums, const char *divisors, int64_t bags, int64_t columns,
                   sheaf_dtype dtype, char *out)
{
  unsigned mode = shf_core_fp_enter();
  for (int64_t b = 0; b < bags; b++)
    for (int64_t d = 0; d < columns; d++) {
      double sum = shf_load(acc, sums, b * columns + d), divisor = shf_load(acc, divisors, b);
      double quotient = acc == SHEAF_F64 ? sum / divisor : (double)((float)sum / (float)divisor);
      shf_store(dtype, out, b * columns + d, quotient);
    }
  shf_core_fp_leave(mode);
}

/* The divisors of bags lie as the bags do, whatever happens to columns. */
static void bag_placements(const sheaf_mesh *mesh, const sheaf_placement *out, sheaf_placement *bags)
{
  for (int m = 0; m < mesh->dims; m++)
    bags[m] = out[m].kind == SHEAF_PLACE_SHARD && out[m].dim == 0 ? out[m] : sheaf_replicate();
}

static void finish_mean(shf_embedding_call *e, sheaf_dtensor **sums, sheaf_dtensor **out)
{
  shf_call *c = &e->c;
  sheaf_placement target[MAX_DIMS] = {{0}}, bags[MAX_DIMS] = {{0}};
  sheaf_dtensor *divisors = NULL;
  sheaf_dtensor_desc desc = SHEAF_DTENSOR_DESC_INIT;
  desc.mesh = (sheaf_mesh *)c->flow.mesh;
  desc.dtype = e->acc;
  desc.rank = 1;
  desc.shape[0] = c->problem.bags;
  bag_placements(c->flow.mesh, c->strategy.out, desc.placements);
  FLOW(&c->flow, sheaf_dtensor_create(&desc, &divisors));
  FLOW(&c->flow, shf_bags_divisors(c, e->desc, &e->bags, shf_dtensor_data(divisors)));
  shf_call_target(c, 1, target);
  bag_placements(c->flow.mesh, target, bags);
  FLOW(&c->flow, shf_call_output(c, c->problem.dtype, target, out));
  sheaf_dtensor_desc sums_desc = shf_call_desc(c, e->acc, c->strategy.out);
  shf_relocate(&c->flow, &sums_desc, sums, target);
  shf_relocate(&c->flow, &desc, &divisors, bags);
  if (c->flow.status == SHEAF_OK)
    divide(e->acc, shf_dtensor_data(*sums), shf_dtensor_data(divisors), (*sums)->local_shape[0],
           (*sums)->local_shape[1], c->problem.dtype, shf_dtensor_data(*out));
  sheaf_dtensor_free(divisors);
}

/* ---- Maxima: (value, row) pairs ---------------------------------------------------------------------------------- */

/* What is needed to choose between two pairs. */
typedef struct contest {
  const shf_embedding_call *e;
  int64_t value_bytes, index_bytes;
} contest;

static int64_t row_of(const contest *t, const char *pair)
{
  int32_t narrow;
  int64_t wide;
  memcpy(&narrow, pair + t->value_bytes, 4);
  if (t->index_bytes == 4) return narrow;
  memcpy(&wide, pair + t->value_bytes, 8);
  return wide;
}

static double value_of(const contest *t, const char *pair)
{
  uint64_t bits[1] = {0};
  memcpy(bits, pair, (size_t)t->value_bytes);
  return shf_load(t->e->c.problem.dtype, bits, 0);
}

/* Which of two rows a bag names first. */
static int comes_first(const shf_embedding_call *e, int64_t bag, int64_t row, int64_t other)
{
  for (int64_t i = shf_bag_begin(&e->bags, bag); i < shf_bag_begin(&e->bags, bag + 1); i++) {
    int64_t index = shf_load_index(e->c.problem.index_dtype, e->bags.indices, i);
    if (index == row) return 1;
    if (index == other) return 0;
  }
  return 0;
}

/* A rank without entries has row -1 and loses to any; a NaN wins; equals go by their place in the bag. */
static void fold_pairs(void *context, char *total, const char *term, int64_t first, int64_t cells)
{
  const contest *t = context;
  int64_t bytes = t->value_bytes + t->index_bytes;
  for (int64_t i = 0; i < cells; i++, total += bytes, term += bytes) {
    int64_t mine = row_of(t, total), theirs = row_of(t, term);
    if (theirs < 0) continue;
    double a = value_of(t, total), b = value_of(t, term);
    int tie = (isnan(a) && isnan(b)) || a == b;
    int wins = mine < 0 ||
               (tie ? comes_first(t->e, (first + i) / t->e->columns, theirs, mine) : !isnan(a) && (isnan(b) || b > a));
    if (wins) memcpy(total, term, (size_t)bytes);
  }
}

static void finish_max(shf_embedding_call *e, const char *values, const char *rows, sheaf_dtensor **out,
                       sheaf_dtensor **arg)
{
  shf_call *c = &e->c;
  contest t = {e, shf_core_dtype_size(c->problem.dtype), shf_core_dtype_size(c->problem.index_dtype)};
  shf_array pairs = {.mesh = c->flow.mesh, .rank = 2, .shape = {c->problem.bags, c->problem.dim}};
  pairs.cell = t.value_bytes + t.index_bytes;
  pairs.reducer = (shf_reducer){.kind = SHF_REDUCE_OTHER, .fold = fold_pairs, .context = &t};
  memcpy(pairs.at, c->strategy.out, sizeof pairs.at);
  int64_t cells = shf_array_cells(&pairs);
  sheaf_placement whole[MAX_DIMS] = {{0}};
  for (int m = 0; m < c->flow.mesh->dims; m++)
    whole[m] = shf_is_partial(&c->strategy.out[m]) ? sheaf_replicate() : c->strategy.out[m];
  void *memory = NULL;
  shf_move move = {0};
  FLOW(&c->flow, shf_pool_get(&c->pool, cells * pairs.cell, &memory));
  pairs.data = memory;
  for (int64_t i = 0; c->flow.status == SHEAF_OK && i < cells; i++) {
    memcpy(pairs.data + i * pairs.cell, values + i * t.value_bytes, (size_t)t.value_bytes);
    memcpy(pairs.data + i * pairs.cell + t.value_bytes, rows + i * t.index_bytes, (size_t)t.index_bytes);
  }
  FLOW(&c->flow, shf_move_prepare(&move, &pairs, whole, 1));
  FLOW(&c->flow, shf_call_output(c, c->problem.dtype, whole, out));
  FLOW(&c->flow, shf_call_output(c, c->problem.index_dtype, whole, arg));
  if (shf_flow_agree(&c->flow)) SURELY(&c->flow, shf_move_run(&move));
  for (int64_t i = 0; c->flow.status == SHEAF_OK && i < cells; i++) {
    const char *pair = move.result.data + i * pairs.cell;
    memcpy(shf_dtensor_data(*out) + i * t.value_bytes, pair, (size_t)t.value_bytes);
    memcpy(shf_dtensor_data(*arg) + i * t.index_bytes, pair + t.value_bytes, (size_t)t.index_bytes);
  }
  shf_move_free(&move);
}

/* Rows under new numbers get their own ones back. */
static void restore_rows(const shf_embedding_call *e, const shf_dispatch *d, const int64_t *places, char *rows,
                         int64_t cells)
{
  for (int64_t i = 0; i < cells; i++)
    shf_store_index(e->c.problem.index_dtype, rows, i, places[i] < 0 ? -1 : d->ids[places[i]]);
}

static void run_max(shf_embedding_call *e, const shf_local_rows *rows, const shf_dispatch *d, sheaf_dtensor **out,
                    sheaf_dtensor **arg)
{
  shf_call *c = &e->c;
  int partial = shf_call_is_partial(c);
  int64_t cells = e->bags.bags * e->columns;
  void *values = NULL, *found = NULL, *numbers = NULL;
  if (partial) {
    FLOW(&c->flow, shf_pool_get(&c->pool, cells * shf_core_dtype_size(c->problem.dtype), &values));
    FLOW(&c->flow, shf_pool_get(&c->pool, cells * shf_core_dtype_size(c->problem.index_dtype), &found));
  } else {
    FLOW(&c->flow, shf_call_output(c, c->problem.dtype, c->strategy.out, out));
    FLOW(&c->flow, shf_call_output(c, c->problem.index_dtype, c->strategy.out, arg));
    if (c->flow.status == SHEAF_OK) values = shf_dtensor_data(*out), found = shf_dtensor_data(*arg);
  }
  if (rows->renumbered) FLOW(&c->flow, shf_pool_get(&c->pool, cells * (int64_t)sizeof(int64_t), &numbers));
  FLOW(&c->flow, run_local(e, SHEAF_BAG_MAX, rows, values, rows->renumbered ? numbers : found));
  if (rows->renumbered && c->flow.status == SHEAF_OK) restore_rows(e, d, numbers, found, cells);
  if (partial) finish_max(e, values, found, out, arg);
}

/* ---- All kinds ----------------------------------------------------------------------------------------------------- */

void shf_embedding_forward(shf_embedding_call *e)
{
  shf_call *c = &e->c;
  sheaf_embedding_kind kind = e->desc->kind;
  sheaf_dtensor *out = NULL, *arg = NULL, *sums = NULL;
  shf_dispatch d = {0};
  int partial = shf_call_is_partial(c), mean = kind == SHEAF_BAG_MEAN && partial;
  const sheaf_dtensor *table = shf_call_bring(c, e->args->table, c->strategy.in[0]);
  shf_local_rows rows = {0};
  if (is_compact(e)) {
    int widens = partial && kind != SHEAF_LOOKUP && kind != SHEAF_BAG_MAX;
    shf_embedding_compact(e, table, c->strategy.in[0], widens ? e->acc : c->problem.dtype, &d, &rows);
  } else if (c->flow.status == SHEAF_OK) {
    rows = (shf_local_rows){c->problem.dtype, shf_dtensor_data(table), e->row_hi - e->row_lo,  e->row_lo,
                            c->problem.rows,  e->bags.indices,         c->problem.index_dtype, 0};
  }
  sheaf_placement target[MAX_DIMS] = {{0}}, now[MAX_DIMS] = {{0}};
  memcpy(now, c->strategy.out, sizeof now); /* where the result lies before it is delivered */
  if (kind == SHEAF_BAG_MAX) {
    run_max(e, &rows, &d, &out, &arg);
    for (int m = 0; m < MAX_DIMS; m++)
      if (shf_is_partial(&now[m])) now[m] = sheaf_replicate();
  } else if (mean) { /* acc sums, divided when complete */
    FLOW(&c->flow, shf_call_output(c, e->acc, c->strategy.out, &sums));
    FLOW(&c->flow, run_local(e, SHEAF_BAG_SUM, &rows, shf_dtensor_data(sums), NULL));
    finish_mean(e, &sums, &out);
    shf_call_target(c, 1, now);
  } else {
    FLOW(&c->flow, shf_call_output(c, c->problem.dtype, c->strategy.out, &out));
    FLOW(&c->flow, run_local(e, kind, &rows, shf_dtensor_data(out), NULL));
  }
  int completes = !c->wanted && (kind == SHEAF_BAG_MEAN || kind == SHEAF_BAG_MAX);
  shf_call_target(c, completes, target);
  sheaf_dtensor_desc out_desc = shf_call_desc(c, c->problem.dtype, now);
  sheaf_dtensor_desc arg_desc = shf_call_desc(c, c->problem.index_dtype, now);
  shf_relocate(&c->flow, &out_desc, &out, target);
  if (kind == SHEAF_BAG_MAX && e->args->arg_out) shf_relocate(&c->flow, &arg_desc, &arg, target);
  int well = shf_flow_settle(&c->flow);
  if (well) *e->args->out = out;
  if (well && kind == SHEAF_BAG_MAX && e->args->arg_out) *e->args->arg_out = arg;
  if (!well) sheaf_dtensor_free(out);
  if (!well || !e->args->arg_out) sheaf_dtensor_free(arg);
  sheaf_dtensor_free(sums);
}
/* NOLINTEND(clang-analyzer-core.*) */
