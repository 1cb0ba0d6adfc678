/* avx512_f64.c: every kernel over f64 rows in AVX-512. */
#define ELEMENT_F64
#include "vec_avx512.h"

#include "kernels.inc"
