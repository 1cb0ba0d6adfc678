/* embedding_run.c: lookups and bags, forward and backward: checks of values, then the stages of a run. */
#include <string.h>

#include "plan/plan_impl.h"

/* One run: the plan, its operands, its memory. */
typedef struct run {
  const sheaf_plan *plan;
  const sheaf_embedding_desc *desc;
  const sheaf_embedding_args *args;
  shf_bound bound;
  shf_grouping_spec grouping; /* what the table's gradient is grouped by, and */
  shf_grouped grouped;        /* the caller's grouping, if there is one */
  char *workspace;
} run;

static shf_matrix operand(const run *r, int which) { return shf_plan_view(&r->bound, which); }

static sheaf_status check_args(const sheaf_plan *plan, const sheaf_embedding_args *args)
{
  SHF_REQUIRE(plan, INVALID_PROBLEM, "plan is NULL");
  SHF_REQUIRE(plan->category == SHEAF_CATEGORY_EMBEDDING, INVALID_PROBLEM, "this is a plan of the segment family");
  return shf_plan_check_struct(sizeof *args, args, "args");
}

/* Operands lie one behind the other in args. */
static const sheaf_operand *operands_of(const sheaf_embedding_args *args) { return &args->table; }

/* Everything that can be said without looking at values. */
static sheaf_status bind(run *r)
{
  const sheaf_plan *plan = r->plan;
  r->grouped.entries = NULL;
  SHF_TRY(shf_plan_bind(plan, operands_of(r->args), &r->bound));
  int table = r->bound.given[SHF_EMBEDDING_table_grad], weights = r->bound.given[SHF_EMBEDDING_weights_grad];
  SHF_REQUIRE(plan->spec[SHF_EMBEDDING_table_grad].need != SHF_OPTIONAL || table || weights, INVALID_PROBLEM,
              "neither table_grad nor weights_grad is given: there is nothing to compute");
  if (plan->api)
    return table ? shf_plan_device_given(plan, &r->bound, r->args->grouping, r->args->grouping_bytes,
                                         r->desc->grouping_given)
                 : SHEAF_OK;
  if (!table || !shf_plan_embedding_grouping(plan, &r->grouping)) return SHEAF_OK;
  SHF_TRY(shf_plan_given_grouping(&r->grouping, r->args->grouping, r->args->grouping_bytes, r->desc->grouping_given,
                                  &r->grouped));
  return r->grouped.entries ? shf_plan_check_apart(plan, &r->bound, "grouping", r->args->grouping,
                                                   shf_plan_grouping_read_bytes(&r->grouping))
                            : SHEAF_OK;
}

sheaf_status sheaf_embedding_can_implement(const sheaf_plan *plan, const sheaf_embedding_args *args)
{
  SHF_TRY(check_args(plan, args));
  run r;
  r.plan = plan;
  r.desc = &plan->embedding;
  r.args = args;
  return bind(&r);
}

/* ---- Checks of values ---- */

static shf_index_scan index_scan(const run *r)
{
  const sheaf_embedding_desc *d = r->desc;
  int max_backward = d->kind == SHEAF_BAG_MAX_BACKWARD;
  shf_index_scan scan = {.index = operand(r, max_backward ? SHF_EMBEDDING_arg : SHF_EMBEDDING_indices),
                         .wide = d->index_dtype == SHEAF_I64,
                         .batch = r->plan->batch,
                         .rows = max_backward ? d->bags : 1,
                         .columns = max_backward ? d->dim : d->indices,
                         .limit = d->total_rows,
                         .allow_absent = max_backward,
                         .threads = r->plan->threads};
  return scan;
}

static sheaf_status check_values(const run *r)
{
  if (r->bound.given[SHF_EMBEDDING_offsets])
    SHF_TRY(shf_plan_check_offsets(r->desc, operand(r, SHF_EMBEDDING_offsets), r->plan->batch, r->plan->threads));
  if (r->desc->bad_index == SHEAF_BAD_INDEX_SKIP && !r->args->report) return SHEAF_OK;
  shf_index_scan scan = index_scan(r);
  return shf_plan_apply_policy(&scan, r->desc->kind == SHEAF_BAG_MAX_BACKWARD ? "arg" : "indices", r->desc->bad_index,
                               r->args->report);
}

/* ---- Stages ---- */

/* Zeros, added, change nothing, and nobody has to look at each row whether it is there. (Zen 5, bags of 20 rows of 64 floats, one
 * in twenty of them padding: 1.50 to 0.98 ms; where seven of eight are held elsewhere, 0.79 to 0.54.) Not for wide rows of which
 * next to none are: of 1024 floats 0.39 to 0.30 ms with one in eight, but 0.10 to 0.15 with one in 32. (Means of weights over a part
 * of a table need the weights of rows that are not there.) */
static const char *no_row(const sheaf_embedding_desc *d, int64_t row_bytes)
{
  enum { MOST_BYTES = 4096, NARROW = 512, PART = 16 };
  static const _Alignas(64) char zeros[MOST_BYTES];
  const int has_all = d->row_begin == 0 && d->total_rows == d->rows;
  if (d->kind != SHEAF_BAG_SUM && (d->kind != SHEAF_BAG_MEAN || (d->weighted && !has_all))) return NULL;
  return row_bytes <= (d->total_rows / PART <= d->rows ? MOST_BYTES : NARROW) ? zeros : NULL;
}

void shf_plan_embedding_job(sheaf_plan *plan)
{
  const sheaf_embedding_desc *d = &plan->embedding;
  int matrix = d->bag_form == SHEAF_BAGS_MATRIX;
  int keeps_padding = d->kind == SHEAF_LOOKUP && d->padding == SHEAF_PADDING_ROW;
  plan->job = (shf_job){.category = SHEAF_CATEGORY_EMBEDDING,
                        .dim = d->dim,
                        .entries = d->indices,
                        .groups = d->bags,
                        .bag_length = matrix ? (d->bags ? d->indices / d->bags : 0) : -1,
                        .rows = d->rows,
                        .row_bytes = plan->row_bytes,
                        .row_begin = d->row_begin,
                        .total_rows = d->total_rows,
                        .padding = d->has_padding && !keeps_padding ? d->padding_idx : -1,
                        .no_row = no_row(d, plan->row_bytes),
                        .offsets_wide = d->offset_dtype == SHEAF_I64,
                        .offsets_end = d->bag_form == SHEAF_BAGS_OFFSETS_END,
                        .out_dtype = d->out_dtype,
                        .mean = d->kind == SHEAF_BAG_MEAN || d->kind == SHEAF_BAG_MEAN_BACKWARD,
                        .slot_bytes = plan->layout.slot_bytes};
}

/* What every stage over indices has in common. */
static void index_job(const run *r, shf_job *job)
{
  *job = r->plan->job;
  job->index = operand(r, SHF_EMBEDDING_indices);
  job->offsets = operand(r, SHF_EMBEDDING_offsets);
  job->weights = operand(r, SHF_EMBEDDING_weights);
  job->partials = r->workspace + r->plan->layout.partials;
}

static void run_stage(const run *r, const shf_job *job, shf_axis axis, shf_part_fn *part, shf_join_fn *join,
                      int64_t bytes)
{
  shf_stage stage = {.job = job,
                     .axis = axis,
                     .batch = r->plan->batch,
                     .threads = r->plan->threads,
                     .bytes = bytes * r->plan->batch,
                     .run = part,
                     .join = join,
                     .scratch = r->workspace + r->plan->layout.scratch,
                     .scratch_bytes = r->plan->layout.scratch_bytes};
  shf_plan_run_stage(&stage);
}

static int streams(const run *r, const shf_job *job, int64_t rows)
{
  return shf_plan_streams(&job->target, r->plan->batch * rows, r->plan->out_row_bytes);
}

static void run_lookup(const run *r)
{
  shf_job job;
  index_job(r, &job);
  job.source = operand(r, SHF_EMBEDDING_table);
  job.target = operand(r, SHF_EMBEDDING_out);
  job.ahead = r->plan->ahead;
  job.beside = r->plan->asking.beside;
  job.again = r->plan->asking.again;
  job.stream = streams(r, &job, job.entries);
  run_stage(r, &job, SHF_BY_ENTRIES, r->plan->row->apply, NULL, job.entries * (8 + 2 * r->plan->row_bytes));
}

/* By a sample, whose equal pairs are counted. (A power law with exponent 1.05 over ten million rows has 20, uniform indices have
 * none.) Of few entries nothing is known; a batch is judged by its first problem. */
static shf_repetition rows_repeat(const run *r, const shf_job *job)
{
  enum { SAMPLE = 64, LEAST_EACH = 64, MANY = 4, SCATTER = 7919 };
  const int64_t step = job->entries / SAMPLE;
  const int wide = r->desc->index_dtype == SHEAF_I64;
  int64_t sample[SAMPLE];
  int equal = 0;
  if (step < LEAST_EACH || !r->plan->looks_for_repeats) return SHF_REPEAT_UNKNOWN;
  for (int i = 0; i < SAMPLE; i++) { /* not at equal distances, which might be a bag's length */
    const int64_t index = shf_plan_index_at(job->index.data, i * step + i * SCATTER % step, wide);
    const uint64_t row = (uint64_t)index - (uint64_t)job->row_begin;
    sample[i] = row < (uint64_t)job->rows && index != job->padding ? index : -1 - i; /* all others differ */
  }
  for (int i = 1; i < SAMPLE; i++)
    for (int j = 0; j < i; j++) equal += sample[i] == sample[j];
  return equal >= MANY ? SHF_REPEAT_OFTEN : SHF_REPEAT_NOT;
}

static void run_bags(const run *r)
{
  shf_job job;
  index_job(r, &job);
  job.source = operand(r, SHF_EMBEDDING_table);
  job.target = operand(r, SHF_EMBEDDING_out);
  job.arg = operand(r, SHF_EMBEDDING_arg);
  job.arg_wide = r->desc->index_dtype == SHEAF_I64;
  job.fill = 1;
  job.mean_forward = job.mean;
  job.ahead = r->plan->ahead;
  job.stream = streams(r, &job, job.groups);
  int64_t bytes = job.entries * (8 + r->plan->row_bytes) + job.groups * (8 + r->plan->row_bytes);
  job.repeats = rows_repeat(r, &job);
  const shf_asking *asking = job.repeats == SHF_REPEAT_OFTEN ? &r->plan->asking_often : &r->plan->asking;
  job.beside = asking->beside;
  job.again = asking->again;
  run_stage(r, &job, SHF_BY_OFFSETS, r->plan->row->reduce, r->plan->row->join, bytes);
}

static shf_matrix divisors(const run *r)
{
  int64_t each = r->plan->acc_bytes;
  return (shf_matrix){r->workspace + r->plan->layout.counts, each, r->desc->bags * each};
}

/* Mean backward needs what each bag was divided by. */
static void run_divisors(const run *r)
{
  shf_job job;
  index_job(r, &job);
  job.dim = 0;
  job.source = (shf_matrix){r->workspace, 0, 0}; /* rows without columns: an address to count with, never read */
  job.target = divisors(r);
  job.target_is_acc = 1;
  job.fill = 1;
  job.mean_forward = 1;
  run_stage(r, &job, SHF_BY_OFFSETS, r->plan->row->prepare, r->plan->row->prepare_join, (job.entries + job.groups) * 8);
}

/* Clears a gradient whose groups are cells: cheaper by rows than cell by cell. */
typedef struct clear_task {
  shf_matrix rows;
  int64_t problems, count, bytes;
  int threads;
} clear_task;

static void clear_share(void *context, int thread)
{
  const clear_task *task = context;
  int64_t all = task->problems * task->count, last = shf_plan_share(all, thread + 1, task->threads);
  for (int64_t i = shf_plan_share(all, thread, task->threads); i < last; i++)
    memset(task->rows.data + i / task->count * task->rows.batch_stride + i % task->count * task->rows.row_stride, 0,
           (size_t)task->bytes);
}

static void clear_table_grad(const run *r)
{
  clear_task task = {operand(r, SHF_EMBEDDING_table_grad), r->plan->batch, r->desc->rows, r->plan->row_bytes, 1};
  task.threads = shf_plan_worth(task.problems * task.count * task.bytes, r->plan->threads);
  shf_plan_parallel(task.threads, clear_share, &task);
}

/* Rows of grad_out stay in the cache beside those of the table, whose turn they take, only while they are few. */
enum { SOURCE_CACHED_BYTES = 256 << 10 };

/* Where rows are asked for beside others, those of grad_out are as well if they are so wide (Zen 5, gradients of lookups: 128
 * floats 102 to 40 ns a row, 64 37 to 31, stored without reading 37 to 26; 32 8 % slower). */
enum { LEAST_SOURCE_BESIDE = 256 };

static void run_table_grad(const run *r, const shf_grouped *grouped)
{
  const sheaf_embedding_desc *d = r->desc;
  shf_job job;
  index_job(r, &job);
  job.groups = d->rows;
  job.source = operand(r, SHF_EMBEDDING_grad_out);
  job.target = operand(r, SHF_EMBEDDING_table_grad);
  job.grouped = *grouped;
  job.accumulate = d->grad_write == SHEAF_GRAD_ACCUMULATE;
  job.fill = d->grad_write == SHEAF_GRAD_OVERWRITE;
  job.stream = d->grad_write == SHEAF_GRAD_TOUCHED && d->kind != SHEAF_BAG_MAX_BACKWARD &&
               shf_plan_streams(&job.target, r->plan->batch * d->rows, job.row_bytes);
  job.by_frequency = d->scale_grad_by_freq;
  if (d->kind == SHEAF_LOOKUP_BACKWARD) job.bag_length = -1;
  if (job.mean) job.counts = divisors(r);
  job.ahead = shf_plan_ahead(d->rows, job.row_bytes, SHF_UPDATE_AHEAD, SHF_MOST_AHEAD);
  job.fetch_source =
      (d->kind == SHEAF_LOOKUP_BACKWARD ? d->indices : d->bags) > SOURCE_CACHED_BYTES / (job.row_bytes + 1);
  job.source_beside = job.fetch_source && job.ahead && r->plan->asking.beside && job.row_bytes >= LEAST_SOURCE_BESIDE;
  if (job.source_beside) job.fetch_source = 0;
  job.beside = job.ahead && (!job.stream || job.source_beside) ? r->plan->asking.beside : 0;
  if (d->kind == SHEAF_BAG_MAX_BACKWARD) {
    job.ahead = job.beside = 0;
    if (job.fill) clear_table_grad(r);
    job.fill = 0;
    job.columns = d->dim;
    job.dim = 1;
    job.entries = d->bags * d->dim;
    job.groups = d->rows * d->dim;
  }
  int64_t bytes =
      job.entries * (8 + sheaf_dtype_row_bytes(d->dtype, job.dim)) + (job.fill ? job.groups * r->plan->row_bytes : 0);
  run_stage(r, &job, SHF_BY_GROUPED, r->plan->row->reduce, r->plan->row->join, bytes);
}

static void run_weights_grad(const run *r)
{
  shf_job job;
  index_job(r, &job);
  job.source = operand(r, SHF_EMBEDDING_table);
  job.grad_out = operand(r, SHF_EMBEDDING_grad_out);
  job.target = operand(r, SHF_EMBEDDING_weights_grad);
  job.forward = operand(r, SHF_EMBEDDING_out);
  job.ahead = r->plan->ahead;
  if (job.mean) job.counts = divisors(r);
  run_stage(r, &job, SHF_BY_ENTRIES, r->plan->row->apply, NULL, job.entries * (8 + r->plan->row_bytes));
}

static void run_backward(run *r)
{
  int table = r->bound.given[SHF_EMBEDDING_table_grad] && r->desc->dim > 0;
  if (table && !r->grouped.entries) {
    r->grouping.index = operand(r, r->desc->kind == SHEAF_BAG_MAX_BACKWARD ? SHF_EMBEDDING_arg : SHF_EMBEDDING_indices);
    r->grouping.offsets = operand(r, SHF_EMBEDDING_offsets);
    r->grouped = shf_plan_group(&r->grouping, r->workspace);
  }
  if (r->desc->kind == SHEAF_BAG_MEAN_BACKWARD) run_divisors(r);
  if (r->bound.given[SHF_EMBEDDING_weights_grad]) run_weights_grad(r);
  if (table) run_table_grad(r, &r->grouped);
}

sheaf_status sheaf_embedding_run(const sheaf_plan *plan, void *workspace, size_t workspace_bytes, void *stream,
                                 const sheaf_embedding_args *args)
{
  SHF_TRY(check_args(plan, args));
  run r; /* bind sets the rest */
  r.plan = plan;
  r.desc = &plan->embedding;
  r.args = args;
  r.workspace = workspace ? workspace : shf_plan_nowhere;
  SHF_TRY(bind(&r));
  SHF_TRY(
      shf_plan_check_memory("workspace", workspace, workspace_bytes, plan->layout.total, SHEAF_WORKSPACE_TOO_SMALL));
  SHF_TRY(shf_plan_check_apart(plan, &r.bound, "workspace", workspace, plan->layout.total));
  if (plan->api) return shf_plan_device_run(plan, &r.bound, args->grouping, workspace, args->report, stream);
  if (r.grouped.entries)
    SHF_TRY(shf_plan_check_pieces(workspace, plan->layout.total, args->grouping,
                                  shf_plan_grouping_read_bytes(&r.grouping)));
  SHF_TRY(check_values(&r));
  if (r.desc->dim == 0 && !r.bound.given[SHF_EMBEDDING_weights_grad]) return SHEAF_OK; /* no element to write */
  if (plan->spec[SHF_EMBEDDING_grad_out].need == SHF_REQUIRED)
    run_backward(&r);
  else if (r.desc->kind == SHEAF_LOOKUP)
    run_lookup(&r);
  else
    run_bags(&r);
  return SHEAF_OK;
}

/* ---- Grouping ---- */

size_t sheaf_grouping_size(const sheaf_plan *plan)
{
  shf_grouping_spec spec;
  if (!plan || plan->api) return plan ? (size_t)plan->grouping_bytes : 0;
  int grouped = plan->category == SHEAF_CATEGORY_EMBEDDING ? shf_plan_embedding_grouping(plan, &spec)
                                                           : shf_plan_segment_grouping(plan, &spec);
  return grouped ? (size_t)shf_plan_grouping_bytes(&spec) : 0;
}

sheaf_status sheaf_embedding_grouping_build(const sheaf_plan *plan, void *grouping, size_t grouping_bytes, void *stream,
                                            const sheaf_embedding_args *args)
{
  SHF_TRY(check_args(plan, args));
  shf_grouping_spec spec;
  SHF_REQUIRE(shf_plan_embedding_grouping(plan, &spec), INVALID_PROBLEM, "%s needs no grouping",
              sheaf_kind_name(plan->category, plan->row->kind));
  int max_backward = plan->embedding.kind == SHEAF_BAG_MAX_BACKWARD;
  run r = {.plan = plan, .desc = &plan->embedding, .args = args};
  memset(&r.bound, 0, sizeof r.bound);
  /* Only these are looked at: the rest of args may not exist yet. */
  int wanted[] = {max_backward ? SHF_EMBEDDING_arg : SHF_EMBEDDING_indices, SHF_EMBEDDING_offsets};
  for (int i = 0; i < 2; i++) {
    if (plan->spec[wanted[i]].need != SHF_REQUIRED) continue;
    SHF_TRY(shf_plan_bind_input(plan, wanted[i], &operands_of(args)[wanted[i]], &r.bound));
  }
  if (plan->api) return shf_plan_device_group(plan, &r.bound, grouping, grouping_bytes, args->report, stream);
  SHF_TRY(shf_plan_check_memory("grouping", grouping, grouping_bytes, shf_plan_grouping_bytes(&spec),
                                SHEAF_BUFFER_TOO_SMALL));
  SHF_TRY(shf_plan_check_apart(plan, &r.bound, "grouping", grouping, shf_plan_grouping_bytes(&spec)));
  SHF_TRY(check_values(&r));
  spec.index = operand(&r, wanted[0]);
  spec.offsets = operand(&r, SHF_EMBEDDING_offsets);
  shf_plan_group(&spec, grouping);
  return SHEAF_OK;
}
