/* grouping.c: groups entries by row: a stable, parallel radix sort of (row, position) packed into 64 bits, over the
 * bits of the row only. Padding, bad entries and rows held elsewhere are dropped on the way in. */
#include <inttypes.h>
#include <string.h>

#include "plan/plan_impl.h"

enum { MAX_DIGIT_BITS = 11, GROUPING_MAGIC = 0x51ea4671 };

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
  at.total = at.histograms + shf_align64(spec->threads * ((int64_t)8 << digit_bits(spec)));
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
  int digit_shift;
  const uint64_t *from; /* NULL: the first pass, which reads indices */
  uint64_t *to;
  int64_t count;       /* entries in `from` */
  int64_t *histograms; /* one per thread: counts, then next places */
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

static inline void take(digits d, uint64_t packed, const int scatter)
{
  uint64_t digit = packed >> d.shift & d.mask;
  if (scatter)
    d.to[d.histogram[digit]++] = packed;
  else
    d.histogram[digit]++;
}

/* The first pass over entries first .. last - 1 of one problem, whose keys are cells of arg. */
static void take_cells(const sorter *s, digits d, int64_t problem, int64_t first, int64_t last, const int scatter)
{
  const shf_grouping_spec *spec = s->spec;
  const char *rows = spec->index.data + problem * spec->index.batch_stride;
  int64_t base = problem * spec->groups, row = first / spec->columns, column = first % spec->columns;
  for (int64_t n = first; n < last; n++) {
    int64_t key = key_of_index(spec, shf_plan_index_at(rows + row * spec->index.row_stride, column, spec->wide));
    if (key >= 0) take(d, (uint64_t)(base + key * spec->columns + column) << s->shift | (uint64_t)n, scatter);
    if (++column == spec->columns) row++, column = 0;
  }
}

/* The same of indices; `by_bag`: the payload is the bag. What does not change is a constant or a local variable. */
static inline __attribute__((always_inline)) void take_indices(const sorter *s, digits d, int64_t problem,
                                                               int64_t first, int64_t last, const int wide,
                                                               const int by_bag, const int scatter)
{
  const shf_grouping_spec *spec = s->spec;
  const char *indices = spec->index.data + problem * spec->index.batch_stride;
  const char *offsets = spec->offsets.data ? spec->offsets.data + problem * spec->offsets.batch_stride : NULL;
  const uint64_t base = (uint64_t)(problem * spec->groups), rows = (uint64_t)spec->rows;
  const int64_t row_begin = spec->row_begin, padding = spec->padding;
  const int shift = s->shift;
  int64_t bag = by_bag ? bag_holding(spec, offsets, first) : 0, n = first;
  while (n < last) {
    int64_t end = by_bag ? bag_end(spec, offsets, bag) : last;
    for (int64_t stop = end < last ? end : last; n < stop; n++) {
      int64_t index = shf_plan_index_at(indices, n, wide);
      uint64_t row = (uint64_t)index - (uint64_t)row_begin;
      if (row >= rows || index == padding) continue;
      take(d, (base + row) << shift | (uint64_t)(by_bag ? bag : n), scatter);
    }
    bag++;
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
    take_indices(s, d, problem, first, last, 1, 1, scatter);
  else if (spec->payload_is_bag)
    take_indices(s, d, problem, first, last, 0, 1, scatter);
  else if (spec->wide)
    take_indices(s, d, problem, first, last, 1, 0, scatter);
  else
    take_indices(s, d, problem, first, last, 0, 0, scatter);
}

static inline __attribute__((always_inline)) void take_share(const sorter *s, int thread, const int scatter)
{
  const shf_grouping_spec *spec = s->spec;
  digits d = {s->histograms + ((int64_t)thread << s->bits), s->to, (1ull << s->bits) - 1, s->digit_shift};
  int64_t all = s->from ? s->count : spec->batch * spec->entries;
  int64_t at = shf_plan_share(all, thread, s->threads), last = shf_plan_share(all, thread + 1, s->threads);
  if (!scatter) memset(d.histogram, 0, sizeof *d.histogram << s->bits);
  if (s->from) {
    for (const uint64_t *from = s->from; at < last; at++) take(d, from[at], scatter);
    return;
  }
  while (at < last) {
    int64_t problem = at / spec->entries, first = at % spec->entries;
    int64_t end = spec->entries - first < last - at ? spec->entries : first + last - at;
    take_problem(s, d, problem, first, end, scatter);
    at += end - first;
  }
}

static void count_share(void *context, int thread) { take_share(context, thread, 0); }
static void scatter_share(void *context, int thread) { take_share(context, thread, 1); }

/* Turns counts into first places: digit by digit, and within a digit thread by thread, which keeps the sort stable. */
static int64_t place_digits(sorter *s)
{
  int64_t place = 0;
  for (int64_t digit = 0; digit < (int64_t)1 << s->bits; digit++)
    for (int t = 0; t < s->threads; t++) {
      int64_t *slot = &s->histograms[((int64_t)t << s->bits) + digit], count = *slot;
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
                       .bag_of = spec->with_bag_of ? base + at.bag_of : NULL,
                       .bag_of_wide = bag_of_wide(spec)};
}

shf_grouped shf_plan_group(const shf_grouping_spec *spec, void *memory)
{
  char *base = memory;
  grouping_layout at = layout_of(spec);
  sorter s = {.spec = spec, .shift = payload_bits(spec), .bits = digit_bits(spec)};
  s.histograms = (int64_t *)(void *)(base + at.histograms);
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
