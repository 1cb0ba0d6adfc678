/* cli/shard_verify.c: `sheaf shard verify`: strategies, their order and their compatible costs against a file.
 *
 * The file is {"cases": [{"op", "mesh", "shapes", "in", "strategies": [{"out", "in", "cost"}]}]}: placements are lists
 * of words, one per mesh dimension; a cost is a list of one number (null: infinite) per input. A case may also have
 * "dtypes", of values and indices; f32 and i64 without. */
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_impl.h"
#include "json_out.h"
#include "shard_cli.h"

/* Costs are printed with six digits behind the point; large ones have no more digits than a double. */
static double tolerance_of(double cost) { return 1e-6 + 1e-12 * fabs(cost); }

typedef struct verdict {
  char text[256];
} verdict;

static int differ(verdict *v, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int differ(verdict *v, const char *format, ...)
{
  va_list values;
  va_start(values, format);
  vsnprintf(v->text, sizeof v->text, format, values);
  va_end(values);
  return 0;
}

/* ---- Types ------------------------------------------------------------------------------------------------------- */

/* A type by Sheaf's name or PyTorch's ("torch.float16"); NONE for anything else. */
static sheaf_dtype read_type(const json_t *name)
{
  static const struct {
    const char *name;
    sheaf_dtype dtype;
  } others[] = {{"float32", SHEAF_F32},   {"float64", SHEAF_F64}, {"float16", SHEAF_F16},
                {"bfloat16", SHEAF_BF16}, {"int32", SHEAF_I32},   {"int64", SHEAF_I64}};
  const char *text = json_string_value(name);
  if (!text) return SHEAF_DTYPE_NONE;
  if (strncmp(text, "torch.", 6) == 0) text += 6;
  for (int d = SHEAF_F32; d <= SHEAF_I64; d++)
    if (strcmp(text, sheaf_dtype_name((sheaf_dtype)d)) == 0) return (sheaf_dtype)d;
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (strcmp(text, others[i].name) == 0) return others[i].dtype;
  return SHEAF_DTYPE_NONE;
}

static int is_index(sheaf_dtype dtype) { return dtype == SHEAF_I32 || dtype == SHEAF_I64; }

/* "dtypes": [of values, of indices], when a case has them; else f32 and i64. */
static int read_types(const json_t *root, sheaf_shard_problem *p, verdict *v)
{
  const json_t *types = json_object_get(root, "dtypes");
  p->dtype = types ? read_type(json_array_get(types, 0)) : SHEAF_F32;
  p->index_dtype = types ? read_type(json_array_get(types, 1)) : SHEAF_I64;
  if (p->dtype == SHEAF_DTYPE_NONE || is_index(p->dtype) || !is_index(p->index_dtype))
    return differ(v, "dtypes is no list of a type of values and one of indices");
  return 1;
}

/* ---- Reading a case ---------------------------------------------------------------------------------------------- */

/* Integers of a JSON list; how many, or -1. */
static int read_integers(const json_t *list, int64_t *values, int room)
{
  if (!json_is_array(list) || json_array_size(list) > (size_t)room) return -1;
  int count = (int)json_array_size(list);
  for (int i = 0; i < count; i++) {
    const json_t *item = json_array_get(list, (size_t)i);
    if (!json_is_integer(item)) return -1;
    values[i] = json_integer_value(item);
  }
  return count;
}

static int read_placements(const json_t *list, int dims, const sheaf_shard_problem *p, sheaf_placement *placements)
{
  if (json_array_size(list) != (size_t)dims) return 0;
  for (int m = 0; m < dims; m++) {
    const char *word = json_string_value(json_array_get(list, (size_t)m));
    if (!word || sheaf_placement_parse(word, &placements[m]) != SHEAF_OK) return 0;
    if (placements[m].kind != SHEAF_PLACE_MASK_PARTIAL) continue;
    placements[m].offset_shape[0] = p->rows; /* the file has one table a case */
    placements[m].offset_shape[1] = p->dim;
  }
  return 1;
}

static int read_problem(const json_t *root, sheaf_shard_problem *p, verdict *v)
{
  int64_t first[SHEAF_SHARD_MAX_RANK];
  const char *op = json_string_value(json_object_get(root, "op"));
  const json_t *shapes = json_object_get(root, "shapes"), *in = json_object_get(root, "in");
  if (!op) return differ(v, "no op");
  if (strcmp(op, "aten.embedding.default") == 0)
    p->kind = SHEAF_LOOKUP;
  else if (strcmp(op, "aten.embedding_dense_backward.default") == 0)
    p->kind = SHEAF_LOOKUP_BACKWARD;
  else {
    int length = strlen(op) < 60 ? (int)strlen(op) : 60; /* never half a character, which JSON could not hold */
    while (length > 0 && ((unsigned char)op[length] & 0xC0) == 0x80) length--;
    return differ(v, "'%.*s' is no op that is known here", length, op);
  }
  int rank = read_integers(json_array_get(shapes, 0), first, SHEAF_SHARD_MAX_RANK);
  p->index_rank = read_integers(json_array_get(shapes, 1), p->index_shape, SHEAF_SHARD_MAX_RANK - 1);
  if (rank < 1 || p->index_rank < 0 || rank != (p->kind == SHEAF_LOOKUP ? 2 : p->index_rank + 1))
    return differ(v, "shapes are not those of the op");
  p->rows = p->kind == SHEAF_LOOKUP ? first[0] : 0; /* a gradient does not say how many rows the table has */
  p->dim = first[rank - 1];
  if (!read_types(root, p, v)) return 0;
  int dims = sheaf_mesh_dims(p->mesh);
  for (int j = 0; j < 2; j++)
    if (!read_placements(json_array_get(in, (size_t)j), dims, p, p->in[j]))
      return differ(v, "in[%d] is no list of placements", j);
  return 1;
}

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

static int same_placements(const sheaf_placement *a, const sheaf_placement *b, int dims)
{
  for (int m = 0; m < dims; m++)
    if (!sheaf_placement_equal(&a[m], &b[m])) return 0;
  return 1;
}

static int same_operand(const json_t *wanted, const sheaf_placement *got, const sheaf_shard_problem *p,
                        const char *name, int64_t number, verdict *v)
{
  int dims = sheaf_mesh_dims(p->mesh);
  sheaf_placement placements[SHEAF_MESH_MAX_DIMS];
  char a[SHARD_TEXT], b[SHARD_TEXT];
  if (!read_placements(wanted, dims, p, placements))
    return differ(v, "strategy %lld: %s is no list of placements", (long long)number, name);
  if (same_placements(placements, got, dims)) return 1;
  return differ(v, "strategy %lld: %s is [%s], expected [%s]", (long long)number, name,
                shard_print_placements(got, dims, a), shard_print_placements(placements, dims, b));
}

static int same_cost(const json_t *wanted, double got, int input, int64_t number, verdict *v)
{
  const json_t *item = json_is_array(wanted) ? json_array_get(wanted, 0) : wanted;
  if (!item || (!json_is_null(item) && !json_is_number(item)))
    return differ(v, "strategy %lld: cost[%d] is no number", (long long)number, input);
  double expected = json_is_null(item) ? INFINITY : json_number_value(item);
  if (isinf(expected) ? isinf(got) : fabs(got - expected) <= tolerance_of(expected)) return 1;
  return differ(v, "strategy %lld: cost of input %d is %.6f, expected %.6f", (long long)number, input, got, expected);
}

static int same_strategies(const json_t *wanted, const sheaf_strategy_list *list, const sheaf_shard_problem *p,
                           verdict *v)
{
  int64_t count = sheaf_strategy_count(list);
  for (int64_t i = 0; i < count && i < (int64_t)json_array_size(wanted); i++) {
    const json_t *w = json_array_get(wanted, (size_t)i), *in = json_object_get(w, "in"),
                 *cost = json_object_get(w, "cost");
    const sheaf_strategy *s = sheaf_strategy_at(list, i);
    if (!same_operand(json_object_get(w, "out"), s->out, p, "out", i, v)) return 0;
    for (int j = 0; j < s->inputs; j++) {
      if (!same_operand(json_array_get(in, (size_t)j), s->in[j], p, j ? "in[1]" : "in[0]", i, v)) return 0;
      if (!same_cost(json_array_get(cost, (size_t)j), s->compatible_cost[j], j, i, v)) return 0;
    }
  }
  if (!json_is_array(wanted)) return differ(v, "no strategies");
  if ((size_t)count == json_array_size(wanted)) return 1;
  return differ(v, "%lld strategies, expected %zu", (long long)count, json_array_size(wanted));
}

static int verify_case(const json_t *root, verdict *v)
{
  int64_t sizes[SHEAF_MESH_MAX_DIMS];
  sheaf_mesh *mesh = NULL;
  sheaf_strategy_list *list = NULL;
  int dims = read_integers(json_object_get(root, "mesh"), sizes, SHEAF_MESH_MAX_DIMS), same = 0;
  if (dims < 1) return differ(v, "mesh is no list of 1 to %d integers", SHEAF_MESH_MAX_DIMS);
  sheaf_shard_problem p = SHEAF_SHARD_PROBLEM_INIT;
  if (sheaf_mesh_create(sizes, dims, NULL, &mesh) != SHEAF_OK) return differ(v, "%s", sheaf_last_error());
  p.mesh = mesh;
  if (read_problem(root, &p, v)) {
    if (sheaf_strategies(&p, 1, NULL, &list) != SHEAF_OK)
      differ(v, "%s", sheaf_last_error());
    else
      same = same_strategies(json_object_get(root, "strategies"), list, &p, v);
  }
  sheaf_strategy_list_free(list);
  sheaf_mesh_free(mesh);
  return same;
}

int shard_verify(int argc, char **argv)
{
  const char *path = NULL;
  int json = 0;
  const cli_option options[] = {{"--json", CLI_FLAG, &json}};
  const cli_syntax syntax = {"shard verify", options, CLI_LENGTH(options), &path, 1};
  int code = cli_parse(&syntax, argc, argv);
  if (code != CLI_GO_ON) return code;
  if (!path) return cli_misused("shard verify", "no file of cases is given");
  json_t *root = cli_read_json("shard verify", path);
  const json_t *cases = json_object_get(root, "cases");
  if (!json_is_array(cases)) {
    if (root) cli_complain("shard verify", "'%s' has no list of cases", path);
    json_decref(root);
    return CLI_FAILED;
  }
  size_t count = json_array_size(cases), failed = 0;
  json_t *failures = json ? json_array() : NULL;
  for (size_t i = 0; i < count; i++) {
    verdict v = {""};
    if (verify_case(json_array_get(cases, i), &v)) continue;
    failed++;
    if (json)
      json_array_append_new(failures, json_pack("{s:I, s:s}", "case", (json_int_t)i, "failure", v.text));
    else
      printf("FAIL case %zu: %s\n", i, v.text);
  }
  json_decref(root);
  if (!json)
    printf("%zu passed, %zu failed\n", count - failed, failed);
  else if (cli_print_json("shard verify", json_array_size(failures) == failed
                                              ? json_pack("{s:I, s:I, s:O}", "passed", (json_int_t)(count - failed),
                                                          "failed", (json_int_t)failed, "failures", failures)
                                              : NULL) != CLI_OK)
    failed++;
  json_decref(failures);
  return failed ? CLI_FAILED : CLI_OK;
}
