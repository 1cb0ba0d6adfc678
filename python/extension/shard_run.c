/* shard_run.c: ops on tensors that are spread over a mesh. */
#include <string.h>

#include "shard_objects.h"

/* What both families take: operands by place, options by name, where the results shall lie. */
enum {
  R_KIND,
  R_OPERANDS,
  R_OUT,
  R_PADDING_IDX,
  R_PADDING,
  R_BAD,
  R_FORM,
  R_SCALE,
  R_ROWS,
  R_WANTED,
  R_EMPTY,
  R_TIES,
  R_COUNT
};
static parameters run_parameters = {"run",
                                    R_COUNT,
                                    2,
                                    2,
                                    {"kind", "operands", "out", "padding_idx", "padding", "bad_index", "bag_form",
                                     "scale_grad_by_freq", "rows", "wanted", "empty", "ties"},
                                    {NULL}};

enum { MOST_OPERANDS = 7, MOST_RESULTS = 2 };

typedef struct shard_run {
  mesh_object *mesh; /* of the first operand */
  const sheaf_dtensor *operand[MOST_OPERANDS];
  sheaf_dtensor *made[MOST_RESULTS];
  sheaf_placement out[SHEAF_MESH_MAX_DIMS];
  sheaf_strategy chosen;
  sheaf_shard_call call;
  int64_t wanted; /* bit 0, 1: which results */
} shard_run;

static int take_operands(shard_run *r, PyObject *operands)
{
  Py_ssize_t count = PyTuple_Check(operands) ? PyTuple_Size(operands) : 0;
  for (Py_ssize_t i = 0; i < count && i < MOST_OPERANDS; i++) {
    PyObject *one = PyTuple_GetItem(operands, i);
    if (one == Py_None) continue;
    if ((PyObject *)Py_TYPE(one) != state.dtensor_type)
      return PyErr_Format(PyExc_TypeError, "operand %zd is %R; tensors of a mesh are needed", i, one), -1;
    dtensor_object *d = (dtensor_object *)one;
    if (!r->mesh) r->mesh = d->mesh;
    if (r->mesh != d->mesh) return PyErr_SetString(PyExc_ValueError, "operands lie on different meshes"), -1;
    r->operand[i] = d->tensor;
  }
  if (!r->mesh) PyErr_SetString(PyExc_ValueError, "no operands are given");
  return r->mesh ? 0 : -1;
}

static int take_call(shard_run *r, PyObject *out, PyObject *wanted)
{
  r->call = (sheaf_shard_call)SHEAF_SHARD_CALL_INIT;
  r->call.chosen = &r->chosen;
  r->wanted = 1;
  if (parse_integer(wanted, "wanted", &r->wanted) < 0) return -1;
  if (!out) return 0;
  if (parse_placements(out, "out", sheaf_mesh_dims(r->mesh->mesh), r->out) < 0) return -1;
  r->call.out = r->out;
  return 0;
}

/* (first result or None, second or None, the strategy that was used) */
static PyObject *results(shard_run *r)
{
  PyObject *made[MOST_RESULTS], *strategy = strategy_dict(&r->chosen, sheaf_mesh_dims(r->mesh->mesh));
  int failed = !strategy;
  for (int i = 0; i < MOST_RESULTS; i++) {
    made[i] = r->made[i] ? dtensor_new(r->mesh, r->made[i]) : Py_NewRef(Py_None);
    if (!made[i]) failed = 1;
  }
  PyObject *all = failed ? NULL : PyTuple_Pack(3, made[0], made[1], strategy);
  for (int i = 0; i < MOST_RESULTS; i++) Py_XDECREF(made[i]);
  Py_XDECREF(strategy);
  return all;
}

/* operands: table, indices, offsets, weights, grad_out, arg, forward. Results: out and arg, or the gradients of table
 * and weights. */
static PyObject *run_embedding(PyObject **v, uint16_t kind)
{
  shard_run r = {0};
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  int64_t number[4] = {0, SHEAF_BAD_INDEX_ERROR, 0, 0};
  desc.kind = (sheaf_embedding_kind)kind;
  if (take_operands(&r, v[R_OPERANDS]) < 0 || take_call(&r, v[R_OUT], v[R_WANTED]) < 0 ||
      parse_integer(v[R_PADDING_IDX], "padding_idx", &desc.padding_idx) < 0 ||
      parse_choice(v[R_PADDING], "padding", "zero|row", &number[0]) < 0 ||
      parse_choice(v[R_BAD], "bad_index", "skip|error", &number[1]) < 0 ||
      parse_choice(v[R_FORM], "bag_form", "offsets|offsets_end|matrix", &number[2]) < 0 ||
      parse_flag(v[R_SCALE], &number[3]) < 0 || parse_integer(v[R_ROWS], "rows", &desc.rows) < 0)
    return NULL;
  desc.has_padding = v[R_PADDING_IDX] != NULL;
  desc.padding = (sheaf_padding)number[0];
  desc.bad_index = (sheaf_bad_index)number[1];
  desc.bag_form = (sheaf_bag_form)number[2];
  desc.scale_grad_by_freq = (uint8_t)number[3];
  desc.weighted = r.operand[3] != NULL;
  int backward = strstr(sheaf_kind_name(SHEAF_CATEGORY_EMBEDDING, kind), "_backward") != NULL;
  sheaf_shard_embedding_args args = SHEAF_SHARD_EMBEDDING_ARGS_INIT;
  args.table = r.operand[0];
  args.indices = r.operand[1];
  args.offsets = r.operand[2];
  args.weights = r.operand[3];
  args.grad_out = r.operand[4];
  args.arg = r.operand[5];
  args.forward = r.operand[6];
  sheaf_dtensor **first = r.wanted & 1 ? &r.made[0] : NULL, **second = r.wanted & 2 ? &r.made[1] : NULL;
  args.out = backward ? NULL : first;
  args.arg_out = backward ? NULL : second;
  args.table_grad = backward ? first : NULL;
  args.weights_grad = backward ? second : NULL;
  sheaf_status status;
  Py_BEGIN_ALLOW_THREADS
  status = sheaf_shard_embedding_run(&desc, &r.call, &args);
  Py_END_ALLOW_THREADS
  return status == SHEAF_OK ? results(&r) : raise_last_error(status);
}

/* operands: data, ids, grad_out, arg. Results: out and arg, or the gradient of the data. */
static PyObject *run_segment(PyObject **v, uint16_t kind)
{
  shard_run r = {0};
  sheaf_segment_desc desc = SHEAF_SEGMENT_DESC_INIT;
  int64_t number[3] = {0, 0, SHEAF_BAD_INDEX_ERROR};
  desc.kind = (sheaf_segment_kind)kind;
  if (take_operands(&r, v[R_OPERANDS]) < 0 || take_call(&r, v[R_OUT], v[R_WANTED]) < 0 ||
      parse_choice(v[R_EMPTY], "empty", "neutral|identity", &number[0]) < 0 ||
      parse_choice(v[R_TIES], "ties", "first|split", &number[1]) < 0 ||
      parse_choice(v[R_BAD], "bad_index", "skip|error", &number[2]) < 0 ||
      parse_integer(v[R_ROWS], "num_segments", &desc.segments) < 0)
    return NULL;
  desc.empty = (sheaf_empty)number[0];
  desc.ties = (sheaf_ties)number[1];
  desc.bad_index = (sheaf_bad_index)number[2];
  desc.arg_given = r.operand[3] != NULL;
  int backward = strstr(sheaf_kind_name(SHEAF_CATEGORY_SEGMENT, kind), "_backward") != NULL;
  sheaf_shard_segment_args args = SHEAF_SHARD_SEGMENT_ARGS_INIT;
  args.data = r.operand[0];
  args.ids = r.operand[1];
  args.grad_out = r.operand[2];
  args.arg = r.operand[3];
  args.out = backward ? NULL : &r.made[0];
  args.arg_out = !backward && r.wanted & 2 ? &r.made[1] : NULL;
  args.data_grad = backward ? &r.made[0] : NULL;
  sheaf_status status;
  Py_BEGIN_ALLOW_THREADS
  status = sheaf_shard_segment_run(&desc, &r.call, &args);
  Py_END_ALLOW_THREADS
  return status == SHEAF_OK ? results(&r) : raise_last_error(status);
}

static PyObject *shard_run_function(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
  (void)self;
  PyObject *v[R_COUNT];
  sheaf_category category;
  uint16_t kind;
  if (parse_arguments(&run_parameters, args, count, names, v) < 0 || parse_kind(v[R_KIND], &category, &kind) < 0)
    return NULL;
  return category == SHEAF_CATEGORY_EMBEDDING ? run_embedding(v, kind) : run_segment(v, kind);
}

int add_shard_run_functions(PyObject *module)
{
  static PyMethodDef methods[] = {
      {"shard_run", (PyCFunction)(void (*)(void))shard_run_function, METH_FASTCALL | METH_KEYWORDS, NULL},
      {NULL, NULL, 0, NULL}};
  return PyModule_AddFunctions(module, methods);
}
