/* cli/cmd_bench.c: `sheaf bench`: speed as a fraction of what the machine's memory can give, measured side by side. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_compare.h"
#include "bench_data.h"
#include "bench_device.h"
#include "bench_output.h"
#include "bench_parts.h"
#include "bench_tools.h"
#include "cli_impl.h"

enum { MAX_WORDS = 16, MAX_CEILINGS = 64, CEILING_TABLE = 512000000 };

typedef struct bench_options {
  const char *words[MAX_WORDS + 1]; /* the suite, then filters */
  const char *isa, *device, *from;
  int threads, quick, grid, list;
  double seconds;
  bench_output output;
} bench_options;

/* ---- Which cases --------------------------------------------------------------------------------------------- */

/* The last two are not made of cases, but measure lines of their own (bench_parts.h). */
static const char *const suites[] = {"lookup",    "bag", "backward", "segment", "small",
                                     "pathology", "all", "dispatch", "shard"};

static bool is_suite(const char *word)
{
  for (int i = 0; i < CLI_LENGTH(suites); i++)
    if (strcmp(word, suites[i]) == 0) return true;
  return false;
}

static bool suite_is_wanted(const bench_options *options, const char *name)
{
  const char *suite = options->words[0];
  return !suite || strcmp(suite, "all") == 0 || strcmp(suite, name) == 0;
}

static const char *const *filters_of(const bench_options *options)
{
  return options->words[0] ? options->words + 1 : options->words;
}

static bool is_wanted(const bench_case *c, const bench_options *options)
{
  const char *const *filters = filters_of(options);
  return suite_is_wanted(options, c->suite) && bench_name_has(c->name, filters) && (c->quick || !options->quick);
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
  } kinds[] = {
      {STREAM_READ, false}, {STREAM_COPY, false}, {STREAM_FILL, false}, {STREAM_GATHER, true}, {STREAM_UPDATE, true}};
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
        if (cli_stop_wanted()) return;
        bench_ceiling *ceiling = &s->report.ceilings[s->report.ceiling_count];
        bench_show_progress("measuring the machine's memory ...");
        if (bench_measure_ceiling(kinds[k].kind, kinds[k].by_row ? rows[r] : 0, &s->table, s->threads[t], &effort,
                                  ceiling) != SHEAF_OK)
          continue;
        s->report.ceiling_count++;
        bench_show_progress("");
        if (!s->options->output.json) bench_print_ceiling(ceiling);
      }
}

static void add_result(campaign *s, const bench_result *result)
{
  s->report.results[s->report.result_count++] = *result;
  s->failed += result->fault[0] != '\0';
  bench_show_progress("");
  if (!s->options->output.json) bench_print_result(result);
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

static void run_cases(campaign *s, const bench_cases *list)
{
  bool only_small = true;
  for (int i = 0; i < list->count; i++) only_small &= strcmp(list->items[i].suite, "small") == 0;
  if (!only_small) measure_own_ceilings(s);
  if (!s->options->output.json) bench_print_head();
  for (int i = 0; i < list->count && !cli_stop_wanted(); i++) {
    char line[128];
    snprintf(line, sizeof line, "[%d/%d] %s %s ...", i + 1, list->count, list->items[i].suite, list->items[i].name);
    bench_show_progress(line);
    run_case(s, &list->items[i]);
  }
  bench_show_progress("");
  bench_table_release(&s->table);
  if (!s->options->output.json) bench_print_foot(&s->report);
}

/* Runs the cases of a list and puts their results and ceilings into `root`: an exit code. */
static int measure_cases(const bench_options *options, const bench_cases *list, json_t *root)
{
  campaign s = {.options = options};
  if (list->count == 0) return CLI_OK;
  s.effort.seconds = options->seconds > 0 ? options->seconds : options->quick ? 0.2 : 1;
  s.effort.min_runs = options->quick || s.effort.seconds < 0.5 ? 5 : 15;
  s.threads[0] = options->threads ? options->threads : 1;
  s.threads[1] = sheaf_threads();
  s.thread_counts = options->threads || s.threads[1] == 1 ? 1 : 2;
  size_t room = (size_t)list->count * 2 + 1;
  s.report.ceilings = calloc(MAX_CEILINGS, sizeof *s.report.ceilings);
  s.report.results = calloc(room, sizeof *s.report.results);
  s.report.skipped = calloc(room, sizeof(const bench_case *));
  bool fine = s.report.ceilings && s.report.results && s.report.skipped;
  if (fine) run_cases(&s, list);
  if (!fine || !bench_report_add(&s.report, root)) {
    cli_complain("bench", "out of memory");
    fine = false;
  }
  free(s.report.ceilings);
  free(s.report.results);
  free(s.report.skipped);
  return fine && !s.failed ? CLI_OK : CLI_FAILED;
}

/* Every suite that is wanted, one after the other; what fails does not keep the others from being shown. */
static int measure_suites(const bench_options *options, const bench_cases *list)
{
  const char *const *filters = filters_of(options);
  bool text = !options->output.json;
  json_t *root = bench_output_begin(), *results = json_object_get(root, "results");
  if (!root) {
    cli_complain("bench", "out of memory");
    return CLI_FAILED;
  }
  if (text) bench_print_machine();
  int code = measure_cases(options, list, root), given;
  if (suite_is_wanted(options, "dispatch") && bench_dispatch_has(filters) && !cli_stop_wanted() &&
      bench_dispatch(options->seconds > 0 ? options->seconds
                     : options->quick     ? 0.2
                                          : 2,
                     filters, text, results) != CLI_OK)
    code = CLI_FAILED;
  if (suite_is_wanted(options, "shard") && bench_shard_has(filters) && !cli_stop_wanted()) {
    bench_shard_sizes sizes = options->quick ? bench_shard_quick : bench_shard_usual;
    if (bench_shard_alone(&sizes, options->threads, filters, text, results) != CLI_OK) code = CLI_FAILED;
  }
  if (cli_stop_wanted()) { /* what has been measured is given all the same, as what it is */
    cli_complain("bench", "interrupted: the results are not complete");
    json_object_set_new(root, "stopped", json_true());
    code = CLI_FAILED;
  }
  given = bench_output_give(&options->output, root);
  return code == CLI_OK ? given : code;
}

static void print_list(const bench_options *options, const bench_cases *list)
{
  const char *const *filters = filters_of(options);
  for (int i = 0; i < list->count; i++) printf("%-9s %s\n", list->items[i].suite, list->items[i].name);
  if (suite_is_wanted(options, "dispatch")) bench_dispatch_list(filters);
  if (suite_is_wanted(options, "shard")) bench_shard_list(filters);
}

static int run_suites(const bench_options *options)
{
  bench_cases list = {0};
  const char *const *filters = filters_of(options);
  int code = CLI_OK;
  bench_list_cases(&list, options->grid);
  keep_wanted(&list, options);
  bool others = (suite_is_wanted(options, "dispatch") && bench_dispatch_has(filters)) ||
                (suite_is_wanted(options, "shard") && bench_shard_has(filters));
  if (list.failed) {
    cli_complain("bench", "out of memory");
    code = CLI_FAILED;
  } else if (list.count == 0 && !others) {
    code = cli_misused("bench", "no case%s has that in its name", options->quick ? " of --quick" : "");
  } else if (options->list) {
    print_list(options, &list);
  } else {
    code = measure_suites(options, &list);
  }
  free(list.items);
  return code;
}

/* Cases on a device have no suites: all words are filters. */
static int run_on_device(const bench_options *options)
{
  json_t *root = options->list ? NULL : bench_output_begin();
  int code =
      bench_on_device(options->device, options->words, options->quick, options->list, !options->output.json, root);
  if (json_array_size(json_object_get(root, "results")) == 0) { /* nothing was measured, or only names were wanted */
    json_decref(root);
    return code;
  }
  int given = bench_output_give(&options->output, root);
  return code == CLI_OK ? given : code;
}

/* Everything but the options themselves. */
static int run_bench(const bench_options *options)
{
  int code;
  const char *suite = options->words[0];
  if (options->from) {
    if (!options->output.report && !options->output.compare && !options->output.json)
      return cli_misused("bench", "--from is for --report, --compare or --json");
    json_t *earlier = bench_compare_read(options->from);
    return earlier ? bench_output_give(&options->output, earlier) : CLI_FAILED;
  }
  if (options->device && strcmp(options->device, "cpu") != 0) return run_on_device(options);
  if (suite && !is_suite(suite)) return cli_unknown("bench", "suite", suite, suites, CLI_LENGTH(suites));
  if (options->isa && (code = cli_isa("bench", options->isa)) != CLI_GO_ON) return code;
  return run_suites(options);
}

int cmd_bench(int argc, char **argv)
{
  if (argc > 1 && strcmp(argv[1], "shard") == 0) return bench_shard(argc, argv);
  bench_options options = {0};
  const cli_option known[] = {{"--threads", CLI_THREADS, &options.threads}, {"--isa", CLI_TEXT, &options.isa},
                              {"--seconds", CLI_SECONDS, &options.seconds}, {"--quick", CLI_FLAG, &options.quick},
                              {"--grid", CLI_FLAG, &options.grid},          {"--list", CLI_FLAG, &options.list},
                              {"--device", CLI_TEXT, &options.device},      {"--from", CLI_TEXT, &options.from},
                              BENCH_OUTPUT_OPTIONS(options.output)};
  const cli_syntax syntax = {"bench", known, CLI_LENGTH(known), options.words, MAX_WORDS};
  int code = cli_parse(&syntax, argc, argv);
  if (code == CLI_GO_ON) code = bench_output_open(&options.output, argc, argv);
  if (code == CLI_GO_ON && !options.list) code = bench_output_check(&options.output);
  if (code == CLI_GO_ON) code = run_bench(&options);
  bench_output_close(&options.output);
  return code;
}
