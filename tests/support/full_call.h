/* full_call.h: calls with every operand that their kind takes, over a table (or data) full of 7. */
#ifndef SHEAF_TESTS_FULL_CALL_H
#define SHEAF_TESTS_FULL_CALL_H

#include "tiny.h"

typedef struct embedding_call {
  sheaf_embedding_desc desc;
  sheaf_embedding_args args;
  tiny *outputs[2];
  sheaf_index_report report;
} embedding_call;

typedef struct segment_call {
  sheaf_segment_desc desc;
  sheaf_segment_args args;
  tiny *outputs[2];
  sheaf_index_report report;
} segment_call;

/* A problem on 4 rows of 2, with weights where the kind can have them. */
sheaf_embedding_desc describe_embedding(sheaf_embedding_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype,
                                        int64_t count, int64_t bags);

/* Operands of a kind: V rows of 2, N indices, bags at `offsets`, outputs full of 7. Weighted where that can be. */
embedding_call call_embedding(sheaf_embedding_desc desc, const int64_t *indices, int64_t offset_count,
                              const int64_t *offsets);
segment_call call_segment(sheaf_segment_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype, int64_t count,
                          const int64_t *ids, int64_t segments, int64_t dim);
bool is_segment_sorted(sheaf_segment_kind kind);
bool is_segment_backward(sheaf_segment_kind kind);

sheaf_status run_embedding(embedding_call *c);
sheaf_status run_segment(segment_call *c);

#define expect_outputs_untouched(c) \
  for (int output_ = 0; output_ < 2 && (c).outputs[output_] != NULL; output_++) expect_untouched((c).outputs[output_])

#endif
