/* arrays_dlpack.c: arrays of the caller's by DLPack: through the framework's table of C functions where it has one
 * (`__dlpack_c_exchange_api__`, PyTorch since 2.9), else through `__dlpack__` and its capsule of either version. */
#include <string.h>

#include "extension.h"

/* ---- The table of C functions ---- */

typedef void set_error_fn(void *context, const char *kind, const char *message);

/* As DLPack 1.2 lays it out. Functions return 0, or -1 with a Python exception (`allocate`: through `set_error`). */
struct dl_exchange {
  dl_version version;
  const dl_exchange *older;
  int (*allocate)(DLTensor *prototype, dl_managed **made, void *context, set_error_fn *set_error);
  int (*from_object)(void *object, dl_managed **taken);
  int (*to_object)(dl_managed *managed, void **object);
  int (*view)(void *object, DLTensor *view); /* borrowed from the object; may be NULL */
  int (*stream)(DLDeviceType type, int32_t device, void **stream);
};

enum { KNOWN_TYPES = 8 };

/* Types that have one. They are few and stay. */
static struct {
  PyObject *type;
  const dl_exchange *exchange;
} known[KNOWN_TYPES];
static int known_count;

static const dl_exchange *exchange_of(PyObject *type)
{
  for (int i = 0; i < known_count; i++)
    if (known[i].type == type) return known[i].exchange;
  const dl_exchange *found = NULL;
  PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
  if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
    found = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  Py_XDECREF(capsule);
  PyErr_Clear();
  while (found && found->version.major != 1) found = found->older;
  if (found && !found->view) found = NULL;
  if (found && known_count < KNOWN_TYPES) {
    known[known_count].type = Py_NewRef(type);
    known[known_count++].exchange = found;
  }
  return found;
}

/* A gradient that would be recorded would be lost without a word. */
static int refuse_gradient(PyObject *object, const char *name)
{
  static PyObject *attribute;
  if (!attribute && !(attribute = PyUnicode_InternFromString("requires_grad"))) return -1;
  PyObject *flag = PyObject_GetAttr(object, attribute);
  int required = flag == Py_True;
  Py_XDECREF(flag);
  PyErr_Clear();
  if (!required || !torch_records_gradients()) return 0;
  PyErr_Format(PyExc_TypeError,
               "%s requires a gradient, which this function does not record: use the one of sheaf.torch, or detach()",
               name);
  return -1;
}

/* Whether values have the other sign than in memory, as the imaginary part of a conjugate has. */
static int is_negated(PyObject *object)
{
  static PyObject *method;
  if (!method && !(method = PyUnicode_InternFromString("is_neg"))) return -1;
  PyObject *answer = PyObject_CallMethodObjArgs(object, method, NULL);
  int negated = answer == Py_True;
  Py_XDECREF(answer);
  PyErr_Clear();
  return negated;
}

static int take_by_exchange(PyObject *object, const char *name, const dl_exchange *exchange, array *a)
{
  if (refuse_gradient(object, name) < 0 || exchange->view(object, &a->dl) != 0) return -1;
  a->kind = KIND_EXCHANGE;
  a->exchange = exchange;
  a->dtype = sheaf_dtype_from_dl(a->dl.dtype);
  a->negated = is_negated(object);
  return a->negated < 0 ? -1 : 1;
}

static void keep_error(void *context, const char *kind, const char *message)
{
  (void)context;
  (void)kind;
  PyErr_SetString(PyExc_RuntimeError, message);
}

PyObject *dlpack_make(const array *like, sheaf_dtype dtype, int rank, const int64_t *shape)
{
  int64_t extents[MAX_RANK + 1];
  memcpy(extents, shape, sizeof *shape * (size_t)rank);
  DLTensor prototype = {
      .device = like->dl.device, .ndim = rank, .dtype = sheaf_dtype_to_dl(dtype), .shape = extents, .strides = NULL};
  dl_managed *managed;
  void *object;
  if (like->exchange->allocate(&prototype, &managed, NULL, keep_error) != 0) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "the framework could not make an array");
    return NULL;
  }
  if (like->exchange->to_object(managed, &object) != 0) return NULL;
  return object;
}

int dlpack_stream(const array *a, void **stream, int *said)
{
  *stream = a->exchange ? NULL : a->stream;
  *said = !a->exchange && a->stream_said;
  if (!a->exchange || !a->exchange->stream) return 0;
  *said = 1;
  return a->exchange->stream(a->dl.device.device_type, a->dl.device.device_id, stream);
}

/* ---- Capsules ---- */

static int is_on_device(PyObject *object)
{
  PyObject *device = PyObject_CallMethod(object, "__dlpack_device__", NULL);
  long type = kDLCPU;
  if (device && PyTuple_Check(device) && PyTuple_Size(device) == 2) type = PyLong_AsLong(PyTuple_GetItem(device, 0));
  PyErr_Clear();
  Py_XDECREF(device);
  return type != kDLCPU && type != kDLCUDAHost;
}

/* On a device: where the array's framework works, and that as the stream on which the array will be used. Frameworks that
 * do not say make it ready for the legacy default stream, which DLPack calls 1. */
static int set_stream(PyObject *object, PyObject *options, array *a)
{
  PyObject *answer = ask_kinds("stream", object, NULL, NULL), *used = NULL;
  if (!answer) return -1;
  a->stream_said = answer != Py_None;
  a->stream = a->stream_said ? PyLong_AsVoidPtr(answer) : NULL;
  Py_DECREF(answer);
  used = PyErr_Occurred() ? NULL : a->stream ? PyLong_FromVoidPtr(a->stream) : PyLong_FromLong(1);
  int failed = !used || PyDict_SetItemString(options, "stream", used) < 0;
  Py_XDECREF(used);
  return failed ? -1 : 0;
}

/* The capsule that __dlpack__ gives; newer producers are asked for the newer form. */
static PyObject *get_capsule(PyObject *object, PyObject *method, array *a)
{
  PyObject *capsule = NULL, *empty = PyTuple_New(0);
  PyObject *options = Py_BuildValue("{s:(ii)}", "max_version", 1, 0);
  if (empty && options && (!is_on_device(object) || set_stream(object, options, a) == 0)) {
    capsule = PyObject_Call(method, empty, options);
    if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Clear();
      if (PyDict_DelItemString(options, "max_version") == 0) capsule = PyObject_Call(method, empty, options);
    }
  }
  Py_XDECREF(empty);
  Py_XDECREF(options);
  return capsule;
}

/* What the capsule holds; it stays the owner, since it is not renamed. */
static int read_capsule(PyObject *capsule, array *a)
{
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    const dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    if (managed->version.major != 1) {
      PyErr_Format(PyExc_BufferError, "DLPack version %u.%u; version 1 is understood", managed->version.major,
                   managed->version.minor);
      return -1;
    }
    a->dl = managed->dl_tensor;
    a->readonly = (managed->flags & DL_READ_ONLY) != 0;
    return 0;
  }
  const DLManagedTensor *managed = PyCapsule_GetPointer(capsule, "dltensor");
  if (!managed) return -1;
  a->dl = managed->dl_tensor;
  return 0;
}

int dlpack_take(PyObject *object, const char *name, array *a)
{
  const dl_exchange *exchange = exchange_of((PyObject *)Py_TYPE(object));
  if (exchange) return take_by_exchange(object, name, exchange, a);
  PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
  if (!method) {
    PyErr_Clear();
    return 0;
  }
  PyObject *capsule = get_capsule(object, method, a);
  Py_DECREF(method);
  if (!capsule) {
    if (!PyObject_CheckBuffer(object)) return -1; /* else the buffer protocol has its chance */
    PyErr_Clear();
    return 0;
  }
  a->held = capsule;
  if (read_capsule(capsule, a) < 0) return -1;
  a->kind = KIND_OTHER;
  a->dtype = sheaf_dtype_from_dl(a->dl.dtype);
  /* Memory that both sides reach counts as that of the side that it was made for. */
  if (a->dl.device.device_type == kDLCUDAManaged) a->dl.device.device_type = kDLCUDA;
  if (a->dl.device.device_type == kDLCUDAHost) a->dl.device = (DLDevice){kDLCPU, 0};
  return 1;
}
