/* cli/cli_impl.h: what the subcommands of `sheaf` share: exit codes, messages, options. */
#ifndef SHEAF_CLI_IMPL_H
#define SHEAF_CLI_IMPL_H

#include <sheaf/tensor.h>
#include <stddef.h>

/* Exit codes of every subcommand. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* cli_parse's answer when there is work to do. */
enum { CLI_GO_ON = -1 };

#define CLI_EXIT_CODES_HELP                                                   \
  "\nExit codes: 0 all went well; 1 something failed; 2 the command was used wrongly.\n"

enum { CLI_MAX_THREADS = 1024 };

typedef enum cli_option_type {
  CLI_FLAG,    /* int, set to 1 */
  CLI_TEXT,    /* const char *, points into argv */
  CLI_THREADS, /* int from 1 to CLI_MAX_THREADS */
  CLI_SECONDS, /* double > 0 */
  CLI_TEXTS,   /* cli_texts: may be given several times */
} cli_option_type;

enum { CLI_MAX_TEXTS = 8 };

typedef struct cli_texts {
  const char *at[CLI_MAX_TEXTS];
  int count;
} cli_texts;

typedef struct cli_option {
  const char *name; /* with its dashes */
  cli_option_type type;
  void *target;
} cli_option;

/* What one subcommand accepts. Words that are no options go to `words` in order. */
typedef struct cli_syntax {
  const char *command;
  const char *help; /* printed by --help and -h */
  const cli_option *options;
  int option_count;
  const char **words;
  int max_words;
} cli_syntax;

/* Reads argv[1] ... by `syntax`: CLI_GO_ON, or the exit code of a command that is done (--help) or was used wrongly
 * (the reason is on stderr). Values are written as "--name value" or "--name=value"; "--" ends the options. */
int cli_parse(const cli_syntax *syntax, int argc, char **argv);

/* "sheaf COMMAND: text" on stderr. */
void cli_complain(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same followed by where help is to be had; returns CLI_USAGE. */
int cli_misused(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "cpu", "cuda" or "cuda:N" as a device (type 0 for the CPU): CLI_GO_ON, or the exit code after a complaint. */
int cli_device(const char *command, const char *name, DLDevice *device);

/* The subcommands: argv[0] is the subcommand's name. */
int cmd_info(int argc, char **argv);
int cmd_kernels(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_demo(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_shard(int argc, char **argv);

/* `sheaf bench shard`: argv[0] is "shard". */
int bench_shard(int argc, char **argv);

#endif
