/* paper_run.c: runs and groupings of the device of paper, by plans for the CPU. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "paper.h"

/* ---- Runs, by a plan for the CPU ---- */

typedef struct view {
  DLTensor dl;
  int64_t shape[3], strides[3];
} view;

/* An operand as a tensor again: rows [rows, columns], or a vector (columns -1), of which each problem has one. */
static sheaf_operand operand(view *v, shf_matrix m, sheaf_dtype dtype, int64_t batch, int64_t rows, int64_t columns)
{
  if (!m.data) return (sheaf_operand){NULL, 0};
  int64_t bytes = dtype == SHEAF_U8 ? 1 : sheaf_dtype_row_bytes(dtype, 1);
  int at = 0;
  if (batch > 0) {
    v->shape[at] = batch;
    v->strides[at++] = m.batch_stride / bytes;
  }
  v->shape[at] = rows;
  v->strides[at++] = columns < 0 ? 1 : m.row_stride / bytes;
  if (columns >= 0) {
    v->shape[at] = columns;
    v->strides[at++] = 1;
  }
  v->dl = (DLTensor){.data = m.data, .device = {kDLCPU, 0}, .ndim = at, .dtype = sheaf_dtype_to_dl(dtype)};
  v->dl.shape = v->shape;
  v->dl.strides = v->strides;
  return (sheaf_operand){&v->dl, 0};
}

/* A matrix of indices [B, L], which has no gaps. */
static sheaf_operand entries_operand(view *v, shf_matrix m, sheaf_dtype dtype, const sheaf_embedding_desc *d)
{
  if (d->bag_form != SHEAF_BAGS_MATRIX || d->kind == SHEAF_LOOKUP || d->kind == SHEAF_LOOKUP_BACKWARD)
    return operand(v, m, dtype, d->batch, d->indices, -1);
  int64_t length = d->bags ? d->indices / d->bags : 0;
  m.row_stride = length * sheaf_dtype_row_bytes(dtype, 1);
  return operand(v, m, dtype, d->batch, d->bags, length);
}

int64_t paper_entries(const sheaf_embedding_desc *d)
{
  return d->kind == SHEAF_BAG_MAX_BACKWARD ? d->bags * d->dim : d->indices;
}

/* The rows of a grouping in place of the indices, or of arg. */
static void take_grouping(const task *t, sheaf_embedding_desc *d, shf_matrix *m)
{
  shf_matrix own = {.data = (char *)t->grouping, .row_stride = d->dim * 8, .batch_stride = 0};
  m[d->kind == SHEAF_BAG_MAX_BACKWARD ? 6 : 1] = own;
  d->index_dtype = SHEAF_I64;
  d->total_rows = d->rows;
  d->has_padding = d->grouping_given = 0;
}

static void run_embedding(const task *t, sheaf_index_report *report, sheaf_status *status)
{
  sheaf_embedding_desc d = t->embedding;
  shf_matrix m[OPERANDS];
  view v[OPERANDS];
  memcpy(m, t->operands, sizeof m);
  if (t->grouping && t->kind == RUN) take_grouping(t, &d, m);
  int quantised = d.dtype == SHEAF_INT8 || d.dtype == SHEAF_INT4;
  int lookup = d.kind == SHEAF_LOOKUP || d.kind == SHEAF_LOOKUP_BACKWARD;
  int64_t outer = lookup ? d.indices : d.bags;
  sheaf_dtype value = quantised ? SHEAF_F32 : d.dtype, out = d.out_dtype ? d.out_dtype : value;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  d.device = (DLDevice){kDLCPU, 0};
  d.bad_index = SHEAF_BAD_INDEX_SKIP;
  args.table = quantised ? operand(&v[0], m[0], SHEAF_U8, d.batch, d.rows, sheaf_dtype_row_bytes(d.dtype, d.dim))
                         : operand(&v[0], m[0], d.dtype, d.batch, d.rows, d.dim);
  args.indices = entries_operand(&v[1], m[1], d.index_dtype, &d);
  args.offsets = operand(&v[2], m[2], d.offset_dtype, d.batch, d.bags + (d.bag_form == SHEAF_BAGS_OFFSETS_END), -1);
  args.weights = entries_operand(&v[3], m[3], value, &d);
  args.grad_out = operand(&v[4], m[4], d.dtype, d.batch, outer, d.dim);
  args.out = operand(&v[5], m[5], out, d.batch, outer, d.dim);
  args.arg = operand(&v[6], m[6], d.index_dtype, d.batch, d.bags, d.dim);
  args.table_grad = operand(&v[7], m[7], d.dtype, d.batch, d.rows, d.dim);
  args.weights_grad = entries_operand(&v[8], m[8], value, &d);
  args.report = report;
  sheaf_plan *plan = NULL;
  *status = sheaf_embedding_select(&d, NULL, &plan);
  if (*status == SHEAF_OK) { /* a grouping is made for what it reports */
    size_t bytes = t->kind == GROUP ? sheaf_grouping_size(plan) : sheaf_plan_workspace_size(plan);
    void *workspace = bytes ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
    *status = t->kind == GROUP ? sheaf_embedding_grouping_build(plan, workspace, bytes, NULL, &args)
                               : sheaf_embedding_run(plan, workspace, bytes, NULL, &args);
    free(workspace);
  }
  sheaf_plan_free(plan);
}

static void run_segment(const task *t, sheaf_index_report *report, sheaf_status *status)
{
  sheaf_segment_desc d = t->segment;
  const shf_matrix *m = t->operands;
  view v[OPERANDS];
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  d.device = (DLDevice){kDLCPU, 0};
  d.bad_index = SHEAF_BAD_INDEX_SKIP;
#define SHEAF_X(name) AT_##name,
  enum { SHEAF_SEGMENT_OPERAND_LIST(SHEAF_X) SEGMENT_OPERANDS };
#undef SHEAF_X
  args.data = operand(&v[0], m[AT_data], d.dtype, d.batch, d.rows, d.dim);
  args.ids = operand(&v[1], m[AT_ids], d.index_dtype, d.batch, d.rows, -1);
  args.grad_out = operand(&v[2], m[AT_grad_out], d.dtype, d.batch, d.segments, d.dim);
  args.out = operand(&v[3], m[AT_out], d.dtype, d.batch, d.segments, d.dim);
  args.arg = operand(&v[4], m[AT_arg], d.index_dtype, d.batch, d.segments, d.dim);
  args.data_grad = operand(&v[5], m[AT_data_grad], d.dtype, d.batch, d.rows, d.dim);
  args.report = report;
  sheaf_plan *plan = NULL;
  *status = sheaf_segment_select(&d, NULL, &plan);
  if (*status == SHEAF_OK) {
    size_t bytes = sheaf_plan_workspace_size(plan);
    void *workspace = bytes ? aligned_alloc(64, bytes) : NULL;
    *status = sheaf_segment_run(plan, workspace, bytes, NULL, &args);
    free(workspace);
  }
  sheaf_plan_free(plan);
}

/* Values that the CPU refuses are skipped there too, as far as the report goes: nothing of the outputs is defined. */
void paper_run(const task *t)
{
  sheaf_index_report report = {0, -1, 0};
  sheaf_status status;
  if (t->category == SHEAF_CATEGORY_EMBEDDING)
    run_embedding(t, &report, &status);
  else
    run_segment(t, &report, &status);
  if (status != SHEAF_OK) {
    sheaf_error_info info = sheaf_last_error_info();
    if (info.count != 1) {
      fprintf(stderr, "the paper device cannot run this: %s\n", sheaf_last_error());
      abort();
    }
    report = (sheaf_index_report){-1, info.position, info.value};
  }
  if (t->report) *t->report = report;
}

/* ---- Groupings ---- */

void paper_group(const task *t)
{
  const sheaf_embedding_desc *d = &t->embedding;
  const shf_matrix *m = &t->operands[d->kind == SHEAF_BAG_MAX_BACKWARD ? 6 : 1];
  int64_t entries = paper_entries(d), columns = d->kind == SHEAF_BAG_MAX_BACKWARD ? d->dim : entries;
  for (int64_t i = 0; i < entries; i++) {
    const char *from = m->data + i / columns * m->row_stride;
    int64_t row = d->index_dtype == SHEAF_I64 ? ((const int64_t *)(const void *)from)[i % columns]
                                              : ((const int32_t *)(const void *)from)[i % columns];
    t->grouping[i] = row < 0 || row >= d->rows || (d->has_padding && row == d->padding_idx) ? -1 : row;
  }
  paper_run(t);
}

static int compare_rows(const void *a, const void *b)
{
  int64_t first = *(const int64_t *)a, second = *(const int64_t *)b;
  return (first > second) - (first < second);
}

/* The rows of a grouping, each once, in order; returns how many. */
static int64_t list_rows(const int64_t *grouping, int64_t entries, int64_t **list)
{
  int64_t count = 0, *rows = malloc((size_t)(entries + 1) * sizeof *rows);
  if (!rows) abort();
  memcpy(rows, grouping, (size_t)entries * sizeof *rows);
  qsort(rows, (size_t)entries, sizeof *rows, compare_rows);
  for (int64_t i = 0; i < entries; i++)
    if (rows[i] >= 0 && (count == 0 || rows[i] != rows[count - 1])) rows[count++] = rows[i];
  *list = rows;
  return count;
}

void paper_count_rows(const task *t)
{
  int64_t *list;
  *t->rows.count = list_rows(t->rows.grouping, paper_entries(&t->embedding), &list);
  free(list);
}

void paper_number_rows(const task *t)
{
  const int64_t *from = t->rows.grouping;
  int64_t *list, *to = t->rows.compact_grouping, entries = paper_entries(&t->embedding);
  int64_t count = list_rows(from, entries, &list);
  for (int64_t i = 0; i < count; i++) {
    if (t->rows.ids_wide)
      ((int64_t *)t->rows.ids)[i] = list[i];
    else
      ((int32_t *)t->rows.ids)[i] = (int32_t)list[i];
  }
  for (int64_t i = 0; i < entries; i++) {
    const int64_t *found = from[i] < 0 ? NULL : bsearch(&from[i], list, (size_t)count, sizeof *list, compare_rows);
    to[i] = found ? found - list : -1;
  }
  free(list);
}
