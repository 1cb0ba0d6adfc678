/* cli/bench_run.c: a case of `sheaf bench` as a plan with its operands. */
#include <string.h>

#include "bench.h"

static bool is_quantized(sheaf_dtype dtype) { return dtype == SHEAF_INT8 || dtype == SHEAF_INT4; }

/* A matrix, or a vector when dim is 0; stride in elements, 0 for rows next to each other. */
static sheaf_operand add_operand(bench_run *run, void *values, sheaf_dtype dtype, int64_t rows, int64_t dim,
                                 int64_t stride)
{
  int i = run->tensor_count++;
  int64_t *shape = run->tensors[i].shape, *strides = run->tensors[i].strides;
  shape[0] = rows;
  shape[1] = is_quantized(dtype) ? sheaf_dtype_row_bytes(dtype, dim) : dim;
  strides[0] = stride;
  strides[1] = 1;
  run->tensors[i].dl = (DLTensor){.data = values, .device = {kDLCPU, 0}, .ndim = dim ? 2 : 1,
                                  .dtype = sheaf_dtype_to_dl(dtype), .shape = shape,
                                  .strides = stride ? strides : NULL};
  return (sheaf_operand){&run->tensors[i].dl, 0};
}

static DLTensor *last_tensor(bench_run *run) { return &run->tensors[run->tensor_count - 1].dl; }

static void set_embedding_operands(bench_run *run)
{
  bench_data *data = run->data;
  const bench_case *c = data->c;
  sheaf_dtype plain = is_quantized(c->dtype) ? SHEAF_F32 : c->dtype;
  bool backward = bench_is_backward(c), from_arg = c->kind == SHEAF_BAG_MAX_BACKWARD;
  int64_t stride = c->row_pad ? c->dim + c->row_pad : 0;
  sheaf_embedding_args *args = &run->embedding;
  *args = (sheaf_embedding_args)SHEAF_EMBEDDING_ARGS_INIT;
  sheaf_operand table = add_operand(run, data->table->memory, c->dtype, c->rows, c->dim, stride);
  if (backward) args->table_grad = table;
  else args->table = table;
  sheaf_operand result = add_operand(run, backward ? data->grad_out : data->out, plain, data->out_rows, c->dim, 0);
  if (backward) args->grad_out = result;
  else args->out = result;
  if (c->length && !from_arg) args->offsets = add_operand(run, data->offsets, c->index, data->bags, 0, 0);
  if (c->weighted) args->weights = add_operand(run, data->weights, plain, data->entries, 0, 0);
  if (data->arg) args->arg = add_operand(run, data->arg, c->index, data->bags, c->dim, 0);
  sheaf_operand indices = add_operand(run, NULL, c->index, from_arg ? data->bags : data->entries,
                                      from_arg ? c->dim : 0, 0);
  if (from_arg) args->arg = indices;
  else args->indices = indices;
  run->indices = last_tensor(run);
}

static void set_segment_operands(bench_run *run)
{
  bench_data *data = run->data;
  const bench_case *c = data->c;
  bool backward = bench_is_backward(c);
  sheaf_segment_args *args = &run->segment;
  *args = (sheaf_segment_args)SHEAF_SEGMENT_ARGS_INIT;
  args->ids = add_operand(run, NULL, c->index, data->entries, 0, 0);
  run->indices = last_tensor(run);
  sheaf_operand result = add_operand(run, backward ? data->grad_out : data->out, c->dtype, c->segments, c->dim, 0);
  if (backward) args->grad_out = result;
  else args->out = result;
  if (data->arg) args->arg = add_operand(run, data->arg, c->index, c->segments, c->dim, 0);
  sheaf_operand values = add_operand(run, NULL, c->dtype, data->entries, c->dim, 0);
  if (backward) args->data_grad = values;
  else args->data = values;
  run->segment_data = last_tensor(run);
}

static sheaf_status select_embedding(bench_run *run, const sheaf_preference *preference)
{
  const bench_data *data = run->data;
  const bench_case *c = data->c;
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.kind = (sheaf_embedding_kind)c->kind;
  desc.dtype = c->dtype;
  desc.index_dtype = c->index;
  desc.rows = c->rows;
  desc.dim = c->dim;
  desc.indices = data->entries;
  desc.bags = data->bags;
  desc.weighted = c->weighted;
  desc.has_padding = c->padded;
  desc.grouping_given = c->grouping_given;
  if (c->touched) desc.grad_write = SHEAF_GRAD_TOUCHED;
  desc.bad_index = c->checked ? SHEAF_BAD_INDEX_ERROR : SHEAF_BAD_INDEX_SKIP;
  return sheaf_embedding_select(&desc, preference, &run->plan);
}

static sheaf_status select_segment(bench_run *run, const sheaf_preference *preference)
{
  const bench_data *data = run->data;
  const bench_case *c = data->c;
  sheaf_segment_desc desc = SHEAF_SEGMENT_DESC_INIT;
  desc.kind = (sheaf_segment_kind)c->kind;
  desc.dtype = c->dtype;
  desc.index_dtype = c->index;
  desc.rows = data->entries;
  desc.dim = c->dim;
  desc.segments = c->segments;
  desc.arg_given = bench_is_backward(c) && data->arg;
  desc.grouping_given = c->grouping_given;
  desc.bad_index = c->checked ? SHEAF_BAD_INDEX_ERROR : SHEAF_BAD_INDEX_SKIP;
  return sheaf_segment_select(&desc, preference, &run->plan);
}

static void point_to_set(bench_run *run, int set)
{
  run->indices->data = run->data->set[set].indices;
  if (run->segment_data) run->segment_data->data = run->data->set[set].data;
}

/* The grouping of the first set serves them all: such cases take only that one. */
static sheaf_status build_grouping(bench_run *run)
{
  run->grouping_bytes = sheaf_grouping_size(run->plan);
  sheaf_status status = sheaf_table_alloc(run->grouping_bytes, &run->grouping);
  if (status != SHEAF_OK) return status;
  point_to_set(run, 0);
  if (run->data->c->category == SHEAF_CATEGORY_SEGMENT)
    status = sheaf_segment_grouping_build(run->plan, run->grouping, run->grouping_bytes, NULL, &run->segment);
  else status = sheaf_embedding_grouping_build(run->plan, run->grouping, run->grouping_bytes, NULL, &run->embedding);
  run->segment.grouping = run->embedding.grouping = run->grouping;
  run->segment.grouping_bytes = run->embedding.grouping_bytes = run->grouping_bytes;
  return status;
}

sheaf_status bench_prepare(bench_run *run, bench_data *data, int threads)
{
  bool is_segment = data->c->category == SHEAF_CATEGORY_SEGMENT;
  sheaf_preference preference = SHEAF_PREFERENCE_INIT;
  preference.threads = threads;
  memset(run, 0, sizeof *run);
  run->data = data;
  (is_segment ? set_segment_operands : set_embedding_operands)(run);
  sheaf_status status = (is_segment ? select_segment : select_embedding)(run, &preference);
  if (status != SHEAF_OK) return status;
  run->workspace_bytes = sheaf_plan_workspace_size(run->plan);
  status = sheaf_table_alloc(run->workspace_bytes, &run->workspace);
  if (status == SHEAF_OK && data->c->grouping_given) status = build_grouping(run);
  return status;
}

void bench_release(bench_run *run)
{
  sheaf_table_free(run->workspace, run->workspace_bytes);
  sheaf_table_free(run->grouping, run->grouping_bytes);
  sheaf_plan_free(run->plan);
}

sheaf_status bench_run_once(bench_run *run, int set)
{
  point_to_set(run, set);
  if (run->data->c->category == SHEAF_CATEGORY_SEGMENT)
    return sheaf_segment_run(run->plan, run->workspace, run->workspace_bytes, NULL, &run->segment);
  return sheaf_embedding_run(run->plan, run->workspace, run->workspace_bytes, NULL, &run->embedding);
}
