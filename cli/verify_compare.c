/* cli/verify_compare.c: compares an answer with the expected one, within the tolerance of its type.
 *
 * f64: 1e-12, f32: 1e-5 times the sum of absolute terms. 16-bit types: one unit in the last place of the expected value
 * rounded to that type, plus 1e-6 times the sum of absolute terms.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "verify.h"

typedef struct format {
  int digits;                      /* binary digits of a normal number */
  int min_exponent, max_exponent;  /* of normal numbers, as ilogb gives them */
  double relative;                 /* tolerance per unit of scale */
  int decimals;                    /* digits that show a value in full */
} format;

static format format_of(sheaf_dtype dtype)
{
  switch (dtype) {
  case SHEAF_F16:
    return (format){11, -14, 15, 1e-6, 6};
  case SHEAF_BF16:
    return (format){8, -126, 127, 1e-6, 6};
  case SHEAF_F32:
    return (format){24, -126, 127, 1e-5, 9};
  default:
    return (format){53, -1022, 1023, 1e-12, 17};
  }
}

static double unit_of(format f, double value)
{
  int exponent = value == 0 || !isfinite(value) ? f.min_exponent : ilogb(value);
  if (exponent < f.min_exponent) exponent = f.min_exponent;
  return ldexp(1, exponent - (f.digits - 1));
}

/* `value` to the nearest number of the format; beyond its range, the number that would come next. */
static double rounded_to(format f, double value)
{
  double unit = unit_of(f, value), beyond = ldexp(1, f.max_exponent + 1);
  double nearest = rint(value / unit) * unit;
  return fabs(nearest) < beyond ? nearest : copysign(beyond, value);
}

double verify_ulp(sheaf_dtype dtype, double value)
{
  format f = format_of(dtype);
  return unit_of(f, rounded_to(f, value));
}

/* The tolerance around a finite expected value. A result near zero is rounded to a multiple of the smallest number, so
 * that much is always allowed where anything was computed. */
static double tolerance_at(format f, double scale, double slack)
{
  if (isnan(scale)) scale = 0;
  if (scale > DBL_MAX) scale = DBL_MAX;
  return f.relative * scale + slack + (scale > 0 ? unit_of(f, 0) : 0);
}

static bool agrees(sheaf_dtype dtype, double expected, double got, double tolerance)
{
  if (isnan(expected) || isnan(got)) return isnan(expected) && isnan(got);
  if (expected == got) return true;
  if (isinf(expected)) return false;
  if (dtype != SHEAF_F16 && dtype != SHEAF_BF16) return fabs(got - expected) <= tolerance;
  format f = format_of(dtype);
  double target = rounded_to(f, expected), value = rounded_to(f, got);
  return fabs(value - target) <= tolerance + unit_of(f, target);
}

static void describe_position(const verify_tensor *t, int64_t position, char *text, size_t room)
{
  int64_t place[SHEAF_IO_MAX_RANK] = {0};
  for (int i = t->rank - 1; i >= 0; i--) {
    place[i] = position % t->shape[i];
    position /= t->shape[i];
  }
  size_t used = 0;
  text[0] = '\0';
  for (int i = 0; i < t->rank && used < room; i++)
    used += (size_t)snprintf(text + used, room - used, "%s%lld", i ? ", " : "", (long long)place[i]);
}

typedef struct difference {
  int64_t count, first;
  double tolerance; /* at the first one */
} difference;

static bool report(verify_case *c, const char *what, const verify_tensor *expected, const verify_tensor *got,
                   difference found)
{
  char place[96];
  describe_position(expected, found.first, place, sizeof place);
  format f = format_of(got->dtype);
  bool narrow = got->dtype == SHEAF_F16 || got->dtype == SHEAF_BF16;
  double value = verify_value(expected, found.first);
  double tolerance = found.tolerance + (narrow && found.tolerance >= 0 ? verify_ulp(got->dtype, value) : 0);
  return verify_fail(c, "%s[%s] (element %lld): expected %.*g, got %.*g, tolerance %.3g; %lld of %lld elements differ",
                     what, place, (long long)found.first, f.decimals, value, f.decimals, verify_value(got, found.first),
                     found.tolerance < 0 ? 0 : tolerance, (long long)found.count, (long long)got->count);
}

bool verify_compare(verify_case *c, const char *what, const verify_tensor *expected, const verify_tensor *got,
                    verify_rule rule)
{
  if (!verify_same_shape(expected, got)) return verify_fail(c, "%s does not have the shape that the inputs give", what);
  format f = format_of(got->dtype);
  difference found = {0};
  for (int64_t i = 0; i < got->count; i++) {
    double want = verify_value(expected, i), have = verify_value(got, i), tolerance = -1;
    bool same;
    if (rule.scale) {
      tolerance = tolerance_at(f, rule.scale[i], rule.slack ? rule.slack[i] : 0);
      same = agrees(got->dtype, want, have, tolerance);
    } else {
      same = (isnan(want) && isnan(have)) || want == have;
      if (rule.signed_zeros && want == 0 && have == 0) same = !signbit(want) == !signbit(have);
    }
    if (!same && found.count++ == 0) {
      found.first = i;
      found.tolerance = tolerance;
    }
  }
  return found.count == 0 || report(c, what, expected, got, found);
}
