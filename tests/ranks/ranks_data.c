/* tests/ranks/ranks_data.c: see ranks_data.h. */
#include "ranks_data.h"

#include <math.h>
#include <string.h>

enum { MOST_KEPT = 64 };
static _Thread_local void *kept[MOST_KEPT];
static _Thread_local int kept_count;

static void *keep(size_t bytes)
{
  void *memory = NULL;
  CHECK(kept_count < MOST_KEPT, "too much is kept");
  if (ranks_device.device_type == kDLCUDA)
    OK(sheaf_device_alloc(ranks_device, bytes + 1, &memory));
  else
    memory = calloc(bytes + 1, 1);
  CHECK(memory, "no memory");
  return kept[kept_count++] = memory;
}

void whole_forget(void)
{
  while (kept_count)
    if (ranks_device.device_type == kDLCUDA)
      OK(sheaf_device_free(ranks_device, kept[--kept_count]));
    else
      free(kept[--kept_count]);
}

int64_t whole_bytes(sheaf_dtype dtype) { return sheaf_dtype_row_bytes(dtype, 1); }

whole *whole_make(sheaf_dtype dtype, int rank, const int64_t *shape)
{
  whole *t = calloc(1, sizeof *t);
  CHECK(t, "no memory");
  t->dtype = dtype;
  t->rank = rank;
  t->count = 1;
  for (int d = 0; d < rank; d++) t->count *= t->shape[d] = shape[d];
  t->data = calloc((size_t)(t->count * whole_bytes(dtype)) + 1, 1);
  CHECK(t->data, "no memory");
  t->view = (DLTensor){
      .data = t->data, .device = {kDLCPU, 0}, .ndim = rank, .dtype = sheaf_dtype_to_dl(dtype), .shape = t->shape};
  return t;
}

void whole_free(whole *t)
{
  if (t) free(t->data);
  free(t);
}

static double get(sheaf_dtype dtype, const void *data, int64_t at)
{
  switch (dtype) {
  case SHEAF_F64:
    return ((const double *)data)[at];
  case SHEAF_F16:
    return (double)sheaf_f16_to_f32(((const uint16_t *)data)[at]);
  case SHEAF_BF16:
    return (double)sheaf_bf16_to_f32(((const uint16_t *)data)[at]);
  case SHEAF_I32:
    return ((const int32_t *)data)[at];
  case SHEAF_I64:
    return (double)((const int64_t *)data)[at];
  default:
    return (double)((const float *)data)[at];
  }
}

static void set(sheaf_dtype dtype, void *data, int64_t at, double value)
{
  switch (dtype) {
  case SHEAF_F64:
    ((double *)data)[at] = value;
    return;
  case SHEAF_F16:
    ((uint16_t *)data)[at] = sheaf_f32_to_f16((float)value);
    return;
  case SHEAF_BF16:
    ((uint16_t *)data)[at] = sheaf_f32_to_bf16((float)value);
    return;
  case SHEAF_I32:
    ((int32_t *)data)[at] = (int32_t)value;
    return;
  case SHEAF_I64:
    ((int64_t *)data)[at] = (int64_t)value;
    return;
  default:
    ((float *)data)[at] = (float)value;
  }
}

double whole_get(const whole *t, int64_t at) { return get(t->dtype, t->data, at); }
void whole_set(whole *t, int64_t at, double value) { set(t->dtype, t->data, at, value); }

static sheaf_dtensor_desc describe(const whole *t, sheaf_mesh *mesh, const ranks_mesh *sizes, const sheaf_placement *p)
{
  sheaf_dtensor_desc desc = SHEAF_DTENSOR_DESC_INIT;
  desc.mesh = mesh;
  desc.device = ranks_device;
  desc.dtype = t->dtype;
  desc.rank = t->rank;
  memcpy(desc.shape, t->shape, sizeof t->shape);
  memcpy(desc.placements, p, (size_t)sizes->dims * sizeof *p);
  return desc;
}

static int64_t coord(const ranks_mesh *mesh, int m)
{
  return mesh->dims == 1 ? ranks_rank : m == 0 ? ranks_rank / mesh->size[1] : ranks_rank % mesh->size[1];
}

sheaf_dtensor *whole_part(const whole *t, sheaf_mesh *mesh, const ranks_mesh *sizes, const sheaf_placement *placements)
{
  sheaf_dtensor *part;
  sheaf_dtensor_desc desc = describe(t, mesh, sizes, placements);
  OK(sheaf_dtensor_create(&desc, &part));
  const DLTensor *local = sheaf_dtensor_local(part);
  char *data = ranks_read(local);
  int64_t lo[4] = {0}, hi[4] = {1, 1, 1, 1}, at[4];
  int zero = 0;
  for (int m = 0; m < sizes->dims; m++) zero |= placements[m].kind == SHEAF_PLACE_PARTIAL && coord(sizes, m) != 0;
  for (int d = 0; d < t->rank; d++) ranks_range(sizes, placements, d, t->shape[d], ranks_rank, &lo[d], &hi[d]);
  int64_t local_at = 0;
  for (at[0] = lo[0]; at[0] < hi[0]; at[0]++)
    for (at[1] = lo[1]; at[1] < hi[1]; at[1]++)
      for (at[2] = lo[2]; at[2] < hi[2]; at[2]++)
        for (at[3] = lo[3]; at[3] < hi[3]; at[3]++, local_at++) {
          int64_t from = 0;
          for (int d = 0; d < t->rank; d++) from = from * t->shape[d] + at[d];
          sheaf_dtype type = sheaf_dtype_from_dl(local->dtype);
          if (type == t->dtype && !zero)
            memcpy(data + local_at * whole_bytes(type), t->data + from * whole_bytes(type), (size_t)whole_bytes(type));
          else
            set(type, data, local_at, zero ? 0 : whole_get(t, from));
        }
  ranks_write(local, data);
  free(data);
  return part;
}

/* The bags of this rank where `placements` says Bags. */
static void bag_range(const ranks_mesh *sizes, const sheaf_placement *placements, int64_t bags, int64_t *lo,
                      int64_t *hi)
{
  sheaf_placement cut[2];
  for (int m = 0; m < sizes->dims; m++)
    cut[m] = placements[m].kind == SHEAF_PLACE_BAGS ? sheaf_shard(0) : sheaf_replicate();
  ranks_range(sizes, cut, 0, bags, ranks_rank, lo, hi);
}

static int64_t start_of(const whole *offsets, int64_t bag, int64_t entries)
{
  return bag < offsets->count ? (int64_t)whole_get(offsets, bag) : entries;
}

sheaf_dtensor *whole_ragged(const whole *t, const whole *offsets, sheaf_mesh *mesh, const ranks_mesh *sizes,
                            const sheaf_placement *placements)
{
  int64_t lo, hi;
  bag_range(sizes, placements, offsets->count, &lo, &hi);
  int64_t first = start_of(offsets, lo, t->count), count = start_of(offsets, hi, t->count) - first;
  DLTensor local = t->view;
  local.device = ranks_device;
  local.data = keep((size_t)(count * whole_bytes(t->dtype)));
  local.shape = &count;
  ranks_write(&local, t->data + first * whole_bytes(t->dtype));
  sheaf_dtensor *part;
  sheaf_dtensor_desc desc = describe(t, mesh, sizes, placements);
  OK(sheaf_dtensor_wrap(&desc, &local, &part));
  return part;
}

sheaf_dtensor *whole_ragged_offsets(const whole *offsets, int64_t entries, int with_end, sheaf_mesh *mesh,
                                    const ranks_mesh *sizes, const sheaf_placement *placements)
{
  int64_t lo, hi;
  bag_range(sizes, placements, offsets->count, &lo, &hi);
  int64_t count = hi - lo + with_end;
  whole *mine = whole_make(offsets->dtype, 1, &count);
  for (int64_t b = 0; b < count; b++)
    whole_set(mine, b, (double)(start_of(offsets, lo + b, entries) - start_of(offsets, lo, entries)));
  DLTensor local = mine->view;
  local.device = ranks_device;
  local.data = keep((size_t)(count * whole_bytes(offsets->dtype)));
  ranks_write(&local, mine->data);
  sheaf_dtensor_desc desc = describe(offsets, mesh, sizes, placements);
  desc.shape[0] = offsets->count + with_end;
  for (int m = 0; m < sizes->dims && !with_end; m++)
    if (placements[m].kind == SHEAF_PLACE_BAGS) desc.placements[m] = sheaf_shard(0);
  sheaf_dtensor *part;
  OK(sheaf_dtensor_wrap(&desc, &local, &part));
  whole_free(mine);
  return part;
}

/* Compares `count` elements with those of the whole from `first` on. */
static void compare(const whole *expected, int64_t first, int64_t count, const DLTensor *local, double tolerance,
                    const char *what)
{
  void *data = ranks_read(local);
  int64_t size = whole_bytes(expected->dtype);
  for (int64_t i = 0; i < count; i++) {
    double a = get(expected->dtype, data, i), b = whole_get(expected, first + i);
    double limit = tolerance * (fabs(b) > 1 ? fabs(b) : 1);
    int same = memcmp((const char *)data + i * size, expected->data + (first + i) * size, (size_t)size) == 0;
    if (local->device.device_type == kDLCUDA) same |= isnan(a) && isnan(b); /* a device makes NaNs of other bits */
    CHECK(same || (tolerance > 0 && ((isnan(a) && isnan(b)) || fabs(a - b) <= limit)),
          "%s: element %lld is %.9g, not %.9g", what, (long long)(first + i), a, b);
  }
  free(data);
}

void whole_check(const whole *expected, const sheaf_dtensor *got, double tolerance, const char *what)
{
  sheaf_placement R[SHEAF_MESH_MAX_DIMS] = {{0}};
  sheaf_dtensor *together;
  OK(sheaf_dtensor_redistribute(got, R, &together));
  const DLTensor *local = sheaf_dtensor_local(together);
  CHECK(local->ndim == expected->rank, "%s: %d dimensions", what, local->ndim);
  for (int d = 0; d < expected->rank; d++)
    CHECK(local->shape[d] == expected->shape[d], "%s: extent %d is %lld", what, d, (long long)local->shape[d]);
  CHECK(sheaf_dtype_from_dl(local->dtype) == expected->dtype, "%s: another type", what);
  compare(expected, 0, expected->count, local, tolerance, what);
  sheaf_dtensor_free(together);
}

void whole_check_entries(const whole *expected, const whole *offsets, const sheaf_dtensor *got, const ranks_mesh *sizes,
                         double tolerance, const char *what)
{
  if (!offsets) {
    whole_check(expected, got, tolerance, what);
    return;
  }
  int64_t lo, hi;
  bag_range(sizes, sheaf_dtensor_describe(got)->placements, offsets->count, &lo, &hi);
  int64_t first = start_of(offsets, lo, expected->count), count = start_of(offsets, hi, expected->count) - first;
  const DLTensor *local = sheaf_dtensor_local(got);
  CHECK(local->shape[0] == count, "%s: %lld entries, not %lld", what, (long long)local->shape[0], (long long)count);
  compare(expected, first, count, local, tolerance, what);
}
