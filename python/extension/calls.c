/* calls.c: one call of an op: inputs are borrowed as tensors, outputs are the caller's or new, the dispatcher runs it
 * without Python's lock, results go back. */
#include <string.h>

#include "extension.h"

static void clear(array *a)
{
  a->object = a->held = NULL;
  a->buffer.obj = NULL;
}

/* Only what will be looked at is set: this is on the way of every small call. */
void call_begin(op_call *c, sheaf_op op, int inputs, int attrs)
{
  c->op = op;
  c->inputs = inputs;
  c->outputs = 0;
  c->attr_count = attrs;
  c->wanted = c->include = 0;
  c->like = 0;
  for (int i = 0; i < inputs; i++) {
    clear(&c->in[i]);
    c->input[i] = NULL;
  }
  for (int i = 0; i < CALL_OUTPUTS; i++) {
    clear(&c->out[i]);
    c->output[i] = NULL;
    c->result[i] = NULL;
  }
  for (int i = 0; i < attrs; i++) c->attrs[i].i = 0;
}

/* The object's tensor of an earlier call, as long as it still is what it was there: an array may lie elsewhere by now, or
 * be seen in another shape (segments see matrices). */
static sheaf_tensor *known_tensor(PyObject *kept, PyObject *object, const array *a)
{
  sheaf_tensor *tensor = kept_tensor(kept, object);
  const DLTensor *dl = sheaf_tensor_dl(tensor);
  if (!dl) return tensor;
  int same = dl->data == a->dl.data && dl->byte_offset == a->dl.byte_offset && dl->ndim == a->dl.ndim &&
             sheaf_dtype_from_dl(dl->dtype) == a->dtype;
  int64_t step = 1; /* of rows that lie close, from the last dimension on */
  for (int i = dl->ndim - 1; same && i >= 0; i--) {
    int64_t there = dl->strides ? dl->strides[i] : step, here = a->dl.strides ? a->dl.strides[i] : step;
    same = dl->shape[i] == a->dl.shape[i] && (there == here || dl->shape[i] <= 1);
    step *= dl->shape[i];
  }
  if (same) return tensor;
  sheaf_tensor_release(tensor);
  return NULL;
}

/* `kept` is NULL, or what objects keep their tensors in. */
static int borrow(PyObject *kept, PyObject *object, const array *a, sheaf_tensor **tensor)
{
  if (kept && (*tensor = known_tensor(kept, object, a))) return 0;
  sheaf_status status = sheaf_tensor_borrow(&a->dl, 0, tensor);
  if (status != SHEAF_OK) return raise_last_error(status), -1;
  /* A copy that was made of the object ends with the call, and so does what is known of it. */
  return kept && a->object == object ? keep_tensor(kept, object, *tensor) : 0;
}

/* All operands of a call lie on one device. */
static int check_device(const op_call *c, const array *a, const char *name)
{
  for (int i = 0; i < c->inputs; i++) {
    if (!c->input[i]) continue;
    DLDevice here = a->dl.device, there = c->in[i].dl.device;
    if (here.device_type == there.device_type && here.device_id == there.device_id) return 0;
    PyErr_Format(PyExc_ValueError, "%s lies on device (%d, %d), another operand on (%d, %d); all must lie on one", name,
                 (int)here.device_type, (int)here.device_id, (int)there.device_type, (int)there.device_id);
    return -1;
  }
  return 0;
}

int call_input(op_call *c, int slot, PyObject *object, const char *name, unsigned how)
{
  if (!object) return 0;
  array *a = &c->in[slot];
  if (array_take(object, name, how, a) < 0) return -1;
  if (check_device(c, a, name) < 0) return -1;
  PyObject *kept = traced;
  if (!kept && slot == 0 && (c->op == SHEAF_OP_EMBEDDING || c->op == SHEAF_OP_EMBEDDING_BAG)) kept = autocast_tables();
  return borrow(kept, object, a, &c->input[slot]);
}

static int check_given(const array *a, const char *name, sheaf_dtype dtype)
{
  if (a->dtype == dtype) return 0;
  PyErr_Format(PyExc_TypeError, "%s has elements of %s; %s is needed", name, sheaf_dtype_name(a->dtype),
               sheaf_dtype_name(dtype));
  return -1;
}

static int check_shape(const array *a, const char *name, int flat, int rank, const int64_t *shape)
{
  int got_rank = flat ? a->whole_rank : a->dl.ndim, same = got_rank == rank;
  const int64_t *got_shape = flat ? a->whole_shape : a->dl.shape;
  for (int i = 0; same && i < rank; i++) same = got_shape[i] == shape[i];
  if (same) return 0;
  PyObject *got = tuple_of(got_shape, got_rank), *needed = tuple_of(shape, rank);
  if (got && needed) PyErr_Format(PyExc_ValueError, "%s has shape %S; %S is needed", name, got, needed);
  Py_XDECREF(got);
  Py_XDECREF(needed);
  return -1;
}

int call_output(op_call *c, int slot, PyObject *given, const char *name, sheaf_dtype dtype, int rank,
                const int64_t *shape, int flat)
{
  array *a = &c->out[slot];
  if (c->outputs <= slot) c->outputs = slot + 1;
  c->given[slot] = given != NULL;
  c->result[slot] = given ? Py_NewRef(given) : array_make(&c->in[c->like], dtype, rank, shape);
  if (!c->result[slot]) return -1;
  unsigned how = TAKE_ANY | TAKE_WRITE | (given ? 0u : TAKE_NEW) | (flat ? TAKE_FLAT : 0u);
  if (array_take(c->result[slot], name, how, a) < 0) return -1;
  if (!given && check_given(a, name, dtype) < 0) return -1; /* JAX has no 64 bits unless told */
  if (given && (check_given(a, name, dtype) < 0 || check_device(c, a, name) < 0)) return -1;
  if (given && check_shape(a, name, flat, rank, shape) < 0) return -1;
  return borrow(traced, c->result[slot], a, &c->output[slot]);
}

static int wait_for(DLDevice device, void *stream)
{
  sheaf_status status;
  Py_BEGIN_ALLOW_THREADS
  status = sheaf_stream_wait(device, stream);
  Py_END_ALLOW_THREADS
  if (status != SHEAF_OK) raise_last_error(status);
  return status == SHEAF_OK ? 0 : -1;
}

int enter_stream(const array *const *operands, int count, int *apart)
{
  const array *first = operands[0];
  DLDevice device = first->dl.device;
  void *mine, *other;
  int said;
  *apart = 0;
  if (device.device_type != kDLCUDA) return 0;
  if (dlpack_stream(first, &mine, &said) < 0) return -1;
  *apart = !said;
  for (int i = 1; i < count; i++) {
    if (!operands[i]->object || (first->exchange && operands[i]->exchange == first->exchange)) continue;
    if (dlpack_stream(operands[i], &other, &said) < 0) return -1;
    if (said && other == mine) continue;
    *apart = 1;
    if (said && wait_for(device, other) < 0) return -1;
  }
  sheaf_status status = sheaf_stream_use(device, mine);
  return status == SHEAF_OK ? 0 : (raise_last_error(status), -1);
}

int leave_stream(const array *a, int apart)
{
  return apart ? wait_for(a->dl.device, sheaf_stream_current(a->dl.device)) : 0;
}

static int enter_call(const op_call *c, int *apart)
{
  const array *operands[CALL_INPUTS + CALL_OUTPUTS] = {&c->in[c->like]};
  int count = 1;
  *apart = 0;
  if (c->in[c->like].dl.device.device_type == kDLCPU) return 0;
  for (int i = 0; i < c->inputs; i++)
    if (i != c->like) operands[count++] = &c->in[i];
  for (int i = 0; i < c->outputs; i++) operands[count++] = &c->out[i];
  return enter_stream(operands, count, apart);
}

int call_run(op_call *c)
{
  sheaf_status status;
  int apart;
  if (enter_call(c, &apart) < 0) return -1;
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = c->op;
  call.input_count = c->inputs;
  call.output_count = sheaf_op_describe(c->op)->outputs; /* optional ones too */
  call.attr_count = c->attr_count;
  call.inputs = c->input;
  call.outputs = c->output;
  call.attrs = c->attrs;
  call.wanted = c->wanted;
  call.include = sheaf_keyset_from(c->include);
  Py_BEGIN_ALLOW_THREADS
  status = sheaf_dispatch(&call);
  Py_END_ALLOW_THREADS
  if (status == SHEAF_OK) return leave_stream(&c->in[c->like], apart);
  raise_last_error(status);
  return -1;
}

/* The result of output `slot`: the caller's array, or what the library made. */
static PyObject *finish(op_call *c, int slot)
{
  const array *like = &c->in[c->like];
  PyObject *result = c->result[slot];
  c->result[slot] = NULL;
  if (result && !c->given[slot]) return array_finish(like, result);
  if (result) {
    if (array_written(&c->out[slot]) < 0) Py_CLEAR(result);
    return result;
  }
  sheaf_tensor *made = c->output[slot];
  if (!made) return Py_NewRef(Py_None);
  if (sheaf_tensor_form(made) != SHEAF_FORM_SPARSE) {
    c->output[slot] = NULL;
    return memory_of_tensor(made, like);
  }
  PyObject *ids = memory_of_tensor(sheaf_tensor_retain(sheaf_tensor_part(made, 0)), like);
  PyObject *rows = ids ? memory_of_tensor(sheaf_tensor_retain(sheaf_tensor_part(made, 1)), like) : NULL;
  PyObject *pair = rows ? PyTuple_Pack(2, ids, rows) : NULL;
  Py_XDECREF(ids);
  Py_XDECREF(rows);
  return pair;
}

static PyObject *finish_all(op_call *c)
{
  if (c->wanted != 3) return finish(c, c->wanted == 2);
  PyObject *first = finish(c, 0), *second = first ? finish(c, 1) : NULL;
  PyObject *both = second ? PyTuple_Pack(2, first, second) : NULL;
  Py_XDECREF(first);
  Py_XDECREF(second);
  return both;
}

PyObject *call_end(op_call *c, int status)
{
  PyObject *result = status == 0 ? finish_all(c) : NULL;
  for (int i = 0; i < c->outputs; i++) {
    sheaf_tensor_release(c->output[i]);
    array_drop(&c->out[i]);
    Py_CLEAR(c->result[i]);
  }
  for (int i = 0; i < c->inputs; i++) {
    sheaf_tensor_release(c->input[i]);
    array_drop(&c->in[i]);
  }
  return result;
}
