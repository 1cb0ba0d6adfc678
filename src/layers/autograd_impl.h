/* autograd_impl.h: the graph that the Autograd layer records and sheaf_backward walks. */
#ifndef SHF_AUTOGRAD_IMPL_H
#define SHF_AUTOGRAD_IMPL_H

#include "layers/layers_impl.h"

/* An input or output as it was when the op ran. */
typedef struct shf_saved {
  sheaf_tensor *tensor; /* NULL: not saved, or not given */
  int64_t version;
  sheaf_dtype dtype; /* NONE: not given */
  int rank, meta;
  int64_t extent[SHEAF_TENSOR_MAX_RANK];
} shf_saved;

/* Where an input's gradient goes: into a leaf, or on to the node that made the input. */
typedef struct shf_edge {
  sheaf_tensor *leaf;
  struct shf_node *node;
  int output;
} shf_edge;

/* One recorded call. Its lists lie behind it, in the same block. */
typedef struct shf_node {
  shf_history history; /* first: tensors hold it by this */
  size_t block;
  uint64_t sequence; /* later calls have larger ones, so it orders the graph */
  const sheaf_gradient *gradient;
  sheaf_call call; /* without tensors; attrs point into the block */
  uint32_t wanted; /* inputs whose gradient is needed */
  int freed;       /* by a backward that did not retain it */
  shf_saved *inputs, *outputs;
  shf_edge *edges; /* by input */
  sheaf_attr *attrs;
} shf_node;

/* Drops what the node saved. */
void shf_node_free_saved(shf_node *node);

/* Which inputs and outputs a call's gradient needs, and which outputs it needs beyond those that are wanted. */
typedef struct shf_needs {
  uint32_t inputs, outputs, extra;
} shf_needs;
shf_needs shf_gradient_needs(const sheaf_call *call, const sheaf_gradient *gradient, uint32_t wanted);

/* ---- Formulas (autograd_formulas.c, autograd_bags.c) ---- */

#define SHF_GRADIENT_ARGUMENTS                                                                               \
  const sheaf_call *forward, sheaf_tensor *const *likes, sheaf_tensor *const *output_grads, uint32_t wanted, \
      sheaf_tensor **input_grads, void *context

/* A call of op with these lists, from the top; batch, wanted and included keys as in `like` (NULL: none). */
sheaf_status shf_grad_call(sheaf_op op, sheaf_tensor *const *inputs, int input_count, const sheaf_attr *attrs,
                           int attr_count, const sheaf_call *like, sheaf_tensor **outputs, int output_count);

static inline int shf_grad_is_batched(const sheaf_call *call, int input)
{
  return call->batch > 0 && (call->batched >> input & 1);
}

sheaf_status shf_grad_sum_problems(sheaf_tensor *each, sheaf_tensor **sum);
sheaf_status shf_grad_merge_leading(sheaf_tensor *t, sheaf_tensor **out);
sheaf_status shf_grad_merged_input(const sheaf_call *call, int input, sheaf_tensor **out);
int shf_grad_sparse_kind(const sheaf_call *forward, const sheaf_tensor *like);

/* How the gradient of a table is made of the problems of a batch: each has its own table; or they share one, and their
 * entries are its entries; or they share one, but entries are scaled problem by problem (or nested, with offsets that
 * problems share), so that their gradients are made one by one and added up. */
typedef enum shf_sharing { SHF_SHARES_NOTHING, SHF_SHARES_ENTRIES, SHF_SHARES_SUMS } shf_sharing;
shf_sharing shf_grad_sharing(const sheaf_call *forward);
sheaf_status shf_grad_sum_shared(shf_sharing sharing, sheaf_tensor **grad);

/* Rows [..., D], each multiplied by its number in [..., 1] (autograd_scale.c). */
sheaf_status shf_grad_scale_rows(sheaf_tensor *rows, sheaf_tensor *by, sheaf_tensor **out);

/* F64 ones where `like` is, and 1 / x of F64 numbers: 0 where nothing was counted. */
sheaf_status shf_grad_ones(int rank, const int64_t *shape, const sheaf_tensor *like, sheaf_tensor **out);
sheaf_status shf_grad_inverse(sheaf_tensor *of, sheaf_tensor *counts, sheaf_tensor **out);

/* Rows of the table's shape over how often `forward`, a backward of lookup or bags, counts each; the rows themselves
 * when it does not scale by frequency. */
sheaf_status shf_grad_by_frequency(const sheaf_call *forward, sheaf_tensor *rows, sheaf_tensor **out);

/* The attributes of a backward op, from those of lookup or bag. */
void shf_grad_attrs(const sheaf_call *forward, const sheaf_tensor *table, sheaf_attr *attrs);

sheaf_status shf_grad_bag(SHF_GRADIENT_ARGUMENTS);
sheaf_status shf_grad_bag_twice(SHF_GRADIENT_ARGUMENTS);

#endif
