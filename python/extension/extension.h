/* extension.h: what the files of sheaf._core share: arrays of the caller's, arguments, calls, errors.
 *
 * The extension is written against Python's limited API (CPython 3.11 and later), so that one file serves every later
 * version. It knows no framework: arrays come in by the buffer protocol or DLPack, and what only a framework's own
 * functions can do (a contiguous copy, an empty array of the caller's kind) is asked of sheaf/_kinds.py, but for NumPy
 * and for frameworks with DLPack's table of C functions, which are served here. */
#ifndef SHEAF_EXTENSION_H
#define SHEAF_EXTENSION_H

#include <Python.h>
#include <sheaf/sheaf.h>

enum { MAX_RANK = SHEAF_TENSOR_MAX_RANK };

/* ---- DLPack as frameworks speak it today (dlpack.h of the system may be older) ---- */

typedef struct dl_version {
  uint32_t major, minor;
} dl_version;

/* What a capsule named "dltensor_versioned" holds. */
typedef struct dl_managed {
  dl_version version;
  void *manager_ctx;
  void (*deleter)(struct dl_managed *self);
  uint64_t flags;
  DLTensor dl_tensor;
} dl_managed;

enum { DL_READ_ONLY = 1 };

typedef struct dl_exchange dl_exchange; /* arrays_dlpack.c */

/* ---- State of the module (module.c) ---- */

typedef struct extension_state {
  PyObject *ndarray;   /* numpy.ndarray */
  PyObject *np_empty;  /* numpy.empty */
  PyObject *np_dtype[SHEAF_INT4 + 1];
  PyObject *kinds;     /* sheaf._kinds, imported at first need */
  PyObject *quantized; /* sheaf.QuantizedTable, said by the package */
  PyObject *memory_type, *plan_type, *trace_type, *mesh_type, *dtensor_type;
} extension_state;

extern extension_state state;

/* Calls a function of sheaf/_kinds.py; a new reference. */
PyObject *ask_kinds(const char *function, PyObject *argument, const char *dtype, PyObject *shape);

/* ---- Errors (errors.c) ---- */

/* Raises what the library's last error is in Python's terms, and returns NULL. An IndexError carries `position`,
 * `value` and `count`. */
PyObject *raise_last_error(sheaf_status status);

/* ---- Arguments (arguments.c) ---- */

enum { MAX_PARAMETERS = 20 };

/* What a function takes. The first `positional` may be given by place; the first `required` must be given. */
typedef struct parameters {
  const char *function;
  int count, positional, required;
  const char *names[MAX_PARAMETERS];
  PyObject *interned[MAX_PARAMETERS];
} parameters;

/* Sorts arguments by name into `values` (borrowed; NULL: not given, or None). Negative with an exception set when they
 * do not fit. */
int parse_arguments(parameters *p, PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **values);

/* The same for several functions with the same parameters; `function` is the one that was called. */
int parse_arguments_of(parameters *p, const char *function, PyObject *const *args, Py_ssize_t count, PyObject *names,
                       PyObject **values);

/* One of several words, given as "first|second|third"; `*choice` is its number and stays as it is for NULL. */
int parse_choice(PyObject *value, const char *name, const char *words, int64_t *choice);
int parse_flag(PyObject *value, int64_t *flag);
int parse_integer(PyObject *value, const char *name, int64_t *integer);
/* A dtype by name: "f32", "float32", "int8" ... */
int parse_dtype(PyObject *value, const char *name, sheaf_dtype *dtype);
/* A sequence of integers into `list` (at most `room`); its length, or negative. */
int parse_integers(PyObject *value, const char *name, int64_t *list, int room);

/* An op by name: "bag_sum", "segment_max_backward" ... */
int parse_kind(PyObject *value, sheaf_category *category, uint16_t *kind);

PyObject *tuple_of(const int64_t *list, int count);

/* ---- Arrays (arrays.c, arrays_dlpack.c) ---- */

/* How an array came in, which decides how one of its kind is made. */
typedef enum array_kind { KIND_NUMPY, KIND_EXCHANGE, KIND_OTHER } array_kind;

/* What an operand must be. */
enum {
  TAKE_VALUES = 1,  /* f32, f64, f16, bf16; rows may be further apart than they are wide */
  TAKE_INDEX = 2,   /* i32, i64; contiguous */
  TAKE_PACKED = 4,  /* u8 */
  TAKE_ANY = 7,
  TAKE_WRITE = 8,   /* an output: writable, taken as it is or not at all */
  TAKE_FLAT = 16,   /* VALUES: dimensions behind the first count as one, [N, D] */
  TAKE_DENSE = 32,  /* no gaps between rows either */
  TAKE_NEW = 64     /* WRITE: just made here, so that nobody minds, whatever its framework says of writing */
};

/* An array of the caller's for the length of one call: `dl` describes it, what is held keeps its memory alive. */
typedef struct array {
  PyObject *object; /* owned: the caller's, or a contiguous copy of it */
  PyObject *held;   /* a capsule, or NULL */
  Py_buffer buffer; /* buffer.obj NULL: none */
  DLTensor dl;
  int64_t extents[MAX_RANK + 1], steps[MAX_RANK + 1]; /* in elements */
  int64_t whole_shape[MAX_RANK]; /* TAKE_FLAT: its own shape, of whole_rank extents, while dl is a matrix */
  int whole_rank;
  sheaf_dtype dtype;
  array_kind kind;
  int readonly;
  const dl_exchange *exchange;
  void *stream;    /* KIND_OTHER on a device: where its framework works, */
  int stream_said; /* if it says so */
  int negated; /* PyTorch's bit that says so: the values in memory have the other sign */
} array;

/* Takes an array in: 0, or -1 with an exception. What the library cannot read as it lies is copied; lists become
 * arrays. `name` is for messages. */
int array_take(PyObject *object, const char *name, unsigned how, array *a);
void array_drop(array *a);

/* Tells its framework that an array of the caller's has been written. */
int array_written(const array *a);

int64_t array_elements(const array *a);

/* A new array of the kind of `like` (its framework, its device), and what the caller gets for it in the end: itself, or
 * for arrays that cannot be written (JAX) one made of it. Both are new references; `finish` takes `made`. */
PyObject *array_make(const array *like, sheaf_dtype dtype, int rank, const int64_t *shape);
PyObject *array_finish(const array *like, PyObject *made);

/* By DLPack: 1 when taken, 0 when the object does not speak it, -1 with an exception. */
int dlpack_take(PyObject *object, const char *name, array *a);
PyObject *dlpack_make(const array *like, sheaf_dtype dtype, int rank, const int64_t *shape);
/* The stream on which the framework of `a` works now, for arrays on a device; `*said` is 0 when it does not say, and
 * then the default stream is used. */
int dlpack_stream(const array *a, void **stream, int *said);

/* ---- Memory that Sheaf owns, as an array (memory_object.c) ---- */

/* Takes `owner` over: `release` gets it when nobody uses the memory any more, also on failure. */
PyObject *memory_new(const DLTensor *dl, sheaf_dtype dtype, int readonly, void *owner, void (*release)(void *owner));
/* The same of a tensor (its reference is taken over), as an array of the kind of `like`. On a device it is a copy in the
 * framework's own memory, made on the current stream: who uses it there, and until when, is not Sheaf's to know. */
PyObject *memory_of_tensor(sheaf_tensor *tensor, const array *like);
void release_tensor(void *tensor);
void release_object(void *object);

/* ---- Calls (calls.c) ---- */

enum { CALL_INPUTS = 7, CALL_OUTPUTS = 2 };

/* One call of an op, being put together between `call_begin` and `call_end`, which frees it whatever became of it. */
typedef struct op_call {
  sheaf_op op;
  int inputs, outputs, attr_count; /* outputs: those that were given out so far */
  unsigned wanted, include; /* include: a set of keys */
  array in[CALL_INPUTS], out[CALL_OUTPUTS];
  sheaf_tensor *input[CALL_INPUTS], *output[CALL_OUTPUTS];
  PyObject *result[CALL_OUTPUTS]; /* what the caller gets, */
  int given[CALL_OUTPUTS];        /* and whether it is the caller's own */
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  int like; /* the input whose kind results have */
} op_call;

void call_begin(op_call *c, sheaf_op op, int inputs, int attrs);
/* A table: values, or a QuantizedTable (embedding_functions.c). */
int call_table(op_call *c, int slot, PyObject *weight, const char *name);
/* NULL objects are passed over (an input that is not given). */
int call_input(op_call *c, int slot, PyObject *object, const char *name, unsigned how);
/* The caller's array (`given`), or a new one. `flat`: the library sees it as a matrix. */
int call_output(op_call *c, int slot, PyObject *given, const char *name, sheaf_dtype dtype, int rank,
                const int64_t *shape, int flat);
int call_run(op_call *c);
/* The stream of the framework of operand 0 becomes the thread's own, for operands on a device. `*apart` is set where
 * others must not go on before that stream has been waited for (leave_stream): a framework that does not say where it
 * works, or several that work on different streams. */
int enter_stream(const array *const *operands, int count, int *apart);
int leave_stream(const array *a, int apart);
/* The results; a single one alone, several as a tuple. */
PyObject *call_end(op_call *c, int status);

/* While calls are traced, one object is one tensor of the graph, and so is a table within autocast. Both are kept in a
 * dictionary, {address of an object: (object, capsule of its tensor)}; NULL: none is (records.c, autocast.c). */
extern PyObject *traced;
PyObject *autocast_tables(void);
sheaf_dtype autocast_dtype(void); /* NONE outside of a region */
sheaf_tensor *kept_tensor(PyObject *kept, PyObject *object); /* a new reference, or NULL */
int keep_tensor(PyObject *kept, PyObject *object, sheaf_tensor *tensor);

/* What a kernel is and guarantees, as a dictionary (module.c). */
PyObject *sku_dict(const sheaf_sku *sku);

/* Whether PyTorch would record a gradient now (torch_way.c); as long as sheaf.torch is not imported, nobody knows. */
int torch_records_gradients(void);

/* ---- Functions and types, by file; each adds what it has to the module ---- */

int add_embedding_functions(PyObject *module);
int add_conversion_functions(PyObject *module);
int add_segment_functions(PyObject *module);
int add_info_functions(PyObject *module);
int add_memory_type(PyObject *module);
int add_plan_type(PyObject *module);
int add_file_functions(PyObject *module);
int add_record_functions(PyObject *module);
int add_torch_functions(PyObject *module);
int add_autocast_functions(PyObject *module);
int add_shard_functions(PyObject *module);
int add_dtensor_types(PyObject *module);

#endif
