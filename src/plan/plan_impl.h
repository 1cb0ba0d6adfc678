/* plan_impl.h: what the files of plan/ share: the plan itself, and the steps from descriptor to run. */
#ifndef SHF_PLAN_IMPL_H
#define SHF_PLAN_IMPL_H

#include <sheaf/plan.h>

#include "core/cpu.h"
#include "core/device_api.h"
#include "core/dtype.h"
#include "core/kernel.h"
#include "core/nearest_kernel.h"
#include "core/status.h"

enum { SHF_MAX_OPERANDS = 9 };

/* No extent may be larger, and no product of a row count, a width and the batch larger than 2^63 / 64: then every
 * workspace size, summed over pieces, levels and threads, fits 63 bits. */
#define SHF_MAX_EXTENT ((int64_t)1 << 46)

/* Operands by position in their args struct. */
#define SHEAF_X(name) SHF_EMBEDDING_##name,
enum { SHEAF_EMBEDDING_OPERAND_LIST(SHEAF_X) SHF_EMBEDDING_OPERANDS };
#undef SHEAF_X
#define SHEAF_X(name) SHF_SEGMENT_##name,
enum { SHEAF_SEGMENT_OPERAND_LIST(SHEAF_X) SHF_SEGMENT_OPERANDS };
#undef SHEAF_X

typedef enum shf_need {
  SHF_NOT_TAKEN = 0, /* the op has no use for it: ignored, so that one args struct can serve forward and backward */
  SHF_REFUSED = 1,   /* giving it contradicts the description */
  SHF_REQUIRED = 2,
  SHF_OPTIONAL = 3,
  SHF_WITH_WEIGHTS_GRAD = 4 /* required when weights_grad is given, otherwise ignored */
} shf_need;

/* What an operand must look like. */
typedef struct shf_operand_spec {
  const char *name;
  shf_need need;
  int output;
  sheaf_dtype dtype;
  int64_t rows, columns; /* columns -1: a vector of `rows` elements */
  const char *why;       /* SHF_REFUSED: what is wrong with giving it */
  int free_shape;        /* any leading shape with `rows` elements in all */
  int matrix;            /* indices given as [matrix_rows, rows / matrix_rows] */
  int64_t matrix_rows;
  DLDevice device; /* where it must lie; type 0 is the CPU */
  /* derived, by shf_plan_finish_spec */
  DLDataType type;
  int64_t element_bytes;
  int64_t
      compact_bytes; /* of a contiguous operand; 0 when it is empty, or so large that it must be looked at closely */
} shf_operand_spec;

/* Where the pieces of a workspace lie, in bytes from its start. */
typedef struct shf_layout {
  int64_t counts, forward, arg, partials, scratch;
  int64_t total;
  int64_t slot_bytes, scratch_bytes; /* of the largest stage */
} shf_layout;

/* How rows from memory are asked for; both as in a job. */
typedef struct shf_asking {
  int beside, again;
} shf_asking;

struct sheaf_plan {
  sheaf_category category;
  sheaf_embedding_desc embedding; /* normalised: defaults filled in */
  sheaf_segment_desc segment;
  const shf_kernel_row *row;
  shf_asking asking, asking_often; /* how rows from memory are asked for; where rows repeat often; */
  int looks_for_repeats;    /* and whether a run looks if they do */
  int in_order;             /* rows of sorted segments (in_order in a job) */
  const shf_device_api *api; /* NULL: the CPU. Otherwise it has the run, and these say where and with what: */
  DLDevice device;
  int64_t grouping_bytes, grouping_read_bytes;
  int threads;
  int64_t batch; /* problems; 1 when the description has no batch */
  int has_batch; /* operands have a leading dimension */
  int64_t acc_bytes;
  int64_t row_bytes; /* of a table or data row */
  int64_t out_row_bytes;
  int64_t ahead;     /* rows of the table or data to fetch ahead of a random walk */
  shf_layout layout;
  shf_job job; /* what all stages of a run have in common; operands are added there */
  int operands;
  shf_operand_spec spec[SHF_MAX_OPERANDS];
  int taken_count;             /* the operands that matter to the op, */
  int taken[SHF_MAX_OPERANDS]; /* in order */
};

/* Where share `part` of `parts` (up to thousands) of `all` things begins. */
static inline int64_t shf_plan_share(int64_t all, int64_t part, int64_t parts)
{
  return all / parts * part + all % parts * part / parts;
}

static inline int64_t shf_plan_index_at(const char *data, int64_t position, int wide)
{
  return wide ? ((const int64_t *)(const void *)data)[position] : ((const int32_t *)(const void *)data)[position];
}

/* ---- embedding_run.c, segment_run.c ---- */

/* Fills in plan->job from the rest of the plan. */
void shf_plan_embedding_job(sheaf_plan *plan);
void shf_plan_segment_job(sheaf_plan *plan);

/* ---- registry.c: the rows ---- */

/* The rows of one instruction set and element type, or NULL. */
const shf_kernel_row *shf_plan_rows(sheaf_arch arch, sheaf_dtype element, int *count);
sheaf_sku shf_plan_sku_of(const shf_kernel_row *row);

/* What scores rows of this type on the instruction set in use, or NULL. */
const shf_nearest_kernel *shf_plan_nearest_kernel(sheaf_dtype element);

/* nearest_filter.c: the weights' bytes, 0 where no filter is to be had, and the filter in so much memory of the
 * caller's. False: the query is not fit for one. */
int64_t shf_plan_filter_bytes(sheaf_dtype dtype, int64_t dim);
int shf_plan_filter_make(shf_nearest_filter *filter, int8_t *weights, sheaf_dtype dtype, const float *query,
                         int64_t dim, int most_weight);

/* Whether a CPU kernel runs where `isa` is what there is. */
int shf_plan_runs_on(sheaf_arch arch, sheaf_isa isa);

/* ---- choose.c: from a description to a row ---- */

/* Copies a caller's struct, which starts with struct_size, into `known`. A larger one is accepted when what this
 * version does not know of it is zero. */
sheaf_status shf_plan_copy_struct(void *known, size_t known_bytes, const void *given, const char *name);

/* The same without the copy, for what is only read. */
sheaf_status shf_plan_check_struct(size_t known_bytes, const void *given, const char *name);

/* Chooses plan->row by category, kind, element, index, preference; needs plan->layout. */
sheaf_status shf_plan_choose(sheaf_plan *plan, uint16_t kind, sheaf_dtype element, sheaf_dtype index,
                             const sheaf_preference *preference);

/* Sets how the plan's kernel asks for rows from memory: asking, asking_often, looks_for_repeats, in_order. */
void shf_plan_choose_asking(sheaf_plan *plan);

/* Threads that the preference allows, or INVALID_PROBLEM for a preference that makes no sense. */
sheaf_status shf_plan_preference(const sheaf_preference *given, sheaf_preference *known, int *threads);

/* Moves a plan made on the stack to memory of its own. */
sheaf_status shf_plan_publish(const sheaf_plan *made, sheaf_plan **plan);

/* Overflow-checked extents: *product *= factor; 0 when it does not fit 63 bits. */
int shf_plan_multiply(int64_t *product, int64_t factor);

/* ---- on_device.c: plans that run elsewhere than on the CPU ---- */

/* Checks that the device is there; *api is NULL for the CPU. */
sheaf_status shf_plan_check_device(DLDevice device, const shf_device_api **api);

/* The rows of the plug-in that is there (0 when none is), and whether a device here is of this kind. */
const shf_kernel_row *shf_plan_device_rows(int *count);
int shf_plan_device_runs(sheaf_arch arch);

/* In place of layout and choice: sets sizes and row, and loads the kernels. */
sheaf_status shf_plan_device_select(sheaf_plan *plan, uint16_t kind, sheaf_dtype element, sheaf_dtype index,
                                    const sheaf_preference *preference);

/* ---- operands.c: can_implement ---- */

/* Checks every operand against its spec and gives its view, where it is given. */
typedef struct shf_bound {
  shf_matrix view[SHF_MAX_OPERANDS]; /* of what is given; the rest is not set, since small calls feel every store */
  int64_t bytes[SHF_MAX_OPERANDS];   /* from the first element to the end of the last; 0: not given, or empty */
  int given[SHF_MAX_OPERANDS];
} shf_bound;

static inline shf_matrix shf_plan_view(const shf_bound *bound, int which)
{
  return bound->given[which] ? bound->view[which] : (shf_matrix){NULL, 0, 0};
}

sheaf_status shf_plan_bind(const sheaf_plan *plan, const sheaf_operand *operands, shf_bound *bound);

/* Where what has no bytes lies (an empty operand, no workspace): keeps address arithmetic defined, is never read or
 * written. */
extern char shf_plan_nowhere[64];

/* Fills in what follows from the rest of the specs. */
void shf_plan_finish_spec(shf_operand_spec *spec);
void shf_plan_finish_specs(sheaf_plan *plan);

/* The same for one required input of a plan, alone. */
sheaf_status shf_plan_bind_input(const sheaf_plan *plan, int which, const sheaf_operand *operand, shf_bound *bound);

/* The same for one operand outside of a plan. */
sheaf_status shf_plan_bind_one(const shf_operand_spec *spec, const sheaf_operand *operand, shf_matrix *view);

/* Whether two operands of one problem share a byte. */
int shf_plan_specs_meet(const shf_operand_spec *a, const shf_matrix *a_view, const shf_operand_spec *b,
                        const shf_matrix *b_view);

/* Checks that a workspace or grouping is there, long enough and aligned. */
sheaf_status shf_plan_check_memory(const char *what, const void *memory, size_t bytes, int64_t needed,
                                   sheaf_status status);

/* Checks that such memory of the run's own shares nothing with the operands. */
sheaf_status shf_plan_check_apart(const sheaf_plan *plan, const shf_bound *bound, const char *what, const void *memory,
                                  int64_t bytes);

/* The same for the workspace and the caller's grouping. */
sheaf_status shf_plan_check_pieces(const void *workspace, int64_t workspace_bytes, const void *grouping,
                                   int64_t grouping_bytes);

/* On a device (on_device.c): the caller's grouping, as far as it can be checked without waiting for the device; and the
 * run and the grouping themselves, once operands and workspace are checked. */
sheaf_status shf_plan_device_given(const sheaf_plan *plan, const shf_bound *bound, const void *grouping, size_t bytes,
                                   int promised);
sheaf_status shf_plan_device_run(const sheaf_plan *plan, const shf_bound *bound, const void *grouping, void *workspace,
                                 sheaf_index_report *report, void *stream);
sheaf_status shf_plan_device_group(const sheaf_plan *plan, const shf_bound *bound, void *grouping, size_t bytes,
                                   sheaf_index_report *report, void *stream);

/* ---- scan.c: checks of values ---- */

/* A rectangle of indices per problem: `rows` rows of `columns` contiguous indices. */
typedef struct shf_index_scan {
  shf_matrix index;
  int wide;
  int64_t batch, rows, columns;
  int64_t limit;    /* good: 0 .. limit - 1 */
  int allow_absent; /* -1 is good too */
  int threads;
} shf_index_scan;

sheaf_index_report shf_plan_scan_indices(const shf_index_scan *scan);

/* The policy: fails under ERROR when the report has bad entries; sets the caller's report. */
sheaf_status shf_plan_apply_policy(const shf_index_scan *scan, const char *operand, sheaf_bad_index policy,
                                   sheaf_index_report *report);

sheaf_status shf_plan_check_offsets(const sheaf_embedding_desc *desc, shf_matrix offsets, int64_t batch, int threads);
sheaf_status shf_plan_check_sorted(shf_matrix ids, int wide, int64_t batch, int64_t entries, int threads);

/* ---- split.c: dividing a stage among threads ---- */

typedef void shf_task(void *context, int thread);

/* Runs task(context, 0 .. threads - 1), in the floating-point mode that kernels expect. */
void shf_plan_parallel(int threads, shf_task *task, void *context);

/* Threads worth waking for this many bytes of traffic, at most `limit`. */
int shf_plan_worth(int64_t bytes, int limit);

/* How many rows of a random walk are asked for early: so many bytes that memory is kept busy, at most so many rows;
 * less where rows are written as well. Nothing for rows that all fit the cache, where asking costs more than it
 * brings. */
enum { SHF_READ_AHEAD = 64 << 10, SHF_UPDATE_AHEAD = 10 << 10 };
int64_t shf_plan_ahead(int64_t rows, int64_t row_bytes, int64_t bytes, int64_t most);

/* Whether an output of so many rows is better stored past the cache: it would not stay there, and its rows are whole
 * cache lines. */
int shf_plan_streams(const shf_matrix *target, int64_t rows, int64_t row_bytes);

/* How a stage's entries are ordered into groups. */
typedef enum shf_axis { SHF_BY_ENTRIES, SHF_BY_OFFSETS, SHF_BY_IDS, SHF_BY_GROUPED } shf_axis;

typedef struct shf_stage {
  const shf_job *job;
  shf_axis axis;
  int wide; /* ids are 64-bit */
  int64_t batch;
  int threads;   /* the most */
  int64_t bytes; /* traffic, for deciding how many */
  shf_part_fn *run;
  shf_join_fn *join;
  char *scratch;
  int64_t scratch_bytes;
} shf_stage;

void shf_plan_run_stage(const shf_stage *stage);

/* Slots that a stage over so many entries may need. */
int64_t shf_plan_slots(int64_t entries_of_batch, int64_t entries, int threads);

/* ---- grouping.c: entries grouped by row ---- */

/* What is grouped. */
typedef struct shf_grouping_spec {
  int64_t batch, entries, groups; /* per problem; kind 7: cells */
  int64_t row_begin, rows, padding;
  int64_t bags, bag_length;
  int64_t columns; /* kind 7: D; `index` is arg with its row stride */
  int payload_is_bag, with_bag_of;
  int wide, offsets_wide, offsets_end;
  shf_matrix index, offsets;
  int threads;
  int value_bytes;   /* > 0: the payload is not the position of an entry but its value, one column of */
  shf_matrix values; /* this */
} shf_grouping_spec;

/* The spec of a plan's grouping (without operands); 0 when the plan groups nothing. */
int shf_plan_embedding_grouping(const sheaf_plan *plan, shf_grouping_spec *spec);
int shf_plan_segment_grouping(const sheaf_plan *plan, shf_grouping_spec *spec);

/* Refuses problems whose row numbers and positions together need more than 64 bits. */
sheaf_status shf_plan_check_grouping(const shf_grouping_spec *spec);
int64_t shf_plan_grouping_bytes(const shf_grouping_spec *spec);

/* What a run reads of it, which does not depend on the threads that made it. */
int64_t shf_plan_grouping_read_bytes(const shf_grouping_spec *spec);
shf_grouped shf_plan_group(const shf_grouping_spec *spec, void *memory);

/* Whether values of so many bytes can take the place of positions. */
int shf_plan_groups_values(const shf_grouping_spec *spec, int64_t value_bytes);

/* The caller's grouping, which must have been made for this description; when there is none, grouped->entries is
 * NULL and the run makes its own, unless the description `promised` one. */
sheaf_status shf_plan_given_grouping(const shf_grouping_spec *spec, const void *memory, size_t bytes, int promised,
                                     shf_grouped *grouped);

#endif
