/* shard/row_set.c: see row_set.h. */
#include "shard/row_set.h"

#include <string.h>

#include "core/cpu.h"

enum { BLOCK_BITS = 6, BLOCK = 1 << BLOCK_BITS, DIRECT = 4, DIGIT_BITS = 8 };

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static int64_t all_blocks(int64_t rows) { return (rows >> BLOCK_BITS) + 1; }

static int is_hashed(int64_t rows, int64_t entries) { return all_blocks(rows) / DIRECT > entries + BLOCK; }

/* Twice as many slots as there can be blocks in use. */
static int slot_bits(int64_t entries)
{
  int bits = BLOCK_BITS;
  while ((int64_t)1 << bits < 2 * entries) bits++;
  return bits;
}

int64_t shf_row_set_room(int64_t rows, int64_t entries)
{
  const int64_t block = sizeof(shf_row_block) / sizeof(int64_t);
  if (!is_hashed(rows, entries)) return (all_blocks(rows) + 1) * block;
  return (((int64_t)1 << slot_bits(entries)) + 1) * (block + 1) + 2 * entries; /* slots are sorted to and fro */
}

void shf_row_set_open(shf_row_set *set, int64_t rows, int64_t entries, void *memory)
{
  *set = (shf_row_set){.rows = rows, .count = all_blocks(rows), .blocks = memory};
  int64_t slots = set->count;
  if (is_hashed(rows, entries)) {
    set->bits = slot_bits(entries);
    slots = (int64_t)1 << set->bits;
    set->count = 0;
    set->keys = (int64_t *)(void *)(set->blocks + slots + 1);
    set->order = set->keys + slots + 1;
    memset(set->keys, -1, (size_t)(slots + 1) * sizeof *set->keys);
  }
  memset(set->blocks, 0, (size_t)(slots + 1) * sizeof *set->blocks);
}

/* ---- Adding ------------------------------------------------------------------------------------------------------ */

static inline uint64_t first_slot(const shf_row_set *set, int64_t block)
{
  return (uint64_t)block * 0x9e3779b97f4a7c15u >> (64 - set->bits);
}

/* The slot of a block, or the free one where it would be. */
static inline uint64_t slot_of(const shf_row_set *set, int64_t block)
{
  uint64_t slot = first_slot(set, block), mask = ((uint64_t)1 << set->bits) - 1;
  while (set->keys[slot] != block && set->keys[slot] >= 0) slot = (slot + 1) & mask;
  return slot;
}

static void add_hashed(shf_row_set *set, const int64_t *rows, int64_t count)
{
  for (int64_t i = 0; i < count; i++)
    if (rows[i] >= 0) __builtin_prefetch(&set->keys[first_slot(set, rows[i] >> BLOCK_BITS)], 1);
  for (int64_t i = 0; i < count; i++) {
    if (rows[i] < 0) continue;
    int64_t block = rows[i] >> BLOCK_BITS;
    uint64_t slot = slot_of(set, block);
    if (set->keys[slot] < 0) {
      set->keys[slot] = block;
      set->order[set->count++] = (int64_t)slot;
    }
    set->blocks[slot].named |= (uint64_t)1 << (rows[i] & (BLOCK - 1));
  }
}

void shf_row_set_add(shf_row_set *set, const int64_t *rows, int64_t count)
{
  if (set->keys) {
    add_hashed(set, rows, count);
    return;
  }
  for (int64_t i = 0; i < count; i++) { /* which entries are skipped cannot be foretold: no branch for it */
    int64_t block = rows[i] < 0 ? set->count : rows[i] >> BLOCK_BITS;
    set->blocks[block].named |= (uint64_t)1 << (rows[i] & (BLOCK - 1));
  }
}

/* ---- Numbering --------------------------------------------------------------------------------------------------- */

/* Slots in use in the order of their blocks: a radix sort from the lowest digit up. */
static void sort_slots(shf_row_set *set)
{
  int64_t *from = set->order, *to = from + set->count, last = all_blocks(set->rows);
  for (int shift = 0; last >> shift > 0; shift += DIGIT_BITS) {
    int64_t at[(1 << DIGIT_BITS) + 1] = {0};
    for (int64_t i = 0; i < set->count; i++) at[(set->keys[from[i]] >> shift & ((1 << DIGIT_BITS) - 1)) + 1]++;
    for (int digit = 0; digit < 1 << DIGIT_BITS; digit++) at[digit + 1] += at[digit];
    for (int64_t i = 0; i < set->count; i++) to[at[set->keys[from[i]] >> shift & ((1 << DIGIT_BITS) - 1)]++] = from[i];
    int64_t *swap = from;
    from = to;
    to = swap;
  }
  set->order = from;
}

/* The bits of those rows of a block that lie in lo .. hi - 1. */
static uint64_t rows_between(int64_t block, int64_t lo, int64_t hi)
{
  int64_t first = lo - block * BLOCK, last = hi - block * BLOCK;
  if (first >= BLOCK || last <= 0 || first >= last) return 0;
  uint64_t from = first <= 0 ? ~(uint64_t)0 : ~(uint64_t)0 << first;
  return last >= BLOCK ? from : from & (((uint64_t)1 << last) - 1);
}

static inline int64_t slot_at(const shf_row_set *set, int64_t place) { return set->keys ? set->order[place] : place; }

static inline int64_t block_at(const shf_row_set *set, int64_t place)
{
  return set->keys ? set->keys[set->order[place]] : place;
}

SHF_ALWAYS_INLINE int64_t number(shf_row_set *set, shf_row_range *ranges, int64_t count)
{
  int64_t total = 0, at = 0;
  for (int64_t i = 0; i < count; i++) ranges[i].named = 0;
  for (int64_t place = 0; place < set->count; place++) {
    shf_row_block *b = &set->blocks[slot_at(set, place)];
    int64_t block = block_at(set, place), first = block * BLOCK, here = 0;
    uint64_t kept = 0;
    b->before = total;
    while (at < count && ranges[at].hi <= first) at++;
    if (at < count && ranges[at].lo <= first && ranges[at].hi >= first + BLOCK) { /* nearly always */
      here = __builtin_popcountll(b->named);
      ranges[at].named += here;
      total += here;
      continue;
    }
    for (int64_t i = at; i < count && ranges[i].lo < first + BLOCK; i++) {
      uint64_t in = b->named & rows_between(block, ranges[i].lo, ranges[i].hi);
      here = __builtin_popcountll(in);
      ranges[i].named += here;
      total += here;
      kept |= in;
    }
    b->named = kept;
  }
  return total;
}

static int64_t number_plain(shf_row_set *set, shf_row_range *ranges, int64_t count)
{
  return number(set, ranges, count);
}
SHF_WITH("popcnt") static int64_t number_popcount(shf_row_set *set, shf_row_range *ranges, int64_t count)
{
  return number(set, ranges, count);
}

int64_t shf_row_set_number(shf_row_set *set, shf_row_range *ranges, int64_t count)
{
  if (set->keys) sort_slots(set);
  return sheaf_isa_current() >= SHEAF_ISA_AVX2 ? number_popcount(set, ranges, count) : number_plain(set, ranges, count);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

SHF_ALWAYS_INLINE void list(const shf_row_set *set, int64_t lo, int64_t hi, const int narrow, void *rows)
{
  int64_t count = 0, place = set->keys ? 0 : lo >> BLOCK_BITS;
  for (; place < set->count; place++) {
    int64_t block = block_at(set, place);
    if (block * BLOCK >= hi) break;
    uint64_t named = set->blocks[slot_at(set, place)].named & rows_between(block, lo, hi);
    for (; named; named &= named - 1) {
      int64_t row = block * BLOCK + __builtin_ctzll(named);
      if (narrow)
        ((int32_t *)rows)[count++] = (int32_t)row;
      else
        ((int64_t *)rows)[count++] = row;
    }
  }
}

void shf_row_set_list(const shf_row_set *set, int64_t lo, int64_t hi, sheaf_dtype dtype, void *rows)
{
  if (dtype == SHEAF_I32)
    list(set, lo, hi, 1, rows);
  else
    list(set, lo, hi, 0, rows);
}

SHF_ALWAYS_INLINE void find(const shf_row_set *set, const int64_t *rows, int64_t count, int64_t *numbers)
{
  for (int64_t i = 0; set->keys && i < count; i++)
    if (rows[i] >= 0) __builtin_prefetch(&set->keys[first_slot(set, rows[i] >> BLOCK_BITS)]);
  for (int64_t i = 0; i < count; i++) {
    int64_t slot = rows[i] >> BLOCK_BITS;
    if (!set->keys)
      slot = rows[i] < 0 ? set->count : slot;
    else
      slot = rows[i] < 0 ? (int64_t)1 << set->bits : (int64_t)slot_of(set, slot);
    const shf_row_block *b = &set->blocks[slot];
    uint64_t bit = (uint64_t)1 << (rows[i] & (BLOCK - 1));
    int64_t found = b->before + __builtin_popcountll(b->named & (bit - 1));
    numbers[i] = rows[i] >= 0 && (b->named & bit) ? found : -1;
  }
}

static void find_plain(const shf_row_set *set, const int64_t *rows, int64_t count, int64_t *numbers)
{
  find(set, rows, count, numbers);
}
SHF_WITH("popcnt")
static void find_popcount(const shf_row_set *set, const int64_t *rows, int64_t count, int64_t *numbers)
{
  find(set, rows, count, numbers);
}

void shf_row_set_find(const shf_row_set *set, const int64_t *rows, int64_t count, int64_t *numbers)
{
  if (sheaf_isa_current() >= SHEAF_ISA_AVX2)
    find_popcount(set, rows, count, numbers);
  else
    find_plain(set, rows, count, numbers);
}
