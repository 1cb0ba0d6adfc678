/* cli/cmd_show.c: `sheaf show`: what is in a file: its tensors, or one tensor's statistics and first rows. */
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "json_out.h"

static const char command[] = "show";

/* Norms are counted by powers of 2^(1/4), from 2^-128 to 2^128; what lies outside goes to the ends. */
enum { MOST_BLOCKS = 64, NORM_BINS = 1024, NORMS_A_DOUBLING = 4, NORM_LOW = -128, SHOWN_BINS = 12, PART_ROWS = 2048 };

typedef struct column_block {
  int64_t count; /* of finite numbers, which the rest is about */
  double least, most, sum, squares;
} column_block;

typedef struct statistics {
  column_block blocks[MOST_BLOCKS];
  int64_t nan_rows, infinite_rows, zero_rows, nan_first, infinite_first, zero_first;
  int64_t norms[NORM_BINS]; /* of rows that are finite and not zero */
  double norm_least, norm_most, norm_sum;
} statistics;

typedef struct show {
  const char *text;
  int as, threads, quiet, json;
  int64_t dim, first_rows, block_count;
  table_file table;
} show;

/* ---- Collecting ---------------------------------------------------------------------------------------------- */

static void start(statistics *s)
{
  memset(s, 0, sizeof *s);
  s->nan_first = s->infinite_first = s->zero_first = -1;
  s->norm_least = INFINITY;
  for (int i = 0; i < MOST_BLOCKS; i++) s->blocks[i].least = INFINITY, s->blocks[i].most = -INFINITY;
}

static int bin_of(double norm)
{
  double bin = floor(NORMS_A_DOUBLING * (log2(norm) - NORM_LOW)); /* infinite, where the square of a norm is */
  return bin < 0 ? 0 : bin >= NORM_BINS ? NORM_BINS - 1 : (int)bin;
}

static void add_row(const show *w, statistics *s, const double *row, int64_t number)
{
  double squares = 0;
  bool nan = false, infinite = false;
  for (int64_t b = 0; b < w->block_count; b++) {
    column_block *block = &s->blocks[b];
    int64_t last = w->table.dim * (b + 1) / w->block_count;
    for (int64_t d = w->table.dim * b / w->block_count; d < last; d++) {
      double x = row[d];
      if (!isfinite(x)) {
        nan |= isnan(x) != 0;
        infinite |= isinf(x) != 0;
        continue;
      }
      block->count++;
      block->sum += x;
      block->squares += x * x;
      if (x < block->least) block->least = x;
      if (x > block->most) block->most = x;
      squares += x * x;
    }
  }
  if (nan && s->nan_rows++ == 0) s->nan_first = number;
  if (infinite && s->infinite_rows++ == 0) s->infinite_first = number;
  if (nan || infinite) return;
  if (squares == 0) { /* also rows whose squares underflow f64 */
    if (s->zero_rows++ == 0) s->zero_first = number;
    return;
  }
  double norm = sqrt(squares);
  s->norms[bin_of(norm)]++;
  s->norm_sum += norm;
  if (norm < s->norm_least) s->norm_least = norm;
  if (norm > s->norm_most) s->norm_most = norm;
}

static void earliest(int64_t *first, int64_t other)
{
  if (*first < 0 || (other >= 0 && other < *first)) *first = other;
}

static void join(statistics *to, const statistics *from)
{
  for (int b = 0; b < MOST_BLOCKS; b++) {
    to->blocks[b].count += from->blocks[b].count;
    to->blocks[b].sum += from->blocks[b].sum;
    to->blocks[b].squares += from->blocks[b].squares;
    if (from->blocks[b].least < to->blocks[b].least) to->blocks[b].least = from->blocks[b].least;
    if (from->blocks[b].most > to->blocks[b].most) to->blocks[b].most = from->blocks[b].most;
  }
  to->nan_rows += from->nan_rows;
  to->infinite_rows += from->infinite_rows;
  to->zero_rows += from->zero_rows;
  earliest(&to->nan_first, from->nan_first);
  earliest(&to->infinite_first, from->infinite_first);
  earliest(&to->zero_first, from->zero_first);
  for (int i = 0; i < NORM_BINS; i++) to->norms[i] += from->norms[i];
  to->norm_sum += from->norm_sum;
  if (from->norm_least < to->norm_least) to->norm_least = from->norm_least;
  if (from->norm_most > to->norm_most) to->norm_most = from->norm_most;
}

/* One part of fixed size: sums do not depend on threads. */
static bool collect_part(const show *w, const char *rows, int64_t first, int64_t count, statistics *s)
{
  bool packed = w->table.dtype == SHEAF_INT8 || w->table.dtype == SHEAF_INT4;
  double *row = malloc((size_t)w->table.dim * sizeof *row + 1);
  float *plain = malloc((size_t)w->table.dim * sizeof *plain + 1);
  bool fine = row && plain;
  start(s);
  for (int64_t i = 0; fine && i < count; i++) {
    const char *cells = rows + i * w->table.row_bytes;
    if (packed) fine = rows_to_f32(&w->table, cells, 1, plain);
    for (int64_t d = 0; fine && d < w->table.dim; d++)
      row[d] = packed ? (double)plain[d] : number_at(w->table.dtype, cells, d);
    if (fine) add_row(w, s, row, first + i);
  }
  free(row);
  free(plain);
  return fine;
}

static bool collect_window(const show *w, const char *rows, int64_t first, int64_t count, statistics *total)
{
  enum { AT_ONCE = 64 };
  statistics *parts = malloc(AT_ONCE * sizeof *parts);
  int failed = !parts;
  for (int64_t begin = 0; !failed && begin < count; begin += (int64_t)AT_ONCE * PART_ROWS) {
    int64_t left = (count - begin + PART_ROWS - 1) / PART_ROWS;
    int parts_here = left < AT_ONCE ? (int)left : AT_ONCE;
#pragma omp parallel for num_threads(w->threads ? w->threads : sheaf_threads()) schedule(dynamic) reduction(| : failed)
    for (int i = 0; i < parts_here; i++) {
      int64_t at = begin + (int64_t)i * PART_ROWS, here = count - at < PART_ROWS ? count - at : PART_ROWS;
      failed |= !collect_part(w, rows + at * w->table.row_bytes, first + at, here, &parts[i]);
    }
    for (int i = 0; !failed && i < parts_here; i++) join(total, &parts[i]);
  }
  free(parts);
  if (failed) cli_complain(command, "out of memory");
  return !failed;
}

static int collect(show *w, statistics *total)
{
  cli_progress progress;
  int64_t window = table_window(&w->table);
  int code = CLI_GO_ON;
  start(total);
  cli_progress_begin(&progress, w->table.rows, w->table.row_bytes, w->quiet);
  for (int64_t first = 0; code == CLI_GO_ON && first < w->table.rows; first += window) {
    int64_t count = w->table.rows - first < window ? w->table.rows - first : window;
    const char *rows = table_rows(&w->table, first, count);
    if (!rows || !collect_window(w, rows, first, count, total)) code = CLI_FAILED;
    if (!cli_progress_step(&progress, first + count)) {
      cli_complain(command, "interrupted");
      code = CLI_FAILED;
    }
  }
  cli_progress_end(&progress);
  return code;
}

/* ---- Printing ------------------------------------------------------------------------------------------------ */

static void print_shape(const sheaf_io_tensor *tensor, char *text, size_t room)
{
  size_t used = (size_t)snprintf(text, room, "[");
  for (int i = 0; i < tensor->rank && used < room; i++)
    used += (size_t)snprintf(text + used, room - used, "%s%lld", i ? ", " : "", (long long)tensor->shape[i]);
  if (used < room) snprintf(text + used, room - used, "]");
}

static json_t *shape_to_json(const sheaf_io_tensor *tensor)
{
  json_t *shape = json_array();
  for (int i = 0; i < tensor->rank; i++) json_array_append_new(shape, json_integer(tensor->shape[i]));
  return shape;
}

static const char *type_name(sheaf_dtype dtype)
{
  return dtype == SHEAF_DTYPE_NONE ? "other" : sheaf_dtype_name(dtype);
}

static int list_tensors(const show *w)
{
  int64_t count = sheaf_io_count(w->table.file);
  json_t *list = json_array();
  double bytes = 0;
  for (int64_t i = 0; i < count; i++) {
    const sheaf_io_tensor *tensor = sheaf_io_at(w->table.file, i);
    char shape[128];
    print_shape(tensor, shape, sizeof shape);
    bytes += (double)tensor->bytes;
    if (!w->json)
      printf("%-5s %-22s %10.2f MB  %s\n", type_name(tensor->dtype), shape, (double)tensor->bytes / 1e6,
             cli_shown(tensor->name));
    else
      json_array_append_new(list, json_pack("{s:o, s:s, s:o, s:I}", "name", cli_json_text(tensor->name), "dtype",
                                            type_name(tensor->dtype), "shape", shape_to_json(tensor), "bytes",
                                            (json_int_t)tensor->bytes));
  }
  if (w->json) return cli_print_json(command, json_pack("{s:o, s:o}", "file", cli_json_text(w->text), "tensors", list));
  json_decref(list);
  printf("%lld tensors, %.2f MB; 'sheaf show %s:NAME' looks into one\n", (long long)count, bytes / 1e6,
         cli_shown(w->text));
  return CLI_OK;
}

static double deviation(const column_block *block)
{
  double mean = block->sum / (double)block->count, square = block->squares / (double)block->count - mean * mean;
  return square > 0 ? sqrt(square) : square <= 0 ? 0 : NAN; /* NaN: of squares beyond f64 */
}

/* Bins `first` .. `last` that hold anything, and how many of them make one line. */
static int shown_bins(const statistics *s, int *first, int *last)
{
  *first = *last = -1;
  for (int i = 0; i < NORM_BINS; i++) {
    if (!s->norms[i]) continue;
    if (*first < 0) *first = i;
    *last = i;
  }
  return *first < 0 ? 1 : (*last - *first) / SHOWN_BINS + 1;
}

static double bin_edge(int bin) { return exp2((double)bin / NORMS_A_DOUBLING + NORM_LOW); }

static void print_norms(const statistics *s)
{
  int first, last, step = shown_bins(s, &first, &last);
  if (first < 0) return;
  int64_t most = 0, rows = 0, counts[SHOWN_BINS + 1] = {0};
  for (int i = first; i <= last; i++) counts[(i - first) / step] += s->norms[i], rows += s->norms[i];
  for (int i = 0; i <= SHOWN_BINS; i++) most = counts[i] > most ? counts[i] : most;
  printf("\nnorms of rows: least %.6g, mean %.6g, greatest %.6g\n", s->norm_least, s->norm_sum / (double)rows,
         s->norm_most);
  for (int i = 0; first + i * step <= last; i++)
    printf("  %10.4g to %-10.4g %12lld  %.*s\n", bin_edge(first + i * step), bin_edge(first + (i + 1) * step),
           (long long)counts[i], (int)(40 * counts[i] / most), "########################################");
}

static void print_rows_with(const char *what, int64_t count, int64_t first)
{
  printf("rows %-14s %lld", what, (long long)count);
  if (count) printf(", the first is %lld", (long long)first);
  putchar('\n');
}

static int print_first_rows(show *w)
{
  int64_t count = w->first_rows < w->table.rows ? w->first_rows : w->table.rows;
  for (int64_t i = 0; i < count; i++) {
    const char *cells = table_rows(&w->table, i, 1);
    float *plain = malloc((size_t)w->table.dim * sizeof *plain + 1);
    bool packed = w->table.dtype == SHEAF_INT8 || w->table.dtype == SHEAF_INT4;
    bool fine = cells && plain && (!packed || rows_to_f32(&w->table, cells, 1, plain));
    if (fine) printf("%srow %lld:", i ? "" : "\n", (long long)i);
    for (int64_t d = 0; fine && d < w->table.dim && d < 8; d++)
      printf(" %.6g", packed ? (double)plain[d] : number_at(w->table.dtype, cells, d));
    if (fine) puts(w->table.dim > 8 ? " ..." : "");
    free(plain);
    if (!fine) return CLI_FAILED;
  }
  return CLI_OK;
}

static int print_text(show *w, const statistics *s)
{
  char shape[128];
  print_shape(w->table.tensor, shape, sizeof shape);
  printf("%s: %s %s, %.2f MB\n", cli_shown(w->text), type_name(w->table.dtype), shape,
         (double)w->table.tensor->bytes / 1e6);
  if (w->table.dtype == SHEAF_INT8 || w->table.dtype == SHEAF_INT4)
    printf("packed rows of %lld columns\n", (long long)w->table.dim);
  print_rows_with("with NaN:", s->nan_rows, s->nan_first);
  print_rows_with("with infinity:", s->infinite_rows, s->infinite_first);
  print_rows_with("of zeros:", s->zero_rows, s->zero_first);
  printf("\n%-19s %12s %12s %12s %12s\n", "columns", "least", "mean", "greatest", "deviation");
  for (int64_t b = 0; b < w->block_count; b++) {
    const column_block *block = &s->blocks[b];
    char columns[48];
    snprintf(columns, sizeof columns, "%lld to %lld", (long long)(w->table.dim * b / w->block_count),
             (long long)(w->table.dim * (b + 1) / w->block_count - 1));
    if (block->count)
      printf("%-19s %12.6g %12.6g %12.6g %12.6g\n", columns, block->least, block->sum / (double)block->count,
             block->most, deviation(block));
    else
      printf("%-19s %12s %12s %12s %12s\n", columns, "-", "-", "-", "-");
  }
  print_norms(s);
  return print_first_rows(w);
}

static json_t *blocks_to_json(const show *w, const statistics *s)
{
  json_t *list = json_array();
  for (int64_t b = 0; b < w->block_count; b++) {
    const column_block *block = &s->blocks[b];
    json_t *item =
        json_pack("{s:I, s:I, s:I}", "first_column", (json_int_t)(w->table.dim * b / w->block_count), "last_column",
                  (json_int_t)(w->table.dim * (b + 1) / w->block_count - 1), "finite", (json_int_t)block->count);
    if (block->count)
      json_object_update_new(item, json_pack("{s:o, s:o, s:o, s:o}", "least", cli_json_real(block->least), "mean",
                                             cli_json_real(block->sum / (double)block->count), "greatest",
                                             cli_json_real(block->most), "deviation", cli_json_real(deviation(block))));
    json_array_append_new(list, item);
  }
  return list;
}

static json_t *norms_to_json(const statistics *s)
{
  json_t *list = json_array();
  for (int i = 0; i < NORM_BINS; i++)
    if (s->norms[i])
      json_array_append_new(list, json_pack("{s:f, s:f, s:I}", "from", bin_edge(i), "to", bin_edge(i + 1), "rows",
                                            (json_int_t)s->norms[i]));
  return list;
}

static int print_json(const show *w, const statistics *s)
{
  return cli_print_json(
      command, json_pack("{s:o, s:o, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "file", cli_json_text(w->text),
                         "name", cli_json_text(w->table.tensor->name), "dtype", type_name(w->table.dtype), "shape",
                         shape_to_json(w->table.tensor), "columns", (json_int_t)w->table.dim, "bytes",
                         (json_int_t)w->table.tensor->bytes, "nan_rows", (json_int_t)s->nan_rows, "infinite_rows",
                         (json_int_t)s->infinite_rows, "zero_rows", (json_int_t)s->zero_rows, "column_blocks",
                         blocks_to_json(w, s), "norms", norms_to_json(s)));
}

/* Packed rows count as what they stand for; any tensor is shown as rows of its last dimension. */
static int open_shown(show *w)
{
  static const sheaf_dtype packed[] = {SHEAF_DTYPE_NONE, SHEAF_INT8, SHEAF_INT4};
  int code = tensor_take(&w->table);
  return code == CLI_GO_ON ? table_take(&w->table, packed[w->as + 1], w->dim, false) : code;
}

static int show_one(show *w)
{
  int code = open_shown(w);
  if (code != CLI_GO_ON) return code;
  if (w->block_count > w->table.dim) w->block_count = w->table.dim;
  statistics *s = malloc(sizeof *s);
  if (!s) {
    cli_complain(command, "out of memory");
    return CLI_FAILED;
  }
  code = collect(w, s);
  if (code == CLI_GO_ON) code = w->json ? print_json(w, s) : print_text(w, s);
  free(s);
  return code;
}

int cmd_show(int argc, char **argv)
{
  show w = {.as = -1, .first_rows = 3, .block_count = 4};
  const cli_option options[] = {{"--rows", CLI_NUMBER, &w.first_rows},
                                {"--blocks", CLI_COUNT, &w.block_count},
                                PACKED_OPTIONS(w),
                                WORK_OPTIONS(w)};
  const cli_syntax syntax = {command, options, CLI_LENGTH(options), &w.text, 1};
  int code = cli_parse(&syntax, argc, argv);
  if (code != CLI_GO_ON) return code;
  if (!w.text) return cli_misused(command, "no file is given");
  if (w.block_count > MOST_BLOCKS) return cli_misused(command, "--blocks takes a number from 1 to %d", MOST_BLOCKS);
  code = file_open(&w.table, command, w.text);
  if (code == CLI_GO_ON) code = w.table.tensor ? show_one(&w) : list_tensors(&w);
  table_close(&w.table);
  return code;
}
