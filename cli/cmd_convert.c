/* cli/cmd_convert.c: `sheaf convert` and `sheaf dequantize`: a tensor in another type or format, window by window. */
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "json_out.h"

typedef struct conversion {
  const char *command, *text, *output;
  int to_choice, as, threads, quiet, json;
  int64_t dim;
  sheaf_dtype to;
  table_file table;
  int64_t rows, columns;       /* of the tensor; `table` goes through it number by number, unless rows are packed */
  int64_t changed, overflowed; /* numbers that are not what they were; that became infinite */
} conversion;

static const sheaf_dtype choices[] = {SHEAF_F32, SHEAF_F64, SHEAF_F16, SHEAF_BF16, SHEAF_I32, SHEAF_I64};

/* One share of a window; numbers that cannot be held make it fail. */
static bool convert_share(conversion *c, const char *rows, int64_t count, char *out, int64_t *changed,
                          int64_t *overflowed)
{
  int64_t numbers = count * c->table.dim;
  sheaf_dtype from = c->table.dtype;
  if (!is_float_dtype(from) && (from == SHEAF_INT8 || from == SHEAF_INT4)) {
    if (c->to == SHEAF_F32) return rows_to_f32(&c->table, rows, count, (float *)(void *)out);
    float *plain = malloc((size_t)numbers * sizeof *plain + 1);
    bool fine =
        plain && rows_to_f32(&c->table, rows, count, plain) && numbers_convert(SHEAF_F32, plain, c->to, out, numbers);
    free(plain);
    return fine;
  }
  if (!numbers_convert(from, rows, c->to, out, numbers)) return false;
  if (from == c->to) return true;
  for (int64_t i = 0; i < numbers; i++) {
    *changed += numbers_differ(from, rows, c->to, out, i);
    *overflowed += isinf(number_at(c->to, out, i)) && !isinf(number_at(from, rows, i));
  }
  return true;
}

static bool convert_window(conversion *c, const char *rows, int64_t count, char *out)
{
  int threads = c->threads ? c->threads : sheaf_threads();
  int64_t changed = 0, overflowed = 0, out_bytes = sheaf_dtype_row_bytes(c->to, c->table.dim);
  int failed = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : changed, overflowed) reduction(| : failed)
  for (int t = 0; t < threads; t++) {
    int64_t first = count * t / threads, last = count * (t + 1) / threads;
    failed |= !convert_share(c, rows + first * c->table.row_bytes, last - first, out + first * out_bytes, &changed,
                             &overflowed);
  }
  c->changed += changed;
  c->overflowed += overflowed;
  return !failed;
}

static int convert_all(conversion *c, result_sink *sink)
{
  int64_t window = table_window(&c->table), out_bytes = sheaf_dtype_row_bytes(c->to, c->table.dim);
  int64_t fitting = out_bytes ? window_bytes() / 4 / out_bytes : window;
  if (fitting < window) window = fitting > 0 ? fitting : 1;
  if (window > c->table.rows) window = c->table.rows > 0 ? c->table.rows : 1;
  long long bytes = window * out_bytes;
  char *out = aligned_alloc(64, (size_t)(bytes + 64) / 64 * 64);
  if (!out) {
    cli_complain(c->command, "%lld bytes of memory cannot be had", bytes);
    return CLI_FAILED;
  }
  cli_progress progress;
  cli_progress_begin(&progress, c->table.rows, c->table.row_bytes, c->quiet);
  int code = CLI_OK;
  for (int64_t first = 0; code == CLI_OK && first < c->table.rows; first += window) {
    int64_t count = c->table.rows - first < window ? c->table.rows - first : window;
    const char *rows = table_rows(&c->table, first, count);
    if (!rows) {
      code = CLI_FAILED;
    } else if (!convert_window(c, rows, count, out)) {
      cli_complain(c->command, "one of the numbers %lld to %lld of '%s' cannot be held by %s", (long long)first,
                   (long long)(first + count - 1), c->text, sheaf_dtype_name(c->to));
      code = CLI_FAILED;
    } else if (!result_append(sink, out, count)) {
      code = CLI_FAILED;
    } else if (!cli_progress_step(&progress, first + count)) {
      cli_complain(c->command, "interrupted; '%s' is what it was", c->output);
      code = CLI_FAILED;
    }
  }
  cli_progress_end(&progress);
  free(out);
  return code;
}

static int print_report(const conversion *c)
{
  FILE *stream = strcmp(c->output, "-") == 0 ? stderr : stdout;
  const char *from = sheaf_dtype_name(c->table.dtype), *to = sheaf_dtype_name(c->to);
  bool packed = c->table.dtype == SHEAF_INT8 || c->table.dtype == SHEAF_INT4;
  if (c->json && packed)
    return cli_print_json_to(c->command,
                             json_pack("{s:s, s:s, s:s, s:I, s:I, s:o}", "command", c->command, "from", from, "to", to,
                                       "rows", (json_int_t)c->rows, "columns", (json_int_t)c->columns, "output",
                                       cli_json_text(c->output)),
                             stream);
  if (c->json)
    return cli_print_json_to(c->command,
                             json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:o}", "command", c->command, "from", from,
                                       "to", to, "rows", (json_int_t)c->rows, "columns", (json_int_t)c->columns,
                                       "changed", (json_int_t)c->changed, "overflowed", (json_int_t)c->overflowed,
                                       "output", cli_json_text(c->output)),
                             stream);
  if (stream == stderr && c->quiet) return CLI_OK;
  fprintf(stream, "%s: %lld x %lld, %s to %s", cli_shown(c->output), (long long)c->rows, (long long)c->columns, from,
          to);
  if (!packed)
    fprintf(stream, "; %lld numbers changed, %lld became infinite", (long long)c->changed, (long long)c->overflowed);
  fputc('\n', stream);
  return CLI_OK;
}

static int run_conversion(conversion *c)
{
  const sheaf_io_tensor *tensor = c->table.tensor;
  bool packed = c->table.dtype == SHEAF_INT8 || c->table.dtype == SHEAF_INT4;
  result_shape shape = {.dtype = c->to, .rank = tensor->rank, .name = tensor->name};
  memcpy(shape.shape, tensor->shape, sizeof shape.shape);
  if (packed) shape.shape[1] = c->table.dim;
  char *key = note_key(tensor->name); /* bytes that are copied stay what the file says they are */
  sheaf_io_metadata note = {key, table_note(&c->table)};
  if (key && note.value && c->to == tensor->dtype) shape.metadata = &note, shape.metadata_count = 1;
  result_sink sink;
  int code = result_open(&sink, c->command, c->output, 0, &shape);
  free(key);
  if (code != CLI_GO_ON) return code;
  c->rows = c->table.rows;
  c->columns = c->table.dim;
  if (!packed) { /* windows and shares need not care how long rows are */
    c->table.rows *= c->table.dim;
    c->table.dim = sink.dim = 1;
    c->table.row_bytes = sheaf_dtype_row_bytes(c->table.dtype, 1);
    sink.row_bytes = sheaf_dtype_row_bytes(c->to, 1);
  }
  code = result_close(&sink, convert_all(c, &sink));
  return code == CLI_OK ? print_report(c) : code;
}

int cmd_convert(int argc, char **argv)
{
  conversion c = {.command = "convert", .to_choice = -1};
  const cli_option options[] = {{"--to", CLI_CHOICE, &c.to_choice}, {"--output", CLI_TEXT, &c.output}, WORK_OPTIONS(c)};
  const cli_syntax syntax = {"convert", options, CLI_LENGTH(options), &c.text, 1};
  int code = cli_parse(&syntax, argc, argv);
  if (code != CLI_GO_ON) return code;
  if (!c.text || !c.output) return cli_misused("convert", "a tensor and --output are needed");
  code = tensor_open(&c.table, "convert", c.text);
  if (code == CLI_GO_ON) {
    c.to = c.to_choice < 0 ? c.table.dtype : choices[c.to_choice];
    code = run_conversion(&c);
  }
  table_close(&c.table);
  return code;
}

int cmd_dequantize(int argc, char **argv)
{
  static const sheaf_dtype packed[] = {SHEAF_DTYPE_NONE, SHEAF_INT8, SHEAF_INT4};
  conversion c = {.command = "dequantize", .as = -1};
  const cli_option options[] = {
      {"--to", CLI_CHOICE, &c.to_choice}, {"--output", CLI_TEXT, &c.output}, PACKED_OPTIONS(c), WORK_OPTIONS(c)};
  const cli_syntax syntax = {"dequantize", options, CLI_LENGTH(options), &c.text, 1};
  int code = cli_parse(&syntax, argc, argv);
  if (code != CLI_GO_ON) return code;
  if (!c.text || !c.output) return cli_misused("dequantize", "a table and --output are needed");
  code = table_open(&c.table, "dequantize", c.text, packed[c.as + 1], c.dim);
  if (code == CLI_GO_ON && is_float_dtype(c.table.dtype)) {
    cli_complain("dequantize", "'%s' is of %s, not of packed rows (see --as)", c.text, sheaf_dtype_name(c.table.dtype));
    code = CLI_FAILED;
  }
  c.to = choices[c.to_choice];
  if (code == CLI_GO_ON) code = run_conversion(&c);
  table_close(&c.table);
  return code;
}
