/* cli/bench_indices.c: index sets, segment ids and bag offsets for `sheaf bench`. */
#include <stdlib.h>

#include "bench_data.h"
#include "bench_tools.h"

enum { PADDING_ONE_IN = 20 };

void bench_fill_indices(const bench_case *c, int64_t *indices, int64_t count, int64_t rows, uint64_t stream)
{
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
  for (int64_t n = 0; n < count; n++) {
    uint64_t random = bench_random(stream, n);
    int64_t row = (int64_t)(random % (uint64_t)rows);
    if (c->spread == BENCH_POWER)
      row = bench_scatter(bench_power_law(bench_random_unit(stream, n), rows, c->exponent) - 1, rows);
    if (c->spread == BENCH_ONE_ROW) row = rows / 2;
    if (c->padded && (random >> 20) % PADDING_ONE_IN == 0) row = 0;
    indices[n] = row;
  }
}

bool bench_sort_ids(int64_t *ids, int64_t count, int64_t limit)
{
  int64_t *counts = calloc((size_t)limit, sizeof *counts), n = 0;
  if (!counts) return false;
  for (int64_t i = 0; i < count; i++) counts[ids[i]]++;
  for (int64_t id = 0; id < limit; id++)
    for (int64_t k = 0; k < counts[id]; k++) ids[n++] = id;
  free(counts);
  return true;
}

int64_t bench_distinct(const int64_t *indices, int64_t count, int64_t limit, int64_t *distinct)
{
  uint8_t *seen = calloc((size_t)limit / 8 + 1, 1);
  int64_t found = 0;
  if (!seen) return -1;
  for (int64_t n = 0; n < count; n++) {
    int64_t row = indices[n];
    if (seen[row / 8] >> (row % 8) & 1) continue;
    seen[row / 8] = (uint8_t)(seen[row / 8] | 1 << (row % 8));
    distinct[found++] = row;
  }
  free(seen);
  return found;
}

static int64_t length_of_bag(const bench_case *c, int64_t bag)
{
  if (c->lengths == BENCH_ALTERNATING) return bag % 2 ? c->length : 0;
  if (c->lengths == BENCH_FIXED) return c->length;
  return bench_power_law(bench_random_unit(99, bag), c->length * c->length, 1.5);
}

int64_t bench_fill_offsets(const bench_case *c, int64_t entries, int64_t *offsets)
{
  int64_t bags = 0;
  for (int64_t begin = 0; begin < entries; begin += length_of_bag(c, bags++))
    if (offsets) offsets[bags] = begin;
  return bags;
}

void bench_to_i32(const int64_t *from, int32_t *to, int64_t count)
{
  for (int64_t n = 0; n < count; n++) to[n] = (int32_t)from[n];
}
