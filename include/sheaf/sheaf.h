/* sheaf/sheaf.h: everything. Sheaf computes on embedding tables: row lookup, embedding bags and segment reductions,
 * forward and backward, with the same bits on every instruction set and for every number of threads.
 *
 *   base.h    status codes, errors, element types, memory, threads, CPU features
 *   tensor.h  how memory is handed in: DLPack tensors
 *   plan.h    describe a problem, select a kernel, run it
 *   io.h      tables in safetensors and npy files
 *   shard.h   tables spread over ranks
 */
#ifndef SHEAF_SHEAF_H
#define SHEAF_SHEAF_H

#include "base.h"
#include "io.h"
#include "plan.h"
#include "shard.h"
#include "tensor.h"

#endif
