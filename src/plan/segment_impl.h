/* segment_impl.h: what select and run of the segment family share. */
#ifndef SHF_PLAN_SEGMENT_IMPL_H
#define SHF_PLAN_SEGMENT_IMPL_H

#include "plan/plan_impl.h"

typedef enum shf_reduce { SHF_REDUCE_SUM, SHF_REDUCE_MEAN, SHF_REDUCE_MAX, SHF_REDUCE_MIN, SHF_REDUCE_PROD } shf_reduce;

typedef struct shf_segment_traits {
  shf_reduce reduce;
  int backward, unsorted;
} shf_segment_traits;

const shf_segment_traits *shf_plan_segment_traits(sheaf_segment_kind kind);
int shf_plan_segment_prepares(const sheaf_segment_desc *desc);

/* Threads that count rows per segment, each in its own array: no more than keep those arrays as small as the ids. */
int shf_plan_counting_threads(const sheaf_plan *plan);

static inline int shf_plan_is_extreme(const shf_segment_traits *traits)
{
  return traits->reduce == SHF_REDUCE_MAX || traits->reduce == SHF_REDUCE_MIN;
}

#endif
