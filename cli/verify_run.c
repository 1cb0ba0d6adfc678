/* cli/verify_run.c: selects and runs plans for `sheaf verify`. */
#include <string.h>

#include "verify.h"

/* Notes the kernel of a plan and finds memory for its workspace. */
static void *prepare(verify_case *c, const sheaf_plan *plan)
{
  sheaf_sku sku = sheaf_plan_sku(plan);
  memcpy(c->kernel, sku.name, sizeof c->kernel);
  c->kernel[sizeof c->kernel - 1] = '\0';
  return verify_alloc(c, 1, sheaf_plan_workspace_size(plan) ? sheaf_plan_workspace_size(plan) : 1);
}

static bool failed_call(verify_case *c, const char *call, sheaf_status status)
{
  return verify_fail(c, "%s answers %s: %s", call, sheaf_status_name(status), sheaf_last_error());
}

#define SHEAF_X(name) +1
enum { EMBEDDING_OPERANDS = 0 SHEAF_EMBEDDING_OPERAND_LIST(SHEAF_X) };
enum { SEGMENT_OPERANDS = 0 SHEAF_SEGMENT_OPERAND_LIST(SHEAF_X) };
#undef SHEAF_X

static sheaf_status run_embedding_there(const sheaf_plan *plan, void *workspace, void *stream,
                                        const sheaf_operand *there, const void *args)
{
  sheaf_embedding_args own = *(const sheaf_embedding_args *)args;
  memcpy(&own.table, there, EMBEDDING_OPERANDS * sizeof *there);
  return sheaf_embedding_run(plan, workspace, sheaf_plan_workspace_size(plan), stream, &own);
}

static sheaf_status run_segment_there(const sheaf_plan *plan, void *workspace, void *stream, const sheaf_operand *there,
                                      const void *args)
{
  sheaf_segment_args own = *(const sheaf_segment_args *)args;
  memcpy(&own.data, there, SEGMENT_OPERANDS * sizeof *there);
  return sheaf_segment_run(plan, workspace, sheaf_plan_workspace_size(plan), stream, &own);
}

bool verify_run_embedding(verify_case *c, const sheaf_embedding_desc *desc, const sheaf_embedding_args *args)
{
  sheaf_preference preference = SHEAF_PREFERENCE_INIT;
  preference.threads = c->threads;
  sheaf_plan *plan = NULL;
  sheaf_embedding_desc where = *desc;
  where.device = c->device;
  sheaf_status status = sheaf_embedding_select(&where, &preference, &plan);
  if (status != SHEAF_OK) return failed_call(c, "select", status);
  if (c->device.device_type) {
    prepare(c, plan);
    bool fine = verify_on_device(c, plan, &args->table, EMBEDDING_OPERANDS, run_embedding_there, args);
    sheaf_plan_free(plan);
    return fine;
  }
  void *workspace = prepare(c, plan);
  if (workspace) status = sheaf_embedding_run(plan, workspace, sheaf_plan_workspace_size(plan), NULL, args);
  sheaf_plan_free(plan);
  return status == SHEAF_OK ? workspace != NULL : failed_call(c, "run", status);
}

bool verify_run_segment(verify_case *c, const sheaf_segment_desc *desc, const sheaf_segment_args *args)
{
  sheaf_preference preference = SHEAF_PREFERENCE_INIT;
  preference.threads = c->threads;
  sheaf_plan *plan = NULL;
  sheaf_segment_desc where = *desc;
  where.device = c->device;
  sheaf_status status = sheaf_segment_select(&where, &preference, &plan);
  if (status != SHEAF_OK) return failed_call(c, "select", status);
  if (c->device.device_type) {
    prepare(c, plan);
    bool fine = verify_on_device(c, plan, &args->data, SEGMENT_OPERANDS, run_segment_there, args);
    sheaf_plan_free(plan);
    return fine;
  }
  void *workspace = prepare(c, plan);
  if (workspace) status = sheaf_segment_run(plan, workspace, sheaf_plan_workspace_size(plan), NULL, args);
  sheaf_plan_free(plan);
  return status == SHEAF_OK ? workspace != NULL : failed_call(c, "run", status);
}

bool verify_run_table_grad(verify_case *c, const sheaf_embedding_desc *desc, const sheaf_embedding_args *args,
                           verify_tensor *table_grad)
{
  sheaf_embedding_desc how = *desc;
  sheaf_embedding_args where = *args;
  how.grad_write = SHEAF_GRAD_OVERWRITE;
  where.table_grad = table_grad->operand;
  if (!verify_run_embedding(c, &how, &where)) return false;

  verify_tensor *added = verify_output(c, table_grad->dtype, table_grad->rank, table_grad->shape);
  if (!added) return false;
  if (added->data) memset(added->data, 0, added->operand.bytes);
  how.grad_write = SHEAF_GRAD_ACCUMULATE;
  where.table_grad = added->operand;
  if (!verify_run_embedding(c, &how, &where) ||
      !verify_compare(c, "dweight accumulated onto zeros", table_grad, added, (verify_rule){.signed_zeros = true}))
    return false;

  if (added->data) memset(added->data, 0, added->operand.bytes);
  how.grad_write = SHEAF_GRAD_TOUCHED;
  return verify_run_embedding(c, &how, &where) &&
         verify_compare(c, "dweight stored among zeros", table_grad, added, (verify_rule){.signed_zeros = true});
}
