/* sheaf/shard.h: tables spread over ranks. Where tensors lie, how an op may be computed there, what that costs, and
 * doing it.
 *
 * A *mesh* is an n-dimensional array of ranks, numbered row by row. A tensor on a mesh has one *placement* per mesh
 * dimension: whole on every rank, cut along one of its dimensions, or a sum (maximum ...) that still has to be made.
 * A *strategy* is one way to compute an op: placements of its inputs and output between which every rank can work
 * alone, up to the reductions that partial placements stand for.
 *
 * The first half (meshes, placements, strategies, costs) is arithmetic: it needs no ranks and works for a mesh of any
 * size. The second half (communicators, distributed tensors, ops on them) runs on the ranks of a mesh that was made
 * over a communicator. Its functions are *collective*, and marked so: every rank of the mesh calls them in the same
 * order with the same arguments (but for local data), and all get the same status. When one rank finds something wrong,
 * a bad index or no memory, all of them fail with its words: "rank 2: ...". No rank waits for one that gave up. But a
 * call has to name its mesh: one with NULL for what must be there, or without a single operand, fails on its rank
 * alone, and the others wait for it.
 */
#ifndef SHEAF_SHARD_H
#define SHEAF_SHARD_H

#include "device.h"
#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHEAF_MESH_MAX_DIMS = 6, SHEAF_SHARD_MAX_RANK = 8, SHEAF_SHARD_MAX_INPUTS = 3 };

/* ---- Communicators ------------------------------------------------------------------------------------------- */

typedef struct sheaf_comm sheaf_comm;

/* Opens an engine that moves bytes between ranks. `handle` is what the engine is to work in, borrowed; NULL: all of
 * it. Collective over its ranks.
 *   "self"  one rank, this process
 *   "mpi"   processes under mpirun; handle is a pointer to an MPI_Comm, NULL means MPI_COMM_WORLD. MPI is started when
 *           it was not, and then also ended when the process exits. Needs the plug-in libsheaf_mpi.so beside the
 *           library or in a folder of SHEAF_PLUGIN_PATH (separated by colons)
 *   "nccl"  CUDA devices; handle is a pointer to a sheaf_nccl_handle, NULL means one rank on device 0. Needs the
 *           plug-in libsheaf_cuda.so and, opened when it is first asked for, libnccl.so.2 (SHEAF_NCCL names another
 *           file)
 * Every engine moves tensors of CPU and device memory alike; those that it cannot reach are copied on the way. Where
 * several ranks of MPI are on one machine, each uses by default its share of that machine's threads
 * (sheaf_set_threads). UNAVAILABLE, with the file that was looked for, when the engine is not there. `*comm` is NULL on
 * failure. */
typedef struct sheaf_nccl_handle {
  size_t struct_size;
  int device;            /* this rank's CUDA device; each has one of its own */
  sheaf_comm *bootstrap; /* a communicator of the same ranks, such as "mpi", used once to find each other; NULL: one */
                         /* rank */
  void *comm;            /* an ncclComm_t to work in, borrowed: bootstrap is not read then */
} sheaf_nccl_handle;
#define SHEAF_NCCL_HANDLE_INIT SHEAF_INIT(sheaf_nccl_handle)
SHEAF_API sheaf_status sheaf_comm_open(const char *engine, const void *handle, sheaf_comm **comm);
SHEAF_API void sheaf_comm_close(sheaf_comm *comm);
SHEAF_API int64_t sheaf_comm_rank(const sheaf_comm *comm);
SHEAF_API int64_t sheaf_comm_size(const sheaf_comm *comm);

/* What this rank has asked of the engine so far. Bytes are those sent to other ranks. Agreement about errors and
 * arguments is counted apart: its messages are of fixed size, 32 bytes from each rank to all. */
typedef struct sheaf_comm_stats {
  int64_t exchanges;  /* collective steps that moved tensor data */
  int64_t bytes_sent; /* in them, by this rank */
  int64_t agreements; /* collective steps that only made sure that all ranks go on */
  double engine_us;   /* in all of them together, microseconds that this rank was in the engine, waiting for others */
                      /* too */
} sheaf_comm_stats;
SHEAF_API sheaf_comm_stats sheaf_comm_statistics(const sheaf_comm *comm);

/* How long the engine's own collectives take: the median of `repeats` runs on `bytes` bytes a rank, in microseconds (0
 * for an engine of one rank). Sheaf does not use them (its reductions have an order of their own); they are what it is
 * measured against. Collective. */
typedef enum sheaf_collective {
  SHEAF_ALL_REDUCE = 0,     /* every rank's bytes, as u32, added, to all */
  SHEAF_REDUCE_SCATTER = 1, /* the same, a part of the sum to each */
  SHEAF_ALL_GATHER = 2,     /* a part of the bytes from each to all */
  SHEAF_ALL_TO_ALL = 3      /* a part of the bytes from each to each */
} sheaf_collective;
SHEAF_API sheaf_status sheaf_comm_measure(sheaf_comm *comm, sheaf_collective collective, int64_t bytes, int repeats,
                                          double *microseconds);

/* ---- Meshes -------------------------------------------------------------------------------------------------- */

typedef struct sheaf_mesh sheaf_mesh;

/* A mesh of sizes[0] x sizes[1] x ... ranks, over a communicator of as many (borrowed, it outlives the mesh), or with
 * comm NULL over none: good for planning. Collective calls on the tensors of one communicator are made by one thread at
 * a time. A mesh keeps up to 64 buffers of past calls, of 4 GiB together and none above 1 GiB, for the next ones;
 * freeing it frees them. */
SHEAF_API sheaf_status sheaf_mesh_create(const int64_t *sizes, int dims, sheaf_comm *comm, sheaf_mesh **mesh);
SHEAF_API void sheaf_mesh_free(sheaf_mesh *mesh);
SHEAF_API int sheaf_mesh_dims(const sheaf_mesh *mesh);
SHEAF_API int64_t sheaf_mesh_size(const sheaf_mesh *mesh, int dim); /* ranks along a dimension; 0: no such one */
SHEAF_API int64_t sheaf_mesh_ranks(const sheaf_mesh *mesh);
SHEAF_API int64_t sheaf_mesh_rank(const sheaf_mesh *mesh); /* this process's; -1 without a communicator */

/* ---- Placements ---------------------------------------------------------------------------------------------- */

typedef enum sheaf_placement_kind {
  SHEAF_PLACE_REPLICATE = 0,    /* R: whole on every rank */
  SHEAF_PLACE_SHARD = 1,        /* S(dim): cut along a dimension of the tensor */
  SHEAF_PLACE_PARTIAL = 2,      /* P(op): each rank has a term; the tensor is their sum (maximum, minimum, product) */
  SHEAF_PLACE_MASK_PARTIAL = 3, /* MaskP: each rank has some rows of the tensor and zero bits elsewhere */
  SHEAF_PLACE_BAGS = 4          /* B: the entries of those bags that S(0) of the offsets gives to the rank */
} sheaf_placement_kind;

typedef enum sheaf_partial_op {
  SHEAF_PARTIAL_SUM = 0,
  SHEAF_PARTIAL_MAX = 1,
  SHEAF_PARTIAL_MIN = 2,
  SHEAF_PARTIAL_PROD = 3
} sheaf_partial_op;

/* One mesh dimension's placement. All zero is Replicate.
 *
 * Shard cuts n elements into chunks of c = ceil(n / ranks): rank r has [min(n, r c), min(n, (r + 1) c)). The last
 * shards may be short or empty. When two mesh dimensions cut the same dimension, the later one cuts the earlier one's
 * chunks.
 *
 * Partial values of f16 and bf16 are f32 in memory: they are rounded once, when they are reduced. Reductions go from
 * rank to rank in increasing order, so that a mesh always gives the same bits. MaskPartial is what a lookup in a table
 * cut by rows gives: a row is zero bits on every rank but the one that holds it, and adding bits as unsigned integers
 * restores it exactly, NaN and -0 included. It is made for one table: its shape and the dimension that was cut. */
typedef struct sheaf_placement {
  sheaf_placement_kind kind;
  int32_t dim;             /* SHARD; MASK_PARTIAL: the table's dimension that is cut, 0 */
  sheaf_partial_op op;     /* PARTIAL */
  int64_t offset_shape[2]; /* MASK_PARTIAL: the table's shape */
} sheaf_placement;

SHEAF_API sheaf_placement sheaf_replicate(void);
SHEAF_API sheaf_placement sheaf_shard(int dim);
SHEAF_API sheaf_placement sheaf_partial(sheaf_partial_op op);
SHEAF_API int sheaf_placement_equal(const sheaf_placement *a, const sheaf_placement *b);

/* "R", "S(0)", "P(sum)", "MaskP", "B". `print` writes at most `room` bytes, the end included, and returns the length
 * without it. `parse` also takes "S0"; INVALID_PROBLEM for anything else. */
SHEAF_API size_t sheaf_placement_print(const sheaf_placement *placement, char *text, size_t room);
SHEAF_API sheaf_status sheaf_placement_parse(const char *text, sheaf_placement *placement);

/* The part of a tensor of this shape that a rank has: its extent and first element in each dimension. Either output
 * may be NULL. INVALID_PROBLEM for a Shard of a dimension that is not there, and for Bags, whose parts the offsets
 * decide. */
SHEAF_API sheaf_status sheaf_local_shape(const sheaf_mesh *mesh, const sheaf_placement *placements, int rank_of_tensor,
                                         const int64_t *shape, int64_t rank, int64_t *local_shape, int64_t *offset);

/* ---- Costs --------------------------------------------------------------------------------------------------- */

/* What moving costs. Zero fields take the defaults, which are assumptions; `sheaf shard profile` measures a mesh. */
typedef struct sheaf_mesh_profile {
  size_t struct_size;
  double latency_us;       /* a message between two ranks; default 2.7 */
  double bandwidth_gbs;    /* what a rank can send, 1e9 bytes a second; default 20.7 */
  double memory_gbs;       /* what a rank's memory gives to local work; default 20 */
  double memory_limit;     /* bytes a rank may use; 0: no limit */
} sheaf_mesh_profile;
#define SHEAF_MESH_PROFILE_INIT SHEAF_INIT(sheaf_mesh_profile)

/* The cost of changing placements as PyTorch's DTensor reckons it, in microseconds; infinite when it has no way. It is
 * one step per mesh dimension, over a fixed path, with fixed constants: for comparing with its decisions. */
SHEAF_API double sheaf_compatible_cost(const sheaf_mesh *mesh, int rank_of_tensor, const int64_t *shape,
                                       int64_t element_bytes, const sheaf_placement *from, const sheaf_placement *to);

/* What Sheaf itself would do for the same: the most bytes any rank receives, steps, and the time by the profile. */
typedef struct sheaf_move_cost {
  double microseconds;
  double bytes; /* received by the busiest rank */
  int64_t steps;
} sheaf_move_cost;
SHEAF_API sheaf_status sheaf_redistribute_cost(const sheaf_mesh *mesh, int rank_of_tensor, const int64_t *shape,
                                               int64_t element_bytes, const sheaf_placement *from,
                                               const sheaf_placement *to, const sheaf_mesh_profile *profile,
                                               sheaf_move_cost *cost);

/* ---- Strategies ---------------------------------------------------------------------------------------------- */

/* An op on a mesh. Inputs, in order:
 *   LOOKUP                     table [V, D], indices                     output [indices..., D]
 *   LOOKUP_BACKWARD            grad_out [indices..., D], indices         output table_grad [V, D]
 *   BAG_SUM, MEAN, MAX         table, indices, offsets [B]               output [B, D]; weights lie as indices
 *   BAG_SUM, MEAN BACKWARD     grad_out [B, D], indices, offsets         output table_grad
 *   BAG_MAX_BACKWARD           grad_out [B, D], arg [B, D]               output table_grad
 *   segment, forward           data [N, D], ids [N]                      output [S, D]
 *   segment, backward          grad_out [S, D], ids [N]                  output data_grad [N, D]
 * In matrix form there are no offsets, and indices are [B, L]. */
typedef struct sheaf_shard_problem {
  size_t struct_size;
  const sheaf_mesh *mesh;
  sheaf_category category;
  uint16_t kind;
  sheaf_bag_form bag_form;
  sheaf_dtype dtype, index_dtype;
  int64_t rows;         /* V; segments: N. LOOKUP_BACKWARD: may be 0 for the compatible list */
  int64_t dim;          /* D */
  int index_rank;       /* dimensions of indices (ids: 1) */
  int64_t index_shape[SHEAF_SHARD_MAX_RANK];
  int64_t bags;         /* B; segments: S */
  sheaf_placement in[SHEAF_SHARD_MAX_INPUTS][SHEAF_MESH_MAX_DIMS]; /* where the inputs lie now */
  uint8_t out_wanted;                                             /* 1: the output shall lie as `out` says */
  sheaf_placement out[SHEAF_MESH_MAX_DIMS];
} sheaf_shard_problem;
#define SHEAF_SHARD_PROBLEM_INIT SHEAF_INIT(sheaf_shard_problem)

typedef struct sheaf_strategy {
  int inputs;
  uint8_t addition; /* Sheaf's own; not in DTensor's list */
  uint8_t dispatch; /* bit m: along mesh dimension m indices travel to the rows' owners and rows travel back */
  sheaf_placement out[SHEAF_MESH_MAX_DIMS];
  sheaf_placement in[SHEAF_SHARD_MAX_INPUTS][SHEAF_MESH_MAX_DIMS];
  double compatible_cost[SHEAF_SHARD_MAX_INPUTS]; /* of bringing each input there */
  double microseconds; /* Sheaf's estimate: inputs moved, local work, reductions, output moved to where it is wanted */
  double bytes_moved;  /* received by the busiest rank in all of that */
  double bytes_table;  /* of those, of the table (forward lookups and bags): 0 when it stays where it is */
  double bytes_memory; /* inputs, output and what is between them, on the busiest rank */
} sheaf_strategy;

typedef struct sheaf_strategy_list sheaf_strategy_list;

/* Everything that can be done: per mesh dimension the strategies of the op, over all dimensions their product, the last
 * dimension fastest, without those that cut a dimension of an input into more parts than it has elements (unless it
 * already lies so) or mix kinds of Partial. For LOOKUP and LOOKUP_BACKWARD, with `compatible` set, exactly DTensor's
 * list in its order; otherwise Sheaf's additions follow each dimension's own. `profile` may be NULL. */
SHEAF_API sheaf_status sheaf_strategies(const sheaf_shard_problem *problem, int compatible,
                                        const sheaf_mesh_profile *profile, sheaf_strategy_list **list);
SHEAF_API int64_t sheaf_strategy_count(const sheaf_strategy_list *list);
SHEAF_API const sheaf_strategy *sheaf_strategy_at(const sheaf_strategy_list *list, int64_t position);
SHEAF_API void sheaf_strategy_list_free(sheaf_strategy_list *list);

/* The position of the best one: among those that fit the profile's memory limit, one that leaves the table where it is
 * if there is such a one (a table is cut because it is large, and what moves is moved in every call); then the least
 * time, then the least memory, then the first. `reason` (optional, `room` bytes) says why in words. UNSUPPORTED when
 * none fits. */
SHEAF_API sheaf_status sheaf_strategy_choose(const sheaf_strategy_list *list, const sheaf_mesh_profile *profile,
                                             int64_t *position, char *reason, size_t room);

/* ---- Distributed tensors ------------------------------------------------------------------------------------- */

typedef struct sheaf_dtensor sheaf_dtensor;

typedef struct sheaf_dtensor_desc {
  size_t struct_size;
  sheaf_mesh *mesh; /* over a communicator; outlives the tensor */
  sheaf_dtype dtype;
  int rank;
  int64_t shape[SHEAF_SHARD_MAX_RANK]; /* of the whole; with Bags the number of all entries */
  sheaf_placement placements[SHEAF_MESH_MAX_DIMS];
  DLDevice device; /* this rank's CUDA device; {0, 0} is the CPU. Wrapped tensors have their local part's */
} sheaf_dtensor_desc;
#define SHEAF_DTENSOR_DESC_INIT SHEAF_INIT(sheaf_dtensor_desc)

/* A distributed tensor around this rank's part (borrowed, contiguous, of the shape that sheaf_local_shape gives; with
 * Bags of any length). Not collective. */
SHEAF_API sheaf_status sheaf_dtensor_wrap(const sheaf_dtensor_desc *desc, const DLTensor *local,
                                          sheaf_dtensor **tensor);

/* One with memory of its own, all bytes zero. Not collective. */
SHEAF_API sheaf_status sheaf_dtensor_create(const sheaf_dtensor_desc *desc, sheaf_dtensor **tensor);

SHEAF_API void sheaf_dtensor_free(sheaf_dtensor *tensor);

/* What it is, and this rank's part (contiguous, on its device; its data may be written). Both belong to the tensor. */
SHEAF_API const sheaf_dtensor_desc *sheaf_dtensor_describe(const sheaf_dtensor *tensor);
SHEAF_API const DLTensor *sheaf_dtensor_local(const sheaf_dtensor *tensor);

/* The same tensor lying otherwise, as a new one. Collective. Any placements to any others, but for Bags, which only ops
 * move. A rank receives only what it lacks; terms of a Partial are added in the order of ranks. */
SHEAF_API sheaf_status sheaf_dtensor_redistribute(const sheaf_dtensor *tensor, const sheaf_placement *placements,
                                                  sheaf_dtensor **moved);

/* ---- Ops on distributed tensors ------------------------------------------------------------------------------ */

/* How an op is to be done. All zero: the best strategy, its output as it comes. */
typedef struct sheaf_shard_call {
  size_t struct_size;
  const sheaf_strategy *strategy; /* the one to use, of sheaf_strategies; NULL: chosen */
  const sheaf_placement *out;     /* where the output shall lie, one per mesh dimension; NULL: as the strategy has it */
  const sheaf_mesh_profile *profile; /* for choosing */
  sheaf_strategy *chosen;         /* optional: what was used */
  uint8_t exact;                  /* 1: dispatched sums and means of bags have the bits of one rank: rows travel even */
                                  /* where ranks' sums would be less */
} sheaf_shard_call;
#define SHEAF_SHARD_CALL_INIT SHEAF_INIT(sheaf_shard_call)

/* Operands as in sheaf_embedding_args. Outputs are made by the call and freed by the caller; NULL: not wanted. */
typedef struct sheaf_shard_embedding_args {
  size_t struct_size;
  const sheaf_dtensor *table, *indices, *offsets, *weights, *grad_out, *arg;
  const sheaf_dtensor *forward; /* BAG_MEAN_BACKWARD, when weights_grad is wanted: the forward output */
  sheaf_dtensor **out;          /* forward kinds */
  sheaf_dtensor **arg_out;      /* BAG_MAX */
  sheaf_dtensor **table_grad;   /* backward kinds */
  sheaf_dtensor **weights_grad; /* BAG_SUM and MEAN BACKWARD, when weighted; `table` is read then. Lies as the */
                                /* strategy has the indices */
} sheaf_shard_embedding_args;
#define SHEAF_SHARD_EMBEDDING_ARGS_INIT SHEAF_INIT(sheaf_shard_embedding_args)

/* Runs an op of the embedding family. Collective. Of `desc` the kind and the options are read (bag form, padding, bad
 * indices, weighted, scale_grad_by_freq), and `rows` for backward kinds; extents and types come from the operands. The
 * gradient is always a new tensor (as SHEAF_GRAD_OVERWRITE).
 *
 * A quantised table is a u8 tensor of packed rows; `desc->dtype`, `dim` and `out_dtype` then say what it holds and
 * gives. Offsets with their end (SHEAF_BAGS_OFFSETS_END) are [bags + 1], each rank's with its own end, placed by Bags
 * where the indices are.
 *
 * Replicated, column-wise and batch-wise forward ops, row-wise lookups, and forward ops dispatched by rows give the
 * bits of one rank; row-wise bags, bags dispatched by pieces (see `exact`) and gradients that span ranks add in the
 * order of ranks, the same on every run. A lookup's MaskPartial, and the Partial of a sum or gradient, are left as they
 * are unless `call->out` asks for more; means and maxima are always completed (Replicate where the strategy says
 * Partial). */
SHEAF_API sheaf_status sheaf_shard_embedding_run(const sheaf_embedding_desc *desc, const sheaf_shard_call *call,
                                                 const sheaf_shard_embedding_args *args);

typedef struct sheaf_shard_segment_args {
  size_t struct_size;
  const sheaf_dtensor *data, *ids, *grad_out, *arg;
  sheaf_dtensor **out;       /* forward kinds */
  sheaf_dtensor **arg_out;   /* max and min */
  sheaf_dtensor **data_grad; /* backward kinds */
} sheaf_shard_segment_args;
#define SHEAF_SHARD_SEGMENT_ARGS_INIT SHEAF_INIT(sheaf_shard_segment_args)

/* Runs an op of the segment family. Collective. Of `desc` the kind, `segments`, and the options are read. */
SHEAF_API sheaf_status sheaf_shard_segment_run(const sheaf_segment_desc *desc, const sheaf_shard_call *call,
                                               const sheaf_shard_segment_args *args);

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

/* Writes distributed tensors as safetensors files with an index: `path` ends in ".safetensors.index.json", and each
 * rank writes its parts into a file beside it, `<stem>-<number>-<rank>-of-<ranks>.safetensors`. Collective. A tensor
 * that one rank has whole is stored under its name, as any reader of sharded safetensors expects; one that is cut is
 * stored in parts, `<name>.part-<rank>`, whose files say in their metadata where each belongs. Parts that several ranks
 * have are written once. The index comes last: until it is replaced, the old checkpoint is there as it was; afterwards
 * its files are removed. No Partial tensors. */
SHEAF_API sheaf_status sheaf_checkpoint_write(const char *path, const char *const *names,
                                              const sheaf_dtensor *const *tensors, int64_t count);

/* Reads one tensor back, under any mesh and placements (no Partial): those of `desc`, whose dtype, rank and shape must
 * be the tensor's, or dtype NONE to take all three from the checkpoint. Collective. A rank reads only its own part. */
SHEAF_API sheaf_status sheaf_checkpoint_read(const char *path, const char *name, const sheaf_dtensor_desc *desc,
                                             sheaf_dtensor **tensor);

#ifdef __cplusplus
}
#endif
#endif
