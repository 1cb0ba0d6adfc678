/* cli/cmd_bench.c: `sheaf bench`: speed as a fraction of what the machine's memory can give, measured side by side. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* strcasestr */
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_compare.h"
#include "bench_data.h"
#include "bench_device.h"
#include "bench_tools.h"
#include "cli_impl.h"
#include "json_out.h"
#include "report.h"

enum { MAX_WORDS = 16, MAX_CEILINGS = 64, CEILING_TABLE = 512000000 };

typedef struct bench_options {
  const char *words[MAX_WORDS + 1];
  const char *isa, *device, *report, *compare, *from;
  int threads, quick, grid, json, list;
  char *command_line;
  json_t *old; /* of --compare */
  double seconds;
} bench_options;

/* ---- Which cases --------------------------------------------------------------------------------------------- */

static const char *const suites[] = {"lookup", "bag", "backward", "segment", "small", "pathology", "all"};

static bool is_suite(const char *word)
{
  for (size_t i = 0; i < sizeof suites / sizeof *suites; i++)
    if (strcmp(word, suites[i]) == 0) return true;
  return false;
}

static bool is_wanted(const bench_case *c, const bench_options *options)
{
  const char *suite = options->words[0];
  if (suite && strcmp(suite, "all") != 0 && strcmp(suite, c->suite) != 0) return false;
  for (int i = 1; suite && options->words[i]; i++)
    if (!strcasestr(c->name, options->words[i])) return false;
  return c->quick || !options->quick || (suite && options->words[1]);
}

static void keep_wanted(bench_cases *list, const bench_options *options)
{
  int kept = 0;
  for (int i = 0; i < list->count; i++)
    if (is_wanted(&list->items[i], options)) list->items[kept++] = list->items[i];
  list->count = kept;
}

/* Bytes that can be had without pushing anything out; a great many where the kernel does not say. */
static double available_memory(void)
{
  static const char key[] = "MemAvailable:";
  FILE *file = fopen("/proc/meminfo", "r");
  char line[128];
  double kilobytes = 1e15;
  while (file && fgets(line, sizeof line, file))
    if (strncmp(line, key, sizeof key - 1) == 0) kilobytes = strtod(line + sizeof key - 1, NULL);
  if (file) fclose(file);
  return 1024 * kilobytes;
}

/* ---- Running ------------------------------------------------------------------------------------------------- */

typedef struct campaign {
  const bench_options *options;
  bench_effort effort;
  int threads[2], thread_counts;
  bench_table table;
  bench_report report;
  int failed;
} campaign;

static void measure_own_ceilings(campaign *s)
{
  static const int64_t all_rows[] = {64, 128, 256, 512, 1024, 4096}, one_row[] = {512};
  static const struct {
    stream_kind kind;
    bool by_row;
  } kinds[] = {{STREAM_READ, false}, {STREAM_COPY, false}, {STREAM_FILL, false}, {STREAM_GATHER, true},
               {STREAM_UPDATE, true}};
  bool few = s->options->quick || (s->options->words[0] && s->options->words[1]);
  const int64_t *rows = few ? one_row : all_rows;
  int row_count = few ? 1 : 6;
  bench_table wanted = {.dtype = SHEAF_F32, .dim = 128, .stride_bytes = 512, .rows = CEILING_TABLE / 512};
  if (bench_table_make(&s->table, &wanted) != SHEAF_OK) return;
  bench_effort effort = s->effort;
  effort.seconds *= 0.25;
  for (int t = 0; t < s->thread_counts; t++)
    for (int k = 0; k < 5; k++)
      for (int r = 0; r < (kinds[k].by_row ? row_count : 1); r++) {
        bench_ceiling *ceiling = &s->report.ceilings[s->report.ceiling_count];
        bench_show_progress("measuring the machine's memory ...");
        if (bench_measure_ceiling(kinds[k].kind, kinds[k].by_row ? rows[r] : 0, &s->table, s->threads[t], &effort,
                                  ceiling) != SHEAF_OK)
          continue;
        s->report.ceiling_count++;
        bench_show_progress("");
        if (!s->options->json) bench_print_ceiling(ceiling);
      }
}

static void add_result(campaign *s, const bench_result *result)
{
  s->report.results[s->report.result_count++] = *result;
  s->failed += result->fault[0] != '\0';
  bench_show_progress("");
  if (!s->options->json) bench_print_result(result);
  fflush(stdout);
}

static void run_case(campaign *s, const bench_case *c)
{
  static bench_data data;
  bench_result result;
  if (strcmp(c->suite, "small") == 0) {
    bench_measure_small(c, &s->effort, &result);
    add_result(s, &result);
    return;
  }
  if (bench_memory_needed(c) > available_memory() + (double)s->table.bytes) {
    s->report.skipped[s->report.skipped_count++] = c;
    bench_show_progress("");
    cli_complain("bench", "passed over for want of memory: %s", c->name);
    return;
  }
  sheaf_status status = bench_data_make(&data, c, &s->table);
  for (int t = 0; t < s->thread_counts; t++) {
    if (status == SHEAF_OK) {
      bench_measure(&data, s->threads[t], &s->effort, &result);
    } else {
      result = (bench_result){.c = c, .threads = s->threads[t]};
      snprintf(result.fault, sizeof result.fault, "no memory for its data");
    }
    add_result(s, &result);
  }
  if (status == SHEAF_OK) bench_data_free(&data);
}

/* Results as JSON, as a page, beside earlier ones; the table has been printed on the way. */
static int give_results(const bench_options *options, json_t *results)
{
  int code = CLI_OK;
  if (results && options->command_line && !options->from)
    json_object_set_new(results, "command", json_string(options->command_line));
  if (results && options->old) bench_compare_add(results, options->old, options->compare);
  if (results && options->old && !options->json) bench_compare_print(results);
  if (options->report) code = report_write("bench", options->report, "sheaf bench", json_incref(results));
  if (!options->json) {
    json_decref(results);
    return code;
  }
  int printed = cli_print_json("bench", results);
  return code == CLI_OK ? printed : code;
}

static int run_cases(campaign *s, const bench_cases *list)
{
  bool only_small = true;
  for (int i = 0; i < list->count; i++) only_small &= strcmp(list->items[i].suite, "small") == 0;
  if (!s->options->json) bench_print_machine();
  if (!only_small) measure_own_ceilings(s);
  if (!s->options->json) bench_print_head();
  for (int i = 0; i < list->count; i++) {
    char line[128];
    snprintf(line, sizeof line, "[%d/%d] %s %s ...", i + 1, list->count, list->items[i].suite, list->items[i].name);
    bench_show_progress(line);
    run_case(s, &list->items[i]);
  }
  bench_show_progress("");
  bench_table_release(&s->table);
  int code = give_results(s->options, bench_report_json(&s->report));
  return s->failed ? CLI_FAILED : code;
}

static int start_measuring(const bench_options *options, const bench_cases *list)
{
  campaign s = {.options = options};
  s.effort.seconds = options->seconds > 0 ? options->seconds : options->quick ? 0.2 : 1;
  s.effort.min_runs = options->quick || s.effort.seconds < 0.5 ? 5 : 15;
  s.threads[0] = options->threads ? options->threads : 1;
  s.threads[1] = sheaf_threads();
  s.thread_counts = options->threads || s.threads[1] == 1 ? 1 : 2;
  size_t room = (size_t)list->count * 2 + 1;
  s.report.ceilings = calloc(MAX_CEILINGS, sizeof *s.report.ceilings);
  s.report.results = calloc(room, sizeof *s.report.results);
  s.report.skipped = calloc(room, sizeof(const bench_case *));
  int code = CLI_FAILED;
  if (s.report.ceilings && s.report.results && s.report.skipped) code = run_cases(&s, list);
  else cli_complain("bench", "out of memory");
  free(s.report.ceilings);
  free(s.report.results);
  free(s.report.skipped);
  return code;
}

static int set_isa(const char *name)
{
  for (int isa = SHEAF_ISA_SCALAR; isa <= SHEAF_ISA_AVX512; isa++) {
    if (strcmp(name, sheaf_isa_name((sheaf_isa)isa)) != 0) continue;
    if (sheaf_set_isa((sheaf_isa)isa) == SHEAF_OK) return CLI_GO_ON;
    return cli_misused("bench", "--isa %s cannot be used here: %s", name, sheaf_last_error());
  }
  return cli_misused("bench", "--isa takes scalar, avx2 or avx512, not '%s'", name);
}

/* Everything but the options themselves. */
static int run_bench(bench_options *options)
{
  int code;
  const char *suite = options->words[0];
  if (options->device && strcmp(options->device, "cpu") != 0) {
    if (options->report || options->compare)
      return cli_misused("bench", "--report and --compare are for suites of the CPU");
    return bench_on_device(options->device, options->words, options->quick, options->list);
  }
  if (suite && strcmp(suite, "dispatch") == 0)
    return bench_dispatch(options->quick ? 0.2 : options->seconds, options->json, options->report,
                          options->command_line);
  if (suite && !is_suite(suite)) {
    static const char *const names[] = {"lookup",    "bag", "backward", "segment", "small",
                                        "pathology", "all", "dispatch", "shard"};
    return cli_unknown("bench", "suite", suite, names, CLI_LENGTH(names));
  }
  if (options->isa && (code = set_isa(options->isa)) != CLI_GO_ON) return code;
  if (options->compare && !(options->old = bench_compare_read(options->compare))) return CLI_FAILED;
  if (options->from) {
    if (!options->report && !options->compare && !options->json)
      return cli_misused("bench", "--from is for --report, --compare or --json");
    json_t *earlier = bench_compare_read(options->from);
    return earlier ? give_results(options, earlier) : CLI_FAILED;
  }
  bench_cases list = {0};
  bench_list_cases(&list, options->grid);
  keep_wanted(&list, options);
  if (list.failed) {
    cli_complain("bench", "out of memory");
    code = CLI_FAILED;
  } else if (list.count == 0) {
    code = cli_misused("bench", "no case has that in its name");
  } else if (options->list) {
    for (int i = 0; i < list.count; i++) printf("%-9s %s\n", list.items[i].suite, list.items[i].name);
    code = CLI_OK;
  } else {
    code = start_measuring(options, &list);
  }
  free(list.items);
  return code;
}

int cmd_bench(int argc, char **argv)
{
  if (argc > 1 && strcmp(argv[1], "shard") == 0) return bench_shard(argc - 1, argv + 1);
  bench_options options = {0};
  const cli_option known[] = {{"--threads", CLI_THREADS, &options.threads}, {"--isa", CLI_TEXT, &options.isa},
                              {"--seconds", CLI_SECONDS, &options.seconds}, {"--quick", CLI_FLAG, &options.quick},
                              {"--grid", CLI_FLAG, &options.grid},          {"--json", CLI_FLAG, &options.json},
                              {"--list", CLI_FLAG, &options.list},          {"--device", CLI_TEXT, &options.device},
                              {"--report", CLI_TEXT, &options.report},      {"--compare", CLI_TEXT, &options.compare},
                              {"--from", CLI_TEXT, &options.from}};
  const cli_syntax syntax = {"bench", known, sizeof known / sizeof *known, options.words, MAX_WORDS};
  int code = cli_parse(&syntax, argc, argv);
  if (code != CLI_GO_ON) return code;
  options.command_line = report_command_line(argc, argv);
  code = run_bench(&options);
  json_decref(options.old);
  free(options.command_line);
  return code;
}
