/* tests/ranks/ranks.h: what programs that run under mpirun share: a mesh, checks that end the job, random numbers.
 *
 * A check that fails prints where and aborts the process; mpirun then ends all ranks. (cmocka would go on with the next
 * test on this rank alone, and ranks would wait for each other.) */
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

extern int64_t ranks_rank, ranks_size;
extern sheaf_comm *ranks_comm;

/* Opens MPI; call first in main. */
void ranks_open(void);
/* Closes it; returns main's exit code. */
int ranks_close(const char *name, int64_t checks);

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

/* The same numbers on every rank. */
uint64_t ranks_random(uint64_t *state);

#endif
