/* test_nearest_filter.c: quantised rows that are passed over without a score: none that is near, and most that are far;
 * scores by the bit oracle, over rows that try the bounds: near ties, large means, tiny and huge numbers. */
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
#include "plan/plan_impl.h"
#include "support/environment.h"
#include "support/test_random.h"

enum { ROWS = 320, MOST_DIM = 300, MOST_BYTES = MOST_DIM + 8 };

typedef enum shape { PLAIN, ALIKE, FAR_FROM_ZERO, EXTREME, ACROSS, SHAPES } shape; /* across: a tiny query, hardly met */
static const char *const shape_names[] = {"plain", "alike", "far from zero", "extreme", "across"};
static const int64_t dims[] = {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 300};

static sheaf_dtype dtype;
static int64_t dim, row_bytes;
static unsigned char cells[ROWS * MOST_BYTES];
static float query[MOST_DIM];
static double value[ROWS][MOST_DIM], wide_query[MOST_DIM];

static int code_at(const unsigned char *row, int64_t column)
{
  return dtype == SHEAF_INT8 ? row[column] : column % 2 ? row[column / 2] >> 4 : row[column / 2] & 15;
}

/* Scale and bias of a row of the shape; f16 in the end where rows are int4. */
static void choose_tail(shape kind, int64_t row, test_random *random, float *scale, float *bias)
{
  static const float extremes[] = {0, -0.01f, 1e-30f, 1e-12f, 1e12f, 1e25f, INFINITY, NAN, 1e-40f, -3};
  int codes = dtype == SHEAF_INT8 ? 255 : 15;
  *scale = (float)(0.5 + random_unit(random)) / (float)codes;
  *bias = -*scale * (float)codes * (0.4f + 0.2f * (float)random_unit(random));
  if (kind == FAR_FROM_ZERO) *bias += 10;
  if (kind == ACROSS) *bias = (float)(1e-4 * (1 + random_unit(random)));
  if (kind == EXTREME && row % 3 == 0) *scale = extremes[random_below(random, 10)];
  if (kind == EXTREME && row % 7 == 0) *bias = extremes[random_below(random, 10)];
}

/* Alike: all rows have the codes of the first, but for a few. */
static void make_rows(shape kind, test_random *random)
{
  int64_t bytes = dtype == SHEAF_INT8 ? dim : (dim + 1) / 2;
  row_bytes = sheaf_dtype_row_bytes(dtype, dim);
  for (int64_t row = 0; row < ROWS; row++) {
    unsigned char *at = cells + row * row_bytes;
    float scale, bias;
    choose_tail(kind, kind == ALIKE ? 1 : row, random, &scale, &bias);
    for (int64_t i = 0; i < bytes; i++) at[i] = (unsigned char)random_bits(random); /* stray half bytes too */
    if (kind == ACROSS) at[0] &= dtype == SHEAF_INT8 ? 0 : 0xf0; /* the only column that the query has */
    if (kind == ALIKE && row > 0) {
      memcpy(at, cells, (size_t)row_bytes);
      for (int i = 0; i < 3; i++) at[random_below(random, bytes)] ^= (unsigned char)(1 << random_below(random, 8));
    } else if (dtype == SHEAF_INT8) {
      memcpy(at + bytes, &scale, 4);
      memcpy(at + bytes + 4, &bias, 4);
    } else {
      uint16_t tail[2] = {bit_to_f16(scale), bit_to_f16(bias)};
      memcpy(at + bytes, tail, 4);
    }
    uint16_t halves[2];
    memcpy(halves, at + bytes, 4);
    memcpy(&scale, at + bytes, 4);
    if (dtype == SHEAF_INT8) memcpy(&bias, at + bytes + 4, 4);
    if (dtype == SHEAF_INT4) scale = bit_from_f16(halves[0]), bias = bit_from_f16(halves[1]);
    for (int64_t d = 0; d < dim; d++) value[row][d] = bit_fma(false, code_at(at, d), scale, bias);
  }
}

/* One of the rows, a little off; or numbers of its own, with a few that stand out. */
static void make_query(shape kind, test_random *random)
{
  for (int64_t d = 0; d < dim; d++) {
    double noise = random_unit(random) + random_unit(random) - 1;
    query[d] = (float)(kind == ALIKE ? value[0][d] + 0.01 * noise : noise);
    if (kind != ALIKE && random_chance(random, 0.02)) query[d] *= 20;
    if (kind == ACROSS) query[d] = d == 0 ? 1.01e-15f : 0;
    wide_query[d] = query[d];
  }
}

static double score_of(sheaf_metric metric, int64_t row)
{
  if (metric == SHEAF_METRIC_L2) {
    double gap[MOST_DIM];
    for (int64_t d = 0; d < dim; d++) gap[d] = bit_subtract(false, value[row][d], wide_query[d]);
    return bit_dot(false, gap, gap, dim);
  }
  double dot = bit_dot(false, wide_query, value[row], dim);
  if (metric == SHEAF_METRIC_DOT) return dot;
  double q = (float)sqrt(bit_dot(false, wide_query, wide_query, dim));
  double x = (float)sqrt(bit_dot(false, value[row], value[row], dim));
  return bit_divide(false, dot, bit_multiply(false, q, x));
}

static bool comes_first(sheaf_metric metric, sheaf_neighbour a, sheaf_neighbour b)
{
  if (isnan(a.score) != isnan(b.score)) return isnan(b.score);
  if (!isnan(a.score) && a.score != b.score) return metric == SHEAF_METRIC_L2 ? a.score < b.score : a.score > b.score;
  return a.row < b.row;
}

static void order_rows(sheaf_metric metric, sheaf_neighbour *sorted)
{
  for (int64_t row = 0; row < ROWS; row++) {
    sheaf_neighbour new = {row, score_of(metric, row)};
    int64_t at = row;
    for (; at > 0 && comes_first(metric, new, sorted[at - 1]); at--) sorted[at] = sorted[at - 1];
    sorted[at] = new;
  }
}

static bool same_score(double a, double b) { return isnan(a) ? isnan(b) : memcmp(&a, &b, sizeof a) == 0; }

static void complain(const char *what, shape kind, sheaf_metric metric, int64_t row)
{
  fail_msg("%s: %s rows of %d %s, %s, %s, row %d", what, shape_names[kind], (int)dim, sheaf_dtype_name(dtype),
           sheaf_metric_name(metric), sheaf_isa_name(sheaf_isa_current()), (int)row);
}

/* The whole search, for lists of several lengths. */
static void expect_lists(shape kind, sheaf_metric metric, const sheaf_neighbour *sorted)
{
  static const int64_t lengths[] = {1, 3, 20, 100};
  int64_t table_shape[] = {ROWS, row_bytes}, query_shape[] = {dim};
  DLTensor table = {.data = cells, .device = {kDLCPU, 0}, .ndim = 2, .shape = table_shape};
  DLTensor vector = {.data = query, .device = {kDLCPU, 0}, .ndim = 1, .shape = query_shape};
  table.dtype = sheaf_dtype_to_dl(SHEAF_U8);
  vector.dtype = sheaf_dtype_to_dl(SHEAF_F32);
  for (int i = 0; i < 4; i++) {
    sheaf_neighbour best[100];
    int64_t count = 0;
    sheaf_nearest_desc desc = SHEAF_NEAREST_DESC_INIT;
    desc.metric = metric;
    desc.dtype = dtype;
    desc.rows = ROWS;
    desc.dim = dim;
    desc.k = lengths[i];
    desc.threads = 1 + i % 2;
    if (sheaf_nearest(&desc, &(sheaf_operand){&table, 0}, &(sheaf_operand){&vector, 0}, best, &count) != SHEAF_OK)
      fail_msg("%s", sheaf_last_error());
    assert_int_equal(count, lengths[i]);
    for (int64_t place = 0; place < count; place++)
      if (best[place].row != sorted[place].row || !same_score(best[place].score, sorted[place].score))
        complain("another row than it should be", kind, metric, best[place].row);
  }
}

/* The kernel itself, with the limit that a list of 5 would give it: how many rows of all it passes over. */
static int passed_over(shape kind, sheaf_metric metric, const sheaf_neighbour *sorted)
{
  static _Alignas(64) int8_t weights[2 * (MOST_DIM + SHF_NEAREST_LANES)];
  const shf_nearest_kernel *kernel = shf_plan_nearest_kernel(dtype);
  int most_weight = kernel->most_weight ? kernel->most_weight() : 0, passed = 0;
  shf_nearest_filter filter;
  assert_true(shf_plan_filter_bytes(dtype, dim) <= (int64_t)sizeof weights);
  if (!most_weight || !shf_plan_filter_make(&filter, weights, dtype, query, dim, most_weight)) return -1;
  shf_nearest_job job = {.rows = (const char *)cells, .row_stride = row_bytes, .dim = dim, .metric = metric};
  job.query = query;
  job.query_norm = (float)sqrt(bit_dot(false, wide_query, wide_query, dim));
  job.filter = &filter;
  sheaf_neighbour last = sorted[4];
  if (isnan(last.score)) return -1;
  for (int64_t first = 0, rows; first < ROWS; first += rows) {
    double scores[SHF_NEAREST_ROWS];
    rows = ROWS - first < 61 ? ROWS - first : 61; /* the last of four rows, now and then, is one too many */
    uint64_t scored = kernel->score(&job, first, (int)rows, last.score, scores);
    for (int64_t i = 0; i < rows; i++) {
      double wanted = score_of(metric, first + i);
      if (scored >> i & 1) {
        if (!same_score(scores[i], wanted)) complain("a wrong score", kind, metric, first + i);
      } else {
        passed++;
        bool nearer = metric == SHEAF_METRIC_L2 ? wanted <= last.score : wanted >= last.score;
        if (nearer) complain("passed over, though it is near enough", kind, metric, first + i);
      }
    }
  }
  return passed;
}

static void try_table(shape kind, test_random *random)
{
  static sheaf_neighbour sorted[ROWS];
  make_rows(kind, random);
  make_query(kind, random);
  for (int m = 0; m < 3; m++) {
    order_rows((sheaf_metric)m, sorted);
    expect_lists(kind, (sheaf_metric)m, sorted);
    int passed = passed_over(kind, (sheaf_metric)m, sorted);
    if (kind == PLAIN && dim >= 64 && passed >= 0 && passed < ROWS / 2)
      complain("few rows are passed over", kind, (sheaf_metric)m, passed);
  }
}

static void test_no_near_row_is_passed_over_and_most_far_ones_are(void **state)
{
  (void)state;
  test_random random = {4};
  int rounds = is_switched_on("SHEAF_TEST_QUICK") ? 1 : 4, widths = sizeof dims / sizeof *dims;
  for (int isa = 1; isa <= (int)sheaf_isa_best(); isa++) {
    assert_int_equal(sheaf_set_isa((sheaf_isa)isa), SHEAF_OK);
    for (int i = 0; i < 2 * rounds * widths; i++) {
      dtype = i % 2 ? SHEAF_INT4 : SHEAF_INT8;
      dim = dims[i / 2 % widths];
      for (int kind = 0; kind < SHAPES; kind++) try_table((shape)kind, &random);
    }
  }
}

static void test_queries_that_cannot_be_rounded_have_no_filter(void **state)
{
  (void)state;
  static const float bad[] = {NAN, INFINITY, 1e30f, 1e-30f, 0};
  int8_t weights[SHF_NEAREST_LANES];
  shf_nearest_filter filter;
  for (int i = 0; i < 5; i++) {
    float numbers[3] = {bad[i], 0, 0};
    assert_false(shf_plan_filter_make(&filter, weights, SHEAF_INT8, numbers, 3, 127));
  }
  assert_int_equal(shf_plan_filter_bytes(SHEAF_F32, 3), 0);
  assert_int_equal(shf_plan_filter_bytes(SHEAF_INT8, 0), 0);
  assert_int_equal(shf_plan_filter_bytes(SHEAF_INT8, 1 << 20), 0);
  assert_int_equal(shf_plan_filter_bytes(SHEAF_INT4, 129), 256);
}

int main(int argc, char **argv)
{
  (void)argc;
  environment_prepare(argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_no_near_row_is_passed_over_and_most_far_ones_are),
      cmocka_unit_test(test_queries_that_cannot_be_rounded_have_no_filter),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
