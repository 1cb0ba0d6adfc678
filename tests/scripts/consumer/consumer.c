/* A user's program: prints the version of the library it runs with, after calls that reach its dependencies. */
#include <sheaf/sheaf.h>

#include <stdio.h>

int main(void)
{
  sheaf_safetensors *file = NULL;
  if (sheaf_safetensors_open_memory("", 0, &file) == SHEAF_OK) return 1;
  if (sheaf_threads() < 1) return 1;                                      /* OpenMP */
  puts(sheaf_version());
  return 0;
}
