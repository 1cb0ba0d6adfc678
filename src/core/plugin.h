/* core/plugin.h: plug-ins, libraries that are opened at run time, so that the core depends on nothing they need.
 *
 * A plug-in `name` is the file libsheaf_<name>.so. It is looked for beside the library (or beside the program that the
 * library is linked into), then in the folders of SHEAF_PLUGIN_PATH. It exports one function, `sheaf_plugin`, which is
 * given the host and returns a table of functions; every such table begins with a shf_plugin_head. */
#ifndef SHF_CORE_PLUGIN_H
#define SHF_CORE_PLUGIN_H

#include <sheaf/base.h>

/* What a plug-in may call. */
typedef struct shf_plugin_host {
  size_t struct_size;
  sheaf_status (*fail)(sheaf_status status, const char *sentence); /* records the last error; returns status */
} shf_plugin_host;

/* How every plug-in's table begins. `abi` is the version of the whole table, of which there is one per kind of plug-in;
 * core and plug-in must agree on it, and on the library's version. */
typedef struct shf_plugin_head {
  unsigned abi;
  const char *version; /* SHEAF_VERSION_STRING of its build */
} shf_plugin_head;

#define SHF_PLUGIN_SYMBOL "sheaf_plugin"
typedef const shf_plugin_head *shf_plugin_entry(const shf_plugin_host *host);

/* The table of plug-in `name`, opened on first use and kept; NULL when there is none that fits, and then *why
 * (optional) is a sentence that lives as long as the process and names the files that were tried. Any thread may call
 * this. */
const shf_plugin_head *shf_core_plugin(const char *name, unsigned abi, const char **why);

#endif
