/* cli/options.c: reads command lines, says what is wrong with them. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* vasprintf */
#endif
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sheaf/device.h>

#include "cli_impl.h"

/* One line, whatever is in the names and paths of which it is made. */
static void print_complaint(const char *command, const char *format, va_list values)
{
  char *text = NULL;
  if (vasprintf(&text, format, values) < 0) text = NULL;
  fprintf(stderr, "sheaf%s%s: %s", *command ? " " : "", command, text ? cli_shown(text) : format);
  free(text);
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

int cli_failed(const char *command)
{
  cli_complain(command, "%s", sheaf_last_error());
  return CLI_FAILED;
}

int cli_unknown(const char *command, const char *what, const char *typed, const char *const *names, int count)
{
  const char *meant = cli_suggest(typed, names, count);
  if (meant) return cli_misused(command, "unknown %s '%s' (did you mean '%s'?)", what, typed, meant);
  return cli_misused(command, "unknown %s '%s'", what, typed);
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

int cli_device_ready(const char *command, DLDevice device)
{
  int count;
  if (!device.device_type) return CLI_GO_ON;
  if (sheaf_device_count(device.device_type, &count) != SHEAF_OK)
    cli_complain(command, "%s; without --device, the CPU does it", sheaf_last_error());
  else if (count == 0)
    cli_complain(command, "there is no CUDA device here; without --device, the CPU does it");
  else if (device.device_id < count)
    return CLI_GO_ON;
  else
    cli_complain(command, "there is no cuda:%d here, but %d CUDA device%s from cuda:0 on", device.device_id, count,
                 count == 1 ? "" : "s");
  return CLI_FAILED;
}

int cli_isa(const char *command, const char *name)
{
  for (int isa = SHEAF_ISA_SCALAR; isa <= SHEAF_ISA_AVX512; isa++) {
    if (strcmp(name, sheaf_isa_name((sheaf_isa)isa)) != 0) continue;
    if (sheaf_set_isa((sheaf_isa)isa) == SHEAF_OK) return CLI_GO_ON;
    cli_complain(command, "--isa %s cannot be used here: %s", name, sheaf_last_error());
    return CLI_FAILED;
  }
  return cli_misused(command, "--isa takes scalar, avx2 or avx512, not '%s'", name);
}

static const cli_option *bound_option(const cli_syntax *syntax, const char *name)
{
  for (int i = 0; i < syntax->option_count; i++)
    if (strcmp(syntax->options[i].name, name) == 0) return &syntax->options[i];
  return NULL;
}

/* The option that `text` spells, as the table has it. */
static const cli_described *described_option(const cli_command *command, const char *text, size_t length)
{
  for (int i = 0; i < command->option_count; i++) {
    const cli_described *option = &command->options[i];
    if (strlen(option->name) == length && memcmp(option->name, text, length) == 0) return option;
    if (option->letter && length == 2 && memcmp(option->letter, text, 2) == 0) return option;
  }
  return NULL;
}

/* Whether the table and the command know the same options: a defect of ours when not. */
static bool agrees_with_table(const cli_syntax *syntax, const cli_command *command)
{
  bool agrees = command && command->option_count == syntax->option_count;
  for (int i = 0; agrees && i < command->option_count; i++) agrees = bound_option(syntax, command->options[i].name);
  if (!agrees) cli_complain(syntax->command, "its options are not those of the table of commands: a defect of sheaf");
  return agrees;
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

static int set_number(const char *command, const cli_option *option, const char *value, int64_t least)
{
  char *end;
  errno = 0;
  long long number = strtoll(value, &end, 10);
  if (end == value || *end || errno || number < least)
    return cli_misused(command, "%s takes a number from %lld, not '%s'", option->name, (long long)least, value);
  *(int64_t *)option->target = number;
  return CLI_GO_ON;
}

/* "a|b|c": which word `value` is. */
static int set_choice(const char *command, const cli_option *option, const char *words, const char *value)
{
  int place = 0;
  for (const char *word = words; *word; place++) {
    size_t length = strcspn(word, "|");
    if (strlen(value) == length && memcmp(word, value, length) == 0) {
      *(int *)option->target = place;
      return CLI_GO_ON;
    }
    word += length + (word[length] == '|');
  }
  return cli_misused(command, "%s takes %s, not '%s'", option->name, words, value);
}

static int set_value(const char *command, const cli_option *option, const char *words, const char *value)
{
  switch (option->type) {
  case CLI_CHOICE:
    return set_choice(command, option, words, value);
  case CLI_NUMBER:
    return set_number(command, option, value, 0);
  case CLI_COUNT:
    return set_number(command, option, value, 1);
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

static int unknown_option(const cli_command *command, const char *text, size_t length)
{
  const char *names[32] = {"--help"};
  int count = 1;
  for (int i = 0; i < command->option_count && count < CLI_LENGTH(names); i++)
    names[count++] = command->options[i].name;
  char typed[64];
  snprintf(typed, sizeof typed, "%.*s", (int)length, text);
  return cli_unknown(command->name, "option", typed, names, count);
}

/* Handles the option at argv[*position], and its value when that is the next word. */
static int parse_option(const cli_syntax *syntax, const cli_command *command, int argc, char **argv, int *position)
{
  const char *text = argv[*position];
  const char *equals = strchr(text, '=');
  size_t length = equals ? (size_t)(equals - text) : strlen(text);
  const cli_described *described = described_option(command, text, length);
  if (!described) return unknown_option(command, text, length);
  const cli_option *option = bound_option(syntax, described->name);
  if (equals) return set_value(syntax->command, option, described->argument, equals + 1);
  if (option->type == CLI_FLAG) {
    *(int *)option->target = 1;
    return CLI_GO_ON;
  }
  if (*position + 1 == argc) return cli_misused(syntax->command, "%s needs a value", option->name);
  *position += 1;
  return set_value(syntax->command, option, described->argument, argv[*position]);
}

int cli_parse(const cli_syntax *syntax, int argc, char **argv)
{
  const cli_command *command = cli_find_command(syntax->command);
  if (!agrees_with_table(syntax, command)) return CLI_FAILED;
  int words = 0, options_ended = 0;
  for (int i = 1; i < argc; i++) {
    int is_option = !options_ended && argv[i][0] == '-' && argv[i][1];
    if (is_option && strcmp(argv[i], "--") == 0) {
      options_ended = 1;
    } else if (is_option && (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)) {
      cli_print_command_help(command, stdout);
      return CLI_OK;
    } else if (is_option) {
      int answer = parse_option(syntax, command, argc, argv, &i);
      if (answer != CLI_GO_ON) return answer;
    } else if (words == syntax->max_words) {
      return cli_misused(syntax->command, "unexpected argument '%s'", argv[i]);
    } else {
      syntax->words[words++] = argv[i];
    }
  }
  return CLI_GO_ON;
}
