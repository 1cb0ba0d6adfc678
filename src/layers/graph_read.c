/* graph_read.c: a graph from its JSON. Nothing in the text is trusted: ids, names and counts are checked. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/graph_impl.h"

/* Reads along a text; after the first fault everything fails. */
typedef struct reader {
  const char *start, *at;
  const char *fault;
} reader;

static int fail_at(reader *r, const char *fault)
{
  if (!r->fault) r->fault = fault;
  return 0;
}

static void skip_blanks(reader *r)
{
  while (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r') r->at++;
}

/* Whether the next character is this one; then it is behind us. */
static int next_is(reader *r, char c)
{
  skip_blanks(r);
  if (r->fault || *r->at != c) return 0;
  r->at++;
  return 1;
}

static int expect(reader *r, char c)
{
  static const char *const faults[128] = {
      ['{'] = "'{' is missing", ['}'] = "'}' is missing",      ['['] = "'[' is missing", [']'] = "']' is missing",
      [':'] = "':' is missing", ['"'] = "a string is missing", [','] = "',' is missing"};
  return next_is(r, c) || fail_at(r, faults[(int)c]);
}

/* A string without escapes other than \" and \\ (names have no others). */
static int read_string(reader *r, char *to, size_t room)
{
  size_t used = 0;
  if (!expect(r, '"')) return 0;
  while (*r->at && *r->at != '"') {
    if (*r->at == '\\' && (r->at[1] == '"' || r->at[1] == '\\')) r->at++;
    if (used + 1 >= room) return fail_at(r, "a name is too long");
    to[used++] = *r->at++;
  }
  to[used] = '\0';
  return expect(r, '"');
}

static int read_integer(reader *r, int64_t *value)
{
  char *end;
  skip_blanks(r);
  if (r->fault) return 0;
  *value = strtoll(r->at, &end, 10);
  if (end == r->at) return fail_at(r, "a whole number is missing");
  r->at = end;
  return 1;
}

/* What strtod takes where the point of this locale, "," or even several bytes, stands in place of ".". */
static void to_locale(const char *from, size_t length, char *to, size_t room)
{
  char half[16];
  snprintf(half, sizeof half, "%.1f", 0.5); /* "0.5" */
  size_t point = strcspn(half + 1, "5"), used = 0;
  for (size_t i = 0; i < length && used + point + 1 < room; i++) {
    if (from[i] == '.')
      memcpy(to + used, half + 1, point), used += point;
    else
      to[used++] = from[i];
  }
  to[used] = '\0';
}

/* Numbers that are not finite are strings, since JSON has none. */
static int read_number(reader *r, double *value)
{
  char text[128], *end, word[8];
  skip_blanks(r);
  if (r->fault) return 0;
  if (*r->at == '"') {
    if (!read_string(r, word, sizeof word)) return 0;
    *value = strcmp(word, "inf") == 0 ? INFINITY : strcmp(word, "-inf") == 0 ? -INFINITY : NAN;
    return isinf(*value) || strcmp(word, "nan") == 0 || fail_at(r, "a number is missing");
  }
  size_t length = strspn(r->at, "+-.0123456789eE");
  if (length > 64) return fail_at(r, "a number is too long");
  to_locale(r->at, length, text, sizeof text);
  *value = strtod(text, &end);
  if (end == text || *end) return fail_at(r, "a number is missing");
  r->at += length;
  return 1;
}

static int read_list(reader *r, int64_t *list, int most, int *count)
{
  *count = 0;
  if (!expect(r, '[')) return 0;
  if (next_is(r, ']')) return 1;
  do {
    if (*count == most) return fail_at(r, "a list is too long");
    if (!read_integer(r, &list[(*count)++])) return 0;
  } while (next_is(r, ','));
  return expect(r, ']');
}

static int read_key(reader *r, char *key, size_t room) { return read_string(r, key, room) && expect(r, ':'); }

static int is_key(const char *key, const char *name) { return strcmp(key, name) == 0; }

static sheaf_dtype dtype_named(const char *name)
{
  for (int d = SHEAF_F32; d <= SHEAF_INT4; d++)
    if (strcmp(sheaf_dtype_name((sheaf_dtype)d), name) == 0) return (sheaf_dtype)d;
  return SHEAF_DTYPE_NONE;
}

/* ---- Parts of a graph ---- */

static sheaf_status read_value(reader *r, sheaf_trace *graph)
{
  shf_value value = {0};
  char key[32], dtype[16];
  int64_t number;
  int32_t id;
  expect(r, '{');
  do {
    if (!read_key(r, key, sizeof key)) break;
    if (is_key(key, "dtype")) {
      if (read_string(r, dtype, sizeof dtype)) value.dtype = dtype_named(dtype);
    } else if (is_key(key, "form")) {
      if (read_integer(r, &number)) value.form = (sheaf_form)(number < 0 || number > SHEAF_FORM_BATCHED ? 0 : number);
    } else if (is_key(key, "shape")) {
      read_list(r, value.extent, SHEAF_TENSOR_MAX_RANK, &value.rank);
    } else {
      fail_at(r, "a value has a key that is not known");
    }
  } while (next_is(r, ','));
  expect(r, '}');
  return r->fault ? SHEAF_OK : shf_graph_add_value(graph, &value, &id);
}

static void read_attr(reader *r, const sheaf_attr_spec *spec, sheaf_attr *attr)
{
  char dtype[16];
  if (spec->type == SHEAF_ATTR_FLOAT)
    read_number(r, &attr->f);
  else if (spec->type == SHEAF_ATTR_INT)
    read_integer(r, &attr->i);
  else if (read_string(r, dtype, sizeof dtype))
    attr->i = dtype_named(dtype);
}

static void read_attrs(reader *r, const sheaf_op_spec *spec, shf_step *step)
{
  char key[64];
  for (int i = 0; i < step->attr_count; i++) step->attrs[i] = spec->attr_specs[i].usual;
  if (!expect(r, '{') || next_is(r, '}')) return;
  do {
    int at = 0;
    if (!read_key(r, key, sizeof key)) return;
    while (at < spec->attrs && !is_key(key, spec->attr_specs[at].name)) at++;
    if (at == spec->attrs) fail_at(r, "an attribute is not one of its op's");
    if (r->fault) return;
    read_attr(r, &spec->attr_specs[at], &step->attrs[at]);
  } while (next_is(r, ','));
  expect(r, '}');
}

enum { MOST_IDS = 32 };

/* A call's keys come in the order in which they are written: op, inputs, outputs, ..., attrs last. */
static sheaf_status read_call(reader *r, sheaf_trace *graph)
{
  char key[32], name[128];
  int64_t ids[2 * MOST_IDS], number[4] = {0};
  int inputs = 0, outputs = 0;
  static const char *const numbers[] = {"wanted", "include", "batch", "batched"};
  expect(r, '{');
  if (!read_key(r, key, sizeof key) || !is_key(key, "op") || !read_string(r, name, sizeof name) || !expect(r, ',') ||
      !read_key(r, key, sizeof key) || !is_key(key, "inputs") || !read_list(r, ids, MOST_IDS, &inputs) ||
      !expect(r, ',') || !read_key(r, key, sizeof key) || !is_key(key, "outputs") ||
      !read_list(r, ids + inputs, MOST_IDS, &outputs)) {
    fail_at(r, "a call begins with op, inputs and outputs");
    return SHEAF_OK;
  }
  for (int i = 0; i < 4; i++)
    if (!expect(r, ',') || !read_key(r, key, sizeof key) || !is_key(key, numbers[i]) || !read_integer(r, &number[i])) {
      fail_at(r, "a call goes on with wanted, include, batch and batched");
      return SHEAF_OK;
    }
  if (!expect(r, ',') || !read_key(r, key, sizeof key) || !is_key(key, "attrs")) fail_at(r, "a call ends with attrs");
  if (r->fault) return SHEAF_OK;
  sheaf_op op = sheaf_op_find(name);
  const sheaf_op_spec *spec = sheaf_op_describe(op);
  SHF_REQUIRE(spec, INVALID_PROBLEM, "graph: there is no op called %s", name);
  SHF_REQUIRE((spec->inputs < 0 || inputs <= spec->inputs) && (spec->outputs < 0 || outputs <= spec->outputs),
              INVALID_PROBLEM, "graph: %s with %d inputs and %d outputs", name, inputs, outputs);
  shf_step *step;
  SHF_TRY(shf_graph_add_step(graph, op, inputs, outputs, spec->attrs, &step));
  for (int i = 0; i < inputs + outputs; i++) {
    SHF_REQUIRE(ids[i] >= -1 && ids[i] < graph->value_count, INVALID_PROBLEM,
                "graph: %s names value %" PRId64 "; there are %d", name, ids[i], graph->value_count);
    step->ids[i] = (int32_t)ids[i];
  }
  step->wanted = (uint32_t)number[0];
  step->include = sheaf_keyset_from((unsigned)number[1] & 0x7ff);
  step->batch = number[2];
  step->batched = (uint32_t)number[3];
  read_attrs(r, spec, step);
  expect(r, '}');
  return SHEAF_OK;
}

/* That every value is there before it is taken. */
static sheaf_status check_order(const sheaf_trace *graph)
{
  size_t bytes = (size_t)graph->value_count + 1;
  char *there = shf_core_alloc(bytes);
  if (!there) return shf_core_no_memory("a graph", bytes);
  memset(there, 0, bytes);
  for (int i = 0; i < graph->input_count; i++) there[graph->inputs[i]] = 1;
  int missing = -1;
  for (int s = 0; s < graph->step_count; s++) {
    const shf_step *step = graph->steps[s];
    for (int i = 0; i < step->inputs; i++)
      if (step->ids[i] >= 0 && !there[step->ids[i]]) missing = step->ids[i];
    for (int i = step->inputs; i < step->inputs + step->outputs; i++)
      if (step->ids[i] >= 0) there[step->ids[i]] = 1;
  }
  shf_core_free(there, bytes);
  SHF_REQUIRE(missing < 0, INVALID_PROBLEM, "graph: value %d is taken before it is made", missing);
  return SHEAF_OK;
}

static sheaf_status read_items(reader *r, sheaf_trace *graph, sheaf_status (*item)(reader *, sheaf_trace *))
{
  if (!expect(r, '[') || next_is(r, ']')) return SHEAF_OK;
  do {
    SHF_TRY(item(r, graph));
  } while (!r->fault && next_is(r, ','));
  expect(r, ']');
  return SHEAF_OK;
}

static sheaf_status read_input(reader *r, sheaf_trace *graph)
{
  int64_t id;
  if (!read_integer(r, &id)) return SHEAF_OK;
  SHF_REQUIRE(id >= 0 && id <= INT32_MAX, INVALID_PROBLEM, "graph: an input is value %" PRId64, id);
  void *list = graph->inputs;
  SHF_TRY(shf_graph_room(&list, graph->input_count, &graph->input_room, sizeof *graph->inputs));
  graph->inputs = list;
  graph->inputs[graph->input_count++] = (int32_t)id;
  return SHEAF_OK;
}

static sheaf_status read_graph(reader *r, sheaf_trace *graph)
{
  char key[32];
  int64_t version = 0;
  if (!expect(r, '{') || !read_key(r, key, sizeof key) || !is_key(key, "sheaf_trace") || !read_integer(r, &version) ||
      version != 1)
    fail_at(r, "a graph begins with \"sheaf_trace\": 1");
  static const struct {
    const char *key;
    sheaf_status (*item)(reader *, sheaf_trace *);
  } lists[] = {{"inputs", read_input}, {"values", read_value}, {"calls", read_call}};
  for (int i = 0; i < 3 && !r->fault; i++) {
    if (!expect(r, ',') || !read_key(r, key, sizeof key) || !is_key(key, lists[i].key))
      fail_at(r, "a graph has inputs, values and calls, in this order");
    else
      SHF_TRY(read_items(r, graph, lists[i].item));
  }
  expect(r, '}');
  skip_blanks(r);
  if (!r->fault && *r->at) fail_at(r, "something follows the graph");
  SHF_REQUIRE(!r->fault, INVALID_PROBLEM, "graph: %s at byte %lld", r->fault, (long long)(r->at - r->start));
  for (int i = 0; i < graph->input_count; i++)
    SHF_REQUIRE(graph->inputs[i] < graph->value_count, INVALID_PROBLEM, "graph: an input is value %d; there are %d",
                graph->inputs[i], graph->value_count);
  SHF_TRY(check_order(graph));
  return shf_graph_find_outputs(graph);
}

sheaf_status sheaf_trace_from_json(const char *json, sheaf_trace **graph)
{
  SHF_REQUIRE(graph && json, INVALID_PROBLEM, "sheaf_trace_from_json: an argument is NULL");
  *graph = NULL;
  sheaf_trace *made = shf_core_alloc(sizeof *made);
  if (!made) return shf_core_no_memory("a graph", sizeof *made);
  memset(made, 0, sizeof *made);
  reader r = {.start = json, .at = json};
  sheaf_status status = read_graph(&r, made);
  if (status == SHEAF_OK)
    *graph = made;
  else
    sheaf_trace_free(made);
  return status;
}
