/* cli/progress.c: how far a long piece of work is, on a terminal; and the wish to stop. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "bench_tools.h"
#include "cli_impl.h"

static volatile sig_atomic_t stopped;

static void note_stop(int signal_number)
{
  (void)signal_number;
  stopped = 1;
}

/* A second signal ends the program as usual. */
void cli_watch_signals(void)
{
  static bool watched;
  if (watched) return;
  watched = true;
  static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
  for (int i = 0; i < CLI_LENGTH(signals); i++) {
    struct sigaction action, old;
    memset(&action, 0, sizeof action);
    action.sa_handler = note_stop;
    action.sa_flags = (int)SA_RESETHAND;
    if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL) sigaction(signals[i], &action, NULL);
  }
}

bool cli_stop_wanted(void)
{
  cli_watch_signals();
  return stopped;
}

void cli_progress_begin(cli_progress *progress, int64_t rows, int64_t row_bytes, int quiet)
{
  cli_watch_signals();
  *progress = (cli_progress){.rows = rows, .row_bytes = row_bytes, .begun = bench_now()};
  progress->visible = !quiet && isatty(STDERR_FILENO);
}

bool cli_progress_step(cli_progress *progress, int64_t done)
{
  double now = bench_now(), passed = now - progress->begun;
  if (progress->visible && passed > 1 && now - progress->shown > 0.2 && done > 0) {
    double speed = (double)done / passed, left = (double)(progress->rows - done) / speed;
    char line[128];
    snprintf(line, sizeof line, "%3.0f %%  %lld of %lld rows, %.2f of %.2f GB, %.2f GB/s, %.0f s left",
             100.0 * (double)done / (double)progress->rows, (long long)done, (long long)progress->rows,
             (double)done * (double)progress->row_bytes / 1e9,
             (double)progress->rows * (double)progress->row_bytes / 1e9, speed * (double)progress->row_bytes / 1e9,
             left);
    bench_show_progress(line);
    progress->shown = now;
  }
  return !stopped;
}

void cli_progress_end(cli_progress *progress)
{
  if (progress->shown > 0) bench_show_progress("");
}
