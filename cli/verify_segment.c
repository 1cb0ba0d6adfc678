/* cli/verify_segment.c: replays `segment` cases: reductions by segment id, sorted or not, with their gradients. */
#include <math.h>

#include "verify.h"

typedef enum reduction { REDUCE_SUM, REDUCE_MEAN, REDUCE_MAX, REDUCE_MIN, REDUCE_PROD } reduction;

typedef struct kind_pair {
  sheaf_segment_kind forward, backward;
} kind_pair;

static const kind_pair kinds[2][5] = {
  {{SHEAF_UNSORTED_SEGMENT_SUM, SHEAF_UNSORTED_SEGMENT_SUM_BACKWARD},
   {SHEAF_UNSORTED_SEGMENT_MEAN, SHEAF_UNSORTED_SEGMENT_MEAN_BACKWARD},
   {SHEAF_UNSORTED_SEGMENT_MAX, SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD},
   {SHEAF_UNSORTED_SEGMENT_MIN, SHEAF_UNSORTED_SEGMENT_MIN_BACKWARD},
   {SHEAF_UNSORTED_SEGMENT_PROD, SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD}},
  {{SHEAF_SEGMENT_SUM, SHEAF_SEGMENT_SUM_BACKWARD},
   {SHEAF_SEGMENT_MEAN, SHEAF_SEGMENT_MEAN_BACKWARD},
   {SHEAF_SEGMENT_MAX, SHEAF_SEGMENT_MAX_BACKWARD},
   {SHEAF_SEGMENT_MIN, SHEAF_SEGMENT_MIN_BACKWARD},
   {SHEAF_SEGMENT_PROD, SHEAF_SEGMENT_PROD_BACKWARD}},
};

/* What one column of one segment amounts to, in plain double arithmetic. */
typedef struct column {
  int64_t count;    /* rows */
  double absolute;  /* sum of |x| */
  double product;   /* of |x|, zeros taken as 1 */
  int64_t zeros;
  int64_t first;    /* max, min: position of the extreme value, -1 without rows */
  double extreme;
  int64_t ties;     /* rows that share it */
} column;

typedef struct segment_case {
  reduction reduce;
  bool sorted;
  const verify_tensor *data, *ids, *dout;
  int64_t rows, dim, segments;
  column *columns; /* [segments, dim] */
  verify_tensor *arg;
  sheaf_segment_desc desc;
  sheaf_segment_args args;
} segment_case;

static bool is_extreme(const segment_case *s) { return s->reduce == REDUCE_MAX || s->reduce == REDUCE_MIN; }

/* ---- Reading ------------------------------------------------------------------------------------------------- */

static bool read_options(verify_case *c, segment_case *s)
{
  static const char *const reductions[] = {"sum", "mean", "max", "min", "prod", NULL};
  static const char *const empties[] = {"neutral", "identity", NULL}, *const ties[] = {"none", "first", "split", NULL};
  int reduce = verify_choice(c, "reduce", reductions, -1), sorted = verify_flag(c, "sorted", -1);
  int empty = verify_choice(c, "empty", empties, 0), tie = verify_choice(c, "ties", ties, 0);
  if (reduce < 0 || sorted < 0 || empty < 0 || tie < 0 || verify_flag(c, "zeros", 0) < 0) return false;
  s->reduce = (reduction)reduce;
  s->sorted = sorted == 1;
  s->desc = (sheaf_segment_desc)SHEAF_SEGMENT_DESC_INIT;
  s->desc.empty = empty ? SHEAF_EMPTY_IDENTITY : SHEAF_EMPTY_NEUTRAL;
  s->desc.ties = tie == 2 && is_extreme(s) ? SHEAF_TIES_SPLIT : SHEAF_TIES_FIRST;
  s->desc.bad_index = SHEAF_BAD_INDEX_ERROR;
  return true;
}

static bool check_ids(verify_case *c, const segment_case *s)
{
  if (!verify_expect_index_dtype(c, "segment_ids", s->ids)) return false;
  if (s->ids->rank != 1 || s->ids->count != s->rows)
    return verify_fail(c, "tensor 'segment_ids' does not hold one id for each of %lld rows", (long long)s->rows);
  for (int64_t n = 0; n < s->rows; n++) {
    int64_t id = verify_integer(s->ids, n);
    if (id < 0 || id >= s->segments)
      return verify_fail(c, "id %lld at position %lld is none of %lld segments", (long long)id, (long long)n,
                         (long long)s->segments);
    if (s->sorted && n > 0 && id < verify_integer(s->ids, n - 1))
      return verify_fail(c, "id %lld at position %lld is out of order", (long long)id, (long long)n);
  }
  return true;
}

/* Lengths say the same as the ids in another way; a case in which they differ contradicts itself. */
static bool check_lengths(verify_case *c, const segment_case *s)
{
  if (!verify_has(c, "lengths")) return true;
  verify_tensor *lengths = verify_input(c, "lengths");
  if (!lengths || !verify_expect_index_dtype(c, "lengths", lengths)) return false;
  if (lengths->rank != 1 || lengths->count != s->segments)
    return verify_fail(c, "tensor 'lengths' is not one length for each of %lld segments", (long long)s->segments);
  int64_t *counts = verify_alloc(c, s->segments, sizeof *counts);
  if (!counts) return false;
  for (int64_t n = 0; n < s->rows; n++) counts[verify_integer(s->ids, n)] += 1;
  for (int64_t i = 0; i < s->segments; i++) {
    int64_t length = verify_integer(lengths, i);
    if (counts[i] != length)
      return verify_fail(c, "length %lld of segment %lld contradicts its %lld ids", (long long)length, (long long)i,
                         (long long)counts[i]);
  }
  return true;
}

static bool read_segments(verify_case *c, segment_case *s, verify_tensor **expected)
{
  if (!read_options(c, s)) return false;
  s->data = verify_input(c, "data");
  s->ids = s->data ? verify_input(c, "segment_ids") : NULL;
  *expected = s->ids ? verify_input(c, "out") : NULL;
  if (!*expected) return false;
  if (!verify_is_float(s->data->dtype) || s->data->rank != 2)
    return verify_fail(c, "tensor 'data' is not a matrix of values");
  s->rows = s->data->shape[0];
  s->dim = s->data->shape[1];
  if (!verify_is_float((*expected)->dtype) || (*expected)->rank != 2 || (*expected)->shape[1] != s->dim)
    return verify_fail(c, "tensor 'out' is not a matrix of values as wide as 'data'");
  s->segments = (*expected)->shape[0];
  s->desc.dtype = s->data->dtype;
  s->desc.index_dtype = s->ids->dtype;
  s->desc.rows = s->rows;
  s->desc.dim = s->dim;
  s->desc.segments = s->segments;
  s->args = (sheaf_segment_args)SHEAF_SEGMENT_ARGS_INIT;
  s->args.ids = s->ids->operand;
  return verify_extent(c, "num_segments", s->segments) && check_ids(c, s) && check_lengths(c, s);
}

/* ---- Plain code ---------------------------------------------------------------------------------------------- */

/* NaN wins, and the first of equals stays. */
static bool replaces(const segment_case *s, double x, const column *seen)
{
  if (seen->first < 0) return true;
  if (isnan(seen->extreme)) return false;
  return isnan(x) || (s->reduce == REDUCE_MIN ? x < seen->extreme : x > seen->extreme);
}

static bool same_value(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

static void add_to_column(const segment_case *s, column *seen, int64_t n, double x)
{
  seen->count += 1;
  seen->absolute += fabs(x);
  if (x == 0) seen->zeros += 1;
  else seen->product *= fabs(x);
  if (replaces(s, x, seen)) {
    seen->extreme = x;
    seen->first = n;
    seen->ties = 0;
  }
  seen->ties += same_value(x, seen->extreme);
}

static bool reduce_columns(verify_case *c, segment_case *s)
{
  s->columns = verify_alloc(c, s->segments * s->dim, sizeof *s->columns);
  if (!s->columns) return false;
  for (int64_t i = 0; i < s->segments * s->dim; i++) s->columns[i] = (column){.product = 1, .first = -1};
  for (int64_t n = 0; n < s->rows; n++) {
    column *row = s->columns + verify_integer(s->ids, n) * s->dim;
    for (int64_t d = 0; d < s->dim; d++) add_to_column(s, &row[d], n, verify_value(s->data, n * s->dim + d));
  }
  return true;
}

static double forward_scale_of(const segment_case *s, const column *seen)
{
  if (seen->count == 0) return 0;
  if (s->reduce == REDUCE_PROD) return seen->zeros ? 0 : seen->product;
  return s->reduce == REDUCE_MEAN ? seen->absolute / (double)seen->count : seen->absolute;
}

static double *forward_scale(verify_case *c, const segment_case *s)
{
  double *scale = verify_alloc(c, s->segments * s->dim, sizeof *scale);
  for (int64_t i = 0; scale && i < s->segments * s->dim; i++) scale[i] = forward_scale_of(s, &s->columns[i]);
  return scale;
}

/* The size of the gradient that row n gets in this column. */
static double backward_scale_of(const segment_case *s, const column *seen, int64_t n, double x, double grad)
{
  switch (s->reduce) {
  case REDUCE_SUM:
    return grad;
  case REDUCE_MEAN:
    return grad / (double)seen->count;
  case REDUCE_MAX:
  case REDUCE_MIN:
    if (s->desc.ties == SHEAF_TIES_FIRST) return n == seen->first ? grad : 0;
    return same_value(x, seen->extreme) ? grad / (double)seen->ties : 0;
  case REDUCE_PROD:
    if (seen->zeros == 0) return grad * (seen->product / fabs(x));
    return seen->zeros == 1 && x == 0 ? grad * seen->product : 0;
  }
  return 0;
}

static double *backward_scale(verify_case *c, const segment_case *s)
{
  double *scale = verify_alloc(c, s->rows * s->dim, sizeof *scale);
  for (int64_t n = 0; scale && n < s->rows; n++) {
    int64_t id = verify_integer(s->ids, n);
    for (int64_t d = 0; d < s->dim; d++) {
      double grad = fabs(verify_value(s->dout, id * s->dim + d)), x = verify_value(s->data, n * s->dim + d);
      scale[n * s->dim + d] = backward_scale_of(s, &s->columns[id * s->dim + d], n, x, grad);
    }
  }
  return scale;
}

/* The positions that max and min should name. */
static verify_tensor *plain_arg(verify_case *c, const segment_case *s)
{
  verify_tensor *arg = verify_output(c, SHEAF_I64, 2, (int64_t[]){s->segments, s->dim});
  for (int64_t i = 0; arg && i < arg->count; i++) ((int64_t *)arg->data)[i] = s->columns[i].first;
  return arg;
}

/* ---- Checks -------------------------------------------------------------------------------------------------- */

static bool check_forward(verify_case *c, segment_case *s, const verify_tensor *expected)
{
  bool exact = is_extreme(s);
  verify_tensor *out = verify_output(c, s->data->dtype, 2, expected->shape);
  verify_tensor *arg = exact ? plain_arg(c, s) : NULL;
  s->arg = exact ? verify_output(c, s->ids->dtype, 2, expected->shape) : NULL;
  double *scale = exact ? NULL : forward_scale(c, s);
  if (!out || (exact ? !arg || !s->arg : !scale)) return false;
  sheaf_segment_desc desc = s->desc;
  sheaf_segment_args args = s->args;
  desc.kind = kinds[s->sorted][s->reduce].forward;
  args.data = s->data->operand;
  args.out = out->operand;
  if (exact) args.arg = s->arg->operand;
  return verify_run_segment(c, &desc, &args) &&
         verify_compare(c, "out", expected, out, (verify_rule){.scale = scale}) &&
         (!exact || verify_compare(c, "arg", arg, s->arg, (verify_rule){0}));
}

/* Where the gradient of a maximum goes to one row, the positions from the forward run must lead to the same one. */
static bool check_backward_by_arg(verify_case *c, const segment_case *s, const sheaf_segment_desc *by_data,
                                  const verify_tensor *ddata)
{
  sheaf_segment_desc desc = *by_data;
  sheaf_segment_args args = s->args;
  verify_tensor *again = verify_output(c, s->data->dtype, 2, s->data->shape);
  if (!again) return false;
  desc.arg_given = 1;
  args.grad_out = s->dout->operand;
  args.arg = s->arg->operand;
  args.data_grad = again->operand;
  return verify_run_segment(c, &desc, &args) &&
         verify_compare(c, "ddata by arg", ddata, again, (verify_rule){.signed_zeros = true});
}

static bool check_backward(verify_case *c, segment_case *s)
{
  verify_tensor *expected = verify_matrix(c, "ddata", SHEAF_DTYPE_NONE, s->rows, s->dim);
  s->dout = expected ? verify_matrix(c, "dout", s->data->dtype, s->segments, s->dim) : NULL;
  verify_tensor *ddata = s->dout ? verify_output(c, s->data->dtype, 2, expected->shape) : NULL;
  double *scale = ddata ? backward_scale(c, s) : NULL;
  if (!scale) return false;
  sheaf_segment_desc desc = s->desc;
  sheaf_segment_args args = s->args;
  desc.kind = kinds[s->sorted][s->reduce].backward;
  args.grad_out = s->dout->operand;
  args.data_grad = ddata->operand;
  if (is_extreme(s) || s->reduce == REDUCE_PROD) args.data = s->data->operand;
  bool copied = s->reduce == REDUCE_SUM;
  if (!verify_run_segment(c, &desc, &args)) return false;
  if (!verify_compare(c, "ddata", expected, ddata, (verify_rule){.scale = copied ? NULL : scale})) return false;
  bool one_winner = is_extreme(s) && desc.ties == SHEAF_TIES_FIRST;
  return !one_winner || check_backward_by_arg(c, s, &desc, ddata);
}

bool verify_segment(verify_case *c)
{
  segment_case s = {0};
  verify_tensor *expected = NULL;
  if (!read_segments(c, &s, &expected) || !reduce_columns(c, &s) || !check_forward(c, &s, expected)) return false;
  return !verify_has(c, "ddata") || check_backward(c, &s);
}
