/* cli/cmd_verify.c: `sheaf verify`: replays a folder of reference cases against the library. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_impl.h"
#include "json_out.h"
#include "verify.h"

/* ---- The files ----------------------------------------------------------------------------------------------- */

typedef struct name_list {
  char **names;
  size_t count, room;
} name_list;

static void free_names(name_list *list)
{
  for (size_t i = 0; i < list->count; i++) free(list->names[i]);
  free(list->names);
}

static bool add_name(name_list *list, const char *name)
{
  if (list->count == list->room) {
    size_t room = list->room ? 2 * list->room : 64;
    char **names = realloc(list->names, room * sizeof *names);
    if (!names) return false;
    list->names = names;
    list->room = room;
  }
  list->names[list->count] = strdup(name);
  return list->names[list->count] && ++list->count;
}

static bool is_case(const char *name)
{
  static const char ending[] = ".safetensors";
  size_t length = strlen(name), ending_length = sizeof ending - 1;
  return name[0] != '.' && length > ending_length && strcmp(name + length - ending_length, ending) == 0;
}

static int compare_names(const void *a, const void *b)
{
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The cases of a folder in the order of their names; an exit code. */
static int list_cases(const char *folder, name_list *list)
{
  DIR *dir = opendir(folder);
  if (!dir) {
    cli_complain("verify", "'%s' cannot be read: %s", folder, strerror(errno));
    return CLI_FAILED;
  }
  bool fits = true;
  struct dirent *entry;
  while (fits && (errno = 0, entry = readdir(dir)))
    if (is_case(entry->d_name)) fits = add_name(list, entry->d_name);
  int error = fits ? errno : ENOMEM;
  closedir(dir);
  if (error) {
    cli_complain("verify", "'%s' cannot be read: %s", folder, strerror(error));
    return CLI_FAILED;
  }
  if (list->count == 0) {
    cli_complain("verify", "'%s' holds no *.safetensors files", folder);
    return CLI_FAILED;
  }
  qsort(list->names, list->count, sizeof *list->names, compare_names);
  return CLI_OK;
}

/* ---- The cases ----------------------------------------------------------------------------------------------- */

/* Notes one case of --json. */
static void note_case(json_t *cases, const char *name, bool agrees, const verify_case *c)
{
  json_t *item = json_pack("{s:o, s:b, s:s}", "case", cli_json_text(name), "passed", (int)agrees, "kernel", c->kernel);
  if (!agrees) json_object_set_new(item, "failure", cli_json_text(c->failure));
  json_array_append_new(cases, item);
}

/* `cases` NULL: failures are printed. */
static bool replay_case(const char *folder, const char *name, int threads, DLDevice device, int verbose, json_t *cases)
{
  verify_case c = {0};
  size_t room = strlen(folder) + strlen(name) + 2;
  char *path = malloc(room);
  bool agrees = false;
  if (path) {
    snprintf(path, room, "%s/%s", folder, name);
    agrees = verify_file(&c, path, threads, device);
  } else {
    verify_fail(&c, "out of memory");
  }
  free(path);
  if (cases) note_case(cases, name, agrees, &c);
  else if (!agrees) printf("FAIL %s: %s%s%s\n", cli_shown(name), c.failure, c.kernel[0] ? "; kernel " : "", c.kernel);
  else if (verbose) printf("ok   %s: %s\n", cli_shown(name), c.kernel);
  return agrees;
}

static int replay_folder(const char *folder, int threads, DLDevice device, int verbose, int json)
{
  name_list list = {0};
  int code = list_cases(folder, &list);
  size_t failed = 0;
  json_t *cases = json ? json_array() : NULL;
  for (size_t i = 0; code == CLI_OK && i < list.count; i++)
    failed += !replay_case(folder, list.names[i], threads, device, verbose, cases);
  if (code == CLI_OK && json)
    code = cli_print_json("verify", json_pack("{s:I, s:I, s:O}", "passed", (json_int_t)(list.count - failed), "failed",
                                              (json_int_t)failed, "cases", cases));
  else if (code == CLI_OK) printf("%zu passed, %zu failed\n", list.count - failed, failed);
  free_names(&list);
  json_decref(cases);
  return code == CLI_OK && failed ? CLI_FAILED : code;
}

int cmd_verify(int argc, char **argv)
{
  const char *folder = NULL, *isa = NULL, *device_name = "cpu";
  int threads = 0, verbose = 0, json = 0;
  const cli_option options[] = {
    {"--isa", CLI_TEXT, &isa}, {"--threads", CLI_THREADS, &threads}, {"--verbose", CLI_FLAG, &verbose},
    {"--device", CLI_TEXT, &device_name}, {"--json", CLI_FLAG, &json}};
  const cli_syntax syntax = {"verify", options, sizeof options / sizeof *options, &folder, 1};
  int code = cli_parse(&syntax, argc, argv);
  if (code != CLI_GO_ON) return code;
  DLDevice device;
  if ((code = cli_device("verify", device_name, &device)) != CLI_GO_ON) return code;
  if (!folder) return cli_misused("verify", "no folder of cases is given");
  if ((code = cli_device_ready("verify", device)) != CLI_GO_ON) return code;
  /* Reference cases are too small to be worth a second thread. The library reads this at its first use and then splits
   * every run, so that splitting itself is tested. */
  if (threads > 1 && setenv("SHEAF_TEST_SPLIT", "1", 1) != 0) {
    cli_complain("verify", "out of memory");
    return CLI_FAILED;
  }
  if (isa && (code = cli_isa("verify", isa)) != CLI_GO_ON) return code;
  return replay_folder(folder, threads, device, verbose, json);
}
