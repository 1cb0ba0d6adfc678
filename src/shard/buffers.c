/* shard/buffers.c: large buffers that a mesh keeps for its next calls.
 *
 * Fresh memory costs a page fault every 4 KiB, more than sending what is in it, and on a device it stops everything.
 * What calls and their outputs need is therefore taken from here and given back: a mesh keeps what was used last. Sizes
 * are rounded up by at most an eighth, so that a block serves calls of nearly the same size. */
#include "shard/shard_impl.h"

enum { KEPT = 64, LEAST = 64 << 10, LARGEST = 1 << 30 };
static const int64_t all_bytes = (int64_t)4 << 30; /* of everything that is kept */

struct shf_buffers {
  int count;
  int64_t bytes;
  struct kept {
    char *block;
    int64_t bytes;
    DLDevice device;
  } at[KEPT]; /* in the order in which they were given back */
};

sheaf_status shf_buffers_create(struct shf_buffers **buffers)
{
  *buffers = shf_core_alloc(sizeof **buffers);
  if (!*buffers) return shf_core_no_memory("a mesh", sizeof **buffers);
  (*buffers)->count = 0;
  (*buffers)->bytes = 0;
  return SHEAF_OK;
}

static void release(DLDevice device, void *block, int64_t bytes)
{
  if (device.device_type == kDLCUDA)
    (void)sheaf_device_free(device, block);
  else
    shf_core_free_data(block, (size_t)bytes);
}

void shf_buffers_free(struct shf_buffers *buffers)
{
  for (int i = 0; buffers && i < buffers->count; i++)
    release(buffers->at[i].device, buffers->at[i].block, buffers->at[i].bytes);
  if (buffers) shf_core_free(buffers, sizeof *buffers);
}

/* What is allocated for so many bytes: a multiple of an eighth of their highest power of two. */
static int64_t rounded(int64_t bytes)
{
  if (bytes < LEAST) return bytes;
  int64_t step = 1;
  while (step <= bytes / 16) step *= 2;
  return (bytes + step - 1) / step * step;
}

/* Takes a block out of those that are kept. */
static struct kept take(struct shf_buffers *buffers, int place)
{
  struct kept taken = buffers->at[place];
  buffers->count--;
  buffers->bytes -= taken.bytes;
  for (int i = place; i < buffers->count; i++) buffers->at[i] = buffers->at[i + 1];
  return taken;
}

static int is_on(DLDevice a, DLDevice b) { return a.device_type == b.device_type && a.device_id == b.device_id; }

void *shf_buffer_get(const sheaf_mesh *mesh, DLDevice device, int64_t bytes)
{
  if (bytes == 0) return NULL;
  struct shf_buffers *buffers = mesh->buffers;
  int64_t whole = rounded(bytes);
  for (int i = buffers->count - 1; i >= 0; i--) /* the last one may still be in the cache */
    if (buffers->at[i].bytes == whole && is_on(buffers->at[i].device, device)) return take(buffers, i).block;
  void *block = NULL;
  if (device.device_type != kDLCUDA) return shf_core_alloc_data((size_t)whole);
  return sheaf_device_alloc(device, (size_t)whole, &block) == SHEAF_OK ? block : NULL;
}

void shf_buffer_put(const sheaf_mesh *mesh, DLDevice device, void *memory, int64_t bytes)
{
  if (!memory) return;
  struct shf_buffers *buffers = mesh->buffers;
  bytes = rounded(bytes);
  if (bytes < LEAST || bytes > LARGEST) {
    release(device, memory, bytes);
    return;
  }
  while (buffers->count == KEPT || (buffers->count && buffers->bytes + bytes > all_bytes)) {
    struct kept oldest = take(buffers, 0);
    release(oldest.device, oldest.block, oldest.bytes);
  }
  buffers->at[buffers->count++] = (struct kept){memory, bytes, device};
  buffers->bytes += bytes;
}
