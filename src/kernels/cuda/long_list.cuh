// long_list.cuh: the list of what is left to walk_chunks: groups that are too long for one rower, and their chunks of up to
// 256 places. Whoever finds a long group enters it; chunks are taken one by one by whoever has nothing to do.
#ifndef SHF_CUDA_LONG_LIST_CUH
#define SHF_CUDA_LONG_LIST_CUH

#include "terms.cuh"

namespace shf {

// Makes ready the slots of a long group, by `threads` threads: nothing has arrived there yet. Of sixteen slots the
// first few count arrivals, one for each level of the tree (see climb).
__device__ __forceinline__ void claim_slots(const Task &t, const Span &span, int thread, int threads)
{
  enum { LEVELS = 12 }; // 16^12 chunks are more than 2^46 entries have
  int64_t chunks = (span.end - span.start + SHF_CHUNK - 1) / SHF_CHUNK;
  char *slots = t.slots + first_slot(span.start) * t.slot_bytes;
  for (int64_t tile = 0; tile < t.tiles; tile++)
    for (int64_t node = (int64_t)thread * SHF_FAN_IN; node < chunks; node += (int64_t)threads * SHF_FAN_IN) {
      int64_t below = SHF_FAN_IN; // chunks of a node of this level
      for (int level = 0; level < LEVELS && (node & (below - 1)) == 0 && node + level < chunks;
           level++, below *= SHF_FAN_IN)
        slot_head(slots + (node + level) * t.slot_bytes, tile)->arrived = 0;
    }
}

// ---- Classes of chunks ----

// Those of more than eight terms of sixteen places, of more than four, of more than two, and the rest.
__host__ __device__ __forceinline__ int class_of(int64_t places)
{
  return places > 8 * SHF_FAN_IN ? 0 : places > 4 * SHF_FAN_IN ? 1 : places > 2 * SHF_FAN_IN ? 2 : 3;
}

// An array's element by class, which the compiler could not keep in registers otherwise.
template <class T> __device__ __forceinline__ T of_class(const T *array, int which)
{
  return which == 0 ? array[0] : which == 1 ? array[1] : which == 2 ? array[2] : array[3];
}

// A chunk of a group whose entries are [start, end), as it is listed.
enum { PLACES_BITS = 9 };
__device__ __forceinline__ LongItem item_of(const Span &span, uint32_t group, int64_t chunk)
{
  int64_t entry = span.start + chunk * SHF_CHUNK;
  return LongItem{group, (uint32_t)chunk, entry << PLACES_BITS | min((int64_t)SHF_CHUNK, span.end - entry)};
}

__device__ __forceinline__ int64_t chunks_of(const Span &span)
{
  return (span.end - span.start + SHF_CHUNK - 1) / SHF_CHUNK;
}

// ---- Entering ----

// Where a group and its chunks are in the list: all but the last chunk are full ones, of the first class.
struct Listed {
  int64_t full, last;
  uint32_t group;
  int last_class, has_number, has_room; // the group has a place of its own; its chunks have theirs, too
};

// Enters a group, by one thread. (Offsets that are out of order can claim more than there is room for.)
__device__ __forceinline__ Listed enter_list(const Task &t, const Span &span)
{
  int64_t chunks = chunks_of(span);
  Listed at;
  at.last_class = class_of(span.end - span.start - (chunks - 1) * SHF_CHUNK);
  int64_t group = (int64_t)atomicAdd(t.list.count + LISTED_GROUPS, 1ull);
  at.group = (uint32_t)group;
  at.last = (int64_t)atomicAdd(t.list.count + at.last_class, 1ull);
  at.full = chunks > 1 ? (int64_t)atomicAdd(t.list.count, (unsigned long long)(chunks - 1)) : 0;
  at.has_number = group < t.list.most;
  at.has_room =
      at.has_number && at.full + chunks - 1 <= t.list.room[0] && at.last < of_class(t.list.room, at.last_class);
  return at;
}

// Writes a group that was entered, and its chunks, by `threads` threads. What was claimed without room must not be read
// as it is; but the group itself is written wherever it has a place, since walk_chunks looks at the first in any case.
__device__ __forceinline__ void list_group(const Task &t, const Span &span, const Listed &at, int thread, int threads)
{
  int64_t chunks = chunks_of(span), last_room = of_class(t.list.room, at.last_class);
  uint32_t group = at.has_room ? at.group : NOT_LISTED;
  if (thread == 0 && at.has_number)
    t.list.groups[at.group] =
        LongGroup{span.problem, span.group, span.start, span.end - span.start, first_slot(span.start)};
  for (int64_t i = thread; i + 1 < chunks && at.full + i < t.list.room[0]; i += threads)
    t.list.items[0][at.full + i] = item_of(span, group, i);
  if (thread == 0 && at.last < last_room)
    of_class(t.list.items, at.last_class)[at.last] = item_of(span, group, chunks - 1);
  if (chunks > 1 && at.has_room) claim_slots(t, span, thread, threads);
}

// Leaves a group to walk_chunks, or where there is no list to share_chunks, by the lanes of `mask`, of which this is number
// `lane`. (Not inlined, so that it takes no registers from the rest; `t` is the kernel's own parameter.)
static __device__ __noinline__ void leave_group(const Task &t, Span span, int lane, int lanes, unsigned mask)
{
  if (!t.list.count) {
    claim_slots(t, span, lane, lanes);
    return;
  }
  Listed at = {};
  if (lane == 0) at = enter_list(t, span);
  at.full = __shfl_sync(mask, at.full, 0, lanes);
  at.last = __shfl_sync(mask, at.last, 0, lanes);
  at.group = __shfl_sync(mask, at.group, 0, lanes);
  at.last_class = __shfl_sync(mask, at.last_class, 0, lanes);
  at.has_number = __shfl_sync(mask, at.has_number, 0, lanes);
  at.has_room = __shfl_sync(mask, at.has_room, 0, lanes);
  list_group(t, span, at, lane, lanes);
}

// ---- Taking ----

// How many items there are of the classes up to each.
struct ListEnds {
  int64_t end[ITEM_CLASSES];
};

__device__ __forceinline__ ListEnds ends_of(const Task &t)
{
  ListEnds e;
  int64_t sum = 0;
#pragma unroll
  for (int k = 0; k < ITEM_CLASSES; k++) {
    sum += min((int64_t)__ldcg(t.list.count + k), t.list.room[k]);
    e.end[k] = sum;
  }
  return e;
}

// Item by number: the longest come first.
__device__ __forceinline__ LongItem item_at(const Task &t, const ListEnds &e, int64_t number)
{
  const LongItem *items = t.list.items[0];
  int64_t first = 0;
#pragma unroll
  for (int k = 1; k < ITEM_CLASSES; k++)
    if (number >= e.end[k - 1]) items = t.list.items[k], first = e.end[k - 1];
  return items[number - first];
}

// The next numbers for the rowers of a warp, which are neighbours; all tiles of columns come one after the other.
__device__ __forceinline__ int64_t take_numbers(const Task &t, int rowers)
{
  unsigned long long first = 0;
  if (threadIdx.x % WARP == 0) first = atomicAdd(t.list.count + ITEMS_TAKEN, (unsigned long long)rowers);
  return (int64_t)first; // right in the first lane
}

} // namespace shf
#endif
