/* test_page_ends.c: nothing beyond the last element of an operand is touched, not even by an instruction whose mask leaves it
 * out: operands end where a page ends that must not be. Results are compared with those in ordinary memory. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sheaf/sheaf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROWS = 9, ENTRIES = 587, MOST_BAGS = 7, MOST_DIM = 1300 };

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* A block that ends where a page ends, before one that cannot be touched; or an ordinary one. */
typedef struct block {
  char *map, *data;
  size_t mapped, bytes;
} block;

static block block_make(size_t bytes, int at_end)
{
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
  block b = {.mapped = whole + page, .bytes = bytes};
  b.map = mmap(NULL, b.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(b.map != MAP_FAILED);
  assert_int_equal(mprotect(b.map + whole, page, PROT_NONE), 0);
  b.data = at_end ? b.map + whole - bytes : b.map;
  return b;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

enum { TABLE, INDICES, OFFSETS, WEIGHTS, GRAD_OUT, OUT, ARG, TABLE_GRAD, OPERANDS };

typedef struct call {
  sheaf_embedding_desc desc;
  block block[OPERANDS];
  DLTensor tensor[OPERANDS];
  int64_t shape[OPERANDS][2];
} call;

static DLDataType element_of(sheaf_dtype dtype)
{
  if (dtype == SHEAF_INT8 || dtype == SHEAF_INT4) return (DLDataType){kDLUInt, 8, 1};
  const int bits = dtype == SHEAF_F64 ? 64 : dtype == SHEAF_F32 ? 32 : 16;
  return (DLDataType){dtype == SHEAF_BF16 ? kDLBfloat : kDLFloat, (uint8_t)bits, 1};
}

static void give(call *c, int at, DLDataType type, int64_t rows, int64_t columns, int at_end)
{
  const int rank = columns ? 2 : 1;
  const size_t bytes = (size_t)(rows * (columns ? columns : 1)) * (type.bits / 8);
  c->block[at] = block_make(bytes, at_end);
  c->shape[at][0] = rows;
  c->shape[at][1] = columns;
  c->tensor[at] =
      (DLTensor){.data = c->block[at].data, .device = {kDLCPU, 0}, .ndim = rank, .dtype = type, .shape = c->shape[at]};
  uint32_t state = 7 + (uint32_t)at; /* small values of any type: bits that are no NaN */
  for (size_t i = 0; i < bytes / 2 && type.code != kDLInt; i++) {
    state = state * 1664525u + 1013904223u;
    const uint16_t value = (uint16_t)(0x3c00 + (state >> 24));
    memcpy(c->block[at].data + 2 * i, &value, sizeof value); /* packed rows may begin anywhere */
  }
}

/* What a call has besides. ELSEWHERE: the table is a part of one whose rows are too many for 32 bits, and nobody asks for positions. */
enum { PLAIN, WEIGHTED, ELSEWHERE };

static void make_call(call *c, sheaf_embedding_kind kind, sheaf_dtype dtype, int64_t dim, int more, int at_end)
{
  const int weighted = more == WEIGHTED;
  const int packed = dtype == SHEAF_INT8 || dtype == SHEAF_INT4;
  const DLDataType rows = element_of(dtype), element = element_of(packed ? SHEAF_F32 : dtype), index = {kDLInt, 64, 1};
  const int backward = kind == SHEAF_BAG_SUM_BACKWARD, lookup = kind == SHEAF_LOOKUP;
  memset(c, 0, sizeof *c);
  c->desc = (sheaf_embedding_desc)SHEAF_EMBEDDING_DESC_INIT;
  c->desc.kind = kind;
  c->desc.dtype = dtype;
  c->desc.index_dtype = SHEAF_I64;
  c->desc.rows = ROWS;
  c->desc.total_rows = more == ELSEWHERE ? INT64_C(5000000000) : 0;
  c->desc.dim = dim;
  c->desc.indices = ENTRIES;
  c->desc.bags = lookup ? 0 : MOST_BAGS;
  c->desc.weighted = (uint8_t)weighted;
  give(c, INDICES, index, ENTRIES, 0, at_end);
  for (int64_t i = 0; i < ENTRIES; i++) ((int64_t *)(void *)c->block[INDICES].data)[i] = i * 5 % ROWS;
  if (!lookup) {
    static const int64_t starts[MOST_BAGS] = {0, 1, 2, 7, 40, 40, 330}; /* one row, few, none, and one more than a chunk */
    give(c, OFFSETS, index, MOST_BAGS, 0, at_end);
    memcpy(c->block[OFFSETS].data, starts, sizeof starts);
  }
  if (weighted) give(c, WEIGHTS, element, ENTRIES, 0, at_end);
  if (!backward) give(c, TABLE, rows, ROWS, packed ? sheaf_dtype_row_bytes(dtype, dim) : dim, at_end);
  give(c, backward ? GRAD_OUT : OUT, element, lookup ? ENTRIES : MOST_BAGS, dim, at_end);
  if (backward) give(c, TABLE_GRAD, element, ROWS, dim, at_end);
  if (kind == SHEAF_BAG_MAX && more != ELSEWHERE) give(c, ARG, index, MOST_BAGS, dim, at_end);
}

static void run_call(call *c, const char *kernel)
{
  sheaf_preference preference = SHEAF_PREFERENCE_INIT;
  preference.threads = 1;
  preference.kernel = kernel;
  sheaf_plan *plan = NULL;
  if (sheaf_embedding_select(&c->desc, &preference, &plan) != SHEAF_OK) fail_msg("%s", sheaf_last_error());
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  sheaf_operand *const to[OPERANDS] = {&args.table,    &args.indices, &args.offsets, &args.weights,
                                       &args.grad_out, &args.out,     &args.arg,     &args.table_grad};
  for (int at = 0; at < OPERANDS; at++)
    if (c->block[at].map) *to[at] = (sheaf_operand){&c->tensor[at], c->block[at].bytes};
  const size_t bytes = sheaf_plan_workspace_size(plan);
  void *workspace = aligned_alloc(64, bytes / 64 * 64 + 64);
  assert_non_null(workspace);
  if (sheaf_embedding_run(plan, workspace, bytes, NULL, &args) != SHEAF_OK) fail_msg("%s", sheaf_last_error());
  free(workspace);
  sheaf_plan_free(plan);
}

static void compare(sheaf_embedding_kind kind, sheaf_dtype dtype, int64_t dim, int more, const char *kernel)
{
  call plain, end;
  make_call(&plain, kind, dtype, dim, more, 0);
  make_call(&end, kind, dtype, dim, more, 1);
  run_call(&plain, kernel);
  run_call(&end, kernel);
  for (int at = 0; at < OPERANDS; at++) {
    if (!plain.block[at].map) continue;
    assert_memory_equal(plain.block[at].data, end.block[at].data, plain.block[at].bytes);
    munmap(plain.block[at].map, plain.block[at].mapped);
    munmap(end.block[at].map, end.block[at].mapped);
  }
}

/* ---- Tests ------------------------------------------------------------------------------------------------------- */

static const sheaf_embedding_kind kinds[] = {SHEAF_LOOKUP, SHEAF_BAG_SUM, SHEAF_BAG_MEAN, SHEAF_BAG_MAX,
                                             SHEAF_BAG_SUM_BACKWARD};

static void test_operands_may_end_with_a_page(void **state)
{
  (void)state;
  for (int64_t i = 0; i < sheaf_kernel_count(); i++) {
    sheaf_sku sku;
    int available = 0;
    assert_int_equal(sheaf_kernel_at(i, &sku, &available), SHEAF_OK);
    if (!available || sku.category != SHEAF_CATEGORY_EMBEDDING || sku.index_element != SHEAF_I64) continue;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
      if (sku.kind != kinds[k]) continue;
      const int can_weigh =
          kinds[k] == SHEAF_BAG_SUM || kinds[k] == SHEAF_BAG_MEAN || kinds[k] == SHEAF_BAG_SUM_BACKWARD;
      for (int more = PLAIN; more <= ELSEWHERE; more++)
        for (int64_t dim = 1; dim <= MOST_DIM && (more != WEIGHTED || can_weigh); dim += dim < 40 ? 1 : dim < 270 ? 7 : dim / 64 * 7)
          compare(kinds[k], (sheaf_dtype)sku.element, dim, more, sku.name);
    }
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_operands_may_end_with_a_page)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
