/* avx512_f16.c: every kernel over f16 rows in AVX-512. */
#define ELEMENT_F16
#include "vec_avx512.h"

#include "kernels.inc"
