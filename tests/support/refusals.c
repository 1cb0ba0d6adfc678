/* refusals.c: small descriptions, and expectations about select. */
#include "refusals.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

sheaf_embedding_desc embedding_of(sheaf_embedding_kind kind)
{
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.kind = kind;
  desc.dtype = SHEAF_F32;
  desc.index_dtype = SHEAF_I64;
  desc.rows = 10;
  desc.dim = 4;
  desc.indices = 6;
  desc.bags = kind == SHEAF_LOOKUP || kind == SHEAF_LOOKUP_BACKWARD ? 0 : 3;
  return desc;
}

sheaf_segment_desc segments_of(sheaf_segment_kind kind)
{
  sheaf_segment_desc desc = SHEAF_SEGMENT_DESC_INIT;
  desc.kind = kind;
  desc.dtype = SHEAF_F32;
  desc.index_dtype = SHEAF_I32;
  desc.rows = 6;
  desc.dim = 4;
  desc.segments = 3;
  return desc;
}

const char *number(int64_t value)
{
  static char texts[16][24];
  static int next;
  char *text = texts[next++ % 16];
  snprintf(text, sizeof texts[0], "%" PRId64, value);
  return text;
}

void check_refusal(sheaf_status got, const sheaf_plan *plan, sheaf_status wanted, const char *const *words, int line)
{
  const char *text = sheaf_last_error();
  if (got != wanted)
    fail_msg("line %d: %s instead of %s; last error: %s", line, sheaf_status_name(got), sheaf_status_name(wanted),
             text);
  if (plan) fail_msg("line %d: refused, but the plan is not NULL", line);
  for (; *words; words++)
    if (!strstr(text, *words)) fail_msg("line %d: \"%s\" is not in \"%s\"", line, *words, text);
  sheaf_error_info info = sheaf_last_error_info();
  if (info.status != wanted || info.needed || info.got || info.operand || info.position != -1 || info.value ||
      info.count)
    fail_msg("line %d: the numbers beside \"%s\" are not those of a refused description", line, text);
}

/* A place that is no plan, to see that a refusal sets NULL. */
static sheaf_plan *no_plan(void)
{
  static char place;
  return (sheaf_plan *)(void *)&place;
}

void embedding_refused(const sheaf_embedding_desc *desc, const sheaf_preference *preference, sheaf_status status,
                       const char *const *words, int line)
{
  sheaf_plan *plan = no_plan();
  sheaf_status got = sheaf_embedding_select(desc, preference, &plan);
  check_refusal(got, plan, status, words, line);
}

void segment_refused(const sheaf_segment_desc *desc, const sheaf_preference *preference, sheaf_status status,
                     const char *const *words, int line)
{
  sheaf_plan *plan = no_plan();
  sheaf_status got = sheaf_segment_select(desc, preference, &plan);
  check_refusal(got, plan, status, words, line);
}

sheaf_plan *embedding_plan(const sheaf_embedding_desc *desc, const sheaf_preference *preference)
{
  sheaf_plan *plan = NULL;
  if (sheaf_embedding_select(desc, preference, &plan) != SHEAF_OK) fail_msg("refused: %s", sheaf_last_error());
  assert_non_null(plan);
  return plan;
}

sheaf_plan *segment_plan(const sheaf_segment_desc *desc, const sheaf_preference *preference)
{
  sheaf_plan *plan = NULL;
  if (sheaf_segment_select(desc, preference, &plan) != SHEAF_OK) fail_msg("refused: %s", sheaf_last_error());
  assert_non_null(plan);
  return plan;
}

void accepts_embedding(const sheaf_embedding_desc *desc) { sheaf_plan_free(embedding_plan(desc, NULL)); }
void accepts_segment(const sheaf_segment_desc *desc) { sheaf_plan_free(segment_plan(desc, NULL)); }
