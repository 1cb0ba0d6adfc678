/* test_device_faults.c: ops on a device of paper (fake_cuda.c) whose steps fail one after the other, and the host's
 * allocations with them: a status each time, no memory lost on either side, no tensor changed. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include <sheaf/device.h>

#include "support/faults.h"
#include "support/heap.h"

static const DLDevice cpu = {kDLCPU, 0}, paper = {kDLCUDA, 0};

static int64_t device_bytes(void)
{
  sheaf_device_info info;
  expect_ok(sheaf_device_describe(paper, &info));
  return info.memory_bytes;
}

/* ---- One failure after the other ---- */

static void tear_at(int64_t step)
{
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)step);
  if (step >= 0)
    setenv("SHEAF_PAPER_TEARS", text, 1);
  else
    unsetenv("SHEAF_PAPER_TEARS");
  heap.calls = 0;
}

/* `on_host`: the host's allocations fail in turn, else the device's steps. */
static void fail_in_turn(const fault_case *c, int on_host)
{
  fault_world w = make_fault_world(paper);
  sheaf_tensor *before, *after;
  expect_ok(sheaf_tensor_to(w.table, cpu, &before));
  tensor_keep(before);
  int64_t failures = 0;
  for (int64_t failing = 0;; failing++) {
    sheaf_clear_caches();
    int64_t blocks = heap.blocks, bytes = device_bytes();
    tear_at(on_host ? -1 : failing);
    heap.failing = on_host ? failing : -1;
    sheaf_status status = c->compute(&w);
    int done = on_host && heap.calls <= failing;
    heap.failing = -1;
    tear_at(-1);
    sheaf_clear_caches();
    assert_int_equal(device_bytes(), bytes);
    assert_int_equal(heap.blocks, blocks);
    assert_int_equal(sheaf_excluded_keys().bits, 0);
    assert_int_equal(sheaf_included_keys().bits, 0);
    expect_ok(sheaf_tensor_to(w.table, cpu, &after));
    expect_same_tensor(tensor_keep(after), before);
    failures += status != SHEAF_OK;
    if (status != SHEAF_OK && status != (on_host ? SHEAF_OUT_OF_MEMORY : SHEAF_DEVICE))
      fail_msg("%s: failure %d: %s: %s", c->name, (int)failing, sheaf_status_name(status), sheaf_last_error());
    if (status == SHEAF_OK && (on_host ? done : 1)) break;
    assert_true(failing < 10000);
  }
  assert_true(failures > (on_host ? 4 : 16));
}

static void test_steps_of_the_device_fail(void **state)
{
  (void)state;
  for (int i = 0; i < fault_case_count; i++) fail_in_turn(&fault_cases[i], 0);
}

static void test_allocations_of_the_host_fail(void **state)
{
  (void)state;
  for (int i = 0; i < fault_case_count; i++) fail_in_turn(&fault_cases[i], 1);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_steps_of_the_device_fail, use_counted_heap, use_own_heap),
      cmocka_unit_test_setup_teardown(test_allocations_of_the_host_fail, use_counted_heap, use_own_heap),
  };
  return cmocka_run_group_tests_name("faults of a device", tests, NULL, NULL);
}
