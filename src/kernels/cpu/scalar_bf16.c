/* scalar_bf16.c: every kernel over bf16 rows in plain C. */
#define ELEMENT_BF16
#include "vec_scalar.h"

#include "kernels.inc"
