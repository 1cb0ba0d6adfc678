/* tests/include_cxx.cpp: the public headers are C++11 too, with C linkage, and their enums and INIT macros work there. */
#include <sheaf/sheaf.h>

#include <cstdio>
#include <cstring>

int main()
{
  sheaf_segment_desc desc = SHEAF_SEGMENT_DESC_INIT;
  sheaf_embedding_args args = SHEAF_EMBEDDING_ARGS_INIT;
  desc.kind = SHEAF_UNSORTED_SEGMENT_SUM;
  desc.dtype = SHEAF_F32;
  if (desc.struct_size != sizeof desc || args.struct_size != sizeof args || desc.rows != 0 || args.report) {
    std::puts("the INIT macros set something else than struct_size");
    return 1;
  }
  if (std::strcmp(sheaf_version(), SHEAF_VERSION_STRING) != 0) {
    std::printf("header %s, library %s\n", SHEAF_VERSION_STRING, sheaf_version());
    return 1;
  }
  return 0;
}
