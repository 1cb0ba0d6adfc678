/* shard/shard_call.c: what calls of ops on distributed tensors have in common, from arguments to outputs. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "shard/shard_call.h"

static sheaf_status open_call(shf_call *c, const shf_call_operand *operands, int count)
{
  const sheaf_dtensor *first = NULL;
  for (int i = 0; i < count && !first; i++) first = operands[i].tensor;
  SHF_REQUIRE(first, INVALID_PROBLEM, "no operand is given");
  const sheaf_mesh *mesh = first->desc.mesh;
  DLDevice device = first->desc.device;
  c->flow.mesh = c->pool.mesh = c->site.mesh = mesh;
  c->site.device = device;
  for (int i = 0; i < count && c->flow.status == SHEAF_OK; i++) {
    const char *name = operands[i].name;
    const sheaf_dtensor *tensor = operands[i].tensor;
    if (!tensor && operands[i].required)
      c->flow.status = shf_core_fail(SHEAF_INVALID_PROBLEM, "%s is NULL", name);
    else if (tensor && tensor->desc.mesh != mesh)
      c->flow.status = shf_core_fail(SHEAF_INVALID_PROBLEM, "%s lies on another mesh", name);
    else if (tensor && (tensor->desc.device.device_type != device.device_type ||
                        tensor->desc.device.device_id != device.device_id))
      c->flow.status = shf_core_fail(SHEAF_INVALID_PROBLEM, "%s lies on another device: %s %d, not %s %d", name,
                                     shf_space_name(tensor->desc.device), (int)tensor->desc.device.device_id,
                                     shf_space_name(device), (int)device.device_id);
  }
  return SHEAF_OK;
}

static void append(char *text, size_t room, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t room, const char *format, ...)
{
  size_t at = strlen(text);
  va_list values;
  va_start(values, format);
  if (at + 1 < room) vsnprintf(text + at, room - at, format, values);
  va_end(values);
}

/* ", name 16x8 f32 [S(0), R]" */
static void describe(char *text, size_t room, const char *name, const sheaf_dtensor *tensor)
{
  if (!tensor) return;
  const sheaf_dtensor_desc *d = &tensor->desc;
  char placements[PLACEMENTS_TEXT], shape[96] = "";
  for (int i = 0; i < d->rank; i++) append(shape, sizeof shape, "%s%lld", i ? "x" : "", (long long)d->shape[i]);
  append(text, room, ", %s %s %s [%s]", name, shape, sheaf_dtype_name(d->dtype),
         shf_placements_text(d->mesh, d->placements, placements));
}

/* Collective: all ranks are about to do the same, by the same strategy. */
static int agree_on(shf_call *c, const shf_call_task *t)
{
  char doing[1200] = "", placements[PLACEMENTS_TEXT] = "any";
  if (c->wanted) shf_placements_text(c->flow.mesh, c->wanted, placements);
  t->describe(c, doing, sizeof doing);
  append(doing, sizeof doing, " to [%s] on %s", placements, shf_space_name(c->site.device));
  for (int i = 0; i < t->count; i++) describe(doing, sizeof doing, t->operands[i].name, t->operands[i].tensor);
  for (int j = 0; j < c->strategy.inputs; j++)
    append(doing, sizeof doing, ", by [%s]", shf_placements_text(c->flow.mesh, c->strategy.in[j], placements));
  append(doing, sizeof doing, "%s", !c->strategy.dispatch ? "" : c->exact ? ", dispatched exactly" : ", dispatched");
  return shf_flow_agree_on(&c->flow, doing, t->facts);
}

sheaf_status shf_call_get(shf_call *c, int64_t bytes, void **memory)
{
  return shf_pool_get_on(&c->pool, c->site.device, bytes, memory);
}

sheaf_status shf_call_read(shf_call *c, const void *data, int64_t bytes, const void **host)
{
  void *copy = NULL;
  *host = data;
  if (shf_is_host(c->site.device) || bytes == 0) return SHEAF_OK;
  SHF_TRY(shf_pool_get(&c->pool, bytes, &copy));
  *host = copy;
  return shf_space_read(c->site.device, copy, data, bytes);
}

sheaf_status shf_call_write(shf_call *c, const void *host, int64_t bytes, const void **data)
{
  void *copy = NULL;
  *data = host;
  if (shf_is_host(c->site.device) || bytes == 0) return SHEAF_OK;
  SHF_TRY(shf_call_get(c, bytes, &copy));
  *data = copy;
  return shf_space_write(c->site.device, copy, host, bytes);
}

sheaf_status shf_call_convert(shf_call *c, sheaf_dtype from, const void *source, sheaf_dtype to, int64_t count,
                              const void **target)
{
  void *made = NULL;
  *target = source;
  if (from == to) return SHEAF_OK;
  SHF_TRY(shf_call_get(c, count * shf_core_dtype_size(to), &made));
  *target = made;
  return shf_space_convert(c->site.device, from, source, to, made, count);
}

static int same_strategy(const sheaf_mesh *mesh, const sheaf_strategy *a, const sheaf_strategy *b)
{
  int same = a->inputs == b->inputs && a->dispatch == b->dispatch && shf_placements_equal(mesh, a->out, b->out);
  for (int j = 0; j < a->inputs && same; j++) same = shf_placements_equal(mesh, a->in[j], b->in[j]);
  return same;
}

static sheaf_status choose(shf_call *c, const sheaf_shard_call *how)
{
  static const sheaf_shard_call none = SHEAF_SHARD_CALL_INIT;
  if (!how) how = &none;
  SHF_TRY(shf_shard_check_struct(how, sizeof *how, "call"));
  const sheaf_mesh *mesh = c->flow.mesh;
  c->wanted = how->out;
  c->exact = how->exact;
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

sheaf_status shf_call_check_desc(const void *desc, size_t known, sheaf_category category, size_t kind_at)
{
  int kind; /* an enum of either family */
  SHF_TRY(shf_shard_check_struct(desc, known, "desc"));
  memcpy(&kind, (const char *)desc + kind_at, sizeof kind);
  SHF_REQUIRE(kind >= 0 && kind <= UINT16_MAX && sheaf_kind_name(category, (uint16_t)kind), INVALID_PROBLEM,
              "the %s family has no kind %d", category == SHEAF_CATEGORY_SEGMENT ? "segment" : "embedding", kind);
  return SHEAF_OK;
}

sheaf_status shf_call_run(shf_call *c, const shf_call_task *t)
{
  SHF_TRY(open_call(c, t->operands, t->count));
  if (c->flow.status == SHEAF_OK && t->missing)
    c->flow.status = shf_core_fail(SHEAF_INVALID_PROBLEM, "%s is NULL", t->missing);
  FLOW(&c->flow, t->read(c));
  FLOW(&c->flow, choose(c, t->how));
  if (agree_on(c, t)) t->run(c);
  for (int i = 0; i < c->moved_count; i++) sheaf_dtensor_free(c->moved[i]);
  shf_pool_free(&c->pool);
  return c->flow.status;
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

/* Whether cutting along a mesh dimension leaves every rank within the part it had: no later one cuts the same. */
static int stays_within(const shf_call *c, int m)
{
  for (int later = m + 1; later < c->flow.mesh->dims; later++)
    if (shf_is_shard(&c->strategy.out[later]) && c->strategy.out[later].dim == c->wanted[m].dim) return 0;
  return 1;
}

void shf_call_complete(const shf_call *c, sheaf_placement at[MAX_DIMS])
{
  int scatters = c->wanted != NULL;
  for (int m = 0; m < c->flow.mesh->dims && scatters; m++)
    if (shf_is_partial(&c->strategy.out[m])) scatters = shf_is_shard(&c->wanted[m]) && stays_within(c, m);
  for (int m = 0; m < c->flow.mesh->dims; m++) {
    at[m] = c->strategy.out[m];
    if (shf_is_partial(&at[m])) at[m] = scatters ? c->wanted[m] : sheaf_replicate();
  }
}

sheaf_dtensor_desc shf_call_desc(const shf_call *c, sheaf_dtype dtype, const sheaf_placement *at)
{
  sheaf_dtensor_desc desc = SHEAF_DTENSOR_DESC_INIT;
  desc.mesh = (sheaf_mesh *)c->flow.mesh; /* a tensor only lends it on */
  desc.device = c->site.device;
  desc.dtype = dtype;
  desc.rank = c->shapes.out.rank;
  memcpy(desc.shape, c->shapes.out.shape, sizeof desc.shape);
  memcpy(desc.placements, at, (size_t)c->flow.mesh->dims * sizeof *at);
  return desc;
}

sheaf_status shf_call_output(const shf_call *c, sheaf_dtype dtype, const sheaf_placement *at, sheaf_dtensor **tensor)
{
  sheaf_dtensor_desc desc = shf_call_desc(c, dtype, at);
  return shf_dtensor_make(&desc, 0, tensor);
}
