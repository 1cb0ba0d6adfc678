/* bit_number.h: numbers, canonical sums and operand addresses of the bit oracle, straight from their definitions.
 *
 * Every value travels as a double. With `wide` false the arithmetic is that of f32: operands are f32 values held
 * exactly by the double, and each operation rounds once to f32. With `wide` true it is that of f64.
 */
#ifndef SHEAF_TESTS_BIT_NUMBER_H
#define SHEAF_TESTS_BIT_NUMBER_H

#include <sheaf/plan.h>
#include <stdbool.h>

/* ---- Elements ------------------------------------------------------------------------------------------------- */

/* f16 and bf16 by integer arithmetic: exact when widened, to nearest (ties to even) when narrowed. */
float bit_from_f16(uint16_t bits);
float bit_from_bf16(uint16_t bits);
uint16_t bit_to_f16(float value);
uint16_t bit_to_bf16(float value);

size_t bit_element_bytes(sheaf_dtype dtype);

/* Element `element` of an array of F32 F64 F16 BF16. */
double bit_load(sheaf_dtype dtype, const void *base, int64_t element);
void bit_store(sheaf_dtype dtype, void *base, int64_t element, double value);

/* Element `element` of an array of I32 I64. */
int64_t bit_load_index(sheaf_dtype dtype, const void *base, int64_t element);
void bit_store_index(sheaf_dtype dtype, void *base, int64_t element, int64_t value);

/* ---- Arithmetic of the accumulator ------------------------------------------------------------------------------ */

double bit_add(bool wide, double a, double b);
double bit_subtract(bool wide, double a, double b);
double bit_multiply(bool wide, double a, double b);
double bit_divide(bool wide, double a, double b);
double bit_fma(bool wide, double a, double b, double c);

/* A count, rounded once to the accumulator. */
double bit_count(bool wide, int64_t count);

/* The canonical sum of terms[0 .. count - 1], of weights[k] * terms[k] by fma when weights is not NULL. A term k with
 * present[k] false (present NULL: none) keeps its place and is left out. Zero comes out as +0. */
double bit_sum(bool wide, const double *terms, const double *weights, const bool *present, int64_t count);

/* The canonical product. */
double bit_product(bool wide, const double *terms, int64_t count);

/* The canonical dot product of `dim` columns. */
double bit_dot(bool wide, const double *a, const double *b, int64_t dim);

/* ---- Operands --------------------------------------------------------------------------------------------------- */

/* The address of element (row, 0) of one problem: `row` counts over all dimensions but the last (and but the leading
 * one when batched). */
void *bit_row(const sheaf_operand *operand, bool batched, int64_t problem, int64_t row);

/* The address of element `entry` of one problem, counted over all dimensions. */
void *bit_entry(const sheaf_operand *operand, bool batched, int64_t problem, int64_t entry);

/* ---- Lists ------------------------------------------------------------------------------------------------------ */

/* Positions 0 .. count - 1 listed by key, each list in increasing order; positions with a negative key are in none. */
typedef struct bit_groups {
  int64_t *start; /* groups + 1 */
  int64_t *position;
} bit_groups;

bit_groups bit_groups_make(const int64_t *keys, int64_t count, int64_t groups);
void bit_groups_free(bit_groups *groups);

/* malloc that never returns NULL. */
void *bit_alloc(int64_t count, size_t bytes);

#endif
