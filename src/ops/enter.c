/* enter.c: the way from a public op into the dispatcher. */
#include "ops/ops_impl.h"

static const unsigned data_keys = 7; /* Cpu, Cuda, Meta */

static sheaf_status mixed(const sheaf_call *call)
{
  int first = -1;
  for (int i = 0; i < call->input_count; i++) {
    if (!call->inputs[i]) continue;
    unsigned here = call->inputs[i]->keys.bits & data_keys;
    if (first < 0) {
      first = i;
      continue;
    }
    unsigned there = call->inputs[first]->keys.bits & data_keys;
    SHF_REQUIRE(here == there, INVALID_PROBLEM, "%s: %s lies on %s, but %s on %s; all must lie on one",
                sheaf_op_describe(call->op)->name, shf_dispatch_input_name(call->op, first),
                sheaf_dispatch_key_name(sheaf_keyset_highest(sheaf_keyset_from(there))),
                shf_dispatch_input_name(call->op, i),
                sheaf_dispatch_key_name(sheaf_keyset_highest(sheaf_keyset_from(here))));
  }
  return shf_core_fail(SHEAF_INVALID_PROBLEM, "%s: parts of one tensor lie on different devices",
                       sheaf_op_describe(call->op)->name);
}

sheaf_status shf_ops_enter(const sheaf_call *call)
{
  unsigned bits = 0;
  for (int i = 0; i < call->input_count; i++)
    if (call->inputs[i]) bits |= call->inputs[i]->keys.bits;
  bits &= data_keys;
  if (__builtin_expect((bits & (bits - 1)) != 0, 0)) return mixed(call);
  return sheaf_dispatch(call);
}

sheaf_status shf_ops_check_options(const void *options, size_t known, const char *op)
{
  if (!options) return SHEAF_OK;
  const size_t size = *(const size_t *)options;
  SHF_REQUIRE(size >= known && size <= 65536, INVALID_PROBLEM,
              "%s: options.struct_size is %zu, but this version has %zu bytes; initialise it with its _INIT macro", op,
              size, known);
  for (size_t i = known; i < size; i++)
    SHF_REQUIRE(((const char *)options)[i] == 0, INVALID_PROBLEM,
                "%s: options have a nonzero byte at %zu, beyond the %zu that this version understands", op, i, known);
  return SHEAF_OK;
}

sheaf_status shf_ops_unary(sheaf_op op, sheaf_tensor *tensor, const sheaf_attr *attrs, int attr_count,
                           sheaf_tensor **out)
{
  SHF_REQUIRE(out, INVALID_PROBLEM, "%s: out is NULL", sheaf_op_describe(op)->name);
  sheaf_call call = shf_ops_call(op, &tensor, 1, out, 1, attrs, attr_count);
  return shf_ops_enter(&call);
}
