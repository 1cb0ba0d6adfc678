/* large.c: memory and operands for tests of sizes past 2^31. */
#define _GNU_SOURCE
#include "large.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test_random.h"

int64_t large_available(void)
{
  long long kib = -1;
  FILE *file = fopen("/proc/meminfo", "r");
  char line[128];
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1) break;
  if (file) fclose(file);
  return kib / 1024;
}

void *large_table(size_t bytes)
{
  void *memory;
  if (sheaf_table_alloc(bytes, &memory) != SHEAF_OK) fail_msg("%s", sheaf_last_error());
  return memory;
}

char *large_reserve(size_t bytes)
{
  void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  assert_ptr_not_equal(memory, MAP_FAILED);
  return memory;
}

void large_map_repeatedly(char *at, size_t length, const void *content, size_t bytes)
{
  int file = memfd_create("sheaf-test", MFD_CLOEXEC);
  assert_true(file >= 0);
  assert_int_equal(ftruncate(file, (off_t)bytes), 0);
  void *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  assert_ptr_not_equal(copy, MAP_FAILED);
  memcpy(copy, content, bytes);
  munmap(copy, bytes);
  for (size_t done = 0; done < length; done += bytes) {
    size_t part = length - done < bytes ? length - done : bytes;
    assert_ptr_not_equal(mmap(at + done, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0), MAP_FAILED);
  }
  close(file);
}

sheaf_operand large_operand(large_tensor *t, sheaf_dtype dtype, void *data, int64_t rows, int64_t columns)
{
  t->shape[0] = rows;
  t->shape[1] = columns;
  t->dl =
      (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = columns < 0 ? 1 : 2, .dtype = sheaf_dtype_to_dl(dtype)};
  t->dl.shape = t->shape;
  return (sheaf_operand){
      &t->dl,
      (size_t)(sheaf_dtype_row_bytes(dtype == SHEAF_INT8 ? SHEAF_U8 : dtype, columns < 0 ? 1 : columns) * rows)};
}

void large_choose_rows(int32_t rows[LARGE_SAMPLES], int64_t row_bytes)
{
  test_random random = {7};
  int64_t marks[] = {0, TWO_31 / LARGE_DIM, TWO_31 / row_bytes, 2 * TWO_31 / row_bytes, LARGE_ROWS - 3};
  for (int i = 0; i < LARGE_SAMPLES; i++) {
    int64_t row = i < 5 * 7 ? marks[i / 7] + i % 7 - 3 : random_below(&random, LARGE_ROWS);
    rows[i] = (int32_t)(row < 0 ? -row : row >= LARGE_ROWS ? LARGE_ROWS - 1 : row);
  }
}
