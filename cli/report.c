/* cli/report.c: one HTML file of a template and its data. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli_impl.h"

extern const unsigned char report_page[]; /* cli/report/page.html */

/* Text for HTML. */
static void put_escaped(FILE *file, const char *text)
{
  for (; *text; text++) {
    if (*text == '<')
      fputs("&lt;", file);
    else if (*text == '&')
      fputs("&amp;", file);
    else
      fputc(*text, file);
  }
}

/* JSON for a script element, which "</script" and "<!--" would end: the sign occurs in strings only. */
static void put_data(FILE *file, const char *json)
{
  for (; *json; json++) {
    if (*json == '<')
      fputs("\\u003c", file);
    else
      fputc(*json, file);
  }
}

static void put_page(FILE *file, const char *title, const char *json)
{
  const char *page = (const char *)report_page;
  const char *title_at = strstr(page, "@TITLE@"), *data_at = strstr(page, "@DATA@");
  fwrite(page, 1, (size_t)(title_at - page), file);
  put_escaped(file, cli_shown(title)); /* a file's name, which may be any bytes */
  fwrite(title_at + 7, 1, (size_t)(data_at - title_at - 7), file);
  put_data(file, json);
  fputs(data_at + 6, file);
}

/* A page on its way: beside the target, over which it is renamed, so that nobody ever sees half of one. */
typedef struct page_file {
  char *temporary;
  FILE *file;
} page_file;

/* Only a file is replaced, and keeps its permissions. An error of errno.h, after which there is nothing to close. */
static int open_page(page_file *page, const char *path)
{
  struct stat old;
  bool there = stat(path, &old) == 0;
  if (there && !S_ISREG(old.st_mode)) return S_ISDIR(old.st_mode) ? EISDIR : EEXIST;
  size_t room = strlen(path) + 32;
  page->temporary = malloc(room);
  if (!page->temporary) return ENOMEM;
  snprintf(page->temporary, room, "%s.%ld.tmp", path, (long)getpid());
  page->file = fopen(page->temporary, "wx");
  if (!page->file) {
    int error = errno;
    free(page->temporary);
    return error ? error : EIO;
  }
  if (there) fchmod(fileno(page->file), old.st_mode & 0777);
  return 0;
}

/* Puts it in its place, unless there was an error by then or `path` is NULL; takes it away again then. */
static int close_page(page_file *page, const char *path, int error)
{
  if (fclose(page->file) != 0 && !error) error = errno;
  if (path && !error && rename(page->temporary, path) != 0) error = errno;
  if (!path || error) unlink(page->temporary);
  free(page->temporary);
  return error;
}

static int write_file(const char *path, const char *title, const char *json)
{
  page_file page;
  int error = open_page(&page, path);
  if (error) return error;
  errno = 0;
  put_page(page.file, title, json);
  if (fflush(page.file) != 0 || ferror(page.file) || fsync(fileno(page.file)) != 0) error = errno ? errno : EIO;
  return close_page(&page, path, error);
}

static int refuse(const char *command, const char *path, int error)
{
  cli_complain(command, "'%s' cannot be written: %s", path, strerror(error));
  return CLI_FAILED;
}

int report_check(const char *command, const char *path)
{
  page_file page;
  int error = open_page(&page, path);
  if (!error) error = close_page(&page, NULL, 0);
  return error ? refuse(command, path, error) : CLI_GO_ON;
}

int report_write(const char *command, const char *path, const char *title, json_t *data)
{
  char *json = data ? json_dumps(data, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;
  json_decref(data);
  if (!json) {
    cli_complain(command, "no page could be made: out of memory");
    return CLI_FAILED;
  }
  int error = write_file(path, title, json);
  free(json);
  return error ? refuse(command, path, error) : CLI_OK;
}

/* A word as a shell reads it, four times its length and two quotes at the most; returns its end. */
static char *put_word(char *out, const char *word)
{
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%";
  size_t length = strlen(word);
  int quoted = length == 0 || strspn(word, plain) < length;
  if (quoted) *out++ = '\'';
  for (; *word; word++) {
    if (quoted && *word == '\'') /* ends the quotes, stands alone, and begins them again */
      for (const char *mark = "'\\'"; *mark; mark++) *out++ = *mark;
    *out++ = *word;
  }
  if (quoted) *out++ = '\'';
  return out;
}

char *report_command_line(int argc, char **argv)
{
  size_t room = 16;
  for (int i = 0; i < argc; i++) room += 4 * strlen(argv[i]) + 3;
  char *line = malloc(room);
  if (!line) return NULL;
  char *out = line + snprintf(line, room, "sheaf");
  for (int i = 0; i < argc; i++) {
    *out++ = ' ';
    out = put_word(out, argv[i]);
  }
  *out = '\0';
  return line;
}
