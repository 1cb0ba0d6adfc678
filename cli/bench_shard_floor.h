/* cli/bench_shard_floor.h: the least that work on indices can cost. */
#ifndef SHEAF_CLI_BENCH_SHARD_FLOOR_H
#define SHEAF_CLI_BENCH_SHARD_FLOOR_H

#include <dlpack/dlpack.h>
#include <stdint.h>

/* Microseconds of the cheapest loop over indices (i64, all in 0 .. rows - 1) after which each distinct one is known and
 * listed: a bit for each row is set, and the bits are read. Whatever sends each row once has to do as much. Below 0
 * without memory. */
double bench_shard_floor(const DLTensor *indices, int64_t rows);

#endif
