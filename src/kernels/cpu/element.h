/* element.h: what the one element type of a kernel file is stored as and accumulated in.
 *
 * A kernel file defines exactly one of ELEMENT_F32, ELEMENT_F64, ELEMENT_F16, ELEMENT_BF16, ELEMENT_INT8, ELEMENT_INT4
 * before it includes anything. From here on the texts speak of:
 *   element          storage type of a table's cell (for quantised rows: a byte)
 *   acc              the type sums are kept in, and its bits as a signed integer, lane_int
 *   ELEMENT_DTYPE    the sheaf_dtype
 *   ELEMENT_QUANTISED, ELEMENT_WIDE (acc is double)
 */
#ifndef SHF_KERNELS_ELEMENT_H
#define SHF_KERNELS_ELEMENT_H

#include <sheaf/base.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "core/dtype.h"

#if defined(ELEMENT_F64)
#define ELEMENT_WIDE 1
typedef double acc;
typedef int64_t lane_int;
#define acc_fma __builtin_fma
#else
#define ELEMENT_WIDE 0
typedef float acc;
typedef int32_t lane_int;
#define acc_fma __builtin_fmaf
#endif

#if defined(ELEMENT_INT8) || defined(ELEMENT_INT4)
#define ELEMENT_QUANTISED 1
#else
#define ELEMENT_QUANTISED 0
#endif

/* Whether values are widened or dequantised when they are loaded. */
#if defined(ELEMENT_F32) || defined(ELEMENT_F64)
#define SLOW_LOADS 0
#else
#define SLOW_LOADS 1
#endif

#if defined(ELEMENT_F32)
#define ELEMENT_DTYPE SHEAF_F32
#define ELEMENT_NAME f32
typedef float element;
#elif defined(ELEMENT_F64)
#define ELEMENT_DTYPE SHEAF_F64
#define ELEMENT_NAME f64
typedef double element;
#elif defined(ELEMENT_F16)
#define ELEMENT_DTYPE SHEAF_F16
#define ELEMENT_NAME f16
typedef uint16_t element;
#elif defined(ELEMENT_BF16)
#define ELEMENT_DTYPE SHEAF_BF16
#define ELEMENT_NAME bf16
typedef uint16_t element;
#elif defined(ELEMENT_INT8)
#define ELEMENT_DTYPE SHEAF_INT8
#define ELEMENT_NAME int8
typedef uint8_t element;
#elif defined(ELEMENT_INT4)
#define ELEMENT_DTYPE SHEAF_INT4
#define ELEMENT_NAME int4
typedef uint8_t element;
#else
#error "a kernel file must define its ELEMENT_..."
#endif

/* One f16, by the instruction where there is one. */
#if defined(__F16C__)
static inline float f16_widen(uint16_t x) { return _cvtsh_ss(x); }
static inline uint16_t f16_narrow(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#else
static inline float f16_widen(uint16_t x) { return shf_f16_to_f32(x); }
static inline uint16_t f16_narrow(float x) { return shf_f32_to_f16(x); }
#endif

/* Per-sample weights have the table's type, f32 for quantised tables. */
#if ELEMENT_QUANTISED
typedef float weight;
static inline acc value_of(weight w) { return w; }
#else
typedef element weight;
#if defined(ELEMENT_F16)
static inline acc value_of(weight w) { return f16_widen(w); }
#elif defined(ELEMENT_BF16)
static inline acc value_of(weight w) { return shf_bf16_to_f32(w); }
#else
static inline acc value_of(weight w) { return w; }
#endif
#endif

#if defined(ELEMENT_F16)
static inline element element_of(acc value) { return f16_narrow(value); }
#elif defined(ELEMENT_BF16)
static inline element element_of(acc value) { return shf_f32_to_bf16(value); }
#elif !ELEMENT_QUANTISED
static inline element element_of(acc value) { return value; }
#endif

/* The compiler takes this pointer as it is: what is at constant distances from it is addressed by it, and not by sums that are
 * worked out before a loop and fill its registers. */
#define FIXED(pointer) __asm__("" : "+r"(pointer))

/* The compiler keeps this array where it can be addressed, and leaves its registers to others. */
#define STAYS_IN_MEMORY(array) __asm__("" : "+m"(array))

#define FORCE_INLINE static inline __attribute__((always_inline))

/* Before a loop over the vectors of a tile: its arrays are registers only when it is unrolled. */
#if defined(__clang__)
#define UNROLLED _Pragma("unroll")
#define UNROLLED_TWICE _Pragma("unroll 2") /* a loop over columns */
#else
#define UNROLLED _Pragma("GCC unroll 32")
#define UNROLLED_TWICE _Pragma("GCC unroll 2")
#endif

#endif
