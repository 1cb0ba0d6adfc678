/* choose.c: the parts of select that both families share: structs of any version, preferences, candidate rows. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "plan/plan_impl.h"

sheaf_status shf_plan_check_struct(size_t known_bytes, const void *given, const char *name)
{
  SHF_REQUIRE(given, INVALID_PROBLEM, "%s is NULL", name);
  size_t size;
  memcpy(&size, given, sizeof size);
  SHF_REQUIRE(size >= known_bytes && size <= 65536, INVALID_PROBLEM,
              "%s.struct_size is %zu, but this version has %zu bytes; initialise it with its _INIT macro", name, size,
              known_bytes);
  const char *bytes = given;
  for (size_t i = known_bytes; i < size; i++)
    SHF_REQUIRE(bytes[i] == 0, INVALID_PROBLEM,
                "%s has a nonzero byte at %zu, beyond the %zu that this version (%s) understands", name, i, known_bytes,
                SHEAF_VERSION_STRING);
  return SHEAF_OK;
}

sheaf_status shf_plan_copy_struct(void *known, size_t known_bytes, const void *given, const char *name)
{
  SHF_TRY(shf_plan_check_struct(known_bytes, given, name));
  memcpy(known, given, known_bytes);
  return SHEAF_OK;
}

int shf_plan_multiply(int64_t *product, int64_t factor) { return !__builtin_mul_overflow(*product, factor, product); }

sheaf_status shf_plan_preference(const sheaf_preference *given, sheaf_preference *known, int *threads)
{
  sheaf_preference none = SHEAF_PREFERENCE_INIT;
  *known = none;
  if (given) SHF_TRY(shf_plan_copy_struct(known, sizeof *known, given, "preference"));
  SHF_REQUIRE(known->threads >= 0, INVALID_PROBLEM, "preference.threads is %d", known->threads);
  SHF_REQUIRE((int)known->backend >= 0 && known->backend <= SHEAF_BACKEND_CUB, INVALID_PROBLEM,
              "preference.backend is %d, which is no backend", (int)known->backend);
  SHF_REQUIRE(known->deterministic == 0 || known->deterministic == 1, INVALID_PROBLEM,
              "preference.deterministic is %d; it is 0 or 1", known->deterministic);
  *threads = known->threads ? shf_core_cap_threads(known->threads) : sheaf_threads();
  return SHEAF_OK;
}

/* Why a row cannot be taken, or NULL. */
static const char *refusal(const sheaf_plan *plan, const shf_kernel_row *row, const sheaf_preference *preference,
                           char *buffer, size_t size)
{
  if (preference->kernel && strcmp(preference->kernel, shf_plan_sku_of(row).name) != 0)
    return "another one was asked for";
  if (!shf_plan_runs_on(row->arch, sheaf_isa_best())) return "this CPU lacks the instructions";
  if (!preference->kernel && !shf_plan_runs_on(row->arch, sheaf_isa_current())) return "a lower instruction set is set";
  if (preference->backend == SHEAF_BACKEND_CUB) return "its backend is Bespoke, Cub was required";
  if (preference->max_workspace && (uint64_t)plan->layout.total > preference->max_workspace) {
    snprintf(buffer, size, "it needs %" PRId64 " bytes of workspace, %zu are allowed", plan->layout.total,
             preference->max_workspace);
    return buffer;
  }
  return NULL;
}

static const shf_kernel_row *find_row(sheaf_arch arch, sheaf_category category, uint16_t kind, sheaf_dtype element,
                                      sheaf_dtype index)
{
  int count;
  const shf_kernel_row *rows = shf_plan_rows(arch, element, &count);
  for (int i = 0; i < count; i++)
    if (rows[i].kind == kind && rows[i].category == category && rows[i].index == index) return &rows[i];
  return NULL;
}

sheaf_status shf_plan_choose(sheaf_plan *plan, uint16_t kind, sheaf_dtype element, sheaf_dtype index,
                             const sheaf_preference *preference)
{
  char buffer[128];
  for (int arch = SHEAF_ARCH_AVX512; arch >= SHEAF_ARCH_SCALAR; arch--) {
    const shf_kernel_row *row = find_row((sheaf_arch)arch, plan->category, kind, element, index);
    if (!row || refusal(plan, row, preference, buffer, sizeof buffer)) continue;
    plan->row = row;
    return SHEAF_OK;
  }
  char reasons[640] = "";
  size_t used = 0;
  for (int arch = SHEAF_ARCH_AVX512; arch >= SHEAF_ARCH_SCALAR && used < sizeof reasons; arch--) {
    const shf_kernel_row *row = find_row((sheaf_arch)arch, plan->category, kind, element, index);
    if (!row) continue;
    used += (size_t)snprintf(reasons + used, sizeof reasons - used, "%s%s: %s", used ? "; " : "",
                             shf_plan_sku_of(row).name, refusal(plan, row, preference, buffer, sizeof buffer));
  }
  if (preference->kernel)
    return shf_core_fail(SHEAF_UNSUPPORTED, "kernel \"%s\" does not fit: %s", preference->kernel, reasons);
  return shf_core_fail(SHEAF_UNSUPPORTED, "no kernel fits: %s", used ? reasons : "there are no candidates");
}

sheaf_status shf_plan_publish(const sheaf_plan *made, sheaf_plan **plan)
{
  sheaf_plan *own = shf_core_alloc(sizeof *own);
  if (!own) return shf_core_no_memory("a plan", sizeof *own);
  *own = *made;
  *plan = own;
  return SHEAF_OK;
}

void sheaf_plan_free(sheaf_plan *plan) { shf_core_free(plan, sizeof *plan); }

size_t sheaf_plan_workspace_size(const sheaf_plan *plan) { return plan ? (size_t)plan->layout.total : 0; }
