/* tensors.c: tensors of the ops for tests. */
#define _GNU_SOURCE
#include "tensors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "test_random.h"

enum { MOST_KEPT = 1 << 18 };

static sheaf_tensor *kept[MOST_KEPT];
static int kept_count;

sheaf_tensor *tensor_keep(sheaf_tensor *tensor)
{
  if (!tensor) return NULL;
  if (kept_count == MOST_KEPT) fail_msg("more than %d tensors in one test", MOST_KEPT);
  return kept[kept_count++] = tensor;
}

int tensors_teardown(void **state)
{
  (void)state;
  while (kept_count > 0) sheaf_tensor_release(kept[--kept_count]);
  tiny_free_all();
  return 0;
}

sheaf_tensor *tensor_result(sheaf_status status, sheaf_tensor **out)
{
  expect_ok(status);
  return tensor_keep(*out);
}

sheaf_tensor *tensor_slice(const sheaf_tensor *tensor, int64_t which)
{
  int64_t shape[SHEAF_TENSOR_MAX_RANK], count = 1;
  for (int i = 1; i < sheaf_tensor_rank(tensor); i++) count *= shape[i - 1] = sheaf_tensor_extent(tensor, i);
  sheaf_tensor *slice = tensor_of(sheaf_tensor_dtype(tensor), sheaf_tensor_rank(tensor) - 1, shape, NULL);
  for (int64_t i = 0; i < count; i++) tensor_set(slice, i, tensor_number(tensor, which * count + i));
  return slice;
}

sheaf_tensor *tensor_batched(sheaf_tensor *tensor, int dim, int level)
{
  sheaf_tensor *hidden;
  return RESULT(hidden, sheaf_batch(tensor, dim, level, &hidden));
}

sheaf_tensor *tensor_shown(sheaf_tensor *tensor, int level)
{
  sheaf_tensor *plain;
  return RESULT(plain, sheaf_unbatch(tensor, 0, level, &plain));
}

sheaf_tensor *tensor_leaf(sheaf_tensor *tensor, sheaf_grad grad)
{
  expect_ok(sheaf_tensor_require_grad(tensor, grad));
  return tensor;
}

sheaf_call tensor_call(sheaf_op op, sheaf_tensor *const *inputs, sheaf_tensor **outputs, const sheaf_attr *attrs,
                       uint32_t wanted)
{
  const sheaf_op_spec *spec = sheaf_op_describe(op);
  assert_non_null(spec);
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = op;
  call.inputs = inputs;
  call.input_count = spec->inputs;
  call.outputs = outputs;
  call.output_count = spec->outputs;
  call.attrs = attrs;
  call.attr_count = spec->attrs;
  call.wanted = wanted;
  return call;
}

int64_t tensor_plan_runs(void)
{
  sheaf_profile *profile;
  int64_t runs = 0;
  expect_ok(sheaf_profiler_end(&profile));
  for (int64_t i = 0; i < sheaf_profile_count(profile); i++) runs += sheaf_profile_at(profile, i)->plan_runs;
  sheaf_profile_free(profile);
  return runs;
}

int64_t tensor_count(const sheaf_tensor *tensor)
{
  int64_t count = 1;
  for (int i = 0; i < sheaf_tensor_rank(tensor); i++) count *= sheaf_tensor_extent(tensor, i);
  return count;
}

double tensor_number(const sheaf_tensor *tensor, int64_t i)
{
  const void *data = sheaf_tensor_data(tensor);
  switch (sheaf_tensor_dtype(tensor)) {
  case SHEAF_F32:
    return (double)((const float *)data)[i];
  case SHEAF_F64:
    return ((const double *)data)[i];
  case SHEAF_F16:
    return (double)sheaf_f16_to_f32(((const uint16_t *)data)[i]);
  case SHEAF_BF16:
    return (double)sheaf_bf16_to_f32(((const uint16_t *)data)[i]);
  case SHEAF_I32:
    return (double)((const int32_t *)data)[i];
  case SHEAF_I64:
    return (double)((const int64_t *)data)[i];
  case SHEAF_U8:
    return (double)((const uint8_t *)data)[i];
  default:
    fail_msg("a tensor of %s has no numbers", sheaf_dtype_name(sheaf_tensor_dtype(tensor)));
    return 0;
  }
}

void tensor_set(sheaf_tensor *tensor, int64_t i, double value)
{
  void *data = sheaf_tensor_data(tensor);
  switch (sheaf_tensor_dtype(tensor)) {
  case SHEAF_F32:
    ((float *)data)[i] = (float)value;
    break;
  case SHEAF_F64:
    ((double *)data)[i] = value;
    break;
  case SHEAF_F16:
    ((uint16_t *)data)[i] = sheaf_f32_to_f16((float)value);
    break;
  case SHEAF_BF16:
    ((uint16_t *)data)[i] = sheaf_f32_to_bf16((float)value);
    break;
  case SHEAF_I32:
    ((int32_t *)data)[i] = (int32_t)value;
    break;
  case SHEAF_I64:
    ((int64_t *)data)[i] = (int64_t)value;
    break;
  case SHEAF_U8:
    ((uint8_t *)data)[i] = (uint8_t)value;
    break;
  default:
    fail_msg("a tensor of %s has no numbers", sheaf_dtype_name(sheaf_tensor_dtype(tensor)));
  }
}

sheaf_tensor *tensor_of(sheaf_dtype dtype, int rank, const int64_t *shape, const double *values)
{
  sheaf_tensor *t;
  expect_ok(sheaf_tensor_new(dtype, rank, shape, &t));
  for (int64_t i = 0; values && i < tensor_count(t); i++) tensor_set(t, i, values[i]);
  return tensor_keep(t);
}

sheaf_tensor *tensor_random(sheaf_dtype dtype, int rank, const int64_t *shape, uint64_t seed)
{
  test_random random = {seed};
  sheaf_tensor *t = tensor_of(dtype, rank, shape, NULL);
  for (int64_t i = 0; i < tensor_count(t); i++) tensor_set(t, i, 2 * random_unit(&random) - 1);
  return t;
}

sheaf_tensor *tensor_random_ints(sheaf_dtype dtype, int64_t limit, int rank, const int64_t *shape, uint64_t seed)
{
  test_random random = {seed};
  sheaf_tensor *t = tensor_of(dtype, rank, shape, NULL);
  for (int64_t i = 0; i < tensor_count(t); i++) tensor_set(t, i, (double)random_below(&random, limit));
  return t;
}

sheaf_tensor *tensor_untouchable(sheaf_dtype dtype, int rank, const int64_t *shape)
{
  static void *page;
  if (!page) page = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(page != MAP_FAILED);
  DLTensor dl = {.data = page,
                 .device = {kDLCPU, 0},
                 .ndim = rank,
                 .dtype = sheaf_dtype_to_dl(dtype),
                 .shape = (int64_t *)(uintptr_t)shape};
  sheaf_tensor *t;
  expect_ok(sheaf_tensor_meta(&dl, &t));
  return tensor_keep(t);
}

void expect_tensor_numbers(const sheaf_tensor *tensor, const double *values, int64_t count, const char *file, int line)
{
  if (!tensor || sheaf_tensor_form(tensor) != SHEAF_FORM_DENSE || tensor_count(tensor) != count)
    fail_msg("%s:%d: form %d with %lld numbers, expected a dense one with %lld", file, line,
             (int)sheaf_tensor_form(tensor), (long long)tensor_count(tensor), (long long)count);
  for (int64_t i = 0; i < count; i++) {
    double is = tensor_number(tensor, i);
    if (is != values[i] && !(is != is && values[i] != values[i]))
      fail_msg("%s:%d: number %lld is %.17g, expected %.17g", file, line, (long long)i, is, values[i]);
  }
}

void expect_close_tensors(const sheaf_tensor *a, const sheaf_tensor *b, double tolerance, const char *file, int line)
{
  if (!a || !b || sheaf_tensor_form(a) != SHEAF_FORM_DENSE || sheaf_tensor_form(b) != SHEAF_FORM_DENSE)
    fail_msg("%s:%d: two dense tensors are compared; these are of form %d and %d", file, line,
             (int)sheaf_tensor_form(a), (int)sheaf_tensor_form(b));
  if (sheaf_tensor_rank(a) != sheaf_tensor_rank(b))
    fail_msg("%s:%d: ranks %d and %d", file, line, sheaf_tensor_rank(a), sheaf_tensor_rank(b));
  for (int i = 0; i < sheaf_tensor_rank(a); i++)
    if (sheaf_tensor_extent(a, i) != sheaf_tensor_extent(b, i))
      fail_msg("%s:%d: extents %lld and %lld in dimension %d", file, line, (long long)sheaf_tensor_extent(a, i),
               (long long)sheaf_tensor_extent(b, i), i);
  if (tolerance == 0 && sheaf_tensor_dtype(a) != sheaf_tensor_dtype(b))
    fail_msg("%s:%d: %s and %s", file, line, sheaf_dtype_name(sheaf_tensor_dtype(a)),
             sheaf_dtype_name(sheaf_tensor_dtype(b)));
  for (int64_t i = 0; i < tensor_count(a); i++) {
    double x = tensor_number(a, i), y = tensor_number(b, i);
    if (!(fabs(x - y) <= tolerance * (1 + fabs(y))))
      fail_msg("%s:%d: number %lld is %.17g, the other %.17g", file, line, (long long)i, x, y);
  }
}

void expect_error_words(const char *file, int line, ...)
{
  va_list words;
  va_start(words, line);
  for (const char *word; (word = va_arg(words, const char *)) != NULL;)
    if (!strstr(sheaf_last_error(), word)) fail_msg("%s:%d: no \"%s\" in: %s", file, line, word, sheaf_last_error());
  va_end(words);
}
