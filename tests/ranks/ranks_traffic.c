/* tests/ranks/ranks_traffic.c: bytes sent and collective steps of each strategy against their formulas, and the same bits
 * in every run where sums of ranks are rounded. */
#include <string.h>

#include "ranks_data.h"

enum { WIDTH = 24 };
static _Thread_local int64_t cases;
static _Thread_local sheaf_mesh *mesh;
static _Thread_local ranks_mesh sizes;

typedef struct world {
  whole *table, *indices, *grad;
  int64_t rows, entries; /* both multiples of the ranks */
} world;

static world make_world(void)
{
  uint64_t seed = 3;
  world w = {.rows = 6 * ranks_size, .entries = 8 * ranks_size};
  int64_t table[2] = {w.rows, WIDTH * ranks_size}, grad[2] = {w.entries, WIDTH * ranks_size};
  w.table = whole_make(SHEAF_F32, 2, table);
  w.grad = whole_make(SHEAF_F32, 2, grad);
  w.indices = whole_make(SHEAF_I64, 1, &w.entries);
  for (int64_t i = 0; i < w.table->count; i++) whole_set(w.table, i, (double)(int64_t)ranks_random(&seed) * 1e-19);
  for (int64_t i = 0; i < w.grad->count; i++) whole_set(w.grad, i, (double)(int64_t)ranks_random(&seed) * 1e-19);
  for (int64_t i = 0; i < w.entries; i++) whole_set(w.indices, i, (double)(ranks_random(&seed) % (uint64_t)w.rows));
  return w;
}

static sheaf_placement placed(const char *word)
{
  sheaf_placement p;
  OK(sheaf_placement_parse(word, &p));
  return p;
}

typedef struct traffic {
  int64_t bytes, exchanges, agreements;
} traffic;

/* Runs a lookup or its gradient with inputs that already lie as the strategy [a, b] wants them. */
static traffic measure(const world *w, int backward, const char *a, const char *b, int dispatch, const char *wanted,
                       sheaf_dtensor **made)
{
  sheaf_placement pa = placed(a), pb = placed(b), out;
  sheaf_shard_problem p = SHEAF_SHARD_PROBLEM_INIT;
  p.mesh = mesh;
  p.kind = backward ? SHEAF_LOOKUP_BACKWARD : SHEAF_LOOKUP;
  p.dtype = SHEAF_F32;
  p.index_dtype = SHEAF_I64;
  p.rows = w->rows;
  p.dim = w->table->shape[1];
  p.index_rank = 1;
  p.index_shape[0] = w->entries;
  p.in[0][0] = pa;
  p.in[1][0] = pb;
  sheaf_strategy_list *list;
  OK(sheaf_strategies(&p, 0, NULL, &list));
  const sheaf_strategy *s = NULL;
  for (int64_t i = 0; i < sheaf_strategy_count(list) && !s; i++) {
    const sheaf_strategy *t = sheaf_strategy_at(list, i);
    int masked = t->in[1][0].kind == SHEAF_PLACE_MASK_PARTIAL && pb.kind == SHEAF_PLACE_REPLICATE &&
                 pa.kind == SHEAF_PLACE_SHARD;
    int row_grad = !backward || pa.kind != SHEAF_PLACE_REPLICATE || t->out[0].kind == SHEAF_PLACE_SHARD;
    if (sheaf_placement_equal(&t->in[0][0], &pa) && (masked || sheaf_placement_equal(&t->in[1][0], &pb)) &&
        t->dispatch == dispatch && row_grad)
      s = t;
  }
  CHECK(s, "no such strategy: %s %s", a, b);
  sheaf_dtensor *first = whole_part(backward ? w->grad : w->table, mesh, &sizes, &pa),
                *index = whole_part(w->indices, mesh, &sizes, &pb);
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.kind = (sheaf_embedding_kind)p.kind;
  desc.rows = w->rows;
  sheaf_shard_embedding_args args = SHEAF_SHARD_EMBEDDING_ARGS_INIT;
  if (backward)
    args.grad_out = first, args.table_grad = made;
  else
    args.table = first, args.out = made;
  args.indices = index;
  sheaf_shard_call call = SHEAF_SHARD_CALL_INIT;
  call.strategy = s;
  if (wanted) out = placed(wanted), call.out = &out;
  sheaf_comm_stats before = sheaf_comm_statistics(ranks_comm);
  OK(sheaf_shard_embedding_run(&desc, &call, &args));
  sheaf_comm_stats after = sheaf_comm_statistics(ranks_comm);
  sheaf_dtensor_free(first);
  sheaf_dtensor_free(index);
  sheaf_strategy_list_free(list);
  return (traffic){after.bytes_sent - before.bytes_sent, after.exchanges - before.exchanges,
                   after.agreements - before.agreements};
}

static void expect(const world *w, int backward, const char *a, const char *b, int dispatch, const char *wanted,
                   int64_t bytes, int64_t exchanges, int64_t agreements)
{
  sheaf_dtensor *made;
  traffic t = measure(w, backward, a, b, dispatch, wanted, &made);
  sheaf_dtensor_free(made);
  CHECK(t.bytes == bytes, "%s %s to %s: %lld bytes sent, not %lld", a, b, wanted ? wanted : "-", (long long)t.bytes,
        (long long)bytes);
  if (ranks_size > 1)
    CHECK(t.exchanges == exchanges && t.agreements == agreements, "%s %s to %s: %lld exchanges, %lld agreements", a, b,
          wanted ? wanted : "-", (long long)t.exchanges, (long long)t.agreements);
  cases++;
}

/* Rows that this rank asks of others, or others of it. */
static int64_t rows_to_send(const world *w, int64_t from, int64_t to)
{
  int64_t count = 0, chunk = w->entries / ranks_size, part = w->rows / ranks_size;
  for (int64_t row = to * part; row < (to + 1) * part; row++) {
    int asks = 0;
    for (int64_t i = from * chunk; i < (from + 1) * chunk; i++) asks |= (int64_t)whole_get(w->indices, i) == row;
    count += asks;
  }
  return count;
}

static void check_formulas(const world *w)
{
  int64_t n = ranks_size, row = 4 * WIDTH * n, out = w->entries * row, dense = w->rows * row;
  int64_t asks = 0, answers = 0;
  for (int64_t other = 0; other < n; other++) {
    if (other == ranks_rank) continue;
    asks += rows_to_send(w, ranks_rank, other);
    answers += rows_to_send(w, other, ranks_rank);
  }
  expect(w, 0, "R", "R", 0, NULL, 0, 0, 2);
  expect(w, 0, "S(1)", "R", 0, NULL, 0, 0, 2);                                         /* column: nothing moves */
  expect(w, 0, "R", "S(0)", 0, NULL, 0, 0, 2);                                         /* batch */
  expect(w, 0, "S(0)", "R", 0, NULL, 0, 0, 2);                                         /* row, left pending */
  expect(w, 0, "S(0)", "R", 0, "R", 2 * (n - 1) * out / n, 2, 2);                      /* row: one all-reduce */
  expect(w, 0, "S(0)", "R", 0, "S(0)", (n - 1) * out / n, 1, 2);                       /* row: one reduce-scatter */
  expect(w, 0, "S(0)", "S(0)", 1, NULL, 8 * (n - 1) + 4 * asks + answers * row, 3, 2); /* counts, indices, rows */
  expect(w, 1, "S(1)", "R", 0, NULL, 0, 0, 2);
  expect(w, 1, "R", "R", 0, NULL, 0, 0, 2);       /* row: the gradient stays */
  expect(w, 1, "S(0)", "S(0)", 0, NULL, 0, 0, 2); /* batch, left pending */
  expect(w, 1, "S(0)", "S(0)", 0, "R", 2 * (n - 1) * dense / n, 2, 2);
  expect(w, 1, "S(0)", "S(0)", 0, "S(0)", (n - 1) * dense / n, 1, 2);
  expect(w, 1, "S(0)", "S(0)", 1, NULL, 8 * (n - 1) + 4 * asks + asks * row, 3, 2);
}

/* ---- Bags, dispatched ---------------------------------------------------------------------------------------------- */

typedef struct bag_traffic {
  int64_t rows, entries, pieces; /* that a rank wants of another: distinct rows, entries, bags with any */
} bag_traffic;

static bag_traffic bags_to_send(const whole *indices, int64_t rows, int64_t from, int64_t to)
{
  bag_traffic t = {0, 0, 0};
  int64_t chunk = indices->shape[0] / ranks_size, length = indices->shape[1], part = rows / ranks_size;
  for (int64_t b = from * chunk; b < (from + 1) * chunk; b++) {
    int64_t before = t.entries;
    for (int64_t i = 0; i < length; i++) t.entries += (int64_t)whole_get(indices, b * length + i) / part == to;
    t.pieces += t.entries > before;
  }
  for (int64_t row = to * part; row < (to + 1) * part; row++) {
    int asks = 0;
    for (int64_t i = from * chunk * length; i < (from + 1) * chunk * length; i++)
      asks |= (int64_t)whole_get(indices, i) == row;
    t.rows += asks;
  }
  return t;
}

/* A bag sum or its gradient of table and bags that are both cut: rows travel, or pieces of bags, whatever is less. */
static void check_bags(const world *w, int64_t length, int exact, int backward)
{
  uint64_t seed = (uint64_t)length;
  int64_t n = ranks_size, shape[2] = {4 * n, length}, width = w->table->shape[1], row = 4 * width;
  int64_t grad_shape[2] = {4 * n, width};
  whole *indices = whole_make(SHEAF_I64, 2, shape), *grad = whole_make(SHEAF_F32, 2, grad_shape);
  for (int64_t i = 0; i < indices->count; i++) whole_set(indices, i, (double)(ranks_random(&seed) % (uint64_t)w->rows));
  for (int64_t i = 0; i < grad->count; i++) whole_set(grad, i, (double)(ranks_random(&seed) % 7));
  int64_t by_rows = 0, by_pieces = 0, asks = 0, answers = 0, asked_pieces = 0, entries = 0, pieces = 0;
  for (int64_t a = 0; a < n; a++)
    for (int64_t b = 0; b < n; b++) {
      if (a == b) continue;
      bag_traffic t = bags_to_send(indices, w->rows, a, b);
      by_rows += t.rows * (4 + row);
      by_pieces += t.entries * 4 + t.pieces * (8 + row);
      if (a == ranks_rank) asks += t.rows, entries += t.entries, pieces += t.pieces;
      if (b == ranks_rank) answers += t.rows, asked_pieces += t.pieces;
    }
  int rows_travel = by_pieces >= by_rows || (exact && !backward);
  int64_t expected = rows_travel ? 8 * (n - 1) + 4 * asks + (backward ? asks : answers) * row
                                 : 16 * (n - 1) + 8 * pieces + 4 * entries + (backward ? pieces : asked_pieces) * row;
  sheaf_placement S0 = sheaf_shard(0);
  sheaf_dtensor *first = whole_part(backward ? grad : w->table, mesh, &sizes, &S0), *made = NULL,
                *index = whole_part(indices, mesh, &sizes, &S0);
  sheaf_shard_problem p = SHEAF_SHARD_PROBLEM_INIT;
  p.mesh = mesh;
  p.kind = backward ? SHEAF_BAG_SUM_BACKWARD : SHEAF_BAG_SUM;
  p.bag_form = SHEAF_BAGS_MATRIX;
  p.dtype = SHEAF_F32;
  p.index_dtype = SHEAF_I64;
  p.rows = w->rows;
  p.dim = width;
  p.index_rank = 2;
  memcpy(p.index_shape, shape, sizeof shape);
  p.bags = shape[0];
  p.in[0][0] = p.in[1][0] = S0;
  sheaf_strategy_list *list;
  sheaf_shard_call call = SHEAF_SHARD_CALL_INIT;
  call.strategy = ranks_dispatch_of(&p, &list);
  call.exact = (uint8_t)exact;
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.kind = (sheaf_embedding_kind)p.kind;
  desc.bag_form = SHEAF_BAGS_MATRIX;
  desc.rows = w->rows;
  sheaf_shard_embedding_args args = SHEAF_SHARD_EMBEDDING_ARGS_INIT;
  args.indices = index;
  if (backward)
    args.grad_out = first, args.table_grad = &made;
  else
    args.table = first, args.out = &made;
  sheaf_comm_stats before = sheaf_comm_statistics(ranks_comm);
  OK(sheaf_shard_embedding_run(&desc, &call, &args));
  sheaf_comm_stats after = sheaf_comm_statistics(ranks_comm);
  if (n > 1) {
    CHECK(after.bytes_sent - before.bytes_sent == expected, "bags of %lld, exact %d: %lld bytes sent, not %lld",
          (long long)length, exact, (long long)(after.bytes_sent - before.bytes_sent), (long long)expected);
    CHECK(after.exchanges - before.exchanges == (rows_travel ? 3 : 4), "%lld exchanges",
          (long long)(after.exchanges - before.exchanges));
    CHECK(length < 12 || by_pieces < by_rows, "long bags do not show what they should");
    CHECK(length > 1 || by_pieces >= by_rows, "short bags do not show what they should");
  }
  sheaf_dtensor_free(made);
  sheaf_dtensor_free(first);
  sheaf_dtensor_free(index);
  sheaf_strategy_list_free(list);
  whole_free(indices);
  whole_free(grad);
  cases++;
}

/* Sums of ranks are rounded, and still the same in every run. */
static void check_repeats(const world *w)
{
  for (int dispatch = 0; dispatch < 2; dispatch++) {
    whole *first = NULL;
    for (int turn = 0; turn < 4; turn++) {
      sheaf_placement R = sheaf_replicate();
      sheaf_dtensor *made, *all;
      measure(w, 1, "S(0)", "S(0)", dispatch, NULL, &made);
      OK(sheaf_dtensor_redistribute(made, &R, &all));
      const DLTensor *local = sheaf_dtensor_local(all);
      if (!first) first = whole_make(SHEAF_F32, 2, w->table->shape);
      if (turn == 0) memcpy(first->data, local->data, (size_t)first->count * 4);
      CHECK(memcmp(first->data, local->data, (size_t)first->count * 4) == 0, "run %d differs", turn);
      sheaf_dtensor_free(made);
      sheaf_dtensor_free(all);
    }
    whole_free(first);
    cases++;
  }
}

int ranks_main(int argc, char **argv)
{
  (void)argc, (void)argv;
  ranks_open();
  sizes = (ranks_mesh){1, {ranks_size, 0}};
  OK(sheaf_mesh_create(&ranks_size, 1, ranks_comm, &mesh));
  world w = make_world();
  check_formulas(&w);
  check_repeats(&w);
  for (int backward = 0; backward < 2; backward++)
    for (int exact = 0; exact < 2; exact++) {
      check_bags(&w, 1, exact, backward);
      check_bags(&w, 3, exact, backward);
      check_bags(&w, 4 * ranks_size + 8, exact, backward);
    }
  whole_free(w.table);
  whole_free(w.indices);
  whole_free(w.grad);
  sheaf_mesh_free(mesh);
  return ranks_close("traffic", cases);
}
