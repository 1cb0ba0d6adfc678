/* core/nearest_kernel.h: the contract between sheaf_nearest and its kernels: scores of rows that follow each other. */
#ifndef SHF_CORE_NEAREST_KERNEL_H
#define SHF_CORE_NEAREST_KERNEL_H

#include <sheaf/nearest.h>

typedef struct shf_nearest_job {
  const char *rows;
  int64_t row_stride; /* in bytes */
  int64_t dim;
  sheaf_metric metric;
  const void *query; /* dim of acc */
  double query_norm; /* cosine: the root of dot(query, query), of acc */
} shf_nearest_job;

/* Writes the scores of rows first .. first + count - 1. */
typedef void shf_nearest_fn(const shf_nearest_job *job, int64_t first, int64_t count, double *scores);

#endif
