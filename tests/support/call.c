/* call.c: one call of a plan over a generated problem, whose operands can be spoilt one by one. */
#include "call.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

/* ---- Making ------------------------------------------------------------------------------------------------------ */

bool call_is_embedding(const call *c) { return c->p->spec.category == SHEAF_CATEGORY_EMBEDDING; }

const char *call_operand_name(const call *c, int at)
{
#define SHEAF_X(name) #name,
  static const char *const embedding[] = {SHEAF_EMBEDDING_OPERAND_LIST(SHEAF_X)};
  static const char *const segment[] = {SHEAF_SEGMENT_OPERAND_LIST(SHEAF_X)};
#undef SHEAF_X
  return call_is_embedding(c) ? embedding[at] : segment[at];
}

problem_spec call_spec(int kind)
{
  bool embedding = kind < 8;
  int own = embedding ? kind : kind - 8;
  problem_spec spec = {.category = embedding ? SHEAF_CATEGORY_EMBEDDING : SHEAF_CATEGORY_SEGMENT, .kind = own};
  spec.dtype = SHEAF_F32;
  spec.index_dtype = SHEAF_I32;
  spec.count = 12;
  spec.dim = 3;
  spec.rows = 5;
  spec.bags = 4;
  spec.weighted = embedding && own >= SHEAF_BAG_SUM && own <= SHEAF_BAG_MEAN_BACKWARD;
  spec.want_arg = spec.want_table_grad = spec.want_weights_grad = true;
  spec.seed = 11 + (uint64_t)kind;
  return spec;
}

void call_select(call *c, int threads, bool grouping_given)
{
  sheaf_preference wish = SHEAF_PREFERENCE_INIT;
  wish.threads = threads;
  c->p->embedding.grouping_given = c->p->segment.grouping_given = grouping_given;
  sheaf_plan_free(c->plan);
  free(c->workspace);
  c->plan = call_is_embedding(c) ? embedding_plan(&c->p->embedding, &wish) : segment_plan(&c->p->segment, &wish);
  c->workspace = aligned_alloc(64, (sheaf_plan_workspace_size(c->plan) + 127) / 64 * 64);
  assert_non_null(c->workspace);
  call_restore(c);
}

call *call_make(const problem_spec *spec)
{
  call *c = calloc(1, sizeof *c);
  assert_non_null(c);
  c->p = problem_make(spec);
  c->outputs = problem_outputs_make(c->p);
  call_select(c, 1, false);
  return c;
}

void call_free(call *c)
{
  sheaf_plan_free(c->plan);
  problem_outputs_free(c->outputs);
  problem_free(c->p);
  free(c->workspace);
  free(c);
}

void call_restore(call *c)
{
  c->operands = call_is_embedding(c) ? 9 : 6;
  for (int at = 0; at < c->operands; at++) {
    const problem_operand *own = c->p->operand[at].output ? &c->outputs->operand[at] : &c->p->operand[at];
    c->operand[at] = (sheaf_operand){NULL, 0};
    if (!own->given) continue;
    c->tensor[at] = own->tensor;
    memcpy(c->shape[at], own->shape, sizeof own->shape);
    memcpy(c->strides[at], own->strides, sizeof own->strides);
    c->tensor[at].shape = c->shape[at];
    c->tensor[at].strides = c->strides[at];
    c->operand[at] = (sheaf_operand){&c->tensor[at], own->data_bytes};
  }
  c->workspace_bytes = sheaf_plan_workspace_size(c->plan);
  c->grouping = NULL;
  c->grouping_bytes = 0;
  c->struct_size = call_is_embedding(c) ? sizeof(sheaf_embedding_args) : sizeof(sheaf_segment_args);
  problem_outputs_reset(c->p, c->outputs);
}

/* ---- Calling ----------------------------------------------------------------------------------------------------- */

static sheaf_embedding_args embedding_args(call *c)
{
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  int at = 0;
#define SHEAF_X(name) args.name = c->operand[at++];
  SHEAF_EMBEDDING_OPERAND_LIST(SHEAF_X)
#undef SHEAF_X
  args.struct_size = c->struct_size;
  args.grouping = c->grouping;
  args.grouping_bytes = c->grouping_bytes;
  args.report = c->p->spec.want_report ? &c->outputs->report : NULL;
  return args;
}

static sheaf_segment_args segment_args(call *c)
{
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  int at = 0;
#define SHEAF_X(name) args.name = c->operand[at++];
  SHEAF_SEGMENT_OPERAND_LIST(SHEAF_X)
#undef SHEAF_X
  args.struct_size = c->struct_size;
  args.grouping = c->grouping;
  args.grouping_bytes = c->grouping_bytes;
  args.report = c->p->spec.want_report ? &c->outputs->report : NULL;
  return args;
}

sheaf_status call_can_implement(call *c)
{
  if (call_is_embedding(c)) {
    sheaf_embedding_args args = embedding_args(c);
    return sheaf_embedding_can_implement(c->plan, &args);
  }
  sheaf_segment_args args = segment_args(c);
  return sheaf_segment_can_implement(c->plan, &args);
}

sheaf_status call_run(call *c)
{
  if (call_is_embedding(c)) {
    sheaf_embedding_args args = embedding_args(c);
    return sheaf_embedding_run(c->plan, c->workspace, c->workspace_bytes, NULL, &args);
  }
  sheaf_segment_args args = segment_args(c);
  return sheaf_segment_run(c->plan, c->workspace, c->workspace_bytes, NULL, &args);
}

/* ---- Expectations ------------------------------------------------------------------------------------------------ */

static const char *kind_of(const call *c) { return sheaf_kind_name(c->p->spec.category, (uint16_t)c->p->spec.kind); }

void call_expect_untouched(const call *c, int line)
{
  for (int at = 0; at < c->operands; at++) {
    const problem_operand *now = &c->outputs->operand[at], *before = &c->p->operand[at];
    if (now->given && memcmp(now->memory, before->memory, before->memory_bytes) != 0)
      fail_msg("line %d, %s: %s was written by a call that failed", line, kind_of(c), call_operand_name(c, at));
  }
}

static void check_failure(call *c, const char *who, sheaf_status got, int at, sheaf_status status,
                          const char *const *words, int line)
{
  const char *text = sheaf_last_error();
  if (got != status)
    fail_msg("line %d, %s, %s: %s instead of %s; last error: %s", line, kind_of(c), who, sheaf_status_name(got),
             sheaf_status_name(status), text);
  for (; *words; words++)
    if (!strstr(text, *words))
      fail_msg("line %d, %s, %s: \"%s\" is not in \"%s\"", line, kind_of(c), who, *words, text);
  sheaf_error_info info = sheaf_last_error_info();
  if (info.status != status)
    fail_msg("line %d: the status beside \"%s\" is %s", line, text, sheaf_status_name(info.status));
  const char *name = at < 0 ? NULL : call_operand_name(c, at);
  if (name ? !info.operand || strcmp(info.operand, name) != 0 : info.operand != NULL)
    fail_msg("line %d: the operand beside \"%s\" is %s", line, text, info.operand ? info.operand : "none");
  call_expect_untouched(c, line);
}

void call_expect_refusal(call *c, int at, sheaf_status status, const char *const *words, int line)
{
  check_failure(c, "can_implement", call_can_implement(c), at, status, words, line);
  check_failure(c, "run", call_run(c), at, status, words, line);
}

void call_expect_run_refusal(call *c, int at, sheaf_status status, const char *const *words, int line)
{
  check_failure(c, "run", call_run(c), at, status, words, line);
}

void call_expect_acceptance(call *c, int line)
{
  if (call_can_implement(c) != SHEAF_OK)
    fail_msg("line %d, %s, can_implement: %s", line, kind_of(c), sheaf_last_error());
  if (call_run(c) != SHEAF_OK) fail_msg("line %d, %s, run: %s", line, kind_of(c), sheaf_last_error());
}

/* ---- Walking ----------------------------------------------------------------------------------------------------- */

/* Ways in which a problem can be laid out; each kind is walked in all of them. */
enum { PLAIN, PADDED, BATCHED, MATRIX, QUANTISED, HALF, LAYOUTS };

static bool lay_out(int layout, problem_spec *spec)
{
  bool embedding = spec->category == SHEAF_CATEGORY_EMBEDDING;
  spec->row_gap = layout == PADDED ? 2 : 0;
  spec->batch = layout == BATCHED ? 2 : 0;
  if (layout == MATRIX) {
    spec->bag_form = SHEAF_BAGS_MATRIX;
    spec->high_rank = true;
    return embedding && spec->kind != SHEAF_BAG_MAX_BACKWARD;
  }
  if (layout == QUANTISED) {
    spec->dtype = spec->kind % 4 ? SHEAF_INT8 : SHEAF_INT4;
    spec->out_dtype = SHEAF_F16;
    return embedding && !problem_is_backward(spec->category, spec->kind);
  }
  if (layout == HALF) {
    spec->dtype = SHEAF_BF16;
    spec->index_dtype = SHEAF_I64;
    spec->offset_dtype = SHEAF_I32;
    spec->bag_form = SHEAF_BAGS_OFFSETS_END;
  }
  return true;
}

void call_walk(void (*check)(call *c, int at))
{
  for (int kind = 0; kind < CALL_KINDS; kind++)
    for (int layout = 0; layout < LAYOUTS; layout++) {
      problem_spec spec = call_spec(kind);
      if (!lay_out(layout, &spec)) continue;
      call *c = call_make(&spec);
      for (int at = 0; at < c->operands; at++) {
        if (!c->operand[at].tensor) continue;
        check(c, at);
        call_restore(c);
      }
      call_accepted(c);
      call_free(c);
    }
}
