/* heap.h: the library's memory from a heap that counts, and fails when it is told to. */
#ifndef SHEAF_TESTS_HEAP_H
#define SHEAF_TESTS_HEAP_H

#include <stddef.h>
#include <stdint.h>

typedef struct counted_heap {
  int64_t calls;              /* allocations asked for */
  int64_t failing;            /* which of them fails; -1: none */
  int64_t blocks;             /* that are held now */
  size_t live, peak, largest; /* bytes held, the most of them at once, the largest block asked for */
} counted_heap;
extern counted_heap heap;

/* Setup and teardown of a cmocka test. The first begins at zero; the second releases the test's tensors and fails when
 * blocks were lost. */
int use_counted_heap(void **state);
int use_own_heap(void **state);

#endif
