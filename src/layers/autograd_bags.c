/* autograd_bags.c: the gradients of embedding bags, and their gradients. */
#include <inttypes.h>

#include "layers/autograd_impl.h"

enum { TABLE = 0, INDICES = 1, OFFSETS = 2, WEIGHTS = 3 }; /* of embedding_bag */
enum { B_GRAD_OUT = 0, B_INDICES, B_OFFSETS, B_WEIGHTS, B_TABLE, B_OUT, B_ARG, BAG_BACKWARD_INPUTS };

/* One bag per bag of every problem: offsets [batch, B] become starts with the end, counted over all entries. */
static sheaf_status merge_offsets(const sheaf_call *forward, int64_t *form, sheaf_tensor **out)
{
  sheaf_tensor *offsets = forward->inputs[OFFSETS];
  *out = NULL;
  if (*form == SHEAF_BAGS_MATRIX) return SHEAF_OK;
  if (*form == SHEAF_BAGS_LENGTHS) return shf_grad_merged_input(forward, OFFSETS, out);
  int shared = !shf_grad_is_batched(forward, OFFSETS);
  int64_t each = offsets->extent[!shared], bags = each - (*form == SHEAF_BAGS_OFFSETS_END);
  int64_t entries = forward->inputs[INDICES]->extent[shf_grad_is_batched(forward, INDICES)],
          all = forward->batch * bags + 1;
  *form = SHEAF_BAGS_OFFSETS_END;
  if (shf_is_on(offsets, SHEAF_KEY_META)) return shf_tensor_make(SHEAF_I64, 1, &all, offsets, out);
  sheaf_tensor *host, *merged = NULL;
  SHF_TRY(shf_tensor_on_host(offsets, &host));
  sheaf_status status = shf_tensor_make(SHEAF_I64, 1, &all, host, &merged);
  if (status == SHEAF_OK) {
    int64_t *to = merged->dl.data;
    for (int64_t p = 0; p < forward->batch; p++)
      for (int64_t b = 0; b < bags; b++) *to++ = p * entries + shf_index_at(host, (shared ? 0 : p * each) + b);
    *to = forward->batch * entries;
    status = sheaf_tensor_to(merged, shf_device_of(offsets), out);
  }
  sheaf_tensor_release(merged);
  sheaf_tensor_release(host);
  return status;
}

/* The inputs of a backward in which all problems are one, for a table that they share. */
static sheaf_status merge_bags(const sheaf_call *forward, sheaf_tensor *grad, sheaf_attr *attrs, sheaf_tensor **inputs)
{
  SHF_TRY(shf_grad_merge_leading(grad, &inputs[B_GRAD_OUT]));
  if (attrs[SHEAF_EMBEDDING_MODE].i == SHEAF_MODE_MAX)
    return shf_grad_merge_leading(forward->outputs[1], &inputs[B_ARG]);
  SHF_TRY(shf_grad_merged_input(forward, INDICES, &inputs[B_INDICES]));
  SHF_TRY(merge_offsets(forward, &attrs[SHEAF_EMBEDDING_BAG_FORM].i, &inputs[B_OFFSETS]));
  SHF_TRY(shf_grad_merged_input(forward, WEIGHTS, &inputs[B_WEIGHTS]));
  inputs[B_TABLE] = sheaf_tensor_retain(forward->inputs[TABLE]);
  return forward->outputs[0] ? shf_grad_merge_leading(forward->outputs[0], &inputs[B_OUT]) : SHEAF_OK;
}

/* ... and problem by problem. */
static void keep_bags(const sheaf_call *forward, sheaf_tensor *grad, sheaf_tensor **inputs, sheaf_call *how)
{
  inputs[B_GRAD_OUT] = sheaf_tensor_retain(grad);
  inputs[B_OUT] = sheaf_tensor_retain(forward->outputs[0]);
  inputs[B_ARG] = sheaf_tensor_retain(forward->output_count > 1 ? forward->outputs[1] : NULL);
  inputs[B_TABLE] = sheaf_tensor_retain(forward->inputs[TABLE]);
  how->batch = forward->batch;
  how->batched = SHF_BIT(B_GRAD_OUT) | SHF_BIT(B_OUT) | SHF_BIT(B_ARG);
  if (shf_grad_is_batched(forward, TABLE)) how->batched |= SHF_BIT(B_TABLE);
  for (int i = INDICES; i <= WEIGHTS; i++) {
    inputs[i] = sheaf_tensor_retain(shf_input(forward, i)); /* the same places in both lists */
    if (shf_grad_is_batched(forward, i)) how->batched |= SHF_BIT(i);
  }
}

/* Floating-point operands in the type that the gradient is computed in. */
static sheaf_status cast_operands(sheaf_tensor **inputs, sheaf_dtype dtype)
{
  static const int typed[] = {B_WEIGHTS, B_TABLE, B_OUT};
  for (size_t i = 0; i < sizeof typed / sizeof *typed; i++) {
    sheaf_tensor **slot = &inputs[typed[i]], *cast;
    if (!*slot || (*slot)->dtype == dtype || shf_is_quantised((*slot)->dtype)) continue;
    SHF_TRY(shf_send_dtype(SHEAF_OP_CAST, *slot, dtype, NULL, &cast));
    sheaf_tensor_release(*slot);
    *slot = cast;
  }
  return SHEAF_OK;
}

/* The weights' gradient as the weights are: cast, in the shape of a batch, summed where problems share them. */
static sheaf_status shape_weights_grad(const sheaf_call *forward, const sheaf_tensor *like, sheaf_tensor **grad)
{
  sheaf_tensor *shaped;
  if (forward->batch) {
    int64_t shape[SHEAF_TENSOR_MAX_RANK] = {forward->batch};
    int own = shf_grad_is_batched(forward, WEIGHTS), rank = like->rank - own;
    for (int i = 0; i < rank; i++) shape[i + 1] = like->extent[i + own];
    SHF_TRY(shf_send_reshape(*grad, rank + 1, shape, NULL, &shaped));
    sheaf_tensor_release(*grad);
    *grad = NULL;
    if (own)
      *grad = shaped;
    else
      SHF_TRY(shf_grad_sum_problems(shaped, grad));
  }
  SHF_TRY(shf_send_dtype(SHEAF_OP_CAST, *grad, like->dtype, NULL, &shaped));
  sheaf_tensor_release(*grad);
  *grad = shaped;
  return SHEAF_OK;
}

sheaf_status shf_grad_bag(SHF_GRADIENT_ARGUMENTS)
{
  (void)context;
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  sheaf_tensor *grad, *inputs[BAG_BACKWARD_INPUTS] = {NULL}, *outputs[2] = {NULL, NULL};
  sheaf_call how = SHEAF_CALL_INIT;
  int table = (wanted >> TABLE & 1) != 0, weights = (wanted >> WEIGHTS & 1) != 0;
  sheaf_dtype dtype = table ? likes[TABLE]->dtype : likes[WEIGHTS]->dtype;
  shf_sharing sharing = shf_grad_sharing(forward);
  shf_grad_attrs(forward, table ? likes[TABLE] : forward->inputs[TABLE], attrs);
  if (table) attrs[SHEAF_EMBEDDING_SPARSE].i = shf_grad_sparse_kind(forward, likes[TABLE]);
  int max = attrs[SHEAF_EMBEDDING_MODE].i == SHEAF_MODE_MAX; /* whose arg alone says where gradients go */
  if (sharing == SHF_SHARES_ENTRIES && !max && forward->inputs[INDICES]->form == SHEAF_FORM_NESTED)
    sharing = SHF_SHARES_SUMS;
  SHF_TRY(shf_send_dtype(SHEAF_OP_CAST, output_grads[0], dtype, NULL, &grad));
  sheaf_status status = SHEAF_OK;
  if (sharing == SHF_SHARES_ENTRIES)
    status = merge_bags(forward, grad, attrs, inputs);
  else
    keep_bags(forward, grad, inputs, &how);
  if (status == SHEAF_OK) status = cast_operands(inputs, dtype);
  if (attrs[SHEAF_EMBEDDING_SPARSE].i) how.include = sheaf_keyset_of(SHEAF_KEY_SPARSE);
  how.wanted = (table ? 1u : 0) | (weights ? 2u : 0);
  if (!weights) {
    shf_drop(&inputs[B_TABLE]);
    shf_drop(&inputs[B_OUT]);
  }
  if (status == SHEAF_OK)
    status = shf_grad_call(SHEAF_OP_EMBEDDING_BAG_BACKWARD, inputs, BAG_BACKWARD_INPUTS, attrs, SHEAF_EMBEDDING_ATTRS,
                           &how, outputs, 2);
  if (status == SHEAF_OK && table) status = shf_grad_sum_shared(sharing, &outputs[0]);
  if (status == SHEAF_OK && weights) status = shape_weights_grad(forward, likes[WEIGHTS], &outputs[1]);
  for (int i = 0; i < BAG_BACKWARD_INPUTS; i++) sheaf_tensor_release(inputs[i]);
  sheaf_tensor_release(grad);
  input_grads[TABLE] = outputs[0];
  input_grads[WEIGHTS] = outputs[1];
  return status;
}

/* ---- Gradients of gradients ---- */

static sheaf_status bag_of(const sheaf_call *forward, int64_t mode, sheaf_tensor *table, sheaf_tensor *weights,
                           uint32_t batched, sheaf_tensor **out)
{
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  memcpy(attrs, forward->attrs, sizeof attrs);
  attrs[SHEAF_EMBEDDING_ROWS].i = attrs[SHEAF_EMBEDDING_SPARSE].i = attrs[SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ].i = 0;
  attrs[SHEAF_EMBEDDING_MODE].i = mode;
  sheaf_tensor *inputs[] = {table, forward->inputs[B_INDICES], forward->inputs[B_OFFSETS], weights};
  sheaf_tensor *outputs[2] = {NULL, NULL};
  sheaf_call how = SHEAF_CALL_INIT;
  how.batch = forward->batch;
  how.batched = batched | (forward->batched & (SHF_BIT(INDICES) | SHF_BIT(OFFSETS)));
  SHF_TRY(shf_grad_call(SHEAF_OP_EMBEDDING_BAG, inputs, 4, attrs, SHEAF_EMBEDDING_ATTRS, &how, outputs, 2));
  *out = outputs[0];
  return SHEAF_OK;
}

/* The gradient of the table (output 0) or of the weights (1), which for a mean needs the bags' means, `means`. */
static sheaf_status bag_backward_of(const sheaf_call *forward, int64_t mode, sheaf_tensor *grad_out,
                                    sheaf_tensor *weights, sheaf_tensor *table, sheaf_tensor *means, uint32_t batched,
                                    int output, sheaf_tensor **out)
{
  sheaf_attr attrs[SHEAF_EMBEDDING_ATTRS];
  memcpy(attrs, forward->attrs, sizeof attrs);
  attrs[SHEAF_EMBEDDING_SPARSE].i = attrs[SHEAF_EMBEDDING_SCALE_GRAD_BY_FREQ].i = 0;
  attrs[SHEAF_EMBEDDING_MODE].i = mode;
  sheaf_tensor *inputs[BAG_BACKWARD_INPUTS] = {
      grad_out, forward->inputs[B_INDICES], forward->inputs[B_OFFSETS], weights, table, means};
  sheaf_tensor *outputs[2] = {NULL, NULL};
  sheaf_call how = SHEAF_CALL_INIT;
  how.wanted = SHF_BIT(output);
  how.batch = forward->batch;
  how.batched =
      batched | SHF_BIT(B_OUT) | (forward->batched & (SHF_BIT(B_GRAD_OUT) | SHF_BIT(B_INDICES) | SHF_BIT(B_OFFSETS)));
  SHF_TRY(shf_grad_call(SHEAF_OP_EMBEDDING_BAG_BACKWARD, inputs, BAG_BACKWARD_INPUTS, attrs, SHEAF_EMBEDDING_ATTRS,
                        &how, outputs, 2));
  *out = outputs[output];
  return SHEAF_OK;
}

/* What both kinds of bags are given: G and h are the gradients of the table's and of the weights' gradient. */
typedef struct twice {
  const sheaf_call *forward;
  sheaf_tensor *grad_out, *weights, *table, *g, *h; /* borrowed; g and h may be NULL */
  uint32_t own_weights, own_table;                  /* bits of WEIGHTS and TABLE, as embedding_bag has them */
} twice;

/* *sum += alpha * more. */
static sheaf_status add_into(sheaf_tensor **sum, sheaf_tensor *more, double alpha)
{
  sheaf_tensor *both;
  SHF_TRY(shf_send_add(*sum, more, alpha, NULL, &both));
  sheaf_tensor_release(*sum);
  *sum = both;
  return SHEAF_OK;
}

/* Of a sum's (unweighted: also a mean's) backward:
 *   of grad_out: the bags of G, plus the bags of the table weighted by h
 *   of weights:  what the weights' gradient would be with G for the table
 *   of table:    what the table's gradient would be with h for the weights */
static sheaf_status sum_twice(const twice *t, uint32_t wanted, sheaf_tensor **grads)
{
  int64_t mode = t->forward->attrs[SHEAF_EMBEDDING_MODE].i;
  sheaf_tensor *more = NULL;
  if ((wanted >> B_GRAD_OUT & 1) && t->g)
    SHF_TRY(bag_of(t->forward, mode, t->g, t->weights, SHF_BIT(TABLE) | t->own_weights, &grads[B_GRAD_OUT]));
  if ((wanted >> B_GRAD_OUT & 1) && t->h) {
    SHF_TRY(bag_of(t->forward, mode, t->table, t->h, t->own_table | SHF_BIT(WEIGHTS), &more));
    if (grads[B_GRAD_OUT]) {
      sheaf_status status = add_into(&grads[B_GRAD_OUT], more, 1);
      sheaf_tensor_release(more);
      SHF_TRY(status);
    } else {
      grads[B_GRAD_OUT] = more;
    }
  }
  if ((wanted >> B_WEIGHTS & 1) && t->g)
    SHF_TRY(bag_backward_of(t->forward, mode, t->grad_out, t->weights, t->g, NULL, t->own_weights | SHF_BIT(B_TABLE), 1,
                            &grads[B_WEIGHTS]));
  if ((wanted >> B_TABLE & 1) && t->h)
    SHF_TRY(bag_backward_of(t->forward, mode, t->grad_out, t->h, NULL, NULL, SHF_BIT(WEIGHTS), 0, &grads[B_TABLE]));
  return SHEAF_OK;
}

/* What the gradients of a weighted mean's backward are made of. With x a row of the table, c the sum of a bag's weights
 * and o its mean, of the backward's table_grad = w grad_out / c and weights_grad = <grad_out, x - o> / c:
 *   H            the sum of the bag's h, over c
 *   of grad_out: q = the mean of G + the sum of h x, over c - H o
 *   of weights:  <grad_out, G - q> / c - <H grad_out, x - o> / c
 *   of table:    h grad_out / c - w H grad_out / c
 * in which o depends on weights and table, too. */
enum {
  ONES,
  WIDE_WEIGHTS,
  WIDE_H,
  SUM_C,
  COUNT,
  WIDE_BY_C,
  BY_C,
  SUM_H,
  WIDE_BIG_H,
  BIG_H,
  HX,
  HX_C,
  O,
  HO,
  Q,
  H_GRAD,
  GRAD_C,
  NO_G,
  MORE,
  PIECES
};

/* BY_C and BIG_H, per bag, in f64 first: sums over a table of ones. */
static sheaf_status bag_numbers(const twice *t, sheaf_tensor **p)
{
  const sheaf_call *f = t->forward;
  int64_t ones[] = {f->attrs[SHEAF_EMBEDDING_ROWS].i, 1};
  sheaf_dtype dtype = t->grad_out->dtype;
  SHF_TRY(shf_grad_ones(2, ones, t->grad_out, &p[ONES]));
  SHF_TRY(shf_send_dtype(SHEAF_OP_CAST, t->weights, SHEAF_F64, NULL, &p[WIDE_WEIGHTS]));
  SHF_TRY(shf_send_dtype(SHEAF_OP_CAST, t->h, SHEAF_F64, NULL, &p[WIDE_H]));
  SHF_TRY(bag_of(f, SHEAF_MODE_SUM, p[ONES], p[WIDE_WEIGHTS], t->own_weights, &p[SUM_C]));
  SHF_TRY(bag_of(f, SHEAF_MODE_SUM, p[ONES], NULL, 0, &p[COUNT]));
  SHF_TRY(bag_of(f, SHEAF_MODE_SUM, p[ONES], p[WIDE_H], SHF_BIT(WEIGHTS), &p[SUM_H]));
  SHF_TRY(shf_grad_inverse(p[SUM_C], p[COUNT], &p[WIDE_BY_C]));
  SHF_TRY(shf_grad_scale_rows(p[SUM_H], p[WIDE_BY_C], &p[WIDE_BIG_H]));
  SHF_TRY(shf_send_dtype(SHEAF_OP_CAST, p[WIDE_BY_C], dtype, NULL, &p[BY_C]));
  return shf_send_dtype(SHEAF_OP_CAST, p[WIDE_BIG_H], dtype, NULL, &p[BIG_H]);
}

/* Q, O and H_GRAD; without h there is only Q. */
static sheaf_status mean_pieces(const twice *t, sheaf_tensor **p)
{
  const sheaf_call *f = t->forward;
  if (t->g) SHF_TRY(bag_of(f, SHEAF_MODE_MEAN, t->g, t->weights, SHF_BIT(TABLE) | t->own_weights, &p[Q]));
  if (!t->h) return SHEAF_OK;
  SHF_TRY(bag_numbers(t, p));
  SHF_TRY(bag_of(f, SHEAF_MODE_SUM, t->table, t->h, t->own_table | SHF_BIT(WEIGHTS), &p[HX]));
  SHF_TRY(shf_grad_scale_rows(p[HX], p[BY_C], &p[HX_C]));
  SHF_TRY(bag_of(f, SHEAF_MODE_MEAN, t->table, t->weights, t->own_table | t->own_weights, &p[O]));
  SHF_TRY(shf_grad_scale_rows(p[O], p[BIG_H], &p[HO]));
  SHF_TRY(add_into(&p[HX_C], p[HO], -1));
  if (p[Q])
    SHF_TRY(add_into(&p[Q], p[HX_C], 1));
  else
    p[Q] = sheaf_tensor_retain(p[HX_C]);
  return shf_grad_scale_rows(t->grad_out, p[BIG_H], &p[H_GRAD]);
}

static sheaf_status mean_weights(const twice *t, sheaf_tensor **p, sheaf_tensor **grad)
{
  const sheaf_call *f = t->forward;
  uint32_t own_g = t->g ? SHF_BIT(B_TABLE) : 0, own_table = t->own_table ? SHF_BIT(B_TABLE) : 0;
  if (!t->g) {
    int64_t shape[] = {f->attrs[SHEAF_EMBEDDING_ROWS].i, t->grad_out->extent[t->grad_out->rank - 1]};
    SHF_TRY(shf_tensor_make(t->grad_out->dtype, 2, shape, t->grad_out, &p[NO_G]));
    SHF_TRY(shf_tensor_clear(p[NO_G]));
  }
  SHF_TRY(bag_backward_of(f, SHEAF_MODE_MEAN, t->grad_out, t->weights, t->g ? t->g : p[NO_G], p[Q],
                          own_g | t->own_weights, 1, grad));
  if (!t->h) return SHEAF_OK;
  SHF_TRY(bag_backward_of(f, SHEAF_MODE_MEAN, p[H_GRAD], t->weights, t->table, p[O], own_table | t->own_weights, 1,
                          &p[MORE]));
  SHF_TRY(add_into(grad, p[MORE], -1));
  shf_drop(&p[MORE]);
  return SHEAF_OK;
}

static sheaf_status mean_table(const twice *t, sheaf_tensor **p, sheaf_tensor **grad)
{
  const sheaf_call *f = t->forward;
  SHF_TRY(shf_grad_scale_rows(t->grad_out, p[BY_C], &p[GRAD_C]));
  SHF_TRY(bag_backward_of(f, SHEAF_MODE_SUM, p[GRAD_C], t->h, NULL, NULL, SHF_BIT(WEIGHTS), 0, grad));
  SHF_TRY(bag_backward_of(f, SHEAF_MODE_MEAN, p[H_GRAD], t->weights, NULL, NULL, t->own_weights, 0, &p[MORE]));
  return add_into(grad, p[MORE], -1);
}

static sheaf_status mean_twice(const twice *t, uint32_t wanted, sheaf_tensor **grads)
{
  sheaf_tensor *pieces[PIECES] = {NULL};
  sheaf_status status = mean_pieces(t, pieces);
  if (status == SHEAF_OK && (wanted >> B_WEIGHTS & 1)) status = mean_weights(t, pieces, &grads[B_WEIGHTS]);
  if (status == SHEAF_OK && (wanted >> B_TABLE & 1) && t->h) status = mean_table(t, pieces, &grads[B_TABLE]);
  if (status == SHEAF_OK && (wanted >> B_GRAD_OUT & 1)) grads[B_GRAD_OUT] = sheaf_tensor_retain(pieces[Q]);
  for (int i = 0; i < PIECES; i++) sheaf_tensor_release(pieces[i]);
  return status;
}

/* A gradient that each problem gave, for an input that they share. */
static sheaf_status sum_if_shared(const sheaf_call *forward, int input, sheaf_tensor **grad)
{
  sheaf_tensor *each = *grad;
  if (!each || !forward->batch || shf_grad_is_batched(forward, input)) return SHEAF_OK;
  *grad = NULL;
  return shf_grad_sum_problems(each, grad);
}

sheaf_status shf_grad_bag_twice(SHF_GRADIENT_ARGUMENTS)
{
  (void)context;
  (void)likes;
  int64_t mode = forward->attrs[SHEAF_EMBEDDING_MODE].i;
  twice t = {.forward = forward, .grad_out = forward->inputs[B_GRAD_OUT], .h = output_grads[1]};
  t.weights = shf_input(forward, B_WEIGHTS);
  t.table = shf_input(forward, B_TABLE);
  t.own_weights = forward->batched & SHF_BIT(WEIGHTS); /* the same place in both ops */
  t.own_table = shf_grad_is_batched(forward, B_TABLE) ? SHF_BIT(TABLE) : 0;
  int weighted_mean = mode == SHEAF_MODE_MEAN && t.weights;
  SHF_REQUIRE(mode == SHEAF_MODE_SUM || mode == SHEAF_MODE_MEAN, UNSUPPORTED,
              "a bag of mode %" PRId64 " has no gradient of its gradient; means (0) and sums (1) have", mode);
  SHF_REQUIRE(!weighted_mean || sheaf_keyset_contains(sheaf_excluded_keys(), SHEAF_KEY_AUTOGRAD), UNSUPPORTED,
              "a bag of mode %" PRId64
              " with weights has second gradients, but no third; leave create_graph out of the "
              "second backward",
              mode);
  SHF_TRY(shf_grad_by_frequency(forward, output_grads[0], &t.g));
  sheaf_status status = (weighted_mean ? mean_twice : sum_twice)(&t, wanted, input_grads);
  sheaf_tensor_release(t.g);
  SHF_TRY(status);
  SHF_TRY(sum_if_shared(forward, B_WEIGHTS, &input_grads[B_WEIGHTS]));
  return sum_if_shared(forward, B_TABLE, &input_grads[B_TABLE]);
}
