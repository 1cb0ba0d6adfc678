/* problem.h: generated problems. A small spec becomes a descriptor, operands full of awkward values, and comparisons.
 *
 *   problem_spec spec = {.category = SHEAF_CATEGORY_EMBEDDING, .kind = SHEAF_BAG_SUM, ...};
 *   problem *p = problem_make(&spec);                       // same spec, same problem, on every machine
 *   problem_outputs *expected = problem_outputs_make(p);    // all output sets start with the same bytes
 *   problem_outputs *got = problem_outputs_make(p);
 *   problem_expect(p, expected);                            // the bit oracle
 *   ... run the library into `got` (problem_run.h) ...
 *   problem_outputs_equal(p, expected, got, "bag_sum.f32.i64/cpu.avx2, 3 threads");
 *
 * Gaps between rows of inputs, rows that must not be read (padding, weights and gradients of skipped entries) hold NaN;
 * gaps and guards of outputs are compared too, so that a write beyond an element shows.
 */
#ifndef SHEAF_TESTS_PROBLEM_H
#define SHEAF_TESTS_PROBLEM_H

#include <sheaf/plan.h>
#include <stdbool.h>

#include "test_random.h"

typedef enum problem_spread { SPREAD_UNIFORM = 0, SPREAD_HOT, SPREAD_ONE_ROW, SPREAD_ZIPF } problem_spread;

/* What values look like. NORMAL: random mantissas, exponents around 1, some -0 and denormals. TIES: few distinct
 * small numbers. NEAR_ONE: products of many stay finite. POSITIVE: in (0.5, 1.5). TINY: around the smallest normal
 * number, half of them denormal (weights too). TINY_FACTORS: near one, and tiny now and then. */
typedef enum problem_values {
  VALUES_NORMAL = 0,
  VALUES_TIES,
  VALUES_NEAR_ONE,
  VALUES_POSITIVE,
  VALUES_TINY,
  VALUES_TINY_FACTORS
} problem_values;

typedef struct problem_spec {
  sheaf_category category;
  int kind;
  sheaf_dtype dtype;
  sheaf_dtype index_dtype;
  sheaf_dtype offset_dtype; /* 0: as index_dtype */
  sheaf_dtype out_dtype;    /* quantised tables only */
  int64_t count;            /* N; in matrix form rounded down to a multiple of bags */
  int64_t dim;              /* D */
  int64_t rows;             /* V or S */
  int64_t bags;             /* B */
  sheaf_bag_form bag_form;
  sheaf_grad_write grad_write;
  int64_t longest_bag; /* when > 0: one bag has exactly this many entries (not in matrix form) */
  int64_t hot_count;   /* when > 0: exactly this many entries name one row (segment) */
  problem_spread spread;
  problem_values values;
  double bad_share;     /* of indices (ids) that are bad */
  double padding_share; /* of indices that are padding, when has_padding */
  double special_share; /* of values that are NaN or infinite */
  double zero_share;    /* of values that are zero, of either sign */
  bool positive_weights;
  bool weighted, has_padding, scale_grad_by_freq, padding_row;
  bool sharded;        /* the table holds some rows of a larger one */
  bool far;            /* ... whose indices go beyond 32 bits, where they are i64 */
  bool identity_empty; /* segments */
  bool split_ties;
  bool arg_given; /* segment max and min backward */
  bool want_arg, want_table_grad, want_weights_grad, want_report;
  bool error_policy; /* BAD_INDEX_ERROR */
  bool high_rank;    /* lookups: indices of rank 2, when N is even */
  bool trust_shape;  /* operands say 0 bytes */
  int64_t batch;
  bool shared_inputs; /* the batch's inputs have a stride of 0 ... */
  bool shared_some;   /* ... or only some of them, by the seed */
  int64_t row_gap;    /* elements (quantised tables: bytes) between rows */
  int64_t shift;      /* elements by which data is moved off its alignment, half of it as byte_offset */
  uint64_t seed;
} problem_spec;

enum { PROBLEM_OPERANDS = 9, PROBLEM_DIMENSIONS = 4 };

/* Positions in problem.operand: the order of the public operand lists. */
enum { AT_TABLE, AT_INDICES, AT_OFFSETS, AT_WEIGHTS, AT_GRAD_OUT, AT_OUT, AT_ARG, AT_TABLE_GRAD, AT_WEIGHTS_GRAD };
enum { AT_DATA, AT_IDS, AT_SEGMENT_GRAD_OUT, AT_SEGMENT_OUT, AT_SEGMENT_ARG, AT_DATA_GRAD };

typedef struct problem_operand {
  bool given, output;
  sheaf_dtype dtype;
  int64_t problems, rows, columns; /* vectors: one row */
  int64_t problem_stride, row_stride;
  DLTensor tensor;
  int64_t shape[PROBLEM_DIMENSIONS], strides[PROBLEM_DIMENSIONS];
  unsigned char *memory;
  size_t memory_bytes, data_at; /* data begins at memory + data_at and ends data_bytes later */
  size_t data_bytes;
} problem_operand;

typedef struct problem {
  problem_spec spec;
  test_random random;
  sheaf_embedding_desc embedding;
  sheaf_segment_desc segment;
  problem_operand operand[PROBLEM_OPERANDS]; /* outputs: their bytes before any run */
  uint64_t inputs_hash;
} problem;

typedef struct problem_outputs {
  problem_operand operand[PROBLEM_OPERANDS]; /* only outputs are given */
  sheaf_index_report report;
} problem_outputs;

problem *problem_make(const problem_spec *spec);
void problem_free(problem *p);

problem_outputs *problem_outputs_make(const problem *p);
void problem_outputs_reset(const problem *p, problem_outputs *outputs);
void problem_outputs_free(problem_outputs *outputs);

/* The args of a run of this problem into these outputs. */
sheaf_embedding_args problem_embedding_args(problem *p, problem_outputs *outputs);
sheaf_segment_args problem_segment_args(problem *p, problem_outputs *outputs);

/* Fills `outputs` by the bit oracle. */
void problem_expect(problem *p, problem_outputs *outputs);

/* Whether two output sets are the same, bit for bit (any NaN equals any NaN, except where bits are copied). Prints the
 * first difference, with `label`. */
bool problem_outputs_equal(const problem *p, const problem_outputs *expected, const problem_outputs *got,
                           const char *label);

/* Whether the inputs still hold what problem_make put there. */
bool problem_inputs_intact(const problem *p);

/* One line that says what the problem is, for failure messages. */
const char *problem_text(const problem *p, char *text, size_t bytes);

/* Facts about kinds. */
bool problem_is_backward(sheaf_category category, int kind);
bool problem_is_bag(const problem_spec *spec);
bool problem_is_sorted(const problem_spec *spec);
bool problem_copies_bits(const problem_spec *spec);

/* Where the indices of all rows, held or not, begin. */
int64_t problem_first_index(const problem_spec *spec);

/* One element of an operand. */
void *operand_at(const problem_operand *operand, int64_t in_problem, int64_t row, int64_t column);

/* Fills the inputs and the outputs' first bytes (problem_fill.c). */
void problem_fill(problem *p);

/* The bytes of one row of this dtype, quantised or not, and the DLPack type. */
int64_t problem_row_elements(sheaf_dtype dtype, int64_t dim);
DLDataType problem_dl_type(sheaf_dtype dtype);

#endif
