/* plan_choices.h: the bytes of a fuzzer's input read as choices, and descriptions and preferences made of them. */
#ifndef SHEAF_TESTS_PLAN_CHOICES_H
#define SHEAF_TESTS_PLAN_CHOICES_H

#include <sheaf/plan.h>
#include <stdbool.h>

/* ---- Choices ----------------------------------------------------------------------------------------------------- */

static const uint8_t *next_byte;
static size_t bytes_left;
static uint64_t beyond; /* where the bytes end choices go on at random, the same for the same bytes */

static void read_choices(const uint8_t *data, size_t bytes)
{
  next_byte = data;
  bytes_left = bytes;
  beyond = 0xCBF29CE484222325u;
  for (size_t i = 0; i < bytes; i++) beyond = (beyond ^ data[i]) * 0x100000001B3u;
}

static unsigned choose(unsigned below)
{
  unsigned value;
  if (bytes_left) {
    value = *next_byte++;
    bytes_left--;
  } else {
    beyond = beyond * 6364136223846793005u + 1442695040888963407u;
    value = (unsigned)(beyond >> 40) & 255;
  }
  return below ? value % below : value;
}

static int one_in(unsigned n) { return choose(n) == n - 1; }

static int64_t hostile_number(void)
{
  static const int64_t numbers[] = {-1,
                                    INT64_MIN,
                                    INT64_MAX,
                                    INT64_MAX - 1,
                                    INT32_MAX,
                                    INT32_MIN,
                                    (int64_t)1 << 31,
                                    65536,
                                    ((int64_t)1 << 46) + 1,
                                    (int64_t)1 << 46,
                                    (int64_t)1 << 45,
                                    (int64_t)1 << 40,
                                    (int64_t)1 << 62,
                                    255,
                                    256,
                                    257,
                                    4096,
                                    1000000007,
                                    -2,
                                    0};
  int64_t number = numbers[choose(sizeof numbers / sizeof *numbers)];
  return one_in(4) && number > INT64_MIN + 300 && number < INT64_MAX - 300 ? number + (int64_t)choose(0) - 128 : number;
}

/* ---- Descriptions ------------------------------------------------------------------------------------------------ */

enum { TAIL = 256 };

typedef struct request {
  bool embedding, wild; /* wild: fields of the description may be anything */
  /* Each with the tail of a later version, which struct_size may claim. */
  sheaf_embedding_desc e;
  uint8_t e_tail[TAIL];
  sheaf_segment_desc s;
  uint8_t s_tail[TAIL];
  sheaf_preference wish;
  uint8_t wish_tail[TAIL];
} request;

static size_t struct_size(size_t known, uint8_t *tail)
{
  size_t size = one_in(2) ? choose(0) : known + choose(TAIL);
  if (one_in(4)) tail[choose(TAIL)] = 1;
  return size;
}

static int64_t extent(const request *r, unsigned below)
{
  if (r->wild && one_in(8)) return hostile_number();
  unsigned wide = choose(16);
  return wide == 15 ? (int64_t)choose(0) * 3 : wide == 14 ? (int64_t)choose(0) : (int64_t)choose(below);
}

static int option(const request *r, unsigned below)
{
  return r->wild && one_in(16) ? (int)hostile_number() : (int)choose(below);
}

static uint8_t flag(const request *r, unsigned rarely)
{
  return r->wild && one_in(16) ? (uint8_t)choose(0) : (uint8_t)one_in(rarely);
}

static sheaf_dtype index_type(const request *r)
{
  return r->wild && one_in(8) ? (sheaf_dtype)choose(12) : choose(2) ? SHEAF_I64 : SHEAF_I32;
}

static void describe_embedding(request *r)
{
  sheaf_embedding_desc *d = &r->e;
  *d = (sheaf_embedding_desc)SHEAF_EMBEDDING_DESC_INIT;
  d->kind = (sheaf_embedding_kind)option(r, 8);
  bool lookup = (unsigned)d->kind < 2, forward = d->kind == SHEAF_LOOKUP || d->kind == SHEAF_BAG_SUM ||
                                                 d->kind == SHEAF_BAG_MEAN || d->kind == SHEAF_BAG_MAX;
  static const sheaf_dtype tables[] = {SHEAF_F32, SHEAF_F64, SHEAF_F16, SHEAF_BF16, SHEAF_INT8, SHEAF_INT4};
  d->dtype = r->wild && one_in(8) ? (sheaf_dtype)choose(12) : tables[choose(forward ? 6 : 4)];
  d->index_dtype = index_type(r);
  d->offset_dtype = one_in(2) ? index_type(r) : SHEAF_DTYPE_NONE;
  if (d->dtype == SHEAF_INT8 || d->dtype == SHEAF_INT4) d->out_dtype = tables[choose(4)];
  if (d->out_dtype == SHEAF_F64 && !r->wild) d->out_dtype = SHEAF_DTYPE_NONE;
  d->bag_form = (sheaf_bag_form)option(r, 3);
  d->rows = extent(r, 12);
  d->dim = extent(r, 40);
  d->indices = extent(r, 24);
  d->bags = lookup && !r->wild ? 0 : extent(r, 8);
  if (!r->wild && !lookup && d->kind != SHEAF_BAG_MAX_BACKWARD) {
    if (d->bags == 0) d->indices = 0;
    if (d->bag_form == SHEAF_BAGS_MATRIX && d->bags) d->indices -= d->indices % d->bags;
  }
  if (one_in(4)) {
    d->row_begin = extent(r, 5);
    d->total_rows = r->wild ? extent(r, 30) : d->row_begin + d->rows + (int64_t)choose(4);
    if (!d->total_rows && !r->wild) d->row_begin = 0;
  }
  int64_t total = d->total_rows ? d->total_rows : d->rows;
  d->has_padding = flag(r, 3);
  d->padding_idx = extent(r, 12);
  if (!r->wild && d->padding_idx >= total) d->has_padding = 0;
  d->batch = one_in(4) ? extent(r, 4) : 0;
  d->weighted = flag(r, 2);
  if (!r->wild && (d->kind < SHEAF_BAG_SUM || d->kind > SHEAF_BAG_MEAN_BACKWARD)) d->weighted = 0;
  d->scale_grad_by_freq = flag(r, 4);
  if (!r->wild && d->kind == SHEAF_BAG_MAX_BACKWARD) d->scale_grad_by_freq = 0;
  d->grouping_given = flag(r, 16);
  d->padding = (sheaf_padding)option(r, 2);
  d->bad_index = (sheaf_bad_index)option(r, 2);
  d->grad_write = (sheaf_grad_write)option(r, 3);
  if (r->wild && one_in(8)) d->device.device_type = (DLDeviceType)choose(20);
  if (r->wild && one_in(8)) d->struct_size = struct_size(sizeof *d, r->e_tail);
}

static void describe_segment(request *r)
{
  sheaf_segment_desc *d = &r->s;
  *d = (sheaf_segment_desc)SHEAF_SEGMENT_DESC_INIT;
  d->kind = (sheaf_segment_kind)option(r, 20);
  d->dtype = r->wild && one_in(8) ? (sheaf_dtype)choose(12) : (sheaf_dtype)(1 + choose(4));
  d->index_dtype = index_type(r);
  d->rows = extent(r, 24);
  d->dim = extent(r, 40);
  d->segments = extent(r, 8);
  d->batch = one_in(4) ? extent(r, 4) : 0;
  d->ties = (sheaf_ties)option(r, 2);
  d->arg_given = flag(r, 2);
  if (!r->wild && d->ties == SHEAF_TIES_SPLIT) d->arg_given = 0;
  d->grouping_given = flag(r, 16);
  d->empty = (sheaf_empty)option(r, 2);
  d->bad_index = (sheaf_bad_index)option(r, 2);
  if (r->wild && one_in(8)) d->device.device_type = (DLDeviceType)choose(20);
  if (r->wild && one_in(8)) d->struct_size = struct_size(sizeof *d, r->s_tail);
}

static void describe_wish(request *r)
{
  static const char *const names[] = {"", "bag_sum.f32.i64/cpu.scalar", "lookup.f32.i32/cpu.avx2", "%s%n"};
  r->wish = (sheaf_preference)SHEAF_PREFERENCE_INIT;
  r->wish.threads = one_in(4) ? 2 + (int)choose(2) : 1;
  if (!r->wild) return;
  if (one_in(8)) r->wish.threads = (int)hostile_number();
  if (one_in(8)) r->wish.max_workspace = (size_t)hostile_number();
  if (one_in(8)) r->wish.backend = (sheaf_backend)option(r, 4);
  if (one_in(8)) r->wish.deterministic = option(r, 3);
  if (one_in(8)) r->wish.kernel = names[choose(4)];
  if (one_in(16)) r->wish.struct_size = struct_size(sizeof r->wish, r->wish_tail);
}

#endif
