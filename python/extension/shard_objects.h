/* shard_objects.h: what the files about sharding share. */
#ifndef SHEAF_SHARD_OBJECTS_H
#define SHEAF_SHARD_OBJECTS_H

#include "extension.h"

/* Placements by name ("R", "S(0)" ...), one per mesh dimension; a single one may stand alone. */
int parse_placements(PyObject *value, const char *name, int dims, sheaf_placement *placements);
PyObject *placements_tuple(const sheaf_placement *placements, int dims);
int parse_profile(PyObject *value, sheaf_mesh_profile *profile);
PyObject *strategy_dict(const sheaf_strategy *strategy, int dims);

typedef struct mesh_object {
  PyObject_HEAD
  PyObject *keep; /* the communicator object of the caller's (mpi4py's) */
  sheaf_comm *comm;
  sheaf_mesh *mesh;
} mesh_object;

/* A tensor spread over a mesh: memory of its own, or around an array of the caller's. */
typedef struct dtensor_object {
  PyObject_HEAD
  mesh_object *mesh;
  sheaf_dtensor *tensor;
  int wraps;
  array local; /* when it wraps one */
} dtensor_object;

/* Takes `tensor` over. */
PyObject *dtensor_new(mesh_object *mesh, sheaf_dtensor *tensor);

/* run_embedding and run_segment (shard_run.c). */
int add_shard_run_functions(PyObject *module);

#endif
