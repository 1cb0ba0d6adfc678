/* 02_bag_plan.c: sums of bags through a plan, then again on every kernel and number of threads: the same bits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sheaf/sheaf.h>

/* Three bags: an ordinary one, an empty one, and one so long that threads share it. */
enum { ROWS = 20000, DIM = 64, BAGS = 3, INDICES = 30020 };

static void must(sheaf_status status)
{
  if (status == SHEAF_OK) return;
  fprintf(stderr, "%s: %s\n", sheaf_status_name(status), sheaf_last_error());
  exit(1);
}

static DLTensor tensor_of(void *data, sheaf_dtype dtype, int rank, int64_t *shape)
{
  return (DLTensor){.data = data,
                    .device = {kDLCPU, 0},
                    .ndim = rank,
                    .dtype = sheaf_dtype_to_dl(dtype),
                    .shape = shape};
}

static uint32_t next_random(uint32_t *state) { return *state = *state * 1664525 + 1013904223; }

/* The worst difference from a plain sum in double, relative to the sum of absolute values. */
static double worst_error(const float *table, const int64_t *indices, const int64_t *offsets, const float *out)
{
  double worst = 0;
  for (int b = 0; b < BAGS; b++)
    for (int d = 0; d < DIM; d++) {
      double sum = 0, size = 0;
      for (int64_t k = offsets[b]; k < (b + 1 < BAGS ? offsets[b + 1] : INDICES); k++) {
        sum += (double)table[indices[k] * DIM + d];
        size += fabs((double)table[indices[k] * DIM + d]);
      }
      worst = fmax(worst, fabs((double)out[b * DIM + d] - sum) / fmax(size, 1));
    }
  return worst;
}

/* Runs the problem on one named kernel with so many threads; 1 when out holds other bits than before. */
static int differs(const sheaf_embedding_desc *desc, const sheaf_embedding_args *args, const char *kernel, int threads)
{
  sheaf_preference preference = SHEAF_PREFERENCE_INIT;
  preference.kernel = kernel;
  preference.threads = threads;
  sheaf_plan *plan;
  must(sheaf_embedding_select(desc, &preference, &plan));
  size_t bytes = sheaf_plan_workspace_size(plan);
  void *workspace = aligned_alloc(64, bytes);
  float before[BAGS * DIM], *out = args->out.tensor->data;
  memcpy(before, out, sizeof before);
  memset(out, 0xff, sizeof before);
  must(sheaf_embedding_run(plan, workspace, bytes, NULL, args));
  free(workspace);
  sheaf_plan_free(plan);
  int different = memcmp((const void *)before, (const void *)out, sizeof before) != 0;
  printf("%-28s threads %2d: %s\n", kernel, threads, different ? "OTHER BITS" : "the same bits");
  return different;
}

int main(void)
{
  void *rows; /* large tables like huge pages */
  must(sheaf_table_alloc(sizeof(float) * ROWS * DIM, &rows));
  float *values = rows, sums[BAGS * DIM];
  static int64_t picks[INDICES];
  int64_t starts[BAGS] = {0, 20, 20};
  uint32_t state = 1;
  for (int i = 0; i < ROWS * DIM; i++) values[i] = (float)(next_random(&state) >> 8) * 0x1p-23F - 1;
  for (int k = 0; k < INDICES; k++) picks[k] = next_random(&state) % ROWS;

  DLTensor table = tensor_of(values, SHEAF_F32, 2, (int64_t[]){ROWS, DIM});
  DLTensor indices = tensor_of(picks, SHEAF_I64, 1, (int64_t[]){INDICES});
  DLTensor offsets = tensor_of(starts, SHEAF_I64, 1, (int64_t[]){BAGS});
  DLTensor out = tensor_of(sums, SHEAF_F32, 2, (int64_t[]){BAGS, DIM});

  /* The part that the README shows. */
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT; /* what: rows of a table, summed bag by bag */
  desc.kind = SHEAF_BAG_SUM;
  desc.dtype = SHEAF_F32;
  desc.index_dtype = SHEAF_I64;
  desc.rows = ROWS;
  desc.dim = DIM;
  desc.indices = INDICES;
  desc.bags = BAGS;

  sheaf_plan *plan; /* how: the best kernel for it on this machine */
  must(sheaf_embedding_select(&desc, NULL, &plan));
  size_t bytes = sheaf_plan_workspace_size(plan);
  void *workspace = aligned_alloc(64, bytes);

  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT; /* where: DLPack tensors, borrowed for the call */
  args.table.tensor = &table;
  args.indices.tensor = &indices;
  args.offsets.tensor = &offsets;
  args.out.tensor = &out;
  must(sheaf_embedding_run(plan, workspace, bytes, NULL, &args)); /* as often as you like */
  printf("ran %s\n", sheaf_plan_sku(plan).name);
  free(workspace);
  sheaf_plan_free(plan);

  double error = worst_error(values, picks, starts, sums);
  printf("bags of 20, 0 and 30000 rows; worst relative error %.1e\n", error);
  int wrong = !(error < 1e-6);

  for (int64_t i = 0; i < sheaf_kernel_count(); i++) {
    sheaf_sku sku;
    int available;
    must(sheaf_kernel_at(i, &sku, &available));
    if (!available || strncmp(sku.name, "bag_sum.f32.i64/", 16) != 0) continue;
    for (int threads = 1; threads <= 16; threads *= 4) wrong += differs(&desc, &args, sku.name, threads);
  }
  sheaf_table_free(rows, sizeof(float) * ROWS * DIM);
  return wrong != 0;
}
