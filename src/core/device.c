/* core/device.c: devices other than the CPU, each a call into its plug-in. */
#include <sheaf/device.h>
#include <stdatomic.h>

#include "core/device_api.h"
#include "core/status.h"

const shf_device_api *shf_core_device_api(int device_type, const char **why)
{
  static _Atomic(const shf_device_api *) opened; /* so that calls on several threads do not meet at a lock */
  if (why) *why = "Sheaf runs on CPUs (1) and CUDA devices (2)";
  if (device_type != kDLCUDA && device_type != kDLCUDAManaged) return NULL;
  const shf_device_api *api = atomic_load_explicit(&opened, memory_order_acquire);
  if (api) return api;
  api = (const shf_device_api *)(const void *)shf_core_plugin("cuda", SHF_DEVICE_ABI, why);
  atomic_store_explicit(&opened, api, memory_order_release);
  return api;
}

static sheaf_status find_api(int device_type, const shf_device_api **api)
{
  const char *why;
  *api = shf_core_device_api(device_type, &why);
  if (*api) return SHEAF_OK;
  if (device_type != kDLCUDA && device_type != kDLCUDAManaged)
    return shf_core_fail(SHEAF_UNAVAILABLE, "device type %d: %s", device_type, why);
  return shf_core_fail(SHEAF_UNAVAILABLE,
                       "CUDA devices need the plug-in libsheaf_cuda.so, which is built where nvcc is found: %s", why);
}

sheaf_status sheaf_device_count(DLDeviceType type, int *count)
{
  SHF_REQUIRE(count, INVALID_PROBLEM, "sheaf_device_count: count is NULL");
  *count = 0;
  const shf_device_api *api;
  SHF_TRY(find_api((int)type, &api));
  return api->count(count);
}

/* The bodies of the functions below: results are pointers that must be there; the rest is the plug-in's <entry>. */
#define SHF_RESULT(name) SHF_REQUIRE(name, INVALID_PROBLEM, "%s: %s is NULL", __func__, #name)
#define SHF_FORWARD(device, entry, ...)               \
  const shf_device_api *api;                          \
  SHF_TRY(find_api((int)(device).device_type, &api)); \
  return api->entry((device).device_id, __VA_ARGS__)

sheaf_status sheaf_device_describe(DLDevice device, sheaf_device_info *info)
{
  SHF_RESULT(info);
  SHF_FORWARD(device, info, info);
}

sheaf_status sheaf_device_alloc(DLDevice device, size_t bytes, void **memory)
{
  SHF_RESULT(memory);
  *memory = NULL;
  SHF_FORWARD(device, allocate, bytes, memory);
}

sheaf_status sheaf_device_free(DLDevice device, void *memory)
{
  if (!memory) return SHEAF_OK;
  SHF_FORWARD(device, release, memory);
}

sheaf_status sheaf_device_copy(DLDevice device, void *to, const void *from, size_t bytes, void *stream)
{
  if (bytes == 0) return SHEAF_OK;
  SHF_RESULT(to);
  SHF_RESULT(from);
  SHF_FORWARD(device, copy, to, from, bytes, stream);
}

sheaf_status sheaf_device_fill(DLDevice device, void *memory, int value, size_t bytes, void *stream)
{
  if (bytes == 0) return SHEAF_OK;
  SHF_RESULT(memory);
  SHF_FORWARD(device, fill, memory, value, bytes, stream);
}

sheaf_status sheaf_stream_make(DLDevice device, void **stream)
{
  SHF_RESULT(stream);
  *stream = NULL;
  SHF_FORWARD(device, stream_make, stream);
}

sheaf_status sheaf_stream_free(DLDevice device, void *stream)
{
  if (!stream) return SHEAF_OK;
  SHF_FORWARD(device, stream_free, stream);
}

sheaf_status sheaf_stream_wait(DLDevice device, void *stream) { SHF_FORWARD(device, stream_wait, stream); }

sheaf_status sheaf_event_make(DLDevice device, void **event)
{
  SHF_RESULT(event);
  *event = NULL;
  SHF_FORWARD(device, event_make, event);
}

sheaf_status sheaf_event_free(DLDevice device, void *event)
{
  if (!event) return SHEAF_OK;
  SHF_FORWARD(device, event_free, event);
}

sheaf_status sheaf_event_record(DLDevice device, void *event, void *stream)
{
  SHF_RESULT(event);
  SHF_FORWARD(device, event_record, event, stream);
}

sheaf_status sheaf_event_elapsed(DLDevice device, void *begin, void *end, double *seconds)
{
  SHF_RESULT(begin);
  SHF_RESULT(end);
  SHF_RESULT(seconds);
  SHF_FORWARD(device, event_elapsed, begin, end, seconds);
}

sheaf_status sheaf_graph_begin(DLDevice device, void *stream)
{
  SHF_RESULT(stream);
  SHF_FORWARD(device, graph_begin, stream);
}

sheaf_status sheaf_graph_end(DLDevice device, void *stream, void **graph)
{
  SHF_RESULT(stream);
  SHF_RESULT(graph);
  *graph = NULL;
  SHF_FORWARD(device, graph_end, stream, graph);
}

sheaf_status sheaf_graph_launch(DLDevice device, void *graph, void *stream)
{
  SHF_RESULT(graph);
  SHF_FORWARD(device, graph_launch, graph, stream);
}

sheaf_status sheaf_graph_free(DLDevice device, void *graph)
{
  if (!graph) return SHEAF_OK;
  SHF_FORWARD(device, graph_free, graph);
}
