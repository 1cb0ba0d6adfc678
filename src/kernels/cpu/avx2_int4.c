/* avx2_int4.c: every kernel over int4 rows in AVX2. */
#define ELEMENT_INT4
#include "vec_avx2.h"

#include "kernels.inc"
