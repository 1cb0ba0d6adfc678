/* 05_quantized.c: a table in 8 and in 4 bits: how small it gets, and what that does to bags. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <sheaf/sheaf.h>

enum { ROWS = 2000, DIM = 32, ENTRIES = 200, BAGS = 10 };

static void must(sheaf_status status)
{
  if (status == SHEAF_OK) return;
  fprintf(stderr, "%s: %s\n", sheaf_status_name(status), sheaf_last_error());
  exit(1);
}

/* The largest difference between the bags of a table and those of its packed rows. */
static double worst_difference(sheaf_tensor *exact, sheaf_tensor *bags)
{
  double worst = 0;
  const float *x = sheaf_tensor_data(exact), *y = sheaf_tensor_data(bags);
  for (int i = 0; i < BAGS * DIM; i++) worst = fmax(worst, fabs((double)x[i] - (double)y[i]));
  return worst;
}

int main(void)
{
  sheaf_tensor *table, *indices, *lengths, *exact = NULL;
  must(sheaf_tensor_new(SHEAF_F32, 2, (int64_t[]){ROWS, DIM}, &table));
  must(sheaf_tensor_new(SHEAF_I32, 1, (int64_t[]){ENTRIES}, &indices));
  must(sheaf_tensor_new(SHEAF_I64, 1, (int64_t[]){BAGS}, &lengths));
  float *values = sheaf_tensor_data(table);
  for (int i = 0; i < ROWS * DIM; i++) values[i] = sinf((float)i * 0.7F);
  for (int i = 0; i < ENTRIES; i++) ((int32_t *)sheaf_tensor_data(indices))[i] = i * 7919 % ROWS;
  for (int i = 0; i < BAGS; i++) ((int64_t *)sheaf_tensor_data(lengths))[i] = ENTRIES / BAGS;

  sheaf_embedding_bag_options options = SHEAF_EMBEDDING_BAG_OPTIONS_INIT; /* means, by default */
  options.lengths = 1;
  must(sheaf_embedding_bag(indices, table, lengths, &options, &exact));

  int wrong = 0;
  const sheaf_dtype kinds[] = {SHEAF_INT8, SHEAF_INT4};
  for (int i = 0; i < 2; i++) {
    sheaf_tensor *packed = NULL, *bags = NULL, *half = NULL;
    must(sheaf_quantize(table, kinds[i], &packed));
    must(sheaf_embedding_bag(indices, packed, lengths, &options, &bags)); /* rows are unpacked inside the kernel */
    double worst = worst_difference(exact, bags), step = 2.0 / (i ? 15 : 255);
    printf("%s: %lld bytes a row instead of %lld; bags differ by at most %.5f (a step is %.5f)\n",
           sheaf_dtype_name(kinds[i]), (long long)sheaf_dtype_row_bytes(kinds[i], DIM),
           (long long)sheaf_dtype_row_bytes(SHEAF_F32, DIM), worst, step);
    wrong += !(worst < step);

    options.out_dtype = SHEAF_F16; /* the result in 16 bits; sums are still kept in 32 */
    must(sheaf_embedding_bag(indices, packed, lengths, &options, &half));
    wrong += sheaf_tensor_dtype(half) != SHEAF_F16;
    options.out_dtype = SHEAF_DTYPE_NONE;

    sheaf_status status = sheaf_tensor_require_grad(packed, SHEAF_GRAD_DENSE);
    printf("  %s: %s\n", sheaf_status_name(status), sheaf_last_error());
    wrong += status != SHEAF_UNSUPPORTED;
    sheaf_tensor_release(packed);
    sheaf_tensor_release(bags);
    sheaf_tensor_release(half);
  }
  sheaf_tensor_release(table);
  sheaf_tensor_release(indices);
  sheaf_tensor_release(lengths);
  sheaf_tensor_release(exact);
  puts(wrong ? "WRONG" : "as expected");
  return wrong != 0;
}
