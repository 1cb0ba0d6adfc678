/* cli/demo_ceiling.c: the machine's own memory bandwidth, as the yardstick of `sheaf demo`. */
#include <string.h>

#include "demo.h"

enum { LINE = 64, LINE_PAIRS = LINE / 16, MAX_RUNS = 64, MIN_RUNS = 5 };

/* What was read ends here, so that no compiler leaves the reading out. */
static volatile uint64_t sink;

/* Two words in one register, and allowed to look at memory of any type. */
typedef uint64_t word_pair __attribute__((vector_size(16), may_alias));

/* Reads whole cache lines and folds them into one word. */
static uint64_t read_lines(const void *memory, int64_t lines)
{
  const word_pair *pairs = memory;
  word_pair a = {0}, b = {0}, c = {0}, d = {0};
  for (int64_t i = 0; i < lines; i++, pairs += LINE_PAIRS) {
    a ^= pairs[0];
    b ^= pairs[1];
    c ^= pairs[2];
    d ^= pairs[3];
  }
  a ^= b ^ c ^ d;
  return a[0] ^ a[1];
}

enum { ROW_LINES = DEMO_DIM * (int)sizeof(float) / LINE, BLOCK_LINES = 4096 };

static int64_t table_bytes(const demo_data *data) { return data->rows * DEMO_DIM * (int64_t)sizeof(float); }

static int64_t sequential_read(demo_data *data, int distance)
{
  (void)distance;
  const char *table = (const char *)data->table;
  int64_t blocks = table_bytes(data) / LINE / BLOCK_LINES;
  uint64_t folded = 0;
#ifdef _OPENMP
#pragma omp parallel for num_threads(data->threads) schedule(static) reduction(^ : folded)
#endif
  for (int64_t i = 0; i < blocks; i++) folded ^= read_lines(table + i * BLOCK_LINES * LINE, BLOCK_LINES);
  sink = folded;
  return table_bytes(data);
}

/* One large piece per thread: the C library copies those past the caches. */
static int64_t copy(demo_data *data, int distance)
{
  (void)distance;
  int64_t pieces = data->threads, rows = data->rows / pieces;
#ifdef _OPENMP
#pragma omp parallel for num_threads(data->threads) schedule(static)
#endif
  for (int64_t i = 0; i < pieces; i++)
    memcpy(data->grad + i * rows * DEMO_DIM, data->table + i * rows * DEMO_DIM,
           (size_t)rows * DEMO_DIM * sizeof *data->table);
  return 2 * pieces * rows * DEMO_DIM * (int64_t)sizeof *data->table;
}

/* Rows at random places, fetched `distance` rows ahead into the second-level cache. */
static uint64_t gather_some(const demo_data *data, const int64_t *indices, int64_t count, int distance)
{
  uint64_t folded = 0;
  for (int64_t n = 0; n < count; n++) {
    const char *ahead = (const char *)(data->table + indices[n + distance < count ? n + distance : n] * DEMO_DIM);
    for (int line = 0; line < ROW_LINES; line++) __builtin_prefetch(ahead + LINE * line, 0, 2);
    folded ^= read_lines(data->table + indices[n] * DEMO_DIM, ROW_LINES);
  }
  return folded;
}

static int64_t random_gather(demo_data *data, int distance)
{
  enum { PIECE = 1024 };
  int64_t pieces_per_set = data->lookups / PIECE, pieces = pieces_per_set * DEMO_INDEX_SETS;
  uint64_t folded = 0;
#ifdef _OPENMP
#pragma omp parallel for num_threads(data->threads) schedule(static) reduction(^ : folded)
#endif
  for (int64_t i = 0; i < pieces; i++)
    folded ^= gather_some(data, data->indices[i / pieces_per_set] + i % pieces_per_set * PIECE, PIECE, distance);
  sink = folded;
  return pieces * PIECE * (DEMO_DIM * (int64_t)sizeof(float) + (int64_t)sizeof(int64_t));
}

static double measure(int64_t (*move)(demo_data *, int), demo_data *data, int distance, double seconds)
{
  double times[MAX_RUNS], start = demo_now();
  int64_t bytes = move(data, distance); /* the first run only warms up */
  int runs = 0;
  while (runs < MIN_RUNS || (runs < MAX_RUNS && demo_now() - start < seconds)) {
    double before = demo_now();
    bytes = move(data, distance);
    times[runs++] = demo_now() - before;
  }
  return (double)bytes / demo_median(times, runs);
}

void demo_measure_ceilings(demo_data *data, double seconds, double bandwidth[DEMO_CEILINGS])
{
  static const int distances[] = {8, 16, 32}; /* a low ceiling would flatter: the best of these counts */
  enum { DISTANCES = sizeof distances / sizeof *distances };
  double share = seconds / (2 + DISTANCES);
  bandwidth[DEMO_READ] = measure(sequential_read, data, 0, share);
  bandwidth[DEMO_COPY] = measure(copy, data, 0, share);
  bandwidth[DEMO_GATHER] = 0;
  for (int i = 0; i < DISTANCES; i++) {
    double found = measure(random_gather, data, distances[i], share);
    if (found > bandwidth[DEMO_GATHER]) bandwidth[DEMO_GATHER] = found;
  }
}
