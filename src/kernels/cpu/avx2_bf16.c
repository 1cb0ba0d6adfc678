/* avx2_bf16.c: every kernel over bf16 rows in AVX2. */
#define ELEMENT_BF16
#include "vec_avx2.h"

#include "kernels.inc"
