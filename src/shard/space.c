/* shard/space.c: the memory tensors lie in: the CPU's, or a device's through its plug-in. */
#include "shard/space.h"

#include <string.h>

#include "core/cpu.h"
#include "shard/local.h"

sheaf_status shf_space_check(DLDevice *device, const char *what)
{
  int type = (int)device->device_type, devices;
  if (type == 0 || type == kDLCPU || type == kDLCUDAHost) {
    *device = shf_host();
    return SHEAF_OK;
  }
  SHF_REQUIRE(type == kDLCUDA, UNSUPPORTED,
              "%s: device type %d: tensors over ranks lie on CPUs (1) and CUDA devices (2)", what, type);
  SHF_TRY(sheaf_device_count(kDLCUDA, &devices));
  SHF_REQUIRE(device->device_id >= 0 && device->device_id < devices, UNAVAILABLE,
              "%s: there is no CUDA device %d; there are %d", what, (int)device->device_id, devices);
  return SHEAF_OK;
}

const char *shf_space_name(DLDevice device) { return shf_is_host(device) ? "cpu" : "cuda"; }

static const shf_device_api *api_of(DLDevice device) { return shf_core_device_api((int)device.device_type, NULL); }

sheaf_status shf_space_copy(DLDevice device, void *to, const void *from, int64_t bytes)
{
  if (bytes == 0 || to == from) return SHEAF_OK;
  if (!shf_is_host(device)) return sheaf_device_copy(device, to, from, (size_t)bytes, NULL);
  memcpy(to, from, (size_t)bytes);
  return SHEAF_OK;
}

sheaf_status shf_space_zero(DLDevice device, void *memory, int64_t bytes)
{
  if (bytes == 0) return SHEAF_OK;
  if (!shf_is_host(device)) return sheaf_device_fill(device, memory, 0, (size_t)bytes, NULL);
  memset(memory, 0, (size_t)bytes);
  return SHEAF_OK;
}

sheaf_status shf_space_wait(DLDevice device)
{
  return shf_is_host(device) ? SHEAF_OK : sheaf_stream_wait(device, NULL);
}

static sheaf_status cross(DLDevice device, void *to, const void *from, int64_t bytes)
{
  SHF_TRY(shf_space_copy(device, to, from, bytes));
  return shf_space_wait(device);
}

sheaf_status shf_space_read(DLDevice device, void *host, const void *from, int64_t bytes)
{
  return cross(device, host, from, bytes);
}

sheaf_status shf_space_write(DLDevice device, void *to, const void *host, int64_t bytes)
{
  return cross(device, to, host, bytes);
}

/* ---- Folding ---------------------------------------------------------------------------------------------------- */

typedef struct folding {
  const shf_part_fold *fold;
  const char *source;
  char *target;
} folding;

static void fold_run(void *context, int64_t from_cell, int64_t to_cell, int64_t cells)
{
  const folding *f = context;
  int64_t cell = f->fold->cell;
  shf_fold_cells(f->fold, f->target + to_cell * cell, f->source + from_cell * cell, cells);
}

sheaf_status shf_space_fold(DLDevice device, const shf_part_fold *fold, const shf_box *part, const shf_box *from,
                            const char *source, const shf_box *to, char *target)
{
  if (shf_box_count(part) == 0) return SHEAF_OK;
  if (shf_is_host(device)) {
    shf_box_walk(part, from, to, fold_run, &(folding){fold, source, target});
    return SHEAF_OK;
  }
  shf_fold_task task = {.kind = fold->kind, .dtype = fold->dtype, .cell = fold->cell, .from_zero = fold->from_zero};
  int64_t from_at = shf_box_place(part, from, task.from_stride), to_at = shf_box_place(part, to, task.to_stride);
  for (int d = 0; d < part->rank; d++) { /* what is whole on both sides is one dimension */
    int64_t extent = part->hi[d] - part->lo[d];
    int joins = task.rank > 0 && task.from_stride[task.rank - 1] == extent * task.from_stride[d] &&
                task.to_stride[task.rank - 1] == extent * task.to_stride[d];
    int at = joins ? task.rank - 1 : task.rank++;
    task.extent[at] = joins ? task.extent[at] * extent : extent;
    task.from_stride[at] = task.from_stride[d];
    task.to_stride[at] = task.to_stride[d];
  }
  if (part->rank == 0) task.rank = 1, task.extent[0] = task.from_stride[0] = task.to_stride[0] = 1;
  task.from = source + from_at * fold->cell;
  task.to = target + to_at * fold->cell;
  return api_of(device)->fold(device.device_id, &task);
}

/* ---- Types, quotients ------------------------------------------------------------------------------------------- */

sheaf_status shf_space_convert(DLDevice device, sheaf_dtype from, const void *source, sheaf_dtype to, void *target,
                               int64_t count)
{
  if (count == 0) return SHEAF_OK;
  if (shf_is_host(device)) {
    shf_convert(from, source, to, target, count);
    return SHEAF_OK;
  }
  if (from == to) return shf_space_copy(device, target, source, count * shf_core_dtype_size(from));
  return api_of(device)->convert(device.device_id, from, source, to, target, count);
}

sheaf_status shf_space_divide(DLDevice device, const void *sums, const void *divisors, int64_t rows, int64_t columns,
                              sheaf_dtype to, void *target)
{
  sheaf_dtype acc = shf_core_dtype_acc(to);
  if (rows * columns == 0) return SHEAF_OK;
  if (!shf_is_host(device)) return api_of(device)->divide(device.device_id, sums, divisors, rows, columns, to, target);
  unsigned mode = shf_core_fp_enter();
  for (int64_t b = 0; b < rows; b++)
    for (int64_t d = 0; d < columns; d++) {
      double sum = shf_load(acc, sums, b * columns + d), divisor = shf_load(acc, divisors, b);
      double quotient = acc == SHEAF_F64 ? sum / divisor : (double)((float)sum / (float)divisor);
      shf_store(to, target, b * columns + d, quotient);
    }
  shf_core_fp_leave(mode);
  return SHEAF_OK;
}
