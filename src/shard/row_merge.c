/* shard/row_merge.c: rows of which several ranks have terms, added in the order of ranks.
 *
 * Each rank's terms come in the order of rows, so that the result is written from its first row to its last, once, past
 * the cache where it is large: rows without a term as zeros, rows with one as it is. A few rows at a time go through
 * all ranks' terms; of a row there are never more than two to be added, what was added before and the next. */
#include <string.h>

#include "core/cpu.h"
#include "shard/row_copy.h"
#include "shard/shard_call.h"

/* ---- On the CPU -------------------------------------------------------------------------------------------------- */

enum { MOST_ROWS = 64, BATCH_BYTES = 32 << 10 };

static int64_t cell_of(const shf_row_merge *m) { return m->columns * shf_core_dtype_size(m->acc); }

/* Rows that go together. */
static int64_t batch_of(const shf_row_merge *m)
{
  int64_t batch = BATCH_BYTES / (cell_of(m) + 1);
  return batch < 1 ? 1 : batch > MOST_ROWS ? MOST_ROWS : batch;
}

typedef struct merging {
  const shf_row_merge *m;
  char *total;
  const shf_row_ops *store, *add; /* of the result; of what is added before */
} merging;

static inline int64_t id_at(const shf_row_merge *m, const shf_row_part *part, int64_t at)
{
  return (m->number == SHEAF_I32 ? ((const int32_t *)part->ids)[at] : ((const int64_t *)part->ids)[at]) - m->first;
}

/* Where a part's terms of rows from `row` on begin. */
static int64_t first_term(const shf_row_merge *m, const shf_row_part *part, int64_t row)
{
  int64_t low = 0, high = part->count;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (id_at(m, part, middle) < row)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Rows first .. last - 1, at most a batch. */
static void merge_batch(const merging *k, int64_t *next, char *sums, int64_t first, int64_t last)
{
  const shf_row_merge *m = k->m;
  const char *term[MOST_ROWS][2]; /* what a row is made of so far: their sum */
  int64_t cell = cell_of(m);
  memset(term, 0, (size_t)(last - first) * sizeof *term);
  for (int64_t p = 0; p < m->parts; p++) {
    const shf_row_part *part = &m->part[p];
    for (; next[p] < part->count; next[p]++) {
      int64_t row = id_at(m, part, next[p]);
      if (row >= last) break;
      const char **known = term[row - first], *more = part->rows + next[p] * cell;
      if (!known[0]) {
        known[0] = more;
      } else {
        char *sum = sums ? sums + (row - first) * cell : NULL;
        if (known[1]) {
          k->add->add(sum, known[0], known[1], cell);
          known[0] = sum;
        }
        known[1] = more;
      }
    }
  }
  for (int64_t row = first; row < last; row++) {
    const char **known = term[row - first];
    char *to = k->total + row * cell;
    if (known[1])
      k->store->add(to, known[0], known[1], cell);
    else if (known[0])
      k->store->copy(to, known[0], cell);
    else
      k->store->zero(to, cell);
  }
}

static void merge_share(const void *context, int thread, int64_t first, int64_t last)
{
  const merging *k = context;
  const shf_row_merge *m = k->m;
  int64_t batch = batch_of(m), *next = m->next + thread * m->parts;
  char *sums = m->sums ? m->sums + thread * batch * cell_of(m) : NULL;
  unsigned mode = shf_core_fp_enter();
  for (int64_t p = 0; p < m->parts; p++) next[p] = first_term(m, &m->part[p], first);
  for (int64_t row = first; row < last; row += batch)
    merge_batch(k, next, sums, row, row + batch < last ? row + batch : last);
  shf_core_fp_leave(mode);
  k->store->end();
}

/* ---- On a device ------------------------------------------------------------------------------------------------- */

/* Each row is named once, so that accumulating the gradient of a lookup adds one term to each. */
static sheaf_status add_part(shf_call *c, const shf_row_merge *m, const shf_row_part *part, void *named, void *total)
{
  SHF_TRY(shf_space_write(c->site.device, named, part->ids, part->count * shf_core_dtype_size(m->number)));
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.kind = SHEAF_LOOKUP_BACKWARD;
  desc.dtype = m->acc;
  desc.index_dtype = m->number;
  desc.rows = m->rows;
  desc.row_begin = m->first;
  desc.total_rows = m->first + m->rows;
  desc.dim = m->columns;
  desc.indices = part->count;
  desc.grad_write = SHEAF_GRAD_ACCUMULATE;
  shf_local index, term, sum;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.indices = shf_local_vector(&index, c->site, m->number, named, part->count);
  args.grad_out = shf_local_matrix(&term, c->site, m->acc, part->rows, part->count, m->columns);
  args.table_grad = shf_local_matrix(&sum, c->site, m->acc, total, m->rows, m->columns);
  return shf_local_embedding(c->site, &desc, &args);
}

/* ---- Both -------------------------------------------------------------------------------------------------------- */

sheaf_status shf_merge_ready(shf_call *c, shf_row_merge *m)
{
  void *memory;
  m->threads = sheaf_threads();
  SHF_TRY(shf_pool_get(&c->pool, m->parts * (int64_t)sizeof *m->part, &memory));
  m->part = memory;
  if (!shf_is_host(c->site.device)) return SHEAF_OK;
  SHF_TRY(shf_pool_get(&c->pool, m->threads * m->parts * (int64_t)sizeof *m->next, &memory));
  m->next = memory;
  if (m->parts <= 2) return SHEAF_OK; /* nothing is added before the last term is there */
  SHF_TRY(shf_pool_get(&c->pool, m->threads * batch_of(m) * cell_of(m), &memory));
  m->sums = memory;
  return SHEAF_OK;
}

sheaf_status shf_merge_run(shf_call *c, const shf_row_merge *m, void *total)
{
  int64_t cell = cell_of(m);
  if (cell == 0 || m->rows == 0) return SHEAF_OK;
  if (shf_is_host(c->site.device)) {
    const merging k = {m, total, shf_row_ops_for(total, m->rows, cell, m->acc), shf_row_ops_near(m->acc)};
    shf_share(merge_share, &k, m->rows, m->rows * cell, m->threads);
    return SHEAF_OK;
  }
  SHF_TRY(shf_space_zero(c->site.device, total, m->rows * cell));
  int64_t most = 0;
  void *named = NULL; /* one place for all, since a call has room for few blocks and a mesh may have many ranks */
  for (int64_t p = 0; p < m->parts; p++) most = m->part[p].count > most ? m->part[p].count : most;
  SHF_TRY(shf_call_get(c, most * shf_core_dtype_size(m->number), &named));
  for (int64_t p = 0; p < m->parts; p++)
    if (m->part[p].count > 0) SHF_TRY(add_part(c, m, &m->part[p], named, total));
  return SHEAF_OK;
}
