/* layer_calls.c: how layers call other ops, and hand on results. */
#define _POSIX_C_SOURCE 199309L
#include <time.h>

#include "layers/layers_impl.h"

sheaf_status shf_send(const sheaf_call *call, const sheaf_frame *frame)
{
  return frame ? shf_redispatch(call, frame) : sheaf_dispatch(call);
}

static sheaf_status send_with(sheaf_op op, sheaf_tensor *const *inputs, int count, const sheaf_attr *attr,
                              const sheaf_frame *frame, sheaf_tensor **out)
{
  sheaf_call call = SHEAF_CALL_INIT;
  *out = NULL;
  call.op = op;
  call.inputs = inputs;
  call.input_count = count;
  call.outputs = out;
  call.output_count = 1;
  call.attrs = attr;
  call.attr_count = attr ? 1 : 0;
  return shf_send(&call, frame);
}

sheaf_status shf_send_dtype(sheaf_op op, sheaf_tensor *tensor, sheaf_dtype dtype, const sheaf_frame *frame,
                            sheaf_tensor **out)
{
  sheaf_attr attr = {.i = dtype};
  if (op == SHEAF_OP_CAST && tensor->dtype == dtype) {
    *out = sheaf_tensor_retain(tensor);
    return SHEAF_OK;
  }
  return send_with(op, &tensor, 1, &attr, frame, out);
}

sheaf_status shf_send_unary(sheaf_op op, sheaf_tensor *tensor, const sheaf_frame *frame, sheaf_tensor **out)
{
  return send_with(op, &tensor, 1, NULL, frame, out);
}

sheaf_status shf_send_reshape(sheaf_tensor *tensor, int rank, const int64_t *shape, const sheaf_frame *frame,
                              sheaf_tensor **out)
{
  sheaf_attr attrs[1 + SHEAF_TENSOR_MAX_RANK] = {{.i = rank}};
  for (int i = 0; i < rank && i < SHEAF_TENSOR_MAX_RANK; i++) attrs[i + 1].i = shape[i];
  sheaf_call call = SHEAF_CALL_INIT;
  *out = NULL;
  call.op = SHEAF_OP_RESHAPE;
  call.inputs = &tensor;
  call.outputs = out;
  call.attrs = attrs;
  call.input_count = call.output_count = 1;
  call.attr_count = 1 + SHEAF_TENSOR_MAX_RANK;
  return shf_send(&call, frame);
}

sheaf_status shf_send_expand(sheaf_tensor *tensor, int64_t count, const sheaf_frame *frame, sheaf_tensor **out)
{
  sheaf_attr attr = {.i = count};
  return send_with(SHEAF_OP_EXPAND, &tensor, 1, &attr, frame, out);
}

sheaf_status shf_send_add(sheaf_tensor *a, sheaf_tensor *b, double alpha, const sheaf_frame *frame, sheaf_tensor **out)
{
  sheaf_tensor *inputs[] = {a, b};
  sheaf_attr attr = {.f = alpha};
  return send_with(SHEAF_OP_ADD, inputs, 2, &attr, frame, out);
}

sheaf_status shf_deliver(const sheaf_call *call, int output, sheaf_tensor *result)
{
  sheaf_tensor *given = call->outputs[output];
  if (!given) {
    call->outputs[output] = result;
    return SHEAF_OK;
  }
  sheaf_attr dtype = {.i = result->dtype};
  sheaf_call copy = SHEAF_CALL_INIT;
  copy.op = SHEAF_OP_CAST;
  copy.inputs = &result;
  copy.outputs = &given;
  copy.attrs = &dtype;
  copy.input_count = copy.output_count = copy.attr_count = 1;
  sheaf_status status = sheaf_dispatch_to(&copy, shf_data_key(result));
  sheaf_tensor_release(result);
  return status;
}

sheaf_status shf_check_output_place(const sheaf_call *call, const sheaf_tensor *given)
{
  const sheaf_tensor *input = call->inputs[0];
  SHF_REQUIRE(shf_same_place(given, input), INVALID_PROBLEM,
              "%s: its output is given on %s (device %d), but %s lies on %s (device %d)", shf_op_name(call),
              sheaf_dispatch_key_name((int)shf_data_key(given)), shf_device_of(given).device_id,
              shf_dispatch_input_name(call->op, 0), sheaf_dispatch_key_name((int)shf_data_key(input)),
              shf_device_of(input).device_id);
  return SHEAF_OK;
}

sheaf_status shf_deliver_same(const sheaf_call *call, sheaf_tensor *tensor)
{
  return shf_deliver(call, 0, sheaf_tensor_retain(tensor));
}

sheaf_status shf_through_host(const sheaf_call *call, const sheaf_frame *frame, sheaf_kernel kernel)
{
  sheaf_tensor *input, *result = NULL, *back = NULL;
  sheaf_frame host_frame = *frame;
  if (frame->key == SHEAF_KEY_CUDA) host_frame.key = SHEAF_KEY_CPU;
  SHF_TRY(shf_tensor_on_host(call->inputs[0], &input));
  sheaf_call host = *call;
  host.inputs = &input;
  host.outputs = &result;
  sheaf_status status = kernel(&host, &host_frame);
  if (status == SHEAF_OK) status = sheaf_tensor_to(result, shf_device_of(call->inputs[0]), &back);
  sheaf_tensor_release(result);
  sheaf_tensor_release(input);
  return status == SHEAF_OK ? shf_deliver(call, 0, back) : status;
}

int64_t shf_now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
