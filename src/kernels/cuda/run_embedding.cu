// run_embedding.cu: lookups and bags, forward and backward: what is laid out where, and the launches of a run.
#include "cuda_impl.h"

namespace shf {

// Operands by position in sheaf_embedding_args.
#define SHEAF_X(name) AT_##name,
enum { SHEAF_EMBEDDING_OPERAND_LIST(SHEAF_X) OPERANDS };
#undef SHEAF_X

static bool is_backward(sheaf_embedding_kind kind)
{
  return kind == SHEAF_LOOKUP_BACKWARD || kind == SHEAF_BAG_SUM_BACKWARD || kind == SHEAF_BAG_MEAN_BACKWARD ||
         kind == SHEAF_BAG_MAX_BACKWARD;
}
static bool is_lookup(sheaf_embedding_kind kind) { return kind == SHEAF_LOOKUP || kind == SHEAF_LOOKUP_BACKWARD; }

static int64_t bag_length(const sheaf_embedding_desc &d)
{
  if (d.bag_form != SHEAF_BAGS_MATRIX || is_lookup(d.kind) || d.kind == SHEAF_BAG_MAX_BACKWARD) return -1;
  return d.bags ? d.indices / d.bags : 0;
}

GroupingSpec embedding_grouping(const sheaf_embedding_desc &d, int64_t batch)
{
  bool bag = d.kind != SHEAF_LOOKUP_BACKWARD;
  GroupingSpec s = {};
  s.batch = batch;
  s.entries = d.indices;
  s.groups = s.rows = d.rows;
  s.row_begin = d.row_begin;
  s.padding = d.has_padding ? d.padding_idx : -1;
  s.bags = d.bags;
  s.bag_length = bag_length(d);
  s.payload_is_bag = bag && !d.weighted;
  s.with_bag_of = bag && d.weighted && s.bag_length < 0;
  s.index_wide = d.index_dtype == SHEAF_I64;
  s.offsets_wide = d.offset_dtype == SHEAF_I64;
  s.offsets_end = d.bag_form == SHEAF_BAGS_OFFSETS_END;
  if (d.kind == SHEAF_BAG_MAX_BACKWARD) {
    s.entries = d.bags * d.dim;
    s.groups = d.rows * d.dim;
    s.columns = d.dim;
    s.payload_is_bag = s.with_bag_of = 0;
    s.bags = 0;
  }
  return s;
}

static GroupingSpec grouping_spec(const shf_device_problem &p) { return embedding_grouping(*p.embedding, p.batch); }

// ---- Workspace ----

struct Layout {
  GroupingLayout grouping;
  int64_t divisors, list, slots, total;
  int64_t bag_slots, row_slots; // how many slots a reduction over bags and one over table rows may need
};

// What a reduction may list: long bags, or runs of the table's gradient that are not short.
static int64_t least_listed(sheaf_embedding_kind kind) { return is_backward(kind) ? LONG_RUN : SHF_CHUNK + 1; }

static int64_t listed_entries(const shf_device_problem &p)
{
  int64_t runs = is_backward(p.embedding->kind) ? p.batch * grouping_spec(p).entries : 0,
          bags = p.batch * p.embedding->indices;
  return runs > bags ? runs : bags;
}

static cudaError_t lay_out(const shf_device_problem &p, Layout *at)
{
  const sheaf_embedding_desc &d = *p.embedding;
  const Kernels *k = kernels_of(d.dtype);
  int64_t bytes = 0, length = bag_length(d), slot_bytes = 0;
  cudaError_t error = cudaSuccess;
  *at = Layout();
  bool bags = !is_lookup(d.kind) && d.kind != SHEAF_BAG_MAX_BACKWARD;
  if (bags && (length < 0 || length > SHF_CHUNK)) at->bag_slots = slots_for(p.batch * d.indices);
  if (is_backward(d.kind)) {
    GroupingSpec spec = grouping_spec(p);
    error = grouping_layout(spec, &at->grouping);
    at->row_slots = slots_for(p.batch * spec.entries);
    if (!d.grouping_given) bytes += at->grouping.total;
    int64_t dim = d.kind == SHEAF_BAG_MAX_BACKWARD ? 1 : d.dim;
    slot_bytes = at->row_slots * k->slot_bytes(REDUCE_SUM, dim);
    at->divisors = bytes;
    if (d.kind == SHEAF_BAG_MEAN_BACKWARD) {
      bytes += shf_align64(p.batch * d.bags * k->acc_bytes);
      int64_t counting = at->bag_slots * k->slot_bytes(REDUCE_SUM, 0);
      slot_bytes = counting > slot_bytes ? counting : slot_bytes;
    }
  } else if (bags) {
    slot_bytes = at->bag_slots * k->slot_bytes(d.kind == SHEAF_BAG_MAX ? REDUCE_EXTREME : REDUCE_SUM, d.dim);
  }
  at->list = bytes;
  if (is_backward(d.kind) || at->bag_slots) bytes += list_bytes(listed_entries(p), least_listed(d.kind));
  at->slots = bytes;
  at->total = bytes + slot_bytes;
  return error;
}

sheaf_status embedding_sizes(const shf_device_problem &p, shf_device_sizes *sizes)
{
  Layout at;
  sheaf_status status = check(lay_out(p, &at), "asking CUB how much memory it sorts with");
  if (status != SHEAF_OK) return status;
  sizes->workspace = at.total;
  sizes->grouping = is_backward(p.embedding->kind) ? at.grouping.total : 0;
  sizes->grouping_read = is_backward(p.embedding->kind) ? at.grouping.read : 0;
  return SHEAF_OK;
}

// ---- Steps ----

struct Run {
  Launcher &l;
  const shf_device_call &call;
  const sheaf_embedding_desc &d;
  const Kernels *k;
  Layout at;
  const shf_matrix &operand(int which) const { return call.operands[which]; }
};

// What every task over indices has in common.
static Task index_task(const Run &r)
{
  const sheaf_embedding_desc &d = r.d;
  bool keeps_padding = d.kind == SHEAF_LOOKUP && d.padding == SHEAF_PADDING_ROW;
  Task t = {};
  t.dim = d.dim;
  t.groups = t.bags = d.bags;
  t.entries = t.entry_stride = d.indices;
  t.batch = r.call.problem.batch;
  t.offsets = r.operand(AT_offsets).data;
  t.offsets_batch = r.operand(AT_offsets).batch_stride;
  t.offsets_wide = d.offset_dtype == SHEAF_I64;
  t.offsets_end = d.bag_form == SHEAF_BAGS_OFFSETS_END;
  t.bag_length = bag_length(d);
  t.guess_length = d.bags > 0 && d.indices % d.bags == 0 ? d.indices / d.bags : 0;
  t.decode = BY_INDEX;
  t.index = r.operand(AT_indices);
  t.index_wide = d.index_dtype == SHEAF_I64;
  t.weights = r.operand(AT_weights);
  t.weighted = d.weighted;
  t.rows = d.rows;
  t.row_begin = d.row_begin;
  t.total_rows = d.total_rows;
  t.padding = d.has_padding && !keeps_padding ? d.padding_idx : -1;
  t.source = r.operand(AT_table);
  t.out_dtype = d.out_dtype;
  return t;
}

static void scan(const Run &r)
{
  if (!r.call.report && !r.l.loading) return;
  const sheaf_embedding_desc &d = r.d;
  bool max_backward = d.kind == SHEAF_BAG_MAX_BACKWARD;
  ScanTask t = {};
  t.index = r.operand(max_backward ? AT_arg : AT_indices);
  t.index_wide = d.index_dtype == SHEAF_I64;
  t.batch = r.call.problem.batch;
  t.rows = max_backward ? d.bags : 1;
  t.columns = max_backward ? d.dim : d.indices;
  t.limit = d.total_rows;
  t.allow_absent = max_backward;
  if (!is_lookup(d.kind) && !max_backward && d.bag_form != SHEAF_BAGS_MATRIX) t.offsets = r.operand(AT_offsets);
  t.offsets_wide = d.offset_dtype == SHEAF_I64;
  t.with_end = d.bag_form == SHEAF_BAGS_OFFSETS_END;
  t.bags = d.bags;
  t.report = r.call.report;
  scan_values(r.l, t);
}

static void run_lookup(const Run &r)
{
  Task t = index_task(r);
  t.target = r.operand(AT_out);
  if (r.k->lookup) {
    r.k->lookup(r.l, t);
    return;
  }
  CopyTask c = {};
  c.entries = t.entries;
  c.batch = t.batch;
  c.row_bytes = t.dim * r.k->cell_bytes;
  c.index = t.index;
  c.index_wide = t.index_wide;
  c.source = t.source;
  c.target = t.target;
  c.rows = t.rows;
  c.row_begin = t.row_begin;
  c.total_rows = t.total_rows;
  c.padding = t.padding;
  copy_rows(r.l, c);
}

static void set_slots(const Run &r, Task *t, int64_t count, Reduction reduction)
{
  t->slots = r.call.workspace + r.at.slots;
  t->slot_count = count;
  t->slot_bytes = r.k->slot_bytes(reduction, t->dim);
  t->list = list_in(r.call.workspace + r.at.list, listed_entries(r.call.problem), least_listed(r.d.kind));
}

static void run_bags(const Run &r)
{
  Task t = index_task(r);
  Reduction reduction = r.d.kind == SHEAF_BAG_MAX ? REDUCE_EXTREME : REDUCE_SUM;
  t.target = r.operand(AT_out);
  t.arg = r.operand(AT_arg);
  t.arg_wide = t.index_wide;
  t.sink = r.d.kind == SHEAF_BAG_MEAN ? SINK_MEAN : SINK_SUM;
  set_slots(r, &t, r.at.bag_slots, reduction);
  r.k->reduce(r.l, t, reduction);
}

// Mean backward needs what each bag was divided by.
static void run_divisors(const Run &r)
{
  Task t = index_task(r);
  t.dim = 0;
  t.source = shf_matrix();
  t.target.data = r.call.workspace + r.at.divisors;
  t.target.row_stride = r.k->acc_bytes;
  t.target.batch_stride = r.d.bags * r.k->acc_bytes;
  t.sink = SINK_COUNT;
  set_slots(r, &t, r.at.bag_slots, REDUCE_SUM);
  r.k->reduce(r.l, t, REDUCE_SUM);
}

static void run_weights_grad(const Run &r)
{
  WeightsGradTask w = {};
  w.task = index_task(r);
  w.task.weighted = 0; // the weights themselves do not matter
  w.task.target = r.operand(AT_weights_grad);
  w.grad_out = r.operand(AT_grad_out);
  w.mean = r.d.kind == SHEAF_BAG_MEAN_BACKWARD;
  if (w.mean) w.forward = r.operand(AT_out);
  if (w.mean) w.task.divisors = r.call.workspace + r.at.divisors;
  r.k->weights_grad(r.l, w);
}

// `emptied`: the list has been, when the entries were grouped.
static void run_table_grad(const Run &r, const GroupingSpec &spec, const void *grouping, bool emptied)
{
  const sheaf_embedding_desc &d = r.d;
  bool overwrite = d.grad_write == SHEAF_GRAD_OVERWRITE, cells = d.kind == SHEAF_BAG_MAX_BACKWARD;
  Task t = index_task(r);
  t.target = r.operand(AT_table_grad);
  if (overwrite || r.l.loading) clear_rows(r.l, t.target, d.rows, t.batch, d.dim * r.k->cell_bytes);
  t.decode = BY_GRADIENT;
  t.sorted = grouping_in(spec, r.at.grouping, grouping);
  t.groups = spec.groups;
  t.entries = spec.entries;
  t.source = r.operand(AT_grad_out);
  t.payload_is_bag = spec.payload_is_bag;
  if (spec.with_bag_of) t.bag_of = (const char *)grouping + r.at.grouping.bag_of;
  if (d.kind == SHEAF_BAG_MEAN_BACKWARD) t.divisors = r.call.workspace + r.at.divisors;
  t.by_frequency = d.scale_grad_by_freq;
  t.sink = d.grad_write == SHEAF_GRAD_ACCUMULATE ? SINK_ADD : SINK_SUM;
  if (cells) {
    t.columns = d.dim;
    t.dim = 1;
  }
  set_slots(r, &t, r.at.row_slots, REDUCE_SUM);
  t.awaits = emptied;
  r.k->reduce_runs(r.l, t);
}

static void run_backward(const Run &r)
{
  bool table = r.operand(AT_table_grad).data && r.d.dim > 0, weights = r.operand(AT_weights_grad).data;
  GroupingSpec spec = grouping_spec(r.call.problem);
  const void *grouping = r.call.grouping;
  bool divides = r.d.kind == SHEAF_BAG_MEAN_BACKWARD, empties = false; // divisors need the list, too
  if (r.l.loading) {
    table = true;
    weights = r.d.weighted;
  }
  if (table && !grouping) {
    spec.index = r.operand(r.d.kind == SHEAF_BAG_MAX_BACKWARD ? AT_arg : AT_indices);
    spec.offsets = r.operand(AT_offsets);
    empties = !divides && spec.entries * spec.batch > 0;
    if (empties) spec.list_count = (unsigned long long *)(r.call.workspace + r.at.list);
    make_grouping(r.l, spec, r.call.workspace);
    grouping = r.call.workspace;
  }
  if (divides) run_divisors(r);
  if (weights) run_weights_grad(r);
  if (table) run_table_grad(r, spec, grouping, empties);
}

void embedding_run(Launcher &l, const shf_device_call &call)
{
  Run r = {l, call, *call.problem.embedding, kernels_of(call.problem.embedding->dtype), Layout()};
  l.error = lay_out(call.problem, &r.at);
  if (l.error != cudaSuccess) return;
  scan(r);
  if (r.d.dim == 0 && !r.operand(AT_weights_grad).data && !l.loading) return; // no element to write
  if (is_backward(r.d.kind))
    run_backward(r);
  else if (r.d.kind == SHEAF_LOOKUP)
    run_lookup(r);
  else
    run_bags(r);
}

void embedding_group(Launcher &l, const shf_device_call &call, void *grouping)
{
  Run r = {l, call, *call.problem.embedding, kernels_of(call.problem.embedding->dtype), Layout()};
  scan(r);
  GroupingSpec spec = grouping_spec(call.problem);
  spec.index = r.operand(r.d.kind == SHEAF_BAG_MAX_BACKWARD ? AT_arg : AT_indices);
  spec.offsets = r.operand(AT_offsets);
  make_grouping(l, spec, grouping);
}

} // namespace shf
