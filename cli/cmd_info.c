/* cli/cmd_info.c: `sheaf info`: version, CPU, threads, pages and plug-ins. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr */
#endif
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sheaf/sheaf.h>

#include "cli_impl.h"
#include "json_out.h"

enum { ISAS = SHEAF_ISA_AVX512 + 1, PLUGINS = 2, MAX_FOLDERS = 16 };

/* ---- What is known ------------------------------------------------------------------------------------------- */

/* Which instruction sets have kernels in this build. */
static void find_built_isas(int built[ISAS])
{
  static const sheaf_arch arch_of[ISAS] = {SHEAF_ARCH_SCALAR, SHEAF_ARCH_AVX2, SHEAF_ARCH_AVX512};
  for (int isa = 0; isa < ISAS; isa++) built[isa] = 0;
  for (int64_t i = 0; i < sheaf_kernel_count(); i++) {
    sheaf_sku sku;
    if (sheaf_kernel_at(i, &sku, NULL) != SHEAF_OK) continue;
    for (int isa = 0; isa < ISAS; isa++) built[isa] |= sku.arch == arch_of[isa];
  }
}

/* The kernel's choice for huge pages, which it shows as "always [madvise] never". */
static void read_huge_pages(char *choice, size_t room)
{
  snprintf(choice, room, "unknown");
  FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
  if (!file) return;
  char line[128];
  if (fgets(line, sizeof line, file)) {
    char *open = strchr(line, '['), *close = strchr(line, ']');
    if (open && close && open < close) snprintf(choice, room, "%.*s", (int)(close - open - 1), open + 1);
  }
  fclose(file);
}

/* ---- Plug-ins ------------------------------------------------------------------------------------------------ */

typedef struct folders {
  char names[MAX_FOLDERS][PATH_MAX];
  int count;
} folders;

static void add_folder(folders *list, const char *name, size_t length)
{
  if (list->count == MAX_FOLDERS || length == 0 || length >= PATH_MAX) return;
  memcpy(list->names[list->count], name, length);
  list->names[list->count++][length] = '\0';
}

/* The folder of the library that is loaded, or of this program when it is linked in. */
static void add_library_folder(folders *list)
{
  const char *(*function)(void) = sheaf_version;
  void *address;
  memcpy(&address, &function, sizeof address);
  Dl_info info;
  char path[PATH_MAX];
  if (!dladdr(address, &info) || !info.dli_fname || !realpath(info.dli_fname, path)) return;
  char *slash = strrchr(path, '/');
  if (slash) add_folder(list, path, slash == path ? 1 : (size_t)(slash - path));
}

/* The same places in the same order as the library: beside itself, then the environment's. */
static void find_folders(folders *list)
{
  list->count = 0;
  add_library_folder(list);
  const char *rest = secure_getenv("SHEAF_PLUGIN_PATH");
  while (rest && *rest) {
    size_t length = strcspn(rest, ":");
    add_folder(list, rest, length);
    rest += length;
    if (*rest) rest++;
  }
}

typedef struct plugin {
  const char *name;
  char path[PATH_MAX + 32];          /* "" when it was not found */
  char tried[MAX_FOLDERS][PATH_MAX + 32];
  int tried_count;
} plugin;

static void look_for(plugin *wanted, const char *name, const folders *list)
{
  wanted->name = name;
  wanted->path[0] = '\0';
  wanted->tried_count = 0;
  for (int i = 0; i < list->count && !wanted->path[0]; i++) {
    char *path = wanted->tried[wanted->tried_count++];
    snprintf(path, sizeof wanted->tried[0], "%s/libsheaf_%s.so", list->names[i], name);
    if (access(path, R_OK) == 0) memcpy(wanted->path, path, sizeof wanted->path);
  }
}

/* ---- Output -------------------------------------------------------------------------------------------------- */

typedef struct facts {
  int built[ISAS];
  long page_bytes;
  char huge_pages[32];
  folders folders;
  plugin plugins[PLUGINS];
} facts;

static void collect(facts *known)
{
  static const char *const names[PLUGINS] = {"cuda", "mpi"};
  find_built_isas(known->built);
  known->page_bytes = sysconf(_SC_PAGESIZE);
  read_huge_pages(known->huge_pages, sizeof known->huge_pages);
  find_folders(&known->folders);
  for (int i = 0; i < PLUGINS; i++) look_for(&known->plugins[i], names[i], &known->folders);
}

/* What the CUDA plug-in sees. */
static void print_cuda_devices(void)
{
  int count = 0;
  if (sheaf_device_count(kDLCUDA, &count) != SHEAF_OK) {
    printf("cuda devices: none; %s\n", sheaf_last_error());
    return;
  }
  for (int i = 0; i < count; i++) {
    sheaf_device_info info;
    if (sheaf_device_describe((DLDevice){kDLCUDA, i}, &info) == SHEAF_OK)
      printf("cuda device %d: %s, %d.%d, %d processors, %.0f GB, cache %.0f MB\n", i, info.name, info.major,
             info.minor, info.processors, (double)info.memory_bytes * 1e-9, (double)info.cache_bytes * 1e-6);
  }
}

static void print_plugin(const plugin *found)
{
  if (found->path[0]) {
    printf("%s: found at %s\n", found->name, found->path);
    if (strcmp(found->name, "cuda") == 0) print_cuda_devices();
    return;
  }
  printf("%s: not found, looked for", found->name);
  for (int i = 0; i < found->tried_count; i++) printf("%s %s", i ? "," : "", found->tried[i]);
  puts(found->tried_count ? "" : " nothing: the library's own folder is unknown and SHEAF_PLUGIN_PATH is empty");
}

static int print_text(const facts *known)
{
  const char *cpu = sheaf_cpu_name();
  printf("version: %s\ncpu: %s\n", sheaf_version(), *cpu ? cpu : "unknown");
  printf("instruction sets: built");
  for (int isa = 0; isa < ISAS; isa++)
    if (known->built[isa]) printf(" %s", sheaf_isa_name((sheaf_isa)isa));
  printf("; best here %s; in use %s\n", sheaf_isa_name(sheaf_isa_best()), sheaf_isa_name(sheaf_isa_current()));
  printf("threads: %d\n", sheaf_threads());
  printf("pages: %ld bytes; transparent huge pages: %s\n", known->page_bytes, known->huge_pages);
  for (int i = 0; i < PLUGINS; i++) print_plugin(&known->plugins[i]);
  return CLI_OK;
}

/* The array with one item more; NULL, and nothing to release, when memory is short. */
static json_t *append(json_t *array, json_t *item)
{
  if (json_array_append_new(array, item) == 0) return array;
  json_decref(array);
  return NULL;
}

static json_t *plugin_to_json(const plugin *found)
{
  json_t *tried = json_array();
  for (int i = 0; i < found->tried_count; i++) tried = append(tried, json_string(found->tried[i]));
  return json_pack("{s:s, s:b, s:s?, s:o}", "name", found->name, "found", found->path[0] != '\0',
                   "path", found->path[0] ? found->path : NULL, "looked_for", tried);
}

static json_t *facts_to_json(const facts *known)
{
  json_t *built = json_array(), *plugins = json_array();
  for (int isa = 0; isa < ISAS; isa++)
    if (known->built[isa]) built = append(built, json_string(sheaf_isa_name((sheaf_isa)isa)));
  for (int i = 0; i < PLUGINS; i++) plugins = append(plugins, plugin_to_json(&known->plugins[i]));
  return json_pack("{s:s, s:s, s:{s:o, s:s, s:s}, s:i, s:{s:I, s:s}, s:o}",
                   "version", sheaf_version(), "cpu", sheaf_cpu_name(), "isa", "built", built,
                   "best", sheaf_isa_name(sheaf_isa_best()), "in_use", sheaf_isa_name(sheaf_isa_current()),
                   "threads", sheaf_threads(), "pages", "bytes", (json_int_t)known->page_bytes,
                   "transparent_huge", known->huge_pages, "plugins", plugins);
}

int cmd_info(int argc, char **argv)
{
  int json = 0;
  const cli_option options[] = {{"--json", CLI_FLAG, &json}};
  const cli_syntax syntax = {"info", options, sizeof options / sizeof *options, NULL, 0};
  int code = cli_parse(&syntax, argc, argv);
  if (code != CLI_GO_ON) return code;
  facts *known = calloc(1, sizeof *known); /* too large for a stack */
  if (!known) {
    cli_complain("info", "out of memory");
    return CLI_FAILED;
  }
  collect(known);
  code = json ? cli_print_json("info", facts_to_json(known)) : print_text(known);
  free(known);
  return code;
}
