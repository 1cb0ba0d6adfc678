/* shard/embedding_backward.c: gradients of tables: the local op runs, gradients of rows that lie elsewhere travel to
 * them, and what is partial becomes one.
 *
 * Whatever has to be added to other ranks' terms is computed and kept in acc, and rounded when it is complete. */
#include <string.h>

#include "core/cpu.h"
#include "shard/embedding_call.h"

/* NOLINTBEGIN(clang-analyzer-core.*): the analyzer does not see that a flow which failed stays failed. */

/* One backward call's own. */
typedef struct gradient {
  shf_embedding_call *e;
  sheaf_dtype dtype;    /* that the local op computes in */
  const void *grad_out; /* of that type */
  const void *arg;      /* BAG_MAX_BACKWARD */
  shf_dispatch d;
  shf_local_rows rows;      /* the gradient the local op makes */
  const void *coefficients; /* per entry, of dtype, when frequencies span ranks; NULL: the local op knows them */
  sheaf_dtensor *out;
} gradient;

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
  shf_array array = {.mesh = c->flow.mesh, .rank = 1, .shape = {c->problem.rows}, .cell = sizeof *counts};
  array.reducer = (shf_reducer){.kind = SHF_REDUCE_SUM, .dtype = SHEAF_I64};
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
  FLOW(&c->flow, shf_move_prepare(&move, &array, whole, 1));
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

/* How often the row of each distinct index occurs anywhere; d->distinct numbers. */
static void find_frequencies(gradient *g, int64_t **frequencies)
{
  shf_embedding_call *e = g->e;
  shf_call *c = &e->c;
  shf_dispatch *d = &g->d;
  int64_t *counts = NULL, *answers = NULL, *here = NULL, rows = e->row_hi - e->row_lo;
  int64_t asked = c->flow.status == SHEAF_OK ? d->asked_at[d->members] : 0;
  FLOW(&c->flow, get_numbers(c, rows, &counts));
  FLOW(&c->flow, get_numbers(c, asked, &answers));
  FLOW(&c->flow, get_numbers(c, d->distinct, &here));
  for (int64_t i = 0; c->flow.status == SHEAF_OK && i < e->bags.entries; i++)
    if (d->place[i] >= 0 && d->place[i] < d->distinct) here[d->place[i]]++;
  if (c->strategy.dispatch) shf_flow_agree(&c->flow);
  SURELY(&c->flow, shf_dispatch_return(d, here, answers, sizeof *here));
  for (int64_t i = 0; c->flow.status == SHEAF_OK && i < asked; i++) counts[d->asked[i] - e->row_lo] += answers[i];
  add_frequencies(c, counts);
  for (int64_t i = 0; c->flow.status == SHEAF_OK && i < asked; i++) answers[i] = counts[d->asked[i] - e->row_lo];
  SURELY(&c->flow, shf_dispatch_bring(d, answers, here, sizeof *here));
  *frequencies = here;
}

/* Rounded to acc. */
static double rounded(sheaf_dtype acc, double value) { return acc == SHEAF_F64 ? value : (double)(float)value; }

/* The coefficient of each entry with its frequency in it, in the roundings that semantics.md gives. Quotients and
 * products of f32 values are exact enough in f64 that rounding them again gives what f32 arithmetic gives. */
static sheaf_status find_coefficients(gradient *g, const int64_t *frequencies)
{
  shf_embedding_call *e = g->e;
  const shf_bags *bags = &e->bags;
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
      int64_t place = g->d.place[i];
      double value = bags->weights ? shf_load(e->c.problem.dtype, bags->weights, i) : 1;
      if (mean) value = rounded(e->acc, value / shf_load(e->acc, divisors, b));
      if (place >= 0 && place < g->d.distinct)
        value = rounded(e->acc, value * rounded(e->acc, 1 / (double)frequencies[place]));
      shf_store(e->acc, coefficients, i, value);
    }
  }
  shf_core_fp_leave(mode);
  g->coefficients = coefficients;
  return SHEAF_OK;
}

/* ---- Local op --------------------------------------------------------------------------------------------------- */

static sheaf_status run_local(gradient *g)
{
  shf_embedding_call *e = g->e;
  sheaf_embedding_kind kind = g->coefficients ? SHEAF_BAG_SUM_BACKWARD : e->desc->kind;
  sheaf_embedding_desc desc;
  sheaf_embedding_args args;
  shf_local_embedding_parts parts;
  shf_bags bags = e->bags;
  if (g->coefficients && bags.bags == 0 && e->desc->kind == SHEAF_LOOKUP_BACKWARD) { /* a lookup is bags of one entry */
    e->bags.bags = e->bags.entries;
    e->bags.length = 1;
  }
  shf_embedding_local_op(e, kind, &g->rows, &desc, &args, &parts);
  int64_t groups = kind == SHEAF_LOOKUP_BACKWARD ? e->bags.entries : e->bags.bags;
  e->bags = bags;
  desc.scale_grad_by_freq = g->coefficients ? 0 : e->desc->scale_grad_by_freq;
  args.grad_out = shf_local_matrix(&parts.grad_out, g->dtype, g->grad_out, groups, e->columns);
  args.table_grad = shf_local_matrix(&parts.table_grad, g->dtype, g->rows.data, g->rows.rows, e->columns);
  if (kind == SHEAF_BAG_MAX_BACKWARD) {
    args.indices.tensor = NULL;
    args.arg = shf_local_matrix(&parts.arg, g->rows.index_dtype, g->rows.indices, groups, e->columns);
  }
  const void *weights = g->coefficients;
  if (!weights && bags.weights) {
    void *wide;
    SHF_TRY(shf_pool_get(&e->c.pool, bags.entries * shf_core_dtype_size(g->dtype), &wide));
    shf_convert(e->c.problem.dtype, bags.weights, g->dtype, wide, bags.entries);
    weights = wide;
  }
  if (weights) {
    desc.weighted = 1;
    args.weights = shf_local_operand(&parts.weights, g->dtype, weights, parts.indices.tensor.ndim, parts.indices.shape);
  }
  return shf_local_embedding(&desc, &args);
}

/* ---- Rows elsewhere --------------------------------------------------------------------------------------------- */

static void add_row(sheaf_dtype acc, char *total, const char *term, int64_t columns)
{
  if (acc == SHEAF_F64)
    for (int64_t i = 0; i < columns; i++) ((double *)(void *)total)[i] += ((const double *)(const void *)term)[i];
  else
    for (int64_t i = 0; i < columns; i++) ((float *)(void *)total)[i] += ((const float *)(const void *)term)[i];
}

/* Gradients of distinct rows go to the rows' owners, who add them in the order of ranks. */
static void return_rows(gradient *g, char *target)
{
  shf_embedding_call *e = g->e;
  shf_call *c = &e->c;
  const shf_dispatch *d = &g->d;
  int64_t cell = e->columns * shf_core_dtype_size(e->acc),
          asked = c->flow.status == SHEAF_OK ? d->asked_at[d->members] : 0;
  void *terms = NULL;
  FLOW(&c->flow, shf_pool_get(&c->pool, asked * cell, &terms));
  shf_flow_agree(&c->flow);
  SURELY(&c->flow, shf_dispatch_return(d, g->rows.data, terms, cell));
  if (c->flow.status != SHEAF_OK) return;
  unsigned mode = shf_core_fp_enter();
  for (int64_t i = 0; cell > 0 && i < asked; i++)
    add_row(e->acc, target + (d->asked[i] - e->row_lo) * cell, (char *)terms + i * cell, e->columns);
  shf_core_fp_leave(mode);
}

/* ---- All kinds -------------------------------------------------------------------------------------------------- */

/* grad_out (and arg) where the strategy wants them, in the type the local op computes in. */
static void bring_inputs(gradient *g)
{
  shf_embedding_call *e = g->e;
  shf_call *c = &e->c;
  const sheaf_dtensor *grad = shf_call_bring(c, e->args->grad_out, c->strategy.in[0]);
  if (e->desc->kind == SHEAF_BAG_MAX_BACKWARD) {
    const sheaf_dtensor *arg = shf_call_bring(c, e->args->arg, c->strategy.in[1]);
    if (c->flow.status != SHEAF_OK) return;
    g->arg = shf_dtensor_data(arg);
    e->bags.bags = arg->local_shape[0];
  }
  if (c->flow.status != SHEAF_OK) return;
  int64_t cells = 1;
  for (int i = 0; i < grad->desc.rank; i++) cells *= grad->local_shape[i];
  sheaf_dtype held = sheaf_dtype_from_dl(grad->local.dtype);
  g->grad_out = shf_dtensor_data(grad);
  if (held == g->dtype) return;
  void *wide;
  FLOW(&c->flow, shf_pool_get(&c->pool, cells * shf_core_dtype_size(g->dtype), &wide));
  if (c->flow.status != SHEAF_OK) return;
  shf_convert(held, g->grad_out, g->dtype, wide, cells);
  g->grad_out = wide;
}

/* Where the local op writes: the output itself, or rows under new numbers. */
static void place_rows(gradient *g)
{
  shf_embedding_call *e = g->e;
  shf_call *c = &e->c;
  int max = e->desc->kind == SHEAF_BAG_MAX_BACKWARD;
  int counts = e->desc->scale_grad_by_freq && !max && is_cut(c->strategy.in[1], c->flow.mesh);
  int64_t *frequencies = NULL;
  const void *indices = max ? g->arg : e->bags.indices;
  if (c->strategy.dispatch || counts)
    shf_embedding_dispatch(e, c->strategy.out, indices, max ? e->bags.bags * e->columns : e->bags.entries, &g->d);
  if (counts) {
    find_frequencies(g, &frequencies);
    FLOW(&c->flow, find_coefficients(g, frequencies));
  }
  FLOW(&c->flow, shf_call_output(c, c->problem.dtype, c->strategy.out, &g->out));
  if (c->flow.status != SHEAF_OK) return;
  if (c->strategy.dispatch) {
    void *compact = NULL;
    FLOW(&c->flow, shf_pool_get(&c->pool, g->d.distinct * e->columns * shf_core_dtype_size(g->dtype), &compact));
    g->rows = (shf_local_rows){g->dtype, compact, g->d.distinct, 0, g->d.distinct + 1, g->d.place, SHEAF_I64, 1};
  } else {
    g->rows = (shf_local_rows){g->dtype,
                               shf_dtensor_data(g->out),
                               e->row_hi - e->row_lo,
                               e->row_lo,
                               c->problem.rows,
                               indices,
                               c->problem.index_dtype,
                               0};
  }
}

void shf_embedding_backward(shf_embedding_call *e)
{
  shf_call *c = &e->c;
  gradient g = {.e = e};
  int partial = shf_call_is_partial(c);
  g.dtype = partial || c->strategy.dispatch ? e->acc : c->problem.dtype;
  bring_inputs(&g);
  place_rows(&g);
  FLOW(&c->flow, run_local(&g));
  if (c->strategy.dispatch) {
    int64_t cells = (e->row_hi - e->row_lo) * e->columns;
    int own = partial || e->acc == c->problem.dtype; /* whether the output is kept in acc */
    void *total = own && g.out ? shf_dtensor_data(g.out) : NULL;
    if (!own) {
      FLOW(&c->flow, shf_pool_get(&c->pool, cells * shf_core_dtype_size(e->acc), &total));
    }
    if (c->flow.status == SHEAF_OK && cells) memset(total, 0, (size_t)(cells * shf_core_dtype_size(e->acc)));
    return_rows(&g, total);
    if (!own && c->flow.status == SHEAF_OK)
      shf_convert(e->acc, total, c->problem.dtype, shf_dtensor_data(g.out), cells);
  }
  sheaf_placement target[MAX_DIMS] = {{0}};
  shf_call_target(c, 0, target);
  sheaf_dtensor_desc desc = shf_call_desc(c, c->problem.dtype, c->strategy.out);
  shf_relocate(&c->flow, &desc, &g.out, target);
  sheaf_dtensor *weights_grad = NULL;
  int weights = e->args->weights_grad && e->desc->weighted && e->desc->kind != SHEAF_LOOKUP_BACKWARD;
  if (weights) shf_embedding_weights_grad(e, &weights_grad);
  int well = shf_flow_settle(&c->flow);
  if (well) *e->args->table_grad = g.out;
  if (well && weights) *e->args->weights_grad = weights_grad;
  if (well) return;
  sheaf_dtensor_free(g.out);
  sheaf_dtensor_free(weights_grad);
}
/* NOLINTEND(clang-analyzer-core.*) */
