/* io/header_scan.c: steps through the text of a header; shared by both formats. */
#include <stdarg.h>
#include <stdio.h>

#include "io/io_impl.h"

sheaf_status shf_io_fail_at(const shf_io_scan *scan, const char *format, ...)
{
  char sentence[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(sentence, sizeof sentence, format, arguments);
  va_end(arguments);
  return shf_io_fail(SHEAF_IO, scan->path, "%s, byte %td: %s", scan->format, scan->at - scan->file, sentence);
}

sheaf_status shf_io_fail_found(const shf_io_scan *scan, const char *wanted)
{
  if (scan->at == scan->end) return shf_io_fail_at(scan, "the header ends where %s should be", wanted);
  if (*scan->at > 0x20 && *scan->at < 0x7f) return shf_io_fail_at(scan, "'%c' where %s should be", *scan->at, wanted);
  return shf_io_fail_at(scan, "the character 0x%02x where %s should be", *scan->at, wanted);
}

void shf_io_skip_space(shf_io_scan *scan)
{
  while (scan->at < scan->end && (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\n' || *scan->at == '\r')) {
    scan->at++;
  }
}

bool shf_io_accept(shf_io_scan *scan, char wanted)
{
  shf_io_skip_space(scan);
  if (scan->at == scan->end || *scan->at != (unsigned char)wanted) return false;
  scan->at++;
  return true;
}

sheaf_status shf_io_expect(shf_io_scan *scan, char wanted, const char *what)
{
  return shf_io_accept(scan, wanted) ? SHEAF_OK : shf_io_fail_found(scan, what);
}

sheaf_status shf_io_next_item(shf_io_scan *scan, char close, bool *first, bool *more)
{
  *more = true;
  if (!*first) {
    char wanted[] = "',' or '?'";
    wanted[8] = close;
    if (shf_io_accept(scan, ',')) {
      *more = !scan->trailing_comma || !shf_io_accept(scan, close);
    } else {
      SHF_TRY(shf_io_expect(scan, close, wanted));
      *more = false;
    }
  } else if (shf_io_accept(scan, close)) {
    *more = false;
  }
  *first = false;
  return SHEAF_OK;
}

sheaf_status shf_io_read_integer(shf_io_scan *scan, const char *what, int64_t *value)
{
  shf_io_skip_space(scan);
  if (scan->at < scan->end && *scan->at == '-') return shf_io_fail_at(scan, "%s is a negative number", what);
  if (scan->at == scan->end || *scan->at < '0' || *scan->at > '9') return shf_io_fail_found(scan, what);
  const unsigned char *digits = scan->at;
  *value = 0;
  for (; scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9'; scan->at++) {
    if (__builtin_mul_overflow(*value, 10, value) || __builtin_add_overflow(*value, *scan->at - '0', value)) {
      scan->at = digits;
      return shf_io_fail_at(scan, "%s is larger than 2^63 - 1", what);
    }
  }
  if (*digits == '0' && scan->at - digits > 1) {
    scan->at = digits;
    return shf_io_fail_at(scan, "%s starts with a zero", what);
  }
  if (scan->at < scan->end && (*scan->at == '.' || *scan->at == 'e' || *scan->at == 'E')) {
    return shf_io_fail_at(scan, "%s is not written as an integer", what);
  }
  return SHEAF_OK;
}

sheaf_status shf_io_expect_end(shf_io_scan *scan)
{
  shf_io_skip_space(scan);
  return scan->at == scan->end ? SHEAF_OK : shf_io_fail_found(scan, "the end of the header");
}
