/* op_embedding.c: sheaf_embedding: arguments become a call. */
#include <inttypes.h>

#include "ops/ops_impl.h"

static sheaf_status check(const sheaf_embedding_options *o)
{
  SHF_REQUIRE(o->has_padding <= 1 && o->scale_grad_by_freq <= 1 && o->sparse <= 2 && o->skip_bad_indices <= 1,
              INVALID_PROBLEM,
              "embedding: has_padding %d, scale_grad_by_freq %d, sparse %d (0 to 2), skip_bad_indices %d",
              o->has_padding, o->scale_grad_by_freq, o->sparse, o->skip_bad_indices);
  SHF_REQUIRE(!o->has_padding || o->padding_idx >= 0, INVALID_PROBLEM, "embedding: padding_idx is %" PRId64,
              o->padding_idx);
  return SHEAF_OK;
}

sheaf_status sheaf_embedding(sheaf_tensor *indices, sheaf_tensor *table, const sheaf_embedding_options *options,
                             sheaf_tensor **out)
{
  static const sheaf_embedding_options usual = SHEAF_EMBEDDING_OPTIONS_INIT;
  SHF_REQUIRE(out, INVALID_PROBLEM, "embedding: out is NULL");
  if (options) {
    SHF_TRY(shf_ops_check_options(options, sizeof *options, "embedding"));
    SHF_TRY(check(options));
  } else {
    options = &usual;
  }
  sheaf_tensor *inputs[] = {table, indices};
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS] = {
      [SHEAF_EMBEDDING_PADDING_IDX].i = options->has_padding ? options->padding_idx : -1,
      [SHEAF_EMBEDDING_PADDING].i = options->padding,
      [SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ].i = options->scale_grad_by_freq,
      [SHEAF_EMBEDDING_SPARSE].i = options->sparse,
      [SHEAF_EMBEDDING_BAD_INDEX].i = options->skip_bad_indices ? SHEAF_BAD_INDEX_SKIP : SHEAF_BAD_INDEX_ERROR,
      [SHEAF_EMBEDDING_OUT_DTYPE].i = options->out_dtype};
  sheaf_call call = shf_ops_call(SHEAF_OP_EMBEDDING, inputs, 2, out, 1, attrs, SHEAF_EMBEDDING_ATTRS);
  if (options->out_dtype >= SHEAF_INT8) call.include = sheaf_keyset_of(SHEAF_KEY_QUANTIZED);
  return shf_ops_enter(&call);
}
