/* cli/bench_device_setup.h: a case of `sheaf bench --device cuda` made ready: data, plan and workspace. */
#ifndef SHEAF_CLI_BENCH_DEVICE_SETUP_H
#define SHEAF_CLI_BENCH_DEVICE_SETUP_H

#include "bench_device_case.h"

/* The device and what lives on it for as long as cases run. */
typedef struct bench_gpu {
  DLDevice device;
  void *stream, *begin, *end, *flush;
  char *values;        /* random numbers that tables and gradients are copied from, ... */
  size_t values_bytes; /* ... so many of them */
  char *arena;         /* what the operands of a case are taken from, NULL where the device is small, ... */
  size_t arena_bytes;  /* ... so large, ... */
  size_t arena_used;   /* ... so much of it by the case at hand */
  double copy;         /* bytes per second, read and written */
  bool text;
  json_t *results;
} bench_gpu;

/* What one case needs there; starts as zeros. */
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

/* Says what failed and the library's last error; 0, as all of these return where something failed. */
int bench_device_complain(const char *what);

/* Waits for the stream. */
int bench_device_wait(bench_gpu *g);

/* Operands, plan and workspace of a case. What was made by then is freed by `free`, after a failure too. */
int bench_setup_make(bench_gpu *g, const device_case *c, bench_setup *s);
void bench_setup_free(bench_gpu *g, bench_setup *s);

/* One run, enqueued; a row-sparse gradient waits for itself. */
sheaf_status bench_setup_run(bench_gpu *g, const device_case *c, bench_setup *s);

#define BENCH_TRY(call)                                          \
  do {                                                           \
    if ((call) != SHEAF_OK) return bench_device_complain(""), 0; \
  } while (0)

#endif
