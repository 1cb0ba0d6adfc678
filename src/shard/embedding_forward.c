/* shard/embedding_forward.c: lookups and bags, forward: rows are brought here if need be, the local op runs, and what
 * ranks have of the result becomes one. */
#include <math.h>
#include <string.h>

#include "shard/dispatch_bags.h"

/* NOLINTBEGIN(clang-analyzer-core.*): the analyzer does not see that a flow which failed stays failed. */

static int is_sum(sheaf_embedding_kind kind) { return kind == SHEAF_BAG_SUM || kind == SHEAF_BAG_MEAN; }

/* What the local op writes: sums that are not complete stay in acc. */
static sheaf_dtype local_type(const shf_embedding_call *e)
{
  return is_sum(e->desc->kind) && shf_call_is_partial(&e->c) ? e->acc : e->c.values;
}

/* Whether rows must be renumbered before the local op: they come from other ranks, or they are 16-bit rows whose sums
 * are to be f32, which the kernels give for f32 rows only. */
static int is_compact(const shf_embedding_call *e)
{
  return e->c.strategy.dispatch || (local_type(e) != e->c.values && !e->quantised);
}

/* ---- Local op ---------------------------------------------------------------------------------------------------- */

static sheaf_status run_local(shf_embedding_call *e, sheaf_embedding_kind kind, const shf_local_rows *rows, void *out,
                              void *arg)
{
  sheaf_embedding_desc desc;
  sheaf_embedding_args args;
  shf_local_embedding_parts parts;
  shf_site site = e->c.site;
  sheaf_dtype made = local_type(e);
  shf_embedding_local_op(e, kind, rows, &desc, &args, &parts);
  if (e->quantised) desc.out_dtype = made;
  int64_t groups = kind == SHEAF_LOOKUP ? e->bags.entries : e->bags.bags;
  args.table = shf_embedding_table(e, rows, &parts.table);
  args.out = shf_local_matrix(&parts.out, site, made, out, groups, e->columns);
  if (arg) args.arg = shf_local_matrix(&parts.arg, site, rows->index_dtype, arg, groups, e->columns);
  if (e->bags.weights) {
    desc.weighted = 1;
    const void *weights;
    sheaf_dtype type = e->quantised ? SHEAF_F32 : rows->dtype;
    SHF_TRY(shf_call_convert(&e->c, e->c.weights, e->bags.weights, type, e->bags.entries, &weights));
    args.weights =
        shf_local_operand(&parts.weights, site, type, weights, parts.indices.tensor.ndim, parts.indices.shape);
  }
  return shf_local_embedding(site, &desc, &args);
}

sheaf_status shf_embedding_sum(shf_embedding_call *e, const sheaf_dtensor *table, void *sums)
{
  shf_call *c = &e->c;
  sheaf_strategy strategy = c->strategy;
  shf_dispatch d;
  shf_local_rows rows = {0};
  /* To the rest of this file it is a table cut by rows: nothing is dispatched any more, and sums are not complete. */
  for (int m = 0; m < c->flow.mesh->dims; m++)
    if (strategy.dispatch >> m & 1) c->strategy.out[m] = sheaf_partial(SHEAF_PARTIAL_SUM);
  c->strategy.dispatch = 0;
  shf_flow flow = c->flow; /* a rank's own work: nothing is agreed on in here */
  if (is_compact(e)) {
    shf_embedding_group(e, strategy.in[0], e->bags.host.indices, e->bags.entries, &d);
    shf_embedding_compact(e, table, e->acc, &d, &rows);
  } else {
    rows = shf_embedding_rows(e, table);
  }
  FLOW(&c->flow, run_local(e, SHEAF_BAG_SUM, &rows, sums, NULL));
  sheaf_status status = c->flow.status;
  c->flow = flow;
  c->strategy = strategy;
  return status;
}

/* ---- Means: sums divided when they are complete ------------------------------------------------------------------ */

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
  void *numbers = NULL;
  int64_t bytes = e->bags.bags * shf_core_dtype_size(e->acc);
  sheaf_dtensor_desc desc = SHEAF_DTENSOR_DESC_INIT;
  desc.mesh = (sheaf_mesh *)c->flow.mesh;
  desc.device = c->site.device;
  desc.dtype = e->acc;
  desc.rank = 1;
  desc.shape[0] = c->problem.bags;
  bag_placements(c->flow.mesh, c->strategy.out, desc.placements);
  FLOW(&c->flow, shf_dtensor_make(&desc, 0, &divisors));
  FLOW(&c->flow, shf_pool_get(&c->pool, bytes, &numbers));
  FLOW(&c->flow, shf_bags_divisors(c, e->desc, &e->bags, numbers));
  FLOW(&c->flow, shf_space_write(c->site.device, shf_dtensor_data(divisors), numbers, bytes));
  shf_call_target(c, 1, target);
  bag_placements(c->flow.mesh, target, bags);
  FLOW(&c->flow, shf_call_output(c, c->values, target, out));
  sheaf_dtensor_desc sums_desc = shf_call_desc(c, e->acc, c->strategy.out);
  shf_relocate(&c->flow, &sums_desc, sums, target);
  shf_relocate(&c->flow, &desc, &divisors, bags);
  if (c->flow.status == SHEAF_OK)
    SURELY(&c->flow,
           shf_space_divide(c->site.device, shf_dtensor_data(*sums), shf_dtensor_data(divisors),
                            (*sums)->local_shape[0], (*sums)->local_shape[1], c->values, shf_dtensor_data(*out)));
  sheaf_dtensor_free(divisors);
}

/* ---- Maxima: (value, row) pairs ---------------------------------------------------------------------------------- */

/* What is needed to choose between two pairs. */
typedef struct contest {
  const shf_embedding_call *e;
  int64_t value_bytes, index_bytes;
  int64_t first_bag, width; /* of the cells that are compared: bag and columns of the first row */
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
  return shf_load(t->e->c.values, bits, 0);
}

/* Which of two rows a bag names first. */
static int comes_first(const shf_embedding_call *e, int64_t bag, int64_t row, int64_t other)
{
  for (int64_t i = shf_bag_begin(&e->bags, bag); i < shf_bag_begin(&e->bags, bag + 1); i++) {
    int64_t index = shf_load_index(e->c.problem.index_dtype, e->bags.host.indices, i);
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
    int wins = mine < 0 || (tie ? comes_first(t->e, t->first_bag + (first + i) / t->width, theirs, mine)
                                : !isnan(a) && (isnan(b) || b > a));
    if (wins) memcpy(total, term, (size_t)bytes);
  }
}

/* Pairs of a value and the row it comes from. They are compared by the CPU. */
static sheaf_status make_pairs(shf_embedding_call *e, const contest *t, const void *values, const void *rows,
                               shf_array *pairs)
{
  shf_call *c = &e->c;
  int64_t cells = shf_array_cells(pairs);
  void *memory = NULL;
  SHF_TRY(shf_bags_read(c, &e->bags));
  SHF_TRY(shf_call_read(c, values, cells * t->value_bytes, &values));
  SHF_TRY(shf_call_read(c, rows, cells * t->index_bytes, &rows));
  SHF_TRY(shf_pool_get(&c->pool, cells * pairs->cell, &memory));
  pairs->data = memory;
  for (int64_t i = 0; i < cells; i++) {
    memcpy(pairs->data + i * pairs->cell, (const char *)values + i * t->value_bytes, (size_t)t->value_bytes);
    memcpy(pairs->data + i * pairs->cell + t->value_bytes, (const char *)rows + i * t->index_bytes,
           (size_t)t->index_bytes);
  }
  return SHEAF_OK;
}

static sheaf_status split_pairs(shf_call *c, const contest *t, const shf_array *pairs, sheaf_dtensor *out,
                                sheaf_dtensor *arg)
{
  int64_t cells = shf_array_cells(pairs);
  int host = shf_is_host(c->site.device);
  void *values = shf_dtensor_data(out), *rows = shf_dtensor_data(arg);
  if (!host) SHF_TRY(shf_pool_get(&c->pool, cells * t->value_bytes, &values));
  if (!host) SHF_TRY(shf_pool_get(&c->pool, cells * t->index_bytes, &rows));
  for (int64_t i = 0; i < cells; i++) {
    const char *pair = pairs->data + i * pairs->cell;
    memcpy((char *)values + i * t->value_bytes, pair, (size_t)t->value_bytes);
    memcpy((char *)rows + i * t->index_bytes, pair + t->value_bytes, (size_t)t->index_bytes);
  }
  SHF_TRY(shf_space_write(c->site.device, shf_dtensor_data(out), values, cells * t->value_bytes));
  return shf_space_write(c->site.device, shf_dtensor_data(arg), rows, cells * t->index_bytes);
}

static void finish_max(shf_embedding_call *e, const void *values, const void *rows, const sheaf_placement *at,
                       sheaf_dtensor **out, sheaf_dtensor **arg)
{
  shf_call *c = &e->c;
  contest t = {e, shf_core_dtype_size(c->values), shf_core_dtype_size(c->problem.index_dtype), 0, e->columns};
  shf_array pairs = {.mesh = c->flow.mesh, .device = shf_host(), .rank = 2};
  pairs.shape[0] = c->problem.bags;
  pairs.shape[1] = c->problem.dim;
  pairs.cell = t.value_bytes + t.index_bytes;
  pairs.reducer = (shf_reducer){.kind = SHF_FOLD_MAX, .fold = fold_pairs, .context = &t};
  memcpy(pairs.at, c->strategy.out, sizeof pairs.at);
  shf_box had = shf_shard_box(c->flow.mesh, c->strategy.out, 2, pairs.shape, c->flow.mesh->rank);
  shf_box gets = shf_shard_box(c->flow.mesh, at, 2, pairs.shape, c->flow.mesh->rank);
  for (int m = 0; m < c->flow.mesh->dims; m++)
    if (shf_is_partial(&c->strategy.out[m]) && shf_is_shard(&at[m])) { /* a reduce-scatter: by its parts */
      t.first_bag = gets.lo[0] - had.lo[0];
      t.width = gets.hi[1] - gets.lo[1];
    }
  if (t.width < 1) t.width = 1; /* nothing is compared then */
  shf_move move = {0};
  FLOW(&c->flow, make_pairs(e, &t, values, rows, &pairs));
  FLOW(&c->flow, shf_move_prepare(&move, &pairs, at));
  FLOW(&c->flow, shf_call_output(c, c->values, at, out));
  FLOW(&c->flow, shf_call_output(c, c->problem.index_dtype, at, arg));
  if (shf_flow_agree(&c->flow)) SURELY(&c->flow, shf_move_run(&move));
  FLOW(&c->flow, split_pairs(c, &t, &move.result, *out, *arg));
  shf_move_free(&move);
}

/* Rows under new numbers get their own ones back. */
static sheaf_status restore_rows(shf_embedding_call *e, const shf_dispatch *d, const void *places, void *rows,
                                 int64_t cells)
{
  shf_call *c = &e->c;
  sheaf_dtype index = c->problem.index_dtype;
  const void *numbers;
  void *host = rows;
  int64_t bytes = cells * shf_core_dtype_size(index);
  SHF_TRY(shf_call_read(c, places, cells * shf_number_bytes(d), &numbers));
  if (!shf_is_host(c->site.device)) SHF_TRY(shf_pool_get(&c->pool, bytes, &host));
  for (int64_t i = 0; i < cells; i++) {
    int64_t place = shf_load_index(d->number, numbers, i);
    shf_store_index(index, host, i, place < 0 ? -1 : shf_load_index(d->number, d->ids, place));
  }
  return shf_space_write(c->site.device, rows, host, bytes);
}

static void run_max(shf_embedding_call *e, const shf_local_rows *rows, const shf_dispatch *d, const sheaf_placement *at,
                    sheaf_dtensor **out, sheaf_dtensor **arg)
{
  shf_call *c = &e->c;
  int partial = shf_call_is_partial(c);
  int64_t cells = e->bags.bags * e->columns;
  void *values = NULL, *found = NULL, *numbers = NULL;
  if (partial) {
    FLOW(&c->flow, shf_call_get(c, cells * shf_core_dtype_size(c->values), &values));
    FLOW(&c->flow, shf_call_get(c, cells * shf_core_dtype_size(c->problem.index_dtype), &found));
  } else {
    FLOW(&c->flow, shf_call_output(c, c->values, c->strategy.out, out));
    FLOW(&c->flow, shf_call_output(c, c->problem.index_dtype, c->strategy.out, arg));
    if (c->flow.status == SHEAF_OK) values = shf_dtensor_data(*out), found = shf_dtensor_data(*arg);
  }
  int renumbered = is_compact(e);
  if (renumbered) FLOW(&c->flow, shf_call_get(c, cells * shf_number_bytes(d), &numbers));
  FLOW(&c->flow, run_local(e, SHEAF_BAG_MAX, rows, values, renumbered ? numbers : found));
  if (renumbered) FLOW(&c->flow, restore_rows(e, d, numbers, found, cells));
  if (partial) finish_max(e, values, found, at, out, arg);
}

/* ---- All kinds --------------------------------------------------------------------------------------------------- */

/* Sums over bags whose pieces were summed where rows are; a mean's are divided, since its bags are all here. */
static sheaf_status finish_pieces(shf_embedding_call *e, const void *total, sheaf_dtensor *out)
{
  shf_call *c = &e->c;
  int64_t bags = e->bags.bags;
  void *divisors;
  const void *there;
  if (e->desc->kind == SHEAF_BAG_SUM)
    return shf_space_convert(c->site.device, e->acc, total, local_type(e), shf_dtensor_data(out), bags * e->columns);
  SHF_TRY(shf_pool_get(&c->pool, bags * shf_core_dtype_size(e->acc), &divisors));
  SHF_TRY(shf_bags_divisors(c, e->desc, &e->bags, divisors));
  SHF_TRY(shf_call_write(c, divisors, bags * shf_core_dtype_size(e->acc), &there));
  return shf_space_divide(c->site.device, total, there, bags, e->columns, c->values, shf_dtensor_data(out));
}

/* Dispatched by pieces: those of this rank's bags. */
typedef struct by_pieces {
  shf_dispatch d;
  shf_pieces p;
  int used;
} by_pieces;

/* Sums and means. */
static void run_sums(shf_embedding_call *e, const sheaf_dtensor *table, const shf_local_rows *rows, by_pieces *pieces,
                     sheaf_dtensor **out)
{
  shf_call *c = &e->c;
  sheaf_dtensor *sums = NULL;
  int mean = e->desc->kind == SHEAF_BAG_MEAN && shf_call_is_partial(c); /* divided when its sums are complete */
  sheaf_dtensor **made = mean ? &sums : out;
  FLOW(&c->flow, shf_call_output(c, mean ? e->acc : c->values, c->strategy.out, made));
  if (!pieces->used) {
    FLOW(&c->flow, run_local(e, mean ? SHEAF_BAG_SUM : e->desc->kind, rows, shf_dtensor_data(*made), NULL));
  } else {
    int direct = mean || (e->desc->kind == SHEAF_BAG_SUM && local_type(e) == e->acc); /* sums are the result */
    void *total = direct ? shf_dtensor_data(*made) : NULL;
    if (!direct) FLOW(&c->flow, shf_call_get(c, e->bags.bags * e->columns * shf_core_dtype_size(e->acc), &total));
    shf_pieces_sum(e, &pieces->d, &pieces->p, table, total);
    if (!direct) FLOW(&c->flow, finish_pieces(e, total, *out));
  }
  if (mean) finish_mean(e, &sums, out);
  sheaf_dtensor_free(sums);
}

void shf_embedding_forward(shf_embedding_call *e)
{
  shf_call *c = &e->c;
  sheaf_embedding_kind kind = e->desc->kind;
  sheaf_dtensor *out = NULL, *arg = NULL;
  by_pieces pieces = {.used = 0};
  shf_dispatch *d = &pieces.d;
  const sheaf_dtensor *table = shf_call_bring(c, e->args->table, c->strategy.in[0]);
  shf_local_rows rows = {0};
  if (is_compact(e)) {
    int64_t weight = e->bags.weights ? shf_core_dtype_size(c->weights) : 0;
    FLOW(&c->flow, shf_bags_read(c, &e->bags));
    shf_embedding_group(e, c->strategy.in[0], e->bags.host.indices, e->bags.entries, d);
    if (c->strategy.dispatch && is_sum(kind) && !c->exact)
      pieces.used =
          shf_pieces_are_less(e, d, e->columns * shf_core_dtype_size(e->acc), e->row_bytes, weight, &pieces.p);
    if (shf_embedding_is_copied(e))
      shf_embedding_copy(e, table, d, &out);
    else if (!pieces.used)
      shf_embedding_compact(e, table, local_type(e), d, &rows);
  } else if (c->flow.status == SHEAF_OK) {
    rows = shf_embedding_rows(e, table);
  }
  sheaf_placement target[MAX_DIMS] = {{0}}, now[MAX_DIMS] = {{0}};
  memcpy(now, c->strategy.out, sizeof now); /* where the result lies before it is delivered */
  if (kind == SHEAF_BAG_MAX) {
    shf_call_complete(c, now);
    run_max(e, &rows, d, now, &out, &arg);
  } else if (!shf_embedding_is_copied(e)) {
    run_sums(e, table, &rows, &pieces, &out);
    if (kind == SHEAF_BAG_MEAN && shf_call_is_partial(c)) shf_call_target(c, 1, now);
  }
  int completes = !c->wanted && (kind == SHEAF_BAG_MEAN || kind == SHEAF_BAG_MAX);
  shf_call_target(c, completes, target);
  sheaf_dtensor_desc out_desc = shf_call_desc(c, c->values, now);
  sheaf_dtensor_desc arg_desc = shf_call_desc(c, c->problem.index_dtype, now);
  shf_relocate(&c->flow, &out_desc, &out, target);
  if (kind == SHEAF_BAG_MAX && e->args->arg_out) shf_relocate(&c->flow, &arg_desc, &arg, target);
  shf_flow_wait(&c->flow, c->site.device);
  int well = shf_flow_settle(&c->flow);
  if (well) *e->args->out = out;
  if (well && kind == SHEAF_BAG_MAX && e->args->arg_out) *e->args->arg_out = arg;
  if (!well) sheaf_dtensor_free(out);
  if (!well || !e->args->arg_out) sheaf_dtensor_free(arg);
}
/* NOLINTEND(clang-analyzer-core.*) */
