/* io/npy_read.c: opens npy files: a magic, a version, a header length, a Python dict, one array. */
#include <string.h>

#include "io/io_impl.h"

enum { MAGIC_BYTES = 6, VERSION_BYTES = 2, NPY_HEADER_LIMIT = SHF_IO_NPY_HEAD - 12 };
enum { HAS_DESCR = 1, HAS_ORDER = 2, HAS_SHAPE = 4 };

struct sheaf_npy {
  shf_io_bytes content;
  sheaf_io_tensor tensor;
};

typedef struct npy_dict {
  shf_io_scan scan;
  unsigned has;
  sheaf_dtype dtype;
  bool fortran_order;
  int rank;
  int64_t shape[SHEAF_IO_MAX_RANK];
} npy_dict;

/* Takes a Python string in either kind of quotation mark. Nothing in such a header needs an escape, so none is read. */
static sheaf_status read_python_string(shf_io_scan *scan, const char *what, const char **text, size_t *length)
{
  shf_io_skip_space(scan);
  if (scan->at == scan->end || (*scan->at != '\'' && *scan->at != '"')) return shf_io_fail_found(scan, what);
  unsigned char quote = *scan->at++;
  *text = (const char *)scan->at;
  while (scan->at < scan->end && *scan->at != quote) {
    if (*scan->at < 0x20 || *scan->at > 0x7e || *scan->at == '\\') {
      return shf_io_fail_at(scan, "the character 0x%02x does not belong into a string of this header", *scan->at);
    }
    scan->at++;
  }
  if (scan->at == scan->end) return shf_io_fail_found(scan, "the end of a string");
  *length = (size_t)((const char *)scan->at - *text);
  scan->at++;
  return SHEAF_OK;
}

static bool equals(const char *text, size_t length, const char *word)
{
  return strlen(word) == length && memcmp(text, word, length) == 0;
}

static sheaf_status read_descr(npy_dict *dict)
{
  static const struct {
    const char *descr;
    sheaf_dtype dtype;
  } rows[] = {
#define SHF_X(descr, dtype) {descr, dtype},
      SHF_IO_NPY_DTYPES(SHF_X)
#undef SHF_X
  };
  const char *path = dict->scan.path, *descr = "";
  size_t length = 0;
  shf_io_skip_space(&dict->scan);
  if (dict->scan.at < dict->scan.end && (*dict->scan.at == '[' || *dict->scan.at == '(')) {
    return shf_io_fail(SHEAF_UNSUPPORTED, path,
                       "its elements are structures; only arrays of plain numbers can be read");
  }
  SHF_TRY(read_python_string(&dict->scan, "a string, the value of 'descr',", &descr, &length));
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (!equals(descr, length, rows[i].descr)) continue;
    dict->dtype = rows[i].dtype;
    return SHEAF_OK;
  }
  int shown = shf_io_shown(descr, length);
  if (length > 0 && descr[0] == '>') {
    return shf_io_fail(SHEAF_UNSUPPORTED, path,
                       "its type '%.*s' is big-endian; only little-endian files can be read (save it as '<%.*s')",
                       shown, descr, shown - 1, descr + 1);
  }
  return shf_io_fail(SHEAF_UNSUPPORTED, path, "its type '%.*s' is none of <f4 <f8 <f2 <i4 <i8 |u1 and |V2 (bf16)",
                     shown, descr);
}

static bool accept_word(shf_io_scan *scan, const char *word)
{
  size_t length = strlen(word);
  if ((size_t)(scan->end - scan->at) < length || memcmp(scan->at, word, length) != 0) return false;
  scan->at += length;
  return true;
}

static sheaf_status read_order(npy_dict *dict)
{
  shf_io_skip_space(&dict->scan);
  dict->fortran_order = accept_word(&dict->scan, "True");
  if (dict->fortran_order || accept_word(&dict->scan, "False")) return SHEAF_OK;
  return shf_io_fail_found(&dict->scan, "True or False, the value of 'fortran_order',");
}

/* A tuple: "()", "(3,)", "(3, 4)". "(3)" would be a number to Python. Python 2 wrote large numbers as "3L". */
static sheaf_status read_shape(npy_dict *dict)
{
  shf_io_scan *scan = &dict->scan;
  SHF_TRY(shf_io_expect(scan, '(', "the tuple of 'shape'"));
  for (bool first = true, more;;) {
    SHF_TRY(shf_io_next_item(scan, ')', &first, &more));
    if (!more) break;
    if (dict->rank == SHEAF_IO_MAX_RANK) {
      return shf_io_fail(SHEAF_UNSUPPORTED, scan->path, "its shape has more than %d dimensions", SHEAF_IO_MAX_RANK);
    }
    SHF_TRY(shf_io_read_integer(scan, "a number of 'shape'", &dict->shape[dict->rank]));
    accept_word(scan, "L");
    dict->rank++;
    shf_io_skip_space(scan);
    if (dict->rank == 1 && (scan->at == scan->end || *scan->at != ',')) {
      return shf_io_fail_found(scan, "the ',' after the first number of 'shape'");
    }
  }
  return SHEAF_OK;
}

static sheaf_status read_item(npy_dict *dict)
{
  static const struct {
    const char *key;
    unsigned bit;
    sheaf_status (*read)(npy_dict *dict);
  } items[] = {
      {"descr", HAS_DESCR, read_descr}, {"fortran_order", HAS_ORDER, read_order}, {"shape", HAS_SHAPE, read_shape}};
  const char *key = "";
  size_t length = 0;
  SHF_TRY(read_python_string(&dict->scan, "a string, a key of the dict,", &key, &length));
  for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
    if (!equals(key, length, items[i].key)) continue;
    if (dict->has & items[i].bit) return shf_io_fail_at(&dict->scan, "the key '%s' is there twice", items[i].key);
    dict->has |= items[i].bit;
    SHF_TRY(shf_io_expect(&dict->scan, ':', "the ':' after a key"));
    return items[i].read(dict);
  }
  return shf_io_fail_at(&dict->scan, "the key '%.*s' is none of descr, fortran_order and shape",
                        shf_io_shown(key, length), key);
}

static sheaf_status read_dict(npy_dict *dict)
{
  SHF_TRY(shf_io_expect(&dict->scan, '{', "the '{' that every header starts with"));
  for (bool first = true, more;;) {
    SHF_TRY(shf_io_next_item(&dict->scan, '}', &first, &more));
    if (!more) break;
    SHF_TRY(read_item(dict));
  }
  SHF_TRY(shf_io_expect_end(&dict->scan));
  if (dict->has == (HAS_DESCR | HAS_ORDER | HAS_SHAPE)) return SHEAF_OK;
  return shf_io_fail_at(&dict->scan, "the dict has no '%s'",
                        !(dict->has & HAS_DESCR)   ? "descr"
                        : !(dict->has & HAS_ORDER) ? "fortran_order"
                                                   : "shape");
}

/* With no elements, or with at most one extent other than 1, both orders are the same bytes. */
static bool order_matters(const npy_dict *dict)
{
  int longer = 0;
  for (int i = 0; i < dict->rank; i++) {
    if (dict->shape[i] == 0) return false;
    if (dict->shape[i] != 1) longer++;
  }
  return longer > 1;
}

/* Finds the header: *start and *length are its text within the file. */
static sheaf_status find_header(const char *path, const shf_io_bytes *content, size_t *start, size_t *length)
{
  const unsigned char *data = content->data;
  size_t fixed = MAGIC_BYTES + VERSION_BYTES;
  if (content->bytes < fixed || memcmp(data, "\x93NUMPY", MAGIC_BYTES) != 0) {
    return shf_io_fail(SHEAF_IO, path,
                       "these %zu bytes are no npy file: they do not start with \\x93NUMPY and a version",
                       content->bytes);
  }
  unsigned major = data[MAGIC_BYTES], minor = data[MAGIC_BYTES + 1];
  if (major < 1 || major > 3 || minor != 0) {
    return shf_io_fail(SHEAF_UNSUPPORTED, path, "npy version %u.%u is none of 1.0, 2.0 and 3.0", major, minor);
  }
  size_t length_bytes = major == 1 ? 2 : 4;
  *start = fixed + length_bytes;
  if (content->bytes < *start) {
    return shf_io_fail(SHEAF_IO, path, "%zu bytes are too few: the file is cut short before its header",
                       content->bytes);
  }
  uint32_t value = 0;
  memcpy(&value, data + fixed, length_bytes);
  *length = value;
  if (*length > NPY_HEADER_LIMIT) {
    return shf_io_fail(SHEAF_IO, path, "a header of %zu bytes is over the limit of %d", *length, NPY_HEADER_LIMIT);
  }
  if (*length > content->bytes - *start) {
    return shf_io_fail(SHEAF_IO, path, "the header should have %zu bytes, but only %zu follow: the file is cut short",
                       *length, content->bytes - *start);
  }
  return SHEAF_OK;
}

static sheaf_status read_tensor(const char *path, const shf_io_bytes *content, sheaf_io_tensor *tensor)
{
  size_t start = 0, length = 0;
  SHF_TRY(find_header(path, content, &start, &length));
  npy_dict dict = {.rank = 0};
  const unsigned char *header = content->data + start;
  dict.scan = (shf_io_scan){.path = path,
                            .format = "npy header",
                            .file = content->data,
                            .at = header,
                            .end = header + length,
                            .trailing_comma = true};
  SHF_TRY(read_dict(&dict));
  int64_t bits;
  if (!shf_io_shape_bits(dict.rank, dict.shape, 8 * shf_core_dtype_size(dict.dtype), &bits)) {
    return shf_io_fail(SHEAF_IO, path, "the size of its shape overflows, as %s", sheaf_dtype_name(dict.dtype));
  }
  size_t bytes = content->bytes - start - length;
  if (bytes != (uint64_t)bits / 8) {
    return shf_io_fail(SHEAF_IO, path, "the file has %zu bytes of data, but its shape and type make %lld", bytes,
                       (long long)(bits / 8));
  }
  if (dict.fortran_order && order_matters(&dict)) {
    return shf_io_fail(SHEAF_UNSUPPORTED, path,
                       "it is in Fortran order; only C order can be read (save a copy made by "
                       "numpy.ascontiguousarray)");
  }
  *tensor =
      (sheaf_io_tensor){.name = "", .dtype = dict.dtype, .rank = dict.rank, .data = header + length, .bytes = bytes};
  memcpy(tensor->shape, dict.shape, sizeof tensor->shape);
  return SHEAF_OK;
}

sheaf_status shf_io_open_npy(const char *path, const shf_io_bytes *content, sheaf_npy **file)
{
  sheaf_io_tensor tensor;
  SHF_TRY(read_tensor(path, content, &tensor));
  *file = shf_core_alloc(sizeof **file);
  if (!*file) return shf_core_no_memory("an open npy file", sizeof **file);
  **file = (sheaf_npy){.content = *content, .tensor = tensor};
  return SHEAF_OK;
}

sheaf_status sheaf_npy_open(const char *path, sheaf_npy **file)
{
  SHF_REQUIRE(file, INVALID_PROBLEM, "sheaf_npy_open: file is NULL");
  *file = NULL;
  SHF_REQUIRE(path, INVALID_PROBLEM, "sheaf_npy_open: path is NULL");
  shf_io_bytes content;
  SHF_TRY(shf_io_map(path, &content));
  sheaf_status status = shf_io_open_npy(path, &content, file);
  if (status != SHEAF_OK) shf_io_unmap(&content);
  return status;
}

sheaf_status sheaf_npy_open_memory(const void *data, size_t bytes, sheaf_npy **file)
{
  SHF_REQUIRE(file, INVALID_PROBLEM, "sheaf_npy_open_memory: file is NULL");
  *file = NULL;
  SHF_REQUIRE(data || bytes == 0, INVALID_PROBLEM, "sheaf_npy_open_memory: data is NULL, but bytes is %zu", bytes);
  return shf_io_open_npy("memory", &(shf_io_bytes){.data = data, .bytes = bytes}, file);
}

void sheaf_npy_close(sheaf_npy *file)
{
  if (!file) return;
  shf_io_unmap(&file->content);
  shf_core_free(file, sizeof *file);
}

const sheaf_io_tensor *sheaf_npy_tensor(const sheaf_npy *file) { return file ? &file->tensor : NULL; }
