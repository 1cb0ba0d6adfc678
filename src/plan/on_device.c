/* on_device.c: plans for devices other than the CPU: a row, sizes and the hand-over of a run, through the plug-in. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/device_api.h"
#include "plan/plan_impl.h"

sheaf_status shf_plan_check_device(DLDevice device, const shf_device_api **api)
{
  int type = (int)device.device_type, devices;
  *api = NULL;
  if (type == 0 || type == kDLCPU || type == kDLCUDAHost) return SHEAF_OK;
  SHF_REQUIRE(type == kDLCUDA || type == kDLCUDAManaged, UNSUPPORTED,
              "device type %d: Sheaf runs on CPUs (1) and CUDA devices (2)", type);
  const char *why;
  const shf_device_api *found = shf_core_device_api(type, &why);
  SHF_REQUIRE(found, UNAVAILABLE, "CUDA device %d needs the plug-in libsheaf_cuda.so: %s", device.device_id, why);
  SHF_TRY(found->count(&devices));
  SHF_REQUIRE(device.device_id >= 0 && device.device_id < devices, UNAVAILABLE,
              "there is no CUDA device %d; there are %d", device.device_id, devices);
  *api = found;
  return SHEAF_OK;
}

static shf_device_problem problem_of(const sheaf_plan *plan)
{
  int embedding = plan->category == SHEAF_CATEGORY_EMBEDDING;
  return (shf_device_problem){.category = plan->category,
                              .embedding = embedding ? &plan->embedding : NULL,
                              .segment = embedding ? NULL : &plan->segment,
                              .batch = plan->batch,
                              .device = plan->device.device_id};
}

const shf_kernel_row *shf_plan_device_rows(int *count)
{
  const shf_device_api *api = shf_core_device_api(kDLCUDA, NULL);
  *count = api ? api->row_count : 0;
  return api ? api->rows : NULL;
}

int shf_plan_device_runs(sheaf_arch arch)
{
  const shf_device_api *api = shf_core_device_api(kDLCUDA, NULL);
  int devices;
  if (!api || api->count(&devices) != SHEAF_OK) return 0;
  for (int i = 0; i < devices; i++) {
    sheaf_arch has;
    if (api->arch(i, &has) == SHEAF_OK && has == arch) return 1;
  }
  return 0;
}

/* Why the device's row cannot be taken, or NULL. */
static const char *refusal(const sheaf_plan *plan, const sheaf_sku *sku, const sheaf_preference *preference,
                           char *buffer, size_t size)
{
  if (preference->kernel && strcmp(preference->kernel, sku->name) != 0) return "another one was asked for";
  if (preference->backend != SHEAF_BACKEND_ANY && preference->backend != sku->backend)
    return sku->backend == SHEAF_BACKEND_CUB ? "its backend is Cub, Bespoke was required"
                                             : "its backend is Bespoke, Cub was required";
  if (preference->max_workspace && (uint64_t)plan->layout.total > preference->max_workspace) {
    snprintf(buffer, size, "it needs %" PRId64 " bytes of workspace, %zu are allowed", plan->layout.total,
             preference->max_workspace);
    return buffer;
  }
  return NULL;
}

sheaf_status shf_plan_device_select(sheaf_plan *plan, uint16_t kind, sheaf_dtype element, sheaf_dtype index,
                                    const sheaf_preference *preference)
{
  const shf_device_api *api = plan->api;
  shf_device_problem problem = problem_of(plan);
  shf_device_sizes sizes;
  sheaf_arch arch;
  char buffer[128];
  SHF_TRY(api->arch(problem.device, &arch));
  SHF_TRY(api->sizes(&problem, &sizes));
  plan->layout.total = sizes.workspace;
  plan->grouping_bytes = sizes.grouping;
  plan->grouping_read_bytes = sizes.grouping_read;
  for (int i = 0; i < api->row_count && !plan->row; i++) {
    const shf_kernel_row *row = &api->rows[i];
    if (row->arch == arch && row->category == plan->category && row->kind == kind && row->element == element &&
        row->index == index)
      plan->row = row;
  }
  SHF_REQUIRE(plan->row, UNSUPPORTED, "no kernel fits: there are no candidates for this device");
  sheaf_sku sku = shf_plan_sku_of(plan->row);
  const char *why = refusal(plan, &sku, preference, buffer, sizeof buffer);
  SHF_REQUIRE(!why || !preference->kernel, UNSUPPORTED, "kernel \"%s\" does not fit: %s: %s", preference->kernel,
              sku.name, why);
  SHF_REQUIRE(!why, UNSUPPORTED, "no kernel fits: %s: %s", sku.name, why);
  return api->prepare(&problem);
}

sheaf_status shf_plan_device_given(const sheaf_plan *plan, const shf_bound *bound, const void *grouping, size_t bytes,
                                   int promised)
{
  if (plan->grouping_bytes == 0) return SHEAF_OK;
  SHF_REQUIRE(grouping || !promised, INVALID_PROBLEM,
              "the description says that a grouping is given, but args.grouping is NULL");
  if (!grouping) return SHEAF_OK;
  SHF_TRY(shf_plan_check_memory("grouping", grouping, bytes, plan->grouping_read_bytes, SHEAF_BUFFER_TOO_SMALL));
  return shf_plan_check_apart(plan, bound, "grouping", grouping, plan->grouping_read_bytes);
}

static shf_device_call call_of(const sheaf_plan *plan, const shf_bound *bound, sheaf_index_report *report, void *stream)
{
  return (shf_device_call){.problem = problem_of(plan), .operands = bound->view, .report = report, .stream = stream};
}

sheaf_status shf_plan_device_run(const sheaf_plan *plan, const shf_bound *bound, const void *grouping, void *workspace,
                                 sheaf_index_report *report, void *stream)
{
  if (plan->grouping_bytes > 0 && grouping)
    SHF_TRY(shf_plan_check_pieces(workspace, plan->layout.total, grouping, plan->grouping_read_bytes));
  shf_device_call call = call_of(plan, bound, report, stream);
  call.workspace = workspace;
  call.grouping = plan->grouping_bytes > 0 ? grouping : NULL;
  return plan->api->run(&call);
}

sheaf_status shf_plan_device_group(const sheaf_plan *plan, const shf_bound *bound, void *grouping, size_t bytes,
                                   sheaf_index_report *report, void *stream)
{
  SHF_TRY(shf_plan_check_memory("grouping", grouping, bytes, plan->grouping_bytes, SHEAF_BUFFER_TOO_SMALL));
  SHF_TRY(shf_plan_check_apart(plan, bound, "grouping", grouping, plan->grouping_bytes));
  shf_device_call call = call_of(plan, bound, report, stream);
  return plan->api->group(&call, grouping);
}
