/* fake_cuda.c: a plug-in in the place of libsheaf_cuda.so that has a device of paper, so that the layers above plug-ins
 * are tested where there is no GPU. It is stricter than a real one:
 *   - its memory can only be touched while it works: the host's hands on it are a crash;
 *   - what is enqueued is done when somebody waits, not before: who reads too early reads what was there;
 *   - memory that is freed is gone by the time that is done;
 *   - with SHEAF_PAPER_TEARS=n in the environment, its n-th step from then on fails (n from 0; freeing never does);
 *   - it says how much memory is in use as the memory it has.
 * It computes with a CPU library of its own, one thread at a time. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "core/device_api.h"

static const shf_plugin_host *host;

static sheaf_status fail(sheaf_status status, const char *sentence) { return host->fail(status, sentence); }

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static sheaf_status done(void)
{
  pthread_mutex_unlock(&lock);
  return SHEAF_OK;
}

/* Whether this step is the one that is to fail. */
static int tears(void)
{
  static char asked[32];
  static long steps;
  const char *now = getenv("SHEAF_PAPER_TEARS");
  if (!now) now = "";
  if (strcmp(now, asked) != 0) {
    snprintf(asked, sizeof asked, "%s", now);
    steps = 0;
  }
  return now[0] && steps++ == atol(now);
}

#define BEGIN_STEP()                                              \
  do {                                                            \
    pthread_mutex_lock(&lock);                                    \
    int torn = tears();                                           \
    if (torn) pthread_mutex_unlock(&lock);                        \
    if (torn) return fail(SHEAF_DEVICE, "the paper device tore"); \
  } while (0)

/* ---- Memory ---- */

typedef struct block {
  struct block *next;
  char *memory;
  size_t bytes;
} block;

static block *blocks;
static int64_t bytes_in_use;

static void protect_all(int protection)
{
  for (block *b = blocks; b; b = b->next)
    if (mprotect(b->memory, b->bytes, protection) != 0) abort();
}

static sheaf_status take(size_t bytes, void **memory)
{
  block *b = malloc(sizeof *b);
  if (!b) return fail(SHEAF_OUT_OF_MEMORY, "the paper device has no memory left");
  b->bytes = (bytes + 4095) / 4096 * 4096;
  b->memory = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (b->memory == MAP_FAILED) abort();
  memset(b->memory, 0xa5, b->bytes); /* whoever forgets to write there is found out */
  if (mprotect(b->memory, b->bytes, PROT_NONE) != 0) abort();
  b->next = blocks;
  blocks = b;
  bytes_in_use += (int64_t)b->bytes;
  *memory = b->memory;
  return SHEAF_OK;
}

static void drop(void *memory)
{
  for (block **at = &blocks; *at; at = &(*at)->next)
    if ((*at)->memory == memory) {
      block *gone = *at;
      *at = gone->next;
      bytes_in_use -= (int64_t)gone->bytes;
      munmap(gone->memory, gone->bytes);
      free(gone);
      return;
    }
  abort(); /* freed twice, or never had */
}

/* ---- What is enqueued ---- */

enum { OPERANDS = 9 };

typedef enum step { COPY, FILL, RUN, GROUP, COUNT_ROWS, NUMBER_ROWS, MAP, DROP, MOMENT } step;

typedef struct task {
  step kind;
  void *to;
  const void *from;
  size_t bytes;
  int value;
  sheaf_embedding_desc embedding;
  sheaf_segment_desc segment;
  sheaf_category category;
  shf_matrix operands[OPERANDS];
  sheaf_index_report *report;
  int64_t *grouping;
  shf_device_map map;
  shf_device_rows rows;
  struct task *next;
} task;

static task *first_task, **last_task = &first_task;

static task *enqueue(step kind)
{
  task *t = calloc(1, sizeof *t);
  if (!t) abort();
  t->kind = kind;
  *last_task = t;
  last_task = &t->next;
  return t;
}

/* ---- Runs, by a plan for the CPU ---- */

typedef struct view {
  DLTensor dl;
  int64_t shape[3], strides[3];
} view;

/* An operand as a tensor again: rows [rows, columns], or a vector (columns -1), of which each problem has one. */
static sheaf_operand operand(view *v, shf_matrix m, sheaf_dtype dtype, int64_t batch, int64_t rows, int64_t columns)
{
  if (!m.data) return (sheaf_operand){NULL, 0};
  int64_t bytes = dtype == SHEAF_U8 ? 1 : sheaf_dtype_row_bytes(dtype, 1);
  int at = 0;
  if (batch > 0) {
    v->shape[at] = batch;
    v->strides[at++] = m.batch_stride / bytes;
  }
  v->shape[at] = rows;
  v->strides[at++] = columns < 0 ? 1 : m.row_stride / bytes;
  if (columns >= 0) {
    v->shape[at] = columns;
    v->strides[at++] = 1;
  }
  v->dl = (DLTensor){.data = m.data, .device = {kDLCPU, 0}, .ndim = at, .dtype = sheaf_dtype_to_dl(dtype)};
  v->dl.shape = v->shape;
  v->dl.strides = v->strides;
  return (sheaf_operand){&v->dl, 0};
}

/* A matrix of indices [B, L], which has no gaps. */
static sheaf_operand entries_operand(view *v, shf_matrix m, sheaf_dtype dtype, const sheaf_embedding_desc *d)
{
  if (d->bag_form != SHEAF_BAGS_MATRIX || d->kind == SHEAF_LOOKUP || d->kind == SHEAF_LOOKUP_BACKWARD)
    return operand(v, m, dtype, d->batch, d->indices, -1);
  int64_t length = d->bags ? d->indices / d->bags : 0;
  m.row_stride = length * sheaf_dtype_row_bytes(dtype, 1);
  return operand(v, m, dtype, d->batch, d->bags, length);
}

/* A grouping here is the row of every entry, in order of entries: the number of a row, or -1. */
static int64_t grouped_entries(const sheaf_embedding_desc *d)
{
  return d->kind == SHEAF_BAG_MAX_BACKWARD ? d->bags * d->dim : d->indices;
}

/* The rows of a grouping in place of the indices, or of arg. */
static void take_grouping(const task *t, sheaf_embedding_desc *d, shf_matrix *m)
{
  shf_matrix own = {.data = (char *)t->grouping, .row_stride = d->dim * 8, .batch_stride = 0};
  m[d->kind == SHEAF_BAG_MAX_BACKWARD ? 6 : 1] = own;
  d->index_dtype = SHEAF_I64;
  d->total_rows = d->rows;
  d->has_padding = d->grouping_given = 0;
}

static void run_embedding(const task *t, sheaf_index_report *report, sheaf_status *status)
{
  sheaf_embedding_desc d = t->embedding;
  shf_matrix m[OPERANDS];
  view v[OPERANDS];
  memcpy(m, t->operands, sizeof m);
  if (t->grouping && t->kind == RUN) take_grouping(t, &d, m);
  int quantised = d.dtype == SHEAF_INT8 || d.dtype == SHEAF_INT4;
  int lookup = d.kind == SHEAF_LOOKUP || d.kind == SHEAF_LOOKUP_BACKWARD;
  int64_t outer = lookup ? d.indices : d.bags;
  sheaf_dtype value = quantised ? SHEAF_F32 : d.dtype, out = d.out_dtype ? d.out_dtype : value;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  d.device = (DLDevice){kDLCPU, 0};
  d.bad_index = SHEAF_BAD_INDEX_SKIP;
  args.table = quantised ? operand(&v[0], m[0], SHEAF_U8, d.batch, d.rows, sheaf_dtype_row_bytes(d.dtype, d.dim))
                         : operand(&v[0], m[0], d.dtype, d.batch, d.rows, d.dim);
  args.indices = entries_operand(&v[1], m[1], d.index_dtype, &d);
  args.offsets = operand(&v[2], m[2], d.offset_dtype, d.batch, d.bags + (d.bag_form == SHEAF_BAGS_OFFSETS_END), -1);
  args.weights = entries_operand(&v[3], m[3], value, &d);
  args.grad_out = operand(&v[4], m[4], d.dtype, d.batch, outer, d.dim);
  args.out = operand(&v[5], m[5], out, d.batch, outer, d.dim);
  args.arg = operand(&v[6], m[6], d.index_dtype, d.batch, d.bags, d.dim);
  args.table_grad = operand(&v[7], m[7], d.dtype, d.batch, d.rows, d.dim);
  args.weights_grad = entries_operand(&v[8], m[8], value, &d);
  args.report = report;
  sheaf_plan *plan = NULL;
  *status = sheaf_embedding_select(&d, NULL, &plan);
  if (*status == SHEAF_OK) { /* a grouping is made for what it reports */
    size_t bytes = t->kind == GROUP ? sheaf_grouping_size(plan) : sheaf_plan_workspace_size(plan);
    void *workspace = bytes ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
    *status = t->kind == GROUP ? sheaf_embedding_grouping_build(plan, workspace, bytes, NULL, &args)
                               : sheaf_embedding_run(plan, workspace, bytes, NULL, &args);
    free(workspace);
  }
  sheaf_plan_free(plan);
}

static void run_segment(const task *t, sheaf_index_report *report, sheaf_status *status)
{
  sheaf_segment_desc d = t->segment;
  const shf_matrix *m = t->operands;
  view v[OPERANDS];
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  d.device = (DLDevice){kDLCPU, 0};
  d.bad_index = SHEAF_BAD_INDEX_SKIP;
#define SHEAF_X(name) AT_##name,
  enum { SHEAF_SEGMENT_OPERAND_LIST(SHEAF_X) SEGMENT_OPERANDS };
#undef SHEAF_X
  args.data = operand(&v[0], m[AT_data], d.dtype, d.batch, d.rows, d.dim);
  args.ids = operand(&v[1], m[AT_ids], d.index_dtype, d.batch, d.rows, -1);
  args.grad_out = operand(&v[2], m[AT_grad_out], d.dtype, d.batch, d.segments, d.dim);
  args.out = operand(&v[3], m[AT_out], d.dtype, d.batch, d.segments, d.dim);
  args.arg = operand(&v[4], m[AT_arg], d.index_dtype, d.batch, d.segments, d.dim);
  args.data_grad = operand(&v[5], m[AT_data_grad], d.dtype, d.batch, d.rows, d.dim);
  args.report = report;
  sheaf_plan *plan = NULL;
  *status = sheaf_segment_select(&d, NULL, &plan);
  if (*status == SHEAF_OK) {
    size_t bytes = sheaf_plan_workspace_size(plan);
    void *workspace = bytes ? aligned_alloc(64, bytes) : NULL;
    *status = sheaf_segment_run(plan, workspace, bytes, NULL, &args);
    free(workspace);
  }
  sheaf_plan_free(plan);
}

/* Values that the CPU refuses are skipped there too, as far as the report goes: nothing of the outputs is defined. */
static void do_run(const task *t)
{
  sheaf_index_report report = {0, -1, 0};
  sheaf_status status;
  if (t->category == SHEAF_CATEGORY_EMBEDDING)
    run_embedding(t, &report, &status);
  else
    run_segment(t, &report, &status);
  if (status != SHEAF_OK) {
    sheaf_error_info info = sheaf_last_error_info();
    if (info.count != 1) {
      fprintf(stderr, "the paper device cannot run this: %s\n", sheaf_last_error());
      abort();
    }
    report = (sheaf_index_report){-1, info.position, info.value};
  }
  if (t->report) *t->report = report;
}

/* ---- Groupings ---- */

static void do_group(const task *t)
{
  const sheaf_embedding_desc *d = &t->embedding;
  const shf_matrix *m = &t->operands[d->kind == SHEAF_BAG_MAX_BACKWARD ? 6 : 1];
  int64_t entries = grouped_entries(d), columns = d->kind == SHEAF_BAG_MAX_BACKWARD ? d->dim : entries;
  for (int64_t i = 0; i < entries; i++) {
    const char *from = m->data + i / columns * m->row_stride;
    int64_t row = d->index_dtype == SHEAF_I64 ? ((const int64_t *)(const void *)from)[i % columns]
                                              : ((const int32_t *)(const void *)from)[i % columns];
    t->grouping[i] = row < 0 || row >= d->rows || (d->has_padding && row == d->padding_idx) ? -1 : row;
  }
  do_run(t);
}

static int compare_rows(const void *a, const void *b)
{
  int64_t first = *(const int64_t *)a, second = *(const int64_t *)b;
  return (first > second) - (first < second);
}

/* The rows of a grouping, each once, in order; returns how many. */
static int64_t list_rows(const int64_t *grouping, int64_t entries, int64_t **list)
{
  int64_t count = 0, *rows = malloc((size_t)(entries + 1) * sizeof *rows);
  if (!rows) abort();
  memcpy(rows, grouping, (size_t)entries * sizeof *rows);
  qsort(rows, (size_t)entries, sizeof *rows, compare_rows);
  for (int64_t i = 0; i < entries; i++)
    if (rows[i] >= 0 && (count == 0 || rows[i] != rows[count - 1])) rows[count++] = rows[i];
  *list = rows;
  return count;
}

static void do_count_rows(const task *t)
{
  int64_t *list;
  *t->rows.count = list_rows(t->rows.grouping, grouped_entries(&t->embedding), &list);
  free(list);
}

static void do_number_rows(const task *t)
{
  const int64_t *from = t->rows.grouping;
  int64_t *list, *to = t->rows.compact_grouping, entries = grouped_entries(&t->embedding);
  int64_t count = list_rows(from, entries, &list);
  for (int64_t i = 0; i < count; i++) {
    if (t->rows.ids_wide)
      ((int64_t *)t->rows.ids)[i] = list[i];
    else
      ((int32_t *)t->rows.ids)[i] = (int32_t)list[i];
  }
  for (int64_t i = 0; i < entries; i++) {
    const int64_t *found = from[i] < 0 ? NULL : bsearch(&from[i], list, (size_t)count, sizeof *list, compare_rows);
    to[i] = found ? found - list : -1;
  }
  free(list);
}

/* ---- Element by element ---- */

static double load(const void *data, sheaf_dtype dtype, int64_t i)
{
  switch (dtype) {
  case SHEAF_F64:
    return ((const double *)data)[i];
  case SHEAF_F16:
    return (double)sheaf_f16_to_f32(((const uint16_t *)data)[i]);
  case SHEAF_BF16:
    return (double)sheaf_bf16_to_f32(((const uint16_t *)data)[i]);
  case SHEAF_I32:
    return (double)((const int32_t *)data)[i];
  default:
    return (double)((const float *)data)[i];
  }
}

static void store(void *data, sheaf_dtype dtype, int64_t i, double x)
{
  if (dtype == SHEAF_F64) ((double *)data)[i] = x;
  if (dtype == SHEAF_F32) ((float *)data)[i] = (float)x;
  if (dtype == SHEAF_F16) ((uint16_t *)data)[i] = sheaf_f32_to_f16((float)x);
  if (dtype == SHEAF_BF16) ((uint16_t *)data)[i] = sheaf_f32_to_bf16((float)x);
  if (dtype == SHEAF_I64) ((int64_t *)data)[i] = (int64_t)x;
}

static void map_one(const shf_device_map *m, int64_t a, int64_t b, int64_t out)
{
  size_t bytes = (size_t)(m->to == SHEAF_U8 ? 1 : sheaf_dtype_row_bytes(m->to, 1));
  switch (m->kind) {
  case SHF_MAP_COPY:
    memcpy((char *)m->out + out * (int64_t)bytes, (const char *)m->a + a * (int64_t)bytes, bytes);
    break;
  case SHF_MAP_CAST:
    store(m->out, m->to, out, load(m->a, m->from, a));
    break;
  case SHF_MAP_ADD:
    if (m->to == SHEAF_F64)
      store(m->out, m->to, out, __builtin_fma(m->alpha, load(m->b, m->to, b), load(m->a, m->to, a)));
    else
      store(m->out, m->to, out,
            (double)__builtin_fmaf((float)m->alpha, (float)load(m->b, m->to, b), (float)load(m->a, m->to, a)));
    break;
  case SHF_MAP_FILL:
    store(m->out, m->to, out, m->alpha);
  }
}

static void do_map(const shf_device_map *m)
{
  int64_t at[SHF_MAP_RANK] = {0}, count = 1;
  for (int d = 0; d < m->rank; d++) count *= m->extent[d];
  for (int64_t i = 0; i < count; i++) {
    int64_t a = 0, b = 0, out = 0, rest = i;
    for (int d = m->rank - 1; d >= 0; d--) {
      at[d] = rest % m->extent[d];
      rest /= m->extent[d];
      int64_t place = at[d];
      b += place * m->b_step[d];
      if (d == 0 && m->index)
        place = m->index_wide ? ((const int64_t *)m->index)[place] : ((const int32_t *)m->index)[place];
      a += place * m->a_step[d];
      out += place * m->out_step[d];
    }
    map_one(m, a, b, out);
  }
}

/* ---- Doing it ---- */

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void do_task(const task *t)
{
  switch (t->kind) {
  case COPY:
    memcpy(t->to, t->from, t->bytes);
    break;
  case FILL:
    memset(t->to, t->value, t->bytes);
    break;
  case RUN:
    do_run(t);
    break;
  case GROUP:
    do_group(t);
    break;
  case COUNT_ROWS:
    do_count_rows(t);
    break;
  case NUMBER_ROWS:
    do_number_rows(t);
    break;
  case MAP:
    do_map(&t->map);
    break;
  case DROP:
    drop(t->to);
    break;
  case MOMENT:
    *(double *)t->to = now();
  }
}

/* `lost`: the device is gone, and with it what it was to do; memory is freed all the same. */
static void do_all_but(int lost)
{
  protect_all(PROT_READ | PROT_WRITE);
  while (first_task) {
    task *t = first_task;
    if (!lost || t->kind == DROP) do_task(t);
    first_task = t->next;
    if (!first_task) last_task = &first_task;
    free(t);
  }
  protect_all(PROT_NONE);
}

static void do_all(void) { do_all_but(0); }

/* ---- The table ---- */

static sheaf_status count(int *devices)
{
  *devices = 2;
  return SHEAF_OK;
}

static sheaf_status info(int device, sheaf_device_info *about)
{
  (void)device;
  pthread_mutex_lock(&lock);
  do_all(); /* what is being freed is not in use */
  *about = (sheaf_device_info){.name = "a device of paper", .major = 9, .processors = 1, .memory_bytes = bytes_in_use};
  return done();
}

static sheaf_status arch(int device, sheaf_arch *found)
{
  (void)device;
  *found = SHEAF_ARCH_SM90;
  return SHEAF_OK;
}

static sheaf_status sizes(const shf_device_problem *problem, shf_device_sizes *found)
{
  *found = (shf_device_sizes){.workspace = 192};
  const sheaf_embedding_desc *d = problem->embedding;
  if (d && (d->kind == SHEAF_LOOKUP_BACKWARD || d->kind == SHEAF_BAG_SUM_BACKWARD ||
            d->kind == SHEAF_BAG_MEAN_BACKWARD || d->kind == SHEAF_BAG_MAX_BACKWARD))
    found->grouping = found->grouping_read = grouped_entries(d) * 8 + 64;
  return SHEAF_OK;
}

static sheaf_status prepare(const shf_device_problem *problem)
{
  (void)problem;
  BEGIN_STEP();
  return done();
}

static task *enqueue_call(step kind, const shf_device_call *call)
{
  task *t = enqueue(kind);
  t->category = call->problem.category;
  if (call->problem.embedding) t->embedding = *call->problem.embedding;
  if (call->problem.segment) t->segment = *call->problem.segment;
  int operands = call->problem.embedding ? 9 : 6;
  memcpy(t->operands, call->operands, (size_t)operands * sizeof *t->operands);
  t->report = call->report;
  return t;
}

static sheaf_status run(const shf_device_call *call)
{
  BEGIN_STEP();
  task *t = enqueue_call(RUN, call);
  union {
    const void *given;
    int64_t *own;
  } grouping = {call->grouping};
  t->grouping = grouping.own;
  return done();
}

static sheaf_status group(const shf_device_call *call, void *grouping)
{
  BEGIN_STEP();
  if (!call->problem.embedding || call->problem.batch > 1) abort(); /* nobody makes others */
  enqueue_call(GROUP, call)->grouping = grouping;
  return done();
}

static sheaf_status enqueue_rows(step kind, const shf_device_rows *given)
{
  BEGIN_STEP();
  task *t = enqueue(kind);
  t->rows = *given;
  t->embedding = *given->whole;
  return done();
}

static sheaf_status count_rows(const shf_device_rows *given) { return enqueue_rows(COUNT_ROWS, given); }
static sheaf_status number_rows(const shf_device_rows *given) { return enqueue_rows(NUMBER_ROWS, given); }

static sheaf_status allocate(int device, size_t bytes, void **memory)
{
  (void)device;
  BEGIN_STEP();
  sheaf_status status = bytes ? take(bytes, memory) : SHEAF_OK;
  pthread_mutex_unlock(&lock);
  return status;
}

static sheaf_status release(int device, void *memory)
{
  (void)device;
  pthread_mutex_lock(&lock);
  do_all();
  drop(memory);
  return done();
}

static sheaf_status copy(int device, void *to, const void *from, size_t bytes, void *stream)
{
  (void)device;
  (void)stream;
  BEGIN_STEP();
  task *t = enqueue(COPY);
  t->to = to;
  t->from = from;
  t->bytes = bytes;
  return done();
}

static sheaf_status fill(int device, void *memory, int value, size_t bytes, void *stream)
{
  (void)device;
  (void)stream;
  BEGIN_STEP();
  task *t = enqueue(FILL);
  t->to = memory;
  t->value = value;
  t->bytes = bytes;
  return done();
}

static sheaf_status thing_make(int device, void **thing)
{
  (void)device;
  BEGIN_STEP();
  *thing = calloc(1, sizeof(double));
  if (!*thing) abort();
  return done();
}

static sheaf_status thing_free(int device, void *thing)
{
  (void)device;
  pthread_mutex_lock(&lock);
  do_all();
  free(thing);
  return done();
}

static sheaf_status stream_wait(int device, void *stream)
{
  (void)device;
  (void)stream;
  pthread_mutex_lock(&lock);
  int lost = tears();
  do_all_but(lost);
  pthread_mutex_unlock(&lock);
  return lost ? fail(SHEAF_DEVICE, "the paper device was torn to pieces") : SHEAF_OK;
}

static sheaf_status event_record(int device, void *event, void *stream)
{
  (void)device;
  (void)stream;
  BEGIN_STEP();
  enqueue(MOMENT)->to = event;
  return done();
}

static sheaf_status event_elapsed(int device, void *begin, void *end, double *seconds)
{
  (void)device;
  BEGIN_STEP();
  *seconds = *(double *)end - *(double *)begin;
  return done();
}

static sheaf_status graph_begin(int device, void *stream)
{
  (void)device;
  (void)stream;
  return fail(SHEAF_UNSUPPORTED, "the paper device has no graphs");
}

static sheaf_status graph_end(int device, void *stream, void **graph)
{
  (void)graph;
  return graph_begin(device, stream);
}

static sheaf_status graph_launch(int device, void *graph, void *stream)
{
  (void)graph;
  return graph_begin(device, stream);
}

static sheaf_status graph_free(int device, void *graph) { return graph_begin(device, graph); }

static sheaf_status map(const shf_device_map *m)
{
  BEGIN_STEP();
  enqueue(MAP)->map = *m;
  return done();
}

static sheaf_status pool_allocate(int device, size_t bytes, void *stream, void **memory)
{
  (void)stream;
  return allocate(device, bytes, memory);
}

static sheaf_status pool_release(int device, void *memory, void *stream)
{
  (void)device;
  (void)stream;
  pthread_mutex_lock(&lock);
  enqueue(DROP)->to = memory;
  return done();
}

static sheaf_status pool_trim(int device)
{
  (void)device;
  pthread_mutex_lock(&lock);
  do_all();
  return done();
}

enum { KINDS = 28, ROWS = KINDS * 6 * 2 };
static shf_kernel_row rows[ROWS];

static shf_device_api api = {{SHF_DEVICE_ABI, SHEAF_VERSION_STRING},
                             rows,
                             0,
                             count,
                             info,
                             arch,
                             sizes,
                             prepare,
                             run,
                             group,
                             allocate,
                             release,
                             copy,
                             fill,
                             thing_make,
                             thing_free,
                             stream_wait,
                             thing_make,
                             thing_free,
                             event_record,
                             event_elapsed,
                             graph_begin,
                             graph_end,
                             graph_launch,
                             graph_free,
                             map,
                             pool_allocate,
                             pool_release,
                             pool_trim,
                             count_rows,
                             number_rows,
                             NULL, /* tensors over ranks are not tried on it */
                             NULL,
                             NULL,
                             NULL};

static void add_rows(sheaf_category category, int kind)
{
  static const sheaf_dtype elements[] = {SHEAF_F32, SHEAF_F64, SHEAF_F16, SHEAF_BF16, SHEAF_INT8, SHEAF_INT4};
  static const sheaf_dtype indices[] = {SHEAF_I32, SHEAF_I64};
  for (int e = 0; e < 6; e++)
    for (int i = 0; i < 2; i++)
      rows[api.row_count++] = (shf_kernel_row){.category = category,
                                               .kind = (uint16_t)kind,
                                               .element = elements[e],
                                               .index = indices[i],
                                               .arch = SHEAF_ARCH_SM90};
}

__attribute__((visibility("default"))) const shf_plugin_head *sheaf_plugin(const shf_plugin_host *given);

const shf_plugin_head *sheaf_plugin(const shf_plugin_host *given)
{
  host = given;
  if (api.row_count == 0) {
    for (int kind = 0; kind < 8; kind++) add_rows(SHEAF_CATEGORY_EMBEDDING, kind);
    for (int kind = 0; kind < 20; kind++) add_rows(SHEAF_CATEGORY_SEGMENT, kind);
  }
  return &api.head;
}
