/* sheaf/sheaf.h: everything. Sheaf computes on embedding tables: row lookup, embedding bags and segment reductions,
 * forward and backward, with the same bits on every instruction set and for every number of threads.
 *
 *   base.h    status codes, errors, element types, memory, threads, CPU features
 *   tensor.h  how memory is handed in: DLPack tensors, and tensors of Sheaf's own
 *   plan.h    describe a problem, select a kernel, run it
 *   nearest.h the rows nearest to a vector
 *   ops.h     ops on tensors, with gradients, autocast, vmap, profiles and traces
 *   dispatch.h  how those compose, and how to add ops and layers
 *   device.h  CUDA devices: memory, streams and timing, for programs that have no toolkit of their own
 *   io.h      tables in safetensors and npy files
 *   shard.h   tables spread over ranks
 */
#ifndef SHEAF_SHEAF_H
#define SHEAF_SHEAF_H

#include "base.h"
#include "device.h"
#include "dispatch.h"
#include "io.h"
#include "nearest.h"
#include "ops.h"
#include "plan.h"
#include "shard.h"
#include "tensor.h"

#endif
