/* avx512_beside_f16.c: bags of f16 rows in AVX-512, rows from memory asked for beside those being summed. */
#define ELEMENT_F16
#define BAGS_BESIDE
#include "vec_avx512.h"

#include "bags_beside.inc"
