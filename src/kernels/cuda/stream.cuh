// stream.cuh: segments of a large problem: a rower goes through the rows of several short groups in one stream, so that
// loads are in flight across groups. Longer groups have been listed before (list_long), and are walk_chunks', which is
// under way at the same time.
#ifndef SHF_CUDA_STREAM_CUH
#define SHF_CUDA_STREAM_CUH

#include "walk.cuh"

namespace shf {

enum {
  STREAM_GROUPS = 4,   // of one rower
  STREAM_LONGEST = 64, // places of a group; with more it is listed
  STREAM_PLACES = STREAM_GROUPS * STREAM_LONGEST,
  STREAM_BLOCKS = 8, // of a processor; twice as many where sums of 16-bit rows need fewer registers
  NO_END = 255,
};

// The groups of one rower, in shared memory.
struct Stream {                                    // a group ends with a quad of places, the last of which may be none
  uint32_t ref[STREAM_PLACES];                     // their rows, one behind the other
  uint8_t ends[STREAM_PLACES / QUAD];              // the group that ends with each quad
  int start[STREAM_GROUPS], length[STREAM_GROUPS]; // -1: not one of the stream
};
static_assert(sizeof(Stream) % 16 == 0, "refs are loaded sixteen bytes at a time");

// Where the rows of the rower's groups lie, one group behind the other, each filled up to whole quads: by no rows, or
// with REPEAT by the group's last. Returns how many places that makes.
template <class E, bool REPEAT>
__device__ __forceinline__ int decode_stream(const Task &t, const Team &m, Stream *own, int64_t first)
{
  for (int k = m.lane; k < STREAM_GROUPS; k += m.lanes) {
    Span span = span_of(t, min(first + k, t.groups - 1));
    bool is_one = first + k < t.groups && span.end - span.start <= STREAM_LONGEST;
    own->start[k] = (int)span.start;
    own->length[k] = is_one ? (int)(span.end - span.start) : -1;
  }
  __syncwarp();
  int length[STREAM_GROUPS], start[STREAM_GROUPS], begin[STREAM_GROUPS + 1];
  begin[0] = 0;
#pragma unroll
  for (int k = 0; k < STREAM_GROUPS; k++) {
    length[k] = max(own->length[k], 0);
    start[k] = own->start[k];
    begin[k + 1] = begin[k] + ((length[k] + QUAD - 1) & -QUAD);
  }
  int total = begin[STREAM_GROUPS];
#pragma unroll 4
  for (int i = m.lane; i < total; i += m.lanes) {
    int from = 0, its = length[0], entry = start[0], end = begin[1], group = 0;
#pragma unroll
    for (int k = 1; k < STREAM_GROUPS; k++)
      if (i >= begin[k]) from = begin[k], its = length[k], entry = start[k], end = begin[k + 1], group = k;
    int place = i - from;
    uint32_t ref = (uint32_t)decode_place<E, true>(t, 0, entry + min(place, its - 1)).ref;
    own->ref[i] = REPEAT || place < its ? ref : no_row<true>();
    if (i % QUAD == 0) own->ends[i / QUAD] = i + QUAD == end ? (uint8_t)group : (uint8_t)NO_END;
  }
  __syncwarp();
  return total;
}

// A rower's way through its stream: rows into a term, sixteen of which are folded into the total, as everywhere.
template <class E, int VE, class Op> struct Streamer {
  enum { REPEAT = Op::REPEATS, QUADS = E::BITS == 16 ? 2 : 4 };
  typedef Quad<E, VE, REPEAT> Rows;
  const Task &t;
  const Stream &own;
  int64_t first;
  Spot at;
  Op total, term;
  int place;

  __device__ __forceinline__ void close(int k)
  {
    if (counts_entries(t)) total.count(own.length[k]);
    typename E::acc held[VE];
    total.widened(t, 0, own.start[k]).finish(t, 0, first + k, own.length[k], at, held);
    total.start();
    place = 0;
  }
  __device__ __forceinline__ void take(const Rows &rows, int from)
  {
    int end = own.ends[from / QUAD];
#pragma unroll
    for (int i = 0; i < QUAD; i++) term.take(t, rows.row[i], true, 1, place + i);
    place += QUAD;
    if (end == NO_END && place % SHF_FAN_IN != 0) return;
    total.fold(t, term);
    term.start();
    if (end != NO_END) close(end);
  }
  // When a quad is taken, the next but three is asked for.
  __device__ __forceinline__ void go(const char *base, int places)
  {
    Rows ring[QUADS];
    total.start();
    term.start();
    place = 0;
#pragma unroll
    for (int q = 0; q < QUADS; q++)
      if (q * QUAD < places) ring[q].load(t, base, own.ref + q * QUAD, at);
#pragma unroll 1
    for (int from = 0; from < places; from += QUADS * QUAD) {
#pragma unroll
      for (int q = 0; q < QUADS; q++) {
        int quad = from + q * QUAD, next = quad + QUADS * QUAD;
        if (quad >= places) break;
        take(ring[q], quad);
        if (next < places) ring[q].load(t, base, own.ref + next, at);
      }
    }
  }
};

template <class E, int VE, class Op, int USUAL>
__global__ void __launch_bounds__(WALKERS, E::BITS == 16 && Op::TAKES_COEFFICIENTS ? 2 * STREAM_BLOCKS : STREAM_BLOCKS)
    stream_groups(const __grid_constant__ Task given)
{
  const Task &t = usual<USUAL>(given);
  extern __shared__ __align__(16) char memory[];
  begin_beside();
  Team m = team_of(t.lane_bits, 0);
  int rowers = WALKERS >> t.lane_bits;
  Stream *own = (Stream *)memory + m.number;
  int64_t first = ((int64_t)blockIdx.x * rowers + m.number) * STREAM_GROUPS;
  int places = decode_stream<E, Op::REPEATS>(t, m, own, first);
  for (int64_t tile = blockIdx.y; tile < t.tiles; tile += gridDim.y) {
    Spot at = spot_of(t, m, tile, VE), reads = at;
    if (!at.active) reads.column = 0; // what is read there is not stored
    Streamer<E, VE, Op> s = {t, *own, first, at};
    s.go(lane_base<E>(t.source, reads), places);
#pragma unroll 1
    for (int k = 0; k < STREAM_GROUPS; k++) {
      if (own->length[k] != 0) continue;
      s.total.start();
      s.close(k);
    }
  }
  end_beside();
}

} // namespace shf
#endif
