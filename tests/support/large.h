/* large.h: memory and operands for tests of sizes past 2^31.
 *
 * Address space is not memory: tables of sheaf_table_alloc take memory where they are written, and long inputs can be
 * one small file mapped again and again. Expectations fail the cmocka test they are in.
 */
#ifndef SHEAF_TESTS_LARGE_H
#define SHEAF_TESTS_LARGE_H

#include <sheaf/plan.h>

#include "environment.h"

#define TWO_31 ((int64_t)1 << 31)

/* The rows and columns of tables, gradients and outputs past 2^31 elements, of which this many rows are looked at. */
enum { LARGE_DIM = 64, LARGE_SAMPLES = 96 };
#define LARGE_ROWS (((int64_t)1 << 25) + 1000)

/* Rows on both sides of every power of two of elements and bytes, both ends, and random ones. */
void large_choose_rows(int32_t rows[LARGE_SAMPLES], int64_t row_bytes);

/* MiB that could be allocated now. */
int64_t large_available(void);

/* Skips the test unless it is asked for and there is memory for it. */
#define NEED_MIB(mib)                                                                                            \
  do {                                                                                                           \
    if (!is_switched_on("SHEAF_TEST_HUGE")) {                                                                    \
      print_message("only with SHEAF_TEST_HUGE=1\n");                                                            \
      skip();                                                                                                    \
    }                                                                                                            \
    if (large_available() < (mib) + 1024) {                                                                      \
      print_message("needs %d MiB of memory, %lld are available\n", (mib) + 1024, (long long)large_available()); \
      skip();                                                                                                    \
    }                                                                                                            \
  } while (0)

/* Zeroed memory of sheaf_table_alloc. */
void *large_table(size_t bytes);

/* Address space without memory behind it yet; munmap gives it back. */
char *large_reserve(size_t bytes);

/* Puts a copy of `bytes` bytes (whole pages) into a file and maps it over at .. at + length, again and again. Pages
 * that are written later become private. A process can have some 60000 mappings. */
void large_map_repeatedly(char *at, size_t length, const void *content, size_t bytes);

/* A tensor [rows, columns], or [rows] where columns is -1, and the operand it makes. int8: columns are packed bytes. */
typedef struct large_tensor {
  DLTensor dl;
  int64_t shape[2];
} large_tensor;
sheaf_operand large_operand(large_tensor *tensor, sheaf_dtype dtype, void *data, int64_t rows, int64_t columns);

#endif
