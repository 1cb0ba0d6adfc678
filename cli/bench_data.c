/* cli/bench_data.c: the operands of one case of `sheaf bench`, and how many bytes a run has to move. */
#include "bench_data.h"

#include <string.h>

/* Two rotations' worth of this many bytes has left any cache. */
enum { ROTATION_BYTES = 160000000 };

static bool is_segment(const bench_case *c) { return c->category == SHEAF_CATEGORY_SEGMENT; }

static bool is_bag_max_backward(const bench_case *c) { return !is_segment(c) && c->kind == SHEAF_BAG_MAX_BACKWARD; }

static bool is_bag_max(const bench_case *c) { return !is_segment(c) && c->kind == SHEAF_BAG_MAX; }

static bool is_segment_max_backward(const bench_case *c)
{
  return is_segment(c) && (c->kind == SHEAF_SEGMENT_MAX_BACKWARD || c->kind == SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD);
}

static bool is_sorted(const bench_case *c)
{
  return strncmp(sheaf_kind_name(c->category, c->kind), "unsorted", 8) != 0;
}

static int64_t index_bytes(const bench_case *c) { return sheaf_dtype_row_bytes(c->index, 1); }

/* ---- Memory -------------------------------------------------------------------------------------------------- */

/* The next block, on pages of its own; NULL when memory is short. */
static void *take(bench_data *data, int64_t bytes)
{
  void *memory;
  if (bytes <= 0) bytes = 1;
  if (data->block_count == BENCH_MAX_BLOCKS || sheaf_table_alloc((size_t)bytes, &memory) != SHEAF_OK) return NULL;
  data->blocks[data->block_count].memory = memory;
  data->blocks[data->block_count++].bytes = (size_t)bytes;
  return memory;
}

void bench_data_free(bench_data *data)
{
  for (int i = 0; i < data->block_count; i++) sheaf_table_free(data->blocks[i].memory, data->blocks[i].bytes);
  data->block_count = 0;
}

static int choose_sets(const bench_case *c)
{
  static const int counts[] = {1, 7, 11, 17, 31, BENCH_MAX_SETS};
  int64_t bytes = bench_entries(c) * (bench_row_bytes(c) + index_bytes(c));
  int i = 0;
  while (counts[i] < BENCH_MAX_SETS && counts[i] * bytes < ROTATION_BYTES) i++;
  return c->warm ? 1 : counts[i];
}

static sheaf_status make_table(bench_data *data, bench_table *table)
{
  const bench_case *c = data->c;
  int64_t pad = c->row_pad ? c->row_pad * sheaf_dtype_row_bytes(c->dtype, 1) : 0;
  bench_table wanted = {.dtype = c->dtype, .dim = c->dim, .stride_bytes = bench_row_bytes(c) + pad,
                        .small_pages = c->small_pages, .backward = bench_is_backward(c)};
  wanted.rows = is_segment(c) ? data->entries * data->sets : c->rows;
  if (wanted.rows < c->reference_rows) wanted.rows = c->reference_rows;
  data->table = table;
  return bench_table_make(table, &wanted);
}

/* ---- Index sets ---------------------------------------------------------------------------------------------- */

/* Which row won each column of each bag, as random values would have it. */
static void fill_bag_winners(const bench_data *data, const int64_t *indices, int64_t *arg)
{
  const bench_case *c = data->c;
  for (int64_t b = 0; b < data->bags; b++)
    for (int64_t d = 0; d < c->dim; d++) {
      int64_t place = b * c->dim + d;
      arg[place] = indices[b * c->length + (int64_t)((uint64_t)place * 0x9E3779B97F4A7C15u >> 33) % c->length];
    }
}

/* The same for segments: positions among the sorted ids, -1 where a segment has none. */
static void fill_segment_winners(const bench_data *data, const int64_t *ids, int64_t *arg)
{
  const bench_case *c = data->c;
  int64_t begin = 0;
  for (int64_t s = 0; s < c->segments; s++) {
    int64_t end = begin;
    while (end < data->entries && ids[end] == s) end++;
    for (int64_t d = 0; d < c->dim; d++) {
      uint64_t random = (uint64_t)(s * c->dim + d) * 0x9E3779B97F4A7C15u >> 33;
      arg[s * c->dim + d] = end > begin ? begin + (int64_t)(random % (uint64_t)(end - begin)) : -1;
    }
    begin = end;
  }
}

/* The indices of a set as the case takes them, and the rows that its ceiling visits. */
static bool fill_embedding_set(bench_data *data, bench_set *set, int64_t *indices, uint64_t stream)
{
  const bench_case *c = data->c;
  bench_fill_indices(c, indices, data->entries, c->rows, stream);
  set->count = data->entries;
  if (is_bag_max_backward(c)) fill_bag_winners(data, indices, set->indices);
  else if (c->index != SHEAF_I64) bench_to_i32(indices, set->indices, data->entries);
  if (bench_is_backward(c)) {
    set->count = bench_distinct(indices, data->entries, c->rows, set->rows);
  } else if (c->reference_rows) {
    bench_case uniform = {.spread = BENCH_UNIFORM};
    bench_fill_indices(&uniform, set->rows, data->entries, c->reference_rows, stream);
  }
  return set->count >= 0;
}

static bool make_embedding_sets(bench_data *data)
{
  const bench_case *c = data->c;
  bool own_rows = bench_is_backward(c) || c->reference_rows, own_indices = c->index != SHEAF_I64;
  int64_t n = data->entries, arg = is_bag_max_backward(c) ? data->bags * c->dim * 8 : 0;
  int64_t *rows = take(data, data->sets * n * 8), *all = own_rows ? take(data, data->sets * n * 8) : rows;
  char *indices = own_indices ? take(data, data->sets * n * 4) : arg ? take(data, data->sets * arg) : (char *)all;
  if (!rows || !all || !indices) return false;
  int64_t bytes = arg ? arg : n * index_bytes(c);
  for (int i = 0; i < data->sets; i++) {
    bench_set *set = &data->set[i];
    *set = (bench_set){.indices = indices + i * bytes, .rows = rows + i * n};
    if (!fill_embedding_set(data, set, all + i * n, 10 + (uint64_t)i)) return false;
  }
  return true;
}

static bool make_segment_sets(bench_data *data)
{
  const bench_case *c = data->c;
  int64_t n = data->entries, row = bench_row_bytes(c);
  int64_t *ids = take(data, data->sets * n * 8);
  char *indices = c->index == SHEAF_I64 ? (char *)ids : take(data, data->sets * n * 4);
  if (is_segment_max_backward(c)) data->arg = take(data, c->segments * c->dim * 8);
  if (!ids || !indices || (is_segment_max_backward(c) && !data->arg)) return false;
  for (int i = 0; i < data->sets; i++) {
    bench_set *set = &data->set[i];
    *set = (bench_set){.indices = indices + i * n * index_bytes(c), .rows = ids + i * n, .count = n,
                       .data = (char *)data->table->memory + i * n * row};
    bench_fill_indices(c, set->rows, n, c->segments, 10 + (uint64_t)i);
    if (is_sorted(c) && !bench_sort_ids(set->rows, n, c->segments)) return false;
    if (c->index != SHEAF_I64) bench_to_i32(set->rows, set->indices, n);
    if (data->arg) fill_segment_winners(data, set->rows, data->arg);
  }
  return true;
}

/* ---- Useful bytes -------------------------------------------------------------------------------------------- */

/* Forward: rows, indices, offsets and weights read, output written. Backward: for every entry a row of the output's
 * gradient and its index read, touched rows written; of a maximum, only the cells that won. */
static int64_t embedding_bytes(const bench_data *data, const bench_set *set)
{
  const bench_case *c = data->c;
  int64_t row = bench_row_bytes(c), index = index_bytes(c), offsets = data->bags * index;
  int64_t out_row = data->out_rows ? (c->dtype == SHEAF_INT8 || c->dtype == SHEAF_INT4 ? 4 * c->dim : row) : 0;
  int64_t weights = c->weighted ? data->entries * (row / c->dim) : 0;
  int64_t arg = is_bag_max(c) || is_bag_max_backward(c) ? data->bags * c->dim * index : 0;
  if (is_bag_max_backward(c)) return 3 * data->bags * row + arg;
  int64_t shared = data->entries * index + offsets + weights + data->out_rows * out_row + arg;
  if (bench_is_backward(c)) return data->entries * (index + row) + offsets + weights + set->count * row;
  int64_t padding = 0;
  for (int64_t n = 0; c->padded && n < data->entries; n++) padding += set->rows[n] == 0;
  return shared + (data->entries - padding) * row;
}

static int64_t segment_bytes(const bench_data *data)
{
  const bench_case *c = data->c;
  int64_t arg = data->arg ? c->segments * c->dim * index_bytes(c) : 0;
  return data->entries * (bench_row_bytes(c) + index_bytes(c)) + c->segments * bench_row_bytes(c) + arg;
}

/* ---- All together -------------------------------------------------------------------------------------------- */

static bool make_outputs(bench_data *data)
{
  const bench_case *c = data->c;
  bool quantized = c->dtype == SHEAF_INT8 || c->dtype == SHEAF_INT4;
  sheaf_dtype dtype = quantized ? SHEAF_F32 : c->dtype;
  data->out_rows = is_segment(c) ? c->segments : c->length ? data->bags : data->entries;
  int64_t cells = data->out_rows * c->dim, bytes = data->out_rows * sheaf_dtype_row_bytes(dtype, c->dim);
  void **result = bench_is_backward(c) ? &data->grad_out : &data->out;
  *result = take(data, bytes);
  if (!*result) return false;
  bench_fill_values(*result, dtype, cells, 2);
  if (is_bag_max(c) && !(data->arg = take(data, cells * index_bytes(c)))) return false;
  if (c->weighted) {
    data->weights = take(data, data->entries * sheaf_dtype_row_bytes(dtype, 1));
    if (!data->weights) return false;
    bench_fill_values(data->weights, dtype, data->entries, 3);
  }
  return true;
}

static bool make_offsets(bench_data *data)
{
  const bench_case *c = data->c;
  if (!c->length) return true;
  data->bags = bench_fill_offsets(c, data->entries, NULL);
  int64_t *offsets = take(data, data->bags * 8);
  data->offsets = c->index == SHEAF_I64 ? offsets : take(data, data->bags * 4);
  if (!offsets || !data->offsets) return false;
  bench_fill_offsets(c, data->entries, offsets);
  if (c->index != SHEAF_I64) bench_to_i32(offsets, data->offsets, data->bags);
  return true;
}

sheaf_status bench_data_make(bench_data *data, const bench_case *c, bench_table *table)
{
  *data = (bench_data){.c = c, .entries = bench_entries(c), .sets = choose_sets(c)};
  sheaf_status status = make_table(data, table);
  if (status != SHEAF_OK) return status;
  bool made = make_offsets(data) && (is_segment(c) ? make_segment_sets(data) : make_embedding_sets(data)) &&
              make_outputs(data);
  for (int i = 0; made && i < data->sets; i++)
    data->set[i].useful_bytes = is_segment(c) ? segment_bytes(data) : embedding_bytes(data, &data->set[i]);
  if (made) return SHEAF_OK;
  bench_data_free(data);
  return SHEAF_OUT_OF_MEMORY;
}
