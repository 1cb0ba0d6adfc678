/* core/plugin.c: finds and opens plug-ins. */
#define _GNU_SOURCE
#include "core/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/status.h"

enum { MOST_PLUGINS = 4 };

/* One that was asked for: opened, or the reason why not. */
typedef struct plugin {
  char name[16];
  const shf_plugin_head *head;
  char why[512];
} plugin;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static plugin plugins[MOST_PLUGINS];
static int plugin_count;

static sheaf_status fail(sheaf_status status, const char *sentence) { return shf_core_fail(status, "%s", sentence); }

static const shf_plugin_host host = {sizeof host, fail};

static void explain(plugin *p, const char *text, const char *detail)
{
  size_t used = strlen(p->why);
  snprintf(p->why + used, sizeof p->why - used, "%s%s%s", used ? "; " : "", text, detail);
}

/* Opens one file. A file that is there but does not fit is an answer too: it is said, and the search goes on. */
static int open_file(plugin *p, const char *path, unsigned abi)
{
  if (access(path, F_OK) != 0) {
    explain(p, "there is no ", path);
    return 0;
  }
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *error = dlerror();
    explain(p, "", error ? error : path);
    return 0;
  }
  void *symbol = dlsym(library, SHF_PLUGIN_SYMBOL);
  shf_plugin_entry *entry;
  memcpy(&entry, &symbol, sizeof entry);
  const shf_plugin_head *head = symbol ? entry(&host) : NULL;
  if (head && head->abi == abi && strcmp(head->version, SHEAF_VERSION_STRING) == 0) {
    p->head = head;
    return 1;
  }
  explain(p, path, head ? " is of another version than the library" : " is no plug-in of Sheaf's");
  dlclose(library);
  return 0;
}

static int open_in(plugin *p, const char *folder, size_t length, unsigned abi)
{
  char path[PATH_MAX];
  int needed = snprintf(path, sizeof path, "%.*s/libsheaf_%s.so", (int)length, folder, p->name);
  return length > 0 && length < PATH_MAX && needed < (int)sizeof path && open_file(p, path, abi);
}

/* The folder of the library that is loaded, or of the program when it is linked in. */
static int open_beside(plugin *p, unsigned abi)
{
  Dl_info info;
  char path[PATH_MAX];
  if (!dladdr(&host, &info) || !info.dli_fname || !realpath(info.dli_fname, path)) return 0;
  const char *slash = strrchr(path, '/');
  return slash && open_in(p, path, slash == path ? 1 : (size_t)(slash - path), abi);
}

static void open_plugin(plugin *p, unsigned abi)
{
  if (open_beside(p, abi)) return;
  const char *rest = secure_getenv("SHEAF_PLUGIN_PATH");
  while (rest && *rest) {
    size_t length = strcspn(rest, ":");
    if (open_in(p, rest, length, abi)) return;
    rest += length + (rest[length] == ':');
  }
}

const shf_plugin_head *shf_core_plugin(const char *name, unsigned abi, const char **why)
{
  pthread_mutex_lock(&lock);
  plugin *p = NULL;
  for (int i = 0; i < plugin_count; i++)
    if (strcmp(plugins[i].name, name) == 0) p = &plugins[i];
  if (!p && plugin_count < MOST_PLUGINS) {
    p = &plugins[plugin_count++];
    snprintf(p->name, sizeof p->name, "%s", name);
    open_plugin(p, abi);
  }
  pthread_mutex_unlock(&lock);
  if (why) *why = p ? p->why : "too many kinds of plug-ins";
  return p ? p->head : NULL;
}
