/* errors.c: the library's status codes as Python exceptions. */
#include "extension.h"

static PyObject *exception_for(sheaf_status status)
{
  switch (status) {
  case SHEAF_INDEX_OUT_OF_RANGE:
    return PyExc_IndexError;
  case SHEAF_MISALIGNED:
  case SHEAF_INVALID_PROBLEM:
  case SHEAF_BUFFER_TOO_SMALL:
  case SHEAF_WORKSPACE_TOO_SMALL:
    return PyExc_ValueError;
  case SHEAF_UNSUPPORTED:
    return PyExc_NotImplementedError;
  case SHEAF_OUT_OF_MEMORY:
    return PyExc_MemoryError;
  case SHEAF_IO:
    return PyExc_OSError;
  default: /* a device, a plug-in or a rank failed */
    return PyExc_RuntimeError;
  }
}

static int set_number(PyObject *error, const char *name, int64_t number)
{
  PyObject *value = PyLong_FromLongLong(number);
  int failed = !value || PyObject_SetAttrString(error, name, value) < 0;
  Py_XDECREF(value);
  return failed;
}

PyObject *raise_last_error(sheaf_status status)
{
  sheaf_error_info info = sheaf_last_error_info();
  PyObject *type = exception_for(status);
  PyObject *text = PyUnicode_DecodeFSDefault(sheaf_last_error()); /* paths in it are as they were given */
  PyObject *error = text ? PyObject_CallFunctionObjArgs(type, text, NULL) : NULL;
  Py_XDECREF(text);
  if (!error) return NULL;
  if (type == PyExc_IndexError && (set_number(error, "position", info.position) ||
                                   set_number(error, "value", info.value) || set_number(error, "count", info.count)))
    PyErr_Clear();
  PyErr_SetObject(type, error);
  Py_DECREF(error);
  return NULL;
}
