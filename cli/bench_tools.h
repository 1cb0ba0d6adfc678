/* cli/bench_tools.h: what the measuring commands share: a clock, order statistics, random numbers. */
#ifndef SHEAF_CLI_BENCH_TOOLS_H
#define SHEAF_CLI_BENCH_TOOLS_H

#include <stdint.h>

/* Seconds of a steady clock. */
double bench_now(void);

/* How often the kernel has taken a core away from this process so far. */
long bench_interruptions(void);

/* Puts numbers in order; the other two want them so. */
void bench_sort(double *values, int count);
double bench_quantile(const double *sorted, int count, double part);

/* The middle of `count` numbers, which are put in order. */
double bench_median(double *values, int count);

/* Position `n` of a random stream: the same number whoever asks, so threads can share a stream. */
uint64_t bench_random(uint64_t stream, int64_t n);

/* The same as a number from 0 to below 1. */
double bench_random_unit(uint64_t stream, int64_t n);

/* A number from 1 to `limit` whose chance falls as its power -exponent (not 1): the inverse of the distribution at
 * `unit`. */
int64_t bench_power_law(double unit, int64_t limit, double exponent);

/* Where a fixed permutation of 0 .. count - 1 sends `value`: scatters the hot rows of a power law over the table. */
int64_t bench_scatter(int64_t value, int64_t count);

/* One line on a terminal that the next one replaces; "" clears it. Nothing where stderr is no terminal. */
void bench_show_progress(const char *text);

#endif
