/* tensors.h: tensors of the ops from lists of numbers, compared number by number; released together by the teardown.
 *
 * Expectations fail the cmocka test they are in.
 */
#ifndef SHEAF_TESTS_TENSORS_H
#define SHEAF_TESTS_TENSORS_H

#include <sheaf/sheaf.h>

#include "tiny.h"

/* A dense tensor of a type and shape; values NULL: zeros. Integers come from the same list. */
sheaf_tensor *tensor_of(sheaf_dtype dtype, int rank, const int64_t *shape, const double *values);
#define SHAPE(...) \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }

/* Its numbers drawn between -1 and 1 (integers: below `limit`) from a seed. */
sheaf_tensor *tensor_random(sheaf_dtype dtype, int rank, const int64_t *shape, uint64_t seed);
sheaf_tensor *tensor_random_ints(sheaf_dtype dtype, int64_t limit, int rank, const int64_t *shape, uint64_t seed);

/* A meta tensor whose data lies where nothing may be touched. */
sheaf_tensor *tensor_untouchable(sheaf_dtype dtype, int rank, const int64_t *shape);

/* Has the teardown release it. Returns it. */
sheaf_tensor *tensor_keep(sheaf_tensor *tensor);
int tensors_teardown(void **state);

/* The result of a call that must succeed; the teardown releases it. */
#define RESULT(out, call) ((out) = NULL, tensor_result(call, &(out)))
sheaf_tensor *tensor_result(sheaf_status status, sheaf_tensor **out);

/* A call of an op, with as many inputs, outputs and attributes as it has (attrs NULL: it has none): for sheaf_dispatch,
 * where the functions of ops.h do not ask for what is `wanted`. */
sheaf_call tensor_call(sheaf_op op, sheaf_tensor *const *inputs, sheaf_tensor **outputs, const sheaf_attr *attrs,
                       uint32_t wanted);

/* Slice `which` of a contiguous tensor's first dimension, as a tensor of its own. */
sheaf_tensor *tensor_slice(const sheaf_tensor *tensor, int64_t which);

/* sheaf_batch, sheaf_unbatch at dimension 0, and sheaf_tensor_require_grad, which returns its tensor. */
sheaf_tensor *tensor_batched(sheaf_tensor *tensor, int dim, int level);
sheaf_tensor *tensor_shown(sheaf_tensor *tensor, int level);
sheaf_tensor *tensor_leaf(sheaf_tensor *tensor, sheaf_grad grad);

/* Ends a profile: how many plans ran since it began. */
int64_t tensor_plan_runs(void);

int64_t tensor_count(const sheaf_tensor *tensor);
double tensor_number(const sheaf_tensor *tensor, int64_t i);
void tensor_set(sheaf_tensor *tensor, int64_t i, double value);

/* Fails unless the tensor is dense and has these numbers, or those of another tensor, exactly or closely. */
#define expect_tensor(t, ...)                                                                                        \
  expect_tensor_numbers(t, NUMBERS(__VA_ARGS__), (int64_t)(sizeof(NUMBERS(__VA_ARGS__)) / sizeof(double)), __FILE__, \
                        __LINE__)
void expect_tensor_numbers(const sheaf_tensor *tensor, const double *values, int64_t count, const char *file, int line);
#define expect_same_tensor(a, b) expect_close_tensors(a, b, 0, __FILE__, __LINE__)
#define expect_near_tensor(a, b, tolerance) expect_close_tensors(a, b, tolerance, __FILE__, __LINE__)
void expect_close_tensors(const sheaf_tensor *a, const sheaf_tensor *b, double tolerance, const char *file, int line);

/* Fails unless the last error has every one of these words. */
#define expect_words(...) expect_error_words(__FILE__, __LINE__, __VA_ARGS__, NULL)
void expect_error_words(const char *file, int line, ...);

#endif
