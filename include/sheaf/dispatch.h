/* sheaf/dispatch.h: how a call finds its code. Needed by those who add ops or layers; who only calls ops wants ops.h.
 *
 * Every tensor carries a set of dispatch keys; a call's set is the union over its tensors, with what the thread
 * includes (autocast, tracing), without what it excludes. The dispatcher walks the set from the highest key down and
 * runs the first kernel that the op has for a key of the set; keys without a kernel are skipped. A kernel of a high key
 * does its part and redispatches: the helper leaves its own key and all above it out, whatever the kernel does.
 *
 *   static sheaf_status count(const sheaf_call *call, const sheaf_frame *frame)   // a layer of a user's own
 *   {
 *     ++*(int *)frame->context;
 *     return sheaf_call_replaced(call, frame);                                    // then what was there before it
 *   }
 *   sheaf_layer_register(SHEAF_OP_EMBEDDING, SHEAF_KEY_CPU, count, &calls);
 */
#ifndef SHEAF_DISPATCH_H
#define SHEAF_DISPATCH_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Keys ---------------------------------------------------------------------------------------------------- */

/* X(NAME, value, "name"). The value is the priority and a bit's position: part of the ABI. 11 to 15 are reserved. */
#define SHEAF_DISPATCH_KEY_LIST(X) \
  X(CPU, 0, "Cpu")                 \
  X(CUDA, 1, "Cuda")               \
  X(META, 2, "Meta")               \
  X(SPARSE, 3, "Sparse")           \
  X(QUANTIZED, 4, "Quantized")     \
  X(NESTED, 5, "Nested")           \
  X(AUTOCAST, 6, "Autocast")       \
  X(AUTOGRAD, 7, "Autograd")       \
  X(VMAP, 8, "Vmap")               \
  X(PROFILER, 9, "Profiler")       \
  X(TRACER, 10, "Tracer")

typedef enum sheaf_dispatch_key {
#define SHEAF_X(name, value, text) SHEAF_KEY_##name = value,
  SHEAF_DISPATCH_KEY_LIST(SHEAF_X)
#undef SHEAF_X
} sheaf_dispatch_key;

enum { SHEAF_KEY_COUNT = 11 };

/* "Cpu" ...; "none" for anything else. */
SHEAF_API const char *sheaf_dispatch_key_name(int key);

/* "{Autograd, Cpu}", highest first, into `text` (a few words short when `room` is). Returns `text`. */
SHEAF_API char *sheaf_keyset_text(sheaf_keyset set, char *text, size_t room);

/* The algebra of sets. Keys outside 0..10 are in no set. */
static inline sheaf_keyset sheaf_keyset_from(unsigned bits)
{
  sheaf_keyset set;
  set.bits = (uint16_t)(bits & 0x7ffu);
  return set;
}
static inline sheaf_keyset sheaf_keyset_empty(void) { return sheaf_keyset_from(0); }
static inline sheaf_keyset sheaf_keyset_all(void) { return sheaf_keyset_from(0x7ff); }
static inline sheaf_keyset sheaf_keyset_of(int key)
{
  return sheaf_keyset_from(key >= 0 && key < SHEAF_KEY_COUNT ? 1u << key : 0);
}
static inline sheaf_keyset sheaf_keyset_union(sheaf_keyset a, sheaf_keyset b)
{
  return sheaf_keyset_from((unsigned)a.bits | b.bits);
}
static inline sheaf_keyset sheaf_keyset_intersect(sheaf_keyset a, sheaf_keyset b)
{
  return sheaf_keyset_from((unsigned)a.bits & b.bits);
}
static inline sheaf_keyset sheaf_keyset_difference(sheaf_keyset a, sheaf_keyset b)
{
  return sheaf_keyset_from(a.bits & ~(unsigned)b.bits);
}
static inline sheaf_keyset sheaf_keyset_insert(sheaf_keyset set, int key)
{
  return sheaf_keyset_union(set, sheaf_keyset_of(key));
}
static inline sheaf_keyset sheaf_keyset_remove(sheaf_keyset set, int key)
{
  return sheaf_keyset_difference(set, sheaf_keyset_of(key));
}
static inline int sheaf_keyset_contains(sheaf_keyset set, int key)
{
  return (set.bits & sheaf_keyset_of(key).bits) != 0;
}
static inline int sheaf_keyset_equal(sheaf_keyset a, sheaf_keyset b) { return a.bits == b.bits; }
static inline int sheaf_keyset_count(sheaf_keyset set)
{
  int count = 0;
  for (unsigned bits = set.bits; bits; bits &= bits - 1) count++;
  return count;
}
/* The highest key, -1 of the empty set. */
static inline int sheaf_keyset_highest(sheaf_keyset set)
{
  int key = -1;
  for (unsigned bits = set.bits; bits; bits >>= 1) key++;
  return key;
}
/* The keys below one. */
static inline sheaf_keyset sheaf_keyset_below(int key)
{
  return sheaf_keyset_from(key <= 0 ? 0 : key >= SHEAF_KEY_COUNT ? 0x7ffu : (1u << key) - 1);
}
/* Takes the highest key out of the set and returns it, -1 when there is none:
 *   for (int key; (key = sheaf_keyset_next(&set)) >= 0;) ... */
static inline int sheaf_keyset_next(sheaf_keyset *set)
{
  int key = sheaf_keyset_highest(*set);
  *set = sheaf_keyset_remove(*set, key);
  return key;
}

/* ---- What a thread includes and excludes --------------------------------------------------------------------- */

/* Guards nest: `end` ends the one begun last on this thread (anything else is INVALID_PROBLEM and changes nothing).
 * Guards that a kernel (or the gradient of an op) begins and does not end are ended when it returns, on whatever path;
 * so are autocast and a trace. Those that were begun outside of it, it cannot end. */
typedef struct sheaf_guard {
  sheaf_keyset include, exclude; /* of the thread, before */
  uint32_t depth;
} sheaf_guard;

SHEAF_API sheaf_status sheaf_guard_begin(sheaf_keyset include, sheaf_keyset exclude, sheaf_guard *guard);
SHEAF_API sheaf_status sheaf_guard_end(const sheaf_guard *guard);

/* The thread's sets as they are now. */
SHEAF_API sheaf_keyset sheaf_included_keys(void);
SHEAF_API sheaf_keyset sheaf_excluded_keys(void);

/* ---- Ops ----------------------------------------------------------------------------------------------------- */

/* X(NAME, id, "name"): the ops that are built in; ops.h says what they are. User's ops have the ids after them. */
#define SHEAF_OP_LIST(X)                                   \
  X(EMBEDDING, 0, "embedding")                             \
  X(EMBEDDING_BACKWARD, 1, "embedding_backward")           \
  X(EMBEDDING_BAG, 2, "embedding_bag")                     \
  X(EMBEDDING_BAG_BACKWARD, 3, "embedding_bag_backward")   \
  X(SEGMENT_REDUCE, 4, "segment_reduce")                   \
  X(SEGMENT_REDUCE_BACKWARD, 5, "segment_reduce_backward") \
  X(QUANTIZE, 6, "quantize")                               \
  X(DEQUANTIZE, 7, "dequantize")                           \
  X(COALESCE, 8, "coalesce")                               \
  X(TO_DENSE, 9, "to_dense")                               \
  X(CAST, 10, "cast")                                      \
  X(ADD, 11, "add")                                        \
  X(MOVEDIM, 12, "movedim")                                \
  X(BATCH, 13, "batch")                                    \
  X(UNBATCH, 14, "unbatch")                                \
  X(RESHAPE, 15, "reshape")                                \
  X(EXPAND, 16, "expand")

typedef int32_t sheaf_op;
enum {
#define SHEAF_X(name, value, text) SHEAF_OP_##name = value,
  SHEAF_OP_LIST(SHEAF_X)
#undef SHEAF_X
      SHEAF_OP_BUILT_IN,
  SHEAF_OP_MOST = 256, /* ids there are in all */
  SHEAF_OP_EVERY = -1  /* sheaf_layer_register: every op, those to come too */
};

/* An attribute: a number that is no tensor. Flags, enums and dtypes are integers. */
typedef union sheaf_attr {
  int64_t i;
  double f;
} sheaf_attr;

typedef enum sheaf_attr_type { SHEAF_ATTR_INT = 0, SHEAF_ATTR_FLOAT = 1, SHEAF_ATTR_DTYPE = 2 } sheaf_attr_type;

typedef struct sheaf_attr_spec {
  const char *name;
  sheaf_attr_type type;
  sheaf_attr usual; /* traces leave it out when it is this */
} sheaf_attr_spec;

/* What an op takes and gives. `inputs` and `outputs` may be -1: any number, without names. Names are kept, not
 * copied. */
typedef struct sheaf_op_spec {
  size_t struct_size;
  const char *name;
  int inputs, outputs, attrs;
  const char *const *input_names;
  const char *const *output_names;
  const sheaf_attr_spec *attr_specs;
} sheaf_op_spec;

#define SHEAF_OP_SPEC_INIT SHEAF_INIT(sheaf_op_spec)

/* Adds an op. INVALID_PROBLEM when the name is taken. Ops stay for the life of the process. */
SHEAF_API sheaf_status sheaf_op_register(const sheaf_op_spec *spec, sheaf_op *op);

/* -1, and NULL, when there is none. */
SHEAF_API sheaf_op sheaf_op_find(const char *name);
SHEAF_API const sheaf_op_spec *sheaf_op_describe(sheaf_op op);

/* ---- Calls --------------------------------------------------------------------------------------------------- */

/* One call of an op. Inputs are borrowed; an optional one that is not given is NULL. An output that is NULL is made and
 * belongs to the caller; one that is set is written into, and must have the right type and shape. When the call
 * fails, outputs are as they were (their contents too, but for bad values found on a device). */
typedef struct sheaf_call {
  size_t struct_size;
  sheaf_op op;
  int32_t input_count, output_count, attr_count;
  sheaf_tensor *const *inputs;
  sheaf_tensor **outputs;
  const sheaf_attr *attrs;
  uint32_t wanted;      /* bit i: optional output i is wanted. The first one always is, unless `wanted` says others */
  sheaf_keyset include; /* keys beside those of the tensors: {Sparse} for a sparse gradient, {Quantized} for a result */
  uint32_t batched;     /* below Vmap: bit i says that input i has a leading dimension of `batch` */
  int64_t batch;        /* below Vmap: problems in one call; every output has a leading dimension. 0: no such thing */
} sheaf_call;

#define SHEAF_CALL_INIT SHEAF_INIT(sheaf_call)

/* What a kernel knows about how it was reached. */
typedef struct sheaf_frame {
  sheaf_dispatch_key key;
  sheaf_keyset below; /* what redispatch may still reach */
  void *context;      /* as registered */
  const void *replaced;
} sheaf_frame;

typedef sheaf_status (*sheaf_kernel)(const sheaf_call *call, const sheaf_frame *frame);

/* Runs a call. INVALID_PROBLEM: unknown op; a set without keys; more calls within each other than 64 (a kernel that
 * calls itself without end). UNSUPPORTED: there are keys, but the op has a kernel for none of them. */
SHEAF_API sheaf_status sheaf_dispatch(const sheaf_call *call);

/* Runs the kernel of this key and no other; UNSUPPORTED when there is none. Redispatch below it works as usual. */
SHEAF_API sheaf_status sheaf_dispatch_to(const sheaf_call *call, sheaf_dispatch_key key);

/* Inside a kernel: runs a call (the same one, a changed one, or one of another op) with the keys of its tensors that
 * are below the kernel's own. */
SHEAF_API sheaf_status sheaf_redispatch(const sheaf_call *call, const sheaf_frame *frame);

/* Inside a kernel: runs the kernel that this one replaced for its op and key; without one, redispatches. */
SHEAF_API sheaf_status sheaf_call_replaced(const sheaf_call *call, const sheaf_frame *frame);

/* The keys a call would be dispatched with now. */
SHEAF_API sheaf_keyset sheaf_call_keys(const sheaf_call *call);

/* Adds a kernel for an op (or SHEAF_OP_EVERY) and key, in front of what is there. Calls that run meanwhile see either.
 * Kernels stay for the life of the process; there is room for 4096, one for each op. */
SHEAF_API sheaf_status sheaf_layer_register(sheaf_op op, sheaf_dispatch_key key, sheaf_kernel kernel, void *context);

/* ---- Gradients of ops ---------------------------------------------------------------------------------------- */

/* Gives an op a gradient, by which the Autograd layer differentiates it. `backward` gets the forward call as it was
 * saved (tensors that are not saved are NULL; of these, `inputs_like` has dtype and shape without data), the gradients
 * of the outputs (NULL: zero), and makes those of the inputs whose bit is set in `wanted` (NULL: zero). */
typedef struct sheaf_gradient {
  size_t struct_size;
  uint32_t differentiable; /* bit i: input i has a gradient */
  uint32_t save_inputs, save_outputs;
  sheaf_status (*backward)(const sheaf_call *forward, sheaf_tensor *const *inputs_like,
                           sheaf_tensor *const *output_grads, uint32_t wanted, sheaf_tensor **input_grads,
                           void *context);
  void *context;
} sheaf_gradient;

#define SHEAF_GRADIENT_INIT SHEAF_INIT(sheaf_gradient)

/* INVALID_PROBLEM when the op is unknown or has a gradient. */
SHEAF_API sheaf_status sheaf_gradient_register(sheaf_op op, const sheaf_gradient *gradient);

#ifdef __cplusplus
}
#endif
#endif
