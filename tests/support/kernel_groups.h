/* kernel_groups.h: the build's kernels, those of one op, element and index type together, and problems for them. */
#ifndef SHEAF_TESTS_KERNEL_GROUPS_H
#define SHEAF_TESTS_KERNEL_GROUPS_H

#include "problem.h"

enum { MOST_KERNELS = 4, MOST_GROUPS = 512 };

/* The kernels (one per instruction set) of one op, element type and index type. */
typedef struct kernel_group {
  sheaf_category category;
  int kind;
  sheaf_dtype element, index_element;
  char name[64]; /* "bag_sum.f16.i64" */
  char kernel[MOST_KERNELS][64];
  sheaf_sku sku[MOST_KERNELS];
  int kernels;
  int64_t number;
} kernel_group;

/* The CPU's kernels that this machine can run, whose names hold a word of `only`, a list with commas (NULL: all).
 * Returns how many groups there are; `groups` has room for MOST_GROUPS. */
int64_t kernel_groups_read(kernel_group *groups, const char *only);

/* Fills in a spec for one op: types, and options drawn from (op, case_number) alone. Extents (count, dim, rows, bags)
 * are the caller's and must be set. */
void choose_options(const kernel_group *group, problem_spec *spec, int64_t case_number);

/* A problem for one op that has one bag, one row or one segment of exactly n entries, among others. */
problem_spec length_problem(const kernel_group *group, int64_t case_number, int64_t n, int64_t dim);

/* Takes out of a spec what has no finite answer: NaN and infinities, sums of weights near zero. */
void choose_tame(problem_spec *spec);

#endif
