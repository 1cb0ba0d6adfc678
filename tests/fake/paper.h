/* paper.h: what the device of paper (fake_cuda.c) is asked to do, and who computes it.
 *
 * It computes with a CPU library of its own, on memory that is open while it works. */
#ifndef SHEAF_TESTS_PAPER_H
#define SHEAF_TESTS_PAPER_H

#include "core/device_api.h"

enum { OPERANDS = 9 };

typedef enum step { COPY, FILL, RUN, GROUP, COUNT_ROWS, NUMBER_ROWS, MAP, DROP, MOMENT } step;

/* What the device is to do, in order. */
typedef struct task {
  step kind;
  void *to;
  const void *from;
  size_t bytes;
  int value;
  sheaf_embedding_desc embedding;
  sheaf_segment_desc segment;
  sheaf_category category;
  shf_matrix operands[OPERANDS];
  sheaf_index_report *report;
  int64_t *grouping;
  shf_device_map map;
  shf_device_rows rows;
  struct task *next;
} task;

/* A run, by a plan for the CPU. */
void paper_run(const task *t);

/* A grouping here is the row of every entry, in order of entries: the number of a row, or -1. How many there are;
 * making it, counting its rows, and giving these numbers of their own. */
int64_t paper_entries(const sheaf_embedding_desc *d);
void paper_group(const task *t);
void paper_count_rows(const task *t);
void paper_number_rows(const task *t);

/* Element by element. */
void paper_map(const shf_device_map *m);

#endif
