/* cli/cmd_segment.c: `sheaf segment`: rows of a file reduced by id, forward and backward.
 *
 * Rows are listed by segment, each list in increasing row number; a block of whole segments is gathered into memory and
 * reduced as sorted rows, which gives the bits of the whole. Backward, rows that lie in the order of their segments are
 * written block by block; otherwise the gradient is put together in memory. */
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "json_out.h"

static const char command[] = "segment";

typedef struct segments {
  const char *words[2], *output, *grad_path, *device;
  int mode, empty, ties, refuse_bad, threads, quiet, json;
  int64_t count; /* of segments; 0: found from the ids */
  table_file data;
  whole_operand ids_operand, grad;
  int64_t *ids, *order, *starts; /* order: rows by segment; starts: count + 1 places in it */
  bool in_order;                 /* order is 0, 1, 2 ... */
  run_place place;
  bad_entries bad;
} segments;

static int no_memory(int64_t bytes)
{
  cli_complain(command, "%lld bytes of memory cannot be had", (long long)bytes);
  return CLI_FAILED;
}

static bool is_bad(const segments *s, int64_t id) { return id < 0 || id >= s->count; }

static int check_ids(segments *s)
{
  if (s->ids_operand.count != s->data.rows) {
    cli_complain(command, "'%s' has %lld ids for %lld rows", s->words[1], (long long)s->ids_operand.count,
                 (long long)s->data.rows);
    return CLI_FAILED;
  }
  bool given = s->count > 0;
  for (int64_t i = 0; !given && i < s->data.rows; i++)
    if (s->ids[i] >= s->count && s->ids[i] < INT64_MAX) s->count = s->ids[i] + 1;
  s->bad = bad_entries_find(s->ids, s->data.rows, s->count);
  return s->refuse_bad ? bad_entries_refuse(&s->bad, command, "ids") : CLI_GO_ON;
}

static int list_rows(segments *s)
{
  if (s->count > (int64_t)1 << 40) {
    cli_complain(command, "%lld segments are more than can be listed", (long long)s->count);
    return CLI_FAILED;
  }
  s->starts = calloc((size_t)s->count + 2, sizeof *s->starts);
  s->order = calloc((size_t)s->data.rows + 1, sizeof *s->order);
  if (!s->starts || !s->order) return no_memory(8 * (s->count + s->data.rows));
  for (int64_t i = 0; i < s->data.rows; i++)
    if (!is_bad(s, s->ids[i])) s->starts[s->ids[i] + 2]++;
  for (int64_t i = 2; i <= s->count + 1; i++) s->starts[i] += s->starts[i - 1];
  for (int64_t i = 0; i < s->data.rows; i++) /* afterwards every start has moved to where its list ends */
    if (!is_bad(s, s->ids[i])) s->order[s->starts[s->ids[i] + 1]++] = i;
  s->in_order = s->bad.count == 0;
  for (int64_t i = 0; s->in_order && i < s->data.rows; i++) s->in_order = s->order[i] == i;
  return CLI_GO_ON;
}

static int open_operands(segments *s)
{
  int code = run_place_of(command, s->device, s->threads, &s->place);
  if (code == CLI_GO_ON) code = table_open(&s->data, command, s->words[0], SHEAF_DTYPE_NONE, 0);
  if (code == CLI_GO_ON && !is_float_dtype(s->data.dtype)) {
    cli_complain(command, "'%s' holds packed rows; 'sheaf dequantize' unpacks them", s->words[0]);
    code = CLI_FAILED;
  }
  if (code == CLI_GO_ON) code = operand_indices(command, "ids", s->words[1], &s->ids_operand, &s->ids);
  if (code == CLI_GO_ON) code = check_ids(s);
  if (code == CLI_GO_ON) code = list_rows(s);
  if (code != CLI_GO_ON || !s->grad_path) return code;
  if ((code = operand_open(&s->grad, command, s->grad_path, false)) != CLI_GO_ON) return code;
  if (s->grad.rank == 2 && s->grad.shape[0] == s->count && s->grad.shape[1] == s->data.dim) return CLI_GO_ON;
  cli_complain(command, "'%s' has %lld numbers; the gradient of %lld segments of %lld columns is wanted", s->grad_path,
               (long long)s->grad.count, (long long)s->count, (long long)s->data.dim);
  return CLI_FAILED;
}

/* ---- One block of segments ----------------------------------------------------------------------------------- */

typedef struct segment_block {
  char *rows, *out; /* out: segments forward, rows backward */
  int64_t *ids;
} segment_block;

static sheaf_segment_desc describe(const segments *s, bool backward)
{
  static const sheaf_segment_kind kinds[][2] = {{SHEAF_SEGMENT_SUM, SHEAF_SEGMENT_SUM_BACKWARD},
                                                {SHEAF_SEGMENT_MEAN, SHEAF_SEGMENT_MEAN_BACKWARD},
                                                {SHEAF_SEGMENT_MAX, SHEAF_SEGMENT_MAX_BACKWARD},
                                                {SHEAF_SEGMENT_MIN, SHEAF_SEGMENT_MIN_BACKWARD},
                                                {SHEAF_SEGMENT_PROD, SHEAF_SEGMENT_PROD_BACKWARD}};
  sheaf_segment_desc desc = SHEAF_SEGMENT_DESC_INIT;
  desc.kind = kinds[s->mode][backward];
  desc.dtype = s->data.dtype;
  desc.index_dtype = SHEAF_I64;
  desc.dim = s->data.dim;
  desc.empty = (sheaf_empty)s->empty;
  desc.ties = (sheaf_ties)s->ties;
  return desc;
}

static bool run_block(segments *s, segment_block *block, int64_t first, int64_t last)
{
  bool backward = s->grad_path;
  int64_t begin = s->starts[first], rows = s->starts[last] - begin;
  sheaf_segment_desc desc = describe(s, backward);
  desc.rows = rows;
  desc.segments = last - first;
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  run_operand operands[RUN_OPERANDS] = {{&args.data, block->rows, s->data.dtype, rows, s->data.dim, false},
                                        {&args.ids, block->ids, SHEAF_I64, rows, -1, false}};
  int count = 2;
  if (backward) {
    char *grad = (char *)s->grad.data + first * sheaf_dtype_row_bytes(s->grad.dtype, s->data.dim);
    operands[count++] = (run_operand){&args.grad_out, grad, s->grad.dtype, last - first, s->data.dim, false};
    operands[count++] = (run_operand){&args.data_grad, block->out, s->data.dtype, rows, s->data.dim, true};
  } else {
    operands[count++] = (run_operand){&args.out, block->out, s->data.dtype, last - first, s->data.dim, true};
  }
  if (run_segment(&s->place, &desc, &args, operands, count) == SHEAF_OK) return true;
  cli_failed(command);
  return false;
}

static bool do_block(segments *s, segment_block *block, int64_t first, int64_t last)
{
  int64_t begin = s->starts[first], rows = s->starts[last] - begin, bytes = s->data.row_bytes;
  block->rows = rows_memory(rows, bytes);
  block->out = rows_memory(s->grad_path ? rows : last - first, bytes);
  block->ids = malloc(((size_t)rows + 1) * sizeof *block->ids);
  if (!block->rows || !block->out || !block->ids) {
    no_memory(2 * rows * bytes);
    return false;
  }
  for (int64_t segment = first; segment < last; segment++)
    for (int64_t i = s->starts[segment]; i < s->starts[segment + 1]; i++) block->ids[i - begin] = segment - first;
  return table_gather(&s->data, s->order + begin, rows, block->rows) && run_block(s, block, first, last);
}

/* As many segments as a quarter of a window holds, at least one. */
static int64_t end_of_block(const segments *s, int64_t first)
{
  double limit = (double)window_bytes() / 4, bytes = (double)s->data.row_bytes;
  int64_t last = first + 1;
  while (last < s->count && (double)(s->starts[last + 1] - s->starts[first]) * bytes <= limit &&
         (double)(last + 1 - first) * bytes <= limit)
    last++;
  return last;
}

/* ---- All of them --------------------------------------------------------------------------------------------- */

/* The gradient of rows that are not in order of their segments; bad ones get zeros. */
static void place_rows(const segments *s, const segment_block *block, int64_t first, int64_t last, char *all)
{
  int64_t begin = s->starts[first], bytes = s->data.row_bytes;
  for (int64_t i = begin; i < s->starts[last]; i++)
    memcpy(all + s->order[i] * bytes, block->out + (i - begin) * bytes, (size_t)bytes);
}

static int run_blocks(segments *s, result_sink *sink)
{
  char *all = NULL;
  if (s->grad_path && !s->in_order) {
    all = rows_memory(s->data.rows, s->data.row_bytes);
    if (!all) return no_memory(s->data.rows * s->data.row_bytes);
    memset(all, 0, (size_t)(s->data.rows * s->data.row_bytes));
  }
  cli_progress progress;
  cli_progress_begin(&progress, s->data.rows, s->data.row_bytes, s->quiet);
  int code = CLI_OK;
  for (int64_t first = 0, last; code == CLI_OK && first < s->count; first = last) {
    last = end_of_block(s, first);
    segment_block block = {0};
    bool fine = do_block(s, &block, first, last);
    if (fine && all)
      place_rows(s, &block, first, last, all);
    else if (fine)
      fine = result_append(sink, block.out, s->grad_path ? s->starts[last] - s->starts[first] : last - first);
    free(block.rows);
    free(block.out);
    free(block.ids);
    if (fine && !cli_progress_step(&progress, s->starts[last])) {
      cli_complain(command, "interrupted");
      fine = false;
    }
    if (!fine) code = CLI_FAILED;
  }
  cli_progress_end(&progress);
  if (code == CLI_OK && all && !result_append(sink, all, s->data.rows)) code = CLI_FAILED;
  free(all);
  return code;
}

int cmd_segment(int argc, char **argv)
{
  segments s = {.device = "cpu", .refuse_bad = 1};
  const cli_option options[] = {{"--output", CLI_TEXT, &s.output},
                                {"--mode", CLI_CHOICE, &s.mode},
                                {"--segments", CLI_COUNT, &s.count},
                                {"--grad", CLI_TEXT, &s.grad_path},
                                {"--empty", CLI_CHOICE, &s.empty},
                                {"--ties", CLI_CHOICE, &s.ties},
                                {"--bad-index", CLI_CHOICE, &s.refuse_bad},
                                {"--device", CLI_TEXT, &s.device},
                                WORK_OPTIONS(s)};
  const cli_syntax syntax = {command, options, CLI_LENGTH(options), s.words, 2};
  int code = cli_parse(&syntax, argc, argv);
  if (code != CLI_GO_ON) return code;
  if (!s.words[1]) return cli_misused(command, "data and ids are needed");
  result_sink sink = {0};
  code = open_operands(&s);
  if (code == CLI_GO_ON) {
    result_shape shape = {.dtype = s.data.dtype, .rank = 2, .name = s.grad_path ? "grad" : "out"};
    shape.shape[0] = s.grad_path ? s.data.rows : s.count;
    shape.shape[1] = s.data.dim;
    code = result_open(&sink, command, s.output, s.json, &shape);
    if (code == CLI_GO_ON) code = result_close(&sink, run_blocks(&s, &sink));
    if (code == CLI_OK) code = result_report(&sink, &shape, &s.bad, "ids");
  }
  json_decref(sink.values);
  free(s.ids);
  free(s.order);
  free(s.starts);
  operand_close(&s.ids_operand);
  operand_close(&s.grad);
  table_close(&s.data);
  return code;
}
