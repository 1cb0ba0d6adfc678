/* call.h: one call of a plan over a generated problem, whose operands can be spoilt one by one.
 *
 *   call *c = call_make(&spec);
 *   c->tensor[AT_TABLE].ndim = 3;
 *   call_refused(c, AT_TABLE, INVALID_PROBLEM, "table", "[5, 3]");  // can_implement and run alike, outputs untouched
 *   call_restore(c);
 *   call_accepted(c);
 *   call_free(c);
 *
 * Expectations fail the cmocka test they are in.
 */
#ifndef SHEAF_TESTS_CALL_H
#define SHEAF_TESTS_CALL_H

#include "problem.h"
#include "refusals.h"

enum { CALL_DIMENSIONS = 40 };

typedef struct call {
  problem *p;
  problem_outputs *outputs;
  sheaf_plan *plan;
  int operands;
  sheaf_operand operand[PROBLEM_OPERANDS]; /* what the call gives; tensors point below */
  DLTensor tensor[PROBLEM_OPERANDS];       /* with strides, always */
  int64_t shape[PROBLEM_OPERANDS][CALL_DIMENSIONS], strides[PROBLEM_OPERANDS][CALL_DIMENSIONS];
  unsigned char *workspace; /* 64-byte aligned, with a gap behind it */
  size_t workspace_bytes;
  const void *grouping;
  size_t grouping_bytes;
  size_t struct_size; /* of args */
} call;

/* Makes the problem, selects a plan with one thread, and binds everything that the problem gives. */
call *call_make(const problem_spec *spec);
void call_free(call *c);

/* Another plan of the same problem, with a workspace of its own; restores. */
void call_select(call *c, int threads, bool grouping_given);

/* Undoes everything that was done to operands, bytes of the workspace, grouping, struct_size and outputs. */
void call_restore(call *c);

bool call_is_embedding(const call *c);
const char *call_operand_name(const call *c, int at);

sheaf_status call_can_implement(call *c);
sheaf_status call_run(call *c);

/* Fails unless every byte of the outputs, gaps and guards too, is what it was before. */
void call_expect_untouched(const call *c, int line);

/* Fails unless can_implement and run refuse with this status, name the operand (-1: none), use every word, and
 * leave the outputs alone. */
void call_expect_refusal(call *c, int at, sheaf_status status, const char *const *words, int line);
#define call_refused(c, at, status, ...) call_expect_refusal(c, at, SHEAF_##status, WORDS(__VA_ARGS__), __LINE__)

/* The same for what only run can know. */
void call_expect_run_refusal(call *c, int at, sheaf_status status, const char *const *words, int line);
#define call_run_refused(c, at, status, ...) \
  call_expect_run_refusal(c, at, SHEAF_##status, WORDS(__VA_ARGS__), __LINE__)

/* Fails unless can_implement and run accept. */
void call_expect_acceptance(call *c, int line);
#define call_accepted(c) call_expect_acceptance(c, __LINE__)

/* The spec of a small problem of one kind (0 to 7, then 8 to 27 for segments) with every operand that the kind
 * takes. */
problem_spec call_spec(int kind);
enum { CALL_KINDS = 28 };

/* Calls check(c, at) for every operand that every kind is given, in every layout (plain, with gaps between rows, as a
 * batch, as a matrix of bags, quantised, of 16 bits with 64-bit indices), and restores. */
void call_walk(void (*check)(call *c, int at));

#endif
