/* tests/ranks/ranks_checkpoint.c: tensors written under one mesh and placements, read under others; files that are wrong
 * on one rank; old files that go when the new index is there. */
#define _GNU_SOURCE
#include <dirent.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ranks_data.h"

static int64_t cases;
static char folder[256], path[512];

/* All ranks meet. */
static void meet(sheaf_mesh *mesh)
{
  sheaf_placement R = sheaf_replicate(), S = sheaf_shard(0), both[2] = {R, R};
  (void)S;
  sheaf_dtensor_desc desc = SHEAF_DTENSOR_DESC_INIT;
  sheaf_dtensor *a, *b;
  desc.mesh = mesh;
  desc.dtype = SHEAF_F32;
  desc.rank = 1;
  desc.shape[0] = 1;
  OK(sheaf_dtensor_create(&desc, &a));
  OK(sheaf_dtensor_redistribute(a, both, &b));
  sheaf_dtensor_free(a);
  sheaf_dtensor_free(b);
}

static int files_in_folder(void)
{
  DIR *dir = opendir(folder);
  CHECK(dir, "no folder");
  int count = 0;
  for (struct dirent *e; (e = readdir(dir));) count += e->d_name[0] != '.';
  closedir(dir);
  return count;
}

/* Files that the index names, and the index. */
static int files_of_index(void)
{
  sheaf_safetensors_index *index;
  OK(sheaf_safetensors_index_open(path, &index));
  int count = 1;
  for (int64_t i = 0; i < sheaf_safetensors_index_count(index); i++) {
    int known = 0;
    for (int64_t j = 0; j < i; j++)
      known |= strcmp(sheaf_safetensors_index_at(index, i).file, sheaf_safetensors_index_at(index, j).file) == 0;
    count += !known;
  }
  sheaf_safetensors_index_close(index);
  return count;
}

static whole *make(sheaf_dtype dtype, int64_t rows, int64_t columns)
{
  int64_t shape[2] = {rows, columns};
  whole *t = whole_make(dtype, 2, shape);
  for (int64_t i = 0; i < t->count; i++) whole_set(t, i, (double)(i % 1021));
  return t;
}

static sheaf_placement choice(int code) { return code % 3 == 0 ? sheaf_replicate() : sheaf_shard(code % 3 - 1); }

static void check_pair(const ranks_mesh *written, const ranks_mesh *read, int code)
{
  sheaf_mesh *from, *to;
  OK(sheaf_mesh_create(written->size, written->dims, ranks_comm, &from));
  OK(sheaf_mesh_create(read->size, read->dims, ranks_comm, &to));
  whole *table = make(SHEAF_F32, 3 * ranks_size + 2, 5), *bias = make(SHEAF_F16, 2, 3);
  sheaf_placement p[2] = {choice(code), choice(code / 3)}, q[2] = {choice(code / 9), choice(code / 27)};
  const char *names[] = {"table", "tab"}; /* one name begins the other */
  sheaf_dtensor *parts[2] = {whole_part(table, from, written, p), whole_part(bias, from, written, q)};
  OK(sheaf_checkpoint_write(path, names, (const sheaf_dtensor *const *)parts, 2));
  meet(from);
  CHECK(files_in_folder() == files_of_index(), "%d files", files_in_folder());
  meet(from); /* everybody has counted */
  sheaf_dtensor_desc desc = SHEAF_DTENSOR_DESC_INIT;
  sheaf_dtensor *back;
  desc.mesh = to;
  memcpy(desc.placements, q, sizeof q);
  OK(sheaf_checkpoint_read(path, "table", &desc, &back));
  whole_check(table, back, 0, "table");
  sheaf_dtensor_free(back);
  memcpy(desc.placements, p, sizeof p);
  OK(sheaf_checkpoint_read(path, "tab", &desc, &back));
  whole_check(bias, back, 0, "bias");
  sheaf_dtensor_free(back);
  desc.dtype = SHEAF_F32;
  desc.rank = 2;
  desc.shape[0] = table->shape[0];
  desc.shape[1] = 6;
  CHECK(sheaf_checkpoint_read(path, "table", &desc, &back) == SHEAF_INVALID_PROBLEM && !back, "another shape");
  for (int i = 0; i < 2; i++) sheaf_dtensor_free(parts[i]);
  whole_free(table);
  whole_free(bias);
  sheaf_mesh_free(from);
  sheaf_mesh_free(to);
  cases++;
}

/* One process alone reads what all wrote. */
static void check_alone(void)
{
  sheaf_mesh *mesh, *alone;
  sheaf_comm *self;
  ranks_mesh sizes = {1, {ranks_size, 0}};
  int64_t one = 1;
  OK(sheaf_mesh_create(&ranks_size, 1, ranks_comm, &mesh));
  OK(sheaf_comm_open("self", NULL, &self));
  OK(sheaf_mesh_create(&one, 1, self, &alone));
  whole *table = make(SHEAF_F64, 4 * ranks_size + 1, 3);
  sheaf_placement S0 = sheaf_shard(0);
  sheaf_dtensor *part = whole_part(table, mesh, &sizes, &S0), *back;
  const char *name = "table";
  OK(sheaf_checkpoint_write(path, &name, (const sheaf_dtensor *const *)&part, 1));
  sheaf_dtensor_desc desc = SHEAF_DTENSOR_DESC_INIT;
  desc.mesh = alone;
  OK(sheaf_checkpoint_read(path, "table", &desc, &back));
  CHECK(memcmp(sheaf_dtensor_local(back)->data, table->data, (size_t)table->count * 8) == 0, "other bits");
  sheaf_dtensor_free(back);
  CHECK(sheaf_checkpoint_read(path, "chair", &desc, &back) == SHEAF_IO &&
            strstr(sheaf_last_error(), "no tensor 'chair'"),
        "%s", sheaf_last_error());
  meet(mesh);
  /* What fails on one rank fails on all, and the old checkpoint is still there. */
  char wrong[600];
  snprintf(wrong, sizeof wrong, "%s/%s.safetensors.index.json", folder,
           ranks_rank == ranks_size / 2 ? "no/such" : "model");
  sheaf_status status = sheaf_checkpoint_write(wrong, &name, (const sheaf_dtensor *const *)&part, 1);
  CHECK(status == SHEAF_IO && strstr(sheaf_last_error(), "no/such"), "%d: %s", (int)status, sheaf_last_error());
  meet(mesh);
  CHECK(files_in_folder() == files_of_index(), "%d files", files_in_folder());
  meet(mesh);
  desc.mesh = mesh;
  OK(sheaf_checkpoint_read(path, "table", &desc, &back));
  sheaf_dtensor_free(back);
  sheaf_dtensor_free(part);
  whole_free(table);
  sheaf_mesh_free(mesh);
  sheaf_mesh_free(alone);
  sheaf_comm_close(self);
  cases++;
}

static void remove_folder(void)
{
  DIR *dir = opendir(folder);
  for (struct dirent *e; dir && (e = readdir(dir));) {
    char file[600];
    snprintf(file, sizeof file, "%s/%.200s", folder, e->d_name);
    if (e->d_name[0] != '.') unlink(file);
  }
  if (dir) closedir(dir);
  rmdir(folder);
}

int ranks_main(int argc, char **argv)
{
  (void)argc, (void)argv;
  ranks_mesh meshes[RANKS_MAX_MESHES];
  sheaf_mesh *mesh;
  ranks_open();
  OK(sheaf_mesh_create(&ranks_size, 1, ranks_comm, &mesh));
  snprintf(folder, sizeof folder, "ranks_checkpoint_%lld", (long long)ranks_size);
  snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
  if (ranks_rank == 0) remove_folder();
  if (ranks_rank == 0) CHECK(mkdir(folder, 0777) == 0, "cannot make '%s'", folder);
  meet(mesh);
  int count = ranks_meshes(meshes);
  for (int a = 0; a < count; a++)
    for (int b = 0; b < count; b++)
      for (int code = a + b; code < 81; code += 7) check_pair(&meshes[a], &meshes[b], code);
  check_alone();
  meet(mesh);
  if (ranks_rank == 0) remove_folder();
  sheaf_mesh_free(mesh);
  return ranks_close("checkpoint", cases);
}
