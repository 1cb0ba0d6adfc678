/* cli/cmd_kernels.c: `sheaf kernels`: the table of kernels, as text or JSON. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include <sheaf/sheaf.h>

#include "cli_impl.h"
#include "json_out.h"

static const char *arch_name(sheaf_arch arch)
{
  switch (arch) {
  case SHEAF_ARCH_SCALAR:
    return "scalar";
  case SHEAF_ARCH_AVX2:
    return "avx2";
  case SHEAF_ARCH_AVX512:
    return "avx512";
  case SHEAF_ARCH_SM80:
    return "sm80";
  case SHEAF_ARCH_SM90:
    return "sm90";
  }
  return "unknown";
}

static const char *backend_name(sheaf_backend backend)
{
  switch (backend) {
  case SHEAF_BACKEND_ANY:
    return "any";
  case SHEAF_BACKEND_BESPOKE:
    return "bespoke";
  case SHEAF_BACKEND_CUB:
    return "cub";
  }
  return "unknown";
}

static const char *category_name(sheaf_category category)
{
  return category == SHEAF_CATEGORY_EMBEDDING ? "embedding" : "segment";
}

static json_t *kernel_to_json(const sheaf_sku *sku, int available)
{
  const sheaf_guarantee *guarantee = &sku->guarantee;
  const char *kind_name = sheaf_kind_name(sku->category, sku->kind);
  return json_pack("{s:s, s:s, s:i, s:s, s:s, s:s, s:s, s:s, s:b, s:{s:s, s:s, s:b, s:b, s:b}}",
                   "name", sku->name, "category", category_name(sku->category), "kind", (int)sku->kind,
                   "kind_name", kind_name ? kind_name : "unknown", "element", sheaf_dtype_name(sku->element),
                   "index", sheaf_dtype_name(sku->index_element), "arch", arch_name(sku->arch),
                   "backend", backend_name(sku->backend), "available", available, "guarantee",
                   "math", sheaf_dtype_name(guarantee->math), "accumulator", sheaf_dtype_name(guarantee->accumulator),
                   "deterministic", (int)guarantee->deterministic,
                   "bit_stable_on_same_hardware", (int)guarantee->bit_stable_on_same_hardware,
                   "bit_stable_across_hardware", (int)guarantee->bit_stable_across_hardware);
}

static void print_kernel(const sheaf_sku *sku, int available)
{
  const sheaf_guarantee *guarantee = &sku->guarantee;
  const char *stable = guarantee->bit_stable_across_hardware    ? "everywhere"
                       : guarantee->bit_stable_on_same_hardware ? "same hardware"
                                                                : "no";
  printf("%-52s  %-9s  %-5s  %-11s  %-13s  %s\n", sku->name, available ? "yes" : "no",
         sheaf_dtype_name(guarantee->math), sheaf_dtype_name(guarantee->accumulator),
         guarantee->deterministic ? "yes" : "no", stable);
}

typedef struct listing {
  json_t *array; /* NULL: text is printed */
  int64_t shown, available;
} listing;

/* Shows the rows that contain `filter`; a sentence on stderr when the library or memory fails. */
static int list_kernels(const char *filter, listing *list)
{
  for (int64_t i = 0; i < sheaf_kernel_count(); i++) {
    sheaf_sku sku;
    int available = 0;
    if (sheaf_kernel_at(i, &sku, &available) != SHEAF_OK) {
      cli_complain("kernels", "%s", sheaf_last_error());
      return CLI_FAILED;
    }
    if (filter && !strstr(sku.name, filter)) continue;
    list->shown += 1;
    list->available += available != 0;
    if (!list->array) {
      print_kernel(&sku, available);
    } else if (json_array_append_new(list->array, kernel_to_json(&sku, available)) != 0) {
      cli_complain("kernels", "out of memory");
      return CLI_FAILED;
    }
  }
  return CLI_OK;
}

static int print_json(const char *filter)
{
  listing list = {.array = json_array()};
  int code = list.array ? list_kernels(filter, &list) : CLI_OK;
  if (code == CLI_OK) return cli_print_json("kernels", list.array);
  json_decref(list.array);
  return code;
}

static int print_table(const char *filter)
{
  listing list = {0};
  printf("%-52s  %-9s  %-5s  %-11s  %-13s  %s\n", "kernel", "available", "math", "accumulator", "deterministic",
         "bit-stable");
  int code = list_kernels(filter, &list);
  printf("%lld kernels, %lld available here\n", (long long)list.shown, (long long)list.available);
  return code;
}

int cmd_kernels(int argc, char **argv)
{
  int json = 0;
  const char *filter = NULL;
  const cli_option options[] = {{"--json", CLI_FLAG, &json}};
  const cli_syntax syntax = {"kernels", options, sizeof options / sizeof *options, &filter, 1};
  int code = cli_parse(&syntax, argc, argv);
  if (code != CLI_GO_ON) return code;
  return json ? print_json(filter) : print_table(filter);
}
