// terms.cuh: what a reduction keeps for a lane's columns: sums, products, extremes.
//
// Each is a term of the canonical tree: it starts empty, takes rows, folds in the terms behind it, is saved to a slot
// and loaded again, and in the end is stored as the group's result.
#ifndef SHF_CUDA_TERMS_CUH
#define SHF_CUDA_TERMS_CUH

#include "task.cuh"

namespace shf {

// Where a lane stands: its columns, and which group's.
struct Spot {
  int64_t column, tile;
  bool active; // the columns exist
  bool first;  // the lane that speaks for the whole row
};

// A slot: a head for every tile of columns, then the columns.
struct SlotHead {
  double weight;
  int64_t counted;            // entries; or the first place of an extreme
  unsigned long long arrived; // terms of the node that begins here (see arrive)
};
__host__ __device__ __forceinline__ int64_t slot_head_bytes(int64_t dim) { return (dim / 8 + 1) * sizeof(SlotHead); }

__device__ __forceinline__ SlotHead *slot_head(char *slot, int64_t tile) { return (SlotHead *)slot + tile; }

template <class A, int VE> __device__ __forceinline__ void store_acc(char *row, const Spot &at, int64_t dim, const A *x)
{
#pragma unroll
  for (int j = 0; j < VE; j++)
    if (at.column + j < dim) ((A *)row)[at.column + j] = x[j];
}

template <class A, int VE> __device__ __forceinline__ void load_acc(const char *row, const Spot &at, int64_t dim, A *x)
{
#pragma unroll
  for (int j = 0; j < VE; j++) x[j] = at.column + j < dim ? __ldcg((const A *)row + at.column + j) : A(0);
}

// ---- Sums ----

template <class E, int VE> struct Sum {
  typedef typename E::acc acc;
  typedef Sum Result;
  // USUAL: kernels are compiled for usual tasks, too. REPEATS: a row that comes again changes nothing.
  enum { TAKES_COEFFICIENTS = 1, USUAL = 1, REPEATS = 0 };
  acc v[VE], w; // w: weights that count for a mean
  int64_t counted;

  __device__ __forceinline__ void start()
  {
#pragma unroll
    for (int j = 0; j < VE; j++) v[j] = 0;
    w = 0;
    counted = 0;
  }
  // A hole arrives as zeros with a coefficient that is finite: adding it changes nothing.
  __device__ __forceinline__ void take(const Task &, const Columns<E, VE> &row, bool, acc coefficient, int)
  {
    acc x[VE];
    row.values(x);
#pragma unroll
    for (int j = 0; j < VE; j++) v[j] = fused(coefficient, x[j], v[j]);
  }
  __device__ __forceinline__ void fold(const Task &, const Sum &next)
  {
#pragma unroll
    for (int j = 0; j < VE; j++) v[j] += next.v[j];
  }
  __device__ __forceinline__ void fold_counts(const Sum &next)
  {
    w += next.w;
    counted += next.counted;
  }
  __device__ __forceinline__ void count(int64_t entries) { counted = entries; }
  __device__ __forceinline__ void weigh(acc weight) { w += weight; }
  __device__ __forceinline__ Sum widened(const Task &, int64_t, int64_t) const { return *this; }

  static __host__ __device__ int64_t slot_bytes(int64_t dim)
  {
    return slot_head_bytes(dim) + dim * (int64_t)sizeof(acc);
  }
  __device__ __forceinline__ void save(const Task &t, char *slot, const Spot &at) const
  {
    SlotHead *head = slot_head(slot, at.tile);
    if (at.first) head->weight = (double)w, head->counted = counted;
    store_acc<acc, VE>(slot + slot_head_bytes(t.dim), at, t.dim, v);
  }
  __device__ __forceinline__ void load(const Task &t, char *slot, const Spot &at)
  {
    const SlotHead *head = slot_head(slot, at.tile);
    w = (acc)__ldcg(&head->weight);
    counted = __ldcg((const long long *)&head->counted);
    load_acc<acc, VE>(slot + slot_head_bytes(t.dim), at, t.dim, v);
  }

  // Reads early what will be added to.
  __device__ __forceinline__ static void hold(const Task &t, int64_t problem, int64_t group, const Spot &at, acc *held)
  {
    if constexpr (!E::QUANTISED) {
      if (t.sink != SINK_ADD || !at.active) return;
      typedef typename E::cell cell;
      typedef typename Word<VE * sizeof(cell)>::type word;
      const char *row = target_row(t, t.target, problem, group, sizeof(cell));
      cell cells[VE];
      word bits = *(const word *)((const cell *)row + at.column); // alignment was checked for the target too
      memcpy(cells, &bits, sizeof bits);
#pragma unroll
      for (int j = 0; j < VE; j++) held[j] = E::value(cells[j]);
    }
  }

  __device__ __forceinline__ void finish(const Task &t, int64_t problem, int64_t group, int64_t length, const Spot &at,
                                         const acc *held) const
  {
    acc divisor = t.weighted ? w : (acc)counted, x[VE];
    char *row = target_row(t, t.target, problem, group, E::QUANTISED ? 1 : sizeof(typename E::cell));
    if (t.sink == SINK_COUNT) {
      if (at.first && at.tile == 0) *(acc *)row = divisor;
      return;
    }
    if (!at.active) return;
    bool empty = length == 0 || (t.sink == SINK_MEAN && counted == 0);
#pragma unroll
    for (int j = 0; j < VE; j++) {
      x[j] = v[j] + acc(0);
      if (t.sink == SINK_MEAN) x[j] = x[j] / divisor;
      if (t.sink == SINK_ADD) x[j] = held[j] + x[j];
      if (empty) x[j] = (acc)t.empty;
    }
    Out<E, VE>::store(row, at.column, t.dim, x, t.out_dtype, t.store_wide);
  }
};

// ---- Products, and for their gradient the number of zeros ----

template <class E, int VE> struct Prod {
  typedef typename E::acc acc;
  typedef Prod Result;
  enum { TAKES_COEFFICIENTS = 0, USUAL = 0, REPEATS = 0 };
  acc v[VE];
  int zeros[VE];

  __device__ __forceinline__ void start()
  {
#pragma unroll
    for (int j = 0; j < VE; j++) v[j] = 1, zeros[j] = 0;
  }
  __device__ __forceinline__ void take(const Task &t, const Columns<E, VE> &row, bool there, acc, int)
  {
    if (!there) return;
    acc x[VE];
    row.values(x);
#pragma unroll
    for (int j = 0; j < VE; j++) {
      bool zero = t.zero_as_one && x[j] == acc(0);
      zeros[j] += zero;
      v[j] = v[j] * (zero ? acc(1) : x[j]);
    }
  }
  // Only none, one or more than one zero matter.
  __device__ __forceinline__ void fold(const Task &, const Prod &next)
  {
#pragma unroll
    for (int j = 0; j < VE; j++) {
      v[j] = v[j] * next.v[j];
      zeros[j] = min(zeros[j] + next.zeros[j], 2);
    }
  }
  __device__ __forceinline__ void fold_counts(const Prod &) {}
  __device__ __forceinline__ void count(int64_t) {}
  __device__ __forceinline__ void weigh(acc) {}
  __device__ __forceinline__ Prod widened(const Task &, int64_t, int64_t) const { return *this; }

  static __host__ __device__ int64_t slot_bytes(int64_t dim)
  {
    return slot_head_bytes(dim) + dim * (int64_t)sizeof(acc) + dim * 4;
  }
  __device__ __forceinline__ void save(const Task &t, char *slot, const Spot &at) const
  {
    char *cells = slot + slot_head_bytes(t.dim);
    store_acc<acc, VE>(cells, at, t.dim, v);
    store_acc<int, VE>(cells + t.dim * (int64_t)sizeof(acc), at, t.dim, zeros);
  }
  __device__ __forceinline__ void load(const Task &t, char *slot, const Spot &at)
  {
    const char *cells = slot + slot_head_bytes(t.dim);
    load_acc<acc, VE>(cells, at, t.dim, v);
    load_acc<int, VE>(cells + t.dim * (int64_t)sizeof(acc), at, t.dim, zeros);
  }
  __device__ __forceinline__ static void hold(const Task &, int64_t, int64_t, const Spot &, acc *) {}

  __device__ __forceinline__ void finish(const Task &t, int64_t problem, int64_t group, int64_t length, const Spot &at,
                                         const acc *) const
  {
    if (!at.active) return;
    char *row = target_row(t, t.target, problem, group, sizeof(typename E::cell));
    acc x[VE];
#pragma unroll
    for (int j = 0; j < VE; j++) x[j] = length == 0 ? (acc)t.empty : v[j];
    if (t.sink != SINK_TERM) {
      Out<E, VE>::store(row, at.column, t.dim, x, t.out_dtype, t.store_wide);
      return;
    }
    store_acc<acc, VE>(row, at, t.dim, x);
#pragma unroll
    for (int j = 0; j < VE; j++) x[j] = (acc)zeros[j];
    store_acc<acc, VE>(t.counts.data + problem * t.counts.batch_stride + group * t.counts.row_stride, at, t.dim, x);
  }
};

// ---- Maxima and minima: the first NaN, else the first of the equal extremes; its place, or how many are equal ----

// A minimum is kept as the maximum of values whose sign is flipped. What is kept starts as -infinity at no place: the
// value is right then even if all are -infinity, and the place is the first one's.

template <class A> __device__ __forceinline__ bool same_value(A a, A b) { return a == b || (a != a && b != b); }

// A value that the compiler does not recognise: it would make a choice between two numbers a maximum, which has another
// NaN, and another zero where both are there.
__device__ __forceinline__ float disguised(float x)
{
  asm("" : "+f"(x));
  return x;
}
__device__ __forceinline__ double disguised(double x)
{
  asm("" : "+d"(x));
  return x;
}
template <class T> __device__ __forceinline__ T disguised(T x) { return x; }

// NAMES: places are kept; without, only values are.
template <class E, int VE, bool TIES, bool NAMES = true, class Position = int> struct Extreme {
  typedef typename E::acc acc;
  typedef typename E::best best;
  typedef Extreme<E, VE, TIES, NAMES, int64_t> Result;
  enum { TAKES_COEFFICIENTS = 0, USUAL = !TIES, REPEATS = !TIES };
  best v[VE];
  Position at_place[VE]; // or the number of equal ones
  Position first;        // place that is not a hole; -1: none

  __device__ __forceinline__ void start()
  {
#pragma unroll
    for (int j = 0; j < VE; j++) v[j] = E::lowest(), at_place[j] = TIES ? 0 : -1;
    first = -1;
  }
  // A candidate that lies behind all so far; `position` is its place, or how often it occurs.
  __device__ __forceinline__ void compete(int j, best x, Position position, bool there)
  {
    acc mine = E::value(v[j]), theirs = E::value(x);
    bool takes = there && !(theirs <= mine) && mine == mine;
    if (TIES && there && !takes && same_value(theirs, mine)) at_place[j] += position;
    v[j] = takes ? x : disguised(v[j]);
    if (NAMES) at_place[j] = takes ? position : at_place[j];
  }
  __device__ __forceinline__ void take(const Task &t, const Columns<E, VE> &row, bool there, acc, int place)
  {
    best x[VE];
    row.get(x);
#pragma unroll
    for (int j = 0; j < VE; j++) compete(j, flip_sign(x[j], t.least), TIES ? 1 : place, there);
    first = first < 0 && there ? place : first;
  }
  __device__ __forceinline__ void fold(const Task &, const Extreme &next)
  {
#pragma unroll
    for (int j = 0; j < VE; j++) compete(j, next.v[j], next.at_place[j], true);
    first = first < 0 ? next.first : first;
  }
  __device__ __forceinline__ void fold_counts(const Extreme &) {}
  __device__ __forceinline__ void count(int64_t) {}
  __device__ __forceinline__ void weigh(acc) {}
  // Places of a group become what arg holds.
  __device__ __forceinline__ Result widened(const Task &t, int64_t problem, int64_t entry) const
  {
    Result r;
    bool names = NAMES && !TIES && t.arg.data;
    r.first = names && first >= 0 ? id_of(t, problem, entry + first) : first;
#pragma unroll
    for (int j = 0; j < VE; j++) {
      r.v[j] = v[j];
      r.at_place[j] = at_place[j];
      if (names && at_place[j] >= 0) r.at_place[j] = id_of(t, problem, entry + at_place[j]);
    }
    return r;
  }

  static __host__ __device__ int64_t values_bytes(int64_t dim) { return (dim * (int64_t)sizeof(best) + 7) / 8 * 8; }
  static __host__ __device__ int64_t slot_bytes(int64_t dim)
  {
    return slot_head_bytes(dim) + values_bytes(dim) + dim * 8;
  }
  __device__ __forceinline__ void save(const Task &t, char *slot, const Spot &at) const
  {
    char *cells = slot + slot_head_bytes(t.dim);
    if (at.first) slot_head(slot, at.tile)->counted = first;
    store_acc<best, VE>(cells, at, t.dim, v);
    if (NAMES) store_acc<Position, VE>(cells + values_bytes(t.dim), at, t.dim, at_place);
  }
  __device__ __forceinline__ void load(const Task &t, char *slot, const Spot &at)
  {
    const char *cells = slot + slot_head_bytes(t.dim);
    first = (Position)__ldcg((const long long *)&slot_head(slot, at.tile)->counted);
    load_acc<best, VE>(cells, at, t.dim, v);
    if (NAMES) load_acc<Position, VE>(cells + values_bytes(t.dim), at, t.dim, at_place);
  }
  __device__ __forceinline__ static void hold(const Task &, int64_t, int64_t, const Spot &, acc *) {}

  __device__ __forceinline__ void store_arg(const Task &t, char *row, int64_t column, int64_t value) const
  {
    if (t.arg_wide)
      ((int64_t *)row)[column] = value;
    else
      ((int32_t *)row)[column] = (int32_t)value;
  }

  __device__ __forceinline__ void finish(const Task &t, int64_t problem, int64_t group, int64_t, const Spot &at,
                                         const acc *) const
  {
    if (!at.active) return;
    bool has = first >= 0;
    if (t.target.data) {
      char *row = target_row(t, t.target, problem, group, 1);
      acc x[VE];
      best exact[VE];
#pragma unroll
      for (int j = 0; j < VE; j++) {
        exact[j] = flip_sign(v[j], t.least);
        x[j] = has ? E::value(exact[j]) : (acc)t.empty;
      }
      if (t.target_is_acc)
        store_acc<acc, VE>(row, at, t.dim, x);
      else if (has)
        Out<E, VE>::store_best(row, at.column, t.dim, exact, t.out_dtype, t.store_wide);
      else
        Out<E, VE>::store(row, at.column, t.dim, x, t.out_dtype, t.store_wide);
    }
    char *arg = TIES                  ? t.counts.data + problem * t.counts.batch_stride + group * t.counts.row_stride
                : NAMES && t.arg.data ? t.arg.data + problem * t.arg.batch_stride + group * t.arg.row_stride
                                      : nullptr;
    if (!arg) return;
#pragma unroll
    for (int j = 0; j < VE; j++) {
      if (at.column + j >= t.dim) continue;
      if (TIES)
        ((acc *)arg)[at.column + j] = has ? (acc)at_place[j] : acc(0);
      else
        store_arg(t, arg, at.column + j, at_place[j] >= 0 ? (int64_t)at_place[j] : (int64_t)first);
    }
  }
};

} // namespace shf
#endif
