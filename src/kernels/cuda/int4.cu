// int4.cu: the CUDA kernels for rows of int4, which forward lookups and bags read.
#include "stamp.cuh"

namespace shf {
SHF_STAMP_QUANTISED(INT4, int4)
}
