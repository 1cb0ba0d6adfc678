/* grouping.c: groups entries by row: a stable, parallel radix sort of (row, position) packed into 64 bits, over the
 * bits of the row only. Padding, bad entries and rows held elsewhere are dropped on the way in. */
#include <inttypes.h>
#include <string.h>

#include "plan/plan_impl.h"

enum { MAX_DIGIT_BITS = 11, MAX_VALUE_BYTES = 4, GROUPING_MAGIC = 0x51ea4671 };

/* Where entries have few keys, every count waits for the one before it, some five cycles: the share of a thread is cut
 * into strands with counts of their own, which take turns. */
enum { STRANDS = 4, MAX_STRAND_BITS = 8 };

/* What a grouping was made for: a run with another description is refused. */
typedef struct fingerprint {
  int64_t magic;
  int64_t batch, entries, groups, row_begin, rows, padding, bags, bag_length, columns, payload_is_bag, with_bag_of;
} fingerprint;

typedef struct grouping_header {
  fingerprint made_for;
  int64_t sorted; /* where the sorted entries lie, in bytes from here */
} grouping_header;

static int bits_for(uint64_t values) { return values <= 1 ? 0 : 64 - __builtin_clzll(values - 1); }

static int payload_bits(const shf_grouping_spec *spec)
{
  if (spec->value_bytes) return 8 * MAX_VALUE_BYTES;
  return bits_for((uint64_t)(spec->payload_is_bag ? spec->bags : spec->entries));
}

static int key_bits(const shf_grouping_spec *spec) { return bits_for((uint64_t)(spec->batch * spec->groups)); }

static int passes_of(const shf_grouping_spec *spec)
{
  int passes = (key_bits(spec) + MAX_DIGIT_BITS - 1) / MAX_DIGIT_BITS;
  return passes ? passes : 1;
}

static int digit_bits(const shf_grouping_spec *spec)
{
  return (key_bits(spec) + passes_of(spec) - 1) / passes_of(spec);
}

sheaf_status shf_plan_check_grouping(const shf_grouping_spec *spec)
{
  SHF_REQUIRE(payload_bits(spec) + key_bits(spec) <= 63, UNSUPPORTED,
              "grouping %" PRId64 " entries by %" PRId64 " rows in %" PRId64
              " problems needs %d bits each, 63 are there",
              spec->entries, spec->groups, spec->batch, payload_bits(spec) + key_bits(spec));
  return SHEAF_OK;
}

static int strands_of(const shf_grouping_spec *spec) { return digit_bits(spec) <= MAX_STRAND_BITS ? STRANDS : 1; }

/* Counts of one share; shares do not meet in a line of the cache. */
static int64_t histogram_bytes(const shf_grouping_spec *spec) { return shf_align64((int64_t)8 << digit_bits(spec)); }

int shf_plan_groups_values(const shf_grouping_spec *spec, int64_t value_bytes)
{
  return value_bytes <= MAX_VALUE_BYTES && key_bits(spec) + 8 * MAX_VALUE_BYTES <= 63;
}

/* ---- Layout of the caller's memory ---- */

typedef struct grouping_layout {
  int64_t problem_start, bag_of, entries[2], histograms, total;
} grouping_layout;

static int bag_of_wide(const shf_grouping_spec *spec) { return spec->bags > UINT32_MAX; }

static grouping_layout layout_of(const shf_grouping_spec *spec)
{
  int64_t all = spec->batch * spec->entries;
  grouping_layout at;
  at.problem_start = shf_align64(sizeof(grouping_header));
  at.bag_of = at.problem_start + shf_align64((spec->batch + 1) * 8);
  at.entries[0] = at.bag_of + shf_align64(spec->with_bag_of ? all * (bag_of_wide(spec) ? 8 : 4) : 0);
  at.entries[1] = at.entries[0] + shf_align64(all * 8);
  at.histograms = at.entries[1] + (passes_of(spec) > 1 ? shf_align64(all * 8) : 0);
  at.total = at.histograms + spec->threads * strands_of(spec) * histogram_bytes(spec);
  return at;
}

int64_t shf_plan_grouping_bytes(const shf_grouping_spec *spec) { return layout_of(spec).total; }

int64_t shf_plan_grouping_read_bytes(const shf_grouping_spec *spec) { return layout_of(spec).histograms; }

static fingerprint fingerprint_of(const shf_grouping_spec *spec)
{
  return (fingerprint){GROUPING_MAGIC,   spec->batch,   spec->entries,        spec->groups,
                       spec->row_begin,  spec->rows,    spec->padding,        spec->bags,
                       spec->bag_length, spec->columns, spec->payload_is_bag, spec->with_bag_of};
}

/* ---- Sorting ---- */

typedef struct sorter {
  const shf_grouping_spec *spec;
  int threads, shift, bits; /* of the payload; of a digit */
  int strands, digit_shift;
  const uint64_t *from; /* NULL: the first pass, which reads indices */
  uint64_t *to;
  int64_t count;    /* entries in `from` */
  char *histograms; /* one per share: counts, then next places */
  void *bag_of;
} sorter;

static int64_t bag_end(const shf_grouping_spec *spec, const char *offsets, int64_t bag)
{
  if (spec->bag_length >= 0) return (bag + 1) * spec->bag_length;
  if (bag + 1 == spec->bags && !spec->offsets_end) return spec->entries;
  return shf_plan_index_at(offsets, bag + 1, spec->offsets_wide);
}

/* The last bag that starts at or before the entry. */
static int64_t bag_holding(const shf_grouping_spec *spec, const char *offsets, int64_t entry)
{
  int64_t low = 0, high = spec->bags;
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (bag_end(spec, offsets, middle - 1) <= entry)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* Key of an index within its problem, or -1 when the entry is dropped. */
static inline int64_t key_of_index(const shf_grouping_spec *spec, int64_t index)
{
  uint64_t row = (uint64_t)index - (uint64_t)spec->row_begin;
  return row < (uint64_t)spec->rows && index != spec->padding ? (int64_t)row : -1;
}

/* Where entries go by one digit: counted first, placed then. A copy in local variables, which stores cannot change. */
typedef struct digits {
  int64_t *histogram;
  uint64_t *to;
  uint64_t mask;
  int shift;
} digits;

static inline void take(digits d, uint64_t digit, uint64_t packed, const int scatter)
{
  if (scatter) {
    uint64_t *to = d.to + d.histogram[digit & d.mask]++;
    *to = packed;
    __builtin_prefetch(to + 16, 1, 3);
  } else
    d.histogram[digit & d.mask]++;
}

/* The first pass over entries first .. last - 1 of one problem, whose keys are cells of arg. */
static void take_cells(const sorter *s, digits d, int64_t problem, int64_t first, int64_t last, const int scatter)
{
  const shf_grouping_spec *spec = s->spec;
  const char *rows = spec->index.data + problem * spec->index.batch_stride;
  int64_t base = problem * spec->groups, row = first / spec->columns, column = first % spec->columns;
  for (int64_t n = first; n < last; n++) {
    int64_t key = key_of_index(spec, shf_plan_index_at(rows + row * spec->index.row_stride, column, spec->wide));
    uint64_t cell = (uint64_t)(base + key * spec->columns + column);
    if (key >= 0) take(d, cell, cell << s->shift | (uint64_t)n, scatter);
    if (++column == spec->columns) row++, column = 0;
  }
}

/* What is packed below the key. */
typedef enum payload { PAYLOAD_POSITION, PAYLOAD_BAG, PAYLOAD_VALUE } payload;

/* The entries of one problem. A copy in local variables, like `digits`. */
typedef struct entries {
  const char *indices, *values;
  int64_t value_stride, row_begin, padding;
  uint64_t base, rows; /* the first key */
  int shift, value_bytes;
} entries;

static entries entries_of(const sorter *s, int64_t problem)
{
  const shf_grouping_spec *spec = s->spec;
  return (entries){.indices = spec->index.data + problem * spec->index.batch_stride,
                   .values = spec->value_bytes ? spec->values.data + problem * spec->values.batch_stride : NULL,
                   .value_stride = spec->values.row_stride,
                   .row_begin = spec->row_begin,
                   .padding = spec->padding,
                   .base = (uint64_t)(problem * spec->groups),
                   .rows = (uint64_t)spec->rows,
                   .shift = s->shift,
                   .value_bytes = spec->value_bytes};
}

static inline uint64_t value_bits(const entries *e, int64_t n)
{
  const char *value = e->values + n * e->value_stride;
  uint32_t wide;
  uint16_t narrow;
  if (e->value_bytes == 4) {
    memcpy(&wide, value, sizeof wide);
    return wide;
  }
  memcpy(&narrow, value, sizeof narrow);
  return narrow;
}

static inline __attribute__((always_inline)) void take_entry(const entries *e, digits d, int64_t n, int64_t bag,
                                                             const int wide, const payload kind, const int scatter)
{
  int64_t index = shf_plan_index_at(e->indices, n, wide);
  uint64_t row = (uint64_t)index - (uint64_t)e->row_begin, key = e->base + row, packed = 0;
  if (row >= e->rows || index == e->padding) return;
  if (scatter && kind == PAYLOAD_VALUE)
    packed = key << (8 * MAX_VALUE_BYTES) | value_bits(e, n);
  else if (scatter)
    packed = key << e->shift | (uint64_t)(kind == PAYLOAD_BAG ? bag : n);
  take(d, key, packed, scatter);
}

/* The same of indices. */
static inline __attribute__((always_inline)) void take_indices(const sorter *s, digits d, int64_t problem,
                                                               int64_t first, int64_t last, const int wide,
                                                               const payload kind, const int scatter)
{
  const shf_grouping_spec *spec = s->spec;
  const entries e = entries_of(s, problem);
  if (kind != PAYLOAD_BAG) {
    for (int64_t n = first; n < last; n++) take_entry(&e, d, n, 0, wide, kind, scatter);
    return;
  }
  const char *offsets = spec->offsets.data ? spec->offsets.data + problem * spec->offsets.batch_stride : NULL;
  for (int64_t bag = bag_holding(spec, offsets, first), n = first; n < last; bag++) {
    int64_t end = bag_end(spec, offsets, bag);
    for (int64_t stop = end < last ? end : last; n < stop; n++) take_entry(&e, d, n, bag, wide, kind, scatter);
  }
}

/* Notes the bag of every entry, where neither payload nor length tells it. */
static void note_bags(const sorter *s, int64_t problem, int64_t first, int64_t last)
{
  const shf_grouping_spec *spec = s->spec;
  const char *offsets = spec->offsets.data ? spec->offsets.data + problem * spec->offsets.batch_stride : NULL;
  int64_t bag = bag_holding(spec, offsets, first), end = bag_end(spec, offsets, bag);
  for (int64_t n = first; n < last; n++) {
    while (n >= end) end = bag_end(spec, offsets, ++bag);
    if (bag_of_wide(spec))
      ((int64_t *)s->bag_of)[problem * spec->entries + n] = bag;
    else
      ((uint32_t *)s->bag_of)[problem * spec->entries + n] = (uint32_t)bag;
  }
}

static inline __attribute__((always_inline)) void take_problem(const sorter *s, digits d, int64_t problem,
                                                               int64_t first, int64_t last, const int scatter)
{
  const shf_grouping_spec *spec = s->spec;
  if (spec->with_bag_of && scatter) note_bags(s, problem, first, last);
  if (spec->columns)
    take_cells(s, d, problem, first, last, scatter);
  else if (spec->payload_is_bag && spec->wide)
    take_indices(s, d, problem, first, last, 1, PAYLOAD_BAG, scatter);
  else if (spec->payload_is_bag)
    take_indices(s, d, problem, first, last, 0, PAYLOAD_BAG, scatter);
  else if (spec->value_bytes && spec->wide)
    take_indices(s, d, problem, first, last, 1, PAYLOAD_VALUE, scatter);
  else if (spec->value_bytes)
    take_indices(s, d, problem, first, last, 0, PAYLOAD_VALUE, scatter);
  else if (spec->wide)
    take_indices(s, d, problem, first, last, 1, PAYLOAD_POSITION, scatter);
  else
    take_indices(s, d, problem, first, last, 0, PAYLOAD_POSITION, scatter);
}

/* Entries first .. last - 1 over all problems. */
static inline __attribute__((always_inline)) void take_range(const sorter *s, digits d, int64_t at, int64_t last,
                                                             const int scatter)
{
  const shf_grouping_spec *spec = s->spec;
  if (s->from) {
    for (const uint64_t *from = s->from; at < last; at++) take(d, from[at] >> d.shift, from[at], scatter);
    return;
  }
  while (at < last) {
    int64_t problem = at / spec->entries, first = at % spec->entries;
    int64_t end = spec->entries - first < last - at ? spec->entries : first + last - at;
    take_problem(s, d, problem, first, end, scatter);
    at += end - first;
  }
}

/* Four ranges abreast, of positions or values in one problem; returns how many of each have been taken. */
static inline __attribute__((always_inline)) int64_t take_abreast(const sorter *s, const digits *d, const int64_t *at,
                                                                  int64_t count, const int wide, const payload kind,
                                                                  const int scatter)
{
  const entries e = entries_of(s, 0);
  digits d0 = d[0], d1 = d0, d2 = d0, d3 = d0;
  d1.histogram = d[1].histogram;
  d2.histogram = d[2].histogram;
  d3.histogram = d[3].histogram;
  for (int64_t i = 0; i < count; i++) {
    take_entry(&e, d0, at[0] + i, 0, wide, kind, scatter);
    take_entry(&e, d1, at[1] + i, 0, wide, kind, scatter);
    take_entry(&e, d2, at[2] + i, 0, wide, kind, scatter);
    take_entry(&e, d3, at[3] + i, 0, wide, kind, scatter);
  }
  return count;
}

static inline __attribute__((always_inline)) void take_share(const sorter *s, int thread, const int scatter)
{
  const shf_grouping_spec *spec = s->spec;
  const int64_t all = s->from ? s->count : spec->batch * spec->entries;
  int64_t at[STRANDS + 1], done = 0, shares = (int64_t)s->threads * s->strands;
  digits d[STRANDS];
  for (int i = 0; i <= s->strands; i++) at[i] = shf_plan_share(all, (int64_t)thread * s->strands + i, shares);
  for (int i = 0; i < s->strands; i++) {
    int64_t *histogram = (int64_t *)(void *)(s->histograms + (thread * s->strands + i) * histogram_bytes(spec));
    d[i] = (digits){histogram, s->to, (1ull << s->bits) - 1, s->digit_shift};
    if (!scatter) memset(histogram, 0, sizeof *histogram << s->bits);
  }
  if (s->strands == STRANDS && all > 0 && !s->from && spec->batch == 1 && !spec->columns && !spec->payload_is_bag &&
      !spec->with_bag_of) {
    int64_t count = at[1] - at[0];
    for (int i = 1; i < STRANDS; i++) count = at[i + 1] - at[i] < count ? at[i + 1] - at[i] : count;
    if (spec->value_bytes)
      done = spec->wide ? take_abreast(s, d, at, count, 1, PAYLOAD_VALUE, scatter)
                        : take_abreast(s, d, at, count, 0, PAYLOAD_VALUE, scatter);
    else
      done = spec->wide ? take_abreast(s, d, at, count, 1, PAYLOAD_POSITION, scatter)
                        : take_abreast(s, d, at, count, 0, PAYLOAD_POSITION, scatter);
  }
  for (int i = 0; i < s->strands; i++) take_range(s, d[i], at[i] + done, at[i + 1], scatter);
}

static void count_share(void *context, int thread) { take_share(context, thread, 0); }
static void scatter_share(void *context, int thread) { take_share(context, thread, 1); }

/* Turns counts into first places: digit by digit, and within a digit share by share, which keeps the sort stable. */
static int64_t place_digits(sorter *s)
{
  int64_t place = 0;
  for (int64_t digit = 0; digit < (int64_t)1 << s->bits; digit++)
    for (int64_t share = 0; share < (int64_t)s->threads * s->strands; share++) {
      int64_t *slot = (int64_t *)(void *)(s->histograms + share * histogram_bytes(s->spec)) + digit, count = *slot;
      *slot = place;
      place += count;
    }
  return place;
}

/* Where each problem's entries begin in the sorted sequence. */
static void find_problems(const shf_grouping_spec *spec, const uint64_t *sorted, int64_t count, int shift,
                          int64_t *starts)
{
  starts[0] = 0;
  for (int64_t p = 1; p <= spec->batch; p++) {
    uint64_t bound = (uint64_t)(p * spec->groups);
    int64_t low = starts[p - 1], high = count;
    while (low < high) {
      int64_t middle = low + (high - low) / 2;
      if (sorted[middle] >> shift < bound)
        low = middle + 1;
      else
        high = middle;
    }
    starts[p] = low;
  }
}

/* The finished grouping that lies in `memory`. */
static shf_grouped grouping_in(const shf_grouping_spec *spec, const void *memory)
{
  const char *base = memory;
  grouping_layout at = layout_of(spec);
  return (shf_grouped){.entries = (const uint64_t *)(const void *)(base + ((const grouping_header *)memory)->sorted),
                       .problem_start = (const int64_t *)(const void *)(base + at.problem_start),
                       .shift = payload_bits(spec),
                       .payload_is_bag = spec->payload_is_bag,
                       .payload_is_value = spec->value_bytes > 0,
                       .bag_of = spec->with_bag_of ? base + at.bag_of : NULL,
                       .bag_of_wide = bag_of_wide(spec)};
}

shf_grouped shf_plan_group(const shf_grouping_spec *spec, void *memory)
{
  char *base = memory;
  grouping_layout at = layout_of(spec);
  sorter s = {.spec = spec, .shift = payload_bits(spec), .bits = digit_bits(spec), .strands = strands_of(spec)};
  s.histograms = base + at.histograms;
  s.bag_of = base + at.bag_of;
  s.threads = shf_plan_worth(spec->batch * spec->entries * 16, spec->threads);
  int64_t sorted = at.entries[0];
  for (int pass = 0; pass < passes_of(spec); pass++) {
    sorted = at.entries[pass % 2];
    s.to = (uint64_t *)(void *)(base + sorted);
    s.digit_shift = s.shift + pass * s.bits;
    shf_plan_parallel(s.threads, count_share, &s);
    s.count = place_digits(&s);
    shf_plan_parallel(s.threads, scatter_share, &s);
    s.from = s.to;
  }
  find_problems(spec, s.to, s.count, s.shift, (int64_t *)(void *)(base + at.problem_start));
  *(grouping_header *)memory = (grouping_header){fingerprint_of(spec), sorted};
  return grouping_in(spec, memory);
}

sheaf_status shf_plan_given_grouping(const shf_grouping_spec *spec, const void *memory, size_t bytes, int promised,
                                     shf_grouped *grouped)
{
  *grouped = (shf_grouped){.entries = NULL};
  SHF_REQUIRE(memory || !promised, INVALID_PROBLEM,
              "the description says that a grouping is given, but args.grouping is NULL");
  if (!memory) return SHEAF_OK;
  /* Another plan of the same batch may have had other threads: only what is read has to be there. */
  SHF_TRY(shf_plan_check_memory("grouping", memory, bytes, shf_plan_grouping_read_bytes(spec), SHEAF_BUFFER_TOO_SMALL));
  const grouping_header *header = memory;
  fingerprint expected = fingerprint_of(spec);
  SHF_REQUIRE(memcmp(&header->made_for, &expected, sizeof expected) == 0, INVALID_PROBLEM,
              "the grouping was not made for this description (%" PRId64 " entries by %" PRId64 " rows here, %" PRId64
              " by %" PRId64 " there)",
              expected.entries, expected.groups, header->made_for.entries, header->made_for.groups);
  *grouped = grouping_in(spec, memory);
  return SHEAF_OK;
}
