// elementwise.cu: what ops on tensors do element by element: copies, casts, sums and fills over boxes of any strides.
#include "cuda_impl.h"

namespace shf {
namespace {

// The box with neighbouring dimensions merged where all steps allow it, so that most are one long row.
struct Box {
  int rank;
  int64_t count;
  int64_t extent[SHF_MAP_RANK];
  int64_t a_step[SHF_MAP_RANK], b_step[SHF_MAP_RANK], out_step[SHF_MAP_RANK];
  const void *a, *b;
  void *out;
  double alpha;
  const void *index; // of dimension 0; NULL: none
  int index_wide;
  int64_t index_limit;
};

Box box_of(const shf_device_map &m)
{
  Box box = {};
  box.count = 1;
  for (int i = 0; i < m.rank; i++) {
    int last = box.rank - 1;
    int64_t n = m.extent[i];
    box.count *= n;
    if (n == 1 && !(m.index && i == 0)) continue;
    bool merges = last >= 0 && !(m.index && last == 0) && box.a_step[last] == n * m.a_step[i] &&
                  box.b_step[last] == n * m.b_step[i] && box.out_step[last] == n * m.out_step[i];
    int at = merges ? last : box.rank++;
    box.extent[at] = merges ? box.extent[at] * n : n;
    box.a_step[at] = m.a_step[i];
    box.b_step[at] = m.b_step[i];
    box.out_step[at] = m.out_step[i];
  }
  box.a = m.a;
  box.b = m.b;
  box.out = m.out;
  box.alpha = m.alpha;
  box.index = m.index;
  box.index_wide = m.index_wide;
  box.index_limit = m.index_limit;
  return box;
}

// ---- One element ----

struct I32 {
  typedef int32_t cell;
};
struct I64 {
  typedef int64_t cell;
};

// Narrowing a double to 16 bits in one rounding: through a float rounded to odd, which keeps that something was cut off.
__device__ float to_odd(double x)
{
  float f = __double2float_rz(x);
  return (double)f == x || x != x ? f : __uint_as_float(__float_as_uint(f) | 1);
}

__device__ float narrowed(float x) { return x; }
__device__ float narrowed(double x) { return to_odd(x); }

template <class From, class To> struct Cast {
  typedef typename From::cell in;
  typedef typename To::cell cell;
  static __device__ void apply(const Box &p, int64_t a, int64_t, int64_t out)
  {
    ((cell *)p.out)[out] = To::round(narrowed(From::value(((const in *)p.a)[a])));
  }
};
template <class From> struct Cast<From, F64> {
  static __device__ void apply(const Box &p, int64_t a, int64_t, int64_t out)
  {
    ((double *)p.out)[out] = (double)From::value(((const typename From::cell *)p.a)[a]);
  }
};
template <> struct Cast<F64, F32> { // one rounding as it is
  static __device__ void apply(const Box &p, int64_t a, int64_t, int64_t out)
  {
    ((float *)p.out)[out] = (float)((const double *)p.a)[a];
  }
};
template <> struct Cast<I32, I64> {
  static __device__ void apply(const Box &p, int64_t a, int64_t, int64_t out)
  {
    ((int64_t *)p.out)[out] = ((const int32_t *)p.a)[a];
  }
};

template <class T> struct Add {
  typedef typename T::cell cell;
  typedef typename T::acc acc;
  static __device__ void apply(const Box &p, int64_t a, int64_t b, int64_t out)
  {
    acc x = T::value(((const cell *)p.a)[a]), y = T::value(((const cell *)p.b)[b]);
    ((cell *)p.out)[out] = T::round(fused((acc)p.alpha, y, x));
  }
};

template <class T> struct Fill {
  static __device__ void apply(const Box &p, int64_t, int64_t, int64_t out)
  {
    ((typename T::cell *)p.out)[out] = T::round((typename T::acc)p.alpha);
  }
};

template <class Bits> struct Copy {
  static __device__ void apply(const Box &p, int64_t a, int64_t, int64_t out)
  {
    ((Bits *)p.out)[out] = ((const Bits *)p.a)[a];
  }
};

// ---- All of them ----

enum { THREADS = 256 };

template <class Op> __global__ void __launch_bounds__(THREADS) each(const __grid_constant__ Box p)
{
  begin_kernel();
  int64_t step = (int64_t)gridDim.x * THREADS;
  for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < p.count; i += step) {
    int64_t rest = i, a = 0, b = 0, out = 0;
    bool there = true;
    for (int d = p.rank - 1; d >= 0; d--) {
      int64_t at = d ? rest % p.extent[d] : rest;
      if (d) rest /= p.extent[d];
      b += at * p.b_step[d];
      if (d == 0 && p.index) {
        at = p.index_wide ? ((const int64_t *)p.index)[at] : ((const int32_t *)p.index)[at];
        there = at >= 0 && at < p.index_limit;
      }
      a += at * p.a_step[d];
      out += at * p.out_step[d];
    }
    if (there) Op::apply(p, a, b, out);
  }
}

typedef void Kernel(Box);

template <class From> Kernel *cast_from(sheaf_dtype to)
{
  switch (to) {
  case SHEAF_F32:
    return each<Cast<From, F32>>;
  case SHEAF_F64:
    return each<Cast<From, F64>>;
  case SHEAF_F16:
    return each<Cast<From, F16>>;
  case SHEAF_BF16:
    return each<Cast<From, BF16>>;
  default:
    return nullptr;
  }
}

Kernel *cast_kernel(sheaf_dtype from, sheaf_dtype to)
{
  switch (from) {
  case SHEAF_F32:
    return cast_from<F32>(to);
  case SHEAF_F64:
    return cast_from<F64>(to);
  case SHEAF_F16:
    return cast_from<F16>(to);
  case SHEAF_BF16:
    return cast_from<BF16>(to);
  default:
    return from == SHEAF_I32 && to == SHEAF_I64 ? each<Cast<I32, I64>> : nullptr;
  }
}

template <template <class> class Op> Kernel *float_kernel(sheaf_dtype dtype)
{
  switch (dtype) {
  case SHEAF_F32:
    return each<Op<F32>>;
  case SHEAF_F64:
    return each<Op<F64>>;
  case SHEAF_F16:
    return each<Op<F16>>;
  case SHEAF_BF16:
    return each<Op<BF16>>;
  default:
    return nullptr;
  }
}

Kernel *copy_kernel(sheaf_dtype dtype)
{
  switch (dtype) {
  case SHEAF_U8:
    return each<Copy<uint8_t>>;
  case SHEAF_F16:
  case SHEAF_BF16:
    return each<Copy<uint16_t>>;
  case SHEAF_F32:
  case SHEAF_I32:
    return each<Copy<uint32_t>>;
  case SHEAF_F64:
  case SHEAF_I64:
    return each<Copy<uint64_t>>;
  default:
    return nullptr;
  }
}

Kernel *kernel_of(const shf_device_map &m)
{
  switch (m.kind) {
  case SHF_MAP_COPY:
    return copy_kernel(m.to);
  case SHF_MAP_CAST:
    return m.from == m.to ? copy_kernel(m.to) : cast_kernel(m.from, m.to);
  case SHF_MAP_ADD:
    return float_kernel<Add>(m.to);
  case SHF_MAP_FILL:
    return float_kernel<Fill>(m.to);
  }
  return nullptr;
}

} // namespace

sheaf_status map_elements(Launcher &l, const shf_device_map &m)
{
  Kernel *kernel = kernel_of(m);
  if (!kernel) return fail(SHEAF_UNSUPPORTED, "elements of %d to %d: map %d has no kernel", m.from, m.to, m.kind);
  Box box = box_of(m);
  int64_t blocks = (box.count + THREADS - 1) / THREADS, most = 32 * (int64_t)l.device.processors;
  launch(l, kernel, dim3((unsigned)(blocks < most ? blocks : most)), THREADS, 0, box);
  return SHEAF_OK;
}

} // namespace shf
