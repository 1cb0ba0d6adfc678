/* io/safetensors_read.c: opens safetensors files: 8 bytes of header length, the header, the data. */
#include <string.h>

#include "io/io_impl.h"

enum { LENGTH_BYTES = 8 };

struct sheaf_safetensors {
  shf_io_bytes content;
  size_t block_bytes; /* of the one allocation that starts with this struct */
  int64_t tensor_count, metadata_count;
  sheaf_io_tensor *tensors;    /* in the order of their data */
  sheaf_io_metadata *metadata; /* in the order of their keys */
  int64_t *by_name;            /* positions in `tensors`, in the order of names */
  char *strings;
};

/* Names are kept in the header's order, so that their addresses decide between empty tensors at one place. */
static bool data_less(const void *left, const void *right, const void *context)
{
  const sheaf_io_tensor *a = left, *b = right;
  (void)context;
  if (a->data != b->data) return (uintptr_t)a->data < (uintptr_t)b->data;
  if (a->bytes != b->bytes) return a->bytes < b->bytes;
  return (uintptr_t)a->name < (uintptr_t)b->name;
}

static bool name_less(const void *left, const void *right, const void *context)
{
  const int64_t *a = left, *b = right;
  const sheaf_io_tensor *tensors = context;
  return strcmp(tensors[*a].name, tensors[*b].name) < 0;
}

static bool key_less(const void *left, const void *right, const void *context)
{
  (void)context;
  return strcmp(((const sheaf_io_metadata *)left)->key, ((const sheaf_io_metadata *)right)->key) < 0;
}

/* Tensors follow each other without gap or overlap, from the first byte of data to the last. */
static sheaf_status check_coverage(const sheaf_safetensors *file, const char *path, const unsigned char *data)
{
  size_t covered = 0, all = (size_t)(file->content.data + file->content.bytes - data);
  for (int64_t i = 0; i < file->tensor_count; i++) {
    const sheaf_io_tensor *tensor = &file->tensors[i];
    size_t begin = (size_t)((const unsigned char *)tensor->data - data);
    if (begin != covered) {
      return shf_io_fail(SHEAF_IO, path, "tensor '%.*s': its data begins at byte %zu of the data, %s byte %zu",
                         shf_io_shown(tensor->name, strlen(tensor->name)), tensor->name, begin,
                         begin < covered ? "but overlaps other tensors, which go on to" : "and leaves a gap from",
                         covered);
    }
    covered += tensor->bytes;
  }
  if (covered == all) return SHEAF_OK;
  return shf_io_fail(SHEAF_IO, path, "the file has %zu bytes of data, but its tensors end at byte %zu", all, covered);
}

static sheaf_status check_unique(const sheaf_safetensors *file, const char *path)
{
  for (int64_t i = 1; i < file->tensor_count; i++) {
    const char *name = file->tensors[file->by_name[i]].name;
    if (strcmp(name, file->tensors[file->by_name[i - 1]].name) == 0) {
      return shf_io_fail(SHEAF_IO, path, "the header names tensor '%.*s' twice", shf_io_shown(name, strlen(name)),
                         name);
    }
  }
  for (int64_t i = 1; i < file->metadata_count; i++) {
    const char *key = file->metadata[i].key;
    if (strcmp(key, file->metadata[i - 1].key) == 0) {
      return shf_io_fail(SHEAF_IO, path, "the metadata has the key '%.*s' twice", shf_io_shown(key, strlen(key)), key);
    }
  }
  return SHEAF_OK;
}

/* Allocates the file with room for what the first walk counted: one block. */
static sheaf_safetensors *allocate_file(const shf_io_walk *counted, const shf_io_bytes *content)
{
  size_t tensors = (size_t)counted->tensor_count, pairs = (size_t)counted->metadata_count;
  size_t bytes = sizeof(sheaf_safetensors) + tensors * (sizeof(sheaf_io_tensor) + sizeof(int64_t)) +
                 pairs * sizeof(sheaf_io_metadata) + counted->string_bytes;
  sheaf_safetensors *file = shf_core_alloc(bytes);
  if (!file) {
    shf_core_no_memory("the list of tensors in a file", bytes);
    return NULL;
  }
  *file = (sheaf_safetensors){.content = *content, .block_bytes = bytes};
  file->tensors = (sheaf_io_tensor *)(file + 1);
  file->metadata = (sheaf_io_metadata *)(file->tensors + tensors);
  file->by_name = (int64_t *)(file->metadata + pairs);
  file->strings = (char *)(file->by_name + tensors);
  return file;
}

/* The second walk, and the checks that need all tensors at once. */
static sheaf_status fill_file(const shf_io_walk *counted, sheaf_safetensors *file)
{
  shf_io_walk walk = {.scan = counted->scan, .data = counted->data, .data_bytes = counted->data_bytes};
  walk.scan.at = walk.scan.file + LENGTH_BYTES;
  walk.tensors = file->tensors;
  walk.tensor_room = counted->tensor_count;
  walk.metadata = file->metadata;
  walk.metadata_room = counted->metadata_count;
  walk.strings = file->strings;
  walk.string_room = counted->string_bytes;
  SHF_TRY(shf_io_walk_header(&walk));
  file->tensor_count = walk.tensor_count;
  file->metadata_count = walk.metadata_count;
  size_t tensors = (size_t)walk.tensor_count;
  for (int64_t i = 0; i < file->tensor_count; i++) file->by_name[i] = i;
  shf_io_sort(file->tensors, tensors, sizeof *file->tensors, data_less, NULL);
  shf_io_sort(file->by_name, tensors, sizeof *file->by_name, name_less, file->tensors);
  shf_io_sort(file->metadata, (size_t)walk.metadata_count, sizeof *file->metadata, key_less, NULL);
  SHF_TRY(check_unique(file, walk.scan.path));
  return check_coverage(file, walk.scan.path, walk.data);
}

sheaf_status shf_io_open_safetensors(const char *path, const shf_io_bytes *content, sheaf_safetensors **file)
{
  size_t bytes = content->bytes;
  if (bytes < LENGTH_BYTES) {
    return shf_io_fail(SHEAF_IO, path,
                       "%zu bytes are too few: a safetensors file starts with %d bytes of header length", bytes,
                       LENGTH_BYTES);
  }
  uint64_t length;
  memcpy(&length, content->data, LENGTH_BYTES);
  if (length > SHF_IO_HEADER_LIMIT) {
    return shf_io_fail(SHEAF_IO, path, "a header of %llu bytes is over the limit of %d; is this a safetensors file?",
                       (unsigned long long)length, SHF_IO_HEADER_LIMIT);
  }
  if (length > bytes - LENGTH_BYTES) {
    return shf_io_fail(SHEAF_IO, path, "the header should have %llu bytes, but only %zu follow: the file is cut short",
                       (unsigned long long)length, bytes - LENGTH_BYTES);
  }
  const unsigned char *header = content->data + LENGTH_BYTES;
  shf_io_walk walk = {.data = header + length, .data_bytes = (int64_t)(bytes - LENGTH_BYTES - length)};
  walk.scan = (shf_io_scan){
      .path = path, .format = "safetensors header", .file = content->data, .at = header, .end = header + length};
  SHF_TRY(shf_io_walk_header(&walk));
  sheaf_safetensors *opened = allocate_file(&walk, content);
  if (!opened) return SHEAF_OUT_OF_MEMORY;
  sheaf_status status = fill_file(&walk, opened);
  if (status != SHEAF_OK) {
    shf_core_free(opened, opened->block_bytes);
    return status;
  }
  *file = opened;
  return SHEAF_OK;
}

sheaf_status sheaf_safetensors_open(const char *path, sheaf_safetensors **file)
{
  SHF_REQUIRE(file, INVALID_PROBLEM, "sheaf_safetensors_open: file is NULL");
  *file = NULL;
  SHF_REQUIRE(path, INVALID_PROBLEM, "sheaf_safetensors_open: path is NULL");
  shf_io_bytes content;
  SHF_TRY(shf_io_map(path, &content));
  sheaf_status status = shf_io_open_safetensors(path, &content, file);
  if (status != SHEAF_OK) shf_io_unmap(&content);
  return status;
}

sheaf_status sheaf_safetensors_open_memory(const void *data, size_t bytes, sheaf_safetensors **file)
{
  SHF_REQUIRE(file, INVALID_PROBLEM, "sheaf_safetensors_open_memory: file is NULL");
  *file = NULL;
  SHF_REQUIRE(data || bytes == 0, INVALID_PROBLEM, "sheaf_safetensors_open_memory: data is NULL, but bytes is %zu",
              bytes);
  return shf_io_open_safetensors("memory", &(shf_io_bytes){.data = data, .bytes = bytes}, file);
}

void sheaf_safetensors_close(sheaf_safetensors *file)
{
  if (!file) return;
  shf_io_unmap(&file->content);
  shf_core_free(file, file->block_bytes);
}

int64_t sheaf_safetensors_count(const sheaf_safetensors *file) { return file ? file->tensor_count : 0; }

const sheaf_io_tensor *sheaf_safetensors_at(const sheaf_safetensors *file, int64_t position)
{
  return file && position >= 0 && position < file->tensor_count ? &file->tensors[position] : NULL;
}

const sheaf_io_tensor *sheaf_safetensors_find(const sheaf_safetensors *file, const char *name)
{
  if (!file || !name) return NULL;
  int64_t low = 0, high = file->tensor_count;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    const sheaf_io_tensor *tensor = &file->tensors[file->by_name[middle]];
    int order = strcmp(name, tensor->name);
    if (order == 0) return tensor;
    if (order < 0) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return NULL;
}

int64_t sheaf_safetensors_metadata_count(const sheaf_safetensors *file) { return file ? file->metadata_count : 0; }

sheaf_io_metadata sheaf_safetensors_metadata_at(const sheaf_safetensors *file, int64_t position)
{
  bool valid = file && position >= 0 && position < file->metadata_count;
  return valid ? file->metadata[position] : (sheaf_io_metadata){NULL, NULL};
}

const char *sheaf_safetensors_metadata(const sheaf_safetensors *file, const char *key)
{
  if (!file || !key) return NULL;
  int64_t low = 0, high = file->metadata_count;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    int order = strcmp(key, file->metadata[middle].key);
    if (order == 0) return file->metadata[middle].value;
    if (order < 0) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return NULL;
}
