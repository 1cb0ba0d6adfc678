/* core/engine.h: what moves bytes between ranks: one small table of functions per engine.
 *
 * Two primitives carry everything. `gather` is a fixed number of bytes from every rank to every rank; agreement uses
 * it. `exchange` is any set of messages between pairs of ranks; all-to-all, all-gather and reduce-scatter are exchanges
 * whose messages the shard layer works out from boxes. Sums are made by the receiver, in the order of ranks, so an
 * engine never adds. */
#ifndef SHF_CORE_ENGINE_H
#define SHF_CORE_ENGINE_H

#include <sheaf/shard.h>

/* Bytes for or from one other rank. At most one message for a peer in each list, none for the rank itself, none empty;
 * peers increase. What one rank lists as sent to another, that one lists as received from it. */
typedef struct shf_message {
  int64_t peer;
  char *data;
  int64_t bytes;
} shf_message;

enum { SHF_COMM_TEXT = 256, SHF_COMM_ID = 128 };

/* What an engine starts from: one that finds its ranks itself reads `handle`; one that is told who it is, the rest. */
typedef struct shf_engine_start {
  const void *handle;
  int64_t rank, size;
  int device;
  char id[SHF_COMM_ID]; /* the same on all ranks: made by `prepare` on rank 0 */
} shf_engine_start;

/* An engine. Functions return 0, or 1 with a reason in `why` (SHF_COMM_TEXT bytes). */
typedef struct shf_engine {
  const char *name;
  int memory; /* where messages lie: kDLCPU or kDLCUDA. What `gather` is given is always in the CPU's memory */
  /* Everything that one rank can find wrong alone, before ranks wait for each other in `open`; NULL: nothing. Makes the
   * id on rank 0. */
  int (*prepare)(shf_engine_start *start, char *why);
  int (*open)(const shf_engine_start *start, void **state, int64_t *rank, int64_t *size, char *why);
  void (*close)(void *state);
  int (*gather)(void *state, const void *mine, int64_t bytes, void *all, char *why);
  int (*exchange)(void *state, const shf_message *send, int64_t sends, const shf_message *receive, int64_t receives,
                  char *why);
  /* Ends the job: others wait for this rank, which cannot go on. */
  void (*abandon)(void *state, const char *sentence);
  /* For measuring: the engine's own collective on memory that is there already; how long it took this rank. */
  int (*measure)(void *state, sheaf_collective collective, char *send, char *receive, int64_t bytes,
                 double *microseconds, char *why);
  /* `exchange` in two halves, so that a rank can work while its messages travel; NULL: there are none. One exchange at
   * a time is under way; what `start` was given besides the bytes may be gone when `finish` is called. */
  int (*start)(void *state, const shf_message *send, int64_t sends, const shf_message *receive, int64_t receives,
               char *why);
  int (*finish)(void *state, char *why);
  /* How many of its ranks are on this machine, this one among them. Collective; NULL: it does not know. */
  int64_t (*neighbours)(void *state);
} shf_engine;

#endif
