/* core/memory.c: the allocator hook, and memory for tables. */
#define _GNU_SOURCE
#include "core/memory.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { BLOCK_ALIGNMENT = 64, HUGE_PAGE = 2 << 20 };

static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

static void *default_allocate(void *context, size_t bytes, size_t alignment)
{
  (void)context;
  if (bytes > SIZE_MAX - alignment) return NULL;
  return aligned_alloc(alignment, round_up(bytes, alignment));
}

static void default_release(void *context, void *memory, size_t bytes)
{
  (void)context;
  (void)bytes;
  free(memory);
}

static const sheaf_allocator default_allocator = {default_allocate, default_release, NULL};
static sheaf_allocator current_allocator = {default_allocate, default_release, NULL};

sheaf_status sheaf_set_allocator(const sheaf_allocator *allocator)
{
  SHF_REQUIRE(!allocator || (allocator->allocate && allocator->release), INVALID_PROBLEM,
              "an allocator needs both functions, allocate and release");
  current_allocator = allocator ? *allocator : default_allocator;
  return SHEAF_OK;
}

void *shf_core_alloc(size_t bytes)
{
  return bytes ? current_allocator.allocate(current_allocator.context, bytes, BLOCK_ALIGNMENT) : NULL;
}

void shf_core_free(void *memory, size_t bytes)
{
  if (memory) current_allocator.release(current_allocator.context, memory, bytes);
}

void shf_core_say_no_memory(const char *what, size_t bytes)
{
  shf_core_fail(SHEAF_OUT_OF_MEMORY, "%s needs %zu bytes, which could not be allocated", what, bytes);
}

/* Large memory from the default allocator is fresh from the kernel and therefore zero; other memory is cleared here,
 * since the promise is the same for every allocator. */
sheaf_status sheaf_table_alloc(size_t bytes, void **memory)
{
  SHF_REQUIRE(memory, INVALID_PROBLEM, "sheaf_table_alloc: memory is NULL");
  *memory = NULL;
  if (bytes == 0) return SHEAF_OK;
  if (bytes > SIZE_MAX / 2) return shf_core_no_memory("a table", bytes);
  if (current_allocator.allocate == default_allocate) {
    /* One huge page more than asked for, so that an aligned piece of the wanted length lies inside; the ends go
     * back. */
    size_t wanted = round_up(bytes, HUGE_PAGE), mapped = wanted + HUGE_PAGE;
    char *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return shf_core_no_memory("a table", bytes);
    char *aligned = (char *)round_up((size_t)base, HUGE_PAGE); /* NOLINT(performance-no-int-to-ptr) */
    size_t head = (size_t)(aligned - base), tail = mapped - head - wanted;
    if (head) munmap(base, head);
    if (tail) munmap(aligned + wanted, tail);
    madvise(aligned, wanted, MADV_HUGEPAGE);
    *memory = aligned;
    return SHEAF_OK;
  }
  void *block = current_allocator.allocate(current_allocator.context, bytes, HUGE_PAGE);
  if (!block) return shf_core_no_memory("a table", bytes);
  madvise(block, bytes, MADV_HUGEPAGE);
  __builtin_memset(block, 0, bytes);
  *memory = block;
  return SHEAF_OK;
}

void *shf_core_alloc_data(size_t bytes)
{
  void *memory = NULL;
  if (bytes < HUGE_PAGE) return shf_core_alloc(bytes);
  return sheaf_table_alloc(bytes, &memory) == SHEAF_OK ? memory : NULL;
}

void shf_core_free_data(void *memory, size_t bytes)
{
  if (bytes < HUGE_PAGE)
    shf_core_free(memory, bytes);
  else
    sheaf_table_free(memory, bytes);
}

void sheaf_table_free(void *memory, size_t bytes)
{
  if (!memory) return;
  if (current_allocator.allocate == default_allocate) {
    munmap(memory, round_up(bytes, HUGE_PAGE));
    return;
  }
  current_allocator.release(current_allocator.context, memory, bytes);
}
