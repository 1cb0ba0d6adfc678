/* core/nearest_kernel.h: the contract between sheaf_nearest and its kernels: scores of rows that follow each other, and
 * how most rows of small integers are passed over without one. */
#ifndef SHF_CORE_NEAREST_KERNEL_H
#define SHF_CORE_NEAREST_KERNEL_H

#include <sheaf/nearest.h>

/* The query rounded to small integers, from which a row's score can be told within bounds (plan/nearest_filter.c):
 * q = step * w + e. Of int4 rows the weights of even columns come first, then those of odd ones; each list ends in
 * zeros up to a multiple of SHF_NEAREST_LANES. */
enum { SHF_NEAREST_LANES = 64 };
typedef struct shf_nearest_filter {
  const int8_t *weights;
  int64_t list_bytes;        /* from one list to the next */
  float step, weight_sum;    /* of the weights */
  float error, square;       /* |e|, a little more; q's square */
  float middle, query_sum;   /* half the largest code times the sum of e; the sum of q */
  float spread;              /* |e| times the norm of a row whose values are all half the largest code */
  float dot_slack;           /* what rounding adds to a dot product, for each unit of a row's largest possible value, */
  float square_slack;        /* and to a row's square, for each unit of that value squared */
  float score_slack;         /* and to a score, of itself */
  float least_size, most_size; /* that value, where nothing underflows or overflows; other rows are scored */
} shf_nearest_filter;

typedef struct shf_nearest_job {
  const char *rows;
  int64_t row_stride; /* in bytes */
  int64_t dim;
  sheaf_metric metric;
  const void *query; /* dim of acc */
  double query_norm; /* cosine: the root of dot(query, query), of acc */
  const shf_nearest_filter *filter; /* NULL: every row is scored */
} shf_nearest_job;

/* Scores rows first .. first + rows - 1, of which there are 1 to SHF_NEAREST_ROWS, and returns a bit for each row that
 * has its score. Only where `limit` is a number may bits be missing: those rows are farther. */
enum { SHF_NEAREST_ROWS = 64 };
typedef uint64_t shf_nearest_fn(const shf_nearest_job *job, int64_t first, int rows, double limit, double *scores);

typedef struct shf_nearest_kernel {
  shf_nearest_fn *score;
  int (*most_weight)(void); /* the largest weight of a filter; NULL, or 0 on this CPU: takes none */
} shf_nearest_kernel;

#endif
