/* sheaf/device.h: devices other than the CPU: which there are, and memory, streams and timing on them.
 *
 * Programs that use a device's own toolkit or a framework need none of this: Sheaf takes any memory and any stream of
 * the device. It is here for programs that have neither, such as the command `sheaf` and the tests.
 *
 * Devices are named by DLDevice, {kDLCUDA, 0} being the first CUDA device. Every function here fails with UNAVAILABLE
 * when the plug-in (libsheaf_cuda.so), a driver or the device is missing, and with DEVICE when a call of the driver's
 * fails. A stream is the device's own (a cudaStream_t) as `void *`; NULL is its default stream. */
#ifndef SHEAF_DEVICE_H
#define SHEAF_DEVICE_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How many devices of this type (kDLCUDA) there are; `*count` is 0 on failure. */
SHEAF_API sheaf_status sheaf_device_count(DLDeviceType type, int *count);

typedef struct sheaf_device_info {
  char name[128];
  int major, minor;      /* compute capability */
  int processors;        /* multiprocessors */
  int64_t memory_bytes;  /* in all */
  int64_t cache_bytes;   /* second-level cache */
} sheaf_device_info;

SHEAF_API sheaf_status sheaf_device_describe(DLDevice device, sheaf_device_info *info);

/* Memory, aligned to 256 bytes; `*memory` is NULL for 0 bytes and on failure. Freeing waits for the device. */
SHEAF_API sheaf_status sheaf_device_alloc(DLDevice device, size_t bytes, void **memory);
SHEAF_API sheaf_status sheaf_device_free(DLDevice device, void *memory);

/* Enqueues a copy between host and device memory in any direction, or a fill with one byte's value. Host memory must
 * stay as it is until the stream has been waited for. */
SHEAF_API sheaf_status sheaf_device_copy(DLDevice device, void *to, const void *from, size_t bytes, void *stream);
SHEAF_API sheaf_status sheaf_device_fill(DLDevice device, void *memory, int value, size_t bytes, void *stream);

/* Streams. Waiting reports what went wrong on the device since the last time. */
SHEAF_API sheaf_status sheaf_stream_make(DLDevice device, void **stream);
SHEAF_API sheaf_status sheaf_stream_free(DLDevice device, void *stream);
SHEAF_API sheaf_status sheaf_stream_wait(DLDevice device, void *stream);

/* The stream on which this thread's ops on tensors (ops.h) work on a device, until it says otherwise; the default
 * stream at first. Everything a thread does with tensors there goes in the order of that stream: making, computing,
 * copying, freeing. Wait for it before another stream or thread uses the results, before it is freed, and before it
 * is no longer the current one while tensors that it works on are released. */
SHEAF_API sheaf_status sheaf_stream_use(DLDevice device, void *stream);
SHEAF_API void *sheaf_stream_current(DLDevice device);

/* Moments on a stream, and the seconds between two that have passed. */
SHEAF_API sheaf_status sheaf_event_make(DLDevice device, void **event);
SHEAF_API sheaf_status sheaf_event_free(DLDevice device, void *event);
SHEAF_API sheaf_status sheaf_event_record(DLDevice device, void *event, void *stream);
SHEAF_API sheaf_status sheaf_event_elapsed(DLDevice device, void *begin, void *end, double *seconds);

/* Graphs: what is enqueued on the stream between begin and end is kept instead of done, and done at every launch. */
SHEAF_API sheaf_status sheaf_graph_begin(DLDevice device, void *stream);
SHEAF_API sheaf_status sheaf_graph_end(DLDevice device, void *stream, void **graph);
SHEAF_API sheaf_status sheaf_graph_launch(DLDevice device, void *graph, void *stream);
SHEAF_API sheaf_status sheaf_graph_free(DLDevice device, void *graph);

#ifdef __cplusplus
}
#endif
#endif
