/* ops_impl.h: what the files of ops/ share: checks that come before the dispatcher. */
#ifndef SHF_OPS_IMPL_H
#define SHF_OPS_IMPL_H

#include <sheaf/ops.h>

#include "dispatch/dispatch_impl.h"

/* Checks that all data lies in one kind of place; then dispatches. */
sheaf_status shf_ops_enter(const sheaf_call *call);

/* An options struct, or NULL, that this version understands. */
sheaf_status shf_ops_check_options(const void *options, size_t known, const char *op);

/* The call of an op with one tensor and up to two integers. */
sheaf_status shf_ops_unary(sheaf_op op, sheaf_tensor *tensor, const sheaf_attr *attrs, int attr_count,
                           sheaf_tensor **out);

static inline sheaf_call shf_ops_call(sheaf_op op, sheaf_tensor *const *inputs, int input_count, sheaf_tensor **outputs,
                                      int output_count, const sheaf_attr *attrs, int attr_count)
{
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = op;
  call.inputs = inputs;
  call.input_count = input_count;
  call.outputs = outputs;
  call.output_count = output_count;
  call.attrs = attrs;
  call.attr_count = attr_count;
  return call;
}

#endif
