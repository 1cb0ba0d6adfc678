/* spare.c: small blocks for tensors and nodes, which every call makes and frees: a thread keeps a few of those it
 * frees, since the way to the allocator and back costs as much as the rest of a small call. */
#include <pthread.h>

#include "core/memory.h"
#include "dispatch/dispatch_impl.h"

/* Address sanitizers watch blocks of the allocator only, so with them none is kept. */
#if defined(__SANITIZE_ADDRESS__)
enum { BLOCK = 1024, MOST_KEPT = 0 };
#else
enum { BLOCK = 1024, MOST_KEPT = 16 };
#endif

typedef struct kept_blocks {
  void *block[MOST_KEPT + 1];
  int count;
  int watched; /* freed when the thread ends */
} kept_blocks;

static _Thread_local kept_blocks mine;

static pthread_key_t ending;
static int ending_made;

static void free_all(void *blocks)
{
  kept_blocks *kept = blocks;
  while (kept->count > 0) shf_core_free(kept->block[--kept->count], BLOCK);
}

static void __attribute__((constructor)) make_ending(void) { ending_made = pthread_key_create(&ending, free_all) == 0; }

void *shf_spare_alloc(size_t *bytes)
{
  if (*bytes > BLOCK) return shf_core_alloc(*bytes);
  *bytes = BLOCK;
  return mine.count > 0 ? mine.block[--mine.count] : shf_core_alloc(BLOCK);
}

void shf_spare_free(void *memory, size_t bytes)
{
  if (bytes == BLOCK && mine.count < MOST_KEPT) {
    if (!mine.watched) mine.watched = ending_made && pthread_setspecific(ending, &mine) == 0;
    if (mine.watched) {
      mine.block[mine.count++] = memory;
      return;
    }
  }
  shf_core_free(memory, bytes);
}

void shf_spare_clear(void) { free_all(&mine); }
