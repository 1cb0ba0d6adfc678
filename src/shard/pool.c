/* shard/pool.c: the memory of one call, freed together. */
#include "shard/local.h"

sheaf_status shf_pool_get(shf_pool *pool, int64_t bytes, void **memory)
{
  *memory = NULL;
  if (bytes == 0) return SHEAF_OK;
  SHF_REQUIRE(pool->count < MAX_POOL, INTERNAL, "a call uses more than %d blocks of memory", MAX_POOL);
  *memory = shf_core_alloc((size_t)bytes);
  if (!*memory) return shf_core_no_memory("a sharded op", (size_t)bytes);
  pool->at[pool->count].memory = *memory;
  pool->at[pool->count++].bytes = (size_t)bytes;
  return SHEAF_OK;
}

void shf_pool_free(shf_pool *pool)
{
  for (int i = 0; i < pool->count; i++)
    if (pool->at[i].memory) shf_core_free(pool->at[i].memory, pool->at[i].bytes);
  pool->count = 0;
}

void shf_pool_keep(shf_pool *pool, const void *memory)
{
  for (int i = 0; memory && i < pool->count; i++)
    if (pool->at[i].memory == memory) pool->at[i].memory = NULL;
}
