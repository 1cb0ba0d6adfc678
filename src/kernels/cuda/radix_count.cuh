// radix_count.cuh: what comes before the passes of a radix sort (radix_sort.cuh): its digits, its memory, and the kernel
// that counts the digits of all passes.
#ifndef SHF_CUDA_RADIX_COUNT_CUH
#define SHF_CUDA_RADIX_COUNT_CUH

#include "keys.cuh"

namespace shf {

enum {
  RADIX_BITS = 8,
  RADIX_DIGITS = 1 << RADIX_BITS,
  RADIX_PASSES = 4, // at most: keys have 32 bits
  RADIX_BLOCK = 384,
  RADIX_WARPS = RADIX_BLOCK / WARP,
  RADIX_EACH = 16, // entries of a thread
  RADIX_TILE = RADIX_BLOCK * RADIX_EACH,
  RADIX_BLOCKS = 2,             // of a processor
  LOOK_BACK = 8,                // tiles that are looked at together
  MOST_MARKED = 4 * RADIX_TILE, // bags of a tile whose offsets are all read
};

// What a tile says of a digit: nothing yet; how many it has; where the next tile's begin.
enum : uint32_t { SAYS_COUNT = 1u << 30, SAYS_PLACE = 2u << 30, SAID = (1u << 30) - 1 };
enum : int64_t { MOST_SORTED = SAID };

struct RadixDigits {
  int passes, lowest[RADIX_PASSES], width[RADIX_PASSES];
};

inline RadixDigits radix_digits(int bits)
{
  RadixDigits d = {};
  d.passes = (bits + RADIX_BITS - 1) / RADIX_BITS;
  for (int k = 0, lowest = 0; k < d.passes; lowest += d.width[k], k++)
    d.lowest[k] = lowest, d.width[k] = (bits + d.passes - 1 - k) / d.passes;
  return d;
}

inline int64_t radix_tiles(int64_t entries) { return (entries + RADIX_TILE - 1) / RADIX_TILE; }

// The sort's scratch memory. What comes first must be zero before the first kernel, which clears the rest.
struct RadixScratch {
  uint32_t *counts;    // of each digit, pass by pass
  uint32_t *taken;     // tiles, pass by pass
  uint32_t *first_bag; // the one that holds a tile's first entry
  uint32_t *said;      // [pass][tile][digit]
};
enum { RADIX_COUNTS = RADIX_PASSES * RADIX_DIGITS, RADIX_TAKEN = 16 };

inline int64_t radix_cleared(int64_t entries)
{
  return shf_align64((RADIX_COUNTS + RADIX_TAKEN + radix_tiles(entries)) * 4);
}
inline int64_t radix_bytes(int64_t entries, int bits)
{
  return radix_cleared(entries) + radix_digits(bits).passes * radix_tiles(entries) * RADIX_DIGITS * 4;
}
inline RadixScratch radix_scratch(char *memory, int64_t entries)
{
  uint32_t *words = (uint32_t *)memory;
  return RadixScratch{words, words + RADIX_COUNTS, words + RADIX_COUNTS + RADIX_TAKEN,
                      (uint32_t *)(memory + radix_cleared(entries))};
}

struct RadixTask {
  KeyTask keys;
  RadixDigits digits;
  RadixScratch scratch;
  int pass;
  uint32_t count, tiles;
  const uint2 *from; // key and payload, between passes
  uint2 *to;
  uint32_t *sorted_keys, *sorted_payload; // of the last pass
};

// ---- Counts ----

// A block's counts.
struct RadixCounts {
  uint32_t of[RADIX_PASSES][RADIX_DIGITS];
};

__device__ __forceinline__ unsigned digit_of(uint32_t key, int lowest, int width)
{
  return key >> lowest & ((1u << width) - 1);
}

// What the first kernel of a sort does besides making keys: nothing is said and nothing counted yet.
__device__ __forceinline__ void begin_counts(const RadixTask &t, RadixCounts *c)
{
  int threads = (int)blockDim.x;
  for (int i = (int)threadIdx.x; i < RADIX_COUNTS; i += threads) (&c->of[0][0])[i] = 0;
  int64_t words = (int64_t)t.digits.passes * t.tiles * (RADIX_DIGITS / 4);
  for (int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x; i < words; i += (int64_t)gridDim.x * threads)
    ((uint4 *)t.scratch.said)[i] = make_uint4(0, 0, 0, 0);
  __syncthreads();
}

__device__ __forceinline__ void count_key(const RadixTask &t, RadixCounts *c, uint32_t key)
{
#pragma unroll
  for (int k = 0; k < RADIX_PASSES; k++)
    if (k < t.digits.passes) atomicAdd(&c->of[k][digit_of(key, t.digits.lowest[k], t.digits.width[k])], 1u);
}

__device__ __forceinline__ void end_counts(const RadixTask &t, const RadixCounts *c)
{
  __syncthreads();
  for (int i = (int)threadIdx.x; i < RADIX_COUNTS; i += (int)blockDim.x) {
    uint32_t count = (&c->of[0][0])[i];
    if (count) atomicAdd(t.scratch.counts + i, count);
  }
}

__host__ __device__ __forceinline__ bool by_offsets(const GroupingSpec &s)
{
  return s.payload_is_bag && s.bag_length < 0;
}

// Which bag holds the first entry of each tile. (Where offsets are out of order some hold the same one: the last counts.)
__device__ __forceinline__ void find_first_bags(const RadixTask &t)
{
  int64_t step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t bag = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; bag < t.keys.spec.bags; bag += step) {
    int64_t start = group_start(t.keys.bags, 0, bag), end = group_start(t.keys.bags, 0, bag + 1);
    for (int64_t tile = (start + RADIX_TILE - 1) / RADIX_TILE; tile * RADIX_TILE < end; tile++)
      atomicMax(t.scratch.first_bag + tile, (uint32_t)bag);
  }
}

enum {
  COUNT_BLOCK = 512,
  COUNT_BLOCKS = 2, // of a processor
  COUNT_EACH = 4,   // words of 16 bytes that a thread asks for together, before it counts as many
};

// The usual grouping: digits are counted, and nothing is written for any entry. The first entries come last, so that they
// are in the cache when the first pass begins with them.
template <class Index>
__global__ void __launch_bounds__(COUNT_BLOCK, COUNT_BLOCKS) count_digits(const __grid_constant__ RadixTask t)
{
  enum { WORD = 16 / sizeof(Index) };
  __shared__ RadixCounts counts;
  const Index *index = (const Index *)t.keys.spec.index.data;
  bool aligned = (uintptr_t)index % 16 == 0;
  uint32_t words = aligned ? t.count / WORD : 0, step = gridDim.x * COUNT_BLOCK,
           first = blockIdx.x * COUNT_BLOCK + threadIdx.x;
  uint4 bits[COUNT_EACH], next[COUNT_EACH];
  auto load = [&](uint4 *to, uint32_t word) {
#pragma unroll
    for (int i = 0; i < COUNT_EACH; i++)
      to[i] = word + i * step < words ? __ldg((const uint4 *)index + (words - 1 - (word + i * step)))
                                      : make_uint4(0, 0, 0, 0);
  };
  begin_kernel();
  load(bits, first);
  begin_grouping(t.keys);
  begin_counts(t, &counts);
  if (by_offsets(t.keys.spec)) find_first_bags(t);
#pragma unroll 1
  for (uint32_t word = first; word < words; word += step * COUNT_EACH) {
    load(next, word + step * COUNT_EACH);
#pragma unroll
    for (int i = 0; i < COUNT_EACH; i++) {
      if (word + i * step >= words) break;
      Index each[WORD];
      memcpy(each, &bits[i], 16);
#pragma unroll
      for (int k = 0; k < WORD; k++) count_key(t, &counts, (uint32_t)row_key(t.keys.spec, each[k]));
    }
#pragma unroll
    for (int i = 0; i < COUNT_EACH; i++) bits[i] = next[i];
  }
  for (uint32_t n = words * WORD + first; n < t.count; n += step)
    count_key(t, &counts, (uint32_t)row_key(t.keys.spec, __ldg(index + n)));
  end_counts(t, &counts);
}

} // namespace shf
#endif
