/* shard/rows.c: rows by their numbers, fetched, and put where entries name them.
 *
 * On the CPU these are loops of this file's own, which cannot fail, so that they can run after ranks have agreed, and
 * between the halves of an exchange. On a device a lookup is used as a tool. */
#include "shard/row_copy.h"
#include "shard/shard_call.h"

/* ---- Fetching ---------------------------------------------------------------------------------------------------- */

typedef struct fetching {
  const shf_row_source *source;
  sheaf_dtype number;
  const void *ids;
  char *rows;
  const shf_row_ops *ops;
} fetching;

static inline const char *source_row(const fetching *f, int64_t at)
{
  int64_t id = f->number == SHEAF_I32 ? ((const int32_t *)f->ids)[at] : ((const int64_t *)f->ids)[at];
  return (const char *)f->source->data + (id - f->source->first) * f->source->row_bytes;
}

/* Burst by burst: rows are asked for while those before them are copied. */
static void fetch_rows(const void *context, int thread, int64_t first, int64_t last)
{
  const fetching *f = context;
  const char *from[2][SHF_BURST];
  int64_t bytes = f->source->row_bytes, burst = shf_burst_of(bytes), asked = first;
  (void)thread;
  for (int64_t i = first - burst, turn = 0; i < last; i += burst, turn = !turn) {
    for (int64_t end = asked + burst < last ? asked + burst : last, k = 0; asked < end; asked++, k++)
      shf_ask_for(from[turn][k] = source_row(f, asked), bytes);
    if (i >= first) f->ops->collect(f->rows + i * bytes, from[!turn], last - i < burst ? last - i : burst, bytes);
  }
  f->ops->end();
}

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

sheaf_status shf_call_fetch(shf_call *c, const shf_row_source *source, sheaf_dtype number, const void *ids,
                            int64_t count, void *rows)
{
  int64_t row_bytes = source->row_bytes;
  if (row_bytes == 0 || count == 0) return SHEAF_OK;
  if (shf_is_host(c->site.device)) {
    const fetching f = {source, number, ids, rows, shf_row_ops_for(rows, count, row_bytes, SHEAF_F32)};
    shf_share(fetch_rows, &f, count, count * row_bytes, sheaf_threads());
    return SHEAF_OK;
  }
  sheaf_dtype type = copy_type(source->data, row_bytes);
  for (int64_t i = 0; type == SHEAF_DTYPE_NONE && i < count; i++)
    SHF_TRY(shf_space_copy(c->site.device, (char *)rows + i * row_bytes,
                           (const char *)source->data + (shf_load_index(number, ids, i) - source->first) * row_bytes,
                           row_bytes));
  if (type == SHEAF_DTYPE_NONE) return SHEAF_OK;
  const void *named;
  SHF_TRY(shf_call_write(c, ids, count * shf_core_dtype_size(number), &named));
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.dtype = type;
  desc.index_dtype = number;
  desc.rows = source->rows;
  desc.row_begin = source->first;
  desc.total_rows = source->first + source->rows;
  desc.dim = row_bytes / shf_core_dtype_size(type);
  desc.indices = count;
  shf_local local, index, out;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.table = shf_local_matrix(&local, c->site, type, source->data, desc.rows, desc.dim);
  args.indices = shf_local_vector(&index, c->site, number, named, count);
  args.out = shf_local_matrix(&out, c->site, type, rows, count, desc.dim);
  return shf_local_embedding(c->site, &desc, &args);
}

/* ---- Entries ----------------------------------------------------------------------------------------------------- */

typedef struct copying {
  const shf_dispatch *d;
  const char *own, *brought;
  int64_t row_bytes;
  char *out;
  const shf_row_ops *ops;
} copying;

/* Where the rows of a block of entries are; NULL: nowhere. */
typedef struct block {
  int64_t count;
  const char *from[SHF_ENTRIES];
} block;

/* Entries first .. last - 1, at most a block of them. Whose rows they name cannot be foretold, so that there is no
 * branch for it. */
static void find_rows(const copying *k, int64_t first, int64_t last, block *b)
{
  const shf_dispatch *d = k->d;
  int64_t rows[SHF_ENTRIES], places[SHF_ENTRIES], lo = d->row_lo, bytes = k->row_bytes;
  const uint64_t own = (uint64_t)(d->row_hi - lo), away = (uint64_t)d->away;
  b->count = first >= last ? 0 : last - first < SHF_ENTRIES ? last - first : SHF_ENTRIES;
  if (b->count == 0) return;
  shf_dispatch_rows(d, first, b->count, rows);
  shf_dispatch_places(d, rows, b->count, places);
  for (int64_t i = 0; i < b->count; i++) { /* a skipped entry's row and place are -1, beyond all */
    int is_own = (uint64_t)(rows[i] - lo) < own, is_away = (uint64_t)places[i] < away;
    const char *base = is_own ? k->own : k->brought;
    int64_t at = (is_own ? rows[i] - lo : places[i]) * bytes;
    b->from[i] = is_own | is_away ? base + at : NULL;
  }
}

/* Asks for rows of two blocks that follow each other, counted from the first of `now`, up to `end`. */
static void ask_until(const copying *k, const block *now, const block *next, int64_t *asked, int64_t end)
{
  int64_t all = now->count + next->count;
  for (; *asked < end && *asked < all; ++*asked) {
    const char *row = *asked < now->count ? now->from[*asked] : next->from[*asked - now->count];
    if (row) shf_ask_for(row, k->row_bytes);
  }
}

static void copy_entries(const void *context, int thread, int64_t first, int64_t last)
{
  const copying *k = context;
  block blocks[2], *now = &blocks[0], *next = &blocks[1];
  int64_t bytes = k->row_bytes, burst = shf_burst_of(bytes), asked = 0;
  (void)thread;
  find_rows(k, first, last, now);
  for (int64_t at = first; at < last; at += SHF_ENTRIES) {
    find_rows(k, at + SHF_ENTRIES, last, next);
    for (int64_t i = 0; i < now->count; i += burst) {
      ask_until(k, now, next, &asked, i + 2 * burst);
      k->ops->collect(k->out + (at + i) * bytes, now->from + i, now->count - i < burst ? now->count - i : burst, bytes);
    }
    asked -= now->count;
    block *swap = now;
    now = next;
    next = swap;
  }
  k->ops->end();
}

void shf_dispatch_copy(const shf_dispatch *d, const void *own, const void *brought, int64_t row_bytes, void *out)
{
  const copying k = {d, own, brought, row_bytes, out, shf_row_ops_for(out, d->entries, row_bytes, SHEAF_F32)};
  if (row_bytes > 0 && d->entries > 0) shf_share(copy_entries, &k, d->entries, d->entries * row_bytes, sheaf_threads());
}
