/* test_tensor.c: tensors of the ops: memory, references, DLPack, forms, versions, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "support/tensors.h"

static int keys_of(const sheaf_tensor *t) { return sheaf_tensor_keys(t).bits; }
static int bits(int a, int b) { return (1 << a) | (b < 0 ? 0 : 1 << b); }

static void test_new_tensors_are_zero(void **state)
{
  (void)state;
  sheaf_tensor *t = tensor_of(SHEAF_F32, SHAPE(2, 3), NULL);
  expect_tensor(t, 0, 0, 0, 0, 0, 0);
  assert_int_equal(keys_of(t), bits(SHEAF_KEY_CPU, -1));
  assert_int_equal((uintptr_t)sheaf_tensor_data(t) % 64, 0);
  assert_int_equal(sheaf_tensor_rank(t), 2);
  assert_int_equal(sheaf_tensor_extent(t, 1), 3);
  assert_int_equal(sheaf_tensor_extent(t, 2), 0);
  assert_string_equal(sheaf_tensor_name(t), "");
  sheaf_tensor_set_name(t, "a name that is longer than the room there is for it");
  assert_int_equal(strlen(sheaf_tensor_name(t)), 31);
}

static void test_null_tensors_are_nothing(void **state)
{
  (void)state;
  sheaf_tensor_release(NULL);
  assert_null(sheaf_tensor_retain(NULL));
  assert_int_equal(sheaf_tensor_dtype(NULL), SHEAF_DTYPE_NONE);
  assert_int_equal(keys_of(NULL), 0);
  assert_null(sheaf_tensor_dl(NULL));
  assert_null(sheaf_tensor_grad(NULL));
  sheaf_tensor_written(NULL);
  assert_int_equal(sheaf_tensor_version(NULL), 0);
}

static void test_bad_shapes_are_refused(void **state)
{
  (void)state;
  sheaf_tensor *t = (sheaf_tensor *)state;
  expect_status(sheaf_tensor_new(SHEAF_F32, 2, (int64_t[]){2, -1}, &t), SHEAF_INVALID_PROBLEM);
  assert_null(t);
  expect_words("-1", "dimension 1");
  expect_status(sheaf_tensor_new(SHEAF_F32, 9, (int64_t[9]){0}, &t), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_tensor_new(SHEAF_F32, 2, NULL, &t), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_tensor_new(SHEAF_INT8, 1, (int64_t[]){2}, &t), SHEAF_UNSUPPORTED);
  expect_status(sheaf_tensor_new(SHEAF_F32, 3, (int64_t[]){1LL << 40, 1LL << 40, 2}, &t), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_tensor_new(SHEAF_F32, 1, (int64_t[]){1LL << 58}, &t), SHEAF_OUT_OF_MEMORY);
  expect_words("bytes");
  expect_status(sheaf_tensor_new(SHEAF_F32, 0, NULL, NULL), SHEAF_INVALID_PROBLEM);
}

static void test_borrowed_memory_is_the_callers(void **state)
{
  (void)state;
  float memory[6] = {1, 2, 3, 4, 5, 6};
  int64_t shape[] = {2, 2}, strides[] = {3, 1};
  DLTensor dl = {
      .data = memory, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}, .shape = shape, .strides = strides};
  sheaf_tensor *t;
  expect_ok(sheaf_tensor_borrow(&dl, sizeof memory, &t));
  shape[0] = 77; /* the description is copied, the memory is not */
  assert_int_equal(sheaf_tensor_extent(t, 0), 2);
  assert_ptr_equal(sheaf_tensor_data(t), memory);
  assert_int_equal(sheaf_tensor_dl(t)->strides[0], 3);
  sheaf_tensor_release(t);
  dl.dtype.bits = 8;
  expect_status(sheaf_tensor_borrow(&dl, 0, &t), SHEAF_UNSUPPORTED);
  expect_words("8 bits");
  dl.dtype.bits = 32;
  dl.device.device_type = kDLMetal;
  expect_status(sheaf_tensor_borrow(&dl, 0, &t), SHEAF_UNSUPPORTED);
  dl.device.device_type = kDLCUDA;
  expect_ok(sheaf_tensor_borrow(&dl, 0, &t));
  assert_int_equal(keys_of(t), bits(SHEAF_KEY_CUDA, -1));
  sheaf_tensor_release(t);
}

static void test_borrowed_memory_must_be_there(void **state)
{
  (void)state;
  double memory[4] = {0};
  int64_t shape[] = {3, 2}, strides[] = {-2, 1};
  DLTensor dl = {.data = memory, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}, .shape = shape};
  sheaf_tensor *t;
  expect_ok(sheaf_tensor_borrow(&dl, 24, &t));
  sheaf_tensor_release(t);
  expect_status(sheaf_tensor_borrow(&dl, 23, &t), SHEAF_BUFFER_TOO_SMALL);
  expect_words("24", "23");
  assert_null(t);
  dl.strides = strides;
  expect_status(sheaf_tensor_borrow(&dl, sizeof memory, &t), SHEAF_INVALID_PROBLEM);
  expect_words("16 bytes before");
  strides[0] = INT64_MAX / 4;
  expect_status(sheaf_tensor_borrow(&dl, 0, &t), SHEAF_INVALID_PROBLEM);
  expect_words("2^63");
  dl.strides = NULL;
  dl.byte_offset = 2;
  expect_status(sheaf_tensor_borrow(&dl, 0, &t), SHEAF_MISALIGNED);
  dl.byte_offset = 0;
  dl.data = NULL;
  expect_status(sheaf_tensor_borrow(&dl, 0, &t), SHEAF_INVALID_PROBLEM);
  expect_words("no data", "24");
  shape[0] = 0;
  expect_ok(sheaf_tensor_borrow(&dl, 0, &t));
  sheaf_tensor_release(t);
}

static int deleted;
static void delete_managed(DLManagedTensor *managed)
{
  deleted++;
  free(managed->manager_ctx);
}

static void test_dlpack_in_and_out(void **state)
{
  (void)state;
  double *memory = malloc(3 * sizeof *memory);
  int64_t shape[] = {3};
  for (int i = 0; i < 3; i++) memory[i] = i;
  DLManagedTensor in = {
      .dl_tensor = {.data = memory, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 64, 1}, .shape = shape},
      .manager_ctx = memory,
      .deleter = delete_managed};
  sheaf_tensor *t;
  deleted = 0;
  expect_ok(sheaf_tensor_from_dlpack(&in, &t));
  DLManagedTensor *out;
  expect_ok(sheaf_tensor_to_dlpack(t, &out));
  assert_ptr_equal(out->dl_tensor.data, memory);
  assert_int_equal(out->dl_tensor.shape[0], 3);
  sheaf_tensor_release(t);
  assert_int_equal(deleted, 0); /* the other side still has it */
  assert_true(((double *)out->dl_tensor.data)[2] == 2);
  out->deleter(out);
  assert_int_equal(deleted, 1);
  in.dl_tensor.ndim = -1;
  expect_status(sheaf_tensor_from_dlpack(&in, &t), SHEAF_INVALID_PROBLEM);
  assert_int_equal(deleted, 1); /* a refused one stays its owner's */
}

static void test_only_dense_tensors_go_out(void **state)
{
  (void)state;
  DLManagedTensor *out;
  expect_status(sheaf_tensor_to_dlpack(tensor_untouchable(SHEAF_F32, SHAPE(2)), &out), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_tensor_to_dlpack(NULL, &out), SHEAF_INVALID_PROBLEM);
}

static void test_sparse_tensors(void **state)
{
  (void)state;
  sheaf_tensor *ids = tensor_of(SHEAF_I32, SHAPE(2), NUMBERS(1, 4)), *rows = tensor_of(SHEAF_F16, SHAPE(2, 3), NULL),
               *t;
  expect_ok(sheaf_tensor_sparse(ids, rows, 5, 1, &t));
  tensor_keep(t);
  assert_int_equal(keys_of(t), bits(SHEAF_KEY_SPARSE, SHEAF_KEY_CPU));
  assert_int_equal(sheaf_tensor_extent(t, 0), 5);
  assert_int_equal(sheaf_tensor_extent(t, 1), 3);
  assert_int_equal(sheaf_tensor_dtype(t), SHEAF_F16);
  assert_ptr_equal(sheaf_tensor_part(t, 0), ids);
  assert_true(sheaf_tensor_is_coalesced(t));
  expect_status(sheaf_tensor_sparse(ids, rows, 4, 1, &t), SHEAF_INDEX_OUT_OF_RANGE);
  expect_words("4", "position 1", "0..3");
  expect_status(sheaf_tensor_sparse(ids, rows, INT64_MAX / 3 + 1, 1, &t), SHEAF_INVALID_PROBLEM);
  expect_words("2^59", "of 3");
  sheaf_tensor *falling = tensor_of(SHEAF_I32, SHAPE(2), NUMBERS(4, 1));
  expect_status(sheaf_tensor_sparse(falling, rows, 5, 1, &t), SHEAF_INVALID_PROBLEM);
  expect_ok(sheaf_tensor_sparse(falling, rows, 5, 0, &t));
  sheaf_tensor_release(t);
  expect_status(sheaf_tensor_sparse(rows, rows, 5, 0, &t), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_tensor_sparse(tensor_of(SHEAF_I32, SHAPE(3), NULL), rows, 5, 0, &t), SHEAF_INVALID_PROBLEM);
}

static void test_nested_tensors(void **state)
{
  (void)state;
  sheaf_tensor *values = tensor_of(SHEAF_I64, SHAPE(4), NULL), *t;
  expect_ok(sheaf_tensor_nested(values, tensor_of(SHEAF_I32, SHAPE(4), NUMBERS(0, 1, 1, 4)), &t));
  tensor_keep(t);
  assert_int_equal(keys_of(t), bits(SHEAF_KEY_NESTED, SHEAF_KEY_CPU));
  assert_int_equal(sheaf_tensor_extent(t, 0), 3);
  assert_int_equal(sheaf_tensor_extent(t, 1), -1);
  expect_status(sheaf_tensor_nested(values, tensor_of(SHEAF_I32, SHAPE(4), NUMBERS(0, 3, 1, 4)), &t),
                SHEAF_INVALID_PROBLEM);
  expect_words("offset 2", "is 1", "3");
  expect_status(sheaf_tensor_nested(values, tensor_of(SHEAF_I32, SHAPE(2), NUMBERS(1, 4)), &t), SHEAF_INVALID_PROBLEM);
  expect_status(sheaf_tensor_nested(values, tensor_of(SHEAF_I32, SHAPE(2), NUMBERS(0, 3)), &t), SHEAF_INVALID_PROBLEM);
  expect_words("3", "4");
  expect_status(sheaf_tensor_nested(values, tensor_of(SHEAF_I32, SHAPE(0), NULL), &t), SHEAF_INVALID_PROBLEM);
}

static void test_quantised_tensors(void **state)
{
  (void)state;
  sheaf_tensor *packed = tensor_of(SHEAF_U8, SHAPE(2, 13), NULL), *t;
  expect_ok(sheaf_tensor_quantized(packed, SHEAF_INT8, 5, &t));
  tensor_keep(t);
  assert_int_equal(keys_of(t), bits(SHEAF_KEY_QUANTIZED, SHEAF_KEY_CPU));
  assert_int_equal(sheaf_tensor_extent(t, 1), 5);
  assert_int_equal(sheaf_tensor_dl(t)->shape[1], 13);
  assert_int_equal(sheaf_tensor_dtype(t), SHEAF_INT8);
  expect_status(sheaf_tensor_quantized(packed, SHEAF_INT8, 6, &t), SHEAF_INVALID_PROBLEM);
  expect_words("14", "13");
  expect_status(sheaf_tensor_quantized(packed, SHEAF_F32, 5, &t), SHEAF_UNSUPPORTED);
  expect_status(sheaf_tensor_require_grad(tensor_keep(sheaf_tensor_retain(t)), SHEAF_GRAD_DENSE),
                SHEAF_INVALID_PROBLEM); /* t is NULL after a failure */
}

/* Of one matrix rows may lie apart; matrices that do are refused, not misread. */
static void test_packed_rows_with_gaps(void **state)
{
  (void)state;
  sheaf_tensor *rows = tensor_of(SHEAF_F32, SHAPE(2, 1, 2), NUMBERS(1, 2, 3, 4)), *packed, *part, *given, *out = NULL;
  RESULT(packed, sheaf_quantize(rows, SHEAF_INT8, &packed));
  int64_t width = sheaf_dtype_row_bytes(SHEAF_INT8, 2), shape[] = {2, 1, width}, strides[] = {40, width, 1};
  unsigned char memory[80] = {0};
  for (int i = 0; i < 2; i++)
    memcpy(memory + 40 * i, (const char *)sheaf_tensor_data(packed) + width * i, (size_t)width);
  DLTensor dl = {
      .data = memory, .device = {kDLCPU, 0}, .ndim = 3, .dtype = {kDLUInt, 8, 1}, .shape = shape, .strides = strides};
  expect_ok(sheaf_tensor_borrow(&dl, sizeof memory, &part));
  expect_ok(sheaf_tensor_quantized(tensor_keep(part), SHEAF_INT8, 2, &given));
  expect_status(sheaf_dequantize(tensor_keep(given), SHEAF_F32, &out), SHEAF_UNSUPPORTED);
  expect_words("rank 3", "contiguous");
}

static void test_versions_count_writes(void **state)
{
  (void)state;
  sheaf_tensor *t = tensor_of(SHEAF_F32, SHAPE(2, 2), NULL), *view, *nested;
  int64_t before = sheaf_tensor_version(t);
  expect_ok(sheaf_tensor_detach(t, &view));
  tensor_keep(view);
  sheaf_tensor_written(view);
  assert_int_equal(sheaf_tensor_version(t), before + 1);
  sheaf_tensor_written(t);
  assert_int_equal(sheaf_tensor_version(view), before + 2);
  expect_ok(sheaf_tensor_nested(t, tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(0, 2)), &nested));
  tensor_keep(nested);
  int64_t whole = sheaf_tensor_version(nested);
  sheaf_tensor_written(t);
  assert_int_equal(sheaf_tensor_version(nested), whole + 1);
}

static void test_leaves_of_graphs(void **state)
{
  (void)state;
  sheaf_tensor *t = tensor_of(SHEAF_BF16, SHAPE(2), NULL), *quantised;
  expect_ok(sheaf_tensor_require_grad(t, SHEAF_GRAD_SPARSE));
  assert_true(sheaf_tensor_requires_grad(t));
  assert_int_equal(keys_of(t), bits(SHEAF_KEY_AUTOGRAD, SHEAF_KEY_CPU));
  expect_ok(sheaf_tensor_require_grad(t, SHEAF_GRAD_NONE));
  assert_false(sheaf_tensor_requires_grad(t));
  expect_status(sheaf_tensor_require_grad(tensor_of(SHEAF_I64, SHAPE(2), NULL), SHEAF_GRAD_DENSE), SHEAF_UNSUPPORTED);
  expect_words("i64");
  expect_ok(sheaf_tensor_quantized(tensor_of(SHEAF_U8, SHAPE(2, 13), NULL), SHEAF_INT8, 5, &quantised));
  tensor_keep(quantised);
  expect_status(sheaf_tensor_require_grad(quantised, SHEAF_GRAD_DENSE), SHEAF_UNSUPPORTED);
  expect_words("int8", "quantised");
  expect_status(sheaf_tensor_require_grad(t, (sheaf_grad)9), SHEAF_INVALID_PROBLEM);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_new_tensors_are_zero, tensors_teardown),
      cmocka_unit_test(test_null_tensors_are_nothing),
      cmocka_unit_test(test_bad_shapes_are_refused),
      cmocka_unit_test(test_borrowed_memory_is_the_callers),
      cmocka_unit_test(test_borrowed_memory_must_be_there),
      cmocka_unit_test(test_dlpack_in_and_out),
      cmocka_unit_test_teardown(test_only_dense_tensors_go_out, tensors_teardown),
      cmocka_unit_test_teardown(test_sparse_tensors, tensors_teardown),
      cmocka_unit_test_teardown(test_nested_tensors, tensors_teardown),
      cmocka_unit_test_teardown(test_quantised_tensors, tensors_teardown),
      cmocka_unit_test_teardown(test_packed_rows_with_gaps, tensors_teardown),
      cmocka_unit_test_teardown(test_versions_count_writes, tensors_teardown),
      cmocka_unit_test_teardown(test_leaves_of_graphs, tensors_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
