// f64.cu: the CUDA kernels for f64.
#include "stamp.cuh"

namespace shf {
SHF_STAMP(F64, f64)
}
