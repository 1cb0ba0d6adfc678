/* tests/ranks/ranks_redistribute.c: every placement to every other, on 1-D and 2-D meshes, uneven and empty parts. */
#include <math.h>
#include <string.h>

#include "ranks.h"

/* A tensor whose element at (i, j) is known everywhere. Small integers, so that sums and products of terms are exact. */
static float value_at(int64_t i, int64_t j) { return (float)((i * 7 + j * 3) % 23 - 11); }

static int64_t coord(const ranks_mesh *mesh, int64_t rank, int m)
{
  return mesh->dims == 1 ? rank : m == 0 ? rank / mesh->size[1] : rank % mesh->size[1];
}

/* What a rank holds at (i, j) under placements: the value, or its term of it. */
static float term_at(const ranks_mesh *mesh, const sheaf_placement *p, int64_t rank, int64_t i, int64_t j)
{
  float value = value_at(i, j);
  for (int m = 0; m < mesh->dims; m++) {
    int64_t c = coord(mesh, rank, m), n = mesh->size[m];
    if (p[m].kind == SHEAF_PLACE_MASK_PARTIAL) {
      if (c != (i + 2 * m) % n) return 0;
    } else if (p[m].kind == SHEAF_PLACE_PARTIAL) {
      float others = (float)((i + j + c) % 5);
      switch (p[m].op) {
      case SHEAF_PARTIAL_SUM: /* the first has value minus what the others have */
        if (c > 0) return mesh->dims == 1 || m == 0 ? others : value - value + others;
        for (int64_t k = 1; k < n; k++) value -= (float)((i + j + k) % 5);
        break;
      case SHEAF_PARTIAL_MAX:
        if (c != j % n) return value - 1 - others;
        break;
      case SHEAF_PARTIAL_MIN:
        if (c != j % n) return value + 1 + others;
        break;
      default:
        if (c != j % n) return 1;
      }
    }
  }
  return value;
}

typedef struct shape2 {
  int64_t rows, columns;
} shape2;

static _Thread_local int64_t cases;

static sheaf_dtensor_desc describe(sheaf_mesh *mesh, sheaf_dtype dtype, shape2 s, const sheaf_placement *p, int dims)
{
  sheaf_dtensor_desc desc = SHEAF_DTENSOR_DESC_INIT;
  desc.mesh = mesh;
  desc.device = ranks_device;
  desc.dtype = dtype;
  desc.rank = 2;
  desc.shape[0] = s.rows;
  desc.shape[1] = s.columns;
  memcpy(desc.placements, p, (size_t)dims * sizeof *p);
  return desc;
}

/* Reads and writes an element of either of the types used here. */
static float get(const DLTensor *t, const void *data, int64_t at)
{
  if (t->dtype.bits == 16) return sheaf_f16_to_f32(((const uint16_t *)data)[at]);
  return ((const float *)data)[at];
}

static void put(const DLTensor *t, void *data, int64_t at, float value)
{
  if (t->dtype.bits == 16)
    ((uint16_t *)data)[at] = sheaf_f32_to_f16(value);
  else
    ((float *)data)[at] = value;
}

static int is_partial(const sheaf_placement *p)
{
  return p->kind == SHEAF_PLACE_PARTIAL || p->kind == SHEAF_PLACE_MASK_PARTIAL;
}

static void check_move(sheaf_mesh *mesh, const ranks_mesh *sizes, sheaf_dtype dtype, shape2 s,
                       const sheaf_placement *from, const sheaf_placement *to)
{
  sheaf_dtensor *source, *moved, *back;
  int64_t lo[2], hi[2];
  sheaf_dtensor_desc desc = describe(mesh, dtype, s, from, sizes->dims);
  OK(sheaf_dtensor_create(&desc, &source));
  const DLTensor *local = sheaf_dtensor_local(source);
  for (int d = 0; d < 2; d++) ranks_range(sizes, from, d, desc.shape[d], ranks_rank, &lo[d], &hi[d]);
  CHECK(local->shape[0] == hi[0] - lo[0] && local->shape[1] == hi[1] - lo[1], "local shape %lld x %lld",
        (long long)local->shape[0], (long long)local->shape[1]);
  int64_t width = hi[1] - lo[1];
  void *data = ranks_read(local);
  for (int64_t i = lo[0]; i < hi[0]; i++)
    for (int64_t j = lo[1]; j < hi[1]; j++)
      put(local, data, (i - lo[0]) * width + j - lo[1], term_at(sizes, from, ranks_rank, i, j));
  ranks_write(local, data);
  free(data);
  OK(sheaf_dtensor_redistribute(source, to, &moved));
  /* What is still partial is made whole by a second move, so that any term is as good as another. */
  sheaf_placement whole[2];
  for (int m = 0; m < sizes->dims; m++) whole[m] = is_partial(&to[m]) ? sheaf_replicate() : to[m];
  OK(sheaf_dtensor_redistribute(moved, whole, &back));
  local = sheaf_dtensor_local(back);
  data = ranks_read(local);
  CHECK(sheaf_dtype_from_dl(local->dtype) == dtype, "the type changed");
  for (int d = 0; d < 2; d++) ranks_range(sizes, whole, d, desc.shape[d], ranks_rank, &lo[d], &hi[d]);
  width = hi[1] - lo[1];
  for (int64_t i = lo[0]; i < hi[0]; i++)
    for (int64_t j = lo[1]; j < hi[1]; j++) {
      char a[16], b[16], c[16] = "", d[16] = "";
      sheaf_placement_print(&from[0], a, sizeof a);
      sheaf_placement_print(&to[0], b, sizeof b);
      if (sizes->dims > 1) sheaf_placement_print(&from[1], c, sizeof c), sheaf_placement_print(&to[1], d, sizeof d);
      float got = get(local, data, (i - lo[0]) * width + j - lo[1]);
      CHECK(got == value_at(i, j), "[%s %s] to [%s %s], mesh %lldx%lld, shape %lldx%lld: (%lld, %lld) is %g, not %g", a,
            c, b, d, (long long)sizes->size[0], (long long)sizes->size[1], (long long)s.rows, (long long)s.columns,
            (long long)i, (long long)j, (double)got, (double)value_at(i, j));
    }
  free(data);
  sheaf_dtensor_free(source);
  sheaf_dtensor_free(moved);
  sheaf_dtensor_free(back);
  cases++;
}

static void check_mesh(const ranks_mesh *sizes)
{
  sheaf_mesh *mesh;
  OK(sheaf_mesh_create(sizes->size, sizes->dims, ranks_comm, &mesh));
  sheaf_placement all[8] = {sheaf_replicate(),
                            sheaf_shard(0),
                            sheaf_shard(1),
                            sheaf_partial(SHEAF_PARTIAL_SUM),
                            sheaf_partial(SHEAF_PARTIAL_MAX),
                            sheaf_partial(SHEAF_PARTIAL_MIN),
                            sheaf_partial(SHEAF_PARTIAL_PROD),
                            {.kind = SHEAF_PLACE_MASK_PARTIAL}};
  const shape2 shapes[] = {{11, 5}, {3, 2}, {8, 8}, {0, 4}};
  int each = sizes->dims == 1 ? 8 : 64;
  for (int a = 0; a < each; a++)
    for (int b = 0; b < each; b++) {
      sheaf_placement from[2] = {all[a % 8], all[a / 8]}, to[2] = {all[b % 8], all[b / 8]};
      int mixed = sizes->dims == 2 && ((is_partial(&from[0]) && is_partial(&from[1]) && a % 8 != a / 8) ||
                                       (is_partial(&to[0]) && is_partial(&to[1]) && b % 8 != b / 8));
      /* two extremes or products at once would need another way to make terms */
      int doubled = sizes->dims == 2 && a % 8 == a / 8 && a % 8 >= 3;
      if (mixed || doubled) continue;
      check_move(mesh, sizes, (a + b) % 3 ? SHEAF_F32 : SHEAF_F16, shapes[(a * 3 + b) % 4], from, to);
    }
  sheaf_mesh_free(mesh);
}

/* Bits survive, whatever they mean: NaN with a payload, -0, infinities. */
static void check_bits(void)
{
  static const uint32_t bits[] = {0x80000000, 0x7fc01234, 0xffc04321, 0x7f800000, 0xff800000, 0x00000001, 0x3f800000};
  sheaf_mesh *mesh;
  sheaf_dtensor *source, *moved;
  OK(sheaf_mesh_create(&ranks_size, 1, ranks_comm, &mesh));
  sheaf_placement mask = {.kind = SHEAF_PLACE_MASK_PARTIAL}, whole = sheaf_replicate();
  sheaf_dtensor_desc desc = describe(mesh, SHEAF_F32, (shape2){7, 1}, &mask, 1);
  OK(sheaf_dtensor_create(&desc, &source));
  uint32_t mine[7];
  for (int i = 0; i < 7; i++) mine[i] = i % ranks_size == ranks_rank ? bits[i] : 0;
  ranks_write(sheaf_dtensor_local(source), mine);
  OK(sheaf_dtensor_redistribute(source, &whole, &moved));
  void *data = ranks_read(sheaf_dtensor_local(moved));
  CHECK(memcmp(data, bits, sizeof bits) == 0, "bits changed");
  free(data);
  sheaf_dtensor_free(source);
  sheaf_dtensor_free(moved);
  sheaf_mesh_free(mesh);
  cases++;
}

/* Bytes sent, summed over ranks, against what the collective has to move. */
static void check_bytes(void)
{
  sheaf_mesh *mesh;
  OK(sheaf_mesh_create(&ranks_size, 1, ranks_comm, &mesh));
  sheaf_placement R = sheaf_replicate(), S0 = sheaf_shard(0), S1 = sheaf_shard(1), P = sheaf_partial(SHEAF_PARTIAL_SUM);
  int64_t n = ranks_size, whole = 4 * n * n * 6;
  const struct {
    const sheaf_placement *from, *to;
    int64_t bytes, exchanges; /* by one rank: all parts are equal here */
  } moves[] = {{&R, &S0, 0, 0},
               {&S0, &R, (n - 1) * whole / n, 1},
               {&S0, &S1, (n - 1) * whole / (n * n), 1},
               {&P, &S0, (n - 1) * whole / n, 1},
               {&P, &R, 2 * (n - 1) * whole / n, 2},
               {&R, &P, 0, 0}};
  for (size_t i = 0; i < sizeof moves / sizeof *moves; i++) {
    sheaf_dtensor *source, *moved;
    sheaf_dtensor_desc desc = describe(mesh, SHEAF_F32, (shape2){n * 6, n}, moves[i].from, 1);
    OK(sheaf_dtensor_create(&desc, &source));
    sheaf_comm_stats before = sheaf_comm_statistics(ranks_comm);
    OK(sheaf_dtensor_redistribute(source, moves[i].to, &moved));
    sheaf_comm_stats after = sheaf_comm_statistics(ranks_comm);
    CHECK(after.bytes_sent - before.bytes_sent == moves[i].bytes, "move %zu sent %lld bytes, not %lld", i,
          (long long)(after.bytes_sent - before.bytes_sent), (long long)moves[i].bytes);
    if (n > 1)
      CHECK(after.exchanges - before.exchanges == moves[i].exchanges, "move %zu took %lld exchanges", i,
            (long long)(after.exchanges - before.exchanges));
    int on_device = ranks_device.device_type == kDLCUDA; /* its own errors come late, and are agreed on at the end */
    CHECK(after.agreements - before.agreements == 1 + on_device, "move %zu took %lld agreements", i,
          (long long)(after.agreements - before.agreements));
    sheaf_dtensor_free(source);
    sheaf_dtensor_free(moved);
    cases++;
  }
  sheaf_mesh_free(mesh);
}

int ranks_main(int argc, char **argv)
{
  (void)argc, (void)argv;
  ranks_mesh meshes[RANKS_MAX_MESHES];
  ranks_open();
  int count = ranks_meshes(meshes);
  for (int i = 0; i < count; i++) check_mesh(&meshes[i]);
  check_bits();
  check_bytes();
  return ranks_close("redistribute", cases);
}
