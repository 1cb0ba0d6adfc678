/* profiler_layer.c: the Profiler key: one record per outer call, of all threads.
 *
 * Records lie in pieces that never move; a thread reserves the next place by counting up. The end waits for the calls
 * that are under way. */
#include <pthread.h>
#include <sched.h>

#include "layers/layers_impl.h"
#include "layers/profiler_impl.h"

static struct {
  pthread_mutex_t lock; /* begin, end, a new piece */
  enum { IDLE, TAKING, ENDING } state;
  int64_t start_ns;
  atomic_int session, threads, under_way;
  atomic_llong count, lost;
  _Atomic(sheaf_profile_record *) piece[SHF_PROFILE_PIECES];
} profiler = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local struct {
  int session, number;
} self;

/* ---- Recording ---- */

static sheaf_profile_record *make_piece(int64_t which)
{
  pthread_mutex_lock(&profiler.lock);
  sheaf_profile_record *piece = atomic_load(&profiler.piece[which]);
  if (!piece) {
    piece = shf_core_alloc(sizeof *piece * SHF_PROFILE_PIECE);
    for (int i = 0; piece && i < SHF_PROFILE_PIECE; i++) piece[i].op = NULL; /* no record yet */
    atomic_store_explicit(&profiler.piece[which], piece, memory_order_release);
  }
  pthread_mutex_unlock(&profiler.lock);
  return piece;
}

static sheaf_profile_record *reserve(void)
{
  int64_t place = atomic_fetch_add_explicit(&profiler.count, 1, memory_order_relaxed),
          which = place / SHF_PROFILE_PIECE;
  if (which >= SHF_PROFILE_PIECES) return NULL;
  sheaf_profile_record *piece = atomic_load_explicit(&profiler.piece[which], memory_order_acquire);
  if (!piece) piece = make_piece(which);
  return piece ? &piece[place % SHF_PROFILE_PIECE] : NULL;
}

static int thread_number(void)
{
  int session = atomic_load_explicit(&profiler.session, memory_order_relaxed);
  if (self.session != session) {
    self.session = session;
    self.number = atomic_fetch_add_explicit(&profiler.threads, 1, memory_order_relaxed);
  }
  return self.number;
}

static void describe_inputs(const sheaf_call *call, sheaf_profile_record *record)
{
  int count = call->input_count < SHEAF_PROFILE_SHAPES ? call->input_count : SHEAF_PROFILE_SHAPES;
  record->dtype = call->input_count ? sheaf_tensor_dtype(call->inputs[0]) : SHEAF_DTYPE_NONE;
  record->shapes = count;
  for (int i = 0; i < count; i++) {
    const sheaf_tensor *t = call->inputs[i];
    record->shape[i].rank = t ? t->rank : -1;
    for (int d = 0; d < 3; d++) record->shape[i].extent[d] = t && d < t->rank ? t->extent[d] : 0;
  }
}

static void write_record(const sheaf_call *call, const shf_tally *tally, int64_t start, int64_t end,
                         sheaf_status status)
{
  sheaf_profile_record *record = reserve();
  if (!record) {
    atomic_fetch_add_explicit(&profiler.lost, 1, memory_order_relaxed);
    return;
  }
  record->op = shf_op_name(call);
  memcpy(record->sku, tally->sku, sizeof record->sku);
  describe_inputs(call, record);
  record->bytes = tally->bytes;
  record->plan_runs = tally->runs;
  record->start_ns = start - profiler.start_ns;
  record->host_ns = end - start;
  record->device_ns = tally->device_ns;
  record->thread = thread_number();
  record->status = status;
}

static sheaf_status profile(const sheaf_call *call, const sheaf_frame *frame)
{
  shf_thread_state *thread = &shf_thread;
  atomic_fetch_add(&profiler.under_way, 1);
  if (!(atomic_load(&shf_everywhere) & SHF_BIT(SHEAF_KEY_PROFILER))) { /* it ended between the dispatch and here */
    atomic_fetch_sub(&profiler.under_way, 1);
    return shf_redispatch(call, frame);
  }
  shf_tally tally, *outer = thread->tally;
  sheaf_keyset exclude = thread->exclude;
  tally.bytes = tally.runs = tally.device_ns = 0;
  memset(tally.sku, 0, sizeof tally.sku);
  thread->tally = &tally;
  thread->exclude = sheaf_keyset_insert(exclude, SHEAF_KEY_PROFILER); /* calls that kernels make are part of this one */
  int64_t start = shf_now_ns();
  sheaf_status status = shf_redispatch(call, frame);
  int64_t end = shf_now_ns();
  thread->exclude = exclude;
  thread->tally = outer;
  write_record(call, &tally, start, end, status);
  atomic_fetch_sub_explicit(&profiler.under_way, 1, memory_order_release);
  return status;
}

const shf_layer shf_layer_profiler = {.any = profile};

/* ---- Begin and end ---- */

sheaf_status sheaf_profiler_begin(void)
{
  pthread_mutex_lock(&profiler.lock);
  int taking = profiler.state != IDLE;
  if (!taking) {
    profiler.state = TAKING;
    profiler.start_ns = shf_now_ns();
    atomic_store(&profiler.count, 0);
    atomic_store(&profiler.lost, 0);
    atomic_store(&profiler.threads, 0);
    atomic_fetch_add(&profiler.session, 1);
    atomic_fetch_or(&shf_everywhere, SHF_BIT(SHEAF_KEY_PROFILER));
  }
  pthread_mutex_unlock(&profiler.lock);
  SHF_REQUIRE(!taking, INVALID_PROBLEM, "a profile is being taken already");
  return SHEAF_OK;
}

/* Moves the pieces into a profile. Places that were reserved while memory was short have no record; others move up. */
static void take_records(sheaf_profile *made)
{
  int pieces = 0;
  memset(made->piece, 0, sizeof made->piece);
  for (int i = 0; i < SHF_PROFILE_PIECES; i++) {
    sheaf_profile_record *piece = atomic_exchange(&profiler.piece[i], NULL);
    if (piece) made->piece[pieces++] = piece;
  }
  made->count = 0;
  for (int i = 0; i < pieces; i++)
    for (int at = 0; at < SHF_PROFILE_PIECE; at++) {
      const sheaf_profile_record *from = &made->piece[i][at];
      sheaf_profile_record *to = &made->piece[made->count / SHF_PROFILE_PIECE][made->count % SHF_PROFILE_PIECE];
      if (!from->op) continue;
      if (to != from) *to = *from;
      made->count++;
    }
}

sheaf_status sheaf_profiler_end(sheaf_profile **profile)
{
  SHF_REQUIRE(profile, INVALID_PROBLEM, "sheaf_profiler_end: profile is NULL");
  *profile = NULL;
  SHF_REQUIRE(!shf_thread.tally, INVALID_PROBLEM, "a profile cannot end within a call that it records");
  sheaf_profile *made = shf_core_alloc(sizeof *made);
  if (!made) return shf_core_no_memory("a profile", sizeof *made);
  pthread_mutex_lock(&profiler.lock);
  int taking = profiler.state == TAKING;
  if (taking) {
    profiler.state = ENDING; /* until the records are taken out: none can begin before */
    atomic_fetch_and(&shf_everywhere, ~SHF_BIT(SHEAF_KEY_PROFILER));
  }
  pthread_mutex_unlock(&profiler.lock);
  if (!taking) {
    shf_core_free(made, sizeof *made);
    return shf_core_fail(SHEAF_INVALID_PROBLEM, "a profile is ended, but none is being taken");
  }
  while (atomic_load(&profiler.under_way) > 0) sched_yield();
  made->lost = atomic_load(&profiler.lost);
  take_records(made);
  pthread_mutex_lock(&profiler.lock);
  profiler.state = IDLE;
  pthread_mutex_unlock(&profiler.lock);
  *profile = made;
  return SHEAF_OK;
}

void sheaf_profile_free(sheaf_profile *profile)
{
  if (!profile) return;
  for (int i = 0; i < SHF_PROFILE_PIECES; i++)
    shf_core_free(profile->piece[i], sizeof *profile->piece[i] * SHF_PROFILE_PIECE);
  shf_core_free(profile, sizeof *profile);
}
