/* cli/bench_case.c: the cases of `sheaf bench`: lookups, bags, gradients, segments, and the grid of bags. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { M = 1000000, RUN_BYTES = 40000000, GRID_TABLE_BYTES = 512000000 };

#define COUNT(list) ((int)(sizeof list / sizeof *(list)))

/* ---- What follows from a case -------------------------------------------------------------------------------- */

bool bench_is_backward(const bench_case *c)
{
  return strstr(sheaf_kind_name(c->category, c->kind), "backward") != NULL;
}

int64_t bench_row_bytes(const bench_case *c) { return sheaf_dtype_row_bytes(c->dtype, c->dim); }

int64_t bench_entries(const bench_case *c)
{
  int64_t entries = c->entries ? c->entries : RUN_BYTES / bench_row_bytes(c);
  if (!c->entries && entries > 2 * M) entries = 2 * M;
  if (!c->entries && entries < 4096) entries = 4096;
  return c->length && c->lengths == BENCH_FIXED ? (entries + c->length - 1) / c->length * c->length : entries;
}

int64_t bench_bags(const bench_case *c)
{
  if (c->length == 0) return 0;
  return bench_entries(c) / c->length * (c->lengths == BENCH_ALTERNATING ? 2 : 1);
}

double bench_memory_needed(const bench_case *c)
{
  double row = (double)bench_row_bytes(c), entries = (double)bench_entries(c);
  double table_rows = (double)(c->rows > c->reference_rows ? c->rows : c->reference_rows);
  if (c->category == SHEAF_CATEGORY_SEGMENT)
    return (entries * (row + 16) * 2 + (double)c->segments * (row + 8 * (double)c->dim) + entries * 40);
  double outputs = c->length ? (double)bench_bags(c) : entries;
  return table_rows * (row + 8 * (double)c->row_pad) + outputs * (row + 8 * (double)c->dim) +
         (bench_is_backward(c) ? 1200e6 : 400e6) + entries * 60;
}

/* ---- Names --------------------------------------------------------------------------------------------------- */

static void append(char *name, size_t room, const char *text, int64_t number)
{
  size_t used = strlen(name);
  if (number < 0) snprintf(name + used, room - used, "%s", text);
  else if (number && number % M == 0) snprintf(name + used, room - used, "%s%lldM", text, (long long)(number / M));
  else snprintf(name + used, room - used, "%s%lld", text, (long long)number);
}

static const char *mode_name(const bench_case *c)
{
  if (c->weighted) return bench_is_backward(c) ? "weighted-backward" : "weighted";
  return c->padded ? "padded" : sheaf_kind_name(c->category, c->kind);
}

/* The name says everything that sets a case apart: "bag_sum-f32-D64-L20-V1M-uniform". */
static void make_name(bench_case *c)
{
  size_t room = sizeof c->name;
  c->name[0] = '\0';
  append(c->name, room, mode_name(c), -1);
  append(c->name, room, "-", -1);
  append(c->name, room, sheaf_dtype_name(c->dtype), -1);
  append(c->name, room, "-D", c->dim);
  if (c->length) append(c->name, room, "-L", c->length);
  if (c->lengths == BENCH_POWER_LAW) append(c->name, room, "power", -1);
  if (c->category == SHEAF_CATEGORY_SEGMENT) {
    append(c->name, room, "-N", bench_entries(c));
    append(c->name, room, "-S", c->segments);
  } else {
    append(c->name, room, "-V", c->rows);
  }
  if (c->spread == BENCH_UNIFORM) append(c->name, room, "-uniform", -1);
  size_t used = strlen(c->name);
  if (c->spread == BENCH_POWER) snprintf(c->name + used, room - used, "-%.2f", c->exponent);
  if (c->index == SHEAF_I32) append(c->name, room, "-i32", -1);
  if (c->checked) append(c->name, room, "-checked", -1);
  if (c->grouping_given) append(c->name, room, "-grouped", -1);
  if (c->touched) append(c->name, room, "-touched", -1);
  if (c->warm) append(c->name, room, "-warm", -1);
  if (c->note) {
    append(c->name, room, "-", -1);
    append(c->name, room, c->note, -1);
  }
}

void bench_add_case(bench_cases *list, bench_case c)
{
  if (list->count == list->room) {
    int room = list->room ? 2 * list->room : 64;
    bench_case *items = realloc(list->items, (size_t)room * sizeof *items);
    if (!items) {
      list->failed = true;
      return;
    }
    list->items = items;
    list->room = room;
  }
  if (!c.dtype) c.dtype = SHEAF_F32;
  if (!c.index) c.index = SHEAF_I64;
  if (c.exponent > 0) c.spread = BENCH_POWER;
  if (!c.name[0]) make_name(&c);
  list->items[list->count++] = c;
}

static void add_all(bench_cases *list, const char *suite, const bench_case *cases, int count)
{
  for (int i = 0; i < count; i++) {
    bench_case c = cases[i];
    c.suite = suite;
    bench_add_case(list, c);
  }
}

/* ---- Suites -------------------------------------------------------------------------------------------------- */

#define LOOKUP .kind = SHEAF_LOOKUP, .ceiling = STREAM_GATHER
#define SUM .kind = SHEAF_BAG_SUM, .ceiling = STREAM_GATHER
#define MEAN .kind = SHEAF_BAG_MEAN, .ceiling = STREAM_GATHER
#define MAX .kind = SHEAF_BAG_MAX, .ceiling = STREAM_GATHER

static const bench_case lookup_cases[] = {
  {LOOKUP, .dim = 128, .rows = 10 * M, .entries = 131072, .target = 1.15, .quick = false},
  {LOOKUP, .dim = 128, .rows = M, .entries = 131072, .quick = true},
  {LOOKUP, .dim = 128, .rows = M, .entries = 131072, .exponent = 1.05},
  {LOOKUP, .dim = 128, .rows = M, .entries = 131072, .index = SHEAF_I32},
  {LOOKUP, .dim = 128, .rows = M, .entries = 131072, .checked = true},
  {LOOKUP, .dim = 64, .rows = M, .entries = 131072},
  {LOOKUP, .dim = 16, .rows = 8 * M, .entries = 524288},
  {LOOKUP, .dtype = SHEAF_F16, .dim = 128, .rows = M, .entries = 131072},
  {LOOKUP, .dtype = SHEAF_F64, .dim = 128, .rows = M, .entries = 131072},
  {LOOKUP, .dtype = SHEAF_INT8, .dim = 128, .rows = 4 * M, .entries = 131072},
  {LOOKUP, .dim = 64, .rows = 2000, .entries = 2000, .warm = true},
};

/* Those with a target are the ones that the library is judged by. */
static const bench_case bag_cases[] = {
  {SUM, .dim = 64, .length = 20, .rows = M, .target = 0.97, .quick = true},
  {MEAN, .dim = 64, .length = 20, .rows = M, .target = 0.94},
  {SUM, .dim = 64, .length = 20, .rows = M, .weighted = true, .target = 0.94},
  {SUM, .dim = 64, .length = 20, .rows = M, .padded = true},
  {SUM, .dim = 64, .length = 20, .rows = M, .lengths = BENCH_POWER_LAW},
  {SUM, .dim = 64, .length = 20, .rows = M, .checked = true},
  {SUM, .dim = 64, .length = 20, .rows = M, .index = SHEAF_I32},
  {MAX, .dim = 64, .length = 80, .rows = M, .target = 0.90, .quick = true},
  {SUM, .dim = 64, .length = 1, .rows = M},
  {SUM, .dim = 64, .length = 5, .rows = M},
  {SUM, .dim = 64, .length = 500, .rows = M},
  {SUM, .dim = 128, .length = 80, .rows = M, .target = 0.97, .quick = true},
  {SUM, .dim = 128, .length = 80, .rows = M, .exponent = 1.05, .target = 0.96, .quick = true},
  {SUM, .dim = 128, .length = 80, .rows = M, .exponent = 1.15},
  {SUM, .dim = 128, .length = 1, .rows = M},
  {SUM, .dim = 128, .length = 80, .rows = M, .lengths = BENCH_POWER_LAW, .exponent = 1.05},
  {SUM, .dim = 128, .length = 80, .rows = 10 * M, .target = 0.90},
  {SUM, .dim = 256, .length = 80, .rows = 10 * M, .target = 0.92},
  {SUM, .dtype = SHEAF_F16, .dim = 128, .length = 20, .rows = M, .target = 0.90, .quick = true},
  {SUM, .dtype = SHEAF_BF16, .dim = 128, .length = 20, .rows = M, .target = 0.90},
  {SUM, .dtype = SHEAF_F64, .dim = 128, .length = 20, .rows = M},
  {SUM, .dtype = SHEAF_INT8, .dim = 128, .length = 20, .rows = M, .target = 0.88, .quick = true},
  {SUM, .dtype = SHEAF_INT4, .dim = 128, .length = 20, .rows = M, .target = 0.75},
  {SUM, .dim = 16, .length = 20, .rows = 8 * M},
  {SUM, .dim = 32, .length = 20, .rows = 4 * M},
  {SUM, .dim = 100, .length = 20, .rows = M},
  {SUM, .dim = 1024, .length = 20, .rows = 200000},
  {SUM, .dim = 64, .length = 20, .rows = 2000, .entries = 20000, .warm = true},
  {MAX, .dim = 64, .length = 20, .rows = 2000, .entries = 20000, .warm = true},
  {SUM, .dtype = SHEAF_F16, .dim = 128, .length = 20, .rows = 2000, .entries = 20000, .warm = true},
};

#define BACKWARD(KIND) .kind = SHEAF_##KIND##_BACKWARD, .ceiling = STREAM_GATHER

static const bench_case backward_cases[] = {
  {BACKWARD(BAG_SUM), .dim = 128, .length = 20, .entries = 40960, .rows = M, .touched = true, .target = 0.90,
   .quick = true},
  {BACKWARD(BAG_SUM), .dim = 128, .length = 20, .entries = 40960, .rows = M, .exponent = 1.05, .touched = true,
   .target = 1.00, .quick = true},
  {BACKWARD(BAG_SUM), .dim = 128, .length = 20, .entries = 40960, .rows = M},
  {BACKWARD(BAG_SUM), .dim = 128, .length = 20, .entries = 40960, .rows = M, .exponent = 1.05},
  {BACKWARD(BAG_SUM), .dim = 128, .length = 20, .entries = 40960, .rows = M, .grouping_given = true},
  {BACKWARD(BAG_MEAN), .dim = 128, .length = 20, .entries = 40960, .rows = M},
  {BACKWARD(BAG_SUM), .dim = 128, .length = 20, .entries = 40960, .rows = M, .weighted = true},
  {BACKWARD(BAG_MAX), .dim = 128, .length = 20, .entries = 40960, .rows = M},
  {BACKWARD(BAG_SUM), .dim = 64, .length = 20, .entries = 163840, .rows = M},
  {BACKWARD(BAG_SUM), .dim = 128, .length = 80, .entries = 655360, .rows = M},
  {BACKWARD(BAG_SUM), .dim = 128, .length = 80, .entries = 655360, .rows = M, .exponent = 1.05},
  {BACKWARD(BAG_SUM), .dtype = SHEAF_F16, .dim = 128, .length = 20, .entries = 40960, .rows = M},
  {BACKWARD(LOOKUP), .dim = 128, .entries = 131072, .rows = M},
  {BACKWARD(LOOKUP), .dim = 128, .entries = 131072, .rows = M, .exponent = 1.05},
};

#define SEGMENT(KIND, stream) .category = SHEAF_CATEGORY_SEGMENT, .kind = SHEAF_##KIND, .ceiling = STREAM_##stream
#define MILLION .dim = 64, .entries = M, .segments = M / 16

static const bench_case segment_cases[] = {
  {SEGMENT(SEGMENT_SUM, READ), MILLION, .target = 0.96, .quick = true},
  {SEGMENT(SEGMENT_SUM, READ), MILLION, .exponent = 1.05, .target = 0.96, .quick = true},
  {SEGMENT(SEGMENT_MEAN, READ), MILLION},
  {SEGMENT(SEGMENT_MAX, READ), MILLION},
  {SEGMENT(SEGMENT_PROD, READ), MILLION},
  {SEGMENT(SEGMENT_SUM, READ), MILLION, .dtype = SHEAF_F16},
  {SEGMENT(UNSORTED_SEGMENT_SUM, READ), MILLION, .target = 0.38, .quick = true},
  {SEGMENT(UNSORTED_SEGMENT_SUM, READ), MILLION, .exponent = 1.05, .target = 0.38},
  {SEGMENT(UNSORTED_SEGMENT_SUM, READ), MILLION, .grouping_given = true},
  {SEGMENT(UNSORTED_SEGMENT_MAX, READ), MILLION},
  {SEGMENT(SEGMENT_SUM_BACKWARD, COPY), MILLION, .target = 0.90, .quick = true},
  {SEGMENT(SEGMENT_MEAN_BACKWARD, COPY), MILLION},
  {SEGMENT(UNSORTED_SEGMENT_SUM_BACKWARD, COPY), MILLION, .target = 0.90},
  {SEGMENT(SEGMENT_MAX_BACKWARD, COPY), MILLION},
};

/* ---- The grid ------------------------------------------------------------------------------------------------ */

/* Cases that share a table follow each other. */
static void add_grid_of_table(bench_cases *list, sheaf_dtype dtype, int64_t dim)
{
  static const bench_case modes[] = {{SUM}, {MEAN}, {MAX}, {SUM, .weighted = true}, {SUM, .padded = true}};
  static const int64_t lengths[] = {1, 5, 20, 80, 500};
  static const double exponents[] = {0, 1.05, 1.15};
  for (int mode = 0; mode < COUNT(modes); mode++)
    for (int length = 0; length < COUNT(lengths); length++)
      for (int exponent = 0; exponent < COUNT(exponents); exponent++) {
        bench_case c = modes[mode];
        c.suite = "bag";
        c.dtype = dtype;
        c.dim = dim;
        c.length = lengths[length];
        c.exponent = exponents[exponent];
        c.rows = GRID_TABLE_BYTES / sheaf_dtype_row_bytes(dtype, dim);
        c.note = "grid";
        bench_add_case(list, c);
      }
}

static void add_grid(bench_cases *list)
{
  static const int64_t dims[] = {16, 32, 64, 100, 128, 256, 1024};
  static const sheaf_dtype dtypes[] = {SHEAF_F32, SHEAF_F64, SHEAF_F16, SHEAF_BF16};
  for (int dtype = 0; dtype < COUNT(dtypes); dtype++)
    for (int dim = 0; dim < COUNT(dims); dim++) add_grid_of_table(list, dtypes[dtype], dims[dim]);
}

void bench_list_cases(bench_cases *list, bool grid)
{
  add_all(list, "lookup", lookup_cases, COUNT(lookup_cases));
  add_all(list, "bag", bag_cases, COUNT(bag_cases));
  if (grid) add_grid(list);
  add_all(list, "backward", backward_cases, COUNT(backward_cases));
  add_all(list, "segment", segment_cases, COUNT(segment_cases));
  bench_list_small(list);
  bench_list_pathologies(list);
}
