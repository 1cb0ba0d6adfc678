/* bit_oracle.h: what every op must give, to the last bit, by plain scalar C that shares nothing with the library.
 *
 * Both functions take the very structs that a run takes, assume that they are valid (nothing is checked) and write the
 * output operands and, when given, args->report. A grouping in args is not looked at. Bad indices are skipped.
 */
#ifndef SHEAF_TESTS_BIT_ORACLE_H
#define SHEAF_TESTS_BIT_ORACLE_H

#include <sheaf/plan.h>

void bit_oracle_embedding(const sheaf_embedding_desc *desc, const sheaf_embedding_args *args);
void bit_oracle_segment(const sheaf_segment_desc *desc, const sheaf_segment_args *args);

#endif
