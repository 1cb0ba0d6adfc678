/* cli/file_table.c: a table in a file: finding the tensor that was meant, and its rows window by window. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

enum { WINDOW_BYTES = 256 << 20 };

int64_t window_bytes(void)
{
  const char *wish = secure_getenv("SHEAF_TEST_WINDOW");
  long long bytes = wish ? strtoll(wish, NULL, 10) : 0;
  return bytes > 0 && bytes < WINDOW_BYTES ? bytes : WINDOW_BYTES;
}

void *rows_memory(int64_t rows, int64_t row_bytes)
{
  int64_t bytes;
  if (__builtin_mul_overflow(rows, row_bytes, &bytes) || bytes > INT64_MAX - 128) return NULL;
  return aligned_alloc(64, (size_t)(bytes + 64) / 64 * 64);
}

/* ---- Opening ------------------------------------------------------------------------------------------------- */

/* All of stdin, which cannot be mapped. */
static int read_input(table_file *table)
{
  static bool taken;
  if (taken) {
    cli_complain(table->command, "'-' is given twice; stdin holds one npy");
    return CLI_FAILED;
  }
  taken = true;
  size_t room = 1 << 20, used = 0;
  char *input = malloc(room);
  while (input) {
    size_t got = fread(input + used, 1, room - used, stdin);
    used += got;
    if (got == 0) break;
    if (used < room) continue;
    char *larger = room <= SIZE_MAX / 2 ? realloc(input, room *= 2) : NULL;
    if (!larger) free(input);
    input = larger;
  }
  table->input = input;
  if (!input) {
    cli_complain(table->command, "out of memory after %zu bytes of stdin", used);
    return CLI_FAILED;
  }
  if (ferror(stdin)) {
    cli_complain(table->command, "stdin cannot be read: %s", strerror(errno));
    return CLI_FAILED;
  }
  if (sheaf_io_open_memory(input, used, &table->file) == SHEAF_OK) return CLI_GO_ON;
  cli_complain(table->command, "stdin holds no npy: %s", sheaf_last_error());
  return CLI_FAILED;
}

/* Where FILE ends in FILE:TENSOR: at the end, or at the first colon before which there is a file. */
static size_t length_of_path(const char *text)
{
  struct stat status;
  size_t length = strlen(text);
  char *path = strdup(text);
  if (!path) return length;
  if (stat(path, &status) != 0) {
    for (char *colon = strchr(path, ':'); colon; colon = strchr(colon + 1, ':')) {
      *colon = '\0';
      if (stat(path, &status) == 0) {
        length = (size_t)(colon - path);
        break;
      }
      *colon = ':';
    }
  }
  free(path);
  return length;
}

bool ends_in(const char *path, const char *ending)
{
  size_t length = strlen(path), wanted = strlen(ending);
  return length >= wanted && strcmp(path + length - wanted, ending) == 0;
}

/* The file of an index that holds `name`; NULL after a complaint. The caller frees it. */
static char *file_by_index(const table_file *table, const char *path, const char *name)
{
  sheaf_safetensors_index *index;
  char *found = NULL;
  if (sheaf_safetensors_index_open(path, &index) != SHEAF_OK) {
    cli_failed(table->command);
    return NULL;
  }
  if (!name)
    cli_complain(table->command, "'%s' is an index of %lld tensors; name one: %s:NAME", path,
                 (long long)sheaf_safetensors_index_count(index), path);
  bool is_there = false;
  for (int64_t i = 0; name && i < sheaf_safetensors_index_count(index); i++) {
    sheaf_index_entry entry = sheaf_safetensors_index_at(index, i);
    if (strcmp(entry.name, name) != 0) continue;
    const char *slash = strrchr(path, '/');
    is_there = true;
    if (asprintf(&found, "%.*s%s", slash ? (int)(slash - path + 1) : 0, path, entry.file) < 0) found = NULL;
    if (!found) cli_complain(table->command, "out of memory");
    break;
  }
  if (name && !is_there) cli_complain(table->command, "'%s' has no tensor '%s'", path, name);
  sheaf_safetensors_index_close(index);
  return found;
}

static int choose_tensor(table_file *table, const char *path, const char *name)
{
  if (name) {
    table->tensor = sheaf_io_find(table->file, name);
    if (table->tensor) return CLI_GO_ON;
    const char *first = sheaf_io_count(table->file) ? sheaf_io_at(table->file, 0)->name : "";
    cli_complain(table->command, "'%s' has no tensor '%s'; it has %lld, such as '%s' ('sheaf show %s' lists them)",
                 path, name, (long long)sheaf_io_count(table->file), first, path);
    return CLI_FAILED;
  }
  if (sheaf_io_count(table->file) == 1) table->tensor = sheaf_io_at(table->file, 0);
  return CLI_GO_ON;
}

static int open_path(table_file *table)
{
  size_t length = length_of_path(table->text);
  char *path = strndup(table->text, length), *file = NULL;
  const char *name = table->text[length] ? table->text + length + 1 : NULL;
  int code = CLI_FAILED;
  if (!path) {
    cli_complain(table->command, "out of memory");
  } else if (ends_in(path, ".index.json")) {
    file = file_by_index(table, path, name);
  } else {
    file = strdup(path);
  }
  if (file && sheaf_io_open(file, &table->file) == SHEAF_OK)
    code = choose_tensor(table, path, name);
  else if (file)
    cli_failed(table->command);
  free(file);
  free(path);
  return code;
}

int file_open(table_file *table, const char *command, const char *text)
{
  *table = (table_file){.command = command, .text = text};
  if (strcmp(text, "-") != 0) return open_path(table);
  int code = read_input(table);
  return code == CLI_GO_ON ? choose_tensor(table, "stdin", NULL) : code;
}

void table_close(table_file *table)
{
  sheaf_io_close(table->file);
  free(table->input);
  free(table->aligned);
  *table = (table_file){0};
}

int tensor_take(table_file *table)
{
  const char *command = table->command, *text = table->text;
  const sheaf_io_tensor *tensor = table->tensor, *largest = NULL;
  if (!tensor) {
    for (int64_t i = 0; i < sheaf_io_count(table->file); i++) {
      const sheaf_io_tensor *other = sheaf_io_at(table->file, i);
      if (!largest || other->bytes > largest->bytes) largest = other;
    }
    if (largest)
      cli_complain(command, "'%s' holds %lld tensors; name one, such as the largest: %s:%s", text,
                   (long long)sheaf_io_count(table->file), text, largest->name);
    else
      cli_complain(command, "'%s' holds no tensors", text);
    return CLI_FAILED;
  }
  if (tensor->dtype == SHEAF_DTYPE_NONE) {
    cli_complain(command, "'%s' has elements of a type that Sheaf has no name for", text);
    return CLI_FAILED;
  }
  table->dtype = tensor->dtype;
  table->dim = tensor->rank ? tensor->shape[tensor->rank - 1] : 1;
  table->rows = 1;
  for (int i = 0; i + 1 < tensor->rank; i++)
    table->rows *= tensor->shape[i]; /* fits: the file's size has been checked */
  table->row_bytes = sheaf_dtype_row_bytes(table->dtype, table->dim);
  return CLI_GO_ON;
}

int tensor_open(table_file *table, const char *command, const char *text)
{
  int code = file_open(table, command, text);
  return code == CLI_GO_ON ? tensor_take(table) : code;
}

char *note_key(const char *name)
{
  char *key;
  return asprintf(&key, "sheaf.quantized.%s", name) < 0 ? NULL : key;
}

const char *table_note(const table_file *table)
{
  char *key = note_key(table->tensor->name);
  const char *note = key ? sheaf_io_metadata_of(table->file, key) : NULL;
  free(key);
  return note;
}

static int read_note(const table_file *table, sheaf_dtype *as, int64_t *dim)
{
  char *end;
  const char *note = table_note(table);
  if (!note || *as != SHEAF_DTYPE_NONE) return CLI_GO_ON;
  *as = strncmp(note, "int8 ", 5) == 0 ? SHEAF_INT8 : strncmp(note, "int4 ", 5) == 0 ? SHEAF_INT4 : SHEAF_DTYPE_NONE;
  long long columns = strtoll(note + (strlen(note) > 5 ? 5 : 0), &end, 10);
  if (*as == SHEAF_DTYPE_NONE || *end || columns < 0) {
    cli_complain(table->command, "'%s': its note '%s' is neither 'int8 COLUMNS' nor 'int4 COLUMNS'", table->text, note);
    return CLI_FAILED;
  }
  *dim = columns;
  return CLI_GO_ON;
}

static int set_packed(table_file *table, sheaf_dtype as, int64_t dim)
{
  if (table->tensor->rank != 2) {
    cli_complain(table->command, "'%s' has %d dimensions; packed rows are a matrix", table->text, table->tensor->rank);
    return CLI_FAILED;
  }
  int64_t width = table->tensor->shape[1], tail = as == SHEAF_INT8 ? 8 : 4;
  if (table->tensor->dtype != SHEAF_U8 || width < tail) {
    cli_complain(table->command, "'%s' is %s of %lld columns; packed %s rows are u8 of %lld at least", table->text,
                 sheaf_dtype_name(table->tensor->dtype), (long long)width, sheaf_dtype_name(as), (long long)tail);
    return CLI_FAILED;
  }
  if (dim == 0) dim = as == SHEAF_INT8 ? width - tail : 2 * (width - tail);
  if (sheaf_dtype_row_bytes(as, dim) != width) {
    cli_complain(table->command, "'%s' has rows of %lld bytes, but %lld columns of %s are packed into %lld",
                 table->text, (long long)width, (long long)dim, sheaf_dtype_name(as),
                 (long long)sheaf_dtype_row_bytes(as, dim));
    return CLI_FAILED;
  }
  table->dtype = as;
  table->dim = dim;
  return CLI_GO_ON;
}

int table_take(table_file *table, sheaf_dtype as, int64_t dim, bool must_be_table)
{
  int code = read_note(table, &as, &dim);
  if (code != CLI_GO_ON) return code;
  if (as != SHEAF_DTYPE_NONE) return set_packed(table, as, dim);
  if (is_float_dtype(table->dtype) || !must_be_table) return CLI_GO_ON;
  cli_complain(table->command, "'%s' is of %s; a table is of f32, f64, f16, bf16, or of packed rows (see --as)",
               table->text, sheaf_dtype_name(table->dtype));
  return CLI_FAILED;
}

int table_open(table_file *table, const char *command, const char *text, sheaf_dtype as, int64_t dim)
{
  int code = tensor_open(table, command, text);
  if (code != CLI_GO_ON) return code;
  int rank = table->tensor->rank;
  if (rank == 2) return table_take(table, as, dim, true);
  cli_complain(command, "'%s' has %d dimension%s; a table has two, rows and columns", text, rank, rank == 1 ? "" : "s");
  return CLI_FAILED;
}

/* ---- Rows ---------------------------------------------------------------------------------------------------- */

int64_t table_window(const table_file *table)
{
  int64_t rows =
      window_bytes() / (table->row_bytes > 0 ? table->row_bytes : 64); /* rows without columns have ends, too */
  return rows > 0 ? rows : 1;
}

static const char *align_window(table_file *table, const char *data, size_t bytes)
{
  if (table->aligned_bytes < bytes) {
    free(table->aligned);
    table->aligned_bytes = (bytes + 63) / 64 * 64;
    table->aligned = aligned_alloc(64, table->aligned_bytes);
  }
  if (!table->aligned) {
    table->aligned_bytes = 0;
    cli_complain(table->command, "%zu bytes of memory cannot be had", bytes);
    return NULL;
  }
  return memcpy(table->aligned, data, bytes);
}

const char *table_rows(table_file *table, int64_t first, int64_t count)
{
  static const char nothing[64] = "";
  const void *data;
  int64_t bytes = count * table->row_bytes;
  if (bytes == 0) return nothing;
  if (sheaf_io_window(table->file, table->tensor, first * table->row_bytes, bytes, &data) != SHEAF_OK) {
    cli_failed(table->command);
    return NULL;
  }
  uintptr_t size = sheaf_dtype_row_bytes(table->tensor->dtype, 1) > 0
                       ? (uintptr_t)sheaf_dtype_row_bytes(table->tensor->dtype, 1)
                       : 1;
  return (uintptr_t)data % size == 0 ? data : align_window(table, data, (size_t)bytes);
}

typedef struct wanted_row {
  int64_t row, place;
} wanted_row;

static int compare_wanted(const void *left, const void *right)
{
  const wanted_row *a = left, *b = right;
  return a->row != b->row ? (a->row > b->row) - (a->row < b->row) : (a->place > b->place) - (a->place < b->place);
}

/* In the order of the file, so that every window is mapped once. */
bool table_gather(table_file *table, const int64_t *rows, int64_t count, char *to)
{
  wanted_row *wanted = malloc((size_t)(count + 1) * sizeof *wanted);
  if (!wanted) {
    cli_complain(table->command, "out of memory for a list of %lld rows", (long long)count);
    return false;
  }
  int64_t good = 0, from = 0, until = 0;
  bool in_order = true;
  for (int64_t i = 0; i < count; i++) {
    if (rows[i] < 0) continue;
    wanted[good] = (wanted_row){rows[i], i};
    in_order &= good == 0 || wanted[good - 1].row <= rows[i];
    good++;
  }
  if (!in_order) qsort(wanted, (size_t)good, sizeof *wanted, compare_wanted);
  const char *window = NULL;
  size_t bytes = (size_t)table->row_bytes;
  bool fine = true;
  for (int64_t i = 0; fine && i < good; i++) {
    if (!window || wanted[i].row >= until) {
      int64_t last = wanted[i].row, most = table_window(table);
      from = wanted[i].row;
      for (int64_t j = i + 1; j < good && wanted[j].row < from + most; j++) last = wanted[j].row;
      until = last + 1;
      window = table_rows(table, from, until - from);
      fine = window;
    }
    if (fine) memcpy(to + (size_t)wanted[i].place * bytes, window + (size_t)(wanted[i].row - from) * bytes, bytes);
  }
  free(wanted);
  return fine;
}
