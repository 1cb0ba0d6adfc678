/* shard/shard_call.h: what ops on distributed tensors share: the strategy, inputs brought into place, bags. */
#ifndef SHF_SHARD_SHARD_CALL_H
#define SHF_SHARD_SHARD_CALL_H

#include "shard/dispatch_rows.h"

/* One call of an op, from its arguments to its outputs. */
typedef struct shf_call {
  shf_flow flow;
  shf_pool pool;
  shf_site site; /* where all of its tensors lie */
  sheaf_shard_problem problem;
  sheaf_dtype values;  /* of inputs and outputs, but for a table that is quantised */
  sheaf_dtype weights; /* of per-sample weights: as values, but F32 with quantised tables */
  shf_shard_shapes shapes;
  sheaf_strategy strategy;
  const sheaf_placement *wanted; /* NULL: as it comes */
  int exact;                     /* dispatched bags shall have the bits of one rank */
  sheaf_dtensor *moved[8];       /* inputs that had to move, freed with the call */
  int moved_count;
} shf_call;

/* An operand by its name. */
typedef struct shf_call_operand {
  const char *name;
  const sheaf_dtensor *tensor;
  int required;
} shf_call_operand;

/* What a family of ops adds to what its calls have in common. */
typedef struct shf_call_task {
  const sheaf_shard_call *how;
  const shf_call_operand *operands;
  int count;
  const char *missing;               /* an output that must be asked for and is not; NULL: none */
  int64_t facts[2];                  /* told to all ranks when they agree on the call */
  sheaf_status (*read)(shf_call *c); /* arguments to c->problem */
  void (*describe)(const shf_call *c, char *text, size_t room); /* the op and its options */
  void (*run)(shf_call *c);                                     /* what is left, once a strategy is agreed on */
} shf_call_task;

/* A description of the given size, whose kind (at `kind_at`) the family has. */
sheaf_status shf_call_check_desc(const void *desc, size_t known, sheaf_category category, size_t kind_at);

/* A whole call, and the only way to make one: finds the mesh and device of the operands, reads the arguments, chooses
 * the strategy (or checks the given one), makes sure that all ranks are about to do the same by the same strategy, runs
 * it and frees what it used. A rank that knows the mesh takes part in the agreement even when something is wrong, which
 * `c->flow.status` may already say; INVALID_PROBLEM, on that rank alone, when there is no operand to tell the mesh. */
sheaf_status shf_call_run(shf_call *c, const shf_call_task *task);

/* An input where the strategy wants it: the input itself, or a copy that belongs to the call. MaskPartial of indices is
 * Replicate in memory. Goes on to agreements even when something failed; NULL then. */
const sheaf_dtensor *shf_call_bring(shf_call *c, const sheaf_dtensor *input, const sheaf_placement *to);

/* The rest is for `run`. */

/* Memory where the tensors are, until the end of the call. */
sheaf_status shf_call_get(shf_call *c, int64_t bytes, void **memory);

/* What the CPU needs to see of it, and what it has worked out for it: nothing is copied when that is the CPU's
 * memory. */
sheaf_status shf_call_read(shf_call *c, const void *data, int64_t bytes, const void **host);
sheaf_status shf_call_write(shf_call *c, const void *host, int64_t bytes, const void **data);

/* Elements of one type as another: the same ones when the types are. */
sheaf_status shf_call_convert(shf_call *c, sheaf_dtype from, const void *source, sheaf_dtype to, int64_t count,
                              const void **target);

/* What the output will lie as: wanted, or what the strategy gives; with `complete`, Partial is replaced by
 * Replicate. */
void shf_call_target(const shf_call *c, int complete, sheaf_placement target[MAX_DIMS]);

/* A tensor of the output's shape: its description, and a new one whose elements are not set. */
sheaf_dtensor_desc shf_call_desc(const shf_call *c, sheaf_dtype dtype, const sheaf_placement *at);
sheaf_status shf_call_output(const shf_call *c, sheaf_dtype dtype, const sheaf_placement *at, sheaf_dtensor **tensor);

/* Where an op that completes a Partial output by itself brings it: where it is wanted when every rank then keeps a part
 * of what it had (a reduce-scatter), else Replicate. */
void shf_call_complete(const shf_call *c, sheaf_placement at[MAX_DIMS]);

/* Whether the strategy's output is partial along any mesh dimension. */
int shf_call_is_partial(const shf_call *c);

/* ---- Rows by their numbers: rows.c ------------------------------------------------------------------------------- */

/* Rows first .. first + rows - 1, where the tensors are. */
typedef struct shf_row_source {
  const void *data;
  int64_t rows, first, row_bytes;
} shf_row_source;

/* Copies rows by their numbers (I32 or I64), which are the CPU's and all there. On the CPU it cannot fail. */
sheaf_status shf_call_fetch(shf_call *c, const shf_row_source *source, sheaf_dtype number, const void *ids,
                            int64_t count, void *rows);

/* On the CPU, an output of a row for each entry: from this rank's part of the table, from what others sent (by places),
 * and zeros where no member holds the row or there is none. */
void shf_dispatch_copy(const shf_dispatch *d, const void *own, const void *brought, int64_t row_bytes, void *out);

/* ---- Terms of rows: row_merge.c ---------------------------------------------------------------------------------- */

/* Terms of some rows, one for each. */
typedef struct shf_row_part {
  const void *ids; /* the CPU's, of type `number`, which increase */
  int64_t count;
  const char *rows;
} shf_row_part;

/* What becomes the total: the sum of all parts' terms, in their order, and zeros. */
typedef struct shf_row_merge {
  sheaf_dtype acc, number;
  int64_t columns, rows, first; /* of the total; ids count from `first` */
  int64_t parts;
  shf_row_part *part; /* from here on: shf_merge_ready */
  int64_t *next;      /* of each part, for each thread */
  char *sums;
  int threads;
} shf_row_merge;

/* Memory for it, parts to be filled in; and doing it, which cannot fail on the CPU. */
sheaf_status shf_merge_ready(shf_call *c, shf_row_merge *m);
sheaf_status shf_merge_run(shf_call *c, const shf_row_merge *m, void *total);

/* ---- Bags: bags.c ----------------------------------------------------------------------------------------------- */

/* The indices this rank works on. */
typedef struct shf_bags {
  int64_t entries;
  const void *indices;
  const void *weights;    /* NULL: none */
  int64_t bags;           /* 0 for lookups */
  int64_t length;         /* of every bag in matrix form; -1 otherwise */
  const int64_t *offsets; /* bags + 1 places in indices; NULL in matrix form and for lookups */
  struct {                /* the same as the CPU sees it (shf_bags_read): NULL until then */
    const void *indices, *weights;
    const int64_t *offsets;
  } host;
} shf_bags;

typedef struct shf_bag_operands {
  const sheaf_dtensor *indices, *offsets, *weights;
} shf_bag_operands;

/* Brings indices, offsets and weights where the strategy wants them. */
void shf_bags_bring(shf_call *c, const shf_bag_operands *operands, shf_bags *bags);

/* Makes indices and weights visible to the CPU; offsets always are. */
sheaf_status shf_bags_read(shf_call *c, shf_bags *bags);

static inline int64_t shf_bag_begin(const shf_bags *bags, int64_t bag)
{
  return bags->host.offsets ? bags->host.offsets[bag] : bag * bags->length;
}

/* The divisor of each bag's mean in acc(dtype), +infinity for a bag without counted entries: so that dividing an empty
 * sum gives 0. On the CPU. */
sheaf_status shf_bags_divisors(shf_call *c, const sheaf_embedding_desc *desc, shf_bags *bags, void *divisors);

/* Under the ERROR policy: an index outside 0 .. rows - 1 is INDEX_OUT_OF_RANGE. */
sheaf_status shf_check_indices(const sheaf_embedding_desc *desc, const char *operand, sheaf_dtype index_dtype,
                               const void *indices, int64_t count, int64_t rows);

#endif
