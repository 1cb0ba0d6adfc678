/* cli/bench_device_sparse.h: a row-sparse gradient on a device, for `sheaf bench --device cuda`. */
#ifndef SHEAF_CLI_BENCH_DEVICE_SPARSE_H
#define SHEAF_CLI_BENCH_DEVICE_SPARSE_H

#include <sheaf/sheaf.h>

/* The coalesced gradient of a table of `rows` rows, made by the op on tensors and let go: bags by offsets, with an end.
 * Works on the thread's stream (sheaf_stream_use); the call itself waits, since how many rows there are is known
 * late. */
sheaf_status bench_sparse_gradient(const sheaf_embedding_args *operands, int64_t rows);

#endif
