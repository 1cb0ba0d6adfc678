// table.cu: which kernels there are: the rows that the core chooses from, and the launchers of each element type.
#include "cuda_impl.h"

namespace shf {

const Kernels *kernels_of(sheaf_dtype dtype)
{
  switch (dtype) {
  case SHEAF_F64:
    return &kernels_f64;
  case SHEAF_F16:
    return &kernels_f16;
  case SHEAF_BF16:
    return &kernels_bf16;
  case SHEAF_INT8:
    return &kernels_int8;
  case SHEAF_INT4:
    return &kernels_int4;
  default:
    return &kernels_f32;
  }
}

// All ops over all element types, as the CPU has them; quantised rows only where they are read forward.
enum { ROWS_PER_ARCH = (28 * 4 + 4 * 2) * 2, ROWS = ROWS_PER_ARCH * 2 };
static shf_kernel_row rows[ROWS];

static int add_rows(int count, sheaf_arch arch, sheaf_category category, int kind, bool quantised)
{
  static const sheaf_dtype elements[] = {SHEAF_F32, SHEAF_F64, SHEAF_F16, SHEAF_BF16, SHEAF_INT8, SHEAF_INT4};
  for (int e = 0; e < (quantised ? 6 : 4); e++)
    for (sheaf_dtype index : {SHEAF_I32, SHEAF_I64}) {
      shf_kernel_row row = {};
      row.category = category;
      row.kind = (uint16_t)kind;
      row.element = elements[e];
      row.index = index;
      row.arch = arch;
      rows[count++] = row;
    }
  return count;
}

int make_rows(const shf_kernel_row **table)
{
  int count = 0;
  for (sheaf_arch arch : {SHEAF_ARCH_SM90, SHEAF_ARCH_SM80}) {
#define SHEAF_X(name, kind, text)                               \
  count = add_rows(count, arch, SHEAF_CATEGORY_EMBEDDING, kind, \
                   kind == SHEAF_LOOKUP || kind == SHEAF_BAG_SUM || kind == SHEAF_BAG_MEAN || kind == SHEAF_BAG_MAX);
    SHEAF_EMBEDDING_KIND_LIST(SHEAF_X)
#undef SHEAF_X
#define SHEAF_X(name, kind, text) count = add_rows(count, arch, SHEAF_CATEGORY_SEGMENT, kind, false);
    SHEAF_SEGMENT_KIND_LIST(SHEAF_X)
#undef SHEAF_X
  }
  *table = rows;
  return count;
}

} // namespace shf
