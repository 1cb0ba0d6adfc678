/* comm/comm.h: communicators: an engine (core/engine.h), counted, and the memory its messages may lie in. */
#ifndef SHF_COMM_COMM_H
#define SHF_COMM_COMM_H

#include "core/engine.h"
#include "core/plugin.h"
#include "core/status.h"

extern const shf_engine shf_engine_self;

/* What a plug-in with an engine gives (core/plugin.h). */
enum { SHF_COMM_ABI = 4 };
typedef struct shf_comm_plugin {
  shf_plugin_head head;
  const shf_engine *engine;
} shf_comm_plugin;

struct sheaf_comm {
  const shf_engine *engine;
  void *state;
  int64_t rank, size;
  int device; /* of engines whose messages lie on one */
  sheaf_comm_stats stats;
  int is_under_way; /* an exchange that was started */
  int *flags;       /* one for each rank, for sheaf_comm_measure */
  void *bounce;     /* for messages that lie where the engine cannot take them (bounce.c) */
  size_t bounce_bytes;
};

/* A communicator over an engine that is ready to open. */
sheaf_status shf_comm_open(const shf_engine *engine, const shf_engine_start *start, sheaf_comm **comm);

/* The primitives, counted. A failure is COMM; after it the communicator is of no use, and other ranks may wait: engines
 * are expected to end the job instead (MPI does). `device`: where all of the messages' bytes are; what was enqueued on
 * its default stream comes before. */
sheaf_status shf_comm_gather(sheaf_comm *comm, const void *mine, int64_t bytes, void *all);
sheaf_status shf_comm_exchange(sheaf_comm *comm, const shf_message *send, int64_t sends, const shf_message *receive,
                               int64_t receives, DLDevice device);

/* The same in two halves: between them a rank may work, but not communicate. Messages travel meanwhile as far as the
 * engine can do that; the data of both lists is left alone. */
sheaf_status shf_comm_start(sheaf_comm *comm, const shf_message *send, int64_t sends, const shf_message *receive,
                            int64_t receives, DLDevice device);
sheaf_status shf_comm_finish(sheaf_comm *comm);

/* Messages that lie in other memory than the engine's, by way of a buffer there: bounce.c. */
sheaf_status shf_comm_bounce(sheaf_comm *comm, const shf_message *send, int64_t sends, const shf_message *receive,
                             int64_t receives, DLDevice device);
void shf_comm_free_bounce(sheaf_comm *comm);

/* Memory where the engine's messages lie; NULL when there is none. */
void *shf_comm_alloc(const sheaf_comm *comm, size_t bytes);
void shf_comm_free(const sheaf_comm *comm, void *memory, size_t bytes);

#endif
