/* cli/report.h: pages that people look at: one HTML file with everything in it. */
#ifndef SHEAF_CLI_REPORT_H
#define SHEAF_CLI_REPORT_H

#include <jansson.h>

/* Writes a page of `data` (which it releases; NULL is reported as want of memory), atomically: an exit code. The page
 * shows benchmarks, or with "kind": "trace" a timeline; what it needs is in cli/report/page.html. */
int report_write(const char *command, const char *path, const char *title, json_t *data);

/* Whether a page could be written there, so that long work is not done for nothing: CLI_GO_ON, or an exit code after a
 * complaint. Leaves nothing behind. */
int report_check(const char *command, const char *path);

/* The command line as one would type it, in memory of the caller's; NULL when that is short. */
char *report_command_line(int argc, char **argv);

#endif
