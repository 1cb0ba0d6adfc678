// task.cuh: what a kernel is given, and how groups, entries and slots are found from it.
//
// A *group* (bag, segment, table row) has *places* numbered from 0, one for each of its entries. Its sum is the
// canonical tree over places: 16 places are a term of the first level, 256 (SHF_CHUNK) one of the second. Groups of up
// to 256 places are reduced by one team of threads. Longer ones are cut into chunks of 256; each chunk's term goes to a
// *slot* of the workspace, and whoever comes last of sixteen folds them in order. Who adds never shows in the bits.
#ifndef SHF_CUDA_TASK_CUH
#define SHF_CUDA_TASK_CUH

#include <type_traits>

#include "element.cuh"

namespace shf {

enum { BLOCK_BITS = 8, BLOCK = 1 << BLOCK_BITS, WARP_BITS = 5, WARP = 1 << WARP_BITS };

// How an entry names the row that is its term.
enum Decode {
  BY_INDEX,   // bags: indices of table rows; some are skipped
  IN_ORDER,   // sorted segments: the entry is the row
  BY_PAYLOAD, // unsorted segments: sorted entries carry row numbers
  BY_GRADIENT // table gradient: sorted entries carry bags or positions, which lead to rows of grad_out
};

enum Sink {
  SINK_SUM,   // round; a zero is +0
  SINK_MEAN,  // divide first
  SINK_PROD,  // round; a zero keeps its sign
  SINK_ADD,   // add to what the row holds
  SINK_COUNT, // no columns: mean's divisor itself
  SINK_TERM   // acc rows of the workspace
};

// Entries sorted by key, stable. `stamp` says what they were sorted for; a caller's grouping may be another's.
struct Sorted {
  const void *keys, *payload;
  int wide;      // both are 64-bit
  uint64_t none; // key of dropped entries, which come last
  const uint64_t *stamp;
  uint64_t expected;
};

// A group that is cut into chunks; the term of each goes to a slot from `slot` on.
struct LongGroup {
  int64_t problem, group, start, length, slot;
};

// In large problems kernels list what they leave to walk_chunks: groups, and their chunks one by one, as in long_list.cuh.
struct alignas(16) LongItem { // stored at once: of ids out of order, many may claim one place
  uint32_t group, chunk;      // which of the list, and of its chunks
  int64_t places;             // its first entry, and how many there are (see item_of)
};
// Chunks of about the same length are of one class, since rowers of a warp take neighbours, and wait for the longest.
enum { ITEM_CLASSES = 4, LISTED_GROUPS = ITEM_CLASSES, ITEMS_TAKEN, LIST_COUNTS };
struct LongList {
  unsigned long long *count; // items of each class, groups, and what has been taken: LIST_COUNTS
  LongGroup *groups;
  LongItem *items[ITEM_CLASSES];
  int64_t most, room[ITEM_CLASSES]; // groups, and items of each class, that there is room for
};
enum : uint32_t { NOT_LISTED = UINT32_MAX };

__device__ __forceinline__ void clear_list(unsigned long long *count)
{
#pragma unroll
  for (int i = 0; i < LIST_COUNTS; i++) count[i] = 0;
}

struct Task {
  // extents of one problem, and the number of problems
  int64_t dim, groups, entries, batch;
  // groups: from offsets, by a fixed length, or (runs) from equal keys
  const char *offsets;
  int64_t offsets_batch; // bytes from one problem's to the next
  int offsets_wide, offsets_end;
  int64_t bag_length;   // -1: offsets say
  int64_t guess_length; // what it would be if all bags were equally long; 0: no whole number
  int64_t entry_stride; // entries from one problem's first to the next's: `entries`, or 0 where offsets count over all
  Sorted sorted;
  // entries
  Decode decode;
  shf_matrix index, weights;
  int index_wide, weighted;
  int64_t rows, row_begin, total_rows, padding;
  int payload_is_bag;
  int64_t bags;         // per problem
  const void *bag_of;   // bag of each position, when neither payload nor bag_length gives it
  const void *divisors; // acc per bag of all problems; NULL: sums
  int by_frequency;
  int64_t columns; // > 0: groups and payloads are cells of rows this wide, and dim is 1
  // rows
  shf_matrix source, target, arg, counts;
  Sink sink;
  int target_is_acc, arg_wide, count_ties, least, zero_as_one, out_dtype, store_wide;
  double empty; // of a group without entries
  // slots of long groups
  char *slots;
  int64_t slot_bytes, slot_count; // 0: no group can be long
  uint64_t mark;                  // of the run, where nobody makes slots ready (see arrive_marked); 0: somebody does
  LongList list;
  int awaits; // a kernel before this one in the run finds where groups begin, or makes them, and empties the list
  // launch
  int lane_bits;    // 2^lane_bits threads share a row, up to 32
  int64_t tiles;    // times so many lanes * VE columns make dim
  int split_bits;   // teams: 2^split_bits rowers share a group
  int chunk_bits;   // the same for chunks
  int stage_places; // places of a group that are decoded at once
  int run_tile;     // sorted entries whose runs are one warp's
};

// The usual task: one problem, numbers that fit 32 bits, nothing to multiply with. Kernels that are compiled for it, and
// for one way of decoding, take their task through `usual`, which makes constants of what is known, so that the code for
// the rest disappears; rows are then named by number.
enum { NOT_USUAL = -1 };

inline bool is_usual(const Task &t)
{
  const int64_t most = INT32_MAX, most_unsigned = UINT32_MAX, most_tiles = 65535; // as many as a grid has
  int64_t most_groups = t.decode == BY_INDEX ? most : most_unsigned; // bags have a rower each
  bool plain = !t.weighted && !t.divisors && !t.by_frequency && !t.columns && !t.bag_of && t.dim > 0;
  bool fits = t.rows < most_unsigned && t.bags < most_unsigned && t.entries < most && t.groups < most_groups &&
              t.source.row_stride <= most_unsigned && t.target.row_stride <= most_unsigned && t.tiles <= most_tiles;
  bool sorted = t.decode == BY_PAYLOAD || t.decode == BY_GRADIENT;
  if (t.decode == BY_GRADIENT && !t.payload_is_bag && t.bag_length > 0) return false;
  return t.batch == 1 && plain && fits && t.sink != SINK_TERM && !(sorted && t.sorted.wide);
}

template <int USUAL>
__device__ __forceinline__ auto usual(const Task &given) -> std::conditional_t<USUAL >= 0, Task, const Task &>
{
  if constexpr (USUAL < 0) {
    return given;
  } else {
    Task t = given;
    t.batch = 1;
    t.entry_stride = t.entries;
    t.weighted = t.by_frequency = 0;
    t.divisors = t.bag_of = nullptr;
    t.columns = 0;
    t.decode = (Decode)USUAL;
    t.sorted.wide = 0;
    t.payload_is_bag = 1;
    return t;
  }
}

// How a row is named in shared memory: by its number, or by where it lies, in bytes from source.data.
template <bool NARROW> struct Ref {
  typedef int64_t type;
  static __device__ __forceinline__ int64_t offset(type ref, int64_t) { return ref; }
};
template <> struct Ref<true> {
  typedef uint32_t type;
  static __device__ __forceinline__ int64_t offset(type ref, int64_t stride)
  {
    return (int64_t)((uint64_t)ref * (uint32_t)stride);
  }
  // base + offset in one instruction, where the compiler makes it two.
  static __device__ __forceinline__ const char *in(const char *base, type ref, int64_t stride)
  {
    const char *there;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(there) : "r"(ref), "r"((uint32_t)stride), "l"(base));
    return there;
  }
};
template <bool NARROW> __device__ __forceinline__ typename Ref<NARROW>::type no_row()
{
  return (typename Ref<NARROW>::type) - 1;
}

template <bool NARROW> __device__ __forceinline__ int64_t ref_of(const shf_matrix &m, int64_t problem, int64_t row)
{
  return NARROW ? row : problem * m.batch_stride + row * m.row_stride;
}

__device__ __forceinline__ int64_t load_index(const char *data, int64_t position, int wide)
{
  return wide ? __ldg((const long long *)data + position) : (int64_t)__ldg((const int *)data + position);
}

__device__ __forceinline__ uint64_t key_at(const Sorted &s, int64_t entry)
{
  return s.wide ? __ldg((const unsigned long long *)s.keys + entry) : (uint64_t)__ldg((const unsigned *)s.keys + entry);
}

__device__ __forceinline__ int64_t payload_at(const Sorted &s, int64_t entry)
{
  return s.wide ? __ldg((const long long *)s.payload + entry) : (int64_t)__ldg((const unsigned *)s.payload + entry);
}

__device__ __forceinline__ bool is_for(const Sorted &s) { return *s.stamp == s.expected; }

// ---- Groups by offsets ----

// First entry of group `g` of a problem (g may be one past the last), kept within the problem whatever offsets say.
__device__ __forceinline__ int64_t group_start(const Task &t, int64_t problem, int64_t g)
{
  int64_t base = problem * t.entry_stride, last = t.entry_stride ? t.entries : t.entries * t.batch, at;
  if (t.bag_length >= 0) {
    at = g * t.bag_length;
  } else if (g == t.groups && !t.offsets_end) {
    at = last;
  } else {
    at = load_index(t.offsets + problem * t.offsets_batch, g, t.offsets_wide);
    at = at < 0 ? 0 : at > last ? last : at;
  }
  return base + at;
}

struct Span {
  int64_t problem, group; // within the problem
  int64_t start, end;     // entries over all problems
};

__device__ __forceinline__ Span span_of(const Task &t, int64_t g)
{
  Span s;
  s.problem = t.batch > 1 ? g / t.groups : 0;
  s.group = g - s.problem * t.groups;
  int64_t base = s.problem * t.entry_stride, last = t.entry_stride ? t.entries : t.entries * t.batch;
  if (t.bag_length >= 0) {
    s.start = s.group * t.bag_length;
    s.end = s.start + t.bag_length;
  } else { // both are asked for before either is looked at
    const char *offsets = t.offsets + s.problem * t.offsets_batch;
    bool open = s.group + 1 == t.groups && !t.offsets_end;
    s.start = load_index(offsets, s.group, t.offsets_wide);
    s.end = load_index(offsets, s.group + !open, t.offsets_wide);
    if (open) s.end = last;
    s.start = s.start < 0 ? 0 : s.start > last ? last : s.start;
    s.end = s.end > last ? last : s.end;
  }
  s.start += base;
  s.end += base;
  if (s.end < s.start) s.end = s.start;
  return s;
}

// ---- Slots ----

// Slot of the first chunk of a long group that starts at `s`. Chunks of different long groups never meet: n > 256 entries
// are at most 2 * floor(n / 256) chunks, and no less further on do the slots of the next group begin.
__host__ __device__ __forceinline__ int64_t first_slot(int64_t s) { return s / SHF_CHUNK * 2; }

__host__ __device__ __forceinline__ int64_t slots_for(int64_t entries)
{
  return entries > SHF_CHUNK ? first_slot(entries) + 2 : 0;
}

// Where a position would lie if all groups were equally long.
__device__ __forceinline__ int64_t guess_group(const Task &t, int64_t position)
{
  int64_t all = t.groups * t.batch;
  int64_t guess = (int64_t)((float)position / (float)(t.entries * t.batch) * (float)all);
  return guess < 0 ? 0 : guess >= all ? all - 1 : guess;
}

// The last group, over all problems, that starts at or before `position`; groups lie in order. The guess is right when
// groups are about as long as each other, so that few offsets are read; otherwise leaps grow until they enclose it.
__device__ inline int64_t group_holding(const Task &t, int64_t position)
{
  int64_t all = t.groups * t.batch;
  auto starts_before = [&](int64_t g) {
    int64_t problem = t.batch > 1 ? g / t.groups : 0;
    return group_start(t, problem, g - problem * t.groups) <= position;
  };
  int64_t guess = guess_group(t, position);
  int64_t low, high, leap = 1;
  if (starts_before(guess)) {
    low = guess;
    while (low + leap < all && starts_before(low + leap)) low += leap, leap *= 2;
    high = low + leap < all ? low + leap : all;
  } else {
    high = guess;
    while (high - leap >= 0 && !starts_before(high - leap)) high -= leap, leap *= 2;
    low = high - leap >= 0 ? high - leap : -1;
  }
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (starts_before(middle))
      low = middle;
    else
      high = middle;
  }
  return low < 0 ? 0 : low;
}

// ---- Groups by runs of equal keys ----

__device__ __forceinline__ Span run_span(const Task &t, uint64_t key, int64_t start, int64_t end)
{
  Span span;
  span.problem = t.batch > 1 ? (int64_t)key / t.groups : 0;
  span.group = (int64_t)key - span.problem * t.groups;
  span.start = start;
  span.end = end;
  return span;
}

// ---- Entries ----

__device__ __forceinline__ int64_t cell_offset(const Task &t, const shf_matrix &m, int64_t cell, int64_t size)
{
  return cell / t.columns * m.row_stride + cell % t.columns * size;
}

__device__ __forceinline__ char *target_row(const Task &t, const shf_matrix &m, int64_t problem, int64_t group,
                                            int64_t size)
{
  int64_t at = t.columns ? cell_offset(t, m, group, size) : group * m.row_stride;
  return m.data + problem * m.batch_stride + at;
}

// One decoded place: its row (a Ref, -1: a hole), what it is multiplied by, and what it adds to the divisor of a mean.
template <class E> struct Place {
  int64_t ref;
  typename E::acc coefficient, counted_weight;
  int counted;
};

template <class E, bool NARROW = false>
__device__ __forceinline__ Place<E> decode_index(const Task &t, int64_t problem, int64_t entry)
{
  Place<E> p;
  int64_t local = entry - problem * t.entries;
  int64_t index = load_index(t.index.data + problem * t.index.batch_stride, local, t.index_wide);
  uint64_t row = (uint64_t)index - (uint64_t)t.row_begin;
  bool good = (uint64_t)index < (uint64_t)t.total_rows && index != t.padding;
  bool here = good && row < (uint64_t)t.rows;
  p.ref = here ? ref_of<NARROW>(t.source, problem, (int64_t)row) : -1;
  p.coefficient = here ? 1 : 0;
  p.counted = good;
  p.counted_weight = 0;
  if (t.weighted && good) {
    typename E::acc w =
        weight_value<E>(((const typename E::weight *)(t.weights.data + problem * t.weights.batch_stride))[local]);
    p.coefficient = here ? w : 0;
    p.counted_weight = w;
  }
  return p;
}

template <class E, bool NARROW = false>
__device__ __forceinline__ Place<E> decode_payload(const Task &t, int64_t problem, int64_t payload)
{
  typedef typename E::acc acc;
  Place<E> p;
  p.counted = 1;
  p.counted_weight = 0;
  p.coefficient = 1;
  if (t.columns) {
    int64_t cell = payload - problem * t.entries;
    p.ref = problem * t.source.batch_stride + cell_offset(t, t.source, cell, sizeof(typename E::cell));
    return p;
  }
  int64_t local = payload - problem * (t.payload_is_bag ? t.bags : t.entries), bag = local;
  if (!t.payload_is_bag && t.bag_length > 0)
    bag = local / t.bag_length;
  else if (!t.payload_is_bag && t.bag_of)
    bag = t.sorted.wide ? ((const int64_t *)t.bag_of)[payload] : (int64_t)((const uint32_t *)t.bag_of)[payload];
  if (t.weighted)
    p.coefficient =
        weight_value<E>(((const typename E::weight *)(t.weights.data + problem * t.weights.batch_stride))[local]);
  if (t.divisors) p.coefficient = p.coefficient / ((const acc *)t.divisors)[problem * t.bags + bag];
  p.ref = ref_of<NARROW>(t.source, problem, bag);
  return p;
}

template <class E, bool NARROW>
__device__ __forceinline__ Place<E> decode_place(const Task &t, int64_t problem, int64_t entry)
{
  if (t.decode == BY_GRADIENT) return decode_payload<E, NARROW>(t, problem, payload_at(t.sorted, entry));
  if (t.decode == BY_INDEX) return decode_index<E, NARROW>(t, problem, entry);
  Place<E> p;
  int64_t row = (t.decode == IN_ORDER ? entry : payload_at(t.sorted, entry)) - problem * t.entries;
  p.ref = ref_of<NARROW>(t.source, problem, row);
  p.coefficient = 1;
  p.counted = 1;
  p.counted_weight = 0;
  return p;
}

// What arg becomes when place number `entry` wins.
__device__ __forceinline__ int64_t id_of(const Task &t, int64_t problem, int64_t entry)
{
  int64_t local = entry - problem * t.entries;
  if (t.decode == BY_INDEX) return load_index(t.index.data + problem * t.index.batch_stride, local, t.index_wide);
  return t.decode == IN_ORDER ? local : payload_at(t.sorted, entry) - problem * t.entries;
}

} // namespace shf
#endif
