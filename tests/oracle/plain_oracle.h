/* plain_oracle.h: what every op means, by naive formulae in double: no canonical order, no rounding to elements.
 *
 * Written apart from the bit oracle and the library. Takes the structs that a run takes, before the run (an accumulated
 * table_grad is read), writes none of the operands, and returns answers with the sum of the absolute terms behind each,
 * which tolerances are multiples of. Bad indices are skipped.
 */
#ifndef SHEAF_TESTS_PLAIN_ORACLE_H
#define SHEAF_TESTS_PLAIN_ORACLE_H

#include <sheaf/plan.h>

/* [problems, rows, columns], contiguous (weights' gradient: one row of N). value NULL: no such output. */
typedef struct plain_output {
  int64_t problems, rows, columns;
  double *value;
  double *scale; /* sum of absolute terms */
} plain_output;

typedef struct plain_result {
  plain_output out;  /* forward */
  plain_output arg;  /* the numbers of rows or entries, -1 for none; scale is 0 */
  plain_output grad; /* table_grad or data_grad */
  plain_output weights_grad;
  sheaf_index_report report; /* whether or not args have one */
} plain_result;

plain_result *plain_oracle_embedding(const sheaf_embedding_desc *desc, const sheaf_embedding_args *args);
plain_result *plain_oracle_segment(const sheaf_segment_desc *desc, const sheaf_segment_args *args);
void plain_result_free(plain_result *result);

/* One f16 or bf16 number, by floating-point arithmetic. */
double plain_half(int is_bf16, unsigned bits);

#endif
