/* cli/bench_device_setup.c: a case of `sheaf bench --device cuda` made ready: data, plan and workspace. */
#include "bench_device_setup.h"

#include <stdlib.h>
#include <string.h>

#include "bench_device_sparse.h"
#include "bench_tools.h"
#include "cli_impl.h"

int bench_device_complain(const char *what)
{
  cli_complain("bench", "%s%s%s", what, *what ? ": " : "", sheaf_last_error());
  return 0;
}

int bench_device_wait(bench_gpu *g)
{
  BENCH_TRY(sheaf_stream_wait(g->device, g->stream));
  return 1;
}

enum { OPERAND_BYTES = 2 << 20 }; /* where operands begin: a page of the device */

/* ---- Data ---------------------------------------------------------------------------------------------------- */

/* From the arena, so that cases lie where those before them lay: memory that is allocated when other memory has been freed can
 * be slower. (Bags of one row of 128 floats took 42 us in it, and 39 in a process of their own.) */
static void *own(bench_gpu *g, bench_setup *s, size_t bytes)
{
  const size_t begin = (g->arena_used + OPERAND_BYTES - 1) / OPERAND_BYTES * OPERAND_BYTES;
  void *memory = NULL;
  if (bytes == 0) bytes = 64;
  if (g->arena && begin < g->arena_bytes && bytes <= g->arena_bytes - begin) {
    g->arena_used = begin + bytes;
    return g->arena + begin;
  }
  if (sheaf_device_alloc(g->device, bytes, &memory) != SHEAF_OK) return NULL;
  s->memory[s->memories++] = memory;
  return memory;
}

static sheaf_operand tensor_of(bench_gpu *g, bench_setup *s, void *data, sheaf_dtype dtype, int64_t rows,
                               int64_t columns)
{
  int at = s->tensors++;
  s->shape[at][0] = rows;
  s->shape[at][1] = columns;
  s->tensor[at] = (DLTensor){.data = data,
                             .device = g->device,
                             .ndim = columns >= 0 ? 2 : 1,
                             .dtype = sheaf_dtype_to_dl(dtype),
                             .shape = s->shape[at]};
  return (sheaf_operand){&s->tensor[at], 0};
}

/* Rows of random numbers: blocks of f32 as they are, which read as finite numbers in every type but f16, where the bits
 * of a NaN cost no more than others. */
static int fill_rows(bench_gpu *g, char *memory, size_t bytes)
{
  for (size_t at = 0; at < bytes; at += g->values_bytes)
    BENCH_TRY(sheaf_device_copy(g->device, memory + at, g->values,
                                bytes - at < g->values_bytes ? bytes - at : g->values_bytes, g->stream));
  return bench_device_wait(g);
}

static sheaf_operand rows_of(bench_gpu *g, bench_setup *s, sheaf_dtype dtype, int64_t rows, int64_t dim)
{
  size_t bytes = (size_t)(rows * sheaf_dtype_row_bytes(dtype, dim));
  char *memory = own(g, s, bytes);
  if (!memory || !fill_rows(g, memory, bytes)) return (sheaf_operand){NULL, 0};
  int packed = dtype == SHEAF_INT8 || dtype == SHEAF_INT4;
  return tensor_of(g, s, memory, dtype, rows, packed ? sheaf_dtype_row_bytes(dtype, dim) : dim);
}

static sheaf_operand numbers_of(bench_gpu *g, bench_setup *s, const int64_t *host, int64_t rows, int64_t columns)
{
  size_t bytes = (size_t)(rows * (columns < 0 ? 1 : columns)) * 8;
  void *memory = own(g, s, bytes);
  if (!memory || sheaf_device_copy(g->device, memory, host, bytes, g->stream) != SHEAF_OK || !bench_device_wait(g))
    return (sheaf_operand){NULL, 0};
  return tensor_of(g, s, memory, SHEAF_I64, rows, columns);
}

static int compare_numbers(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Indices, or segment ids; sorted ones for the sorted kinds. Counts the distinct ones. */
static int64_t *make_indices(const device_case *c, int64_t *touched)
{
  int64_t count = device_case_entries(c);
  int64_t *indices = malloc((size_t)count * 8);
  char *seen = calloc((size_t)c->rows, 1);
  *touched = 0;
  if (!indices || !seen) return free(indices), free(seen), NULL;
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
  for (int64_t n = 0; n < count; n++) {
    double unit = bench_random_unit(11, n);
    indices[n] = c->exponent > 0 ? bench_scatter(bench_power_law(unit, c->rows, c->exponent) - 1, c->rows)
                                 : (int64_t)(unit * (double)c->rows);
  }
  for (int64_t n = 0; n < count; n++) {
    *touched += !seen[indices[n]];
    seen[indices[n]] = 1;
  }
  int sorted = c->category == SHEAF_CATEGORY_SEGMENT &&
               strncmp(sheaf_kind_name(c->category, (uint16_t)c->kind), "unsorted", 8) != 0;
  if (sorted) qsort(indices, (size_t)count, 8, compare_numbers);
  free(seen);
  return indices;
}

/* ---- Set-up -------------------------------------------------------------------------------------------------- */

static int set_up_embedding(bench_gpu *g, const device_case *c, bench_setup *s)
{
  sheaf_dtype dtype = c->dtype ? c->dtype : SHEAF_F32;
  sheaf_dtype out = dtype == SHEAF_INT8 || dtype == SHEAF_INT4 ? SHEAF_F32 : dtype;
  int64_t entries = device_case_entries(c);
  int backward = device_case_is_backward(c);
  sheaf_embedding_desc d = SHEAF_EMBEDDING_DESC_INIT;
  d.device = g->device;
  d.kind = (sheaf_embedding_kind)c->kind;
  d.dtype = dtype;
  d.index_dtype = SHEAF_I64;
  d.rows = c->rows;
  d.dim = c->dim;
  d.indices = entries;
  d.bags = c->bags;
  d.bag_form = c->fixed ? SHEAF_BAGS_MATRIX : SHEAF_BAGS_OFFSETS_END;
  d.weighted = c->weighted;
  d.grouping_given = c->grouped;
  if (c->touched) d.grad_write = SHEAF_GRAD_TOUCHED;
  sheaf_embedding_args *a = &s->embedding;
  *a = (sheaf_embedding_args)SHEAF_EMBEDDING_ARGS_INIT;
  int64_t *indices = make_indices(c, &s->touched), *offsets = malloc((size_t)(c->bags + 1) * 8);
  int fine = indices && offsets;
  if (fine) {
    for (int64_t b = 0; b <= c->bags; b++) offsets[b] = b * c->length;
    a->indices = c->fixed ? numbers_of(g, s, indices, c->bags, c->length) : numbers_of(g, s, indices, entries, -1);
    if (c->bags && !c->fixed) a->offsets = numbers_of(g, s, offsets, c->bags + 1, -1);
  }
  free(indices);
  free(offsets);
  if (!fine || !a->indices.tensor) return bench_device_complain("device memory");
  if (!backward || c->weights_only) a->table = rows_of(g, s, dtype, c->rows, c->dim);
  if (backward && !c->weights_only) a->table_grad = rows_of(g, s, dtype, c->rows, c->dim);
  if (c->weighted) {
    size_t bytes = (size_t)entries * 4;
    char *memory = own(g, s, bytes);
    if (!memory || !fill_rows(g, memory, bytes)) return 0;
    a->weights = tensor_of(g, s, memory, out, c->fixed ? c->bags : entries, c->fixed ? c->length : -1);
  }
  if (c->weights_only) a->weights_grad = tensor_of(g, s, own(g, s, (size_t)entries * 4), out, entries, -1);
  sheaf_operand rows = rows_of(g, s, out, c->bags ? c->bags : entries, c->dim);
  if (backward)
    a->grad_out = rows;
  else
    a->out = rows;
  BENCH_TRY(sheaf_embedding_select(&d, NULL, &s->plan));
  double begun = bench_now();
  sheaf_plan *again = NULL;
  BENCH_TRY(sheaf_embedding_select(&d, NULL, &again));
  s->select = bench_now() - begun;
  sheaf_plan_free(again);
  if (!c->grouped) return 1;
  size_t bytes = sheaf_grouping_size(s->plan);
  s->grouping = own(g, s, bytes);
  BENCH_TRY(sheaf_embedding_grouping_build(s->plan, s->grouping, bytes, g->stream, a));
  a->grouping = s->grouping;
  a->grouping_bytes = bytes;
  return 1;
}

static int set_up_segment(bench_gpu *g, const device_case *c, bench_setup *s)
{
  sheaf_dtype dtype = c->dtype ? c->dtype : SHEAF_F32;
  int backward = device_case_is_backward(c);
  sheaf_segment_desc d = SHEAF_SEGMENT_DESC_INIT;
  d.device = g->device;
  d.kind = (sheaf_segment_kind)c->kind;
  d.dtype = dtype;
  d.index_dtype = SHEAF_I64;
  d.rows = c->length;
  d.dim = c->dim;
  d.segments = c->rows;
  sheaf_segment_args *a = &s->segment;
  *a = (sheaf_segment_args)SHEAF_SEGMENT_ARGS_INIT;
  int64_t *ids = make_indices(c, &s->touched);
  if (ids) a->ids = numbers_of(g, s, ids, c->length, -1);
  free(ids);
  a->data = rows_of(g, s, dtype, c->length, c->dim);
  sheaf_operand groups = rows_of(g, s, dtype, c->rows, c->dim);
  if (backward) {
    a->grad_out = groups;
    a->data_grad = rows_of(g, s, dtype, c->length, c->dim);
  } else {
    a->out = groups;
  }
  if (!a->ids.tensor || !a->data.tensor) return bench_device_complain("device memory");
  BENCH_TRY(sheaf_segment_select(&d, NULL, &s->plan));
  double begun = bench_now();
  sheaf_plan *again = NULL;
  BENCH_TRY(sheaf_segment_select(&d, NULL, &again));
  s->select = bench_now() - begun;
  sheaf_plan_free(again);
  return 1;
}

int bench_setup_make(bench_gpu *g, const device_case *c, bench_setup *s)
{
  int fine = c->category == SHEAF_CATEGORY_EMBEDDING ? set_up_embedding(g, c, s) : set_up_segment(g, c, s);
  if (!fine) return 0;
  s->workspace_bytes = sheaf_plan_workspace_size(s->plan);
  s->workspace = own(g, s, s->workspace_bytes);
  return s->workspace ? 1 : bench_device_complain("device memory");
}

void bench_setup_free(bench_gpu *g, bench_setup *s)
{
  sheaf_plan_free(s->plan);
  for (int i = 0; i < s->memories; i++) sheaf_device_free(g->device, s->memory[i]);
  g->arena_used = 0;
}

sheaf_status bench_setup_run(bench_gpu *g, const device_case *c, bench_setup *s)
{
  if (c->sparse) return bench_sparse_gradient(&s->embedding, c->rows);
  if (c->category == SHEAF_CATEGORY_EMBEDDING)
    return sheaf_embedding_run(s->plan, s->workspace, s->workspace_bytes, g->stream, &s->embedding);
  return sheaf_segment_run(s->plan, s->workspace, s->workspace_bytes, g->stream, &s->segment);
}
