/* tests/ranks/ranks_large.c: dispatch at sizes where rows are stored past the cache, where threads share the work, and where a
 * table has far more rows than there are entries. Numbers are small integers, so that every sum is exact and can be worked
 * out by plain loops over what all ranks know. */
#include <string.h>

#include "ranks.h"

enum { BAG = 8, SKIPPED = 17 };
static _Thread_local int64_t cases;
static _Thread_local sheaf_mesh *mesh;

typedef struct size {
  int64_t rows, columns, entries;
} size;

/* What tables, gradients and indices hold. */
static float value_at(int64_t row, int64_t column) { return (float)((row * 31 + column * 7) % 97 - 48); }

static int64_t index_at(const size *s, int64_t entry)
{
  uint64_t state = (uint64_t)entry;
  int64_t index = (int64_t)(ranks_random(&state) % (uint64_t)(s->rows + s->rows / 50 + 2)) - 1; /* some are bad */
  return entry % 5 == 0 ? index / 100 : index;                                                  /* and some frequent */
}

static int is_named(const size *s, int64_t index) { return index >= 0 && index < s->rows && index != SKIPPED; }

/* This rank's part of n things. */
static void my_part(int64_t n, int64_t *lo, int64_t *hi)
{
  const ranks_mesh sizes = {1, {ranks_size, 0}};
  sheaf_placement cut = sheaf_shard(0);
  ranks_range(&sizes, &cut, 0, n, ranks_rank, lo, hi);
}

static sheaf_dtensor *make(sheaf_dtype dtype, int rank, int64_t rows, int64_t columns)
{
  sheaf_dtensor_desc desc = SHEAF_DTENSOR_DESC_INIT;
  sheaf_dtensor *made;
  desc.mesh = mesh;
  desc.dtype = dtype;
  desc.rank = rank;
  desc.shape[0] = rows;
  desc.shape[1] = columns;
  desc.placements[0] = sheaf_shard(0);
  desc.device = ranks_device;
  OK(sheaf_dtensor_create(&desc, &made));
  return made;
}

/* A tensor of values cut by rows. */
static sheaf_dtensor *make_values(int64_t rows, int64_t columns)
{
  sheaf_dtensor *made = make(SHEAF_F32, 2, rows, columns);
  int64_t lo, hi;
  my_part(rows, &lo, &hi);
  float *data = malloc((size_t)((hi - lo) * columns + 1) * sizeof *data);
  CHECK(data, "no memory");
  for (int64_t i = 0; i < (hi - lo) * columns; i++) data[i] = value_at(lo + i / columns, i % columns);
  if (hi > lo) ranks_write(sheaf_dtensor_local(made), data);
  free(data);
  return made;
}

static sheaf_dtensor *make_indices(const size *s, int bags)
{
  int64_t groups = bags ? s->entries / BAG : s->entries, each = bags ? BAG : 1, lo, hi;
  sheaf_dtensor *made = make(SHEAF_I64, bags ? 2 : 1, groups, BAG);
  my_part(groups, &lo, &hi);
  int64_t *data = malloc((size_t)((hi - lo) * each + 1) * sizeof *data);
  CHECK(data, "no memory");
  for (int64_t i = 0; i < (hi - lo) * each; i++) data[i] = index_at(s, lo * each + i);
  if (hi > lo) ranks_write(sheaf_dtensor_local(made), data);
  free(data);
  return made;
}

/* What this rank's part of the output should be. */
static float *expect(const size *s, sheaf_embedding_kind kind, int64_t lo, int64_t hi)
{
  int64_t columns = s->columns, count = (hi - lo) * columns;
  float *out = malloc((size_t)(count + 1) * sizeof *out);
  CHECK(out, "no memory");
  memset(out, 0, (size_t)(count + 1) * sizeof *out);
  int backward = kind == SHEAF_LOOKUP_BACKWARD || kind == SHEAF_BAG_SUM_BACKWARD;
  int64_t each = kind == SHEAF_BAG_SUM || kind == SHEAF_BAG_SUM_BACKWARD ? BAG : 1, all = s->entries / each * each;
  for (int64_t i = 0; i < all; i++) {
    int64_t index = index_at(s, i), group = i / each, row = backward ? index : group;
    if (!is_named(s, index) || row < lo || row >= hi) continue;
    for (int64_t c = 0; c < columns; c++) out[(row - lo) * columns + c] += value_at(backward ? group : index, c);
  }
  return out;
}

static void check(const size *s, sheaf_embedding_kind kind, int exact)
{
  int backward = kind == SHEAF_LOOKUP_BACKWARD || kind == SHEAF_BAG_SUM_BACKWARD, bags = kind >= SHEAF_BAG_SUM;
  int64_t groups = bags ? s->entries / BAG : s->entries, outs = backward ? s->rows : groups, lo, hi;
  sheaf_shard_problem p = SHEAF_SHARD_PROBLEM_INIT;
  p.mesh = mesh;
  p.kind = (uint16_t)kind;
  p.bag_form = SHEAF_BAGS_MATRIX;
  p.dtype = SHEAF_F32;
  p.index_dtype = SHEAF_I64;
  p.rows = s->rows;
  p.dim = s->columns;
  p.index_rank = bags ? 2 : 1;
  p.bags = p.index_shape[0] = groups;
  p.index_shape[1] = bags ? BAG : 0;
  p.in[0][0] = p.in[1][0] = sheaf_shard(0);
  sheaf_strategy_list *list;
  sheaf_shard_call call = SHEAF_SHARD_CALL_INIT;
  call.strategy = ranks_dispatch_of(&p, &list);
  call.exact = (uint8_t)exact;
  sheaf_dtensor *first = make_values(backward ? groups : s->rows, s->columns), *index = make_indices(s, bags), *made;
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.kind = kind;
  desc.bag_form = SHEAF_BAGS_MATRIX;
  desc.rows = s->rows;
  desc.has_padding = 1;
  desc.padding_idx = SKIPPED;
  sheaf_shard_embedding_args args = SHEAF_SHARD_EMBEDDING_ARGS_INIT;
  args.indices = index;
  if (backward)
    args.grad_out = first, args.table_grad = &made;
  else
    args.table = first, args.out = &made;
  my_part(outs, &lo, &hi);
  float *expected = expect(s, kind, lo, hi);
  for (int turn = 0; turn < 2; turn++) { /* again, in memory that was used before */
    OK(sheaf_shard_embedding_run(&desc, &call, &args));
    float *got = ranks_read(sheaf_dtensor_local(made));
    for (int64_t i = 0; i < (hi - lo) * s->columns; i++)
      CHECK(got[i] == expected[i], "%s of %lld x %lld: %g at row %lld, column %lld, not %g",
            sheaf_kind_name(SHEAF_CATEGORY_EMBEDDING, (uint16_t)kind), (long long)s->rows, (long long)s->columns,
            (double)got[i], (long long)(lo + i / s->columns), (long long)(i % s->columns), (double)expected[i]);
    free(got);
    sheaf_dtensor_free(made);
    cases++;
  }
  free(expected);
  sheaf_dtensor_free(first);
  sheaf_dtensor_free(index);
  sheaf_strategy_list_free(list);
}

int ranks_main(int argc, char **argv)
{
  (void)argc, (void)argv;
  ranks_open();
  OK(sheaf_mesh_create(&ranks_size, 1, ranks_comm, &mesh));
  const char *quick = getenv("SHEAF_TEST_QUICK");
  /* 8 MiB a rank, of whole lines, are stored past the cache: where that does not take long, on every rank. */
  int64_t times = ranks_size > 3 || (quick && *quick == '1') ? 1 : ranks_size;
  const size sizes[] = {{140000 * times, 16, 150001 * times}, {2000000, 1, 3000}, {40000, 7, 20000}};
  for (int i = 0; i < 3; i++) {
    check(&sizes[i], SHEAF_LOOKUP, 0);
    check(&sizes[i], SHEAF_LOOKUP_BACKWARD, 0);
    check(&sizes[i], SHEAF_BAG_SUM, 0);
    check(&sizes[i], SHEAF_BAG_SUM, 1);
    check(&sizes[i], SHEAF_BAG_SUM_BACKWARD, 0);
  }
  sheaf_mesh_free(mesh);
  return ranks_close("large", cases);
}
