/* test_io_refusals.c: wrong calls and files that cannot be opened: a status and a sentence each. */
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
#include <sys/stat.h>
#include <unistd.h>

#include "support/io_files.h"

/* ---- Wrong calls ----------------------------------------------------------------------------------------------- */

static void test_null_arguments_are_invalid(void **state)
{
  (void)state;
  sheaf_safetensors *safetensors = (sheaf_safetensors *)io_folder;
  sheaf_npy *npy = (sheaf_npy *)io_folder;
  io_expect_failure(sheaf_safetensors_open(NULL, &safetensors), SHEAF_INVALID_PROBLEM, "path is NULL");
  assert_null(safetensors);
  io_expect_failure(sheaf_safetensors_open("x", NULL), SHEAF_INVALID_PROBLEM, "file is NULL");
  io_expect_failure(sheaf_safetensors_open_memory(NULL, 1, &safetensors), SHEAF_INVALID_PROBLEM, "data is NULL");
  io_expect_failure(sheaf_safetensors_open_memory("x", 1, NULL), SHEAF_INVALID_PROBLEM, "file is NULL");
  io_expect_failure(sheaf_safetensors_open_memory(NULL, 0, &safetensors), SHEAF_IO, "0 bytes are too few");
  io_expect_failure(sheaf_safetensors_write(NULL, NULL, 0, NULL, 0), SHEAF_INVALID_PROBLEM, "path is NULL");
  io_expect_failure(sheaf_safetensors_write("x", NULL, 1, NULL, 0), SHEAF_INVALID_PROBLEM, "tensors is NULL");
  io_expect_failure(sheaf_safetensors_write("x", NULL, 0, NULL, 1), SHEAF_INVALID_PROBLEM, "metadata is NULL");
  io_expect_failure(sheaf_safetensors_write("x", NULL, -1, NULL, 0), SHEAF_INVALID_PROBLEM, "tensor_count is -1");
  io_expect_failure(sheaf_safetensors_write("x", NULL, 0, NULL, -1), SHEAF_INVALID_PROBLEM, "metadata_count is -1");
  io_expect_failure(sheaf_npy_open(NULL, &npy), SHEAF_INVALID_PROBLEM, "path is NULL");
  assert_null(npy);
  io_expect_failure(sheaf_npy_open("x", NULL), SHEAF_INVALID_PROBLEM, "file is NULL");
  io_expect_failure(sheaf_npy_open_memory(NULL, 1, &npy), SHEAF_INVALID_PROBLEM, "data is NULL");
  io_expect_failure(sheaf_npy_open_memory("x", 1, NULL), SHEAF_INVALID_PROBLEM, "file is NULL");
  io_expect_failure(sheaf_npy_open_memory(NULL, 0, &npy), SHEAF_IO, "no npy file");
  io_expect_failure(sheaf_npy_write(NULL, NULL), SHEAF_INVALID_PROBLEM, "path is NULL");
  io_expect_failure(sheaf_npy_write("x", NULL), SHEAF_INVALID_PROBLEM, "tensor is NULL");
  sheaf_npy_close(NULL);
  assert_null(sheaf_npy_tensor(NULL));
}

static void test_tensors_that_contradict_themselves_are_not_written(void **state)
{
  (void)state;
  static const char data[64];
  static const struct {
    sheaf_io_tensor tensor;
    const char *words;
  } rows[] = {
      {{"t", SHEAF_DTYPE_NONE, 1, {1}, data, 4}, "tensor 0 has dtype none (0), which files do not hold"},
      {{"t", SHEAF_INT8, 1, {1}, data, 9}, "dtype int8 (8), which files do not hold; write packed rows as u8"},
      {{"t", SHEAF_INT4, 1, {1}, data, 5}, "write packed rows as u8"},
      {{"t", (sheaf_dtype)99, 1, {1}, data, 4}, "dtype none (99)"},
      {{"t", SHEAF_F32, -1, {1}, data, 4}, "rank -1, which is outside 0..8"},
      {{"t", SHEAF_F32, 9, {1}, data, 4}, "rank 9, which is outside 0..8"},
      {{"t", SHEAF_F32, 2, {1, -2}, data, 4}, "the negative extent -2 in dimension 1"},
      {{"t", SHEAF_F32, 2, {INT64_MAX, 3}, data, 4}, "a shape whose size overflows"},
      {{"t", SHEAF_F32, 3, {INT64_MAX, 3, 0}, data, 0}, "a shape whose size overflows"},
      {{"t", SHEAF_F32, 2, {1, 2}, data, 4}, "has 4 bytes, but its shape and dtype make 8"},
      {{"t", SHEAF_F32, 2, {1, 0}, data, 4}, "has 4 bytes, but its shape and dtype make 0"},
      {{"t", SHEAF_F32, 0, {0}, data, 0}, "has 0 bytes, but its shape and dtype make 4"},
      {{"t", SHEAF_F32, 1, {1}, NULL, 4}, "has 4 bytes, but data is NULL"},
  };
  const char *path = io_path("never");
  for (int i = 0; i < LENGTH(rows); i++) {
    io_expect_failure(sheaf_safetensors_write(path, &rows[i].tensor, 1, NULL, 0), SHEAF_INVALID_PROBLEM, rows[i].words);
    io_expect_failure(sheaf_npy_write(path, &rows[i].tensor), SHEAF_INVALID_PROBLEM, rows[i].words);
  }
  assert_int_equal(io_entries_in(io_folder), 0);
}

static void test_names_that_cannot_be_written_are_invalid(void **state)
{
  (void)state;
  static const char data[4];
  sheaf_io_tensor tensors[3];
  for (int i = 0; i < 3; i++) tensors[i] = io_tensor(i == 1 ? "b" : "a", 0, 0, NULL, data);
  const char *path = io_path("never");
  io_expect_failure(sheaf_safetensors_write(path, tensors, 3, NULL, 0), SHEAF_INVALID_PROBLEM,
                    "tensor name 'a' is given");
  tensors[2].name = NULL;
  io_expect_failure(sheaf_safetensors_write(path, tensors, 3, NULL, 0), SHEAF_INVALID_PROBLEM,
                    "name of tensor 2 is NULL");
  tensors[2].name = "__metadata__";
  io_expect_failure(sheaf_safetensors_write(path, tensors, 3, NULL, 0), SHEAF_INVALID_PROBLEM, "named '__metadata__'");
  tensors[2].name = "xy\xff";
  io_expect_failure(sheaf_safetensors_write(path, tensors, 3, NULL, 0), SHEAF_INVALID_PROBLEM,
                    "the name of tensor 2 is not valid UTF-8 at its byte 2");
  sheaf_io_metadata metadata[] = {{"a", "1"}, {"b", "2"}, {"a", "3"}};
  io_expect_failure(sheaf_safetensors_write(path, tensors, 2, metadata, 3), SHEAF_INVALID_PROBLEM, "metadata key 'a'");
  metadata[2].key = NULL;
  io_expect_failure(sheaf_safetensors_write(path, tensors, 2, metadata, 3), SHEAF_INVALID_PROBLEM,
                    "key of metadata 2 is N");
  metadata[2] = (sheaf_io_metadata){"c", NULL};
  io_expect_failure(sheaf_safetensors_write(path, tensors, 2, metadata, 3), SHEAF_INVALID_PROBLEM,
                    "value of metadata 2 is");
  metadata[2] = (sheaf_io_metadata){"\xc3", "3"};
  io_expect_failure(sheaf_safetensors_write(path, tensors, 2, metadata, 3), SHEAF_INVALID_PROBLEM,
                    "is not valid UTF-8");
  assert_int_equal(io_entries_in(io_folder), 0);
}

/* ---- Files that cannot be opened ------------------------------------------------------------------------------- */

static void assert_neither_opens(const char *path, const char *safetensors_words, const char *npy_words)
{
  sheaf_safetensors *safetensors;
  sheaf_npy *npy;
  int descriptors = io_descriptors();
  io_expect_failure(sheaf_safetensors_open(path, &safetensors), SHEAF_IO, safetensors_words);
  assert_non_null(strstr(sheaf_last_error(), path));
  assert_null(safetensors);
  io_expect_failure(sheaf_npy_open(path, &npy), SHEAF_IO, npy_words);
  assert_non_null(strstr(sheaf_last_error(), path));
  assert_null(npy);
  assert_int_equal(io_descriptors(), descriptors);
  assert_int_equal(io_mappings(), 0);
}

static void test_files_that_cannot_be_opened(void **state)
{
  (void)state;
  const char *missing = io_path("missing"), *empty = io_path("empty"), *pipe = io_path("pipe"), *text = io_path("text");
  assert_neither_opens(missing, "cannot open the file for reading: No such file or directory (errno 2)", "(errno 2)");
  assert_neither_opens(io_folder, "this is not a regular file", "this is not a regular file");
  io_store(empty, "", 0);
  assert_neither_opens(empty, "0 bytes are too few", "these 0 bytes are no npy file");
  assert_int_equal(mkfifo(pipe, 0600), 0);
  assert_neither_opens(pipe, "this is not a regular file", "this is not a regular file");
  io_store(text, "just some text", 14);
  assert_neither_opens(text, "is over the limit", "no npy file");
}

static void test_long_path_leaves_the_sentence_whole(void **state)
{
  (void)state;
  char path[3000];
  memset(path, 'p', sizeof path);
  memcpy(path + sizeof path - 6, "/last", 6);
  sheaf_safetensors *file;
  io_expect_failure(sheaf_safetensors_open(path, &file), SHEAF_IO, "/last: cannot open the file for reading: ");
  assert_memory_equal(sheaf_last_error(), "...p", 4);
}

#define TEST(test) cmocka_unit_test_teardown(test, io_empty_folder)

int main(void)
{
  const struct CMUnitTest tests[] = {
      TEST(test_null_arguments_are_invalid),
      TEST(test_tensors_that_contradict_themselves_are_not_written),
      TEST(test_names_that_cannot_be_written_are_invalid),
      TEST(test_files_that_cannot_be_opened),
      TEST(test_long_path_leaves_the_sentence_whole),
  };
  return cmocka_run_group_tests(tests, io_make_folder, io_remove_folder);
}
