/* avx512_beside_bf16.c: bags of bf16 rows in AVX-512, rows from memory asked for beside those being summed. */
#define ELEMENT_BF16
#define BAGS_BESIDE
#include "vec_avx512.h"

#include "bags_beside.inc"
