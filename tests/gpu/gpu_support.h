/* gpu_support.h: generated problems run on a CUDA device, and memory there. */
#ifndef SHEAF_TESTS_GPU_SUPPORT_H
#define SHEAF_TESTS_GPU_SUPPORT_H

#include <sheaf/device.h>

#include "support/problem.h"

extern const DLDevice gpu; /* the first CUDA device */

/* Ends the program, with the ctest code for a skipped test, when there is no device. */
void gpu_require(void);

/* Device memory, which ends the program when there is none. Freed all at once. With SHEAF_GPU_SEPARATE=1 every piece is
 * an allocation of its own, so that compute-sanitizer sees where each one ends; else they are cut from one. */
void *gpu_alloc(size_t bytes);
void gpu_free_all(void);

void *gpu_stream(void);

/* Both wait. */
void gpu_upload(void *to, const void *from, size_t bytes);
void gpu_download(void *to, const void *from, size_t bytes);

/* Ends the program with the library's sentence unless the status is OK. */
void gpu_must(sheaf_status status, const char *what);

/* How a problem is run. */
typedef enum gpu_way { GPU_PLAIN, GPU_GROUPED, GPU_GRAPH } gpu_way;

/* Runs a problem from device copies of its operands and copies outputs (with gaps and guards) and report back. GRAPH:
 * the first launch of the plan is captured; the graph is launched twice, outputs being put back in between. `groups`
 * (optional) says whether the op uses a grouping. */
sheaf_status gpu_run(problem *p, problem_outputs *outputs, gpu_way way, bool *groups);

/* Captures the run of a problem and launches it, then again with the inputs of another problem of the same shapes in place
 * of its own; `outputs` gets those of the second. */
sheaf_status gpu_replay(problem *p, problem *changed, problem_outputs *outputs);

#endif
