/* shard_objects.c: meshes over ranks and the tensors spread over them, as sheaf/shard.py wraps them. */
#include "shard_objects.h"

#include <string.h>

/* ---- Meshes ---- */

/* Mesh(sizes, engine, address of the engine's handle or 0, what keeps that handle alive) */
static PyObject *mesh_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
  PyObject *list, *keep;
  const char *engine;
  unsigned long long address;
  int64_t sizes[SHEAF_MESH_MAX_DIMS];
  if (names && PyDict_Size(names) > 0) return PyErr_Format(PyExc_TypeError, "Mesh() takes its arguments by place");
  if (!PyArg_ParseTuple(args, "OsKO", &list, &engine, &address, &keep)) return NULL;
  int dims = parse_integers(list, "mesh", sizes, SHEAF_MESH_MAX_DIMS);
  if (dims < 0) return NULL;
  mesh_object *m = (mesh_object *)PyType_GenericAlloc(type, 0);
  if (!m) return NULL;
  m->keep = Py_NewRef(keep);
  sheaf_status status;
  Py_BEGIN_ALLOW_THREADS
  status = sheaf_comm_open(engine, (const void *)(uintptr_t)address, &m->comm); /* NOLINT: a handle's address */
  Py_END_ALLOW_THREADS
  if (status == SHEAF_OK) status = sheaf_mesh_create(sizes, dims, m->comm, &m->mesh);
  if (status == SHEAF_OK) return (PyObject *)m;
  raise_last_error(status);
  Py_DECREF(m);
  return NULL;
}

static void mesh_dealloc(PyObject *self)
{
  mesh_object *m = (mesh_object *)self;
  PyTypeObject *type = Py_TYPE(self);
  sheaf_mesh_free(m->mesh);
  if (m->comm) sheaf_comm_close(m->comm);
  Py_XDECREF(m->keep);
  PyObject_Free(self);
  Py_DECREF(type);
}

static PyObject *mesh_rank(PyObject *self, void *unused)
{
  (void)unused;
  return PyLong_FromLongLong(sheaf_mesh_rank(((mesh_object *)self)->mesh));
}

static PyObject *mesh_shape(PyObject *self, void *unused)
{
  (void)unused;
  const sheaf_mesh *mesh = ((mesh_object *)self)->mesh;
  int64_t sizes[SHEAF_MESH_MAX_DIMS];
  int dims = sheaf_mesh_dims(mesh);
  for (int i = 0; i < dims; i++) sizes[i] = sheaf_mesh_size(mesh, i);
  return tuple_of(sizes, dims);
}

static PyObject *mesh_statistics(PyObject *self, void *unused)
{
  (void)unused;
  sheaf_comm_stats s = sheaf_comm_statistics(((mesh_object *)self)->comm);
  return Py_BuildValue("{s:L, s:L, s:L}", "exchanges", (long long)s.exchanges, "bytes_sent", (long long)s.bytes_sent,
                       "agreements", (long long)s.agreements);
}

/* local_shape(placements, shape): (shape of this rank's part, its first element in each dimension) */
static PyObject *mesh_local_shape(PyObject *self, PyObject *args)
{
  const sheaf_mesh *mesh = ((mesh_object *)self)->mesh;
  PyObject *where, *extents;
  sheaf_placement placements[SHEAF_MESH_MAX_DIMS];
  int64_t shape[SHEAF_SHARD_MAX_RANK], local[SHEAF_SHARD_MAX_RANK], offset[SHEAF_SHARD_MAX_RANK];
  if (!PyArg_ParseTuple(args, "OO", &where, &extents)) return NULL;
  int rank = parse_integers(extents, "shape", shape, SHEAF_SHARD_MAX_RANK);
  if (rank < 0 || parse_placements(where, "placements", sheaf_mesh_dims(mesh), placements) < 0) return NULL;
  sheaf_status status = sheaf_local_shape(mesh, placements, rank, shape, sheaf_mesh_rank(mesh), local, offset);
  if (status != SHEAF_OK) return raise_last_error(status);
  return Py_BuildValue("(NN)", tuple_of(local, rank), tuple_of(offset, rank));
}

/* ---- Tensors ---- */

PyObject *dtensor_new(mesh_object *mesh, sheaf_dtensor *tensor)
{
  dtensor_object *d = (dtensor_object *)PyType_GenericAlloc((PyTypeObject *)state.dtensor_type, 0);
  if (!d) {
    sheaf_dtensor_free(tensor);
    return NULL;
  }
  d->mesh = (mesh_object *)Py_NewRef((PyObject *)mesh);
  d->tensor = tensor;
  return (PyObject *)d;
}

/* wrap(local, placements, shape): a tensor of this shape around this rank's part. */
static PyObject *mesh_wrap(PyObject *self, PyObject *args)
{
  mesh_object *m = (mesh_object *)self;
  PyObject *local, *where, *extents;
  sheaf_dtensor_desc desc = SHEAF_DTENSOR_DESC_INIT;
  if (!PyArg_ParseTuple(args, "OOO", &local, &where, &extents)) return NULL;
  desc.mesh = m->mesh;
  desc.rank = parse_integers(extents, "shape", desc.shape, SHEAF_SHARD_MAX_RANK);
  if (desc.rank < 0 || parse_placements(where, "placements", sheaf_mesh_dims(m->mesh), desc.placements) < 0)
    return NULL;
  dtensor_object *d = (dtensor_object *)dtensor_new(m, NULL);
  if (!d) return NULL;
  if (array_take(local, "local", TAKE_ANY | TAKE_DENSE, &d->local) < 0) return Py_DECREF(d), NULL;
  d->wraps = 1;
  desc.dtype = d->local.dtype;
  sheaf_status status = sheaf_dtensor_wrap(&desc, &d->local.dl, &d->tensor);
  if (status == SHEAF_OK) return (PyObject *)d;
  raise_last_error(status);
  Py_DECREF(d);
  return NULL;
}

static void dtensor_dealloc(PyObject *self)
{
  dtensor_object *d = (dtensor_object *)self;
  PyTypeObject *type = Py_TYPE(self);
  sheaf_dtensor_free(d->tensor);
  if (d->wraps) array_drop(&d->local);
  Py_XDECREF((PyObject *)d->mesh);
  PyObject_Free(self);
  Py_DECREF(type);
}

static PyObject *dtensor_redistribute(PyObject *self, PyObject *where)
{
  dtensor_object *d = (dtensor_object *)self;
  sheaf_placement placements[SHEAF_MESH_MAX_DIMS];
  if (parse_placements(where, "placements", sheaf_mesh_dims(d->mesh->mesh), placements) < 0) return NULL;
  sheaf_dtensor *moved;
  sheaf_status status;
  Py_BEGIN_ALLOW_THREADS
  status = sheaf_dtensor_redistribute(d->tensor, placements, &moved);
  Py_END_ALLOW_THREADS
  return status == SHEAF_OK ? dtensor_new(d->mesh, moved) : raise_last_error(status);
}

/* This rank's part: memory that keeps the tensor. */
static PyObject *dtensor_local(PyObject *self, void *unused)
{
  (void)unused;
  dtensor_object *d = (dtensor_object *)self;
  if (d->wraps) return Py_NewRef(d->local.object);
  const DLTensor *dl = sheaf_dtensor_local(d->tensor);
  return memory_new(dl, sheaf_dtype_from_dl(dl->dtype), 0, Py_NewRef(self), release_object);
}

static PyObject *dtensor_shape(PyObject *self, void *unused)
{
  (void)unused;
  const sheaf_dtensor_desc *desc = sheaf_dtensor_describe(((dtensor_object *)self)->tensor);
  return tuple_of(desc->shape, desc->rank);
}

static PyObject *dtensor_dtype(PyObject *self, void *unused)
{
  (void)unused;
  return PyUnicode_FromString(sheaf_dtype_name(sheaf_dtensor_describe(((dtensor_object *)self)->tensor)->dtype));
}

static PyObject *dtensor_placements(PyObject *self, void *unused)
{
  (void)unused;
  const dtensor_object *d = (const dtensor_object *)self;
  return placements_tuple(sheaf_dtensor_describe(d->tensor)->placements, sheaf_mesh_dims(d->mesh->mesh));
}

static PyObject *dtensor_mesh(PyObject *self, void *unused)
{
  (void)unused;
  return Py_NewRef((PyObject *)((dtensor_object *)self)->mesh);
}

static int add_type(PyObject *module, const char *name, PyType_Spec *spec, PyObject **type)
{
  *type = PyType_FromSpec(spec);
  return *type ? PyModule_AddObjectRef(module, name, *type) : -1;
}

int add_dtensor_types(PyObject *module)
{
  static PyMethodDef mesh_methods[] = {{"local_shape", mesh_local_shape, METH_VARARGS, NULL},
                                       {"wrap", mesh_wrap, METH_VARARGS, NULL},
                                       {NULL, NULL, 0, NULL}};
  static PyGetSetDef mesh_members[] = {{"rank", mesh_rank, NULL, NULL, NULL},
                                       {"shape", mesh_shape, NULL, NULL, NULL},
                                       {"statistics", mesh_statistics, NULL, NULL, NULL},
                                       {NULL, NULL, NULL, NULL, NULL}};
  static PyType_Slot mesh_slots[] = {{Py_tp_new, mesh_new},
                                     {Py_tp_dealloc, mesh_dealloc},
                                     {Py_tp_methods, mesh_methods},
                                     {Py_tp_getset, mesh_members},
                                     {0, NULL}};
  static PyType_Spec mesh_spec = {"sheaf._core.Mesh", sizeof(mesh_object), 0, Py_TPFLAGS_DEFAULT, mesh_slots};
  static PyMethodDef dtensor_methods[] = {{"redistribute", dtensor_redistribute, METH_O, NULL}, {NULL, NULL, 0, NULL}};
  static PyGetSetDef dtensor_members[] = {
      {"local", dtensor_local, NULL, NULL, NULL}, {"shape", dtensor_shape, NULL, NULL, NULL},
      {"dtype", dtensor_dtype, NULL, NULL, NULL}, {"placements", dtensor_placements, NULL, NULL, NULL},
      {"mesh", dtensor_mesh, NULL, NULL, NULL},   {NULL, NULL, NULL, NULL, NULL}};
  static PyType_Slot dtensor_slots[] = {
      {Py_tp_dealloc, dtensor_dealloc}, {Py_tp_methods, dtensor_methods}, {Py_tp_getset, dtensor_members}, {0, NULL}};
  static PyType_Spec dtensor_spec = {"sheaf._core.DTensor", sizeof(dtensor_object), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, dtensor_slots};
  if (add_type(module, "Mesh", &mesh_spec, &state.mesh_type) < 0) return -1;
  if (add_type(module, "DTensor", &dtensor_spec, &state.dtensor_type) < 0) return -1;
  return add_shard_run_functions(module);
}
