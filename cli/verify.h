/* cli/verify.h: the parts of `sheaf verify`: one reference case, its tensors, its checks.
 *
 * A case is one safetensors file: inputs, attributes, and the answers of another implementation. Nothing in it is
 * trusted: names, attribute values, dtypes, shapes, offsets and indices are checked here before anything is computed
 * from them. Functions that can find fault return false (or NULL) after noting the first fault in the case.
 */
#ifndef SHEAF_CLI_VERIFY_H
#define SHEAF_CLI_VERIFY_H

#include <sheaf/sheaf.h>
#include <stdbool.h>

typedef struct verify_case {
  int threads;     /* of every run; 0: the library's choice */
  DLDevice device; /* where runs are made; type 0 is the CPU */
  sheaf_safetensors *file;
  void *blocks;      /* memory that lives as long as the case, each block pointing to the one before */
  char kernel[64];   /* the kernel that ran last; "" before any */
  char failure[768]; /* what is wrong; "" while nothing is */
} verify_case;

/* A dense tensor in memory of its own. `operand` points into it, so it is never copied. */
typedef struct verify_tensor {
  sheaf_dtype dtype;
  int rank;
  int64_t shape[SHEAF_IO_MAX_RANK];
  int64_t count; /* elements */
  void *data;    /* NULL when there are none */
  DLTensor dl;
  sheaf_operand operand;
} verify_tensor;

/* Replays the file at `path`: true when every answer agrees. The caller reads failure and kernel. */
bool verify_file(verify_case *c, const char *path, int threads, DLDevice device);

/* ---- verify_case.c: memory, tensors, attributes -------------------------------------------------------------- */

/* Notes the first fault; later ones are dropped. Always false. */
bool verify_fail(verify_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Zeroed memory for count * size bytes, freed with the case. Never NULL for 0 bytes. */
void *verify_alloc(verify_case *c, int64_t count, size_t size);

bool verify_has(const verify_case *c, const char *name);

/* A copy of the file's tensor: exactly as long as its shape says, so that reading past it is seen by a checker of
 * memory, and aligned whatever the file's layout. */
verify_tensor *verify_input(verify_case *c, const char *name);

/* An input that must have `dtype` and the shape [rows, dim]; dtype NONE: any type of values (f32 f64 f16 bf16). */
verify_tensor *verify_matrix(verify_case *c, const char *name, sheaf_dtype dtype, int64_t rows, int64_t dim);

/* A tensor for the library to write, filled with bytes that no right answer has. */
verify_tensor *verify_output(verify_case *c, sheaf_dtype dtype, int rank, const int64_t *shape);

bool verify_is_float(sheaf_dtype dtype);
bool verify_same_shape(const verify_tensor *a, const verify_tensor *b);
bool verify_expect_index_dtype(verify_case *c, const char *name, const verify_tensor *t);

double verify_value(const verify_tensor *t, int64_t position);
int64_t verify_integer(const verify_tensor *t, int64_t position);

/* Which of `choices` (ended by NULL) the attribute is; `missing` when it is absent, or a fault when missing is -1.
 * Returns -1 after a fault. */
int verify_choice(verify_case *c, const char *key, const char *const *choices, int missing);

/* An attribute of 0 or 1, as verify_choice. */
int verify_flag(verify_case *c, const char *key, int missing);

/* When the attribute is there it must be the number `extent`, which the tensors gave. */
bool verify_extent(verify_case *c, const char *key, int64_t extent);

/* padding_idx: -1 when there is none, else a row below `rows`. */
bool verify_padding(verify_case *c, int64_t rows, int64_t *padding);

/* ---- verify_compare.c: when an answer is right --------------------------------------------------------------- */

/* How close an answer must be. All zero: the same value (any NaN equals any NaN, -0 equals +0). */
typedef struct verify_rule {
  bool signed_zeros;   /* exact, and -0 differs from +0 */
  const double *scale; /* per element the sum of absolute terms, which the dtype's tolerance multiplies; NULL: exact */
  const double *slack; /* per element an absolute tolerance on top; NULL: none */
} verify_rule;

/* Compares what the library wrote with the file's answer; `what` names it. Shapes must agree. */
bool verify_compare(verify_case *c, const char *what, const verify_tensor *expected, const verify_tensor *got,
                    verify_rule rule);

/* One unit in the last place of `value` once rounded to dtype. */
double verify_ulp(sheaf_dtype dtype, double value);

/* ---- verify_run.c: running plans ----------------------------------------------------------------------------- */

bool verify_run_embedding(verify_case *c, const sheaf_embedding_desc *desc, const sheaf_embedding_args *args);

/* The same two on a device: operands (`count` of them, an output where `written` says so) are copied there, the plan is
 * run by `run` with those copies, and what it wrote is copied back. */
typedef sheaf_status verify_device_run(const sheaf_plan *plan, void *workspace, void *stream,
                                       const sheaf_operand *there, const void *args);
bool verify_on_device(verify_case *c, const sheaf_plan *plan, const sheaf_operand *operands, int count,
                      verify_device_run *run, const void *args);
bool verify_run_segment(verify_case *c, const sheaf_segment_desc *desc, const sheaf_segment_args *args);

/* Runs a backward kind into `table_grad`, overwriting, and again adding to zeros: the bits must be the same. */
bool verify_run_table_grad(verify_case *c, const sheaf_embedding_desc *desc, const sheaf_embedding_args *args,
                           verify_tensor *table_grad);

/* ---- The ops ------------------------------------------------------------------------------------------------- */

bool verify_embedding(verify_case *c);
bool verify_embedding_bag(verify_case *c);
bool verify_quantized_bag(verify_case *c);
bool verify_segment(verify_case *c);

/* ---- verify_entries.c: bags of entries, shared by the two bag ops --------------------------------------------- */

/* The entries of all bags, checked, in plain form: entry k is row row_of[k] (-1: padding, not counted) in bag bag_of[k]
 * with weight weight_of[k]. */
typedef struct verify_entries {
  sheaf_bag_form form;
  int64_t rows, dim, bags, count;
  int64_t padding; /* -1: none */
  bool mean;
  const verify_tensor *indices, *offsets, *weights; /* offsets, weights: NULL when absent */
  int64_t *row_of, *bag_of;
  double *weight_of;
  double *divisor;   /* per bag: 1, or what mean divides by */
  double *condition; /* per bag: how much the divisor's own rounding counts, at least 1 */
} verify_entries;

/* Reads indices, offsets, per_sample_weights (which must have weight_dtype) and their attributes. The caller has set
 * rows, dim, bags and mean. */
bool verify_read_entries(verify_case *c, sheaf_dtype weight_dtype, verify_entries *e);

/* Sets what every bag kind has in common. */
void verify_describe_bags(const verify_entries *e, sheaf_embedding_desc *desc, sheaf_embedding_args *args);

#endif
