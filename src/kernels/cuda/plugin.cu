// plugin.cu: the plug-in's one exported symbol and the table behind it: devices, memory, streams, graphs, runs.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <atomic>
#include <mutex>

#include "cuda_impl.h"

namespace shf {

// ---- Errors ----

static const shf_plugin_host *host;

sheaf_status fail(sheaf_status status, const char *format, ...)
{
  char sentence[512];
  va_list values;
  va_start(values, format);
  vsnprintf(sentence, sizeof sentence, format, values);
  va_end(values);
  return host->fail(status, sentence);
}

sheaf_status check(cudaError_t error, const char *what)
{
  if (error == cudaSuccess) return SHEAF_OK;
  cudaGetLastError(); // what is not sticky is forgotten
  if (error == cudaErrorMemoryAllocation)
    return fail(SHEAF_OUT_OF_MEMORY, "%s: the device has not enough memory", what);
  return fail(SHEAF_DEVICE, "%s: CUDA says %s (%s)", what, cudaGetErrorName(error), cudaGetErrorString(error));
}

#define TRY_CUDA(call, what)                 \
  do {                                       \
    sheaf_status status = check(call, what); \
    if (status != SHEAF_OK) return status;   \
  } while (0)

// ---- Devices ----

enum { MOST_DEVICES = 64 };

static std::atomic<int> known_count(-1);

static sheaf_status count_devices(int *devices)
{
  int count = known_count.load(std::memory_order_relaxed);
  if (count < 0) {
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
      *devices = 0;
      cudaGetLastError();
      return fail(SHEAF_UNAVAILABLE, "there is no CUDA device: CUDA says %s (%s)", cudaGetErrorName(error),
                  cudaGetErrorString(error));
    }
    if (count > MOST_DEVICES) count = MOST_DEVICES;
    known_count.store(count, std::memory_order_relaxed);
  }
  *devices = count;
  return SHEAF_OK;
}

sheaf_status device_of(int device, Device *found)
{
  static Device known[MOST_DEVICES];
  static std::atomic<int> is_known[MOST_DEVICES];
  if (device < 0 || device >= MOST_DEVICES) return fail(SHEAF_UNAVAILABLE, "there is no CUDA device %d", device);
  if (!is_known[device].load(std::memory_order_acquire)) {
    Device d; // threads that race write the same
    TRY_CUDA(cudaDeviceGetAttribute(&d.processors, cudaDevAttrMultiProcessorCount, device), "asking a device");
    TRY_CUDA(cudaDeviceGetAttribute(&d.major, cudaDevAttrComputeCapabilityMajor, device), "asking a device");
    TRY_CUDA(cudaDeviceGetAttribute(&d.minor, cudaDevAttrComputeCapabilityMinor, device), "asking a device");
    TRY_CUDA(cudaDeviceGetAttribute(&d.cache, cudaDevAttrL2CacheSize, device), "asking a device");
    TRY_CUDA(cudaDeviceGetAttribute(&d.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "asking a device");
    TRY_CUDA(cudaDeviceGetAttribute(&d.together, cudaDevAttrCooperativeLaunch, device), "asking a device");
    d.together *= 2 * d.processors;
    known[device] = d;
    is_known[device].store(1, std::memory_order_release);
  }
  *found = known[device];
  return SHEAF_OK;
}

static sheaf_status arch_of(int device, sheaf_arch *arch)
{
  Device d;
  sheaf_status status = device_of(device, &d);
  if (status != SHEAF_OK) return status;
  if (d.major < 8)
    return fail(SHEAF_UNSUPPORTED, "CUDA device %d has compute capability %d.%d; 8.0 is the least", device, d.major,
                d.minor);
  *arch = d.major >= 9 ? SHEAF_ARCH_SM90 : SHEAF_ARCH_SM80;
  return SHEAF_OK;
}

static sheaf_status describe(int device, sheaf_device_info *info)
{
  cudaDeviceProp prop;
  TRY_CUDA(cudaGetDeviceProperties(&prop, device), "asking a device for its properties");
  memset(info, 0, sizeof *info);
  snprintf(info->name, sizeof info->name, "%.127s", prop.name);
  info->major = prop.major;
  info->minor = prop.minor;
  info->processors = prop.multiProcessorCount;
  info->memory_bytes = (int64_t)prop.totalGlobalMem;
  info->cache_bytes = prop.l2CacheSize;
  return SHEAF_OK;
}

#define ON_DEVICE(device) \
  On on(device);          \
  TRY_CUDA(on.error, "making the device the current one")

// ---- Plans ----

static sheaf_status find_sizes(const shf_device_problem *problem, shf_device_sizes *sizes)
{
  ON_DEVICE(problem->device);
  return problem->category == SHEAF_CATEGORY_EMBEDDING ? embedding_sizes(*problem, sizes)
                                                       : segment_sizes(*problem, sizes);
}

static sheaf_status enqueue(const shf_device_call *call, bool loading)
{
  ON_DEVICE(call->problem.device);
  Launcher l = {(cudaStream_t)call->stream, Device(), loading, cudaSuccess};
  sheaf_status status = device_of(call->problem.device, &l.device);
  if (status != SHEAF_OK) return status;
  if (call->problem.category == SHEAF_CATEGORY_EMBEDDING)
    embedding_run(l, *call);
  else
    segment_run(l, *call);
  return check(l.error, loading ? "loading kernels" : "launching kernels");
}

static sheaf_status run(const shf_device_call *call) { return enqueue(call, false); }

// Loading a plan's kernels takes longer than selecting it, so what was loaded before is remembered: by device, op,
// element type, and whether weights and groupings are in play.
static std::atomic<unsigned char> loaded[MOST_DEVICES][2][32][16][4];

static sheaf_status prepare(const shf_device_problem *p)
{
  bool embedding = p->category == SHEAF_CATEGORY_EMBEDDING;
  int kind = embedding ? (int)p->embedding->kind : (int)p->segment->kind;
  int dtype = embedding ? (int)p->embedding->dtype : (int)p->segment->dtype;
  int variant = embedding ? p->embedding->weighted : (int)p->segment->ties * 2 + p->segment->arg_given;
  std::atomic<unsigned char> &known = loaded[p->device % MOST_DEVICES][embedding][kind][dtype][variant & 3];
  if (known.load(std::memory_order_acquire)) return SHEAF_OK;
  const shf_matrix none[9] = {};
  shf_device_call call = {};
  call.problem = *p;
  call.operands = none;
  sheaf_status status = enqueue(&call, true);
  if (status == SHEAF_OK) known.store(1, std::memory_order_release);
  return status;
}

static sheaf_status group(const shf_device_call *call, void *grouping)
{
  ON_DEVICE(call->problem.device);
  Launcher l = {(cudaStream_t)call->stream, Device(), false, cudaSuccess};
  sheaf_status status = device_of(call->problem.device, &l.device);
  if (status != SHEAF_OK) return status;
  if (call->problem.category == SHEAF_CATEGORY_EMBEDDING)
    embedding_group(l, *call, grouping);
  else
    segment_group(l, *call, grouping);
  return check(l.error, "launching kernels");
}

// ---- Memory, streams, events, graphs ----

static sheaf_status pool_trim(int device);

static sheaf_status allocate(int device, size_t bytes, void **memory)
{
  if (bytes == 0) return SHEAF_OK;
  ON_DEVICE(device);
  cudaError_t error = cudaMalloc(memory, bytes);
  if (error == cudaErrorMemoryAllocation) { // perhaps the pool has it
    cudaGetLastError();
    if (cudaDeviceSynchronize() == cudaSuccess && pool_trim(device) == SHEAF_OK) error = cudaMalloc(memory, bytes);
  }
  return check(error, "allocating device memory");
}

static sheaf_status release(int device, void *memory)
{
  ON_DEVICE(device);
  TRY_CUDA(cudaDeviceSynchronize(), "waiting for the device"); // memory of a pool is freed without
  return check(cudaFree(memory), "freeing device memory");
}

static sheaf_status copy(int device, void *to, const void *from, size_t bytes, void *stream)
{
  ON_DEVICE(device);
  return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, (cudaStream_t)stream), "copying");
}

static sheaf_status fill(int device, void *memory, int value, size_t bytes, void *stream)
{
  ON_DEVICE(device);
  return check(cudaMemsetAsync(memory, value, bytes, (cudaStream_t)stream), "filling memory");
}

static sheaf_status stream_make(int device, void **stream)
{
  ON_DEVICE(device);
  return check(cudaStreamCreateWithFlags((cudaStream_t *)stream, cudaStreamNonBlocking), "making a stream");
}

static sheaf_status stream_free(int device, void *stream)
{
  ON_DEVICE(device);
  return check(cudaStreamDestroy((cudaStream_t)stream), "freeing a stream");
}

static sheaf_status stream_wait(int device, void *stream)
{
  ON_DEVICE(device);
  return check(cudaStreamSynchronize((cudaStream_t)stream), "waiting for a stream");
}

static sheaf_status event_make(int device, void **event)
{
  ON_DEVICE(device);
  return check(cudaEventCreate((cudaEvent_t *)event), "making an event");
}

static sheaf_status event_free(int device, void *event)
{
  ON_DEVICE(device);
  return check(cudaEventDestroy((cudaEvent_t)event), "freeing an event");
}

static sheaf_status event_record(int device, void *event, void *stream)
{
  ON_DEVICE(device);
  return check(cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream), "recording an event");
}

static sheaf_status event_elapsed(int device, void *begin, void *end, double *seconds)
{
  ON_DEVICE(device);
  float milliseconds = 0;
  TRY_CUDA(cudaEventElapsedTime(&milliseconds, (cudaEvent_t)begin, (cudaEvent_t)end), "reading events");
  *seconds = milliseconds * 1e-3;
  return SHEAF_OK;
}

static sheaf_status graph_begin(int device, void *stream)
{
  ON_DEVICE(device);
  return check(cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeGlobal), "beginning a capture");
}

static sheaf_status graph_end(int device, void *stream, void **graph)
{
  ON_DEVICE(device);
  cudaGraph_t captured;
  TRY_CUDA(cudaStreamEndCapture((cudaStream_t)stream, &captured), "ending a capture");
  cudaError_t error = cudaGraphInstantiate((cudaGraphExec_t *)graph, captured, 0);
  cudaGraphDestroy(captured);
  return check(error, "instantiating a graph");
}

static sheaf_status graph_launch(int device, void *graph, void *stream)
{
  ON_DEVICE(device);
  return check(cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream), "launching a graph");
}

static sheaf_status graph_free(int device, void *graph)
{
  ON_DEVICE(device);
  return check(cudaGraphExecDestroy((cudaGraphExec_t)graph), "freeing a graph");
}

// ---- What ops on tensors need besides plans ----

static sheaf_status map(const shf_device_map *m)
{
  ON_DEVICE(m->device);
  Launcher l = {(cudaStream_t)m->stream, Device(), false, cudaSuccess};
  sheaf_status status = device_of(m->device, &l.device);
  if (status == SHEAF_OK) status = map_elements(l, *m);
  return status == SHEAF_OK ? check(l.error, "launching kernels") : status;
}

// A device's pool, which keeps what is given back to it; NULL where the driver has no pools.
static sheaf_status pool_of(int device, cudaMemPool_t *pool)
{
  static std::mutex lock;
  static cudaMemPool_t pools[MOST_DEVICES];
  static bool known[MOST_DEVICES];
  if (device < 0 || device >= MOST_DEVICES) return fail(SHEAF_UNAVAILABLE, "there is no CUDA device %d", device);
  std::lock_guard<std::mutex> held(lock);
  if (!known[device]) {
    int has_pools = 0;
    TRY_CUDA(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, device), "asking a device");
    if (has_pools) {
      cudaMemPoolProps props = {};
      props.allocType = cudaMemAllocationTypePinned;
      props.location.type = cudaMemLocationTypeDevice;
      props.location.id = device;
      uint64_t all = UINT64_MAX;
      cudaMemPool_t made;
      TRY_CUDA(cudaMemPoolCreate(&made, &props), "making a pool of memory");
      TRY_CUDA(cudaMemPoolSetAttribute(made, cudaMemPoolAttrReleaseThreshold, &all), "making a pool of memory");
      pools[device] = made;
    }
    known[device] = true;
  }
  *pool = pools[device];
  return SHEAF_OK;
}

static sheaf_status pool_trim(int device)
{
  cudaMemPool_t pool;
  ON_DEVICE(device);
  sheaf_status status = pool_of(device, &pool);
  return status == SHEAF_OK && pool ? check(cudaMemPoolTrimTo(pool, 0), "trimming a pool of memory") : status;
}

static sheaf_status pool_allocate(int device, size_t bytes, void *stream, void **memory)
{
  cudaMemPool_t pool;
  ON_DEVICE(device);
  sheaf_status status = pool_of(device, &pool);
  if (status != SHEAF_OK) return status;
  if (!pool) return check(cudaMalloc(memory, bytes), "allocating device memory");
  return check(cudaMallocFromPoolAsync(memory, bytes, pool, (cudaStream_t)stream), "allocating device memory");
}

static sheaf_status pool_release(int device, void *memory, void *stream)
{
  cudaMemPool_t pool;
  ON_DEVICE(device);
  sheaf_status status = pool_of(device, &pool);
  if (status != SHEAF_OK) return status;
  return check(pool ? cudaFreeAsync(memory, (cudaStream_t)stream) : cudaFree(memory), "freeing device memory");
}

static sheaf_status rows_with(const shf_device_rows *rows, void (*step)(Launcher &l, const shf_device_rows &rows))
{
  ON_DEVICE(rows->device);
  Launcher l = {(cudaStream_t)rows->stream, Device(), false, cudaSuccess};
  sheaf_status status = device_of(rows->device, &l.device);
  if (status != SHEAF_OK) return status;
  step(l, *rows);
  return check(l.error, "launching kernels");
}

static sheaf_status count_rows(const shf_device_rows *rows) { return rows_with(rows, count_grouped_rows); }
static sheaf_status number_rows(const shf_device_rows *rows) { return rows_with(rows, number_grouped_rows); }

// ---- Tensors over ranks ----

static sheaf_status fold(int device, const shf_fold_task *task)
{
  ON_DEVICE(device);
  return check(fold_part(*task), "folding parts of a tensor");
}

static sheaf_status convert(int device, sheaf_dtype from, const void *source, sheaf_dtype to, void *target,
                            int64_t count)
{
  ON_DEVICE(device);
  return check(convert_cells(from, source, to, target, count), "converting a tensor");
}

static sheaf_status divide(int device, const void *sums, const void *divisors, int64_t rows, int64_t columns,
                           sheaf_dtype to, void *target)
{
  ON_DEVICE(device);
  return check(divide_rows(sums, divisors, rows, columns, to, target), "dividing rows");
}

static shf_device_api api = {
    {SHF_DEVICE_ABI, SHEAF_VERSION_STRING},
    nullptr,
    0,
    count_devices,
    describe,
    arch_of,
    find_sizes,
    prepare,
    run,
    group,
    allocate,
    release,
    copy,
    fill,
    stream_make,
    stream_free,
    stream_wait,
    event_make,
    event_free,
    event_record,
    event_elapsed,
    graph_begin,
    graph_end,
    graph_launch,
    graph_free,
    map,
    pool_allocate,
    pool_release,
    pool_trim,
    count_rows,
    number_rows,
    fold,
    convert,
    divide,
    &nccl_engine,
};

} // namespace shf

extern "C" __attribute__((visibility("default"))) const shf_plugin_head *sheaf_plugin(const shf_plugin_host *host)
{
  shf::host = host;
  if (!shf::api.row_count) shf::api.row_count = shf::make_rows(&shf::api.rows);
  return &shf::api.head;
}
