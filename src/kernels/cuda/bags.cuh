// bags.cuh: usual sums and means of bags where there is enough to do to fill the device: one rower for each bag of up to
// 256 rows. Longer ones are left to walk_chunks.
#ifndef SHF_CUDA_BAGS_CUH
#define SHF_CUDA_BAGS_CUH

#include "guess.cuh"
#include "walk.cuh"

namespace shf {

enum { BAG_PLACES = 64 }; // of a rower, whose rows are named at once

// Blocks of a multiprocessor. Many threads of which each has few rows in flight (as many as 64 registers hold) are faster
// than the reverse where rows come from the caches, and as fast where they come from memory.
enum { BAG_BLOCKS = 16 };

// Names the rows of a rower's next places: those from `from` on of the `places` that begin at entry `start`; behind them
// there is none. `counted` grows by how many of this lane's count. Returns how many of the first are rows, in the whole
// warp.
template <class E, int LANE_BITS>
__device__ __forceinline__ uint32_t name_places(const Task &t, int lane, uint32_t *names, uint32_t start, uint32_t from,
                                                uint32_t places, int *counted)
{
  enum { LANES = 1 << LANE_BITS, EACH = BAG_PLACES / LANES, AT_ONCE = EACH < 8 ? EACH : 8 };
  uint32_t last = max(places, 1u) - 1, hole = BAG_PLACES; // `last` may be read even where there is no place
  __syncwarp();
#pragma unroll 1
  for (int base = lane; base < BAG_PLACES; base += LANES * AT_ONCE) {
    Place<E> p[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      uint32_t place = min(from + base + k * LANES, last);
      p[k] = decode_place<E, true>(t, 0, min(start + place, (uint32_t)t.entries - 1));
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      uint32_t i = base + k * LANES, name = (uint32_t)p[k].ref;
      bool behind = from + i >= places;
      if (behind) name = no_row<true>();
      names[i] = name;
      if (name == no_row<true>()) hole = min(hole, i);
      *counted += behind ? 0 : p[k].counted;
    }
  }
  __syncwarp();
  return __reduce_min_sync(0xffffffffu, hole);
}

// Sixteen rows: all are there (WHOLE), which takes no predicates, or some may be missing.
template <class E, int VE, bool WHOLE>
__device__ __forceinline__ Sum<E, VE> sum_term(const Task &t, const uint32_t *names, const char *base, const Spot &at)
{
  Sum<E, VE> term;
  term.start();
#pragma unroll
  for (int from = 0; from < SHF_FAN_IN; from += QUAD) {
    uint32_t name[QUAD];
    Columns<E, VE> row[QUAD];
    load_refs<QUAD>(names + from, name);
#pragma unroll
    for (int i = 0; i < QUAD; i++)
      row[i].fetch(Ref<true>::in(base, name[i], t.source.row_stride), E::QUANTISED ? at.column : 0, t.dim,
                   WHOLE || name[i] != no_row<true>());
#pragma unroll
    for (int i = 0; i < QUAD; i++) term.take(t, row[i], true, 1, 0);
  }
  return term;
}

// The three steps of a bag: its rows are named, taken, and their sum is stored. Where all bags may well be of one length
// (see guess.cuh), indices are asked for together with the offsets, and again if those tell otherwise.
template <class E, int VE, int LANE_BITS>
__global__ void __launch_bounds__(WALKERS, BAG_BLOCKS) sum_bags(const __grid_constant__ Task given)
{
  enum { ROWERS = WALKERS >> LANE_BITS };
  const Task &t = usual<BY_INDEX>(given);
  __shared__ __align__(16) uint32_t names[ROWERS][BAG_PLACES];
  begin_kernel();
  Team m = team_of(LANE_BITS, 0);
  uint32_t *own = names[m.number];
  uint32_t g = blockIdx.x * ROWERS + m.number, bag = min(g, (uint32_t)t.groups - 1), longest = (uint32_t)t.guess_length;
  uint32_t start = bag * longest, places = g < t.groups ? longest : 0, whole = 0;
  bool takes = g < t.groups, known = longest > 0 && longest <= SHF_CHUNK;
  int counted = 0;
  Spot at = spot_of(t, m, blockIdx.y, VE), reads = at;
  if (!at.active) reads.column = 0; // what is read there is not stored
  const char *base = lane_base<E>(t.source, reads);
  if (known) {
    Said said = {0, 0};
    if (m.lane < 2) said.ask(t, bag + m.lane);
    whole = name_places<E, LANE_BITS>(t, m.lane, own, start, 0, places, &counted);
    known = !__any_sync(0xffffffffu, said.differs());
  }
  if (!known) {
    Span span = span_of(t, bag);
    takes = takes && !is_long(given, span);
    start = (uint32_t)span.start, places = takes ? (uint32_t)(span.end - span.start) : 0;
    longest = (uint32_t)most_of_warp((int)places);
    counted = 0;
    if (longest > 0) whole = name_places<E, LANE_BITS>(t, m.lane, own, start, 0, places, &counted);
  }
  Sum<E, VE> sum;
  sum.start();
#pragma unroll 1
  for (uint32_t from = 0; from < longest; from += SHF_FAN_IN) {
    uint32_t within = from % BAG_PLACES;
    if (from > 0 && within == 0) whole = name_places<E, LANE_BITS>(t, m.lane, own, start, from, places, &counted);
    sum.fold(t, within + SHF_FAN_IN <= whole ? sum_term<E, VE, true>(t, own + within, base, reads)
                                             : sum_term<E, VE, false>(t, own + within, base, reads));
  }
  if (counts_entries(t)) sum.count(count_of_rower(m, counted));
  if (takes) sum.finish(t, 0, bag, places, at, nullptr);
}

} // namespace shf
#endif
