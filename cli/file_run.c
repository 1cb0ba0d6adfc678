/* cli/file_run.c: runs a plan on operands in host memory; on a device, takes them there and the results back. */
#include <stdlib.h>

#include "files.h"

int run_place_of(const char *command, const char *device, int threads, run_place *place)
{
  *place = (run_place){.threads = threads};
  int code = cli_device(command, device, &place->device);
  return code == CLI_GO_ON ? cli_device_ready(command, place->device) : code;
}

/* Tensors of the operands, and what lies on the device for them. */
typedef struct run_memory {
  const run_place *place;
  struct {
    DLTensor tensor;
    int64_t shape[2];
    void *on_device;
    size_t bytes;
  } at[RUN_OPERANDS];
  void *workspace;
  size_t workspace_bytes;
} run_memory;

static bool is_cpu(const run_place *place) { return place->device.device_type == 0; }

static sheaf_status set_operand(run_memory *memory, int i, const run_operand *operand)
{
  int64_t columns = operand->columns < 0 ? 1 : operand->columns;
  memory->at[i].bytes = (size_t)(operand->rows * sheaf_dtype_row_bytes(operand->dtype, columns));
  memory->at[i].shape[0] = operand->rows;
  memory->at[i].shape[1] = operand->columns;
  DLTensor *tensor = &memory->at[i].tensor;
  *tensor = (DLTensor){.data = operand->data,
                       .device = {kDLCPU, 0},
                       .ndim = operand->columns < 0 ? 1 : 2,
                       .dtype = sheaf_dtype_to_dl(operand->dtype),
                       .shape = memory->at[i].shape};
  operand->to->tensor = tensor;
  operand->to->bytes = memory->at[i].bytes;
  if (is_cpu(memory->place)) return SHEAF_OK;
  DLDevice device = memory->place->device;
  sheaf_status status = sheaf_device_alloc(device, memory->at[i].bytes, &memory->at[i].on_device);
  if (status == SHEAF_OK)
    status = sheaf_device_copy(device, memory->at[i].on_device, operand->data, memory->at[i].bytes, NULL);
  tensor->device = device;
  tensor->data = memory->at[i].on_device;
  return status;
}

static sheaf_status make_workspace(run_memory *memory, const sheaf_plan *plan)
{
  memory->workspace_bytes = sheaf_plan_workspace_size(plan);
  if (!is_cpu(memory->place))
    return sheaf_device_alloc(memory->place->device, memory->workspace_bytes, &memory->workspace);
  return sheaf_table_alloc(memory->workspace_bytes, &memory->workspace);
}

/* Outputs come back to the host. */
static sheaf_status fetch_outputs(const run_memory *memory, const run_operand *operands, int count)
{
  if (is_cpu(memory->place)) return SHEAF_OK;
  sheaf_status status = SHEAF_OK;
  for (int i = 0; i < count && status == SHEAF_OK; i++)
    if (operands[i].output)
      status = sheaf_device_copy(memory->place->device, operands[i].data, memory->at[i].on_device, memory->at[i].bytes,
                                 NULL);
  return status == SHEAF_OK ? sheaf_stream_wait(memory->place->device, NULL) : status;
}

static void release(run_memory *memory, sheaf_plan *plan, int count)
{
  if (is_cpu(memory->place)) {
    sheaf_table_free(memory->workspace, memory->workspace_bytes);
  } else {
    sheaf_device_free(memory->place->device, memory->workspace);
    for (int i = 0; i < count; i++) sheaf_device_free(memory->place->device, memory->at[i].on_device);
  }
  sheaf_plan_free(plan);
}

/* Runs a plan, which it frees, on operands that it has put into one of the two args. */
static sheaf_status run_plan(const run_place *place, sheaf_plan *plan, const sheaf_embedding_args *embedding,
                             const sheaf_segment_args *segment, const run_operand *operands, int count)
{
  run_memory memory = {.place = place};
  sheaf_status status = make_workspace(&memory, plan);
  for (int i = 0; i < count && status == SHEAF_OK; i++) status = set_operand(&memory, i, &operands[i]);
  if (status == SHEAF_OK)
    status = embedding ? sheaf_embedding_run(plan, memory.workspace, memory.workspace_bytes, NULL, embedding)
                       : sheaf_segment_run(plan, memory.workspace, memory.workspace_bytes, NULL, segment);
  if (status == SHEAF_OK) status = fetch_outputs(&memory, operands, count);
  release(&memory, plan, count);
  return status;
}

static sheaf_preference preference_of(const run_place *place)
{
  sheaf_preference preference = SHEAF_PREFERENCE_INIT;
  preference.threads = place->threads;
  return preference;
}

sheaf_status run_embedding(const run_place *place, sheaf_embedding_desc *desc, sheaf_embedding_args *args,
                           run_operand *operands, int count)
{
  sheaf_preference preference = preference_of(place);
  sheaf_plan *plan;
  desc->device = place->device;
  sheaf_status status = sheaf_embedding_select(desc, &preference, &plan);
  return status == SHEAF_OK ? run_plan(place, plan, args, NULL, operands, count) : status;
}

sheaf_status run_segment(const run_place *place, sheaf_segment_desc *desc, sheaf_segment_args *args,
                         run_operand *operands, int count)
{
  sheaf_preference preference = preference_of(place);
  sheaf_plan *plan;
  desc->device = place->device;
  sheaf_status status = sheaf_segment_select(desc, &preference, &plan);
  return status == SHEAF_OK ? run_plan(place, plan, NULL, args, operands, count) : status;
}
