/* shard/placement.c: placements: made, compared, printed, read, checked; what a rank has under them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/shard_impl.h"

static const char *const op_names[] = {"sum", "max", "min", "prod"};

sheaf_placement sheaf_replicate(void) { return (sheaf_placement){.kind = SHEAF_PLACE_REPLICATE}; }
sheaf_placement sheaf_shard(int dim) { return (sheaf_placement){.kind = SHEAF_PLACE_SHARD, .dim = dim}; }

sheaf_placement sheaf_partial(sheaf_partial_op op) { return (sheaf_placement){.kind = SHEAF_PLACE_PARTIAL, .op = op}; }

int sheaf_placement_equal(const sheaf_placement *a, const sheaf_placement *b)
{
  if (!a || !b || a->kind != b->kind) return 0;
  switch (a->kind) {
  case SHEAF_PLACE_SHARD:
    return a->dim == b->dim;
  case SHEAF_PLACE_PARTIAL:
    return a->op == b->op;
  case SHEAF_PLACE_MASK_PARTIAL:
    return a->dim == b->dim && a->offset_shape[0] == b->offset_shape[0] && a->offset_shape[1] == b->offset_shape[1];
  default:
    return 1;
  }
}

int shf_placements_equal(const sheaf_mesh *mesh, const sheaf_placement *a, const sheaf_placement *b)
{
  for (int m = 0; m < mesh->dims; m++)
    if (!sheaf_placement_equal(&a[m], &b[m])) return 0;
  return 1;
}

size_t sheaf_placement_print(const sheaf_placement *placement, char *text, size_t room)
{
  int length;
  switch (placement->kind) {
  case SHEAF_PLACE_REPLICATE:
    length = snprintf(text, room, "R");
    break;
  case SHEAF_PLACE_SHARD:
    length = snprintf(text, room, "S(%d)", (int)placement->dim);
    break;
  case SHEAF_PLACE_PARTIAL:
    length = snprintf(text, room, "P(%s)", (unsigned)placement->op < 4 ? op_names[placement->op] : "?");
    break;
  case SHEAF_PLACE_MASK_PARTIAL:
    length = snprintf(text, room, "MaskP");
    break;
  case SHEAF_PLACE_BAGS:
    length = snprintf(text, room, "B");
    break;
  default:
    length = snprintf(text, room, "?");
  }
  return (size_t)length;
}

/* "S(12)" or "S12". */
static int parse_shard(const char *text, sheaf_placement *placement)
{
  int parenthesis = text[1] == '(';
  const char *digits = text + 1 + parenthesis;
  if (*digits < '0' || *digits > '9') return 0;
  char *end;
  long dim = strtol(digits, &end, 10);
  if (dim >= MAX_RANK || (parenthesis && *end++ != ')') || *end) return 0;
  *placement = sheaf_shard((int)dim);
  return 1;
}

sheaf_status sheaf_placement_parse(const char *text, sheaf_placement *placement)
{
  SHF_REQUIRE(text && placement, INVALID_PROBLEM, "%s is NULL", text ? "placement" : "text");
  *placement = sheaf_replicate();
  if (strcmp(text, "R") == 0) return SHEAF_OK;
  if (text[0] == 'S' && parse_shard(text, placement)) return SHEAF_OK;
  for (int op = 0; op < 4; op++) {
    char name[16];
    snprintf(name, sizeof name, "P(%s)", op_names[op]);
    if (strcmp(text, name) != 0) continue;
    *placement = sheaf_partial((sheaf_partial_op)op);
    return SHEAF_OK;
  }
  if (strcmp(text, "MaskP") == 0)
    placement->kind = SHEAF_PLACE_MASK_PARTIAL;
  else if (strcmp(text, "B") == 0)
    placement->kind = SHEAF_PLACE_BAGS;
  else
    return shf_core_fail(SHEAF_INVALID_PROBLEM,
                         "'%.40s' is no placement: R, S(dim), P(sum), P(max), P(min), P(prod), MaskP or B", text);
  return SHEAF_OK;
}

char *shf_placements_text(const sheaf_mesh *mesh, const sheaf_placement *placements, char text[PLACEMENTS_TEXT])
{
  size_t at = 0;
  text[0] = 0;
  for (int m = 0; m < mesh->dims && at + 2 < PLACEMENTS_TEXT; m++) {
    if (m) at += (size_t)snprintf(text + at, PLACEMENTS_TEXT - at, ", ");
    if (at < PLACEMENTS_TEXT) at += sheaf_placement_print(&placements[m], text + at, PLACEMENTS_TEXT - at);
  }
  return text;
}

sheaf_status shf_placements_check(const sheaf_mesh *mesh, const sheaf_placement *placements, int tensor_rank,
                                  const char *what)
{
  const sheaf_placement *partial = NULL;
  for (int m = 0; m < mesh->dims; m++) {
    const sheaf_placement *p = &placements[m];
    SHF_REQUIRE((unsigned)p->kind <= SHEAF_PLACE_BAGS, INVALID_PROBLEM, "%s: %d is no kind of placement", what,
                (int)p->kind);
    SHF_REQUIRE(!shf_is_shard(p) || (shf_shard_dim(p) >= 0 && shf_shard_dim(p) < tensor_rank), INVALID_PROBLEM,
                "%s: S(%d) along mesh dimension %d, but it has %d dimensions", what, shf_shard_dim(p), m, tensor_rank);
    if (!shf_is_partial(p)) continue;
    SHF_REQUIRE((unsigned)p->op <= SHEAF_PARTIAL_PROD, INVALID_PROBLEM, "%s: %d is no partial op", what, (int)p->op);
    SHF_REQUIRE(!partial || sheaf_placement_equal(partial, p), INVALID_PROBLEM, "%s: two kinds of Partial at once",
                what);
    partial = p;
  }
  return SHEAF_OK;
}

sheaf_status sheaf_local_shape(const sheaf_mesh *mesh, const sheaf_placement *placements, int rank_of_tensor,
                               const int64_t *shape, int64_t rank, int64_t *local_shape, int64_t *offset)
{
  SHF_REQUIRE(mesh && placements && (shape || rank_of_tensor == 0), INVALID_PROBLEM, "%s is NULL",
              mesh ? placements ? "shape" : "placements" : "mesh");
  SHF_REQUIRE(rank_of_tensor >= 0 && rank_of_tensor <= MAX_RANK, INVALID_PROBLEM,
              "a tensor has 0 to %d dimensions, not %d", MAX_RANK, rank_of_tensor);
  SHF_REQUIRE(rank >= 0 && rank < mesh->ranks, INVALID_PROBLEM, "rank %lld is outside 0..%lld", (long long)rank,
              (long long)mesh->ranks - 1);
  for (int d = 0; d < rank_of_tensor; d++)
    SHF_REQUIRE(shape[d] >= 0, INVALID_PROBLEM, "dimension %d of the tensor is %lld", d, (long long)shape[d]);
  for (int m = 0; m < mesh->dims; m++)
    SHF_REQUIRE(placements[m].kind != SHEAF_PLACE_BAGS, INVALID_PROBLEM,
                "what a rank has under Bags depends on the offsets");
  SHF_TRY(shf_placements_check(mesh, placements, rank_of_tensor, "placements"));
  shf_box box = shf_shard_box(mesh, placements, rank_of_tensor, shape, rank);
  for (int d = 0; d < rank_of_tensor; d++) {
    if (local_shape) local_shape[d] = box.hi[d] - box.lo[d];
    if (offset) offset[d] = box.lo[d];
  }
  return SHEAF_OK;
}
