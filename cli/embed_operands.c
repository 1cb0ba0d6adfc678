/* cli/embed_operands.c: the operands of `sheaf lookup` and `sheaf bag`: opened, checked, and cut into bags. */
#include <stdlib.h>

#include "embed.h"

int embed_no_memory(const embed *e, int64_t bytes)
{
  cli_complain(e->command, "%lld bytes of memory cannot be had", (long long)bytes);
  return CLI_FAILED;
}

static int check_indices(embed *e)
{
  if (e->padding >= e->table.rows) {
    cli_complain(e->command, "--padding is %lld, but the table has %lld rows", (long long)e->padding,
                 (long long)e->table.rows);
    return CLI_FAILED;
  }
  e->bad = bad_entries_find(e->indices, e->entries, e->table.rows);
  return e->refuse_bad ? bad_entries_refuse(&e->bad, e->command, "indices") : CLI_GO_ON;
}

/* starts[b] .. starts[b + 1] - 1 are the entries of bag b; a lookup is bags of one entry. */
static int make_bags(embed *e)
{
  const whole_operand *indices = &e->indices_operand;
  int64_t *given = NULL, length = 1;
  e->bags = e->entries;
  if (e->offsets_path) {
    int code = operand_indices(e->command, "offsets", e->offsets_path, &e->offsets_operand, &given);
    if (code != CLI_GO_ON) return code;
    e->bags = e->offsets_operand.count;
  } else if (e->bags_given) {
    if (indices->rank != 2)
      return cli_misused(e->command,
                         "'%s' has %d dimension%s: without --offsets it must be a matrix, a bag in each row",
                         e->words[1], indices->rank, indices->rank == 1 ? "" : "s");
    e->bags = indices->shape[0];
    length = indices->shape[1];
  }
  e->starts = malloc((size_t)(e->bags + 1) * sizeof *e->starts);
  int code = e->starts ? CLI_GO_ON : embed_no_memory(e, 8 * (e->bags + 1));
  for (int64_t b = 0; e->starts && b < e->bags; b++) e->starts[b] = given ? given[b] : b * length;
  if (e->starts) e->starts[e->bags] = e->entries;
  for (int64_t b = 0; code == CLI_GO_ON && given && b < e->bags; b++) {
    if (e->starts[b] <= e->starts[b + 1] && e->starts[b] >= 0 && (b || e->starts[0] == 0)) continue;
    cli_complain(e->command, "offsets: %lld at position %lld; they start at 0, do not decrease and do not exceed %lld",
                 (long long)e->starts[b], (long long)b, (long long)e->entries);
    code = CLI_FAILED;
  }
  if (code == CLI_GO_ON && given && e->bags == 0 && e->entries) {
    cli_complain(e->command, "there are %lld indices, but no bag to hold them", (long long)e->entries);
    code = CLI_FAILED;
  }
  free(given);
  return code;
}

int embed_open(embed *e)
{
  static const sheaf_dtype packed[] = {SHEAF_DTYPE_NONE, SHEAF_INT8, SHEAF_INT4};
  int code = run_place_of(e->command, e->device, e->threads, &e->place);
  if (code == CLI_GO_ON) code = table_open(&e->table, e->command, e->words[0], packed[e->as + 1], e->dim);
  if (code == CLI_GO_ON) code = operand_indices(e->command, "indices", e->words[1], &e->indices_operand, &e->indices);
  if (code != CLI_GO_ON) return code;
  e->entries = e->indices_operand.count;
  e->plain = is_float_dtype(e->table.dtype) ? e->table.dtype : SHEAF_F32;
  if ((code = check_indices(e)) != CLI_GO_ON || (code = make_bags(e)) != CLI_GO_ON) return code;
  if (e->weights_path) {
    if ((code = operand_open(&e->weights, e->command, e->weights_path, false)) != CLI_GO_ON) return code;
    if (e->weights.count != e->entries) {
      cli_complain(e->command, "'%s' has %lld weights for %lld indices", e->weights_path, (long long)e->weights.count,
                   (long long)e->entries);
      return CLI_FAILED;
    }
  }
  if (!e->grad_path) return CLI_GO_ON;
  if ((code = operand_open(&e->grad, e->command, e->grad_path, false)) != CLI_GO_ON) return code;
  if (e->grad.rank >= 1 && e->grad.shape[e->grad.rank - 1] == e->table.dim && e->grad.count == e->bags * e->table.dim)
    return CLI_GO_ON;
  cli_complain(e->command, "'%s' has %lld numbers; the gradient of %lld rows of %lld columns is wanted", e->grad_path,
               (long long)e->grad.count, (long long)e->bags, (long long)e->table.dim);
  return CLI_FAILED;
}

void embed_close(embed *e)
{
  free(e->indices);
  free(e->starts);
  free(e->arg);
  operand_close(&e->indices_operand);
  operand_close(&e->offsets_operand);
  operand_close(&e->weights);
  operand_close(&e->grad);
  table_close(&e->table);
}
