/* comm/comm.c: communicators: opens engines, counts what is asked of them. */
#define _GNU_SOURCE /* clock_gettime */
#include "comm/comm.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/cpu.h"
#include "core/device_api.h"
#include "core/memory.h"

static sheaf_status find_engine(const char *name, const shf_engine **engine)
{
  const char *why;
  *engine = NULL;
  if (strcmp(name, shf_engine_self.name) == 0) {
    *engine = &shf_engine_self;
  } else if (strcmp(name, "nccl") == 0) {
    const shf_device_api *api = shf_core_device_api(kDLCUDA, &why);
    SHF_REQUIRE(api, UNAVAILABLE, "the engine 'nccl' is in the plug-in 'cuda', which is not there: %s", why);
    *engine = api->engine;
  } else {
    SHF_REQUIRE(strcmp(name, "mpi") == 0, UNSUPPORTED, "'%.40s' is no engine; there are self, mpi and nccl", name);
    const shf_comm_plugin *plugin = (const void *)shf_core_plugin(name, SHF_COMM_ABI, &why);
    SHF_REQUIRE(plugin, UNAVAILABLE, "the plug-in '%s' is not there: %s", name, why);
    *engine = plugin->engine;
  }
  return SHEAF_OK;
}

/* ---- Engines that are told who they are -------------------------------------------------------------------------- */

/* What a rank tells the others before they open such an engine. */
typedef struct greeting {
  int failed;
  char id[SHF_COMM_ID], why[SHF_COMM_TEXT];
} greeting;

/* All ranks learn rank 0's id, or fail with the words of the first that cannot open the engine. */
static sheaf_status greet(sheaf_comm *bootstrap, const greeting *mine, shf_engine_start *start, const char *engine)
{
  size_t bytes = (size_t)start->size * sizeof(greeting);
  greeting *all = shf_core_alloc(bytes);
  if (!all) { /* it cannot hear the others, who wait for it */
    sheaf_status status = shf_core_no_memory("opening an engine", bytes);
    bootstrap->engine->abandon(bootstrap->state, sheaf_last_error());
    return status;
  }
  sheaf_status status = shf_comm_gather(bootstrap, mine, sizeof *mine, all);
  for (int64_t rank = 0; rank < start->size && status == SHEAF_OK; rank++)
    if (all[rank].failed)
      status = shf_core_fail(SHEAF_UNAVAILABLE, "rank %lld: the engine '%s' cannot be opened: %s", (long long)rank,
                             engine, all[rank].why);
  memcpy(start->id, all[0].id, sizeof start->id);
  shf_core_free(all, bytes);
  return status;
}

static sheaf_status start_device(const shf_engine *engine, const sheaf_nccl_handle *handle, shf_engine_start *start)
{
  static const sheaf_nccl_handle alone = SHEAF_INIT(sheaf_nccl_handle);
  if (!handle) handle = &alone;
  SHF_REQUIRE(handle->struct_size >= sizeof *handle, INVALID_PROBLEM,
              "handle: struct_size is %zu, not %zu; initialise it with its INIT macro", handle->struct_size,
              sizeof *handle);
  *start = (shf_engine_start){.handle = handle->comm, .size = 1, .device = handle->device};
  sheaf_comm *bootstrap = handle->comm ? NULL : handle->bootstrap;
  if (bootstrap) start->rank = bootstrap->rank, start->size = bootstrap->size;
  greeting mine = {0};
  mine.failed = engine->prepare(start, mine.why);
  memcpy(mine.id, start->id, sizeof mine.id);
  if (bootstrap) return greet(bootstrap, &mine, start, engine->name);
  SHF_REQUIRE(!mine.failed, UNAVAILABLE, "the engine '%s' cannot be opened: %s", engine->name, mine.why);
  return SHEAF_OK;
}

/* ---- Communicators ----------------------------------------------------------------------------------------------- */

sheaf_status shf_comm_open(const shf_engine *engine, const shf_engine_start *start, sheaf_comm **comm)
{
  sheaf_comm *made = shf_core_alloc(sizeof *made);
  if (!made) return shf_core_no_memory("a communicator", sizeof *made);
  *made = (sheaf_comm){.engine = engine, .device = start->device};
  char why[SHF_COMM_TEXT] = "";
  if (engine->open(start, &made->state, &made->rank, &made->size, why) != 0) {
    shf_core_free(made, sizeof *made);
    return shf_core_fail(SHEAF_COMM, "the engine '%s' cannot be opened: %s", engine->name, why);
  }
  if (engine->neighbours) shf_core_share_threads(engine->neighbours(made->state));
  made->flags = shf_core_alloc((size_t)made->size * sizeof *made->flags);
  if (!made->flags) {
    size_t bytes = (size_t)made->size * sizeof *made->flags;
    sheaf_comm_close(made);
    return shf_core_no_memory("a communicator", bytes);
  }
  *comm = made;
  return SHEAF_OK;
}

sheaf_status sheaf_comm_open(const char *engine, const void *handle, sheaf_comm **comm)
{
  SHF_REQUIRE(comm, INVALID_PROBLEM, "comm is NULL");
  *comm = NULL;
  SHF_REQUIRE(engine, INVALID_PROBLEM, "engine is NULL");
  const shf_engine *found = NULL;
  SHF_TRY(find_engine(engine, &found));
  if (!found) return SHEAF_UNAVAILABLE;
  shf_engine_start start = {.handle = handle};
  if (found->prepare) SHF_TRY(start_device(found, handle, &start));
  return shf_comm_open(found, &start, comm);
}

void sheaf_comm_close(sheaf_comm *comm)
{
  if (!comm) return;
  shf_comm_free_bounce(comm);
  comm->engine->close(comm->state);
  if (comm->flags) shf_core_free(comm->flags, (size_t)comm->size * sizeof *comm->flags);
  shf_core_free(comm, sizeof *comm);
}

int64_t sheaf_comm_rank(const sheaf_comm *comm) { return comm ? comm->rank : -1; }
int64_t sheaf_comm_size(const sheaf_comm *comm) { return comm ? comm->size : 0; }

sheaf_comm_stats sheaf_comm_statistics(const sheaf_comm *comm) { return comm ? comm->stats : (sheaf_comm_stats){0}; }

static double now_us(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

sheaf_status shf_comm_gather(sheaf_comm *comm, const void *mine, int64_t bytes, void *all)
{
  char why[SHF_COMM_TEXT] = "";
  comm->stats.agreements++;
  double begun = now_us();
  int failed = comm->engine->gather(comm->state, mine, bytes, all, why);
  comm->stats.engine_us += now_us() - begun;
  SHF_REQUIRE(!failed, COMM, "%s: %s", comm->engine->name, why);
  return SHEAF_OK;
}

sheaf_status shf_comm_start(sheaf_comm *comm, const shf_message *send, int64_t sends, const shf_message *receive,
                            int64_t receives, DLDevice device)
{
  const shf_engine *engine = comm->engine;
  char why[SHF_COMM_TEXT] = "";
  comm->stats.exchanges++;
  for (int64_t i = 0; i < sends; i++) comm->stats.bytes_sent += send[i].bytes;
  double begun = now_us();
  if ((device.device_type == kDLCUDA) != (engine->memory == kDLCUDA)) {
    sheaf_status status = shf_comm_bounce(comm, send, sends, receive, receives, device);
    comm->stats.engine_us += now_us() - begun;
    return status;
  }
  int failed = engine->start ? engine->start(comm->state, send, sends, receive, receives, why)
                             : engine->exchange(comm->state, send, sends, receive, receives, why);
  comm->stats.engine_us += now_us() - begun;
  SHF_REQUIRE(!failed, COMM, "%s: %s", engine->name, why);
  comm->is_under_way = engine->start != NULL;
  return SHEAF_OK;
}

sheaf_status shf_comm_finish(sheaf_comm *comm)
{
  char why[SHF_COMM_TEXT] = "";
  if (!comm->is_under_way) return SHEAF_OK;
  comm->is_under_way = 0;
  double begun = now_us();
  int failed = comm->engine->finish(comm->state, why);
  comm->stats.engine_us += now_us() - begun;
  SHF_REQUIRE(!failed, COMM, "%s: %s", comm->engine->name, why);
  return SHEAF_OK;
}

sheaf_status shf_comm_exchange(sheaf_comm *comm, const shf_message *send, int64_t sends, const shf_message *receive,
                               int64_t receives, DLDevice device)
{
  SHF_TRY(shf_comm_start(comm, send, sends, receive, receives, device));
  return shf_comm_finish(comm);
}

enum { MAX_REPEATS = 101 };

static void sort_times(double *times, int count)
{
  for (int i = 1; i < count; i++)
    for (int j = i; j > 0 && times[j] < times[j - 1]; j--) {
      double swap = times[j];
      times[j] = times[j - 1];
      times[j - 1] = swap;
    }
}

sheaf_status sheaf_comm_measure(sheaf_comm *comm, sheaf_collective collective, int64_t bytes, int repeats,
                                double *microseconds)
{
  SHF_REQUIRE(comm && microseconds, INVALID_PROBLEM, "%s is NULL", comm ? "microseconds" : "comm");
  SHF_REQUIRE((unsigned)collective <= SHEAF_ALL_TO_ALL && bytes >= 4 && repeats >= 1 && repeats <= MAX_REPEATS,
              INVALID_PROBLEM, "collective %d, %lld bytes or %d repeats cannot be measured", (int)collective,
              (long long)bytes, repeats);
  /* Whether a rank has the memory decides for all: one that has not would leave the others waiting. */
  char *memory = shf_comm_alloc(comm, 2 * (size_t)bytes), why[SHF_COMM_TEXT] = "";
  double times[MAX_REPEATS];
  int missing = !memory;
  sheaf_status status = shf_comm_gather(comm, &missing, sizeof missing, comm->flags);
  for (int64_t rank = 0; rank < comm->size; rank++) missing |= comm->flags[rank];
  if (status == SHEAF_OK && (missing || !memory))
    status = shf_core_no_memory("measuring a collective", 2 * (size_t)bytes);
  int on_device = comm->engine->memory == kDLCUDA;
  if (status == SHEAF_OK && memory && !on_device) memset(memory, 0, 2 * (size_t)bytes);
  if (status == SHEAF_OK && memory && on_device)
    status = sheaf_device_fill((DLDevice){kDLCUDA, comm->device}, memory, 0, 2 * (size_t)bytes, NULL);
  for (int i = -1; i < repeats && status == SHEAF_OK; i++) { /* the first one does not count */
    double time;
    if (comm->engine->measure(comm->state, collective, memory, memory + bytes, bytes, &time, why) != 0)
      status = shf_core_fail(SHEAF_COMM, "%s: %s", comm->engine->name, why);
    if (i >= 0) times[i] = time;
  }
  shf_comm_free(comm, memory, 2 * (size_t)bytes);
  if (status != SHEAF_OK) return status;
  sort_times(times, repeats);
  *microseconds = times[repeats / 2];
  return SHEAF_OK;
}
