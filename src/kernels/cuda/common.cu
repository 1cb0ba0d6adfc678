// common.cu: kernels that need no element type: copies of rows, zeros, checks of values, where sorted ids begin.
#include "cuda_impl.h"
#include "stamp.cuh"

namespace shf {

// ---- Copies of rows ----

// Few rows to a thread and many threads: stores leave no room for more (eight rows took a tenth longer).
enum { ROWS_IN_FLIGHT = 4 };

// Four rows of a thread's column, from entry `base` on, `rowers` apart. NARROW: numbers of rows and strides fit 32 bits,
// so that an address is one instruction.
template <class W, class Index, bool NARROW>
__device__ __forceinline__ void copy_some(const CopyTask &t, const Index *index, const char *source, char *target,
                                          int64_t base, int rowers)
{
  auto times = [](int64_t row, int64_t stride) {
    return NARROW ? (int64_t)((uint64_t)(uint32_t)row * (uint32_t)stride) : row * stride;
  };
  Index named[ROWS_IN_FLIGHT];
  W bits[ROWS_IN_FLIGHT];
#pragma unroll
  for (int i = 0; i < ROWS_IN_FLIGHT; i++)
    named[i] = base + i * rowers < t.entries ? __ldg(index + base + i * rowers) : Index(-1);
#pragma unroll
  for (int i = 0; i < ROWS_IN_FLIGHT; i++) {
    uint64_t row = (uint64_t)named[i] - (uint64_t)t.row_begin;
    bool there = row < (uint64_t)t.rows && named[i] >= 0 && (int64_t)named[i] != t.padding;
    bits[i] = load_if<sizeof(W)>(source + times((int64_t)row, t.source.row_stride), there);
  }
#pragma unroll
  for (int i = 0; i < ROWS_IN_FLIGHT; i++)
    if (base + i * rowers < t.entries) __stcs((W *)(target + times(base + i * rowers, t.target.row_stride)), bits[i]);
}

// For one problem of ordinary size, where there is a thread for everything: so little to do before the first load that
// it shows in the time.
template <class W, class Index>
__global__ void __launch_bounds__(BLOCK, 7) copy_usual(const __grid_constant__ CopyTask t)
{
  begin_kernel();
  unsigned lane = threadIdx.x & ((1u << t.lane_bits) - 1), rower = threadIdx.x >> t.lane_bits;
  int rowers = BLOCK >> t.lane_bits;
  int64_t column = ((blockIdx.y << t.lane_bits) + lane) * (int64_t)sizeof(W);
  if (column >= t.row_bytes) return;
  copy_some<W, Index, true>(t, (const Index *)t.index.data, t.source.data + column, t.target.data + column,
                            (int64_t)blockIdx.x * (unsigned)(rowers * ROWS_IN_FLIGHT) + rower, rowers);
}

// The same for rows that eight lanes share: a warp takes 32 neighbours, each lane finds out where one of them lies, and rows
// go past the first level of the cache.
enum { SHORT_BITS = 3, SHORT_LANES = 1 << SHORT_BITS, SHORT_ROWERS = WARP / SHORT_LANES };

template <class Index> __global__ void __launch_bounds__(BLOCK, 4) copy_short(const __grid_constant__ CopyTask t)
{
  begin_kernel();
  uint32_t lane = threadIdx.x % WARP, rower = lane / SHORT_LANES, column = lane % SHORT_LANES * sizeof(uint4);
  int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x / WARP * WARP;
  int64_t named = first + lane < t.entries ? (int64_t)__ldg((const Index *)t.index.data + first + lane) : -1;
  uint64_t row = (uint64_t)named - (uint64_t)t.row_begin;
  uint32_t name = row < (uint64_t)t.rows && named >= 0 && named != t.padding ? (uint32_t)row : no_row<true>();
  bool active = column < t.row_bytes;
  uint4 bits[SHORT_LANES];
#pragma unroll
  for (int i = 0; i < SHORT_LANES; i++) {
    uint32_t from = __shfl_sync(0xffffffffu, name, i * SHORT_ROWERS + rower);
    bits[i] = load_past(t.source.data + column + Ref<true>::offset(from, t.source.row_stride),
                        active && from != no_row<true>());
  }
#pragma unroll
  for (int i = 0; i < SHORT_LANES; i++) {
    int64_t entry = first + i * SHORT_ROWERS + rower;
    if (active && entry < t.entries) __stcs((uint4 *)(t.target.data + column + entry * t.target.row_stride), bits[i]);
  }
}

// One problem of the batch to each plane of the grid.
template <class W, class Index>
__global__ void __launch_bounds__(BLOCK, 4) copy_words(const __grid_constant__ CopyTask t)
{
  begin_kernel();
  int lane = (int)threadIdx.x & ((1 << t.lane_bits) - 1), rowers = BLOCK >> t.lane_bits,
      rower = (int)threadIdx.x >> t.lane_bits;
  int64_t first = (int64_t)blockIdx.x * rowers * ROWS_IN_FLIGHT + rower,
          step = (int64_t)gridDim.x * rowers * ROWS_IN_FLIGHT;
  for (int64_t problem = blockIdx.z; problem < t.batch; problem += gridDim.z)
    for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
      int64_t column = ((tile << t.lane_bits) + lane) * (int64_t)sizeof(W);
      if (column >= t.row_bytes) continue;
      const Index *index = (const Index *)(t.index.data + problem * t.index.batch_stride);
      const char *source = t.source.data + problem * t.source.batch_stride + column;
      char *target = t.target.data + problem * t.target.batch_stride + column;
      for (int64_t base = first; base < t.entries; base += step)
        copy_some<W, Index, false>(t, index, source, target, base, rowers);
    }
}

template <class W> static void copy_as(Launcher &l, CopyTask t)
{
  int64_t words = t.row_bytes / (int64_t)sizeof(W);
  t.lane_bits = lane_bits_for(words, 1, 0);
  t.tiles = tiles_for(words, 1, t.lane_bits);
  int64_t each = (BLOCK >> t.lane_bits) * ROWS_IN_FLIGHT, blocks = (t.entries + each - 1) / each;
  dim3 grid = grid_of(blocks, t.tiles);
  grid.z = (unsigned)(t.batch < 65535 ? t.batch : 65535);
  bool usual = t.batch == 1 && grid.x == blocks && grid.y == t.tiles && t.rows <= UINT32_MAX &&
               t.entries <= UINT32_MAX && t.source.row_stride <= UINT32_MAX && t.target.row_stride <= UINT32_MAX;
  if constexpr (sizeof(W) == sizeof(uint4)) {
    bool is_short = usual && t.lane_bits == SHORT_BITS && t.tiles == 1;
    auto send_short = [&](bool wanted, void (*kernel)(CopyTask)) {
      if (l.loading || wanted) launch(l, kernel, grid_of((t.entries + BLOCK - 1) / BLOCK, 1), BLOCK, 0, t);
    };
    send_short(is_short && !t.index_wide, copy_short<int>);
    send_short(is_short && t.index_wide, copy_short<long long>);
    if (is_short && !l.loading) return;
  }
  auto send = [&](bool wide_index, bool is_usual, void (*kernel)(CopyTask)) {
    if (l.loading || ((bool)t.index_wide == wide_index && usual == is_usual)) launch(l, kernel, grid, BLOCK, 0, t);
  };
  send(false, false, copy_words<W, int>);
  send(false, true, copy_usual<W, int>);
  send(true, false, copy_words<W, long long>);
  send(true, true, copy_usual<W, long long>);
}

void copy_rows(Launcher &l, CopyTask t)
{
  auto fits = [&](int64_t bytes) {
    return t.row_bytes % bytes == 0 && is_aligned(t.source, bytes) && is_aligned(t.target, bytes);
  };
  bool by16 = fits(16), by4 = !by16 && fits(4);
  if (l.loading || by16) copy_as<uint4>(l, t);
  if (l.loading || by4) copy_as<uint32_t>(l, t);
  if (l.loading || (!by16 && !by4)) copy_as<uint16_t>(l, t); // elements have at least two bytes
}

// ---- Zeros ----

struct ClearTask {
  shf_matrix target;
  int64_t rows, batch, row_bytes;
};

template <class W> __global__ void __launch_bounds__(BLOCK) clear_words(const __grid_constant__ ClearTask t)
{
  begin_kernel();
  int64_t words = t.row_bytes / (int64_t)sizeof(W), all = t.rows * t.batch * words;
  W zero;
  memset(&zero, 0, sizeof zero);
  for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < all; i += (int64_t)gridDim.x * BLOCK) {
    int64_t row = i / words, problem = row / t.rows;
    ((W *)row_of(t.target, problem, row - problem * t.rows))[i - row * words] = zero;
  }
}

template <class W> static void clear_as(Launcher &l, const ClearTask &t)
{
  int64_t words = t.rows * t.batch * t.row_bytes / (int64_t)sizeof(W), most = (int64_t)l.device.processors * 32;
  int64_t blocks = (words + BLOCK - 1) / BLOCK;
  launch(l, clear_words<W>, grid_of(blocks < most ? blocks : most, 1), BLOCK, 0, t);
}

void clear_rows(Launcher &l, shf_matrix target, int64_t rows, int64_t batch, int64_t row_bytes)
{
  ClearTask t = {target, rows, batch, row_bytes};
  bool together = target.row_stride == row_bytes && (batch == 1 || target.batch_stride == rows * row_bytes);
  if (together && !l.loading) {
    clear_memory(l, target.data, (size_t)(rows * batch * row_bytes));
    return;
  }
  bool by16 = row_bytes % 16 == 0 && is_aligned(target, 16);
  if (l.loading || by16) clear_as<uint4>(l, t);
  if (l.loading || !by16) clear_as<uint16_t>(l, t);
}

// ---- The report ----

// Until the last block has been here, the report's fields hold: the number of bad entries; the first fault so far; the
// number of blocks that are done. A fault is kept as a number that grows the earlier it lies, so that one maximum finds
// the first; faults of structure (offsets, order of ids) are larger than any bad index.
enum { STRUCTURE_BIT = 62 };

__device__ __forceinline__ unsigned long long fault_at(int64_t position, bool structure)
{
  return ((unsigned long long)structure << STRUCTURE_BIT) |
         ((1ull << STRUCTURE_BIT) - 1 - (unsigned long long)position);
}

// Whether offset `i` of a problem is wrong.
__device__ __forceinline__ bool is_wrong_offset(const ScanTask &t, int64_t problem, int64_t i)
{
  const char *offsets = t.offsets.data + problem * t.offsets.batch_stride;
  int64_t value = load_index(offsets, i, t.offsets_wide), last = t.bags + t.with_end - 1, count = t.rows * t.columns;
  if (i == 0 ? value != 0 : value < load_index(offsets, i - 1, t.offsets_wide)) return true;
  return value > count || value < 0 || (t.with_end && i == last && value != count);
}

__device__ __forceinline__ int64_t scanned_value(const ScanTask &t, int64_t n)
{
  int64_t row = n / t.columns, problem = row / t.rows;
  return load_index(row_of(t.index, problem, row - problem * t.rows), n - row * t.columns, t.index_wide);
}

__global__ void __launch_bounds__(BLOCK) scan_report(const __grid_constant__ ScanTask t)
{
  begin_kernel();
  __shared__ unsigned long long block_first;
  int64_t all = t.batch * t.rows * t.columns, step = (int64_t)gridDim.x * BLOCK, bad = 0;
  int64_t begin = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
  unsigned long long first = 0;
  if (threadIdx.x == 0) block_first = 0;
  for (int64_t n = begin; n < all; n += step) {
    int64_t value = scanned_value(t, n);
    bool wrong = (uint64_t)value >= (uint64_t)t.limit && !(t.allow_absent && value == -1);
    bad += wrong;
    unsigned long long fault = wrong ? fault_at(n, false) : 0;
    if (t.sorted && n % t.columns != 0 && scanned_value(t, n - 1) > value) fault = fault_at(n, true);
    first = fault > first ? fault : first;
  }
  int64_t offsets = t.offsets.data ? t.bags + t.with_end : 0;
  for (int64_t n = begin; n < offsets * t.batch; n += step) {
    unsigned long long fault = is_wrong_offset(t, n / offsets, n % offsets) ? fault_at(n, true) : 0;
    first = fault > first ? fault : first;
  }
  int bad_here = __syncthreads_or(bad > 0 || first > 0);
  unsigned long long *fields = (unsigned long long *)t.report;
  if (bad_here) {
    if (bad > 0) atomicAdd(&fields[0], (unsigned long long)bad);
    if (first > 0) atomicMax(&block_first, first);
    __syncthreads();
    if (threadIdx.x == 0 && block_first > 0) atomicMax(&fields[1], block_first);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&fields[2], 1ull) != gridDim.x - 1) return;
  __threadfence();
  first = atomicMax(&fields[1], 0ull);
  bool structure = first >> STRUCTURE_BIT;
  int64_t position = (int64_t)((1ull << STRUCTURE_BIT) - 1 - (first & ((1ull << STRUCTURE_BIT) - 1)));
  int64_t value = 0;
  if (first == 0)
    position = -1;
  else if (structure && offsets > 0)
    value =
        load_index(t.offsets.data + position / offsets * t.offsets.batch_stride, position % offsets, t.offsets_wide);
  else
    value = scanned_value(t, position);
  if (structure) t.report->count = -1;
  t.report->first_position = position;
  t.report->first_value = value;
}

void scan_values(Launcher &l, const ScanTask &t)
{
  clear_memory(l, t.report, sizeof *t.report);
  int64_t all = t.batch * t.rows * t.columns, offsets = t.offsets.data ? t.batch * (t.bags + 1) : 0;
  int64_t blocks = ((all > offsets ? all : offsets) + BLOCK - 1) / BLOCK, most = (int64_t)l.device.processors * 8;
  launch(l, scan_report, grid_of(blocks < 1 ? 1 : blocks < most ? blocks : most, 1), BLOCK, 0, t);
}

// ---- Where groups begin in sorted ids ----

enum { STARTS_EACH = 4, STARTS_TILE = BLOCK * STARTS_EACH, FEW_STARTS = 8 };

// The id of entry n, as it is: -1 in front of the first entry, the largest behind the last.
__device__ __forceinline__ int64_t id_at(const StartsTask &t, const char *ids, int64_t n, int64_t entries)
{
  if (n < 0) return -1;
  if (n >= entries) return INT64_MAX;
  return t.sorted.keys ? (int64_t)key_at(t.sorted, n) : load_index(ids, n, t.ids_wide);
}

// Group s begins at entry n. Keys count over all problems, each of which has an end behind its starts.
__device__ __forceinline__ void put_start(const StartsTask &t, int64_t problem, int64_t s, int64_t n)
{
  if (t.sorted.keys && t.batch > 1) {
    problem = s / t.groups;
    if (problem * t.groups == s && s > 0) t.starts[problem * (t.groups + 1) - 1] = n;
    if (problem == t.batch) return;
    s -= problem * t.groups;
  }
  t.starts[problem * (t.groups + 1) + s] = n;
}

// An entry writes the starts of the groups behind the entry before it, up to its own. (Where ids are out of order some
// are written more than once, but all are: between -1 in front and `groups` behind, each is passed upwards somewhere.)
// Where that is more than a few groups, the block does it together.
__global__ void __launch_bounds__(BLOCK) find_starts_kernel(const __grid_constant__ StartsTask t)
{
  __shared__ int64_t gap[STARTS_TILE / FEW_STARTS][3];
  __shared__ int gaps;
  begin_kernel();
  if (t.list_count && blockIdx.x + blockIdx.y == 0 && threadIdx.x == 0) clear_list(t.list_count);
  bool keyed = t.sorted.keys != nullptr;
  int64_t problems = keyed ? 1 : t.batch, groups = keyed ? t.groups * t.batch : t.groups;
  int64_t entries = !keyed ? t.entries : is_for(t.sorted) ? t.entries * t.batch : 0; // another's grouping: none
  for (int64_t problem = blockIdx.y; problem < problems; problem += gridDim.y) {
    const char *ids = t.ids.data + problem * t.ids.batch_stride;
    for (int64_t base = (int64_t)blockIdx.x * STARTS_TILE; base <= entries; base += (int64_t)gridDim.x * STARTS_TILE) {
      int64_t id[STARTS_EACH], first = base + threadIdx.x;
      if (threadIdx.x == 0) gaps = 0;
#pragma unroll
      for (int i = 0; i < STARTS_EACH; i++) id[i] = id_at(t, ids, first + i * BLOCK, entries);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < STARTS_EACH; i++) {
        int64_t n = first + i * BLOCK, before = __shfl_up_sync(0xffffffffu, id[i], 1);
        if (threadIdx.x % WARP == 0) before = id_at(t, ids, n - 1, entries);
        if (before == id[i]) continue;
        before = max(min(before, groups), (int64_t)-1);
        int64_t here = max(min(id[i], groups), (int64_t)-1), at = STARTS_TILE / FEW_STARTS;
        if (here - before > FEW_STARTS) at = atomicAdd(&gaps, 1);
        if (at < STARTS_TILE / FEW_STARTS)
          gap[at][0] = before + 1, gap[at][1] = here, gap[at][2] = n;
        else // few; or ids jump up and down, and there is no more room
          for (int64_t s = before + 1; s <= here; s++) put_start(t, problem, s, n);
      }
      __syncthreads();
      for (int g = 0; g < min(gaps, (int)(STARTS_TILE / FEW_STARTS)); g++)
        for (int64_t s = gap[g][0] + threadIdx.x; s <= gap[g][1]; s += BLOCK) put_start(t, problem, s, gap[g][2]);
      __syncthreads();
    }
  }
}

// The same for one problem of ordinary size, in 32 bits but for the ids themselves.
template <class Id> __global__ void __launch_bounds__(BLOCK, 8) find_usual_starts(const __grid_constant__ StartsTask t)
{
  __shared__ int gap[STARTS_TILE / FEW_STARTS][3];
  __shared__ int gaps;
  begin_kernel();
  if (t.list_count && blockIdx.x == 0 && threadIdx.x == 0) clear_list(t.list_count);
  const Id *ids = (const Id *)(t.sorted.keys ? t.sorted.keys : t.ids.data);
  int entries = t.sorted.keys && !is_for(t.sorted) ? 0 : (int)t.entries, groups = (int)t.groups;
  int first = (int)(blockIdx.x * STARTS_TILE + threadIdx.x * STARTS_EACH), id[STARTS_EACH], before = 0;
  auto kept = [&](int64_t id) -> int { return id < 0 ? -1 : id < groups ? (int)id : groups; };
  auto at = [&](int n) -> int { // -1 in front of the first entry, `groups` behind the last
    return n < 0 ? -1 : n >= entries ? groups : kept(__ldg(ids + n));
  };
  if (threadIdx.x == 0) gaps = 0;
  if (threadIdx.x % WARP == 0) before = at(first - 1); // the entry in front is another warp's
  if (first + STARTS_EACH <= entries && (uintptr_t)ids % 16 == 0) {
    Id four[STARTS_EACH];
#pragma unroll
    for (int i = 0; i < (int)sizeof four / 16; i++) {
      uint4 bits = __ldg((const uint4 *)(ids + first) + i);
      memcpy((char *)four + 16 * i, &bits, 16);
    }
#pragma unroll
    for (int i = 0; i < STARTS_EACH; i++) id[i] = kept(four[i]);
  } else {
#pragma unroll
    for (int i = 0; i < STARTS_EACH; i++) id[i] = at(first + i);
  }
  int last = __shfl_up_sync(0xffffffffu, id[STARTS_EACH - 1], 1);
  if (threadIdx.x % WARP != 0) before = last;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < STARTS_EACH; before = id[i], i++) {
    int n = first + i;
    if (before >= id[i]) continue;
    int place = STARTS_TILE / FEW_STARTS;
    if (id[i] - before > FEW_STARTS) place = atomicAdd(&gaps, 1);
    if (place < STARTS_TILE / FEW_STARTS)
      gap[place][0] = before + 1, gap[place][1] = id[i], gap[place][2] = n;
    else // few; or ids jump up and down, and there is no more room
      for (int s = before + 1; s <= id[i]; s++) t.starts[s] = n;
  }
  __syncthreads();
  for (int g = 0; g < min(gaps, (int)(STARTS_TILE / FEW_STARTS)); g++)
    for (int s = gap[g][0] + (int)threadIdx.x; s <= gap[g][1]; s += BLOCK) t.starts[s] = gap[g][2];
}

void find_starts(Launcher &l, const StartsTask &t)
{
  int64_t entries = t.sorted.keys ? t.entries * t.batch : t.entries;
  if (t.groups == 0 && !l.loading) return;
  dim3 grid = grid_of(entries / STARTS_TILE + 1, t.sorted.keys ? 1 : t.batch);
  bool usual = t.batch == 1 && entries < INT32_MAX - STARTS_TILE && t.groups < INT32_MAX - STARTS_TILE &&
               !(t.sorted.keys && t.sorted.wide);
  if (l.loading || !usual) launch(l, find_starts_kernel, grid, BLOCK, 0, t);
  if (l.loading || (usual && t.sorted.keys)) launch(l, find_usual_starts<unsigned>, grid, BLOCK, 0, t);
  if (l.loading || (usual && !t.sorted.keys && t.ids_wide)) launch(l, find_usual_starts<long long>, grid, BLOCK, 0, t);
  if (l.loading || (usual && !t.sorted.keys && !t.ids_wide)) launch(l, find_usual_starts<int>, grid, BLOCK, 0, t);
}

// ---- Rows per segment ----

// Lanes of a warp that have the same segment count together: one addition for all of them.
__global__ void __launch_bounds__(BLOCK) count_ids_kernel(const __grid_constant__ CountTask t)
{
  begin_kernel();
  int64_t all = t.entries * t.batch, step = (int64_t)gridDim.x * BLOCK;
  int64_t rounds = (all + step - 1) / step;
  for (int64_t r = 0; r < rounds; r++) {
    int64_t n = r * step + (int64_t)blockIdx.x * BLOCK + threadIdx.x, cell = -1;
    if (n < all) {
      int64_t problem = n / t.entries;
      int64_t id = load_index(t.ids.data + problem * t.ids.batch_stride, n - problem * t.entries, t.ids_wide);
      if ((uint64_t)id < (uint64_t)t.groups) cell = problem * t.groups + id;
    }
    unsigned same = __match_any_sync(0xffffffffu, (long long)cell);
    if (cell >= 0 && __ffs((int)same) - 1 == (int)(threadIdx.x & (WARP - 1)))
      atomicAdd((unsigned long long *)&t.counts[cell], (unsigned long long)__popc(same));
  }
}

void count_ids(Launcher &l, const CountTask &t)
{
  clear_memory(l, t.counts, (size_t)(t.batch * t.groups * 8));
  int64_t blocks = (t.entries * t.batch + BLOCK - 1) / BLOCK, most = (int64_t)l.device.processors * 16;
  launch(l, count_ids_kernel, grid_of(blocks < most ? blocks : most, 1), BLOCK, 0, t);
}

} // namespace shf
