// runs.cuh: sums over runs of equal keys: the table's gradient. One warp takes the runs that begin in its tile of
// sorted entries. Short ones, as most are, are added in streams; the others are left to walk_chunks.
#ifndef SHF_CUDA_RUNS_CUH
#define SHF_CUDA_RUNS_CUH

#include "share.cuh"

namespace shf {

enum {
  RUN_WARPS = 4, // of a block; each goes its own way
  RUN_TILE = 64, // entries whose runs a warp takes; SMALL_RUN_TILE in small problems (t.run_tile)
  SMALL_RUN_TILE = WARP,
  RUN_ROOM = RUN_TILE + WARP, // and those behind them that it looks at: a run of up to 16 ends there
  RUN_WORDS = RUN_ROOM / WARP,
  LONG_RUN = SHF_FAN_IN + 1,
  MOST_LONG = RUN_TILE / LONG_RUN + 1,
};

// A tile's runs, in shared memory.
template <class E, bool NARROW> struct RunTile {
  typedef typename Ref<NARROW>::type ref;
  ref from[RUN_ROOM];        // what an entry adds; none where its run is not short
  ref to[RUN_ROOM];          // what its run is added to, where that ends with it
  unsigned heads[RUN_WORDS]; // a bit for each entry that begins a run, or is none of one
  Span found[MOST_LONG];     // the others
  int found_count;
};

// The first entry from `at` on that begins a run; RUN_ROOM: none that is looked at.
__device__ __forceinline__ int next_head(const unsigned *heads, int at)
{
  int word = at / WARP;
  if (word >= RUN_WORDS) return RUN_ROOM;
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

// The entries that a lane looks at, every 32nd of the tile's; what is not there has the key of dropped ones.
template <bool NARROW> struct RunEntries {
  typedef std::conditional_t<NARROW, uint32_t, uint64_t> Key;
  typedef std::conditional_t<NARROW, uint32_t, int64_t> Payload;
  Key none, key[RUN_WORDS], before[RUN_WORDS]; // the key of the entry in front of each
  Payload payload[RUN_WORDS];

  // All are asked for together.
  __device__ __forceinline__ void load(const Task &t, int64_t base, int64_t all)
  {
    int lane = (int)threadIdx.x % WARP, room = t.run_tile + WARP;
    none = (Key)t.sorted.none;
    Key first = base > 0 ? (Key)key_at(t.sorted, base - 1) : none;
#pragma unroll
    for (int k = 0; k < RUN_WORDS; k++) {
      int64_t entry = base + k * WARP + lane;
      bool looks = k * WARP < room && entry < all;
      key[k] = looks ? (Key)key_at(t.sorted, entry) : none;
      payload[k] = looks ? (Payload)payload_at(t.sorted, entry) : 0;
    }
#pragma unroll
    for (int k = 0; k < RUN_WORDS; k++) {
      before[k] = __shfl_up_sync(0xffffffffu, key[k], 1);
      Key last = k > 0 ? __shfl_sync(0xffffffffu, key[k > 0 ? k - 1 : 0], WARP - 1) : first;
      if (lane == 0) before[k] = last;
    }
  }
  // Dropped entries come last.
  __device__ __forceinline__ bool are_dropped() const { return __shfl_sync(0xffffffffu, key[0], 0) >= none; }
  // Whether all entries of the tile belong to a run that began before it.
  __device__ __forceinline__ bool are_inside_run(const Task &t) const
  {
    Key first = __shfl_sync(0xffffffffu, before[0], 0),
        last = t.run_tile == RUN_TILE ? key[RUN_TILE / WARP - 1] : key[0];
    return first < none && first == __shfl_sync(0xffffffffu, last, WARP - 1);
  }
};

// Fills in the tile. `coefficients` (NULL: none) gets what each entry is multiplied with.
template <class E, bool NARROW>
__device__ __forceinline__ void look_at_tile(const Task &t, const RunEntries<NARROW> &e, int64_t base,
                                             RunTile<E, NARROW> *tile, typename E::acc *coefficients)
{
  int lane = (int)threadIdx.x % WARP, room = t.run_tile + WARP;
  __syncwarp(); // the tile before is done with
  if (lane == 0) tile->found_count = 0;
#pragma unroll
  for (int k = 0; k < RUN_WORDS; k++) {
    bool is_head = k * WARP < room && (e.key[k] >= e.none || e.before[k] != e.key[k]);
    unsigned heads = __ballot_sync(0xffffffffu, is_head);
    if (lane == 0) tile->heads[k] = heads;
  }
  __syncwarp();
#pragma unroll
  for (int k = 0; k < RUN_WORDS; k++) {
    int at = k * WARP + lane;
    int head = head_of(tile->heads, at);
    tile->from[at] = tile->to[at] = no_row<NARROW>();
    if (coefficients) coefficients[at] = 0;
    if (e.key[k] >= e.none || head < 0 || head >= t.run_tile) continue;
    int end = min(next_head(tile->heads, at + 1), room), length = end - head;
    Span span = run_span(t, e.key[k], base + head, base + end);
    if (length <= SHF_FAN_IN) {
      Place<E> p = decode_payload<E, NARROW>(t, span.problem, e.payload[k]);
      tile->from[at] = (typename Ref<NARROW>::type)p.ref;
      if (coefficients) coefficients[at] = t.by_frequency ? p.coefficient * frequency_of<E>(length) : p.coefficient;
      if (at != end - 1) continue;
      char *row = target_row(t, t.target, span.problem, span.group, sizeof(typename E::cell));
      tile->to[at] = (typename Ref<NARROW>::type)(NARROW ? span.group : row - t.target.data);
    } else if (at == head) {
      tile->found[atomicAdd(&tile->found_count, 1)] = span;
    }
  }
  __syncwarp();
}

// Where a run that goes on at `from` ends. All lanes of the warp look, ever further ahead until the run is over, then
// between two of these places. (Not inlined, so that it takes no registers from the rest.)
static __device__ __noinline__ int64_t end_of_run(const Task &t, int64_t from, int64_t all, uint64_t key)
{
  int64_t low = from, high = all; // in front of `low` lies the run, from `high` on there is nothing of it
  bool between = false;
  while (low < high) {
    int lane = (int)threadIdx.x % WARP;
    int64_t apart = (high - low + WARP - 1) / WARP, near = (int64_t)4 << lane,
            at = between ? low + lane * apart : low + near - 1;
    bool goes_on = at < high && key_at(t.sorted, at) == key;
    int seen = __popc(__ballot_sync(0xffffffffu, goes_on));
    int64_t last = __shfl_sync(0xffffffffu, at, seen > 0 ? seen - 1 : 0),
            over = __shfl_sync(0xffffffffu, at, seen < WARP ? seen : WARP - 1);
    if (seen > 0) low = last + 1;
    if (seen < WARP) high = min(high, over), between = true;
  }
  return low;
}

// Entries of a stream: rows of the gradient, and with ADDS what runs that end with them are added to, in flight together.
template <class E, int VE, bool NARROW, bool ADDS> struct RunBatch {
  enum { COUNT = 4 };
  typename Ref<NARROW>::type to[COUNT];
  Columns<E, VE> row[COUNT], held[ADDS ? COUNT : 1];

  __device__ __forceinline__ void load(const Task &t, const RunTile<E, NARROW> &tile, const char *base,
                                       const char *target, int first, int last, const Spot &at)
  {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      typename Ref<NARROW>::type from = first + i < last ? tile.from[first + i] : no_row<NARROW>();
      to[i] = first + i < last ? tile.to[first + i] : no_row<NARROW>();
      row[i].fetch_by(base + Ref<NARROW>::offset(from, t.source.row_stride), from != no_row<NARROW>() && at.active,
                      policy_again());
      if (ADDS)
        held[ADDS ? i : 0].fetch_by(target + Ref<NARROW>::offset(to[i], t.target.row_stride),
                                    to[i] != no_row<NARROW>() && at.active, policy_once());
    }
  }
  __device__ __forceinline__ void take(const Task &t, Sum<E, VE> &sum, const typename E::acc *coefficients,
                                       char *target, int first, const Spot &at) const
  {
    typedef typename E::acc acc;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      sum.take(t, row[i], true, coefficients ? coefficients[min(first + i, RUN_ROOM - 1)] : acc(1), 0);
      if (to[i] == no_row<NARROW>()) continue;
      acc x[VE];
      if (ADDS) held[ADDS ? i : 0].values(x);
#pragma unroll
      for (int j = 0; j < VE; j++) x[j] = (ADDS ? x[j] : acc(0)) + (sum.v[j] + acc(0));
      if (at.active)
        Out<E, VE>::template store<true>(target + Ref<NARROW>::offset(to[i], t.target.row_stride), 0, VE, x, 0, true);
      sum.start();
    }
  }
};

// The short runs that begin among a rower's share of the tile, in one stream.
template <class E, int VE, bool NARROW, bool ADDS>
__device__ __forceinline__ void stream_runs(const Task &t, const Team &m, const RunTile<E, NARROW> &tile,
                                            const typename E::acc *coefficients, const Spot &at)
{
  int share = t.run_tile >> (WARP_BITS - t.lane_bits), begin = m.rower * share;
  int first = next_head(tile.heads, begin),
      last = min(next_head(tile.heads, begin + share), begin + share + SHF_FAN_IN);
  const char *base = lane_base<E>(t.source, at);
  char *target = (char *)lane_base<E>(t.target, at);
  Sum<E, VE> sum;
  sum.start();
  int count = most_of_warp(last - first);
#pragma unroll 1
  for (int from = 0; from < count; from += RunBatch<E, VE, NARROW, ADDS>::COUNT) {
    RunBatch<E, VE, NARROW, ADDS> rows;
    rows.load(t, tile, base, target, first, last, at);
    rows.take(t, sum, coefficients, target, first, at);
    first += RunBatch<E, VE, NARROW, ADDS>::COUNT;
  }
}

// Blocks of a multiprocessor: the more the better, as far as registers allow.
template <class E, bool COEFFICIENTS, bool ADDS, int USUAL> struct RunBlocks {
  enum {
    LIGHT = USUAL >= 0 && !ADDS,
    EACH = sizeof(typename E::acc) == 8 || COEFFICIENTS ? 6
           : !LIGHT                                     ? 7
           : E::BITS == 16                              ? 8
                                                        : 10
  };
};

template <class E, int VE, bool COEFFICIENTS, bool ADDS, int USUAL>
__global__ void __launch_bounds__(RUN_WARPS *WARP, RunBlocks<E, COEFFICIENTS, ADDS, USUAL>::EACH)
    walk_runs(const __grid_constant__ Task given)
{
  enum { NARROW = USUAL >= 0 };
  const Task &t = usual<USUAL>(given);
  __shared__ typename E::acc shared_coefficients[COEFFICIENTS ? RUN_WARPS : 1][COEFFICIENTS ? RUN_ROOM : 1];
  __shared__ RunTile<E, NARROW> tiles[RUN_WARPS];
  begin_kernel();
  int warp = (int)threadIdx.x / WARP;
  RunTile<E, NARROW> &tile = tiles[warp];
  typename E::acc *coefficients = COEFFICIENTS ? shared_coefficients[warp % (COEFFICIENTS ? RUN_WARPS : 1)] : nullptr;
  Team m = team_of(t.lane_bits, WARP_BITS - t.lane_bits);
  int64_t all = is_for(t.sorted) ? t.entries * t.batch : 0;
  int64_t first = (int64_t)blockIdx.x * RUN_WARPS + warp, step = (int64_t)gridDim.x * RUN_WARPS;
  for (int64_t base = first * t.run_tile; base < all; base += step * t.run_tile) {
    RunEntries<NARROW> entries;
    entries.load(t, base, all);
    if (entries.are_dropped()) break;
    if (entries.are_inside_run(t)) continue;
    look_at_tile<E, NARROW>(t, entries, base, &tile, coefficients);
    for (int i = 0; blockIdx.y == 0 && i < tile.found_count; i++) {
      Span run = tile.found[i];
      if (run.end == base + t.run_tile + WARP)
        run.end = end_of_run(given, run.end, all, (uint64_t)(run.problem * t.groups + run.group));
      leave_group(given, run, (int)threadIdx.x % WARP, WARP, 0xffffffffu);
    }
    for (int64_t columns = blockIdx.y; columns < t.tiles; columns += gridDim.y)
      stream_runs<E, VE, NARROW, ADDS>(t, m, tile, coefficients, spot_of(t, m, columns, VE));
  }
}

} // namespace shf
#endif
