/* test_strides.c: strides that cannot be walked; operands that share memory, and those that only look so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/call.h"
#include "support/environment.h"

static bool is_output(const call *c, int at) { return c->p->operand[at].output; }
static bool is_batched(const call *c) { return c->p->spec.batch > 0; }

/* Whether an operand has rows and columns, rather than a number per entry. */
static bool is_matrix(const call *c, int at)
{
  if (!call_is_embedding(c)) return at != AT_IDS;
  return at != AT_INDICES && at != AT_OFFSETS && at != AT_WEIGHTS && at != AT_WEIGHTS_GRAD;
}

/* ---- Strides of one operand -------------------------------------------------------------------------------------- */

static void spoil_row_stride(call *c, int at)
{
  const char *name = call_operand_name(c, at);
  int rank = c->tensor[at].ndim, row = rank - 1 - is_matrix(c, at);
  int64_t columns = is_matrix(c, at) ? c->shape[at][rank - 1] : 1;
  bool leads = rank - is_batched(c) - is_matrix(c, at) > 1; /* other dimensions are ahead of the row */
  const int64_t negative[] = {-1, -columns, -1000000};
  for (int i = 0; i < LENGTH(negative); i++) {
    c->strides[at][row] = negative[i];
    call_refused(c, at, INVALID_PROBLEM, name, leads ? "dimensions" : "negative stride",
                 leads ? "" : number(negative[i]));
  }
  const int64_t folded[] = {0, columns - 1};
  for (int i = 0; i < LENGTH(folded); i++) {
    c->strides[at][row] = folded[i];
    call_refused(c, at, INVALID_PROBLEM, name, leads ? "dimensions" : "row stride of", leads ? "" : number(folded[i]));
    if (columns == 1) break;
  }
  const int64_t endless[] = {INT64_MAX, INT64_MAX / 2, (int64_t)1 << 61, INT64_MIN};
  for (int i = 0; i < LENGTH(endless); i++) {
    c->strides[at][row] = endless[i];
    call_refused(c, at, INVALID_PROBLEM, name);
  }
}

static void test_row_strides_that_run_backwards_fold_or_overflow_are_refused(void **state)
{
  (void)state;
  call_walk(spoil_row_stride);
}

static void spoil_last_stride(call *c, int at)
{
  const char *name = call_operand_name(c, at);
  int last = c->tensor[at].ndim - 1;
  const int64_t wrong[] = {2, 0, -1, INT64_MAX, INT64_MIN};
  for (int i = 0; i < LENGTH(wrong); i++) {
    c->strides[at][last] = wrong[i];
    if (is_matrix(c, at))
      call_refused(c, at, INVALID_PROBLEM, name, "contiguous", number(wrong[i]));
    else
      call_refused(c, at, INVALID_PROBLEM, name);
  }
}

static void test_last_dimensions_must_be_contiguous(void **state)
{
  (void)state;
  call_walk(spoil_last_stride);
}

/* Indices and values of any rank are one run of rows: what jumps in between is refused, backwards jumps too. */
static void test_leading_dimensions_must_lie_one_behind_the_other(void **state)
{
  (void)state;
  const struct {
    int64_t outer, inner;
  } wrong[] = {{7, 1},  {5, 1},   {0, 1}, {-6, 1}, {1, 2},         {1, -1},
               {6, -1}, {-1, -1}, {0, 0}, {12, 2}, {INT64_MAX, 1}, {1, INT64_MIN}};
  for (int kind = SHEAF_LOOKUP; kind <= SHEAF_BAG_MAX; kind++) {
    problem_spec spec = call_spec(kind);
    spec.bag_form = SHEAF_BAGS_MATRIX;
    spec.bags = 2;
    spec.high_rank = true;
    call *c = call_make(&spec);
    assert_int_equal(c->tensor[AT_INDICES].ndim, 2);
    for (int i = 0; i < LENGTH(wrong); i++) {
      c->strides[AT_INDICES][0] = wrong[i].outer;
      c->strides[AT_INDICES][1] = wrong[i].inner;
      call_refused(c, AT_INDICES, INVALID_PROBLEM, "indices");
      call_restore(c);
      if (kind > SHEAF_LOOKUP_BACKWARD || wrong[i].outer > 100 || wrong[i].inner < -100) continue;
      if (wrong[i].outer == 12 && wrong[i].inner == 2) continue; /* rows apart, which values may be */
      int values = kind == SHEAF_LOOKUP ? AT_OUT : AT_GRAD_OUT;
      c->strides[values][0] = wrong[i].outer * 3;
      c->strides[values][1] = wrong[i].inner * 3;
      call_refused(c, values, INVALID_PROBLEM, call_operand_name(c, values));
      call_restore(c);
    }
    call_free(c);
  }
}

static void test_dimensions_of_one_element_have_no_stride(void **state)
{
  (void)state;
  problem_spec spec = call_spec(SHEAF_BAG_SUM);
  spec.rows = spec.bags = spec.dim = spec.count = 1;
  call *c = call_make(&spec);
  for (int at = 0; at < c->operands; at++)
    for (int i = 0; i < CALL_DIMENSIONS; i++) c->strides[at][i] = i % 2 ? INT64_MIN : INT64_MAX;
  call_accepted(c);
  call_free(c);
}

static void spoil_batch_stride(call *c, int at)
{
  if (!is_batched(c)) return;
  const char *name = call_operand_name(c, at);
  const int64_t negative[] = {-1, -100, INT64_MIN};
  for (int i = 0; i < LENGTH(negative); i++) {
    c->strides[at][0] = negative[i];
    call_refused(c, at, INVALID_PROBLEM, name, "negative stride", number(negative[i]));
  }
  c->strides[at][0] = INT64_MAX;
  call_refused(c, at, INVALID_PROBLEM, name, "2^63 bytes");
  const int64_t short_steps[] = {0, 1, 2};
  for (int i = 0; i < LENGTH(short_steps) && is_output(c, at); i++) {
    c->strides[at][0] = short_steps[i];
    call_refused(c, at, INVALID_PROBLEM, name, "batch stride", number(short_steps[i]), "share memory");
  }
  if (!is_output(c, at) || !is_matrix(c, at)) return;
  c->strides[at][1] = INT64_MAX;
  call_refused(c, at, INVALID_PROBLEM, name);
}

static void test_batch_strides_that_run_backwards_or_share_outputs_are_refused(void **state)
{
  (void)state;
  call_walk(spoil_batch_stride);
}

static void share_inputs(call *c, int at)
{
  if (!is_batched(c) || is_output(c, at)) return;
  c->strides[at][0] = 0;
  call_accepted(c);
}

static void test_inputs_may_be_shared_by_a_batch(void **state)
{
  (void)state;
  call_walk(share_inputs);
}

/* ---- Operands that share memory ---------------------------------------------------------------------------------- */

/* Memory with nothing else beside it. */
static _Alignas(64) unsigned char arena[1 << 16];

static void put_at(call *c, int at, unsigned char *place)
{
  c->tensor[at].data = place;
  c->tensor[at].byte_offset = 0;
  c->operand[at].bytes = 0;
}

/* The output begins with the other operand, with the last element of it, and ends with the first. */
static void share_with_others(call *c, int at)
{
  if (!is_output(c, at)) return;
  for (int other = 0; other < c->operands; other++) {
    if (other == at || !c->operand[other].tensor) continue;
    char text[64];
    int named = is_output(c, other) && other < at ? other : at, with = named == at ? other : at;
    snprintf(text, sizeof text, "%s shares memory with %s", call_operand_name(c, named), call_operand_name(c, with));
    int64_t bytes = (int64_t)c->operand[at].bytes, other_bytes = (int64_t)c->operand[other].bytes;
    const int64_t shifts[] = {0, (other_bytes - 1) / 8 * 8, -((bytes - 1) / 8 * 8)};
    for (int i = 0; i < LENGTH(shifts); i++) {
      if (c->p->spec.row_gap && i) continue; /* an end may fall into a gap */
      put_at(c, other, arena + sizeof arena / 2);
      put_at(c, at, arena + sizeof arena / 2 + shifts[i]);
      call_refused(c, named, INVALID_PROBLEM, text);
      call_restore(c);
    }
  }
}

static void test_outputs_that_share_memory_with_any_operand_are_refused(void **state)
{
  (void)state;
  call_walk(share_with_others);
}

static void test_inputs_may_share_memory(void **state)
{
  (void)state;
  problem_spec spec = call_spec(SHEAF_BAG_MEAN_BACKWARD);
  call *c = call_make(&spec);
  c->tensor[AT_GRAD_OUT].data = c->tensor[AT_OUT].data;
  c->tensor[AT_GRAD_OUT].byte_offset = c->tensor[AT_OUT].byte_offset;
  call_accepted(c);
  call_free(c);
}

static void test_misaligned_comes_before_shared(void **state)
{
  (void)state;
  problem_spec spec = call_spec(SHEAF_LOOKUP);
  call *c = call_make(&spec);
  c->tensor[AT_OUT].data = (char *)c->tensor[AT_TABLE].data + 1;
  c->tensor[AT_OUT].byte_offset = c->tensor[AT_TABLE].byte_offset;
  call_refused(c, AT_OUT, MISALIGNED, "out");
  call_free(c);
}

/* A run writes its workspace before it has read every input, so they must be apart. */
static void share_workspace(call *c, int at)
{
  if (c->workspace_bytes == 0) return;
  assert_true(c->workspace_bytes <= sizeof arena / 2);
  unsigned char *workspace = c->workspace;
  char text[64];
  snprintf(text, sizeof text, "the workspace shares memory with %s", call_operand_name(c, at));
  c->workspace = arena;
  put_at(c, at, arena + (c->workspace_bytes - 1) / 8 * 8);
  call_run_refused(c, -1, INVALID_PROBLEM, text);
  c->workspace = workspace;
}

static void test_workspaces_that_share_memory_with_an_operand_are_refused(void **state)
{
  (void)state;
  call_walk(share_workspace);
}

/* ---- Slices of one buffer, against a map of its cells ------------------------------------------------------------ */

enum { POOL = 1400 };

/* Marks the cells of [batch, rows, columns]; whether one was marked before. */
static bool mark(unsigned char *map, const call *c, int at, int64_t base, unsigned char with)
{
  int64_t batch = is_batched(c) ? c->shape[at][0] : 1, rows = c->shape[at][is_batched(c)],
          columns = c->shape[at][is_batched(c) + 1];
  bool met = false;
  for (int64_t b = 0; b < batch; b++)
    for (int64_t r = 0; r < rows; r++)
      for (int64_t d = 0; d < columns; d++) {
        int64_t cell = base + (is_batched(c) ? b * c->strides[at][0] : 0) + r * c->strides[at][is_batched(c)] + d;
        met |= map[cell] != 0 && (map[cell] != with || is_output(c, at));
        map[cell] = with;
      }
  return met;
}

static void place(call *c, int at, float *pool, int64_t base, int64_t row_stride, int64_t batch_stride)
{
  c->strides[at][is_batched(c)] = row_stride;
  if (is_batched(c)) c->strides[at][0] = batch_stride;
  c->tensor[at].data = pool + base;
  c->tensor[at].byte_offset = 0;
  c->operand[at].bytes = 0;
}

/* Random slices of a buffer for the table and the output of a lookup: accepted exactly when no cell belongs to both. */
static void check_random_slices(int64_t batch, int trials)
{
  test_random random = {(uint64_t)batch + 99};
  int shared = 0, disjoint = 0, cautious = 0;
  for (int trial = 0; trial < trials; trial++) {
    problem_spec spec = call_spec(SHEAF_LOOKUP);
    spec.batch = batch;
    spec.rows = 1 + random_below(&random, 6);
    spec.count = 1 + random_below(&random, 6);
    spec.dim = 1 + random_below(&random, 4);
    call *c = call_make(&spec);
    float *pool = calloc(POOL, sizeof *pool);
    assert_non_null(pool);
    int64_t strides[2], bases[2], steps[2];
    for (int i = 0; i < 2; i++) {
      strides[i] = spec.dim + random_below(&random, 14);
      bases[i] = random_below(&random, 60);
      steps[i] = random_below(&random, 2) ? random_below(&random, 24) : strides[i] * 6 + random_below(&random, 9);
    }
    if (random_below(&random, 2)) strides[1] = strides[0];
    place(c, AT_TABLE, pool, bases[0], strides[0], steps[0]);
    place(c, AT_OUT, pool, bases[1], strides[1], steps[1]);
    unsigned char map[POOL] = {0};
    bool own = mark(map, c, AT_OUT, bases[1], 1), met = mark(map, c, AT_TABLE, bases[0], 2);
    sheaf_status status = call_can_implement(c);
    if (status == SHEAF_OK && (own || met)) fail_msg("trial %d: accepted, though cells are shared", trial);
    if (status != SHEAF_OK && strstr(sheaf_last_error(), "makes problems share")) {
      cautious += !own;
    } else if (status != SHEAF_OK && !met) {
      fail_msg("trial %d: no cell is shared, but: %s", trial, sheaf_last_error());
    }
    if (status == SHEAF_OK) assert_int_equal(call_run(c), SHEAF_OK);
    shared += own || met;
    disjoint += status == SHEAF_OK;
    free(pool);
    call_free(c);
  }
  print_message("%d pairs of slices: %d share memory, %d are accepted, %d are refused for their batch stride\n", trials,
                shared, disjoint, cautious);
  assert_true(shared > trials / 20 && disjoint > trials / 20);
}

static void test_slices_of_one_buffer_are_refused_exactly_when_they_share_a_cell(void **state)
{
  (void)state;
  check_random_slices(0, is_switched_on("SHEAF_TEST_QUICK") ? 4000 : 40000);
}

static void test_batches_of_slices_are_refused_when_they_share_a_cell(void **state)
{
  (void)state;
  check_random_slices(2, is_switched_on("SHEAF_TEST_QUICK") ? 4000 : 20000);
  check_random_slices(3, is_switched_on("SHEAF_TEST_QUICK") ? 4000 : 20000);
}

/* The left half of a wide buffer is the table, the right half the output. */
static void test_column_slices_of_one_buffer_are_looked_up(void **state)
{
  (void)state;
  problem_spec spec = call_spec(SHEAF_LOOKUP);
  call *c = call_make(&spec);
  float pool[12 * 8];
  for (int i = 0; i < LENGTH(pool); i++) pool[i] = (float)i;
  place(c, AT_TABLE, pool, 0, 8, 0);
  place(c, AT_OUT, pool, 4, 8, 0);
  call_accepted(c);
  const int32_t *indices = operand_at(&c->p->operand[AT_INDICES], 0, 0, 0);
  for (int n = 0; n < 12; n++)
    for (int d = 0; d < 3; d++) {
      assert_true(pool[n * 8 + 4 + d] == (float)(indices[n] * 8 + d));
      assert_true(pool[n * 8 + d] == (float)(n * 8 + d));
    }
  place(c, AT_OUT, pool, 2, 8, 0);
  call_refused(c, AT_OUT, INVALID_PROBLEM, "out shares memory with table");
  call_free(c);
}

static void test_byte_offsets_are_honoured(void **state)
{
  (void)state;
  problem_spec spec = call_spec(SHEAF_LOOKUP);
  call *c = call_make(&spec);
  float table[3 * 5 + 7], out[3 * 12 + 5];
  for (int i = 0; i < LENGTH(table); i++) table[i] = (float)i;
  for (int i = 0; i < LENGTH(out); i++) out[i] = -1;
  c->tensor[AT_TABLE].data = table;
  c->tensor[AT_TABLE].byte_offset = 7 * sizeof(float);
  c->operand[AT_TABLE].bytes = sizeof table - 7 * sizeof(float);
  c->tensor[AT_OUT].data = out;
  c->tensor[AT_OUT].byte_offset = 4 * sizeof(float);
  c->operand[AT_OUT].bytes = 3 * 12 * sizeof(float);
  call_accepted(c);
  const int32_t *indices = operand_at(&c->p->operand[AT_INDICES], 0, 0, 0);
  for (int i = 0; i < 36; i++) assert_true(out[4 + i] == table[7 + indices[i / 3] * 3 + i % 3]);
  assert_true(out[3] == -1 && out[40] == -1);
  c->operand[AT_TABLE].bytes--; /* counted from the offset, not from data */
  assert_int_equal(call_can_implement(c), SHEAF_BUFFER_TOO_SMALL);
  call_free(c);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_row_strides_that_run_backwards_fold_or_overflow_are_refused),
      cmocka_unit_test(test_last_dimensions_must_be_contiguous),
      cmocka_unit_test(test_leading_dimensions_must_lie_one_behind_the_other),
      cmocka_unit_test(test_dimensions_of_one_element_have_no_stride),
      cmocka_unit_test(test_batch_strides_that_run_backwards_or_share_outputs_are_refused),
      cmocka_unit_test(test_inputs_may_be_shared_by_a_batch),
      cmocka_unit_test(test_outputs_that_share_memory_with_any_operand_are_refused),
      cmocka_unit_test(test_inputs_may_share_memory),
      cmocka_unit_test(test_misaligned_comes_before_shared),
      cmocka_unit_test(test_workspaces_that_share_memory_with_an_operand_are_refused),
      cmocka_unit_test(test_slices_of_one_buffer_are_refused_exactly_when_they_share_a_cell),
      cmocka_unit_test(test_batches_of_slices_are_refused_when_they_share_a_cell),
      cmocka_unit_test(test_column_slices_of_one_buffer_are_looked_up),
      cmocka_unit_test(test_byte_offsets_are_honoured),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
