/* test_plugin.c: plug-ins that are missing, broken, or there without a device: each in a process of its own, since a
 * plug-in is looked for once. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <sheaf/sheaf.h>

/* Runs `check` in a child with SHEAF_PLUGIN_PATH set; it returns 0 or the number of the line that failed. */
static void in_child(const char *folders, int (*check)(void))
{
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    setenv("SHEAF_PLUGIN_PATH", folders, 1);
    _exit(check());
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  if (WEXITSTATUS(status) != 0) fail_msg("line %d failed in the child", WEXITSTATUS(status));
}

#define CHECK(condition) \
  if (!(condition)) return __LINE__

static int says_what_was_looked_for(void)
{
  int count = 77;
  CHECK(sheaf_device_count(kDLCUDA, &count) == SHEAF_UNAVAILABLE);
  CHECK(count == 0);
  CHECK(strstr(sheaf_last_error(), "no/such/folder/libsheaf_cuda.so"));
  void *memory = &count;
  CHECK(sheaf_device_alloc((DLDevice){kDLCUDA, 0}, 64, &memory) == SHEAF_UNAVAILABLE);
  CHECK(memory == NULL);
  CHECK(sheaf_device_count(kDLCPU, &count) == SHEAF_UNAVAILABLE);
  return 0;
}

static void test_a_missing_plugin_is_unavailable(void **state)
{
  (void)state;
  in_child("/no/such/folder", says_what_was_looked_for);
}

static int names_the_broken_file(void)
{
  int count;
  CHECK(sheaf_device_count(kDLCUDA, &count) == SHEAF_UNAVAILABLE);
  CHECK(strstr(sheaf_last_error(), "libsheaf_cuda.so"));
  return 0;
}

static void test_a_broken_plugin_is_unavailable(void **state)
{
  (void)state;
  char folder[] = "/tmp/sheaf-plugin-XXXXXX", path[64];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/libsheaf_cuda.so", folder);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs("not a library\n", file);
  fclose(file);
  in_child(folder, names_the_broken_file);
  unlink(path);
  rmdir(folder);
}

#ifdef SHEAF_TEST_PLUGINS
/* With the plug-in there, its kernels are listed; whether they can be run depends on the machine. */
static int lists_its_kernels(void)
{
  sheaf_sku sku;
  int available = 77, count;
  int64_t first = -1;
  CHECK(sheaf_kernel_count() >= 480);
  for (int64_t i = 0; i < sheaf_kernel_count() && first < 0; i++) {
    CHECK(sheaf_kernel_at(i, &sku, &available) == SHEAF_OK);
    if (sku.arch >= SHEAF_ARCH_SM80) first = i;
  }
  CHECK(first >= 0 && sheaf_kernel_count() - first == 480);
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.device = (DLDevice){kDLCUDA, 0};
  desc.kind = SHEAF_LOOKUP;
  desc.dtype = SHEAF_F32;
  desc.index_dtype = SHEAF_I64;
  sheaf_plan *plan = NULL;
  sheaf_status status = sheaf_embedding_select(&desc, NULL, &plan);
  if (sheaf_device_count(kDLCUDA, &count) == SHEAF_OK && count > 0) {
    CHECK(status == SHEAF_OK || status == SHEAF_UNSUPPORTED); /* a device older than the kernels */
  } else {
    CHECK(status == SHEAF_UNAVAILABLE);
    CHECK(strstr(sheaf_last_error(), "CUDA"));
    CHECK(!available);
  }
  sheaf_plan_free(plan);
  return 0;
}

static void test_a_plugin_without_a_device_lists_its_kernels(void **state)
{
  (void)state;
  in_child(SHEAF_TEST_PLUGINS, lists_its_kernels);
}
#endif

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_missing_plugin_is_unavailable),
      cmocka_unit_test(test_a_broken_plugin_is_unavailable),
#ifdef SHEAF_TEST_PLUGINS
      cmocka_unit_test(test_a_plugin_without_a_device_lists_its_kernels),
#endif
  };
  return cmocka_run_group_tests_name("plugin", tests, NULL, NULL);
}
