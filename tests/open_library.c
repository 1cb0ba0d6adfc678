/* tests/open_library.c: the shared library opens in a program that already runs, as plug-ins and other languages do it;
 * open_library <libsheaf.so> */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
  void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!library) {
    printf("%s\n", argc > 1 ? dlerror() : "open_library <libsheaf.so>");
    return 1;
  }
  const char *(*version)(void);
  *(void **)&version = dlsym(library, "sheaf_version");
  if (!version) {
    puts("no sheaf_version in it");
    return 1;
  }
  printf("opened version %s\n", version());
  return 0;
}
