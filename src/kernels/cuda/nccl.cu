// nccl.cu: the engine over NCCL: messages between CUDA devices. libnccl.so.2 is opened when an engine is, so that nothing
// here is linked to it, and what is used of it is declared here: names and numbers that NCCL 2 keeps.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <mutex>
#include <new>

#include "cuda_impl.h"

namespace shf {

// ---- The library ----

typedef struct ncclComm *Comm;
struct UniqueId {
  char bytes[SHF_COMM_ID];
};
enum { NCCL_SUCCESS = 0, NCCL_INT8 = 0, NCCL_UINT32 = 3, NCCL_SUM = 0 };

struct Library {
  int (*GetUniqueId)(UniqueId *id);
  int (*CommInitRank)(Comm *comm, int ranks, UniqueId id, int rank);
  int (*CommDestroy)(Comm comm);
  int (*CommAbort)(Comm comm);
  int (*CommCount)(Comm comm, int *ranks);
  int (*CommUserRank)(Comm comm, int *rank);
  int (*AllGather)(const void *send, void *receive, size_t count, int type, Comm comm, cudaStream_t stream);
  int (*AllReduce)(const void *send, void *receive, size_t count, int type, int op, Comm comm, cudaStream_t stream);
  int (*ReduceScatter)(const void *send, void *receive, size_t count, int type, int op, Comm comm, cudaStream_t stream);
  int (*Send)(const void *data, size_t count, int type, int peer, Comm comm, cudaStream_t stream);
  int (*Recv)(void *data, size_t count, int type, int peer, Comm comm, cudaStream_t stream);
  int (*GroupStart)();
  int (*GroupEnd)();
  const char *(*GetErrorString)(int result);
};

static Library nccl;
static bool opened;
static char refusal[SHF_COMM_TEXT];

template <class Function> static void find(void *library, const char *name, Function *function)
{
  char symbol[64];
  snprintf(symbol, sizeof symbol, "nccl%s", name);
  void *found = dlsym(library, symbol);
  if (!found && !refusal[0]) snprintf(refusal, sizeof refusal, "NCCL has no function %s", symbol);
  memcpy(function, &found, sizeof found);
}

static void open_library()
{
  const char *named = getenv("SHEAF_NCCL"), *file = named && *named ? named : "libnccl.so.2";
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(refusal, sizeof refusal, "%.180s", dlerror());
    return;
  }
#define FIND(name) find(library, #name, &nccl.name)
  FIND(GetUniqueId), FIND(CommInitRank), FIND(CommDestroy), FIND(CommAbort), FIND(CommCount), FIND(CommUserRank);
  FIND(AllGather), FIND(AllReduce), FIND(ReduceScatter), FIND(Send), FIND(Recv), FIND(GroupStart), FIND(GroupEnd);
  FIND(GetErrorString);
#undef FIND
  opened = !refusal[0];
}

// ---- The engine ----

struct State {
  Comm comm;
  int device, rank, size;
  bool borrowed;
  char *records; // on the device: one from every rank, then this rank's own, for gather
  int64_t room;
};

static int refuse(char *why, const char *what, const char *reason)
{
  snprintf(why, SHF_COMM_TEXT, "%.80s: %.160s", what, reason);
  return 1;
}

#define TRY_NCCL(call, what)                                                       \
  do {                                                                             \
    int code = (call);                                                             \
    if (code != NCCL_SUCCESS) return refuse(why, what, nccl.GetErrorString(code)); \
  } while (0)
#define TRY_RUNTIME(call, what)                                                    \
  do {                                                                             \
    cudaError_t error = (call);                                                    \
    if (error != cudaSuccess) return refuse(why, what, cudaGetErrorString(error)); \
  } while (0)

static int nccl_prepare(shf_engine_start *start, char *why)
{
  static std::once_flag once;
  std::call_once(once, open_library);
  if (!opened) return refuse(why, "libnccl.so.2", refusal);
  int devices = 0;
  TRY_RUNTIME(cudaGetDeviceCount(&devices), "finding devices");
  if (start->device < 0 || start->device >= devices) {
    snprintf(why, SHF_COMM_TEXT, "there is no CUDA device %d; there are %d", start->device, devices);
    return 1;
  }
  static_assert(sizeof(UniqueId) == sizeof start->id, "an id is carried as it is");
  if (start->rank == 0 && !start->handle) {
    UniqueId id;
    TRY_NCCL(nccl.GetUniqueId(&id), "ncclGetUniqueId");
    memcpy(start->id, &id, sizeof id);
  }
  return 0;
}

static int open_on(const shf_engine_start *start, State *s, char *why)
{
  if (start->handle) {
    s->comm = (Comm)start->handle;
    s->borrowed = true;
    TRY_NCCL(nccl.CommCount(s->comm, &s->size), "ncclCommCount");
    TRY_NCCL(nccl.CommUserRank(s->comm, &s->rank), "ncclCommUserRank");
  } else {
    UniqueId id;
    memcpy(&id, start->id, sizeof id);
    s->rank = (int)start->rank;
    s->size = (int)start->size;
    TRY_NCCL(nccl.CommInitRank(&s->comm, s->size, id, s->rank), "ncclCommInitRank");
  }
  s->room = 1024;
  TRY_RUNTIME(cudaMalloc(&s->records, (size_t)(s->room * (s->size + 1))), "memory for records");
  return 0;
}

static void nccl_close(void *state)
{
  State *s = (State *)state;
  On on(s->device);
  cudaFree(s->records);
  if (s->comm && !s->borrowed) nccl.CommDestroy(s->comm);
  delete s;
}

static int nccl_open(const shf_engine_start *start, void **state, int64_t *rank, int64_t *size, char *why)
{
  State *s = new (std::nothrow) State();
  if (!s) return refuse(why, "opening NCCL", "out of memory");
  s->device = start->device;
  On on(start->device);
  if (open_on(start, s, why) != 0) {
    nccl_close(s);
    return 1;
  }
  *state = s;
  *rank = s->rank;
  *size = s->size;
  return 0;
}

// Everything goes over the default stream, in which what was computed before comes first.
static int nccl_gather(void *state, const void *mine, int64_t bytes, void *all, char *why)
{
  State *s = (State *)state;
  On on(s->device);
  if (bytes > s->room) return refuse(why, "gathering", "a record is too long");
  char *own = s->records + s->room * s->size;
  TRY_RUNTIME(cudaMemcpyAsync(own, mine, (size_t)bytes, cudaMemcpyDefault, 0), "copying a record");
  TRY_NCCL(nccl.AllGather(own, s->records, (size_t)bytes, NCCL_INT8, s->comm, 0), "ncclAllGather");
  TRY_RUNTIME(cudaMemcpyAsync(all, s->records, (size_t)(bytes * s->size), cudaMemcpyDefault, 0), "copying records");
  TRY_RUNTIME(cudaStreamSynchronize(0), "waiting for records");
  return 0;
}

static int nccl_exchange(void *state, const shf_message *send, int64_t sends, const shf_message *receive,
                         int64_t receives, char *why)
{
  const State *s = (const State *)state;
  On on(s->device);
  TRY_NCCL(nccl.GroupStart(), "ncclGroupStart");
  int result = NCCL_SUCCESS;
  for (int64_t i = 0; i < sends && result == NCCL_SUCCESS; i++)
    result = nccl.Send(send[i].data, (size_t)send[i].bytes, NCCL_INT8, (int)send[i].peer, s->comm, 0);
  for (int64_t i = 0; i < receives && result == NCCL_SUCCESS; i++)
    result = nccl.Recv(receive[i].data, (size_t)receive[i].bytes, NCCL_INT8, (int)receive[i].peer, s->comm, 0);
  int ended = nccl.GroupEnd();
  TRY_NCCL(result, "ncclSend or ncclRecv");
  TRY_NCCL(ended, "ncclGroupEnd");
  TRY_RUNTIME(cudaStreamSynchronize(0), "waiting for messages");
  return 0;
}

// NCCL has no way to end other processes: this one ends, and whoever started the job notices (mpirun does).
static void nccl_abandon(void *state, const char *sentence)
{
  const State *s = (const State *)state;
  fprintf(stderr, "sheaf: %s\n", sentence);
  nccl.CommAbort(s->comm);
  abort();
}

static int start_collective(const State *s, sheaf_collective collective, char *send, char *receive, size_t words,
                            size_t part)
{
  if (collective == SHEAF_ALL_REDUCE) return nccl.AllReduce(send, receive, words, NCCL_UINT32, NCCL_SUM, s->comm, 0);
  if (collective == SHEAF_REDUCE_SCATTER)
    return nccl.ReduceScatter(send, receive, part, NCCL_UINT32, NCCL_SUM, s->comm, 0);
  if (collective == SHEAF_ALL_GATHER) return nccl.AllGather(send, receive, part, NCCL_UINT32, s->comm, 0);
  int result = nccl.GroupStart();
  for (int peer = 0; peer < s->size && result == NCCL_SUCCESS; peer++) {
    result = nccl.Send(send + (size_t)peer * part * 4, part, NCCL_UINT32, peer, s->comm, 0);
    if (result == NCCL_SUCCESS)
      result = nccl.Recv(receive + (size_t)peer * part * 4, part, NCCL_UINT32, peer, s->comm, 0);
  }
  int ended = nccl.GroupEnd();
  return result == NCCL_SUCCESS ? ended : result;
}

static double now_us()
{
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int nccl_measure(void *state, sheaf_collective collective, char *send, char *receive, int64_t bytes,
                        double *microseconds, char *why)
{
  State *s = (State *)state;
  On on(s->device);
  size_t part = (size_t)(bytes / 4 / s->size), words = part * (size_t)s->size;
  char ready = 0, all[1024];
  if (s->size <= (int)sizeof all && nccl_gather(s, &ready, 1, all, why) != 0) return 1; /* all begin together */
  double start = now_us();
  TRY_NCCL(start_collective(s, collective, send, receive, words, part), "a collective");
  TRY_RUNTIME(cudaStreamSynchronize(0), "waiting for a collective");
  *microseconds = now_us() - start;
  return 0;
}

const shf_engine nccl_engine = {"nccl",      kDLCUDA,       nccl_prepare, nccl_open,   nccl_close,
                                nccl_gather, nccl_exchange, nccl_abandon, nccl_measure};

} // namespace shf
