/* io/safetensors_index.c: the index of a model that lies in several safetensors files. */
#include <string.h>

#include "io/io_impl.h"

struct sheaf_safetensors_index {
  size_t block_bytes; /* of the one allocation that starts with this struct */
  int64_t count;
  sheaf_index_entry *entries;
};

/* A walk through the file: the first counts, the second (with `index`) stores. */
typedef struct index_walk {
  shf_io_scan scan;
  int64_t count;
  size_t string_bytes;
  sheaf_index_entry *entries;
  char *strings;
} index_walk;

static sheaf_status take_string(index_walk *walk, const char *what, size_t room, const char **kept)
{
  size_t length;
  char *out = walk->strings ? walk->strings + walk->string_bytes : NULL;
  SHF_TRY(shf_io_read_string(&walk->scan, what, out, out ? room : 0, &length));
  if (out) out[length] = '\0';
  walk->string_bytes += length + 1;
  *kept = out;
  return SHEAF_OK;
}

/* ---- Values that nobody asked for: taken by the grammar of JSON, and forgotten ---- */

static bool at_byte(const shf_io_scan *scan, const char *any)
{
  return scan->at < scan->end && *scan->at && strchr(any, *scan->at);
}

static sheaf_status skip_digits(shf_io_scan *scan)
{
  if (!at_byte(scan, "0123456789")) return shf_io_fail_found(scan, "a digit");
  while (at_byte(scan, "0123456789")) scan->at++;
  return SHEAF_OK;
}

static sheaf_status skip_number(shf_io_scan *scan)
{
  scan->at += at_byte(scan, "-");
  if (at_byte(scan, "0"))
    scan->at++; /* no digit follows */
  else
    SHF_TRY(skip_digits(scan));
  if (at_byte(scan, ".")) {
    scan->at++;
    SHF_TRY(skip_digits(scan));
  }
  if (!at_byte(scan, "eE")) return SHEAF_OK;
  scan->at++;
  scan->at += at_byte(scan, "+-");
  return skip_digits(scan);
}

/* A string, a number or a word. */
static sheaf_status skip_plain(shf_io_scan *scan)
{
  static const char *const words[] = {"true", "false", "null"};
  size_t length;
  if (at_byte(scan, "\"")) return shf_io_read_string(scan, "a string", NULL, 0, &length);
  if (at_byte(scan, "-0123456789")) return skip_number(scan);
  for (int i = 0; i < 3; i++) {
    length = strlen(words[i]);
    if ((size_t)(scan->end - scan->at) < length || memcmp(scan->at, words[i], length) != 0) continue;
    scan->at += length;
    return SHEAF_OK;
  }
  return shf_io_fail_found(scan, "a value");
}

static sheaf_status skip_value(shf_io_scan *scan)
{
  enum { MOST_DEPTH = 64 };
  uint64_t objects = 0; /* a bit for each list or object around the value, the innermost lowest: which of the two */
  int depth = 0;
  for (bool first = false, more;;) {
    shf_io_skip_space(scan);
    if (at_byte(scan, "{[")) {
      if (depth++ == MOST_DEPTH) return shf_io_fail_at(scan, "values lie in each other more than %d deep", MOST_DEPTH);
      objects = objects << 1 | (*scan->at++ == '{');
      first = true;
    } else {
      SHF_TRY(skip_plain(scan));
    }
    for (more = false; !more; objects >>= 1, depth--, first = false) {
      if (depth == 0) return SHEAF_OK;
      SHF_TRY(shf_io_next_item(scan, objects & 1 ? '}' : ']', &first, &more));
      if (more) break;
    }
    size_t length;
    if (objects & 1) {
      SHF_TRY(shf_io_read_string(scan, "a string, a key,", NULL, 0, &length));
      SHF_TRY(shf_io_expect(scan, ':', "the ':' after a key"));
    }
  }
}

static sheaf_status read_map(index_walk *walk, size_t room)
{
  SHF_TRY(shf_io_expect(&walk->scan, '{', "the object of 'weight_map'"));
  for (bool first = true, more;;) {
    sheaf_index_entry entry;
    SHF_TRY(shf_io_next_item(&walk->scan, '}', &first, &more));
    if (!more) return SHEAF_OK;
    SHF_TRY(take_string(walk, "a string, the name of a tensor,", room, &entry.name));
    SHF_TRY(shf_io_expect(&walk->scan, ':', "the ':' after a key"));
    SHF_TRY(take_string(walk, "a string, the name of a file,", room, &entry.file));
    if (entry.file && (strchr(entry.file, '/') || !entry.file[0]))
      return shf_io_fail_at(&walk->scan, "'%.100s' is not the name of a file beside the index", entry.file);
    if (walk->entries) walk->entries[walk->count] = entry;
    walk->count++;
  }
}

static sheaf_status read_index(index_walk *walk, size_t room)
{
  bool has_map = false;
  SHF_TRY(shf_io_expect(&walk->scan, '{', "the '{' that an index starts with"));
  for (bool first = true, more;;) {
    char key[16];
    size_t length;
    SHF_TRY(shf_io_next_item(&walk->scan, '}', &first, &more));
    if (!more) break;
    SHF_TRY(shf_io_read_string(&walk->scan, "a string, a key of the index,", key, sizeof key, &length));
    SHF_TRY(shf_io_expect(&walk->scan, ':', "the ':' after a key"));
    if (length == 10 && memcmp(key, "weight_map", 10) == 0) {
      if (has_map) return shf_io_fail_at(&walk->scan, "the key 'weight_map' is there twice");
      has_map = true;
      SHF_TRY(read_map(walk, room));
    } else {
      SHF_TRY(skip_value(&walk->scan));
    }
  }
  SHF_TRY(shf_io_expect_end(&walk->scan));
  return has_map ? SHEAF_OK : shf_io_fail_at(&walk->scan, "there is no 'weight_map'");
}

static sheaf_status open_content(const char *path, const shf_io_bytes *content, sheaf_safetensors_index **index)
{
  index_walk walk = {.scan = {.path = path, .format = "safetensors index"}};
  SHF_REQUIRE(content->data, IO, "%s: the file is empty", path);
  walk.scan.file = walk.scan.at = content->data;
  walk.scan.end = content->data + content->bytes;
  SHF_TRY(read_index(&walk, 0));
  size_t entries = (size_t)walk.count * sizeof(sheaf_index_entry), room = walk.string_bytes;
  size_t bytes = sizeof(sheaf_safetensors_index) + entries + room;
  sheaf_safetensors_index *made = shf_core_alloc(bytes);
  if (!made) return shf_core_no_memory("the index of a checkpoint", bytes);
  *made = (sheaf_safetensors_index){bytes, walk.count, (sheaf_index_entry *)(made + 1)};
  index_walk second = {.scan = walk.scan, .entries = made->entries, .strings = (char *)made->entries + entries};
  second.scan.at = content->data;
  sheaf_status status = read_index(&second, room);
  if (status != SHEAF_OK) {
    shf_core_free(made, bytes);
    return status;
  }
  *index = made;
  return SHEAF_OK;
}

sheaf_status sheaf_safetensors_index_open(const char *path, sheaf_safetensors_index **index)
{
  SHF_REQUIRE(index, INVALID_PROBLEM, "sheaf_safetensors_index_open: index is NULL");
  *index = NULL;
  SHF_REQUIRE(path, INVALID_PROBLEM, "sheaf_safetensors_index_open: path is NULL");
  shf_io_bytes mapped, copy;
  SHF_TRY(shf_io_map(path, &mapped));
  /* An index is small: a copy cannot change between the two walks. */
  copy = (shf_io_bytes){.bytes = mapped.bytes};
  char *memory = shf_core_alloc(mapped.bytes);
  if (memory) memcpy(memory, mapped.data, mapped.bytes);
  copy.data = (unsigned char *)memory;
  sheaf_status status = mapped.bytes && !memory ? shf_core_no_memory("the index of a checkpoint", mapped.bytes)
                                                : open_content(path, &copy, index);
  shf_core_free(memory, mapped.bytes);
  shf_io_unmap(&mapped);
  return status;
}

void sheaf_safetensors_index_close(sheaf_safetensors_index *index)
{
  if (index) shf_core_free(index, index->block_bytes);
}

int64_t sheaf_safetensors_index_count(const sheaf_safetensors_index *index) { return index ? index->count : 0; }

sheaf_index_entry sheaf_safetensors_index_at(const sheaf_safetensors_index *index, int64_t position)
{
  bool valid = index && position >= 0 && position < index->count;
  return valid ? index->entries[position] : (sheaf_index_entry){NULL, NULL};
}

static void put_index(shf_io_text *text, const sheaf_index_entry *entries, int64_t count, int64_t total_bytes)
{
  shf_io_put_string(text, "{\n  \"metadata\": {\n    \"total_size\": ");
  shf_io_put_integer(text, total_bytes);
  shf_io_put_string(text, "\n  },\n  \"weight_map\": {");
  for (int64_t i = 0; i < count; i++) {
    shf_io_put_string(text, i ? ",\n    " : "\n    ");
    shf_io_put_quoted(text, entries[i].name);
    shf_io_put_string(text, ": ");
    shf_io_put_quoted(text, entries[i].file);
  }
  shf_io_put_string(text, "\n  }\n}\n");
}

sheaf_status sheaf_safetensors_index_write(const char *path, const sheaf_index_entry *entries, int64_t count,
                                           int64_t total_bytes)
{
  SHF_REQUIRE(path && (entries || count == 0) && count >= 0, INVALID_PROBLEM, "sheaf_safetensors_index_write: %s",
              path ? "entries is NULL or count negative" : "path is NULL");
  for (int64_t i = 0; i < count; i++)
    SHF_REQUIRE(entries[i].name && entries[i].file && entries[i].file[0] && !strchr(entries[i].file, '/'),
                INVALID_PROBLEM, "sheaf_safetensors_index_write: entry %lld has no name, or no plain file name",
                (long long)i);
  shf_io_text text = {0};
  put_index(&text, entries, count, total_bytes);
  size_t bytes = text.length;
  text = (shf_io_text){.out = shf_core_alloc(bytes)};
  if (!text.out) return shf_core_no_memory("the index of a checkpoint", bytes);
  put_index(&text, entries, count, total_bytes);
  shf_io_output output;
  sheaf_status status = shf_io_begin(&output, path);
  if (status == SHEAF_OK) status = shf_io_finish(&output, shf_io_append(&output, text.out, bytes));
  shf_core_free(text.out, bytes);
  return status;
}
