// reduce.cuh: the reductions: bags, segments and table gradients, by teams of threads.
//
// A *rower* is a few lanes that share a row, each with its columns; it takes rows one after the other, several loads in
// flight. A *team* is one rower, or several where there are too few groups to fill the device: then each takes its own
// 16 places, which are one term of the canonical tree, and the terms are folded in order through shared memory. Every
// step is the same three: decode indices (into shared memory, so that all lanes share the work), load rows, combine.
#ifndef SHF_CUDA_REDUCE_CUH
#define SHF_CUDA_REDUCE_CUH

#include "terms.cuh"

namespace shf {

enum { IN_FLIGHT = 8 }; // rows that a rower waits for at once

// Decoded places in shared memory. Coefficients are there only when the task has some.
template <class E> struct Stage {
  int64_t *offset;
  typename E::acc *coefficient, *counted_weight;
};

__host__ __device__ __forceinline__ bool has_coefficients(const Task &t) { return t.weighted || t.divisors; }

template <class E> __host__ __device__ __forceinline__ int64_t stage_bytes(const Task &t, int64_t places)
{
  return places * (8 + (has_coefficients(t) ? 2 * (int64_t)sizeof(typename E::acc) : 0));
}

template <class E> __device__ __forceinline__ Stage<E> stage_in(char *memory, int64_t places, int64_t first)
{
  Stage<E> s;
  s.offset = (int64_t *)memory + first;
  s.coefficient = (typename E::acc *)(memory + places * 8) + first;
  s.counted_weight = s.coefficient + places;
  return s;
}

template <class E>
__device__ __forceinline__ void put_place(const Task &t, const Stage<E> &s, int at, const Place<E> &p)
{
  s.offset[at] = p.offset;
  if (!has_coefficients(t)) return;
  s.coefficient[at] = p.coefficient;
  s.counted_weight[at] = p.counted_weight;
}

// A join is launched while the kernel before it still runs (see launch_next): that one says when its blocks have all
// begun, and the join waits for its results here, having looked for long groups meanwhile.
__device__ __forceinline__ void let_next_begin()
{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_launch_before()
{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

struct Team {
  int lane, lanes;    // within the rower
  int rower, rowers;  // within the team
  int number;         // of the team within the block
  unsigned mask;      // the rower's lanes in its warp
  unsigned team_mask; // the team's, when it fits a warp
};

__device__ __forceinline__ Team team_of(int lanes, int rowers)
{
  Team m;
  int thread = (int)threadIdx.x;
  m.lanes = lanes;
  m.rowers = rowers;
  m.lane = thread & (lanes - 1);
  int row = thread / lanes;
  m.rower = row & (rowers - 1);
  m.number = row / rowers;
  unsigned whole = lanes == WARP ? 0xffffffffu : (1u << lanes) - 1;
  m.mask = whole << (thread & (WARP - 1) & ~(lanes - 1));
  int size = lanes * rowers;
  unsigned all = size >= WARP ? 0xffffffffu : (1u << size) - 1;
  m.team_mask = size >= WARP ? all : all << (thread & (WARP - 1) & ~(size - 1));
  return m;
}

// All threads of a team meet.
__device__ __forceinline__ void team_sync(const Team &m)
{
  int size = m.lanes * m.rowers;
  if (size <= WARP)
    __syncwarp(m.team_mask);
  else
    asm volatile("bar.sync %0, %1;" ::"r"(m.number + 1), "r"(size) : "memory");
}

// Takes up to 16 staged rows, in order. `first` is the first one's place.
// COEFFICIENTS: 0 none, 1 staged, 2 none but the frequency, -1 as the task says.
template <class E, int VE, class Op, int COEFFICIENTS = -1>
__device__ __forceinline__ void take_rows(const Task &t, Op &term, const Stage<E> &s, int at, int count, int first,
                                          const Spot &spot, typename E::acc scale)
{
  typedef typename E::acc acc;
  const bool weighs = COEFFICIENTS < 0 ? has_coefficients(t) : COEFFICIENTS == 1;
#pragma unroll 1
  for (int base = 0; base < count; base += IN_FLIGHT) {
    Columns<E, VE> row[IN_FLIGHT];
    bool there[IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++) {
      int64_t offset = base + i < count ? s.offset[at + base + i] : -1;
      there[i] = offset >= 0 && spot.active;
      row[i].fetch(t.source.data + offset, spot.column, t.dim, there[i]);
    }
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++) {
      acc coefficient = 1;
      if (weighs) coefficient = base + i < count ? s.coefficient[at + base + i] : acc(0);
      if (COEFFICIENTS != 0 && t.by_frequency) coefficient = coefficient * scale;
      term.take(t, row[i], there[i], coefficient, first + base + i);
    }
  }
  if (COEFFICIENTS != 0 && t.weighted && (t.sink == SINK_MEAN || t.sink == SINK_COUNT))
    for (int i = 0; i < count; i++) term.w += s.counted_weight[at + i];
}

// Reduces up to 256 places from `entry` on. The result is right in the team's first rower.
template <class E, int VE, class Op>
__device__ __forceinline__ Op reduce_places(const Task &t, const Team &m, const Stage<E> &s, Op *parts, int64_t problem,
                                            int64_t entry, int places, const Spot &spot, typename E::acc scale)
{
  Op total;
  total.start();
  int counted = 0, blocks = (places + SHF_FAN_IN - 1) / SHF_FAN_IN;
  int ahead = m.rowers > 1 ? 1 : t.stage_places / SHF_FAN_IN;
  Op *own = parts + (m.number * m.rowers) * m.lanes + m.lane;
  for (int first = 0; first < blocks; first += ahead * m.rowers) {
    __syncwarp(m.mask);
    for (int i = m.lane; i < ahead * SHF_FAN_IN; i += m.lanes) {
      int place = (first + i / SHF_FAN_IN + m.rower) * SHF_FAN_IN + i % SHF_FAN_IN;
      if (place >= places) continue;
      Place<E> p = decode_place<E, false>(t, problem, entry + place);
      put_place(t, s, i, p);
      counted += p.counted;
    }
    __syncwarp(m.mask);
    for (int k = 0; k < ahead; k++) {
      int block = first + k + m.rower, count = min((int)SHF_FAN_IN, places - block * SHF_FAN_IN);
      if (m.rowers == 1 && count <= 0) break;
      Op term;
      term.start();
      if (count > 0) take_rows<E, VE, Op>(t, term, s, k * SHF_FAN_IN, count, block * SHF_FAN_IN, spot, scale);
      if (m.rowers == 1) {
        total.fold(t, term);
        total.fold_counts(term);
        continue;
      }
      own[m.rower * m.lanes] = term;
      team_sync(m);
      for (int r = 0; m.rower == 0 && r < m.rowers && first + r < blocks; r++) {
        total.fold(t, own[r * m.lanes]);
        total.fold_counts(own[r * m.lanes]);
      }
      team_sync(m);
    }
  }
  if (t.sink == SINK_MEAN || t.sink == SINK_COUNT) {
    for (int half = m.lanes / 2; half > 0; half /= 2) counted += __shfl_xor_sync(m.mask, counted, half);
    total.counted = counted;
    if (m.rowers > 1) {
      Op mine;
      mine.start();
      mine.counted = counted;
      own[m.rower * m.lanes] = mine;
      team_sync(m);
      for (int r = 1; m.rower == 0 && r < m.rowers; r++) total.counted += own[r * m.lanes].counted;
      team_sync(m);
    }
  }
  return total;
}

__device__ __forceinline__ Spot spot_of(const Task &t, const Team &m, int64_t tile, int ve)
{
  Spot at;
  at.tile = tile;
  at.column = (tile * m.lanes + m.lane) * ve;
  at.active = at.column < t.dim;
  at.first = m.lane == 0;
  return at;
}

// ---- Chunks of long groups ----

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

// 1 / the number of entries, which by_frequency multiplies coefficients with.
template <class E> __device__ __forceinline__ typename E::acc frequency_of(int64_t length)
{
  return (typename E::acc)1 / (typename E::acc)length;
}

template <class E, int VE, class Op>
__device__ __forceinline__ void reduce_chunks(const Task &t, char *memory, Found *found)
{
  find_chunks(t, found);
  Team m = team_of(t.lanes, t.chunk_split);
  int rowers = BLOCK / t.lanes, teams = rowers / t.chunk_split;
  Stage<E> s = stage_in<E>(memory, rowers * t.stage_places, (threadIdx.x / t.lanes) * t.stage_places);
  Op *parts = (Op *)(memory + stage_bytes<E>(t, rowers * t.stage_places));
  for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
    Spot at = spot_of(t, m, tile, VE);
    for (int i = m.number; i < found->count; i += teams) {
      Span span = found->span[i];
      int64_t first = span.start + (found->slot[i] - first_slot(span.start)) * SHF_CHUNK;
      int places = (int)min((int64_t)SHF_CHUNK, span.end - first);
      Op term = reduce_places<E, VE, Op>(t, m, s, parts, span.problem, first, places, at,
                                         frequency_of<E>(span.end - span.start));
      if (m.rower == 0) term.widened(t, span.problem, first).save(t, t.slots + found->slot[i] * t.slot_bytes, at);
    }
  }
}

// ---- Groups by offsets: bags, segments ----

// For few groups: several rowers share one. The last blocks look for long groups and take their chunks.
template <class E, int VE, class Op>
__global__ void __launch_bounds__(BLOCK, Op::TAKES_COEFFICIENTS && sizeof(typename E::acc) == 4 ? 4 : 2)
    reduce_groups(const __grid_constant__ Task t)
{
  extern __shared__ __align__(16) char memory[];
  __shared__ Found found;
  let_next_begin();
  int64_t own_blocks = gridDim.x - t.chunk_blocks;
  if (blockIdx.x >= own_blocks) {
    reduce_chunks<E, VE, Op>(t, memory, &found);
    return;
  }
  Team m = team_of(t.lanes, t.split);
  int rowers = BLOCK / t.lanes, teams = rowers / t.split;
  Stage<E> s = stage_in<E>(memory, rowers * t.stage_places, (threadIdx.x / t.lanes) * t.stage_places);
  Op *parts = (Op *)(memory + stage_bytes<E>(t, rowers * t.stage_places));
  int64_t all = t.groups * t.batch, step = own_blocks * teams;
  for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
    Spot at = spot_of(t, m, tile, VE);
    for (int64_t g = (int64_t)blockIdx.x * teams + m.number; g < all; g += step) {
      Span span = span_of(t, g);
      int64_t length = span.end - span.start;
      if (length > SHF_CHUNK) continue;
      Op total = reduce_places<E, VE, Op>(t, m, s, parts, span.problem, span.start, (int)length, at, 1);
      typename E::acc held[VE];
      if (m.rower == 0)
        total.widened(t, span.problem, span.start).finish(t, span.problem, span.group, length, at, held);
    }
  }
}

// ---- Joining the chunks of long groups ----

// Slots of one group, in order; up to 256 of them by one rower.
template <class E, int VE, class Op>
__device__ __forceinline__ typename Op::Result join_few(const Task &t, int64_t slot, int64_t chunks, const Spot &at)
{
  typedef typename Op::Result Result;
  Result total;
  total.start();
  for (int64_t first = 0; first < chunks; first += SHF_FAN_IN) {
    Result term;
    term.start();
    int64_t last = min(first + SHF_FAN_IN, chunks);
#pragma unroll 4
    for (int64_t i = first; i < last; i++) {
      Result next;
      next.load(t, t.slots + (slot + i) * t.slot_bytes, at);
      term.fold(t, next);
      term.fold_counts(next);
    }
    total.fold(t, term);
    total.fold_counts(term);
  }
  return total;
}

// One level of the tree after the other, by all rowers of the block; each term replaces the first of its sixteen.
template <class E, int VE, class Op>
__device__ __forceinline__ void join_many(const Task &t, const Team &m, int64_t slot, int64_t chunks, const Spot &at)
{
  typedef typename Op::Result Result;
  int rowers = BLOCK / t.lanes, rower = (int)threadIdx.x / t.lanes;
  for (int64_t stride = t.longs ? SHF_FAN_IN : 1; stride < chunks; stride *= SHF_FAN_IN) {
    for (int64_t first = rower * stride * SHF_FAN_IN; first < chunks; first += rowers * stride * SHF_FAN_IN) {
      Result term;
      term.start();
#pragma unroll 4
      for (int i = 0; i < SHF_FAN_IN; i++) {
        if (first + i * stride >= chunks) continue;
        Result next;
        next.load(t, t.slots + (slot + first + i * stride) * t.slot_bytes, at);
        term.fold(t, next);
        term.fold_counts(next);
      }
      __syncwarp(m.mask); // all lanes have read what one of them replaces
      term.save(t, t.slots + (slot + first) * t.slot_bytes, at);
    }
    __syncthreads();
  }
}

enum { FEW_CHUNKS = 32 };

// The first level of the tree over the slots of listed groups that have many, sixteen slots to a rower.
template <class E, int VE, class Op> __global__ void __launch_bounds__(BLOCK) fold_slots(const __grid_constant__ Task t)
{
  typedef typename Op::Result Result;
  wait_for_launch_before();
  LongCount longs = listed(t);
  Team m = team_of(t.lanes, 1);
  int rowers = BLOCK / t.lanes;
  for (int64_t unit = (int64_t)blockIdx.x * rowers + m.number; unit < longs.chunks();
       unit += (int64_t)gridDim.x * rowers) {
    LongGroup from = long_of_slot(t, longs.groups(), unit);
    int64_t first = unit - from.slot, chunks = (from.length + SHF_CHUNK - 1) / SHF_CHUNK;
    if (chunks <= FEW_CHUNKS || first % SHF_FAN_IN) continue;
    for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
      Spot at = spot_of(t, m, tile, VE);
      Result term;
      term.start();
#pragma unroll 8
      for (int i = 0; i < SHF_FAN_IN; i++) {
        if (first + i >= chunks) continue;
        Result next;
        next.load(t, t.slots + (unit + i) * t.slot_bytes, at);
        term.fold(t, next);
        term.fold_counts(next);
      }
      __syncwarp(m.mask); // all lanes have read what one of them replaces
      term.save(t, t.slots + unit * t.slot_bytes, at);
    }
  }
}

// The long groups that a block joins: of its 32 windows, or of its part of the list.
__device__ __forceinline__ void find_own(const Task &t, Found *found)
{
  if (threadIdx.x == 0) found->count = 0;
  __syncthreads();
  int64_t number = (int64_t)blockIdx.x * WARP + threadIdx.x;
  Span mine;
  if (!t.longs && threadIdx.x < WARP && number < windows_for(t.entries * t.batch) &&
      long_group_of_window(t, number, &mine)) {
    int at = atomicAdd(&found->count, 1);
    found->span[at] = mine;
    found->slot[at] = first_slot(mine.start);
  }
  wait_for_launch_before();
  __syncthreads();
}

template <class E, int VE, class Op> __device__ __forceinline__ void join_found(const Task &t, const Found &found)
{
  Team m = team_of(t.lanes, 1);
  int rowers = BLOCK / t.lanes, rower = (int)threadIdx.x / t.lanes;
  for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
    Spot at = spot_of(t, m, tile, VE);
    int few = 0;
    for (int i = 0; i < found.count; i++) {
      Span span = found.span[i];
      int64_t length = span.end - span.start, chunks = (length + SHF_CHUNK - 1) / SHF_CHUNK, slot = found.slot[i];
      bool many = chunks > FEW_CHUNKS;
      if (many) {
        __syncthreads();
        join_many<E, VE, Op>(t, m, slot, chunks, at);
      }
      if (many ? rower != 0 : few++ % rowers != rower) continue;
      typename Op::Result total;
      if (many)
        total.load(t, t.slots + slot * t.slot_bytes, at);
      else
        total = join_few<E, VE, Op>(t, slot, chunks, at);
      typename E::acc held[VE];
      Op::Result::hold(t, span.problem, span.group, at, held);
      total.finish(t, span.problem, span.group, length, at, held);
    }
  }
}

template <class E, int VE, class Op>
__global__ void __launch_bounds__(BLOCK) join_groups(const __grid_constant__ Task t)
{
  __shared__ Found found;
  find_own(t, &found);
  if (!t.longs) {
    join_found<E, VE, Op>(t, found);
    return;
  }
  int64_t groups = listed(t).groups(), each = min((int64_t)WARP, (groups + gridDim.x - 1) / gridDim.x);
  for (int64_t first = (int64_t)blockIdx.x * each; first < groups; first += (int64_t)gridDim.x * each) {
    __syncthreads();
    if (threadIdx.x == 0) found.count = (int)min(each, groups - first);
    if (threadIdx.x < each && first + threadIdx.x < groups) {
      LongGroup g = t.longs[first + threadIdx.x];
      found.span[threadIdx.x] = Span{g.problem, g.group, g.start, g.start + g.length};
      found.slot[threadIdx.x] = g.slot;
    }
    __syncthreads();
    join_found<E, VE, Op>(t, found);
  }
}

} // namespace shf
#endif
