/* avx2_int8.c: every kernel over int8 rows in AVX2. */
#define ELEMENT_INT8
#include "vec_avx2.h"

#include "kernels.inc"
