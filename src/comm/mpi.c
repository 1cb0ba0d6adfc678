/* comm/mpi.c: the engine over MPI, and the plug-in libsheaf_mpi.so around it. Any MPI-3 will do.
 *
 * MPI's own error handler stays in place: an error of MPI, or a rank that dies, ends the whole job with MPI's message.
 * Memory is malloc's: a plug-in does not call the library, and what is needed here is a few bytes a message. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"

enum { TAG = 77 };
static const int64_t piece_bytes = (int64_t)1 << 30; /* MPI counts in int */

typedef struct mpi_state {
  MPI_Comm comm; /* a duplicate: no message of the caller's can be mistaken for one of ours */
  MPI_Request *requests;
  int64_t room, posted;
} mpi_state;

static void finalize_at_exit(void)
{
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized) MPI_Finalize();
}

static int start_mpi(char *why)
{
  int initialized = 0, finalized = 0, provided = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (finalized) return snprintf(why, SHF_COMM_TEXT, "MPI was already ended in this process"), 1;
  if (initialized) return 0;
  if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
    return snprintf(why, SHF_COMM_TEXT, "MPI_Init_thread failed"), 1;
  atexit(finalize_at_exit);
  return 0;
}

static int mpi_open(const shf_engine_start *start, void **state, int64_t *rank, int64_t *size, char *why)
{
  if (start_mpi(why) != 0) return 1;
  mpi_state *made = calloc(1, sizeof *made);
  if (!made) return snprintf(why, SHF_COMM_TEXT, "out of memory"), 1;
  int my_rank, ranks;
  MPI_Comm_dup(start->handle ? *(const MPI_Comm *)start->handle : MPI_COMM_WORLD, &made->comm);
  MPI_Comm_rank(made->comm, &my_rank);
  MPI_Comm_size(made->comm, &ranks);
  *rank = my_rank;
  *size = ranks;
  *state = made;
  return 0;
}

static void mpi_close(void *state)
{
  mpi_state *s = state;
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized) MPI_Comm_free(&s->comm);
  free(s->requests);
  free(s);
}

static int64_t mpi_neighbours(void *state)
{
  const mpi_state *s = state;
  MPI_Comm here;
  int count = 1;
  MPI_Comm_split_type(s->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
  MPI_Comm_size(here, &count);
  MPI_Comm_free(&here);
  return count;
}

static int mpi_gather(void *state, const void *mine, int64_t bytes, void *all, char *why)
{
  const mpi_state *s = state;
  if (MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, s->comm) == MPI_SUCCESS) return 0;
  return snprintf(why, SHF_COMM_TEXT, "MPI_Allgather failed"), 1;
}

static int64_t pieces_of(const shf_message *list, int64_t count)
{
  int64_t pieces = 0;
  for (int64_t i = 0; i < count; i++) pieces += (list[i].bytes + piece_bytes - 1) / piece_bytes;
  return pieces;
}

/* Posts a list, receiving or sending; the number of requests so far. */
static int64_t post(const mpi_state *s, const shf_message *list, int64_t count, int receiving, int64_t posted)
{
  int rank, size;
  MPI_Comm_rank(s->comm, &rank);
  MPI_Comm_size(s->comm, &size);
  int64_t first = 0; /* begin behind the own rank, so that not all send to rank 0 at first */
  while (first < count && list[first].peer < rank) first++;
  for (int64_t i = 0; i < count; i++) {
    const shf_message *m = &list[(first + i) % count];
    for (int64_t at = 0; at < m->bytes; at += piece_bytes) {
      int bytes = (int)(m->bytes - at < piece_bytes ? m->bytes - at : piece_bytes);
      if (receiving)
        MPI_Irecv(m->data + at, bytes, MPI_BYTE, (int)m->peer, TAG, s->comm, &s->requests[posted++]);
      else
        MPI_Isend(m->data + at, bytes, MPI_BYTE, (int)m->peer, TAG, s->comm, &s->requests[posted++]);
    }
  }
  return posted;
}

/* Others already wait for this rank: end the job with a message rather than leave them waiting. */
static void mpi_abandon(void *state, const char *sentence)
{
  const mpi_state *s = state;
  fprintf(stderr, "sheaf: %s\n", sentence);
  MPI_Abort(s->comm, 1);
}

static int mpi_start(void *state, const shf_message *send, int64_t sends, const shf_message *receive, int64_t receives,
                     char *why)
{
  mpi_state *s = state;
  int64_t needed = pieces_of(send, sends) + pieces_of(receive, receives);
  if (needed > 0 && needed > s->room) {
    size_t bytes =
        (size_t)needed * sizeof(MPI_Request); /* NOLINT(bugprone-sizeof-expression): handles may be pointers */
    MPI_Request *more = realloc(s->requests, bytes);
    if (!more) {
      mpi_abandon(s, "no memory for MPI's requests");
      return snprintf(why, SHF_COMM_TEXT, "out of memory"), 1;
    }
    s->requests = more;
    s->room = needed;
  }
  s->posted = post(s, receive, receives, 1, 0);
  s->posted = post(s, send, sends, 0, s->posted);
  return 0;
}

static int mpi_finish(void *state, char *why)
{
  mpi_state *s = state;
  if (MPI_Waitall((int)s->posted, s->requests, MPI_STATUSES_IGNORE) == MPI_SUCCESS) return 0;
  return snprintf(why, SHF_COMM_TEXT, "MPI_Waitall failed"), 1;
}

static int mpi_exchange(void *state, const shf_message *send, int64_t sends, const shf_message *receive,
                        int64_t receives, char *why)
{
  return mpi_start(state, send, sends, receive, receives, why) || mpi_finish(state, why);
}

static int mpi_measure(void *state, sheaf_collective collective, char *send, char *receive, int64_t bytes,
                       double *microseconds, char *why)
{
  const mpi_state *s = state;
  int size, result = MPI_SUCCESS;
  MPI_Comm_size(s->comm, &size);
  if (bytes > piece_bytes) return snprintf(why, SHF_COMM_TEXT, "at most %lld bytes", (long long)piece_bytes), 1;
  int words = (int)(bytes / 4 / size * size), part = words / size;
  MPI_Barrier(s->comm);
  double start = MPI_Wtime();
  if (collective == SHEAF_ALL_REDUCE) result = MPI_Allreduce(send, receive, words, MPI_UINT32_T, MPI_SUM, s->comm);
  if (collective == SHEAF_REDUCE_SCATTER)
    result = MPI_Reduce_scatter_block(send, receive, part, MPI_UINT32_T, MPI_SUM, s->comm);
  if (collective == SHEAF_ALL_GATHER)
    result = MPI_Allgather(send, part, MPI_UINT32_T, receive, part, MPI_UINT32_T, s->comm);
  if (collective == SHEAF_ALL_TO_ALL)
    result = MPI_Alltoall(send, part, MPI_UINT32_T, receive, part, MPI_UINT32_T, s->comm);
  *microseconds = (MPI_Wtime() - start) * 1e6;
  if (result == MPI_SUCCESS) return 0;
  return snprintf(why, SHF_COMM_TEXT, "a collective failed"), 1;
}

static const shf_engine engine = {.name = "mpi",
                                  .memory = kDLCPU,
                                  .open = mpi_open,
                                  .close = mpi_close,
                                  .gather = mpi_gather,
                                  .exchange = mpi_exchange,
                                  .abandon = mpi_abandon,
                                  .measure = mpi_measure,
                                  .start = mpi_start,
                                  .finish = mpi_finish,
                                  .neighbours = mpi_neighbours};

static const shf_comm_plugin plugin = {{SHF_COMM_ABI, SHEAF_VERSION_STRING}, &engine};

SHEAF_API shf_plugin_entry sheaf_plugin;
const shf_plugin_head *sheaf_plugin(const shf_plugin_host *host)
{
  (void)host;
  return &plugin.head;
}
