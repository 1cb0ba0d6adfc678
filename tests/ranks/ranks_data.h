/* tests/ranks/ranks_data.h: whole tensors that every rank knows, and their parts. */
#ifndef SHEAF_TESTS_RANKS_DATA_H
#define SHEAF_TESTS_RANKS_DATA_H

#include "ranks.h"

/* A whole tensor. */
typedef struct whole {
  sheaf_dtype dtype;
  int rank;
  int64_t shape[4];
  int64_t count;
  char *data;
  DLTensor view; /* of the data */
} whole;

whole *whole_make(sheaf_dtype dtype, int rank, const int64_t *shape);
void whole_free(whole *t);
double whole_get(const whole *t, int64_t at);
void whole_set(whole *t, int64_t at, double value);
int64_t whole_bytes(sheaf_dtype dtype);

/* This rank's part as a distributed tensor. Partial(sum): the first rank along a dimension has the value, others 0. */
sheaf_dtensor *whole_part(const whole *t, sheaf_mesh *mesh, const ranks_mesh *sizes, const sheaf_placement *placements);

/* The entries of the bags that S(0) over `bags` bags gives to this rank, placed by Bags where `placements` says so;
 * offsets are the whole ones. */
sheaf_dtensor *whole_ragged(const whole *t, const whole *offsets, sheaf_mesh *mesh, const ranks_mesh *sizes,
                            const sheaf_placement *placements);
/* The rank's offsets, from 0; with their end, they are placed by Bags as the entries are. */
sheaf_dtensor *whole_ragged_offsets(const whole *offsets, int64_t entries, int with_end, sheaf_mesh *mesh,
                                    const ranks_mesh *sizes, const sheaf_placement *placements);

/* Brings a distributed tensor together and compares it: bits, or within `tolerance` of the larger of 1 and the value. */
void whole_check(const whole *expected, const sheaf_dtensor *got, double tolerance, const char *what);

/* The same of a tensor of entries, which may be placed by Bags: then each rank compares its own. */
void whole_check_entries(const whole *expected, const whole *offsets, const sheaf_dtensor *got, const ranks_mesh *sizes,
                         double tolerance, const char *what);

/* Borrowed memory of wrapped tensors, freed by this. */
void whole_forget(void);

#endif
