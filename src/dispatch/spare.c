/* spare.c: small blocks for tensors and nodes, which every call makes and frees: a thread keeps a few of those it
 * frees, since the way to the allocator and back costs as much as the rest of a small call. The short way is inline, in
 * dispatch_impl.h. */
#include <pthread.h>

#include "core/memory.h"
#include "dispatch/dispatch_impl.h"

static pthread_key_t ending;
static int ending_made;

static void free_all(void *thread)
{
  shf_thread_state *mine = thread;
  mine->spare_watched = 0; /* what is freed after this, as by others when the thread ends, is watched anew */
  while (mine->spare_count > 0) shf_core_free(mine->spare[--mine->spare_count], SHF_SPARE_BYTES);
}

static void __attribute__((constructor)) make_ending(void) { ending_made = pthread_key_create(&ending, free_all) == 0; }

void *shf_spare_alloc_new(size_t bytes) { return shf_core_alloc(bytes); }

void shf_spare_free_first(void *memory, size_t bytes)
{
  shf_thread_state *mine = &shf_thread;
  if (bytes == SHF_SPARE_BYTES && mine->spare_count < SHF_SPARE_KEPT) {
    if (!mine->spare_watched) mine->spare_watched = ending_made && pthread_setspecific(ending, mine) == 0;
    if (mine->spare_watched) {
      mine->spare[mine->spare_count++] = memory;
      return;
    }
  }
  shf_core_free(memory, bytes);
}

void shf_spare_clear(void) { free_all(&shf_thread); }
