/* layers_impl.h: what the files of layers/ share: problems made of calls, cached plans, calls of other ops. */
#ifndef SHF_LAYERS_IMPL_H
#define SHF_LAYERS_IMPL_H

#include <sheaf/ops.h>
#include <string.h>

#include "core/dtype.h"
#include "core/memory.h"
#include "dispatch/dispatch_impl.h"

/* ---- Plans kept for later calls (plan_cache.c) ---- */

/* What a plan depends on. Cleared as a whole before it is filled in, since keys are compared byte by byte. */
typedef struct shf_plan_key {
  sheaf_category category;
  int threads, isa;
  union {
    sheaf_embedding_desc embedding;
    sheaf_segment_desc segment;
  } d;
} shf_plan_key;

/* The plan for a key, from this thread's own cache, the shared one, or select. It stays valid until this thread asks
 * for another one. `key` is completed (threads, instruction set). */
sheaf_status shf_cache_plan(shf_plan_key *key, const sheaf_plan **plan, const char **kernel_name);

/* This thread's workspace of at least so many bytes on this device; valid until the next call. */
sheaf_status shf_cache_workspace(DLDevice device, size_t bytes, void **workspace);

/* ---- Problems (plan_problem.c) ---- */

enum { SHF_PROBLEM_OPERANDS = 9, SHF_PROBLEM_OUTPUTS = 2 };

/* A call turned into a plan's terms: key, operands, and the outputs to be made. */
typedef struct shf_problem {
  const sheaf_call *call;
  const sheaf_frame *frame;
  int views;
  shf_plan_key key;
  union {
    sheaf_embedding_args embedding;
    sheaf_segment_args segment;
  } args;
  sheaf_tensor *made[SHF_PROBLEM_OUTPUTS]; /* new outputs, until the call has succeeded */
  sheaf_tensor *converted;                 /* offsets made of lengths */
  struct {
    DLTensor dl;
    int64_t shape[SHEAF_TENSOR_MAX_RANK + 1], strides[SHEAF_TENSOR_MAX_RANK + 1];
  } view[SHF_PROBLEM_OPERANDS];
} shf_problem;

/* The ops that are plans. Cpu, Cuda and Meta have the same kernels: only what is done with a problem differs. */
sheaf_status shf_problem_embedding(const sheaf_call *call, const sheaf_frame *frame);
sheaf_status shf_problem_embedding_backward(const sheaf_call *call, const sheaf_frame *frame);
sheaf_status shf_problem_embedding_bag(const sheaf_call *call, const sheaf_frame *frame);
sheaf_status shf_problem_embedding_bag_backward(const sheaf_call *call, const sheaf_frame *frame);
sheaf_status shf_problem_segment(const sheaf_call *call, const sheaf_frame *frame);
sheaf_status shf_problem_segment_backward(const sheaf_call *call, const sheaf_frame *frame);

/* The shared beginning and end of these (plan_problem.c): an input as an operand, an output as one, and the run. */
void shf_problem_begin(shf_problem *p, const sheaf_call *call, const sheaf_frame *frame, sheaf_category category);
sheaf_operand shf_problem_input(shf_problem *p, int input);
sheaf_status shf_problem_run(shf_problem *p);

/* Output `output` of this type and shape (without the batch): the caller's, or a new one. */
sheaf_status shf_problem_output(shf_problem *p, int output, sheaf_dtype dtype, int rank, const int64_t *shape,
                                sheaf_operand *operand);
sheaf_operand shf_problem_operand(shf_problem *p, const sheaf_tensor *tensor, int batched);
void shf_problem_drop(shf_problem *p);

/* The error that a report on a device stands for, or OK. */
sheaf_status shf_problem_report(const shf_problem *p, const sheaf_index_report *found);

/* The end of a backward problem on a device whose table's gradient is to be row-sparse (problem_rows.c): what is
 * touched is found there, and the run is over a table of those rows. The Sparse key asks for it by this value of
 * `sparse`. */
enum { SHF_SPARSE_ON_DEVICE = 3 };
sheaf_status shf_problem_run_rows(shf_problem *p);

/* What Meta does in place of a run (meta_layer.c). */
sheaf_status shf_meta_check(shf_problem *p, const sheaf_plan *plan);
void shf_meta_nothing(void);

/* ---- Ops without a plan (elementwise.c, conversions.c) ---- */

sheaf_status shf_plain_cast(const sheaf_call *call, const sheaf_frame *frame);
sheaf_status shf_plain_add(const sheaf_call *call, const sheaf_frame *frame);
sheaf_status shf_plain_movedim(const sheaf_call *call, const sheaf_frame *frame);
sheaf_status shf_plain_quantize(const sheaf_call *call, const sheaf_frame *frame);
sheaf_status shf_plain_dequantize(const sheaf_call *call, const sheaf_frame *frame);
sheaf_status shf_plain_to_dense(const sheaf_call *call, const sheaf_frame *frame);
sheaf_status shf_plain_reshape(const sheaf_call *call, const sheaf_frame *frame);
sheaf_status shf_plain_expand(const sheaf_call *call, const sheaf_frame *frame);
sheaf_status shf_plain_batch(const sheaf_call *call, const sheaf_frame *frame);

/* out[i] = a[i] + alpha * b[i] over tensors of one float type; contiguous in the last dimension. */
sheaf_status shf_add_scaled(const sheaf_tensor *a, const sheaf_tensor *b, double alpha, sheaf_tensor *out);

/* The same on a device (device_map.c); steps are those of `from`, dimension by dimension of `to`. add_rows: the rows of
 * a list without repetitions are added to those of `dense` that `ids` name. */
sheaf_status shf_map_copy(const sheaf_tensor *from, const int64_t *steps, sheaf_tensor *to);
sheaf_status shf_map_cast(const sheaf_tensor *from, sheaf_tensor *to);
sheaf_status shf_map_add(const sheaf_tensor *a, const sheaf_tensor *b, double alpha, sheaf_tensor *out);
sheaf_status shf_map_add_rows(sheaf_tensor *dense, const sheaf_tensor *ids, const sheaf_tensor *rows, double alpha);
sheaf_status shf_map_fill(sheaf_tensor *out, double value);

/* The kernels that Cpu, Cuda and Meta have in common: only what is done with a problem differs. */
#define SHF_BACKEND_KERNELS                                                                                          \
  {                                                                                                                  \
    [SHEAF_OP_EMBEDDING] = shf_problem_embedding, [SHEAF_OP_EMBEDDING_BACKWARD] = shf_problem_embedding_backward,    \
    [SHEAF_OP_EMBEDDING_BAG] = shf_problem_embedding_bag,                                                            \
    [SHEAF_OP_EMBEDDING_BAG_BACKWARD] = shf_problem_embedding_bag_backward,                                          \
    [SHEAF_OP_SEGMENT_REDUCE] = shf_problem_segment,                                                                 \
    [SHEAF_OP_SEGMENT_REDUCE_BACKWARD] = shf_problem_segment_backward, [SHEAF_OP_QUANTIZE] = shf_plain_quantize,     \
    [SHEAF_OP_DEQUANTIZE] = shf_plain_dequantize, [SHEAF_OP_TO_DENSE] = shf_plain_to_dense,                          \
    [SHEAF_OP_CAST] = shf_plain_cast, [SHEAF_OP_ADD] = shf_plain_add, [SHEAF_OP_MOVEDIM] = shf_plain_movedim,        \
    [SHEAF_OP_BATCH] = shf_plain_batch, [SHEAF_OP_RESHAPE] = shf_plain_reshape, [SHEAF_OP_EXPAND] = shf_plain_expand \
  }

/* The row-sparse sum over the leading dimension of a row-sparse tensor [problems, V, D] (sparse_sums.c), with the bits
 * that the dense one has. */
sheaf_status shf_sparse_sum_problems(sheaf_tensor *each, sheaf_tensor **sum);

/* ---- Calls of other ops by layers (layer_calls.c) ---- */

/* A call that is sent down (frame), or through the dispatcher from the top (frame NULL). */
sheaf_status shf_send(const sheaf_call *call, const sheaf_frame *frame);

sheaf_status shf_send_dtype(sheaf_op op, sheaf_tensor *tensor, sheaf_dtype dtype, const sheaf_frame *frame,
                            sheaf_tensor **out); /* quantize, dequantize, cast */
sheaf_status shf_send_unary(sheaf_op op, sheaf_tensor *tensor, const sheaf_frame *frame, sheaf_tensor **out);
sheaf_status shf_send_add(sheaf_tensor *a, sheaf_tensor *b, double alpha, const sheaf_frame *frame, sheaf_tensor **out);

sheaf_status shf_send_reshape(sheaf_tensor *tensor, int rank, const int64_t *shape, const sheaf_frame *frame,
                              sheaf_tensor **out);
sheaf_status shf_send_expand(sheaf_tensor *tensor, int64_t count, const sheaf_frame *frame, sheaf_tensor **out);

/* Copies a result into an output of the caller's, or hands it over; takes the reference in either case. */
sheaf_status shf_deliver(const sheaf_call *call, int output, sheaf_tensor *result);

/* That a given output lies where the call's first input does. */
sheaf_status shf_check_output_place(const sheaf_call *call, const sheaf_tensor *given);

/* Hands the tensor itself out as its own result. */
sheaf_status shf_deliver_same(const sheaf_call *call, sheaf_tensor *tensor);

/* Runs `kernel` on a copy of the call's one input on the host, and takes the result back to the device. */
sheaf_status shf_through_host(const sheaf_call *call, const sheaf_frame *frame, sheaf_kernel kernel);

static inline int shf_is_quantised(sheaf_dtype dtype) { return dtype == SHEAF_INT8 || dtype == SHEAF_INT4; }
static inline const char *shf_op_name(const sheaf_call *call) { return sheaf_op_describe(call->op)->name; }
static inline int shf_is_meta(const sheaf_frame *frame) { return frame->key == SHEAF_KEY_META; }

/* A clock in nanoseconds. */
int64_t shf_now_ns(void);

#endif
