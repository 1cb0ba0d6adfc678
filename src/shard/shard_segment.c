/* shard/shard_segment.c: segment reductions on distributed tensors: arguments, strategy, and what both ways need. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "shard/segment_call.h"

static const struct {
  shf_segment_mode mode;
  int sorted;
} kinds[] = {
    [SHEAF_SEGMENT_SUM] = {SHF_SUM, 1},
    [SHEAF_SEGMENT_SUM_BACKWARD] = {SHF_SUM, 1},
    [SHEAF_SEGMENT_MEAN] = {SHF_MEAN, 1},
    [SHEAF_SEGMENT_MEAN_BACKWARD] = {SHF_MEAN, 1},
    [SHEAF_SEGMENT_MAX] = {SHF_MAX, 1},
    [SHEAF_SEGMENT_MIN] = {SHF_MIN, 1},
    [SHEAF_SEGMENT_PROD] = {SHF_PROD, 1},
    [SHEAF_UNSORTED_SEGMENT_SUM] = {SHF_SUM, 0},
    [SHEAF_UNSORTED_SEGMENT_SUM_BACKWARD] = {SHF_SUM, 0},
    [SHEAF_UNSORTED_SEGMENT_MEAN] = {SHF_MEAN, 0},
    [SHEAF_UNSORTED_SEGMENT_MEAN_BACKWARD] = {SHF_MEAN, 0},
    [SHEAF_UNSORTED_SEGMENT_MAX] = {SHF_MAX, 0},
    [SHEAF_UNSORTED_SEGMENT_MIN] = {SHF_MIN, 0},
    [SHEAF_SEGMENT_MAX_BACKWARD] = {SHF_MAX, 1},
    [SHEAF_SEGMENT_MIN_BACKWARD] = {SHF_MIN, 1},
    [SHEAF_SEGMENT_PROD_BACKWARD] = {SHF_PROD, 1},
    [SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD] = {SHF_MAX, 0},
    [SHEAF_UNSORTED_SEGMENT_MIN_BACKWARD] = {SHF_MIN, 0},
    [SHEAF_UNSORTED_SEGMENT_PROD] = {SHF_PROD, 0},
    [SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD] = {SHF_PROD, 0},
};

shf_segment_mode shf_segment_mode_of(sheaf_segment_kind kind) { return kinds[kind].mode; }
int shf_segment_is_sorted(sheaf_segment_kind kind) { return kinds[kind].sorted; }

sheaf_segment_kind shf_segment_forward_kind(shf_segment_mode mode, int sorted)
{
  for (int kind = 0; kind < (int)(sizeof kinds / sizeof *kinds); kind++)
    if (kinds[kind].mode == mode && kinds[kind].sorted == sorted && !shf_segment_is_backward((uint16_t)kind))
      return (sheaf_segment_kind)kind;
  return SHEAF_SEGMENT_SUM;
}

/* ---- Arguments to a problem ------------------------------------------------------------------------------------- */

static sheaf_status read_arguments(shf_call *c)
{
  const shf_segment_call *s = (const shf_segment_call *)c;
  const sheaf_segment_desc *desc = s->desc;
  const sheaf_shard_segment_args *a = s->args;
  sheaf_shard_problem *p = &c->problem;
  int backward = shf_segment_is_backward((uint16_t)desc->kind);
  const sheaf_dtensor *values = backward ? a->grad_out : a->data;
  *p = (sheaf_shard_problem)SHEAF_SHARD_PROBLEM_INIT;
  p->mesh = values->desc.mesh;
  p->category = SHEAF_CATEGORY_SEGMENT;
  p->kind = (uint16_t)desc->kind;
  p->dtype = c->values = c->weights = values->desc.dtype;
  p->index_dtype = a->ids->desc.dtype;
  SHF_REQUIRE(p->index_dtype == SHEAF_I32 || p->index_dtype == SHEAF_I64, UNSUPPORTED, "ids are of type %s",
              sheaf_dtype_name(p->index_dtype));
  SHF_REQUIRE(desc->batch == 0, UNSUPPORTED, "a distributed op has no batch");
  SHF_REQUIRE(values->desc.rank == 2 && a->ids->desc.rank == 1, INVALID_PROBLEM,
              "%s has %d dimensions and ids %d, not 2 and 1", backward ? "grad_out" : "data", values->desc.rank,
              a->ids->desc.rank);
  p->bags = desc->segments;
  p->rows = a->ids->desc.shape[0];
  p->dim = values->desc.shape[1];
  SHF_REQUIRE(values->desc.shape[0] == (backward ? p->bags : p->rows), INVALID_PROBLEM, "%s has %lld rows, not %lld",
              backward ? "grad_out" : "data", (long long)values->desc.shape[0],
              (long long)(backward ? p->bags : p->rows));
  p->index_rank = 1;
  p->index_shape[0] = p->rows;
  memcpy(p->in[0], values->desc.placements, sizeof p->in[0]);
  memcpy(p->in[1], a->ids->desc.placements, sizeof p->in[1]);
  const sheaf_dtensor *data = backward ? a->data : NULL, *arg = backward ? a->arg : NULL;
  SHF_REQUIRE(!data || (data->desc.rank == 2 && data->desc.shape[0] == p->rows && data->desc.shape[1] == p->dim &&
                        data->desc.dtype == p->dtype),
              INVALID_PROBLEM, "data does not have the shape and type that ids and grad_out ask for");
  SHF_REQUIRE(!arg || (arg->desc.rank == 2 && arg->desc.shape[0] == p->bags && arg->desc.shape[1] == p->dim &&
                       arg->desc.dtype == p->index_dtype),
              INVALID_PROBLEM, "arg does not have the shape and type that ids and grad_out ask for");
  return SHEAF_OK;
}

static void describe(const shf_call *c, char *text, size_t room)
{
  const sheaf_segment_desc *desc = ((const shf_segment_call *)c)->desc;
  snprintf(text, room, "%s of %lld segments, options %d %d %d",
           sheaf_kind_name(SHEAF_CATEGORY_SEGMENT, (uint16_t)desc->kind), (long long)desc->segments, (int)desc->empty,
           (int)desc->ties, (int)desc->bad_index);
}

/* ---- Order of ids over ranks ------------------------------------------------------------------------------------- */

/* Sorted kinds: what a rank's rows begin with must not be below what the rows before them end with. */
static sheaf_status check_order(const shf_segment_call *s)
{
  const sheaf_mesh *mesh = s->c.flow.mesh;
  int64_t last = INT64_MIN, owner = -1, coords[MAX_DIMS];
  const int64_t rows = s->c.problem.rows;
  for (int64_t rank = 0; rank < mesh->ranks; rank++) {
    shf_box box = shf_shard_box(mesh, s->c.strategy.in[1], 1, &rows, rank);
    shf_mesh_coords(mesh, rank, coords);
    int replica = 0; /* rows seen before */
    for (int m = 0; m < mesh->dims; m++) replica |= !shf_is_shard(&s->c.strategy.in[1][m]) && coords[m] != 0;
    if (replica || box.hi[0] == box.lo[0]) continue;
    const int64_t *facts = shf_agree_facts(mesh, rank);
    SHF_REQUIRE(facts[0] >= last, INVALID_PROBLEM,
                "ids: %lld, the first on rank %lld, comes after %lld, the last on rank %lld; they must not decrease",
                (long long)facts[0], (long long)rank, (long long)last, (long long)owner);
    last = facts[1];
    owner = rank;
  }
  return SHEAF_OK;
}

/* On a device a plan refuses no values: they are looked at here. */
static sheaf_status check_ids(const shf_segment_call *s, int64_t count)
{
  sheaf_dtype index = s->c.problem.index_dtype;
  if (shf_is_host(s->c.site.device)) return SHEAF_OK;
  for (int64_t i = 1; shf_segment_is_sorted(s->desc->kind) && i < count; i++) {
    int64_t before = shf_load_index(index, s->host_ids, i - 1), id = shf_load_index(index, s->host_ids, i);
    SHF_REQUIRE(id >= before, INVALID_PROBLEM, "ids must not decrease: %lld at position %lld follows %lld",
                (long long)id, (long long)i, (long long)before);
  }
  sheaf_embedding_desc policy = SHEAF_EMBEDDING_DESC_INIT;
  policy.bad_index = s->desc->bad_index;
  return shf_check_indices(&policy, "ids", index, s->host_ids, count, s->c.problem.bags);
}

static void bring_ids(shf_segment_call *s)
{
  shf_call *c = &s->c;
  const sheaf_dtensor *ids = shf_call_bring(c, s->args->ids, c->strategy.in[1]);
  int64_t facts[2] = {0, 0}, count = ids ? ids->local_shape[0] : 0;
  s->ids = shf_dtensor_data(ids);
  FLOW(&c->flow, shf_call_read(c, s->ids, count * shf_core_dtype_size(c->problem.index_dtype), &s->host_ids));
  FLOW(&c->flow, check_ids(s, count));
  if (c->flow.status == SHEAF_OK && count) {
    facts[0] = shf_load_index(c->problem.index_dtype, s->host_ids, 0);
    facts[1] = shf_load_index(c->problem.index_dtype, s->host_ids, count - 1);
  }
  if (!s->cut || !shf_segment_is_sorted(s->desc->kind)) return;
  if (shf_flow_agree_on(&c->flow, "order of ids", facts)) SURELY(&c->flow, check_order(s)); /* the same on all ranks */
  c->flow.settled = c->flow.status != SHEAF_OK;
}

/* ---- The call ---------------------------------------------------------------------------------------------------- */

static void run(shf_call *c)
{
  shf_segment_call *s = (shf_segment_call *)c;
  const sheaf_mesh *mesh = c->flow.mesh;
  int backward = shf_segment_is_backward((uint16_t)s->desc->kind);
  const int64_t shape[2] = {c->problem.rows, c->problem.dim};
  shf_box box = shf_shard_box(mesh, backward ? c->strategy.out : c->strategy.in[0], 2, shape, mesh->rank);
  s->acc = shf_core_dtype_acc(c->values);
  s->row_lo = box.lo[0];
  s->row_hi = box.hi[0];
  s->columns = box.hi[1] - box.lo[1];
  for (int m = 0; m < mesh->dims; m++) s->cut |= shf_is_shard(&c->strategy.in[1][m]);
  bring_ids(s);
  if (backward)
    shf_segment_backward(s);
  else
    shf_segment_forward(s);
}

sheaf_status sheaf_shard_segment_run(const sheaf_segment_desc *desc, const sheaf_shard_call *call,
                                     const sheaf_shard_segment_args *args)
{
  static const sheaf_segment_desc none = SHEAF_SEGMENT_DESC_INIT;
  SHF_TRY(shf_shard_check_struct(args, sizeof *args, "args"));
  shf_segment_call s = {.args = args};
  s.c.flow.status = shf_call_check_desc(desc, sizeof *desc, SHEAF_CATEGORY_SEGMENT, offsetof(sheaf_segment_desc, kind));
  s.desc = desc = s.c.flow.status == SHEAF_OK ? desc : &none;
  int backward = shf_segment_is_backward((uint16_t)desc->kind);
  const shf_call_operand operands[] = {{"ids", args->ids, 1},
                                       {"data", args->data, !backward},
                                       {"grad_out", args->grad_out, backward},
                                       {"arg", args->arg, 0}};
  const shf_call_task task = {.how = call,
                              .operands = operands,
                              .count = sizeof operands / sizeof *operands,
                              .missing = backward    ? args->data_grad ? NULL : "data_grad"
                                         : args->out ? NULL
                                                     : "out",
                              .read = read_arguments,
                              .describe = describe,
                              .run = run};
  return shf_call_run(&s.c, &task);
}

/* ---- What both ways need ----------------------------------------------------------------------------------------- */

void shf_segment_count(const shf_segment_call *s, int64_t *counts)
{
  if (s->c.problem.bags) memset(counts, 0, (size_t)s->c.problem.bags * sizeof *counts);
  for (int64_t i = 0; i < s->row_hi - s->row_lo; i++) {
    int64_t id = shf_load_index(s->c.problem.index_dtype, s->host_ids, i);
    if (id >= 0 && id < s->c.problem.bags) counts[id]++;
  }
}

/* Brings an array where it is wanted. */
static void reduce(shf_call *c, const shf_array *array, const sheaf_placement *at, shf_move *move)
{
  FLOW(&c->flow, shf_move_prepare(move, array, at));
  if (shf_flow_agree(&c->flow)) SURELY(&c->flow, shf_move_run(move));
}

void shf_segment_reduce(shf_segment_call *s, DLDevice device, void *data, int64_t cell, shf_reducer reducer,
                        int64_t width)
{
  shf_call *c = &s->c;
  /* Along mesh dimensions that cut columns every rank has its own; nothing crosses them. */
  shf_array array = {.mesh = c->flow.mesh, .device = device, .rank = 1, .cell = cell, .reducer = reducer};
  array.shape[0] = c->problem.bags * width;
  array.data = data;
  sheaf_placement whole[MAX_DIMS] = {{0}};
  for (int m = 0; m < c->flow.mesh->dims; m++)
    if (shf_is_shard(&c->strategy.in[1][m])) array.at[m] = sheaf_partial(SHEAF_PARTIAL_SUM);
  shf_move move = {0};
  reduce(c, &array, whole, &move);
  if (c->flow.status == SHEAF_OK && move.result_is_own)
    SURELY(&c->flow, shf_space_copy(device, data, move.result.data, array.shape[0] * cell));
  shf_move_free(&move);
}

void shf_segment_complete(shf_segment_call *s, DLDevice device, void *data, int64_t cell, shf_reducer reducer,
                          const sheaf_placement *at, shf_move *move)
{
  shf_call *c = &s->c;
  shf_array array = {.mesh = c->flow.mesh, .device = device, .rank = 2, .cell = cell, .reducer = reducer};
  array.shape[0] = c->problem.bags;
  array.shape[1] = c->problem.dim;
  array.data = data;
  memcpy(array.at, c->strategy.out, sizeof array.at);
  reduce(c, &array, at, move);
}

void shf_segment_complete_counts(shf_segment_call *s, int64_t *counts, const sheaf_placement *at, shf_move *move)
{
  shf_call *c = &s->c;
  shf_array array = {.mesh = c->flow.mesh, .device = shf_host(), .rank = 1, .cell = sizeof *counts};
  array.reducer = (shf_reducer){.kind = SHF_FOLD_SUM, .dtype = SHEAF_I64};
  array.shape[0] = c->problem.bags;
  array.data = (char *)counts;
  sheaf_placement to[MAX_DIMS] = {{0}};
  for (int m = 0; m < c->flow.mesh->dims; m++) {
    if (shf_is_partial(&c->strategy.out[m])) array.at[m] = c->strategy.out[m];
    if (at[m].kind == SHEAF_PLACE_SHARD && at[m].dim == 0) to[m] = at[m];
  }
  reduce(c, &array, to, move);
}

sheaf_status shf_segment_run_local(const shf_segment_call *s, const shf_segment_local *l)
{
  int64_t rows = s->row_hi - s->row_lo, segments = s->c.problem.bags;
  sheaf_segment_desc desc = SHEAF_SEGMENT_DESC_INIT;
  desc.kind = l->kind;
  desc.dtype = l->dtype;
  desc.index_dtype = s->c.problem.index_dtype;
  desc.rows = rows;
  desc.dim = s->columns;
  desc.segments = segments;
  desc.bad_index = s->desc->bad_index;
  desc.ties = s->desc->ties;
  desc.empty = l->empty;
  desc.arg_given = (uint8_t)l->arg_given;
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  shf_local data, ids, grad_out, out, arg, data_grad;
  args.ids = shf_local_vector(&ids, s->c.site, desc.index_dtype, s->ids, rows);
  if (l->data || rows * s->columns == 0)
    args.data = shf_local_matrix(&data, s->c.site, l->dtype, l->data, rows, s->columns);
  if (l->arg || l->arg_given)
    args.arg = shf_local_matrix(&arg, s->c.site, desc.index_dtype, l->arg, segments, s->columns);
  if (shf_segment_is_backward((uint16_t)l->kind)) {
    args.data_grad = shf_local_matrix(&data_grad, s->c.site, l->dtype, l->data_grad, rows, s->columns);
    args.grad_out = shf_local_matrix(&grad_out, s->c.site, l->dtype, l->grad_out, segments, s->columns);
  } else {
    args.out = shf_local_matrix(&out, s->c.site, l->dtype, l->out, segments, s->columns);
  }
  return shf_local_segment(s->c.site, &desc, &args);
}
