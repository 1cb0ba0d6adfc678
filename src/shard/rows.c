/* shard/rows.c: rows by their numbers, fetched, and put where entries name them.
 *
 * On the CPU these are loops of this file's own, which cannot fail, so that they can run after ranks have agreed, and
 * between the halves of an exchange. On a device a lookup is used as a tool. */
#include "shard/row_copy.h"

/* ---- Fetching ----------------------------------------------------------------------------------------------------- */

typedef struct fetching {
  const shf_row_source *source;
  sheaf_dtype number;
  const void *ids;
  char *rows;
  int streamed;
} fetching;

static inline const char *source_row(const fetching *f, int64_t at)
{
  int64_t id = f->number == SHEAF_I32 ? ((const int32_t *)f->ids)[at] : ((const int64_t *)f->ids)[at];
  return (const char *)f->source->data + (id - f->source->first) * f->source->row_bytes;
}

static void fetch_rows(const void *context, int thread, int64_t first, int64_t last)
{
  const fetching *f = context;
  int64_t bytes = f->source->row_bytes, burst = shf_burst_of(bytes), asked = first;
  (void)thread;
  for (int64_t i = first; i < last; i++) {
    for (int64_t end; asked < last && asked <= i + burst;)
      for (end = asked + burst < last ? asked + burst : last; asked < end; asked++)
        shf_ask_for(source_row(f, asked), bytes);
    shf_copy_row(f->rows + i * bytes, source_row(f, i), bytes, f->streamed);
  }
  shf_end_stream(f->streamed);
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
    const fetching f = {source, number, ids, rows, shf_is_streamed(rows, count, row_bytes)};
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

/* ---- Entries ------------------------------------------------------------------------------------------------------ */

typedef struct copying {
  const shf_dispatch *d;
  const char *rows;
  int64_t row_bytes;
  char *out;
  shf_entry_kind kind;
  int streamed;
} copying;

/* Entries of a block whose rows are the wanted ones, and where those are. Which they are cannot be foretold, so that there is
 * no branch for it. */
static int64_t choose(const copying *k, const int64_t *rows, int64_t count, int64_t *entry, int64_t *from)
{
  const shf_dispatch *d = k->d;
  int64_t chosen = 0, lo = d->row_lo, places[SHF_ENTRIES];
  const uint64_t own = (uint64_t)(d->row_hi - lo);
  if (k->kind == SHF_ENTRIES_OWN) {
    for (int64_t i = 0; i < count; i++) {
      entry[chosen] = i;
      from[chosen] = rows[i] - lo;
      chosen += (uint64_t)(rows[i] - lo) < own;
    }
    return chosen;
  }
  shf_dispatch_places(d, rows, count, places);
  const int away = k->kind == SHF_ENTRIES_AWAY;
  for (int64_t i = 0; i < count; i++) { /* a skipped entry is at -1, beyond all places */
    entry[chosen] = i;
    from[chosen] = places[i];
    chosen += away ? (uint64_t)places[i] < (uint64_t)d->away : (uint64_t)places[i] >= (uint64_t)d->distinct;
  }
  return chosen;
}

static void copy_block(const copying *k, int64_t first, int64_t count)
{
  int64_t rows[SHF_ENTRIES], entry[SHF_ENTRIES], from[SHF_ENTRIES], bytes = k->row_bytes, asked = 0;
  shf_dispatch_rows(k->d, first, count, rows);
  int64_t chosen = choose(k, rows, count, entry, from), burst = shf_burst_of(bytes);
  char *out = k->out + first * bytes;
  for (int64_t i = 0; k->kind == SHF_ENTRIES_NONE && i < chosen; i++) memset(out + entry[i] * bytes, 0, (size_t)bytes);
  if (k->kind == SHF_ENTRIES_NONE) return;
  for (int64_t i = 0; i < chosen; i++) {
    for (int64_t end; asked < chosen && asked <= i + burst;)
      for (end = asked + burst < chosen ? asked + burst : chosen; asked < end; asked++)
        shf_ask_for(k->rows + from[asked] * bytes, bytes);
    shf_copy_row(out + entry[i] * bytes, k->rows + from[i] * bytes, bytes, k->streamed);
  }
}

static void copy_entries(const void *context, int thread, int64_t first, int64_t last)
{
  const copying *k = context;
  (void)thread;
  for (int64_t at = first; at < last; at += SHF_ENTRIES)
    copy_block(k, at, last - at < SHF_ENTRIES ? last - at : SHF_ENTRIES);
  shf_end_stream(k->streamed);
}

void shf_dispatch_copy(const shf_dispatch *d, shf_entry_kind kind, const void *rows, int64_t row_bytes, void *out)
{
  const copying k = {d, rows, row_bytes, out, kind, shf_is_streamed(out, d->entries, row_bytes)};
  if (row_bytes > 0) shf_share(copy_entries, &k, d->entries, d->entries * row_bytes, sheaf_threads());
}
