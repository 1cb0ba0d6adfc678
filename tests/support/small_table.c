/* small_table.c: problems on a table of four rows. */
#include "small_table.h"

static const double rows[] = {1, 2, 3, 4, 5, 6, -7, 8};

void give_table(small_call *c, int64_t count, int64_t dim, const double *values)
{
  c->desc.rows = count;
  c->desc.dim = dim;
  c->table = tiny_matrix(c->desc.dtype, count, dim, values);
  c->args.table = tiny_operand(c->table);
}

small_call small_begin(sheaf_embedding_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype)
{
  small_call c = {.desc = tiny_embedding(kind, dtype, index_dtype), .args = SHEAF_EMBEDDING_ARGS_INIT};
  give_table(&c, 4, 2, rows);
  return c;
}

void give_indices(small_call *c, int64_t count, const int64_t *indices)
{
  c->desc.indices = count;
  c->args.indices = tiny_operand(tiny_ints(c->desc.index_dtype, count, indices));
}

void give_offsets(small_call *c, int64_t count, const int64_t *offsets)
{
  c->desc.bags = count;
  c->args.offsets = tiny_operand(tiny_ints(c->desc.index_dtype, count, offsets));
}

void give_weights(small_call *c, const double *weights)
{
  c->desc.weighted = 1;
  c->args.weights = tiny_operand(tiny_vector(c->desc.dtype, c->desc.indices, weights));
}

void give_grad_out(small_call *c, int64_t count, const double *values)
{
  c->args.grad_out = tiny_operand(tiny_matrix(c->desc.dtype, count, c->desc.dim, values));
}

static bool is_backward(const small_call *c)
{
  return c->desc.kind == SHEAF_LOOKUP_BACKWARD || c->desc.kind == SHEAF_BAG_SUM_BACKWARD ||
         c->desc.kind == SHEAF_BAG_MEAN_BACKWARD || c->desc.kind == SHEAF_BAG_MAX_BACKWARD;
}

sheaf_status small_run(small_call *c)
{
  c->args.report = &c->report;
  if (!is_backward(c)) {
    c->out =
        tiny_matrix(c->desc.dtype, c->desc.kind == SHEAF_LOOKUP ? c->desc.indices : c->desc.bags, c->desc.dim, NULL);
    c->args.out = tiny_operand(c->out);
    if (c->desc.kind == SHEAF_BAG_MAX) {
      c->arg = tiny_int_matrix(c->desc.index_dtype, c->desc.bags, c->desc.dim, NULL);
      c->args.arg = tiny_operand(c->arg);
    }
    return tiny_run_embedding(&c->desc, &c->args);
  }
  if (c->table_grad == NULL) {
    c->table_grad = tiny_matrix(c->desc.dtype, c->desc.rows, c->desc.dim, NULL);
  }
  c->args.table_grad = tiny_operand(c->table_grad);
  if (c->desc.weighted) {
    c->weights_grad = tiny_vector(c->desc.dtype, c->desc.indices, NULL);
    c->args.weights_grad = tiny_operand(c->weights_grad);
  } else {
    c->args.table.tensor = NULL;
  }
  return tiny_run_embedding(&c->desc, &c->args);
}

small_call small_bags(sheaf_embedding_kind kind, sheaf_dtype dtype, sheaf_dtype index_dtype, int64_t count,
                      const int64_t *indices, int64_t bag_count, const int64_t *offsets)
{
  small_call c = small_begin(kind, dtype, index_dtype);
  give_indices(&c, count, indices);
  give_offsets(&c, bag_count, offsets);
  return c;
}
