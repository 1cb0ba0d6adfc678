/* problem_run.c: generated problems run through the library. */
#include "problem_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

/* 64-byte aligned memory full of noise with a guard of as many bytes behind it. */
static unsigned char *noisy_memory(size_t bytes)
{
  const size_t whole = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + ALIGNMENT;
  unsigned char *memory = aligned_alloc(ALIGNMENT, whole);
  if (memory == NULL) {
    abort();
  }
  memset(memory, 0xA5, whole);
  return memory;
}

static bool guard_intact(const unsigned char *memory, size_t bytes)
{
  for (size_t i = 0; i < ALIGNMENT; i++) {
    if (memory[bytes + i] != 0xA5) {
      fprintf(stderr, "byte %zu behind a memory of %zu was written\n", i, bytes);
      return false;
    }
  }
  return true;
}

sheaf_status problem_select(const problem *p, const problem_way *way, bool grouping, sheaf_plan **plan)
{
  sheaf_preference preference = SHEAF_PREFERENCE_INIT;
  preference.kernel = way->kernel;
  preference.threads = way->threads;
  if (p->spec.category == SHEAF_CATEGORY_EMBEDDING) {
    sheaf_embedding_desc desc = p->embedding;
    desc.grouping_given = grouping;
    return sheaf_embedding_select(&desc, &preference, plan);
  }
  sheaf_segment_desc desc = p->segment;
  desc.grouping_given = grouping;
  return sheaf_segment_select(&desc, &preference, plan);
}

static sheaf_status build_grouping(problem *p, problem_outputs *outputs, const sheaf_plan *plan, void *memory,
                                   size_t bytes)
{
  if (p->spec.category == SHEAF_CATEGORY_EMBEDDING) {
    const sheaf_embedding_args args = problem_embedding_args(p, outputs);
    return sheaf_embedding_grouping_build(plan, memory, bytes, NULL, &args);
  }
  const sheaf_segment_args args = problem_segment_args(p, outputs);
  return sheaf_segment_grouping_build(plan, memory, bytes, NULL, &args);
}

sheaf_status problem_run_plan(problem *p, problem_outputs *outputs, const sheaf_plan *plan, const void *grouping,
                              size_t grouping_bytes)
{
  const size_t bytes = sheaf_plan_workspace_size(plan);
  unsigned char *workspace = noisy_memory(bytes);
  sheaf_status status;
  if (p->spec.category == SHEAF_CATEGORY_EMBEDDING) {
    sheaf_embedding_args args = problem_embedding_args(p, outputs);
    args.grouping = grouping;
    args.grouping_bytes = grouping_bytes;
    status = sheaf_embedding_run(plan, bytes > 0 ? workspace : NULL, bytes, NULL, &args);
  } else {
    sheaf_segment_args args = problem_segment_args(p, outputs);
    args.grouping = grouping;
    args.grouping_bytes = grouping_bytes;
    status = sheaf_segment_run(plan, bytes > 0 ? workspace : NULL, bytes, NULL, &args);
  }
  if (status == SHEAF_OK && !guard_intact(workspace, bytes)) {
    status = SHEAF_INTERNAL;
  }
  free(workspace);
  return status;
}

sheaf_status problem_run(problem *p, problem_outputs *outputs, const problem_way *way, bool *groups)
{
  sheaf_plan *plan = NULL;
  sheaf_status status = problem_select(p, way, false, &plan);
  const size_t grouping_bytes = status == SHEAF_OK ? sheaf_grouping_size(plan) : 0;
  if (groups != NULL) {
    *groups = grouping_bytes > 0;
  }
  if (status == SHEAF_OK && way->grouping && grouping_bytes > 0) {
    unsigned char *grouping = noisy_memory(grouping_bytes);
    status = build_grouping(p, outputs, plan, grouping, grouping_bytes);
    sheaf_plan_free(plan);
    plan = NULL;
    if (status == SHEAF_OK && !guard_intact(grouping, grouping_bytes)) {
      status = SHEAF_INTERNAL;
    }
    if (status == SHEAF_OK) {
      outputs->report = (sheaf_index_report){-77, -77, -77};
      status = problem_select(p, way, true, &plan);
    }
    if (status == SHEAF_OK) {
      status = problem_run_plan(p, outputs, plan, grouping, grouping_bytes);
    }
    free(grouping);
  } else if (status == SHEAF_OK) {
    status = problem_run_plan(p, outputs, plan, NULL, 0);
  }
  sheaf_plan_free(plan);
  if (status != SHEAF_OK) {
    char text[512];
    fprintf(stderr, "%s, %d threads: %s: %s\n  problem %s\n", way->kernel != NULL ? way->kernel : "(any kernel)",
            way->threads, sheaf_status_name(status), sheaf_last_error(), problem_text(p, text, sizeof text));
  }
  return status;
}
