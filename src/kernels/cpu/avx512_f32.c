/* avx512_f32.c: every kernel over f32 rows in AVX-512. */
#define ELEMENT_F32
#include "vec_avx512.h"

#include "kernels.inc"
