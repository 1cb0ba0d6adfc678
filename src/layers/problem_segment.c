/* problem_segment.c: segment reductions, forward and backward, as problems of a plan. */
#include <inttypes.h>

#include "layers/layers_impl.h"

/* By reduction, sorted or not. */
static const sheaf_segment_kind forward_kind[2][5] = {
    {SHEAF_UNSORTED_SEGMENT_SUM, SHEAF_UNSORTED_SEGMENT_MEAN, SHEAF_UNSORTED_SEGMENT_MAX, SHEAF_UNSORTED_SEGMENT_MIN,
     SHEAF_UNSORTED_SEGMENT_PROD},
    {SHEAF_SEGMENT_SUM, SHEAF_SEGMENT_MEAN, SHEAF_SEGMENT_MAX, SHEAF_SEGMENT_MIN, SHEAF_SEGMENT_PROD}};
static const sheaf_segment_kind backward_kind[2][5] = {
    {SHEAF_UNSORTED_SEGMENT_SUM_BACKWARD, SHEAF_UNSORTED_SEGMENT_MEAN_BACKWARD, SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD,
     SHEAF_UNSORTED_SEGMENT_MIN_BACKWARD, SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD},
    {SHEAF_SEGMENT_SUM_BACKWARD, SHEAF_SEGMENT_MEAN_BACKWARD, SHEAF_SEGMENT_MAX_BACKWARD, SHEAF_SEGMENT_MIN_BACKWARD,
     SHEAF_SEGMENT_PROD_BACKWARD}};

static int64_t attr(const sheaf_call *call, sheaf_segment_attr which) { return call->attrs[which].i; }

static int is_batched(const sheaf_call *call, int input) { return call->batch > 0 && (call->batched >> input & 1); }

static sheaf_status check_input(const sheaf_call *call, int input, int rank)
{
  const sheaf_tensor *t = shf_input(call, input);
  const char *name = shf_dispatch_input_name(call->op, input);
  char shape[120];
  SHF_REQUIRE(t, INVALID_PROBLEM, "%s: %s is not given", shf_op_name(call), name);
  SHF_REQUIRE(t->form == SHEAF_FORM_DENSE || t->form == SHEAF_FORM_META, UNSUPPORTED,
              "%s: %s is a tensor of form %d, whose layer is left out or has no part in this op", shf_op_name(call),
              name, (int)t->form);
  SHF_REQUIRE(t->rank == rank + is_batched(call, input), INVALID_PROBLEM,
              "%s: %s has shape %s; %d dimension%s needed%s", shf_op_name(call), name,
              shf_shape_text(t, shape, sizeof shape), rank, rank == 1 ? " is" : "s are",
              is_batched(call, input) ? " beside the batch" : "");
  return SHEAF_OK;
}

static sheaf_status begin(shf_problem *p, const sheaf_call *call, const sheaf_frame *frame, int backward)
{
  int64_t reduce = attr(call, SHEAF_SEGMENT_REDUCE);
  SHF_REQUIRE(reduce >= SHEAF_REDUCE_SUM && reduce <= SHEAF_REDUCE_PROD, INVALID_PROBLEM,
              "reduce %" PRId64 ": segments are reduced by sum (0), mean, max, min or prod (4)", reduce);
  SHF_TRY(check_input(call, 0, 2));
  SHF_TRY(check_input(call, 1, 1));
  shf_problem_begin(p, call, frame, SHEAF_CATEGORY_SEGMENT);
  sheaf_segment_desc *d = &p->key.d.segment;
  d->kind = (backward ? backward_kind : forward_kind)[attr(call, SHEAF_SEGMENT_SORTED) != 0][reduce];
  if (frame->key == SHEAF_KEY_CUDA) d->device = call->inputs[0]->dl.device;
  d->dtype = call->inputs[0]->dtype;
  d->index_dtype = call->inputs[1]->dtype;
  d->rows = call->inputs[1]->extent[is_batched(call, 1)];
  d->dim = call->inputs[0]->extent[1 + is_batched(call, 0)];
  d->segments = attr(call, SHEAF_SEGMENT_SEGMENTS);
  d->batch = call->batch;
  d->bad_index = (sheaf_bad_index)attr(call, SHEAF_SEGMENT_BAD_INDEX);
  p->args.segment.ids = shf_problem_input(p, 1);
  return SHEAF_OK;
}

static sheaf_status ready_forward(shf_problem *p)
{
  const sheaf_call *call = p->call;
  sheaf_segment_desc *d = &p->key.d.segment;
  sheaf_dtype out_dtype = (sheaf_dtype)attr(call, SHEAF_SEGMENT_OUT_DTYPE);
  SHF_REQUIRE(out_dtype == SHEAF_DTYPE_NONE || out_dtype == d->dtype, UNSUPPORTED,
              "segment_reduce of %s into %s: the result has the data's type, or is quantised",
              sheaf_dtype_name(d->dtype), sheaf_dtype_name(out_dtype));
  d->empty = (sheaf_empty)attr(call, SHEAF_SEGMENT_EMPTY);
  p->args.segment.data = shf_problem_input(p, 0);
  int64_t shape[] = {d->segments, d->dim};
  SHF_TRY(shf_problem_output(p, 0, d->dtype, 2, shape, &p->args.segment.out));
  if (shf_wants(call, 1)) {
    int64_t reduce = attr(call, SHEAF_SEGMENT_REDUCE);
    SHF_REQUIRE(reduce == SHEAF_REDUCE_MAX || reduce == SHEAF_REDUCE_MIN, INVALID_PROBLEM,
                "segment_reduce: arg is asked for, which only max and min have");
    SHF_TRY(shf_problem_output(p, 1, d->index_dtype, 2, shape, &p->args.segment.arg));
  }
  return SHEAF_OK;
}

static sheaf_status run_or_drop(shf_problem *p, sheaf_status ready)
{
  sheaf_status status = ready == SHEAF_OK ? shf_problem_run(p) : ready;
  if (status != SHEAF_OK) shf_problem_drop(p);
  return status;
}

sheaf_status shf_problem_segment(const sheaf_call *call, const sheaf_frame *frame)
{
  shf_problem p;
  SHF_TRY(begin(&p, call, frame, 0));
  return run_or_drop(&p, ready_forward(&p));
}

enum { GRAD_OUT, IDS, DATA, ARG };

sheaf_status shf_problem_segment_backward(const sheaf_call *call, const sheaf_frame *frame)
{
  shf_problem p;
  SHF_TRY(begin(&p, call, frame, 1));
  sheaf_segment_desc *d = &p.key.d.segment;
  sheaf_segment_args *a = &p.args.segment;
  d->segments = call->inputs[GRAD_OUT]->extent[is_batched(call, GRAD_OUT)];
  d->ties = (sheaf_ties)attr(call, SHEAF_SEGMENT_TIES);
  d->arg_given = shf_input(call, ARG) != NULL;
  a->grad_out = shf_problem_input(&p, GRAD_OUT);
  a->data = shf_problem_input(&p, DATA);
  a->arg = shf_problem_input(&p, ARG);
  int64_t shape[] = {d->rows, d->dim};
  return run_or_drop(&p, shf_problem_output(&p, 0, d->dtype, 2, shape, &a->data_grad));
}
