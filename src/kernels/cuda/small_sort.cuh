// small_sort.cuh: few entries sorted by one kernel, all of whose blocks are there at once: a stable radix sort, eight
// bits at a time. A block keeps its 1024 entries in registers. In each pass it counts their digits, reads how many there
// are in front of its own everywhere, and writes the entries to where they belong, from where the next pass takes them.
#ifndef SHF_CUDA_SMALL_SORT_CUH
#define SHF_CUDA_SMALL_SORT_CUH

#include <cooperative_groups.h>

#include "keys.cuh"

namespace shf {

enum {
  SMALL_SORT = 1 << 17, // entries; for more, passes that look back are no slower than reading everyone's counts
  DIGIT_BITS = 8,
  DIGITS = 1 << DIGIT_BITS,
  SORT_WARPS = BLOCK / WARP,
};
static_assert((int)DIGITS == (int)BLOCK, "a thread for each digit");

// Everyone's counts: 16 bits for each digit of each tile.
inline int64_t small_sort_bytes(int64_t entries) { return (entries + KEY_TILE - 1) / KEY_TILE * DIGITS * 2; }

struct SmallSortTask {
  KeyTask keys;
  uint2 *pairs; // key and payload, between passes
  uint32_t *sorted_keys, *sorted_payload, *counts;
  int bits;
};

struct SmallSort {
  uint2 staged[KEY_TILE];              // the first pass: from a thread's neighbours to neighbouring threads
  uint16_t before[SORT_WARPS][DIGITS]; // entries of the warps in front, with the same digit
  uint32_t all[2][DIGITS], below[2][DIGITS];
  uint32_t place[DIGITS]; // where the block's entries go
  uint32_t ends[SORT_WARPS];
};

// Lanes that have the same digit; those without an entry are among themselves.
__device__ __forceinline__ unsigned same_digit(unsigned digit, bool there)
{
  unsigned same = __ballot_sync(0xffffffffu, there);
  if (!there) same = ~same;
#pragma unroll
  for (int b = 0; b < DIGIT_BITS; b++) {
    unsigned set = __ballot_sync(0xffffffffu, digit >> b & 1);
    same &= digit >> b & 1 ? set : ~set;
  }
  return same;
}

// How many entries of the block's with the same digit lie in front: within the warp in `rank`, of other warps in
// s->before. Writes the block's counts.
__device__ __forceinline__ void rank_entries(SmallSort *s, const uint2 *entry, int count, int lowest, unsigned mask,
                                             unsigned *rank, uint32_t *counts)
{
  int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
  for (int i = lane; i < DIGITS; i += WARP) s->before[warp][i] = 0;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < KEYS_EACH; i++) {
    bool there = i * WARP + lane < count;
    unsigned digit = entry[i].x >> lowest & mask, same = same_digit(digit, there), before = 0;
    int leader = __ffs((int)same) - 1;
    if (there && lane == leader) {
      before = s->before[warp][digit];
      s->before[warp][digit] = (uint16_t)(before + (unsigned)__popc(same));
    }
    rank[i] = __shfl_sync(0xffffffffu, before, leader) + (unsigned)__popc(same & ((1u << lane) - 1));
    __syncwarp();
  }
  __syncthreads();
  unsigned sum = 0;
#pragma unroll
  for (int w = 0; w < SORT_WARPS; w++) {
    unsigned here = s->before[w][threadIdx.x];
    s->before[w][threadIdx.x] = (uint16_t)sum;
    sum += here;
  }
  ((uint16_t *)counts)[blockIdx.x * DIGITS + threadIdx.x] = (uint16_t)sum;
}

// Where the block's entries go: behind all with smaller digits, and those of the blocks in front with the same. Two
// halves of the block take every other block's counts, two digits to a thread.
__device__ __forceinline__ void place_digits(SmallSort *s, const uint32_t *counts)
{
  enum { WORDS = DIGITS / 2 };
  int half = (int)threadIdx.x / WORDS, word = (int)threadIdx.x % WORDS, lane = (int)threadIdx.x % WARP;
  uint32_t all[2] = {0, 0}, below[2] = {0, 0};
#pragma unroll 16
  for (int block = half; block < (int)gridDim.x; block += 2) {
    uint32_t both = __ldcg(counts + block * WORDS + word), front = block < (int)blockIdx.x ? both : 0;
    all[0] += both & 0xffff, all[1] += both >> 16;
    below[0] += front & 0xffff, below[1] += front >> 16;
  }
  for (int k = 0; k < 2; k++) s->all[half][2 * word + k] = all[k], s->below[half][2 * word + k] = below[k];
  __syncthreads();
  uint32_t mine = s->all[0][threadIdx.x] + s->all[1][threadIdx.x], sum = mine;
  for (int step = 1; step < WARP; step *= 2) {
    uint32_t other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == WARP - 1) s->ends[threadIdx.x / WARP] = sum;
  __syncthreads();
  for (int w = 0; w < (int)threadIdx.x / WARP; w++) sum += s->ends[w];
  s->place[threadIdx.x] = sum - mine + s->below[0][threadIdx.x] + s->below[1][threadIdx.x];
  __syncthreads();
}

template <bool USUAL>
__global__ void __launch_bounds__(BLOCK, 2) small_sort(const __grid_constant__ SmallSortTask given)
{
  let_next_begin();
  KeyTask t = known<USUAL>(given.keys);
  __shared__ BlockBags block_bags;
  __shared__ SmallSort s;
  auto grid = cooperative_groups::this_grid();
  int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
  int64_t all = t.spec.batch * t.spec.entries, base = (int64_t)blockIdx.x * KEY_TILE,
          first = base + warp * WARP * KEYS_EACH;
  int count = (int)max(min((int64_t)(WARP * KEYS_EACH), all - first), (int64_t)0); // of the warp
  begin_grouping(t);
  Entries e = entries_of(t, base, &block_bags);
#pragma unroll
  for (int i = 0; i < KEYS_EACH; i++)
    if (i < e.count) s.staged[threadIdx.x * KEYS_EACH + i] = make_uint2((unsigned)e.key[i], (unsigned)e.payload[i]);
  __syncthreads();
  uint2 entry[KEYS_EACH];
  unsigned rank[KEYS_EACH];
#pragma unroll
  for (int i = 0; i < KEYS_EACH; i++) {
    bool there = i * WARP + lane < count;
    entry[i] = there ? s.staged[warp * WARP * KEYS_EACH + i * WARP + lane] : make_uint2(0, 0);
  }
  int passes = (given.bits + DIGIT_BITS - 1) / DIGIT_BITS, lowest = 0;
  for (int pass = 1; pass <= passes; pass++) {
    int width = (given.bits - lowest + passes - pass) / (passes - pass + 1);
    unsigned mask = (1u << width) - 1;
    rank_entries(&s, entry, count, lowest, mask, rank, given.counts);
    grid.sync();
    place_digits(&s, given.counts);
#pragma unroll
    for (int i = 0; i < KEYS_EACH; i++) {
      if (i * WARP + lane >= count) continue;
      unsigned digit = entry[i].x >> lowest & mask, to = s.place[digit] + s.before[warp][digit] + rank[i];
      if (pass == passes)
        given.sorted_keys[to] = entry[i].x, given.sorted_payload[to] = entry[i].y;
      else
        given.pairs[to] = entry[i];
    }
    lowest += width;
    if (pass == passes) break;
    grid.sync();
#pragma unroll
    for (int i = 0; i < KEYS_EACH; i++)
      if (i * WARP + lane < count) entry[i] = __ldcg(given.pairs + first + i * WARP + lane);
  }
}

} // namespace shf
#endif
