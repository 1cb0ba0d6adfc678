/* comm/self.c: the engine of one rank: nobody to send to. */
#include <string.h>

#include "comm/comm.h"

/* NOLINTBEGIN(readability-non-const-parameter): the signatures of an engine */

static int self_open(const shf_engine_start *start, void **state, int64_t *rank, int64_t *size, char *why)
{
  (void)start, (void)why;
  *state = NULL;
  *rank = 0;
  *size = 1;
  return 0;
}

static void self_close(void *state) { (void)state; }

static int self_gather(void *state, const void *mine, int64_t bytes, void *all, char *why)
{
  (void)state, (void)why;
  memcpy(all, mine, (size_t)bytes);
  return 0;
}

static int self_exchange(void *state, const shf_message *send, int64_t sends, const shf_message *receive,
                         int64_t receives, char *why)
{
  (void)state, (void)send, (void)sends, (void)receive, (void)receives, (void)why;
  return 0; /* there is no other rank, so the lists are empty */
}

static void self_abandon(void *state, const char *sentence) { (void)state, (void)sentence; } /* nobody waits */

static int self_measure(void *state, sheaf_collective collective, char *send, char *receive, int64_t bytes,
                        double *microseconds, char *why)
{
  (void)state, (void)collective, (void)send, (void)receive, (void)bytes, (void)why;
  *microseconds = 0;
  return 0;
}

const shf_engine shf_engine_self = {.name = "self",
                                    .memory = kDLCPU,
                                    .open = self_open,
                                    .close = self_close,
                                    .gather = self_gather,
                                    .exchange = self_exchange,
                                    .abandon = self_abandon,
                                    .measure = self_measure};
/* NOLINTEND(readability-non-const-parameter) */
