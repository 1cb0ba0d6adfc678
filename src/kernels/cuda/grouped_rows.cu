// grouped_rows.cu: the rows that a grouping's entries name, each once, and a grouping by their numbers: what a row-sparse
// gradient needs. The first entries of rows are counted tile by tile, the counts added up, and entries numbered by them.
#include "cuda_impl.h"
#include "stamp.cuh"

namespace shf {

enum { ROWS_EACH = 4, ROWS_TILE = BLOCK * ROWS_EACH, SCAN_BLOCK = 1024, SCAN_EACH = 8 };

// A grouping's arrays. Rows are keys, or where these are cells, so many columns of them.
struct RowsTask {
  Sorted from;
  const void *bag_of; // NULL: there are none
  int64_t entries, columns;
  unsigned long long *tiles; // first entries of rows: in each tile, then in front of it
  int64_t *count;
  // the grouping by numbers
  void *keys, *payload, *new_bag_of, *ids;
  int wide, ids_wide;
  uint64_t none, stamp_value, *stamp;
};

__device__ __forceinline__ uint64_t row_of_entry(const RowsTask &t, uint64_t key)
{
  return t.columns > 1 && key < t.from.none ? key / (uint64_t)t.columns : key;
}

// Whether an entry is the first of its row.
__device__ __forceinline__ bool begins_row(const RowsTask &t, int64_t n)
{
  if (n >= t.entries) return false;
  uint64_t key = key_at(t.from, n);
  return key < t.from.none && (n == 0 || row_of_entry(t, key_at(t.from, n - 1)) != row_of_entry(t, key));
}

__global__ void __launch_bounds__(BLOCK) count_tiles(const __grid_constant__ RowsTask t)
{
  begin_kernel();
  int64_t base = (int64_t)blockIdx.x * ROWS_TILE + threadIdx.x;
  bool begins[ROWS_EACH];
#pragma unroll
  for (int i = 0; i < ROWS_EACH; i++) begins[i] = begins_row(t, base + i * BLOCK);
  int count = 0;
#pragma unroll
  for (int i = 0; i < ROWS_EACH; i++) count += __syncthreads_count(begins[i]);
  if (threadIdx.x == 0) t.tiles[blockIdx.x] = (unsigned long long)count;
}

// The sum of what the threads in front have; `ends` has room for a number of each warp. All threads of the block come here.
__device__ __forceinline__ unsigned long long sum_before(unsigned long long mine, unsigned long long *ends)
{
  int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
  unsigned long long sum = mine;
  for (int step = 1; step < WARP; step *= 2) {
    unsigned long long other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();
  if (lane == WARP - 1) ends[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; w++) sum += ends[w];
  return sum - mine;
}

// One block: counts become what is in front of each tile.
__global__ void __launch_bounds__(SCAN_BLOCK) add_up_tiles(const __grid_constant__ RowsTask t)
{
  __shared__ unsigned long long ends[SCAN_BLOCK / WARP], all;
  begin_kernel();
  int64_t tiles = (t.entries + ROWS_TILE - 1) / ROWS_TILE;
  unsigned long long front = 0;
  for (int64_t base = 0; base < tiles; base += SCAN_BLOCK * SCAN_EACH) {
    int64_t first = base + (int64_t)threadIdx.x * SCAN_EACH;
    unsigned long long count[SCAN_EACH], sum = 0;
#pragma unroll
    for (int i = 0; i < SCAN_EACH; i++) {
      count[i] = first + i < tiles ? t.tiles[first + i] : 0;
      sum += count[i];
    }
    unsigned long long at = front + sum_before(sum, ends);
    if (threadIdx.x == SCAN_BLOCK - 1) all = at + sum;
#pragma unroll
    for (int i = 0; i < SCAN_EACH; at += count[i], i++)
      if (first + i < tiles) t.tiles[first + i] = at;
    __syncthreads();
    front = all;
  }
  if (threadIdx.x == 0) *t.count = (int64_t)front;
}

__device__ __forceinline__ void put_number(void *array, int64_t at, uint64_t value, int wide)
{
  if (wide)
    ((uint64_t *)array)[at] = value;
  else
    ((uint32_t *)array)[at] = (uint32_t)value;
}

__global__ void __launch_bounds__(BLOCK) number_entries(const __grid_constant__ RowsTask t)
{
  __shared__ int begun[ROWS_EACH][BLOCK / WARP];
  begin_kernel();
  if (blockIdx.x == 0 && threadIdx.x == 0) *t.stamp = t.stamp_value;
  int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
  int64_t base = (int64_t)blockIdx.x * ROWS_TILE + threadIdx.x, front = (int64_t)t.tiles[blockIdx.x];
  unsigned begins[ROWS_EACH];
#pragma unroll
  for (int i = 0; i < ROWS_EACH; i++) {
    begins[i] = __ballot_sync(0xffffffffu, begins_row(t, base + i * BLOCK));
    if (lane == 0) begun[i][warp] = __popc(begins[i]);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < ROWS_EACH; i++) {
    int64_t n = base + i * BLOCK, number = front - 1;
    for (int w = 0; w < BLOCK / WARP; w++) {
      if (w < warp) number += begun[i][w];
      front += begun[i][w];
    }
    number += __popc(begins[i] & (0xffffffffu >> (WARP - 1 - lane)));
    if (n >= t.entries) continue;
    uint64_t key = key_at(t.from, n), row = row_of_entry(t, key);
    bool dropped = key >= t.from.none;
    if (begins[i] >> lane & 1) put_number(t.ids, number, row, t.ids_wide);
    put_number(t.keys, n, dropped ? t.none : (uint64_t)(number * t.columns) + (key - row * (uint64_t)t.columns),
               t.wide);
    put_number(t.payload, n, (uint64_t)payload_at(t.from, n), t.wide);
    if (t.bag_of)
      put_number(t.new_bag_of, n,
                 t.from.wide ? ((const uint64_t *)t.bag_of)[n] : (uint64_t)((const uint32_t *)t.bag_of)[n], t.wide);
  }
}

static RowsTask rows_task(const shf_device_rows &r, const GroupingSpec &spec, const GroupingLayout &at)
{
  RowsTask t = {};
  t.from = grouping_in(spec, at, r.grouping);
  t.entries = spec.batch * spec.entries;
  t.columns = spec.columns > 0 ? spec.columns : 1;
  if (spec.with_bag_of) t.bag_of = (const char *)r.grouping + at.bag_of;
  t.tiles = (unsigned long long *)((char *)r.grouping + at.keys_in); // of no more use since entries are sorted
  t.count = r.count;
  return t;
}

static dim3 tiles_of(const RowsTask &t) { return grid_of((t.entries + ROWS_TILE - 1) / ROWS_TILE, 1); }

void count_grouped_rows(Launcher &l, const shf_device_rows &r)
{
  GroupingSpec spec = embedding_grouping(*r.whole, 1);
  GroupingLayout at;
  l.error = grouping_layout(spec, &at);
  if (l.error != cudaSuccess) return;
  RowsTask t = rows_task(r, spec, at);
  launch(l, count_tiles, tiles_of(t), BLOCK, 0, t);
  launch(l, add_up_tiles, dim3(1), SCAN_BLOCK, 0, t);
}

void number_grouped_rows(Launcher &l, const shf_device_rows &r)
{
  GroupingSpec spec = embedding_grouping(*r.whole, 1), compact = embedding_grouping(*r.compact, 1);
  GroupingLayout at, to;
  l.error = grouping_layout(spec, &at);
  if (l.error == cudaSuccess) l.error = grouping_layout(compact, &to);
  if (l.error != cudaSuccess) return;
  RowsTask t = rows_task(r, spec, at);
  Sorted made = grouping_in(compact, to, r.compact_grouping);
  char *memory = (char *)r.compact_grouping;
  t.keys = memory + to.keys;
  t.payload = memory + to.payload;
  t.new_bag_of = memory + to.bag_of;
  t.ids = r.ids;
  t.ids_wide = r.ids_wide;
  t.wide = to.wide;
  t.none = made.none;
  t.stamp = (uint64_t *)memory;
  t.stamp_value = made.expected;
  launch(l, number_entries, tiles_of(t), BLOCK, 0, t);
}

} // namespace shf
