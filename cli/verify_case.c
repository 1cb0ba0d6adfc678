/* cli/verify_case.c: a reference case in memory: its tensors, its attributes, and the op it names. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verify.h"

enum { ALIGNMENT = 64, POISON = 0xA5 };

/* Only a tensor without elements can claim extents that its bytes do not back; nothing true is this large. */
enum { MAX_UNBACKED_EXTENT = 1 << 24 };

bool verify_fail(verify_case *c, const char *format, ...)
{
  if (c->failure[0]) return false;
  va_list values;
  va_start(values, format);
  vsnprintf(c->failure, sizeof c->failure, format, values);
  va_end(values);
  /* Names and values from a file end up on a terminal, one line for each case. */
  for (char *letter = c->failure; *letter; letter++)
    if ((unsigned char)*letter < ' ' || *letter == 0x7F) *letter = '?';
  return false;
}

/* ---- Memory and tensors -------------------------------------------------------------------------------------- */

void *verify_alloc(verify_case *c, int64_t count, size_t size)
{
  void *block = NULL;
  bool fits = count >= 0 && (uint64_t)count <= SIZE_MAX / 2 / size;
  size_t bytes = ALIGNMENT + (fits ? (size_t)count * size : 0);
  if (!fits || posix_memalign(&block, ALIGNMENT, bytes) != 0) {
    verify_fail(c, "out of memory for %lld elements of %zu bytes", (long long)count, size);
    return NULL;
  }
  memset(block, 0, bytes);
  *(void **)block = c->blocks;
  c->blocks = block;
  return (char *)block + ALIGNMENT;
}

static void free_blocks(verify_case *c)
{
  while (c->blocks) {
    void *before = *(void **)c->blocks;
    free(c->blocks);
    c->blocks = before;
  }
}

static size_t element_bytes(sheaf_dtype dtype) { return (size_t)sheaf_dtype_row_bytes(dtype, 1); }

static verify_tensor *new_tensor(verify_case *c, sheaf_dtype dtype, int rank, const int64_t *shape)
{
  verify_tensor *t = verify_alloc(c, 1, sizeof *t);
  if (!t) return NULL;
  t->dtype = dtype;
  t->rank = rank;
  t->count = 1;
  for (int i = 0; i < rank; i++) {
    t->shape[i] = shape[i];
    if (shape[i] < 0 || __builtin_mul_overflow(t->count, shape[i], &t->count)) {
      verify_fail(c, "a shape with extent %lld is impossible", (long long)shape[i]);
      return NULL;
    }
  }
  size_t size = element_bytes(dtype);
  if (t->count > 0 && !(t->data = verify_alloc(c, t->count, size))) return NULL;
  t->dl = (DLTensor){.data = t->data, .device = {kDLCPU, 0}, .ndim = rank, .dtype = sheaf_dtype_to_dl(dtype),
                     .shape = t->shape};
  t->operand = (sheaf_operand){&t->dl, (size_t)t->count * size};
  return t;
}

bool verify_has(const verify_case *c, const char *name) { return sheaf_safetensors_find(c->file, name) != NULL; }

verify_tensor *verify_input(verify_case *c, const char *name)
{
  const sheaf_io_tensor *source = sheaf_safetensors_find(c->file, name);
  if (!source) {
    verify_fail(c, "tensor '%s' is missing", name);
    return NULL;
  }
  if (source->dtype == SHEAF_DTYPE_NONE || source->rank < 0 || source->rank > SHEAF_IO_MAX_RANK) {
    verify_fail(c, "tensor '%s' has a type or rank that no op takes", name);
    return NULL;
  }
  for (int i = 0; i < source->rank; i++) {
    if (source->bytes == 0 && source->shape[i] > MAX_UNBACKED_EXTENT) {
      verify_fail(c, "tensor '%s' has no elements and an extent of %lld", name, (long long)source->shape[i]);
      return NULL;
    }
  }
  verify_tensor *t = new_tensor(c, source->dtype, source->rank, source->shape);
  if (!t) return NULL;
  if (t->operand.bytes != source->bytes) {
    verify_fail(c, "tensor '%s' has %zu bytes, its shape needs %zu", name, source->bytes, t->operand.bytes);
    return NULL;
  }
  if (t->data) memcpy(t->data, source->data, source->bytes);
  return t;
}

verify_tensor *verify_matrix(verify_case *c, const char *name, sheaf_dtype dtype, int64_t rows, int64_t dim)
{
  verify_tensor *t = verify_input(c, name);
  if (!t) return NULL;
  if (dtype == SHEAF_DTYPE_NONE ? !verify_is_float(t->dtype) : t->dtype != dtype) {
    verify_fail(c, "tensor '%s' has dtype %s%s%s", name, sheaf_dtype_name(t->dtype), dtype ? ", expected " : "",
                dtype ? sheaf_dtype_name(dtype) : "");
    return NULL;
  }
  if (t->rank != 2 || t->shape[0] != rows || t->shape[1] != dim) {
    verify_fail(c, "tensor '%s' does not have the shape [%lld, %lld]", name, (long long)rows, (long long)dim);
    return NULL;
  }
  return t;
}

verify_tensor *verify_output(verify_case *c, sheaf_dtype dtype, int rank, const int64_t *shape)
{
  verify_tensor *t = new_tensor(c, dtype, rank, shape);
  if (t && t->data) memset(t->data, POISON, t->operand.bytes);
  return t;
}

bool verify_is_float(sheaf_dtype dtype)
{
  return dtype == SHEAF_F32 || dtype == SHEAF_F64 || dtype == SHEAF_F16 || dtype == SHEAF_BF16;
}

bool verify_same_shape(const verify_tensor *a, const verify_tensor *b)
{
  bool same = a->rank == b->rank;
  for (int i = 0; same && i < a->rank; i++) same = a->shape[i] == b->shape[i];
  return same;
}

bool verify_expect_index_dtype(verify_case *c, const char *name, const verify_tensor *t)
{
  if (t->dtype == SHEAF_I32 || t->dtype == SHEAF_I64) return true;
  return verify_fail(c, "tensor '%s' has dtype %s, expected i32 or i64", name, sheaf_dtype_name(t->dtype));
}

double verify_value(const verify_tensor *t, int64_t position)
{
  switch (t->dtype) {
  case SHEAF_F64:
    return ((const double *)t->data)[position];
  case SHEAF_F32:
    return (double)((const float *)t->data)[position];
  case SHEAF_F16:
    return (double)sheaf_f16_to_f32(((const uint16_t *)t->data)[position]);
  case SHEAF_BF16:
    return (double)sheaf_bf16_to_f32(((const uint16_t *)t->data)[position]);
  default:
    return (double)verify_integer(t, position);
  }
}

int64_t verify_integer(const verify_tensor *t, int64_t position)
{
  if (t->dtype == SHEAF_I64) return ((const int64_t *)t->data)[position];
  if (t->dtype == SHEAF_I32) return ((const int32_t *)t->data)[position];
  return ((const uint8_t *)t->data)[position];
}

/* ---- Attributes ---------------------------------------------------------------------------------------------- */

int verify_choice(verify_case *c, const char *key, const char *const *choices, int missing)
{
  const char *text = sheaf_safetensors_metadata(c->file, key);
  if (!text) {
    if (missing < 0) verify_fail(c, "attribute '%s' is missing", key);
    return missing;
  }
  for (int i = 0; choices[i]; i++)
    if (strcmp(text, choices[i]) == 0) return i;
  verify_fail(c, "attribute '%s' has the unknown value '%s'", key, text);
  return -1;
}

int verify_flag(verify_case *c, const char *key, int missing)
{
  static const char *const choices[] = {"0", "1", NULL};
  return verify_choice(c, key, choices, missing);
}

static bool parse_integer(verify_case *c, const char *key, const char *text, int64_t *number)
{
  char *end;
  errno = 0;
  long long parsed = strtoll(text, &end, 10);
  if (end == text || *end || errno) return verify_fail(c, "attribute '%s' is '%s', not a number", key, text);
  *number = parsed;
  return true;
}

bool verify_extent(verify_case *c, const char *key, int64_t extent)
{
  const char *text = sheaf_safetensors_metadata(c->file, key);
  int64_t number = extent;
  if (text && !parse_integer(c, key, text, &number)) return false;
  if (number == extent) return true;
  return verify_fail(c, "attribute '%s' is %lld, but the tensors say %lld", key, (long long)number, (long long)extent);
}

bool verify_padding(verify_case *c, int64_t rows, int64_t *padding)
{
  *padding = -1;
  const char *text = sheaf_safetensors_metadata(c->file, "padding_idx");
  if (!text || strcmp(text, "none") == 0) return true;
  if (!parse_integer(c, "padding_idx", text, padding)) return false;
  if (*padding >= 0 && *padding < rows) return true;
  return verify_fail(c, "padding_idx %lld is no row of a table of %lld", (long long)*padding, (long long)rows);
}

/* ---- The op -------------------------------------------------------------------------------------------------- */

/* What a case of an op may hold. A name outside these lists is a fault: it could change the meaning of the answers. */
typedef struct op_rule {
  const char *name;
  bool (*replay)(verify_case *c);
  const char *tensors[12];
  const char *attributes[12];
} op_rule;

static const op_rule op_rules[] = {
  {"embedding", verify_embedding,
   {"weight", "indices", "out", "dout", "dweight"},
   {"op", "source", "padding_idx", "padding_forward", "scale_grad_by_freq", "num_embeddings"}},
  {"embedding_bag", verify_embedding_bag,
   {"weight", "indices", "offsets", "per_sample_weights", "out", "dout", "dweight", "dper_sample_weights"},
   {"op", "source", "mode", "padding_idx", "include_last_offset", "scale_grad_by_freq", "num_embeddings", "num_bags"}},
  {"quantized_bag", verify_quantized_bag,
   {"weight", "packed", "unpacked", "indices", "offsets", "per_sample_weights", "out"},
   {"op", "source", "bits", "mode", "padding_idx", "include_last_offset", "num_embeddings", "num_bags"}},
  {"segment", verify_segment,
   {"data", "segment_ids", "lengths", "out", "dout", "ddata"},
   {"op", "source", "sorted", "reduce", "num_segments", "empty", "ties", "zeros"}},
};

static bool is_listed(const char *name, const char *const names[12])
{
  for (int i = 0; i < 12 && names[i]; i++)
    if (strcmp(name, names[i]) == 0) return true;
  return false;
}

static bool names_are_known(verify_case *c, const op_rule *rule)
{
  for (int64_t i = 0; i < sheaf_safetensors_count(c->file); i++) {
    const char *name = sheaf_safetensors_at(c->file, i)->name;
    if (!is_listed(name, rule->tensors)) return verify_fail(c, "unexpected tensor '%s' for op %s", name, rule->name);
  }
  for (int64_t i = 0; i < sheaf_safetensors_metadata_count(c->file); i++) {
    const char *key = sheaf_safetensors_metadata_at(c->file, i).key;
    if (!is_listed(key, rule->attributes))
      return verify_fail(c, "unexpected attribute '%s' for op %s", key, rule->name);
  }
  return true;
}

static bool replay(verify_case *c)
{
  const char *op = sheaf_safetensors_metadata(c->file, "op");
  if (!op) return verify_fail(c, "attribute 'op' is missing");
  for (size_t i = 0; i < sizeof op_rules / sizeof *op_rules; i++)
    if (strcmp(op, op_rules[i].name) == 0) return names_are_known(c, &op_rules[i]) && op_rules[i].replay(c);
  return verify_fail(c, "unknown op '%s'", op);
}

bool verify_file(verify_case *c, const char *path, int threads, DLDevice device)
{
  *c = (verify_case){.threads = threads, .device = device};
  if (sheaf_safetensors_open(path, &c->file) != SHEAF_OK) return verify_fail(c, "%s", sheaf_last_error());
  bool agrees = replay(c);
  free_blocks(c);
  sheaf_safetensors_close(c->file);
  return agrees;
}
