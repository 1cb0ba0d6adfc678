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

inline int power_of_two_from(int64_t n)
{
  int p = 1;
  while (p < n) p *= 2;
  return p;
}

// Threads that share a row of `dim` columns, VE each: as many as there are words, up to a warp. Wider rows are cut into
// tiles of so many lanes that few are idle.
inline int lanes_for(int64_t dim, int ve, int least)
{
  int64_t words = dim > 0 ? (dim + ve - 1) / ve : 1;
  int lanes = WARP;
  if (words <= WARP) {
    lanes = power_of_two_from(words);
    if (lanes > 8 && (words + 7) / 8 * 8 < lanes * 3 / 4 + 1) lanes = 8;
  } else {
    while (lanes > 8 && ((words + lanes - 1) / lanes * lanes - words) * 4 > words) lanes /= 2;
  }
  return lanes < least ? least : lanes;
}

inline int64_t tiles_for(int64_t dim, int ve, int lanes)
{
  int64_t words = dim > 0 ? (dim + ve - 1) / ve : 1;
  return (words + lanes - 1) / lanes;
}

inline dim3 grid_of(int64_t blocks, int64_t tiles)
{
  const int64_t most = 1 << 30;
  return dim3((unsigned)(blocks < most ? blocks : most), (unsigned)(tiles < 65535 ? tiles : 65535));
}

// How a task is divided. Groups go to teams of one rower each as long as that fills the device. Where it does not,
// several rowers share a group, down to the 16 places that are one term.
template <class E, int VE, class Op> size_t plan_launch(const Launcher &l, Task &t, int least_lanes)
{
  t.lanes = lanes_for(t.dim, VE, least_lanes);
  t.tiles = tiles_for(t.dim, VE, t.lanes);
  int rowers = BLOCK / t.lanes;
  t.stage_places = 8 * t.lanes < 16 ? 16 : 8 * t.lanes > 64 ? 64 : 8 * t.lanes;
  int64_t groups = t.groups * t.batch, entries = t.entries * t.batch, room = (int64_t)l.device.processors * 2048;
  t.split = 1;
  while (t.split < rowers && t.split < SHF_FAN_IN && groups * t.split * SHF_FAN_IN < entries &&
         groups * t.tiles * t.lanes * t.split * 2 <= room)
    t.split *= 2;
  t.chunk_split = 1;
  if (entries * t.lanes * t.tiles <= room * SHF_FAN_IN) t.chunk_split = rowers < SHF_FAN_IN ? rowers : (int)SHF_FAN_IN;
  // With few groups some are likely to be long: then many blocks look for them.
  t.candidates = groups < l.device.processors && t.slot_count < l.device.processors * WARP ? 2 : WARP / 2;
  t.chunk_blocks = (t.slot_count + t.candidates - 1) / t.candidates;
  bool shares = t.split > 1 || (t.slot_count > 0 && t.chunk_split > 1);
  return (size_t)(stage_bytes<E>(t, rowers * t.stage_places) + (shares ? BLOCK * (int64_t)sizeof(Op) : 0));
}

// Joins the long groups that a kernel has found itself.
template <class E, int VE, class Op> void launch_join(Launcher &l, const Task &t)
{
  int64_t blocks = (windows_for(t.entries * t.batch) + WARP - 1) / WARP;
  launch_next(l, join_groups<E, VE, Op>, grid_of(blocks, t.tiles), BLOCK, 0, t);
}

// The chunks of listed groups, and their join. Where nothing is long, as is usual, these find an empty list.
template <class E, int VE, class Op, bool RUNS> void launch_listed(Launcher &l, const Task &t)
{
  int rowers = BLOCK / t.lanes;
  int64_t blocks = (t.slot_count + rowers - 1) / rowers, most = (int64_t)l.device.processors * 8;
  dim3 grid = grid_of(blocks < most ? blocks : most, t.tiles),
       half = grid_of(blocks < most / 2 ? blocks : most / 2, t.tiles);
  size_t shared = (size_t)stage_bytes<E>(t, rowers * t.stage_places);
  launch_next(l, walk_chunks<E, VE, Op, RUNS>, grid, BLOCK, shared, t);
  if (t.entries * t.batch > FEW_CHUNKS * SHF_CHUNK || l.loading)
    launch_next(l, fold_slots<E, VE, Op>, half, BLOCK, 0, t);
  launch_next(l, join_groups<E, VE, Op>, half, BLOCK, 0, t);
}

template <class E, int VE, class Op> void launch_walk(Launcher &l, const Task &t)
{
  int rowers = BLOCK / t.lanes;
  int64_t groups = t.groups * t.batch;
  dim3 grid = grid_of((groups + rowers - 1) / rowers, t.tiles);
  size_t shared = (size_t)stage_bytes<E>(t, rowers * t.stage_places);
  if constexpr (Op::TAKES_COEFFICIENTS) {
    if (l.loading || has_coefficients(t)) launch(l, walk_groups<E, VE, Op, true, false>, grid, BLOCK, shared, t);
    bool is_short = t.sink == SINK_SUM && !has_coefficients(t) && t.entries * t.batch <= groups * 3;
    int64_t each = (int64_t)rowers * SHORT;
    dim3 fewer = grid_of((groups + each - 1) / each, t.tiles);
    if (l.loading || (is_short && is_usual(t))) launch(l, sum_short<E, VE, true>, fewer, BLOCK, shared, t);
    if (l.loading || (is_short && !is_usual(t))) launch(l, sum_short<E, VE, false>, fewer, BLOCK, shared, t);
    if (is_short && !l.loading) return;
    if (l.loading || is_usual(t)) launch(l, walk_groups<E, VE, Op, false, true>, grid, BLOCK, shared, t);
    if (is_usual(t) && !l.loading) return;
  }
  if (l.loading || !has_coefficients(t)) launch(l, walk_groups<E, VE, Op, false, false>, grid, BLOCK, shared, t);
}

// Little to do: one kernel, which finds long groups itself and lets several rowers share a group. Else rowers walk
// through the groups and list the long ones.
template <class E, int VE, class Op> void launch_groups(Launcher &l, Task t)
{
  size_t shared = plan_launch<E, VE, Op>(l, t, 2);
  int64_t groups = t.groups * t.batch, entries = t.entries * t.batch, room = (int64_t)l.device.processors * 2048;
  bool little = entries * t.lanes * t.tiles <= room * SHF_FAN_IN && t.split > 1;
  if (little || l.loading) {
    Task own = t;
    own.longs = nullptr;
    int teams = BLOCK / t.lanes / t.split;
    launch(l, reduce_groups<E, VE, Op>, grid_of(t.chunk_blocks + (groups + teams - 1) / teams, t.tiles), BLOCK, shared,
           own);
    if (t.slot_count > 0 || l.loading) launch_join<E, VE, Op>(l, own);
    if (!l.loading) return;
  }
  if (t.slot_count > 0) clear_memory(l, t.long_count, sizeof *t.long_count);
  launch_walk<E, VE, Op>(l, t);
  if (t.slot_count > 0 || l.loading) launch_listed<E, VE, Op, false>(l, t);
}

template <class E, int VE> void launch_runs(Launcher &l, Task t)
{
  typedef Sum<E, VE> Op;
  plan_launch<E, VE, Op>(l, t, t.columns ? 1 : 2);
  size_t tile = (size_t)stage_bytes<E>(t, 2 * RUN_TILE + SHF_FAN_IN);
  dim3 grid = grid_of((t.entries * t.batch + RUN_TILE - 1) / RUN_TILE, t.tiles);
  if (t.slot_count > 0 || l.loading) list_long_runs(l, t);
  bool plain = !has_coefficients(t), as_usual = is_usual(t);
  if (l.loading || as_usual) launch(l, walk_runs<E, VE, false, true>, grid, BLOCK, tile, t);
  if (l.loading || (plain && !as_usual)) launch(l, walk_runs<E, VE, false, false>, grid, BLOCK, tile, t);
  if (l.loading || !plain) launch(l, walk_runs<E, VE, true, false>, grid, BLOCK, tile, t);
  if (t.slot_count > 0 || l.loading) launch_listed<E, VE, Op, true>(l, t);
}

// Whether lanes may own WIDE columns: every row of every operand must be aligned for it.
template <class E> bool is_wide(const Task &t)
{
  enum { BYTES = E::WIDE * E::BITS / 8 };
  bool target = E::QUANTISED || t.target_is_acc || t.sink == SINK_COUNT || is_aligned(t.target, BYTES);
  return t.dim % E::WIDE == 0 && is_aligned(t.source, BYTES) && target;
}

// Whether results may be stored a word at a time.
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
    if (reduction == REDUCE_EXTREME) bytes = Extreme<E, 1, false, int64_t>::slot_bytes(dim);
    if constexpr (!E::QUANTISED)
      if (reduction == REDUCE_PROD) bytes = Prod<E, 1>::slot_bytes(dim);
    return shf_align64(bytes);
  }

  template <int VE> static void reduce_as(Launcher &l, Task t, Reduction reduction)
  {
    t.store_wide = stores_wide<E>(t, VE);
    if (reduction == REDUCE_EXTREME) {
      if (l.loading || !t.count_ties) launch_groups<E, VE, Extreme<E, VE, false>>(l, t);
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
    t.store_wide = 1;
    SHF_BY_WIDTH(E, l, !t.columns && is_wide<E>(t), (launch_runs<E, VE>(l, t)));
  }

  template <int VE> static void lookup_as(Launcher &l, Task t)
  {
    t.store_wide = stores_wide<E>(t, VE);
    t.lanes = lanes_for(t.dim, VE, 1);
    t.tiles = tiles_for(t.dim, VE, t.lanes);
    int rowers = BLOCK / t.lanes;
    launch(l, lookup_rows<E, VE>, grid_of((t.entries * t.batch + rowers - 1) / rowers, t.tiles), BLOCK, 0, t);
  }
  static void lookup(Launcher &l, Task t) { SHF_BY_WIDTH(E, l, is_wide<E>(t), (lookup_as<VE>(l, t))); }

  template <int VE> static void segment_grad_as(Launcher &l, SegmentGradTask t)
  {
    t.lanes = lanes_for(t.dim, VE, 1);
    t.tiles = tiles_for(t.dim, VE, t.lanes);
    int each = BLOCK / t.lanes * GRAD_ROWS;
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
