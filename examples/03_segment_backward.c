/* 03_segment_backward.c: the strongest message per node of a graph, and its gradient back to the edges. */
#include <stdio.h>
#include <stdlib.h>

#include <sheaf/sheaf.h>

enum { EDGES = 5, NODES = 4, DIM = 2 };

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

/* Select, workspace, run, free. A program with many batches of one shape keeps plan and workspace instead. */
static void run_once(const sheaf_segment_desc *desc, const sheaf_segment_args *args)
{
  sheaf_plan *plan;
  must(sheaf_segment_select(desc, NULL, &plan));
  size_t bytes = sheaf_plan_workspace_size(plan);
  void *workspace = aligned_alloc(64, bytes);
  must(sheaf_segment_run(plan, workspace, bytes, NULL, args));
  free(workspace);
  sheaf_plan_free(plan);
}

/* Prints rows and counts the numbers that are not the expected ones. */
static int show(const char *title, const char *row, int rows, float (*got)[DIM], float (*expected)[DIM])
{
  int wrong = 0;
  puts(title);
  for (int r = 0; r < rows; r++) {
    printf("  %s %d: %5.2f %5.2f\n", row, r, (double)got[r][0], (double)got[r][1]);
    for (int d = 0; d < DIM; d++) wrong += got[r][d] != expected[r][d];
  }
  return wrong;
}

int main(void)
{
  /* Edges come in any order; node 2 has none, and on node 0 edges 1 and 4 tie in the first column. */
  int64_t node_of_edge[EDGES] = {3, 0, 1, 3, 0};
  float messages[EDGES][DIM] = {{1, 8}, {5, 2}, {-7, -1}, {4, 3}, {5, 9}};
  float best[NODES][DIM], best_grad[NODES][DIM] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}}, grad[EDGES][DIM];
  int64_t winner[NODES][DIM];

  DLTensor data = tensor_of(messages, SHEAF_F32, 2, (int64_t[]){EDGES, DIM});
  DLTensor ids = tensor_of(node_of_edge, SHEAF_I64, 1, (int64_t[]){EDGES});
  DLTensor out = tensor_of(best, SHEAF_F32, 2, (int64_t[]){NODES, DIM});
  DLTensor arg = tensor_of(winner, SHEAF_I64, 2, (int64_t[]){NODES, DIM});
  DLTensor grad_out = tensor_of(best_grad, SHEAF_F32, 2, (int64_t[]){NODES, DIM});
  DLTensor data_grad = tensor_of(grad, SHEAF_F32, 2, (int64_t[]){EDGES, DIM});

  sheaf_segment_desc desc = SHEAF_SEGMENT_DESC_INIT;
  desc.kind = SHEAF_UNSORTED_SEGMENT_MAX;
  desc.dtype = SHEAF_F32;
  desc.index_dtype = SHEAF_I64;
  desc.rows = EDGES;
  desc.dim = DIM;
  desc.segments = NODES;
  desc.bad_index = SHEAF_BAD_INDEX_ERROR;

  /* One struct serves forward and backward: a kind ignores the operands that it does not list. */
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  args.data.tensor = &data;
  args.ids.tensor = &ids;
  args.out.tensor = &out;
  args.arg.tensor = &arg;
  args.grad_out.tensor = &grad_out;
  args.data_grad.tensor = &data_grad;

  run_once(&desc, &args);
  int wrong = show("strongest message per node", "node", NODES, best, (float[][DIM]){{5, 9}, {-7, -1}, {0, 0}, {4, 8}});
  printf("edge that gave it, node 0: %lld %lld, node 2: %lld %lld\n", (long long)winner[0][0], (long long)winner[0][1],
         (long long)winner[2][0], (long long)winner[2][1]);
  wrong += winner[0][0] != 1 || winner[0][1] != 4 || winner[2][0] != -1 || winner[2][1] != -1;

  /* Backward with the arg that forward wrote: nothing is searched again, and a tie goes to the first edge. */
  desc.kind = SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD;
  desc.arg_given = 1;
  run_once(&desc, &args);
  wrong += show("gradient, ties to the first", "edge", EDGES, grad,
                (float[][DIM]){{0, 8}, {1, 0}, {3, 4}, {7, 0}, {0, 2}});

  /* Backward from the data alone, with ties shared. */
  desc.arg_given = 0;
  desc.ties = SHEAF_TIES_SPLIT;
  run_once(&desc, &args);
  wrong += show("gradient, ties shared", "edge", EDGES, grad,
                (float[][DIM]){{0, 8}, {0.5F, 0}, {3, 4}, {7, 0}, {0.5F, 2}});

  puts(wrong ? "WRONG" : "as expected");
  return wrong != 0;
}
