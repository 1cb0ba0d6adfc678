/* shard/rows.c: rows by their numbers, fetched, put into an output, and added to.
 *
 * On the CPU these are loops of this file's own, which cannot fail, so that they can run after ranks have agreed, and
 * between the halves of an exchange. On a device a lookup and its gradient are used as tools. */
#include <omp.h>
#include <string.h>

#include "core/cpu.h"
#include "shard/shard_call.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* ---- Threads ------------------------------------------------------------------------------------------------------ */

typedef void share_fn(const void *context, int64_t first, int64_t last);

/* Does items 0 .. count - 1, which move so many bytes, on all threads when that is worth waking them. */
static void share(share_fn *work, const void *context, int64_t count, int64_t bytes)
{
  enum { WORTH = 1 << 20 };
  int threads = bytes < WORTH ? 1 : sheaf_threads();
  if (threads <= 1) {
    work(context, 0, count);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    int64_t parts = omp_get_num_threads(), part = omp_get_thread_num();
    work(context, count / parts * part + (count % parts) * part / parts,
         count / parts * (part + 1) + (count % parts) * (part + 1) / parts);
  }
}

/* ---- Copying ------------------------------------------------------------------------------------------------------ */

enum { LINE = 64, AHEAD_BYTES = 12 << 10, AHEAD_LEAST = 4, AHEAD_MOST = 128, STREAM_BYTES = 8 << 20 };

/* Whether rows are stored past the cache: there are too many for it, and they are whole lines. */
static int is_streamed(const void *to, int64_t count, int64_t row_bytes)
{
  return count * row_bytes >= STREAM_BYTES && (uintptr_t)to % LINE == 0 && row_bytes % LINE == 0;
}

static void copy_row(char *to, const char *from, int64_t bytes, int streamed)
{
#if defined(__SSE2__)
  if (streamed) {
    for (int64_t at = 0; at < bytes; at += LINE)
      for (int64_t word = at; word < at + LINE; word += 16)
        _mm_stream_si128((__m128i *)(void *)(to + word), _mm_loadu_si128((const __m128i *)(const void *)(from + word)));
    return;
  }
#else
  (void)streamed;
#endif
  memcpy(to, from, (size_t)bytes);
}

static void end_stream(int streamed)
{
#if defined(__SSE2__)
  if (streamed) _mm_sfence();
#else
  (void)streamed;
#endif
}

static void ask_for(const char *row, int64_t bytes)
{
  for (int64_t at = 0; at < bytes; at += LINE) __builtin_prefetch(row + at, 0, 2);
}

/* How many rows are asked for at a time, before those that were asked for last are used. */
static int64_t burst_of(int64_t row_bytes)
{
  int64_t burst = AHEAD_BYTES / row_bytes;
  return burst < AHEAD_LEAST ? AHEAD_LEAST : burst > AHEAD_MOST ? AHEAD_MOST : burst;
}

typedef struct fetching {
  const shf_row_source *source;
  const int64_t *ids;
  char *rows;
  int streamed;
} fetching;

static const char *source_row(const fetching *f, int64_t at)
{
  return (const char *)f->source->data + (f->ids[at] - f->source->first) * f->source->row_bytes;
}

static void fetch_rows(const void *context, int64_t first, int64_t last)
{
  const fetching *f = context;
  int64_t bytes = f->source->row_bytes, burst = burst_of(bytes), asked = first;
  for (int64_t i = first; i < last; i++) {
    for (int64_t end; asked < last && asked <= i + burst;)
      for (end = asked + burst < last ? asked + burst : last; asked < end; asked++)
        ask_for(source_row(f, asked), bytes);
    copy_row(f->rows + i * bytes, source_row(f, i), bytes, f->streamed);
  }
  end_stream(f->streamed);
}

typedef struct spreading {
  const shf_row_spread *spread;
  int64_t lo; /* of the places at hand */
  int streamed;
} spreading;

static const char *row_of_place(const shf_row_spread *s, int64_t place)
{
  return s->rows + (s->ids ? s->ids[place] - s->first : place - s->first) * s->row_bytes;
}

static void spread_rows(const void *context, int64_t first, int64_t last)
{
  const spreading *k = context;
  const shf_row_spread *s = k->spread;
  int64_t bytes = s->row_bytes, burst = burst_of(bytes), asked = first;
  for (int64_t i = first; i < last; i++) {
    for (int64_t end; asked < last && asked <= i + burst;)
      for (end = asked + burst < last ? asked + burst : last; asked < end; asked++)
        ask_for(row_of_place(s, k->lo + asked), bytes);
    const char *row = row_of_place(s, k->lo + i);
    for (int64_t entry = s->head[k->lo + i]; entry >= 0; entry = s->next[entry])
      copy_row(s->out + entry * bytes, row, bytes, k->streamed);
  }
  end_stream(k->streamed);
}

void shf_rows_spread(const shf_row_spread *s, int64_t lo, int64_t hi)
{
  const spreading k = {s, lo, is_streamed(s->out, s->entries, s->row_bytes)};
  if (s->row_bytes > 0 && lo < hi) share(spread_rows, &k, hi - lo, (hi - lo) * s->row_bytes);
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

sheaf_status shf_call_fetch(shf_call *c, const shf_row_source *source, const int64_t *ids, int64_t count, void *rows)
{
  int64_t row_bytes = source->row_bytes;
  if (row_bytes == 0 || count == 0) return SHEAF_OK;
  if (shf_is_host(c->site.device)) {
    const fetching f = {source, ids, rows, is_streamed(rows, count, row_bytes)};
    share(fetch_rows, &f, count, count * row_bytes);
    return SHEAF_OK;
  }
  sheaf_dtype type = copy_type(source->data, row_bytes);
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

/* ---- Adding ------------------------------------------------------------------------------------------------------- */

typedef struct adding {
  const shf_row_terms *t;
  const int64_t *ids;
  const char *terms;
  char *total;
} adding;

static void add_row(sheaf_dtype acc, char *total, const char *term, int64_t columns)
{
  if (acc == SHEAF_F64)
    for (int64_t i = 0; i < columns; i++) ((double *)(void *)total)[i] += ((const double *)(const void *)term)[i];
  else
    for (int64_t i = 0; i < columns; i++) ((float *)(void *)total)[i] += ((const float *)(const void *)term)[i];
}

static void add_rows(const void *context, int64_t first, int64_t last)
{
  const adding *a = context;
  int64_t cell = a->t->columns * shf_core_dtype_size(a->t->acc), burst = burst_of(cell), asked = first;
  unsigned mode = shf_core_fp_enter();
  for (int64_t i = first; i < last; i++) {
    for (int64_t end; asked < last && asked <= i + burst;)
      for (end = asked + burst < last ? asked + burst : last; asked < end; asked++)
        ask_for(a->total + (a->ids[asked] - a->t->first) * cell, cell);
    add_row(a->t->acc, a->total + (a->ids[i] - a->t->first) * cell, a->terms + i * cell, a->t->columns);
  }
  shf_core_fp_leave(mode);
}

sheaf_status shf_call_add_rows(shf_call *c, const shf_row_terms *t, const int64_t *ids, int64_t count,
                               const void *terms, void *total)
{
  int64_t cell = t->columns * shf_core_dtype_size(t->acc);
  if (count == 0 || cell == 0) return SHEAF_OK;
  if (shf_is_host(c->site.device)) {
    share(add_rows, &(adding){t, ids, terms, total}, count, count * cell); /* all rows differ */
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
