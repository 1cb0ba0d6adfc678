/* tests/ranks/ranks_segment.c: every segment op by every strategy on every mesh, against one rank.
 *
 * Values are small integers (powers of two for products), so that results can be compared to the bit. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ranks_data.h"

typedef struct task {
  sheaf_segment_desc desc;
  whole *data, *ids, *grad, *out, *arg, *data_grad;
  int backward, extremes, uses_arg;
} task;

static _Thread_local int64_t cases;
static _Thread_local uint64_t seed = 11;

static int64_t pick(int64_t count) { return (int64_t)(ranks_random(&seed) % (uint64_t)count); }

static int has_word(const task *t, const char *word)
{
  return strstr(sheaf_kind_name(SHEAF_CATEGORY_SEGMENT, (uint16_t)t->desc.kind), word) != NULL;
}

static sheaf_operand operand(const whole *t) { return (sheaf_operand){.tensor = t ? &t->view : NULL}; }

static void run_alone(const sheaf_segment_desc *desc, const sheaf_segment_args *args)
{
  sheaf_plan *plan;
  OK(sheaf_segment_select(desc, NULL, &plan));
  size_t bytes = sheaf_plan_workspace_size(plan);
  void *workspace = aligned_alloc(64, bytes + 64);
  OK(sheaf_segment_run(plan, workspace, bytes, NULL, args));
  free(workspace);
  sheaf_plan_free(plan);
}

static void fill(task *t)
{
  static const double odd[] = {NAN, INFINITY, -INFINITY, -0.0}, powers[] = {1, -1, 2, 0.5, 0, 1, -2, 1};
  int prod = has_word(t, "prod");
  for (int64_t i = 0; i < t->data->count; i++) {
    double value = prod ? powers[pick(8)] : (double)(pick(7) - 3);
    if (t->extremes && pick(12) == 0) value = odd[pick(4)];
    whole_set(t->data, i, value);
  }
  for (int64_t i = 0; i < t->grad->count; i++) whole_set(t->grad, i, (double)(pick(9) - 4));
  int sorted = !has_word(t, "unsorted");
  int64_t id = -(int64_t)pick(2);
  for (int64_t i = 0; i < t->ids->count; i++) {
    id = sorted ? id + (pick(3) == 0) : pick(t->desc.segments + 2) - 1;
    whole_set(t->ids, i, (double)id);
  }
}

static task *make_task(sheaf_segment_kind kind)
{
  static const sheaf_dtype dtypes[] = {SHEAF_F32, SHEAF_F16, SHEAF_BF16, SHEAF_F64};
  int64_t extents[] = {1, ranks_size, ranks_size + 1, 3 * ranks_size + 2, 30};
  task *t = calloc(1, sizeof *t);
  CHECK(t, "no memory");
  t->desc = (sheaf_segment_desc)SHEAF_SEGMENT_DESC_INIT;
  t->desc.kind = kind;
  t->desc.dtype = dtypes[pick(4)];
  t->desc.index_dtype = pick(2) ? SHEAF_I64 : SHEAF_I32;
  t->desc.rows = extents[pick(5)];
  t->desc.dim = extents[pick(4)];
  t->desc.segments = extents[pick(5)];
  t->desc.empty = pick(2) ? SHEAF_EMPTY_IDENTITY : SHEAF_EMPTY_NEUTRAL;
  t->backward = has_word(t, "backward");
  t->extremes = has_word(t, "max") || has_word(t, "min");
  t->desc.ties = t->backward && t->extremes && pick(2) ? SHEAF_TIES_SPLIT : SHEAF_TIES_FIRST;
  int64_t rows[2] = {t->desc.rows, t->desc.dim}, segments[2] = {t->desc.segments, t->desc.dim};
  t->data = whole_make(t->desc.dtype, 2, rows);
  t->data_grad = whole_make(t->desc.dtype, 2, rows);
  t->ids = whole_make(t->desc.index_dtype, 1, rows);
  t->out = whole_make(t->desc.dtype, 2, segments);
  t->grad = whole_make(t->desc.dtype, 2, segments);
  if (t->extremes) t->arg = whole_make(t->desc.index_dtype, 2, segments);
  fill(t);
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  args.data = operand(t->data);
  args.ids = operand(t->ids);
  args.grad_out = operand(t->grad);
  args.out = operand(t->out);
  args.data_grad = operand(t->data_grad);
  if (t->backward && t->extremes) { /* arg as the forward op gives it */
    sheaf_segment_desc forward = t->desc;
    int sorted = !has_word(t, "unsorted"), max = has_word(t, "max");
    forward.kind = sorted ? max ? SHEAF_SEGMENT_MAX : SHEAF_SEGMENT_MIN
                   : max  ? SHEAF_UNSORTED_SEGMENT_MAX
                          : SHEAF_UNSORTED_SEGMENT_MIN;
    args.arg = operand(t->arg);
    run_alone(&forward, &args);
    args.arg.tensor = NULL;
    t->uses_arg = t->desc.ties == SHEAF_TIES_FIRST && pick(2);
  }
  if (!t->backward) args.arg = operand(t->arg);
  run_alone(&t->desc, &args);
  return t;
}

static void free_task(task *t)
{
  whole *all[] = {t->data, t->ids, t->grad, t->out, t->arg, t->data_grad};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) whole_free(all[i]);
  free(t);
}

static sheaf_placement any_shard(int rank)
{
  int64_t choice = pick(rank + 1);
  return choice == 0 ? sheaf_replicate() : sheaf_shard((int)choice - 1);
}

static void check_strategy(const task *t, const ranks_mesh *sizes, const sheaf_shard_segment_args *in,
                           const sheaf_strategy *s, const sheaf_placement *wanted)
{
  char text[300], by[3][2][16] = {{{0}}};
  for (int m = 0; m < sizes->dims; m++) {
    sheaf_placement_print(&s->out[m], by[0][m], 16);
    for (int j = 0; j < 2; j++) sheaf_placement_print(&s->in[j][m], by[j + 1][m], 16);
  }
  snprintf(text, sizeof text,
           "%s %s N %lld D %lld S %lld ties %d empty %d arg %d mesh %lldx%lld by [%s %s]<-[%s %s][%s %s]",
           sheaf_kind_name(SHEAF_CATEGORY_SEGMENT, (uint16_t)t->desc.kind), sheaf_dtype_name(t->desc.dtype),
           (long long)t->desc.rows, (long long)t->desc.dim, (long long)t->desc.segments, (int)t->desc.ties,
           (int)t->desc.empty, t->uses_arg, (long long)sizes->size[0], (long long)sizes->size[1], by[0][0], by[0][1],
           by[1][0], by[1][1], by[2][0], by[2][1]);
  sheaf_dtensor *out = NULL, *arg = NULL, *grad = NULL;
  sheaf_shard_segment_args args = *in;
  args.out = &out;
  args.arg_out = t->extremes && !t->backward ? &arg : NULL;
  args.data_grad = &grad;
  sheaf_shard_call call = SHEAF_SHARD_CALL_INIT;
  call.strategy = s;
  call.out = wanted;
  sheaf_status status = sheaf_shard_segment_run(&t->desc, &call, &args);
  CHECK(status == SHEAF_OK, "%s: %s", text, sheaf_last_error());
  whole_check(t->backward ? t->data_grad : t->out, t->backward ? grad : out, 0, text);
  if (arg) whole_check(t->arg, arg, 0, text);
  sheaf_dtensor_free(out);
  sheaf_dtensor_free(arg);
  sheaf_dtensor_free(grad);
  cases++;
}

static void check_kind(sheaf_segment_kind kind, sheaf_mesh *mesh, const ranks_mesh *sizes)
{
  task *t = make_task(kind);
  sheaf_placement values[2], ids[2], data[2], arg[2], wanted[2];
  for (int m = 0; m < sizes->dims; m++) {
    values[m] = any_shard(2);
    ids[m] = any_shard(1);
    data[m] = any_shard(2);
    arg[m] = any_shard(2);
    wanted[m] = any_shard(2);
  }
  sheaf_shard_segment_args args = SHEAF_SHARD_SEGMENT_ARGS_INIT;
  sheaf_dtensor *x = whole_part(t->data, mesh, sizes, t->backward ? data : values);
  sheaf_dtensor *g = whole_part(t->grad, mesh, sizes, values), *i = whole_part(t->ids, mesh, sizes, ids);
  sheaf_dtensor *a = t->arg ? whole_part(t->arg, mesh, sizes, arg) : NULL;
  args.ids = i;
  if (!t->backward || !t->uses_arg) args.data = x;
  if (t->backward) args.grad_out = g;
  if (t->uses_arg) args.arg = a;
  sheaf_shard_problem p = SHEAF_SHARD_PROBLEM_INIT;
  p.mesh = mesh;
  p.category = SHEAF_CATEGORY_SEGMENT;
  p.kind = (uint16_t)kind;
  p.dtype = t->desc.dtype;
  p.index_dtype = t->desc.index_dtype;
  p.rows = p.index_shape[0] = t->desc.rows;
  p.index_rank = 1;
  p.dim = t->desc.dim;
  p.bags = t->desc.segments;
  memcpy(p.in[0], values, (size_t)sizes->dims * sizeof *values);
  memcpy(p.in[1], ids, (size_t)sizes->dims * sizeof *ids);
  sheaf_strategy_list *list;
  OK(sheaf_strategies(&p, 0, NULL, &list));
  for (int64_t n = 0; n < sheaf_strategy_count(list); n++)
    check_strategy(t, sizes, &args, sheaf_strategy_at(list, n), pick(2) ? wanted : NULL);
  sheaf_strategy_list_free(list);
  sheaf_dtensor_free(x);
  sheaf_dtensor_free(g);
  sheaf_dtensor_free(i);
  sheaf_dtensor_free(a);
  free_task(t);
}

/* Ids that decrease from one rank to the next are found, and all ranks say the same. */
static void check_order(void)
{
  if (ranks_size < 2) return;
  sheaf_mesh *mesh;
  OK(sheaf_mesh_create(&ranks_size, 1, ranks_comm, &mesh));
  ranks_mesh sizes = {1, {ranks_size, 0}};
  int64_t shape[2] = {ranks_size, 1};
  whole *x = whole_make(SHEAF_F32, 2, shape), *ids = whole_make(SHEAF_I64, 1, shape);
  for (int64_t i = 0; i < ranks_size; i++) whole_set(ids, i, (double)(ranks_size - i));
  sheaf_placement S0 = sheaf_shard(0);
  sheaf_dtensor *dx = whole_part(x, mesh, &sizes, &S0), *di = whole_part(ids, mesh, &sizes, &S0), *out = NULL;
  sheaf_shard_segment_args args = SHEAF_SHARD_SEGMENT_ARGS_INIT;
  args.data = dx;
  args.ids = di;
  args.out = &out;
  sheaf_segment_desc desc = SHEAF_SEGMENT_DESC_INIT;
  desc.segments = 2;
  sheaf_status status = sheaf_shard_segment_run(&desc, NULL, &args);
  CHECK(status == SHEAF_INVALID_PROBLEM, "status %d", (int)status);
  sheaf_dtensor_free(dx);
  sheaf_dtensor_free(di);
  whole_free(x);
  whole_free(ids);
  sheaf_mesh_free(mesh);
  cases++;
}

int ranks_main(int argc, char **argv)
{
  (void)argc, (void)argv;
  ranks_mesh meshes[RANKS_MAX_MESHES];
  ranks_open();
  int count = ranks_meshes(meshes), repeats = getenv("SHEAF_TEST_QUICK") ? 2 : 8;
  for (int i = 0; i < count; i++) {
    sheaf_mesh *mesh;
    OK(sheaf_mesh_create(meshes[i].size, meshes[i].dims, ranks_comm, &mesh));
    for (int r = 0; r < repeats; r++)
      for (int kind = 0; kind < 20; kind++) check_kind((sheaf_segment_kind)kind, mesh, &meshes[i]);
    sheaf_mesh_free(mesh);
  }
  check_order();
  return ranks_close("segment", cases);
}
