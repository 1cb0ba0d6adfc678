/* tensor_forms.c: tensors made of others: row-sparse, quantised, nested, batched. */
#include <inttypes.h>
#include <string.h>

#include "core/memory.h"
#include "dispatch/dispatch_impl.h"

static int is_index(const sheaf_tensor *t) { return t->dtype == SHEAF_I32 || t->dtype == SHEAF_I64; }
static int is_plain(const sheaf_tensor *t) { return t->form == SHEAF_FORM_DENSE || t->form == SHEAF_FORM_META; }

/* Gradients end at tensors of Sheaf's results, not at what a user put together. */
static sheaf_status check_no_grad(const char *what, const sheaf_tensor *part)
{
  SHF_REQUIRE(!sheaf_tensor_requires_grad(part), UNSUPPORTED,
              "%s made of a tensor that requires a gradient would lose it; detach that first", what);
  return SHEAF_OK;
}

/* Looks at the numbers of a list, wherever it lies; those of a meta tensor cannot be looked at. */
static sheaf_status check_values(sheaf_tensor *list, int64_t limit, int strict,
                                 sheaf_status (*check)(const sheaf_tensor *list, int64_t limit, int strict))
{
  sheaf_tensor *host;
  if (shf_is_on(list, SHEAF_KEY_META)) return SHEAF_OK;
  SHF_TRY(shf_tensor_on_host(list, &host));
  sheaf_status status = check(host, limit, strict);
  sheaf_tensor_release(host);
  return status;
}

/* A tensor of this form with the keys of its parts, which the caller puts in. */
static sheaf_status make_of(sheaf_form form, int key, sheaf_tensor *first, sheaf_tensor *second, sheaf_tensor **tensor)
{
  size_t block = sizeof(sheaf_tensor);
  sheaf_tensor *t = shf_spare_alloc(&block);
  if (!t) return shf_core_no_memory("a tensor", block);
  shf_tensor_begin(t, block);
  t->form = form;
  t->keys = sheaf_keyset_insert(sheaf_keyset_union(first->keys, second ? second->keys : first->keys), key);
  *tensor = t;
  return SHEAF_OK;
}

/* ---- Row-sparse ---- */

sheaf_status shf_tensor_sparse(sheaf_tensor *ids, sheaf_tensor *values, int rank, const int64_t *shape, int coalesced,
                               sheaf_tensor **tensor)
{
  SHF_TRY(make_of(SHEAF_FORM_SPARSE, SHEAF_KEY_SPARSE, ids, values, tensor));
  sheaf_tensor *t = *tensor;
  t->part[0] = sheaf_tensor_retain(ids);
  t->part[1] = sheaf_tensor_retain(values);
  t->dtype = values->dtype;
  t->rank = rank;
  for (int i = 0; i < rank; i++) t->extent[i] = shape[i];
  t->coalesced = coalesced;
  return SHEAF_OK;
}

static sheaf_status check_ids(const sheaf_tensor *ids, int64_t rows, int coalesced)
{
  for (int64_t i = 0; i < ids->extent[0]; i++) {
    int64_t id = shf_index_at(ids, i);
    SHF_REQUIRE(id >= 0 && id < rows, INDEX_OUT_OF_RANGE,
                "id %" PRId64 " at position %" PRId64 " is outside 0..%" PRId64, id, i, rows - 1);
    SHF_REQUIRE(!coalesced || i == 0 || shf_index_at(ids, i - 1) < id, INVALID_PROBLEM,
                "id %" PRId64 " at position %" PRId64 " follows %" PRId64 ", but coalesced ids increase", id, i,
                shf_index_at(ids, i - 1));
  }
  return SHEAF_OK;
}

sheaf_status sheaf_tensor_sparse(sheaf_tensor *ids, sheaf_tensor *values, int64_t rows, int coalesced,
                                 sheaf_tensor **tensor)
{
  SHF_REQUIRE(tensor, INVALID_PROBLEM, "sheaf_tensor_sparse: tensor is NULL");
  *tensor = NULL;
  SHF_REQUIRE(ids && values, INVALID_PROBLEM, "sheaf_tensor_sparse: ids or values are NULL");
  SHF_REQUIRE(is_plain(ids) && is_index(ids) && ids->rank == 1 && is_plain(values) && values->rank == 2 &&
                  shf_dtype_is_float(values->dtype) && ids->extent[0] == values->extent[0],
              INVALID_PROBLEM,
              "a row-sparse tensor needs ids [U] of i32 or i64 and rows [U, D]; these are %s of rank %d with %" PRId64
              " and %s of rank %d with %" PRId64,
              sheaf_dtype_name(ids->dtype), ids->rank, sheaf_tensor_extent(ids, 0), sheaf_dtype_name(values->dtype),
              values->rank, sheaf_tensor_extent(values, 0));
  SHF_REQUIRE(shf_same_place(ids, values), INVALID_PROBLEM,
              "ids and rows of a row-sparse tensor lie on different devices");
  SHF_TRY(check_no_grad("a row-sparse tensor", values));
  int64_t elements;
  SHF_REQUIRE(rows >= 0, INVALID_PROBLEM, "a row-sparse tensor of %" PRId64 " rows", rows);
  SHF_REQUIRE(!__builtin_mul_overflow(rows, values->extent[1] ? values->extent[1] : 1, &elements) &&
                  elements < INT64_MAX / 16,
              INVALID_PROBLEM, "a row-sparse tensor of %" PRId64 " rows of %" PRId64 " has more than 2^59 elements",
              rows, values->extent[1]);
  SHF_REQUIRE(shf_tensor_is_contiguous(ids), INVALID_PROBLEM, "the ids of a row-sparse tensor must be contiguous");
  SHF_TRY(check_values(ids, rows, coalesced != 0, check_ids));
  const int64_t shape[] = {rows, values->extent[1]};
  return shf_tensor_sparse(ids, values, 2, shape, coalesced != 0, tensor);
}

/* ---- Quantised ---- */

sheaf_status sheaf_tensor_quantized(sheaf_tensor *packed, sheaf_dtype dtype, int64_t dim, sheaf_tensor **tensor)
{
  SHF_REQUIRE(tensor, INVALID_PROBLEM, "sheaf_tensor_quantized: tensor is NULL");
  *tensor = NULL;
  SHF_REQUIRE(dtype == SHEAF_INT8 || dtype == SHEAF_INT4, UNSUPPORTED,
              "rows are packed as int8 or int4, not as %s (%d)", sheaf_dtype_name(dtype), (int)dtype);
  SHF_REQUIRE(packed && is_plain(packed) && packed->dtype == SHEAF_U8 && packed->rank >= 2, INVALID_PROBLEM,
              "packed rows are a u8 tensor [..., V, bytes of a row]; this one is %s of rank %d",
              sheaf_dtype_name(sheaf_tensor_dtype(packed)), sheaf_tensor_rank(packed));
  int last = packed->rank - 1;
  int64_t width = sheaf_dtype_row_bytes(dtype, dim);
  SHF_REQUIRE(width >= 0 && packed->extent[last] == width, INVALID_PROBLEM,
              "%s rows of %" PRId64 " columns have %" PRId64 " bytes; the packed rows have %" PRId64,
              sheaf_dtype_name(dtype), dim, width, packed->extent[last]);
  SHF_TRY(sheaf_tensor_detach(packed, tensor));
  sheaf_tensor *t = *tensor;
  memcpy(t->stored, t->extent, sizeof t->stored);
  t->dl.shape = t->stored;
  t->extent[last] = dim;
  t->form = SHEAF_FORM_QUANTIZED;
  t->dtype = dtype;
  t->keys = sheaf_keyset_insert(t->keys, SHEAF_KEY_QUANTIZED);
  return SHEAF_OK;
}

/* ---- Nested ---- */

sheaf_status shf_tensor_nested(sheaf_tensor *values, sheaf_tensor *offsets, int lead, sheaf_tensor **tensor)
{
  SHF_REQUIRE(values->rank + 1 <= SHEAF_TENSOR_MAX_RANK, INVALID_PROBLEM, "a nested tensor over values of rank %d",
              values->rank);
  SHF_TRY(make_of(SHEAF_FORM_NESTED, SHEAF_KEY_NESTED, values, offsets, tensor));
  sheaf_tensor *t = *tensor;
  t->part[0] = sheaf_tensor_retain(values);
  t->part[1] = sheaf_tensor_retain(offsets);
  t->dtype = values->dtype;
  t->rank = values->rank + 1;
  t->lead = lead;
  for (int i = 0; i < lead; i++) t->extent[i] = values->extent[i];
  t->extent[lead] = offsets->extent[0] - 1;
  t->extent[lead + 1] = -1;
  for (int i = lead + 1; i < values->rank; i++) t->extent[i + 1] = values->extent[i];
  return SHEAF_OK;
}

static sheaf_status check_offsets(const sheaf_tensor *offsets, int64_t entries, int unused)
{
  (void)unused;
  int64_t last = offsets->extent[0] - 1;
  for (int64_t i = 0; i <= last; i++) {
    int64_t at = shf_index_at(offsets, i), before = i ? shf_index_at(offsets, i - 1) : 0;
    SHF_REQUIRE(i > 0 || at == 0, INVALID_PROBLEM, "offsets of a nested tensor start at %" PRId64 ", not at 0", at);
    SHF_REQUIRE(at >= before, INVALID_PROBLEM,
                "offset %" PRId64 " of a nested tensor is %" PRId64 ", less than %" PRId64 " before it", i, at, before);
    SHF_REQUIRE(i < last || at == entries, INVALID_PROBLEM,
                "offsets of a nested tensor end at %" PRId64 ", but there are %" PRId64 " values", at, entries);
  }
  return SHEAF_OK;
}

sheaf_status sheaf_tensor_nested(sheaf_tensor *values, sheaf_tensor *offsets, sheaf_tensor **tensor)
{
  SHF_REQUIRE(tensor, INVALID_PROBLEM, "sheaf_tensor_nested: tensor is NULL");
  *tensor = NULL;
  int hidden = values && values->form == SHEAF_FORM_BATCHED ? values->levels : 0; /* every slice has such values */
  sheaf_tensor *all = hidden ? values->part[0] : values;
  SHF_REQUIRE(values && offsets && is_plain(all) && values->rank >= 1 && is_plain(offsets) && is_index(offsets) &&
                  offsets->rank == 1 && offsets->extent[0] >= 1,
              INVALID_PROBLEM, "a nested tensor needs values [N, ...] and offsets [B + 1] of i32 or i64, B from 0");
  SHF_REQUIRE(shf_same_place(values, offsets), INVALID_PROBLEM,
              "values and offsets of a nested tensor lie on different devices");
  SHF_TRY(check_no_grad("a nested tensor", values));
  SHF_REQUIRE(shf_tensor_is_contiguous(offsets), INVALID_PROBLEM, "the offsets of a nested tensor must be contiguous");
  SHF_TRY(check_values(offsets, values->extent[0], 0, check_offsets));
  if (!hidden) return shf_tensor_nested(values, offsets, 0, tensor);
  sheaf_tensor *slices;
  SHF_TRY(shf_tensor_nested(all, offsets, hidden, &slices));
  return shf_tensor_batched(slices, hidden, values->level, tensor);
}

/* ---- Batched ---- */

sheaf_status shf_tensor_batched(sheaf_tensor *inner, int levels, const int *level, sheaf_tensor **tensor)
{
  sheaf_status status = make_of(SHEAF_FORM_BATCHED, SHEAF_KEY_VMAP, inner, NULL, tensor);
  if (status != SHEAF_OK) {
    sheaf_tensor_release(inner);
    return status;
  }
  sheaf_tensor *t = *tensor;
  t->part[0] = inner;
  t->dtype = inner->dtype;
  t->rank = inner->rank - levels;
  t->levels = levels;
  for (int i = 0; i < levels; i++) t->level[i] = level[i];
  for (int i = 0; i < t->rank; i++) t->extent[i] = inner->extent[i + levels];
  shf_copy_name(t, inner);
  return SHEAF_OK;
}
