// bf16.cu: the CUDA kernels for bf16.
#include "stamp.cuh"

namespace shf {
SHF_STAMP(BF16, bf16)
}
