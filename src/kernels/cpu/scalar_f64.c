/* scalar_f64.c: every kernel over f64 rows in plain C. */
#define ELEMENT_F64
#include "vec_scalar.h"

#include "kernels.inc"
