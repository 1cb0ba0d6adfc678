/* scalar_f16.c: every kernel over f16 rows in plain C. */
#define ELEMENT_F16
#include "vec_scalar.h"

#include "kernels.inc"
