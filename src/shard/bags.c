/* shard/bags.c: indices, offsets and weights, brought where a strategy wants them.
 *
 * In matrix form, and for lookups, indices are tensors like any other. Bags given by offsets are ragged: a rank that
 * has some of the bags has their entries, however many, and offsets of its own from 0. They are kept here as lengths,
 * which can be cut and gathered like any tensor, and entries follow them. */
#include <math.h>
#include <string.h>

#include "core/cpu.h"
#include "shard/shard_call.h"

/* NOLINTBEGIN(clang-analyzer-core.*): the analyzer does not see that a flow which failed stays failed. */

static int is_ragged(const sheaf_mesh *mesh, const sheaf_placement *placements)
{
  for (int m = 0; m < mesh->dims; m++)
    if (placements[m].kind == SHEAF_PLACE_BAGS) return 1;
  return 0;
}

/* ---- Offsets ---------------------------------------------------------------------------------------------------- */

static sheaf_status get_numbers(shf_call *c, int64_t count, int64_t **numbers)
{
  void *memory;
  SHF_TRY(shf_pool_get(&c->pool, (count + 1) * (int64_t)sizeof **numbers, &memory));
  *numbers = memory;
  return SHEAF_OK;
}

/* Offsets as int64 with the end; they must begin at 0, not decrease, and end with the entries. */
static sheaf_status read_offsets(shf_call *c, const sheaf_dtensor *offsets, int64_t bags, int64_t entries,
                                 int64_t **starts)
{
  int64_t count = offsets->local_shape[0]; /* bags, and the end where it is given */
  int with_end = c->problem.bag_form == SHEAF_BAGS_OFFSETS_END;
  const void *data;
  SHF_REQUIRE(count == bags + with_end, INVALID_PROBLEM, "offsets: %lld of them for %lld bags here, not %lld",
              (long long)count, (long long)bags, (long long)(bags + with_end));
  SHF_TRY(get_numbers(c, bags, starts));
  SHF_TRY(shf_call_read(c, shf_dtensor_data(offsets), count * shf_core_dtype_size(offsets->desc.dtype), &data));
  for (int64_t b = 0; b <= bags; b++) {
    int64_t start = b < count ? shf_load_index(offsets->desc.dtype, data, b) : entries;
    int64_t least = b == bags ? entries : b ? (*starts)[b - 1] : 0, most = b == 0 && bags > 0 ? 0 : entries;
    if (start < least || start > most) {
      sheaf_error_info info = {
          .status = SHEAF_INVALID_PROBLEM, .operand = "offsets", .position = b, .value = start, .count = 1};
      return shf_core_fail_info(&info, "offsets: %lld at position %lld is not between %lld and %lld", (long long)start,
                                (long long)b, (long long)least, (long long)most);
    }
    (*starts)[b] = start;
  }
  SHF_REQUIRE(bags > 0 || entries == 0, INVALID_PROBLEM, "there are %lld indices and no bags", (long long)entries);
  return SHEAF_OK;
}

/* ---- Gathering ragged bags -------------------------------------------------------------------------------------- */

/* Bags as they are held: starts of the local ones, entries and weights, as the CPU sees them. */
typedef struct holding {
  int64_t bags, entries;
  int64_t *starts;
  const char *indices, *weights;
} holding;

/* Whether another rank's bags are the next part of what this rank gathers: same place along what is not cut. */
static int is_source(const sheaf_mesh *mesh, const sheaf_placement *placements, int64_t rank)
{
  int64_t mine[MAX_DIMS], theirs[MAX_DIMS];
  shf_mesh_coords(mesh, mesh->rank, mine);
  shf_mesh_coords(mesh, rank, theirs);
  for (int m = 0; m < mesh->dims; m++)
    if (placements[m].kind != SHEAF_PLACE_BAGS && mine[m] != theirs[m]) return 0;
  return 1;
}

/* Everybody's entries, in the order of ranks, which is the order of bags. Counts were told at the last agreement. */
static sheaf_status gather_entries(const sheaf_mesh *mesh, const sheaf_placement *placements, const int64_t *counts,
                                   const char *mine, char *all, int64_t cell)
{
  shf_message *send = shf_mesh_messages(mesh, 0), *receive = shf_mesh_messages(mesh, 1);
  int64_t sends = 0, receives = 0, own = counts[mesh->rank] * cell, at = 0;
  for (int64_t rank = 0; rank < mesh->ranks; rank++) {
    if (!is_source(mesh, placements, rank)) continue;
    int64_t bytes = counts[rank] * cell;
    if (rank == mesh->rank) {
      if (bytes) memcpy(all + at, mine, (size_t)bytes);
    } else {
      if (own) send[sends++] = (shf_message){rank, (char *)mine, own};
      if (bytes) receive[receives++] = (shf_message){rank, all + at, bytes};
    }
    at += bytes;
  }
  return shf_comm_exchange(mesh->comm, send, sends, receive, receives, shf_host());
}

/* How one number per bag lies that is cut where the indices are. */
static void bag_placements(const sheaf_mesh *mesh, const sheaf_placement *indices, sheaf_placement *bags)
{
  for (int m = 0; m < mesh->dims; m++)
    bags[m] = indices[m].kind == SHEAF_PLACE_BAGS ? sheaf_shard(0) : sheaf_replicate();
}

/* Lengths of all bags from those of each rank's. */
static void gather_lengths(shf_call *c, const sheaf_dtensor *indices, const holding *held, int64_t *all)
{
  const sheaf_mesh *mesh = c->flow.mesh;
  int64_t bags = c->problem.bags, *mine = NULL;
  shf_array lengths = {.mesh = mesh, .device = shf_host(), .rank = 1, .shape = {bags}, .cell = sizeof *all};
  sheaf_placement whole[MAX_DIMS] = {{0}};
  shf_move move = {0};
  bag_placements(mesh, indices->desc.placements, lengths.at);
  FLOW(&c->flow, get_numbers(c, held->bags, &mine));
  for (int64_t b = 0; c->flow.status == SHEAF_OK && b < held->bags; b++)
    mine[b] = held->starts[b + 1] - held->starts[b];
  lengths.data = (char *)mine;
  FLOW(&c->flow, shf_move_prepare(&move, &lengths, whole));
  if (shf_flow_agree(&c->flow)) SURELY(&c->flow, shf_move_run(&move));
  if (c->flow.status == SHEAF_OK && bags) memcpy(all, move.result.data, (size_t)bags * sizeof *all);
  shf_move_free(&move);
}

static void gather(shf_call *c, const shf_bag_operands *o, holding *held)
{
  const sheaf_mesh *mesh = c->flow.mesh;
  const sheaf_placement *placements = o->indices->desc.placements;
  int64_t *counts = NULL, *starts = NULL, total = 0, bags = c->problem.bags;
  void *indices = NULL, *weights = NULL;
  int64_t cell = shf_core_dtype_size(o->indices->desc.dtype);
  int64_t weight_cell = o->weights ? shf_core_dtype_size(o->weights->desc.dtype) : 0;
  FLOW(&c->flow, get_numbers(c, mesh->ranks, &counts));
  for (int64_t rank = 0; c->flow.status == SHEAF_OK && rank < mesh->ranks; rank++) {
    counts[rank] = shf_agree_facts(mesh, rank)[0];
    if (is_source(mesh, placements, rank)) total += counts[rank];
  }
  FLOW(&c->flow, shf_pool_get(&c->pool, total * cell, &indices));
  FLOW(&c->flow, shf_pool_get(&c->pool, total * weight_cell, &weights));
  FLOW(&c->flow, get_numbers(c, bags, &starts));
  gather_lengths(c, o->indices, held, starts); /* agrees */
  SURELY(&c->flow, gather_entries(mesh, placements, counts, held->indices, indices, cell));
  if (o->weights) SURELY(&c->flow, gather_entries(mesh, placements, counts, held->weights, weights, weight_cell));
  if (c->flow.status != SHEAF_OK) return;
  int64_t at = 0;
  for (int64_t b = 0; b <= bags; b++) {
    int64_t length = b < bags ? starts[b] : 0;
    starts[b] = at;
    at += length;
  }
  *held = (holding){bags, total, starts, indices, o->weights ? weights : NULL};
}

/* ---- All forms -------------------------------------------------------------------------------------------------- */

/* The part of all bags that the strategy gives to this rank. */
static sheaf_status slice(shf_call *c, const shf_bag_operands *o, holding *held)
{
  const sheaf_mesh *mesh = c->flow.mesh;
  sheaf_placement cut[MAX_DIMS] = {{0}};
  bag_placements(mesh, c->strategy.in[1], cut);
  shf_box box = shf_shard_box(mesh, cut, 1, &held->bags, mesh->rank);
  int64_t first = held->starts[box.lo[0]], count = box.hi[0] - box.lo[0], *offsets;
  SHF_TRY(get_numbers(c, count, &offsets));
  for (int64_t b = 0; b <= count; b++) offsets[b] = held->starts[box.lo[0] + b] - first;
  if (held->indices) held->indices += first * shf_core_dtype_size(o->indices->desc.dtype);
  if (held->weights) held->weights += first * shf_core_dtype_size(o->weights->desc.dtype);
  held->bags = count;
  held->entries = offsets[count];
  held->starts = offsets;
  return SHEAF_OK;
}

static sheaf_status hold(shf_call *c, const shf_bag_operands *o, holding *held)
{
  const sheaf_dtensor *indices = o->indices;
  const sheaf_mesh *mesh = c->flow.mesh;
  const void *data;
  sheaf_placement cut[MAX_DIMS] = {{0}};
  bag_placements(mesh, indices->desc.placements, cut);
  shf_box box = shf_shard_box(mesh, cut, 1, &c->problem.bags, mesh->rank);
  held->bags = box.hi[0] - box.lo[0];
  held->entries = indices->local_shape[0];
  SHF_TRY(read_offsets(c, o->offsets, held->bags, held->entries, &held->starts));
  SHF_TRY(shf_call_read(c, shf_dtensor_data(indices), held->entries * shf_core_dtype_size(indices->desc.dtype), &data));
  held->indices = data;
  if (!o->weights) return SHEAF_OK;
  int64_t bytes = held->entries * shf_core_dtype_size(o->weights->desc.dtype);
  SHF_TRY(shf_call_read(c, shf_dtensor_data(o->weights), bytes, &data));
  held->weights = data;
  return SHEAF_OK;
}

/* What is held becomes what the op works on. */
static sheaf_status use(shf_call *c, const shf_bag_operands *o, const holding *held, shf_bags *bags)
{
  const void *offsets;
  *bags = (shf_bags){.entries = held->entries, .bags = held->bags, .length = -1};
  bags->host.indices = held->indices;
  bags->host.weights = held->weights;
  bags->host.offsets = held->starts;
  int64_t weight = held->weights ? shf_core_dtype_size(o->weights->desc.dtype) : 0;
  SHF_TRY(
      shf_call_write(c, held->indices, held->entries * shf_core_dtype_size(c->problem.index_dtype), &bags->indices));
  SHF_TRY(shf_call_write(c, held->weights, held->entries * weight, &bags->weights));
  SHF_TRY(shf_call_write(c, held->starts, (held->bags + 1) * (int64_t)sizeof *held->starts, &offsets));
  bags->offsets = offsets;
  return SHEAF_OK;
}

static void bring_ragged(shf_call *c, const shf_bag_operands *o, shf_bags *bags)
{
  const sheaf_mesh *mesh = c->flow.mesh;
  const sheaf_placement *now = o->indices->desc.placements, *to = c->strategy.in[1];
  holding held = {0};
  FLOW(&c->flow, hold(c, o, &held));
  if (!shf_placements_equal(mesh, now, to)) {
    if (is_ragged(mesh, now)) gather(c, o, &held);
    FLOW(&c->flow, slice(c, o, &held));
  }
  FLOW(&c->flow, use(c, o, &held, bags));
}

void shf_bags_bring(shf_call *c, const shf_bag_operands *o, shf_bags *bags)
{
  *bags = (shf_bags){.length = -1};
  if (o->offsets) {
    bring_ragged(c, o, bags);
    return;
  }
  const sheaf_dtensor *indices = shf_call_bring(c, o->indices, c->strategy.in[1]);
  const sheaf_dtensor *weights = o->weights ? shf_call_bring(c, o->weights, c->strategy.in[1]) : NULL;
  if (c->flow.status != SHEAF_OK) return;
  bags->entries = 1;
  for (int d = 0; d < indices->desc.rank; d++) bags->entries *= indices->local_shape[d];
  bags->indices = shf_dtensor_data(indices);
  bags->weights = weights ? shf_dtensor_data(weights) : NULL;
  if (c->problem.kind <= SHEAF_LOOKUP_BACKWARD) return;
  bags->bags = indices->local_shape[0];
  bags->length = indices->local_shape[1];
}

sheaf_status shf_bags_read(shf_call *c, shf_bags *bags)
{
  int64_t cell = shf_core_dtype_size(c->problem.index_dtype), weight = shf_core_dtype_size(c->weights);
  if (!bags->host.indices) SHF_TRY(shf_call_read(c, bags->indices, bags->entries * cell, &bags->host.indices));
  if (!bags->weights || bags->host.weights) return SHEAF_OK;
  return shf_call_read(c, bags->weights, bags->entries * weight, &bags->host.weights);
}

/* ---- Means and bad indices -------------------------------------------------------------------------------------- */

/* The canonical sum of weights is a weighted bag sum over a table of one 1. */
static sheaf_status sum_weights(shf_call *c, const shf_bags *bags, const int64_t *counted, void *sums)
{
  sheaf_dtype acc = shf_core_dtype_acc(c->values);
  shf_site here = {c->flow.mesh, shf_host()};
  double one_f64 = 1;
  float one_f32 = 1;
  void *weights;
  SHF_TRY(shf_pool_get(&c->pool, bags->entries * shf_core_dtype_size(acc), &weights));
  shf_convert(c->weights, bags->host.weights, acc, weights, bags->entries);
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.kind = SHEAF_BAG_SUM;
  desc.dtype = acc;
  desc.index_dtype = desc.offset_dtype = SHEAF_I64;
  desc.bag_form = bags->offsets ? SHEAF_BAGS_OFFSETS_END : SHEAF_BAGS_MATRIX;
  desc.rows = desc.dim = desc.weighted = 1;
  desc.indices = bags->entries;
  desc.bags = bags->bags;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  shf_local table, index, offsets, weight, out;
  int64_t shape[2] = {bags->offsets ? bags->entries : bags->bags, bags->length};
  int rank = bags->offsets ? 1 : 2;
  args.table = shf_local_matrix(&table, here, acc, acc == SHEAF_F64 ? (void *)&one_f64 : (void *)&one_f32, 1, 1);
  args.indices = shf_local_operand(&index, here, SHEAF_I64, counted, rank, shape);
  args.weights = shf_local_operand(&weight, here, acc, weights, rank, shape);
  if (bags->offsets) args.offsets = shf_local_vector(&offsets, here, SHEAF_I64, bags->host.offsets, bags->bags + 1);
  args.out = shf_local_matrix(&out, here, acc, sums, bags->bags, 1);
  return shf_local_embedding(here, &desc, &args);
}

sheaf_status shf_bags_divisors(shf_call *c, const sheaf_embedding_desc *desc, shf_bags *bags, void *divisors)
{
  sheaf_dtype acc = shf_core_dtype_acc(c->values);
  int64_t *counted; /* 0 for an entry that counts, -1 for one that does not */
  SHF_TRY(shf_bags_read(c, bags));
  SHF_TRY(get_numbers(c, bags->entries, &counted));
  for (int64_t i = 0; i < bags->entries; i++) {
    int64_t index = shf_load_index(c->problem.index_dtype, bags->host.indices, i);
    int counts = index >= 0 && index < c->problem.rows && !(desc->has_padding && index == desc->padding_idx);
    counted[i] = counts ? 0 : -1;
  }
  if (desc->weighted) SHF_TRY(sum_weights(c, bags, counted, divisors));
  for (int64_t b = 0; b < bags->bags; b++) {
    int64_t number = 0;
    for (int64_t i = shf_bag_begin(bags, b); i < shf_bag_begin(bags, b + 1); i++) number += counted[i] == 0;
    if (number == 0)
      shf_store(acc, divisors, b, INFINITY);
    else if (!desc->weighted)
      shf_store(acc, divisors, b, (double)number);
  }
  return SHEAF_OK;
}

sheaf_status shf_check_indices(const sheaf_embedding_desc *desc, const char *operand, sheaf_dtype index_dtype,
                               const void *indices, int64_t count, int64_t rows)
{
  if (desc->bad_index != SHEAF_BAD_INDEX_ERROR) return SHEAF_OK;
  sheaf_error_info info = {.status = SHEAF_INDEX_OUT_OF_RANGE, .operand = operand, .position = -1};
  int may_be_none = desc->kind == SHEAF_BAG_MAX_BACKWARD; /* arg -1 is an empty bag */
  for (int64_t i = 0; i < count; i++) {
    int64_t index = shf_load_index(index_dtype, indices, i);
    if ((index >= 0 && index < rows) || (may_be_none && index == -1)) continue;
    if (info.count++) continue;
    info.position = i;
    info.value = index;
  }
  if (info.count == 0) return SHEAF_OK;
  return shf_core_fail_info(&info, "%s: %lld at position %lld is outside 0..%lld; %lld such %s", operand,
                            (long long)info.value, (long long)info.position, (long long)rows - 1, (long long)info.count,
                            info.count == 1 ? "entry" : "entries");
}
/* NOLINTEND(clang-analyzer-core.*) */
