/* cli/bench_table.c: the tables of `sheaf bench`: memory on huge or small pages, filled with plausible values. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench_data.h"
#include "bench_tools.h"

enum { PATTERN_ROWS = 4099, PATTERN_BYTES = 8 << 20 };

/* ---- Values -------------------------------------------------------------------------------------------------- */

void bench_fill_values(void *memory, sheaf_dtype dtype, int64_t count, uint64_t stream)
{
#ifdef _OPENMP
#pragma omp parallel for schedule(static) if (count > 100000)
#endif
  for (int64_t i = 0; i < count; i++) {
    float value = (float)(2 * bench_random_unit(stream, i) - 1);
    if (dtype == SHEAF_F32) ((float *)memory)[i] = value;
    else if (dtype == SHEAF_F64) ((double *)memory)[i] = value;
    else if (dtype == SHEAF_F16) ((uint16_t *)memory)[i] = sheaf_f32_to_f16(value);
    else ((uint16_t *)memory)[i] = sheaf_f32_to_bf16(value);
  }
}

/* `rows` packed rows of int8 or int4 made of random ones. */
static sheaf_status fill_quantized(void *memory, sheaf_dtype dtype, int64_t rows, int64_t dim)
{
  void *values;
  size_t bytes = (size_t)(rows * dim) * sizeof(float);
  sheaf_status status = sheaf_table_alloc(bytes, &values);
  if (status != SHEAF_OK) return status;
  bench_fill_values(values, SHEAF_F32, rows * dim, 1);
  int64_t plain_shape[2] = {rows, dim}, packed_shape[2] = {rows, sheaf_dtype_row_bytes(dtype, dim)};
  DLTensor plain = {.data = values, .device = {kDLCPU, 0}, .ndim = 2, .dtype = sheaf_dtype_to_dl(SHEAF_F32),
                    .shape = plain_shape};
  DLTensor packed = {.data = memory, .device = {kDLCPU, 0}, .ndim = 2, .dtype = sheaf_dtype_to_dl(dtype),
                     .shape = packed_shape};
  status = sheaf_quantize_rows(dtype, &(sheaf_operand){&plain, 0}, &(sheaf_operand){&packed, 0});
  sheaf_table_free(values, bytes);
  return status;
}

/* A few megabytes of random rows, repeated to the end. */
static sheaf_status fill_table(bench_table *table)
{
  char *memory = table->memory;
  int64_t rows = PATTERN_BYTES / table->stride_bytes + 1;
  if (rows > PATTERN_ROWS) rows = PATTERN_ROWS;
  if (rows > table->rows) rows = table->rows;
  int64_t pattern = rows * table->stride_bytes, total = (int64_t)table->bytes;
  if (table->dtype == SHEAF_INT8 || table->dtype == SHEAF_INT4) {
    sheaf_status status = fill_quantized(memory, table->dtype, rows, table->dim);
    if (status != SHEAF_OK) return status;
  } else {
    bench_fill_values(memory, table->dtype, pattern / sheaf_dtype_row_bytes(table->dtype, 1), 1);
  }
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
  for (int64_t at = pattern; at < total; at += pattern)
    memcpy(memory + at, memory, (size_t)(total - at < pattern ? total - at : pattern));
  return SHEAF_OK;
}

/* ---- Memory -------------------------------------------------------------------------------------------------- */

static sheaf_status allocate(bench_table *table)
{
  if (!table->small_pages) return sheaf_table_alloc(table->bytes, &table->memory);
  void *memory = mmap(NULL, table->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return SHEAF_OUT_OF_MEMORY;
  madvise(memory, table->bytes, MADV_NOHUGEPAGE);
  table->memory = memory;
  return SHEAF_OK;
}

void bench_table_release(bench_table *table)
{
  if (table->memory && table->small_pages) munmap(table->memory, table->bytes);
  else if (table->memory) sheaf_table_free(table->memory, table->bytes);
  *table = (bench_table){0};
}

sheaf_status bench_table_make(bench_table *table, const bench_table *wanted)
{
  bool same = table->memory && table->dtype == wanted->dtype && table->rows == wanted->rows &&
              table->dim == wanted->dim && table->stride_bytes == wanted->stride_bytes &&
              table->small_pages == wanted->small_pages && table->backward == wanted->backward;
  if (same) return SHEAF_OK;
  bench_table_release(table);
  *table = *wanted;
  table->bytes = (size_t)(wanted->rows * wanted->stride_bytes);
  sheaf_status status = allocate(table);
  if (status == SHEAF_OK) status = fill_table(table);
  if (status != SHEAF_OK) bench_table_release(table);
  return status;
}

/* ---- Page size ----------------------------------------------------------------------------------------------- */

/* Whether a line of smaps opens a mapping ("begin-end ..." in hexadecimal), and then whether `memory` lies in it. */
static bool opens_mapping(const char *line, const void *memory, bool *inside)
{
  char *rest;
  unsigned long begin = strtoul(line, &rest, 16);
  if (rest == line || *rest != '-') return false;
  unsigned long end = strtoul(rest + 1, NULL, 16);
  *inside = (uintptr_t)memory >= begin && (uintptr_t)memory < end;
  return true;
}

/* Kilobytes that the kernel reports under `key` ("Rss:") for the mapping of `memory`; -1 where it does not say. */
static long mapping_kilobytes(const void *memory, const char *key)
{
  FILE *file = fopen("/proc/self/smaps", "r");
  if (!file) return -1;
  char line[256];
  long found = -1;
  bool inside = false;
  while (found < 0 && fgets(line, sizeof line, file))
    if (!opens_mapping(line, memory, &inside) && inside && strncmp(line, key, strlen(key)) == 0)
      found = strtol(line + strlen(key), NULL, 10);
  fclose(file);
  return found;
}

void bench_page_size(const void *memory, char *text, size_t room)
{
  long present = mapping_kilobytes(memory, "Rss:"), huge = mapping_kilobytes(memory, "AnonHugePages:");
  if (present <= 0 || huge < 0) snprintf(text, room, "unknown");
  else if (20 * huge >= 19 * present) snprintf(text, room, "2 MiB");
  else if (20 * huge <= present) snprintf(text, room, "4 KiB");
  else snprintf(text, room, "%.0f %% 2 MiB", 100.0 * (double)huge / (double)present);
}
