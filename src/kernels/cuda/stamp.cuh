// stamp.cuh: the kernels of one element type: how wide, how many threads, how many blocks, and the table of launchers.
#ifndef SHF_CUDA_STAMP_CUH
#define SHF_CUDA_STAMP_CUH

#include "cuda_impl.h"

namespace shf {

inline bool is_aligned(const shf_matrix &m, int64_t bytes)
{
  return !m.data ||
         (((uintptr_t)m.data | (uintptr_t)m.row_stride | (uintptr_t)m.batch_stride) & (uintptr_t)(bytes - 1)) == 0;
}

inline int bits_of(int64_t n) // the least whose power of two is not below n
{
  int bits = 0;
  while (1ll << bits < n) bits++;
  return bits;
}

// How many threads share a row of `dim` columns, VE each (as a power of two): as many as there are words, up to a warp.
// Wider rows are cut into tiles of so many lanes that few are idle.
inline int lane_bits_for(int64_t dim, int ve, int least)
{
  int64_t words = dim > 0 ? (dim + ve - 1) / ve : 1;
  int bits = 5;
  if (words <= WARP) {
    bits = bits_of(words);
    if (bits > 3 && (words + 7) / 8 * 8 < (3 << bits) / 4 + 1) bits = 3;
  } else {
    while (bits > 3 && (((words - 1 + (1 << bits)) >> bits << bits) - words) * 4 > words) bits--;
  }
  return bits < least ? least : bits;
}

inline int64_t tiles_for(int64_t dim, int ve, int lane_bits)
{
  int64_t words = dim > 0 ? (dim + ve - 1) / ve : 1;
  return (words + (1 << lane_bits) - 1) >> lane_bits;
}

inline dim3 grid_of(int64_t blocks, int64_t tiles)
{
  const int64_t most = 1 << 30;
  return dim3((unsigned)(blocks < most ? blocks : most), (unsigned)(tiles < 65535 ? tiles : 65535));
}

// How a task is divided. Groups go to teams of one rower each as long as that fills the device. Where it does not,
// several rowers share a group, down to the 16 places that are one term.
inline void plan_launch(const Launcher &l, Task &t, int ve, int least_bits)
{
  t.lane_bits = lane_bits_for(t.dim, ve, least_bits);
  t.tiles = tiles_for(t.dim, ve, t.lane_bits);
  int rower_bits = BLOCK_BITS - t.lane_bits, places = 8 << t.lane_bits, most_bits = rower_bits < 4 ? rower_bits : 4;
  t.stage_places = places < 16 ? 16 : places > 64 ? 64 : places;
  int64_t groups = t.groups * t.batch, entries = t.entries * t.batch, room = (int64_t)l.device.processors * 2048;
  t.split_bits = 0;
  while (t.split_bits < most_bits && (groups << t.split_bits) * SHF_FAN_IN < entries &&
         (groups * t.tiles << (t.lane_bits + t.split_bits + 1)) <= room)
    t.split_bits++;
  // A chunk is one rower's, as long as there can be enough of them.
  bool little = (entries * t.tiles << t.lane_bits) <= room * SHF_FAN_IN;
  t.chunk_bits = little ? most_bits : 0;
}

// Little to do: teams share groups. (So much that each rower there is room for has 16 rows.)
inline bool is_little(const Task &t) { return t.split_bits > 0 && t.chunk_bits > 0; }

// Shared memory of rowers that walk alone; of teams, each rower has sixteen places and each thread a term.
template <class E> size_t walk_bytes(const Task &t, bool narrow)
{
  return (size_t)stage_bytes<E>(t, narrow, (WALKERS >> t.lane_bits) * t.stage_places);
}
template <class E, class Op> size_t team_bytes(const Task &t, bool narrow)
{
  return (size_t)(stage_bytes<E>(t, narrow, (BLOCK >> t.lane_bits) * SHF_FAN_IN) + BLOCK * (int64_t)sizeof(Op));
}

// Of a processor: alone, or beside the streams of short groups, which need registers too. Bytes of a block.
enum { CHUNK_BLOCKS = 8, CHUNK_BLOCKS_IN_ORDER = 5, CHUNK_BLOCKS_BY_PAYLOAD = 4, CHUNK_ROOM = 16 << 10 };

// The kernels that are compiled for usual tasks, and those for the rest. Only whole words are usual.
template <class E, int VE> bool is_usual_here(const Task &t) { return VE == E::WIDE && is_usual(t); }

// Runs `call` with USUAL being how the task is decoded, if it is usual; while loading, for each way.
#define SHF_BY_DECODE(E, VE, l, t, call)                                                 \
  do {                                                                                   \
    bool as_usual = is_usual_here<E, VE>(t);                                             \
    if constexpr (VE == E::WIDE) {                                                       \
      if ((l).loading ? t.decode == BY_INDEX : as_usual && t.decode == BY_INDEX) {       \
        enum { USUAL = BY_INDEX };                                                       \
        call;                                                                            \
      }                                                                                  \
      if constexpr (!E::QUANTISED) {                                                     \
        if ((l).loading ? t.decode == IN_ORDER : as_usual && t.decode == IN_ORDER) {     \
          enum { USUAL = IN_ORDER };                                                     \
          call;                                                                          \
        }                                                                                \
        if ((l).loading ? t.decode == BY_PAYLOAD : as_usual && t.decode == BY_PAYLOAD) { \
          enum { USUAL = BY_PAYLOAD };                                                   \
          call;                                                                          \
        }                                                                                \
      }                                                                                  \
    }                                                                                    \
    if ((l).loading || !as_usual) {                                                      \
      enum { USUAL = NOT_USUAL };                                                        \
      call;                                                                              \
    }                                                                                    \
  } while (0)

// The chunks that were listed, by as many rowers as fill the device. Places of a whole chunk are decoded at once, where
// there is room, so that loads never run dry.
template <class E, int VE, class Op, int USUAL> void launch_listed(Launcher &l, Task t, int each)
{
  int64_t rowers = WALKERS >> t.lane_bits, most = (int64_t)l.device.processors * each;
  t.stage_places = SHF_CHUNK;
  while (t.stage_places > SHF_FAN_IN && walk_bytes<E>(t, USUAL >= 0) > CHUNK_ROOM) t.stage_places /= 2;
  int64_t wanted = (t.list.most + t.list.room[0] + rowers - 1) / rowers, blocks = wanted < most ? wanted : most;
  launch(l, walk_chunks<E, VE, Op, USUAL>, grid_of(blocks, 1), WALKERS, walk_bytes<E>(t, USUAL >= 0), t);
}

// The chunks that are looked for, where there are not many.
template <class E, int VE, class Op, int USUAL> void launch_sought(Launcher &l, const Task &t)
{
  int64_t pairs = t.slot_count / 2, most = (int64_t)l.device.processors * 2;
  launch(l, share_chunks<E, VE, Op, USUAL>, grid_of(pairs < most ? pairs : most, t.tiles), BLOCK,
         team_bytes<E, Op>(t, USUAL >= 0), t);
}

template <class E, int VE, class Op, int USUAL> void launch_walk(Launcher &l, Task t)
{
  int64_t rowers = WALKERS >> t.lane_bits, groups = t.groups * t.batch;
  bool sums_short = Op::TAKES_COEFFICIENTS && USUAL >= 0 && t.sink == SINK_SUM && t.entries <= groups * 3;
  bool streams = (USUAL == IN_ORDER || USUAL == BY_PAYLOAD) && !sums_short && groups > 0;
  bool leaves = t.slot_count > 0 && groups > 0, seeks = leaves && !t.awaits && t.chunk_bits > 0;
  bool lists = streams || (leaves && !seeks);
  if (seeks) t.list = LongList();
  if (lists && !t.awaits) empty_list(l, t.list);
  auto send = [&](bool wanted, void (*kernel)(Task), int64_t each, int threads, size_t shared) {
    if (l.loading || wanted) launch(l, kernel, grid_of((groups + each - 1) / each, t.tiles), threads, shared, t);
  };
  if constexpr (Op::TAKES_COEFFICIENTS && USUAL >= 0) {
    int64_t teams = SHORT_WALKERS >> t.lane_bits;
    send(sums_short, sum_short<E, VE, USUAL>, teams * SHORT_GROUPS, SHORT_WALKERS, (size_t)teams * sizeof(ShortGroups));
  }
  if constexpr (USUAL == IN_ORDER || USUAL == BY_PAYLOAD) {
    if (l.loading || streams) {
      bool few = groups < l.device.processors * STREAM_BLOCKS * rowers * STREAM_GROUPS;
      int beside = USUAL == IN_ORDER ? CHUNK_BLOCKS_IN_ORDER : CHUNK_BLOCKS_BY_PAYLOAD;
      list_long(l, t, STREAM_LONGEST);
      launch_listed<E, VE, Op, USUAL>(l, t, few ? (int)CHUNK_BLOCKS : beside);
    }
    send(streams, stream_groups<E, VE, Op, USUAL>, rowers * STREAM_GROUPS, WALKERS, (size_t)rowers * sizeof(Stream));
  }
  if constexpr (USUAL == BY_INDEX && Op::TAKES_COEFFICIENTS) {
    auto sum = [&](int lane_bits, void (*kernel)(Task)) {
      send(!sums_short && t.lane_bits == lane_bits, kernel, WALKERS >> lane_bits, WALKERS, 0);
    };
    sum(1, sum_bags<E, VE, 1>);
    sum(2, sum_bags<E, VE, 2>);
    sum(3, sum_bags<E, VE, 3>);
    sum(4, sum_bags<E, VE, 4>);
    sum(5, sum_bags<E, VE, 5>);
  } else if constexpr (USUAL == BY_INDEX || USUAL == NOT_USUAL) {
    send(true, walk_groups<E, VE, Op, (USUAL < 0 && Op::TAKES_COEFFICIENTS), USUAL>, rowers, WALKERS,
         walk_bytes<E>(t, USUAL >= 0));
  }
  if (l.loading || (lists && !streams)) launch_listed<E, VE, Op, USUAL>(l, t, CHUNK_BLOCKS);
  if (seeks && !l.loading) launch_sought<E, VE, Op, USUAL>(l, t);
}

// Sums of bags that may well be of one length: few of them, or many of one row. Returns whether it has launched them.
template <class E, int VE> bool launch_guessed(Launcher &l, Task t)
{
  bool little = is_little(t), seeks = t.slot_count == 0 || t.chunk_bits > 0;
  bool guessed = t.sink == SINK_SUM && t.guess_length > 0 && t.guess_length <= SHF_CHUNK && t.groups > 0 && seeks &&
                 t.lane_bits >= LEAST_GUESS_BITS && t.tiles <= 65535 && (little || t.guess_length == 1);
  guessed = guessed && t.dim <= UINT32_MAX && t.slot_bytes <= UINT32_MAX;
  if (!guessed && !l.loading) return false;
  bool leaves = t.slot_count > 0 && !l.loading;
  GuessTask p = guess_task_of(t, leaves ? new_mark(l) : 0);
  int64_t each = little ? BLOCK >> t.lane_bits >> t.split_bits : (ONES_BLOCK >> t.lane_bits) * ONES;
  dim3 grid = grid_of((t.groups + each - 1) / each, t.tiles);
  auto send = [&](int lane_bits, void (*few)(GuessTask), void (*ones)(GuessTask)) {
    if (l.loading || (t.lane_bits == lane_bits && little)) launch(l, few, grid, BLOCK, 0, p);
    if (l.loading || (t.lane_bits == lane_bits && !little)) launch(l, ones, grid, ONES_BLOCK, 0, p);
  };
  send(3, sum_few<E, VE, 3>, sum_ones<E, VE, 3>);
  send(4, sum_few<E, VE, 4>, sum_ones<E, VE, 4>);
  send(5, sum_few<E, VE, 5>, sum_ones<E, VE, 5>);
  if (leaves && !p.mark) launch_sought<E, VE, Sum<E, VE>, BY_INDEX>(l, t);
  return !l.loading;
}

template <class E, int VE, class Op, int USUAL> void launch_groups_as(Launcher &l, Task t)
{
  if constexpr (USUAL == BY_INDEX && Op::TAKES_COEFFICIENTS)
    if (launch_guessed<E, VE>(l, t)) return;
  bool little = is_little(t);
  if (little || l.loading) {
    int64_t teams = BLOCK >> (t.lane_bits + t.split_bits), groups = t.groups * t.batch;
    dim3 grid = grid_of((groups + teams - 1) / teams, t.tiles);
    auto share = [&](bool wanted, void (*kernel)(Task)) {
      if (l.loading || wanted) launch(l, kernel, grid, BLOCK, team_bytes<E, Op>(t, USUAL >= 0), t);
    };
    if constexpr (USUAL >= 0 && Op::TAKES_COEFFICIENTS) { // fewer registers only where blocks would wait otherwise
      int64_t blocks = (int64_t)grid.x * grid.y, processors = l.device.processors;
      share(blocks <= processors * 2, share_groups<E, VE, Op, USUAL, 2>);
      share(blocks > processors * 2 && blocks <= processors * 3, share_groups<E, VE, Op, USUAL, 3>);
      share(blocks > processors * 3, share_groups<E, VE, Op, USUAL, 4>);
    } else {
      share(true, share_groups<E, VE, Op, USUAL, 2>);
    }
    launch_sought<E, VE, Op, USUAL>(l, t);
  }
  if (!little || l.loading) launch_walk<E, VE, Op, USUAL>(l, t);
}

template <class E, int VE, class Op> void launch_groups(Launcher &l, Task t)
{
  plan_launch(l, t, VE, 1);
  if constexpr (Op::USUAL)
    SHF_BY_DECODE(E, VE, l, t, (launch_groups_as<E, VE, Op, USUAL>(l, t)));
  else
    launch_groups_as<E, VE, Op, NOT_USUAL>(l, t);
}

// The rows that are added come again and again. Where they do not fit the cache, columns are taken part by part, so
// that what there is of one part does; but no less than 256 bytes of a row, or memory would be slower.
inline void keep_in_cache(const Launcher &l, Task &t, int ve, int64_t cell_bytes)
{
  int64_t rows = (t.bags > 0 ? t.bags : t.entries) * t.batch;
  if (rows * 2 > t.entries * t.batch || has_coefficients(t)) return; // most come once; or finding them takes too long
  while (t.lane_bits > 0 && (ve * cell_bytes << t.lane_bits) > 256 &&
         rows * (ve * cell_bytes << t.lane_bits) > l.device.cache / 2)
    t.lane_bits--;
  t.tiles = tiles_for(t.dim, ve, t.lane_bits);
}

template <class E, int VE> void launch_runs(Launcher &l, Task t)
{
  typedef Sum<E, VE> Op;
  plan_launch(l, t, VE, t.columns ? 0 : 1);
  if (VE == E::WIDE) keep_in_cache(l, t, VE, sizeof(typename E::cell));
  bool plain = !has_coefficients(t) && !t.by_frequency, as_usual = is_usual_here<E, VE>(t);
  int64_t entries = t.entries * t.batch;
  t.run_tile = entries / RUN_TILE < (int64_t)l.device.processors * 2048 / WARP ? (int)SMALL_RUN_TILE : (int)RUN_TILE;
  int64_t each = t.run_tile * RUN_WARPS;
  dim3 grid = grid_of((entries + each - 1) / each, t.tiles);
  if (!t.awaits) empty_list(l, t.list);
  auto send = [&](bool usual, bool with_coefficients, bool adds, void (*kernel)(Task)) {
    if (l.loading || (usual == as_usual && with_coefficients == !plain && adds == (t.sink == SINK_ADD)))
      launch(l, kernel, grid, RUN_WARPS * WARP, 0, t);
  };
  if constexpr (VE == E::WIDE) {
    send(true, false, false, walk_runs<E, VE, false, false, BY_GRADIENT>);
    send(true, false, true, walk_runs<E, VE, false, true, BY_GRADIENT>);
  }
  send(false, false, false, walk_runs<E, VE, false, false, NOT_USUAL>);
  send(false, false, true, walk_runs<E, VE, false, true, NOT_USUAL>);
  send(false, true, false, walk_runs<E, VE, true, false, NOT_USUAL>);
  send(false, true, true, walk_runs<E, VE, true, true, NOT_USUAL>);
  if constexpr (VE == E::WIDE)
    if (l.loading || as_usual) launch_listed<E, VE, Op, BY_GRADIENT>(l, t, CHUNK_BLOCKS);
  if (l.loading || !as_usual) launch_listed<E, VE, Op, NOT_USUAL>(l, t, CHUNK_BLOCKS);
}

// Whether lanes may own WIDE columns: every row of every operand must be aligned for it.
template <class E> bool is_wide(const Task &t)
{
  enum { BYTES = E::WIDE * E::BITS / 8 };
  bool target = E::QUANTISED || t.target_is_acc || t.sink == SINK_COUNT || is_aligned(t.target, BYTES);
  return t.dim % E::WIDE == 0 && is_aligned(t.source, BYTES) && target;
}

// Whether the results of quantised rows may be stored a word at a time; others always may (see Out).
template <class E> bool stores_wide(const Task &t, int ve)
{
  if (!E::QUANTISED) return true;
  int64_t bytes = ve * (t.out_dtype == SHEAF_F32 ? 4 : 2);
  return t.dim % ve == 0 && is_aligned(t.target, bytes > 16 ? 16 : bytes);
}

// Runs `call` for the width that fits; while loading, for both.
#define SHF_BY_WIDTH(E, l, wide, call) \
  do {                                 \
    if ((l).loading || (wide)) {       \
      enum { VE = E::WIDE };           \
      call;                            \
    }                                  \
    if ((l).loading || !(wide)) {      \
      enum { VE = E::NARROW };         \
      call;                            \
    }                                  \
  } while (0)

template <class E> struct Stamp {
  static int64_t slot_bytes(Reduction reduction, int64_t dim)
  {
    int64_t bytes = Sum<E, 1>::slot_bytes(dim);
    if (reduction == REDUCE_EXTREME) bytes = Extreme<E, 1, false, true, int64_t>::slot_bytes(dim);
    if constexpr (!E::QUANTISED)
      if (reduction == REDUCE_PROD) bytes = Prod<E, 1>::slot_bytes(dim);
    return shf_align64(bytes);
  }

  template <int VE> static void reduce_as(Launcher &l, Task t, Reduction reduction)
  {
    t.store_wide = stores_wide<E>(t, VE);
    if (reduction == REDUCE_EXTREME) {
      bool names = t.arg.data != nullptr;
      if (l.loading || (!t.count_ties && names)) launch_groups<E, VE, Extreme<E, VE, false>>(l, t);
      if (l.loading || (!t.count_ties && !names)) launch_groups<E, VE, Extreme<E, VE, false, false>>(l, t);
      if constexpr (!E::QUANTISED)
        if (l.loading || t.count_ties) launch_groups<E, VE, Extreme<E, VE, true>>(l, t);
    } else if (reduction == REDUCE_SUM) {
      launch_groups<E, VE, Sum<E, VE>>(l, t);
    } else {
      if constexpr (!E::QUANTISED) launch_groups<E, VE, Prod<E, VE>>(l, t);
    }
  }

  static void reduce(Launcher &l, Task t, Reduction reduction)
  {
    SHF_BY_WIDTH(E, l, is_wide<E>(t), (reduce_as<VE>(l, t, reduction)));
  }

  static void runs(Launcher &l, Task t)
  {
    SHF_BY_WIDTH(E, l, !t.columns && is_wide<E>(t), (launch_runs<E, VE>(l, t)));
  }

  template <int VE> static void lookup_as(Launcher &l, Task t)
  {
    t.store_wide = stores_wide<E>(t, VE);
    t.lane_bits = lane_bits_for(t.dim, VE, 0);
    t.tiles = tiles_for(t.dim, VE, t.lane_bits);
    int rowers = BLOCK >> t.lane_bits;
    launch(l, lookup_rows<E, VE>, grid_of((t.entries * t.batch + rowers - 1) / rowers, t.tiles), BLOCK, 0, t);
  }
  static void lookup(Launcher &l, Task t) { SHF_BY_WIDTH(E, l, is_wide<E>(t), (lookup_as<VE>(l, t))); }

  template <int VE> static void segment_grad_as(Launcher &l, SegmentGradTask t)
  {
    t.lane_bits = lane_bits_for(t.dim, VE, 0);
    t.tiles = tiles_for(t.dim, VE, t.lane_bits);
    int each = (BLOCK >> t.lane_bits) * GRAD_ROWS;
    dim3 grid = grid_of((t.entries + each - 1) / each, t.tiles);
    grid.z = (unsigned)(t.batch < 65535 ? t.batch : 65535);
    auto send = [&](SegmentGrad kind, void (*kernel)(SegmentGradTask)) {
      if (l.loading || t.kind == kind) launch(l, kernel, grid, BLOCK, 0, t);
    };
    send(GRAD_MEAN, shf::segment_grad<E, VE, GRAD_MEAN>);
    send(GRAD_ARG, shf::segment_grad<E, VE, GRAD_ARG>);
    send(GRAD_TIES, shf::segment_grad<E, VE, GRAD_TIES>);
    send(GRAD_PROD, shf::segment_grad<E, VE, GRAD_PROD>);
  }
  static void segment_grad(Launcher &l, SegmentGradTask t)
  {
    bool wide = t.dim % E::WIDE == 0 && is_aligned(t.grad_out, 16) && is_aligned(t.target, 16) &&
                (t.kind == GRAD_MEAN || t.kind == GRAD_ARG || is_aligned(t.data, 16));
    SHF_BY_WIDTH(E, l, wide, (segment_grad_as<VE>(l, t)));
  }

  template <int VE> static void weights_grad_as(Launcher &l, WeightsGradTask t)
  {
    int each = BLOCK / (16 / VE);
    int64_t all = t.task.entries * t.task.batch;
    launch(l, shf::weights_grad<E, VE>, grid_of((all + each - 1) / each, 1), BLOCK, 0, t);
  }
  static void weights_grad(Launcher &l, WeightsGradTask t)
  {
    bool wide = t.task.dim % E::WIDE == 0 && is_aligned(t.task.source, 16) && is_aligned(t.grad_out, 16) &&
                (!t.mean || is_aligned(t.forward, 16));
    SHF_BY_WIDTH(E, l, wide, (weights_grad_as<VE>(l, t)));
  }
};

// The table of one element type, which its file defines.
#define SHF_STAMP(E, name)                                                                                   \
  const Kernels kernels_##name = {sizeof(E::acc), sizeof(E::cell), Stamp<E>::slot_bytes,   Stamp<E>::reduce, \
                                  Stamp<E>::runs, nullptr,         Stamp<E>::segment_grad, Stamp<E>::weights_grad};
#define SHF_STAMP_QUANTISED(E, name) \
  const Kernels kernels_##name = {   \
      sizeof(E::acc), 1, Stamp<E>::slot_bytes, Stamp<E>::reduce, nullptr, Stamp<E>::lookup, nullptr, nullptr};

} // namespace shf
#endif
