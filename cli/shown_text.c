/* cli/shown_text.c: text that others wrote (names in files, paths) as it may be shown: on a terminal nothing but
 * characters, in JSON nothing but UTF-8. */
#include <stdlib.h>
#include <string.h>

#include "cli_impl.h"
#include "json_out.h"

/* Bytes of the character at `text`, 0 where there is no valid one. Surrogates, overlong forms and what lies above
 * U+10FFFF are none. */
static size_t character_bytes(const unsigned char *text)
{
  size_t bytes = text[0] < 0x80 ? 1 : text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : 2;
  if (bytes == 1) return 1;
  if (text[0] < 0xc2 || text[0] > 0xf4) return 0;
  for (size_t i = 1; i < bytes; i++) /* ends at the NUL, too */
    if ((text[i] & 0xc0) != 0x80) return 0;
  unsigned lead = text[0], second = text[1];
  bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  bool beyond = (lead == 0xed && second > 0x9f) || (lead == 0xf4 && second > 0x8f);
  return overlong || beyond ? 0 : bytes;
}

/* C0, DEL and C1, which terminals obey. */
static bool is_control(const unsigned char *text)
{
  return text[0] < 0x20 || text[0] == 0x7f || (text[0] == 0xc2 && text[1] < 0xa0);
}

static bool is_plain(const char *text)
{
  const unsigned char *at = (const unsigned char *)text;
  for (size_t bytes; *at; at += bytes)
    if ((bytes = character_bytes(at)) == 0 || is_control(at)) return false;
  return true;
}

const char *cli_shown(const char *text)
{
  enum { KEPT = 8 };
  static char *kept[KEPT];
  static int next;
  if (is_plain(text)) return text;
  char *out = malloc(4 * strlen(text) + 1);
  if (!out) return "(out of memory)";
  free(kept[next]);
  kept[next] = out;
  next = (next + 1) % KEPT;
  const unsigned char *at = (const unsigned char *)text;
  while (*at) {
    size_t bytes = character_bytes(at);
    if (bytes && !is_control(at)) {
      memcpy(out, at, bytes);
      out += bytes;
    } else { /* every byte of it, so that it can be typed: $'\x1b' */
      for (size_t i = 0; i < (bytes ? bytes : 1); i++) out += snprintf(out, 5, "\\x%02x", at[i]);
    }
    at += bytes ? bytes : 1;
  }
  *out = '\0';
  return kept[(next + KEPT - 1) % KEPT];
}

json_t *cli_json_text(const char *text)
{
  json_t *string = json_string(text);
  if (string) return string;
  static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */
  char *valid = malloc(3 * strlen(text) + 1), *out = valid;
  if (!valid) return NULL;
  for (const unsigned char *at = (const unsigned char *)text; *at;) {
    size_t bytes = character_bytes(at);
    memcpy(out, bytes ? (const char *)at : replacement, bytes ? bytes : 3);
    out += bytes ? bytes : 3;
    at += bytes ? bytes : 1;
  }
  *out = '\0';
  string = json_string(valid);
  free(valid);
  return string;
}
