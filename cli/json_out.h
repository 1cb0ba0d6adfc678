/* cli/json_out.h: JSON as output. */
#ifndef SHEAF_CLI_JSON_OUT_H
#define SHEAF_CLI_JSON_OUT_H

#include <jansson.h>
#include <stdio.h>

/* Prints `root` with a final newline and releases it; returns an exit code. NULL, which is what jansson gives when
 * memory is short, is reported as that. */
int cli_print_json(const char *command, json_t *root);

/* The same elsewhere: where stdout carries data, reports go to stderr. */
int cli_print_json_to(const char *command, json_t *root, FILE *stream);

/* Text that need not be UTF-8 (what is not becomes U+FFFD), and numbers that need not be finite (null). */
json_t *cli_json_text(const char *text);
json_t *cli_json_real(double number);

/* A file of JSON; NULL after a complaint. */
json_t *cli_read_json(const char *command, const char *path);

#endif
