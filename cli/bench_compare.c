/* cli/bench_compare.c: results of `sheaf bench` beside earlier ones. */
#include "bench_compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_tools.h"
#include "cli_impl.h"
#include "json_out.h"

json_t *bench_compare_read(const char *path)
{
  json_t *root = cli_read_json("bench", path);
  if (!root || json_is_array(json_object_get(root, "results"))) return root;
  cli_complain("bench", "'%s' is no result of 'sheaf bench --json': it has no list of results", path);
  json_decref(root);
  return NULL;
}

static const char *text_of(json_t *object, const char *name)
{
  const char *text = json_string_value(json_object_get(object, name));
  return text ? text : "";
}

static bool is_same_case(json_t *a, json_t *b)
{
  static const char *const texts[] = {"case", "suite"}, *const numbers[] = {"threads", "ranks"};
  for (int i = 0; i < 2; i++)
    if (strcmp(text_of(a, texts[i]), text_of(b, texts[i])) != 0 ||
        json_integer_value(json_object_get(a, numbers[i])) != json_integer_value(json_object_get(b, numbers[i])))
      return false;
  return true;
}

void bench_compare_add(json_t *now, json_t *before, const char *path)
{
  size_t i, j;
  json_t *result, *old;
  json_array_foreach(json_object_get(now, "results"), i, result)
  {
    json_array_foreach(json_object_get(before, "results"), j, old)
    {
      double new_ns = json_number_value(json_object_get(result, "ns"));
      double old_ns = json_number_value(json_object_get(old, "ns"));
      if (!is_same_case(result, old) || !(new_ns > 0) || !(old_ns > 0) || !isfinite(old_ns / new_ns)) continue;
      json_object_set_new(result, "ns_before", json_real(old_ns));
      json_object_set_new(result, "ratio", json_real(old_ns / new_ns));
      break;
    }
  }
  const char *date = text_of(json_object_get(before, "machine"), "date");
  json_object_set_new(now, "compare", json_pack("{s:o, s:s}", "file", cli_json_text(path), "date", date));
}

void bench_compare_print(json_t *now)
{
  json_t *results = json_object_get(now, "results"), *result;
  size_t i, count = 0;
  double *ratios = malloc((json_array_size(results) + 1) * sizeof *ratios);
  printf("\n%-9s %-60s %3s %12s %12s  %s\n", "suite", "case", "thr", "before", "now", "times as fast");
  json_array_foreach(results, i, result)
  {
    double ratio = json_number_value(json_object_get(result, "ratio"));
    if (!(ratio > 0)) continue;
    if (ratios) ratios[count++] = ratio;
    printf("%-9s %-60s %3d %9.2f us %9.2f us  %.2f\n", cli_shown(text_of(result, "suite")),
           cli_shown(text_of(result, "case")), (int)json_integer_value(json_object_get(result, "threads")),
           json_number_value(json_object_get(result, "ns_before")) / 1e3,
           json_number_value(json_object_get(result, "ns")) / 1e3, ratio);
  }
  printf(count == 1 ? "%zu case is in both" : "%zu cases are in both", count);
  if (count) printf("; the middle one is %.2f times as fast as before", bench_median(ratios, (int)count));
  putchar('\n');
  free(ratios);
}
