/* cpu_layer.c: the Cpu key: calls become problems, which plans of the cache run; conversions are plain loops. */
#include "layers/layers_impl.h"

const shf_layer shf_layer_cpu = {.kernel = SHF_BACKEND_KERNELS};
