/* graph.c: graphs of calls: memory, and running them again. */
#include <inttypes.h>

#include "layers/graph_impl.h"

sheaf_status shf_graph_room(void **list, int count, int *room, size_t size)
{
  if (count < *room) return SHEAF_OK;
  int larger = *room ? 2 * *room : 16;
  void *memory = shf_core_alloc((size_t)larger * size);
  if (!memory) return shf_core_no_memory("a graph", (size_t)larger * size);
  if (*list) memcpy(memory, *list, (size_t)count * size);
  shf_core_free(*list, (size_t)*room * size);
  *list = memory;
  *room = larger;
  return SHEAF_OK;
}

#define GROW(graph, list, type, count, room)                                       \
  do {                                                                             \
    void *grown = (graph)->list;                                                   \
    SHF_TRY(shf_graph_room(&grown, (graph)->count, &(graph)->room, sizeof(type))); \
    (graph)->list = grown;                                                         \
  } while (0)

sheaf_status shf_graph_add_value(sheaf_trace *graph, const shf_value *value, int32_t *id)
{
  GROW(graph, values, shf_value, value_count, value_room);
  *id = graph->value_count;
  graph->values[graph->value_count++] = *value;
  return SHEAF_OK;
}

/* Memory that lives as long as the graph, aligned to 8. */
static sheaf_status cut(sheaf_trace *graph, size_t bytes, void **memory)
{
  enum { PIECE = 32 << 10, HEAD = (sizeof(shf_graph_piece) + 7) / 8 * 8 };
  shf_graph_piece *piece = graph->pieces;
  if (!piece || piece->bytes - piece->used < bytes) {
    size_t all = HEAD + bytes > PIECE ? HEAD + bytes : PIECE;
    piece = shf_core_alloc(all);
    if (!piece) return shf_core_no_memory("traced calls", all);
    *piece = (shf_graph_piece){graph->pieces, all, HEAD};
    graph->pieces = piece;
  }
  *memory = (char *)piece + piece->used;
  piece->used += bytes;
  return SHEAF_OK;
}

sheaf_status shf_graph_add_step(sheaf_trace *graph, sheaf_op op, int inputs, int outputs, int attrs, shf_step **step)
{
  size_t ids = ((size_t)(inputs + outputs) * sizeof(int32_t) + 7) / 8 * 8;
  size_t block = (sizeof(shf_step) + 7) / 8 * 8 + ids + (size_t)attrs * sizeof(sheaf_attr);
  GROW(graph, steps, shf_step *, step_count, step_room);
  void *memory = NULL;
  SHF_TRY(cut(graph, block, &memory));
  shf_step *made = memset(memory, 0, block);
  made->op = op;
  made->inputs = inputs;
  made->outputs = outputs;
  made->attr_count = attrs;
  made->attrs = (sheaf_attr *)(void *)((char *)made + (sizeof(shf_step) + 7) / 8 * 8 + ids);
  graph->steps[graph->step_count++] = made;
  *step = made;
  return SHEAF_OK;
}

sheaf_status shf_graph_find_outputs(sheaf_trace *graph)
{
  size_t bytes = (size_t)graph->value_count + 1;
  char *taken = shf_core_alloc(bytes); /* or there before any call */
  if (!taken) return shf_core_no_memory("a graph", bytes);
  memset(taken, 0, bytes);
  for (int i = 0; i < graph->input_count; i++) taken[graph->inputs[i]] = 1;
  for (int s = 0; s < graph->step_count; s++)
    for (int i = 0; i < graph->steps[s]->inputs; i++)
      if (graph->steps[s]->ids[i] >= 0) taken[graph->steps[s]->ids[i]] = 1;
  sheaf_status status = SHEAF_OK;
  for (int s = 0; s < graph->step_count; s++) {
    const shf_step *step = graph->steps[s];
    for (int i = step->inputs; i < step->inputs + step->outputs && status == SHEAF_OK; i++) {
      if (step->ids[i] < 0 || taken[step->ids[i]]) continue;
      void *list = graph->outputs;
      status = shf_graph_room(&list, graph->output_count, &graph->output_room, sizeof *graph->outputs);
      graph->outputs = list;
      if (status == SHEAF_OK) graph->outputs[graph->output_count++] = step->ids[i];
      taken[step->ids[i]] = 1;
    }
  }
  shf_core_free(taken, bytes);
  return status;
}

void sheaf_trace_free(sheaf_trace *graph)
{
  if (!graph) return;
  for (shf_graph_piece *piece = graph->pieces, *next; piece; piece = next) {
    next = piece->next;
    shf_core_free(piece, piece->bytes);
  }
  shf_core_free(graph->steps, (size_t)graph->step_room * sizeof(shf_step *));
  shf_core_free(graph->values, (size_t)graph->value_room * sizeof *graph->values);
  shf_core_free(graph->inputs, (size_t)graph->input_room * sizeof *graph->inputs);
  shf_core_free(graph->outputs, (size_t)graph->output_room * sizeof *graph->outputs);
  shf_core_free(graph, sizeof *graph);
}

int sheaf_trace_inputs(const sheaf_trace *graph) { return graph ? graph->input_count : 0; }
int sheaf_trace_outputs(const sheaf_trace *graph) { return graph ? graph->output_count : 0; }
int sheaf_trace_calls(const sheaf_trace *graph) { return graph ? graph->step_count : 0; }

/* ---- Replay ---- */

enum { MOST_TENSORS = 64 };

static sheaf_status run_step(const shf_step *step, sheaf_tensor **values)
{
  sheaf_tensor *tensors[MOST_TENSORS], **outputs = tensors + step->inputs;
  for (int i = 0; i < step->inputs + step->outputs; i++) tensors[i] = step->ids[i] < 0 ? NULL : values[step->ids[i]];
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = step->op;
  call.inputs = tensors;
  call.input_count = step->inputs;
  call.outputs = outputs;
  call.output_count = step->outputs;
  call.attrs = step->attrs;
  call.attr_count = step->attr_count;
  call.wanted = step->wanted;
  call.include = step->include;
  call.batch = step->batch;
  call.batched = step->batched;
  SHF_TRY(sheaf_dispatch(&call));
  for (int i = 0; i < step->outputs; i++) {
    int32_t id = step->ids[step->inputs + i];
    if (id >= 0 && !values[id])
      values[id] = outputs[i];
    else if (id < 0 || values[id] != outputs[i]) /* a graph that was read may name a value twice */
      sheaf_tensor_release(outputs[i]);
  }
  return SHEAF_OK;
}

sheaf_status sheaf_trace_replay(const sheaf_trace *graph, sheaf_tensor *const *inputs, int input_count,
                                sheaf_tensor **outputs, int output_count)
{
  SHF_REQUIRE(graph, INVALID_PROBLEM, "sheaf_trace_replay: graph is NULL");
  SHF_REQUIRE(input_count == graph->input_count && output_count == graph->output_count, INVALID_PROBLEM,
              "replay with %d inputs and %d outputs; the graph has %d and %d", input_count, output_count,
              graph->input_count, graph->output_count);
  for (int i = 0; i < input_count; i++) SHF_REQUIRE(inputs[i], INVALID_PROBLEM, "replay: input %d is NULL", i);
  size_t bytes = ((size_t)graph->value_count + 1) * sizeof(sheaf_tensor *);
  sheaf_tensor **values = shf_core_alloc(bytes);
  if (!values) return shf_core_no_memory("a replay", bytes);
  memset(values, 0, bytes);
  for (int i = 0; i < input_count; i++) values[graph->inputs[i]] = sheaf_tensor_retain(inputs[i]);
  sheaf_status status = SHEAF_OK;
  for (int i = 0; i < graph->step_count && status == SHEAF_OK; i++) status = run_step(graph->steps[i], values);
  for (int i = 0; i < output_count; i++)
    outputs[i] = status == SHEAF_OK ? sheaf_tensor_retain(values[graph->outputs[i]]) : NULL;
  for (int i = 0; i < graph->value_count; i++) sheaf_tensor_release(values[i]);
  shf_core_free(values, bytes);
  return status;
}
