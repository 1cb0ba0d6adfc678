/* memory_object.c: memory that Sheaf owns (a result it made, a mapped file, a rank's part), for others to look at: the
 * type Memory, with the buffer protocol and DLPack. Whoever looks keeps it alive. */
#include <stdlib.h>

#include "extension.h"

typedef struct memory {
  PyObject_HEAD
  DLTensor dl;
  int64_t shape[MAX_RANK + 1];
  Py_ssize_t extents[MAX_RANK + 1], strides[MAX_RANK + 1]; /* of the buffer: strides in bytes */
  sheaf_dtype dtype;
  int readonly;
  void *owner;
  void (*release)(void *owner);
} memory;

PyObject *memory_new(const DLTensor *dl, sheaf_dtype dtype, int readonly, void *owner, void (*release)(void *owner))
{
  memory *m = NULL;
  if (dl->ndim > MAX_RANK)
    PyErr_Format(PyExc_ValueError, "an array of %d dimensions", dl->ndim);
  else
    m = (memory *)PyType_GenericAlloc((PyTypeObject *)state.memory_type, 0);
  if (!m) {
    release(owner);
    return NULL;
  }
  int64_t step = dl->dtype.bits / 8;
  m->dl = *dl;
  m->dtype = dtype;
  m->readonly = readonly;
  m->owner = owner;
  m->release = release;
  m->dl.shape = m->shape;
  m->dl.strides = NULL;
  for (int i = dl->ndim - 1; i >= 0; i--) {
    m->shape[i] = m->extents[i] = dl->shape[i];
    m->strides[i] = step;
    step *= dl->shape[i];
  }
  return (PyObject *)m;
}

void release_tensor(void *tensor) { sheaf_tensor_release(tensor); }

void release_object(void *object) { Py_DECREF((PyObject *)object); }

/* The copy on a device; library memory is given back in the order of the stream that copies from it. */
static PyObject *copy_on_device(const sheaf_tensor *tensor, const array *like)
{
  const DLTensor *dl = sheaf_tensor_dl(tensor);
  sheaf_dtype dtype = sheaf_dtype_from_dl(dl->dtype);
  PyObject *made = array_make(like, dtype, dl->ndim, dl->shape);
  array to;
  if (!made || array_take(made, "result", TAKE_ANY | TAKE_WRITE | TAKE_NEW | TAKE_DENSE, &to) < 0) {
    Py_XDECREF(made);
    return NULL;
  }
  int apart = 0, failed = to.dtype != dtype;
  const array *operands[] = {like, &to};
  if (failed)
    PyErr_Format(PyExc_TypeError, "a result of %s is needed; its framework made one of %s", sheaf_dtype_name(dtype),
                 sheaf_dtype_name(to.dtype));
  else
    failed = enter_stream(operands, 2, &apart) < 0;
  size_t bytes = (size_t)array_elements(&to) * (dl->dtype.bits / 8u);
  if (!failed && bytes) {
    void *stream = sheaf_stream_current(dl->device);
    sheaf_status status =
        sheaf_device_copy(dl->device, (char *)to.dl.data + to.dl.byte_offset, sheaf_tensor_data(tensor), bytes, stream);
    if (status != SHEAF_OK) raise_last_error(status);
    failed = status != SHEAF_OK || leave_stream(&to, apart) < 0;
  }
  array_drop(&to);
  if (failed) Py_CLEAR(made);
  return array_finish(like, made);
}

PyObject *memory_of_tensor(sheaf_tensor *tensor, const array *like)
{
  const DLTensor *dl = sheaf_tensor_dl(tensor);
  if (dl->device.device_type != kDLCPU) {
    PyObject *copy = copy_on_device(tensor, like);
    sheaf_tensor_release(tensor);
    return copy;
  }
  PyObject *m = memory_new(dl, sheaf_dtype_from_dl(dl->dtype), 0, tensor, release_tensor);
  if (!m) return NULL;
  PyObject *array = ask_kinds("adopt", like->object, NULL, m);
  Py_DECREF(m);
  return array;
}

static void memory_dealloc(PyObject *self)
{
  memory *m = (memory *)self;
  PyTypeObject *type = Py_TYPE(self);
  if (m->owner) m->release(m->owner);
  PyObject_Free(self);
  Py_DECREF(type);
}

/* ---- The buffer protocol ---- */

static char *format_of(sheaf_dtype dtype)
{
  static char text[][2] = {"B", "f", "d", "e", "H", "i", "q"}; /* bf16 by its bits */
  return text[dtype <= SHEAF_I64 ? dtype : 0];
}

static int memory_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
  memory *m = (memory *)self;
  view->obj = NULL;
  if (m->dl.device.device_type != kDLCPU || (flags & PyBUF_WRITABLE && m->readonly)) {
    PyErr_SetString(PyExc_BufferError, m->readonly ? "this memory is read-only" : "this memory is not the CPU's");
    return -1;
  }
  int64_t bytes = m->dl.dtype.bits / 8;
  for (int i = 0; i < m->dl.ndim; i++) bytes *= m->shape[i];
  view->buf = m->dl.data ? (char *)m->dl.data + m->dl.byte_offset : (char *)m; /* of no bytes; NULL confuses some */
  view->obj = Py_NewRef(self);
  view->len = bytes;
  view->readonly = m->readonly;
  view->itemsize = m->dl.dtype.bits / 8;
  view->format = flags & PyBUF_FORMAT ? format_of(m->dtype) : NULL;
  view->ndim = m->dl.ndim;
  view->shape = flags & PyBUF_ND ? m->extents : NULL;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? m->strides : NULL;
  view->suboffsets = NULL;
  view->internal = NULL;
  return 0;
}

/* ---- DLPack ---- */

static void drop_reference(void *context)
{
  PyGILState_STATE gil = PyGILState_Ensure();
  Py_DECREF((PyObject *)context);
  PyGILState_Release(gil);
}

static void delete_versioned(dl_managed *managed)
{
  drop_reference(managed->manager_ctx);
  free(managed);
}

static void delete_plain(DLManagedTensor *managed)
{
  drop_reference(managed->manager_ctx);
  free(managed);
}

/* Capsules that nobody took; one that was taken has another name. */
static void end_versioned(PyObject *capsule)
{
  if (!PyCapsule_IsValid(capsule, "dltensor_versioned")) return;
  dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
  managed->deleter(managed);
}

static void end_plain(PyObject *capsule)
{
  if (!PyCapsule_IsValid(capsule, "dltensor")) return;
  DLManagedTensor *managed = PyCapsule_GetPointer(capsule, "dltensor");
  managed->deleter(managed);
}

static PyObject *versioned_capsule(memory *m)
{
  dl_managed *managed = calloc(1, sizeof *managed);
  if (!managed) return PyErr_NoMemory();
  managed->version = (dl_version){1, 0};
  managed->manager_ctx = Py_NewRef((PyObject *)m);
  managed->deleter = delete_versioned;
  managed->flags = m->readonly ? DL_READ_ONLY : 0;
  managed->dl_tensor = m->dl;
  PyObject *capsule = PyCapsule_New(managed, "dltensor_versioned", end_versioned);
  if (!capsule) delete_versioned(managed);
  return capsule;
}

static PyObject *plain_capsule(memory *m)
{
  DLManagedTensor *managed = calloc(1, sizeof *managed);
  if (!managed) return PyErr_NoMemory();
  managed->manager_ctx = Py_NewRef((PyObject *)m);
  managed->deleter = delete_plain;
  managed->dl_tensor = m->dl;
  PyObject *capsule = PyCapsule_New(managed, "dltensor", end_plain);
  if (!capsule) delete_plain(managed);
  return capsule;
}

static PyObject *memory_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
  static parameters p = {"__dlpack__", 4, 0, 0, {"stream", "max_version", "dl_device", "copy"}, {NULL}};
  PyObject *values[4];
  if (parse_arguments(&p, args, count, names, values) < 0) return NULL;
  memory *m = (memory *)self;
  int64_t version[2] = {0, 0};
  if (values[1] && parse_integers(values[1], "max_version", version, 2) < 0) return NULL;
  int64_t copy = 0, device[2] = {m->dl.device.device_type, m->dl.device.device_id};
  if (values[3] && values[3] != Py_None && parse_flag(values[3], &copy) < 0) return NULL;
  if (values[2] && values[2] != Py_None && parse_integers(values[2], "dl_device", device, 2) < 0) return NULL;
  if (copy || device[0] != (int64_t)m->dl.device.device_type || device[1] != m->dl.device.device_id) {
    PyErr_SetString(PyExc_BufferError, "this memory is given where and as it lies, without a copy");
    return NULL;
  }
  if (version[0] >= 1) return versioned_capsule(m);
  if (!m->readonly) return plain_capsule(m);
  PyErr_SetString(PyExc_BufferError, "this memory is read-only, which DLPack before version 1 cannot say");
  return NULL;
}

static PyObject *memory_dlpack_device(PyObject *self, PyObject *unused)
{
  (void)unused;
  const memory *m = (const memory *)self;
  return Py_BuildValue("(ii)", (int)m->dl.device.device_type, (int)m->dl.device.device_id);
}

static PyObject *memory_get_dtype(PyObject *self, void *unused)
{
  (void)unused;
  return PyUnicode_FromString(sheaf_dtype_name(((const memory *)self)->dtype));
}

int add_memory_type(PyObject *module)
{
  static PyMethodDef methods[] = {
      {"__dlpack__", (PyCFunction)(void (*)(void))memory_dlpack, METH_FASTCALL | METH_KEYWORDS, NULL},
      {"__dlpack_device__", memory_dlpack_device, METH_NOARGS, NULL},
      {NULL, NULL, 0, NULL}};
  static PyGetSetDef members[] = {{"dtype", memory_get_dtype, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};
  static PyType_Slot slots[] = {{Py_tp_dealloc, memory_dealloc},
                                {Py_tp_methods, methods},
                                {Py_tp_getset, members},
                                {Py_bf_getbuffer, memory_getbuffer},
                                {Py_tp_doc, "Memory that Sheaf owns, for arrays to be made of."},
                                {0, NULL}};
  static PyType_Spec spec = {"sheaf._core.Memory", sizeof(memory), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  state.memory_type = PyType_FromSpec(&spec);
  return state.memory_type ? PyModule_AddObjectRef(module, "Memory", state.memory_type) : -1;
}
