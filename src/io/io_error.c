/* io/io_error.c: failures that name a file. */
#undef _GNU_SOURCE /* the strerror_r of POSIX, not the other one */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "io/io_impl.h"

enum { SHOWN_PATH = 200, SHOWN_NAME = 100 };

sheaf_status shf_io_fail(sheaf_status status, const char *path, const char *format, ...)
{
  char sentence[768];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(sentence, sizeof sentence, format, arguments);
  va_end(arguments);
  size_t length = strlen(path), skipped = length > SHOWN_PATH ? length - SHOWN_PATH : 0;
  return shf_core_fail(status, "%s%s: %s", skipped ? "..." : "", path + skipped, sentence);
}

sheaf_status shf_io_fail_errno(const char *path, const char *action, int code)
{
  char meaning[128] = "";
  if (strerror_r(code, meaning, sizeof meaning) != 0 || !meaning[0]) strcpy(meaning, "unknown error");
  return shf_io_fail(SHEAF_IO, path, "cannot %s: %s (errno %d)", action, meaning, code);
}

int shf_io_shown(const char *text, size_t length)
{
  if (length <= SHOWN_NAME) return (int)length;
  size_t shown = SHOWN_NAME;
  while (shown > 0 && ((unsigned char)text[shown] & 0xc0) == 0x80) shown--;
  return (int)shown;
}
