// ranks.cu: what tensors spread over ranks need on a device besides the ops: parts of arrays moved and folded into each
// other, element types changed, rows divided.
#include "cuda_impl.h"
#include "element.cuh"

namespace shf {

enum { THREADS = 256, MOST_BLOCKS = 1 << 20 };

static unsigned blocks_for(int64_t items)
{
  int64_t blocks = (items + THREADS - 1) / THREADS;
  return (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
}

// ---- Folding ----

struct Store {
  template <class T> static __device__ T apply(T, T b) { return b; }
};
struct Add {
  template <class T> static __device__ T apply(T a, T b) { return a + b; }
};
struct Multiply {
  template <class T> static __device__ T apply(T a, T b) { return a * b; }
};
// A NaN that is there stays; otherwise a larger (smaller) value or a NaN takes its place.
struct Largest {
  template <class T> static __device__ T apply(T a, T b) { return a != a || !(b > a || b != b) ? a : b; }
};
struct Smallest {
  template <class T> static __device__ T apply(T a, T b) { return a != a || !(b < a || b != b) ? a : b; }
};

template <class T, class Op>
__global__ void __launch_bounds__(THREADS) fold_kernel(const __grid_constant__ shf_fold_task t, int64_t cells)
{
  for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < cells; i += (int64_t)gridDim.x * THREADS) {
    int64_t left = i, from = 0, to = 0;
    for (int d = t.rank - 1; d >= 0; d--) {
      int64_t at = left % t.extent[d];
      left /= t.extent[d];
      from += at * t.from_stride[d];
      to += at * t.to_stride[d];
    }
    T *total = (T *)t.to + to;
    *total = Op::apply(t.from_zero ? T(0) : *total, ((const T *)t.from)[from]);
  }
}

template <class T, class Op> static cudaError_t start_fold(const shf_fold_task &t)
{
  int64_t cells = 1;
  for (int d = 0; d < t.rank; d++) cells *= t.extent[d];
  if (cells == 0) return cudaSuccess;
  fold_kernel<T, Op><<<blocks_for(cells), THREADS>>>(t, cells);
  return cudaGetLastError();
}

struct Word16 {
  uint4 bits;
  __device__ Word16() {}
  __device__ explicit Word16(int) : bits(make_uint4(0, 0, 0, 0)) {}
};

// Bits that are only moved go in words as wide as everything about them allows.
static shf_fold_task widened(shf_fold_task t)
{
  int last = t.rank - 1;
  while (last >= 0 && t.cell < 16 && t.from_stride[last] == 1 && t.to_stride[last] == 1) {
    bool even = t.extent[last] % 2 == 0 && ((uintptr_t)t.from | (uintptr_t)t.to) % (uintptr_t)(2 * t.cell) == 0;
    for (int d = 0; d < last; d++) even = even && t.from_stride[d] % 2 == 0 && t.to_stride[d] % 2 == 0;
    if (!even) break;
    t.cell *= 2;
    t.extent[last] /= 2;
    for (int d = 0; d < last; d++) t.from_stride[d] /= 2, t.to_stride[d] /= 2;
  }
  return t;
}

template <class Op> static cudaError_t fold_floats(const shf_fold_task &t)
{
  return t.dtype == SHEAF_F64 ? start_fold<double, Op>(t) : start_fold<float, Op>(t);
}

template <class Op> static cudaError_t fold_bits(const shf_fold_task &t)
{
  switch (t.cell) {
  case 1:
    return start_fold<uint8_t, Op>(t);
  case 2:
    return start_fold<uint16_t, Op>(t);
  case 4:
    return start_fold<uint32_t, Op>(t);
  default:
    return start_fold<unsigned long long, Op>(t);
  }
}

cudaError_t fold_part(const shf_fold_task &task)
{
  switch (task.kind) {
  case SHF_FOLD_STORE: {
    shf_fold_task t = widened(task);
    return t.cell == 16 ? start_fold<Word16, Store>(t) : fold_bits<Store>(t);
  }
  case SHF_FOLD_BITS:
    return fold_bits<Add>(task);
  case SHF_FOLD_SUM:
    return task.dtype == SHEAF_I64 ? start_fold<unsigned long long, Add>(task) : fold_floats<Add>(task);
  case SHF_FOLD_PROD:
    return fold_floats<Multiply>(task);
  case SHF_FOLD_MAX:
    return fold_floats<Largest>(task);
  default:
    return fold_floats<Smallest>(task);
  }
}

// ---- Types, quotients ----

template <class From, class To>
__global__ void __launch_bounds__(THREADS)
    convert_kernel(const typename From::cell *source, typename To::cell *target, int64_t count)
{
  for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS)
    target[i] = To::round((typename To::acc)From::value(source[i]));
}

template <class From> static cudaError_t convert_from(const void *source, sheaf_dtype to, void *target, int64_t count)
{
  typedef typename From::cell cell;
  const cell *cells = (const cell *)source;
  switch (to) {
  case SHEAF_F64:
    convert_kernel<From, F64><<<blocks_for(count), THREADS>>>(cells, (double *)target, count);
    break;
  case SHEAF_F16:
    convert_kernel<From, F16><<<blocks_for(count), THREADS>>>(cells, (uint16_t *)target, count);
    break;
  case SHEAF_BF16:
    convert_kernel<From, BF16><<<blocks_for(count), THREADS>>>(cells, (uint16_t *)target, count);
    break;
  default:
    convert_kernel<From, F32><<<blocks_for(count), THREADS>>>(cells, (float *)target, count);
  }
  return cudaGetLastError();
}

cudaError_t convert_cells(sheaf_dtype from, const void *source, sheaf_dtype to, void *target, int64_t count)
{
  if (count == 0) return cudaSuccess;
  switch (from) {
  case SHEAF_F64:
    return convert_from<F64>(source, to, target, count);
  case SHEAF_F16:
    return convert_from<F16>(source, to, target, count);
  case SHEAF_BF16:
    return convert_from<BF16>(source, to, target, count);
  default:
    return convert_from<F32>(source, to, target, count);
  }
}

template <class To>
__global__ void __launch_bounds__(THREADS) divide_kernel(const typename To::acc *sums, const typename To::acc *divisors,
                                                         int64_t cells, int64_t columns, typename To::cell *target)
{
  for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < cells; i += (int64_t)gridDim.x * THREADS)
    target[i] = To::round(sums[i] / divisors[i / columns]);
}

template <class To>
static cudaError_t start_divide(const void *sums, const void *divisors, int64_t cells, int64_t columns, void *target)
{
  typedef typename To::acc acc;
  typedef typename To::cell cell;
  divide_kernel<To>
      <<<blocks_for(cells), THREADS>>>((const acc *)sums, (const acc *)divisors, cells, columns, (cell *)target);
  return cudaGetLastError();
}

cudaError_t divide_rows(const void *sums, const void *divisors, int64_t rows, int64_t columns, sheaf_dtype to,
                        void *target)
{
  int64_t cells = rows * columns;
  if (cells == 0) return cudaSuccess;
  switch (to) {
  case SHEAF_F64:
    return start_divide<F64>(sums, divisors, cells, columns, target);
  case SHEAF_F16:
    return start_divide<F16>(sums, divisors, cells, columns, target);
  case SHEAF_BF16:
    return start_divide<BF16>(sums, divisors, cells, columns, target);
  default:
    return start_divide<F32>(sums, divisors, cells, columns, target);
  }
}

} // namespace shf
