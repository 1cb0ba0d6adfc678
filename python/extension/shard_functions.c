/* shard_functions.c: what can be done on a mesh of ranks, and what it costs: sheaf/shard.py's plan(). */
#include <string.h>

#include "extension.h"
#include "shard_objects.h"

int parse_placements(PyObject *value, const char *name, int dims, sheaf_placement *placements)
{
  PyObject *items = PyUnicode_Check(value) ? PyTuple_Pack(1, value) : PySequence_Tuple(value);
  if (!items) return -1;
  int failed = 0;
  if (PyTuple_Size(items) != dims) {
    PyErr_Format(PyExc_ValueError, "%s has %zd placements; the mesh has %d dimensions", name, PyTuple_Size(items),
                 dims);
    failed = 1;
  }
  for (int i = 0; i < dims && !failed; i++) {
    PyObject *item = PyTuple_GetItem(items, i);
    const char *text = PyUnicode_Check(item) ? PyUnicode_AsUTF8AndSize(item, NULL) : NULL;
    if (!text) PyErr_Format(PyExc_TypeError, "%s: %R is no placement such as 'R' or 'S(0)'", name, item);
    sheaf_status status = text ? sheaf_placement_parse(text, &placements[i]) : SHEAF_OK;
    if (status != SHEAF_OK) raise_last_error(status);
    failed = !text || status != SHEAF_OK;
  }
  Py_DECREF(items);
  return failed ? -1 : 0;
}

PyObject *placements_tuple(const sheaf_placement *placements, int dims)
{
  PyObject *tuple = PyTuple_New(dims);
  for (int i = 0; tuple && i < dims; i++) {
    char text[64];
    sheaf_placement_print(&placements[i], text, sizeof text);
    PyObject *word = PyUnicode_FromString(text);
    if (!word || PyTuple_SetItem(tuple, i, word) < 0) Py_CLEAR(tuple);
  }
  return tuple;
}

/* (latency_us, bandwidth_gbs, memory_gbs, memory_limit), 0 for a default; or NULL. */
int parse_profile(PyObject *value, sheaf_mesh_profile *profile)
{
  *profile = (sheaf_mesh_profile)SHEAF_MESH_PROFILE_INIT;
  if (!value) return 0;
  return PyArg_ParseTuple(value, "dddd", &profile->latency_us, &profile->bandwidth_gbs, &profile->memory_gbs,
                          &profile->memory_limit)
             ? 0
             : -1;
}

PyObject *strategy_dict(const sheaf_strategy *s, int dims)
{
  PyObject *inputs = PyTuple_New(s->inputs), *costs = PyTuple_New(s->inputs);
  for (int i = 0; inputs && costs && i < s->inputs; i++) {
    PyObject *places = placements_tuple(s->in[i], dims), *cost = PyFloat_FromDouble(s->compatible_cost[i]);
    if (!places || PyTuple_SetItem(inputs, i, places) < 0) Py_CLEAR(inputs);
    if (!cost || PyTuple_SetItem(costs, i, cost) < 0) Py_CLEAR(costs);
  }
  PyObject *out = placements_tuple(s->out, dims);
  if (!inputs || !costs || !out) {
    Py_XDECREF(inputs);
    Py_XDECREF(costs);
    Py_XDECREF(out);
    return NULL;
  }
  return Py_BuildValue("{s:N, s:N, s:N, s:O, s:i, s:d, s:d, s:d, s:d}", "out", out, "inputs", inputs, "compatible_cost",
                       costs, "addition", s->addition ? Py_True : Py_False, "dispatch", (int)s->dispatch,
                       "microseconds", s->microseconds, "bytes_moved", s->bytes_moved, "bytes_table", s->bytes_table,
                       "bytes_memory", s->bytes_memory);
}

/* ---- The problem ---- */

enum {
  P_KIND,
  P_MESH,
  P_DTYPE,
  P_INDEX_DTYPE,
  P_ROWS,
  P_DIM,
  P_INDEX_SHAPE,
  P_BAGS,
  P_FORM,
  P_INPUTS,
  P_OUT,
  P_PROFILE,
  P_COMPATIBLE,
  P_COUNT
};
static parameters problem_parameters = {"plan",
                                        P_COUNT,
                                        0,
                                        7,
                                        {"kind", "mesh", "dtype", "index_dtype", "rows", "dim", "index_shape", "bags",
                                         "bag_form", "inputs", "out", "profile", "compatible"},
                                        {NULL}};

static int ready_problem(PyObject **v, const sheaf_mesh *mesh, sheaf_shard_problem *p)
{
  int dims = sheaf_mesh_dims(mesh);
  int64_t form = 0;
  p->mesh = mesh;
  if (parse_kind(v[P_KIND], &p->category, &p->kind) < 0 || parse_dtype(v[P_DTYPE], "dtype", &p->dtype) < 0 ||
      parse_dtype(v[P_INDEX_DTYPE], "index_dtype", &p->index_dtype) < 0 ||
      parse_integer(v[P_ROWS], "rows", &p->rows) < 0 || parse_integer(v[P_DIM], "dim", &p->dim) < 0 ||
      parse_integer(v[P_BAGS], "bags", &p->bags) < 0 ||
      parse_choice(v[P_FORM], "bag_form", "offsets|offsets_end|matrix", &form) < 0)
    return -1;
  p->bag_form = (sheaf_bag_form)form;
  p->index_rank = parse_integers(v[P_INDEX_SHAPE], "indices", p->index_shape, SHEAF_SHARD_MAX_RANK);
  if (p->index_rank < 0) return -1;
  PyObject *inputs = v[P_INPUTS] ? PySequence_Tuple(v[P_INPUTS]) : PyTuple_New(0);
  if (!inputs) return -1;
  int failed = PyTuple_Size(inputs) > SHEAF_SHARD_MAX_INPUTS;
  if (failed) PyErr_Format(PyExc_ValueError, "an op has at most %d inputs", SHEAF_SHARD_MAX_INPUTS);
  for (Py_ssize_t i = 0; i < PyTuple_Size(inputs) && !failed; i++)
    failed = parse_placements(PyTuple_GetItem(inputs, i), "an input", dims, p->in[i]) < 0;
  Py_DECREF(inputs);
  p->out_wanted = v[P_OUT] != NULL;
  if (!failed && v[P_OUT]) failed = parse_placements(v[P_OUT], "out", dims, p->out) < 0;
  return failed ? -1 : 0;
}

/* ([strategies], number of the best or None, why in words) */
static PyObject *result_of(const sheaf_strategy_list *list, const sheaf_mesh *mesh, const sheaf_mesh_profile *profile)
{
  char reason[512] = "";
  int64_t best = -1;
  int dims = sheaf_mesh_dims(mesh);
  PyObject *all = PyList_New(0);
  for (int64_t i = 0; all && i < sheaf_strategy_count(list); i++) {
    PyObject *one = strategy_dict(sheaf_strategy_at(list, i), dims);
    if (!one || PyList_Append(all, one) < 0) Py_CLEAR(all);
    Py_XDECREF(one);
  }
  if (!all) return NULL;
  if (sheaf_strategy_choose(list, profile, &best, reason, sizeof reason) != SHEAF_OK)
    return Py_BuildValue("(NOs)", all, Py_None, sheaf_last_error());
  return Py_BuildValue("(NLs)", all, (long long)best, reason);
}

static PyObject *strategies(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
  (void)self;
  PyObject *v[P_COUNT], *result = NULL;
  int64_t sizes[SHEAF_MESH_MAX_DIMS], compatible = 0;
  if (parse_arguments(&problem_parameters, args, count, names, v) < 0) return NULL;
  int dims = parse_integers(v[P_MESH], "mesh", sizes, SHEAF_MESH_MAX_DIMS);
  sheaf_mesh_profile profile;
  if (dims < 0 || parse_flag(v[P_COMPATIBLE], &compatible) < 0 || parse_profile(v[P_PROFILE], &profile) < 0)
    return NULL;
  sheaf_mesh *mesh;
  sheaf_status status = sheaf_mesh_create(sizes, dims, NULL, &mesh);
  if (status != SHEAF_OK) return raise_last_error(status);
  sheaf_shard_problem problem = SHEAF_SHARD_PROBLEM_INIT;
  sheaf_strategy_list *list = NULL;
  if (ready_problem(v, mesh, &problem) == 0) {
    status = sheaf_strategies(&problem, (int)compatible, &profile, &list);
    result = status == SHEAF_OK ? result_of(list, mesh, &profile) : raise_last_error(status);
  }
  sheaf_strategy_list_free(list);
  sheaf_mesh_free(mesh);
  return result;
}

int add_shard_functions(PyObject *module)
{
  static PyMethodDef methods[] = {
      {"strategies", (PyCFunction)(void (*)(void))strategies, METH_FASTCALL | METH_KEYWORDS, NULL},
      {NULL, NULL, 0, NULL}};
  return PyModule_AddFunctions(module, methods);
}
