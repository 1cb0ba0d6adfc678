/* cli/row_names.h: names of a table's rows: a text file with a line for each, or a JSON vocabulary. */
#ifndef SHEAF_CLI_ROW_NAMES_H
#define SHEAF_CLI_ROW_NAMES_H

#include <stdint.h>

typedef struct row_names {
  char *text; /* the file, or all names of a vocabulary */
  char **at;  /* NULL: the row has none */
  int64_t count, room;
} row_names;

/* CLI_GO_ON, or an exit code after a complaint. JSON is a list of names, an object {name: row}, or an object that has
 * one under "model": {"vocab": ...}, as in tokenizer.json. */
int row_names_read(row_names *names, const char *command, const char *path);
void row_names_free(row_names *names);

/* NULL and -1 when there is none. */
const char *row_names_at(const row_names *names, int64_t row);
int64_t row_names_find(const row_names *names, const char *name);

#endif
