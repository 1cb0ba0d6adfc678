// guess.cuh: sums of bags that may well be of one length, as bags by offsets usually are: there are just as many entries as
// that would take. Rows are asked for where they would lie then; offsets arrive meanwhile, and tell whether that was right.
// Where it was not, those who guessed do their groups over again, and with them the chunks of long groups that lie where
// their own entries would. So nothing has to follow that looks for long groups; but in a graph, whose launches cannot be told
// from each other by a mark, share_chunks does.
#ifndef SHF_CUDA_GUESS_CUH
#define SHF_CUDA_GUESS_CUH

#include "share.cuh"

namespace shf {

enum { LEAST_GUESS_BITS = 3 }; // lanes of a row, as a power of two
enum { OVER_IN_FLIGHT = 4 };   // rows in flight where the guess was wrong: no more registers than the rest needs

// Blocks of a multiprocessor: as many as there are registers for, but for one or two that are spilled, and those that sum_ones
// puts elsewhere (spill_to_shared).
template <class E> struct GuessBlocks {
  enum { OF_FEW = E::WIDE > 4 ? 3 : 4, OF_ONES = E::BITS >= 32 ? 10 : E::QUANTISED ? 6 : 8 };
};

// What these kernels are given of a usual task (see Task): no more, since a launch with many bytes of parameters is up to a
// microsecond slower.
struct GuessTask {
  char *offsets, *index, *source, *target, *slots;
  uint64_t mark;
  int64_t row_begin, total_rows, padding;
  uint32_t dim, groups, guess_length, rows, source_stride, target_stride, slot_bytes;
  uint8_t fixed, offsets_wide, offsets_end, index_wide, out_dtype, store_wide, split_bits;
};

inline GuessTask guess_task_of(const Task &t, uint64_t mark)
{
  GuessTask p = {};
  p.offsets = (char *)t.offsets;
  p.index = t.index.data;
  p.source = t.source.data;
  p.target = t.target.data;
  p.slots = t.slots;
  p.mark = mark;
  p.row_begin = t.row_begin;
  p.total_rows = t.total_rows;
  p.padding = t.padding;
  p.dim = (uint32_t)t.dim;
  p.groups = (uint32_t)t.groups;
  p.guess_length = (uint32_t)t.guess_length;
  p.rows = (uint32_t)t.rows;
  p.source_stride = (uint32_t)t.source.row_stride;
  p.target_stride = (uint32_t)t.target.row_stride;
  p.slot_bytes = (uint32_t)t.slot_bytes;
  p.fixed = t.bag_length >= 0;
  p.offsets_wide = t.offsets_wide != 0;
  p.offsets_end = t.offsets_end != 0;
  p.index_wide = t.index_wide != 0;
  p.out_dtype = (uint8_t)t.out_dtype;
  p.store_wide = t.store_wide != 0;
  p.split_bits = (uint8_t)t.split_bits;
  return p;
}

__device__ __forceinline__ Task task_of(const GuessTask &given)
{
  Task t = {};
  t.dim = given.dim;
  t.groups = t.bags = given.groups;
  t.guess_length = given.guess_length;
  t.entries = t.entry_stride = given.groups * given.guess_length;
  t.batch = 1;
  t.offsets = given.offsets;
  t.offsets_wide = given.offsets_wide;
  t.offsets_end = given.offsets_end;
  t.bag_length = given.fixed ? t.guess_length : -1;
  t.decode = BY_INDEX;
  t.index.data = given.index;
  t.index_wide = given.index_wide;
  t.rows = given.rows;
  t.row_begin = given.row_begin;
  t.total_rows = given.total_rows;
  t.padding = given.padding;
  t.source.data = given.source;
  t.source.row_stride = given.source_stride;
  t.target.data = given.target;
  t.target.row_stride = given.target_stride;
  t.sink = SINK_SUM;
  t.out_dtype = given.out_dtype;
  t.store_wide = given.store_wide;
  t.slots = given.slots;
  t.slot_bytes = given.slot_bytes;
  t.mark = given.mark;
  t.tiles = gridDim.y;
  t.split_bits = given.split_bits;
  return t;
}

// ---- Sixteen rows of a rower ----

// Their names lie across its lanes.
template <class E, int LANE_BITS> struct Names {
  enum { LANES = 1 << LANE_BITS, EACH = LANES < SHF_FAN_IN ? SHF_FAN_IN / LANES : 1 };
  uint32_t of[EACH];
  // Those from place `from` on of the `places` that begin at entry `start`.
  __device__ __forceinline__ void ask(const Task &t, int lane, uint32_t start, uint32_t from, uint32_t places)
  {
    uint32_t last = max(places, 1u) - 1; // what may be read even where there is no place
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      uint32_t place = from + (k * LANES + lane) % SHF_FAN_IN;
      of[k] = (uint32_t)decode_place<E, true>(t, 0, min(start + min(place, last), (uint32_t)t.entries - 1)).ref;
      if (place >= places) of[k] = no_row<true>();
    }
  }
  __device__ __forceinline__ uint32_t at(int i) const
  {
    return __shfl_sync(0xffffffffu, of[i / LANES], i % LANES, LANES);
  }
};

template <class E, int VE, int LANE_BITS, int FLIGHT>
__device__ __forceinline__ Sum<E, VE> sum_named(const Task &t, const Names<E, LANE_BITS> &names, const char *base,
                                                const Spot &at)
{
  Sum<E, VE> term;
  term.start();
#pragma unroll
  for (int from = 0; from < SHF_FAN_IN; from += FLIGHT) {
    Columns<E, VE> row[FLIGHT];
#pragma unroll
    for (int i = 0; i < FLIGHT; i++) {
      uint32_t name = names.at(from + i);
      row[i].fetch_past(base + Ref<true>::offset(name, t.source.row_stride), E::QUANTISED ? at.column : 0, t.dim,
                        name != no_row<true>() && at.active);
    }
#pragma unroll
    for (int i = 0; i < FLIGHT; i++) term.take(t, row[i], true, 1, 0);
  }
  return term;
}

template <class E, int VE> struct alignas(16) Part {
  typename E::acc v[VE];
};

// Sums up to 256 places by a team, as share_places does; `longest` is the most of the warp's teams. The result is right in
// the first rower. `parts`, where there are several, has room for a term of each thread.
template <class E, int VE, int LANE_BITS, bool ALONE, int FLIGHT>
__device__ __forceinline__ Sum<E, VE> sum_places(const Task &t, const Team &m, Part<E, VE> *parts, uint32_t start,
                                                 uint32_t places, uint32_t longest, const char *base, const Spot &at)
{
  Sum<E, VE> total;
  total.start();
#pragma unroll 1
  for (uint32_t from = 0; from < longest; from += m.rowers * SHF_FAN_IN) {
    Names<E, LANE_BITS> names;
    names.ask(t, m.lane, start, from + m.rower * SHF_FAN_IN, places);
    Sum<E, VE> term = sum_named<E, VE, LANE_BITS, FLIGHT>(t, names, base, at);
    if (ALONE) {
      total.fold(t, term);
      continue;
    }
    if (from > 0) team_sync(m); // the first rower is done with the terms before
    memcpy(parts[threadIdx.x].v, term.v, sizeof term.v);
    team_sync(m);
    for (uint32_t r = 0; m.rower == 0 && r < m.rowers && from + r * SHF_FAN_IN < places; r++)
#pragma unroll
      for (int j = 0; j < VE; j++) total.v[j] += parts[threadIdx.x + r * m.lanes].v[j];
  }
  if (!ALONE) team_sync(m);
  return total;
}

// ---- The guess ----

// Where group `g` begins by its offset, and by the guess; where nobody says, the guess.
struct Said {
  int64_t offset, guess;
  __device__ __forceinline__ void ask(const Task &t, uint32_t g)
  {
    bool says = t.bag_length < 0 && g < t.groups + t.offsets_end;
    offset = guess = g * t.guess_length;
    if (says) offset = load_index(t.offsets, g, t.offsets_wide);
  }
  __device__ __forceinline__ bool differs() const { return offset != guess; }
};

// What a team does over: a group of up to 256 places; a chunk of a long one; or nothing, which has no places either.
struct Over {
  uint32_t start, places;
  uint32_t group, chunk, group_start, group_length; // of the long group
  bool whole, part;
};

__device__ __forceinline__ Over group_over(const Task &t, const Team &m, uint32_t g)
{
  Over o = {};
  Span span = span_of(t, g);
  o.start = (uint32_t)span.start;
  o.whole = span.end - span.start <= SHF_CHUNK;
  if (o.whole)
    o.places = (uint32_t)(span.end - span.start);
  else if (!t.mark && m.rower == 0 && blockIdx.y == 0)
    claim_slots(t, span, m.lane, m.lanes);
  return o;
}

__device__ __forceinline__ Over chunk_over(const Task &t, uint32_t slot)
{
  Over o = {};
  Span span;
  if (!long_group_of_pair(t, slot / 2, &span)) return o;
  o.group = (uint32_t)span.group;
  o.group_start = (uint32_t)span.start;
  o.group_length = (uint32_t)(span.end - span.start);
  o.chunk = slot - (uint32_t)first_slot(span.start); // huge, where the group begins behind the slot
  o.part = o.chunk < (o.group_length + SHF_CHUNK - 1) / SHF_CHUNK;
  if (!o.part) return o;
  o.start = o.group_start + o.chunk * SHF_CHUNK;
  o.places = min(o.group_length - o.chunk * SHF_CHUNK, (uint32_t)SHF_CHUNK);
  return o;
}

// The groups from `first` to `end`, then, in a run with a mark, the chunks in the slots that belong to their entries as they were
// guessed, by teams that go on together, of which this one has a number.
template <class E, int VE, int LANE_BITS, bool ALONE>
__device__ __forceinline__ void do_over(const Task &t, const Team &m, uint32_t number, uint32_t teams, uint32_t first,
                                        uint32_t end, Part<E, VE> *parts, const char *base, const Spot &at)
{
  uint32_t slot = (uint32_t)(first * t.guess_length / SHF_CHUNK * 2), groups = end - first;
  uint32_t last = (uint32_t)(end == t.groups ? slots_for(t.entries) : end * t.guess_length / SHF_CHUNK * 2);
  uint32_t all = groups + (t.mark ? last - slot : 0);
#pragma unroll 1
  for (uint32_t from = 0; from < all; from += teams) {
    uint32_t i = from + number;
    Over o = {};
    if (i < groups)
      o = group_over(t, m, first + i);
    else if (i < all)
      o = chunk_over(t, slot + i - groups);
    uint32_t longest = m.lanes * m.rowers <= WARP ? (uint32_t)most_of_warp((int)o.places) : o.places;
    Sum<E, VE> sum =
        sum_places<E, VE, LANE_BITS, ALONE, OVER_IN_FLIGHT>(t, m, parts, o.start, o.places, longest, base, at);
    if (m.rower != 0) continue;
    if (o.whole) sum.finish(t, 0, first + i, o.places, at, nullptr);
    if (o.part) { // there is a mark then
      LongGroup g = {0, o.group, o.group_start, o.group_length, first_slot(o.group_start)};
      climb<E, VE, Sum<E, VE>, true>(t, m, g, o.chunk, at, sum);
    }
  }
}

// ---- Few groups: a team to each ----

// So many blocks fit that all are under way at once, where there is little to do.
template <class E, int VE, int LANE_BITS>
__global__ void __launch_bounds__(BLOCK, GuessBlocks<E>::OF_FEW) sum_few(const __grid_constant__ GuessTask given)
{
  const Task &t = task_of(given);
  __shared__ Part<E, VE> parts[BLOCK];
  begin_kernel();
  Team m = team_of(LANE_BITS, t.split_bits);
  uint32_t teams = BLOCK >> LANE_BITS >> t.split_bits, first = blockIdx.x * teams, g = first + m.number;
  uint32_t end = (uint32_t)min((int64_t)first + teams, t.groups), length = (uint32_t)t.guess_length;
  Spot at = spot_of(t, m, blockIdx.y, VE);
  const char *base = lane_base<E>(t.source, at);
  Said said = {0, 0};
  if (m.rower == 0 && m.lane < 2 && g < end) said.ask(t, g + m.lane);
  Sum<E, VE> sum =
      sum_places<E, VE, LANE_BITS, false, IN_FLIGHT>(t, m, parts, min(g, end - 1) * length, length, length, base, at);
  if (__builtin_expect(__syncthreads_or(said.differs()), 0))
    do_over<E, VE, LANE_BITS, false>(t, m, m.number, teams, first, end, parts, base, at);
  else if (m.rower == 0 && g < end)
    sum.finish(t, 0, g, length, at, nullptr);
}

// ---- Bags of one row: a warp takes neighbours ----

enum { ONES = 8, ONES_BLOCK = 128 }; // groups of a rower; threads of a block

// Registers for which there is no room, since do_over needs more of them than the rest, lie in shared memory. (On a stack, as
// with older compilers, a kernel starts later: bags of one row of 128 floats took 38.7 us, as with 64 registers, and 38.2 so.)
__device__ __forceinline__ void spill_to_shared()
{
#if __CUDACC_VER_MAJOR__ >= 13
  asm volatile(".pragma \"enable_smem_spilling\";");
#endif
}

template <class E, int VE, int LANE_BITS>
__global__ void __launch_bounds__(ONES_BLOCK, GuessBlocks<E>::OF_ONES) sum_ones(const __grid_constant__ GuessTask given)
{
  enum { LANES = 1 << LANE_BITS, ROWERS = WARP / LANES, GROUPS = ROWERS * ONES, PAST = LANES * 16 <= 128 };
  static_assert(GROUPS <= WARP, "each lane asks for one offset, the first for one more");
  spill_to_shared();
  const Task &t = task_of(given);
  begin_kernel();
  Team m = team_of(LANE_BITS, 0);
  uint32_t lane = threadIdx.x % WARP, rower = lane / LANES;
  uint32_t first = (blockIdx.x * (ONES_BLOCK / WARP) + threadIdx.x / WARP) * GROUPS;
  if (first >= t.groups) return;
  uint32_t end = min(first + GROUPS, (uint32_t)t.groups), name = no_row<true>();
  Said said = {0, 0};
  if (first + lane <= end) said.ask(t, first + lane);
  Said last = {0, 0}; // a warp of 32 groups has 33 ends
  if (GROUPS >= WARP && lane == 0) last.ask(t, end);
  if (first + lane < end) name = (uint32_t)decode_place<E, true>(t, 0, first + lane).ref;
  Spot at = spot_of(t, m, blockIdx.y, VE);
  const char *base = lane_base<E>(t.source, at);
  Columns<E, VE> row[ONES];
#pragma unroll
  for (int i = 0; i < ONES; i++) {
    uint32_t named = __shfl_sync(0xffffffffu, name, i * ROWERS + rower);
    const char *from = base + Ref<true>::offset(named, t.source.row_stride);
    bool there = named != no_row<true>() && at.active;
    if (PAST)
      row[i].fetch_past(from, E::QUANTISED ? at.column : 0, t.dim, there);
    else
      row[i].fetch(from, E::QUANTISED ? at.column : 0, t.dim, there);
  }
  if (__builtin_expect(__any_sync(0xffffffffu, said.differs() || last.differs()), 0)) {
    do_over<E, VE, LANE_BITS, true>(t, m, rower, ROWERS, first, end, nullptr, base, at);
    return;
  }
#pragma unroll
  for (int i = 0; i < ONES; i++) {
    uint32_t g = first + i * ROWERS + rower;
    Sum<E, VE> sum;
    sum.start();
    sum.take(t, row[i], true, 1, 0);
    if (g < end) sum.finish(t, 0, g, 1, at, nullptr);
  }
}

} // namespace shf
#endif
