// grouping.cu: entries grouped by row: sorted by the row they name, in order of position where that is equal, over only
// the bits that rows need. Few entries are sorted by one kernel (small_sort.cuh); many have their keys and payloads
// written first and are then sorted by CUB. Padding, bad entries and rows held elsewhere get the largest key.
#include <atomic>
#include <cub/device/device_radix_sort.cuh>

#include "cuda_impl.h"
#include "small_sort.cuh"
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

// Counting in `int` is a tenth faster where it is enough.
template <class Key, class Count>
static cudaError_t sort(void *scratch, size_t &bytes, const void *keys_in, void *keys, const void *payload_in,
                        void *payload, int64_t count, int bits, cudaStream_t stream)
{
  return cub::DeviceRadixSort::SortPairs(scratch, bytes, (const Key *)keys_in, (Key *)keys, (const Key *)payload_in,
                                         (Key *)payload, (Count)count, 0, bits, stream);
}

static cudaError_t sort_any(int wide, void *scratch, size_t &bytes, const void *keys_in, void *keys,
                            const void *payload_in, void *payload, int64_t count, int bits, cudaStream_t stream)
{
  return wide ? sort<uint64_t, int64_t>(scratch, bytes, keys_in, keys, payload_in, payload, count, bits, stream)
              : sort<uint32_t, int>(scratch, bytes, keys_in, keys, payload_in, payload, count, bits, stream);
}

// How much memory CUB sorts with. Asking takes longer than a launch, so what a thread asked last is remembered.
static cudaError_t scratch_for(int wide, int64_t count, int bits, int64_t *bytes)
{
  struct Answer {
    int device, wide, bits;
    int64_t count, bytes;
  };
  static thread_local Answer last = {-1, 0, 0, 0, 0};
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess &&
      !(last.device == device && last.wide == wide && last.bits == bits && last.count == count)) {
    size_t needed = 0;
    error = sort_any(wide, nullptr, needed, nullptr, nullptr, nullptr, nullptr, count, bits, 0);
    if (error == cudaSuccess) last = {device, wide, bits, count, (int64_t)needed};
  }
  *bytes = last.bytes;
  return error;
}

cudaError_t grouping_layout(const GroupingSpec &s, GroupingLayout *at)
{
  int64_t all = s.batch * s.entries, keys = s.batch * s.groups + 1;
  at->wide = keys > UINT32_MAX || all > INT32_MAX || s.batch * s.bags > UINT32_MAX;
  at->bits = bits_for((uint64_t)keys);
  int64_t each = shf_align64(all * (at->wide ? 8 : 4));
  at->keys = 64; // the stamp lies in front
  at->payload = at->keys + each;
  at->bag_of = at->payload + each;
  at->read = at->bag_of + (s.with_bag_of ? each : 0);
  at->keys_in = at->read;
  at->payload_in = at->keys_in + each;
  at->scratch = at->payload_in + each;
  cudaError_t error = cudaSuccess;
  at->scratch_bytes = 0;
  if (all > 0) error = scratch_for(at->wide, all, at->bits, &at->scratch_bytes);
  int64_t counts = all <= SMALL_SORT ? small_sort_bytes(all) : 0;
  if (at->scratch_bytes < counts) at->scratch_bytes = counts;
  at->total = at->scratch + shf_align64(at->scratch_bytes + 256);
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

// Keys and payloads in order of position.
template <bool USUAL> __global__ void __launch_bounds__(BLOCK) make_keys(const __grid_constant__ KeyTask given)
{
  KeyTask t = known<USUAL>(given);
  __shared__ BlockBags block_bags;
  int64_t all = t.spec.batch * t.spec.entries;
  begin_grouping(t);
  for (int64_t base = (int64_t)blockIdx.x * KEY_TILE; base < all; base += (int64_t)gridDim.x * KEY_TILE) {
    Entries e = entries_of(t, base, &block_bags);
    if (e.count == 0) continue;
    put(t.keys, e.first, e.key, e.count, t.wide);
    put(t.payload, e.first, e.payload, e.count, t.wide);
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
  bool small = !at.wide && all > 0 && all <= SMALL_SORT && blocks <= l.device.together;
  if (l.loading || small) {
    SmallSortTask s = {t,
                       (uint2 *)t.keys,
                       (uint32_t *)(base + at.keys),
                       (uint32_t *)(base + at.payload),
                       (uint32_t *)(base + at.scratch),
                       at.bits};
    if (l.loading || is_usual) launch_together(l, small_sort<true>, grid, BLOCK, s);
    if (l.loading || !is_usual) launch_together(l, small_sort<false>, grid, BLOCK, s);
    if (!l.loading) return;
  }
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
