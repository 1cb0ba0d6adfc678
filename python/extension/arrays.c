/* arrays.c: arrays of the caller's by the buffer protocol; which layouts are taken as they are; new arrays. */
#include <string.h>

#include "extension.h"

/* ---- The buffer protocol ---- */

/* One element by its struct format; NONE for what Sheaf has no name for, foreign byte orders included. */
static sheaf_dtype dtype_of_format(const char *format, Py_ssize_t size)
{
  if (!format) format = "B";
  if (*format == '@' || *format == '=' || *format == '<') format++;
  if (format[0] == 0 || format[1] != 0) return SHEAF_DTYPE_NONE;
  switch (*format) {
  case 'f':
    return size == 4 ? SHEAF_F32 : SHEAF_DTYPE_NONE;
  case 'd':
    return size == 8 ? SHEAF_F64 : SHEAF_DTYPE_NONE;
  case 'e':
    return size == 2 ? SHEAF_F16 : SHEAF_DTYPE_NONE;
  case 'i':
  case 'l':
  case 'q':
    return size == 4 ? SHEAF_I32 : size == 8 ? SHEAF_I64 : SHEAF_DTYPE_NONE;
  case 'B':
    return SHEAF_U8;
  default:
    return SHEAF_DTYPE_NONE;
  }
}

/* Shape and strides of a held buffer; -1 when a stride is no number of elements. */
static int describe_buffer(array *a)
{
  const Py_buffer *b = &a->buffer;
  a->dl = (DLTensor){.data = b->buf, .device = {kDLCPU, 0}, .ndim = b->ndim, .dtype = sheaf_dtype_to_dl(a->dtype)};
  a->dl.shape = a->extents;
  a->dl.strides = a->steps;
  for (int i = 0; i < b->ndim; i++) {
    a->extents[i] = b->shape[i];
    a->steps[i] = b->itemsize ? b->strides[i] / b->itemsize : 0;
    if (b->itemsize && b->strides[i] % b->itemsize) return -1;
  }
  return 0;
}

static int refuse_rank(const char *name, int rank)
{
  PyErr_Format(PyExc_ValueError, "%s has %d dimensions; at most %d are taken", name, rank, MAX_RANK);
  return -1;
}

/* 1 when taken, 0 when it needs a copy first, -1 with an exception. */
static int take_buffer(PyObject *object, const char *name, array *a)
{
  int flags = PyBUF_STRIDES | PyBUF_FORMAT;
  a->kind = KIND_NUMPY;
  if (PyObject_GetBuffer(object, &a->buffer, flags) < 0) {
    a->buffer.obj = NULL;
    PyErr_Clear(); /* bfloat16 has no format: its bits have one */
    PyObject *bits = ask_kinds("bits", object, NULL, NULL);
    if (!bits) return -1;
    int failed = PyObject_GetBuffer(bits, &a->buffer, flags) < 0;
    Py_DECREF(bits);
    if (failed) return a->buffer.obj = NULL, -1;
    a->dtype = SHEAF_BF16;
  } else {
    a->dtype = dtype_of_format(a->buffer.format, a->buffer.itemsize);
  }
  if (a->buffer.ndim > MAX_RANK) return refuse_rank(name, a->buffer.ndim);
  a->readonly = a->buffer.readonly;
  return describe_buffer(a) == 0;
}

/* ---- What is taken as it lies ---- */

int64_t array_elements(const array *a)
{
  int64_t count = 1;
  for (int i = 0; i < a->dl.ndim; i++) count *= a->dl.shape[i];
  return count;
}

/* Whether dimensions `first` and behind lie one in the other; their number of elements. */
static int is_dense(const DLTensor *dl, int first, int64_t *elements)
{
  int64_t expected = 1;
  int dense = 1;
  for (int i = dl->ndim - 1; i >= first; i--) {
    if (dl->shape[i] != 1 && dl->strides && dl->strides[i] != expected) dense = 0;
    expected *= dl->shape[i];
  }
  *elements = expected;
  return dense;
}

static int lies_well(const array *a, unsigned how)
{
  int64_t count, width;
  int dense = is_dense(&a->dl, 0, &count);
  if (count == 0) return 1;
  if (a->negated) return 0;
  size_t size = (size_t)a->dl.dtype.bits / 8;
  if (size && ((uintptr_t)a->dl.data + a->dl.byte_offset) % size) return 0;
  if (dense || how & TAKE_DENSE) return dense;
  int rows = (how & (TAKE_VALUES | TAKE_PACKED)) && (a->dl.ndim == 2 || (a->dl.ndim > 0 && how & TAKE_FLAT));
  return rows && is_dense(&a->dl, 1, &width) && (a->dl.shape[0] == 1 || a->dl.strides[0] >= width);
}

/* Dimensions behind the first as one. */
static void flatten(array *a)
{
  int64_t width = 1, rows = a->dl.ndim > 0 ? a->dl.shape[0] : 1;
  a->whole_rank = a->dl.ndim;
  for (int i = 0; i < a->dl.ndim; i++) a->whole_shape[i] = a->dl.shape[i];
  for (int i = 1; i < a->dl.ndim; i++) width *= a->dl.shape[i];
  int64_t step = a->dl.strides && a->dl.ndim > 0 && rows > 1 ? a->dl.strides[0] : width;
  a->extents[0] = rows;
  a->extents[1] = width;
  a->steps[0] = rows * width == 0 || step < width ? width : step;
  a->steps[1] = 1;
  a->dl.ndim = 2;
  a->dl.shape = a->extents;
  a->dl.strides = a->steps;
}

static int check_dtype(const array *a, const char *name, unsigned how)
{
  sheaf_dtype d = a->dtype;
  int values = d >= SHEAF_F32 && d <= SHEAF_BF16, index = d == SHEAF_I32 || d == SHEAF_I64;
  if ((values && how & TAKE_VALUES) || (index && how & TAKE_INDEX) || (d == SHEAF_U8 && how & TAKE_PACKED)) return 0;
  PyObject *dtype = PyObject_GetAttrString(a->object, "dtype");
  if (!dtype) {
    PyErr_Clear();
    dtype = PyUnicode_FromString(d ? sheaf_dtype_name(d) : a->buffer.obj && a->buffer.format ? a->buffer.format : "?");
  }
  if (dtype)
    PyErr_Format(PyExc_TypeError, "%s has elements of %S; %s needed", name, dtype,
                 how & TAKE_VALUES   ? "float32, float64, float16 or bfloat16 are"
                 : how & TAKE_PACKED ? "uint8 is"
                                     : "int32 or int64 are");
  Py_XDECREF(dtype);
  return -1;
}

/* ---- Taking ---- */

/* 1 when taken, 0 when it must be made an array first, -1 with an exception. `*well` is 0 when it needs a copy. */
static int take_as_is(PyObject *object, const char *name, unsigned how, array *a, int *well)
{
  int by_buffer = PyType_IsSubtype(Py_TYPE(object), (PyTypeObject *)state.ndarray); /* memory maps too */
  if (!by_buffer) {
    int taken = dlpack_take(object, name, a);
    if (taken < 0) return -1;
    if (taken > 0) {
      if (a->dl.ndim > MAX_RANK) return refuse_rank(name, a->dl.ndim);
      *well = lies_well(a, how);
      return 1;
    }
    by_buffer = PyObject_CheckBuffer(object);
  }
  if (!by_buffer) return 0;
  int taken = take_buffer(object, name, a);
  if (taken < 0) return -1;
  *well = taken && lies_well(a, how);
  return 1;
}

/* Arrays of some frameworks never change, whatever they say of their memory. */
static int check_writable(const array *a, const char *name)
{
  int frozen = a->readonly;
  if (!frozen && a->kind == KIND_OTHER) {
    PyObject *answer = ask_kinds("is_frozen", a->object, NULL, NULL);
    if (!answer) return -1;
    frozen = PyObject_IsTrue(answer);
    Py_DECREF(answer);
  }
  if (frozen) PyErr_Format(PyExc_ValueError, "%s is read-only", name);
  return frozen ? -1 : 0;
}

int array_written(const array *a)
{
  if (a->kind == KIND_NUMPY) return 0;
  PyObject *done = ask_kinds("written", a->object, NULL, NULL);
  Py_XDECREF(done);
  return done ? 0 : -1;
}

int array_take(PyObject *object, const char *name, unsigned how, array *a)
{
  int well = 0;
  a->held = NULL;
  a->buffer.obj = NULL;
  a->exchange = NULL;
  a->stream = NULL;
  a->readonly = a->stream_said = a->negated = 0;
  a->object = Py_NewRef(object);
  int taken = take_as_is(object, name, how, a, &well);
  if (taken == 0 && how & TAKE_WRITE) {
    PyErr_Format(PyExc_TypeError, "%s is %R, no array that can be written", name, (PyObject *)Py_TYPE(object));
    taken = -1;
  }
  if (taken > 0 && (how & (TAKE_WRITE | TAKE_NEW)) == TAKE_WRITE && check_writable(a, name) < 0) taken = -1;
  if (taken < 0 || (taken > 0 && check_dtype(a, name, how) < 0)) return array_drop(a), -1;
  if (taken > 0 && well) {
    if (how & TAKE_FLAT) flatten(a);
    return 0;
  }
  if (how & TAKE_WRITE) {
    PyErr_Format(PyExc_ValueError, "%s does not lie contiguously (row by row), which is needed to write it", name);
    return array_drop(a), -1;
  }
  const char *usual = !taken && (how & TAKE_ANY) == TAKE_INDEX ? "i64" : NULL;
  PyObject *copy = ask_kinds(taken ? "contiguous" : "as_array", object, usual, NULL);
  array_drop(a);
  if (!copy) return -1;
  a->object = copy;
  a->negated = 0;
  taken = take_as_is(copy, name, how, a, &well);
  if (taken == 0 || (taken > 0 && !well))
    PyErr_Format(PyExc_TypeError, "%s is %R; an array is needed", name, (PyObject *)Py_TYPE(object));
  if (taken <= 0 || !well || check_dtype(a, name, how) < 0) return array_drop(a), -1;
  if (how & TAKE_FLAT) flatten(a);
  return 0;
}

void array_drop(array *a)
{
  if (a->buffer.obj) PyBuffer_Release(&a->buffer);
  a->buffer.obj = NULL;
  Py_CLEAR(a->held);
  Py_CLEAR(a->object);
}

/* ---- New arrays ---- */

PyObject *array_make(const array *like, sheaf_dtype dtype, int rank, const int64_t *shape)
{
  if (like->kind == KIND_EXCHANGE) return dlpack_make(like, dtype, rank, shape);
  PyObject *extents = tuple_of(shape, rank), *made;
  if (!extents) return NULL;
  if (like->kind == KIND_NUMPY && state.np_dtype[dtype])
    made = PyObject_CallFunctionObjArgs(state.np_empty, extents, state.np_dtype[dtype], NULL);
  else
    made = ask_kinds("empty", like->object, sheaf_dtype_name(dtype), extents);
  Py_DECREF(extents);
  return made;
}

PyObject *array_finish(const array *like, PyObject *made)
{
  if (!made || like->kind != KIND_OTHER) return made;
  PyObject *finished = ask_kinds("finish", like->object, NULL, made);
  Py_DECREF(made);
  return finished;
}
