/* cuda_layer.c: the Cuda key: the kernels of Cpu, whose problems name a CUDA device. Plans for it have the rows of the
 * plug-in; while there is none, select says so (UNAVAILABLE). */
#include "layers/layers_impl.h"

const shf_layer shf_layer_cuda = {.kernel = SHF_BACKEND_KERNELS};
