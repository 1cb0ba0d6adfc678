/* cli/file_operand.c: operands that are needed as a whole: indices, ids, offsets, weights, gradients. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"

/* "3,1,42", or what begins so: no file of that name is there, and it is no path. */
static bool is_list(const char *text)
{
  size_t numbers = strspn(text, "0123456789,-");
  if (numbers == 0 || strcmp(text, "-") == 0) return false;
  return !text[numbers] || (strchr(text, ',') && !strpbrk(text, "./:") && access(text, F_OK) != 0);
}

static int read_list(whole_operand *operand, const char *command, const char *text)
{
  const char *all = text;
  int64_t count = 1;
  for (const char *c = text; *c; c++) count += *c == ',';
  operand->list = malloc((size_t)count * sizeof *operand->list);
  if (!operand->list) {
    cli_complain(command, "out of memory");
    return CLI_FAILED;
  }
  for (int64_t i = 0; i < count; i++) {
    char *end;
    errno = 0;
    operand->list[i] = strtoll(text, &end, 10);
    if (end == text || errno || (*end && *end != ','))
      return cli_misused(command, "'%s' is neither a file nor a list of numbers: '%.*s' is none", all,
                         (int)strcspn(text, ","), text);
    text = end + 1;
  }
  operand->dtype = SHEAF_I64;
  operand->rank = 1;
  operand->shape[0] = operand->count = count;
  operand->data = operand->list;
  return CLI_GO_ON;
}

int operand_open(whole_operand *operand, const char *command, const char *text, bool may_list)
{
  *operand = (whole_operand){.dtype = SHEAF_DTYPE_NONE};
  if (may_list && is_list(text)) return read_list(operand, command, text);
  table_file *from = &operand->from;
  int code = tensor_open(from, command, text);
  if (code != CLI_GO_ON) return code;
  operand->dtype = from->dtype;
  operand->rank = from->tensor->rank;
  memcpy(operand->shape, from->tensor->shape, sizeof operand->shape);
  operand->count = from->rows * from->dim;
  operand->data = table_rows(from, 0, from->rows);
  return operand->data ? CLI_GO_ON : CLI_FAILED;
}

void operand_close(whole_operand *operand)
{
  free(operand->list);
  table_close(&operand->from);
  operand->list = NULL;
}

int operand_indices(const char *command, const char *what, const char *text, whole_operand *operand, int64_t **numbers)
{
  *numbers = NULL;
  int code = operand_open(operand, command, text, true);
  if (code != CLI_GO_ON) return code;
  if (operand->dtype != SHEAF_I32 && operand->dtype != SHEAF_I64) {
    cli_complain(command, "'%s' is of %s; %s are i32 or i64", text, sheaf_dtype_name(operand->dtype), what);
    return CLI_FAILED;
  }
  *numbers = malloc((size_t)(operand->count + 1) * sizeof **numbers);
  if (!*numbers) {
    cli_complain(command, "out of memory for %lld %s", (long long)operand->count, what);
    return CLI_FAILED;
  }
  for (int64_t i = 0; i < operand->count; i++)
    (*numbers)[i] =
        operand->dtype == SHEAF_I32 ? ((const int32_t *)operand->data)[i] : ((const int64_t *)operand->data)[i];
  return CLI_GO_ON;
}
