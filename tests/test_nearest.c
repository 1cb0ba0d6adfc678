/* test_nearest.c: nearest rows: order and bits against the bit oracle's dot product, for every type, metric and
 * instruction set, in parts and by threads; ties, NaN, the row that is left out, refusals, failing memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <sheaf/sheaf.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/bit_number.h"
#include "support/environment.h"
#include "support/test_random.h"

enum { ROWS = 83, MOST_DIM = 130, MOST_BYTES = MOST_DIM * 8 + 16 };

static const sheaf_dtype dtypes[] = {SHEAF_F32, SHEAF_F64, SHEAF_F16, SHEAF_BF16, SHEAF_INT8, SHEAF_INT4};
static const int64_t dims[] = {0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 64, 130};

typedef struct table {
  sheaf_dtype dtype;
  int64_t dim, width, stride; /* columns of the tensor, and between rows */
  _Alignas(64) unsigned char cells[ROWS * (MOST_BYTES + 64)];
  double query[MOST_DIM];       /* exact in the accumulator */
  double value[ROWS][MOST_DIM]; /* what the cells read as */
  _Alignas(64) unsigned char query_cells[MOST_DIM * 8];
  int64_t shape[2], strides[2], query_shape[1];
  DLTensor tensor, vector;
} table;

static bool is_packed(sheaf_dtype dtype) { return dtype == SHEAF_INT8 || dtype == SHEAF_INT4; }

static double random_value(test_random *random)
{
  static const double special[] = {0, -0.0, 1, -1, INFINITY, -INFINITY, NAN, 1e-40, 3e38, 65504};
  if (random_chance(random, 0.002)) return special[random_below(random, 10)];
  return 2 * random_unit(random) - 1;
}

static void fill_packed(table *t, int64_t row, test_random *random)
{
  unsigned char *cells = t->cells + row * t->stride;
  float scale = 0.01f * (float)(1 + random_below(random, 5)), bias = (float)random_unit(random) - 0.5f;
  int64_t bytes = t->dtype == SHEAF_INT8 ? t->dim : (t->dim + 1) / 2;
  for (int64_t i = 0; i < bytes; i++) cells[i] = (unsigned char)random_bits(random);
  if (row % 17 == 5) bias = NAN;
  if (t->dtype == SHEAF_INT8) {
    memcpy(cells + bytes, &scale, 4);
    memcpy(cells + bytes + 4, &bias, 4);
  } else {
    uint16_t tail[2] = {bit_to_f16(scale), bit_to_f16(bias)};
    memcpy(cells + bytes, tail, 4);
    scale = bit_from_f16(tail[0]);
    bias = bit_from_f16(tail[1]);
  }
  for (int64_t d = 0; d < t->dim; d++) {
    int q = t->dtype == SHEAF_INT8 ? cells[d] : d % 2 ? cells[d / 2] >> 4 : cells[d / 2] & 15;
    t->value[row][d] = bit_fma(false, q, scale, bias);
  }
}

static void fill_plain(table *t, int64_t row, test_random *random)
{
  unsigned char *cells = t->cells + row * t->stride * (int64_t)bit_element_bytes(t->dtype);
  for (int64_t d = 0; d < t->dim; d++) {
    double value = row % 13 == 7 ? 0 : random_value(random);
    if (row % 11 == 3) value = t->value[row - 1][d]; /* equal rows: ties */
    bit_store(t->dtype, cells, d, value);
    t->value[row][d] = bit_load(t->dtype, cells, d);
  }
}

static void make_table(table *t, sheaf_dtype dtype, int64_t dim, int64_t padding, uint64_t seed)
{
  test_random random = {seed};
  bool wide = dtype == SHEAF_F64;
  memset(t->cells, 0xFF, sizeof t->cells); /* NaN between rows, where there is room */
  t->dtype = dtype;
  t->dim = dim;
  t->width = is_packed(dtype) ? sheaf_dtype_row_bytes(dtype, dim) : dim;
  t->stride = t->width + padding;
  for (int64_t row = 0; row < ROWS; row++) (is_packed(dtype) ? fill_packed : fill_plain)(t, row, &random);
  for (int64_t d = 0; d < dim; d++) {
    bit_store(wide ? SHEAF_F64 : SHEAF_F32, t->query_cells, d, 2 * random_unit(&random) - 1);
    t->query[d] = bit_load(wide ? SHEAF_F64 : SHEAF_F32, t->query_cells, d);
  }
  t->shape[0] = ROWS;
  t->shape[1] = t->width;
  t->strides[0] = t->stride;
  t->strides[1] = 1;
  t->query_shape[0] = dim;
  t->tensor = (DLTensor){.data = t->cells, .device = {kDLCPU, 0}, .ndim = 2, .dtype = sheaf_dtype_to_dl(dtype)};
  t->tensor.shape = t->shape;
  t->tensor.strides = t->strides;
  t->vector = (DLTensor){.data = t->query_cells, .device = {kDLCPU, 0}, .ndim = 1};
  t->vector.dtype = sheaf_dtype_to_dl(wide ? SHEAF_F64 : SHEAF_F32);
  t->vector.shape = t->query_shape;
}

/* ---- The oracle -------------------------------------------------------------------------------------------------- */

static double root(bool wide, double x) { return wide ? sqrt(x) : (double)(float)sqrt((double)(float)x); }

static double score_of(const table *t, sheaf_metric metric, int64_t row)
{
  bool wide = t->dtype == SHEAF_F64;
  if (metric == SHEAF_METRIC_L2) {
    double gap[MOST_DIM];
    for (int64_t d = 0; d < t->dim; d++) gap[d] = bit_subtract(wide, t->value[row][d], t->query[d]);
    return bit_dot(wide, gap, gap, t->dim);
  }
  double dot = bit_dot(wide, t->query, t->value[row], t->dim);
  if (metric == SHEAF_METRIC_DOT) return dot;
  double q = root(wide, bit_dot(wide, t->query, t->query, t->dim));
  double x = root(wide, bit_dot(wide, t->value[row], t->value[row], t->dim));
  return bit_divide(wide, dot, bit_multiply(wide, q, x));
}

static bool comes_first(sheaf_metric metric, sheaf_neighbour a, sheaf_neighbour b)
{
  if (isnan(a.score) != isnan(b.score)) return isnan(b.score);
  if (!isnan(a.score) && a.score != b.score) return metric == SHEAF_METRIC_L2 ? a.score < b.score : a.score > b.score;
  return a.row < b.row;
}

/* All rows in order, by insertion. */
static int64_t order_rows(const table *t, sheaf_metric metric, int64_t excluded, sheaf_neighbour *sorted)
{
  int64_t count = 0;
  for (int64_t row = 0; row < ROWS; row++) {
    if (row == excluded) continue;
    sheaf_neighbour new = {row, score_of(t, metric, row)};
    int64_t at = count++;
    for (; at > 0 && comes_first(metric, new, sorted[at - 1]); at--) sorted[at] = sorted[at - 1];
    sorted[at] = new;
  }
  return count;
}

/* ---- Expectations ------------------------------------------------------------------------------------------------ */

static sheaf_nearest_desc desc_of(const table *t, sheaf_metric metric, int64_t k, int threads)
{
  sheaf_nearest_desc desc = SHEAF_NEAREST_DESC_INIT;
  desc.metric = metric;
  desc.dtype = t->dtype;
  desc.rows = ROWS;
  desc.dim = t->dim;
  desc.k = k;
  desc.threads = threads;
  return desc;
}

static sheaf_status search(const table *t, const sheaf_nearest_desc *desc, sheaf_neighbour *best, int64_t *count)
{
  sheaf_operand rows = {&t->tensor, 0}, query = {&t->vector, 0};
  return sheaf_nearest(desc, &rows, &query, best, count);
}

static void expect_same(const table *t, sheaf_metric metric, const sheaf_neighbour *got, int64_t got_count,
                        const sheaf_neighbour *wanted, int64_t count)
{
  assert_int_equal(got_count, count);
  for (int64_t i = 0; i < count; i++) {
    bool same =
        isnan(wanted[i].score) ? isnan(got[i].score) : memcmp(&got[i].score, &wanted[i].score, sizeof(double)) == 0;
    if (got[i].row != wanted[i].row || !same)
      fail_msg("%s %s D%d, %s: place %d is row %d with %a instead of row %d with %a", sheaf_dtype_name(t->dtype),
               sheaf_metric_name(metric), (int)t->dim, sheaf_isa_name(sheaf_isa_current()), (int)i, (int)got[i].row,
               got[i].score, (int)wanted[i].row, wanted[i].score);
  }
}

static void expect_order(const table *t, sheaf_metric metric, int64_t k, int threads)
{
  sheaf_neighbour wanted[ROWS], best[ROWS];
  int64_t excluded = 20, all = order_rows(t, metric, excluded, wanted), count = 0;
  sheaf_nearest_desc desc = desc_of(t, metric, k, threads);
  desc.has_excluded = 1;
  desc.excluded = excluded;
  if (search(t, &desc, best, &count) != SHEAF_OK) fail_msg("%s", sheaf_last_error());
  expect_same(t, metric, best, count, wanted, k < all ? k : all);
}

static table *shared;

static void test_every_type_metric_and_isa_gives_the_bits_of_the_definition(void **state)
{
  (void)state;
  for (int isa = 0; isa <= (int)sheaf_isa_best(); isa++) {
    assert_int_equal(sheaf_set_isa((sheaf_isa)isa), SHEAF_OK);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
      for (size_t j = 0; j < sizeof dims / sizeof *dims; j++) {
        make_table(shared, dtypes[i], dims[j], j % 3 == 1 ? 5 : 0, 100 * i + j);
        for (int metric = 0; metric < 3; metric++) expect_order(shared, (sheaf_metric)metric, ROWS, 1 + (int)(j % 4));
      }
  }
}

static void test_k_and_threads_only_cut_the_list(void **state)
{
  (void)state;
  make_table(shared, SHEAF_F16, 33, 0, 7);
  for (int64_t k = 1; k <= ROWS; k += k < 12 ? 1 : 13)
    for (int threads = 1; threads <= 9; threads += 4) expect_order(shared, SHEAF_METRIC_COSINE, k, threads);
}

/* Parts of a table in any order give what the whole gives. */
static void test_parts_give_what_the_whole_gives(void **state)
{
  (void)state;
  static const int64_t parts[][2] = {{50, 83}, {0, 3}, {17, 50}, {3, 3}, {3, 17}};
  for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
    make_table(shared, dtypes[i], 24, 0, i);
    sheaf_neighbour wanted[ROWS], best[ROWS];
    order_rows(shared, SHEAF_METRIC_L2, -1, wanted);
    int64_t count = 0;
    size_t size = bit_element_bytes(is_packed(dtypes[i]) ? SHEAF_U8 : dtypes[i]);
    if (size == 0) size = 1;
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
      sheaf_nearest_desc desc = desc_of(shared, SHEAF_METRIC_L2, 10, 2);
      desc.first_row = parts[p][0];
      desc.rows = shared->shape[0] = parts[p][1] - parts[p][0];
      shared->tensor.data = shared->cells + (size_t)(parts[p][0] * shared->stride) * size;
      if (search(shared, &desc, best, &count) != SHEAF_OK) fail_msg("%s", sheaf_last_error());
    }
    expect_same(shared, SHEAF_METRIC_L2, best, count, wanted, 10);
  }
}

static void test_an_empty_table_has_no_neighbours(void **state)
{
  (void)state;
  make_table(shared, SHEAF_F32, 8, 0, 1);
  shared->shape[0] = 0;
  shared->tensor.data = NULL;
  sheaf_nearest_desc desc = desc_of(shared, SHEAF_METRIC_DOT, 4, 2);
  desc.rows = 0;
  sheaf_neighbour best[4];
  int64_t count = 0;
  assert_int_equal(search(shared, &desc, best, &count), SHEAF_OK);
  assert_int_equal(count, 0);
}

#define refused(change, wanted, words)                                          \
  do {                                                                          \
    make_table(shared, SHEAF_F32, 8, 0, 1);                                     \
    sheaf_nearest_desc desc = desc_of(shared, SHEAF_METRIC_DOT, 4, 2);          \
    sheaf_neighbour best[4] = {{1, 2}};                                         \
    int64_t count = 1;                                                          \
    change;                                                                     \
    assert_int_equal(search(shared, &desc, best, &count), SHEAF_##wanted);      \
    if (!strstr(sheaf_last_error(), words)) fail_msg("%s", sheaf_last_error()); \
    assert_int_equal(best[0].row, 1);                                           \
  } while (0)

static void test_what_contradicts_itself_is_refused(void **state)
{
  (void)state;
  refused(desc.k = 0, INVALID_PROBLEM, "k is 0");
  refused(desc.k = -3, INVALID_PROBLEM, "k is -3");
  refused(desc.metric = (sheaf_metric)3, INVALID_PROBLEM, "metric is 3");
  refused(desc.dtype = SHEAF_I64, UNSUPPORTED, "i64");
  refused(desc.dtype = SHEAF_DTYPE_NONE, UNSUPPORTED, "none");
  refused(desc.rows = -1, INVALID_PROBLEM, "-1");
  refused(desc.dim = INT64_MAX, INVALID_PROBLEM, "extents");
  refused(desc.first_row = -1, INVALID_PROBLEM, "first_row is -1");
  refused(desc.threads = -1, INVALID_PROBLEM, "threads is -1");
  refused(desc.struct_size = 8, INVALID_PROBLEM, "struct_size is 8");
  refused(desc.rows = 84, INVALID_PROBLEM, "table");
  refused(desc.dim = 9, INVALID_PROBLEM, "table");
  refused(shared->vector.shape[0] = 7, INVALID_PROBLEM, "query");
  refused(shared->vector.dtype.bits = 64, INVALID_PROBLEM, "query");
  refused(shared->vector.data = NULL, INVALID_PROBLEM, "query");
  refused(shared->tensor.data = shared->cells + 1, MISALIGNED, "table");
  refused(shared->tensor.device.device_type = kDLCUDA, INVALID_PROBLEM, "table");
  refused(count = 5, INVALID_PROBLEM, "count is 5");
  refused(desc.k = (int64_t)1 << 47, INVALID_PROBLEM, "k is");
  sheaf_nearest_desc desc = desc_of(shared, SHEAF_METRIC_DOT, 4, 1);
  int64_t count = 0;
  assert_int_equal(sheaf_nearest(&desc, NULL, NULL, NULL, &count), SHEAF_INVALID_PROBLEM);
  assert_int_equal(sheaf_nearest(NULL, NULL, NULL, NULL, NULL), SHEAF_INVALID_PROBLEM);
  sheaf_neighbour best[4];
  assert_int_equal(sheaf_nearest(&desc, NULL, NULL, best, &count), SHEAF_INVALID_PROBLEM);
}

static void *no_memory(void *context, size_t bytes, size_t alignment)
{
  (void)context;
  (void)bytes;
  (void)alignment;
  return NULL;
}
static void no_release(void *context, void *memory, size_t bytes)
{
  (void)context;
  (void)memory;
  (void)bytes;
}

static void test_short_memory_is_said(void **state)
{
  (void)state;
  static const sheaf_allocator none = {no_memory, no_release, NULL};
  assert_int_equal(sheaf_set_allocator(&none), SHEAF_OK);
  refused(count = 1, OUT_OF_MEMORY, "neighbours");
  assert_int_equal(sheaf_set_allocator(NULL), SHEAF_OK);
}

static void test_metrics_have_names(void **state)
{
  (void)state;
  assert_string_equal(sheaf_metric_name(SHEAF_METRIC_COSINE), "cosine");
  assert_string_equal(sheaf_metric_name(SHEAF_METRIC_L2), "l2");
  assert_string_equal(sheaf_metric_name((sheaf_metric)9), "none");
}

int main(int argc, char **argv)
{
  (void)argc;
  environment_prepare(argv);
  shared = aligned_alloc(64, (sizeof *shared + 63) / 64 * 64);
  if (!shared) return 1;
  memset(shared, 0, sizeof *shared);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_type_metric_and_isa_gives_the_bits_of_the_definition),
      cmocka_unit_test(test_k_and_threads_only_cut_the_list),
      cmocka_unit_test(test_parts_give_what_the_whole_gives),
      cmocka_unit_test(test_an_empty_table_has_no_neighbours),
      cmocka_unit_test(test_what_contradicts_itself_is_refused),
      cmocka_unit_test(test_short_memory_is_said),
      cmocka_unit_test(test_metrics_have_names),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  free(shared);
  return failed;
}
