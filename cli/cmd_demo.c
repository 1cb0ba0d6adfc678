/* cli/cmd_demo.c: `sheaf demo`: runs the main operations, checks them, and shows their speed. */
#include <stdio.h>

#include "bench_tools.h"
#include "cli_impl.h"
#include "demo.h"
#include "json_out.h"

static const char *const ceiling_names[DEMO_CEILINGS] = {"read", "copy", "gather"};

static void print_machine(const demo_data *data, const double bandwidth[DEMO_CEILINGS])
{
  const char *cpu = sheaf_cpu_name();
  printf("Sheaf %s on %s, %s, %d thread%s\n", sheaf_version(), *cpu ? cpu : "an unknown CPU",
         sheaf_isa_name(sheaf_isa_current()), data->threads, data->threads == 1 ? "" : "s");
  printf("Table: %lld rows of %d f32, %.0f MB; everything together %.2f GB\n", (long long)data->rows, DEMO_DIM,
         (double)data->rows * DEMO_DIM * sizeof(float) / 1e6, (double)data->block_bytes / 1e9);
  printf("This machine: sequential read %.1f GB/s, copy %.1f GB/s, random gather of %d-byte rows %.1f GB/s\n",
         bandwidth[DEMO_READ] / 1e9, bandwidth[DEMO_COPY] / 1e9, (int)(DEMO_DIM * sizeof(float)),
         bandwidth[DEMO_GATHER] / 1e9);
#ifndef _OPENMP
  if (data->threads > 1) puts("(measured with one thread: this command was built without OpenMP)");
#endif
}

static void print_columns(void)
{
  printf("\n%-23s  %-28s  %9s  %6s  %-12s  %-5s  %s\n", "operation", "shape", "time", "GB/s", "of bandwidth", "check",
         "kernel");
}

static void print_device(demo_data *data, const double bandwidth[DEMO_CEILINGS])
{
  sheaf_device_info info = {.name = "a CUDA device"};
  sheaf_device_describe(data->on.device, &info);
  printf("Sheaf %s on %s, %d.%d, %d processors\n", sheaf_version(), info.name, info.major, info.minor, info.processors);
  printf("Table: %lld rows of %d f32, %.0f MB; everything together %.2f GB\n", (long long)data->rows, DEMO_DIM,
         (double)data->rows * DEMO_DIM * sizeof(float) / 1e6, (double)data->block_bytes / 1e9);
  printf("This device: copy %.0f GB/s (read and written)\n", bandwidth[DEMO_COPY] / 1e9);
}

static void print_result(const demo_op *op, const demo_result *result, const double bandwidth[DEMO_CEILINGS],
                         demo_ceiling ceiling)
{
  if (result->fault[0]) {
    printf("%-23s  %-28s  FAILED: %s; kernel %s\n", op->name, result->shape, result->fault,
           result->kernel[0] ? result->kernel : "none");
    return;
  }
  double speed = (double)result->bytes / result->seconds;
  printf("%-23s  %-28s  %6.*f ms  %6.1f  %4.2f %-7s  %-5s  %s\n", op->name, result->shape,
         result->seconds < 1e-3 ? 4 : 2, 1e3 * result->seconds, speed / 1e9, speed / bandwidth[ceiling],
         ceiling_names[ceiling], "ok", result->kernel);
}

static json_t *result_to_json(const demo_op *op, const demo_result *result, const double bandwidth[DEMO_CEILINGS],
                              demo_ceiling ceiling)
{
  json_t *item = json_pack("{s:s, s:s, s:s}", "operation", op->name, "shape", result->shape, "kernel", result->kernel);
  if (result->fault[0]) {
    json_object_set_new(item, "fault", json_string(result->fault));
    return item;
  }
  double speed = (double)result->bytes / result->seconds;
  json_object_update_new(item, json_pack("{s:f, s:f, s:f, s:s}", "seconds", result->seconds, "gbps", speed / 1e9,
                                         "fraction", speed / bandwidth[ceiling], "of", ceiling_names[ceiling]));
  return item;
}

static int print_json(const demo_data *data, const double bandwidth[DEMO_CEILINGS], json_t *results, int failed)
{
  json_t *root = json_pack("{s:s, s:s, s:s, s:i, s:{s:f, s:f, s:f}, s:i, s:o}", "version", sheaf_version(), "cpu",
                           sheaf_cpu_name(), "isa", sheaf_isa_name(sheaf_isa_current()), "threads", data->threads,
                           "bandwidth_gbps", "read", bandwidth[DEMO_READ] / 1e9, "copy", bandwidth[DEMO_COPY] / 1e9,
                           "gather", bandwidth[DEMO_GATHER] / 1e9, "failed", failed, "results", results);
  return cli_print_json("demo", root);
}

static int run_all(demo_data *data, double seconds, int min_runs, int json)
{
  double bandwidth[DEMO_CEILINGS] = {0};
  bool on_device = data->on.block != NULL;
  int failed = 0, count = demo_op_count();
  bench_show_progress("measuring the machine's bandwidth ...");
  if (on_device)
    bandwidth[DEMO_COPY] = demo_device_bandwidth(data);
  else
    demo_measure_ceilings(data, 0.2 * seconds, bandwidth);
  bench_show_progress("");
  json_t *results = json ? json_array() : NULL;
  if (!json) {
    if (on_device)
      print_device(data, bandwidth);
    else
      print_machine(data, bandwidth);
    print_columns();
  }
  for (int i = 0; i < count; i++) {
    char line[80];
    snprintf(line, sizeof line, "[%d/%d] %s ...", i + 1, count, demo_op_at(i)->name);
    bench_show_progress(line);
    demo_result result;
    demo_op_measure(demo_op_at(i), data, 0.8 * seconds / count, min_runs, &result);
    bench_show_progress("");
    demo_ceiling ceiling = on_device ? DEMO_COPY : demo_op_at(i)->ceiling;
    if (json)
      json_array_append_new(results, result_to_json(demo_op_at(i), &result, bandwidth, ceiling));
    else
      print_result(demo_op_at(i), &result, bandwidth, ceiling);
    fflush(stdout);
    failed += result.fault[0] != '\0';
  }
  if (json) {
    int printed = print_json(data, bandwidth, results, failed);
    return failed ? CLI_FAILED : printed;
  }
  printf("\n%d operations checked, %d failed\n", count, failed);
  return failed ? CLI_FAILED : CLI_OK;
}

int cmd_demo(int argc, char **argv)
{
  int threads = 0, quick = 0, json = 0;
  double seconds = 0;
  const char *device = "cpu";
  DLDevice where;
  const cli_option options[] = {{"--threads", CLI_THREADS, &threads},
                                {"--seconds", CLI_SECONDS, &seconds},
                                {"--quick", CLI_FLAG, &quick},
                                {"--device", CLI_TEXT, &device},
                                {"--json", CLI_FLAG, &json}};
  const cli_syntax syntax = {"demo", options, sizeof options / sizeof *options, NULL, 0};
  int code = cli_parse(&syntax, argc, argv);
  if (code != CLI_GO_ON) return code;
  code = cli_device("demo", device, &where);
  if (code != CLI_GO_ON) return code;
  code = cli_device_ready("demo", where);
  if (code != CLI_GO_ON) return code;
  demo_data data;
  bench_show_progress("filling tables ...");
  if (demo_data_make(&data, quick, threads ? threads : sheaf_threads()) != SHEAF_OK) {
    bench_show_progress("");
    cli_complain("demo", "%s", sheaf_last_error());
    return CLI_FAILED;
  }
  if (where.device_type == kDLCUDA && demo_device_open(&data, where) != SHEAF_OK) {
    bench_show_progress("");
    cli_complain("demo", "%s", sheaf_last_error());
    demo_device_close(&data);
    demo_data_free(&data);
    return CLI_FAILED;
  }
  code = run_all(&data, seconds > 0 ? seconds : quick ? 2 : 12, quick ? 3 : 5, json);
  demo_device_close(&data);
  demo_data_free(&data);
  return code;
}
