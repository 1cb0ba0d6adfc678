/* io_files.c: see io_files.h. */
#define _GNU_SOURCE
#include "support/io_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const io_dtype_row io_dtypes[IO_DTYPES] = {
    {SHEAF_F32, 4, "F32", "<f4"},   {SHEAF_F64, 8, "F64", "<f8"}, {SHEAF_F16, 2, "F16", "<f2"},
    {SHEAF_BF16, 2, "BF16", "|V2"}, {SHEAF_I32, 4, "I32", "<i4"}, {SHEAF_I64, 8, "I64", "<i8"},
    {SHEAF_U8, 1, "U8", "|u1"},
};

const int64_t io_shapes[IO_SHAPES][SHEAF_IO_MAX_RANK] = {
    {1, 2, 3, 1, 2, 2, 1, 2}, {5, 1, 1, 3, 2, 1, 1, 1}, {0, 4, 2, 9, 1, 1, 1, 1}, {3, 2, 0, 2, 1, 1, 7, 1}};

char io_folder[128];

int io_make_folder(void **state)
{
  (void)state;
  const char *parent = getenv("TMPDIR");
  snprintf(io_folder, sizeof io_folder, "%.80s/sheaf-io-XXXXXX", parent && *parent ? parent : "/tmp");
  return mkdtemp(io_folder) ? 0 : -1;
}

int io_empty_folder(void **state)
{
  (void)state;
  DIR *directory = opendir(io_folder);
  if (!directory) return -1;
  int left_behind = 0;
  for (struct dirent *entry; (entry = readdir(directory));) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    if (strncmp(entry->d_name, ".sheaf-", 7) == 0) left_behind++;
    if (unlinkat(dirfd(directory), entry->d_name, 0) != 0) unlinkat(dirfd(directory), entry->d_name, AT_REMOVEDIR);
  }
  closedir(directory);
  return left_behind ? -1 : 0;
}

int io_remove_folder(void **state)
{
  (void)state;
  return rmdir(io_folder);
}

const char *io_path(const char *name)
{
  static char paths[16][512];
  static int next;
  char *path = paths[next++ % 16];
  snprintf(path, sizeof paths[0], "%s/%s", io_folder, name);
  return path;
}

io_content io_copy(const void *data, size_t bytes)
{
  io_content copy = {malloc(bytes ? bytes : 1), bytes};
  assert_non_null(copy.data);
  if (bytes) memcpy(copy.data, data, bytes);
  return copy;
}

io_content io_safetensors_of(const void *header, size_t header_bytes, size_t data_bytes)
{
  io_content made = {malloc(8 + header_bytes + data_bytes), 8 + header_bytes + data_bytes};
  assert_non_null(made.data);
  uint64_t length = header_bytes;
  memcpy(made.data, &length, 8);
  memcpy(made.data + 8, header, header_bytes);
  for (size_t i = 0; i < data_bytes; i++) made.data[8 + header_bytes + i] = (unsigned char)i;
  return made;
}

io_content io_npy_of(unsigned char major, const char *header, size_t data_bytes)
{
  size_t length = strlen(header), length_bytes = major == 1 ? 2 : 4, start = 8 + length_bytes + length;
  io_content made = {malloc(start + data_bytes), start + data_bytes};
  assert_non_null(made.data);
  memcpy(made.data, "\x93NUMPY", 6);
  made.data[6] = major;
  made.data[7] = 0;
  for (size_t i = 0; i < length_bytes; i++) made.data[8 + i] = (unsigned char)(length >> (8 * i));
  memcpy(made.data + 8 + length_bytes, header, length);
  for (size_t i = 0; i < data_bytes; i++) made.data[start + i] = (unsigned char)i;
  return made;
}

void io_store(const char *path, const void *data, size_t bytes)
{
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(data, 1, bytes, file), bytes);
  assert_int_equal(fclose(file), 0);
}

io_content io_load(const char *path)
{
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  assert_int_equal(fseek(file, 0, SEEK_END), 0);
  io_content loaded = {NULL, (size_t)ftell(file)};
  loaded.data = malloc(loaded.bytes + 1);
  assert_non_null(loaded.data);
  rewind(file);
  assert_int_equal(fread(loaded.data, 1, loaded.bytes, file), loaded.bytes);
  fclose(file);
  return loaded;
}

void io_expect_content(const char *path, const void *data, size_t bytes)
{
  io_content loaded = io_load(path);
  assert_int_equal(loaded.bytes, bytes);
  assert_memory_equal(loaded.data, data, bytes);
  free(loaded.data);
}

int io_entries_in(const char *path)
{
  DIR *directory = opendir(path);
  assert_non_null(directory);
  int entries = 0;
  for (struct dirent *entry; (entry = readdir(directory));) {
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) entries++;
  }
  closedir(directory);
  return entries;
}

int io_descriptors(void) { return io_entries_in("/proc/self/fd"); }

int io_mappings(void)
{
  FILE *maps = fopen("/proc/self/maps", "r");
  assert_non_null(maps);
  char line[1024];
  int found = 0;
  while (fgets(line, sizeof line, maps)) found += strstr(line, io_folder) != NULL;
  fclose(maps);
  return found;
}

void io_expect_failure(sheaf_status status, sheaf_status expected, const char *words)
{
  if (status != expected || !strstr(sheaf_last_error(), words)) {
    fail_msg("expected %s with \"%s\", got %s: %s", sheaf_status_name(expected), words, sheaf_status_name(status),
             sheaf_last_error());
  }
  assert_int_equal(sheaf_last_error_info().status, expected);
}

sheaf_io_tensor io_tensor(const char *name, int dtype_row, int rank, const int64_t *shape, const void *data)
{
  sheaf_io_tensor tensor = {.name = name, .dtype = io_dtypes[dtype_row].dtype, .rank = rank, .data = data};
  tensor.bytes = io_dtypes[dtype_row].size;
  for (int i = 0; i < rank; i++) {
    tensor.shape[i] = shape[i];
    tensor.bytes *= (size_t)shape[i];
  }
  return tensor;
}

void io_expect_tensor(const sheaf_io_tensor *actual, const sheaf_io_tensor *expected)
{
  assert_non_null(actual);
  assert_int_equal(actual->dtype, expected->dtype);
  assert_int_equal(actual->rank, expected->rank);
  for (int i = 0; i < expected->rank; i++) assert_int_equal(actual->shape[i], expected->shape[i]);
  assert_int_equal(actual->bytes, expected->bytes);
  if (actual->bytes) assert_memory_equal(actual->data, expected->data, actual->bytes);
}

io_memory_count io_memory;

static void *counted_allocate(void *context, size_t bytes, size_t alignment)
{
  (void)context;
  if (io_memory.allocations++ == io_memory.failing) return NULL;
  io_memory.live += bytes;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void counted_release(void *context, void *block, size_t bytes)
{
  (void)context;
  assert_true(io_memory.live >= bytes);
  io_memory.live -= bytes;
  free(block);
}

void io_count_memory(int64_t failing)
{
  static const sheaf_allocator counted = {counted_allocate, counted_release, NULL};
  io_memory.allocations = 0;
  io_memory.failing = failing;
  assert_int_equal(sheaf_set_allocator(&counted), SHEAF_OK);
}

void io_count_no_more(void) { assert_int_equal(sheaf_set_allocator(NULL), SHEAF_OK); }
