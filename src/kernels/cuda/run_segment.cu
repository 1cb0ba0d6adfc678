// run_segment.cu: segment reductions, forward and backward: what is laid out where, and the launches of a run.
#include <math.h>

#include "cuda_impl.h"

namespace shf {

// Operands by position in sheaf_segment_args.
#define SHEAF_X(name) AT_##name,
enum { SHEAF_SEGMENT_OPERAND_LIST(SHEAF_X) OPERANDS };
#undef SHEAF_X

enum Reducer { SUM, MEAN, MAX, MIN, PROD };

struct Traits {
  Reducer reducer;
  bool backward, unsorted;
};

static Traits traits_of(sheaf_segment_kind kind)
{
  switch (kind) {
  case SHEAF_SEGMENT_SUM:
    return {SUM, false, false};
  case SHEAF_SEGMENT_SUM_BACKWARD:
    return {SUM, true, false};
  case SHEAF_SEGMENT_MEAN:
    return {MEAN, false, false};
  case SHEAF_SEGMENT_MEAN_BACKWARD:
    return {MEAN, true, false};
  case SHEAF_SEGMENT_MAX:
    return {MAX, false, false};
  case SHEAF_SEGMENT_MIN:
    return {MIN, false, false};
  case SHEAF_SEGMENT_PROD:
    return {PROD, false, false};
  case SHEAF_UNSORTED_SEGMENT_SUM:
    return {SUM, false, true};
  case SHEAF_UNSORTED_SEGMENT_SUM_BACKWARD:
    return {SUM, true, true};
  case SHEAF_UNSORTED_SEGMENT_MEAN:
    return {MEAN, false, true};
  case SHEAF_UNSORTED_SEGMENT_MEAN_BACKWARD:
    return {MEAN, true, true};
  case SHEAF_UNSORTED_SEGMENT_MAX:
    return {MAX, false, true};
  case SHEAF_UNSORTED_SEGMENT_MIN:
    return {MIN, false, true};
  case SHEAF_SEGMENT_MAX_BACKWARD:
    return {MAX, true, false};
  case SHEAF_SEGMENT_MIN_BACKWARD:
    return {MIN, true, false};
  case SHEAF_SEGMENT_PROD_BACKWARD:
    return {PROD, true, false};
  case SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD:
    return {MAX, true, true};
  case SHEAF_UNSORTED_SEGMENT_MIN_BACKWARD:
    return {MIN, true, true};
  case SHEAF_UNSORTED_SEGMENT_PROD:
    return {PROD, false, true};
  case SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD:
    return {PROD, true, true};
  }
  return {SUM, false, false};
}

static bool is_extreme(const Traits &t) { return t.reducer == MAX || t.reducer == MIN; }

// Whether backward reduces again before it can give anything to a row.
static bool prepares(const sheaf_segment_desc &d, const Traits &t)
{
  return t.backward && (t.reducer == PROD || (is_extreme(t) && !d.arg_given));
}

static bool reduces(const sheaf_segment_desc &d, const Traits &t) { return !t.backward || prepares(d, t); }

static Reduction reduction_of(const Traits &t)
{
  return is_extreme(t) ? REDUCE_EXTREME : t.reducer == PROD ? REDUCE_PROD : REDUCE_SUM;
}

static GroupingSpec grouping_spec(const shf_device_problem &p)
{
  const sheaf_segment_desc &d = *p.segment;
  GroupingSpec s = {};
  s.batch = p.batch;
  s.entries = d.rows;
  s.groups = s.rows = d.segments;
  s.padding = -1;
  s.bag_length = -1;
  s.index_wide = d.index_dtype == SHEAF_I64;
  return s;
}

// ---- Workspace ----

struct Layout {
  GroupingLayout grouping;
  int64_t starts, forward, counts, arg, list, slots, total;
  int64_t slot_count;
};

static cudaError_t lay_out(const shf_device_problem &p, Layout *at)
{
  const sheaf_segment_desc &d = *p.segment;
  const Kernels *k = kernels_of(d.dtype);
  Traits t = traits_of(d.kind);
  int64_t bytes = 0, cells = p.batch * d.segments * d.dim;
  cudaError_t error = cudaSuccess;
  *at = Layout();
  if (t.unsorted && reduces(d, t)) {
    error = grouping_layout(grouping_spec(p), &at->grouping);
    if (!d.grouping_given) bytes += at->grouping.total;
  }
  bool by_first = is_extreme(t) && d.ties == SHEAF_TIES_FIRST, again = prepares(d, t);
  at->starts = bytes;
  if (reduces(d, t) || t.reducer == MEAN) bytes += shf_align64(p.batch * (d.segments + 1) * 8);
  at->forward = bytes;
  if (again && !by_first) bytes += shf_align64(cells * k->acc_bytes);
  at->counts = bytes;
  if (again && !by_first) bytes += shf_align64(cells * k->acc_bytes);
  at->arg = bytes;
  if (again && by_first) bytes += shf_align64(cells * 8);
  at->list = bytes;
  if (reduces(d, t)) bytes += list_bytes(p.batch * d.rows, STREAM_LONGEST + 1);
  at->slots = bytes;
  if (reduces(d, t)) {
    at->slot_count = slots_for(p.batch * d.rows);
    bytes += at->slot_count * k->slot_bytes(reduction_of(t), d.dim);
  }
  at->total = bytes;
  return error;
}

sheaf_status segment_sizes(const shf_device_problem &p, shf_device_sizes *sizes)
{
  Layout at;
  sheaf_status status = check(lay_out(p, &at), "asking CUB how much memory it sorts with");
  if (status != SHEAF_OK) return status;
  Traits t = traits_of(p.segment->kind);
  bool groups = t.unsorted && reduces(*p.segment, t);
  sizes->workspace = at.total;
  sizes->grouping = groups ? at.grouping.total : 0;
  sizes->grouping_read = groups ? at.grouping.read : 0;
  return SHEAF_OK;
}

// ---- Steps ----

struct Run {
  Launcher &l;
  const shf_device_call &call;
  const sheaf_segment_desc &d;
  Traits traits;
  const Kernels *k;
  Layout at;
  const shf_matrix &operand(int which) const { return call.operands[which]; }
};

static void scan(const Run &r)
{
  if (!r.call.report && !r.l.loading) return;
  ScanTask t = {};
  t.index = r.operand(AT_ids);
  t.index_wide = r.d.index_dtype == SHEAF_I64;
  t.batch = r.call.problem.batch;
  t.rows = 1;
  t.columns = r.d.rows;
  t.limit = r.d.segments;
  t.sorted = !r.traits.unsorted;
  t.report = r.call.report;
  scan_values(r.l, t);
}

// Rows of the workspace, [S, D] per problem.
static shf_matrix own_rows(const Run &r, int64_t at, int64_t element_bytes)
{
  shf_matrix m;
  m.data = r.call.workspace + at;
  m.row_stride = r.d.dim * element_bytes;
  m.batch_stride = r.d.segments * m.row_stride;
  return m;
}

static int64_t *starts_of(const Run &r) { return (int64_t *)(r.call.workspace + r.at.starts); }

static void find_group_starts(const Run &r, const Sorted *sorted)
{
  StartsTask t = {};
  t.ids = r.operand(AT_ids);
  t.ids_wide = r.d.index_dtype == SHEAF_I64;
  if (sorted) t.sorted = *sorted;
  t.entries = r.d.rows;
  t.groups = r.d.segments;
  t.batch = r.call.problem.batch;
  t.starts = starts_of(r);
  if (reduces(r.d, r.traits)) t.list_count = (unsigned long long *)(r.call.workspace + r.at.list);
  find_starts(r.l, t);
}

static double empty_value(const Run &r)
{
  bool identity = r.d.empty == SHEAF_EMPTY_IDENTITY;
  switch (r.traits.reducer) {
  case SUM:
    return 0;
  case MEAN:
    return identity ? NAN : 0;
  case MAX:
    return identity ? -INFINITY : 0;
  case MIN:
    return identity ? INFINITY : 0;
  case PROD:
    return 1;
  }
  return 0;
}

static Task segment_task(const Run &r, const Sorted *sorted)
{
  const sheaf_segment_desc &d = r.d;
  Task t = {};
  t.dim = d.dim;
  t.groups = d.segments;
  t.entries = d.rows;
  t.batch = r.call.problem.batch;
  t.offsets = (const char *)starts_of(r);
  t.offsets_batch = (d.segments + 1) * 8;
  t.offsets_wide = t.offsets_end = 1;
  t.bag_length = -1;
  t.entry_stride = sorted ? 0 : d.rows;
  if (sorted) t.sorted = *sorted;
  t.decode = sorted ? BY_PAYLOAD : IN_ORDER;
  t.source = r.operand(AT_data);
  t.least = r.traits.reducer == MIN;
  t.out_dtype = d.dtype;
  t.slots = r.call.workspace + r.at.slots;
  t.slot_count = r.at.slot_count;
  t.slot_bytes = r.k->slot_bytes(reduction_of(r.traits), d.dim);
  t.list = list_in(r.call.workspace + r.at.list, t.batch * t.entries, STREAM_LONGEST + 1);
  t.awaits = 1;
  return t;
}

static void run_forward(const Run &r, const Sorted *sorted)
{
  Task t = segment_task(r, sorted);
  t.target = r.operand(AT_out);
  t.arg = r.operand(AT_arg);
  t.arg_wide = r.d.index_dtype == SHEAF_I64;
  t.empty = empty_value(r);
  t.sink = r.traits.reducer == MEAN ? SINK_MEAN : r.traits.reducer == PROD ? SINK_PROD : SINK_SUM;
  r.k->reduce(r.l, t, reduction_of(r.traits));
}

// What backward needs from the forward pass, made again: arg; or extremes and how often they occur; or products and
// zeros.
static void prepare(const Run &r, const Sorted *sorted)
{
  Task t = segment_task(r, sorted);
  t.target_is_acc = 1;
  t.sink = SINK_TERM;
  if (is_extreme(r.traits) && r.d.ties == SHEAF_TIES_FIRST) {
    t.arg = own_rows(r, r.at.arg, 8);
    t.arg_wide = 1;
  } else {
    t.target = own_rows(r, r.at.forward, r.k->acc_bytes);
    t.counts = own_rows(r, r.at.counts, r.k->acc_bytes);
    t.count_ties = is_extreme(r.traits);
    t.zero_as_one = !is_extreme(r.traits);
  }
  r.k->reduce(r.l, t, reduction_of(r.traits));
}

static void run_copy(const Run &r)
{
  CopyTask c = {};
  c.entries = r.d.rows;
  c.batch = r.call.problem.batch;
  c.row_bytes = r.d.dim * r.k->cell_bytes;
  c.index = r.operand(AT_ids);
  c.index_wide = r.d.index_dtype == SHEAF_I64;
  c.source = r.operand(AT_grad_out);
  c.target = r.operand(AT_data_grad);
  c.rows = c.total_rows = r.d.segments;
  c.padding = -1;
  copy_rows(r.l, c);
}

// mean backward divides by the rows of each segment: from where sorted segments begin, or counted one by one.
static shf_matrix count_rows(const Run &r)
{
  shf_matrix m;
  m.data = (char *)starts_of(r);
  m.row_stride = 8;
  m.batch_stride = (r.d.segments + (r.traits.unsorted ? 0 : 1)) * 8;
  if (!r.traits.unsorted) {
    find_group_starts(r, nullptr);
    return m;
  }
  CountTask t = {};
  t.ids = r.operand(AT_ids);
  t.ids_wide = r.d.index_dtype == SHEAF_I64;
  t.entries = r.d.rows;
  t.groups = r.d.segments;
  t.batch = r.call.problem.batch;
  t.counts = starts_of(r);
  count_ids(r.l, t);
  return m;
}

static void run_backward(const Run &r, const Sorted *sorted)
{
  if (r.traits.reducer == SUM) {
    run_copy(r);
    return;
  }
  bool again = prepares(r.d, r.traits), split = r.d.ties == SHEAF_TIES_SPLIT;
  if (again) prepare(r, sorted);
  SegmentGradTask t = {};
  t.dim = r.d.dim;
  t.entries = r.d.rows;
  t.groups = r.d.segments;
  t.batch = r.call.problem.batch;
  t.ids = r.operand(AT_ids);
  t.ids_wide = r.d.index_dtype == SHEAF_I64;
  t.grad_out = r.operand(AT_grad_out);
  t.target = r.operand(AT_data_grad);
  if (r.traits.reducer == MEAN) {
    t.kind = GRAD_MEAN;
    t.counts = count_rows(r);
    t.counts_are_starts = !r.traits.unsorted;
  } else if (is_extreme(r.traits) && !split) {
    t.kind = GRAD_ARG;
    t.arg = again ? own_rows(r, r.at.arg, 8) : r.operand(AT_arg);
    t.arg_wide = again || t.ids_wide;
  } else {
    t.kind = is_extreme(r.traits) ? GRAD_TIES : GRAD_PROD;
    t.data = r.operand(AT_data);
    t.forward = own_rows(r, r.at.forward, r.k->acc_bytes);
    t.counts = own_rows(r, r.at.counts, r.k->acc_bytes);
  }
  r.k->segment_grad(r.l, t);
}

void segment_run(Launcher &l, const shf_device_call &call)
{
  const sheaf_segment_desc &d = *call.problem.segment;
  Run r = {l, call, d, traits_of(d.kind), kernels_of(d.dtype), Layout()};
  l.error = lay_out(call.problem, &r.at);
  if (l.error != cudaSuccess) return;
  scan(r);
  if (d.dim == 0 && !l.loading) return; // no element to write
  Sorted sorted = {};
  bool grouped = r.traits.unsorted && reduces(d, r.traits);
  if (grouped) {
    GroupingSpec spec = grouping_spec(call.problem);
    spec.index = r.operand(AT_ids);
    const void *grouping = call.grouping;
    if (!grouping) {
      make_grouping(l, spec, call.workspace);
      grouping = call.workspace;
    }
    sorted = grouping_in(spec, r.at.grouping, grouping);
  }
  if (reduces(d, r.traits)) find_group_starts(r, grouped ? &sorted : nullptr);
  if (r.traits.backward)
    run_backward(r, grouped ? &sorted : nullptr);
  else
    run_forward(r, grouped ? &sorted : nullptr);
}

void segment_group(Launcher &l, const shf_device_call &call, void *grouping)
{
  const sheaf_segment_desc &d = *call.problem.segment;
  Run r = {l, call, d, traits_of(d.kind), kernels_of(d.dtype), Layout()};
  scan(r);
  GroupingSpec spec = grouping_spec(call.problem);
  spec.index = r.operand(AT_ids);
  make_grouping(l, spec, grouping);
}

} // namespace shf
