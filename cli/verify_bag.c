/* cli/verify_bag.c: replays `embedding_bag` cases: sum, mean and max of bags, with both gradients. */
#include <math.h>

#include "verify.h"

typedef enum bag_mode { BAG_MODE_SUM, BAG_MODE_MEAN, BAG_MODE_MAX } bag_mode;

typedef struct bag_case {
  bag_mode mode;
  verify_entries entries;
  const verify_tensor *weight, *dout;
  verify_tensor *out; /* what the library wrote */
  verify_tensor *arg; /* max: the same */
  sheaf_embedding_desc desc;
  sheaf_embedding_args args;
} bag_case;

static bool read_bag_case(verify_case *c, bag_case *bag, verify_tensor **expected)
{
  static const char *const modes[] = {"sum", "mean", "max", NULL};
  int mode = verify_choice(c, "mode", modes, -1), scaled = verify_flag(c, "scale_grad_by_freq", 0);
  bag->weight = mode < 0 || scaled < 0 ? NULL : verify_input(c, "weight");
  *expected = bag->weight ? verify_input(c, "out") : NULL;
  if (!*expected) return false;
  if (!verify_is_float(bag->weight->dtype) || bag->weight->rank != 2)
    return verify_fail(c, "tensor 'weight' is not a matrix of values");
  if (!verify_is_float((*expected)->dtype) || (*expected)->rank != 2 || (*expected)->shape[1] != bag->weight->shape[1])
    return verify_fail(c, "tensor 'out' is not a matrix of values as wide as 'weight'");
  bag->mode = (bag_mode)mode;
  bag->entries.mean = bag->mode == BAG_MODE_MEAN;
  bag->entries.rows = bag->weight->shape[0];
  bag->entries.dim = bag->weight->shape[1];
  bag->entries.bags = (*expected)->shape[0];
  if (!verify_read_entries(c, bag->weight->dtype, &bag->entries)) return false;
  bag->desc = (sheaf_embedding_desc)SHEAF_EMBEDDING_DESC_INIT;
  bag->args = (sheaf_embedding_args)SHEAF_EMBEDDING_ARGS_INIT;
  verify_describe_bags(&bag->entries, &bag->desc, &bag->args);
  bag->desc.dtype = bag->weight->dtype;
  bag->desc.scale_grad_by_freq = (uint8_t)scaled;
  return true;
}

/* ---- Plain code: sums of absolute terms, and the place of the maximum ------------------------------------------ */

static double *forward_scale(verify_case *c, const bag_case *bag)
{
  const verify_entries *e = &bag->entries;
  double *scale = verify_alloc(c, e->bags * e->dim, sizeof *scale);
  for (int64_t k = 0; scale && k < e->count; k++) {
    int64_t row = e->row_of[k], b = e->bag_of[k];
    if (row < 0) continue;
    double factor = e->weight_of[k] / e->divisor[b] * e->condition[b];
    for (int64_t d = 0; d < e->dim; d++)
      scale[b * e->dim + d] += fabs(factor * verify_value(bag->weight, row * e->dim + d));
  }
  return scale;
}

/* Whether `x` takes the place of the maximum so far: NaN wins, and the first of equals stays. */
static bool is_above(double x, double so_far) { return !isnan(so_far) && (isnan(x) || x > so_far); }

/* The row that gives each maximum, the first one of equals; -1 for a bag without entries. */
static verify_tensor *plain_arg(verify_case *c, const bag_case *bag)
{
  const verify_entries *e = &bag->entries;
  verify_tensor *arg = verify_output(c, SHEAF_I64, 2, (int64_t[]){e->bags, e->dim});
  if (!arg) return NULL;
  int64_t *rows = arg->data;
  for (int64_t i = 0; i < arg->count; i++) rows[i] = -1;
  for (int64_t k = 0; rows && k < e->count; k++) {
    int64_t row = e->row_of[k], *best = rows + e->bag_of[k] * e->dim;
    for (int64_t d = 0; row >= 0 && d < e->dim; d++) {
      double x = verify_value(bag->weight, row * e->dim + d);
      if (best[d] < 0 || is_above(x, verify_value(bag->weight, best[d] * e->dim + d))) best[d] = row;
    }
  }
  return arg;
}

/* For max: the gradient of each maximum goes to its row. */
static void add_max_scale(const bag_case *bag, const verify_tensor *arg, double *scale)
{
  const verify_entries *e = &bag->entries;
  for (int64_t i = 0; i < arg->count; i++) {
    int64_t row = verify_integer(arg, i);
    if (row >= 0) scale[row * e->dim + i % e->dim] += fabs(verify_value(bag->dout, i));
  }
}

static double *table_grad_scale(verify_case *c, const bag_case *bag)
{
  const verify_entries *e = &bag->entries;
  double *scale = verify_alloc(c, e->rows * e->dim, sizeof *scale);
  int64_t *uses = verify_alloc(c, e->rows, sizeof *uses);
  if (!scale || !uses) return NULL;
  if (bag->mode == BAG_MODE_MAX) {
    add_max_scale(bag, bag->arg, scale);
    return scale;
  }
  for (int64_t k = 0; k < e->count; k++)
    if (e->row_of[k] >= 0) uses[e->row_of[k]] += 1;
  for (int64_t k = 0; k < e->count; k++) {
    int64_t row = e->row_of[k], b = e->bag_of[k];
    if (row < 0) continue;
    double factor = e->weight_of[k] / e->divisor[b] * e->condition[b];
    if (bag->desc.scale_grad_by_freq) factor /= (double)uses[row];
    for (int64_t d = 0; d < e->dim; d++)
      scale[row * e->dim + d] += fabs(factor * verify_value(bag->dout, b * e->dim + d));
  }
  return scale;
}

/* The gradient of a mean's weight is dot(dout, row - out) / c by the stored output. The reference may have used an
 * output that was not rounded to 16 bits: the slack is what that can change. */
static bool weights_grad_bounds(verify_case *c, const bag_case *bag, verify_rule *rule)
{
  const verify_entries *e = &bag->entries;
  double *scale = verify_alloc(c, e->count, sizeof *scale), *slack = verify_alloc(c, e->count, sizeof *slack);
  if (!scale || !slack) return false;
  for (int64_t k = 0; k < e->count; k++) {
    int64_t row = e->row_of[k], b = e->bag_of[k];
    for (int64_t d = 0; row >= 0 && d < e->dim; d++) {
      double grad = fabs(verify_value(bag->dout, b * e->dim + d) / e->divisor[b] * e->condition[b]);
      double mean = e->mean ? verify_value(bag->out, b * e->dim + d) : 0;
      scale[k] += grad * (fabs(verify_value(bag->weight, row * e->dim + d)) + fabs(mean));
      if (e->mean) slack[k] += grad * verify_ulp(bag->weight->dtype, mean) / 2;
    }
  }
  *rule = (verify_rule){.scale = scale, .slack = slack};
  return true;
}

/* ---- Checks -------------------------------------------------------------------------------------------------- */

static bool check_forward(verify_case *c, bag_case *bag, const verify_tensor *expected)
{
  static const sheaf_embedding_kind kinds[] = {SHEAF_BAG_SUM, SHEAF_BAG_MEAN, SHEAF_BAG_MAX};
  bool is_max = bag->mode == BAG_MODE_MAX;
  bag->out = verify_output(c, bag->weight->dtype, 2, expected->shape);
  bag->arg = is_max ? verify_output(c, bag->entries.indices->dtype, 2, expected->shape) : NULL;
  verify_tensor *arg = is_max ? plain_arg(c, bag) : NULL;
  double *scale = is_max ? NULL : forward_scale(c, bag);
  if (!bag->out || (is_max ? !bag->arg || !arg : !scale)) return false;
  sheaf_embedding_desc desc = bag->desc;
  sheaf_embedding_args args = bag->args;
  desc.kind = kinds[bag->mode];
  desc.scale_grad_by_freq = 0;
  args.table = bag->weight->operand;
  args.out = bag->out->operand;
  if (is_max) args.arg = bag->arg->operand;
  return verify_run_embedding(c, &desc, &args) &&
         verify_compare(c, "out", expected, bag->out, (verify_rule){.scale = scale}) &&
         (!is_max || verify_compare(c, "arg", arg, bag->arg, (verify_rule){0}));
}

static bool check_table_grad(verify_case *c, const bag_case *bag, const sheaf_embedding_desc *desc,
                             const sheaf_embedding_args *args)
{
  const verify_entries *e = &bag->entries;
  verify_tensor *expected = verify_matrix(c, "dweight", SHEAF_DTYPE_NONE, e->rows, e->dim);
  verify_tensor *dweight = expected ? verify_output(c, bag->weight->dtype, 2, expected->shape) : NULL;
  double *scale = dweight ? table_grad_scale(c, bag) : NULL;
  return scale && verify_run_table_grad(c, desc, args, dweight) &&
         verify_compare(c, "dweight", expected, dweight, (verify_rule){.scale = scale});
}

/* On its own, and together with the table's gradient: a kernel may share work between them. */
static bool check_weights_grad(verify_case *c, const bag_case *bag, const sheaf_embedding_desc *desc,
                               sheaf_embedding_args args)
{
  const verify_entries *e = &bag->entries;
  if (!e->weights) return verify_fail(c, "tensor 'dper_sample_weights' stands without weights");
  verify_tensor *expected = verify_input(c, "dper_sample_weights");
  if (!expected) return false;
  if (!verify_is_float(expected->dtype)) return verify_fail(c, "tensor 'dper_sample_weights' does not hold values");
  verify_tensor *alone = verify_output(c, bag->weight->dtype, e->weights->rank, e->weights->shape);
  verify_tensor *together = verify_output(c, bag->weight->dtype, e->weights->rank, e->weights->shape);
  verify_tensor *dweight = verify_output(c, bag->weight->dtype, 2, bag->weight->shape);
  verify_rule rule = {0};
  if (!alone || !together || !dweight || !weights_grad_bounds(c, bag, &rule)) return false;
  args.table = bag->weight->operand;
  if (e->mean) args.out = bag->out->operand;
  args.weights_grad = alone->operand;
  if (!verify_run_embedding(c, desc, &args) || !verify_compare(c, "dper_sample_weights", expected, alone, rule))
    return false;
  args.weights_grad = together->operand;
  args.table_grad = dweight->operand;
  return verify_run_embedding(c, desc, &args) &&
         verify_compare(c, "dper_sample_weights beside dweight", alone, together, (verify_rule){.signed_zeros = true});
}

static bool check_backward(verify_case *c, bag_case *bag)
{
  static const sheaf_embedding_kind kinds[] = {SHEAF_BAG_SUM_BACKWARD, SHEAF_BAG_MEAN_BACKWARD,
                                               SHEAF_BAG_MAX_BACKWARD};
  bag->dout = verify_matrix(c, "dout", bag->weight->dtype, bag->entries.bags, bag->entries.dim);
  if (!bag->dout) return false;
  sheaf_embedding_desc desc = bag->desc;
  sheaf_embedding_args args = bag->args;
  desc.kind = kinds[bag->mode];
  desc.grad_write = SHEAF_GRAD_OVERWRITE;
  if (bag->mode == BAG_MODE_MAX) {
    args = (sheaf_embedding_args)SHEAF_EMBEDDING_ARGS_INIT; /* the winners' rows take the place of the entries */
    args.arg = bag->arg->operand;
  }
  args.grad_out = bag->dout->operand;
  if (verify_has(c, "dweight") && !check_table_grad(c, bag, &desc, &args)) return false;
  return !verify_has(c, "dper_sample_weights") || check_weights_grad(c, bag, &desc, args);
}

bool verify_embedding_bag(verify_case *c)
{
  bag_case bag = {0};
  verify_tensor *expected = NULL;
  if (!read_bag_case(c, &bag, &expected) || !check_forward(c, &bag, expected)) return false;
  bool backward = verify_has(c, "dweight") || verify_has(c, "dper_sample_weights");
  return !backward || check_backward(c, &bag);
}
