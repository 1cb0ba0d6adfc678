/* tensor.c: tensors: memory, references, versions, gradients. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/dtype.h"
#include "core/memory.h"
#include "dispatch/dispatch_impl.h"

enum { BLOCK_START = (sizeof(sheaf_tensor) + 63) / 64 * 64 };

int shf_dtype_is_float(sheaf_dtype dtype) { return dtype >= SHEAF_F32 && dtype <= SHEAF_BF16; }

/* ---- Making ---- */

/* A tensor of no form yet with `extra` bytes behind it. */
static sheaf_status make_block(size_t extra, sheaf_tensor **tensor)
{
  size_t block = BLOCK_START + extra;
  if (extra > (size_t)1 << 47) return shf_core_no_memory("a tensor", extra); /* more than a process can address */
  sheaf_tensor *t = shf_spare_alloc(&block);
  if (!t) return shf_core_no_memory("a tensor", block);
  shf_tensor_begin(t, block);
  *tensor = t;
  return SHEAF_OK;
}

static sheaf_status check_shape(int rank, const int64_t *shape)
{
  SHF_REQUIRE(rank >= 0 && rank <= SHEAF_TENSOR_MAX_RANK, INVALID_PROBLEM,
              "a tensor of %d dimensions; 0 to %d are taken", rank, SHEAF_TENSOR_MAX_RANK);
  SHF_REQUIRE(rank == 0 || shape, INVALID_PROBLEM, "a tensor of %d dimensions has no shape", rank);
  int64_t elements = 1;
  for (int i = 0; i < rank; i++) {
    SHF_REQUIRE(shape[i] >= 0, INVALID_PROBLEM, "extent %" PRId64 " in dimension %d of a tensor", shape[i], i);
    SHF_REQUIRE(!__builtin_mul_overflow(elements, shape[i] ? shape[i] : 1, &elements) && elements < INT64_MAX / 16,
                INVALID_PROBLEM, "a tensor's shape has more than 2^59 elements");
  }
  return SHEAF_OK;
}

/* Sets rank, extents and contiguous strides, in the tensor and its dl. */
static void set_shape(sheaf_tensor *t, int rank, const int64_t *shape)
{
  int64_t step = 1;
  t->rank = rank;
  for (int i = rank - 1; i >= 0; i--) {
    t->extent[i] = shape[i];
    t->strides[i] = step;
    step *= shape[i];
  }
  t->dl.ndim = rank;
  t->dl.shape = t->extent;
  t->dl.strides = t->strides;
}

static sheaf_status device_key(DLDevice device, int *key)
{
  int type = (int)device.device_type;
  *key = type == kDLCUDA || type == kDLCUDAManaged ? SHEAF_KEY_CUDA : SHEAF_KEY_CPU;
  SHF_REQUIRE(*key == SHEAF_KEY_CUDA || type == kDLCPU || type == kDLCUDAHost, UNSUPPORTED,
              "device type %d: tensors lie on CPUs (1) and CUDA devices (2)", type);
  return SHEAF_OK;
}

static sheaf_status make_at(int key, DLDevice device, sheaf_dtype dtype, int rank, const int64_t *shape,
                            sheaf_tensor **tensor)
{
  SHF_TRY(check_shape(rank, shape));
  int64_t size = shf_core_dtype_size(dtype);
  SHF_REQUIRE(size > 0, UNSUPPORTED, "a dense tensor of %s (%d)", sheaf_dtype_name(dtype), (int)dtype);
  int64_t bytes = size;
  for (int i = 0; i < rank; i++) bytes *= shape[i];
  sheaf_tensor *t = NULL;
  void *placed = NULL;
  if (key == SHEAF_KEY_CUDA) SHF_TRY(shf_place_alloc(device, (size_t)bytes, &placed));
  sheaf_status status = make_block(key == SHEAF_KEY_CPU ? (size_t)bytes : 0, &t);
  if (status != SHEAF_OK) {
    shf_place_free(device, placed, 0);
    return status;
  }
  t->form = key == SHEAF_KEY_META ? SHEAF_FORM_META : SHEAF_FORM_DENSE;
  t->dtype = dtype;
  t->keys = sheaf_keyset_of(key);
  t->bytes = (size_t)bytes;
  t->placed = placed;
  t->dl.data = key == SHEAF_KEY_CPU ? (char *)t + BLOCK_START : placed;
  t->dl.device = device;
  t->dl.dtype = sheaf_dtype_to_dl(dtype);
  set_shape(t, rank, shape);
  *tensor = t;
  return SHEAF_OK;
}

sheaf_status shf_tensor_make(sheaf_dtype dtype, int rank, const int64_t *shape, const sheaf_tensor *like,
                             sheaf_tensor **tensor)
{
  const DLDevice cpu = {kDLCPU, 0};
  int key = like ? (int)shf_data_key(like) : SHEAF_KEY_CPU;
  return make_at(key, key == SHEAF_KEY_CUDA ? shf_device_of(like) : cpu, dtype, rank, shape, tensor);
}

sheaf_status shf_tensor_make_on(DLDevice device, sheaf_dtype dtype, int rank, const int64_t *shape,
                                sheaf_tensor **tensor)
{
  int key;
  *tensor = NULL;
  SHF_TRY(device_key(device, &key));
  return make_at(key, key == SHEAF_KEY_CUDA ? device : (DLDevice){kDLCPU, 0}, dtype, rank, shape, tensor);
}

sheaf_status sheaf_tensor_new(sheaf_dtype dtype, int rank, const int64_t *shape, sheaf_tensor **tensor)
{
  SHF_REQUIRE(tensor, INVALID_PROBLEM, "sheaf_tensor_new: tensor is NULL");
  *tensor = NULL;
  SHF_TRY(shf_tensor_make(dtype, rank, shape, NULL, tensor));
  memset((*tensor)->dl.data, 0, (*tensor)->bytes);
  return SHEAF_OK;
}

/* A dense tensor over memory that a DLTensor describes. */
static sheaf_status view_of(const DLTensor *memory, size_t bytes, sheaf_tensor **tensor)
{
  SHF_REQUIRE(memory, INVALID_PROBLEM, "a tensor is made of a DLTensor that is NULL");
  sheaf_dtype dtype = sheaf_dtype_from_dl(memory->dtype);
  SHF_REQUIRE(dtype != SHEAF_DTYPE_NONE, UNSUPPORTED, "DLPack type (code %d, %d bits, %d lanes) has no name in Sheaf",
              memory->dtype.code, memory->dtype.bits, memory->dtype.lanes);
  SHF_TRY(check_shape(memory->ndim, memory->shape));
  int key;
  SHF_TRY(device_key(memory->device, &key));
  sheaf_tensor *t = NULL;
  SHF_TRY(make_block(0, &t));
  t->form = SHEAF_FORM_DENSE;
  t->dtype = dtype;
  t->keys = sheaf_keyset_of(key);
  t->bytes = bytes;
  t->dl.data = memory->data;
  t->dl.device = memory->device;
  t->dl.dtype = memory->dtype;
  t->dl.byte_offset = memory->byte_offset;
  set_shape(t, memory->ndim, memory->shape);
  if (memory->strides)
    for (int i = 0; i < memory->ndim; i++) t->strides[i] = memory->strides[i];
  *tensor = t;
  return SHEAF_OK;
}

/* That what the shape and the strides reach is there; `bytes` 0 trusts them. Ops without a plan rely on it. */
static sheaf_status check_memory(const sheaf_tensor *t, size_t bytes)
{
  int64_t size = shf_core_dtype_size(t->dtype), low = 0, high = size, reach;
  for (int i = 0; i < t->rank; i++) {
    if (t->extent[i] == 0) return SHEAF_OK;
    SHF_REQUIRE(!__builtin_mul_overflow(t->extent[i] - 1, t->strides[i], &reach) &&
                    !__builtin_mul_overflow(reach, size, &reach) &&
                    !__builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high),
                INVALID_PROBLEM, "a tensor spans more than 2^63 bytes: stride %" PRId64 " in dimension %d of %" PRId64,
                t->strides[i], i, t->extent[i]);
  }
  SHF_REQUIRE(t->dl.data, INVALID_PROBLEM, "a tensor has no data, but %" PRId64 " bytes of shape", high - low);
  SHF_REQUIRE(bytes == 0 || low == 0, INVALID_PROBLEM,
              "a tensor's strides reach %" PRId64 " bytes before its memory of %zu bytes", -low, bytes);
  SHF_REQUIRE(bytes == 0 || (uint64_t)high <= bytes, BUFFER_TOO_SMALL,
              "a tensor needs %" PRId64 " bytes, %zu are there", high, bytes);
  SHF_REQUIRE((uintptr_t)shf_data(t) % (uintptr_t)size == 0, MISALIGNED,
              "a tensor of %s starts at %p, which is not a multiple of %" PRId64 " bytes", sheaf_dtype_name(t->dtype),
              shf_data(t), size);
  return SHEAF_OK;
}

sheaf_status sheaf_tensor_borrow(const DLTensor *memory, size_t bytes, sheaf_tensor **tensor)
{
  SHF_REQUIRE(tensor, INVALID_PROBLEM, "sheaf_tensor_borrow: tensor is NULL");
  *tensor = NULL;
  SHF_TRY(view_of(memory, bytes, tensor));
  sheaf_status status = check_memory(*tensor, bytes);
  if (status != SHEAF_OK) shf_drop(tensor);
  return status;
}

sheaf_status sheaf_tensor_meta(const DLTensor *like, sheaf_tensor **tensor)
{
  SHF_REQUIRE(tensor, INVALID_PROBLEM, "sheaf_tensor_meta: tensor is NULL");
  *tensor = NULL;
  SHF_TRY(view_of(like, 0, tensor));
  (*tensor)->form = SHEAF_FORM_META;
  (*tensor)->dl.device = (DLDevice){kDLCPU, 0}; /* it lies nowhere: checks are those of the CPU */
  (*tensor)->keys = sheaf_keyset_of(SHEAF_KEY_META);
  return SHEAF_OK;
}

/* ---- DLPack ---- */

sheaf_status sheaf_tensor_from_dlpack(DLManagedTensor *managed, sheaf_tensor **tensor)
{
  SHF_REQUIRE(tensor, INVALID_PROBLEM, "sheaf_tensor_from_dlpack: tensor is NULL");
  *tensor = NULL;
  SHF_REQUIRE(managed, INVALID_PROBLEM, "sheaf_tensor_from_dlpack: managed is NULL");
  SHF_TRY(sheaf_tensor_borrow(&managed->dl_tensor, 0, tensor));
  (*tensor)->managed = managed;
  return SHEAF_OK;
}

typedef struct handed_out {
  DLManagedTensor managed;
  sheaf_tensor *tensor;
} handed_out;

static void take_back(DLManagedTensor *managed)
{
  handed_out *out = (handed_out *)(void *)managed;
  sheaf_tensor_release(out->tensor);
  shf_core_free(out, sizeof *out);
}

sheaf_status sheaf_tensor_to_dlpack(sheaf_tensor *tensor, DLManagedTensor **managed)
{
  SHF_REQUIRE(managed, INVALID_PROBLEM, "sheaf_tensor_to_dlpack: managed is NULL");
  *managed = NULL;
  SHF_REQUIRE(tensor && tensor->form == SHEAF_FORM_DENSE, INVALID_PROBLEM,
              "only dense tensors go out through DLPack, this one is of form %d", (int)sheaf_tensor_form(tensor));
  handed_out *out = shf_core_alloc(sizeof *out);
  if (!out) return shf_core_no_memory("a DLManagedTensor", sizeof *out);
  *out = (handed_out){.managed = {.dl_tensor = tensor->dl, .manager_ctx = out, .deleter = take_back},
                      .tensor = sheaf_tensor_retain(tensor)};
  (tensor->base ? tensor->base : tensor)->handed_out = 1;
  *managed = &out->managed;
  return SHEAF_OK;
}

/* ---- Views ---- */

sheaf_status sheaf_tensor_detach(sheaf_tensor *tensor, sheaf_tensor **detached)
{
  SHF_REQUIRE(tensor && detached, INVALID_PROBLEM, "sheaf_tensor_detach: an argument is NULL");
  sheaf_tensor *t = NULL;
  *detached = NULL;
  SHF_TRY(make_block(0, &t));
  t->form = tensor->form;
  t->dtype = tensor->dtype;
  t->keys = sheaf_keyset_remove(tensor->keys, SHEAF_KEY_AUTOGRAD);
  t->rank = tensor->rank;
  memcpy(t->extent, tensor->extent, sizeof t->extent);
  memcpy(t->stored, tensor->stored, sizeof t->stored);
  memcpy(t->strides, tensor->strides, sizeof t->strides);
  t->dl = tensor->dl;
  if (t->dl.shape) { /* parts have their own */
    t->dl.shape = tensor->dl.shape == tensor->stored ? t->stored : t->extent;
    t->dl.strides = t->strides;
  }
  t->bytes = tensor->bytes;
  t->coalesced = tensor->coalesced;
  t->levels = tensor->levels;
  t->lead = tensor->lead;
  memcpy(t->level, tensor->level, sizeof t->level);
  shf_copy_name(t, tensor);
  for (int i = 0; i < 2; i++)
    if (tensor->part[i]) t->part[i] = sheaf_tensor_retain(tensor->part[i]);
  t->base = sheaf_tensor_retain(tensor->base ? tensor->base : tensor);
  *detached = t;
  return SHEAF_OK;
}

sheaf_status shf_tensor_reshape(sheaf_tensor *tensor, int rank, const int64_t *shape, sheaf_tensor **out)
{
  SHF_TRY(check_shape(rank, shape));
  SHF_REQUIRE(shf_tensor_is_contiguous(tensor), INVALID_PROBLEM, "a tensor that is not contiguous cannot be reshaped");
  SHF_TRY(sheaf_tensor_detach(tensor, out));
  set_shape(*out, rank, shape);
  return SHEAF_OK;
}

/* ---- References ---- */

sheaf_tensor *sheaf_tensor_retain(sheaf_tensor *tensor)
{
  if (tensor) atomic_fetch_add_explicit(&tensor->refs, 1, memory_order_relaxed);
  return tensor;
}

/* Gives a reference up; whether it was the last one. Who holds the only one needs no counting down: nobody can make
 * another meanwhile. */
static inline int was_last(atomic_int *refs)
{
  return atomic_load_explicit(refs, memory_order_acquire) == 1 ||
         atomic_fetch_sub_explicit(refs, 1, memory_order_acq_rel) == 1;
}

void shf_history_release(shf_history *history)
{
  if (!history || !was_last(&history->refs)) return;
  history->next_dying = shf_thread.dying;
  shf_thread.dying = history;
  if (shf_thread.freeing) return; /* whoever frees takes it from the list: no recursion along a chain */
  shf_thread.freeing = 1;
  while (shf_thread.dying) {
    shf_history *next = shf_thread.dying;
    shf_thread.dying = next->next_dying;
    next->destroy(next);
  }
  shf_thread.freeing = 0;
}

void sheaf_tensor_release(sheaf_tensor *tensor)
{
  if (!tensor || !was_last(&tensor->refs)) return;
  shf_history *history = tensor->history;
  sheaf_tensor *grad = atomic_load_explicit(&tensor->grad, memory_order_relaxed);
  if (grad) sheaf_tensor_release(grad);
  if (tensor->part[0]) sheaf_tensor_release(tensor->part[0]);
  if (tensor->part[1]) sheaf_tensor_release(tensor->part[1]);
  if (tensor->base) sheaf_tensor_release(tensor->base);
  if (tensor->placed) shf_place_free(tensor->dl.device, tensor->placed, tensor->handed_out);
  if (tensor->managed && tensor->managed->deleter) tensor->managed->deleter(tensor->managed);
  shf_spare_free(tensor, tensor->block);
  if (history) shf_history_release(history);
}

/* ---- What it is ---- */

sheaf_dtype sheaf_tensor_dtype(const sheaf_tensor *tensor) { return tensor ? tensor->dtype : SHEAF_DTYPE_NONE; }
sheaf_form sheaf_tensor_form(const sheaf_tensor *tensor) { return tensor ? tensor->form : SHEAF_FORM_DENSE; }
int sheaf_tensor_rank(const sheaf_tensor *tensor) { return tensor ? tensor->rank : 0; }
sheaf_keyset sheaf_tensor_keys(const sheaf_tensor *tensor) { return tensor ? tensor->keys : sheaf_keyset_empty(); }

int64_t sheaf_tensor_extent(const sheaf_tensor *tensor, int dimension)
{
  return tensor && dimension >= 0 && dimension < tensor->rank ? tensor->extent[dimension] : 0;
}

const DLTensor *sheaf_tensor_dl(const sheaf_tensor *tensor) { return tensor && tensor->dl.shape ? &tensor->dl : NULL; }

void *sheaf_tensor_data(const sheaf_tensor *tensor) { return tensor && tensor->dl.data ? shf_data(tensor) : NULL; }

sheaf_tensor *sheaf_tensor_part(const sheaf_tensor *tensor, int part)
{
  return tensor && part >= 0 && part < 2 ? tensor->part[part] : NULL;
}

int sheaf_tensor_is_coalesced(const sheaf_tensor *tensor) { return tensor && tensor->coalesced; }

int64_t shf_tensor_elements(const sheaf_tensor *tensor)
{
  int64_t elements = 1;
  for (int i = 0; i < tensor->rank; i++) elements *= tensor->extent[i];
  return elements;
}

int shf_tensor_is_contiguous(const sheaf_tensor *tensor)
{
  int64_t step = 1;
  for (int i = tensor->dl.ndim - 1; i >= 0; i--) {
    if (tensor->dl.shape[i] == 0) return 1;
    if (tensor->dl.shape[i] != 1 && tensor->strides[i] != step) return 0;
    step *= tensor->dl.shape[i];
  }
  return 1;
}

const char *shf_shape_text(const sheaf_tensor *tensor, char *buffer, size_t room)
{
  size_t used = (size_t)snprintf(buffer, room, "[");
  for (int i = 0; i < tensor->rank && used < room; i++)
    used += (size_t)snprintf(buffer + used, room - used, i ? ", %" PRId64 : "%" PRId64, tensor->extent[i]);
  if (used < room) snprintf(buffer + used, room - used, "]");
  return buffer;
}

void sheaf_tensor_written(sheaf_tensor *tensor)
{
  if (!tensor) return;
  sheaf_tensor *base = tensor->base ? tensor->base : tensor;
  atomic_fetch_add_explicit(&base->version, 1, memory_order_relaxed);
  for (int i = 0; i < 2; i++)
    if (tensor->part[i]) sheaf_tensor_written(tensor->part[i]);
}

int64_t sheaf_tensor_version(const sheaf_tensor *tensor)
{
  if (!tensor) return 0;
  int64_t version = atomic_load_explicit(&(tensor->base ? tensor->base : tensor)->version, memory_order_relaxed);
  for (int i = 0; i < 2; i++)
    if (tensor->part[i]) version += sheaf_tensor_version(tensor->part[i]);
  return version;
}

void sheaf_tensor_set_name(sheaf_tensor *tensor, const char *name)
{
  if (tensor) snprintf(tensor->name, sizeof tensor->name, "%s", name ? name : "");
}

const char *sheaf_tensor_name(const sheaf_tensor *tensor) { return tensor ? tensor->name : ""; }

/* ---- Gradients ---- */

sheaf_status sheaf_tensor_require_grad(sheaf_tensor *tensor, sheaf_grad grad)
{
  SHF_REQUIRE(tensor, INVALID_PROBLEM, "sheaf_tensor_require_grad: tensor is NULL");
  SHF_REQUIRE((unsigned)grad <= SHEAF_GRAD_SPARSE_RAW, INVALID_PROBLEM, "%d is no kind of gradient", (int)grad);
  if (grad == SHEAF_GRAD_NONE) {
    SHF_REQUIRE(!tensor->history, INVALID_PROBLEM, "a result with a graph always has a gradient; detach it instead");
    tensor->grad_kind = grad;
    tensor->keys = sheaf_keyset_remove(tensor->keys, SHEAF_KEY_AUTOGRAD);
    sheaf_tensor_clear_grad(tensor);
    return SHEAF_OK;
  }
  SHF_REQUIRE(shf_dtype_is_float(tensor->dtype), UNSUPPORTED, "a tensor of %s has no gradient%s",
              sheaf_dtype_name(tensor->dtype),
              tensor->form == SHEAF_FORM_QUANTIZED ? "; a quantised table can only be read" : "");
  SHF_REQUIRE(tensor->form == SHEAF_FORM_DENSE || tensor->form == SHEAF_FORM_META, UNSUPPORTED,
              "leaves of graphs are dense or meta, this tensor is of form %d", (int)tensor->form);
  SHF_REQUIRE(!tensor->history, INVALID_PROBLEM, "a result with a graph is no leaf; detach it first");
  tensor->grad_kind = grad;
  tensor->keys = sheaf_keyset_insert(tensor->keys, SHEAF_KEY_AUTOGRAD);
  return SHEAF_OK;
}

int sheaf_tensor_requires_grad(const sheaf_tensor *tensor)
{
  return tensor && sheaf_keyset_contains(tensor->keys, SHEAF_KEY_AUTOGRAD);
}

sheaf_tensor *sheaf_tensor_grad(const sheaf_tensor *tensor)
{
  if (!tensor) return NULL;
  sheaf_tensor *own = (sheaf_tensor *)(uintptr_t)tensor; /* NOLINT(performance-no-int-to-ptr): atomics want no const */
  return atomic_load_explicit(&own->grad, memory_order_acquire);
}

void sheaf_tensor_clear_grad(sheaf_tensor *tensor)
{
  if (tensor) sheaf_tensor_release(atomic_exchange_explicit(&tensor->grad, NULL, memory_order_acq_rel));
}
