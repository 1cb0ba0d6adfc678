// walk.cuh: reductions where there is enough to do to fill the device: one rower for each group of up to 256 places.
// Longer groups are listed on the way; then one rower takes each of their chunks, and the chunks are joined.
#ifndef SHF_CUDA_WALK_CUH
#define SHF_CUDA_WALK_CUH

#include "reduce.cuh"

namespace shf {

// ---- Groups by offsets ----

// Reduces up to 256 places by one rower. As reduce_places, without a team.
template <class E, int VE, class Op, bool RUNS, int COEFFICIENTS>
__device__ __forceinline__ Op walk_places(const Task &t, const Team &m, const Stage<E> &s, int64_t problem,
                                          int64_t entry, int places, const Spot &at, typename E::acc scale)
{
  Op total;
  total.start();
  int counted = 0;
  for (int base = 0; base < places; base += t.stage_places) {
    __syncwarp(m.mask);
    int staged = min(t.stage_places, places - base);
    for (int i = m.lane; i < staged; i += m.lanes) {
      Place<E> p = decode_place<E, RUNS>(t, problem, entry + base + i);
      put_place(t, s, i, p);
      counted += p.counted;
    }
    __syncwarp(m.mask);
    for (int first = 0; first < staged; first += SHF_FAN_IN) {
      Op term;
      term.start();
      take_rows<E, VE, Op, COEFFICIENTS>(t, term, s, first, min((int)SHF_FAN_IN, staged - first), base + first, at,
                                         scale);
      total.fold(t, term);
      if (COEFFICIENTS != 0) total.fold_counts(term);
    }
  }
  if (t.sink == SINK_MEAN || t.sink == SINK_COUNT) {
    for (int half = m.lanes / 2; half > 0; half /= 2) counted += __shfl_xor_sync(m.mask, counted, half);
    total.counted = counted;
  }
  return total;
}

template <class E, int VE, class Op>
struct Occupancy { // blocks of a multiprocessor, by the registers that several rows in flight take
  enum { BLOCKS = !Op::TAKES_COEFFICIENTS ? 3 : sizeof(typename E::acc) == 8 || VE == 8 ? 3 : 4 };
};

// The lane that speaks for a group which is too long lists it.
__device__ __forceinline__ bool is_long(const Task &t, const Team &m, const Span &span)
{
  if (span.end - span.start <= SHF_CHUNK) return false;
  if (m.lane == 0 && blockIdx.y == 0) list_long(t, span);
  return true;
}

template <class E, int VE, class Op, bool COEFFICIENTS, bool USUAL>
__global__ void __launch_bounds__(BLOCK, Occupancy<E, VE, Op>::BLOCKS) walk_groups(const __grid_constant__ Task given)
{
  const Task &t = usual<USUAL, false>(given);
  extern __shared__ __align__(16) char memory[];
  Team m = team_of(t.lanes, 1);
  int rowers = BLOCK / t.lanes;
  Stage<E> s = stage_in<E>(memory, rowers * t.stage_places, m.number * t.stage_places);
  int64_t all = t.groups * t.batch, step = (int64_t)gridDim.x * rowers;
  for (int64_t g = (int64_t)blockIdx.x * rowers + m.number; g < all; g += step) {
    Span span = span_of(t, g);
    if (is_long(t, m, span)) continue;
    int places = (int)(span.end - span.start);
    for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
      Spot at = spot_of(t, m, tile, VE);
      Op total = walk_places<E, VE, Op, false, COEFFICIENTS>(t, m, s, span.problem, span.start, places, at, 1);
      typename E::acc held[VE];
      total.widened(t, span.problem, span.start).finish(t, span.problem, span.group, places, at, held);
    }
  }
}

// The chunks of the groups (or runs) that were listed.
template <class E, int VE, class Op, bool RUNS>
__global__ void __launch_bounds__(BLOCK, Occupancy<E, VE, Op>::BLOCKS) walk_chunks(const __grid_constant__ Task t)
{
  extern __shared__ __align__(16) char memory[];
  wait_for_launch_before();
  LongCount longs = listed(t);
  Team m = team_of(t.lanes, 1);
  int rowers = BLOCK / t.lanes;
  Stage<E> s = stage_in<E>(memory, rowers * t.stage_places, m.number * t.stage_places);
  for (int64_t unit = (int64_t)blockIdx.x * rowers + m.number; unit < longs.chunks();
       unit += (int64_t)gridDim.x * rowers) {
    LongGroup from = long_of_slot(t, longs.groups(), unit);
    int64_t entry = from.start + (unit - from.slot) * SHF_CHUNK;
    int places = (int)min((int64_t)SHF_CHUNK, from.start + from.length - entry);
    for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
      Spot at = spot_of(t, m, tile, VE);
      Op total = walk_places<E, VE, Op, RUNS, -1>(t, m, s, from.problem, entry, places, at,
                                                  RUNS ? frequency_of<E>(from.length) : typename E::acc(1));
      total.widened(t, from.problem, entry).save(t, t.slots + unit * t.slot_bytes, at);
    }
  }
}

// ---- Short groups: plain sums of a few rows ----

enum { SHORT = 4 }; // groups that a rower has in flight

// Each rower takes four groups at a time, and in every step one row of each.
template <class E, int VE, bool USUAL>
__global__ void __launch_bounds__(BLOCK, 4) sum_short(const __grid_constant__ Task given)
{
  const Task &t = usual<USUAL, false>(given);
  typedef Sum<E, VE> Op;
  extern __shared__ __align__(16) char memory[];
  Team m = team_of(t.lanes, 1);
  int rowers = BLOCK / t.lanes;
  int64_t all = t.groups * t.batch, first = ((int64_t)blockIdx.x * rowers + m.number) * SHORT;
  if (first >= all) return;
  int64_t start[SHORT];
  int length[SHORT], longest = 0; // groups of more than 16 come later: their length is -1 here
#pragma unroll
  for (int k = 0; k < SHORT; k++) {
    Span span = span_of(t, min(first + k, all - 1));
    if (first + k < all) is_long(t, m, span);
    start[k] = span.start;
    length[k] = span.end - span.start > SHF_FAN_IN || first + k >= all ? -1 : (int)(span.end - span.start);
    longest = max(longest, length[k]);
  }
  for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
    Spot at = spot_of(t, m, tile, VE);
    Op total[SHORT];
#pragma unroll
    for (int k = 0; k < SHORT; k++) total[k].start();
    for (int place = 0; place < longest; place++) {
      Columns<E, VE> row[SHORT];
      int64_t offset[SHORT];
#pragma unroll
      for (int k = 0; k < SHORT; k++) {
        int64_t problem = t.batch > 1 ? (first + k) / t.groups : 0;
        offset[k] = -1;
        if (place < length[k]) offset[k] = offset_of(t, problem, start[k] + place);
      }
#pragma unroll
      for (int k = 0; k < SHORT; k++)
        row[k].fetch(t.source.data + offset[k], at.column, t.dim, offset[k] >= 0 && at.active);
#pragma unroll
      for (int k = 0; k < SHORT; k++) total[k].take(t, row[k], true, 1, 0);
    }
    bool all_short = true;
#pragma unroll
    for (int k = 0; k < SHORT; k++) {
      all_short &= length[k] >= 0;
      if (length[k] < 0 || !at.active) continue;
      int64_t problem = t.batch > 1 ? (first + k) / t.groups : 0, group = first + k - problem * t.groups;
      typename E::acc x[VE];
#pragma unroll
      for (int j = 0; j < VE; j++)
        x[j] = length[k] == 0 ? (typename E::acc)t.empty : total[k].v[j] + typename E::acc(0);
      char *to = t.target.data + problem * t.target.batch_stride + group * t.target.row_stride;
      Out<E, VE>::store(to, at.column, t.dim, x, t.out_dtype, t.store_wide);
    }
    if (all_short) continue;
#pragma unroll 1
    for (int k = 0; k < SHORT; k++) { // the odd longer one; what is long is listed
      Span its = span_of(t, min(first + k, all - 1));
      int64_t places = its.end - its.start;
      if (first + k >= all || places <= SHF_FAN_IN || places > SHF_CHUNK) continue;
      Stage<E> s = stage_in<E>(memory, rowers * t.stage_places, m.number * t.stage_places);
      Op sum = walk_places<E, VE, Op, false, 0>(t, m, s, its.problem, its.start, (int)places, at, 1);
      sum.finish(t, its.problem, its.group, places, at, nullptr);
    }
  }
}

// ---- Runs of equal keys: the table's gradient ----

enum { RUN_TILE = BLOCK, RUN_FEW = 3 };

// Adds a finished sum to what its row holds (nothing, where it is not added to: 0 + x is x).
template <class E, int VE>
__device__ __forceinline__ void add_run(const Task &t, const Sum<E, VE> &total, const Columns<E, VE> &held, char *to,
                                        const Spot &at)
{
  typedef typename E::acc acc;
  if (!at.active) return;
  acc x[VE];
  held.values(x);
#pragma unroll
  for (int j = 0; j < VE; j++) x[j] = x[j] + (total.v[j] + acc(0));
  Out<E, VE>::store(to, at.column, t.dim, x, 0, true);
}

template <class E, int VE, bool COEFFICIENTS>
__device__ __forceinline__ void walk_run(const Task &t, const Stage<E> &s, int begin, int length, char *to,
                                         const Spot &at)
{
  typedef Sum<E, VE> Op;
  if (length > SHF_CHUNK) return; // long: find_long_runs has listed it
  Columns<E, VE> held;
  held.fetch(to, at.column, t.dim, t.sink == SINK_ADD && at.active);
  Op total;
  total.start();
  typename E::acc scale = t.by_frequency ? frequency_of<E>(length) : typename E::acc(1);
  for (int first = 0; first < length; first += SHF_FAN_IN) {
    Op term;
    term.start();
    take_rows<E, VE, Op, COEFFICIENTS ? 1 : 2>(t, term, s, begin + first, min((int)SHF_FAN_IN, length - first), first,
                                               at, scale);
    total.fold(t, term);
  }
  add_run<E, VE>(t, total, held, to, at);
}

// One block takes the runs that begin among its 256 sorted entries. All its threads decode entries, and those behind
// the tile that belong to its last run, and find where each run goes; then each rower takes one run after the other.
// What a run is added to is asked for together with its rows.
template <class E, int VE, bool COEFFICIENTS, bool USUAL>
__global__ void __launch_bounds__(BLOCK, sizeof(typename E::acc) == 8 || VE == 8 ? 3 : 4)
    walk_runs(const __grid_constant__ Task given)
{
  const Task &t = usual<USUAL, true>(given);
  typedef Sum<E, VE> Op;
  typedef typename E::acc acc;
  extern __shared__ __align__(16) char memory[];
  __shared__ int64_t goes_to[RUN_TILE]; // bytes from target.data, of each run
  __shared__ uint16_t heads[RUN_TILE + 1];
  __shared__ __align__(16) int warp_heads[BLOCK / WARP];
  if (!is_for(t.sorted)) return;
  Stage<E> s = stage_in<E>(memory, 2 * RUN_TILE + SHF_FAN_IN, 0);
  Team m = team_of(t.lanes, 1);
  int thread = (int)threadIdx.x, rowers = BLOCK / t.lanes;
  int64_t all = t.entries * t.batch, tile_count = (all + RUN_TILE - 1) / RUN_TILE;
  for (int64_t tile = blockIdx.x; tile < tile_count; tile += gridDim.x) {
    int64_t entry = tile * RUN_TILE + thread;
    int64_t end = tile * RUN_TILE + RUN_TILE; // behind the tile
    uint64_t none = t.sorted.none, key = entry < all ? key_at(t.sorted, entry) : none;
    uint64_t last = end <= all ? key_at(t.sorted, end - 1) : none;
    bool crosses = end < all && last < none && key_at(t.sorted, end) == last; // the last run goes on behind the tile
    uint64_t before = __shfl_up_sync(0xffffffffu, key, 1);
    if ((thread & (WARP - 1)) == 0) before = entry > 0 && entry <= all ? key_at(t.sorted, entry - 1) : none;
    bool valid = key < none, head = valid && before != key;
    bool follows = crosses && entry + RUN_TILE < all && key_at(t.sorted, entry + RUN_TILE) == last;
    int64_t problem = t.batch > 1 && valid ? (int64_t)key / t.groups : 0;
    Place<E> place, next;
    if (valid) place = decode_gradient<E>(t, problem, entry);
    if (follows) next = decode_gradient<E>(t, t.batch > 1 ? (int64_t)last / t.groups : 0, entry + RUN_TILE);
    unsigned ballot = __ballot_sync(0xffffffffu, head);
    __syncthreads(); // the tile before is done with shared memory
    if (valid) put_place(t, s, thread, place);
    if (follows) put_place(t, s, thread + RUN_TILE, next);
    if ((thread & (WARP - 1)) == 0) warp_heads[thread / WARP] = __popc(ballot);
    int inside = __syncthreads_count(valid), behind = __syncthreads_count(follows);
    int number = 0, count = 0;
    for (int i = 0; i < BLOCK / WARP; i++) {
      if (i < thread / WARP) number += warp_heads[i];
      count += warp_heads[i];
    }
    if (head) {
      number += __popc(ballot & ((1u << (thread & (WARP - 1))) - 1));
      heads[number] = (uint16_t)thread;
      goes_to[number] =
          target_row(t, t.target, problem, (int64_t)key - problem * t.groups, sizeof(typename E::cell)) - t.target.data;
    }
    if (thread == 0) heads[count] = (uint16_t)(inside + behind);
    __syncthreads();
    for (int64_t columns = blockIdx.y; columns < t.tiles; columns += gridDim.y) {
      Spot at = spot_of(t, m, columns, VE);
      for (int h = m.number; h < count; h += 2 * rowers) {
        int other = h + rowers < count ? h + rowers : h;
        int length = heads[h + 1] - heads[h], other_length = heads[other + 1] - heads[other];
        if (USUAL && length <= RUN_FEW && other_length <= RUN_FEW) { // as most are: two runs in flight
          const int runs[2] = {h, other};
          Columns<E, VE> held[2], row[2][RUN_FEW];
#pragma unroll
          for (int k = 0; k < 2; k++) {
            int begin = heads[runs[k]], its = k ? other_length : length;
            held[k].fetch(t.target.data + goes_to[runs[k]], at.column, t.dim, t.sink == SINK_ADD && at.active);
#pragma unroll
            for (int i = 0; i < RUN_FEW; i++)
              row[k][i].fetch(t.source.data + (i < its ? s.offset[begin + i] : 0), at.column, t.dim,
                              i < its && at.active);
          }
#pragma unroll
          for (int k = 0; k < 2; k++) {
            Op total;
            total.start();
#pragma unroll
            for (int i = 0; i < RUN_FEW; i++) total.take(t, row[k][i], true, 1, 0);
            if (k == 0 || other != h) add_run<E, VE>(t, total, held[k], t.target.data + goes_to[runs[k]], at);
          }
          continue;
        }
#pragma unroll 1
        for (int run = h; run <= other; run += rowers)
          walk_run<E, VE, COEFFICIENTS>(t, s, heads[run], heads[run + 1] - heads[run], t.target.data + goes_to[run],
                                        at);
      }
    }
  }
}

} // namespace shf
#endif
