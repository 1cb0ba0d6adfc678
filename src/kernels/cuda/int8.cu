// int8.cu: the CUDA kernels for rows of int8, which forward lookups and bags read.
#include "stamp.cuh"

namespace shf {
SHF_STAMP_QUANTISED(INT8, int8)
}
