/* avx512_int4.c: every kernel over int4 rows in AVX-512. */
#define ELEMENT_INT4
#include "vec_avx512.h"

#include "kernels.inc"
