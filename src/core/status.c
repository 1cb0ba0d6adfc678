/* core/status.c: status names and texts, and the last error of each thread. */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_text[1024];
static _Thread_local sheaf_error_info last_info = {.position = -1};

static void record(const sheaf_error_info *info, const char *format, va_list arguments)
{
  char text[sizeof last_text]; /* the arguments may point into the old text */
  vsnprintf(text, sizeof text, format, arguments);
  memcpy(last_text, text, sizeof text);
  last_info = *info;
}

sheaf_status shf_core_fail(sheaf_status status, const char *format, ...)
{
  sheaf_error_info info = {.status = status, .position = -1};
  va_list arguments;
  va_start(arguments, format);
  record(&info, format, arguments);
  va_end(arguments);
  return status;
}

sheaf_status shf_core_fail_info(const sheaf_error_info *info, const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  record(info, format, arguments);
  va_end(arguments);
  return info->status;
}

const char *sheaf_version(void) { return SHEAF_VERSION_STRING; }

const char *sheaf_last_error(void) { return last_text; }

sheaf_error_info sheaf_last_error_info(void) { return last_info; }

const char *sheaf_status_name(sheaf_status status)
{
  switch (status) {
#define SHEAF_X(name, value, text) \
  case SHEAF_##name:               \
    return #name;
    SHEAF_STATUS_LIST(SHEAF_X)
#undef SHEAF_X
  }
  return "UNKNOWN";
}

const char *sheaf_status_text(sheaf_status status)
{
  switch (status) {
#define SHEAF_X(name, value, text) \
  case SHEAF_##name:               \
    return text;
    SHEAF_STATUS_LIST(SHEAF_X)
#undef SHEAF_X
  }
  return "a number that is not a status";
}
