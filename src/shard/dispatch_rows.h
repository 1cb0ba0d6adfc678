/* shard/dispatch_rows.h: rows travel to where indices are, gradients back to where rows are. */
#ifndef SHF_SHARD_DISPATCH_ROWS_H
#define SHF_SHARD_DISPATCH_ROWS_H

#include "shard/local.h"

/* What a rank asks of others and they of it. A rank deals with the members of its group: the ranks that differ from it
 * only along the dispatched mesh dimensions. Members are the others in the order of ranks, and then this rank itself: so
 * what travels lies in one piece, and what is here already behind it. With nothing dispatched the group is the rank alone,
 * and the rest is compaction. */
typedef struct shf_dispatch {
  const sheaf_mesh *mesh;
  int64_t members;        /* the last one is this rank */
  int64_t turn;           /* this rank's place in the order of ranks */
  int64_t *member;        /* their ranks */
  int64_t *ask_at;        /* members + 1: ids[ask_at[g]] .. are g's */
  int64_t *asked_at;      /* members: asked[asked_at[g]] .. are those g asked for, of the others */
  int64_t distinct, *ids; /* distinct indices that a member holds, by member */
  int64_t away;           /* of those, the ones that others hold: the first */
  int64_t *owner;         /* of each of them: the member */
  int64_t *asked;         /* rows others ask this rank for */
  int64_t *place;         /* per entry: its index's place in ids; `distinct` for a row nobody here holds; -1: skipped */
  int64_t *head,
      *next;      /* linked: the last entry with each distinct index, and before each entry the one before; -1: none */
  int64_t linked; /* entries whose index a member holds */
  int64_t id_bytes; /* of an index on its way: 4 when the table's rows can be counted so */
  void *wire[2];    /* indices on their way, asked and received */
} shf_dispatch;

typedef struct shf_dispatch_task {
  int dims;                     /* bits: mesh dimensions that are dispatched */
  const sheaf_placement *table; /* how the table (or its gradient) lies */
  int64_t rows;                 /* of the whole table */
  const void *indices;          /* as the CPU sees them */
  int64_t entries;
  sheaf_dtype index_dtype;
  int64_t skipped; /* an index that is left out (padding); -1: none */
  int links;       /* whether entries are to be found by their index */
} shf_dispatch_task;

/* Finds the distinct indices and who has their rows. Memory comes from the pool, of the CPU. */
sheaf_status shf_dispatch_group(shf_pool *pool, const sheaf_mesh *mesh, const shf_dispatch_task *task, shf_dispatch *d);

/* How many rows others ask for becomes known to each: asked_at. Collective over the dispatched dimensions `dims`, and done
 * by ranks that failed as well: they ask for none, and nothing has to be agreed on before. */
void shf_dispatch_count(shf_flow *flow, shf_pool *pool, int dims, shf_dispatch *d);

/* After all ranks have agreed: which rows. Collective. */
sheaf_status shf_dispatch_ask(const shf_dispatch *d);

/* Rows asked for by others; 0 when the flow has failed. */
int64_t shf_dispatch_asked(const shf_flow *flow, const shf_dispatch *d);

/* Rows (of `cell` bytes each) from their owners: `rows` has one per `asked`, `compact` gets one for each of the `away` ids.
 * Buffers are the caller's, on `device`, and all ranks must have agreed. */
sheaf_status shf_dispatch_bring(const shf_dispatch *d, DLDevice device, const void *rows, void *compact, int64_t cell);

/* The other way: `compact` has one row for each of the `away` ids, `rows` gets one per `asked`. */
sheaf_status shf_dispatch_return(const shf_dispatch *d, DLDevice device, const void *compact, void *rows, int64_t cell);

/* One message to and from each other member: parts of `send` and `receive` between the given places, of `cell` bytes each.
 * shf_dispatch_finish ends what was started; a rank may work in between, but not communicate. */
sheaf_status shf_dispatch_start(const shf_dispatch *d, DLDevice device, const void *send, const int64_t *send_at,
                                void *receive, const int64_t *receive_at, int64_t cell);
sheaf_status shf_dispatch_finish(const shf_dispatch *d);
sheaf_status shf_dispatch_swap(const shf_dispatch *d, DLDevice device, const void *send, const int64_t *send_at,
                               void *receive, const int64_t *receive_at, int64_t cell);

/* Numbers of one rank for each of the others (shf_mesh_numbers), `count` for a rank, which begin at mine + rank * count;
 * theirs likewise. Collective over the dispatched dimensions. */
sheaf_status shf_dispatch_tell(const sheaf_mesh *mesh, int dims, int64_t count, const int64_t *mine, int64_t *theirs);

/* The member whose turn it is in the order of ranks. */
static inline int64_t shf_dispatch_at_turn(const shf_dispatch *d, int64_t turn)
{
  return turn == d->turn ? d->members - 1 : turn < d->turn ? turn : turn - 1;
}

#endif
