/* cli/bench_dispatch.c: `sheaf bench dispatch`: what the dispatcher and each layer add to a lookup of one row. */
#include <sheaf/sheaf.h>
#include <stdio.h>
#include <string.h>

#include "bench_output.h"
#include "bench_parts.h"
#include "bench_tools.h"
#include "cli_impl.h"

enum { ROWS = 1000, DIM = 64, BATCH = 1000, MOST_ROUNDS = 400 };

/* What the calls work on: warm, and the same row each time. */
typedef struct lookup_world {
  sheaf_plan *plan;
  sheaf_embedding_args args;
  sheaf_tensor *table, *half, *leaf, *packed, *indices, *hidden, *out, *out_half;
} lookup_world;

typedef sheaf_status step(lookup_world *w);

static sheaf_status run_plan(lookup_world *w) { return sheaf_embedding_run(w->plan, NULL, 0, NULL, &w->args); }
static sheaf_status into_given(lookup_world *w) { return sheaf_embedding(w->indices, w->table, NULL, &w->out); }
static sheaf_status packed_rows(lookup_world *w) { return sheaf_embedding(w->indices, w->packed, NULL, &w->out); }
static sheaf_status half_rows(lookup_world *w) { return sheaf_embedding(w->indices, w->half, NULL, &w->out_half); }
static sheaf_status cast_rows(lookup_world *w) { return sheaf_embedding(w->indices, w->table, NULL, &w->out_half); }

static sheaf_status made(sheaf_tensor *indices, sheaf_tensor *table)
{
  sheaf_tensor *out = NULL;
  sheaf_status status = sheaf_embedding(indices, table, NULL, &out);
  sheaf_tensor_release(out);
  return status;
}
static sheaf_status newly_made(lookup_world *w) { return made(w->indices, w->table); }
static sheaf_status with_graph(lookup_world *w) { return made(w->indices, w->leaf); }

/* The call within vmap, and what it is when it comes out of that layer: both are handed to the dispatcher as they are,
 * so that they differ by the layer alone. */
static sheaf_status dispatch_lookup(lookup_world *w, sheaf_tensor *indices, int64_t batch)
{
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS] = {[SHEAF_EMBEDDING_PADDING_IDX].i = -1,
                                             [SHEAF_EMBEDDING_BAD_INDEX].i = SHEAF_BAD_INDEX_ERROR};
  sheaf_tensor *inputs[] = {w->table, indices}, *out = NULL;
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = SHEAF_OP_EMBEDDING;
  call.inputs = inputs;
  call.input_count = 2;
  call.outputs = &out;
  call.output_count = 1;
  call.attrs = attrs;
  call.attr_count = SHEAF_EMBEDDING_ATTRS;
  call.batch = batch;
  call.batched = batch ? 2 : 0;
  sheaf_status status = sheaf_dispatch(&call);
  sheaf_tensor_release(out);
  return status;
}
static sheaf_status as_batch(lookup_world *w) { return dispatch_lookup(w, sheaf_tensor_part(w->hidden, 0), 1); }
static sheaf_status within_vmap(lookup_world *w) { return dispatch_lookup(w, w->hidden, 0); }

/* ---- Layers on and off ---- */

static sheaf_guard guard;
static sheaf_trace *graph;
static sheaf_profile *profile;

static sheaf_status include(int key)
{
  return sheaf_guard_begin(sheaf_keyset_of(key), sheaf_keyset_empty(), &guard);
}
static sheaf_status nothing(lookup_world *w)
{
  (void)w;
  return SHEAF_OK;
}
static sheaf_status sparse_on(lookup_world *w)
{
  (void)w;
  return include(SHEAF_KEY_SPARSE);
}
static sheaf_status nested_on(lookup_world *w)
{
  (void)w;
  return include(SHEAF_KEY_NESTED);
}
static sheaf_status quantized_on(lookup_world *w)
{
  (void)w;
  return include(SHEAF_KEY_QUANTIZED);
}
static sheaf_status guard_off(lookup_world *w)
{
  (void)w;
  return sheaf_guard_end(&guard);
}
static sheaf_status autocast_on(lookup_world *w)
{
  (void)w;
  return sheaf_autocast_begin(SHEAF_F16);
}
static sheaf_status autocast_off(lookup_world *w)
{
  (void)w;
  return sheaf_autocast_end();
}
static sheaf_status profiler_on(lookup_world *w)
{
  (void)w;
  return sheaf_profiler_begin();
}
static sheaf_status profiler_off(lookup_world *w)
{
  (void)w;
  sheaf_status status = sheaf_profiler_end(&profile);
  sheaf_profile_free(profile);
  return status;
}
/* A trace holds every result until its end: fresh memory for each call, which is no cost of tracing. So it is compared
 * with calls whose results are held. */
static struct {
  sheaf_tensor *result[BATCH + 1];
  int count;
} kept;
static sheaf_status kept_result(lookup_world *w)
{
  sheaf_tensor **out = &kept.result[kept.count++];
  *out = NULL;
  return sheaf_embedding(w->indices, w->table, NULL, out);
}
static sheaf_status kept_off(lookup_world *w)
{
  (void)w;
  while (kept.count > 0) sheaf_tensor_release(kept.result[--kept.count]);
  return SHEAF_OK;
}
static sheaf_status tracer_on(lookup_world *w)
{
  (void)w;
  return sheaf_tracer_begin();
}
static sheaf_status tracer_off(lookup_world *w)
{
  (void)w;
  sheaf_status status = sheaf_tracer_end(&graph);
  sheaf_trace_free(graph);
  return status;
}

/* Each line is compared with an earlier one, measured in turn with it; `limit` is what it may add, 0: no aim. */
typedef struct line {
  const char *name, *versus;
  double limit;
  step *on, *call, *off;
} line;

static const line lines[] = {
  {"plan run, no dispatcher", NULL, 0, nothing, run_plan, nothing},
  {"op, result given", "plan run, no dispatcher", 150, nothing, into_given, nothing},
  {"op, result made", "op, result given", 0, nothing, newly_made, nothing},
  {"Sparse passed through", "op, result given", 50, sparse_on, into_given, guard_off},
  {"Nested passed through", "op, result given", 50, nested_on, into_given, guard_off},
  {"Quantized passed through", "op, result given", 50, quantized_on, into_given, guard_off},
  {"int8 rows", "op, result given", 0, nothing, packed_rows, nothing},
  {"f16 rows", "op, result given", 0, nothing, half_rows, nothing},
  {"Autocast, cast table kept", "f16 rows", 50, autocast_on, cast_rows, autocast_off},
  {"Autograd, a node recorded", "op, result made", 200, nothing, with_graph, nothing},
  {"a batch of one", "op, result made", 0, nothing, as_batch, nothing},
  {"Vmap, of one slice", "a batch of one", 50, nothing, within_vmap, nothing},
  {"Profiler", "op, result given", 200, profiler_on, into_given, profiler_off},
  {"op, result kept", "op, result made", 0, nothing, kept_result, kept_off},
  {"Tracer", "op, result kept", 200, tracer_on, newly_made, tracer_off},
};
enum { LINES = sizeof lines / sizeof *lines };

static int line_named(const char *name)
{
  for (int i = 0; i < LINES; i++)
    if (strcmp(lines[i].name, name) == 0) return i;
  return 0;
}

/* ---- Setting up ---- */

static sheaf_status make_plan(lookup_world *w)
{
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.kind = SHEAF_LOOKUP;
  desc.dtype = SHEAF_F32;
  desc.index_dtype = SHEAF_I64;
  desc.rows = ROWS;
  desc.dim = DIM;
  desc.indices = 1;
  desc.bad_index = SHEAF_BAD_INDEX_ERROR; /* as ops have it */
  w->args = (sheaf_embedding_args)SHEAF_EMBEDDING_ARGS_INIT;
  w->args.table.tensor = sheaf_tensor_dl(w->table);
  w->args.indices.tensor = sheaf_tensor_dl(w->indices);
  w->args.out.tensor = sheaf_tensor_dl(w->out);
  return sheaf_embedding_select(&desc, NULL, &w->plan);
}

#define TRY(call)                                 \
  do {                                            \
    sheaf_status try_status = (call);             \
    if (try_status != SHEAF_OK) return try_status; \
  } while (0)

static sheaf_status start(lookup_world *w)
{
  int64_t table[] = {ROWS, DIM}, row[] = {1, DIM}, one[] = {1, 1};
  sheaf_tensor *matrix;
  memset(w, 0, sizeof *w);
  TRY(sheaf_tensor_new(SHEAF_F32, 2, table, &w->table));
  for (int i = 0; i < ROWS * DIM; i++) ((float *)sheaf_tensor_data(w->table))[i] = (float)bench_random_unit(9, i);
  TRY(sheaf_tensor_new(SHEAF_F32, 2, table, &w->leaf));
  TRY(sheaf_tensor_require_grad(w->leaf, SHEAF_GRAD_DENSE));
  TRY(sheaf_cast(w->table, SHEAF_F16, &w->half));
  TRY(sheaf_quantize(w->table, SHEAF_INT8, &w->packed));
  TRY(sheaf_tensor_new(SHEAF_I64, 1, one, &w->indices));
  ((int64_t *)sheaf_tensor_data(w->indices))[0] = 77;
  TRY(sheaf_tensor_new(SHEAF_I64, 2, one, &matrix));
  TRY(sheaf_batch(matrix, 0, 1, &w->hidden));
  sheaf_tensor_release(matrix);
  TRY(sheaf_tensor_new(SHEAF_F32, 2, row, &w->out));
  TRY(sheaf_tensor_new(SHEAF_F16, 2, row, &w->out_half));
  return make_plan(w);
}

static void stop(lookup_world *w)
{
  sheaf_tensor *all[8] = {w->table, w->half, w->leaf, w->packed, w->indices, w->hidden, w->out, w->out_half};
  for (int i = 0; i < 8; i++) sheaf_tensor_release(all[i]);
  sheaf_plan_free(w->plan);
  sheaf_clear_caches();
}

/* ---- Measuring ---- */

typedef struct timing {
  double ns[MOST_ROUNDS], extra[MOST_ROUNDS]; /* extra: over the line it is compared with, in the same round */
} timing;

static sheaf_status time_line(const line *l, lookup_world *w, double *ns)
{
  TRY(l->on(w));
  sheaf_status status = l->call(w); /* what is kept for later calls is made now */
  double start = bench_now();
  for (int i = 0; i < BATCH && status == SHEAF_OK; i++) status = l->call(w);
  *ns = 1e9 * (bench_now() - start) / BATCH;
  sheaf_status off = l->off(w);
  return status == SHEAF_OK ? off : status;
}

static sheaf_status measure(lookup_world *w, double seconds, timing *timings, int *rounds)
{
  double start = bench_now();
  for (*rounds = 0; *rounds < MOST_ROUNDS && (*rounds < 15 || bench_now() - start < seconds); ++*rounds)
    for (int i = 0; i < LINES; i++) {
      TRY(time_line(&lines[i], w, &timings[i].ns[*rounds]));
      double base = lines[i].versus ? timings[line_named(lines[i].versus)].ns[*rounds] : timings[i].ns[*rounds];
      timings[i].extra[*rounds] = timings[i].ns[*rounds] - base;
    }
  return SHEAF_OK;
}

static int add_results(timing *timings, int rounds, const char *const *words, json_t *results)
{
  int failed = 0;
  for (int i = 0; i < LINES; i++) {
    if (!bench_name_has(lines[i].name, words)) continue;
    json_t *result = json_pack("{s:s, s:s, s:i, s:i, s:f}", "suite", "dispatch", "case", lines[i].name, "threads", 1,
                               "runs", rounds, "ns", bench_median(timings[i].ns, rounds));
    if (lines[i].versus) {
      json_object_set_new(result, "versus", json_string(lines[i].versus));
      json_object_set_new(result, "extra_ns", json_real(bench_median(timings[i].extra, rounds)));
    }
    if (lines[i].limit > 0) json_object_set_new(result, "limit_ns", json_real(lines[i].limit));
    failed |= json_array_append_new(results, result);
  }
  if (failed) cli_complain("bench", "out of memory");
  return failed ? CLI_FAILED : CLI_OK;
}

static void print_table(timing *timings, int rounds, const char *const *words)
{
  printf("\nA lookup of one row of %d floats, warm; medians of %d rounds, all lines in turn\n\n", DIM, rounds);
  printf("%-28s %8s %8s  %-26s %s\n", "call", "ns", "more", "than", "aim");
  for (int i = 0; i < LINES; i++) {
    if (!bench_name_has(lines[i].name, words)) continue;
    printf("%-28s %8.1f", lines[i].name, bench_median(timings[i].ns, rounds));
    if (lines[i].versus) printf(" %8.1f  ", bench_median(timings[i].extra, rounds));
    if (lines[i].limit > 0)
      printf("%-26s %.0f\n", lines[i].versus, lines[i].limit);
    else
      printf("%s\n", lines[i].versus ? lines[i].versus : "");
  }
}

bool bench_dispatch_has(const char *const *words)
{
  for (int i = 0; i < LINES; i++)
    if (bench_name_has(lines[i].name, words)) return true;
  return false;
}

void bench_dispatch_list(const char *const *words)
{
  for (int i = 0; i < LINES; i++)
    if (bench_name_has(lines[i].name, words)) printf("%-9s %s\n", "dispatch", lines[i].name);
}

int bench_dispatch(double seconds, const char *const *words, bool text, json_t *results)
{
  static timing timings[LINES];
  lookup_world w;
  int rounds = 0;
  bench_show_progress("dispatch ...");
  sheaf_status status = start(&w);
  if (status == SHEAF_OK) status = measure(&w, seconds, timings, &rounds);
  bench_show_progress("");
  if (status != SHEAF_OK) cli_complain("bench", "%s: %s", sheaf_status_name(status), sheaf_last_error());
  stop(&w);
  if (status != SHEAF_OK) return CLI_FAILED;
  if (text) print_table(timings, rounds, words);
  return add_results(timings, rounds, words, results);
}
