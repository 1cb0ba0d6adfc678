/* small_table.h: problems on a table of four rows, small enough to work out by hand.
 *
 *   small_call c = small_bags(SHEAF_BAG_SUM, SHEAF_F32, SHEAF_I64, 3, INTEGERS(0, 1, 2), 2, INTEGERS(0, 2));
 *   expect_ok(small_run(&c));
 *   expect_numbers(c.out, 4, 6, 5, 6);
 */
#ifndef SHEAF_TESTS_SMALL_TABLE_H
#define SHEAF_TESTS_SMALL_TABLE_H

#include "tiny.h"

/* One problem on the table (1 2, 3 4, 5 6, -7 8), with every output that its kind has. */
typedef struct small_call {
  sheaf_embedding_desc desc;
  sheaf_embedding_args args;
  tiny *table, *out, *arg, *table_grad, *weights_grad;
  sheaf_index_report report;
} small_call;

small_call small_begin(sheaf_embedding_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype);

/* The same, with indices and the offsets of bags. */
small_call small_bags(sheaf_embedding_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype, int64_t count,
                      const int64_t *indices, int64_t bag_count, const int64_t *offsets);

/* Operands; what the descriptor says of them is set too. */
void give_table(small_call *c, int64_t count, int64_t dim, const double *values);
void give_indices(small_call *c, int64_t count, const int64_t *indices);
void give_offsets(small_call *c, int64_t count, const int64_t *offsets);
void give_weights(small_call *c, const double *weights);
void give_grad_out(small_call *c, int64_t count, const double *values);

/* Gives outputs full of 7 (a table_grad that is given already stays) and runs. */
sheaf_status small_run(small_call *c);

#endif
