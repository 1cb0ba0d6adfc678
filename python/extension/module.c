/* module.c: sheaf._core, the extension: its state, what the machine and the library offer, and its start. */
#include <string.h>

#include "extension.h"

extension_state state;

PyObject *ask_kinds(const char *function, PyObject *argument, const char *dtype, PyObject *shape)
{
  if (!state.kinds && !(state.kinds = PyImport_ImportModule("sheaf._kinds"))) return NULL;
  if (dtype && shape) return PyObject_CallMethod(state.kinds, function, "OsO", argument, dtype, shape);
  if (dtype) return PyObject_CallMethod(state.kinds, function, "Os", argument, dtype);
  if (shape) return PyObject_CallMethod(state.kinds, function, "OO", argument, shape);
  return PyObject_CallMethod(state.kinds, function, "O", argument);
}

/* ---- What there is ---- */

static PyObject *device_list(void)
{
  int count = 0;
  PyObject *list = PyList_New(0);
  if (!list || sheaf_device_count(kDLCUDA, &count) != SHEAF_OK) return list;
  for (int i = 0; i < count; i++) {
    sheaf_device_info info;
    if (sheaf_device_describe((DLDevice){kDLCUDA, i}, &info) != SHEAF_OK) continue;
    PyObject *entry = Py_BuildValue("{s:s, s:s, s:i, s:L}", "device", "cuda", "name", info.name, "processors",
                                    info.processors, "memory_bytes", (long long)info.memory_bytes);
    if (!entry || PyList_Append(list, entry) < 0) {
      Py_XDECREF(entry);
      Py_DECREF(list);
      return NULL;
    }
    Py_DECREF(entry);
  }
  return list;
}

static PyObject *info(PyObject *self, PyObject *unused)
{
  (void)self;
  (void)unused;
  PyObject *devices = device_list();
  if (!devices) return NULL;
  return Py_BuildValue("{s:s, s:s, s:s, s:s, s:i, s:n, s:N}", "version", sheaf_version(), "cpu", sheaf_cpu_name(),
                       "isa", sheaf_isa_name(sheaf_isa_current()), "isa_best", sheaf_isa_name(sheaf_isa_best()),
                       "threads", sheaf_threads(), "kernels", (Py_ssize_t)sheaf_kernel_count(), "devices", devices);
}

PyObject *sku_dict(const sheaf_sku *sku)
{
  const sheaf_guarantee *g = &sku->guarantee;
  return Py_BuildValue("{s:s, s:s, s:s, s:s, s:O, s:O, s:O}", "name", sku->name, "op",
                       sheaf_kind_name(sku->category, sku->kind), "dtype", sheaf_dtype_name(sku->element),
                       "accumulator", sheaf_dtype_name(g->accumulator), "deterministic",
                       g->deterministic ? Py_True : Py_False, "bit_stable_on_same_hardware",
                       g->bit_stable_on_same_hardware ? Py_True : Py_False, "bit_stable_across_hardware",
                       g->bit_stable_across_hardware ? Py_True : Py_False);
}

static PyObject *kernels(PyObject *self, PyObject *unused)
{
  (void)self;
  (void)unused;
  int64_t count = sheaf_kernel_count();
  PyObject *list = PyList_New((Py_ssize_t)count);
  for (int64_t i = 0; list && i < count; i++) {
    sheaf_sku sku;
    int available = 0;
    sheaf_status status = sheaf_kernel_at(i, &sku, &available);
    PyObject *entry = status == SHEAF_OK ? sku_dict(&sku) : raise_last_error(status);
    if (!entry || PyDict_SetItemString(entry, "available", available ? Py_True : Py_False) < 0 ||
        PyList_SetItem(list, (Py_ssize_t)i, Py_NewRef(entry)) < 0)
      Py_CLEAR(list);
    Py_XDECREF(entry);
  }
  return list;
}

static PyObject *set_threads(PyObject *self, PyObject *number)
{
  (void)self;
  int64_t threads = 0;
  if (parse_integer(number, "threads", &threads) < 0) return NULL;
  if (threads > 1 << 20) threads = 1 << 20;
  sheaf_status status = sheaf_set_threads(threads < 0 ? -1 : (int)threads);
  return status == SHEAF_OK ? Py_NewRef(Py_None) : raise_last_error(status);
}

static PyObject *set_isa(PyObject *self, PyObject *name)
{
  (void)self;
  int64_t isa = 0;
  if (parse_choice(name, "isa", "scalar|avx2|avx512", &isa) < 0) return NULL;
  sheaf_status status = sheaf_set_isa((sheaf_isa)isa);
  return status == SHEAF_OK ? Py_NewRef(Py_None) : raise_last_error(status);
}

static PyObject *set_quantized_type(PyObject *self, PyObject *type)
{
  (void)self;
  Py_XDECREF(state.quantized);
  state.quantized = Py_NewRef(type);
  return Py_NewRef(Py_None);
}

static PyObject *clear_caches(PyObject *self, PyObject *unused)
{
  (void)self;
  (void)unused;
  sheaf_clear_caches();
  return Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"info", info, METH_NOARGS,
     "info()\n--\n\nWhat this machine and this build offer: version, CPU, instruction set, threads, devices."},
    {"kernels", kernels, METH_NOARGS, "kernels()\n--\n\nEvery kernel of the CPU, and what it guarantees."},
    {"set_threads", set_threads, METH_O,
     "set_threads(threads, /)\n--\n\nThe most threads a call may use; 0: the default. Results never depend on it."},
    {"set_isa", set_isa, METH_O, "set_isa(isa, /)\n--\n\nThe instruction set of later calls: scalar, avx2 or avx512."},
    {"clear_caches", clear_caches, METH_NOARGS,
     "clear_caches()\n--\n\nFrees the plans and the workspace that calls of this thread keep for the next ones."},
    {"set_quantized_type", set_quantized_type, METH_O, NULL},
    {NULL, NULL, 0, NULL}};

/* ---- Start ---- */

static int find_numpy(void)
{
  static const char *const names[] = {NULL,    "float32", "float64", "float16", NULL,
                                      "int32", "int64",   "uint8",   NULL,      NULL}; /* as sheaf_dtype counts */
  PyObject *numpy = PyImport_ImportModule("numpy");
  if (!numpy) return -1;
  state.ndarray = PyObject_GetAttrString(numpy, "ndarray");
  state.np_empty = PyObject_GetAttrString(numpy, "empty");
  int failed = !state.ndarray || !state.np_empty;
  for (int d = 0; d <= SHEAF_INT4 && !failed; d++) {
    if (!names[d]) continue;
    state.np_dtype[d] = PyObject_CallMethod(numpy, "dtype", "s", names[d]);
    failed = !state.np_dtype[d];
  }
  Py_DECREF(numpy);
  return failed ? -1 : 0;
}

PyMODINIT_FUNC PyInit__core(void)
{
  static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                          "sheaf._core",
                                          "Sheaf's C library in Python's terms.",
                                          -1,
                                          methods,
                                          NULL,
                                          NULL,
                                          NULL,
                                          NULL};
  if (strcmp(sheaf_version(), SHEAF_VERSION_STRING) != 0) {
    PyErr_Format(PyExc_ImportError, "sheaf._core is of version %s, but the libsheaf that was loaded is %s",
                 SHEAF_VERSION_STRING, sheaf_version());
    return NULL;
  }
  PyObject *module = PyModule_Create(&definition);
  if (!module) return NULL;
  if (find_numpy() < 0 || add_memory_type(module) < 0 || add_embedding_functions(module) < 0 ||
      add_conversion_functions(module) < 0 || add_segment_functions(module) < 0 || add_plan_type(module) < 0 ||
      add_file_functions(module) < 0 || add_record_functions(module) < 0 || add_shard_functions(module) < 0 ||
      add_dtensor_types(module) < 0 || add_torch_functions(module) < 0 || add_autocast_functions(module) < 0)
    Py_CLEAR(module);
  return module;
}
