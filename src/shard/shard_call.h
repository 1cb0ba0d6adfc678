/* shard/shard_call.h: what ops on distributed tensors share: the strategy, inputs brought into place, bags. */
#ifndef SHF_SHARD_SHARD_CALL_H
#define SHF_SHARD_SHARD_CALL_H

#include "shard/dispatch_rows.h"

/* One call of an op, from its arguments to its outputs. */
typedef struct shf_call {
  shf_flow flow;
  shf_pool pool;
  sheaf_shard_problem problem;
  shf_shard_shapes shapes;
  sheaf_strategy strategy;
  const sheaf_placement *wanted; /* NULL: as it comes */
  sheaf_dtensor *moved[8];       /* inputs that had to move, freed with the call */
  int moved_count;
} shf_call;

/* Chooses the strategy (or checks the given one). The same on every rank. */
sheaf_status shf_call_choose(shf_call *c, const sheaf_shard_call *how);

/* An input where the strategy wants it: the input itself, or a copy that belongs to the call. MaskPartial of indices is
 * Replicate in memory. Goes on to agreements even when something failed; NULL then. */
const sheaf_dtensor *shf_call_bring(shf_call *c, const sheaf_dtensor *input, const sheaf_placement *to);

void shf_call_free(shf_call *c);

/* Adds " name 16x8 f32 [S(0), R]" to a sentence that says what the call does. */
void shf_call_describe(char *text, size_t room, const char *name, const sheaf_dtensor *tensor);

/* The mesh of the first operand that is there; INVALID_PROBLEM when operands lie on different ones or one that must be
 * there is not. */
typedef struct shf_call_operand {
  const char *name;
  const sheaf_dtensor *tensor;
  int required;
} shf_call_operand;
sheaf_status shf_call_check(const shf_call_operand *operands, int count, const sheaf_mesh **mesh);

/* What the output will lie as: wanted, or what the strategy gives; with `complete`, Partial is replaced by Replicate. */
void shf_call_target(const shf_call *c, int complete, sheaf_placement target[MAX_DIMS]);

/* A tensor of the output's shape: its description, and a new one whose elements are not set. */
sheaf_dtensor_desc shf_call_desc(const shf_call *c, sheaf_dtype dtype, const sheaf_placement *at);
sheaf_status shf_call_output(const shf_call *c, sheaf_dtype dtype, const sheaf_placement *at, sheaf_dtensor **tensor);

/* Whether the strategy's output is partial along any mesh dimension. */
int shf_call_is_partial(const shf_call *c);

/* ---- Bags: bags.c ----------------------------------------------------------------------------------------------- */

/* The indices this rank works on. */
typedef struct shf_bags {
  int64_t entries;
  const void *indices;
  const void *weights;    /* NULL: none */
  int64_t bags;           /* 0 for lookups */
  int64_t length;         /* of every bag in matrix form; -1 otherwise */
  const int64_t *offsets; /* bags + 1 places in indices; NULL in matrix form and for lookups */
} shf_bags;

typedef struct shf_bag_operands {
  const sheaf_dtensor *indices, *offsets, *weights;
} shf_bag_operands;

/* Brings indices, offsets and weights where the strategy wants them. */
void shf_bags_bring(shf_call *c, const shf_bag_operands *operands, shf_bags *bags);

static inline int64_t shf_bag_begin(const shf_bags *bags, int64_t bag)
{
  return bags->offsets ? bags->offsets[bag] : bag * bags->length;
}

/* The divisor of each bag's mean in acc(dtype), +infinity for a bag without counted entries: so that dividing an empty
 * sum gives 0. */
sheaf_status shf_bags_divisors(shf_call *c, const sheaf_embedding_desc *desc, const shf_bags *bags, void *divisors);

/* Under the ERROR policy: an index outside 0 .. rows - 1 is INDEX_OUT_OF_RANGE. */
sheaf_status shf_check_indices(const sheaf_embedding_desc *desc, const char *operand, sheaf_dtype index_dtype,
                               const void *indices, int64_t count, int64_t rows);

#endif
