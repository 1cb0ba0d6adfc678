/* cli/row_names.c: names of a table's rows. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "row_names.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_impl.h"

enum { MOST_NAMES = 1 << 27 };

static int no_memory(const char *command)
{
  cli_complain(command, "out of memory for names");
  return CLI_FAILED;
}

/* All of a file with a NUL behind it; NULL with errno set. */
static char *read_file(const char *path, size_t *bytes)
{
  FILE *file = fopen(path, "rb");
  if (!file) return NULL;
  size_t room = 1 << 16, used = 0, got;
  char *text = malloc(room);
  while (text && (got = fread(text + used, 1, room - used - 1, file)) > 0) {
    used += got;
    if (room - used > 1) continue;
    char *larger = realloc(text, room *= 2);
    if (!larger) free(text);
    text = larger;
  }
  if (!text) errno = ENOMEM;
  if (text && ferror(file)) {
    free(text);
    text = NULL;
    errno = EIO;
  }
  fclose(file);
  if (text) text[used] = '\0';
  *bytes = used;
  return text;
}

static int split_lines(row_names *names, const char *command, size_t bytes)
{
  int64_t lines = 0;
  for (size_t i = 0; i < bytes; i++) lines += names->text[i] == '\n';
  names->at = calloc((size_t)lines + 1, sizeof *names->at);
  if (!names->at) return no_memory(command);
  for (char *line = names->text, *end = names->text + bytes; line < end; names->count++) {
    char *stop = memchr(line, '\n', (size_t)(end - line));
    if (!stop) stop = end;
    names->at[names->count] = line;
    *stop = '\0';
    if (stop > line && stop[-1] == '\r') stop[-1] = '\0';
    line = stop + 1;
  }
  return CLI_GO_ON;
}

/* Room for the names of rows 0 .. row. */
static bool make_room(row_names *names, int64_t row)
{
  if (row >= names->room) {
    int64_t room = row < 512 ? 1024 : 2 * row;
    char **larger = calloc((size_t)room, sizeof *larger); /* not realloc: rows without a name take no memory */
    if (!larger) return false;
    if (names->room > 0) memcpy(larger, names->at, (size_t)names->room * sizeof *larger);
    free(names->at);
    names->at = larger;
    names->room = room;
  }
  if (row >= names->count) names->count = row + 1;
  return true;
}

/* `row` and `name` are what the file has there, which may be anything; a second name of a row is passed over. */
static bool set_name(row_names *names, const json_t *row, const char *name)
{
  int64_t number = json_is_integer(row) ? json_integer_value(row) : -1;
  if (!name || number < 0 || number >= MOST_NAMES) return true;
  if (!make_room(names, number)) return false;
  if (!names->at[number]) names->at[number] = strdup(name);
  return names->at[number];
}

/* {"name": row, ...} */
static int from_object(row_names *names, const char *command, json_t *object)
{
  const char *name;
  json_t *value;
  json_object_foreach(object, name, value)
  {
    if (!set_name(names, value, name)) return no_memory(command);
  }
  return CLI_GO_ON;
}

/* ["name", ...], or [["name", score], ...] as some tokenizers have it. */
static int from_array(row_names *names, const char *command, json_t *array)
{
  int64_t count = (int64_t)json_array_size(array);
  if (count > 0 && !make_room(names, count - 1)) return no_memory(command);
  for (int64_t i = 0; i < count; i++) {
    json_t *item = json_array_get(array, (size_t)i);
    const char *name = json_string_value(json_is_array(item) ? json_array_get(item, 0) : item);
    if (name && !(names->at[i] = strdup(name))) return no_memory(command);
  }
  return CLI_GO_ON;
}

static int from_json(row_names *names, const char *command, const char *path, json_t *root)
{
  json_t *vocabulary = json_object_get(json_object_get(root, "model"), "vocab");
  if (!vocabulary) vocabulary = root;
  int code =
      json_is_object(vocabulary) ? from_object(names, command, vocabulary) : from_array(names, command, vocabulary);
  /* tokenizer.json lists special ones apart, whose rows may come after all others */
  json_t *added = vocabulary == root ? NULL : json_object_get(root, "added_tokens"), *token;
  size_t i;
  json_array_foreach(added, i, token)
  {
    const char *name = json_string_value(json_object_get(token, "content"));
    if (code == CLI_GO_ON && !set_name(names, json_object_get(token, "id"), name)) code = no_memory(command);
  }
  if (code == CLI_GO_ON && names->count == 0) {
    cli_complain(command, "'%s' is JSON, but neither a list of names nor an object {name: row}", path);
    return CLI_FAILED;
  }
  return code;
}

int row_names_read(row_names *names, const char *command, const char *path)
{
  size_t bytes;
  *names = (row_names){0};
  names->text = read_file(path, &bytes);
  if (!names->text) {
    cli_complain(command, "'%s' cannot be read: %s", path, strerror(errno));
    return CLI_FAILED;
  }
  size_t start = strspn(names->text, " \t\r\n"), length = strlen(path);
  bool is_json = length > 5 && strcmp(path + length - 5, ".json") == 0;
  if (!is_json) return split_lines(names, command, bytes);
  json_error_t error;
  json_t *root = json_loadb(names->text + start, bytes - start, 0, &error);
  free(names->text);
  names->text = NULL;
  if (!root) {
    cli_complain(command, "'%s' is no JSON: line %d: %s", path, error.line, error.text);
    return CLI_FAILED;
  }
  int code = from_json(names, command, path, root);
  json_decref(root);
  return code;
}

void row_names_free(row_names *names)
{
  for (int64_t i = 0; !names->text && names->at && i < names->count; i++) free(names->at[i]);
  free(names->at);
  free(names->text);
  *names = (row_names){0};
}

const char *row_names_at(const row_names *names, int64_t row)
{
  return names->at && row >= 0 && row < names->count ? names->at[row] : NULL;
}

int64_t row_names_find(const row_names *names, const char *name)
{
  for (int64_t i = 0; names->at && i < names->count; i++)
    if (names->at[i] && strcmp(names->at[i], name) == 0) return i;
  return -1;
}
