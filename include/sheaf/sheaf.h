/* sheaf/sheaf.h: everything. Sheaf computes on embedding tables: row lookup, embedding bags and segment reductions,
 * forward and backward, with the same bits on every instruction set and for every number of threads.
 *
 *   base.h    status codes, errors, element types, memory, threads, CPU features
 *   tensor.h  how memory is handed in: DLPack tensors
 *   plan.h    describe a problem, select a kernel, run it
 *   device.h  CUDA devices: memory, streams and timing, for programs that have no toolkit of their own
 *   io.h      tables in safetensors and npy files
 */
#ifndef SHEAF_SHEAF_H
#define SHEAF_SHEAF_H

#include "base.h"
#include "device.h"
#include "io.h"
#include "plan.h"
#include "tensor.h"

#endif
