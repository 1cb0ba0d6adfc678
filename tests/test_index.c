/* test_index.c: the index of sharded safetensors: written and read back, as others write it, and all that is wrong. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sheaf/io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[] = "/tmp/sheaf_test_index_XXXXXX";

static int make_file(void **state)
{
  (void)state;
  int file = mkstemp(path);
  if (file >= 0) close(file);
  return file < 0;
}

static int remove_file(void **state)
{
  (void)state;
  return unlink(path);
}

static void put(const char *text, size_t bytes)
{
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, bytes, file), bytes);
  assert_int_equal(fclose(file), 0);
}

static sheaf_status open_text(const char *text, size_t bytes, sheaf_safetensors_index **index)
{
  put(text, bytes);
  return sheaf_safetensors_index_open(path, index);
}

static void test_an_index_is_read_as_it_was_written(void **state)
{
  (void)state;
  const sheaf_index_entry entries[] = {
      {"a", "x-1.safetensors"}, {"b \"quoted\" \\ \n \xc3\xa9", "x-2.safetensors"}, {"", "y"}};
  sheaf_safetensors_index *index;
  assert_int_equal(sheaf_safetensors_index_write(path, entries, 3, 1234567890123), SHEAF_OK);
  assert_int_equal(sheaf_safetensors_index_open(path, &index), SHEAF_OK);
  assert_int_equal(sheaf_safetensors_index_count(index), 3);
  for (int i = 0; i < 3; i++) {
    assert_string_equal(sheaf_safetensors_index_at(index, i).name, entries[i].name);
    assert_string_equal(sheaf_safetensors_index_at(index, i).file, entries[i].file);
  }
  assert_null(sheaf_safetensors_index_at(index, 3).name);
  assert_null(sheaf_safetensors_index_at(index, -1).file);
  sheaf_safetensors_index_close(index);
  assert_int_equal(sheaf_safetensors_index_write(path, NULL, 0, 0), SHEAF_OK);
  assert_int_equal(sheaf_safetensors_index_open(path, &index), SHEAF_OK);
  assert_int_equal(sheaf_safetensors_index_count(index), 0);
  sheaf_safetensors_index_close(index);
}

static const char other[] =
    "{\"metadata\": {\"total_size\": 12.5e3, \"list\": [1, {\"}\": \"]\"}, null], \"flag\": true},\n"
    " \"weight_map\": {\"layer.0\": \"m-00001-of-00002.safetensors\",\n"
    "  \"layer.1\": \"m-00002-of-00002.safetensors\"}, \"more\": -1}\n";

static void test_what_others_add_is_passed_over(void **state)
{
  (void)state;
  sheaf_safetensors_index *index;
  assert_int_equal(open_text(other, sizeof other - 1, &index), SHEAF_OK);
  assert_int_equal(sheaf_safetensors_index_count(index), 2);
  assert_string_equal(sheaf_safetensors_index_at(index, 1).file, "m-00002-of-00002.safetensors");
  sheaf_safetensors_index_close(index);
}

/* What nobody asks for has to be JSON all the same. */
static void test_what_others_add_is_json(void **state)
{
  (void)state;
  static const char *const right[] = {"-0",    "0.5e+10",
                                      "1E-2",  "\"\\u00e9\"",
                                      "[]",    "{}",
                                      "[[]]",  "{\"a\": {\"b\": [{}, 1]}}",
                                      "false", "[null, [true], {\"x\": -1.25}]"};
  static const char *const wrong[] = {"01",    "1.",   ".5",      "+1",     "1e",          "-",        "tru", "nulll",
                                      "[1 2]", "[1,]", "{\"a\"}", "{1: 2}", "{\"a\": 1,}", "[}",       "{]",  "]",
                                      "'a'",   "[1",   "NaN",     "",       "\"\t\"",      "truefalse"};
  char text[256];
  sheaf_safetensors_index *index;
  for (int before = 0; before < 2; before++) { /* the map comes after it, or before it */
    const char *form = before ? "{\"x\": %s, \"weight_map\": {}}" : "{\"weight_map\": {}, \"x\": %s}";
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
      int length = snprintf(text, sizeof text, form, right[i]);
      assert_int_equal(open_text(text, (size_t)length, &index), SHEAF_OK);
      sheaf_safetensors_index_close(index);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
      int length = snprintf(text, sizeof text, form, wrong[i]);
      assert_int_equal(open_text(text, (size_t)length, &index), SHEAF_IO);
    }
  }
  for (int depth = 63; depth <= 66; depth++) { /* 64 levels are taken */
    char brackets[160];
    memset(brackets, '[', (size_t)depth);
    memset(brackets + depth, ']', (size_t)depth);
    brackets[2 * depth] = '\0';
    int length = snprintf(text, sizeof text, "{\"x\": %s, \"weight_map\": {}}", brackets);
    assert_int_equal(open_text(text, (size_t)length, &index), depth <= 64 ? SHEAF_OK : SHEAF_IO);
    sheaf_safetensors_index_close(index);
  }
}

static void test_every_cut_is_noticed(void **state)
{
  (void)state;
  for (size_t bytes = 0; bytes + 2 < sizeof other; bytes++) { /* the last byte is a newline */
    sheaf_safetensors_index *index;
    assert_int_equal(open_text(other, bytes, &index), SHEAF_IO);
    assert_null(index);
  }
}

static void test_wrong_indices_are_refused(void **state)
{
  (void)state;
  static const char *const wrong[] = {
      "[]",
      "{}",
      "{\"weight_map\": []}",
      "{\"weight_map\": {\"a\": 1}}",
      "{\"weight_map\": {\"a\": \"../x\"}}",
      "{\"weight_map\": {\"a\": \"/etc/passwd\"}}",
      "{\"weight_map\": {\"a\": \"\"}}",
      "{\"weight_map\": {\"a\": \"x\",}}",
      "{\"weight_map\": {\"a\": \"x\"}} more",
      "{\"weight_map\": {\"a\": \"x\"}, \"weight_map\": {}}",
      "{\"weight_map\": {\"a\": \"x\"",
      "{\"weight_map\": {\"\\ud800\": \"x\"}}",
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    sheaf_safetensors_index *index;
    assert_int_equal(open_text(wrong[i], strlen(wrong[i]), &index), SHEAF_IO);
    assert_null(index);
    assert_non_null(strstr(sheaf_last_error(), path));
  }
  const sheaf_index_entry bad = {"a", "b/c"};
  assert_int_equal(sheaf_safetensors_index_write(path, &bad, 1, 0), SHEAF_INVALID_PROBLEM);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_an_index_is_read_as_it_was_written),
      cmocka_unit_test(test_what_others_add_is_passed_over),
      cmocka_unit_test(test_what_others_add_is_json),
      cmocka_unit_test(test_every_cut_is_noticed),
      cmocka_unit_test(test_wrong_indices_are_refused),
  };
  return cmocka_run_group_tests(tests, make_file, remove_file);
}
