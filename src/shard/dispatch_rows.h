/* shard/dispatch_rows.h: rows travel to where indices are, gradients back to where rows are. */
#ifndef SHF_SHARD_DISPATCH_ROWS_H
#define SHF_SHARD_DISPATCH_ROWS_H

#include "shard/local.h"
#include "shard/row_set.h"

/* Who holds which rows: the members that have any, in the order of their rows, which is the order of ranks. To find
 * one, the rows are cut into parts of a power of two, each of which knows the first holder that may have some of it. */
typedef struct shf_holders {
  int64_t count;
  shf_row_range *range;
  int64_t *member, *first;
  int shift;
} shf_holders;

/* What a rank asks of others and they of it. A rank deals with the members of its group: the ranks that differ from it
 * only along the dispatched mesh dimensions. Members are the others in the order of ranks, and then this rank itself:
 * so what travels lies in one piece, and what is here already behind it. With nothing dispatched the group is the rank
 * alone, and the rest is compaction.
 *
 * Rows go by their numbers in the table (ids) and, here, by their *place* among the distinct ones that this rank names:
 * member by member, and within a member in the order of rows. */
typedef struct shf_dispatch {
  const sheaf_mesh *mesh;
  int64_t members;    /* the last one is this rank */
  int64_t turn;       /* this rank's place in the order of ranks */
  int64_t *member;    /* their ranks */
  int64_t *ask_at;    /* members + 1: ids[ask_at[g]] .. are g's */
  int64_t *asked_at;  /* members: asked[asked_at[g]] .. are those g asked for, of the others */
  int64_t distinct;   /* rows that entries name and a member holds */
  int64_t away;       /* of those, the ones that others hold: the first */
  sheaf_dtype number; /* of ids, asked and place: I32 when the table's rows can be counted so, else I64 */
  void *ids;          /* of the distinct rows; from shf_dispatch_count on */
  void *asked;        /* rows others ask this rank for */
  void *place;        /* shf_dispatch_place: of each entry's row; `distinct` for one nobody here holds; -1: skipped */
  int64_t row_lo, row_hi, before; /* this rank's rows, and how many distinct ones come before them in the table */
  shf_holders holders;
  shf_row_set set;
  /* What entries name. */
  const void *indices; /* as the CPU sees them */
  sheaf_dtype index_dtype;
  int64_t entries, rows, skipped; /* rows: of the whole table; skipped: an index that is left out (padding), -1: none */
} shf_dispatch;

typedef struct shf_dispatch_task {
  int dims;                     /* bits: mesh dimensions that are dispatched */
  const sheaf_placement *table; /* how the table (or its gradient) lies */
  int64_t rows;
  const void *indices;
  int64_t entries;
  sheaf_dtype index_dtype;
  int64_t skipped;
} shf_dispatch_task;

/* Finds the distinct rows and who has them. Memory comes from the pool, of the CPU. */
sheaf_status shf_dispatch_group(shf_pool *pool, const sheaf_mesh *mesh, const shf_dispatch_task *task, shf_dispatch *d);

/* The rows that entries first .. first + count - 1 name; -1: skipped, or bad. And the places of rows. Loops over
 * entries take them by blocks. */
enum { SHF_ENTRIES = 512 };
void shf_dispatch_rows(const shf_dispatch *d, int64_t first, int64_t count, int64_t *rows);
void shf_dispatch_places(const shf_dispatch *d, const int64_t *rows, int64_t count, int64_t *places);

/* Makes `place`. */
sheaf_status shf_dispatch_place(shf_pool *pool, shf_dispatch *d);

/* The member that holds a row; -1: none. */
static inline int64_t shf_dispatch_owner(const shf_dispatch *d, int64_t row)
{
  const shf_holders *h = &d->holders;
  int64_t at = h->first[row >> h->shift];
  while (at < h->count && h->range[at].hi <= row) at++;
  return at < h->count && h->range[at].lo <= row ? h->member[at] : -1;
}

/* Bytes of a number, and where number `at` of a list is; NULL of none. */
static inline int64_t shf_number_bytes(const shf_dispatch *d) { return d->number == SHEAF_I32 ? 4 : 8; }
static inline const void *shf_numbers_from(const shf_dispatch *d, const void *numbers, int64_t at)
{
  return numbers ? (const char *)numbers + at * shf_number_bytes(d) : NULL;
}

/* Lists the distinct rows, and how many rows others ask for becomes known to each: asked_at. Collective over the
 * dispatched dimensions `dims`, and done by ranks that failed as well: they ask for none, and nothing has to be agreed
 * on before. */
void shf_dispatch_count(shf_flow *flow, shf_pool *pool, int dims, shf_dispatch *d);

/* After all ranks have agreed: which rows. Collective. */
sheaf_status shf_dispatch_ask(const shf_dispatch *d);

/* Rows asked for by others; 0 when the flow has failed. */
int64_t shf_dispatch_asked(const shf_flow *flow, const shf_dispatch *d);

/* Rows (of `cell` bytes each) from their owners: `rows` has one per `asked`, `compact` gets one for each of the `away`
 * ids. Buffers are the caller's, on `device`, and all ranks must have agreed. */
sheaf_status shf_dispatch_bring(const shf_dispatch *d, DLDevice device, const void *rows, void *compact, int64_t cell);

/* The other way: `compact` has one row for each of the `away` ids, `rows` gets one per `asked`. */
sheaf_status shf_dispatch_return(const shf_dispatch *d, DLDevice device, const void *compact, void *rows, int64_t cell);

/* One message to and from each other member: parts of `send` and `receive` between the given places, of `cell` bytes
 * each. shf_dispatch_finish ends what was started; a rank may work in between, but not communicate. */
sheaf_status shf_dispatch_start(const shf_dispatch *d, DLDevice device, const void *send, const int64_t *send_at,
                                void *receive, const int64_t *receive_at, int64_t cell);
sheaf_status shf_dispatch_finish(const shf_dispatch *d);
sheaf_status shf_dispatch_swap(const shf_dispatch *d, DLDevice device, const void *send, const int64_t *send_at,
                               void *receive, const int64_t *receive_at, int64_t cell);

/* Numbers of one rank for each of the others (shf_mesh_numbers), `count` for a rank, which begin at mine + rank *
 * count; theirs likewise. Collective over the dispatched dimensions. */
sheaf_status shf_dispatch_tell(const sheaf_mesh *mesh, int dims, int64_t count, const int64_t *mine, void *theirs);

/* The member whose turn it is in the order of ranks. */
static inline int64_t shf_dispatch_at_turn(const shf_dispatch *d, int64_t turn)
{
  return turn == d->turn ? d->members - 1 : turn < d->turn ? turn : turn - 1;
}

#endif
