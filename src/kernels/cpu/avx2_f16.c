/* avx2_f16.c: every kernel over f16 rows in AVX2. */
#define ELEMENT_F16
#include "vec_avx2.h"

#include "kernels.inc"
