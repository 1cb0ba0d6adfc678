/* scalar_int8.c: every kernel over int8 rows in plain C. */
#define ELEMENT_INT8
#include "vec_scalar.h"

#include "kernels.inc"
