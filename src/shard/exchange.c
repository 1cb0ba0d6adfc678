/* shard/exchange.c: moves arrays between placements by exchanging the parts where boxes meet.
 *
 * Who sends what follows from the placements alone: a rank gets each part of its new box from the ranks whose old box
 * has it. Along a mesh dimension on which the array was replicated (or stays partial) that is the rank with its own
 * coordinate there, so that replicas serve their own neighbourhood; along all others it is everybody. */
#include <string.h>

#include "core/cpu.h"
#include "shard/local.h"

int64_t shf_array_cells(const shf_array *array)
{
  shf_box box = shf_shard_box(array->mesh, array->at, array->rank, array->shape, array->mesh->rank);
  return shf_box_count(&box);
}

int64_t shf_array_bytes(const shf_array *array) { return shf_array_cells(array) * array->cell; }

/* ---- Who takes part --------------------------------------------------------------------------------------------- */

/* Whether this rank and another share what an exchange does not cross. */
static int are_peers(const shf_exchange *e, const int64_t *mine, const int64_t *theirs)
{
  for (int m = 0; m < e->from.mesh->dims; m++) {
    int crosses = shf_is_shard(&e->from.at[m]) || (shf_is_partial(&e->from.at[m]) && !shf_is_partial(&e->to.at[m]));
    if (!crosses && mine[m] != theirs[m]) return 0;
  }
  return 1;
}

/* What passes between this rank and another, in both directions. */
typedef struct dealing {
  shf_box sends, receives;
  int64_t send_cells, receive_cells;
  int is_first; /* of the terms that are added */
} dealing;

static int deal_with(const shf_exchange *e, int64_t rank, const shf_box *had, const shf_box *gets, dealing *d)
{
  const sheaf_mesh *mesh = e->from.mesh;
  int64_t mine[MAX_DIMS], theirs[MAX_DIMS];
  shf_mesh_coords(mesh, mesh->rank, mine);
  shf_mesh_coords(mesh, rank, theirs);
  if (!are_peers(e, mine, theirs)) return 0;
  shf_box their_old = shf_shard_box(mesh, e->from.at, e->from.rank, e->from.shape, rank);
  shf_box their_new = shf_shard_box(mesh, e->to.at, e->to.rank, e->to.shape, rank);
  d->sends = shf_box_meet(had, &their_new);
  d->receives = shf_box_meet(&their_old, gets);
  d->send_cells = shf_box_count(&d->sends);
  d->receive_cells = shf_box_count(&d->receives);
  d->is_first = 1;
  for (int m = 0; m < mesh->dims; m++)
    if (shf_is_partial(&e->from.at[m]) && !shf_is_partial(&e->to.at[m]) && theirs[m] != 0) d->is_first = 0;
  return 1;
}

static int is_reducing(const shf_exchange *e)
{
  for (int m = 0; m < e->from.mesh->dims; m++)
    if (shf_is_partial(&e->from.at[m]) && !shf_is_partial(&e->to.at[m])) return 1;
  return 0;
}

static shf_box box_of(const shf_array *a) { return shf_shard_box(a->mesh, a->at, a->rank, a->shape, a->mesh->rank); }

/* Parts that lie in one piece are sent from where they are, and received where they go unless they are added there. */
static int sent_in_place(const dealing *d, const shf_box *had) { return shf_box_piece(&d->sends, had) >= 0; }

static int received_in_place(const shf_exchange *e, const dealing *d, const shf_box *gets)
{
  return !is_reducing(e) && shf_box_piece(&d->receives, gets) >= 0;
}

static sheaf_status prepare_exchange(shf_exchange *e)
{
  const sheaf_mesh *mesh = e->from.mesh;
  shf_box had = box_of(&e->from), gets = box_of(&e->to);
  for (int64_t rank = 0; e->moves && rank < mesh->ranks; rank++) {
    dealing d;
    if (rank == mesh->rank || !deal_with(e, rank, &had, &gets, &d)) continue;
    if (d.send_cells && !sent_in_place(&d, &had)) e->send_bytes += d.send_cells * e->from.cell;
    if (d.receive_cells && !received_in_place(e, &d, &gets)) e->receive_bytes += d.receive_cells * e->from.cell;
  }
  int64_t bytes = shf_array_bytes(&e->to), staging = e->send_bytes + e->receive_bytes;
  e->to.data = shf_buffer_get(mesh, e->from.device, bytes);
  e->staging = shf_buffer_get(mesh, e->from.device, staging + 1); /* never none, so that places in it can be named */
  if ((bytes && !e->to.data) || !e->staging)
    return shf_core_no_memory("moving a tensor between ranks", (size_t)(bytes + staging));
  return SHEAF_OK;
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static sheaf_status pack(const shf_exchange *e, const dealing *d, const shf_box *had, char *target)
{
  const shf_part_fold copy = {.kind = SHF_FOLD_STORE, .cell = e->from.cell};
  return shf_space_fold(e->from.device, &copy, &d->sends, had, e->from.data, &d->sends, target);
}

/* One rank's part, by the op's own function. */
typedef struct unpacking {
  const shf_exchange *e;
  const char *source;
  int64_t base; /* of a slice: where it begins in the line */
} unpacking;

static void unpack_run(void *context, int64_t from_cell, int64_t to_cell, int64_t cells)
{
  const unpacking *u = context;
  int64_t cell = u->e->from.cell;
  const shf_reducer *r = &u->e->from.reducer;
  r->fold(r->context, u->e->to.data + to_cell * cell, u->source + from_cell * cell, u->base + to_cell, cells);
}

/* One rank's part, which lies in a buffer that holds `box`. The first term is stored, later ones are folded in. */
static sheaf_status unpack_part(const shf_exchange *e, const dealing *d, const shf_box *box, const char *source,
                                const shf_box *gets)
{
  const shf_reducer *r = &e->from.reducer;
  int folds = is_reducing(e) && !(d->is_first && (r->fold || r->kind != SHF_FOLD_SUM));
  if (folds && r->fold) {
    shf_box_walk(&d->receives, box, gets, unpack_run, &(unpacking){e, source, e->is_line ? gets->lo[0] : 0});
    return SHEAF_OK;
  }
  shf_part_fold fold = {.kind = folds ? r->kind : SHF_FOLD_STORE, .dtype = r->dtype, .cell = e->from.cell};
  fold.from_zero = folds && d->is_first && r->dtype != SHEAF_I64;
  if (fold.kind == SHF_FOLD_SUM && d->is_first && !fold.from_zero) fold.kind = SHF_FOLD_STORE; /* integers have one 0 */
  return shf_space_fold(e->from.device, &fold, &d->receives, box, source, gets, e->to.data);
}

/* Puts together what came, in the order of ranks: this rank's own part from where it was. */
static sheaf_status unpack(const shf_exchange *e, const shf_box *had, const shf_box *gets)
{
  const sheaf_mesh *mesh = e->from.mesh;
  const char *received = e->staging + e->send_bytes;
  for (int64_t rank = 0; rank < mesh->ranks; rank++) {
    dealing d;
    if (!deal_with(e, rank, had, gets, &d) || d.receive_cells == 0) continue;
    if (rank == mesh->rank) {
      SHF_TRY(unpack_part(e, &d, had, e->from.data, gets));
    } else if (!received_in_place(e, &d, gets)) {
      SHF_TRY(unpack_part(e, &d, &d.receives, received, gets));
      received += d.receive_cells * e->from.cell;
    }
  }
  return SHEAF_OK;
}

static sheaf_status run_exchange(shf_exchange *e)
{
  const sheaf_mesh *mesh = e->from.mesh;
  shf_box had = box_of(&e->from), gets = box_of(&e->to);
  shf_message *send = shf_mesh_messages(mesh, 0), *receive = shf_mesh_messages(mesh, 1);
  int64_t sends = 0, receives = 0, cell = e->from.cell;
  char *packed = e->staging, *received = e->staging + e->send_bytes;
  for (int64_t rank = 0; e->moves && rank < mesh->ranks; rank++) {
    dealing d;
    if (rank == mesh->rank || !deal_with(e, rank, &had, &gets, &d)) continue;
    if (d.send_cells && sent_in_place(&d, &had)) {
      send[sends++] = (shf_message){rank, e->from.data + shf_box_piece(&d.sends, &had) * cell, d.send_cells * cell};
    } else if (d.send_cells) {
      SHF_TRY(pack(e, &d, &had, packed));
      send[sends++] = (shf_message){rank, packed, d.send_cells * cell};
      packed += d.send_cells * cell;
    }
    if (d.receive_cells && received_in_place(e, &d, &gets)) {
      receive[receives++] =
          (shf_message){rank, e->to.data + shf_box_piece(&d.receives, &gets) * cell, d.receive_cells * cell};
    } else if (d.receive_cells) {
      receive[receives++] = (shf_message){rank, received, d.receive_cells * cell};
      received += d.receive_cells * cell;
    }
  }
  if (e->moves) SHF_TRY(shf_comm_exchange(mesh->comm, send, sends, receive, receives, e->from.device));
  return unpack(e, &had, &gets);
}

/* ---- Moves ------------------------------------------------------------------------------------------------------- */

static void add_exchange(shf_move *move, const shf_array *from, const sheaf_placement *to, int moves)
{
  shf_exchange *e = &move->exchange[move->exchanges++];
  *e = (shf_exchange){.from = *from, .to = *from, .moves = moves};
  memcpy(e->to.at, to, sizeof e->to.at);
  e->to.data = NULL; /* until it is prepared */
}

/* An all-reduce: the rank's part, seen as a line of cells, is cut into a slice per rank, the slices are reduced, and
 * then gathered. Dimensions that are not reduced are as good as replicated here: nothing crosses them. */
static void add_reduce(shf_move *move, const shf_array *now, const shf_stage *stage)
{
  shf_array line = *now;
  sheaf_placement sliced[MAX_DIMS] = {{0}}, whole[MAX_DIMS] = {{0}};
  line.rank = 1;
  line.shape[0] = shf_array_cells(now);
  for (int m = 0; m < now->mesh->dims; m++) {
    int reduces = shf_is_partial(&stage->from[m]) && !shf_is_partial(&stage->to[m]);
    line.at[m] = reduces ? stage->from[m] : sheaf_replicate();
    if (reduces) sliced[m] = sheaf_shard(0);
  }
  add_exchange(move, &line, sliced, stage->moves);
  move->exchange[move->exchanges - 1].is_line = 1;
  memcpy(line.at, sliced, sizeof sliced);
  add_exchange(move, &line, whole, stage->moves);
}

sheaf_status shf_move_prepare(shf_move *move, const shf_array *from, const sheaf_placement *to)
{
  memset(move, 0, sizeof *move);
  move->path = shf_shard_path(from->mesh, from->rank, from->shape, from->at, to);
  shf_array now = *from;
  sheaf_status status = SHEAF_OK;
  for (int i = 0; i < move->path.stages && status == SHEAF_OK; i++) {
    const shf_stage *stage = &move->path.stage[i];
    int first = move->exchanges;
    if (stage->kind == SHF_STAGE_EXCHANGE) add_exchange(move, &now, stage->to, stage->moves);
    if (stage->kind == SHF_STAGE_REDUCE) add_reduce(move, &now, stage);
    if (stage->kind == SHF_STAGE_FILL) add_exchange(move, &now, stage->from, 0); /* a copy that may be overwritten */
    for (int j = first; j < move->exchanges && status == SHEAF_OK; j++) {
      shf_exchange *e = &move->exchange[j];
      if (j > 0) e->from.data = move->exchange[j - 1].to.data;
      status = prepare_exchange(e);
    }
    memcpy(now.at, stage->to, sizeof now.at);
    for (int m = 0; m < now.mesh->dims && stage->kind == SHF_STAGE_FILL; m++)
      if (shf_is_partial(&now.at[m])) now.reducer = shf_reducer_of(&now.at[m], now.cell == 8 ? SHEAF_F64 : SHEAF_F32);
  }
  now.data = move->exchanges ? move->exchange[move->exchanges - 1].to.data : from->data;
  move->result = now;
  move->result_is_own = move->exchanges > 0;
  if (status != SHEAF_OK) shf_move_free(move);
  return status;
}

/* Whether this rank is the one that keeps the value where Replicate becomes Partial. */
static int keeps_value(const shf_array *array, const shf_stage *stage)
{
  int64_t coords[MAX_DIMS];
  shf_mesh_coords(array->mesh, array->mesh->rank, coords);
  for (int m = 0; m < array->mesh->dims; m++)
    if (!sheaf_placement_equal(&stage->from[m], &stage->to[m]) && coords[m] != 0) return 0;
  return 1;
}

sheaf_status shf_move_run(shf_move *move)
{
  sheaf_status status = SHEAF_OK;
  unsigned mode = shf_core_fp_enter();
  for (int i = 0; i < move->exchanges && status == SHEAF_OK; i++) status = run_exchange(&move->exchange[i]);
  shf_core_fp_leave(mode);
  SHF_TRY(status);
  const shf_stage *last = move->path.stages ? &move->path.stage[move->path.stages - 1] : NULL;
  if (last && last->kind == SHF_STAGE_FILL && !keeps_value(&move->result, last)) return shf_reduce_fill(&move->result);
  return SHEAF_OK;
}

void shf_move_free(shf_move *move)
{
  for (int i = 0; i < move->exchanges; i++) {
    shf_exchange *e = &move->exchange[i];
    shf_buffer_put(e->from.mesh, e->from.device, e->staging, e->send_bytes + e->receive_bytes + 1);
    shf_buffer_put(e->from.mesh, e->from.device, e->to.data, shf_array_bytes(&e->to));
  }
  memset(move, 0, sizeof *move);
}

char *shf_move_take(shf_move *move)
{
  char *data = move->result.data;
  move->exchange[move->exchanges - 1].to.data = NULL;
  move->result.data = NULL;
  return data;
}
