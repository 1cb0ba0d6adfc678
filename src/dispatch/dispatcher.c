/* dispatcher.c: the table of op x key, and the walk through it.
 *
 * An entry never changes once it is in the table, and stays for good; a kernel that is put in front of another points
 * to it. So a call reads one mask and one pointer, without a lock; registration takes one. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "dispatch/dispatch_impl.h"

enum { MOST_ENTRIES = 4096, MOST_DEPTH = 64 };

typedef struct entry {
  sheaf_kernel kernel;
  void *context;
  const struct entry *replaced;
} entry;

static struct {
  pthread_mutex_t lock;
  entry pool[MOST_ENTRIES];
  int used;
  const entry *every[SHEAF_KEY_COUNT]; /* for ops to come, newest first */
  atomic_int ops;
  sheaf_op_spec spec[SHEAF_OP_MOST];
  sheaf_gradient gradient[SHEAF_OP_MOST];
  atomic_uchar has_gradient[SHEAF_OP_MOST];
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* What a call reads. */
static atomic_ushort op_keys[SHEAF_OP_MOST];
static _Atomic(const entry *) table[SHEAF_OP_MOST][SHEAF_KEY_COUNT];

/* ---- Registration, with the lock held ---- */

/* Puts a kernel in front of the one that is there. */
static int put(int op, int key, sheaf_kernel kernel, void *context)
{
  if (registry.used == MOST_ENTRIES) return 0;
  entry *made = &registry.pool[registry.used++];
  *made = (entry){kernel, context, atomic_load_explicit(&table[op][key], memory_order_relaxed)};
  atomic_store_explicit(&table[op][key], made, memory_order_release);
  atomic_fetch_or_explicit(&op_keys[op], sheaf_keyset_of(key).bits, memory_order_release);
  return 1;
}

static int put_every(int key, sheaf_kernel kernel, void *context)
{
  int ops = atomic_load(&registry.ops);
  if (registry.used + ops + 1 > MOST_ENTRIES) return 0;
  entry *made = &registry.pool[registry.used++];
  *made = (entry){kernel, context, registry.every[key]};
  registry.every[key] = made;
  for (int op = 0; op < ops; op++) put(op, key, kernel, context);
  return 1;
}

/* Before main, so that no call has to ask whether it was done. */
static void __attribute__((constructor)) install_built_in(void)
{
#define SHF_X(key, name) [SHEAF_KEY_##key] = &shf_layer_##name,
  static const shf_layer *const layers[SHEAF_KEY_COUNT] = {SHF_LAYER_LIST(SHF_X)};
#undef SHF_X
  for (int key = 0; key < SHEAF_KEY_COUNT; key++)
    if (layers[key]->any) put_every(key, layers[key]->any, NULL);
  for (int op = 0; op < SHEAF_OP_BUILT_IN; op++) {
    registry.spec[op] = shf_built_in_ops[op];
    registry.gradient[op] = shf_built_in_gradients[op];
    atomic_store(&registry.has_gradient[op], shf_built_in_gradients[op].backward != NULL);
    for (int key = 0; key < SHEAF_KEY_COUNT; key++) {
      sheaf_kernel kernel = layers[key]->kernel[op] ? layers[key]->kernel[op] : layers[key]->any;
      if (kernel) put(op, key, kernel, NULL);
    }
  }
  atomic_store(&registry.ops, SHEAF_OP_BUILT_IN);
}

/* ---- Registration ---- */

static int known(sheaf_op op) { return op >= 0 && op < atomic_load_explicit(&registry.ops, memory_order_acquire); }

sheaf_op sheaf_op_find(const char *name)
{
  int ops = atomic_load_explicit(&registry.ops, memory_order_acquire);
  for (int op = 0; name && op < ops; op++)
    if (strcmp(registry.spec[op].name, name) == 0) return op;
  return -1;
}

const sheaf_op_spec *sheaf_op_describe(sheaf_op op) { return known(op) ? &registry.spec[op] : NULL; }

static sheaf_status check_spec(const sheaf_op_spec *spec)
{
  SHF_REQUIRE(spec && spec->struct_size >= sizeof *spec, INVALID_PROBLEM,
              "an op's description is NULL or not initialised with SHEAF_OP_SPEC_INIT");
  SHF_REQUIRE(spec->name && spec->name[0], INVALID_PROBLEM, "an op needs a name");
  SHF_REQUIRE(spec->inputs >= -1 && spec->inputs <= 32 && spec->outputs >= -1 && spec->outputs <= 32 &&
                  spec->attrs >= 0,
              INVALID_PROBLEM, "op %s: %d inputs, %d outputs, %d attributes (-1 or 0 to 32, -1 or 0 to 32, 0 or more)",
              spec->name, spec->inputs, spec->outputs, spec->attrs);
  SHF_REQUIRE((spec->inputs <= 0 || spec->input_names) && (spec->outputs <= 0 || spec->output_names) &&
                  (spec->attrs == 0 || spec->attr_specs),
              INVALID_PROBLEM, "op %s: inputs, outputs and attributes need names", spec->name);
  return SHEAF_OK;
}

sheaf_status sheaf_op_register(const sheaf_op_spec *spec, sheaf_op *op)
{
  SHF_TRY(check_spec(spec));
  SHF_REQUIRE(op, INVALID_PROBLEM, "sheaf_op_register: op is NULL");
  pthread_mutex_lock(&registry.lock);
  int id = atomic_load(&registry.ops), taken = sheaf_op_find(spec->name) >= 0, full = id == SHEAF_OP_MOST;
  if (!taken && !full) {
    registry.spec[id] = *spec;
    for (int key = 0; key < SHEAF_KEY_COUNT; key++) {
      const entry *line[MOST_DEPTH];
      int count = 0;
      for (const entry *e = registry.every[key]; e && count < MOST_DEPTH; e = e->replaced) line[count++] = e;
      while (count > 0 && !full) {
        count--;
        full = !put(id, key, line[count]->kernel, line[count]->context);
      }
    }
    if (!full) atomic_store_explicit(&registry.ops, id + 1, memory_order_release);
  }
  pthread_mutex_unlock(&registry.lock);
  SHF_REQUIRE(!taken, INVALID_PROBLEM, "there is an op called %s already", spec->name);
  SHF_REQUIRE(!full, OUT_OF_MEMORY, "op %s: no room; there can be %d ops and %d kernels", spec->name, SHEAF_OP_MOST,
              MOST_ENTRIES);
  *op = id;
  return SHEAF_OK;
}

sheaf_status sheaf_layer_register(sheaf_op op, sheaf_dispatch_key key, sheaf_kernel kernel, void *context)
{
  SHF_REQUIRE(kernel, INVALID_PROBLEM, "sheaf_layer_register: kernel is NULL");
  SHF_REQUIRE((int)key >= 0 && (int)key < SHEAF_KEY_COUNT, INVALID_PROBLEM,
              "dispatch key %d: there are 0 (Cpu) to 10 (Tracer)", (int)key);
  SHF_REQUIRE(op == SHEAF_OP_EVERY || known(op), INVALID_PROBLEM, "op %d is not known", op);
  pthread_mutex_lock(&registry.lock);
  int put_there = op == SHEAF_OP_EVERY ? put_every((int)key, kernel, context) : put(op, (int)key, kernel, context);
  pthread_mutex_unlock(&registry.lock);
  SHF_REQUIRE(put_there, OUT_OF_MEMORY, "no room for another kernel; there can be %d", MOST_ENTRIES);
  return SHEAF_OK;
}

sheaf_status sheaf_gradient_register(sheaf_op op, const sheaf_gradient *gradient)
{
  SHF_REQUIRE(known(op), INVALID_PROBLEM, "op %d is not known", op);
  SHF_REQUIRE(gradient && gradient->struct_size >= sizeof *gradient && gradient->backward, INVALID_PROBLEM,
              "%s: its gradient is NULL, not initialised or has no function", registry.spec[op].name);
  pthread_mutex_lock(&registry.lock);
  int taken = atomic_load(&registry.has_gradient[op]);
  if (!taken) {
    registry.gradient[op] = *gradient;
    atomic_store_explicit(&registry.has_gradient[op], 1, memory_order_release);
  }
  pthread_mutex_unlock(&registry.lock);
  SHF_REQUIRE(!taken, INVALID_PROBLEM, "%s has a gradient already", registry.spec[op].name);
  return SHEAF_OK;
}

const sheaf_gradient *shf_dispatch_gradient(sheaf_op op)
{
  return known(op) && atomic_load_explicit(&registry.has_gradient[op], memory_order_acquire) ? &registry.gradient[op]
                                                                                             : NULL;
}

const char *shf_dispatch_input_name(sheaf_op op, int input)
{
  const sheaf_op_spec *spec = sheaf_op_describe(op);
  return spec && input >= 0 && input < spec->inputs ? spec->input_names[input] : "an input";
}

/* ---- Calls ---- */

static inline sheaf_keyset keys_of(const sheaf_call *call)
{
  unsigned bits =
      shf_thread.include.bits | call->include.bits | atomic_load_explicit(&shf_everywhere, memory_order_relaxed);
  for (int i = 0; i < call->input_count; i++)
    if (call->inputs[i]) bits |= call->inputs[i]->keys.bits;
  return sheaf_keyset_from(bits & ~(unsigned)shf_thread.exclude.bits);
}

sheaf_keyset sheaf_call_keys(const sheaf_call *call) { return call ? keys_of(call) : sheaf_keyset_empty(); }

static sheaf_status too_deep(const sheaf_call *call, int key)
{
  return shf_core_fail(SHEAF_INVALID_PROBLEM, "%s: %d kernels within each other, the last for %s; one calls itself",
                       registry.spec[call->op].name, MOST_DEPTH, sheaf_dispatch_key_name(key));
}

void shf_guards_unwind(const shf_guard_mark *mark)
{
  shf_thread.guards = mark->guards;
  shf_thread.include = mark->include;
  shf_thread.exclude = mark->exclude;
  shf_autocast_unwind(mark->guards);
  shf_tracer_unwind(mark->guards);
}

static inline sheaf_status enter(const entry *e, int key, const sheaf_call *call)
{
  shf_thread_state *thread = &shf_thread;
  if (__builtin_expect(thread->depth >= MOST_DEPTH, 0)) return too_deep(call, key);
  const shf_guard_mark mark = shf_guards_enter(thread);
  const sheaf_frame frame = {(sheaf_dispatch_key)key, {(uint16_t)((1u << key) - 1)}, e->context, e->replaced};
  thread->depth++;
  sheaf_status status = e->kernel(call, &frame);
  thread->depth--;
  shf_guards_leave(thread, &mark);
  return status;
}

static sheaf_status no_kernel(const sheaf_call *call, unsigned bits)
{
  char text[128];
  const char *op = registry.spec[call->op].name;
  SHF_REQUIRE(bits, INVALID_PROBLEM, "%s: no tensor of the call brings a dispatch key", op);
  return shf_core_fail(SHEAF_UNSUPPORTED, "%s has no kernel for any key of %s", op,
                       sheaf_keyset_text(sheaf_keyset_from(bits), text, sizeof text));
}

static inline sheaf_status walk(const sheaf_call *call, unsigned bits)
{
  unsigned found = bits & atomic_load_explicit(&op_keys[call->op], memory_order_acquire);
  if (__builtin_expect(!found, 0)) return no_kernel(call, bits);
  int key = 31 - __builtin_clz(found);
  return enter(atomic_load_explicit(&table[call->op][key], memory_order_acquire), key, call);
}

static sheaf_status check_call(const sheaf_call *call)
{
  SHF_REQUIRE(call && call->struct_size >= sizeof *call, INVALID_PROBLEM,
              "a call is NULL or not initialised with SHEAF_CALL_INIT");
  SHF_REQUIRE(known(call->op), INVALID_PROBLEM, "op %d is not known; there are %d", call->op,
              atomic_load(&registry.ops));
  const sheaf_op_spec *spec = &registry.spec[call->op];
  int inputs = spec->inputs < 0 ? 32 : spec->inputs, outputs = spec->outputs < 0 ? 32 : spec->outputs;
  SHF_REQUIRE((call->input_count == inputs || (spec->inputs < 0 && (unsigned)call->input_count <= 32)) &&
                  (call->output_count == outputs || (spec->outputs < 0 && (unsigned)call->output_count <= 32)) &&
                  call->attr_count == spec->attrs,
              INVALID_PROBLEM, "%s is called with %d inputs, %d outputs, %d attributes; it has %d, %d and %d",
              spec->name, call->input_count, call->output_count, call->attr_count, spec->inputs, spec->outputs,
              spec->attrs);
  SHF_REQUIRE((call->inputs || call->input_count == 0) && (call->outputs || call->output_count == 0) &&
                  (call->attrs || call->attr_count == 0),
              INVALID_PROBLEM, "%s: a list of the call is NULL", spec->name);
  int required = call->op < SHEAF_OP_BUILT_IN ? shf_required_inputs[call->op] : 0;
  for (int i = 0; i < required; i++)
    SHF_REQUIRE(call->inputs && call->inputs[i], INVALID_PROBLEM, "%s: %s is NULL", spec->name, spec->input_names[i]);
  return SHEAF_OK;
}

sheaf_status sheaf_dispatch(const sheaf_call *call)
{
  SHF_TRY(check_call(call));
  return walk(call, keys_of(call).bits);
}

sheaf_status sheaf_dispatch_to(const sheaf_call *call, sheaf_dispatch_key key)
{
  SHF_TRY(check_call(call));
  SHF_REQUIRE((int)key >= 0 && (int)key < SHEAF_KEY_COUNT, INVALID_PROBLEM, "dispatch key %d: there are 0 to 10",
              (int)key);
  const entry *e = atomic_load_explicit(&table[call->op][key], memory_order_acquire);
  SHF_REQUIRE(e, UNSUPPORTED, "%s has no kernel for %s", registry.spec[call->op].name,
              sheaf_dispatch_key_name((int)key));
  return enter(e, (int)key, call);
}

sheaf_status shf_redispatch(const sheaf_call *call, const sheaf_frame *frame)
{
  return walk(call, keys_of(call).bits & ((1u << frame->key) - 1));
}

sheaf_status sheaf_redispatch(const sheaf_call *call, const sheaf_frame *frame)
{
  SHF_TRY(check_call(call));
  SHF_REQUIRE(frame, INVALID_PROBLEM, "sheaf_redispatch: frame is NULL");
  return shf_redispatch(call, frame);
}

sheaf_status sheaf_call_replaced(const sheaf_call *call, const sheaf_frame *frame)
{
  SHF_REQUIRE(frame, INVALID_PROBLEM, "sheaf_call_replaced: frame is NULL");
  if (!frame->replaced) return sheaf_redispatch(call, frame);
  SHF_TRY(check_call(call));
  return enter(frame->replaced, (int)frame->key, call);
}

/* ---- Names ---- */

const char *sheaf_dispatch_key_name(int key)
{
#define SHEAF_X(name, value, text) [value] = text,
  static const char *const names[] = {SHEAF_DISPATCH_KEY_LIST(SHEAF_X)};
#undef SHEAF_X
  return key >= 0 && key < SHEAF_KEY_COUNT ? names[key] : "none";
}

char *sheaf_keyset_text(sheaf_keyset set, char *text, size_t room)
{
  size_t used = 0;
  if (!text || room == 0) return text;
  text[0] = '\0';
  const char *before = "{";
  for (int key; (key = sheaf_keyset_next(&set)) >= 0; before = ", ")
    if (used < room) used += (size_t)snprintf(text + used, room - used, "%s%s", before, sheaf_dispatch_key_name(key));
  if (used < room) snprintf(text + used, room - used, "%s", used ? "}" : "{}");
  return text;
}
