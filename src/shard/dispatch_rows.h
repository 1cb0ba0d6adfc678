/* shard/dispatch_rows.h: rows travel to where indices are, gradients back to where rows are. */
#ifndef SHF_SHARD_DISPATCH_ROWS_H
#define SHF_SHARD_DISPATCH_ROWS_H

#include "shard/local.h"

/* What a rank asks of others and they of it. A rank deals with the members of its group: the ranks that differ from it
 * only along the dispatched mesh dimensions. Distinct indices in increasing order are at the same time in the order of
 * their owners. With nothing dispatched the group is the rank alone, and the rest is compaction. */
typedef struct shf_dispatch {
  const sheaf_mesh *mesh;
  int64_t members, self;  /* self: this rank's place among them */
  int64_t *member;        /* their ranks */
  int64_t *lo, *hi;       /* rows they hold */
  int64_t *ask_at;        /* members + 1: ids[ask_at[g]] .. are g's */
  int64_t *asked_at;      /* members + 1: asked[asked_at[g]] .. are those g asked for */
  int64_t distinct, *ids; /* distinct indices that a member holds */
  int64_t *owner;         /* of each of them: the member */
  int64_t *counts;        /* for telling each other how many */
  int64_t *asked;         /* rows this rank is asked for */
  int64_t *place;         /* per entry: its index's place in ids; `distinct` for a row nobody here holds; -1: skipped */
  int64_t id_bytes;       /* of an index on its way: 4 when the table's rows can be counted so */
  void *wire[2];          /* indices on their way, asked and received */
} shf_dispatch;

typedef struct shf_dispatch_task {
  int dims;                     /* bits: mesh dimensions that are dispatched */
  const sheaf_placement *table; /* how the table (or its gradient) lies */
  int64_t rows;                 /* of the whole table */
  const void *indices;          /* as the CPU sees them */
  int64_t entries;
  sheaf_dtype index_dtype;
  int64_t skipped; /* an index that is left out (padding); -1: none */
} shf_dispatch_task;

/* Finds the distinct indices and who has their rows. Memory comes from the pool, of the CPU. With no dims that is all:
 * this rank asks itself. */
sheaf_status shf_dispatch_group(shf_pool *pool, const sheaf_mesh *mesh, const shf_dispatch_task *task, shf_dispatch *d);

/* With dims: everybody learns what it is asked for. Collective. */
void shf_dispatch_ask(shf_flow *flow, shf_pool *pool, shf_dispatch *d);

/* Brings the distinct rows (of `cell` bytes each) here: `rows` is what this rank answers with, one row per `asked`;
 * `compact` gets one row per id. Buffers are the caller's, on `device`, and all ranks must have agreed. */
sheaf_status shf_dispatch_bring(const shf_dispatch *d, DLDevice device, const void *rows, void *compact, int64_t cell);

/* The other way: `compact` has one row per id, `rows` gets one per `asked`. */
sheaf_status shf_dispatch_return(const shf_dispatch *d, DLDevice device, const void *compact, void *rows, int64_t cell);

/* One message to and from each other member: parts of `send` and `receive` between the given places (members + 1), of
 * `cell` bytes each. */
sheaf_status shf_dispatch_swap(const shf_dispatch *d, DLDevice device, const void *send, const int64_t *send_at,
                               void *receive, const int64_t *receive_at, int64_t cell);

#endif
