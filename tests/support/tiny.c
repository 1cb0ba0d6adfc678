/* tiny.c: problems written out by hand. */
#include "tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <inttypes.h>
#include <math.h>

#include "oracle/bit_number.h"
#include "problem.h"

const sheaf_dtype tiny_elements[4] = {SHEAF_F32, SHEAF_F64, SHEAF_F16, SHEAF_BF16};
const sheaf_dtype tiny_index_types[2] = {SHEAF_I32, SHEAF_I64};

static tiny *all_tensors;

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* Memory of its own, exactly as long as the elements, so that a sanitizer sees every step beyond it. */
static tiny *make(sheaf_dtype dtype, int rank, int64_t rows, int64_t columns)
{
  tiny *t = bit_alloc(1, sizeof *t);
  memset(t, 0, sizeof *t);
  t->dtype = dtype;
  t->count = rows * columns;
  t->data = bit_alloc(t->count, bit_element_bytes(dtype));
  t->shape[0] = rank == 2 ? rows : columns;
  t->shape[1] = columns;
  t->tensor = (DLTensor){.data = t->data, .device = {kDLCPU, 0}, .ndim = rank, .dtype = problem_dl_type(dtype)};
  t->tensor.shape = t->shape;
  t->next = all_tensors;
  all_tensors = t;
  return t;
}

static tiny *fill_numbers(tiny *t, const double *values)
{
  for (int64_t i = 0; i < t->count; i++) {
    bit_store(t->dtype, t->data, i, values != NULL ? values[i] : 7.0);
  }
  return t;
}

static tiny *fill_integers(tiny *t, const int64_t *values)
{
  for (int64_t i = 0; i < t->count; i++) {
    const int64_t value = values != NULL ? values[i] : 7;
    if (t->dtype == SHEAF_U8) {
      t->data[i] = (unsigned char)value;
    } else {
      bit_store_index(t->dtype, t->data, i, value);
    }
  }
  return t;
}

tiny *tiny_matrix(sheaf_dtype dtype, int64_t rows, int64_t columns, const double *values)
{
  return fill_numbers(make(dtype, 2, rows, columns), values);
}

tiny *tiny_vector(sheaf_dtype dtype, int64_t count, const double *values)
{
  return fill_numbers(make(dtype, 1, 1, count), values);
}

tiny *tiny_ints(sheaf_dtype dtype, int64_t count, const int64_t *values)
{
  return fill_integers(make(dtype, 1, 1, count), values);
}

tiny *tiny_int_matrix(sheaf_dtype dtype, int64_t rows, int64_t columns, const int64_t *values)
{
  return fill_integers(make(dtype, 2, rows, columns), values);
}

tiny *tiny_reshape(tiny *t, int rank, const int64_t *shape)
{
  t->tensor.ndim = rank;
  for (int i = 0; i < rank; i++) {
    t->shape[i] = shape[i];
  }
  return t;
}

tiny *tiny_null(tiny *t)
{
  t->tensor.data = NULL;
  return t;
}

sheaf_operand tiny_operand(const tiny *t)
{
  return (sheaf_operand){&t->tensor, (size_t)t->count * bit_element_bytes(t->dtype)};
}

void tiny_free_all(void)
{
  while (all_tensors != NULL) {
    tiny *next = all_tensors->next;
    free(all_tensors->data);
    free(all_tensors);
    all_tensors = next;
  }
}

int tiny_teardown(void **state)
{
  (void)state;
  tiny_free_all();
  return 0;
}

double tiny_number(const tiny *t, int64_t i) { return bit_load(t->dtype, t->data, i); }

int64_t tiny_integer(const tiny *t, int64_t i)
{
  return t->dtype == SHEAF_U8 ? t->data[i] : bit_load_index(t->dtype, t->data, i);
}

/* ---- Expectations ------------------------------------------------------------------------------------------------ */

static bool same(double a, double b) { return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b)); }

/* Values are rounded to the tensor's type first, so that one list serves every type. */
static double rounded(sheaf_dtype dtype, double value)
{
  unsigned char element[8];
  bit_store(dtype, element, 0, value);
  return bit_load(dtype, element, 0);
}

void tiny_expect_numbers(const tiny *t, const double *values, int64_t count, const char *file, int line)
{
  if (t->count != count) {
    print_error("%lld numbers expected of a tensor of %lld\n", (long long)count, (long long)t->count);
    _fail(file, line);
  }
  for (int64_t i = 0; i < count; i++) {
    if (!same(tiny_number(t, i), rounded(t->dtype, values[i]))) {
      print_error("%s element %lld: expected %.17g, got %.17g\n", sheaf_dtype_name(t->dtype), (long long)i,
                  rounded(t->dtype, values[i]), tiny_number(t, i));
      _fail(file, line);
    }
  }
}

void tiny_expect_integers(const tiny *t, const int64_t *values, int64_t count, const char *file, int line)
{
  if (t->count != count) {
    print_error("%lld integers expected of a tensor of %lld\n", (long long)count, (long long)t->count);
    _fail(file, line);
  }
  for (int64_t i = 0; i < count; i++) {
    if (tiny_integer(t, i) != values[i]) {
      print_error("%s element %lld: expected %lld, got %lld\n", sheaf_dtype_name(t->dtype), (long long)i,
                  (long long)values[i], (long long)tiny_integer(t, i));
      _fail(file, line);
    }
  }
}

void tiny_expect_untouched(const tiny *t, const char *file, int line)
{
  const bool integers = t->dtype == SHEAF_I32 || t->dtype == SHEAF_I64 || t->dtype == SHEAF_U8;
  for (int64_t i = 0; i < t->count; i++) {
    if (integers ? tiny_integer(t, i) != 7 : !same(tiny_number(t, i), 7.0)) {
      print_error("element %lld was written\n", (long long)i);
      _fail(file, line);
    }
  }
}

void tiny_expect_report(const sheaf_index_report *report, int64_t count, int64_t position, int64_t value,
                        const char *file, int line)
{
  if (report->count != count || report->first_position != position || report->first_value != value) {
    print_error("report: expected %lld bad, first at %lld holding %lld; got %lld, %lld, %lld\n", (long long)count,
                (long long)position, (long long)value, (long long)report->count, (long long)report->first_position,
                (long long)report->first_value);
    _fail(file, line);
  }
}

void tiny_expect_status(sheaf_status status, sheaf_status expected, const char *file, int line)
{
  if (status != expected) {
    print_error("expected %s, got %s; last error: %s\n", sheaf_status_name(expected), sheaf_status_name(status),
                sheaf_last_error());
    _fail(file, line);
  }
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

sheaf_embedding_desc tiny_embedding(sheaf_embedding_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype)
{
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.kind = kind;
  desc.dtype = dtype;
  desc.index_dtype = index_dtype;
  return desc;
}

sheaf_segment_desc tiny_segment(sheaf_segment_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype)
{
  sheaf_segment_desc desc = SHEAF_SEGMENT_DESC_INIT;
  desc.kind = kind;
  desc.dtype = dtype;
  desc.index_dtype = index_dtype;
  return desc;
}

static void *make_workspace(const sheaf_plan *plan, size_t *bytes)
{
  *bytes = sheaf_plan_workspace_size(plan);
  return *bytes > 0 ? aligned_alloc(64, (*bytes + 63) / 64 * 64) : NULL;
}

sheaf_status tiny_run_embedding(const sheaf_embedding_desc *desc, const sheaf_embedding_args *args)
{
  sheaf_preference preference = SHEAF_PREFERENCE_INIT;
  preference.threads = 1;
  sheaf_plan *plan = NULL;
  sheaf_status status = sheaf_embedding_select(desc, &preference, &plan);
  if (status != SHEAF_OK) {
    return status;
  }
  size_t bytes;
  void *workspace = make_workspace(plan, &bytes);
  status = sheaf_embedding_run(plan, workspace, bytes, NULL, args);
  free(workspace);
  sheaf_plan_free(plan);
  return status;
}

sheaf_status tiny_run_segment(const sheaf_segment_desc *desc, const sheaf_segment_args *args)
{
  sheaf_preference preference = SHEAF_PREFERENCE_INIT;
  preference.threads = 1;
  sheaf_plan *plan = NULL;
  sheaf_status status = sheaf_segment_select(desc, &preference, &plan);
  if (status != SHEAF_OK) {
    return status;
  }
  size_t bytes;
  void *workspace = make_workspace(plan, &bytes);
  status = sheaf_segment_run(plan, workspace, bytes, NULL, args);
  free(workspace);
  sheaf_plan_free(plan);
  return status;
}
