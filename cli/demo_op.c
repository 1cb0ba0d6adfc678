/* cli/demo_op.c: the operations of `sheaf demo`: what each is, how it is run, which bytes it has to move. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_tools.h"
#include "demo.h"

#define IS_BACKWARD(KIND, FORWARD) (SHEAF_##KIND != SHEAF_##FORWARD)
#define EMBEDDING(label, KIND, FORWARD, mode, weighted)                          \
  {label, SHEAF_CATEGORY_EMBEDDING, SHEAF_##KIND, SHEAF_##FORWARD, mode,         \
   IS_BACKWARD(KIND, FORWARD), weighted, false, DEMO_GATHER}
#define SEGMENT(label, KIND, FORWARD, mode, sorted)                              \
  {label, SHEAF_CATEGORY_SEGMENT, SHEAF_##KIND, SHEAF_##FORWARD, mode,           \
   IS_BACKWARD(KIND, FORWARD), false, sorted, IS_BACKWARD(KIND, FORWARD) ? DEMO_COPY : DEMO_READ}

static const demo_op ops[] = {
  EMBEDDING("lookup", LOOKUP, LOOKUP, DEMO_LOOKUP, false),
  EMBEDDING("lookup backward", LOOKUP_BACKWARD, LOOKUP, DEMO_LOOKUP, false),
  EMBEDDING("bag sum", BAG_SUM, BAG_SUM, DEMO_SUM, false),
  EMBEDDING("bag sum backward", BAG_SUM_BACKWARD, BAG_SUM, DEMO_SUM, false),
  EMBEDDING("bag mean", BAG_MEAN, BAG_MEAN, DEMO_MEAN, false),
  EMBEDDING("bag mean backward", BAG_MEAN_BACKWARD, BAG_MEAN, DEMO_MEAN, false),
  EMBEDDING("bag max", BAG_MAX, BAG_MAX, DEMO_MAX, false),
  EMBEDDING("bag max backward", BAG_MAX_BACKWARD, BAG_MAX, DEMO_MAX, false),
  EMBEDDING("bag weighted", BAG_SUM, BAG_SUM, DEMO_SUM, true),
  EMBEDDING("bag weighted backward", BAG_SUM_BACKWARD, BAG_SUM, DEMO_SUM, true),
  SEGMENT("segment sum", SEGMENT_SUM, SEGMENT_SUM, DEMO_SUM, true),
  SEGMENT("segment sum backward", SEGMENT_SUM_BACKWARD, SEGMENT_SUM, DEMO_SUM, true),
  SEGMENT("segment mean", SEGMENT_MEAN, SEGMENT_MEAN, DEMO_MEAN, true),
  SEGMENT("segment mean backward", SEGMENT_MEAN_BACKWARD, SEGMENT_MEAN, DEMO_MEAN, true),
  SEGMENT("segment max", SEGMENT_MAX, SEGMENT_MAX, DEMO_MAX, true),
  SEGMENT("segment max backward", SEGMENT_MAX_BACKWARD, SEGMENT_MAX, DEMO_MAX, true),
  SEGMENT("unsorted sum", UNSORTED_SEGMENT_SUM, UNSORTED_SEGMENT_SUM, DEMO_SUM, false),
  SEGMENT("unsorted sum backward", UNSORTED_SEGMENT_SUM_BACKWARD, UNSORTED_SEGMENT_SUM, DEMO_SUM, false),
  SEGMENT("unsorted mean", UNSORTED_SEGMENT_MEAN, UNSORTED_SEGMENT_MEAN, DEMO_MEAN, false),
  SEGMENT("unsorted mean backward", UNSORTED_SEGMENT_MEAN_BACKWARD, UNSORTED_SEGMENT_MEAN, DEMO_MEAN, false),
  SEGMENT("unsorted max", UNSORTED_SEGMENT_MAX, UNSORTED_SEGMENT_MAX, DEMO_MAX, false),
  SEGMENT("unsorted max backward", UNSORTED_SEGMENT_MAX_BACKWARD, UNSORTED_SEGMENT_MAX, DEMO_MAX, false),
};

int demo_op_count(void) { return sizeof ops / sizeof *ops; }

const demo_op *demo_op_at(int position) { return &ops[position]; }

/* ---- Plans and operands -------------------------------------------------------------------------------------- */

enum { MAX_OPERANDS = 16, MAX_RUNS = 1000 };

/* An operation ready to run. The operands' tensors live here, so it is never copied. */
typedef struct prepared {
  const demo_op *op;
  const demo_data *data;
  sheaf_plan *plan;
  void *workspace;
  sheaf_embedding_args embedding;
  sheaf_segment_args segment;
  sheaf_operand indices[DEMO_INDEX_SETS];
  struct {
    DLTensor dl;
    int64_t shape[2];
  } tensors[MAX_OPERANDS];
  int tensor_count;
} prepared;

/* A matrix, or a vector when dim is 0. */
static sheaf_operand add_operand(prepared *p, void *values, sheaf_dtype dtype, int64_t rows, int64_t dim)
{
  int i = p->tensor_count++;
  p->tensors[i].shape[0] = rows;
  p->tensors[i].shape[1] = dim;
  DLDevice device = p->data->on.block ? p->data->on.device : (DLDevice){kDLCPU, 0};
  p->tensors[i].dl = (DLTensor){.data = demo_place(p->data, values), .device = device, .ndim = dim ? 2 : 1,
                                .dtype = sheaf_dtype_to_dl(dtype), .shape = p->tensors[i].shape};
  return (sheaf_operand){&p->tensors[i].dl, (size_t)(rows * sheaf_dtype_row_bytes(dtype, dim ? dim : 1))};
}

static void set_embedding_operands(prepared *p, demo_data *data)
{
  const demo_op *op = p->op;
  int64_t entries = data->bags * data->bag_length, n = op->mode == DEMO_LOOKUP ? data->lookups : entries;
  int64_t out_rows = op->mode == DEMO_LOOKUP ? data->lookups : data->bags;
  sheaf_embedding_args *args = &p->embedding;
  *args = (sheaf_embedding_args)SHEAF_EMBEDDING_ARGS_INIT;
  bool by_index = !(op->backward && op->mode == DEMO_MAX);
  if (!op->backward || op->weighted) args->table = add_operand(p, data->table, SHEAF_F32, data->rows, DEMO_DIM);
  if (op->mode == DEMO_MAX) args->arg = add_operand(p, data->arg, SHEAF_I64, data->bags, DEMO_DIM);
  if (by_index && op->mode != DEMO_LOOKUP) args->offsets = add_operand(p, data->offsets, SHEAF_I64, data->bags, 0);
  if (op->weighted) args->weights = add_operand(p, data->weights, SHEAF_F32, entries, 0);
  for (int set = 0; by_index && set < DEMO_INDEX_SETS; set++)
    p->indices[set] = add_operand(p, data->indices[set], SHEAF_I64, n, 0);
  if (!op->backward) {
    args->out = add_operand(p, data->out, SHEAF_F32, out_rows, DEMO_DIM);
    return;
  }
  args->grad_out = add_operand(p, data->dout, SHEAF_F32, out_rows, DEMO_DIM);
  args->table_grad = add_operand(p, data->grad, SHEAF_F32, data->rows, DEMO_DIM);
  if (op->weighted) args->weights_grad = add_operand(p, data->weights_grad, SHEAF_F32, entries, 0);
}

static void set_segment_operands(prepared *p, demo_data *data)
{
  const demo_op *op = p->op;
  sheaf_segment_args *args = &p->segment;
  *args = (sheaf_segment_args)SHEAF_SEGMENT_ARGS_INIT;
  args->ids = add_operand(p, op->sorted ? data->sorted_ids : data->ids, SHEAF_I64, data->rows, 0);
  if (op->mode == DEMO_MAX) args->arg = add_operand(p, data->arg, SHEAF_I64, data->segments, DEMO_DIM);
  if (op->backward) {
    args->grad_out = add_operand(p, data->dout, SHEAF_F32, data->segments, DEMO_DIM);
    args->data_grad = add_operand(p, data->grad, SHEAF_F32, data->rows, DEMO_DIM);
  } else {
    args->data = add_operand(p, data->table, SHEAF_F32, data->rows, DEMO_DIM);
    args->out = add_operand(p, data->out, SHEAF_F32, data->segments, DEMO_DIM);
  }
}

static sheaf_status select_embedding(prepared *p, const demo_data *data, const sheaf_preference *preference)
{
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.device = data->on.device;
  desc.kind = (sheaf_embedding_kind)p->op->kind;
  desc.dtype = SHEAF_F32;
  desc.index_dtype = SHEAF_I64;
  desc.rows = data->rows;
  desc.dim = DEMO_DIM;
  desc.indices = p->op->mode == DEMO_LOOKUP ? data->lookups : data->bags * data->bag_length;
  desc.bags = p->op->mode == DEMO_LOOKUP ? 0 : data->bags;
  desc.weighted = p->op->weighted;
  desc.bad_index = SHEAF_BAD_INDEX_ERROR;
  return sheaf_embedding_select(&desc, preference, &p->plan);
}

static sheaf_status select_segment(prepared *p, const demo_data *data, const sheaf_preference *preference)
{
  sheaf_segment_desc desc = SHEAF_SEGMENT_DESC_INIT;
  desc.device = data->on.device;
  desc.kind = (sheaf_segment_kind)p->op->kind;
  desc.dtype = SHEAF_F32;
  desc.index_dtype = SHEAF_I64;
  desc.rows = data->rows;
  desc.dim = DEMO_DIM;
  desc.segments = data->segments;
  desc.arg_given = p->op->backward && p->op->mode == DEMO_MAX;
  desc.bad_index = SHEAF_BAD_INDEX_ERROR;
  return sheaf_segment_select(&desc, preference, &p->plan);
}

static sheaf_status prepare(prepared *p, const demo_op *op, demo_data *data)
{
  bool is_embedding = op->category == SHEAF_CATEGORY_EMBEDDING;
  sheaf_preference preference = SHEAF_PREFERENCE_INIT;
  preference.threads = data->threads;
  *p = (prepared){.op = op, .data = data};
  (is_embedding ? set_embedding_operands : set_segment_operands)(p, data);
  sheaf_status status = (is_embedding ? select_embedding : select_segment)(p, data, &preference);
  if (status != SHEAF_OK) return status;
  size_t bytes = sheaf_plan_workspace_size(p->plan);
  return data->on.block ? sheaf_device_alloc(data->on.device, bytes, &p->workspace)
                        : sheaf_table_alloc(bytes, &p->workspace);
}

static void release(prepared *p)
{
  if (p->data->on.block)
    sheaf_device_free(p->data->on.device, p->workspace);
  else if (p->workspace)
    sheaf_table_free(p->workspace, sheaf_plan_workspace_size(p->plan));
  sheaf_plan_free(p->plan);
}

static sheaf_status run(prepared *p, int set)
{
  size_t bytes = sheaf_plan_workspace_size(p->plan);
  void *stream = p->data->on.stream;
  if (p->op->category == SHEAF_CATEGORY_SEGMENT)
    return sheaf_segment_run(p->plan, p->workspace, bytes, stream, &p->segment);
  p->embedding.indices = p->indices[set];
  return sheaf_embedding_run(p->plan, p->workspace, bytes, stream, &p->embedding);
}

/* Seconds of one run: of the device, where it is one. */
static sheaf_status run_timed(prepared *p, int set, double *seconds)
{
  const demo_device *on = &p->data->on;
  double before = bench_now();
  if (!on->block) {
    sheaf_status status = run(p, set);
    *seconds = bench_now() - before;
    return status;
  }
  sheaf_status status = sheaf_event_record(on->device, on->begin, on->stream);
  if (status == SHEAF_OK) status = run(p, set);
  if (status == SHEAF_OK) status = sheaf_event_record(on->device, on->end, on->stream);
  if (status == SHEAF_OK) status = sheaf_stream_wait(on->device, on->stream);
  return status == SHEAF_OK ? sheaf_event_elapsed(on->device, on->begin, on->end, seconds) : status;
}

/* ---- Useful bytes -------------------------------------------------------------------------------------------- */

static int compare_integers(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* How many different rows the first `count` indices of the first set name; `count` itself when memory is short. */
static int64_t distinct_rows(const demo_data *data, int64_t count)
{
  int64_t *sorted = malloc((size_t)count * sizeof *sorted), distinct = 1;
  if (!sorted) return count;
  memcpy(sorted, data->indices[0], (size_t)count * sizeof *sorted);
  qsort(sorted, (size_t)count, sizeof *sorted, compare_integers);
  for (int64_t i = 1; i < count; i++) distinct += sorted[i] != sorted[i - 1];
  free(sorted);
  return distinct;
}

enum { ROW = DEMO_DIM * (int)sizeof(float), ARG_ROW = DEMO_DIM * (int)sizeof(int64_t), INDEX = (int)sizeof(int64_t) };

/* Forward: rows and indices read, output written. Backward: gradient rows and indices read, touched rows read and
 * written. */
static int64_t embedding_bytes(const demo_op *op, const demo_data *data)
{
  int64_t entries = data->bags * data->bag_length;
  if (op->mode == DEMO_LOOKUP && !op->backward) return data->lookups * (2 * ROW + INDEX);
  if (op->mode == DEMO_LOOKUP) return data->lookups * (ROW + INDEX) + 2 * distinct_rows(data, data->lookups) * ROW;
  int64_t arg = op->mode == DEMO_MAX ? data->bags * ARG_ROW : 0;
  if (!op->backward)
    return entries * (ROW + INDEX + (op->weighted ? (int)sizeof(float) : 0)) + data->bags * (ROW + INDEX) + arg;
  /* One cell per column of a bag; that two bags meet in a cell is rare enough to leave out. */
  if (op->mode == DEMO_MAX) return data->bags * ROW + arg + 2 * data->bags * ROW;
  int64_t table_grad = data->bags * (ROW + INDEX) + entries * INDEX + 2 * distinct_rows(data, entries) * ROW;
  return table_grad + (op->weighted ? entries * (ROW + 2 * (int)sizeof(float)) : 0);
}

static int64_t segment_bytes(const demo_op *op, const demo_data *data)
{
  int64_t arg = op->mode == DEMO_MAX ? data->segments * ARG_ROW : 0;
  return data->rows * (ROW + INDEX) + data->segments * ROW + arg;
}

/* ---- Measuring ----------------------------------------------------------------------------------------------- */

static void describe(const demo_op *op, const demo_data *data, prepared *p, demo_result *result)
{
  bool is_segment = op->category == SHEAF_CATEGORY_SEGMENT;
  if (is_segment)
    snprintf(result->shape, sizeof result->shape, "%lld rows, %lld segments", (long long)data->rows,
             (long long)data->segments);
  else if (op->mode == DEMO_LOOKUP)
    snprintf(result->shape, sizeof result->shape, "%lld rows", (long long)data->lookups);
  else
    snprintf(result->shape, sizeof result->shape, "%lld bags of %lld rows", (long long)data->bags,
             (long long)data->bag_length);
  sheaf_sku sku = sheaf_plan_sku(p->plan);
  snprintf(result->kernel, sizeof result->kernel, "%s", sku.name);
  result->bytes = is_segment ? segment_bytes(op, data) : embedding_bytes(op, data);
}

/* The backward of max reads which rows won: runs the forward operation for that. */
static sheaf_status find_winners(const demo_op *op, demo_data *data)
{
  if (!op->backward || op->mode != DEMO_MAX) return SHEAF_OK;
  demo_op forward = *op;
  forward.backward = false;
  forward.kind = op->forward_kind;
  prepared p;
  sheaf_status status = prepare(&p, &forward, data);
  if (status == SHEAF_OK) status = run(&p, 0);
  release(&p);
  return status;
}

static sheaf_status check_and_time(prepared *p, demo_data *data, double seconds, int min_runs, demo_result *result)
{
  double times[MAX_RUNS];
  int runs = 0;
  demo_check_prepare(p->op, data);
  sheaf_status status = demo_device_exchange(data, true);
  if (status == SHEAF_OK) status = run(p, 0);
  if (status == SHEAF_OK) status = demo_device_exchange(data, false);
  if (status != SHEAF_OK || !demo_check(p->op, data, result->fault, sizeof result->fault)) return status;
  double start = bench_now();
  while (runs < min_runs || (runs < MAX_RUNS && bench_now() - start < seconds)) {
    if ((status = run_timed(p, (runs + 1) % DEMO_INDEX_SETS, &times[runs])) != SHEAF_OK) return status;
    runs++;
  }
  result->seconds = bench_median(times, runs);
  return SHEAF_OK;
}

void demo_op_measure(const demo_op *op, demo_data *data, double seconds, int min_runs, demo_result *result)
{
  *result = (demo_result){0};
  prepared p;
  sheaf_status status = prepare(&p, op, data);
  if (status == SHEAF_OK) {
    describe(op, data, &p, result);
    status = find_winners(op, data);
  }
  if (status == SHEAF_OK) status = check_and_time(&p, data, seconds, min_runs, result);
  if (status != SHEAF_OK)
    snprintf(result->fault, sizeof result->fault, "%s: %s", sheaf_status_name(status), sheaf_last_error());
  release(&p);
}
