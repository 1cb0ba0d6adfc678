/* cli/main.c: the command `sheaf`: finds the subcommand, runs it, and sees that its output arrived. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sheaf/sheaf.h>

#include "cli_impl.h"

static int print_version(void)
{
  printf("sheaf %s\n", sheaf_version());
  if (strcmp(sheaf_version(), SHEAF_VERSION_STRING) == 0) return CLI_OK;
  cli_complain("", "this command was built for version %s of the library", SHEAF_VERSION_STRING);
  return CLI_FAILED;
}

static int unknown_word(const char *name)
{
  if (name[0] == '-') {
    static const char *const options[] = {"--help", "--version", "--man"};
    return cli_unknown("", "option", name, options, CLI_LENGTH(options));
  }
  const char *names[64];
  int count = 0;
  for (int i = 0; i < cli_command_count && count < CLI_LENGTH(names); i++)
    if (cli_commands[i].run) names[count++] = cli_commands[i].name;
  return cli_unknown("", "command", name, names, count);
}

/* `sheaf help`, `sheaf help shard plan`: as `sheaf shard plan --help`. */
static int help(int count, char **words)
{
  char name[64] = "";
  size_t used = 0;
  for (int i = 0; i < count && used < sizeof name; i++)
    used += (size_t)snprintf(name + used, sizeof name - used, "%s%s", i ? " " : "", words[i]);
  const cli_command *command = cli_find_command(name);
  if (count == 0)
    cli_print_help(stdout);
  else if (command)
    cli_print_command_help(command, stdout);
  return count == 0 || command ? CLI_OK : unknown_word(name);
}

static int run_command(int argc, char **argv)
{
  if (argc < 2) {
    cli_print_help(stderr);
    return CLI_USAGE;
  }
  const char *name = argv[1];
  if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
    cli_print_help(stdout);
    return CLI_OK;
  }
  if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) return print_version();
  if (strcmp(name, "help") == 0) return help(argc - 2, argv + 2);
  if (strcmp(name, "--man") == 0) return cli_print_manual();
  const cli_command *command = cli_find_command(name);
  return command && command->run ? command->run(argc - 1, argv + 1) : unknown_word(name);
}

#ifdef SIGBUS
/* A mapped file has become shorter than it was, or cannot be read: nothing that was read of it is to be used. */
static void lost_file(int signal_number)
{
  static const char text[] = "sheaf: a file was cut short, or could not be read, while it was in use\n";
  static atomic_flag said = ATOMIC_FLAG_INIT;
  (void)signal_number;
  if (atomic_flag_test_and_set(&said))
    for (;;) pause(); /* another thread is ending all of them */
  ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
  (void)written;
  _exit(CLI_FAILED);
}
#endif

int main(int argc, char **argv)
{
#ifdef SIGXFSZ
  signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is an error to be told, not the end */
#endif
#ifdef SIGBUS
  struct sigaction lost = {.sa_handler = lost_file}; /* not signal(), after which a second thread's ends the process */
  sigaction(SIGBUS, &lost, NULL);
#endif
  int code = run_command(argc, argv);
  errno = 0;
  if (fflush(stdout) != 0 || ferror(stdout)) {
    cli_complain("", "the output could not be written: %s", errno ? strerror(errno) : "an earlier write failed");
    if (code == CLI_OK) code = CLI_FAILED;
  }
  return code;
}
