/* nearest.c: the rows of a table nearest to a vector: kernels score rows, each thread keeps the best of its share, and
 * the shares are joined. The order of neighbours is total, so nothing depends on how the rows were shared out. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "plan/plan_impl.h"

const char *sheaf_metric_name(sheaf_metric metric)
{
  switch (metric) {
#define SHEAF_X(name, value, text) \
  case SHEAF_METRIC_##name:        \
    return text;
    SHEAF_METRIC_LIST(SHEAF_X)
#undef SHEAF_X
  }
  return "none";
}

/* ---- The best so far: a heap whose root is the farthest ---- */

typedef struct nearest_heap {
  sheaf_neighbour *at;
  int64_t count, room;
  int least; /* the least score is the nearest */
} nearest_heap;

static int is_nearer(const nearest_heap *heap, sheaf_neighbour a, sheaf_neighbour b)
{
  int a_nan = a.score != a.score, b_nan = b.score != b.score;
  if (a_nan || b_nan) return a_nan == b_nan ? a.row < b.row : b_nan;
  if (a.score != b.score) return (a.score < b.score) == heap->least;
  return a.row < b.row;
}

/* What is true of nearly all rows, in one comparison: worse than the farthest of a full heap. */
static inline int is_too_far(const nearest_heap *heap, double score)
{
  if (heap->count < heap->room) return 0;
  return heap->least ? score > heap->at[0].score : score < heap->at[0].score;
}

static void sink(nearest_heap *heap, sheaf_neighbour moved)
{
  int64_t place = 0;
  for (int64_t child; (child = 2 * place + 1) < heap->count; place = child) {
    if (child + 1 < heap->count && is_nearer(heap, heap->at[child], heap->at[child + 1])) child++;
    if (!is_nearer(heap, moved, heap->at[child])) break;
    heap->at[place] = heap->at[child];
  }
  heap->at[place] = moved;
}

static void offer(nearest_heap *heap, sheaf_neighbour candidate)
{
  if (heap->count == heap->room) {
    if (is_nearer(heap, candidate, heap->at[0])) sink(heap, candidate);
    return;
  }
  int64_t place = heap->count++;
  for (; place > 0 && is_nearer(heap, heap->at[(place - 1) / 2], candidate); place = (place - 1) / 2)
    heap->at[place] = heap->at[(place - 1) / 2];
  heap->at[place] = candidate;
}

/* Takes the farthest to the end, again and again: what remains is in order, nearest first. */
static void put_in_order(nearest_heap *heap)
{
  int64_t all = heap->count;
  while (heap->count > 1) {
    sheaf_neighbour farthest = heap->at[0], last = heap->at[--heap->count];
    sink(heap, last);
    heap->at[heap->count] = farthest;
  }
  heap->count = all;
}

/* ---- The search ---- */

typedef struct nearest_search {
  const sheaf_nearest_desc *desc;
  shf_nearest_job job;
  const shf_nearest_kernel *kernel;
  shf_nearest_filter filter;
  nearest_heap *heaps; /* one per thread */
  int threads;
} nearest_search;

static void search_share(void *context, int thread)
{
  const nearest_search *search = context;
  const sheaf_nearest_desc *desc = search->desc;
  nearest_heap *heap = &search->heaps[thread];
  int64_t last = shf_plan_share(desc->rows, thread + 1, search->threads);
  double scores[SHF_NEAREST_ROWS];
  for (int64_t row = shf_plan_share(desc->rows, thread, search->threads); row < last; row += SHF_NEAREST_ROWS) {
    int rows = last - row < SHF_NEAREST_ROWS ? (int)(last - row) : SHF_NEAREST_ROWS;
    double limit = heap->count == heap->room ? heap->at[0].score : NAN;
    uint64_t scored = search->kernel->score(&search->job, row, rows, limit, scores);
    for (; scored; scored &= scored - 1) {
      int i = __builtin_ctzll(scored);
      if (is_too_far(heap, scores[i])) continue;
      sheaf_neighbour candidate = {desc->first_row + row + i, scores[i]};
      if (!desc->has_excluded || candidate.row != desc->excluded) offer(heap, candidate);
    }
  }
}

/* The root of the canonical dot product of the query with itself. */
static double norm_of_query(const nearest_search *search, sheaf_dtype dtype)
{
  shf_nearest_job alone = {
      .rows = search->job.query, .dim = search->job.dim, .metric = SHEAF_METRIC_DOT, .query = search->job.query};
  double square;
  unsigned mode = shf_core_fp_enter();
  shf_plan_nearest_kernel(dtype)->score(&alone, 0, 1, NAN, &square);
  double norm = dtype == SHEAF_F64 ? sqrt(square) : (double)sqrtf((float)square);
  shf_core_fp_leave(mode);
  return norm;
}

static sheaf_status check_desc(const sheaf_nearest_desc *desc)
{
  sheaf_dtype dtype = desc->dtype;
  SHF_REQUIRE(desc->metric >= SHEAF_METRIC_COSINE && desc->metric <= SHEAF_METRIC_L2, INVALID_PROBLEM,
              "metric is %d, which is none of cosine, dot and l2", (int)desc->metric);
  SHF_REQUIRE(shf_plan_nearest_kernel(dtype), UNSUPPORTED,
              "nearest rows are found among f32, f64, f16, bf16, int8 or int4, not among %s (%d)",
              sheaf_dtype_name(dtype), (int)dtype);
  const int64_t most = (int64_t)1 << 46;
  SHF_REQUIRE(desc->rows >= 0 && desc->rows <= most && desc->dim >= 0 && desc->dim <= most, INVALID_PROBLEM,
              "the table has %" PRId64 " rows of %" PRId64 " columns; extents are 0 to 2^46", desc->rows, desc->dim);
  SHF_REQUIRE(desc->k >= 1 && desc->k <= most, INVALID_PROBLEM, "k is %" PRId64 "; at least one row must be wanted",
              desc->k);
  SHF_REQUIRE(desc->first_row >= 0 && desc->first_row <= most, INVALID_PROBLEM,
              "first_row is %" PRId64 "; it is 0 to 2^46", desc->first_row);
  SHF_REQUIRE(desc->threads >= 0, INVALID_PROBLEM, "threads is %d", desc->threads);
  return SHEAF_OK;
}

static sheaf_status bind(nearest_search *search, const sheaf_operand *table, const sheaf_operand *query)
{
  const sheaf_nearest_desc *desc = search->desc;
  int packed = desc->dtype == SHEAF_INT8 || desc->dtype == SHEAF_INT4;
  int64_t width = packed ? sheaf_dtype_row_bytes(desc->dtype, desc->dim) : desc->dim;
  shf_operand_spec rows = {
      .name = "table", .dtype = packed ? SHEAF_U8 : desc->dtype, .rows = desc->rows, .columns = width};
  shf_operand_spec vector = {
      .name = "query", .dtype = desc->dtype == SHEAF_F64 ? SHEAF_F64 : SHEAF_F32, .rows = desc->dim, .columns = -1};
  shf_plan_finish_spec(&rows);
  shf_plan_finish_spec(&vector);
  shf_matrix view;
  static const sheaf_operand none = {NULL, 0};
  SHF_TRY(shf_plan_bind_one(&rows, table ? table : &none, &view));
  search->job =
      (shf_nearest_job){.rows = view.data, .row_stride = view.row_stride, .dim = desc->dim, .metric = desc->metric};
  SHF_TRY(shf_plan_bind_one(&vector, query ? query : &none, &view));
  search->job.query = view.data;
  if (desc->metric == SHEAF_METRIC_COSINE) search->job.query_norm = norm_of_query(search, vector.dtype);
  return SHEAF_OK;
}

static void make_filter(nearest_search *search, int8_t *weights, int most_weight)
{
  const sheaf_nearest_desc *desc = search->desc;
  unsigned mode = shf_core_fp_enter();
  if (shf_plan_filter_make(&search->filter, weights, desc->dtype, search->job.query, desc->dim, most_weight))
    search->job.filter = &search->filter;
  shf_core_fp_leave(mode);
}

/* Room for the heaps, for the weights of a filter, and for `each` neighbours per thread, in one block. */
static sheaf_status run_search(nearest_search *search, int64_t each, sheaf_neighbour *best, int64_t *count)
{
  const sheaf_nearest_desc *desc = search->desc;
  int64_t heap_bytes = shf_align64((int64_t)sizeof(nearest_heap) * search->threads);
  int most_weight = search->kernel->most_weight ? search->kernel->most_weight() : 0;
  int64_t filter_bytes = most_weight ? shf_plan_filter_bytes(desc->dtype, desc->dim) : 0;
  int64_t cells = each, bytes = sizeof(sheaf_neighbour);
  if (!shf_plan_multiply(&cells, search->threads) || !shf_plan_multiply(&bytes, cells) ||
      __builtin_add_overflow(bytes, heap_bytes + filter_bytes, &bytes))
    return shf_core_no_memory("a list of neighbours", SIZE_MAX);
  char *block = shf_core_alloc((size_t)bytes);
  if (!block) return shf_core_no_memory("the lists of neighbours", (size_t)bytes);
  search->heaps = (nearest_heap *)(void *)block;
  if (filter_bytes) make_filter(search, (int8_t *)(block + heap_bytes), most_weight);
  sheaf_neighbour *lists = (sheaf_neighbour *)(void *)(block + heap_bytes + filter_bytes);
  for (int t = 0; t < search->threads; t++)
    search->heaps[t] = (nearest_heap){.at = lists + t * each, .room = each, .least = desc->metric == SHEAF_METRIC_L2};
  nearest_heap *all = &search->heaps[0];
  for (int64_t i = 0; i < *count; i++) offer(all, best[i]);
  shf_plan_parallel(search->threads, search_share, search);
  for (int t = 1; t < search->threads; t++)
    for (int64_t i = 0; i < search->heaps[t].count; i++) offer(all, search->heaps[t].at[i]);
  put_in_order(all);
  if (all->count) memcpy(best, all->at, (size_t)all->count * sizeof *best);
  *count = all->count;
  shf_core_free(block, (size_t)bytes);
  return SHEAF_OK;
}

sheaf_status sheaf_nearest(const sheaf_nearest_desc *desc, const sheaf_operand *table, const sheaf_operand *query,
                           sheaf_neighbour *best, int64_t *count)
{
  sheaf_nearest_desc known;
  SHF_TRY(shf_plan_copy_struct(&known, sizeof known, desc, "sheaf_nearest_desc"));
  SHF_TRY(check_desc(&known));
  SHF_REQUIRE(best && count, INVALID_PROBLEM, "sheaf_nearest: %s is NULL", best ? "count" : "best");
  SHF_REQUIRE(*count >= 0 && *count <= known.k, INVALID_PROBLEM,
              "sheaf_nearest: count is %" PRId64 ", but results of earlier parts are 0 to k, which is %" PRId64, *count,
              known.k);
  nearest_search search = {.desc = &known, .kernel = shf_plan_nearest_kernel(known.dtype)};
  SHF_TRY(bind(&search, table, query));
  int64_t bytes = known.rows, row_bytes = sheaf_dtype_row_bytes(known.dtype, known.dim);
  if (!shf_plan_multiply(&bytes, row_bytes)) bytes = INT64_MAX;
  int limit = known.threads ? shf_core_cap_threads(known.threads) : sheaf_threads();
  search.threads = shf_plan_worth(bytes, limit);
  int64_t most = known.rows + *count; /* more than there are cannot be found */
  return run_search(&search, known.k < most ? known.k : most > 0 ? most : 1, best, count);
}
