/* tests/ranks/ranks.c: see ranks.h. */
#include "ranks.h"

#include <string.h>

_Thread_local int64_t ranks_rank, ranks_size;
_Thread_local sheaf_comm *ranks_comm;
DLDevice ranks_device = {kDLCPU, 0};

#ifndef RANKS_ARE_THREADS
int main(int argc, char **argv) { return ranks_main(argc, argv); }
#endif

void ranks_open(void)
{
  const char *engine = getenv("SHEAF_RANKS_ENGINE"), *device = getenv("SHEAF_RANKS_DEVICE");
  if (device && strcmp(device, "cuda") == 0) ranks_device = (DLDevice){kDLCUDA, 0};
  if (!ranks_comm) {
    OK(sheaf_comm_open(engine ? engine : "mpi", NULL, &ranks_comm));
    ranks_rank = sheaf_comm_rank(ranks_comm);
    sheaf_set_threads(1 + (int)(ranks_rank % 2)); /* ranks need not be alike */
  }
  ranks_rank = sheaf_comm_rank(ranks_comm);
  ranks_size = sheaf_comm_size(ranks_comm);
}

int ranks_close(const char *name, int64_t checks)
{
  if (ranks_rank == 0) printf("%s: %lld cases on %lld ranks\n", name, (long long)checks, (long long)ranks_size);
  sheaf_comm_close(ranks_comm);
  return 0;
}

static size_t bytes_of(const DLTensor *t)
{
  size_t bytes = t->dtype.bits / 8u;
  for (int d = 0; d < t->ndim; d++) bytes *= (size_t)t->shape[d];
  return bytes;
}

static void copy(DLDevice device, void *to, const void *from, size_t bytes)
{
  if (device.device_type != kDLCUDA) {
    if (bytes) memcpy(to, from, bytes);
    return;
  }
  OK(sheaf_device_copy(device, to, from, bytes, NULL));
  OK(sheaf_stream_wait(device, NULL));
}

void *ranks_read(const DLTensor *tensor)
{
  void *data = malloc(bytes_of(tensor) + 1);
  CHECK(data, "no memory");
  copy(tensor->device, data, tensor->data, bytes_of(tensor));
  return data;
}

void ranks_write(const DLTensor *tensor, const void *data)
{
  copy(tensor->device, tensor->data, data, bytes_of(tensor));
}

int ranks_meshes(ranks_mesh list[RANKS_MAX_MESHES])
{
  int count = 0;
  list[count++] = (ranks_mesh){1, {ranks_size, 0}};
  for (int64_t a = 1; a <= ranks_size && count < RANKS_MAX_MESHES; a++)
    if (ranks_size % a == 0) list[count++] = (ranks_mesh){2, {a, ranks_size / a}};
  return count;
}

void ranks_range(const ranks_mesh *mesh, const sheaf_placement *placements, int d, int64_t extent, int64_t rank,
                 int64_t *lo, int64_t *hi)
{
  int64_t coords[2] = {mesh->dims == 1 ? rank : rank / mesh->size[1], mesh->dims == 1 ? 0 : rank % mesh->size[1]};
  int64_t first = 0, count = extent;
  for (int m = 0; m < mesh->dims; m++) {
    int cuts = placements[m].kind == SHEAF_PLACE_SHARD && placements[m].dim == d;
    if (!cuts) continue;
    int64_t chunk = (count + mesh->size[m] - 1) / mesh->size[m], begin = coords[m] * chunk, end = begin + chunk;
    if (begin > count) begin = count;
    if (end > count) end = count;
    first += begin;
    count = end - begin;
  }
  *lo = first;
  *hi = first + count;
}

uint64_t ranks_random(uint64_t *state)
{
  *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
  uint64_t z = *state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

const sheaf_strategy *ranks_dispatch_of(const sheaf_shard_problem *p, sheaf_strategy_list **list)
{
  OK(sheaf_strategies(p, 0, NULL, list));
  for (int64_t i = 0; i < sheaf_strategy_count(*list); i++)
    if (sheaf_strategy_at(*list, i)->dispatch) return sheaf_strategy_at(*list, i);
  CHECK(0, "no dispatch");
  return NULL;
}
