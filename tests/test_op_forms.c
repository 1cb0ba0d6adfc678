/* test_op_forms.c: every op with every form of tensor, alone and with autocast, a profile and a trace above it: it has a
 * result, or is refused in words, leaving everything as it was. The table below says which. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "support/tensors.h"

enum { DENSE, META, SPARSE, QUANTIZED, NESTED, BATCHED, FORMS };

/* What an op does with its first input in each form, in the order above: a result (o), or words (-). */
static const struct {
  sheaf_op op;
  const char *does;
} expected[] = {
    {SHEAF_OP_EMBEDDING, "oooo-o"},               /* components are no table */
    {SHEAF_OP_EMBEDDING_BACKWARD, "oooooo"},      /* */
    {SHEAF_OP_EMBEDDING_BAG, "oooo-o"},           /* */
    {SHEAF_OP_EMBEDDING_BAG_BACKWARD, "oooo-o"},  /* the gradient of bags is not jagged */
    {SHEAF_OP_SEGMENT_REDUCE, "oooooo"},          /* */
    {SHEAF_OP_SEGMENT_REDUCE_BACKWARD, "oooooo"}, /* */
    {SHEAF_OP_QUANTIZE, "oooooo"},                /* */
    {SHEAF_OP_DEQUANTIZE, "---o--"},              /* only packed rows can be unpacked, */
    {SHEAF_OP_COALESCE, "--o---"},                /* only a list of rows merged, */
    {SHEAF_OP_TO_DENSE, "oooooo"},                /* */
    {SHEAF_OP_CAST, "oooooo"},                    /* */
    {SHEAF_OP_ADD, "oooooo"},                     /* */
    {SHEAF_OP_MOVEDIM, "oooo-o"},                 /* components stay before what they hold */
    {SHEAF_OP_BATCH, "oo---o"},                   /* a slice of rows must be rows, components are not alike */
    {SHEAF_OP_UNBATCH, "-----o"},                 /* and only what is hidden shown */
    {SHEAF_OP_RESHAPE, "oooooo"},                 /* */
    {SHEAF_OP_EXPAND, "oooooo"},                  /* */
};

/* [4, 3] in this form; a slice of it, when batched. */
static sheaf_tensor *rows_in(int form)
{
  sheaf_tensor *rows = tensor_random(SHEAF_F32, SHAPE(4, 3), 1), *t;
  switch (form) {
  case META:
    return tensor_untouchable(SHEAF_F32, SHAPE(4, 3));
  case SPARSE:
    return RESULT(t, sheaf_tensor_sparse(tensor_of(SHEAF_I64, SHAPE(4), NUMBERS(2, 0, 2, 3)), rows, 4, 0, &t));
  case QUANTIZED:
    return RESULT(t, sheaf_quantize(rows, SHEAF_INT8, &t));
  case NESTED:
    return RESULT(t, sheaf_tensor_nested(rows, tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 1, 4)), &t));
  case BATCHED:
    return tensor_batched(tensor_random(SHEAF_F32, SHAPE(2, 4, 3), 1), 0, 1);
  default:
    return rows;
  }
}

/* Four numbers below four, which do not decrease, where the rows are. */
static sheaf_tensor *numbers_for(int form)
{
  return form == META ? tensor_untouchable(SHEAF_I64, SHAPE(4)) : tensor_of(SHEAF_I64, SHAPE(4), NUMBERS(0, 1, 1, 3));
}

/* What is changed by `written` announces itself in the version. */
static sheaf_status run(sheaf_op op, int form, sheaf_tensor *x, sheaf_tensor **out)
{
  enum { MOST = 9 };
  sheaf_tensor *inputs[7] = {x, numbers_for(form)}, *outputs[2] = {NULL, NULL};
  sheaf_attr attrs[MOST] = {{.i = 0}};
  switch (op) {
  case SHEAF_OP_EMBEDDING_BAG:
  case SHEAF_OP_EMBEDDING_BAG_BACKWARD: /* four bags of one entry each */
    inputs[2] =
        form == META ? tensor_untouchable(SHEAF_I64, SHAPE(4)) : tensor_of(SHEAF_I64, SHAPE(4), NUMBERS(0, 1, 2, 3));
    attrs[SHEAF_EMBEDDING_BAG_FORM].i = SHEAF_BAGS_OFFSETS;
  /* fall through */
  case SHEAF_OP_EMBEDDING:
  case SHEAF_OP_EMBEDDING_BACKWARD:
    attrs[SHEAF_EMBEDDING_PADDING_IDX].i = -1;
    attrs[SHEAF_EMBEDDING_BAD_INDEX].i = SHEAF_BAD_INDEX_ERROR;
    attrs[SHEAF_EMBEDDING_ROWS].i = 4;
    break;
  case SHEAF_OP_SEGMENT_REDUCE:
  case SHEAF_OP_SEGMENT_REDUCE_BACKWARD:
    attrs[SHEAF_SEGMENT_SORTED].i = 1;
    attrs[SHEAF_SEGMENT_SEGMENTS].i = 4;
    break;
  case SHEAF_OP_QUANTIZE:
    attrs[0].i = SHEAF_INT4;
    break;
  case SHEAF_OP_DEQUANTIZE:
  case SHEAF_OP_CAST:
    attrs[0].i = SHEAF_F16;
    break;
  case SHEAF_OP_ADD:
    inputs[1] = x;
    attrs[0].f = 2;
    break;
  case SHEAF_OP_MOVEDIM:
    attrs[1].i = 1;
    break;
  case SHEAF_OP_BATCH:
    attrs[0].i = 2;
    break;
  case SHEAF_OP_UNBATCH:
    attrs[0].i = 1;
    break;
  case SHEAF_OP_RESHAPE: /* a dimension of one before the others */
    attrs[0].i = sheaf_tensor_rank(x) + 1;
    attrs[1].i = 1;
    for (int i = 0; i < sheaf_tensor_rank(x); i++) attrs[2 + i].i = sheaf_tensor_extent(x, i);
    break;
  case SHEAF_OP_EXPAND:
    attrs[0].i = 2;
    break;
  default:
    break;
  }
  const sheaf_call call = tensor_call(op, inputs, outputs, attrs, 0);
  sheaf_status status = sheaf_dispatch(&call);
  assert_null(outputs[1]);
  *out = outputs[0];
  return status;
}

static void test_every_op_with_every_form(void **state)
{
  (void)state;
  assert_int_equal(sizeof expected / sizeof *expected, SHEAF_OP_BUILT_IN);
  for (int op = 0; op < SHEAF_OP_BUILT_IN; op++)
    for (int form = 0; form < FORMS; form++)
      for (int above = 0; above < 2; above++) { /* nothing; autocast, a profile and a trace */
        assert_int_equal(expected[op].op, op);
        sheaf_tensor *x = rows_in(form), *out = NULL;
        sheaf_profile *profile = NULL;
        sheaf_trace *graph = NULL;
        int64_t version = sheaf_tensor_version(x);
        int keys = sheaf_tensor_keys(x).bits;
        if (above) {
          expect_ok(sheaf_profiler_begin());
          expect_ok(sheaf_tracer_begin());
          expect_ok(sheaf_autocast_begin(SHEAF_BF16));
        }
        sheaf_status status = run(op, form, x, &out);
        tensor_keep(out);
        if (above) {
          expect_ok(sheaf_autocast_end());
          expect_ok(sheaf_tracer_end(&graph));
          expect_ok(sheaf_profiler_end(&profile));
          assert_int_equal(sheaf_profile_count(profile), 1);
          assert_int_equal(sheaf_profile_at(profile, 0)->status, status);
          assert_int_equal(sheaf_trace_calls(graph), status == SHEAF_OK); /* a call that failed is not replayed */
          sheaf_trace_free(graph);
          sheaf_profile_free(profile);
        }
        const char *name = sheaf_op_describe(op)->name;
        if ((status == SHEAF_OK) != (expected[op].does[form] == 'o'))
          fail_msg("%s of form %d: %s: %s", name, form, sheaf_status_name(status), sheaf_last_error());
        if (status == SHEAF_OK) {
          assert_non_null(out);
        } else {
          assert_null(out);
          assert_true(status == SHEAF_UNSUPPORTED || status == SHEAF_INVALID_PROBLEM);
          if (!strstr(sheaf_last_error(), name) && !strstr(sheaf_last_error(), "batch") &&
              !strstr(sheaf_last_error(), "vmap"))
            fail_msg("%s of form %d: what is wrong with it? %s", name, form, sheaf_last_error());
        }
        assert_true(sheaf_tensor_version(x) == version && sheaf_tensor_keys(x).bits == keys);
      }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_every_op_with_every_form, tensors_teardown)};
  return cmocka_run_group_tests_name("ops and forms", tests, NULL, NULL);
}
