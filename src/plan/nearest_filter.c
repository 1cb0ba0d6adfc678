/* nearest_filter.c: how most quantised rows are passed over without a score, and why none is passed over wrongly.
 *
 * Unpacking a row of small integers c (x = scale * c + bias) and adding up its score costs several times what reading
 * it does. So the query is rounded to integers too, q = step * w + e, and of a row only three sums of integers are
 * taken, which CPUs have instructions for: of w * c, of c, and of c * c. They give
 *
 *   dot(q, x) = step * (scale * sum(w * c) + bias * sum(w)) + dot(e, x)       |dot(e, x)| <= |e| |x| (Cauchy-Schwarz)
 *   dot(x, x) = scale^2 * sum(c * c) + 2 * scale * bias * sum(c) + D * bias^2
 *
 * and so an interval that holds the score. A row whose interval lies beyond the farthest of the k found so far is
 * passed over; the others, few among many, are scored as the definition has it. (Where only dot products are wanted,
 * the first sum is enough: about the middle of what its values can be, scale * most c / 2 + bias, a row spreads by
 * |scale| * most c / 2 at the most, and what the middle makes of e is known.)
 *
 * The bounds allow for every rounding, in the definition's order and in the kernel's: with u = 2^-24, a row's values
 * are at most size = |bias| + most c * |scale|, so |x| <= sqrt(D) * size, and
 *
 *   the canonical dot product is off by at most (D / 16 + 6) u |q| |x| (the chain of a lane, the join, x itself),
 *   the kernel's first line by 8 u |q| sqrt(D) size, its second line by 10 u D size^2.
 *
 * Twice that and more is allowed for. Where numbers are so small or large that they might underflow or overflow, rows
 * are scored. */
#include <math.h>
#include <string.h>

#include "plan/plan_impl.h"

enum { MOST_FILTER_DIM = 32768 }; /* sums of products of bytes stay below 2^31 */

static int64_t lists_of(sheaf_dtype dtype) { return dtype == SHEAF_INT4 ? 2 : 1; }

static int64_t list_bytes(sheaf_dtype dtype, int64_t dim)
{
  int64_t lists = lists_of(dtype), lanes = SHF_NEAREST_LANES;
  return ((dim + lists - 1) / lists + lanes - 1) / lanes * lanes;
}

int64_t shf_plan_filter_bytes(sheaf_dtype dtype, int64_t dim)
{
  if ((dtype != SHEAF_INT8 && dtype != SHEAF_INT4) || dim < 1 || dim > MOST_FILTER_DIM) return 0;
  return lists_of(dtype) * list_bytes(dtype, dim);
}

int shf_plan_filter_make(shf_nearest_filter *filter, int8_t *weights, sheaf_dtype dtype, const float *query,
                         int64_t dim, int most_weight)
{
  const double unit = ldexp(1, -24), columns = (double)dim;
  double largest = 0, square = 0, error = 0, query_sum = 0, error_sum = 0, half = dtype == SHEAF_INT8 ? 127.5 : 7.5;
  int64_t lists = lists_of(dtype), list = list_bytes(dtype, dim), sum = 0;
  for (int64_t d = 0; d < dim; d++) {
    double value = fabs((double)query[d]);
    if (!(value <= largest)) largest = value; /* a NaN too */
    square += value * value;
  }
  double norm = sqrt(square);
  if (!(norm > 1e-15 && norm < 1e18)) return 0;
  float step = (float)(largest / most_weight * (1 + 2 * unit)); /* so that no weight is beyond the most */
  memset(weights, 0, (size_t)(lists * list));
  for (int64_t d = 0; d < dim; d++) {
    long weight = lrint((double)query[d] / (double)step);
    double rest = (double)query[d] - (double)step * (double)weight;
    weights[d % lists * list + d / lists] = (int8_t)weight;
    sum += weight;
    error += rest * rest;
    error_sum += rest;
    query_sum += (double)query[d];
  }
  double chain = (columns / 16 + 64) * unit;
  *filter = (shf_nearest_filter){
      .weights = weights,
      .list_bytes = list,
      .step = step,
      .weight_sum = (float)sum,
      .error = (float)(sqrt(error) * (1 + 1e-5)),
      .square = (float)square,
      .middle = (float)(half * error_sum),
      .query_sum = (float)query_sum,
      .spread = (float)(sqrt(error * columns) * half * (1 + 1e-5)),
      .dot_slack = (float)(2 * chain * norm * sqrt(columns)),
      .square_slack = (float)(64 * unit * columns),
      .score_slack = (float)(2 * chain),
      .least_size = (float)fmax(1e-15, 1e-30 / (norm * sqrt(columns))),
      .most_size = (float)(1e18 / sqrt(columns)),
  };
  return 1;
}
