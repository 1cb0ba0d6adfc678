/* shard/move.h: arrays on a mesh, and moving them: what every op on distributed tensors is made of.
 *
 * An op first *prepares*: it checks, allocates all it will need, and works out its messages. Then all ranks agree that
 * everybody is ready (agree.c). Only then do they *run* messages, which can no longer fail; so no rank ever waits for
 * one that gave up. */
#ifndef SHF_SHARD_MOVE_H
#define SHF_SHARD_MOVE_H

#include "shard/shard_impl.h"

/* ---- Agreement: agree.c ----------------------------------------------------------------------------------------- */

/* What a rank tells all others. */
typedef struct shf_record {
  int32_t status;
  int32_t unused;
  uint64_t digest;  /* of a sentence that says what is being done */
  int64_t facts[2]; /* whatever the ranks need to know of each other */
} shf_record;

/* Collective. OK when every rank brings OK; else all fail with the status and words of the first one that does not. */
sheaf_status shf_agree(const sheaf_mesh *mesh, sheaf_status mine);

/* The same, and all must be doing the same: `doing` says what. `facts` (optional) are told to all; afterwards
 * shf_agree_facts gives those of each rank, until the next agreement. */
sheaf_status shf_agree_on(const sheaf_mesh *mesh, sheaf_status mine, const char *doing, const int64_t facts[2]);
const int64_t *shf_agree_facts(const sheaf_mesh *mesh, int64_t rank);

/* What a call has come to. A rank on which something failed does no more work, but goes on to the next agreement; once
 * all have agreed on a failure, it is settled and nobody communicates any more. */
typedef struct shf_flow {
  const sheaf_mesh *mesh;
  sheaf_status status;
  int settled;
  int pending; /* something could have failed since the last agreement: the same on every rank */
} shf_flow;

/* FLOW(flow, call): does it unless something failed before. SURELY: what can only fail when the engine does. */
#define SURELY(flow, call)                                   \
  do {                                                       \
    if ((flow)->status == SHEAF_OK) (flow)->status = (call); \
  } while (0)
#define FLOW(flow, call) \
  do {                   \
    (flow)->pending = 1; \
    SURELY(flow, call);  \
  } while (0)

/* Collective: whether all ranks are well. `settle` does nothing when nothing could fail since the last time. */
int shf_flow_agree(shf_flow *flow);
int shf_flow_agree_on(shf_flow *flow, const char *doing, const int64_t facts[2]);
int shf_flow_settle(shf_flow *flow);

/* Lists of messages, one for each rank at most; behind the records in the mesh's scratch. */
shf_message *shf_mesh_messages(const sheaf_mesh *mesh, int receiving);

/* ---- Reducing: reduce.c ----------------------------------------------------------------------------------------- */

typedef enum shf_reduce_kind {
  SHF_REDUCE_NONE,
  SHF_REDUCE_BITS, /* cells of 1, 2, 4 or 8 bytes, added as unsigned integers */
  SHF_REDUCE_SUM,
  SHF_REDUCE_PROD,
  SHF_REDUCE_MAX, /* the first NaN, else the first of the largest */
  SHF_REDUCE_MIN,
  SHF_REDUCE_OTHER /* by `fold` */
} shf_reduce_kind;

/* total = total (op) term, for `cells` cells. In an all-reduce, `first` is their place in the rank's part. */
typedef void shf_fold(void *context, char *total, const char *term, int64_t first, int64_t cells);

typedef struct shf_reducer {
  shf_reduce_kind kind;
  sheaf_dtype dtype; /* SUM and PROD: F32 F64 I64; MAX and MIN: F32 F64 */
  shf_fold *fold;
  void *context;
} shf_reducer;

/* The first term is stored, later ones are folded in. */
void shf_reduce_terms(const shf_reducer *reducer, int64_t cell, int is_first, char *total, const char *term,
                      int64_t first, int64_t cells);

/* Cells that change nothing. */
void shf_reduce_fill(const shf_reducer *reducer, int64_t cell, char *data, int64_t cells);

/* ---- Arrays and moves: exchange.c ------------------------------------------------------------------------------- */

typedef struct shf_array {
  const sheaf_mesh *mesh;
  int rank;
  int64_t shape[MAX_RANK];
  int64_t cell;
  shf_reducer reducer; /* for partial placements */
  sheaf_placement at[MAX_DIMS];
  char *data;
} shf_array;

/* Cells and bytes of this rank's part. */
int64_t shf_array_cells(const shf_array *array);
int64_t shf_array_bytes(const shf_array *array);

enum { MAX_EXCHANGES = 2 * MAX_STAGES };

/* One exchange, worked out for this rank. */
typedef struct shf_exchange {
  shf_array from, to;
  int moves;
  char *staging; /* packed parts, to be sent, then received */
  int64_t send_bytes, receive_bytes;
  int passing; /* the result is needed only while the move runs: it is one of the mesh's buffers */
} shf_exchange;

typedef struct shf_move {
  shf_path path;
  int exchanges;
  shf_exchange exchange[MAX_EXCHANGES];
  shf_array result;  /* where the data is afterwards; the source's own when nothing had to be done */
  int result_is_own; /* 0: the source's */
} shf_move;

/* Works out a move and allocates for it; nothing is sent, the source's data need not be there yet. On failure there is
 * nothing to free. `passing`: the result too is one of the mesh's buffers, to be given back with shf_buffer_put when it
 * was taken. */
sheaf_status shf_move_prepare(shf_move *move, const shf_array *from, const sheaf_placement *to, int passing);

/* Whether running it sends anything (the same on every rank). */
int shf_move_sends(const shf_move *move);

/* Collective, when it sends. */
sheaf_status shf_move_run(shf_move *move);

/* Frees everything, the result too unless it was taken. NULL data afterwards. */
void shf_move_free(shf_move *move);

/* Takes the result's data, which must be the move's own, to be freed by the caller. */
char *shf_move_take(shf_move *move);

#endif
