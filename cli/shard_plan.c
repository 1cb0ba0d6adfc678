/* cli/shard_plan.c: `sheaf shard plan`: the ways to compute an op on a mesh, and the choice. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_impl.h"
#include "json_out.h"
#include "shard_cli.h"

static const char command[] = "shard plan";

typedef struct request {
  const char *mesh, *table, *indices, *op, *bags, *segments, *out, *memory, *profile;
  cli_texts in;
  int all, json;
} request;

/* "1e9x128:f16" into extents and a type, one of `types`, which keeps its default when none is written. */
static int read_typed(const char *text, int64_t *extents, int room, const sheaf_dtype *types, sheaf_dtype *dtype)
{
  char shape[128];
  size_t length = strcspn(text, ":");
  if (length >= sizeof shape) return 0;
  memcpy(shape, text, length);
  shape[length] = 0;
  if (text[length] == ':') {
    *dtype = SHEAF_DTYPE_NONE;
    for (; *types; types++)
      if (strcmp(text + length + 1, sheaf_dtype_name(*types)) == 0) *dtype = *types;
    if (*dtype == SHEAF_DTYPE_NONE) return 0;
  }
  return shard_read_extents(shape, extents, room);
}

static int find_op(const char *name, sheaf_shard_problem *p)
{
  for (int category = 0; category < 2; category++)
    for (uint16_t kind = 0; sheaf_kind_name((sheaf_category)category, kind); kind++) {
      if (strcmp(name, sheaf_kind_name((sheaf_category)category, kind)) != 0) continue;
      p->category = (sheaf_category)category;
      p->kind = kind;
      return 1;
    }
  return 0;
}

/* The position of an input by the names it goes by; -1: none. */
static int find_input(const char *name, size_t length)
{
  static const struct {
    const char *name;
    int input;
  } names[] = {{"W", 0},   {"table", 0},   {"x", 0},   {"data", 0}, {"g", 0},      {"grad_out", 0},
               {"idx", 1}, {"indices", 1}, {"ids", 1}, {"arg", 1},  {"offsets", 2}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strlen(names[i].name) == length && memcmp(names[i].name, name, length) == 0) return names[i].input;
  return -1;
}

static int read_inputs(const request *r, int dims, sheaf_shard_problem *p)
{
  for (int i = 0; i < r->in.count; i++) {
    const char *text = r->in.at[i], *equals = strchr(text, '=');
    int input = equals ? find_input(text, (size_t)(equals - text)) : -1;
    if (input < 0 || !shard_read_placements(equals + 1, p->in[input], dims))
      return cli_misused(command, "--in takes NAME=PLACEMENTS with %d placements, not '%s'", dims, text);
    for (int m = 0; m < dims; m++) {
      if (p->in[input][m].kind != SHEAF_PLACE_MASK_PARTIAL) continue;
      p->in[input][m].offset_shape[0] = p->rows;
      p->in[input][m].offset_shape[1] = p->dim;
    }
  }
  if (r->out && !shard_read_placements(r->out, p->out, dims))
    return cli_misused(command, "--out takes %d placements, not '%s'", dims, r->out);
  p->out_wanted = r->out != NULL;
  return CLI_GO_ON;
}

static int read_extents_of_op(const request *r, sheaf_shard_problem *p)
{
  static const sheaf_dtype values[] = {SHEAF_F32,  SHEAF_F64,  SHEAF_F16,       SHEAF_BF16,
                                       SHEAF_INT8, SHEAF_INT4, SHEAF_DTYPE_NONE},
                           indices[] = {SHEAF_I64, SHEAF_I32, SHEAF_DTYPE_NONE};
  int64_t table[2], number = 0;
  if (read_typed(r->table, table, 2, values, &p->dtype) != 2)
    return cli_misused(command, "--table takes ROWSxCOLUMNS[:TYPE], not '%s'", r->table);
  p->rows = table[0];
  p->dim = table[1];
  if (r->indices) {
    p->index_rank = read_typed(r->indices, p->index_shape, SHEAF_SHARD_MAX_RANK - 1, indices, &p->index_dtype);
    if (p->index_rank == 0) return cli_misused(command, "--indices takes a shape, not '%s'", r->indices);
  }
  const char *groups = p->category == SHEAF_CATEGORY_SEGMENT ? r->segments : r->bags;
  if (groups && shard_read_extents(groups, &number, 1) != 1)
    return cli_misused(command, "'%s' is no number of bags or segments", groups);
  p->bags = number;
  if (p->category == SHEAF_CATEGORY_SEGMENT) {
    p->index_rank = 1;
    p->index_shape[0] = p->rows;
    if (!groups) return cli_misused(command, "a segment op needs --segments");
  } else if (!r->indices) {
    return cli_misused(command, "no --indices are given");
  } else if (p->kind >= SHEAF_BAG_SUM && !groups) {
    p->bag_form = SHEAF_BAGS_MATRIX;
    p->bags = p->index_shape[0];
    if (p->index_rank != 2) return cli_misused(command, "bags need --indices BAGSxLENGTH, or --bags");
  }
  return CLI_GO_ON;
}

/* ---- Printing ---------------------------------------------------------------------------------------------------- */

static const sheaf_strategy_list *sorted_list;

static int by_time(const void *a, const void *b)
{
  int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
  const sheaf_strategy *x = sheaf_strategy_at(sorted_list, left), *y = sheaf_strategy_at(sorted_list, right);
  if ((x->bytes_table > 0) != (y->bytes_table > 0)) return x->bytes_table > 0 ? 1 : -1;
  if (x->microseconds != y->microseconds) return x->microseconds < y->microseconds ? -1 : 1;
  if (x->bytes_memory != y->bytes_memory) return x->bytes_memory < y->bytes_memory ? -1 : 1;
  return left < right ? -1 : left > right;
}

static const char *print_bytes(double bytes, char text[16])
{
  static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  int unit = 0;
  while (bytes >= 1000 && unit < 5) bytes /= 1000, unit++;
  snprintf(text, 16, unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
  return text;
}

static void print_strategy(const sheaf_strategy *s, int dims, int chosen)
{
  char moved[16], memory[16], text[SHARD_TEXT];
  printf("%s%s %12.1f  %11s  %11s  [%s] <-", chosen ? "*" : " ", s->addition ? "+" : " ", s->microseconds,
         print_bytes(s->bytes_moved, moved), print_bytes(s->bytes_memory, memory),
         shard_print_placements(s->out, dims, text));
  for (int j = 0; j < s->inputs; j++) printf(" [%s]", shard_print_placements(s->in[j], dims, text));
  puts(s->dispatch ? "  dispatch" : "");
}

static json_t *json_placements(const sheaf_placement *placements, int dims)
{
  json_t *list = json_array();
  for (int m = 0; m < dims; m++) {
    char text[16];
    sheaf_placement_print(&placements[m], text, sizeof text);
    json_array_append_new(list, json_string(text));
  }
  return list;
}

static json_t *json_strategy(const sheaf_strategy *s, int dims, int chosen)
{
  json_t *in = json_array();
  for (int j = 0; j < s->inputs; j++) json_array_append_new(in, json_placements(s->in[j], dims));
  return json_pack("{s:o, s:o, s:f, s:f, s:f, s:b, s:b, s:b}", "out", json_placements(s->out, dims), "in", in,
                   "microseconds", s->microseconds, "bytes_moved", s->bytes_moved, "bytes_memory", s->bytes_memory,
                   "addition", s->addition, "dispatch", s->dispatch != 0, "chosen", chosen);
}

static int print_list(const request *r, const sheaf_strategy_list *list, int dims, int64_t chosen, const char *reason)
{
  int64_t count = sheaf_strategy_count(list), shown = r->all || count < 20 ? count : 20;
  int64_t *order = malloc((size_t)(count ? count : 1) * sizeof *order);
  if (!order) {
    cli_complain(command, "out of memory");
    return CLI_FAILED;
  }
  for (int64_t i = 0; i < count; i++) order[i] = i;
  sorted_list = list;
  qsort(order, (size_t)count, sizeof *order, by_time);
  int code = CLI_OK;
  if (r->json) {
    json_t *candidates = json_array();
    for (int64_t i = 0; i < shown; i++)
      json_array_append_new(candidates, json_strategy(sheaf_strategy_at(list, order[i]), dims, order[i] == chosen));
    code = cli_print_json(
        command, json_pack("{s:I, s:o, s:s}", "count", (json_int_t)count, "candidates", candidates, "reason", reason));
  } else {
    printf("      time, us        moved       memory  output <- inputs\n");
    for (int64_t i = 0; i < shown; i++) print_strategy(sheaf_strategy_at(list, order[i]), dims, order[i] == chosen);
    if (shown < count) printf("... and %lld more (--all)\n", (long long)(count - shown));
    printf("chosen (*): %s\n", reason);
  }
  free(order);
  return code;
}

static int plan_request(const request *r, sheaf_mesh *mesh, const sheaf_mesh_profile *profile)
{
  sheaf_shard_problem p = SHEAF_SHARD_PROBLEM_INIT;
  p.mesh = mesh;
  p.dtype = SHEAF_F32;
  p.index_dtype = SHEAF_I64;
  if (!find_op(r->op ? r->op : "lookup", &p)) return cli_misused(command, "'%s' is no op", r->op);
  int code = read_extents_of_op(r, &p), dims = sheaf_mesh_dims(mesh);
  if (code == CLI_GO_ON) code = read_inputs(r, dims, &p);
  if (code != CLI_GO_ON) return code;
  sheaf_strategy_list *list = NULL;
  int64_t chosen = -1;
  char reason[256];
  code = CLI_FAILED;
  if (sheaf_strategies(&p, 0, profile, &list) != SHEAF_OK ||
      sheaf_strategy_choose(list, profile, &chosen, reason, sizeof reason) != SHEAF_OK)
    cli_complain(command, "%s", sheaf_last_error());
  else
    code = print_list(r, list, dims, chosen, reason);
  sheaf_strategy_list_free(list);
  return code;
}

int shard_plan(int argc, char **argv)
{
  request r = {0};
  const cli_option options[] = {
      {"--mesh", CLI_TEXT, &r.mesh},       {"--table", CLI_TEXT, &r.table}, {"--indices", CLI_TEXT, &r.indices},
      {"--op", CLI_TEXT, &r.op},           {"--bags", CLI_TEXT, &r.bags},   {"--segments", CLI_TEXT, &r.segments},
      {"--in", CLI_TEXTS, &r.in},          {"--out", CLI_TEXT, &r.out},     {"--memory", CLI_TEXT, &r.memory},
      {"--profile", CLI_TEXT, &r.profile}, {"--all", CLI_FLAG, &r.all},     {"--json", CLI_FLAG, &r.json}};
  const cli_syntax syntax = {command, options, sizeof options / sizeof *options, NULL, 0};
  int code = cli_parse(&syntax, argc, argv);
  if (code != CLI_GO_ON) return code;
  if (!r.mesh || !r.table) return cli_misused(command, "no --%s is given", r.mesh ? "table" : "mesh");
  int64_t sizes[SHEAF_MESH_MAX_DIMS], limit = 0;
  int dims = shard_read_extents(r.mesh, sizes, SHEAF_MESH_MAX_DIMS);
  sheaf_mesh *mesh = NULL;
  if (dims == 0 || sheaf_mesh_create(sizes, dims, NULL, &mesh) != SHEAF_OK)
    return cli_misused(command, "--mesh takes 1 to %d sizes such as 2x4, not '%s'", SHEAF_MESH_MAX_DIMS, r.mesh);
  sheaf_mesh_profile profile = SHEAF_MESH_PROFILE_INIT;
  if (r.profile && !shard_read_profile(r.profile, &profile))
    code = CLI_FAILED;
  else if (r.memory && shard_read_extents(r.memory, &limit, 1) != 1)
    code = cli_misused(command, "--memory takes a number of bytes, not '%s'", r.memory);
  profile.memory_limit = (double)limit;
  if (code == CLI_GO_ON) code = plan_request(&r, mesh, &profile);
  sheaf_mesh_free(mesh);
  return code;
}
