/* avx2_f32.c: every kernel over f32 rows in AVX2. */
#define ELEMENT_F32
#include "vec_avx2.h"

#include "kernels.inc"
