/* avx512_beside_f32.c: bags of f32 rows in AVX-512, rows from memory asked for beside those being summed. */
#define ELEMENT_F32
#define BAGS_BESIDE
#include "vec_avx512.h"

#include "bags_beside.inc"
