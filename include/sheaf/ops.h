/* sheaf/ops.h: ops on tensors, and what composes with them: gradients, autocast, vmap, profiles, traces.
 *
 *   sheaf_tensor *out = NULL;                                     // NULL: the result is made
 *   sheaf_embedding(indices, table, NULL, &out);                  // as torch.nn.functional.embedding
 *   sheaf_backward(out, grad, NULL);                              // table's gradient, if it was asked for
 *   sheaf_tensor_release(out);
 *
 * An op takes every form of tensor that makes sense for it: dense, meta (shapes only), row-sparse, quantised, nested,
 * batched. Results are made when `*out` is NULL, else written into `*out`, which must have the right type and shape
 * (not while a gradient is being recorded; a tensor that requires one only within no_grad). On failure `*out` is what
 * it was. Options may be NULL: the defaults.
 *
 * Bad indices and ids are errors by default (INDEX_OUT_OF_RANGE), unlike in plans. On a CUDA device such an error is
 * found by the run itself and by waiting for the thread's stream (device.h): a result that was given has been written
 * by then, as if bad ones were skipped. With the option to skip them, nothing is waited for.
 */
#ifndef SHEAF_OPS_H
#define SHEAF_OPS_H

#include "dispatch.h"
#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Lookups and bags ---------------------------------------------------------------------------------------- */

/* As an attribute, and in options, where 0 is the default: a mean, as in PyTorch. */
typedef enum sheaf_bag_mode { SHEAF_MODE_MEAN = 0, SHEAF_MODE_SUM = 1, SHEAF_MODE_MAX = 2 } sheaf_bag_mode;

typedef struct sheaf_embedding_options {
  size_t struct_size;
  int64_t padding_idx; /* used when has_padding: zeros come out (or the row, by `padding`), no gradient goes in */
  uint8_t has_padding;
  uint8_t scale_grad_by_freq;
  uint8_t sparse;           /* the table's gradient is row-sparse: 1 coalesced, 2 one row per entry */
  uint8_t skip_bad_indices; /* 1: a bad index gives zeros; 0: it is an error */
  sheaf_padding padding;
  sheaf_dtype out_dtype;    /* quantised tables: F32 (default), F16, BF16; any table: INT8 or INT4 */
} sheaf_embedding_options;
#define SHEAF_EMBEDDING_OPTIONS_INIT SHEAF_INIT(sheaf_embedding_options)

/* out[..., :] = table[indices[...]]. Indices of any shape; nested indices give a nested result of their components. */
SHEAF_API sheaf_status sheaf_embedding(sheaf_tensor *indices, sheaf_tensor *table,
                                       const sheaf_embedding_options *options, sheaf_tensor **out);

typedef struct sheaf_embedding_bag_options {
  size_t struct_size;
  sheaf_tensor *per_sample_weights; /* as indices; sums and means */
  int64_t padding_idx;
  uint8_t has_padding;
  uint8_t scale_grad_by_freq;
  uint8_t sparse;
  uint8_t skip_bad_indices;
  uint8_t include_last_offset; /* offsets have B + 1 entries, the last of them N */
  uint8_t lengths;             /* `offsets` holds the lengths of the bags instead */
  sheaf_bag_mode mode;
  sheaf_dtype out_dtype;
} sheaf_embedding_bag_options;
#define SHEAF_EMBEDDING_BAG_OPTIONS_INIT SHEAF_INIT(sheaf_embedding_bag_options)

/* Bags of rows. Indices [N] with offsets (starts, starts and end, or lengths), a matrix [B, L] without, or nested
 * without. Out is [B, D]. */
SHEAF_API sheaf_status sheaf_embedding_bag(sheaf_tensor *indices, sheaf_tensor *table, sheaf_tensor *offsets,
                                           const sheaf_embedding_bag_options *options, sheaf_tensor **out);

/* ---- Segments ------------------------------------------------------------------------------------------------ */

typedef enum sheaf_reduce {
  SHEAF_REDUCE_SUM = 0,
  SHEAF_REDUCE_MEAN = 1,
  SHEAF_REDUCE_MAX = 2,
  SHEAF_REDUCE_MIN = 3,
  SHEAF_REDUCE_PROD = 4
} sheaf_reduce;

typedef struct sheaf_segment_options {
  size_t struct_size;
  sheaf_empty empty;
  sheaf_ties ties;
  uint8_t skip_bad_ids;
  sheaf_dtype out_dtype; /* INT8 or INT4 for a quantised result */
} sheaf_segment_options;
#define SHEAF_SEGMENT_OPTIONS_INIT SHEAF_INIT(sheaf_segment_options)

/* out[s] = the reduction of data[n] over ids[n] == s, for s below `segments`. Sorted ids, or any order. With nested
 * data and ids NULL every component is a segment (then `segments` must be their number, or 0). */
SHEAF_API sheaf_status sheaf_segment_reduce(sheaf_tensor *data, sheaf_reduce reduce, sheaf_tensor *ids,
                                            int64_t segments, const sheaf_segment_options *options, sheaf_tensor **out);
SHEAF_API sheaf_status sheaf_unsorted_segment_reduce(sheaf_tensor *data, sheaf_reduce reduce, sheaf_tensor *ids,
                                                     int64_t segments, const sheaf_segment_options *options,
                                                     sheaf_tensor **out);

/* ---- Conversions --------------------------------------------------------------------------------------------- */

/* Rows [..., V, D] to INT8 or INT4 and back to F32 (default 0), F16, BF16 or F64. */
SHEAF_API sheaf_status sheaf_quantize(sheaf_tensor *rows, sheaf_dtype dtype, sheaf_tensor **out);
SHEAF_API sheaf_status sheaf_dequantize(sheaf_tensor *rows, sheaf_dtype dtype, sheaf_tensor **out);

/* A row-sparse tensor with increasing ids; rows of equal ids are added in the canonical order. */
SHEAF_API sheaf_status sheaf_coalesce(sheaf_tensor *sparse, sheaf_tensor **out);

/* Sparse: all rows. Quantised: dequantised to F32. Nested: [..., B, longest, ...], zeros behind the shorter ones.
 * Dense: the tensor itself. */
SHEAF_API sheaf_status sheaf_to_dense(sheaf_tensor *tensor, sheaf_tensor **out);

/* Another floating-point type, rounded to nearest even. The same type: the tensor itself. */
SHEAF_API sheaf_status sheaf_cast(sheaf_tensor *tensor, sheaf_dtype dtype, sheaf_tensor **out);

/* a + alpha * b of one shape and type. Dense and sparse mix; sparse + sparse stays sparse. `*out` may be `a` itself,
 * when that is dense: then a is changed in place, and of a sparse b only its rows are touched. */
SHEAF_API sheaf_status sheaf_add(sheaf_tensor *a, sheaf_tensor *b, double alpha, sheaf_tensor **out);

/* Dimension `from` becomes dimension `to`; a copy. Of a nested tensor, those before its components can be moved. */
SHEAF_API sheaf_status sheaf_movedim(sheaf_tensor *tensor, int from, int to, sheaf_tensor **out);

/* The same elements in another shape of as many; shares the memory of a contiguous tensor. The shape of a nested tensor
 * has -1 for the dimension that varies, behind the number of components. A row-sparse tensor whose rows stay whole
 * stays row-sparse. */
SHEAF_API sheaf_status sheaf_reshape(sheaf_tensor *tensor, int rank, const int64_t *shape, sheaf_tensor **out);

/* A new leading dimension that repeats the tensor `count` times; a copy. */
SHEAF_API sheaf_status sheaf_expand(sheaf_tensor *tensor, int64_t count, sheaf_tensor **out);

/* ---- Attributes of the calls, for layers --------------------------------------------------------------------- */

/* Lookups and bags. Inputs: embedding (table, indices); embedding_backward (grad_out, indices); embedding_bag (table,
 * indices, offsets, weights), outputs out and arg; embedding_bag_backward (grad_out, indices, offsets, weights, table,
 * out, arg), outputs table_grad and weights_grad. */
typedef enum sheaf_embedding_attr {
  SHEAF_EMBEDDING_PADDING_IDX = 0, /* -1: none */
  SHEAF_EMBEDDING_PADDING,
  SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ,
  SHEAF_EMBEDDING_SPARSE,
  SHEAF_EMBEDDING_BAD_INDEX, /* sheaf_bad_index */
  SHEAF_EMBEDDING_OUT_DTYPE,
  SHEAF_EMBEDDING_MODE,      /* sheaf_bag_mode */
  SHEAF_EMBEDDING_BAG_FORM,  /* sheaf_bag_form, or SHEAF_BAGS_LENGTHS */
  SHEAF_EMBEDDING_ROWS,      /* backward: V */
  SHEAF_EMBEDDING_ATTRS
} sheaf_embedding_attr;
enum { SHEAF_BAGS_LENGTHS = 3 };

/* Segments. Inputs: segment_reduce (data, ids), outputs out and arg; segment_reduce_backward (grad_out, ids, data,
 * arg). */
typedef enum sheaf_segment_attr {
  SHEAF_SEGMENT_REDUCE = 0,
  SHEAF_SEGMENT_SORTED,
  SHEAF_SEGMENT_SEGMENTS,
  SHEAF_SEGMENT_EMPTY,
  SHEAF_SEGMENT_TIES,
  SHEAF_SEGMENT_BAD_INDEX,
  SHEAF_SEGMENT_OUT_DTYPE,
  SHEAF_SEGMENT_ATTRS
} sheaf_segment_attr;

/* The rest: quantize, dequantize, cast (dtype); add (alpha, a float); movedim (from, to); batch and unbatch (level);
 * reshape (rank, then 8 extents); expand (count). */

/* ---- Gradients ----------------------------------------------------------------------------------------------- */

typedef struct sheaf_backward_options {
  size_t struct_size;
  uint8_t retain_graph; /* keep what backward needs, so that it can run again */
  uint8_t create_graph; /* record backward too, for gradients of gradients (implies retain_graph) */
} sheaf_backward_options;
#define SHEAF_BACKWARD_OPTIONS_INIT SHEAF_INIT(sheaf_backward_options)

/* Adds the gradients of <output, grad> to every leaf that requires one. `grad` has the shape of `output`; NULL: ones.
 * INVALID_PROBLEM when the output has no graph, when its graph was freed by an earlier backward, or when a saved tensor
 * was written since (the text names it). A failing call may have added to some leaves. */
SHEAF_API sheaf_status sheaf_backward(sheaf_tensor *output, sheaf_tensor *grad, const sheaf_backward_options *options);

/* No graph is recorded on this thread between these two. */
SHEAF_API sheaf_status sheaf_no_grad_begin(sheaf_guard *guard);
SHEAF_API sheaf_status sheaf_no_grad_end(const sheaf_guard *guard);

/* ---- Autocast ------------------------------------------------------------------------------------------------ */

/* Between these two, on this thread, lookups and bags of F32 tables (or of the other 16-bit type) compute on tables
 * (and weights) cast to F16 or BF16, and quantised tables give that type; sums are kept in f32 as ever. A cast table is
 * kept until the end, or until the table is written. Other ops: segments, casts and conversions take what they are
 * given; add takes the wider type of its two; indices and F64 are never cast. Gradients have the type of their leaf.
 * Nests. */
SHEAF_API sheaf_status sheaf_autocast_begin(sheaf_dtype dtype);
SHEAF_API sheaf_status sheaf_autocast_end(void);

/* ---- Vmap ---------------------------------------------------------------------------------------------------- */

/* Hides a dimension: ops on the result work on one slice, and compute all slices in one run. Slices are matched by
 * level; a vmap within another has the higher level (1 to 4). `unbatch` shows the dimension of the highest level again,
 * at place `dim`. The rows of row-sparse and quantised tensors stay whole; of nested ones, dimensions before the
 * components can be hidden. */
SHEAF_API sheaf_status sheaf_batch(sheaf_tensor *tensor, int dim, int level, sheaf_tensor **out);
SHEAF_API sheaf_status sheaf_unbatch(sheaf_tensor *tensor, int dim, int level, sheaf_tensor **out);

/* ---- Meta ---------------------------------------------------------------------------------------------------- */

/* What the last call on meta tensors on this thread would take. */
typedef struct sheaf_meta_info {
  size_t workspace_bytes;
  sheaf_sku sku; /* all zero when no kernel would run (cast, movedim ...) */
} sheaf_meta_info;
SHEAF_API sheaf_meta_info sheaf_meta_last(void);

/* ---- Profiler ------------------------------------------------------------------------------------------------ */

enum { SHEAF_PROFILE_SHAPES = 4 };

/* One outer call: what the layers below do on its behalf is part of it. */
typedef struct sheaf_profile_record {
  const char *op;
  char sku[64]; /* of the last plan run; "" when none ran */
  sheaf_dtype dtype; /* of the first input */
  int shapes;        /* of the first inputs */
  struct {
    int rank;
    int64_t extent[3]; /* the first three */
  } shape[SHEAF_PROFILE_SHAPES];
  int64_t bytes;     /* that plans read and wrote, as their operands count */
  int64_t plan_runs;
  int64_t start_ns;  /* since begin */
  int64_t host_ns;
  int64_t device_ns; /* of what a CUDA device did, by its own clock (each call is waited for); 0 without one */
  int thread;        /* 0, 1, 2 ... in order of appearance */
  sheaf_status status;
} sheaf_profile_record;

typedef struct sheaf_profile sheaf_profile;

/* Records calls of all threads between these two. INVALID_PROBLEM when one is being taken, or none. */
SHEAF_API sheaf_status sheaf_profiler_begin(void);
SHEAF_API sheaf_status sheaf_profiler_end(sheaf_profile **profile);
SHEAF_API int64_t sheaf_profile_count(const sheaf_profile *profile);
SHEAF_API const sheaf_profile_record *sheaf_profile_at(const sheaf_profile *profile, int64_t position);
/* How many records memory was short for. */
SHEAF_API int64_t sheaf_profile_lost(const sheaf_profile *profile);
/* A Chrome trace (load it in Perfetto), or a table by op; the text's length, without its end. `text` may be NULL. */
SHEAF_API size_t sheaf_profile_chrome(const sheaf_profile *profile, char *text, size_t room);
SHEAF_API size_t sheaf_profile_table(const sheaf_profile *profile, char *text, size_t room);
SHEAF_API void sheaf_profile_free(sheaf_profile *profile);

/* ---- Tracer -------------------------------------------------------------------------------------------------- */

typedef struct sheaf_trace sheaf_trace;

/* Records the calls of this thread. Tensors that were there before become the graph's inputs, in order of first use;
 * results that no later call took are its outputs, in order. */
SHEAF_API sheaf_status sheaf_tracer_begin(void);
SHEAF_API sheaf_status sheaf_tracer_end(sheaf_trace **graph);
SHEAF_API int sheaf_trace_inputs(const sheaf_trace *graph);
SHEAF_API int sheaf_trace_outputs(const sheaf_trace *graph);
SHEAF_API int sheaf_trace_calls(const sheaf_trace *graph);
/* Runs the calls again on other inputs. `outputs` gets as many references as the graph has outputs. */
SHEAF_API sheaf_status sheaf_trace_replay(const sheaf_trace *graph, sheaf_tensor *const *inputs, int input_count,
                                          sheaf_tensor **outputs, int output_count);
/* As text, Graphviz or JSON; the text's length, without its end. `text` may be NULL. */
SHEAF_API size_t sheaf_trace_text(const sheaf_trace *graph, char *text, size_t room);
SHEAF_API size_t sheaf_trace_dot(const sheaf_trace *graph, char *text, size_t room);
SHEAF_API size_t sheaf_trace_json(const sheaf_trace *graph, char *text, size_t room);
SHEAF_API sheaf_status sheaf_trace_from_json(const char *json, sheaf_trace **graph);
SHEAF_API void sheaf_trace_free(sheaf_trace *graph);

/* ---- Memory kept for later calls ----------------------------------------------------------------------------- */

/* Ops keep plans (256 for all threads, 16 at hand of each) and a workspace per thread. Frees those shared and those of
 * the calling thread; other threads free theirs when they end. */
SHEAF_API void sheaf_clear_caches(void);

#ifdef __cplusplus
}
#endif
#endif
