/* core/kernel.h: the contract between plans and kernels: what a kernel is given, what it may assume, what it is
 * called.
 *
 * A run is one or more stages. A stage divides its entries (indices, rows, grouped positions) among threads; each
 * thread calls the kernel with one `shf_part` per problem of the batch that it has a share in. Plans have checked
 * everything: shapes, lengths, offsets, sortedness. Kernels compute; they neither fail nor report.
 *
 * Reductions follow one order, whoever does the adding: a tree of fan-in SHF_FAN_IN over a group's places. Two
 * levels of it, SHF_CHUNK places, are one term of the levels above. A group (bag, segment, table row) that spans
 * several parts is *cut* at multiples of SHF_CHUNK from its start: each chunk's term goes to a slot in `partials`,
 * and the join adds the slots in order, once all are there. The cuts depend on threads; the sums do not. */
#ifndef SHF_CORE_KERNEL_H
#define SHF_CORE_KERNEL_H

#include <sheaf/plan.h>

/* The next multiple of 64: pieces of workspaces begin at cache lines. */
static inline int64_t shf_align64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

enum { SHF_FAN_IN = 16, SHF_CHUNK = SHF_FAN_IN * SHF_FAN_IN };

/* Rows are asked for at most so many entries early, by a reduction and by a copy. */
enum { SHF_MOST_AHEAD = 128, SHF_MOST_AHEAD_COPY = 256 };

/* Rows of one operand, once per problem of a batch. Strides in bytes; a batch stride of 0 shares the rows. */
typedef struct shf_matrix {
  char *data; /* NULL: not given */
  int64_t row_stride;
  int64_t batch_stride;
} shf_matrix;

/* Entries grouped by key, stable: sorted (key << shift | payload). The key is problem * keys + row or segment; the
 * payload is the entry's position in its problem, or its bag or value where only that matters. */
typedef struct shf_grouped {
  const uint64_t *entries;      /* NULL: this job is not grouped */
  const int64_t *problem_start; /* batch + 1 places in entries */
  int shift;
  int payload_is_bag;
  int payload_is_value; /* the rows of the job are the entries themselves, one column each */
  const void *bag_of; /* bag of each position (all problems), when neither payload nor bag_length gives it */
  int bag_of_wide;    /* 8 bytes each instead of 4 */
} shf_grouped;

/* How a reduction treats its loads. */
typedef enum shf_transform {
  SHF_LOAD_PLAIN = 0,
  SHF_LOAD_ZERO_AS_ONE = 1, /* prod backward: the product of what is not zero ... */
  SHF_LOAD_IS_ZERO = 2      /* ... and the number of zeros */
} shf_transform;

/* Whether indices name the same rows again and again, so that many of these lie in the caches. */
typedef enum shf_repetition { SHF_REPEAT_UNKNOWN = 0, SHF_REPEAT_NOT = 1, SHF_REPEAT_OFTEN = 2 } shf_repetition;

typedef struct shf_job {
  sheaf_category category;
  /* one problem's extents */
  int64_t dim;
  int64_t entries;    /* indices, ids or rows */
  int64_t groups;     /* bags, segments, or rows of the gradient */
  int64_t bag_length; /* matrix form: entries per bag; -1: offsets say */
  int64_t rows;       /* rows in `source` that indices may name: row_begin .. row_begin + rows - 1 ... */
  int64_t row_begin;
  int64_t total_rows; /* ... of a table of this many */
  int64_t padding;    /* the index that is skipped; -1: none */
  const char *no_row; /* bag sums: a row of zeros that stands for one that is skipped, or NULL */
  int64_t ahead;      /* entries whose rows are fetched early; 0: the rows fit the cache */
  int beside;         /* so many bytes ahead, line by line, each beside a line that is worked on; 0: as else (asking.c) */
  int again;          /* ... and once more half as far ahead (copies: only rows of 4, 8 and 16 whole lines) */
  int in_order;       /* rows that follow each other: so many bytes ahead, into the first level of the cache; 0: as else */
  int64_t row_bytes;  /* of a source row */
  shf_repetition repeats; /* bags whose rows are fetched early: how to ask for them */
  int fetch_source;   /* table gradient: rows of the source are fetched early too, not only those of the target: by decoding; */
  int source_beside;  /* or beside, each as a whole with a row that is added */
  /* operands */
  shf_matrix source;   /* what is read by row: table, data, gradient of the output */
  shf_matrix index;    /* indices or segment ids */
  shf_matrix offsets;  /* bag starts, with the end where offsets_end */
  shf_matrix weights;  /* per-sample weights */
  shf_matrix target;   /* what is written by row */
  shf_matrix arg;      /* extremes: written (forward) or read (backward) */
  shf_matrix grad_out; /* weights' gradient and segment backward: the output's gradient */
  shf_matrix forward;  /* forward output (weighted mean), or a reduction made in the workspace (acc rows) */
  shf_matrix counts;   /* acc per bag: mean's divisor; acc per cell: zeros or ties; int64 per segment: its rows */
  shf_grouped grouped;
  /* options */
  int offsets_wide, offsets_end;
  int64_t columns;   /* > 0: groups and payloads are cells of rows this wide, and dim is 1 (max backward) */
  int stream;        /* the output is too large for the cache and is stored past it; its rows are whole lines */
  int fill;          /* groups without entries are written too */
  int accumulate;    /* add to what the target holds */
  int mean;          /* table gradient: divide by counts[bag] */
  int mean_forward;  /* bags: which places count is wanted */
  int by_frequency;  /* table gradient: divide by the group's number of entries */
  int target_is_acc; /* target rows are acc, not elements */
  int arg_wide;      /* arg is 64-bit */
  int count_ties;    /* extremes: write the number of equal extremes to `counts` instead of arg */
  sheaf_dtype out_dtype;
  shf_transform transform;
  double empty; /* what a group without entries is filled with */
  /* memory of the stage */
  char *partials;
  int64_t slot_bytes;
} shf_job;

/* One thread's share of one problem. Entries and groups count within the problem (grouped: within its grouped
 * entries). */
typedef struct shf_part {
  int64_t problem;
  int64_t first_entry, last_entry; /* last is exclusive */
  int64_t first_group, last_group; /* groups that are written or, at the ends, cut */
  int64_t head_start;           /* where the group at first_entry begins; less than first_entry when it is cut there */
  int64_t tail_end;             /* where the last group ends; more than last_entry when it is cut there */
  int64_t head_slot, tail_slot; /* slot of chunk 0 of the group that is cut at either end */
  char *scratch;                /* this thread's, shf_scratch_bytes */
} shf_part;

/* A cut group, for the join: columns first_column .. last_column - 1 of it. */
typedef struct shf_cut {
  int64_t problem, group;
  int64_t slot, chunks;
  int64_t first_column, last_column;
  char *scratch;
} shf_cut;

typedef void shf_part_fn(const shf_job *job, const shf_part *part);
typedef void shf_join_fn(const shf_job *job, const shf_cut *cut);

/* One kernel: the stages its op is made of. */
typedef struct shf_kernel_row {
  sheaf_category category;
  uint16_t kind;
  sheaf_dtype element, index;
  sheaf_arch arch;
  shf_part_fn *reduce; /* forward reductions, and the table's gradient */
  shf_join_fn *join;
  shf_part_fn *prepare; /* what backward needs first: mean's divisors, the extreme again, products and zeros */
  shf_join_fn *prepare_join;
  shf_part_fn *apply; /* entry by entry: lookup, weights' gradient, segment backward */
} shf_kernel_row;

/* Bytes of one slot: dim terms and the sum of weights (extremes: dim values and their positions), and the number of
 * entries. */
static inline int64_t shf_slot_bytes(int64_t dim, int64_t acc_bytes, int extremes)
{
  return ((dim + 1) * acc_bytes + 7) / 8 * 8 + (extremes ? dim * 8 : 0) + 8;
}

/* Levels of the tree above the chunks of a group of `entries` entries. */
static inline int64_t shf_tree_levels(int64_t entries)
{
  int64_t levels = 1;
  for (int64_t chunks = entries / SHF_CHUNK + 1; chunks > 1; chunks = (chunks + SHF_FAN_IN - 1) / SHF_FAN_IN) levels++;
  return levels;
}

/* Bytes of a thread's scratch: a slot for the chunk at hand, and one vector per level of the tree. */
static inline int64_t shf_scratch_bytes(int64_t dim, int64_t acc_bytes, int extremes, int64_t entries)
{
  return shf_align64(shf_slot_bytes(dim, acc_bytes, extremes) + shf_tree_levels(entries) * (dim + 1) * acc_bytes);
}

#endif
