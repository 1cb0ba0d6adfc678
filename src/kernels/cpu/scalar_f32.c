/* scalar_f32.c: every kernel over f32 rows in plain C. */
#define ELEMENT_F32
#include "vec_scalar.h"

#include "kernels.inc"
