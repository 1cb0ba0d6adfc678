/* cli/bench_compare.h: results of `sheaf bench` beside earlier ones. */
#ifndef SHEAF_CLI_BENCH_COMPARE_H
#define SHEAF_CLI_BENCH_COMPARE_H

#include <jansson.h>

/* What `sheaf bench --json` once printed; NULL after a complaint. */
json_t *bench_compare_read(const char *path);

/* Gives every result of `now` that `before` has too a "ratio", how many times as fast it is, and notes with what it was
 * compared. */
void bench_compare_add(json_t *now, json_t *before, const char *path);

/* The ratios as a table, and the middle one. */
void bench_compare_print(json_t *now);

#endif
