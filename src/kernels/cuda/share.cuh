// share.cuh: several rowers to a group: small problems, where there are too few groups to fill the device, and the
// chunks of long groups. Each rower takes 16 places, which are one term; terms are folded in order.
#ifndef SHF_CUDA_SHARE_CUH
#define SHF_CUDA_SHARE_CUH

#include "rower.cuh"

namespace shf {

// Reduces up to 256 places from `entry` on by a team. The result is right in the team's first rower. `parts` has room
// for a term of each thread.
template <class E, int VE, class Op, bool NARROW>
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
    counted += decode_places<E, NARROW>(t, m, s, problem, entry, first, SHF_FAN_IN, places);
    __syncwarp();
    Op term;
    term.start();
    take_rows<E, VE, Op, NARROW, !NARROW>(t, term, s, 0, SHF_FAN_IN, first, at, scale);
    if (base > 0) team_sync(m); // the first rower is done with the terms before
    own[m.rower * m.lanes] = term;
    team_sync(m);
    for (int r = 0; m.rower == 0 && r < m.rowers && base + r * SHF_FAN_IN < places; r++) {
      total.fold(t, own[r * m.lanes]);
      total.fold_counts(own[r * m.lanes]);
    }
  }
  if (counts_entries(t)) {
    int *counts = (int *)parts + m.number * m.rowers;
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

// Writes the heads of a listed group's slots, by `threads` threads.
__device__ __forceinline__ void claim_slots(const Task &t, int64_t number, int64_t slot, int64_t length, int thread,
                                            int threads)
{
  int64_t chunks = (length + SHF_CHUNK - 1) / SHF_CHUNK;
  for (int64_t i = thread; number >= 0 && i < chunks * t.tiles; i += threads) {
    SlotHead *head = slot_head(t.slots + (slot + i / t.tiles) * t.slot_bytes, i % t.tiles);
    head->arrived = 0;
    head->owner = (unsigned)number;
  }
}

// A chunk's term climbs the tree. It goes to its slot, and the rower that comes last of sixteen (all are counted in the
// head of their first slot) folds them in order and goes on to the next level with the sum; who arrives at the top
// stores the result. Who that is depends on time, the order of additions does not.
template <class E, int VE, class Op>
__device__ __forceinline__ void climb(const Task &t, const Team &m, const LongGroup &g, int64_t chunk, const Spot &at,
                                      typename Op::Result term)
{
  int64_t chunks = (g.length + SHF_CHUNK - 1) / SHF_CHUNK;
  int level = 0;
#pragma unroll 1
  for (int64_t stride = 1; stride < chunks; stride *= SHF_FAN_IN, level++) {
    int64_t first = chunk / (stride * SHF_FAN_IN) * (stride * SHF_FAN_IN);
    int siblings = (int)min((int64_t)SHF_FAN_IN, (chunks - first + stride - 1) / stride);
    term.save(t, slot_at(t, g, chunk / stride * stride), at);
    __threadfence();
    __syncwarp(m.mask);
    unsigned before = 0;
    // A node of this level spans more than `level` slots, so that levels count in different heads.
    if (m.lane == 0) before = atomicAdd(&slot_head(slot_at(t, g, first + level), at.tile)->arrived, 1u);
    before = __shfl_sync(m.mask, before, 0, m.lanes);
    if (before + 1 != (unsigned)siblings) return;
    __threadfence();
    term.start();
#pragma unroll 4
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

// One chunk of a long group, by one team. Teams of one warp go on together, so that some have none (length 0).
template <class E, int VE, class Op, bool NARROW>
__device__ __forceinline__ void share_chunk(const Task &t, const Team &m, const Stage<E, NARROW> &s, Op *parts,
                                            const LongGroup &g, int64_t chunk, const Spot &at)
{
  int64_t entry = g.start + chunk * SHF_CHUNK;
  int places = (int)max((int64_t)0, min((int64_t)SHF_CHUNK, g.start + g.length - entry));
  Op term = share_places<E, VE, Op, NARROW>(t, m, s, parts, g.problem, entry, places, at,
                                            t.by_frequency ? frequency_of<E>(g.length) : typename E::acc(1));
  if (m.rower == 0 && places > 0) climb<E, VE, Op>(t, m, g, chunk, at, term.widened(t, g.problem, entry));
}

// The chunks of the groups that were listed.
template <class E, int VE, class Op, int USUAL>
__global__ void __launch_bounds__(BLOCK, Op::TAKES_COEFFICIENTS && sizeof(typename E::acc) == 4 ? 3 : 2)
    share_chunks(const __grid_constant__ Task given)
{
  enum { NARROW = USUAL >= 0 };
  const Task &t = usual<USUAL>(given);
  extern __shared__ __align__(16) char memory[];
  wait_for_launch_before();
  int64_t chunks = listed_chunks(t);
  Team m = team_of(t.lane_bits, t.chunk_bits);
  int rowers = BLOCK >> t.lane_bits, teams = rowers >> t.chunk_bits;
  Stage<E, NARROW> s = stage_in<E, NARROW>(memory, rowers * SHF_FAN_IN, (int)(threadIdx.x >> t.lane_bits) * SHF_FAN_IN);
  Op *parts = (Op *)(memory + stage_bytes<E>(t, NARROW, rowers * SHF_FAN_IN));
  for (int64_t base = (int64_t)blockIdx.x * teams; base < chunks; base += (int64_t)gridDim.x * teams) {
    int64_t unit = min(base + m.number, chunks - 1);
    LongGroup g = t.longs[slot_head(t.slots + unit * t.slot_bytes, 0)->owner];
    if (base + m.number >= chunks) g.length = 0;
    for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y)
      share_chunk<E, VE, Op, NARROW>(t, m, s, parts, g, unit - g.slot, spot_of(t, m, tile, VE));
  }
}

// ---- Small problems ----

// Long groups that a block has found, and the slot of each one's chunk.
struct Found {
  int count;
  Span span[WARP];
  int64_t slot[WARP];
};

__device__ __forceinline__ void find_chunks(const Task &t, Found *found)
{
  if (threadIdx.x == 0) found->count = 0;
  __syncthreads();
  int64_t slot = (blockIdx.x + t.chunk_blocks - gridDim.x) * t.candidates + threadIdx.x;
  Span span;
  if ((int)threadIdx.x < t.candidates && slot < t.slot_count && long_group_of_slot(t, slot, &span)) {
    int at = atomicAdd(&found->count, 1);
    found->span[at] = span;
    found->slot[at] = slot;
  }
  __syncthreads();
}

template <class E, int VE, class Op, bool NARROW>
__device__ __forceinline__ void share_found(const Task &t, char *memory, Found *found)
{
  find_chunks(t, found);
  wait_for_launch_before();
  Team m = team_of(t.lane_bits, t.chunk_bits);
  int rowers = BLOCK >> t.lane_bits, teams = rowers >> t.chunk_bits;
  Stage<E, NARROW> s = stage_in<E, NARROW>(memory, rowers * SHF_FAN_IN, (int)(threadIdx.x >> t.lane_bits) * SHF_FAN_IN);
  Op *parts = (Op *)(memory + stage_bytes<E>(t, NARROW, rowers * SHF_FAN_IN));
  for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
    Spot at = spot_of(t, m, tile, VE);
    for (int base = 0; base < found->count; base += teams) {
      int i = min(base + m.number, found->count - 1);
      Span span = found->span[i];
      int64_t slot = first_slot(span.start), length = base + m.number < found->count ? span.end - span.start : 0;
      LongGroup g = {span.problem, span.group, span.start, length, slot};
      share_chunk<E, VE, Op, NARROW>(t, m, s, parts, g, found->slot[i] - slot, at);
    }
  }
}

// For few groups: a team takes one. The last blocks look for long groups and take their chunks.
template <class E, int VE, class Op, int USUAL>
__global__ void __launch_bounds__(BLOCK, Op::TAKES_COEFFICIENTS && sizeof(typename E::acc) == 4 ? 3 : 2)
    share_groups(const __grid_constant__ Task given)
{
  enum { NARROW = USUAL >= 0 };
  const Task &t = usual<USUAL>(given);
  extern __shared__ __align__(16) char memory[];
  __shared__ Found found;
  if (t.count_is_zero) wait_for_launch_before(); // for the groups' starts
  int64_t own_blocks = gridDim.x - t.chunk_blocks;
  if (blockIdx.x >= own_blocks) {
    share_found<E, VE, Op, NARROW>(t, memory, &found);
    return;
  }
  Team m = team_of(t.lane_bits, t.split_bits);
  int rowers = BLOCK >> t.lane_bits, teams = rowers >> t.split_bits;
  Stage<E, NARROW> s = stage_in<E, NARROW>(memory, rowers * SHF_FAN_IN, (int)(threadIdx.x >> t.lane_bits) * SHF_FAN_IN);
  Op *parts = (Op *)(memory + stage_bytes<E>(t, NARROW, rowers * SHF_FAN_IN));
  int64_t all = t.groups * t.batch;
  for (int64_t base = (int64_t)blockIdx.x * teams; base < all; base += own_blocks * teams) {
    int64_t g = base + m.number;
    Span span = span_of(t, min(g, all - 1));
    int64_t length = span.end - span.start;
    bool takes = g < all && length <= SHF_CHUNK;
    for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
      Spot at = spot_of(t, m, tile, VE);
      Op total =
          share_places<E, VE, Op, NARROW>(t, m, s, parts, span.problem, span.start, takes ? (int)length : 0, at, 1);
      typename E::acc held[VE];
      if (m.rower == 0 && takes)
        total.widened(t, span.problem, span.start).finish(t, span.problem, span.group, length, at, held);
    }
  }
  wait_for_launch_before(); // whoever waits for this kernel waits for the one before it, too
}

} // namespace shf
#endif
