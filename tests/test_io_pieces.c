/* test_io_pieces.c: files in windows and piece by piece: the same tensors and bytes as by the whole-file functions, every
 * cut noticed, wrong use refused, nothing left behind, failing memory. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <sheaf/io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 700, DIM = 33 };

static char folder[64], path[96], other[96];
static float values[ROWS][DIM];

static int make_folder(void **state)
{
  (void)state;
  snprintf(folder, sizeof folder, "/tmp/sheaf-pieces-XXXXXX");
  if (!mkdtemp(folder)) return -1;
  snprintf(path, sizeof path, "%s/one", folder);
  snprintf(other, sizeof other, "%s/two", folder);
  for (int i = 0; i < ROWS * DIM; i++) values[i / DIM][i % DIM] = (float)i;
  return 0;
}

static int remove_folder(void **state)
{
  (void)state;
  unlink(path);
  unlink(other);
  return rmdir(folder);
}

static int files_in_folder(void)
{
  int count = 0;
  DIR *dir = opendir(folder);
  assert_non_null(dir);
  for (struct dirent *entry; (entry = readdir(dir));) count += entry->d_name[0] != '.' || entry->d_name[1] == 's';
  closedir(dir);
  return count;
}

static sheaf_io_tensor tensor_of(const char *name)
{
  return (sheaf_io_tensor){
      .name = name, .dtype = SHEAF_F32, .rank = 2, .shape = {ROWS, DIM}, .data = values, .bytes = sizeof values};
}

static char *read_all(const char *name, size_t *bytes)
{
  FILE *file = fopen(name, "rb");
  assert_non_null(file);
  char *content = malloc(1 << 20);
  *bytes = fread(content, 1, 1 << 20, file);
  fclose(file);
  return content;
}

static void expect_ok(sheaf_status status)
{
  if (status != SHEAF_OK) fail_msg("%s", sheaf_last_error());
}

static void write_whole(const char *name, sheaf_io_format format)
{
  static const sheaf_io_metadata note = {"key", "value"};
  sheaf_io_tensor tensor = tensor_of("t");
  expect_ok(format == SHEAF_IO_NPY ? sheaf_npy_write(name, &tensor)
                                   : sheaf_safetensors_write(name, &tensor, 1, &note, 1));
}

static sheaf_io_output output_to(const char *name, sheaf_io_format format)
{
  static const sheaf_io_metadata note = {"key", "value"};
  sheaf_io_output output = SHEAF_IO_OUTPUT_INIT;
  output.path = name;
  output.format = format;
  output.tensor = tensor_of("t");
  output.tensor.data = NULL;
  output.metadata = format == SHEAF_IO_NPY ? NULL : &note;
  output.metadata_count = format != SHEAF_IO_NPY;
  return output;
}

static void test_pieces_give_the_bytes_of_the_whole(void **state)
{
  (void)state;
  for (int format = SHEAF_IO_SAFETENSORS; format <= SHEAF_IO_NPY; format++) {
    for (size_t piece = 1000; piece < sizeof values; piece *= 7) {
      sheaf_io_output output = output_to(other, (sheaf_io_format)format);
      sheaf_io_writer *writer;
      write_whole(path, output.format);
      expect_ok(sheaf_io_write_begin(&output, &writer));
      for (size_t at = 0; at < sizeof values; at += piece)
        expect_ok(sheaf_io_write_append(writer, (const char *)values + at,
                                        sizeof values - at < piece ? sizeof values - at : piece));
      expect_ok(sheaf_io_write_end(writer, 1));
      size_t one, two;
      char *whole = read_all(path, &one), *pieces = read_all(other, &two);
      assert_int_equal(one, two);
      assert_memory_equal(whole, pieces, one);
      free(whole);
      free(pieces);
    }
  }
}

static void test_windows_show_the_values(void **state)
{
  (void)state;
  for (int format = SHEAF_IO_SAFETENSORS; format <= SHEAF_IO_NPY; format++) {
    sheaf_io_file *file;
    write_whole(path, (sheaf_io_format)format);
    expect_ok(sheaf_io_open(path, &file));
    assert_int_equal(sheaf_io_format_of(file), format);
    assert_int_equal(sheaf_io_count(file), 1);
    const sheaf_io_tensor *tensor = sheaf_io_at(file, 0);
    assert_null(tensor->data);
    assert_int_equal(tensor->bytes, sizeof values);
    assert_ptr_equal(sheaf_io_find(file, format == SHEAF_IO_NPY ? "" : "t"), tensor);
    assert_null(sheaf_io_find(file, "other"));
    assert_null(sheaf_io_at(file, 1));
    assert_null(sheaf_io_at(file, -1));
    if (format == SHEAF_IO_SAFETENSORS) assert_string_equal(sheaf_io_metadata_of(file, "key"), "value");
    assert_null(sheaf_io_metadata_of(file, "other"));
    for (int64_t first = 0; first < (int64_t)sizeof values; first += 4093)
      for (int64_t bytes = 0; bytes < 20000; bytes += 6007) {
        const void *data;
        if (bytes > (int64_t)sizeof values - first) continue;
        expect_ok(sheaf_io_window(file, tensor, first, bytes, &data));
        if (bytes == 0)
          assert_null(data);
        else
          assert_memory_equal(data, (const char *)values + first, (size_t)bytes);
      }
    sheaf_io_close(file);
  }
}

static void test_memory_is_read_as_files_are(void **state)
{
  (void)state;
  size_t bytes;
  const void *data;
  sheaf_io_file *file;
  write_whole(path, SHEAF_IO_NPY);
  char *content = read_all(path, &bytes);
  expect_ok(sheaf_io_open_memory(content, bytes, &file));
  expect_ok(sheaf_io_window(file, sheaf_io_at(file, 0), 132, 400, &data));
  assert_memory_equal(data, &values[1], 400);
  sheaf_io_close(file);
  assert_int_equal(sheaf_io_open_memory(content, bytes - 1, &file), SHEAF_IO);
  assert_int_equal(sheaf_io_open_memory(NULL, 3, &file), SHEAF_INVALID_PROBLEM);
  assert_int_equal(sheaf_io_open_memory(content, 0, &file), SHEAF_IO);
  assert_null(file);
  free(content);
}

static void test_every_cut_is_noticed(void **state)
{
  (void)state;
  for (int format = SHEAF_IO_SAFETENSORS; format <= SHEAF_IO_NPY; format++) {
    write_whole(path, (sheaf_io_format)format);
    size_t bytes;
    char *content = read_all(path, &bytes);
    for (size_t cut = 0; cut < bytes; cut += cut < 300 ? 1 : 997) {
      sheaf_io_file *file;
      FILE *short_file = fopen(other, "wb");
      assert_int_equal(fwrite(content, 1, cut, short_file), cut);
      fclose(short_file);
      assert_int_equal(sheaf_io_open(other, &file), SHEAF_IO);
      assert_null(file);
      assert_non_null(strstr(sheaf_last_error(), other));
    }
    free(content);
  }
}

static void test_wrong_windows_are_refused(void **state)
{
  (void)state;
  sheaf_io_file *file, *second;
  const void *data;
  write_whole(path, SHEAF_IO_SAFETENSORS);
  expect_ok(sheaf_io_open(path, &file));
  expect_ok(sheaf_io_open(path, &second));
  const sheaf_io_tensor *tensor = sheaf_io_at(file, 0);
  static const int64_t wrong[][2] = {
      {-1, 4}, {0, -1}, {0, sizeof values + 1}, {sizeof values, 1}, {INT64_MAX, INT64_MAX}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    assert_int_equal(sheaf_io_window(file, tensor, wrong[i][0], wrong[i][1], &data), SHEAF_INVALID_PROBLEM);
  assert_int_equal(sheaf_io_window(second, tensor, 0, 4, &data), SHEAF_INVALID_PROBLEM);
  assert_int_equal(sheaf_io_window(NULL, tensor, 0, 4, &data), SHEAF_INVALID_PROBLEM);
  assert_int_equal(sheaf_io_window(file, NULL, 0, 4, &data), SHEAF_INVALID_PROBLEM);
  assert_int_equal(sheaf_io_window(file, tensor, 0, 4, NULL), SHEAF_INVALID_PROBLEM);
  expect_ok(sheaf_io_window(file, tensor, sizeof values, 0, &data));
  sheaf_io_close(file);
  sheaf_io_close(second);
  sheaf_io_close(NULL);
  assert_int_equal(sheaf_io_open(NULL, &file), SHEAF_INVALID_PROBLEM);
  assert_int_equal(sheaf_io_open(path, NULL), SHEAF_INVALID_PROBLEM);
  assert_int_equal(sheaf_io_open(folder, &file), SHEAF_IO);
  assert_int_equal(sheaf_io_count(NULL), 0);
}

static void test_an_unfinished_file_leaves_the_old_one(void **state)
{
  (void)state;
  sheaf_io_writer *writer;
  sheaf_io_output output = output_to(path, SHEAF_IO_NPY);
  size_t before, after;
  write_whole(path, SHEAF_IO_SAFETENSORS);
  char *old = read_all(path, &before);
  int files = files_in_folder();
  for (int keep = 0; keep < 2; keep++) { /* given up; kept, but not complete */
    expect_ok(sheaf_io_write_begin(&output, &writer));
    expect_ok(sheaf_io_write_append(writer, values, 1000));
    assert_int_equal(sheaf_io_write_end(writer, keep), keep ? SHEAF_INVALID_PROBLEM : SHEAF_OK);
  }
  expect_ok(sheaf_io_write_begin(&output, &writer));
  expect_ok(sheaf_io_write_append(writer, values, sizeof values));
  assert_int_equal(sheaf_io_write_append(writer, values, 1), SHEAF_INVALID_PROBLEM);
  assert_int_equal(sheaf_io_write_append(writer, NULL, 1), SHEAF_INVALID_PROBLEM);
  expect_ok(sheaf_io_write_end(writer, 0));
  char *now = read_all(path, &after);
  assert_int_equal(before, after);
  assert_memory_equal(old, now, before);
  assert_int_equal(files_in_folder(), files);
  free(old);
  free(now);
}

static void test_wrong_outputs_are_refused(void **state)
{
  (void)state;
  sheaf_io_writer *writer;
  sheaf_io_output output = output_to(path, SHEAF_IO_NPY);
  assert_int_equal(sheaf_io_write_begin(NULL, &writer), SHEAF_INVALID_PROBLEM);
  assert_int_equal(sheaf_io_write_begin(&output, NULL), SHEAF_INVALID_PROBLEM);
  output.struct_size = 8;
  assert_int_equal(sheaf_io_write_begin(&output, &writer), SHEAF_INVALID_PROBLEM);
  output = output_to(path, SHEAF_IO_NPY);
  output.tensor.bytes--;
  assert_int_equal(sheaf_io_write_begin(&output, &writer), SHEAF_INVALID_PROBLEM);
  output = output_to(path, (sheaf_io_format)7);
  assert_int_equal(sheaf_io_write_begin(&output, &writer), SHEAF_INVALID_PROBLEM);
  output = output_to(NULL, SHEAF_IO_NPY);
  output.descriptor = -1;
  assert_int_equal(sheaf_io_write_begin(&output, &writer), SHEAF_INVALID_PROBLEM);
  output = output_to("/nowhere/at/all", SHEAF_IO_NPY);
  assert_int_equal(sheaf_io_write_begin(&output, &writer), SHEAF_IO);
  output = output_to(path, SHEAF_IO_SAFETENSORS);
  output.tensor.name = "__metadata__";
  assert_int_equal(sheaf_io_write_begin(&output, &writer), SHEAF_INVALID_PROBLEM);
  assert_null(writer);
  assert_int_equal(sheaf_io_write_append(NULL, values, 1), SHEAF_INVALID_PROBLEM);
  expect_ok(sheaf_io_write_end(NULL, 1));
}

static void test_a_descriptor_is_written_to(void **state)
{
  (void)state;
  sheaf_io_writer *writer;
  sheaf_io_output output = output_to(NULL, SHEAF_IO_NPY);
  write_whole(path, SHEAF_IO_NPY);
  output.descriptor = open(other, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  expect_ok(sheaf_io_write_begin(&output, &writer));
  expect_ok(sheaf_io_write_append(writer, values, sizeof values));
  expect_ok(sheaf_io_write_end(writer, 1));
  assert_int_equal(close(output.descriptor), 0);
  size_t one, two;
  char *whole = read_all(path, &one), *piped = read_all(other, &two);
  assert_int_equal(one, two);
  assert_memory_equal(whole, piped, one);
  free(whole);
  free(piped);
}

/* ---- Failing memory ---------------------------------------------------------------------------------------------- */

static int calls, failing, live;

static void *failing_allocate(void *context, size_t bytes, size_t alignment)
{
  (void)context;
  void *memory = NULL;
  if (calls++ == failing || posix_memalign(&memory, alignment, bytes) != 0) return NULL;
  live++;
  return memory;
}
static void failing_release(void *context, void *memory, size_t bytes)
{
  (void)context;
  (void)bytes;
  if (memory) live--;
  free(memory);
}

static void test_short_memory_loses_nothing(void **state)
{
  (void)state;
  static const sheaf_allocator allocator = {failing_allocate, failing_release, NULL};
  write_whole(path, SHEAF_IO_SAFETENSORS);
  int files = files_in_folder();
  expect_ok(sheaf_set_allocator(&allocator));
  for (int round = 0; round < 2; round++) {
    sheaf_status status = SHEAF_OUT_OF_MEMORY;
    for (failing = 0; status != SHEAF_OK; failing++) {
      sheaf_io_file *file = NULL;
      sheaf_io_writer *writer = NULL;
      sheaf_io_output output = output_to(other, round ? SHEAF_IO_NPY : SHEAF_IO_SAFETENSORS);
      calls = 0;
      status = sheaf_io_open(path, &file);
      if (status == SHEAF_OK) status = sheaf_io_write_begin(&output, &writer);
      if (status != SHEAF_OK) assert_int_equal(status, SHEAF_OUT_OF_MEMORY);
      sheaf_io_write_end(writer, 0);
      sheaf_io_close(file);
      assert_int_equal(live, 0);
      assert_true(failing < 20);
    }
    assert_true(failing > 3);
  }
  expect_ok(sheaf_set_allocator(NULL));
  assert_int_equal(files_in_folder(), files);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pieces_give_the_bytes_of_the_whole),
      cmocka_unit_test(test_windows_show_the_values),
      cmocka_unit_test(test_memory_is_read_as_files_are),
      cmocka_unit_test(test_every_cut_is_noticed),
      cmocka_unit_test(test_wrong_windows_are_refused),
      cmocka_unit_test(test_an_unfinished_file_leaves_the_old_one),
      cmocka_unit_test(test_wrong_outputs_are_refused),
      cmocka_unit_test(test_a_descriptor_is_written_to),
      cmocka_unit_test(test_short_memory_loses_nothing),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
