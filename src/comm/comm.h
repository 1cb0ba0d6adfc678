/* comm/comm.h: ranks that send bytes to each other, behind one small table of functions per engine.
 *
 * Two primitives carry everything. `gather` is a fixed number of bytes from every rank to every rank; agreement uses
 * it. `exchange` is any set of messages between pairs of ranks; all-to-all, all-gather and reduce-scatter are exchanges
 * whose messages the shard layer works out from boxes. Sums are made by the receiver, in the order of ranks, so an
 * engine never adds. */
#ifndef SHF_COMM_COMM_H
#define SHF_COMM_COMM_H

#include <sheaf/shard.h>

#include "core/plugin.h"
#include "core/status.h"

/* Bytes for or from one other rank. At most one message for a peer in each list, none for the rank itself, none empty;
 * peers increase. What one rank lists as sent to another, that one lists as received from it. */
typedef struct shf_message {
  int64_t peer;
  char *data;
  int64_t bytes;
} shf_message;

enum { SHF_COMM_TEXT = 256 };

/* An engine. Functions return 0, or 1 with a reason in `why` (SHF_COMM_TEXT bytes). */
typedef struct shf_engine {
  const char *name;
  int (*open)(const void *handle, void **state, int64_t *rank, int64_t *size, char *why);
  void (*close)(void *state);
  int (*gather)(void *state, const void *mine, int64_t bytes, void *all, char *why);
  int (*exchange)(void *state, const shf_message *send, int64_t sends, const shf_message *receive, int64_t receives,
                  char *why);
  /* For measuring: the engine's own collective on memory that is there already; how long it took this rank. */
  int (*measure)(void *state, sheaf_collective collective, char *send, char *receive, int64_t bytes,
                 double *microseconds, char *why);
} shf_engine;

extern const shf_engine shf_engine_self;

/* What a plug-in with an engine gives (core/plugin.h). */
enum { SHF_COMM_ABI = 1 };
typedef struct shf_comm_plugin {
  shf_plugin_head head;
  const shf_engine *engine;
} shf_comm_plugin;

struct sheaf_comm {
  const shf_engine *engine;
  void *state;
  int64_t rank, size;
  sheaf_comm_stats stats;
  int *flags; /* one for each rank, for sheaf_comm_measure */
};

/* The primitives, counted. A failure is COMM; after it the communicator is of no use, and other ranks may wait: engines
 * are expected to end the job instead (MPI does). */
sheaf_status shf_comm_gather(sheaf_comm *comm, const void *mine, int64_t bytes, void *all);
sheaf_status shf_comm_exchange(sheaf_comm *comm, const shf_message *send, int64_t sends, const shf_message *receive,
                               int64_t receives);

#endif
