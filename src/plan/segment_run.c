/* segment_run.c: segment reductions, forward and backward: checks of values, then the stages of a run. */
#include <math.h>
#include <string.h>

#include "plan/segment_impl.h"

typedef struct run {
  const sheaf_plan *plan;
  const sheaf_segment_desc *desc;
  const shf_segment_traits *traits;
  const sheaf_segment_args *args;
  shf_bound bound;
  shf_grouping_spec grouping; /* of unsorted ids, where something is reduced over them, and */
  shf_grouped grouped;        /* the caller's grouping, if there is one */
  char *workspace;
} run;

static shf_matrix operand(const run *r, int which) { return shf_plan_view(&r->bound, which); }
static int wide(const run *r) { return r->desc->index_dtype == SHEAF_I64; }

static sheaf_status check_args(const sheaf_plan *plan, const sheaf_segment_args *args)
{
  SHF_REQUIRE(plan, INVALID_PROBLEM, "plan is NULL");
  SHF_REQUIRE(plan->category == SHEAF_CATEGORY_SEGMENT, INVALID_PROBLEM, "this is a plan of the embedding family");
  return shf_plan_check_struct(sizeof *args, args, "args");
}

/* Operands lie one behind the other in args. */
static const sheaf_operand *operands_of(const sheaf_segment_args *args) { return &args->data; }

static run open_run(const sheaf_plan *plan, const sheaf_segment_args *args, void *workspace)
{
  run r = {.plan = plan, .desc = &plan->segment, .args = args};
  r.traits = shf_plan_segment_traits(r.desc->kind);
  r.workspace = workspace ? workspace : shf_plan_nowhere;
  return r;
}

/* Everything that can be said without looking at values. */
static sheaf_status bind(run *r)
{
  SHF_TRY(shf_plan_bind(r->plan, operands_of(r->args), &r->bound));
  if (r->plan->api)
    return shf_plan_device_given(r->plan, &r->bound, r->args->grouping, r->args->grouping_bytes,
                                 r->desc->grouping_given);
  if (!shf_plan_segment_grouping(r->plan, &r->grouping)) return SHEAF_OK;
  SHF_TRY(shf_plan_given_grouping(&r->grouping, r->args->grouping, r->args->grouping_bytes, r->desc->grouping_given,
                                  &r->grouped));
  return r->grouped.entries ? shf_plan_check_apart(r->plan, &r->bound, "grouping", r->args->grouping,
                                                   shf_plan_grouping_read_bytes(&r->grouping))
                            : SHEAF_OK;
}

sheaf_status sheaf_segment_can_implement(const sheaf_plan *plan, const sheaf_segment_args *args)
{
  SHF_TRY(check_args(plan, args));
  run r = open_run(plan, args, NULL);
  return bind(&r);
}

static sheaf_status check_values(const run *r)
{
  const sheaf_segment_desc *d = r->desc;
  shf_matrix ids = operand(r, SHF_SEGMENT_ids);
  if (!r->traits->unsorted) SHF_TRY(shf_plan_check_sorted(ids, wide(r), r->plan->batch, d->rows, r->plan->threads));
  shf_index_scan scan = {.index = ids,
                         .wide = wide(r),
                         .batch = r->plan->batch,
                         .rows = 1,
                         .columns = d->rows,
                         .limit = d->segments,
                         .threads = r->plan->threads};
  return shf_plan_apply_policy(&scan, "ids", d->bad_index, r->args->report);
}

/* ---- Stages ---- */

static void segment_job(const run *r, shf_job *job)
{
  *job = r->plan->job;
  job->source = operand(r, SHF_SEGMENT_data);
  job->index = operand(r, SHF_SEGMENT_ids);
  job->partials = r->workspace + r->plan->layout.partials;
}

void shf_plan_segment_job(sheaf_plan *plan)
{
  const sheaf_segment_desc *d = &plan->segment;
  plan->job = (shf_job){.category = SHEAF_CATEGORY_SEGMENT,
                        .dim = d->dim,
                        .entries = d->rows,
                        .groups = d->segments,
                        .bag_length = -1,
                        .padding = -1,
                        .row_bytes = plan->row_bytes,
                        .out_dtype = d->dtype,
                        .slot_bytes = plan->layout.slot_bytes};
}

static void run_stage(const run *r, const shf_job *job, shf_axis axis, shf_part_fn *part, shf_join_fn *join)
{
  int64_t rows = r->desc->rows * (axis == SHF_BY_ENTRIES ? 2 : 1) + r->desc->segments;
  shf_stage stage = {.job = job,
                     .axis = axis,
                     .wide = wide(r),
                     .batch = r->plan->batch,
                     .threads = r->plan->threads,
                     .bytes = r->plan->batch * (rows * r->plan->row_bytes + r->desc->rows * 8),
                     .run = part,
                     .join = join,
                     .scratch = r->workspace + r->plan->layout.scratch,
                     .scratch_bytes = r->plan->layout.scratch_bytes};
  shf_plan_run_stage(&stage);
}

/* Reduces by runs of sorted ids, or by grouped entries. */
static void run_reduction(const run *r, shf_job *job, const shf_grouped *grouped, shf_part_fn *part, shf_join_fn *join)
{
  if (grouped) job->grouped = *grouped;
  if (grouped && grouped->payload_is_value) job->source = (shf_matrix){(char *)grouped->entries, 8, 0};
  job->ahead = grouped ? r->plan->ahead : 0;
  job->beside = job->ahead ? r->plan->asking.beside : 0;
  job->in_order = r->plan->in_order;
  job->fill = 1;
  run_stage(r, job, grouped ? SHF_BY_GROUPED : SHF_BY_IDS, part, join);
}

static double empty_value(const run *r)
{
  int identity = r->desc->empty == SHEAF_EMPTY_IDENTITY;
  switch (r->traits->reduce) {
  case SHF_REDUCE_SUM:
    return 0;
  case SHF_REDUCE_MEAN:
    return identity ? (double)NAN : 0;
  case SHF_REDUCE_MAX:
    return identity ? (double)-INFINITY : 0;
  case SHF_REDUCE_MIN:
    return identity ? (double)INFINITY : 0;
  case SHF_REDUCE_PROD:
    return 1;
  }
  return 0;
}

static void run_forward(const run *r, const shf_grouped *grouped)
{
  shf_job job;
  segment_job(r, &job);
  job.target = operand(r, SHF_SEGMENT_out);
  job.arg = operand(r, SHF_SEGMENT_arg);
  job.arg_wide = wide(r);
  job.empty = empty_value(r);
  job.stream = shf_plan_streams(&job.target, r->plan->batch * r->desc->segments, r->plan->row_bytes);
  run_reduction(r, &job, grouped, r->plan->row->reduce, r->plan->row->join);
}

/* Rows of the workspace, [S, D] per problem. */
static shf_matrix own_rows(const run *r, int64_t at, int64_t element_bytes)
{
  int64_t row = r->desc->dim * element_bytes;
  return (shf_matrix){r->workspace + at, row, r->desc->segments * row};
}

/* What backward needs from the forward pass, made again: arg; or extremes and how often they occur; or products and
 * zeros. */
static void prepare(const run *r, const shf_grouped *grouped)
{
  const shf_layout *at = &r->plan->layout;
  shf_job job;
  segment_job(r, &job);
  job.target_is_acc = 1;
  if (shf_plan_is_extreme(r->traits) && r->desc->ties == SHEAF_TIES_FIRST) {
    job.arg = own_rows(r, at->arg, 8);
    job.arg_wide = 1;
    run_reduction(r, &job, grouped, r->plan->row->prepare, r->plan->row->prepare_join);
    return;
  }
  job.target = own_rows(r, at->forward, r->plan->acc_bytes);
  if (shf_plan_is_extreme(r->traits)) {
    job.count_ties = 1;
    job.counts = own_rows(r, at->counts, r->plan->acc_bytes);
    run_reduction(r, &job, grouped, r->plan->row->prepare, r->plan->row->prepare_join);
    return;
  }
  job.transform = SHF_LOAD_ZERO_AS_ONE;
  run_reduction(r, &job, grouped, r->plan->row->prepare, r->plan->row->prepare_join);
  job.transform = SHF_LOAD_IS_ZERO;
  job.target = own_rows(r, at->counts, r->plan->acc_bytes);
  run_reduction(r, &job, grouped, r->plan->row->prepare, r->plan->row->prepare_join);
}

/* ---- Rows per segment, for mean backward ---- */

typedef struct count_task {
  const run *r;
  int threads;
  int64_t *counts; /* one array of batch * segments per thread; the first ends up with the sum */
} count_task;

static void count_share(void *context, int thread)
{
  const count_task *task = context;
  const sheaf_segment_desc *d = task->r->desc;
  shf_matrix ids = task->r->bound.view[SHF_SEGMENT_ids];
  int64_t all = task->r->plan->batch * d->rows, cells = task->r->plan->batch * d->segments;
  int64_t at = shf_plan_share(all, thread, task->threads), last = shf_plan_share(all, thread + 1, task->threads);
  int64_t *counts = task->counts + thread * cells;
  memset(counts, 0, (size_t)cells * sizeof *counts);
  while (at < last) {
    int64_t problem = at / d->rows, first = at % d->rows;
    int64_t end = d->rows - first < last - at ? d->rows : first + last - at;
    for (int64_t n = first, next; n < end; n = next) { /* of equal ids at once, lest each waits for the one before it */
      const char *of_problem = ids.data + problem * ids.batch_stride;
      const int64_t id = shf_plan_index_at(of_problem, n, wide(task->r));
      for (next = n + 1; next < end && shf_plan_index_at(of_problem, next, wide(task->r)) == id;) next++;
      if ((uint64_t)id < (uint64_t)d->segments) counts[problem * d->segments + id] += next - n;
    }
    at += end - first;
  }
}

static void add_counts(void *context, int thread)
{
  const count_task *task = context;
  int64_t cells = task->r->plan->batch * task->r->desc->segments;
  int64_t first = cells * thread / task->threads, last = cells * (thread + 1) / task->threads;
  for (int t = 1; t < task->threads; t++)
    for (int64_t i = first; i < last; i++) task->counts[i] += task->counts[t * cells + i];
}

static shf_matrix count_rows(const run *r)
{
  count_task task = {.r = r, .counts = (int64_t *)(void *)(r->workspace + r->plan->layout.counts)};
  if (r->desc->segments == 0) return (shf_matrix){NULL, 0, 0};
  task.threads = shf_plan_worth(r->plan->batch * r->desc->rows * 8, shf_plan_counting_threads(r->plan));
  shf_plan_parallel(task.threads, count_share, &task);
  if (task.threads > 1) shf_plan_parallel(task.threads, add_counts, &task);
  return (shf_matrix){(char *)task.counts, 8, r->desc->segments * 8};
}

static void run_backward(const run *r, const shf_grouped *grouped)
{
  const shf_layout *at = &r->plan->layout;
  int prepares = shf_plan_segment_prepares(r->desc);
  if (prepares) prepare(r, grouped);
  shf_job job;
  segment_job(r, &job);
  job.grad_out = operand(r, SHF_SEGMENT_grad_out);
  job.target = operand(r, SHF_SEGMENT_data_grad);
  job.arg = operand(r, SHF_SEGMENT_arg);
  job.arg_wide = wide(r);
  job.ahead = shf_plan_ahead(r->desc->segments, r->plan->row_bytes, SHF_READ_AHEAD, SHF_MOST_AHEAD_COPY);
  job.beside = job.ahead ? r->plan->asking.beside : 0;
  job.again = r->plan->asking.again;
  job.count_ties = r->desc->ties == SHEAF_TIES_SPLIT;
  if (prepares && shf_plan_is_extreme(r->traits) && !job.count_ties) {
    job.arg = own_rows(r, at->arg, 8);
    job.arg_wide = 1;
  }
  if (prepares && !job.arg.data) {
    job.forward = own_rows(r, at->forward, r->plan->acc_bytes);
    job.counts = own_rows(r, at->counts, r->plan->acc_bytes);
  }
  if (r->traits->reduce == SHF_REDUCE_MEAN) job.counts = count_rows(r);
  job.stream = shf_plan_streams(&job.target, r->plan->batch * r->desc->rows, r->plan->row_bytes);
  run_stage(r, &job, SHF_BY_ENTRIES, r->plan->row->apply, NULL);
}

/* Single columns are grouped themselves, instead of their positions: what is summed then lies in order. */
static int sums_values(const run *r)
{
  return r->desc->dim == 1 && !r->traits->backward && !shf_plan_is_extreme(r->traits) &&
         shf_plan_groups_values(&r->grouping, r->plan->row_bytes);
}

sheaf_status sheaf_segment_run(const sheaf_plan *plan, void *workspace, size_t workspace_bytes, void *stream,
                               const sheaf_segment_args *args)
{
  SHF_TRY(check_args(plan, args));
  run r = open_run(plan, args, workspace);
  SHF_TRY(bind(&r));
  SHF_TRY(
      shf_plan_check_memory("workspace", workspace, workspace_bytes, plan->layout.total, SHEAF_WORKSPACE_TOO_SMALL));
  SHF_TRY(shf_plan_check_apart(plan, &r.bound, "workspace", workspace, plan->layout.total));
  if (plan->api) return shf_plan_device_run(plan, &r.bound, args->grouping, workspace, args->report, stream);
  if (r.grouped.entries)
    SHF_TRY(shf_plan_check_pieces(workspace, plan->layout.total, args->grouping,
                                  shf_plan_grouping_read_bytes(&r.grouping)));
  SHF_TRY(check_values(&r));
  if (r.desc->dim == 0) return SHEAF_OK; /* no element to write */
  const shf_grouped *grouped = NULL;
  if (shf_plan_segment_grouping(plan, &r.grouping)) {
    r.grouping.index = operand(&r, SHF_SEGMENT_ids);
    if (!r.grouped.entries && sums_values(&r)) {
      r.grouping.value_bytes = (int)plan->row_bytes;
      r.grouping.values = operand(&r, SHF_SEGMENT_data);
    }
    if (!r.grouped.entries) r.grouped = shf_plan_group(&r.grouping, r.workspace);
    grouped = &r.grouped;
  }
  if (r.traits->backward)
    run_backward(&r, grouped);
  else
    run_forward(&r, grouped);
  return SHEAF_OK;
}

sheaf_status sheaf_segment_grouping_build(const sheaf_plan *plan, void *grouping, size_t grouping_bytes, void *stream,
                                          const sheaf_segment_args *args)
{
  SHF_TRY(check_args(plan, args));
  run r = open_run(plan, args, NULL);
  SHF_REQUIRE(shf_plan_segment_grouping(plan, &r.grouping), INVALID_PROBLEM, "%s needs no grouping as it is described",
              sheaf_kind_name(plan->category, plan->row->kind));
  SHF_TRY(shf_plan_bind_input(plan, SHF_SEGMENT_ids, &args->ids, &r.bound));
  if (plan->api) return shf_plan_device_group(plan, &r.bound, grouping, grouping_bytes, args->report, stream);
  SHF_TRY(shf_plan_check_memory("grouping", grouping, grouping_bytes, shf_plan_grouping_bytes(&r.grouping),
                                SHEAF_BUFFER_TOO_SMALL));
  SHF_TRY(shf_plan_check_apart(plan, &r.bound, "grouping", grouping, shf_plan_grouping_bytes(&r.grouping)));
  SHF_TRY(check_values(&r));
  r.grouping.index = operand(&r, SHF_SEGMENT_ids);
  shf_plan_group(&r.grouping, grouping);
  return SHEAF_OK;
}
