/* shard/segment_call.h: what forward and backward of the segment family share. */
#ifndef SHF_SHARD_SEGMENT_CALL_H
#define SHF_SHARD_SEGMENT_CALL_H

#include "shard/shard_call.h"

typedef struct shf_segment_call {
  shf_call c; /* first: the one is got from the other */
  const sheaf_segment_desc *desc;
  const sheaf_shard_segment_args *args;
  sheaf_dtype acc;
  int64_t row_lo, row_hi, columns; /* this rank's rows, and the width of a row here */
  int cut;                         /* whether rows are spread over ranks */
  const void *ids;
  const void *host_ids; /* as the CPU sees them */
} shf_segment_call;

/* The reduction behind a kind, forward or backward. */
typedef enum shf_segment_mode { SHF_SUM, SHF_MEAN, SHF_MAX, SHF_MIN, SHF_PROD } shf_segment_mode;
shf_segment_mode shf_segment_mode_of(sheaf_segment_kind kind);
int shf_segment_is_sorted(sheaf_segment_kind kind);

/* The forward kind of a mode. */
sheaf_segment_kind shf_segment_forward_kind(shf_segment_mode mode, int sorted);

/* Rows of each segment on this rank, as int64; ids out of range are left out. */
void shf_segment_count(const shf_segment_call *s, int64_t *counts);

/* A [segments, width] array (this rank's columns, or one number a segment), a term on each of the ranks over which rows
 * are spread: reduced in place. Collective. On `device`. */
void shf_segment_reduce(shf_segment_call *s, DLDevice device, void *data, int64_t cell, shf_reducer reducer,
                        int64_t width);

/* The output's array, a term on each of those ranks, reduced and brought where `at` says (shf_call_complete).
 * Collective; the move's result is what came of it, and the move is the caller's to free. */
void shf_segment_complete(shf_segment_call *s, DLDevice device, void *data, int64_t cell, shf_reducer reducer,
                          const sheaf_placement *at, shf_move *move);

/* One number for each segment, likewise: whole along mesh dimensions that cut columns. */
void shf_segment_complete_counts(shf_segment_call *s, int64_t *counts, const sheaf_placement *at, shf_move *move);

/* A local run of a forward or backward kind on this rank's rows. */
typedef struct shf_segment_local {
  sheaf_segment_kind kind;
  sheaf_dtype dtype;
  const void *data, *grad_out;
  void *out, *arg, *data_grad;
  int arg_given;
  sheaf_empty empty;
} shf_segment_local;
sheaf_status shf_segment_run_local(const shf_segment_call *s, const shf_segment_local *l);

void shf_segment_forward(shf_segment_call *s);
void shf_segment_backward(shf_segment_call *s);

#endif
