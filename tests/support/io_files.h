/* io_files.h: what the tests of files share: a folder of their own, files made by hand, what is in them. */
#ifndef SHEAF_TESTS_IO_FILES_H
#define SHEAF_TESTS_IO_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sheaf/io.h>

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

/* Every type, and what the formats call it. */
typedef struct io_dtype_row {
  sheaf_dtype dtype;
  size_t size;
  const char *safetensors, *npy;
} io_dtype_row;

enum { IO_DTYPES = 7, IO_SHAPES = 4 };
extern const io_dtype_row io_dtypes[IO_DTYPES];
extern const int64_t io_shapes[IO_SHAPES][SHEAF_IO_MAX_RANK];

typedef struct io_content {
  unsigned char *data;
  size_t bytes;
} io_content;

/* A header made by hand, and what comes of opening a file that has it. */
typedef struct io_header_case {
  const char *header;
  size_t data_bytes;
  sheaf_status status;
  const char *words; /* in the sentence */
} io_header_case;

/* A new folder, for a group of tests; removed at its end. */
extern char io_folder[128];
int io_make_folder(void **state);
int io_remove_folder(void **state);

/* Empties the folder after a test, which fails when one of the library's temporary files was left there. */
int io_empty_folder(void **state);

/* The path of a file in it; the last 16 stay valid. */
const char *io_path(const char *name);

/* Memory of exactly this length, so that a sanitizer sees a read past its end; free data. */
io_content io_copy(const void *data, size_t bytes);

/* A safetensors file of this header and so many bytes of data: 0, 1, 2 ... */
io_content io_safetensors_of(const void *header, size_t header_bytes, size_t data_bytes);

/* An npy file of this version, with its header as it is given. */
io_content io_npy_of(unsigned char major, const char *header, size_t data_bytes);

void io_store(const char *path, const void *data, size_t bytes);
io_content io_load(const char *path);
void io_expect_content(const char *path, const void *data, size_t bytes);

int io_entries_in(const char *path);
int io_descriptors(void); /* open ones */
int io_mappings(void);    /* of files in the folder */

/* The status, and words of the sentence. */
void io_expect_failure(sheaf_status status, sheaf_status expected, const char *words);

/* A tensor of the type in row `dtype_row` of io_dtypes. */
sheaf_io_tensor io_tensor(const char *name, int dtype_row, int rank, const int64_t *shape, const void *data);
void io_expect_tensor(const sheaf_io_tensor *actual, const sheaf_io_tensor *expected);

/* The library's memory, counted: allocation number `failing`, from 0, fails (-1: none does). */
typedef struct io_memory_count {
  int64_t allocations, failing;
  size_t live; /* bytes */
} io_memory_count;

extern io_memory_count io_memory;
void io_count_memory(int64_t failing);
void io_count_no_more(void);

#endif
