/* problem_embedding.c: lookups and bags, forward and backward, as problems of a plan. */
#include <inttypes.h>

#include "layers/layers_impl.h"

static const sheaf_embedding_kind forward_kind[] = {SHEAF_BAG_MEAN, SHEAF_BAG_SUM, SHEAF_BAG_MAX};
static const sheaf_embedding_kind backward_kind[] = {SHEAF_BAG_MEAN_BACKWARD, SHEAF_BAG_SUM_BACKWARD,
                                                     SHEAF_BAG_MAX_BACKWARD};

static int64_t attr(const sheaf_call *call, sheaf_embedding_attr which) { return call->attrs[which].i; }

/* That an input is there, plain (or packed), and has a rank of its own within what the call allows. */
static sheaf_status check_input(const sheaf_call *call, int input, int least_rank, int most_rank, int packed)
{
  const sheaf_tensor *t = shf_input(call, input);
  const char *name = shf_dispatch_input_name(call->op, input);
  SHF_REQUIRE(t, INVALID_PROBLEM, "%s: %s is not given", shf_op_name(call), name);
  SHF_REQUIRE(t->form == SHEAF_FORM_DENSE || t->form == SHEAF_FORM_META || (packed && t->form == SHEAF_FORM_QUANTIZED),
              UNSUPPORTED, "%s: %s is a tensor of form %d, whose layer is left out or has no part in this op",
              shf_op_name(call), name, (int)t->form);
  int batched = call->batch > 0 && (call->batched >> input & 1);
  char shape[120];
  SHF_REQUIRE(t->rank >= least_rank + batched && t->rank <= most_rank + batched, INVALID_PROBLEM,
              "%s: %s has shape %s; %d%s needed%s", shf_op_name(call), name, shf_shape_text(t, shape, sizeof shape),
              least_rank,
              least_rank < most_rank ? " or more dimensions are"
              : least_rank == 1      ? " dimension is"
                                     : " dimensions are",
              batched ? " beside the batch" : "");
  return SHEAF_OK;
}

/* Extent i of an input, not counting the batch. */
static int64_t extent(const sheaf_call *call, int input, int i)
{
  return call->inputs[input]->extent[i + (call->batch > 0 && (call->batched >> input & 1))];
}

static int inner_rank(const sheaf_call *call, int input)
{
  return call->inputs[input]->rank - (call->batch > 0 && (call->batched >> input & 1));
}

static int64_t elements(const sheaf_call *call, int input)
{
  int64_t count = 1;
  for (int i = inner_rank(call, input) - 1; i >= 0; i--) count *= extent(call, input, i);
  return count;
}

/* What all four ops have in common. */
static void describe(shf_problem *p, sheaf_embedding_desc *d, const sheaf_tensor *typed, const sheaf_tensor *index)
{
  const sheaf_call *call = p->call;
  if (p->frame->key == SHEAF_KEY_CUDA) d->device = shf_device_of(typed);
  d->dtype = typed->dtype;
  d->index_dtype = index->dtype;
  d->batch = call->batch;
  d->has_padding = attr(call, SHEAF_EMBEDDING_PADDING_IDX) >= 0;
  d->padding_idx = d->has_padding ? attr(call, SHEAF_EMBEDDING_PADDING_IDX) : 0;
  d->bad_index = (sheaf_bad_index)attr(call, SHEAF_EMBEDDING_BAD_INDEX);
}

/* Whether the Sparse key asks for a gradient whose rows are found on the device. */
static int finds_rows(const shf_problem *p)
{
  return p->frame->key == SHEAF_KEY_CUDA && attr(p->call, SHEAF_EMBEDDING_SPARSE) == SHF_SPARSE_ON_DEVICE;
}

static sheaf_status run_or_drop(shf_problem *p, sheaf_status ready)
{
  sheaf_status status = ready != SHEAF_OK ? ready : finds_rows(p) ? shf_problem_run_rows(p) : shf_problem_run(p);
  if (__builtin_expect(status != SHEAF_OK || p->converted != NULL, 0)) shf_problem_drop(p);
  return status;
}

/* ---- Lookup ---- */

static sheaf_status lookup_output(shf_problem *p)
{
  const sheaf_call *call = p->call;
  const sheaf_embedding_desc *d = &p->key.d.embedding;
  int rank = inner_rank(call, 1);
  int64_t shape[SHEAF_TENSOR_MAX_RANK + 1];
  for (int i = 0; i < rank; i++) shape[i] = extent(call, 1, i);
  shape[rank] = d->dim;
  return shf_problem_output(p, 0,
                            d->out_dtype                 ? d->out_dtype
                            : shf_is_quantised(d->dtype) ? SHEAF_F32
                                                         : d->dtype,
                            rank + 1, shape, &p->args.embedding.out);
}

sheaf_status shf_problem_embedding(const sheaf_call *call, const sheaf_frame *frame)
{
  shf_problem p;
  SHF_TRY(check_input(call, 0, 2, 2, 1));
  SHF_TRY(check_input(call, 1, 0, SHEAF_TENSOR_MAX_RANK, 0));
  shf_problem_begin(&p, call, frame, SHEAF_CATEGORY_EMBEDDING);
  sheaf_embedding_desc *d = &p.key.d.embedding;
  d->kind = SHEAF_LOOKUP;
  describe(&p, d, call->inputs[0], call->inputs[1]);
  d->rows = extent(call, 0, 0);
  d->dim = extent(call, 0, 1);
  d->indices = elements(call, 1);
  d->padding = (sheaf_padding)attr(call, SHEAF_EMBEDDING_PADDING);
  d->out_dtype = (sheaf_dtype)attr(call, SHEAF_EMBEDDING_OUT_DTYPE);
  p.args.embedding.table = shf_problem_input(&p, 0);
  p.args.embedding.indices = shf_problem_input(&p, 1);
  return run_or_drop(&p, lookup_output(&p));
}

sheaf_status shf_problem_embedding_backward(const sheaf_call *call, const sheaf_frame *frame)
{
  shf_problem p;
  SHF_TRY(check_input(call, 0, 1, SHEAF_TENSOR_MAX_RANK, 0));
  SHF_TRY(check_input(call, 1, 0, SHEAF_TENSOR_MAX_RANK, 0));
  shf_problem_begin(&p, call, frame, SHEAF_CATEGORY_EMBEDDING);
  sheaf_embedding_desc *d = &p.key.d.embedding;
  d->kind = SHEAF_LOOKUP_BACKWARD;
  describe(&p, d, call->inputs[0], call->inputs[1]);
  d->rows = attr(call, SHEAF_EMBEDDING_ROWS);
  d->dim = extent(call, 0, inner_rank(call, 0) - 1);
  d->indices = elements(call, 1);
  d->scale_grad_by_freq = attr(call, SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ) != 0;
  d->grad_write = SHEAF_GRAD_OVERWRITE;
  p.args.embedding.grad_out = shf_problem_input(&p, 0);
  p.args.embedding.indices = shf_problem_input(&p, 1);
  int64_t shape[] = {d->rows, d->dim};
  if (finds_rows(&p)) return run_or_drop(&p, SHEAF_OK);
  return run_or_drop(&p, shf_problem_output(&p, 0, d->dtype, 2, shape, &p.args.embedding.table_grad));
}

/* ---- Bags ---- */

/* Adds lengths up, problem by problem, on the host. */
static sheaf_status add_lengths(const sheaf_tensor *lengths, int64_t problems, int64_t bags, int64_t indices,
                                int64_t *offset)
{
  SHF_REQUIRE(shf_tensor_is_contiguous(lengths), INVALID_PROBLEM, "lengths must be contiguous");
  for (int64_t problem = 0; problem < problems; problem++) {
    int64_t end = 0;
    *offset++ = 0;
    for (int64_t b = 0; b < bags; b++) {
      int64_t length = shf_index_at(lengths, problem * bags + b);
      SHF_REQUIRE(length >= 0 && length <= indices - end, INVALID_PROBLEM,
                  "length %" PRId64 " of bag %" PRId64 " does not fit the %" PRId64 " indices that are left", length, b,
                  indices - end);
      *offset++ = end += length;
    }
    SHF_REQUIRE(end == indices, INVALID_PROBLEM, "lengths add up to %" PRId64 ", but there are %" PRId64 " indices",
                end, indices);
  }
  return SHEAF_OK;
}

/* Offsets with their end, made of lengths [B] (or [batch, B]); those on a device come to the host for it and go
 * back. */
static sheaf_status offsets_of_lengths(shf_problem *p, sheaf_tensor *lengths, int64_t indices)
{
  int64_t bags = lengths->extent[lengths->rank - 1], problems = lengths->rank > 1 ? lengths->extent[0] : 1;
  int64_t shape[] = {problems, bags + 1};
  const int64_t *own_shape = lengths->rank > 1 ? shape : shape + 1;
  SHF_REQUIRE(lengths->dtype == SHEAF_I32 || lengths->dtype == SHEAF_I64, UNSUPPORTED,
              "lengths of %s: i32 and i64 are supported", sheaf_dtype_name(lengths->dtype));
  if (shf_is_meta(p->frame)) return shf_tensor_make(SHEAF_I64, lengths->rank, own_shape, lengths, &p->converted);
  sheaf_tensor *host, *offsets = NULL;
  SHF_TRY(shf_tensor_on_host(lengths, &host));
  sheaf_status status = shf_tensor_make(SHEAF_I64, lengths->rank, own_shape, host, &offsets);
  if (status == SHEAF_OK) status = add_lengths(host, problems, bags, indices, offsets->dl.data);
  if (status == SHEAF_OK) status = sheaf_tensor_to(offsets, shf_device_of(lengths), &p->converted);
  sheaf_tensor_release(offsets);
  sheaf_tensor_release(host);
  return status;
}

/* Bags of a forward or backward call: indices, offsets and weights are inputs 1, 2 and 3 of either. */
static sheaf_status describe_bags(shf_problem *p, sheaf_embedding_desc *d)
{
  const sheaf_call *call = p->call;
  sheaf_tensor *offsets = shf_input(call, 2);
  sheaf_embedding_args *a = &p->args.embedding;
  int64_t form = attr(call, SHEAF_EMBEDDING_BAG_FORM);
  SHF_REQUIRE(form >= SHEAF_BAGS_OFFSETS && form <= SHEAF_BAGS_LENGTHS, INVALID_PROBLEM, "bag_form is %" PRId64, form);
  SHF_TRY(check_input(call, 1, form == SHEAF_BAGS_MATRIX ? 2 : 1, form == SHEAF_BAGS_MATRIX ? 2 : 1, 0));
  d->indices = elements(call, 1);
  a->indices = shf_problem_input(p, 1);
  if (form == SHEAF_BAGS_MATRIX) {
    SHF_REQUIRE(!offsets, INVALID_PROBLEM, "%s: indices are a matrix of bags, and offsets are given too",
                shf_op_name(call));
    d->bags = extent(call, 1, 0);
  } else {
    SHF_TRY(check_input(call, 2, 1, 1, 0));
    d->bags = extent(call, 2, 0) - (form == SHEAF_BAGS_OFFSETS_END);
    SHF_REQUIRE(d->bags >= 0, INVALID_PROBLEM, "offsets with their end need an entry, these have none");
    a->offsets = shf_problem_input(p, 2);
    d->offset_dtype = offsets->dtype;
  }
  if (form == SHEAF_BAGS_LENGTHS) {
    SHF_TRY(offsets_of_lengths(p, offsets, d->indices));
    a->offsets = shf_problem_operand(p, p->converted, (call->batched >> 2 & 1) != 0);
    d->offset_dtype = SHEAF_I64;
    form = SHEAF_BAGS_OFFSETS_END;
  }
  d->bag_form = (sheaf_bag_form)form;
  d->weighted = shf_input(call, 3) != NULL;
  a->weights = shf_problem_input(p, 3);
  return SHEAF_OK;
}

static sheaf_status mode_of(const sheaf_call *call, int64_t *mode)
{
  *mode = attr(call, SHEAF_EMBEDDING_MODE);
  SHF_REQUIRE(*mode >= SHEAF_MODE_MEAN && *mode <= SHEAF_MODE_MAX, INVALID_PROBLEM,
              "mode %" PRId64 ": bags are reduced by mean (0), sum (1) or max (2)", *mode);
  return SHEAF_OK;
}

static sheaf_status ready_bag(shf_problem *p, int64_t mode)
{
  const sheaf_call *call = p->call;
  sheaf_embedding_desc *d = &p->key.d.embedding;
  sheaf_embedding_args *a = &p->args.embedding;
  d->kind = forward_kind[mode];
  describe(p, d, call->inputs[0], call->inputs[1]);
  SHF_TRY(describe_bags(p, d));
  d->rows = extent(call, 0, 0);
  d->dim = extent(call, 0, 1);
  d->out_dtype = (sheaf_dtype)attr(call, SHEAF_EMBEDDING_OUT_DTYPE);
  a->table = shf_problem_input(p, 0);
  int64_t shape[] = {d->bags, d->dim};
  SHF_TRY(shf_problem_output(p, 0,
                             d->out_dtype                 ? d->out_dtype
                             : shf_is_quantised(d->dtype) ? SHEAF_F32
                                                          : d->dtype,
                             2, shape, &a->out));
  if (shf_wants(call, 1)) {
    SHF_REQUIRE(mode == SHEAF_MODE_MAX, INVALID_PROBLEM, "embedding_bag: arg is asked for, which only max has");
    SHF_TRY(shf_problem_output(p, 1, d->index_dtype, 2, shape, &a->arg));
  }
  return SHEAF_OK;
}

sheaf_status shf_problem_embedding_bag(const sheaf_call *call, const sheaf_frame *frame)
{
  shf_problem p;
  int64_t mode;
  SHF_TRY(mode_of(call, &mode));
  SHF_TRY(check_input(call, 0, 2, 2, 1));
  SHF_TRY(check_input(call, 1, 0, SHEAF_TENSOR_MAX_RANK, 0));
  shf_problem_begin(&p, call, frame, SHEAF_CATEGORY_EMBEDDING);
  return run_or_drop(&p, ready_bag(&p, mode));
}

enum { GRAD_OUT, INDICES, OFFSETS, WEIGHTS, TABLE, OUT, ARG };

static sheaf_status ready_bag_backward(shf_problem *p, int64_t mode)
{
  const sheaf_call *call = p->call;
  sheaf_embedding_desc *d = &p->key.d.embedding;
  sheaf_embedding_args *a = &p->args.embedding;
  const sheaf_tensor *index = shf_input(call, mode == SHEAF_MODE_MAX ? ARG : INDICES);
  SHF_REQUIRE(index, INVALID_PROBLEM, "%s: %s is not given", shf_op_name(call),
              mode == SHEAF_MODE_MAX ? "arg" : "indices");
  d->kind = backward_kind[mode];
  describe(p, d, call->inputs[0], index);
  d->rows = attr(call, SHEAF_EMBEDDING_ROWS);
  d->dim = extent(call, GRAD_OUT, 1);
  d->grad_write = SHEAF_GRAD_OVERWRITE;
  d->scale_grad_by_freq = attr(call, SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ) != 0;
  a->grad_out = shf_problem_input(p, GRAD_OUT);
  if (mode == SHEAF_MODE_MAX) {
    d->bags = extent(call, GRAD_OUT, 0);
    a->arg = shf_problem_input(p, ARG);
    d->has_padding = 0; /* arg never names padding */
    d->padding_idx = 0;
  } else {
    SHF_TRY(describe_bags(p, d));
  }
  int64_t table[] = {d->rows, d->dim}, weights[SHEAF_TENSOR_MAX_RANK];
  if (shf_wants(call, 0) && !finds_rows(p)) SHF_TRY(shf_problem_output(p, 0, d->dtype, 2, table, &a->table_grad));
  if (shf_wants(call, 1)) {
    SHF_REQUIRE(d->weighted, INVALID_PROBLEM,
                "embedding_bag_backward: the weights' gradient is wanted, but there are "
                "no weights");
    SHF_TRY(check_input(call, TABLE, 2, 2, 0));
    a->table = shf_problem_input(p, TABLE);
    a->out = shf_problem_input(p, OUT);
    int rank = inner_rank(call, INDICES);
    for (int i = 0; i < rank; i++) weights[i] = extent(call, INDICES, i);
    SHF_TRY(shf_problem_output(p, 1, d->dtype, rank, weights, &a->weights_grad));
  }
  return SHEAF_OK;
}

sheaf_status shf_problem_embedding_bag_backward(const sheaf_call *call, const sheaf_frame *frame)
{
  shf_problem p;
  int64_t mode;
  SHF_TRY(mode_of(call, &mode));
  SHF_TRY(check_input(call, GRAD_OUT, 2, 2, 0));
  shf_problem_begin(&p, call, frame, SHEAF_CATEGORY_EMBEDDING);
  return run_or_drop(&p, ready_bag_backward(&p, mode));
}
