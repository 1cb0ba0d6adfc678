/* cli/demo.h: the parts of `sheaf demo`: data, the machine's bandwidth, operations and their checks. */
#ifndef SHEAF_CLI_DEMO_H
#define SHEAF_CLI_DEMO_H

#include <sheaf/sheaf.h>
#include <stdbool.h>

enum { DEMO_DIM = 128, DEMO_INDEX_SETS = 4 };

/* Where it runs, when not on the CPU: a copy of the block there (NULL: none), a stream, and two moments on it. */
typedef struct demo_device {
  DLDevice device;
  char *block;
  void *stream, *begin, *end;
} demo_device;

/* What everything runs on. Segment operations take the table as their data and `grad` as its gradient. */
typedef struct demo_data {
  int threads;
  int64_t rows;     /* of the table, and of segment data */
  int64_t lookups;  /* indices of a plain lookup */
  int64_t bags, bag_length;
  int64_t segments;
  float *table;     /* [rows, DEMO_DIM] */
  float *grad;      /* [rows, DEMO_DIM] */
  float *out, *dout; /* as many rows as the largest result has */
  int64_t *arg;
  int64_t *indices[DEMO_INDEX_SETS]; /* taken in turn, so that rows are cold; bags use the beginning */
  int64_t *offsets;
  float *weights, *weights_grad; /* one per entry of the bags */
  int64_t *ids, *sorted_ids;     /* one per row */
  int64_t out_rows;
  void *block; /* all of the above */
  size_t block_bytes;
  demo_device on;
} demo_data;

/* Allocates and fills everything; on failure there is nothing to free. */
sheaf_status demo_data_make(demo_data *data, bool quick, int threads);
void demo_data_free(demo_data *data);

/* ---- demo_device.c ------------------------------------------------------------------------------------------- */

/* Takes the data to a device, where operations then run; close it also after a failure. */
sheaf_status demo_device_open(demo_data *data, DLDevice device);
void demo_device_close(demo_data *data);

/* Where an array of the data lies for operations. */
void *demo_place(const demo_data *data, void *memory);

/* Takes the gradient to the device, or results back from it; waits. Nothing on the CPU. */
sheaf_status demo_device_exchange(demo_data *data, bool to_device);

/* Bytes per second, read and written, of a copy on the device; 0 when it fails. */
double demo_device_bandwidth(demo_data *data);

/* ---- demo_ceiling.c ------------------------------------------------------------------------------------------ */

typedef enum demo_ceiling { DEMO_READ, DEMO_COPY, DEMO_GATHER, DEMO_CEILINGS } demo_ceiling;

/* What the machine does in bytes per second: sequential read, copy (bytes read plus written), and reading rows of the
 * table at random places. Plain code on the same memory with the same number of threads, in the best of several
 * ways. */
void demo_measure_ceilings(demo_data *data, double seconds, double bandwidth[DEMO_CEILINGS]);

/* ---- demo_op.c ----------------------------------------------------------------------------------------------- */

typedef enum demo_mode { DEMO_LOOKUP, DEMO_SUM, DEMO_MEAN, DEMO_MAX } demo_mode;

typedef struct demo_op {
  const char *name;
  sheaf_category category;
  uint16_t kind, forward_kind; /* the same for forward operations */
  demo_mode mode;
  bool backward;
  bool weighted; /* bags */
  bool sorted;   /* segments */
  demo_ceiling ceiling; /* the measured bandwidth that fits its way of reading */
} demo_op;

int demo_op_count(void);
const demo_op *demo_op_at(int position);

typedef struct demo_result {
  char shape[48];
  char kernel[64];
  double seconds;  /* median of the runs */
  int64_t bytes;   /* that a run has to move */
  char fault[256]; /* "" when the check passed, else what went wrong */
} demo_result;

/* Runs an operation once and checks it, then for `seconds` and at least `min_runs` times. */
void demo_op_measure(const demo_op *op, demo_data *data, double seconds, int min_runs, demo_result *result);

/* ---- demo_check.c -------------------------------------------------------------------------------------------- */

/* Before the run to be checked: gives the rows of the gradient that will be looked at a known content. */
void demo_check_prepare(const demo_op *op, demo_data *data);

/* Recomputes sampled rows of what `op` wrote from the first set of indices, in double by plain code. Writes a sentence
 * to `fault` and returns false when one differs. */
bool demo_check(const demo_op *op, const demo_data *data, char *fault, size_t room);

#endif
