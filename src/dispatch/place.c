/* place.c: memory on devices other than the CPU, for results and workspaces: the one place that knows where it comes
 * from. While there is no plug-in, there is none. */
#include "dispatch/dispatch_impl.h"

sheaf_status shf_place_alloc(DLDevice device, size_t bytes, void **memory)
{
  *memory = NULL;
  return shf_core_fail(SHEAF_UNAVAILABLE,
                       "%zu bytes on CUDA device %d need the plug-in libsheaf_cuda.so, which is not loaded", bytes,
                       device.device_id);
}

void shf_place_free(DLDevice device, void *memory)
{
  (void)device;
  (void)memory;
}
