/* graph_impl.h: traced calls as a graph of value ids. */
#ifndef SHF_GRAPH_IMPL_H
#define SHF_GRAPH_IMPL_H

#include "layers/layers_impl.h"

/* What a value was when it was traced; for reading only. */
typedef struct shf_value {
  sheaf_dtype dtype;
  sheaf_form form;
  int rank;
  int64_t extent[SHEAF_TENSOR_MAX_RANK];
} shf_value;

/* One call: ids of inputs, then of outputs; -1: not given. */
typedef struct shf_step {
  sheaf_op op;
  int inputs, outputs, attr_count;
  uint32_t wanted, batched;
  sheaf_keyset include;
  int64_t batch;
  sheaf_attr *attrs;
  int32_t ids[];
} shf_step;

/* A piece of memory that steps are cut from. */
typedef struct shf_graph_piece {
  struct shf_graph_piece *next;
  size_t bytes, used;
} shf_graph_piece;

struct sheaf_trace {
  shf_graph_piece *pieces; /* the newest first */
  shf_value *values;
  shf_step **steps;
  int32_t *inputs, *outputs; /* value ids */
  int value_count, value_room, step_count, step_room, input_count, input_room, output_count, output_room;
};

/* Room for one more in a list of the graph; OUT_OF_MEMORY otherwise. */
sheaf_status shf_graph_room(void **list, int count, int *room, size_t size);

/* Adds a step, and the step's memory. */
sheaf_status shf_graph_add_step(sheaf_trace *graph, sheaf_op op, int inputs, int outputs, int attrs, shf_step **step);
sheaf_status shf_graph_add_value(sheaf_trace *graph, const shf_value *value, int32_t *id);

/* Values that calls made and none took, in order. */
sheaf_status shf_graph_find_outputs(sheaf_trace *graph);

#endif
