/* 01_lookup.c: rows of a table by index, what a bad index does, and what errors say. */
#include <stdio.h>
#include <stdlib.h>

#include <sheaf/sheaf.h>

enum { ROWS = 5, DIM = 3, TOKENS = 4 };

static void must(sheaf_status status)
{
  if (status == SHEAF_OK) return;
  fprintf(stderr, "%s: %s\n", sheaf_status_name(status), sheaf_last_error());
  exit(1);
}

/* A contiguous tensor over memory of our own. Sheaf borrows it for the length of a call. */
static DLTensor tensor_of(void *data, sheaf_dtype dtype, int rank, int64_t *shape)
{
  return (DLTensor){.data = data,
                    .device = {kDLCPU, 0},
                    .ndim = rank,
                    .dtype = sheaf_dtype_to_dl(dtype),
                    .shape = shape};
}

int main(void)
{
  float table[ROWS][DIM], out[TOKENS][DIM];
  int32_t tokens[TOKENS] = {3, 0, 7, 3}; /* the table has no row 7 */
  for (int r = 0; r < ROWS; r++)
    for (int d = 0; d < DIM; d++) table[r][d] = (float)(10 * r + d);

  DLTensor table_tensor = tensor_of(table, SHEAF_F32, 2, (int64_t[]){ROWS, DIM});
  DLTensor token_tensor = tensor_of(tokens, SHEAF_I32, 1, (int64_t[]){TOKENS});
  DLTensor out_tensor = tensor_of(out, SHEAF_F32, 2, (int64_t[]){TOKENS, DIM});

  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  desc.kind = SHEAF_LOOKUP;
  desc.dtype = SHEAF_F32;
  desc.index_dtype = SHEAF_I32;
  desc.rows = ROWS;
  desc.dim = DIM;
  desc.indices = TOKENS;

  sheaf_index_report report;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  args.table.tensor = &table_tensor;
  args.indices.tensor = &token_tensor;
  args.out.tensor = &out_tensor;
  args.report = &report;

  /* By default a bad index gives a row of zeros and is counted. A lookup needs no workspace. */
  sheaf_plan *plan;
  must(sheaf_embedding_select(&desc, NULL, &plan));
  must(sheaf_embedding_run(plan, NULL, 0, NULL, &args));
  sheaf_plan_free(plan);

  int wrong = 0;
  for (int n = 0; n < TOKENS; n++) {
    printf("token %d: %4.0f %4.0f %4.0f\n", tokens[n], (double)out[n][0], (double)out[n][1], (double)out[n][2]);
    for (int d = 0; d < DIM; d++) wrong += out[n][d] != (tokens[n] < ROWS ? table[tokens[n]][d] : 0.0F);
  }
  printf("%lld bad index, the first at position %lld\n", (long long)report.count, (long long)report.first_position);
  wrong += report.count != 1 || report.first_position != 2 || report.first_value != 7;

  /* Where a bad index is a mistake, say so: the run fails, writes nothing, and names it. */
  desc.bad_index = SHEAF_BAD_INDEX_ERROR;
  out[0][0] = -1;
  must(sheaf_embedding_select(&desc, NULL, &plan));
  sheaf_status status = sheaf_embedding_run(plan, NULL, 0, NULL, &args);
  sheaf_plan_free(plan);
  printf("%s: %s\n", sheaf_status_name(status), sheaf_last_error());
  wrong += status != SHEAF_INDEX_OUT_OF_RANGE || sheaf_last_error_info().value != 7 || out[0][0] != -1.0F;

  puts(wrong ? "WRONG" : "as expected");
  return wrong != 0;
}
