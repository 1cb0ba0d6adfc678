/* problem_run.h: generated problems run through the library. */
#ifndef SHEAF_TESTS_PROBLEM_RUN_H
#define SHEAF_TESTS_PROBLEM_RUN_H

#include "problem.h"

typedef struct problem_way {
  const char *kernel; /* NULL: the library's choice */
  int threads;
  bool grouping; /* build the grouping first, where the plan uses one */
} problem_way;

/* Selects, allocates a workspace full of noise (with a guard behind it), runs and frees. On failure the library's error
 * text is printed. `groups` (optional) says whether the plan uses a grouping. */
sheaf_status problem_run(problem *p, problem_outputs *outputs, const problem_way *way, bool *groups);

/* The steps of problem_run: a plan (`grouping`: desc.grouping_given), and one run of it with a workspace of its own. */
sheaf_status problem_select(const problem *p, const problem_way *way, bool grouping, sheaf_plan **plan);
sheaf_status problem_run_plan(problem *p, problem_outputs *outputs, const sheaf_plan *plan, const void *grouping,
                              size_t grouping_bytes);

#endif
