/* cli/cmd_quantize.c: `sheaf quantize`: packs the rows of a table as int8 or int4 and measures what that costs. */
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "json_out.h"

static const char command[] = "quantize";

typedef struct packing {
  const char *text, *output;
  int to_choice, threads, quiet, json;
  sheaf_dtype to;
  table_file table;
  int64_t packed_bytes; /* of a row */
} packing;

/* What reading the packed rows back shows. Sums of fixed blocks are added in order: no result depends on threads. */
typedef struct packing_error {
  double square, value_square; /* sums over all numbers: of the error, of the value */
  double most;                 /* the largest error */
  int64_t most_row;
  double cosine;     /* sum over rows of the cosine between before and after; rows of zeros count as 1 */
  char fault[256];   /* "holds inf in column 3; ...", what is wrong with */
  int64_t fault_row; /* -1: none */
} packing_error;

enum { BLOCK_ROWS = 1024 };

static DLTensor matrix(void *data, sheaf_dtype dtype, int64_t *shape)
{
  return (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = 2, .dtype = sheaf_dtype_to_dl(dtype), .shape = shape};
}

/* Rows are finite, but their range may be beyond what scale and bias can hold; then they cannot be read back. */
static void note_lost(const packing *p, const float *before, int64_t row, packing_error *error)
{
  float least = before[0], most = before[0];
  for (int64_t d = 1; d < p->table.dim; d++) {
    least = before[d] < least ? before[d] : least;
    most = before[d] > most ? before[d] : most;
  }
  error->fault_row = row;
  snprintf(error->fault, sizeof error->fault, "ranges from %g to %g, which %s rows cannot hold", (double)least,
           (double)most, sheaf_dtype_name(p->to));
}

static void measure_row(const packing *p, const float *before, const float *after, int64_t row, packing_error *error)
{
  double dot = 0, own = 0, other = 0;
  int64_t dim = p->table.dim;
  for (int64_t d = 0; d < dim; d++) {
    double x = (double)before[d], y = (double)after[d], gap = fabs(x - y);
    if (!isfinite(y)) {
      if (error->fault_row < 0) note_lost(p, before, row, error);
      return;
    }
    error->square += gap * gap;
    own += x * x;
    other += y * y;
    dot += x * y;
    if (gap > error->most) error->most = gap, error->most_row = row;
  }
  error->value_square += own;
  error->cosine += own > 0 && other > 0 ? dot / sqrt(own * other) : own == other ? 1 : 0;
}

/* Packs rows and reads them back. */
static void pack_block(const packing *p, const char *rows, int64_t first, int64_t count, char *packed,
                       packing_error *error)
{
  int64_t dim = p->table.dim, plain_shape[2] = {count, dim}, packed_shape[2] = {count, p->packed_bytes};
  float *before = malloc((size_t)(count * dim) * 2 * sizeof *before + 1), *after = before ? before + count * dim : NULL;
  *error = (packing_error){.fault_row = -1};
  DLTensor plain = matrix(before, SHEAF_F32, plain_shape), bytes = matrix(packed, SHEAF_U8, packed_shape);
  sheaf_operand plain_operand = {&plain, 0}, packed_operand = {&bytes, 0};
  bool fine = before && rows_to_f32(&p->table, rows, count, before) &&
              sheaf_quantize_rows(p->to, &plain_operand, &packed_operand) == SHEAF_OK;
  plain.data = after;
  fine = fine && sheaf_dequantize_rows(p->to, &packed_operand, &plain_operand) == SHEAF_OK;
  if (!fine) {
    int64_t row = sheaf_last_error_info().position;
    const char *place =
        before ? strstr(sheaf_last_error(), "holds ") : NULL; /* the library counts from the block's start */
    error->fault_row = first + (before && row >= 0 ? row : 0);
    snprintf(error->fault, sizeof error->fault, "%s",
             place    ? place
             : before ? "cannot be packed"
                      : "needs more memory");
  }
  for (int64_t i = 0; fine && i < count; i++) measure_row(p, before + i * dim, after + i * dim, first + i, error);
  free(before);
}

static void add_error(packing_error *total, const packing_error *part)
{
  if (total->fault_row < 0 && part->fault_row >= 0) {
    total->fault_row = part->fault_row;
    memcpy(total->fault, part->fault, sizeof total->fault);
  }
  total->square += part->square;
  total->value_square += part->value_square;
  total->cosine += part->cosine;
  if (part->most > total->most) total->most = part->most, total->most_row = part->most_row;
}

static bool pack_window(const packing *p, const char *rows, int64_t first, int64_t count, char *packed,
                        packing_error *total)
{
  int64_t blocks = (count + BLOCK_ROWS - 1) / BLOCK_ROWS;
  packing_error *errors = calloc((size_t)blocks + 1, sizeof *errors);
  if (!errors) {
    cli_complain(command, "out of memory");
    return false;
  }
#pragma omp parallel for num_threads(p->threads ? p->threads : sheaf_threads()) schedule(dynamic)
  for (int64_t b = 0; b < blocks; b++) {
    int64_t begin = b * BLOCK_ROWS, rows_here = count - begin < BLOCK_ROWS ? count - begin : BLOCK_ROWS;
    pack_block(p, rows + begin * p->table.row_bytes, first + begin, rows_here, packed + begin * p->packed_bytes,
               &errors[b]);
  }
  for (int64_t b = 0; b < blocks; b++) add_error(total, &errors[b]);
  free(errors);
  if (total->fault_row < 0) return true;
  cli_complain(command, "'%s': row %lld %s", p->text, (long long)total->fault_row, total->fault);
  return false;
}

static int pack_all(packing *p, result_sink *sink, packing_error *total)
{
  int64_t window = table_window(&p->table);
  if (window > p->table.rows) window = p->table.rows > 0 ? p->table.rows : 1;
  long long bytes = window * p->packed_bytes;
  char *packed = malloc((size_t)bytes + 1);
  if (!packed) {
    cli_complain(command, "%lld bytes of memory cannot be had", bytes);
    return CLI_FAILED;
  }
  cli_progress progress;
  cli_progress_begin(&progress, p->table.rows, p->table.row_bytes, p->quiet);
  int code = CLI_OK;
  for (int64_t first = 0; code == CLI_OK && first < p->table.rows; first += window) {
    int64_t count = p->table.rows - first < window ? p->table.rows - first : window;
    const char *rows = table_rows(&p->table, first, count);
    bool fine = rows && pack_window(p, rows, first, count, packed, total);
    if (fine && p->output) fine = result_append(sink, packed, count);
    if (fine && !cli_progress_step(&progress, first + count)) {
      cli_complain(command, "interrupted");
      fine = false;
    }
    if (!fine) code = CLI_FAILED;
  }
  cli_progress_end(&progress);
  free(packed);
  return code;
}

static int print_report(const packing *p, const packing_error *error)
{
  FILE *stream = p->output && strcmp(p->output, "-") == 0 ? stderr : stdout;
  double numbers = (double)p->table.rows * (double)p->table.dim;
  double before = (double)p->table.rows * (double)p->table.row_bytes;
  double after = (double)p->table.rows * (double)p->packed_bytes;
  double rms = numbers > 0 ? sqrt(error->square / numbers) : 0;
  double relative = error->value_square > 0 ? sqrt(error->square / error->value_square) : 0;
  double cosine = p->table.rows > 0 ? error->cosine / (double)p->table.rows : 1;
  if (p->json) {
    json_t *root = json_pack(
        "{s:o, s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:I, s:f}", "table", cli_json_text(p->text), "from",
        sheaf_dtype_name(p->table.dtype), "to", sheaf_dtype_name(p->to), "rows", (json_int_t)p->table.rows, "columns",
        (json_int_t)p->table.dim, "bytes_before", before, "bytes_after", after, "error_rms", rms, "error_relative",
        relative, "error_max", error->most, "error_max_row", (json_int_t)error->most_row, "cosine_mean", cosine);
    if (root && p->output) json_object_set_new(root, "output", cli_json_text(p->output));
    return cli_print_json_to(command, root, stream);
  }
  if (stream == stderr && p->quiet) return CLI_OK;
  fprintf(stream, "%s: %lld rows of %lld %s to %s\n", cli_shown(p->text), (long long)p->table.rows,
          (long long)p->table.dim, sheaf_dtype_name(p->table.dtype), sheaf_dtype_name(p->to));
  fprintf(stream, "size    %.2f MB to %.2f MB, %.2f times smaller\n", before / 1e6, after / 1e6,
          after > 0 ? before / after : 1);
  fprintf(stream, "error   rms %.4g, which is %.3g %% of the values' rms; largest %.4g, in row %lld\n", rms,
          100 * relative, error->most, (long long)error->most_row);
  fprintf(stream, "cosine  %.6f between a row and itself read back, on average\n", cosine);
  if (p->output && stream == stdout) printf("written to %s\n", cli_shown(p->output));
  return CLI_OK;
}

/* The file says what its bytes are, so that other commands need not be told. */
static int open_output(const packing *p, result_sink *sink)
{
  const char *name = p->table.tensor->name && *p->table.tensor->name ? p->table.tensor->name : "table";
  char note[48], *key = note_key(name);
  if (!key) {
    cli_complain(command, "out of memory");
    return CLI_FAILED;
  }
  snprintf(note, sizeof note, "%s %lld", sheaf_dtype_name(p->to), (long long)p->table.dim);
  sheaf_io_metadata metadata = {key, note};
  result_shape shape = {.dtype = SHEAF_U8,
                        .rank = 2,
                        .shape = {p->table.rows, p->packed_bytes},
                        .name = name,
                        .metadata = &metadata,
                        .metadata_count = 1};
  int code = result_open(sink, command, p->output, 0, &shape);
  free(key);
  return code;
}

int cmd_quantize(int argc, char **argv)
{
  packing p = {0};
  const cli_option options[] = {{"--to", CLI_CHOICE, &p.to_choice}, {"--output", CLI_TEXT, &p.output}, WORK_OPTIONS(p)};
  const cli_syntax syntax = {command, options, CLI_LENGTH(options), &p.text, 1};
  int code = cli_parse(&syntax, argc, argv);
  if (code != CLI_GO_ON) return code;
  if (!p.text) return cli_misused(command, "no table is given");
  p.to = p.to_choice ? SHEAF_INT4 : SHEAF_INT8;
  result_sink sink = {0};
  packing_error error = {.fault_row = -1};
  code = table_open(&p.table, command, p.text, SHEAF_DTYPE_NONE, 0);
  if (code == CLI_GO_ON && !is_float_dtype(p.table.dtype)) {
    cli_complain(command, "'%s' is of packed rows already", p.text);
    code = CLI_FAILED;
  }
  if (code == CLI_GO_ON) {
    p.packed_bytes = sheaf_dtype_row_bytes(p.to, p.table.dim);
    if (p.output) code = open_output(&p, &sink);
  }
  if (code == CLI_GO_ON) {
    code = result_close(&sink, pack_all(&p, &sink, &error));
    if (code == CLI_OK) code = print_report(&p, &error);
  }
  table_close(&p.table);
  return code;
}
