/* fuzz_npy.c: any bytes opened as an npy file; what is handed out can be read to its last byte. */
#include <sheaf/io.h>
#include <stdlib.h>

static volatile unsigned sink;

static void require(int condition)
{
  if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
  sheaf_npy *file;
  if (sheaf_npy_open_memory(data, bytes, &file) != SHEAF_OK) {
    require(!file && sheaf_last_error()[0]);
    return 0;
  }
  const sheaf_io_tensor *tensor = sheaf_npy_tensor(file);
  require(tensor->rank >= 0 && tensor->rank <= SHEAF_IO_MAX_RANK);
  int64_t elements = 1;
  for (int i = 0; i < tensor->rank; i++) {
    require(tensor->shape[i] >= 0);
    elements *= tensor->shape[i];
  }
  require(sheaf_dtype_row_bytes(tensor->dtype, elements) == (int64_t)tensor->bytes);
  require((const uint8_t *)tensor->data + tensor->bytes == data + bytes);
  unsigned sum = 0;
  for (size_t i = 0; i < tensor->bytes; i++) sum += ((const uint8_t *)tensor->data)[i];
  sink += sum;
  sheaf_io_file *windows; /* the same file, to be read in windows */
  const void *window;
  require(sheaf_io_open_memory(data, bytes, &windows) == SHEAF_OK && sheaf_io_count(windows) == 1);
  const sheaf_io_tensor *again = sheaf_io_at(windows, 0);
  require(again->bytes == tensor->bytes && !again->data);
  require(sheaf_io_window(windows, again, 0, (int64_t)again->bytes, &window) == SHEAF_OK);
  require(again->bytes ? window == tensor->data : !window);
  sheaf_io_close(windows);
  sheaf_npy_close(file);
  return 0;
}
