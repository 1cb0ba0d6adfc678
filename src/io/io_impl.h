/* io/io_impl.h: what the files of this folder share: failures that name a file, bytes of a file, header text, shapes.
 *
 * Headers are read by a small strict scanner of our own rather than by jansson. Everything Sheaf allocates goes through
 * sheaf_set_allocator, and jansson's only hook, json_set_alloc_funcs, belongs to the whole process: to set it, even for
 * the length of one call, would make a host program that uses jansson free its own values through our functions. Both
 * kinds of header are flat, so the scanner is short, needs no recursion, and tells the byte at which one goes wrong. */
#ifndef SHF_IO_IMPL_H
#define SHF_IO_IMPL_H

#include <sheaf/io.h>
#include <stdbool.h>

#include "core/dtype.h"
#include "core/memory.h"
#include "core/status.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "files hold little-endian data, which is handed out as it is");

/* Data in the files we write starts at a multiple of this. */
enum { SHF_IO_DATA_ALIGNMENT = 64 };

/* The longest safetensors header, in bytes: the limit of the format's reference implementation. */
enum { SHF_IO_HEADER_LIMIT = 100000000 };

/* X(name in the file, dtype, bits of an element): every type that safetensors has a name for. */
#define SHF_IO_SAFETENSORS_DTYPES(X)    \
  X("F32", SHEAF_F32, 32)               \
  X("F64", SHEAF_F64, 64)               \
  X("F16", SHEAF_F16, 16)               \
  X("BF16", SHEAF_BF16, 16)             \
  X("I32", SHEAF_I32, 32)               \
  X("I64", SHEAF_I64, 64)               \
  X("U8", SHEAF_U8, 8)                  \
  X("BOOL", SHEAF_DTYPE_NONE, 8)        \
  X("I8", SHEAF_DTYPE_NONE, 8)          \
  X("I16", SHEAF_DTYPE_NONE, 16)        \
  X("U16", SHEAF_DTYPE_NONE, 16)        \
  X("U32", SHEAF_DTYPE_NONE, 32)        \
  X("U64", SHEAF_DTYPE_NONE, 64)        \
  X("C64", SHEAF_DTYPE_NONE, 64)        \
  X("F8_E4M3", SHEAF_DTYPE_NONE, 8)     \
  X("F8_E5M2", SHEAF_DTYPE_NONE, 8)     \
  X("F8_E4M3FNUZ", SHEAF_DTYPE_NONE, 8) \
  X("F8_E5M2FNUZ", SHEAF_DTYPE_NONE, 8) \
  X("F8_E8M0", SHEAF_DTYPE_NONE, 8)     \
  X("F6_E2M3", SHEAF_DTYPE_NONE, 6)     \
  X("F6_E3M2", SHEAF_DTYPE_NONE, 6)     \
  X("F4", SHEAF_DTYPE_NONE, 4)

/* X(descr, dtype). A dtype's first row is the one that is written; the others are read as well. */
#define SHF_IO_NPY_DTYPES(X) \
  X("<f4", SHEAF_F32)        \
  X("<f8", SHEAF_F64)        \
  X("<f2", SHEAF_F16)        \
  X("|V2", SHEAF_BF16)       \
  X("<V2", SHEAF_BF16)       \
  X("<i4", SHEAF_I32)        \
  X("<i8", SHEAF_I64)        \
  X("|u1", SHEAF_U8)         \
  X("<u1", SHEAF_U8)

/* ---- io_error.c: failures that name a file -------------------------------------------------------------------- */

/* Fails with "<path>: <sentence>". Of a long path only the end is shown, so that the sentence stays whole. */
sheaf_status shf_io_fail(sheaf_status status, const char *path, const char *format, ...)
    __attribute__((cold, format(printf, 3, 4)));

/* Fails with "<path>: cannot <action>: <what errno `code` means> (errno <code>)". */
sheaf_status shf_io_fail_errno(const char *path, const char *action, int code) __attribute__((cold));

/* How many of `length` bytes of a name to print with "%.*s": at most 100, cut between UTF-8 characters. */
int shf_io_shown(const char *text, size_t length);

/* ---- file_map.c: a whole file in memory ----------------------------------------------------------------------- */

/* Bytes of a file: mapped by us, or the caller's memory. */
typedef struct shf_io_bytes {
  const unsigned char *data; /* NULL when there are none */
  size_t bytes;              /* of the whole file, even where only its head is mapped */
  void *mapping;             /* what to unmap; NULL for the caller's memory */
  size_t mapped;             /* bytes of it */
} shf_io_bytes;

/* Opens a regular file for reading. */
sheaf_status shf_io_open_regular(const char *path, int *file, size_t *bytes);

/* Maps bytes first .. first + bytes - 1 of an open file read-only; none are no mapping at all. */
sheaf_status shf_io_map_part(const char *path, int file, size_t first, size_t bytes, shf_io_bytes *content);

/* Maps a whole regular file. */
sheaf_status shf_io_map(const char *path, shf_io_bytes *content);
void shf_io_unmap(shf_io_bytes *content);

/* ---- file_replace.c: writing all of a file or nothing ---------------------------------------------------------- */

typedef struct shf_io_output {
  const char *path;    /* of the target; the caller's, kept until finish */
  const char *base;    /* the target's name within its directory: the end of path */
  int directory, file; /* descriptors of the directory and of the temporary file in it */
  unsigned mode;       /* permission bits of the target that is replaced */
  bool replaces;       /* there is such a target */
  char temporary[64];  /* name of the temporary file within the directory; "" while it has none */
} shf_io_output;

/* begin opens the temporary file; append adds to it; finish, which must follow each begin that succeeded, puts the file
 * in the target's place when `status` is OK, else removes it and returns `status`. */
sheaf_status shf_io_begin(shf_io_output *output, const char *path);
sheaf_status shf_io_append(shf_io_output *output, const void *data, size_t bytes);
sheaf_status shf_io_finish(shf_io_output *output, sheaf_status status);

/* ---- header_scan.c: the text of a header ----------------------------------------------------------------------- */

/* A position in header text. All functions below skip white space before what they look for, and fail with SHEAF_IO
 * and the file's byte when they find something else. */
typedef struct shf_io_scan {
  const char *path;
  const char *format;        /* "safetensors header" */
  const unsigned char *file; /* the file's first byte, from which positions are counted */
  const unsigned char *at, *end;
  bool trailing_comma; /* a list may end in ",]" */
} shf_io_scan;

/* Fails with "<path>: <format>, byte <where the scan stands>: <sentence>". */
sheaf_status shf_io_fail_at(const shf_io_scan *scan, const char *format, ...)
    __attribute__((cold, format(printf, 2, 3)));

void shf_io_skip_space(shf_io_scan *scan);

/* Whether `wanted` comes next; takes it if so. */
bool shf_io_accept(shf_io_scan *scan, char wanted);

/* Takes `wanted`; `what` says in the failure what it would have been: "the ':' after a key". */
sheaf_status shf_io_expect(shf_io_scan *scan, char wanted, const char *what);

/* Fails, saying what was found instead of `wanted` ("a string"). */
sheaf_status shf_io_fail_found(const shf_io_scan *scan, const char *wanted) __attribute__((cold));

/* Steps through the items of a list that ends in `close`, separators included. Set *first before the first call. */
sheaf_status shf_io_next_item(shf_io_scan *scan, char close, bool *first, bool *more);

/* A decimal integer of 0 to 2^63 - 1: no sign, fraction, exponent or leading zero. */
sheaf_status shf_io_read_integer(shf_io_scan *scan, const char *what, int64_t *value);

/* Only white space may be left. */
sheaf_status shf_io_expect_end(shf_io_scan *scan);

/* ---- json_string.c: JSON strings, in and out ------------------------------------------------------------------- */

/* Takes a JSON string and decodes it. *length is its decoded length; of its bytes, those that fit into `capacity` are
 * stored, without a NUL. Refused: what RFC 8259 refuses, invalid UTF-8, lone surrogates, and U+0000. */
sheaf_status shf_io_read_string(shf_io_scan *scan, const char *what, char *out, size_t capacity, size_t *length);

/* Length in bytes of the valid UTF-8 character at `at`; 0 when there is none. at < end. */
size_t shf_io_utf8_length(const unsigned char *at, const unsigned char *end);

/* Text that is being measured (out NULL) or stored. */
typedef struct shf_io_text {
  char *out;
  size_t length;
} shf_io_text;

void shf_io_put(shf_io_text *text, const char *bytes, size_t count);
void shf_io_put_string(shf_io_text *text, const char *string);
void shf_io_put_integer(shf_io_text *text, int64_t value);
void shf_io_put_quoted(shf_io_text *text, const char *string); /* as a JSON string; `string` is valid UTF-8 */

/* ---- tensor_check.c: shapes, and tensors to be written --------------------------------------------------------- */

/* Bits of all elements, 0 when an extent is 0. False when the product of the extents other than 0 overflows: then not
 * even the strides of an empty tensor could be told. Extents are not negative. */
bool shf_io_shape_bits(int rank, const int64_t *shape, int64_t element_bits, int64_t *bits);

/* INVALID_PROBLEM unless a tensor can be written: dtype, rank, shape, data and bytes agree. `who` names the caller. */
sheaf_status shf_io_check_writable(const char *who, const sheaf_io_tensor *tensor, int64_t position);

/* ---- safetensors_header.c ---------------------------------------------------------------------------------------- */

/* A walk through a header by shf_io_walk_header. The first walk checks and counts, with all arrays NULL; once they are
 * allocated the same code walks again and fills them. They have room for what was counted, and the second walk fails
 * rather than pass it: the file may change in between. */
typedef struct shf_io_walk {
  shf_io_scan scan;          /* at the header's first byte */
  const unsigned char *data; /* the file's bytes after the header */
  int64_t data_bytes;
  const char *shown_name; /* the current tensor's, as it stands in the header, for sentences */
  int shown_length;
  bool has_metadata;
  int64_t tensor_count, metadata_count;
  size_t string_bytes; /* of all names, keys and values, each with its NUL */
  sheaf_io_tensor *tensors;
  sheaf_io_metadata *metadata;
  char *strings;
  int64_t tensor_room, metadata_room;
  size_t string_room;
} shf_io_walk;

sheaf_status shf_io_walk_header(shf_io_walk *walk);

/* ---- npy_read.c, safetensors_read.c: files by their bytes, of which the header must be mapped -------------------- */

sheaf_status shf_io_open_npy(const char *path, const shf_io_bytes *content, sheaf_npy **file);
sheaf_status shf_io_open_safetensors(const char *path, const shf_io_bytes *content, sheaf_safetensors **file);

/* No npy header is longer than this, with all that comes before the data. */
enum { SHF_IO_NPY_HEAD = (1 << 20) + 12 };

/* ---- npy_write.c, safetensors_write.c: headers of files to be written ------------------------------------------- */

enum { SHF_IO_NPY_HEADER = 2 * SHF_IO_DATA_ALIGNMENT };
void shf_io_npy_header(const sheaf_io_tensor *tensor, char header[SHF_IO_NPY_HEADER]);

/* Checks everything, then makes the header with the length before it, in memory that the caller frees. */
sheaf_status shf_io_safetensors_header(const sheaf_io_tensor *tensors, int64_t tensor_count,
                                       const sheaf_io_metadata *metadata, int64_t metadata_count, char **header,
                                       size_t *bytes);

/* ---- heap_sort.c ------------------------------------------------------------------------------------------------ */

/* Sorts items of `size` bytes (at most 128) in place. The C library's qsort allocates memory behind our hook's back. */
typedef bool shf_io_less(const void *left, const void *right, const void *context);
void shf_io_sort(void *items, size_t count, size_t size, shf_io_less *less, const void *context);

#endif
