/* fuzz_plan.c: any description, preference and operands: refused with a reason, or run within their memory.
 *
 * The bytes are read as a list of choices. Most describe a small problem that is nearly right; some of its parts are
 * then hostile: extents, struct_size, ranks, strides, lengths, shared buffers, indices. Every operand has memory of its
 * own of exactly the bytes it says (unless it shares another's), so that a sanitizer sees each step beyond. Held to be
 * true:
 *   - a refusal has a status that fits, a text, and no plan;
 *   - run refuses what can_implement refuses, in the same words;
 *   - a run that fails leaves its outputs as they were;
 *   - a run gives the same numbers for other threads, another instruction set, and with a grouping of its own.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <sheaf/sheaf.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan_choices.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { OPERANDS = 9, RANK = 5, LARGEST_OPERAND = 1 << 16, LARGEST_WORKSPACE = 1 << 24 };

#define REQUIRE(condition)                                                                        \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition, sheaf_last_error()); \
      abort();                                                                                    \
    }                                                                                             \
  } while (0)

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

typedef struct memory {
  uint8_t *block; /* NULL: shares that of another */
  uint8_t *start; /* the bytes an output may change, and what they held */
  uint8_t *before;
  size_t bytes;
} memory;

typedef struct operand {
  bool given, output;
  sheaf_dtype dtype;
  DLTensor tensor;
  int64_t shape[RANK], strides[RANK];
  size_t bytes;
  memory own;
} operand;

static operand operands[OPERANDS];

/* The shape that the header documents; columns -1: a vector. */
static void want(int at, bool output, sheaf_dtype dtype, int64_t batch, int64_t rows, int64_t columns)
{
  operand *o = &operands[at];
  o->given = true;
  o->output = output;
  o->dtype = dtype;
  o->tensor = (DLTensor){.device = {kDLCPU, 0}, .dtype = sheaf_dtype_to_dl(dtype)};
  int rank = 0;
  if (batch) o->shape[rank++] = batch;
  o->shape[rank++] = rows;
  if (columns >= 0) o->shape[rank++] = columns;
  o->tensor.ndim = rank;
}

static bool is_extreme(int kind)
{
  return kind == 4 || kind == 5 || kind == 11 || kind == 12 || kind == 13 || kind == 14 || kind == 16 || kind == 17;
}
static bool is_segment_backward(int kind)
{
  return kind == 1 || kind == 3 || kind == 8 || kind == 10 || (kind >= 13 && kind != 18);
}

static void want_embedding(const sheaf_embedding_desc *d)
{
  bool lookup = d->kind <= 1, forward = d->kind == 0 || d->kind == 2 || d->kind == 3 || d->kind == 6,
       max_backward = d->kind == 7;
  bool quantised = d->dtype == SHEAF_INT8 || d->dtype == SHEAF_INT4;
  sheaf_dtype weights = quantised ? SHEAF_F32 : d->dtype,
              out = quantised ? (d->out_dtype ? d->out_dtype : SHEAF_F32) : d->dtype;
  int64_t outer = lookup ? d->indices : d->bags;
  bool matrix = !lookup && !max_backward && d->bag_form == SHEAF_BAGS_MATRIX;
  bool weights_grad = !forward && d->weighted && choose(2), table_grad = !weights_grad || choose(2);
  if (forward || weights_grad)
    want(0, false, quantised ? SHEAF_U8 : d->dtype, d->batch, d->rows,
         quantised ? sheaf_dtype_row_bytes(d->dtype, d->dim) : d->dim);
  if (!max_backward)
    want(1, false, d->index_dtype, d->batch, matrix ? d->bags : d->indices,
         matrix ? (d->bags ? d->indices / d->bags : 0) : -1);
  if (!lookup && !max_backward && !matrix)
    want(2, false, d->offset_dtype ? d->offset_dtype : d->index_dtype, d->batch,
         d->bags + (d->bag_form == SHEAF_BAGS_OFFSETS_END), -1);
  if (d->weighted) want(3, false, weights, d->batch, d->indices, -1);
  if (!forward) want(4, false, d->dtype, d->batch, outer, d->dim);
  if (forward || (weights_grad && d->kind == SHEAF_BAG_MEAN_BACKWARD)) want(5, forward, out, d->batch, outer, d->dim);
  if (max_backward || (d->kind == SHEAF_BAG_MAX && choose(2)))
    want(6, !max_backward, d->index_dtype, d->batch, d->bags, d->dim);
  if (!forward && table_grad) want(7, true, d->dtype, d->batch, d->rows, d->dim);
  if (weights_grad) want(8, true, weights, d->batch, d->indices, -1);
}

static void want_segment(const sheaf_segment_desc *d)
{
  bool backward = is_segment_backward((int)d->kind), extreme = is_extreme((int)d->kind);
  bool sums = d->kind <= SHEAF_SEGMENT_MEAN_BACKWARD ||
              (d->kind >= SHEAF_UNSORTED_SEGMENT_SUM && d->kind <= SHEAF_UNSORTED_SEGMENT_MEAN_BACKWARD);
  if (!backward || (!sums && !(extreme && d->arg_given))) want(0, false, d->dtype, d->batch, d->rows, d->dim);
  want(1, false, d->index_dtype, d->batch, d->rows, -1);
  if (backward) want(2, false, d->dtype, d->batch, d->segments, d->dim);
  if (!backward) want(3, true, d->dtype, d->batch, d->segments, d->dim);
  if (extreme && (backward ? d->arg_given : choose(2)))
    want(4, !backward, d->index_dtype, d->batch, d->segments, d->dim);
  if (backward) want(5, true, d->dtype, d->batch, d->rows, d->dim);
}

/* Strides with gaps, shared inputs of a batch, or anything at all. */
static void lay_out(operand *o, bool batched, bool hostile)
{
  int rank = o->tensor.ndim;
  int64_t step = 1;
  unsigned style = choose(6);
  for (int i = rank - 1; i >= 0; i--) {
    o->strides[i] = step;
    step *= o->shape[i];
    if (style == 1 && i == rank - 1 && rank > 1) step += choose(5);
  }
  if (style == 2 && batched && !o->output) o->strides[0] = 0;
  if (style == 3 && rank == 3) { /* problems in between each other */
    o->strides[0] = o->shape[2] + (int64_t)choose(3);
    o->strides[1] = o->strides[0] * o->shape[0] + (int64_t)choose(3);
  }
  o->tensor.shape = o->shape;
  o->tensor.strides = style == 0 ? NULL : o->strides;
  if (!hostile) return;
  if (one_in(8)) o->shape[choose(RANK)] += one_in(2) ? 1 : hostile_number() % 1000;
  if (one_in(8)) o->strides[choose(RANK)] = one_in(2) ? hostile_number() : (int64_t)choose(12) - 3;
  if (one_in(16)) o->tensor.ndim = (int)choose(8) - 1;
  if (one_in(16)) o->tensor.dtype = sheaf_dtype_to_dl((sheaf_dtype)choose(10));
  if (one_in(32)) o->tensor.device.device_type = (DLDeviceType)choose(16);
  if (one_in(32)) o->tensor.shape = NULL;
  if (one_in(32)) o->tensor.strides = o->strides;
}

/* Bytes from the first to the last element of a shape that may be nonsense; -1: beyond what is allocated here. */
static int64_t span_of(const operand *o)
{
  int64_t span = 1, size = o->tensor.dtype.bits / 8;
  if (!o->tensor.shape || o->tensor.ndim < 0 || o->tensor.ndim > RANK) return 0;
  for (int i = 0; i < o->tensor.ndim; i++)
    if (o->shape[i] <= 0) return 0;
  int64_t plain = 1;
  for (int i = o->tensor.ndim - 1; i >= 0; i--) {
    int64_t step = o->tensor.strides ? o->strides[i] : plain;
    if (step < 0 || step > LARGEST_OPERAND || o->shape[i] > LARGEST_OPERAND) return -1;
    span += (o->shape[i] - 1) * step;
    plain *= o->shape[i];
    if (span > LARGEST_OPERAND || plain > LARGEST_OPERAND) return -1;
  }
  return span * size <= LARGEST_OPERAND ? span * size : -1;
}

/* False when the operand would need more memory than is spent here. */
static bool allocate(operand *o, bool hostile)
{
  int64_t span = span_of(o);
  if (span < 0 && !hostile) return false;
  size_t size = span < 0 ? choose(0) : (size_t)span,
         offset = one_in(4) ? (size_t)choose(4) * (o->tensor.dtype.bits / 8) : 0;
  if (hostile && one_in(8)) size = size ? size - 1 - choose(0) % size : choose(0);
  if (hostile && one_in(16)) offset++;
  o->own.block = malloc(offset + size);
  REQUIRE(o->own.block);
  o->own.start = o->own.block + offset;
  o->own.bytes = size;
  o->tensor.data = o->own.block;
  o->tensor.byte_offset = offset;
  /* 0 trusts the shape, which only a shape of known length deserves. */
  o->bytes = span >= 0 && size == (size_t)span && one_in(4) ? 0 : size;
  if (size == 0 && span != 0) o->tensor.data = NULL;
  if (size == 0 && span == 0 && one_in(2)) o->tensor.data = NULL;
  return true;
}

/* Lets an operand begin within the memory of another. */
static void share_memory(operand *o, const operand *other)
{
  if (other->own.bytes == 0) return;
  size_t at = choose(0) % other->own.bytes;
  if (!one_in(4)) at -= at % 8;
  free(o->own.block);
  o->own = (memory){NULL, other->own.start + at, NULL, other->own.bytes - at};
  o->tensor.data = o->own.start;
  o->tensor.byte_offset = 0;
  o->bytes = o->own.bytes;
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static void put_integers(operand *o, int64_t limit, int64_t most_steps, bool sorted, bool hostile)
{
  int64_t value = 0;
  bool wide = o->tensor.dtype.bits == 64;
  if (o->tensor.dtype.bits != 32 && !wide) return;
  for (size_t i = 0; (i + 1) * (wide ? 8 : 4) <= o->own.bytes; i++) {
    if (sorted)
      value += choose((unsigned)most_steps);
    else
      value = limit > 0 ? (int64_t)choose(0) % limit : 0;
    int64_t put = sorted && value >= limit ? limit - !hostile : value;
    if (hostile && one_in(8)) put = one_in(2) ? (int64_t)choose(0) - 100 : hostile_number();
    if (wide)
      memcpy(o->own.start + i * 8, &put, 8);
    else
      memcpy(o->own.start + i * 4, &(int32_t){(int32_t)put}, 4);
  }
}

/* Offsets of one problem after another: they begin at 0 and end at N. */
static void put_offsets(operand *o, const sheaf_embedding_desc *d, bool hostile)
{
  bool wide = o->tensor.dtype.bits == 64, with_end = d->bag_form == SHEAF_BAGS_OFFSETS_END;
  int64_t entries = d->bags + with_end, value = 0;
  for (size_t i = 0; (i + 1) * (wide ? 8 : 4) <= o->own.bytes && entries > 0; i++) {
    int64_t place = (int64_t)i % entries;
    value = place == 0 ? 0 : value + (int64_t)choose(6);
    if (value > d->indices || (with_end && place == entries - 1)) value = d->indices;
    int64_t put = hostile && one_in(8) ? hostile_number() : value;
    if (wide)
      memcpy(o->own.start + i * 8, &put, 8);
    else
      memcpy(o->own.start + i * 4, &(int32_t){(int32_t)put}, 4);
  }
}

static void put_values(operand *o)
{
  uint8_t seed = (uint8_t)choose(0);
  for (size_t i = 0; i < o->own.bytes; i++) o->own.start[i] = (uint8_t)(seed + i * 37 + (i >> 3) * 11);
  for (size_t i = 0; i < o->own.bytes && i < 16; i++) o->own.start[i] ^= (uint8_t)choose(0);
}

static void fill(const request *r, bool hostile)
{
  int arg = r->embedding ? 6 : 4, ids = r->embedding ? -1 : 1;
  int64_t limit = r->embedding ? (r->e.total_rows ? r->e.total_rows : r->e.rows) : r->s.segments;
  if (limit < 0 || limit > 1000) limit = 10;
  for (int at = 0; at < OPERANDS; at++) {
    operand *o = &operands[at];
    if (!o->given || !o->own.block) continue;
    if (at == ids)
      put_integers(o, limit, 3, !one_in(8), hostile);
    else if (r->embedding && at == 1)
      put_integers(o, limit, 1, false, hostile);
    else if (r->embedding && at == 2)
      put_offsets(o, &r->e, hostile);
    else if (at == arg && !o->output)
      put_integers(o, r->embedding ? limit : r->s.rows, 1, false, hostile);
    else
      put_values(o);
  }
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

typedef struct call {
  const request *r;
  sheaf_plan *plan;
  void *workspace, *grouping;
  size_t workspace_bytes, grouping_bytes;
  sheaf_index_report *report;
} call;

enum { CAN_IMPLEMENT, BUILD, RUN };

static sheaf_status do_embedding(const call *c, int what)
{
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  int at = 0;
#define SHEAF_X(name)                                                                                            \
  args.name =                                                                                                    \
      operands[at].given ? (sheaf_operand){&operands[at].tensor, operands[at].bytes} : (sheaf_operand){NULL, 0}, \
  at++;
  SHEAF_EMBEDDING_OPERAND_LIST(SHEAF_X)
#undef SHEAF_X
  args.report = c->report;
  if (what == CAN_IMPLEMENT) return sheaf_embedding_can_implement(c->plan, &args);
  if (what == BUILD) return sheaf_embedding_grouping_build(c->plan, c->grouping, c->grouping_bytes, NULL, &args);
  args.grouping = c->grouping;
  args.grouping_bytes = c->grouping_bytes;
  return sheaf_embedding_run(c->plan, c->workspace, c->workspace_bytes, NULL, &args);
}

static sheaf_status do_segment(const call *c, int what)
{
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  int at = 0;
#define SHEAF_X(name)                                                                                            \
  args.name =                                                                                                    \
      operands[at].given ? (sheaf_operand){&operands[at].tensor, operands[at].bytes} : (sheaf_operand){NULL, 0}, \
  at++;
  SHEAF_SEGMENT_OPERAND_LIST(SHEAF_X)
#undef SHEAF_X
  args.report = c->report;
  if (what == CAN_IMPLEMENT) return sheaf_segment_can_implement(c->plan, &args);
  if (what == BUILD) return sheaf_segment_grouping_build(c->plan, c->grouping, c->grouping_bytes, NULL, &args);
  args.grouping = c->grouping;
  args.grouping_bytes = c->grouping_bytes;
  return sheaf_segment_run(c->plan, c->workspace, c->workspace_bytes, NULL, &args);
}

static sheaf_status perform(const call *c, int what)
{
  return c->r->embedding ? do_embedding(c, what) : do_segment(c, what);
}

static sheaf_status select_plan(const request *r, const sheaf_preference *wish, sheaf_plan **plan)
{
  *plan = (sheaf_plan *)(void *)&operands;
  sheaf_status status =
      r->embedding ? sheaf_embedding_select(&r->e, wish, plan) : sheaf_segment_select(&r->s, wish, plan);
  if (status == SHEAF_OK) {
    REQUIRE(*plan && sheaf_plan_workspace_size(*plan) <= INT64_MAX && sheaf_grouping_size(*plan) <= INT64_MAX);
    REQUIRE(sheaf_plan_sku(*plan).name[0]);
  } else {
    REQUIRE(!*plan && sheaf_last_error()[0] && sheaf_last_error_info().status == status);
    REQUIRE(status == SHEAF_INVALID_PROBLEM || status == SHEAF_UNSUPPORTED || status == SHEAF_UNAVAILABLE);
  }
  return status;
}

/* Exactly this many bytes, aligned to 64. */
static void *aligned_bytes(size_t bytes)
{
  void *memory = NULL;
  REQUIRE(posix_memalign(&memory, 64, bytes ? bytes : 1) == 0);
  memset(memory, 0xA5, bytes);
  return memory;
}

static bool same_element(sheaf_dtype dtype, const uint8_t *a, const uint8_t *b)
{
  float x = 0, y = 0;
  double u = 0, v = 0;
  uint16_t h, k;
  switch (dtype) {
  case SHEAF_F32:
    memcpy(&x, a, 4), memcpy(&y, b, 4);
    return memcmp(a, b, 4) == 0 || (isnan(x) && isnan(y));
  case SHEAF_F64:
    memcpy(&u, a, 8), memcpy(&v, b, 8);
    return memcmp(a, b, 8) == 0 || (isnan(u) && isnan(v));
  case SHEAF_F16:
  case SHEAF_BF16:
    memcpy(&h, a, 2), memcpy(&k, b, 2);
    if (dtype == SHEAF_F16) return h == k || ((h & 0x7fff) > 0x7c00 && (k & 0x7fff) > 0x7c00);
    return h == k || ((h & 0x7fff) > 0x7f80 && (k & 0x7fff) > 0x7f80);
  default:
    return *a == *b;
  }
}

static size_t element_size(sheaf_dtype dtype)
{
  return dtype == SHEAF_F64 ? 8 : dtype == SHEAF_F32 ? 4 : dtype == SHEAF_F16 || dtype == SHEAF_BF16 ? 2 : 1;
}

/* Outputs are put back to what they were; `kept` gets what they are now, or is compared with it. */
static void take_outputs(uint8_t **kept, bool compare)
{
  for (int at = 0; at < OPERANDS; at++) {
    operand *o = &operands[at];
    if (!o->given || !o->output || !o->own.block) continue;
    size_t size = element_size(o->dtype);
    if (!compare) {
      kept[at] = malloc(o->own.bytes + 1);
      REQUIRE(kept[at]);
      memcpy(kept[at], o->own.start, o->own.bytes);
    }
    for (size_t i = 0; compare && i + size <= o->own.bytes; i += size)
      REQUIRE(same_element(o->dtype, kept[at] + i, o->own.start + i));
    memcpy(o->own.start, o->own.before, o->own.bytes);
  }
}

static void require_untouched(void)
{
  for (int at = 0; at < OPERANDS; at++)
    if (operands[at].given && operands[at].output && operands[at].own.before)
      REQUIRE(memcmp(operands[at].own.start, operands[at].own.before, operands[at].own.bytes) == 0);
}

/* The same problem once more: another number of threads, the weakest instruction set, and a grouping of its own. */
static void run_again(const call *first, uint8_t **kept)
{
  request other = *first->r;
  sheaf_sku sku = sheaf_plan_sku(first->plan);
  char name[80];
  snprintf(name, sizeof name, "%.*s/cpu.scalar", (int)strcspn(sku.name, "/"), sku.name);
  other.wish = (sheaf_preference)SHEAF_PREFERENCE_INIT;
  other.wish.threads = one_in(4) ? 3 : 1;
  other.wish.kernel = name;
  call again = {.r = &other};
  REQUIRE(select_plan(&other, &other.wish, &again.plan) == SHEAF_OK);
  again.workspace_bytes = sheaf_plan_workspace_size(again.plan);
  again.workspace = aligned_bytes(again.workspace_bytes);
  again.grouping_bytes = sheaf_grouping_size(again.plan);
  if (again.grouping_bytes) {
    again.grouping = aligned_bytes(again.grouping_bytes);
    REQUIRE(perform(&again, BUILD) == SHEAF_OK);
  }
  REQUIRE(perform(&again, RUN) == SHEAF_OK);
  take_outputs(kept, true);
  free(again.workspace);
  free(again.grouping);
  sheaf_plan_free(again.plan);
}

static void run_plan(call *c)
{
  sheaf_index_report report = {-7, -7, -7};
  c->report = one_in(2) ? &report : NULL;
  sheaf_status can = perform(c, CAN_IMPLEMENT);
  char words[512];
  snprintf(words, sizeof words, "%.500s", can == SHEAF_OK ? "" : sheaf_last_error());
  bool lacking = one_in(32);
  c->workspace_bytes = sheaf_plan_workspace_size(c->plan);
  c->workspace = aligned_bytes(c->workspace_bytes);
  size_t usable = c->workspace_bytes;
  if (lacking && usable) c->workspace_bytes--;
  sheaf_status status = perform(c, RUN);
  if (can != SHEAF_OK) {
    REQUIRE(status == can && strncmp(words, sheaf_last_error(), 500) == 0 && words[0]);
  } else if (status != SHEAF_OK) {
    REQUIRE(status == SHEAF_INVALID_PROBLEM || status == SHEAF_INDEX_OUT_OF_RANGE ||
            status == SHEAF_WORKSPACE_TOO_SMALL);
  }
  if (status != SHEAF_OK) {
    require_untouched();
  } else {
    REQUIRE(!lacking || !usable);
    if (c->report) REQUIRE(report.count >= 0 && (report.count == 0) == (report.first_position == -1));
    uint8_t *kept[OPERANDS] = {NULL};
    take_outputs(kept, false);
    run_again(c, kept);
    for (int at = 0; at < OPERANDS; at++) free(kept[at]);
  }
  free(c->workspace);
}

/* ---- One input --------------------------------------------------------------------------------------------------- */

static void make_operands(const request *r)
{
  bool hostile = one_in(2), whole = true;
  memset(operands, 0, sizeof operands);
  if (r->embedding)
    want_embedding(&r->e);
  else
    want_segment(&r->s);
  for (int at = 0; at < OPERANDS && whole; at++) {
    operand *o = &operands[at];
    if (hostile && one_in(32)) o->given = !o->given;
    if (!o->given) continue;
    if (!o->dtype) o->dtype = SHEAF_F32;
    lay_out(o, r->embedding ? r->e.batch > 0 : r->s.batch > 0, hostile);
    whole = allocate(o, hostile);
  }
  fill(r, one_in(2));
  if (hostile && one_in(4)) {
    operand *o = &operands[choose(OPERANDS)], *other = &operands[choose(OPERANDS)];
    if (o != other && o->given && other->given && o->own.block && other->own.block) share_memory(o, other);
  }
  for (int at = 0; at < OPERANDS; at++) {
    memory *own = &operands[at].own;
    if (!operands[at].given || !own->block) continue;
    own->before = malloc(own->bytes + 1);
    REQUIRE(own->before);
    memcpy(own->before, own->start, own->bytes);
  }
  if (!whole) operands[0].given = operands[1].given = false; /* too large to allocate: something is missing */
}

static void free_operands(void)
{
  for (int at = 0; at < OPERANDS; at++) {
    free(operands[at].own.block);
    free(operands[at].own.before);
  }
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
  (void)argc;
  (void)argv;
  setenv("SHEAF_TEST_SPLIT", "1", 0); /* small problems are divided among threads, too */
  setenv("OMP_WAIT_POLICY", "passive", 1);
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
  static request r;
  read_choices(data, bytes);
  memset(&r, 0, sizeof r);
  r.embedding = choose(2);
  r.wild = one_in(3);
  if (r.embedding)
    describe_embedding(&r);
  else
    describe_segment(&r);
  describe_wish(&r);
  call c = {.r = &r};
  if (select_plan(&r, &r.wish, &c.plan) != SHEAF_OK) return 0;
  if (sheaf_plan_workspace_size(c.plan) <= LARGEST_WORKSPACE && sheaf_grouping_size(c.plan) <= LARGEST_WORKSPACE) {
    make_operands(&r);
    run_plan(&c);
    free_operands();
  }
  sheaf_plan_free(c.plan);
  return 0;
}
