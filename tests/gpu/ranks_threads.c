/* ranks_threads.c: runs a program of tests/ranks as threads of one process, which all have the first CUDA device: NCCL
 * wants a device for each rank, and there is one. Between them is an engine of this file's own, which copies bytes.
 *
 *   <program> [ranks, default 4] [where messages lie: cuda (default) or cpu]
 *
 * SHEAF_RANKS_DEVICE=cpu needs no device (messages are cpu then). */
#define _GNU_SOURCE /* pthread_barrier_t, setenv */
#include <pthread.h>
#include <string.h>

#include "comm/comm.h"
#include "ranks/ranks.h"

enum { MOST = 16 };

/* What the threads share. */
static struct {
  int ranks;
  pthread_barrier_t barrier;
  const void *record[MOST];
  const shf_message *sent[MOST];
  int64_t sent_count[MOST];
} meeting;

typedef struct place {
  int rank;
} place;

static int open_place(const shf_engine_start *start, void **state, int64_t *rank, int64_t *size, char *why)
{
  (void)why;
  *state = (void *)start->handle;
  *rank = start->rank;
  *size = meeting.ranks;
  return 0;
}

static void close_place(void *state) { (void)state; }

static int gather(void *state, const void *mine, int64_t bytes, void *all, char *why)
{
  const place *p = state;
  (void)why;
  meeting.record[p->rank] = mine;
  pthread_barrier_wait(&meeting.barrier);
  for (int r = 0; r < meeting.ranks; r++) memcpy((char *)all + r * bytes, meeting.record[r], (size_t)bytes);
  pthread_barrier_wait(&meeting.barrier);
  return 0;
}

static shf_engine engine;

static int take(const shf_message *wanted, int rank, char *why)
{
  for (int64_t i = 0; i < meeting.sent_count[wanted->peer]; i++) {
    const shf_message *m = &meeting.sent[wanted->peer][i];
    if (m->peer != rank) continue;
    if (m->bytes != wanted->bytes) return snprintf(why, SHF_COMM_TEXT, "messages differ in length"), 1;
    if (engine.memory == kDLCPU) return memcpy(wanted->data, m->data, (size_t)m->bytes), 0;
    sheaf_status status = sheaf_device_copy(ranks_device, wanted->data, m->data, (size_t)m->bytes, NULL);
    if (status == SHEAF_OK) status = sheaf_stream_wait(ranks_device, NULL);
    return status == SHEAF_OK ? 0 : (snprintf(why, SHF_COMM_TEXT, "%.200s", sheaf_last_error()), 1);
  }
  return snprintf(why, SHF_COMM_TEXT, "rank %d gets nothing from %d", rank, (int)wanted->peer), 1;
}

static int exchange(void *state, const shf_message *send, int64_t sends, const shf_message *receive, int64_t receives,
                    char *why)
{
  const place *p = state;
  int failed = engine.memory == kDLCUDA && sheaf_stream_wait(ranks_device, NULL) != SHEAF_OK; /* it is computed */
  meeting.sent[p->rank] = send;
  meeting.sent_count[p->rank] = sends;
  pthread_barrier_wait(&meeting.barrier);
  for (int64_t i = 0; i < receives; i++) failed |= take(&receive[i], p->rank, why);
  pthread_barrier_wait(&meeting.barrier);
  return failed;
}

static void abandon(void *state, const char *sentence)
{
  (void)state;
  fprintf(stderr, "%s\n", sentence);
  abort();
}

static shf_engine engine = {.name = "threads",
                            .memory = kDLCUDA,
                            .open = open_place,
                            .close = close_place,
                            .gather = gather,
                            .exchange = exchange,
                            .abandon = abandon};

static void *run(void *argument)
{
  place *p = argument;
  shf_engine_start start = {.handle = p, .rank = p->rank};
  if (shf_comm_open(&engine, &start, &ranks_comm) != SHEAF_OK) abort();
  char name[] = "ranks", *arguments[] = {name, NULL};
  ranks_main(1, arguments);
  return NULL;
}

int main(int argc, char **argv)
{
  pthread_t threads[MOST];
  place places[MOST];
  int devices;
  setenv("SHEAF_RANKS_DEVICE", "cuda", 0);
  int on_device = strcmp(getenv("SHEAF_RANKS_DEVICE"), "cuda") == 0;
  if (on_device && (sheaf_device_count(kDLCUDA, &devices) != SHEAF_OK || devices < 1)) {
    printf("skipped: %s\n", sheaf_last_error());
    return 77;
  }
  meeting.ranks = argc > 1 ? atoi(argv[1]) : 4;
  if (meeting.ranks < 1 || meeting.ranks > MOST) return 2;
  if (!on_device || (argc > 2 && strcmp(argv[2], "cpu") == 0)) engine.memory = kDLCPU;
  pthread_barrier_init(&meeting.barrier, NULL, (unsigned)meeting.ranks);
  for (int r = 0; r < meeting.ranks; r++) {
    places[r].rank = r;
    if (pthread_create(&threads[r], NULL, run, &places[r]) != 0) abort();
  }
  for (int r = 0; r < meeting.ranks; r++) pthread_join(threads[r], NULL);
  return 0;
}
