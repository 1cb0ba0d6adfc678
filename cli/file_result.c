/* cli/file_result.c: where results go: a file, stdout as npy, or the terminal as text or JSON. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "json_out.h"

static int open_writer(result_sink *sink, const result_shape *shape)
{
  sheaf_io_output output = SHEAF_IO_OUTPUT_INIT;
  bool to_pipe = strcmp(sink->path, "-") == 0;
  if (!to_pipe && !ends_in(sink->path, ".npy") && !ends_in(sink->path, ".safetensors"))
    return cli_misused(sink->command, "'%s' names no format: it ends neither in .npy nor in .safetensors", sink->path);
  output.path = to_pipe ? NULL : sink->path;
  output.descriptor = STDOUT_FILENO;
  output.format = ends_in(sink->path, ".safetensors") ? SHEAF_IO_SAFETENSORS : SHEAF_IO_NPY;
  output.tensor = (sheaf_io_tensor){
      .name = shape->name && *shape->name ? shape->name : "table", .dtype = shape->dtype, .rank = shape->rank};
  memcpy(output.tensor.shape, shape->shape, sizeof output.tensor.shape);
  output.tensor.bytes = (size_t)sheaf_dtype_row_bytes(shape->dtype, 1);
  for (int i = 0; i < shape->rank; i++) {
    if (__builtin_mul_overflow(output.tensor.bytes, (size_t)shape->shape[i], &output.tensor.bytes)) {
      cli_complain(sink->command, "the result is larger than any file");
      return CLI_FAILED;
    }
  }
  output.metadata = shape->metadata;
  output.metadata_count = shape->metadata_count;
  if (to_pipe && isatty(STDOUT_FILENO)) return cli_misused(sink->command, "npy is no text; '-o -' is for pipes");
  cli_watch_signals();
  return sheaf_io_write_begin(&output, &sink->writer) == SHEAF_OK ? CLI_GO_ON : cli_failed(sink->command);
}

int result_open(result_sink *sink, const char *command, const char *path, int json, const result_shape *shape)
{
  *sink = (result_sink){.command = command, .path = path, .json = json, .dtype = shape->dtype};
  sink->dim = shape->rank ? shape->shape[shape->rank - 1] : 1;
  sink->row_bytes = sheaf_dtype_row_bytes(shape->dtype, sink->dim);
  if (path) return open_writer(sink, shape);
  if (json) sink->values = json_array();
  return CLI_GO_ON;
}

static void print_row(const result_sink *sink, const char *row)
{
  int digits = sink->dtype == SHEAF_F64 ? 17 : sink->dtype == SHEAF_F32 ? 9 : sink->dtype == SHEAF_F16 ? 5 : 4;
  for (int64_t d = 0; d < sink->dim; d++) printf("%s%.*g", d ? " " : "", digits, number_at(sink->dtype, row, d));
  putchar('\n');
}

/* A row as JSON: numbers; what is no number is null. */
static json_t *row_to_json(const result_sink *sink, const char *row)
{
  json_t *array = json_array();
  for (int64_t d = 0; d < sink->dim; d++) json_array_append_new(array, cli_json_real(number_at(sink->dtype, row, d)));
  return array;
}

bool result_append(result_sink *sink, const void *data, int64_t rows)
{
  const char *row = data;
  if (sink->writer) {
    if (rows == 0 || sheaf_io_write_append(sink->writer, data, (size_t)(rows * sink->row_bytes)) == SHEAF_OK)
      return true;
    cli_failed(sink->command);
    sink->failed = true;
    return false;
  }
  for (int64_t i = 0; i < rows; i++, row += sink->row_bytes) {
    if (sink->values)
      json_array_append_new(sink->values, row_to_json(sink, row));
    else
      print_row(sink, row);
  }
  return true;
}

int result_close(result_sink *sink, int code)
{
  bool keep = code == CLI_OK && !sink->failed;
  if (sink->writer && sheaf_io_write_end(sink->writer, keep) != SHEAF_OK) code = cli_failed(sink->command);
  sink->writer = NULL;
  return sink->failed ? CLI_FAILED : code;
}

/* ---- Reports ------------------------------------------------------------------------------------------------- */

bad_entries bad_entries_find(const int64_t *numbers, int64_t count, int64_t limit)
{
  bad_entries bad = {.limit = limit};
  for (int64_t i = 0; i < count; i++)
    if ((numbers[i] < 0 || numbers[i] >= limit) && bad.count++ == 0) bad.position = i, bad.value = numbers[i];
  return bad;
}

/* "indices: -7 at position 9 is outside 0..199; 2 such entries", after `before`. */
static void complain_of_bad(const bad_entries *bad, const char *command, const char *before, const char *what)
{
  char range[48] = "an empty range";
  if (bad->limit > 0) snprintf(range, sizeof range, "0..%lld", (long long)bad->limit - 1);
  cli_complain(command, "%s%s: %lld at position %lld is outside %s; %lld such entr%s", before, what,
               (long long)bad->value, (long long)bad->position, range, (long long)bad->count,
               bad->count == 1 ? "y" : "ies");
}

int bad_entries_refuse(const bad_entries *bad, const char *command, const char *what)
{
  if (bad->count == 0) return CLI_GO_ON;
  complain_of_bad(bad, command, "", what);
  return CLI_FAILED;
}

static json_t *report_to_json(const result_sink *sink, const result_shape *shape, const bad_entries *bad)
{
  json_t *extents = json_array();
  for (int i = 0; i < shape->rank; i++) json_array_append_new(extents, json_integer(shape->shape[i]));
  json_t *root = json_pack("{s:s, s:s, s:o, s:I}", "command", sink->command, "dtype", sheaf_dtype_name(shape->dtype),
                           "shape", extents, "bad_indices", (json_int_t)bad->count);
  if (bad->count) {
    json_object_set_new(root, "first_bad_position", json_integer(bad->position));
    json_object_set_new(root, "first_bad_index", json_integer(bad->value));
  }
  if (sink->path)
    json_object_set_new(root, "output", cli_json_text(sink->path));
  else
    json_object_set(root, "values", sink->values);
  return root;
}

int result_report(const result_sink *sink, const result_shape *shape, const bad_entries *bad, const char *what)
{
  FILE *stream = sink->path && strcmp(sink->path, "-") == 0 ? stderr : stdout;
  if (sink->json) return cli_print_json_to(sink->command, report_to_json(sink, shape, bad), stream);
  if (bad->count) complain_of_bad(bad, sink->command, "skipped ", what);
  int64_t rows = 1;
  for (int i = 0; i + 1 < shape->rank; i++) rows *= shape->shape[i];
  if (sink->path && stream == stdout)
    printf("%s: %lld row%s of %lld %s\n", cli_shown(sink->path), (long long)rows, rows == 1 ? "" : "s",
           (long long)shape->shape[shape->rank - 1], sheaf_dtype_name(shape->dtype));
  return CLI_OK;
}
