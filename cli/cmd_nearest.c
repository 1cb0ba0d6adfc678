/* cli/cmd_nearest.c: `sheaf nearest`: the rows of a table in a file that are nearest to one of them, or to a vector. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "json_out.h"
#include "row_names.h"

typedef struct search {
  const char *table_text, *row_text, *query_path, *names_path;
  int metric, as, threads, quiet, json;
  int64_t count, dim;
  table_file table;
  row_names names;
  int64_t row; /* the query's own, -1 for none */
  void *query; /* f32, or f64 of f64 tables */
  sheaf_neighbour *best;
  int64_t found;
} search;

static const char command[] = "nearest";

static int find_row(search *s)
{
  char *end;
  errno = 0;
  long long number = strtoll(s->row_text, &end, 10);
  bool is_number = end != s->row_text && !*end && !errno;
  s->row = is_number ? number : -1;
  if (!is_number || (s->names_path && number < 0)) s->row = row_names_find(&s->names, s->row_text);
  if (!is_number && s->row < 0) {
    if (s->names_path)
      cli_complain(command, "no row is named '%s' in '%s'", s->row_text, s->names_path);
    else
      cli_complain(command, "--row is '%s', which is no number (names need --names)", s->row_text);
    return CLI_FAILED;
  }
  if (s->row >= 0 && s->row < s->table.rows) return CLI_GO_ON;
  long long wanted = is_number ? number : (long long)s->row;
  if (s->table.rows == 0)
    cli_complain(command, "there is no row %lld: the table has no rows", wanted);
  else
    cli_complain(command, "row %lld is outside 0..%lld", wanted, (long long)s->table.rows - 1);
  return CLI_FAILED;
}

static int read_query(search *s)
{
  bool wide = s->table.dtype == SHEAF_F64;
  s->query = calloc((size_t)s->table.dim + 1, wide ? 8 : 4);
  if (!s->query) {
    cli_complain(command, "out of memory");
    return CLI_FAILED;
  }
  if (s->row >= 0) {
    const char *row = table_rows(&s->table, s->row, 1);
    if (!row) return CLI_FAILED;
    if (wide)
      memcpy(s->query, row, (size_t)s->table.row_bytes);
    else if (!rows_to_f32(&s->table, row, 1, s->query))
      return cli_failed(command);
    return CLI_GO_ON;
  }
  whole_operand vector;
  int code = operand_open(&vector, command, s->query_path, false);
  if (code == CLI_GO_ON && (vector.count != s->table.dim || !is_float_dtype(vector.dtype))) {
    cli_complain(command, "'%s' has %lld numbers of %s; the table has %lld columns", s->query_path,
                 (long long)vector.count, sheaf_dtype_name(vector.dtype), (long long)s->table.dim);
    code = CLI_FAILED;
  }
  if (code == CLI_GO_ON)
    numbers_convert(vector.dtype, vector.data, wide ? SHEAF_F64 : SHEAF_F32, s->query, s->table.dim);
  operand_close(&vector);
  return code;
}

static bool search_window(search *s, int64_t first, int64_t rows)
{
  const char *data = table_rows(&s->table, first, rows);
  if (!data) return false;
  bool packed = !is_float_dtype(s->table.dtype), wide = s->table.dtype == SHEAF_F64;
  int64_t shape[2] = {rows, packed ? s->table.row_bytes : s->table.dim};
  DLTensor table = {.data = (void *)data, .device = {kDLCPU, 0}, .ndim = 2, .shape = shape};
  table.dtype = sheaf_dtype_to_dl(s->table.dtype);
  DLTensor query = {.data = s->query, .device = {kDLCPU, 0}, .ndim = 1, .shape = &s->table.dim};
  query.dtype = sheaf_dtype_to_dl(wide ? SHEAF_F64 : SHEAF_F32);
  sheaf_operand rows_operand = {&table, 0}, query_operand = {&query, 0};
  sheaf_nearest_desc desc = SHEAF_NEAREST_DESC_INIT;
  desc.metric = (sheaf_metric)s->metric;
  desc.dtype = s->table.dtype;
  desc.rows = rows;
  desc.dim = s->table.dim;
  desc.k = s->count;
  desc.first_row = first;
  desc.has_excluded = s->row >= 0;
  desc.excluded = s->row;
  desc.threads = s->threads;
  if (sheaf_nearest(&desc, &rows_operand, &query_operand, s->best, &s->found) == SHEAF_OK) return true;
  cli_failed(command);
  return false;
}

static int search_table(search *s)
{
  if (s->count > s->table.rows) s->count = s->table.rows > 0 ? s->table.rows : 1;
  s->best = calloc((size_t)s->count, sizeof *s->best);
  if (!s->best) {
    cli_complain(command, "out of memory for %lld rows", (long long)s->count);
    return CLI_FAILED;
  }
  cli_progress progress;
  cli_progress_begin(&progress, s->table.rows, s->table.row_bytes, s->quiet);
  int code = CLI_GO_ON;
  int64_t window = table_window(&s->table);
  for (int64_t first = 0; code == CLI_GO_ON && first < s->table.rows; first += window) {
    int64_t rows = s->table.rows - first < window ? s->table.rows - first : window;
    if (!search_window(s, first, rows)) code = CLI_FAILED;
    if (!cli_progress_step(&progress, first + rows)) {
      cli_complain(command, "interrupted");
      code = CLI_FAILED;
    }
  }
  cli_progress_end(&progress);
  return code;
}

static int print_json(const search *s)
{
  json_t *list = json_array();
  for (int64_t i = 0; i < s->found; i++) {
    double score = s->best[i].score;
    const char *name = row_names_at(&s->names, s->best[i].row);
    json_t *item = json_pack("{s:I, s:o}", "row", (json_int_t)s->best[i].row, "score", cli_json_real(score));
    if (name) json_object_set_new(item, "name", cli_json_text(name));
    json_array_append_new(list, item);
  }
  json_t *root =
      json_pack("{s:o, s:s, s:I, s:I, s:s, s:o}", "table", cli_json_text(s->table_text), "dtype",
                sheaf_dtype_name(s->table.dtype), "rows", (json_int_t)s->table.rows, "columns",
                (json_int_t)s->table.dim, "metric", sheaf_metric_name((sheaf_metric)s->metric), "nearest", list);
  if (s->row >= 0) json_object_set_new(root, "row", json_integer(s->row));
  return cli_print_json(command, root);
}

static int print_text(const search *s)
{
  const char *own = s->row >= 0 ? row_names_at(&s->names, s->row) : NULL;
  printf("%s: %lld rows of %lld %s; nearest to ", cli_shown(s->table_text), (long long)s->table.rows,
         (long long)s->table.dim, sheaf_dtype_name(s->table.dtype));
  if (s->row >= 0)
    printf("row %lld%s%s by ", (long long)s->row, own ? " " : "", own ? cli_shown(own) : "");
  else
    printf("%s by ", cli_shown(s->query_path));
  printf("%s\n%4s %10s  %12s%s\n", sheaf_metric_name((sheaf_metric)s->metric), "", "row", "score",
         s->names_path ? "  name" : "");
  for (int64_t i = 0; i < s->found; i++) {
    const char *name = row_names_at(&s->names, s->best[i].row);
    printf("%4lld %10lld  %12.9g%s%s\n", (long long)i + 1, (long long)s->best[i].row, s->best[i].score,
           name ? "  " : "", name ? cli_shown(name) : "");
  }
  return CLI_OK;
}

int cmd_nearest(int argc, char **argv)
{
  static const sheaf_dtype packed[] = {SHEAF_DTYPE_NONE, SHEAF_INT8, SHEAF_INT4};
  search s = {.count = 10, .as = -1, .row = -1};
  const cli_option options[] = {{"--row", CLI_TEXT, &s.row_text},
                                {"--query", CLI_TEXT, &s.query_path},
                                {"--count", CLI_COUNT, &s.count},
                                {"--metric", CLI_CHOICE, &s.metric},
                                {"--names", CLI_TEXT, &s.names_path},
                                PACKED_OPTIONS(s),
                                WORK_OPTIONS(s)};
  const cli_syntax syntax = {command, options, CLI_LENGTH(options), &s.table_text, 1};
  int code = cli_parse(&syntax, argc, argv);
  if (code != CLI_GO_ON) return code;
  if (!s.table_text) return cli_misused(command, "no table is given");
  if (s.row_text && s.query_path)
    return cli_misused(command, "--row and --query are both given; one of them is needed");
  if (!s.row_text && !s.query_path) return cli_misused(command, "either --row or --query is needed");
  code = table_open(&s.table, command, s.table_text, packed[s.as + 1], s.dim);
  if (code == CLI_GO_ON && s.names_path) code = row_names_read(&s.names, command, s.names_path);
  if (code == CLI_GO_ON && s.row_text) code = find_row(&s);
  if (code == CLI_GO_ON) code = read_query(&s);
  if (code == CLI_GO_ON) code = search_table(&s);
  if (code == CLI_GO_ON) code = s.json ? print_json(&s) : print_text(&s);
  free(s.best);
  free(s.query);
  row_names_free(&s.names);
  table_close(&s.table);
  return code;
}
