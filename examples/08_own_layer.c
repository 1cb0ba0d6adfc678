/* 08_own_layer.c: a layer and an op of one's own: a layer that counts how often each row is looked up, in front of the
 * CPU's kernel, and an op `row_norms` with a gradient, which composes with everything else. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <sheaf/sheaf.h>

enum { ROWS = 5, DIM = 2, ENTRIES = 6 };

static void must(sheaf_status status)
{
  if (status == SHEAF_OK) return;
  fprintf(stderr, "%s: %s\n", sheaf_status_name(status), sheaf_last_error());
  exit(1);
}

/* ---- The layer ---- */

/* Runs in front of the Cpu kernel of `embedding`, below autograd, vmap and the rest: whatever form the user's call had,
 * here are plain indices. */
static sheaf_status count_rows(const sheaf_call *call, const sheaf_frame *frame)
{
  int *uses = frame->context;
  sheaf_status status = sheaf_call_replaced(call, frame); /* the kernel that was there; it also checks the indices */
  const sheaf_tensor *indices = call->inputs[1];
  if (status != SHEAF_OK || sheaf_tensor_dtype(indices) != SHEAF_I64) return status;
  for (int64_t i = 0; i < sheaf_tensor_extent(indices, 0); i++) uses[((int64_t *)sheaf_tensor_data(indices))[i]]++;
  return status;
}

/* ---- The op: out[r] = |x[r]|, over f32 rows ---- */

static sheaf_status row_norms(const sheaf_call *call, const sheaf_frame *frame)
{
  (void)frame;
  const sheaf_tensor *x = call->inputs[0];
  int64_t rows = sheaf_tensor_extent(x, 0), dim = sheaf_tensor_extent(x, 1);
  sheaf_status status = sheaf_tensor_new(SHEAF_F32, 1, &rows, &call->outputs[0]);
  if (status != SHEAF_OK) return status;
  const float *from = sheaf_tensor_data(x);
  float *to = sheaf_tensor_data(call->outputs[0]);
  for (int64_t r = 0; r < rows; r++) {
    float sum = 0;
    for (int64_t d = 0; d < dim; d++) sum += from[r * dim + d] * from[r * dim + d];
    to[r] = sqrtf(sum);
  }
  return SHEAF_OK;
}

/* The gradient of |x| is x / |x|. Input and output were saved, since the description below asks for them. */
static sheaf_status row_norms_backward(const sheaf_call *forward, sheaf_tensor *const *inputs_like,
                                       sheaf_tensor *const *output_grads, uint32_t wanted, sheaf_tensor **input_grads,
                                       void *context)
{
  (void)inputs_like;
  (void)wanted;
  (void)context;
  const sheaf_tensor *x = forward->inputs[0];
  int64_t shape[] = {sheaf_tensor_extent(x, 0), sheaf_tensor_extent(x, 1)};
  sheaf_status status = sheaf_tensor_new(SHEAF_F32, 2, shape, &input_grads[0]);
  if (status != SHEAF_OK) return status;
  const float *from = sheaf_tensor_data(x), *norm = sheaf_tensor_data(forward->outputs[0]);
  const float *grad = sheaf_tensor_data(output_grads[0]);
  float *to = sheaf_tensor_data(input_grads[0]);
  for (int64_t i = 0; i < shape[0] * shape[1]; i++) {
    int64_t r = i / shape[1];
    to[i] = norm[r] > 0 ? grad[r] * from[i] / norm[r] : 0;
  }
  return SHEAF_OK;
}

static sheaf_op register_row_norms(void)
{
  static const char *const inputs[] = {"rows"}, *const outputs[] = {"norms"};
  sheaf_op_spec spec = SHEAF_OP_SPEC_INIT;
  sheaf_op op;
  spec.name = "row_norms";
  spec.inputs = spec.outputs = 1;
  spec.input_names = inputs;
  spec.output_names = outputs;
  must(sheaf_op_register(&spec, &op));
  must(sheaf_layer_register(op, SHEAF_KEY_CPU, row_norms, NULL));
  sheaf_gradient gradient = SHEAF_GRADIENT_INIT;
  gradient.differentiable = gradient.save_inputs = gradient.save_outputs = 1;
  gradient.backward = row_norms_backward;
  must(sheaf_gradient_register(op, &gradient));
  return op;
}

int main(void)
{
  static int uses[ROWS];
  must(sheaf_layer_register(SHEAF_OP_EMBEDDING, SHEAF_KEY_CPU, count_rows, uses));
  sheaf_op op = register_row_norms();

  sheaf_tensor *table, *indices, *rows = NULL, *norms = NULL;
  must(sheaf_tensor_new(SHEAF_F32, 2, (int64_t[]){ROWS, DIM}, &table));
  must(sheaf_tensor_new(SHEAF_I64, 1, (int64_t[]){ENTRIES}, &indices));
  const int64_t wanted[ENTRIES] = {3, 0, 3, 4, 3, 0};
  for (int i = 0; i < ENTRIES; i++) ((int64_t *)sheaf_tensor_data(indices))[i] = wanted[i];
  for (int r = 0; r < ROWS; r++) { /* rows (3, 4), (6, 8) ... of length 5, 10 ... */
    ((float *)sheaf_tensor_data(table))[r * DIM] = 3.0F * (float)(r + 1);
    ((float *)sheaf_tensor_data(table))[r * DIM + 1] = 4.0F * (float)(r + 1);
  }
  must(sheaf_tensor_require_grad(table, SHEAF_GRAD_DENSE));

  must(sheaf_embedding(indices, table, NULL, &rows)); /* Autograd records, then our layer counts */
  sheaf_call call = SHEAF_CALL_INIT;
  call.op = op;
  call.inputs = &rows;
  call.outputs = &norms;
  call.input_count = call.output_count = 1;
  must(sheaf_dispatch(&call));
  must(sheaf_backward(norms, NULL, NULL));

  int wrong = 0;
  const float *grad = sheaf_tensor_data(sheaf_tensor_grad(table));
  for (int r = 0; r < ROWS; r++) {
    printf("row %d: looked up %d times, gradient %.1f %.1f\n", r, uses[r], (double)grad[r * DIM],
           (double)grad[r * DIM + 1]);
    wrong += fabsf(grad[r * DIM] - 0.6F * (float)uses[r]) > 1e-5F ||
             fabsf(grad[r * DIM + 1] - 0.8F * (float)uses[r]) > 1e-5F;
  }
  wrong += uses[3] != 3 || uses[0] != 2 || uses[4] != 1 || uses[1] != 0;
  sheaf_tensor *all[] = {table, indices, rows, norms};
  for (int i = 0; i < 4; i++) sheaf_tensor_release(all[i]);
  puts(wrong ? "WRONG" : "as expected");
  return wrong != 0;
}
