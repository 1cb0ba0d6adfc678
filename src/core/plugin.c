/* core/plugin.c: finds and opens plug-ins. */
#define _GNU_SOURCE /* dladdr, secure_getenv */
#include "core/plugin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PLUGINS = 8, MAX_PATH = 512 };

static struct {
  char name[32];
  const shf_plugin *plugin;
} opened[MAX_PLUGINS];
static int opened_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Where the search stands: what was looked for, and why a file that is there could not be used. */
typedef struct search {
  const char *name;
  char tried[600];
  char reason[600];
  const shf_plugin *found;
} search;

static void note_tried(search *s, const char *path)
{
  size_t at = strlen(s->tried);
  snprintf(s->tried + at, sizeof s->tried - at, "%s%s", at ? ", " : "", path);
}

/* Tries one folder (of `length` characters). */
static void try_folder(search *s, const char *folder, size_t length)
{
  char path[MAX_PATH];
  int written = snprintf(path, sizeof path, "%.*s/libsheaf_%s.so", (int)length, folder, s->name);
  if (s->found || length == 0 || written < 0 || (size_t)written >= sizeof path) return;
  note_tried(s, path);
  if (access(path, F_OK) != 0) return;
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const shf_plugin *plugin = handle ? dlsym(handle, "sheaf_plugin") : NULL;
  if (!plugin) {
    const char *why = dlerror();
    snprintf(s->reason, sizeof s->reason, "%s", why ? why : "it is no plug-in of Sheaf");
  } else if (strcmp(plugin->version, SHEAF_VERSION_STRING) != 0) {
    snprintf(s->reason, sizeof s->reason, "%s is of version %.20s, the library of " SHEAF_VERSION_STRING, path,
             plugin->version);
  } else {
    s->found = plugin;
    return;
  }
  if (handle) dlclose(handle);
}

/* Beside the library (a program that links it statically: beside the program), then where the environment says. */
static void search_folders(search *s)
{
  Dl_info here;
  if (dladdr((const void *)opened, &here) && here.dli_fname) {
    const char *slash = strrchr(here.dli_fname, '/');
    if (slash) try_folder(s, here.dli_fname, (size_t)(slash - here.dli_fname));
  }
  const char *path = secure_getenv("SHEAF_PLUGIN_PATH");
  while (path && *path) {
    size_t length = strcspn(path, ":");
    try_folder(s, path, length);
    path += length + (path[length] == ':');
  }
}

static const shf_plugin *find_opened(const char *name)
{
  for (int i = 0; i < opened_count; i++)
    if (strcmp(opened[i].name, name) == 0) return opened[i].plugin;
  return NULL;
}

sheaf_status shf_core_plugin_open(const char *name, const shf_plugin **plugin)
{
  search s = {.name = name};
  pthread_mutex_lock(&lock);
  s.found = find_opened(name);
  if (!s.found) {
    search_folders(&s);
    if (s.found && opened_count < MAX_PLUGINS && strlen(name) < sizeof opened->name) {
      memcpy(opened[opened_count].name, name, strlen(name) + 1);
      opened[opened_count++].plugin = s.found;
    }
  }
  pthread_mutex_unlock(&lock);
  *plugin = s.found;
  SHF_REQUIRE(s.found || !s.reason[0], UNAVAILABLE, "the plug-in '%s' cannot be used: %s", name, s.reason);
  SHF_REQUIRE(s.found, UNAVAILABLE,
              "the plug-in '%s' is not there; looked for %s (SHEAF_PLUGIN_PATH names more folders)", name,
              s.tried[0] ? s.tried : "nothing");
  return SHEAF_OK;
}
