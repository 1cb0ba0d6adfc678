// loops.cuh: the loops of floors.cu, each in many shapes.
#ifndef SHEAF_BENCH_LOOPS_CUH
#define SHEAF_BENCH_LOOPS_CUH

#include <cuda_fp16.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

// Adds COUNT rows, FLIGHT of them in flight, whose names lie across the LANES threads that share a row.
template <int LANES, int FLIGHT, int HINT, int COUNT, class Total>
__device__ __forceinline__ void add_rows(const uint32_t *names, const uint4 *table, int lane, Total &sum)
{
#pragma unroll
  for (int part = 0; part < COUNT / FLIGHT; part++) {
    uint4 row[FLIGHT];
#pragma unroll
    for (int i = 0; i < FLIGHT; i++) {
      int at = part * FLIGHT + i;
      uint32_t name = __shfl_sync(0xffffffffu, names[at / LANES], at % LANES, LANES);
      row[i] = load<HINT>(table + (uint64_t)name * LANES + lane);
    }
#pragma unroll
    for (int i = 0; i < FLIGHT; i++) sum.add(row[i]);
  }
}

// ---- Bags of 64 rows: LANES threads to a row and to a bag ----

template <int LANES, int FLIGHT, int HINT, int EACH, bool HALVES>
__global__ void __launch_bounds__(128, EACH) bags(const int64_t *index, const uint4 *table, uint4 *out, int count)
{
  enum { LENGTH = 64, STEP = FLIGHT > LANES ? FLIGHT : LANES, HELD = STEP / LANES };
  int lane = (int)threadIdx.x % LANES, bag = (int)(blockIdx.x * (128 / LANES) + threadIdx.x / LANES);
  if (bag >= count) return;
  const int64_t *own = index + (int64_t)bag * LENGTH;
  Sum<HALVES> sum;
  uint32_t next[HELD];
#pragma unroll
  for (int h = 0; h < HELD; h++) next[h] = (uint32_t)__ldg(own + (h * LANES + lane) % LENGTH);
#pragma unroll 1
  for (int base = 0; base < LENGTH; base += STEP) {
    uint32_t held[HELD];
#pragma unroll
    for (int h = 0; h < HELD; h++) {
      held[h] = next[h];
      next[h] = (uint32_t)__ldg(own + (base + (HELD + h) * LANES + lane) % LENGTH);
    }
    add_rows<LANES, FLIGHT, HINT, STEP>(held, table, lane, sum);
  }
  out[(int64_t)bag * LANES + lane] = sum.all();
}

// ---- Few bags of 64 rows: four teams of LANES threads to a bag, 16 rows each, joined through shared memory ----

enum Offsets { NONE, FIRST, GUESSED };

template <int LANES, int FLIGHT, int HINT, int THREADS, int OFFSETS>
__global__ void __launch_bounds__(THREADS)
    few_bags(const int64_t *index, const int64_t *offsets, const uint4 *table, uint4 *out)
{
  __shared__ uint4 parts[THREADS];
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
  Sum<false> sum;
  add_rows<LANES, FLIGHT, HINT, 16>(held, table, lane, sum);
  parts[threadIdx.x] = sum.all();
  __syncthreads();
  if (quarter != 0 || end - begin != 64) return;
  for (int r = 1; r < 4; r++) sum.add(parts[threadIdx.x + r * LANES]);
  out[bag * LANES + lane] = sum.all();
}

// ---- Rows copied one by one: bags of one row, lookups ----

template <int LANES, int FLIGHT, int HINT, int THREADS>
__global__ void __launch_bounds__(THREADS) ones(const int64_t *index, const uint4 *table, uint4 *out, int count)
{
  int lane = (int)threadIdx.x % LANES, teams = THREADS / LANES,
      first = (int)blockIdx.x * teams * FLIGHT + (int)threadIdx.x / LANES;
  uint32_t name[FLIGHT];
  uint4 row[FLIGHT];
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

// ---- A gradient's rows: entries in order of their keys, 64 to a team; rows of the output's gradient are read, and where
// a key ends its row is stored; with ADDS, to what the row holds. COLUMNS of LANES threads at a time. ----

template <int LANES, int COLUMNS, int FLIGHT, bool ADDS>
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
    uint4 row[FLIGHT], held[FLIGHT] = {};
    uint32_t key[FLIGHT + 1];
#pragma unroll
    for (int i = 0; i <= FLIGHT; i++) key[i] = __ldg(keys + base + i);
#pragma unroll
    for (int i = 0; i < FLIGHT; i++)
      row[i] = load<PLAIN>(gradient + (uint64_t)__ldg(bag_of + base + i) * LANES + column);
#pragma unroll
    for (int i = 0; i < FLIGHT; i++)
      if (ADDS && key[i] != key[i + 1]) held[i] = load<DROP_L2>(table + (uint64_t)key[i] * LANES + column);
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

#endif
