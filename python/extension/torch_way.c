/* torch_way.c: which way a call of sheaf.torch takes. PyTorch's machinery around custom ops and graphs takes longer than
 * a small lookup, so calls in which it has nothing to do go straight to the kernel. */
#include "extension.h"

/* PyTorch's types and functions, said by sheaf/torch.py. */
static PyObject *tensor_type, *parameter_type, *modes, *transforms, *tracer, *grad_enabled;
static PyObject *requires_grad, *is_meta;

/* set_torch(Tensor, Parameter, modes, transforms, tracer, is_grad_enabled): `modes` counts the dispatch modes that are on;
 * `transforms` and `tracer` give None when no function transform is, and no torch.jit.trace. */
static PyObject *set_torch(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
  (void)self;
  PyObject **places[] = {&tensor_type, &parameter_type, &modes, &transforms, &tracer, &grad_enabled};
  enum { NEEDED = sizeof places / sizeof *places };
  if (count != NEEDED) return PyErr_Format(PyExc_TypeError, "%d arguments are needed, not %zd", (int)NEEDED, count);
  for (int i = 0; i < NEEDED; i++) {
    Py_XDECREF(*places[i]);
    *places[i] = Py_NewRef(args[i]);
  }
  if (!requires_grad) requires_grad = PyUnicode_InternFromString("requires_grad");
  if (!is_meta) is_meta = PyUnicode_InternFromString("is_meta");
  return requires_grad && is_meta ? Py_NewRef(Py_None) : NULL;
}

/* Whether a function of PyTorch's gives this very object; 0 when it fails. */
static int gives(PyObject *function, PyObject *expected)
{
  PyObject *answer = PyObject_CallNoArgs(function);
  int same = answer == expected;
  if (!answer) PyErr_Clear();
  Py_XDECREF(answer);
  return same;
}

static int has_true(PyObject *object, PyObject *attribute)
{
  PyObject *answer = PyObject_GetAttr(object, attribute);
  if (!answer) PyErr_Clear();
  Py_XDECREF(answer);
  return answer == Py_True;
}

int torch_records_gradients(void)
{
  if (!grad_enabled) { /* tensors may come before sheaf.torch does */
    PyObject *torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
    if (torch) grad_enabled = PyObject_GetAttrString(torch, "is_grad_enabled");
    PyErr_Clear();
  }
  return !grad_enabled || !gives(grad_enabled, Py_False);
}

enum { BY_OP, BY_KERNEL, BY_NODE };

/* Arguments that no mode or compiler looks into. */
static int is_simple(PyObject *value)
{
  return value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) || PyUnicode_CheckExact(value);
}

/* torch_way(*args): 0 the custom op: something is not plain (a mode, a transform, a trace, a tensor of another type, a
 * meta tensor); 1 the kernel: no gradient is wanted; 2 a node of the graph. */
static PyObject *torch_way(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
  (void)self;
  int way = BY_KERNEL;
  PyObject *none = modes ? PyObject_CallNoArgs(modes) : NULL;
  long on = none ? PyLong_AsLong(none) : -1;
  Py_XDECREF(none);
  PyErr_Clear();
  if (on != 0 || !gives(transforms, Py_None) || !gives(tracer, Py_None)) return PyLong_FromLong(BY_OP);
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *type = (PyObject *)Py_TYPE(args[i]);
    if (type == tensor_type || type == parameter_type) {
      if (has_true(args[i], is_meta)) return PyLong_FromLong(BY_OP);
      if (way == BY_KERNEL && has_true(args[i], requires_grad)) way = BY_NODE;
    } else if (!is_simple(args[i])) {
      return PyLong_FromLong(BY_OP);
    }
  }
  return PyLong_FromLong(way == BY_NODE && !torch_records_gradients() ? BY_KERNEL : way);
}

int add_torch_functions(PyObject *module)
{
  static PyMethodDef methods[] = {{"set_torch", (PyCFunction)(void (*)(void))set_torch, METH_FASTCALL, NULL},
                                  {"torch_way", (PyCFunction)(void (*)(void))torch_way, METH_FASTCALL, NULL},
                                  {NULL, NULL, 0, NULL}};
  return PyModule_AddFunctions(module, methods);
}
