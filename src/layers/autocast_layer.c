/* autocast_layer.c: the Autocast key: tables in 16 bits for the ops that gain by it, by a policy for each op. */
#include "layers/layers_impl.h"

typedef enum policy {
  PASS = 0, /* take what is given */
  LOWER,    /* table and weights in the autocast type; quantised tables give it */
  WIDEN     /* the wider type of two operands */
} policy;

/* Indices are never cast, nor is f64. Gradients come in the type of their leaf, so their ops pass. */
static const policy policies[SHEAF_OP_BUILT_IN] = {
    [SHEAF_OP_EMBEDDING] = LOWER, [SHEAF_OP_EMBEDDING_BAG] = LOWER, [SHEAF_OP_ADD] = WIDEN};

enum { MOST_NESTED = 16, CACHED = 32 };

/* A cast table, valid while the table's version is this. Both are held. */
typedef struct cast_table {
  sheaf_tensor *table, *cast;
  int64_t version;
} cast_table;

static _Thread_local struct {
  int depth;
  struct {
    sheaf_guard guard;
    sheaf_dtype dtype; /* before */
  } outer[MOST_NESTED];
  cast_table cache[CACHED];
  int next;
} region;

static void forget(cast_table *entry)
{
  shf_drop(&entry->table);
  shf_drop(&entry->cast);
}

sheaf_status sheaf_autocast_begin(sheaf_dtype dtype)
{
  SHF_REQUIRE(dtype == SHEAF_F16 || dtype == SHEAF_BF16 || dtype == SHEAF_DTYPE_NONE, UNSUPPORTED,
              "autocast to %s: f16 and bf16 are supported (or none, to leave it off)", sheaf_dtype_name(dtype));
  SHF_REQUIRE(region.depth < MOST_NESTED, INVALID_PROBLEM, "autocast is nested more than %d times", MOST_NESTED);
  sheaf_keyset key = sheaf_keyset_of(SHEAF_KEY_AUTOCAST), none = sheaf_keyset_empty();
  SHF_TRY(sheaf_guard_begin(dtype ? key : none, dtype ? none : key, &region.outer[region.depth].guard));
  region.outer[region.depth].dtype = shf_thread.autocast;
  region.depth++;
  shf_thread.autocast = dtype;
  return SHEAF_OK;
}

/* Leaves the innermost region. */
static void leave(void)
{
  region.depth--;
  shf_thread.autocast = region.outer[region.depth].dtype;
  for (int i = 0; region.depth == 0 && i < CACHED; i++) forget(&region.cache[i]);
}

void shf_autocast_unwind(uint32_t guards)
{
  while (region.depth > 0 && region.outer[region.depth - 1].guard.depth > guards) leave();
}

sheaf_status sheaf_autocast_end(void)
{
  SHF_REQUIRE(region.depth > 0, INVALID_PROBLEM, "autocast is ended, but has not begun on this thread");
  SHF_TRY(sheaf_guard_end(&region.outer[region.depth - 1].guard));
  leave();
  return SHEAF_OK;
}

static int is_lowered(const sheaf_tensor *t, sheaf_dtype dtype)
{
  return t && t->dtype != dtype && (t->dtype == SHEAF_F32 || t->dtype == SHEAF_F16 || t->dtype == SHEAF_BF16);
}

static sheaf_status cast_cached(sheaf_tensor *table, sheaf_dtype dtype, const sheaf_frame *frame, sheaf_tensor **out)
{
  cast_table *cache = region.cache, *place = NULL;
  int64_t version = sheaf_tensor_version(table);
  for (int i = 0; i < CACHED && !place; i++)
    if (cache[i].table == table && cache[i].cast->dtype == dtype) place = &cache[i];
  if (place && place->version == version) {
    *out = sheaf_tensor_retain(place->cast);
    return SHEAF_OK;
  }
  SHF_TRY(shf_send_dtype(SHEAF_OP_CAST, table, dtype, frame, out));
  if (!place) {
    place = &cache[region.next];
    region.next = (region.next + 1) % CACHED;
  }
  forget(place);
  *place = (cast_table){sheaf_tensor_retain(table), sheaf_tensor_retain(*out), version};
  return SHEAF_OK;
}

static sheaf_status lower(const sheaf_call *call, const sheaf_frame *frame)
{
  enum { TABLE = 0, WEIGHTS = 3, MOST = 4 };
  sheaf_dtype dtype = shf_thread.autocast;
  sheaf_tensor *table = call->inputs[TABLE], *weights = shf_input(call, WEIGHTS), *cast[2] = {NULL, NULL};
  sheaf_tensor *inputs[MOST] = {NULL};
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  sheaf_status status = SHEAF_OK;
  memcpy(attrs, call->attrs, sizeof attrs);
  for (int i = 0; i < call->input_count; i++) inputs[i] = call->inputs[i];
  if (shf_is_quantised(table->dtype)) {
    if (!attrs[SHEAF_EMBEDDING_OUT_DTYPE].i) attrs[SHEAF_EMBEDDING_OUT_DTYPE].i = dtype;
  } else if (is_lowered(table, dtype)) {
    status = cast_cached(table, dtype, frame, &cast[0]);
    if (cast[0]) inputs[TABLE] = table = cast[0];
  }
  if (status == SHEAF_OK && table->dtype == dtype && is_lowered(weights, dtype)) {
    status = shf_send_dtype(SHEAF_OP_CAST, weights, dtype, frame, &cast[1]);
    inputs[WEIGHTS] = cast[1];
  }
  sheaf_call lowered = *call;
  lowered.inputs = inputs;
  lowered.attrs = attrs;
  if (status == SHEAF_OK) status = shf_redispatch(&lowered, frame);
  sheaf_tensor_release(cast[0]);
  sheaf_tensor_release(cast[1]);
  return status;
}

/* f64 before f32 before 16 bits; the two kinds of 16 bits meet in f32. */
static sheaf_dtype wider(sheaf_dtype a, sheaf_dtype b)
{
  if (a == b) return a;
  return a == SHEAF_F64 || b == SHEAF_F64 ? SHEAF_F64 : SHEAF_F32;
}

static sheaf_status widen(const sheaf_call *call, const sheaf_frame *frame)
{
  sheaf_tensor *a = call->inputs[0], *b = call->inputs[1], *inputs[2] = {NULL, NULL};
  if (!shf_dtype_is_float(a->dtype) || !shf_dtype_is_float(b->dtype) || a->dtype == b->dtype)
    return shf_redispatch(call, frame);
  sheaf_dtype dtype = wider(a->dtype, b->dtype);
  sheaf_status status = shf_send_dtype(SHEAF_OP_CAST, a, dtype, frame, &inputs[0]);
  if (status == SHEAF_OK) status = shf_send_dtype(SHEAF_OP_CAST, b, dtype, frame, &inputs[1]);
  sheaf_call widened = *call;
  widened.inputs = inputs;
  if (status == SHEAF_OK) status = shf_redispatch(&widened, frame);
  sheaf_tensor_release(inputs[0]);
  sheaf_tensor_release(inputs[1]);
  return status;
}

static sheaf_status autocast(const sheaf_call *call, const sheaf_frame *frame)
{
  policy p = call->op < SHEAF_OP_BUILT_IN ? policies[call->op] : PASS;
  if (p == PASS || !shf_thread.autocast) return shf_redispatch(call, frame);
  return p == LOWER ? lower(call, frame) : widen(call, frame);
}

const shf_layer shf_layer_autocast = {.any = autocast};
