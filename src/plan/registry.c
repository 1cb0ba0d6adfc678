/* registry.c: the one place that names the row tables; kernel identity and guarantees. */
#include <stdio.h>
#include <string.h>

#include "core/tables.h"
#include "plan/plan_impl.h"

typedef struct row_table {
  const shf_kernel_row *rows;
  int count;
  const shf_nearest_kernel *nearest;
} row_table;

static const row_table tables[] = {
#define SHF_X(isa, element, rows) {shf_kernels_##isa##_##element, rows, &shf_nearest_##isa##_##element},
    SHF_ROW_TABLES(SHF_X)
#undef SHF_X
};
enum { TABLES = sizeof tables / sizeof *tables };

static const char *const arch_names[] = {"cpu.scalar", "cpu.avx2", "cpu.avx512", "cuda.sm80", "cuda.sm90"};

const char *sheaf_kind_name(sheaf_category category, uint16_t kind)
{
#define SHEAF_X(name, number, text) [number] = text,
  static const char *const embedding[] = {SHEAF_EMBEDDING_KIND_LIST(SHEAF_X)};
  static const char *const segment[] = {SHEAF_SEGMENT_KIND_LIST(SHEAF_X)};
#undef SHEAF_X
  if (category == SHEAF_CATEGORY_EMBEDDING && kind < sizeof embedding / sizeof *embedding) return embedding[kind];
  if (category == SHEAF_CATEGORY_SEGMENT && kind < sizeof segment / sizeof *segment) return segment[kind];
  return NULL;
}

const shf_kernel_row *shf_plan_rows(sheaf_arch arch, sheaf_dtype element, int *count)
{
  for (int i = 0; i < TABLES; i++) {
    if (tables[i].rows->arch != arch || tables[i].rows->element != element) continue;
    *count = tables[i].count;
    return tables[i].rows;
  }
  *count = 0;
  return NULL;
}

const shf_nearest_kernel *shf_plan_nearest_kernel(sheaf_dtype element)
{
  for (int i = 0; i < TABLES; i++) /* best instruction set first */
    if (tables[i].rows->element == element && shf_plan_runs_on(tables[i].rows->arch, sheaf_isa_current()))
      return tables[i].nearest;
  return NULL;
}

/* Whether the op does arithmetic on values, and whether it adds many; lookups and extremes only move bits. */
static void describe_math(const shf_kernel_row *row, int *math, int *sums)
{
  *math = *sums = 1;
  if (row->category == SHEAF_CATEGORY_EMBEDDING) {
    int moves = row->kind == SHEAF_LOOKUP || row->kind == SHEAF_BAG_MAX;
    *sums = !moves;
    *math = !moves || row->element == SHEAF_INT8 || row->element == SHEAF_INT4;
    return;
  }
  switch ((sheaf_segment_kind)row->kind) {
  case SHEAF_SEGMENT_MAX:
  case SHEAF_SEGMENT_MIN:
  case SHEAF_UNSORTED_SEGMENT_MAX:
  case SHEAF_UNSORTED_SEGMENT_MIN:
  case SHEAF_SEGMENT_SUM_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_SUM_BACKWARD:
    *math = *sums = 0;
    return;
  case SHEAF_SEGMENT_MEAN_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_MEAN_BACKWARD:
  case SHEAF_SEGMENT_MAX_BACKWARD:
  case SHEAF_SEGMENT_MIN_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_MIN_BACKWARD:
    *sums = 0;
    return;
  default:
    return;
  }
}

/* On CUDA devices, what groups entries may have to sort them with CUB. */
static int sorts_by_cub(const shf_kernel_row *row)
{
  if (row->arch < SHEAF_ARCH_SM80) return 0;
  if (row->category == SHEAF_CATEGORY_EMBEDDING)
    return row->kind == SHEAF_LOOKUP_BACKWARD || row->kind == SHEAF_BAG_SUM_BACKWARD ||
           row->kind == SHEAF_BAG_MEAN_BACKWARD || row->kind == SHEAF_BAG_MAX_BACKWARD;
  switch ((sheaf_segment_kind)row->kind) {
  case SHEAF_UNSORTED_SEGMENT_SUM:
  case SHEAF_UNSORTED_SEGMENT_MEAN:
  case SHEAF_UNSORTED_SEGMENT_MAX:
  case SHEAF_UNSORTED_SEGMENT_MIN:
  case SHEAF_UNSORTED_SEGMENT_PROD:
  case SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_MIN_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD:
    return 1;
  default:
    return 0;
  }
}

sheaf_sku shf_plan_sku_of(const shf_kernel_row *row)
{
  sheaf_sku sku = {.category = row->category,
                   .kind = row->kind,
                   .element = row->element,
                   .index_element = row->index,
                   .arch = row->arch,
                   .backend = sorts_by_cub(row) ? SHEAF_BACKEND_CUB : SHEAF_BACKEND_BESPOKE};
  int math, sums;
  describe_math(row, &math, &sums);
  sheaf_dtype acc = shf_core_dtype_acc(row->element);
  sku.guarantee = (sheaf_guarantee){.math = math ? acc : SHEAF_DTYPE_NONE,
                                    .accumulator = sums ? acc : SHEAF_DTYPE_NONE,
                                    .deterministic = 1,
                                    .bit_stable_on_same_hardware = 1,
                                    .bit_stable_across_hardware = 1};
  snprintf(sku.name, sizeof sku.name, "%s.%s.%s/%s", sheaf_kind_name(row->category, row->kind),
           sheaf_dtype_name(row->element), sheaf_dtype_name(row->index), arch_names[row->arch]);
  return sku;
}

int shf_plan_runs_on(sheaf_arch arch, sheaf_isa isa)
{
  switch (arch) {
  case SHEAF_ARCH_SCALAR:
    return 1;
  case SHEAF_ARCH_AVX2:
    return isa >= SHEAF_ISA_AVX2;
  case SHEAF_ARCH_AVX512:
    return isa >= SHEAF_ISA_AVX512;
  case SHEAF_ARCH_SM80:
  case SHEAF_ARCH_SM90:
    break;
  }
  return 0;
}

static int64_t cpu_rows(void)
{
  int64_t count = 0;
  for (int i = 0; i < TABLES; i++) count += tables[i].count;
  return count;
}

int64_t sheaf_kernel_count(void)
{
  int on_device;
  shf_plan_device_rows(&on_device);
  return cpu_rows() + on_device;
}

sheaf_status sheaf_kernel_at(int64_t position, sheaf_sku *sku, int *available)
{
  SHF_REQUIRE(sku, INVALID_PROBLEM, "sheaf_kernel_at: sku is NULL");
  SHF_REQUIRE(position >= 0 && position < sheaf_kernel_count(), INVALID_PROBLEM, "kernel %lld of %lld does not exist",
              (long long)position, (long long)sheaf_kernel_count());
  int table = 0, on_device;
  if (position >= cpu_rows()) {
    *sku = shf_plan_sku_of(&shf_plan_device_rows(&on_device)[position - cpu_rows()]);
    if (available) *available = shf_plan_device_runs(sku->arch);
    return SHEAF_OK;
  }
  for (; position >= tables[table].count; table++) position -= tables[table].count;
  *sku = shf_plan_sku_of(&tables[table].rows[position]);
  if (available) *available = shf_plan_runs_on(sku->arch, sheaf_isa_best());
  return SHEAF_OK;
}

sheaf_sku sheaf_plan_sku(const sheaf_plan *plan)
{
  sheaf_sku none;
  memset(&none, 0, sizeof none);
  return plan ? shf_plan_sku_of(plan->row) : none;
}

sheaf_guarantee sheaf_plan_precision_guarantee(const sheaf_plan *plan) { return sheaf_plan_sku(plan).guarantee; }
