/* plan_problem.c: a call in a plan's terms: operands, outputs that are made, the run. What an op's problem is: see
 * problem_embedding.c and problem_segment.c. */
#include <inttypes.h>

#include <sheaf/device.h>

#include "layers/layers_impl.h"

void shf_problem_begin(shf_problem *p, const sheaf_call *call, const sheaf_frame *frame, sheaf_category category)
{
  p->call = call;
  p->frame = frame;
  p->views = 0;
  memset(&p->key, 0, sizeof p->key);
  memset(&p->args, 0, sizeof p->args);
  p->key.category = category;
  p->converted = NULL;
  for (int i = 0; i < SHF_PROBLEM_OUTPUTS; i++) p->made[i] = NULL;
  if (category == SHEAF_CATEGORY_EMBEDDING) {
    p->key.d.embedding.struct_size = sizeof p->key.d.embedding;
    p->args.embedding.struct_size = sizeof p->args.embedding;
  } else {
    p->key.d.segment.struct_size = sizeof p->key.d.segment;
    p->args.segment.struct_size = sizeof p->args.segment;
  }
}

/* Addresses for operands without data, far enough apart that nothing overlaps. They are compared, never followed. */
static void *made_up_address(int number)
{
  return (void *)((uintptr_t)(number + 1) << 58); /* NOLINT(performance-no-int-to-ptr) */
}

/* A view of the operand: with a leading dimension that repeats it for every problem, or at a made-up address. */
static sheaf_operand view_operand(shf_problem *p, const sheaf_tensor *tensor, int repeat)
{
  int number = p->views++, first = repeat;
  DLTensor *dl = &p->view[number].dl;
  int64_t *shape = p->view[number].shape, *strides = p->view[number].strides;
  *dl = tensor->dl;
  if (repeat) {
    shape[0] = p->call->batch;
    strides[0] = 0;
  }
  for (int i = 0; i < tensor->dl.ndim; i++) {
    shape[i + first] = tensor->dl.shape[i];
    strides[i + first] = tensor->strides[i];
  }
  dl->ndim += first;
  dl->shape = shape;
  dl->strides = strides;
  if (shf_is_meta(p->frame)) {
    dl->data = made_up_address(number);
    dl->byte_offset = 0;
  }
  return (sheaf_operand){dl, tensor->bytes};
}

sheaf_operand shf_problem_operand(shf_problem *p, const sheaf_tensor *tensor, int batched)
{
  int repeat = p->call->batch > 0 && !batched;
  if (!tensor) return (sheaf_operand){NULL, 0};
  if (repeat || shf_is_meta(p->frame)) return view_operand(p, tensor, repeat);
  return (sheaf_operand){&tensor->dl, tensor->bytes};
}

sheaf_operand shf_problem_input(shf_problem *p, int input)
{
  return shf_problem_operand(p, shf_input(p->call, input), (p->call->batched >> input & 1) != 0);
}

sheaf_status shf_problem_output(shf_problem *p, int output, sheaf_dtype dtype, int rank, const int64_t *shape,
                                sheaf_operand *operand)
{
  sheaf_tensor *given = p->call->outputs[output];
  if (!given) {
    int64_t all[SHEAF_TENSOR_MAX_RANK];
    int first = p->call->batch > 0;
    SHF_REQUIRE(rank + first <= SHEAF_TENSOR_MAX_RANK, INVALID_PROBLEM, "%s: its result would have %d dimensions",
                shf_op_name(p->call), rank + first);
    if (first) all[0] = p->call->batch;
    for (int i = 0; i < rank; i++) all[i + first] = shape[i];
    SHF_TRY(shf_tensor_make(dtype, rank + first, all, p->call->inputs[0], &p->made[output]));
    given = p->made[output];
  }
  SHF_REQUIRE(given->form == SHEAF_FORM_DENSE || given->form == SHEAF_FORM_META, INVALID_PROBLEM,
              "%s: its output is given as a tensor of form %d; a dense one is needed", shf_op_name(p->call),
              (int)given->form);
  SHF_TRY(shf_check_output_place(p->call, given));
  *operand = shf_problem_operand(p, given, 1);
  return SHEAF_OK;
}

void shf_problem_drop(shf_problem *p)
{
  for (int i = 0; i < SHF_PROBLEM_OUTPUTS; i++) shf_drop(&p->made[i]);
  shf_drop(&p->converted);
}

/* ---- The run ---- */

static int64_t operand_bytes(const sheaf_operand *operand)
{
  if (!operand->tensor) return 0;
  int64_t bytes = operand->tensor->dtype.bits / 8;
  for (int i = 0; i < operand->tensor->ndim; i++)
    if (!operand->tensor->strides || operand->tensor->strides[i] != 0) bytes *= operand->tensor->shape[i];
  return bytes;
}

/* What has to be read and written: of the table, a row per entry. */
static int64_t traffic(const shf_problem *p)
{
  int64_t bytes = 0;
  if (p->key.category == SHEAF_CATEGORY_EMBEDDING) {
    const sheaf_embedding_args *a = &p->args.embedding;
    const sheaf_embedding_desc *d = &p->key.d.embedding;
    int64_t rows = (d->batch ? d->batch : 1) * d->indices * sheaf_dtype_row_bytes(d->dtype, d->dim);
    bytes = (a->table.tensor ? rows : 0) + (a->table_grad.tensor ? rows : 0);
    const sheaf_operand *plain[7] = {&a->indices, &a->offsets, &a->weights,     &a->grad_out,
                                     &a->out,     &a->arg,     &a->weights_grad};
    for (int i = 0; i < 7; i++) bytes += operand_bytes(plain[i]);
  } else {
    const sheaf_segment_args *a = &p->args.segment;
    const sheaf_operand *plain[6] = {&a->data, &a->ids, &a->grad_out, &a->out, &a->arg, &a->data_grad};
    for (int i = 0; i < 6; i++) bytes += operand_bytes(plain[i]);
  }
  return bytes;
}

static void count_run(const shf_problem *p, const char *kernel_name)
{
  shf_tally *tally = shf_thread.tally;
  tally->runs++;
  tally->bytes += traffic(p);
  memcpy(tally->sku, kernel_name, sizeof tally->sku);
}

static sheaf_status run_with(shf_problem *p, const sheaf_plan *plan, void *workspace, size_t bytes, void *stream)
{
  if (p->key.category == SHEAF_CATEGORY_EMBEDDING)
    return sheaf_embedding_run(plan, workspace, bytes, stream, &p->args.embedding);
  return sheaf_segment_run(plan, workspace, bytes, stream, &p->args.segment);
}

/* What a report of bad values says, in the words of a run on the CPU as far as it tells. */
sheaf_status shf_problem_report(const shf_problem *p, const sheaf_index_report *found)
{
  const sheaf_embedding_desc *d = &p->key.d.embedding;
  int embedding = p->key.category == SHEAF_CATEGORY_EMBEDDING;
  if (found->count == 0) return SHEAF_OK;
  const char *operand = !embedding ? "ids" : d->kind == SHEAF_BAG_MAX_BACKWARD ? "arg" : "indices";
  sheaf_error_info info = {.status = SHEAF_INDEX_OUT_OF_RANGE,
                           .operand = operand,
                           .position = found->first_position,
                           .value = found->first_value,
                           .count = found->count};
  if (found->count > 0)
    return shf_core_fail_info(
        &info, "%s: %" PRId64 " at position %" PRId64 " is outside 0..%" PRId64 "; %" PRId64 " such %s", operand,
        found->first_value, found->first_position, (embedding ? d->rows : p->key.d.segment.segments) - 1, found->count,
        found->count == 1 ? "entry" : "entries");
  info.status = SHEAF_INVALID_PROBLEM;
  info.operand = embedding ? "offsets" : "ids";
  info.count = 1;
  if (!embedding)
    return shf_core_fail_info(&info, "ids must not decrease: %" PRId64 " at position %" PRId64 " does",
                              found->first_value, found->first_position);
  return shf_core_fail_info(&info,
                            "offsets: %" PRId64 " at position %" PRId64 " is wrong; they start at 0, do not decrease "
                            "and stay within the %" PRId64 " indices",
                            found->first_value, found->first_position, d->indices);
}

/* On a device bad values are found by the run itself, which goes on without them. Who asked for an error waits for it;
 * outputs of the caller's have been written by then. */
static sheaf_status run_on_device(shf_problem *p, const sheaf_plan *plan, DLDevice device)
{
  char *workspace = NULL;
  void *memory = NULL;
  sheaf_index_report found = {0, -1, 0}, *report;
  size_t bytes = sheaf_plan_workspace_size(plan), tail = (sizeof found + 63) / 64 * 64; /* behind the workspace */
  int embedding = p->key.category == SHEAF_CATEGORY_EMBEDDING;
  int strict = (embedding ? p->key.d.embedding.bad_index : p->key.d.segment.bad_index) == SHEAF_BAD_INDEX_ERROR;
  if (bytes || strict) SHF_TRY(shf_cache_workspace(device, bytes + (strict ? tail : 0), &memory));
  workspace = memory;
  report = strict ? (sheaf_index_report *)(void *)(workspace + bytes) : NULL;
  if (embedding)
    p->args.embedding.report = report;
  else
    p->args.segment.report = report;
  SHF_TRY(shf_place_clock_start(device));
  SHF_TRY(run_with(p, plan, bytes ? workspace : NULL, bytes, sheaf_stream_current(device)));
  SHF_TRY(shf_place_clock_stop(device));
  if (!strict) return SHEAF_OK;
  SHF_TRY(shf_place_copy(device, &found, report, sizeof found));
  sheaf_status status = shf_problem_report(p, &found);
  for (int i = 0; status != SHEAF_OK && i < p->call->output_count && i < SHF_PROBLEM_OUTPUTS; i++)
    if (!p->made[i] && shf_wants(p->call, i)) sheaf_tensor_written(p->call->outputs[i]);
  return status;
}

static sheaf_status run_plan(shf_problem *p, const sheaf_plan *plan)
{
  void *workspace = NULL;
  size_t bytes = sheaf_plan_workspace_size(plan);
  int embedding = p->key.category == SHEAF_CATEGORY_EMBEDDING;
  DLDevice device = embedding ? p->key.d.embedding.device : p->key.d.segment.device;
  if (p->frame->key == SHEAF_KEY_CUDA) return run_on_device(p, plan, device);
  if (bytes) SHF_TRY(shf_cache_workspace(device, bytes, &workspace));
  return run_with(p, plan, workspace, bytes, NULL);
}

/* The problem is complete: gets the plan, runs (or, for Meta, checks) it and hands out what was made. */
sheaf_status shf_problem_run(shf_problem *p)
{
  const sheaf_plan *plan;
  const char *kernel_name;
  SHF_TRY(shf_cache_plan(&p->key, &plan, &kernel_name));
  SHF_TRY(shf_is_meta(p->frame) ? shf_meta_check(p, plan) : run_plan(p, plan));
  if (shf_thread.tally) count_run(p, kernel_name);
  for (int i = 0; i < p->call->output_count && i < SHF_PROBLEM_OUTPUTS; i++) {
    if (p->made[i])
      p->call->outputs[i] = p->made[i];
    else if (shf_wants(p->call, i))
      sheaf_tensor_written(p->call->outputs[i]);
    p->made[i] = NULL;
  }
  return SHEAF_OK;
}
