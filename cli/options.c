/* cli/options.c: reads command lines, says what is wrong with them. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_impl.h"

static void print_complaint(const char *command, const char *format, va_list values)
{
  fprintf(stderr, "sheaf%s%s: ", *command ? " " : "", command);
  vfprintf(stderr, format, values);
}

void cli_complain(const char *command, const char *format, ...)
{
  va_list values;
  va_start(values, format);
  print_complaint(command, format, values);
  va_end(values);
  fputc('\n', stderr);
}

int cli_misused(const char *command, const char *format, ...)
{
  va_list values;
  va_start(values, format);
  print_complaint(command, format, values);
  va_end(values);
  fprintf(stderr, "; see sheaf%s%s --help\n", *command ? " " : "", command);
  return CLI_USAGE;
}

int cli_device(const char *command, const char *name, DLDevice *device)
{
  *device = (DLDevice){0};
  if (strcmp(name, "cpu") == 0) return CLI_GO_ON;
  device->device_type = kDLCUDA;
  if (strcmp(name, "cuda") == 0) return CLI_GO_ON;
  char *end = NULL;
  long number = strncmp(name, "cuda:", 5) == 0 ? strtol(name + 5, &end, 10) : -1;
  if (number < 0 || number > 1000 || end == name + 5 || *end)
    return cli_misused(command, "--device takes cpu, cuda or cuda:N, not '%s'", name);
  device->device_id = (int)number;
  return CLI_GO_ON;
}

static const cli_option *find_option(const cli_syntax *syntax, const char *text, size_t length)
{
  for (int i = 0; i < syntax->option_count; i++) {
    const char *name = syntax->options[i].name;
    if (strlen(name) == length && memcmp(name, text, length) == 0) return &syntax->options[i];
  }
  return NULL;
}

static int set_threads(const char *command, const cli_option *option, const char *value)
{
  char *end;
  errno = 0;
  long number = strtol(value, &end, 10);
  if (end == value || *end || errno || number < 1 || number > CLI_MAX_THREADS)
    return cli_misused(command, "%s takes a number from 1 to %d, not '%s'", option->name, CLI_MAX_THREADS, value);
  *(int *)option->target = (int)number;
  return CLI_GO_ON;
}

static int set_seconds(const char *command, const cli_option *option, const char *value)
{
  char *end;
  double number = strtod(value, &end);
  if (end == value || *end || !isfinite(number) || number <= 0)
    return cli_misused(command, "%s takes a number of seconds above 0, not '%s'", option->name, value);
  *(double *)option->target = number;
  return CLI_GO_ON;
}

static int add_text(const char *command, const cli_option *option, const char *value)
{
  cli_texts *texts = option->target;
  if (texts->count == CLI_MAX_TEXTS)
    return cli_misused(command, "%s can be given %d times", option->name, CLI_MAX_TEXTS);
  texts->at[texts->count++] = value;
  return CLI_GO_ON;
}

static int set_value(const char *command, const cli_option *option, const char *value)
{
  switch (option->type) {
  case CLI_THREADS:
    return set_threads(command, option, value);
  case CLI_SECONDS:
    return set_seconds(command, option, value);
  case CLI_TEXT:
    *(const char **)option->target = value;
    return CLI_GO_ON;
  case CLI_TEXTS:
    return add_text(command, option, value);
  case CLI_FLAG:
    break;
  }
  return cli_misused(command, "%s takes no value", option->name);
}

/* Handles the option at argv[*position], and its value when that is the next word. */
static int parse_option(const cli_syntax *syntax, int argc, char **argv, int *position)
{
  const char *text = argv[*position];
  const char *equals = strchr(text, '=');
  size_t length = equals ? (size_t)(equals - text) : strlen(text);
  const cli_option *option = find_option(syntax, text, length);
  if (!option) return cli_misused(syntax->command, "unknown option '%.*s'", (int)length, text);
  if (equals) return set_value(syntax->command, option, equals + 1);
  if (option->type == CLI_FLAG) {
    *(int *)option->target = 1;
    return CLI_GO_ON;
  }
  if (*position + 1 == argc) return cli_misused(syntax->command, "%s needs a value", option->name);
  *position += 1;
  return set_value(syntax->command, option, argv[*position]);
}

int cli_parse(const cli_syntax *syntax, int argc, char **argv)
{
  int words = 0, options_ended = 0;
  for (int i = 1; i < argc; i++) {
    int is_option = !options_ended && argv[i][0] == '-' && argv[i][1];
    if (is_option && strcmp(argv[i], "--") == 0) {
      options_ended = 1;
    } else if (is_option && (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)) {
      fputs(syntax->help, stdout);
      return CLI_OK;
    } else if (is_option) {
      int answer = parse_option(syntax, argc, argv, &i);
      if (answer != CLI_GO_ON) return answer;
    } else if (words == syntax->max_words) {
      return cli_misused(syntax->command, "unexpected argument '%s'", argv[i]);
    } else {
      syntax->words[words++] = argv[i];
    }
  }
  return CLI_GO_ON;
}
