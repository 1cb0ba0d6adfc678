/* cli/verify_device.c: runs of `sheaf verify --device`: operands go to the device and outputs come back. */
#include <string.h>

#include "verify.h"

enum { MOST_OPERANDS = 9 };

typedef struct device_copies {
  DLTensor tensor[MOST_OPERANDS];
  sheaf_operand operand[MOST_OPERANDS];
  void *memory[MOST_OPERANDS + 1]; /* the last one is the workspace */
  void *stream;
} device_copies;

static sheaf_status copy_there(verify_case *c, const sheaf_operand *operands, int count, device_copies *d)
{
  for (int i = 0; i < count; i++) {
    if (!operands[i].tensor) continue;
    d->tensor[i] = *operands[i].tensor;
    d->tensor[i].device = c->device;
    d->operand[i] = (sheaf_operand){&d->tensor[i], operands[i].bytes};
    if (!d->tensor[i].data) continue;
    sheaf_status status = sheaf_device_alloc(c->device, operands[i].bytes, &d->memory[i]);
    if (status == SHEAF_OK)
      status = sheaf_device_copy(c->device, d->memory[i], d->tensor[i].data, operands[i].bytes, d->stream);
    if (status != SHEAF_OK) return status;
    d->tensor[i].data = d->memory[i];
  }
  return SHEAF_OK;
}

/* Inputs come back as they went, so that a run which changed one would show. */
static sheaf_status copy_back(verify_case *c, const sheaf_operand *operands, int count, device_copies *d)
{
  for (int i = 0; i < count; i++) {
    if (!d->memory[i]) continue;
    sheaf_status status =
        sheaf_device_copy(c->device, operands[i].tensor->data, d->memory[i], operands[i].bytes, d->stream);
    if (status != SHEAF_OK) return status;
  }
  return sheaf_stream_wait(c->device, d->stream);
}

bool verify_on_device(verify_case *c, const sheaf_plan *plan, const sheaf_operand *operands, int count,
                      verify_device_run *run, const void *args)
{
  device_copies d;
  memset(&d, 0, sizeof d);
  sheaf_status status = sheaf_stream_make(c->device, &d.stream);
  if (status == SHEAF_OK) status = copy_there(c, operands, count, &d);
  if (status == SHEAF_OK)
    status = sheaf_device_alloc(c->device, sheaf_plan_workspace_size(plan), &d.memory[MOST_OPERANDS]);
  if (status == SHEAF_OK) status = run(plan, d.memory[MOST_OPERANDS], d.stream, d.operand, args);
  if (status == SHEAF_OK) status = copy_back(c, operands, count, &d);
  if (status != SHEAF_OK) verify_fail(c, "on the device: %s: %s", sheaf_status_name(status), sheaf_last_error());
  for (int i = 0; i <= MOST_OPERANDS; i++) sheaf_device_free(c->device, d.memory[i]);
  sheaf_stream_free(c->device, d.stream);
  return status == SHEAF_OK;
}
