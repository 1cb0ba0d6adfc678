/* sheaf/tensor.h: how memory is handed to Sheaf: operands of plans, and the tensors that ops work on.
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

/* ---- Tensors of the ops (ops.h) ------------------------------------------------------------------------------ */

/* A set of dispatch keys, as a value; dispatch.h has the keys and the algebra. */
typedef struct sheaf_keyset {
  uint16_t bits;
} sheaf_keyset;

/* A tensor that ops take and give: memory of its own or borrowed, of one of six forms. Counted references: every
 * function that makes one hands out a reference, `release` gives it back; tensors made of others keep theirs. Several
 * threads may use one tensor; who writes into its memory sees to it that nobody reads it then. */
typedef struct sheaf_tensor sheaf_tensor;

typedef enum sheaf_form {
  SHEAF_FORM_DENSE = 0,
  SHEAF_FORM_META = 1,      /* type and shape, no data */
  SHEAF_FORM_SPARSE = 2,    /* [..., V, D]: row ids and their rows; other rows are zero, equal ids add up */
  SHEAF_FORM_QUANTIZED = 3, /* [..., V, D]: packed int8 or int4 rows */
  SHEAF_FORM_NESTED = 4,    /* [..., B, jagged, ...]: values of all components, and where each begins */
  SHEAF_FORM_BATCHED = 5    /* what an op sees within vmap: one slice, of many that are computed together */
} sheaf_form;

enum { SHEAF_TENSOR_MAX_RANK = 8 };

/* Memory of its own, zero; on the CPU. */
SHEAF_API sheaf_status sheaf_tensor_new(sheaf_dtype dtype, int rank, const int64_t *shape, sheaf_tensor **tensor);

/* The same on a device: {kDLCUDA, 0} is the first CUDA device, {kDLCPU, 0} the CPU. */
SHEAF_API sheaf_status sheaf_tensor_new_on(DLDevice device, sheaf_dtype dtype, int rank, const int64_t *shape,
                                           sheaf_tensor **tensor);

/* A copy on another device, contiguous and without gradients; the tensor itself when it lies there. All forms but meta
 * and batched. Waits until the copy is there when the host's memory is part of it; else it is in the order of the
 * thread's stream (device.h). */
SHEAF_API sheaf_status sheaf_tensor_to(sheaf_tensor *tensor, DLDevice device, sheaf_tensor **out);

/* Memory of the caller's, who keeps it alive and does not move it while the tensor lives. `bytes` as in
 * sheaf_operand: BUFFER_TOO_SMALL when shape and strides reach beyond them. Elements are aligned to their size, else
 * MISALIGNED. */
SHEAF_API sheaf_status sheaf_tensor_borrow(const DLTensor *memory, size_t bytes, sheaf_tensor **tensor);

/* No memory: ops on it check everything and give the shapes of their results. `like`'s data is never touched. */
SHEAF_API sheaf_status sheaf_tensor_meta(const DLTensor *like, sheaf_tensor **tensor);

/* DLPack: in (on success the tensor owns `managed` and calls its deleter at the end) and out (dense tensors; the other
 * side calls the deleter). */
SHEAF_API sheaf_status sheaf_tensor_from_dlpack(DLManagedTensor *managed, sheaf_tensor **tensor);
SHEAF_API sheaf_status sheaf_tensor_to_dlpack(sheaf_tensor *tensor, DLManagedTensor **managed);

/* Row-sparse [rows, D] from ids [U] and values [U, D]; `coalesced`: ids are known to increase. Ids outside 0..rows-1
 * are INDEX_OUT_OF_RANGE. (Ids, as the offsets of nested tensors, are looked at on the host: those of a device are
 * copied and waited for.) */
SHEAF_API sheaf_status sheaf_tensor_sparse(sheaf_tensor *ids, sheaf_tensor *values, int64_t rows, int coalesced,
                                           sheaf_tensor **tensor);

/* Quantised [..., V, dim] from packed rows: u8 [..., V, sheaf_dtype_row_bytes(dtype, dim)] of INT8 or INT4. */
SHEAF_API sheaf_status sheaf_tensor_quantized(sheaf_tensor *packed, sheaf_dtype dtype, int64_t dim,
                                              sheaf_tensor **tensor);

/* Nested from values [N, ...] and offsets [B + 1], which start at 0, do not decrease and end at N; else
 * INVALID_PROBLEM. Batched values (ops.h, vmap) give a nested tensor for each slice, all with the same components. */
SHEAF_API sheaf_status sheaf_tensor_nested(sheaf_tensor *values, sheaf_tensor *offsets, sheaf_tensor **tensor);

/* The same memory and version without gradients. */
SHEAF_API sheaf_status sheaf_tensor_detach(sheaf_tensor *tensor, sheaf_tensor **detached);

/* NULL is allowed. */
SHEAF_API sheaf_tensor *sheaf_tensor_retain(sheaf_tensor *tensor);
SHEAF_API void sheaf_tensor_release(sheaf_tensor *tensor);

/* What it is. Of NULL: NONE, 0, empty, NULL. An extent that varies (nested, behind the components) is -1. */
SHEAF_API sheaf_dtype sheaf_tensor_dtype(const sheaf_tensor *tensor); /* INT8 or INT4 when quantised */
SHEAF_API sheaf_form sheaf_tensor_form(const sheaf_tensor *tensor);
SHEAF_API int sheaf_tensor_rank(const sheaf_tensor *tensor);
SHEAF_API int64_t sheaf_tensor_extent(const sheaf_tensor *tensor, int dimension);
SHEAF_API sheaf_keyset sheaf_tensor_keys(const sheaf_tensor *tensor);

/* The memory of a dense, meta or quantised tensor (then the packed rows); NULL of the others. */
SHEAF_API const DLTensor *sheaf_tensor_dl(const sheaf_tensor *tensor);

/* dl->data plus its offset, an address of the device that it lies on: for reading, or for writing followed by
 * sheaf_tensor_written. */
SHEAF_API void *sheaf_tensor_data(const sheaf_tensor *tensor);

/* Part 0 and 1: ids and values of a sparse tensor (ids count its rows through all dimensions before the last), values
 * and offsets of a nested one; part 0 of a batched one is what it wraps. Borrowed; NULL when there is none. */
SHEAF_API sheaf_tensor *sheaf_tensor_part(const sheaf_tensor *tensor, int part);
SHEAF_API int sheaf_tensor_is_coalesced(const sheaf_tensor *tensor);

/* Every write through Sheaf counts up a tensor's version; a write by others must be announced. Autograd refuses to use
 * a saved tensor whose version has changed, autocast casts it again. */
SHEAF_API void sheaf_tensor_written(sheaf_tensor *tensor);
SHEAF_API int64_t sheaf_tensor_version(const sheaf_tensor *tensor);

/* The name that messages use for it; copied, cut after 31 bytes. "" at first. */
SHEAF_API void sheaf_tensor_set_name(sheaf_tensor *tensor, const char *name);
SHEAF_API const char *sheaf_tensor_name(const sheaf_tensor *tensor);

/* What kind of gradient a leaf wants. A row-sparse one holds the touched rows only, each once (SPARSE, the bits of the
 * dense one) or once per entry (SPARSE_RAW). */
typedef enum sheaf_grad {
  SHEAF_GRAD_NONE = 0,
  SHEAF_GRAD_DENSE = 1,
  SHEAF_GRAD_SPARSE = 2,
  SHEAF_GRAD_SPARSE_RAW = 3
} sheaf_grad;

/* Makes a tensor of floating-point elements a leaf of graphs, or ends that (its gradient goes too). UNSUPPORTED for
 * quantised tensors and integers; INVALID_PROBLEM for a result that has a graph. */
SHEAF_API sheaf_status sheaf_tensor_require_grad(sheaf_tensor *tensor, sheaf_grad grad);
SHEAF_API int sheaf_tensor_requires_grad(const sheaf_tensor *tensor);

/* The gradient that backward left, borrowed; NULL when there is none. Clearing frees it. */
SHEAF_API sheaf_tensor *sheaf_tensor_grad(const sheaf_tensor *tensor);
SHEAF_API void sheaf_tensor_clear_grad(sheaf_tensor *tensor);

#ifdef __cplusplus
}
#endif
#endif
