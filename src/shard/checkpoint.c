/* shard/checkpoint.c: distributed tensors in files: each rank writes its parts, and reads those it needs. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sheaf/io.h>

#include "shard/local.h"

static const char ending[] = ".safetensors.index.json";
enum { MAX_PATH = 1024, MAX_NAME = 256, MAX_STEM = 128 };

/* ---- Names ------------------------------------------------------------------------------------------------------ */

/* Where a checkpoint is, and what its files are called. */
typedef struct place {
  char folder[MAX_PATH]; /* with its slash; "" for the current one */
  char stem[MAX_STEM];
} place;

static sheaf_status read_path(const char *path, place *p)
{
  size_t length = path ? strlen(path) : 0, end = sizeof ending - 1;
  SHF_REQUIRE(length > end && strcmp(path + length - end, ending) == 0 && length < MAX_PATH, INVALID_PROBLEM,
              "the path of a checkpoint ends in '%s': '%.200s' does not", ending, path ? path : "");
  const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
  size_t stem = (size_t)(path + length - end - base);
  SHF_REQUIRE(stem > 0 && stem < MAX_STEM, INVALID_PROBLEM, "the name of a checkpoint has 1 to %d bytes, not %zu",
              MAX_STEM - 1, stem);
  memcpy(p->folder, path, (size_t)(base - path));
  p->folder[base - path] = 0;
  memcpy(p->stem, base, stem);
  p->stem[stem] = 0;
  return SHEAF_OK;
}

static void file_name(const place *p, int64_t number, int64_t rank, int64_t ranks, char name[MAX_NAME])
{
  snprintf(name, MAX_NAME, "%s-%08" PRIx64 "-%05lld-of-%05lld.safetensors", p->stem, (uint64_t)number & 0xffffffff,
           (long long)rank + 1, (long long)ranks);
}

/* The name under which a rank's part is stored; a tensor that is not cut keeps its own. */
static void part_name(const char *name, int cut, int64_t rank, char *text, size_t room)
{
  if (cut)
    snprintf(text, room, "%s.part-%05lld", name, (long long)rank);
  else
    snprintf(text, room, "%s", name);
}

/* "1000,64" */
static void print_numbers(const int64_t *numbers, int count, char *text, size_t room)
{
  size_t at = 0;
  text[0] = 0;
  for (int i = 0; i < count && at < room; i++)
    at += (size_t)snprintf(text + at, room - at, "%s%lld", i ? "," : "", (long long)numbers[i]);
}

/* How many numbers there are; -1 when it is something else. */
static int parse_numbers(const char *text, int64_t numbers[MAX_RANK])
{
  int count = 0;
  while (text && *text && count < MAX_RANK) {
    char *end;
    numbers[count++] = strtoll(text, &end, 10);
    if (end == text || numbers[count - 1] < 0 || (*end && *end != ',')) return -1;
    text = *end ? end + 1 : end;
  }
  return text && !*text ? count : -1;
}

/* ---- Who writes what -------------------------------------------------------------------------------------------- */

static int is_cut(const sheaf_dtensor_desc *d)
{
  for (int m = 0; m < d->mesh->dims; m++)
    if (shf_is_shard(&d->placements[m])) return 1;
  return 0;
}

/* The first of the ranks that have the same part writes it; of a cut tensor, empty parts are not written. */
static int writes(const sheaf_dtensor_desc *d, int64_t rank)
{
  int64_t coords[MAX_DIMS];
  shf_mesh_coords(d->mesh, rank, coords);
  for (int m = 0; m < d->mesh->dims; m++)
    if (!shf_is_shard(&d->placements[m]) && coords[m] != 0) return 0;
  shf_box box = shf_shard_box(d->mesh, d->placements, d->rank, d->shape, rank);
  return !is_cut(d) || shf_box_count(&box) > 0;
}

typedef struct writing {
  shf_flow flow;
  shf_pool pool;
  place where;
  char path[2 * MAX_PATH]; /* of this rank's file */
  int64_t number;          /* of the checkpoint, in its files' names */
  const char *const *names;
  const sheaf_dtensor *const *tensors;
  int64_t count;
} writing;

static sheaf_status check_tensors(const writing *w)
{
  for (int64_t i = 0; i < w->count; i++) {
    SHF_REQUIRE(w->names[i] && w->names[i][0] && strlen(w->names[i]) < MAX_NAME / 2 && w->tensors[i], INVALID_PROBLEM,
                "tensor %lld has no name, one of more than %d bytes, or is NULL", (long long)i, MAX_NAME / 2 - 1);
    const sheaf_dtensor_desc *d = &w->tensors[i]->desc;
    SHF_REQUIRE(d->mesh == w->flow.mesh, INVALID_PROBLEM, "'%s' lies on another mesh", w->names[i]);
    for (int m = 0; m < d->mesh->dims; m++)
      SHF_REQUIRE(!shf_is_partial(&d->placements[m]) && d->placements[m].kind != SHEAF_PLACE_BAGS, INVALID_PROBLEM,
                  "'%s' is Partial or placed by Bags; redistribute it first", w->names[i]);
  }
  return SHEAF_OK;
}

/* Texts of one part: its name, the key and value of its metadata. */
typedef struct part_text {
  char name[MAX_NAME], key[MAX_NAME + 32], value[400];
} part_text;

static void describe_part(const char *name, const sheaf_dtensor_desc *d, int64_t rank, part_text *text)
{
  char shape[180], offset[180];
  shf_box box = shf_shard_box(d->mesh, d->placements, d->rank, d->shape, rank);
  part_name(name, is_cut(d), rank, text->name, sizeof text->name);
  print_numbers(d->shape, d->rank, shape, sizeof shape);
  print_numbers(box.lo, d->rank, offset, sizeof offset);
  snprintf(text->key, sizeof text->key, "sheaf.part.%s", text->name);
  snprintf(text->value, sizeof text->value, "%s of %s", offset, shape);
}

/* The part as the CPU sees it; those on devices are copied to `*staged`, one behind the other. */
static sheaf_status read_part(const sheaf_dtensor *t, char **staged, sheaf_io_tensor *out)
{
  out->data = shf_dtensor_data(t);
  if (shf_is_host(t->desc.device)) return SHEAF_OK;
  SHF_TRY(shf_space_read(t->desc.device, *staged, out->data, (int64_t)out->bytes));
  out->data = *staged;
  *staged += out->bytes;
  return SHEAF_OK;
}

static sheaf_status write_parts(writing *w)
{
  const sheaf_mesh *mesh = w->flow.mesh;
  void *memory[3], *staging;
  int64_t staged = 0;
  for (int64_t i = 0; i < w->count; i++) {
    shf_array array = shf_dtensor_array(w->tensors[i]);
    if (!shf_is_host(array.device) && writes(&w->tensors[i]->desc, mesh->rank)) staged += shf_array_bytes(&array);
  }
  SHF_TRY(shf_pool_get(&w->pool, staged, &staging));
  char *next = staging;
  SHF_TRY(shf_pool_get(&w->pool, (w->count + 1) * (int64_t)sizeof(sheaf_io_tensor), &memory[0]));
  SHF_TRY(shf_pool_get(&w->pool, (w->count + 1) * (int64_t)sizeof(sheaf_io_metadata), &memory[1]));
  SHF_TRY(shf_pool_get(&w->pool, (w->count + 1) * (int64_t)sizeof(part_text), &memory[2]));
  sheaf_io_tensor *tensors = memory[0];
  sheaf_io_metadata *metadata = memory[1];
  part_text *texts = memory[2];
  int64_t parts = 0, cut = 0;
  for (int64_t i = 0; i < w->count; i++) {
    const sheaf_dtensor *t = w->tensors[i];
    if (!writes(&t->desc, mesh->rank)) continue;
    describe_part(w->names[i], &t->desc, mesh->rank, &texts[parts]);
    sheaf_io_tensor *out = &tensors[parts];
    *out = (sheaf_io_tensor){.name = texts[parts].name,
                             .dtype = t->desc.dtype,
                             .rank = t->desc.rank,
                             .bytes = (size_t)shf_core_dtype_size(t->desc.dtype)};
    for (int d = 0; d < t->desc.rank; d++) out->bytes *= (size_t)(out->shape[d] = t->local_shape[d]);
    SHF_TRY(read_part(t, &next, out));
    if (is_cut(&t->desc)) metadata[cut++] = (sheaf_io_metadata){texts[parts].key, texts[parts].value};
    parts++;
  }
  /* A file without tensors would be in no index, and so never be removed. */
  return parts ? sheaf_safetensors_write(w->path, tensors, parts, metadata, cut) : SHEAF_OK;
}

/* ---- The index -------------------------------------------------------------------------------------------------- */

static sheaf_status write_index(writing *w, const char *path)
{
  const sheaf_mesh *mesh = w->flow.mesh;
  typedef char entry_text[2][MAX_NAME];
  void *memory[2];
  int64_t parts = 0, room = w->count * mesh->ranks + 1, total = 0;
  SHF_TRY(shf_pool_get(&w->pool, room * (int64_t)sizeof(sheaf_index_entry), &memory[0]));
  SHF_TRY(shf_pool_get(&w->pool, room * (int64_t)sizeof(entry_text), &memory[1]));
  sheaf_index_entry *entries = memory[0];
  entry_text *texts = memory[1];
  for (int64_t i = 0; i < w->count; i++) {
    const sheaf_dtensor_desc *d = &w->tensors[i]->desc;
    int64_t bytes = shf_core_dtype_size(d->dtype);
    for (int k = 0; k < d->rank; k++) bytes *= d->shape[k];
    total += bytes;
    for (int64_t rank = 0; rank < mesh->ranks; rank++) {
      if (!writes(d, rank)) continue;
      part_name(w->names[i], is_cut(d), rank, texts[parts][0], MAX_NAME);
      file_name(&w->where, w->number, rank, mesh->ranks, texts[parts][1]);
      entries[parts] = (sheaf_index_entry){texts[parts][0], texts[parts][1]};
      parts++;
    }
  }
  return sheaf_safetensors_index_write(path, entries, parts, total);
}

/* Removes the files of a checkpoint that was replaced: those its index names and that are called as ours are. */
static void remove_old(const writing *w, const sheaf_safetensors_index *old)
{
  char prefix[MAX_NAME];
  snprintf(prefix, sizeof prefix, "%s-%08" PRIx64 "-", w->where.stem, (uint64_t)w->number & 0xffffffff);
  size_t stem = strlen(w->where.stem);
  for (int64_t i = 0; i < sheaf_safetensors_index_count(old); i++) {
    const char *file = sheaf_safetensors_index_at(old, i).file;
    int ours = strncmp(file, w->where.stem, stem) == 0 && strlen(file) > stem + 10 && file[stem] == '-' &&
               strspn(file + stem + 1, "0123456789abcdef") == 8 && file[stem + 9] == '-';
    if (!ours || strncmp(file, prefix, strlen(prefix)) == 0) continue;
    char path[2 * MAX_PATH];
    snprintf(path, sizeof path, "%s%s", w->where.folder, file);
    unlink(path);
  }
}

sheaf_status sheaf_checkpoint_write(const char *path, const char *const *names, const sheaf_dtensor *const *tensors,
                                    int64_t count)
{
  SHF_REQUIRE(names && tensors && count > 0 && tensors[0], INVALID_PROBLEM,
              "a checkpoint needs tensors and their names");
  writing w = {.flow = {.mesh = tensors[0]->desc.mesh},
               .pool = {.mesh = tensors[0]->desc.mesh},
               .names = names,
               .tensors = tensors,
               .count = count};
  const sheaf_mesh *mesh = w.flow.mesh;
  char doing[600] = "checkpoint_write of", file[MAX_NAME];
  FLOW(&w.flow, read_path(path, &w.where));
  FLOW(&w.flow, check_tensors(&w));
  for (int64_t i = 0; w.flow.status == SHEAF_OK && i < count; i++) {
    size_t at = strlen(doing);
    char placements[PLACEMENTS_TEXT];
    snprintf(doing + at, sizeof doing - at, " %s [%s]", names[i],
             shf_placements_text(mesh, tensors[i]->desc.placements, placements));
  }
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const int64_t facts[2] = {now.tv_sec * 1000000 + now.tv_nsec / 1000, 0}; /* rank 0's numbers this checkpoint */
  if (shf_flow_agree_on(&w.flow, doing, facts)) {
    w.number = shf_agree_facts(mesh, 0)[0];
    file_name(&w.where, w.number, mesh->rank, mesh->ranks, file);
    snprintf(w.path, sizeof w.path, "%s%s", w.where.folder, file);
    FLOW(&w.flow, write_parts(&w));
    sheaf_safetensors_index *old = NULL;
    if (shf_flow_agree(&w.flow) && mesh->rank == 0) { /* every part is in place */
      if (access(path, F_OK) == 0 && sheaf_safetensors_index_open(path, &old) != SHEAF_OK) old = NULL;
      SURELY(&w.flow, write_index(&w, path));
    }
    if (shf_flow_agree(&w.flow))
      remove_old(&w, old);
    else
      unlink(w.path);
    sheaf_safetensors_index_close(old);
  }
  shf_pool_free(&w.pool);
  return w.flow.status;
}

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

typedef struct reading {
  place where;
  const char *path, *name;
  sheaf_safetensors_index *index;
  sheaf_dtensor_desc desc;
  sheaf_dtensor *tensor;
  int64_t copied, stored; /* elements of this rank's part, and of the tensor, that were found */
} reading;

/* Whether an entry of the index is this tensor or a part of it. */
static int belongs(const reading *r, const char *entry)
{
  size_t length = strlen(r->name);
  if (strncmp(entry, r->name, length) != 0) return 0;
  return !entry[length] || (strncmp(entry + length, ".part-", 6) == 0 &&
                            strspn(entry + length + 6, "0123456789") == strlen(entry + length + 6));
}

/* Where a stored tensor belongs: its box, and the shape of the whole. */
static sheaf_status locate(const reading *r, const sheaf_safetensors *file, const sheaf_io_tensor *part, shf_box *box,
                           int64_t shape[MAX_RANK])
{
  *box = (shf_box){.rank = part->rank};
  memcpy(shape, part->shape, sizeof part->shape);
  memcpy(box->hi, part->shape, sizeof part->shape);
  if (strcmp(part->name, r->name) == 0) return SHEAF_OK;
  char key[MAX_NAME + 32], text[400] = "";
  snprintf(key, sizeof key, "sheaf.part.%s", part->name);
  const char *value = sheaf_safetensors_metadata(file, key), *of = value ? strstr(value, " of ") : NULL;
  int counts[2] = {-1, -1};
  if (of && (size_t)(of - value) < sizeof text) {
    memcpy(text, value, (size_t)(of - value));
    counts[0] = parse_numbers(text, box->lo);
    counts[1] = parse_numbers(of + 4, shape);
  }
  int fits = counts[0] == part->rank && counts[1] == part->rank;
  for (int d = 0; d < part->rank && fits; d++) {
    box->hi[d] = box->lo[d] + part->shape[d];
    fits = box->hi[d] <= shape[d];
  }
  SHF_REQUIRE(fits, IO, "%s: the metadata of '%.100s' does not say where it belongs", r->path, part->name);
  return SHEAF_OK;
}

/* Takes what this rank needs of one stored part; the first one decides what the tensor is. */
static sheaf_status take_part(reading *r, const sheaf_safetensors *file, const sheaf_io_tensor *part)
{
  int64_t shape[MAX_RANK];
  shf_box box;
  SHF_TRY(locate(r, file, part, &box, shape));
  sheaf_dtensor_desc *d = &r->desc;
  if (d->dtype == SHEAF_DTYPE_NONE) {
    d->dtype = part->dtype;
    d->rank = part->rank;
    memcpy(d->shape, shape, sizeof d->shape);
  }
  int same = d->dtype == part->dtype && d->rank == part->rank;
  for (int i = 0; i < part->rank && same; i++) same = d->shape[i] == shape[i];
  SHF_REQUIRE(same, INVALID_PROBLEM, "%s: '%.100s' is not of the type and shape asked for", r->path, part->name);
  if (!r->tensor) SHF_TRY(sheaf_dtensor_create(d, &r->tensor));
  shf_box mine = shf_shard_box(d->mesh, d->placements, d->rank, d->shape, d->mesh->rank);
  shf_box both = shf_box_meet(&mine, &box);
  const shf_part_fold copy = {.kind = SHF_FOLD_STORE, .cell = shf_core_dtype_size(d->dtype)};
  SHF_TRY(shf_space_fold(shf_host(), &copy, &both, &box, part->data, &mine, shf_dtensor_data(r->tensor)));
  r->copied += shf_box_count(&both);
  r->stored += shf_box_count(&box);
  return SHEAF_OK;
}

static sheaf_status read_file(reading *r, sheaf_index_entry entry)
{
  char path[2 * MAX_PATH];
  sheaf_safetensors *file;
  snprintf(path, sizeof path, "%s%s", r->where.folder, entry.file);
  SHF_TRY(sheaf_safetensors_open(path, &file));
  const sheaf_io_tensor *part = sheaf_safetensors_find(file, entry.name);
  sheaf_status status =
      part ? take_part(r, file, part)
           : shf_core_fail(SHEAF_IO, "%s: '%.100s' is not in it, though the index says so", path, entry.name);
  sheaf_safetensors_close(file);
  return status;
}

static sheaf_status read_tensor(reading *r)
{
  SHF_REQUIRE(r->name && r->name[0] && strlen(r->name) < MAX_NAME / 2, INVALID_PROBLEM,
              "name is NULL, empty or too long");
  for (int m = 0; m < r->desc.mesh->dims; m++)
    SHF_REQUIRE(!shf_is_partial(&r->desc.placements[m]) && r->desc.placements[m].kind != SHEAF_PLACE_BAGS,
                INVALID_PROBLEM, "a checkpoint is read into Replicate and Shard only");
  SHF_TRY(read_path(r->path, &r->where));
  SHF_TRY(sheaf_safetensors_index_open(r->path, &r->index));
  for (int64_t i = 0; i < sheaf_safetensors_index_count(r->index); i++) {
    sheaf_index_entry entry = sheaf_safetensors_index_at(r->index, i);
    if (belongs(r, entry.name)) SHF_TRY(read_file(r, entry));
  }
  SHF_REQUIRE(r->tensor, IO, "%s: there is no tensor '%.100s'", r->path, r->name);
  shf_box all = {.rank = r->desc.rank};
  memcpy(all.hi, r->desc.shape, sizeof all.hi);
  shf_array array = shf_dtensor_array(r->tensor);
  SHF_REQUIRE(r->stored == shf_box_count(&all) && r->copied == shf_array_cells(&array), IO,
              "%s: the parts of '%.100s' have %lld elements, it has %lld", r->path, r->name, (long long)r->stored,
              (long long)shf_box_count(&all));
  return SHEAF_OK;
}

/* What was read into the CPU's memory goes where it was asked for. */
static sheaf_status deliver(reading *r, DLDevice device)
{
  SHF_TRY(shf_space_check(&device, "desc"));
  if (shf_is_host(device)) return SHEAF_OK;
  sheaf_dtensor *there;
  r->desc.device = device;
  SHF_TRY(sheaf_dtensor_create(&r->desc, &there));
  sheaf_status status =
      shf_space_write(device, shf_dtensor_data(there), shf_dtensor_data(r->tensor), (int64_t)r->tensor->owned_bytes);
  sheaf_dtensor_free(r->tensor);
  r->tensor = there;
  return status;
}

sheaf_status sheaf_checkpoint_read(const char *path, const char *name, const sheaf_dtensor_desc *desc,
                                   sheaf_dtensor **tensor)
{
  SHF_REQUIRE(tensor, INVALID_PROBLEM, "tensor is NULL");
  *tensor = NULL;
  SHF_TRY(shf_shard_check_struct(desc, sizeof *desc, "desc"));
  SHF_REQUIRE(desc->mesh && desc->mesh->comm, INVALID_PROBLEM, "a distributed tensor needs a mesh over a communicator");
  reading r = {.path = path, .name = name, .desc = *desc};
  r.desc.device = shf_host();
  shf_flow flow = {.mesh = desc->mesh};
  char doing[400], placements[PLACEMENTS_TEXT];
  FLOW(&flow, read_tensor(&r));
  FLOW(&flow, deliver(&r, desc->device));
  snprintf(doing, sizeof doing, "checkpoint_read of %.200s to [%s]", name ? name : "",
           shf_placements_text(desc->mesh, desc->placements, placements));
  if (shf_flow_agree_on(&flow, doing, NULL))
    *tensor = r.tensor;
  else
    sheaf_dtensor_free(r.tensor);
  sheaf_safetensors_index_close(r.index);
  return flow.status;
}
