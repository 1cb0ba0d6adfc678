/* 07_row_wise_mpi.c: trains a table that is cut by rows over ranks, and gets the loss curve of one rank to the bit.
 *
 *   ./07_row_wise_mpi                        one rank
 *   mpirun -n 4 ./07_row_wise_mpi            four, each with a quarter of the rows (Open MPI on a machine with fewer
 *                                            cores: mpirun --oversubscribe -n 4 ...)
 *   ./07_row_wise_mpi ENGINE                 with an engine of your choice: self, mpi
 *
 * The table never moves. A lookup gives each rank the rows it holds and zero bits elsewhere; adding the bits makes the
 * output whole. Backward, each rank keeps the gradient of its own rows and nothing is sent at all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sheaf/sheaf.h>

enum { ROWS = 1003, DIM = 16, BATCH = 256, STEPS = 20 }; /* 1003 rows: not every rank has as many */

static void must(sheaf_status status)
{
  if (status == SHEAF_OK) return;
  fprintf(stderr, "%s: %s\n", sheaf_status_name(status), sheaf_last_error());
  exit(1);
}

static uint32_t next_random(uint32_t *state) { return *state = *state * 1664525 + 1013904223; }

static sheaf_dtensor *make(sheaf_mesh *mesh, sheaf_dtype dtype, int rank, const int64_t *shape,
                           sheaf_placement placement)
{
  sheaf_dtensor_desc desc = SHEAF_DTENSOR_DESC_INIT;
  desc.mesh = mesh;
  desc.dtype = dtype;
  desc.rank = rank;
  memcpy(desc.shape, shape, (size_t)rank * sizeof *shape);
  desc.placements[0] = placement;
  sheaf_dtensor *tensor;
  must(sheaf_dtensor_create(&desc, &tensor));
  return tensor;
}

/* The target of a row: what its embedding should become. */
static float wanted(int64_t row, int d) { return (float)((row * 31 + d * 7) % 13 - 6) / 8; }

/* One step: look rows up, compare them with their targets, move the table against the gradient. Returns the loss. */
static double step(sheaf_dtensor *table, sheaf_dtensor *indices, sheaf_dtensor *grad_out)
{
  sheaf_placement whole = sheaf_replicate(), rows = sheaf_shard(0);
  sheaf_dtensor *out, *table_grad;
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  sheaf_shard_call call = SHEAF_SHARD_CALL_INIT;
  sheaf_shard_embedding_args args = SHEAF_SHARD_EMBEDDING_ARGS_INIT;
  args.table = table;
  args.indices = indices;
  args.out = &out;
  call.out = &whole;
  desc.bad_index = SHEAF_BAD_INDEX_ERROR;
  must(sheaf_shard_embedding_run(&desc, &call, &args));

  const float *got = sheaf_dtensor_local(out)->data;
  const int64_t *index = sheaf_dtensor_local(indices)->data;
  float *gradient = sheaf_dtensor_local(grad_out)->data;
  double loss = 0;
  for (int n = 0; n < BATCH; n++)
    for (int d = 0; d < DIM; d++) {
      float error = got[n * DIM + d] - wanted(index[n], d);
      loss += (double)(error * error) / (BATCH * DIM);
      gradient[n * DIM + d] = error;
    }
  sheaf_dtensor_free(out);

  args.grad_out = grad_out;
  args.table_grad = &table_grad;
  call.out = &rows;
  desc.kind = SHEAF_LOOKUP_BACKWARD;
  desc.rows = ROWS;
  must(sheaf_shard_embedding_run(&desc, &call, &args));
  const DLTensor *mine = sheaf_dtensor_local(table), *change = sheaf_dtensor_local(table_grad);
  for (int64_t i = 0; i < mine->shape[0] * DIM; i++) ((float *)mine->data)[i] -= 0.25f * ((float *)change->data)[i];
  sheaf_dtensor_free(table_grad);
  return loss;
}

/* Trains over all ranks of a communicator and notes the loss of each step. */
static void train(sheaf_comm *comm, double losses[STEPS])
{
  int64_t ranks = sheaf_comm_size(comm), table_shape[2] = {ROWS, DIM}, batch = BATCH, out_shape[2] = {BATCH, DIM};
  sheaf_mesh *mesh;
  must(sheaf_mesh_create(&ranks, 1, comm, &mesh));
  sheaf_dtensor *table = make(mesh, SHEAF_F32, 2, table_shape, sheaf_shard(0)); /* all zero */
  sheaf_dtensor *indices = make(mesh, SHEAF_I64, 1, &batch, sheaf_replicate());
  sheaf_dtensor *grad_out = make(mesh, SHEAF_F32, 2, out_shape, sheaf_replicate());
  uint32_t seed = 1;
  for (int s = 0; s < STEPS; s++) {
    int64_t *index = sheaf_dtensor_local(indices)->data;
    for (int n = 0; n < BATCH; n++) /* some rows are hot */
      index[n] = (next_random(&seed) >> 8 & (n % 2 ? 15 : 511)) * 97 % ROWS;
    losses[s] = step(table, indices, grad_out);
  }
  sheaf_dtensor_free(table);
  sheaf_dtensor_free(indices);
  sheaf_dtensor_free(grad_out);
  sheaf_mesh_free(mesh);
}

/* Each process of a program that was started without mpirun is a world of its own. */
static int is_under_mpirun(void)
{
  return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") || getenv("PMI_RANK"); /* Open MPI; MPICH and others */
}

int main(int argc, char **argv)
{
  sheaf_comm *comm, *self;
  double together[STEPS], alone[STEPS];
  must(sheaf_comm_open(argc > 1 ? argv[1] : is_under_mpirun() ? "mpi" : "self", NULL, &comm));
  must(sheaf_comm_open("self", NULL, &self));
  train(comm, together);
  train(self, alone);
  int same = 1;
  for (int s = 0; s < STEPS; s++) same &= together[s] == alone[s];
  if (sheaf_comm_rank(comm) == 0) {
    for (int s = 0; s < STEPS; s++) printf("step %2d  loss %.9f  on one rank %.9f\n", s, together[s], alone[s]);
    sheaf_comm_stats stats = sheaf_comm_statistics(comm);
    printf("%lld ranks; rank 0 sent %lld bytes in %lld exchanges; the losses are %s\n",
           (long long)sheaf_comm_size(comm), (long long)stats.bytes_sent, (long long)stats.exchanges,
           same ? "those of one rank, to the bit" : "DIFFERENT");
  }
  sheaf_comm_close(self);
  sheaf_comm_close(comm);
  return same ? 0 : 1;
}
