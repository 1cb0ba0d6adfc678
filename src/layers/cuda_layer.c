/* cuda_layer.c: the Cuda key: the kernels of Cpu, whose problems name a CUDA device and run there on the thread's
 * stream (plan_problem.c); what is done element by element goes to the plug-in as well (device_map.c), the rest of an
 * op to the host and back. Without the plug-in, every op says so (UNAVAILABLE). */
#include "layers/layers_impl.h"

const shf_layer shf_layer_cuda = {.kernel = SHF_BACKEND_KERNELS};
