/* shard/pool.c: the memory and plans of one call, freed together. */
#include "shard/local.h"

sheaf_status shf_pool_get_on(shf_pool *pool, DLDevice device, int64_t bytes, void **memory)
{
  *memory = NULL;
  if (bytes == 0) return SHEAF_OK;
  SHF_REQUIRE(pool->count < MAX_POOL, INTERNAL, "a call uses more than %d blocks of memory", MAX_POOL);
  *memory = shf_buffer_get(pool->mesh, device, bytes);
  if (!*memory) return shf_core_no_memory("a sharded op", (size_t)bytes);
  pool->at[pool->count].memory = *memory;
  pool->at[pool->count].device = device;
  pool->at[pool->count++].bytes = bytes;
  return SHEAF_OK;
}

sheaf_status shf_pool_get(shf_pool *pool, int64_t bytes, void **memory)
{
  return shf_pool_get_on(pool, shf_host(), bytes, memory);
}

void shf_pool_free(shf_pool *pool)
{
  for (int i = 0; i < pool->count; i++)
    shf_buffer_put(pool->mesh, pool->at[i].device, pool->at[i].memory, pool->at[i].bytes);
  pool->count = 0;
  for (int i = 0; i < pool->plans; i++) sheaf_plan_free(pool->plan[i]);
  pool->plans = 0;
}
