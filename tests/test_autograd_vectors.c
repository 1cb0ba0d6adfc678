/* test_autograd_vectors.c: every reference case of PyTorch's through the ops and sheaf_backward: results and gradients,
 * dense and sparse. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/tensors.h"

static sheaf_safetensors *file;
static const char *name;

static sheaf_tensor *tensor_named(const char *key)
{
  const sheaf_io_tensor *in = sheaf_safetensors_find(file, key);
  if (!in) return NULL;
  sheaf_tensor *t = tensor_of(in->dtype, in->rank, in->shape, NULL);
  if (in->bytes) memcpy(sheaf_tensor_data(t), in->data, in->bytes);
  return t;
}

static bool is(const char *key, const char *value)
{
  const char *got = sheaf_safetensors_metadata(file, key);
  return got && strcmp(got, value) == 0;
}

static int64_t number(const char *key)
{
  const char *got = sheaf_safetensors_metadata(file, key);
  return got && strcmp(got, "none") != 0 ? strtoll(got, NULL, 10) : -1;
}

/* Tolerances: wide enough for sums of the cases' lengths, narrow enough that a wrong term shows. */
static double tolerance(sheaf_dtype dtype)
{
  return dtype == SHEAF_F64 ? 1e-11 : dtype == SHEAF_F32 ? 2e-4 : dtype == SHEAF_F16 ? 4e-3 : 4e-2;
}

static void compare(const char *what, const sheaf_tensor *got, const sheaf_tensor *expected)
{
  if (!expected) return;
  if (!got) {
    for (int64_t i = 0; i < tensor_count(expected); i++)
      if (tensor_number(expected, i) != 0) fail_msg("%s: %s is missing", name, what);
    return;
  }
  assert_int_equal(tensor_count(got), tensor_count(expected));
  double scale = 1, most = tolerance(sheaf_tensor_dtype(got));
  for (int64_t i = 0; i < tensor_count(got); i++)
    if (isfinite(tensor_number(expected, i))) scale = fmax(scale, fabs(tensor_number(expected, i)));
  for (int64_t i = 0; i < tensor_count(got); i++) {
    double x = tensor_number(got, i), y = tensor_number(expected, i);
    int same = x == y || (x != x && y != y);
    if (!same && !(fabs(x - y) <= most * (isfinite(y) ? fmin(scale, 1 + 10 * fabs(y)) : 0)))
      fail_msg("%s: %s[%lld] is %.9g, PyTorch has %.9g", name, what, (long long)i, x, y);
  }
}

static sheaf_tensor *dense_grad(sheaf_tensor *leaf)
{
  sheaf_tensor *dense = NULL;
  if (!leaf || !sheaf_tensor_grad(leaf)) return NULL;
  expect_ok(sheaf_to_dense(sheaf_tensor_grad(leaf), &dense));
  return tensor_keep(dense);
}

static void finish(sheaf_status status, sheaf_tensor *out, sheaf_tensor *leaf, const char *grad_name,
                   sheaf_tensor *weights)
{
  if (status != SHEAF_OK) fail_msg("%s: %s", name, sheaf_last_error());
  tensor_keep(out);
  compare("out", out, tensor_named("out"));
  sheaf_tensor *dout = tensor_named("dout");
  if (!dout) return; /* cases with NaN are forward only */
  status = sheaf_backward(out, dout, NULL);
  if (status != SHEAF_OK) fail_msg("%s: backward: %s", name, sheaf_last_error());
  compare(grad_name, dense_grad(leaf), tensor_named(grad_name));
  if (weights) compare("dper_sample_weights", dense_grad(weights), tensor_named("dper_sample_weights"));
}

static void check_embedding(sheaf_grad kind)
{
  sheaf_tensor *table = tensor_named("weight"), *out = NULL;
  sheaf_embedding_options options = SHEAF_EMBEDDING_OPTIONS_INIT;
  options.has_padding = number("padding_idx") >= 0;
  options.padding_idx = number("padding_idx");
  options.padding = is("padding_forward", "row") ? SHEAF_PADDING_ROW : SHEAF_PADDING_ZERO;
  options.scale_grad_by_freq = is("scale_grad_by_freq", "1");
  expect_ok(sheaf_tensor_require_grad(table, kind));
  sheaf_status status = sheaf_embedding(tensor_named("indices"), table, &options, &out);
  finish(status, out, table, "dweight", NULL);
}

static void check_bag(sheaf_grad kind)
{
  sheaf_tensor *table = tensor_named("weight"), *weights = tensor_named("per_sample_weights"), *out = NULL;
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  options.mode = is("mode", "sum") ? SHEAF_MODE_SUM : is("mode", "mean") ? SHEAF_MODE_MEAN : SHEAF_MODE_MAX;
  options.has_padding = number("padding_idx") >= 0;
  options.padding_idx = number("padding_idx");
  options.include_last_offset = is("include_last_offset", "1");
  options.scale_grad_by_freq = is("scale_grad_by_freq", "1");
  options.per_sample_weights = weights;
  expect_ok(sheaf_tensor_require_grad(table, kind));
  if (weights) expect_ok(sheaf_tensor_require_grad(weights, SHEAF_GRAD_DENSE));
  sheaf_status status = sheaf_embedding_bag(tensor_named("indices"), table, tensor_named("offsets"), &options, &out);
  finish(status, out, table, "dweight", weights);
}

static void check_segment(void)
{
  static const char *const reduces[] = {"sum", "mean", "max", "min", "prod"};
  sheaf_tensor *data = tensor_named("data"), *ids = tensor_named("segment_ids"), *out = NULL;
  sheaf_segment_options options = SHEAF_SEGMENT_OPTIONS_INIT;
  int reduce = 0;
  while (!is("reduce", reduces[reduce])) reduce++;
  options.empty = is("empty", "identity") ? SHEAF_EMPTY_IDENTITY : SHEAF_EMPTY_NEUTRAL;
  options.ties = is("ties", "split") ? SHEAF_TIES_SPLIT : SHEAF_TIES_FIRST;
  expect_ok(sheaf_tensor_require_grad(data, SHEAF_GRAD_DENSE));
  sheaf_status status =
      is("sorted", "1")
          ? sheaf_segment_reduce(data, (sheaf_reduce)reduce, ids, number("num_segments"), &options, &out)
          : sheaf_unsorted_segment_reduce(data, (sheaf_reduce)reduce, ids, number("num_segments"), &options, &out);
  finish(status, out, data, "ddata", NULL);
}

static void check_quantized(void)
{
  sheaf_tensor *weight = tensor_named("weight"), *packed = NULL, *out = NULL, *expected = tensor_named("packed");
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  options.mode = is("mode", "sum") ? SHEAF_MODE_SUM : SHEAF_MODE_MEAN;
  options.include_last_offset = is("include_last_offset", "1");
  options.per_sample_weights = tensor_named("per_sample_weights");
  expect_ok(sheaf_quantize(weight, is("bits", "8") ? SHEAF_INT8 : SHEAF_INT4, &packed));
  tensor_keep(packed);
  assert_memory_equal(sheaf_tensor_data(packed), sheaf_tensor_data(expected), (size_t)tensor_count(expected));
  expect_ok(sheaf_embedding_bag(tensor_named("indices"), packed, tensor_named("offsets"), &options, &out));
  compare("out", tensor_keep(out), tensor_named("out"));
}

static void test_all_cases(void **state)
{
  struct dirent **entries;
  int count = scandir(SHEAF_TEST_VECTORS, &entries, NULL, alphasort), cases = 0;
  assert_true(count > 0);
  for (int i = 0; i < count; i++) {
    char path[1024];
    name = entries[i]->d_name;
    if (strstr(name, ".safetensors")) {
      snprintf(path, sizeof path, "%s/%s", SHEAF_TEST_VECTORS, name);
      expect_ok(sheaf_safetensors_open(path, &file));
      for (int kind = SHEAF_GRAD_DENSE; kind <= SHEAF_GRAD_SPARSE_RAW; kind++) {
        if (is("op", "embedding")) check_embedding((sheaf_grad)kind);
        if (is("op", "embedding_bag")) check_bag((sheaf_grad)kind);
      }
      if (is("op", "segment")) check_segment();
      if (is("op", "quantized_bag")) check_quantized();
      cases++;
      sheaf_safetensors_close(file);
      tensors_teardown(state);
    }
    free(entries[i]);
  }
  free(entries);
  assert_int_equal(cases, 407);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_cases)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
