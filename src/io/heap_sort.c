/* io/heap_sort.c: sorting in place: no memory, and no order of the input that makes it slow. */
#include <string.h>

#include "io/io_impl.h"

enum { LARGEST_ITEM = 128 };

typedef struct heap_view {
  char *items;
  size_t size;
  shf_io_less *less;
  const void *context;
} heap_view;

static void exchange(char *left, char *right, size_t size)
{
  char held[LARGEST_ITEM];
  memcpy(held, left, size);
  memcpy(left, right, size);
  memcpy(right, held, size);
}

/* Lets the item at `root` sink until neither of its children, 2 * root + 1 and + 2 below `count`, is larger. */
static void sink(const heap_view *heap, size_t root, size_t count)
{
  size_t child;
  while ((child = 2 * root + 1) < count) {
    char *largest = heap->items + child * heap->size, *parent = heap->items + root * heap->size;
    if (child + 1 < count && heap->less(largest, largest + heap->size, heap->context)) {
      child++;
      largest += heap->size;
    }
    if (!heap->less(parent, largest, heap->context)) return;
    exchange(parent, largest, heap->size);
    root = child;
  }
}

void shf_io_sort(void *items, size_t count, size_t size, shf_io_less *less, const void *context)
{
  heap_view heap = {.items = items, .size = size, .less = less, .context = context};
  for (size_t root = count / 2; root > 0; root--) sink(&heap, root - 1, count);
  for (size_t last = count; last > 1; last--) {
    exchange(heap.items, heap.items + (last - 1) * size, size);
    sink(&heap, 0, last - 1);
  }
}
