/* core/dtype.h: element sizes, and 16-bit conversions by integer arithmetic (inline: the scalar kernels use them). */
#ifndef SHF_CORE_DTYPE_H
#define SHF_CORE_DTYPE_H

#include <sheaf/tensor.h>

/* Bytes of an element; 0 for packed and unknown types. */
int64_t shf_core_dtype_size(sheaf_dtype dtype);

/* The type in which values of `dtype` are added: F64 for F64, F32 for the rest. */
sheaf_dtype shf_core_dtype_acc(sheaf_dtype dtype);

static inline uint32_t shf_bits_of_f32(float value)
{
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

static inline float shf_f32_of_bits(uint32_t bits)
{
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

static inline float shf_f16_to_f32(uint16_t half)
{
  uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, mantissa = half & 0x3ff;
  if (exponent == 31) return shf_f32_of_bits(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return shf_f32_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
  if (mantissa == 0) return shf_f32_of_bits(sign);
  uint32_t shift = (uint32_t)__builtin_clz(mantissa) - 21; /* denormal: bring its leading one to bit 10 */
  return shf_f32_of_bits(sign | (113 - shift) << 23 | ((mantissa << shift) & 0x3ff) << 13);
}

static inline uint16_t shf_f32_to_f16(float value)
{
  uint32_t bits = shf_bits_of_f32(value), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) { /* a NaN stays one, and one that came from 16 bits keeps them */
    uint32_t payload = (magnitude >> 13) & 0x3ff;
    return (uint16_t)(sign | 0x7c00 | (payload ? payload : 0x200));
  }
  if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and above round to infinity */
  if (magnitude < 0x38800000) {                                  /* below 2^-14: a denormal or zero */
    if (magnitude < 0x33000000) return (uint16_t)sign;           /* below 2^-25 */
    uint32_t shift = 126 - (magnitude >> 23), mantissa = (magnitude & 0x7fffff) | 0x800000;
    uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
    return (uint16_t)(sign | (kept + (rest > half || (rest == half && (kept & 1)))));
  }
  uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return (uint16_t)(sign | ((rounded - 0x38000000) >> 13));
}

static inline float shf_bf16_to_f32(uint16_t bits) { return shf_f32_of_bits((uint32_t)bits << 16); }

static inline uint16_t shf_f32_to_bf16(float value)
{
  uint32_t bits = shf_bits_of_f32(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | (bits & 0x7f0000 ? 0 : 0x40)); /* as above */
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#endif
