/* gpu_support.c: generated problems run on a CUDA device, and memory there. */
#include "gpu_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SKIPPED = 77, GUARD = 64, ALIGNMENT = 256, MOST_PIECES = 4096, NOISE = 0xA5 };

const DLDevice gpu = {kDLCUDA, 0};

static void *pieces[MOST_PIECES];
static int piece_count;
static unsigned char *arena;
static size_t arena_bytes, arena_used;
static void *stream;

void gpu_must(sheaf_status status, const char *what)
{
  if (status == SHEAF_OK) {
    return;
  }
  fprintf(stderr, "%s: %s: %s\n", what, sheaf_status_name(status), sheaf_last_error());
  exit(1);
}

void gpu_require(void)
{
  int count = 0;
  const sheaf_status status = sheaf_device_count(kDLCUDA, &count);
  if (status == SHEAF_OK && count > 0) {
    return;
  }
  printf("skipped: %s\n", status == SHEAF_OK ? "no CUDA device" : sheaf_last_error());
  exit(SKIPPED);
}

void *gpu_stream(void)
{
  if (stream == NULL) {
    gpu_must(sheaf_stream_make(gpu, &stream), "stream");
  }
  return stream;
}

static void *new_piece(size_t bytes)
{
  void *memory = NULL;
  gpu_must(sheaf_device_alloc(gpu, bytes, &memory), "alloc");
  if (piece_count == MOST_PIECES) {
    fprintf(stderr, "too many pieces of device memory\n");
    exit(1);
  }
  pieces[piece_count++] = memory;
  return memory;
}

void *gpu_alloc(size_t bytes)
{
  static int separate = -1;
  if (separate < 0) {
    const char *wish = getenv("SHEAF_GPU_SEPARATE");
    separate = wish != NULL && *wish == '1';
  }
  if (bytes == 0) {
    bytes = 1;
  }
  if (separate || bytes > ((size_t)64 << 20)) {
    return new_piece(bytes);
  }
  if (arena == NULL) {
    void *memory = NULL;
    arena_bytes = (size_t)1 << 30;
    gpu_must(sheaf_device_alloc(gpu, arena_bytes, &memory), "alloc");
    arena = memory;
  }
  const size_t whole = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (arena_used + whole > arena_bytes) {
    return new_piece(bytes);
  }
  arena_used += whole;
  return arena + arena_used - whole;
}

void gpu_free_all(void)
{
  for (int i = 0; i < piece_count; i++) {
    gpu_must(sheaf_device_free(gpu, pieces[i]), "free");
  }
  piece_count = 0;
  arena_used = 0;
}

void gpu_upload(void *to, const void *from, size_t bytes)
{
  gpu_must(sheaf_device_copy(gpu, to, from, bytes, gpu_stream()), "copy");
  gpu_must(sheaf_stream_wait(gpu, gpu_stream()), "wait");
}

void gpu_download(void *to, const void *from, size_t bytes) { gpu_upload(to, from, bytes); }

/* ---- Problems ---------------------------------------------------------------------------------------------------- */

typedef struct device_problem {
  unsigned char *memory[PROBLEM_OPERANDS]; /* whole operands, gaps and guards too */
  DLTensor tensor[PROBLEM_OPERANDS];
  sheaf_operand operand[PROBLEM_OPERANDS];
  sheaf_index_report *report;
} device_problem;

static void put_outputs(problem *p, device_problem *d)
{
  const sheaf_index_report unset = {-77, -77, -77};
  for (int at = 0; at < PROBLEM_OPERANDS; at++) {
    if (p->operand[at].given && p->operand[at].output) {
      gpu_upload(d->memory[at], p->operand[at].memory, p->operand[at].memory_bytes);
    }
  }
  gpu_upload(d->report, &unset, sizeof unset);
}

static void put_inputs(problem *p, device_problem *d)
{
  for (int at = 0; at < PROBLEM_OPERANDS; at++) {
    if (p->operand[at].given && !p->operand[at].output) {
      gpu_upload(d->memory[at], p->operand[at].memory, p->operand[at].memory_bytes);
    }
  }
}

static void put_problem(problem *p, device_problem *d)
{
  memset(d, 0, sizeof *d);
  d->report = gpu_alloc(sizeof *d->report);
  for (int at = 0; at < PROBLEM_OPERANDS; at++) {
    const problem_operand *operand = &p->operand[at];
    if (!operand->given) {
      continue;
    }
    d->memory[at] = gpu_alloc(operand->memory_bytes);
    d->tensor[at] = operand->tensor;
    d->tensor[at].device = gpu;
    d->tensor[at].data = d->memory[at] + ((const unsigned char *)operand->tensor.data - operand->memory);
    d->operand[at].tensor = &d->tensor[at];
    d->operand[at].bytes = p->spec.trust_shape ? 0 : operand->data_bytes;
  }
  put_inputs(p, d);
  put_outputs(p, d);
}

static bool get_outputs(problem *p, device_problem *d, problem_outputs *outputs)
{
  for (int at = 0; at < PROBLEM_OPERANDS; at++) {
    if (outputs->operand[at].given) {
      gpu_download(outputs->operand[at].memory, d->memory[at], p->operand[at].memory_bytes);
    }
  }
  gpu_download(&outputs->report, d->report, sizeof outputs->report);
  return true;
}

static sheaf_status select_plan(problem *p, bool grouping, sheaf_plan **plan)
{
  if (p->spec.category == SHEAF_CATEGORY_EMBEDDING) {
    sheaf_embedding_desc desc = p->embedding;
    desc.device = gpu;
    desc.grouping_given = grouping;
    return sheaf_embedding_select(&desc, NULL, plan);
  }
  sheaf_segment_desc desc = p->segment;
  desc.device = gpu;
  desc.grouping_given = grouping;
  return sheaf_segment_select(&desc, NULL, plan);
}

/* Enqueues the run, or with `build` the making of its grouping. */
static sheaf_status enqueue(problem *p, device_problem *d, const sheaf_plan *plan, void *workspace, void *grouping,
                            bool build)
{
  const size_t bytes = sheaf_plan_workspace_size(plan), grouping_bytes = grouping ? sheaf_grouping_size(plan) : 0;
  sheaf_index_report *report = p->spec.want_report ? d->report : NULL;
  int at = 0;
  if (p->spec.category == SHEAF_CATEGORY_EMBEDDING) {
    sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
#define SHEAF_X(name) args.name = d->operand[at++];
    SHEAF_EMBEDDING_OPERAND_LIST(SHEAF_X)
#undef SHEAF_X
    args.report = report;
    if (build) {
      return sheaf_embedding_grouping_build(plan, grouping, grouping_bytes, gpu_stream(), &args);
    }
    args.grouping = grouping;
    args.grouping_bytes = grouping_bytes;
    return sheaf_embedding_run(plan, workspace, bytes, gpu_stream(), &args);
  }
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
#define SHEAF_X(name) args.name = d->operand[at++];
  SHEAF_SEGMENT_OPERAND_LIST(SHEAF_X)
#undef SHEAF_X
  args.report = report;
  if (build) {
    return sheaf_segment_grouping_build(plan, grouping, grouping_bytes, gpu_stream(), &args);
  }
  args.grouping = grouping;
  args.grouping_bytes = grouping_bytes;
  return sheaf_segment_run(plan, workspace, bytes, gpu_stream(), &args);
}

/* Device memory full of noise with a guard behind it. */
static unsigned char *noisy_memory(size_t bytes)
{
  unsigned char *memory = gpu_alloc(bytes + GUARD);
  gpu_must(sheaf_device_fill(gpu, memory, NOISE, bytes + GUARD, gpu_stream()), "fill");
  return memory;
}

static bool guard_intact(const unsigned char *memory, size_t bytes, const char *what)
{
  unsigned char guard[GUARD];
  gpu_download(guard, memory + bytes, GUARD);
  for (int i = 0; i < GUARD; i++) {
    if (guard[i] != NOISE) {
      fprintf(stderr, "byte %d behind the %s of %zu was written\n", i, what, bytes);
      return false;
    }
  }
  return true;
}

/* Captures the run, launches it twice with the outputs put back in between, and the inputs of `changed` (NULL: its own). */
static sheaf_status run_graph(problem *p, problem *changed, device_problem *d, const sheaf_plan *plan, void *workspace)
{
  void *graph = NULL;
  gpu_must(sheaf_stream_wait(gpu, gpu_stream()), "wait");
  gpu_must(sheaf_graph_begin(gpu, gpu_stream()), "capture");
  const sheaf_status status = enqueue(p, d, plan, workspace, NULL, false);
  gpu_must(sheaf_graph_end(gpu, gpu_stream(), &graph), "capture");
  for (int i = 0; i < 2 && status == SHEAF_OK; i++) {
    if (i == 1 && changed != NULL) {
      put_inputs(changed, d);
    }
    put_outputs(i == 1 && changed != NULL ? changed : p, d);
    gpu_must(sheaf_graph_launch(gpu, graph, gpu_stream()), "graph");
  }
  gpu_must(sheaf_stream_wait(gpu, gpu_stream()), "wait for the graph");
  gpu_must(sheaf_graph_free(gpu, graph), "graph");
  return status;
}

static bool have_same_shapes(const problem *a, const problem *b)
{
  for (int at = 0; at < PROBLEM_OPERANDS; at++) {
    const problem_operand *first = &a->operand[at], *second = &b->operand[at];
    if (first->given != second->given || first->memory_bytes != second->memory_bytes ||
        (const unsigned char *)first->tensor.data - first->memory !=
            (const unsigned char *)second->tensor.data - second->memory) {
      return false;
    }
  }
  return a->embedding.row_begin == b->embedding.row_begin && a->embedding.padding_idx == b->embedding.padding_idx;
}

static sheaf_status run_way(problem *p, problem *changed, problem_outputs *outputs, gpu_way way, bool *groups)
{
  device_problem d;
  sheaf_plan *plan = NULL;
  unsigned char *grouping = NULL;
  put_problem(p, &d);
  sheaf_status status = select_plan(p, false, &plan);
  const size_t grouping_bytes = status == SHEAF_OK ? sheaf_grouping_size(plan) : 0;
  if (groups != NULL) {
    *groups = grouping_bytes > 0;
  }
  bool intact = true;
  if (status == SHEAF_OK && way == GPU_GROUPED && grouping_bytes > 0) {
    grouping = noisy_memory(grouping_bytes);
    status = enqueue(p, &d, plan, NULL, grouping, true);
    intact = guard_intact(grouping, grouping_bytes, "grouping");
    sheaf_plan_free(plan);
    plan = NULL;
    put_outputs(p, &d); /* the report too */
    if (status == SHEAF_OK) {
      status = select_plan(p, true, &plan);
    }
  }
  if (status == SHEAF_OK) {
    const size_t bytes = sheaf_plan_workspace_size(plan);
    unsigned char *workspace = noisy_memory(bytes);
    status = way == GPU_GRAPH ? run_graph(p, changed, &d, plan, workspace)
                              : enqueue(p, &d, plan, workspace, grouping, false);
    if (status == SHEAF_OK) {
      intact = guard_intact(workspace, bytes, "workspace") && intact;
      get_outputs(p, &d, outputs);
    }
  }
  if (status != SHEAF_OK) {
    char text[512];
    fprintf(stderr, "on the device: %s: %s\n  problem %s\n", sheaf_status_name(status), sheaf_last_error(),
            problem_text(p, text, sizeof text));
  }
  sheaf_plan_free(plan);
  gpu_free_all();
  return status == SHEAF_OK && !intact ? SHEAF_INTERNAL : status;
}

sheaf_status gpu_run(problem *p, problem_outputs *outputs, gpu_way way, bool *groups)
{
  return run_way(p, NULL, outputs, way, groups);
}

sheaf_status gpu_replay(problem *p, problem *changed, problem_outputs *outputs)
{
  if (!have_same_shapes(p, changed)) {
    fprintf(stderr, "a replay needs problems of the same shapes\n");
    return SHEAF_INTERNAL;
  }
  return run_way(p, changed, outputs, GPU_GRAPH, NULL);
}
