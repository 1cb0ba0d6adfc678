/* cli/embed.h: what `sheaf lookup` and `sheaf bag` work on. */
#ifndef SHEAF_CLI_EMBED_H
#define SHEAF_CLI_EMBED_H

#include "files.h"

typedef struct embed {
  const char *command;
  bool bags_given;
  const char *words[2], *output, *grad_path, *offsets_path, *weights_path, *device;
  int mode, refuse_bad, as, threads, quiet, json;
  int64_t padding, dim;
  table_file table;
  whole_operand indices_operand, offsets_operand, weights, grad;
  int64_t *indices, *starts; /* starts: bags + 1 */
  int64_t entries, bags;
  sheaf_dtype plain; /* of outputs */
  run_place place;
  bad_entries bad;
  void *arg; /* bag max backward: the row of every cell */
} embed;

enum { MODE_SUM, MODE_MEAN, MODE_MAX };

static inline bool embed_is_bad(const embed *e, int64_t index) { return index < 0 || index >= e->table.rows; }

/* Says that so much memory cannot be had; CLI_FAILED. */
int embed_no_memory(const embed *e, int64_t bytes);

/* Opens and checks the table and all operands, and finds where bags begin: CLI_GO_ON, or an exit code after a
 * complaint. Close in any case. */
int embed_open(embed *e);
void embed_close(embed *e);

#endif
