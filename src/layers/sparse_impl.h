/* sparse_impl.h: row numbers made compact: the rows that a call touches, numbered from 0. */
#ifndef SHF_SPARSE_IMPL_H
#define SHF_SPARSE_IMPL_H

#include "layers/layers_impl.h"

/* What to do with which entries. */
typedef struct shf_compact_rule {
  const char *operand; /* for messages */
  int64_t rows;        /* of the whole table */
  int64_t problems;    /* each of so many, the first dimension of the indices, has such a table; 0: one table for all */
  int64_t padding;     /* a row whose entries are skipped; -1: none */
  int each;            /* every entry gets a row of its own */
  int absent;          /* -1 is no error (arg of an empty bag) */
  sheaf_bad_index bad_index;
} shf_compact_rule;

/* The rows of the tables of all problems are counted through, the first problem's first. A row's number is its place
 * among those of its problem. */
typedef struct shf_compact {
  sheaf_tensor *ids;      /* [count], increasing unless `each`; i64, or of the type of the indices of one table */
  sheaf_tensor *indices;  /* as the given ones, i64: numbers of rows, -1 for skipped entries */
  sheaf_tensor *host_ids; /* ids where the host reads them; the same ones on the CPU */
  sheaf_tensor *starts;   /* where the ids of each problem begin, and the end; i64, on the host */
  int64_t count;
  int64_t most; /* rows of the problem that has the most */
} shf_compact;

/* Numbers the rows that `indices` name: on the host, to which those of a device are copied, and what comes of it back.
 * Release with shf_compact_free, also after a failure. */
sheaf_status shf_compact_rows(sheaf_tensor *indices, const shf_compact_rule *rule, shf_compact *compact);
void shf_compact_free(shf_compact *compact);

/* Where id is in increasing ids, -1 when it is not. */
int64_t shf_find_id(const sheaf_tensor *ids, int64_t id);

/* ---- sparse_sums.c ---- */

static inline int shf_is_sparse(const sheaf_tensor *t) { return t && t->form == SHEAF_FORM_SPARSE; }

/* Of a tensor [..., D]: its rows, counted through. */
static inline int64_t shf_rows_of(const sheaf_tensor *t)
{
  int64_t rows = 1;
  for (int i = 0; i < t->rank - 1; i++) rows *= t->extent[i];
  return rows;
}

/* Whether an input of the call has this key. */
int shf_sparse_is_on(const sheaf_call *call, int key);

/* The same tensor with increasing ids, and as a dense one. */
sheaf_status shf_sparse_coalesced(sheaf_tensor *sparse, const sheaf_frame *frame, sheaf_tensor **out);
sheaf_status shf_sparse_dense(sheaf_tensor *sparse, const sheaf_frame *frame, sheaf_tensor **out);

/* Kernels of the Sparse key. */
sheaf_status shf_sparse_reshape(const sheaf_call *call, const sheaf_frame *frame);
sheaf_status shf_sparse_coalesce(const sheaf_call *call, const sheaf_frame *frame);
sheaf_status shf_sparse_to_dense(const sheaf_call *call, const sheaf_frame *frame);
sheaf_status shf_sparse_cast(const sheaf_call *call, const sheaf_frame *frame);
sheaf_status shf_sparse_add(const sheaf_call *call, const sheaf_frame *frame);

#endif
