/* cli/bench_report.c: the results of `sheaf bench` as a table and as JSON. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "cli_impl.h"
#include "json_out.h"

static void read_first_line(const char *path, char *line, size_t room)
{
  line[0] = '\0';
  FILE *file = fopen(path, "r");
  if (!file) return;
  if (!fgets(line, (int)room, file)) line[0] = '\0';
  line[strcspn(line, "\n")] = '\0';
  fclose(file);
}

static void today(char *text, size_t room)
{
  time_t now = time(NULL);
  struct tm parts;
  if (!gmtime_r(&now, &parts) || !strftime(text, room, "%Y-%m-%dT%H:%M:%SZ", &parts)) snprintf(text, room, "unknown");
}

static double memory_gigabytes(void)
{
  return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / 1e9;
}

/* As the kernel has it: the C library's figure counts caches that a virtual machine does not have. */
static double last_level_megabytes(void)
{
  char size[32];
  double kilobytes = 0;
  for (int level = 2; level <= 3; level++) {
    char path[64];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", level);
    read_first_line(path, size, sizeof size);
    if (size[0]) kilobytes = strtod(size, NULL);
  }
  return kilobytes * 1024 / 1e6;
}

/* ---- Text ---------------------------------------------------------------------------------------------------- */

void bench_print_machine(void)
{
  char load[64], huge[64];
  read_first_line("/proc/loadavg", load, sizeof load);
  read_first_line("/sys/kernel/mm/transparent_hugepage/enabled", huge, sizeof huge);
  const char *cpu = sheaf_cpu_name();
  printf("Sheaf %s on %s, %s; %ld cores, %.0f MB last-level cache, %.0f GB memory, huge pages: %s\n", sheaf_version(),
         *cpu ? cpu : "an unknown CPU", sheaf_isa_name(sheaf_isa_current()), sysconf(_SC_NPROCESSORS_ONLN),
         last_level_megabytes(), memory_gigabytes(), huge);
  printf("Load before: %s\n\n", load);
}

void bench_print_ceiling(const bench_ceiling *ceiling)
{
  char rows[32] = "";
  if (ceiling->row_bytes) snprintf(rows, sizeof rows, " of %lld-byte rows", (long long)ceiling->row_bytes);
  printf("ceiling: %s%s, %d thread%s, %s pages, %.0f MB: %.1f GB/s (%.1f to %.1f; %s)\n", ceiling->what, rows,
         ceiling->threads, ceiling->threads == 1 ? "" : "s", ceiling->pages, (double)ceiling->table_bytes / 1e6,
         ceiling->gbps, ceiling->low, ceiling->high, ceiling->way);
}

/* What of the table is shown: all of it in pipes and very wide terminals; else what has room, of names if need be the
 * beginning and the end. */
typedef struct table_shape {
  int suite, name; /* columns of either; suite 0: left out */
  bool whole;      /* spreads, kernels and ceilings too */
} table_shape;

static table_shape shape_of_table(void)
{
  enum { WHOLE = 200, SUITE = 10, NAME = 60, OTHERS = 48, UNKNOWN = 120, SHORT_NAME = 40, LEAST = 16 };
  struct winsize size = {0};
  if (!isatty(STDOUT_FILENO)) return (table_shape){SUITE, NAME, true};
  int columns = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : UNKNOWN;
  if (columns >= WHOLE) return (table_shape){SUITE, NAME, true};
  int suite = columns - SUITE - OTHERS < SHORT_NAME ? 0 : SUITE, name = columns - suite - OTHERS;
  return (table_shape){suite, name > NAME ? NAME : name < LEAST ? LEAST : name, false};
}

static void print_name(const table_shape *shape, const char *suite, const char *name)
{
  int length = (int)strlen(name), begin = (shape->name - 1) / 2;
  if (shape->suite) printf("%-*s", shape->suite, suite);
  if (shape->whole || length <= shape->name)
    printf("%-*s", shape->name, name);
  else
    printf("%.*s..%s", begin, name, name + length - (shape->name - 2 - begin));
}

void bench_print_head(void)
{
  const table_shape shape = shape_of_table();
  putchar('\n');
  print_name(&shape, "suite", "case");
  if (shape.whole)
    printf(" %3s %10s %-17s %6s  %-26s %5s %-6s  %s\n", "thr", "time", "(10 % to 90 %)", "GB/s",
           "of ceiling (10 % to 90 %)", "quiet", "target", "kernel; ceilings");
  else
    printf(" %3s %10s %6s  %-11s %5s %s\n", "thr", "time", "GB/s", "of ceiling", "quiet", "target");
}

static void print_time(double ns, double low, double high, bool spread_too)
{
  double unit = ns < 2e4 ? 1 : ns < 2e7 ? 1e3 : 1e6;
  const char *name = ns < 2e4 ? "ns" : ns < 2e7 ? "us" : "ms";
  char spread[48];
  snprintf(spread, sizeof spread, "(%.1f to %.1f)", low / unit, high / unit);
  printf(" %7.1f %s", ns / unit, name);
  if (spread_too) printf(" %-17s", spread);
}

static bool target_is_met(const bench_result *result)
{
  const double slack = 0.03;
  if (result->ceilings) return result->fraction >= result->c->target * (1 - slack);
  return result->ns <= result->c->target * (1 + slack);
}

void bench_print_result(const bench_result *result)
{
  const bench_case *c = result->c;
  const table_shape shape = shape_of_table();
  print_name(&shape, c->suite, c->name);
  printf(" %3d", result->threads);
  if (result->fault[0]) {
    printf(" FAILED: %s\n", result->fault);
    return;
  }
  print_time(result->ns, result->ns_low, result->ns_high, shape.whole);
  char target[32] = "";
  if (c->target > 0) snprintf(target, sizeof target, result->ceilings ? "%.2f%s" : "%.0f%s", c->target,
                              target_is_met(result) ? "" : " !");
  if (!result->ceilings) {
    if (shape.whole)
      printf(" %6s  %-26s %5s %-6s  %s\n", "", "", "", target, result->sku);
    else
      printf("%*s%s\n", *target ? 27 : 0, "", target); /* no blanks at the end */
    return;
  }
  char fraction[48];
  if (!shape.whole) {
    snprintf(fraction, sizeof fraction, "%.2f %s", result->fraction, stream_kind_name(c->ceiling));
    printf(" %6.1f  %-11s %5.2f %s\n", result->gbps, fraction, result->fraction_quiet, target);
    return;
  }
  snprintf(fraction, sizeof fraction, "%.2f %s (%.2f to %.2f)", result->fraction, stream_kind_name(c->ceiling),
           result->fraction_low, result->fraction_high);
  printf(" %6.1f  %-26s %5.2f %-6s  %s; %s %.1f (%s)", result->gbps, fraction, result->fraction_quiet, target,
         result->sku, result->ceiling[0].what, result->ceiling[0].gbps, result->ceiling[0].way);
  for (int i = 1; i < result->ceilings; i++) {
    const bench_ceiling *ceiling = &result->ceiling[i];
    printf("; %.2f of %s %.1f (%s)", result->gbps / ceiling->gbps, ceiling->what, ceiling->gbps, ceiling->way);
  }
  if (result->interrupted) printf("; %d of %d runs were interrupted", result->interrupted, result->runs);
  putchar('\n');
}

void bench_print_foot(const bench_report *report)
{
  bool any = false;
  int interrupted = 0;
  for (int i = 0; i < report->result_count; i++) {
    any |= report->results[i].c->target > 0;
    interrupted += report->results[i].interrupted > 0;
  }
  if (interrupted && !shape_of_table().whole)
    printf("\nThe kernel interrupted runs of %d of %d cases; --json says which\n", interrupted, report->result_count);
  if (any)
    puts("\ntarget: the fraction of the ceiling that is aimed at (of suite small: the time in ns); "
         "'!': missed by over 3 %");
}

/* ---- JSON ---------------------------------------------------------------------------------------------------- */

json_t *bench_machine_json(void)
{
  char load[64], huge[64], date[32], host[64] = "";
  read_first_line("/proc/loadavg", load, sizeof load);
  read_first_line("/sys/kernel/mm/transparent_hugepage/enabled", huge, sizeof huge);
  today(date, sizeof date);
  if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return json_pack("{s:s, s:s, s:s, s:s, s:I, s:f, s:f, s:s, s:s, s:s}", "cpu", sheaf_cpu_name(), "isa",
                   sheaf_isa_name(sheaf_isa_current()), "version", sheaf_version(), "date", date, "cores",
                   (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "last_level_cache_mb", last_level_megabytes(),
                   "memory_gb", memory_gigabytes(), "huge_pages", huge, "load_after", load, "compiler", __VERSION__);
}

static json_t *ceiling_to_json(const bench_ceiling *ceiling)
{
  return json_pack("{s:s, s:I, s:I, s:i, s:s, s:f, s:f, s:f, s:s}", "ceiling", ceiling->what, "row_bytes",
                   (json_int_t)ceiling->row_bytes, "table_bytes", (json_int_t)ceiling->table_bytes, "threads",
                   ceiling->threads, "pages", ceiling->pages, "gbps", ceiling->gbps, "gbps_p10", ceiling->low,
                   "gbps_p90", ceiling->high, "way", ceiling->way);
}

static json_t *spread_name(const bench_case *c)
{
  if (c->spread == BENCH_POWER) return json_sprintf("%.2f", c->exponent);
  return json_string(c->spread == BENCH_UNIFORM ? "uniform" : "one row");
}

static json_t *result_to_json(const bench_result *result)
{
  const bench_case *c = result->c;
  json_t *object = json_pack("{s:s, s:s, s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:i, s:i}", "suite", c->suite, "case",
                             c->name, "dtype", sheaf_dtype_name(c->dtype), "index", sheaf_dtype_name(c->index),
                             "spread", spread_name(c), "rows", (json_int_t)c->rows, "dim", (json_int_t)c->dim,
                             "length", (json_int_t)c->length, "entries", (json_int_t)bench_entries(c), "segments",
                             (json_int_t)c->segments, "threads", result->threads, "runs", result->runs);
  if (!object) return NULL;
  int failed = json_object_set_new(object, "sku", json_string(result->sku));
  if (result->fault[0]) failed |= json_object_set_new(object, "fault", json_string(result->fault));
  json_t *rest = json_pack("{s:f, s:f, s:f, s:f, s:b}", "ns", result->ns, "ns_p10", result->ns_low, "ns_p90",
                           result->ns_high, "target", c->target, "target_met", c->target <= 0 || target_is_met(result));
  failed |= json_object_update_new(object, rest);
  if (result->ceilings && !result->fault[0]) {
    const bench_ceiling *first = &result->ceiling[0];
    rest = json_pack("{s:f, s:s, s:f, s:s, s:s, s:f, s:f, s:f, s:f, s:i}", "gbps", result->gbps, "ceiling", first->what,
                     "ceiling_gbps", first->gbps, "ceiling_way", first->way, "pages", first->pages, "fraction",
                     result->fraction, "fraction_p10", result->fraction_low, "fraction_p90", result->fraction_high,
                     "fraction_quiet", result->fraction_quiet, "interrupted", result->interrupted);
  } else {
    rest = json_pack("{s:n, s:n, s:n}", "gbps", "ceiling", "fraction");
  }
  failed |= json_object_update_new(object, rest);
  if (result->ceilings > 1) {
    const bench_ceiling *other = &result->ceiling[1];
    rest = json_pack("{s:s, s:f, s:f}", "ceiling", other->what, "gbps", other->gbps, "fraction",
                     result->gbps / other->gbps);
    failed |= json_object_set_new(object, "beside", rest);
  }
  if (!failed) return object;
  json_decref(object);
  return NULL;
}

bool bench_report_add(const bench_report *report, json_t *root)
{
  json_t *ceilings = json_object_get(root, "ceilings"), *results = json_object_get(root, "results");
  json_t *skipped = json_array();
  int failed = 0;
  for (int i = 0; i < report->ceiling_count; i++)
    failed |= json_array_append_new(ceilings, ceiling_to_json(&report->ceilings[i]));
  for (int i = 0; i < report->result_count; i++)
    failed |= json_array_append_new(results, result_to_json(&report->results[i]));
  for (int i = 0; i < report->skipped_count; i++)
    failed |= json_array_append_new(skipped, json_string(report->skipped[i]->name));
  return !(failed | json_object_set_new(root, "skipped_for_memory", skipped));
}
