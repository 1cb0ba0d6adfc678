// grouping.cu: entries grouped by row: sorted by the row they name, in order of position where that is equal, over only
// the bits that rows need. Few entries are sorted by one kernel (small_sort.cuh), many by one for each digit
// (radix_sort.cuh); CUB sorts what has keys of more than 32 bits. Padding, bad entries and rows held elsewhere get the
// largest key.
#include <atomic>
#include <cub/device/device_radix_sort.cuh>

#include "cuda_impl.h"
#include "radix_sort.cuh"
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

// CUB's sort, of 64-bit keys. With `scratch` NULL it says how much memory it sorts with.
static cudaError_t sort_wide(void *scratch, size_t &bytes, const void *keys_in, void *keys, const void *payload_in,
                             void *payload, int64_t count, int bits, cudaStream_t stream)
{
  return cub::DeviceRadixSort::SortPairs(scratch, bytes, (const uint64_t *)keys_in, (uint64_t *)keys,
                                         (const uint64_t *)payload_in, (uint64_t *)payload, count, 0, bits, stream);
}

// How much memory CUB sorts with. Asking takes longer than a launch, so what a thread asked last is remembered.
static cudaError_t scratch_for(int64_t count, int bits, int64_t *bytes)
{
  struct Answer {
    int device, bits;
    int64_t count, bytes;
  };
  static thread_local Answer last = {-1, 0, 0, 0};
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess && !(last.device == device && last.bits == bits && last.count == count)) {
    size_t needed = 0;
    error = sort_wide(nullptr, needed, nullptr, nullptr, nullptr, nullptr, count, bits, 0);
    if (error == cudaSuccess) last = {device, bits, count, (int64_t)needed};
  }
  *bytes = last.bytes;
  return error;
}

cudaError_t grouping_layout(const GroupingSpec &s, GroupingLayout *at)
{
  int64_t all = s.batch * s.entries, keys = s.batch * s.groups + 1;
  at->wide = keys > UINT32_MAX || all > MOST_SORTED || s.batch * s.bags > UINT32_MAX;
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
  if (all > 0 && at->wide) error = scratch_for(all, at->bits, &at->scratch_bytes);
  if (!at->wide) at->scratch_bytes = radix_bytes(all, at->bits);
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

// Keys and payloads in order of position, for CUB; or pairs of both, whose digits are counted on the way.
template <bool WIDE> __global__ void __launch_bounds__(BLOCK) make_keys(const __grid_constant__ RadixTask t)
{
  __shared__ BlockBags block_bags;
  __shared__ RadixCounts counts;
  int64_t all = t.keys.spec.batch * t.keys.spec.entries;
  begin_kernel();
  begin_grouping(t.keys);
  if (!WIDE) begin_counts(t, &counts);
  for (int64_t base = (int64_t)blockIdx.x * KEY_TILE; base < all; base += (int64_t)gridDim.x * KEY_TILE) {
    Entries e = entries_of(t.keys, base, &block_bags);
    if (WIDE && e.count > 0) {
      put(t.keys.keys, e.first, e.key, e.count, true);
      put(t.keys.payload, e.first, e.payload, e.count, true);
    }
#pragma unroll
    for (int i = 0; !WIDE && i < KEYS_EACH; i++) {
      if (i >= e.count) break;
      t.to[e.first + i] = make_uint2((uint32_t)e.key[i], (uint32_t)e.payload[i]);
      count_key(t, &counts, (uint32_t)e.key[i]);
    }
  }
  if (!WIDE) end_counts(t, &counts);
}

// CUB's kernels can only be loaded by running them.
static cudaError_t load_sort(int bits)
{
  enum { COUNT = 1 << 17 }; // past the sizes that one block sorts alone
  size_t bytes = 0, arrays = (size_t)COUNT * 8 * 4;
  char *memory = nullptr;
  cudaStream_t stream = nullptr;
  cudaError_t error = sort_wide(nullptr, bytes, nullptr, nullptr, nullptr, nullptr, COUNT, bits, 0);
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error == cudaSuccess) error = cudaMalloc((void **)&memory, arrays + bytes + 256);
  if (error == cudaSuccess) error = cudaMemsetAsync(memory, 0, arrays, stream);
  for (int64_t count = 1; count <= COUNT && error == cudaSuccess; count *= COUNT) {
    size_t room = bytes;
    error = sort_wide(memory + arrays, room, memory, memory + COUNT * 8, memory + COUNT * 16, memory + COUNT * 24,
                      count, bits, stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  cudaFree(memory);
  if (stream) cudaStreamDestroy(stream);
  return error;
}

static void load_sort_once(Launcher &l, int bits)
{
  static std::atomic<bool> loaded[64]; // by device; a race loads twice
  int device = 0;
  if (l.error == cudaSuccess) l.error = cudaGetDevice(&device);
  if (l.error != cudaSuccess || (device < 64 && loaded[device])) return;
  l.error = load_sort(bits);
  if (device < 64 && l.error == cudaSuccess) loaded[device] = true;
}

// Launches a pass, if it is one of these.
template <int INPUT, int PAYLOAD>
static void send_pass(Launcher &l, const RadixTask &t, dim3 grid, RadixInput input, RadixPayload payload)
{
  if (!l.loading && (input != INPUT || payload != PAYLOAD)) return;
  bool last = t.pass + 1 == t.digits.passes;
  if (l.loading || !last) launch(l, radix_pass<INPUT, PAYLOAD, false>, grid, RADIX_BLOCK, radix_shared<PAYLOAD>(), t);
  if (l.loading || last) launch(l, radix_pass<INPUT, PAYLOAD, true>, grid, RADIX_BLOCK, radix_shared<PAYLOAD>(), t);
}

// Entries are sorted by the digits of their keys, pass by pass: from the indices, or the pairs made of them, to pairs
// that lie in one of two places by turns, to where they belong. The sorted arrays, which are neighbours, are one of the
// places: the last pass but one writes to the other.
static void sort_by_digits(Launcher &l, RadixTask &t, char *sorted, char *other, bool from_indices)
{
  int64_t tiles = t.tiles, most = (int64_t)l.device.processors * RADIX_BLOCKS;
  dim3 grid = grid_of(tiles < most ? tiles : most, 1);
  for (t.pass = 0; t.pass < (l.loading ? 1 : t.digits.passes); t.pass++) {
    bool to_other = (t.digits.passes - t.pass) % 2 == 0;
    t.from = (const uint2 *)(to_other ? sorted : other);
    t.to = (uint2 *)(to_other ? other : sorted);
    bool first = from_indices && t.pass == 0;
    RadixInput input = !first ? PAIRS : t.keys.spec.index_wide ? WIDE_INDICES : NARROW_INDICES;
    RadixPayload payload = !first ? CARRIED : by_offsets(t.keys.spec) ? MARKED : COMPUTED;
    send_pass<PAIRS, CARRIED>(l, t, grid, input, payload);
    send_pass<NARROW_INDICES, COMPUTED>(l, t, grid, input, payload);
    send_pass<NARROW_INDICES, MARKED>(l, t, grid, input, payload);
    send_pass<WIDE_INDICES, COMPUTED>(l, t, grid, input, payload);
    send_pass<WIDE_INDICES, MARKED>(l, t, grid, input, payload);
  }
}

void make_grouping(Launcher &l, const GroupingSpec &spec, void *memory)
{
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
  RadixTask r = {};
  r.keys = t;
  r.digits = radix_digits(at.wide ? 32 : at.bits);
  r.scratch = radix_scratch(base + at.scratch, all);
  r.count = (uint32_t)all;
  r.tiles = (uint32_t)radix_tiles(all);
  r.sorted_keys = (uint32_t *)(base + at.keys);
  r.sorted_payload = (uint32_t *)(base + at.payload);
  bool from_indices = is_usual && !spec.with_bag_of;
  if (l.loading || (!at.wide && all > 0)) clear_memory(l, base + at.scratch, (size_t)radix_cleared(all));
  if (l.loading || (!at.wide && from_indices)) {
    int64_t each = COUNT_BLOCK * COUNT_EACH * 2, wanted = all / each + 1,
            room = (int64_t)l.device.processors * COUNT_BLOCKS;
    dim3 counting = grid_of(wanted < room ? wanted : room, 1);
    if (l.loading || !spec.index_wide) launch(l, count_digits<int>, counting, COUNT_BLOCK, 0, r);
    if (l.loading || spec.index_wide) launch(l, count_digits<long long>, counting, COUNT_BLOCK, 0, r);
  }
  r.to = (uint2 *)(r.digits.passes % 2 ? t.keys : base + at.keys);
  if (l.loading || (!at.wide && !from_indices)) launch(l, make_keys<false>, grid, BLOCK, 0, r);
  if (l.loading || at.wide) launch(l, make_keys<true>, grid, BLOCK, 0, r);
  if (l.loading || !at.wide) sort_by_digits(l, r, base + at.keys, base + at.keys_in, from_indices);
  if (l.loading) load_sort_once(l, at.bits);
  if (l.loading || !at.wide || all == 0 || l.error != cudaSuccess) return;
  size_t bytes = (size_t)at.scratch_bytes;
  l.error =
      sort_wide(base + at.scratch, bytes, t.keys, base + at.keys, t.payload, base + at.payload, all, at.bits, l.stream);
}

} // namespace shf
