/* cli/cmd_trace.c: `sheaf trace view`: a Chrome trace, such as the profiler exports, as a table and as a page. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_impl.h"
#include "json_out.h"
#include "report.h"

static const char command[] = "trace view";

enum { MOST_DRAWN = 20000, MOST_OPS = 4096, MOST_THREADS = 256 };

typedef struct trace_event {
  int op, thread;     /* places in the lists below */
  double begin, time; /* microseconds */
  double bytes;
} trace_event;

typedef struct trace_op {
  const char *name, *kernel; /* the JSON's own; kernel: of the last call */
  int64_t calls;
  double time, bytes;
} trace_op;

typedef struct trace {
  json_t *root;
  trace_event *events;
  int64_t count, others; /* others: entries that are no complete events */
  trace_op ops[MOST_OPS];
  int op_count;
  int64_t threads[MOST_THREADS];
  int thread_count;
  double begin, end;
} trace;

static int op_number(trace *t, const char *name)
{
  for (int i = 0; i < t->op_count; i++)
    if (strcmp(t->ops[i].name, name) == 0) return i;
  if (t->op_count == MOST_OPS) return MOST_OPS - 1; /* the last one has the rest */
  t->ops[t->op_count] = (trace_op){.name = name, .kernel = ""};
  return t->op_count++;
}

static int thread_number(trace *t, int64_t id)
{
  for (int i = 0; i < t->thread_count; i++)
    if (t->threads[i] == id) return i;
  if (t->thread_count == MOST_THREADS) return MOST_THREADS - 1;
  t->threads[t->thread_count] = id;
  return t->thread_count++;
}

static void add_event(trace *t, json_t *item)
{
  const char *phase = json_string_value(json_object_get(item, "ph"));
  const char *name = json_string_value(json_object_get(item, "name"));
  json_t *begin = json_object_get(item, "ts"), *time = json_object_get(item, "dur"),
         *args = json_object_get(item, "args");
  if (!phase || strcmp(phase, "X") != 0 || !name || !json_is_number(begin) || !json_is_number(time) ||
      !(json_number_value(time) >= 0)) {
    t->others++;
    return;
  }
  trace_event event = {op_number(t, name), thread_number(t, json_integer_value(json_object_get(item, "tid"))),
                       json_number_value(begin), json_number_value(time),
                       json_number_value(json_object_get(args, "bytes"))};
  trace_op *op = &t->ops[event.op];
  const char *kernel = json_string_value(json_object_get(args, "sku"));
  if (kernel && *kernel) op->kernel = kernel;
  op->calls++;
  op->time += event.time;
  op->bytes += event.bytes;
  if (t->count == 0 || event.begin < t->begin) t->begin = event.begin;
  if (t->count == 0 || event.begin + event.time > t->end) t->end = event.begin + event.time;
  t->events[t->count++] = event;
}

static int read_trace(trace *t, const char *path)
{
  t->root = cli_read_json(command, path);
  if (!t->root) return CLI_FAILED;
  json_t *list = json_is_array(t->root) ? t->root : json_object_get(t->root, "traceEvents");
  if (!json_is_array(list)) {
    cli_complain(command, "'%s' is no Chrome trace: it has no list \"traceEvents\"", path);
    return CLI_FAILED;
  }
  t->events = calloc(json_array_size(list) + 1, sizeof *t->events);
  if (!t->events) {
    cli_complain(command, "out of memory");
    return CLI_FAILED;
  }
  for (size_t i = 0; i < json_array_size(list); i++) add_event(t, json_array_get(list, i));
  return CLI_GO_ON;
}

static int compare_ops(const void *left, const void *right)
{
  const trace_op *a = *(const trace_op *const *)left, *b = *(const trace_op *const *)right;
  return a->time != b->time ? (a->time < b->time) - (a->time > b->time) : strcmp(a->name, b->name);
}

/* Longest first, so that what does not fit a page is short; then by time, for the drawing. */
static int compare_lengths(const void *left, const void *right)
{
  const trace_event *a = left, *b = right;
  return (a->time < b->time) - (a->time > b->time);
}
static int compare_begins(const void *left, const void *right)
{
  const trace_event *a = left, *b = right;
  return (a->begin > b->begin) - (a->begin < b->begin);
}

/* bytes per microsecond are MB/s */
static double speed(const trace_op *op) { return op->time > 0 ? op->bytes / op->time / 1e3 : 0; }

static json_t *ops_to_json(const trace *t, const trace_op *const *sorted)
{
  json_t *list = json_array();
  double all = 0;
  for (int i = 0; i < t->op_count; i++) all += sorted[i]->time;
  for (int i = 0; i < t->op_count; i++) {
    const trace_op *op = sorted[i];
    json_array_append_new(list,
                          json_pack("{s:s, s:s, s:I, s:o, s:o, s:o, s:o}", "op", op->name, "kernel", op->kernel,
                                    "calls", (json_int_t)op->calls, "total_us", cli_json_real(op->time), "mean_us",
                                    cli_json_real(op->time / (double)op->calls), "share",
                                    cli_json_real(all > 0 ? op->time / all : 0), "gbps", cli_json_real(speed(op))));
  }
  return list;
}

static int write_page(trace *t, const trace_op *const *sorted, const char *file, const char *path, const char *line)
{
  int64_t drawn = t->count < MOST_DRAWN ? t->count : MOST_DRAWN;
  qsort(t->events, (size_t)t->count, sizeof *t->events, compare_lengths);
  qsort(t->events, (size_t)drawn, sizeof *t->events, compare_begins);
  json_t *events = json_array(), *names = json_array(), *threads = json_array();
  for (int64_t i = 0; i < drawn; i++) {
    const trace_event *e = &t->events[i];
    json_array_append_new(events, json_pack("[i, i, f, f, f]", e->op, e->thread, e->begin, e->time, e->bytes));
  }
  for (int i = 0; i < t->op_count; i++) json_array_append_new(names, json_string(t->ops[i].name));
  for (int i = 0; i < t->thread_count; i++) json_array_append_new(threads, json_integer(t->threads[i]));
  json_t *page = json_pack("{s:s, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "kind", "trace", "file",
                           cli_json_text(file), "command", cli_json_text(line ? line : ""), "count",
                           (json_int_t)t->count, "begin", cli_json_real(t->begin), "end", cli_json_real(t->end),
                           "events", events, "names", names, "threads", threads, "ops", ops_to_json(t, sorted));
  return report_write(command, path, file, page);
}

static int print_table(const trace *t, const trace_op *const *sorted, const char *file)
{
  printf("%s: %lld calls of %d ops on %d thread%s, %.3f ms from first to last\n", cli_shown(file), (long long)t->count,
         t->op_count, t->thread_count, t->thread_count == 1 ? "" : "s", (t->end - t->begin) / 1e3);
  if (t->others) printf("%lld entries that are no complete events are passed over\n", (long long)t->others);
  printf("%-26s %-40s %10s %12s %12s %10s\n", "op", "last kernel", "calls", "total us", "us a call", "GB/s");
  for (int i = 0; i < t->op_count; i++)
    printf("%-26s %-40s %10lld %12.1f %12.2f %10.2f\n", cli_shown(sorted[i]->name),
           *sorted[i]->kernel ? cli_shown(sorted[i]->kernel) : "-", (long long)sorted[i]->calls, sorted[i]->time,
           sorted[i]->time / (double)sorted[i]->calls, speed(sorted[i]));
  return CLI_OK;
}

/* argv[0] is "trace", argv[1] is "view". */
static int view(int argc, char **argv)
{
  const char *file = NULL, *report = NULL;
  int json = 0;
  const cli_option options[] = {{"--report", CLI_TEXT, &report}, {"--json", CLI_FLAG, &json}};
  const cli_syntax syntax = {command, options, CLI_LENGTH(options), &file, 1};
  int code = cli_parse(&syntax, argc - 1, argv + 1);
  if (code != CLI_GO_ON) return code;
  if (!file) return cli_misused(command, "no trace is given");
  if (report && (code = report_check(command, report)) != CLI_GO_ON) return code;
  trace *t = calloc(1, sizeof *t);
  const trace_op **sorted = calloc(MOST_OPS, sizeof *sorted); /* NOLINT(bugprone-sizeof-expression): of pointers */
  char *line = report_command_line(argc, argv);
  if (!t || !sorted) cli_complain(command, "out of memory");
  code = t && sorted ? read_trace(t, file) : CLI_FAILED;
  if (code == CLI_GO_ON) {
    for (int i = 0; i < t->op_count; i++) sorted[i] = &t->ops[i];
    qsort(sorted, (size_t)t->op_count, sizeof *sorted, compare_ops); /* NOLINT(bugprone-sizeof-expression) */
    code = report ? write_page(t, sorted, file, report, line) : CLI_OK;
    int printed = json ? cli_print_json(command, json_pack("{s:o, s:I, s:o}", "file", cli_json_text(file), "calls",
                                                           (json_int_t)t->count, "ops", ops_to_json(t, sorted)))
                       : print_table(t, sorted, file);
    if (report && code == CLI_OK && !json) printf("\nThe page is in %s\n", cli_shown(report));
    if (code == CLI_OK) code = printed;
  }
  if (t) {
    free(t->events);
    json_decref(t->root);
  }
  free(t);
  free(sorted);
  free(line);
  return code;
}

int cmd_trace(int argc, char **argv)
{
  static const char *const parts[] = {"view"};
  if (argc < 2) return cli_misused("trace", "no part is named: view");
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
    cli_print_command_help(cli_find_command("trace"), stdout);
    return CLI_OK;
  }
  if (strcmp(argv[1], "view") == 0) return view(argc, argv);
  return cli_unknown("trace", argv[1][0] == '-' ? "option" : "part", argv[1], parts, CLI_LENGTH(parts));
}
