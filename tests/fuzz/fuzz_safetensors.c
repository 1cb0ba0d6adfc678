/* fuzz_safetensors.c: any bytes opened as a safetensors file; whatever is handed out can be read to its last byte. */
#include <sheaf/io.h>
#include <stdlib.h>
#include <string.h>

static volatile unsigned sink;

static void read_all(const void *data, size_t bytes)
{
  unsigned sum = 0;
  for (size_t i = 0; i < bytes; i++) sum += ((const unsigned char *)data)[i];
  sink += sum;
}

static void require(int condition)
{
  if (!condition) abort();
}

static void check_tensor(const sheaf_io_tensor *tensor)
{
  int64_t elements = 1;
  require(tensor->rank >= 0 && tensor->rank <= SHEAF_IO_MAX_RANK);
  for (int i = 0; i < tensor->rank; i++) {
    require(tensor->shape[i] >= 0);
    elements *= tensor->shape[i];
  }
  if (tensor->dtype != SHEAF_DTYPE_NONE) {
    require(sheaf_dtype_row_bytes(tensor->dtype, elements) == (int64_t)tensor->bytes);
  }
  read_all(tensor->data, tensor->bytes);
  read_all(tensor->name, strlen(tensor->name));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
  sheaf_safetensors *file;
  if (sheaf_safetensors_open_memory(data, bytes, &file) != SHEAF_OK) {
    require(!file && sheaf_last_error()[0]);
    return 0;
  }
  size_t covered = 0;
  for (int64_t i = 0; i < sheaf_safetensors_count(file); i++) {
    const sheaf_io_tensor *tensor = sheaf_safetensors_at(file, i);
    check_tensor(tensor);
    require(sheaf_safetensors_find(file, tensor->name) == tensor);
    covered += tensor->bytes;
  }
  uint64_t header;
  memcpy(&header, data, sizeof header);
  require(covered == bytes - sizeof header - header);
  for (int64_t i = 0; i < sheaf_safetensors_metadata_count(file); i++) {
    sheaf_io_metadata pair = sheaf_safetensors_metadata_at(file, i);
    require(sheaf_safetensors_metadata(file, pair.key) == pair.value);
    read_all(pair.value, strlen(pair.value));
  }
  sheaf_safetensors_close(file);
  return 0;
}
