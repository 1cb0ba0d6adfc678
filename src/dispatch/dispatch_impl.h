/* dispatch_impl.h: tensors from inside, the state of a thread, and the layers that are built in. */
#ifndef SHF_DISPATCH_IMPL_H
#define SHF_DISPATCH_IMPL_H

#include <sheaf/dispatch.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "core/status.h"

/* ---- Tensors (tensor.c, tensor_forms.c, tensor_dlpack.c) ---- */

/* What a result remembers of how it was made: the Autograd layer's node, of which tensors need only this much. */
typedef struct shf_history {
  atomic_int refs;
  void (*destroy)(struct shf_history *history); /* releases what it holds, then its memory */
  struct shf_history *next_dying;
} shf_history;

enum { SHF_MAX_LEVELS = 4, SHF_NAME_BYTES = 32 };

/* Every call makes one, so only the part before `extent` is cleared then; what follows is read as far as rank says. */
struct sheaf_tensor {
  DLTensor dl; /* dense, meta, quantised */
  atomic_int refs;
  sheaf_form form;
  sheaf_dtype dtype;
  sheaf_keyset keys;
  int rank;
  size_t bytes;   /* behind dl.data + offset; 0: trust the shape */
  size_t block;   /* bytes of this allocation */
  void *placed;   /* memory of its own on a device; NULL: none */
  int handed_out; /* through DLPack: whoever has it may use it on any stream */
  int coalesced;
  sheaf_tensor *base; /* whose memory and version this shares; NULL: its own */
  DLManagedTensor *managed;
  atomic_llong version; /* of the base */
  sheaf_tensor *part[2];
  sheaf_grad grad_kind; /* leaf: what it wants. Results: NONE */
  int levels;           /* batched: how many */
  int lead;             /* nested: dimensions before that of the components; the values have them, too */
  _Atomic(sheaf_tensor *) grad;
  shf_history *history;                  /* results: who made it, */
  int history_output;                    /* as which of its outputs */
  int64_t extent[SHEAF_TENSOR_MAX_RANK]; /* as the outside sees it */
  int64_t strides[SHEAF_TENSOR_MAX_RANK];
  int64_t stored[SHEAF_TENSOR_MAX_RANK]; /* the shape of dl, where it differs: packed rows */
  int level[SHF_MAX_LEVELS]; /* batched: which levels, increasing; leading dimensions of part 0 in this order */
  char name[SHF_NAME_BYTES];
};

static inline void shf_tensor_begin(sheaf_tensor *t, size_t block)
{
  memset(t, 0, offsetof(sheaf_tensor, extent));
  atomic_init(&t->refs, 1);
  t->block = block;
  t->name[0] = '\0';
}

/* Memory and work on a device (place.c), all in the order of the thread's current stream there. Memory that was
 * `handed_out` to others is freed when the whole device is done. */
sheaf_status shf_place_alloc(DLDevice device, size_t bytes, void **memory);
void shf_place_free(DLDevice device, void *memory, int handed_out);

/* This thread's memory for one run at a time on its current stream; valid until the next call. */
sheaf_status shf_place_workspace(DLDevice device, size_t bytes, void **memory);

/* Frees what the calling thread keeps there, and what the pools of all devices do. */
void shf_place_clear(void);

/* Copies between host and device, and waits. */
sheaf_status shf_place_copy(DLDevice device, void *to, const void *from, size_t bytes);
sheaf_status shf_place_fill(DLDevice device, void *memory, int value, size_t bytes);

/* What is done element by element there; device and stream are filled in. */
struct shf_device_map;
sheaf_status shf_place_map(DLDevice device, struct shf_device_map *map);

/* The rows that a grouping there names: how many, to memory there; then their numbers. */
struct shf_device_rows;
sheaf_status shf_place_count_rows(DLDevice device, struct shf_device_rows *rows);
sheaf_status shf_place_number_rows(DLDevice device, struct shf_device_rows *rows);

/* While a profile is taken: around what is enqueued, whose time is added to the profiled call. Waits for it. */
sheaf_status shf_place_clock_start(DLDevice device);
sheaf_status shf_place_clock_stop(DLDevice device);

/* The device of a tensor, or of its parts. */
static inline DLDevice shf_device_of(const sheaf_tensor *t);

/* Sets every byte to zero; nothing without data. */
sheaf_status shf_tensor_clear(sheaf_tensor *tensor);

/* Data that this code may read and write: NULL when it lies on a device, or nowhere. */
static inline void *shf_host_data(const sheaf_tensor *t);

/* A dense tensor on a device, with memory that is not cleared. */
sheaf_status shf_tensor_make_on(DLDevice device, sheaf_dtype dtype, int rank, const int64_t *shape,
                                sheaf_tensor **tensor);

/* The same tensor where the host can read it: itself, or a copy that has been waited for. */
sheaf_status shf_tensor_on_host(sheaf_tensor *tensor, sheaf_tensor **host);

/* Copies the bytes of a contiguous tensor into another one of as many, from or to the host; waits. */
sheaf_status shf_tensor_copy_bytes(const sheaf_tensor *from, sheaf_tensor *to);

/* A dense tensor with memory that is not cleared, or (meta) without; device as `like`'s, or CPU. */
sheaf_status shf_tensor_make(sheaf_dtype dtype, int rank, const int64_t *shape, const sheaf_tensor *like,
                             sheaf_tensor **tensor);

/* The same memory seen with another shape of as many elements; the tensor must be contiguous. */
sheaf_status shf_tensor_reshape(sheaf_tensor *tensor, int rank, const int64_t *shape, sheaf_tensor **out);

/* Wraps `inner`, whose leading dimensions are the levels', and whose reference it takes (also when it fails). */
sheaf_status shf_tensor_batched(sheaf_tensor *inner, int levels, const int *level, sheaf_tensor **tensor);

/* The parts checked by whoever made them. Row-sparse: `shape` is [..., V, D], and ids count its rows from the first to
 * the last. Nested: values [lead dimensions, N, ...]; the same components in every one of the leading dimensions. */
sheaf_status shf_tensor_sparse(sheaf_tensor *ids, sheaf_tensor *values, int rank, const int64_t *shape, int coalesced,
                               sheaf_tensor **tensor);
sheaf_status shf_tensor_nested(sheaf_tensor *values, sheaf_tensor *offsets, int lead, sheaf_tensor **tensor);

int shf_tensor_is_contiguous(const sheaf_tensor *tensor);
int64_t shf_tensor_elements(const sheaf_tensor *tensor);
int shf_dtype_is_float(sheaf_dtype dtype);

/* "[2, 3]" */
const char *shf_shape_text(const sheaf_tensor *tensor, char *buffer, size_t room);

/* Entry i of an index tensor on the CPU. */
static inline int64_t shf_index_at(const sheaf_tensor *t, int64_t i)
{
  const char *data = (const char *)t->dl.data + t->dl.byte_offset;
  return t->dtype == SHEAF_I64 ? ((const int64_t *)(const void *)data)[i] : ((const int32_t *)(const void *)data)[i];
}

static inline DLDevice shf_device_of(const sheaf_tensor *t)
{
  return t->dl.shape || !t->part[0] ? t->dl.device : shf_device_of(t->part[0]);
}

static inline void *shf_host_data(const sheaf_tensor *t)
{
  return sheaf_keyset_contains(t->keys, SHEAF_KEY_CPU) && t->dl.data ? (char *)t->dl.data + t->dl.byte_offset : NULL;
}

/* The keys that say where data lies. */
enum { SHF_DATA_KEYS = 1 << SHEAF_KEY_CPU | 1 << SHEAF_KEY_CUDA | 1 << SHEAF_KEY_META };

static inline int shf_is_on(const sheaf_tensor *t, int key) { return (t->keys.bits >> key & 1) != 0; }

/* Cpu, Cuda or Meta: the key whose kernels compute with this tensor's data. */
static inline sheaf_dispatch_key shf_data_key(const sheaf_tensor *t)
{
  return shf_is_on(t, SHEAF_KEY_META) ? SHEAF_KEY_META : shf_is_on(t, SHEAF_KEY_CUDA) ? SHEAF_KEY_CUDA : SHEAF_KEY_CPU;
}

/* Whether two tensors have their data in one place. */
static inline int shf_same_place(const sheaf_tensor *a, const sheaf_tensor *b)
{
  if ((a->keys.bits & SHF_DATA_KEYS) != (b->keys.bits & SHF_DATA_KEYS)) return 0;
  return !shf_is_on(a, SHEAF_KEY_CUDA) || shf_device_of(a).device_id == shf_device_of(b).device_id;
}

static inline void *shf_data(const sheaf_tensor *t)
{
  return t->dl.data ? (char *)t->dl.data + t->dl.byte_offset : NULL;
}

/* Releases a history without recursing, however long the chain behind it is. */
void shf_history_release(shf_history *history);

/* Gives a tensor the name of another. */
static inline void shf_copy_name(sheaf_tensor *to, const sheaf_tensor *from)
{
  if (from->name[0]) memcpy(to->name, from->name, sizeof to->name);
}

/* Sets *slot to NULL and releases what was there. */
static inline void shf_drop(sheaf_tensor **slot)
{
  sheaf_tensor *held = *slot;
  *slot = NULL;
  sheaf_tensor_release(held);
}

/* ---- Threads (guards.c) ---- */

/* What plans did on behalf of the profiled call. */
typedef struct shf_tally {
  int64_t bytes, runs, device_ns;
  char sku[64];
} shf_tally;

/* Address sanitizers watch blocks of the allocator only, so with them none is kept. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SHF_WATCHED_BLOCKS 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define SHF_WATCHED_BLOCKS 1
#endif
#ifdef SHF_WATCHED_BLOCKS
enum { SHF_SPARE_BYTES = 1024, SHF_SPARE_KEPT = 0 };
#else
enum { SHF_SPARE_BYTES = 1024, SHF_SPARE_KEPT = 16 };
#endif

typedef struct shf_thread {
  sheaf_keyset include, exclude;
  uint32_t guards, floor; /* how many have begun; how many of them before the kernel that runs */
  int depth;              /* kernels within kernels */
  shf_tally *tally;
  void *trace;
  sheaf_dtype autocast;
  int freeing;
  shf_history *dying;
  int spare_count, spare_watched; /* blocks that are kept; whether they are freed when the thread ends */
  void *spare[SHF_SPARE_KEPT + 1];
} shf_thread_state;

/* Small and used by every call. (Not of the initial-exec model: the library would not load into a running program.) */
extern _Thread_local shf_thread_state shf_thread;

/* Memory for what every call makes and frees (spare.c): small blocks are kept by the thread that frees them. `bytes` is
 * raised to what there is; release with that. */
void *shf_spare_alloc_new(size_t bytes);
void shf_spare_free_first(void *memory, size_t bytes);
void shf_spare_clear(void);

static inline void *shf_spare_alloc(size_t *bytes)
{
  shf_thread_state *mine = &shf_thread;
  if (__builtin_expect(*bytes > SHF_SPARE_BYTES, 0)) return shf_spare_alloc_new(*bytes);
  *bytes = SHF_SPARE_BYTES;
  return mine->spare_count > 0 ? mine->spare[--mine->spare_count] : shf_spare_alloc_new(SHF_SPARE_BYTES);
}

static inline void shf_spare_free(void *memory, size_t bytes)
{
  shf_thread_state *mine = &shf_thread;
  if (bytes == SHF_SPARE_BYTES && mine->spare_count < SHF_SPARE_KEPT && mine->spare_watched)
    mine->spare[mine->spare_count++] = memory;
  else
    shf_spare_free_first(memory, bytes);
}

/* Around code of others, a kernel or a gradient: what it begins ends with it, what it did not begin it cannot end. */
typedef struct shf_guard_mark {
  uint32_t guards, floor;
  sheaf_keyset include, exclude;
} shf_guard_mark;

/* Ends guards, autocast and traces that were begun since (dispatcher.c). */
void shf_guards_unwind(const shf_guard_mark *mark);

static inline shf_guard_mark shf_guards_enter(shf_thread_state *thread)
{
  shf_guard_mark mark = {thread->guards, thread->floor, thread->include, thread->exclude};
  thread->floor = thread->guards;
  return mark;
}

static inline void shf_guards_leave(shf_thread_state *thread, const shf_guard_mark *mark)
{
  thread->floor = mark->floor;
  if (__builtin_expect(thread->guards != mark->guards, 0)) shf_guards_unwind(mark);
}

/* Keys that all threads include (the profiler's). */
extern atomic_uint shf_everywhere;

/* ---- Layers (dispatcher.c, which alone knows their names) ---- */

typedef struct shf_layer {
  sheaf_kernel any;                       /* ops without a kernel of their own, users' ops too; NULL: none */
  sheaf_kernel kernel[SHEAF_OP_BUILT_IN]; /* NULL: `any` */
} shf_layer;

#define SHF_LAYER_LIST(X) \
  X(CPU, cpu)             \
  X(CUDA, cuda)           \
  X(META, meta)           \
  X(SPARSE, sparse)       \
  X(QUANTIZED, quantized) \
  X(NESTED, nested) X(AUTOCAST, autocast) X(AUTOGRAD, autograd) X(VMAP, vmap) X(PROFILER, profiler) X(TRACER, tracer)

#define SHF_X(key, name) extern const shf_layer shf_layer_##name;
SHF_LAYER_LIST(SHF_X)
#undef SHF_X

/* Autocast regions, and a trace, that hold a later guard than this one are over; what they kept is freed. */
void shf_autocast_unwind(uint32_t guards);
void shf_tracer_unwind(uint32_t guards);

/* sheaf_redispatch of a call that a built-in layer made of a checked one. */
sheaf_status shf_redispatch(const sheaf_call *call, const sheaf_frame *frame);

/* The gradient of an op, NULL when it has none. */
const sheaf_gradient *shf_dispatch_gradient(sheaf_op op);

/* Name of an input or output for messages. */
const char *shf_dispatch_input_name(sheaf_op op, int input);

/* ---- op_table.c ---- */

extern const sheaf_op_spec shf_built_in_ops[SHEAF_OP_BUILT_IN];

/* How many of its first inputs an op cannot do without. */
extern const uint8_t shf_required_inputs[SHEAF_OP_BUILT_IN];

/* Gradients of the built-in ops, by id; `backward` NULL: none. Kept by the Autograd layer. */
extern const sheaf_gradient shf_built_in_gradients[SHEAF_OP_BUILT_IN];

/* ---- Helpers for who makes calls ---- */

#define SHF_BIT(i) (1u << (i))

/* Whether output i of a call is wanted. */
static inline int shf_wants(const sheaf_call *call, int output)
{
  return call->output_count > output && (call->wanted ? (call->wanted >> output & 1) != 0 : output == 0);
}

/* An input that may not be given, or not exist. */
static inline sheaf_tensor *shf_input(const sheaf_call *call, int input)
{
  return input < call->input_count ? call->inputs[input] : NULL;
}

#endif
