// f16.cu: the CUDA kernels for f16.
#include "stamp.cuh"

namespace shf {
SHF_STAMP(F16, f16)
}
