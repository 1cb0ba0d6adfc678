/* cli/bench_measure.c: ceilings and cases measured in turn. */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "bench_data.h"
#include "bench_tools.h"

enum { CONTENDERS = 2, TRIAL_ROUNDS = 6 };
static const double near_best = 0.85;

/* One ceiling that is measured beside a case: its best ways, and what each gave. */
typedef struct probe {
  bench_ceiling *ceiling;
  stream_job job;
  bool own_rows; /* visits the rows of the case's own indices, where that is not the usual */
  int ways[CONTENDERS], way_count;
  double rates[CONTENDERS][BENCH_MAX_RUNS];
} probe;

/* A run that the kernel interrupted says nothing about memory: it is repeated, up to this often. */
enum { MAX_TRIES = 4 };

static double rate_once(const stream_job *job, int way)
{
  double start = bench_now();
  int64_t bytes = stream_run(job, way);
  return (double)bytes / (bench_now() - start) / 1e9;
}

static double rate_of(const stream_job *job, int way)
{
  double rate = 0;
  for (int try = 0; try < MAX_TRIES; try++) {
    long interruptions = bench_interruptions();
    rate = rate_once(job, way);
    if (bench_interruptions() == interruptions) break;
  }
  return rate;
}

/* ---- What a ceiling works on --------------------------------------------------------------------------------- */

/* Points a probe to a set: the rows or the memory that the case would take. */
static void point_probe(probe *p, const bench_data *data, int set)
{
  const bench_case *c = data->c;
  const bench_set *s = &data->set[set];
  stream_job *job = &p->job;
  job->indices = p->own_rows ? s->indices : s->rows;
  job->count = p->own_rows ? data->entries : s->count;
  if (s->data) {
    job->memory = s->data;
    job->bytes = data->entries * bench_row_bytes(c);
  }
  if (job->kind == STREAM_COPY) {
    job->bytes = (int64_t)(data->table->bytes / 2 / 64 * 64);
    job->memory = data->table->memory;
    job->target = job->memory + job->bytes;
  }
}

static void start_probe(probe *p, const bench_data *data, stream_kind kind, bool own_rows, int threads,
                        bench_ceiling *ceiling)
{
  const bench_table *table = data->table;
  *p = (probe){.ceiling = ceiling, .own_rows = own_rows};
  p->job = (stream_job){.kind = kind, .threads = threads, .memory = table->memory,
                        .row_bytes = bench_row_bytes(data->c), .stride = table->stride_bytes};
  if (kind == STREAM_READ && data->grad_out) { /* gradients of few rows: what flows is the output's gradient */
    p->job.memory = data->grad_out;
    p->job.bytes = data->out_rows * bench_row_bytes(data->c);
  }
  *ceiling = (bench_ceiling){.kind = kind, .row_bytes = p->job.row_bytes, .threads = threads,
                             .table_bytes = (int64_t)table->bytes};
  snprintf(ceiling->what, sizeof ceiling->what, "%s%s", stream_kind_name(kind), own_rows ? ", same rows" : "");
  bench_page_size(p->job.memory, ceiling->pages, sizeof ceiling->pages);
}

/* ---- Which ways are best ------------------------------------------------------------------------------------- */

/* Tries every way a few times in turn; after two rounds only those whose best run came near the best of all. Of these the ones
 * with the best medians are kept: among so many ways, one is bound to have had a lucky run. */
static void choose_ways(probe *p, const bench_data *data, int *step)
{
  double rates[STREAM_MOST_VARIANTS][TRIAL_ROUNDS], best[STREAM_MOST_VARIANTS] = {0}, top = 0;
  int count = stream_variants(p->job.kind), tried[STREAM_MOST_VARIANTS] = {0}, most = 0;
  double start = bench_now();
  for (int round = 0; round < TRIAL_ROUNDS && (round < 2 || bench_now() - start < 1); round++)
    for (int way = 0; way < count; way++) {
      if (round >= 2 && best[way] < near_best * top) continue;
      if (data) point_probe(p, data, (*step)++ % data->sets);
      double rate = rate_once(&p->job, way);
      if (rate > best[way]) best[way] = rate;
      if (rate > top) top = rate;
      rates[way][tried[way]++] = rate;
      if (tried[way] > most) most = tried[way];
    }
  for (int way = 0; way < count; way++) best[way] = tried[way] == most ? bench_median(rates[way], most) : 0;
  for (p->way_count = 0; p->way_count < CONTENDERS && p->way_count < count; p->way_count++) {
    int winner = 0;
    for (int way = 1; way < count; way++)
      if (best[way] > best[winner]) winner = way;
    p->ways[p->way_count] = winner;
    best[winner] = 0;
  }
}

/* The way with the better median counts; its rates, in order of time, go to `rates`. */
static void finish_probe(probe *p, int runs, double *rates)
{
  bench_ceiling *ceiling = p->ceiling;
  for (int i = 0; i < p->way_count; i++) {
    double sorted[BENCH_MAX_RUNS];
    memcpy(sorted, p->rates[i], (size_t)runs * sizeof *sorted);
    double median = bench_median(sorted, runs);
    if (median <= ceiling->gbps) continue;
    ceiling->gbps = median;
    ceiling->low = bench_quantile(sorted, runs, 0.1);
    ceiling->high = bench_quantile(sorted, runs, 0.9);
    ceiling->way = stream_variant_name(p->job.kind, p->ways[i]);
    memcpy(rates, p->rates[i], (size_t)runs * sizeof *rates);
  }
}

/* ---- Case and ceilings in turn ------------------------------------------------------------------------------- */

/* Which ceilings a case is shown beside: the fitting one; for gradients also reading and writing the same rows, for
 * gradients of segments also plain writing, for hot rows also the gather of the very same rows. */
static int start_probes(probe *probes, const bench_data *data, int threads, bench_result *result)
{
  const bench_case *c = data->c;
  start_probe(&probes[0], data, c->ceiling, false, threads, &result->ceiling[0]);
  if (c->ceiling == STREAM_GATHER && bench_is_backward(c))
    start_probe(&probes[1], data, STREAM_UPDATE, false, threads, &result->ceiling[1]);
  else if (c->ceiling == STREAM_COPY)
    start_probe(&probes[1], data, STREAM_FILL, false, threads, &result->ceiling[1]);
  else if (c->reference_rows)
    start_probe(&probes[1], data, STREAM_GATHER, true, threads, &result->ceiling[1]);
  else return 1;
  return 2;
}

/* Slow cases on busy machines: after so many more seconds than wanted, a few runs have to do. */
enum { FEWEST_RUNS = 3, PATIENCE = 4 };

typedef struct samples {
  double ns[BENCH_MAX_RUNS], rates[BENCH_MAX_RUNS];
  int runs, interrupted;
} samples;

static sheaf_status sample_case(bench_run *run, int sets, int *step, samples *taken)
{
  for (int try = 1;; try++) {
    int set = (*step)++ % sets;
    long interruptions = bench_interruptions();
    double start = bench_now();
    sheaf_status status = bench_run_once(run, set);
    double seconds = bench_now() - start;
    bool interrupted = bench_interruptions() != interruptions;
    if (status == SHEAF_OK && interrupted && try < MAX_TRIES) continue;
    taken->interrupted += interrupted;
    taken->ns[taken->runs] = 1e9 * seconds;
    taken->rates[taken->runs++] = (double)run->data->set[set].useful_bytes / seconds / 1e9;
    return status;
  }
}

static bool is_enough(const samples *taken, double spent, const bench_effort *effort)
{
  if (taken->runs == BENCH_MAX_RUNS) return true;
  if (spent < effort->seconds) return false;
  return taken->runs >= effort->min_runs || (taken->runs >= FEWEST_RUNS && spent >= effort->seconds + PATIENCE);
}

static sheaf_status take_turns(bench_run *run, probe *probes, int probe_count, const bench_effort *effort,
                               samples *taken)
{
  const bench_data *data = run->data;
  int step = 0, sets = data->c->grouping_given ? 1 : data->sets;
  sheaf_status status = SHEAF_OK;
  for (int i = 0; i < probe_count; i++) choose_ways(&probes[i], data, &step);
  for (int i = 0; i < 2 && status == SHEAF_OK; i++) status = bench_run_once(run, i % sets);
  double start = bench_now();
  while (status == SHEAF_OK && !is_enough(taken, bench_now() - start, effort)) {
    for (int i = 0; i < probe_count; i++)
      for (int k = 0; k < probes[i].way_count; k++) {
        point_probe(&probes[i], data, step++ % data->sets);
        probes[i].rates[k][taken->runs] = rate_of(&probes[i].job, probes[i].ways[k]);
      }
    status = sample_case(run, sets, &step, taken);
  }
  return status;
}

static void finish_result(probe *probes, int probe_count, samples *taken, bench_result *result)
{
  double ceiling_rates[BENCH_MAX_RUNS] = {0}, ratios[BENCH_MAX_RUNS];
  int runs = result->runs = taken->runs;
  for (int i = probe_count; i-- > 0;) finish_probe(&probes[i], runs, ceiling_rates); /* the first one's rates stay */
  result->ceilings = probe_count;
  for (int i = 0; i < runs; i++) ratios[i] = taken->rates[i] / ceiling_rates[i];
  bench_sort(ratios, runs);
  bench_sort(taken->ns, runs);
  result->ns = bench_quantile(taken->ns, runs, 0.5);
  result->ns_low = bench_quantile(taken->ns, runs, 0.1);
  result->ns_high = bench_quantile(taken->ns, runs, 0.9);
  result->interrupted = taken->interrupted;
  result->gbps = bench_median(taken->rates, runs);
  result->fraction = result->gbps / result->ceiling[0].gbps;
  result->fraction_quiet = bench_quantile(taken->rates, runs, 0.9) / result->ceiling[0].high;
  result->fraction_low = bench_quantile(ratios, runs, 0.1);
  result->fraction_high = bench_quantile(ratios, runs, 0.9);
}

void bench_measure(bench_data *data, int threads, const bench_effort *effort, bench_result *result)
{
  static bench_run run;
  static probe probes[BENCH_RESULT_CEILINGS];
  static samples taken;
  *result = (bench_result){.c = data->c, .threads = threads};
  taken.runs = taken.interrupted = 0;
  sheaf_status status = bench_prepare(&run, data, threads);
  if (status == SHEAF_OK) {
    snprintf(result->sku, sizeof result->sku, "%s", sheaf_plan_sku(run.plan).name);
    int count = start_probes(probes, data, threads, result);
    status = take_turns(&run, probes, count, effort, &taken);
    if (status == SHEAF_OK) finish_result(probes, count, &taken, result);
  }
  if (status != SHEAF_OK)
    snprintf(result->fault, sizeof result->fault, "%s: %s", sheaf_status_name(status), sheaf_last_error());
  bench_release(&run);
}

/* ---- A ceiling for itself ------------------------------------------------------------------------------------ */

static void measure_probe(probe *p, const int64_t *indices, const bench_effort *effort)
{
  static double rates[BENCH_MAX_RUNS];
  int runs = 0;
  p->job.indices = indices;
  choose_ways(p, NULL, NULL);
  double start = bench_now();
  while (runs < BENCH_MAX_RUNS && (runs < effort->min_runs || bench_now() - start < effort->seconds)) {
    if (indices) p->job.indices = indices + runs % 7 * p->job.count;
    for (int k = 0; k < p->way_count; k++) p->rates[k][runs] = rate_of(&p->job, p->ways[k]);
    runs++;
  }
  finish_probe(p, runs, rates);
}

sheaf_status bench_measure_ceiling(stream_kind kind, int64_t row_bytes, bench_table *table, int threads,
                                   const bench_effort *effort, bench_ceiling *ceiling)
{
  static probe p;
  int64_t bytes = (int64_t)table->bytes, count = row_bytes ? 40000000 / row_bytes : 0;
  size_t index_bytes = (size_t)(7 * count) * sizeof(int64_t);
  void *indices = NULL;
  sheaf_status status = sheaf_table_alloc(index_bytes, &indices);
  if (status != SHEAF_OK) return status;
  bench_case uniform = {.spread = BENCH_UNIFORM};
  if (count) bench_fill_indices(&uniform, indices, 7 * count, bytes / row_bytes, 5);
  *ceiling = (bench_ceiling){.kind = kind, .row_bytes = row_bytes, .table_bytes = bytes, .threads = threads};
  snprintf(ceiling->what, sizeof ceiling->what, "%s", stream_kind_name(kind));
  bench_page_size(table->memory, ceiling->pages, sizeof ceiling->pages);
  p = (probe){.ceiling = ceiling};
  p.job = (stream_job){.kind = kind, .threads = threads, .memory = table->memory, .row_bytes = row_bytes,
                       .stride = row_bytes, .count = count, .bytes = kind == STREAM_COPY ? bytes / 128 * 64 : bytes};
  p.job.target = p.job.memory + p.job.bytes;
  measure_probe(&p, indices, effort);
  sheaf_table_free(indices, index_bytes);
  return SHEAF_OK;
}
