/* records.c: profiles and traces of calls, as sheaf/_records.py wraps them. */
#include <string.h>

#include "extension.h"

/* ---- Profiles ---- */

static PyObject *profiler_begin(PyObject *self, PyObject *unused)
{
  (void)self;
  (void)unused;
  sheaf_status status = sheaf_profiler_begin();
  return status == SHEAF_OK ? Py_NewRef(Py_None) : raise_last_error(status);
}

static PyObject *record_dict(const sheaf_profile_record *r)
{
  PyObject *shapes = PyList_New(0);
  for (int i = 0; shapes && i < r->shapes; i++) {
    int rank = r->shape[i].rank; /* -1: an input that was not given */
    PyObject *shape = rank < 0 ? Py_NewRef(Py_None) : tuple_of(r->shape[i].extent, rank < 3 ? rank : 3);
    if (!shape || PyList_Append(shapes, shape) < 0) Py_CLEAR(shapes);
    Py_XDECREF(shape);
  }
  if (!shapes) return NULL;
  return Py_BuildValue("{s:s, s:s, s:s, s:N, s:L, s:L, s:L, s:L, s:L, s:i, s:s}", "op", r->op, "kernel", r->sku,
                       "dtype", sheaf_dtype_name(r->dtype), "shapes", shapes, "bytes", (long long)r->bytes, "plan_runs",
                       (long long)r->plan_runs, "start_ns", (long long)r->start_ns, "host_ns", (long long)r->host_ns,
                       "device_ns", (long long)r->device_ns, "thread", r->thread, "status",
                       sheaf_status_name(r->status));
}

typedef size_t text_fn(const void *source, char *text, size_t room);

/* A text of the library's, whose length it says first. */
static PyObject *text_of(text_fn *function, const void *source)
{
  size_t length = function(source, NULL, 0);
  char *text = PyMem_Malloc(length + 1);
  if (!text) return PyErr_NoMemory();
  function(source, text, length + 1);
  PyObject *result = PyUnicode_FromStringAndSize(text, (Py_ssize_t)length);
  PyMem_Free(text);
  return result;
}

static size_t profile_table(const void *p, char *text, size_t room) { return sheaf_profile_table(p, text, room); }
static size_t profile_chrome(const void *p, char *text, size_t room) { return sheaf_profile_chrome(p, text, room); }

/* (records, table, Chrome trace) */
static PyObject *profiler_end(PyObject *self, PyObject *unused)
{
  (void)self;
  (void)unused;
  sheaf_profile *profile;
  sheaf_status status = sheaf_profiler_end(&profile);
  if (status != SHEAF_OK) return raise_last_error(status);
  PyObject *records = PyList_New(0), *table = NULL, *chrome = NULL, *all = NULL;
  for (int64_t i = 0; records && i < sheaf_profile_count(profile); i++) {
    PyObject *record = record_dict(sheaf_profile_at(profile, i));
    if (!record || PyList_Append(records, record) < 0) Py_CLEAR(records);
    Py_XDECREF(record);
  }
  if (records) table = text_of(profile_table, profile);
  if (table) chrome = text_of(profile_chrome, profile);
  if (chrome) all = PyTuple_Pack(3, records, table, chrome);
  Py_XDECREF(records);
  Py_XDECREF(table);
  Py_XDECREF(chrome);
  sheaf_profile_free(profile);
  return all;
}

/* ---- Traces ---- */

PyObject *traced; /* while a trace is being taken, on any thread */

static void end_capsule(PyObject *capsule) { sheaf_tensor_release(PyCapsule_GetPointer(capsule, "tensor")); }

sheaf_tensor *kept_tensor(PyObject *kept, PyObject *object)
{
  PyObject *key = PyLong_FromVoidPtr(object), *entry = key ? PyDict_GetItem(kept, key) : NULL;
  Py_XDECREF(key);
  if (!entry) return NULL;
  return sheaf_tensor_retain(PyCapsule_GetPointer(PyTuple_GetItem(entry, 1), "tensor"));
}

/* The object is kept too: its address must not come back as another's. */
int keep_tensor(PyObject *kept, PyObject *object, sheaf_tensor *tensor)
{
  PyObject *capsule = PyCapsule_New(tensor, "tensor", end_capsule), *key = NULL, *entry = NULL;
  if (!capsule) return -1;
  sheaf_tensor_retain(tensor);
  key = PyLong_FromVoidPtr(object);
  entry = PyTuple_Pack(2, object, capsule);
  int failed = !key || !entry || PyDict_SetItem(kept, key, entry) < 0;
  Py_DECREF(capsule);
  Py_XDECREF(key);
  Py_XDECREF(entry);
  return failed ? -1 : 0;
}

typedef struct trace_object {
  PyObject_HEAD
  sheaf_trace *graph;
} trace_object;

static PyObject *trace_new(sheaf_trace *graph)
{
  trace_object *t = (trace_object *)PyType_GenericAlloc((PyTypeObject *)state.trace_type, 0);
  if (!t)
    sheaf_trace_free(graph);
  else
    t->graph = graph;
  return (PyObject *)t;
}

static void trace_dealloc(PyObject *self)
{
  PyTypeObject *type = Py_TYPE(self);
  sheaf_trace_free(((trace_object *)self)->graph);
  PyObject_Free(self);
  Py_DECREF(type);
}

static PyObject *tracer_begin(PyObject *self, PyObject *unused)
{
  (void)self;
  (void)unused;
  if (traced) {
    PyErr_SetString(PyExc_RuntimeError, "a trace is being taken; one at a time");
    return NULL;
  }
  if (!(traced = PyDict_New())) return NULL;
  sheaf_status status = sheaf_tracer_begin();
  if (status != SHEAF_OK) {
    Py_CLEAR(traced);
    return raise_last_error(status);
  }
  return Py_NewRef(Py_None);
}

static PyObject *tracer_end(PyObject *self, PyObject *unused)
{
  (void)self;
  (void)unused;
  sheaf_trace *graph;
  sheaf_status status = sheaf_tracer_end(&graph);
  Py_CLEAR(traced);
  return status == SHEAF_OK ? trace_new(graph) : raise_last_error(status);
}

static PyObject *trace_from_json(PyObject *self, PyObject *json)
{
  (void)self;
  const char *text = PyUnicode_Check(json) ? PyUnicode_AsUTF8AndSize(json, NULL) : NULL;
  if (!text) return PyErr_Format(PyExc_TypeError, "the graph is %R; its JSON text is needed", json);
  sheaf_trace *graph;
  sheaf_status status = sheaf_trace_from_json(text, &graph);
  return status == SHEAF_OK ? trace_new(graph) : raise_last_error(status);
}

static size_t trace_text(const void *g, char *text, size_t room) { return sheaf_trace_text(g, text, room); }
static size_t trace_dot(const void *g, char *text, size_t room) { return sheaf_trace_dot(g, text, room); }
static size_t trace_json(const void *g, char *text, size_t room) { return sheaf_trace_json(g, text, room); }

static PyObject *trace_get_text(PyObject *self, void *unused)
{
  (void)unused;
  return text_of(trace_text, ((trace_object *)self)->graph);
}

static PyObject *trace_get_dot(PyObject *self, void *unused)
{
  (void)unused;
  return text_of(trace_dot, ((trace_object *)self)->graph);
}

static PyObject *trace_get_json(PyObject *self, void *unused)
{
  (void)unused;
  return text_of(trace_json, ((trace_object *)self)->graph);
}

static PyObject *trace_get_counts(PyObject *self, void *unused)
{
  (void)unused;
  const sheaf_trace *graph = ((trace_object *)self)->graph;
  return Py_BuildValue("(iii)", sheaf_trace_inputs(graph), sheaf_trace_calls(graph), sheaf_trace_outputs(graph));
}

enum { MOST_INPUTS = 64 };

static PyObject *collect(sheaf_tensor **outputs, int count, const array *like)
{
  PyObject *list = PyList_New(0);
  for (int i = 0; i < count; i++) {
    sheaf_tensor *one = outputs[i];
    if (!list || sheaf_tensor_form(one) != SHEAF_FORM_DENSE) {
      if (list)
        PyErr_SetString(PyExc_NotImplementedError, "a trace whose result is no dense array is not replayed here");
      Py_CLEAR(list);
      sheaf_tensor_release(one);
      continue;
    }
    PyObject *result = memory_of_tensor(one, like);
    if (!result || PyList_Append(list, result) < 0) Py_CLEAR(list);
    Py_XDECREF(result);
  }
  return list;
}

/* The calls again, on other arrays in place of the graph's inputs. */
static PyObject *trace_replay(PyObject *self, PyObject *args)
{
  const sheaf_trace *graph = ((trace_object *)self)->graph;
  array taken[MOST_INPUTS];
  sheaf_tensor *inputs[MOST_INPUTS], *outputs[MOST_INPUTS] = {NULL};
  Py_ssize_t count = PyTuple_Size(args), done = 0;
  int results = sheaf_trace_outputs(graph), failed = 0;
  if (count != sheaf_trace_inputs(graph) || count < 1 || count > MOST_INPUTS || results > MOST_INPUTS)
    return PyErr_Format(PyExc_ValueError, "%zd arrays for a graph of %d inputs and %d results (at most %d of each)",
                        count, sheaf_trace_inputs(graph), results, (int)MOST_INPUTS);
  for (; done < count && !failed; done += !failed) {
    failed = array_take(PyTuple_GetItem(args, done), "an input of the graph", TAKE_ANY, &taken[done]) < 0;
    if (failed) break;
    sheaf_status status = sheaf_tensor_borrow(&taken[done].dl, 0, &inputs[done]);
    if (status == SHEAF_OK) continue;
    array_drop(&taken[done]);
    raise_last_error(status);
    failed = 1;
  }
  PyObject *list = NULL;
  const array *operands[MOST_INPUTS];
  int apart = 0;
  for (Py_ssize_t i = 0; i < count; i++) operands[i] = &taken[i];
  if (!failed) failed = enter_stream(operands, (int)count, &apart) < 0;
  if (!failed) {
    sheaf_status status;
    Py_BEGIN_ALLOW_THREADS
    status = sheaf_trace_replay(graph, inputs, (int)count, outputs, results);
    Py_END_ALLOW_THREADS
    if (status == SHEAF_OK && leave_stream(&taken[0], apart) == 0)
      list = collect(outputs, results, &taken[0]);
    else if (status != SHEAF_OK)
      raise_last_error(status);
  }
  for (Py_ssize_t i = 0; i < done; i++) {
    sheaf_tensor_release(inputs[i]);
    array_drop(&taken[i]);
  }
  return list;
}

int add_record_functions(PyObject *module)
{
  static PyMethodDef methods[] = {
      {"profiler_begin", profiler_begin, METH_NOARGS, NULL}, {"profiler_end", profiler_end, METH_NOARGS, NULL},
      {"tracer_begin", tracer_begin, METH_NOARGS, NULL},     {"tracer_end", tracer_end, METH_NOARGS, NULL},
      {"trace_from_json", trace_from_json, METH_O, NULL},    {NULL, NULL, 0, NULL}};
  static PyMethodDef trace_methods[] = {
      {"replay", trace_replay, METH_VARARGS,
       "replay(*inputs)\n--\n\nRuns the calls again on other arrays; the list of results."},
      {NULL, NULL, 0, NULL}};
  static PyGetSetDef members[] = {{"text", trace_get_text, NULL, NULL, NULL},
                                  {"dot", trace_get_dot, NULL, NULL, NULL},
                                  {"json", trace_get_json, NULL, NULL, NULL},
                                  {"counts", trace_get_counts, NULL, "(inputs, calls, outputs)", NULL},
                                  {NULL, NULL, NULL, NULL, NULL}};
  static PyType_Slot slots[] = {{Py_tp_dealloc, trace_dealloc},
                                {Py_tp_methods, trace_methods},
                                {Py_tp_getset, members},
                                {Py_tp_doc, "A graph of calls that was recorded."},
                                {0, NULL}};
  static PyType_Spec spec = {"sheaf.Trace", sizeof(trace_object), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  state.trace_type = PyType_FromSpec(&spec);
  if (!state.trace_type || PyModule_AddObjectRef(module, "Trace", state.trace_type) < 0) return -1;
  return PyModule_AddFunctions(module, methods);
}
