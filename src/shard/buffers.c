/* shard/buffers.c: large buffers that a mesh keeps for its next calls.
 *
 * Fresh memory costs a page fault every 4 KiB, more than sending what is in it. What a call needs only while it runs is
 * therefore taken from here and given back: a mesh keeps the few largest. */
#include "shard/shard_impl.h"

enum { KEPT = 4, HEADER = 64, LEAST = 64 << 10 };

struct shf_buffers {
  int count;
  struct {
    char *block;
    size_t bytes;
  } at[KEPT];
};

sheaf_status shf_buffers_create(struct shf_buffers **buffers)
{
  *buffers = shf_core_alloc(sizeof **buffers);
  if (!*buffers) return shf_core_no_memory("a mesh", sizeof **buffers);
  (*buffers)->count = 0;
  return SHEAF_OK;
}

void shf_buffers_free(struct shf_buffers *buffers)
{
  for (int i = 0; buffers && i < buffers->count; i++) shf_core_free(buffers->at[i].block, buffers->at[i].bytes);
  if (buffers) shf_core_free(buffers, sizeof *buffers);
}

/* The kept block that fits best without wasting more than half of it; -1: none. */
static int find_fit(const struct shf_buffers *buffers, size_t bytes)
{
  int best = -1;
  for (int i = 0; i < buffers->count; i++) {
    size_t has = buffers->at[i].bytes;
    if (has >= bytes && has / 2 <= bytes && (best < 0 || has < buffers->at[best].bytes)) best = i;
  }
  return best;
}

void *shf_buffer_get(const sheaf_mesh *mesh, int64_t bytes)
{
  if (bytes == 0) return NULL;
  struct shf_buffers *buffers = mesh->buffers;
  size_t whole = (size_t)bytes + HEADER; /* the block's own size is written before what is handed out */
  char *block;
  int fit = find_fit(buffers, whole);
  if (fit >= 0) {
    block = buffers->at[fit].block;
    buffers->at[fit] = buffers->at[--buffers->count];
    return block + HEADER;
  }
  block = shf_core_alloc(whole);
  if (!block) return NULL;
  *(size_t *)(void *)block = whole;
  return block + HEADER;
}

void shf_buffer_put(const sheaf_mesh *mesh, void *memory)
{
  if (!memory) return;
  struct shf_buffers *buffers = mesh->buffers;
  char *block = (char *)memory - HEADER;
  size_t bytes = *(size_t *)(void *)block;
  if (bytes < LEAST) {
    shf_core_free(block, bytes);
    return;
  }
  if (buffers->count == KEPT) { /* the smallest of all goes */
    int least = 0;
    for (int i = 1; i < KEPT; i++)
      if (buffers->at[i].bytes < buffers->at[least].bytes) least = i;
    if (buffers->at[least].bytes >= bytes) {
      shf_core_free(block, bytes);
      return;
    }
    shf_core_free(buffers->at[least].block, buffers->at[least].bytes);
    buffers->at[least] = buffers->at[--buffers->count];
  }
  buffers->at[buffers->count].block = block;
  buffers->at[buffers->count++].bytes = bytes;
}
