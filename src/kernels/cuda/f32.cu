// f32.cu: the CUDA kernels for f32.
#include "stamp.cuh"

namespace shf {
SHF_STAMP(F32, f32)
}
