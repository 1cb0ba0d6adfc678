/* arguments.c: arguments by place and by name, and the values they may have. */
#include <string.h>

#include "extension.h"

static int intern_names(parameters *p)
{
  for (int i = 0; i < p->count; i++) {
    PyObject *name = PyUnicode_InternFromString(p->names[i]);
    if (!name) return -1;
    p->interned[i] = name;
  }
  return 0;
}

/* Names at a place of the call are nearly always the very strings that were interned here. */
static int find_name(const parameters *p, PyObject *name)
{
  for (int i = 0; i < p->count; i++)
    if (p->interned[i] == name) return i;
  for (int i = 0; i < p->count; i++)
    if (PyUnicode_CompareWithASCIIString(name, p->names[i]) == 0) return i;
  return -1;
}

int parse_arguments(parameters *p, PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **values)
{
  return parse_arguments_of(p, p->function, args, count, names, values);
}

int parse_arguments_of(parameters *p, const char *function, PyObject *const *args, Py_ssize_t count, PyObject *names,
                       PyObject **values)
{
  if (!p->interned[0] && intern_names(p) < 0) return -1;
  if (count > p->positional) {
    PyErr_Format(PyExc_TypeError, "%s() takes %d arguments by place, %zd were given", function, p->positional, count);
    return -1;
  }
  for (int i = 0; i < p->count; i++) values[i] = i < count ? args[i] : NULL;
  Py_ssize_t named = names ? PyTuple_Size(names) : 0;
  for (Py_ssize_t i = 0; i < named; i++) {
    PyObject *name = PyTuple_GetItem(names, i);
    int at = find_name(p, name);
    if (at < 0 || values[at]) {
      PyErr_Format(PyExc_TypeError, at < 0 ? "%s() has no argument '%U'" : "%s() got argument '%U' twice", function,
                   name);
      return -1;
    }
    values[at] = args[count + i];
  }
  for (int i = 0; i < p->count; i++) {
    if (values[i] == Py_None) values[i] = NULL;
    if (i < p->required && !values[i]) {
      PyErr_Format(PyExc_TypeError, "%s() needs the argument '%s'", function, p->names[i]);
      return -1;
    }
  }
  return 0;
}

/* Whether text is the word that starts at `word` and ends at | or the end. */
static int is_word(const char *text, Py_ssize_t length, const char *word)
{
  size_t size = strcspn(word, "|");
  return (size_t)length == size && memcmp(text, word, size) == 0;
}

int parse_choice(PyObject *value, const char *name, const char *words, int64_t *choice)
{
  if (!value) return 0;
  Py_ssize_t length;
  const char *text = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, &length) : NULL;
  if (text) {
    int64_t number = 0;
    for (const char *word = words;; word++, number++) {
      if (is_word(text, length, word)) {
        *choice = number;
        return 0;
      }
      if (!(word = strchr(word, '|'))) break;
    }
  }
  if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "%s is %R; it is one of %s", name, value, words);
  return -1;
}

int parse_flag(PyObject *value, int64_t *flag)
{
  if (!value) return 0;
  int truth = PyObject_IsTrue(value);
  *flag = truth;
  return truth < 0 ? -1 : 0;
}

int parse_integer(PyObject *value, const char *name, int64_t *integer)
{
  if (!value) return 0;
  PyObject *number = PyNumber_Index(value);
  if (!number) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s is %R; an integer is needed", name, value);
    return -1;
  }
  long long result = PyLong_AsLongLong(number);
  Py_DECREF(number);
  if (result == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    PyErr_Format(PyExc_ValueError, "%s is %R, beyond 64 bits", name, value);
    return -1;
  }
  *integer = result;
  return 0;
}

int parse_integers(PyObject *value, const char *name, int64_t *list, int room)
{
  PyObject *items = PySequence_Tuple(value);
  if (!items) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s is %R; a sequence of integers is needed", name, value);
    return -1;
  }
  Py_ssize_t count = PyTuple_Size(items);
  int failed = 0;
  if (count > room) {
    PyErr_Format(PyExc_ValueError, "%s has %zd entries; at most %d are taken", name, count, room);
    failed = 1;
  }
  for (Py_ssize_t i = 0; i < count && !failed; i++)
    failed = parse_integer(PyTuple_GetItem(items, i), name, &list[i]) < 0;
  Py_DECREF(items);
  return failed ? -1 : (int)count;
}

int parse_dtype(PyObject *value, const char *name, sheaf_dtype *dtype)
{
  static const struct {
    const char *name;
    sheaf_dtype dtype;
  } others[] = {{"float32", SHEAF_F32}, {"float64", SHEAF_F64}, {"float16", SHEAF_F16}, {"bfloat16", SHEAF_BF16},
                {"int32", SHEAF_I32},   {"int64", SHEAF_I64},   {"uint8", SHEAF_U8}};
  if (!value) return 0;
  if (PyUnicode_Check(value)) {
    for (int d = SHEAF_F32; d <= SHEAF_INT4; d++)
      if (PyUnicode_CompareWithASCIIString(value, sheaf_dtype_name((sheaf_dtype)d)) == 0) {
        *dtype = (sheaf_dtype)d;
        return 0;
      }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
      if (PyUnicode_CompareWithASCIIString(value, others[i].name) == 0) {
        *dtype = others[i].dtype;
        return 0;
      }
  }
  PyErr_Format(PyExc_TypeError, "%s is %R; it is a name such as 'f32', 'bf16', 'i64' or 'int8'", name, value);
  return -1;
}

PyObject *tuple_of(const int64_t *list, int count)
{
  PyObject *tuple = PyTuple_New(count);
  for (int i = 0; tuple && i < count; i++) {
    PyObject *number = PyLong_FromLongLong(list[i]);
    if (!number || PyTuple_SetItem(tuple, i, number) < 0) {
      Py_DECREF(tuple);
      return NULL;
    }
  }
  return tuple;
}

int parse_kind(PyObject *value, sheaf_category *category, uint16_t *kind)
{
  for (int c = 0; c < 2; c++)
    for (uint16_t k = 0; sheaf_kind_name((sheaf_category)c, k); k++)
      if (PyUnicode_Check(value) &&
          PyUnicode_CompareWithASCIIString(value, sheaf_kind_name((sheaf_category)c, k)) == 0) {
        *category = (sheaf_category)c;
        *kind = k;
        return 0;
      }
  PyErr_Format(PyExc_ValueError, "kind is %R; it is an op such as 'bag_sum' or 'segment_max_backward'", value);
  return -1;
}
