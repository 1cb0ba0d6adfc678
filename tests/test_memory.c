/* test_memory.c: memory: failing at every allocation in turn, none lost, none taken by a run; memory for tables. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sheaf/io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/call.h"
#include "support/problem_run.h"

/* ---- An allocator that counts, fails on demand, and knows its blocks --------------------------------------------- */

enum { MOST_BLOCKS = 64 };

static struct {
  int64_t calls, failing; /* the call that fails, from 0; -1: none */
  size_t largest_alignment;
  int wrong; /* releases of what was not allocated, or with other bytes */
  struct {
    void *memory;
    size_t bytes;
  } block[MOST_BLOCKS];
} heap;

static void *counted_allocate(void *context, size_t bytes, size_t alignment)
{
  assert_ptr_equal(context, &heap);
  assert_true(bytes > 0 && alignment > 0 && (alignment & (alignment - 1)) == 0);
  if (alignment > heap.largest_alignment) heap.largest_alignment = alignment;
  if (heap.calls++ == heap.failing) return NULL;
  void *memory = NULL;
  if (posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes) != 0) return NULL;
  memset(memory, 0xA7, bytes);
  for (int i = 0; i < MOST_BLOCKS; i++)
    if (!heap.block[i].memory) {
      heap.block[i].memory = memory;
      heap.block[i].bytes = bytes;
      return memory;
    }
  free(memory);
  return NULL;
}

static void counted_release(void *context, void *memory, size_t bytes)
{
  assert_ptr_equal(context, &heap);
  for (int i = 0; i < MOST_BLOCKS; i++)
    if (heap.block[i].memory == memory && heap.block[i].bytes == bytes) {
      heap.block[i].memory = NULL;
      free(memory);
      return;
    }
  heap.wrong++;
}

static int live_blocks(void)
{
  int live = 0;
  for (int i = 0; i < MOST_BLOCKS; i++) live += heap.block[i].memory != NULL;
  return live;
}

static int use_counted_heap(void **state)
{
  (void)state;
  static const sheaf_allocator counted = {counted_allocate, counted_release, &heap};
  memset(&heap, 0, sizeof heap);
  heap.failing = -1;
  return sheaf_set_allocator(&counted) == SHEAF_OK ? 0 : -1;
}

static int use_own_heap(void **state)
{
  (void)state;
  return sheaf_set_allocator(NULL) == SHEAF_OK && live_blocks() == 0 && heap.wrong == 0 ? 0 : -1;
}

/* Makes allocation 0, 1, 2 ... of a call fail until it succeeds; the number of allocations it makes. `clean` looks
 * at what a failing call leaves. */
static int64_t fail_in_turn(sheaf_status (*try)(void *), void *context, void (*clean)(void *))
{
  for (int64_t failing = 0;; failing++) {
    heap.calls = 0;
    heap.failing = failing;
    sheaf_status status = try(context);
    heap.failing = -1;
    if (heap.calls <= failing) {
      if (status != SHEAF_OK) fail_msg("nothing failed, but: %s", sheaf_last_error());
      return failing;
    }
    if (status != SHEAF_OUT_OF_MEMORY) fail_msg("allocation %d failed: %s", (int)failing, sheaf_status_name(status));
    assert_int_equal(sheaf_last_error_info().status, SHEAF_OUT_OF_MEMORY);
    assert_non_null(strstr(sheaf_last_error(), "bytes"));
    assert_int_equal(live_blocks(), 0);
    assert_int_equal(heap.wrong, 0);
    if (clean) clean(context);
  }
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

typedef struct selection {
  int kind;
  sheaf_plan *plan;
} selection;

static sheaf_status try_select(void *context)
{
  selection *s = context;
  sheaf_embedding_desc embedding = embedding_of((sheaf_embedding_kind)s->kind);
  sheaf_segment_desc segment = segments_of((sheaf_segment_kind)(s->kind - 8));
  s->plan = (sheaf_plan *)(void *)s;
  return s->kind < 8 ? sheaf_embedding_select(&embedding, NULL, &s->plan)
                     : sheaf_segment_select(&segment, NULL, &s->plan);
}

static void expect_no_plan(void *context) { assert_null(((selection *)context)->plan); }

static void test_select_survives_every_failing_allocation(void **state)
{
  (void)state;
  for (int kind = 0; kind < CALL_KINDS; kind++) {
    selection s = {.kind = kind};
    assert_true(fail_in_turn(try_select, &s, expect_no_plan) >= 1);
    assert_true(live_blocks() >= 1);
    sheaf_plan_free(s.plan);
    assert_int_equal(live_blocks(), 0);
  }
}

static void test_refused_descriptions_take_no_memory(void **state)
{
  (void)state;
  sheaf_embedding_desc desc = embedding_of(SHEAF_BAG_SUM);
  desc.rows = -1;
  refuses_embedding(&desc, NULL, INVALID_PROBLEM, "rows -1");
  desc = embedding_of(SHEAF_BAG_SUM);
  sheaf_preference wish = SHEAF_PREFERENCE_INIT;
  wish.kernel = "none";
  refuses_embedding(&desc, &wish, UNSUPPORTED, "none");
  assert_int_equal(live_blocks(), 0);
}

/* Whatever its kind and number of threads, grouping or not, a run takes no memory, and neither do its questions. */
static void test_runs_and_groupings_take_no_memory(void **state)
{
  (void)state;
  for (int kind = 0; kind < CALL_KINDS; kind++)
    for (int threads = 1; threads <= 4; threads += 3) {
      problem_spec spec = call_spec(kind);
      spec.count = 5000;
      spec.dim = 33;
      problem *p = problem_make(&spec);
      problem_outputs *outputs = problem_outputs_make(p);
      problem_way way = {.threads = threads};
      sheaf_plan *plan = NULL;
      assert_int_equal(problem_select(p, &way, false, &plan), SHEAF_OK);
      size_t bytes = sheaf_grouping_size(plan);
      void *grouping = aligned_alloc(64, (bytes + 127) / 64 * 64);
      assert_non_null(grouping);
      heap.calls = 0;
      heap.failing = 0;
      assert_int_equal(problem_run_plan(p, outputs, plan, NULL, 0), SHEAF_OK);
      if (bytes && kind < 8) {
        sheaf_embedding_args args = problem_embedding_args(p, outputs);
        assert_int_equal(sheaf_embedding_grouping_build(plan, grouping, bytes, NULL, &args), SHEAF_OK);
      } else if (bytes) {
        sheaf_segment_args args = problem_segment_args(p, outputs);
        assert_int_equal(sheaf_segment_grouping_build(plan, grouping, bytes, NULL, &args), SHEAF_OK);
      }
      if (bytes) assert_int_equal(problem_run_plan(p, outputs, plan, grouping, bytes), SHEAF_OK);
      heap.failing = -1;
      assert_int_equal(heap.calls, 0);
      sheaf_plan_free(plan);
      free(grouping);
      problem_outputs_free(outputs);
      problem_free(p);
    }
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static const char *file_path(void)
{
  static char path[160];
  const char *folder = getenv("TMPDIR");
  snprintf(path, sizeof path, "%.100s/sheaf-memory-%ld", folder && *folder ? folder : "/tmp", (long)getpid());
  return path;
}

static sheaf_io_tensor small_tensor(void)
{
  static const float data[6] = {1, 2, 3, 4, 5, 6};
  return (sheaf_io_tensor){"table", SHEAF_F32, 2, {2, 3}, data, sizeof data};
}

static sheaf_status try_write_safetensors(void *context)
{
  (void)context;
  const sheaf_io_tensor tensor = small_tensor();
  const sheaf_io_metadata metadata = {"key", "value"};
  return sheaf_safetensors_write(file_path(), &tensor, 1, &metadata, 1);
}

static sheaf_status try_write_npy(void *context)
{
  (void)context;
  const sheaf_io_tensor tensor = small_tensor();
  return sheaf_npy_write(file_path(), &tensor);
}

static void expect_no_file(void *context)
{
  (void)context;
  assert_int_not_equal(access(file_path(), F_OK), 0);
}

static sheaf_status try_open_safetensors(void *context)
{
  sheaf_safetensors **file = context;
  return sheaf_safetensors_open(file_path(), file);
}

static sheaf_status try_open_npy(void *context)
{
  sheaf_npy **file = context;
  return sheaf_npy_open(file_path(), file);
}

static void expect_null(void *context) { assert_null(*(void **)context); }

static void test_files_survive_every_failing_allocation(void **state)
{
  (void)state;
  unlink(file_path());
  assert_true(fail_in_turn(try_write_safetensors, NULL, expect_no_file) >= 1);
  sheaf_safetensors *safetensors = (sheaf_safetensors *)(void *)&safetensors;
  assert_true(fail_in_turn(try_open_safetensors, &safetensors, expect_null) >= 1);
  assert_int_equal(sheaf_safetensors_count(safetensors), 1);
  sheaf_safetensors_close(safetensors);
  unlink(file_path());
  fail_in_turn(try_write_npy, NULL, expect_no_file);
  sheaf_npy *npy = (sheaf_npy *)(void *)&npy;
  assert_true(fail_in_turn(try_open_npy, &npy, expect_null) >= 1);
  assert_int_equal(sheaf_npy_tensor(npy)->shape[1], 3);
  sheaf_npy_close(npy);
  unlink(file_path());
  assert_int_equal(live_blocks(), 0);
}

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

enum { HUGE_PAGE = 2 << 20 };
static const size_t table_sizes[] = {1, 63, 4096, HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1, 5 * HUGE_PAGE + 12345};

static bool is_zero(const unsigned char *memory, size_t bytes)
{
  for (size_t i = 0; i < bytes; i++)
    if (memory[i]) return false;
  return true;
}

static void check_table_sizes(void)
{
  for (int i = 0; i < LENGTH(table_sizes); i++) {
    void *memory = NULL;
    assert_int_equal(sheaf_table_alloc(table_sizes[i], &memory), SHEAF_OK);
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % HUGE_PAGE, 0);
    assert_true(is_zero(memory, table_sizes[i]));
    memset(memory, 0xFF, table_sizes[i]);
    sheaf_table_free(memory, table_sizes[i]);
  }
}

static void test_tables_are_aligned_zeroed_and_writable(void **state)
{
  (void)state;
  for (int again = 0; again < 3; again++) check_table_sizes(); /* memory that was used before is zero too */
}

static void test_tables_come_from_the_allocator_that_is_set(void **state)
{
  (void)state;
  heap.calls = 0;
  check_table_sizes();
  assert_int_equal(heap.calls, LENGTH(table_sizes));
  assert_int_equal(heap.largest_alignment, HUGE_PAGE);
  assert_int_equal(live_blocks(), 0);
}

typedef struct table {
  size_t bytes;
  void *memory;
} table;

static sheaf_status try_table(void *context)
{
  table *t = context;
  t->memory = context;
  return sheaf_table_alloc(t->bytes, &t->memory);
}

static void expect_no_table(void *context) { assert_null(((table *)context)->memory); }

static void test_tables_survive_a_failing_allocation(void **state)
{
  (void)state;
  table t = {.bytes = 12345};
  assert_int_equal(fail_in_turn(try_table, &t, expect_no_table), 1);
  sheaf_table_free(t.memory, t.bytes);
  assert_int_equal(live_blocks(), 0);
}

static void test_no_bytes_are_no_table(void **state)
{
  (void)state;
  void *memory = &memory;
  assert_int_equal(sheaf_table_alloc(0, &memory), SHEAF_OK);
  assert_null(memory);
  sheaf_table_free(NULL, 0);
  sheaf_table_free(NULL, 12345);
  assert_int_equal(sheaf_table_alloc(0, NULL), SHEAF_INVALID_PROBLEM);
  assert_int_equal(sheaf_table_alloc(64, NULL), SHEAF_INVALID_PROBLEM);
}

static void test_absurd_tables_are_refused(void **state)
{
  (void)state;
  const size_t absurd[] = {SIZE_MAX,         SIZE_MAX - 1, SIZE_MAX - HUGE_PAGE, SIZE_MAX - 3 * HUGE_PAGE,
                           SIZE_MAX / 2 + 1, SIZE_MAX / 2, (size_t)1 << 62,      (size_t)1 << 57};
  for (int i = 0; i < LENGTH(absurd); i++) {
    void *memory = &memory;
    char text[32];
    snprintf(text, sizeof text, "%zu bytes", absurd[i]);
    assert_int_equal(sheaf_table_alloc(absurd[i], &memory), SHEAF_OUT_OF_MEMORY);
    assert_null(memory);
    assert_non_null(strstr(sheaf_last_error(), text));
  }
}

/* Address space is finite: ranges that were not given back would soon fill it. */
static void test_freed_tables_give_their_addresses_back(void **state)
{
  (void)state;
  const size_t bytes = ((size_t)16 << 30) + 1;
  for (int i = 0; i < 9000; i++) { /* more than 128 TiB in all */
    void *memory;
    assert_int_equal(sheaf_table_alloc(bytes, &memory), SHEAF_OK);
    sheaf_table_free(memory, bytes);
  }
}

/* ---- The hook itself --------------------------------------------------------------------------------------------- */

static void test_allocators_need_both_functions(void **state)
{
  (void)state;
  const sheaf_allocator half[] = {{NULL, counted_release, NULL}, {counted_allocate, NULL, NULL}, {NULL, NULL, NULL}};
  for (int i = 0; i < LENGTH(half); i++)
    check_refusal(sheaf_set_allocator(&half[i]), NULL, SHEAF_INVALID_PROBLEM, WORDS("allocate", "release"), __LINE__);
  heap.calls = 0;
  sheaf_embedding_desc desc = embedding_of(SHEAF_LOOKUP);
  accepts_embedding(&desc); /* the one that was set before still is */
  assert_true(heap.calls >= 1);
  assert_int_equal(sheaf_set_allocator(NULL), SHEAF_OK);
  heap.calls = 0;
  accepts_embedding(&desc);
  assert_int_equal(heap.calls, 0);
}

#define COUNTED(test) cmocka_unit_test_setup_teardown(test, use_counted_heap, use_own_heap)

int main(void)
{
  const struct CMUnitTest tests[] = {
      COUNTED(test_select_survives_every_failing_allocation),
      COUNTED(test_refused_descriptions_take_no_memory),
      COUNTED(test_runs_and_groupings_take_no_memory),
      COUNTED(test_files_survive_every_failing_allocation),
      cmocka_unit_test(test_tables_are_aligned_zeroed_and_writable),
      COUNTED(test_tables_come_from_the_allocator_that_is_set),
      COUNTED(test_tables_survive_a_failing_allocation),
      cmocka_unit_test(test_no_bytes_are_no_table),
      cmocka_unit_test(test_absurd_tables_are_refused),
      cmocka_unit_test(test_freed_tables_give_their_addresses_back),
      COUNTED(test_allocators_need_both_functions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
