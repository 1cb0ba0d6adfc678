/* test_io_write.c: atomic writing: what fails leaves the target as it was; permissions, links, failing memory. */
#define _GNU_SOURCE
/* cmocka.h needs the first four before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sheaf/io.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/io_files.h"

/* ---- Atomic writing -------------------------------------------------------------------------------------------- */

static const char old_content[] = "what was there before";

typedef sheaf_status write_function(const char *path, size_t bytes);

static sheaf_status write_safetensors(const char *path, size_t bytes)
{
  static unsigned char data[1 << 16];
  int64_t shape[] = {(int64_t)bytes};
  sheaf_io_tensor tensors[] = {io_tensor("a", 6, 1, shape, data), io_tensor("b", 6, 1, shape, data)};
  sheaf_io_metadata metadata[] = {{"k", "v"}, {"l", "w"}};
  return sheaf_safetensors_write(path, tensors, 2, metadata, 2);
}

static sheaf_status write_npy(const char *path, size_t bytes)
{
  static unsigned char data[1 << 16];
  int64_t shape[] = {(int64_t)bytes};
  sheaf_io_tensor tensor = io_tensor("", 6, 1, shape, data);
  return sheaf_npy_write(path, &tensor);
}

static write_function *const writers[] = {write_safetensors, write_npy};

/* The disk gives out in the header, at its end, in the data: for that the largest file is limited. */
static void test_failing_write_leaves_the_target_as_it_was(void **state)
{
  (void)state;
  static const size_t limits[] = {0, 1, 8, 100, 128, 1000, 40000};
  const char *there = io_path("there"), *new = io_path("new");
  io_store(there, old_content, sizeof old_content);
  struct rlimit unlimited, limited;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  int descriptors = io_descriptors();
  for (int w = 0; w < LENGTH(writers); w++) {
    for (int i = 0; i < LENGTH(limits); i++) {
      limited = unlimited;
      limited.rlim_cur = limits[i];
      assert_int_equal(setrlimit(RLIMIT_FSIZE, &limited), 0);
      sheaf_status first = writers[w](there, 65536);
      char sentence[1024];
      snprintf(sentence, sizeof sentence, "%s", sheaf_last_error());
      sheaf_status second = writers[w](new, 65536);
      assert_int_equal(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
      assert_int_equal(first, SHEAF_IO);
      assert_int_equal(second, SHEAF_IO);
      assert_non_null(strstr(sentence, "there: cannot write the temporary file: File too large"));
      assert_int_equal(io_entries_in(io_folder), 1);
      io_expect_content(there, old_content, sizeof old_content);
    }
  }
  assert_int_equal(io_descriptors(), descriptors);
  signal(SIGXFSZ, handler);
}

static void test_unreadable_data_fails_and_leaves_the_target(void **state)
{
  (void)state;
  const char *there = io_path("there");
  io_store(there, old_content, sizeof old_content);
  void *locked = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(locked != MAP_FAILED);
  sheaf_io_tensor tensor = {"t", SHEAF_U8, 1, {4096}, locked, 4096};
  io_expect_failure(sheaf_safetensors_write(there, &tensor, 1, NULL, 0), SHEAF_IO,
                    "cannot write the temporary file: Bad");
  io_expect_failure(sheaf_npy_write(there, &tensor), SHEAF_IO, "cannot write the temporary file: Bad address");
  munmap(locked, 4096);
  assert_int_equal(io_entries_in(io_folder), 1);
  io_expect_content(there, old_content, sizeof old_content);
}

static void test_targets_that_cannot_be_written(void **state)
{
  (void)state;
  const char *inner = io_path("inner"), *pipe = io_path("pipe");
  char long_name[300];
  memset(long_name, 'n', sizeof long_name);
  long_name[sizeof long_name - 1] = '\0';
  assert_int_equal(mkdir(inner, 0700), 0);
  assert_int_equal(mkfifo(pipe, 0600), 0);
  int descriptors = io_descriptors();
  for (int w = 0; w < LENGTH(writers); w++) {
    io_expect_failure(writers[w](io_path("none/file"), 4), SHEAF_IO,
                      "cannot open the file's directory: No such file or directory (errno 2)");
    io_expect_failure(writers[w](io_path("inner/"), 4), SHEAF_IO, "this names no file to write");
    io_expect_failure(writers[w]("", 4), SHEAF_IO, "this names no file to write");
    io_expect_failure(writers[w](inner, 4), SHEAF_IO, "is not a regular file; it is left alone");
    io_expect_failure(writers[w](pipe, 4), SHEAF_IO, "is not a regular file; it is left alone");
    io_expect_failure(writers[w](io_path(long_name), 4), SHEAF_IO, "File name too long");
    assert_int_equal(io_entries_in(io_folder), 2);
    assert_int_equal(io_entries_in(inner), 0);
  }
  assert_int_equal(io_descriptors(), descriptors);
}

/* With one descriptor left the directory opens, and the temporary file does not. */
static void test_too_few_descriptors_fail_cleanly(void **state)
{
  (void)state;
  const char *path = io_path("new");
  int next = open("/dev/null", O_RDONLY);
  assert_true(next >= 0);
  close(next);
  struct rlimit many, few;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &many), 0);
  for (rlim_t left = 0; left < 2; left++) {
    few = many;
    few.rlim_cur = (rlim_t)next + left;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    sheaf_status status = write_safetensors(path, 4);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &many), 0);
    io_expect_failure(status, SHEAF_IO,
                      left == 0 ? "cannot open the file's directory: Too many" : "cannot create a tempor");
    int again = open("/dev/null", O_RDONLY);
    assert_int_equal(again, next);
    close(again);
  }
  assert_int_equal(io_entries_in(io_folder), 0);
}

static mode_t mode_of(const char *path)
{
  struct stat status;
  assert_int_equal(lstat(path, &status), 0);
  return status.st_mode;
}

static void test_permissions_of_the_target_are_kept(void **state)
{
  (void)state;
  const char *path = io_path("file");
  mode_t mask = umask(027);
  for (int w = 0; w < LENGTH(writers); w++) {
    assert_int_equal(writers[w](path, 4), SHEAF_OK);
    assert_int_equal(mode_of(path), S_IFREG | 0640);
    static const mode_t modes[] = {0600, 0666, 0644, 0400};
    for (int i = 0; i < LENGTH(modes); i++) {
      assert_int_equal(chmod(path, modes[i]), 0);
      assert_int_equal(writers[w](path, 4), SHEAF_OK);
      assert_int_equal(mode_of(path), S_IFREG | modes[i]);
    }
    unlink(path);
  }
  umask(mask);
}

static void test_symbolic_link_is_replaced_not_followed(void **state)
{
  (void)state;
  const char *real = io_path("real"), *link = io_path("link"), *device = io_path("device");
  io_store(real, old_content, sizeof old_content);
  assert_int_equal(symlink(real, link), 0);
  assert_int_equal(symlink("/dev/null", device), 0);
  assert_int_equal(write_npy(link, 4), SHEAF_OK);
  assert_true(S_ISREG(mode_of(link)));
  io_expect_content(real, old_content, sizeof old_content);
  io_expect_failure(write_npy(device, 4), SHEAF_IO, "is not a regular file; it is left alone");
  assert_true(S_ISLNK(mode_of(device)));
}

static void test_name_as_long_as_names_can_be(void **state)
{
  (void)state;
  char name[256];
  memset(name, 'n', 255);
  name[255] = '\0';
  const char *path = io_path(name);
  assert_int_equal(write_safetensors(path, 4), SHEAF_OK);
  assert_int_equal(unlink(path), 0);
}

static void test_relative_paths_work(void **state)
{
  (void)state;
  char before[1024];
  assert_non_null(getcwd(before, sizeof before));
  assert_int_equal(chdir(io_folder), 0);
  assert_int_equal(write_npy("relative", 4), SHEAF_OK);
  sheaf_npy *file;
  assert_int_equal(sheaf_npy_open("relative", &file), SHEAF_OK);
  sheaf_npy_close(file);
  assert_int_equal(unlink("relative"), 0);
  assert_int_equal(chdir(before), 0);
}

/* A mapped file keeps its contents when it is replaced, even by its own tensors. */
static void test_open_file_survives_its_replacement(void **state)
{
  (void)state;
  const char *path = io_path("file");
  static const int32_t values[] = {1, 2, 3};
  int64_t shape[] = {3};
  sheaf_io_tensor tensor = io_tensor("t", 4, 1, shape, values);
  assert_int_equal(sheaf_safetensors_write(path, &tensor, 1, NULL, 0), SHEAF_OK);
  sheaf_safetensors *first, *second;
  assert_int_equal(sheaf_safetensors_open(path, &first), SHEAF_OK);
  assert_int_equal(sheaf_safetensors_write(path, sheaf_safetensors_at(first, 0), 1, NULL, 0), SHEAF_OK);
  assert_int_equal(sheaf_safetensors_open(path, &second), SHEAF_OK);
  io_expect_tensor(sheaf_safetensors_at(first, 0), &tensor);
  io_expect_tensor(sheaf_safetensors_at(second, 0), &tensor);
  sheaf_safetensors_close(first);
  sheaf_safetensors_close(second);
}

/* ---- Failing memory -------------------------------------------------------------------------------------------- */

static sheaf_status open_and_close_safetensors(const char *path)
{
  sheaf_safetensors *file;
  sheaf_status status = sheaf_safetensors_open(path, &file);
  if (status != SHEAF_OK) assert_null(file);
  sheaf_safetensors_close(file);
  return status;
}

static sheaf_status open_and_close_npy(const char *path)
{
  sheaf_npy *file;
  sheaf_status status = sheaf_npy_open(path, &file);
  if (status != SHEAF_OK) assert_null(file);
  sheaf_npy_close(file);
  return status;
}

static sheaf_status write_small_safetensors(const char *path) { return write_safetensors(path, 16); }
static sheaf_status write_small_npy(const char *path) { return write_npy(path, 16); }

static void test_every_allocation_may_fail(void **state)
{
  (void)state;
  static const struct {
    sheaf_status (*prepare)(const char *path), (*run)(const char *path);
    int64_t least; /* allocations that the call makes at least */
  } calls[] = {{write_small_safetensors, open_and_close_safetensors, 1},
               {write_small_npy, open_and_close_npy, 1},
               {NULL, write_small_safetensors, 2},
               {NULL, write_small_npy, 0}};
  const char *path = io_path("file");
  int descriptors = io_descriptors();
  for (int c = 0; c < LENGTH(calls); c++) {
    if (calls[c].prepare) {
      assert_int_equal(calls[c].prepare(path), SHEAF_OK);
    } else {
      io_store(path, old_content, sizeof old_content);
    }
    io_content before = io_load(path);
    sheaf_status status = SHEAF_OUT_OF_MEMORY;
    int64_t failing = 0;
    for (; status != SHEAF_OK; failing++) {
      io_count_memory(failing);
      status = calls[c].run(path);
      assert_int_equal(io_memory.live, 0);
      assert_int_equal(io_entries_in(io_folder), 1);
      if (io_memory.allocations <= failing) break; /* none was left to fail */
      io_expect_failure(status, SHEAF_OUT_OF_MEMORY, "bytes, which could not be allocated");
      io_expect_content(path, before.data, before.bytes);
    }
    assert_int_equal(status, SHEAF_OK);
    assert_true(failing >= calls[c].least);
    io_count_no_more();
    free(before.data);
    unlink(path);
  }
  assert_int_equal(io_descriptors(), descriptors);
  assert_int_equal(io_mappings(), 0);
}

#define TEST(test) cmocka_unit_test_teardown(test, io_empty_folder)

int main(void)
{
  const struct CMUnitTest tests[] = {
      TEST(test_failing_write_leaves_the_target_as_it_was),
      TEST(test_unreadable_data_fails_and_leaves_the_target),
      TEST(test_targets_that_cannot_be_written),
      TEST(test_too_few_descriptors_fail_cleanly),
      TEST(test_permissions_of_the_target_are_kept),
      TEST(test_symbolic_link_is_replaced_not_followed),
      TEST(test_name_as_long_as_names_can_be),
      TEST(test_relative_paths_work),
      TEST(test_open_file_survives_its_replacement),
      TEST(test_every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, io_make_folder, io_remove_folder);
}
