/* cli/bench_device.c: `sheaf bench --device cuda`: each case on cold caches, beside the device's own copy bandwidth. */
#include "bench_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_device_setup.h"
#include "bench_output.h"
#include "bench_tools.h"
#include "cli_impl.h"

enum { RUNS = 20, SPARSE_RUNS = 5, HOST_ROUNDS = 8, HOST_CALLS = 16 };
static const size_t flush_bytes = (size_t)256 << 20, block_bytes = (size_t)64 << 20, copy_bytes = (size_t)2 << 30;
static const size_t arena_bytes = (size_t)12 << 30; /* room for every case but the one of D1024, whose table has 41 GB */

/* ---- The device ----------------------------------------------------------------------------------------------- */

static int measure_copy(bench_gpu *g)
{
  void *a = NULL, *b = NULL;
  double times[RUNS];
  int fine = sheaf_device_alloc(g->device, copy_bytes, &a) == SHEAF_OK &&
             sheaf_device_alloc(g->device, copy_bytes, &b) == SHEAF_OK &&
             sheaf_device_fill(g->device, a, 3, copy_bytes, g->stream) == SHEAF_OK;
  for (int i = 0; fine && i < RUNS; i++)
    fine = sheaf_event_record(g->device, g->begin, g->stream) == SHEAF_OK &&
           sheaf_device_copy(g->device, b, a, copy_bytes, g->stream) == SHEAF_OK &&
           sheaf_event_record(g->device, g->end, g->stream) == SHEAF_OK && bench_device_wait(g) &&
           sheaf_event_elapsed(g->device, g->begin, g->end, &times[i]) == SHEAF_OK;
  sheaf_device_free(g->device, a);
  sheaf_device_free(g->device, b);
  if (!fine) return bench_device_complain("measuring a copy");
  g->copy = 2 * (double)copy_bytes / bench_median(times, RUNS);
  return 1;
}

/* Numbers around one, as f32; other types are made from them where a case wants those. */
static int make_values(bench_gpu *g)
{
  size_t count = block_bytes / 4;
  g->values_bytes = block_bytes;
  float *host = malloc(block_bytes);
  if (!host) return 0;
  for (size_t i = 0; i < count; i++) host[i] = (float)(bench_random_unit(7, (int64_t)i) * 2 - 1);
  int fine = sheaf_device_alloc(g->device, block_bytes, (void **)&g->values) == SHEAF_OK &&
             sheaf_device_copy(g->device, g->values, host, block_bytes, g->stream) == SHEAF_OK && bench_device_wait(g);
  free(host);
  return fine ? 1 : bench_device_complain("filling device memory");
}

static int open_device(bench_gpu *g, int number, json_t *root)
{
  g->device = (DLDevice){kDLCUDA, number};
  sheaf_device_info info;
  BENCH_TRY(sheaf_device_describe(g->device, &info));
  BENCH_TRY(sheaf_stream_make(g->device, &g->stream));
  BENCH_TRY(sheaf_stream_use(g->device, g->stream));
  BENCH_TRY(sheaf_event_make(g->device, &g->begin));
  BENCH_TRY(sheaf_event_make(g->device, &g->end));
  BENCH_TRY(sheaf_device_alloc(g->device, flush_bytes, &g->flush));
  if (!make_values(g) || !measure_copy(g)) return 0;
  const bool roomy = (size_t)info.memory_bytes >= 5 * arena_bytes; /* that table fits beside it */
  if (roomy && sheaf_device_alloc(g->device, arena_bytes, (void **)&g->arena) == SHEAF_OK) g->arena_bytes = arena_bytes;
  json_object_set_new(json_object_get(root, "machine"), "device", json_string(info.name));
  json_array_append_new(json_object_get(root, "ceilings"),
                        json_pack("{s:s, s:i, s:i, s:f, s:s}", "ceiling", "copy", "row_bytes", 0, "threads", 1, "gbps",
                                  g->copy * 1e-9, "way", "the device's own copy, read and written"));
  if (g->text)
    printf("%s, %d.%d, %d processors, cache %.0f MB; copy %.0f GB/s (read and written)\n", info.name, info.major,
           info.minor, info.processors, (double)info.cache_bytes / 1e6, g->copy * 1e-9);
  return 1;
}

static void close_device(bench_gpu *g)
{
  sheaf_device_free(g->device, g->arena);
  sheaf_device_free(g->device, g->values);
  sheaf_device_free(g->device, g->flush);
  sheaf_event_free(g->device, g->begin);
  sheaf_event_free(g->device, g->end);
  sheaf_stream_use(g->device, NULL);
  sheaf_stream_free(g->device, g->stream);
}

/* ---- One case ------------------------------------------------------------------------------------------------ */

/* What a call costs its caller: the median of many, a few at a time, so that none waits for room in the queue. A sparse
 * gradient waits for the device. */
static int measure_host(bench_gpu *g, const device_case *c, bench_setup *s, double *seconds)
{
  double times[HOST_ROUNDS * HOST_CALLS];
  int calls = c->sparse ? 1 : HOST_CALLS, count = 0;
  for (int round = 0; round < HOST_ROUNDS; round++) {
    for (int i = 0; i < calls; i++) {
      double begun = bench_now();
      BENCH_TRY(bench_setup_run(g, c, s));
      times[count++] = bench_now() - begun;
    }
    if (!bench_device_wait(g)) return 0;
  }
  *seconds = bench_median(times, count);
  return 1;
}

static int measure(bench_gpu *g, const device_case *c, bench_setup *s)
{
  double times[RUNS];
  char name[96], target[32] = "", met[16] = "";
  int runs = c->sparse ? SPARSE_RUNS : RUNS;
  for (int i = -3; i < runs; i++) {
    double time;
    BENCH_TRY(sheaf_device_fill(g->device, g->flush, i & 255, flush_bytes, g->stream));
    BENCH_TRY(sheaf_event_record(g->device, g->begin, g->stream));
    BENCH_TRY(bench_setup_run(g, c, s));
    BENCH_TRY(sheaf_event_record(g->device, g->end, g->stream));
    if (!bench_device_wait(g)) return 0;
    BENCH_TRY(sheaf_event_elapsed(g->device, g->begin, g->end, &time));
    if (i >= 0) times[i] = time;
  }
  double host;
  if (!measure_host(g, c, s, &host)) return 0;
  double seconds = bench_median(times, runs), speed = device_case_bytes(c, s->touched) / seconds;
  device_case_name(c, name, sizeof name);
  if (c->target_us > 0) {
    snprintf(target, sizeof target, "%.4g us", c->target_us);
    snprintf(met, sizeof met, "%.2f", c->target_us / (seconds * 1e6));
  } else if (c->target_fraction > 0) {
    snprintf(target, sizeof target, "%.2f copy", c->target_fraction);
    snprintf(met, sizeof met, "%.2f", speed / g->copy / c->target_fraction);
  }
  json_t *result = device_case_result(c, sheaf_plan_sku(s->plan).name, seconds, speed, g->copy);
  json_object_set_new(result, "host_ns", json_real(host * 1e9));
  json_object_set_new(result, "select_ns", json_real(s->select * 1e9));
  if (json_array_append_new(g->results, result) != 0) return bench_device_complain("out of memory");
  if (!g->text) return 1;
  printf("%-56s %9.1f %8.1f %7.2f %7.1f %6.1f", name, seconds * 1e6, speed * 1e-9, speed / g->copy, host * 1e6,
         s->select * 1e6);
  if (target[0]) printf("  %-10s %5s", target, met);
  putchar('\n');
  fflush(stdout);
  return 1;
}

static int run_case(bench_gpu *g, const device_case *c)
{
  bench_setup s;
  memset(&s, 0, sizeof s);
  int fine = bench_setup_make(g, c, &s) && measure(g, c, &s);
  bench_setup_free(g, &s);
  return fine;
}

static bool is_wanted(const device_case *c, const char *const *words, bool quick)
{
  char name[96];
  device_case_name(c, name, sizeof name);
  return bench_name_has(name, words) && (!quick || c->quick);
}

int bench_on_device(const char *device, const char *const *words, bool quick, bool list, bool text, json_t *root)
{
  DLDevice where;
  int code = cli_device("bench", device, &where);
  if (code != CLI_GO_ON) return code;
  if (!list && (code = cli_device_ready("bench", where)) != CLI_GO_ON) return code;
  bench_gpu g = {.text = text && !list, .results = json_object_get(root, "results")};
  int failed = 0, ran = 0;
  if (!list && !open_device(&g, where.device_id, root)) return CLI_FAILED;
  if (g.text)
    printf("\n%-56s %9s %8s %7s %7s %6s  %-10s %5s\n", "case", "us", "GB/s", "of copy", "host us", "select", "target",
           "met");
  for (int i = 0; i < device_case_count; i++) {
    if (!is_wanted(&device_cases[i], words, quick)) continue;
    char name[96];
    device_case_name(&device_cases[i], name, sizeof name);
    ran++;
    if (list)
      puts(name);
    else
      failed += !run_case(&g, &device_cases[i]);
  }
  if (!list) close_device(&g);
  if (!ran) return cli_misused("bench", "no case%s has that in its name", quick ? " of --quick" : "");
  if (g.text)
    puts("\ntarget: the time or the fraction of the copy that is aimed at; met: how far it is reached, 1 is all");
  return failed ? CLI_FAILED : CLI_OK;
}
