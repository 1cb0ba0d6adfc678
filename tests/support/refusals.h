/* refusals.h: small descriptions, and expectations about select: refused with a status and words, or accepted.
 *
 *   sheaf_embedding_desc desc = embedding_of(SHEAF_BAG_SUM);
 *   desc.rows = -1;
 *   refuses_embedding(&desc, NULL, INVALID_PROBLEM, "rows -1");
 *
 * Expectations fail the cmocka test they are in.
 */
#ifndef SHEAF_TESTS_REFUSALS_H
#define SHEAF_TESTS_REFUSALS_H

#include <sheaf/plan.h>

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* f32 tables of [10, 4] with 6 indices of i64, and 3 bags where the kind has bags; f32 data of [6, 4] with ids of
 * i32, and 3 segments. */
sheaf_embedding_desc embedding_of(sheaf_embedding_kind kind);
sheaf_segment_desc segments_of(sheaf_segment_kind kind);

/* Text of a number; good for the next 15 calls. */
const char *number(int64_t value);

/* Fails unless `got` is `wanted`, the plan is NULL, the text holds every word (a list that ends in NULL), and the
 * numbers beside it are those of a description: none. */
void check_refusal(sheaf_status got, const sheaf_plan *plan, sheaf_status wanted, const char *const *words, int line);

void embedding_refused(const sheaf_embedding_desc *desc, const sheaf_preference *preference, sheaf_status status,
                       const char *const *words, int line);
void segment_refused(const sheaf_segment_desc *desc, const sheaf_preference *preference, sheaf_status status,
                     const char *const *words, int line);

/* refuses_...(description, preference, STATUS, words that the text holds ...) */
#define refuses_embedding(desc, preference, status, ...) \
  embedding_refused(desc, preference, SHEAF_##status, WORDS(__VA_ARGS__), __LINE__)
#define refuses_segment(desc, preference, status, ...) \
  segment_refused(desc, preference, SHEAF_##status, WORDS(__VA_ARGS__), __LINE__)

/* Select or fail the test; the caller frees the plan. */
sheaf_plan *embedding_plan(const sheaf_embedding_desc *desc, const sheaf_preference *preference);
sheaf_plan *segment_plan(const sheaf_segment_desc *desc, const sheaf_preference *preference);

void accepts_embedding(const sheaf_embedding_desc *desc);
void accepts_segment(const sheaf_segment_desc *desc);

#endif
