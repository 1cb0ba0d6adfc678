/* problem_close.h: generated problems compared with the plain oracle, within the documented tolerances. */
#ifndef SHEAF_TESTS_PROBLEM_CLOSE_H
#define SHEAF_TESTS_PROBLEM_CLOSE_H

#include "problem.h"

/* The tolerances: f64 1e-12 and f32 1e-5 times the sum of the absolute terms; f16 and bf16 one unit in the last place
 * of the rounded answer plus 1e-6 times that sum. Copies must be exact. */
double tolerance_of(sheaf_dtype dtype, double value, double scale);

/* Whether outputs agree with the plain oracle; prints the first that does not. The problem should hold no NaN. */
bool problem_outputs_close(problem *p, const problem_outputs *got, const char *label);

#endif
