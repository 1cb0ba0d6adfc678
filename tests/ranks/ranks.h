/* tests/ranks/ranks.h: what programs that run under mpirun share: a mesh, checks that end the job, random numbers.
 *
 * A check that fails prints where and aborts the process; mpirun then ends all ranks. (cmocka would go on with the next
 * test on this rank alone, and ranks would wait for each other.)
 *
 * Ranks are processes under mpirun. SHEAF_RANKS_ENGINE names another engine than MPI, SHEAF_RANKS_DEVICE=cuda puts all
 * tensors on the first CUDA device. tests/gpu/gpu_ranks.c runs the same programs as threads of one process; hence what
 * belongs to a rank is thread-local. */
#ifndef SHEAF_TESTS_RANKS_H
#define SHEAF_TESTS_RANKS_H

#include <sheaf/sheaf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition, ...)                                                                   \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      fprintf(stderr, "rank %d: %s:%d: %s: ", (int)ranks_rank, __FILE__, __LINE__, #condition); \
      fprintf(stderr, __VA_ARGS__);                                                             \
      fputc('\n', stderr);                                                                      \
      abort();                                                                                  \
    }                                                                                           \
  } while (0)
#define OK(call) CHECK((call) == SHEAF_OK, "%s", sheaf_last_error())

extern _Thread_local int64_t ranks_rank, ranks_size;
extern _Thread_local sheaf_comm *ranks_comm;
extern DLDevice ranks_device; /* of all tensors */

/* What a rank does: the program's. */
int ranks_main(int argc, char **argv);

/* Opens the communicator, unless it is open; call first. */
void ranks_open(void);
/* Closes it; returns main's exit code. */
int ranks_close(const char *name, int64_t checks);

/* A copy of a contiguous tensor's elements, to be freed; and all of its elements set. */
void *ranks_read(const DLTensor *tensor);
void ranks_write(const DLTensor *tensor, const void *data);

/* Meshes of all ranks to try: 1-D and, where the number allows it, 2-D. How many; each with its sizes. */
enum { RANKS_MAX_MESHES = 6 };
typedef struct ranks_mesh {
  int dims;
  int64_t size[2];
} ranks_mesh;
int ranks_meshes(ranks_mesh list[RANKS_MAX_MESHES]);

/* The range of dimension `d` that a rank has, worked out from the definition (chunks of ceil(n / parts), nested). */
void ranks_range(const ranks_mesh *mesh, const sheaf_placement *placements, int d, int64_t extent, int64_t rank,
                 int64_t *lo, int64_t *hi);

/* The strategy of a problem by which rows are dispatched; it lives as long as the list. */
const sheaf_strategy *ranks_dispatch_of(const sheaf_shard_problem *p, sheaf_strategy_list **list);

/* The same numbers on every rank. */
uint64_t ranks_random(uint64_t *state);

#endif
