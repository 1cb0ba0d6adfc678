/* shard/space.h: the memory tensors lie in, the CPU's or a device's, and the few things done to it that are not ops.
 *
 * Work on a device is enqueued on its default stream, in order; copies to the CPU wait for it. Numbers that steer a
 * call (indices, offsets, ids, counts) are worked on by the CPU wherever the tensors lie: `shf_space_read` and
 * `shf_space_write` in the code of an op mark the few places where they cross, and cost nothing on the CPU. */
#ifndef SHF_SHARD_SPACE_H
#define SHF_SHARD_SPACE_H

#include "core/device_api.h"
#include "shard/shard_impl.h"

static inline DLDevice shf_host(void) { return (DLDevice){kDLCPU, 0}; }
static inline int shf_is_host(DLDevice device) { return device.device_type != kDLCUDA; }

/* {0, 0} is the CPU, and the kinds of memory that it can read are too. UNSUPPORTED for what is no such device. */
sheaf_status shf_space_check(DLDevice *device, const char *what);
const char *shf_space_name(DLDevice device);

/* Bytes between places of one space; zero bytes; all enqueued work done. */
sheaf_status shf_space_copy(DLDevice device, void *to, const void *from, int64_t bytes);
sheaf_status shf_space_zero(DLDevice device, void *memory, int64_t bytes);
sheaf_status shf_space_wait(DLDevice device);

/* Between the CPU and a space; both wait. */
sheaf_status shf_space_read(DLDevice device, void *host, const void *from, int64_t bytes);
sheaf_status shf_space_write(DLDevice device, void *to, const void *host, int64_t bytes);

/* `part` of an array that holds `from`, folded into one that holds `to`. */
typedef struct shf_part_fold {
  shf_fold_kind kind;
  sheaf_dtype dtype;
  int64_t cell;
  int from_zero;
} shf_part_fold;
sheaf_status shf_space_fold(DLDevice device, const shf_part_fold *fold, const shf_box *part, const shf_box *from,
                            const char *source, const shf_box *to, char *target);

/* As shf_convert; and target[b, d] = sums[b, d] / divisors[b], sums and divisors of acc(to). */
sheaf_status shf_space_convert(DLDevice device, sheaf_dtype from, const void *source, sheaf_dtype to, void *target,
                               int64_t count);
sheaf_status shf_space_divide(DLDevice device, const void *sums, const void *divisors, int64_t rows, int64_t columns,
                              sheaf_dtype to, void *target);

#endif
