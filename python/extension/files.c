/* files.c: safetensors and npy: files mapped into memory as arrays that keep them open, and written. */
#include <string.h>

#include "extension.h"

/* ---- Reading ---- */

static void close_safetensors(PyObject *capsule)
{
  sheaf_safetensors_close(PyCapsule_GetPointer(capsule, "safetensors"));
}

static void close_npy(PyObject *capsule) { sheaf_npy_close(PyCapsule_GetPointer(capsule, "npy")); }

/* An array in the file, which `file` (a capsule) keeps open. A type Sheaf has no name for is None. */
static PyObject *mapped(const sheaf_io_tensor *t, PyObject *file)
{
  if (t->dtype == SHEAF_DTYPE_NONE) return Py_NewRef(Py_None);
  int64_t shape[MAX_RANK];
  memcpy(shape, t->shape, sizeof shape);
  DLTensor dl = {.data = (void *)t->data,
                 .device = {kDLCPU, 0},
                 .ndim = t->rank,
                 .dtype = sheaf_dtype_to_dl(t->dtype),
                 .shape = shape};
  return memory_new(&dl, t->dtype, 1, Py_NewRef(file), release_object);
}

static PyObject *metadata_of(const sheaf_safetensors *file)
{
  PyObject *dict = PyDict_New();
  int64_t count = sheaf_safetensors_metadata_count(file);
  for (int64_t i = 0; dict && i < count; i++) {
    sheaf_io_metadata entry = sheaf_safetensors_metadata_at(file, i);
    PyObject *value = PyUnicode_FromString(entry.value);
    if (!value || PyDict_SetItemString(dict, entry.key, value) < 0) Py_CLEAR(dict);
    Py_XDECREF(value);
  }
  return dict;
}

/* (tensors, metadata) of a safetensors file. */
static PyObject *read_safetensors(PyObject *self, PyObject *args)
{
  (void)self;
  PyObject *path;
  if (!PyArg_ParseTuple(args, "O&", PyUnicode_FSConverter, &path)) return NULL;
  sheaf_safetensors *file;
  sheaf_status status;
  const char *name = PyBytes_AsString(path);
  Py_BEGIN_ALLOW_THREADS
  status = sheaf_safetensors_open(name, &file);
  Py_END_ALLOW_THREADS
  Py_DECREF(path);
  if (status != SHEAF_OK) return raise_last_error(status);
  PyObject *holder = PyCapsule_New(file, "safetensors", close_safetensors), *tensors = NULL, *metadata = NULL;
  if (!holder) return sheaf_safetensors_close(file), NULL;
  tensors = PyDict_New();
  for (int64_t i = 0; tensors && i < sheaf_safetensors_count(file); i++) {
    const sheaf_io_tensor *t = sheaf_safetensors_at(file, i);
    PyObject *memory = mapped(t, holder);
    if (!memory || PyDict_SetItemString(tensors, t->name, memory) < 0) Py_CLEAR(tensors);
    Py_XDECREF(memory);
  }
  if (tensors) metadata = metadata_of(file);
  PyObject *both = metadata ? PyTuple_Pack(2, tensors, metadata) : NULL;
  Py_XDECREF(tensors);
  Py_XDECREF(metadata);
  Py_DECREF(holder);
  return both;
}

static PyObject *read_npy(PyObject *self, PyObject *args)
{
  (void)self;
  PyObject *path;
  if (!PyArg_ParseTuple(args, "O&", PyUnicode_FSConverter, &path)) return NULL;
  sheaf_npy *file;
  sheaf_status status = sheaf_npy_open(PyBytes_AsString(path), &file);
  Py_DECREF(path);
  if (status != SHEAF_OK) return raise_last_error(status);
  PyObject *holder = PyCapsule_New(file, "npy", close_npy);
  if (!holder) return sheaf_npy_close(file), NULL;
  PyObject *memory = mapped(sheaf_npy_tensor(file), holder);
  Py_DECREF(holder);
  return memory;
}

/* ---- Writing ---- */

/* What is to be written: arrays held, and their descriptions. */
typedef struct listing {
  Py_ssize_t count, metadata_count;
  array *arrays;
  sheaf_io_tensor *tensors;
  sheaf_io_metadata *metadata;
} listing;

static void drop_listing(listing *l)
{
  for (Py_ssize_t i = 0; i < l->count; i++) array_drop(&l->arrays[i]);
  PyMem_Free(l->arrays);
  PyMem_Free(l->tensors);
  PyMem_Free(l->metadata);
}

static int add_tensor(listing *l, const char *name, PyObject *object)
{
  array *a = &l->arrays[l->count];
  sheaf_io_tensor *t = &l->tensors[l->count];
  if (array_take(object, name, TAKE_ANY | TAKE_DENSE, a) < 0) return -1;
  l->count++;
  if (a->dl.device.device_type != kDLCPU)
    return PyErr_Format(PyExc_ValueError, "%s lies on a device; files are written from the CPU's memory", name), -1;
  t->name = name;
  t->dtype = a->dtype;
  t->rank = a->dl.ndim;
  for (int i = 0; i < a->dl.ndim; i++) t->shape[i] = a->dl.shape[i];
  t->data = (const char *)a->dl.data + a->dl.byte_offset;
  t->bytes = (size_t)array_elements(a) * (a->dl.dtype.bits / 8);
  return 0;
}

/* write_file(path, {name: contiguous array}, {key: value}, npy) */
static PyObject *write_file(PyObject *self, PyObject *args)
{
  (void)self;
  PyObject *path, *arrays, *metadata, *key, *value;
  int npy;
  if (!PyArg_ParseTuple(args, "O&O!O!p", PyUnicode_FSConverter, &path, &PyDict_Type, &arrays, &PyDict_Type, &metadata,
                        &npy))
    return NULL;
  listing l = {0};
  size_t room = (size_t)PyDict_Size(arrays) + 1, entries = (size_t)PyDict_Size(metadata) + 1;
  l.arrays = PyMem_Calloc(room, sizeof *l.arrays);
  l.tensors = PyMem_Calloc(room, sizeof *l.tensors);
  l.metadata = PyMem_Calloc(entries, sizeof *l.metadata);
  int failed = !l.arrays || !l.tensors || !l.metadata;
  if (failed) PyErr_NoMemory();
  for (Py_ssize_t at = 0; !failed && PyDict_Next(arrays, &at, &key, &value);) {
    const char *name = PyUnicode_AsUTF8AndSize(key, NULL);
    failed = !name || add_tensor(&l, name, value) < 0;
  }
  for (Py_ssize_t at = 0; !failed && PyDict_Next(metadata, &at, &key, &value);) {
    sheaf_io_metadata *entry = &l.metadata[l.metadata_count++];
    failed =
        !(entry->key = PyUnicode_AsUTF8AndSize(key, NULL)) || !(entry->value = PyUnicode_AsUTF8AndSize(value, NULL));
  }
  sheaf_status status = SHEAF_OK;
  if (!failed) {
    const char *name = PyBytes_AsString(path);
    Py_BEGIN_ALLOW_THREADS
    status = npy ? sheaf_npy_write(name, l.tensors)
                 : sheaf_safetensors_write(name, l.tensors, l.count, l.metadata, l.metadata_count);
    Py_END_ALLOW_THREADS
  }
  drop_listing(&l);
  Py_DECREF(path);
  if (failed) return NULL;
  return status == SHEAF_OK ? Py_NewRef(Py_None) : raise_last_error(status);
}

int add_file_functions(PyObject *module)
{
  static PyMethodDef methods[] = {{"read_safetensors", read_safetensors, METH_VARARGS, NULL},
                                  {"read_npy", read_npy, METH_VARARGS, NULL},
                                  {"write_file", write_file, METH_VARARGS, NULL},
                                  {NULL, NULL, 0, NULL}};
  return PyModule_AddFunctions(module, methods);
}
