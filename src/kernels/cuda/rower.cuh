// rower.cuh: who works on a row: rowers, teams, and the steps they take: decode places, load rows, combine.
//
// A *rower* is 1 to 32 neighbouring lanes that share a row, each with its columns; it takes rows one after the other,
// several loads in flight. A *team* is one rower, or several that share a group. Places are decoded into shared memory,
// so that all lanes of a rower share that work; sixteen places are one term of the canonical tree.
#ifndef SHF_CUDA_ROWER_CUH
#define SHF_CUDA_ROWER_CUH

#include "terms.cuh"

namespace shf {

enum { IN_FLIGHT = 8 }; // rows that a rower waits for at once

// Rowers that walk alone are in small blocks, so that a long group keeps few others from making room.
enum { WALKERS = 64 };

struct Team {
  int lane, lanes;   // within the rower
  int rower, rowers; // within the team
  int number;        // of the team within the block
  unsigned mask;     // the rower's lanes in its warp
};

__device__ __forceinline__ Team team_of(int lane_bits, int split_bits)
{
  Team m;
  int thread = (int)threadIdx.x, row = thread >> lane_bits;
  m.lanes = 1 << lane_bits;
  m.rowers = 1 << split_bits;
  m.lane = thread & (m.lanes - 1);
  m.rower = row & (m.rowers - 1);
  m.number = row >> split_bits;
  m.mask = (0xffffffffu >> (WARP - m.lanes)) << (thread & (WARP - 1) & ~(m.lanes - 1));
  return m;
}

// All threads of a team meet. Teams that fit a warp go on warp by warp.
__device__ __forceinline__ void team_sync(const Team &m)
{
  int size = m.lanes * m.rowers;
  if (size <= WARP)
    __syncwarp();
  else
    asm volatile("bar.sync %0, %1;" ::"r"(m.number + 1), "r"(size) : "memory");
}

// The most of what the warp's lanes have: rowers of one warp go through their groups together, so that they can meet
// without asking who is there.
__device__ __forceinline__ int most_of_warp(int value) { return __reduce_max_sync(0xffffffffu, value); }

__device__ __forceinline__ Spot spot_of(const Task &t, const Team &m, int64_t tile, int ve)
{
  Spot at;
  at.tile = tile;
  at.column = (tile * m.lanes + m.lane) * ve;
  at.active = at.column < t.dim;
  at.first = m.lane == 0;
  return at;
}

// A kernel may be launched while the one before it still runs (see launch): that one says when all its blocks have begun,
// and the next waits for its results where it needs them.
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

// What every kernel does first. The next one can so rely upon all that was there before this one: whoever waits for a
// kernel waits for those before it only because they have waited. (radix_pass lets the next one begin first, and waits all
// the same; small_sort is launched without overlapping.)
__device__ __forceinline__ void begin_kernel()
{
  wait_for_launch_before();
  let_next_begin();
}

// A kernel that needs nothing of the one before it, but only what that one has waited for, works beside it. Its last block
// waits in the end, so that it is not done before that one is. The one before has to wait before it lets this one begin, as
// begin_kernel does. (That this one sees what that one has waited for, without a wait of its own, is what devices of 9.0 do;
// the PTX manual promises it to kernels that wait.)
__device__ __forceinline__ void begin_beside() { let_next_begin(); }
__device__ __forceinline__ void end_beside()
{
  if (blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1) wait_for_launch_before();
}

// ---- Decoded places ----

// In shared memory; coefficients are there only when the task has some.
template <class E, bool NARROW> struct Stage {
  typename Ref<NARROW>::type *ref;
  typename E::acc *coefficient, *counted_weight;
};

__host__ __device__ __forceinline__ bool has_coefficients(const Task &t) { return t.weighted || t.divisors; }

template <class E> __host__ __device__ __forceinline__ int64_t stage_bytes(const Task &t, bool narrow, int64_t places)
{
  return places * ((narrow ? 4 : 8) + (has_coefficients(t) ? 2 * (int64_t)sizeof(typename E::acc) : 0));
}

template <class E, bool NARROW>
__device__ __forceinline__ Stage<E, NARROW> stage_in(char *memory, int64_t places, int64_t first)
{
  Stage<E, NARROW> s;
  s.ref = (typename Ref<NARROW>::type *)memory + first;
  s.coefficient = (typename E::acc *)(memory + places * (NARROW ? 4 : 8)) + first;
  s.counted_weight = s.coefficient + places;
  return s;
}

template <class E, bool NARROW>
__device__ __forceinline__ void put_place(const Task &t, const Stage<E, NARROW> &s, int at, const Place<E> &p)
{
  s.ref[at] = (typename Ref<NARROW>::type)p.ref;
  if (!has_coefficients(t)) return;
  s.coefficient[at] = p.coefficient;
  s.counted_weight[at] = p.counted_weight;
}

__device__ __forceinline__ bool counts_entries(const Task &t) { return t.sink == SINK_MEAN || t.sink == SINK_COUNT; }

enum { DECODED_AT_ONCE = 4, DECODED_OF_CHUNK = 8 }; // by a lane

// Asks for the line of memory that lies there into the cache, and waits for nothing.
__device__ __forceinline__ void ask_for(const char *there)
{
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(there)));
}

// Asks for the indices that a group would have if all were equally long, while its offsets are on the way.
__device__ __forceinline__ void ask_for_indices(const Task &t, const Team &m, int64_t group)
{
  enum { LINE = 128 };
  int64_t size = t.index_wide ? 8 : 4, bytes = min(t.guess_length, (int64_t)SHF_CHUNK) * size;
  const char *from = t.index.data + group * t.guess_length * size;
  for (int64_t at = m.lane * LINE; at < bytes; at += m.lanes * LINE) ask_for(from + at);
}

// Decodes `count` places of a group of `places`, from place `first` on, into s[0 ..]. Behind the group come holes, or
// with REPEAT its last row again. `counted` grows by how many of this lane's count; returns whether a hole was met.
// Loads are predicated rather than branched around, so that several are in flight.
template <class E, bool NARROW, bool REPEAT, int AT_ONCE = DECODED_AT_ONCE>
__device__ __forceinline__ bool decode_places(const Task &t, const Team &m, const Stage<E, NARROW> &s, int64_t problem,
                                              int64_t entry, int first, int count, int places, int *counted)
{
  bool hole = false;
  int64_t limit = t.entry_stride ? (problem + 1) * t.entries : t.entries * t.batch;
  int64_t last = min(entry + max(places, 1), limit) - 1; // what may be read even where there is no place
#pragma unroll 1
  for (int base = m.lane; base < count; base += m.lanes * AT_ONCE) {
    Place<E> p[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++)
      p[k] = decode_place<E, NARROW>(t, problem, min(entry + first + base + k * m.lanes, last));
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      int i = base + k * m.lanes;
      bool behind = first + i >= places;
      if (behind && !REPEAT) p[k].ref = -1, p[k].coefficient = p[k].counted_weight = 0;
      if (i >= count) continue;
      put_place(t, s, i, p[k]);
      hole |= p[k].ref < 0;
      *counted += behind ? 0 : p[k].counted;
    }
  }
  return hole;
}

// ---- Rows ----

// Several names of rows at once from shared memory, whose address is a multiple of 16.
template <int COUNT, class R> __device__ __forceinline__ void load_refs(const R *from, R *refs)
{
  enum { EACH = 16 / sizeof(R) };
#pragma unroll
  for (int i = 0; i < COUNT / EACH; i++) {
    uint4 bits = ((const uint4 *)from)[i];
    memcpy(refs + i * EACH, &bits, 16);
  }
}

// Where the columns of a lane begin in a matrix: what is left to add is where a row begins. The compiler is kept from
// looking into it, or it would add the parts anew for every row.
template <class E> __device__ __forceinline__ const char *lane_base(const shf_matrix &m, const Spot &at)
{
  const char *base = m.data + (E::QUANTISED ? 0 : at.column * (int64_t)sizeof(typename E::cell));
  asm("" : "+l"(base));
  return base;
}

// Eight rows of a lane's columns: asked for together, then taken in order.
template <class E, int VE, bool NARROW, bool WHOLE> struct Batch {
  typename Ref<NARROW>::type refs[IN_FLIGHT];
  Columns<E, VE> row[IN_FLIGHT];

  // A row that is not there arrives as zeros. With WHOLE there are none such, and no predicates that would keep loads
  // from being in flight together.
  __device__ __forceinline__ void load(const Task &t, const char *base, const typename Ref<NARROW>::type *from,
                                       const Spot &spot)
  {
    load_refs<IN_FLIGHT>(from, refs);
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++)
      row[i].fetch(base + Ref<NARROW>::offset(refs[i], t.source.row_stride), E::QUANTISED ? spot.column : 0, t.dim,
                   WHOLE || (refs[i] != no_row<NARROW>() && spot.active));
  }
  template <class Op, bool COEFFICIENTS>
  __device__ __forceinline__ void take(const Task &t, Op &term, const Stage<E, NARROW> &s, int at, int place,
                                       typename E::acc scale) const
  {
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++) {
      typename E::acc coefficient = 1;
      if (COEFFICIENTS && has_coefficients(t)) coefficient = s.coefficient[at + i];
      if (COEFFICIENTS && t.by_frequency) coefficient = coefficient * scale;
      term.take(t, row[i], WHOLE || refs[i] != no_row<NARROW>(), coefficient, place + at + i);
    }
  }
};

// Takes `count` staged rows in order; sixteen are a term, and terms are folded into the total. `place` is the first one's.
// With AHEAD the next eight rows are asked for before eight are taken.
template <class E, int VE, class Op, bool NARROW, bool COEFFICIENTS, bool WHOLE, bool AHEAD>
__device__ __forceinline__ void take_rows(const Task &t, Op &total, const Stage<E, NARROW> &s, int count, int place,
                                          const Spot &spot, typename E::acc scale)
{
  Batch<E, VE, NARROW, WHOLE> a, b;
  const char *base = lane_base<E>(t.source, spot);
  if (AHEAD) a.load(t, base, s.ref, spot);
#pragma unroll 1
  for (int first = 0; first < count; first += SHF_FAN_IN) {
    int second = first + IN_FLIGHT, third = second + IN_FLIGHT;
    Op term;
    term.start();
    if (!AHEAD) a.load(t, base, s.ref + first, spot);
    if (AHEAD && second < count) b.load(t, base, s.ref + second, spot);
    a.template take<Op, COEFFICIENTS>(t, term, s, first, place, scale);
    if (AHEAD && third < count) a.load(t, base, s.ref + third, spot);
    if (second < count) {
      if (!AHEAD) b.load(t, base, s.ref + second, spot);
      b.template take<Op, COEFFICIENTS>(t, term, s, second, place, scale);
    }
    if (COEFFICIENTS && t.weighted && counts_entries(t))
      for (int i = first; i < min(count, third); i++) term.weigh(s.counted_weight[i]);
    total.fold(t, term);
    if (COEFFICIENTS) total.fold_counts(term);
  }
}

enum { QUAD = 4 };

// Four rows of a lane's columns, as in Batch.
template <class E, int VE, bool WHOLE> struct Quad {
  Columns<E, VE> row[QUAD];
  __device__ __forceinline__ void load(const Task &t, const char *base, const uint32_t *from, const Spot &spot)
  {
    uint32_t refs[QUAD];
    load_refs<QUAD>(from, refs);
#pragma unroll
    for (int i = 0; i < QUAD; i++)
      row[i].fetch(base + Ref<true>::offset(refs[i], t.source.row_stride), E::QUANTISED ? spot.column : 0, t.dim,
                   WHOLE || (refs[i] != no_row<true>() && spot.active));
  }
};

// The same for many rows, none of which is multiplied: when four are taken, the four that lie sixteen behind them are
// asked for, so that hardly fewer than sixteen are ever in flight.
template <class E, int VE, class Op, bool WHOLE>
__device__ __forceinline__ void take_ring(const Task &t, Op &total, const Stage<E, true> &s, int count, int place,
                                          const Spot &spot)
{
  enum { QUADS = SHF_FAN_IN / QUAD };
  Quad<E, VE, WHOLE> ring[QUADS];
  const char *base = lane_base<E>(t.source, spot);
  if (count <= 0) return;
#pragma unroll
  for (int q = 0; q < QUADS; q++) ring[q].load(t, base, s.ref + q * QUAD, spot);
#pragma unroll 1
  for (int first = 0; first < count; first += SHF_FAN_IN) {
    Op term;
    term.start();
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
      int at = first + q * QUAD;
#pragma unroll
      for (int i = 0; i < QUAD; i++) term.take(t, ring[q].row[i], true, 1, place + at + i);
      if (first + SHF_FAN_IN < count) ring[q].load(t, base, s.ref + at + SHF_FAN_IN, spot);
    }
    total.fold(t, term);
  }
}

// The same, where `whole` (equal in the warp) says whether rows may be missing. An operation to which a row that comes
// again means nothing (REPEATS) has a loop without predicates for when none is.
template <class E, int VE, class Op, bool NARROW, bool COEFFICIENTS, bool RING>
__device__ __forceinline__ void take_stage(const Task &t, Op &total, const Stage<E, NARROW> &s, int count, int place,
                                           const Spot &spot, typename E::acc scale, bool whole)
{
  if constexpr (NARROW && Op::REPEATS) {
    if (whole && RING)
      take_ring<E, VE, Op, true>(t, total, s, count, place, spot);
    else if (whole)
      take_rows<E, VE, Op, NARROW, COEFFICIENTS, true, false>(t, total, s, count, place, spot, scale);
    else
      take_rows<E, VE, Op, NARROW, COEFFICIENTS, false, false>(t, total, s, count, place, spot, scale);
  } else if constexpr (RING) {
    take_ring<E, VE, Op, false>(t, total, s, count, place, spot);
  } else {
    take_rows<E, VE, Op, NARROW, COEFFICIENTS, false, false>(t, total, s, count, place, spot, scale);
  }
}

// 1 / the number of entries, which by_frequency multiplies coefficients with.
template <class E> __device__ __forceinline__ typename E::acc frequency_of(int64_t length)
{
  return (typename E::acc)1 / (typename E::acc)length;
}

// Adds up what the lanes of a rower have counted.
__device__ __forceinline__ int count_of_rower(const Team &m, int counted)
{
  for (int half = m.lanes / 2; half > 0; half /= 2) counted += __shfl_xor_sync(m.mask, counted, half);
  return counted;
}

// Reduces up to 256 places by one rower; `longest` is the most of the warp's rowers.
template <class E, int VE, class Op, bool NARROW, bool COEFFICIENTS, bool RING = false>
__device__ __forceinline__ Op walk_places(const Task &t, const Team &m, const Stage<E, NARROW> &s, int64_t problem,
                                          int64_t entry, int places, int longest, const Spot &at, typename E::acc scale)
{
  enum { REPEAT = NARROW && Op::REPEATS, AT_ONCE = RING ? DECODED_OF_CHUNK : DECODED_AT_ONCE };
  Op total;
  total.start();
  int counted = 0;
#pragma unroll 1
  for (int base = 0; base < longest; base += t.stage_places) {
    int staged = min(t.stage_places, longest - base), whole_terms = (staged + SHF_FAN_IN - 1) & -SHF_FAN_IN;
    __syncwarp();
    bool hole = decode_places<E, NARROW, REPEAT, AT_ONCE>(t, m, s, problem, entry, base, whole_terms, places, &counted);
    bool whole = REPEAT && !__any_sync(0xffffffffu, hole || !at.active);
    __syncwarp();
    take_stage<E, VE, Op, NARROW, COEFFICIENTS, RING>(t, total, s, staged, base, at, scale, whole);
  }
  if (REPEAT && places == 0) total.start(); // what came again was not there before
  if (counts_entries(t)) total.count(count_of_rower(m, counted));
  return total;
}

} // namespace shf
#endif
