/* shard/strategy.c: the ways to compute each op along one mesh dimension, and their product over a mesh.
 *
 * To add a strategy: one line in the function of its op below, placements as [output, inputs...]. Executing it needs
 * nothing more as long as ranks can work alone between those placements: shard_embedding.c and shard_segment.c work
 * from the boxes that placements give. */
#include <math.h>
#include <string.h>

#include "shard/shard_impl.h"

/* One strategy along one mesh dimension. */
typedef struct rule {
  sheaf_placement out, in[MAX_INPUTS];
  int addition, dispatch;
} rule;

enum { MAX_RULES = 5 + 2 * MAX_RANK };

typedef struct rule_list {
  int count;
  rule at[MAX_RULES];
} rule_list;

static const sheaf_placement R = {.kind = SHEAF_PLACE_REPLICATE}, S0 = {.kind = SHEAF_PLACE_SHARD, .dim = 0},
                             S1 = {.kind = SHEAF_PLACE_SHARD, .dim = 1}, B = {.kind = SHEAF_PLACE_BAGS},
                             SUM = {.kind = SHEAF_PLACE_PARTIAL, .op = SHEAF_PARTIAL_SUM};

static void add(rule_list *rules, sheaf_placement out, sheaf_placement a, sheaf_placement b, sheaf_placement c)
{
  rules->at[rules->count++] = (rule){.out = out, .in = {a, b, c}};
}

static void add_own(rule_list *rules, int dispatch, sheaf_placement out, sheaf_placement a, sheaf_placement b,
                    sheaf_placement c)
{
  add(rules, out, a, b, c);
  rules->at[rules->count - 1].addition = 1;
  rules->at[rules->count - 1].dispatch = dispatch;
}

static void lookup_rules(const sheaf_shard_problem *p, rule_list *rules)
{
  int k = p->index_rank;
  sheaf_placement mask = {.kind = SHEAF_PLACE_MASK_PARTIAL, .offset_shape = {p->rows, p->dim}};
  add(rules, R, R, R, R);
  add(rules, sheaf_shard(k), S1, R, R);                                         /* column */
  add(rules, mask, S0, mask, R);                                                /* row */
  for (int i = 0; i < k; i++) add(rules, sheaf_shard(i), R, sheaf_shard(i), R); /* batch */
  for (int i = 0; i < k; i++) add_own(rules, 1, sheaf_shard(i), S0, sheaf_shard(i), R);
}

static void lookup_backward_rules(const sheaf_shard_problem *p, rule_list *rules)
{
  int k = p->index_rank;
  add(rules, R, R, R, R);
  add(rules, S1, sheaf_shard(k), R, R);
  for (int i = 0; i < k; i++) add(rules, SUM, sheaf_shard(i), sheaf_shard(i), R);
  add(rules, SUM, SUM, R, R);
  add_own(rules, 0, S0, R, R, R); /* row: each rank keeps its rows' gradient, nothing moves */
  for (int i = 0; i < k; i++) add_own(rules, 1, S0, sheaf_shard(i), sheaf_shard(i), R);
}

static void bag_rules(const sheaf_shard_problem *p, rule_list *rules)
{
  sheaf_placement partial = sheaf_partial(p->kind == SHEAF_BAG_MAX ? SHEAF_PARTIAL_MAX : SHEAF_PARTIAL_SUM);
  sheaf_placement bags = p->bag_form == SHEAF_BAGS_MATRIX ? S0 : B;
  add(rules, R, R, R, R);
  add(rules, S1, S1, R, R);
  add(rules, partial, S0, R, R);
  add(rules, S0, R, bags, S0);
  add_own(rules, 1, S0, S0, bags, S0);
}

static void bag_backward_rules(const sheaf_shard_problem *p, rule_list *rules)
{
  sheaf_placement bags = p->bag_form == SHEAF_BAGS_MATRIX ? S0 : B;
  add(rules, R, R, R, R);
  add(rules, S1, S1, R, R);
  add(rules, S0, R, R, R);
  add(rules, SUM, S0, bags, S0);
  add(rules, SUM, SUM, R, R);
  add_own(rules, 1, S0, S0, bags, S0);
}

static void max_backward_rules(rule_list *rules)
{
  add(rules, R, R, R, R);
  add(rules, S1, S1, S1, R);
  add(rules, S0, R, R, R);
  add(rules, SUM, S0, S0, R);
  add(rules, SUM, SUM, R, R);
  add_own(rules, 1, S0, S0, S0, R);
}

/* Rows lie on several ranks: the partial result of a reduction. */
static sheaf_partial_op segment_partial(uint16_t kind)
{
  switch (kind) {
  case SHEAF_SEGMENT_MAX:
  case SHEAF_UNSORTED_SEGMENT_MAX:
    return SHEAF_PARTIAL_MAX;
  case SHEAF_SEGMENT_MIN:
  case SHEAF_UNSORTED_SEGMENT_MIN:
    return SHEAF_PARTIAL_MIN;
  case SHEAF_SEGMENT_PROD:
  case SHEAF_UNSORTED_SEGMENT_PROD:
    return SHEAF_PARTIAL_PROD;
  default:
    return SHEAF_PARTIAL_SUM;
  }
}

int shf_segment_is_backward(uint16_t kind)
{
  return strstr(sheaf_kind_name(SHEAF_CATEGORY_SEGMENT, kind), "_backward") != NULL;
}

static void segment_rules(const sheaf_shard_problem *p, rule_list *rules)
{
  add(rules, R, R, R, R);
  add(rules, S1, S1, R, R);
  if (shf_segment_is_backward(p->kind))
    add(rules, S0, R, S0, R);
  else
    add(rules, sheaf_partial(segment_partial(p->kind)), S0, S0, R);
}

static rule_list rules_of(const sheaf_shard_problem *p, int compatible)
{
  rule_list rules = {0};
  if (p->category == SHEAF_CATEGORY_SEGMENT)
    segment_rules(p, &rules);
  else if (p->kind == SHEAF_LOOKUP)
    lookup_rules(p, &rules);
  else if (p->kind == SHEAF_LOOKUP_BACKWARD)
    lookup_backward_rules(p, &rules);
  else if (p->kind == SHEAF_BAG_MAX_BACKWARD)
    max_backward_rules(&rules);
  else if (p->kind == SHEAF_BAG_SUM_BACKWARD || p->kind == SHEAF_BAG_MEAN_BACKWARD)
    bag_backward_rules(p, &rules);
  else
    bag_rules(p, &rules);
  while (compatible && rules.at[rules.count - 1].addition) rules.count--; /* additions come last */
  return rules;
}

/* ---- Shapes ----------------------------------------------------------------------------------------------------- */

static shf_operand_shape matrix_shape(int64_t rows, int64_t columns, int64_t cell)
{
  return (shf_operand_shape){.rank = 2, .shape = {rows, columns}, .cell = cell};
}

sheaf_status shf_shard_shapes_of(const sheaf_shard_problem *p, shf_shard_shapes *shapes)
{
  SHF_REQUIRE(p->mesh, INVALID_PROBLEM, "mesh is NULL");
  SHF_REQUIRE(sheaf_kind_name(p->category, p->kind), INVALID_PROBLEM, "category %d has no kind %d", (int)p->category,
              (int)p->kind);
  int packed = p->dtype == SHEAF_INT8 || p->dtype == SHEAF_INT4; /* rows of bytes, values of f32 at most */
  int64_t cell = packed ? 4 : sheaf_dtype_row_bytes(p->dtype, 1), index_cell = sheaf_dtype_row_bytes(p->index_dtype, 1);
  SHF_REQUIRE(cell > 0 && index_cell > 0, INVALID_PROBLEM, "dtype and index_dtype must be set");
  SHF_REQUIRE(p->index_rank >= 0 && p->index_rank < MAX_RANK, INVALID_PROBLEM,
              "indices have 0 to %d dimensions, not %d", MAX_RANK - 1, p->index_rank);
  SHF_REQUIRE(p->rows >= 0 && p->dim >= 0 && p->bags >= 0, INVALID_PROBLEM, "an extent is negative");
  shf_operand_shape index = {.rank = p->index_rank, .cell = index_cell}, entries;
  for (int d = 0; d < p->index_rank; d++) {
    SHF_REQUIRE(p->index_shape[d] >= 0, INVALID_PROBLEM, "dimension %d of the indices is %lld", d,
                (long long)p->index_shape[d]);
    index.shape[d] = p->index_shape[d];
  }
  entries = index; /* one row per index */
  entries.shape[entries.rank++] = p->dim;
  entries.cell = cell;
  shf_operand_shape table = matrix_shape(p->rows, p->dim, cell);
  if (packed) table = matrix_shape(p->rows, sheaf_dtype_row_bytes(p->dtype, p->dim), 1);
  shf_operand_shape bags = matrix_shape(p->bags, p->dim, cell);
  shf_operand_shape offsets = {.rank = 1, .shape = {p->bags}, .cell = index_cell},
                    arg = matrix_shape(p->bags, p->dim, index_cell);
  int backward = p->category == SHEAF_CATEGORY_SEGMENT
                     ? shf_segment_is_backward(p->kind)
                     : p->kind == SHEAF_LOOKUP_BACKWARD || p->kind == SHEAF_BAG_SUM_BACKWARD ||
                           p->kind == SHEAF_BAG_MEAN_BACKWARD || p->kind == SHEAF_BAG_MAX_BACKWARD;
  SHF_REQUIRE(!packed || (p->category == SHEAF_CATEGORY_EMBEDDING && !backward && table.shape[1] >= 0), UNSUPPORTED,
              "tables of type %s are for forward lookups and bags", sheaf_dtype_name(p->dtype));
  *shapes = (shf_shard_shapes){.inputs = 2};
  shf_operand_shape wide = p->category == SHEAF_CATEGORY_EMBEDDING && p->kind <= SHEAF_LOOKUP_BACKWARD ? entries : bags;
  shapes->in[0] = backward ? wide : table;
  shapes->out = backward ? table : wide;
  shapes->in[1] = index;
  if (p->category == SHEAF_CATEGORY_SEGMENT) {
    SHF_REQUIRE(p->index_rank == 1 && p->index_shape[0] == p->rows, INVALID_PROBLEM,
                "ids have %lld entries for %lld rows", (long long)p->index_shape[0], (long long)p->rows);
  } else if (p->kind == SHEAF_BAG_MAX_BACKWARD) {
    shapes->in[1] = arg;
  } else if (p->kind > SHEAF_LOOKUP_BACKWARD) {
    int matrix = p->bag_form == SHEAF_BAGS_MATRIX;
    SHF_REQUIRE(p->index_rank == (matrix ? 2 : 1), INVALID_PROBLEM,
                "indices of bags in this form have %d dimensions, not %d", matrix ? 2 : 1, p->index_rank);
    shapes->inputs = matrix ? 2 : 3;
    shapes->in[2] = offsets;
  }
  return SHEAF_OK;
}

/* ---- The product over the mesh ---------------------------------------------------------------------------------- */

struct sheaf_strategy_list {
  int64_t count, room;
  sheaf_strategy *at;
};

enum { MAX_STRATEGIES = 1 << 17 };

/* Whether an input has an element for every rank that shall have a part of it. */
static int can_be_cut(const sheaf_mesh *mesh, const shf_operand_shape *shape, const sheaf_placement *placements)
{
  for (int d = 0; d < shape->rank; d++) {
    int64_t parts = 1;
    for (int m = 0; m < mesh->dims; m++)
      if (placements[m].kind == SHEAF_PLACE_SHARD && placements[m].dim == d) parts *= mesh->size[m];
    if (parts > 1 && shape->shape[d] < parts) return 0;
  }
  return 1;
}

static int mixes_partials(const sheaf_mesh *mesh, const sheaf_placement *placements)
{
  const sheaf_placement *first = NULL;
  for (int m = 0; m < mesh->dims; m++) {
    if (!shf_is_partial(&placements[m])) continue;
    if (first && !sheaf_placement_equal(first, &placements[m])) return 1;
    first = &placements[m];
  }
  return 0;
}

/* A packed row is one piece: its scale belongs to all of it. */
static int cuts_packed_rows(const sheaf_shard_problem *p, const sheaf_strategy *s)
{
  if (p->dtype != SHEAF_INT8 && p->dtype != SHEAF_INT4) return 0;
  for (int m = 0; m < p->mesh->dims; m++)
    if (s->in[0][m].kind == SHEAF_PLACE_SHARD && s->in[0][m].dim == 1) return 1;
  return 0;
}

static int acceptable(const sheaf_shard_problem *p, const shf_shard_shapes *shapes, const sheaf_strategy *s,
                      int compatible)
{
  if (cuts_packed_rows(p, s)) return 0;
  if (mixes_partials(p->mesh, s->out)) return 0;
  for (int j = 0; j < s->inputs; j++) {
    if (mixes_partials(p->mesh, s->in[j])) return 0;
    int lies_so = !compatible && shf_placements_equal(p->mesh, s->in[j], p->in[j]);
    if (!lies_so && !can_be_cut(p->mesh, &shapes->in[j], s->in[j])) return 0;
  }
  return 1;
}

static sheaf_strategy combine(const sheaf_mesh *mesh, const shf_shard_shapes *shapes, const rule_list *rules,
                              int64_t number)
{
  sheaf_strategy s = {.inputs = shapes->inputs};
  for (int m = mesh->dims - 1; m >= 0; m--) {
    const rule *r = &rules->at[number % rules->count];
    number /= rules->count;
    s.out[m] = r->out;
    for (int j = 0; j < shapes->inputs; j++) s.in[j][m] = r->in[j];
    s.addition |= (uint8_t)r->addition;
    if (r->dispatch) s.dispatch |= (uint8_t)(1 << m);
  }
  return s;
}

sheaf_status sheaf_strategies(const sheaf_shard_problem *problem, int compatible, const sheaf_mesh_profile *profile,
                              sheaf_strategy_list **list)
{
  SHF_REQUIRE(list, INVALID_PROBLEM, "list is NULL");
  *list = NULL;
  SHF_TRY(shf_shard_check_struct(problem, sizeof *problem, "problem"));
  if (profile) SHF_TRY(shf_shard_check_struct(profile, sizeof *profile, "profile"));
  static const char *const inputs[] = {"input 0", "input 1", "input 2"};
  shf_shard_shapes shapes = {0};
  SHF_TRY(shf_shard_shapes_of(problem, &shapes));
  const sheaf_mesh *mesh = problem->mesh;
  for (int j = 0; j < shapes.inputs && j < MAX_INPUTS; j++)
    SHF_TRY(shf_placements_check(mesh, problem->in[j], shapes.in[j].rank, inputs[j]));
  if (problem->out_wanted) SHF_TRY(shf_placements_check(mesh, problem->out, shapes.out.rank, "out"));

  rule_list rules = rules_of(problem, compatible);
  int64_t total = 1;
  for (int m = 0; m < mesh->dims; m++) total *= rules.count;
  SHF_REQUIRE(total <= MAX_STRATEGIES, UNSUPPORTED,
              "%d ways along each of %d mesh dimensions are %lld strategies; %d at most", rules.count, mesh->dims,
              (long long)total, MAX_STRATEGIES);
  sheaf_strategy_list *made = shf_core_alloc(sizeof *made);
  sheaf_strategy *at = shf_core_alloc((size_t)total * sizeof *at);
  if (!made || !at) {
    if (made) shf_core_free(made, sizeof *made);
    if (at) shf_core_free(at, (size_t)total * sizeof *at);
    return shf_core_no_memory("a list of strategies", (size_t)total * sizeof *at);
  }
  *made = (sheaf_strategy_list){.room = total, .at = at};
  for (int64_t number = 0; number < total; number++) {
    sheaf_strategy s = combine(mesh, &shapes, &rules, number);
    if (!acceptable(problem, &shapes, &s, compatible)) continue;
    for (int j = 0; j < s.inputs; j++)
      s.compatible_cost[j] = sheaf_compatible_cost(mesh, shapes.in[j].rank, shapes.in[j].shape, shapes.in[j].cell,
                                                   problem->in[j], s.in[j]);
    if (!compatible) shf_shard_estimate(problem, &shapes, profile, &s);
    made->at[made->count++] = s;
  }
  *list = made;
  return SHEAF_OK;
}

int64_t sheaf_strategy_count(const sheaf_strategy_list *list) { return list ? list->count : 0; }

const sheaf_strategy *sheaf_strategy_at(const sheaf_strategy_list *list, int64_t position)
{
  return list && position >= 0 && position < list->count ? &list->at[position] : NULL;
}

void sheaf_strategy_list_free(sheaf_strategy_list *list)
{
  if (!list) return;
  shf_core_free(list->at, (size_t)list->room * sizeof *list->at);
  shf_core_free(list, sizeof *list);
}
