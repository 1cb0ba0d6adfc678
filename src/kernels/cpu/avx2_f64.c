/* avx2_f64.c: every kernel over f64 rows in AVX2. */
#define ELEMENT_F64
#include "vec_avx2.h"

#include "kernels.inc"
