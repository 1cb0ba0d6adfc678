/* scalar_int4.c: every kernel over int4 rows in plain C. */
#define ELEMENT_INT4
#include "vec_scalar.h"

#include "kernels.inc"
