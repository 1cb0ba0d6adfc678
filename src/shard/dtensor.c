/* shard/dtensor.c: distributed tensors, and changing how they lie. */
#include <stdio.h>
#include <string.h>

#include "shard/local.h"

static int is_bags(const sheaf_dtensor_desc *desc)
{
  for (int m = 0; m < desc->mesh->dims; m++)
    if (desc->placements[m].kind == SHEAF_PLACE_BAGS) return 1;
  return 0;
}

static int has_partial(const sheaf_mesh *mesh, const sheaf_placement *placements)
{
  for (int m = 0; m < mesh->dims; m++)
    if (placements[m].kind == SHEAF_PLACE_PARTIAL) return 1;
  return 0;
}

sheaf_dtype shf_local_dtype(const sheaf_mesh *mesh, sheaf_dtype dtype, const sheaf_placement *placements)
{
  int narrow = dtype == SHEAF_F16 || dtype == SHEAF_BF16;
  return narrow && has_partial(mesh, placements) ? SHEAF_F32 : dtype;
}

shf_reducer shf_reducer_of(const sheaf_placement *placement, sheaf_dtype local_dtype)
{
  static const shf_fold_kind kinds[] = {SHF_FOLD_SUM, SHF_FOLD_MAX, SHF_FOLD_MIN, SHF_FOLD_PROD};
  if (placement->kind == SHEAF_PLACE_MASK_PARTIAL) return (shf_reducer){.kind = SHF_FOLD_BITS};
  if (placement->kind != SHEAF_PLACE_PARTIAL) return (shf_reducer){.kind = SHF_FOLD_STORE};
  return (shf_reducer){.kind = kinds[placement->op], .dtype = local_dtype};
}

static shf_reducer reducer_of_list(const sheaf_mesh *mesh, const sheaf_placement *placements, sheaf_dtype local_dtype)
{
  for (int m = 0; m < mesh->dims; m++)
    if (shf_is_partial(&placements[m])) return shf_reducer_of(&placements[m], local_dtype);
  return (shf_reducer){.kind = SHF_FOLD_STORE};
}

shf_array shf_dtensor_array(const sheaf_dtensor *tensor)
{
  const sheaf_dtensor_desc *d = &tensor->desc;
  sheaf_dtype local = shf_local_dtype(d->mesh, d->dtype, d->placements);
  shf_array array = {.mesh = d->mesh,
                     .device = tensor->local.device,
                     .rank = d->rank,
                     .cell = shf_core_dtype_size(local),
                     .data = shf_dtensor_data(tensor)};
  memcpy(array.shape, d->shape, sizeof array.shape);
  memcpy(array.at, d->placements, sizeof array.at);
  array.reducer = reducer_of_list(d->mesh, d->placements, local);
  return array;
}

static sheaf_status check_desc(const sheaf_dtensor_desc *desc)
{
  SHF_TRY(shf_shard_check_struct(desc, sizeof *desc, "desc"));
  SHF_REQUIRE(desc->mesh && desc->mesh->comm, INVALID_PROBLEM, "a distributed tensor needs a mesh over a communicator");
  SHF_REQUIRE(shf_core_dtype_size(desc->dtype) > 0, UNSUPPORTED, "a distributed tensor cannot be of type %s",
              sheaf_dtype_name(desc->dtype));
  SHF_REQUIRE(desc->rank >= 0 && desc->rank <= MAX_RANK, INVALID_PROBLEM, "a tensor has 0 to %d dimensions, not %d",
              MAX_RANK, desc->rank);
  int64_t bytes = shf_core_dtype_size(desc->dtype) * 2; /* partial values may be wider */
  for (int d = 0; d < desc->rank; d++)
    SHF_REQUIRE(desc->shape[d] >= 0 && !__builtin_mul_overflow(bytes, desc->shape[d] ? desc->shape[d] : 1, &bytes),
                INVALID_PROBLEM, "dimension %d of the tensor is %lld", d, (long long)desc->shape[d]);
  SHF_TRY(shf_placements_check(desc->mesh, desc->placements, desc->rank, "placements"));
  int floating =
      desc->dtype == SHEAF_F32 || desc->dtype == SHEAF_F64 || desc->dtype == SHEAF_F16 || desc->dtype == SHEAF_BF16;
  SHF_REQUIRE(floating || !has_partial(desc->mesh, desc->placements), UNSUPPORTED,
              "a Partial tensor cannot be of type %s", sheaf_dtype_name(desc->dtype));
  SHF_REQUIRE(!is_bags(desc) || desc->rank == 1, INVALID_PROBLEM, "a tensor placed by Bags has 1 dimension, not %d",
              desc->rank);
  return SHEAF_OK;
}

/* A tensor without data; its part's shape from its placements, or `bag_entries`. */
static sheaf_dtensor *make(const sheaf_dtensor_desc *desc, int64_t bag_entries)
{
  sheaf_dtensor *t = shf_core_alloc(sizeof *t);
  if (!t) return NULL;
  memset(t, 0, sizeof *t);
  memcpy(&t->desc, desc, sizeof *desc);
  t->desc.struct_size = sizeof *desc;
  if (t->desc.device.device_type == 0) t->desc.device = shf_host();
  shf_box box = shf_shard_box(desc->mesh, desc->placements, desc->rank, desc->shape, desc->mesh->rank);
  int64_t stride = 1;
  for (int d = desc->rank - 1; d >= 0; d--) {
    t->local_shape[d] = is_bags(desc) ? bag_entries : box.hi[d] - box.lo[d];
    t->local_strides[d] = stride;
    stride *= t->local_shape[d];
  }
  t->local = (DLTensor){.device = t->desc.device,
                        .ndim = desc->rank,
                        .dtype = sheaf_dtype_to_dl(shf_local_dtype(desc->mesh, desc->dtype, desc->placements)),
                        .shape = t->local_shape,
                        .strides = t->local_strides};
  t->owned_bytes = (size_t)(stride * shf_core_dtype_size(shf_local_dtype(desc->mesh, desc->dtype, desc->placements)));
  return t;
}

sheaf_status sheaf_dtensor_wrap(const sheaf_dtensor_desc *desc, const DLTensor *local, sheaf_dtensor **tensor)
{
  SHF_REQUIRE(tensor, INVALID_PROBLEM, "tensor is NULL");
  *tensor = NULL;
  SHF_TRY(check_desc(desc));
  SHF_REQUIRE(local, INVALID_PROBLEM, "local is NULL");
  SHF_REQUIRE(local->ndim == desc->rank, INVALID_PROBLEM, "the local part has %d dimensions, the tensor %d",
              (int)local->ndim, desc->rank);
  sheaf_dtensor_desc whole = *desc;
  whole.device = local->device;
  SHF_TRY(shf_space_check(&whole.device, "the local part"));
  sheaf_dtensor *t = make(&whole, desc->rank > 0 ? local->shape[0] : 0);
  if (!t) return shf_core_no_memory("a distributed tensor", sizeof *t);
  sheaf_status status = SHEAF_OK;
  int64_t stride = 1;
  for (int d = desc->rank - 1; d >= 0 && status == SHEAF_OK; d--) {
    if (local->shape[d] != t->local_shape[d])
      status = shf_core_fail(SHEAF_INVALID_PROBLEM,
                             "rank %lld has %lld elements in dimension %d of its part; it should have %lld",
                             (long long)desc->mesh->rank, (long long)local->shape[d], d, (long long)t->local_shape[d]);
    else if (local->strides && local->shape[d] > 1 && local->strides[d] != stride)
      status = shf_core_fail(SHEAF_UNSUPPORTED, "the local part is not contiguous in dimension %d", d);
    stride *= local->shape[d];
  }
  DLDataType type = t->local.dtype;
  if (status == SHEAF_OK &&
      (local->dtype.code != type.code || local->dtype.bits != type.bits || local->dtype.lanes != type.lanes))
    status = shf_core_fail(SHEAF_INVALID_PROBLEM, "the local part is not of type %s",
                           sheaf_dtype_name(sheaf_dtype_from_dl(type)));
  if (status == SHEAF_OK && !local->data && stride > 0)
    status = shf_core_fail(SHEAF_INVALID_PROBLEM, "the local part has no data");
  const char *start = stride > 0 ? (const char *)local->data + local->byte_offset : NULL;
  if (status == SHEAF_OK && (uintptr_t)start % (uintptr_t)(type.bits / 8) != 0)
    status = shf_core_fail(SHEAF_MISALIGNED,
                           "the local part starts at %p, which is not a multiple of its elements' %d bytes",
                           (const void *)start, type.bits / 8);
  if (status != SHEAF_OK) {
    sheaf_dtensor_free(t);
    return status;
  }
  t->local.data = local->data;
  t->local.byte_offset = local->byte_offset;
  *tensor = t;
  return SHEAF_OK;
}

sheaf_status shf_dtensor_make(const sheaf_dtensor_desc *desc, int64_t entries, sheaf_dtensor **tensor)
{
  *tensor = NULL;
  sheaf_dtensor *t = make(desc, entries);
  if (!t) return shf_core_no_memory("a distributed tensor", sizeof *t);
  size_t bytes = t->owned_bytes;
  t->owned = t->local.data = shf_buffer_get(desc->mesh, t->desc.device, (int64_t)bytes);
  if (bytes && !t->owned) {
    sheaf_dtensor_free(t);
    return shf_core_no_memory("a distributed tensor", bytes);
  }
  *tensor = t;
  return SHEAF_OK;
}

sheaf_status sheaf_dtensor_create(const sheaf_dtensor_desc *desc, sheaf_dtensor **tensor)
{
  SHF_REQUIRE(tensor, INVALID_PROBLEM, "tensor is NULL");
  *tensor = NULL;
  SHF_TRY(check_desc(desc));
  SHF_REQUIRE(!is_bags(desc), INVALID_PROBLEM, "what a rank has under Bags depends on the offsets: wrap it");
  sheaf_dtensor_desc whole = *desc;
  SHF_TRY(shf_space_check(&whole.device, "desc"));
  SHF_TRY(shf_dtensor_make(&whole, 0, tensor));
  sheaf_dtensor *made = *tensor;
  if (!made || !made->owned) return SHEAF_OK;
  sheaf_status status = shf_space_zero(whole.device, made->owned, (int64_t)made->owned_bytes);
  if (status == SHEAF_OK) status = shf_space_wait(whole.device);
  if (status == SHEAF_OK) return status;
  sheaf_dtensor_free(made);
  *tensor = NULL;
  return status;
}

void sheaf_dtensor_free(sheaf_dtensor *tensor)
{
  if (!tensor) return;
  shf_buffer_put(tensor->desc.mesh, tensor->desc.device, tensor->owned, (int64_t)tensor->owned_bytes);
  shf_core_free(tensor, sizeof *tensor);
}

const sheaf_dtensor_desc *sheaf_dtensor_describe(const sheaf_dtensor *tensor) { return tensor ? &tensor->desc : NULL; }
const DLTensor *sheaf_dtensor_local(const sheaf_dtensor *tensor) { return tensor ? &tensor->local : NULL; }

/* ---- Redistribution ---------------------------------------------------------------------------------------------- */

/* One redistribution: the part in the type it travels in, moved, and stored in the type it is kept in. */
typedef struct relocation {
  sheaf_dtensor_desc wanted;
  sheaf_dtype travels, kept;
  shf_pool pool;
  shf_move move;
  sheaf_dtensor *made;
} relocation;

static sheaf_status prepare(const sheaf_dtensor *tensor, const sheaf_placement *placements, relocation *r)
{
  const sheaf_mesh *mesh = tensor->desc.mesh;
  memcpy(r->wanted.placements, placements, (size_t)mesh->dims * sizeof *placements);
  SHF_TRY(check_desc(&r->wanted));
  SHF_REQUIRE(!is_bags(&r->wanted) && !is_bags(&tensor->desc), UNSUPPORTED, "only ops move tensors placed by Bags");
  sheaf_dtype held = shf_local_dtype(mesh, tensor->desc.dtype, tensor->desc.placements);
  r->kept = shf_local_dtype(mesh, r->wanted.dtype, placements);
  r->travels = held == SHEAF_F32 ? held : r->kept;
  shf_array array = shf_dtensor_array(tensor);
  if (array.reducer.kind == SHF_FOLD_STORE) array.reducer = reducer_of_list(mesh, placements, r->travels);
  if (held != r->travels) { /* widened before it becomes Partial */
    void *wide;
    int64_t cells = shf_array_cells(&array);
    array.cell = shf_core_dtype_size(r->travels);
    SHF_TRY(shf_pool_get_on(&r->pool, array.device, cells * array.cell, &wide));
    SHF_TRY(shf_space_convert(array.device, held, array.data, r->travels, wide, cells));
    array.data = wide;
  }
  int converts = r->travels != r->kept;
  SHF_TRY(shf_move_prepare(&r->move, &array, placements));
  if (converts || !r->move.result_is_own) return shf_dtensor_make(&r->wanted, 0, &r->made);
  r->made = make(&r->wanted, 0); /* it will get what the move brings */
  return r->made ? SHEAF_OK : shf_core_no_memory("a distributed tensor", sizeof *r->made);
}

static void describe(const sheaf_dtensor_desc *d, const sheaf_placement *to, char *text, size_t room)
{
  char before[PLACEMENTS_TEXT], after[PLACEMENTS_TEXT];
  int at = snprintf(text, room, "redistribute %s on %s from %s to %s, shape", sheaf_dtype_name(d->dtype),
                    shf_space_name(d->device), shf_placements_text(d->mesh, d->placements, before),
                    shf_placements_text(d->mesh, to, after));
  for (int i = 0; i < d->rank && at < (int)room; i++)
    at += snprintf(text + at, room - (size_t)at, " %lld", (long long)d->shape[i]);
}

/* Whether anything is sent: the same on every rank, also where preparing failed. */
static int path_sends(const sheaf_dtensor_desc *d, const sheaf_placement *to)
{
  shf_path path = shf_shard_path(d->mesh, d->rank, d->shape, d->placements, to);
  for (int i = 0; i < path.stages; i++)
    if (path.stage[i].moves) return 1;
  return 0;
}

/* Prepares, agrees (when anything is sent, or `always`), and moves. */
static void relocate(shf_flow *flow, const sheaf_dtensor_desc *desc, const sheaf_dtensor *tensor,
                     const sheaf_placement *to, int always, sheaf_dtensor **moved)
{
  char doing[256];
  relocation r = {.wanted = *desc, .pool = {.mesh = desc->mesh}};
  FLOW(flow, prepare(tensor, to, &r));
  describe(desc, to, doing, sizeof doing);
  if (always || path_sends(desc, to)) shf_flow_agree_on(flow, doing, NULL);
  SURELY(flow, shf_move_run(&r.move));
  if (flow->status == SHEAF_OK && (r.made->owned || !r.move.result_is_own))
    SURELY(flow, shf_space_convert(r.made->desc.device, r.travels, r.move.result.data, r.kept, r.made->owned,
                                   shf_array_cells(&r.move.result)));
  if (flow->status == SHEAF_OK) {
    if (!r.made->owned && r.move.result_is_own) r.made->owned = r.made->local.data = shf_move_take(&r.move);
    *moved = r.made;
    r.made = NULL;
  }
  shf_move_free(&r.move);
  shf_pool_free(&r.pool);
  sheaf_dtensor_free(r.made);
}

sheaf_status sheaf_dtensor_redistribute(const sheaf_dtensor *tensor, const sheaf_placement *placements,
                                        sheaf_dtensor **moved)
{
  SHF_REQUIRE(moved, INVALID_PROBLEM, "moved is NULL");
  *moved = NULL;
  SHF_REQUIRE(tensor && placements, INVALID_PROBLEM, "%s is NULL", tensor ? "placements" : "tensor");
  shf_flow flow = {.mesh = tensor->desc.mesh};
  relocate(&flow, &tensor->desc, tensor, placements, 1, moved);
  shf_flow_wait(&flow, tensor->desc.device);
  if (shf_flow_settle(&flow)) return SHEAF_OK;
  sheaf_dtensor_free(*moved);
  *moved = NULL;
  return flow.status;
}

void shf_relocate_input(shf_flow *flow, const sheaf_dtensor *input, const sheaf_placement *to, sheaf_dtensor **moved)
{
  *moved = NULL;
  if (shf_placements_equal(flow->mesh, input->desc.placements, to)) return;
  relocate(flow, &input->desc, input, to, 0, moved);
}

void shf_relocate(shf_flow *flow, const sheaf_dtensor_desc *desc, sheaf_dtensor **tensor, const sheaf_placement *to)
{
  sheaf_dtensor *moved = NULL;
  if (shf_placements_equal(flow->mesh, desc->placements, to)) return;
  relocate(flow, desc, *tensor, to, 0, &moved);
  if (!moved) return;
  sheaf_dtensor_free(*tensor);
  *tensor = moved;
}
