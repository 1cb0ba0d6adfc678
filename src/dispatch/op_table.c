/* op_table.c: what the built-in ops are called, take and give. */
#include <sheaf/ops.h>

#include "dispatch/dispatch_impl.h"

static const char *const out_names[] = {"out", "arg"};
static const char *const tensor_names[] = {"tensor"};
static const char *const embedding_inputs[] = {"table", "indices", "offsets", "weights"};
static const char *const backward_inputs[] = {"grad_out", "indices", "offsets", "weights", "table", "out", "arg"};
static const char *const backward_outputs[] = {"table_grad", "weights_grad"};
static const char *const segment_inputs[] = {"data", "ids"};
static const char *const segment_backward_inputs[] = {"grad_out", "ids", "data", "arg"};
static const char *const segment_backward_outputs[] = {"data_grad"};
static const char *const add_inputs[] = {"a", "b"};

static const sheaf_attr_spec embedding_attrs[SHEAF_EMBEDDING_ATTRS] = {
    [SHEAF_EMBEDDING_PADDING_IDX] = {"padding_idx", SHEAF_ATTR_INT, {-1}},
    [SHEAF_EMBEDDING_PADDING] = {"padding", SHEAF_ATTR_INT, {0}},
    [SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ] = {"scale_grad_by_freq", SHEAF_ATTR_INT, {0}},
    [SHEAF_EMBEDDING_SPARSE] = {"sparse", SHEAF_ATTR_INT, {0}},
    [SHEAF_EMBEDDING_BAD_INDEX] = {"bad_index", SHEAF_ATTR_INT, {SHEAF_BAD_INDEX_ERROR}},
    [SHEAF_EMBEDDING_OUT_DTYPE] = {"out_dtype", SHEAF_ATTR_DTYPE, {0}},
    [SHEAF_EMBEDDING_MODE] = {"mode", SHEAF_ATTR_INT, {0}},
    [SHEAF_EMBEDDING_BAG_FORM] = {"bag_form", SHEAF_ATTR_INT, {0}},
    [SHEAF_EMBEDDING_ROWS] = {"rows", SHEAF_ATTR_INT, {0}},
};

static const sheaf_attr_spec segment_attrs[SHEAF_SEGMENT_ATTRS] = {
    [SHEAF_SEGMENT_REDUCE] = {"reduce", SHEAF_ATTR_INT, {0}},
    [SHEAF_SEGMENT_SORTED] = {"sorted", SHEAF_ATTR_INT, {0}},
    [SHEAF_SEGMENT_SEGMENTS] = {"segments", SHEAF_ATTR_INT, {0}},
    [SHEAF_SEGMENT_EMPTY] = {"empty", SHEAF_ATTR_INT, {0}},
    [SHEAF_SEGMENT_TIES] = {"ties", SHEAF_ATTR_INT, {0}},
    [SHEAF_SEGMENT_BAD_INDEX] = {"bad_index", SHEAF_ATTR_INT, {SHEAF_BAD_INDEX_ERROR}},
    [SHEAF_SEGMENT_OUT_DTYPE] = {"out_dtype", SHEAF_ATTR_DTYPE, {0}},
};

static const sheaf_attr_spec dtype_attr[] = {{"dtype", SHEAF_ATTR_DTYPE, {0}}};
static const sheaf_attr_spec alpha_attr[] = {{"alpha", SHEAF_ATTR_FLOAT, {.f = 1}}};
static const sheaf_attr_spec move_attrs[] = {{"from", SHEAF_ATTR_INT, {0}}, {"to", SHEAF_ATTR_INT, {0}}};
static const sheaf_attr_spec count_attr[] = {{"count", SHEAF_ATTR_INT, {0}}};
static const sheaf_attr_spec shape_attrs[1 + SHEAF_TENSOR_MAX_RANK] = {
    {"rank", SHEAF_ATTR_INT, {0}}, {"d0", SHEAF_ATTR_INT, {0}}, {"d1", SHEAF_ATTR_INT, {0}},
    {"d2", SHEAF_ATTR_INT, {0}},   {"d3", SHEAF_ATTR_INT, {0}}, {"d4", SHEAF_ATTR_INT, {0}},
    {"d5", SHEAF_ATTR_INT, {0}},   {"d6", SHEAF_ATTR_INT, {0}}, {"d7", SHEAF_ATTR_INT, {0}}};
static const sheaf_attr_spec level_attr[] = {{"level", SHEAF_ATTR_INT, {0}}};

#define OP(text, in, in_names, given, given_names, attr_count, attrs)                \
  {                                                                                  \
    sizeof(sheaf_op_spec), text, in, given, attr_count, in_names, given_names, attrs \
  }

const sheaf_op_spec shf_built_in_ops[SHEAF_OP_BUILT_IN] = {
    [SHEAF_OP_EMBEDDING] = OP("embedding", 2, embedding_inputs, 1, out_names, SHEAF_EMBEDDING_ATTRS, embedding_attrs),
    [SHEAF_OP_EMBEDDING_BACKWARD] =
        OP("embedding_backward", 2, backward_inputs, 1, backward_outputs, SHEAF_EMBEDDING_ATTRS, embedding_attrs),
    [SHEAF_OP_EMBEDDING_BAG] =
        OP("embedding_bag", 4, embedding_inputs, 2, out_names, SHEAF_EMBEDDING_ATTRS, embedding_attrs),
    [SHEAF_OP_EMBEDDING_BAG_BACKWARD] =
        OP("embedding_bag_backward", 7, backward_inputs, 2, backward_outputs, SHEAF_EMBEDDING_ATTRS, embedding_attrs),
    [SHEAF_OP_SEGMENT_REDUCE] =
        OP("segment_reduce", 2, segment_inputs, 2, out_names, SHEAF_SEGMENT_ATTRS, segment_attrs),
    [SHEAF_OP_SEGMENT_REDUCE_BACKWARD] = OP("segment_reduce_backward", 4, segment_backward_inputs, 1,
                                            segment_backward_outputs, SHEAF_SEGMENT_ATTRS, segment_attrs),
    [SHEAF_OP_QUANTIZE] = OP("quantize", 1, tensor_names, 1, out_names, 1, dtype_attr),
    [SHEAF_OP_DEQUANTIZE] = OP("dequantize", 1, tensor_names, 1, out_names, 1, dtype_attr),
    [SHEAF_OP_COALESCE] = OP("coalesce", 1, tensor_names, 1, out_names, 0, NULL),
    [SHEAF_OP_TO_DENSE] = OP("to_dense", 1, tensor_names, 1, out_names, 0, NULL),
    [SHEAF_OP_CAST] = OP("cast", 1, tensor_names, 1, out_names, 1, dtype_attr),
    [SHEAF_OP_ADD] = OP("add", 2, add_inputs, 1, out_names, 1, alpha_attr),
    [SHEAF_OP_MOVEDIM] = OP("movedim", 1, tensor_names, 1, out_names, 2, move_attrs),
    [SHEAF_OP_BATCH] = OP("batch", 1, tensor_names, 1, out_names, 1, level_attr),
    [SHEAF_OP_UNBATCH] = OP("unbatch", 1, tensor_names, 1, out_names, 1, level_attr),
    [SHEAF_OP_RESHAPE] = OP("reshape", 1, tensor_names, 1, out_names, 1 + SHEAF_TENSOR_MAX_RANK, shape_attrs),
    [SHEAF_OP_EXPAND] = OP("expand", 1, tensor_names, 1, out_names, 1, count_attr),
};

const uint8_t shf_required_inputs[SHEAF_OP_BUILT_IN] = {
    [SHEAF_OP_EMBEDDING] = 2,      [SHEAF_OP_EMBEDDING_BACKWARD] = 2,
    [SHEAF_OP_EMBEDDING_BAG] = 2,  [SHEAF_OP_EMBEDDING_BAG_BACKWARD] = 1,
    [SHEAF_OP_SEGMENT_REDUCE] = 1, [SHEAF_OP_SEGMENT_REDUCE_BACKWARD] = 1,
    [SHEAF_OP_QUANTIZE] = 1,       [SHEAF_OP_DEQUANTIZE] = 1,
    [SHEAF_OP_COALESCE] = 1,       [SHEAF_OP_TO_DENSE] = 1,
    [SHEAF_OP_CAST] = 1,           [SHEAF_OP_ADD] = 2,
    [SHEAF_OP_MOVEDIM] = 1,        [SHEAF_OP_BATCH] = 1,
    [SHEAF_OP_UNBATCH] = 1,        [SHEAF_OP_RESHAPE] = 1,
    [SHEAF_OP_EXPAND] = 1};
