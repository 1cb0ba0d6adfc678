/* enter.c: the way from a public op into the dispatcher. */
#include <stdio.h>

#include "ops/ops_impl.h"

static const char *place_name(const sheaf_tensor *t, char *text, size_t room)
{
  if (!shf_is_on(t, SHEAF_KEY_CUDA)) return sheaf_dispatch_key_name((int)shf_data_key(t));
  snprintf(text, room, "%s device %d", sheaf_dispatch_key_name(SHEAF_KEY_CUDA), shf_device_of(t).device_id);
  return text;
}

/* Says which inputs lie in different places, if there are two. */
static sheaf_status check_places(const sheaf_call *call)
{
  const sheaf_tensor *first = NULL;
  const char *op = sheaf_op_describe(call->op)->name;
  int first_at = 0;
  for (int i = 0; i < call->input_count; i++) {
    const sheaf_tensor *t = call->inputs[i];
    if (!t) continue;
    unsigned bits = t->keys.bits & SHF_DATA_KEYS;
    SHF_REQUIRE((bits & (bits - 1)) == 0, INVALID_PROBLEM, "%s: parts of one tensor lie on different devices", op);
    char here[40], there[40];
    SHF_REQUIRE(!first || shf_same_place(first, t), INVALID_PROBLEM,
                "%s: %s lies on %s, but %s on %s; all must lie on one", op, shf_dispatch_input_name(call->op, first_at),
                place_name(first, there, sizeof there), shf_dispatch_input_name(call->op, i),
                place_name(t, here, sizeof here));
    if (!first) first_at = i;
    if (!first) first = t;
  }
  return SHEAF_OK;
}

/* A result that is written into a leaf, or over another result of a graph, would have a gradient that is not its
 * own. */
static sheaf_status check_outputs(const sheaf_call *call)
{
  if (sheaf_keyset_contains(sheaf_excluded_keys(), SHEAF_KEY_AUTOGRAD)) return SHEAF_OK;
  for (int i = 0; i < call->output_count; i++) {
    const sheaf_tensor *given = call->outputs[i];
    SHF_REQUIRE(!sheaf_tensor_requires_grad(given), INVALID_PROBLEM,
                "%s: its output is given as a tensor%s%s that requires a gradient; use no_grad",
                sheaf_op_describe(call->op)->name, given->name[0] ? " " : "", given->name);
  }
  return SHEAF_OK;
}

sheaf_status shf_ops_enter(const sheaf_call *call)
{
  unsigned bits = 0;
  SHF_TRY(check_outputs(call));
  for (int i = 0; i < call->input_count; i++)
    if (call->inputs[i]) bits |= call->inputs[i]->keys.bits;
  bits &= SHF_DATA_KEYS;
  if (__builtin_expect(bits & (bits - 1) || bits == SHF_BIT(SHEAF_KEY_CUDA), 0)) SHF_TRY(check_places(call));
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
