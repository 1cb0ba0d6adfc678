/* problem.c: generated problems: descriptors, shapes and memory. */
#include "problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/bit_number.h"
#include "oracle/bit_oracle.h"

enum { GUARD_BYTES = 64 };

/* ---- Facts about kinds ------------------------------------------------------------------------------------------- */

bool problem_is_backward(sheaf_category category, int kind)
{
  static const int segment_backward[] = {
      SHEAF_SEGMENT_SUM_BACKWARD,           SHEAF_SEGMENT_MEAN_BACKWARD,         SHEAF_SEGMENT_MAX_BACKWARD,
      SHEAF_SEGMENT_MIN_BACKWARD,           SHEAF_SEGMENT_PROD_BACKWARD,         SHEAF_UNSORTED_SEGMENT_SUM_BACKWARD,
      SHEAF_UNSORTED_SEGMENT_MEAN_BACKWARD, SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD, SHEAF_UNSORTED_SEGMENT_MIN_BACKWARD,
      SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD,
  };
  if (category == SHEAF_CATEGORY_EMBEDDING) {
    return kind == SHEAF_LOOKUP_BACKWARD || kind == SHEAF_BAG_SUM_BACKWARD || kind == SHEAF_BAG_MEAN_BACKWARD ||
           kind == SHEAF_BAG_MAX_BACKWARD;
  }
  for (size_t i = 0; i < sizeof segment_backward / sizeof *segment_backward; i++) {
    if (segment_backward[i] == kind) {
      return true;
    }
  }
  return false;
}

int64_t problem_first_index(const problem_spec *spec)
{
  return spec->sharded && spec->far && spec->index_dtype == SHEAF_I64 ? INT64_C(1) << 32 : 0;
}

bool problem_is_bag(const problem_spec *spec)
{
  return spec->category == SHEAF_CATEGORY_EMBEDDING && spec->kind >= SHEAF_BAG_SUM && spec->kind <= SHEAF_BAG_MAX;
}

bool problem_is_sorted(const problem_spec *spec)
{
  return spec->category == SHEAF_CATEGORY_SEGMENT &&
         (spec->kind <= SHEAF_SEGMENT_PROD ||
          (spec->kind >= SHEAF_SEGMENT_MAX_BACKWARD && spec->kind <= SHEAF_SEGMENT_PROD_BACKWARD));
}

bool problem_copies_bits(const problem_spec *spec)
{
  if (spec->category == SHEAF_CATEGORY_SEGMENT) {
    return spec->kind == SHEAF_SEGMENT_MAX || spec->kind == SHEAF_SEGMENT_MIN ||
           spec->kind == SHEAF_UNSORTED_SEGMENT_MAX || spec->kind == SHEAF_UNSORTED_SEGMENT_MIN;
  }
  return (spec->kind == SHEAF_LOOKUP || spec->kind == SHEAF_BAG_MAX) && spec->dtype != SHEAF_INT8 &&
         spec->dtype != SHEAF_INT4;
}

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

int64_t problem_row_elements(sheaf_dtype dtype, int64_t dim)
{
  return dtype == SHEAF_INT8 ? dim + 8 : dtype == SHEAF_INT4 ? (dim + 1) / 2 + 4 : dim;
}

DLDataType problem_dl_type(sheaf_dtype dtype)
{
  switch (dtype) {
  case SHEAF_F32:
    return (DLDataType){kDLFloat, 32, 1};
  case SHEAF_F64:
    return (DLDataType){kDLFloat, 64, 1};
  case SHEAF_F16:
    return (DLDataType){kDLFloat, 16, 1};
  case SHEAF_BF16:
    return (DLDataType){kDLBfloat, 16, 1};
  case SHEAF_I32:
    return (DLDataType){kDLInt, 32, 1};
  case SHEAF_I64:
    return (DLDataType){kDLInt, 64, 1};
  default:
    return (DLDataType){kDLUInt, 8, 1};
  }
}

void *operand_at(const problem_operand *operand, int64_t in_problem, int64_t row, int64_t column)
{
  const int64_t element = in_problem * operand->problem_stride + row * operand->row_stride + column;
  return operand->memory + operand->data_at + element * (int64_t)bit_element_bytes(operand->dtype);
}

static void point_tensor(problem_operand *operand, int64_t shift)
{
  const size_t offset = (size_t)(shift / 2) * bit_element_bytes(operand->dtype);
  operand->tensor.data = operand->memory + operand->data_at - offset;
  operand->tensor.byte_offset = offset;
  operand->tensor.shape = operand->shape;
  if (operand->tensor.strides != NULL) {
    operand->tensor.strides = operand->strides;
  }
}

/* Memory of an operand whose shape and strides are set. Inputs end with their last element, so that a sanitizer sees a
 * read beyond it; outputs are followed by a guard. */
static void allocate_operand(problem_operand *operand, int64_t shift)
{
  const size_t bytes = bit_element_bytes(operand->dtype);
  const bool none = operand->problems == 0 || operand->rows == 0 || operand->columns == 0;
  const int64_t elements = none ? 0
                                : (operand->problems - 1) * operand->problem_stride +
                                      (operand->rows - 1) * operand->row_stride + operand->columns;
  operand->data_bytes = (size_t)elements * bytes;
  operand->data_at = GUARD_BYTES + (size_t)shift * bytes;
  operand->memory_bytes = operand->data_at + operand->data_bytes + (operand->output ? GUARD_BYTES : 0);
  operand->memory = bit_alloc((int64_t)operand->memory_bytes, 1);
  memset(operand->memory, 0xFF, operand->memory_bytes);
}

/* Whether the problems of a batch share this input. What must fit the ids is shared as they are. */
static bool is_shared(const problem_spec *spec, int at)
{
  const bool follows = spec->category == SHEAF_CATEGORY_SEGMENT && at == AT_SEGMENT_ARG;
  const int by = follows ? AT_IDS : at;
  return spec->batch >= 1 && (spec->shared_inputs || (spec->shared_some && (spec->seed >> by & 1) != 0));
}

/* Gives an operand its shape: [batch,] lead[0] .. [, columns]. columns < 0: a vector of the lead's elements. */
static void shape_operand(problem *p, int at, bool output, sheaf_dtype dtype, const int64_t *lead, int leads,
                          int64_t columns)
{
  const problem_spec *spec = &p->spec;
  problem_operand *operand = &p->operand[at];
  const bool vector = columns < 0;
  const bool batched = spec->batch >= 1;
  const bool shared = !output && is_shared(spec, at);
  int64_t elements = 1;
  for (int i = 0; i < leads; i++) {
    elements *= lead[i];
  }
  *operand = (problem_operand){.given = true, .output = output, .dtype = dtype};
  operand->problems = batched ? spec->batch : 1;
  operand->rows = vector ? 1 : elements;
  operand->columns = vector ? elements : columns;
  operand->row_stride = vector ? elements : columns + spec->row_gap;
  operand->problem_stride = shared ? 0 : operand->rows * operand->row_stride + (batched ? spec->row_gap : 0);
  int rank = 0;
  if (batched) {
    operand->shape[rank] = spec->batch;
    operand->strides[rank++] = operand->problem_stride;
  }
  int64_t stride = vector ? 1 : operand->row_stride;
  for (int i = 0; i < leads; i++) {
    operand->shape[rank + i] = lead[i];
  }
  for (int i = leads - 1; i >= 0; i--) {
    operand->strides[rank + i] = stride;
    stride *= lead[i];
  }
  rank += leads;
  if (!vector) {
    operand->shape[rank] = columns;
    operand->strides[rank++] = 1;
  }
  operand->tensor = (DLTensor){.device = {kDLCPU, 0}, .ndim = rank, .dtype = problem_dl_type(dtype)};
  const bool contiguous = spec->row_gap == 0 && !shared;
  operand->tensor.strides = contiguous && spec->seed % 2 == 0 ? NULL : operand->strides;
  allocate_operand(operand, spec->shift);
  point_tensor(operand, spec->shift);
}

static void shape_vector(problem *p, int at, bool output, sheaf_dtype dtype, int64_t elements)
{
  shape_operand(p, at, output, dtype, &elements, 1, -1);
}

static void shape_matrix(problem *p, int at, bool output, sheaf_dtype dtype, int64_t rows, int64_t columns)
{
  shape_operand(p, at, output, dtype, &rows, 1, columns);
}

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

static void describe_embedding(problem *p)
{
  problem_spec *spec = &p->spec;
  if (spec->bag_form == SHEAF_BAGS_MATRIX && problem_is_bag(spec)) {
    spec->count = spec->bags > 0 ? spec->count / spec->bags * spec->bags : 0;
  }
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.kind = (sheaf_embedding_kind)spec->kind;
  desc.dtype = spec->dtype;
  desc.index_dtype = spec->index_dtype;
  desc.offset_dtype = spec->offset_dtype;
  desc.out_dtype = spec->out_dtype;
  desc.bag_form = problem_is_bag(spec) ? spec->bag_form : SHEAF_BAGS_OFFSETS;
  desc.rows = spec->rows;
  desc.dim = spec->dim;
  desc.indices = spec->kind == SHEAF_BAG_MAX_BACKWARD ? 0 : spec->count;
  desc.bags = problem_is_bag(spec) || spec->kind == SHEAF_BAG_MAX_BACKWARD ? spec->bags : 0;
  if (spec->sharded) {
    desc.row_begin = problem_first_index(spec) + spec->rows / 2 + 1;
    desc.total_rows = desc.row_begin + spec->rows + spec->rows / 3;
  }
  const int64_t first = problem_first_index(spec), total = spec->sharded ? desc.total_rows : spec->rows;
  desc.has_padding = spec->has_padding && total > 0;
  desc.padding_idx = desc.has_padding ? first + random_below(&p->random, total - first) : 0;
  desc.batch = spec->batch;
  desc.weighted = spec->weighted;
  desc.scale_grad_by_freq = spec->scale_grad_by_freq;
  desc.padding = spec->padding_row ? SHEAF_PADDING_ROW : SHEAF_PADDING_ZERO;
  desc.bad_index = spec->error_policy ? SHEAF_BAD_INDEX_ERROR : SHEAF_BAD_INDEX_SKIP;
  desc.grad_write = spec->grad_write;
  p->embedding = desc;
}

static void shape_embedding(problem *p)
{
  const problem_spec *spec = &p->spec;
  const bool quantised = spec->dtype == SHEAF_INT8 || spec->dtype == SHEAF_INT4;
  const bool backward = problem_is_backward(spec->category, spec->kind);
  const bool bags = problem_is_bag(spec);
  const bool lookup = spec->kind == SHEAF_LOOKUP || spec->kind == SHEAF_LOOKUP_BACKWARD;
  const bool weights_grad = bags && backward && spec->weighted && spec->want_weights_grad;
  const sheaf_dtype values = !quantised ? spec->dtype : spec->out_dtype != 0 ? spec->out_dtype : SHEAF_F32;
  const sheaf_dtype weights = quantised ? SHEAF_F32 : spec->dtype;
  int64_t lead[2] = {spec->count, 0};
  int leads = 1;
  if (bags && spec->bag_form == SHEAF_BAGS_MATRIX) {
    leads = 2;
    lead[0] = spec->bags;
    lead[1] = spec->bags > 0 ? spec->count / spec->bags : 0;
  } else if (lookup && spec->high_rank && spec->count % 2 == 0) {
    leads = 2;
    lead[0] = 2;
    lead[1] = spec->count / 2;
  }
  if (!backward || weights_grad) {
    shape_matrix(p, AT_TABLE, false, quantised ? SHEAF_U8 : spec->dtype, spec->rows,
                 problem_row_elements(spec->dtype, spec->dim));
  }
  if (lookup || bags) {
    shape_operand(p, AT_INDICES, false, spec->index_dtype, lead, leads, -1);
  }
  if (bags && spec->bag_form != SHEAF_BAGS_MATRIX) {
    shape_vector(p, AT_OFFSETS, false, spec->offset_dtype != 0 ? spec->offset_dtype : spec->index_dtype,
                 spec->bags + (spec->bag_form == SHEAF_BAGS_OFFSETS_END));
  }
  if (bags && spec->weighted) {
    shape_operand(p, AT_WEIGHTS, false, weights, lead, leads, -1);
  }
  if (lookup) {
    shape_operand(p, backward ? AT_GRAD_OUT : AT_OUT, !backward, values, lead, leads, spec->dim);
  } else {
    shape_matrix(p, backward ? AT_GRAD_OUT : AT_OUT, !backward, values, spec->bags, spec->dim);
  }
  if (weights_grad && spec->kind == SHEAF_BAG_MEAN_BACKWARD) {
    shape_matrix(p, AT_OUT, false, values, spec->bags, spec->dim);
  }
  if ((spec->kind == SHEAF_BAG_MAX && spec->want_arg) || spec->kind == SHEAF_BAG_MAX_BACKWARD) {
    shape_matrix(p, AT_ARG, !backward, spec->index_dtype, spec->bags, spec->dim);
  }
  if (backward && (!bags || spec->want_table_grad || !weights_grad)) {
    shape_matrix(p, AT_TABLE_GRAD, true, spec->dtype, spec->rows, spec->dim);
  }
  if (weights_grad) {
    shape_operand(p, AT_WEIGHTS_GRAD, true, weights, lead, leads, -1);
  }
}

static bool is_extreme_kind(int kind)
{
  return kind == SHEAF_SEGMENT_MAX || kind == SHEAF_SEGMENT_MIN || kind == SHEAF_UNSORTED_SEGMENT_MAX ||
         kind == SHEAF_UNSORTED_SEGMENT_MIN;
}

static bool needs_data(const problem_spec *spec)
{
  switch (spec->kind) {
  case SHEAF_SEGMENT_SUM_BACKWARD:
  case SHEAF_SEGMENT_MEAN_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_SUM_BACKWARD:
  case SHEAF_UNSORTED_SEGMENT_MEAN_BACKWARD:
    return false;
  default:
    return !spec->arg_given;
  }
}

static void shape_segment(problem *p)
{
  const problem_spec *spec = &p->spec;
  const bool backward = problem_is_backward(spec->category, spec->kind);
  sheaf_segment_desc desc = SHEAF_SEGMENT_DESC_INIT;
  desc.kind = (sheaf_segment_kind)spec->kind;
  desc.dtype = spec->dtype;
  desc.index_dtype = spec->index_dtype;
  desc.rows = spec->count;
  desc.dim = spec->dim;
  desc.segments = spec->rows;
  desc.batch = spec->batch;
  desc.arg_given = spec->arg_given;
  desc.empty = spec->identity_empty ? SHEAF_EMPTY_IDENTITY : SHEAF_EMPTY_NEUTRAL;
  desc.ties = spec->split_ties ? SHEAF_TIES_SPLIT : SHEAF_TIES_FIRST;
  desc.bad_index = spec->error_policy ? SHEAF_BAD_INDEX_ERROR : SHEAF_BAD_INDEX_SKIP;
  p->segment = desc;
  shape_vector(p, AT_IDS, false, spec->index_dtype, spec->count);
  if (needs_data(spec)) {
    shape_matrix(p, AT_DATA, false, spec->dtype, spec->count, spec->dim);
  }
  if (backward) {
    shape_matrix(p, AT_SEGMENT_GRAD_OUT, false, spec->dtype, spec->rows, spec->dim);
    shape_matrix(p, AT_DATA_GRAD, true, spec->dtype, spec->count, spec->dim);
  } else {
    shape_matrix(p, AT_SEGMENT_OUT, true, spec->dtype, spec->rows, spec->dim);
  }
  if ((is_extreme_kind(spec->kind) && spec->want_arg) || spec->arg_given) {
    shape_matrix(p, AT_SEGMENT_ARG, !backward, spec->index_dtype, spec->rows, spec->dim);
  }
}

/* ---- Problems and their outputs ---------------------------------------------------------------------------------- */

/* FNV-1a over words of eight bytes, the last one filled up with zeros: one bit changed changes it. */
static uint64_t hash_inputs(const problem *p)
{
  uint64_t hash = 0xCBF29CE484222325u;
  for (int at = 0; at < PROBLEM_OPERANDS; at++) {
    const problem_operand *operand = &p->operand[at];
    for (size_t i = 0; operand->given && !operand->output && i < operand->memory_bytes; i += 8) {
      const size_t left = operand->memory_bytes - i;
      uint64_t word = 0;
      memcpy(&word, operand->memory + i, left < 8 ? left : 8);
      hash = (hash ^ word) * 0x100000001B3u;
    }
  }
  return hash;
}

problem *problem_make(const problem_spec *spec)
{
  problem *p = bit_alloc(1, sizeof *p);
  *p = (problem){.spec = *spec, .random = {spec->seed * 0x2545F4914F6CDD1Du + 1}};
  if (spec->category == SHEAF_CATEGORY_EMBEDDING) {
    describe_embedding(p);
    shape_embedding(p);
  } else {
    shape_segment(p);
  }
  problem_fill(p);
  p->inputs_hash = hash_inputs(p);
  return p;
}

void problem_free(problem *p)
{
  for (int at = 0; at < PROBLEM_OPERANDS; at++) {
    free(p->operand[at].memory);
  }
  free(p);
}

bool problem_inputs_intact(const problem *p) { return hash_inputs(p) == p->inputs_hash; }

problem_outputs *problem_outputs_make(const problem *p)
{
  problem_outputs *outputs = bit_alloc(1, sizeof *outputs);
  memset(outputs, 0, sizeof *outputs);
  for (int at = 0; at < PROBLEM_OPERANDS; at++) {
    if (p->operand[at].given && p->operand[at].output) {
      outputs->operand[at] = p->operand[at];
      outputs->operand[at].memory = bit_alloc((int64_t)p->operand[at].memory_bytes, 1);
      point_tensor(&outputs->operand[at], p->spec.shift);
    }
  }
  problem_outputs_reset(p, outputs);
  return outputs;
}

void problem_outputs_reset(const problem *p, problem_outputs *outputs)
{
  for (int at = 0; at < PROBLEM_OPERANDS; at++) {
    if (outputs->operand[at].given) {
      memcpy(outputs->operand[at].memory, p->operand[at].memory, p->operand[at].memory_bytes);
    }
  }
  outputs->report = (sheaf_index_report){-77, -77, -77};
}

void problem_outputs_free(problem_outputs *outputs)
{
  for (int at = 0; at < PROBLEM_OPERANDS; at++) {
    free(outputs->operand[at].memory);
  }
  free(outputs);
}

static sheaf_operand operand_of(problem *p, problem_outputs *outputs, int at)
{
  problem_operand *operand = p->operand[at].output ? &outputs->operand[at] : &p->operand[at];
  sheaf_operand bound = {NULL, 0};
  if (operand->given) {
    bound.tensor = &operand->tensor;
    bound.bytes = p->spec.trust_shape ? 0 : operand->data_bytes;
  }
  return bound;
}

sheaf_embedding_args problem_embedding_args(problem *p, problem_outputs *outputs)
{
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  int at = 0;
#define SHEAF_X(name) args.name = operand_of(p, outputs, at++);
  SHEAF_EMBEDDING_OPERAND_LIST(SHEAF_X)
#undef SHEAF_X
  args.report = p->spec.want_report ? &outputs->report : NULL;
  return args;
}

sheaf_segment_args problem_segment_args(problem *p, problem_outputs *outputs)
{
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  int at = 0;
#define SHEAF_X(name) args.name = operand_of(p, outputs, at++);
  SHEAF_SEGMENT_OPERAND_LIST(SHEAF_X)
#undef SHEAF_X
  args.report = p->spec.want_report ? &outputs->report : NULL;
  return args;
}

void problem_expect(problem *p, problem_outputs *outputs)
{
  if (p->spec.category == SHEAF_CATEGORY_EMBEDDING) {
    const sheaf_embedding_args args = problem_embedding_args(p, outputs);
    bit_oracle_embedding(&p->embedding, &args);
  } else {
    const sheaf_segment_args args = problem_segment_args(p, outputs);
    bit_oracle_segment(&p->segment, &args);
  }
}
