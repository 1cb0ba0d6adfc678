/* cli/main.c: the command `sheaf`: finds the subcommand, runs it, and sees that its output arrived. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <sheaf/sheaf.h>

#include "cli_impl.h"

typedef struct subcommand {
  const char *name;
  const char *summary;
  int (*run)(int argc, char **argv);
} subcommand;

static const subcommand subcommands[] = {
  {"info", "what this machine and this build offer", cmd_info},
  {"kernels", "every kernel, whether it runs here, and what it guarantees", cmd_kernels},
  {"verify", "replay reference cases against the library", cmd_verify},
  {"demo", "run the main operations, check them, and show their speed", cmd_demo},
  {"bench", "speed as a fraction of what this machine's memory can give", cmd_bench},
  {"shard", "plan, check and measure work that is spread over ranks", cmd_shard},
};

enum { SUBCOMMANDS = sizeof subcommands / sizeof *subcommands };

static void print_help(FILE *stream)
{
  fputs("Usage: sheaf COMMAND [ARGUMENTS]\n       sheaf --help | --version\n\n"
        "Sheaf computes on embedding tables: lookups, bags and segment reductions.\n\nCommands:\n", stream);
  for (int i = 0; i < SUBCOMMANDS; i++) fprintf(stream, "  %-8s %s\n", subcommands[i].name, subcommands[i].summary);
  fputs("\n'sheaf COMMAND --help' says more about each.\n" CLI_EXIT_CODES_HELP, stream);
}

static int print_version(void)
{
  printf("sheaf %s\n", sheaf_version());
  if (strcmp(sheaf_version(), SHEAF_VERSION_STRING) == 0) return CLI_OK;
  cli_complain("", "this command was built for version %s of the library", SHEAF_VERSION_STRING);
  return CLI_FAILED;
}

static int run_command(int argc, char **argv)
{
  if (argc < 2) {
    print_help(stderr);
    return CLI_USAGE;
  }
  const char *name = argv[1];
  if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
    print_help(stdout);
    return CLI_OK;
  }
  if (strcmp(name, "--version") == 0) return print_version();
  for (int i = 0; i < SUBCOMMANDS; i++)
    if (strcmp(name, subcommands[i].name) == 0) return subcommands[i].run(argc - 1, argv + 1);
  return cli_misused("", "unknown %s '%s'", name[0] == '-' ? "option" : "command", name);
}

int main(int argc, char **argv)
{
  int code = run_command(argc, argv);
  errno = 0;
  if (fflush(stdout) != 0 || ferror(stdout)) {
    cli_complain("", "the output could not be written: %s", errno ? strerror(errno) : "an earlier write failed");
    if (code == CLI_OK) code = CLI_FAILED;
  }
  return code;
}
