/* op_embedding_bag.c: sheaf_embedding_bag: arguments become a call. */
#include <inttypes.h>

#include "ops/ops_impl.h"

static sheaf_status check(const sheaf_embedding_bag_options *o)
{
  SHF_REQUIRE(o->has_padding <= 1 && o->scale_grad_by_freq <= 1 && o->sparse <= 2 && o->skip_bad_indices <= 1 &&
                  o->include_last_offset <= 1 && o->lengths <= 1,
              INVALID_PROBLEM,
              "embedding_bag: has_padding %d, scale_grad_by_freq %d, sparse %d (0 to 2), skip_bad_indices %d, "
              "include_last_offset %d, lengths %d",
              o->has_padding, o->scale_grad_by_freq, o->sparse, o->skip_bad_indices, o->include_last_offset,
              o->lengths);
  SHF_REQUIRE(!o->has_padding || o->padding_idx >= 0, INVALID_PROBLEM, "embedding_bag: padding_idx is %" PRId64,
              o->padding_idx);
  SHF_REQUIRE(!o->lengths || !o->include_last_offset, INVALID_PROBLEM,
              "embedding_bag: lengths have no last offset; include_last_offset is set too");
  return SHEAF_OK;
}

sheaf_status sheaf_embedding_bag(sheaf_tensor *indices, sheaf_tensor *table, sheaf_tensor *offsets,
                                 const sheaf_embedding_bag_options *options, sheaf_tensor **out)
{
  static const sheaf_embedding_bag_options usual = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  SHF_REQUIRE(out, INVALID_PROBLEM, "embedding_bag: out is NULL");
  if (options) {
    SHF_TRY(shf_ops_check_options(options, sizeof *options, "embedding_bag"));
    SHF_TRY(check(options));
  } else {
    options = &usual;
  }
  int64_t form = !offsets                       ? SHEAF_BAGS_MATRIX
                 : options->lengths             ? SHEAF_BAGS_LENGTHS
                 : options->include_last_offset ? SHEAF_BAGS_OFFSETS_END
                                                : SHEAF_BAGS_OFFSETS;
  sheaf_tensor *inputs[] = {table, indices, offsets, options->per_sample_weights}, *outputs[] = {*out, NULL};
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS] = {
      [SHEAF_EMBEDDING_PADDING_IDX].i = options->has_padding ? options->padding_idx : -1,
      [SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ].i = options->scale_grad_by_freq,
      [SHEAF_EMBEDDING_SPARSE].i = options->sparse,
      [SHEAF_EMBEDDING_BAD_INDEX].i = options->skip_bad_indices ? SHEAF_BAD_INDEX_SKIP : SHEAF_BAD_INDEX_ERROR,
      [SHEAF_EMBEDDING_OUT_DTYPE].i = options->out_dtype,
      [SHEAF_EMBEDDING_MODE].i = options->mode,
      [SHEAF_EMBEDDING_BAG_FORM].i = form};
  sheaf_call call = shf_ops_call(SHEAF_OP_EMBEDDING_BAG, inputs, 4, outputs, 2, attrs, SHEAF_EMBEDDING_ATTRS);
  if (options->out_dtype >= SHEAF_INT8) call.include = sheaf_keyset_of(SHEAF_KEY_QUANTIZED);
  SHF_TRY(shf_ops_enter(&call));
  *out = outputs[0];
  return SHEAF_OK;
}
