/* avx512_int8.c: every kernel over int8 rows in AVX-512. */
#define ELEMENT_INT8
#include "vec_avx512.h"

#include "kernels.inc"
