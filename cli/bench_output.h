/* cli/bench_output.h: what becomes of the results of `sheaf bench`, whatever measured them. */
#ifndef SHEAF_CLI_BENCH_OUTPUT_H
#define SHEAF_CLI_BENCH_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>

typedef struct bench_output {
  const char *report, *compare; /* files, or NULL */
  int json;
  char *command_line; /* as one would type it */
  json_t *old;        /* what --compare names */
} bench_output;

/* The options of every command that gives results. */
#define BENCH_OUTPUT_OPTIONS(output)                                              \
  {"--json", CLI_FLAG, &(output).json}, {"--report", CLI_TEXT, &(output).report}, \
  {                                                                               \
    "--compare", CLI_TEXT, &(output).compare                                      \
  }

/* Notes the command line and reads the earlier results: CLI_GO_ON, or an exit code after a complaint. */
int bench_output_open(bench_output *output, int argc, char **argv);

/* Sees that the page can be written, before anything is measured for it; answers as that does. */
int bench_output_check(const bench_output *output);
void bench_output_close(bench_output *output);

/* {machine, ceilings, results}, the lists still empty. A result is an object with "suite", "case", "threads" and "ns"
 * at least; NULL when memory is short. */
json_t *bench_output_begin(void);

/* Compares, draws and prints results (which it releases; NULL is reported as want of memory): an exit code. */
int bench_output_give(const bench_output *output, json_t *results);

/* Whether a case with this name is wanted: it holds every word of the list, which NULL ends. */
bool bench_name_has(const char *name, const char *const *words);

#endif
