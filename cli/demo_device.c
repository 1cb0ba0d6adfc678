/* cli/demo_device.c: `sheaf demo --device cuda`: a copy of the demo's memory on a device, and time there. */
#include "bench_tools.h"
#include "demo.h"

enum { COPIES = 10 };

#define TRY(call)                          \
  do {                                     \
    sheaf_status status = (call);          \
    if (status != SHEAF_OK) return status; \
  } while (0)

sheaf_status demo_device_open(demo_data *data, DLDevice device)
{
  demo_device *d = &data->on;
  d->device = device;
  TRY(sheaf_stream_make(device, &d->stream));
  TRY(sheaf_event_make(device, &d->begin));
  TRY(sheaf_event_make(device, &d->end));
  TRY(sheaf_device_alloc(device, data->block_bytes, (void **)&d->block));
  TRY(sheaf_device_copy(device, d->block, data->block, data->block_bytes, d->stream));
  return sheaf_stream_wait(device, d->stream);
}

void demo_device_close(demo_data *data)
{
  demo_device *d = &data->on;
  if (d->device.device_type != kDLCUDA) return;
  sheaf_device_free(d->device, d->block);
  if (d->begin) sheaf_event_free(d->device, d->begin);
  if (d->end) sheaf_event_free(d->device, d->end);
  if (d->stream) sheaf_stream_free(d->device, d->stream);
}

void *demo_place(const demo_data *data, void *memory)
{
  return data->on.block && memory ? data->on.block + ((char *)memory - (char *)data->block) : memory;
}

static sheaf_status copy_array(demo_data *data, void *memory, size_t bytes, bool to_device)
{
  void *there = demo_place(data, memory);
  return sheaf_device_copy(data->on.device, to_device ? there : memory, to_device ? memory : there, bytes,
                           data->on.stream);
}

sheaf_status demo_device_exchange(demo_data *data, bool to_device)
{
  if (!data->on.block) return SHEAF_OK;
  size_t row = DEMO_DIM * sizeof(float);
  TRY(copy_array(data, data->grad, (size_t)data->rows * row, to_device));
  if (!to_device) {
    TRY(copy_array(data, data->out, (size_t)data->out_rows * row, false));
    TRY(copy_array(data, data->weights_grad, (size_t)(data->bags * data->bag_length) * sizeof(float), false));
  }
  return sheaf_stream_wait(data->on.device, data->on.stream);
}

double demo_device_bandwidth(demo_data *data)
{
  demo_device *d = &data->on;
  double seconds[COPIES];
  size_t bytes = (size_t)data->rows * DEMO_DIM * sizeof(float);
  for (int i = 0; i < COPIES; i++)
    if (sheaf_event_record(d->device, d->begin, d->stream) != SHEAF_OK ||
        sheaf_device_copy(d->device, demo_place(data, data->grad), demo_place(data, data->table), bytes, d->stream) !=
            SHEAF_OK ||
        sheaf_event_record(d->device, d->end, d->stream) != SHEAF_OK ||
        sheaf_stream_wait(d->device, d->stream) != SHEAF_OK ||
        sheaf_event_elapsed(d->device, d->begin, d->end, &seconds[i]) != SHEAF_OK)
      return 0;
  return 2 * (double)bytes / bench_median(seconds, COPIES);
}
