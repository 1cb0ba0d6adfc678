/* watch.h: which layers a call of a lookup or bag visits: a layer of the test's own in front of every built-in one. */
#ifndef SHEAF_TESTS_WATCH_H
#define SHEAF_TESTS_WATCH_H

#include <sheaf/sheaf.h>

/* Names of the keys that were visited while WATCH(call) ran, in order, each with a space behind it. */
extern char visits[512];
extern int watching;
#define WATCH(expression) (visits[0] = '\0', watching = 1, watch_status = (expression), watching = 0, watch_status)
extern sheaf_status watch_status;

/* Puts the layer there; once per program, as the setup of a group. */
int watch_layers(void **state);

#endif
