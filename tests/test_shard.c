/* test_shard.c: sharding without ranks: parts of tensors, strategies and costs, the planner; one rank by itself. */
#define _GNU_SOURCE /* setenv */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <sheaf/sheaf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static sheaf_mesh *mesh_of(int dims, const int64_t *sizes)
{
  sheaf_mesh *mesh;
  assert_int_equal(sheaf_mesh_create(sizes, dims, NULL, &mesh), SHEAF_OK);
  return mesh;
}

static sheaf_mesh *mesh_2d(int64_t a, int64_t b) { return mesh_of(2, (int64_t[]){a, b}); }

/* ---- Placements ------------------------------------------------------------------------------------------------- */

static void test_placements_are_printed_and_read_back(void **state)
{
  (void)state;
  static const char *const words[] = {"R", "S(0)", "S(3)", "P(sum)", "P(max)", "P(min)", "P(prod)", "MaskP", "B"};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    sheaf_placement p;
    char text[16];
    assert_int_equal(sheaf_placement_parse(words[i], &p), SHEAF_OK);
    assert_int_equal(sheaf_placement_print(&p, text, sizeof text), strlen(words[i]));
    assert_string_equal(text, words[i]);
  }
  sheaf_placement p, q = sheaf_shard(2);
  assert_int_equal(sheaf_placement_parse("S2", &p), SHEAF_OK);
  assert_true(sheaf_placement_equal(&p, &q));
  static const char *const wrong[] = {"", "r", "S", "S(", "S(1", "S()", "S(9)", "P", "P(avg)", "S(0)x", "MaskP "};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    assert_int_equal(sheaf_placement_parse(wrong[i], &p), SHEAF_INVALID_PROBLEM);
}

static void test_masks_are_equal_when_table_and_dimension_are(void **state)
{
  (void)state;
  sheaf_placement a = {.kind = SHEAF_PLACE_MASK_PARTIAL, .offset_shape = {10, 4}}, b = a;
  assert_true(sheaf_placement_equal(&a, &b));
  b.offset_shape[0] = 11;
  assert_false(sheaf_placement_equal(&a, &b));
  b = a;
  b.dim = 1;
  assert_false(sheaf_placement_equal(&a, &b));
}

/* Which element of n a rank's part begins and ends with, by asking of each element whose it is. */
static void plain_chunk(int64_t n, int64_t ranks, int64_t rank, int64_t *first, int64_t *count)
{
  int64_t chunk = 0;
  while (chunk * ranks < n) chunk++;
  *first = n;
  *count = 0;
  for (int64_t i = 0; i < n; i++) {
    if (i / chunk != rank) continue;
    if (*count == 0) *first = i;
    (*count)++;
  }
}

static void test_local_parts_follow_the_chunk_rule(void **state)
{
  (void)state;
  for (int64_t ranks = 1; ranks <= 9; ranks++) {
    sheaf_mesh *mesh = mesh_of(1, &ranks);
    for (int64_t n = 0; n <= 40; n++)
      for (int64_t rank = 0; rank < ranks; rank++) {
        sheaf_placement S1 = sheaf_shard(1);
        int64_t shape[2] = {3, n}, local[2], offset[2], first, count;
        assert_int_equal(sheaf_local_shape(mesh, &S1, 2, shape, rank, local, offset), SHEAF_OK);
        plain_chunk(n, ranks, rank, &first, &count);
        assert_int_equal(local[0], 3);
        assert_int_equal(offset[0], 0);
        assert_int_equal(local[1], count);
        assert_int_equal(offset[1], first);
      }
    sheaf_mesh_free(mesh);
  }
}

static void test_cuts_of_one_dimension_nest(void **state)
{
  (void)state;
  sheaf_placement both[2] = {sheaf_shard(0), sheaf_shard(0)};
  for (int64_t a = 1; a <= 4; a++)
    for (int64_t b = 1; b <= 4; b++) {
      sheaf_mesh *mesh = mesh_2d(a, b);
      for (int64_t n = 0; n <= 30; n++)
        for (int64_t rank = 0; rank < a * b; rank++) {
          int64_t local, offset, outer, outer_count, inner, inner_count;
          plain_chunk(n, a, rank / b, &outer, &outer_count);
          plain_chunk(outer_count, b, rank % b, &inner, &inner_count);
          assert_int_equal(sheaf_local_shape(mesh, both, 1, &n, rank, &local, &offset), SHEAF_OK);
          assert_int_equal(local, inner_count);
          assert_int_equal(offset, outer + inner);
        }
      sheaf_mesh_free(mesh);
    }
}

static void test_wrong_meshes_and_placements_are_named(void **state)
{
  (void)state;
  sheaf_mesh *mesh;
  assert_int_equal(sheaf_mesh_create((int64_t[]){2, 0}, 2, NULL, &mesh), SHEAF_INVALID_PROBLEM);
  assert_string_equal(sheaf_last_error(), "dimension 1 of the mesh has 0 ranks; it needs at least 1");
  assert_null(mesh);
  assert_int_equal(sheaf_mesh_create((int64_t[]){2}, 0, NULL, &mesh), SHEAF_INVALID_PROBLEM);
  assert_int_equal(sheaf_mesh_create((int64_t[]){1 << 20, 1 << 20}, 2, NULL, &mesh), SHEAF_INVALID_PROBLEM);
  mesh = mesh_2d(2, 3);
  assert_int_equal(sheaf_mesh_ranks(mesh), 6);
  assert_int_equal(sheaf_mesh_size(mesh, 1), 3);
  assert_int_equal(sheaf_mesh_size(mesh, 2), 0);
  assert_int_equal(sheaf_mesh_rank(mesh), -1);
  sheaf_placement p[2] = {sheaf_replicate(), sheaf_shard(2)};
  int64_t shape[2] = {4, 4};
  assert_int_equal(sheaf_local_shape(mesh, p, 2, shape, 0, NULL, NULL), SHEAF_INVALID_PROBLEM);
  assert_non_null(strstr(sheaf_last_error(), "S(2)"));
  p[0] = sheaf_partial(SHEAF_PARTIAL_SUM);
  p[1] = sheaf_partial(SHEAF_PARTIAL_MAX);
  assert_int_equal(sheaf_local_shape(mesh, p, 2, shape, 0, NULL, NULL), SHEAF_INVALID_PROBLEM);
  p[0] = p[1] = sheaf_replicate();
  assert_int_equal(sheaf_local_shape(mesh, p, 2, shape, 6, NULL, NULL), SHEAF_INVALID_PROBLEM);
  sheaf_mesh_free(mesh);
}

/* ---- Costs ------------------------------------------------------------------------------------------------------ */

/* Whether a rank has element (i, j), cell by cell. */
static int has(const sheaf_mesh *mesh, const sheaf_placement *p, const int64_t *shape, int64_t rank, int64_t i,
               int64_t j)
{
  int64_t local[2], offset[2];
  assert_int_equal(sheaf_local_shape(mesh, p, 2, shape, rank, local, offset), SHEAF_OK);
  return i >= offset[0] && i < offset[0] + local[0] && j >= offset[1] && j < offset[1] + local[1];
}

static void test_a_move_is_costed_by_what_a_rank_lacks(void **state)
{
  (void)state;
  const int64_t meshes[][2] = {{2, 2}, {2, 3}, {1, 4}, {3, 1}}, shapes[][2] = {{7, 5}, {2, 2}, {12, 6}};
  for (int m = 0; m < 4; m++)
    for (int s = 0; s < 3; s++)
      for (int code = 0; code < 81; code++) {
        sheaf_mesh *mesh = mesh_2d(meshes[m][0], meshes[m][1]);
        sheaf_placement all[3] = {sheaf_replicate(), sheaf_shard(0), sheaf_shard(1)};
        sheaf_placement from[2] = {all[code % 3], all[code / 3 % 3]}, to[2] = {all[code / 9 % 3], all[code / 27]};
        int64_t most = 0;
        for (int64_t rank = 0; rank < sheaf_mesh_ranks(mesh); rank++) {
          int64_t lacks = 0;
          for (int64_t i = 0; i < shapes[s][0]; i++)
            for (int64_t j = 0; j < shapes[s][1]; j++)
              lacks += has(mesh, to, shapes[s], rank, i, j) && !has(mesh, from, shapes[s], rank, i, j);
          if (lacks > most) most = lacks;
        }
        sheaf_move_cost cost;
        assert_int_equal(sheaf_redistribute_cost(mesh, 2, shapes[s], 4, from, to, NULL, &cost), SHEAF_OK);
        assert_true(cost.bytes == 4.0 * (double)most);
        assert_int_equal(cost.steps, most > 0);
        sheaf_mesh_free(mesh);
      }
}

static void test_reductions_are_costed_as_rings(void **state)
{
  (void)state;
  int64_t ranks = 8, shape[2] = {64, 16};
  sheaf_mesh *mesh = mesh_of(1, &ranks);
  sheaf_placement P = sheaf_partial(SHEAF_PARTIAL_SUM), R = sheaf_replicate(), S = sheaf_shard(0);
  sheaf_move_cost cost;
  assert_int_equal(sheaf_redistribute_cost(mesh, 2, shape, 4, &P, &R, NULL, &cost), SHEAF_OK);
  assert_true(cost.bytes == 2.0 * 7 / 8 * 4096);
  assert_int_equal(cost.steps, 2);
  assert_int_equal(sheaf_redistribute_cost(mesh, 2, shape, 4, &P, &S, NULL, &cost), SHEAF_OK);
  assert_true(cost.bytes == 7.0 / 8 * 4096);
  assert_int_equal(cost.steps, 1);
  assert_int_equal(sheaf_redistribute_cost(mesh, 2, shape, 4, &R, &P, NULL, &cost), SHEAF_OK);
  assert_true(cost.bytes == 0 && cost.steps == 0);
  sheaf_mesh_free(mesh);
}

static void test_compatible_cost_of_what_cannot_be_done_is_infinite(void **state)
{
  (void)state;
  int64_t ranks = 4, shape[2] = {16, 16};
  sheaf_mesh *mesh = mesh_of(1, &ranks);
  sheaf_placement S = sheaf_shard(0), P = sheaf_partial(SHEAF_PARTIAL_SUM), Q = sheaf_partial(SHEAF_PARTIAL_MAX);
  assert_true(isinf(sheaf_compatible_cost(mesh, 2, shape, 4, &S, &P)));
  assert_true(isinf(sheaf_compatible_cost(mesh, 2, shape, 4, &P, &Q)));
  assert_true(sheaf_compatible_cost(mesh, 2, shape, 4, &P, &P) == 0);
  sheaf_mesh_free(mesh);
}

/* ---- Strategies --------------------------------------------------------------------------------------------------- */

static sheaf_shard_problem lookup_on(const sheaf_mesh *mesh, uint16_t kind)
{
  sheaf_shard_problem p = SHEAF_SHARD_PROBLEM_INIT;
  p.mesh = mesh;
  p.kind = kind;
  p.dtype = SHEAF_F32;
  p.index_dtype = SHEAF_I64;
  p.rows = 4096;
  p.dim = 64;
  p.index_rank = 2;
  p.index_shape[0] = 128;
  p.index_shape[1] = 16;
  return p;
}

static void test_the_list_without_additions_is_the_compatible_one(void **state)
{
  (void)state;
  sheaf_mesh *mesh = mesh_2d(2, 4);
  for (uint16_t kind = SHEAF_LOOKUP; kind <= SHEAF_LOOKUP_BACKWARD; kind++) {
    sheaf_shard_problem p = lookup_on(mesh, kind);
    p.in[0][0] = p.in[1][1] = sheaf_shard(0);
    sheaf_strategy_list *all, *compatible;
    assert_int_equal(sheaf_strategies(&p, 0, NULL, &all), SHEAF_OK);
    assert_int_equal(sheaf_strategies(&p, 1, NULL, &compatible), SHEAF_OK);
    int64_t at = 0;
    for (int64_t i = 0; i < sheaf_strategy_count(all); i++) {
      const sheaf_strategy *s = sheaf_strategy_at(all, i), *c = sheaf_strategy_at(compatible, at);
      if (s->addition) continue;
      assert_non_null(c);
      for (int m = 0; m < 2; m++) {
        assert_true(sheaf_placement_equal(&s->out[m], &c->out[m]));
        for (int j = 0; j < 2; j++) assert_true(sheaf_placement_equal(&s->in[j][m], &c->in[j][m]));
      }
      for (int j = 0; j < 2; j++) assert_true(s->compatible_cost[j] == c->compatible_cost[j]);
      at++;
    }
    assert_int_equal(at, sheaf_strategy_count(compatible));
    assert_true(sheaf_strategy_count(all) > at);
    sheaf_strategy_list_free(all);
    sheaf_strategy_list_free(compatible);
  }
  sheaf_mesh_free(mesh);
}

static void test_a_table_with_fewer_rows_than_ranks_still_runs_row_wise(void **state)
{
  (void)state;
  int64_t ranks = 8;
  sheaf_mesh *mesh = mesh_of(1, &ranks);
  sheaf_shard_problem p = lookup_on(mesh, SHEAF_LOOKUP);
  p.rows = 3;
  for (int lies_so = 0; lies_so < 2; lies_so++) {
    p.in[0][0] = lies_so ? sheaf_shard(0) : sheaf_replicate();
    sheaf_strategy_list *list;
    assert_int_equal(sheaf_strategies(&p, 0, NULL, &list), SHEAF_OK);
    int found = 0;
    for (int64_t i = 0; i < sheaf_strategy_count(list); i++)
      found |= sheaf_strategy_at(list, i)->in[0][0].kind == SHEAF_PLACE_SHARD &&
               sheaf_strategy_at(list, i)->in[0][0].dim == 0;
    assert_int_equal(found, lies_so);
    sheaf_strategy_list_free(list);
  }
  sheaf_mesh_free(mesh);
}

/* ---- Choice --------------------------------------------------------------------------------------------------------- */

static const sheaf_strategy *choose(const sheaf_shard_problem *p, const sheaf_mesh_profile *profile,
                                    sheaf_strategy_list **list)
{
  int64_t position;
  char reason[256];
  assert_int_equal(sheaf_strategies(p, 0, profile, list), SHEAF_OK);
  assert_int_equal(sheaf_strategy_choose(*list, profile, &position, reason, sizeof reason), SHEAF_OK);
  assert_non_null(strstr(reason, "least time"));
  return sheaf_strategy_at(*list, position);
}

static void test_a_sharded_table_stays_where_it_is(void **state)
{
  (void)state;
  static const int64_t sizes[][2] = {{2, 4}, {4, 8}, {16, 64}};
  clock_t start = clock();
  for (int n = 0; n < 3; n++)
    for (int cut = 0; cut < 4; cut++)
      for (int batch = 0; batch < 4; batch++)
        for (uint16_t kind = SHEAF_LOOKUP; kind <= SHEAF_BAG_MAX; kind++) {
          if (kind == SHEAF_LOOKUP_BACKWARD || kind == SHEAF_BAG_SUM_BACKWARD || kind == SHEAF_BAG_MEAN_BACKWARD)
            continue;
          sheaf_mesh *mesh = mesh_2d(sizes[n][0], sizes[n][1]);
          sheaf_shard_problem p = lookup_on(mesh, kind);
          p.bag_form = SHEAF_BAGS_MATRIX;
          p.rows = 1000000000;
          p.dim = 128;
          p.bags = p.index_shape[0] = 8192;
          for (int m = 0; m < 2; m++) {
            p.in[0][m] = cut >> m & 1 ? sheaf_shard(0) : sheaf_replicate();
            p.in[1][m] = batch >> m & 1 ? sheaf_shard(0) : sheaf_replicate();
          }
          sheaf_strategy_list *list;
          const sheaf_strategy *s = choose(&p, NULL, &list);
          sheaf_move_cost cost;
          int64_t shape[2] = {p.rows, p.dim};
          assert_int_equal(sheaf_redistribute_cost(mesh, 2, shape, 4, p.in[0], s->in[0], NULL, &cost), SHEAF_OK);
          assert_true(cost.bytes == 0);
          sheaf_strategy_list_free(list);
          sheaf_mesh_free(mesh);
        }
  assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 10); /* 192 plans, of up to 1024 ranks */
}

static void test_thousands_of_ranks_are_planned_within_a_second(void **state)
{
  (void)state;
  static const int64_t sizes[][3] = {{8192, 1, 1}, {64, 64, 1}, {16, 64, 1}, {8, 16, 32}};
  for (int n = 0; n < 4; n++) {
    int dims = sizes[n][2] > 1 ? 3 : sizes[n][1] > 1 ? 2 : 1;
    clock_t start = clock();
    sheaf_mesh *mesh = mesh_of(dims, sizes[n]);
    sheaf_shard_problem p = lookup_on(mesh, SHEAF_LOOKUP);
    p.rows = 1000000000;
    p.index_shape[0] = 8192;
    p.in[0][0] = p.in[1][dims - 1] = sheaf_shard(0);
    sheaf_strategy_list *list;
    assert_non_null(choose(&p, NULL, &list));
    sheaf_strategy_list_free(list);
    sheaf_mesh_free(mesh);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    assert_true(getenv("SHEAF_TEST_QUICK") || seconds < 1); /* quick: sanitizers, which take some times as long */
  }
}

static void test_the_wanted_output_counts(void **state)
{
  (void)state;
  int64_t ranks = 8;
  sheaf_mesh *mesh = mesh_of(1, &ranks);
  sheaf_shard_problem p = lookup_on(mesh, SHEAF_LOOKUP);
  p.rows = 64; /* a small table: cheaper moved than a large output */
  p.index_shape[0] = 100000;
  p.out_wanted = 1;
  for (int d = 0; d < 3; d++) {
    sheaf_strategy_list *list;
    p.out[0] = sheaf_shard(d);
    const sheaf_strategy *s = choose(&p, NULL, &list);
    assert_true(sheaf_placement_equal(&s->out[0], &p.out[0]));
    sheaf_strategy_list_free(list);
  }
  sheaf_mesh_free(mesh);
}

static void test_the_memory_limit_is_kept(void **state)
{
  (void)state;
  int64_t ranks = 8, position;
  sheaf_mesh *mesh = mesh_of(1, &ranks);
  sheaf_shard_problem p = lookup_on(mesh, SHEAF_LOOKUP);
  sheaf_mesh_profile profile = SHEAF_MESH_PROFILE_INIT;
  sheaf_strategy_list *list;
  p.rows = 1000000;
  p.in[0][0] = sheaf_shard(0);
  profile.memory_limit = 64e6; /* an eighth of the table is 32 MB, all of it 256 MB */
  assert_true(choose(&p, &profile, &list)->bytes_memory <= 64e6);
  profile.memory_limit = 1e6;
  assert_int_equal(sheaf_strategy_choose(list, &profile, &position, NULL, 0), SHEAF_UNSUPPORTED);
  assert_non_null(strstr(sheaf_last_error(), "1e+06 bytes a rank"));
  sheaf_strategy_list_free(list);
  sheaf_mesh_free(mesh);
}

/* ---- One rank ------------------------------------------------------------------------------------------------------- */

static void test_an_engine_that_is_not_there_is_unavailable(void **state)
{
  (void)state;
  sheaf_comm *comm;
  assert_int_equal(setenv("SHEAF_PLUGIN_PATH", "/no/such/folder:/nor/this", 1), 0);
  assert_int_equal(sheaf_comm_open("mpi", NULL, &comm), SHEAF_UNAVAILABLE); /* tests do not lie beside the plug-in */
  assert_non_null(strstr(sheaf_last_error(), "/no/such/folder/libsheaf_mpi.so"));
  assert_non_null(strstr(sheaf_last_error(), "/nor/this/libsheaf_mpi.so"));
  assert_null(comm);
  assert_int_equal(sheaf_comm_open("pigeons", NULL, &comm), SHEAF_UNSUPPORTED);
}

static void test_one_rank_needs_no_engine(void **state)
{
  (void)state;
  sheaf_comm *comm;
  sheaf_mesh *mesh;
  int64_t one[2] = {1, 1};
  assert_int_equal(sheaf_comm_open("self", NULL, &comm), SHEAF_OK);
  assert_int_equal(sheaf_mesh_create((int64_t[]){2}, 1, comm, &mesh), SHEAF_INVALID_PROBLEM);
  assert_string_equal(sheaf_last_error(), "the mesh has 2 ranks, its communicator 1");
  assert_int_equal(sheaf_mesh_create(one, 2, comm, &mesh), SHEAF_OK);
  float table[4][2] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}};
  int64_t indices[3] = {2, 0, 3}, table_shape[2] = {4, 2}, index_shape = 3;
  DLTensor t = {
      .data = table, .device = {kDLCPU, 0}, .ndim = 2, .dtype = sheaf_dtype_to_dl(SHEAF_F32), .shape = table_shape};
  DLTensor i = {
      .data = indices, .device = {kDLCPU, 0}, .ndim = 1, .dtype = sheaf_dtype_to_dl(SHEAF_I64), .shape = &index_shape};
  sheaf_dtensor_desc desc = SHEAF_DTENSOR_DESC_INIT;
  desc.mesh = mesh;
  desc.dtype = SHEAF_F32;
  desc.rank = 2;
  desc.shape[0] = 4;
  desc.shape[1] = 2;
  desc.placements[0] = desc.placements[1] = sheaf_shard(0);
  sheaf_dtensor *dt, *di, *out;
  assert_int_equal(sheaf_dtensor_wrap(&desc, &t, &dt), SHEAF_OK);
  desc.shape[0] = 5;
  assert_int_equal(sheaf_dtensor_wrap(&desc, &t, &out), SHEAF_INVALID_PROBLEM);
  assert_non_null(strstr(sheaf_last_error(), "has 4 elements in dimension 0 of its part; it should have 5"));
  desc.dtype = SHEAF_I64;
  desc.rank = 1;
  desc.shape[0] = 3;
  assert_int_equal(sheaf_dtensor_wrap(&desc, &i, &di), SHEAF_OK);
  i.byte_offset = 4;
  assert_int_equal(sheaf_dtensor_wrap(&desc, &i, &out), SHEAF_MISALIGNED);
  i.byte_offset = 0;
  sheaf_shard_embedding_args args = SHEAF_SHARD_EMBEDDING_ARGS_INIT;
  args.table = dt;
  args.indices = di;
  args.out = &out;
  sheaf_embedding_desc op = SHEAF_EMBEDDING_DESC_INIT;
  op.bad_index = SHEAF_BAD_INDEX_ERROR;
  assert_int_equal(sheaf_shard_embedding_run(&op, NULL, &args), SHEAF_OK);
  const float *got = sheaf_dtensor_local(out)->data, expected[] = {5, 6, 1, 2, 7, 8};
  assert_memory_equal(got, expected, sizeof expected);
  sheaf_dtensor_free(out);
  indices[1] = 9;
  assert_int_equal(sheaf_shard_embedding_run(&op, NULL, &args), SHEAF_INDEX_OUT_OF_RANGE);
  assert_string_equal(sheaf_last_error(), "indices: 9 at position 1 is outside 0..3; 1 such entry");
  assert_int_equal(sheaf_comm_statistics(comm).bytes_sent, 0);
  indices[1] = 0;
  sheaf_dtensor *gradient;
  desc.dtype = SHEAF_F32;
  desc.rank = 2;
  table_shape[0] = 3;
  assert_int_equal(sheaf_dtensor_wrap(&desc, &t, &gradient), SHEAF_OK);
  args.grad_out = gradient;
  args.table_grad = &out;
  op.kind = SHEAF_LOOKUP_BACKWARD;
  for (int k = 0; k < 3; k++) { /* whose bytes, counted in 64 bits, are few or none */
    op.rows = ((int64_t[]){(int64_t)1 << 61, ((int64_t)1 << 61) + 1, INT64_MAX})[k];
    assert_int_equal(sheaf_shard_embedding_run(&op, NULL, &args), SHEAF_INVALID_PROBLEM);
    assert_non_null(strstr(sheaf_last_error(), "is larger than any memory"));
  }
  sheaf_dtensor_free(gradient);
  sheaf_dtensor_free(dt);
  sheaf_dtensor_free(di);
  sheaf_mesh_free(mesh);
  sheaf_comm_close(comm);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_placements_are_printed_and_read_back),
      cmocka_unit_test(test_masks_are_equal_when_table_and_dimension_are),
      cmocka_unit_test(test_local_parts_follow_the_chunk_rule),
      cmocka_unit_test(test_cuts_of_one_dimension_nest),
      cmocka_unit_test(test_wrong_meshes_and_placements_are_named),
      cmocka_unit_test(test_a_move_is_costed_by_what_a_rank_lacks),
      cmocka_unit_test(test_reductions_are_costed_as_rings),
      cmocka_unit_test(test_compatible_cost_of_what_cannot_be_done_is_infinite),
      cmocka_unit_test(test_the_list_without_additions_is_the_compatible_one),
      cmocka_unit_test(test_a_table_with_fewer_rows_than_ranks_still_runs_row_wise),
      cmocka_unit_test(test_a_sharded_table_stays_where_it_is),
      cmocka_unit_test(test_thousands_of_ranks_are_planned_within_a_second),
      cmocka_unit_test(test_the_wanted_output_counts),
      cmocka_unit_test(test_the_memory_limit_is_kept),
      cmocka_unit_test(test_an_engine_that_is_not_there_is_unavailable),
      cmocka_unit_test(test_one_rank_needs_no_engine),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
