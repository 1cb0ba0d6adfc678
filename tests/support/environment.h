/* environment.h: the environment that tests of threads want. */
#ifndef SHEAF_TESTS_ENVIRONMENT_H
#define SHEAF_TESTS_ENVIRONMENT_H

#include <stdbool.h>

/* Makes every run with more than one thread split, however small, and waiting threads sleep rather than spin (these
 * tests run more threads than there are cores). OpenMP reads its variables when it is loaded, so the program may
 * start itself anew. Call it first in main. */
void environment_prepare(char **argv);

/* Whether an environment variable is set, and not to 0. */
bool is_switched_on(const char *variable);

#endif
