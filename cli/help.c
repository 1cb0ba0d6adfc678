/* cli/help.c: the table of commands as help text, and what was likely meant by a word that is not in it. */
#include <stdlib.h>
#include <string.h>

#include "cli_impl.h"

enum { LINE = 118, OPTION_COLUMN = 26, COMMAND_COLUMN = 14 };

/* Prints words from column `at` on, broken at LINE; later lines begin at `indent`. */
static void print_wrapped(FILE *stream, const char *text, int at, int indent)
{
  bool first = true;
  while (*text) {
    size_t length = strcspn(text, " \n");
    if (!first && at + 1 + (int)length > LINE) {
      fprintf(stream, "\n%*s", indent, "");
      at = indent;
      first = true;
    }
    fprintf(stream, "%s%.*s", first ? "" : " ", (int)length, text);
    at += (int)length + !first;
    first = false;
    text += length;
    if (*text == '\n') {
      size_t lines = strspn(text, "\n");
      while (lines--) fputc('\n', stream), text++;
      at = 0;
      first = true;
    } else if (*text == ' ') {
      text++;
    }
  }
  fputc('\n', stream);
}

static void print_option(FILE *stream, const cli_described *option)
{
  char words[96];
  int length =
      snprintf(words, sizeof words, "%s%s%s%s%s", option->letter ? option->letter : "", option->letter ? ", " : "",
               option->name, option->argument ? " " : "", option->argument ? option->argument : "");
  fprintf(stream, "  %s", words);
  if (length + 4 > OPTION_COLUMN)
    fprintf(stream, "\n%*s", OPTION_COLUMN, "");
  else
    fprintf(stream, "%*s", OPTION_COLUMN - 2 - length, "");
  print_wrapped(stream, option->help, OPTION_COLUMN, OPTION_COLUMN);
}

void cli_print_command_help(const cli_command *command, FILE *stream)
{
  static const cli_described help = {"--help", "-h", NULL, "this text"};
  fprintf(stream, "Usage: sheaf %s%s%s%s\n\n", command->name, *command->words ? " " : "", command->words,
          command->option_count ? " [OPTIONS]" : "");
  print_wrapped(stream, command->text, 0, 0);
  fputc('\n', stream);
  size_t length = strlen(command->name);
  for (int i = 0; i < cli_command_count; i++) /* its parts */
    if (strncmp(cli_commands[i].name, command->name, length) == 0 && cli_commands[i].name[length] == ' ')
      fprintf(stream, "  %-24s%s\n", cli_commands[i].name + length + 1, cli_commands[i].summary);
  for (int i = 0; i < command->option_count; i++) print_option(stream, &command->options[i]);
  print_option(stream, &help);
  fputs("\n" CLI_EXIT_CODES_HELP "\n", stream);
}

void cli_print_help(FILE *stream)
{
  fputs("Usage: sheaf COMMAND [ARGUMENTS]\n       sheaf help [COMMAND] | --version | --man\n\n"
        "Sheaf computes on embedding tables: lookups, bags and segment reductions.\n\nCommands:\n",
        stream);
  for (int i = 0; i < cli_command_count; i++)
    if (cli_commands[i].run)
      fprintf(stream, "  %-*s%s\n", COMMAND_COLUMN - 2, cli_commands[i].name, cli_commands[i].summary);
  fputs(
      "\n'sheaf COMMAND --help' says more about each; 'sheaf --man | man -l -' shows all of it.\n\n" CLI_EXIT_CODES_HELP
      "\n",
      stream);
}

/* Edits (insert, drop, change, swap neighbours) that make one word of another; words beyond LONGEST are far. */
static int edit_distance(const char *a, const char *b)
{
  enum { LONGEST = 31 };
  int rows[3][LONGEST + 1];
  size_t a_length = strlen(a), b_length = strlen(b);
  if (a_length > LONGEST || b_length > LONGEST) return LONGEST;
  for (size_t j = 0; j <= b_length; j++) rows[0][j] = (int)j;
  for (size_t i = 1; i <= a_length; i++) {
    int *row = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
    row[0] = (int)i;
    for (size_t j = 1; j <= b_length; j++) {
      int best = last[j - 1] + (a[i - 1] != b[j - 1]);
      if (last[j] + 1 < best) best = last[j] + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
        best = before[j - 2] + 1;
      row[j] = best;
    }
  }
  return rows[a_length % 3][b_length];
}

const char *cli_suggest(const char *typed, const char *const *names, int count)
{
  int nearest = -1;
  int least = (int)strlen(typed) < 5 ? 2 : 3; /* what is further away was hardly meant */
  size_t length = strlen(typed);
  for (int i = 0; i < count; i++) {
    int distance = edit_distance(typed, names[i]);
    if (distance < least) least = distance, nearest = i;
  }
  for (int i = 0; nearest < 0 && length >= 3 && i < count; i++) /* its beginning */
    if (strncmp(names[i], typed, length) == 0) nearest = i;
  return nearest < 0 ? NULL : names[nearest];
}
