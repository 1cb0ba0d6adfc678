/* cli/bench_tools.c: a clock, order statistics, random numbers and power laws for the measuring commands. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "bench_tools.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

double bench_now(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

long bench_interruptions(void)
{
  struct rusage usage;
  return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_nivcsw : 0;
}

static int compare_doubles(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

void bench_sort(double *values, int count) { qsort(values, (size_t)count, sizeof *values, compare_doubles); }

double bench_quantile(const double *sorted, int count, double part)
{
  double place = part * (count - 1);
  int below = (int)place, above = below + 1 < count ? below + 1 : below;
  return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
}

double bench_median(double *values, int count)
{
  bench_sort(values, count);
  return bench_quantile(values, count, 0.5);
}

/* The finaliser of splitmix64. */
static uint64_t mix(uint64_t x)
{
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

uint64_t bench_random(uint64_t stream, int64_t n) { return mix((stream << 40) + (uint64_t)n * 0x9E3779B97F4A7C15u); }

double bench_random_unit(uint64_t stream, int64_t n) { return (double)(bench_random(stream, n) >> 11) * 0x1p-53; }

int64_t bench_power_law(double unit, int64_t limit, double exponent)
{
  double power = 1 - exponent, last = pow((double)limit + 1, power);
  int64_t rank = (int64_t)pow(1 + unit * (last - 1), 1 / power);
  return rank < 1 ? 1 : rank > limit ? limit : rank;
}

/* Four Feistel rounds over the next even number of bits, repeated until the value falls inside. */
int64_t bench_scatter(int64_t value, int64_t count)
{
  int half = 1;
  while ((int64_t)1 << (2 * half) < count) half++;
  uint64_t mask = ((uint64_t)1 << half) - 1, left = (uint64_t)value >> half, right = (uint64_t)value & mask;
  do {
    for (uint64_t round = 1; round <= 4; round++) {
      uint64_t next = left ^ (mix(right + (round << 56)) & mask);
      left = right;
      right = next;
    }
  } while ((left << half | right) >= (uint64_t)count);
  return (int64_t)(left << half | right);
}

void bench_show_progress(const char *text)
{
  if (isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[K%s", text);
}
