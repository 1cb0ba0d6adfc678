/* segment_functions.c: segment_sum ... unsorted_segment_prod_backward: twenty functions of two bodies. What a function
 * reduces by is in its `self`, a number. */
#include "extension.h"

enum { SORTED = 8, BACKWARD = 16 }; /* beside a sheaf_reduce */

static sheaf_attr *attr(op_call *c, sheaf_segment_attr which) { return &c->attrs[which]; }

static int begin(op_call *c, PyObject *self, PyObject *bad)
{
  long code = PyLong_AsLong(self);
  int backward = (code & BACKWARD) != 0;
  call_begin(c, backward ? SHEAF_OP_SEGMENT_REDUCE_BACKWARD : SHEAF_OP_SEGMENT_REDUCE, backward ? 4 : 2,
             SHEAF_SEGMENT_ATTRS);
  attr(c, SHEAF_SEGMENT_REDUCE)->i = code & 7;
  attr(c, SHEAF_SEGMENT_SORTED)->i = (code & SORTED) != 0;
  attr(c, SHEAF_SEGMENT_BAD_INDEX)->i = SHEAF_BAD_INDEX_ERROR;
  return parse_choice(bad, "bad_index", "skip|error", &attr(c, SHEAF_SEGMENT_BAD_INDEX)->i);
}

/* The functions' names, by what is in their `self`. */
static const char *function_names[2 * BACKWARD];

static const char *name_of(PyObject *self) { return function_names[PyLong_AsLong(self) & (2 * BACKWARD - 1)]; }

/* The shape of an array with another first extent; its rank. */
static int shape_with(const array *a, int64_t first, int64_t *shape)
{
  if (a->whole_rank == 0)
    return PyErr_SetString(PyExc_ValueError, "the data have no dimensions; the first one are the rows"), -1;
  shape[0] = first;
  for (int i = 1; i < a->whole_rank; i++) shape[i] = a->whole_shape[i];
  return a->whole_rank;
}

enum { F_DATA, F_IDS, F_SEGMENTS, F_OUT, F_RETURN_ARG, F_ARG, F_EMPTY, F_BAD, F_COUNT };
static parameters forward_parameters = {
    "segment reduction",
    F_COUNT,
    3,
    3,
    {"data", "segment_ids", "num_segments", "out", "return_arg", "arg_out", "empty", "bad_index"},
    {NULL}};

/* Ids are one for each row; an array of another rank is refused by the library. */
static int check_ids(const op_call *c)
{
  const array *data = &c->in[0], *ids = &c->in[1];
  int64_t rows = data->whole_rank ? data->whole_shape[0] : 0, count = array_elements(ids);
  if (ids->dl.ndim != 1 || count == rows || data->whole_rank == 0) return 0;
  PyErr_Format(PyExc_ValueError, "segment_ids has %lld entr%s, data has %lld row%s; each row needs its id",
               (long long)count, count == 1 ? "y" : "ies", (long long)rows, rows == 1 ? "" : "s");
  return -1;
}

static int ready_forward(op_call *c, PyObject **v)
{
  int64_t shape[MAX_RANK], return_arg = v[F_ARG] != NULL, *segments = &attr(c, SHEAF_SEGMENT_SEGMENTS)->i;
  if (call_input(c, 0, v[F_DATA], "data", TAKE_VALUES | TAKE_FLAT) < 0 ||
      call_input(c, 1, v[F_IDS], "segment_ids", TAKE_INDEX) < 0 ||
      parse_integer(v[F_SEGMENTS], "num_segments", segments) < 0 || parse_flag(v[F_RETURN_ARG], &return_arg) < 0 ||
      parse_choice(v[F_EMPTY], "empty", "neutral|identity", &attr(c, SHEAF_SEGMENT_EMPTY)->i) < 0)
    return -1;
  if (check_ids(c) < 0) return -1;
  if (*segments < 0) return PyErr_Format(PyExc_ValueError, "num_segments is %lld", (long long)*segments), -1;
  int rank = shape_with(&c->in[0], *segments, shape);
  if (rank < 0 || call_output(c, 0, v[F_OUT], "out", c->in[0].dtype, rank, shape, 1) < 0) return -1;
  if (!return_arg) return 0;
  c->wanted = 3;
  return call_output(c, 1, v[F_ARG], "arg_out", c->in[1].dtype, rank, shape, 1);
}

static PyObject *reduce(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
  PyObject *v[F_COUNT];
  op_call c;
  if (parse_arguments_of(&forward_parameters, name_of(self), args, count, names, v) < 0) return NULL;
  int failed = begin(&c, self, v[F_BAD]) < 0 || ready_forward(&c, v) < 0 || call_run(&c) < 0;
  return call_end(&c, failed);
}

enum { G_GRAD, G_IDS, G_DATA, G_ARG, G_OUT, G_TIES, G_BAD, G_COUNT };
static parameters backward_parameters = {
    "segment gradient", G_COUNT, 2, 2, {"grad_out", "segment_ids", "data", "arg", "out", "ties", "bad_index"}, {NULL}};

static int ready_backward(op_call *c, PyObject **v)
{
  int64_t shape[MAX_RANK];
  if (call_input(c, 0, v[G_GRAD], "grad_out", TAKE_VALUES | TAKE_FLAT) < 0 ||
      call_input(c, 1, v[G_IDS], "segment_ids", TAKE_INDEX) < 0 ||
      call_input(c, 2, v[G_DATA], "data", TAKE_VALUES | TAKE_FLAT) < 0 ||
      call_input(c, 3, v[G_ARG], "arg", TAKE_INDEX | TAKE_FLAT) < 0 ||
      parse_choice(v[G_TIES], "ties", "first|split", &attr(c, SHEAF_SEGMENT_TIES)->i) < 0)
    return -1;
  int rank = shape_with(&c->in[0], array_elements(&c->in[1]), shape);
  return rank < 0 ? -1 : call_output(c, 0, v[G_OUT], "out", c->in[0].dtype, rank, shape, 1);
}

static PyObject *reduce_backward(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
  PyObject *v[G_COUNT];
  op_call c;
  if (parse_arguments_of(&backward_parameters, name_of(self), args, count, names, v) < 0) return NULL;
  int failed = begin(&c, self, v[G_BAD]) < 0 || ready_backward(&c, v) < 0 || call_run(&c) < 0;
  return call_end(&c, failed);
}

/* ---- The twenty ---- */

#define FORWARD_DOC                                                                                                   \
  "(data, segment_ids, num_segments, *, out=None, return_arg=False, arg_out=None, empty='neutral', "                  \
  "bad_index='error')\n--\n\nReduces the rows of data that have the same id. Segments without rows give 0 (prod: 1);" \
  "\nempty='identity': NaN of a mean, -inf of a max, inf of a min. return_arg=True (max, min): also which row\ngave " \
  "each extreme, -1 for none."
#define BACKWARD_DOC                                                                                                   \
  "(grad_out, segment_ids, *, data=None, arg=None, out=None, ties='first', bad_index='error')\n--\n\nThe gradient of " \
  "the data. max and min take the data or the arg of the forward call, prod the data.\nties='split': rows that share " \
  "an extreme share its gradient."

#define ENTRY(name, reduction, flags)                                                                \
  {{#name, (PyCFunction)(void (*)(void))reduce, METH_FASTCALL | METH_KEYWORDS, #name FORWARD_DOC},   \
   SHEAF_REDUCE_##reduction | (flags)},                                                              \
  {                                                                                                  \
    {#name "_backward", (PyCFunction)(void (*)(void))reduce_backward, METH_FASTCALL | METH_KEYWORDS, \
     #name "_backward" BACKWARD_DOC},                                                                \
        SHEAF_REDUCE_##reduction | (flags) | BACKWARD                                                \
  }
#define ENTRIES(prefix, flags)                                                                         \
  ENTRY(prefix##_sum, SUM, flags), ENTRY(prefix##_mean, MEAN, flags), ENTRY(prefix##_max, MAX, flags), \
      ENTRY(prefix##_min, MIN, flags), ENTRY(prefix##_prod, PROD, flags)

int add_segment_functions(PyObject *module)
{
  static struct {
    PyMethodDef method;
    int code;
  } entries[] = {ENTRIES(segment, SORTED), ENTRIES(unsorted_segment, 0)};
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
    function_names[entries[i].code] = entries[i].method.ml_name;
    PyObject *code = PyLong_FromLong(entries[i].code);
    PyObject *function = code ? PyCFunction_New(&entries[i].method, code) : NULL;
    int failed = !function || PyModule_AddObjectRef(module, entries[i].method.ml_name, function) < 0;
    Py_XDECREF(code);
    Py_XDECREF(function);
    if (failed) return -1;
  }
  return 0;
}
