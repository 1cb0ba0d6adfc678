/* faults.h: computations through every op and layer, for tests in which their steps fail one after the other. */
#ifndef SHEAF_TESTS_FAULTS_H
#define SHEAF_TESTS_FAULTS_H

#include "tensors.h"

/* What the computations work on, made once, before anything fails. */
typedef struct fault_world {
  DLDevice device;
  sheaf_tensor *table, *tables, *weights, *indices, *offsets, *ids, *counts, *sparse, *packed, *nested, *hidden;
} fault_world;

fault_world make_fault_world(DLDevice device);

/* A computation gives the first status that was not OK, and leaves nothing behind, nor anything changed. */
typedef struct fault_case {
  const char *name;
  sheaf_status (*compute)(const fault_world *w);
} fault_case;

extern const fault_case fault_cases[];
extern const int fault_case_count;

#endif
