/* sheaf/tensor.h: how memory is handed to Sheaf.
 *
 * Operands are DLTensors of <dlpack/dlpack.h>, borrowed for the length of one call: Sheaf neither frees nor keeps
 * them. The last dimension is contiguous; rows may be further apart than they are wide (a padded table, or a column
 * slice of a wider one). Strides are in elements; NULL strides mean contiguous. */
#ifndef SHEAF_TENSOR_H
#define SHEAF_TENSOR_H

#include <dlpack/dlpack.h>

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One operand of a run. `bytes` is the memory behind data + byte_offset, checked against the shape; 0 trusts the shape.
 * `tensor` NULL means "not given". */
typedef struct sheaf_operand {
  const DLTensor *tensor;
  size_t bytes;
} sheaf_operand;

/* The DLPack type of a dtype (INT8 and INT4: u8, since their rows are packed bytes), and back; SHEAF_DTYPE_NONE for
 * a type that Sheaf has no name for. */
SHEAF_API DLDataType sheaf_dtype_to_dl(sheaf_dtype dtype);
SHEAF_API sheaf_dtype sheaf_dtype_from_dl(DLDataType type);

#ifdef __cplusplus
}
#endif
#endif
