/* io/file_map.c: a whole file in memory, by mapping it read-only. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io_impl.h"

static sheaf_status map_descriptor(const char *path, int file, shf_io_bytes *content)
{
  struct stat status;
  if (fstat(file, &status) != 0) return shf_io_fail_errno(path, "look at the file", errno);
  if (!S_ISREG(status.st_mode)) return shf_io_fail(SHEAF_IO, path, "this is not a regular file and cannot be mapped");
  if (status.st_size == 0) return SHEAF_OK;
  if ((uintmax_t)status.st_size > SIZE_MAX / 2) {
    return shf_io_fail(SHEAF_IO, path, "%jd bytes are more than can be mapped", (intmax_t)status.st_size);
  }
  void *data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  if (data == MAP_FAILED) return shf_io_fail_errno(path, "map the file", errno);
  *content = (shf_io_bytes){.data = data, .bytes = (size_t)status.st_size, .mapping = data};
  return SHEAF_OK;
}

sheaf_status shf_io_map(const char *path, shf_io_bytes *content)
{
  *content = (shf_io_bytes){.data = NULL};
  int file;
  do { /* O_NONBLOCK: opening a pipe must not wait for its other end */
    file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  } while (file < 0 && errno == EINTR);
  if (file < 0) return shf_io_fail_errno(path, "open the file for reading", errno);
  sheaf_status status = map_descriptor(path, file, content);
  close(file);
  return status;
}

void shf_io_unmap(shf_io_bytes *content)
{
  if (content->mapping) munmap(content->mapping, content->bytes);
  *content = (shf_io_bytes){.data = NULL};
}
