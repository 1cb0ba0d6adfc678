/* cli/bench_device.h: `sheaf bench --device cuda`. */
#ifndef SHEAF_CLI_BENCH_DEVICE_H
#define SHEAF_CLI_BENCH_DEVICE_H

#include <jansson.h>
#include <stdbool.h>

/* Measures the cases whose names hold every word (ended by NULL), prints them with `text`, and adds the device, its
 * ceiling and the results to `root`; with `list` only names them. An exit code. */
int bench_on_device(const char *device, const char *const *words, bool quick, bool list, bool text, json_t *root);

#endif
