/* embedding_functions.c: embedding and embedding_bag, forward and backward: arguments become calls. */
#include <string.h>

#include "extension.h"

static sheaf_attr *attr(op_call *c, sheaf_embedding_attr which) { return &c->attrs[which]; }

/* The packed rows of a QuantizedTable become a quantised tensor. */
int call_table(op_call *c, int slot, PyObject *weight, const char *name)
{
  if ((PyObject *)Py_TYPE(weight) != state.quantized) return call_input(c, slot, weight, name, TAKE_VALUES);
  PyObject *packed = PyObject_GetAttrString(weight, "packed"), *type = PyObject_GetAttrString(weight, "dtype");
  PyObject *width = PyObject_GetAttrString(weight, "dim");
  sheaf_dtype dtype = SHEAF_DTYPE_NONE;
  int64_t dim = 0;
  int failed = !packed || !type || !width || parse_dtype(type, "dtype", &dtype) < 0 ||
               parse_integer(width, "dim", &dim) < 0 || call_input(c, slot, packed, "packed", TAKE_PACKED) < 0;
  Py_XDECREF(packed);
  Py_XDECREF(type);
  Py_XDECREF(width);
  if (failed) return -1;
  sheaf_tensor *quantized;
  sheaf_status status = sheaf_tensor_quantized(c->input[slot], dtype, dim, &quantized);
  if (status != SHEAF_OK) return raise_last_error(status), -1;
  sheaf_tensor_release(c->input[slot]);
  c->input[slot] = quantized;
  return 0;
}

static int64_t columns(const sheaf_tensor *t, int64_t *rows)
{
  *rows = sheaf_tensor_rank(t) == 2 ? sheaf_tensor_extent(t, 0) : 0;
  return sheaf_tensor_rank(t) == 2 ? sheaf_tensor_extent(t, 1) : 0;
}

/* padding_idx counts from the end when negative, as everywhere in Python. */
static int take_padding(op_call *c, PyObject *value, int64_t rows)
{
  int64_t padding = -1;
  if (value) {
    if (parse_integer(value, "padding_idx", &padding) < 0) return -1;
    if (padding < -rows || padding >= rows) {
      PyErr_Format(PyExc_ValueError, "padding_idx is %lld, outside the %lld rows of the table", (long long)padding,
                   (long long)rows);
      return -1;
    }
    if (padding < 0) padding += rows;
  }
  attr(c, SHEAF_EMBEDDING_PADDING_IDX)->i = padding;
  return 0;
}

static int take_bad_index(op_call *c, PyObject *value)
{
  attr(c, SHEAF_EMBEDDING_BAD_INDEX)->i = SHEAF_BAD_INDEX_ERROR;
  return parse_choice(value, "bad_index", "skip|error", &attr(c, SHEAF_EMBEDDING_BAD_INDEX)->i);
}

/* The type of a forward result: the table's, or of quantised tables f32 unless asked for; within autocast that of the
 * region, but for f64. */
static int take_out_dtype(op_call *c, PyObject *value, sheaf_dtype *dtype)
{
  sheaf_dtype table = sheaf_tensor_dtype(c->input[0]);
  int packed = table == SHEAF_INT8 || table == SHEAF_INT4;
  *dtype = packed ? SHEAF_F32 : table;
  if (parse_dtype(value, "out_dtype", dtype) < 0) return -1;
  if (!packed && *dtype != table) {
    PyErr_Format(PyExc_ValueError, "out_dtype is %s, but the table holds %s; only quantised tables give other types",
                 sheaf_dtype_name(*dtype), sheaf_dtype_name(table));
    return -1;
  }
  if (!value && table != SHEAF_F64 && autocast_dtype()) *dtype = autocast_dtype();
  if (*dtype > SHEAF_BF16) {
    PyErr_Format(PyExc_TypeError, "out_dtype is %s; f32, f16 and bf16 are to be had", sheaf_dtype_name(*dtype));
    return -1;
  }
  attr(c, SHEAF_EMBEDDING_OUT_DTYPE)->i = packed ? *dtype : SHEAF_DTYPE_NONE;
  return 0;
}

/* ---- Lookup ---- */

enum { E_INPUT, E_WEIGHT, E_PADDING_IDX, E_SCALE, E_SPARSE, E_OUT, E_PADDING, E_BAD, E_OUT_DTYPE, E_COUNT };
static parameters embedding_parameters = {
    "embedding",
    E_COUNT,
    5,
    2,
    {"input", "weight", "padding_idx", "scale_grad_by_freq", "sparse", "out", "padding", "bad_index", "out_dtype"},
    {NULL}};

static int ready_embedding(op_call *c, PyObject **v)
{
  int64_t rows, dim, shape[MAX_RANK + 1];
  sheaf_dtype dtype;
  if (call_table(c, 0, v[E_WEIGHT], "weight") < 0) return -1;
  if (call_input(c, 1, v[E_INPUT], "input", TAKE_INDEX) < 0) return -1;
  dim = columns(c->input[0], &rows);
  if (take_padding(c, v[E_PADDING_IDX], rows) < 0 || take_bad_index(c, v[E_BAD]) < 0 ||
      parse_choice(v[E_PADDING], "padding", "zero|row", &attr(c, SHEAF_EMBEDDING_PADDING)->i) < 0 ||
      take_out_dtype(c, v[E_OUT_DTYPE], &dtype) < 0)
    return -1;
  int rank = c->in[1].dl.ndim;
  if (rank >= MAX_RANK) return PyErr_Format(PyExc_ValueError, "input has %d dimensions; at most 7 are taken", rank), -1;
  for (int i = 0; i < rank; i++) shape[i] = c->in[1].dl.shape[i];
  shape[rank] = dim;
  return call_output(c, 0, v[E_OUT], "out", dtype, rank + 1, shape, 0);
}

static PyObject *embedding(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
  (void)self;
  PyObject *v[E_COUNT];
  op_call c;
  if (parse_arguments(&embedding_parameters, args, count, names, v) < 0) return NULL;
  call_begin(&c, SHEAF_OP_EMBEDDING, 2, SHEAF_EMBEDDING_ATTRS);
  int failed = ready_embedding(&c, v) < 0 || call_run(&c) < 0;
  return call_end(&c, failed);
}

/* ---- Its gradient ---- */

enum { EB_GRAD, EB_INPUT, EB_ROWS, EB_PADDING_IDX, EB_SCALE, EB_SPARSE, EB_OUT, EB_BAD, EB_COUNT };
static parameters embedding_backward_parameters = {
    "embedding_backward",
    EB_COUNT,
    6,
    3,
    {"grad_out", "input", "num_weights", "padding_idx", "scale_grad_by_freq", "sparse", "out", "bad_index"},
    {NULL}};

/* What gradients of tables have in common: rows, padding, scaling, sparse (True, or "raw": one row per entry). */
static int ready_table_grad(op_call *c, PyObject *rows, PyObject *padding, PyObject *scale, PyObject *sparse,
                            PyObject *bad, PyObject *out)
{
  int64_t *kind = &attr(c, SHEAF_EMBEDDING_SPARSE)->i;
  if (parse_integer(rows, "num_weights", &attr(c, SHEAF_EMBEDDING_ROWS)->i) < 0) return -1;
  if (attr(c, SHEAF_EMBEDDING_ROWS)->i < 0) {
    PyErr_Format(PyExc_ValueError, "num_weights is %lld", (long long)attr(c, SHEAF_EMBEDDING_ROWS)->i);
    return -1;
  }
  if (take_padding(c, padding, attr(c, SHEAF_EMBEDDING_ROWS)->i) < 0 || take_bad_index(c, bad) < 0 ||
      parse_flag(scale, &attr(c, SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ)->i) < 0)
    return -1;
  if (sparse && PyUnicode_Check(sparse)) {
    if (parse_choice(sparse, "sparse", "|coalesced|raw", kind) < 0) return -1;
  } else if (parse_flag(sparse, kind) < 0) {
    return -1;
  }
  if (*kind && out) {
    PyErr_SetString(PyExc_ValueError, "out is given, but a sparse gradient is always new");
    return -1;
  }
  if (*kind) c->include = 1u << SHEAF_KEY_SPARSE;
  return 0;
}

static int dense_table_grad(op_call *c, PyObject *out, int64_t dim)
{
  const int64_t shape[] = {attr(c, SHEAF_EMBEDDING_ROWS)->i, dim};
  if (attr(c, SHEAF_EMBEDDING_SPARSE)->i) return c->outputs = c->outputs ? c->outputs : 1, 0; /* made by the library */
  return call_output(c, 0, out, "out", sheaf_tensor_dtype(c->input[0]), 2, shape, 0);
}

static int last_extent(const array *a, const char *name, int64_t *extent)
{
  if (a->dl.ndim < 1) return PyErr_Format(PyExc_ValueError, "%s has no dimensions", name), -1;
  *extent = a->dl.shape[a->dl.ndim - 1];
  return 0;
}

static PyObject *embedding_backward(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
  (void)self;
  PyObject *v[EB_COUNT];
  op_call c;
  int64_t dim;
  if (parse_arguments(&embedding_backward_parameters, args, count, names, v) < 0) return NULL;
  call_begin(&c, SHEAF_OP_EMBEDDING_BACKWARD, 2, SHEAF_EMBEDDING_ATTRS);
  int failed =
      call_input(&c, 0, v[EB_GRAD], "grad_out", TAKE_VALUES) < 0 ||
      call_input(&c, 1, v[EB_INPUT], "input", TAKE_INDEX) < 0 || last_extent(&c.in[0], "grad_out", &dim) < 0 ||
      ready_table_grad(&c, v[EB_ROWS], v[EB_PADDING_IDX], v[EB_SCALE], v[EB_SPARSE], v[EB_BAD], v[EB_OUT]) < 0 ||
      dense_table_grad(&c, v[EB_OUT], dim) < 0 || call_run(&c) < 0;
  return call_end(&c, failed);
}

/* ---- Bags ---- */

/* Input 3, the weights. Numbers in a list have no type: they get that of the rows (input 0). */
static int take_weights(op_call *c, PyObject *weights)
{
  if (!weights || !(PyList_Check(weights) || PyTuple_Check(weights)))
    return call_input(c, 3, weights, "per_sample_weights", TAKE_VALUES);
  sheaf_dtype rows = sheaf_tensor_dtype(c->input[0]);
  PyObject *typed = ask_kinds("as_array", weights, sheaf_dtype_name(rows <= SHEAF_BF16 ? rows : SHEAF_F32), NULL);
  int failed = !typed || call_input(c, 3, typed, "per_sample_weights", TAKE_VALUES) < 0;
  Py_XDECREF(typed);
  return failed ? -1 : 0;
}

/* Inputs 1, 2 and 3 of either direction: indices, offsets, weights. */
static int take_bags(op_call *c, PyObject *input, PyObject *offsets, PyObject *weights, PyObject *last, int64_t *bags)
{
  int64_t end = 0;
  if (call_input(c, 1, input, "input", TAKE_INDEX) < 0 || call_input(c, 2, offsets, "offsets", TAKE_INDEX) < 0 ||
      take_weights(c, weights) < 0 || parse_flag(last, &end) < 0)
    return -1;
  const DLTensor *index = &c->in[1].dl, *starts = &c->in[2].dl;
  if (offsets ? index->ndim != 1 || starts->ndim != 1 : index->ndim != 2) {
    PyErr_Format(PyExc_ValueError, "input has %d dimension%s%s; bags are a matrix, or a list of indices with offsets",
                 index->ndim, index->ndim == 1 ? "" : "s",
                 offsets ? " and offsets are given" : " and there are no offsets");
    return -1;
  }
  attr(c, SHEAF_EMBEDDING_BAG_FORM)->i = !offsets ? SHEAF_BAGS_MATRIX
                                         : end    ? SHEAF_BAGS_OFFSETS_END
                                                  : SHEAF_BAGS_OFFSETS;
  *bags = !offsets ? index->shape[0] : starts->shape[0] - end;
  if (*bags >= 0) return 0;
  PyErr_SetString(PyExc_ValueError, "offsets are empty; with include_last_offset they have one entry at least");
  return -1;
}

static int take_mode(op_call *c, PyObject *value)
{
  return parse_choice(value, "mode", "mean|sum|max", &attr(c, SHEAF_EMBEDDING_MODE)->i);
}

enum {
  B_INPUT,
  B_WEIGHT,
  B_OFFSETS,
  B_MODE,
  B_WEIGHTS,
  B_LAST,
  B_PADDING_IDX,
  B_SCALE,
  B_SPARSE,
  B_OUT,
  B_RETURN_ARG,
  B_ARG,
  B_BAD,
  B_OUT_DTYPE,
  B_COUNT
};
static parameters bag_parameters = {"embedding_bag",
                                    B_COUNT,
                                    9,
                                    2,
                                    {"input", "weight", "offsets", "mode", "per_sample_weights", "include_last_offset",
                                     "padding_idx", "scale_grad_by_freq", "sparse", "out", "return_arg", "arg_out",
                                     "bad_index", "out_dtype"},
                                    {NULL}};

static int ready_bag(op_call *c, PyObject **v)
{
  int64_t rows, shape[2], return_arg = v[B_ARG] != NULL;
  sheaf_dtype dtype;
  if (call_table(c, 0, v[B_WEIGHT], "weight") < 0 ||
      take_bags(c, v[B_INPUT], v[B_OFFSETS], v[B_WEIGHTS], v[B_LAST], &shape[0]) < 0)
    return -1;
  shape[1] = columns(c->input[0], &rows);
  if (take_mode(c, v[B_MODE]) < 0 || take_padding(c, v[B_PADDING_IDX], rows) < 0 || take_bad_index(c, v[B_BAD]) < 0 ||
      take_out_dtype(c, v[B_OUT_DTYPE], &dtype) < 0 || parse_flag(v[B_RETURN_ARG], &return_arg) < 0)
    return -1;
  if (call_output(c, 0, v[B_OUT], "out", dtype, 2, shape, 0) < 0) return -1;
  if (!return_arg) return 0;
  c->wanted = 3;
  return call_output(c, 1, v[B_ARG], "arg_out", sheaf_tensor_dtype(c->input[1]), 2, shape, 0);
}

static PyObject *embedding_bag(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
  (void)self;
  PyObject *v[B_COUNT];
  op_call c;
  if (parse_arguments(&bag_parameters, args, count, names, v) < 0) return NULL;
  call_begin(&c, SHEAF_OP_EMBEDDING_BAG, 4, SHEAF_EMBEDDING_ATTRS);
  int failed = ready_bag(&c, v) < 0 || call_run(&c) < 0;
  return call_end(&c, failed);
}

/* ---- Their gradients ---- */

enum {
  BB_GRAD,
  BB_INPUT,
  BB_ROWS,
  BB_OFFSETS,
  BB_MODE,
  BB_WEIGHTS,
  BB_LAST,
  BB_PADDING_IDX,
  BB_SCALE,
  BB_SPARSE,
  BB_WEIGHT,
  BB_FORWARD,
  BB_ARG,
  BB_OUT,
  BB_WEIGHTS_OUT,
  BB_BAD,
  BB_WANT,
  BB_COUNT
};
_Static_assert((int)BB_COUNT <= (int)MAX_PARAMETERS, "parameters");
static parameters bag_backward_parameters = {
    "embedding_bag_backward",
    BB_COUNT,
    10,
    3,
    {"grad_out", "input", "num_weights", "offsets", "mode", "per_sample_weights", "include_last_offset", "padding_idx",
     "scale_grad_by_freq", "sparse", "weight", "forward", "arg", "out", "weights_out", "bad_index", "want"},
    {NULL}};

/* Without a wish, the weights' gradient is made too when there are weights and the table is given. */
static int ready_bag_backward(op_call *c, PyObject **v)
{
  int64_t bags, dim, shape[MAX_RANK], want = v[BB_WEIGHTS] && v[BB_WEIGHT] ? 3 : 1;
  if (call_input(c, 0, v[BB_GRAD], "grad_out", TAKE_VALUES) < 0 || last_extent(&c->in[0], "grad_out", &dim) < 0 ||
      take_bags(c, v[BB_INPUT], v[BB_OFFSETS], v[BB_WEIGHTS], v[BB_LAST], &bags) < 0 || take_mode(c, v[BB_MODE]) < 0 ||
      call_input(c, 4, v[BB_WEIGHT], "weight", TAKE_VALUES) < 0 ||
      call_input(c, 5, v[BB_FORWARD], "forward", TAKE_VALUES) < 0 ||
      call_input(c, 6, v[BB_ARG], "arg", TAKE_INDEX) < 0 ||
      ready_table_grad(c, v[BB_ROWS], v[BB_PADDING_IDX], v[BB_SCALE], v[BB_SPARSE], v[BB_BAD], v[BB_OUT]) < 0 ||
      parse_choice(v[BB_WANT], "want", "|table|weights|both", &want) < 0)
    return -1;
  c->wanted = (unsigned)want;
  if (want & 1 && dense_table_grad(c, v[BB_OUT], dim) < 0) return -1;
  if (!(want & 2)) return 0;
  if (!v[BB_WEIGHTS] || !v[BB_WEIGHT]) {
    PyErr_SetString(PyExc_ValueError, "the weights' gradient is wanted, which takes per_sample_weights and weight");
    return -1;
  }
  const DLTensor *index = &c->in[1].dl;
  for (int i = 0; i < index->ndim; i++) shape[i] = index->shape[i];
  return call_output(c, 1, v[BB_WEIGHTS_OUT], "weights_out", sheaf_tensor_dtype(c->input[3]), index->ndim, shape, 0);
}

static PyObject *embedding_bag_backward(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
  (void)self;
  PyObject *v[BB_COUNT];
  op_call c;
  if (parse_arguments(&bag_backward_parameters, args, count, names, v) < 0) return NULL;
  call_begin(&c, SHEAF_OP_EMBEDDING_BAG_BACKWARD, 7, SHEAF_EMBEDDING_ATTRS);
  int failed = ready_bag_backward(&c, v) < 0 || call_run(&c) < 0;
  return call_end(&c, failed);
}

#define FAST(name, doc)                                                          \
  {                                                                              \
#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL | METH_KEYWORDS, doc \
  }

int add_embedding_functions(PyObject *module)
{
  static PyMethodDef methods[] = {
      FAST(embedding,
           "embedding(input, weight, padding_idx=None, scale_grad_by_freq=False, sparse=False, *, out=None, "
           "padding='zero', bad_index='error', out_dtype=None)\n--\n\n"
           "Rows of a table: out[..., :] = weight[input[...]].\n\n"
           "The row padding_idx comes out as zeros (padding='row': as it is stored). scale_grad_by_freq and sparse\n"
           "belong to the gradient (embedding_backward) and change nothing here. A bad index is an IndexError;\n"
           "bad_index='skip': zeros."),
      FAST(embedding_backward,
           "embedding_backward(grad_out, input, num_weights, padding_idx=None, scale_grad_by_freq=False, sparse=False, "
           "*, out=None, bad_index='error')\n--\n\n"
           "The gradient of embedding's table [num_weights, D]. sparse=True: the touched rows only, as\n"
           "(row numbers, rows), each row once and with the dense gradient's bits; sparse='raw': a row per entry."),
      FAST(embedding_bag,
           "embedding_bag(input, weight, offsets=None, mode='mean', per_sample_weights=None, "
           "include_last_offset=False, padding_idx=None, scale_grad_by_freq=False, sparse=False, *, out=None, "
           "return_arg=False, arg_out=None, bad_index='error', out_dtype=None)\n--\n\n"
           "Rows of a table, reduced bag by bag: sum, mean or max. Bags are the rows of a matrix of indices, or\n"
           "begin at offsets. return_arg=True (max): also which row gave each maximum, -1 for none."),
      FAST(embedding_bag_backward,
           "embedding_bag_backward(grad_out, input, num_weights, offsets=None, mode='mean', per_sample_weights=None, "
           "include_last_offset=False, padding_idx=None, scale_grad_by_freq=False, sparse=False, *, weight=None, "
           "forward=None, arg=None, out=None, weights_out=None, bad_index='error', want=None)\n--\n\n"
           "The gradient of embedding_bag's table. mode='max' takes the arg of the forward call. With\n"
           "per_sample_weights and weight (mean: and the forward result) also the weights' gradient:\n"
           "(table's, weights'); want='table', 'weights' or 'both' says which."),
      {NULL, NULL, 0, NULL}};
  return PyModule_AddFunctions(module, methods);
}
