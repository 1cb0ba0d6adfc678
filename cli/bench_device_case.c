/* cli/bench_device_case.c: the cases of `sheaf bench --device cuda`, their names and the bytes they move. */
#include "bench_device_case.h"

#include <stdio.h>
#include <string.h>

enum { M = 1000000, V = 10 * M, N = 4 << 20 };

#define SUM .kind = SHEAF_BAG_SUM, .rows = V
#define BACK .kind = SHEAF_BAG_SUM_BACKWARD, .rows = V
#define SMALL .bags = 1024, .length = 64
#define ONES .bags = 131072, .length = 1
#define LARGE .bags = 131072, .length = 64
#define SEGMENTS(op) .category = SHEAF_CATEGORY_SEGMENT, .kind = SHEAF_##op, .dim = 64, .length = N, .rows = N / 16

/* Those with a target are the ones that the library is judged by. */
const device_case device_cases[] = {
    {SUM, .dim = 32, SMALL, .target_us = 9.5, .quick = true},
    {SUM, .dim = 32, ONES, .target_us = 13, .quick = true},
    {SUM, .dim = 32, LARGE, .target_us = 270, .quick = true},
    {SUM, .dim = 32, LARGE, .dtype = SHEAF_F16, .target_us = 200},
    {SUM, .dim = 32, LARGE, .exponent = 1.05, .target_us = 100, .quick = true},
    {SUM, .dim = 128, SMALL, .target_us = 14},
    {SUM, .dim = 128, ONES, .target_us = 37},
    {SUM, .dim = 128, LARGE, .target_us = 1020, .quick = true},
    {SUM, .dim = 128, LARGE, .dtype = SHEAF_F16, .target_us = 515},
    {SUM, .dim = 128, SMALL, .exponent = 1.05, .target_us = 10},
    {SUM, .dim = 128, ONES, .exponent = 1.05, .target_us = 30},
    {SUM, .dim = 128, LARGE, .exponent = 1.05, .target_us = 340},
    {SUM, .dim = 128, LARGE, .exponent = 1.05, .dtype = SHEAF_F16, .target_us = 175},
    {SUM, .dim = 32, SMALL, .fixed = true},
    {SUM, .dim = 32, LARGE, .fixed = true},
    {SUM, .dim = 128, SMALL, .fixed = true},
    {SUM, .dim = 128, ONES, .fixed = true},
    {SUM, .dim = 128, LARGE, .fixed = true},
    {SUM, .dim = 128, LARGE, .weighted = true},
    {.kind = SHEAF_BAG_MEAN, .rows = V, .dim = 128, LARGE},
    {.kind = SHEAF_BAG_MAX, .rows = V, .dim = 128, LARGE},
    {SUM, .dim = 128, LARGE, .dtype = SHEAF_BF16},
    {SUM, .dim = 128, LARGE, .dtype = SHEAF_F64},
    {SUM, .dim = 8, LARGE},
    {SUM, .dim = 16, LARGE},
    {SUM, .dim = 64, LARGE},
    {SUM, .dim = 256, .bags = 32768, .length = 64},
    {SUM, .dim = 1024, .bags = 8192, .length = 64},
    {SUM, .dim = 100, .bags = 32768, .length = 64},
    {SUM, .dim = 128, .bags = 64, .length = 65536},
    {SUM, .dim = 128, .bags = 1, .length = 65536},
    {BACK, .dim = 32, SMALL, .touched = true, .target_us = 40, .quick = true},
    {BACK, .dim = 32, ONES, .touched = true, .target_us = 55},
    {BACK, .dim = 32, LARGE, .touched = true, .target_us = 600, .quick = true},
    {BACK, .dim = 32, LARGE, .touched = true, .exponent = 1.05, .target_us = 450},
    {BACK, .dim = 128, ONES, .touched = true, .target_us = 80},
    {BACK, .dim = 128, LARGE, .touched = true, .target_us = 1700, .quick = true},
    {BACK, .dim = 128, LARGE, .touched = true, .exponent = 1.05, .target_us = 950},
    {BACK, .dim = 32, SMALL},
    {BACK, .dim = 32, ONES},
    {BACK, .dim = 32, LARGE, .quick = true},
    {BACK, .dim = 32, LARGE, .exponent = 1.05},
    {BACK, .dim = 128, ONES},
    {BACK, .dim = 128, LARGE, .quick = true},
    {BACK, .dim = 128, LARGE, .exponent = 1.05},
    {BACK, .dim = 32, SMALL, .sparse = true},
    {BACK, .dim = 128, ONES, .sparse = true},
    {BACK, .dim = 32, LARGE, .sparse = true},
    {BACK, .dim = 128, LARGE, .grouped = true},
    {BACK, .dim = 32, SMALL, .grouped = true},
    {BACK, .dim = 128, LARGE, .weighted = true},
    {BACK, .dim = 128, LARGE, .weighted = true, .weights_only = true},
    {SEGMENTS(SEGMENT_SUM), .target_fraction = 0.92, .quick = true},
    {SEGMENTS(SEGMENT_SUM), .exponent = 1.05, .target_fraction = 0.90, .quick = true},
    {SEGMENTS(SEGMENT_MAX), .target_fraction = 0.90},
    {SEGMENTS(SEGMENT_MAX), .exponent = 1.05, .target_fraction = 0.88},
    {SEGMENTS(UNSORTED_SEGMENT_SUM), .target_fraction = 0.50, .quick = true},
    {SEGMENTS(UNSORTED_SEGMENT_SUM), .exponent = 1.05, .target_fraction = 0.50},
    {SEGMENTS(UNSORTED_SEGMENT_MAX), .target_fraction = 0.50},
    {SEGMENTS(UNSORTED_SEGMENT_MAX), .exponent = 1.05, .target_fraction = 0.50},
    {SEGMENTS(SEGMENT_SUM_BACKWARD), .target_fraction = 0.90, .quick = true},
    {SEGMENTS(SEGMENT_MEAN_BACKWARD)},
    {SEGMENTS(SEGMENT_PROD_BACKWARD)},
    {.category = SHEAF_CATEGORY_SEGMENT, .kind = SHEAF_SEGMENT_SUM, .dim = 64, .length = N, .rows = 1},
    {.category = SHEAF_CATEGORY_SEGMENT, .kind = SHEAF_SEGMENT_SUM, .dim = 64, .length = N, .rows = N},
    {.kind = SHEAF_LOOKUP, .rows = V, .dim = 32, .length = 131072, .target_us = 14, .quick = true},
    {.kind = SHEAF_LOOKUP, .rows = V, .dim = 128, .length = 131072, .target_us = 40, .quick = true},
    {SUM, .dim = 128, LARGE, .dtype = SHEAF_INT8},
    {SUM, .dim = 128, LARGE, .dtype = SHEAF_INT4},
};
const int device_case_count = sizeof device_cases / sizeof *device_cases;

static sheaf_dtype dtype_of(const device_case *c) { return c->dtype ? c->dtype : SHEAF_F32; }

bool device_case_is_backward(const device_case *c)
{
  return strstr(sheaf_kind_name(c->category, (uint16_t)c->kind), "backward") != NULL;
}

void device_case_name(const device_case *c, char *name, size_t room)
{
  char extent[64], spread[32] = "uniform";
  if (c->bags)
    snprintf(extent, sizeof extent, "%lldx%lld", (long long)c->bags, (long long)c->length);
  else if (c->category == SHEAF_CATEGORY_SEGMENT)
    snprintf(extent, sizeof extent, "N%lld-S%lld", (long long)c->length, (long long)c->rows);
  else
    snprintf(extent, sizeof extent, "%lld", (long long)c->length);
  if (c->exponent > 0) snprintf(spread, sizeof spread, "%.2f", c->exponent);
  snprintf(name, room, "%s-%s-D%lld-%s-%s%s%s%s%s", sheaf_kind_name(c->category, (uint16_t)c->kind),
           sheaf_dtype_name(dtype_of(c)), (long long)c->dim, extent, spread, c->fixed ? "-fixed" : "",
           c->weights_only ? "-weights"
           : c->weighted   ? "-weighted"
                           : "",
           c->grouped ? "-grouped" : "",
           c->touched  ? "-touched"
           : c->sparse ? "-sparse"
                       : "");
}

double device_case_bytes(const device_case *c, int64_t touched)
{
  double row = (double)sheaf_dtype_row_bytes(dtype_of(c), c->dim), entries = (double)device_case_entries(c);
  double index = entries * 8, weights = c->weighted ? entries * 4 : 0;
  double out = c->dtype == SHEAF_INT8 || c->dtype == SHEAF_INT4 ? 4 * (double)c->dim : row;
  if (c->category == SHEAF_CATEGORY_SEGMENT) {
    int reads = c->kind == SHEAF_SEGMENT_PROD_BACKWARD ? 2 : 1;
    return entries * row * reads + (double)c->rows * row + index;
  }
  if (!device_case_is_backward(c)) return entries * row + (c->bags ? (double)c->bags : entries) * out + index + weights;
  if (c->weights_only) return entries * row + (double)c->bags * row + index + weights;
  return (double)c->bags * row + (c->touched || c->sparse ? 1 : 2) * (double)touched * row + index + weights;
}

json_t *device_case_result(const device_case *c, const char *kernel, double seconds, double speed, double copy)
{
  char name[96];
  device_case_name(c, name, sizeof name);
  json_t *spread = c->exponent > 0 ? json_sprintf("%.2f", c->exponent) : json_string("uniform");
  return json_pack("{s:s, s:s, s:s, s:o, s:I, s:I, s:I, s:i, s:s, s:f, s:f, s:s, s:f, s:f}", "suite", "cuda", "case",
                   name, "dtype", sheaf_dtype_name(c->dtype ? c->dtype : SHEAF_F32), "spread", spread, "rows",
                   (json_int_t)c->rows, "dim", (json_int_t)c->dim, "entries", (json_int_t)device_case_entries(c),
                   "threads", 1, "sku", kernel, "ns", seconds * 1e9, "gbps", speed * 1e-9, "ceiling", "copy",
                   "ceiling_gbps", copy * 1e-9, "fraction", speed / copy);
}
