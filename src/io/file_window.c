/* io/file_window.c: files larger than memory: the header is mapped, the data window by window. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/io_impl.h"

struct sheaf_io_file {
  size_t block_bytes; /* of the one allocation that starts with this struct */
  int descriptor;     /* -1: the file lies in memory */
  shf_io_bytes content, window;
  sheaf_npy *npy; /* one of the two */
  sheaf_safetensors *safetensors;
  int64_t count;
  sheaf_io_tensor *tensors; /* without data */
  size_t *places;           /* where the data of each begins in the file */
  char *path;
};

enum { MAGIC_BYTES = 6, LENGTH_BYTES = 8 };

static bool ends_in(const char *path, const char *ending)
{
  size_t length = strlen(path), wanted = strlen(ending);
  return length >= wanted && strcmp(path + length - wanted, ending) == 0;
}

/* How much of a file the parsers look at: no more than its header, which is what they check first. */
static sheaf_status map_head(const char *path, int descriptor, size_t bytes, bool *is_npy, shf_io_bytes *content)
{
  shf_io_bytes start;
  SHF_TRY(shf_io_map_part(path, descriptor, 0, bytes < LENGTH_BYTES ? bytes : LENGTH_BYTES, &start));
  *is_npy = start.bytes >= MAGIC_BYTES && memcmp(start.data, "\x93NUMPY", MAGIC_BYTES) == 0;
  uint64_t length = SHF_IO_NPY_HEAD - LENGTH_BYTES;
  if (!*is_npy && start.bytes == LENGTH_BYTES) memcpy(&length, start.data, sizeof length);
  shf_io_unmap(&start);
  if (length > SHF_IO_HEADER_LIMIT) length = 0; /* it will be refused */
  if (!*is_npy && ends_in(path, ".npy")) *is_npy = true;
  size_t head = LENGTH_BYTES + (size_t)length;
  sheaf_status status = shf_io_map_part(path, descriptor, 0, bytes < head ? bytes : head, content);
  content->bytes = bytes;
  return status;
}

/* The tensors again, without the pointers into what is not mapped. */
static void list_tensors(sheaf_io_file *file)
{
  for (int64_t i = 0; i < file->count; i++) {
    const sheaf_io_tensor *tensor =
        file->npy ? sheaf_npy_tensor(file->npy) : sheaf_safetensors_at(file->safetensors, i);
    file->places[i] = (size_t)((uintptr_t)tensor->data - (uintptr_t)file->content.data);
    file->tensors[i] = *tensor;
    file->tensors[i].data = NULL;
  }
}

static sheaf_status finish_open(const char *path, const sheaf_io_file *parts, sheaf_io_file **file)
{
  int64_t count = parts->npy ? 1 : sheaf_safetensors_count(parts->safetensors);
  size_t tensors = (size_t)count, name = strlen(path) + 1;
  size_t bytes = sizeof **file + tensors * (sizeof(sheaf_io_tensor) + sizeof(size_t)) + name;
  sheaf_io_file *own = shf_core_alloc(bytes);
  if (!own) return shf_core_no_memory("an open file", bytes);
  *own = *parts;
  own->block_bytes = bytes;
  own->count = count;
  own->tensors = (sheaf_io_tensor *)(own + 1);
  own->places = (size_t *)(own->tensors + tensors);
  own->path = memcpy(own->places + tensors, path, name);
  list_tensors(own);
  *file = own;
  return SHEAF_OK;
}

/* What the parsers made owns the mapping of the header from then on. */
static sheaf_status open_parts(const char *path, bool is_npy, sheaf_io_file *parts, sheaf_io_file **file)
{
  sheaf_status status = is_npy ? shf_io_open_npy(path, &parts->content, &parts->npy)
                               : shf_io_open_safetensors(path, &parts->content, &parts->safetensors);
  if (status != SHEAF_OK) {
    shf_io_unmap(&parts->content);
    return status;
  }
  status = finish_open(path, parts, file);
  if (status != SHEAF_OK) {
    sheaf_npy_close(parts->npy);
    sheaf_safetensors_close(parts->safetensors);
  }
  return status;
}

sheaf_status sheaf_io_open(const char *path, sheaf_io_file **file)
{
  SHF_REQUIRE(file, INVALID_PROBLEM, "sheaf_io_open: file is NULL");
  *file = NULL;
  SHF_REQUIRE(path, INVALID_PROBLEM, "sheaf_io_open: path is NULL");
  sheaf_io_file parts = {.descriptor = -1};
  size_t bytes;
  bool is_npy = false;
  SHF_TRY(shf_io_open_regular(path, &parts.descriptor, &bytes));
  sheaf_status status = map_head(path, parts.descriptor, bytes, &is_npy, &parts.content);
  if (status == SHEAF_OK) status = open_parts(path, is_npy, &parts, file);
  if (status != SHEAF_OK) close(parts.descriptor);
  return status;
}

sheaf_status sheaf_io_open_memory(const void *data, size_t bytes, sheaf_io_file **file)
{
  SHF_REQUIRE(file, INVALID_PROBLEM, "sheaf_io_open_memory: file is NULL");
  *file = NULL;
  SHF_REQUIRE(data || bytes == 0, INVALID_PROBLEM, "sheaf_io_open_memory: data is NULL, but bytes is %zu", bytes);
  sheaf_io_file parts = {.descriptor = -1, .content = {.data = data, .bytes = bytes}};
  bool is_npy = bytes >= MAGIC_BYTES && memcmp(data, "\x93NUMPY", MAGIC_BYTES) == 0;
  return open_parts("memory", is_npy, &parts, file);
}

void sheaf_io_close(sheaf_io_file *file)
{
  if (!file) return;
  shf_io_unmap(&file->window);
  sheaf_npy_close(file->npy);
  sheaf_safetensors_close(file->safetensors);
  if (file->descriptor >= 0) close(file->descriptor);
  shf_core_free(file, file->block_bytes);
}

sheaf_io_format sheaf_io_format_of(const sheaf_io_file *file)
{
  return file && file->npy ? SHEAF_IO_NPY : SHEAF_IO_SAFETENSORS;
}

int64_t sheaf_io_count(const sheaf_io_file *file) { return file ? file->count : 0; }

const sheaf_io_tensor *sheaf_io_at(const sheaf_io_file *file, int64_t position)
{
  return file && position >= 0 && position < file->count ? &file->tensors[position] : NULL;
}

const sheaf_io_tensor *sheaf_io_find(const sheaf_io_file *file, const char *name)
{
  if (!file || !name) return NULL;
  if (file->npy) return *name ? NULL : &file->tensors[0];
  const sheaf_io_tensor *found = sheaf_safetensors_find(file->safetensors, name);
  return found ? &file->tensors[found - sheaf_safetensors_at(file->safetensors, 0)] : NULL;
}

const char *sheaf_io_metadata_of(const sheaf_io_file *file, const char *key)
{
  return file && file->safetensors ? sheaf_safetensors_metadata(file->safetensors, key) : NULL;
}

sheaf_status sheaf_io_window(sheaf_io_file *file, const sheaf_io_tensor *tensor, int64_t first, int64_t bytes,
                             const void **data)
{
  SHF_REQUIRE(data, INVALID_PROBLEM, "sheaf_io_window: data is NULL");
  *data = NULL;
  SHF_REQUIRE(file && tensor, INVALID_PROBLEM, "sheaf_io_window: %s is NULL", file ? "tensor" : "file");
  SHF_REQUIRE(tensor >= file->tensors && tensor < file->tensors + file->count, INVALID_PROBLEM,
              "sheaf_io_window: the tensor is none of this file");
  SHF_REQUIRE(first >= 0 && bytes >= 0 && (uint64_t)first <= tensor->bytes &&
                  (uint64_t)bytes <= tensor->bytes - (uint64_t)first,
              INVALID_PROBLEM, "sheaf_io_window: %lld bytes from %lld on are not within the %zu of the tensor",
              (long long)bytes, (long long)first, tensor->bytes);
  shf_io_unmap(&file->window);
  if (bytes == 0) return SHEAF_OK;
  size_t place = file->places[tensor - file->tensors] + (size_t)first;
  if (file->descriptor < 0) {
    *data = file->content.data + place;
    return SHEAF_OK;
  }
  SHF_TRY(shf_io_map_part(file->path, file->descriptor, place, (size_t)bytes, &file->window));
  madvise(file->window.mapping, file->window.mapped, MADV_SEQUENTIAL); /* a hint: its failure changes nothing */
  *data = file->window.data;
  return SHEAF_OK;
}
