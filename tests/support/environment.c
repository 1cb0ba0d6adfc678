/* environment.c: the environment that tests of threads want. */
#define _POSIX_C_SOURCE 200809L
#include "environment.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void environment_prepare(char **argv)
{
  setenv("SHEAF_TEST_SPLIT", "1", 0); /* or what the one who runs it wants: see src/plan/split.c */
  if (getenv("OMP_WAIT_POLICY") == NULL) {
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv("/proc/self/exe", argv); /* where that fails, tests only take longer */
  }
}

bool is_switched_on(const char *variable)
{
  const char *value = getenv(variable);
  return value != NULL && strcmp(value, "") != 0 && strcmp(value, "0") != 0;
}
