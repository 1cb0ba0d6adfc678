/* io/safetensors_write.c: writes safetensors files. */
#include <string.h>

#include "io/io_impl.h"

static const char who[] = "sheaf_safetensors_write";

/* Tensors are laid out by the size of their elements, largest first: then each one is aligned to its elements, whatever
 * lies before it. */
static const int64_t layout_sizes[] = {8, 4, 2, 1};
enum { LAYOUT_STEPS = sizeof layout_sizes / sizeof *layout_sizes };

typedef struct written_file {
  const sheaf_io_tensor *tensors;
  int64_t tensor_count;
  const sheaf_io_metadata *metadata;
  int64_t metadata_count;
} written_file;

static const char *file_dtype_name(sheaf_dtype dtype)
{
  static const struct {
    const char *name;
    sheaf_dtype dtype;
  } rows[] = {
#define SHF_X(name, dtype, bits) {name, dtype},
      SHF_IO_SAFETENSORS_DTYPES(SHF_X)
#undef SHF_X
  };
  size_t row = 0;
  while (rows[row].dtype != dtype) row++; /* there is one: check_tensors has seen the dtype */
  return rows[row].name;
}

static sheaf_status check_text(const char *what, int64_t position, const char *text)
{
  SHF_REQUIRE(text, INVALID_PROBLEM, "%s: %s %lld is NULL", who, what, (long long)position);
  const unsigned char *at = (const unsigned char *)text, *start = at, *end = at + strlen(text);
  while (at < end) {
    size_t length = shf_io_utf8_length(at, end);
    SHF_REQUIRE(length, INVALID_PROBLEM, "%s: %s %lld is not valid UTF-8 at its byte %td", who, what,
                (long long)position, at - start);
    at += length;
  }
  return SHEAF_OK;
}

static bool text_less(const void *left, const void *right, const void *context)
{
  (void)context;
  return strcmp(*(const char *const *)left, *(const char *const *)right) < 0;
}

/* Fails when two of the texts are equal; sorts them. */
static sheaf_status check_distinct(const char *what, const char **texts, int64_t count)
{
  shf_io_sort(texts, (size_t)count, sizeof *texts, text_less, NULL);
  for (int64_t i = 1; i < count; i++) {
    SHF_REQUIRE(strcmp(texts[i - 1], texts[i]) != 0, INVALID_PROBLEM, "%s: the %s '%.*s' is given twice", who, what,
                shf_io_shown(texts[i], strlen(texts[i])), texts[i]);
  }
  return SHEAF_OK;
}

/* Fails when two tensors, or two pieces of metadata, have one name. */
static sheaf_status check_names(const written_file *file)
{
  int64_t most = file->tensor_count > file->metadata_count ? file->tensor_count : file->metadata_count;
  if (most < 2) return SHEAF_OK;
  size_t bytes = (size_t)most * sizeof(const char *);
  const char **texts = shf_core_alloc(bytes);
  if (!texts) return shf_core_no_memory("checking the names of tensors to be written", bytes);
  for (int64_t i = 0; i < file->tensor_count; i++) texts[i] = file->tensors[i].name;
  sheaf_status status = check_distinct("tensor name", texts, file->tensor_count);
  for (int64_t i = 0; i < file->metadata_count; i++) texts[i] = file->metadata[i].key;
  if (status == SHEAF_OK) status = check_distinct("metadata key", texts, file->metadata_count);
  shf_core_free(texts, bytes);
  return status;
}

static sheaf_status check_file(const written_file *file)
{
  long long tensors = file->tensor_count, pairs = file->metadata_count;
  SHF_REQUIRE(tensors >= 0 && tensors <= SHF_IO_HEADER_LIMIT, INVALID_PROBLEM, "%s: tensor_count is %lld", who,
              tensors);
  SHF_REQUIRE(pairs >= 0 && pairs <= SHF_IO_HEADER_LIMIT, INVALID_PROBLEM, "%s: metadata_count is %lld", who, pairs);
  SHF_REQUIRE(file->tensors || tensors == 0, INVALID_PROBLEM, "%s: tensors is NULL, but tensor_count is %lld", who,
              tensors);
  SHF_REQUIRE(file->metadata || pairs == 0, INVALID_PROBLEM, "%s: metadata is NULL, but metadata_count is %lld", who,
              pairs);
  int64_t total = 0;
  for (int64_t i = 0; i < tensors; i++) {
    const sheaf_io_tensor *tensor = &file->tensors[i];
    SHF_TRY(check_text("the name of tensor", i, tensor->name));
    SHF_REQUIRE(strcmp(tensor->name, "__metadata__") != 0, INVALID_PROBLEM,
                "%s: tensor %lld is named '__metadata__', which the format keeps for itself", who, (long long)i);
    SHF_TRY(shf_io_check_writable(who, tensor, i));
    SHF_REQUIRE(!__builtin_add_overflow(total, tensor->bytes, &total), INVALID_PROBLEM,
                "%s: the tensors together are larger than 2^63 - 1 bytes", who);
  }
  for (int64_t i = 0; i < pairs; i++) {
    SHF_TRY(check_text("the key of metadata", i, file->metadata[i].key));
    SHF_TRY(check_text("the value of metadata", i, file->metadata[i].value));
  }
  return check_names(file);
}

static void put_metadata(shf_io_text *text, const written_file *file)
{
  shf_io_put_string(text, "\"__metadata__\":{");
  for (int64_t i = 0; i < file->metadata_count; i++) {
    if (i > 0) shf_io_put_string(text, ",");
    shf_io_put_quoted(text, file->metadata[i].key);
    shf_io_put_string(text, ":");
    shf_io_put_quoted(text, file->metadata[i].value);
  }
  shf_io_put_string(text, "}");
}

static void put_tensor(shf_io_text *text, const sheaf_io_tensor *tensor, int64_t begin)
{
  shf_io_put_quoted(text, tensor->name);
  shf_io_put_string(text, ":{\"dtype\":\"");
  shf_io_put_string(text, file_dtype_name(tensor->dtype));
  shf_io_put_string(text, "\",\"shape\":[");
  for (int i = 0; i < tensor->rank; i++) {
    if (i > 0) shf_io_put_string(text, ",");
    shf_io_put_integer(text, tensor->shape[i]);
  }
  shf_io_put_string(text, "],\"data_offsets\":[");
  shf_io_put_integer(text, begin);
  shf_io_put_string(text, ",");
  shf_io_put_integer(text, begin + (int64_t)tensor->bytes);
  shf_io_put_string(text, "]}");
}

/* The JSON, then as many spaces as make the data start where it should. */
static void put_header(shf_io_text *text, const written_file *file)
{
  int64_t begin = 0;
  const char *separator = "";
  shf_io_put_string(text, "{");
  if (file->metadata_count > 0) {
    put_metadata(text, file);
    separator = ",";
  }
  for (int step = 0; step < LAYOUT_STEPS; step++) {
    for (int64_t i = 0; i < file->tensor_count; i++) {
      const sheaf_io_tensor *tensor = &file->tensors[i];
      if (shf_core_dtype_size(tensor->dtype) != layout_sizes[step]) continue;
      shf_io_put_string(text, separator);
      put_tensor(text, tensor, begin);
      begin += (int64_t)tensor->bytes;
      separator = ",";
    }
  }
  shf_io_put_string(text, "}");
  while ((text->length + sizeof(uint64_t)) % SHF_IO_DATA_ALIGNMENT != 0) shf_io_put(text, " ", 1);
}

static sheaf_status write_content(const char *path, const written_file *file, const char *header, size_t bytes)
{
  shf_io_output output;
  SHF_TRY(shf_io_begin(&output, path));
  sheaf_status status = shf_io_append(&output, header, bytes);
  for (int step = 0; step < LAYOUT_STEPS; step++) {
    for (int64_t i = 0; i < file->tensor_count && status == SHEAF_OK; i++) {
      const sheaf_io_tensor *tensor = &file->tensors[i];
      if (shf_core_dtype_size(tensor->dtype) != layout_sizes[step]) continue;
      status = shf_io_append(&output, tensor->data, tensor->bytes);
    }
  }
  return shf_io_finish(&output, status);
}

sheaf_status shf_io_safetensors_header(const sheaf_io_tensor *tensors, int64_t tensor_count,
                                       const sheaf_io_metadata *metadata, int64_t metadata_count, char **header,
                                       size_t *bytes)
{
  written_file file = {tensors, tensor_count, metadata, metadata_count};
  SHF_TRY(check_file(&file));
  shf_io_text text = {.out = NULL};
  put_header(&text, &file);
  uint64_t length = text.length;
  SHF_REQUIRE(length <= SHF_IO_HEADER_LIMIT, INVALID_PROBLEM, "%s: the header would have %llu bytes; the limit is %d",
              who, (unsigned long long)length, SHF_IO_HEADER_LIMIT);
  *bytes = sizeof length + (size_t)length;
  *header = shf_core_alloc(*bytes);
  if (!*header) return shf_core_no_memory("the header of a file to be written", *bytes);
  memcpy(*header, &length, sizeof length);
  put_header(&(shf_io_text){.out = *header + sizeof length}, &file);
  return SHEAF_OK;
}

sheaf_status sheaf_safetensors_write(const char *path, const sheaf_io_tensor *tensors, int64_t tensor_count,
                                     const sheaf_io_metadata *metadata, int64_t metadata_count)
{
  SHF_REQUIRE(path, INVALID_PROBLEM, "%s: path is NULL", who);
  char *header;
  size_t bytes;
  SHF_TRY(shf_io_safetensors_header(tensors, tensor_count, metadata, metadata_count, &header, &bytes));
  written_file file = {tensors, tensor_count, metadata, metadata_count};
  sheaf_status status = write_content(path, &file, header, bytes);
  shf_core_free(header, bytes);
  return status;
}
