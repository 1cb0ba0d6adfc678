/* io/json_string.c: JSON strings, in and out, and the UTF-8 they are made of. */
#include <stdio.h>
#include <string.h>

#include "io/io_impl.h"

/* Second bytes are restricted after E0 (no overlong forms), ED (no surrogates), F0 (no overlong forms) and F4 (nothing
 * above U+10FFFF). */
size_t shf_io_utf8_length(const unsigned char *at, const unsigned char *end)
{
  unsigned lead = at[0], lowest = 0x80, highest = 0xbf;
  if (lead < 0x80) return 1;
  size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || (size_t)(end - at) < length) return 0;
  if (lead == 0xe0) lowest = 0xa0;
  if (lead == 0xed) highest = 0x9f;
  if (lead == 0xf0) lowest = 0x90;
  if (lead == 0xf4) highest = 0x8f;
  if (at[1] < lowest || at[1] > highest) return 0;
  for (size_t i = 2; i < length; i++) {
    if ((at[i] & 0xc0) != 0x80) return 0;
  }
  return length;
}

static size_t encode_utf8(uint32_t code, unsigned char out[4])
{
  if (code < 0x80) {
    out[0] = (unsigned char)code;
    return 1;
  }
  size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
  for (size_t i = length - 1; i > 0; i--, code >>= 6) out[i] = (unsigned char)(0x80 | (code & 0x3f));
  out[0] = (unsigned char)(lead[length] | code);
  return length;
}

/* Takes the four digits after "\u". */
static sheaf_status read_code_unit(shf_io_scan *scan, uint32_t *unit)
{
  *unit = 0;
  for (int i = 0; i < 4; i++, scan->at++) {
    if (scan->at == scan->end) return shf_io_fail_found(scan, "a hexadecimal digit");
    unsigned char digit = *scan->at, letter = digit | 0x20;
    if (digit >= '0' && digit <= '9') {
      *unit = *unit << 4 | (uint32_t)(digit - '0');
    } else if (letter >= 'a' && letter <= 'f') {
      *unit = *unit << 4 | (uint32_t)(letter - 'a' + 10);
    } else {
      return shf_io_fail_found(scan, "a hexadecimal digit");
    }
  }
  return SHEAF_OK;
}

/* Takes what follows "\u": one code unit, or the two of a surrogate pair. */
static sheaf_status read_code_point(shf_io_scan *scan, uint32_t *code)
{
  SHF_TRY(read_code_unit(scan, code));
  if (*code == 0) return shf_io_fail_at(scan, "a string holds the character U+0000");
  if (*code < 0xd800 || *code > 0xdfff) return SHEAF_OK;
  uint32_t low = 0;
  if (*code < 0xdc00 && scan->end - scan->at >= 2 && scan->at[0] == '\\' && scan->at[1] == 'u') {
    scan->at += 2;
    SHF_TRY(read_code_unit(scan, &low));
  }
  if (low < 0xdc00 || low > 0xdfff) {
    return shf_io_fail_at(scan, "a string holds half of a surrogate pair, \\u%04x", (unsigned)*code);
  }
  *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
  return SHEAF_OK;
}

/* Takes one character, as it stands or escaped, and gives it in UTF-8. */
static sheaf_status read_character(shf_io_scan *scan, unsigned char out[4], size_t *length)
{
  static const char escapes[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
  if (*scan->at < 0x20) return shf_io_fail_at(scan, "a string holds the control character 0x%02x", *scan->at);
  if (*scan->at != '\\') {
    *length = shf_io_utf8_length(scan->at, scan->end);
    if (*length == 0) return shf_io_fail_at(scan, "the character 0x%02x is not valid UTF-8 here", *scan->at);
    memcpy(out, scan->at, *length);
    scan->at += *length;
    return SHEAF_OK;
  }
  scan->at++;
  if (scan->at == scan->end || *scan->at == '\0') return shf_io_fail_found(scan, "an escaped character");
  if (*scan->at == 'u') {
    uint32_t code;
    scan->at++;
    SHF_TRY(read_code_point(scan, &code));
    *length = encode_utf8(code, out);
    return SHEAF_OK;
  }
  const char *escape = strchr(escapes, *scan->at);
  if (!escape) return shf_io_fail_found(scan, "an escaped character");
  out[0] = (unsigned char)meanings[escape - escapes];
  *length = 1;
  scan->at++;
  return SHEAF_OK;
}

sheaf_status shf_io_read_string(shf_io_scan *scan, const char *what, char *out, size_t capacity, size_t *length)
{
  SHF_TRY(shf_io_expect(scan, '"', what));
  *length = 0;
  while (scan->at < scan->end && *scan->at != '"') {
    unsigned char character[4];
    size_t count = 0;
    SHF_TRY(read_character(scan, character, &count));
    if (count <= capacity && *length <= capacity - count) memcpy(out + *length, character, count);
    *length += count;
  }
  if (scan->at == scan->end) return shf_io_fail_found(scan, "the end of a string");
  scan->at++;
  return SHEAF_OK;
}

void shf_io_put(shf_io_text *text, const char *bytes, size_t count)
{
  if (text->out) memcpy(text->out + text->length, bytes, count);
  text->length += count;
}

void shf_io_put_string(shf_io_text *text, const char *string) { shf_io_put(text, string, strlen(string)); }

void shf_io_put_integer(shf_io_text *text, int64_t value)
{
  char digits[24];
  snprintf(digits, sizeof digits, "%lld", (long long)value);
  shf_io_put_string(text, digits);
}

void shf_io_put_quoted(shf_io_text *text, const char *string)
{
  shf_io_put(text, "\"", 1);
  for (; *string; string++) {
    unsigned char byte = (unsigned char)*string;
    if (byte < 0x20) {
      char escaped[8];
      snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      shf_io_put_string(text, escaped);
    } else {
      if (byte == '"' || byte == '\\') shf_io_put(text, "\\", 1);
      shf_io_put(text, string, 1);
    }
  }
  shf_io_put(text, "\"", 1);
}
