/* plan_cache.c: plans and workspaces kept for later calls.
 *
 * Each thread has a few plans at hand, found by a hash without touching anything that other threads write. Behind
 * them is one table for all threads, under a lock. Entries are counted: the table may forget one that threads still
 * hold. */
#include <pthread.h>

#include "core/cpu.h"
#include "layers/layers_impl.h"

enum { AT_HAND = 16, SHARED = 256, MOST_KEPT_BYTES = 256 << 20 };

typedef struct cached {
  shf_plan_key key;
  uint64_t hash;
  sheaf_plan *plan;
  atomic_int refs;
  char kernel_name[64];
} cached;

typedef struct local {
  cached *slot[AT_HAND];
  void *workspace;
  size_t bytes;
  int watched; /* freed when the thread ends */
} local;

static _Thread_local local mine;

static struct {
  pthread_mutex_t lock;
  cached *entry[SHARED];
  int next; /* the one to be forgotten next */
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void let_go(cached *entry)
{
  if (!entry || atomic_fetch_sub_explicit(&entry->refs, 1, memory_order_acq_rel) > 1) return;
  sheaf_plan_free(entry->plan);
  shf_core_free(entry, sizeof *entry);
}

static void empty_local(local *l)
{
  for (int i = 0; i < AT_HAND; i++) {
    let_go(l->slot[i]);
    l->slot[i] = NULL;
  }
  shf_core_free(l->workspace, l->bytes);
  l->workspace = NULL;
  l->bytes = 0;
}

/* ---- The end of a thread ---- */

static pthread_key_t ending;
static int ending_made;

static void at_end(void *l) { empty_local(l); }
static void __attribute__((constructor)) make_ending(void) { ending_made = pthread_key_create(&ending, at_end) == 0; }

static void watch(void)
{
  if (mine.watched || !ending_made) return;
  mine.watched = pthread_setspecific(ending, &mine) == 0;
}

/* ---- Looking up ---- */

static uint64_t hash_of(const shf_plan_key *key)
{
  const uint64_t k = 0x9E3779B97F4A7C15u;
  uint64_t h = (uint64_t)key->category;
  if (key->category == SHEAF_CATEGORY_EMBEDDING) {
    const sheaf_embedding_desc *d = &key->d.embedding;
    h = (h ^ (uint64_t)d->kind << 8 ^ (uint64_t)d->dtype << 16 ^ (uint64_t)d->rows << 20) * k;
    h = (h ^ (uint64_t)d->dim ^ (uint64_t)d->indices << 16) * k;
    h = (h ^ (uint64_t)d->bags ^ (uint64_t)d->batch << 24) * k;
  } else {
    const sheaf_segment_desc *d = &key->d.segment;
    h = (h ^ (uint64_t)d->kind << 8 ^ (uint64_t)d->dtype << 16 ^ (uint64_t)d->rows << 20) * k;
    h = (h ^ (uint64_t)d->dim ^ (uint64_t)d->segments << 16) * k;
  }
  return h ^ h >> 32;
}

static int same(const cached *entry, uint64_t hash, const shf_plan_key *key)
{
  if (!entry || entry->hash != hash) return 0;
  /* Keys are cleared before they are filled in, gaps included. NOLINTNEXTLINE */
  return memcmp(&entry->key, key, sizeof *key) == 0;
}

/* A counted reference out of the shared table, or NULL. */
static cached *find_shared(uint64_t hash, const shf_plan_key *key)
{
  cached *found = NULL;
  pthread_mutex_lock(&shared.lock);
  for (int i = 0; i < SHARED && !found; i++)
    if (same(shared.entry[i], hash, key)) found = shared.entry[i];
  if (found) atomic_fetch_add_explicit(&found->refs, 1, memory_order_relaxed);
  pthread_mutex_unlock(&shared.lock);
  return found;
}

static void share(cached *entry)
{
  pthread_mutex_lock(&shared.lock);
  cached *forgotten = shared.entry[shared.next];
  shared.entry[shared.next] = entry;
  shared.next = (shared.next + 1) % SHARED;
  atomic_fetch_add_explicit(&entry->refs, 1, memory_order_relaxed);
  pthread_mutex_unlock(&shared.lock);
  let_go(forgotten);
}

static sheaf_status select_new(uint64_t hash, const shf_plan_key *key, cached **made)
{
  sheaf_plan *plan;
  if (key->category == SHEAF_CATEGORY_EMBEDDING)
    SHF_TRY(sheaf_embedding_select(&key->d.embedding, NULL, &plan));
  else
    SHF_TRY(sheaf_segment_select(&key->d.segment, NULL, &plan));
  cached *entry = shf_core_alloc(sizeof *entry);
  if (!entry) {
    sheaf_plan_free(plan);
    return shf_core_no_memory("a cached plan", sizeof *entry);
  }
  entry->key = *key;
  entry->hash = hash;
  entry->plan = plan;
  sheaf_sku sku = sheaf_plan_sku(plan);
  memcpy(entry->kernel_name, sku.name, sizeof entry->kernel_name);
  atomic_init(&entry->refs, 1);
  share(entry);
  *made = entry;
  return SHEAF_OK;
}

static sheaf_status fetch(cached **slot, uint64_t hash, const shf_plan_key *key)
{
  cached *entry = find_shared(hash, key);
  if (!entry) SHF_TRY(select_new(hash, key, &entry));
  let_go(*slot);
  *slot = entry;
  watch();
  return SHEAF_OK;
}

sheaf_status shf_cache_plan(shf_plan_key *key, const sheaf_plan **plan, const char **kernel_name)
{
  key->threads = sheaf_threads();
  key->isa = (int)sheaf_isa_current();
  uint64_t hash = hash_of(key);
  cached **slot = &mine.slot[hash % AT_HAND];
  if (__builtin_expect(!same(*slot, hash, key), 0)) SHF_TRY(fetch(slot, hash, key));
  *plan = (*slot)->plan;
  *kernel_name = (*slot)->kernel_name;
  return SHEAF_OK;
}

/* ---- Workspace ---- */

sheaf_status shf_cache_workspace(DLDevice device, size_t bytes, void **workspace)
{
  if (device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged)
    return shf_place_workspace(device, bytes, workspace);
  if (bytes > mine.bytes || (mine.bytes > MOST_KEPT_BYTES && bytes < mine.bytes / 4)) {
    shf_core_free(mine.workspace, mine.bytes);
    mine.bytes = 0;
    mine.workspace = shf_core_alloc(bytes);
    if (bytes && !mine.workspace) return shf_core_no_memory("a workspace", bytes);
    mine.bytes = bytes;
    watch();
  }
  *workspace = mine.workspace;
  return SHEAF_OK;
}

void sheaf_clear_caches(void)
{
  empty_local(&mine);
  shf_spare_clear();
  shf_place_clear();
  cached *forgotten[SHARED];
  pthread_mutex_lock(&shared.lock);
  memcpy(forgotten, shared.entry, sizeof forgotten);
  memset(shared.entry, 0, sizeof shared.entry);
  shared.next = 0;
  pthread_mutex_unlock(&shared.lock);
  for (int i = 0; i < SHARED; i++) let_go(forgotten[i]);
}
