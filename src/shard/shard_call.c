/* shard/shard_call.c: what ops on distributed tensors have in common. */
#include <stdio.h>
#include <string.h>

#include "shard/shard_call.h"

sheaf_status shf_call_check(const shf_call_operand *operands, int count, const sheaf_mesh **mesh)
{
  *mesh = NULL;
  for (int i = 0; i < count && !*mesh; i++)
    if (operands[i].tensor) *mesh = operands[i].tensor->desc.mesh;
  SHF_REQUIRE(*mesh, INVALID_PROBLEM, "%s is NULL", operands[0].name);
  for (int i = 0; i < count; i++) {
    SHF_REQUIRE(operands[i].tensor || !operands[i].required, INVALID_PROBLEM, "%s is NULL", operands[i].name);
    SHF_REQUIRE(!operands[i].tensor || operands[i].tensor->desc.mesh == *mesh, INVALID_PROBLEM,
                "%s lies on another mesh", operands[i].name);
  }
  return SHEAF_OK;
}

void shf_call_describe(char *text, size_t room, const char *name, const sheaf_dtensor *tensor)
{
  size_t at = strlen(text);
  if (!tensor || at + 1 >= room) return;
  const sheaf_dtensor_desc *d = &tensor->desc;
  char placements[PLACEMENTS_TEXT], shape[96] = "";
  for (int i = 0, s = 0; i < d->rank && s < (int)sizeof shape; i++)
    s += snprintf(shape + s, sizeof shape - (size_t)s, "%s%lld", i ? "x" : "", (long long)d->shape[i]);
  snprintf(text + at, room - at, ", %s %s %s [%s]", name, shape, sheaf_dtype_name(d->dtype),
           shf_placements_text(d->mesh, d->placements, placements));
}

static int same_strategy(const sheaf_mesh *mesh, const sheaf_strategy *a, const sheaf_strategy *b)
{
  int same = a->inputs == b->inputs && a->dispatch == b->dispatch && shf_placements_equal(mesh, a->out, b->out);
  for (int j = 0; j < a->inputs && same; j++) same = shf_placements_equal(mesh, a->in[j], b->in[j]);
  return same;
}

sheaf_status shf_call_choose(shf_call *c, const sheaf_shard_call *how)
{
  static const sheaf_shard_call none = SHEAF_SHARD_CALL_INIT;
  if (!how) how = &none;
  SHF_TRY(shf_shard_check_struct(how, sizeof *how, "call"));
  const sheaf_mesh *mesh = c->flow.mesh;
  c->wanted = how->out;
  if (how->out) {
    c->problem.out_wanted = 1;
    memcpy(c->problem.out, how->out, (size_t)mesh->dims * sizeof *how->out);
  }
  SHF_TRY(shf_shard_shapes_of(&c->problem, &c->shapes));
  if (how->out) SHF_TRY(shf_placements_check(mesh, how->out, c->shapes.out.rank, "out"));
  sheaf_strategy_list *list;
  SHF_TRY(sheaf_strategies(&c->problem, 0, how->profile, &list));
  int64_t position = -1;
  sheaf_status status = SHEAF_OK;
  if (!how->strategy) {
    status = sheaf_strategy_choose(list, how->profile, &position, NULL, 0);
  } else {
    for (int64_t i = 0; i < sheaf_strategy_count(list) && position < 0; i++)
      if (same_strategy(mesh, sheaf_strategy_at(list, i), how->strategy)) position = i;
    if (position < 0) status = shf_core_fail(SHEAF_INVALID_PROBLEM, "the strategy is none of this op's on this mesh");
  }
  if (status == SHEAF_OK) c->strategy = *sheaf_strategy_at(list, position);
  if (status == SHEAF_OK && how->chosen) *how->chosen = c->strategy;
  sheaf_strategy_list_free(list);
  return status;
}

const sheaf_dtensor *shf_call_bring(shf_call *c, const sheaf_dtensor *input, const sheaf_placement *to)
{
  sheaf_placement target[MAX_DIMS] = {{0}};
  for (int m = 0; m < c->flow.mesh->dims; m++)
    target[m] = to[m].kind == SHEAF_PLACE_MASK_PARTIAL ? sheaf_replicate() : to[m];
  sheaf_dtensor *moved;
  shf_relocate_input(&c->flow, input, target, &moved);
  if (moved) c->moved[c->moved_count++] = moved;
  return c->flow.status != SHEAF_OK ? NULL : moved ? moved : input;
}

void shf_call_free(shf_call *c)
{
  for (int i = 0; i < c->moved_count; i++) sheaf_dtensor_free(c->moved[i]);
  shf_pool_free(&c->pool);
}

int shf_call_is_partial(const shf_call *c)
{
  for (int m = 0; m < c->flow.mesh->dims; m++)
    if (shf_is_partial(&c->strategy.out[m])) return 1;
  return 0;
}

void shf_call_target(const shf_call *c, int complete, sheaf_placement target[MAX_DIMS])
{
  for (int m = 0; m < c->flow.mesh->dims; m++) {
    target[m] = c->wanted ? c->wanted[m] : c->strategy.out[m];
    if (complete && shf_is_partial(&target[m])) target[m] = sheaf_replicate();
  }
}

sheaf_dtensor_desc shf_call_desc(const shf_call *c, sheaf_dtype dtype, const sheaf_placement *at)
{
  sheaf_dtensor_desc desc = SHEAF_DTENSOR_DESC_INIT;
  desc.mesh = (sheaf_mesh *)c->flow.mesh; /* a tensor only lends it on */
  desc.dtype = dtype;
  desc.rank = c->shapes.out.rank;
  memcpy(desc.shape, c->shapes.out.shape, sizeof desc.shape);
  memcpy(desc.placements, at, (size_t)c->flow.mesh->dims * sizeof *at);
  return desc;
}

sheaf_status shf_call_output(const shf_call *c, sheaf_dtype dtype, const sheaf_placement *at, sheaf_dtensor **tensor)
{
  sheaf_dtensor_desc desc = shf_call_desc(c, dtype, at);
  sheaf_placement target[MAX_DIMS] = {{0}};
  shf_call_target(c, 0, target);
  /* What does not lie where it is wanted will be moved, and lives no longer than the call. */
  return shf_dtensor_make(&desc, 0, c->wanted && !shf_placements_equal(c->flow.mesh, at, target), tensor);
}
