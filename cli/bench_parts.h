/* cli/bench_parts.h: the suites of `sheaf bench` that are lines of their own rather than cases: dispatch and shard. */
#ifndef SHEAF_CLI_BENCH_PARTS_H
#define SHEAF_CLI_BENCH_PARTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* In all of these, `words` (ended by NULL) are what a line's name must hold. Results are added to a list of JSON and,
 * with `text`, printed as they come; answers are exit codes. */

/* What the dispatcher and each layer cost: bench_dispatch.c. Some lines are compared with others, so all are
 * measured. */
bool bench_dispatch_has(const char *const *words);
void bench_dispatch_list(const char *const *words);
int bench_dispatch(double seconds, const char *const *words, bool text, json_t *results);

/* Ops over ranks: bench_shard.c. */
typedef struct bench_shard_sizes {
  int64_t rows, dim, indices, runs;
} bench_shard_sizes;

extern const bench_shard_sizes bench_shard_usual, bench_shard_quick;

bool bench_shard_has(const char *const *words);
void bench_shard_list(const char *const *words);

/* By this process alone, as one rank: what the way through placements and strategies costs without another rank. */
int bench_shard_alone(const bench_shard_sizes *sizes, int threads, const char *const *words, bool text,
                      json_t *results);

#endif
