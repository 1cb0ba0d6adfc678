// cuda_impl.h: what the plug-in's host code shares: launches, kernels by element type, the steps of a run.
#ifndef SHF_CUDA_IMPL_H
#define SHF_CUDA_IMPL_H

#include <cuda_runtime.h>

#include <atomic>

#include "core/device_api.h"
#include "bags.cuh"
#include "guess.cuh"
#include "rows.cuh"
#include "runs.cuh"
#include "stream.cuh"

namespace shf {

// ---- Errors and devices (plugin.cu) ----

sheaf_status fail(sheaf_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
sheaf_status check(cudaError_t error, const char *what);

struct Device {
  int processors, major, minor;
  int cache;    // bytes of the second level
  int shared;   // bytes of shared memory that a block can have
  int together; // blocks that can meet in one kernel, two to a processor; 0: none can
};
sheaf_status device_of(int device, Device *found);

// Makes a device the thread's current one for as long as this lives.
class On {
public:
  explicit On(int device) : before(-1), error(cudaGetDevice(&before))
  {
    if (error == cudaSuccess && before != device) error = cudaSetDevice(device);
    changed = error == cudaSuccess && before != device;
  }
  ~On()
  {
    if (changed) cudaSetDevice(before);
  }
  int before;
  cudaError_t error;
  bool changed;
};

// ---- Launches ----

// What a run enqueues goes through one of these. With `loading` nothing is launched: kernels are loaded, so that a
// first launch can be captured in a graph. The first error is kept.
struct Launcher {
  cudaStream_t stream;
  Device device;
  bool loading;
  cudaError_t error;
};

// Bytes of shared memory that a kernel may ask for, where there are so many; those of compute capability 8.6 and 8.9 have
// 99 KiB, which is enough for all.
enum { LEAST_SHARED = 99 << 10, MOST_SHARED = 100 << 10 };

// Code for devices before 9.0, be it compiled for a newer one by the driver, cannot wait for the kernel in front of it.
inline std::atomic<bool> cannot_wait{false};

template <class Params>
inline void load_or_send(Launcher &l, void (*kernel)(Params), dim3 grid, int threads, size_t shared,
                         const Params &params, cudaLaunchAttribute *attribute)
{
  if (l.error != cudaSuccess) return;
  if (l.loading) {
    cudaFuncAttributes loaded;
    l.error = cudaFuncGetAttributes(&loaded, kernel);
    if (l.error == cudaSuccess && loaded.ptxVersion < 90) cannot_wait = true;
    int room = l.device.shared - (int)loaded.sharedSizeBytes;
    if (l.error == cudaSuccess)
      l.error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     room < MOST_SHARED ? room : (int)MOST_SHARED);
    return;
  }
  if (grid.x == 0 || grid.y == 0) return;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3((unsigned)threads);
  config.dynamicSmemBytes = shared;
  config.stream = l.stream;
  config.attrs = attribute;
  config.numAttrs = attribute != nullptr;
  void *arguments[] = {const_cast<Params *>(&params)};
  l.error = cudaLaunchKernelExC(&config, (const void *)kernel, arguments);
}

// A kernel may begin before the one in front of it ends, whoever launched that: it waits for its results itself
// (begin_kernel). Such a launch also costs the host less than one that may not.
template <class Params>
inline void launch(Launcher &l, void (*kernel)(Params), dim3 grid, int threads, size_t shared, const Params &params)
{
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  bool can_wait = l.device.major >= 9 && !cannot_wait;
  load_or_send(l, kernel, grid, threads, shared, params, can_wait ? &early : nullptr);
}

// The same for a kernel whose blocks meet: all of them must be there at once (Device::together).
template <class Params>
inline void launch_together(Launcher &l, void (*kernel)(Params), dim3 grid, int threads, const Params &params)
{
  cudaLaunchAttribute together = {};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  load_or_send(l, kernel, grid, threads, 0, params, &together);
}

inline void clear_memory(Launcher &l, void *memory, size_t bytes)
{
  if (l.error == cudaSuccess && !l.loading && bytes > 0) l.error = cudaMemsetAsync(memory, 0, bytes, l.stream);
}

// ---- Kernels of one element type (f32.cu, ...) ----

enum Reduction { REDUCE_SUM, REDUCE_PROD, REDUCE_EXTREME };

// Each fills in the launch fields of its task and launches what it takes: the reduction, and the join where a group can
// be long. Members that an element type does not have are NULL.
struct Kernels {
  int64_t acc_bytes, cell_bytes;
  int64_t (*slot_bytes)(Reduction reduction, int64_t dim);
  void (*reduce)(Launcher &l, Task t, Reduction reduction);
  void (*reduce_runs)(Launcher &l, Task t);
  void (*lookup)(Launcher &l, Task t); // quantised rows
  void (*segment_grad)(Launcher &l, SegmentGradTask t);
  void (*weights_grad)(Launcher &l, WeightsGradTask t);
};
extern const Kernels kernels_f32, kernels_f64, kernels_f16, kernels_bf16, kernels_int8, kernels_int4;
const Kernels *kernels_of(sheaf_dtype dtype);

// What the core chooses from: every op of every element type (table.cu). Returns how many.
int make_rows(const shf_kernel_row **table);

// ---- What needs no element type (common.cu) ----

// out[n] = source[index[n]], bits copied; a row of zeros where the index is bad, padding or held elsewhere.
struct CopyTask {
  int64_t entries, batch, row_bytes;
  shf_matrix index, source, target;
  int index_wide;
  int64_t rows, row_begin, total_rows, padding;
  int lane_bits;
  int64_t tiles;
};
void copy_rows(Launcher &l, CopyTask t);

// Rows of zeros.
void clear_rows(Launcher &l, shf_matrix target, int64_t rows, int64_t batch, int64_t row_bytes);

// What the report is made from: every index, and where given the offsets or the order of ids.
struct ScanTask {
  shf_matrix index;
  int index_wide;
  int64_t batch, rows, columns; // `rows` rows of `columns` indices in each problem
  int64_t limit;
  int allow_absent;   // -1 is good too
  int sorted;         // indices must not decrease
  shf_matrix offsets; // data NULL: none
  int offsets_wide, with_end;
  int64_t bags;
  sheaf_index_report *report;
};
void scan_values(Launcher &l, const ScanTask &t);

// starts[p * (groups + 1) + s]: the first entry whose id or key is not below s, in problem p of sorted ids, or over all
// problems of sorted keys (then t.sorted.keys is set).
struct StartsTask {
  shf_matrix ids;
  int ids_wide;
  Sorted sorted;
  int64_t entries, groups, batch;
  int64_t *starts;
  unsigned long long *list_count; // emptied on the way; NULL: none
};
void find_starts(Launcher &l, const StartsTask &t);

// The list of what is left to walk_chunks (long_list.cu): its memory, of groups of at least `least` places among so many
// entries, and how it is emptied before kernels enter something. The counts lie at its begin.
int64_t list_bytes(int64_t entries, int64_t least);
LongList list_in(char *memory, int64_t entries, int64_t least);
void empty_list(Launcher &l, const LongList &list);
// Lists the groups of a task that have more than `longest` places.
void list_long(Launcher &l, const Task &t, int64_t longest);
// What no other run of this process has (see arrive_marked). 0, which is no mark, where a graph is made, which runs again and again.
uint64_t new_mark(const Launcher &l);

// counts[p * groups + s]: rows of each segment, ids in any order.
struct CountTask {
  shf_matrix ids;
  int ids_wide;
  int64_t entries, groups, batch;
  int64_t *counts;
};
void count_ids(Launcher &l, const CountTask &t);

// ---- Grouping (grouping.cu) ----

struct GroupingSpec {
  int64_t batch, entries, groups; // per problem; cells for max backward
  int64_t row_begin, rows, padding;
  int64_t bags, bag_length, columns;
  int payload_is_bag, with_bag_of;
  int index_wide, offsets_wide, offsets_end;
  shf_matrix index, offsets;
  unsigned long long *list_count; // of the run that the grouping is made in: emptied on the way; NULL: none
};

// Where a grouping's pieces lie in its memory.
struct GroupingLayout {
  int64_t keys, payload, bag_of, read, keys_in, payload_in, scratch, scratch_bytes, total;
  int wide, bits;
};
cudaError_t grouping_layout(const GroupingSpec &spec, GroupingLayout *at);
void make_grouping(Launcher &l, const GroupingSpec &spec, void *memory);
Sorted grouping_in(const GroupingSpec &spec, const GroupingLayout &at, const void *memory);

// What a backward problem's entries are grouped by (run_embedding.cu).
GroupingSpec embedding_grouping(const sheaf_embedding_desc &d, int64_t batch);

// ---- The rows that a grouping names (grouped_rows.cu) ----

void count_grouped_rows(Launcher &l, const shf_device_rows &rows);
void number_grouped_rows(Launcher &l, const shf_device_rows &rows);

// ---- Element by element (elementwise.cu) ----

sheaf_status map_elements(Launcher &l, const shf_device_map &m);

// ---- Runs (run_embedding.cu, run_segment.cu) ----

sheaf_status embedding_sizes(const shf_device_problem &p, shf_device_sizes *sizes);
sheaf_status segment_sizes(const shf_device_problem &p, shf_device_sizes *sizes);
void embedding_run(Launcher &l, const shf_device_call &call);
void segment_run(Launcher &l, const shf_device_call &call);
void embedding_group(Launcher &l, const shf_device_call &call, void *grouping);
void segment_group(Launcher &l, const shf_device_call &call, void *grouping);

// ---- Tensors over ranks (ranks.cu, nccl.cu) ----

// On the default stream of the current device.
cudaError_t fold_part(const shf_fold_task &task);
cudaError_t convert_cells(sheaf_dtype from, const void *source, sheaf_dtype to, void *target, int64_t count);
cudaError_t divide_rows(const void *sums, const void *divisors, int64_t rows, int64_t columns, sheaf_dtype to,
                        void *target);
extern const shf_engine nccl_engine;

} // namespace shf
#endif
