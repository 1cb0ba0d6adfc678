/* shard/segment_forward.c: segment reductions, forward. Where rows are spread over ranks each reduces its own, ranks'
 * results are reduced in the order of their rows, and only then come a mean's division and the rule for empty
 * segments. */
#include <math.h>
#include <string.h>

#include "core/cpu.h"
#include "shard/segment_call.h"

/* NOLINTBEGIN(clang-analyzer-core.*): the analyzer does not see that a flow which failed stays failed. */

static double empty_value(const shf_segment_call *s)
{
  if (s->desc->empty != SHEAF_EMPTY_IDENTITY) return 0;
  switch (shf_segment_mode_of(s->desc->kind)) {
  case SHF_MEAN:
    return NAN;
  case SHF_MAX:
    return -INFINITY;
  case SHF_MIN:
    return INFINITY;
  default:
    return 0;
  }
}

/* ---- Sums, means, products --------------------------------------------------------------------------------------- */

/* Sums of all rows become the result: a mean's are divided, all are rounded. */
static sheaf_status finish_sums(shf_segment_call *s, const shf_array *sums, const int64_t *counts, sheaf_dtensor *out)
{
  shf_call *c = &s->c;
  int64_t cells = shf_array_cells(sums), columns = out->local_shape[1], size = shf_core_dtype_size(c->values);
  if (!counts) return shf_space_convert(c->site.device, s->acc, sums->data, c->values, shf_dtensor_data(out), cells);
  const void *data;
  void *result = shf_dtensor_data(out);
  SHF_TRY(shf_call_read(c, sums->data, cells * sums->cell, &data));
  if (!shf_is_host(c->site.device)) SHF_TRY(shf_pool_get(&c->pool, cells * size, &result));
  unsigned saved = shf_core_fp_enter();
  for (int64_t i = 0; i < cells; i++) {
    double value = shf_load(s->acc, data, i);
    int64_t count = counts[i / columns];
    if (count == 0)
      value = empty_value(s);
    else
      value = s->acc == SHEAF_F64 ? value / (double)count : (double)((float)value / (float)count);
    shf_store(c->values, result, i, value);
  }
  shf_core_fp_leave(saved);
  return shf_space_write(c->site.device, shf_dtensor_data(out), result, cells * size);
}

/* This rank's rows reduced in acc, then over ranks, then finished and rounded into `out`, which lies as `at`. */
static void reduce_sums(shf_segment_call *s, const char *data, const sheaf_placement *at, sheaf_dtensor *out)
{
  shf_call *c = &s->c;
  shf_segment_mode mode = shf_segment_mode_of(s->desc->kind);
  int64_t cells = c->problem.bags * s->columns, rows = s->row_hi - s->row_lo, size = shf_core_dtype_size(s->acc);
  const void *wide = NULL;
  void *sums = NULL, *counts = NULL;
  shf_move sums_move = {0}, counts_move = {0};
  FLOW(&c->flow, shf_call_convert(c, c->values, data, s->acc, rows * s->columns, &wide));
  FLOW(&c->flow, shf_call_get(c, cells * size, &sums));
  FLOW(&c->flow, shf_pool_get(&c->pool, c->problem.bags * (int64_t)sizeof(int64_t), &counts));
  shf_segment_local local = {.dtype = s->acc, .data = wide, .out = sums};
  local.kind = shf_segment_forward_kind(mode == SHF_PROD ? SHF_PROD : SHF_SUM, shf_segment_is_sorted(s->desc->kind));
  FLOW(&c->flow, shf_segment_run_local(s, &local));
  if (c->flow.status == SHEAF_OK && mode == SHF_MEAN) shf_segment_count(s, counts);
  shf_reducer reducer = {.kind = mode == SHF_PROD ? SHF_FOLD_PROD : SHF_FOLD_SUM, .dtype = s->acc};
  shf_segment_complete(s, c->site.device, sums, size, reducer, at, &sums_move);
  if (mode == SHF_MEAN) shf_segment_complete_counts(s, counts, at, &counts_move);
  FLOW(&c->flow,
       finish_sums(s, &sums_move.result, mode == SHF_MEAN ? (int64_t *)(void *)counts_move.result.data : NULL, out));
  shf_move_free(&sums_move);
  shf_move_free(&counts_move);
}

/* ---- Extremes ---------------------------------------------------------------------------------------------------- */

/* Cells are (value, position of its row), position -1 where a rank has no row of the segment. Terms come in the order
 * of rows, so that the first of equals is the one that is there. */
typedef struct contest {
  sheaf_dtype dtype;
  int64_t value_bytes;
  int largest;
} contest;

static void fold_extremes(void *context, char *total, const char *term, int64_t first, int64_t cells)
{
  const contest *t = context;
  (void)first;
  int64_t bytes = t->value_bytes + (int64_t)sizeof(int64_t);
  for (int64_t i = 0; i < cells; i++, total += bytes, term += bytes) {
    uint64_t bits[2] = {0, 0};
    int64_t mine, theirs;
    memcpy(&bits[0], total, (size_t)t->value_bytes);
    memcpy(&bits[1], term, (size_t)t->value_bytes);
    memcpy(&mine, total + t->value_bytes, sizeof mine);
    memcpy(&theirs, term + t->value_bytes, sizeof theirs);
    double a = shf_load(t->dtype, &bits[0], 0), b = shf_load(t->dtype, &bits[1], 0);
    int beats = !isnan(a) && (isnan(b) || (t->largest ? b > a : b < a));
    if (theirs >= 0 && (mine < 0 || beats)) memcpy(total, term, (size_t)bytes);
  }
}

/* Pairs from what the local op found. They are compared by the CPU. */
static sheaf_status make_pairs(shf_segment_call *s, const contest *t, const void *values, const void *positions,
                               int64_t cells, char **pairs)
{
  shf_call *c = &s->c;
  int64_t bytes = t->value_bytes + (int64_t)sizeof(int64_t);
  void *memory;
  SHF_TRY(shf_call_read(c, values, cells * t->value_bytes, &values));
  SHF_TRY(shf_call_read(c, positions, cells * shf_core_dtype_size(c->problem.index_dtype), &positions));
  SHF_TRY(shf_pool_get(&c->pool, cells * bytes, &memory));
  *pairs = memory;
  for (int64_t i = 0; i < cells; i++) {
    int64_t position = shf_load_index(c->problem.index_dtype, positions, i);
    if (position >= 0) position += s->row_lo;
    memcpy(*pairs + i * bytes, (const char *)values + i * t->value_bytes, (size_t)t->value_bytes);
    memcpy(*pairs + i * bytes + t->value_bytes, &position, sizeof position);
  }
  return SHEAF_OK;
}

static sheaf_status split_pairs(shf_segment_call *s, const contest *t, const shf_array *pairs, sheaf_dtensor *out,
                                sheaf_dtensor *arg)
{
  shf_call *c = &s->c;
  int64_t cells = shf_array_cells(pairs), index_bytes = shf_core_dtype_size(c->problem.index_dtype);
  void *values = shf_dtensor_data(out), *positions = shf_dtensor_data(arg);
  if (!shf_is_host(c->site.device)) {
    SHF_TRY(shf_pool_get(&c->pool, cells * t->value_bytes, &values));
    SHF_TRY(shf_pool_get(&c->pool, cells * index_bytes, &positions));
  }
  for (int64_t i = 0; i < cells; i++) {
    int64_t position;
    memcpy(&position, pairs->data + i * pairs->cell + t->value_bytes, sizeof position);
    memcpy((char *)values + i * t->value_bytes, pairs->data + i * pairs->cell, (size_t)t->value_bytes);
    if (position < 0) shf_store(c->values, values, i, empty_value(s));
    shf_store_index(c->problem.index_dtype, positions, i, position);
  }
  SHF_TRY(shf_space_write(c->site.device, shf_dtensor_data(out), values, cells * t->value_bytes));
  return shf_space_write(c->site.device, shf_dtensor_data(arg), positions, cells * index_bytes);
}

static void reduce_extremes(shf_segment_call *s, const char *data, const sheaf_placement *at, sheaf_dtensor *out,
                            sheaf_dtensor *arg)
{
  shf_call *c = &s->c;
  contest t = {c->values, shf_core_dtype_size(c->values), shf_segment_mode_of(s->desc->kind) == SHF_MAX};
  int64_t cells = c->problem.bags * s->columns;
  void *values = NULL, *positions = NULL;
  char *pairs = NULL;
  shf_move move = {0};
  FLOW(&c->flow, shf_call_get(c, cells * t.value_bytes, &values));
  FLOW(&c->flow, shf_call_get(c, cells * shf_core_dtype_size(c->problem.index_dtype), &positions));
  shf_segment_local local = {.kind = s->desc->kind, .dtype = c->values, .data = data, .out = values, .arg = positions};
  FLOW(&c->flow, shf_segment_run_local(s, &local));
  FLOW(&c->flow, make_pairs(s, &t, values, positions, cells, &pairs));
  shf_reducer reducer = {.kind = SHF_FOLD_MAX, .fold = fold_extremes, .context = &t};
  shf_segment_complete(s, shf_host(), pairs, t.value_bytes + (int64_t)sizeof(int64_t), reducer, at, &move);
  FLOW(&c->flow, split_pairs(s, &t, &move.result, out, arg));
  shf_move_free(&move);
}

/* ---- All kinds --------------------------------------------------------------------------------------------------- */

void shf_segment_forward(shf_segment_call *s)
{
  shf_call *c = &s->c;
  shf_segment_mode mode = shf_segment_mode_of(s->desc->kind);
  int extremes = mode == SHF_MAX || mode == SHF_MIN;
  const sheaf_dtensor *data = shf_call_bring(c, s->args->data, c->strategy.in[0]);
  sheaf_placement now[MAX_DIMS] = {{0}}, target[MAX_DIMS] = {{0}};
  shf_call_complete(c, now);
  sheaf_dtensor *out = NULL, *arg = NULL;
  FLOW(&c->flow, shf_call_output(c, c->values, now, &out));
  if (extremes) FLOW(&c->flow, shf_call_output(c, c->problem.index_dtype, now, &arg));
  const char *rows = c->flow.status == SHEAF_OK ? shf_dtensor_data(data) : NULL;
  if (!s->cut) {
    shf_segment_local local = {.kind = s->desc->kind, .dtype = c->values, .data = rows, .empty = s->desc->empty};
    if (c->flow.status == SHEAF_OK) local.out = shf_dtensor_data(out);
    if (c->flow.status == SHEAF_OK && extremes) local.arg = shf_dtensor_data(arg);
    FLOW(&c->flow, shf_segment_run_local(s, &local));
  } else if (extremes) {
    reduce_extremes(s, rows, now, out, arg);
  } else {
    reduce_sums(s, rows, now, out);
  }
  shf_call_target(c, !c->wanted, target);
  sheaf_dtensor_desc out_desc = shf_call_desc(c, c->values, now);
  sheaf_dtensor_desc arg_desc = shf_call_desc(c, c->problem.index_dtype, now);
  int keeps_arg = extremes && s->args->arg_out;
  shf_relocate(&c->flow, &out_desc, &out, target);
  if (keeps_arg) shf_relocate(&c->flow, &arg_desc, &arg, target);
  shf_flow_wait(&c->flow, c->site.device);
  int well = shf_flow_settle(&c->flow);
  if (well)
    *s->args->out = out;
  else
    sheaf_dtensor_free(out);
  if (well && keeps_arg)
    *s->args->arg_out = arg;
  else
    sheaf_dtensor_free(arg);
}
/* NOLINTEND(clang-analyzer-core.*) */
