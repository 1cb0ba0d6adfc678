// share.cuh: several rowers to a group: small problems, where there are too few groups to fill the device, and the
// chunks of long groups. Each rower takes 16 places, which are one term; terms are folded in order.
#ifndef SHF_CUDA_SHARE_CUH
#define SHF_CUDA_SHARE_CUH

#include "long_list.cuh"
#include "rower.cuh"

namespace shf {

// Reduces up to 256 places from `entry` on by a team. The result is right in the team's first rower. `parts` has room
// for a term of each thread.
template <class E, int VE, class Op, bool NARROW, bool AHEAD = false>
__device__ __forceinline__ Op share_places(const Task &t, const Team &m, const Stage<E, NARROW> &s, Op *parts,
                                           int64_t problem, int64_t entry, int places, const Spot &at,
                                           typename E::acc scale)
{
  Op total;
  total.start();
  int counted = 0, each = m.rowers * SHF_FAN_IN, longest = m.lanes * m.rowers <= WARP ? most_of_warp(places) : places;
  Op *own = parts + (m.number * m.rowers) * m.lanes + m.lane;
#pragma unroll 1
  for (int base = 0; base < longest; base += each) {
    int first = base + m.rower * SHF_FAN_IN;
    __syncwarp();
    decode_places<E, NARROW, false>(t, m, s, problem, entry, first, SHF_FAN_IN, places, &counted);
    __syncwarp();
    Op term;
    term.start();
    take_rows<E, VE, Op, NARROW, !NARROW, false, AHEAD>(t, term, s, SHF_FAN_IN, first, at, scale);
    if (base > 0) team_sync(m); // the first rower is done with the terms before
    own[m.rower * m.lanes] = term;
    team_sync(m);
    for (int r = 0; m.rower == 0 && r < m.rowers && base + r * SHF_FAN_IN < places; r++) {
      total.fold(t, own[r * m.lanes]);
      total.fold_counts(own[r * m.lanes]);
    }
  }
  if (counts_entries(t)) {
    int *counts = (int *)(parts + m.number * m.rowers * m.lanes);
    counted = count_of_rower(m, counted);
    team_sync(m);
    if (m.lane == 0) counts[m.rower] = counted;
    team_sync(m);
    for (int r = 1; m.rower == 0 && r < m.rowers; r++) counted += counts[r];
    total.count(counted);
  }
  team_sync(m);
  return total;
}

// ---- Chunks of long groups ----

// Where the slot of a group's chunk lies.
__device__ __forceinline__ char *slot_at(const Task &t, const LongGroup &g, int64_t chunk)
{
  return t.slots + (g.slot + chunk) * t.slot_bytes;
}

// Counts an arrival, and returns how many came before; what the rower's lanes have stored is seen by who comes later. Counts
// begin at 0, since the kernel before has made them ready (claim_slots).
__device__ __forceinline__ unsigned arrive(unsigned long long *arrived)
{
  unsigned before;
  asm volatile("atom.release.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(arrived))
               : "memory");
  return before;
}

// The same in a run with a mark, where nobody has, and memory may hold anything: a count is there only if the mark, which no
// other run has, is in front of it.
__device__ __forceinline__ unsigned arrive_marked(unsigned long long *arrived, uint64_t of_run)
{
  enum { COUNT_BITS = 8 };
  unsigned long long mark = of_run << COUNT_BITS, found = 0, before, count;
  do {
    before = found;
    count = before >> COUNT_BITS == mark >> COUNT_BITS ? before - mark : 0;
    asm volatile("atom.release.gpu.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(found)
                 : "l"(__cvta_generic_to_global(arrived)), "l"(before), "l"(mark + count + 1)
                 : "memory");
  } while (found != before);
  return (unsigned)count;
}

// A chunk's term climbs the tree. It goes to its slot, and the rower that comes last of sixteen (all are counted in the
// head of their first slot) folds them in order and goes on to the next level with the sum; who arrives at the top
// stores the result. Who that is depends on time, the order of additions does not. (In a run with a mark, where this is the
// exception, no more registers are taken than the rest needs.)
template <class E, int VE, class Op, bool MARKED = false>
__device__ __forceinline__ void climb(const Task &t, const Team &m, const LongGroup &g, int64_t chunk, const Spot &at,
                                      typename Op::Result term)
{
  int64_t chunks = (g.length + SHF_CHUNK - 1) / SHF_CHUNK;
  int level = 0;
#pragma unroll 1
  for (int64_t stride = 1; stride < chunks; stride *= SHF_FAN_IN, level++) {
    int64_t first = chunk / (stride * SHF_FAN_IN) * (stride * SHF_FAN_IN);
    int siblings = (int)min((int64_t)SHF_FAN_IN, (chunks - first + stride - 1) / stride);
    if (siblings == 1) continue; // the last of its level: nothing to add, and no slot to count in
    term.save(t, slot_at(t, g, chunk / stride * stride), at);
    __syncwarp(m.mask);
    unsigned before = 0;
    // A node of several terms spans more than `level` slots, so that levels count in different heads.
    unsigned long long *arrived = &slot_head(slot_at(t, g, first + level), at.tile)->arrived;
    if (m.lane == 0) before = MARKED ? arrive_marked(arrived, t.mark) : arrive(arrived);
    before = __shfl_sync(m.mask, before, 0, m.lanes);
    if (before + 1 != (unsigned)siblings) return;
    __threadfence();
    term.start();
#pragma unroll(MARKED ? 1 : 4)
    for (int i = 0; i < siblings; i++) {
      typename Op::Result next;
      next.load(t, slot_at(t, g, first + i * stride), at);
      term.fold(t, next);
      term.fold_counts(next);
    }
  }
  typename E::acc held[VE];
  Op::Result::hold(t, g.problem, g.group, at, held);
  term.finish(t, g.problem, g.group, g.length, at, held);
}

// One chunk: its places, and what by_frequency multiplies with.
template <class E> struct Chunk {
  LongGroup g;
  int64_t chunk, entry;
  int places; // 0: none. Rowers of one warp go on together, with chunks or without.
  typename E::acc scale;
};

template <class E>
__device__ __forceinline__ Chunk<E> chunk_of(const Task &t, const LongGroup &g, int64_t chunk, bool takes)
{
  Chunk<E> c = {g, chunk, g.start + chunk * SHF_CHUNK, 0, 1};
  if (takes) c.places = (int)min((int64_t)SHF_CHUNK, g.start + g.length - c.entry);
  if (t.by_frequency) c.scale = frequency_of<E>(g.length);
  return c;
}

// The chunks that were listed: a warp's rowers take some, then the next that nobody has. Where nothing is long, as is
// usual, there are none.
template <class E, int VE, class Op, int USUAL>
__global__ void __launch_bounds__(WALKERS, 8) walk_chunks(const __grid_constant__ Task given)
{
  enum { NARROW = USUAL >= 0, RING = NARROW && (E::BITS >= 32 || (E::BITS != 16 && Op::TAKES_COEFFICIENTS)) };
  const Task &t = usual<USUAL>(given);
  extern __shared__ __align__(16) char memory[];
  begin_kernel();
  __shared__ ListEnds ends;
  if (threadIdx.x == 0) ends = ends_of(t);
  __syncthreads();
  int64_t items = ends.end[ITEM_CLASSES - 1], all = items * t.tiles;
  if (items == 0) return;
  Team m = team_of(t.lane_bits, 0);
  int rowers = WALKERS >> t.lane_bits, together = WARP >> t.lane_bits;
  Stage<E, NARROW> s = stage_in<E, NARROW>(memory, rowers * t.stage_places, m.number * t.stage_places);
  int64_t next = take_numbers(t, together);
  for (;;) {
    int64_t base = __shfl_sync(0xffffffffu, next, 0), number = base + m.number % together;
    if (base >= all) break;
    next = take_numbers(t, together);
    bool takes = number < all;
    int64_t tile = takes && t.tiles > 1 ? number / items : 0;
    LongItem item = item_at(t, ends, takes ? number - tile * items : 0);
    takes = takes && item.group != NOT_LISTED;
    Spot at = spot_of(t, m, tile, VE);
    int64_t entry = item.places >> PLACES_BITS, problem = 0;
    int places = takes ? (int)item.places & ((1 << PLACES_BITS) - 1) : 0;
    typename E::acc scale = 1;
    if (!NARROW) { // who takes none looks at the first place of the first group, which is of that group's own problem
      const LongGroup &g = t.list.groups[takes ? item.group : 0];
      problem = g.problem;
      if (!takes) entry = g.start;
      if (t.by_frequency) scale = frequency_of<E>(g.length);
    }
    Op term = walk_places<E, VE, Op, NARROW, !NARROW, RING>(t, m, s, problem, entry, places, most_of_warp(places),
                                                            at, scale);
    if (places == 0) continue;
    climb<E, VE, Op>(t, m, t.list.groups[item.group], item.chunk, at, term.widened(t, problem, entry));
  }
}

// ---- Small problems ----

// The last group that starts at or before `position`, when it is a long one.
__device__ inline bool long_group_at(const Task &t, int64_t position, Span *span)
{
  int64_t all = t.entries * t.batch;
  if (position >= all) position = all - 1;
  if (position < 0 || t.groups * t.batch == 0) return false;
  // Offsets may be out of order; then this finds something or nothing, but never leaves the arrays. Where groups are of
  // one length the first guess is right, and both its ends come at once.
  *span = span_of(t, guess_group(t, position));
  if (position < span->start || position >= span->end) *span = span_of(t, group_holding(t, position));
  return span->end - span->start > SHF_CHUNK;
}

// The long group, if there is one, that has a chunk in slots 2 * pair and 2 * pair + 1: what begins last before those of
// the next pair could.
__device__ inline bool long_group_of_pair(const Task &t, int64_t pair, Span *span)
{
  int64_t position = pair * SHF_CHUNK + SHF_CHUNK - 1;
  return long_group_at(t, position, span);
}

// Chunks that a block has found.
struct Found {
  enum { LOOKED_AT = 64 }; // pairs of slots at once
  int count;
  LongGroup group[2 * LOOKED_AT];
  int64_t chunk[2 * LOOKED_AT];
};

// Looks at the block's pairs of slots from its `first` on. They lie so far apart as there are blocks, so that all blocks
// have about as many of the chunks, however those lie. Returns false when there are no more.
__device__ __forceinline__ bool find_chunks(const Task &t, Found *found, int64_t first)
{
  int64_t pairs = t.slot_count / 2, pair = (first + threadIdx.x) * gridDim.x + blockIdx.x;
  if (first * gridDim.x + blockIdx.x >= pairs) return false;
  __syncthreads();
  if (threadIdx.x == 0) found->count = 0;
  __syncthreads();
  Span span;
  if (threadIdx.x < Found::LOOKED_AT && pair < pairs && long_group_of_pair(t, pair, &span)) {
    int64_t slot = first_slot(span.start), length = span.end - span.start, chunk = 2 * pair - slot;
    for (int k = 0; k < 2; k++, chunk++) {
      if (chunk < 0 || chunk * SHF_CHUNK >= length) continue;
      int at = atomicAdd(&found->count, 1);
      found->group[at] = LongGroup{span.problem, span.group, span.start, length, slot};
      found->chunk[at] = chunk;
    }
  }
  __syncthreads();
  return true;
}

// Blocks look for the chunks of long groups while the kernel before, which makes their slots ready, is at the short ones;
// then teams take one after the other.
template <class E, int VE, class Op, int USUAL>
__global__ void __launch_bounds__(BLOCK, 2) share_chunks(const __grid_constant__ Task given)
{
  enum { NARROW = USUAL >= 0 };
  const Task &t = usual<USUAL>(given);
  extern __shared__ __align__(16) char memory[];
  __shared__ Found found;
  begin_beside();
  Team m = team_of(t.lane_bits, t.chunk_bits);
  int rowers = BLOCK >> t.lane_bits, teams = rowers >> t.chunk_bits;
  Stage<E, NARROW> s = stage_in<E, NARROW>(memory, rowers * SHF_FAN_IN, (int)(threadIdx.x >> t.lane_bits) * SHF_FAN_IN);
  Op *parts = (Op *)(memory + stage_bytes<E>(t, NARROW, rowers * SHF_FAN_IN));
  for (int64_t first = 0; find_chunks(t, &found, first); first += Found::LOOKED_AT) {
    if (found.count > 0) wait_for_launch_before();
    for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
      Spot at = spot_of(t, m, tile, VE);
      for (int base = 0; base < found.count; base += teams) {
        int i = min(base + m.number, found.count - 1);
        Chunk<E> c = chunk_of<E>(t, found.group[i], found.chunk[i], base + m.number < found.count);
        Op term = share_places<E, VE, Op, NARROW>(t, m, s, parts, c.g.problem, c.entry, c.places, at, c.scale);
        if (m.rower == 0 && c.places > 0)
          climb<E, VE, Op>(t, m, c.g, c.chunk, at, term.widened(t, c.g.problem, c.entry));
      }
    }
  }
  end_beside();
}

// For few groups: a team takes one. EACH: blocks of a multiprocessor, so that none waits for others to end. Where there are
// no more than two, there are registers for sixteen rows in flight.
template <class E, int VE, class Op, int USUAL, int EACH>
__global__ void __launch_bounds__(BLOCK, EACH) share_groups(const __grid_constant__ Task given)
{
  enum { NARROW = USUAL >= 0, ROOMY = NARROW && EACH <= 2 && Op::TAKES_COEFFICIENTS };
  const Task &t = usual<USUAL>(given);
  extern __shared__ __align__(16) char memory[];
  begin_kernel();
  Team m = team_of(t.lane_bits, t.split_bits);
  int rowers = BLOCK >> t.lane_bits, teams = rowers >> t.split_bits;
  Stage<E, NARROW> s = stage_in<E, NARROW>(memory, rowers * SHF_FAN_IN, (int)(threadIdx.x >> t.lane_bits) * SHF_FAN_IN);
  Op *parts = (Op *)(memory + stage_bytes<E>(t, NARROW, rowers * SHF_FAN_IN));
  int64_t all = t.groups * t.batch;
  for (int64_t base = (int64_t)blockIdx.x * teams; base < all; base += (int64_t)gridDim.x * teams) {
    int64_t g = base + m.number;
    if (USUAL == BY_INDEX && t.bag_length < 0 && m.rower == 0 && t.guess_length) ask_for_indices(t, m, min(g, all - 1));
    Span span = span_of(t, min(g, all - 1));
    int64_t length = span.end - span.start;
    bool is_too_long = length > SHF_CHUNK, takes = g < all && !is_too_long;
    if (is_too_long && g < all && m.rower == 0 && blockIdx.y == 0) claim_slots(t, span, m.lane, m.lanes);
    for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
      Spot at = spot_of(t, m, tile, VE);
      Op total = share_places<E, VE, Op, NARROW, ROOMY>(t, m, s, parts, span.problem, span.start,
                                                        takes ? (int)length : 0, at, 1);
      typename E::acc held[VE];
      if (m.rower == 0 && takes)
        total.widened(t, span.problem, span.start).finish(t, span.problem, span.group, length, at, held);
    }
  }
}

} // namespace shf
#endif
