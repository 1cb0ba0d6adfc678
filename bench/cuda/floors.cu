// floors.cu: what a CUDA device gives to loops that only move the rows of the cases of `sheaf bench --device cuda`.
//
// Each case of a loop is tried in several shapes (rows in flight, threads of a processor, what caches are told), and the
// best is printed. The loops add nothing up in order (f32: not at all), check nothing and know that all bags are equally long: what they
// need is a floor for what a kernel that does all this can need. Caches are cold, as in the bench: 256 MB are written
// in between. A time is the median of 11 runs.
//
//   nvcc -O3 -std=c++17 -arch=native floors.cu -o floors && ./floors [all]      all: every shape, not only the best
#include <cub/device/device_radix_sort.cuh>

#include <algorithm>
#include <vector>

#include "loops.cuh"

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
  bool all;
  double best = 1e30;
  char how[64] = "";
  Case(Data &d, const char *name, bool all) : d(d), name(name), all(all) {}
  template <class Launch> void shape(const char *text, Launch launch)
  {
    double us = time_of(d, launch);
    must(cudaGetLastError(), text);
    if (all) printf("  %-44s %-36s %9.1f us\n", name, text, us);
    if (us >= best) return;
    best = us;
    snprintf(how, sizeof how, "%s", text);
  }
  ~Case() { printf("%-60s %9.1f us   %s\n", name, best, how), fflush(stdout); }
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
  static const char *hints[] = {"", ", no L1", ", kept in L1", ", dropped from L2"};
  snprintf(text, sizeof text, "%d in flight, %d a block%s%s", FLIGHT, THREADS, hints[HINT], how[OFFSETS]);
  c.shape(text, [&] {
    few_bags<LANES, FLIGHT, HINT, THREADS, OFFSETS>
        <<<1024 / (THREADS / LANES / 4), THREADS, 0, c.d.stream>>>(index, c.d.offsets, c.d.table, c.d.other);
  });
}

// Fixed length; and offsets.
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
    try_few<LANES, 8, NO_L1, 256, NONE>(c, index);
  }
  Case c(d, name, all);
  try_few<LANES, 16, PLAIN, 128, FIRST>(c, index);
  try_few<LANES, 16, PLAIN, 128, GUESSED>(c, index);
  try_few<LANES, 8, PLAIN, 128, FIRST>(c, index);
  try_few<LANES, 8, PLAIN, 128, GUESSED>(c, index);
  try_few<LANES, 16, DROP_L2, 128, GUESSED>(c, index);
  try_few<LANES, 8, DROP_L2, 128, GUESSED>(c, index);
  try_few<LANES, 8, NO_L1, 256, GUESSED>(c, index);
}

template <int LANES, int FLIGHT, int HINT, int THREADS> static void try_ones(Case &c, const int64_t *index)
{
  static const char *hints[] = {"", ", no L1, stored past", ", kept", ", dropped from L2"};
  char text[64];
  snprintf(text, sizeof text, "%d in flight, %d a block%s", FLIGHT, THREADS, hints[HINT]);
  c.shape(text, [&] {
    ones<LANES, FLIGHT, HINT, THREADS>
        <<<ONES / (THREADS / LANES * FLIGHT), THREADS, 0, c.d.stream>>>(index, c.d.table, c.d.other, (int)ONES);
  });
}

// Without offsets, as in a lookup.
template <int LANES> static void ones_case(Data &d, const char *name, bool all, const int64_t *index)
{
  Case c(d, name, all);
  try_ones<LANES, 1, PLAIN, 256>(c, index);
  try_ones<LANES, 2, PLAIN, 256>(c, index);
  try_ones<LANES, 4, PLAIN, 128>(c, index);
  try_ones<LANES, 4, PLAIN, 256>(c, index);
  try_ones<LANES, 8, PLAIN, 128>(c, index);
  try_ones<LANES, 4, NO_L1, 128>(c, index);
  try_ones<LANES, 8, NO_L1, 256>(c, index);
  try_ones<LANES, 4, DROP_L2, 256>(c, index);
}

template <int LANES, int COLUMNS, int FLIGHT, bool ADDS> static void try_runs(Case &c, int count)
{
  char text[64];
  snprintf(text, sizeof text, "%d in flight, %d bytes at a time", FLIGHT, COLUMNS * 16);
  dim3 grid((unsigned)(count / 64 / (128 / COLUMNS)), LANES / COLUMNS);
  c.shape(text, [&] {
    runs<LANES, COLUMNS, FLIGHT, ADDS>
        <<<grid, 128, 0, c.d.stream>>>(c.d.sorted_keys, c.d.sorted_bag, c.d.other, c.d.table, count);
  });
}

static void sort_entries(Data &d, const uint32_t *keys, int count)
{
  must(cub::DeviceRadixSort::SortPairs(d.scratch, d.scratch_bytes, keys, d.sorted_keys, (const uint32_t *)d.bag,
                                       d.sorted_bag, count, 0, 24, d.stream),
       "sorting");
}

template <int LANES, bool ADDS> static void runs_shapes(Data &d, const char *name, bool all, int count)
{
  char text[96];
  snprintf(text, sizeof text, "%s, rows %s", name, ADDS ? "added" : "stored");
  Case c(d, text, all);
  try_runs<LANES, LANES, 4, ADDS>(c, count);
  try_runs<LANES, LANES, 8, ADDS>(c, count);
  if constexpr (LANES > 8) {
    try_runs<LANES, LANES / 2, 4, ADDS>(c, count);
    try_runs<LANES, LANES / 2, 8, ADDS>(c, count);
  }
}

// Rows that are stored, as in the cases that are aimed at; and rows that are added to what is there.
template <int LANES> static void runs_case(Data &d, const char *name, bool all, int count)
{
  runs_shapes<LANES, false>(d, name, all, count);
  runs_shapes<LANES, true>(d, name, all, count);
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
    snprintf(name, sizeof name, "bag_sum_backward-f32-D32-131072x64-%s", spread);
    runs_case<8>(d, name, all, (int)MANY);
    snprintf(name, sizeof name, "bag_sum_backward-f32-D128-131072x64-%s", spread);
    runs_case<32>(d, name, all, (int)MANY);
  }
  make_indices<<<1024, 256, 0, d.stream>>>(d.index[0], d.keys[0], d.bag, FEW, 64, 0);
  sort_entries(d, d.keys[0], (int)FEW);
  runs_case<8>(d, "bag_sum_backward-f32-D32-1024x64-uniform", all, (int)FEW);
  make_indices<<<1024, 256, 0, d.stream>>>(d.index[0], d.keys[0], d.bag, ONES, 1, 0);
  {
    Case c(d, "131072 pairs sorted by CUB-uniform", all);
    c.shape("24 bits", [&] { sort_entries(d, d.keys[0], (int)ONES); });
  }
  runs_case<8>(d, "bag_sum_backward-f32-D32-131072x1-uniform", all, (int)ONES);
  runs_case<32>(d, "bag_sum_backward-f32-D128-131072x1-uniform", all, (int)ONES);
  return 0;
}
