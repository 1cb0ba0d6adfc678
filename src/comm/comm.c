/* comm/comm.c: communicators: opens engines, counts what is asked of them. */
#include "comm/comm.h"

#include <string.h>

#include "core/memory.h"

static sheaf_status find_engine(const char *name, const shf_engine **engine)
{
  if (strcmp(name, shf_engine_self.name) == 0) {
    *engine = &shf_engine_self;
    return SHEAF_OK;
  }
  SHF_REQUIRE(strcmp(name, "mpi") == 0, UNSUPPORTED, "'%.40s' is no engine; there are self and mpi", name);
  const char *why;
  const shf_comm_plugin *plugin = (const void *)shf_core_plugin(name, SHF_COMM_ABI, &why);
  SHF_REQUIRE(plugin, UNAVAILABLE, "the plug-in '%s' is not there: %s", name, why);
  *engine = plugin->engine;
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
  sheaf_comm *made = shf_core_alloc(sizeof *made);
  if (!made) return shf_core_no_memory("a communicator", sizeof *made);
  *made = (sheaf_comm){.engine = found};
  char why[SHF_COMM_TEXT] = "";
  if (found->open(handle, &made->state, &made->rank, &made->size, why) != 0) {
    shf_core_free(made, sizeof *made);
    return shf_core_fail(SHEAF_COMM, "the engine '%s' cannot be opened: %s", engine, why);
  }
  made->flags = shf_core_alloc((size_t)made->size * sizeof *made->flags);
  if (!made->flags) {
    size_t bytes = (size_t)made->size * sizeof *made->flags;
    sheaf_comm_close(made);
    return shf_core_no_memory("a communicator", bytes);
  }
  *comm = made;
  return SHEAF_OK;
}

void sheaf_comm_close(sheaf_comm *comm)
{
  if (!comm) return;
  comm->engine->close(comm->state);
  shf_core_free(comm->flags, (size_t)comm->size * sizeof *comm->flags);
  shf_core_free(comm, sizeof *comm);
}

int64_t sheaf_comm_rank(const sheaf_comm *comm) { return comm ? comm->rank : -1; }
int64_t sheaf_comm_size(const sheaf_comm *comm) { return comm ? comm->size : 0; }

sheaf_comm_stats sheaf_comm_statistics(const sheaf_comm *comm) { return comm ? comm->stats : (sheaf_comm_stats){0}; }

sheaf_status shf_comm_gather(sheaf_comm *comm, const void *mine, int64_t bytes, void *all)
{
  char why[SHF_COMM_TEXT] = "";
  comm->stats.agreements++;
  SHF_REQUIRE(comm->engine->gather(comm->state, mine, bytes, all, why) == 0, COMM, "%s: %s", comm->engine->name, why);
  return SHEAF_OK;
}

sheaf_status shf_comm_exchange(sheaf_comm *comm, const shf_message *send, int64_t sends, const shf_message *receive,
                               int64_t receives)
{
  char why[SHF_COMM_TEXT] = "";
  comm->stats.exchanges++;
  for (int64_t i = 0; i < sends; i++) comm->stats.bytes_sent += send[i].bytes;
  SHF_REQUIRE(comm->engine->exchange(comm->state, send, sends, receive, receives, why) == 0, COMM, "%s: %s",
              comm->engine->name, why);
  return SHEAF_OK;
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
  char *memory = shf_core_alloc(2 * (size_t)bytes), why[SHF_COMM_TEXT] = "";
  double times[MAX_REPEATS];
  int missing = !memory;
  sheaf_status status = shf_comm_gather(comm, &missing, sizeof missing, comm->flags);
  for (int64_t rank = 0; rank < comm->size; rank++) missing |= comm->flags[rank];
  if (status == SHEAF_OK && (missing || !memory))
    status = shf_core_no_memory("measuring a collective", 2 * (size_t)bytes);
  if (status == SHEAF_OK && memory) memset(memory, 0, 2 * (size_t)bytes);
  for (int i = -1; i < repeats && status == SHEAF_OK; i++) { /* the first one does not count */
    double time;
    if (comm->engine->measure(comm->state, collective, memory, memory + bytes, bytes, &time, why) != 0)
      status = shf_core_fail(SHEAF_COMM, "%s: %s", comm->engine->name, why);
    if (i >= 0) times[i] = time;
  }
  if (memory) shf_core_free(memory, 2 * (size_t)bytes);
  if (status != SHEAF_OK) return status;
  sort_times(times, repeats);
  *microseconds = times[repeats / 2];
  return SHEAF_OK;
}
