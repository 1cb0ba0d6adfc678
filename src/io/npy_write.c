/* io/npy_write.c: writes npy files, version 1.0, byte for byte as NumPy does. */
#include <string.h>

#include "io/io_impl.h"

/* The length of every header, NumPy's too: 66 bytes at least, rounded up to a multiple of 64. The longest shape, 8
 * extents whose product is below 2^60 and so has 26 digits in all, makes it 106. */
enum { PREFIX_BYTES = 10 };

static const char *descr_of(sheaf_dtype dtype)
{
  static const struct {
    const char *descr;
    sheaf_dtype dtype;
  } rows[] = {
#define SHF_X(descr, dtype) {descr, dtype},
      SHF_IO_NPY_DTYPES(SHF_X)
#undef SHF_X
  };
  size_t row = 0;
  while (rows[row].dtype != dtype) row++; /* there is one: the tensor has been checked */
  return rows[row].descr;
}

static void put_dict(shf_io_text *text, const sheaf_io_tensor *tensor)
{
  shf_io_put_string(text, "{'descr': '");
  shf_io_put_string(text, descr_of(tensor->dtype));
  shf_io_put_string(text, "', 'fortran_order': False, 'shape': (");
  for (int i = 0; i < tensor->rank; i++) {
    if (i > 0) shf_io_put_string(text, " ");
    shf_io_put_integer(text, tensor->shape[i]);
    if (i == 0 || i + 1 < tensor->rank) shf_io_put_string(text, ",");
  }
  shf_io_put_string(text, "), }");
}

void shf_io_npy_header(const sheaf_io_tensor *tensor, char header[SHF_IO_NPY_HEADER])
{
  memset(header, ' ', SHF_IO_NPY_HEADER);
  memcpy(header, "\x93NUMPY\x01\x00", 8);
  header[8] = SHF_IO_NPY_HEADER - PREFIX_BYTES; /* of two bytes, little endian */
  header[9] = 0;
  put_dict(&(shf_io_text){.out = header + PREFIX_BYTES}, tensor);
  header[SHF_IO_NPY_HEADER - 1] = '\n';
}

sheaf_status sheaf_npy_write(const char *path, const sheaf_io_tensor *tensor)
{
  SHF_REQUIRE(path, INVALID_PROBLEM, "sheaf_npy_write: path is NULL");
  SHF_REQUIRE(tensor, INVALID_PROBLEM, "sheaf_npy_write: tensor is NULL");
  SHF_TRY(shf_io_check_writable("sheaf_npy_write", tensor, 0));
  char header[SHF_IO_NPY_HEADER];
  shf_io_npy_header(tensor, header);
  shf_io_output output;
  SHF_TRY(shf_io_begin(&output, path));
  sheaf_status status = shf_io_append(&output, header, sizeof header);
  if (status == SHEAF_OK) status = shf_io_append(&output, tensor->data, tensor->bytes);
  return shf_io_finish(&output, status);
}
