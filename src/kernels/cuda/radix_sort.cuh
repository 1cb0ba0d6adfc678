// radix_sort.cuh: many entries sorted by key, stable, a digit of up to eight bits at a time. One kernel counts the digits
// of all passes (radix_count.cuh); each pass then reads its entries once and writes them once. Entries are cut into tiles,
// which blocks take in turn. A tile counts its digits, says so, and adds up what the tiles in front of it have said, back to
// the first one that knows what lies in front of itself (a look-back); meanwhile the block's next tile is on its way.
//
// The usual grouping's first pass reads indices, not keys: none are written before it.
#ifndef SHF_CUDA_RADIX_SORT_CUH
#define SHF_CUDA_RADIX_SORT_CUH

#include "radix_count.cuh"

namespace shf {

// ---- A pass ----

// Lanes that have the same digit. Those like the first lane's are found by a vote, since many may be; the others meet in
// `met`, a word for each digit, which is 0 before and must be again.
__device__ __forceinline__ unsigned lanes_like(unsigned digit, unsigned *met)
{
  unsigned lane = threadIdx.x % WARP, like = __ballot_sync(0xffffffffu, digit == __shfl_sync(0xffffffffu, digit, 0));
  bool is_like = like >> lane & 1;
  if (!is_like) atomicOr(met + digit, 1u << lane);
  __syncwarp();
  unsigned others = met[digit];
  return is_like ? like : others;
}

__device__ __forceinline__ uint32_t heard(const uint32_t *said)
{
  uint32_t word;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(__cvta_generic_to_global(said)) : "memory");
  return word;
}
__device__ __forceinline__ void say(uint32_t *said, uint32_t word)
{
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(said)), "r"(word) : "memory");
}

// How many entries with this thread's digit lie in the tiles in front, or in all digits before it: where they begin.
__device__ __forceinline__ uint32_t look_back(const uint32_t *said, uint32_t tile)
{
  uint32_t front = 0;
  for (bool done = false; !done;) {
    uint32_t word[LOOK_BACK];
#pragma unroll
    for (int k = 0; k < LOOK_BACK; k++)
      word[k] = (uint32_t)k < tile ? heard(said - (k + 1) * RADIX_DIGITS) : (uint32_t)SAYS_PLACE;
#pragma unroll
    for (int k = 0; k < LOOK_BACK; k++) {
      if (done || word[k] < SAYS_COUNT) break;
      front += word[k] & SAID;
      done = word[k] >= SAYS_PLACE;
      said -= RADIX_DIGITS, tile--;
    }
  }
  return front;
}

// The sum of what the threads in front have, over a thread for each digit. All threads of the block come here.
__device__ __forceinline__ uint32_t sum_in_front(uint32_t mine, uint32_t *ends)
{
  bool counts = threadIdx.x < RADIX_DIGITS;
  int lane = (int)threadIdx.x % WARP;
  uint32_t sum = mine;
  for (int step = 1; step < WARP; step *= 2) {
    uint32_t other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  if (counts && lane == WARP - 1) ends[threadIdx.x / WARP] = sum;
  __syncthreads();
  for (int w = 0; counts && w < (int)threadIdx.x / WARP; w++) sum += ends[w];
  return sum - mine;
}

// What a pass reads: INDICES, or pairs. The first pass also finds payloads: positions, bags of one length, or bags between
// offsets.
enum RadixInput { PAIRS, NARROW_INDICES, WIDE_INDICES };
enum RadixPayload { CARRIED, COMPUTED, MARKED };

// A block's tile, in shared memory.
struct RadixTile {
  uint2 staged[RADIX_TILE];                   // entries in order of their digits
  uint32_t met[RADIX_WARPS][RADIX_DIGITS];    // see lanes_like
  uint16_t before[RADIX_WARPS][RADIX_DIGITS]; // a warp's entries with a digit; then where they go in the tile
  uint32_t place[RADIX_DIGITS];               // where the digit's entries go, less where they lie in the tile
  uint32_t ends[RADIX_DIGITS / WARP], next;
};
struct MarkedTile : RadixTile {
  uint32_t last_mark[RADIX_WARPS];
  uint32_t marks[RADIX_TILE]; // where a bag begins: its number, 1 being the bag of the tile's first entry
};
static_assert(sizeof(MarkedTile) <= LEAST_SHARED, "a tile fits a block of every device");

// The bags of a tile: marks where they begin are spread to the entries behind them.
struct TileBags {
  uint32_t low, high; // the first and the last
  __device__ __forceinline__ void find(const RadixTask &t, uint32_t tile)
  {
    low = __ldcg(t.scratch.first_bag + tile);
    high = tile + 1 < t.tiles ? __ldcg(t.scratch.first_bag + tile + 1) : (uint32_t)t.keys.spec.bags - 1;
  }
  __device__ __forceinline__ void mark(const RadixTask &t, uint32_t tile, uint32_t *marks) const
  {
    int base = (int)(tile * RADIX_TILE);
    if ((int64_t)high - low < MOST_MARKED) {
      for (uint32_t i = threadIdx.x; (int64_t)low + i <= high; i += RADIX_BLOCK) {
        int start = (int)group_start(t.keys.bags, 0, (int64_t)low + i) - base,
            end = (int)group_start(t.keys.bags, 0, (int64_t)low + i + 1) - base;
        if (start < end && end > 0 && start < RADIX_TILE) marks[max(start, 0)] = i + 1;
      }
    } else { // most of them empty: entry by entry
#pragma unroll 1
      for (int n = (int)threadIdx.x; n < RADIX_TILE; n += RADIX_BLOCK)
        marks[n] = (uint32_t)(bag_between(t.keys.bags, low, (int64_t)high + 1, base + n) - low) + 1;
    }
  }
};

// Marks of a warp's entries: each entry's own or the last one before it, 0 where there is none in the warp. Returns the
// warp's last; takes the marks away.
__device__ __forceinline__ uint32_t spread_marks(uint32_t *marks, uint32_t *mark)
{
  unsigned lane = threadIdx.x % WARP, last = 0;
#pragma unroll
  for (int i = 0; i < RADIX_EACH; i++) {
    unsigned own = marks[i * WARP], heads = __ballot_sync(0xffffffffu, own != 0) & (0xffffffffu >> (WARP - 1 - lane));
    marks[i * WARP] = 0;
    unsigned its = __shfl_sync(0xffffffffu, own, heads ? 31 - __clz((int)heads) : 0);
    mark[i] = heads ? its : last;
    last = __shfl_sync(0xffffffffu, mark[i], WARP - 1);
  }
  return last;
}

// The payload of entry n where it is not marked.
__device__ __forceinline__ uint32_t computed_payload(const GroupingSpec &s, uint32_t n)
{
  if (!s.payload_is_bag) return n;
  return (uint32_t)min((int64_t)(s.bag_length > 0 ? n / (uint32_t)s.bag_length : 0), s.bags - 1);
}

template <int INPUT> struct RadixEntry {
  typedef std::conditional_t<INPUT == WIDE_INDICES, long long, int> Index;
  typedef std::conditional_t<INPUT == PAIRS, uint2, Index> type;
};

// Entry n; behind the last, none. (Something in any case: what is left as it was would be kept all the way.)
template <int INPUT>
__device__ __forceinline__ typename RadixEntry<INPUT>::type radix_load(const RadixTask &t, uint32_t n)
{
  if constexpr (INPUT == PAIRS)
    return n < t.count ? __ldcs(t.from + n) : make_uint2(UINT32_MAX, 0);
  else
    return n < t.count ? __ldg((const typename RadixEntry<INPUT>::Index *)t.keys.spec.index.data + n) : 0;
}

template <int PAYLOAD> size_t radix_shared() { return PAYLOAD == MARKED ? sizeof(MarkedTile) : sizeof(RadixTile); }

template <int INPUT, int PAYLOAD, bool LAST>
__global__ void __launch_bounds__(RADIX_BLOCK, RADIX_BLOCKS) radix_pass(const __grid_constant__ RadixTask t)
{
  typedef std::conditional_t<PAYLOAD == MARKED, MarkedTile, RadixTile> Tile;
  extern __shared__ __align__(16) char memory[];
  Tile &s = *(Tile *)memory;
  const int thread = (int)threadIdx.x, warp = thread / WARP, lane = thread % WARP, pass = t.pass;
  const int own = warp * WARP * RADIX_EACH + lane; // the thread's entries of a tile, every 32nd from here
  const int lowest = t.digits.lowest[pass], width = t.digits.width[pass];
  const bool has_digit = thread < RADIX_DIGITS;
  uint16_t *before = s.before[warp];
  typename RadixEntry<INPUT>::type entry[RADIX_EACH];
  TileBags bags = {0, 0};
  uint32_t tile;
  auto take_number = [&] {
    tile = s.next;
    if (PAYLOAD == MARKED && tile < t.tiles) bags.find(t, tile);
  };
  auto begin_tile = [&] { // asks for the entries, and marks where bags begin
    uint32_t first = tile * RADIX_TILE + own;
#pragma unroll
    for (int i = 0; i < RADIX_EACH; i++) entry[i] = radix_load<INPUT>(t, first + i * WARP);
    if constexpr (PAYLOAD == MARKED)
      if (tile < t.tiles) bags.mark(t, tile, s.marks);
  };
  let_next_begin();
  for (int i = lane; i < RADIX_DIGITS; i += WARP) s.met[warp][i] = 0;
  if constexpr (PAYLOAD == MARKED)
    for (int i = 0; i < RADIX_EACH; i++) s.marks[own + i * WARP] = 0;
  wait_for_launch_before();
  if (thread == 0) s.next = atomicAdd(t.scratch.taken + pass, 1u);
  __syncthreads();
  take_number();
  begin_tile();
  __syncthreads();
  while (tile < t.tiles) {
    const uint32_t here = tile, base = here * RADIX_TILE, valid = min((uint32_t)RADIX_TILE, t.count - base),
                   low = bags.low;
    uint32_t key[RADIX_EACH], payload[RADIX_EACH], rank[RADIX_EACH / 2], next = 0;
    if (thread == 0) next = atomicAdd(t.scratch.taken + pass, 1u);
#pragma unroll
    for (int i = 0; i < RADIX_EACH; i++) {
      if constexpr (INPUT == PAIRS)
        key[i] = entry[i].x, payload[i] = entry[i].y;
      else
        key[i] = (uint32_t)row_key(t.keys.spec, entry[i]);
      // Entries behind the last have the largest digit, so that they stay behind.
      if (INPUT != PAIRS && (uint32_t)(own + i * WARP) >= valid) key[i] = UINT32_MAX;
    }
    for (int i = lane; i < RADIX_DIGITS / 2; i += WARP) ((uint32_t *)before)[i] = 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < RADIX_EACH; i++) { // how many of the warp's entries with the same digit lie in front
      unsigned digit = digit_of(key[i], lowest, width), same = lanes_like(digit, s.met[warp]), at = before[digit],
               below = (unsigned)__popc(same & ((1u << lane) - 1));
      __syncwarp();
      if (below == 0) {
        before[digit] = (uint16_t)(at + (unsigned)__popc(same));
        s.met[warp][digit] = 0;
      }
      __syncwarp();
      rank[i / 2] = i % 2 ? rank[i / 2] | (at + below) << 16 : at + below;
    }
    if (thread == 0) s.next = next;
    __syncthreads();
    take_number();
    uint32_t counts[RADIX_WARPS], sum = 0;
    uint32_t *said = t.scratch.said + ((int64_t)pass * t.tiles + here) * RADIX_DIGITS + thread;
    if (has_digit) {
#pragma unroll
      for (int w = 0; w < RADIX_WARPS; w++) counts[w] = s.before[w][thread];
#pragma unroll
      for (int w = 0; w < RADIX_WARPS; w++) sum += counts[w];
    }
    uint32_t counted = thread == (1 << width) - 1 ? sum - (RADIX_TILE - valid) : sum;
    if (has_digit && here > 0) say(said, SAYS_COUNT | counted);
    uint32_t local = sum_in_front(sum, s.ends);
    if (has_digit) {
      uint32_t to = local;
#pragma unroll
      for (int w = 0; w < RADIX_WARPS; w++) s.before[w][thread] = (uint16_t)to, to += counts[w];
    }
    if constexpr (PAYLOAD == MARKED) {
      uint32_t last = spread_marks(s.marks + own, payload);
      if (lane == 0) s.last_mark[warp] = last;
    }
    __syncthreads();
    uint32_t last = 1; // the mark of entries in front of the warp's first
    if constexpr (PAYLOAD == MARKED)
      for (int w = 0; w < warp; w++) last = s.last_mark[w] ? s.last_mark[w] : last;
#pragma unroll
    for (int i = 0; i < RADIX_EACH; i++) {
      if (PAYLOAD == MARKED) payload[i] = low + (payload[i] ? payload[i] : last) - 1;
      if (PAYLOAD == COMPUTED) payload[i] = computed_payload(t.keys.spec, base + own + i * WARP);
      s.staged[before[digit_of(key[i], lowest, width)] + (rank[i / 2] >> 16 * (i % 2) & 0xffff)] =
          make_uint2(key[i], payload[i]);
    }
    begin_tile();
    uint32_t place = 0;
    if (here == 0) // where the digit's entries begin at all
      place = sum_in_front(has_digit ? __ldcg(t.scratch.counts + pass * RADIX_DIGITS + thread) : 0, s.ends);
    else if (has_digit)
      place = look_back(said, here);
    if (has_digit) {
      say(said, SAYS_PLACE | (place + counted));
      s.place[thread] = place - local;
    }
    __syncthreads();
#pragma unroll 4 // the next tile's entries take registers
    for (int i = 0; i < RADIX_EACH; i++) {
      uint32_t at = (uint32_t)(thread + i * RADIX_BLOCK);
      if (at >= valid) break;
      uint2 its = s.staged[at];
      uint32_t to = s.place[digit_of(its.x, lowest, width)] + at;
      if (LAST)
        t.sorted_keys[to] = its.x, t.sorted_payload[to] = its.y;
      else
        t.to[to] = its;
    }
  }
}

} // namespace shf
#endif
