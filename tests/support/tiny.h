/* tiny.h: problems written out by hand: small tensors from lists of numbers, run and compared number by number.
 *
 * Tensors are owned by a list that tiny_free_all empties (the teardown of each test). Expectations fail the cmocka test
 * they are in. A number is compared with its sign of zero; any NaN equals any NaN.
 */
#ifndef SHEAF_TESTS_TINY_H
#define SHEAF_TESTS_TINY_H

#include <sheaf/plan.h>
#include <stdbool.h>

enum { TINY_DIMENSIONS = 4 };

typedef struct tiny {
  DLTensor tensor;
  sheaf_dtype dtype;
  int64_t shape[TINY_DIMENSIONS];
  int64_t strides[TINY_DIMENSIONS];
  int64_t count; /* elements in memory */
  unsigned char *data;
  struct tiny *next;
} tiny;

/* The four element types and two index types that tests walk. */
extern const sheaf_dtype tiny_elements[4];
extern const sheaf_dtype tiny_index_types[2];

/* Runs its body with every element type `T` and index type `I`. */
#define WALK_TYPES(T, I)                                                                                   \
  for (int walk_ = 0; walk_ < 8; walk_++)                                                                  \
    for (sheaf_dtype T = tiny_elements[walk_ / 2], I = tiny_index_types[walk_ % 2]; T != SHEAF_DTYPE_NONE; \
         T = SHEAF_DTYPE_NONE)

/* A tensor of floating-point elements, rounded from the list; values NULL: every element is 7. */
tiny *tiny_matrix(sheaf_dtype dtype, int64_t rows, int64_t columns, const double *values);
tiny *tiny_vector(sheaf_dtype dtype, int64_t count, const double *values);

/* A tensor of integers (I32 I64 U8); values NULL: every element is 7. */
tiny *tiny_ints(sheaf_dtype dtype, int64_t count, const int64_t *values);
tiny *tiny_int_matrix(sheaf_dtype dtype, int64_t rows, int64_t columns, const int64_t *values);

/* Gives a tensor another shape of the same elements. */
tiny *tiny_reshape(tiny *t, int rank, const int64_t *shape);

/* Makes its data NULL, which is legal for no elements. */
tiny *tiny_null(tiny *t);

/* The operand of a run, with its bytes. */
sheaf_operand tiny_operand(const tiny *t);

void tiny_free_all(void);

/* cmocka teardown. */
int tiny_teardown(void **state);

/* Element i in memory. */
double tiny_number(const tiny *t, int64_t i);
int64_t tiny_integer(const tiny *t, int64_t i);

/* Lists as arguments: NUMBERS(1, 2, 3), INTEGERS(0, -1). */
#define NUMBERS(...) ((const double[]){__VA_ARGS__})
#define INTEGERS(...) ((const int64_t[]){__VA_ARGS__})

/* Fails unless the elements are these. */
#define expect_numbers(t, ...)                                                                                     \
  tiny_expect_numbers(t, NUMBERS(__VA_ARGS__), (int64_t)(sizeof(NUMBERS(__VA_ARGS__)) / sizeof(double)), __FILE__, \
                      __LINE__)
#define expect_integers(t, ...)                                                                                        \
  tiny_expect_integers(t, INTEGERS(__VA_ARGS__), (int64_t)(sizeof(INTEGERS(__VA_ARGS__)) / sizeof(int64_t)), __FILE__, \
                       __LINE__)
void tiny_expect_numbers(const tiny *t, const double *values, int64_t count, const char *file, int line);
void tiny_expect_integers(const tiny *t, const int64_t *values, int64_t count, const char *file, int line);

/* Fails unless every element still is 7. */
#define expect_untouched(t) tiny_expect_untouched(t, __FILE__, __LINE__)
void tiny_expect_untouched(const tiny *t, const char *file, int line);

/* Fails unless the report is this. */
#define expect_report(report, count, position, value) \
  tiny_expect_report(report, count, position, value, __FILE__, __LINE__)
void tiny_expect_report(const sheaf_index_report *report, int64_t count, int64_t position, int64_t value,
                        const char *file, int line);

/* Selects, runs and frees; the first status that is not OK. `threads` of the preference: 1. */
sheaf_status tiny_run_embedding(const sheaf_embedding_desc *desc, const sheaf_embedding_args *args);
sheaf_status tiny_run_segment(const sheaf_segment_desc *desc, const sheaf_segment_args *args);

/* Fails with the library's error text unless a status is OK, or unless it is the one expected. */
#define expect_ok(status) tiny_expect_status(status, SHEAF_OK, __FILE__, __LINE__)
#define expect_status(status, expected) tiny_expect_status(status, expected, __FILE__, __LINE__)
void tiny_expect_status(sheaf_status status, sheaf_status expected, const char *file, int line);

/* Descriptors with the types set; every other field is 0. */
sheaf_embedding_desc tiny_embedding(sheaf_embedding_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype);
sheaf_segment_desc tiny_segment(sheaf_segment_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype);

#endif
