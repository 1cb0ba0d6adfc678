/* sheaf/nearest.h: the rows of a table that are nearest to a vector: exact, over f32, f64, f16, bf16, int8 and int4.
 *
 *   sheaf_nearest_desc desc = SHEAF_NEAREST_DESC_INIT;
 *   desc.metric = SHEAF_METRIC_COSINE; desc.dtype = SHEAF_F32; desc.rows = V; desc.dim = D; desc.k = 10;
 *   sheaf_neighbour best[10];
 *   int64_t count = 0;
 *   sheaf_nearest(&desc, &table, &query, best, &count);       // best[0] is the nearest
 *
 * Scores are defined to the last bit (docs/semantics.md, section 8): the same on every instruction set and for every
 * number of threads. A table that comes in parts is searched part by part, in any order, with the same result. */
#ifndef SHEAF_NEAREST_H
#define SHEAF_NEAREST_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, value, "name"). With q the query, x a row, all in f32 (f64 tables: f64):
 *   cosine  dot(q, x) / (sqrt(dot(q, q)) * sqrt(dot(x, x))); the largest is the nearest
 *   dot     dot(q, x); the largest is the nearest
 *   l2      dot(x - q, x - q), the squared distance; the smallest is the nearest */
#define SHEAF_METRIC_LIST(X) X(COSINE, 0, "cosine") X(DOT, 1, "dot") X(L2, 2, "l2")

typedef enum sheaf_metric {
#define SHEAF_X(name, value, text) SHEAF_METRIC_##name = value,
  SHEAF_METRIC_LIST(SHEAF_X)
#undef SHEAF_X
} sheaf_metric;

/* "cosine" ...; "none" for anything else. */
SHEAF_API const char *sheaf_metric_name(sheaf_metric metric);

typedef struct sheaf_nearest_desc {
  size_t struct_size;
  sheaf_metric metric;
  sheaf_dtype dtype;   /* of the table: F32 F64 F16 BF16 INT8 INT4. Must be set */
  int64_t rows;        /* V, rows in `table` */
  int64_t dim;         /* D */
  int64_t k;           /* how many rows are wanted, at least 1 */
  int64_t first_row;   /* the number of the table's first row, where it is a part of a larger one */
  int64_t excluded;    /* a row that is left out, such as the query's own; used when has_excluded */
  uint8_t has_excluded;
  int threads;         /* the most; 0: sheaf_threads() */
} sheaf_nearest_desc;

#define SHEAF_NEAREST_DESC_INIT SHEAF_INIT(sheaf_nearest_desc)

typedef struct sheaf_neighbour {
  int64_t row;
  double score; /* of f32, except over f64 tables */
} sheaf_neighbour;

/* Finds the k nearest rows (all, when there are fewer). `table` is [V, D] (quantised: u8 [V, sheaf_dtype_row_bytes]),
 * `query` is [D] of f32 (f64 tables: f64); both on the CPU. `best` has room for k and, on entry, holds the *count
 * results of earlier parts of the same table (0 at first), with which the new ones compete; on return it is in order,
 * nearest first. Equal scores: the lower row first. A score that is NaN comes after every number. On failure `best`
 * and `*count` are what they were. */
SHEAF_API sheaf_status sheaf_nearest(const sheaf_nearest_desc *desc, const sheaf_operand *table,
                                     const sheaf_operand *query, sheaf_neighbour *best, int64_t *count);

#ifdef __cplusplus
}
#endif
#endif
