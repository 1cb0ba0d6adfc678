/* plan_object.c: sheaf.Plan: a problem described once, a kernel chosen for it, run as often as one likes. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "extension.h"

typedef struct plan_object {
  PyObject_HEAD
  sheaf_plan *plan;
  sheaf_category category;
  int backward, on_device;
  size_t workspace_bytes;
  void *workspace; /* of the CPU; NULL while a run has it */
} plan_object;

/* ---- Fields of the two descriptors, by name ---- */

typedef enum field_type { EXTENT, FLAG, DTYPE, WORD } field_type;

typedef struct field {
  const char *name;
  size_t offset;
  field_type type;
  const char *words;
} field;

#define E(name, type, words)                                 \
  {                                                          \
#name, offsetof(sheaf_embedding_desc, name), type, words \
  }
#define S(name, type, words)                               \
  {                                                        \
#name, offsetof(sheaf_segment_desc, name), type, words \
  }

static const field embedding_fields[] = {E(dtype, DTYPE, NULL),
                                         E(index_dtype, DTYPE, NULL),
                                         E(offset_dtype, DTYPE, NULL),
                                         E(out_dtype, DTYPE, NULL),
                                         E(bag_form, WORD, "offsets|offsets_end|matrix"),
                                         E(rows, EXTENT, NULL),
                                         E(dim, EXTENT, NULL),
                                         E(indices, EXTENT, NULL),
                                         E(bags, EXTENT, NULL),
                                         E(row_begin, EXTENT, NULL),
                                         E(total_rows, EXTENT, NULL),
                                         E(padding_idx, EXTENT, NULL),
                                         E(batch, EXTENT, NULL),
                                         E(weighted, FLAG, NULL),
                                         E(scale_grad_by_freq, FLAG, NULL),
                                         E(padding, WORD, "zero|row"),
                                         E(bad_index, WORD, "skip|error"),
                                         E(grad_write, WORD, "accumulate|overwrite|touched"),
                                         {NULL, 0, EXTENT, NULL}};

static const field segment_fields[] = {S(dtype, DTYPE, NULL),        S(index_dtype, DTYPE, NULL),
                                       S(rows, EXTENT, NULL),        S(dim, EXTENT, NULL),
                                       S(segments, EXTENT, NULL),    S(batch, EXTENT, NULL),
                                       S(arg_given, FLAG, NULL),     S(empty, WORD, "neutral|identity"),
                                       S(ties, WORD, "first|split"), S(bad_index, WORD, "skip|error"),
                                       {NULL, 0, EXTENT, NULL}};

/* Sets one field of a descriptor. */
static int set_field(const field *f, char *desc, PyObject *value)
{
  int64_t number = 0;
  sheaf_dtype dtype = SHEAF_DTYPE_NONE;
  if (f->type == DTYPE) {
    if (parse_dtype(value, f->name, &dtype) < 0) return -1;
    memcpy(desc + f->offset, &dtype, sizeof dtype);
    return 0;
  }
  if (f->type == WORD) {
    if (parse_choice(value, f->name, f->words, &number) < 0) return -1;
    int word = (int)number; /* enums of the headers are ints */
    memcpy(desc + f->offset, &word, sizeof word);
    return 0;
  }
  if (f->type == FLAG) {
    if (parse_flag(value, &number) < 0) return -1;
    uint8_t flag = (uint8_t)number;
    memcpy(desc + f->offset, &flag, sizeof flag);
    return 0;
  }
  if (parse_integer(value, f->name, &number) < 0) return -1;
  memcpy(desc + f->offset, &number, sizeof number);
  return 0;
}

/* "cpu", "cuda" or "cuda:1". */
static int set_device(PyObject *value, DLDevice *device)
{
  const char *text = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, NULL) : NULL;
  if (text && strcmp(text, "cpu") == 0) return 0;
  if (text && strncmp(text, "cuda", 4) == 0 && (text[4] == 0 || (text[4] == ':' && text[5]))) {
    char *end = NULL;
    long number = text[4] ? strtol(text + 5, &end, 10) : 0;
    if (!text[4] || (*end == 0 && number >= 0 && number < 4096)) {
      *device = (DLDevice){kDLCUDA, (int32_t)number};
      return 0;
    }
  }
  PyErr_Clear();
  PyErr_Format(PyExc_ValueError, "device is %R; it is 'cpu', 'cuda' or 'cuda:1'", value);
  return -1;
}

/* What a plan is to be: both descriptors, one of which counts. */
typedef struct wishes {
  sheaf_category category;
  uint16_t kind;
  sheaf_embedding_desc embedding;
  sheaf_segment_desc segment;
  sheaf_preference preference;
} wishes;

static int set_wish(wishes *w, PyObject *name, PyObject *value)
{
  int64_t number = 0;
  const field *f = w->category == SHEAF_CATEGORY_EMBEDDING ? embedding_fields : segment_fields;
  char *desc = w->category == SHEAF_CATEGORY_EMBEDDING ? (char *)&w->embedding : (char *)&w->segment;
  if (value == Py_None) return 0;
  if (PyUnicode_CompareWithASCIIString(name, "padding_idx") == 0) w->embedding.has_padding = 1;
  for (; f->name; f++)
    if (PyUnicode_CompareWithASCIIString(name, f->name) == 0) return set_field(f, desc, value);
  if (PyUnicode_CompareWithASCIIString(name, "device") == 0)
    return set_device(value, desc == (char *)&w->embedding ? &w->embedding.device : &w->segment.device);
  if (PyUnicode_CompareWithASCIIString(name, "kernel") == 0)
    return (w->preference.kernel = PyUnicode_AsUTF8AndSize(value, NULL)) ? 0 : -1;
  if (PyUnicode_CompareWithASCIIString(name, "threads") == 0) {
    if (parse_integer(value, "threads", &number) < 0) return -1;
    w->preference.threads = number > 65536 ? 65536 : number < -1 ? -1 : (int)number;
    return 0;
  }
  if (PyUnicode_CompareWithASCIIString(name, "max_workspace") == 0) {
    if (parse_integer(value, "max_workspace", &number) < 0) return -1;
    w->preference.max_workspace = number < 0 ? 0 : (size_t)number;
    return 0;
  }
  PyErr_Format(PyExc_TypeError, "Plan() of '%s' has no argument '%U'", sheaf_kind_name(w->category, w->kind), name);
  return -1;
}

static int make_plan(plan_object *p, wishes *w, PyObject *names)
{
  PyObject *key, *value;
  Py_ssize_t at = 0;
  w->embedding.kind = (sheaf_embedding_kind)w->kind;
  w->segment.kind = (sheaf_segment_kind)w->kind;
  while (names && PyDict_Next(names, &at, &key, &value))
    if (set_wish(w, key, value) < 0) return -1;
  p->category = w->category;
  p->backward = strstr(sheaf_kind_name(w->category, w->kind), "_backward") != NULL;
  p->on_device = (w->category == SHEAF_CATEGORY_EMBEDDING ? w->embedding.device : w->segment.device).device_type != 0;
  sheaf_status status = w->category == SHEAF_CATEGORY_EMBEDDING
                            ? sheaf_embedding_select(&w->embedding, &w->preference, &p->plan)
                            : sheaf_segment_select(&w->segment, &w->preference, &p->plan);
  if (status != SHEAF_OK) return raise_last_error(status), -1;
  p->workspace_bytes = sheaf_plan_workspace_size(p->plan);
  return 0;
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
  wishes w = {0};
  w.embedding = (sheaf_embedding_desc)SHEAF_EMBEDDING_DESC_INIT;
  w.segment = (sheaf_segment_desc)SHEAF_SEGMENT_DESC_INIT;
  w.preference = (sheaf_preference)SHEAF_PREFERENCE_INIT;
  if (PyTuple_Size(args) != 1) return PyErr_Format(PyExc_TypeError, "Plan() takes one argument by place, the kind");
  if (parse_kind(PyTuple_GetItem(args, 0), &w.category, &w.kind) < 0) return NULL;
  plan_object *p = (plan_object *)PyType_GenericAlloc(type, 0);
  if (!p) return NULL;
  if (make_plan(p, &w, names) == 0) return (PyObject *)p;
  Py_DECREF(p);
  return NULL;
}

static void plan_dealloc(PyObject *self)
{
  plan_object *p = (plan_object *)self;
  PyTypeObject *type = Py_TYPE(self);
  sheaf_plan_free(p->plan);
  free(p->workspace);
  PyObject_Free(self);
  Py_DECREF(type);
}

/* ---- Running ---- */

enum { MOST_OPERANDS = 9 };

#define SHEAF_X(name) #name,
static const char *const embedding_operands[] = {SHEAF_EMBEDDING_OPERAND_LIST(SHEAF_X) NULL};
static const char *const segment_operands[] = {SHEAF_SEGMENT_OPERAND_LIST(SHEAF_X) NULL};
#undef SHEAF_X

typedef struct plan_run {
  array operand[MOST_OPERANDS];
  int given[MOST_OPERANDS];
  void *stream;
  int stream_given, reporting;
  sheaf_index_report report;
} plan_run;

static int is_output(const plan_object *p, const char *name)
{
  if (strstr(name, "_grad")) return 1;
  return !p->backward && (strcmp(name, "out") == 0 || strcmp(name, "arg") == 0);
}

static int take_operand(const plan_object *p, plan_run *r, PyObject *name, PyObject *value)
{
  const char *const *names = p->category == SHEAF_CATEGORY_EMBEDDING ? embedding_operands : segment_operands;
  if (value == Py_None) return 0;
  for (int i = 0; names[i]; i++) {
    if (PyUnicode_CompareWithASCIIString(name, names[i]) != 0) continue;
    if (array_take(value, names[i], TAKE_ANY | (is_output(p, names[i]) ? TAKE_WRITE : 0), &r->operand[i]) < 0)
      return -1;
    r->given[i] = 1;
    return 0;
  }
  int64_t number = 0;
  if (PyUnicode_CompareWithASCIIString(name, "stream") == 0) {
    if (parse_integer(value, "stream", &number) < 0) return -1;
    r->stream = (void *)(intptr_t)number; /* NOLINT(performance-no-int-to-ptr): a handle */
    r->stream_given = 1;
    return 0;
  }
  if (PyUnicode_CompareWithASCIIString(name, "report") == 0) {
    if (parse_flag(value, &number) < 0) return -1;
    r->reporting = (int)number;
    return 0;
  }
  PyErr_Format(PyExc_TypeError, "run() has no argument '%U'", name);
  return -1;
}

static sheaf_status run_with(const plan_object *p, plan_run *r, void *workspace)
{
  sheaf_index_report *report = r->reporting ? &r->report : NULL;
  if (p->category == SHEAF_CATEGORY_EMBEDDING) {
    sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
    sheaf_operand *operands = &args.table; /* they lie one behind the other */
    for (int i = 0; embedding_operands[i]; i++)
      if (r->given[i]) operands[i].tensor = &r->operand[i].dl;
    args.report = report;
    return sheaf_embedding_run(p->plan, workspace, p->workspace_bytes, r->stream, &args);
  }
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  sheaf_operand *operands = &args.data;
  for (int i = 0; segment_operands[i]; i++)
    if (r->given[i]) operands[i].tensor = &r->operand[i].dl;
  args.report = report;
  return sheaf_segment_run(p->plan, workspace, p->workspace_bytes, r->stream, &args);
}

/* The plan's own workspace, unless another thread's run has it. */
static void *take_workspace(plan_object *p)
{
  void *workspace = p->workspace;
  p->workspace = NULL;
  if (!workspace && p->workspace_bytes) workspace = aligned_alloc(64, p->workspace_bytes);
  if (!workspace && p->workspace_bytes) PyErr_NoMemory();
  return workspace;
}

static int run_on_cpu(plan_object *p, plan_run *r)
{
  void *workspace = take_workspace(p);
  if (!workspace && p->workspace_bytes) return -1;
  sheaf_status status;
  Py_BEGIN_ALLOW_THREADS
  status = run_with(p, r, workspace);
  Py_END_ALLOW_THREADS
  if (p->workspace)
    free(workspace);
  else
    p->workspace = workspace;
  if (status != SHEAF_OK) raise_last_error(status);
  return status == SHEAF_OK ? 0 : -1;
}

/* Workspace of the operands' framework, whose allocator knows its streams. */
static int run_on_device(const plan_object *p, plan_run *r)
{
  const array *like = NULL;
  array workspace;
  for (int i = 0; i < MOST_OPERANDS && !like; i++)
    if (r->given[i]) like = &r->operand[i];
  if (!like) return PyErr_SetString(PyExc_ValueError, "no operands are given"), -1;
  if (r->reporting) return PyErr_SetString(PyExc_ValueError, "a report of a device's run lies on the device"), -1;
  void *theirs;
  int said;
  if (dlpack_stream(like, &theirs, &said) < 0) return -1;
  if (!r->stream_given) r->stream = theirs;
  int64_t shape[] = {(int64_t)p->workspace_bytes};
  PyObject *memory = array_make(like, SHEAF_U8, 1, shape);
  int failed = !memory || array_take(memory, "workspace", TAKE_ANY | TAKE_WRITE | TAKE_NEW, &workspace) < 0;
  Py_XDECREF(memory);
  if (failed) return -1;
  sheaf_status status;
  Py_BEGIN_ALLOW_THREADS
  status = run_with(p, r, workspace.dl.data);
  /* The framework gives the workspace to others in the order of its own stream. */
  if (status == SHEAF_OK && (!said || r->stream != theirs)) status = sheaf_stream_wait(like->dl.device, r->stream);
  Py_END_ALLOW_THREADS
  array_drop(&workspace);
  if (status != SHEAF_OK) raise_last_error(status);
  return status == SHEAF_OK ? 0 : -1;
}

static PyObject *plan_run_method(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
  plan_object *p = (plan_object *)self;
  plan_run r;
  memset(r.given, 0, sizeof r.given);
  r.stream = NULL;
  r.stream_given = r.reporting = 0;
  if (count > 0) return PyErr_Format(PyExc_TypeError, "run() takes operands by name");
  int failed = 0;
  for (Py_ssize_t i = 0; names && i < PyTuple_Size(names) && !failed; i++)
    failed = take_operand(p, &r, PyTuple_GetItem(names, i), args[i]) < 0;
  if (!failed) failed = (p->on_device ? run_on_device(p, &r) : run_on_cpu(p, &r)) < 0;
  const char *const *own = p->category == SHEAF_CATEGORY_EMBEDDING ? embedding_operands : segment_operands;
  for (int i = 0; own[i] && !failed; i++)
    failed = r.given[i] && is_output(p, own[i]) && array_written(&r.operand[i]) < 0;
  for (int i = 0; i < MOST_OPERANDS; i++)
    if (r.given[i]) array_drop(&r.operand[i]);
  if (failed) return NULL;
  if (!r.reporting) return Py_NewRef(Py_None);
  return Py_BuildValue("{s:L, s:L, s:L}", "count", (long long)r.report.count, "position",
                       (long long)r.report.first_position, "value", (long long)r.report.first_value);
}

static PyObject *plan_sku(PyObject *self, void *unused)
{
  (void)unused;
  sheaf_sku sku = sheaf_plan_sku(((plan_object *)self)->plan);
  return sku_dict(&sku);
}

static PyObject *plan_workspace(PyObject *self, void *unused)
{
  (void)unused;
  return PyLong_FromSize_t(((plan_object *)self)->workspace_bytes);
}

static PyObject *plan_repr(PyObject *self)
{
  sheaf_sku sku = sheaf_plan_sku(((plan_object *)self)->plan);
  return PyUnicode_FromFormat("<sheaf.Plan %s>", sku.name);
}

int add_plan_type(PyObject *module)
{
  static PyMethodDef methods[] = {
      {"run", (PyCFunction)(void (*)(void))plan_run_method, METH_FASTCALL | METH_KEYWORDS,
       "run(*, report=False, stream=None, **operands)\n--\n\n"
       "Runs the plan on operands by name (table, indices, offsets, weights, grad_out, out, arg, table_grad,\n"
       "weights_grad; data, ids, grad_out, out, arg, data_grad). Outputs are written into. report=True: how many\n"
       "indices were bad, and the first one."},
      {NULL, NULL, 0, NULL}};
  static PyGetSetDef members[] = {
      {"kernel", plan_sku, NULL, "The kernel that was chosen, and what it guarantees.", NULL},
      {"workspace_bytes", plan_workspace, NULL, "Bytes that a run needs beside its operands.", NULL},
      {NULL, NULL, NULL, NULL, NULL}};
  static PyType_Slot slots[] = {
      {Py_tp_new, plan_new},
      {Py_tp_dealloc, plan_dealloc},
      {Py_tp_repr, plan_repr},
      {Py_tp_methods, methods},
      {Py_tp_getset, members},
      {Py_tp_doc, "Plan(kind, *, dtype, index_dtype, rows, dim, ..., device='cpu', threads=0, kernel=None)\n--\n\n"
                  "A kernel for one problem: kind is an op ('bag_sum', 'segment_max_backward' ...), the rest are the\n"
                  "fields of its description. Immutable: threads may share it."},
      {0, NULL}};
  static PyType_Spec spec = {"sheaf.Plan", sizeof(plan_object), 0, Py_TPFLAGS_DEFAULT, slots};
  state.plan_type = PyType_FromSpec(&spec);
  return state.plan_type ? PyModule_AddObjectRef(module, "Plan", state.plan_type) : -1;
}
