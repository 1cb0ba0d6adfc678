/* test_io_safetensors_hostile.c: safetensors made by hand: good, cut short, wrong in any byte, changing meanwhile. */
#define _GNU_SOURCE
/* cmocka.h needs the first four before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <sheaf/io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/io_impl.h"
#include "support/io_files.h"

#ifndef SHEAF_TEST_VECTORS
#define SHEAF_TEST_VECTORS "tests/vectors"
#endif

/* ---- safetensors: files made by hand --------------------------------------------------------------------------- */

#define T(name, dtype, shape, offsets) \
  "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define NINE "1,1,1,1,1,1,1,1,1"

static const io_header_case header_cases[] = {
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
    const io_header_case *row = &header_cases[i];
    io_content made = io_safetensors_of(row->header, strlen(row->header), row->data_bytes);
    sheaf_safetensors *file = (sheaf_safetensors *)&made;
    sheaf_status status = sheaf_safetensors_open_memory(made.data, made.bytes, &file);
    if (row->status == SHEAF_OK) {
      if (status != SHEAF_OK) fail_msg("%s: %s", row->header, sheaf_last_error());
      sheaf_safetensors_close(file);
    } else {
      io_expect_failure(status, row->status, row->words);
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
    io_content made = io_safetensors_of(rows[i].header, rows[i].bytes, 0);
    sheaf_safetensors *file;
    io_expect_failure(sheaf_safetensors_open_memory(made.data, made.bytes, &file), SHEAF_IO, rows[i].words);
    free(made.data);
  }
}

static void test_safetensors_escapes_are_decoded(void **state)
{
  (void)state;
  const char *header =
      "{\"__metadata__\":{\"\\\"\\\\\\/\\b\\f\\n\\r\\t\":\"\\u0041\\u00e9\\u20AC\\uD83D\\uDE00\\uffff\"}}";
  io_content made = io_safetensors_of(header, strlen(header), 0);
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
      io_content made = io_safetensors_of(header, strlen(header), (size_t)bytes);
      sheaf_safetensors *file;
      sheaf_status status = sheaf_safetensors_open_memory(made.data, made.bytes, &file);
      if (off != 0) {
        io_expect_failure(status, SHEAF_IO, "but shape and dtype");
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
    io_content made = io_safetensors_of("{}", 2, 0);
    memcpy(made.data, &rows[i].length, 8);
    sheaf_safetensors *file;
    io_expect_failure(sheaf_safetensors_open_memory(made.data, made.bytes, &file), SHEAF_IO, rows[i].words);
    free(made.data);
  }
}

static const char sound_header[] = "{\"__metadata__\":{\"key\":\"v\\u00e4lue\"}," T("a", "F32", "[2,1]", "[0,8]") "," T(
    "b\xc3\xa9", "U8", "[3]", "[10,13]") "," T("c", "I16", "[]", "[8,10]") "}  ";

static void test_safetensors_cut_short_anywhere_is_refused(void **state)
{
  (void)state;
  io_content whole = io_safetensors_of(sound_header, sizeof sound_header - 1, 13);
  for (size_t bytes = 0; bytes <= whole.bytes; bytes++) {
    io_content cut = io_copy(whole.data, bytes);
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
  io_content made = io_safetensors_of(sound_header, sizeof sound_header - 1, 13);
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
  io_content made = io_safetensors_of(sound_header, sizeof sound_header - 1, 13);
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
    if (missing > 0) io_expect_failure(status, SHEAF_IO, "the file was changed while it was being opened");
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
  io_content made = io_safetensors_of(header, strlen(header), 0);
  sheaf_safetensors *file;
  io_expect_failure(sheaf_safetensors_open_memory(made.data, made.bytes, &file), SHEAF_IO,
                    "\xc3\xa9': the dtype 'F99'");
  free(made.data);
}

static void test_safetensors_misaligned_data_is_handed_out(void **state)
{
  (void)state;
  const char *header = "{" T("a", "F32", "[2]", "[0,8]") "}";
  for (size_t spaces = 0; spaces < 4; spaces++) {
    char padded[128];
    snprintf(padded, sizeof padded, "%s%*s", header, (int)spaces, "");
    io_content made = io_safetensors_of(padded, strlen(padded), 8);
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

static void test_refused_headers_leave_no_memory_behind(void **state)
{
  io_count_memory(-1);
  test_safetensors_headers_made_by_hand(state);
  assert_int_equal(io_memory.live, 0);
  io_count_no_more();
}

#define TEST(test) cmocka_unit_test_teardown(test, io_empty_folder)

int main(void)
{
  const struct CMUnitTest tests[] = {
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
      TEST(test_refused_headers_leave_no_memory_behind),
  };
  return cmocka_run_group_tests(tests, io_make_folder, io_remove_folder);
}
