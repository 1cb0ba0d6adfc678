/* avx512_beside_int4.c: bags of int4 rows in AVX-512, rows from memory asked for beside those being summed. */
#define ELEMENT_INT4
#define BAGS_BESIDE
#include "vec_avx512.h"

#include "bags_beside.inc"
