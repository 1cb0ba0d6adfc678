/* problem_rows.c: a row-sparse gradient on a device: entries are grouped there, the rows that they name counted and
 * numbered, and the gradient computed for a table that has these rows only, by the same kernels as the dense one's, so
 * that it has its bits. The host waits once, for how many rows there are, since that is the shape of the result. */
#include <inttypes.h>

#include "core/device_api.h"
#include "layers/layers_impl.h"

/* What comes back to the host. */
typedef struct answer {
  int64_t count;
  sheaf_index_report report;
} answer;

static size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* Groups the entries, and counts the rows that they name. The memory, which the answer lies behind, is the caller's to
 * free, also after a failure. */
static sheaf_status count_rows(shf_problem *p, DLDevice device, struct shf_device_rows *rows, answer *found)
{
  const sheaf_embedding_desc *d = &p->key.d.embedding;
  const sheaf_plan *plan;
  const char *kernel_name;
  int strict = d->bad_index == SHEAF_BAD_INDEX_ERROR;
  SHF_TRY(shf_cache_plan(&p->key, &plan, &kernel_name));
  size_t bytes = aligned(sheaf_grouping_size(plan));
  SHF_TRY(shf_place_alloc(device, bytes + aligned(sizeof *found), &rows->grouping));
  answer *there = (answer *)(void *)((char *)rows->grouping + bytes);
  p->args.embedding.report = strict ? &there->report : NULL;
  rows->whole = d;
  rows->count = &there->count;
  SHF_TRY(shf_place_clock_start(device));
  SHF_TRY(
      sheaf_embedding_grouping_build(plan, rows->grouping, bytes, sheaf_stream_current(device), &p->args.embedding));
  SHF_TRY(shf_place_count_rows(device, rows));
  SHF_TRY(shf_place_clock_stop(device));
  SHF_TRY(shf_place_copy(device, found, there, sizeof *found));
  return strict ? shf_problem_report(p, &found->report) : SHEAF_OK;
}

static sheaf_status number_rows(DLDevice device, struct shf_device_rows *rows)
{
  SHF_TRY(shf_place_clock_start(device));
  SHF_TRY(shf_place_number_rows(device, rows));
  return shf_place_clock_stop(device);
}

/* The problem becomes one over a table of the rows that were counted. */
static sheaf_status make_compact(shf_problem *p, DLDevice device, struct shf_device_rows *rows, int64_t count)
{
  sheaf_embedding_desc *d = &p->key.d.embedding, whole = *d;
  const sheaf_plan *plan;
  const char *kernel_name;
  int64_t shape[] = {count, d->dim};
  d->total_rows = d->rows; /* what means count stays the same */
  d->rows = count;
  d->grouping_given = 1;
  d->bad_index = SHEAF_BAD_INDEX_SKIP;
  SHF_TRY(shf_cache_plan(&p->key, &plan, &kernel_name));
  size_t bytes = sheaf_grouping_size(plan);
  SHF_TRY(shf_place_alloc(device, bytes, &rows->compact_grouping));
  rows->whole = &whole;
  rows->compact = d;
  const sheaf_status numbered = number_rows(device, rows);
  rows->whole = NULL; /* which ends with this function */
  SHF_TRY(numbered);
  p->args.embedding.report = NULL;
  p->args.embedding.grouping = rows->compact_grouping;
  p->args.embedding.grouping_bytes = bytes;
  return shf_problem_output(p, 0, d->dtype, 2, shape, &p->args.embedding.table_grad);
}

/* `ids` gets the rows; the call's output becomes their gradients. */
static sheaf_status run_compact(shf_problem *p, DLDevice device, struct shf_device_rows *rows, sheaf_tensor **ids)
{
  const sheaf_embedding_desc *d = &p->key.d.embedding;
  answer found = {0, {0, -1, 0}};
  SHF_TRY(count_rows(p, device, rows, &found));
  SHF_TRY(shf_tensor_make(d->index_dtype, 1, &found.count, p->call->inputs[0], ids));
  rows->ids = shf_data(*ids);
  rows->ids_wide = d->index_dtype == SHEAF_I64;
  SHF_TRY(make_compact(p, device, rows, found.count));
  return shf_problem_run(p);
}

sheaf_status shf_problem_run_rows(shf_problem *p)
{
  sheaf_embedding_desc *d = &p->key.d.embedding;
  DLDevice device = d->device;
  struct shf_device_rows rows = {.grouping = NULL};
  int64_t shape[] = {d->rows, d->dim};
  sheaf_tensor *ids = NULL, *sparse = NULL;
  if (d->kind != SHEAF_BAG_MAX_BACKWARD) d->grad_write = SHEAF_GRAD_TOUCHED; /* as are all rows of the compact table */
  SHF_REQUIRE(!p->call->outputs[0], UNSUPPORTED, "a row-sparse gradient cannot be written into a given tensor");
  SHF_REQUIRE(!p->call->batch, UNSUPPORTED, "rows of %" PRId64 " gradients cannot be found at once", p->call->batch);
  sheaf_status status = run_compact(p, device, &rows, &ids);
  shf_place_free(device, rows.grouping, 0);
  shf_place_free(device, rows.compact_grouping, 0);
  if (status == SHEAF_OK) status = shf_tensor_sparse(ids, p->call->outputs[0], 2, shape, 1, &sparse);
  shf_drop(&p->call->outputs[0]);
  p->call->outputs[0] = sparse;
  sheaf_tensor_release(ids);
  return status;
}
