/* autograd_layer.c: the Autograd key: records a node for every call that a gradient can flow through. */
#include <stdatomic.h>

#include "layers/autograd_impl.h"

static atomic_ullong sequences;

enum { MOST_OUTPUTS = 32 };

void shf_node_free_saved(shf_node *node)
{
  for (int i = 0; i < node->call.input_count; i++) shf_drop(&node->inputs[i].tensor);
  for (int i = 0; i < node->call.output_count; i++) shf_drop(&node->outputs[i].tensor);
}

static void destroy(shf_history *history)
{
  shf_node *node = (shf_node *)(void *)history;
  shf_node_free_saved(node);
  for (int i = 0; i < node->call.input_count; i++) {
    sheaf_tensor_release(node->edges[i].leaf);
    if (node->edges[i].node) shf_history_release(&node->edges[i].node->history);
  }
  shf_spare_free(node, node->block);
}

static sheaf_status make_node(const sheaf_call *call, shf_node **made)
{
  size_t inputs = (size_t)call->input_count, outputs = (size_t)call->output_count, attrs = (size_t)call->attr_count;
  size_t block = sizeof(shf_node) + (inputs + outputs) * sizeof(shf_saved) + inputs * sizeof(shf_edge) +
                 attrs * sizeof(sheaf_attr);
  shf_node *node = shf_spare_alloc(&block);
  if (!node) return shf_core_no_memory("a node of the graph", block);
  memset(node, 0, block);
  atomic_init(&node->history.refs, 1);
  node->history.destroy = destroy;
  node->block = block;
  node->inputs = (shf_saved *)(node + 1);
  node->outputs = node->inputs + inputs;
  node->edges = (shf_edge *)(node->outputs + outputs);
  node->attrs = (sheaf_attr *)(node->edges + inputs);
  node->call = *call;
  node->call.inputs = NULL;
  node->call.outputs = NULL;
  node->call.attrs = node->attrs;
  if (attrs) memcpy(node->attrs, call->attrs, attrs * sizeof *call->attrs);
  *made = node;
  return SHEAF_OK;
}

static void save(shf_saved *saved, sheaf_tensor *tensor, int whole)
{
  if (!tensor) return;
  saved->dtype = tensor->dtype;
  saved->rank = tensor->rank;
  saved->meta = sheaf_keyset_contains(tensor->keys, SHEAF_KEY_META);
  memcpy(saved->extent, tensor->extent, sizeof saved->extent);
  if (!whole) return;
  saved->tensor = sheaf_tensor_retain(tensor);
  saved->version = sheaf_tensor_version(tensor);
}

static void connect(shf_edge *edge, sheaf_tensor *input)
{
  if (input->history) {
    edge->node = (shf_node *)(void *)input->history;
    edge->output = input->history_output;
    atomic_fetch_add_explicit(&edge->node->history.refs, 1, memory_order_relaxed);
  } else {
    edge->leaf = sheaf_tensor_retain(input);
  }
}

/* Makes an output part of the graph. One that the node saves is handed out as another tensor over the same memory:
 * the saved one must not lead back to the node. */
static sheaf_status attach(shf_node *node, int output, sheaf_tensor **slot)
{
  sheaf_tensor *result = *slot;
  if (node->outputs[output].tensor || atomic_load(&result->refs) > 1) {
    sheaf_tensor *alias;
    SHF_TRY(sheaf_tensor_detach(result, &alias));
    sheaf_tensor_release(result);
    *slot = result = alias;
  }
  result->history = &node->history;
  result->history_output = output;
  result->keys = sheaf_keyset_insert(result->keys, SHEAF_KEY_AUTOGRAD);
  atomic_fetch_add_explicit(&node->history.refs, 1, memory_order_relaxed);
  return SHEAF_OK;
}

static sheaf_status record(const sheaf_call *call, const sheaf_gradient *gradient, uint32_t wanted,
                           const shf_needs *needs, sheaf_tensor **outputs)
{
  shf_node *node = NULL;
  SHF_TRY(make_node(call, &node));
  node->gradient = gradient;
  node->wanted = wanted;
  node->sequence = atomic_fetch_add_explicit(&sequences, 1, memory_order_relaxed);
  for (int i = 0; i < call->input_count; i++) {
    save(&node->inputs[i], call->inputs[i], (needs->inputs >> i & 1) != 0);
    if (wanted >> i & 1) connect(&node->edges[i], call->inputs[i]);
  }
  for (int i = 0; i < call->output_count; i++) save(&node->outputs[i], outputs[i], (needs->outputs >> i & 1) != 0);
  sheaf_status status = SHEAF_OK;
  for (int i = 0; i < call->output_count && status == SHEAF_OK; i++)
    if (outputs[i] && shf_wants(call, i) && shf_dtype_is_float(outputs[i]->dtype))
      status = attach(node, i, &outputs[i]);
  shf_history_release(&node->history);
  return status;
}

static sheaf_status autograd(const sheaf_call *call, const sheaf_frame *frame)
{
  const sheaf_gradient *gradient = shf_dispatch_gradient(call->op);
  uint32_t wanted = 0;
  for (int i = 0; i < call->input_count; i++)
    if (sheaf_tensor_requires_grad(call->inputs[i])) wanted |= SHF_BIT(i);
  SHF_REQUIRE(!wanted || gradient, UNSUPPORTED, "%s has no gradient, but %s requires one; detach it or use no_grad",
              shf_op_name(call), shf_dispatch_input_name(call->op, __builtin_ctz(wanted ? wanted : 1)));
  wanted &= gradient ? gradient->differentiable : 0;
  if (!wanted) return shf_redispatch(call, frame);
  sheaf_tensor *outputs[MOST_OUTPUTS] = {NULL};
  for (int i = 0; i < call->output_count; i++)
    SHF_REQUIRE(!call->outputs[i], INVALID_PROBLEM,
                "%s: its result is part of a graph and cannot be written into a given tensor; use no_grad",
                shf_op_name(call));
  shf_needs needs = shf_gradient_needs(call, gradient, wanted);
  sheaf_call inner = *call;
  inner.outputs = outputs;
  if (needs.extra) inner.wanted = (call->wanted ? call->wanted : 1) | needs.extra;
  SHF_TRY(shf_redispatch(&inner, frame));
  sheaf_status status;
  if (shf_is_quantised(sheaf_tensor_dtype(outputs[0])))
    status =
        shf_core_fail(SHEAF_UNSUPPORTED, "%s: a result of %s has no gradient, but %s requires one", shf_op_name(call),
                      sheaf_dtype_name(outputs[0]->dtype), shf_dispatch_input_name(call->op, __builtin_ctz(wanted)));
  else
    status = record(call, gradient, wanted, &needs, outputs);
  for (int i = 0; i < call->output_count; i++) {
    if (status == SHEAF_OK && shf_wants(call, i))
      call->outputs[i] = outputs[i];
    else
      sheaf_tensor_release(outputs[i]);
  }
  return status;
}

const shf_layer shf_layer_autograd = {.any = autograd, .kernel = {[SHEAF_OP_BATCH] = shf_plain_batch}};
