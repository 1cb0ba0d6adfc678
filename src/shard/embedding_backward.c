/* shard/embedding_backward.c: gradients of tables: the local op runs, gradients of rows that lie elsewhere travel to
 * them, and what is partial becomes one.
 *
 * Whatever has to be added to other ranks' terms is computed and kept in acc, and rounded when it is complete. */
#include <string.h>

#include "core/cpu.h"
#include "shard/dispatch_bags.h"

/* NOLINTBEGIN(clang-analyzer-core.*): the analyzer does not see that a flow which failed stays failed. */

/* One backward call's own. */
typedef struct gradient {
  shf_embedding_call *e;
  sheaf_dtype dtype;    /* that the local op computes in */
  sheaf_dtype held;     /* that the gradient comes in */
  const void *grad_out; /* of the one, then of the other */
  const void *arg;      /* BAG_MAX_BACKWARD; as the CPU sees it: host_arg */
  const void *host_arg;
  shf_dispatch d;
  int is_grouped;      /* d is, already */
  int has_asked;       /* and owners know which rows */
  shf_local_rows rows; /* the gradient the local op makes */
  void *terms, *total; /* dispatched: what others send of this rank's rows; and their sum, of acc */
  shf_row_merge merge;
  const void *coefficients; /* per entry, of dtype, when frequencies span ranks; NULL: the local op knows them */
  const void *weights;      /* per entry, of dtype; NULL: none, or not made yet */
  sheaf_dtensor *out;
} gradient;

/* A local op, ready to run. */
typedef struct local_op {
  sheaf_embedding_args args;
  shf_local_embedding_parts parts;
  shf_ready ready;
} local_op;

static int is_cut(const sheaf_placement *placements, const sheaf_mesh *mesh)
{
  for (int m = 0; m < mesh->dims; m++)
    if (shf_is_shard(&placements[m])) return 1;
  return 0;
}

/* ---- Frequencies over ranks ------------------------------------------------------------------------------------- */

/* Occurrences of this rank's rows, added over the mesh dimensions along which indices are cut but not dispatched. */
static void add_frequencies(shf_call *c, int64_t *counts)
{
  shf_array array = {.mesh = c->flow.mesh, .device = shf_host(), .rank = 1, .cell = sizeof *counts};
  array.shape[0] = c->problem.rows;
  array.reducer = (shf_reducer){.kind = SHF_FOLD_SUM, .dtype = SHEAF_I64};
  sheaf_placement whole[MAX_DIMS] = {{0}};
  int sums = 0;
  for (int m = 0; m < c->flow.mesh->dims; m++) {
    const sheaf_placement *out = &c->strategy.out[m];
    if (out->kind == SHEAF_PLACE_SHARD && out->dim == 0)
      array.at[m] = whole[m] = *out;
    else if (shf_is_shard(&c->strategy.in[1][m]))
      array.at[m] = sheaf_partial(SHEAF_PARTIAL_SUM), sums = 1;
  }
  if (!sums) return;
  array.data = (char *)counts;
  shf_move move = {0};
  FLOW(&c->flow, shf_move_prepare(&move, &array, whole));
  if (shf_flow_agree(&c->flow)) SURELY(&c->flow, shf_move_run(&move));
  if (c->flow.status == SHEAF_OK && move.result_is_own && shf_array_cells(&array))
    memcpy(counts, move.result.data, (size_t)shf_array_bytes(&array));
  shf_move_free(&move);
}

static sheaf_status get_numbers(shf_call *c, int64_t count, int64_t **numbers)
{
  void *memory;
  SHF_TRY(shf_pool_get(&c->pool, (count + 1) * (int64_t)sizeof **numbers, &memory));
  memset(memory, 0, (size_t)(count + 1) * sizeof **numbers);
  *numbers = memory;
  return SHEAF_OK;
}

/* How often the row of each distinct index occurs anywhere; d->distinct numbers. Rows were asked for already. */
static void find_frequencies(gradient *g, int64_t **frequencies)
{
  shf_embedding_call *e = g->e;
  shf_call *c = &e->c;
  shf_dispatch *d = &g->d;
  int64_t *counts = NULL, *answers = NULL, *here = NULL, rows = e->row_hi - e->row_lo;
  int64_t asked = shf_dispatch_asked(&c->flow, d);
  FLOW(&c->flow, get_numbers(c, rows, &counts));
  FLOW(&c->flow, get_numbers(c, asked, &answers));
  FLOW(&c->flow, get_numbers(c, d->distinct, &here));
  for (int64_t i = 0; c->flow.status == SHEAF_OK && i < d->entries; i++) {
    int64_t place = shf_load_index(d->number, d->place, i);
    if (place >= 0 && place < d->distinct) here[place]++;
  }
  if (c->strategy.dispatch) shf_flow_agree(&c->flow);
  SURELY(&c->flow, shf_dispatch_return(d, shf_host(), here, answers, sizeof *here));
  for (int64_t i = 0; c->flow.status == SHEAF_OK && i < asked; i++)
    counts[shf_load_index(d->number, d->asked, i) - e->row_lo] += answers[i];
  for (int64_t k = d->away; c->flow.status == SHEAF_OK && k < d->distinct; k++)
    counts[shf_load_index(d->number, d->ids, k) - e->row_lo] += here[k];
  add_frequencies(c, counts);
  for (int64_t i = 0; c->flow.status == SHEAF_OK && i < asked; i++)
    answers[i] = counts[shf_load_index(d->number, d->asked, i) - e->row_lo];
  for (int64_t k = d->away; c->flow.status == SHEAF_OK && k < d->distinct; k++)
    here[k] = counts[shf_load_index(d->number, d->ids, k) - e->row_lo];
  SURELY(&c->flow, shf_dispatch_bring(d, shf_host(), answers, here, sizeof *here));
  *frequencies = here;
}

/* Rounded to acc. */
static double rounded(sheaf_dtype acc, double value) { return acc == SHEAF_F64 ? value : (double)(float)value; }

/* The coefficient of each entry, with its frequency in it if those are given, in the roundings that semantics.md gives.
 * Quotients and products of f32 values are exact enough in f64 that rounding them again gives what f32 arithmetic
 * gives. On the CPU. */
static sheaf_status find_coefficients(gradient *g, const int64_t *frequencies, void **found)
{
  shf_embedding_call *e = g->e;
  shf_bags *bags = &e->bags;
  int mean = e->desc->kind == SHEAF_BAG_MEAN_BACKWARD;
  void *coefficients, *divisors = NULL;
  SHF_TRY(shf_pool_get(&e->c.pool, bags->entries * shf_core_dtype_size(e->acc), &coefficients));
  if (mean) {
    SHF_TRY(shf_pool_get(&e->c.pool, bags->bags * shf_core_dtype_size(e->acc), &divisors));
    SHF_TRY(shf_bags_divisors(&e->c, e->desc, bags, divisors));
  }
  unsigned mode = shf_core_fp_enter();
  int64_t groups = bags->bags ? bags->bags : bags->entries;
  for (int64_t b = 0; b < groups; b++) {
    int64_t first = bags->bags ? shf_bag_begin(bags, b) : b, last = bags->bags ? shf_bag_begin(bags, b + 1) : b + 1;
    for (int64_t i = first; i < last; i++) {
      int64_t place = frequencies ? shf_load_index(g->d.number, g->d.place, i) : -1;
      double value = bags->weights ? shf_load(e->c.weights, bags->host.weights, i) : 1;
      if (mean) value = rounded(e->acc, value / shf_load(e->acc, divisors, b));
      if (place >= 0 && place < g->d.distinct)
        value = rounded(e->acc, value * rounded(e->acc, 1 / (double)frequencies[place]));
      shf_store(e->acc, coefficients, i, value);
    }
  }
  shf_core_fp_leave(mode);
  *found = coefficients;
  return SHEAF_OK;
}

/* ---- Local op --------------------------------------------------------------------------------------------------- */

static sheaf_status prepare_local(gradient *g, const shf_local_rows *rows, local_op *op)
{
  shf_embedding_call *e = g->e;
  sheaf_embedding_kind kind = g->coefficients ? SHEAF_BAG_SUM_BACKWARD : e->desc->kind;
  sheaf_embedding_desc desc;
  sheaf_embedding_args *args = &op->args;
  shf_local_embedding_parts *parts = &op->parts;
  shf_site site = e->c.site;
  shf_bags bags = e->bags;
  if (g->coefficients && bags.bags == 0 && e->desc->kind == SHEAF_LOOKUP_BACKWARD) { /* a lookup is bags of one entry */
    e->bags.bags = e->bags.entries;
    e->bags.length = 1;
  }
  shf_embedding_local_op(e, kind, rows, &desc, args, parts);
  int64_t groups = kind == SHEAF_LOOKUP_BACKWARD ? e->bags.entries : e->bags.bags;
  e->bags = bags;
  desc.scale_grad_by_freq = g->coefficients ? 0 : e->desc->scale_grad_by_freq;
  args->grad_out = shf_local_matrix(&parts->grad_out, site, g->dtype, g->grad_out, groups, e->columns);
  args->table_grad = shf_local_matrix(&parts->table_grad, site, g->dtype, rows->data, rows->rows, e->columns);
  if (kind == SHEAF_BAG_MAX_BACKWARD) {
    args->indices.tensor = NULL;
    args->arg = shf_local_matrix(&parts->arg, site, rows->index_dtype, rows->indices, groups, e->columns);
  }
  if (!g->coefficients && bags.weights && !g->weights)
    SHF_TRY(shf_call_convert(&e->c, e->c.weights, bags.weights, g->dtype, bags.entries, &g->weights));
  const void *weights = g->coefficients ? g->coefficients : g->weights;
  if (weights) {
    desc.weighted = 1;
    args->weights =
        shf_local_operand(&parts->weights, site, g->dtype, weights, parts->indices.tensor.ndim, parts->indices.shape);
  }
  return shf_local_ready(site, &e->c.pool, &desc, &op->ready);
}

static sheaf_status run_local(gradient *g)
{
  local_op op;
  SHF_TRY(prepare_local(g, &g->rows, &op));
  return shf_local_run(&op.ready, &op.args);
}

/* ---- Rows elsewhere --------------------------------------------------------------------------------------------- */

/* Memory for gradients of the distinct rows, this rank's own among them, and for what others send. */
static void place_dispatched(gradient *g)
{
  shf_embedding_call *e = g->e;
  shf_call *c = &e->c;
  const shf_dispatch *d = &g->d;
  int own = shf_call_is_partial(c) || e->acc == c->values; /* whether the output is kept in acc */
  int64_t cell = e->columns * shf_core_dtype_size(e->acc), asked = shf_dispatch_asked(&c->flow, d);
  void *compact = NULL;
  const void *place = NULL;
  FLOW(&c->flow, shf_call_get(c, d->distinct * cell, &compact));
  FLOW(&c->flow, shf_call_get(c, asked * cell, &g->terms));
  FLOW(&c->flow, shf_call_write(c, d->place, d->entries * shf_number_bytes(d), &place));
  g->merge = (shf_row_merge){.acc = e->acc,
                             .number = d->number,
                             .columns = e->columns,
                             .rows = e->row_hi - e->row_lo,
                             .first = e->row_lo,
                             .parts = d->members};
  FLOW(&c->flow, shf_merge_ready(c, &g->merge));
  if (own && g->out)
    g->total = shf_dtensor_data(g->out);
  else
    FLOW(&c->flow, shf_call_get(c, g->merge.rows * cell, &g->total));
  g->rows = (shf_local_rows){g->dtype, compact, d->distinct, 0, d->distinct + 1, place, d->number, 1};
}

/* The gradient of this rank's own rows, from all entries that name them. */
static shf_local_rows own_rows(const gradient *g, void *data)
{
  const shf_embedding_call *e = g->e;
  const void *indices = e->desc->kind == SHEAF_BAG_MAX_BACKWARD ? g->arg : e->bags.indices;
  return (shf_local_rows){g->dtype,          data,    e->row_hi - e->row_lo,    e->row_lo,
                          e->c.problem.rows, indices, e->c.problem.index_dtype, 0};
}

/* Gradients of distinct rows go to the rows' owners, who add them in the order of ranks. */
static void return_rows(gradient *g)
{
  shf_embedding_call *e = g->e;
  shf_call *c = &e->c;
  const shf_dispatch *d = &g->d;
  int64_t cell = e->columns * shf_core_dtype_size(e->acc);
  DLDevice device = c->site.device;
  if (!shf_flow_agree(&c->flow)) return;
  if (!g->has_asked) SURELY(&c->flow, shf_dispatch_ask(d));
  SURELY(&c->flow, shf_dispatch_return(d, device, g->rows.data, g->terms, cell));
  if (c->flow.status != SHEAF_OK) return;
  for (int64_t turn = 0; turn < d->members; turn++) {
    int64_t m = shf_dispatch_at_turn(d, turn), is_own = m == d->members - 1;
    int64_t first = is_own ? d->away : d->asked_at[m], count = (is_own ? d->distinct : d->asked_at[m + 1]) - first;
    const char *terms = is_own ? g->rows.data : g->terms; /* of none there need be no memory */
    g->merge.part[turn] = (shf_row_part){count ? shf_numbers_from(d, is_own ? d->ids : d->asked, first) : NULL, count,
                                         count && cell ? terms + first * cell : NULL};
  }
  FLOW_ON(&c->flow, device, shf_merge_run(c, &g->merge, g->total));
  if (c->flow.status == SHEAF_OK && g->total != shf_dtensor_data(g->out))
    FLOW_ON(
        &c->flow, device,
        shf_space_convert(device, e->acc, g->total, c->values, shf_dtensor_data(g->out), g->merge.rows * e->columns));
}

/* ---- All kinds -------------------------------------------------------------------------------------------------- */

/* arg as the CPU sees it; on a device a plan refuses no values, so they are looked at here. */
static sheaf_status read_arg(gradient *g)
{
  shf_embedding_call *e = g->e;
  sheaf_dtype index = e->c.problem.index_dtype;
  int64_t cells = e->bags.bags * e->columns;
  SHF_TRY(shf_call_read(&e->c, g->arg, cells * shf_core_dtype_size(index), &g->host_arg));
  if (shf_is_host(e->c.site.device)) return SHEAF_OK;
  return shf_check_indices(e->desc, "arg", index, g->host_arg, cells, e->c.problem.rows);
}

/* grad_out (and arg) where the strategy wants them, in the type the local op computes in. */
static void bring_inputs(gradient *g)
{
  shf_embedding_call *e = g->e;
  shf_call *c = &e->c;
  const sheaf_dtensor *grad = shf_call_bring(c, e->args->grad_out, c->strategy.in[0]);
  if (e->desc->kind == SHEAF_BAG_MAX_BACKWARD) {
    const sheaf_dtensor *arg = shf_call_bring(c, e->args->arg, c->strategy.in[1]);
    if (c->flow.status == SHEAF_OK) {
      g->arg = shf_dtensor_data(arg);
      e->bags.bags = arg->local_shape[0];
    }
    if (c->strategy.dispatch || !shf_is_host(c->site.device)) FLOW(&c->flow, read_arg(g));
  }
  if (c->flow.status != SHEAF_OK) return;
  g->held = sheaf_dtype_from_dl(grad->local.dtype);
  g->grad_out = shf_dtensor_data(grad);
}

/* The gradient of `groups` bags or entries in the type that the local op computes in. */
static sheaf_status convert_gradient(gradient *g)
{
  const shf_embedding_call *e = g->e;
  int64_t groups = e->desc->kind == SHEAF_LOOKUP_BACKWARD ? e->bags.entries : e->bags.bags;
  return shf_call_convert(&g->e->c, g->held, g->grad_out, g->dtype, groups * e->columns, &g->grad_out);
}

/* ---- Pieces of bags ---------------------------------------------------------------------------------------------- */

/* Where that is less, the gradients of bags go to the owners of rows with the entries that name those, and what is left
 * to do is the gradient of a table cut by rows, with bags that are here. Owners do not know frequencies over all
 * ranks. */
static int send_pieces(gradient *g)
{
  shf_embedding_call *e = g->e;
  shf_call *c = &e->c;
  int mean = e->desc->kind == SHEAF_BAG_MEAN_BACKWARD, bags = mean || e->desc->kind == SHEAF_BAG_SUM_BACKWARD;
  if (!c->strategy.dispatch || !bags || e->desc->scale_grad_by_freq) return 0;
  if (mean && e->acc != c->values) return 0; /* coefficients of 16 bits would be too coarse */
  sheaf_dtype type = mean ? e->acc : e->desc->weighted ? c->weights : SHEAF_DTYPE_NONE;
  int64_t cell = e->columns * shf_core_dtype_size(g->held), row = e->columns * shf_core_dtype_size(e->acc);
  const void *weights = NULL;
  void *coefficients = NULL, *gradients = NULL;
  shf_pieces pieces;
  shf_bags got;
  FLOW(&c->flow, shf_bags_read(c, &e->bags));
  shf_embedding_group(e, c->strategy.out, e->bags.host.indices, e->bags.entries, &g->d);
  g->is_grouped = 1;
  if (!shf_pieces_are_less(e, &g->d, cell, row, type ? shf_core_dtype_size(type) : 0, &pieces)) return 0;
  weights = e->bags.host.weights;
  if (mean) {
    FLOW(&c->flow, find_coefficients(g, NULL, &coefficients));
    weights = coefficients;
  }
  shf_pieces_send(e, &g->d, weights, type, &pieces);
  shf_pieces_bring(e, &g->d, &pieces, g->grad_out, cell, &gradients);
  FLOW(&c->flow, shf_pieces_bags(e, &g->d, &pieces, &got));
  c->strategy.dispatch = 0; /* from here on */
  if (c->flow.status != SHEAF_OK) return 1;
  e->bags = got;
  c->problem.index_dtype = g->d.number;
  g->grad_out = gradients;
  if (mean) g->coefficients = got.weights;
  return 1;
}

/* Where the local op writes: the output itself, or rows under new numbers. */
static void place_rows(gradient *g)
{
  shf_embedding_call *e = g->e;
  shf_call *c = &e->c;
  int max = e->desc->kind == SHEAF_BAG_MAX_BACKWARD;
  int counts = e->desc->scale_grad_by_freq && !max && is_cut(c->strategy.in[1], c->flow.mesh);
  int64_t *frequencies = NULL;
  int64_t entries = max ? e->bags.bags * e->columns : e->bags.entries;
  if (c->strategy.dispatch || counts) {
    if (!max) FLOW(&c->flow, shf_bags_read(c, &e->bags));
    if (!g->is_grouped)
      shf_embedding_group(e, c->strategy.out, max ? g->host_arg : e->bags.host.indices, entries, &g->d);
    shf_dispatch_count(&c->flow, &c->pool, c->strategy.dispatch, &g->d);
    FLOW(&c->flow, shf_dispatch_place(&c->pool, &g->d));
  }
  if (counts) {
    void *coefficients = NULL;
    if (c->strategy.dispatch && shf_flow_agree(&c->flow)) SURELY(&c->flow, shf_dispatch_ask(&g->d));
    g->has_asked = 1;
    find_frequencies(g, &frequencies);
    FLOW(&c->flow, find_coefficients(g, frequencies, &coefficients));
    FLOW(&c->flow, shf_call_write(c, coefficients, entries * shf_core_dtype_size(e->acc), &g->coefficients));
  }
  FLOW(&c->flow, shf_call_output(c, c->values, c->strategy.out, &g->out));
  if (c->strategy.dispatch)
    place_dispatched(g);
  else if (c->flow.status == SHEAF_OK)
    g->rows = own_rows(g, shf_dtensor_data(g->out));
}

void shf_embedding_backward(shf_embedding_call *e)
{
  shf_call *c = &e->c;
  gradient g = {.e = e};
  int partial = shf_call_is_partial(c);
  shf_bags bags = e->bags;
  sheaf_strategy strategy = c->strategy;
  sheaf_dtype index = c->problem.index_dtype;
  g.dtype = partial ? e->acc : c->values;
  bring_inputs(&g);
  if (!send_pieces(&g) && c->strategy.dispatch) g.dtype = e->acc; /* to be added to other ranks' */
  FLOW(&c->flow, convert_gradient(&g));
  place_rows(&g);
  FLOW(&c->flow, run_local(&g));
  if (c->strategy.dispatch) return_rows(&g);
  sheaf_placement target[MAX_DIMS] = {{0}};
  shf_call_target(c, 0, target);
  sheaf_dtensor_desc desc = shf_call_desc(c, c->values, c->strategy.out);
  shf_relocate(&c->flow, &desc, &g.out, target);
  bags.host = c->strategy.dispatch == strategy.dispatch ? e->bags.host : bags.host;
  e->bags = bags; /* those it was called with */
  c->strategy = strategy;
  c->problem.index_dtype = index;
  sheaf_dtensor *weights_grad = NULL;
  int weights = e->args->weights_grad && e->desc->weighted && e->desc->kind != SHEAF_LOOKUP_BACKWARD;
  if (weights) shf_embedding_weights_grad(e, &weights_grad);
  shf_flow_wait(&c->flow, c->site.device);
  int well = shf_flow_settle(&c->flow);
  if (well) *e->args->table_grad = g.out;
  if (well && weights) *e->args->weights_grad = weights_grad;
  if (well) return;
  sheaf_dtensor_free(g.out);
  sheaf_dtensor_free(weights_grad);
}
/* NOLINTEND(clang-analyzer-core.*) */
