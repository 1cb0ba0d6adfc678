// keys.cuh: the keys and payloads that entries are sorted by, four neighbours to a thread: which row an entry names,
// and which bag or position it stands for.
#ifndef SHF_CUDA_KEYS_CUH
#define SHF_CUDA_KEYS_CUH

#include "cuda_impl.h"

namespace shf {

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

// The row that an index names, from row_begin on; behind the last one where it is padding, bad, or held elsewhere. (An
// index below 0 is, too: less row_begin, modulo 2^64, it is larger than any row.)
__device__ __forceinline__ int64_t row_key(const GroupingSpec &s, int64_t index)
{
  uint64_t row = (uint64_t)index - (uint64_t)s.row_begin;
  return row >= (uint64_t)s.rows || index == s.padding ? s.rows : (int64_t)row;
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
  int64_t row = row_key(s, index);
  if (row == s.rows) return s.batch * s.groups;
  return problem * s.groups + (s.columns ? row * s.columns + cell : row);
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

// A thread's entries. `count` of them are there, perhaps none.
struct Entries {
  int64_t first, key[KEYS_EACH], payload[KEYS_EACH], bag[KEYS_EACH];
  int count;
};

// The entries of the tile that begins at `base`. All threads of the block come here.
__device__ __forceinline__ Entries entries_of(const KeyTask &t, int64_t base, BlockBags *block_bags)
{
  const GroupingSpec &s = t.spec;
  int64_t all = s.batch * s.entries;
  bool bags = s.payload_is_bag || s.with_bag_of, by_offsets = bags && s.bag_length < 0;
  if (by_offsets) find_block_bags(t.bags, base, min(base + KEY_TILE, all), block_bags);
  Entries e;
  e.first = base + threadIdx.x * KEYS_EACH;
  e.count = (int)max(min((int64_t)KEYS_EACH, all - e.first), (int64_t)0);
  if (e.count == 0) return e;
#pragma unroll
  for (int i = 0; i < KEYS_EACH; i++) {
    int64_t n = min(e.first + i, all - 1), problem = s.batch > 1 ? n / s.entries : 0;
    e.key[i] = key_of(s, problem, n - problem * s.entries);
  }
  if (by_offsets) bags_among(t.bags, *block_bags, base, e.first, e.bag);
#pragma unroll
  for (int i = 0; i < KEYS_EACH; i++) {
    int64_t n = e.first + i, problem = s.batch > 1 ? n / s.entries : 0, local = n - problem * s.entries;
    e.payload[i] = n;
    if (!bags) continue;
    if (!by_offsets) e.bag[i] = problem * s.bags + (s.bag_length > 0 ? local / s.bag_length : 0);
    // Offsets that are out of order can lead to another problem's bag: kept within this one.
    int64_t least = problem * s.bags, most = least + s.bags - 1;
    e.bag[i] = e.bag[i] < least ? least : e.bag[i] > most ? most : e.bag[i];
    if (s.payload_is_bag) e.payload[i] = e.bag[i];
    e.bag[i] -= least;
  }
  if (s.with_bag_of) put(t.bag_of, e.first, e.bag, e.count, t.wide);
  return e;
}

// What is known of a usual task, so that other code disappears.
template <bool USUAL> __device__ __forceinline__ KeyTask known(const KeyTask &given)
{
  KeyTask t = given;
  if (USUAL) t.spec.batch = t.bags.batch = 1, t.spec.columns = 0, t.wide = 0;
  return t;
}

// What the first block does besides: says what the grouping is for, and empties the list of the run.
__device__ __forceinline__ void begin_grouping(const KeyTask &t)
{
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  *t.stamp = t.stamp_value;
  if (t.spec.list_count) clear_list(t.spec.list_count);
}

} // namespace shf
#endif
