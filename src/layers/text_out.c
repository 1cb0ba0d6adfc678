/* text_out.c: text into memory of a caller's. */
#include "layers/text_out.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

shf_text shf_text_into(char *to, size_t room) { return (shf_text){to, to ? room : 0, 0}; }

void shf_text_put(shf_text *text, const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  size_t left = text->used < text->room ? text->room - text->used : 0;
  int length = vsnprintf(left ? text->to + text->used : NULL, left, format, arguments);
  va_end(arguments);
  if (length > 0) text->used += (size_t)length;
}

void shf_text_quoted(shf_text *text, const char *string)
{
  shf_text_put(text, "\"");
  for (const unsigned char *c = (const unsigned char *)string; *c; c++) {
    if (*c == '"' || *c == '\\')
      shf_text_put(text, "\\%c", *c);
    else if (*c < 0x20)
      shf_text_put(text, "\\u%04x", *c);
    else
      shf_text_put(text, "%c", *c);
  }
  shf_text_put(text, "\"");
}

void shf_text_number(shf_text *text, double number, const char *quote)
{
  char digits[64];
  if (!isfinite(number)) {
    shf_text_put(text, "%s%s%s", quote, isnan(number) ? "nan" : number < 0 ? "-inf" : "inf", quote);
    return;
  }
  snprintf(digits, sizeof digits, "%.17g", number);
  size_t before = strspn(digits, "-0123456789"), rest = strcspn(digits + before, "0123456789e");
  shf_text_put(text, "%.*s%s%s", (int)before, digits, rest ? "." : "", digits + before + rest);
}

void shf_text_shape(shf_text *text, int rank, const int64_t *extent)
{
  shf_text_put(text, "[");
  for (int i = 0; i < rank; i++) shf_text_put(text, i ? ", %" PRId64 : "%" PRId64, extent[i]);
  shf_text_put(text, "]");
}
