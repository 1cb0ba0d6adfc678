/* autograd_engine.c: sheaf_backward: walks a graph from its end, later calls first, without recursion. */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "layers/autograd_impl.h"

enum { MOST_TENSORS = 32 };

/* A node that the walk reaches, and the gradients of its outputs as far as they are known. */
typedef struct visit {
  shf_node *node;
  sheaf_tensor **grads; /* by output */
} visit;

typedef struct walk {
  visit *list;
  int64_t count, room;
  int64_t *table; /* open addressing: place in list + 1 */
  int64_t slots;  /* a power of two */
  int create_graph, retain_graph;
  shf_node *root;
  sheaf_tensor *root_grad;
} walk;

/* ---- Which nodes there are ---- */

static int64_t *slot_of(const walk *w, const shf_node *node)
{
  uint64_t mask = (uint64_t)w->slots - 1, at = ((uint64_t)(uintptr_t)node >> 6) * 0x9E3779B97F4A7C15u >> 20 & mask;
  while (w->table[at] && w->list[w->table[at] - 1].node != node) at = (at + 1) & mask;
  return &w->table[at];
}

static void *grown(void *old, size_t old_bytes, size_t bytes)
{
  void *larger = shf_core_alloc(bytes);
  if (!larger) return NULL;
  if (old) memcpy(larger, old, old_bytes);
  shf_core_free(old, old_bytes);
  return larger;
}

static sheaf_status make_room(walk *w)
{
  int64_t room = w->room ? 2 * w->room : 64;
  size_t bytes = (size_t)room * sizeof *w->list, table_bytes = 2 * (size_t)room * sizeof *w->table;
  visit *list = grown(w->list, (size_t)w->room * sizeof *w->list, bytes);
  if (!list) return shf_core_no_memory("the list of a backward", bytes);
  w->list = list;
  w->room = room;
  int64_t *table = shf_core_alloc(table_bytes);
  if (!table) return shf_core_no_memory("the table of a backward", table_bytes);
  shf_core_free(w->table, (size_t)w->slots * sizeof *w->table);
  memset(table, 0, table_bytes);
  w->table = table;
  w->slots = 2 * room;
  for (int64_t i = 0; i < w->count; i++) *slot_of(w, w->list[i].node) = i + 1;
  return SHEAF_OK;
}

static const char *name_of(const shf_node *node, int input)
{
  const char *own = sheaf_tensor_name(node->inputs[input].tensor);
  return own[0] ? own : shf_dispatch_input_name(node->call.op, input);
}

/* That the node can still be differentiated, before anything is computed. */
static sheaf_status check_node(const shf_node *node)
{
  const char *op = shf_op_name(&node->call);
  SHF_REQUIRE(!node->freed, INVALID_PROBLEM,
              "backward: what %s saved was freed by an earlier backward; set retain_graph there", op);
  for (int i = 0; i < node->call.input_count; i++) {
    const shf_saved *saved = &node->inputs[i];
    if (!saved->tensor) continue;
    int64_t version = sheaf_tensor_version(saved->tensor);
    SHF_REQUIRE(version == saved->version, INVALID_PROBLEM,
                "backward of %s: %s was written since; its version is %" PRId64 ", %" PRId64 " was saved", op,
                name_of(node, i), version, saved->version);
  }
  for (int i = 0; i < node->call.output_count; i++) {
    const shf_saved *saved = &node->outputs[i];
    SHF_REQUIRE(!saved->tensor || sheaf_tensor_version(saved->tensor) == saved->version, INVALID_PROBLEM,
                "backward of %s: its result %s was written since", op, sheaf_tensor_name(saved->tensor));
  }
  return SHEAF_OK;
}

static sheaf_status reach(walk *w, shf_node *node)
{
  if (w->count * 2 >= w->room) SHF_TRY(make_room(w));
  int64_t *slot = slot_of(w, node);
  if (*slot) return SHEAF_OK;
  SHF_TRY(check_node(node));
  w->list[w->count] = (visit){node, NULL};
  *slot = ++w->count;
  return SHEAF_OK;
}

static int by_sequence(const void *a, const void *b)
{
  uint64_t x = ((const visit *)a)->node->sequence, y = ((const visit *)b)->node->sequence;
  return x < y ? 1 : x > y ? -1 : 0; /* later first */
}

static sheaf_status collect(walk *w)
{
  SHF_TRY(reach(w, w->root));
  for (int64_t i = 0; i < w->count; i++) {
    shf_node *node = w->list[i].node;
    for (int e = 0; e < node->call.input_count; e++)
      if (node->edges[e].node) SHF_TRY(reach(w, node->edges[e].node));
  }
  qsort(w->list, (size_t)w->count, sizeof *w->list, by_sequence);
  memset(w->table, 0, (size_t)w->slots * sizeof *w->table);
  for (int64_t i = 0; i < w->count; i++) *slot_of(w, w->list[i].node) = i + 1;
  return SHEAF_OK;
}

/* ---- Gradients on their way ---- */

/* *sum += grad; takes the reference of grad. */
static sheaf_status add_to(sheaf_tensor **sum, sheaf_tensor *grad)
{
  if (!*sum) {
    *sum = grad;
    return SHEAF_OK;
  }
  sheaf_tensor *both;
  sheaf_status status = shf_send_add(*sum, grad, 1, NULL, &both);
  sheaf_tensor_release(grad);
  if (status != SHEAF_OK) return status;
  sheaf_tensor_release(*sum);
  *sum = both;
  return SHEAF_OK;
}

static sheaf_status give_to_node(walk *w, const shf_edge *edge, sheaf_tensor *grad)
{
  visit *target = &w->list[*slot_of(w, edge->node) - 1];
  size_t bytes = (size_t)edge->node->call.output_count * sizeof(sheaf_tensor *);
  if (!target->grads) {
    target->grads = shf_core_alloc(bytes);
    if (!target->grads) {
      sheaf_tensor_release(grad);
      return shf_core_no_memory("gradients on their way", bytes);
    }
    memset(target->grads, 0, bytes);
  }
  return add_to(&target->grads[edge->output], grad);
}

/* Whether somebody beside the walk holds a gradient, or the memory that it is a view of. The walk has two references:
 * that of the node which gave it, and the one that is to be the leaf's. */
static int is_shared(sheaf_tensor *grad)
{
  return atomic_load(&grad->refs) > 2 || (grad->base && atomic_load(&grad->base->refs) > 2);
}

/* The same numbers in memory of their own; part of a graph, when one is recorded. */
static sheaf_status copy_of(sheaf_tensor *grad, sheaf_tensor **copy)
{
  *copy = NULL;
  if (grad->rank > 0) return sheaf_movedim(grad, 0, 0, copy);
  sheaf_tensor *list;
  SHF_TRY(shf_send_expand(grad, 1, NULL, &list));
  sheaf_status status = shf_send_reshape(list, 0, NULL, NULL, copy);
  sheaf_tensor_release(list);
  return status;
}

/* Adds to what the leaf holds. Threads may share a leaf. */
static sheaf_status give_to_leaf(sheaf_tensor *leaf, sheaf_tensor *grad)
{
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  sheaf_tensor *typed;
  sheaf_status status = shf_send_dtype(SHEAF_OP_CAST, grad, leaf->dtype, NULL, &typed);
  if (status == SHEAF_OK && typed->form == SHEAF_FORM_DENSE && is_shared(typed)) {
    sheaf_tensor *copy; /* the leaf gets its own */
    status = copy_of(typed, &copy);
    sheaf_tensor_release(typed);
    typed = copy;
  }
  sheaf_tensor_release(grad);
  if (status != SHEAF_OK) return status;
  pthread_mutex_lock(&lock);
  sheaf_tensor *old = atomic_load(&leaf->grad), *sum = NULL;
  if (!old)
    atomic_store_explicit(&leaf->grad, typed, memory_order_release);
  else
    status = shf_send_add(old, typed, 1, NULL, &sum);
  if (status == SHEAF_OK && sum && sum->form == SHEAF_FORM_SPARSE && leaf->grad_kind != SHEAF_GRAD_SPARSE_RAW &&
      !sum->coalesced) {
    sheaf_tensor *merged;
    status = shf_send_unary(SHEAF_OP_COALESCE, sum, NULL, &merged);
    if (status == SHEAF_OK) {
      sheaf_tensor_release(sum);
      sum = merged;
    }
  }
  if (status == SHEAF_OK && sum) atomic_store_explicit(&leaf->grad, sum, memory_order_release);
  pthread_mutex_unlock(&lock);
  if (old && status == SHEAF_OK) sheaf_tensor_release(old);
  if (old) sheaf_tensor_release(typed);
  if (status != SHEAF_OK) sheaf_tensor_release(sum);
  return status;
}

/* ---- One node ---- */

/* What the inputs looked like, without data; leaves' wishes included. */
static sheaf_status make_likes(const shf_node *node, sheaf_tensor **likes)
{
  for (int i = 0; i < node->call.input_count; i++) {
    const shf_saved *saved = &node->inputs[i];
    if (!(node->wanted >> i & 1)) continue;
    DLTensor dl = {.device = {kDLCPU, 0}, .ndim = saved->rank, .dtype = sheaf_dtype_to_dl(saved->dtype)};
    int64_t extent[SHEAF_TENSOR_MAX_RANK];
    for (int d = 0; d < saved->rank; d++) extent[d] = saved->extent[d] < 0 ? 0 : saved->extent[d];
    dl.shape = extent;
    SHF_TRY(sheaf_tensor_meta(&dl, &likes[i]));
    for (int d = 0; d < saved->rank; d++) likes[i]->extent[d] = saved->extent[d];
    const shf_edge *edge = &node->edges[i]; /* a wish holds through other shapes, which vmap makes of a table */
    while (edge->node && edge->node->call.op == SHEAF_OP_RESHAPE) edge = &edge->node->edges[0];
    if (edge->leaf) likes[i]->grad_kind = edge->leaf->grad_kind;
  }
  return SHEAF_OK;
}

static sheaf_status differentiate(walk *w, visit *v)
{
  shf_node *node = v->node;
  sheaf_tensor *inputs[MOST_TENSORS] = {NULL}, *outputs[MOST_TENSORS] = {NULL}, *likes[MOST_TENSORS] = {NULL};
  sheaf_tensor *grads[MOST_TENSORS] = {NULL};
  int count = node->call.input_count;
  for (int i = 0; i < count; i++) inputs[i] = node->inputs[i].tensor;
  for (int i = 0; i < node->call.output_count; i++) outputs[i] = node->outputs[i].tensor;
  sheaf_call forward = node->call;
  forward.inputs = inputs;
  forward.outputs = outputs;
  sheaf_status status = make_likes(node, likes);
  const shf_guard_mark mark = shf_guards_enter(&shf_thread);
  if (status == SHEAF_OK)
    status = node->gradient->backward(&forward, likes, v->grads, node->wanted, grads, node->gradient->context);
  shf_guards_leave(&shf_thread, &mark);
  for (int i = 0; i < count; i++) {
    sheaf_tensor_release(likes[i]);
    const shf_edge *edge = &node->edges[i];
    if (status == SHEAF_OK && grads[i] && (edge->leaf || edge->node))
      status = edge->leaf ? give_to_leaf(edge->leaf, grads[i]) : give_to_node(w, edge, grads[i]);
    else
      sheaf_tensor_release(grads[i]);
  }
  return status;
}

static void drop_grads(visit *v)
{
  if (!v->grads) return;
  int count = v->node->call.output_count;
  for (int i = 0; i < count; i++) sheaf_tensor_release(v->grads[i]);
  shf_core_free(v->grads, (size_t)count * sizeof(sheaf_tensor *));
  v->grads = NULL;
}

static sheaf_status run(walk *w, int output)
{
  SHF_TRY(collect(w));
  shf_edge first = {.node = w->root, .output = output};
  SHF_TRY(give_to_node(w, &first, sheaf_tensor_retain(w->root_grad)));
  for (int64_t i = 0; i < w->count; i++) {
    visit *v = &w->list[i];
    if (v->grads) SHF_TRY(differentiate(w, v));
    drop_grads(v);
    if (w->retain_graph) continue;
    v->node->freed = 1;
    shf_node_free_saved(v->node);
  }
  return SHEAF_OK;
}

/* ---- sheaf_backward ---- */

static sheaf_status ones_like(const sheaf_tensor *output, sheaf_tensor **ones)
{
  SHF_REQUIRE(output->form == SHEAF_FORM_DENSE || output->form == SHEAF_FORM_META, INVALID_PROBLEM,
              "backward: grad is NULL, which stands for ones of a dense output; this one is of form %d",
              (int)output->form);
  if (shf_is_on(output, SHEAF_KEY_CUDA)) {
    SHF_TRY(shf_tensor_make(output->dtype, output->rank, output->extent, output, ones));
    sheaf_status filled = shf_map_fill(*ones, 1);
    if (filled != SHEAF_OK) shf_drop(ones);
    return filled;
  }
  sheaf_tensor *wide;
  SHF_TRY(shf_tensor_make(SHEAF_F32, output->rank, output->extent, output, &wide));
  int64_t count = shf_tensor_elements(output);
  float *value = shf_host_data(wide);
  for (int64_t i = 0; value && i < count; i++) value[i] = 1;
  sheaf_status status = shf_send_dtype(SHEAF_OP_CAST, wide, output->dtype, NULL, ones);
  sheaf_tensor_release(wide);
  return status;
}

static sheaf_status check_arguments(sheaf_tensor *output, sheaf_tensor *grad, const sheaf_backward_options *options)
{
  SHF_REQUIRE(output, INVALID_PROBLEM, "backward: output is NULL");
  SHF_REQUIRE(!options || options->struct_size >= sizeof *options, INVALID_PROBLEM,
              "backward: options.struct_size is %zu; initialise it with SHEAF_BACKWARD_OPTIONS_INIT",
              options->struct_size);
  SHF_REQUIRE(output->form != SHEAF_FORM_BATCHED, INVALID_PROBLEM, "backward: the output is batched; unbatch it first");
  SHF_REQUIRE(sheaf_tensor_requires_grad(output), INVALID_PROBLEM,
              "backward: the output%s%s has no graph; none of its inputs required a gradient",
              output->name[0] ? " " : "", output->name);
  if (!grad) return SHEAF_OK;
  char is[120], should[120];
  SHF_REQUIRE(grad->dtype == output->dtype && grad->rank == output->rank && grad->form == output->form &&
                  memcmp(grad->extent, output->extent, sizeof *grad->extent * (size_t)grad->rank) == 0,
              INVALID_PROBLEM, "backward: grad is %s %s of form %d; the output is %s %s of form %d",
              sheaf_dtype_name(grad->dtype), shf_shape_text(grad, is, sizeof is), (int)grad->form,
              sheaf_dtype_name(output->dtype), shf_shape_text(output, should, sizeof should), (int)output->form);
  SHF_REQUIRE(shf_same_place(grad, output), INVALID_PROBLEM,
              "backward: grad lies on %s (device %d), the output on %s (device %d)",
              sheaf_dispatch_key_name((int)shf_data_key(grad)), shf_device_of(grad).device_id,
              sheaf_dispatch_key_name((int)shf_data_key(output)), shf_device_of(output).device_id);
  return SHEAF_OK;
}

sheaf_status sheaf_backward(sheaf_tensor *output, sheaf_tensor *grad, const sheaf_backward_options *options)
{
  SHF_TRY(check_arguments(output, grad, options));
  walk w = {.create_graph = options && options->create_graph};
  w.retain_graph = w.create_graph || (options && options->retain_graph);
  if (grad)
    w.root_grad = sheaf_tensor_retain(grad);
  else
    SHF_TRY(ones_like(output, &w.root_grad));
  sheaf_guard guard;
  sheaf_keyset without = sheaf_keyset_of(SHEAF_KEY_AUTOCAST); /* types are those of the forward, wherever this runs */
  if (!w.create_graph) without = sheaf_keyset_insert(without, SHEAF_KEY_AUTOGRAD);
  sheaf_guard_begin(sheaf_keyset_empty(), without, &guard);
  sheaf_status status;
  if (output->history) {
    w.root = (shf_node *)(void *)output->history;
    status = run(&w, output->history_output);
  } else {
    status = give_to_leaf(output, sheaf_tensor_retain(w.root_grad));
  }
  sheaf_guard_end(&guard);
  for (int64_t i = 0; i < w.count; i++) drop_grads(&w.list[i]);
  shf_core_free(w.list, (size_t)w.room * sizeof *w.list);
  shf_core_free(w.table, (size_t)w.slots * sizeof *w.table);
  sheaf_tensor_release(w.root_grad);
  return status;
}
