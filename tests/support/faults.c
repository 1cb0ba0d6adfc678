/* faults.c: computations through every op and layer; each stops at the first step that fails. */
#include "faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "heap.h"

static sheaf_tensor *there(sheaf_tensor *t, DLDevice device)
{
  sheaf_tensor *copy;
  return RESULT(copy, sheaf_tensor_to(t, device, &copy));
}

fault_world make_fault_world(DLDevice device)
{
  fault_world w = {.device = device};
  w.table = there(tensor_random(SHEAF_F32, SHAPE(6, 3), 1), device);
  w.tables = there(tensor_random(SHEAF_F32, SHAPE(2, 6, 3), 4), device);
  w.weights = there(tensor_random(SHEAF_F32, SHAPE(5), 2), device);
  w.indices = there(tensor_of(SHEAF_I64, SHAPE(5), NUMBERS(0, 5, 2, 2, 1)), device);
  w.offsets = there(tensor_of(SHEAF_I64, SHAPE(3), NUMBERS(0, 2, 5)), device);
  w.counts = there(tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(2, 3)), device);
  w.ids = there(tensor_of(SHEAF_I64, SHAPE(6), NUMBERS(0, 0, 1, 1, 1, 2)), device);
  RESULT(w.sparse, sheaf_tensor_sparse(there(tensor_of(SHEAF_I64, SHAPE(2), NUMBERS(5, 5)), device),
                                       there(tensor_random(SHEAF_F32, SHAPE(2, 3), 3), device), 6, 0, &w.sparse));
  RESULT(w.packed, sheaf_quantize(w.table, SHEAF_INT8, &w.packed));
  RESULT(w.nested, sheaf_tensor_nested(w.indices, w.offsets, &w.nested));
  sheaf_tensor *rows = there(tensor_of(SHEAF_I64, SHAPE(2, 5), NUMBERS(0, 5, 2, 2, 1, 1, 1, 1, 3, 4)), device);
  w.hidden = tensor_batched(rows, 0, 1);
  return w;
}

#define STEP(call)                           \
  do {                                       \
    if (status == SHEAF_OK) status = (call); \
  } while (0)

static void release(sheaf_tensor **list, int count)
{
  for (int i = 0; i < count; i++) sheaf_tensor_release(list[i]);
}

static void no_leaf(sheaf_tensor *t) { sheaf_tensor_require_grad(t, SHEAF_GRAD_NONE); }

static sheaf_status train(const fault_world *w)
{
  sheaf_tensor *out = NULL, *sum = NULL, *half = NULL;
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  sheaf_status status = sheaf_tensor_require_grad(w->table, SHEAF_GRAD_SPARSE);
  STEP(sheaf_tensor_require_grad(w->weights, SHEAF_GRAD_DENSE));
  options.per_sample_weights = w->weights;
  options.include_last_offset = 1;
  STEP(sheaf_embedding_bag(w->indices, w->table, w->offsets, &options, &out));
  sheaf_backward_options retain = SHEAF_BACKWARD_OPTIONS_INIT;
  retain.retain_graph = 1;
  STEP(sheaf_backward(out, NULL, &retain));
  STEP(sheaf_backward(out, NULL, NULL));
  sheaf_guard guard;
  sheaf_no_grad_begin(&guard);
  STEP(sheaf_add(w->table, sheaf_tensor_grad(w->table), -0.5, &sum));
  STEP(sheaf_cast(sum, SHEAF_F16, &half));
  sheaf_no_grad_end(&guard);
  release((sheaf_tensor *[]){sum, half, out}, 3);
  no_leaf(w->table);
  no_leaf(w->weights);
  return status;
}

/* Gradients of gradients: of a lookup; of a weighted mean, which are made of many pieces. */
static sheaf_status twice(const fault_world *w)
{
  sheaf_tensor *out[2] = {NULL, NULL}, *g[2] = {NULL, NULL}, *first[2] = {NULL, NULL};
  sheaf_backward_options create = SHEAF_BACKWARD_OPTIONS_INIT, again = SHEAF_BACKWARD_OPTIONS_INIT;
  create.create_graph = again.retain_graph = 1;
  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  options.per_sample_weights = w->weights;
  options.include_last_offset = options.scale_grad_by_freq = 1;
  sheaf_status status = sheaf_tensor_require_grad(w->table, SHEAF_GRAD_DENSE);
  STEP(sheaf_tensor_require_grad(w->weights, SHEAF_GRAD_DENSE));
  STEP(sheaf_tensor_new_on(w->device, SHEAF_F32, SHAPE(5, 3), &g[0]));
  STEP(sheaf_tensor_new_on(w->device, SHEAF_F32, SHAPE(2, 3), &g[1]));
  STEP(sheaf_tensor_require_grad(g[0], SHEAF_GRAD_DENSE));
  STEP(sheaf_tensor_require_grad(g[1], SHEAF_GRAD_DENSE));
  STEP(sheaf_embedding(w->indices, w->table, NULL, &out[0]));
  STEP(sheaf_backward(out[0], g[0], &create));
  STEP(sheaf_backward(sheaf_tensor_grad(w->table), NULL, NULL));
  sheaf_tensor_clear_grad(w->table);
  STEP(sheaf_embedding_bag(w->indices, w->table, w->offsets, &options, &out[1]));
  STEP(sheaf_backward(out[1], g[1], &create));
  first[0] = sheaf_tensor_retain(sheaf_tensor_grad(w->table));
  first[1] = sheaf_tensor_retain(sheaf_tensor_grad(w->weights));
  for (int i = 0; i < 2; i++) STEP(sheaf_backward(first[i], NULL, &again));
  no_leaf(w->table);
  no_leaf(w->weights);
  for (int i = 0; i < 2; i++) sheaf_tensor_clear_grad(g[i]);
  release(first, 2);
  release(out, 2);
  release(g, 2);
  return status;
}

static sheaf_status forms(const fault_world *w)
{
  sheaf_tensor *t[14] = {NULL};
  sheaf_segment_options pack = SHEAF_SEGMENT_OPTIONS_INIT;
  pack.out_dtype = SHEAF_INT4;
  sheaf_embedding_bag_options lengths = SHEAF_EMBEDDING_BAG_OPTIONS_INIT, max = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  lengths.lengths = 1;
  max.mode = SHEAF_MODE_MAX;
  sheaf_status status = sheaf_embedding(w->indices, w->sparse, NULL, &t[0]);
  STEP(sheaf_add(w->sparse, w->sparse, 2, &t[1]));
  STEP(sheaf_coalesce(t[1], &t[2]));
  STEP(sheaf_segment_reduce(w->packed, SHEAF_REDUCE_SUM, w->ids, 3, &pack, &t[3]));
  STEP(sheaf_embedding(w->nested, w->table, NULL, &t[4]));
  STEP(sheaf_segment_reduce(t[4], SHEAF_REDUCE_MAX, NULL, 0, NULL, &t[5]));
  STEP(sheaf_to_dense(t[4], &t[6]));
  STEP(sheaf_embedding(w->hidden, w->table, NULL, &t[7]));
  STEP(sheaf_unbatch(t[7], 1, 1, &t[8]));
  STEP(sheaf_embedding_bag(w->indices, w->table, w->counts, &lengths, &t[9]));
  STEP(sheaf_embedding_bag(w->hidden, w->table, w->offsets, &max, &t[10]));
  STEP(sheaf_embedding_bag(w->indices, w->sparse, w->offsets, &max, &t[11]));
  STEP(sheaf_tensor_to(w->sparse, (DLDevice){kDLCPU, 0}, &t[12]));
  STEP(sheaf_tensor_to(w->nested, (DLDevice){kDLCPU, 0}, &t[13]));
  release(t, 14);
  return status;
}

/* The ops that change type, form and shape, of every form that they take. */
static sheaf_status conversions(const fault_world *w)
{
  sheaf_tensor *t[16] = {NULL};
  sheaf_status status = sheaf_cast(w->table, SHEAF_F64, &t[0]);
  STEP(sheaf_add(w->table, w->sparse, 2, &t[1]));
  STEP(sheaf_add(w->sparse, w->table, 2, &t[2]));
  STEP(sheaf_movedim(w->tables, 0, 2, &t[3]));
  STEP(sheaf_reshape(t[3], 2, (int64_t[]){9, 4}, &t[4]));
  STEP(sheaf_expand(w->nested, 2, &t[5]));
  STEP(sheaf_reshape(t[5], SHAPE(1, 2, 2, -1), &t[6]));
  STEP(sheaf_movedim(t[6], 0, 1, &t[7]));
  STEP(sheaf_dequantize(w->packed, SHEAF_F16, &t[8]));
  STEP(sheaf_quantize(w->tables, SHEAF_INT4, &t[9]));
  STEP(sheaf_reshape(w->sparse, SHAPE(2, 3, 3), &t[10]));
  STEP(sheaf_to_dense(t[10], &t[11]));
  STEP(sheaf_cast(w->sparse, SHEAF_BF16, &t[12]));
  STEP(sheaf_tensor_detach(w->nested, &t[13]));
  STEP(sheaf_unsorted_segment_reduce(w->sparse, SHEAF_REDUCE_PROD, w->ids, 3, NULL, &t[14]));
  STEP(sheaf_cast(w->packed, SHEAF_INT4, &t[15]));
  release(t, 16);
  return status;
}

/* Within vmap: nested results, row-sparse gradients of a table of each slice and of one that slices share. */
static sheaf_status within_vmap(const fault_world *w)
{
  sheaf_tensor *t[9] = {NULL};
  sheaf_embedding_options scaled = SHEAF_EMBEDDING_OPTIONS_INIT;
  scaled.scale_grad_by_freq = 1;
  sheaf_status status = sheaf_tensor_require_grad(w->tables, SHEAF_GRAD_SPARSE);
  STEP(sheaf_tensor_require_grad(w->table, SHEAF_GRAD_SPARSE));
  STEP(sheaf_batch(w->tables, 0, 1, &t[0]));
  STEP(sheaf_embedding(w->nested, t[0], NULL, &t[1]));
  STEP(sheaf_segment_reduce(t[1], SHEAF_REDUCE_MEAN, NULL, 0, NULL, &t[2]));
  STEP(sheaf_unbatch(t[2], 0, 1, &t[3]));
  STEP(sheaf_backward(t[3], NULL, NULL));
  STEP(sheaf_embedding(w->hidden, w->table, &scaled, &t[4]));
  STEP(sheaf_unbatch(t[4], 0, 1, &t[5]));
  STEP(sheaf_backward(t[5], NULL, NULL));
  STEP(sheaf_tensor_detach(sheaf_tensor_grad(w->tables), &t[6]));
  STEP(sheaf_batch(t[6], 0, 1, &t[7]));
  STEP(sheaf_embedding(w->hidden, t[7], NULL, &t[8]));
  release(t, 9);
  no_leaf(w->tables);
  no_leaf(w->table);
  return status;
}

/* Over no slices, and with weights that are nested. */
static sheaf_status over_nothing(const fault_world *w)
{
  sheaf_tensor *t[9] = {NULL};
  sheaf_status status = sheaf_tensor_require_grad(w->table, SHEAF_GRAD_DENSE);
  STEP(sheaf_tensor_new_on(w->device, SHEAF_I64, SHAPE(0, 5), &t[0]));
  STEP(sheaf_batch(t[0], 0, 1, &t[1]));
  STEP(sheaf_embedding(t[1], w->table, NULL, &t[2]));
  STEP(sheaf_unbatch(t[2], 0, 1, &t[3]));
  STEP(sheaf_backward(t[3], NULL, NULL));
  STEP(sheaf_tensor_nested(t[1], w->offsets, &t[4]));
  STEP(sheaf_embedding(t[4], w->table, NULL, &t[5]));
  STEP(sheaf_segment_reduce(t[5], SHEAF_REDUCE_SUM, NULL, 0, NULL, &t[6]));
  STEP(sheaf_unbatch(t[6], 0, 1, &t[7]));
  STEP(sheaf_backward(t[7], NULL, NULL));
  release(t, 9);
  no_leaf(w->table);
  return status;
}

static sheaf_status recorded(const fault_world *w)
{
  sheaf_tensor *out = NULL, *replayed = NULL, *inputs[] = {w->table, w->indices};
  sheaf_trace *graph = NULL, *read = NULL;
  sheaf_profile *profile = NULL;
  char json[4096];
  sheaf_status status = sheaf_profiler_begin();
  if (status != SHEAF_OK) return status;
  sheaf_status tracing = sheaf_tracer_begin();
  sheaf_status casting = tracing == SHEAF_OK ? sheaf_autocast_begin(SHEAF_F16) : tracing;
  status = casting;
  STEP(sheaf_embedding(w->indices, w->table, NULL, &out));
  sheaf_tensor_release(out);
  if (casting == SHEAF_OK) expect_ok(sheaf_autocast_end());
  sheaf_status ended = tracing == SHEAF_OK ? sheaf_tracer_end(&graph) : SHEAF_OK;
  STEP(ended);
  sheaf_status stopped = sheaf_profiler_end(&profile);
  if (stopped == SHEAF_OUT_OF_MEMORY) { /* the profile goes on; end it when there is memory */
    heap.failing = -1;
    expect_ok(sheaf_profiler_end(&profile));
  }
  STEP(stopped);
  if (status == SHEAF_OK) sheaf_trace_json(graph, json, sizeof json);
  STEP(sheaf_trace_from_json(json, &read));
  STEP(sheaf_trace_replay(read, inputs, 2, &replayed, 1));
  sheaf_tensor_release(replayed);
  sheaf_trace_free(read);
  sheaf_trace_free(graph);
  sheaf_profile_free(profile);
  return status;
}

const fault_case fault_cases[] = {{"train", train},
                                  {"twice", twice},
                                  {"forms", forms},
                                  {"conversions", conversions},
                                  {"within vmap", within_vmap},
                                  {"over nothing", over_nothing},
                                  {"recorded", recorded}};
const int fault_case_count = (int)(sizeof fault_cases / sizeof *fault_cases);
