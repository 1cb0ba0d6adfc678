/* full_call.c: calls with every operand that their kind takes. */
#include "full_call.h"

#include <string.h>

embedding_call call_embedding(sheaf_embedding_desc desc, const int64_t *indices, int64_t offset_count,
                              const int64_t *offsets)
{
  embedding_call c = {.desc = desc, .args = SHEAF_EMBEDDING_ARGS_INIT};
  const bool lookup = desc.kind == SHEAF_LOOKUP || desc.kind == SHEAF_LOOKUP_BACKWARD;
  const bool backward = desc.kind == SHEAF_LOOKUP_BACKWARD || desc.kind == SHEAF_BAG_SUM_BACKWARD ||
                        desc.kind == SHEAF_BAG_MEAN_BACKWARD || desc.kind == SHEAF_BAG_MAX_BACKWARD;
  const int64_t results = lookup ? desc.indices : desc.bags;
  if (!backward || desc.weighted) {
    c.args.table = tiny_operand(tiny_matrix(desc.dtype, desc.rows, desc.dim, NULL));
  }
  if (desc.kind != SHEAF_BAG_MAX_BACKWARD) {
    c.args.indices = tiny_operand(tiny_ints(desc.index_dtype, desc.indices, indices));
  }
  if (!lookup && desc.kind != SHEAF_BAG_MAX_BACKWARD) {
    c.args.offsets = tiny_operand(tiny_ints(desc.index_dtype, offset_count, offsets));
  }
  if (desc.weighted) {
    c.args.weights = tiny_operand(tiny_vector(desc.dtype, desc.indices, NULL));
  }
  if (backward) {
    c.args.grad_out = tiny_operand(tiny_matrix(desc.dtype, results, desc.dim, NULL));
    c.outputs[0] = tiny_matrix(desc.dtype, desc.rows, desc.dim, NULL);
    c.args.table_grad = tiny_operand(c.outputs[0]);
    if (desc.weighted) {
      c.args.out = tiny_operand(tiny_matrix(desc.dtype, results, desc.dim, NULL));
      c.outputs[1] = tiny_vector(desc.dtype, desc.indices, NULL);
      c.args.weights_grad = tiny_operand(c.outputs[1]);
    }
  } else {
    c.outputs[0] = tiny_matrix(desc.dtype, results, desc.dim, NULL);
    c.args.out = tiny_operand(c.outputs[0]);
  }
  if (desc.kind == SHEAF_BAG_MAX) {
    c.outputs[1] = tiny_int_matrix(desc.index_dtype, results, desc.dim, NULL);
    c.args.arg = tiny_operand(c.outputs[1]);
  } else if (desc.kind == SHEAF_BAG_MAX_BACKWARD) {
    c.args.arg = tiny_operand(tiny_int_matrix(desc.index_dtype, results, desc.dim, indices));
  }
  return c;
}

sheaf_embedding_desc describe_embedding(sheaf_embedding_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype,
                                        int64_t count, int64_t bags)
{
  sheaf_embedding_desc desc = tiny_embedding(kind, dtype, index_dtype);
  desc.rows = 4;
  desc.dim = 2;
  desc.indices = kind == SHEAF_BAG_MAX_BACKWARD ? 0 : count;
  desc.bags = kind == SHEAF_LOOKUP || kind == SHEAF_LOOKUP_BACKWARD ? 0 : bags;
  desc.weighted = kind >= SHEAF_BAG_SUM && kind <= SHEAF_BAG_MEAN_BACKWARD;
  return desc;
}

sheaf_status run_embedding(embedding_call *c)
{
  c->args.report = &c->report;
  return tiny_run_embedding(&c->desc, &c->args);
}

bool is_segment_backward(sheaf_segment_kind kind)
{
  return strstr(sheaf_kind_name(SHEAF_CATEGORY_SEGMENT, (uint16_t)kind), "backward") != NULL;
}

bool is_segment_sorted(sheaf_segment_kind kind)
{
  return strstr(sheaf_kind_name(SHEAF_CATEGORY_SEGMENT, (uint16_t)kind), "unsorted") == NULL;
}

segment_call call_segment(sheaf_segment_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype, int64_t count,
                          const int64_t *ids, int64_t segments, int64_t dim)
{
  segment_call c = {.desc = tiny_segment(kind, dtype, index_dtype), .args = SHEAF_SEGMENT_ARGS_INIT};
  c.desc.rows = count;
  c.desc.dim = dim;
  c.desc.segments = segments;
  c.args.data = tiny_operand(tiny_matrix(dtype, count, dim, NULL));
  c.args.ids = tiny_operand(tiny_ints(index_dtype, count, ids));
  const bool backward = is_segment_backward(kind);
  c.outputs[0] = tiny_matrix(dtype, backward ? count : segments, dim, NULL);
  if (backward) {
    c.args.grad_out = tiny_operand(tiny_matrix(dtype, segments, dim, NULL));
    c.args.data_grad = tiny_operand(c.outputs[0]);
  } else {
    c.args.out = tiny_operand(c.outputs[0]);
  }
  return c;
}

sheaf_status run_segment(segment_call *c)
{
  c->args.report = &c->report;
  return tiny_run_segment(&c->desc, &c->args);
}
