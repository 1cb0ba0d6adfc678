// walk.cuh: reductions where there is enough to do to fill the device: one rower for each group of up to 256 places.
// Longer groups are left to walk_chunks. (Usual sums of bags: bags.cuh; of segments: stream.cuh.)
#ifndef SHF_CUDA_WALK_CUH
#define SHF_CUDA_WALK_CUH

#include "share.cuh"

namespace shf {

// Whether a group is too long for one rower, which leaves it then.
__device__ __forceinline__ bool is_long(const Task &given, const Span &span)
{
  if (span.end - span.start <= SHF_CHUNK) return false;
  Team m = team_of(given.lane_bits, 0);
  if (blockIdx.y == 0) leave_group(given, span, m.lane, m.lanes, m.mask);
  return true;
}

enum { WALK_BLOCKS = 8 }; // of a multiprocessor, by the registers that they need

// The group's three steps are in walk_places: indices, rows, combine.
template <class E, int VE, class Op, bool COEFFICIENTS, int USUAL>
__global__ void __launch_bounds__(WALKERS, WALK_BLOCKS) walk_groups(const __grid_constant__ Task given)
{
  enum { NARROW = USUAL >= 0 };
  const Task &t = usual<USUAL>(given);
  extern __shared__ __align__(16) char memory[];
  begin_kernel();
  Team m = team_of(t.lane_bits, 0);
  int rowers = WALKERS >> t.lane_bits;
  Stage<E, NARROW> s = stage_in<E, NARROW>(memory, rowers * t.stage_places, m.number * t.stage_places);
  int64_t all = t.groups * t.batch;
  for (int64_t base = (int64_t)blockIdx.x * rowers; base < all; base += (int64_t)gridDim.x * rowers) {
    int64_t g = base + m.number;
    if (USUAL == BY_INDEX && t.bag_length < 0) ask_for_indices(t, m, min(g, all - 1));
    Span span = span_of(t, min(g, all - 1));
    bool takes = g < all && !is_long(given, span);
    int places = takes ? (int)(span.end - span.start) : 0, longest = most_of_warp(places);
    for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
      Spot at = spot_of(t, m, tile, VE);
      Op total =
          walk_places<E, VE, Op, NARROW, COEFFICIENTS>(t, m, s, span.problem, span.start, places, longest, at, 1);
      typename E::acc held[VE];
      if (takes) total.widened(t, span.problem, span.start).finish(t, span.problem, span.group, places, at, held);
    }
    if (NARROW) break; // there is a rower for each
  }
}

// ---- Short groups: plain sums of a few rows ----

enum { SHORT_GROUPS = 8, SHORT_PLACES = 64, NO_GROUP = 255, SHORT_WALKERS = 64 };

// The groups of one rower, in shared memory: their rows one behind the other, and which group ends with each.
struct ShortGroups {
  uint32_t ref[SHORT_PLACES];
  uint8_t ends[SHORT_PLACES];
  int start[SHORT_GROUPS];
  uint8_t length[SHORT_GROUPS]; // NO_GROUP: there is none
  uint8_t unused[8];            // to a multiple of 16 bytes
};

static_assert(sizeof(ShortGroups) % 16 == 0, "refs are loaded sixteen bytes at a time");

// Where the rows of the rower's groups lie, if there are not too many for that; returns how many, or -1. Where groups
// are of one length, as is usual, the first places are known before the offsets are: these are asked for with them.
template <class E>
__device__ __forceinline__ int decode_short(const Task &t, const Team &m, ShortGroups *own, int64_t first,
                                            unsigned *empty)
{
  int64_t guess = min(first * t.guess_length + m.lane, t.entries - 1);
  uint32_t guessed = no_row<true>();
  if (t.guess_length > 0) guessed = (uint32_t)decode_place<E, true>(t, 0, guess).ref;
  bool fits = true;
  for (int k = m.lane; k < SHORT_GROUPS; k += m.lanes) {
    int64_t g = first + k;
    Span span = span_of(t, min(g, t.groups - 1));
    int64_t length = span.end - span.start;
    if (g >= t.groups) length = NO_GROUP;
    fits &= length <= SHF_FAN_IN || g >= t.groups;
    own->start[k] = (int)span.start;
    own->length[k] = (uint8_t)min(length, (int64_t)NO_GROUP);
  }
  __syncwarp();
  int begin[SHORT_GROUPS], total = 0;
  *empty = 0;
#pragma unroll
  for (int k = 0; k < SHORT_GROUPS; k++) {
    int length = own->length[k];
    begin[k] = total;
    total += length == NO_GROUP ? 0 : length;
    *empty |= (unsigned)(length == 0) << k;
  }
  fits &= total <= SHORT_PLACES;
  if (__any_sync(0xffffffffu, !fits)) return -1;
  int whole = (most_of_warp(total) + IN_FLIGHT - 1) & -IN_FLIGHT;
#pragma unroll 1
  for (int i = m.lane; i < whole; i += m.lanes) {
    int k = 0, from = 0;
#pragma unroll
    for (int g = 1; g < SHORT_GROUPS; g++)
      if (i >= begin[g]) k = g, from = begin[g];
    int64_t entry = own->start[k] + i - from;
    uint32_t ref = guessed;
    if (i < total && (i != m.lane || entry != guess || t.guess_length == 0))
      ref = (uint32_t)decode_place<E, true>(t, 0, entry).ref;
    own->ref[i] = i < total ? ref : no_row<true>();
    own->ends[i] = i < total && i + 1 == from + own->length[k] ? (uint8_t)k : (uint8_t)NO_GROUP;
  }
  __syncwarp();
  return total;
}

// Asks for the index and the offset of a group that comes when those which a large device has under way are done.
__device__ __forceinline__ void ask_for_later(const Task &t, const Team &m, int64_t first)
{
  enum { UNDER_WAY = 24 << 10 };
  int64_t later = first + UNDER_WAY;
  if (later >= t.groups) return;
  if (m.lane == 0) ask_for(t.index.data + later * (t.index_wide ? 8 : 4));
  if (m.lane == 1 && t.bag_length < 0) ask_for(t.offsets + later * (t.offsets_wide ? 8 : 4));
}

// Where there are as many entries as groups, each may well have one: rows are asked for before offsets are there to tell,
// and stored if they do. Returns false, and has stored nothing, where a group of the warp has another.
template <class E, int VE> __device__ __forceinline__ bool put_single_rows(const Task &t, const Team &m, int64_t first)
{
  typedef typename E::acc acc;
  uint32_t refs[SHORT_GROUPS];
  bool single = true;
  ask_for_later(t, m, first);
#pragma unroll
  for (int k = 0; k < SHORT_GROUPS; k++)
    refs[k] = (uint32_t)decode_place<E, true>(t, 0, min(first + k, t.entries - 1)).ref;
  for (int k = m.lane; k < SHORT_GROUPS; k += m.lanes) {
    Span span = span_of(t, min(first + k, t.groups - 1));
    single &= span.start == min(first + k, t.groups - 1) && span.end == span.start + 1;
  }
  for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
    Spot at = spot_of(t, m, tile, VE);
    const char *base = lane_base<E>(t.source, at);
    Columns<E, VE> row[SHORT_GROUPS];
#pragma unroll
    for (int k = 0; k < SHORT_GROUPS; k++)
      row[k].fetch(base + Ref<true>::offset(refs[k], t.source.row_stride), E::QUANTISED ? at.column : 0, t.dim,
                   refs[k] != no_row<true>() && at.active);
    if (!__all_sync(0xffffffffu, single)) return false;
#pragma unroll
    for (int k = 0; k < SHORT_GROUPS; k++) {
      Sum<E, VE> sum;
      sum.start();
      sum.take(t, row[k], true, 1, 0);
      acc x[VE];
#pragma unroll
      for (int j = 0; j < VE; j++) x[j] = sum.v[j] + acc(0);
      if (at.active && first + k < t.groups)
        Out<E, VE>::store(t.target.data + (first + k) * t.target.row_stride, at.column, t.dim, x, t.out_dtype,
                          t.store_wide);
    }
  }
  return true;
}

// Blocks of a multiprocessor: as many as need not spill registers.
template <class E, int USUAL> struct ShortBlocks {
  enum { EACH = sizeof(typename E::acc) == 8 ? 8 : USUAL == BY_INDEX ? 12 : 16 };
};

// Each rower takes eight groups and goes through all their rows in one stream, so that loads are in flight across
// groups; a result is stored wherever a group ends. (Sixteen rows or fewer are added from left to right.)
template <class E, int VE, int USUAL>
__global__ void __launch_bounds__(SHORT_WALKERS, ShortBlocks<E, USUAL>::EACH)
    sum_short(const __grid_constant__ Task given)
{
  const Task &t = usual<USUAL>(given);
  typedef Sum<E, VE> Op;
  typedef typename E::acc acc;
  extern __shared__ __align__(16) char memory[];
  begin_kernel();
  Team m = team_of(t.lane_bits, 0);
  int rowers = SHORT_WALKERS >> t.lane_bits;
  ShortGroups *own = (ShortGroups *)memory + m.number;
  int64_t first = ((int64_t)blockIdx.x * rowers + m.number) * SHORT_GROUPS;
  if (USUAL == BY_INDEX && t.guess_length == 1 && put_single_rows<E, VE>(t, m, first)) return;
  unsigned empty;
  int total = decode_short<E>(t, m, own, first, &empty), longest = most_of_warp(total);
  for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
    Spot at = spot_of(t, m, tile, VE);
    const char *base = lane_base<E>(t.source, at);
    Op sum;
    sum.start();
    auto store = [&](int k) {
      acc x[VE];
#pragma unroll
      for (int j = 0; j < VE; j++) x[j] = sum.v[j] + acc(0);
      Out<E, VE>::store(t.target.data + (first + k) * t.target.row_stride, at.column, t.dim, x, t.out_dtype,
                        t.store_wide);
    };
#pragma unroll 1
    for (int from = 0; from < longest; from += IN_FLIGHT) {
      Batch<E, VE, true, false> rows;
      uint8_t ends[IN_FLIGHT];
      rows.load(t, base, own->ref + from, at);
      memcpy(ends, own->ends + from, sizeof ends);
#pragma unroll
      for (int i = 0; i < IN_FLIGHT; i++) {
        sum.take(t, rows.row[i], true, 1, 0);
        if (ends[i] == NO_GROUP) continue;
        if (at.active) store(ends[i]);
        sum.start();
      }
    }
    for (unsigned left = longest >= 0 ? empty : 0; left && at.active; left &= left - 1) store(__ffs((int)left) - 1);
    if (longest >= 0) continue;
#pragma unroll 1
    for (int k = 0; k < SHORT_GROUPS; k++) { // too many rows: group by group
      Stage<E, true> s = stage_in<E, true>(memory, 0, 0);
      s.ref = own->ref;
      Span span = span_of(t, min(first + k, t.groups - 1));
      bool takes = first + k < t.groups && !is_long(given, span);
      int places = takes ? (int)(span.end - span.start) : 0;
      Op whole =
          walk_places<E, VE, Op, true, false>(t, m, s, 0, span.start, places, most_of_warp(places), at, 1);
      if (takes) whole.finish(t, 0, span.group, places, at, nullptr);
    }
  }
}

} // namespace shf
#endif
