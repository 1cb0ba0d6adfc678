/* meta_layer.c: the Meta key: every check of a run, the shapes of its results, what it would take; no memory is
 * touched. */
#include "layers/layers_impl.h"

static _Thread_local sheaf_meta_info last;

sheaf_meta_info sheaf_meta_last(void) { return last; }

void shf_meta_nothing(void) { memset(&last, 0, sizeof last); }

sheaf_status shf_meta_check(shf_problem *p, const sheaf_plan *plan)
{
  if (p->key.category == SHEAF_CATEGORY_EMBEDDING)
    SHF_TRY(sheaf_embedding_can_implement(plan, &p->args.embedding));
  else
    SHF_TRY(sheaf_segment_can_implement(plan, &p->args.segment));
  last.workspace_bytes = sheaf_plan_workspace_size(plan);
  last.sku = sheaf_plan_sku(plan);
  return SHEAF_OK;
}

const shf_layer shf_layer_meta = {.kernel = SHF_BACKEND_KERNELS};
