// floors.cu: what a CUDA device gives to loops that only move the rows of the cases of `sheaf bench --device cuda`.
//
// Each case of a loop is tried in several shapes (rows in flight, threads of a processor, what caches are told), and the
// best is printed. The loops add nothing up in order (f32: not at all), check nothing and know that all bags are equally long: what they
// need is a floor for what a kernel that does all this can need. Caches are cold, as in the bench: 256 MB are written
// in between. A time is the median of 11 runs.
//
//   nvcc -O3 -std=c++17 -arch=native floors.cu -o floors && ./floors [all]      all: every shape, not only the best
#include <cub/device/device_radix_sort.cuh>
#include <cuda_fp16.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <vector>

static void must(cudaError_t error, const char *what)
{
  if (error == cudaSuccess) return;
  fprintf(stderr, "floors: %s: %s\n", what, cudaGetErrorString(error));
  exit(1);
}

enum : int64_t { ROWS = 10000000, MANY = 131072 * 64, FEW = 1024 * 64, ONES = 131072, DATA = 4 << 20 };
enum { WARP = 32 };

// ---- Loads, with what caches are told ----

enum Hint { PLAIN, NO_L1, KEEP_L1, DROP_L2 };

template <int HINT> __device__ __forceinline__ uint4 load(const uint4 *p)
{
  uint4 w;
  if (HINT == NO_L1)
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                 : "l"(p));
  else if (HINT == KEEP_L1)
    asm volatile("ld.global.nc.L1::evict_last.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                 : "l"(p));
  else if (HINT == DROP_L2)
    asm volatile("{\n.reg .b64 c;\ncreatepolicy.fractional.L2::evict_first.b64 c, 1.0;\n"
                 "ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], c;\n}"
                 : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                 : "l"(p));
  else
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w) : "l"(p));
  return w;
}

__device__ __forceinline__ void mix(uint4 &a, uint4 b) { a.x ^= b.x, a.y ^= b.y, a.z ^= b.z, a.w ^= b.w; }

// What a lane adds up: bits, or 16-bit numbers, which have to be widened.
template <bool HALVES> struct Sum {
  uint4 bits = {0, 0, 0, 0};
  __device__ __forceinline__ void add(uint4 row) { mix(bits, row); }
  __device__ __forceinline__ uint4 all() const { return bits; }
};
template <> struct Sum<true> {
  float v[8] = {};
  __device__ __forceinline__ void add(uint4 row)
  {
    __half2 pairs[4];
    memcpy(pairs, &row, sizeof row);
#pragma unroll
    for (int i = 0; i < 4; i++) v[2 * i] += __low2float(pairs[i]), v[2 * i + 1] += __high2float(pairs[i]);
  }
  __device__ __forceinline__ uint4 all() const
  {
    __half2 pairs[4];
    for (int i = 0; i < 4; i++) pairs[i] = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
    uint4 bits;
    memcpy(&bits, pairs, sizeof bits);
    return bits;
  }
};

// ---- Bags of 64 rows: LANES threads to a row and to a bag ----

template <int LANES, int FLIGHT, int HINT, int EACH, bool HALVES>
__global__ void __launch_bounds__(128, EACH) bags(const int64_t *index, const uint4 *table, uint4 *out, int count)
{
  enum { LENGTH = 64, HELD = FLIGHT > LANES ? FLIGHT / LANES : 1 };
  int lane = (int)threadIdx.x % LANES, bag = (int)(blockIdx.x * (128 / LANES) + threadIdx.x / LANES);
  if (bag >= count) return;
  const int64_t *own = index + (int64_t)bag * LENGTH;
  Sum<HALVES> sum;
  uint32_t next[HELD];
#pragma unroll
  for (int h = 0; h < HELD; h++) next[h] = (uint32_t)__ldg(own + (h * LANES + lane) % LENGTH);
#pragma unroll 1
  for (int base = 0; base<LENGTH; base += FLIGHT> LANES ? FLIGHT : LANES) {
    uint32_t held[HELD];
#pragma unroll
    for (int h = 0; h < HELD; h++) {
      held[h] = next[h];
      next[h] = (uint32_t)__ldg(own + (base + (HELD + h) * LANES + lane) % LENGTH);
    }
#pragma unroll
    for (int part = 0; part < (FLIGHT > LANES ? 1 : LANES / FLIGHT); part++) {
      uint4 row[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; i++) {
        int at = part * FLIGHT + i;
        uint32_t name = __shfl_sync(0xffffffffu, held[at / LANES], at % LANES, LANES);
        row[i] = load<HINT>(table + (uint64_t)name * LANES + lane);
      }
#pragma unroll
      for (int i = 0; i < FLIGHT; i++) sum.add(row[i]);
    }
  }
  out[(int64_t)bag * LANES + lane] = sum.all();
}

// ---- Few bags of 64 rows: four teams of LANES threads to a bag, 16 rows each, joined through shared memory ----

enum Offsets { NONE, FIRST, GUESSED };

// What follows where only the device knows whether a bag is long: a kernel that waits for the one before it.
__global__ void follow() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_follow() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

static void launch_follower(cudaStream_t stream)
{
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(32);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  must(cudaLaunchKernelEx(&config, follow), "launching");
}

template <int LANES, int FLIGHT, int HINT, int THREADS, int OFFSETS>
__global__ void __launch_bounds__(THREADS)
    few_bags(const int64_t *index, const int64_t *offsets, const uint4 *table, uint4 *out)
{
  __shared__ uint4 parts[THREADS];
  let_follow();
  int lane = (int)threadIdx.x % LANES, team = (int)threadIdx.x / LANES, quarter = team % 4;
  int64_t bag = blockIdx.x * (THREADS / LANES / 4) + team / 4, start = bag * 64;
  enum { HELD = LANES < 16 ? 16 / LANES : 1 };
  int64_t begin = start, end = start + 64;
  if (OFFSETS != NONE) begin = __ldg(offsets + bag), end = __ldg(offsets + bag + 1);
  if (OFFSETS == FIRST) start = begin;
  uint32_t held[HELD];
#pragma unroll
  for (int h = 0; h < HELD; h++) held[h] = (uint32_t)__ldg(index + start + quarter * 16 + (h * LANES + lane) % 16);
  if (OFFSETS == GUESSED && begin != start)
#pragma unroll
    for (int h = 0; h < HELD; h++) held[h] = (uint32_t)__ldg(index + begin + quarter * 16 + (h * LANES + lane) % 16);
  uint4 sum = {0, 0, 0, 0};
#pragma unroll
  for (int part = 0; part < 16 / FLIGHT; part++) {
    uint4 row[FLIGHT];
#pragma unroll
    for (int i = 0; i < FLIGHT; i++) {
      int at = part * FLIGHT + i;
      uint32_t name = __shfl_sync(0xffffffffu, held[at / LANES], at % LANES, LANES);
      row[i] = load<HINT>(table + (uint64_t)name * LANES + lane);
    }
#pragma unroll
    for (int i = 0; i < FLIGHT; i++) mix(sum, row[i]);
  }
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (quarter != 0 || end - begin != 64) return;
  for (int r = 1; r < 4; r++) mix(sum, parts[threadIdx.x + r * LANES]);
  out[bag * LANES + lane] = sum;
}

// ---- Rows copied one by one: bags of one row, lookups ----

template <int LANES, int FLIGHT, int HINT, int THREADS>
__global__ void __launch_bounds__(THREADS) ones(const int64_t *index, const uint4 *table, uint4 *out, int count)
{
  int lane = (int)threadIdx.x % LANES, teams = THREADS / LANES,
      first = (int)blockIdx.x * teams * FLIGHT + (int)threadIdx.x / LANES;
  uint32_t name[FLIGHT];
  uint4 row[FLIGHT];
  let_follow();
#pragma unroll
  for (int i = 0; i < FLIGHT; i++) name[i] = (uint32_t)__ldg(index + first + i * teams);
#pragma unroll
  for (int i = 0; i < FLIGHT; i++) row[i] = load<HINT>(table + (uint64_t)name[i] * LANES + lane);
#pragma unroll
  for (int i = 0; i < FLIGHT; i++) {
    uint4 *to = out + (int64_t)(first + i * teams) * LANES + lane;
    if (HINT == PLAIN || HINT == KEEP_L1)
      *to = row[i];
    else
      __stcs(to, row[i]);
  }
}

// ---- A gradient's rows: entries in order of their keys, 64 to a team; rows of the output's gradient are read, and a
// table row is read, changed and written where a key ends. COLUMNS of LANES threads at a time. ----

template <int LANES, int COLUMNS, int FLIGHT>
__global__ void __launch_bounds__(128)
    runs(const uint32_t *keys, const uint32_t *bag_of, const uint4 *gradient, uint4 *table, int count)
{
  enum { TILE = 64 };
  int lane = (int)threadIdx.x % COLUMNS, column = (int)blockIdx.y * COLUMNS + lane,
      first = (int)(blockIdx.x * (128 / COLUMNS) + threadIdx.x / COLUMNS) * TILE;
  if (first >= count) return;
  uint4 sum = {0, 0, 0, 0};
#pragma unroll 1
  for (int base = first; base < first + TILE; base += FLIGHT) {
    uint4 row[FLIGHT], held[FLIGHT];
    uint32_t key[FLIGHT + 1];
#pragma unroll
    for (int i = 0; i <= FLIGHT; i++) key[i] = __ldg(keys + base + i);
#pragma unroll
    for (int i = 0; i < FLIGHT; i++)
      row[i] = load<PLAIN>(gradient + (uint64_t)__ldg(bag_of + base + i) * LANES + column);
#pragma unroll
    for (int i = 0; i < FLIGHT; i++)
      if (key[i] != key[i + 1]) held[i] = load<DROP_L2>(table + (uint64_t)key[i] * LANES + column);
#pragma unroll
    for (int i = 0; i < FLIGHT; i++) {
      mix(sum, row[i]);
      if (key[i] == key[i + 1]) continue;
      mix(held[i], sum);
      table[(uint64_t)key[i] * LANES + column] = held[i];
      sum = make_uint4(0, 0, 0, 0);
    }
  }
  if (sum.x == 0x12345678) table[column] = sum;
}

// ---- Rows in order: 16 read, one written ----

template <int LANES, int FLIGHT, int EACH>
__global__ void __launch_bounds__(128, EACH) in_order(const uint4 *data, uint4 *out)
{
  enum { TILE = 64 };
  int lane = (int)threadIdx.x % LANES;
  int64_t first = (int64_t)(blockIdx.x * (128 / LANES) + threadIdx.x / LANES) * TILE;
  uint4 sum = {0, 0, 0, 0};
#pragma unroll 1
  for (int base = 0; base < TILE; base += FLIGHT) {
    uint4 row[FLIGHT];
#pragma unroll
    for (int i = 0; i < FLIGHT; i++) row[i] = load<NO_L1>(data + (first + base + i) * LANES + lane);
#pragma unroll
    for (int i = 0; i < FLIGHT; i++) mix(sum, row[i]);
    if ((base + FLIGHT) % 16 == 0) out[(first + base) / 16 * LANES + lane] = sum;
  }
}

// ---- Data ----

__device__ uint64_t scramble(uint64_t x)
{
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Uniform, or a power law scattered over the table.
__global__ void make_indices(int64_t *index, uint32_t *narrow, uint32_t *bag, int64_t count, int64_t length,
                             double exponent)
{
  for (int64_t n = blockIdx.x * 256ll + threadIdx.x; n < count; n += gridDim.x * 256ll) {
    double unit = (double)(scramble((11ull << 40) + (uint64_t)n * 0x9E3779B97F4A7C15u) >> 11) * 0x1p-53;
    int64_t row = (int64_t)(unit * (double)ROWS);
    if (exponent > 0) {
      double power = 1 - exponent, last = pow((double)ROWS + 1, power);
      row = min(max((int64_t)pow(1 + unit * (last - 1), 1 / power), (int64_t)1), (int64_t)ROWS) - 1;
      row = row * 7919 % ROWS; // 7919 and the number of rows have no common divisor
    }
    index[n] = row, narrow[n] = (uint32_t)row, bag[n] = (uint32_t)(n / length);
  }
}

struct Data {
  uint4 *table, *other, *flush;
  int64_t *index[2], *offsets;
  uint32_t *keys[2], *bag, *sorted_keys, *sorted_bag;
  char *scratch;
  size_t scratch_bytes;
  cudaStream_t stream;
  cudaEvent_t begin, end;
};

template <class T> static T *room(size_t count)
{
  void *memory;
  must(cudaMalloc(&memory, count * sizeof(T)), "allocating");
  must(cudaMemset(memory, 1, count * sizeof(T)), "filling");
  return (T *)memory;
}

template <class Launch> static double time_of(Data &d, Launch launch)
{
  std::vector<float> times;
  for (int i = -2; i < 11; i++) {
    float milliseconds;
    must(cudaMemsetAsync(d.flush, i & 255, 256 << 20, d.stream), "filling");
    must(cudaEventRecord(d.begin, d.stream), "an event");
    launch();
    must(cudaEventRecord(d.end, d.stream), "an event");
    must(cudaStreamSynchronize(d.stream), "running");
    must(cudaEventElapsedTime(&milliseconds, d.begin, d.end), "an event");
    if (i >= 0) times.push_back(milliseconds * 1000);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// The shapes of one case, and the best of them.
struct Case {
  Data &d;
  const char *name;
  bool all, followed;
  double best = 1e30;
  char how[64] = "";
  Case(Data &d, const char *name, bool all, bool followed = false) : d(d), name(name), all(all), followed(followed) {}
  template <class Launch> void shape(const char *text, Launch launch)
  {
    double us = time_of(d, launch);
    must(cudaGetLastError(), text);
    if (all) printf("  %-44s %-36s %9.1f us\n", name, text, us);
    if (us >= best) return;
    best = us;
    snprintf(how, sizeof how, "%s", text);
  }
  ~Case() { printf("%-50s %9.1f us   %s\n", name, best, how), fflush(stdout); }
};

template <int LANES, bool HALVES, int FLIGHT, int HINT, int EACH> static void try_bags(Case &c, const int64_t *index)
{
  static const char *hints[] = {"", ", no L1", ", kept in L1", ", dropped from L2"};
  char text[64];
  snprintf(text, sizeof text, "%d in flight, %d threads%s", FLIGHT, EACH * 128, hints[HINT]);
  auto kernel = bags<LANES, FLIGHT, HINT, EACH, HALVES>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxL1);
  c.shape(text, [&] { kernel<<<131072 / (128 / LANES), 128, 0, c.d.stream>>>(index, c.d.table, c.d.other, 131072); });
}

template <int LANES, bool HALVES = false>
static void bag_case(Data &d, const char *name, bool all, const int64_t *index)
{
  Case c(d, name, all);
  try_bags<LANES, HALVES, 4, PLAIN, 12>(c, index);
  try_bags<LANES, HALVES, 4, PLAIN, 16>(c, index);
  try_bags<LANES, HALVES, 8, PLAIN, 4>(c, index);
  try_bags<LANES, HALVES, 8, PLAIN, 6>(c, index);
  try_bags<LANES, HALVES, 8, PLAIN, 8>(c, index);
  try_bags<LANES, HALVES, 8, PLAIN, 12>(c, index);
  try_bags<LANES, HALVES, 16, PLAIN, 2>(c, index);
  try_bags<LANES, HALVES, 16, PLAIN, 3>(c, index);
  try_bags<LANES, HALVES, 16, PLAIN, 4>(c, index);
  try_bags<LANES, HALVES, 16, PLAIN, 6>(c, index);
  try_bags<LANES, HALVES, 8, NO_L1, 8>(c, index);
  try_bags<LANES, HALVES, 8, KEEP_L1, 4>(c, index);
  try_bags<LANES, HALVES, 8, KEEP_L1, 8>(c, index);
  try_bags<LANES, HALVES, 16, KEEP_L1, 4>(c, index);
}

template <int LANES, int FLIGHT, int HINT, int THREADS, int OFFSETS> static void try_few(Case &c, const int64_t *index)
{
  static const char *how[] = {"", ", offsets first", ", offsets guessed"};
  char text[64];
  snprintf(text, sizeof text, "%d in flight, %d a block%s%s", FLIGHT, THREADS, HINT ? ", dropped" : "", how[OFFSETS]);
  c.shape(text, [&] {
    few_bags<LANES, FLIGHT, HINT, THREADS, OFFSETS>
        <<<1024 / (THREADS / LANES / 4), THREADS, 0, c.d.stream>>>(index, c.d.offsets, c.d.table, c.d.other);
    if (c.followed) launch_follower(c.d.stream);
  });
}

// Fixed length; and offsets, where another kernel has to follow.
template <int LANES> static void few_case(Data &d, const char *name, bool all, const int64_t *index)
{
  char text[64];
  snprintf(text, sizeof text, "%s-fixed", name);
  {
    Case c(d, text, all);
    try_few<LANES, 8, PLAIN, 128, NONE>(c, index);
    try_few<LANES, 16, PLAIN, 128, NONE>(c, index);
    try_few<LANES, 8, PLAIN, 256, NONE>(c, index);
    try_few<LANES, 16, PLAIN, 256, NONE>(c, index);
    try_few<LANES, 8, DROP_L2, 128, NONE>(c, index);
    try_few<LANES, 16, DROP_L2, 128, NONE>(c, index);
  }
  Case c(d, name, all, true);
  try_few<LANES, 16, PLAIN, 128, FIRST>(c, index);
  try_few<LANES, 16, PLAIN, 128, GUESSED>(c, index);
  try_few<LANES, 8, PLAIN, 128, FIRST>(c, index);
  try_few<LANES, 8, PLAIN, 128, GUESSED>(c, index);
  try_few<LANES, 16, DROP_L2, 128, GUESSED>(c, index);
  try_few<LANES, 8, DROP_L2, 128, GUESSED>(c, index);
}

template <int LANES, int FLIGHT, int HINT, int THREADS> static void try_ones(Case &c, const int64_t *index)
{
  static const char *hints[] = {"", ", no L1, stored past", ", kept", ", dropped from L2"};
  char text[64];
  snprintf(text, sizeof text, "%d in flight, %d a block%s", FLIGHT, THREADS, hints[HINT]);
  c.shape(text, [&] {
    ones<LANES, FLIGHT, HINT, THREADS>
        <<<ONES / (THREADS / LANES * FLIGHT), THREADS, 0, c.d.stream>>>(index, c.d.table, c.d.other, (int)ONES);
    if (c.followed) launch_follower(c.d.stream);
  });
}

// Without offsets (a lookup); and with another kernel that follows.
template <int LANES> static void ones_case(Data &d, const char *name, bool all, const int64_t *index)
{
  for (int followed = 0; followed < 2; followed++) {
    char text[64];
    snprintf(text, sizeof text, "%s%s", name, followed ? "" : "-fixed");
    Case c(d, text, all, followed);
    try_ones<LANES, 1, PLAIN, 256>(c, index);
    try_ones<LANES, 2, PLAIN, 256>(c, index);
    try_ones<LANES, 4, PLAIN, 128>(c, index);
    try_ones<LANES, 4, PLAIN, 256>(c, index);
    try_ones<LANES, 8, PLAIN, 128>(c, index);
    try_ones<LANES, 4, NO_L1, 128>(c, index);
    try_ones<LANES, 4, DROP_L2, 256>(c, index);
  }
}

template <int LANES, int COLUMNS, int FLIGHT> static void try_runs(Case &c, int count)
{
  char text[64];
  snprintf(text, sizeof text, "%d in flight, %d bytes at a time", FLIGHT, COLUMNS * 16);
  dim3 grid((unsigned)(count / 64 / (128 / COLUMNS)), LANES / COLUMNS);
  c.shape(text, [&] {
    runs<LANES, COLUMNS, FLIGHT>
        <<<grid, 128, 0, c.d.stream>>>(c.d.sorted_keys, c.d.sorted_bag, c.d.other, c.d.table, count);
  });
}

static void sort_entries(Data &d, const uint32_t *keys, int count)
{
  must(cub::DeviceRadixSort::SortPairs(d.scratch, d.scratch_bytes, keys, d.sorted_keys, (const uint32_t *)d.bag,
                                       d.sorted_bag, count, 0, 24, d.stream),
       "sorting");
}

template <int LANES> static void runs_case(Data &d, const char *name, bool all, int count)
{
  Case c(d, name, all);
  try_runs<LANES, LANES, 4>(c, count);
  try_runs<LANES, LANES, 8>(c, count);
  if constexpr (LANES > 8) {
    try_runs<LANES, LANES / 2, 4>(c, count);
    try_runs<LANES, LANES / 2, 8>(c, count);
  }
}

template <int FLIGHT, int EACH> static void try_order(Case &c)
{
  char text[64];
  snprintf(text, sizeof text, "%d in flight, %d threads", FLIGHT, EACH * 128);
  c.shape(text, [&] { in_order<16, FLIGHT, EACH><<<DATA / 64 / 8, 128, 0, c.d.stream>>>(c.d.table, c.d.other); });
}

int main(int argc, char **argv)
{
  bool all = argc > 1 && strcmp(argv[1], "all") == 0;
  Data d = {};
  must(cudaStreamCreateWithFlags(&d.stream, cudaStreamNonBlocking), "a stream");
  must(cudaEventCreate(&d.begin), "an event");
  must(cudaEventCreate(&d.end), "an event");
  d.table = room<uint4>(ROWS * 32);
  d.other = room<uint4>(1 << 26);
  d.flush = room<uint4>(256 << 16);
  d.bag = room<uint32_t>(MANY + 64);
  d.sorted_keys = room<uint32_t>(MANY + 64);
  d.sorted_bag = room<uint32_t>(MANY + 64);
  d.scratch = room<char>(d.scratch_bytes = 128 << 20);
  d.offsets = room<int64_t>(1025);
  std::vector<int64_t> offsets(1025);
  for (int i = 0; i <= 1024; i++) offsets[(size_t)i] = i * 64;
  must(cudaMemcpy(d.offsets, offsets.data(), 1025 * 8, cudaMemcpyDefault), "copying");
  for (int skewed = 0; skewed < 2; skewed++) {
    d.index[skewed] = room<int64_t>(MANY);
    d.keys[skewed] = room<uint32_t>(MANY + 64);
  }
  for (int skewed = 0; skewed < 2; skewed++)
    make_indices<<<1024, 256, 0, d.stream>>>(d.index[skewed], d.keys[skewed], d.bag, MANY, 64, skewed ? 1.05 : 0);
  must(cudaStreamSynchronize(d.stream), "making indices");

  few_case<8>(d, "bag_sum-f32-D32-1024x64-uniform", all, d.index[0]);
  few_case<32>(d, "bag_sum-f32-D128-1024x64-uniform", all, d.index[0]);
  few_case<32>(d, "bag_sum-f32-D128-1024x64-1.05", all, d.index[1]);
  ones_case<8>(d, "bag_sum-f32-D32-131072x1-uniform", all, d.index[0]);
  ones_case<32>(d, "bag_sum-f32-D128-131072x1-uniform", all, d.index[0]);
  ones_case<32>(d, "bag_sum-f32-D128-131072x1-1.05", all, d.index[1]);
  bag_case<8>(d, "bag_sum-f32-D32-131072x64-uniform", all, d.index[0]);
  bag_case<4, true>(d, "bag_sum-f16-D32-131072x64-uniform", all, d.index[0]);
  bag_case<32>(d, "bag_sum-f32-D128-131072x64-uniform", all, d.index[0]);
  bag_case<16, true>(d, "bag_sum-f16-D128-131072x64-uniform", all, d.index[0]);
  bag_case<8>(d, "bag_sum-f32-D32-131072x64-1.05", all, d.index[1]);
  bag_case<32>(d, "bag_sum-f32-D128-131072x64-1.05", all, d.index[1]);
  bag_case<16, true>(d, "bag_sum-f16-D128-131072x64-1.05", all, d.index[1]);
  {
    Case c(d, "segment_sum-f32-D64-N4194304, rows in order", all);
    try_order<4, 8>(c);
    try_order<4, 16>(c);
    try_order<8, 4>(c);
    try_order<8, 8>(c);
    try_order<16, 4>(c);
  }
  for (int skewed = 0; skewed < 2; skewed++) {
    const char *spread = skewed ? "1.05" : "uniform";
    char name[64];
    {
      snprintf(name, sizeof name, "8388608 pairs sorted by CUB-%s", spread);
      Case c(d, name, all);
      c.shape("24 bits", [&] { sort_entries(d, d.keys[skewed], (int)MANY); });
    }
    snprintf(name, sizeof name, "bag_sum_backward-f32-D32-131072x64-%s, rows", spread);
    runs_case<8>(d, name, all, (int)MANY);
    snprintf(name, sizeof name, "bag_sum_backward-f32-D128-131072x64-%s, rows", spread);
    runs_case<32>(d, name, all, (int)MANY);
  }
  make_indices<<<1024, 256, 0, d.stream>>>(d.index[0], d.keys[0], d.bag, ONES, 1, 0);
  {
    Case c(d, "131072 pairs sorted by CUB-uniform", all);
    c.shape("24 bits", [&] { sort_entries(d, d.keys[0], (int)ONES); });
  }
  runs_case<32>(d, "bag_sum_backward-f32-D128-131072x1-uniform, rows", all, (int)ONES);
  return 0;
}
