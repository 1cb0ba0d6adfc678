/* tests/ranks/ranks_embedding.c: every embedding op by every strategy on every mesh, against one rank.
 *
 * Values are small integers, so that sums are exact in any order and results can be compared to the bit, but where
 * quotients are added (mean backward, frequencies). Lookups and maxima get NaN, infinities and -0 as well. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ranks_data.h"

typedef struct setting {
  sheaf_embedding_kind kind;
  sheaf_dtype dtype, index_dtype;
  int64_t rows, dim, bags, length; /* length: of bags in matrix form, 0: offsets; lookups: [bags, length] or [bags] */
  int weighted, padding, frequency, bad;
  int with_end;       /* offsets are given with their end */
  sheaf_dtype packed; /* of the table, when it is quantised: dtype is the output's then */
  int exact;
} setting;

static _Thread_local int64_t cases;
static _Thread_local uint64_t seed = 7;

static int64_t pick(int64_t count) { return (int64_t)(ranks_random(&seed) % (uint64_t)count); }

/* ---- The whole problem, and one rank's answer --------------------------------------------------------------------- */

typedef struct task {
  setting s;
  whole *table, *packed, *indices, *offsets, *weights, *grad, *out, *arg, *table_grad, *weights_grad;
  sheaf_embedding_desc desc;
} task;

static int is_backward(sheaf_embedding_kind k) { return k == 1 || k == 4 || k == 5 || k == 7; }

static void fill_values(whole *t, int special)
{
  static const double odd[] = {NAN, INFINITY, -INFINITY, -0.0};
  for (int64_t i = 0; i < t->count; i++)
    whole_set(t, i, special && pick(9) == 0 ? odd[pick(4)] : (double)(pick(9) - 4));
}

static void make_indices(task *t)
{
  const setting *s = &t->s;
  int64_t shape[2] = {s->bags, s->length};
  if (s->kind >= SHEAF_BAG_SUM && s->length == 0) { /* ragged, some bags empty */
    t->offsets = whole_make(SHEAF_I64, 1, &s->bags);
    int64_t at = 0;
    for (int64_t b = 0; b < s->bags; b++) {
      whole_set(t->offsets, b, (double)at);
      at += pick(3) ? pick(6) : 0;
    }
    t->indices = whole_make(s->index_dtype, 1, &at);
  } else {
    t->indices = whole_make(s->index_dtype, s->length ? 2 : 1, shape);
  }
  for (int64_t i = 0; i < t->indices->count; i++) {
    int64_t index = s->rows ? pick(s->rows) : 0;
    if (pick(3) == 0) index = index % 3 % (s->rows ? s->rows : 1); /* hot rows */
    if (s->bad && pick(8) == 0) index = pick(2) ? -1 - pick(5) : s->rows + pick(5);
    whole_set(t->indices, i, (double)index);
  }
}

static sheaf_operand operand(const whole *t) { return (sheaf_operand){.tensor = t ? &t->view : NULL}; }

static void run_plan(const sheaf_embedding_desc *desc, const sheaf_embedding_args *args)
{
  sheaf_plan *plan;
  OK(sheaf_embedding_select(desc, NULL, &plan));
  size_t bytes = sheaf_plan_workspace_size(plan);
  void *workspace = aligned_alloc(64, bytes + 64);
  OK(sheaf_embedding_run(plan, workspace, bytes, NULL, args));
  free(workspace);
  sheaf_plan_free(plan);
}

static void run_alone(task *t)
{
  const setting *s = &t->s;
  sheaf_embedding_desc desc = t->desc;
  desc.dtype = s->packed ? s->packed : s->dtype;
  desc.out_dtype = s->packed ? s->dtype : SHEAF_DTYPE_NONE;
  desc.bag_form = desc.bag_form == SHEAF_BAGS_OFFSETS_END ? SHEAF_BAGS_OFFSETS : desc.bag_form;
  desc.index_dtype = s->index_dtype;
  desc.offset_dtype = SHEAF_I64;
  desc.rows = s->rows;
  desc.dim = s->dim;
  desc.indices = t->indices->count;
  desc.bags = s->kind >= SHEAF_BAG_SUM ? s->bags : 0;
  desc.grad_write = SHEAF_GRAD_OVERWRITE;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.table = operand(s->packed ? t->packed : t->table);
  args.indices = operand(t->indices);
  args.offsets = operand(t->offsets);
  args.weights = operand(t->weights);
  args.grad_out = operand(t->grad);
  args.arg = operand(t->arg);
  if (t->weights_grad && s->kind == SHEAF_BAG_MEAN_BACKWARD) { /* its forward output first */
    sheaf_embedding_desc forward = desc;
    forward.kind = SHEAF_BAG_MEAN;
    forward.scale_grad_by_freq = 0;
    args.out = operand(t->out);
    run_plan(&forward, &args);
  }
  if (t->weights_grad) args.weights_grad = operand(t->weights_grad);
  if (is_backward(s->kind))
    args.table_grad = operand(t->table_grad);
  else
    args.out = operand(t->out);
  run_plan(&desc, &args);
}

/* Small integers with a scale of 1 and a bias of -8: every sum is exact, whatever its order. */
static void pack_table(task *t)
{
  const setting *s = &t->s;
  int64_t shape[2] = {s->rows, sheaf_dtype_row_bytes(s->packed, s->dim)};
  t->packed = whole_make(SHEAF_U8, 2, shape);
  for (int64_t r = 0; r < s->rows; r++) {
    char *row = t->packed->data + r * shape[1];
    float scale = 1, bias = -8;
    uint16_t half[2] = {sheaf_f32_to_f16(scale), sheaf_f32_to_f16(bias)};
    for (int64_t d = 0; d < s->dim; d++) {
      int q = (int)pick(16);
      if (s->packed == SHEAF_INT8)
        row[d] = (char)q;
      else
        row[d / 2] = (char)(row[d / 2] | (d % 2 ? q << 4 : q));
    }
    if (s->packed == SHEAF_INT8) {
      memcpy(row + s->dim, &scale, 4);
      memcpy(row + s->dim + 4, &bias, 4);
    } else {
      memcpy(row + (s->dim + 1) / 2, half, 4);
    }
  }
}

static task *make_task(const setting *s)
{
  task *t = calloc(1, sizeof *t);
  CHECK(t, "no memory");
  t->s = *s;
  int64_t table_shape[2] = {s->rows, s->dim};
  t->table = whole_make(s->dtype, 2, table_shape);
  fill_values(t->table, !s->packed && (s->kind == SHEAF_LOOKUP || s->kind == SHEAF_BAG_MAX));
  if (s->packed) pack_table(t);
  make_indices(t);
  if (s->weighted) {
    t->weights = whole_make(s->packed ? SHEAF_F32 : s->dtype, t->indices->rank, t->indices->shape);
    for (int64_t i = 0; i < t->weights->count; i++) whole_set(t->weights, i, (double)(pick(3) + 1));
    if (is_backward(s->kind)) t->weights_grad = whole_make(s->dtype, t->indices->rank, t->indices->shape);
  }
  int64_t out_shape[4] = {s->bags, s->dim};
  int out_rank = 2;
  if (s->kind <= SHEAF_LOOKUP_BACKWARD) {
    out_rank = t->indices->rank + 1;
    for (int d = 0; d < t->indices->rank; d++) out_shape[d] = t->indices->shape[d];
    out_shape[t->indices->rank] = s->dim;
  }
  t->out = whole_make(s->dtype, out_rank, out_shape);
  t->grad = whole_make(s->dtype, out_rank, out_shape);
  fill_values(t->grad, 0);
  t->table_grad = whole_make(s->dtype, 2, table_shape);
  if (s->kind == SHEAF_BAG_MAX || s->kind == SHEAF_BAG_MAX_BACKWARD) {
    t->arg = whole_make(s->index_dtype, 2, out_shape);
    for (int64_t i = 0; i < t->arg->count; i++) whole_set(t->arg, i, s->rows ? (double)(pick(s->rows + 1) - 1) : -1);
  }
  t->desc = (sheaf_embedding_desc)SHEAF_EMBEDDING_DESC_INIT;
  t->desc.kind = s->kind;
  t->desc.bag_form = s->length && s->kind >= SHEAF_BAG_SUM ? SHEAF_BAGS_MATRIX : SHEAF_BAGS_OFFSETS;
  t->desc.weighted = (uint8_t)s->weighted;
  t->desc.has_padding = (uint8_t)(s->padding && s->rows > 0);
  t->desc.padding_idx = s->rows > 1 ? 1 : 0;
  t->desc.scale_grad_by_freq = (uint8_t)s->frequency;
  t->desc.rows = s->rows;
  if (s->with_end && t->offsets) t->desc.bag_form = SHEAF_BAGS_OFFSETS_END;
  if (s->packed) {
    t->desc.dtype = s->packed;
    t->desc.out_dtype = s->dtype;
    t->desc.dim = s->dim;
  }
  run_alone(t);
  return t;
}

static void free_task(task *t)
{
  whole *all[] = {t->table, t->packed, t->indices, t->offsets,    t->weights,
                  t->grad,  t->out,    t->arg,     t->table_grad, t->weights_grad};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) whole_free(all[i]);
  free(t);
}

/* ---- The same on ranks ---------------------------------------------------------------------------------------------- */

typedef struct parts {
  sheaf_dtensor *table, *indices, *offsets, *weights, *grad, *arg, *forward;
} parts;

static sheaf_placement any_shard(int rank)
{
  int64_t choice = pick(rank + 1);
  return choice == 0 ? sheaf_replicate() : sheaf_shard((int)choice - 1);
}

/* Where the inputs lie, at random. */
static void place(const task *t, const ranks_mesh *sizes, sheaf_placement in[3][2])
{
  sheaf_placement B = {.kind = SHEAF_PLACE_BAGS};
  const whole *values = is_backward(t->s.kind) ? t->grad : t->s.packed ? t->packed : t->table;
  for (int m = 0; m < sizes->dims; m++) {
    in[0][m] = any_shard(values->rank);
    if (is_backward(t->s.kind) && pick(5) == 0) in[0][m] = sheaf_partial(SHEAF_PARTIAL_SUM);
    if (t->s.kind == SHEAF_BAG_MAX_BACKWARD)
      in[1][m] = any_shard(2);
    else if (t->offsets)
      in[1][m] = pick(2) ? B : sheaf_replicate();
    else
      in[1][m] = any_shard(t->indices->rank);
    in[2][m] = in[1][m].kind == SHEAF_PLACE_BAGS ? sheaf_shard(0) : sheaf_replicate();
  }
}

static parts make_parts(const task *t, sheaf_mesh *mesh, const ranks_mesh *sizes, sheaf_placement in[3][2])
{
  parts p = {0};
  sheaf_placement any[2] = {any_shard(2), any_shard(2)};
  if (t->weights_grad) p.table = whole_part(t->table, mesh, sizes, any);
  if (t->weights_grad) p.forward = whole_part(t->out, mesh, sizes, any);
  if (is_backward(t->s.kind))
    p.grad = whole_part(t->grad, mesh, sizes, in[0]);
  else
    p.table = whole_part(t->s.packed ? t->packed : t->table, mesh, sizes, in[0]);
  if (t->s.kind == SHEAF_BAG_MAX_BACKWARD) {
    p.arg = whole_part(t->arg, mesh, sizes, in[1]);
  } else if (t->offsets) {
    p.indices = whole_ragged(t->indices, t->offsets, mesh, sizes, in[1]);
    p.offsets = whole_ragged_offsets(t->offsets, t->indices->count, t->s.with_end, mesh, sizes, in[1]);
    if (t->weights) p.weights = whole_ragged(t->weights, t->offsets, mesh, sizes, in[1]);
  } else {
    p.indices = whole_part(t->indices, mesh, sizes, in[1]);
    if (t->weights) p.weights = whole_part(t->weights, mesh, sizes, in[1]);
  }
  return p;
}

static void free_parts(parts *p)
{
  sheaf_dtensor *all[] = {p->table, p->indices, p->offsets, p->weights, p->grad, p->arg, p->forward};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) sheaf_dtensor_free(all[i]);
}

static sheaf_shard_problem problem_of(const task *t, const sheaf_mesh *mesh, const ranks_mesh *sizes,
                                      sheaf_placement in[3][2])
{
  sheaf_shard_problem p = SHEAF_SHARD_PROBLEM_INIT;
  const whole *index = t->s.kind == SHEAF_BAG_MAX_BACKWARD ? t->arg : t->indices;
  p.mesh = mesh;
  p.kind = (uint16_t)t->s.kind;
  p.bag_form = t->desc.bag_form;
  p.dtype = t->s.packed ? t->s.packed : t->s.dtype;
  p.index_dtype = t->s.index_dtype;
  p.rows = t->s.rows;
  p.dim = t->s.dim;
  p.index_rank = index->rank;
  memcpy(p.index_shape, index->shape, sizeof index->shape);
  p.bags = t->s.bags;
  for (int j = 0; j < 3; j++) memcpy(p.in[j], in[j], (size_t)sizes->dims * sizeof **in);
  return p;
}

static void explain(const task *t, const ranks_mesh *sizes, sheaf_placement in[3][2], const sheaf_strategy *s,
                    char *text, size_t room)
{
  char word[3][2][16] = {{{0}}}, by[4][2][16] = {{{0}}};
  for (int m = 0; m < sizes->dims; m++) {
    for (int j = 0; j < 3; j++) sheaf_placement_print(&in[j][m], word[j][m], 16);
    sheaf_placement_print(&s->out[m], by[0][m], 16);
    for (int j = 0; j < s->inputs; j++) sheaf_placement_print(&s->in[j][m], by[j + 1][m], 16);
  }
  snprintf(text, room,
           "%s %s%s V %lld D %lld B %lld L %lld w %d pad %d freq %d bad %d mesh %lldx%lld in [%s %s][%s %s] by [%s "
           "%s]<-[%s %s][%s %s] dispatch %d",
           sheaf_kind_name(0, (uint16_t)t->s.kind), t->s.packed ? sheaf_dtype_name(t->s.packed) : "",
           sheaf_dtype_name(t->s.dtype), (long long)t->s.rows, (long long)t->s.dim, (long long)t->s.bags,
           (long long)t->s.length, t->s.weighted, t->s.padding, t->s.frequency, t->s.bad, (long long)sizes->size[0],
           (long long)sizes->size[1], word[0][0], word[0][1], word[1][0], word[1][1], by[0][0], by[0][1], by[1][0],
           by[1][1], by[2][0], by[2][1], s->dispatch);
}

static double tolerance_of(const setting *s)
{
  int quotients = s->kind == SHEAF_BAG_MEAN_BACKWARD || s->frequency;
  if (!quotients) return 0;
  return s->dtype == SHEAF_F64 ? 1e-13 : s->dtype == SHEAF_F32 ? 1e-5 : s->dtype == SHEAF_F16 ? 4e-3 : 3e-2;
}

/* A sum's products are exact, a mean's are not. */
static double weights_tolerance(const setting *s)
{
  if (s->kind == SHEAF_BAG_SUM_BACKWARD) return 0;
  return s->dtype == SHEAF_F64 ? 1e-12 : s->dtype == SHEAF_F32 ? 2e-5 : s->dtype == SHEAF_F16 ? 4e-3 : 3e-2;
}

static void check_strategy(const task *t, const ranks_mesh *sizes, const parts *p, sheaf_placement in[3][2],
                           const sheaf_strategy *s, const sheaf_placement *wanted)
{
  char text[512];
  explain(t, sizes, in, s, text, sizeof text);
  sheaf_shard_call call = SHEAF_SHARD_CALL_INIT;
  call.strategy = s;
  call.out = wanted;
  call.exact = (uint8_t)t->s.exact;
  sheaf_dtensor *out = NULL, *arg = NULL, *grad = NULL, *weights_grad = NULL;
  sheaf_shard_embedding_args args = SHEAF_SHARD_EMBEDDING_ARGS_INIT;
  args.table = p->table;
  args.indices = p->indices;
  args.offsets = p->offsets;
  args.weights = p->weights;
  args.grad_out = p->grad;
  args.arg = p->arg;
  args.out = &out;
  args.arg_out = t->s.kind == SHEAF_BAG_MAX ? &arg : NULL;
  args.table_grad = &grad;
  args.forward = p->forward;
  args.weights_grad = t->weights_grad ? &weights_grad : NULL;
  sheaf_status status = sheaf_shard_embedding_run(&t->desc, &call, &args);
  CHECK(status == SHEAF_OK, "%s: %s", text, sheaf_last_error());
  const sheaf_dtensor *result = is_backward(t->s.kind) ? grad : out;
  for (int m = 0; m < sizes->dims && wanted; m++)
    CHECK(sheaf_placement_equal(&wanted[m], &sheaf_dtensor_describe(result)->placements[m]), "%s: lies elsewhere",
          text);
  whole_check(is_backward(t->s.kind) ? t->table_grad : t->out, result, tolerance_of(&t->s), text);
  if (arg) whole_check(t->arg, arg, 0, text);
  if (weights_grad)
    whole_check_entries(t->weights_grad, t->offsets, weights_grad, sizes, weights_tolerance(&t->s), text);
  sheaf_dtensor_free(weights_grad);
  sheaf_dtensor_free(out);
  sheaf_dtensor_free(arg);
  sheaf_dtensor_free(grad);
  cases++;
}

static void check_setting(const setting *s, sheaf_mesh *mesh, const ranks_mesh *sizes)
{
  task *t = make_task(s);
  sheaf_placement in[3][2];
  place(t, sizes, in);
  parts p = make_parts(t, mesh, sizes, in);
  sheaf_shard_problem problem = problem_of(t, mesh, sizes, in);
  sheaf_strategy_list *list;
  OK(sheaf_strategies(&problem, 0, NULL, &list));
  int64_t count = sheaf_strategy_count(list);
  CHECK(count > 0, "no strategies");
  int64_t step = count > 12 ? 1 + pick(count / 6) : 1; /* large products: some of them each time */
  for (int64_t i = step > 1 ? pick(step) : 0; i < count; i += step) {
    sheaf_placement wanted[2];
    int rank = is_backward(s->kind) ? 2 : t->out->rank;
    for (int m = 0; m < sizes->dims; m++) wanted[m] = any_shard(rank);
    check_strategy(t, sizes, &p, in, sheaf_strategy_at(list, i), pick(2) ? wanted : NULL);
  }
  sheaf_strategy_list_free(list);
  free_parts(&p);
  whole_forget();
  free_task(t);
}

static void check_mesh(const ranks_mesh *sizes, int repeats)
{
  static const sheaf_dtype dtypes[] = {SHEAF_F32, SHEAF_F16, SHEAF_BF16, SHEAF_F64};
  sheaf_mesh *mesh;
  OK(sheaf_mesh_create(sizes->size, sizes->dims, ranks_comm, &mesh));
  for (int kind = SHEAF_LOOKUP; kind <= SHEAF_BAG_MAX_BACKWARD; kind++)
    for (int r = 0; r < repeats; r++) {
      setting s = {.kind = (sheaf_embedding_kind)kind};
      int64_t extents[] = {1, ranks_size - 1, ranks_size, ranks_size + 1, 3 * ranks_size + 2, 40, 2500};
      int sums = kind >= SHEAF_BAG_SUM && kind <= SHEAF_BAG_MEAN_BACKWARD;
      s.dtype = dtypes[pick(4)];
      s.index_dtype = pick(2) ? SHEAF_I64 : SHEAF_I32;
      s.rows = extents[pick(7)];
      if (s.rows < 1) s.rows = 1;
      s.dim = extents[pick(5)];
      if (s.dim < 1) s.dim = 1;
      s.bags = extents[pick(6)];
      if (s.bags < 1) s.bags = 2;
      s.length = pick(2) ? 1 + pick(7) : 0;
      s.weighted = sums && pick(2);
      s.padding = (int)pick(2);
      s.frequency = is_backward(s.kind) && kind != SHEAF_BAG_MAX_BACKWARD && pick(3) == 0;
      s.bad = (int)pick(2);
      s.with_end = (int)pick(2);
      s.exact = pick(4) == 0;
      if (!is_backward(s.kind) && pick(4) == 0) { /* quantised rows */
        s.packed = pick(2) ? SHEAF_INT8 : SHEAF_INT4;
        if (s.dtype == SHEAF_F64) s.dtype = SHEAF_F32;
      }
      check_setting(&s, mesh, sizes);
    }
  sheaf_mesh_free(mesh);
}

/* Enough rows that they are copied and added by all threads, and stored past the cache. */
static void check_large(const ranks_mesh *sizes)
{
  sheaf_mesh *mesh;
  OK(sheaf_mesh_create(sizes->size, sizes->dims, ranks_comm, &mesh));
  for (int kind = SHEAF_LOOKUP; kind <= SHEAF_LOOKUP_BACKWARD; kind++) {
    setting s = {.kind = (sheaf_embedding_kind)kind, .dtype = SHEAF_F32, .index_dtype = SHEAF_I64, .bad = 1};
    s.rows = 3001;
    s.dim = 640;
    s.bags = 4000 * ranks_size;
    check_setting(&s, mesh, sizes);
  }
  sheaf_mesh_free(mesh);
}

int ranks_main(int argc, char **argv)
{
  (void)argc, (void)argv;
  ranks_mesh meshes[RANKS_MAX_MESHES];
  ranks_open();
  int count = ranks_meshes(meshes), repeats = getenv("SHEAF_TEST_QUICK") ? 3 : 12;
  for (int i = 0; i < count; i++) check_mesh(&meshes[i], repeats);
  if (ranks_size == 2 || ranks_size == 3) check_large(&meshes[0]);
  return ranks_close("embedding", cases);
}
