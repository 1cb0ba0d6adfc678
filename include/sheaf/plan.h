/* sheaf/plan.h: the explicit layer. Describe a problem once, get a plan, run it as often as you like.
 *
 *   sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;     // what: kind, types, extents, options
 *   desc.kind = SHEAF_BAG_SUM; ...
 *   sheaf_plan *plan;
 *   sheaf_embedding_select(&desc, NULL, &plan);                // which kernel: never touches data
 *   sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;     // where: the operands
 *   args.table.tensor = &table; ...
 *   sheaf_embedding_run(plan, workspace, sheaf_plan_workspace_size(plan), NULL, &args);
 *   sheaf_plan_free(plan);
 *
 * A plan is immutable: any number of threads may run one plan at the same time, each with its own workspace. `run`
 * allocates nothing and takes no lock (OpenMP may, when it makes its threads). On the CPU a run that fails leaves its
 * outputs as they were. Options and operands that do not concern a kind are ignored unless a comment says otherwise.
 *
 * Extents are exact int64 up to 2^46. Letters used below: V rows and D columns of a table, N indices, B bags, S
 * segments.
 */
#ifndef SHEAF_PLAN_H
#define SHEAF_PLAN_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Ops ----------------------------------------------------------------------------------------------------- */

/* An op is category << 16 | kind. The kinds are numbered from 0 in each category; both are part of the ABI. */
typedef enum sheaf_category { SHEAF_CATEGORY_EMBEDDING = 0, SHEAF_CATEGORY_SEGMENT = 1 } sheaf_category;

/* X(NAME, kind, "name") */
#define SHEAF_EMBEDDING_KIND_LIST(X)            \
  X(LOOKUP, 0, "lookup")                        \
  X(LOOKUP_BACKWARD, 1, "lookup_backward")      \
  X(BAG_SUM, 2, "bag_sum")                      \
  X(BAG_MEAN, 3, "bag_mean")                    \
  X(BAG_SUM_BACKWARD, 4, "bag_sum_backward")    \
  X(BAG_MEAN_BACKWARD, 5, "bag_mean_backward")  \
  X(BAG_MAX, 6, "bag_max")                      \
  X(BAG_MAX_BACKWARD, 7, "bag_max_backward")

#define SHEAF_SEGMENT_KIND_LIST(X)                                        \
  X(SEGMENT_SUM, 0, "segment_sum")                                        \
  X(SEGMENT_SUM_BACKWARD, 1, "segment_sum_backward")                      \
  X(SEGMENT_MEAN, 2, "segment_mean")                                      \
  X(SEGMENT_MEAN_BACKWARD, 3, "segment_mean_backward")                    \
  X(SEGMENT_MAX, 4, "segment_max")                                        \
  X(SEGMENT_MIN, 5, "segment_min")                                        \
  X(SEGMENT_PROD, 6, "segment_prod")                                      \
  X(UNSORTED_SEGMENT_SUM, 7, "unsorted_segment_sum")                      \
  X(UNSORTED_SEGMENT_SUM_BACKWARD, 8, "unsorted_segment_sum_backward")    \
  X(UNSORTED_SEGMENT_MEAN, 9, "unsorted_segment_mean")                    \
  X(UNSORTED_SEGMENT_MEAN_BACKWARD, 10, "unsorted_segment_mean_backward") \
  X(UNSORTED_SEGMENT_MAX, 11, "unsorted_segment_max")                     \
  X(UNSORTED_SEGMENT_MIN, 12, "unsorted_segment_min")                     \
  X(SEGMENT_MAX_BACKWARD, 13, "segment_max_backward")                     \
  X(SEGMENT_MIN_BACKWARD, 14, "segment_min_backward")                     \
  X(SEGMENT_PROD_BACKWARD, 15, "segment_prod_backward")                   \
  X(UNSORTED_SEGMENT_MAX_BACKWARD, 16, "unsorted_segment_max_backward")   \
  X(UNSORTED_SEGMENT_MIN_BACKWARD, 17, "unsorted_segment_min_backward")   \
  X(UNSORTED_SEGMENT_PROD, 18, "unsorted_segment_prod")                   \
  X(UNSORTED_SEGMENT_PROD_BACKWARD, 19, "unsorted_segment_prod_backward")

#define SHEAF_X(name, kind, text) SHEAF_##name = kind,
typedef enum sheaf_embedding_kind { SHEAF_EMBEDDING_KIND_LIST(SHEAF_X) } sheaf_embedding_kind;
typedef enum sheaf_segment_kind { SHEAF_SEGMENT_KIND_LIST(SHEAF_X) } sheaf_segment_kind;
#undef SHEAF_X

/* "bag_sum" ...; NULL when the category has no such kind. */
SHEAF_API const char *sheaf_kind_name(sheaf_category category, uint16_t kind);

/* ---- Options shared by both families ------------------------------------------------------------------------- */

/* An index (segment id) that is negative or not below V (S). SKIP: the entry is left out as padding is and counted
 * in the report. ERROR: the run fails with INDEX_OUT_OF_RANGE and the text names the first one and how many there
 * are. */
typedef enum sheaf_bad_index { SHEAF_BAD_INDEX_SKIP = 0, SHEAF_BAD_INDEX_ERROR = 1 } sheaf_bad_index;

/* What a run found about bad indices: set by every run that is given one and gets as far as looking at them (its
 * operands, offsets and order of ids are right). Positions count over all problems of a batch. On a CUDA device it is
 * memory of the device, filled when the run gets there; nothing is refused for its values (bad indices are skipped
 * under either policy), and a count of -1 says that the offsets, or the order of sorted ids, are wrong at
 * first_position. */
typedef struct sheaf_index_report {
  int64_t count;          /* bad entries */
  int64_t first_position; /* the first one, -1 when there is none */
  int64_t first_value;    /* what it held, 0 when there is none */
} sheaf_index_report;

/* ---- Embedding family ---------------------------------------------------------------------------------------- */

/* How N indices are divided into B bags. */
typedef enum sheaf_bag_form {
  SHEAF_BAGS_OFFSETS = 0,     /* offsets holds B starts; the last bag ends at N */
  SHEAF_BAGS_OFFSETS_END = 1, /* offsets holds B starts and the end, B + 1 numbers */
  SHEAF_BAGS_MATRIX = 2       /* no offsets: indices are [B, L] and N = B * L */
} sheaf_bag_form;

/* What a plain lookup gives for padding_idx. Bags always leave padding out. */
typedef enum sheaf_padding { SHEAF_PADDING_ZERO = 0, SHEAF_PADDING_ROW = 1 } sheaf_padding;

/* How the table's gradient is written. A cell is touched when an entry contributes to it: all cells of a row that an
 * index names, of a maximum's gradient those that won. */
typedef enum sheaf_grad_write {
  SHEAF_GRAD_ACCUMULATE = 0, /* added to what table_grad holds, once per touched cell; others are not read */
  SHEAF_GRAD_OVERWRITE = 1,  /* every cell is written, untouched ones as zero */
  SHEAF_GRAD_TOUCHED = 2     /* touched cells are written, nothing is read: for a table_grad that holds zeros, or of
                                which only touched rows are looked at. Spares reading every touched row */
} sheaf_grad_write;

typedef struct sheaf_embedding_desc {
  size_t struct_size;
  DLDevice device;            /* {0, 0} is the CPU */
  sheaf_embedding_kind kind;
  sheaf_dtype dtype;          /* table: F32 F64 F16 BF16; forward kinds also INT8 INT4. Must be set */
  sheaf_dtype index_dtype;    /* I32 or I64. Must be set */
  sheaf_dtype offset_dtype;   /* I32 or I64; 0: as index_dtype */
  sheaf_dtype out_dtype;      /* quantised tables: F32 (default), F16, BF16. Otherwise 0 or dtype */
  sheaf_bag_form bag_form;
  int64_t rows;               /* V, rows in `table` */
  int64_t dim;                /* D */
  int64_t indices;            /* N (BAG_MAX_BACKWARD: not used) */
  int64_t bags;               /* B (lookups: 0) */
  int64_t row_begin;          /* `table` holds rows row_begin .. row_begin + V - 1 of a table of total_rows; indices */
  int64_t total_rows;         /* held elsewhere are skipped but counted by mean. total_rows 0: the table is whole */
  int64_t padding_idx;        /* in 0 .. total rows - 1; used when has_padding */
  int64_t batch;              /* 0: one problem. b >= 1: b problems, every operand has a leading dimension of b whose */
                              /* stride may be 0 for inputs */
  uint8_t has_padding;        /* 0 or 1, as every flag here */
  uint8_t weighted;           /* bag sums and means, and their backward: args hold one weight per index */
  uint8_t scale_grad_by_freq; /* backward: divide a row's gradient by its number of occurrences. Maxima refuse it */
  uint8_t grouping_given;     /* backward: args.grouping will be set, so the workspace can be smaller */
  sheaf_padding padding;      /* LOOKUP */
  sheaf_bad_index bad_index;
  sheaf_grad_write grad_write; /* backward */
} sheaf_embedding_desc;

#define SHEAF_EMBEDDING_DESC_INIT SHEAF_INIT(sheaf_embedding_desc)

/* X(operand), in the order in which they are checked. An operand that the kind does not list is ignored, so that one
 * args struct can serve forward and backward; weights without `weighted`, and offsets in matrix form, are refused.
 * Shapes, with a leading [batch] when desc.batch >= 1:
 *   table         [V, D] (quantised: u8 [V, sheaf_dtype_row_bytes])   forward; backward when weights_grad is wanted
 *   indices       any shape of N elements; [B, L] in matrix form      all but BAG_MAX_BACKWARD
 *   offsets       [B] or [B + 1]                                      bags but BAG_MAX_BACKWARD, unless in matrix form
 *   weights       as indices, of the table's dtype (quantised: F32)   sums and means and their backward, when weighted
 *   grad_out      [B, D]; lookups: [N, D], any leading shape of N     backward
 *   out           as grad_out                                         forward; BAG_MEAN_BACKWARD: the forward output of
 *                                                                     the whole table, when weights_grad is wanted
 *   arg           [B, D] of index_dtype: the maximum's row, or -1     BAG_MAX: written, optional; its backward: read
 *   table_grad    [V, D]                                              backward; of sums and means optional
 *   weights_grad  as weights, always overwritten                      backward of weighted sums, means; optional */
#define SHEAF_EMBEDDING_OPERAND_LIST(X) \
  X(table) X(indices) X(offsets) X(weights) X(grad_out) X(out) X(arg) X(table_grad) X(weights_grad)

typedef struct sheaf_embedding_args {
  size_t struct_size;
#define SHEAF_X(name) sheaf_operand name;
  SHEAF_EMBEDDING_OPERAND_LIST(SHEAF_X)
#undef SHEAF_X
  const void *grouping; /* optional, backward: made by sheaf_embedding_grouping_build for the same indices */
  size_t grouping_bytes;
  sheaf_index_report *report; /* optional */
} sheaf_embedding_args;

#define SHEAF_EMBEDDING_ARGS_INIT SHEAF_INIT(sheaf_embedding_args)

/* ---- Segment family ------------------------------------------------------------------------------------------ */

/* What a segment without rows gives. NEUTRAL: 0 for sum, mean, max and min, 1 for prod. IDENTITY: 0 for sum, 1 for
 * prod, NaN for mean, -inf for max, +inf for min. */
typedef enum sheaf_empty { SHEAF_EMPTY_NEUTRAL = 0, SHEAF_EMPTY_IDENTITY = 1 } sheaf_empty;

/* Who gets the gradient of a maximum (minimum) that several rows share: the first, or all in equal parts. */
typedef enum sheaf_ties { SHEAF_TIES_FIRST = 0, SHEAF_TIES_SPLIT = 1 } sheaf_ties;

typedef struct sheaf_segment_desc {
  size_t struct_size;
  DLDevice device;         /* {0, 0} is the CPU */
  sheaf_segment_kind kind;
  sheaf_dtype dtype;       /* F32 F64 F16 BF16. Must be set */
  sheaf_dtype index_dtype; /* I32 or I64. Must be set */
  int64_t rows;            /* N */
  int64_t dim;             /* D */
  int64_t segments;        /* S */
  int64_t batch;           /* as in sheaf_embedding_desc */
  uint8_t arg_given;       /* max and min backward: args.arg is set (with SHEAF_TIES_FIRST), args.data need not be */
  uint8_t grouping_given;  /* unsorted kinds that group: args.grouping will be set */
  sheaf_empty empty;       /* forward kinds */
  sheaf_ties ties;         /* max and min backward */
  sheaf_bad_index bad_index;
} sheaf_segment_desc;

#define SHEAF_SEGMENT_DESC_INIT SHEAF_INIT(sheaf_segment_desc)

/* X(operand), in the order in which they are checked. Shapes, with a leading [batch] when desc.batch >= 1:
 *   data       [N, D]                                              forward kinds, prod backward; max and min backward
 *                                                                  unless arg_given
 *   ids        [N] of index_dtype; non-decreasing for sorted kinds all kinds
 *   grad_out   [S, D]                                              backward kinds
 *   out        [S, D]                                              forward kinds
 *   arg        [S, D] of index_dtype: position n, or -1            max and min: written, optional; their backward: read
 *   data_grad  [N, D], always overwritten                          backward kinds */
#define SHEAF_SEGMENT_OPERAND_LIST(X) X(data) X(ids) X(grad_out) X(out) X(arg) X(data_grad)

typedef struct sheaf_segment_args {
  size_t struct_size;
#define SHEAF_X(name) sheaf_operand name;
  SHEAF_SEGMENT_OPERAND_LIST(SHEAF_X)
#undef SHEAF_X
  const void *grouping; /* optional, unsorted kinds that group: made by sheaf_segment_grouping_build for the same ids */
  size_t grouping_bytes;
  sheaf_index_report *report; /* optional */
} sheaf_segment_args;

#define SHEAF_SEGMENT_ARGS_INIT SHEAF_INIT(sheaf_segment_args)

/* ---- Kernel identity and guarantees -------------------------------------------------------------------------- */

typedef enum sheaf_arch {
  SHEAF_ARCH_SCALAR = 0,
  SHEAF_ARCH_AVX2 = 1,
  SHEAF_ARCH_AVX512 = 2,
  SHEAF_ARCH_SM80 = 3,
  SHEAF_ARCH_SM90 = 4
} sheaf_arch;

/* ANY is for preferences only. */
typedef enum sheaf_backend { SHEAF_BACKEND_ANY = 0, SHEAF_BACKEND_BESPOKE = 1, SHEAF_BACKEND_CUB = 2 } sheaf_backend;

/* What may be relied on. Each flag is a statement that the tests check. */
typedef struct sheaf_guarantee {
  sheaf_dtype math;                     /* products and divisions are rounded to this; NONE: bits are copied */
  sheaf_dtype accumulator;              /* sums are kept in this; NONE: nothing is summed */
  uint8_t deterministic;                /* same call, same bits, in every run and for every number of threads */
  uint8_t bit_stable_on_same_hardware;  /* ... across processes on the same kind of machine */
  uint8_t bit_stable_across_hardware;   /* ... across instruction sets and devices */
} sheaf_guarantee;

typedef struct sheaf_sku {
  sheaf_category category;
  uint16_t kind;
  sheaf_dtype element;
  sheaf_dtype index_element;
  sheaf_arch arch;
  sheaf_backend backend;
  sheaf_guarantee guarantee;
  char name[64]; /* "bag_sum.f16.i64/cpu.avx512" */
} sheaf_sku;

/* Every kernel of this build, whether or not this machine can run it: `available` (optional) says so.
 * INVALID_PROBLEM when `position` is not below the count. */
SHEAF_API int64_t sheaf_kernel_count(void);
SHEAF_API sheaf_status sheaf_kernel_at(int64_t position, sheaf_sku *sku, int *available);

/* ---- Plans --------------------------------------------------------------------------------------------------- */

typedef struct sheaf_plan sheaf_plan;

/* What the caller insists on. All zero: no wishes. */
typedef struct sheaf_preference {
  size_t struct_size;
  size_t max_workspace;  /* bytes; 0: no limit */
  int threads;           /* the most threads a run may use; 0: sheaf_threads() at the time of select */
  sheaf_backend backend; /* CPU kernels are BESPOKE; CUDA kernels that may sort by CUB are CUB, the others BESPOKE */
  int deterministic;     /* 1: refuse a kernel that is not (every one here is) */
  const char *kernel;    /* the name of one kernel, such as "bag_sum.f32.i64/cpu.avx2"; NULL: the best one */
} sheaf_preference;

#define SHEAF_PREFERENCE_INIT SHEAF_INIT(sheaf_preference)

/* Chooses a kernel. Fails with UNSUPPORTED when the op does not take the element type, then INVALID_PROBLEM when the
 * description contradicts itself, then UNSUPPORTED when no kernel fits, giving each candidate's reason. `preference`
 * may be NULL. `*plan` is NULL on failure. */
SHEAF_API sheaf_status sheaf_embedding_select(const sheaf_embedding_desc *desc, const sheaf_preference *preference,
                                              sheaf_plan **plan);
SHEAF_API sheaf_status sheaf_segment_select(const sheaf_segment_desc *desc, const sheaf_preference *preference,
                                            sheaf_plan **plan);

/* Frees a plan that no thread is running. NULL is allowed. */
SHEAF_API void sheaf_plan_free(sheaf_plan *plan);

/* Bytes that run needs, in memory aligned to 64 bytes; a multiple of 64, and 0 for many plans. 0 for NULL. */
SHEAF_API size_t sheaf_plan_workspace_size(const sheaf_plan *plan);

/* Which kernel was chosen, and what it guarantees. All zero for NULL. */
SHEAF_API sheaf_sku sheaf_plan_sku(const sheaf_plan *plan);
SHEAF_API sheaf_guarantee sheaf_plan_precision_guarantee(const sheaf_plan *plan);

/* Whether run would accept these operands, without touching their data: device, dtype and shape of each in operand
 * order (INVALID_PROBLEM), then the length of each (BUFFER_TOO_SMALL), then alignment (MISALIGNED), then outputs
 * that share memory with another operand (INVALID_PROBLEM). */
SHEAF_API sheaf_status sheaf_embedding_can_implement(const sheaf_plan *plan, const sheaf_embedding_args *args);
SHEAF_API sheaf_status sheaf_segment_can_implement(const sheaf_plan *plan, const sheaf_segment_args *args);

/* Runs the plan. Checks as can_implement does, then the workspace, then the values of offsets, sorted ids and (under
 * SHEAF_BAD_INDEX_ERROR) indices; only then writes. `stream` is the device's stream, NULL on the CPU. On a CUDA device
 * everything but the values is checked, then the work is enqueued: nothing is allocated or waited for, and the call can
 * be captured in a graph. */
SHEAF_API sheaf_status sheaf_embedding_run(const sheaf_plan *plan, void *workspace, size_t workspace_bytes,
                                           void *stream, const sheaf_embedding_args *args);
SHEAF_API sheaf_status sheaf_segment_run(const sheaf_plan *plan, void *workspace, size_t workspace_bytes, void *stream,
                                         const sheaf_segment_args *args);

/* ---- Grouping ------------------------------------------------------------------------------------------------ */

/* Backward of lookups and bags, and unsorted segment reductions, need the entries grouped by row. A run does that in
 * its workspace; when several runs share one batch of indices, do it once: build the grouping into memory of your
 * own (64-byte aligned, sheaf_grouping_size bytes) and set args.grouping (and desc.grouping_given, for a smaller
 * workspace). It depends on indices, offsets and the description (rows, range, padding, weighted or not), not on
 * tables or gradients; run refuses a grouping made for another description. 0 bytes for a plan that needs none. Of
 * args only indices, offsets (arg for BAG_MAX_BACKWARD; ids) and report are looked at. */
SHEAF_API size_t sheaf_grouping_size(const sheaf_plan *plan);
SHEAF_API sheaf_status sheaf_embedding_grouping_build(const sheaf_plan *plan, void *grouping, size_t grouping_bytes,
                                                      void *stream, const sheaf_embedding_args *args);
SHEAF_API sheaf_status sheaf_segment_grouping_build(const sheaf_plan *plan, void *grouping, size_t grouping_bytes,
                                                    void *stream, const sheaf_segment_args *args);

/* ---- Quantised rows ------------------------------------------------------------------------------------------ */

/* Packs f32 rows [V, D] into u8 rows [V, sheaf_dtype_row_bytes(dtype, D)] of INT8 or INT4. A row with NaN or
 * infinity is INVALID_PROBLEM naming the row, and nothing is written. */
SHEAF_API sheaf_status sheaf_quantize_rows(sheaf_dtype dtype, const sheaf_operand *rows, const sheaf_operand *packed);

/* Unpacks them again into f32 rows; D is taken from `rows`. */
SHEAF_API sheaf_status sheaf_dequantize_rows(sheaf_dtype dtype, const sheaf_operand *packed, const sheaf_operand *rows);

#ifdef __cplusplus
}
#endif
#endif
