// grouping.cu: entries grouped by row: keys and payloads are written in order of position, then sorted by CUB, which is
// stable, over only the bits that keys have. Padding, bad entries and rows held elsewhere get the largest key.
#include <atomic>
#include <cub/device/device_radix_sort.cuh>

#include "cuda_impl.h"
#include "stamp.cuh"

namespace shf {

static int bits_for(uint64_t values) { return values <= 1 ? 1 : 64 - __builtin_clzll(values - 1); }

// What a grouping was made for, in one number.
static uint64_t stamp_of(const GroupingSpec &s)
{
  const int64_t parts[] = {s.batch, s.entries,    s.groups,  s.row_begin,      s.rows,       s.padding,
                           s.bags,  s.bag_length, s.columns, s.payload_is_bag, s.with_bag_of};
  uint64_t hash = 0xcbf29ce484222325u;
  for (int64_t part : parts)
    for (int i = 0; i < 8; i++) hash = (hash ^ (uint64_t)(part >> (8 * i) & 255)) * 0x100000001b3u;
  return hash;
}

template <class Key>
static cudaError_t sort(void *scratch, size_t &bytes, const void *keys_in, void *keys, const void *payload_in,
                        void *payload, int64_t count, int bits, cudaStream_t stream)
{
  return cub::DeviceRadixSort::SortPairs(scratch, bytes, (const Key *)keys_in, (Key *)keys, (const Key *)payload_in,
                                         (Key *)payload, count, 0, bits, stream);
}

static cudaError_t sort_any(int wide, void *scratch, size_t &bytes, const void *keys_in, void *keys,
                            const void *payload_in, void *payload, int64_t count, int bits, cudaStream_t stream)
{
  return wide ? sort<uint64_t>(scratch, bytes, keys_in, keys, payload_in, payload, count, bits, stream)
              : sort<uint32_t>(scratch, bytes, keys_in, keys, payload_in, payload, count, bits, stream);
}

cudaError_t grouping_layout(const GroupingSpec &s, GroupingLayout *at)
{
  int64_t all = s.batch * s.entries, keys = s.batch * s.groups + 1;
  at->wide = keys > UINT32_MAX || all > UINT32_MAX || s.batch * s.bags > UINT32_MAX;
  at->bits = bits_for((uint64_t)keys);
  int64_t each = shf_align64(all * (at->wide ? 8 : 4));
  at->keys = 64; // the stamp lies in front
  at->payload = at->keys + each;
  at->bag_of = at->payload + each;
  at->read = at->bag_of + (s.with_bag_of ? each : 0);
  at->keys_in = at->read;
  at->payload_in = at->keys_in + each;
  at->scratch = at->payload_in + each;
  size_t bytes = 0;
  cudaError_t error = cudaSuccess;
  if (all > 0) error = sort_any(at->wide, nullptr, bytes, nullptr, nullptr, nullptr, nullptr, all, at->bits, 0);
  at->scratch_bytes = (int64_t)bytes;
  at->total = at->scratch + shf_align64((int64_t)bytes + 256);
  return error;
}

Sorted grouping_in(const GroupingSpec &spec, const GroupingLayout &at, const void *memory)
{
  const char *base = (const char *)memory;
  Sorted s;
  s.keys = base + at.keys;
  s.payload = base + at.payload;
  s.wide = at.wide;
  s.none = (uint64_t)(spec.batch * spec.groups);
  s.stamp = (const uint64_t *)base;
  s.expected = stamp_of(spec);
  return s;
}

struct KeyTask {
  GroupingSpec spec;
  Task bags; // offsets, for the bag of an entry
  void *keys, *payload, *bag_of;
  int wide;
  uint64_t *stamp, stamp_value;
};

enum { KEYS_EACH = 4, KEY_TILE = BLOCK * KEYS_EACH };

// Writes values[0 .. count) from position `at` on, which is a multiple of four.
__device__ __forceinline__ void put(void *array, int64_t at, const int64_t *values, int count, int wide)
{
  if (!wide && count == KEYS_EACH) {
    *(uint4 *)((uint32_t *)array + at) =
        make_uint4((uint32_t)values[0], (uint32_t)values[1], (uint32_t)values[2], (uint32_t)values[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < KEYS_EACH; i++) {
    if (i >= count) break;
    if (wide)
      ((int64_t *)array)[at + i] = values[i];
    else
      ((uint32_t *)array)[at + i] = (uint32_t)values[i];
  }
}

// The last bag, over all problems, between `low` and `high` that starts at or before entry n.
__device__ __forceinline__ int64_t bag_between(const Task &t, int64_t low, int64_t high, int64_t n)
{
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2, its = t.batch > 1 ? middle / t.groups : 0;
    if (group_start(t, its, middle - its * t.groups) <= n)
      low = middle;
    else
      high = middle;
  }
  return low;
}

__device__ __forceinline__ int64_t key_of(const GroupingSpec &s, int64_t problem, int64_t local)
{
  int64_t cell = 0, index;
  if (s.columns) {
    int64_t row = local / s.columns;
    cell = local - row * s.columns;
    index = load_index(row_of(s.index, problem, row), cell, s.index_wide);
  } else {
    index = load_index(s.index.data + problem * s.index.batch_stride, local, s.index_wide);
  }
  uint64_t row = (uint64_t)index - (uint64_t)s.row_begin;
  if (row >= (uint64_t)s.rows || index < 0 || index == s.padding) return s.batch * s.groups;
  return problem * s.groups + (s.columns ? (int64_t)row * s.columns + cell : (int64_t)row);
}

// Bags of a block's entries, found from the block's first and last: where each one begins, from the block's first entry
// on, lies in shared memory when there are not too many.
struct BlockBags {
  enum { MOST = 2048 };
  int64_t first, last;
  int start[MOST]; // of bag first + i
};

__device__ __forceinline__ int64_t bag_start(const Task &t, int64_t bag)
{
  int64_t its = t.batch > 1 ? bag / t.groups : 0;
  return group_start(t, its, bag - its * t.groups);
}

__device__ __forceinline__ void find_block_bags(const Task &t, int64_t base, int64_t end, BlockBags *b)
{
  __syncthreads();
  if (threadIdx.x == 0) b->first = group_holding(t, base);
  if (threadIdx.x == WARP) b->last = group_holding(t, end - 1);
  __syncthreads();
  int64_t count = b->last - b->first + 1;
  for (int64_t i = threadIdx.x; count <= BlockBags::MOST && i < count; i += BLOCK)
    b->start[i] = (int)max(min(bag_start(t, b->first + i) - base, (int64_t)KEY_TILE), (int64_t)-1);
  __syncthreads();
}

// The bags of neighbouring entries from n on: the last of the block's that starts at or before each.
__device__ __forceinline__ void bags_among(const Task &t, const BlockBags &b, int64_t base, int64_t n, int64_t *bags)
{
  int64_t count = b.last - b.first + 1;
  int low = 0, high = (int)min(count, (int64_t)BlockBags::MOST), at = (int)(n - base);
  bool here = count <= BlockBags::MOST;
  while (here && high - low > 1) {
    int middle = (low + high) / 2;
    if (b.start[middle] <= at)
      low = middle;
    else
      high = middle;
  }
#pragma unroll
  for (int i = 0; i < KEYS_EACH; i++) {
    while (here && low + 1 < count && b.start[low + 1] <= at + i) low++;
    bags[i] = here ? b.first + low : bag_between(t, b.first, b.last + 1, n + i);
  }
}

// A thread takes four neighbours, so that it looks for bags once and writes whole words.
template <bool USUAL> __global__ void __launch_bounds__(BLOCK) make_keys(const __grid_constant__ KeyTask given)
{
  KeyTask t = given;
  if (USUAL) t.spec.batch = t.bags.batch = 1, t.spec.columns = 0, t.wide = 0; // known, so that other code disappears
  const GroupingSpec &s = t.spec;
  __shared__ BlockBags block_bags;
  int64_t all = s.batch * s.entries;
  bool bags = s.payload_is_bag || s.with_bag_of, by_offsets = bags && s.bag_length < 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) *t.stamp = t.stamp_value;
  for (int64_t base = (int64_t)blockIdx.x * KEY_TILE; base < all; base += (int64_t)gridDim.x * KEY_TILE) {
    if (by_offsets) find_block_bags(t.bags, base, min(base + KEY_TILE, all), &block_bags);
    int64_t first = base + threadIdx.x * KEYS_EACH, key[KEYS_EACH], payload[KEYS_EACH], bag[KEYS_EACH];
    int count = (int)min((int64_t)KEYS_EACH, all - first);
    if (count <= 0) continue;
#pragma unroll
    for (int i = 0; i < KEYS_EACH; i++) {
      int64_t n = min(first + i, all - 1), problem = s.batch > 1 ? n / s.entries : 0;
      key[i] = key_of(s, problem, n - problem * s.entries);
    }
    if (by_offsets) bags_among(t.bags, block_bags, base, first, bag);
#pragma unroll
    for (int i = 0; i < KEYS_EACH; i++) {
      int64_t n = first + i, problem = s.batch > 1 ? n / s.entries : 0, local = n - problem * s.entries;
      payload[i] = n;
      if (!bags) continue;
      if (!by_offsets) bag[i] = problem * s.bags + (s.bag_length > 0 ? local / s.bag_length : 0);
      // Offsets that are out of order can lead to another problem's bag: kept within this one.
      int64_t least = problem * s.bags, most = least + s.bags - 1;
      bag[i] = bag[i] < least ? least : bag[i] > most ? most : bag[i];
      if (s.payload_is_bag) payload[i] = bag[i];
      bag[i] -= least;
    }
    put(t.keys, first, key, count, t.wide);
    put(t.payload, first, payload, count, t.wide);
    if (s.with_bag_of) put(t.bag_of, first, bag, count, t.wide);
  }
}

// CUB's kernels can only be loaded by running them.
static cudaError_t load_sort(int wide, int bits)
{
  bits = bits > 32 && !wide ? 32 : bits;
  enum { COUNT = 1 << 17 }; // past the sizes that one block sorts alone
  size_t bytes = 0, arrays = (size_t)COUNT * 8 * 4;
  char *memory = nullptr;
  cudaStream_t stream = nullptr;
  cudaError_t error = sort_any(wide, nullptr, bytes, nullptr, nullptr, nullptr, nullptr, COUNT, bits, 0);
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error == cudaSuccess) error = cudaMalloc((void **)&memory, arrays + bytes + 256);
  if (error == cudaSuccess) error = cudaMemsetAsync(memory, 0, arrays, stream);
  for (int64_t count = 1; count <= COUNT && error == cudaSuccess; count *= COUNT) {
    size_t room = bytes;
    error = sort_any(wide, memory + arrays, room, memory, memory + COUNT * 8, memory + COUNT * 16, memory + COUNT * 24,
                     count, bits, stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  cudaFree(memory);
  if (stream) cudaStreamDestroy(stream);
  return error;
}

void make_grouping(Launcher &l, const GroupingSpec &spec, void *memory)
{
  static std::atomic<bool> sort_loaded[2][64]; // by width and device; a race loads twice
  GroupingLayout at;
  if (l.error == cudaSuccess) l.error = grouping_layout(spec, &at);
  if (l.error != cudaSuccess) return;
  char *base = (char *)memory;
  KeyTask t = {};
  t.spec = spec;
  t.bags.groups = spec.bags;
  t.bags.entries = t.bags.entry_stride = spec.entries;
  t.bags.batch = spec.batch;
  t.bags.bag_length = spec.bag_length;
  t.bags.offsets = spec.offsets.data;
  t.bags.offsets_batch = spec.offsets.batch_stride;
  t.bags.offsets_wide = spec.offsets_wide;
  t.bags.offsets_end = spec.offsets_end;
  t.keys = base + at.keys_in;
  t.payload = base + at.payload_in;
  t.bag_of = base + at.bag_of;
  t.wide = at.wide;
  t.stamp = (uint64_t *)base;
  t.stamp_value = stamp_of(spec);
  int64_t all = spec.batch * spec.entries, blocks = (all + KEY_TILE - 1) / KEY_TILE;
  int64_t most = (int64_t)l.device.processors * 64;
  dim3 grid = grid_of(blocks < 1 ? 1 : blocks < most ? blocks : most, 1);
  bool is_usual = spec.batch == 1 && spec.columns == 0 && !at.wide;
  if (l.loading || is_usual) launch(l, make_keys<true>, grid, BLOCK, 0, t);
  if (l.loading || !is_usual) launch(l, make_keys<false>, grid, BLOCK, 0, t);
  if (l.error != cudaSuccess) return;
  if (l.loading) {
    int device = 0;
    l.error = cudaGetDevice(&device);
    for (int wide = 0; wide < 2; wide++) {
      if (l.error != cudaSuccess || (device < 64 && sort_loaded[wide][device])) continue;
      l.error = load_sort(wide, at.bits);
      if (device < 64 && l.error == cudaSuccess) sort_loaded[wide][device] = true;
    }
    return;
  }
  if (all == 0) return;
  size_t bytes = (size_t)at.scratch_bytes;
  l.error = sort_any(at.wide, base + at.scratch, bytes, t.keys, base + at.keys, t.payload, base + at.payload, all,
                     at.bits, l.stream);
}

} // namespace shf
