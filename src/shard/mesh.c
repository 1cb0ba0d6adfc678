/* shard/mesh.c: meshes of ranks. */
#include <string.h>

#include "shard/move.h"

sheaf_status shf_shard_check_struct(const void *given, size_t known, const char *what)
{
  SHF_REQUIRE(given, INVALID_PROBLEM, "%s is NULL", what);
  size_t size = *(const size_t *)given;
  SHF_REQUIRE(size >= known, INVALID_PROBLEM, "%s: struct_size is %zu, not %zu; initialise it with its INIT macro",
              what, size, known);
  for (size_t i = known; i < size; i++)
    SHF_REQUIRE(((const char *)given)[i] == 0, UNSUPPORTED, "%s has fields that this version does not know", what);
  return SHEAF_OK;
}

sheaf_status sheaf_mesh_create(const int64_t *sizes, int dims, sheaf_comm *comm, sheaf_mesh **mesh)
{
  SHF_REQUIRE(mesh, INVALID_PROBLEM, "mesh is NULL");
  *mesh = NULL;
  SHF_REQUIRE(sizes, INVALID_PROBLEM, "sizes is NULL");
  SHF_REQUIRE(dims >= 1 && dims <= MAX_DIMS, INVALID_PROBLEM, "a mesh has 1 to %d dimensions, not %d", MAX_DIMS, dims);
  int64_t ranks = 1;
  for (int m = 0; m < dims; m++) {
    SHF_REQUIRE(sizes[m] >= 1, INVALID_PROBLEM, "dimension %d of the mesh has %lld ranks; it needs at least 1", m,
                (long long)sizes[m]);
    SHF_REQUIRE(!__builtin_mul_overflow(ranks, sizes[m], &ranks) && ranks <= 1 << 24, INVALID_PROBLEM,
                "a mesh has at most %d ranks", 1 << 24);
  }
  SHF_REQUIRE(!comm || sheaf_comm_size(comm) == ranks, INVALID_PROBLEM,
              "the mesh has %lld ranks, its communicator %lld", (long long)ranks, (long long)sheaf_comm_size(comm));
  sheaf_mesh *made = shf_core_alloc(sizeof *made);
  if (!made) return shf_core_no_memory("a mesh", sizeof *made);
  *made = (sheaf_mesh){.dims = dims, .ranks = ranks, .rank = comm ? sheaf_comm_rank(comm) : -1, .comm = comm};
  memcpy(made->size, sizes, (size_t)dims * sizeof *sizes);
  if (comm) {
    made->scratch_bytes = (size_t)ranks * SHF_SCRATCH;
    made->scratch = shf_core_alloc(made->scratch_bytes);
    sheaf_status status =
        made->scratch ? shf_buffers_create(&made->buffers) : shf_core_no_memory("a mesh", made->scratch_bytes);
    if (status != SHEAF_OK) {
      sheaf_mesh_free(made);
      return status;
    }
  }
  *mesh = made;
  return SHEAF_OK;
}

void sheaf_mesh_free(sheaf_mesh *mesh)
{
  if (!mesh) return;
  shf_buffers_free(mesh->buffers);
  if (mesh->scratch) shf_core_free(mesh->scratch, mesh->scratch_bytes);
  shf_core_free(mesh, sizeof *mesh);
}

int sheaf_mesh_dims(const sheaf_mesh *mesh) { return mesh ? mesh->dims : 0; }
int64_t sheaf_mesh_ranks(const sheaf_mesh *mesh) { return mesh ? mesh->ranks : 0; }
int64_t sheaf_mesh_rank(const sheaf_mesh *mesh) { return mesh ? mesh->rank : -1; }

int64_t sheaf_mesh_size(const sheaf_mesh *mesh, int dim)
{
  return mesh && dim >= 0 && dim < mesh->dims ? mesh->size[dim] : 0;
}

void shf_mesh_coords(const sheaf_mesh *mesh, int64_t rank, int64_t *coords)
{
  for (int m = mesh->dims - 1; m >= 0; m--) {
    coords[m] = rank % mesh->size[m];
    rank /= mesh->size[m];
  }
}
