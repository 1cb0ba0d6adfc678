/* avx512_bf16.c: every kernel over bf16 rows in AVX-512. */
#define ELEMENT_BF16
#include "vec_avx512.h"

#include "kernels.inc"
