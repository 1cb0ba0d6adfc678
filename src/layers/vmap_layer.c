/* vmap_layer.c: the Vmap key: hidden dimensions become the batch of one plan run.
 *
 * All levels of all inputs are handled at once: a tensor that has every level has them as its leading dimensions, which
 * are merged into one; one that has none is shared by all problems; one that has some of them is repeated. */
#include <inttypes.h>

#include "layers/vmap_impl.h"

/* Adds a level, keeping them in order. */
static __attribute__((noinline)) sheaf_status add_level(shf_levels *all, int level, int64_t extent,
                                                        const sheaf_call *call)
{
  int at = 0;
  while (at < all->count && all->level[at] < level) at++;
  if (at < all->count && all->level[at] == level) {
    SHF_REQUIRE(all->extent[at] == extent, INVALID_PROBLEM, "%s: vmap level %d has extent %" PRId64 " and %" PRId64,
                shf_op_name(call), level, all->extent[at], extent);
    return SHEAF_OK;
  }
  for (int i = all->count++; i > at; i--) {
    all->level[i] = all->level[i - 1];
    all->extent[i] = all->extent[i - 1];
  }
  all->level[at] = level;
  all->extent[at] = extent;
  return SHEAF_OK;
}

static inline sheaf_status find_levels(const sheaf_call *call, shf_levels *all)
{
  all->count = 0;
  SHF_REQUIRE(call->input_count <= SHF_VMAP_INPUTS && call->output_count <= SHF_VMAP_OUTPUTS, UNSUPPORTED,
              "%s has %d inputs; vmap takes %d", shf_op_name(call), call->input_count, SHF_VMAP_INPUTS);
  for (int i = 0; i < call->input_count; i++) {
    const sheaf_tensor *t = call->inputs[i];
    if (!shf_is_batched(t)) continue;
    if (all->count == 0) { /* the first one's levels are in order */
      all->count = t->levels;
      for (int l = 0; l < t->levels; l++) {
        all->level[l] = t->level[l];
        all->extent[l] = t->part[0]->extent[l];
      }
      continue;
    }
    for (int l = 0; l < t->levels; l++) SHF_TRY(add_level(all, t->level[l], t->part[0]->extent[l], call));
  }
  all->problems = 1;
  for (int i = 0; all->count > 0 && i < call->output_count; i++)
    SHF_REQUIRE(!call->outputs[i], UNSUPPORTED,
                "%s: a batched result is made; it cannot be written into a given tensor", shf_op_name(call));
  for (int i = 0; i < all->count; i++) {
    int64_t before = all->problems;
    SHF_REQUIRE(!__builtin_mul_overflow(before, all->extent[i], &all->problems), INVALID_PROBLEM,
                "%s: vmap over %" PRId64 " times %" PRId64 " problems", shf_op_name(call), before, all->extent[i]);
  }
  return SHEAF_OK;
}

/* ---- Inputs ---- */

/* Dimension 0 of *slot becomes dimension `to`; NULL when that fails. */
static sheaf_status move_first(sheaf_tensor **slot, int to, const sheaf_frame *frame)
{
  sheaf_attr move[] = {{.i = 0}, {.i = to}};
  sheaf_tensor *moved = NULL;
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = SHEAF_OP_MOVEDIM;
  call.inputs = slot;
  call.attrs = move;
  call.outputs = &moved;
  call.input_count = call.output_count = 1;
  call.attr_count = 2;
  sheaf_status status = shf_redispatch(&call, frame);
  sheaf_tensor_release(*slot);
  *slot = moved;
  return status;
}

/* Brings the missing levels in, from the innermost out: [.., lower levels, rest] gets a dimension at its place. */
static sheaf_status insert_levels(const sheaf_tensor *t, const shf_levels *all, const sheaf_frame *frame,
                                  sheaf_tensor **out)
{
  sheaf_tensor *now = sheaf_tensor_retain(t->part[0]), *next = NULL;
  sheaf_status status = SHEAF_OK;
  for (int l = 0, own = 0; status == SHEAF_OK && l < all->count; l++) {
    if (own < t->levels && t->level[own] == all->level[l]) {
      own++;
      continue;
    }
    status = shf_send_expand(now, all->extent[l], frame, &next);
    sheaf_tensor_release(now);
    now = next;
    if (status != SHEAF_OK || l == 0) continue;
    status = move_first(&now, l, frame);
  }
  *out = now;
  return status;
}

/* An input with all levels, as leading dimensions. */
static sheaf_status with_all_levels(const sheaf_tensor *t, const shf_levels *all, const sheaf_frame *frame,
                                    sheaf_tensor **out)
{
  *out = NULL;
  if (t->levels != all->count) return insert_levels(t, all, frame, out);
  *out = sheaf_tensor_retain(t->part[0]);
  return SHEAF_OK;
}

/* ... merged into one. */
static sheaf_status merge_levels(const sheaf_tensor *t, const shf_levels *all, const sheaf_frame *frame,
                                 sheaf_tensor **out)
{
  sheaf_tensor *full;
  *out = NULL;
  SHF_TRY(with_all_levels(t, all, frame, &full));
  int64_t shape[SHEAF_TENSOR_MAX_RANK] = {all->problems};
  int rank = full->rank - all->count + 1;
  for (int i = 1; i < rank; i++) shape[i] = full->extent[i + all->count - 1];
  sheaf_status status = shf_send_reshape(full, rank, shape, frame, out);
  sheaf_tensor_release(full);
  return status;
}

/* ---- Outputs ---- */

/* Splits the merged dimension again, and hides all levels. Takes the reference. */
static sheaf_status wrap(sheaf_tensor *result, const shf_levels *all, int merged, const sheaf_frame *frame,
                         sheaf_tensor **out)
{
  if (!merged || all->count == 1) return shf_tensor_batched(result, all->count, all->level, out);
  int64_t shape[SHEAF_TENSOR_MAX_RANK];
  int rank = result->rank + all->count - 1;
  sheaf_tensor *split = NULL;
  sheaf_status status = SHEAF_OK;
  if (rank > SHEAF_TENSOR_MAX_RANK)
    status = shf_core_fail(SHEAF_INVALID_PROBLEM, "vmap: a result of %d dimensions", rank);
  for (int i = 0; status == SHEAF_OK && i < rank; i++)
    shape[i] = i < all->count ? all->extent[i] : result->extent[i - all->count + 1];
  if (status == SHEAF_OK) status = shf_send_reshape(result, rank, shape, frame, &split);
  sheaf_tensor_release(result);
  return status == SHEAF_OK ? shf_tensor_batched(split, all->count, all->level, out) : status;
}

sheaf_status shf_vmap_hand_out(const sheaf_call *call, sheaf_tensor **results, const shf_levels *all, int merged,
                               const sheaf_frame *frame)
{
  sheaf_status status = SHEAF_OK;
  /* each result is replaced by what it is wrapped in, or gone */
  for (int i = 0; i < call->output_count && i < SHF_VMAP_OUTPUTS; i++) {
    sheaf_tensor *result = results[i];
    results[i] = NULL;
    if (result && status == SHEAF_OK)
      status = wrap(result, all, merged, frame, &results[i]);
    else
      sheaf_tensor_release(result);
  }
  for (int i = 0; i < call->output_count && i < SHF_VMAP_OUTPUTS; i++) {
    if (status == SHEAF_OK)
      call->outputs[i] = results[i];
    else
      sheaf_tensor_release(results[i]);
  }
  return status;
}

/* ---- The ops ---- */

/* Ops that are plans: one run, whose batch are all problems. */
static sheaf_status as_batch(const sheaf_call *call, const sheaf_frame *frame)
{
  shf_levels all;
  sheaf_tensor *inputs[SHF_VMAP_INPUTS], *results[SHF_VMAP_OUTPUTS] = {NULL, NULL}; /* inputs as far as there are */
  SHF_REQUIRE(!call->batch, INVALID_PROBLEM, "%s: batched tensors in a call that is a batch itself", shf_op_name(call));
  SHF_TRY(find_levels(call, &all));
  if (all.count == 0) return shf_redispatch(call, frame); /* the key without such a tensor */
  if (all.problems == 0) return shf_vmap_over_nothing(call, frame, &all);
  sheaf_call batch = *call;
  batch.batch = all.problems;
  sheaf_status status = SHEAF_OK;
  uint32_t own = 0; /* inputs that are made here; the others are borrowed */
  for (int i = 0; i < call->input_count && status == SHEAF_OK; i++) {
    inputs[i] = call->inputs[i];
    if (!shf_is_batched(inputs[i])) continue;
    batch.batched |= SHF_BIT(i);
    inputs[i] = inputs[i]->part[0];
    if (all.count == 1) continue;
    own |= SHF_BIT(i);
    status = merge_levels(call->inputs[i], &all, frame, &inputs[i]);
  }
  batch.inputs = inputs;
  batch.outputs = results;
  if (status == SHEAF_OK) status = shf_redispatch(&batch, frame);
  for (int i = 0; own >> i; i++)
    if (own >> i & 1) sheaf_tensor_release(inputs[i]);
  return status == SHEAF_OK ? shf_vmap_hand_out(call, results, &all, 1, frame) : status;
}

/* The attributes of such an op where the hidden dimensions are shown: places and shapes count them. */
static sheaf_status attrs_beneath(const sheaf_call *call, const shf_levels *all, sheaf_attr *attrs)
{
  for (int i = 0; i < call->attr_count; i++) attrs[i] = call->attrs[i];
  if (call->op == SHEAF_OP_MOVEDIM)
    for (int i = 0; i < 2; i++) attrs[i].i = call->attrs[i].i < 0 ? -1 : call->attrs[i].i + all->count;
  if (call->op != SHEAF_OP_RESHAPE) return SHEAF_OK;
  int64_t rank = call->attrs[0].i;
  SHF_REQUIRE(rank >= 0 && rank + all->count <= SHEAF_TENSOR_MAX_RANK, INVALID_PROBLEM,
              "reshape to %" PRId64 " dimensions within %d of vmap; %d are the most", rank, all->count,
              SHEAF_TENSOR_MAX_RANK);
  attrs[0].i = rank + all->count;
  for (int i = 0; i < all->count; i++) attrs[1 + i].i = all->extent[i];
  for (int i = 0; i < rank; i++) attrs[1 + all->count + i] = call->attrs[1 + i];
  return SHEAF_OK;
}

/* Ops on each element or row: the hidden dimensions are like others. */
static sheaf_status as_one(const sheaf_call *call, const sheaf_frame *frame)
{
  shf_levels all;
  sheaf_tensor *inputs[SHF_VMAP_INPUTS] = {NULL}, *results[SHF_VMAP_OUTPUTS] = {NULL, NULL};
  SHF_TRY(find_levels(call, &all));
  if (all.count == 0) return shf_redispatch(call, frame);
  sheaf_status status = SHEAF_OK;
  for (int i = 0; i < call->input_count && status == SHEAF_OK; i++) {
    sheaf_tensor *t = call->inputs[i], unbatched = {.levels = 0};
    unbatched.part[0] = t;
    if (t) status = with_all_levels(shf_is_batched(t) ? t : &unbatched, &all, frame, &inputs[i]);
  }
  sheaf_attr attrs[1 + SHEAF_TENSOR_MAX_RANK] = {{.i = 0}};
  sheaf_call one = *call;
  one.inputs = inputs;
  one.outputs = results;
  one.attrs = attrs;
  if (status == SHEAF_OK) status = attrs_beneath(call, &all, attrs);
  if (status == SHEAF_OK) status = shf_redispatch(&one, frame);
  if (status == SHEAF_OK && call->op == SHEAF_OP_EXPAND)
    status = move_first(&results[0], all.count, frame); /* what it put in front belongs behind the hidden ones */
  for (int i = 0; i < call->input_count; i++) sheaf_tensor_release(inputs[i]);
  return status == SHEAF_OK ? shf_vmap_hand_out(call, results, &all, 0, frame) : status;
}

static sheaf_status unbatch(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *t = call->inputs[0];
  (void)frame;
  SHF_REQUIRE(shf_is_batched(t) && t->level[t->levels - 1] == call->attrs[0].i, INVALID_PROBLEM,
              "unbatch of level %" PRId64 ": the tensor's highest level is %d", call->attrs[0].i,
              shf_is_batched(t) ? t->level[t->levels - 1] : 0);
  SHF_REQUIRE(!call->outputs[0], UNSUPPORTED, "unbatch shares memory; it cannot be written into a given tensor");
  if (t->levels == 1) {
    call->outputs[0] = sheaf_tensor_retain(t->part[0]);
    return SHEAF_OK;
  }
  return shf_tensor_batched(sheaf_tensor_retain(t->part[0]), t->levels - 1, t->level, &call->outputs[0]);
}

static sheaf_status refuse(const sheaf_call *call, const sheaf_frame *frame)
{
  (void)frame;
  return shf_core_fail(SHEAF_UNSUPPORTED, "%s has no rule for vmap", shf_op_name(call));
}

const shf_layer shf_layer_vmap = {.any = refuse,
                                  .kernel = {[SHEAF_OP_EMBEDDING] = as_batch,
                                             [SHEAF_OP_EMBEDDING_BACKWARD] = as_batch,
                                             [SHEAF_OP_EMBEDDING_BAG] = as_batch,
                                             [SHEAF_OP_EMBEDDING_BAG_BACKWARD] = as_batch,
                                             [SHEAF_OP_SEGMENT_REDUCE] = as_batch,
                                             [SHEAF_OP_SEGMENT_REDUCE_BACKWARD] = as_batch,
                                             [SHEAF_OP_QUANTIZE] = as_one,
                                             [SHEAF_OP_DEQUANTIZE] = as_one,
                                             [SHEAF_OP_TO_DENSE] = as_one,
                                             [SHEAF_OP_CAST] = as_one,
                                             [SHEAF_OP_ADD] = as_one,
                                             [SHEAF_OP_MOVEDIM] = as_one,
                                             [SHEAF_OP_RESHAPE] = as_one,
                                             [SHEAF_OP_EXPAND] = as_one,
                                             [SHEAF_OP_BATCH] = shf_plain_batch,
                                             [SHEAF_OP_UNBATCH] = unbatch}};
