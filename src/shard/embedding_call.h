/* shard/embedding_call.h: what forward and backward of the embedding family share. */
#ifndef SHF_SHARD_EMBEDDING_CALL_H
#define SHF_SHARD_EMBEDDING_CALL_H

#include "shard/shard_call.h"

typedef struct shf_embedding_call {
  shf_call c; /* first: the one is got from the other */
  const sheaf_embedding_desc *desc;
  const sheaf_shard_embedding_args *args;
  sheaf_dtype acc;
  int quantised;                   /* packed rows: problem.dtype is INT8 or INT4 */
  int64_t row_lo, row_hi, columns; /* the part of the table, or of its gradient, that is this rank's */
  int64_t row_bytes;               /* of the table, here */
  shf_bags bags;
} shf_embedding_call;

/* What a rank's own work reads as table: its part of the whole one, or rows brought together under new numbers. */
typedef struct shf_local_rows {
  sheaf_dtype dtype;
  void *data;              /* forward: the rows; backward: their gradient */
  int64_t rows, row_begin; /* of `total` */
  int64_t total;
  const void *indices; /* of index_dtype */
  sheaf_dtype index_dtype;
  int renumbered; /* skipped entries are -1 already, and bad ones were reported */
} shf_local_rows;

/* The table's own rows, as they lie here. */
shf_local_rows shf_embedding_rows(const shf_embedding_call *e, const sheaf_dtensor *table);
sheaf_operand shf_embedding_table(const shf_embedding_call *e, const shf_local_rows *rows, shf_local *local);

/* Description and operands of the local op. The tensors behind the operands live in `parts`. */
typedef struct shf_local_embedding_parts {
  shf_local table, indices, offsets, weights, grad_out, out, arg, table_grad;
} shf_local_embedding_parts;

void shf_embedding_local_op(const shf_embedding_call *e, sheaf_embedding_kind kind, const shf_local_rows *rows,
                            sheaf_embedding_desc *desc, sheaf_embedding_args *args, shf_local_embedding_parts *parts);

/* Entries of the rank grouped by the rows they name, by the CPU's indices. */
void shf_embedding_group(shf_embedding_call *e, const sheaf_placement *table, const void *indices, int64_t entries,
                         shf_dispatch *d);

/* Sums of this rank's rows over its bags, in acc. */
sheaf_status shf_embedding_sum(shf_embedding_call *e, const sheaf_dtensor *table, void *sums);

/* The rows that the entries grouped in `d` name, one after the other, under new numbers, as elements of type `wanted`.
 * Collective when rows are dispatched. */
void shf_embedding_compact(shf_embedding_call *e, const sheaf_dtensor *table, sheaf_dtype wanted, shf_dispatch *d,
                           shf_local_rows *rows);

/* A dispatched lookup on the CPU needs no local op: rows go from where they come to where they belong. Collective. */
static inline int shf_embedding_is_copied(const shf_embedding_call *e)
{
  return e->c.strategy.dispatch && e->desc->kind == SHEAF_LOOKUP && !e->quantised && shf_is_host(e->c.site.device);
}
void shf_embedding_copy(shf_embedding_call *e, const sheaf_dtensor *table, shf_dispatch *d, sheaf_dtensor **out);

/* The gradient of per-sample weights, into a new tensor. */
void shf_embedding_weights_grad(shf_embedding_call *e, sheaf_dtensor **weights_grad);

void shf_embedding_forward(shf_embedding_call *e);
void shf_embedding_backward(shf_embedding_call *e);

#endif
