/* cli/bench_shard_floor.c: the least that work on indices can cost. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* clock_gettime */
#endif
#include "bench_shard_floor.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_us(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

double bench_shard_floor(const DLTensor *indices, int64_t rows)
{
  const int64_t *index = (const int64_t *)indices->data;
  int64_t count = indices->shape[0] * (indices->ndim > 1 ? indices->shape[1] : 1), words = rows / 64 + 1;
  uint64_t *named = malloc((size_t)words * sizeof *named);
  int32_t *list = calloc((size_t)count + 1, sizeof *list);
  double time = -1;
  if (named && list) {
    int64_t distinct = 0;
    volatile int32_t *page = list; /* pages that are there */
    for (int64_t i = 0; i <= count; i += 512) page[i] = 0;
    memset(named, 1, (size_t)words * sizeof *named);
    double start = now_us();
    memset(named, 0, (size_t)words * sizeof *named);
    for (int64_t i = 0; i < count; i++) named[index[i] >> 6] |= (uint64_t)1 << (index[i] & 63);
    for (int64_t w = 0; w < words; w++)
      for (uint64_t bits = named[w]; bits; bits &= bits - 1)
        list[distinct++] = (int32_t)(w * 64 + __builtin_ctzll(bits));
    time = now_us() - start;
    volatile int32_t kept = list[distinct / 2]; /* so that it is done */
    (void)kept;
  }
  free(named);
  free(list);
  return time;
}
