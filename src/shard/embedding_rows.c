/* shard/embedding_rows.c: rows that other ranks hold, brought to where indices name them. */
#include "shard/embedding_call.h"

/* NOLINTBEGIN(clang-analyzer-core.*): the analyzer does not see that a flow which failed stays failed. */

static shf_row_source rows_here(const shf_embedding_call *e, const sheaf_dtensor *table)
{
  return (shf_row_source){shf_dtensor_data(table), e->row_hi - e->row_lo, e->row_lo, e->row_bytes};
}

/* Tells owners what is wanted, and fetches what others want into `answers`. Everything else that a rank needs is there:
 * it is what ranks agree on here. Collective when rows are dispatched. */
static void answer(shf_embedding_call *e, const sheaf_dtensor *table, shf_dispatch *d, int64_t asked, void *answers)
{
  shf_call *c = &e->c;
  if (!c->strategy.dispatch || !shf_flow_agree(&c->flow)) return;
  SURELY(&c->flow, shf_dispatch_ask(d));
  if (c->flow.status != SHEAF_OK) return;
  shf_row_source here = rows_here(e, table);
  if (shf_is_host(c->site.device)) {
    SURELY(&c->flow, shf_call_fetch(c, &here, d->number, d->asked, asked, answers));
    return;
  }
  FLOW(&c->flow, shf_call_fetch(c, &here, d->number, d->asked, asked, answers));
  shf_flow_agree(&c->flow);
}

/* Rows that lie elsewhere to the front of `compact`, and while they travel those that lie here behind them. */
static sheaf_status bring_rows(shf_embedding_call *e, const sheaf_dtensor *table, const shf_dispatch *d,
                               const void *answers, char *compact)
{
  shf_row_source here = rows_here(e, table);
  SHF_TRY(shf_dispatch_start(d, e->c.site.device, answers, d->asked_at, compact, d->ask_at, e->row_bytes));
  sheaf_status status = shf_call_fetch(&e->c, &here, d->number, shf_numbers_from(d, d->ids, d->away),
                                       d->distinct - d->away, compact ? compact + d->away * e->row_bytes : NULL);
  SHF_TRY(shf_dispatch_finish(d));
  return status;
}

void shf_embedding_compact(shf_embedding_call *e, const sheaf_dtensor *table, sheaf_dtype wanted, shf_dispatch *d,
                           shf_local_rows *rows)
{
  shf_call *c = &e->c;
  void *answers = NULL, *compact = NULL;
  const void *wide = NULL, *place = NULL;
  shf_dispatch_count(&c->flow, &c->pool, c->strategy.dispatch, d);
  int64_t asked = shf_dispatch_asked(&c->flow, d);
  FLOW(&c->flow, shf_call_get(c, asked * e->row_bytes, &answers));
  FLOW(&c->flow, shf_call_get(c, d->distinct * e->row_bytes, &compact));
  FLOW(&c->flow, shf_dispatch_place(&c->pool, d));
  FLOW(&c->flow, shf_call_write(c, d->place, d->entries * shf_number_bytes(d), &place));
  answer(e, table, d, asked, answers);
  FLOW(&c->flow, bring_rows(e, table, d, answers, compact));
  wide = compact;
  if (!e->quantised)
    FLOW(&c->flow, shf_call_convert(c, c->problem.dtype, compact, wanted, d->distinct * e->columns, &wide));
  *rows = (shf_local_rows){
      e->quantised ? c->problem.dtype : wanted, (void *)wide, d->distinct, 0, d->distinct + 1, place, d->number, 1};
}

void shf_embedding_copy(shf_embedding_call *e, const sheaf_dtensor *table, shf_dispatch *d, sheaf_dtensor **out)
{
  shf_call *c = &e->c;
  void *answers = NULL, *brought = NULL;
  shf_dispatch_count(&c->flow, &c->pool, c->strategy.dispatch, d);
  int64_t asked = shf_dispatch_asked(&c->flow, d);
  FLOW(&c->flow, shf_call_get(c, asked * e->row_bytes, &answers));
  FLOW(&c->flow, shf_call_get(c, d->away * e->row_bytes, &brought));
  FLOW(&c->flow, shf_call_output(c, c->values, c->strategy.out, out));
  answer(e, table, d, asked, answers);
  SURELY(&c->flow, shf_dispatch_bring(d, shf_host(), answers, brought, e->row_bytes));
  if (c->flow.status != SHEAF_OK) return;
  shf_dispatch_copy(d, shf_dtensor_data(table), brought, e->row_bytes, shf_dtensor_data(*out));
}
/* NOLINTEND(clang-analyzer-core.*) */
