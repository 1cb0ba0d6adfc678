/* shard/rows.c: rows by their numbers, fetched and added to: a lookup and its gradient, used as tools. */
#include "core/cpu.h"
#include "shard/shard_call.h"

/* The widest type as whose elements rows can be copied: their length and place must be multiples of it. */
static sheaf_dtype copy_type(const void *table, int64_t row_bytes)
{
  static const sheaf_dtype types[] = {SHEAF_F64, SHEAF_F32, SHEAF_F16};
  for (int i = 0; i < 3; i++) {
    int64_t size = shf_core_dtype_size(types[i]);
    if (row_bytes % size == 0 && (uintptr_t)table % (uintptr_t)size == 0) return types[i];
  }
  return SHEAF_DTYPE_NONE;
}

sheaf_status shf_call_fetch(shf_call *c, const shf_row_source *source, const int64_t *ids, int64_t count, void *rows)
{
  int64_t row_bytes = source->row_bytes;
  sheaf_dtype type = copy_type(source->data, row_bytes);
  if (row_bytes == 0 || count == 0) return SHEAF_OK;
  for (int64_t i = 0; type == SHEAF_DTYPE_NONE && i < count; i++)
    SHF_TRY(shf_space_copy(c->site.device, (char *)rows + i * row_bytes,
                           (const char *)source->data + (ids[i] - source->first) * row_bytes, row_bytes));
  if (type == SHEAF_DTYPE_NONE) return SHEAF_OK;
  const void *named;
  SHF_TRY(shf_call_write(c, ids, count * (int64_t)sizeof *ids, &named));
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.dtype = type;
  desc.index_dtype = SHEAF_I64;
  desc.rows = source->rows;
  desc.row_begin = source->first;
  desc.total_rows = source->first + source->rows;
  desc.dim = row_bytes / shf_core_dtype_size(type);
  desc.indices = count;
  shf_local local, index, out;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.table = shf_local_matrix(&local, c->site, type, source->data, desc.rows, desc.dim);
  args.indices = shf_local_vector(&index, c->site, SHEAF_I64, named, count);
  args.out = shf_local_matrix(&out, c->site, type, rows, count, desc.dim);
  return shf_local_embedding(c->site, &desc, &args);
}

static void add_row(sheaf_dtype acc, char *total, const char *term, int64_t columns)
{
  if (acc == SHEAF_F64)
    for (int64_t i = 0; i < columns; i++) ((double *)(void *)total)[i] += ((const double *)(const void *)term)[i];
  else
    for (int64_t i = 0; i < columns; i++) ((float *)(void *)total)[i] += ((const float *)(const void *)term)[i];
}

sheaf_status shf_call_add_rows(shf_call *c, const shf_row_terms *t, const int64_t *ids, int64_t count,
                               const void *terms, void *total)
{
  int64_t cell = t->columns * shf_core_dtype_size(t->acc);
  if (count == 0 || cell == 0) return SHEAF_OK;
  if (shf_is_host(c->site.device)) {
    unsigned mode = shf_core_fp_enter();
    for (int64_t i = 0; i < count; i++)
      add_row(t->acc, (char *)total + (ids[i] - t->first) * cell, (const char *)terms + i * cell, t->columns);
    shf_core_fp_leave(mode);
    return SHEAF_OK;
  }
  const void *named; /* each row is named once, so that accumulating the gradient of a lookup adds one term to each */
  SHF_TRY(shf_call_write(c, ids, count * (int64_t)sizeof *ids, &named));
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.kind = SHEAF_LOOKUP_BACKWARD;
  desc.dtype = t->acc;
  desc.index_dtype = SHEAF_I64;
  desc.rows = t->rows;
  desc.row_begin = t->first;
  desc.total_rows = t->first + t->rows;
  desc.dim = t->columns;
  desc.indices = count;
  desc.grad_write = SHEAF_GRAD_ACCUMULATE;
  shf_local index, term, sum;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.indices = shf_local_vector(&index, c->site, SHEAF_I64, named, count);
  args.grad_out = shf_local_matrix(&term, c->site, t->acc, terms, count, t->columns);
  args.table_grad = shf_local_matrix(&sum, c->site, t->acc, total, t->rows, t->columns);
  return shf_local_embedding(c->site, &desc, &args);
}
