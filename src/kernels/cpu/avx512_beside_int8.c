/* avx512_beside_int8.c: bags of int8 rows in AVX-512, rows from memory asked for beside those being summed. */
#define ELEMENT_INT8
#define BAGS_BESIDE
#include "vec_avx512.h"

#include "bags_beside.inc"
