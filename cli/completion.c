/* cli/completion.c: the table of commands as completions of three shells and as a manual page. */
#include <string.h>

#include <sheaf/base.h>

#include "cli_impl.h"

/* Whether an argument is one of a list of words. */
static bool is_choice(const char *argument) { return argument && strchr(argument, '|'); }

static bool is_file(const char *argument)
{
  return argument && (strcmp(argument, "FILE") == 0 || strcmp(argument, "DIR") == 0);
}

/* Prints text with some characters escaped by a backslash, "|" as a space, and a line break as a space. */
static void put(const char *text, const char *escaped)
{
  for (; *text; text++) {
    if (strchr(escaped, *text)) putchar('\\');
    putchar(*text == '\n' ? ' ' : *text);
  }
}

static void put_choices(const char *argument)
{
  for (; *argument; argument++) putchar(*argument == '|' ? ' ' : *argument);
}

/* A part's own name, after that of its command: "plan" of "shard plan"; NULL for what is no part. */
static const char *part_of(const cli_command *command)
{
  const char *space = strchr(command->name, ' ');
  return space ? space + 1 : NULL;
}

static bool has_parts(const cli_command *command)
{
  size_t length = strlen(command->name);
  for (int i = 0; i < cli_command_count; i++)
    if (strncmp(cli_commands[i].name, command->name, length) == 0 && cli_commands[i].name[length] == ' ') return true;
  return false;
}

/* Parts of a command, separated by spaces. */
static void put_parts(const char *name)
{
  size_t length = strlen(name);
  for (int i = 0; i < cli_command_count; i++)
    if (strncmp(cli_commands[i].name, name, length) == 0 && cli_commands[i].name[length] == ' ')
      printf(" %s", cli_commands[i].name + length + 1);
}

/* ---- bash ---------------------------------------------------------------------------------------------------- */

static void bash_case(const cli_command *command)
{
  printf("    '%s')\n      case $before in\n", command->name);
  for (int i = 0; i < command->option_count; i++) {
    const cli_described *option = &command->options[i];
    if (!option->argument) continue;
    printf("      %s%s%s) ", option->name, option->letter ? " | " : "", option->letter ? option->letter : "");
    if (is_choice(option->argument)) {
      fputs("words='", stdout);
      put_choices(option->argument);
      puts("' ;;");
    } else {
      puts(is_file(option->argument) ? "files=1 ;;" : "files=0 ;;");
    }
  }
  fputs("      *) files=1 words='--help", stdout);
  for (int i = 0; i < command->option_count; i++) printf(" %s", command->options[i].name);
  if (is_choice(command->words)) putchar(' '), put_choices(command->words);
  put_parts(command->name);
  puts("' ;;\n      esac ;;");
}

static void print_bash(void)
{
  puts("# bash completion of sheaf, printed by `sheaf completion bash`\n"
       "_sheaf() {\n"
       "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]:-} files=0 "
       "words=\n"
       "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    command=");
  fputs("    words='--help --version --man", stdout);
  for (int i = 0; i < cli_command_count; i++)
    if (cli_commands[i].run) printf(" %s", cli_commands[i].name);
  puts("'\n  fi");
  puts("  case \"$command ${COMP_WORDS[2]:-}\" in");
  for (int i = 0; i < cli_command_count; i++)
    if (part_of(&cli_commands[i]))
      printf("  '%s') [ \"$COMP_CWORD\" -gt 2 ] && command='%s' ;;\n", cli_commands[i].name, cli_commands[i].name);
  puts("  esac\n  case $command in");
  for (int i = 0; i < cli_command_count; i++) bash_case(&cli_commands[i]);
  puts("  esac\n"
       "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
       "  if [ \"$files\" = 1 ] && [ \"${word#-}\" = \"$word\" ]; then\n"
       "    compopt -o filenames 2>/dev/null\n"
       "    mapfile -t -O \"${#COMPREPLY[@]}\" COMPREPLY < <(compgen -f -- \"$word\")\n"
       "  fi\n"
       "}\n"
       "complete -F _sheaf sheaf");
}

/* ---- zsh ----------------------------------------------------------------------------------------------------- */

static void zsh_option(const cli_described *option, const char *name)
{
  printf("        '%s[", name);
  for (const char *c = option->help; *c; c++) {
    if (*c == '\'')
      fputs("'\\''", stdout);
    else if (strchr("[]:\\", *c))
      printf("\\%c", *c);
    else
      putchar(*c);
  }
  putchar(']');
  if (is_choice(option->argument)) {
    fputs(":value:(", stdout);
    put_choices(option->argument);
    putchar(')');
  } else if (is_file(option->argument)) {
    fputs(":file:_files", stdout);
  } else if (option->argument) {
    fputs(":value:", stdout);
  }
  puts("' \\");
}

static void zsh_case(const cli_command *command)
{
  printf("    '%s')\n      _arguments \\\n        '--help[this text]' \\\n", command->name);
  for (int i = 0; i < command->option_count; i++) {
    zsh_option(&command->options[i], command->options[i].name);
    if (command->options[i].letter) zsh_option(&command->options[i], command->options[i].letter);
  }
  if (is_choice(command->words) || has_parts(command)) {
    fputs("        '1:word:(", stdout);
    if (is_choice(command->words)) put_choices(command->words);
    put_parts(command->name);
    puts(")' \\");
  }
  puts("        '*:file:_files' ;;");
}

static void print_zsh(void)
{
  puts("#compdef sheaf\n# zsh completion of sheaf, printed by `sheaf completion zsh`\n"
       "_sheaf() {\n  local command\n  local -a commands\n  commands=(");
  for (int i = 0; i < cli_command_count; i++) {
    if (!cli_commands[i].run) continue;
    printf("    '%s:", cli_commands[i].name);
    put(cli_commands[i].summary, ":");
    puts("'");
  }
  puts("  )\n"
       "  if (( CURRENT == 2 )); then\n"
       "    _describe command commands\n    _arguments '--help[this text]' '--version[the version]' '--man[the manual "
       "page]'\n"
       "    return\n  fi\n"
       "  command=$words[2]\n  shift words\n  (( CURRENT-- ))\n"
       "  case \"$command $words[2]\" in");
  for (int i = 0; i < cli_command_count; i++)
    if (part_of(&cli_commands[i]))
      printf("    '%s') if (( CURRENT > 2 )); then command='%s'; shift words; (( CURRENT-- )); fi ;;\n",
             cli_commands[i].name, cli_commands[i].name);
  puts("  esac\n  case $command in");
  for (int i = 0; i < cli_command_count; i++) zsh_case(&cli_commands[i]);
  puts("  esac\n}\nif [ \"$funcstack[1]\" = _sheaf ]; then _sheaf \"$@\"; else compdef _sheaf sheaf; fi");
}

/* ---- fish ---------------------------------------------------------------------------------------------------- */

static void fish_condition(const cli_command *command)
{
  const char *part = part_of(command);
  if (part)
    printf("complete -c sheaf -n '__fish_seen_subcommand_from %.*s; and __fish_seen_subcommand_from %s'",
           (int)(part - command->name - 1), command->name, part);
  else
    printf("complete -c sheaf -n '__fish_seen_subcommand_from %s'", command->name);
}

static void print_fish(void)
{
  puts("# fish completion of sheaf, printed by `sheaf completion fish`\n"
       "complete -c sheaf -n __fish_use_subcommand -f -l help -d 'this text'\n"
       "complete -c sheaf -n __fish_use_subcommand -f -l version -d 'the version'\n"
       "complete -c sheaf -n __fish_use_subcommand -f -l man -d 'the manual page'");
  for (int i = 0; i < cli_command_count; i++) {
    const cli_command *command = &cli_commands[i];
    const char *part = part_of(command);
    if (part)
      printf("complete -c sheaf -n '__fish_seen_subcommand_from %.*s' -f -a %s -d '", (int)(part - command->name - 1),
             command->name, part);
    else
      printf("complete -c sheaf -n __fish_use_subcommand -f -a %s -d '", command->name);
    put(command->summary, "'\\");
    puts("'");
    if (is_choice(command->words)) {
      fish_condition(command);
      fputs(" -f -a '", stdout);
      put_choices(command->words);
      puts("'");
    }
    for (int j = 0; j < command->option_count; j++) {
      const cli_described *option = &command->options[j];
      fish_condition(command);
      printf(" -l %s", option->name + 2);
      if (option->letter) printf(" -s %s", option->letter + 1);
      if (option->argument) fputs(is_file(option->argument) ? " -r -F" : " -x", stdout);
      if (is_choice(option->argument)) {
        fputs(" -a '", stdout);
        put_choices(option->argument);
        putchar('\'');
      }
      fputs(" -d '", stdout);
      put(option->help, "'\\");
      puts("'");
    }
  }
}

int cli_print_completion(const char *shell)
{
  static const struct {
    const char *name;
    void (*print)(void);
  } shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
  const char *names[CLI_LENGTH(shells)];
  for (int i = 0; i < CLI_LENGTH(shells); i++) {
    names[i] = shells[i].name;
    if (strcmp(shell, shells[i].name) != 0) continue;
    shells[i].print();
    return CLI_OK;
  }
  return cli_unknown("completion", "shell", shell, names, CLI_LENGTH(shells));
}

int cmd_completion(int argc, char **argv)
{
  const char *shell = NULL;
  const cli_syntax syntax = {"completion", NULL, 0, &shell, 1};
  int code = cli_parse(&syntax, argc, argv);
  if (code != CLI_GO_ON) return code;
  return shell ? cli_print_completion(shell) : cli_misused("completion", "no shell is named: bash, zsh or fish");
}

/* ---- The manual page ----------------------------------------------------------------------------------------- */

/* Roff: backslashes and hyphens escaped, no line that begins with a control character. */
static void put_roff(const char *text)
{
  bool at_start = true;
  for (; *text; text++) {
    if (at_start && (*text == '.' || *text == '\'')) fputs("\\&", stdout);
    if (text[0] == '\n' && text[1] == '\n') {
      fputs("\n.PP\n", stdout);
      text++;
      at_start = true;
      continue;
    }
    if (*text == '\\')
      fputs("\\e", stdout);
    else if (*text == '-')
      fputs("\\-", stdout);
    else
      putchar(*text);
    at_start = *text == '\n';
  }
  putchar('\n');
}

int cli_print_manual(void)
{
  printf(".TH SHEAF 1 \"\" \"sheaf %s\" \"User Commands\"\n.SH NAME\nsheaf \\- embedding tables: look into files, find "
         "nearest rows, compute, measure\n.SH SYNOPSIS\n.B sheaf\n.I COMMAND\n[\\fIARGUMENTS\\fR]\n.SH COMMANDS\n",
         sheaf_version());
  for (int i = 0; i < cli_command_count; i++) {
    const cli_command *command = &cli_commands[i];
    printf(".SS \"sheaf %s%s", command->name, *command->words ? " " : "");
    for (const char *c = command->words; *c; c++) printf(*c == '-' ? "\\-" : "%c", *c);
    puts(command->option_count ? " [OPTIONS]\"" : "\"");
    put_roff(command->text);
    for (int j = 0; j < command->option_count; j++) {
      const cli_described *option = &command->options[j];
      fputs(".TP\n", stdout);
      if (option->letter) printf("\\fB\\%s\\fR, ", option->letter);
      printf("\\fB\\-\\-%s\\fR", option->name + 2);
      if (option->argument) printf(" \\fI%s\\fR", option->argument);
      putchar('\n');
      put_roff(option->help);
    }
  }
  puts(".SH EXIT STATUS\n0 all went well; 1 something failed or differs; 2 the command was used wrongly.\n.SH ENVIRONMENT\n.TP\n"
       "\\fBSHEAF_ISA\\fR\nscalar, avx2 or avx512: the instruction set in use.\n.TP\n\\fBSHEAF_PLUGIN_PATH\\fR\n"
       "More folders to look for plug\\-ins in, separated by colons.");
  return CLI_OK;
}
