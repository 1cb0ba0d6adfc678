/* cli/bench_data.h: what bench_data.c, bench_table.c and bench_indices.c share. */
#ifndef SHEAF_CLI_BENCH_DATA_H
#define SHEAF_CLI_BENCH_DATA_H

#include "bench.h"

/* Numbers from -1 to 1 in one of the four floating types. */
void bench_fill_values(void *memory, sheaf_dtype dtype, int64_t count, uint64_t stream);

/* Makes `table` what is wanted (all but memory and bytes is read), unless it is that already. */
sheaf_status bench_table_make(bench_table *table, const bench_table *wanted);

/* `count` row numbers below `rows`, as the case spreads them. */
void bench_fill_indices(const bench_case *c, int64_t *indices, int64_t count, int64_t rows, uint64_t stream);

/* Puts numbers below `limit` in order. False when memory is short. */
bool bench_sort_ids(int64_t *ids, int64_t count, int64_t limit);

/* Which different numbers below `limit` there are, in order of first appearance; how many, or -1 when memory is
 * short. */
int64_t bench_distinct(const int64_t *indices, int64_t count, int64_t limit, int64_t *distinct);

/* Starts of the bags; `offsets` NULL only counts them. */
int64_t bench_fill_offsets(const bench_case *c, int64_t entries, int64_t *offsets);

void bench_to_i32(const int64_t *from, int32_t *to, int64_t count);

#endif
