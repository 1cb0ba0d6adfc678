/* tracer_layer.c: the Tracer key: the calls of a thread become a graph. Tensors are known by their address, so each one
 * seen is held until the end. */
#include "layers/graph_impl.h"

typedef struct trace {
  sheaf_trace *graph;
  sheaf_tensor **seen; /* by value id */
  int room;
  int32_t *table; /* open addressing: id + 1 */
  int slots;
  sheaf_guard guard;
} trace;

/* ---- Ids of tensors ---- */

static int32_t *slot_of(const trace *t, const sheaf_tensor *tensor)
{
  uint64_t mask = (uint64_t)t->slots - 1, at = ((uint64_t)(uintptr_t)tensor >> 6) * 0x9E3779B97F4A7C15u >> 20 & mask;
  while (t->table[at] && t->seen[t->table[at] - 1] != tensor) at = (at + 1) & mask;
  return &t->table[at];
}

static sheaf_status make_room(trace *t)
{
  int count = t->graph->value_count;
  void *list = t->seen;
  SHF_TRY(shf_graph_room(&list, count, &t->room, sizeof(sheaf_tensor *)));
  t->seen = list;
  if (t->slots == 4 * t->room) return SHEAF_OK; /* not so either when memory was short the last time */
  size_t bytes = 4 * (size_t)t->room * sizeof *t->table;
  int32_t *table = shf_core_alloc(bytes);
  if (!table) return shf_core_no_memory("a trace", bytes);
  memset(table, 0, bytes);
  shf_core_free(t->table, (size_t)t->slots * sizeof *t->table);
  t->table = table;
  t->slots = 4 * t->room;
  for (int i = 0; i < count; i++) *slot_of(t, t->seen[i]) = i + 1;
  return SHEAF_OK;
}

/* The id of a tensor, -1 for none; `known` says whether it had one. */
static sheaf_status id_of(trace *t, sheaf_tensor *tensor, int32_t *id, int *known)
{
  *id = -1;
  *known = 1;
  if (!tensor) return SHEAF_OK;
  SHF_TRY(make_room(t));
  int32_t *slot = slot_of(t, tensor);
  if (*slot) {
    *id = *slot - 1;
    return SHEAF_OK;
  }
  shf_value value = {tensor->dtype, tensor->form, tensor->rank, {0}};
  memcpy(value.extent, tensor->extent, sizeof value.extent);
  SHF_TRY(shf_graph_add_value(t->graph, &value, id));
  t->seen[*id] = sheaf_tensor_retain(tensor);
  *slot = *id + 1;
  *known = 0;
  return SHEAF_OK;
}

static sheaf_status input_id(trace *t, sheaf_tensor *tensor, int32_t *id)
{
  int known;
  SHF_TRY(id_of(t, tensor, id, &known));
  if (known) return SHEAF_OK;
  void *list = t->graph->inputs;
  SHF_TRY(shf_graph_room(&list, t->graph->input_count, &t->graph->input_room, sizeof *t->graph->inputs));
  t->graph->inputs = list;
  t->graph->inputs[t->graph->input_count++] = *id;
  return SHEAF_OK;
}

/* ---- Recording ---- */

static sheaf_status record(trace *t, const sheaf_call *call)
{
  shf_step *step;
  int known;
  SHF_TRY(shf_graph_add_step(t->graph, call->op, call->input_count, call->output_count, call->attr_count, &step));
  step->wanted = call->wanted;
  step->include = call->include;
  step->batch = call->batch;
  step->batched = call->batched;
  if (call->attr_count) memcpy(step->attrs, call->attrs, sizeof *step->attrs * (size_t)call->attr_count);
  for (int i = 0; i < call->input_count; i++) SHF_TRY(input_id(t, call->inputs[i], &step->ids[i]));
  for (int i = 0; i < call->output_count; i++)
    SHF_TRY(id_of(t, call->outputs[i], &step->ids[call->input_count + i], &known));
  return SHEAF_OK;
}

/* Forgets what was recorded of a call that memory was short for. */
static void forget(trace *t, int steps, int values, int inputs)
{
  sheaf_trace *graph = t->graph;
  for (int i = values; i < graph->value_count; i++) shf_drop(&t->seen[i]);
  graph->step_count = steps;
  graph->value_count = values;
  graph->input_count = inputs;
  if (t->slots) memset(t->table, 0, (size_t)t->slots * sizeof *t->table);
  for (int i = 0; i < values; i++) *slot_of(t, t->seen[i]) = i + 1;
}

static sheaf_status tracer(const sheaf_call *call, const sheaf_frame *frame)
{
  trace *t = shf_thread.trace;
  sheaf_keyset exclude = shf_thread.exclude;
  uint32_t given = 0;
  for (int i = 0; i < call->output_count; i++)
    if (call->outputs[i]) given |= SHF_BIT(i);
  shf_thread.exclude = sheaf_keyset_insert(exclude, SHEAF_KEY_TRACER); /* calls that kernels make are part of this */
  sheaf_status status = shf_redispatch(call, frame);
  shf_thread.exclude = exclude;
  if (!t || status != SHEAF_OK) return status;
  int steps = t->graph->step_count, values = t->graph->value_count, inputs = t->graph->input_count;
  status = record(t, call);
  if (status != SHEAF_OK) forget(t, steps, values, inputs);
  for (int i = 0; status != SHEAF_OK && i < call->output_count; i++)
    if (!(given >> i & 1)) shf_drop(&call->outputs[i]);
  return status;
}

const shf_layer shf_layer_tracer = {.any = tracer};

/* ---- Begin and end ---- */

static void free_trace(trace *t)
{
  for (int i = 0; t->graph && i < t->graph->value_count; i++) sheaf_tensor_release(t->seen[i]);
  shf_core_free(t->seen, (size_t)t->room * sizeof(sheaf_tensor *));
  shf_core_free(t->table, (size_t)t->slots * sizeof *t->table);
  shf_core_free(t, sizeof *t);
}

sheaf_status sheaf_tracer_begin(void)
{
  SHF_REQUIRE(!shf_thread.trace, INVALID_PROBLEM, "this thread is being traced already");
  trace *t = shf_core_alloc(sizeof *t);
  sheaf_trace *graph = t ? shf_core_alloc(sizeof *graph) : NULL;
  if (!graph) {
    shf_core_free(t, sizeof *t);
    return shf_core_no_memory("a trace", sizeof *t + sizeof *graph);
  }
  memset(t, 0, sizeof *t);
  memset(graph, 0, sizeof *graph);
  t->graph = graph;
  sheaf_guard_begin(sheaf_keyset_of(SHEAF_KEY_TRACER), sheaf_keyset_empty(), &t->guard);
  shf_thread.trace = t;
  return SHEAF_OK;
}

void shf_tracer_unwind(uint32_t guards)
{
  trace *t = shf_thread.trace;
  if (!t || t->guard.depth <= guards) return;
  shf_thread.trace = NULL;
  sheaf_trace *graph = t->graph;
  free_trace(t);
  sheaf_trace_free(graph);
}

sheaf_status sheaf_tracer_end(sheaf_trace **graph)
{
  SHF_REQUIRE(graph, INVALID_PROBLEM, "sheaf_tracer_end: graph is NULL");
  *graph = NULL;
  trace *t = shf_thread.trace;
  SHF_REQUIRE(t, INVALID_PROBLEM, "tracing is ended, but has not begun on this thread");
  SHF_TRY(sheaf_guard_end(&t->guard));
  shf_thread.trace = NULL;
  sheaf_trace *made = t->graph;
  sheaf_status status = shf_graph_find_outputs(made);
  free_trace(t);
  if (status == SHEAF_OK)
    *graph = made;
  else
    sheaf_trace_free(made);
  return status;
}
