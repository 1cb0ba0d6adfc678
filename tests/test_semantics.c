/* test_semantics.c: the rules of lookups and bags, one by one, on problems small enough to work out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "support/tiny.h"

/* One problem on the table (1 2, 3 4, 5 6, -7 8), with every output that its kind has. */
typedef struct call {
  sheaf_embedding_desc desc;
  sheaf_embedding_args args;
  tiny *table, *out, *arg, *table_grad, *weights_grad;
  sheaf_index_report report;
} call;

static const double rows[] = {1, 2, 3, 4, 5, 6, -7, 8};

static void give_table(call *c, int64_t count, int64_t dim, const double *values)
{
  c->desc.rows = count;
  c->desc.dim = dim;
  c->table = tiny_matrix(c->desc.dtype, count, dim, values);
  c->args.table = tiny_operand(c->table);
}

static call begin(sheaf_embedding_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype)
{
  call c = {.desc = tiny_embedding(kind, dtype, index_dtype), .args = SHEAF_EMBEDDING_ARGS_INIT};
  give_table(&c, 4, 2, rows);
  return c;
}

static void give_indices(call *c, int64_t count, const int64_t *indices)
{
  c->desc.indices = count;
  c->args.indices = tiny_operand(tiny_ints(c->desc.index_dtype, count, indices));
}

static void give_offsets(call *c, int64_t count, const int64_t *offsets)
{
  c->desc.bags = count;
  c->args.offsets = tiny_operand(tiny_ints(c->desc.index_dtype, count, offsets));
}

static void give_weights(call *c, const double *weights)
{
  c->desc.weighted = 1;
  c->args.weights = tiny_operand(tiny_vector(c->desc.dtype, c->desc.indices, weights));
}

static void give_grad_out(call *c, int64_t count, const double *values)
{
  c->args.grad_out = tiny_operand(tiny_matrix(c->desc.dtype, count, c->desc.dim, values));
}

static bool is_backward(const call *c)
{
  return c->desc.kind == SHEAF_LOOKUP_BACKWARD || c->desc.kind == SHEAF_BAG_SUM_BACKWARD ||
         c->desc.kind == SHEAF_BAG_MEAN_BACKWARD || c->desc.kind == SHEAF_BAG_MAX_BACKWARD;
}

/* Gives outputs full of 7 (a table_grad that is given already stays) and runs. */
static sheaf_status run(call *c)
{
  c->args.report = &c->report;
  if (!is_backward(c)) {
    c->out =
        tiny_matrix(c->desc.dtype, c->desc.kind == SHEAF_LOOKUP ? c->desc.indices : c->desc.bags, c->desc.dim, NULL);
    c->args.out = tiny_operand(c->out);
    if (c->desc.kind == SHEAF_BAG_MAX) {
      c->arg = tiny_int_matrix(c->desc.index_dtype, c->desc.bags, c->desc.dim, NULL);
      c->args.arg = tiny_operand(c->arg);
    }
    return tiny_run_embedding(&c->desc, &c->args);
  }
  if (c->table_grad == NULL) {
    c->table_grad = tiny_matrix(c->desc.dtype, c->desc.rows, c->desc.dim, NULL);
  }
  c->args.table_grad = tiny_operand(c->table_grad);
  if (c->desc.weighted) {
    c->weights_grad = tiny_vector(c->desc.dtype, c->desc.indices, NULL);
    c->args.weights_grad = tiny_operand(c->weights_grad);
  } else {
    c->args.table.tensor = NULL;
  }
  return tiny_run_embedding(&c->desc, &c->args);
}

static call bags(sheaf_embedding_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype, int64_t count,
                 const int64_t *indices, int64_t bag_count, const int64_t *offsets)
{
  call c = begin(kind, dtype, index_dtype);
  give_indices(&c, count, indices);
  give_offsets(&c, bag_count, offsets);
  return c;
}

/* ---- Lookup ------------------------------------------------------------------------------------------------------ */

static void test_lookup_copies_rows(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = begin(SHEAF_LOOKUP, T, I);
    give_indices(&c, 3, INTEGERS(2, 0, 2));
    expect_ok(run(&c));
    expect_numbers(c.out, 5, 6, 1, 2, 5, 6);
    expect_report(&c.report, 0, -1, 0);
  }
}

/* A NaN keeps its sign and payload, a signalling one stays so, and -0 keeps its sign. */
static void test_lookup_and_max_copy_bits(void **state)
{
  (void)state;
  static const uint64_t patterns[4][3] = {{0x7F800001, 0xFFC12345, 0x80000000},
                                          {0x7FF0000000000001, 0xFFF8123456789ABC, 0x8000000000000000},
                                          {0x7C01, 0xFE45, 0x8000},
                                          {0x7F81, 0xFFC3, 0x8000}};
  static const sheaf_embedding_kind kinds[] = {SHEAF_LOOKUP, SHEAF_BAG_MAX};
  for (int t = 0; t < 4; t++) {
    for (int k = 0; k < 2; k++) {
      call c = begin(kinds[k], tiny_elements[t], SHEAF_I64);
      give_table(&c, 1, 3, NUMBERS(0, 0, 0));
      const size_t bytes = (size_t)sheaf_dtype_row_bytes(tiny_elements[t], 1);
      for (size_t d = 0; d < 3; d++) {
        memcpy(c.table->data + d * bytes, &patterns[t][d], bytes);
      }
      give_indices(&c, 1, INTEGERS(0));
      if (kinds[k] == SHEAF_BAG_MAX) {
        give_offsets(&c, 1, INTEGERS(0));
      }
      expect_ok(run(&c));
      assert_memory_equal(c.out->data, c.table->data, 3 * bytes);
    }
  }
}

static void test_lookup_padding_is_zero_by_default(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = begin(SHEAF_LOOKUP, T, I);
    c.desc.has_padding = 1;
    c.desc.padding_idx = 3;
    give_indices(&c, 2, INTEGERS(3, 1));
    expect_ok(run(&c));
    expect_numbers(c.out, 0, 0, 3, 4);
    expect_report(&c.report, 0, -1, 0);
  }
}

static void test_lookup_padding_row_gives_the_stored_row(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = begin(SHEAF_LOOKUP, T, I);
    c.desc.has_padding = 1;
    c.desc.padding_idx = 3;
    c.desc.padding = SHEAF_PADDING_ROW;
    give_indices(&c, 2, INTEGERS(3, 1));
    expect_ok(run(&c));
    expect_numbers(c.out, -7, 8, 3, 4);
  }
}

static void test_lookup_bad_index_is_a_zero_row_and_reported(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = begin(SHEAF_LOOKUP, T, I);
    give_indices(&c, 5, INTEGERS(1, 4, -1, 0, INT32_MIN));
    expect_ok(run(&c));
    expect_numbers(c.out, 3, 4, 0, 0, 0, 0, 1, 2, 0, 0);
    expect_report(&c.report, 3, 1, 4);
  }
}

/* An i64 index whose low half looks good is bad all the same. */
static void test_wide_bad_index_is_not_truncated(void **state)
{
  (void)state;
  for (int t = 0; t < 4; t++) {
    call c = begin(SHEAF_LOOKUP, tiny_elements[t], SHEAF_I64);
    give_indices(&c, 3, INTEGERS((INT64_C(1) << 32) + 1, INT64_MIN + 1, INT64_MAX));
    expect_ok(run(&c));
    expect_numbers(c.out, 0, 0, 0, 0, 0, 0);
    expect_report(&c.report, 3, 0, (INT64_C(1) << 32) + 1);
  }
}

static void test_lookup_takes_indices_of_any_rank(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    for (int rank = 0; rank <= 2; rank++) {
      const int64_t count = rank == 0 ? 1 : 4;
      const int64_t shape[3] = {rank == 1 ? 4 : 2, 2, 2};
      call c = begin(SHEAF_LOOKUP, T, I);
      c.desc.indices = count;
      tiny *indices = tiny_reshape(tiny_ints(I, count, INTEGERS(2, 0, 1, 2)), rank, shape);
      const int64_t out_shape[3] = {rank == 0 ? 2 : shape[0], 2, 2};
      c.out = tiny_reshape(tiny_matrix(T, count, 2, NULL), rank + 1, out_shape);
      c.args.indices = tiny_operand(indices);
      c.args.out = tiny_operand(c.out);
      expect_ok(tiny_run_embedding(&c.desc, &c.args));
      if (rank == 0) {
        expect_numbers(c.out, 5, 6);
      } else {
        expect_numbers(c.out, 5, 6, 1, 2, 3, 4, 5, 6);
      }
    }
  }
}

/* ---- Bags, forward ----------------------------------------------------------------------------------------------- */

static void test_bags_reduce_their_rows_and_empty_ones_give_zero(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call sum = bags(SHEAF_BAG_SUM, T, I, 5, INTEGERS(0, 1, 2, 3, 3), 3, INTEGERS(0, 3, 3));
    expect_ok(run(&sum));
    expect_numbers(sum.out, 9, 12, 0, 0, -14, 16);
    call mean = bags(SHEAF_BAG_MEAN, T, I, 5, INTEGERS(0, 1, 2, 3, 3), 3, INTEGERS(0, 3, 3));
    expect_ok(run(&mean));
    expect_numbers(mean.out, 3, 4, 0, 0, -7, 8);
    call max = bags(SHEAF_BAG_MAX, T, I, 5, INTEGERS(0, 1, 2, 3, 3), 3, INTEGERS(0, 3, 3));
    expect_ok(run(&max));
    expect_numbers(max.out, 5, 6, 0, 0, -7, 8);
    expect_integers(max.arg, 2, 2, -1, -1, 3, 3);
  }
}

static void test_bag_max_arg_is_optional(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = bags(SHEAF_BAG_MAX, T, I, 2, INTEGERS(3, 0), 1, INTEGERS(0));
    c.out = tiny_matrix(T, 1, 2, NULL);
    c.args.out = tiny_operand(c.out);
    expect_ok(tiny_run_embedding(&c.desc, &c.args));
    expect_numbers(c.out, 1, 8);
  }
}

/* The padding row is NaN: it would show even when multiplied by zero. */
static void test_bag_skips_padding_and_bad_entries_and_does_not_count_them(void **state)
{
  (void)state;
  static const sheaf_embedding_kind kinds[] = {SHEAF_BAG_SUM, SHEAF_BAG_MEAN, SHEAF_BAG_MAX};
  static const double expected[3][2] = {{6, 8}, {3, 4}, {5, 6}};
  WALK_TYPES(T, I)
  {
    for (int k = 0; k < 3; k++) {
      call c = bags(kinds[k], T, I, 4, INTEGERS(3, 0, 9, 2), 1, INTEGERS(0));
      give_table(&c, 4, 2, NUMBERS(1, 2, 3, 4, 5, 6, NAN, NAN));
      c.desc.has_padding = 1;
      c.desc.padding_idx = 3;
      expect_ok(run(&c));
      expect_numbers(c.out, expected[k][0], expected[k][1]);
      expect_report(&c.report, 1, 2, 9);
    }
  }
}

static void test_bag_with_every_entry_skipped_is_zero(void **state)
{
  (void)state;
  static const sheaf_embedding_kind kinds[] = {SHEAF_BAG_SUM, SHEAF_BAG_MEAN, SHEAF_BAG_MAX};
  WALK_TYPES(T, I)
  {
    for (int k = 0; k < 3; k++) {
      call c = bags(kinds[k], T, I, 3, INTEGERS(0, -5, 0), 1, INTEGERS(0));
      c.desc.has_padding = 1;
      c.desc.padding_idx = 0;
      expect_ok(run(&c));
      expect_numbers(c.out, 0, 0);
      expect_report(&c.report, 1, 1, -5);
      if (kinds[k] == SHEAF_BAG_MAX) {
        expect_integers(c.arg, -1, -1);
      }
    }
  }
}

static void test_weighted_bags_skip_the_weights_of_skipped_entries(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call sum = bags(SHEAF_BAG_SUM, T, I, 4, INTEGERS(0, 3, 2, 77), 1, INTEGERS(0));
    sum.desc.has_padding = 1;
    sum.desc.padding_idx = 3;
    give_weights(&sum, NUMBERS(1, NAN, 3, INFINITY));
    call mean = sum;
    expect_ok(run(&sum));
    expect_numbers(sum.out, 16, 20);
    mean.desc.kind = SHEAF_BAG_MEAN;
    expect_ok(run(&mean));
    expect_numbers(mean.out, 4, 5);
  }
}

static void test_weighted_mean_of_weights_that_cancel_divides_by_zero(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = bags(SHEAF_BAG_MEAN, T, I, 6, INTEGERS(1, 0, 0, 0, 0, 1), 3, INTEGERS(0, 2, 4));
    give_weights(&c, NUMBERS(1, -1, 1, -1, 1, -1));
    expect_ok(run(&c));
    expect_numbers(c.out, INFINITY, INFINITY, NAN, NAN, -INFINITY, -INFINITY);
  }
}

static void test_bag_forms_agree(void **state)
{
  (void)state;
  static const sheaf_dtype offset_types[] = {SHEAF_DTYPE_NONE, SHEAF_I32, SHEAF_I64};
  WALK_TYPES(T, I)
  {
    for (int o = 0; o < 3; o++) {
      const sheaf_dtype offsets = o == 0 ? I : offset_types[o];
      call starts = bags(SHEAF_BAG_SUM, T, I, 4, INTEGERS(0, 1, 2, 3), 2, INTEGERS(0, 2));
      starts.desc.offset_dtype = offset_types[o];
      starts.args.offsets = tiny_operand(tiny_ints(offsets, 2, INTEGERS(0, 2)));
      expect_ok(run(&starts));
      expect_numbers(starts.out, 4, 6, -2, 14);
      call with_end = starts;
      with_end.desc.bag_form = SHEAF_BAGS_OFFSETS_END;
      with_end.args.offsets = tiny_operand(tiny_ints(offsets, 3, INTEGERS(0, 2, 4)));
      expect_ok(run(&with_end));
      expect_numbers(with_end.out, 4, 6, -2, 14);
    }
    call matrix = begin(SHEAF_BAG_SUM, T, I);
    matrix.desc.indices = 4;
    matrix.desc.bags = 2;
    matrix.desc.bag_form = SHEAF_BAGS_MATRIX;
    matrix.args.indices = tiny_operand(tiny_int_matrix(I, 2, 2, INTEGERS(0, 1, 2, 3)));
    expect_ok(run(&matrix));
    expect_numbers(matrix.out, 4, 6, -2, 14);
  }
}

static void test_bag_sum_follows_ieee_for_infinities_and_nan(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = bags(SHEAF_BAG_SUM, T, I, 4, INTEGERS(0, 1, 2, 3), 2, INTEGERS(0, 2));
    give_table(&c, 4, 3, NUMBERS(INFINITY, INFINITY, NAN, -INFINITY, 1, 2, INFINITY, -1, 3, 4, 0, NAN));
    call weighted = c;
    expect_ok(run(&c));
    expect_numbers(c.out, NAN, INFINITY, NAN, INFINITY, -1, NAN);
    give_weights(&weighted, NUMBERS(0, 1, 2, 1));
    expect_ok(run(&weighted));
    expect_numbers(weighted.out, NAN, NAN, NAN, INFINITY, -2, NAN);
  }
}

static void test_sum_that_comes_out_zero_is_positive(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = bags(SHEAF_BAG_SUM, T, I, 3, INTEGERS(0, 1, 2), 2, INTEGERS(0, 1));
    give_table(&c, 3, 2, NUMBERS(-0.0, -0.0, 3, -0.0, -3, -0.0));
    call weighted = c;
    call mean = c;
    expect_ok(run(&c));
    expect_numbers(c.out, 0, 0, 0, 0);
    give_weights(&weighted, NUMBERS(-1, 1, 1));
    expect_ok(run(&weighted));
    expect_numbers(weighted.out, 0, 0, 0, 0);
    mean.desc.kind = SHEAF_BAG_MEAN;
    expect_ok(run(&mean));
    expect_numbers(mean.out, 0, 0, 0, 0);
  }
}

/* A product too small for the accumulator rounds to -0, and the sum is +0 all the same. */
static void test_weighted_sum_that_underflows_is_positive_zero(void **state)
{
  (void)state;
  static const sheaf_dtype types[] = {SHEAF_F32, SHEAF_F64, SHEAF_BF16};
  for (int t = 0; t < 3; t++) {
    const double tiny_value = types[t] == SHEAF_F64 ? 0x1p-600 : 0x1p-100;
    call c = bags(SHEAF_BAG_SUM, types[t], SHEAF_I32, 1, INTEGERS(0), 1, INTEGERS(0));
    give_table(&c, 1, 2, NUMBERS(tiny_value, -tiny_value));
    give_weights(&c, NUMBERS(-tiny_value));
    expect_ok(run(&c));
    expect_numbers(c.out, 0, 0);
  }
}

static void test_gradients_that_underflow_are_positive_zero(void **state)
{
  (void)state;
  static const sheaf_dtype types[] = {SHEAF_F32, SHEAF_F64, SHEAF_BF16};
  for (int t = 0; t < 3; t++) {
    const double tiny_value = types[t] == SHEAF_F64 ? 0x1p-600 : 0x1p-100;
    call c = bags(SHEAF_BAG_SUM_BACKWARD, types[t], SHEAF_I32, 1, INTEGERS(0), 1, INTEGERS(0));
    give_table(&c, 1, 1, NUMBERS(tiny_value));
    give_weights(&c, NUMBERS(tiny_value));
    give_grad_out(&c, 1, NUMBERS(-tiny_value));
    c.desc.grad_write = SHEAF_GRAD_OVERWRITE;
    expect_ok(run(&c));
    expect_numbers(c.table_grad, 0);
    expect_numbers(c.weights_grad, 0);
  }
}

static void test_denormals_are_kept(void **state)
{
  (void)state;
  static const double least[] = {0x1p-149, 0x1p-1074, 0x1p-24, 0x1p-133};
  for (int t = 0; t < 4; t++) {
    call c = bags(SHEAF_BAG_SUM, tiny_elements[t], SHEAF_I64, 3, INTEGERS(0, 0, 0), 1, INTEGERS(0));
    give_table(&c, 1, 2, NUMBERS(least[t], -least[t]));
    expect_ok(run(&c));
    expect_numbers(c.out, 3 * least[t], -3 * least[t]);
  }
}

/* Left to right every 1 would be lost in the large term; sixteen of them are added up first. */
static void test_sum_is_a_tree_of_sixteens(void **state)
{
  (void)state;
  for (int t = 0; t < 2; t++) {
    const double large = t == 0 ? 0x1p24 : 0x1p53;
    int64_t indices[32] = {0};
    double weights[32];
    for (int k = 0; k < 32; k++) {
      indices[k] = k == 0 ? 0 : 1;
      weights[k] = 1.0;
    }
    call c = bags(SHEAF_BAG_SUM, tiny_elements[t], SHEAF_I32, 32, indices, 1, INTEGERS(0));
    give_table(&c, 2, 1, NUMBERS(large, 1));
    call weighted = c;
    expect_ok(run(&c));
    expect_numbers(c.out, large + 16);
    give_weights(&weighted, weights);
    expect_ok(run(&weighted));
    expect_numbers(weighted.out, large + 16);
  }
}

static void test_skipped_entries_keep_their_place_in_the_sum(void **state)
{
  (void)state;
  for (int t = 0; t < 2; t++) {
    const double large = t == 0 ? 0x1p24 : 0x1p53;
    int64_t indices[18];
    for (int k = 0; k < 18; k++) {
      indices[k] = k == 0 ? 0 : k < 16 ? -1 : 1; /* closed up, the two ones would be lost */
    }
    call c = bags(SHEAF_BAG_SUM, tiny_elements[t], SHEAF_I32, 18, indices, 1, INTEGERS(0));
    give_table(&c, 2, 1, NUMBERS(large, 1));
    expect_ok(run(&c));
    expect_numbers(c.out, large + 2);
  }
}

static void test_max_takes_the_first_nan_and_the_first_of_equals(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = bags(SHEAF_BAG_MAX, T, I, 4, INTEGERS(0, 1, 2, 3), 1, INTEGERS(0));
    give_table(&c, 4, 4,
               NUMBERS(1, -0.0, 0.0, -INFINITY, NAN, 0.0, -0.0, -INFINITY, INFINITY, -1, -1, -INFINITY, NAN, -2, -2,
                       -INFINITY));
    expect_ok(run(&c));
    expect_numbers(c.out, NAN, -0.0, 0.0, -INFINITY);
    expect_integers(c.arg, 1, 0, 0, 0);
  }
}

/* ---- A part of a larger table ------------------------------------------------------------------------------------ */

static call part_of_twenty(sheaf_embedding_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype, int64_t count,
                           const int64_t *indices)
{
  call c = bags(kind, dtype, index_dtype, count, indices, 1, INTEGERS(0));
  c.desc.row_begin = 10;
  c.desc.total_rows = 20;
  return c;
}

static void test_rows_held_elsewhere_are_skipped_and_not_reported(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = begin(SHEAF_LOOKUP, T, I);
    c.desc.row_begin = 10;
    c.desc.total_rows = 20;
    give_indices(&c, 6, INTEGERS(10, 3, 13, 14, 20, 19));
    expect_ok(run(&c));
    expect_numbers(c.out, 1, 2, 0, 0, -7, 8, 0, 0, 0, 0, 0, 0);
    expect_report(&c.report, 1, 4, 20);
  }
}

static void test_rows_held_elsewhere_are_counted_by_mean(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = part_of_twenty(SHEAF_BAG_MEAN, T, I, 4, INTEGERS(12, 3, 25, 15));
    c.desc.has_padding = 1;
    c.desc.padding_idx = 15; /* padding is checked on the global index */
    call weighted = c;
    expect_ok(run(&c));
    expect_numbers(c.out, 2.5, 3);
    give_weights(&weighted, NUMBERS(2, 6, NAN, NAN));
    expect_ok(run(&weighted));
    expect_numbers(weighted.out, 1.25, 1.5);
  }
}

static void test_max_over_a_part_gives_global_rows(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = part_of_twenty(SHEAF_BAG_MAX, T, I, 4, INTEGERS(3, 13, 10, 12));
    expect_ok(run(&c));
    expect_numbers(c.out, 5, 8);
    expect_integers(c.arg, 12, 13);
    call none = part_of_twenty(SHEAF_BAG_MAX, T, I, 2, INTEGERS(3, 19));
    expect_ok(run(&none));
    expect_numbers(none.out, 0, 0);
    expect_integers(none.arg, -1, -1);
  }
}

static void test_gradients_of_a_part_go_to_its_own_rows(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = part_of_twenty(SHEAF_BAG_MEAN_BACKWARD, T, I, 4, INTEGERS(13, 3, 13, 10));
    give_grad_out(&c, 1, NUMBERS(4, 8));
    expect_ok(run(&c));
    expect_numbers(c.table_grad, 8, 9, 7, 7, 7, 7, 9, 11);
  }
}

/* ---- Gradients --------------------------------------------------------------------------------------------------- */

static call lookup_backward(sheaf_dtype dtype, sheaf_dtype index_dtype)
{
  call c = begin(SHEAF_LOOKUP_BACKWARD, dtype, index_dtype);
  give_indices(&c, 4, INTEGERS(1, 1, 0, 9));
  give_grad_out(&c, 4, NUMBERS(1, 2, 3, 4, 5, 6, NAN, NAN));
  return c;
}

static void test_lookup_gradient_is_added_and_leaves_other_rows(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = lookup_backward(T, I);
    expect_ok(run(&c));
    expect_numbers(c.table_grad, 12, 13, 11, 13, 7, 7, 7, 7);
    expect_report(&c.report, 1, 3, 9);
  }
}

static void test_overwritten_gradient_writes_untouched_rows_as_zero(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = lookup_backward(T, I);
    c.desc.grad_write = SHEAF_GRAD_OVERWRITE;
    expect_ok(run(&c));
    expect_numbers(c.table_grad, 5, 6, 4, 6, 0, 0, 0, 0);
  }
}

static void test_touched_gradient_leaves_other_rows_alone(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = lookup_backward(T, I);
    c.desc.grad_write = SHEAF_GRAD_TOUCHED;
    expect_ok(run(&c));
    expect_numbers(c.table_grad, 5, 6, 4, 6, 7, 7, 7, 7);
  }
}

static void test_padding_gets_no_gradient(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = lookup_backward(T, I);
    c.desc.has_padding = 1;
    c.desc.padding_idx = 1;
    call overwrite = c;
    expect_ok(run(&c));
    expect_numbers(c.table_grad, 12, 13, 7, 7, 7, 7, 7, 7);
    overwrite.desc.grad_write = SHEAF_GRAD_OVERWRITE;
    expect_ok(run(&overwrite));
    expect_numbers(overwrite.table_grad, 5, 6, 0, 0, 0, 0, 0, 0);
  }
}

/* One addition per cell: two ones are 2 before they meet what the gradient holds. */
static void test_gradient_is_added_once_per_cell(void **state)
{
  (void)state;
  for (int t = 0; t < 2; t++) {
    const double large = t == 0 ? 0x1p24 : 0x1p53;
    call c = begin(SHEAF_LOOKUP_BACKWARD, tiny_elements[t], SHEAF_I32);
    give_table(&c, 1, 1, NUMBERS(0));
    give_indices(&c, 2, INTEGERS(0, 0));
    give_grad_out(&c, 2, NUMBERS(1, 1));
    c.table_grad = tiny_matrix(tiny_elements[t], 1, 1, NUMBERS(large));
    expect_ok(run(&c));
    expect_numbers(c.table_grad, large + 2);
  }
}

static void test_frequency_divides_a_rows_gradient_by_its_occurrences(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = lookup_backward(T, I);
    c.desc.scale_grad_by_freq = 1;
    expect_ok(run(&c));
    expect_numbers(c.table_grad, 12, 13, 9, 10, 7, 7, 7, 7);
    call sum = bags(SHEAF_BAG_SUM_BACKWARD, T, I, 3, INTEGERS(1, 0, 1), 2, INTEGERS(0, 2));
    sum.desc.scale_grad_by_freq = 1;
    sum.desc.grad_write = SHEAF_GRAD_OVERWRITE;
    give_grad_out(&sum, 2, NUMBERS(1, 10, 3, 20));
    call weighted = sum;
    call mean = sum;
    expect_ok(run(&sum));
    expect_numbers(sum.table_grad, 1, 10, 2, 15, 0, 0, 0, 0);
    give_weights(&weighted, NUMBERS(2, 3, 4));
    expect_ok(run(&weighted));
    expect_numbers(weighted.table_grad, 3, 30, 7, 50, 0, 0, 0, 0);
    mean.desc.kind = SHEAF_BAG_MEAN_BACKWARD;
    expect_ok(run(&mean));
    expect_numbers(mean.table_grad, 0.5, 5, 1.75, 12.5, 0, 0, 0, 0);
  }
}

static void test_bag_sum_gradients_of_table_and_weights(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = bags(SHEAF_BAG_SUM_BACKWARD, T, I, 5, INTEGERS(1, 0, 1, -3, 2), 2, INTEGERS(0, 2));
    c.desc.grad_write = SHEAF_GRAD_OVERWRITE;
    c.desc.has_padding = 1;
    c.desc.padding_idx = 2;
    give_grad_out(&c, 2, NUMBERS(1, 10, 2, 20));
    give_weights(&c, NUMBERS(2, 3, 4, NAN, NAN));
    expect_ok(run(&c));
    expect_numbers(c.table_grad, 3, 30, 10, 100, 0, 0, 0, 0);
    expect_numbers(c.weights_grad, 43, 21, 86, 0, 0);
    expect_report(&c.report, 1, 3, -3);
  }
}

static void test_bag_mean_gradient_without_weights(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = bags(SHEAF_BAG_MEAN_BACKWARD, T, I, 4, INTEGERS(1, 44, 0, 1), 3, INTEGERS(0, 3, 3));
    give_grad_out(&c, 3, NUMBERS(2, 4, NAN, NAN, 6, 8));
    expect_ok(run(&c));
    expect_numbers(c.table_grad, 8, 9, 14, 17, 7, 7, 7, 7);
  }
}

/* out is (4, 5): the difference W - out is (-3, -3) and (1, 1). */
static void test_weighted_mean_gradients_of_table_and_weights(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = bags(SHEAF_BAG_MEAN_BACKWARD, T, I, 2, INTEGERS(0, 2), 1, INTEGERS(0));
    c.desc.grad_write = SHEAF_GRAD_OVERWRITE;
    give_grad_out(&c, 1, NUMBERS(4, 8));
    give_weights(&c, NUMBERS(1, 3));
    c.args.out = tiny_operand(tiny_matrix(T, 1, 2, NUMBERS(4, 5)));
    expect_ok(run(&c));
    expect_numbers(c.table_grad, 1, 2, 0, 0, 3, 6, 0, 0);
    expect_numbers(c.weights_grad, -9, 3);
  }
}

static void test_weights_gradient_alone_needs_no_table_gradient(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = bags(SHEAF_BAG_SUM_BACKWARD, T, I, 2, INTEGERS(0, 2), 1, INTEGERS(0));
    give_grad_out(&c, 1, NUMBERS(1, 1));
    give_weights(&c, NUMBERS(1, 3));
    c.weights_grad = tiny_vector(T, 2, NULL);
    c.args.weights_grad = tiny_operand(c.weights_grad);
    expect_ok(tiny_run_embedding(&c.desc, &c.args));
    expect_numbers(c.weights_grad, 3, 11);
  }
}

static void test_max_gradient_goes_to_arg_and_minus_one_is_silent(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = begin(SHEAF_BAG_MAX_BACKWARD, T, I);
    c.desc.bags = 3;
    give_grad_out(&c, 3, NUMBERS(1, 2, NAN, 4, 5, NAN));
    c.args.arg = tiny_operand(tiny_int_matrix(I, 3, 2, INTEGERS(0, 1, -1, 0, 0, 9)));
    expect_ok(run(&c));
    expect_numbers(c.table_grad, 13, 11, 7, 9, 7, 7, 7, 7);
    expect_report(&c.report, 1, 5, 9);
  }
}

/* ---- Batches ----------------------------------------------------------------------------------------------------- */

/* Two problems on one table (a stride of 0), each with its own indices; positions count over both. */
static void test_batch_runs_independent_problems(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = begin(SHEAF_LOOKUP, T, I);
    c.desc.batch = 2;
    c.desc.indices = 3;
    c.desc.has_padding = 1;
    c.desc.padding_idx = 2;
    tiny_reshape(c.table, 3, INTEGERS(2, 4, 2));
    c.table->tensor.strides = c.table->strides;
    c.table->strides[0] = 0;
    c.table->strides[1] = 2;
    c.table->strides[2] = 1;
    c.args.indices = tiny_operand(tiny_int_matrix(I, 2, 3, INTEGERS(0, 2, 1, 3, 4, 2)));
    c.out = tiny_reshape(tiny_matrix(T, 6, 2, NULL), 3, INTEGERS(2, 3, 2));
    c.args.out = tiny_operand(c.out);
    c.args.report = &c.report;
    expect_ok(tiny_run_embedding(&c.desc, &c.args));
    expect_numbers(c.out, 1, 2, 0, 0, 3, 4, -7, 8, 0, 0, 0, 0);
    expect_report(&c.report, 1, 4, 4);
  }
}

static void test_batch_of_gradients_keeps_problems_apart(void **state)
{
  (void)state;
  WALK_TYPES(T, I)
  {
    call c = begin(SHEAF_LOOKUP_BACKWARD, T, I);
    c.args.table.tensor = NULL;
    c.desc.batch = 2;
    c.desc.rows = 2;
    c.desc.indices = 2;
    c.desc.scale_grad_by_freq = 1;
    c.args.indices = tiny_operand(tiny_int_matrix(I, 2, 2, INTEGERS(0, 1, 0, 0)));
    c.args.grad_out =
        tiny_operand(tiny_reshape(tiny_matrix(T, 4, 2, NUMBERS(1, 2, 3, 4, 5, 6, 7, 8)), 3, INTEGERS(2, 2, 2)));
    c.table_grad = tiny_reshape(tiny_matrix(T, 4, 2, NULL), 3, INTEGERS(2, 2, 2));
    c.args.table_grad = tiny_operand(c.table_grad);
    expect_ok(tiny_run_embedding(&c.desc, &c.args));
    expect_numbers(c.table_grad, 8, 9, 10, 11, 13, 14, 7, 7);
  }
}

#define UNIT(name) cmocka_unit_test_teardown(name, tiny_teardown)

int main(void)
{
  const struct CMUnitTest tests[] = {
      UNIT(test_lookup_copies_rows),
      UNIT(test_lookup_and_max_copy_bits),
      UNIT(test_lookup_padding_is_zero_by_default),
      UNIT(test_lookup_padding_row_gives_the_stored_row),
      UNIT(test_lookup_bad_index_is_a_zero_row_and_reported),
      UNIT(test_wide_bad_index_is_not_truncated),
      UNIT(test_lookup_takes_indices_of_any_rank),
      UNIT(test_bags_reduce_their_rows_and_empty_ones_give_zero),
      UNIT(test_bag_max_arg_is_optional),
      UNIT(test_bag_skips_padding_and_bad_entries_and_does_not_count_them),
      UNIT(test_bag_with_every_entry_skipped_is_zero),
      UNIT(test_weighted_bags_skip_the_weights_of_skipped_entries),
      UNIT(test_weighted_mean_of_weights_that_cancel_divides_by_zero),
      UNIT(test_bag_forms_agree),
      UNIT(test_bag_sum_follows_ieee_for_infinities_and_nan),
      UNIT(test_sum_that_comes_out_zero_is_positive),
      UNIT(test_weighted_sum_that_underflows_is_positive_zero),
      UNIT(test_gradients_that_underflow_are_positive_zero),
      UNIT(test_denormals_are_kept),
      UNIT(test_sum_is_a_tree_of_sixteens),
      UNIT(test_skipped_entries_keep_their_place_in_the_sum),
      UNIT(test_max_takes_the_first_nan_and_the_first_of_equals),
      UNIT(test_rows_held_elsewhere_are_skipped_and_not_reported),
      UNIT(test_rows_held_elsewhere_are_counted_by_mean),
      UNIT(test_max_over_a_part_gives_global_rows),
      UNIT(test_gradients_of_a_part_go_to_its_own_rows),
      UNIT(test_lookup_gradient_is_added_and_leaves_other_rows),
      UNIT(test_overwritten_gradient_writes_untouched_rows_as_zero),
      UNIT(test_touched_gradient_leaves_other_rows_alone),
      UNIT(test_padding_gets_no_gradient),
      UNIT(test_gradient_is_added_once_per_cell),
      UNIT(test_frequency_divides_a_rows_gradient_by_its_occurrences),
      UNIT(test_bag_sum_gradients_of_table_and_weights),
      UNIT(test_bag_mean_gradient_without_weights),
      UNIT(test_weighted_mean_gradients_of_table_and_weights),
      UNIT(test_weights_gradient_alone_needs_no_table_gradient),
      UNIT(test_max_gradient_goes_to_arg_and_minus_one_is_silent),
      UNIT(test_batch_runs_independent_problems),
      UNIT(test_batch_of_gradients_keeps_problems_apart),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
