/* shard/segment_backward.c: gradients of segment reductions. Where rows are spread over ranks, each needs what its
 * segments are over all of them: rows, extremes, products. */
#include <math.h>
#include <string.h>

#include "core/cpu.h"
#include "shard/segment_call.h"

/* NOLINTBEGIN(clang-analyzer-core.*): the analyzer does not see that a flow which failed stays failed. */

/* The inputs where the strategy wants them, and the output. */
typedef struct operands {
  const char *grad_out;
  const char *data; /* NULL: not given */
  char *arg;        /* positions of all rows; NULL: not given */
  char *data_grad;
  int64_t rows, cells; /* of this rank: rows; segments x columns */
  struct {             /* the same as the CPU sees it (read_inputs) */
    const void *grad_out, *data;
    char *data_grad;
  } host;
} operands;

static double divide(sheaf_dtype acc, double a, double b)
{
  return acc == SHEAF_F64 ? a / b : (double)((float)a / (float)b);
}

static double multiply(sheaf_dtype acc, double a, double b)
{
  return acc == SHEAF_F64 ? a * b : (double)((float)a * (float)b);
}

static int64_t id_at(const shf_segment_call *s, int64_t row)
{
  int64_t id = shf_load_index(s->c.problem.index_dtype, s->host_ids, row);
  return id >= 0 && id < s->c.problem.bags ? id : -1;
}

/* What the CPU works on itself, for ops whose segments span ranks. */
static sheaf_status read_inputs(shf_segment_call *s, operands *o)
{
  shf_call *c = &s->c;
  int64_t size = shf_core_dtype_size(c->values), values = o->rows * s->columns;
  void *result = o->data_grad;
  SHF_TRY(shf_call_read(c, o->grad_out, o->cells * size, &o->host.grad_out));
  if (o->data) SHF_TRY(shf_call_read(c, o->data, values * size, &o->host.data));
  if (!shf_is_host(c->site.device)) SHF_TRY(shf_pool_get(&c->pool, values * size, &result));
  o->host.data_grad = result;
  return SHEAF_OK;
}

static sheaf_status write_result(shf_segment_call *s, const operands *o)
{
  int64_t bytes = o->rows * s->columns * shf_core_dtype_size(s->c.values);
  return shf_space_write(s->c.site.device, o->data_grad, o->host.data_grad, bytes);
}

/* ---- Sums and means ---------------------------------------------------------------------------------------------- */

/* A mean's gradient is that of a sum, of gradients divided by the segments' rows on all ranks. */
static void mean_backward(shf_segment_call *s, const operands *o)
{
  shf_call *c = &s->c;
  void *counts = NULL, *divided = NULL;
  const void *there = NULL;
  FLOW(&c->flow, shf_pool_get(&c->pool, c->problem.bags * (int64_t)sizeof(int64_t), &counts));
  FLOW(&c->flow, shf_pool_get(&c->pool, o->cells * shf_core_dtype_size(c->values), &divided));
  if (c->flow.status == SHEAF_OK) shf_segment_count(s, counts);
  shf_segment_reduce(s, shf_host(), counts, sizeof(int64_t), (shf_reducer){.kind = SHF_FOLD_SUM, .dtype = SHEAF_I64},
                     1);
  if (c->flow.status != SHEAF_OK) return;
  unsigned mode = shf_core_fp_enter();
  for (int64_t i = 0; i < o->cells; i++) {
    double gradient = shf_load(c->values, o->host.grad_out, i);
    int64_t rows = ((int64_t *)counts)[i / s->columns];
    shf_store(c->values, divided, i, divide(s->acc, gradient, (double)rows));
  }
  shf_core_fp_leave(mode);
  FLOW(&c->flow, shf_call_write(c, divided, o->cells * shf_core_dtype_size(c->values), &there));
  shf_segment_local local = {.dtype = c->values, .grad_out = there, .data_grad = o->data_grad};
  local.kind = shf_segment_is_sorted(s->desc->kind) ? SHEAF_SEGMENT_SUM_BACKWARD : SHEAF_UNSORTED_SEGMENT_SUM_BACKWARD;
  FLOW(&c->flow, shf_segment_run_local(s, &local));
}

/* ---- Extremes ---------------------------------------------------------------------------------------------------- */

/* The extreme of each cell over all ranks, and the position of its row: the forward op, its output whole. */
static void find_extremes(shf_segment_call *s, sheaf_dtensor **out, sheaf_dtensor **arg)
{
  shf_call *c = &s->c;
  sheaf_segment_desc desc = *s->desc;
  desc.kind = shf_segment_forward_kind(shf_segment_mode_of(desc.kind), shf_segment_is_sorted(desc.kind));
  sheaf_shard_segment_args args = SHEAF_SHARD_SEGMENT_ARGS_INIT;
  args.data = s->args->data;
  args.ids = s->args->ids;
  args.out = out;
  args.arg_out = arg;
  sheaf_shard_call how = SHEAF_SHARD_CALL_INIT;
  how.out = c->strategy.in[0]; /* where the gradient of the output lies */
  if (!shf_flow_agree(&c->flow)) return;
  SURELY(&c->flow, sheaf_shard_segment_run(&desc, &how, &args));
  c->flow.settled = c->flow.status != SHEAF_OK; /* a collective call: the same everywhere */
}

static void first_backward(shf_segment_call *s, const operands *o, const char *arg)
{
  shf_call *c = &s->c;
  int64_t size = shf_core_dtype_size(c->problem.index_dtype);
  void *here = NULL;
  const void *positions = NULL, *there = NULL;
  FLOW(&c->flow, shf_call_read(c, arg, o->cells * size, &positions));
  FLOW(&c->flow, shf_pool_get(&c->pool, o->cells * size, &here));
  for (int64_t i = 0; c->flow.status == SHEAF_OK && i < o->cells; i++) {
    int64_t position = shf_load_index(c->problem.index_dtype, positions, i);
    int is_here = position >= s->row_lo && position < s->row_hi;
    shf_store_index(c->problem.index_dtype, here, i, is_here ? position - s->row_lo : -1);
  }
  FLOW(&c->flow, shf_call_write(c, here, o->cells * size, &there));
  shf_segment_local local = {.kind = s->desc->kind,
                             .dtype = c->values,
                             .grad_out = o->grad_out,
                             .arg = (void *)there,
                             .data_grad = o->data_grad,
                             .arg_given = 1};
  FLOW(&c->flow, shf_segment_run_local(s, &local));
}

static int equals_extreme(double x, double extreme) { return isnan(extreme) ? isnan(x) : x == extreme; }

/* Every row that has the extreme gets an equal part of the gradient. */
static void split_backward(shf_segment_call *s, const operands *o, const char *extremes)
{
  shf_call *c = &s->c;
  sheaf_dtype dtype = c->values;
  void *memory = NULL;
  const void *found = NULL;
  FLOW(&c->flow, shf_call_read(c, extremes, o->cells * shf_core_dtype_size(dtype), &found));
  FLOW(&c->flow, shf_pool_get(&c->pool, o->cells * (int64_t)sizeof(int64_t), &memory));
  int64_t *ties = memory;
  if (c->flow.status == SHEAF_OK && o->cells) memset(ties, 0, (size_t)o->cells * sizeof *ties);
  for (int64_t n = 0; c->flow.status == SHEAF_OK && n < o->rows; n++)
    for (int64_t d = 0, id = id_at(s, n); id >= 0 && d < s->columns; d++)
      ties[id * s->columns + d] += equals_extreme(shf_load(dtype, o->host.data, n * s->columns + d),
                                                  shf_load(dtype, found, id * s->columns + d));
  shf_segment_reduce(s, shf_host(), ties, sizeof *ties, (shf_reducer){.kind = SHF_FOLD_SUM, .dtype = SHEAF_I64},
                     s->columns);
  if (c->flow.status != SHEAF_OK) return;
  unsigned mode = shf_core_fp_enter();
  for (int64_t n = 0; n < o->rows; n++)
    for (int64_t d = 0, id = id_at(s, n); d < s->columns; d++) {
      int64_t at = n * s->columns + d, cell = id * s->columns + d;
      int gets = id >= 0 && equals_extreme(shf_load(dtype, o->host.data, at), shf_load(dtype, found, cell));
      double part = gets ? divide(s->acc, shf_load(dtype, o->host.grad_out, cell), (double)ties[cell]) : 0;
      shf_store(dtype, o->host.data_grad, at, part);
    }
  shf_core_fp_leave(mode);
  FLOW(&c->flow, write_result(s, o));
}

static void extreme_backward(shf_segment_call *s, const operands *o)
{
  sheaf_dtensor *out = NULL, *arg = NULL;
  int split = s->desc->ties == SHEAF_TIES_SPLIT;
  if (!split && s->args->arg) {
    first_backward(s, o, o->arg);
    return;
  }
  find_extremes(s, &out, &arg);
  if (split)
    split_backward(s, o, out ? shf_dtensor_data(out) : NULL);
  else
    first_backward(s, o, arg ? shf_dtensor_data(arg) : NULL);
  sheaf_dtensor_free(out);
  sheaf_dtensor_free(arg);
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* Products of what is not zero, and the number of zeros, over all ranks; then as semantics.md defines it. */
static void prod_backward(shf_segment_call *s, const operands *o)
{
  shf_call *c = &s->c;
  int64_t size = shf_core_dtype_size(s->acc), values = o->rows * s->columns;
  void *ones = NULL, *products = NULL, *memory = NULL;
  const void *there = NULL, *found = NULL;
  FLOW(&c->flow, shf_pool_get(&c->pool, values * size, &ones));
  FLOW(&c->flow, shf_call_get(c, o->cells * size, &products));
  FLOW(&c->flow, shf_pool_get(&c->pool, o->cells * (int64_t)sizeof(int64_t), &memory));
  int64_t *zeros = memory;
  if (c->flow.status == SHEAF_OK && o->cells) memset(zeros, 0, (size_t)o->cells * sizeof *zeros);
  for (int64_t n = 0; c->flow.status == SHEAF_OK && n < o->rows; n++)
    for (int64_t d = 0, id = id_at(s, n); d < s->columns; d++) {
      double x = shf_load(c->values, o->host.data, n * s->columns + d);
      shf_store(s->acc, ones, n * s->columns + d, x == 0 ? 1 : x);
      if (id >= 0) zeros[id * s->columns + d] += x == 0;
    }
  FLOW(&c->flow, shf_call_write(c, ones, values * size, &there));
  shf_segment_local local = {.dtype = s->acc, .data = there, .out = products};
  local.kind = shf_segment_forward_kind(SHF_PROD, shf_segment_is_sorted(s->desc->kind));
  FLOW(&c->flow, shf_segment_run_local(s, &local));
  shf_reducer product = {.kind = SHF_FOLD_PROD, .dtype = s->acc}, sum = {.kind = SHF_FOLD_SUM, .dtype = SHEAF_I64};
  shf_segment_reduce(s, c->site.device, products, size, product, s->columns);
  shf_segment_reduce(s, shf_host(), zeros, sizeof *zeros, sum, s->columns);
  FLOW(&c->flow, shf_call_read(c, products, o->cells * size, &found));
  if (c->flow.status != SHEAF_OK) return;
  unsigned mode = shf_core_fp_enter();
  for (int64_t n = 0; n < o->rows; n++)
    for (int64_t d = 0, id = id_at(s, n); d < s->columns; d++) {
      int64_t at = n * s->columns + d, cell = id * s->columns + d;
      double x = shf_load(c->values, o->host.data, at), part = 0;
      double product = id >= 0 ? shf_load(s->acc, found, cell) : 0,
             g = id >= 0 ? shf_load(c->values, o->host.grad_out, cell) : 0;
      if (id >= 0 && zeros[cell] == 0)
        part = multiply(s->acc, g, divide(s->acc, product, x));
      else if (id >= 0 && zeros[cell] == 1 && x == 0)
        part = multiply(s->acc, g, product);
      shf_store(c->values, o->host.data_grad, at, part);
    }
  shf_core_fp_leave(mode);
  FLOW(&c->flow, write_result(s, o));
}

/* ---- All kinds --------------------------------------------------------------------------------------------------- */

static void run_whole(shf_segment_call *s, const operands *o)
{
  int given = s->args->arg && s->desc->ties == SHEAF_TIES_FIRST;
  shf_segment_local local = {.kind = s->desc->kind,
                             .dtype = s->c.values,
                             .data = o->data,
                             .grad_out = o->grad_out,
                             .arg = given ? o->arg : NULL,
                             .data_grad = o->data_grad,
                             .arg_given = given};
  FLOW(&s->c.flow, shf_segment_run_local(s, &local));
}

static sheaf_status check_given(const shf_segment_call *s)
{
  shf_segment_mode mode = shf_segment_mode_of(s->desc->kind);
  int extremes = mode == SHF_MAX || mode == SHF_MIN, by_arg = s->args->arg && s->desc->ties == SHEAF_TIES_FIRST;
  SHF_REQUIRE(s->args->data || !(mode == SHF_PROD || (extremes && !by_arg)), INVALID_PROBLEM, "data is NULL");
  return SHEAF_OK;
}

void shf_segment_backward(shf_segment_call *s)
{
  shf_call *c = &s->c;
  shf_segment_mode mode = shf_segment_mode_of(s->desc->kind);
  int extremes = mode == SHF_MAX || mode == SHF_MIN;
  FLOW(&c->flow, check_given(s));
  const sheaf_dtensor *grad = shf_call_bring(c, s->args->grad_out, c->strategy.in[0]), *data = NULL, *arg = NULL;
  if (s->args->data && (extremes || mode == SHF_PROD)) data = shf_call_bring(c, s->args->data, c->strategy.out);
  if (s->args->arg && extremes) arg = shf_call_bring(c, s->args->arg, c->strategy.in[0]);
  sheaf_dtensor *out = NULL;
  FLOW(&c->flow, shf_call_output(c, c->values, c->strategy.out, &out));
  operands o = {.rows = s->row_hi - s->row_lo, .cells = c->problem.bags * s->columns};
  if (c->flow.status == SHEAF_OK) {
    o.grad_out = shf_dtensor_data(grad);
    o.data = data ? shf_dtensor_data(data) : NULL;
    o.arg = arg ? shf_dtensor_data(arg) : NULL;
    o.data_grad = shf_dtensor_data(out);
  }
  int whole = !s->cut || mode == SHF_SUM;
  if (!whole) FLOW(&c->flow, read_inputs(s, &o));
  if (whole)
    run_whole(s, &o);
  else if (mode == SHF_MEAN)
    mean_backward(s, &o);
  else if (mode == SHF_PROD)
    prod_backward(s, &o);
  else
    extreme_backward(s, &o);
  sheaf_placement target[MAX_DIMS] = {{0}};
  shf_call_target(c, 0, target);
  sheaf_dtensor_desc desc = shf_call_desc(c, c->values, c->strategy.out);
  shf_relocate(&c->flow, &desc, &out, target);
  shf_flow_wait(&c->flow, c->site.device);
  if (shf_flow_settle(&c->flow))
    *s->args->data_grad = out;
  else
    sheaf_dtensor_free(out);
}
/* NOLINTEND(clang-analyzer-core.*) */
