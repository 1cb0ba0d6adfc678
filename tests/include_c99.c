/* tests/include_c99.c: the public headers are C99, and a program of that age can link and call the library. */
#include <sheaf/sheaf.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
  sheaf_embedding_desc desc = SHEAF_EMBEDDING_DESC_INIT;
  sheaf_segment_args args = SHEAF_SEGMENT_ARGS_INIT;
  if (desc.struct_size != sizeof desc || args.struct_size != sizeof args || desc.rows != 0 || args.report) {
    puts("the INIT macros set something else than struct_size");
    return 1;
  }
  if (strcmp(sheaf_version(), SHEAF_VERSION_STRING) != 0) {
    printf("header %s, library %s\n", SHEAF_VERSION_STRING, sheaf_version());
    return 1;
  }
  return 0;
}
