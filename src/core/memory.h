/* core/memory.h: the one way Sheaf gets memory of its own. */
#ifndef SHF_CORE_MEMORY_H
#define SHF_CORE_MEMORY_H

#include "core/status.h"

/* Uninitialised memory from the allocator hook, aligned to 64 bytes; NULL when there is none or when bytes is 0.
 * Release it with the same byte count. Callers report OUT_OF_MEMORY in their own words, or with shf_core_no_memory. */
void *shf_core_alloc(size_t bytes);
void shf_core_free(void *memory, size_t bytes);

/* The same for rows and messages: what is large lies on huge pages, as tables do. */
void *shf_core_alloc_data(size_t bytes);
void shf_core_free_data(void *memory, size_t bytes);

/* Fails with OUT_OF_MEMORY: "<what> needs <bytes> bytes, which could not be allocated". */
void shf_core_say_no_memory(const char *what, size_t bytes) __attribute__((cold));
static inline sheaf_status shf_core_no_memory(const char *what, size_t bytes)
{
  shf_core_say_no_memory(what, bytes);
  return SHEAF_OUT_OF_MEMORY;
}

#endif
