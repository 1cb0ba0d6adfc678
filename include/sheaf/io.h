/* sheaf/io.h: tables in files. safetensors and npy, read by mapping the file, written atomically.
 *
 * Reading maps the file: tensors point into it, are read-only, and live until the file is closed. Nothing in a file
 * is trusted: lengths, offsets, shapes and dtypes are checked before anything is handed out. A file that does not
 * hold what its header says is SHEAF_IO with a sentence that says where; a sound file that Sheaf has no means to hold
 * (more than SHEAF_IO_MAX_RANK dimensions; npy that is big-endian, in Fortran order or of another type) is
 * SHEAF_UNSUPPORTED. While a file is mapped it may be replaced (by the functions here, or by any rename) but not
 * changed in place: cut short, it takes the process with it.
 *
 * Data lies where the file has it. A safetensors file may have it at any byte, not aligned to its elements; a plan's
 * run then answers MISALIGNED, and the tensor has to be copied first. Files written here are aligned.
 *
 * Writing goes to a temporary file beside the target, which is synced and renamed over it only when complete; until
 * then it has no name where the file system knows such files (O_TMPFILE), else `.sheaf-<process>-<number>.tmp`. On
 * failure the temporary file is gone and the target is what it was (but for one failure, which says so: the file is in
 * place and its directory could not be synced). A target that is replaced passes
 * its permissions on; a symbolic link is replaced by the file, not followed; what is no regular file is left alone.
 */
#ifndef SHEAF_IO_H
#define SHEAF_IO_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHEAF_IO_MAX_RANK = 8 };

/* A tensor in a file (reading), or to be written to one. C order, contiguous. */
typedef struct sheaf_io_tensor {
  const char *name;  /* UTF-8; npy: "" when reading, ignored when writing */
  sheaf_dtype dtype; /* F32 F64 F16 BF16 I32 I64 U8; NONE when reading a type Sheaf has no name for */
  int rank;
  int64_t shape[SHEAF_IO_MAX_RANK];
  const void *data;
  size_t bytes;
} sheaf_io_tensor;

typedef struct sheaf_io_metadata {
  const char *key;
  const char *value;
} sheaf_io_metadata;

/* ---- safetensors --------------------------------------------------------------------------------------------- */

typedef struct sheaf_safetensors sheaf_safetensors;

/* Opens and checks a file. The header must be a JSON object without duplicate or unknown keys, at most 100 MB; the
 * tensors must cover the data exactly: no overlap, no gap, no truncation. Dtypes of the format that Sheaf has no name
 * for (F8_E4M3, BOOL ...) are listed with SHEAF_DTYPE_NONE, their sizes checked like the others'. `*file` is NULL on
 * failure. */
SHEAF_API sheaf_status sheaf_safetensors_open(const char *path, sheaf_safetensors **file);
SHEAF_API void sheaf_safetensors_close(sheaf_safetensors *file);

/* The same over memory that the caller keeps alive (for archives, tests and fuzzing). */
SHEAF_API sheaf_status sheaf_safetensors_open_memory(const void *data, size_t bytes, sheaf_safetensors **file);

/* Tensors in the order of their data, metadata in the order of its keys. `find`, `metadata` and `at` return NULL when
 * there is no such name or position; `metadata_at` returns two NULLs. All belong to the file. */
SHEAF_API int64_t sheaf_safetensors_count(const sheaf_safetensors *file);
SHEAF_API const sheaf_io_tensor *sheaf_safetensors_at(const sheaf_safetensors *file, int64_t position);
SHEAF_API const sheaf_io_tensor *sheaf_safetensors_find(const sheaf_safetensors *file, const char *name);
SHEAF_API const char *sheaf_safetensors_metadata(const sheaf_safetensors *file, const char *key);
SHEAF_API int64_t sheaf_safetensors_metadata_count(const sheaf_safetensors *file);
SHEAF_API sheaf_io_metadata sheaf_safetensors_metadata_at(const sheaf_safetensors *file, int64_t position);

/* Writes tensors and metadata (either may be NULL with count 0). Names are UTF-8, distinct and not "__metadata__"; keys
 * are UTF-8 and distinct, values UTF-8. Each tensor is aligned to its elements: the header is padded so that data
 * starts at a multiple of 64 bytes, and tensors lie in the order of their element sizes, largest first, else in the
 * order given. */
SHEAF_API sheaf_status sheaf_safetensors_write(const char *path, const sheaf_io_tensor *tensors, int64_t tensor_count,
                                               const sheaf_io_metadata *metadata, int64_t metadata_count);

/* ---- safetensors in several files ---------------------------------------------------------------------------- */

/* Large models lie in several safetensors files beside an index, `<stem>.safetensors.index.json`:
 * {"metadata": {"total_size": bytes}, "weight_map": {tensor name: file name, ...}}. */
typedef struct sheaf_safetensors_index sheaf_safetensors_index;

typedef struct sheaf_index_entry {
  const char *name; /* of a tensor */
  const char *file; /* in which it lies: a name within the index's folder */
} sheaf_index_entry;

/* Opens and checks an index; the files it names are not looked at. `*index` is NULL on failure. Entries in the order of
 * the file; they belong to the index. `at` returns two NULLs when there is no such position. */
SHEAF_API sheaf_status sheaf_safetensors_index_open(const char *path, sheaf_safetensors_index **index);
SHEAF_API void sheaf_safetensors_index_close(sheaf_safetensors_index *index);
SHEAF_API int64_t sheaf_safetensors_index_count(const sheaf_safetensors_index *index);
SHEAF_API sheaf_index_entry sheaf_safetensors_index_at(const sheaf_safetensors_index *index, int64_t position);

/* Writes an index, atomically as all files. Names are UTF-8. */
SHEAF_API sheaf_status sheaf_safetensors_index_write(const char *path, const sheaf_index_entry *entries, int64_t count,
                                                     int64_t total_bytes);

/* ---- npy ----------------------------------------------------------------------------------------------------- */

typedef struct sheaf_npy sheaf_npy;

/* Opens an npy file of version 1, 2 or 3, little endian, C order (or any order, where the shape makes no difference).
 * The array must end where the file does. bf16 has no name in npy: it is written as raw 2-byte void ('|V2'), and both
 * that and the '<V2' by which NumPy saves the bfloat16 of ml_dtypes are read as BF16. `*file` is NULL on failure. */
SHEAF_API sheaf_status sheaf_npy_open(const char *path, sheaf_npy **file);
SHEAF_API sheaf_status sheaf_npy_open_memory(const void *data, size_t bytes, sheaf_npy **file);
SHEAF_API void sheaf_npy_close(sheaf_npy *file);
SHEAF_API const sheaf_io_tensor *sheaf_npy_tensor(const sheaf_npy *file);

/* Writes version 1.0, the same bytes that NumPy writes. */
SHEAF_API sheaf_status sheaf_npy_write(const char *path, const sheaf_io_tensor *tensor);

/* ---- Files larger than memory: read in windows, written piece by piece ---------------------------------------- */

typedef enum sheaf_io_format { SHEAF_IO_SAFETENSORS = 0, SHEAF_IO_NPY = 1 } sheaf_io_format;

/* A safetensors or npy file (told apart by its first bytes) of which only the header is mapped. */
typedef struct sheaf_io_file sheaf_io_file;

/* Opens and checks a file as the functions above do, the data apart; or one that lies in memory (which stays the
 * caller's). `*file` is NULL on failure. */
SHEAF_API sheaf_status sheaf_io_open(const char *path, sheaf_io_file **file);
SHEAF_API sheaf_status sheaf_io_open_memory(const void *data, size_t bytes, sheaf_io_file **file);
SHEAF_API void sheaf_io_close(sheaf_io_file *file);

/* Tensors as above (an npy file has one, named ""), with `data` NULL; they belong to the file. Of an npy file, and of
 * keys that are not there, metadata is NULL. */
SHEAF_API sheaf_io_format sheaf_io_format_of(const sheaf_io_file *file);
SHEAF_API int64_t sheaf_io_count(const sheaf_io_file *file);
SHEAF_API const sheaf_io_tensor *sheaf_io_at(const sheaf_io_file *file, int64_t position);
SHEAF_API const sheaf_io_tensor *sheaf_io_find(const sheaf_io_file *file, const char *name);
SHEAF_API const char *sheaf_io_metadata_of(const sheaf_io_file *file, const char *key);

/* Maps bytes first .. first + bytes - 1 of a tensor's data, for reading; what was mapped before is given up, so a file
 * takes no more memory than its largest window. `*data` lies where the file has it, aligned or not; NULL for 0
 * bytes. */
SHEAF_API sheaf_status sheaf_io_window(sheaf_io_file *file, const sheaf_io_tensor *tensor, int64_t first,
                                       int64_t bytes, const void **data);

/* A file with one tensor, to be written piece by piece. */
typedef struct sheaf_io_output {
  size_t struct_size;
  const char *path;       /* written atomically, as all files; NULL: */
  int descriptor;         /* an open file or pipe, which is written to as it is and stays open */
  sheaf_io_format format;
  sheaf_io_tensor tensor; /* its data is not looked at */
  const sheaf_io_metadata *metadata; /* safetensors only */
  int64_t metadata_count;
} sheaf_io_output;

#define SHEAF_IO_OUTPUT_INIT SHEAF_INIT(sheaf_io_output)

typedef struct sheaf_io_writer sheaf_io_writer;

/* begin writes the header, append the next bytes of the data. `end` must follow each begin that succeeded: with `keep`
 * it puts the file in its place, provided that all of the tensor's bytes were appended; without, nothing remains of it.
 * After an append that failed, end without `keep`. */
SHEAF_API sheaf_status sheaf_io_write_begin(const sheaf_io_output *output, sheaf_io_writer **writer);
SHEAF_API sheaf_status sheaf_io_write_append(sheaf_io_writer *writer, const void *data, size_t bytes);
SHEAF_API sheaf_status sheaf_io_write_end(sheaf_io_writer *writer, int keep);

#ifdef __cplusplus
}
#endif
#endif
