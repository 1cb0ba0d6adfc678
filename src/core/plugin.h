/* core/plugin.h: parts of Sheaf that are opened at run time, since they need what not every machine has.
 *
 * A plug-in is libsheaf_<name>.so, found beside the library and then in the folders of SHEAF_PLUGIN_PATH. It exports one
 * symbol, `sheaf_plugin`, of the type below; it calls nothing of the library, so that one plug-in serves the shared
 * library, the static one, and tests. It is never closed. */
#ifndef SHF_CORE_PLUGIN_H
#define SHF_CORE_PLUGIN_H

#include "core/status.h"

typedef struct shf_plugin {
  const char *version; /* must be SHEAF_VERSION_STRING: plug-ins and library are built together */
  /* What the plug-in offers under a name ("comm", "kernels" ...); the type is agreed on in the header of the folder
   * that asks. NULL: nothing. */
  const void *(*offer)(const char *name);
} shf_plugin;

/* Opens a plug-in, or gives the one that is open. UNAVAILABLE, with the files that were looked for, when it is not
 * there, cannot be loaded (with the reason) or is of another version. Thread-safe. */
sheaf_status shf_core_plugin_open(const char *name, const shf_plugin **plugin);

#endif
