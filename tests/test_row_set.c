/* test_row_set.c: sets of rows against a plain list of flags: tables of all sizes, few entries and many, ranges with gaps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "shard/row_set.h"

static uint64_t seed;

static int64_t random_below(int64_t limit)
{
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (int64_t)((seed >> 20) % (uint64_t)limit);
}

/* One set: entries anywhere in the table or close together, some that name none; ranges that leave gaps. */
typedef struct world {
  int64_t rows, entries;
  int64_t *row;
  shf_row_range range[3];
  int64_t ranges;
} world;

static world make_world(int64_t rows, int64_t entries, int close)
{
  world w = {.rows = rows, .entries = entries, .row = malloc((size_t)(entries + 1) * sizeof *w.row)};
  assert_non_null(w.row);
  int64_t width = close && rows > 100 ? 100 : rows;
  for (int64_t i = 0; i < entries; i++)
    w.row[i] = rows == 0 || random_below(10) == 0 ? -1 : rows - width + random_below(width);
  int64_t at = 0;
  for (w.ranges = 0; w.ranges < 3; w.ranges++) {
    int64_t lo = at + random_below(rows / 3 + 1), hi = lo + random_below(rows / 3 + 1);
    if (w.ranges == 0 && random_below(2)) lo = 0, hi = rows; /* all of them */
    if (hi > rows) hi = rows;
    if (lo >= hi) break;
    w.range[w.ranges] = (shf_row_range){lo, hi, -1};
    at = hi;
  }
  return w;
}

static int is_kept(const world *w, int64_t row)
{
  for (int64_t i = 0; i < w->ranges; i++)
    if (row >= w->range[i].lo && row < w->range[i].hi) return 1;
  return 0;
}

static int by_value(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* The distinct rows that are kept, in order; returns how many. */
static int64_t expected_rows(const world *w, int64_t *sorted)
{
  int64_t count = 0, distinct = 0;
  for (int64_t i = 0; i < w->entries; i++)
    if (w->row[i] >= 0 && is_kept(w, w->row[i])) sorted[count++] = w->row[i];
  qsort(sorted, (size_t)count, sizeof *sorted, by_value);
  for (int64_t i = 0; i < count; i++)
    if (distinct == 0 || sorted[distinct - 1] != sorted[i]) sorted[distinct++] = sorted[i];
  return distinct;
}

static void check_lists(const world *w, const shf_row_set *set, const int64_t *sorted, int64_t distinct)
{
  int64_t cuts[] = {0, w->rows / 3, w->rows / 2 + 1, w->rows};
  int64_t *wide = malloc((size_t)(distinct + 1) * sizeof *wide), at = 0;
  int32_t *narrow = malloc((size_t)(distinct + 1) * sizeof *narrow);
  assert_true(wide && narrow);
  for (int part = 0; part < 3; part++) { /* in parts that begin and end anywhere */
    int64_t hi = cuts[part + 1] < w->rows ? cuts[part + 1] : w->rows;
    shf_row_set_list(set, cuts[part], hi, SHEAF_I64, wide + at);
    shf_row_set_list(set, cuts[part], hi, SHEAF_I32, narrow + at);
    while (at < distinct && sorted[at] < hi) at++;
    if (hi == w->rows) break;
  }
  assert_int_equal(at, distinct);
  for (int64_t i = 0; i < distinct; i++) {
    assert_int_equal(wide[i], sorted[i]);
    assert_int_equal(narrow[i], sorted[i]);
  }
  free(wide);
  free(narrow);
}

static void check_world(world *w)
{
  int64_t room = shf_row_set_room(w->rows, w->entries);
  int64_t *memory = malloc((size_t)room * sizeof *memory), *sorted = malloc((size_t)(w->entries + 1) * sizeof *sorted);
  int64_t *numbers = malloc((size_t)(w->entries + 2) * sizeof *numbers);
  assert_true(memory && sorted && numbers);
  memset(memory, 0x5a, (size_t)room * sizeof *memory); /* what was there before does not count */
  shf_row_set set;
  shf_row_set_open(&set, w->rows, w->entries, memory);
  for (int64_t at = 0, next; at < w->entries; at = next) { /* in any blocks */
    next = at + 1 + random_below(w->entries - at);
    shf_row_set_add(&set, w->row + at, next - at);
  }
  int64_t distinct = expected_rows(w, sorted), all = 0;
  assert_int_equal(shf_row_set_number(&set, w->range, w->ranges), distinct);
  for (int64_t i = 0; i < w->ranges; i++) {
    int64_t named = 0;
    for (int64_t k = 0; k < distinct; k++) named += sorted[k] >= w->range[i].lo && sorted[k] < w->range[i].hi;
    assert_int_equal(w->range[i].named, named);
    all += named;
  }
  assert_int_equal(all, distinct);
  check_lists(w, &set, sorted, distinct);
  shf_row_set_find(&set, w->row, w->entries, numbers);
  for (int64_t i = 0; i < w->entries; i++) {
    const int64_t *found = bsearch(&w->row[i], sorted, (size_t)distinct, sizeof *sorted, by_value);
    assert_int_equal(numbers[i], found ? found - sorted : -1);
  }
  for (int i = 0; i < 20 && w->rows > 0; i++) { /* rows that no entry named, too */
    int64_t row = random_below(w->rows), number;
    const int64_t *found = bsearch(&row, sorted, (size_t)distinct, sizeof *sorted, by_value);
    shf_row_set_find(&set, &row, 1, &number);
    assert_int_equal(number, found ? found - sorted : -1);
  }
  free(memory);
  free(sorted);
  free(numbers);
}

static void check_all(void)
{
  static const int64_t rows[] = {0, 1, 2, 63, 64, 65, 127, 128, 1000, 4096, 100000, 1 << 22, ((int64_t)1 << 31) - 1};
  static const int64_t entries[] = {0, 1, 2, 100, 700, 5000};
  for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
    for (size_t n = 0; n < sizeof entries / sizeof *entries; n++)
      for (int turn = 0; turn < 6; turn++) {
        seed = r * 1000 + n * 10 + (uint64_t)turn;
        world w = make_world(rows[r], entries[n], turn % 2);
        check_world(&w);
        free(w.row);
      }
}

static void test_sets_are_those_of_a_plain_list(void **state)
{
  (void)state;
  check_all();
}

static void test_the_first_x86_64_finds_the_same(void **state)
{
  (void)state;
  assert_int_equal(sheaf_set_isa(SHEAF_ISA_SCALAR), SHEAF_OK);
  check_all();
  assert_int_equal(sheaf_set_isa(sheaf_isa_best()), SHEAF_OK);
}

/* The choice of way is not seen from outside, so it is seen here that both are taken. */
static void test_few_entries_of_a_large_table_are_hashed(void **state)
{
  (void)state;
  shf_row_set set;
  int64_t room = shf_row_set_room((int64_t)1 << 40, 100), *memory = malloc((size_t)room * sizeof *memory);
  assert_true(memory && room < 4096);
  shf_row_set_open(&set, (int64_t)1 << 40, 100, memory);
  assert_non_null(set.keys);
  int64_t row[2] = {((int64_t)1 << 40) - 1, 5}, number[2], list[2];
  shf_row_set_add(&set, row, 2);
  shf_row_range all = {0, (int64_t)1 << 40, 0};
  assert_int_equal(shf_row_set_number(&set, &all, 1), 2);
  shf_row_set_find(&set, row, 2, number);
  assert_int_equal(number[0], 1);
  assert_int_equal(number[1], 0);
  shf_row_set_list(&set, 0, (int64_t)1 << 40, SHEAF_I64, list);
  assert_int_equal(list[0], 5);
  assert_int_equal(list[1], row[0]);
  free(memory);
  memory = malloc((size_t)shf_row_set_room(4096, 100) * sizeof *memory);
  assert_non_null(memory);
  shf_row_set_open(&set, 4096, 100, memory);
  assert_null(set.keys);
  free(memory);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sets_are_those_of_a_plain_list),
      cmocka_unit_test(test_the_first_x86_64_finds_the_same),
      cmocka_unit_test(test_few_entries_of_a_large_table_are_hashed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
