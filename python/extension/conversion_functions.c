/* conversion_functions.c: rows packed as int8 or int4 and back; the rows of a table that are nearest to others. */
#include <string.h>

#include "extension.h"

/* ---- Quantised rows ---- */

static int check_packed(sheaf_dtype dtype)
{
  if (dtype == SHEAF_INT8 || dtype == SHEAF_INT4) return 0;
  PyErr_Format(PyExc_ValueError, "dtype is %s; rows are packed as int8 or int4", sheaf_dtype_name(dtype));
  return -1;
}

/* One input, one attribute, a result that the library makes. */
static PyObject *run_conversion(op_call *c, sheaf_dtype dtype)
{
  c->attrs[0].i = dtype;
  c->outputs = 1;
  return call_end(c, call_run(c) < 0);
}

/* quantize_rows(rows, dtype): u8 [V, bytes of a packed row] */
static PyObject *quantize_rows(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
  (void)self;
  sheaf_dtype dtype = SHEAF_DTYPE_NONE;
  op_call c;
  if (count != 2) return PyErr_Format(PyExc_TypeError, "rows and dtype are needed, not %zd arguments", count);
  if (parse_dtype(args[1], "dtype", &dtype) < 0 || check_packed(dtype) < 0) return NULL;
  call_begin(&c, SHEAF_OP_QUANTIZE, 1, 1);
  if (call_input(&c, 0, args[0], "rows", TAKE_VALUES) < 0) return call_end(&c, 1);
  if (c.in[0].dl.ndim != 2) {
    PyErr_Format(PyExc_ValueError, "rows have %d dimension%s; 2 are needed", c.in[0].dl.ndim,
                 c.in[0].dl.ndim == 1 ? "" : "s");
    return call_end(&c, 1);
  }
  return run_conversion(&c, dtype);
}

/* dequantize_rows(table, dtype): a QuantizedTable as [V, D] of f32, f64, f16 or bf16 */
static PyObject *dequantize_rows(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
  (void)self;
  sheaf_dtype dtype = SHEAF_F32;
  op_call c;
  if (count != 2) return PyErr_Format(PyExc_TypeError, "a table and dtype are needed, not %zd arguments", count);
  if (parse_dtype(args[1], "dtype", &dtype) < 0) return NULL;
  if (dtype > SHEAF_BF16)
    return PyErr_Format(PyExc_ValueError, "dtype is %s; rows come back as f32, f64, f16 or bf16",
                        sheaf_dtype_name(dtype));
  if ((PyObject *)Py_TYPE(args[0]) != state.quantized)
    return PyErr_Format(PyExc_TypeError, "table is %R; a QuantizedTable is needed", (PyObject *)Py_TYPE(args[0]));
  call_begin(&c, SHEAF_OP_DEQUANTIZE, 1, 1);
  if (call_table(&c, 0, args[0], "table") < 0) return call_end(&c, 1);
  return run_conversion(&c, dtype);
}

/* ---- Nearest rows ---- */

/* A search for each of `queries` rows; the arrays of its results. */
typedef struct search {
  op_call c; /* holds table and query */
  sheaf_nearest_desc desc;
  sheaf_tensor *query; /* in the type that scores are computed in */
  int64_t queries, found;
  array excluded; /* one row for each query; object NULL: desc's, if any */
  PyObject *result[2];
  array to[2]; /* rows [queries, found], scores */
} search;

static int ready_query(search *s)
{
  const sheaf_tensor *table = s->c.input[0];
  const DLTensor *q = &s->c.in[1].dl;
  sheaf_dtype dtype = sheaf_tensor_dtype(table), needed = dtype == SHEAF_F64 ? SHEAF_F64 : SHEAF_F32;
  if (sheaf_tensor_rank(table) != 2 || q->ndim < 1 || q->ndim > 2)
    return PyErr_Format(PyExc_ValueError, "table has %d dimensions and query %d; a table has 2, queries 1 or 2",
                        sheaf_tensor_rank(table), q->ndim),
           -1;
  if (q->device.device_type != kDLCPU)
    return PyErr_SetString(PyExc_NotImplementedError, "nearest rows are searched on the CPU only"), -1;
  s->queries = q->ndim == 2 ? q->shape[0] : 1;
  s->desc.dtype = dtype;
  s->desc.rows = sheaf_tensor_extent(table, 0);
  s->desc.dim = sheaf_tensor_extent(table, 1);
  if (q->shape[q->ndim - 1] != s->desc.dim)
    return PyErr_Format(PyExc_ValueError, "query has %lld columns, the table %lld", (long long)q->shape[q->ndim - 1],
                        (long long)s->desc.dim),
           -1;
  sheaf_status status = sheaf_cast(s->c.input[1], needed, &s->query);
  return status == SHEAF_OK ? 0 : (raise_last_error(status), -1);
}

static int check_excluded(const search *s, int64_t row)
{
  if (row >= 0 && row < s->desc.rows) return 0;
  PyErr_Format(PyExc_IndexError, "exclude: %lld is outside the %lld rows of the table", (long long)row,
               (long long)s->desc.rows);
  return -1;
}

static void *start_of(const array *a) { return (char *)a->dl.data + a->dl.byte_offset; }

static int64_t excluded_at(const search *s, int64_t number)
{
  const void *rows = start_of(&s->excluded);
  return s->excluded.dtype == SHEAF_I32 ? ((const int32_t *)rows)[number] : ((const int64_t *)rows)[number];
}

/* exclude: the number of a row for all queries, or one for each. */
static int ready_excluded(search *s, PyObject *exclude)
{
  if (!exclude) return 0;
  s->desc.has_excluded = 1;
  if (PyLong_Check(exclude)) {
    if (parse_integer(exclude, "exclude", &s->desc.excluded) < 0) return -1;
    return check_excluded(s, s->desc.excluded);
  }
  if (array_take(exclude, "exclude", TAKE_INDEX, &s->excluded) < 0) return -1;
  if (array_elements(&s->excluded) != s->queries || s->excluded.dl.device.device_type != kDLCPU)
    return PyErr_Format(PyExc_ValueError,
                        "exclude has %lld entries for %lld queries; one for each is needed, on the CPU",
                        (long long)array_elements(&s->excluded), (long long)s->queries),
           -1;
  for (int64_t i = 0; i < s->queries; i++)
    if (check_excluded(s, excluded_at(s, i)) < 0) return -1;
  return 0;
}

/* Every search finds as many: k, or all rows but those that are excluded. */
static int ready_results(search *s)
{
  const DLTensor *q = &s->c.in[1].dl;
  int64_t most = s->desc.rows - (s->desc.has_excluded && s->desc.rows > 0);
  s->found = s->desc.k < most ? s->desc.k : most;
  int64_t shape[] = {s->queries, s->found};
  sheaf_dtype types[] = {SHEAF_I64, s->desc.dtype == SHEAF_F64 ? SHEAF_F64 : SHEAF_F32};
  for (int i = 0; i < 2; i++) {
    s->result[i] = array_make(&s->c.in[0], types[i], q->ndim, q->ndim == 2 ? shape : shape + 1);
    if (!s->result[i] || array_take(s->result[i], "result", TAKE_ANY | TAKE_WRITE | TAKE_NEW, &s->to[i]) < 0) return -1;
  }
  return 0;
}

static sheaf_status search_one(search *s, int64_t number, sheaf_neighbour *best)
{
  const DLTensor *all = sheaf_tensor_dl(s->query);
  DLTensor one = *all;
  int64_t count = 0, dim = s->desc.dim, unit = 1, step = all->ndim == 2 && all->strides ? all->strides[0] : dim;
  sheaf_operand table = {sheaf_tensor_dl(s->c.input[0]), 0}, query = {&one, 0};
  one.ndim = 1;
  one.shape = &dim;
  one.strides = &unit;
  one.byte_offset += (uint64_t)(number * step) * (all->dtype.bits / 8u);
  if (s->excluded.object) s->desc.excluded = excluded_at(s, number);
  sheaf_status status = sheaf_nearest(&s->desc, &table, &query, best, &count);
  int64_t *rows = (int64_t *)start_of(&s->to[0]) + number * s->found;
  void *scores = start_of(&s->to[1]);
  for (int64_t i = 0; status == SHEAF_OK && i < count; i++) {
    rows[i] = best[i].row;
    if (s->desc.dtype == SHEAF_F64)
      ((double *)scores)[number * s->found + i] = best[i].score;
    else
      ((float *)scores)[number * s->found + i] = (float)best[i].score;
  }
  return status;
}

static int search_all(search *s)
{
  sheaf_status status = SHEAF_OK;
  sheaf_neighbour *best = PyMem_Malloc(sizeof *best * (size_t)(s->found > 0 ? s->found : 1));
  if (!best) return PyErr_NoMemory(), -1;
  s->desc.k = s->found;
  Py_BEGIN_ALLOW_THREADS
  for (int64_t i = 0; i < s->queries && s->found > 0 && status == SHEAF_OK; i++) status = search_one(s, i, best);
  Py_END_ALLOW_THREADS
  PyMem_Free(best);
  return status == SHEAF_OK ? 0 : (raise_last_error(status), -1);
}

enum { N_QUERY, N_TABLE, N_K, N_METRIC, N_EXCLUDE, N_COUNT };
static parameters nearest_parameters = {"nearest", N_COUNT, 3, 2, {"query", "table", "k", "metric", "exclude"}, {NULL}};

static int ready_search(search *s, PyObject **v)
{
  int64_t metric = SHEAF_METRIC_COSINE;
  s->desc.k = 10;
  if (parse_choice(v[N_METRIC], "metric", "cosine|dot|l2", &metric) < 0 || parse_integer(v[N_K], "k", &s->desc.k) < 0 ||
      call_table(&s->c, 0, v[N_TABLE], "table") < 0 || call_input(&s->c, 1, v[N_QUERY], "query", TAKE_VALUES) < 0)
    return -1;
  s->desc.metric = (sheaf_metric)metric;
  if (s->desc.k < 1) return PyErr_Format(PyExc_ValueError, "k is %lld; at least 1", (long long)s->desc.k), -1;
  return ready_query(s) < 0 || ready_excluded(s, v[N_EXCLUDE]) < 0 || ready_results(s) < 0 ? -1 : 0;
}

static PyObject *nearest(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
  (void)self;
  PyObject *v[N_COUNT], *both = NULL;
  search s = {.desc = SHEAF_NEAREST_DESC_INIT};
  if (parse_arguments(&nearest_parameters, args, count, names, v) < 0) return NULL;
  call_begin(&s.c, SHEAF_OP_EMBEDDING, 2, 0); /* for its inputs */
  int failed = ready_search(&s, v) < 0 || search_all(&s) < 0;
  for (int i = 0; i < 2; i++) {
    array_drop(&s.to[i]);
    if (!failed) s.result[i] = array_finish(&s.c.in[0], s.result[i]);
    failed = failed || !s.result[i];
  }
  if (!failed) both = PyTuple_Pack(2, s.result[0], s.result[1]);
  for (int i = 0; i < 2; i++) Py_XDECREF(s.result[i]);
  array_drop(&s.excluded);
  sheaf_tensor_release(s.query);
  call_end(&s.c, 1);
  return both;
}

int add_conversion_functions(PyObject *module)
{
  static PyMethodDef methods[] = {
      {"quantize_rows", (PyCFunction)(void (*)(void))quantize_rows, METH_FASTCALL, NULL},
      {"dequantize_rows", (PyCFunction)(void (*)(void))dequantize_rows, METH_FASTCALL, NULL},
      {"nearest", (PyCFunction)(void (*)(void))nearest, METH_FASTCALL | METH_KEYWORDS,
       "nearest(query, table, k=10, *, metric='cosine', exclude=None)\n--\n\n"
       "The k rows of a table that are nearest to a query [D], or to each of several [Q, D]: (row numbers, scores),\n"
       "nearest first, exact. metric: 'cosine' or 'dot' (the largest is the nearest), 'l2' (the squared distance).\n"
       "exclude: a row that is left out, such as the query's own; for several queries also one for each. On the CPU."},
      {NULL, NULL, 0, NULL}};
  return PyModule_AddFunctions(module, methods);
}
