/* shard/segment_forward.c: segment reductions, forward. Where rows are spread over ranks each reduces its own, ranks'
 * results are reduced in the order of their rows, and only then come a mean's division and the rule for empty segments. */
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

/* ---- Sums, means, products ---------------------------------------------------------------------------------------- */

/* This rank's rows reduced in acc, then over ranks, then finished and rounded into `out`. */
static void reduce_sums(shf_segment_call *s, const char *data, sheaf_dtensor *out)
{
  shf_call *c = &s->c;
  shf_segment_mode mode = shf_segment_mode_of(s->desc->kind);
  int64_t cells = c->problem.bags * s->columns, rows = s->row_hi - s->row_lo, size = shf_core_dtype_size(s->acc);
  void *wide = (void *)data, *sums = NULL, *counts = NULL;
  if (s->acc != c->problem.dtype) {
    FLOW(&c->flow, shf_pool_get(&c->pool, rows * s->columns * size, &wide));
    if (c->flow.status == SHEAF_OK) shf_convert(c->problem.dtype, data, s->acc, wide, rows * s->columns);
  }
  FLOW(&c->flow, shf_pool_get(&c->pool, cells * size, &sums));
  FLOW(&c->flow, shf_pool_get(&c->pool, c->problem.bags * (int64_t)sizeof(int64_t), &counts));
  shf_segment_local local = {.dtype = s->acc, .data = wide, .out = sums};
  local.kind = shf_segment_forward_kind(mode == SHF_PROD ? SHF_PROD : SHF_SUM, shf_segment_is_sorted(s->desc->kind));
  FLOW(&c->flow, shf_segment_run_local(s, &local));
  if (c->flow.status == SHEAF_OK && mode == SHF_MEAN) shf_segment_count(s, counts);
  shf_reducer reducer = {.kind = mode == SHF_PROD ? SHF_REDUCE_PROD : SHF_REDUCE_SUM, .dtype = s->acc};
  shf_segment_reduce(s, sums, size, reducer, s->columns);
  if (mode == SHF_MEAN)
    shf_segment_reduce(s, counts, sizeof(int64_t), (shf_reducer){.kind = SHF_REDUCE_SUM, .dtype = SHEAF_I64}, 1);
  if (c->flow.status != SHEAF_OK) return;
  unsigned saved = shf_core_fp_enter();
  for (int64_t i = 0; i < cells; i++) {
    double value = shf_load(s->acc, sums, i);
    int64_t count = mode == SHF_MEAN ? ((int64_t *)counts)[i / s->columns] : 1;
    if (mode == SHF_MEAN && count == 0)
      value = empty_value(s);
    else if (mode == SHF_MEAN)
      value = s->acc == SHEAF_F64 ? value / (double)count : (double)((float)value / (float)count);
    shf_store(c->problem.dtype, shf_dtensor_data(out), i, value);
  }
  shf_core_fp_leave(saved);
}

/* ---- Extremes ------------------------------------------------------------------------------------------------------- */

/* Cells are (value, position of its row), position -1 where a rank has no row of the segment. Terms come in the order of
 * rows, so that the first of equals is the one that is there. */
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

static void reduce_extremes(shf_segment_call *s, const char *data, sheaf_dtensor *out, sheaf_dtensor *arg)
{
  shf_call *c = &s->c;
  contest t = {c->problem.dtype, shf_core_dtype_size(c->problem.dtype), shf_segment_mode_of(s->desc->kind) == SHF_MAX};
  int64_t cells = c->problem.bags * s->columns, bytes = t.value_bytes + (int64_t)sizeof(int64_t);
  void *memory = NULL;
  FLOW(&c->flow, shf_pool_get(&c->pool, cells * bytes, &memory));
  shf_segment_local local = {.kind = s->desc->kind, .dtype = c->problem.dtype, .data = data};
  if (c->flow.status == SHEAF_OK) local.out = shf_dtensor_data(out), local.arg = shf_dtensor_data(arg);
  FLOW(&c->flow, shf_segment_run_local(s, &local));
  char *pairs = memory;
  for (int64_t i = 0; c->flow.status == SHEAF_OK && i < cells; i++) {
    int64_t position = shf_load_index(c->problem.index_dtype, local.arg, i);
    if (position >= 0) position += s->row_lo;
    memcpy(pairs + i * bytes, (char *)local.out + i * t.value_bytes, (size_t)t.value_bytes);
    memcpy(pairs + i * bytes + t.value_bytes, &position, sizeof position);
  }
  shf_segment_reduce(s, pairs, bytes, (shf_reducer){.kind = SHF_REDUCE_OTHER, .fold = fold_extremes, .context = &t},
                     s->columns);
  for (int64_t i = 0; c->flow.status == SHEAF_OK && i < cells; i++) {
    int64_t position;
    memcpy(&position, pairs + i * bytes + t.value_bytes, sizeof position);
    memcpy((char *)local.out + i * t.value_bytes, pairs + i * bytes, (size_t)t.value_bytes);
    if (position < 0) shf_store(c->problem.dtype, local.out, i, empty_value(s));
    shf_store_index(c->problem.index_dtype, local.arg, i, position);
  }
}

/* ---- All kinds ------------------------------------------------------------------------------------------------------ */

void shf_segment_forward(shf_segment_call *s)
{
  shf_call *c = &s->c;
  shf_segment_mode mode = shf_segment_mode_of(s->desc->kind);
  int extremes = mode == SHF_MAX || mode == SHF_MIN;
  const sheaf_dtensor *data = shf_call_bring(c, s->args->data, c->strategy.in[0]);
  sheaf_placement whole[MAX_DIMS] = {{0}}, target[MAX_DIMS] = {{0}};
  for (int m = 0; m < c->flow.mesh->dims; m++)
    whole[m] = shf_is_partial(&c->strategy.out[m]) ? sheaf_replicate() : c->strategy.out[m];
  sheaf_dtensor *out = NULL, *arg = NULL;
  FLOW(&c->flow, shf_call_output(c, c->problem.dtype, whole, &out));
  if (extremes) FLOW(&c->flow, shf_call_output(c, c->problem.index_dtype, whole, &arg));
  const char *rows = c->flow.status == SHEAF_OK ? shf_dtensor_data(data) : NULL;
  if (!s->cut) {
    shf_segment_local local = {.kind = s->desc->kind, .dtype = c->problem.dtype, .data = rows, .empty = s->desc->empty};
    if (c->flow.status == SHEAF_OK) local.out = shf_dtensor_data(out);
    if (c->flow.status == SHEAF_OK && extremes) local.arg = shf_dtensor_data(arg);
    FLOW(&c->flow, shf_segment_run_local(s, &local));
  } else if (extremes) {
    reduce_extremes(s, rows, out, arg);
  } else {
    reduce_sums(s, rows, out);
  }
  shf_call_target(c, !c->wanted, target);
  sheaf_dtensor_desc out_desc = shf_call_desc(c, c->problem.dtype, whole);
  sheaf_dtensor_desc arg_desc = shf_call_desc(c, c->problem.index_dtype, whole);
  int keeps_arg = extremes && s->args->arg_out;
  shf_relocate(&c->flow, &out_desc, &out, target);
  if (keeps_arg) shf_relocate(&c->flow, &arg_desc, &arg, target);
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
