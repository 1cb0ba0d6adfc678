/* cli/bench_shard.c: `sheaf bench shard`: ops over ranks beside the engine's own collectives of the same size. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* clock_gettime */
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <sheaf/sheaf.h>

#include "bench_output.h"
#include "bench_parts.h"
#include "bench_shard_floor.h"
#include "cli_impl.h"
#include "shard_cli.h"

static const char command[] = "bench shard";
enum { BAG = 16, MAX_RUNS = 101, MAX_WORDS = 8 };

typedef struct bench {
  sheaf_comm *comm, *alone;
  sheaf_mesh *mesh, *one; /* of all ranks; of this one */
  int64_t ranks, rows, dim, indices, runs;
  int threads;
  bool text;
  const char *const *words; /* what a line's name must hold */
  json_t *results;
  const bench_output *output; /* NULL: the caller's */
} bench;

const bench_shard_sizes bench_shard_usual = {131072, 64, 131072, 11}, bench_shard_quick = {16384, 64, 16384, 5};

/* One line: inputs lie as the strategy wants them. Its local part is the same call with its output left as it comes;
 * where rows are dispatched, a rank's share of the same op: its part of the indices, on a table of as many rows as it
 * holds. */
typedef struct line {
  const char *name;
  const char *first, *index, *out; /* placements; out NULL: as it comes */
  sheaf_embedding_kind kind;
  int dispatch;
  int collective; /* -1: none */
  int of_table;   /* the collective is over the table's bytes, not the output's */
} line;

static const line lines[] = {
    {"lookup, column", "S(1)", "R", NULL, SHEAF_LOOKUP, 0, -1, 0},
    {"lookup, batch", "R", "S(0)", NULL, SHEAF_LOOKUP, 0, -1, 0},
    {"lookup, row, output whole", "S(0)", "R", "R", SHEAF_LOOKUP, 0, SHEAF_ALL_REDUCE, 0},
    {"lookup, row, output cut", "S(0)", "R", "S(0)", SHEAF_LOOKUP, 0, SHEAF_REDUCE_SCATTER, 0},
    {"lookup, dispatch", "S(0)", "S(0)", NULL, SHEAF_LOOKUP, 1, SHEAF_ALL_TO_ALL, 0},
    {"bag sum, column", "S(1)", "R", NULL, SHEAF_BAG_SUM, 0, -1, 0},
    {"bag sum, row, output whole", "S(0)", "R", "R", SHEAF_BAG_SUM, 0, SHEAF_ALL_REDUCE, 0},
    {"bag sum, row, output cut", "S(0)", "R", "S(0)", SHEAF_BAG_SUM, 0, SHEAF_REDUCE_SCATTER, 0},
    {"bag sum, dispatch", "S(0)", "S(0)", NULL, SHEAF_BAG_SUM, 1, SHEAF_ALL_TO_ALL, 0},
    {"backward, row", "R", "R", NULL, SHEAF_LOOKUP_BACKWARD, 0, -1, 1},
    {"backward, batch, whole", "S(0)", "S(0)", "R", SHEAF_LOOKUP_BACKWARD, 0, SHEAF_ALL_REDUCE, 1},
    {"backward, batch, cut", "S(0)", "S(0)", "S(0)", SHEAF_LOOKUP_BACKWARD, 0, SHEAF_REDUCE_SCATTER, 1},
    {"backward, dispatch", "S(0)", "S(0)", NULL, SHEAF_LOOKUP_BACKWARD, 1, SHEAF_ALL_TO_ALL, 0},
};

static double now_us(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static sheaf_dtensor *make(sheaf_mesh *mesh, sheaf_dtype dtype, int rank, int64_t rows, int64_t columns,
                           const char *placement)
{
  sheaf_dtensor_desc desc = SHEAF_DTENSOR_DESC_INIT;
  sheaf_dtensor *tensor = NULL;
  desc.mesh = mesh;
  desc.dtype = dtype;
  desc.rank = rank;
  desc.shape[0] = rows;
  desc.shape[1] = columns;
  if (sheaf_placement_parse(placement, &desc.placements[0]) != SHEAF_OK ||
      sheaf_dtensor_create(&desc, &tensor) != SHEAF_OK)
    return NULL;
  return tensor;
}

/* The strategy of a line; NULL when the op has none such. */
static const sheaf_strategy *find_strategy(const sheaf_strategy_list *list, const line *l, const sheaf_shard_problem *p)
{
  for (int64_t i = 0; i < sheaf_strategy_count(list); i++) {
    const sheaf_strategy *s = sheaf_strategy_at(list, i);
    int masked = s->in[1][0].kind == SHEAF_PLACE_MASK_PARTIAL && p->in[1][0].kind == SHEAF_PLACE_REPLICATE;
    int keeps_rows = l->kind != SHEAF_LOOKUP_BACKWARD || l->first[0] != 'R' || s->out[0].kind == SHEAF_PLACE_SHARD;
    if (sheaf_placement_equal(&s->in[0][0], &p->in[0][0]) &&
        (masked || sheaf_placement_equal(&s->in[1][0], &p->in[1][0])) && (s->dispatch != 0) == l->dispatch &&
        keeps_rows)
      return s;
  }
  return NULL;
}

/* One op, ready to be called. */
typedef struct call {
  sheaf_embedding_desc desc;
  sheaf_shard_call how;
  sheaf_shard_embedding_args args;
  sheaf_strategy_list *list;
  sheaf_dtensor *first, *index, *out;
} call;

/* Time of a call in microseconds; below 0 when it failed. */
static double time_call(call *c, const sheaf_placement *out)
{
  c->how.out = out;
  c->out = NULL;
  double start = now_us();
  sheaf_status status = sheaf_shard_embedding_run(&c->desc, &c->how, &c->args);
  c->how.out = NULL; /* it was the caller's */
  if (status != SHEAF_OK) return -1;
  double time = now_us() - start;
  sheaf_dtensor_free(c->out);
  return time;
}

static double median(double *times, int64_t count)
{
  qsort(times, (size_t)count, sizeof *times, by_value);
  return times[count / 2];
}

static void fill_indices(const bench *b, const sheaf_dtensor *indices)
{
  const DLTensor *local = sheaf_dtensor_local(indices);
  int64_t count = local->shape[0] * (local->ndim > 1 ? local->shape[1] : 1);
  uint64_t state =
      sheaf_dtensor_describe(indices)->placements[0].kind == SHEAF_PLACE_SHARD ? (uint64_t)sheaf_comm_rank(b->comm) : 0;
  for (int64_t i = 0; i < count; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    ((int64_t *)local->data)[i] = (int64_t)((state >> 33) % (uint64_t)b->rows);
  }
}

/* A line's op on a mesh; 0 when there is no such strategy. */
static int prepare(const bench *b, const line *l, sheaf_mesh *mesh, call *c)
{
  int64_t indices = b->indices;
  int bags = l->kind == SHEAF_BAG_SUM, backward = l->kind == SHEAF_LOOKUP_BACKWARD;
  *c =
      (call){SHEAF_EMBEDDING_DESC_INIT, SHEAF_SHARD_CALL_INIT, SHEAF_SHARD_EMBEDDING_ARGS_INIT, NULL, NULL, NULL, NULL};
  sheaf_shard_problem p = SHEAF_SHARD_PROBLEM_INIT;
  p.mesh = mesh;
  p.kind = (uint16_t)l->kind;
  p.bag_form = SHEAF_BAGS_MATRIX;
  p.dtype = SHEAF_F32;
  p.index_dtype = SHEAF_I64;
  p.rows = b->rows;
  p.dim = b->dim;
  p.index_rank = bags ? 2 : 1;
  p.bags = indices / BAG;
  p.index_shape[0] = bags ? p.bags : indices;
  p.index_shape[1] = bags ? BAG : 0;
  c->first = make(mesh, SHEAF_F32, 2, backward ? indices : b->rows, b->dim, l->first);
  c->index = make(mesh, SHEAF_I64, p.index_rank, p.index_shape[0], p.index_shape[1], l->index);
  if (!c->first || !c->index) return 0;
  p.in[0][0] = sheaf_dtensor_describe(c->first)->placements[0];
  p.in[1][0] = sheaf_dtensor_describe(c->index)->placements[0];
  fill_indices(b, c->index);
  if (sheaf_strategies(&p, 0, NULL, &c->list) != SHEAF_OK) return 0;
  c->how.strategy = find_strategy(c->list, l, &p);
  c->desc.kind = l->kind;
  c->desc.rows = b->rows;
  c->desc.bag_form = SHEAF_BAGS_MATRIX;
  c->args.indices = c->index;
  if (backward)
    c->args.grad_out = c->first, c->args.table_grad = &c->out;
  else
    c->args.table = c->first, c->args.out = &c->out;
  return c->how.strategy != NULL;
}

static void finish(call *c)
{
  sheaf_dtensor_free(c->first);
  sheaf_dtensor_free(c->index);
  sheaf_strategy_list_free(c->list);
}

typedef struct figures {
  double time, local, inside, floor, collective; /* microseconds; inside: that the call was in the engine */
  int64_t bytes;                                 /* sent by this rank in a call */
} figures;

/* The mean of a number over ranks, the same on all of them; below 0 on failure. */
static int64_t agree(const bench *b, int64_t mine)
{
  sheaf_placement whole = sheaf_replicate();
  sheaf_dtensor *cut = make(b->mesh, SHEAF_I64, 1, b->ranks, 0, "S(0)"), *all = NULL;
  int64_t sum = -1;
  if (cut) *(int64_t *)sheaf_dtensor_local(cut)->data = mine;
  if (cut && sheaf_dtensor_redistribute(cut, &whole, &all) == SHEAF_OK) {
    sum = 0;
    for (int64_t r = 0; r < b->ranks; r++) sum += ((const int64_t *)sheaf_dtensor_local(all)->data)[r];
  }
  sheaf_dtensor_free(cut);
  sheaf_dtensor_free(all);
  return sum < 0 ? sum : sum / b->ranks;
}

/* Bytes of a collective that sends as much as a line's call. */
static int64_t size_of(const bench *b, const line *l, int64_t sent)
{
  int64_t size = l->of_table ? b->rows * b->dim * 4 : b->indices / (l->kind == SHEAF_BAG_SUM ? BAG : 1) * b->dim * 4;
  if (l->dispatch) size = b->ranks > 1 ? sent / (b->ranks - 1) * b->ranks : 0;
  return size > 64 ? size : 64;
}

/* The call, its local part, the collective and the cheapest loop over its indices by turns, so that all meet the same
 * weather; 0 on failure. */
static int measure(const bench *b, const line *l, call *whole, call *alone, figures *f)
{
  enum { WHOLE, LOCAL, INSIDE, FLOOR, COLLECTIVE, KINDS };
  double times[KINDS][MAX_RUNS], *medians[KINDS] = {&f->time, &f->local, &f->inside, &f->floor, &f->collective};
  sheaf_placement out = sheaf_replicate();
  int64_t sent = 0;
  if (l->out) sheaf_placement_parse(l->out, &out);
  for (int64_t i = -2; i < b->runs; i++) { /* the first two do not count */
    double now[KINDS] = {0};
    sheaf_comm_stats before = sheaf_comm_statistics(b->comm);
    now[WHOLE] = time_call(whole, l->out ? &out : NULL);
    sheaf_comm_stats after = sheaf_comm_statistics(b->comm);
    f->bytes = after.bytes_sent - before.bytes_sent;
    now[INSIDE] = after.engine_us - before.engine_us;
    if (now[WHOLE] >= 0 && l->out) now[LOCAL] = time_call(whole, NULL);
    if (now[WHOLE] >= 0 && l->dispatch) now[LOCAL] = time_call(alone, NULL);
    if (now[WHOLE] < 0 || now[LOCAL] < 0) return 0;
    if (l->dispatch) {
      if (i == -2) sent = agree(b, f->bytes);
      now[FLOOR] = bench_shard_floor(sheaf_dtensor_local(whole->index), b->rows);
      if (sent < 0) return 0;
      if (now[FLOOR] < 0) now[FLOOR] = 0; /* no memory for it, which is no reason to leave the others waiting */
    }
    if (l->collective >= 0 && sheaf_comm_measure(b->comm, (sheaf_collective)l->collective, size_of(b, l, sent), 1,
                                                 &now[COLLECTIVE]) != SHEAF_OK)
      return 0;
    for (int k = 0; k < KINDS && i >= 0; k++) times[k][i] = now[k];
  }
  for (int k = 0; k < KINDS; k++) *medians[k] = median(times[k], b->runs);
  return 1;
}

/* A line's figures, printed by rank 0; 0 without memory. */
static int report(const bench *b, const line *l, const figures *f)
{
  double ratio = f->collective > 0 ? (f->time - f->local) / f->collective : 0;
  double of_both = f->collective > 0 ? f->time / (f->local + f->collective) : 0;
  double rest = f->time - f->local - f->inside;
  json_t *item = json_pack("{s:s, s:s, s:I, s:i, s:I, s:I, s:I, s:I, s:f, s:I, s:f}", "suite", "shard", "case", l->name,
                           "ranks", (json_int_t)b->ranks, "threads", sheaf_threads(), "runs", (json_int_t)b->runs,
                           "rows", (json_int_t)b->rows, "dim", (json_int_t)b->dim, "entries", (json_int_t)b->indices,
                           "ns", 1e3 * f->time, "bytes_sent", (json_int_t)f->bytes, "local_ns", 1e3 * f->local);
  if (f->collective > 0) {
    json_object_set_new(item, "inside_ns", json_real(1e3 * f->inside));
    json_object_set_new(item, "rest_ns", json_real(1e3 * rest));
    json_object_set_new(item, "engine_ns", json_real(1e3 * f->collective));
    json_object_set_new(item, "engine_ratio", json_real(ratio));
    json_object_set_new(item, "of_both", json_real(of_both));
  }
  if (l->dispatch) json_object_set_new(item, "floor_ns", json_real(1e3 * f->floor));
  if (json_array_append_new(b->results, item) != 0) return 0;
  if (!b->text || sheaf_comm_rank(b->comm) != 0) return 1;
  printf("%-27s %9.0f %11lld %9.0f", l->name, f->time, (long long)f->bytes, f->local);
  if (f->collective > 0) {
    printf(" %9.0f %8.0f", f->inside, rest);
    if (l->dispatch)
      printf(" %8.0f", f->floor);
    else
      printf(" %8s", "");
    printf(" %9.0f %6.2f %7.2f", f->collective, ratio, of_both);
  }
  putchar('\n');
  fflush(stdout);
  return 1;
}

static int run_line(const bench *b, const line *l)
{
  call whole, alone = {.out = NULL};
  figures f = {0};
  bench share = *b;
  line by_itself = *l;
  share.rows = (b->rows + b->ranks - 1) / b->ranks;
  share.indices = b->indices / b->ranks;
  by_itself.first = by_itself.index = "R";
  by_itself.dispatch = 0;
  int ready = prepare(b, l, b->mesh, &whole), well = ready;
  if (ready && l->dispatch) well = ready = prepare(&share, &by_itself, b->one, &alone);
  if (ready) well = measure(b, l, &whole, &alone, &f);
  if (!well)
    cli_complain(command, "%s: %s", l->name, ready ? sheaf_last_error() : "there is no such strategy on this mesh");
  if (well && !report(b, l, &f)) {
    cli_complain(command, "out of memory");
    well = 0;
  }
  finish(&whole);
  finish(&alone);
  return well ? CLI_OK : CLI_FAILED;
}

/* Rank 0 writes the page: that it can is found out before all measure, and known to all. */
static int check_output(const bench *b)
{
  if (!b->output || !b->output->report) return CLI_OK;
  bool refused = sheaf_comm_rank(b->comm) == 0 && bench_output_check(b->output) != CLI_GO_ON;
  int64_t mean = agree(b, refused ? b->ranks : 0);
  if (mean < 0) cli_complain(command, "%s", sheaf_last_error());
  return mean == 0 ? CLI_OK : CLI_FAILED;
}

static int run_lines(bench *b)
{
  const int64_t single = 1;
  b->ranks = sheaf_comm_size(b->comm);
  if (sheaf_set_threads(b->threads) != SHEAF_OK || sheaf_mesh_create(&b->ranks, 1, b->comm, &b->mesh) != SHEAF_OK ||
      sheaf_comm_open("self", NULL, &b->alone) != SHEAF_OK ||
      sheaf_mesh_create(&single, 1, b->alone, &b->one) != SHEAF_OK) {
    cli_complain(command, "%s", sheaf_last_error());
    return CLI_FAILED;
  }
  int code = check_output(b);
  if (code == CLI_OK && b->text && sheaf_comm_rank(b->comm) == 0) {
    printf("%lld rank%s of %d thread%s, table %lld x %lld f32, %lld indices\n", (long long)b->ranks,
           b->ranks == 1 ? "" : "s", sheaf_threads(), sheaf_threads() == 1 ? "" : "s", (long long)b->rows,
           (long long)b->dim, (long long)b->indices);
    printf("%-27s %9s %11s %9s %9s %8s %8s %9s %6s %7s\n", "microseconds", "time", "bytes sent", "local", "inside",
           "rest", "floor", "engine", "ratio", "of both");
  }
  for (int i = 0; i < CLI_LENGTH(lines) && code == CLI_OK; i++)
    if (bench_name_has(lines[i].name, b->words)) code = run_line(b, &lines[i]);
  sheaf_mesh_free(b->one);
  sheaf_comm_close(b->alone);
  sheaf_mesh_free(b->mesh);
  return code;
}

static int run_with(bench *b, const char *engine)
{
  if (sheaf_comm_open(engine, NULL, &b->comm) != SHEAF_OK) {
    cli_complain(command, "%s", sheaf_last_error());
    return CLI_FAILED;
  }
  return run_lines(b);
}

bool bench_shard_has(const char *const *words)
{
  for (int i = 0; i < CLI_LENGTH(lines); i++)
    if (bench_name_has(lines[i].name, words)) return true;
  return false;
}

void bench_shard_list(const char *const *words)
{
  for (int i = 0; i < CLI_LENGTH(lines); i++)
    if (bench_name_has(lines[i].name, words)) printf("%-9s %s\n", "shard", lines[i].name);
}

int bench_shard_alone(const bench_shard_sizes *sizes, int threads, const char *const *words, bool text, json_t *results)
{
  bench b = {.rows = sizes->rows,
             .dim = sizes->dim,
             .indices = sizes->indices,
             .runs = sizes->runs,
             .threads = threads,
             .text = text,
             .words = words,
             .results = results};
  if (text) puts("\nOps over ranks, by one rank alone; 'mpirun -n 2 sheaf bench shard' measures them among several\n");
  int code = run_with(&b, "self");
  sheaf_comm_close(b.comm);
  return code;
}

int bench_shard(int argc, char **argv)
{
  bench_output output = {0};
  int threads = 0;
  const char *engine = "mpi", *rows = "131072", *dim = "64", *indices = "131072", *runs = "11";
  const cli_option options[] = {{"--engine", CLI_TEXT, &engine}, {"--rows", CLI_TEXT, &rows},
                                {"--dim", CLI_TEXT, &dim},       {"--indices", CLI_TEXT, &indices},
                                {"--runs", CLI_TEXT, &runs},     {"--threads", CLI_THREADS, &threads},
                                BENCH_OUTPUT_OPTIONS(output)};
  const char *words[MAX_WORDS + 1] = {NULL};
  const cli_syntax syntax = {command, options, CLI_LENGTH(options), words, MAX_WORDS};
  int code = cli_parse(&syntax, argc - 1, argv + 1);
  if (code != CLI_GO_ON) return code;
  bench b = {.threads = threads, .text = !output.json, .words = words, .output = &output};
  if (!bench_shard_has(words)) return cli_misused(command, "no line's name holds all of these words: %s ...", words[0]);
  if (shard_read_extents(rows, &b.rows, 1) != 1 || shard_read_extents(dim, &b.dim, 1) != 1 || b.rows < 1 || b.dim < 1 ||
      shard_read_extents(indices, &b.indices, 1) != 1 || b.indices < BAG)
    return cli_misused(command, "--rows, --dim and --indices take numbers; indices at least %d", BAG);
  if (shard_read_extents(runs, &b.runs, 1) != 1 || b.runs < 1 || b.runs > MAX_RUNS)
    return cli_misused(command, "--runs takes a number from 1 to %d, not '%s'", MAX_RUNS, runs);
  code = bench_output_open(&output, argc, argv);
  if (code == CLI_GO_ON) {
    json_t *root = bench_output_begin();
    b.results = json_object_get(root, "results");
    code = run_with(&b, engine);
    bool first = b.comm && sheaf_comm_rank(b.comm) == 0;
    sheaf_comm_close(b.comm);
    if (code == CLI_OK && first)
      code = bench_output_give(&output, root);
    else
      json_decref(root);
  }
  bench_output_close(&output);
  return code;
}
