/* cli/cli_impl.h: what the subcommands of `sheaf` share: exit codes, messages, options. */
#ifndef SHEAF_CLI_IMPL_H
#define SHEAF_CLI_IMPL_H

#include <sheaf/tensor.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Exit codes of every subcommand: docs/cli.md says which is for what. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* cli_parse's answer when there is work to do. */
enum { CLI_GO_ON = -1 };

#define CLI_EXIT_CODES_HELP \
  "Exit codes: 0 all went well; 1 something failed or differs; 2 the command was used wrongly."

/* ---- The table of commands: commands.c, command_list.h ------------------------------------------------------- */

/* One option as people meet it: in --help, in the manual page and in completions. */
typedef struct cli_described {
  const char *name;     /* with its dashes; */
  const char *letter;   /* "-o", or NULL */
  const char *argument; /* "N", "FILE", "cosine|dot|l2"; NULL for a flag */
  const char *help;
} cli_described;

typedef struct cli_command {
  const char *name;    /* "nearest"; a part of another one: "shard plan" */
  const char *words;   /* "TABLE INDICES"; "" */
  const char *summary; /* one line */
  const char *text;    /* paragraphs, separated by empty lines */
  const cli_described *options;
  int option_count;
  int (*run)(int argc, char **argv); /* NULL for parts, which their command runs */
} cli_command;

extern const cli_command cli_commands[];
extern const int cli_command_count;

const cli_command *cli_find_command(const char *name);

/* Everything that is printed from the table (help.c, completion.c). */
void cli_print_help(FILE *stream);
void cli_print_command_help(const cli_command *command, FILE *stream);
int cli_print_manual(void);
int cli_print_completion(const char *shell);

/* The name in the list that was most likely meant, or NULL. */
const char *cli_suggest(const char *typed, const char *const *names, int count);

/* ---- Reading a command line: options.c ----------------------------------------------------------------------- */

enum { CLI_MAX_THREADS = 1024 };

typedef enum cli_option_type {
  CLI_FLAG,    /* int, set to 1 */
  CLI_TEXT,    /* const char *, points into argv */
  CLI_THREADS, /* int from 1 to CLI_MAX_THREADS */
  CLI_SECONDS, /* double > 0 */
  CLI_TEXTS,   /* cli_texts: may be given several times */
  CLI_CHOICE,  /* int: which of the words of its argument, "a|b|c" */
  CLI_NUMBER,  /* int64_t from 0 */
  CLI_COUNT,   /* int64_t from 1 */
} cli_option_type;

enum { CLI_MAX_TEXTS = 8 };

typedef struct cli_texts {
  const char *at[CLI_MAX_TEXTS];
  int count;
} cli_texts;

/* Where the value of an option goes. The table has the same options, with their words. */
typedef struct cli_option {
  const char *name;
  cli_option_type type;
  void *target;
} cli_option;

/* What one subcommand accepts. Words that are no options go to `words` in order. */
typedef struct cli_syntax {
  const char *command; /* its name in the table */
  const cli_option *options;
  int option_count;
  const char **words;
  int max_words;
} cli_syntax;

#define CLI_LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

/* Reads argv[1] ... by `syntax`: CLI_GO_ON, or the exit code of a command that is done (--help) or was used wrongly
 * (the reason is on stderr). Values are written as "--name value" or "--name=value"; "--" ends the options. */
int cli_parse(const cli_syntax *syntax, int argc, char **argv);

/* "sheaf COMMAND: text" on stderr. */
void cli_complain(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Text of others (names in files, paths) for a terminal: control characters and what is no UTF-8 become \x1b and the
 * like. Valid until the eighth call after it; complaints do it by themselves. */
const char *cli_shown(const char *text);

/* The library's last error as a complaint; returns CLI_FAILED. */
int cli_failed(const char *command);

/* A complaint followed by where help is to be had; returns CLI_USAGE. */
int cli_misused(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for a word that is none of `names`, with the one that was likely meant. */
int cli_unknown(const char *command, const char *what, const char *typed, const char *const *names, int count);

/* "cpu", "cuda" or "cuda:N" as a device (type 0 for the CPU): CLI_GO_ON, or the exit code after a complaint. */
int cli_device(const char *command, const char *name, DLDevice *device);

/* Whether such a device is there; answers likewise, and the complaint says what is missing and what can be done. */
int cli_device_ready(const char *command, DLDevice device);

/* Has the library use "scalar", "avx2" or "avx512"; answers likewise. */
int cli_isa(const char *command, const char *name);

/* ---- Progress: progress.c ------------------------------------------------------------------------------------ */

/* How far a long piece of work is. Shown on a terminal once it has taken a second; never in pipes. */
typedef struct cli_progress {
  int64_t rows, row_bytes;
  double begun, shown;
  bool visible;
} cli_progress;

void cli_progress_begin(cli_progress *progress, int64_t rows, int64_t row_bytes, int quiet);

/* So many rows are done. False when the user wants the command to stop: SIGINT, SIGTERM and SIGHUP are noted from the
 * first begin on, so that unfinished files can be taken away. */
bool cli_progress_step(cli_progress *progress, int64_t done);
void cli_progress_end(cli_progress *progress);

/* From here on SIGINT, SIGTERM and SIGHUP are noted: before the first file that would have to be taken away. */
void cli_watch_signals(void);

/* The same wish, for work that shows its progress otherwise; signals are noted from the first call on. */
bool cli_stop_wanted(void);

/* ---- The subcommands: argv[0] is the subcommand's name ------------------------------------------------------- */

int cmd_info(int argc, char **argv);
int cmd_kernels(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_demo(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_shard(int argc, char **argv);
int cmd_trace(int argc, char **argv);
int cmd_lookup(int argc, char **argv);
int cmd_bag(int argc, char **argv);
int cmd_segment(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_dequantize(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_show(int argc, char **argv);
int cmd_nearest(int argc, char **argv);
int cmd_completion(int argc, char **argv);

/* `sheaf bench shard`: argv[0] is "bench", argv[1] is "shard". */
int bench_shard(int argc, char **argv);

#endif
