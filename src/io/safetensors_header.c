/* io/safetensors_header.c: reads the header of a safetensors file:
 * { name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {key: value, ...} }. */
#include <string.h>

#include "io/io_impl.h"

typedef struct file_dtype {
  const char *name;
  sheaf_dtype dtype;
  int bits;
} file_dtype;

static const file_dtype file_dtypes[] = {
#define SHF_X(name, dtype, bits) {name, dtype, bits},
    SHF_IO_SAFETENSORS_DTYPES(SHF_X)
#undef SHF_X
};

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4 };

/* One tensor's object while it is read. */
typedef struct tensor_entry {
  unsigned has;
  const file_dtype *dtype;
  int rank;
  int64_t shape[SHEAF_IO_MAX_RANK];
  int64_t begin, end;
} tensor_entry;

/* Fails in a sentence about the current tensor. */
#define FAIL_TENSOR(walk, status, format, ...)                                                               \
  shf_io_fail(status, (walk)->scan.path, "tensor '%.*s': " format, (walk)->shown_length, (walk)->shown_name, \
              __VA_ARGS__)

static sheaf_status fail_changed(const shf_io_walk *walk)
{
  return shf_io_fail_at(&walk->scan, "the file was changed while it was being opened");
}

/* Takes a string that lives as long as the file. */
static sheaf_status keep_string(shf_io_walk *walk, const char *what, const char **kept)
{
  size_t length;
  char *out = walk->strings ? walk->strings + walk->string_bytes : NULL;
  size_t room = out ? walk->string_room - walk->string_bytes : 0;
  SHF_TRY(shf_io_read_string(&walk->scan, what, out, room, &length));
  if (out && length >= room) return fail_changed(walk);
  if (out) out[length] = '\0';
  walk->string_bytes += length + 1;
  *kept = out;
  return SHEAF_OK;
}

static sheaf_status read_metadata(shf_io_walk *walk)
{
  if (walk->has_metadata) return shf_io_fail_at(&walk->scan, "the key '__metadata__' is there twice");
  walk->has_metadata = true;
  SHF_TRY(shf_io_expect(&walk->scan, '{', "the object of '__metadata__'"));
  for (bool first = true, more;;) {
    SHF_TRY(shf_io_next_item(&walk->scan, '}', &first, &more));
    if (!more) return SHEAF_OK;
    sheaf_io_metadata pair;
    SHF_TRY(keep_string(walk, "a string, the key of a metadata entry,", &pair.key));
    SHF_TRY(shf_io_expect(&walk->scan, ':', "the ':' after a key"));
    SHF_TRY(keep_string(walk, "a string, the value of a metadata entry,", &pair.value));
    if (walk->metadata) {
      if (walk->metadata_count == walk->metadata_room) return fail_changed(walk);
      walk->metadata[walk->metadata_count] = pair;
    }
    walk->metadata_count++;
  }
}

static sheaf_status read_dtype(shf_io_walk *walk, tensor_entry *entry)
{
  char name[32];
  size_t length, shown;
  SHF_TRY(shf_io_read_string(&walk->scan, "a string, the dtype,", name, sizeof name, &length));
  for (size_t i = 0; i < sizeof file_dtypes / sizeof *file_dtypes; i++) {
    if (strlen(file_dtypes[i].name) == length && memcmp(file_dtypes[i].name, name, length) == 0) {
      entry->dtype = &file_dtypes[i];
      return SHEAF_OK;
    }
  }
  shown = length < 16 ? length : 16;
  return FAIL_TENSOR(walk, SHEAF_IO, "the dtype '%.*s' (%zu bytes) is not one of the format", (int)shown, name, length);
}

static sheaf_status read_shape(shf_io_walk *walk, tensor_entry *entry)
{
  SHF_TRY(shf_io_expect(&walk->scan, '[', "the array of 'shape'"));
  for (bool first = true, more;;) {
    SHF_TRY(shf_io_next_item(&walk->scan, ']', &first, &more));
    if (!more) return SHEAF_OK;
    if (entry->rank == SHEAF_IO_MAX_RANK) {
      return FAIL_TENSOR(walk, SHEAF_UNSUPPORTED, "the shape has more than %d dimensions", SHEAF_IO_MAX_RANK);
    }
    SHF_TRY(shf_io_read_integer(&walk->scan, "a number of 'shape'", &entry->shape[entry->rank]));
    entry->rank++;
  }
}

static sheaf_status read_offsets(shf_io_walk *walk, tensor_entry *entry)
{
  shf_io_scan *scan = &walk->scan;
  SHF_TRY(shf_io_expect(scan, '[', "the array of 'data_offsets'"));
  SHF_TRY(shf_io_read_integer(scan, "the first number of 'data_offsets'", &entry->begin));
  SHF_TRY(shf_io_expect(scan, ',', "the ',' between the two numbers of 'data_offsets'"));
  SHF_TRY(shf_io_read_integer(scan, "the second number of 'data_offsets'", &entry->end));
  return shf_io_expect(scan, ']', "the ']' after the two numbers of 'data_offsets'");
}

static sheaf_status read_field(shf_io_walk *walk, tensor_entry *entry)
{
  static const struct {
    const char *key;
    unsigned bit;
    sheaf_status (*read)(shf_io_walk *walk, tensor_entry *entry);
  } fields[] = {
      {"dtype", HAS_DTYPE, read_dtype}, {"shape", HAS_SHAPE, read_shape}, {"data_offsets", HAS_OFFSETS, read_offsets}};
  char key[16];
  size_t length;
  SHF_TRY(shf_io_read_string(&walk->scan, "a string, a key of a tensor's object,", key, sizeof key, &length));
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    if (strlen(fields[i].key) != length || memcmp(fields[i].key, key, length) != 0) continue;
    if (entry->has & fields[i].bit) {
      return FAIL_TENSOR(walk, SHEAF_IO, "the key '%s' is there twice", fields[i].key);
    }
    entry->has |= fields[i].bit;
    SHF_TRY(shf_io_expect(&walk->scan, ':', "the ':' after a key"));
    return fields[i].read(walk, entry);
  }
  return FAIL_TENSOR(walk, SHEAF_IO, "the key before byte %td is none of dtype, shape and data_offsets",
                     walk->scan.at - walk->scan.file);
}

/* The shape, the dtype and the offsets must tell of the same bytes, and the file must have them. */
static sheaf_status check_entry(const shf_io_walk *walk, const tensor_entry *entry)
{
  if (entry->has != (HAS_DTYPE | HAS_SHAPE | HAS_OFFSETS)) {
    return FAIL_TENSOR(walk, SHEAF_IO, "its object has no '%s'",
                       !(entry->has & HAS_DTYPE)   ? "dtype"
                       : !(entry->has & HAS_SHAPE) ? "shape"
                                                   : "data_offsets");
  }
  int64_t bits;
  if (!shf_io_shape_bits(entry->rank, entry->shape, entry->dtype->bits, &bits)) {
    return FAIL_TENSOR(walk, SHEAF_IO, "the size of its shape overflows, as %s", entry->dtype->name);
  }
  if (bits % 8 != 0) {
    return FAIL_TENSOR(walk, SHEAF_IO, "its %lld bits, as %s, do not fill whole bytes", (long long)bits,
                       entry->dtype->name);
  }
  long long begin = entry->begin, end = entry->end;
  if (begin > end) return FAIL_TENSOR(walk, SHEAF_IO, "data_offsets [%lld, %lld] end before they begin", begin, end);
  if (end > walk->data_bytes) {
    return FAIL_TENSOR(walk, SHEAF_IO, "data_offsets [%lld, %lld] reach beyond the file, which has %lld bytes of data",
                       begin, end, (long long)walk->data_bytes);
  }
  if (end - begin != bits / 8) {
    return FAIL_TENSOR(walk, SHEAF_IO, "data_offsets [%lld, %lld] hold %lld bytes, but shape and dtype %s make %lld",
                       begin, end, end - begin, entry->dtype->name, (long long)(bits / 8));
  }
  return SHEAF_OK;
}

static sheaf_status read_tensor(shf_io_walk *walk)
{
  sheaf_io_tensor tensor = {.name = NULL};
  tensor_entry entry = {.dtype = file_dtypes};
  shf_io_skip_space(&walk->scan);
  walk->shown_name = (const char *)walk->scan.at + 1; /* after the quotation mark */
  SHF_TRY(keep_string(walk, "a string, the name of a tensor,", &tensor.name));
  walk->shown_length = shf_io_shown(walk->shown_name, (size_t)((const char *)walk->scan.at - 1 - walk->shown_name));
  SHF_TRY(shf_io_expect(&walk->scan, ':', "the ':' after a key"));
  SHF_TRY(shf_io_expect(&walk->scan, '{', "the object of a tensor"));
  for (bool first = true, more;;) {
    SHF_TRY(shf_io_next_item(&walk->scan, '}', &first, &more));
    if (!more) break;
    SHF_TRY(read_field(walk, &entry));
  }
  SHF_TRY(check_entry(walk, &entry));
  if (walk->tensors) {
    if (walk->tensor_count == walk->tensor_room) return fail_changed(walk);
    tensor.dtype = entry.dtype->dtype;
    tensor.rank = entry.rank;
    memcpy(tensor.shape, entry.shape, sizeof tensor.shape);
    tensor.data = walk->data + entry.begin;
    tensor.bytes = (size_t)(entry.end - entry.begin);
    walk->tensors[walk->tensor_count] = tensor;
  }
  walk->tensor_count++;
  return SHEAF_OK;
}

/* The format asks for '{' as the very first byte. */
sheaf_status shf_io_walk_header(shf_io_walk *walk)
{
  if (walk->scan.at == walk->scan.end || *walk->scan.at != '{') {
    return shf_io_fail_found(&walk->scan, "the '{' that every header starts with");
  }
  walk->scan.at++;
  for (bool first = true, more;;) {
    SHF_TRY(shf_io_next_item(&walk->scan, '}', &first, &more));
    if (!more) return shf_io_expect_end(&walk->scan);
    static const char metadata_key[] = "__metadata__";
    char key[sizeof metadata_key];
    size_t length;
    const unsigned char *start = walk->scan.at;
    SHF_TRY(shf_io_read_string(&walk->scan, "a string, the name of a tensor,", key, sizeof key, &length));
    if (length == sizeof metadata_key - 1 && memcmp(key, metadata_key, length) == 0) {
      SHF_TRY(shf_io_expect(&walk->scan, ':', "the ':' after a key"));
      SHF_TRY(read_metadata(walk));
    } else {
      walk->scan.at = start;
      SHF_TRY(read_tensor(walk));
    }
  }
}
