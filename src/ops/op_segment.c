/* op_segment.c: segment reductions over sorted and unsorted ids: arguments become a call. */
#include <inttypes.h>

#include "ops/ops_impl.h"

static sheaf_status reduce_segments(sheaf_tensor *data, sheaf_reduce reduce, sheaf_tensor *ids, int64_t segments,
                                    int sorted, const sheaf_segment_options *options, sheaf_tensor **out)
{
  static const sheaf_segment_options usual = SHEAF_SEGMENT_OPTIONS_INIT;
  SHF_REQUIRE(out, INVALID_PROBLEM, "segment_reduce: out is NULL");
  SHF_TRY(shf_ops_check_options(options, sizeof *options, "segment_reduce"));
  if (!options) options = &usual;
  SHF_REQUIRE(segments >= 0, INVALID_PROBLEM, "segment_reduce: %" PRId64 " segments", segments);
  SHF_REQUIRE(options->skip_bad_ids <= 1 && (unsigned)options->empty <= SHEAF_EMPTY_IDENTITY &&
                  (unsigned)options->ties <= SHEAF_TIES_SPLIT,
              INVALID_PROBLEM, "segment_reduce: skip_bad_ids %d, empty %d, ties %d", options->skip_bad_ids,
              (int)options->empty, (int)options->ties);
  SHF_REQUIRE(ids || sheaf_keyset_contains(sheaf_tensor_keys(data), SHEAF_KEY_NESTED), INVALID_PROBLEM,
              "segment_reduce: ids are NULL, which only nested data allow");
  sheaf_tensor *inputs[] = {data, ids}, *outputs[] = {*out, NULL};
  sheaf_attr attrs[SHEAF_SEGMENT_ATTRS] = {[SHEAF_SEGMENT_REDUCE].i = reduce,
                                           [SHEAF_SEGMENT_SORTED].i = sorted,
                                           [SHEAF_SEGMENT_SEGMENTS].i = segments,
                                           [SHEAF_SEGMENT_EMPTY].i = options->empty,
                                           [SHEAF_SEGMENT_TIES].i = options->ties,
                                           [SHEAF_SEGMENT_BAD_INDEX].i =
                                               options->skip_bad_ids ? SHEAF_BAD_INDEX_SKIP : SHEAF_BAD_INDEX_ERROR,
                                           [SHEAF_SEGMENT_OUT_DTYPE].i = options->out_dtype};
  sheaf_call call = shf_ops_call(SHEAF_OP_SEGMENT_REDUCE, inputs, 2, outputs, 2, attrs, SHEAF_SEGMENT_ATTRS);
  if (options->out_dtype >= SHEAF_INT8) call.include = sheaf_keyset_of(SHEAF_KEY_QUANTIZED);
  SHF_TRY(shf_ops_enter(&call));
  *out = outputs[0];
  return SHEAF_OK;
}

sheaf_status sheaf_segment_reduce(sheaf_tensor *data, sheaf_reduce reduce, sheaf_tensor *ids, int64_t segments,
                                  const sheaf_segment_options *options, sheaf_tensor **out)
{
  return reduce_segments(data, reduce, ids, segments, 1, options, out);
}

sheaf_status sheaf_unsorted_segment_reduce(sheaf_tensor *data, sheaf_reduce reduce, sheaf_tensor *ids, int64_t segments,
                                           const sheaf_segment_options *options, sheaf_tensor **out)
{
  return reduce_segments(data, reduce, ids, segments, 0, options, out);
}
