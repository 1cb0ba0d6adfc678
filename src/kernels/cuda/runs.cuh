// runs.cuh: sums over runs of equal keys: the table's gradient. One block takes the runs that begin in its tile of
// sorted entries. Short ones, as most are, are added in streams; the rest group by group, and long ones are left to walk_chunks.
#ifndef SHF_CUDA_RUNS_CUH
#define SHF_CUDA_RUNS_CUH

#include "share.cuh"

namespace shf {

enum {
  RUN_TILE = 2 * BLOCK,        // entries whose runs a block takes
  RUN_ROOM = RUN_TILE + BLOCK, // and those behind them that it looks at: a run of up to 256 ends there
  RUN_WORDS = RUN_ROOM / WARP + 1,
  RUN_STREAM = 4, // entries that are asked for together
  MOST_BIG = RUN_TILE / SHF_FAN_IN,
};

// A tile's runs, in shared memory.
template <class E, bool NARROW> struct RunTile {
  typedef typename Ref<NARROW>::type ref;
  ref from[RUN_ROOM];           // what an entry adds; none where its run is not short
  ref to[RUN_ROOM];             // what its run is added to, where that ends with it
  unsigned heads[RUN_WORDS];    // a bit for each entry that begins a run, or is none of one
  int big[MOST_BIG], big_count; // heads of runs of 17 to 256
  Span found[2];                // long ones
  int found_count;
};

// The first entry from `at` on that begins a run.
__device__ __forceinline__ int next_head(const unsigned *heads, int at)
{
  int word = at / WARP;
  unsigned bits = heads[word] & (0xffffffffu << (at % WARP));
  while (!bits && ++word < RUN_WORDS) bits = heads[word];
  return bits ? word * WARP + __ffs((int)bits) - 1 : RUN_ROOM;
}

// The last one up to `at`; -1: none in the tile.
__device__ __forceinline__ int head_of(const unsigned *heads, int at)
{
  int word = at / WARP;
  unsigned bits = heads[word] & (0xffffffffu >> (WARP - 1 - at % WARP));
  while (!bits && --word >= 0) bits = heads[word];
  return bits ? word * WARP + 31 - __clz((int)bits) : -1;
}

// Fills in the tile. `coefficients` (NULL: none) gets what each entry is multiplied with.
template <class E, bool NARROW>
__device__ __forceinline__ void look_at_tile(const Task &t, int64_t base, RunTile<E, NARROW> *tile,
                                             typename E::acc *coefficients)
{
  enum { EACH = RUN_ROOM / BLOCK };
  int64_t all = t.entries * t.batch;
  uint64_t key[EACH], none = t.sorted.none;
  int thread = (int)threadIdx.x;
  __syncthreads(); // the tile before is done with
  if (thread == 0) tile->big_count = tile->found_count = 0, tile->heads[RUN_WORDS - 1] = 0;
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int64_t entry = base + k * BLOCK + thread;
    key[k] = entry < all ? key_at(t.sorted, entry) : none;
    uint64_t before = __shfl_up_sync(0xffffffffu, key[k], 1);
    if (thread % WARP == 0) before = entry > 0 && entry <= all ? key_at(t.sorted, entry - 1) : none;
    unsigned heads = __ballot_sync(0xffffffffu, key[k] >= none || before != key[k]);
    if (thread % WARP == 0) tile->heads[k * (BLOCK / WARP) + thread / WARP] = heads;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int at = k * BLOCK + thread, head = head_of(tile->heads, at);
    tile->from[at] = tile->to[at] = no_row<NARROW>();
    if (key[k] >= none || head < 0 || head >= RUN_TILE) continue;
    int end = next_head(tile->heads, at + 1), length = end - head;
    Span span = run_span(t, key[k], base + head, base + end);
    if (length <= SHF_FAN_IN) {
      Place<E> p = decode_gradient<E, NARROW>(t, span.problem, base + at);
      tile->from[at] = (typename Ref<NARROW>::type)p.ref;
      if (coefficients) coefficients[at] = t.by_frequency ? p.coefficient * frequency_of<E>(length) : p.coefficient;
      if (at == end - 1) {
        char *row = target_row(t, t.target, span.problem, span.group, sizeof(typename E::cell));
        tile->to[at] = (typename Ref<NARROW>::type)(NARROW ? span.group : row - t.target.data);
      }
    } else if (at == head && length <= SHF_CHUNK) {
      tile->big[atomicAdd(&tile->big_count, 1)] = head;
    } else if (at == head) {
      span.end = bound_of(t.sorted, base + head, all, key[k], true);
      tile->found[atomicAdd(&tile->found_count, 1)] = span;
    }
  }
  __syncthreads();
}

// Adds a finished sum to what its row holds (nothing, where it is not added to: 0 + x is x).
template <class E, int VE>
__device__ __forceinline__ void add_run(const Task &t, const Sum<E, VE> &total, const Columns<E, VE> &held, char *to,
                                        const Spot &at)
{
  typedef typename E::acc acc;
  acc x[VE];
  held.values(x);
#pragma unroll
  for (int j = 0; j < VE; j++) x[j] = x[j] + (total.v[j] + acc(0));
  Out<E, VE>::store(to, at.column, t.dim, x, 0, true);
}

// Entries of a stream: rows of the gradient, and what runs that end with them are added to, in flight together.
template <class E, int VE, bool NARROW> struct RunBatch {
  typename Ref<NARROW>::type to[RUN_STREAM];
  Columns<E, VE> row[RUN_STREAM], held[RUN_STREAM];

  __device__ __forceinline__ void load(const Task &t, const RunTile<E, NARROW> &tile, const char *base, int first,
                                       int last, const Spot &at)
  {
#pragma unroll
    for (int i = 0; i < RUN_STREAM; i++) {
      typename Ref<NARROW>::type from = first + i < last ? tile.from[first + i] : no_row<NARROW>();
      to[i] = first + i < last ? tile.to[first + i] : no_row<NARROW>();
      row[i].fetch(base + Ref<NARROW>::offset(from, t.source.row_stride), 0, t.dim,
                   from != no_row<NARROW>() && at.active);
      held[i].fetch(t.target.data + Ref<NARROW>::offset(to[i], t.target.row_stride), at.column, t.dim,
                    to[i] != no_row<NARROW>() && t.sink == SINK_ADD && at.active);
    }
  }
  __device__ __forceinline__ void take(const Task &t, Sum<E, VE> &sum, const typename E::acc *coefficients, int first,
                                       const Spot &at) const
  {
#pragma unroll
    for (int i = 0; i < RUN_STREAM; i++) {
      sum.take(t, row[i], true, coefficients ? coefficients[min(first + i, RUN_ROOM - 1)] : typename E::acc(1), 0);
      if (to[i] == no_row<NARROW>()) continue;
      if (at.active)
        add_run<E, VE>(t, sum, held[i], t.target.data + Ref<NARROW>::offset(to[i], t.target.row_stride), at);
      sum.start();
    }
  }
};

// The short runs that begin among a rower's share of the tile, in one stream.
template <class E, int VE, bool NARROW>
__device__ __forceinline__ void stream_runs(const Task &t, const Team &m, const RunTile<E, NARROW> &tile,
                                            const typename E::acc *coefficients, const Spot &at)
{
  int share = RUN_TILE >> (BLOCK_BITS - t.lane_bits), begin = m.number * share;
  int first = next_head(tile.heads, begin),
      last = min(next_head(tile.heads, begin + share), begin + share + SHF_FAN_IN);
  const char *base = lane_base<E>(t.source, at);
  Sum<E, VE> sum;
  sum.start();
  int count = most_of_warp(last - first);
  RunBatch<E, VE, NARROW> a, b;
  a.load(t, tile, base, first, last, at);
#pragma unroll 1
  for (int from = 0; from < count; from += 2 * RUN_STREAM) {
    int second = first + from + RUN_STREAM;
    b.load(t, tile, base, second, last, at);
    a.take(t, sum, coefficients, first + from, at);
    a.load(t, tile, base, second + RUN_STREAM, last, at);
    b.take(t, sum, coefficients, second, at);
  }
}

template <class E, int VE, bool COEFFICIENTS, int USUAL>
__global__ void __launch_bounds__(BLOCK, 2) walk_runs(const __grid_constant__ Task given)
{
  enum { NARROW = USUAL >= 0 };
  typedef Sum<E, VE> Op;
  const Task &t = usual<USUAL>(given);
  extern __shared__ __align__(16) char memory[];
  __shared__ RunTile<E, NARROW> tile;
  let_next_begin();
  if (!is_for(t.sorted)) return;
  Team m = team_of(t.lane_bits, 0);
  int rowers = BLOCK >> t.lane_bits;
  Stage<E, NARROW> s = stage_in<E, NARROW>(memory, rowers * t.stage_places, m.number * t.stage_places);
  typename E::acc *coefficients =
      COEFFICIENTS ? (typename E::acc *)(memory + stage_bytes<E>(t, NARROW, rowers * t.stage_places)) : nullptr;
  int64_t all = t.entries * t.batch;
  for (int64_t base = (int64_t)blockIdx.x * RUN_TILE; base < all; base += (int64_t)gridDim.x * RUN_TILE) {
    if (key_at(t.sorted, base) >= t.sorted.none) break; // dropped entries come last
    look_at_tile<E, NARROW>(t, base, &tile, coefficients);
    for (int i = 0; i < tile.found_count && blockIdx.y == 0; i++)
      claim_slots(t, tile.found[i], (int)threadIdx.x, BLOCK);
    for (int64_t columns = blockIdx.y; columns < t.tiles; columns += gridDim.y) {
      Spot at = spot_of(t, m, columns, VE);
      stream_runs<E, VE, NARROW>(t, m, tile, coefficients, at);
      for (int first = 0; first < tile.big_count; first += rowers) {
        bool takes = first + m.number < tile.big_count;
        int head = tile.big[takes ? first + m.number : 0];
        int64_t start = base + head;
        int length = next_head(tile.heads, head + 1) - head;
        Span span = run_span(t, key_at(t.sorted, start), start, start + length);
        int places = takes ? length : 0;
        Op total = walk_places<E, VE, Op, NARROW, COEFFICIENTS>(t, m, s, span.problem, start, places,
                                                                most_of_warp(places), at, frequency_of<E>(length));
        if (!takes || !at.active) continue;
        char *to = target_row(t, t.target, span.problem, span.group, sizeof(typename E::cell));
        Columns<E, VE> held;
        held.fetch(to, at.column, t.dim, t.sink == SINK_ADD);
        add_run<E, VE>(t, total, held, to, at);
      }
    }
  }
}

} // namespace shf
#endif
