/* core/device_api.h: the contract between the core and a plug-in for devices that are not the CPU (CUDA).
 *
 * The core checks descriptions and operands and then hands over a whole run, since everything after that depends on
 * the device: a plug-in sizes its own workspaces and groupings and enqueues its kernels on the caller's stream. It
 * allocates nothing in a run, waits for nothing, and looks at no operand on the host. Values that a CPU run would
 * refuse (offsets, order of ids) and bad indices are found on the device and end up in the report.
 *
 * Functions that return a status have recorded the sentence (shf_plugin_host). */
#ifndef SHF_CORE_DEVICE_API_H
#define SHF_CORE_DEVICE_API_H

#include <sheaf/device.h>

#include "core/engine.h"
#include "core/kernel.h"
#include "core/plugin.h"

enum { SHF_DEVICE_ABI = 6 };

/* A description, normalised: the one of its category is set. */
typedef struct shf_device_problem {
  sheaf_category category;
  const sheaf_embedding_desc *embedding;
  const sheaf_segment_desc *segment;
  int64_t batch; /* problems, at least 1 unless the batch is empty */
  int device;
} shf_device_problem;

/* What a plan needs, in bytes. */
typedef struct shf_device_sizes {
  int64_t workspace;     /* with the grouping in it, unless the description says that one is given */
  int64_t grouping;      /* to make one; 0: the op groups nothing */
  int64_t grouping_read; /* to use one */
} shf_device_sizes;

/* One run. Operands by their position in the args struct; data NULL: not given. */
typedef struct shf_device_call {
  shf_device_problem problem;
  const shf_matrix *operands;
  char *workspace;
  const void *grouping; /* NULL: made in the workspace */
  sheaf_index_report *report;
  void *stream;
} shf_device_call;

/* What is done element by element over a box of up to SHF_MAP_RANK dimensions, all steps in elements:
 *   COPY   out = a, bits of `to`'s size; `from` is not looked at
 *   CAST   out = a, rounded once to nearest even; floating-point types, or I32 to I64
 *   ADD    out = fma(alpha, b, a) in the accumulator of the type, alpha rounded to it first; `from` is `to`
 *   FILL   out = alpha
 * With `index` (ADD), dimension 0 of a and out is gone through by the places that it lists, which are different and
 * within the tensors; a bad one is skipped. */
typedef enum shf_map_kind { SHF_MAP_COPY = 0, SHF_MAP_CAST, SHF_MAP_ADD, SHF_MAP_FILL } shf_map_kind;
enum { SHF_MAP_RANK = 8 };

typedef struct shf_device_map {
  shf_map_kind kind;
  int device;
  void *stream;
  sheaf_dtype from, to;
  int rank;
  int64_t extent[SHF_MAP_RANK];
  int64_t a_step[SHF_MAP_RANK], b_step[SHF_MAP_RANK], out_step[SHF_MAP_RANK];
  const void *a, *b;
  void *out;
  double alpha;
  const void *index;
  int index_wide;
  int64_t index_limit;
} shf_device_map;

/* The rows that the entries of a grouping name, each once: how many there are, and then a grouping by their numbers,
 * for a table that has no other rows. Of one problem; descriptions need not be normalised. */
typedef struct shf_device_rows {
  int device;
  void *stream;
  const sheaf_embedding_desc *whole;   /* what `grouping` was made for */
  void *grouping;                      /* all of its memory, as `group` got it */
  int64_t *count;                      /* there: how many rows */
  const sheaf_embedding_desc *compact; /* the same, but `rows` is that number */
  void *compact_grouping;
  void *ids; /* the rows, increasing */
  int ids_wide;
} shf_device_rows;

/* What becomes of a cell of the target. */
typedef enum shf_fold_kind {
  SHF_FOLD_STORE, /* the source's bits */
  SHF_FOLD_BITS,  /* sums of unsigned integers */
  SHF_FOLD_SUM,
  SHF_FOLD_PROD,
  SHF_FOLD_MAX, /* the first NaN, else the first of the largest */
  SHF_FOLD_MIN
} shf_fold_kind;

/* A box of cells of one array folded into another: extents, and distances in cells of either. */
typedef struct shf_fold_task {
  shf_fold_kind kind;
  sheaf_dtype dtype; /* SUM, PROD, MAX, MIN: F32 F64, SUM also I64 */
  int64_t cell;      /* bytes: 1, 2, 4 or 8 */
  int from_zero;     /* the target counts as +0: the first term of a sum */
  int rank;
  int64_t extent[SHEAF_SHARD_MAX_RANK], from_stride[SHEAF_SHARD_MAX_RANK], to_stride[SHEAF_SHARD_MAX_RANK];
  const char *from;
  char *to;
} shf_fold_task;

typedef struct shf_device_api {
  shf_plugin_head head;
  const shf_kernel_row *rows; /* arch is what tells devices apart; stages are NULL, run does it all */
  int row_count;

  /* Devices. `count` fails with UNAVAILABLE when there is no driver. */
  sheaf_status (*count)(int *devices);
  sheaf_status (*info)(int device, sheaf_device_info *info);
  sheaf_status (*arch)(int device, sheaf_arch *arch);

  /* Plans. `prepare` loads the kernels that runs of this problem may launch. */
  sheaf_status (*sizes)(const shf_device_problem *problem, shf_device_sizes *sizes);
  sheaf_status (*prepare)(const shf_device_problem *problem);
  sheaf_status (*run)(const shf_device_call *call);
  sheaf_status (*group)(const shf_device_call *call, void *grouping);

  /* What programs without the vendor's own headers need (sheaf/device.h). */
  sheaf_status (*allocate)(int device, size_t bytes, void **memory);
  sheaf_status (*release)(int device, void *memory);
  sheaf_status (*copy)(int device, void *to, const void *from, size_t bytes, void *stream);
  sheaf_status (*fill)(int device, void *memory, int value, size_t bytes, void *stream);
  sheaf_status (*stream_make)(int device, void **stream);
  sheaf_status (*stream_free)(int device, void *stream);
  sheaf_status (*stream_wait)(int device, void *stream);
  sheaf_status (*event_make)(int device, void **event);
  sheaf_status (*event_free)(int device, void *event);
  sheaf_status (*event_record)(int device, void *event, void *stream);
  sheaf_status (*event_elapsed)(int device, void *begin, void *end, double *seconds);
  sheaf_status (*graph_begin)(int device, void *stream);
  sheaf_status (*graph_end)(int device, void *stream, void **graph);
  sheaf_status (*graph_launch)(int device, void *graph, void *stream);
  sheaf_status (*graph_free)(int device, void *graph);

  /* What ops on tensors need besides plans. Memory in the order of a stream comes from a pool that keeps what is given
   * back until it is trimmed; `release` takes it too. */
  sheaf_status (*map)(const shf_device_map *map);
  sheaf_status (*pool_allocate)(int device, size_t bytes, void *stream, void **memory);
  sheaf_status (*pool_release)(int device, void *memory, void *stream);
  sheaf_status (*pool_trim)(int device);
  sheaf_status (*count_rows)(const shf_device_rows *rows);  /* looks at what comes before `compact` */
  sheaf_status (*number_rows)(const shf_device_rows *rows); /* after count_rows */
  /* Tensors spread over ranks (shard/space.h): parts moved and folded, types changed (F32 F64 F16 BF16), rows divided,
   * each by its divisor (sums and divisors of acc(to)); on the default stream. */
  sheaf_status (*fold)(int device, const shf_fold_task *task);
  sheaf_status (*convert)(int device, sheaf_dtype from, const void *source, sheaf_dtype to, void *target,
                          int64_t count);
  sheaf_status (*divide)(int device, const void *sums, const void *divisors, int64_t rows, int64_t columns,
                         sheaf_dtype to, void *target);
  const shf_engine *engine; /* NCCL */
} shf_device_api;

/* The plug-in for a DLPack device type, or NULL with *why (optional) saying why there is none. */
const shf_device_api *shf_core_device_api(int device_type, const char **why);

#endif
