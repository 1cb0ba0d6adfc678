/* tests/ranks/ranks_faults.c: what one rank finds wrong, all ranks report: same status, same words, nobody waits.
 *
 * With the argument "die", the rank in the middle kills itself in the middle of an op: the job must end by itself. */
#define _GNU_SOURCE /* posix_memalign */
#include <math.h>
#include <signal.h>
#include <string.h>

#include "ranks_data.h"

static int64_t cases;
static sheaf_mesh *mesh;
static ranks_mesh sizes;

/* ---- All ranks say the same ---------------------------------------------------------------------------------------- */

/* The status and a digest of the words of every rank, compared by a row-wise sum that all take part in. */
static void check_same(sheaf_status status)
{
  double words = 0;
  const char *text = status == SHEAF_OK ? "" : sheaf_last_error();
  for (int i = 0; text[i]; i++) words = fmod(words * 31 + text[i], 1e6);
  int64_t shape[2] = {ranks_size, 2};
  sheaf_placement S0 = sheaf_shard(0), R = sheaf_replicate();
  whole *t = whole_make(SHEAF_F64, 2, shape);
  for (int64_t i = 0; i < ranks_size; i++) whole_set(t, 2 * i, (double)status), whole_set(t, 2 * i + 1, words);
  sheaf_dtensor *mine = whole_part(t, mesh, &sizes, &S0), *all;
  OK(sheaf_dtensor_redistribute(mine, &R, &all));
  const double *got = sheaf_dtensor_local(all)->data;
  for (int64_t i = 0; i < 2 * ranks_size; i++)
    CHECK(got[i] == whole_get(t, i), "rank %lld has status or words %g, this one %g: %s", (long long)(i / 2), got[i],
          whole_get(t, i), text);
  sheaf_dtensor_free(mine);
  sheaf_dtensor_free(all);
  whole_free(t);
}

/* ---- Calls to disturb ------------------------------------------------------------------------------------------------ */

typedef struct scene {
  whole *table, *indices, *offsets, *weights, *grad, *data, *ids, *gradient;
  sheaf_dtensor *rows, *columns, *flat, *cut, *ragged, *starts, *weight, *bags_grad, *entry_grad, *x, *i, *g;
} scene;

static scene make_scene(void)
{
  scene s = {0};
  /* Wide rows and, on every rank, one long bag and an empty one: dispatched sums go by pieces on 2 to 4 ranks. */
  int64_t rows = 4 * ranks_size + 1, dim = 24, entries = 12 * ranks_size, bags = 2 * ranks_size;
  int64_t table[2] = {rows, dim}, grads[2] = {entries, dim}, out[2] = {bags, dim};
  sheaf_placement S0 = sheaf_shard(0), S1 = sheaf_shard(1), R = sheaf_replicate(), B = {.kind = SHEAF_PLACE_BAGS};
  s.table = whole_make(SHEAF_F16, 2, table);
  s.indices = whole_make(SHEAF_I64, 1, &entries);
  s.offsets = whole_make(SHEAF_I64, 1, &bags);
  s.weights = whole_make(SHEAF_F16, 1, &entries);
  s.grad = whole_make(SHEAF_F16, 2, grads);
  s.gradient = whole_make(SHEAF_F16, 2, out);
  s.data = whole_make(SHEAF_F16, 2, grads);
  s.ids = whole_make(SHEAF_I64, 1, &entries);
  for (int64_t n = 0; n < entries; n++) {
    whole_set(s.indices, n, (double)(n * 7 % rows));
    whole_set(s.weights, n, 1);
    whole_set(s.ids, n, (double)(n / 6));
  }
  for (int64_t b = 0; b < bags; b++) whole_set(s.offsets, b, (double)((b + 1) / 2 * 12));
  s.rows = whole_part(s.table, mesh, &sizes, &S0);
  s.columns = whole_part(s.table, mesh, &sizes, &S1);
  s.flat = whole_part(s.indices, mesh, &sizes, &R);
  s.cut = whole_part(s.indices, mesh, &sizes, &S0);
  s.ragged = whole_ragged(s.indices, s.offsets, mesh, &sizes, &B);
  s.weight = whole_ragged(s.weights, s.offsets, mesh, &sizes, &B);
  s.starts = whole_ragged_offsets(s.offsets, entries, 0, mesh, &sizes, &B);
  s.bags_grad = whole_part(s.gradient, mesh, &sizes, &S0);
  s.entry_grad = whole_part(s.grad, mesh, &sizes, &S0);
  s.x = whole_part(s.data, mesh, &sizes, &S0);
  s.i = whole_part(s.ids, mesh, &sizes, &S0);
  s.g = whole_part(s.gradient, mesh, &sizes, &S1);
  return s;
}

static void free_scene(scene *s)
{
  whole *wholes[] = {s->table, s->indices, s->offsets, s->weights, s->grad, s->data, s->ids, s->gradient};
  sheaf_dtensor *parts[] = {s->rows,   s->columns,   s->flat,       s->cut, s->ragged, s->starts,
                            s->weight, s->bags_grad, s->entry_grad, s->x,   s->i,      s->g};
  for (size_t n = 0; n < sizeof wholes / sizeof *wholes; n++) whole_free(wholes[n]);
  for (size_t n = 0; n < sizeof parts / sizeof *parts; n++) sheaf_dtensor_free(parts[n]);
  whole_forget();
}

/* Finds the strategy whose first two inputs lie so (along the one mesh dimension); dispatch or not. */
static const sheaf_strategy *find(const sheaf_strategy_list *list, const char *a, const char *b, int dispatch)
{
  for (int64_t n = 0; n < sheaf_strategy_count(list); n++) {
    const sheaf_strategy *s = sheaf_strategy_at(list, n);
    char x[16], y[16];
    sheaf_placement_print(&s->in[0][0], x, 16);
    sheaf_placement_print(&s->in[1][0], y, 16);
    if (strcmp(x, a) == 0 && strcmp(y, b) == 0 && s->dispatch == dispatch) return s;
  }
  CHECK(0, "no strategy %s %s", a, b);
  return NULL;
}

typedef struct act {
  int category;
  uint16_t kind;
  const char *a, *b; /* the strategy */
  int dispatch, frequency, weighted;
} act;

static const act acts[] = {
    {0, SHEAF_LOOKUP, "S(0)", "MaskP", 0, 0, 0},
    {0, SHEAF_LOOKUP, "R", "S(0)", 0, 0, 0},
    {0, SHEAF_LOOKUP, "S(0)", "S(0)", 1, 0, 0},
    {0, SHEAF_LOOKUP, "S(1)", "R", 0, 0, 0},
    {0, SHEAF_LOOKUP_BACKWARD, "S(0)", "S(0)", 0, 1, 0},
    {0, SHEAF_LOOKUP_BACKWARD, "S(0)", "S(0)", 1, 1, 0},
    {0, SHEAF_BAG_SUM, "S(0)", "R", 0, 0, 1},
    {0, SHEAF_BAG_MEAN, "S(0)", "R", 0, 0, 1},
    {0, SHEAF_BAG_MEAN, "S(0)", "B", 1, 0, 1},
    {0, SHEAF_BAG_SUM, "S(0)", "B", 1, 0, 1},
    {0, SHEAF_BAG_SUM_BACKWARD, "S(0)", "B", 1, 0, 1},
    {0, SHEAF_BAG_MAX, "S(0)", "R", 0, 0, 0},
    {0, SHEAF_BAG_MAX, "R", "B", 0, 0, 0},
    {0, SHEAF_BAG_MEAN_BACKWARD, "S(0)", "B", 1, 1, 1},
    {0, SHEAF_BAG_SUM_BACKWARD, "R", "R", 0, 0, 1},
    {1, SHEAF_SEGMENT_MEAN, "S(0)", "S(0)", 0, 0, 0},
    {1, SHEAF_SEGMENT_MAX, "S(0)", "S(0)", 0, 0, 0},
    {1, SHEAF_UNSORTED_SEGMENT_PROD, "S(1)", "R", 0, 0, 0},
    {1, SHEAF_SEGMENT_MEAN_BACKWARD, "R", "S(0)", 0, 0, 0},
    {1, SHEAF_SEGMENT_MAX_BACKWARD, "R", "S(0)", 0, 0, 0},
    {1, SHEAF_SEGMENT_PROD_BACKWARD, "R", "S(0)", 0, 0, 0},
};

static sheaf_status run_embedding(const scene *s, const act *a, const sheaf_strategy *strategy,
                                  const sheaf_placement *out, sheaf_bad_index policy)
{
  int bags = a->kind >= SHEAF_BAG_SUM, backward = a->kind == 1 || a->kind == 4 || a->kind == 5;
  sheaf_dtensor *made = NULL, *arg = NULL, *weights_grad = NULL;
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.kind = (sheaf_embedding_kind)a->kind;
  desc.rows = s->table->shape[0];
  desc.weighted = (uint8_t)a->weighted;
  desc.scale_grad_by_freq = (uint8_t)a->frequency;
  desc.bad_index = policy;
  sheaf_shard_embedding_args args = SHEAF_SHARD_EMBEDDING_ARGS_INIT;
  args.table = s->rows;
  args.indices = bags ? s->ragged : s->cut;
  args.offsets = bags ? s->starts : NULL;
  args.weights = a->weighted ? s->weight : NULL;
  args.grad_out = bags ? s->bags_grad : s->entry_grad;
  if (backward)
    args.table_grad = &made;
  else
    args.out = &made;
  args.arg_out = a->kind == SHEAF_BAG_MAX ? &arg : NULL;
  args.forward = s->bags_grad;
  args.weights_grad = backward && a->weighted ? &weights_grad : NULL;
  sheaf_shard_call call = SHEAF_SHARD_CALL_INIT;
  call.strategy = strategy;
  call.out = out;
  sheaf_status status = sheaf_shard_embedding_run(&desc, &call, &args);
  CHECK((status == SHEAF_OK) == (made != NULL), "an output of a failed call, or none of a good one");
  sheaf_dtensor_free(made);
  sheaf_dtensor_free(weights_grad);
  sheaf_dtensor_free(arg);
  return status;
}

static sheaf_status run_segment(const scene *s, const act *a, const sheaf_strategy *strategy,
                                const sheaf_placement *out)
{
  sheaf_dtensor *made = NULL, *arg = NULL;
  int backward = strstr(sheaf_kind_name(SHEAF_CATEGORY_SEGMENT, a->kind), "backward") != NULL;
  sheaf_segment_desc desc = SHEAF_SEGMENT_DESC_INIT;
  desc.kind = (sheaf_segment_kind)a->kind;
  desc.segments = s->gradient->shape[0];
  sheaf_shard_segment_args args = SHEAF_SHARD_SEGMENT_ARGS_INIT;
  args.data = s->x;
  args.ids = s->i;
  args.grad_out = backward ? s->g : NULL;
  if (backward)
    args.data_grad = &made;
  else
    args.out = &made;
  args.arg_out = a->kind == SHEAF_SEGMENT_MAX ? &arg : NULL;
  sheaf_shard_call call = SHEAF_SHARD_CALL_INIT;
  call.strategy = strategy;
  call.out = out;
  sheaf_status status = sheaf_shard_segment_run(&desc, &call, &args);
  CHECK((status == SHEAF_OK) == (made != NULL), "an output of a failed call, or none of a good one");
  sheaf_dtensor_free(made);
  sheaf_dtensor_free(arg);
  return status;
}

static sheaf_strategy_list *list_for(const scene *s, const act *a)
{
  sheaf_shard_problem p = SHEAF_SHARD_PROBLEM_INIT;
  int backward = strstr(sheaf_kind_name((sheaf_category)a->category, a->kind), "backward") != NULL;
  p.mesh = mesh;
  p.category = (sheaf_category)a->category;
  p.kind = a->kind;
  p.dtype = SHEAF_F16;
  p.index_dtype = SHEAF_I64;
  p.rows = a->category ? s->ids->count : s->table->shape[0];
  p.dim = s->table->shape[1];
  p.bags = s->gradient->shape[0];
  p.index_rank = 1;
  p.index_shape[0] = s->indices->count;
  const sheaf_dtensor *first = a->category ? backward ? s->g : s->x
                               : backward  ? a->kind == 1 ? s->entry_grad : s->bags_grad
                                           : s->rows;
  const sheaf_dtensor *second = a->category ? s->i : a->kind >= SHEAF_BAG_SUM ? s->ragged : s->cut;
  p.in[0][0] = sheaf_dtensor_describe(first)->placements[0];
  p.in[1][0] = sheaf_dtensor_describe(second)->placements[0];
  p.in[2][0] = sheaf_shard(0);
  sheaf_strategy_list *list;
  OK(sheaf_strategies(&p, 0, NULL, &list));
  return list;
}

/* ---- Failing memory ---------------------------------------------------------------------------------------------------- */

static int64_t allocations, failing = -1, killing = -1; /* the allocation that fails, or does not come back */

static void *allocate(void *context, size_t bytes, size_t alignment)
{
  (void)context;
  if (allocations == killing) raise(SIGKILL);
  if (allocations++ == failing) return NULL;
  void *memory = NULL;
  return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void release(void *context, void *memory, size_t bytes)
{
  (void)context, (void)bytes;
  free(memory);
}

/* Each allocation of a call fails in turn on one rank only; then none. */
static void check_memory(void)
{
  const sheaf_allocator allocator = {allocate, release, NULL};
  scene s = make_scene(); /* its memory is from before: aligned_alloc and free, as below */
  int64_t unlucky = ranks_size - 1;
  for (size_t n = 0; n < sizeof acts / sizeof *acts; n++) {
    const act *a = &acts[n];
    if (ranks_size > 3 && (a->b[0] == 'R' || a->a[0] == 'R') && n % 2) continue;
    sheaf_placement S1 = sheaf_shard(1), *out = n % 2 ? &S1 : NULL;
    sheaf_strategy_list *list = list_for(&s, a);
    const sheaf_strategy *strategy =
        find(list, ranks_size > 3 && strcmp(a->a, "S(1)") == 0 ? "R" : a->a, a->b, a->dispatch);
    OK(sheaf_set_allocator(&allocator));
    sheaf_status status = SHEAF_OUT_OF_MEMORY;
    int64_t turn = 0;
    for (; status != SHEAF_OK; turn++) {
      CHECK(turn < 400, "act %zu never succeeds", n);
      allocations = 0;
      failing = ranks_rank == unlucky ? turn : -1;
      status =
          a->category ? run_segment(&s, a, strategy, out) : run_embedding(&s, a, strategy, out, SHEAF_BAD_INDEX_SKIP);
      failing = -1;
      CHECK(status == SHEAF_OK || status == SHEAF_OUT_OF_MEMORY, "act %zu, allocation %lld: %s", n, (long long)turn,
            sheaf_last_error());
      if (status != SHEAF_OK && ranks_size > 1) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "rank %lld: ", (long long)unlucky);
        CHECK(strncmp(sheaf_last_error(), prefix, strlen(prefix)) == 0, "act %zu: '%s'", n, sheaf_last_error());
      }
      check_same(status);
    }
    CHECK(turn > 3, "act %zu allocates next to nothing", n);
    OK(sheaf_set_allocator(NULL));
    sheaf_strategy_list_free(list);
    cases++;
  }
  free_scene(&s);
}

/* ---- Bad indices, unequal arguments -------------------------------------------------------------------------------------- */

static void check_bad_index(void)
{
  scene s = make_scene();
  const act batch[] = {{0, SHEAF_LOOKUP, "R", "S(0)", 0, 0, 0}, {0, SHEAF_LOOKUP, "S(0)", "S(0)", 1, 0, 0}};
  int64_t unlucky = ranks_size / 2;
  for (int n = 0; n < 2; n++) {
    sheaf_strategy_list *list = list_for(&s, &batch[n]);
    int64_t *data = sheaf_dtensor_local(s.cut)->data;
    int64_t saved = data[2];
    if (ranks_rank == unlucky) data[2] = 12345;
    sheaf_status status = run_embedding(&s, &batch[n], find(list, batch[n].a, batch[n].b, batch[n].dispatch), NULL,
                                        SHEAF_BAD_INDEX_ERROR);
    char expected[120];
    snprintf(expected, sizeof expected, "indices: 12345 at position 2 is outside 0..%lld; 1 such entry",
             (long long)s.table->shape[0] - 1);
    CHECK(status == SHEAF_INDEX_OUT_OF_RANGE, "status %d: %s", (int)status, sheaf_last_error());
    CHECK(strstr(sheaf_last_error(), expected), "'%s'", sheaf_last_error());
    sheaf_error_info info = sheaf_last_error_info();
    CHECK(info.position == 2 && info.value == 12345 && info.count == 1 && strcmp(info.operand, "indices") == 0, "info");
    check_same(status);
    data[2] = saved;
    status = run_embedding(&s, &batch[n], NULL, NULL, SHEAF_BAD_INDEX_ERROR);
    CHECK(status == SHEAF_OK, "%s", sheaf_last_error());
    sheaf_strategy_list_free(list);
    cases++;
  }
  free_scene(&s);
}

static void check_unequal(void)
{
  if (ranks_size < 2) return;
  scene s = make_scene();
  sheaf_dtensor *out = NULL, *moved = NULL;
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  sheaf_shard_embedding_args args = SHEAF_SHARD_EMBEDDING_ARGS_INIT;
  args.table = ranks_rank == 1 ? s.columns : s.rows; /* another placement on one rank */
  args.indices = s.flat;
  args.out = &out;
  sheaf_status status = sheaf_shard_embedding_run(&desc, NULL, &args);
  CHECK(status == SHEAF_INVALID_PROBLEM && strstr(sheaf_last_error(), "ranks disagree: rank 1 calls lookup"), "%s",
        sheaf_last_error());
  check_same(status);
  args.table = s.rows; /* another call altogether */
  sheaf_placement R = sheaf_replicate();
  status = ranks_rank == ranks_size - 1 ? sheaf_dtensor_redistribute(s.rows, &R, &moved)
                                        : sheaf_shard_embedding_run(&desc, NULL, &args);
  CHECK(status == SHEAF_INVALID_PROBLEM && strstr(sheaf_last_error(), "calls redistribute"), "%s", sheaf_last_error());
  check_same(status);
  args.indices = ranks_rank == 0 ? NULL : s.flat; /* a missing operand on one rank */
  status = sheaf_shard_embedding_run(&desc, NULL, &args);
  CHECK(status == SHEAF_INVALID_PROBLEM && strstr(sheaf_last_error(), "rank 0: indices is NULL"), "%s",
        sheaf_last_error());
  check_same(status);
  args.indices = s.flat; /* no description on one rank */
  status = sheaf_shard_embedding_run(ranks_rank == 1 ? NULL : &desc, NULL, &args);
  CHECK(status == SHEAF_INVALID_PROBLEM && strstr(sheaf_last_error(), "rank 1: desc is NULL"), "%s",
        sheaf_last_error());
  check_same(status);
  sheaf_mesh_profile profile = SHEAF_MESH_PROFILE_INIT; /* figures of its own on one rank, and so another strategy */
  sheaf_shard_call call = SHEAF_SHARD_CALL_INIT;
  profile.bandwidth_gbs = ranks_rank == 1 ? 1e-6 : 1e6;
  profile.memory_gbs = ranks_rank == 1 ? 1e6 : 1e-6;
  call.profile = &profile;
  status = sheaf_shard_embedding_run(&desc, &call, &args);
  CHECK(status == SHEAF_OK || (status == SHEAF_INVALID_PROBLEM && strstr(sheaf_last_error(), "ranks disagree")), "%s",
        sheaf_last_error());
  check_same(status);
  sheaf_dtensor_free(out);
  out = NULL;
  CHECK(!out && !moved, "an output of a failed call");
  cases += 5;
  free_scene(&s);
}

/* One rank dies in the middle of an op: the others, who have agreed to do it, wait for what it would have sent until the
 * job is ended. */
static void die(void)
{
  const sheaf_allocator allocator = {allocate, release, NULL};
  const act dispatched = {0, SHEAF_LOOKUP, "S(0)", "S(0)", 1, 0, 0};
  scene s = make_scene();
  sheaf_strategy_list *list = list_for(&s, &dispatched);
  const sheaf_strategy *strategy = find(list, dispatched.a, dispatched.b, 1);
  OK(sheaf_set_allocator(&allocator));
  sheaf_status status = run_embedding(&s, &dispatched, strategy, NULL, SHEAF_BAD_INDEX_SKIP);
  CHECK(status == SHEAF_OK, "%s", sheaf_last_error());
  int64_t half = allocations / 2;
  allocations = 0;
  killing = ranks_rank == ranks_size / 2 ? half : -1;
  run_embedding(&s, &dispatched, strategy, NULL, SHEAF_BAD_INDEX_SKIP);
  check_same(SHEAF_OK);
}

int ranks_main(int argc, char **argv)
{
  ranks_open();
  sizes = (ranks_mesh){1, {ranks_size, 0}};
  OK(sheaf_mesh_create(&ranks_size, 1, ranks_comm, &mesh));
  if (argc > 1 && strcmp(argv[1], "die") == 0) {
    die();
    return 0;
  }
  check_bad_index();
  check_unequal();
  check_memory();
  sheaf_mesh_free(mesh);
  return ranks_close("faults", cases);
}
