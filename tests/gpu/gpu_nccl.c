/* gpu_nccl.c: the NCCL engine with one rank: what it gathers and sends, every collective it measures, and what it says
 * when it cannot be opened. Ops over it are tests/ranks, built for it (see CMakeLists.txt). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "comm/comm.h"
#include "gpu_support.h"

static sheaf_comm *comm;

static void test_open(void **state)
{
  (void)state;
  sheaf_nccl_handle handle = SHEAF_NCCL_HANDLE_INIT;
  sheaf_comm *other;
  handle.device = 63;
  assert_int_equal(sheaf_comm_open("nccl", &handle, &other), SHEAF_UNAVAILABLE);
  assert_non_null(strstr(sheaf_last_error(), "there is no CUDA device 63"));
  assert_null(other);
  handle.device = 0;
  sheaf_comm *self; /* ranks may find each other over any communicator */
  assert_int_equal(sheaf_comm_open("self", NULL, &self), SHEAF_OK);
  handle.bootstrap = self;
  assert_int_equal(sheaf_comm_open("nccl", &handle, &other), SHEAF_OK);
  assert_int_equal(sheaf_comm_size(other), 1);
  assert_int_equal(sheaf_comm_rank(other), 0);
  sheaf_comm_close(other);
  sheaf_comm_close(self);
}

static void test_gather(void **state)
{
  (void)state;
  char mine[32] = "thirty-two bytes of a record...", all[32] = "";
  assert_int_equal(shf_comm_gather(comm, mine, sizeof mine, all), SHEAF_OK);
  assert_memory_equal(mine, all, sizeof mine);
}

/* A rank sends itself nothing in an op; NCCL lets it, and so shows that messages arrive. */
static void test_exchange(void **state)
{
  (void)state;
  enum { BYTES = 1 << 20 };
  static char sent[BYTES], got[BYTES];
  for (int i = 0; i < BYTES; i++) sent[i] = (char)(i * 7 + i / 1000);
  char *from = gpu_alloc(BYTES), *to = gpu_alloc(BYTES);
  gpu_upload(from, sent, BYTES);
  shf_message out = {0, from, BYTES - 3}, in = {0, to, BYTES - 3};
  assert_int_equal(shf_comm_exchange(comm, &out, 1, &in, 1, gpu), SHEAF_OK);
  gpu_download(got, to, BYTES);
  assert_memory_equal(sent, got, BYTES - 3);
  /* and the CPU's memory, by way of the device */
  memset(got, 0, sizeof got);
  out = (shf_message){0, sent + 1, 1001};
  in = (shf_message){0, got, 1001};
  assert_int_equal(shf_comm_exchange(comm, &out, 1, &in, 1, (DLDevice){kDLCPU, 0}), SHEAF_OK);
  assert_memory_equal(sent + 1, got, 1001);
  gpu_free_all();
}

static void test_collectives(void **state)
{
  (void)state;
  for (int collective = SHEAF_ALL_REDUCE; collective <= SHEAF_ALL_TO_ALL; collective++) {
    double time = -1;
    assert_int_equal(sheaf_comm_measure(comm, (sheaf_collective)collective, 1 << 20, 3, &time), SHEAF_OK);
    assert_true(time > 0);
  }
  /* With one rank each of them is a copy. */
  enum { WORDS = 1000 };
  uint32_t sent[WORDS], got[WORDS];
  for (uint32_t i = 0; i < WORDS; i++) sent[i] = i * 2654435761u;
  char *from = gpu_alloc(sizeof sent), *to = gpu_alloc(sizeof got), why[SHF_COMM_TEXT];
  gpu_upload(from, sent, sizeof sent);
  for (int collective = SHEAF_ALL_REDUCE; collective <= SHEAF_ALL_TO_ALL; collective++) {
    double time;
    memset(got, 0, sizeof got);
    gpu_upload(to, got, sizeof got);
    assert_int_equal(
        comm->engine->measure(comm->state, (sheaf_collective)collective, from, to, sizeof sent, &time, why), 0);
    gpu_download(got, to, sizeof got);
    assert_memory_equal(sent, got, sizeof sent);
  }
  gpu_free_all();
}

int main(void)
{
  gpu_require();
  if (sheaf_comm_open("nccl", NULL, &comm) != SHEAF_OK) {
    print_message("skipped: %s\n", sheaf_last_error());
    return 77;
  }
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_open), cmocka_unit_test(test_gather),
                                     cmocka_unit_test(test_exchange), cmocka_unit_test(test_collectives)};
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  sheaf_comm_close(comm);
  return failed;
}
