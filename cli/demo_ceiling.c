/* cli/demo_ceiling.c: the machine's own memory bandwidth, as the yardstick of `sheaf demo`. */
#include "bench_stream.h"
#include "bench_tools.h"
#include "demo.h"

enum { MAX_RUNS = 64, MIN_RUNS = 3 };

static double measure_way(stream_job *job, const demo_data *data, int way, double seconds)
{
  double rates[MAX_RUNS], start = bench_now();
  stream_run(job, way); /* the first run only warms up */
  int runs = 0;
  while (runs < MIN_RUNS || (runs < MAX_RUNS && bench_now() - start < seconds)) {
    job->indices = data->indices[runs % DEMO_INDEX_SETS];
    double before = bench_now();
    int64_t bytes = stream_run(job, way);
    rates[runs++] = (double)bytes / (bench_now() - before);
  }
  return bench_median(rates, runs);
}

/* A low ceiling would flatter: the best way counts. */
static double measure_best(stream_job *job, const demo_data *data, double seconds)
{
  double best = 0;
  int ways = stream_variants(job->kind);
  for (int way = 0; way < ways; way++) {
    double rate = measure_way(job, data, way, seconds / ways);
    if (rate > best) best = rate;
  }
  return best;
}

void demo_measure_ceilings(demo_data *data, double seconds, double bandwidth[DEMO_CEILINGS])
{
  enum { ROW = DEMO_DIM * (int)sizeof(float) };
  static const stream_kind kinds[DEMO_CEILINGS] = {
    [DEMO_READ] = STREAM_READ, [DEMO_COPY] = STREAM_COPY, [DEMO_GATHER] = STREAM_GATHER};
  for (int i = 0; i < DEMO_CEILINGS; i++) {
    stream_job job = {.kind = kinds[i], .threads = data->threads, .memory = (char *)data->table,
                      .target = (char *)data->grad, .bytes = data->rows * ROW, .row_bytes = ROW, .stride = ROW,
                      .indices = data->indices[0], .count = data->lookups};
    bandwidth[i] = measure_best(&job, data, seconds / DEMO_CEILINGS);
  }
}
