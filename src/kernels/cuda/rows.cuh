// rows.cuh: what works row by row: lookups of quantised rows, gradients of segments and of per-sample weights.
// (Plain lookups copy bits and need no element type: copy_rows in common.cu.)
#ifndef SHF_CUDA_ROWS_CUH
#define SHF_CUDA_ROWS_CUH

#include "rower.cuh"

namespace shf {

// ---- Lookup of quantised rows ----

template <class E, int VE> __global__ void __launch_bounds__(BLOCK) lookup_rows(const __grid_constant__ Task t)
{
  begin_kernel();
  Team m = team_of(t.lane_bits, 0);
  int rowers = BLOCK >> t.lane_bits;
  int64_t all = t.entries * t.batch;
  for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
    Spot at = spot_of(t, m, tile, VE);
    for (int64_t n = (int64_t)blockIdx.x * rowers + m.number; n < all; n += (int64_t)gridDim.x * rowers) {
      int64_t problem = t.batch > 1 ? n / t.entries : 0;
      Place<E> p = decode_index<E>(t, problem, n);
      Columns<E, VE> row;
      row.clear();
      if (!at.active) continue;
      if (p.ref >= 0) row.fetch(t.source.data + p.ref, at.column, t.dim);
      typename E::acc x[VE];
      row.values(x);
      char *to = t.target.data + problem * t.target.batch_stride + (n - problem * t.entries) * t.target.row_stride;
      Out<E, VE>::store(to, at.column, t.dim, x, t.out_dtype, t.store_wide);
    }
  }
}

// ---- Gradients of segments ----

enum SegmentGrad { GRAD_MEAN, GRAD_ARG, GRAD_TIES, GRAD_PROD };

struct SegmentGradTask {
  int64_t dim, entries, groups, batch;
  shf_matrix ids, data, grad_out, arg, target;
  shf_matrix forward, counts; // acc rows; mean: int64 starts, S + 1 per problem, or rows per segment
  int ids_wide, arg_wide, counts_are_starts;
  SegmentGrad kind;
  int lane_bits;
  int64_t tiles;
};

__device__ __forceinline__ const char *row_of(const shf_matrix &m, int64_t problem, int64_t row)
{
  return m.data + problem * m.batch_stride + row * m.row_stride;
}

template <class E, SegmentGrad kind>
__device__ __forceinline__ typename E::acc grad_of(typename E::acc g, typename E::acc x, typename E::acc forward,
                                                   typename E::acc count)
{
  typedef typename E::acc acc;
  if (kind == GRAD_MEAN) return g / count;
  if (kind == GRAD_TIES) return same_value(x, forward) ? g / count : acc(0);
  if (count == acc(0)) return g * (forward / x);
  return count == acc(1) && x == acc(0) ? g * forward : acc(0);
}

// Rows of segment `id`, which one data row needs.
template <class E, int VE, SegmentGrad KIND>
__device__ __forceinline__ void segment_grad_row(const SegmentGradTask &t, int64_t problem, int64_t n, int64_t id,
                                                 const Spot &at, char *to)
{
  typedef typename E::acc acc;
  Columns<E, VE> gradient, data;
  data.clear();
  gradient.fetch(row_of(t.grad_out, problem, id), at.column, t.dim);
  if (KIND == GRAD_ARG) {
    typename E::cell cells[VE];
    gradient.get(cells);
    const char *arg = row_of(t.arg, problem, id);
#pragma unroll
    for (int j = 0; j < VE; j++)
      if (at.column + j < t.dim && load_index(arg, at.column + j, t.arg_wide) != n) cells[j] = typename E::cell(0);
    store_cells<typename E::cell, VE>(to, at.column, t.dim, cells, true);
    return;
  }
  acc g[VE], x[VE], forward[VE], counts[VE];
  gradient.values(g);
  if (KIND == GRAD_MEAN) {
    const long long *counted = (const long long *)(t.counts.data + problem * t.counts.batch_stride) + id;
    acc count = (acc)(t.counts_are_starts ? __ldg(counted + 1) - __ldg(counted) : __ldg(counted));
#pragma unroll
    for (int j = 0; j < VE; j++) counts[j] = count, forward[j] = 0;
  } else {
    data.fetch(row_of(t.data, problem, n), at.column, t.dim);
#pragma unroll
    for (int j = 0; j < VE; j++) {
      bool there = at.column + j < t.dim;
      forward[j] = there ? __ldg((const acc *)row_of(t.forward, problem, id) + at.column + j) : acc(0);
      counts[j] = there ? __ldg((const acc *)row_of(t.counts, problem, id) + at.column + j) : acc(0);
    }
  }
  data.values(x);
#pragma unroll
  for (int j = 0; j < VE; j++) g[j] = grad_of<E, KIND>(g[j], x[j], forward[j], counts[j]);
  Out<E, VE>::store(to, at.column, t.dim, g, 0, true);
}

enum { GRAD_ROWS = 4 }; // rows of one rower

template <class E, int VE, SegmentGrad KIND>
__global__ void __launch_bounds__(BLOCK) segment_grad(const __grid_constant__ SegmentGradTask t)
{
  begin_kernel();
  Team m = team_of(t.lane_bits, 0);
  int rowers = BLOCK >> t.lane_bits;
  for (int64_t problem = blockIdx.z; problem < t.batch; problem += gridDim.z)
    for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
      Spot at;
      at.column = (tile * m.lanes + m.lane) * VE;
      if (at.column >= t.dim) continue;
      const char *ids = t.ids.data + problem * t.ids.batch_stride;
      int64_t first = (int64_t)blockIdx.x * rowers * GRAD_ROWS + m.number;
      int64_t id[GRAD_ROWS];
#pragma unroll
      for (int i = 0; i < GRAD_ROWS; i++)
        id[i] = first + i * rowers < t.entries ? load_index(ids, first + i * rowers, t.ids_wide) : -1;
#pragma unroll
      for (int i = 0; i < GRAD_ROWS; i++) {
        int64_t n = first + i * rowers;
        if (n >= t.entries) break;
        char *to = (char *)row_of(t.target, problem, n);
        if ((uint64_t)id[i] < (uint64_t)t.groups) {
          segment_grad_row<E, VE, KIND>(t, problem, n, id[i], at, to);
          continue;
        }
        typename E::cell zeros[VE];
        memset(zeros, 0, sizeof zeros);
        store_cells<typename E::cell, VE>(to, at.column, t.dim, zeros, true);
      }
    }
}

// ---- Gradient of per-sample weights ----

// The canonical dot product has 16 lanes; here 16 / VE threads hold VE of them each. Afterwards the halves are added
// through shared values: lane j takes lane j + 8, then j + 4, and so on.
template <class E, int VE> __device__ __forceinline__ typename E::acc join_dot(typename E::acc *lane, unsigned mask)
{
  enum { THREADS = 16 / VE };
  for (int half = 8; half > 0; half /= 2) {
    if (half >= VE) {
#pragma unroll
      for (int j = 0; j < VE; j++) lane[j] += __shfl_down_sync(mask, lane[j], half / VE, THREADS);
    } else {
#pragma unroll
      for (int j = 0; j < VE / 2; j++)
        if (j < half) lane[j] += lane[j + half];
    }
  }
  return lane[0] + typename E::acc(0);
}

struct WeightsGradTask {
  Task task; // indices, table (source), weights' gradient (target), divisors where it is a mean
  shf_matrix grad_out, forward;
  int mean;
};

template <class E, int VE>
__global__ void __launch_bounds__(BLOCK) weights_grad(const __grid_constant__ WeightsGradTask w)
{
  begin_kernel();
  typedef typename E::acc acc;
  enum { THREADS = 16 / VE };
  const Task &t = w.task;
  int lane = (int)threadIdx.x % THREADS, warp_lane = (int)threadIdx.x % WARP;
  unsigned mask = (THREADS == WARP ? 0xffffffffu : (1u << THREADS) - 1) << (warp_lane / THREADS * THREADS);
  int64_t all = t.entries * t.batch, step = (int64_t)gridDim.x * (BLOCK / THREADS);
  for (int64_t k = (int64_t)blockIdx.x * (BLOCK / THREADS) + threadIdx.x / THREADS; k < all; k += step) {
    int64_t problem = t.batch > 1 ? k / t.entries : 0, local = k - problem * t.entries;
    Place<E> p = decode_index<E>(t, problem, k);
    typename E::cell *to = (typename E::cell *)(t.target.data + problem * t.target.batch_stride) + local;
    if (p.ref < 0) {
      if (lane == 0) *to = E::round(acc(0));
      continue;
    }
    int64_t g = t.bag_length > 0 ? k / t.bag_length : group_holding(t, k);
    int64_t bag = g - problem * t.groups;
    bag = bag < 0 ? 0 : bag >= t.groups ? t.groups - 1 : bag; // offsets that are out of order can lead anywhere
    const char *gradient = row_of(w.grad_out, problem, bag), *row = t.source.data + p.ref;
    const char *shift = w.mean ? row_of(w.forward, problem, bag) : nullptr;
    acc sums[VE];
#pragma unroll
    for (int j = 0; j < VE; j++) sums[j] = 0;
#pragma unroll 4
    for (int64_t column = lane * VE; column < t.dim; column += 16) {
      Columns<E, VE> a, b, c;
      acc x[VE], y[VE], z[VE];
      a.fetch(gradient, column, t.dim);
      b.fetch(row, column, t.dim);
      a.values(x);
      b.values(y);
      if (shift) {
        c.fetch(shift, column, t.dim);
        c.values(z);
      }
#pragma unroll
      for (int j = 0; j < VE; j++) {
        if (shift) y[j] = y[j] - z[j];
        sums[j] = fused(x[j], y[j], sums[j]);
      }
    }
    acc dot = join_dot<E, VE>(sums, mask);
    if (w.mean) dot = dot / ((const acc *)t.divisors)[problem * t.groups + bag];
    if (lane == 0) *to = E::round(dot);
  }
}

} // namespace shf
#endif
