/* cli/bench_output.c: results of `sheaf bench` as JSON, as a page, beside earlier ones. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* strcasestr */
#endif
#include "bench_output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_compare.h"
#include "cli_impl.h"
#include "json_out.h"
#include "report.h"

int bench_output_open(bench_output *output, int argc, char **argv)
{
  output->command_line = report_command_line(argc, argv);
  if (output->compare && !(output->old = bench_compare_read(output->compare))) return CLI_FAILED;
  return CLI_GO_ON;
}

int bench_output_check(const bench_output *output)
{
  return output->report ? report_check("bench", output->report) : CLI_GO_ON;
}

void bench_output_close(bench_output *output)
{
  json_decref(output->old);
  free(output->command_line);
}

json_t *bench_output_begin(void)
{
  return json_pack("{s:o, s:[], s:[]}", "machine", bench_machine_json(), "ceilings", "results");
}

int bench_output_give(const bench_output *output, json_t *results)
{
  int code = CLI_OK;
  if (results && output->command_line && !json_object_get(results, "command"))
    json_object_set_new(results, "command", cli_json_text(output->command_line));
  if (results && output->old) bench_compare_add(results, output->old, output->compare);
  if (results && output->old && !output->json) bench_compare_print(results);
  if (output->report) code = report_write("bench", output->report, "sheaf bench", json_incref(results));
  if (output->report && code == CLI_OK && !output->json) printf("\nThe page is in %s\n", cli_shown(output->report));
  if (!output->json) {
    json_decref(results);
    return code;
  }
  int printed = cli_print_json("bench", results);
  return code == CLI_OK ? printed : code;
}

bool bench_name_has(const char *name, const char *const *words)
{
  for (int i = 0; words && words[i]; i++)
    if (!strcasestr(name, words[i])) return false;
  return true;
}
