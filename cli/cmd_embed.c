/* cli/cmd_embed.c: `sheaf lookup` and `sheaf bag`: rows of a table in a file, forward and backward.
 *
 * Forward, a block of bags at a time: the rows that its entries name are gathered in memory, and the op runs on those.
 * The order of a sum depends on places within a bag only, so the bits are those of the whole table. Backward, a block
 * of the table's rows at a time, as a part of the table (row_begin, total_rows). */
#include <stdlib.h>
#include <string.h>

#include "embed.h"

/* ---- Forward ------------------------------------------------------------------------------------------------- */

static sheaf_embedding_desc describe(const embed *e, bool backward)
{
  static const sheaf_embedding_kind kinds[][2] = {{SHEAF_BAG_SUM, SHEAF_BAG_SUM_BACKWARD},
                                                  {SHEAF_BAG_MEAN, SHEAF_BAG_MEAN_BACKWARD},
                                                  {SHEAF_BAG_MAX, SHEAF_BAG_MAX_BACKWARD}};
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.kind = e->bags_given ? kinds[e->mode][backward] : backward ? SHEAF_LOOKUP_BACKWARD : SHEAF_LOOKUP;
  desc.dtype = e->table.dtype;
  desc.index_dtype = SHEAF_I64;
  desc.dim = e->table.dim;
  desc.weighted = e->weights_path != NULL;
  if (e->bags_given) desc.bag_form = SHEAF_BAGS_OFFSETS_END;
  return desc;
}

/* Memory of one block: rows, their numbers in it, results. */
typedef struct embed_block {
  char *rows, *out;
  int64_t *wanted, *local, *starts, *arg;
} embed_block;

static void free_block(embed_block *block)
{
  free(block->rows);
  free(block->out);
  free(block->wanted);
  free(block->local);
  free(block->starts);
  free(block->arg);
}

/* Where the block that starts at bag `first` ends: as many bags as a quarter of a window holds, at least one. */
static int64_t end_of_block(const embed *e, int64_t first)
{
  int64_t limit = window_bytes() / 4, out_bytes = sheaf_dtype_row_bytes(e->plain, e->table.dim), last = first;
  while (last < e->bags) {
    int64_t rows = e->starts[last + 1] - e->starts[first];
    if (last > first && ((double)rows * (double)e->table.row_bytes > (double)limit ||
                         (double)(last + 1 - first) * (double)out_bytes > (double)limit || rows > 4 << 20))
      break;
    last++;
  }
  return last;
}

/* One more row than there are entries: padding names it, and is left out. */
static bool fill_block(embed *e, embed_block *block, int64_t first, int64_t last)
{
  int64_t begin = e->starts[first], count = e->starts[last] - begin, bytes = e->table.row_bytes;
  int64_t out_bytes = sheaf_dtype_row_bytes(e->plain, e->table.dim);
  bool wants_arg = e->arg != NULL;
  block->rows = rows_memory(count + 1, bytes);
  block->out = rows_memory(last - first, out_bytes);
  block->wanted = malloc((size_t)(count + 1) * sizeof(int64_t));
  block->local = malloc((size_t)(count + 1) * sizeof(int64_t));
  block->starts = malloc((size_t)(last - first + 1) * sizeof(int64_t));
  block->arg = wants_arg ? rows_memory(last - first, 8 * e->table.dim) : NULL;
  if (!block->rows || !block->out || !block->wanted || !block->local || !block->starts || (wants_arg && !block->arg)) {
    embed_no_memory(e, count * bytes + (last - first) * out_bytes);
    return false;
  }
  memset(block->rows + count * bytes, 0, (size_t)bytes);
  for (int64_t i = 0; i < count; i++) {
    int64_t index = e->indices[begin + i];
    bool bad = embed_is_bad(e, index), padding = index == e->padding;
    block->wanted[i] = bad || padding ? -1 : index;
    block->local[i] = bad ? -1 : padding ? count : i;
    if (bad || padding) memset(block->rows + i * bytes, 0, (size_t)bytes);
  }
  for (int64_t b = first; b <= last; b++) block->starts[b - first] = e->starts[b] - begin;
  return table_gather(&e->table, block->wanted, count, block->rows);
}

static bool run_block(embed *e, embed_block *block, int64_t first, int64_t last)
{
  int64_t begin = e->starts[first], count = e->starts[last] - begin, bags = last - first;
  bool packed = !is_float_dtype(e->table.dtype);
  sheaf_embedding_desc desc = describe(e, false);
  desc.rows = count + 1;
  desc.indices = count;
  desc.bags = e->bags_given ? bags : 0;
  desc.has_padding = e->padding >= 0;
  desc.padding_idx = desc.has_padding ? count : 0;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  run_operand operands[RUN_OPERANDS] = {{&args.table, block->rows, packed ? SHEAF_U8 : e->table.dtype, count + 1,
                                         packed ? e->table.row_bytes : e->table.dim, false},
                                        {&args.indices, block->local, SHEAF_I64, count, -1, false},
                                        {&args.out, block->out, e->plain, bags, e->table.dim, true}};
  int operand_count = 3;
  if (e->bags_given)
    operands[operand_count++] = (run_operand){&args.offsets, block->starts, SHEAF_I64, bags + 1, -1, false};
  if (e->weights_path) {
    char *weights = (char *)e->weights.data + begin * sheaf_dtype_row_bytes(e->weights.dtype, 1);
    operands[operand_count++] = (run_operand){&args.weights, weights, e->weights.dtype, count, -1, false};
  }
  if (block->arg) operands[operand_count++] = (run_operand){&args.arg, block->arg, SHEAF_I64, bags, e->table.dim, true};
  if (run_embedding(&e->place, &desc, &args, operands, operand_count) == SHEAF_OK) return true;
  cli_failed(e->command);
  return false;
}

/* Numbers of a block's rows become numbers of the table's. */
static void keep_arg(embed *e, const embed_block *block, int64_t first, int64_t last)
{
  if (!block->arg) return; /* no maximum */
  int64_t *to = (int64_t *)e->arg + first * e->table.dim, cells = (last - first) * e->table.dim;
  for (int64_t i = 0; i < cells; i++) to[i] = block->arg[i] < 0 ? -1 : block->wanted[block->arg[i]];
}

/* All blocks; their results go to `sink` where there is one, and to e->arg where that is wanted. */
static int run_forward(embed *e, result_sink *sink)
{
  cli_progress progress;
  cli_progress_begin(&progress, e->entries, e->table.row_bytes, e->quiet);
  int code = CLI_OK;
  for (int64_t first = 0, last; code == CLI_OK && first < e->bags; first = last) {
    last = end_of_block(e, first);
    embed_block block = {0};
    bool fine = fill_block(e, &block, first, last) && run_block(e, &block, first, last);
    if (fine && e->arg) keep_arg(e, &block, first, last);
    if (fine && sink) fine = result_append(sink, block.out, last - first);
    free_block(&block);
    if (fine && !cli_progress_step(&progress, e->starts[last])) {
      cli_complain(e->command, "interrupted");
      fine = false;
    }
    if (!fine) code = CLI_FAILED;
  }
  cli_progress_end(&progress);
  return code;
}

/* ---- Backward ------------------------------------------------------------------------------------------------ */

static bool grad_block(embed *e, char *to, int64_t first, int64_t rows)
{
  sheaf_embedding_desc desc = describe(e, true);
  bool from_arg = desc.kind == SHEAF_BAG_MAX_BACKWARD;
  desc.rows = rows;
  desc.row_begin = first;
  desc.total_rows = e->table.rows;
  desc.indices = from_arg ? 0 : e->entries;
  desc.bags = e->bags_given ? e->bags : 0;
  desc.grad_write = SHEAF_GRAD_OVERWRITE;
  desc.has_padding = e->padding >= 0;
  desc.padding_idx = desc.has_padding ? e->padding : 0;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  run_operand operands[RUN_OPERANDS] = {
      {&args.grad_out, (void *)e->grad.data, e->grad.dtype, e->bags, e->table.dim, false},
      {&args.table_grad, to, e->plain, rows, e->table.dim, true}};
  int count = 2;
  if (from_arg)
    operands[count++] = (run_operand){&args.arg, e->arg, SHEAF_I64, e->bags, e->table.dim, false};
  else
    operands[count++] = (run_operand){&args.indices, e->indices, SHEAF_I64, e->entries, -1, false};
  if (e->bags_given && !from_arg)
    operands[count++] = (run_operand){&args.offsets, e->starts, SHEAF_I64, e->bags + 1, -1, false};
  if (e->weights_path)
    operands[count++] = (run_operand){&args.weights, (void *)e->weights.data, e->weights.dtype, e->entries, -1, false};
  if (run_embedding(&e->place, &desc, &args, operands, count) == SHEAF_OK) return true;
  cli_failed(e->command);
  return false;
}

static int run_backward(embed *e, result_sink *sink)
{
  if (e->bags_given && e->mode == MODE_MAX) {
    e->arg = rows_memory(e->bags, 8 * e->table.dim);
    if (!e->arg) return embed_no_memory(e, 8 * e->bags * e->table.dim);
    int code = run_forward(e, NULL);
    if (code != CLI_OK) return code;
  }
  int64_t row_bytes = sheaf_dtype_row_bytes(e->plain, e->table.dim),
          room = row_bytes ? window_bytes() / 4 / row_bytes : 1;
  if (room < 1) room = 1;
  if (room > e->table.rows) room = e->table.rows;
  char *rows = rows_memory(room, row_bytes);
  if (!rows) return embed_no_memory(e, room * row_bytes);
  cli_progress progress;
  cli_progress_begin(&progress, e->table.rows, row_bytes, e->quiet);
  int code = CLI_OK;
  for (int64_t first = 0; code == CLI_OK && first < e->table.rows; first += room) {
    int64_t count = e->table.rows - first < room ? e->table.rows - first : room;
    if (!grad_block(e, rows, first, count) || !result_append(sink, rows, count)) code = CLI_FAILED;
    if (code == CLI_OK && !cli_progress_step(&progress, first + count)) {
      cli_complain(e->command, "interrupted");
      code = CLI_FAILED;
    }
  }
  cli_progress_end(&progress);
  free(rows);
  return code;
}

/* ---- The commands -------------------------------------------------------------------------------------------- */

/* Rows of the result: the table's for a gradient, else one per bag, or in the shape of the indices. */
static int shape_of_result(const embed *e, result_shape *shape)
{
  const whole_operand *indices = &e->indices_operand;
  *shape = (result_shape){.dtype = e->plain,
                          .rank = 2,
                          .shape = {e->grad_path ? e->table.rows : e->bags, e->table.dim},
                          .name = e->grad_path ? "grad" : "out"};
  if (e->grad_path || e->bags_given || indices->rank == 1) return CLI_GO_ON;
  if (indices->rank == SHEAF_IO_MAX_RANK) {
    cli_complain(e->command, "'%s' has %d dimensions; the result would have one more than files can have", e->words[1],
                 indices->rank);
    return CLI_FAILED;
  }
  shape->rank = indices->rank + 1;
  memcpy(shape->shape, indices->shape, sizeof(int64_t) * (size_t)indices->rank);
  shape->shape[indices->rank] = e->table.dim;
  return CLI_GO_ON;
}

static int run_command(embed *e)
{
  result_shape shape;
  result_sink sink;
  int code = embed_open(e);
  if (code == CLI_GO_ON) code = shape_of_result(e, &shape);
  if (code == CLI_GO_ON) code = result_open(&sink, e->command, e->output, e->json, &shape);
  if (code == CLI_GO_ON) {
    code = result_close(&sink, e->grad_path ? run_backward(e, &sink) : run_forward(e, &sink));
    if (code == CLI_OK) code = result_report(&sink, &shape, &e->bad, "indices");
    json_decref(sink.values);
  }
  embed_close(e);
  return code;
}

/* The options that both have. */
#define EMBED_OPTIONS(e)                                                                                              \
  {"--output", CLI_TEXT, &(e).output}, {"--grad", CLI_TEXT, &(e).grad_path}, {"--padding", CLI_NUMBER, &(e).padding}, \
      {"--bad-index", CLI_CHOICE, &(e).refuse_bad}, {"--device", CLI_TEXT, &(e).device}, PACKED_OPTIONS(e),           \
      WORK_OPTIONS(e)

int cmd_lookup(int argc, char **argv)
{
  embed e = {.command = "lookup", .padding = -1, .refuse_bad = 1, .as = -1, .device = "cpu"};
  const cli_option options[] = {EMBED_OPTIONS(e)};
  const cli_syntax syntax = {"lookup", options, CLI_LENGTH(options), e.words, 2};
  int code = cli_parse(&syntax, argc, argv);
  if (code != CLI_GO_ON) return code;
  if (!e.words[1]) return cli_misused("lookup", "a table and indices are needed");
  return run_command(&e);
}

int cmd_bag(int argc, char **argv)
{
  embed e = {.command = "bag", .bags_given = true, .mode = MODE_MEAN, .padding = -1, .refuse_bad = 1, .as = -1};
  e.device = "cpu";
  const cli_option options[] = {{"--mode", CLI_CHOICE, &e.mode},
                                {"--offsets", CLI_TEXT, &e.offsets_path},
                                {"--weights", CLI_TEXT, &e.weights_path},
                                EMBED_OPTIONS(e)};
  const cli_syntax syntax = {"bag", options, CLI_LENGTH(options), e.words, 2};
  int code = cli_parse(&syntax, argc, argv);
  if (code != CLI_GO_ON) return code;
  if (!e.words[1]) return cli_misused("bag", "a table and indices are needed");
  return run_command(&e);
}
