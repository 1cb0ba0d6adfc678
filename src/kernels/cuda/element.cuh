// element.cuh: element types on the device: how a lane's columns of a row are read, widened, rounded and stored.
//
// A lane owns VE neighbouring columns of a row: as many as 16 bytes hold when every row is aligned so, else 1 (int4: 2,
// one byte). What the CPU's texts call load_columns and store_columns is fetch and store here.
#ifndef SHF_CUDA_ELEMENT_CUH
#define SHF_CUDA_ELEMENT_CUH

#include <cuda_fp16.h>
#include <stdint.h>

#include "core/kernel.h"

namespace shf {

__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return __fma_rn(a, b, c); }

// ---- Bits in registers ----

template <int BYTES> struct Word;
template <> struct Word<16> {
  typedef uint4 type;
};
template <> struct Word<8> {
  typedef uint2 type;
};
template <> struct Word<4> {
  typedef uint32_t type;
};
template <> struct Word<2> {
  typedef uint16_t type;
};
template <> struct Word<1> {
  typedef uint8_t type;
};

template <class To, class From> __device__ __forceinline__ To bits_as(From from)
{
  static_assert(sizeof(To) == sizeof(From), "bits are kept");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// ---- Loads that happen or do not ----

// Zero where `there` is false. Written as one predicated instruction: with branches around them, the compiler would not
// keep several loads in flight.
template <int BYTES> __device__ __forceinline__ typename Word<BYTES>::type load_if(const char *p, bool there);
template <> __device__ __forceinline__ uint4 load_if<16>(const char *p, bool there)
{
  uint4 w;
  asm("{\n.reg .pred q;\nsetp.ne.u32 q, %5, 0;\nmov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 %3, 0;\n"
      "@q ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(w.x), "=&r"(w.y), "=&r"(w.z), "=&r"(w.w)
      : "l"(__cvta_generic_to_global(p)), "r"((unsigned)there));
  return w;
}
template <> __device__ __forceinline__ uint2 load_if<8>(const char *p, bool there)
{
  uint2 w;
  asm("{\n.reg .pred q;\nsetp.ne.u32 q, %3, 0;\nmov.u32 %0, 0;\nmov.u32 %1, 0;\n"
      "@q ld.global.nc.v2.u32 {%0, %1}, [%2];\n}"
      : "=&r"(w.x), "=&r"(w.y)
      : "l"(__cvta_generic_to_global(p)), "r"((unsigned)there));
  return w;
}
template <> __device__ __forceinline__ uint32_t load_if<4>(const char *p, bool there)
{
  uint32_t w;
  asm("{\n.reg .pred q;\nsetp.ne.u32 q, %2, 0;\nmov.u32 %0, 0;\n@q ld.global.nc.u32 %0, [%1];\n}"
      : "=&r"(w)
      : "l"(__cvta_generic_to_global(p)), "r"((unsigned)there));
  return w;
}
template <> __device__ __forceinline__ uint16_t load_if<2>(const char *p, bool there)
{
  uint16_t w;
  asm("{\n.reg .pred q;\nsetp.ne.u32 q, %2, 0;\nmov.u16 %0, 0;\n@q ld.global.nc.u16 %0, [%1];\n}"
      : "=&h"(w)
      : "l"(__cvta_generic_to_global(p)), "r"((unsigned)there));
  return w;
}
template <> __device__ __forceinline__ uint8_t load_if<1>(const char *p, bool there)
{
  uint16_t w;
  asm("{\n.reg .pred q;\nsetp.ne.u32 q, %2, 0;\nmov.u16 %0, 0;\n@q ld.global.nc.u8 %0, [%1];\n}"
      : "=&h"(w)
      : "l"(__cvta_generic_to_global(p)), "r"((unsigned)there));
  return (uint8_t)w;
}

// The same past the first level of the cache, which has no room for all that is in flight where everything is asked for at
// once.
__device__ __forceinline__ uint4 load_past(const char *p, bool there)
{
  uint4 w;
  asm("{\n.reg .pred q;\nsetp.ne.u32 q, %5, 0;\nmov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 %3, 0;\n"
      "@q ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(w.x), "=&r"(w.y), "=&r"(w.z), "=&r"(w.w)
      : "l"(__cvta_generic_to_global(p)), "r"((unsigned)there));
  return w;
}

// ---- What the second-level cache should keep ----

// Rows that are read once should not push out those that are read again and again. (Stores that ask for the same made
// gradients slower.)
__device__ __forceinline__ uint64_t policy_once()
{
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t policy_again()
{
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint4 load_if_by(const char *p, bool there, uint64_t policy)
{
  uint4 w;
  asm("{\n.reg .pred q;\nsetp.ne.u32 q, %5, 0;\nmov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 %3, 0;\n"
      "@q ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %6;\n}"
      : "=&r"(w.x), "=&r"(w.y), "=&r"(w.z), "=&r"(w.w)
      : "l"(__cvta_generic_to_global(p)), "r"((unsigned)there), "l"(policy));
  return w;
}
// ---- 16-bit numbers: exact to f32, to nearest even from it, denormals kept ----

__device__ __forceinline__ float f16_value(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
__device__ __forceinline__ uint16_t f16_round(float x) { return __half_as_ushort(__float2half_rn(x)); }
__device__ __forceinline__ float bf16_value(uint16_t bits) { return __uint_as_float((uint32_t)bits << 16); }
__device__ __forceinline__ uint16_t bf16_round(float x)
{
  uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// ---- Element types ----
//   cell   what memory holds            acc    what sums are kept in
//   best   what an extreme is kept as: bits that are only moved
//   WIDE   columns of a lane when rows are aligned

struct F32 {
  typedef float cell, acc, best, weight;
  enum { WIDE = 4, NARROW = 1, QUANTISED = 0, BITS = 32, DTYPE = SHEAF_F32 };
  static __device__ __forceinline__ acc value(cell x) { return x; }
  static __device__ __forceinline__ cell round(acc x) { return x; }
  static __device__ __forceinline__ best lowest() { return __uint_as_float(0xff800000u); }
};
struct F64 {
  typedef double cell, acc, best, weight;
  enum { WIDE = 2, NARROW = 1, QUANTISED = 0, BITS = 64, DTYPE = SHEAF_F64 };
  static __device__ __forceinline__ acc value(cell x) { return x; }
  static __device__ __forceinline__ cell round(acc x) { return x; }
  static __device__ __forceinline__ best lowest() { return __longlong_as_double((long long)0xfff0000000000000ull); }
};
struct F16 {
  typedef uint16_t cell, best, weight;
  typedef float acc;
  enum { WIDE = 8, NARROW = 1, QUANTISED = 0, BITS = 16, DTYPE = SHEAF_F16 };
  static __device__ __forceinline__ acc value(cell x) { return f16_value(x); }
  static __device__ __forceinline__ cell round(acc x) { return f16_round(x); }
  static __device__ __forceinline__ best lowest() { return 0xfc00; }
};
struct BF16 {
  typedef uint16_t cell, best, weight;
  typedef float acc;
  enum { WIDE = 8, NARROW = 1, QUANTISED = 0, BITS = 16, DTYPE = SHEAF_BF16 };
  static __device__ __forceinline__ acc value(cell x) { return bf16_value(x); }
  static __device__ __forceinline__ cell round(acc x) { return bf16_round(x); }
  static __device__ __forceinline__ best lowest() { return 0xff80; }
};
// Quantised rows: q, then scale and bias at the end of the row. Weights are f32, extremes are values.
struct INT8 {
  typedef uint8_t cell;
  typedef float acc, best, weight;
  enum { WIDE = 4, NARROW = 1, QUANTISED = 1, BITS = 8, DTYPE = SHEAF_INT8 };
  static __device__ __forceinline__ acc value(best x) { return x; }
  static __device__ __forceinline__ best lowest() { return __uint_as_float(0xff800000u); }
};
struct INT4 {
  typedef uint8_t cell;
  typedef float acc, best, weight;
  enum { WIDE = 8, NARROW = 2, QUANTISED = 1, BITS = 4, DTYPE = SHEAF_INT4 };
  static __device__ __forceinline__ acc value(best x) { return x; }
  static __device__ __forceinline__ best lowest() { return __uint_as_float(0xff800000u); }
};

template <class E> __device__ __forceinline__ typename E::acc weight_value(typename E::weight w) { return E::value(w); }

// ---- A lane's columns of one row ----

template <class E, int VE> struct Columns {
  enum { BYTES = VE * E::BITS / 8 };
  typename Word<BYTES>::type word;
  __device__ __forceinline__ void clear() { memset(&word, 0, sizeof word); }
  // `row` begins at the row, `column` is the lane's first; zeros where the row is not there.
  __device__ __forceinline__ void fetch(const char *row, int64_t column, int64_t, bool there = true)
  {
    word = load_if<BYTES>(row + column * (int64_t)sizeof(typename E::cell), there);
  }
  // The same with a wish of what the cache should do; `row` is the lane's first column.
  __device__ __forceinline__ void fetch_by(const char *row, bool there, uint64_t policy)
  {
    if constexpr (BYTES == 16)
      word = load_if_by(row, there, policy);
    else
      word = load_if<BYTES>(row, there);
  }
  // The same past the first level.
  __device__ __forceinline__ void fetch_past(const char *row, int64_t column, int64_t dim, bool there)
  {
    if constexpr (BYTES == 16)
      word = load_past(row + column * (int64_t)sizeof(typename E::cell), there);
    else
      fetch(row, column, dim, there);
  }
  __device__ __forceinline__ void get(typename E::best *x) const { memcpy(x, &word, sizeof word); }
  __device__ __forceinline__ void values(typename E::acc *x) const
  {
    typename E::cell cells[VE];
    memcpy(cells, &word, sizeof word);
#pragma unroll
    for (int j = 0; j < VE; j++) x[j] = E::value(cells[j]);
  }
};

__device__ __forceinline__ uint32_t load_bytes(const char *p, bool there)
{
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) word |= (uint32_t)load_if<1>(p + i, there) << (8 * i);
  return word;
}

template <int VE> struct Columns<INT8, VE> {
  typename Word<VE>::type word;
  float scale, bias;
  __device__ __forceinline__ void clear() { word = 0, scale = 0, bias = 0; }
  __device__ __forceinline__ void fetch(const char *row, int64_t column, int64_t dim, bool there = true)
  {
    word = load_if<VE>(row + column, there);
    if (VE == 4) { // then rows, and so their tails, are aligned
      scale = __uint_as_float(load_if<4>(row + dim, there));
      bias = __uint_as_float(load_if<4>(row + dim + 4, there));
    } else {
      scale = __uint_as_float(load_bytes(row + dim, there));
      bias = __uint_as_float(load_bytes(row + dim + 4, there));
    }
  }
  __device__ __forceinline__ void values(float *x) const
  {
#pragma unroll
    for (int j = 0; j < VE; j++) x[j] = fused((float)((uint32_t)word >> (8 * j) & 255), scale, bias);
  }
  __device__ __forceinline__ void fetch_past(const char *row, int64_t column, int64_t dim, bool there)
  {
    fetch(row, column, dim, there);
  }
  __device__ __forceinline__ void get(float *x) const { values(x); }
};

template <int VE> struct Columns<INT4, VE> {
  typename Word<VE / 2>::type word;
  float scale, bias;
  __device__ __forceinline__ void clear() { word = 0, scale = 0, bias = 0; }
  __device__ __forceinline__ void fetch(const char *row, int64_t column, int64_t dim, bool there = true)
  {
    word = load_if<VE / 2>(row + column / 2, there);
    const char *end = row + (dim + 1) / 2;
    uint32_t tail = VE == 8 ? load_if<4>(end, there) : load_bytes(end, there);
    scale = f16_value((uint16_t)tail);
    bias = f16_value((uint16_t)(tail >> 16));
  }
  __device__ __forceinline__ void values(float *x) const
  {
#pragma unroll
    for (int j = 0; j < VE; j++) x[j] = fused((float)((uint32_t)word >> (4 * j) & 15), scale, bias);
  }
  __device__ __forceinline__ void fetch_past(const char *row, int64_t column, int64_t dim, bool there)
  {
    fetch(row, column, dim, there);
  }
  __device__ __forceinline__ void get(float *x) const { values(x); }
};

// A minimum is the maximum of negated values: the sign of a cell or value flipped, or not.
__device__ __forceinline__ float flip_sign(float x, int flip)
{
  return __uint_as_float(__float_as_uint(x) ^ (unsigned)flip << 31);
}
__device__ __forceinline__ double flip_sign(double x, int flip)
{
  return __longlong_as_double(__double_as_longlong(x) ^ (long long)((unsigned long long)flip << 63));
}
__device__ __forceinline__ uint16_t flip_sign(uint16_t x, int flip) { return (uint16_t)(x ^ flip << 15); }

// ---- Storing ----

// A word; with ONCE the cache need not keep it.
template <bool ONCE, class T> __device__ __forceinline__ void store_word(T *to, T bits)
{
  if constexpr (ONCE)
    __stcs(to, bits);
  else
    *to = bits;
}

// Whole words where the target allows it (`wide`), else column by column as far as the row goes. ONCE counts for words
// of up to 16 bytes; what is wider, or stored by columns, is stored as usual.
template <class Cell, int VE, bool ONCE = false>
__device__ __forceinline__ void store_cells(char *row, int64_t column, int64_t dim, const Cell *cells, bool wide)
{
  enum { BYTES = VE * (int)sizeof(Cell) };
  Cell *to = (Cell *)row + column;
  if (wide && BYTES <= 16) {
    typedef typename Word<(BYTES <= 16 ? BYTES : 16)>::type word;
    word bits;
    memcpy(&bits, cells, sizeof bits);
    store_word<ONCE>((word *)to, bits);
  } else if (wide) {
#pragma unroll
    for (int part = 0; part < BYTES / 16; part++) {
      uint4 bits;
      memcpy(&bits, cells + part * 16 / (int)sizeof(Cell), 16);
      ((uint4 *)to)[part] = bits;
    }
  } else {
#pragma unroll
    for (int j = 0; j < VE; j++)
      if (column + j < dim) to[j] = cells[j];
  }
}

// Kernels whose lanes have several columns are only launched where the target is aligned as the rows are.
template <class E, int VE> struct Out {
  template <bool ONCE = false>
  static __device__ __forceinline__ void store(char *row, int64_t column, int64_t dim, const typename E::acc *x, int,
                                               bool)
  {
    typename E::cell cells[VE];
#pragma unroll
    for (int j = 0; j < VE; j++) cells[j] = E::round(x[j]);
    store_cells<typename E::cell, VE, ONCE>(row, column, dim, cells, true);
  }
  static __device__ __forceinline__ void store_best(char *row, int64_t column, int64_t dim, const typename E::best *x,
                                                    int, bool)
  {
    store_cells<typename E::cell, VE>(row, column, dim, x, true);
  }
};

// Quantised rows are rounded to the output's own type.
template <int VE>
__device__ __forceinline__ void store_dequantised(char *row, int64_t column, int64_t dim, const float *x, int dtype,
                                                  bool wide)
{
  if (dtype == SHEAF_F32) {
    store_cells<float, VE>(row, column, dim, x, wide);
    return;
  }
  uint16_t cells[VE];
#pragma unroll
  for (int j = 0; j < VE; j++) cells[j] = dtype == SHEAF_F16 ? f16_round(x[j]) : bf16_round(x[j]);
  store_cells<uint16_t, VE>(row, column, dim, cells, wide);
}
#define SHF_QUANTISED_OUT(E)                                                                                        \
  template <int VE> struct Out<E, VE> {                                                                             \
    static __device__ __forceinline__ void store(char *row, int64_t column, int64_t dim, const float *x, int dtype, \
                                                 bool wide)                                                         \
    {                                                                                                               \
      store_dequantised<VE>(row, column, dim, x, dtype, wide);                                                      \
    }                                                                                                               \
    static __device__ __forceinline__ void store_best(char *row, int64_t column, int64_t dim, const float *x,       \
                                                      int dtype, bool wide)                                         \
    {                                                                                                               \
      store_dequantised<VE>(row, column, dim, x, dtype, wide);                                                      \
    }                                                                                                               \
  };
SHF_QUANTISED_OUT(INT8)
SHF_QUANTISED_OUT(INT4)
#undef SHF_QUANTISED_OUT

} // namespace shf
#endif
