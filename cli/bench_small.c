/* cli/bench_small.c: what a call costs when there is hardly anything to do. */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "bench_tools.h"

enum { DIM = 64, ROWS = 1000, ENTRIES = 20, WORKSPACE = 64 << 10 };

/* Everything the small calls work on; warm on purpose. */
typedef struct small_world {
  _Alignas(64) char workspace[WORKSPACE];
  float table[ROWS * DIM], out[ENTRIES * DIM];
  int64_t indices[ENTRIES], offsets[1];
  sheaf_embedding_desc desc;
  sheaf_embedding_args args;
  sheaf_segment_desc segment_desc;
  sheaf_segment_args segment_args;
  DLTensor tensors[4];
  int64_t shapes[4][2];
  sheaf_plan *plan;
} small_world;

static sheaf_operand add_operand(small_world *w, int i, void *values, sheaf_dtype dtype, int64_t rows, int64_t dim)
{
  w->shapes[i][0] = rows;
  w->shapes[i][1] = dim;
  w->tensors[i] = (DLTensor){.data = values, .device = {kDLCPU, 0}, .ndim = dim ? 2 : 1,
                             .dtype = sheaf_dtype_to_dl(dtype), .shape = w->shapes[i]};
  return (sheaf_operand){&w->tensors[i], 0};
}

static void describe_embedding(small_world *w, sheaf_embedding_kind kind, int64_t entries)
{
  w->desc = (sheaf_embedding_desc)SHEAF_EMBEDDING_DESC_INIT;
  w->desc.kind = kind;
  w->desc.dtype = SHEAF_F32;
  w->desc.index_dtype = SHEAF_I64;
  w->desc.rows = ROWS;
  w->desc.dim = DIM;
  w->desc.indices = entries;
  w->desc.bags = kind == SHEAF_LOOKUP ? 0 : 1;
  w->args = (sheaf_embedding_args)SHEAF_EMBEDDING_ARGS_INIT;
  w->args.table = add_operand(w, 0, w->table, SHEAF_F32, ROWS, DIM);
  w->args.indices = add_operand(w, 1, w->indices, SHEAF_I64, entries, 0);
  w->args.out = add_operand(w, 2, w->out, SHEAF_F32, kind == SHEAF_LOOKUP ? entries : 1, DIM);
  if (kind != SHEAF_LOOKUP) w->args.offsets = add_operand(w, 3, w->offsets, SHEAF_I64, 1, 0);
}

static void describe_segment(small_world *w)
{
  w->segment_desc = (sheaf_segment_desc)SHEAF_SEGMENT_DESC_INIT;
  w->segment_desc.kind = SHEAF_SEGMENT_SUM;
  w->segment_desc.dtype = SHEAF_F32;
  w->segment_desc.index_dtype = SHEAF_I64;
  w->segment_desc.rows = ENTRIES;
  w->segment_desc.dim = DIM;
  w->segment_desc.segments = 1;
  w->segment_args = (sheaf_segment_args)SHEAF_SEGMENT_ARGS_INIT;
  w->segment_args.data = add_operand(w, 0, w->table, SHEAF_F32, ENTRIES, DIM);
  w->segment_args.ids = add_operand(w, 1, w->indices, SHEAF_I64, ENTRIES, 0);
  w->segment_args.out = add_operand(w, 2, w->out, SHEAF_F32, 1, DIM);
  for (int i = 0; i < ENTRIES; i++) w->indices[i] = 0;
}

/* ---- The calls ----------------------------------------------------------------------------------------------- */

static sheaf_status run_embedding(small_world *w)
{
  return sheaf_embedding_run(w->plan, w->workspace, WORKSPACE, NULL, &w->args);
}

static sheaf_status run_segment(small_world *w)
{
  return sheaf_segment_run(w->plan, w->workspace, WORKSPACE, NULL, &w->segment_args);
}

static sheaf_status select_and_free(small_world *w)
{
  sheaf_plan *plan;
  sheaf_status status = sheaf_embedding_select(&w->desc, NULL, &plan);
  sheaf_plan_free(plan);
  return status;
}

static sheaf_status select_refused(small_world *w)
{
  sheaf_preference preference = SHEAF_PREFERENCE_INIT;
  preference.backend = SHEAF_BACKEND_CUB;
  sheaf_plan *plan;
  sheaf_status status = sheaf_embedding_select(&w->desc, &preference, &plan);
  sheaf_plan_free(plan);
  return status == SHEAF_UNSUPPORTED ? SHEAF_OK : SHEAF_INTERNAL;
}

typedef struct small_call {
  const char *name;
  double target; /* nanoseconds */
  sheaf_category category;
  sheaf_embedding_kind kind;
  int64_t entries;
  sheaf_status (*call)(small_world *);
} small_call;

static const small_call calls[] = {
  {"run-lookup-1x64", 60, SHEAF_CATEGORY_EMBEDDING, SHEAF_LOOKUP, 1, run_embedding},
  {"run-bag_sum-20x64", 250, SHEAF_CATEGORY_EMBEDDING, SHEAF_BAG_SUM, ENTRIES, run_embedding},
  {"run-bag_max-20x64", 0, SHEAF_CATEGORY_EMBEDDING, SHEAF_BAG_MAX, ENTRIES, run_embedding},
  {"run-segment_sum-20x64", 0, SHEAF_CATEGORY_SEGMENT, SHEAF_LOOKUP, ENTRIES, run_segment},
  {"select", 1000, SHEAF_CATEGORY_EMBEDDING, SHEAF_BAG_SUM, ENTRIES, select_and_free},
  {"select-refused", 2000, SHEAF_CATEGORY_EMBEDDING, SHEAF_BAG_SUM, ENTRIES, select_refused},
};

enum { CALLS = sizeof calls / sizeof *calls };

void bench_list_small(bench_cases *list)
{
  for (int i = 0; i < CALLS; i++) {
    bench_case c = {.suite = "small", .target = calls[i].target, .dim = DIM, .entries = calls[i].entries,
                    .rows = ROWS, .quick = true, .warm = true, .category = calls[i].category,
                    .kind = (uint16_t)calls[i].kind};
    snprintf(c.name, sizeof c.name, "%s", calls[i].name);
    bench_add_case(list, c);
  }
}

/* ---- Measuring ----------------------------------------------------------------------------------------------- */

static double time_calls(small_world *w, const small_call *what, int64_t count)
{
  double start = bench_now();
  for (int64_t i = 0; i < count; i++) what->call(w);
  return bench_now() - start;
}

static sheaf_status start_world(small_world *w, const small_call *what)
{
  sheaf_status status;
  w->offsets[0] = 0;
  for (int i = 0; i < ENTRIES; i++) w->indices[i] = (int64_t)(bench_random(7, i) % ROWS);
  for (int i = 0; i < ROWS * DIM; i++) w->table[i] = (float)bench_random_unit(8, i);
  w->plan = NULL;
  if (what->category == SHEAF_CATEGORY_SEGMENT) {
    describe_segment(w);
    status = sheaf_segment_select(&w->segment_desc, NULL, &w->plan);
  } else {
    describe_embedding(w, what->kind, what->entries);
    status = sheaf_embedding_select(&w->desc, NULL, &w->plan);
  }
  return status == SHEAF_OK ? what->call(w) : status;
}

void bench_measure_small(const bench_case *c, const bench_effort *effort, bench_result *result)
{
  static small_world world;
  double ns[BENCH_MAX_RUNS];
  const small_call *what = calls;
  for (int i = 0; i < CALLS; i++)
    if (strcmp(calls[i].name, c->name) == 0) what = &calls[i];
  *result = (bench_result){.c = c, .threads = 1};
  sheaf_status status = start_world(&world, what);
  if (status != SHEAF_OK) {
    snprintf(result->fault, sizeof result->fault, "%s: %s", sheaf_status_name(status), sheaf_last_error());
  } else {
    snprintf(result->sku, sizeof result->sku, "%s", sheaf_plan_sku(world.plan).name);
    int64_t count = 100;
    while (time_calls(&world, what, count) < 5e-4) count *= 2;
    double start = bench_now();
    int runs = 0;
    while (runs < BENCH_MAX_RUNS && (runs < effort->min_runs || bench_now() - start < effort->seconds))
      ns[runs++] = 1e9 * time_calls(&world, what, count) / (double)count;
    bench_sort(ns, runs);
    result->runs = runs;
    result->ns = bench_quantile(ns, runs, 0.5);
    result->ns_low = bench_quantile(ns, runs, 0.1);
    result->ns_high = bench_quantile(ns, runs, 0.9);
  }
  sheaf_plan_free(world.plan);
}
