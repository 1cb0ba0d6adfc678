/* heap.c: an allocator for sheaf_set_allocator that counts and fails. */
#include "heap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tensors.h"

counted_heap heap;

static void *counted_allocate(void *context, size_t bytes, size_t alignment)
{
  (void)context;
  if (heap.calls++ == heap.failing) return NULL;
  heap.blocks++;
  heap.live += bytes;
  if (heap.live > heap.peak) heap.peak = heap.live;
  if (bytes > heap.largest) heap.largest = bytes;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void counted_release(void *context, void *memory, size_t bytes)
{
  (void)context;
  heap.blocks--;
  heap.live -= bytes;
  free(memory);
}

int use_counted_heap(void **state)
{
  (void)state;
  static const sheaf_allocator counted = {counted_allocate, counted_release, NULL};
  sheaf_clear_caches();
  heap = (counted_heap){.failing = -1};
  return sheaf_set_allocator(&counted) == SHEAF_OK ? 0 : -1;
}

int use_own_heap(void **state)
{
  tensors_teardown(state);
  sheaf_clear_caches();
  if (heap.blocks != 0) print_message("%lld blocks were lost\n", (long long)heap.blocks);
  return sheaf_set_allocator(NULL) == SHEAF_OK && heap.blocks == 0 ? 0 : -1;
}
