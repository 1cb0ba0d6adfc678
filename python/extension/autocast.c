/* autocast.c: regions in which lookups and bags compute on tables cast to 16 bits (sheaf/_records.py wraps them).
 *
 * The library casts a table once and keeps the cast while it knows the table's tensor; so within a region an array keeps
 * its tensor, where elsewhere each call borrows one. */
#include "extension.h"

enum { MOST_NESTED = 16, MOST_TABLES = 32 };

static _Thread_local struct {
  int depth;
  sheaf_dtype dtype[MOST_NESTED];
  PyObject *tables; /* as `traced` of records.c */
} region;

sheaf_dtype autocast_dtype(void) { return region.depth ? region.dtype[region.depth - 1] : SHEAF_DTYPE_NONE; }

PyObject *autocast_tables(void)
{
  if (!autocast_dtype()) return NULL;
  if (region.tables && PyDict_Size(region.tables) >= MOST_TABLES) PyDict_Clear(region.tables);
  return region.tables;
}

/* autocast_begin(dtype): "f16", "bf16", or None to leave tables as they are. */
static PyObject *autocast_begin(PyObject *self, PyObject *value)
{
  (void)self;
  sheaf_dtype dtype = SHEAF_DTYPE_NONE;
  if (value != Py_None && parse_dtype(value, "dtype", &dtype) < 0) return NULL;
  if (region.depth == MOST_NESTED)
    return PyErr_Format(PyExc_ValueError, "autocast is nested more than %d times", (int)MOST_NESTED);
  if (!region.tables && !(region.tables = PyDict_New())) return NULL;
  sheaf_status status = sheaf_autocast_begin(dtype);
  if (status != SHEAF_OK) return raise_last_error(status);
  region.dtype[region.depth++] = dtype;
  return Py_NewRef(Py_None);
}

static PyObject *autocast_end(PyObject *self, PyObject *unused)
{
  (void)self;
  (void)unused;
  sheaf_status status = sheaf_autocast_end();
  if (status != SHEAF_OK) return raise_last_error(status);
  if (--region.depth == 0) Py_CLEAR(region.tables);
  return Py_NewRef(Py_None);
}

int add_autocast_functions(PyObject *module)
{
  static PyMethodDef methods[] = {{"autocast_begin", autocast_begin, METH_O, NULL},
                                  {"autocast_end", autocast_end, METH_NOARGS, NULL},
                                  {NULL, NULL, 0, NULL}};
  return PyModule_AddFunctions(module, methods);
}
