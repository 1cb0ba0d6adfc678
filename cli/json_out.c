/* cli/json_out.c: JSON as output. */
#include "json_out.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli_impl.h"

int cli_print_json(const char *command, json_t *root) { return cli_print_json_to(command, root, stdout); }

int cli_print_json_to(const char *command, json_t *root, FILE *stream)
{
  int failed = !root || json_dumpf(root, stream, JSON_INDENT(2)) != 0;
  json_decref(root);
  if (!failed) {
    fputc('\n', stream);
    return CLI_OK;
  }
  /* A write that failed is reported by main, once for all output. */
  if (!ferror(stream)) cli_complain(command, "no JSON could be made of it: out of memory");
  return CLI_FAILED;
}

json_t *cli_json_real(double number) { return isfinite(number) ? json_real(number) : json_null(); }

json_t *cli_read_json(const char *command, const char *path)
{
  json_error_t error;
  errno = 0;
  json_t *root = json_load_file(path, 0, &error);
  if (!root && error.line > 0)
    cli_complain(command, "'%s' is no JSON: line %d: %s", path, error.line, error.text);
  else if (!root)
    cli_complain(command, "'%s' cannot be read: %s", path, errno ? strerror(errno) : error.text);
  return root;
}
