/* test_io_npy.c: npy: round trips, the bytes of NumPy, headers made by hand, files wrong in any byte. */
#define _GNU_SOURCE
/* cmocka.h needs the first four before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sheaf/io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/io_files.h"

/* ---- npy ------------------------------------------------------------------------------------------------------- */

static void test_npy_round_trip_of_every_dtype_and_rank(void **state)
{
  (void)state;
  unsigned char data[1024];
  for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 91 + 5);
  const char *path = io_path("round.npy");
  for (int row = 0; row < LENGTH(io_dtypes); row++) {
    for (int rank = 0; rank <= SHEAF_IO_MAX_RANK; rank++) {
      for (int s = 0; s < LENGTH(io_shapes); s++) {
        sheaf_io_tensor tensor = io_tensor(NULL, row, rank, io_shapes[s], data);
        assert_int_equal(sheaf_npy_write(path, &tensor), SHEAF_OK);
        sheaf_npy *file;
        assert_int_equal(sheaf_npy_open(path, &file), SHEAF_OK);
        const sheaf_io_tensor *read = sheaf_npy_tensor(file);
        io_expect_tensor(read, &tensor);
        assert_string_equal(read->name, "");
        assert_int_equal((uintptr_t)read->data % 64, 0);
        sheaf_npy_close(file);
      }
    }
  }
  assert_int_equal(io_mappings(), 0);
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
  const char *path = io_path("numpy.npy");
  for (int i = 0; i < LENGTH(rows); i++) {
    sheaf_io_tensor tensor = io_tensor("", rows[i].dtype_row, rows[i].rank, rows[i].shape, data);
    assert_int_equal(sheaf_npy_write(path, &tensor), SHEAF_OK);
    unsigned char expected[256];
    memset(expected, ' ', 128);
    memcpy(expected, "\x93NUMPY\x01\x00\x76\x00", 10);
    memcpy(expected + 10, rows[i].dict, strlen(rows[i].dict));
    expected[127] = '\n';
    memcpy(expected + 128, data, tensor.bytes);
    io_expect_content(path, expected, 128 + tensor.bytes);
  }
}

#define D(descr, order, shape) "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }\n"

#define NINE "1,1,1,1,1,1,1,1,1"

static const io_header_case dict_cases[] = {
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
      const io_header_case *row = &dict_cases[i];
      if (major > 1 && strstr(row->words, "byte 10:")) continue; /* later versions have longer lengths */
      io_content made = io_npy_of(major, row->header, row->data_bytes);
      sheaf_npy *file = (sheaf_npy *)&made;
      sheaf_status status = sheaf_npy_open_memory(made.data, made.bytes, &file);
      if (row->status == SHEAF_OK) {
        if (status != SHEAF_OK) fail_msg("%s: %s", row->header, sheaf_last_error());
        assert_ptr_equal(sheaf_npy_tensor(file)->data, made.data + made.bytes - row->data_bytes);
        assert_int_equal(sheaf_npy_tensor(file)->bytes, row->data_bytes);
        sheaf_npy_close(file);
      } else {
        io_expect_failure(status, row->status, row->words);
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
    io_content made = io_copy(rows[i].bytes, rows[i].count);
    sheaf_npy *file;
    io_expect_failure(sheaf_npy_open_memory(made.data, made.bytes, &file), rows[i].status, rows[i].words);
    assert_null(file);
    free(made.data);
  }
}

static void test_npy_any_byte_may_be_wrong_or_missing(void **state)
{
  (void)state;
  io_content made = io_npy_of(2, D("'<f4'", "False", "(2, 1)"), 8);
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
    io_content cut = io_copy(made.data, bytes);
    sheaf_npy *file;
    assert_int_equal(sheaf_npy_open_memory(cut.data, bytes, &file), SHEAF_IO);
    free(cut.data);
  }
  free(made.data);
}

static void test_refused_headers_leave_no_memory_behind(void **state)
{
  io_count_memory(-1);
  test_npy_headers_made_by_hand(state);
  assert_int_equal(io_memory.live, 0);
  io_count_no_more();
}

#define TEST(test) cmocka_unit_test_teardown(test, io_empty_folder)

int main(void)
{
  const struct CMUnitTest tests[] = {
      TEST(test_npy_round_trip_of_every_dtype_and_rank),
      TEST(test_npy_bytes_are_those_of_numpy),
      TEST(test_npy_headers_made_by_hand),
      TEST(test_npy_magic_version_and_length_are_checked),
      TEST(test_npy_any_byte_may_be_wrong_or_missing),
      TEST(test_refused_headers_leave_no_memory_behind),
  };
  return cmocka_run_group_tests(tests, io_make_folder, io_remove_folder);
}
