/* cli/demo_data.c: tables, indices and segment ids for `sheaf demo`. */
#include <string.h>

#include "bench_tools.h"
#include "demo.h"

enum { BAG_LENGTH = 20, ROWS_PER_SEGMENT = 16 };

/* ---- Memory -------------------------------------------------------------------------------------------------- */

enum { HUGE_PAGE = 2 << 20 };

/* The next piece of a block, on pages of its own; NULL while there is no block and only the size is wanted. */
static void *take(char *block, size_t *used, int64_t count, size_t element)
{
  void *piece = block ? block + *used : NULL;
  *used += ((size_t)count * element + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
  return piece;
}

/* Divides the block among the arrays; returns how large it must be. */
static size_t lay_out(demo_data *data, char *block)
{
  int64_t entries = data->bags * data->bag_length;
  int64_t arg_rows = data->bags > data->segments ? data->bags : data->segments;
  size_t used = 0;
  data->table = take(block, &used, data->rows * DEMO_DIM, sizeof *data->table);
  data->grad = take(block, &used, data->rows * DEMO_DIM, sizeof *data->grad);
  data->out = take(block, &used, data->out_rows * DEMO_DIM, sizeof *data->out);
  data->dout = take(block, &used, data->out_rows * DEMO_DIM, sizeof *data->dout);
  data->arg = take(block, &used, arg_rows * DEMO_DIM, sizeof *data->arg);
  for (int set = 0; set < DEMO_INDEX_SETS; set++)
    data->indices[set] = take(block, &used, data->lookups, sizeof *data->indices[set]);
  data->offsets = take(block, &used, data->bags, sizeof *data->offsets);
  data->weights = take(block, &used, entries, sizeof *data->weights);
  data->weights_grad = take(block, &used, entries, sizeof *data->weights_grad);
  data->ids = take(block, &used, data->rows, sizeof *data->ids);
  data->sorted_ids = take(block, &used, data->rows, sizeof *data->sorted_ids);
  return used;
}

void demo_data_free(demo_data *data) { sheaf_table_free(data->block, data->block_bytes); }

/* ---- Contents ------------------------------------------------------------------------------------------------ */

static void fill_floats(float *values, int64_t count, uint64_t stream, int threads)
{
  (void)threads;
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(static)
#endif
  for (int64_t i = 0; i < count; i++)
    values[i] = (float)(bench_random(stream, i) >> 40) * 0x1p-23f - 1.0f; /* -1 to 1 */
}

static void fill_integers(int64_t *values, int64_t count, int64_t below, uint64_t stream)
{
  for (int64_t i = 0; i < count; i++) values[i] = (int64_t)(bench_random(stream, i) % (uint64_t)below);
}

/* The same ids in order, by counting; `places` is zero and has room for a count per segment. */
static void sort_ids(const demo_data *data, int64_t *places)
{
  for (int64_t n = 0; n < data->rows; n++) places[data->ids[n]] += 1;
  int64_t n = 0;
  for (int64_t s = 0; s < data->segments; s++)
    for (int64_t k = 0; k < places[s]; k++) data->sorted_ids[n++] = s;
}

static void fill(demo_data *data)
{
  fill_floats(data->table, data->rows * DEMO_DIM, 1, data->threads);
  fill_floats(data->dout, data->out_rows * DEMO_DIM, 2, data->threads);
  fill_floats(data->weights, data->bags * data->bag_length, 3, data->threads);
  for (int set = 0; set < DEMO_INDEX_SETS; set++)
    fill_integers(data->indices[set], data->lookups, data->rows, 4 + (uint64_t)set);
  fill_integers(data->ids, data->rows, data->segments, 4 + DEMO_INDEX_SETS);
  for (int64_t b = 0; b < data->bags; b++) data->offsets[b] = b * data->bag_length;
  sort_ids(data, data->arg); /* fresh memory is zero */
  memset(data->grad, 0, (size_t)data->rows * DEMO_DIM * sizeof *data->grad); /* so that its pages are there */
}

sheaf_status demo_data_make(demo_data *data, bool quick, int threads)
{
  *data = (demo_data){.threads = threads, .bag_length = BAG_LENGTH};
  data->rows = quick ? 128 << 10 : 768 << 10;
  data->lookups = quick ? 32 << 10 : 96 << 10;
  data->bags = quick ? 1 << 10 : 4 << 10;
  data->segments = data->rows / ROWS_PER_SEGMENT;
  data->out_rows = data->lookups > data->segments ? data->lookups : data->segments;
  data->block_bytes = lay_out(data, NULL);
  sheaf_status status = sheaf_table_alloc(data->block_bytes, &data->block);
  if (status != SHEAF_OK) return status;
  lay_out(data, data->block);
  fill(data);
  return SHEAF_OK;
}
