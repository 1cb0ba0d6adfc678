/* cli/files.h: what the commands on files share: tables read in windows, whole operands, results, running a plan. */
#ifndef SHEAF_CLI_FILES_H
#define SHEAF_CLI_FILES_H

#include <jansson.h>
#include <sheaf/sheaf.h>
#include <stdbool.h>

#include "cli_impl.h"

/* ---- Options that commands on files have in common, for the struct they are read into ---------------------------- */

#define WORK_OPTIONS(of) \
  {"--threads", CLI_THREADS, &(of).threads}, {"--quiet", CLI_FLAG, &(of).quiet}, { "--json", CLI_FLAG, &(of).json }
#define PACKED_OPTIONS(of) \
  {"--as", CLI_CHOICE, &(of).as}, { "--dim", CLI_COUNT, &(of).dim }

/* ---- A table, of which one window is in memory: file_table.c ---------------------------------------------------- */

typedef struct table_file {
  const char *command; /* for complaints */
  const char *text;    /* as the user wrote it */
  sheaf_io_file *file;
  const sheaf_io_tensor *tensor;
  sheaf_dtype dtype; /* INT8 and INT4 for packed rows; SHEAF_DTYPE_NONE until a tensor is chosen */
  int64_t rows, dim, row_bytes;
  char *input;   /* what came from stdin */
  char *aligned; /* a copy of the window, where the file has it at an odd place */
  size_t aligned_bytes;
} table_file;

/* Opens FILE, FILE:TENSOR or '-', choosing no tensor where there are several: CLI_GO_ON or an exit code. */
int file_open(table_file *table, const char *command, const char *text);

/* The same with one tensor chosen, as rows of the last dimension. `take` goes on where file_open has ended. */
int tensor_open(table_file *table, const char *command, const char *text);
int tensor_take(table_file *table);

/* The same for a matrix of numbers or of packed rows; `as` (SHEAF_DTYPE_NONE: what the file says) and `dim` (0: what
 * follows from the width) as the options --as and --dim have them. */
int table_open(table_file *table, const char *command, const char *text, sheaf_dtype as, int64_t dim);

/* Whether an opened tensor holds packed rows; with `must_be_table`, all but those and floating point is refused. */
int table_take(table_file *table, sheaf_dtype as, int64_t dim, bool must_be_table);
void table_close(table_file *table);

/* What `sheaf quantize` notes about its output, "int4 768", under the key "sheaf.quantized.<tensor>"; NULL when there
 * is none. The key is in memory of the caller's; NULL when that is short. */
const char *table_note(const table_file *table);
char *note_key(const char *name);

/* Rows that one window holds, at least 1. */
int64_t table_window(const table_file *table);

/* Rows first .. first + count - 1, aligned to their elements; NULL after a complaint (count > 0). */
const char *table_rows(table_file *table, int64_t first, int64_t count);

/* Row i of `to` becomes row rows[i] of the table (rows that are -1 are left alone). False after a complaint. */
bool table_gather(table_file *table, const int64_t *rows, int64_t count, char *to);

/* Bytes of one block of work; a window is at most so large. Tests make it small (SHEAF_TEST_WINDOW). */
int64_t window_bytes(void);

/* Memory for rows, aligned to 64 bytes and never of no bytes; free it. NULL when there is none. */
void *rows_memory(int64_t rows, int64_t row_bytes);

bool ends_in(const char *path, const char *ending);

/* ---- Operands that are needed as a whole: file_operand.c -------------------------------------------------------- */

typedef struct whole_operand {
  sheaf_dtype dtype;
  int rank;
  int64_t shape[SHEAF_IO_MAX_RANK], count; /* elements in all */
  const void *data;
  table_file from;
  int64_t *list; /* numbers that were written on the command line */
} whole_operand;

/* A tensor of a file, '-', or (with `may_list`) numbers as in 3,1,42. */
int operand_open(whole_operand *operand, const char *command, const char *text, bool may_list);
void operand_close(whole_operand *operand);

/* The same as i64 numbers in memory of the caller's (free it): indices, ids, offsets. */
int operand_indices(const char *command, const char *what, const char *text, whole_operand *operand, int64_t **numbers);

/* ---- Numbers of one type as another: file_numbers.c ------------------------------------------------------------- */

double number_at(sheaf_dtype dtype, const void *data, int64_t position);

/* Rounds to nearest, ties to even; integers that do not fit, and fractions, fail. */
bool numbers_convert(sheaf_dtype from, const void *data, sheaf_dtype to, void *out, int64_t count);
bool is_float_dtype(sheaf_dtype dtype);

/* Whether a converted number is another one than it was; NaN stays NaN. */
bool numbers_differ(sheaf_dtype from, const void *data, sheaf_dtype to, const void *out, int64_t position);

/* Rows of a table as f32 (from packed rows too). */
bool rows_to_f32(const table_file *table, const char *rows, int64_t count, float *out);

/* ---- Results: file_result.c -------------------------------------------------------------------------------------- */

/* Rows that go to a file, to stdout as npy, or are printed. */
typedef struct result_sink {
  const char *command, *path; /* path NULL: printed */
  int json;
  sheaf_io_writer *writer;
  json_t *values; /* --json without a file */
  sheaf_dtype dtype;
  int64_t dim, row_bytes;
  bool failed;
} result_sink;

typedef struct result_shape {
  sheaf_dtype dtype; /* of the file: u8 for packed rows */
  int rank;
  int64_t shape[SHEAF_IO_MAX_RANK];
  const char *name; /* of the tensor, in safetensors */
  const sheaf_io_metadata *metadata;
  int64_t metadata_count;
} result_shape;

int result_open(result_sink *sink, const char *command, const char *path, int json, const result_shape *shape);
bool result_append(result_sink *sink, const void *data, int64_t rows);

/* Keeps the file when `code` is CLI_OK, else removes it; an exit code. */
int result_close(result_sink *sink, int code);

/* Numbers that name no row, nor segment, of `limit`. */
typedef struct bad_entries {
  int64_t count, position, value, limit; /* the first one's place and value */
} bad_entries;

bad_entries bad_entries_find(const int64_t *numbers, int64_t count, int64_t limit);

/* CLI_GO_ON where there are none, else CLI_FAILED after a complaint; `what` is "indices" or "ids". */
int bad_entries_refuse(const bad_entries *bad, const char *command, const char *what);

/* What was written and what was skipped, as text or JSON: an exit code. Where stdout has the result, on stderr. */
int result_report(const result_sink *sink, const result_shape *shape, const bad_entries *bad, const char *what);

/* ---- Running plans on host memory, on any device: file_run.c ----------------------------------------------------- */

typedef struct run_place {
  DLDevice device; /* type 0: the CPU */
  int threads;
} run_place;

/* Reads --device and --threads. */
int run_place_of(const char *command, const char *device, int threads, run_place *place);

enum { RUN_OPERANDS = 8 };

/* Operands in host memory, in the order they are written in lists.
 * NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding) */
typedef struct run_operand {
  sheaf_operand *to; /* its place in the args */
  void *data;
  sheaf_dtype dtype;     /* of the elements: u8 for packed rows */
  int64_t rows, columns; /* columns -1: a vector */
  bool output;
} run_operand;

sheaf_status run_embedding(const run_place *place, sheaf_embedding_desc *desc, sheaf_embedding_args *args,
                           run_operand *operands, int count);
sheaf_status run_segment(const run_place *place, sheaf_segment_desc *desc, sheaf_segment_args *args,
                         run_operand *operands, int count);

#endif
