/* fake_cuda.c: a plug-in in the place of libsheaf_cuda.so that has a device of paper, so that the layers above plug-ins
 * are tested where there is no GPU. It is stricter than a real one:
 *   - its memory can only be touched while it works: the host's hands on it are a crash;
 *   - what is enqueued is done when somebody waits, not before: who reads too early reads what was there;
 *   - memory that is freed is gone by the time that is done;
 *   - with SHEAF_PAPER_TEARS=n in the environment, its n-th step from then on fails (n from 0; freeing never does);
 *   - it says how much memory is in use as the memory it has.
 * It computes with a CPU library of its own (paper_run.c, paper_map.c), one thread at a time. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "paper.h"

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
    paper_run(t);
    break;
  case GROUP:
    paper_group(t);
    break;
  case COUNT_ROWS:
    paper_count_rows(t);
    break;
  case NUMBER_ROWS:
    paper_number_rows(t);
    break;
  case MAP:
    paper_map(&t->map);
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
    found->grouping = found->grouping_read = paper_entries(d) * 8 + 64;
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
