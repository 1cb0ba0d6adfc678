/* shard/move.h: arrays on a mesh, and moving them: what every op on distributed tensors is made of.
 *
 * An op first *prepares*: it checks, allocates all it will need, and works out its messages. Then all ranks agree that
 * everybody is ready (agree.c). Only then do they *run* messages, which can no longer fail; so no rank ever waits for
 * one that gave up. (Numbers that lie in the mesh's scratch need no memory, and so no agreement: a rank that failed
 * sends zeros, shf_dispatch_count.) */
#ifndef SHF_SHARD_MOVE_H
#define SHF_SHARD_MOVE_H

#include "shard/space.h"

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

/* FLOW(flow, call): does it unless something failed before. SURELY: what can only fail when the engine does. FLOW_ON:
 * what can fail on a device, but not on the CPU. */
#define SURELY(flow, call)                                   \
  do {                                                       \
    if ((flow)->status == SHEAF_OK) (flow)->status = (call); \
  } while (0)
#define FLOW(flow, call) \
  do {                   \
    (flow)->pending = 1; \
    SURELY(flow, call);  \
  } while (0)

#define FLOW_ON(flow, device, call)                \
  do {                                             \
    if (!shf_is_host(device)) (flow)->pending = 1; \
    SURELY(flow, call);                            \
  } while (0)

/* Collective: whether all ranks are well. `settle` does nothing when nothing could fail since the last time. */
int shf_flow_agree(shf_flow *flow);
int shf_flow_agree_on(shf_flow *flow, const char *doing, const int64_t facts[2]);
int shf_flow_settle(shf_flow *flow);

/* Whatever was enqueued on a device has happened, or did not: agreed on by the next settle. */
void shf_flow_wait(shf_flow *flow, DLDevice device);

/* In the mesh's scratch, behind the records: lists of messages, one for each rank at most; and numbers that a rank
 * tells others and they tell it, two for each rank. */
shf_message *shf_mesh_messages(const sheaf_mesh *mesh, int receiving);
int64_t *shf_mesh_numbers(const sheaf_mesh *mesh, int receiving);
enum { SHF_SCRATCH = sizeof(shf_record) + 2 * sizeof(shf_message) + 4 * sizeof(int64_t) }; /* bytes for each rank */

/* ---- Reducing: reduce.c ----------------------------------------------------------------------------------------- */

/* total = total (op) term, for `cells` cells. `first` is their place in the rank's new part; in an all-reduce, in the
 * part it had. */
typedef void shf_fold(void *context, char *total, const char *term, int64_t first, int64_t cells);

/* How terms of ranks become one: STORE, there are none; or a function of the op's own, for cells in the CPU's
 * memory. */
typedef struct shf_reducer {
  shf_fold_kind kind;
  sheaf_dtype dtype; /* SUM and PROD: F32 F64 I64; MAX and MIN: F32 F64 */
  shf_fold *fold;
  void *context;
} shf_reducer;

/* Folds a run of cells on the CPU. */
void shf_fold_cells(const shf_part_fold *fold, char *total, const char *term, int64_t cells);

/* ---- Arrays and moves: exchange.c ------------------------------------------------------------------------------- */

typedef struct shf_array {
  const sheaf_mesh *mesh;
  DLDevice device;
  int rank;
  int64_t shape[MAX_RANK];
  int64_t cell;
  shf_reducer reducer; /* for partial placements */
  sheaf_placement at[MAX_DIMS];
  char *data;
} shf_array;

/* Sets every cell of the rank's part to what changes nothing in a reduction. */
sheaf_status shf_reduce_fill(const shf_array *array);

/* Cells and bytes of this rank's part. */
int64_t shf_array_cells(const shf_array *array);
int64_t shf_array_bytes(const shf_array *array);

enum { MAX_EXCHANGES = 2 * MAX_STAGES };

/* One exchange, worked out for this rank. */
typedef struct shf_exchange {
  shf_array from, to;
  int moves;
  int is_line;   /* a rank's part cut into slices: part of an all-reduce */
  char *staging; /* packed parts, to be sent, then received */
  int64_t send_bytes, receive_bytes;
} shf_exchange;

typedef struct shf_move {
  shf_path path;
  int exchanges;
  shf_exchange exchange[MAX_EXCHANGES];
  shf_array result;  /* where the data is afterwards; the source's own when nothing had to be done */
  int result_is_own; /* 0: the source's */
} shf_move;

/* Works out a move and allocates for it; nothing is sent, the source's data need not be there yet. On failure there is
 * nothing to free. */
sheaf_status shf_move_prepare(shf_move *move, const shf_array *from, const sheaf_placement *to);

/* Collective, when it sends. */
sheaf_status shf_move_run(shf_move *move);

/* Frees everything, the result too unless it was taken. NULL data afterwards. */
void shf_move_free(shf_move *move);

/* Takes the result's data, which must be the move's own: one of the mesh's buffers, of
 * shf_array_bytes(&move->result). */
char *shf_move_take(shf_move *move);

#endif
