/* test_io_safetensors.c: round trips of every type and rank, bytes as specified, names, metadata, many tensors. */
#define _GNU_SOURCE
/* cmocka.h needs the first four before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sheaf/io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/io_files.h"

static void test_safetensors_round_trip_of_every_dtype_and_rank(void **state)
{
  (void)state;
  unsigned char data[1024];
  for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 37 + 11);
  const char *path = io_path("round.safetensors");
  for (int row = 0; row < LENGTH(io_dtypes); row++) {
    for (int rank = 0; rank <= SHEAF_IO_MAX_RANK; rank++) {
      for (int s = 0; s < LENGTH(io_shapes); s++) {
        sheaf_io_tensor tensor = io_tensor("t", row, rank, io_shapes[s], data);
        assert_int_equal(sheaf_safetensors_write(path, &tensor, 1, NULL, 0), SHEAF_OK);
        sheaf_safetensors *file;
        assert_int_equal(sheaf_safetensors_open(path, &file), SHEAF_OK);
        assert_int_equal(sheaf_safetensors_count(file), 1);
        assert_int_equal(sheaf_safetensors_metadata_count(file), 0);
        const sheaf_io_tensor *read = sheaf_safetensors_find(file, "t");
        io_expect_tensor(read, &tensor);
        assert_int_equal((uintptr_t)read->data % 64, 0);
        sheaf_safetensors_close(file);
      }
    }
  }
  assert_int_equal(io_mappings(), 0);
}

static void test_safetensors_bytes_are_as_specified(void **state)
{
  (void)state;
  const char *path = io_path("known.safetensors");
  static const float values[] = {1.0f, -2.0f};
  int64_t shape[] = {2, 1};
  sheaf_io_tensor tensor = io_tensor("w", 0, 2, shape, values);
  sheaf_io_metadata metadata = {"k", "v"};
  assert_int_equal(sheaf_safetensors_write(path, &tensor, 1, &metadata, 1), SHEAF_OK);
  static const char expected[] = "\x78\0\0\0\0\0\0\0"
                                 "{\"__metadata__\":{\"k\":\"v\"},\"w\":{\"dtype\":\"F32\",\"shape\":[2,1],"
                                 "\"data_offsets\":[0,8]}}                                       "
                                 "\x00\x00\x80\x3f\x00\x00\x00\xc0";
  io_expect_content(path, expected, sizeof expected - 1);
  assert_int_equal(sheaf_safetensors_write(path, NULL, 0, NULL, 0), SHEAF_OK);
  static const char empty[] = "\x38\0\0\0\0\0\0\0"
                              "{}                                                      ";
  io_expect_content(path, empty, sizeof empty - 1);
}

/* Odd byte counts between larger elements: every tensor is aligned all the same. */
static void test_safetensors_written_tensors_are_aligned(void **state)
{
  (void)state;
  static const _Alignas(8) unsigned char data[64] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
  int64_t odd[] = {3}, none[] = {0};
  sheaf_io_tensor tensors[] = {io_tensor("bytes", 6, 1, odd, data),  io_tensor("f64", 1, 1, odd, data + 8),
                               io_tensor("f16", 2, 1, odd, data),    io_tensor("f32", 0, 1, odd, data + 4),
                               io_tensor("more", 6, 1, odd, data),   io_tensor("i64", 5, 1, odd, data),
                               io_tensor("empty", 5, 1, none, NULL), io_tensor("scalar", 3, 0, NULL, data)};
  static const char *order[] = {"f64", "i64", "empty", "f32", "f16", "scalar", "bytes", "more"};
  const char *path = io_path("mixed.safetensors");
  assert_int_equal(sheaf_safetensors_write(path, tensors, LENGTH(tensors), NULL, 0), SHEAF_OK);
  sheaf_safetensors *file;
  assert_int_equal(sheaf_safetensors_open(path, &file), SHEAF_OK);
  assert_int_equal(sheaf_safetensors_count(file), LENGTH(tensors));
  for (int i = 0; i < LENGTH(tensors); i++) {
    const sheaf_io_tensor *read = sheaf_safetensors_find(file, tensors[i].name);
    io_expect_tensor(read, &tensors[i]);
    assert_string_equal(read->name, tensors[i].name);
    assert_int_equal((uintptr_t)read->data % (uintptr_t)sheaf_dtype_row_bytes(read->dtype, 1), 0);
    assert_string_equal(sheaf_safetensors_at(file, i)->name, order[i]);
  }
  sheaf_safetensors_close(file);
}

static void test_safetensors_names_and_metadata_of_any_characters(void **state)
{
  (void)state;
  static const unsigned char data[4] = {1, 2, 3, 4};
  static const char *names[] = {"", "quote \" backslash \\ slash /", "tab \t newline \n bell \a delete \x7f",
                                "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", "%s%n{}[],:"};
  sheaf_io_tensor tensors[LENGTH(names)];
  sheaf_io_metadata metadata[LENGTH(names)];
  int64_t shape[] = {4};
  for (int i = 0; i < LENGTH(names); i++) {
    tensors[i] = io_tensor(names[i], 6, 1, shape, data);
    metadata[i] = (sheaf_io_metadata){names[i], names[LENGTH(names) - 1 - i]};
  }
  const char *path = io_path("names.safetensors");
  assert_int_equal(sheaf_safetensors_write(path, tensors, LENGTH(names), metadata, LENGTH(names)), SHEAF_OK);
  sheaf_safetensors *file;
  assert_int_equal(sheaf_safetensors_open(path, &file), SHEAF_OK);
  assert_int_equal(sheaf_safetensors_metadata_count(file), LENGTH(names));
  for (int i = 0; i < LENGTH(names); i++) {
    assert_string_equal(sheaf_safetensors_at(file, i)->name, names[i]);
    assert_ptr_equal(sheaf_safetensors_find(file, names[i]), sheaf_safetensors_at(file, i));
    assert_string_equal(sheaf_safetensors_metadata(file, names[i]), metadata[i].value);
  }
  for (int i = 1; i < LENGTH(names); i++) {
    const char *before = sheaf_safetensors_metadata_at(file, i - 1).key;
    assert_true(strcmp(before, sheaf_safetensors_metadata_at(file, i).key) < 0);
  }
  sheaf_safetensors_close(file);
}

static void test_safetensors_many_tensors_are_all_found(void **state)
{
  (void)state;
  enum { COUNT = 3000 };
  static char names[COUNT][16];
  static sheaf_io_tensor tensors[COUNT];
  static int32_t values[COUNT];
  static sheaf_io_metadata metadata[COUNT];
  for (int i = 0; i < COUNT; i++) {
    snprintf(names[i], sizeof names[i], "%d", (int)((i * 7919LL) % COUNT));
    values[i] = i;
    tensors[i] = io_tensor(names[i], 4, 0, NULL, &values[i]);
    metadata[i] = (sheaf_io_metadata){names[i], names[i]};
  }
  const char *path = io_path("many.safetensors");
  assert_int_equal(sheaf_safetensors_write(path, tensors, COUNT, metadata, COUNT), SHEAF_OK);
  sheaf_safetensors *file;
  assert_int_equal(sheaf_safetensors_open(path, &file), SHEAF_OK);
  for (int i = 0; i < COUNT; i++) {
    io_expect_tensor(sheaf_safetensors_find(file, names[i]), &tensors[i]);
    assert_string_equal(sheaf_safetensors_at(file, i)->name, names[i]);
    assert_string_equal(sheaf_safetensors_metadata(file, names[i]), names[i]);
  }
  assert_null(sheaf_safetensors_find(file, "3000"));
  assert_null(sheaf_safetensors_metadata(file, ""));
  sheaf_safetensors_close(file);
}

static void test_safetensors_accessors_answer_null_outside(void **state)
{
  (void)state;
  const char *header = "{\"__metadata__\":{\"a\":\"b\"},\"t\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
  io_content made = io_safetensors_of(header, strlen(header), 2);
  sheaf_safetensors *file;
  assert_int_equal(sheaf_safetensors_open_memory(made.data, made.bytes, &file), SHEAF_OK);
  assert_non_null(sheaf_safetensors_at(file, 0));
  assert_null(sheaf_safetensors_at(file, 1));
  assert_null(sheaf_safetensors_at(file, -1));
  assert_null(sheaf_safetensors_find(file, "u"));
  assert_null(sheaf_safetensors_find(file, NULL));
  assert_null(sheaf_safetensors_metadata(file, "c"));
  assert_null(sheaf_safetensors_metadata(file, NULL));
  assert_null(sheaf_safetensors_metadata_at(file, 1).key);
  assert_null(sheaf_safetensors_metadata_at(file, -1).value);
  sheaf_safetensors_close(file);
  free(made.data);
  sheaf_safetensors_close(NULL);
  assert_int_equal(sheaf_safetensors_count(NULL), 0);
  assert_int_equal(sheaf_safetensors_metadata_count(NULL), 0);
  assert_null(sheaf_safetensors_at(NULL, 0));
  assert_null(sheaf_safetensors_find(NULL, "t"));
  assert_null(sheaf_safetensors_metadata(NULL, "a"));
  assert_null(sheaf_safetensors_metadata_at(NULL, 0).key);
}

#define TEST(test) cmocka_unit_test_teardown(test, io_empty_folder)

int main(void)
{
  const struct CMUnitTest tests[] = {
      TEST(test_safetensors_round_trip_of_every_dtype_and_rank),
      TEST(test_safetensors_bytes_are_as_specified),
      TEST(test_safetensors_written_tensors_are_aligned),
      TEST(test_safetensors_names_and_metadata_of_any_characters),
      TEST(test_safetensors_many_tensors_are_all_found),
      TEST(test_safetensors_accessors_answer_null_outside),
  };
  return cmocka_run_group_tests(tests, io_make_folder, io_remove_folder);
}
