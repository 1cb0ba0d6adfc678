// long_list.cu: the memory of the list that long_list.cuh fills, and the kernel that lists all long groups of a task at once.
#include <chrono>

#include "cuda_impl.h"
#include "stamp.cuh"

namespace shf {

// Groups of at least `least` places, and of their chunks, which do not meet, those of each class.
static LongList list_rooms(int64_t entries, int64_t least)
{
  const int64_t places[ITEM_CLASSES] = {8 * SHF_FAN_IN + 1, 4 * SHF_FAN_IN + 1, 2 * SHF_FAN_IN + 1, 1};
  LongList list = {};
  list.most = entries / least + 1;
  for (int k = 0; k < ITEM_CLASSES; k++) {
    list.room[k] = entries / places[k] + 1;
    if (k > 0 && list.room[k] > list.most) list.room[k] = list.most; // one of each group, the last
  }
  return list;
}

// Lays out the list, from `memory` on if there is some; returns how many bytes that takes.
static int64_t lay_out_list(LongList &list, char *memory)
{
  int64_t at = shf_align64(LIST_COUNTS * (int64_t)sizeof *list.count);
  if (memory) list.count = (unsigned long long *)memory, list.groups = (LongGroup *)(memory + at);
  at += shf_align64(list.most * (int64_t)sizeof(LongGroup));
  for (int k = 0; k < ITEM_CLASSES; k++) {
    if (memory) list.items[k] = (LongItem *)(memory + at);
    at += shf_align64(list.room[k] * (int64_t)sizeof(LongItem));
  }
  return at;
}

uint64_t new_mark(const Launcher &l)
{
  // Counted from somewhere, since memory may hold small numbers, or what another process has left.
  static std::atomic<uint64_t> last{(uint64_t)std::chrono::steady_clock::now().time_since_epoch().count() << 16};
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  if (cudaStreamIsCapturing(l.stream, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone) return 0;
  return (last += 2) | 1;
}

int64_t list_bytes(int64_t entries, int64_t least)
{
  LongList list = list_rooms(entries, least);
  return lay_out_list(list, nullptr);
}

LongList list_in(char *memory, int64_t entries, int64_t least)
{
  LongList list = list_rooms(entries, least);
  lay_out_list(list, memory);
  return list;
}

void empty_list(Launcher &l, const LongList &list) { clear_memory(l, list.count, LIST_COUNTS * sizeof *list.count); }

struct ListTask {
  Task task;
  int64_t longest;
};

// A thread looks at a group and enters it; all of the block write its chunks, of which one group can have very many.
__global__ void __launch_bounds__(BLOCK) list_long_kernel(const __grid_constant__ ListTask t)
{
  __shared__ Span found[BLOCK];
  __shared__ Listed listed[BLOCK];
  __shared__ int count;
  begin_kernel();
  int64_t all = t.task.groups * t.task.batch, step = (int64_t)gridDim.x * BLOCK;
  for (int64_t base = (int64_t)blockIdx.x * BLOCK; base < all; base += step) {
    int64_t g = base + threadIdx.x;
    Span span = span_of(t.task, min(g, all - 1));
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    if (g < all && span.end - span.start > t.longest) {
      int at = atomicAdd(&count, 1);
      found[at] = span;
      listed[at] = enter_list(t.task, span);
    }
    __syncthreads();
    for (int i = 0; i < count; i++) list_group(t.task, found[i], listed[i], (int)threadIdx.x, BLOCK);
    __syncthreads();
  }
}

void list_long(Launcher &l, const Task &t, int64_t longest)
{
  int64_t blocks = (t.groups * t.batch + BLOCK - 1) / BLOCK, most = (int64_t)l.device.processors * 8;
  launch(l, list_long_kernel, grid_of(blocks < most ? blocks : most, 1), BLOCK, 0, ListTask{t, longest});
}

} // namespace shf
