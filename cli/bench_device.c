/* cli/bench_device.c: `sheaf bench --device cuda`: each case on cold caches, beside the device's own copy bandwidth. */
#include "bench_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_device_case.h"
#include "bench_device_sparse.h"
#include "bench_tools.h"
#include "cli_impl.h"

enum { RUNS = 20, SPARSE_RUNS = 5, HOST_ROUNDS = 8, HOST_CALLS = 16 };
static const size_t flush_bytes = (size_t)256 << 20, block_bytes = (size_t)64 << 20, copy_bytes = (size_t)2 << 30;

/* The device and what lives on it for as long as cases run. */
typedef struct bench_gpu {
  DLDevice device;
  void *stream, *begin, *end, *flush;
  char *values; /* random numbers that tables and gradients are copied from */
  double copy;  /* bytes per second, read and written */
  bool text;
  json_t *results;
} bench_gpu;

/* What one case needs there. */
typedef struct bench_setup {
  void *memory[16];
  int memories;
  DLTensor tensor[9];
  int64_t shape[9][2];
  int tensors;
  sheaf_plan *plan;
  size_t workspace_bytes;
  void *workspace, *grouping;
  sheaf_embedding_args embedding;
  sheaf_segment_args segment;
  int64_t touched;
  double select; /* seconds, once kernels are loaded */
} bench_setup;

static int complain(const char *what)
{
  cli_complain("bench", "%s%s%s", what, *what ? ": " : "", sheaf_last_error());
  return 0;
}

#define TRY(call)                                \
  do {                                           \
    if ((call) != SHEAF_OK) return complain(""); \
  } while (0)

/* ---- Time ---------------------------------------------------------------------------------------------------- */

static int wait_for(bench_gpu *g)
{
  TRY(sheaf_stream_wait(g->device, g->stream));
  return 1;
}

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
           sheaf_event_record(g->device, g->end, g->stream) == SHEAF_OK && wait_for(g) &&
           sheaf_event_elapsed(g->device, g->begin, g->end, &times[i]) == SHEAF_OK;
  sheaf_device_free(g->device, a);
  sheaf_device_free(g->device, b);
  if (!fine) return complain("measuring a copy");
  g->copy = 2 * (double)copy_bytes / bench_median(times, RUNS);
  return 1;
}

/* Numbers around one, as f32; other types are made from them where a case wants those. */
static int make_values(bench_gpu *g)
{
  size_t count = block_bytes / 4;
  float *host = malloc(block_bytes);
  if (!host) return 0;
  for (size_t i = 0; i < count; i++) host[i] = (float)(bench_random_unit(7, (int64_t)i) * 2 - 1);
  int fine = sheaf_device_alloc(g->device, block_bytes, (void **)&g->values) == SHEAF_OK &&
             sheaf_device_copy(g->device, g->values, host, block_bytes, g->stream) == SHEAF_OK && wait_for(g);
  free(host);
  return fine ? 1 : complain("filling device memory");
}

static int open_device(bench_gpu *g, int number, json_t *root)
{
  g->device = (DLDevice){kDLCUDA, number};
  sheaf_device_info info;
  TRY(sheaf_device_describe(g->device, &info));
  TRY(sheaf_stream_make(g->device, &g->stream));
  TRY(sheaf_stream_use(g->device, g->stream));
  TRY(sheaf_event_make(g->device, &g->begin));
  TRY(sheaf_event_make(g->device, &g->end));
  TRY(sheaf_device_alloc(g->device, flush_bytes, &g->flush));
  if (!make_values(g) || !measure_copy(g)) return 0;
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
  sheaf_device_free(g->device, g->values);
  sheaf_device_free(g->device, g->flush);
  sheaf_event_free(g->device, g->begin);
  sheaf_event_free(g->device, g->end);
  sheaf_stream_use(g->device, NULL);
  sheaf_stream_free(g->device, g->stream);
}

/* ---- Data ---------------------------------------------------------------------------------------------------- */

static void *own(bench_gpu *g, bench_setup *s, size_t bytes)
{
  void *memory = NULL;
  if (sheaf_device_alloc(g->device, bytes ? bytes : 64, &memory) != SHEAF_OK) return NULL;
  s->memory[s->memories++] = memory;
  return memory;
}

static sheaf_operand tensor_of(bench_gpu *g, bench_setup *s, void *data, sheaf_dtype dtype, int64_t rows,
                               int64_t columns)
{
  int at = s->tensors++;
  s->shape[at][0] = rows;
  s->shape[at][1] = columns;
  s->tensor[at] = (DLTensor){.data = data,
                             .device = g->device,
                             .ndim = columns >= 0 ? 2 : 1,
                             .dtype = sheaf_dtype_to_dl(dtype),
                             .shape = s->shape[at]};
  return (sheaf_operand){&s->tensor[at], 0};
}

/* Rows of random numbers: blocks of f32 as they are, which read as finite numbers in every type but f16, where the bits
 * of a NaN cost no more than others. */
static int fill_rows(bench_gpu *g, char *memory, size_t bytes)
{
  for (size_t at = 0; at < bytes; at += block_bytes)
    TRY(sheaf_device_copy(g->device, memory + at, g->values, bytes - at < block_bytes ? bytes - at : block_bytes,
                          g->stream));
  return wait_for(g);
}

static sheaf_operand rows_of(bench_gpu *g, bench_setup *s, sheaf_dtype dtype, int64_t rows, int64_t dim)
{
  size_t bytes = (size_t)(rows * sheaf_dtype_row_bytes(dtype, dim));
  char *memory = own(g, s, bytes);
  if (!memory || !fill_rows(g, memory, bytes)) return (sheaf_operand){NULL, 0};
  int packed = dtype == SHEAF_INT8 || dtype == SHEAF_INT4;
  return tensor_of(g, s, memory, dtype, rows, packed ? sheaf_dtype_row_bytes(dtype, dim) : dim);
}

static sheaf_operand numbers_of(bench_gpu *g, bench_setup *s, const int64_t *host, int64_t rows, int64_t columns)
{
  size_t bytes = (size_t)(rows * (columns < 0 ? 1 : columns)) * 8;
  void *memory = own(g, s, bytes);
  if (!memory || sheaf_device_copy(g->device, memory, host, bytes, g->stream) != SHEAF_OK || !wait_for(g))
    return (sheaf_operand){NULL, 0};
  return tensor_of(g, s, memory, SHEAF_I64, rows, columns);
}

static int compare_numbers(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Indices, or segment ids; sorted ones for the sorted kinds. Counts the distinct ones. */
static int64_t *make_indices(const device_case *c, int64_t *touched)
{
  int64_t count = device_case_entries(c);
  int64_t *indices = malloc((size_t)count * 8);
  char *seen = calloc((size_t)c->rows, 1);
  *touched = 0;
  if (!indices || !seen) return free(indices), free(seen), NULL;
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
  for (int64_t n = 0; n < count; n++) {
    double unit = bench_random_unit(11, n);
    indices[n] = c->exponent > 0 ? bench_scatter(bench_power_law(unit, c->rows, c->exponent) - 1, c->rows)
                                 : (int64_t)(unit * (double)c->rows);
  }
  for (int64_t n = 0; n < count; n++) {
    *touched += !seen[indices[n]];
    seen[indices[n]] = 1;
  }
  int sorted = c->category == SHEAF_CATEGORY_SEGMENT &&
               strncmp(sheaf_kind_name(c->category, (uint16_t)c->kind), "unsorted", 8) != 0;
  if (sorted) qsort(indices, (size_t)count, 8, compare_numbers);
  free(seen);
  return indices;
}

/* ---- Set-up -------------------------------------------------------------------------------------------------- */

static int set_up_embedding(bench_gpu *g, const device_case *c, bench_setup *s)
{
  sheaf_dtype dtype = c->dtype ? c->dtype : SHEAF_F32;
  sheaf_dtype out = dtype == SHEAF_INT8 || dtype == SHEAF_INT4 ? SHEAF_F32 : dtype;
  int64_t entries = device_case_entries(c);
  int backward = device_case_is_backward(c);
  sheaf_embedding_desc d = SHEAF_EMBEDDING_DESC_INIT;
  d.device = g->device;
  d.kind = (sheaf_embedding_kind)c->kind;
  d.dtype = dtype;
  d.index_dtype = SHEAF_I64;
  d.rows = c->rows;
  d.dim = c->dim;
  d.indices = entries;
  d.bags = c->bags;
  d.bag_form = c->fixed ? SHEAF_BAGS_MATRIX : SHEAF_BAGS_OFFSETS_END;
  d.weighted = c->weighted;
  d.grouping_given = c->grouped;
  if (c->touched) d.grad_write = SHEAF_GRAD_TOUCHED;
  sheaf_embedding_args *a = &s->embedding;
  *a = (sheaf_embedding_args)SHEAF_EMBEDDING_ARGS_INIT;
  int64_t *indices = make_indices(c, &s->touched), *offsets = malloc((size_t)(c->bags + 1) * 8);
  int fine = indices && offsets;
  if (fine) {
    for (int64_t b = 0; b <= c->bags; b++) offsets[b] = b * c->length;
    a->indices = c->fixed ? numbers_of(g, s, indices, c->bags, c->length) : numbers_of(g, s, indices, entries, -1);
    if (c->bags && !c->fixed) a->offsets = numbers_of(g, s, offsets, c->bags + 1, -1);
  }
  free(indices);
  free(offsets);
  if (!fine || !a->indices.tensor) return complain("device memory");
  if (!backward || c->weights_only) a->table = rows_of(g, s, dtype, c->rows, c->dim);
  if (backward && !c->weights_only) a->table_grad = rows_of(g, s, dtype, c->rows, c->dim);
  if (c->weighted) {
    size_t bytes = (size_t)entries * 4;
    char *memory = own(g, s, bytes);
    if (!memory || !fill_rows(g, memory, bytes)) return 0;
    a->weights = tensor_of(g, s, memory, out, c->fixed ? c->bags : entries, c->fixed ? c->length : -1);
  }
  if (c->weights_only) a->weights_grad = tensor_of(g, s, own(g, s, (size_t)entries * 4), out, entries, -1);
  sheaf_operand rows = rows_of(g, s, out, c->bags ? c->bags : entries, c->dim);
  if (backward)
    a->grad_out = rows;
  else
    a->out = rows;
  TRY(sheaf_embedding_select(&d, NULL, &s->plan));
  double begun = bench_now();
  sheaf_plan *again = NULL;
  TRY(sheaf_embedding_select(&d, NULL, &again));
  s->select = bench_now() - begun;
  sheaf_plan_free(again);
  if (!c->grouped) return 1;
  size_t bytes = sheaf_grouping_size(s->plan);
  s->grouping = own(g, s, bytes);
  TRY(sheaf_embedding_grouping_build(s->plan, s->grouping, bytes, g->stream, a));
  a->grouping = s->grouping;
  a->grouping_bytes = bytes;
  return 1;
}

static int set_up_segment(bench_gpu *g, const device_case *c, bench_setup *s)
{
  sheaf_dtype dtype = c->dtype ? c->dtype : SHEAF_F32;
  int backward = device_case_is_backward(c);
  sheaf_segment_desc d = SHEAF_SEGMENT_DESC_INIT;
  d.device = g->device;
  d.kind = (sheaf_segment_kind)c->kind;
  d.dtype = dtype;
  d.index_dtype = SHEAF_I64;
  d.rows = c->length;
  d.dim = c->dim;
  d.segments = c->rows;
  sheaf_segment_args *a = &s->segment;
  *a = (sheaf_segment_args)SHEAF_SEGMENT_ARGS_INIT;
  int64_t *ids = make_indices(c, &s->touched);
  if (ids) a->ids = numbers_of(g, s, ids, c->length, -1);
  free(ids);
  a->data = rows_of(g, s, dtype, c->length, c->dim);
  sheaf_operand groups = rows_of(g, s, dtype, c->rows, c->dim);
  if (backward) {
    a->grad_out = groups;
    a->data_grad = rows_of(g, s, dtype, c->length, c->dim);
  } else {
    a->out = groups;
  }
  if (!a->ids.tensor || !a->data.tensor) return complain("device memory");
  TRY(sheaf_segment_select(&d, NULL, &s->plan));
  double begun = bench_now();
  sheaf_plan *again = NULL;
  TRY(sheaf_segment_select(&d, NULL, &again));
  s->select = bench_now() - begun;
  sheaf_plan_free(again);
  return 1;
}

static sheaf_status run_once(bench_gpu *g, const device_case *c, bench_setup *s)
{
  if (c->sparse) return bench_sparse_gradient(&s->embedding, c->rows);
  if (c->category == SHEAF_CATEGORY_EMBEDDING)
    return sheaf_embedding_run(s->plan, s->workspace, s->workspace_bytes, g->stream, &s->embedding);
  return sheaf_segment_run(s->plan, s->workspace, s->workspace_bytes, g->stream, &s->segment);
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
      TRY(run_once(g, c, s));
      times[count++] = bench_now() - begun;
    }
    if (!wait_for(g)) return 0;
  }
  *seconds = bench_median(times, count);
  return 1;
}

static int measure(bench_gpu *g, const device_case *c, bench_setup *s)
{
  double times[RUNS];
  char name[96], target[32] = "", met[16] = "";
  s->workspace_bytes = sheaf_plan_workspace_size(s->plan);
  s->workspace = own(g, s, s->workspace_bytes);
  int runs = c->sparse ? SPARSE_RUNS : RUNS;
  for (int i = -3; i < runs; i++) {
    double time;
    TRY(sheaf_device_fill(g->device, g->flush, i & 255, flush_bytes, g->stream));
    TRY(sheaf_event_record(g->device, g->begin, g->stream));
    TRY(run_once(g, c, s));
    TRY(sheaf_event_record(g->device, g->end, g->stream));
    if (!wait_for(g)) return 0;
    TRY(sheaf_event_elapsed(g->device, g->begin, g->end, &time));
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
  if (json_array_append_new(g->results, result) != 0) return complain("out of memory");
  if (!g->text) return 1;
  printf("%-62s %9.1f %8.1f %7.2f %7.1f %6.1f", name, seconds * 1e6, speed * 1e-9, speed / g->copy, host * 1e6,
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
  int fine = c->category == SHEAF_CATEGORY_EMBEDDING ? set_up_embedding(g, c, &s) : set_up_segment(g, c, &s);
  fine = fine && measure(g, c, &s);
  sheaf_plan_free(s.plan);
  for (int i = 0; i < s.memories; i++) sheaf_device_free(g->device, s.memory[i]);
  return fine;
}

static bool is_wanted(const device_case *c, const char *const *words, bool quick)
{
  char name[96];
  device_case_name(c, name, sizeof name);
  for (int i = 0; words[i]; i++)
    if (!strstr(name, words[i])) return false;
  return !quick || c->quick;
}

int bench_on_device(const char *device, const char *const *words, bool quick, bool list, bool text, json_t *root)
{
  DLDevice where;
  int code = cli_device("bench", device, &where);
  if (code != CLI_GO_ON) return code;
  int devices;
  if (!list && sheaf_device_count(kDLCUDA, &devices) != SHEAF_OK) return complain(""), CLI_FAILED;
  bench_gpu g = {.text = text && !list, .results = json_object_get(root, "results")};
  int failed = 0, ran = 0;
  if (!list && !open_device(&g, where.device_id, root)) return CLI_FAILED;
  if (g.text)
    printf("\n%-62s %9s %8s %7s %7s %6s  %-10s %5s\n", "case", "us", "GB/s", "of copy", "host us", "select", "target",
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
  if (!ran) return cli_misused("bench", "no case has that in its name");
  if (g.text)
    puts("\ntarget: the time or the fraction of the copy that is aimed at; met: how far it is reached, 1 is all");
  return failed ? CLI_FAILED : CLI_OK;
}
