/* cli/bench_device.h: `sheaf bench --device cuda`. */
#ifndef SHEAF_CLI_BENCH_DEVICE_H
#define SHEAF_CLI_BENCH_DEVICE_H

#include <stdbool.h>

/* Measures the cases whose names hold every word (ended by NULL) and prints them; an exit code. */
int bench_on_device(const char *device, const char *const *words, bool quick, bool list);

#endif
