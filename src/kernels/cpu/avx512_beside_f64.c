/* avx512_beside_f64.c: bags of f64 rows in AVX-512, rows from memory asked for beside those being summed. */
#define ELEMENT_F64
#define BAGS_BESIDE
#include "vec_avx512.h"

#include "bags_beside.inc"
