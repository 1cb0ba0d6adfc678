/* vmap_impl.h: what the two files of the Vmap key share: the levels of a call, and results behind them. */
#ifndef SHF_VMAP_IMPL_H
#define SHF_VMAP_IMPL_H

#include "layers/layers_impl.h"

enum { SHF_VMAP_INPUTS = 8, SHF_VMAP_OUTPUTS = 2 };

/* All levels that the inputs of a call have, in order. */
typedef struct shf_levels {
  int count;
  int level[SHF_MAX_LEVELS];
  int64_t extent[SHF_MAX_LEVELS];
  int64_t problems;
} shf_levels;

static inline int shf_is_batched(const sheaf_tensor *t) { return t && t->form == SHEAF_FORM_BATCHED; }

/* Hides the levels of results, whose leading dimensions they are (`merged`: all as one), and hands them out; takes the
 * references. */
sheaf_status shf_vmap_hand_out(const sheaf_call *call, sheaf_tensor **results, const shf_levels *all, int merged,
                               const sheaf_frame *frame);

/* A call over no problems at all (vmap_empty.c). */
sheaf_status shf_vmap_over_nothing(const sheaf_call *call, const sheaf_frame *frame, const shf_levels *all);

#endif
