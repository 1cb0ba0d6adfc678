/* cli/bench.h: the parts of `sheaf bench`: cases, their data, measuring, reports. */
#ifndef SHEAF_CLI_BENCH_H
#define SHEAF_CLI_BENCH_H

#include <jansson.h>
#include <sheaf/sheaf.h>
#include <stdbool.h>

#include "bench_stream.h"

/* ---- Cases: bench_case.c, bench_pathology.c ------------------------------------------------------------------ */

typedef enum bench_spread {
  BENCH_UNIFORM,
  BENCH_POWER,    /* power law with `exponent` */
  BENCH_ONE_ROW,  /* every entry the same */
} bench_spread;

typedef enum bench_lengths {
  BENCH_FIXED,       /* `length` each */
  BENCH_POWER_LAW,   /* from 1 to length^2 with exponent 1.5, so that their mean is about `length` */
  BENCH_ALTERNATING, /* 0 and `length` in turn */
} bench_lengths;

/* One case. Zero means the usual: 40 MB of rows a run, i64 indices, 2 MiB pages, rows next to each other. */
typedef struct bench_case {
  const char *suite;
  char name[80];
  sheaf_category category;
  uint16_t kind;
  sheaf_dtype dtype;
  sheaf_dtype index;
  int64_t rows;      /* of the table; of segment data they are the entries */
  int64_t dim;
  int64_t length;    /* of a bag; 0 for lookups */
  int64_t entries;   /* indices of a run; rows of segment data */
  int64_t segments;
  int64_t row_pad;   /* elements between the end of a row and the next */
  int64_t reference_rows; /* when more than `rows`: the ceiling gathers from a table of so many, uniformly */
  double exponent;
  double target;     /* fraction of the ceiling that is aimed at (ns in suite small); 0: none */
  bench_spread spread;
  bench_lengths lengths;
  stream_kind ceiling;
  bool weighted, padded, small_pages, checked, grouping_given, touched, warm;
  bool quick;        /* part of --quick */
  const char *note;  /* ends the name */
} bench_case;

typedef struct bench_cases {
  bench_case *items;
  int count, room;
  bool failed; /* memory was short */
} bench_cases;

/* Every case of the suites, or with `grid` every combination of the grid in suite bag too. */
void bench_list_cases(bench_cases *list, bool grid);
void bench_list_pathologies(bench_cases *list);
void bench_add_case(bench_cases *list, bench_case c);

/* What follows from a case. */
bool bench_is_backward(const bench_case *c);
int64_t bench_row_bytes(const bench_case *c);
int64_t bench_entries(const bench_case *c);
int64_t bench_bags(const bench_case *c); /* about, where lengths vary */

/* Bytes of memory that running a case takes, about. */
double bench_memory_needed(const bench_case *c);

/* ---- Data: bench_data.c -------------------------------------------------------------------------------------- */

enum { BENCH_MAX_SETS = 61, BENCH_MAX_BLOCKS = 16 };

/* A table that stays for the next case when that wants the same. */
typedef struct bench_table {
  sheaf_dtype dtype;
  int64_t rows, dim, stride_bytes;
  bool small_pages, backward;
  void *memory;
  size_t bytes;
} bench_table;

/* Index sets are taken in turn so that rows are cold; their number is prime, so that ceiling and case meet all. */
typedef struct bench_set {
  void *indices;          /* of the case's index type; ids of segments */
  int64_t *rows;          /* the same as i64, for the ceiling; `count` of them. Backward: each touched row once */
  int64_t count;
  char *data;             /* segments: N rows, read or (backward) written */
  int64_t useful_bytes;   /* that a run on this set has to move */
} bench_set;

typedef struct bench_data {
  const bench_case *c;
  bench_table *table;
  int sets;
  bench_set set[BENCH_MAX_SETS];
  int64_t entries, bags;
  void *offsets, *weights, *out, *grad_out, *arg; /* grad_out and out: bags (entries, segments) rows */
  int64_t out_rows;
  struct {
    void *memory;
    size_t bytes;
  } blocks[BENCH_MAX_BLOCKS];
  int block_count;
} bench_data;

sheaf_status bench_data_make(bench_data *data, const bench_case *c, bench_table *table);
void bench_data_free(bench_data *data);
void bench_table_release(bench_table *table);

/* "2 MiB", "4 KiB", or how much of the memory has which. */
void bench_page_size(const void *memory, char *text, size_t room);

/* ---- Measuring: bench_run.c, bench_measure.c, bench_small.c -------------------------------------------------- */

enum { BENCH_MAX_OPERANDS = 12, BENCH_MAX_RUNS = 400 };

/* A case ready to run. The operands' tensors live here, so it is never copied. */
typedef struct bench_run {
  bench_data *data;
  sheaf_plan *plan;
  void *workspace, *grouping;
  size_t workspace_bytes, grouping_bytes;
  sheaf_embedding_args embedding;
  sheaf_segment_args segment;
  struct {
    DLTensor dl;
    int64_t shape[2], strides[2];
  } tensors[BENCH_MAX_OPERANDS];
  int tensor_count;
  DLTensor *indices, *segment_data; /* among them, to be pointed to a set */
} bench_run;

sheaf_status bench_prepare(bench_run *run, bench_data *data, int threads);
sheaf_status bench_run_once(bench_run *run, int set);
void bench_release(bench_run *run);

/* A ceiling as it was measured: for a result, or for itself. */
typedef struct bench_ceiling {
  stream_kind kind;
  char what[32]; /* "gather", "gather, same rows" ... */
  const char *way;
  char pages[24];
  int64_t row_bytes, table_bytes;
  int threads;
  double gbps, low, high; /* median, 10th and 90th percentile */
} bench_ceiling;

enum { BENCH_RESULT_CEILINGS = 2 };

typedef struct bench_result {
  const bench_case *c;
  int threads, runs, interrupted; /* runs that the kernel interrupted in spite of repeating them */
  double ns, ns_low, ns_high;
  double gbps;
  int ceilings; /* the first is the fitting one; 0 in suite small */
  bench_ceiling ceiling[BENCH_RESULT_CEILINGS];
  double fraction, fraction_low, fraction_high; /* of the first; the spread is that of neighbouring runs */
  double fraction_quiet; /* both sides at their 90th percentile: what a busy machine disturbs least */
  char sku[64];
  char fault[256];
} bench_result;

typedef struct bench_effort {
  double seconds; /* measuring a case, about */
  int min_runs;
} bench_effort;

/* Runs a case and its ceilings in turn. */
void bench_measure(bench_data *data, int threads, const bench_effort *effort, bench_result *result);

/* A ceiling for itself, over the whole table; row_bytes 0 where there are no rows. */
sheaf_status bench_measure_ceiling(stream_kind kind, int64_t row_bytes, bench_table *table, int threads,
                                   const bench_effort *effort, bench_ceiling *ceiling);

/* Suite small: nanoseconds a call. */
void bench_list_small(bench_cases *list);
void bench_measure_small(const bench_case *c, const bench_effort *effort, bench_result *result);

/* ---- Report: bench_report.c ---------------------------------------------------------------------------------- */

typedef struct bench_report {
  bench_ceiling *ceilings;
  int ceiling_count;
  bench_result *results;
  int result_count;
  const bench_case **skipped;
  int skipped_count;
} bench_report;

void bench_print_machine(void);
void bench_print_ceiling(const bench_ceiling *ceiling);
void bench_print_head(void);
void bench_print_result(const bench_result *result);
void bench_print_foot(const bench_report *report); /* what the signs in the table mean */

/* Adds ceilings, results and what was passed over to what bench_output_begin began; false when memory is short. */
bool bench_report_add(const bench_report *report, json_t *root);
json_t *bench_machine_json(void);

#endif
