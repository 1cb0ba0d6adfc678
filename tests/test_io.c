/* test_io.c: safetensors and npy: round trips, files made by hand, every error, atomic writing, failing memory. */
#define _GNU_SOURCE
/* cmocka.h needs the first four before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sheaf/io.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io_impl.h"

#ifndef SHEAF_TEST_VECTORS
#define SHEAF_TEST_VECTORS "tests/vectors"
#endif

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

static const struct {
  sheaf_dtype dtype;
  size_t size;
  const char *safetensors, *npy;
} dtypes[] = {
    {SHEAF_F32, 4, "F32", "<f4"},   {SHEAF_F64, 8, "F64", "<f8"}, {SHEAF_F16, 2, "F16", "<f2"},
    {SHEAF_BF16, 2, "BF16", "|V2"}, {SHEAF_I32, 4, "I32", "<i4"}, {SHEAF_I64, 8, "I64", "<i8"},
    {SHEAF_U8, 1, "U8", "|u1"},
};

/* ---- Files and bytes ------------------------------------------------------------------------------------------- */

static char folder[128];

static int make_folder(void **state)
{
  (void)state;
  const char *parent = getenv("TMPDIR");
  snprintf(folder, sizeof folder, "%.80s/sheaf-io-XXXXXX", parent && *parent ? parent : "/tmp");
  return mkdtemp(folder) ? 0 : -1;
}

/* Empties the folder; fails the test when one of our temporary files was left in it. */
static int empty_folder(void **state)
{
  (void)state;
  DIR *directory = opendir(folder);
  if (!directory) return -1;
  int left_behind = 0;
  for (struct dirent *entry; (entry = readdir(directory));) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    if (strncmp(entry->d_name, ".sheaf-", 7) == 0) left_behind++;
    if (unlinkat(dirfd(directory), entry->d_name, 0) != 0) unlinkat(dirfd(directory), entry->d_name, AT_REMOVEDIR);
  }
  closedir(directory);
  return left_behind ? -1 : 0;
}

static int remove_folder(void **state)
{
  (void)state;
  return rmdir(folder);
}

static const char *path_of(const char *name)
{
  static char paths[16][512];
  static int next;
  char *path = paths[next++ % 16];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

typedef struct content {
  unsigned char *data;
  size_t bytes;
} content;

/* Memory of exactly this length, so that a sanitizer sees a read past its end. */
static content copy_of(const void *data, size_t bytes)
{
  content copy = {malloc(bytes ? bytes : 1), bytes};
  assert_non_null(copy.data);
  if (bytes) memcpy(copy.data, data, bytes);
  return copy;
}

/* A safetensors file of this header and so many bytes of data: 0, 1, 2 ... */
static content safetensors_of(const void *header, size_t header_bytes, size_t data_bytes)
{
  content made = {malloc(8 + header_bytes + data_bytes), 8 + header_bytes + data_bytes};
  assert_non_null(made.data);
  uint64_t length = header_bytes;
  memcpy(made.data, &length, 8);
  memcpy(made.data + 8, header, header_bytes);
  for (size_t i = 0; i < data_bytes; i++) made.data[8 + header_bytes + i] = (unsigned char)i;
  return made;
}

/* An npy file of this version, with its header as it is given. */
static content npy_of(unsigned char major, const char *header, size_t data_bytes)
{
  size_t length = strlen(header), length_bytes = major == 1 ? 2 : 4, start = 8 + length_bytes + length;
  content made = {malloc(start + data_bytes), start + data_bytes};
  assert_non_null(made.data);
  memcpy(made.data, "\x93NUMPY", 6);
  made.data[6] = major;
  made.data[7] = 0;
  for (size_t i = 0; i < length_bytes; i++) made.data[8 + i] = (unsigned char)(length >> (8 * i));
  memcpy(made.data + 8 + length_bytes, header, length);
  for (size_t i = 0; i < data_bytes; i++) made.data[start + i] = (unsigned char)i;
  return made;
}

static void store(const char *path, const void *data, size_t bytes)
{
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(data, 1, bytes, file), bytes);
  assert_int_equal(fclose(file), 0);
}

static content load(const char *path)
{
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  assert_int_equal(fseek(file, 0, SEEK_END), 0);
  content loaded = {NULL, (size_t)ftell(file)};
  loaded.data = malloc(loaded.bytes + 1);
  assert_non_null(loaded.data);
  rewind(file);
  assert_int_equal(fread(loaded.data, 1, loaded.bytes, file), loaded.bytes);
  fclose(file);
  return loaded;
}

static void assert_file_is(const char *path, const void *data, size_t bytes)
{
  content loaded = load(path);
  assert_int_equal(loaded.bytes, bytes);
  assert_memory_equal(loaded.data, data, bytes);
  free(loaded.data);
}

static int entries_in(const char *path)
{
  DIR *directory = opendir(path);
  assert_non_null(directory);
  int entries = 0;
  for (struct dirent *entry; (entry = readdir(directory));) {
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) entries++;
  }
  closedir(directory);
  return entries;
}

static int open_descriptors(void) { return entries_in("/proc/self/fd"); }

/* How many mappings of files in the test's folder there are. */
static int mappings(void)
{
  FILE *maps = fopen("/proc/self/maps", "r");
  assert_non_null(maps);
  char line[1024];
  int found = 0;
  while (fgets(line, sizeof line, maps)) found += strstr(line, folder) != NULL;
  fclose(maps);
  return found;
}

static void assert_failed(sheaf_status status, sheaf_status expected, const char *words)
{
  if (status != expected || !strstr(sheaf_last_error(), words)) {
    fail_msg("expected %s with \"%s\", got %s: %s", sheaf_status_name(expected), words, sheaf_status_name(status),
             sheaf_last_error());
  }
  assert_int_equal(sheaf_last_error_info().status, expected);
}

/* ---- safetensors: round trips ---------------------------------------------------------------------------------- */

static sheaf_io_tensor tensor_of(const char *name, int dtype_row, int rank, const int64_t *shape, const void *data)
{
  sheaf_io_tensor tensor = {.name = name, .dtype = dtypes[dtype_row].dtype, .rank = rank, .data = data};
  tensor.bytes = dtypes[dtype_row].size;
  for (int i = 0; i < rank; i++) {
    tensor.shape[i] = shape[i];
    tensor.bytes *= (size_t)shape[i];
  }
  return tensor;
}

static void assert_same_tensor(const sheaf_io_tensor *actual, const sheaf_io_tensor *expected)
{
  assert_non_null(actual);
  assert_int_equal(actual->dtype, expected->dtype);
  assert_int_equal(actual->rank, expected->rank);
  for (int i = 0; i < expected->rank; i++) assert_int_equal(actual->shape[i], expected->shape[i]);
  assert_int_equal(actual->bytes, expected->bytes);
  if (actual->bytes) assert_memory_equal(actual->data, expected->data, actual->bytes);
}

static const int64_t shapes[][SHEAF_IO_MAX_RANK] = {
    {1, 2, 3, 1, 2, 2, 1, 2}, {5, 1, 1, 3, 2, 1, 1, 1}, {0, 4, 2, 9, 1, 1, 1, 1}, {3, 2, 0, 2, 1, 1, 7, 1}};

static void test_safetensors_round_trip_of_every_dtype_and_rank(void **state)
{
  (void)state;
  unsigned char data[1024];
  for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 37 + 11);
  const char *path = path_of("round.safetensors");
  for (int row = 0; row < LENGTH(dtypes); row++) {
    for (int rank = 0; rank <= SHEAF_IO_MAX_RANK; rank++) {
      for (int s = 0; s < LENGTH(shapes); s++) {
        sheaf_io_tensor tensor = tensor_of("t", row, rank, shapes[s], data);
        assert_int_equal(sheaf_safetensors_write(path, &tensor, 1, NULL, 0), SHEAF_OK);
        sheaf_safetensors *file;
        assert_int_equal(sheaf_safetensors_open(path, &file), SHEAF_OK);
        assert_int_equal(sheaf_safetensors_count(file), 1);
        assert_int_equal(sheaf_safetensors_metadata_count(file), 0);
        const sheaf_io_tensor *read = sheaf_safetensors_find(file, "t");
        assert_same_tensor(read, &tensor);
        assert_int_equal((uintptr_t)read->data % 64, 0);
        sheaf_safetensors_close(file);
      }
    }
  }
  assert_int_equal(mappings(), 0);
}

static void test_safetensors_bytes_are_as_specified(void **state)
{
  (void)state;
  const char *path = path_of("known.safetensors");
  static const float values[] = {1.0f, -2.0f};
  int64_t shape[] = {2, 1};
  sheaf_io_tensor tensor = tensor_of("w", 0, 2, shape, values);
  sheaf_io_metadata metadata = {"k", "v"};
  assert_int_equal(sheaf_safetensors_write(path, &tensor, 1, &metadata, 1), SHEAF_OK);
  static const char expected[] = "\x78\0\0\0\0\0\0\0"
                                 "{\"__metadata__\":{\"k\":\"v\"},\"w\":{\"dtype\":\"F32\",\"shape\":[2,1],"
                                 "\"data_offsets\":[0,8]}}                                       "
                                 "\x00\x00\x80\x3f\x00\x00\x00\xc0";
  assert_file_is(path, expected, sizeof expected - 1);
  assert_int_equal(sheaf_safetensors_write(path, NULL, 0, NULL, 0), SHEAF_OK);
  static const char empty[] = "\x38\0\0\0\0\0\0\0"
                              "{}                                                      ";
  assert_file_is(path, empty, sizeof empty - 1);
}

/* Odd byte counts between larger elements: every tensor is aligned all the same. */
static void test_safetensors_written_tensors_are_aligned(void **state)
{
  (void)state;
  static const _Alignas(8) unsigned char data[64] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
  int64_t odd[] = {3}, none[] = {0};
  sheaf_io_tensor tensors[] = {tensor_of("bytes", 6, 1, odd, data),  tensor_of("f64", 1, 1, odd, data + 8),
                               tensor_of("f16", 2, 1, odd, data),    tensor_of("f32", 0, 1, odd, data + 4),
                               tensor_of("more", 6, 1, odd, data),   tensor_of("i64", 5, 1, odd, data),
                               tensor_of("empty", 5, 1, none, NULL), tensor_of("scalar", 3, 0, NULL, data)};
  static const char *order[] = {"f64", "i64", "empty", "f32", "f16", "scalar", "bytes", "more"};
  const char *path = path_of("mixed.safetensors");
  assert_int_equal(sheaf_safetensors_write(path, tensors, LENGTH(tensors), NULL, 0), SHEAF_OK);
  sheaf_safetensors *file;
  assert_int_equal(sheaf_safetensors_open(path, &file), SHEAF_OK);
  assert_int_equal(sheaf_safetensors_count(file), LENGTH(tensors));
  for (int i = 0; i < LENGTH(tensors); i++) {
    const sheaf_io_tensor *read = sheaf_safetensors_find(file, tensors[i].name);
    assert_same_tensor(read, &tensors[i]);
    assert_string_equal(read->name, tensors[i].name);
    assert_int_equal((uintptr_t)read->data % (uintptr_t)sheaf_dtype_row_bytes(read->dtype, 1), 0);
    assert_string_equal(sheaf_safetensors_at(file, i)->name, order[i]);
  }
  sheaf_safetensors_close(file);
}

static void test_safetensors_names_and_metadata_of_any_characters(void **state)
{
  (void)state;
  static const unsigned char data[4] = {1, 2, 3, 4};
  static const char *names[] = {"", "quote \" backslash \\ slash /", "tab \t newline \n bell \a delete \x7f",
                                "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", "%s%n{}[],:"};
  sheaf_io_tensor tensors[LENGTH(names)];
  sheaf_io_metadata metadata[LENGTH(names)];
  int64_t shape[] = {4};
  for (int i = 0; i < LENGTH(names); i++) {
    tensors[i] = tensor_of(names[i], 6, 1, shape, data);
    metadata[i] = (sheaf_io_metadata){names[i], names[LENGTH(names) - 1 - i]};
  }
  const char *path = path_of("names.safetensors");
  assert_int_equal(sheaf_safetensors_write(path, tensors, LENGTH(names), metadata, LENGTH(names)), SHEAF_OK);
  sheaf_safetensors *file;
  assert_int_equal(sheaf_safetensors_open(path, &file), SHEAF_OK);
  assert_int_equal(sheaf_safetensors_metadata_count(file), LENGTH(names));
  for (int i = 0; i < LENGTH(names); i++) {
    assert_string_equal(sheaf_safetensors_at(file, i)->name, names[i]);
    assert_ptr_equal(sheaf_safetensors_find(file, names[i]), sheaf_safetensors_at(file, i));
    assert_string_equal(sheaf_safetensors_metadata(file, names[i]), metadata[i].value);
  }
  for (int i = 1; i < LENGTH(names); i++) {
    const char *before = sheaf_safetensors_metadata_at(file, i - 1).key;
    assert_true(strcmp(before, sheaf_safetensors_metadata_at(file, i).key) < 0);
  }
  sheaf_safetensors_close(file);
}

static void test_safetensors_many_tensors_are_all_found(void **state)
{
  (void)state;
  enum { COUNT = 3000 };
  static char names[COUNT][16];
  static sheaf_io_tensor tensors[COUNT];
  static int32_t values[COUNT];
  static sheaf_io_metadata metadata[COUNT];
  for (int i = 0; i < COUNT; i++) {
    snprintf(names[i], sizeof names[i], "%d", (int)((i * 7919LL) % COUNT));
    values[i] = i;
    tensors[i] = tensor_of(names[i], 4, 0, NULL, &values[i]);
    metadata[i] = (sheaf_io_metadata){names[i], names[i]};
  }
  const char *path = path_of("many.safetensors");
  assert_int_equal(sheaf_safetensors_write(path, tensors, COUNT, metadata, COUNT), SHEAF_OK);
  sheaf_safetensors *file;
  assert_int_equal(sheaf_safetensors_open(path, &file), SHEAF_OK);
  for (int i = 0; i < COUNT; i++) {
    assert_same_tensor(sheaf_safetensors_find(file, names[i]), &tensors[i]);
    assert_string_equal(sheaf_safetensors_at(file, i)->name, names[i]);
    assert_string_equal(sheaf_safetensors_metadata(file, names[i]), names[i]);
  }
  assert_null(sheaf_safetensors_find(file, "3000"));
  assert_null(sheaf_safetensors_metadata(file, ""));
  sheaf_safetensors_close(file);
}

static void test_safetensors_accessors_answer_null_outside(void **state)
{
  (void)state;
  const char *header = "{\"__metadata__\":{\"a\":\"b\"},\"t\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
  content made = safetensors_of(header, strlen(header), 2);
  sheaf_safetensors *file;
  assert_int_equal(sheaf_safetensors_open_memory(made.data, made.bytes, &file), SHEAF_OK);
  assert_non_null(sheaf_safetensors_at(file, 0));
  assert_null(sheaf_safetensors_at(file, 1));
  assert_null(sheaf_safetensors_at(file, -1));
  assert_null(sheaf_safetensors_find(file, "u"));
  assert_null(sheaf_safetensors_find(file, NULL));
  assert_null(sheaf_safetensors_metadata(file, "c"));
  assert_null(sheaf_safetensors_metadata(file, NULL));
  assert_null(sheaf_safetensors_metadata_at(file, 1).key);
  assert_null(sheaf_safetensors_metadata_at(file, -1).value);
  sheaf_safetensors_close(file);
  free(made.data);
  sheaf_safetensors_close(NULL);
  assert_int_equal(sheaf_safetensors_count(NULL), 0);
  assert_int_equal(sheaf_safetensors_metadata_count(NULL), 0);
  assert_null(sheaf_safetensors_at(NULL, 0));
  assert_null(sheaf_safetensors_find(NULL, "t"));
  assert_null(sheaf_safetensors_metadata(NULL, "a"));
  assert_null(sheaf_safetensors_metadata_at(NULL, 0).key);
}

/* ---- safetensors: files made by hand --------------------------------------------------------------------------- */

#define T(name, dtype, shape, offsets) \
  "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define NINE "1,1,1,1,1,1,1,1,1"

typedef struct header_case {
  const char *header;
  size_t data_bytes;
  sheaf_status status;
  const char *words; /* in the sentence */
} header_case;

static const header_case header_cases[] = {
    /* what is fine */
    {"{}", 0, SHEAF_OK, ""},
    {"{ }  \n\t\r ", 0, SHEAF_OK, ""},
    {"{\"__metadata__\":{}}", 0, SHEAF_OK, ""},
    {"{" T("a", "F32", "[2,1]", "[0,8]") "}", 8, SHEAF_OK, ""},
    {"{" T("b", "U8", "[3]", "[4,7]") "," T("a", "F32", "[]", "[0,4]") "}", 7, SHEAF_OK, ""},
    {"{ \"a\" : { \"shape\" : [ 2 , 1 ] ,\n\"data_offsets\":[ 0 , 2 ], \"dtype\" : \"U8\" } } ", 2, SHEAF_OK, ""},
    {"{" T("a", "F32", "[0,5]", "[0,0]") "," T("b", "U8", "[0]", "[0,0]") "}", 0, SHEAF_OK, ""},
    {"{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[0]", "[2,2]") "," T("c", "U8", "[1]", "[2,3]") "}", 3,
     SHEAF_OK, ""},
    {"{" T("a", "\\u00468_E4M3", "[2]", "[0,2]") "}", 2, SHEAF_OK, ""},
    /* not an object */
    {"", 0, SHEAF_IO, "the header ends where the '{'"},
    {" {}", 0, SHEAF_IO, "byte 8: the character 0x20 where the '{'"},
    {"[]", 0, SHEAF_IO, "byte 8: '[' where the '{'"},
    {"null", 0, SHEAF_IO, "'n' where"},
    {"\"a\"", 0, SHEAF_IO, "where the '{'"},
    {"\xef\xbb\xbf{}", 0, SHEAF_IO, "the character 0xef where the '{'"},
    {"{} x", 0, SHEAF_IO, "byte 11: 'x' where the end of the header"},
    {"{}{}", 0, SHEAF_IO, "the end of the header"},
    /* broken JSON */
    {"{", 0, SHEAF_IO, "the header ends where a string"},
    {"{,}", 0, SHEAF_IO, "',' where a string"},
    {"{1:2}", 0, SHEAF_IO, "'1' where a string"},
    {"{'a':1}", 0, SHEAF_IO, "''' where a string"},
    {"{\"a\"}", 0, SHEAF_IO, "'}' where the ':'"},
    {"{\"a\":}", 0, SHEAF_IO, "'}' where the object of a tensor"},
    {"{\"a", 0, SHEAF_IO, "the header ends where the end of a string"},
    {"{\"a\\", 0, SHEAF_IO, "an escaped character"},
    {"{\"a\\x\":1}", 0, SHEAF_IO, "'x' where an escaped character"},
    {"{" T("a", "U8", "[1]", "[0,1]") ",}", 1, SHEAF_IO, "'}' where a string"},
    {"{" T("a", "U8", "[1,]", "[0,1]") "}", 1, SHEAF_IO, "']' where a number of 'shape'"},
    {"{" T("a", "U8", "[1 1]", "[0,1]") "}", 1, SHEAF_IO, "'1' where ',' or ']'"},
    {"{" T("a", "U8", "[1]", "[0,1]") T("b", "U8", "[1]", "[0,1]") "}", 1, SHEAF_IO, "'\"' where ',' or '}'"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],}}", 1, SHEAF_IO, "'}' where a string"},
    /* wrong types */
    {"{\"a\":1}", 0, SHEAF_IO, "'1' where the object of a tensor"},
    {"{\"a\":[]}", 0, SHEAF_IO, "'[' where the object of a tensor"},
    {"{\"a\":null}", 0, SHEAF_IO, "'n' where the object of a tensor"},
    {"{\"a\":{\"dtype\":5}}", 0, SHEAF_IO, "'5' where a string, the dtype,"},
    {"{\"a\":{\"shape\":5}}", 0, SHEAF_IO, "'5' where the array of 'shape'"},
    {"{\"a\":{\"shape\":\"5\"}}", 0, SHEAF_IO, "where the array of 'shape'"},
    {"{\"a\":{\"shape\":[\"5\"]}}", 0, SHEAF_IO, "'\"' where a number of 'shape'"},
    {"{\"a\":{\"shape\":[[5]]}}", 0, SHEAF_IO, "'[' where a number of 'shape'"},
    {"{\"a\":{\"shape\":[true]}}", 0, SHEAF_IO, "'t' where a number of 'shape'"},
    {"{\"a\":{\"shape\":{}}}", 0, SHEAF_IO, "'{' where the array of 'shape'"},
    {"{\"a\":{\"data_offsets\":{}}}", 0, SHEAF_IO, "'{' where the array of 'data_offsets'"},
    {"{\"a\":{\"data_offsets\":[]}}", 0, SHEAF_IO, "']' where the first number of 'data_offsets'"},
    {"{\"a\":{\"data_offsets\":[0]}}", 0, SHEAF_IO, "']' where the ',' between"},
    {"{\"a\":{\"data_offsets\":[0,1,2]}}", 0, SHEAF_IO, "',' where the ']' after"},
    {"{\"a\":{\"data_offsets\":[0,null]}}", 0, SHEAF_IO, "'n' where the second number"},
    /* numbers */
    {"{" T("a", "U8", "[-1]", "[0,1]") "}", 1, SHEAF_IO, "a number of 'shape' is a negative number"},
    {"{" T("a", "U8", "[1]", "[-1,0]") "}", 1, SHEAF_IO, "the first number of 'data_offsets' is a negative number"},
    {"{" T("a", "U8", "[1]", "[0,-1]") "}", 1, SHEAF_IO, "the second number of 'data_offsets' is a negative"},
    {"{" T("a", "U8", "[+1]", "[0,1]") "}", 1, SHEAF_IO, "'+' where a number"},
    {"{" T("a", "U8", "[1.0]", "[0,1]") "}", 1, SHEAF_IO, "is not written as an integer"},
    {"{" T("a", "U8", "[1e0]", "[0,1]") "}", 1, SHEAF_IO, "is not written as an integer"},
    {"{" T("a", "U8", "[01]", "[0,1]") "}", 1, SHEAF_IO, "starts with a zero"},
    {"{" T("a", "U8", "[0x1]", "[0,1]") "}", 1, SHEAF_IO, "'x' where"},
    {"{" T("a", "U8", "[9223372036854775808]", "[0,1]") "}", 1, SHEAF_IO, "is larger than 2^63 - 1"},
    {"{" T("a", "U8", "[1]", "[0,18446744073709551616]") "}", 1, SHEAF_IO, "is larger than 2^63 - 1"},
    {"{" T("a", "U8", "[99999999999999999999999999999]", "[0,1]") "}", 1, SHEAF_IO, "is larger than 2^63 - 1"},
    /* keys */
    {"{\"a\":{}}", 0, SHEAF_IO, "tensor 'a': its object has no 'dtype'"},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}", 0, SHEAF_IO, "its object has no 'shape'"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0, SHEAF_IO, "its object has no 'data_offsets'"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0, SHEAF_IO, "tensor 'a': the key 'dtype' is there twice"},
    {"{\"a\":{\"shape\":[],\"sh\\u0061pe\":[]}}", 0, SHEAF_IO, "the key 'shape' is there twice"},
    {"{\"a\":{\"Dtype\":\"U8\"}}", 0, SHEAF_IO, "none of dtype, shape and data_offsets"},
    {"{\"a\":{\"a key that is very long, longer than any that is known\":1}}", 0, SHEAF_IO, "none of dtype"},
    {"{" T("a", "U8", "[1]", "[0,1]") "," T("a", "U8", "[1]", "[1,2]") "}", 2, SHEAF_IO, "names tensor 'a' twice"},
    {"{" T("a", "U8", "[1]", "[0,1]") "," T("\\u0061", "U8", "[1]", "[1,2]") "}", 2, SHEAF_IO, "tensor 'a' twice"},
    {"{" T("a", "U8", "[0]", "[0,0]") "," T("b", "U8", "[0]", "[0,0]") "," T("a", "U8", "[0]", "[0,0]") "}", 0,
     SHEAF_IO, "names tensor 'a' twice"},
    /* metadata */
    {"{\"__metadata__\":[]}", 0, SHEAF_IO, "'[' where the object of '__metadata__'"},
    {"{\"__metadata__\":null}", 0, SHEAF_IO, "'n' where the object of '__metadata__'"},
    {"{\"__metadata__\":\"x\"}", 0, SHEAF_IO, "where the object of '__metadata__'"},
    {"{\"__metadata__\":{\"a\":1}}", 0, SHEAF_IO, "'1' where a string, the value of a metadata entry,"},
    {"{\"__metadata__\":{\"a\":{}}}", 0, SHEAF_IO, "'{' where a string, the value"},
    {"{\"__metadata__\":{\"a\":null}}", 0, SHEAF_IO, "'n' where a string, the value"},
    {"{\"__metadata__\":{1:\"a\"}}", 0, SHEAF_IO, "'1' where a string, the key of a metadata entry,"},
    {"{\"__metadata__\":{\"a\":\"b\",\"a\":\"b\"}}", 0, SHEAF_IO, "the metadata has the key 'a' twice"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, SHEAF_IO, "the key '__metadata__' is there twice"},
    {"{\"__metadata__\":{},\"__meta\\u0064ata__\":{}}", 0, SHEAF_IO, "the key '__metadata__' is there twice"},
    /* dtypes and sizes */
    {"{" T("a", "F33", "[1]", "[0,4]") "}", 4, SHEAF_IO, "the dtype 'F33' (3 bytes) is not one of the format"},
    {"{" T("a", "f32", "[1]", "[0,4]") "}", 4, SHEAF_IO, "the dtype 'f32'"},
    {"{" T("a", "", "[1]", "[0,4]") "}", 4, SHEAF_IO, "the dtype ''"},
    {"{" T("a", "F32 ", "[1]", "[0,4]") "}", 4, SHEAF_IO, "the dtype 'F32 '"},
    {"{" T("a", "F32F32F32F32F32F32F32F32F32F32F32F32", "[1]", "[0,4]") "}", 4, SHEAF_IO, "(36 bytes)"},
    {"{" T("a", "F32", "[2]", "[0,4]") "}", 4, SHEAF_IO, "[0, 4] hold 4 bytes, but shape and dtype F32 make 8"},
    {"{" T("a", "F32", "[]", "[0,0]") "}", 0, SHEAF_IO, "hold 0 bytes, but shape and dtype F32 make 4"},
    {"{" T("a", "F4", "[3]", "[0,2]") "}", 2, SHEAF_IO, "its 12 bits, as F4, do not fill whole bytes"},
    {"{" T("a", "U8", "[" NINE "]", "[0,1]") "}", 1, SHEAF_UNSUPPORTED, "tensor 'a': the shape has more than 8"},
    {"{" T("a", "U8", "[4294967296,4294967296]", "[0,0]") "}", 0, SHEAF_IO, "the size of its shape overflows, as U8"},
    {"{" T("a", "U8", "[4294967296,4294967296,0]", "[0,0]") "}", 0, SHEAF_IO, "the size of its shape overflows"},
    {"{" T("a", "U8", "[0,4294967296,4294967296]", "[0,0]") "}", 0, SHEAF_IO, "the size of its shape overflows"},
    {"{" T("a", "F64", "[2305843009213693952]", "[0,0]") "}", 0, SHEAF_IO, "the size of its shape overflows, as F64"},
    {"{" T("a", "U8", "[9223372036854775807,2,2]", "[0,4]") "}", 4, SHEAF_IO, "the size of its shape overflows"},
    /* offsets */
    {"{" T("a", "U8", "[1]", "[2,1]") "}", 2, SHEAF_IO, "[2, 1] end before they begin"},
    {"{" T("a", "U8", "[4]", "[0,4]") "}", 3, SHEAF_IO, "[0, 4] reach beyond the file, which has 3 bytes of data"},
    {"{" T("a", "U8", "[4]", "[9223372036854775803,9223372036854775807]") "}", 3, SHEAF_IO, "reach beyond the file"},
    {"{" T("a", "U8", "[4]", "[0,4]") "}", 5, SHEAF_IO, "5 bytes of data, but its tensors end at byte 4"},
    {"{}", 1, SHEAF_IO, "1 bytes of data, but its tensors end at byte 0"},
    {"{" T("a", "U8", "[4]", "[1,5]") "}", 5, SHEAF_IO,
     "tensor 'a': its data begins at byte 1 of the data, and leaves"},
    {"{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[3,5]") "}", 5, SHEAF_IO, "leaves a gap from byte 2"},
    {"{" T("a", "U8", "[3]", "[0,3]") "," T("b", "U8", "[3]", "[2,5]") "}", 5, SHEAF_IO,
     "tensor 'b': its data begins at byte 2 of the data, but overlaps other tensors, which go on to byte 3"},
    {"{" T("a", "U8", "[3]", "[0,3]") "," T("b", "U8", "[3]", "[0,3]") "}", 3, SHEAF_IO, "overlaps other tensors"},
    {"{" T("a", "U8", "[3]", "[0,3]") "," T("b", "U8", "[0]", "[1,1]") "}", 3, SHEAF_IO, "overlaps other tensors"},
    /* strings */
    {"{\"\\u0000\":1}", 0, SHEAF_IO, "a string holds the character U+0000"},
    {"{\"__metadata__\":{\"a\":\"x\\u0000y\"}}", 0, SHEAF_IO, "a string holds the character U+0000"},
    {"{\"a\nb\":1}", 0, SHEAF_IO, "a string holds the control character 0x0a"},
    {"{\"\x1f\":1}", 0, SHEAF_IO, "a string holds the control character 0x1f"},
    {"{\"\\u12g4\":1}", 0, SHEAF_IO, "'g' where a hexadecimal digit"},
    {"{\"\\u12", 0, SHEAF_IO, "the header ends where a hexadecimal digit"},
    {"{\"\\ud800\":1}", 0, SHEAF_IO, "half of a surrogate pair, \\ud800"},
    {"{\"\\ud800\\u0041\":1}", 0, SHEAF_IO, "half of a surrogate pair"},
    {"{\"\\udc00\":1}", 0, SHEAF_IO, "half of a surrogate pair"},
    {"{\"\\ud800\\ud800\":1}", 0, SHEAF_IO, "half of a surrogate pair"},
    {"{\"\x80\":1}", 0, SHEAF_IO, "the character 0x80 is not valid UTF-8"},
    {"{\"\xc0\xaf\":1}", 0, SHEAF_IO, "0xc0 is not valid UTF-8"},
    {"{\"\xc3\":1}", 0, SHEAF_IO, "0xc3 is not valid UTF-8"},
    {"{\"\xe0\x80\x80\":1}", 0, SHEAF_IO, "0xe0 is not valid UTF-8"},
    {"{\"\xed\xa0\x80\":1}", 0, SHEAF_IO, "0xed is not valid UTF-8"},
    {"{\"\xe2\x82\":1}", 0, SHEAF_IO, "0xe2 is not valid UTF-8"},
    {"{\"\xf0\x80\x80\x80\":1}", 0, SHEAF_IO, "0xf0 is not valid UTF-8"},
    {"{\"\xf4\x90\x80\x80\":1}", 0, SHEAF_IO, "0xf4 is not valid UTF-8"},
    {"{\"\xf5\x80\x80\x80\":1}", 0, SHEAF_IO, "0xf5 is not valid UTF-8"},
    {"{\"\xe2\x82", 0, SHEAF_IO, "0xe2 is not valid UTF-8"},
};

static void test_safetensors_headers_made_by_hand(void **state)
{
  (void)state;
  for (int i = 0; i < LENGTH(header_cases); i++) {
    const header_case *row = &header_cases[i];
    content made = safetensors_of(row->header, strlen(row->header), row->data_bytes);
    sheaf_safetensors *file = (sheaf_safetensors *)&made;
    sheaf_status status = sheaf_safetensors_open_memory(made.data, made.bytes, &file);
    if (row->status == SHEAF_OK) {
      if (status != SHEAF_OK) fail_msg("%s: %s", row->header, sheaf_last_error());
      sheaf_safetensors_close(file);
    } else {
      assert_failed(status, row->status, row->words);
      assert_memory_equal(sheaf_last_error(), "memory: ", 8);
      assert_null(file);
    }
    free(made.data);
  }
}

static void test_safetensors_raw_nul_in_header_is_refused(void **state)
{
  (void)state;
  static const struct {
    const char *header;
    size_t bytes;
    const char *words;
  } rows[] = {{"{}\0", 3, "the character 0x00 where the end of the header"},
              {"{\0}", 3, "the character 0x00 where a string"},
              {"{\"a\0b\":1}", 9, "a string holds the control character 0x00"},
              {"{\"\\\0\":1}", 8, "the character 0x00 where an escaped character"},
              {"\0\0", 2, "the character 0x00 where the '{'"}};
  for (int i = 0; i < LENGTH(rows); i++) {
    content made = safetensors_of(rows[i].header, rows[i].bytes, 0);
    sheaf_safetensors *file;
    assert_failed(sheaf_safetensors_open_memory(made.data, made.bytes, &file), SHEAF_IO, rows[i].words);
    free(made.data);
  }
}

static void test_safetensors_escapes_are_decoded(void **state)
{
  (void)state;
  const char *header =
      "{\"__metadata__\":{\"\\\"\\\\\\/\\b\\f\\n\\r\\t\":\"\\u0041\\u00e9\\u20AC\\uD83D\\uDE00\\uffff\"}}";
  content made = safetensors_of(header, strlen(header), 0);
  sheaf_safetensors *file;
  assert_int_equal(sheaf_safetensors_open_memory(made.data, made.bytes, &file), SHEAF_OK);
  const char *value = sheaf_safetensors_metadata(file, "\"\\/\b\f\n\r\t");
  assert_non_null(value);
  assert_string_equal(value, "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xef\xbf\xbf");
  sheaf_safetensors_close(file);
  free(made.data);
}

/* Every type of the format is listed; sizes are checked whether Sheaf has a name for it or not. */
static void test_safetensors_types_without_a_name_are_listed(void **state)
{
  (void)state;
  static const struct {
    const char *name;
    int bits;
  } rows[] = {{"BOOL", 8},        {"I8", 8},      {"I16", 16},    {"U16", 16},    {"U32", 32},
              {"U64", 64},        {"C64", 64},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E4M3FNUZ", 8},
              {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};
  for (int i = 0; i < LENGTH(rows); i++) {
    for (int off = -1; off <= 1; off++) {
      int bytes = 12 * rows[i].bits / 8 + off;
      char header[160];
      snprintf(header, sizeof header, "{\"x\":{\"dtype\":\"%s\",\"shape\":[3,4],\"data_offsets\":[0,%d]}}",
               rows[i].name, bytes);
      content made = safetensors_of(header, strlen(header), (size_t)bytes);
      sheaf_safetensors *file;
      sheaf_status status = sheaf_safetensors_open_memory(made.data, made.bytes, &file);
      if (off != 0) {
        assert_failed(status, SHEAF_IO, "but shape and dtype");
      } else {
        assert_int_equal(status, SHEAF_OK);
        const sheaf_io_tensor *tensor = sheaf_safetensors_find(file, "x");
        assert_int_equal(tensor->dtype, SHEAF_DTYPE_NONE);
        assert_int_equal(tensor->rank, 2);
        assert_int_equal(tensor->bytes, bytes);
        sheaf_safetensors_close(file);
      }
      free(made.data);
    }
  }
}

static void test_safetensors_header_length_is_checked(void **state)
{
  (void)state;
  static const struct {
    uint64_t length;
    const char *words;
  } rows[] = {{3, "the header should have 3 bytes, but only 2 follow: the file is cut short"},
              {100000000, "should have 100000000 bytes"},
              {100000001, "a header of 100000001 bytes is over the limit of 100000000"},
              {INT64_MAX, "a header of 9223372036854775807 bytes"},
              {UINT64_MAX, "a header of 18446744073709551615 bytes"},
              {UINT64_MAX - 7, "a header of 18446744073709551608 bytes"}};
  for (int i = 0; i < LENGTH(rows); i++) {
    content made = safetensors_of("{}", 2, 0);
    memcpy(made.data, &rows[i].length, 8);
    sheaf_safetensors *file;
    assert_failed(sheaf_safetensors_open_memory(made.data, made.bytes, &file), SHEAF_IO, rows[i].words);
    free(made.data);
  }
}

static const char sound_header[] = "{\"__metadata__\":{\"key\":\"v\\u00e4lue\"}," T("a", "F32", "[2,1]", "[0,8]") "," T(
    "b\xc3\xa9", "U8", "[3]", "[10,13]") "," T("c", "I16", "[]", "[8,10]") "}  ";

static void test_safetensors_cut_short_anywhere_is_refused(void **state)
{
  (void)state;
  content whole = safetensors_of(sound_header, sizeof sound_header - 1, 13);
  for (size_t bytes = 0; bytes <= whole.bytes; bytes++) {
    content cut = copy_of(whole.data, bytes);
    sheaf_safetensors *file;
    sheaf_status status = sheaf_safetensors_open_memory(cut.data, bytes, &file);
    assert_int_equal(status, bytes == whole.bytes ? SHEAF_OK : SHEAF_IO);
    sheaf_safetensors_close(file);
    free(cut.data);
  }
  free(whole.data);
}

static volatile unsigned sum_of_bytes; /* keeps the reads */

static void read_every_byte(const sheaf_safetensors *file)
{
  for (int64_t i = 0; i < sheaf_safetensors_count(file); i++) {
    const sheaf_io_tensor *tensor = sheaf_safetensors_at(file, i);
    for (size_t b = 0; b < tensor->bytes; b++) sum_of_bytes += ((const unsigned char *)tensor->data)[b];
  }
}

static void test_safetensors_any_byte_may_be_wrong(void **state)
{
  (void)state;
  content made = safetensors_of(sound_header, sizeof sound_header - 1, 13);
  for (size_t at = 0; at < made.bytes - 13; at++) {
    unsigned char kept = made.data[at];
    for (unsigned value = 0; value < 256; value++) {
      made.data[at] = (unsigned char)value;
      sheaf_safetensors *file;
      if (sheaf_safetensors_open_memory(made.data, made.bytes, &file) == SHEAF_OK) read_every_byte(file);
      sheaf_safetensors_close(file);
    }
    made.data[at] = kept;
  }
  free(made.data);
}

/* Between the two walks through its header a file may grow: what was counted first is all there is room for. */
static void test_safetensors_that_change_while_opened_are_refused(void **state)
{
  (void)state;
  content made = safetensors_of(sound_header, sizeof sound_header - 1, 13);
  shf_io_walk counted = {.data = made.data + made.bytes - 13, .data_bytes = 13};
  counted.scan = (shf_io_scan){.path = "memory",
                               .format = "safetensors header",
                               .file = made.data,
                               .at = made.data + 8,
                               .end = made.data + made.bytes - 13};
  shf_io_walk again = counted;
  assert_int_equal(shf_io_walk_header(&counted), SHEAF_OK);
  assert_int_equal(counted.tensor_count, 3);
  assert_int_equal(counted.metadata_count, 1);
  assert_int_equal(counted.string_bytes, sizeof "key" + sizeof "v\xc3\xa4lue" + sizeof "a" + sizeof "b\xc3\xa9" + 2);
  sheaf_io_tensor tensors[3];
  sheaf_io_metadata metadata[1];
  for (int missing = 0; missing < 4; missing++) {
    char *strings = malloc(counted.string_bytes);
    assert_non_null(strings);
    shf_io_walk walk = again;
    walk.tensors = tensors;
    walk.metadata = metadata;
    walk.strings = strings;
    walk.tensor_room = 3 - (missing == 1);
    walk.metadata_room = 1 - (missing == 2);
    walk.string_room = counted.string_bytes - (missing == 3);
    sheaf_status status = shf_io_walk_header(&walk);
    if (missing == 0) assert_int_equal(status, SHEAF_OK);
    if (missing > 0) assert_failed(status, SHEAF_IO, "the file was changed while it was being opened");
    free(strings);
  }
  free(made.data);
}

static void test_safetensors_long_names_leave_the_sentence_whole(void **state)
{
  (void)state;
  char header[2000];
  int length = snprintf(header, sizeof header, "{\"");
  for (int i = 0; i < 500; i++) length += snprintf(header + length, sizeof header - (size_t)length, "\xc3\xa9");
  snprintf(header + length, sizeof header - (size_t)length, "\":{\"dtype\":\"F99\"}}");
  content made = safetensors_of(header, strlen(header), 0);
  sheaf_safetensors *file;
  assert_failed(sheaf_safetensors_open_memory(made.data, made.bytes, &file), SHEAF_IO, "\xc3\xa9': the dtype 'F99'");
  free(made.data);
}

static void test_safetensors_misaligned_data_is_handed_out(void **state)
{
  (void)state;
  const char *header = "{" T("a", "F32", "[2]", "[0,8]") "}";
  for (size_t spaces = 0; spaces < 4; spaces++) {
    char padded[128];
    snprintf(padded, sizeof padded, "%s%*s", header, (int)spaces, "");
    content made = safetensors_of(padded, strlen(padded), 8);
    sheaf_safetensors *file;
    assert_int_equal(sheaf_safetensors_open_memory(made.data, made.bytes, &file), SHEAF_OK);
    assert_ptr_equal(sheaf_safetensors_at(file, 0)->data, made.data + made.bytes - 8);
    sheaf_safetensors_close(file);
    free(made.data);
  }
}

static void test_safetensors_vectors_can_be_read(void **state)
{
  (void)state;
  DIR *directory = opendir(SHEAF_TEST_VECTORS);
  if (!directory) fail_msg("cannot open the folder of vectors, " SHEAF_TEST_VECTORS);
  int read = 0;
  for (struct dirent *entry; (entry = readdir(directory));) {
    const char *dot = strrchr(entry->d_name, '.');
    if (!dot || strcmp(dot, ".safetensors") != 0) continue;
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", SHEAF_TEST_VECTORS, entry->d_name);
    sheaf_safetensors *file;
    if (sheaf_safetensors_open(path, &file) != SHEAF_OK) fail_msg("%s", sheaf_last_error());
    assert_true(sheaf_safetensors_count(file) > 0);
    assert_non_null(sheaf_safetensors_metadata(file, "op"));
    for (int64_t i = 0; i < sheaf_safetensors_count(file); i++) {
      const sheaf_io_tensor *tensor = sheaf_safetensors_at(file, i);
      assert_int_not_equal(tensor->dtype, SHEAF_DTYPE_NONE);
      assert_ptr_equal(sheaf_safetensors_find(file, tensor->name), tensor);
    }
    read_every_byte(file);
    sheaf_safetensors_close(file);
    read++;
  }
  closedir(directory);
  assert_true(read > 0);
}

/* ---- npy ------------------------------------------------------------------------------------------------------- */

static void test_npy_round_trip_of_every_dtype_and_rank(void **state)
{
  (void)state;
  unsigned char data[1024];
  for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 91 + 5);
  const char *path = path_of("round.npy");
  for (int row = 0; row < LENGTH(dtypes); row++) {
    for (int rank = 0; rank <= SHEAF_IO_MAX_RANK; rank++) {
      for (int s = 0; s < LENGTH(shapes); s++) {
        sheaf_io_tensor tensor = tensor_of(NULL, row, rank, shapes[s], data);
        assert_int_equal(sheaf_npy_write(path, &tensor), SHEAF_OK);
        sheaf_npy *file;
        assert_int_equal(sheaf_npy_open(path, &file), SHEAF_OK);
        const sheaf_io_tensor *read = sheaf_npy_tensor(file);
        assert_same_tensor(read, &tensor);
        assert_string_equal(read->name, "");
        assert_int_equal((uintptr_t)read->data % 64, 0);
        sheaf_npy_close(file);
      }
    }
  }
  assert_int_equal(mappings(), 0);
}

/* As numpy.save writes these shapes and types: 128 bytes in all, the last one with the longest shape there can be. */
static void test_npy_bytes_are_those_of_numpy(void **state)
{
  (void)state;
  static const struct {
    int dtype_row, rank;
    int64_t shape[SHEAF_IO_MAX_RANK];
    const char *dict;
  } rows[] = {
      {0, 2, {3, 4}, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }"},
      {1, 0, {0}, "{'descr': '<f8', 'fortran_order': False, 'shape': (), }"},
      {6, 1, {5}, "{'descr': '|u1', 'fortran_order': False, 'shape': (5,), }"},
      {3, 1, {2}, "{'descr': '|V2', 'fortran_order': False, 'shape': (2,), }"},
      {2, 1, {0}, "{'descr': '<f2', 'fortran_order': False, 'shape': (0,), }"},
      {4, 3, {1, 1, 1}, "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 1, 1), }"},
      {5, 2, {0, 7}, "{'descr': '<i8', 'fortran_order': False, 'shape': (0, 7), }"},
      {6,
       8,
       {10000, 1000, 1000, 0, 100, 100, 100, 100},
       "{'descr': '|u1', 'fortran_order': False, 'shape': (10000, 1000, 1000, 0, 100, 100, 100, 100), }"},
  };
  static const unsigned char data[64] = {9, 8, 7, 6, 5, 4, 3, 2, 1};
  const char *path = path_of("numpy.npy");
  for (int i = 0; i < LENGTH(rows); i++) {
    sheaf_io_tensor tensor = tensor_of("", rows[i].dtype_row, rows[i].rank, rows[i].shape, data);
    assert_int_equal(sheaf_npy_write(path, &tensor), SHEAF_OK);
    unsigned char expected[256];
    memset(expected, ' ', 128);
    memcpy(expected, "\x93NUMPY\x01\x00\x76\x00", 10);
    memcpy(expected + 10, rows[i].dict, strlen(rows[i].dict));
    expected[127] = '\n';
    memcpy(expected + 128, data, tensor.bytes);
    assert_file_is(path, expected, 128 + tensor.bytes);
  }
}

#define D(descr, order, shape) "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }\n"

static const header_case dict_cases[] = {
    /* what is fine */
    {D("'<f4'", "False", "(2, 1)"), 8, SHEAF_OK, ""},
    {"{\"shape\":(2,),\"descr\":\"<i8\",\"fortran_order\":False}", 16, SHEAF_OK, ""},
    {" {  'fortran_order' : False , 'shape' : ( ) ,\n 'descr' : '<f8' } \t\n", 8, SHEAF_OK, ""},
    {D("'<u1'", "False", "(3,4,)"), 12, SHEAF_OK, ""},
    {D("'<V2'", "False", "(3L, 4L)"), 24, SHEAF_OK, ""},
    {D("'<f4'", "False", "(0,)"), 0, SHEAF_OK, ""},
    {D("'<f4'", "True", "()"), 4, SHEAF_OK, ""},
    {D("'<f4'", "True", "(3,)"), 12, SHEAF_OK, ""},
    {D("'<f4'", "True", "(1, 3, 1)"), 12, SHEAF_OK, ""},
    {D("'<f4'", "True", "(4, 0, 3)"), 0, SHEAF_OK, ""},
    /* sound files that cannot be held */
    {D("'<f4'", "True", "(2, 3)"), 24, SHEAF_UNSUPPORTED, "it is in Fortran order; only C order can be read"},
    {D("'>f4'", "False", "(2,)"), 8, SHEAF_UNSUPPORTED, "its type '>f4' is big-endian; only little-endian"},
    {D("'>i8'", "False", "(2,)"), 16, SHEAF_UNSUPPORTED, "(save it as '<i8')"},
    {D("'<c8'", "False", "(2,)"), 16, SHEAF_UNSUPPORTED, "its type '<c8' is none of"},
    {D("'|b1'", "False", "(2,)"), 2, SHEAF_UNSUPPORTED, "its type '|b1' is none of"},
    {D("'|O'", "False", "(2,)"), 2, SHEAF_UNSUPPORTED, "its type '|O' is none of"},
    {D("'|V4'", "False", "(2,)"), 8, SHEAF_UNSUPPORTED, "its type '|V4' is none of"},
    {D("'f4'", "False", "(2,)"), 8, SHEAF_UNSUPPORTED, "its type 'f4' is none of"},
    {D("''", "False", "(2,)"), 8, SHEAF_UNSUPPORTED, "its type '' is none of"},
    {D("[('a', '<f4')]", "False", "(2,)"), 8, SHEAF_UNSUPPORTED, "its elements are structures"},
    {D("('<f4', (2,))", "False", "(2,)"), 16, SHEAF_UNSUPPORTED, "its elements are structures"},
    {D("'<f4'", "False", "(" NINE ")"), 4, SHEAF_UNSUPPORTED, "its shape has more than 8 dimensions"},
    /* broken dicts */
    {"", 0, SHEAF_IO, "the header ends where the '{'"},
    {"[]", 0, SHEAF_IO, "byte 10: '[' where the '{'"},
    {"{", 0, SHEAF_IO, "the header ends where a string"},
    {"{}", 0, SHEAF_IO, "the dict has no 'descr'"},
    {"{,}", 0, SHEAF_IO, "',' where a string"},
    {"{'descr': '<f4', 'shape': ()}", 4, SHEAF_IO, "the dict has no 'fortran_order'"},
    {"{'descr': '<f4', 'fortran_order': False}", 4, SHEAF_IO, "the dict has no 'shape'"},
    {"{'descr': '<f4', 'descr': '<f4'}", 4, SHEAF_IO, "the key 'descr' is there twice"},
    {"{'shape': (), 'shape': ()}", 4, SHEAF_IO, "the key 'shape' is there twice"},
    {"{'fortran_order': False, 'fortran_order': False}", 4, SHEAF_IO, "the key 'fortran_order' is there twice"},
    {"{'order': False}", 4, SHEAF_IO, "the key 'order' is none of descr, fortran_order and shape"},
    {"{1: False}", 4, SHEAF_IO, "'1' where a string"},
    {"{'descr' '<f4'}", 4, SHEAF_IO, "''' where the ':'"},
    {"{'descr': '<f4' 'shape': ()}", 4, SHEAF_IO, "''' where ',' or '}'"},
    {"{'descr': '<f4',, 'shape': ()}", 4, SHEAF_IO, "',' where a string"},
    {"{'descr': 4}", 4, SHEAF_IO, "'4' where a string, the value of 'descr',"},
    {"{'descr': '<f4", 4, SHEAF_IO, "the header ends where the end of a string"},
    {"{'descr': '<f4\"}", 4, SHEAF_IO, "the header ends where the end of a string"},
    {"{'descr': '\\x3cf4'}", 4, SHEAF_IO, "the character 0x5c does not belong into a string"},
    {"{'descr': '\xc3\xa9'}", 4, SHEAF_IO, "the character 0xc3 does not belong"},
    {D("'<f4'", "false", "()"), 4, SHEAF_IO, "'f' where True or False"},
    {D("'<f4'", "0", "()"), 4, SHEAF_IO, "'0' where True or False"},
    {D("'<f4'", "'False'", "()"), 4, SHEAF_IO, "''' where True or False"},
    {D("'<f4'", "Falsehood", "()"), 4, SHEAF_IO, "'h' where ',' or '}'"},
    {D("'<f4'", "False", "[2]"), 8, SHEAF_IO, "'[' where the tuple of 'shape'"},
    {D("'<f4'", "False", "2"), 8, SHEAF_IO, "'2' where the tuple of 'shape'"},
    {D("'<f4'", "False", "(2)"), 8, SHEAF_IO, "')' where the ',' after the first number"},
    {D("'<f4'", "False", "(,)"), 8, SHEAF_IO, "',' where a number of 'shape'"},
    {D("'<f4'", "False", "(2 2)"), 8, SHEAF_IO, "'2' where the ','"},
    {D("'<f4'", "False", "(2,,2)"), 8, SHEAF_IO, "',' where a number of 'shape'"},
    {D("'<f4'", "False", "(2, 'a')"), 8, SHEAF_IO, "''' where a number of 'shape'"},
    {D("'<f4'", "False", "(2, None)"), 8, SHEAF_IO, "'N' where a number of 'shape'"},
    {D("'<f4'", "False", "(-2,)"), 8, SHEAF_IO, "a number of 'shape' is a negative number"},
    {D("'<f4'", "False", "(2.0,)"), 8, SHEAF_IO, "is not written as an integer"},
    {D("'<f4'", "False", "(02,)"), 8, SHEAF_IO, "starts with a zero"},
    {D("'<f4'", "False", "(9223372036854775808,)"), 8, SHEAF_IO, "is larger than 2^63 - 1"},
    {D("'<f4'", "False", "(2, 1)") "x", 8, SHEAF_IO, "'x' where the end of the header"},
    {D("'<f4'", "False", "(2,"), 8, SHEAF_IO, "where a number of 'shape'"},
    /* sizes */
    {D("'<f4'", "False", "(4294967296, 4294967296)"), 0, SHEAF_IO, "the size of its shape overflows, as f32"},
    {D("'<f4'", "False", "(4294967296, 4294967296, 0)"), 0, SHEAF_IO, "the size of its shape overflows"},
    {D("'<f8'", "False", "(2305843009213693952,)"), 0, SHEAF_IO, "the size of its shape overflows, as f64"},
    {D("'<f4'", "False", "(2, 1)"), 7, SHEAF_IO, "the file has 7 bytes of data, but its shape and type make 8"},
    {D("'<f4'", "False", "(2, 1)"), 9, SHEAF_IO, "the file has 9 bytes of data, but its shape and type make 8"},
    {D("'<f4'", "False", "(0,)"), 1, SHEAF_IO, "the file has 1 bytes of data, but its shape and type make 0"},
    {D("'<f4'", "False", "()"), 0, SHEAF_IO, "the file has 0 bytes of data, but its shape and type make 4"},
};

static void test_npy_headers_made_by_hand(void **state)
{
  (void)state;
  for (unsigned char major = 1; major <= 3; major++) {
    for (int i = 0; i < LENGTH(dict_cases); i++) {
      const header_case *row = &dict_cases[i];
      if (major > 1 && strstr(row->words, "byte 10:")) continue; /* later versions have longer lengths */
      content made = npy_of(major, row->header, row->data_bytes);
      sheaf_npy *file = (sheaf_npy *)&made;
      sheaf_status status = sheaf_npy_open_memory(made.data, made.bytes, &file);
      if (row->status == SHEAF_OK) {
        if (status != SHEAF_OK) fail_msg("%s: %s", row->header, sheaf_last_error());
        assert_ptr_equal(sheaf_npy_tensor(file)->data, made.data + made.bytes - row->data_bytes);
        assert_int_equal(sheaf_npy_tensor(file)->bytes, row->data_bytes);
        sheaf_npy_close(file);
      } else {
        assert_failed(status, row->status, row->words);
        assert_null(file);
      }
      free(made.data);
    }
  }
}

static void test_npy_magic_version_and_length_are_checked(void **state)
{
  (void)state;
  static const struct {
    const char *bytes;
    size_t count;
    sheaf_status status;
    const char *words;
  } rows[] = {{"", 0, SHEAF_IO, "these 0 bytes are no npy file"},
              {"\x93NUMPY\x01", 7, SHEAF_IO, "these 7 bytes are no npy file"},
              {"\x93NUMPX\x01\0\0\0\0\0", 12, SHEAF_IO, "are no npy file"},
              {"\x93numpy\x01\0\0\0\0\0", 12, SHEAF_IO, "are no npy file"},
              {"PK\3\4        ", 12, SHEAF_IO, "are no npy file"},
              {"\x93NUMPY\x00\0\0\0\0\0", 12, SHEAF_UNSUPPORTED, "npy version 0.0 is none of 1.0, 2.0 and 3.0"},
              {"\x93NUMPY\x01\1\0\0\0\0", 12, SHEAF_UNSUPPORTED, "npy version 1.1 is none of"},
              {"\x93NUMPY\x04\0\0\0\0\0", 12, SHEAF_UNSUPPORTED, "npy version 4.0 is none of"},
              {"\x93NUMPY\x01\0\0", 9, SHEAF_IO, "9 bytes are too few"},
              {"\x93NUMPY\x02\0\0\0\0", 11, SHEAF_IO, "11 bytes are too few"},
              {"\x93NUMPY\x01\0\3\0{}", 12, SHEAF_IO, "the header should have 3 bytes, but only 2 follow"},
              {"\x93NUMPY\x01\0\xff\xff", 10, SHEAF_IO, "the header should have 65535 bytes, but only 0 follow"},
              {"\x93NUMPY\x02\0\xff\xff\xff\xff", 12, SHEAF_IO, "a header of 4294967295 bytes is over the limit"},
              {"\x93NUMPY\x03\0\1\0\x10\0", 12, SHEAF_IO, "a header of 1048577 bytes is over the limit"}};
  for (int i = 0; i < LENGTH(rows); i++) {
    content made = copy_of(rows[i].bytes, rows[i].count);
    sheaf_npy *file;
    assert_failed(sheaf_npy_open_memory(made.data, made.bytes, &file), rows[i].status, rows[i].words);
    assert_null(file);
    free(made.data);
  }
}

static void test_npy_any_byte_may_be_wrong_or_missing(void **state)
{
  (void)state;
  content made = npy_of(2, D("'<f4'", "False", "(2, 1)"), 8);
  for (size_t at = 0; at < made.bytes - 8; at++) {
    unsigned char kept = made.data[at];
    for (unsigned value = 0; value < 256; value++) {
      made.data[at] = (unsigned char)value;
      sheaf_npy *file;
      sheaf_npy_open_memory(made.data, made.bytes, &file);
      sheaf_npy_close(file);
    }
    made.data[at] = kept;
  }
  for (size_t bytes = 0; bytes < made.bytes; bytes++) {
    content cut = copy_of(made.data, bytes);
    sheaf_npy *file;
    assert_int_equal(sheaf_npy_open_memory(cut.data, bytes, &file), SHEAF_IO);
    free(cut.data);
  }
  free(made.data);
}

/* ---- Wrong calls ----------------------------------------------------------------------------------------------- */

static void test_null_arguments_are_invalid(void **state)
{
  (void)state;
  sheaf_safetensors *safetensors = (sheaf_safetensors *)folder;
  sheaf_npy *npy = (sheaf_npy *)folder;
  assert_failed(sheaf_safetensors_open(NULL, &safetensors), SHEAF_INVALID_PROBLEM, "path is NULL");
  assert_null(safetensors);
  assert_failed(sheaf_safetensors_open("x", NULL), SHEAF_INVALID_PROBLEM, "file is NULL");
  assert_failed(sheaf_safetensors_open_memory(NULL, 1, &safetensors), SHEAF_INVALID_PROBLEM, "data is NULL");
  assert_failed(sheaf_safetensors_open_memory("x", 1, NULL), SHEAF_INVALID_PROBLEM, "file is NULL");
  assert_failed(sheaf_safetensors_open_memory(NULL, 0, &safetensors), SHEAF_IO, "0 bytes are too few");
  assert_failed(sheaf_safetensors_write(NULL, NULL, 0, NULL, 0), SHEAF_INVALID_PROBLEM, "path is NULL");
  assert_failed(sheaf_safetensors_write("x", NULL, 1, NULL, 0), SHEAF_INVALID_PROBLEM, "tensors is NULL");
  assert_failed(sheaf_safetensors_write("x", NULL, 0, NULL, 1), SHEAF_INVALID_PROBLEM, "metadata is NULL");
  assert_failed(sheaf_safetensors_write("x", NULL, -1, NULL, 0), SHEAF_INVALID_PROBLEM, "tensor_count is -1");
  assert_failed(sheaf_safetensors_write("x", NULL, 0, NULL, -1), SHEAF_INVALID_PROBLEM, "metadata_count is -1");
  assert_failed(sheaf_npy_open(NULL, &npy), SHEAF_INVALID_PROBLEM, "path is NULL");
  assert_null(npy);
  assert_failed(sheaf_npy_open("x", NULL), SHEAF_INVALID_PROBLEM, "file is NULL");
  assert_failed(sheaf_npy_open_memory(NULL, 1, &npy), SHEAF_INVALID_PROBLEM, "data is NULL");
  assert_failed(sheaf_npy_open_memory("x", 1, NULL), SHEAF_INVALID_PROBLEM, "file is NULL");
  assert_failed(sheaf_npy_open_memory(NULL, 0, &npy), SHEAF_IO, "no npy file");
  assert_failed(sheaf_npy_write(NULL, NULL), SHEAF_INVALID_PROBLEM, "path is NULL");
  assert_failed(sheaf_npy_write("x", NULL), SHEAF_INVALID_PROBLEM, "tensor is NULL");
  sheaf_npy_close(NULL);
  assert_null(sheaf_npy_tensor(NULL));
}

static void test_tensors_that_contradict_themselves_are_not_written(void **state)
{
  (void)state;
  static const char data[64];
  static const struct {
    sheaf_io_tensor tensor;
    const char *words;
  } rows[] = {
      {{"t", SHEAF_DTYPE_NONE, 1, {1}, data, 4}, "tensor 0 has dtype none (0), which files do not hold"},
      {{"t", SHEAF_INT8, 1, {1}, data, 9}, "dtype int8 (8), which files do not hold; write packed rows as u8"},
      {{"t", SHEAF_INT4, 1, {1}, data, 5}, "write packed rows as u8"},
      {{"t", (sheaf_dtype)99, 1, {1}, data, 4}, "dtype none (99)"},
      {{"t", SHEAF_F32, -1, {1}, data, 4}, "rank -1, which is outside 0..8"},
      {{"t", SHEAF_F32, 9, {1}, data, 4}, "rank 9, which is outside 0..8"},
      {{"t", SHEAF_F32, 2, {1, -2}, data, 4}, "the negative extent -2 in dimension 1"},
      {{"t", SHEAF_F32, 2, {INT64_MAX, 3}, data, 4}, "a shape whose size overflows"},
      {{"t", SHEAF_F32, 3, {INT64_MAX, 3, 0}, data, 0}, "a shape whose size overflows"},
      {{"t", SHEAF_F32, 2, {1, 2}, data, 4}, "has 4 bytes, but its shape and dtype make 8"},
      {{"t", SHEAF_F32, 2, {1, 0}, data, 4}, "has 4 bytes, but its shape and dtype make 0"},
      {{"t", SHEAF_F32, 0, {0}, data, 0}, "has 0 bytes, but its shape and dtype make 4"},
      {{"t", SHEAF_F32, 1, {1}, NULL, 4}, "has 4 bytes, but data is NULL"},
  };
  const char *path = path_of("never");
  for (int i = 0; i < LENGTH(rows); i++) {
    assert_failed(sheaf_safetensors_write(path, &rows[i].tensor, 1, NULL, 0), SHEAF_INVALID_PROBLEM, rows[i].words);
    assert_failed(sheaf_npy_write(path, &rows[i].tensor), SHEAF_INVALID_PROBLEM, rows[i].words);
  }
  assert_int_equal(entries_in(folder), 0);
}

static void test_names_that_cannot_be_written_are_invalid(void **state)
{
  (void)state;
  static const char data[4];
  sheaf_io_tensor tensors[3];
  for (int i = 0; i < 3; i++) tensors[i] = tensor_of(i == 1 ? "b" : "a", 0, 0, NULL, data);
  const char *path = path_of("never");
  assert_failed(sheaf_safetensors_write(path, tensors, 3, NULL, 0), SHEAF_INVALID_PROBLEM, "tensor name 'a' is given");
  tensors[2].name = NULL;
  assert_failed(sheaf_safetensors_write(path, tensors, 3, NULL, 0), SHEAF_INVALID_PROBLEM, "name of tensor 2 is NULL");
  tensors[2].name = "__metadata__";
  assert_failed(sheaf_safetensors_write(path, tensors, 3, NULL, 0), SHEAF_INVALID_PROBLEM, "named '__metadata__'");
  tensors[2].name = "xy\xff";
  assert_failed(sheaf_safetensors_write(path, tensors, 3, NULL, 0), SHEAF_INVALID_PROBLEM,
                "the name of tensor 2 is not valid UTF-8 at its byte 2");
  sheaf_io_metadata metadata[] = {{"a", "1"}, {"b", "2"}, {"a", "3"}};
  assert_failed(sheaf_safetensors_write(path, tensors, 2, metadata, 3), SHEAF_INVALID_PROBLEM, "metadata key 'a'");
  metadata[2].key = NULL;
  assert_failed(sheaf_safetensors_write(path, tensors, 2, metadata, 3), SHEAF_INVALID_PROBLEM,
                "key of metadata 2 is N");
  metadata[2] = (sheaf_io_metadata){"c", NULL};
  assert_failed(sheaf_safetensors_write(path, tensors, 2, metadata, 3), SHEAF_INVALID_PROBLEM,
                "value of metadata 2 is");
  metadata[2] = (sheaf_io_metadata){"\xc3", "3"};
  assert_failed(sheaf_safetensors_write(path, tensors, 2, metadata, 3), SHEAF_INVALID_PROBLEM, "is not valid UTF-8");
  assert_int_equal(entries_in(folder), 0);
}

/* ---- Files that cannot be opened ------------------------------------------------------------------------------- */

static void assert_neither_opens(const char *path, const char *safetensors_words, const char *npy_words)
{
  sheaf_safetensors *safetensors;
  sheaf_npy *npy;
  int descriptors = open_descriptors();
  assert_failed(sheaf_safetensors_open(path, &safetensors), SHEAF_IO, safetensors_words);
  assert_non_null(strstr(sheaf_last_error(), path));
  assert_null(safetensors);
  assert_failed(sheaf_npy_open(path, &npy), SHEAF_IO, npy_words);
  assert_non_null(strstr(sheaf_last_error(), path));
  assert_null(npy);
  assert_int_equal(open_descriptors(), descriptors);
  assert_int_equal(mappings(), 0);
}

static void test_files_that_cannot_be_opened(void **state)
{
  (void)state;
  const char *missing = path_of("missing"), *empty = path_of("empty"), *pipe = path_of("pipe"), *text = path_of("text");
  assert_neither_opens(missing, "cannot open the file for reading: No such file or directory (errno 2)", "(errno 2)");
  assert_neither_opens(folder, "this is not a regular file", "this is not a regular file");
  store(empty, "", 0);
  assert_neither_opens(empty, "0 bytes are too few", "these 0 bytes are no npy file");
  assert_int_equal(mkfifo(pipe, 0600), 0);
  assert_neither_opens(pipe, "this is not a regular file", "this is not a regular file");
  store(text, "just some text", 14);
  assert_neither_opens(text, "is over the limit", "no npy file");
}

static void test_long_path_leaves_the_sentence_whole(void **state)
{
  (void)state;
  char path[3000];
  memset(path, 'p', sizeof path);
  memcpy(path + sizeof path - 6, "/last", 6);
  sheaf_safetensors *file;
  assert_failed(sheaf_safetensors_open(path, &file), SHEAF_IO, "/last: cannot open the file for reading: ");
  assert_memory_equal(sheaf_last_error(), "...p", 4);
}

/* ---- Atomic writing -------------------------------------------------------------------------------------------- */

static const char old_content[] = "what was there before";

typedef sheaf_status write_function(const char *path, size_t bytes);

static sheaf_status write_safetensors(const char *path, size_t bytes)
{
  static unsigned char data[1 << 16];
  int64_t shape[] = {(int64_t)bytes};
  sheaf_io_tensor tensors[] = {tensor_of("a", 6, 1, shape, data), tensor_of("b", 6, 1, shape, data)};
  sheaf_io_metadata metadata[] = {{"k", "v"}, {"l", "w"}};
  return sheaf_safetensors_write(path, tensors, 2, metadata, 2);
}

static sheaf_status write_npy(const char *path, size_t bytes)
{
  static unsigned char data[1 << 16];
  int64_t shape[] = {(int64_t)bytes};
  sheaf_io_tensor tensor = tensor_of("", 6, 1, shape, data);
  return sheaf_npy_write(path, &tensor);
}

static write_function *const writers[] = {write_safetensors, write_npy};

/* The disk gives out in the header, at its end, in the data: for that the largest file is limited. */
static void test_failing_write_leaves_the_target_as_it_was(void **state)
{
  (void)state;
  static const size_t limits[] = {0, 1, 8, 100, 128, 1000, 40000};
  const char *there = path_of("there"), *new = path_of("new");
  store(there, old_content, sizeof old_content);
  struct rlimit unlimited, limited;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  int descriptors = open_descriptors();
  for (int w = 0; w < LENGTH(writers); w++) {
    for (int i = 0; i < LENGTH(limits); i++) {
      limited = unlimited;
      limited.rlim_cur = limits[i];
      assert_int_equal(setrlimit(RLIMIT_FSIZE, &limited), 0);
      sheaf_status first = writers[w](there, 65536);
      char sentence[1024];
      snprintf(sentence, sizeof sentence, "%s", sheaf_last_error());
      sheaf_status second = writers[w](new, 65536);
      assert_int_equal(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
      assert_int_equal(first, SHEAF_IO);
      assert_int_equal(second, SHEAF_IO);
      assert_non_null(strstr(sentence, "there: cannot write the temporary file: File too large"));
      assert_int_equal(entries_in(folder), 1);
      assert_file_is(there, old_content, sizeof old_content);
    }
  }
  assert_int_equal(open_descriptors(), descriptors);
  signal(SIGXFSZ, handler);
}

static void test_unreadable_data_fails_and_leaves_the_target(void **state)
{
  (void)state;
  const char *there = path_of("there");
  store(there, old_content, sizeof old_content);
  void *locked = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(locked != MAP_FAILED);
  sheaf_io_tensor tensor = {"t", SHEAF_U8, 1, {4096}, locked, 4096};
  assert_failed(sheaf_safetensors_write(there, &tensor, 1, NULL, 0), SHEAF_IO, "cannot write the temporary file: Bad");
  assert_failed(sheaf_npy_write(there, &tensor), SHEAF_IO, "cannot write the temporary file: Bad address");
  munmap(locked, 4096);
  assert_int_equal(entries_in(folder), 1);
  assert_file_is(there, old_content, sizeof old_content);
}

static void test_targets_that_cannot_be_written(void **state)
{
  (void)state;
  const char *inner = path_of("inner"), *pipe = path_of("pipe");
  char long_name[300];
  memset(long_name, 'n', sizeof long_name);
  long_name[sizeof long_name - 1] = '\0';
  assert_int_equal(mkdir(inner, 0700), 0);
  assert_int_equal(mkfifo(pipe, 0600), 0);
  int descriptors = open_descriptors();
  for (int w = 0; w < LENGTH(writers); w++) {
    assert_failed(writers[w](path_of("none/file"), 4), SHEAF_IO,
                  "cannot open the file's directory: No such file or directory (errno 2)");
    assert_failed(writers[w](path_of("inner/"), 4), SHEAF_IO, "this names no file to write");
    assert_failed(writers[w]("", 4), SHEAF_IO, "this names no file to write");
    assert_failed(writers[w](inner, 4), SHEAF_IO, "is not a regular file; it is left alone");
    assert_failed(writers[w](pipe, 4), SHEAF_IO, "is not a regular file; it is left alone");
    assert_failed(writers[w](path_of(long_name), 4), SHEAF_IO, "File name too long");
    assert_int_equal(entries_in(folder), 2);
    assert_int_equal(entries_in(inner), 0);
  }
  assert_int_equal(open_descriptors(), descriptors);
}

/* With one descriptor left the directory opens, and the temporary file does not. */
static void test_too_few_descriptors_fail_cleanly(void **state)
{
  (void)state;
  const char *path = path_of("new");
  int next = open("/dev/null", O_RDONLY);
  assert_true(next >= 0);
  close(next);
  struct rlimit many, few;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &many), 0);
  for (rlim_t left = 0; left < 2; left++) {
    few = many;
    few.rlim_cur = (rlim_t)next + left;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    sheaf_status status = write_safetensors(path, 4);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &many), 0);
    assert_failed(status, SHEAF_IO,
                  left == 0 ? "cannot open the file's directory: Too many" : "cannot create a tempor");
    int again = open("/dev/null", O_RDONLY);
    assert_int_equal(again, next);
    close(again);
  }
  assert_int_equal(entries_in(folder), 0);
}

static mode_t mode_of(const char *path)
{
  struct stat status;
  assert_int_equal(lstat(path, &status), 0);
  return status.st_mode;
}

static void test_permissions_of_the_target_are_kept(void **state)
{
  (void)state;
  const char *path = path_of("file");
  mode_t mask = umask(027);
  for (int w = 0; w < LENGTH(writers); w++) {
    assert_int_equal(writers[w](path, 4), SHEAF_OK);
    assert_int_equal(mode_of(path), S_IFREG | 0640);
    static const mode_t modes[] = {0600, 0666, 0644, 0400};
    for (int i = 0; i < LENGTH(modes); i++) {
      assert_int_equal(chmod(path, modes[i]), 0);
      assert_int_equal(writers[w](path, 4), SHEAF_OK);
      assert_int_equal(mode_of(path), S_IFREG | modes[i]);
    }
    unlink(path);
  }
  umask(mask);
}

static void test_symbolic_link_is_replaced_not_followed(void **state)
{
  (void)state;
  const char *real = path_of("real"), *link = path_of("link"), *device = path_of("device");
  store(real, old_content, sizeof old_content);
  assert_int_equal(symlink(real, link), 0);
  assert_int_equal(symlink("/dev/null", device), 0);
  assert_int_equal(write_npy(link, 4), SHEAF_OK);
  assert_true(S_ISREG(mode_of(link)));
  assert_file_is(real, old_content, sizeof old_content);
  assert_failed(write_npy(device, 4), SHEAF_IO, "is not a regular file; it is left alone");
  assert_true(S_ISLNK(mode_of(device)));
}

static void test_name_as_long_as_names_can_be(void **state)
{
  (void)state;
  char name[256];
  memset(name, 'n', 255);
  name[255] = '\0';
  const char *path = path_of(name);
  assert_int_equal(write_safetensors(path, 4), SHEAF_OK);
  assert_int_equal(unlink(path), 0);
}

static void test_relative_paths_work(void **state)
{
  (void)state;
  char before[1024];
  assert_non_null(getcwd(before, sizeof before));
  assert_int_equal(chdir(folder), 0);
  assert_int_equal(write_npy("relative", 4), SHEAF_OK);
  sheaf_npy *file;
  assert_int_equal(sheaf_npy_open("relative", &file), SHEAF_OK);
  sheaf_npy_close(file);
  assert_int_equal(unlink("relative"), 0);
  assert_int_equal(chdir(before), 0);
}

/* A mapped file keeps its contents when it is replaced, even by its own tensors. */
static void test_open_file_survives_its_replacement(void **state)
{
  (void)state;
  const char *path = path_of("file");
  static const int32_t values[] = {1, 2, 3};
  int64_t shape[] = {3};
  sheaf_io_tensor tensor = tensor_of("t", 4, 1, shape, values);
  assert_int_equal(sheaf_safetensors_write(path, &tensor, 1, NULL, 0), SHEAF_OK);
  sheaf_safetensors *first, *second;
  assert_int_equal(sheaf_safetensors_open(path, &first), SHEAF_OK);
  assert_int_equal(sheaf_safetensors_write(path, sheaf_safetensors_at(first, 0), 1, NULL, 0), SHEAF_OK);
  assert_int_equal(sheaf_safetensors_open(path, &second), SHEAF_OK);
  assert_same_tensor(sheaf_safetensors_at(first, 0), &tensor);
  assert_same_tensor(sheaf_safetensors_at(second, 0), &tensor);
  sheaf_safetensors_close(first);
  sheaf_safetensors_close(second);
}

/* ---- Failing memory -------------------------------------------------------------------------------------------- */

/* The allocation that fails is number `failing`, counted from 0; -1: none. */
static struct {
  int64_t allocations, failing;
  size_t live;
} memory;

static void *counted_allocate(void *context, size_t bytes, size_t alignment)
{
  (void)context;
  if (memory.allocations++ == memory.failing) return NULL;
  memory.live += bytes;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void counted_release(void *context, void *block, size_t bytes)
{
  (void)context;
  assert_true(memory.live >= bytes);
  memory.live -= bytes;
  free(block);
}

static sheaf_status open_and_close_safetensors(const char *path)
{
  sheaf_safetensors *file;
  sheaf_status status = sheaf_safetensors_open(path, &file);
  if (status != SHEAF_OK) assert_null(file);
  sheaf_safetensors_close(file);
  return status;
}

static sheaf_status open_and_close_npy(const char *path)
{
  sheaf_npy *file;
  sheaf_status status = sheaf_npy_open(path, &file);
  if (status != SHEAF_OK) assert_null(file);
  sheaf_npy_close(file);
  return status;
}

static sheaf_status write_small_safetensors(const char *path) { return write_safetensors(path, 16); }
static sheaf_status write_small_npy(const char *path) { return write_npy(path, 16); }

static void test_every_allocation_may_fail(void **state)
{
  (void)state;
  static const struct {
    sheaf_status (*prepare)(const char *path), (*run)(const char *path);
    int64_t least; /* allocations that the call makes at least */
  } calls[] = {{write_small_safetensors, open_and_close_safetensors, 1},
               {write_small_npy, open_and_close_npy, 1},
               {NULL, write_small_safetensors, 2},
               {NULL, write_small_npy, 0}};
  static const sheaf_allocator counted = {counted_allocate, counted_release, NULL};
  const char *path = path_of("file");
  int descriptors = open_descriptors();
  for (int c = 0; c < LENGTH(calls); c++) {
    if (calls[c].prepare) {
      assert_int_equal(calls[c].prepare(path), SHEAF_OK);
    } else {
      store(path, old_content, sizeof old_content);
    }
    content before = load(path);
    assert_int_equal(sheaf_set_allocator(&counted), SHEAF_OK);
    sheaf_status status = SHEAF_OUT_OF_MEMORY;
    int64_t failing = 0;
    for (; status != SHEAF_OK; failing++) {
      memory.allocations = 0;
      memory.failing = failing;
      status = calls[c].run(path);
      assert_int_equal(memory.live, 0);
      assert_int_equal(entries_in(folder), 1);
      if (memory.allocations <= failing) break; /* none was left to fail */
      assert_failed(status, SHEAF_OUT_OF_MEMORY, "bytes, which could not be allocated");
      assert_file_is(path, before.data, before.bytes);
    }
    assert_int_equal(status, SHEAF_OK);
    assert_true(failing >= calls[c].least);
    assert_int_equal(sheaf_set_allocator(NULL), SHEAF_OK);
    free(before.data);
    unlink(path);
  }
  assert_int_equal(open_descriptors(), descriptors);
  assert_int_equal(mappings(), 0);
}

static void test_refused_files_leave_no_memory_behind(void **state)
{
  (void)state;
  static const sheaf_allocator counted = {counted_allocate, counted_release, NULL};
  memory.failing = -1;
  assert_int_equal(sheaf_set_allocator(&counted), SHEAF_OK);
  test_safetensors_headers_made_by_hand(state);
  assert_int_equal(memory.live, 0);
  test_npy_headers_made_by_hand(state);
  assert_int_equal(memory.live, 0);
  assert_int_equal(sheaf_set_allocator(NULL), SHEAF_OK);
}

#define TEST(test) cmocka_unit_test_teardown(test, empty_folder)

int main(void)
{
  const struct CMUnitTest tests[] = {
      TEST(test_safetensors_round_trip_of_every_dtype_and_rank),
      TEST(test_safetensors_bytes_are_as_specified),
      TEST(test_safetensors_written_tensors_are_aligned),
      TEST(test_safetensors_names_and_metadata_of_any_characters),
      TEST(test_safetensors_many_tensors_are_all_found),
      TEST(test_safetensors_accessors_answer_null_outside),
      TEST(test_safetensors_headers_made_by_hand),
      TEST(test_safetensors_raw_nul_in_header_is_refused),
      TEST(test_safetensors_escapes_are_decoded),
      TEST(test_safetensors_types_without_a_name_are_listed),
      TEST(test_safetensors_header_length_is_checked),
      TEST(test_safetensors_cut_short_anywhere_is_refused),
      TEST(test_safetensors_any_byte_may_be_wrong),
      TEST(test_safetensors_that_change_while_opened_are_refused),
      TEST(test_safetensors_long_names_leave_the_sentence_whole),
      TEST(test_safetensors_misaligned_data_is_handed_out),
      TEST(test_safetensors_vectors_can_be_read),
      TEST(test_npy_round_trip_of_every_dtype_and_rank),
      TEST(test_npy_bytes_are_those_of_numpy),
      TEST(test_npy_headers_made_by_hand),
      TEST(test_npy_magic_version_and_length_are_checked),
      TEST(test_npy_any_byte_may_be_wrong_or_missing),
      TEST(test_null_arguments_are_invalid),
      TEST(test_tensors_that_contradict_themselves_are_not_written),
      TEST(test_names_that_cannot_be_written_are_invalid),
      TEST(test_files_that_cannot_be_opened),
      TEST(test_long_path_leaves_the_sentence_whole),
      TEST(test_failing_write_leaves_the_target_as_it_was),
      TEST(test_unreadable_data_fails_and_leaves_the_target),
      TEST(test_targets_that_cannot_be_written),
      TEST(test_too_few_descriptors_fail_cleanly),
      TEST(test_permissions_of_the_target_are_kept),
      TEST(test_symbolic_link_is_replaced_not_followed),
      TEST(test_name_as_long_as_names_can_be),
      TEST(test_relative_paths_work),
      TEST(test_open_file_survives_its_replacement),
      TEST(test_every_allocation_may_fail),
      TEST(test_refused_files_leave_no_memory_behind),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
